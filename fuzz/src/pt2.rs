//! Any bytes as an archive of `torch.export`, and any text as the program of one: an error, or a
//! model whose tensors are of their types and whose program is recorded, with memory that the size
//! of the file bounds.

use crate::scratch::within;
use std::path::Path;
use tracecast_ir::{Tracer, Var};
use tracecast_pt2::{Exported, Plain};
use tracecast_runtime::Result;

/// The bytes of each weight of an archive that is built here.
const WEIGHT: usize = 96;

/// Tries it: a file behind 0; behind 1 the program, the weights' and the constants' descriptions of
/// an archive, with zeros between them.
pub fn run(bytes: &[u8]) {
    match bytes {
        [0, file @ ..] => drop(within(|folder| tried(&folder.join("fuzz.pt2"), file))),
        [_, texts @ ..] => drop(within(|folder| tried(&folder.join("fuzz.pt2"), &archive(texts)))),
        [] => {}
    }
}

/// Opens a file, reads its tensors, and records its program.
fn tried(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).unwrap();
    let exported = Exported::open(path)?;
    for state in exported.states() {
        assert_eq!(*exported.tensor(state)?.ty(), state.ty, "{}", state.name);
    }
    let t = Tracer::new("fuzz");
    if exported.declare_sizes(&t).is_ok() {
        let inputs = exported.inputs().iter();
        let inputs: Vec<Var<'_>> =
            inputs.map(|input| t.input(&input.name, input.ty.clone())).collect();
        let results = exported.record(&Plain::new(&t), &inputs);
        for (at, result) in results.into_iter().enumerate() {
            t.output(&format!("output.{at}"), result);
        }
    }
    // A program that cannot be recorded is an error of the tracer.
    drop(t.finish());
    Ok(())
}

/// An archive of these texts, with weights of a few bytes.
fn archive(texts: &[u8]) -> Vec<u8> {
    let mut texts = texts.split(|byte| *byte == 0);
    let mut entries: Vec<(String, Vec<u8>)> = vec![("archive_format".to_owned(), b"pt2".to_vec())];
    let names = [
        "models/model.json",
        "data/weights/model_weights_config.json",
        "data/constants/model_constants_config.json",
    ];
    for name in names {
        entries.push((name.to_owned(), texts.next().unwrap_or_default().to_vec()));
    }
    for at in 0..8 {
        entries.push((format!("data/weights/weight_{at}"), vec![at; WEIGHT]));
    }
    entries.push(("data/constants/tensor_0".to_owned(), vec![0; WEIGHT]));
    zip(&entries)
}

/// A zip of entries as they are.
fn zip(entries: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let name = format!("m/{name}");
        let (start, length) = (file.len() as u32, data.len() as u32);
        // Version, flags, method, time, date, checksum, both sizes, and the length of the name.
        let mut common =
            [10u16.to_le_bytes(), [0; 2], [0; 2], [0; 2], [33, 0], [0; 2], [0; 2]].concat();
        common.extend([length.to_le_bytes(), length.to_le_bytes()].concat());
        common.extend((name.len() as u16).to_le_bytes());
        file.extend([b"PK\x03\x04", &common[..], &[0; 2], name.as_bytes(), data].concat());
        directory.extend([b"PK\x01\x02", &10u16.to_le_bytes()[..], &common, &[0; 12]].concat());
        directory.extend([&start.to_le_bytes()[..], name.as_bytes()].concat());
    }
    let count = (entries.len() as u16).to_le_bytes();
    let (start, length) = (file.len() as u32, directory.len() as u32);
    file.extend(directory);
    file.extend([b"PK\x05\x06", &[0; 4][..], &count, &count].concat());
    file.extend([&length.to_le_bytes()[..], &start.to_le_bytes(), &[0; 2]].concat());
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_of_texts_is_one() {
        let text = b"\x01{}\0{}\0{}";
        let error = within(|folder| tried(&folder.join("fuzz.pt2"), &archive(&text[1..])));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("schema"), "{error}");
    }
}
