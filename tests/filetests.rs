//! Tests that are text: each file of `tests/filetests` is a command, graphs, and what the command
//! is expected to print about each of them.
//!
//! ```text
//! test parse show=scopes              ; the command of the file and its options
//!
//! graph @g(%x: f32[]) {               ; a case: from its first line to the `}` at the beginning of a line, or to the `;;` lines
//!   …
//! }
//! ;; graph @g(%x: f32[]) {            ; what is expected of it; TRACECAST_BLESS=1 writes these lines
//! ```
//!
//! Every case sees the lines `region`, `size` and `guard` of the file's head. Line numbers in its
//! errors are those of the file.

#[path = "filetests/commands.rs"]
mod commands;
#[path = "filetests/devices.rs"]
mod devices;
#[path = "filetests/values.rs"]
mod values;

use libtest_mimic::{Arguments, Failed, Trial};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    let bless = std::env::var_os("TRACECAST_BLESS").is_some();
    let trials = files(&root).into_iter().map(|path| {
        let name = path.strip_prefix(&root).expect("found below the root").with_extension("");
        let name = name.to_string_lossy().replace('\\', "/");
        Trial::test(name, move || run(&path, bless).map_err(Failed::from))
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// The files below a folder that end in `.tc`, sorted.
fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("tests/filetests can be read") {
            let path = entry.expect("an entry of a folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "tc") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn run(path: &Path, bless: bool) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|e| e.to_string())?.replace("\r\n", "\n");
    let (file, found) = outputs(&text)?;
    if bless {
        let blessed = bless_until_stable(&file, &found)?;
        return if blessed == text {
            Ok(())
        } else {
            fs::write(path, blessed).map_err(|e| e.to_string())
        };
    }
    let differences =
        file.cases.iter().zip(&found).filter_map(|(case, found)| difference(case, found));
    let wrong: Vec<String> = differences.collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// The file, and the lines that its command prints about each of its cases.
fn outputs(text: &str) -> Result<(TestFile, Vec<Vec<String>>), String> {
    let file = TestFile::read(text)?;
    let command = commands::find(&file.command)?;
    let mut found = Vec::new();
    for case in &file.cases {
        let output = command(&file, case).map_err(|e| format!("line {}: {e}", case.first + 1))?;
        found.push(output.lines().map(|line| line.trim_end().to_owned()).collect());
    }
    Ok((file, found))
}

/// The text with what was found. Errors name lines of the file, and these move with what is written
/// between the cases.
fn bless_until_stable(file: &TestFile, found: &[Vec<String>]) -> Result<String, String> {
    let mut blessed = file.blessed(found);
    for _ in 0..4 {
        let (file, found) = outputs(&blessed)?;
        let again = file.blessed(&found);
        if again == blessed {
            return Ok(blessed);
        }
        blessed = again;
    }
    Err("what is printed changes each time that it is written into the file".to_owned())
}

/// A file taken apart.
pub(crate) struct TestFile {
    /// The word behind `test`.
    pub(crate) command: String,
    /// The words behind it: `name=value`, or a flag.
    pub(crate) options: Vec<String>,
    /// In order.
    pub(crate) cases: Vec<Case>,
}

/// One graph, or text that is to be none, and what is expected of it.
#[derive(Default)]
pub(crate) struct Case {
    /// The number of the first line, counted from 0.
    pub(crate) first: usize,
    /// Its lines as they are in the file.
    pub(crate) lines: Vec<String>,
    /// What is given to the parser: its lines at their places in the file, below the lines of the
    /// file's head.
    pub(crate) text: String,
    /// The lines behind `;;`.
    expected: Vec<String>,
}

impl TestFile {
    fn read(text: &str) -> Result<TestFile, String> {
        let lines: Vec<&str> = text.lines().collect();
        let head = lines.iter().take_while(|line| !line.starts_with("graph"));
        let words = ["region ", "size ", "guard "];
        let of_head = |line: &str| words.iter().any(|word| line.starts_with(word));
        let head: Vec<(usize, &str)> =
            head.copied().enumerate().filter(|(_, line)| of_head(line)).collect();
        let tests: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("test ")).collect();
        let [test] = tests[..] else {
            return Err(format!("expected one line `test COMMAND`, found {}", tests.len()));
        };
        let test = test.split(';').next().unwrap_or_default();
        let mut words = test.split_whitespace().map(str::to_owned);
        let command = words.next().ok_or("expected a command behind `test`")?;
        let mut file = TestFile { command, options: words.collect(), cases: cases(&lines) };
        for case in &mut file.cases {
            let mut placed = vec![""; case.first];
            for (at, of_head) in &head {
                if let Some(line) = placed.get_mut(*at) {
                    *line = of_head;
                }
            }
            placed.extend(case.lines.iter().map(String::as_str));
            case.text = placed.join("\n") + "\n";
        }
        Ok(file)
    }

    /// The value of the option `name=value`.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find_map(|o| o.strip_prefix(name)?.strip_prefix('='))
    }

    /// Whether the option stands alone.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.options.iter().any(|o| o == name)
    }

    /// Refuses options that a command does not know.
    pub(crate) fn knows(&self, names: &[&str]) -> Result<(), String> {
        let name = |option: &str| option.split('=').next().unwrap_or_default().to_owned();
        match self.options.iter().find(|o| !names.contains(&name(o).as_str())) {
            Some(unknown) => Err(format!(
                "`test {}` has no option `{unknown}`: it has {}",
                self.command,
                names.join(", ")
            )),
            None => Ok(()),
        }
    }

    /// The text of the file with what was found in the place of what was expected.
    fn blessed(&self, found: &[Vec<String>]) -> String {
        let mut out = String::new();
        for (case, found) in self.cases.iter().zip(found) {
            if !out.is_empty() {
                out.push('\n');
            }
            for line in &case.lines {
                out.push_str(line);
                out.push('\n');
            }
            for line in found {
                out.push_str(format!(";; {line}").trim_end());
                out.push('\n');
            }
        }
        out
    }
}

/// Splits a file at what is expected of each case, and behind each `}` at the beginning of a line.
fn cases(lines: &[&str]) -> Vec<Case> {
    let mut cases = vec![Case::default()];
    let mut closed = false;
    for (number, line) in lines.iter().enumerate() {
        let last = cases.last_mut().expect("begins with one");
        if let Some(expected) = line.strip_prefix(";;") {
            last.expected
                .push(expected.strip_prefix(' ').unwrap_or(expected).trim_end().to_owned());
            closed = true;
        } else if !closed {
            last.lines.push((*line).to_owned());
            closed = line.starts_with('}');
        } else if !line.trim().is_empty() {
            cases.push(Case { first: number, lines: vec![(*line).to_owned()], ..Case::default() });
            closed = line.starts_with('}');
        }
    }
    for case in &mut cases {
        while case.lines.last().is_some_and(|line| line.trim().is_empty()) {
            case.lines.pop();
        }
    }
    cases
}

/// What was expected and what was found, if they differ.
fn difference(case: &Case, found: &[String]) -> Option<String> {
    if case.expected == found {
        return None;
    }
    let same = case.expected.iter().zip(found).take_while(|(a, b)| a == b).count();
    let mut out = format!(
        "the case on line {} differs from line {} of what is expected on:\n",
        case.first + 1,
        same + 1
    );
    for line in &found[..same] {
        out.push_str(&format!("    {line}\n"));
    }
    for line in &case.expected[same..] {
        out.push_str(&format!("  - {line}\n"));
    }
    for line in &found[same..] {
        out.push_str(&format!("  + {line}\n"));
    }
    out.push_str("run with TRACECAST_BLESS=1 to accept what was found (+)");
    Some(out)
}
