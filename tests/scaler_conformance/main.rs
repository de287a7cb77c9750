//! The eager scaler against what PyTorch 2.15 was recorded to do, on the CPU and on the reference
//! device.
//!
//! The cases are `tests/data/gradscaler-cases.json`; `TRACECAST_CASES` names another folder with a
//! file of that name. Scenarios are replayed call by call and, where a recorded step can say them,
//! as recorded steps, which end in the bits of the calls; raw cases run through the raw ops; prose
//! entries map by name to tests in `prose.rs`.

#![allow(clippy::print_stdout, reason = "the output says what was and was not covered")]

mod both;
mod cases;
#[path = "../support/recorded.rs"]
mod files;
mod machine;
mod plan;
mod prose;
mod ranks;
mod raw;
mod recorded;
mod replay;
mod training;

use cases::eagers;
use files::file;
use serde_json::Value;

/// Runs every case of a section on both devices, and fails with all that went wrong.
fn all(
    section: &str,
    name: &str,
    run: impl Fn(&tracecast::eager::Eager, &Value) -> Result<(), String>,
) {
    let cases = file("gradscaler-cases.json");
    let none = Vec::new();
    let list = cases[section].as_array().unwrap_or(&none);
    // Other files may have some of the sections only.
    assert!(!list.is_empty() || !files::are_own(), "no section `{section}`");
    let mut failures = Vec::new();
    for eager in eagers() {
        for (i, case) in list.iter().enumerate() {
            if let Err(failure) = run(&eager, case) {
                let case = case[name].as_str().map_or_else(|| format!("case {i}"), str::to_owned);
                failures.push(format!("{case} on {}: {failure}", eager.device().name()));
            }
        }
    }
    println!("{section}: {} cases on two devices, {} failures", list.len(), failures.len());
    assert!(failures.is_empty(), "{section}:\n{}", failures.join("\n"));
}

#[test]
fn scenarios() {
    all("scenarios", "name", replay::scenario);
}

#[test]
fn scenarios_as_recorded_steps() {
    let replayed = those(recorded::scenario);
    println!("{} scenarios as recorded steps: {replayed:?}", replayed.len());
    assert!(replayed.len() >= 38 || !files::are_own(), "{}", replayed.len());
}

#[test]
fn scenarios_in_both_forms() {
    let compared = those(both::scenario);
    println!("{} scenarios in both forms: {compared:?}", compared.len());
    assert!(compared.len() >= 38 || !files::are_own(), "{}", compared.len());
}

#[test]
fn generated_scenarios_in_both_forms() {
    for eager in eagers() {
        for case in both::generated() {
            let place = format!("{} on {}", case["name"], eager.device().name());
            let compared = both::scenario(&eager, &case);
            assert!(compared.unwrap_or_else(|e| panic!("{place}: {e}")), "{place}");
        }
    }
}

/// Runs every scenario, and says which of them could be run.
fn those(
    run: fn(&tracecast::eager::Eager, &Value) -> Result<bool, String>,
) -> std::collections::BTreeSet<String> {
    let ran = std::sync::Mutex::new(std::collections::BTreeSet::new());
    all("scenarios", "name", |eager, case| {
        if run(eager, case)? {
            let name = case["name"].as_str().unwrap_or_default().to_owned();
            ran.lock().expect("no test panics here").insert(name);
        }
        Ok(())
    });
    ran.into_inner().expect("no test panics here")
}

#[test]
fn raw_unscale() {
    all("raw_unscale_cases", "name", raw::unscale);
}

#[test]
fn raw_update() {
    all("raw_update_cases", "note", raw::update);
}

#[test]
fn fused_kernels() {
    all("fused_kernel_cases", "kind", raw::fused);
}

#[test]
fn inverse_scale() {
    all("inv_scale_cases", "note", raw::inverse);
}

#[test]
fn prose_entries() {
    let cases = file("gradscaler-cases.json");
    let [cpu, reference] = eagers();
    let mut missing = Vec::new();
    let mut failures = Vec::new();
    let mut run = 0;
    for (section, key) in prose::SECTIONS {
        for entry in cases[section].as_array().into_iter().flatten() {
            let name = entry[key].as_str().unwrap_or_default();
            match prose::TESTS.iter().find(|(of, known, _)| (*of, *known) == (section, name)) {
                None => missing.push(format!("{section}: {name}")),
                Some((_, _, test)) => {
                    for (here, there) in [(&cpu, &reference), (&reference, &cpu)] {
                        if let Err(failure) = test(here, there) {
                            failures.push(format!("{section}: {name}: {failure}"));
                        }
                    }
                    run += 1;
                }
            }
        }
    }
    for (section, name, why) in prose::WITHOUT_COUNTERPART {
        missing.retain(|entry| *entry != format!("{section}: {name}"));
        println!("prose: {section}: {name}: {why}");
    }
    println!("prose: {run} entries covered; not yet covered:\n  {}", missing.join("\n  "));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(missing.is_empty() || !files::are_own(), "entries without a test: {missing:?}");
}
