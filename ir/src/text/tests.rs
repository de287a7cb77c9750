//! Round trips, errors and their places, hostile input, speed.

use super::*;
use crate::op::OpRef;
use crate::ops::elementwise::Elementwise;
use crate::policy::{DeviceType, Region};
use crate::{Args, Attrs, DType, Role, Source, TensorType, Tracer, Var};
use std::sync::Arc;
use std::time::{Duration, Instant};

const EVERYTHING: &str = r#"tracecast 1

region #1 = {cpu: bf16} cache on scope 1
region #2 = {cpu: off f16, cuda: f16} cache off scope 7

graph @"every part"(%x: f32[2, 3] grad on cuda, %layer.0.w: f32[3] param, %"0": i64[] state, %"": bool[0, 4]) {
  %0 = mul %x, %layer.0.w : f32[2, 3] @#1 in "encoder.0" at "src/main.rs:3:7"
  %1 = mul %0, none {scalar = -0.5} : f32[2, 3]
  %2 = constant {data = [1.0, -inf, nan, 1e-45, 1e300, -0.0], dtype = f64, shape = [2, 3]} : f64[2, 3] in "a \"b\"\n"
  %3 = constant {dtype = i64, shape = [], value = 3.0} : i64[]
  %4 = sum %1 {dim = [-1], dtype = f64, keepdim = true} : f64[2, 1] @#2
  %5 = sum %x {dim = []} : f32[]
  %6, %7 = grad %5, [%x, %layer.0.w] : f32[2, 3], f32[3]
  update %"0" = %3
  return y = %1, "two words" = %4, z = %2
}
"#;

#[test]
fn everything_round_trips() {
    assert_eq!(parse(EVERYTHING).unwrap().to_string(), EVERYTHING);
}

#[test]
fn traced_programs_round_trip() {
    let t = Tracer::new("step");
    let (region, _) = Region::default().enter(DeviceType::Cpu, None, true, None).unwrap();
    let x = t.port("x", TensorType::new(DType::F32, [4, 3]), Role::Input, true, DeviceType::Cpu);
    let y = t.scope("block", || t.in_region(&region, || x.mul(x)));
    let late = t.param("w", TensorType::new(DType::BF16, [3]));
    let z = t.at(Source::Unknown, || y.add(late));
    t.update(late, t.full(late.ty(), f64::NAN));
    t.output("z", z);
    let text = t.finish().unwrap().to_string();
    assert!(text.contains("text/tests.rs:"), "{text}");
    assert_eq!(parse(&text).unwrap().to_string(), text);
}

#[test]
fn the_printer_hides_what_it_is_told_to() {
    let graph = parse(EVERYTHING).unwrap();
    let golden = Printer::GOLDEN.print(&graph);
    assert!(golden.starts_with("graph @"), "{golden}");
    for hidden in ["@#1", "region", " in \"", " at \"", "tracecast"] {
        assert!(!golden.contains(hidden), "{hidden}");
    }
    let scopes = Printer { scopes: true, ..Printer::GOLDEN }.print(&graph);
    assert!(scopes.contains(" in \"encoder.0\"\n"), "{scopes}");
}

#[test]
fn explicit_texts_get_their_casts() {
    let text = "graph @g(%x: f16[3], %y: f32[]) { %0 = add %x, %y : f32[3] return z = %0 }";
    assert!(parse(text).is_err(), "a scalar does not promote");
    let text = "graph @g(%x: f16[3], %y: f32[1]) { %0 = add %x, %y : f32[3] return z = %0 }";
    let explicit = ParseOptions { explicit: true, ..ParseOptions::default() };
    let graph = Printer::GOLDEN.print(&parse_with(text, &explicit).unwrap());
    assert!(graph.contains("cast %x {to = f32} : f32[3]"), "{graph}");
    assert_eq!(Printer::GOLDEN.print(&parse_with(&graph, &explicit).unwrap()), graph);
}

#[test]
fn lines_know_their_file() {
    let options = ParseOptions { file: Some("a.tc".to_owned()), ..ParseOptions::default() };
    let graph =
        parse_with("; one\ngraph @g(%x: f32[])\n{ %0 = neg\n %x : f32[] }", &options).unwrap();
    let sources: Vec<_> = graph.nodes().map(|id| graph.node(id).source.to_string()).collect();
    assert_eq!(sources, ["a.tc:2", "a.tc:3"]);
}

#[test]
fn files_hold_commands_and_several_graphs() {
    let text = "tracecast 1\ntest a b=c ; why\nregion #4 = {cuda: f16} cache on scope 1\ngraph @a() {}\n;; x\ngraph @b() {}";
    let file = parse_file(text, &ParseOptions::default()).unwrap();
    assert_eq!((file.commands, file.graphs.len()), (vec!["a b=c".to_owned()], 2));
    assert!(file.graphs.iter().all(|g| g.regions().len() == 2));
    assert!(parse(text).unwrap_err().message.contains("nothing after the graph"));
}

/// A text in which `‹…›` marks the place of the error.
fn fails(marked: &str, says: &str) {
    let text = marked.replace(['‹', '›'], "");
    let before = marked.split('‹').next().unwrap();
    let inside = marked.split(['‹', '›']).nth(1).unwrap_or("");
    let error = parse(&text).expect_err(marked);
    let column = before.rsplit('\n').next().unwrap().chars().count() + 1;
    let place = (before.matches('\n').count() + 1, column, inside.chars().count().max(1));
    assert_eq!((error.line, error.column, error.length), place, "{marked}: {error}");
    assert!(error.message.contains(says), "{marked}: {error}");
}

#[test]
fn errors_of_files() {
    fails("‹›", "expected `graph`, `region` or `test`, found the end");
    fails("tracecast ‹2›\ngraph @g() {}", "version 2");
    fails("tracecast ‹x›", "the version of the text");
    fails("graph @g() {}\n\n‹graph› @h() {}", "nothing after the graph, found `graph`");
    fails("‹kernel› @k map() {}", "printed but not read");
    fails("graph @g() {} ‹é›", "no meaning");
    fails("region ‹1› = {} cache on scope 1", "`#`");
    fails("region #‹0› = {} cache on scope 1", "everything off");
    fails("region #1 = ‹{cpu: b16} cache on scope 1› ; x", "`b16`");
    fails("region #1 = {} cache on scope 1\nregion #‹1› = {} cache on scope 1", "already");
    fails("region #‹99999999999› = {}", "too large");
    fails("graph ‹g›() {}", "`@`");
    fails("graph @g ‹{›}", "`(` before the ports");
    fails("‹tracecasts› 1", "`graph`, `region` or `test`");
}

#[test]
fn errors_of_ports() {
    fails("graph @g(%x: ‹f31›[]) {}", "did you mean `f32`");
    fails("graph @g(%x: f32[‹-1›]) {}", "a size, found `-1`");
    fails("graph @g(%x: f32[‹99999999999999999999999›]) {}", "too large");
    fails("graph @g(%x: ‹f32[9999999999, 9999999999]›) {}", "too many elements");
    fails("graph @g(%x: f32[2 ‹3›]) {}", "`,` or `]`");
    fails("graph @g(%x: f32[], ‹%x›: f32[]) {}", "two ports");
    fails("graph @g(%x: f32[] ‹params›) {}", "`param`");
    fails("graph @g(%x: f32[] param ‹state›) {}", "one of `param` and `state`");
    fails("graph @g(%x: f32[] on ‹gpu›) {}", "`gpu`");
    fails("graph @g(‹%x›: i64[] param) {}", "floating point");
    fails("graph @g(‹%x›: c64[]) {}", "no kernels");
    fails("graph @g(%x ‹y›: f32[])", "`:`");
    fails("graph @g(‹x›: f32[]) {}", "a port such as");
    fails("graph @g(%x: f32[] ‹{›}", "`,` or `)`");
    fails("graph @g(‹%\"a\\q\"›: f32[]) {}", "escape `\\q`");
    fails("graph @g(‹%\"\\u{110000}\"›: f32[]) {}", "character's number");
    fails("graph @g(‹%\"abc: f32[])›\n{}", "closing");
}

/// [`fails`] with a line of a graph that has the ports `%x`, `%w` and `%i`.
fn line_fails(line: &str, says: &str) {
    fails(&format!("graph @g(%x: f32[2, 3], %w: f32[3] param, %i: i64[3]) {{\n  {line}\n}}"), says);
}

#[test]
fn errors_of_lines() {
    line_fails("%0 = ‹negg› %x : f32[2, 3]", "unknown op `negg`: did you mean `neg`?");
    line_fails("%0 = neg ‹%y› : f32[2, 3]", "`%y` is not defined");
    line_fails(
        "%first = neg %x : f32[2, 3] %0 = neg ‹%frst› : f32[2, 3]",
        "did you mean `%first`?",
    );
    line_fails("‹%x› = neg %x : f32[2, 3]", "there is a `%x` already");
    line_fails(
        "%0 = neg %x : ‹f32[2, 4]›",
        "expected f32[2, 3], the type that `neg` gives, found f32[2, 4]",
    );
    line_fails("%0 = neg %x\n‹}›", "expected `,`, `{` or `:`");
    line_fails("%0 = ‹add› %x, %w, %w : f32[2, 3]", "operands");
    line_fails("%0 = ‹neg› : f32[2, 3]", "operand");
    line_fails("%0 = ‹add› %x, %x {scalar = 1.0} : f32[2, 3]", "add: ");
    line_fails("%0 = neg ‹[›%x] : f32[2, 3]", "operand `x` of `neg` is one value, not a list");
    line_fails("%0 = grad %x, ‹%w› : f32[3]", "in brackets");
    line_fails("%0, %1 = ‹neg› %x : f32[2, 3]", "`neg` has 1 results, found 2 names and 1 types");
    line_fails("‹0› = neg %x : f32[2, 3]", "`%name = op …`");
    line_fails("%0 ‹neg› %x : f32[2, 3]", "`=`");
    line_fails("%0 = neg %x : f32[2, 3] ‹extra›", "`%name = op …`");
    line_fails("%0 = neg %x : f32[2, 3] @#‹3›", "no region #3");
    line_fails("%0 = neg %x : f32[2, 3] in ‹encoder›", "in quotes");
    line_fails("%0 = neg %x : f32[2, 3] at ‹\"main.rs›", "closing");
    line_fails("%0 = ‹input› : f32[2, 3]", "stands for a port");
    line_fails("update ‹%x› = %x", "only a parameter");
    line_fails("update ‹%w› = %x", "`w` is f32[3], its next value f32[2, 3]");
    line_fails("update %w = %w update ‹%w› = %w", "twice");
    line_fails("return y = %x, ‹y› = %x", "already a result");
    line_fails("return y ‹%x›", "`=`");
    fails(
        "graph @g(%x: f32[]) {\n  return y = %x\n‹›",
        "the graph that begins on line 1 is not closed",
    );
}

#[test]
fn errors_of_attributes() {
    line_fails("%0 = neg %x {‹to› = f16} : f32[2, 3]", "`neg` has no attribute `to`: it has none");
    line_fails("%0 = cast %x {‹dtype› = f16} : f32[2, 3]", "it has `to`");
    line_fails("%0 = cast %x {to = f16, ‹to› = f16} : f32[2, 3]", "given twice");
    line_fails("%0 = ‹cast› %x {to = 3} : f32[2, 3]", "attribute `to`");
    line_fails("%0 = ‹cast› %x : f32[2, 3]", "attribute `to` is missing");
    line_fails("%0 = cast %x {to = ‹f33›} : f32[2, 3]", "a dtype");
    line_fails("%0 = cast %x {to = f16 ‹:› f32[2, 3]", "`,` or `}`");
    line_fails("%0 = sum %x {dim = [1, ‹x›]} : f32[2]", "expected a number, found `x`");
    line_fails("%0 = sum %x {dim = [‹9223372036854775808›]} : f32[2]", "64 bits");
    line_fails("%0 = mul %x {scalar = ‹1e999›} : f32[2, 3]", "write `inf`");
    line_fails("%0 = mul %x {scalar = ‹1.2.3›} : f32[2, 3]", "a number");
    line_fails("%0 = mul %x {scalar = ‹0x1p›} : f32[2, 3]", "a number");
    line_fails("%0 = mul %x {scalar = ‹-›} : f32[2, 3]", "a number");
    line_fails("%0 = kernel [%x] {kernel = ‹@›k} : f32[2, 3]", "printed but not read");
}

/// A program of `n` lines.
fn long(n: usize) -> Graph {
    let t = Tracer::new("long");
    let x = t.input("x", TensorType::new(DType::F32, [8]));
    let mut last = [x; 3];
    for i in 0..n {
        let next = t.scope("s", || last[0].mul(last[i % 3]).add(0.5));
        last = [next, last[0], last[1]];
    }
    t.output("y", last[0]);
    t.finish().unwrap()
}

#[test]
fn long_programs_take_linear_time() {
    let graph = long(20_000);
    let begun = Instant::now();
    let text = graph.to_string();
    let read = parse(&text).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(read.len(), graph.len());
    let begun = Instant::now();
    let end = text.rfind('}').unwrap();
    parse(&text[..end]).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn long_lists_have_an_end() {
    let values = vec!["%x"; 70_000].join(", ");
    let text = format!("graph @g(%x: f32[]) {{ %0 = grad %x, [{values}] : f32[] }}");
    assert!(parse(&text).unwrap_err().message.contains("at most 65535"));
    for deep in ["[", "{", "(", "%\"", "graph @g(", "\\", "-", "@"] {
        assert!(parse(&deep.repeat(100_000)).is_err());
    }
}

/// xorshift64*: numbers for hostile input that are the same every time.
fn next(seed: &mut u64) -> usize {
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    (seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize
}

#[test]
fn no_text_panics() {
    const PIECES: [&str; 24] = [
        "%0",
        "%x",
        "=",
        "none",
        "[",
        "]",
        "{",
        "}",
        "9223372036854775807",
        "-1",
        "f32[",
        "@#1",
        "\"",
        "\\u{",
        ":",
        ",",
        "inf",
        "18446744073709551615",
        "return",
        "update",
        "0",
        "é",
        "sum",
        "i64[]",
    ];
    let mut seed = 0x1234_5678_9abc_def1;
    for end in (0..EVERYTHING.len()).filter(|&i| EVERYTHING.is_char_boundary(i)) {
        assert!(parse(&EVERYTHING[..end]).is_err() || end + 1 >= EVERYTHING.trim_end().len());
    }
    for _ in 0..4000 {
        let mut bytes = EVERYTHING.as_bytes().to_vec();
        for _ in 0..=next(&mut seed) % 4 {
            let at = next(&mut seed) % bytes.len();
            let until = (at + next(&mut seed) % 12).min(bytes.len());
            match next(&mut seed) % 4 {
                0 => bytes[at] = next(&mut seed) as u8,
                1 => drop(bytes.drain(at..until)),
                2 => drop(bytes.splice(at..until, PIECES[next(&mut seed) % PIECES.len()].bytes())),
                _ => {
                    let piece = bytes[at..until].to_vec();
                    let to = next(&mut seed) % bytes.len();
                    drop(bytes.splice(to..to, piece));
                }
            }
            if bytes.is_empty() {
                break;
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        if let Ok(graph) = parse(&text) {
            let printed = graph.to_string();
            let again = parse(&printed).unwrap_or_else(|e| panic!("{e}\n{printed}"));
            assert_eq!(again.to_string(), printed);
        }
    }
}

/// A line for an op with operands and attributes drawn from what is most likely to be forgotten.
fn any_line(op: &crate::op::OpDef, seed: &mut u64) -> String {
    use crate::op::{AttrKind, OperandKind};
    const PORTS: [&str; 9] = ["%f", "%m", "%h", "%s", "%e", "%big", "%wide", "%i", "%n"];
    const INTS: [&str; 10] = [
        "0",
        "1",
        "-1",
        "2",
        "3",
        "-2",
        "7",
        "1000000",
        "9223372036854775807",
        "-9223372036854775808",
    ];
    const SIZES: [&str; 10] =
        ["0", "1", "-1", "2", "3", "n", "2*n - 1", "n/2", "9223372036854775807", "n*n*n*n"];
    let mut pick = |from: &[&'static str]| from[next(seed) % from.len()];
    let mut list = |from: &[&'static str], most: usize| {
        let count = INTS.iter().position(|i| *i == pick(&INTS)).unwrap_or(0) % (most + 1);
        let items: Vec<_> = (0..count).map(|_| pick(from)).collect();
        format!("[{}]", items.join(", "))
    };
    let operands: Vec<String> = op
        .schema
        .operands
        .iter()
        .map(|o| match o.kind {
            OperandKind::One => list(&PORTS, 1).trim_matches(['[', ']']).to_owned(),
            OperandKind::Optional => list(&PORTS, 1).trim_matches(['[', ']']).replace(' ', ""),
            OperandKind::List => list(&PORTS, 3),
        })
        .map(|o| if o.is_empty() { "%f".to_owned() } else { o })
        .collect();
    let attrs: Vec<String> = op
        .schema
        .attrs
        .iter()
        .filter_map(|a| {
            let one = |text: String| {
                text.trim_matches(['[', ']']).split(", ").next().unwrap_or("").to_owned()
            };
            let value = match a.kind {
                AttrKind::Bool => one(list(&["true", "false"], 1)),
                AttrKind::Int | AttrKind::OptInt | AttrKind::Float | AttrKind::OptFloat => {
                    one(list(&INTS, 1))
                }
                AttrKind::Size | AttrKind::OptNumber => one(list(&SIZES, 1)),
                AttrKind::Sizes => list(&SIZES, 4),
                AttrKind::DType | AttrKind::OptDType => {
                    one(list(&["f32", "bf16", "i64", "bool", "u8", "c64", "f8e4m3"], 1))
                }
                AttrKind::Ints | AttrKind::OptFloats => list(&INTS, 4),
                AttrKind::OptStr => {
                    one(list(&["\"sum\"", "\"max\"", "\"argmax\"", "\"none\"", "\"mean\""], 1))
                }
                AttrKind::Kernel => String::new(),
            };
            (!value.is_empty()).then(|| format!("{} = {value}", a.name))
        })
        .collect();
    format!("%0 = {} {} {{{}}} : f32[2, 3]", op.name, operands.join(", "), attrs.join(", "))
}

#[test]
fn no_line_panics() {
    let mut seed = 0x0fed_cba9_8765_4321;
    let mut recorded = 0;
    for op in crate::ops::all() {
        for round in 0..400 {
            let line = any_line(op, &mut seed);
            let text = |line: &str| {
                format!(
                    "size n = 3 in 1..=64\ngraph @g(%n: f32[n, 2], %f: f32[2, 3], %m: f32[3, 2], %h: bf16[3], %s: f64[], %e: f16[0, 3], %big: f32[18014398509481984, 0], \
                 %wide: u8[1, 72057594037927936], %i: i64[2]) {{ {line} return y = %0 }}"
                )
            };
            let options = ParseOptions { explicit: round % 2 == 0, ..ParseOptions::default() };
            let Err(error) = parse_with(&text(&line), &options) else { continue };
            let Some((ty, _)) = error
                .message
                .strip_prefix("expected ")
                .and_then(|m| m.split_once(", the type that"))
            else {
                continue;
            };
            let line = line.replace(": f32[2, 3]", &format!(": {ty}"));
            let graph =
                parse_with(&text(&line), &options).unwrap_or_else(|e| panic!("{e}\n{line}"));
            assert_eq!(
                parse_with(&graph.to_string(), &options).unwrap().to_string(),
                graph.to_string()
            );
            for n in [1, 3, 7] {
                let at = graph.at(&crate::Values::from_iter([("n", n)]));
                if let Ok(at) = at {
                    let again = parse_with(&at.to_string(), &options);
                    let again = again.unwrap_or_else(|e| panic!("{e}\n{graph}\n{at}"));
                    assert_eq!(again.to_string(), at.to_string());
                }
            }
            recorded += 1;
        }
    }
    assert!(recorded > 500, "{recorded}");
}

#[test]
fn ops_from_outside_are_read() {
    let mut twice = crate::op::OpDef { name: crate::OpName::new("my twice"), ..definition() };
    twice.doc = "Twice the operand.";
    let op = OpRef::Shared(Arc::new(twice));
    let t = Tracer::new("g");
    let x = t.input("x", TensorType::scalar(DType::F32));
    let y: Var<'_> = t.apply(op.clone(), Args::of(&[x]), Attrs::new())[0];
    t.output("y", y);
    let text = t.finish().unwrap().to_string();
    assert!(text.contains("%0 = \"my twice\" %x : f32[]"), "{text}");
    assert!(parse(&text).unwrap_err().message.contains("unknown op `my twice`"));
    let options = ParseOptions { ops: vec![op], ..ParseOptions::default() };
    assert_eq!(parse_with(&text, &options).unwrap().to_string(), text);
}

fn definition() -> crate::op::OpDef {
    use crate::op::{
        Body, Dispatch, Domain, FLOATS, Facts, Func, Grad, OpName, Operand, OperandKind, Rounding,
        Schema, map,
    };
    crate::op::OpDef {
        name: OpName::new(""),
        doc: "",
        schema: Schema {
            operands: &[Operand { name: "x", kind: OperandKind::One }],
            attrs: &[],
            results: &["y"],
        },
        dispatch: Dispatch::Internal,
        infer: Func::Static(&crate::ops::infer::same),
        body: Body::Core {
            grad: Grad::Zero,
            kernel: map(&|cx, x| cx.body.binary(crate::kernel::ScalarOp::Add, x[0], x[0])),
        },
        rounding: Rounding::RESULT,
        facts: Facts::new(),
        domain: Domain { dtypes: FLOATS, samples: &["T[3]"] },
    }
}

#[test]
fn the_blocks_of_the_pages_read() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/");
    let pages = ["ir.md", "filetests.md"];
    let pages = pages.map(|page| std::fs::read_to_string(format!("{docs}{page}")).unwrap());
    let page = pages.concat().replace("\r\n", "\n");
    let blocks: Vec<_> =
        page.split("```tc\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() > 3);
    for block in blocks {
        parse_file(block, &ParseOptions::default()).unwrap_or_else(|e| panic!("{e}\n{block}"));
    }
}
