//! Counts the instructions of 20 compilations and launches on the AVX2 path, by callgrind.
//!
//! Times differ between machines and between runs; instructions hardly do. `cargo test --bench
//! instructions` compares the counts with `counts.txt` and fails where one is more than 2 % higher.
//! `cargo test --bench instructions -- --write` writes the file: after a change that is meant to
//! cost more, or with another compiler. Without valgrind it says so and counts nothing. The counts
//! are of the profile of tests, which is built anyway; generated code is the same in each.
//!
//! The process starts itself under callgrind. That collects inside of [`measured`] alone, and
//! writes a file after each call of it.

mod programs;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use tracecast::{Options, Vectors, compile};

/// The counts that are kept.
const COUNTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions/counts.txt");

/// How much more than kept counts is a failure, in percent.
const MOST: f64 = 2.0;

/// Set where the process runs under callgrind.
const INSIDE: &str = "TRACECAST_INSTRUCTIONS_INSIDE";

/// A program's name, and the instructions of its compilation and of a launch.
type Row = (String, [u64; 2]);

fn main() -> ExitCode {
    if std::env::var_os(INSIDE).is_some() {
        work();
        return ExitCode::SUCCESS;
    }
    // On a program that does nothing: some sandboxes have valgrind and do not let it run.
    let mut nothing = Command::new("valgrind");
    nothing.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "true"]);
    let runs = nothing.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !runs.is_ok_and(|status| status.success()) {
        say("skipped: valgrind is not installed, or does not run here\n");
        return ExitCode::SUCCESS;
    }
    let rows = match counted() {
        Ok(rows) => rows,
        Err(why) => {
            say(&format!("{why}\n"));
            return ExitCode::FAILURE;
        }
    };
    if std::env::args().any(|arg| arg == "--write") {
        std::fs::write(COUNTS, text(&rows)).expect("the file of counts can be written");
        return ExitCode::SUCCESS;
    }
    let kept = std::fs::read_to_string(COUNTS).unwrap_or_default();
    let (report, grew) = compared(&rows, &parsed(&kept));
    say(&report);
    if grew { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What programs are compiled for: one thread, and what most x86-64 processors have.
fn options() -> Options {
    Options::new().threads(1).compile_threads(1).vectors(Vectors::Avx2).keep_weights(false)
}

/// Compiles and runs each program.
fn work() {
    let options = options();
    for mut work in programs::all(&options) {
        let inputs: Vec<_> = work.inputs.iter().map(|(name, value)| (*name, value)).collect();
        let mut graph = Some(work.graph);
        let mut program = None;
        measured(&mut || program = graph.take().map(|graph| compile(graph, &options)));
        let program = program.expect("a graph").expect("code");
        let mut run = || drop(program.run(&mut work.store, &inputs).expect("a run"));
        // The first run allocates what later ones reuse.
        run();
        measured(&mut run);
    }
}

/// Runs what callgrind counts. It finds this function by its name.
#[inline(never)]
fn measured(work: &mut dyn FnMut()) {
    work();
    std::hint::black_box(&work);
}

/// Runs this process under callgrind and reads what it counted.
fn counted() -> Result<Vec<Row>, String> {
    let folder = std::env::temp_dir().join(format!("tracecast-counts-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|why| why.to_string())?;
    let result = counted_in(&folder);
    std::fs::remove_dir_all(&folder).map_err(|why| why.to_string())?;
    result
}

fn counted_in(folder: &Path) -> Result<Vec<Row>, String> {
    let own = std::env::current_exe().map_err(|why| why.to_string())?;
    let done = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no"])
        .args(["--toggle-collect=instructions::measured", "--dump-after=instructions::measured"])
        .arg(format!("--callgrind-out-file={}", folder.join("out").display()))
        .arg(own)
        .env(INSIDE, "1")
        .stdout(Stdio::null())
        .output()
        .map_err(|why| why.to_string())?;
    if !done.status.success() {
        return Err(format!("callgrind failed: {}", String::from_utf8_lossy(&done.stderr)));
    }
    let total = |number: usize| total(&folder.join(format!("out.{number}")));
    let row = |(i, program): (usize, programs::Work)| {
        Ok((program.name, [total(2 * i + 1)?, total(2 * i + 2)?]))
    };
    programs::all(&options()).into_iter().enumerate().map(row).collect()
}

/// The instructions that a file of callgrind states.
fn total(path: &PathBuf) -> Result<u64, String> {
    let file = std::fs::read_to_string(path).map_err(|why| format!("{}: {why}", path.display()))?;
    let total = file.lines().find_map(|line| line.strip_prefix("totals: "));
    let total = total.and_then(|total| total.trim().parse().ok());
    total.ok_or_else(|| format!("{} states no total", path.display()))
}

/// The file of counts.
fn text(rows: &[Row]) -> String {
    let mut text =
        "# Instructions in the profile of tests: compilation, launch, program.\n".to_owned();
    for (name, [compiled, launched]) in rows {
        writeln!(text, "{compiled:12} {launched:12}  {name}")
            .expect("text takes all that is written");
    }
    text
}

fn parsed(text: &str) -> Vec<Row> {
    let row = |line: &str| {
        let (compiled, rest) = line.trim_start().split_once(' ')?;
        let (launched, name) = rest.trim_start().split_once(' ')?;
        let name = name.trim().to_owned();
        Some((name, [compiled.parse().ok()?, launched.parse().ok()?]))
    };
    text.lines().filter_map(row).collect()
}

/// A table of both, and whether a count grew by too much, or is not kept.
fn compared(rows: &[Row], kept: &[Row]) -> (String, bool) {
    let mut report = String::new();
    let mut grew = false;
    for (name, now) in rows {
        let before = kept.iter().find(|(known, _)| known == name).map(|(_, before)| before);
        write!(report, "{name:32}").expect("text takes all that is written");
        for (i, what) in ["compile", "launch"].into_iter().enumerate() {
            let change = before.map(|before| 100.0 * (now[i] as f64 / before[i] as f64 - 1.0));
            let shown = change.map_or("not kept".to_owned(), |change| format!("{change:+.2} %"));
            let is_wrong = change.is_none_or(|change| change > MOST);
            grew |= is_wrong;
            let mark = if is_wrong { " <- more" } else { "" };
            write!(report, "  {what} {:>12} {shown:>9}{mark}", now[i])
                .expect("text takes all that is written");
        }
        report.push('\n');
    }
    (report, grew)
}

fn say(text: &str) {
    std::io::stdout().write_all(text.as_bytes()).expect("a place to write to");
}
