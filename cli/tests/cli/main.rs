//! The tool as its users meet it: arguments, standard input and files in; text, files and exit
//! codes out.

#![allow(clippy::unwrap_used, reason = "a test says what must hold, in its helpers too")]

mod given;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tracecast_runtime::{Tensor, npz};

/// What a run of the tool left behind.
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs the tool with a text on its standard input.
fn piped(arguments: &[&str], input: &str) -> Ran {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tracecast"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Runs the tool, which has to end well and say nothing on standard error.
fn good(arguments: &[&str]) -> String {
    good_piped(arguments, "")
}

fn good_piped(arguments: &[&str], input: &str) -> String {
    let Ran { code, out, err } = piped(arguments, input);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{arguments:?} printed {out}");
    out
}

/// Runs the tool, which has to end with this code, an error that says all of this, and nothing on
/// standard output.
fn bad(code: i32, arguments: &[&str], input: &str, says: &[&str]) {
    let ran = piped(arguments, input);
    assert_eq!((ran.code, ran.out.as_str()), (Some(code), ""), "{arguments:?}: {}", ran.err);
    assert!(
        ran.err.starts_with("error: ") && !ran.err.contains("panicked"),
        "{arguments:?}: {}",
        ran.err
    );
    for expected in says {
        assert!(ran.err.contains(expected), "{arguments:?}: expected `{expected}` in: {}", ran.err);
    }
}

/// A folder that is removed at the end of a test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("tracecast-cli-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Scratch(folder)
    }

    /// The path of a file in it.
    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// A file in it with these arrays.
    fn npz(&self, name: &str, arrays: &[(&str, Tensor)]) -> String {
        let path = self.path(name);
        npz::write(&path, arrays.iter().map(|(name, tensor)| (*name, tensor))).unwrap();
        path
    }

    /// A file in it with this text.
    fn text(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn example(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples")
        .join(name)
        .to_str()
        .unwrap()
        .to_owned()
}

const EXAMPLES: [&str; 3] = ["mlp.tc", "train_step.tc", "autocast.tc"];

/// The array of that name in a file.
fn array(path: &str, name: &str) -> Tensor {
    let arrays = npz::read(path).unwrap();
    arrays.into_iter().find(|(found, _)| found == name).unwrap().1
}

#[test]
fn every_command_explains_itself() {
    for command in ["train", "dump", "run", "profile", "ops"] {
        assert!(good(&["--help"]).contains(&format!("\n  {command} ")), "{command}");
        let help = good(&[command, "--help"]);
        assert!(help.contains(&format!("Usage: tracecast {command}")), "{help}");
    }
    assert!(good(&["--version"]).starts_with("tracecast "));
    let ran = piped(&[], "");
    assert!(ran.code == Some(2) && ran.err.contains("Usage: tracecast"), "{}", ran.err);
}

#[test]
fn training_is_told_in_json_and_drawn() {
    let scratch = Scratch::new("json");
    let plot = scratch.path("losses.svg");
    let out = good(&["train", "--epochs", "2", "--json", "--seed", "3", "--plot", &plot]);
    let lines: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let modes: Vec<_> = lines.iter().map(|line| line["mode"].as_str().unwrap()).collect();
    assert_eq!(modes, ["f32", "bf16", "f16"]);
    assert!(out.starts_with(r#"{"mode":"f32","accuracy":"#), "{out}");
    for line in &lines {
        let number = |key: &str| line[key].as_f64().unwrap_or_else(|| panic!("{key} in {line}"));
        assert!(number("accuracy") > 70.0 && number("accuracy") <= 100.0, "{line}");
        assert!(number("median_step_ms") > 0.0 && number("compile_ms") > 0.0, "{line}");
        assert!(number("kernels") > 0.0 && number("saved_bytes") > 0.0, "{line}");
        assert_eq!((number("standalone_casts"), number("skipped_steps")), (0.0, 0.0), "{line}");
        let losses: Vec<_> =
            line["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect();
        assert!(losses.len() == 2 && losses[1] < losses[0] && losses[0] < 2.5, "{line}");
    }
    assert_eq!(
        (&lines[0]["final_scale"], &lines[1]["final_scale"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
    assert_eq!(lines[2]["final_scale"], 65536.0);
    let svg = fs::read_to_string(plot).unwrap();
    assert!(
        svg.starts_with("<svg")
            && ["f32", "bf16", "f16"].iter().all(|mode| svg.contains(&format!(">{mode}<")))
    );
}

#[test]
fn a_convolutional_network_learns_in_every_precision() {
    let out = good(&["train", "--model", "cnn", "--epochs", "2", "--json"]);
    let lines: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3, "{out}");
    for line in &lines {
        let number = |key: &str| line[key].as_f64().unwrap_or_else(|| panic!("{key} in {line}"));
        assert!(number("accuracy") > 90.0, "{line}");
        assert_eq!((number("standalone_casts"), number("skipped_steps")), (0.0, 0.0), "{line}");
    }
    for low in ["bf16", "f16"] {
        let step = good(&["train", "--model", "cnn", "--emit-step", low]);
        let told = good_piped(&["explain", "-"], &step);
        for op in ["conv2d", "batch_norm", "max_pool2d"] {
            let line = told.lines().find(|line| line.contains(op));
            assert!(line.is_some_and(|line| line.contains(low)), "{op} in {low}: {told}");
        }
    }
    let data = Scratch::new("rows");
    let x = Tensor::new([10, 3], &[0.5f32; 30]).unwrap();
    let y = Tensor::new([10], &[0i64; 10]).unwrap();
    let rows = data.npz("rows.npz", &[("x", x), ("y", y)]);
    bad(1, &["train", "--model", "cnn", "--data", &rows], "", &["square images", "3 numbers"]);
}

#[test]
fn training_depends_on_the_seed_alone() {
    let losses = |arguments: &[&str]| {
        let out = good(&[&["train", "--epochs", "1", "--json"], arguments].concat());
        let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
        out.lines().map(|text| line(text)["losses"].to_string()).collect::<Vec<_>>()
    };
    let first = losses(&[]);
    assert_eq!(first, losses(&["--seed", "0", "--threads", "2"]));
    assert_ne!(first, losses(&["--seed", "1"]));
}

#[test]
fn training_on_given_arrays_ends_in_a_table() {
    let scratch = Scratch::new("table");
    let features: Vec<f32> =
        (0..60).flat_map(|row| [(row % 3) as f32, ((row * 7) % 5) as f32 / 5.0]).collect();
    let labels: Vec<i64> = (0..60).map(|row| row % 3).collect();
    let x = Tensor::new([60, 2], &features).unwrap();
    let data = scratch.npz("data.npz", &[("x", x), ("y", Tensor::new([60], &labels).unwrap())]);
    let out = good(&["train", "--epochs", "1", "--data", &data]);
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines.len(), 5, "{out}");
    assert!(lines[1].starts_with("mode"), "{out}");
    for (line, mode) in lines[2..].iter().zip(["f32", "bf16", "f16"]) {
        let cells: Vec<_> = line.split_whitespace().collect();
        assert!(cells.len() == 9 && cells[0] == mode, "{out}");
    }
}

#[test]
fn the_traced_step_is_a_program_like_any_other() {
    for mode in ["f32", "bf16", "f16"] {
        let step = good(&["train", "--emit-step", mode]);
        assert_eq!(good_piped(&["dump", "-"], &step), step, "{mode}");
    }
    let step = good(&["train", "--emit-step", "f16"]);
    let checked = good_piped(&["dump", "-", "--after", "scaler", "--no-fold"], &step);
    assert_eq!(checked.matches(" = unscale_check ").count(), 4, "one for each gradient: {checked}");
    assert!(!checked.contains(" = unscale ") && !checked.contains(" = nonfinite "), "{checked}");
    let folded = good_piped(&["dump", "-", "--after", "scaler"], &step);
    assert_eq!(folded.matches(" = nonfinite ").count(), 4, "{folded}");
}

#[test]
fn examples_are_shown_after_every_pass() {
    for name in EXAMPLES {
        let file = example(name);
        let plain = good(&["dump", &file]);
        assert!(plain.starts_with("tracecast 1\n\n"), "{plain}");
        assert_eq!(good(&["dump", &file, "--after", "trace"]), plain);
        assert_eq!(good_piped(&["dump", "-"], &plain), plain);
        let all = good(&["dump", &file, "--after-all"]);
        assert!(all.contains(" after trace\n"), "{all}");
        for pass in tracecast_passes::names() {
            let shown = good(&["dump", &file, "--after", pass]);
            assert!(shown.contains("graph @"), "{shown}");
            assert!(all.contains(&format!(" after {pass}\n")), "{all}");
            if pass != "fuse" {
                assert_eq!(good_piped(&["dump", "-"], &shown), shown, "{name} after {pass}");
            }
        }
    }
}

#[test]
fn autocast_of_the_whole_program() {
    let cast = good(&["dump", &example("mlp.tc"), "--autocast", "cpu:bf16", "--after", "autocast"]);
    assert!(cast.contains("cast %x {to = bf16} : bf16[8, 64]"), "{cast}");
    assert!(!good(&["dump", &example("mlp.tc"), "--after", "autocast"]).contains("bf16"));
    let ran = piped(&["dump", &example("mlp.tc"), "--autocast", "cpu:f64"], "");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.err.starts_with("warning: ") && ran.err.contains("switched off"), "{}", ran.err);
}

#[test]
fn fewer_roundings_on_request() {
    let text =
        "graph @g(%x: bf16[8]) {\n%0 = exp %x : bf16[8]\n%1 = tanh %0 : bf16[8]\nreturn y = %1\n}";
    let dump =
        |precision| good_piped(&["dump", "-", "--after", "place", "--precision", precision], text);
    assert!(!dump("exact").contains("f32") && dump("optimised").contains("tanh %1 : f32[8]"));
    let explained = good_piped(&["explain", "-", "--precision", "optimised"], text);
    assert!(explained.contains("inside exp f32 -> bf16: dropped"), "{explained}");
    bad(2, &["dump", "-", "--precision", "fast"], text, &["expected exact or optimised", "`fast`"]);
}

#[test]
fn lines_are_told_on_demand() {
    let file = example("train_step.tc");
    assert!(!good(&["dump", &file]).contains(" at "));
    assert!(good(&["dump", &file, "--at", "--after", "autocast"]).contains("train_step.tc:11\""));
}

#[test]
fn pictures_and_code() {
    let file = example("train_step.tc");
    let dot = good(&["dump", &file, "--emit", "dot", "--after", "autodiff"]);
    assert!(dot.starts_with("digraph \"step\" {\n") && dot.ends_with("}\n"), "{dot}");
    let dots = good(&["dump", &file, "--emit", "dot", "--after-all"]);
    assert_eq!(dots.matches("digraph ").count(), tracecast_passes::names().len() + 1, "{dots}");
    let clif = good(&["dump", &file, "--emit", "clif"]);
    assert!(clif.contains("; kernel @") && clif.contains("function "), "{clif}");
    good(&["dump", &file, "--emit", "clif", "--portable"]);
    assert_eq!(good(&["dump", &file, "--emit", "clif", "--after", "fuse"]), clif);
    let asm = good(&["dump", &file, "--emit", "asm"]);
    assert_eq!(asm.matches("; kernel @").count(), clif.matches("; kernel @").count());
    assert_eq!(asm.matches("\n; vector loop ").count(), clif.matches("\nvector loop ").count());
    assert!(asm.contains("; function 0, "), "{asm}");
    if cfg!(target_arch = "x86_64") {
        assert!(asm.contains("  ret\n"), "{asm}");
    }
    let plans = good(&["dump", &file, "--emit", "plan"]);
    assert_eq!(plans.matches("\nplan @").count(), clif.matches("; kernel @").count(), "{plans}");
    assert_eq!(plans.matches("\nfunction ").count(), asm.matches("; function ").count(), "{plans}");
    let vectors = plans.contains("\n      vectors: ");
    assert!(vectors && plans.contains("\n  threads share "), "{plans}");
    let draft = good(&["dump", &file, "--emit", "plan", "--until", "draft"]);
    assert!(draft.contains("\nplan @") && !draft.contains("\n    phases"), "{draft}");
    assert_ne!(good(&["dump", &file, "--emit", "plan", "--until", "column-steps"]), draft);
    let shown = good(&["dump", &file, "--emit", "plan", "--device", "reference"]);
    assert!(shown.contains("no code can be shown"), "{shown}");
    let bytes = good(&["dump", &file, "--emit", "bytes"]);
    assert_eq!(bytes.matches("kernel ").count(), asm.matches("; kernel @").count());
    let functions = asm.lines().filter(|line| line.starts_with("; ") && line.ends_with(" bytes"));
    assert_eq!(bytes.matches("\nfunction of ").count(), functions.count(), "{bytes}");
}

#[test]
fn several_graphs_are_shown_in_order() {
    let text = "graph @a(%x: f32[]) { return y = %x }\ngraph @b(%x: f32[]) { return y = %x }";
    let shown = good_piped(&["dump", "-"], text);
    assert!(shown.contains("graph @a") && shown.contains("graph @b"), "{shown}");
    assert_eq!(good_piped(&["dump", "-"], &shown), shown);
}

/// What the step of the example is given.
fn step_inputs(scratch: &Scratch) -> String {
    let x = Tensor::new([4, 3], &[1f32, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
        .unwrap();
    let y = Tensor::new([4, 1], &[1f32, 2.0, 3.0, 6.0]).unwrap();
    let (w, b) = (Tensor::new([1, 3], &[0f32; 3]).unwrap(), Tensor::new([1], &[0f32]).unwrap());
    scratch.npz("in.npz", &[("x", x), ("y", y), ("w", w), ("b", b)])
}

#[test]
fn a_step_runs_on_both_devices() {
    let scratch = Scratch::new("run");
    let inputs = step_inputs(&scratch);
    for device in ["cpu", "reference"] {
        let outputs = scratch.path(device);
        let file = example("train_step.tc");
        let out =
            good(&["run", &file, "--inputs", &inputs, "--outputs", &outputs, "--device", device]);
        assert!(out.contains("loss = f32[] 12.5\n"), "{out}");
        assert_eq!(array(&outputs, "loss").item::<f32>().unwrap(), 12.5);
        let near = |name: &str, expected: &[f32]| {
            let found = array(&outputs, name).to_vec::<f32>().unwrap();
            assert!(
                found.iter().zip(expected).all(|(f, e)| (f - e).abs() < 1e-6),
                "{name}: {found:?}"
            );
        };
        near("w", &[0.35, 0.4, 0.45]);
        near("b", &[0.6]);
    }
}

#[test]
fn runs_under_autocast_with_threads_and_without_wide_instructions() {
    let scratch = Scratch::new("run-options");
    let inputs = step_inputs(&scratch);
    let outputs = scratch.path("out.npz");
    let file = example("train_step.tc");
    let options = ["--autocast", "cpu:bf16", "--threads", "2", "--portable"];
    good(&[&["run", &file, "--inputs", &inputs, "--outputs", &outputs], &options[..]].concat());
    assert_eq!(array(&outputs, "loss").item::<f32>().unwrap(), 12.5);
}

#[test]
fn profiles_name_kernels_their_work_and_the_limits() {
    let scratch = Scratch::new("profile");
    let (file, trace) = (example("train_step.tc"), scratch.path("trace.json"));
    let table = good(&["profile", &file, "--runs", "3", "--trace", &trace]);
    assert!(table.starts_with("kernel ") && table.contains("; limits "), "{table}");
    let events: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&trace).unwrap()).unwrap();
    let events = events["traceEvents"].as_array().unwrap();
    // A line below a product says how it is computed.
    let (schedules, lines): (Vec<_>, Vec<_>) =
        table.lines().partition(|line| line.starts_with("  "));
    assert_eq!(events.len() + 2, lines.len(), "{table}");
    let products = lines.iter().filter(|line| line.contains(" contraction ")).count();
    assert_eq!((schedules.len(), products), (2, 2), "{table}");
    assert!(events.iter().all(|e| e["ph"] == "X" && e["ts"].is_f64() && e["dur"].is_f64()));
    let inputs = step_inputs(&scratch);
    let json = good(&["profile", &file, "--inputs", &inputs, "--runs", "1", "--json"]);
    let lines: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() == events.len() && lines.iter().all(|l| l["of_limit"].is_f64()), "{json}");
    let table = good(&["profile", &file, "--device", "reference", "--runs", "1"]);
    assert!(!table.contains("limits") && table.contains('–'), "{table}");
    let policy = scratch.path("relu.toml");
    fs::write(&policy, "[[rule]]\nop = \"relu\"\npolicy = \"fp32\"\n").unwrap();
    let under = ["--autocast", "cpu:bf16", "--policy", &policy, "--compile"];
    let both = good(&[&["profile", &example("mlp.tc"), "--runs", "1"], &under[..]].concat());
    assert!(both.contains("\npeak ") && both.contains("\nsaved "), "{both}");
    bad(2, &["profile", &file, "--runs", "0"], "", &["--runs"]);
    bad(1, &["profile", &file, "--inputs", &trace], "", &["trace.json"]);
    bad(1, &["profile", &file, "--trace", "/no/such/folder/t.json"], "", &["t.json"]);
}

#[test]
fn bf16_comes_as_f32_or_bf16_and_goes_as_what_is_both() {
    let scratch = Scratch::new("bf16");
    let program = scratch
        .text("double.tc", "graph @g(%x: bf16[2]) { %0 = add %x, %x : bf16[2] return y = %0 }");
    let inputs = scratch.npz("in.npz", &[("x", Tensor::new([2], &[1f32, 0.1]).unwrap())]);
    let outputs = scratch.path("out.npz");
    let ran = piped(&["run", &program, "--inputs", &inputs, "--outputs", &outputs], "");
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), "note: `x` is rounded from f32 to bf16\n"));
    let found = array(&outputs, "y");
    assert_eq!(found.dtype(), tracecast::DType::BF16);
    assert_eq!(found.to_f64s(), [2.0, 0.200_195_312_5]);
    let exact = scratch.npz("low.npz", &[("x", found)]);
    good(&["run", &program, "--inputs", &exact, "--outputs", &outputs]);
    assert_eq!(array(&outputs, "y").to_f64s(), [4.0, 0.400_390_625]);
}

#[test]
fn wrong_arrays_are_named() {
    let scratch = Scratch::new("arrays");
    let program = scratch.text(
        "pick.tc",
        "graph @g(%x: f32[2, 3], %i: i64[2]) {\n  %0 = embedding %x, %i : f32[2, 3]\n  return y = %0\n}",
    );
    let outputs = scratch.path("out.npz");
    let x = || Tensor::new([2, 3], &[0f32; 6]).unwrap();
    let i = |values: &[i64]| Tensor::new([values.len()], values).unwrap();
    let run = |arrays: &[(&str, Tensor)], says: &[&str]| {
        let inputs = scratch.npz("in.npz", arrays);
        bad(1, &["run", &program, "--inputs", &inputs, "--outputs", &outputs], "", says);
        assert!(!Path::new(&outputs).exists());
    };
    run(&[("x", x())], &["in.npz", "no array `i`", "i64[2]"]);
    run(
        &[("x", x()), ("i", i(&[0, 1, 0]))],
        &["in.npz", "array `i`", "expected i64[2], found i64[3]"],
    );
    run(&[("x", x()), ("i", x())], &["array `i`", "found f32[2, 3]"]);
    run(&[("x", x()), ("i", i(&[0, 1])), ("z", x())], &["no port is called `z`", "`x`, `i`"]);
    run(&[("x", x()), ("i", i(&[0, 2]))], &["index out of range", "pick.tc:2"]);
    run(&[("x", x()), ("i", i(&[-1, 0]))], &["index out of range", "pick.tc:2"]);

    let good_inputs = scratch.npz("good.npz", &[("x", x()), ("i", i(&[1, 0]))]);
    let whole = fs::read(&good_inputs).unwrap();
    let cut = scratch.path("cut.npz");
    for length in [0, 3, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
        fs::write(&cut, &whole[..length]).unwrap();
        bad(1, &["run", &program, "--inputs", &cut, "--outputs", &outputs], "", &["cut.npz"]);
    }
    let missing = scratch.path("missing.npz");
    bad(1, &["run", &program, "--inputs", &missing, "--outputs", &outputs], "", &["missing.npz"]);
    let nowhere = scratch.path("no/such/folder/out.npz");
    bad(1, &["run", &program, "--inputs", &good_inputs, "--outputs", &nowhere], "", &["out.npz"]);
    good(&["run", &program, "--inputs", &good_inputs, "--outputs", &outputs]);
}

#[test]
fn wrong_programs_are_shown_where_they_are_wrong() {
    let text = "graph @g(%x: f32[2, 3]) {\n  %0 = negg %x : f32[2, 3]\n  return y = %0\n}\n";
    let shown = [
        "unknown op `negg`: did you mean `neg`?",
        "  --> <stdin>:2:8\n",
        " 2 |   %0 = negg %x : f32[2, 3]\n   |        ^^^^\n",
    ];
    bad(1, &["dump", "-"], text, &shown);
    let scratch = Scratch::new("programs");
    let file = scratch.text("bad.tc", text);
    bad(1, &["dump", &file], "", &["bad.tc:2:8"]);
    bad(1, &["run", &file, "--inputs", "a", "--outputs", "b"], "", &["bad.tc:2:8"]);
    bad(1, &["dump", "-"], "graph @g(%x: f32[2]) {\n  %0 = add %x", &["<stdin>:2:"]);
    bad(1, &["dump", "-"], "", &["<stdin>", "no graph"]);
    bad(
        1,
        &["dump", "-"],
        "graph @g(%x: f32[99999999999, 99999999999]) {}",
        &["<stdin>:1:14", "too many elements"],
    );
    bad(1, &["dump", &scratch.path("none.tc")], "", &["none.tc"]);
    bad(1, &["dump", scratch.0.to_str().unwrap()], "", &["tracecast-cli"]);
    fs::write(scratch.path("latin.tc"), b"graph @g\xe9").unwrap();
    bad(1, &["dump", &scratch.path("latin.tc")], "", &["latin.tc", "UTF-8"]);
    let two = "graph @a() {}\ngraph @b() {}";
    bad(1, &["run", "-", "--inputs", "a", "--outputs", "b"], two, &["expected one graph, found 2"]);
    let both = "graph @g(%w: f32[] state) { update %w = %w return w = %w }";
    bad(
        1,
        &["run", "-", "--inputs", "a", "--outputs", "b"],
        both,
        &["`w` is a result and the name of state"],
    );
}

#[test]
fn wrong_data_to_train_on_is_named() {
    let scratch = Scratch::new("data");
    let x = scratch.npz("x.npz", &[("x", Tensor::new([5, 1], &[0f32; 5]).unwrap())]);
    bad(1, &["train", "--data", &x], "", &["x.npz", "no array `y`"]);
    let labels = Tensor::new([5], &[0i64, 0, 0, 0, -1]).unwrap();
    let negative =
        scratch.npz("n.npz", &[("x", Tensor::new([5, 1], &[0f32; 5]).unwrap()), ("y", labels)]);
    bad(1, &["train", "--data", &negative], "", &["n.npz", "label of row 4 is -1"]);
    bad(1, &["train", "--data", &scratch.path("none.npz")], "", &["none.npz"]);
    let nowhere = scratch.path("no/such/folder/plot.svg");
    bad(1, &["train", "--plot", &nowhere], "", &["plot.svg"]);
}

#[test]
fn wrong_command_lines_are_usage_errors() {
    let file = example("mlp.tc");
    bad(2, &["train", "--epochs", "0"], "", &["--epochs"]);
    bad(2, &["train", "--seed", "-1"], "", &["'-1'"]);
    bad(2, &["train", "--emit-step", "f8"], "", &["f32, bf16, f16"]);
    bad(2, &["dump"], "", &["FILE"]);
    bad(2, &["dump", &file, "--after", "autocats"], "", &["autocats", "autocast"]);
    bad(2, &["dump", &file, "--after", "fuse", "--after-all"], "", &["--after-all"]);
    bad(2, &["dump", &file, "--after", "place", "--emit", "clif"], "", &["--emit clif"]);
    bad(2, &["dump", &file, "--after-all", "--emit", "asm"], "", &["asm"]);
    bad(2, &["dump", &file, "--after-all", "--emit", "plan"], "", &["and plan"]);
    bad(2, &["dump", &file, "--until", "argmax"], "", &["--until goes with --emit plan"]);
    bad(2, &["dump", &file, "--after-all", "--emit", "bytes"], "", &["bytes"]);
    bad(2, &["dump", &file, "--autocast", "bf16"], "", &["DEVICE:DTYPE"]);
    bad(2, &["dump", &file, "--autocast", "gpu:bf16"], "", &["unknown device type `gpu`"]);
    bad(2, &["dump", &file, "--autocast", "cpu:b16"], "", &["unknown dtype `b16`"]);
    bad(2, &["run", &file], "", &["--inputs"]);
    bad(2, &["run", &file, "--inputs", "a", "--outputs", "b", "--device", "npu"], "", &["npu"]);
    bad(2, &["ops", "softmx"], "", &["no op `softmx`"]);
    bad(2, &["optimise"], "", &["optimise"]);
}

#[test]
fn every_op_is_listed_and_described() {
    let table = good(&["ops"]);
    for op in tracecast_ir::ops::all() {
        assert!(table.contains(&format!("\n  {}(", op.name)), "{}", op.name);
    }
    for op in ["input", "linear", "where", "update_scale", "grad", "kernel"] {
        assert!(good(&["ops", op]).starts_with(&format!("{op}(")), "{op}");
    }
    let linear = good(&["ops", "linear"]);
    assert!(linear.starts_with("linear(x, weight, bias?) -> y\n"), "{linear}");
    assert!(linear.contains("autocast on cpu: lower_precision_fp\n"), "{linear}");
    assert!(good(&["ops", "cast"]).ends_with("autocast: no policy is asked about it\n"));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    for arguments in [&["ops"][..], &["train", "--emit-step", "f16"], &["--help"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tracecast"))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), &output.stderr[..]),
            (Some(0), &b""[..]),
            "{arguments:?}"
        );
    }
}

#[test]
fn a_device_is_held_to_programs_and_two_reports_are_compared() {
    let scratch = Scratch::new("conformance");
    let checked = ["conformance", "--device", "reference", "--level", "maps"];
    let told = good(&checked);
    let last = told.lines().last().unwrap();
    assert!(last.starts_with("reference at the level maps: ") && !last.contains("fail"), "{told}");
    let report = good(&[&checked[..], &["--json"]].concat());
    let other = report.replacen("\"outcome\":\"pass\"", "\"outcome\":\"fail\"", 1);
    let [old, new] =
        [("old", &report), ("new", &other)].map(|(name, text)| scratch.text(name, text));
    assert_eq!(good(&["conformance", "--diff", &old, &old]), "");
    let told = good(&["conformance", "--diff", &old, &new]);
    assert!(told.lines().count() == 1 && told.ends_with(": pass, now fail\n"), "{told}");
    bad(
        1,
        &["conformance", "--diff", &old, &example("mlp.tc")],
        "",
        &["the new file is no report"],
    );
    bad(2, &["conformance", "--device", "npu"], "", &["expected one of"]);
}
