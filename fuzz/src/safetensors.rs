//! Any bytes as a file of tensors, as its header, and as an index of several; and files built with
//! tensors of every kind: an error, or tensors whose types are known before they are read, and that
//! write and read back to the same.

use crate::scratch::within;
use crate::support::dice::Dice;
use std::collections::HashSet;
use std::path::Path;
use tracecast_ir::{DType, TensorType};
use tracecast_runtime::safetensors::{Archive, Metadata, write, write_sharded};
use tracecast_runtime::{Result, Tensor};

/// Tries it.
pub fn run(bytes: &[u8]) {
    match bytes {
        [0, file @ ..] => drop(within(|folder| tried(&folder.join("fuzz.safetensors"), file))),
        [1, index @ ..] => drop(within(|folder| tried_index(folder, index))),
        [2, text @ ..] => {
            // What follows the last brace are elements.
            let end = text.iter().rposition(|byte| *byte == b'}').map_or(0, |at| at + 1);
            let file = file(&text[..end], &text[end..]);
            drop(within(|folder| tried(&folder.join("fuzz.safetensors"), &file)));
        }
        [_, choices @ ..] => built(&mut Dice::given(choices)),
        [] => {}
    }
}

/// A file of that header and those elements.
fn file(header: &[u8], elements: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, elements].concat()
}

/// The tensors of a file, each tried.
fn tried(path: &Path, bytes: &[u8]) -> Result<Vec<(String, Tensor)>> {
    std::fs::write(path, bytes).unwrap();
    let mut archive = Archive::open(path)?;
    let metadata = archive.metadata().clone();
    let (tensors, error) = all(&mut archive, bytes.len());
    let named = || tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    write(path, named(), &metadata).unwrap();
    let mut again = Archive::open(path).unwrap();
    assert_eq!(*again.metadata(), metadata);
    let (found, none) = all(&mut again, usize::MAX);
    assert!(none.is_none() && is_same(&found, &tensors), "{found:?} was written as {tensors:?}");
    assert!(again.read("no tensor").is_err() || again.contains("no tensor"));
    if !tensors.is_empty() {
        sharded(path, &mut tensors.clone(), &metadata);
    }
    error.map_or(Ok(tensors), Err)
}

/// Writes the tensors to several files and reads them by their index.
fn sharded(path: &Path, tensors: &mut [(String, Tensor)], metadata: &Metadata) {
    let index = path.with_extension("safetensors.index.json");
    let named = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    write_sharded(&index, named, metadata, 16).unwrap();
    let (mut found, none) = all(&mut Archive::open(&index).unwrap(), usize::MAX);
    found.sort_by(|a, b| a.0.cmp(&b.0));
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(none.is_none() && is_same(&found, tensors), "{found:?} was written as {tensors:?}");
}

/// The tensors of an index beside two files.
fn tried_index(folder: &Path, index: &[u8]) -> Result<Vec<(String, Tensor)>> {
    let (x, y) = (Tensor::scalar(1f32), Tensor::new([2], &[1i64, 2]).unwrap());
    let none = Metadata::new();
    for (name, tensors) in [("a", [("x", &x), ("y", &y)]), ("b", [("x", &y), ("z", &x)])] {
        let path = folder.join(name);
        if !path.exists() {
            write(&path, tensors, &none).unwrap();
        }
    }
    let path = folder.join("fuzz.json");
    std::fs::write(&path, index).unwrap();
    let (tensors, error) = all(&mut Archive::open(&path)?, usize::MAX);
    error.map_or(Ok(tensors), Err)
}

/// The tensors that can be read, of at most that many bytes together, and the first error.
fn all(
    archive: &mut Archive,
    most: usize,
) -> (Vec<(String, Tensor)>, Option<tracecast_runtime::Error>) {
    let names: Vec<String> = archive.names().map(str::to_owned).collect();
    let (mut tensors, mut error, mut total) = (Vec::new(), None, 0usize);
    for name in names {
        assert!(archive.contains(&name) && !archive.describe(&name).is_empty());
        let ty = archive.ty(&name);
        match archive.read(&name) {
            Ok(tensor) => {
                assert_eq!(Some(tensor.ty()), ty.as_ref(), "{name}");
                total += tensor.bytes().len();
                tensors.push((name, tensor));
            }
            Err(why) => error = error.or(Some(why)),
        }
    }
    assert!(total <= most, "{total} bytes of tensors in a file of {most}");
    (tensors, error)
}

fn is_same(a: &[(String, Tensor)], b: &[(String, Tensor)]) -> bool {
    let same = |((a, x), (b, y)): (&(String, Tensor), &(String, Tensor))| {
        a == b && x.ty() == y.ty() && x.bytes() == y.bytes()
    };
    a.len() == b.len() && a.iter().zip(b).all(same)
}

/// The names of dtypes, the bytes of an element, and the dtypes here.
const KINDS: [(&str, usize, Option<DType>); 12] = [
    ("F32", 4, Some(DType::F32)),
    ("F64", 8, Some(DType::F64)),
    ("F16", 2, Some(DType::F16)),
    ("BF16", 2, Some(DType::BF16)),
    ("I32", 4, Some(DType::I32)),
    ("I64", 8, Some(DType::I64)),
    ("U8", 1, Some(DType::U8)),
    ("BOOL", 1, Some(DType::Bool)),
    ("U16", 2, None),
    ("F8_E4M3", 1, None),
    ("F4", 1, None),
    ("F31", 4, None),
];

/// Builds a file, damages it perhaps, and reads it.
fn built(dice: &mut Dice) {
    let (mut fields, mut elements, mut tensors) = (Vec::new(), Vec::new(), Vec::new());
    let (mut names, mut is_good) = (HashSet::new(), true);
    let mut is_twice = false;
    for _ in 0..dice.below(5) {
        let name = dice.pick(&["a", "b", "c", "a.b", "", "\\u00e9", "__metadata__"]);
        is_twice |= !names.insert(name);
        let (kind, size, dtype) = dice.pick(&KINDS);
        let sizes: Vec<usize> = (0..dice.below(4)).map(|_| dice.pick(&[0, 1, 2, 3, 7])).collect();
        let count = sizes.iter().product::<usize>() * size;
        let bytes: Vec<u8> = (0..count)
            .map(|_| dice.below(256) as u8 & if kind == "BOOL" { 1 } else { 255 })
            .collect();
        let (mut from, to) = (elements.len(), elements.len() + count);
        if dice.chance(10) {
            from = dice.pick(&[0, 1, usize::MAX]);
            is_good = false;
        }
        let more = dice.pick(&["", "", "", ",\"x\":[{}]", ",\"dtype\":\"F32\""]);
        is_good &= more != ",\"dtype\":\"F32\"" && name != "__metadata__";
        fields.push(format!(
            "\"{name}\":{{\"dtype\":\"{kind}\",\"shape\":{sizes:?},\"data_offsets\":[{from},{to}]{more}}}"
        ));
        elements.extend(&bytes);
        match dtype {
            Some(dtype) => {
                let ty = TensorType::new(dtype, &sizes[..]);
                tensors
                    .push((name.replace("\\u00e9", "é"), Tensor::from_bytes(ty, bytes).unwrap()));
            }
            None => is_good = false,
        }
    }
    if dice.chance(20) {
        fields.push("\"__metadata__\":{\"format\":\"pt\"}".to_owned());
        is_twice |= !names.insert("__metadata__");
    }
    let mut bytes = file(format!("{{{}}}", fields.join(",")).as_bytes(), &elements);
    let damage = if dice.chance(30) { 1 + dice.below(4) } else { 0 };
    for _ in 0..damage {
        let at = (dice.below(256) << 8 | dice.below(256)) % bytes.len();
        bytes[at] = dice.below(256) as u8;
    }
    let found = within(|folder| tried(&folder.join("fuzz.safetensors"), &bytes));
    if damage > 0 {
        return;
    }
    assert!(!is_twice || found.is_err(), "two entries of one name were read: {found:?}");
    if is_good && !is_twice {
        let found = found.unwrap();
        tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
        assert!(is_same(&found, &tensors), "{found:?} was {tensors:?}");
    }
}
