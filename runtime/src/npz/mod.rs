//! Tensors in `.npz` files: zip archives of numpy arrays.
//!
//! numpy has no bf16: such tensors are written as f32, which holds them exactly, and come back as f32; [`Tensor::cast`] narrows them
//! again. Arrays in Fortran order and of the other byte order are converted when read, and integers that tensors do not hold are
//! widened: i8, i16 and u16 become i32, u32 and u64 become i64.
//!
//! Files are not trusted. What a header promises is checked before memory is taken for it, and memory grows only with bytes that are
//! there. The files written are not compressed, as those of `np.savez`: weights hardly shrink.

mod npy;

use crate::error::{Error, Result};
use crate::tensor::Tensor;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufReader, Cursor, Read, Seek, Write};
use std::path::Path;
use tracecast_ir::DType;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// A compressed array is not larger than this many bytes once unpacked: a small archive can unpack to any size.
const LARGEST_COMPRESSED: u64 = 4 << 30;
/// What follows the name of an array in the archive.
const SUFFIX: &str = ".npy";

/// Reads all arrays of a file, in its order.
///
/// # Errors
/// If the file cannot be read, or is not an archive of arrays of numbers.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<(String, Tensor)>> {
    open(path.as_ref(), &|_| true)
}

/// Reads those arrays of a file that have one of these names; whatever else is in the archive is left alone.
///
/// # Errors
/// If the file cannot be read, is not an archive, or an array of such a name is not one of numbers. A name that no array has is not
/// an error.
pub fn read_named(path: impl AsRef<Path>, names: &[&str]) -> Result<Vec<(String, Tensor)>> {
    open(path.as_ref(), &|name| names.contains(&name))
}

/// Writes tensors under their names. A file of that name is replaced as a whole or, if anything goes wrong, left as it was; the archive
/// is put together in memory first.
///
/// # Errors
/// If two have one name, or the file cannot be written.
pub fn write<'a>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<()> {
    let path = path.as_ref();
    let tensors: Vec<(&str, &Tensor)> = tensors.into_iter().collect();
    let archive =
        pack(&tensors).map_err(|message| Error::Npz { path: path.to_owned(), message })?;
    replace(path, &archive).map_err(|source| Error::Io { path: path.to_owned(), source })
}

/// The dtype in which an archive holds elements of `dtype`: itself, or what computes it where numpy has no such float.
///
/// ```
/// use tracecast_ir::DType;
/// use tracecast_runtime::npz;
/// assert_eq!((npz::stored_as(DType::BF16), npz::stored_as(DType::F16)), (DType::F32, DType::F16));
/// ```
pub fn stored_as(dtype: DType) -> DType {
    if npy::has(dtype) { dtype } else { dtype.compute() }
}

/// An archive of the tensors.
fn pack(tensors: &[(&str, &Tensor)]) -> std::result::Result<Vec<u8>, String> {
    let mut names = HashSet::new();
    if let Some((twice, _)) = tensors.iter().find(|(name, _)| !names.insert(*name)) {
        return Err(format!("two tensors are named `{twice}`"));
    }
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, tensor) in tensors {
        let wrong = |e: &dyn std::fmt::Display| format!("array `{name}`: {e}");
        let wide = match stored_as(tensor.dtype()) {
            dtype if dtype != tensor.dtype() => tensor.cast(dtype).map_err(|e| wrong(&e))?,
            _ => (*tensor).clone(),
        };
        let header = npy::header(wide.ty())?;
        let size = header.len() as u64 + wide.bytes().len() as u64;
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(size > u64::from(u32::MAX));
        archive.start_file(format!("{name}{SUFFIX}"), options).map_err(|e| wrong(&e))?;
        archive.write_all(&header).map_err(|e| wrong(&e))?;
        archive.write_all(wide.bytes()).map_err(|e| wrong(&e))?;
    }
    archive.finish().map(Cursor::into_inner).map_err(|e| e.to_string())
}

/// Writes a file under another name beside its own, then renames it: whoever opens it finds all of the old bytes or all of the new.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // A link stays; what it leads to is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&path).is_ok_and(|about| !about.is_file()) {
        // Pipes and devices are written to, not replaced.
        return fs::write(&path, bytes);
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.unfinished", std::process::id()));
    let unfinished = path.with_file_name(name);
    let written = File::create(&unfinished)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&unfinished, &path));
    if written.is_err() {
        // It may never have been made.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

fn open(path: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<(String, Tensor)>> {
    let file = File::open(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    unpack(BufReader::new(file), wanted)
        .map_err(|message| Error::Npz { path: path.to_owned(), message })
}

/// The arrays of an archive whose names are wanted.
fn unpack(
    source: impl Read + Seek,
    wanted: &dyn Fn(&str) -> bool,
) -> std::result::Result<Vec<(String, Tensor)>, String> {
    let mut archive = ZipArchive::new(source).map_err(|e| e.to_string())?;
    let mut arrays = Vec::new();
    for i in 0..archive.len() {
        let Some(Ok(file_name)) = archive.name_for_index(i) else { continue };
        let Some(name) = file_name.strip_suffix(SUFFIX).filter(|name| wanted(name)) else {
            continue;
        };
        let name = name.to_owned();
        let wrong = |message: String| format!("array `{name}`: {message}");
        let mut entry = archive.by_index(i).map_err(|e| wrong(e.to_string()))?;
        let limit = match entry.compression() {
            CompressionMethod::Stored => u64::MAX,
            _ => LARGEST_COMPRESSED,
        };
        let tensor = npy::read(&mut entry, limit).map_err(wrong)?;
        arrays.push((name, tensor));
    }
    Ok(arrays)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use std::path::PathBuf;
    use tracecast_ir::TensorType;

    /// Written by numpy 2.4 with `savez` and with `savez_compressed`.
    const OF_NUMPY: [&[u8]; 2] = [
        include_bytes!("../../tests/data/numpy.npz"),
        include_bytes!("../../tests/data/numpy-compressed.npz"),
    ];

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
        for name in ["low", "", "/a//b/../c\\d", "ω x.npy"] {
            tensors.push((name.to_owned(), Tensor::scalar(bf16::from_f32(0.1))));
        }
        write(&file.0, tensors.iter().map(|(n, t)| (n.as_str(), t))).unwrap();
        let back = read(&file.0).unwrap();
        assert_eq!(back.len(), tensors.len());
        for ((name, t), (read_name, read)) in tensors.iter().zip(back) {
            let dtype = stored_as(t.dtype());
            assert_eq!((name, &t.cast(dtype).unwrap()), (&read_name, &read));
        }
        let some = read_named(&file.0, &["low", "high"]).unwrap();
        assert!(matches!(&some[..], [(name, _)] if name == "low"));
    }

    #[test]
    fn what_cannot_be_written_leaves_the_old_file() {
        let file = Scratch::new("refused");
        let one = Tensor::scalar(1f32);
        write(&file.0, [("a", &one)]).unwrap();
        let error = write(&file.0, [("b", &one), ("b", &one)]).unwrap_err().to_string();
        assert!(error.contains("two tensors are named `b`"));
        assert_eq!(read(&file.0).unwrap()[0].0, "a");
        assert!(matches!(
            write(&file.0, [("a".repeat(70_000).as_str(), &one)]),
            Err(Error::Npz { .. })
        ));
        assert!(matches!(write("no/such/a.npz", [("a", &one)]), Err(Error::Io { .. })));
        assert!(matches!(write(std::env::temp_dir(), [("a", &one)]), Err(Error::Io { .. })));
        assert_eq!(read(&file.0).unwrap()[0].0, "a");
        let named = file.0.file_name().unwrap().to_string_lossy().into_owned();
        let beside = std::fs::read_dir(file.0.parent().unwrap()).unwrap();
        let beside = beside.filter_map(|f| f.unwrap().file_name().into_string().ok());
        assert_eq!(beside.filter(|name| name.starts_with(&named)).collect::<Vec<_>>(), [named]);
        assert!(matches!(read("no/such/a.npz"), Err(Error::Io { .. })));
    }

    #[test]
    fn files_of_numpy_are_read() {
        fn check<T: crate::Element>(
            found: &[(String, Tensor)],
            name: &str,
            shape: &[usize],
            v: &[T],
        ) {
            let (_, x) = found.iter().find(|(n, _)| n == name).unwrap();
            assert_eq!(x, &Tensor::new(shape, v).unwrap(), "{name}");
        }
        for file in OF_NUMPY {
            let x = unpack(Cursor::new(file), &|name| name != "words").unwrap();
            assert_eq!(x.len(), 9);
            check(&x, "weight", &[2, 3], &[0f32, 0.25, 0.5, 0.75, 1.0, 1.25]);
            check(&x, "label", &[3], &[3i64, -1, 2]);
            check(&x, "columns", &[2, 3], &[0i32, 1, 2, 3, 4, 5]);
            check(&x, "half", &[], &[f16::from_f32(1.5)]);
            check(&x, "mask", &[2], &[true, false]);
            check(&x, "swapped", &[2], &[1.5f64, -2.0]);
            check(&x, "small", &[1, 2], &[-128i32, 127]);
            check(&x, "wide", &[1], &[4_294_967_295i64]);
            check::<u8>(&x, "empty", &[0, 4], &[]);
            let error = unpack(Cursor::new(file), &|_| true).unwrap_err();
            assert!(error.contains("`words`") && error.contains("<U2"), "{error}");
        }
    }

    #[test]
    fn damaged_files_are_errors() {
        let file = Scratch::new("damaged");
        write(
            &file.0,
            [("x", &Tensor::randn([8, 3], 1).unwrap()), ("step", &Tensor::scalar(1i64))],
        )
        .unwrap();
        let ours = std::fs::read(&file.0).unwrap();
        for good in [ours.as_slice()].into_iter().chain(OF_NUMPY) {
            let read = |bytes: &[u8]| unpack(Cursor::new(bytes), &|name| name != "words");
            let whole = read(good).unwrap();
            for cut in 0..good.len() {
                assert!(read(&good[..cut]).is_err(), "cut at {cut}");
            }
            for at in 0..good.len() {
                for flip in [0x01, 0x20, 0x80, 0xff] {
                    let mut bad = good.to_vec();
                    bad[at] ^= flip;
                    // Elements are what they were: a byte that matters is noticed, as the archive has a checksum of each array.
                    for (name, tensor) in read(&bad).unwrap_or_default() {
                        let same = whole.iter().find(|(n, _)| *n == name);
                        assert!(same.is_none_or(|(_, t)| *t == tensor), "{flip:#x} at {at}");
                    }
                }
            }
        }
    }
}
