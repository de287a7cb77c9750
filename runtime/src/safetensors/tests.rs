//! Files come back bit for bit, agree with the format's own reader, and what is wrong with one is
//! told before memory is taken for it.

use super::*;
use crate::{Element, Tensor};
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use tracecast_ir::{DType, TensorType};

/// A folder of this test's own, gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tracecast-safetensors-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file with this header and a number of bytes behind it.
    fn file(&self, header: &str, bytes: usize) -> PathBuf {
        let path = self.path("made.safetensors");
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(vec![0; bytes]);
        fs::write(&path, file).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn metadata() -> Metadata {
    [("format", "pt"), ("who \"is\"", "ü\n")].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
}

/// A tensor of each dtype, with the bits that conversions lose first.
fn tensors() -> Vec<(String, Tensor)> {
    fn of<T: Element>(shape: &[usize], v: &[T]) -> Tensor {
        Tensor::new(shape, v).unwrap()
    }
    let all = [
        of(&[3], &[f32::from_bits(1), -0.0, f32::from_bits(0x7fa0_0001)]),
        of(&[2, 2], &[f64::from_bits(1), -0.0, f64::NAN, f64::MAX]),
        of(&[1, 3], &[f16::from_bits(1), f16::NEG_INFINITY, f16::from_bits(0x7d01)]),
        of(&[3, 1], &[bf16::from_bits(1), bf16::MAX, bf16::from_bits(0x7fa1)]),
        of(&[2], &[i32::MIN, 7]),
        of(&[2], &[i64::MAX, (1 << 53) + 1]),
        of(&[5], &[0u8, 255, 1, 2, 3]),
        of(&[3], &[true, false, true]),
    ];
    assert_eq!(all.len(), DType::COMPUTABLE.len());
    let mut named: Vec<(String, Tensor)> =
        all.into_iter().map(|t| (format!("layer.{}", t.dtype()), t)).collect();
    for name in ["", "ω \"x\\\n", "a/../b"] {
        named.push((name.to_owned(), Tensor::scalar(1.5f32)));
    }
    named.push(("empty".to_owned(), of::<f32>(&[0, 4], &[])));
    named
}

fn save(path: &Path, tensors: &[(String, Tensor)]) {
    write(path, tensors.iter().map(|(name, t)| (name.as_str(), t)), &metadata()).unwrap();
}

#[test]
fn every_dtype_comes_back_bit_for_bit() {
    let folder = Folder::new();
    let path = folder.path("a.safetensors");
    save(&path, &tensors());
    let mut archive = Archive::open(&path).unwrap();
    assert_eq!((archive.names().count(), archive.metadata()), (tensors().len(), &metadata()));
    for (name, tensor) in tensors() {
        assert_eq!(archive.ty(&name).as_ref(), Some(tensor.ty()));
        assert_eq!(archive.read(&name).unwrap().bytes(), tensor.bytes(), "{name}");
    }
    let bytes = fs::read(&path).unwrap();
    let mut turned = tensors();
    turned.reverse();
    save(&path, &turned);
    assert_eq!(fs::read(&path).unwrap(), bytes, "equal tensors are equal files");
    let error = archive.read("nobody").unwrap_err().to_string();
    assert!(error.contains("no tensor `nobody`"), "{error}");
}

fn theirs(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
        other => panic!("{other}"),
    }
}

#[test]
fn the_reader_of_the_format_reads_what_is_written() {
    let folder = Folder::new();
    let path = folder.path("a.safetensors");
    save(&path, &tensors());
    let bytes = fs::read(&path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let said: Metadata = header.metadata().clone().unwrap().into_iter().collect();
    assert_eq!(said, metadata());
    let read = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(read.len(), tensors().len());
    for (name, tensor) in tensors() {
        let view = read.tensor(&name).unwrap();
        assert_eq!((view.dtype(), view.data()), (theirs(tensor.dtype()), tensor.bytes()), "{name}");
        assert_eq!(view.shape(), &tensor.shape().numbers()[..], "{name}");
        assert!(
            view.data()
                .as_ptr()
                .addr()
                .wrapping_sub(bytes.as_ptr().addr())
                .is_multiple_of(tensor.dtype().bytes())
        );
    }
}

#[test]
fn what_the_writer_of_the_format_writes_is_read() {
    let folder = Folder::new();
    let path = folder.path("a.safetensors");
    let tensors = tensors();
    let views = tensors.iter().map(|(name, t)| {
        (
            name.clone(),
            TensorView::new(theirs(t.dtype()), t.shape().numbers().to_vec(), t.bytes()).unwrap(),
        )
    });
    fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    let mut archive = Archive::open(&path).unwrap();
    assert_eq!(archive.names().count(), tensors.len());
    for (name, tensor) in &tensors {
        assert_eq!(archive.read(name).unwrap().bytes(), tensor.bytes(), "{name}");
    }
}

#[test]
fn headers_that_lie_are_refused() {
    let folder = Folder::new();
    let one = |info: &str| format!("{{\"a\":{info}}}");
    let info = |dtype: &str, shape: &str, at: &str| {
        one(&format!("{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{at}}}"))
    };
    let two = |a: &str, b: &str| {
        let u8s = |at: &str| format!("{{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":{at}}}");
        format!("{{\"a\":{},\"b\":{}}}", u8s(a), u8s(b))
    };
    let cases = [
        (info("F32", "[3]", "[0,8]"), "F32[3] and has 8 bytes: expected 12"),
        (info("F32", "[2]", "[8,0]"), "before it begins"),
        (info("F32", "[1]", "[0,4]"), "take 4 bytes, found 8"),
        (info("F32", "[4]", "[0,16]"), "take 16 bytes, found 8"),
        (info("F99", "[2]", "[0,8]"), "`F99`"),
        (info("F4", "[3]", "[0,1]"), "expected 2"),
        (info("F32", "[4294967296,4294967296,9]", "[0,8]"), "too large"),
        (info("F32", "[0,4294967296,4294967296,9]", "[0,0]"), "too large"),
        (info("F32", "[-2]", "[0,8]"), "invalid value"),
        (info("F32", "[2.0]", "[0,8]"), "invalid type"),
        (info("F32", "2", "[0,8]"), "invalid type"),
        (info("F32", "[2]", "[0,8,9]"), "trailing"),
        (info("F32", "[2]", "[0]"), "invalid length"),
        (info("F32", &format!("[{}2]", "1,".repeat(64)), "[0,8]"), "65 axes"),
        (one("{\"dtype\":\"F32\",\"shape\":[2]}"), "missing field `data_offsets`"),
        (
            one("{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"),
            "two entries are called `dtype`",
        ),
        (one("7"), "an object with dtype"),
        (two("[0,4]", "[3,7]"), "shares bytes"),
        (two("[0,4]", "[5,9]"), "leaves a gap"),
        (two("[0,4]", "[4,8]").replace("\"b\"", "\"a\""), "two entries are called `a`"),
        ("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}".to_owned(), "two entries are called `a`"),
        ("{\"__metadata__\":{\"a\":1}}".to_owned(), "invalid type"),
        ("[]".to_owned(), "does not begin"),
        ("{\"a\"".to_owned(), "EOF"),
        (format!("{{{}", "\"a\":{".repeat(10_000)), "the header"),
        (String::new(), "does not begin"),
    ];
    for (header, says) in cases {
        let path = folder.file(&header, 8);
        let error = Archive::open(&path).unwrap_err().to_string();
        assert!(error.contains("made.safetensors") && error.contains(says), "{header}: {error}");
    }
}

#[test]
fn what_is_no_file_of_tensors_is_refused() {
    let folder = Folder::new();
    let path = folder.path("a.safetensors");
    for bytes in [&[][..], &[1; 7], &[0xff; 8], &[9, 0, 0, 0, 0, 0, 0, 0, b'{']] {
        fs::write(&path, bytes).unwrap();
        assert!(matches!(Archive::open(&path), Err(crate::Error::Safetensors { .. })));
    }
    assert!(Archive::open(&folder.0).unwrap_err().to_string().contains("is not a file"));
    assert!(matches!(Archive::open(folder.path("none")), Err(crate::Error::Io { .. })));
    let path = folder.file("{\"a\":{\"dtype\":\"U16\",\"shape\":[4],\"data_offsets\":[0,8]}}", 8);
    let mut archive = Archive::open(&path).unwrap();
    assert_eq!((archive.ty("a"), archive.describe("a")), (None, "U16[4]".to_owned()));
    assert!(archive.read("a").unwrap_err().to_string().contains("no dtype U16"));
    let path = folder.file("{\"a\":{\"dtype\":\"I8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8);
    let mut archive = Archive::open(&path).unwrap();
    assert_eq!(archive.ty("a"), Some(TensorType::new(DType::I8, [8])));
    assert!(archive.read("a").unwrap_err().to_string().contains("i8"));
    let mut bytes = fs::read(
        folder.file("{\"a\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2),
    )
    .unwrap();
    *bytes.last_mut().unwrap() = 2;
    fs::write(&path, bytes).unwrap();
    let error = Archive::open(&path).unwrap().read("a").unwrap_err().to_string();
    assert!(error.contains("neither 0 nor 1"), "{error}");
}

#[test]
fn a_file_that_is_cut_or_flipped_is_an_error_or_what_it_was() {
    let folder = Folder::new();
    let path = folder.path("a.safetensors");
    let tensors = [
        ("x".to_owned(), Tensor::randn([8, 3], 1).unwrap()),
        ("step".to_owned(), Tensor::scalar(1i64)),
    ];
    save(&path, &tensors);
    let good = fs::read(&path).unwrap();
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let mut archive = Archive::open(&path)?;
        let names: Vec<String> = archive.names().map(str::to_owned).collect();
        names.iter().map(|name| archive.read(name)).collect::<crate::Result<Vec<Tensor>>>()
    };
    for cut in 0..good.len() {
        assert!(read(&good[..cut]).is_err(), "cut at {cut}");
    }
    let header = good.len() - 8 - 8 * 3 * 4;
    for at in 0..header {
        for flip in [0x01, 0x20, 0x80, 0xff] {
            let mut bad = good.clone();
            bad[at] ^= flip;
            // Names and types may be others: there is no checksum. Sizes are what is there.
            if let Ok(tensors) = read(&bad) {
                assert!(
                    tensors.iter().map(|t| t.bytes().len()).sum::<usize>() == good.len() - header
                );
            }
        }
    }
}

#[test]
fn what_cannot_be_written_leaves_the_old_file() {
    let folder = Folder::new();
    let path = folder.path("a.safetensors");
    let one = Tensor::scalar(1f32);
    write(&path, [("a", &one)], &Metadata::new()).unwrap();
    let old = fs::read(&path).unwrap();
    let error = |tensors: &[(&str, &Tensor)]| {
        write(&path, tensors.iter().copied(), &Metadata::new()).unwrap_err().to_string()
    };
    assert!(error(&[("b", &one), ("b", &one)]).contains("two tensors are called `b`"));
    assert!(error(&[("__metadata__", &one)]).contains("__metadata__"));
    let types = [("x", one.ty().clone()), ("y", one.ty().clone())];
    let failing = |at: usize| match at {
        0 => Ok(one.clone()),
        _ => Err(crate::Error::Device("lost".to_owned())),
    };
    let lost = write_each(&path, &types, &Metadata::new(), failing).unwrap_err();
    assert!(lost.to_string().contains("lost"));
    let other = |_| Ok(Tensor::scalar(1i64));
    let lost = write_each(&path, &types, &Metadata::new(), other).unwrap_err().to_string();
    assert!(lost.contains("expected f32[], found i64[]"), "{lost}");
    assert_eq!(fs::read(&path).unwrap(), old);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
}

#[test]
fn a_model_in_several_files_is_one_model() {
    let folder = Folder::new();
    let index = folder.path("model.safetensors.index.json");
    let tensors: Vec<(String, Tensor)> =
        (0..7).map(|i| (format!("w{i}"), Tensor::rand([100 + i], i as u64).unwrap())).collect();
    let shard = |most| {
        let named = tensors.iter().map(|(name, t)| (name.as_str(), t));
        write_sharded(&index, named, &metadata(), most).unwrap();
        let mut archive = Archive::open(&index).unwrap();
        assert_eq!((archive.names().count(), archive.metadata()), (7, &metadata()));
        for (name, tensor) in &tensors {
            assert_eq!(archive.read(name).unwrap(), *tensor, "{name}");
        }
        let mut files: Vec<String> = fs::read_dir(&folder.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        files
    };
    let files = shard(1000);
    assert_eq!(files[0], "model-1-00001-of-00004.safetensors");
    assert_eq!(files.len(), 5);
    // Others are not touched, and the old ones are gone.
    fs::write(folder.path("model-x-00001-of-00004.safetensors"), "mine").unwrap();
    let files = shard(1 << 30);
    assert_eq!(
        files,
        [
            "model-2-00001-of-00001.safetensors",
            "model-x-00001-of-00004.safetensors",
            "model.safetensors.index.json"
        ]
    );
    assert_eq!(shard(1).len(), 9);
    let one = Tensor::scalar(1f32);
    assert!(write_sharded(&index, [("a", &one), ("a", &one)], &Metadata::new(), 1).is_err());
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 9);
    assert!(Archive::open(&index).unwrap().contains("w0"));
    assert!(write_sharded(folder.path("a.json"), [("a", &one)], &Metadata::new(), 1).is_err());
}

#[test]
fn an_index_that_does_not_agree_with_its_files_is_refused() {
    let folder = Folder::new();
    let (a, b) = (Tensor::scalar(1f32), Tensor::scalar(2f32));
    write(folder.path("1.safetensors"), [("a", &a), ("both", &a)], &Metadata::new()).unwrap();
    write(folder.path("2.safetensors"), [("b", &b), ("both", &b)], &Metadata::new()).unwrap();
    let index = folder.path("i.index.json");
    let open = |text: &str| {
        fs::write(&index, text).unwrap();
        Archive::open(&index)
    };
    let map = |pairs: &str| format!("{{\"metadata\":{{}},\"weight_map\":{{{pairs}}}}}");
    let good = "\"a\":\"1.safetensors\",\"b\":\"2.safetensors\",\"both\":\"2.safetensors\"";
    let mut archive = open(&map(good)).unwrap();
    assert_eq!((archive.read("a").unwrap(), archive.read("both").unwrap()), (a, b));
    let cases = [
        (map("\"a\":\"1.safetensors\",\"b\":\"2.safetensors\""), "two files have `both`"),
        (map("\"b\":\"1.safetensors\""), "`b` is not in `1.safetensors`"),
        (map("\"a\":\"../1.safetensors\""), "no file beside it"),
        (map("\"a\":\"/etc/passwd\""), "no file beside it"),
        (map("\"a\":\"..\""), "no file beside it"),
        (map("\"a\":\"\""), "no file beside it"),
        (map("\"a\":\"1.safetensors\",\"a\":\"2.safetensors\""), "two entries are called `a`"),
        (map("\"a\":1"), "invalid type"),
        (map("\"a\":\"3.safetensors\""), "3.safetensors"),
        ("{}".to_owned(), "missing field `weight_map`"),
        ("{".to_owned(), "EOF"),
    ];
    for (text, says) in cases {
        let error = open(&text).unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}
