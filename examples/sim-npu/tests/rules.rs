//! What holds for any device, on chips: nobody waits or copies without need, memory comes back,
//! waits end, guards do not leak, and a lost chip takes nothing else with it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod network;

use network::{
    PATIENCE, batch, chips, contents, eventually, f32s, given, on, settings, step, twin,
};
use sim_npu::{Driver, Injection, Memories, Point, Settings, current, set_current};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracecast::eager::Eager;
use tracecast::prelude::*;
use tracecast::runtime::{Device, Error, Fault, FaultKind, Input, Registry, Result};
use tracecast::{Executable, trace_with};

fn fault<T: std::fmt::Debug>(result: Result<T>) -> Fault {
    match result {
        Err(Error::Fault(fault)) => *fault,
        other => panic!("{other:?}"),
    }
}

/// `sum` becomes `sum + x[index]`, and is an output.
fn adding(options: &Options, width: usize) -> Executable {
    let graph = trace_with("adding", options, |t| {
        let x = t.input_of("x", f32s(&[3, width]));
        let index = t.input_of("index", TensorType::new(DType::I64, [1]));
        let sum = t.state_of("sum", f32s(&[1, width]));
        let next = sum + x.embedding(index);
        t.update(sum, next);
        t.output("next", next * 2.0);
    });
    tracecast::compile(graph.unwrap(), options).unwrap()
}

fn sums(width: usize) -> Store {
    Store::new().with("sum", Tensor::new([1, width], &vec![0.0f32; width]).unwrap())
}

fn add(program: &Executable, store: &mut Store, index: i64) -> Result<()> {
    let width = store.ty("sum").unwrap().shape[1].get();
    let x = Tensor::new([3, width], &vec![1.0f32; 3 * width]).unwrap();
    let index = Tensor::new([1], &[index]).unwrap();
    program.submit(store, &[("x", Input::from(&x)), ("index", Input::from(&index))]).map(|_| ())
}

fn sum(store: &Store) -> f32 {
    store.get("sum").unwrap().to_vec::<f32>().unwrap()[0]
}

#[test]
fn a_hundred_steps_that_nobody_reads() {
    let (registry, chips) = chips(&settings());
    let (chip, options) = (&chips[0], on(&registry, "npu:0"));
    let training = step(options.clone());
    let mut store = Store::new();
    training.init(&mut store, 3).unwrap();
    let first = batch(0, 1.0);
    let graph = training.jit().graph(&store, &given(&first)).unwrap();
    let program = tracecast::compile(graph, &options).unwrap();
    let mut memory = 0;
    let mut before = chip.counts();
    for number in 0..103 {
        let batch = batch(number, if number == 50 { f32::NAN } else { 1.0 });
        let inputs: Vec<(&str, Input<'_>)> =
            batch.iter().map(|(name, tensor)| (*name, Input::from(tensor))).collect();
        program.submit(&mut store, &inputs).unwrap();
        // A host that has other things to do.
        eventually("a step", || chip.is_idle());
        match number {
            // State is on the chip now, and has the memory that steps in flight take turns with.
            2 => (before, memory) = (chip.counts(), chip.usage().in_use),
            3.. => assert_eq!(chip.usage().in_use, memory, "step {number}"),
            _ => {}
        }
    }
    let counts = chip.counts().since(before);
    assert_eq!((counts.waits, counts.downloads), (0, 0));
    assert_eq!(counts.uploads, 100 * first.len() as u64);
    // The scaler has worked all the time: its scale grew, and once fell.
    let scale: f32 = store.get("amp.scale").unwrap().item().unwrap();
    assert!(scale > 65536.0 && store.get("amp.growth_tracker").is_ok(), "{scale}");
    assert_eq!(chip.counts().strangers, 0);
}

#[test]
fn a_recorded_scaler_copies_nothing() {
    let (registry, chips) = chips(&settings());
    let options = on(&registry, "npu:1");
    let scaled = |enabled: bool| {
        let scaler = ScalerOptions { enabled, ..ScalerOptions::default() };
        let step = TrainStep::new(network::Network, |t, model| {
            let scores = model.forward(t.input("x")) * t.input("poison");
            -(scores.log_softmax(-1) * t.input("labels")).mean(())
        });
        let step = step.optimizer(Sgd::new(0.1)).autocast("npu", None).scaler(scaler);
        let step = step.options(options.clone()).build().unwrap();
        let mut store = Store::new();
        step.init(&mut store, 3).unwrap();
        let batch = batch(0, 1.0);
        let graph = step.jit().graph(&store, &given(&batch)).unwrap();
        let program = tracecast::compile(graph, &options).unwrap();
        let inputs: Vec<(&str, Input<'_>)> =
            batch.iter().map(|(name, tensor)| (*name, Input::from(tensor))).collect();
        let mut run = || program.submit(&mut store, &inputs).and_then(|out| out.wait()).unwrap();
        run();
        let before = chips[1].counts();
        run();
        chips[1].counts().since(before)
    };
    let (with, without) = (scaled(true), scaled(false));
    assert_eq!((with.uploads, with.downloads), (without.uploads, without.downloads));
    // Parameters that may keep their values are copied to where the step writes; a scale is not.
    assert!(with.downloads == 0 && with.launches > without.launches);
}

#[test]
fn out_of_memory_is_tried_again_behind_what_is_in_flight() {
    let width = 1 << 16;
    let (registry, chips) = chips(&Settings { memory: 3 << 20, ..settings() });
    let (chip, options) = (&chips[0], on(&registry, "npu"));
    let program = adding(&options, width);
    let mut store = sums(width);
    add(&program, &mut store, 0).unwrap();
    store.synchronize().unwrap();
    drop((program, store));
    // What the chip keeps is in pieces of other sizes.
    eventually("memory comes back", || chip.usage().in_use == 0);
    assert!(chip.usage().kept > 1 << 20);
    let program = adding(&options, width + 4096);
    let mut store = sums(width + 4096);
    add(&program, &mut store, 2).unwrap();
    assert_eq!(sum(&store), 1.0);
    // What does not fit at all is an error that says how much there is; nothing is lost.
    let other = adding(&options, 1 << 18);
    let mut large = sums(1 << 18);
    let error = add(&other, &mut large, 0).unwrap_err();
    let found = match &error {
        Error::Fault(fault) => fault,
        other => panic!("{other}"),
    };
    let FaultKind::OutOfMemory { asked, in_use, limit } = found.kind else { panic!("{found}") };
    assert!(asked >= 1 << 20 && in_use > 0 && limit == Some(3 << 20), "{found}");
    assert!(error.to_string().contains("npu:0"), "{error}");
    assert_eq!(sum(&large), 0.0);
    add(&program, &mut store, 1).unwrap();
    assert_eq!(sum(&store), 2.0);
    drop((program, store, other, large));
    eventually("memory comes back", || chip.usage().in_use == 0);
}

#[test]
fn waits_end_and_what_they_waited_for_goes_on() {
    let patience = Duration::from_millis(300);
    let (registry, chips) = chips(&Settings { patience, ..settings() });
    let program = adding(&on(&registry, "npu:0"), 4);
    let mut store = sums(4);
    chips[0].pause();
    add(&program, &mut store, 0).unwrap();
    let begun = Instant::now();
    for _ in 0..2 {
        let late = fault(store.get("sum"));
        assert!(late.kind == FaultKind::TimedOut && late.to_string().contains("npu:0"), "{late}");
        assert_eq!(fault(store.synchronize()).kind, FaultKind::TimedOut);
    }
    assert!(begun.elapsed() >= 4 * patience && begun.elapsed() < PATIENCE);
    chips[0].resume();
    eventually("the step", || chips[0].is_idle());
    assert_eq!(sum(&store), 1.0);
}

#[test]
fn a_lost_chip_takes_nothing_else_with_it() {
    let (registry, chips) = chips(&settings());
    let [lost, other] = ["npu:0", "npu:1"].map(|name| adding(&on(&registry, name), 4));
    let mut store = sums(4).with("host", Tensor::scalar(7.0f32));
    let mut elsewhere = sums(4);
    add(&lost, &mut store, 0).unwrap();
    store.synchronize().unwrap();
    add(&other, &mut elsewhere, 0).unwrap();
    chips[0].inject(Injection { point: Point::Lost, number: 1 });
    add(&lost, &mut store, 0).unwrap();
    let found = fault(store.synchronize());
    assert!(found.is_lost() && found.device.to_string() == "npu:0", "{found}");
    // From now on its entries are errors that name it, and others are as they were.
    for _ in 0..2 {
        let text = store.get("sum").unwrap_err().to_string();
        assert!(text.contains("npu:0") && text.contains("lost"), "{text}");
        assert!(add(&lost, &mut store, 0).is_err());
    }
    assert_eq!(store.get("host").unwrap().to_f64s(), [7.0]);
    add(&other, &mut elsewhere, 1).unwrap();
    assert_eq!(sum(&elsewhere), 2.0);
    assert!(chips[0].alloc(1).is_err() && chips[0].memory_stats().is_some());
    // They can be taken out, or replaced, and live elsewhere.
    assert!(store.discard("sum"));
    assert!(store.get("sum").is_err());
    store.insert("sum", Tensor::new([1, 4], &[5.0f32; 4]).unwrap());
    add(&other, &mut store, 0).unwrap();
    assert_eq!(sum(&store), 6.0);
    drop((lost, store));
    eventually("memory comes back", || chips[0].usage().in_use == 0);
}

#[test]
fn eight_threads_on_three_chips_leave_each_thread_its_own() {
    let (registry, chips) = chips(&Settings { count: 3, ..settings() });
    let programs: Vec<Executable> =
        (0..3).map(|i| adding(&on(&registry, &format!("npu:{i}")), 40)).collect();
    let work = |thread: u16| {
        let own = thread.checked_sub(1).map(|thread| 90 + thread);
        set_current(own);
        let mut stores: Vec<Store> = (0..3).map(|_| sums(40)).collect();
        // Of each store what is known to be done, and what was given since.
        let mut known = [(0.0f32, 0.0f32); 3];
        for turn in 0..60 {
            let at = (usize::from(thread) + turn) % 3;
            let is_wrong = turn % 7 == 3;
            let given = add(&programs[at], &mut stores[at], if is_wrong { 9 } else { 1 });
            known[at].1 += f32::from(u8::from(given.is_ok() && !is_wrong));
            assert_eq!(current(), own);
            if turn % 5 == 0 || is_wrong || given.is_err() {
                let ended = given.and_then(|()| stores[at].synchronize());
                assert!(!is_wrong || ended.is_err());
                // Steps fall with those before them on their chip, also those of other threads; not
                // more than that.
                if let Err(error) = &ended {
                    let text = error.to_string();
                    assert!(text.contains("out of range") && text.contains(chips[at].name()));
                }
                let (before, since) = known[at];
                let now = sum(&stores[at]);
                let least = if ended.is_ok() { before + since } else { before };
                assert!((least..=before + since).contains(&now), "{now}: {least} and {since}");
                known[at] = (now, 0.0);
            }
            assert_eq!(current(), own);
        }
        // Errors and panics within a call.
        let options = on(&registry, "npu:2");
        let wrong = jit(options.clone(), |t| t.output("y", t.input("x").cumsum(0)));
        let x = Tensor::scalar(1.0f32).reshape([1]).unwrap();
        assert!(wrong.run(&mut Store::new(), &[("x", &x)]).is_err());
        assert_eq!(current(), own);
        let panics = jit(options, |_| panic!("in the middle of a trace"));
        let run = || panics.run(&mut Store::new(), &[]).is_ok();
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err() && current() == own);
    };
    std::thread::scope(|scope| {
        (0..8).for_each(|thread| drop(scope.spawn(move || work(thread))));
    });
    drop(programs);
    for chip in &chips {
        eventually("memory comes back", || chip.usage().in_use == 0);
        assert_eq!(chip.counts().strangers, 0, "{chip:?}");
    }
}

#[test]
fn memory_comes_back_from_eager_tensors_and_stores() {
    let (registry, chips) = chips(&settings());
    let eager = Eager::new(on(&registry, "npu:1")).unwrap();
    let x = eager.tensor(Tensor::new([2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap());
    let host = x.to_host().unwrap();
    assert_eq!(host.to_f64s(), [1.0, 2.0, 3.0, 4.0]);
    let mut store = sums(8);
    let program = adding(&on(&registry, "npu:1"), 8);
    add(&program, &mut store, 0).unwrap();
    let clone = store.try_clone().unwrap();
    let stats = chips[1].memory_stats().unwrap();
    assert!(stats.in_use > 0 && stats.allocations > Some(0) && stats.peak >= Some(stats.in_use));
    assert_eq!(stats.limit, Some(settings().memory));
    drop((eager, x, store, program, clone));
    eventually("memory comes back", || chips[1].usage().in_use == 0);
    assert_eq!(chips[1].memory_stats().unwrap().allocations, Some(0));
}

#[test]
fn a_driver_is_opened_once_per_chip_and_leaves_when_idle() {
    let registry = Arc::new(Registry::new());
    let driver = Driver { settings: Settings { count: 2, ..settings() } };
    registry.register("npu", Arc::new(driver.clone())).unwrap();
    assert!(registry.register("npu", Arc::new(driver)).is_err());
    let program = adding(&on(&registry, "npu:1"), 4);
    let mut store = sums(4);
    add(&program, &mut store, 0).unwrap();
    for wrong in ["npu:2", "npu:99", "npu:", "npu:-1", "a:b:c", "", "my dev!"] {
        assert!(registry.device(wrong).is_err(), "{wrong}");
    }
    let first = registry.device("npu:1").unwrap();
    assert!(Arc::ptr_eq(&first, &registry.device("npu:1").unwrap()));
    let busy = registry.unregister("npu").unwrap_err().to_string();
    assert!(busy.contains("npu:1"), "{busy}");
    assert_eq!(sum(&store), 1.0);
    drop((first, program, store));
    registry.unregister("npu").unwrap();
    assert!(registry.device("npu:1").is_err());
    let none = Driver { settings: Settings { count: 0, ..settings() } };
    registry.register("npu", Arc::new(none)).unwrap();
    assert!(registry.device("npu").unwrap_err().to_string().contains("0 devices"));
}

#[test]
fn a_strict_chip_says_what_it_cannot_hold() {
    let (registry, _) = chips(&Settings { memories: Memories::Numbers, ..settings() });
    let run = |body: fn(Var<'_>) -> Var<'_>| {
        let program = jit(on(&registry, "npu:1"), move |t| t.output("y", body(t.input("x"))));
        let x = Tensor::new([2], &[1.0f32, -1.0]).unwrap();
        program.run(&mut Store::new(), &[("x", &x)]).map(|out| out["y"].to_f64s())
    };
    assert_eq!(run(|x| x.relu() * 3.0).unwrap(), [3.0, 0.0]);
    let refused = run(|x| x.gt(0.0)).unwrap_err().to_string();
    assert!(refused.contains("npu:1") && refused.contains("@gt"), "{refused}");
    assert!(refused.contains("its memory holds f32, bf16 only, found bool"), "{refused}");
}

#[test]
fn virtual_time_is_the_same_whenever_it_is_measured() {
    let times: Vec<Duration> = (0..3)
        .map(|_| {
            let (registry, chips) = chips(&settings());
            let program = adding(&on(&registry, "npu"), 100);
            let mut store = sums(100);
            (0..5).for_each(|index| add(&program, &mut store, index % 3).unwrap());
            assert_eq!(sum(&store), 5.0);
            chips[0].now()
        })
        .collect();
    assert!(times[0] > Duration::ZERO && times.iter().all(|time| *time == times[0]), "{times:?}");
}

#[test]
fn a_step_is_the_same_on_any_chip() {
    let (registry, _) = chips(&settings());
    let stores = ["npu:0", "npu:1"].map(|name| {
        let training = step(on(&registry, name));
        let mut store = Store::new();
        training.init(&mut store, 5).unwrap();
        for number in 0..4 {
            training.run(&mut store, &given(&batch(number, 1.0))).unwrap();
        }
        contents(&store)
    });
    assert_eq!(stores[0], stores[1]);
    assert!(twin().target().is_ok());
}
