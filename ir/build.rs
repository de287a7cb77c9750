//! Lists the files of `src/policy/tables`, so that a table of a later version is a new file there
//! and nothing else.

use std::io::Write;
use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default())
        .join("src/policy/tables");
    writeln!(io::stdout(), "cargo::rerun-if-changed={}", folder.display())?;
    let paths: io::Result<Vec<_>> = fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    let files: String = paths.iter().map(|path| format!("    include_str!({path:?}),\n")).collect();
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("tables.rs");
    fs::write(out, format!("&[\n{files}]\n"))
}
