//! What PyTorch's autocast was seen to do, against ours.
//!
//! The cases are `tests/data/autocast-cases.json`, recorded from PyTorch 2.15; `TRACECAST_CASES`
//! names another folder with a file of that name. Machine-readable sections are run as they stand;
//! each entry in prose is a test of its own, found by id.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cases;
mod decided;
#[path = "../support/recorded.rs"]
mod files;
mod form;
mod known;
mod mutations;
mod outside;
mod programs;
mod recorded;
mod registration;
mod replay;
mod script;
mod tables;

use cases::Call;
use recorded::Recorded;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Write, stdout};
use tracecast::ir::kernel::half::{f32_to_bf16, f32_to_f16};
use tracecast::ir::policy::PolicySet;

const RECORDED: &str = "recorded in a tracer too";
const TRACED: &str = "every call traced too";

/// How many cases of the repository's own file are compared as programs, beyond what is decided
/// about them: exactly, so that none is left out unnoticed.
const AS_PROGRAMS: &[(&str, &str, usize)] = &[
    ("aten_op_cases", RECORDED, 2549),
    ("upstream_list_cases", RECORDED, 330),
    ("single_probes", RECORDED, 11),
    ("behaviour_programs", TRACED, 50),
];

/// How the cases of a section went.
#[derive(Default)]
struct Tally {
    executed: usize,
    failures: Vec<String>,
    notes: BTreeMap<&'static str, usize>,
}

impl Tally {
    fn note(&mut self, what: &'static str) {
        *self.notes.entry(what).or_default() += 1;
    }

    /// Counts a case that ran.
    fn ran(&mut self, id: &Value, differences: &[String]) {
        self.executed += 1;
        if !differences.is_empty() {
            self.failures.push(format!("{id}: {}", differences.join("; ")));
        }
    }

    /// Prints the section and fails if a case did, or if the number of cases of the repository's
    /// own file that ran as programs is another one than expected.
    fn finish(self, section: &str) {
        let passed = self.executed - self.failures.len();
        let mut line = format!("{section}: {} executed, {passed} passed", self.executed);
        for (what, count) in &self.notes {
            line += &format!("\n  {what}: {count}");
        }
        // The test harness keeps back what goes through `print!`; these lines are to be seen in
        // every run.
        writeln!(stdout(), "{line}").expect("standard output is open");
        let shown = self.failures.iter().take(40).cloned().collect::<Vec<_>>().join("\n");
        assert!(self.failures.is_empty(), "{section}: {} differ\n{shown}", self.failures.len());
        for (_, what, count) in
            AS_PROGRAMS.iter().filter(|(of, ..)| files::are_own() && *of == section)
        {
            let found = self.notes.get(what).copied().unwrap_or_default();
            assert_eq!(found, *count, "{section}: {what}");
        }
    }
}

/// Runs a call: what differs in what is decided and in what comes of recording the op where we have
/// it, and a note of what was compared.
fn run_call(case: &Value, call: fn(&Value) -> Call<'_>) -> (Vec<String>, Option<&'static str>) {
    let (mut found, call) = (known::of_call(case), call(case));
    found.extend(decided::differences(&call, &decided::decide(&PolicySet::standard(), &call)));
    let note = match recorded::record(&call) {
        Recorded::Absent(_) => {
            Some("out not compared, the op or this form of it is listed as absent")
        }
        Recorded::Unlisted(why) => {
            found.push(why);
            None
        }
        Recorded::Writes => Some("out not compared, the op writes to an operand"),
        Recorded::NoKernels => Some("out not compared, an operand has a dtype without kernels"),
        Recorded::Ran(ran) => {
            found.extend(recorded::difference(&call, &ran));
            Some(RECORDED)
        }
    };
    (found, note)
}

/// Runs the calls of a section.
fn run_calls(section: &str, call: fn(&Value) -> Call<'_>) {
    let cases = cases::read();
    let mut tally = Tally::default();
    for case in cases::section(&cases, section) {
        let found = known::caught(|| {
            let (found, note) = run_call(case, call);
            note.into_iter().for_each(|note| tally.note(note));
            found
        });
        tally.ran(&case["id"], &found);
    }
    tally.finish(section);
}

/// Runs a program: what differs, and a note of how much of it was traced.
fn run_program(program: &Value) -> (Vec<String>, Option<&'static str>) {
    let mut found = known::of_program(program);
    if !found.is_empty() {
        return (found, None);
    }
    let replayed = replay::replay(program);
    found.extend(replayed.found);
    // A defect that is recorded is to be put right; of programs from elsewhere it is not known how.
    let right = match replayed.is_defect {
        true => programs::put_right(program),
        false => Some(program.clone()),
    };
    assert!(right.is_some() || !files::are_own(), "{} records a defect", program["id"]);
    let mut note = Some("a defect, traced with parity only");
    if let Some(right) = right {
        let traced = programs::traced(&right);
        let listed = programs::IN_PART.iter().find(|(id, _)| program["id"] == *id);
        note = match (traced.left_out, listed) {
            (0, None) => Some(TRACED),
            (_, Some((_, why))) if traced.left_out > 0 => Some(why),
            (0, Some(_)) => {
                found.push("is traced as a whole: take it from IN_PART".to_owned());
                None
            }
            (calls, _) => {
                found.push(format!("{calls} calls are not traced"));
                None
            }
        };
        found.extend(traced.found.into_iter().map(|what| format!("traced: {what}")));
    }
    let parity = programs::traced_with_parity(program).found.into_iter();
    found.extend(parity.map(|what| format!("traced with parity: {what}")));
    (found, note)
}

/// The lists of what is not compared, or only in part, name nothing that no case has.
#[test]
fn what_is_listed_as_absent_or_refused_is_met() {
    let cases = cases::read();
    let (mut absent, mut of_two) = (BTreeSet::new(), BTreeSet::new());
    for section in ["aten_op_cases", "upstream_list_cases", "single_probes"] {
        let by_name = section == "upstream_list_cases";
        let call = if by_name { cases::by_python_name } else { cases::by_aten_name };
        for case in cases::section(&cases, section) {
            let call = call(case);
            match recorded::record(&call) {
                Recorded::Absent(name) => drop(absent.insert(name)),
                Recorded::Ran(ran) if recorded::is_of_two_dtypes(&call, &ran) => {
                    of_two.insert(call.op);
                }
                _ => {}
            }
        }
    }
    if files::are_own() {
        let idle: Vec<&str> = recorded::absent().filter(|name| !absent.contains(name)).collect();
        assert!(idle.is_empty(), "no case has {idle:?}");
        let idle: Vec<&str> = recorded::of_one_dtype().filter(|op| !of_two.contains(*op)).collect();
        assert!(idle.is_empty(), "no case is refused for its dtypes: {idle:?}");
    }
}

#[test]
fn aten_op_cases() {
    run_calls("aten_op_cases", cases::by_aten_name);
}

#[test]
fn upstream_list_cases() {
    run_calls("upstream_list_cases", cases::by_python_name);
}

#[test]
fn single_probes() {
    run_calls("single_probes", cases::by_aten_name);
}

#[test]
fn behaviour_programs() {
    let cases = cases::read();
    let mut tally = Tally::default();
    for program in cases::section(&cases, "behaviour_programs") {
        let found = known::caught(|| {
            let (found, note) = run_program(program);
            note.into_iter().for_each(|note| tally.note(note));
            found
        });
        tally.ran(&program["id"], &found);
    }
    tally.finish("behaviour_programs");
}

#[test]
fn f32_cast_values() {
    let cases = cases::read();
    let mut tally = Tally::default();
    for case in cases::section(&cases, "f32_cast_values") {
        let bits = |name: &str| {
            let text = case[name].as_str()?.strip_prefix("0x")?;
            u32::from_str_radix(text, 16).ok()
        };
        let x = f32::from_bits(bits("f32_bits").expect("f32_bits is a number"));
        let mut found = Vec::new();
        for (name, narrow, exponent) in
            [("f16_bits", f32_to_f16(x), 0x7c00u16), ("bf16_bits", f32_to_bf16(x), 0x7f80)]
        {
            let is_nan = narrow & 0x7fff > exponent;
            let right = bits(name).map_or(is_nan, |should| u32::from(narrow) == should);
            if !right {
                found.push(format!("{name}: {narrow:#06x}, recorded {}", case[name]));
            }
        }
        tally.ran(&case["f32_bits"], &found);
    }
    tally.finish("f32_cast_values");
}

#[test]
fn jit_runtime_cast_ops() {
    let cases = cases::read();
    let mut tally = Tally::default();
    for case in cases::section(&cases, "jit_runtime_cast_ops") {
        tally.ran(&case["op"], &script::cast_op(case["op"].as_str().unwrap_or("?")));
    }
    tally.finish("jit_runtime_cast_ops");
}

/// Runs the test of each entry of a section in prose; in the repository's own file every entry has
/// one, and every test an entry.
fn run_prose(section: &str, tests: &[(&str, fn())]) {
    let cases = cases::read();
    let mut tally = Tally::default();
    let mut seen = 0;
    let elsewhere = |case: &&Value| case["id"].as_str().is_some_and(|id| id.starts_with("pu1/"));
    for case in cases::section(&cases, section).iter().filter(|case| !elsewhere(case)) {
        match tests.iter().find(|(id, _)| case["id"] == *id) {
            Some((_, test)) => {
                test();
                seen += 1;
                tally.ran(&case["id"], &[]);
            }
            None if files::are_own() => tally.ran(&case["id"], &["has no test".to_owned()]),
            None => tally.note("in prose, of another file, without a test here"),
        }
    }
    assert!(!files::are_own() || seen == tests.len(), "{section}: a test has no entry");
    tally.finish(section);
}

#[test]
fn jit_pass_cases() {
    run_prose("jit_pass_cases", script::TESTS);
}

#[test]
fn privateuse1_and_registration_cases() {
    let section = "privateuse1_and_registration_cases";
    let cases = cases::read();
    let of_devices = |case: &&Value| case["id"].as_str().is_some_and(|id| id.starts_with("pu1/"));
    let mut tally = Tally::default();
    for case in cases::section(&cases, section).iter().filter(of_devices) {
        let found = known::caught(|| [known::of_device(case), outside::run(case)].concat());
        tally.ran(&case["id"], &found);
    }
    assert!(!files::are_own() || tally.executed == 16);
    tally.finish("devices from outside");
    run_prose(section, registration::TESTS);
}
