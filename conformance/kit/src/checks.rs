//! Checks that no text can say: memory, threads, sizes, lists, defaults. Those of the loss scaler
//! are in `scaler`.

use crate::checked::{Checked, failed, numbers, outcome, tensor, told, told_at};
use crate::compare::{Agreement, differs};
use crate::kit::Kit;
use crate::report::{Outcome, refused};
use crate::subject::Subject;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tracecast::prelude::*;
use tracecast::{Executable, trace_with};
use tracecast_ir::policy::{Policy, PolicyTable, Target};
use tracecast_runtime::{Base, Device};

/// A program for the device.
fn program(on: &Subject, closure: impl FnOnce(&Trace)) -> Result<Executable, Outcome> {
    compiled(&on.options(), closure).map_err(|error| refused(&error))
}

fn compiled(options: &Options, closure: impl FnOnce(&Trace)) -> tracecast::Result<Executable> {
    compile(trace_with("check", options, closure)?, options)
}

/// Memory is given back when programs and stores are dropped.
pub(crate) fn memory(on: &Subject, _: &Kit) -> Outcome {
    let device = match on.options().target() {
        Ok(device) => device,
        Err(error) => return failed(error.to_string()),
    };
    let in_use = |device: &Arc<dyn Device>| device.memory_stats().map(|stats| stats.in_use);
    let Some(before) = in_use(&device) else {
        return Outcome::Skipped { because: "the device does not count its memory".to_owned() };
    };
    let work = || -> Checked {
        for round in 0..3 {
            let sum = program(on, |t| {
                let (x, s) = (t.input_of("x", numbers([128])), t.state_of("s", numbers([128])));
                t.update(s, s + x);
                t.output("y", s * x);
            })?;
            let mut store = Store::new().with("s", tensor(numbers([128]), "s", round)?);
            for step in 0..4 {
                sum.run(&mut store, &[("x", &tensor(numbers([128]), "x", step)?)]).map_err(told)?;
            }
        }
        Ok(())
    };
    if let Err(outcome) = work() {
        return outcome;
    }
    // A queue may hold what it names a little longer.
    let begun = Instant::now();
    while in_use(&device) > Some(before) && begun.elapsed() < Duration::from_secs(2) {
        thread::sleep(Duration::from_millis(5));
    }
    match in_use(&device) {
        Some(now) if now > before => {
            failed(format!("{now} bytes are in use when all is dropped, and were {before}"))
        }
        _ => Outcome::Pass,
    }
}

/// A program reads the parameter that is in the store, also if another has taken its place.
pub(crate) fn replaced(on: &Subject, _: &Kit) -> Outcome {
    let check = || -> Checked {
        let product = program(on, |t| {
            let (x, w) = (t.input_of("x", numbers([9])), t.param_of("w", numbers([9])));
            t.output("y", x * w);
        })?;
        let mut store = Store::new();
        for round in 0..4 {
            let (x, w) = (tensor(numbers([9]), "x", round)?, tensor(numbers([9]), "w", round)?);
            let product_of = |(x, w): (&f64, &f64)| f64::from(*x as f32 * *w as f32);
            let wanted: Vec<f64> = x.to_f64s().iter().zip(&w.to_f64s()).map(product_of).collect();
            store.insert("w", w);
            for _ in 0..2 {
                let out = product.run(&mut store, &[("x", &x)]).map_err(told)?;
                if out["y"].to_f64s() != wanted {
                    return Err(failed(format!("round {round} reads another parameter")));
                }
            }
        }
        Ok(())
    };
    outcome(check())
}

/// Programs of several threads on one device do not see each other.
pub(crate) fn threads(on: &Subject, _: &Kit) -> Outcome {
    let work = |number: usize| -> Checked {
        let shape = || numbers([64 + number]);
        let program = program(on, |t| {
            let (x, s) = (t.input_of("x", shape()), t.state_of("s", shape()));
            t.update(s, s - x);
            t.output("y", s * 2.0);
        })?;
        for round in 0..6 {
            let start = tensor(shape(), "s", round)?;
            let mut known = start.to_f64s();
            let mut store = Store::new().with("s", start);
            for step in 0..5 {
                let x = tensor(shape(), "x", step + 10 * number as u64)?;
                let out = program.run(&mut store, &[("x", &x)]).map_err(told)?;
                let wanted: Vec<f64> = known.iter().map(|s| s * 2.0).collect();
                if out["y"].to_f64s() != wanted {
                    return Err(failed(format!(
                        "thread {number} of 8 finds other numbers in step {step} of round {round}"
                    )));
                }
                let next = known.iter().zip(x.to_f64s()).map(|(s, x)| *s as f32 - x as f32);
                known = next.map(f64::from).collect();
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|number| scope.spawn(move || work(number))).collect();
        let ended = all
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(failed("one of 8 threads panics"))));
        outcome(ended.collect())
    })
}

/// A program whose sizes become names gives the same for each.
pub(crate) fn sizes(on: &Subject, _: &Kit) -> Outcome {
    let program = |options: Options| {
        jit(options, |t| {
            let x = t.input("x");
            t.output("y", (x * 3.0 + 1.0).relu());
        })
    };
    let (own, known) = (program(on.options()), program(on.reference()));
    let check = |(number, rows): (u64, usize)| -> Checked {
        let x = tensor(numbers([rows, 5]), "x", rows as u64)?;
        let found = own.run(&mut Store::new(), &[("x", &x)]);
        let found = found.map_err(|error| told_at(number, error))?;
        let wanted = known.run(&mut Store::new(), &[("x", &x)]).map_err(told)?;
        let differs = differs(&found["y"], &wanted["y"], Agreement::Exact);
        differs.map_or(Ok(()), |why| Err(failed(format!("{rows} rows: {why}"))))
    };
    outcome((0..).zip([3, 5, 9, 1, 40]).try_for_each(check))
}

/// The lists of its autocast are those that it is meant to have.
pub(crate) fn lists(on: &Subject, kit: &Kit) -> Outcome {
    let Some(amp) = on.amp() else {
        return Outcome::Skipped { because: "its kind has no autocast".to_owned() };
    };
    let policies = on.options().policies();
    let standard = tracecast_ir::policy::PolicySet::standard();
    let meant = match (&kit.table, &amp.base) {
        (Some(table), _) => table.clone(),
        (None, Base::Of(device)) => match standard.table(*device) {
            Some(table) => table.clone(),
            None => return failed(format!("it takes over the lists of {device}, which has none")),
        },
        (None, _) if on.kind().is_none() => return Outcome::Pass,
        (None, _) => {
            let because = "nobody says which lists it is meant to have (`Kit::table`, `--table`)";
            return Outcome::Skipped { because: because.to_owned() };
        }
    };
    let Some(found) = policies.table(on.device_type()) else {
        return failed("it has no lists at all");
    };
    let own = |op: &str| {
        amp.rules.iter().any(|(target, _)| match target {
            Target::DeviceOp(known) | Target::Op(known) => known == op,
            _ => false,
        })
    };
    let (meant, found) = (listed(&meant), listed(found));
    let names = meant.keys().chain(found.keys().filter(|op| !meant.contains_key(*op)));
    for op in names.filter(|op| !own(op)) {
        let (wanted, now) = (meant.get(op), found.get(op));
        if wanted != now {
            let said = |policy: Option<&Policy>| {
                policy.map_or("not listed".to_owned(), |policy| format!("{policy:?}"))
            };
            return failed(format!("`{op}`: expected {}, found {}", said(wanted), said(now)));
        }
    }
    Outcome::Pass
}

/// The entries of a table.
fn listed(table: &PolicyTable) -> BTreeMap<String, Policy> {
    table.iter().map(|(op, policy)| (op.to_owned(), policy.clone())).collect()
}

/// A region that names no dtype is in one that the device computes with.
pub(crate) fn default_dtype(on: &Subject, _: &Kit) -> Outcome {
    let Some(amp) = on.amp() else {
        return Outcome::Skipped { because: "its kind has no autocast".to_owned() };
    };
    let low = amp.default;
    if !amp.dtypes.contains(&low) {
        return failed(format!("the default dtype {low} is none of its regions"));
    }
    let kind = on.device_type().to_string();
    let options = on.options();
    let device = on.device_type();
    let graph = trace_with("default", &options, |t| {
        let port = |name: &str, shape: [usize; 2]| {
            t.tracer().port(name, numbers(shape), tracecast_ir::Role::Input, false, device)
        };
        let (x, w) = (port("x", [4, 8]), port("w", [8, 3]));
        t.output("y", autocast(t, kind.as_str(), None, || x.matmul(w)));
    });
    let graph = match graph {
        Ok(graph) => graph,
        Err(error) => return failed(error.to_string()),
    };
    let found = graph.ty(graph.outputs()[0].1).dtype;
    if found != low {
        return failed(format!("a product in a region without a dtype is {found}, not {low}"));
    }
    match compile(graph, &options) {
        Ok(_) => Outcome::Pass,
        Err(error) => failed(format!(
            "a region that names no dtype is in {low}, and the device has no code for it: {error}"
        )),
    }
}
