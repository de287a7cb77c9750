//! Tensors in `.npz` files: zip archives of numpy arrays.
//!
//! numpy has no bf16: such tensors are written as f32, which holds them exactly, and come back as f32; [`Tensor::cast`] narrows them
//! again. Arrays in Fortran order and of the other byte order are converted when read.

use crate::error::{Error, Result};
use crate::tensor::Tensor;
use npyz::npz::{NpzArchive, NpzWriter};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;
use tracecast_ir::{DType, Shape, TensorType};

/// numpy's dtypes that have one of ours, without the byte order.
const DTYPES: [(&str, DType); 7] = [
    ("f4", DType::F32),
    ("f8", DType::F64),
    ("f2", DType::F16),
    ("i4", DType::I32),
    ("i8", DType::I64),
    ("u1", DType::U8),
    ("b1", DType::Bool),
];
const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Headers of arrays are shorter than this.
const HEADER_LIMIT: usize = 1 << 16;

/// Reads all arrays of a file, in its order.
///
/// # Errors
/// If the file cannot be read, or is not an archive of arrays of supported dtypes. A header that promises more than the file holds
/// reserves no memory.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<(String, Tensor)>> {
    let path = path.as_ref();
    let file = File::open(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    let wrong = |message: String| Error::Npz { path: path.to_owned(), message };
    let mut archive = NpzArchive::new(BufReader::new(file)).map_err(|e| wrong(e.to_string()))?;
    let mut arrays = Vec::new();
    for i in 0..archive.zip_archive().len() {
        let mut entry = archive.zip_archive().by_index(i).map_err(|e| wrong(e.to_string()))?;
        let name = entry.name().to_owned();
        let Some(name) = npyz::npz::array_name_from_file_name(&name) else { continue };
        let tensor =
            array(&mut entry).map_err(|message| wrong(format!("array `{name}`: {message}")))?;
        arrays.push((name.to_owned(), tensor));
    }
    Ok(arrays)
}

/// Writes tensors under their names; a file of that name is replaced.
///
/// # Errors
/// If two have one name, or the file cannot be written.
pub fn write<'a>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<()> {
    let path = path.as_ref();
    let failed = |source: io::Error| Error::Io { path: path.to_owned(), source };
    let file = File::create(path).map_err(failed)?;
    let mut archive = NpzWriter::new(BufWriter::new(file));
    let mut names = std::collections::HashSet::new();
    for (name, tensor) in tensors {
        if !names.insert(name) {
            return Err(Error::Npz {
                path: path.to_owned(),
                message: format!("two tensors are named `{name}`"),
            });
        }
        let wide =
            if tensor.dtype() == DType::BF16 { tensor.cast(DType::F32)? } else { tensor.clone() };
        let header =
            header(wide.ty()).map_err(|message| Error::Npz { path: path.to_owned(), message })?;
        let zip = archive.zip_writer();
        let started =
            zip.start_file(npyz::npz::file_name_from_array_name(name), Default::default());
        started.map_err(|e| failed(io::Error::other(e.to_string())))?;
        zip.write_all(&header).and_then(|()| zip.write_all(wide.bytes())).map_err(failed)?;
    }
    let finished =
        archive.zip_writer().finish().map_err(|e| failed(io::Error::other(e.to_string())))?;
    finished.into_inner().map_err(|e| failed(e.into_error()))?;
    Ok(())
}

/// The bytes before an array's elements; they end at a multiple of 64.
fn header(ty: &TensorType) -> std::result::Result<Vec<u8>, String> {
    let (name, _) = DTYPES
        .iter()
        .find(|(_, d)| *d == ty.dtype)
        .ok_or_else(|| format!("numpy has no {}", ty.dtype))?;
    let order = if ty.dtype.bytes() == 1 { '|' } else { '<' };
    let sizes: String = ty.shape.iter().map(|n| format!("{n}, ")).collect();
    let mut text = format!(
        "{{'descr': '{order}{name}', 'fortran_order': False, 'shape': ({}), }}",
        sizes.trim_end()
    );
    while (10 + text.len() + 1) % 64 != 0 {
        text.push(' ');
    }
    text.push('\n');
    let length = u16::try_from(text.len()).map_err(|_| format!("{ty} has too many axes"))?;
    Ok([MAGIC.as_slice(), &[1, 0], &length.to_le_bytes(), text.as_bytes()].concat())
}

/// One array of an archive.
fn array(entry: &mut impl Read) -> std::result::Result<Tensor, String> {
    let mut start = [0; 8];
    take(entry, &mut start)?;
    if start[..6] != *MAGIC {
        return Err("does not start as an array does".to_owned());
    }
    let length = match start[6] {
        1 => {
            let mut length = [0; 2];
            take(entry, &mut length)?;
            usize::from(u16::from_le_bytes(length))
        }
        2 | 3 => {
            let mut length = [0; 4];
            take(entry, &mut length)?;
            u32::from_le_bytes(length) as usize
        }
        other => return Err(format!("has format version {other}, expected 1 to 3")),
    };
    if length > HEADER_LIMIT {
        return Err(format!("has a header of {length} bytes"));
    }
    let mut text = vec![0; length];
    take(entry, &mut text)?;
    let header = Header::parse(&String::from_utf8_lossy(&text))?;
    let ty = header.ty;
    ty.check_size()?;
    let mut bytes = Vec::new();
    entry.take(ty.bytes() as u64).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() < ty.bytes() {
        return Err(format!(
            "is truncated: {ty} takes {} bytes, found {}",
            ty.bytes(),
            bytes.len()
        ));
    }
    // Reading up to the end checks the archive's checksum.
    let mut rest = [0];
    if entry.read(&mut rest).map_err(|e| e.to_string())? > 0 {
        return Err(format!("has more bytes than {ty}"));
    }
    if header.big_endian {
        bytes.chunks_exact_mut(ty.dtype.bytes()).for_each(<[u8]>::reverse);
    }
    if header.fortran {
        bytes = row_major(&ty, &bytes);
    }
    Tensor::from_bytes(ty, bytes).map_err(|e| e.to_string())
}

fn take(from: &mut impl Read, to: &mut [u8]) -> std::result::Result<(), String> {
    from.read_exact(to).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => "is truncated".to_owned(),
        _ => e.to_string(),
    })
}

/// Elements from an order in which the first axis runs fastest.
fn row_major(ty: &TensorType, bytes: &[u8]) -> Vec<u8> {
    let size = ty.dtype.bytes();
    let mut out = Vec::with_capacity(bytes.len());
    for element in 0..ty.numel() {
        let (mut rest, mut from, mut block) = (element, 0, ty.numel());
        for &n in ty.shape.iter().rev() {
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
    ty: TensorType,
    big_endian: bool,
    fortran: bool,
}

impl Header {
    /// Reads a Python dictionary of the three keys that numpy writes.
    fn parse(text: &str) -> std::result::Result<Self, String> {
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
        let quoted = |text: &str| Some(text.strip_prefix('\'')?.split_once('\'')?.0.to_owned());
        let name =
            quoted(value("descr")?).ok_or("is a structured array: expected plain numbers")?;
        let kind = name.trim_start_matches(['<', '>', '|', '=']);
        let dtype = DTYPES.iter().find(|(n, _)| *n == kind).map(|(_, d)| *d);
        let dtype = dtype.ok_or_else(|| {
            let known: Vec<&str> = DTYPES.iter().map(|(n, _)| *n).collect();
            format!("has dtype `{name}`: expected one of {}", known.join(", "))
        })?;
        let fortran = match value("fortran_order")? {
            v if v.starts_with("True") => true,
            v if v.starts_with("False") => false,
            _ => return Err("has a malformed header".to_owned()),
        };
        let sizes = value("shape")?
            .strip_prefix('(')
            .and_then(|v| v.split_once(')'))
            .map(|(sizes, _)| sizes);
        let sizes = sizes
            .ok_or("has no shape in its header")?
            .split(',')
            .map(str::trim)
            .filter(|s| !s.is_empty());
        let size = |s: &str| {
            s.parse::<usize>().map_err(|_| format!("has a size `{s}`: expected a number"))
        };
        let shape = sizes.map(size).collect::<std::result::Result<Shape, _>>()?;
        Ok(Header { ty: TensorType { dtype, shape }, big_endian: name.starts_with('>'), fortran })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;
    use std::path::PathBuf;

    /// A file of its own for each test, removed afterwards.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            Scratch(
                std::env::temp_dir().join(format!("tracecast-{}-{name}.npz", std::process::id())),
            )
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn tensors_come_back() {
        let file = Scratch::new("round-trip");
        let mut tensors = Vec::new();
        for (i, dtype) in DType::COMPUTABLE.into_iter().enumerate() {
            let shapes: [&[usize]; 4] = [&[], &[3], &[2, 3], &[0, 4]];
            let ty = TensorType::new(dtype, shapes[i % 4]);
            tensors.push((format!("layer.{i}/{dtype}"), Tensor::full(ty, 1.0).unwrap()));
        }
        tensors.push(("low".to_owned(), Tensor::scalar(bf16::from_f32(0.1))));
        write(&file.0, tensors.iter().map(|(n, t)| (n.as_str(), t))).unwrap();
        for ((name, t), (read_name, read)) in tensors.iter().zip(read(&file.0).unwrap()) {
            let dtype = if t.dtype() == DType::BF16 { DType::F32 } else { t.dtype() };
            assert_eq!((name, &t.cast(dtype).unwrap()), (&read_name, &read));
        }
        let twice = [("a", &tensors[0].1), ("a", &tensors[1].1)];
        assert!(write(&file.0, twice).unwrap_err().to_string().contains("two tensors"));
        assert!(matches!(read("no/such/file.npz"), Err(Error::Io { .. })));
    }

    #[test]
    fn other_orders_are_converted() {
        let array_of = |text: &str, data: &[u8]| {
            let mut bytes =
                [MAGIC.as_slice(), &[2, 0], &(text.len() as u32).to_le_bytes(), text.as_bytes()]
                    .concat();
            bytes.extend_from_slice(data);
            array(&mut bytes.as_slice())
        };
        let data: Vec<u8> = (1..=6i32).flat_map(i32::to_be_bytes).collect();
        let x =
            array_of("{'descr': '>i4', 'fortran_order': True, 'shape': (2, 3), }", &data).unwrap();
        assert_eq!(x.to_vec::<i32>().unwrap(), [1, 3, 5, 2, 4, 6]);
        let error = |text: &str| array_of(text, &data).unwrap_err();
        assert!(
            error("{'descr': '<i4', 'fortran_order': False, 'shape': (7,), }")
                .contains("truncated")
        );
        assert!(
            error("{'descr': '<i4', 'fortran_order': False, 'shape': (5,), }")
                .contains("more bytes")
        );
        assert!(error("{'descr': '<c8', 'fortran_order': False, 'shape': (3,), }").contains("<c8"));
        assert!(error("{'descr': '<i4', 'fortran_order': False, 'shape': (-1,), }").contains("-1"));
        assert!(
            error("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (6,), }")
                .contains("structured")
        );
        let huge =
            "{'descr': '<i4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 9), }";
        assert!(error(huge).contains("too many"));
        assert!(
            error("{'descr': '<i4', 'fortran_order': False, 'shape': (1099511627776,), }")
                .contains("truncated")
        );
        assert!(error("").contains("descr"));
    }

    #[test]
    fn damaged_files_are_errors() {
        let file = Scratch::new("damaged");
        write(&file.0, [("x", &Tensor::randn([40, 3], 1).unwrap())]).unwrap();
        let good = std::fs::read(&file.0).unwrap();
        for cut in (0..good.len()).step_by(7) {
            std::fs::write(&file.0, &good[..cut]).unwrap();
            assert!(matches!(read(&file.0), Err(Error::Npz { .. })), "cut at {cut}");
        }
        for at in (0..good.len()).step_by(3) {
            let mut bad = good.clone();
            bad[at] ^= 0x55;
            std::fs::write(&file.0, &bad).unwrap();
            let _ = read(&file.0);
        }
    }
}
