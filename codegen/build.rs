//! Gives the crate a hash of the sources that decide what code a kernel becomes, in
//! `TRACECAST_COMPILER`: kept code of another compiler is not used.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() -> io::Result<()> {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    // The second is there in the repository only; elsewhere its crate has the version of this one.
    let folders = [here.join("src"), here.join("../ir/src/kernel")];
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut out = io::stdout().lock();
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        writeln!(out, "cargo::rerun-if-changed={}", folder.display())?;
        let mut files = Vec::new();
        collect(folder, &mut files)?;
        files.sort();
        for file in files {
            for byte in fs::read(file)? {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
    }
    writeln!(out, "cargo::rustc-env=TRACECAST_COMPILER={hash:016x}")
}

/// The Rust sources in a folder and those below it.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    Ok(())
}
