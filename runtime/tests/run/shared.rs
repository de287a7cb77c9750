//! What steps in flight share: memory, waits, and who is told how one ended.

use super::guest::{Guest, count};
use super::in_flight::{both, doubled, fault, step, two, zeros};
use super::queued::on;
use super::support::{double, fused, launch, vector};
use super::{floats, state, tensor};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracecast_runtime::{Device, FaultKind, Input, Store, Tensor};

/// Long enough for a step, and short enough for a test that waits in vain.
const SHORT: Duration = Duration::from_millis(40);

#[test]
fn memory_of_ended_steps_is_used_before_there_is_none() {
    let guest = Guest::new("npu", 4);
    let program = on(&guest, &two());
    let mut store = zeros();
    // Of both entries two values, and what a step needs besides.
    step(&program, &mut store).unwrap();
    store.synchronize().unwrap();
    guest.inside.limit(guest.inside.in_use());
    for _ in 0..10 {
        step(&program, &mut store).unwrap();
    }
    assert_eq!(both(&store), 11.0);
}

#[test]
fn outputs_that_were_dropped_are_written_again() {
    let guest = Guest::new("npu", 3);
    let program = on(&guest, &doubled());
    let x = tensor(&[1.0, 3.0]);
    let mut store = Store::new();
    let mut submit = || program.submit(&mut store, &[("x", Input::from(&x))]).unwrap();
    let held = submit();
    drop(submit());
    held.wait().unwrap();
    let used = guest.inside.in_use();
    for _ in 0..20 {
        submit();
    }
    submit().wait().unwrap();
    assert_eq!(guest.inside.in_use(), used);
    // What somebody has stays as it is, also behind the outputs.
    let value = held.value("y").unwrap().clone();
    drop(held);
    submit().wait().unwrap();
    assert_eq!(floats(&value.to_host().unwrap()), [2.0, 6.0]);
    drop((value, program));
    guest.queue().unwrap().run(&mut |_| Ok(())).unwrap();
    assert_eq!(guest.inside.in_use(), 0);
}

#[test]
fn many_outputs_that_were_dropped_do_not_stay() {
    let guest = Guest::new("npu", 2);
    let program = on(&guest, &doubled());
    let x = tensor(&[1.0, 3.0]);
    let mut store = Store::new();
    let mut submit = || program.submit(&mut store, &[("x", Input::from(&x))]).unwrap();
    submit().wait().unwrap();
    let used = guest.inside.in_use();
    let many: Vec<_> = (0..50).map(|_| submit()).collect();
    drop(many);
    submit().wait().unwrap();
    assert!(guest.inside.in_use() <= used + 2 * x.bytes().len(), "{}", guest.inside.in_use());
}

/// A timeline may end a step by a fault of that kind: it is an end as others are.
#[test]
fn a_step_that_ended_by_taking_too_long_is_told_once() {
    let guest = Guest::new("npu", 2);
    let program = on(&guest, &two());
    let mut store = zeros();
    step(&program, &mut store).unwrap();
    store.synchronize().unwrap();
    guest.inside.fail_after(1, FaultKind::TimedOut);
    step(&program, &mut store).unwrap();
    assert_eq!(fault(store.synchronize()).kind, FaultKind::TimedOut);
    store.synchronize().unwrap();
    assert_eq!(both(&store), 1.0);
    step(&program, &mut store).unwrap();
    assert_eq!(both(&store), 2.0);
}

#[test]
fn a_wait_that_took_too_long_does_not_hide_how_the_step_ends() {
    let g = fused(|t| {
        let (x, a) = (t.input("x", vector(1)), t.state("a", vector(1)));
        let twice = launch(t, double(1, None), &[x])[0];
        t.update(a, twice);
        t.output("y", twice);
    });
    let guest = Guest::within("npu", 2, SHORT);
    let program = on(&guest, &g);
    let mut store = super::store(&[("a", &[3.0])]);
    guest.inside.hold();
    // Behind the copies of state and input.
    guest.inside.fail_after(2, FaultKind::Launch);
    for _ in 0..2 {
        assert_eq!(fault(step(&program, &mut store)).kind, FaultKind::TimedOut);
    }
    assert_eq!(fault(store.synchronize()).kind, FaultKind::TimedOut);
    guest.inside.go();
    while guest.inside.stopped().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(fault(store.synchronize()).kind, FaultKind::Launch);
    store.synchronize().unwrap();
    assert_eq!(state(&store, "a"), [3.0]);
}

#[test]
fn a_snapshot_is_of_whole_steps_and_drops_none() {
    let guest = Guest::within("npu", 3, SHORT);
    let program = on(&guest, &two());
    let mut store = zeros();
    step(&program, &mut store).unwrap();
    store.synchronize().unwrap();
    guest.inside.hold();
    step(&program, &mut store).unwrap();
    step(&program, &mut store).unwrap();
    let weights = store.snapshot();
    let value = |weights: &tracecast_runtime::Weights, name| floats(&weights.get(name).unwrap())[0];
    guest.inside.go();
    assert_eq!(both(&store), 3.0);
    // Steps that follow do not write to what is shared.
    (0..5).for_each(|_| step(&program, &mut store).unwrap());
    assert_eq!(both(&store), 8.0);
    assert_eq!((value(&weights, "a"), value(&weights, "b")), (1.0, 2.0));
    // Whenever the step ends, it is in the snapshot with all that it wrote or with nothing.
    for asks in 1..16 {
        let mut store = zeros();
        step(&program, &mut store).unwrap();
        store.synchronize().unwrap();
        guest.inside.hold();
        step(&program, &mut store).unwrap();
        guest.inside.go_after(asks);
        let weights = store.snapshot();
        guest.inside.go_after(0);
        guest.inside.go();
        assert_eq!(both(&store), 2.0);
        assert_eq!(value(&weights, "b"), 2.0 * value(&weights, "a"), "{asks}");
    }
}

/// A fault of the steps of others is none of a read, which is only behind them.
#[test]
fn reads_do_not_tell_the_faults_of_others() {
    let guest = Guest::new("npu", 2);
    let program = on(&guest, &two());
    let (mut store, mut other) = (zeros(), zeros());
    for store in [&mut store, &mut other] {
        step(&program, store).unwrap();
        store.synchronize().unwrap();
    }
    guest.inside.hold();
    guest.inside.fail_after(1, FaultKind::Launch);
    step(&program, &mut other).unwrap();
    let waited = count(&guest.inside.waits);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while count(&guest.inside.waits) == waited {
                std::thread::yield_now();
            }
            guest.inside.go();
        });
        assert_eq!(both(&store), 1.0);
    });
    fault(other.synchronize());
    assert_eq!(both(&other), 1.0);
    // Its own fault is one.
    guest.inside.fail_after(0, FaultKind::Copy);
    fault(store.get("a").map(|_| ()));
    assert_eq!(both(&store), 1.0);
}

/// Who has memory to give up is asked for it, but not because a step before failed for want of
/// memory.
#[test]
fn room_is_made_for_a_run_and_not_for_the_one_before() {
    let guest = Guest::new("npu", 2);
    let program = on(&guest, &two());
    let mut store = zeros();
    let asked = AtomicBool::new(false);
    let run = |store: &mut Store| {
        let x = tensor(&[1.0]);
        program.run_making_room(store, &[("x", &x)], &mut || asked.store(true, Ordering::SeqCst))
    };
    run(&mut store).unwrap();
    store.synchronize().unwrap();
    let none = FaultKind::OutOfMemory { asked: 1, in_use: 2, limit: None };
    guest.inside.fail_after(1, none);
    run(&mut store).unwrap();
    while guest.inside.stopped().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(fault(run(&mut store).map(|_| ())).kind, none);
    assert!(!asked.load(Ordering::SeqCst));
    assert_eq!(both(&store), 1.0);
    // Other memory takes all there is.
    let held: Vec<Tensor> = vec![tensor(&[0.0; 64])];
    let ballast = guest.alloc(held[0].bytes().len()).unwrap();
    let mut ballast = Some(ballast);
    let mut fresh = zeros();
    guest.inside.limit(guest.inside.in_use());
    let x = tensor(&[1.0]);
    program.run_making_room(&mut fresh, &[("x", &x)], &mut || drop(ballast.take())).unwrap();
    assert_eq!(both(&fresh), 1.0);
}
