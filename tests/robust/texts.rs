//! Text that is no program, and programs of unusual size.

use crate::mutate::tokens;
use crate::outcome::{Outcome, caught, devices, follow};
use crate::support::dice::Dice;
use crate::support::random::program;
use std::fmt::Write;
use std::time::{Duration, Instant};
use tracecast_ir::ops::view;
use tracecast_ir::text::{self, ParseOptions};
use tracecast_ir::{DType, TensorType, Tracer};

/// Parses; the error, if any, is at a place of the text.
fn parsed(text: &str) {
    let start = Instant::now();
    let result = caught(|| (text::parse(text), text::parse_file(text, &ParseOptions::default())));
    let (one, file) = result.unwrap_or_else(|e| panic!("{e}\n{text}"));
    for error in [one.err(), file.err()].into_iter().flatten() {
        let line = text.lines().nth(error.line - 1).unwrap_or_default();
        let inside = error.column <= line.chars().count() + 1
            && error.length >= 1
            && !error.message.is_empty();
        assert!(inside && error.message.len() < 1000, "{error:?}\n{text}");
    }
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{} bytes took {:?}",
        text.len(),
        start.elapsed()
    );
}

#[test]
fn any_bytes_are_text_or_an_error() {
    let mut dice = Dice::new(1);
    let pieces = [
        "graph @g(",
        "%x: f32[2]",
        ") {",
        "}",
        "\n",
        " ",
        "%0 = ",
        "add ",
        "\"",
        "\\",
        "é",
        "\u{feff}",
        "\0",
        "; ",
        "-",
        "region #1 = ",
    ];
    for _ in 0..4000 {
        let mut text = String::new();
        for _ in 0..dice.below(40) {
            match dice.below(3) {
                0 => text.push_str(dice.pick(&pieces)),
                1 => text.push(char::from(dice.below(128) as u8)),
                _ => text.push(char::from_u32(dice.below(0x11_0000) as u32).unwrap_or('\u{fffd}')),
            }
        }
        parsed(&text);
    }
    for _ in 0..500 {
        let bytes: Vec<u8> = (0..dice.below(200)).map(|_| dice.below(256) as u8).collect();
        parsed(&String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn truncated_text_is_an_error_at_its_end() {
    for seed in 0..6 {
        let text = program(seed, 12).to_string();
        for (at, _) in text.char_indices() {
            parsed(&text[..at]);
            let whole = text[at..].trim() == "";
            assert!(whole || text::parse(&text[..at]).is_err(), "{}", &text[..at]);
        }
        let tokens = tokens(&text);
        for at in 0..tokens.len() {
            parsed(&[&tokens[..at], &tokens[at + 1..]].concat().concat());
        }
    }
}

/// A program of that many equal lines.
fn chain(lines: usize, line: impl Fn(usize) -> String) -> String {
    let mut text = "graph @long(%x: f32[3] param) {\n  %0 = relu %x : f32[3]\n".to_owned();
    for i in 1..lines {
        writeln!(text, "  %{i} = {}", line(i)).unwrap();
    }
    write!(text, "  return y = %{}\n}}", lines - 1).unwrap();
    text
}

#[test]
fn long_programs_neither_overflow_the_stack_nor_take_for_ever() {
    let devices = devices();
    let cases = [
        chain(3000, |i| format!("add %{}, %x : f32[3]", i - 1)),
        chain(1000, |i| format!("exp %{} : f32[3]", i - 1)),
        chain(400, |i| format!("softmax %{} {{dim = 0}} : f32[3]", i - 1)),
        chain(3000, |i| format!("detach %{} : f32[3]", i - 1)),
        chain(3000, |i| {
            if i == 2999 {
                "add %0, %2998 : f32[3]".to_owned()
            } else {
                "mul %x, %x : f32[3]".to_owned()
            }
        }),
    ];
    for text in cases {
        let start = Instant::now();
        let graph = text::parse(&text).unwrap();
        let outcome = caught(|| follow(&graph, &devices, &mut Dice::new(1))).and_then(|r| r);
        assert_eq!(outcome, Ok(Outcome::Computed), "{}", text.lines().nth(2).unwrap());
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{} took {:?}",
            text.lines().nth(2).unwrap(),
            start.elapsed()
        );
    }
}

#[test]
fn what_is_computed_again_does_not_grow_without_bound() {
    // Each step reads what is before it at two places.
    let mut size = 1 << 14;
    let mut text = format!("graph @pairwise(%0: f32[{size}]) {{\n");
    let mut last = 0;
    while size > 1 {
        for start in [0, 1] {
            let next = last + start + 1;
            writeln!(text, "  %{next} = slice %{last} {{dim = 0, start = {start}, end = {size}, step = 2}} : f32[{}]", size / 2).unwrap();
        }
        writeln!(text, "  %{} = add %{}, %{} : f32[{}]", last + 3, last + 1, last + 2, size / 2)
            .unwrap();
        (last, size) = (last + 3, size / 2);
    }
    // Each step is padded with twice what is before it.
    let padded: String =
        (0..40).map(|i| format!("  %p{} = add %p{i}, %p{i} : f32[3]\n", i + 1)).collect();
    let padded = format!(
        "graph @padded(%p0: f32[3]) {{\n{padded}  %q = pad %p40 {{low = [1], high = [0], value = 0.0}} : f32[4]\n  return y = %q\n}}"
    );
    for text in [format!("{text}  return y = %{last}\n}}"), padded] {
        let start = Instant::now();
        let graph = text::parse(&text).unwrap();
        assert_eq!(follow(&graph, &devices(), &mut Dice::new(4)), Ok(Outcome::Computed));
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{} took {:?}",
            graph.name(),
            start.elapsed()
        );
    }
}

#[test]
fn deep_gradients_are_recorded() {
    let tracer = Tracer::new("deep");
    let x = tracer.param("x", TensorType::new(DType::F32, [2]));
    let y = (0..2000).fold(x, |y, _| y * 0.999);
    let loss = tracecast_ir::ops::prelude::Reductions::sum(y, ());
    for (i, g) in tracer.grad(loss, &[x]).into_iter().enumerate() {
        tracer.output(&format!("g{i}"), g);
    }
    let graph = tracer.finish().unwrap();
    assert_eq!(follow(&graph, &devices(), &mut Dice::new(2)), Ok(Outcome::Computed));
}

#[test]
fn more_operands_than_an_op_takes() {
    let tracer = Tracer::new("wide");
    let x = tracer.input("x", TensorType::new(DType::F32, [1]));
    view::cat(&vec![x; 65_536], 0);
    let error = tracer.finish().unwrap_err().to_string();
    assert!(error.contains("cat: takes at most 65535 values, found 65536"), "{error}");
    let many = vec!["%x"; 65_536].join(", ");
    parsed(&format!(
        "graph @g(%x: f32[1]) {{\n %0 = cat [{many}] {{dim = 0}} : f32[65536]\n return y = %0\n}}"
    ));
}

#[test]
fn long_names_deep_ranks_and_many_errors() {
    let name = "n".repeat(1 << 20);
    parsed(&format!("graph @{name}(%{name}: f32[1]) {{ return {name} = %{name}x }}"));
    parsed(&format!("graph @g(%x: f32[{}]) {{ }}", vec!["1"; 100_000].join(", ")));
    parsed(&format!("graph @g(%x: f32[{}]) {{ }}", vec!["2"; 64].join(", ")));
    parsed(&"(".repeat(1 << 20));
    parsed(&format!(
        "graph @g() {{ %0 = constant {{dtype = f32, shape = [3], data = [{}]}} : f32[3] }}",
        vec!["1"; 100_000].join(", ")
    ));
    let graph = text::parse(&format!(
        "graph @g(%x: f32[{0}]) {{\n %0 = exp %x : f32[{0}]\n %1 = sum %0 {{dim = [3]}} : f32[{1}]\n return y = %1\n}}",
        vec!["1"; 200].join(", "),
        vec!["1"; 199].join(", ")
    ));
    assert_eq!(follow(&graph.unwrap(), &devices(), &mut Dice::new(3)), Ok(Outcome::Computed));
}
