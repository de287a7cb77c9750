//! Archives that cannot be used: one error that says everything.

use crate::answers::folder;
use std::path::PathBuf;
use tracecast::pt2::Exported;
use tracecast::{Error, pt2};

/// A file of its own for each test, removed afterwards.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// An archive with texts in the place of others of their lengths.
fn changed(name: &str, changes: &[(&str, &str, usize)]) -> Scratch {
    let mut bytes = std::fs::read(folder().join("net_vae.pt2")).unwrap();
    for (from, to, most) in changes {
        assert_eq!(from.len(), to.len(), "{from}");
        let mut at = 0;
        for _ in 0..*most {
            let found =
                bytes[at..].windows(from.len()).position(|window| window == from.as_bytes());
            let Some(found) = found else { break };
            bytes[at + found..at + found + from.len()].copy_from_slice(to.as_bytes());
            at += found + from.len();
        }
        assert!(at > 0, "{from} is in the archive");
    }
    let path = std::env::temp_dir().join(format!("tracecast-{}-{name}.pt2", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    Scratch(path)
}

#[test]
fn all_that_is_wrong_is_one_error() {
    let file = changed(
        "wrong",
        &[
            ("aten.relu.default", "aten.rule.default", 1),
            ("aten.exp.default", "aten.oxp.default", 1),
            ("aten.sigmoid.default", "aten.sigmoad.default", 1),
            ("\"as_float\":0.5", "\"as_bogus\":0.5", 1),
        ],
    );
    let error = Exported::open(&file.0).map(drop).unwrap_err();
    let text = error.to_string();
    let Error::Exported { calls: faults, .. } = error else { panic!("{text}") };
    assert_eq!(faults.len(), 4, "{text}");
    assert!(faults.iter().all(|fault| fault.line.contains("zoo.py:")), "{text}");
    assert_eq!(
        faults.iter().filter(|fault| fault.message.contains("no such overload")).count(),
        3,
        "{text}"
    );
    assert!(
        text.contains("as_bogus") && text.contains("aten.sigmoad.default") && text.contains("f32["),
        "{text}"
    );
}

#[test]
fn what_is_no_archive_is_refused() {
    for (name, changes, says) in [
        ("packed", ("PK\u{1}\u{2}", "PK\u{1}\u{3}"), "archive"),
        ("version", ("\"major\":8", "\"major\":9"), "version 9"),
        ("pickle", ("\"use_pickle\":false", "\"use_pickle\":true "), "pickle"),
        ("outside", ("weight_0\"", "../../..\""), "no name of an entry"),
    ] {
        let file = changed(name, &[(changes.0, changes.1, usize::MAX)]);
        let error = pt2::open(&file.0).unwrap_err().to_string();
        assert!(error.contains(says), "{name}: {error}");
    }
    let whole = std::fs::read(folder().join("net_vae.pt2")).unwrap();
    let file =
        Scratch(std::env::temp_dir().join(format!("tracecast-{}-cut.pt2", std::process::id())));
    for length in [0, 1, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&file.0, &whole[..length]).unwrap();
        assert!(pt2::open(&file.0).is_err(), "{length} bytes");
    }
}

#[test]
fn a_directory_with_numbers_of_64_bits_is_read() {
    let whole = std::fs::read(folder().join("net_vae.pt2")).unwrap();
    let end = whole.len() - 22;
    assert!(whole[end..].starts_with(b"PK\x05\x06"));
    let number = |at: usize, bytes: usize| {
        let mut wide = [0; 8];
        wide[..bytes].copy_from_slice(&whole[end + at..end + at + bytes]);
        wide
    };
    let (count, bytes, start) = (number(10, 2), number(12, 4), number(16, 4));
    let record = [
        b"PK\x06\x06",
        &44u64.to_le_bytes()[..],
        &[45, 0, 45, 0],
        &[0; 8],
        &count,
        &count,
        &bytes,
        &start,
    ];
    let locator = [b"PK\x06\x07", &[0; 4][..], &(end as u64).to_le_bytes(), &1u32.to_le_bytes()];
    let last = [b"PK\x05\x06", &[0; 4][..], &[255; 12], &[0; 2]];
    let wide = [&whole[..end], &record.concat(), &locator.concat(), &last.concat()].concat();
    let file =
        Scratch(std::env::temp_dir().join(format!("tracecast-{}-wide.pt2", std::process::id())));
    std::fs::write(&file.0, wide).unwrap();
    assert_eq!(pt2::open(&file.0).unwrap().exported().inputs().len(), 1);
}
