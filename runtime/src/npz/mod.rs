//! Tensors in `.npz` files: zip archives of numpy arrays.
//!
//! numpy has no bf16, nor other floats below f16. Such a tensor is written as f32, which holds it
//! exactly, and the comment of its entry in the archive is the name of its dtype, `bf16`: numpy
//! reads the numbers and takes no notice of the comment, and [`read`] gives the dtype back. An
//! array `|V2`, as which `ml_dtypes` has numpy write its bf16, is read as bf16 too. Arrays in
//! Fortran order and of the other byte order are converted when read, and integers that tensors do
//! not hold are widened: i8, i16 and u16 become i32, u32 and u64 become i64.
//!
//! Files are not trusted. Names and types are known before an array is unpacked ([`Archive`]), what
//! a header promises is checked before memory is taken for it, and memory grows only with bytes
//! that are there; an archive with two arrays of one name, or in which two share bytes, is refused.
//! The files written are not compressed, as those of `np.savez`: weights hardly shrink.

mod npy;

use crate::error::{Error, Result};
use crate::files;
use crate::tensor::Tensor;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Cursor, Read, Seek, Write};
use std::path::{Path, PathBuf};
use tracecast_ir::{DType, TensorType};
use zip::read::ZipFile;
use zip::write::FullFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// A compressed array is not larger than this many bytes once unpacked: a small archive can unpack
/// to any size.
const LARGEST_COMPRESSED: u64 = 4 << 30;
/// What follows the name of an array in the archive.
const SUFFIX: &str = ".npy";

/// Reads all arrays of a file, in its order.
///
/// # Errors
/// If the file cannot be read, or is not an archive of arrays of numbers.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<(String, Tensor)>> {
    let mut archive = Archive::open(path)?;
    let names: Vec<String> = archive.names().map(str::to_owned).collect();
    names.into_iter().map(|name| Ok((name.clone(), archive.read(&name)?))).collect()
}

/// Reads those arrays of a file that have one of these names; whatever else is in the archive is
/// left alone.
///
/// # Errors
/// If the file cannot be read, is not an archive, or an array of such a name is not one of numbers.
/// A name that no array has is not an error.
pub fn read_named(path: impl AsRef<Path>, names: &[&str]) -> Result<Vec<(String, Tensor)>> {
    let mut archive = Archive::open(path)?;
    let found = archive.names().filter(|name| names.contains(name)).map(str::to_owned);
    let found: Vec<String> = found.collect();
    found.into_iter().map(|name| Ok((name.clone(), archive.read(&name)?))).collect()
}

/// Writes tensors under their names. A file of that name is replaced as a whole or, if anything
/// goes wrong, left as it was; the archive is put together in memory first.
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
    files::replace(path, &archive).map_err(|source| Error::Io { path: path.to_owned(), source })
}

/// A file whose arrays are unpacked one by one, on demand.
///
/// ```
/// use tracecast_runtime::{Tensor, npz};
/// let path = std::env::temp_dir().join(format!("archive-{}.npz", std::process::id()));
/// npz::write(&path, [("x", &Tensor::new([2], &[1f32, 2.0])?)])?;
/// let mut archive = npz::Archive::open(&path)?;
/// assert_eq!(archive.names().collect::<Vec<_>>(), ["x"]);
/// assert_eq!(archive.ty("x")?.to_string(), "f32[2]");
/// assert_eq!(archive.read("x")?.to_vec::<f32>()?, [1.0, 2.0]);
/// # std::fs::remove_file(&path).map_err(|source| tracecast_runtime::Error::Io { path, source })?;
/// # Ok::<(), tracecast_runtime::Error>(())
/// ```
#[derive(Debug)]
pub struct Archive {
    path: PathBuf,
    arrays: Arrays<BufReader<File>>,
}

impl Archive {
    /// The arrays of a file, by name; none of them is read.
    ///
    /// # Errors
    /// If the file cannot be opened, is no archive, has two arrays of one name, or two that share
    /// bytes of the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let io = |source| Error::Io { path: path.clone(), source };
        // A pipe would wait for somebody to write to it.
        if !fs::metadata(&path).map_err(io)?.is_file() {
            let message = "is not a file: expected an archive of numpy's `savez`".to_owned();
            return Err(Error::Npz { path, message });
        }
        let mut file = BufReader::new(File::open(&path).map_err(io)?);
        let is_array = file.fill_buf().map_err(io)?.starts_with(npy::MAGIC);
        match Arrays::of(file) {
            Ok(arrays) => Ok(Archive { path, arrays }),
            Err(_) if is_array => {
                let message = "is a single array (.npy) and has no name: expected an archive of numpy's `savez`";
                Err(Error::Npz { path, message: message.to_owned() })
            }
            Err(why) => {
                let message = format!("is no archive of numpy's `savez`: {why}");
                Err(Error::Npz { path, message })
            }
        }
    }

    /// The names of its arrays, in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.arrays.entries.iter().map(|(name, _)| name.as_str())
    }

    /// The type of the tensor that [`read`](Archive::read) makes of an array, from the array's
    /// header alone.
    ///
    /// # Errors
    /// If there is no such array, or it is not one of numbers.
    pub fn ty(&mut self, name: &str) -> Result<TensorType> {
        let ty = self.arrays.ty(name);
        ty.map_err(|message| Error::Npz { path: self.path.clone(), message })
    }

    /// An array.
    ///
    /// # Errors
    /// If there is no such array, it is damaged, or not one of numbers.
    pub fn read(&mut self, name: &str) -> Result<Tensor> {
        let tensor = self.arrays.read(name);
        tensor.map_err(|message| Error::Npz { path: self.path.clone(), message })
    }
}

/// The dtype in which an archive holds elements of `dtype`: itself, or what computes it where numpy
/// has no such float.
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
        let mut options = FullFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(size > u64::from(u32::MAX));
        if wide.dtype() != tensor.dtype() {
            options = options.with_file_comment(tensor.dtype().name());
        }
        archive.start_file(format!("{name}{SUFFIX}"), options).map_err(|e| wrong(&e))?;
        archive.write_all(&header).map_err(|e| wrong(&e))?;
        archive.write_all(wide.bytes()).map_err(|e| wrong(&e))?;
    }
    archive.finish().map(Cursor::into_inner).map_err(|e| e.to_string())
}

/// The arrays of an archive.
#[derive(Debug)]
struct Arrays<R> {
    archive: ZipArchive<R>,
    /// Their names, and where they stand in the archive's directory.
    entries: Vec<(String, usize)>,
}

impl<R: Read + Seek> Arrays<R> {
    fn of(source: R) -> std::result::Result<Self, String> {
        let mut archive = ZipArchive::new(source).map_err(|e| e.to_string())?;
        if archive.has_duplicate_names() {
            return Err("two entries have one name".to_owned());
        }
        if archive.has_overlapping_files().map_err(|e| e.to_string())? {
            return Err("two entries share bytes, or one has those of the directory".to_owned());
        }
        let name = |i: usize| match archive.name_for_index(i) {
            Some(Ok(name)) => name.strip_suffix(SUFFIX).map(|name| (name.to_owned(), i)),
            _ => None,
        };
        let entries = (0..archive.len()).filter_map(name).collect();
        Ok(Arrays { archive, entries })
    }

    fn ty(&mut self, name: &str) -> std::result::Result<TensorType, String> {
        self.entry(name, |entry, _| {
            let ty = npy::read_type(entry)?;
            Ok(low_of(entry.comment(), &ty).map_or(ty.clone(), |low| ty.with_dtype(low)))
        })
    }

    fn read(&mut self, name: &str) -> std::result::Result<Tensor, String> {
        self.entry(name, |entry, limit| {
            let comment = entry.comment().to_owned();
            let tensor = npy::read(entry, limit)?;
            let Some(low) = low_of(&comment, tensor.ty()) else { return Ok(tensor) };
            let narrow = tensor.cast(low).map_err(|e| e.to_string())?;
            let wide = narrow.cast(tensor.dtype()).map_err(|e| e.to_string())?;
            if wide.bytes() != tensor.bytes() {
                return Err(format!("is said to be {low} and holds other numbers"));
            }
            Ok(narrow)
        })
    }

    /// What `body` makes of the entry of an array, and of the most bytes that may be unpacked of
    /// it.
    fn entry<T>(
        &mut self,
        name: &str,
        body: impl FnOnce(&mut ZipFile<'_, R>, u64) -> std::result::Result<T, String>,
    ) -> std::result::Result<T, String> {
        let at = self.entries.iter().find(|(found, _)| found == name).map(|(_, at)| *at);
        let wrong = |message: String| format!("array `{name}`: {message}");
        let at = at.ok_or_else(|| wrong("is not there".to_owned()))?;
        let mut entry = self.archive.by_index(at).map_err(|e| wrong(e.to_string()))?;
        let limit = match entry.compression() {
            CompressionMethod::Stored => u64::MAX,
            _ => LARGEST_COMPRESSED,
        };
        body(&mut entry, limit).map_err(wrong)
    }
}

/// The dtype below f32 that the comment of an entry names, if its array is one of what computes
/// that dtype.
fn low_of(comment: &str, held: &TensorType) -> Option<DType> {
    let mut low = DType::COMPUTABLE.into_iter().filter(|dtype| stored_as(*dtype) != *dtype);
    low.find(|dtype| dtype.name() == comment && stored_as(*dtype) == held.dtype)
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

    /// The arrays of an archive whose names are wanted.
    fn unpack(
        bytes: &[u8],
        wanted: &dyn Fn(&str) -> bool,
    ) -> std::result::Result<Vec<(String, Tensor)>, String> {
        let mut arrays = Arrays::of(Cursor::new(bytes))?;
        let names: Vec<String> = arrays.entries.iter().map(|(name, _)| name.clone()).collect();
        let wanted = names.into_iter().filter(|name| wanted(name));
        wanted.map(|name| Ok((name.clone(), arrays.read(&name)?))).collect()
    }

    /// The archive with one text in the place of another of its length, wherever it stands.
    fn renamed(archive: &[u8], from: &str, to: &str) -> Vec<u8> {
        let mut bytes = archive.to_vec();
        let places: Vec<usize> = bytes
            .windows(from.len())
            .enumerate()
            .filter(|(_, w)| *w == from.as_bytes())
            .map(|(at, _)| at)
            .collect();
        assert!(from.len() == to.len() && places.len() >= 2);
        places.into_iter().for_each(|at| bytes[at..at + to.len()].copy_from_slice(to.as_bytes()));
        bytes
    }

    #[test]
    fn bf16_stays_bf16_and_is_f32_for_numpy() {
        let numbers = [bf16::from_f32(0.1), bf16::MAX, bf16::NEG_INFINITY, bf16::from_bits(1)];
        let low = Tensor::new([4], &numbers).unwrap();
        let wide = low.cast(DType::F32).unwrap();
        let bytes = pack(&[("low", &low), ("wide", &wide)]).unwrap();
        let back = unpack(&bytes, &|_| true).unwrap();
        assert_eq!(back, [("low".to_owned(), low.clone()), ("wide".to_owned(), wide.clone())]);
        // To numpy both are the same array.
        let descriptions = bytes.windows(5).filter(|window| *window == b"'<f4'").count();
        assert_eq!(descriptions, 2);
        assert!(bytes.windows(4).any(|window| window == b"bf16"));
        // As numpy writes what `ml_dtypes` calls bfloat16.
        let raw = npy::header(&TensorType::new(DType::F16, [4])).unwrap();
        let raw = String::from_utf8_lossy(&raw[10..]).replace("<f2", "|V2");
        let mut npy = b"\x93NUMPY\x01\x00".to_vec();
        npy.extend((raw.len() as u16).to_le_bytes());
        npy.extend(raw.as_bytes());
        npy.extend(low.bytes());
        assert_eq!(npy::read(&mut npy.as_slice(), u64::MAX).unwrap(), low);
        // A comment that lies is no reason to round.
        let other = Tensor::scalar(0.1f32);
        let bytes = pack(&[("low", &Tensor::scalar(bf16::ONE))]).unwrap();
        let at = bytes.windows(4).position(|window| window == 1f32.to_le_bytes()).unwrap();
        let mut lies = bytes.clone();
        lies[at..at + 4].copy_from_slice(other.bytes());
        assert!(unpack(&lies, &|_| true).is_err());
    }

    #[test]
    fn types_are_known_before_anything_is_unpacked() {
        let x = Tensor::rand([100], 1).unwrap();
        let mut bytes = pack(&[("x", &x)]).unwrap();
        let at = bytes.windows(400).position(|window| window == x.bytes()).unwrap();
        bytes[at] ^= 1;
        let mut arrays = Arrays::of(Cursor::new(bytes)).unwrap();
        assert_eq!(arrays.ty("x").unwrap(), *x.ty());
        assert!(arrays.read("x").is_err());
    }

    #[test]
    fn two_arrays_of_one_name_are_refused() {
        let (a, b) = (Tensor::scalar(1f32), Tensor::scalar(2f32));
        let archive = pack(&[("aa", &a), ("bb", &b)]).unwrap();
        assert_eq!(unpack(&archive, &|_| true).unwrap().len(), 2);
        let twice = renamed(&archive, "bb.npy", "aa.npy");
        assert!(unpack(&twice, &|_| true).unwrap_err().contains("two entries have one name"));
    }

    #[test]
    fn arrays_that_share_bytes_are_refused() {
        let x = Tensor::zeros(TensorType::new(DType::F32, [1 << 20])).unwrap();
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        let options = FullFileOptions::default().compression_method(CompressionMethod::Deflated);
        archive.start_file("a.npy", options).unwrap();
        archive.write_all(&npy::header(x.ty()).unwrap()).unwrap();
        archive.write_all(x.bytes()).unwrap();
        for i in 0..40 {
            archive.shallow_copy_file("a.npy", &format!("b{i}.npy")).unwrap();
        }
        let bytes = archive.finish().unwrap().into_inner();
        assert!(bytes.len() < 16_000, "{}", bytes.len());
        assert!(unpack(&bytes, &|_| true).unwrap_err().contains("share bytes"));
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
        let mut archive = Archive::open(&file.0).unwrap();
        for ((name, t), (read_name, read)) in tensors.iter().zip(back) {
            assert_eq!((name, t), (&read_name, &read));
            assert_eq!(archive.ty(name).unwrap(), *t.ty());
        }
        assert!(archive.read("high").unwrap_err().to_string().contains("`high`: is not there"));
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
            let x = unpack(file, &|name| name != "words").unwrap();
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
            let error = unpack(file, &|_| true).unwrap_err();
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
            let read = |bytes: &[u8]| unpack(bytes, &|name| name != "words");
            let whole = read(good).unwrap();
            for cut in 0..good.len() {
                assert!(read(&good[..cut]).is_err(), "cut at {cut}");
            }
            for at in 0..good.len() {
                for flip in [0x01, 0x20, 0x80, 0xff] {
                    let mut bad = good.to_vec();
                    bad[at] ^= flip;
                    // Elements are what they were: a byte that matters is noticed, as the archive
                    // has a checksum of each array.
                    for (name, tensor) in read(&bad).unwrap_or_default() {
                        let same = whole.iter().find(|(n, _)| *n == name);
                        assert!(same.is_none_or(|(_, t)| *t == tensor), "{flip:#x} at {at}");
                    }
                }
            }
        }
    }
}
