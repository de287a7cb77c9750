//! Programs on a device with a queue.

use super::guest::{Guest, count};
use super::support::{add, double, fused, launch, limit, load, vector};
use super::{floats, state, store, tensor};
use std::sync::Arc;
use std::time::Duration;
use tracecast_ir::Verified;
use tracecast_runtime::{Device, Error, Executable, FaultKind, Program, Registry};

/// `s` becomes `s + x`; the output is twice that.
fn accumulate() -> Verified {
    fused(|t| {
        let (x, s) = (t.input("x", vector(2)), t.state("s", vector(2)));
        let sum = launch(t, add(2, Some(0)), &[s, x])[0];
        t.update(s, sum);
        t.output("twice", launch(t, double(2, None), &[sum])[0]);
    })
}

pub(crate) fn on(guest: &Arc<Guest>, graph: &Verified) -> Executable {
    Program::plan(graph).unwrap().load(guest.clone()).unwrap()
}

#[test]
fn steps_on_a_queue_give_what_they_give_elsewhere() {
    let guest = Guest::new("npu:1", 2);
    let program = on(&guest, &accumulate());
    let mut store = store(&[("s", &[1.0, 2.0])]);
    for step in 1..4 {
        let out = program.run(&mut store, &[("x", &tensor(&[1.0, 10.0]))]).unwrap();
        let now = [1.0 + step as f32, 2.0 + 10.0 * step as f32];
        assert_eq!(state(&store, "s"), now);
        assert_eq!(floats(&out["twice"]), [2.0 * now[0], 2.0 * now[1]]);
    }
    let (_, times) = program.run_timed(&mut store, &[("x", &tensor(&[0.0, 0.0]))]).unwrap();
    assert!(times.iter().all(|timing| !timing.time.is_zero()));
}

#[test]
fn faults_name_device_and_step_and_leave_state() {
    let guest = Guest::new("npu:1", 1);
    let program = on(&guest, &accumulate());
    let mut store = store(&[("s", &[1.0, 2.0])]);
    let x = tensor(&[1.0, 10.0]);
    program.run(&mut store, &[("x", &x)]).unwrap();
    for (commands, says) in [(0, "copy"), (1, "kernel @add"), (2, "kernel @double")] {
        guest.inside.fail_after(commands, FaultKind::Launch);
        let error = match program.run(&mut store, &[("x", &x)]) {
            Err(error) => error,
            Ok(_) => store.get("s").unwrap_err(),
        };
        assert!(matches!(error, Error::Fault(_)), "{error}");
        let said = error.to_string();
        assert!(
            said.contains("npu:1") && said.contains(says) && said.contains("told to"),
            "{said}"
        );
        assert_eq!(state(&store, "s"), [2.0, 12.0]);
    }
    program.run(&mut store, &[("x", &x)]).unwrap();
    assert_eq!(state(&store, "s"), [3.0, 22.0]);
}

#[test]
fn checks_are_faults_that_say_what_was_found() {
    let guest = Guest::new("npu", 1);
    let g = fused(|t| {
        let (x, s) = (t.input("x", vector(2)), t.state("s", vector(2)));
        t.update(s, launch(t, limit(2), &[x])[0]);
    });
    let program = on(&guest, &g);
    let mut store = store(&[("s", &[1.0, 2.0])]);
    let large = tensor(&[1.0, 5000.0]);
    let error = match program.run(&mut store, &[("x", &large)]) {
        Err(error) => error,
        Ok(_) => store.get("s").unwrap_err(),
    };
    let Error::Fault(fault) = error else { panic!("{error}") };
    assert_eq!((fault.kind, fault.kernel.as_deref()), (FaultKind::Check, Some("limit")));
    assert_eq!(state(&store, "s"), [1.0, 2.0]);
}

/// No kernel copies, so a device need not have one of other dtypes for it.
#[test]
fn copies_are_commands_and_no_kernels() {
    let g = fused(|t| {
        let (a, b) = (t.state("a", vector(3)), t.state("b", vector(3)));
        t.update(a, b);
        t.update(b, a);
        t.output("was", a);
    });
    let guest = Guest::new("npu", 1);
    let program = on(&guest, &g);
    assert_eq!((program.kernels(), program.program().copies()), (0, 3));
    assert!(program.program().steps().all(|(_, kernel)| kernel.is_none()));
    assert_eq!(program.program().copied_bytes(0), Some(12));
    let mut exchanged = store(&[("a", &[1.0, 2.0, 3.0]), ("b", &[4.0, 5.0, 6.0])]);
    let out = program.run(&mut exchanged, &[]).unwrap();
    assert_eq!(state(&exchanged, "a"), [4.0, 5.0, 6.0]);
    assert_eq!(state(&exchanged, "b"), [1.0, 2.0, 3.0]);
    assert_eq!(floats(&out["was"]), [1.0, 2.0, 3.0]);
    assert!(count(&guest.inside.copies) >= 3 && count(&guest.inside.launches) == 0);
    for infallible in [true, false] {
        let program = load(&g, infallible);
        let mut exchanged = store(&[("a", &[1.0, 2.0, 3.0]), ("b", &[4.0, 5.0, 6.0])]);
        let out = program.run(&mut exchanged, &[]).unwrap();
        assert_eq!(state(&exchanged, "a"), [4.0, 5.0, 6.0]);
        assert_eq!(
            (state(&exchanged, "b"), floats(&out["was"])),
            (vec![1.0, 2.0, 3.0], vec![1.0, 2.0, 3.0])
        );
    }
}

#[test]
fn waits_are_bounded() {
    let guest = Guest::new("npu", 1);
    let queue = guest.queue().unwrap().clone().within(Duration::from_millis(20));
    guest.inside.hold();
    let Err(Error::Fault(fault)) = queue.run(&mut |_| Ok(())) else { panic!("it waited") };
    assert_eq!((fault.kind, fault.device.to_string()), (FaultKind::TimedOut, "npu:0".to_owned()));
    guest.inside.go();
    queue.run(&mut |_| Ok(())).unwrap();
}

#[test]
fn missing_memory_is_asked_for_twice_and_told_with_numbers() {
    let guest = Guest::new("npu", 1);
    guest.inside.limit(16);
    let program = on(&guest, &accumulate());
    let mut store = store(&[("s", &[1.0, 2.0])]);
    let x = tensor(&[1.0, 10.0]);
    let Err(Error::Fault(fault)) = program.run(&mut store, &[("x", &x)]) else { panic!("it ran") };
    assert!(matches!(fault.kind, FaultKind::OutOfMemory { limit: Some(16), .. }), "{fault}");
    assert!(fault.message.contains("@test"), "{fault}");
    assert!(count(&guest.inside.trims) > 0);
    guest.inside.limit(usize::MAX);
    program.run(&mut store, &[("x", &x)]).unwrap();
    assert_eq!(state(&store, "s"), [2.0, 12.0]);
    drop((program, store));
    guest.queue().unwrap().run(&mut |_| Ok(())).unwrap();
    assert_eq!(guest.memory_stats().unwrap().in_use, 0);
}

#[test]
fn a_registry_bounds_the_waits_for_its_devices() {
    let short = Duration::from_millis(20);
    let (registry, guests) = (Registry::new(), [Guest::new("npu", 1), Guest::new("npu:1", 1)]);
    registry.register_device(guests[0].clone()).unwrap();
    registry.set_wait_limit(short);
    registry.register_device(guests[1].clone()).unwrap();
    for guest in &guests {
        assert_eq!(guest.queue().unwrap().limit(), short);
        let program = on(guest, &accumulate());
        let mut store = store(&[("s", &[1.0, 2.0])]);
        guest.inside.hold();
        let late = program.run(&mut store, &[("x", &tensor(&[1.0, 10.0]))]);
        let Err(Error::Fault(fault)) = late else { panic!("it waited") };
        assert_eq!(fault.kind, FaultKind::TimedOut);
        guest.inside.go();
    }
    registry.set_wait_limit(Duration::MAX);
    assert!(guests[0].queue().unwrap().limit() > Duration::from_secs(1 << 33));
}
