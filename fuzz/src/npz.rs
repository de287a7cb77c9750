//! Any bytes as an archive of arrays, and archives built of them with arrays of every kind: an
//! error, or tensors whose names are all different, whose types are known before they are unpacked,
//! and that write and read back to the same.

use crate::scratch::within;
use crate::support::dice::Dice;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use std::collections::HashSet;
use std::io::Write;
use std::path::Path;
use tracecast_ir::{DType, TensorType};
use tracecast_runtime::npz::{self, Archive};
use tracecast_runtime::{Result, Tensor};

/// Arrays of more bytes are not read: a header may promise any number.
const LARGEST: usize = 1 << 22;

/// Tries it.
pub fn run(bytes: &[u8]) {
    match bytes {
        [0, archive @ ..] => drop(read(archive)),
        [_, choices @ ..] => built(&mut Dice::given(choices)),
        [] => {}
    }
}

/// The arrays of an archive, each tried.
fn read(bytes: &[u8]) -> Result<Vec<(String, Tensor)>> {
    within(|folder| tried(&folder.join("fuzz.npz"), bytes))
}

fn tried(file: &Path, bytes: &[u8]) -> Result<Vec<(String, Tensor)>> {
    std::fs::write(file, bytes).unwrap();
    let mut archive = Archive::open(file)?;
    let names: Vec<String> = archive.names().map(str::to_owned).collect();
    let different: HashSet<&String> = names.iter().collect();
    assert_eq!(different.len(), names.len(), "two arrays of one name: {names:?}");
    let (mut tensors, mut first_error) = (Vec::new(), None);
    for name in names {
        let ty = archive.ty(&name);
        if ty.as_ref().is_ok_and(|ty| ty.check_size().is_err() || ty.bytes().get() > LARGEST) {
            continue;
        }
        match (ty, archive.read(&name)) {
            (Ok(ty), Ok(tensor)) => {
                assert_eq!(*tensor.ty(), ty, "{name}");
                tensors.push((name, tensor));
            }
            (_, Err(error)) => first_error = first_error.or(Some(error)),
            (Err(error), Ok(tensor)) => panic!("{name} is {tensor}, and {error}"),
        }
    }
    npz::write(file, tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))).unwrap();
    let again = npz::read(file).unwrap();
    let same = |((a, x), (b, y)): (&(String, Tensor), &(String, Tensor))| {
        a == b && x.ty() == y.ty() && x.bytes() == y.bytes()
    };
    let is_same = again.len() == tensors.len() && again.iter().zip(&tensors).all(same);
    assert!(is_same, "{again:?} was written as {tensors:?}");
    first_error.map_or(Ok(tensors), Err)
}

/// An array that an archive is built of.
struct Array {
    name: String,
    /// The bytes of the entry.
    npy: Vec<u8>,
    /// The tensor that it holds, if it is as it should be.
    tensor: Option<Tensor>,
}

/// Builds an archive, damages it perhaps, and reads it.
fn built(dice: &mut Dice) {
    let arrays: Vec<Array> = (0..dice.below(5)).map(|_| array(dice)).collect();
    let mut bytes = archive(&arrays, dice);
    let damage = if dice.chance(30) { 1 + dice.below(4) } else { 0 };
    for _ in 0..damage {
        let high = dice.below(256) << 8;
        let at = (high + dice.below(256)) % bytes.len();
        bytes[at] = dice.below(256) as u8;
    }
    let names: HashSet<&String> = arrays.iter().map(|array| &array.name).collect();
    let found = read(&bytes);
    if damage > 0 {
        return;
    }
    if names.len() < arrays.len() {
        assert!(found.is_err(), "two arrays of one name were read: {found:?}");
        return;
    }
    if let Some(tensors) =
        arrays.iter().map(|array| array.tensor.clone()).collect::<Option<Vec<_>>>()
    {
        let found: Vec<Tensor> = found.unwrap().into_iter().map(|(_, tensor)| tensor).collect();
        assert!(found == tensors, "{found:?} was {tensors:?}");
    }
}

/// numpy's names of dtypes, the bytes of an element, and the dtype here, where elements are held as
/// they are.
const KINDS: [(&str, usize, Option<DType>); 14] = [
    ("<f4", 4, Some(DType::F32)),
    ("<f8", 8, Some(DType::F64)),
    ("<f2", 2, Some(DType::F16)),
    ("<i4", 4, Some(DType::I32)),
    ("<i8", 8, Some(DType::I64)),
    ("|u1", 1, Some(DType::U8)),
    ("|b1", 1, None),
    ("|i1", 1, None),
    (">f4", 4, None),
    (">i2", 2, None),
    ("<u2", 2, None),
    ("<u4", 4, None),
    ("<u8", 8, None),
    ("<U2", 8, None),
];

fn array(dice: &mut Dice) -> Array {
    let suffix = dice.pick(&[".npy", ".npy", ".npy", ".npy", "", ".NPY"]);
    let name = dice.pick(&["a", "b", "c", "a.b", "", "x/y", "é"]).to_owned() + suffix;
    let (kind, size, dtype) = dice.pick(&KINDS);
    let sizes: Vec<usize> = (0..dice.below(4)).map(|_| dice.pick(&[0, 1, 2, 3, 7])).collect();
    let fortran = dice.chance(20);
    let version = dice.pick(&[1u8, 1, 1, 2, 3, 9]);
    let shape: String = sizes.iter().map(|n| format!("{n}, ")).collect();
    let order = if fortran { "True" } else { "False" };
    let mut header =
        format!("{{'descr': '{kind}', 'fortran_order': {order}, 'shape': ({shape}), }}\n");
    let mut is_good = (1..=3).contains(&version) && suffix == ".npy" && !fortran;
    if dice.chance(15) {
        let at = dice.below(header.len());
        header.replace_range(at..=at, dice.pick(&["", "'", "9", "(", ",", "-", "99999999999"]));
        is_good = false;
    }
    let mut count = sizes.iter().product::<usize>() * size;
    if dice.chance(10) {
        count = dice.below(64);
        is_good = false;
    }
    let elements: Vec<u8> = (0..count).map(|_| dice.below(256) as u8).collect();
    let mut npy = b"\x93NUMPY".to_vec();
    npy.extend([version, 0]);
    match version {
        1 => npy.extend((header.len() as u16).to_le_bytes()),
        _ => npy.extend((header.len() as u32).to_le_bytes()),
    }
    npy.extend(header.as_bytes());
    npy.extend(&elements);
    let tensor = dtype
        .filter(|_| is_good)
        .map(|dtype| Tensor::from_bytes(TensorType::new(dtype, &sizes[..]), elements).unwrap());
    Array { name, npy, tensor }
}

/// A zip archive of the arrays, stored or compressed.
fn archive(arrays: &[Array], dice: &mut Dice) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for Array { name, npy, .. } in arrays {
        let deflated = dice.chance(40);
        let data = if deflated {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(npy).unwrap();
            encoder.finish().unwrap()
        } else {
            npy.clone()
        };
        let mut sum = flate2::Crc::new();
        sum.update(npy);
        // What the header of an entry and its line in the directory have in common; names are
        // UTF-8.
        let mut about = vec![20, 0, 0, 8, if deflated { 8 } else { 0 }, 0, 0, 0, 33, 0];
        about.extend(sum.sum().to_le_bytes());
        about.extend((data.len() as u32).to_le_bytes());
        about.extend((npy.len() as u32).to_le_bytes());
        about.extend((name.len() as u16).to_le_bytes());
        about.extend([0, 0]);
        directory.extend(b"PK\x01\x02\x14\x03");
        directory.extend(&about);
        directory.extend([0; 10]);
        directory.extend((out.len() as u32).to_le_bytes());
        directory.extend(name.as_bytes());
        out.extend(b"PK\x03\x04");
        out.extend(&about);
        out.extend(name.as_bytes());
        out.extend(&data);
    }
    let start = out.len() as u32;
    out.extend(&directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend([(arrays.len() as u16).to_le_bytes(); 2].concat());
    out.extend((directory.len() as u32).to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
    out
}
