//! Arrays of numbers from an npz file.
//!
//! The file is not trusted: an array unpacks up to a limit, and its header is checked against its bytes before anything
//! is decoded. Whatever is wrong is an error that names the array.

use std::io::{self, Read};

use half::f16;
use npyz::npz::NpzArchive;
use npyz::{DType, Deserialize, NpyFile, NpyHeader, Order};

use crate::dataset::DatasetError;

/// The largest array read from an archive, in bytes; a small archive can unpack to any size.
const MAX_ARRAY_BYTES: u64 = 4 << 30;

/// A decoded array, in row-major order.
pub(crate) struct Array {
    name: &'static str,
    /// The size of each axis.
    pub(crate) shape: Vec<usize>,
    values: Values,
}

enum Values {
    Floats(Vec<f32>),
    Integers(Vec<i128>),
}

impl Array {
    /// Reads the array of this name.
    ///
    /// # Errors
    ///
    /// If it is missing, cannot be unpacked, is no array, or has elements that are no real numbers.
    pub(crate) fn unpack<R: Read + io::Seek>(
        archive: &mut NpzArchive<R>,
        name: &'static str,
    ) -> Result<Self, DatasetError> {
        let wrong = |reason: String| DatasetError::Array { name, reason };
        let file_name = npyz::npz::file_name_from_array_name(name);
        if !archive.array_names().any(|found| found == name) {
            return Err(DatasetError::Missing { name });
        }
        let entry =
            archive.zip_archive().by_name(&file_name).map_err(|error| wrong(error.to_string()))?;
        let mut bytes = Vec::new();
        entry
            .take(MAX_ARRAY_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| wrong(error.to_string()))?;
        if bytes.len() as u64 > MAX_ARRAY_BYTES {
            return Err(wrong(format!("it unpacks to more than {MAX_ARRAY_BYTES} bytes")));
        }
        Self::decode(name, &bytes)
    }

    fn decode(name: &'static str, bytes: &[u8]) -> Result<Self, DatasetError> {
        let wrong = |reason: String| DatasetError::Array { name, reason };
        check_header(bytes).map_err(wrong)?;
        let mut rest = bytes;
        let header = NpyHeader::from_reader(&mut rest).map_err(|error| wrong(error.to_string()))?;
        let DType::Plain(item) = header.dtype() else {
            return Err(wrong(format!(
                "expected one number per element, found dtype {}",
                header.dtype().descr()
            )));
        };
        let expected = item.num_bytes().and_then(|size| (size as u64).checked_mul(header.len()));
        if expected != Some(rest.len() as u64) {
            let shape = header.shape();
            let expected =
                expected.map_or_else(|| "another number of".into(), |bytes| bytes.to_string());
            let found = rest.len();
            return Err(wrong(format!(
                "dtype {item} and shape {shape:?} take {expected} bytes, found {found}"
            )));
        }
        let shape = header.shape().iter().map(|&size| size as usize).collect::<Vec<_>>();
        let fortran = header.order() == Order::Fortran;
        let values = Values::read(NpyFile::with_header(header, rest))
            .map_err(|error| wrong(error.to_string()))?
            .ok_or_else(|| {
                wrong(format!("expected real or integer numbers, found dtype {item}"))
            })?;
        Ok(Self { name, values: if fortran { values.to_row_major(&shape) } else { values }, shape })
    }

    /// An error about this array.
    pub(crate) fn wrong(&self, reason: String) -> DatasetError {
        DatasetError::Array { name: self.name, reason }
    }

    /// The elements as f32; wider numbers are rounded.
    pub(crate) fn features(self) -> Vec<f32> {
        match self.values {
            Values::Floats(values) => values,
            Values::Integers(values) => values.into_iter().map(|value| value as f32).collect(),
        }
    }

    /// The elements as class labels.
    ///
    /// # Errors
    ///
    /// If they are floats, or too large for the type.
    pub(crate) fn labels(self) -> Result<Vec<i64>, DatasetError> {
        let Values::Integers(values) = &self.values else {
            return Err(self.wrong("labels are integers, these are floats".into()));
        };
        let narrow = |&value: &i128| {
            i64::try_from(value).map_err(|_| self.wrong(format!("{value} is no i64")))
        };
        values.iter().map(narrow).collect()
    }
}

impl Values {
    /// The elements in the order of the file, or `None` if the dtype is not one of numbers.
    fn read(file: NpyFile<&[u8]>) -> io::Result<Option<Self>> {
        fn all<T: Deserialize, V>(
            file: &NpyFile<&[u8]>,
            widen: impl Fn(T) -> V,
        ) -> Option<io::Result<Vec<V>>> {
            let reader = file.clone().try_data::<T>().ok()?;
            Some(reader.map(|value| value.map(&widen)).collect())
        }
        let floats = all(&file, |value: f32| value)
            .or_else(|| all(&file, |value: f64| value as f32))
            .or_else(|| all(&file, f16::to_f32));
        if let Some(values) = floats {
            return values.map(|values| Some(Self::Floats(values)));
        }
        let integers = all(&file, |value: i64| i128::from(value))
            .or_else(|| all(&file, |value: i32| i128::from(value)))
            .or_else(|| all(&file, |value: i16| i128::from(value)))
            .or_else(|| all(&file, |value: i8| i128::from(value)))
            .or_else(|| all(&file, |value: u64| i128::from(value)))
            .or_else(|| all(&file, |value: u32| i128::from(value)))
            .or_else(|| all(&file, |value: u16| i128::from(value)))
            .or_else(|| all(&file, |value: u8| i128::from(value)))
            .or_else(|| all(&file, |value: bool| i128::from(value)));
        integers.map(|values| values.map(Self::Integers)).transpose()
    }

    /// Reorders elements whose first axis runs fastest.
    fn to_row_major(&self, shape: &[usize]) -> Self {
        match self {
            Self::Floats(values) => Self::Floats(row_major(values, shape)),
            Self::Integers(values) => Self::Integers(row_major(values, shape)),
        }
    }
}

fn row_major<T: Copy>(values: &[T], shape: &[usize]) -> Vec<T> {
    let source = |mut index: usize| {
        let mut stride = values.len();
        let mut at = 0;
        for &size in shape.iter().rev() {
            stride /= size;
            at += index % size * stride;
            index /= size;
        }
        at
    };
    (0..values.len()).map(|index| values[source(index)]).collect()
}

/// Refuses headers that the decoder would overflow on: sizes whose product is no `u64`, and deep nesting.
///
/// It is stricter than the format: numbers are plain decimal digits, which is all that NumPy writes.
fn check_header(bytes: &[u8]) -> Result<(), String> {
    let text = header_text(bytes).ok_or("it is cut off or is no array in the npy format")?;
    if text.len() > 1 << 16 || text.iter().filter(|byte| b"([{".contains(byte)).count() > 16 {
        return Err("its header is too long or nested too deeply".into());
    }
    let in_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let words = text.chunk_by(|left, right| in_word(left) == in_word(right));
    let mut product = 1_u64;
    for number in words.filter(|word| word[0].is_ascii_digit()) {
        let number = str::from_utf8(number).map_err(|error| error.to_string())?;
        let size = number
            .parse::<u64>()
            .map_err(|error| format!("its header has the size {number}: {error}"))?;
        product = product.checked_mul(size.max(1)).ok_or("its element count overflows")?;
    }
    Ok(())
}

/// The part of an npy file that describes the array: magic, version, length, then this text.
fn header_text(bytes: &[u8]) -> Option<&[u8]> {
    let (&major, sized) = (bytes.get(6)?, bytes.get(8..)?);
    if major == 1 {
        let (length, rest) = sized.split_first_chunk()?;
        rest.get(..usize::from(u16::from_le_bytes(*length)))
    } else {
        let (length, rest) = sized.split_first_chunk()?;
        rest.get(..u32::from_le_bytes(*length) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of an npy file with any header.
    fn npy(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn decode(header: &str, data: &[u8]) -> Result<Vec<usize>, String> {
        Array::decode("x", &npy(header, data))
            .map(|array| array.shape)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn headers_that_lie_are_refused() {
        let described = |shape: &str| {
            format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n")
        };
        assert_eq!(decode(&described("(2, 1)"), &[0; 8]), Ok(vec![2, 1]));
        let cases = [
            (described("(2, 2)"), "take 16 bytes, found 8"),
            (described("(1,)"), "take 4 bytes, found 8"),
            (described("(4294967296, 4294967296)"), "overflows"),
            (described("(0, 4294967296, 4294967296, 4294967296)"), "overflows"),
            (described("(0xffffffffffff, 0xffffffffffff)"), "0xffffffffffff"),
            (described("(1_0, 2)"), "1_0"),
            (described("(-2,)"), "negative"),
            (described("(99999999999999999999,)"), "99999999999999999999"),
            (described(&"(".repeat(40_000)), "nested too deeply"),
            (described("(2.0,)"), "integer"),
            ("{}".into(), "missing key"),
            (
                "{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}".into(),
                "expected real or integer numbers",
            ),
            (
                "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}".into(),
                "one number per element",
            ),
            ("{'descr': '|O', 'fortran_order': False, 'shape': (2,)}".into(), "bytes, found 8"),
        ];
        for (header, expected) in cases {
            let error = decode(&header, &[0; 8]).unwrap_err();
            assert!(error.contains(expected), "expected `{expected}` in: {error}");
        }
    }
}
