//! `BENCHMARKS.md`, `docs/measurements.md` and the figure of the README are what the files of
//! `benches/results` give; `TRACECAST_BLESS=1 cargo test --test benchmarks` writes them.
//!
//! A result file states title, note, command, machine, date, commit, the columns to show and the
//! rows that were measured.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// What is written by hand, with a line `{{name}}` for each result file, and the page made of it.
const PAGES: [(&str, &str); 2] = [
    ("benches/results/page.md", "BENCHMARKS.md"),
    ("benches/results/parts.md", "docs/measurements.md"),
];

/// The width of text, in characters.
const WIDTH: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn read(path: &str) -> String {
    let text = fs::read_to_string(root().join(path));
    text.unwrap_or_else(|error| panic!("{path}: {error}")).replace("\r\n", "\n")
}

/// The result file of this name.
fn results(name: &str) -> Value {
    let path = format!("benches/results/{name}.json");
    serde_json::from_str(&read(&path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Compares a file with what it must be, or writes it when blessing.
fn is_fresh(path: &str, expected: &str) {
    if std::env::var_os("TRACECAST_BLESS").is_some() {
        fs::write(root().join(path), expected).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    assert!(
        read(path) == expected,
        "{path} is stale: TRACECAST_BLESS=1 cargo test --test benchmarks writes it"
    );
}

#[test]
fn the_pages_are_what_the_results_give() {
    for (template, page) in PAGES {
        let mut written = String::new();
        for line in read(template).lines() {
            match line.strip_prefix("{{").and_then(|line| line.strip_suffix("}}")) {
                Some(name) => written += &section(&results(name)),
                None => written += &format!("{line}\n"),
            }
        }
        is_fresh(page, &written);
    }
}

#[test]
fn every_result_file_is_on_a_page() {
    let templates = PAGES.map(|(template, _)| read(template)).concat();
    for entry in fs::read_dir(root().join("benches/results")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if let Some(name) = name.strip_suffix(".json") {
            assert!(templates.contains(&format!("{{{{{name}}}}}\n")), "{name}");
        }
    }
}

#[test]
fn the_figure_is_what_the_results_give() {
    is_fresh("docs/training-step.svg", &figure(&results("models")));
}

fn text<'a>(results: &'a Value, key: &str) -> &'a str {
    results[key].as_str().unwrap_or_else(|| panic!("a result file has no text {key}"))
}

/// A heading, what was measured and where, and the table.
fn section(results: &Value) -> String {
    let mut out = format!("## {}\n\n", text(results, "title"));
    let note = format!(
        "{} `{}`. {}. {}, commit {}.",
        text(results, "note"),
        text(results, "command"),
        text(results, "machine"),
        text(results, "date"),
        text(results, "commit")
    );
    fill(&mut out, &note);
    let columns = results["columns"].as_array().expect("a result file has columns");
    let names: Vec<&str> = columns.iter().map(|column| text(column, "name")).collect();
    writeln!(out, "\n| {} |\n|{}", names.join(" | "), "---|".repeat(names.len())).unwrap();
    for row in results["rows"].as_array().expect("a result file has rows") {
        let cells: Vec<String> = columns.iter().map(|column| cell(row, column)).collect();
        writeln!(out, "| {} |", cells.join(" | ")).unwrap();
    }
    out
}

/// Writes words as lines of at most [`WIDTH`] characters.
fn fill(out: &mut String, words: &str) {
    let mut length = 0;
    for word in words.split(' ') {
        let more = word.chars().count();
        let separator = match length {
            0 => "",
            _ if length + 1 + more > WIDTH => "\n",
            _ => " ",
        };
        length = if separator == " " { length + 1 + more } else { more };
        *out += separator;
        *out += word;
    }
    out.push('\n');
}

/// What a row has in a column.
fn cell(row: &Value, column: &Value) -> String {
    let scale = column["scale"].as_f64().unwrap_or(1.0);
    let digits = column["digits"].as_u64().map(|digits| digits as usize);
    match row.pointer(text(column, "at")) {
        None => "–".to_owned(),
        Some(Value::Array(turns)) => {
            let turns: Vec<String> = turns.iter().map(|turn| shown(turn, scale, digits)).collect();
            turns.join(", ")
        }
        Some(value) => shown(value, scale, digits),
    }
}

/// A number with so few digits that noise is left out, with separators of thousands, or a text.
fn shown(value: &Value, scale: f64, digits: Option<usize>) -> String {
    if value.is_i64() && digits != Some(0) {
        return value.to_string();
    }
    let Some(number) = value.as_f64().map(|number| number * scale) else {
        return value.as_str().expect("a cell is a number or a text").to_owned();
    };
    let few = match number.abs() {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    let plain = format!("{number:.*}", digits.unwrap_or(few));
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

#[test]
fn numbers_are_shown_with_few_digits() {
    let shown = |number: f64, digits| shown(&Value::from(number), 1.0, digits);
    assert_eq!(shown(62.632, None), "62.6");
    assert_eq!(shown(1334.49, None), "1,334");
    assert_eq!(shown(0.305, None), "0.30");
    assert_eq!(shown(0.03, Some(3)), "0.030");
    assert_eq!(shown(999.9, None), "1,000");
}

/// Bars: the time of a training step of every network over that of eager PyTorch.
fn figure(models: &Value) -> String {
    const DTYPES: [(&str, &str); 2] = [("f32", "#0072b2"), ("bf16", "#e69f00")];
    const BAR: usize = 11;
    const LEFT: f64 = 170.0;
    /// Pixels of a ratio of 1.
    const UNIT: f64 = 380.0;
    let rows = models["rows"].as_array().expect("the networks have rows");
    let steps: Vec<&Value> = rows.iter().filter(|row| row["mode"] == "train").collect();
    let ratio = |row: &Value| {
        let time = |of: &str| row[of]["median_ms"].as_f64().expect("a median in ms");
        time("tracecast") / time("eager")
    };
    let mut networks: Vec<&str> = Vec::new();
    for row in &steps {
        let network = text(row, "network");
        if !networks.contains(&network) {
            networks.push(network);
        }
    }
    let pitch = 2 * BAR + 12;
    let (top, bottom) = (58, 58 + networks.len() * pitch);
    let mut svg = String::new();
    let height = bottom + 40;
    write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 {height}\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"#222222\">\n\
         <title>Training steps: time over that of eager PyTorch</title>\n\
         <rect width=\"720\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"24\" font-size=\"16\">Time of a training step over that of eager \
         PyTorch 2.15 (shorter is faster)</text>\n"
    )
    .unwrap();
    for (at, (dtype, colour)) in DTYPES.iter().enumerate() {
        let ratios = steps.iter().filter(|row| row["dtype"] == *dtype).map(|row| ratio(row).ln());
        let logarithms: Vec<f64> = ratios.collect();
        let mean = (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp();
        let x = LEFT + 210.0 * at as f64;
        writeln!(
            svg,
            "<rect x=\"{x}\" y=\"36\" width=\"{BAR}\" height=\"{BAR}\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"46\">{dtype}, geometric mean {mean:.2}</text>",
            x + 16.0
        )
        .unwrap();
    }
    for (at, network) in networks.iter().enumerate() {
        let y = top + at * pitch;
        let name = network.replace('_', " ");
        writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>",
            LEFT - 10.0,
            y + 16
        )
        .unwrap();
        for (bar, (dtype, colour)) in DTYPES.iter().enumerate() {
            let row = steps.iter().find(|row| row["network"] == *network && row["dtype"] == *dtype);
            let Some(row) = row else { continue };
            let ratio = ratio(row);
            let y = y + bar * BAR;
            writeln!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{}\" font-size=\"10\">{ratio:.2}</text>",
                UNIT * ratio,
                LEFT + UNIT * ratio + 5.0,
                y + 9
            )
            .unwrap();
        }
    }
    let one = LEFT + UNIT;
    writeln!(
        svg,
        "<line x1=\"{one}\" y1=\"{}\" x2=\"{one}\" y2=\"{bottom}\" stroke=\"#222222\" \
         stroke-dasharray=\"4 3\"/>\n<text x=\"{one}\" y=\"{}\" text-anchor=\"middle\">eager PyTorch\
         </text>\n</svg>",
        top - 6,
        bottom + 18
    )
    .unwrap();
    svg
}
