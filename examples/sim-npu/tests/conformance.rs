//! The conformance kit passes chips that are right, also with other bits, and finds each defect.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use sim_npu::{Defect, Driver, Settings, Ways, current};
use std::sync::Arc;
use std::time::Duration;
use tracecast::ir::policy::{DeviceType, PolicySet};
use tracecast::runtime::Registry;
use tracecast_conformance::{Kit, Level, Report};

fn report(settings: Settings, level: Level) -> Report {
    let registry = Arc::new(Registry::new());
    let settings = Settings { memory: 4 << 20, patience: Duration::from_secs(2), ..settings };
    registry.register("npu", Arc::new(Driver { settings })).unwrap();
    let cuda = PolicySet::standard().table(DeviceType::Cuda).unwrap().clone();
    let kit = Kit::new(level).table(cuda).limit(Duration::from_secs(30));
    kit.current(|| format!("{:?}", current())).check(&registry, "npu:0")
}

#[test]
fn chips_that_are_right_pass() {
    let plain = report(Settings::default(), Level::Everything);
    assert!(plain.passes() && plain.count("pass") >= 1800, "{plain}");
    let strict = report(Settings::strict(), Level::Everything);
    assert!(strict.passes() && strict.count("pass") >= 1200, "{strict}");
}

/// Products are summed in another order, and exponentials are one unit in the last place larger.
#[test]
fn chips_that_are_right_with_other_bits_pass() {
    let ways = Ways { is_other: true, defect: None };
    let other = report(Settings { ways, ..Settings::default() }, Level::Everything);
    assert!(other.passes() && other.count("pass") >= 1800, "{other}");
}

#[test]
fn each_defect_is_found() {
    let mut missed = Vec::new();
    for defect in Defect::ALL {
        let ways = Ways { is_other: false, defect: Some(defect) };
        let found = report(Settings { ways, ..Settings::default() }, Level::Mlp);
        match found.failures().next() {
            Some(case) => {
                println!("{defect:?}: {} and {} more", case.name, found.count("fail") - 1)
            }
            None => missed.push(defect),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
