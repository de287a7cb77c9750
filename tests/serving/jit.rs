//! A `Jit` under several threads: what is compiled already never waits, what is new is compiled
//! once, and failures are everybody's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use tracecast::prelude::*;
use tracecast::{Error, Outputs, Result};

fn options() -> Options {
    Options::new().device("reference").infer_sizes(false)
}

fn run(jit: &Jit, length: usize) -> Result<Outputs> {
    let x = Tensor::full(TensorType::new(DType::F32, [length]), 1.5)?;
    jit.run(&mut Store::new(), &[("x", &x)])
}

fn double(t: &Trace) {
    t.output("y", t.input("x") * 2.0);
}

/// Waits until a number of threads wait for another one's compilation.
fn until_waiting(jit: &Jit, waits: u64) {
    while jit.counters().waits < waits {
        thread::yield_now();
    }
}

#[test]
fn a_cached_signature_runs_while_another_compiles() {
    let ((begun, has_begun), (go_on, may_go_on)) = (channel(), channel());
    let (begun, may_go_on) = (Mutex::new(begun), Mutex::new(may_go_on));
    let jit = jit(options(), move |t| {
        if t.input("x").shape()[0] == 2 {
            begun.lock().unwrap().send(()).unwrap();
            may_go_on.lock().unwrap().recv().unwrap();
        }
        double(t);
    });
    run(&jit, 1).unwrap();
    thread::scope(|scope| {
        let compiling = scope.spawn(|| run(&jit, 2).unwrap()["y"].to_vec::<f32>().unwrap());
        has_begun.recv().unwrap();
        for _ in 0..10 {
            assert_eq!(run(&jit, 1).unwrap()["y"].to_vec::<f32>().unwrap(), [3.0]);
        }
        // Another new signature is compiled meanwhile as well.
        assert_eq!(run(&jit, 3).unwrap()["y"].shape()[..], [3]);
        go_on.send(()).unwrap();
        assert_eq!(compiling.join().unwrap(), [3.0, 3.0]);
    });
    let counters = jit.counters();
    assert_eq!((counters.hits, counters.misses, counters.waits), (10, 3, 0));
}

#[test]
fn several_callers_of_a_new_signature_compile_it_once() {
    for named in [false, true] {
        let traced = Arc::new(AtomicUsize::new(0));
        let (counted, shared) = (traced.clone(), Arc::new(OnceLock::<Arc<Jit>>::new()));
        let waited_for = shared.clone();
        let made = jit(options(), move |t| {
            if counted.fetch_add(1, Ordering::SeqCst) == 0 {
                until_waiting(waited_for.get().unwrap(), 3);
            }
            double(t);
        });
        let made = Arc::new(if named { made.sizes("x: [length]") } else { made });
        shared.set(made.clone()).unwrap();
        thread::scope(|scope| {
            for i in 0..4 {
                // With names all lengths have one signature.
                let length = if named { 5 + i } else { 5 };
                let made = &made;
                scope.spawn(move || {
                    assert_eq!(run(made, length).unwrap()["y"].shape()[..], [length as i64])
                });
            }
        });
        assert_eq!((traced.load(Ordering::SeqCst), made.counters().misses), (1, 1), "{named}");
    }
}

#[test]
fn a_failure_is_that_of_everybody_who_waited_and_the_next_call_tries_again() {
    for panics in [false, true] {
        let shared = Arc::new(OnceLock::<Arc<Jit>>::new());
        let (waited_for, has_failed) = (shared.clone(), AtomicBool::new(false));
        let made = Arc::new(jit(options(), move |t| {
            if !has_failed.swap(true, Ordering::SeqCst) {
                until_waiting(waited_for.get().unwrap(), 2);
                assert!(!panics, "no such luck");
                t.output("y", t.input("x") + t.input("missing"));
            }
            double(t);
        }));
        shared.set(made.clone()).unwrap();
        let results: Vec<_> = thread::scope(|scope| {
            let one = || catch_unwind(AssertUnwindSafe(|| run(&made, 4).unwrap_err().to_string()));
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let panicked = results.iter().filter(|result| result.is_err()).count();
        assert_eq!(panicked, usize::from(panics));
        let expected = if panics { "`step` panicked: no such luck" } else { "`missing`" };
        for message in results.into_iter().flatten() {
            assert!(message.contains(expected), "{message}");
        }
        assert_eq!(run(&made, 4).unwrap()["y"].shape()[..], [4]);
        assert_eq!((made.counters().failures, made.counters().misses), (1, 1));
    }
}

#[test]
fn a_failure_that_nobody_waited_for_keeps_its_kind() {
    let jit = jit(options(), |t| t.output("y", t.input("x") + t.input("missing")));
    assert!(matches!(run(&jit, 1), Err(Error::Trace(_))));
}

#[test]
fn a_program_that_runs_itself_is_an_error() {
    let shared = Arc::new(OnceLock::<Arc<Jit>>::new());
    let own = shared.clone();
    let told = Arc::new(Mutex::new(Vec::new()));
    let tells = told.clone();
    let made = Arc::new(jit(options(), move |t| {
        let message = run(own.get().unwrap(), 7).unwrap_err().to_string();
        tells.lock().unwrap().push(message);
        double(t);
    }));
    assert!(shared.set(made.clone()).is_ok());
    assert_eq!(run(&made, 7).unwrap()["y"].shape()[..], [7]);
    let told = told.lock().unwrap();
    assert_eq!(told[..], ["`step` needs itself to be compiled: its closure runs it"]);
}

#[test]
fn two_programs_that_run_each_other_are_an_error_in_any_thread() {
    let pair: Arc<OnceLock<[Jit; 2]>> = Arc::new(OnceLock::new());
    let failed = Arc::new(AtomicUsize::new(0));
    let made = [0, 1].map(|which: usize| {
        let (pair, failed) = (pair.clone(), failed.clone());
        jit(options(), move |t| {
            if run(&pair.get().unwrap()[1 - which], 3).is_err() {
                failed.fetch_add(1, Ordering::SeqCst);
            }
            double(t);
        })
    });
    assert!(pair.set(made).is_ok());
    thread::scope(|scope| {
        for which in [0, 1, 0, 1] {
            let pair = &pair;
            scope.spawn(move || run(&pair.get().unwrap()[which], 3).unwrap());
        }
    });
    assert!(failed.load(Ordering::SeqCst) > 0);
}

#[test]
fn sizes_that_are_refused_are_refused_to_those_who_gave_them() {
    let shared = Arc::new(OnceLock::<Arc<Jit>>::new());
    let (waited_for, first) = (shared.clone(), AtomicBool::new(true));
    let (begun, has_begun) = channel();
    let begun = Mutex::new(begun);
    let made = jit(options(), move |t| {
        if first.swap(false, Ordering::SeqCst) {
            begun.lock().unwrap().send(()).unwrap();
            until_waiting(waited_for.get().unwrap(), 1);
        }
        t.output("y", t.input("x").slice(0, 0, 5, 1));
    });
    let made = Arc::new(made.sizes("x: [length]"));
    shared.set(made.clone()).unwrap();
    thread::scope(|scope| {
        let short = scope.spawn(|| run(&made, 3).unwrap_err().to_string());
        has_begun.recv().unwrap();
        assert_eq!(run(&made, 8).unwrap()["y"].shape()[..], [5]);
        let message = short.join().unwrap();
        assert!(message.contains("slice"), "{message}");
    });
}

#[test]
fn limits_drop_what_was_used_longest_ago() {
    let jit = jit(options().programs(2), double);
    for length in [1, 2, 1, 3, 1] {
        run(&jit, length).unwrap();
    }
    let counters = jit.counters();
    assert_eq!((counters.misses, counters.hits, counters.evictions), (3, 2, 1));
    assert_eq!(counters.programs, 2);
    run(&jit, 2).unwrap();
    assert_eq!(jit.counters().misses, 4, "it was used longest ago");
}

#[test]
fn programs_are_limited_by_their_bytes() {
    let lengths = [100_000, 200_000, 300_000];
    // Without names: the lengths are programs of their own.
    let bytes = {
        let jit = jit(options(), double);
        lengths.map(|length| {
            let before = jit.counters().bytes;
            run(&jit, length).unwrap();
            jit.counters().bytes - before
        })
    };
    assert!(bytes[2] >= bytes[0] + 4 * 200_000, "{bytes:?}");
    let jit = jit(options().program_bytes(bytes[1] + bytes[2]), double);
    for length in lengths {
        run(&jit, length).unwrap();
    }
    let counters = jit.counters();
    assert_eq!((counters.programs, counters.evictions), (2, 1));
    assert!(counters.bytes <= bytes[1] + bytes[2] && counters.compile_time.as_nanos() > 0);
}
