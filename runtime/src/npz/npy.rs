//! One array in numpy's format: a header, which is a Python dictionary, and the elements.

use crate::tensor::Tensor;
use std::io::{self, Read};
use tracecast_ir::{DType, Shape, TensorType};

/// A dtype of numpy.
struct Kind {
    /// Its name without the byte order.
    name: &'static str,
    /// Bytes of an element.
    size: usize,
    /// What holds such elements here.
    dtype: DType,
}

/// The dtypes that are read, in the first place those that are written.
static KINDS: [Kind; 13] = [
    Kind { name: "f4", size: 4, dtype: DType::F32 },
    Kind { name: "f8", size: 8, dtype: DType::F64 },
    Kind { name: "f2", size: 2, dtype: DType::F16 },
    Kind { name: "i4", size: 4, dtype: DType::I32 },
    Kind { name: "i8", size: 8, dtype: DType::I64 },
    Kind { name: "u1", size: 1, dtype: DType::U8 },
    Kind { name: "b1", size: 1, dtype: DType::Bool },
    Kind { name: "i1", size: 1, dtype: DType::I32 },
    Kind { name: "i2", size: 2, dtype: DType::I32 },
    Kind { name: "u2", size: 2, dtype: DType::I32 },
    Kind { name: "u4", size: 4, dtype: DType::I64 },
    Kind { name: "u8", size: 8, dtype: DType::I64 },
    // Bytes of no type, two for each element: numpy's name for the bf16 of `ml_dtypes`.
    Kind { name: "V2", size: 2, dtype: DType::BF16 },
];
/// How many of them are written.
const WRITTEN: usize = 7;
pub(super) const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Headers are not longer than this; those that numpy writes are far shorter.
const LONGEST_HEADER: usize = 1 << 16;
/// Arrays have at most this many axes, as in numpy.
const MOST_AXES: usize = 64;

type Result<T> = std::result::Result<T, String>;

/// True if numpy has the dtype.
pub(super) fn has(dtype: DType) -> bool {
    KINDS[..WRITTEN].iter().any(|kind| kind.dtype == dtype)
}

/// The bytes before an array's elements; they end at a multiple of 64.
pub(super) fn header(ty: &TensorType) -> Result<Vec<u8>> {
    let kind = KINDS[..WRITTEN]
        .iter()
        .find(|kind| kind.dtype == ty.dtype)
        .ok_or_else(|| format!("numpy has no {}", ty.dtype))?;
    let order = if ty.dtype.bytes() == 1 { '|' } else { '<' };
    let sizes: String = ty.shape.iter().map(|n| format!("{n}, ")).collect();
    let mut text = format!(
        "{{'descr': '{order}{}', 'fortran_order': False, 'shape': ({}), }}",
        kind.name,
        sizes.trim_end()
    );
    while !(MAGIC.len() + 4 + text.len() + 1).is_multiple_of(64) {
        text.push(' ');
    }
    text.push('\n');
    let length = u16::try_from(text.len()).ok().filter(|_| ty.shape.rank() <= MOST_AXES);
    let length = length.ok_or_else(|| format!("{ty} has too many axes"))?;
    Ok([MAGIC.as_slice(), &[1, 0], &length.to_le_bytes(), text.as_bytes()].concat())
}

/// The type of the tensor that an array becomes.
pub(super) fn read_type(entry: &mut impl Read) -> Result<TensorType> {
    let Header { ty, .. } = Header::parse(&header_text(entry)?)?;
    ty.check_size()?;
    Ok(ty)
}

/// Reads an array that fills the whole of `entry`, with elements of at most `limit` bytes. Reading
/// to the end has the archive compare its checksum.
pub(super) fn read(entry: &mut impl Read, limit: u64) -> Result<Tensor> {
    let Header { kind, ty, big_endian, fortran } = Header::parse(&header_text(entry)?)?;
    ty.check_size()?;
    let expected = ty.numel().get() * kind.size;
    if expected as u64 > limit {
        return Err(format!("takes {expected} bytes: compressed arrays take at most {limit}"));
    }
    let mut bytes = Vec::new();
    entry.take(expected as u64).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() < expected {
        return Err(format!("is truncated: {ty} takes {expected} bytes, found {}", bytes.len()));
    }
    let mut rest = [0];
    if entry.read(&mut rest).map_err(|e| e.to_string())? > 0 {
        return Err(format!("has more bytes than {ty}"));
    }
    if big_endian {
        bytes.chunks_exact_mut(kind.size).for_each(<[u8]>::reverse);
    }
    if ty.dtype.is_int() && ty.dtype != DType::U8 {
        bytes = widened(kind, &bytes)?;
    }
    if fortran {
        bytes = row_major(&ty, &bytes);
    }
    Tensor::from_bytes(ty, bytes).map_err(|e| e.to_string())
}

/// The dictionary before the elements.
fn header_text(entry: &mut impl Read) -> Result<String> {
    let start: [u8; 8] = take(entry)?;
    if start[..6] != *MAGIC {
        return Err("does not start as an array does".to_owned());
    }
    let length = match start[6] {
        1 => usize::from(u16::from_le_bytes(take(entry)?)),
        2 | 3 => u32::from_le_bytes(take(entry)?) as usize,
        other => return Err(format!("has format version {other}: expected 1 to 3")),
    };
    if length > LONGEST_HEADER {
        return Err(format!("has a header of {length} bytes: expected at most {LONGEST_HEADER}"));
    }
    let mut text = vec![0; length];
    entry.read_exact(&mut text).map_err(unread)?;
    String::from_utf8(text).map_err(|_| "has a header that is not text".to_owned())
}

fn take<const N: usize>(entry: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    entry.read_exact(&mut bytes).map_err(unread)?;
    Ok(bytes)
}

fn unread(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "is truncated".to_owned(),
        _ => error.to_string(),
    }
}

/// Integers, each with its lowest byte first, in the dtype that holds them.
fn widened(kind: &Kind, bytes: &[u8]) -> Result<Vec<u8>> {
    let (size, signed) = (kind.size, kind.name.starts_with('i'));
    let mut out = Vec::with_capacity(bytes.len() / size * kind.dtype.bytes());
    for element in bytes.chunks_exact(size) {
        let high = element[size - 1] >= 0x80;
        let mut wide = [if high && signed { 0xff } else { 0 }; 8];
        wide[..size].copy_from_slice(element);
        if high && !signed && size == wide.len() {
            return Err(format!("holds {}, which is no i64", u64::from_le_bytes(wide)));
        }
        out.extend_from_slice(&wide[..kind.dtype.bytes()]);
    }
    Ok(out)
}

/// Elements from an order in which the first axis runs fastest.
fn row_major(ty: &TensorType, bytes: &[u8]) -> Vec<u8> {
    let (size, shape) = (ty.dtype.bytes(), ty.shape.numbers());
    let count: usize = shape.iter().product();
    let mut out = Vec::with_capacity(bytes.len());
    for element in 0..count {
        let (mut rest, mut from, mut block) = (element, 0, count);
        for &n in shape.iter().rev() {
            block /= n;
            from += rest % n * block;
            rest /= n;
        }
        out.extend_from_slice(&bytes[from * size..(from + 1) * size]);
    }
    out
}

/// What an array's header says.
struct Header {
    kind: &'static Kind,
    ty: TensorType,
    big_endian: bool,
    fortran: bool,
}

impl Header {
    /// Reads a Python dictionary of the three keys that numpy writes.
    fn parse(text: &str) -> Result<Self> {
        let value = |key: &str| {
            let (_, after) = text
                .split_once(&format!("'{key}'"))
                .ok_or_else(|| format!("has no `{key}` in its header"))?;
            after
                .trim_start()
                .strip_prefix(':')
                .map(str::trim_start)
                .ok_or_else(|| "has a malformed header".to_owned())
        };
        let descr = value("descr")?
            .strip_prefix('\'')
            .and_then(|text| text.split_once('\''))
            .map(|(descr, _)| descr)
            .ok_or("is a structured array: expected plain numbers")?;
        let fortran = match value("fortran_order")? {
            v if v.starts_with("True") => true,
            v if v.starts_with("False") => false,
            _ => return Err("has a malformed header".to_owned()),
        };
        let sizes = value("shape")?.strip_prefix('(').and_then(|v| v.split_once(')'));
        let (sizes, _) = sizes.ok_or("has no shape in its header")?;
        let sizes = sizes.split(',').map(str::trim).filter(|s| !s.is_empty());
        let size = |s: &str| {
            s.parse::<usize>().map_err(|_| format!("has a size `{s}`: expected a number"))
        };
        let shape = sizes.map(size).collect::<Result<Shape>>()?;
        if shape.rank() > MOST_AXES {
            return Err(format!("has {} axes: expected at most {MOST_AXES}", shape.rank()));
        }
        let name = descr.strip_prefix(['<', '>', '|', '=']).unwrap_or(descr);
        let kind = KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| {
            let known: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
            format!("has dtype `{descr}`: expected one of {}", known.join(", "))
        })?;
        let ty = TensorType { dtype: kind.dtype, shape };
        Ok(Header { kind, ty, big_endian: descr.starts_with('>'), fortran })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of an array with any header.
    fn npy(text: &str, data: &[u8]) -> Vec<u8> {
        let length = (text.len() as u32).to_le_bytes();
        [MAGIC.as_slice(), &[2, 0], &length, text.as_bytes(), data].concat()
    }

    fn array(descr: &str, shape: &str, data: &[u8]) -> Result<Tensor> {
        let text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n");
        read(&mut npy(&text, data).as_slice(), 1 << 50)
    }

    #[test]
    fn the_other_orders_are_converted() {
        let data: Vec<u8> = (1..=6i32).flat_map(i32::to_be_bytes).collect();
        let bytes = npy("{'descr': '>i4', 'fortran_order': True, 'shape': (2, 3), }", &data);
        let x = read(&mut bytes.as_slice(), u64::MAX).unwrap();
        assert_eq!(x, Tensor::new([2, 3], &[1i32, 3, 5, 2, 4, 6]).unwrap());
        assert!(read(&mut bytes.as_slice(), 23).unwrap_err().contains("at most 23"));
        let native = array("'=i2'", "(1,)", &[0xfe, 0xff]).unwrap();
        assert_eq!(native.item::<i32>().unwrap(), -2);
    }

    #[test]
    fn other_integers_are_widened() {
        let ints = |descr: &str, data: &[u8]| {
            let x = array(descr, "(2,)", data).unwrap();
            (x.dtype(), x.cast(DType::I64).unwrap().to_vec::<i64>().unwrap())
        };
        assert_eq!(ints("'|i1'", &[0x80, 0x7f]), (DType::I32, vec![-128, 127]));
        assert_eq!(ints("'|u1'", &[0x80, 0x7f]), (DType::U8, vec![128, 127]));
        assert_eq!(ints("'>i2'", &[0x80, 0, 0, 7]), (DType::I32, vec![-32768, 7]));
        assert_eq!(ints("'<u2'", &[0, 0x80, 7, 0]), (DType::I32, vec![32768, 7]));
        assert_eq!(ints("'<u4'", &[0xff; 8]), (DType::I64, vec![i64::from(u32::MAX); 2]));
        let large = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert_eq!(ints("'<u8'", &[large, [0; 8]].concat()), (DType::I64, vec![i64::MAX, 0]));
        let error = array("'<u8'", "(1,)", &[0xff; 8]).unwrap_err();
        assert!(error.contains("18446744073709551615, which is no i64"), "{error}");
    }

    #[test]
    fn headers_that_lie_are_refused() {
        assert_eq!(array("'<f4'", "(2, 1)", &[0; 8]).unwrap().shape(), &Shape::new(&[2, 1]));
        let cases = [
            ("'<f4'", "(2, 2)", "f32[2, 2] takes 16 bytes, found 8"),
            ("'<f4'", "(1,)", "more bytes than f32[1]"),
            ("'<f4'", "(1099511627776,)", "truncated"),
            ("'<f4'", "(4503599627370496,)", "at most"),
            ("'<f4'", "(4294967296, 4294967296, 9)", "too many"),
            ("'<f4'", "(0, 4294967296, 4294967296, 4294967296)", "too many"),
            ("'<i2'", "(4611686018427387904,)", "too many"),
            ("'<f4'", "(0xffffffffffff, 2)", "0xffffffffffff"),
            ("'<f4'", "(1_0, 2)", "1_0"),
            ("'<f4'", "(-2,)", "-2"),
            ("'<f4'", "(2.0,)", "2.0"),
            ("'<f4'", "(99999999999999999999,)", "99999999999999999999"),
            ("'<f4'", "2", "no shape"),
            ("'<c8'", "(1,)", "`<c8`: expected one of f4, f8"),
            ("'<<f4'", "(2,)", "<<f4"),
            ("'|O'", "(2,)", "|O"),
            ("''", "(2,)", "dtype ``"),
            ("[('a', '<f4')]", "(2,)", "structured"),
        ];
        for (descr, shape, expected) in cases {
            let error = array(descr, shape, &[0; 8]).unwrap_err();
            assert!(error.contains(expected), "expected `{expected}` in: {error}");
        }
        let error = |shape: String| array("'<f4'", &shape, &[0; 4]).unwrap_err();
        assert!(error("(".repeat(40_000)).contains("no shape"));
        assert!(error("(".repeat(70_000)).contains("a header of 70"));
        assert!(error(format!("({})", "1,".repeat(65))).contains("65 axes"));
    }

    #[test]
    fn what_is_no_array_is_refused() {
        let error = |bytes: &[u8]| read(&mut &bytes[..], u64::MAX).unwrap_err();
        let good = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", &[0; 4]);
        for cut in 0..good.len() {
            assert!(error(&good[..cut]).contains("truncated"), "cut at {cut}");
        }
        assert!(error(b"\x93NUMBER\x01").contains("does not start"));
        assert!(error(b"\x93NUMPY\x09\x00").contains("version 9"));
        assert!(error(&npy("", &[])).contains("no `descr`"));
        assert!(error(b"\x93NUMPY\x01\x00\x01\x00\xff").contains("not text"));
        assert!(error(b"\x93NUMPY\x02\x00\xff\xff\xff\xff").contains("4294967295 bytes"));
        let malformed = "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,), }";
        assert!(error(&npy(malformed, &[0; 4])).contains("malformed"));
        assert!(error(&npy("{'descr' '<f4'}", &[0; 4])).contains("malformed"));
    }
}
