//! Steps in flight: what is pending, what a fault takes back, and who is told.

use super::guest::{Guest, count};
use super::queued::on;
use super::support::{add, double, fused, launch, vector};
use super::{floats, state, store, tensor};
use std::sync::Arc;
use tracecast_ir::Verified;
use tracecast_runtime::{
    Device, Error, Executable, Fault, FaultKind, Input, Registry, Result, Store, Tensor,
};

/// `y` is `2 x`.
pub(crate) fn doubled() -> Verified {
    fused(|t| t.output("y", launch(t, double(2, None), &[t.input("x", vector(2))])[0]))
}

/// `a` becomes `a + x` and `b` becomes `b + 2 x`; there are no outputs.
pub(crate) fn two() -> Verified {
    fused(|t| {
        let [x, a, b] = ["x", "a", "b"].map(|name| match name {
            "x" => t.input(name, vector(1)),
            _ => t.state(name, vector(1)),
        });
        t.update(a, launch(t, add(1, Some(0)), &[a, x])[0]);
        let twice = launch(t, double(1, None), &[x])[0];
        t.update(b, launch(t, add(1, Some(0)), &[b, twice])[0]);
    })
}

pub(crate) fn zeros() -> Store {
    store(&[("a", &[0.0]), ("b", &[0.0])])
}

pub(crate) fn step(program: &Executable, store: &mut Store) -> Result<()> {
    program.run(store, &[("x", &tensor(&[1.0]))]).map(|_| ())
}

/// The values of both, which belong to the same step.
pub(crate) fn both(store: &Store) -> f32 {
    let (a, b) = (state(store, "a"), state(store, "b"));
    assert_eq!(b[0], 2.0 * a[0], "a mixture of steps");
    a[0]
}

pub(crate) fn fault(result: Result<()>) -> Fault {
    match result {
        Err(Error::Fault(fault)) => *fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_run_returns_before_its_step_has_ended() {
    let guest = Guest::new("npu", 3);
    let program = on(&guest, &two());
    let mut store = zeros();
    guest.inside.hold();
    for _ in 0..3 {
        step(&program, &mut store).unwrap();
    }
    assert_eq!(count(&guest.inside.launches), 0);
    guest.inside.go();
    assert_eq!(both(&store), 3.0);
    // A fourth would wait for the first.
    guest.inside.hold();
    (0..3).for_each(|_| step(&program, &mut store).unwrap());
    let waited = count(&guest.inside.waits);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while count(&guest.inside.waits) == waited {
                std::thread::yield_now();
            }
            guest.inside.go();
        });
        step(&program, &mut store).unwrap();
    });
    assert_eq!(both(&store), 7.0);
}

#[test]
fn a_fault_is_told_once_and_takes_the_steps_behind_it() {
    for in_flight in 1..4 {
        for fails in 0..in_flight * 4 {
            let guest = Guest::new("npu:1", in_flight);
            let program = on(&guest, &two());
            let mut store = zeros();
            step(&program, &mut store).unwrap();
            store.synchronize().unwrap();
            guest.inside.hold();
            // A step is an upload and three kernels.
            guest.inside.fail_after(fails, FaultKind::Launch);
            (0..in_flight).for_each(|_| step(&program, &mut store).unwrap());
            guest.inside.go();
            let found = match fails % 3 {
                0 => fault(store.synchronize()),
                1 => fault(store.get("b").map(|_| ())),
                _ => {
                    while guest.inside.stopped().is_none() {
                        std::thread::yield_now();
                    }
                    fault(step(&program, &mut store))
                }
            };
            assert_eq!(found.device.to_string(), "npu:1");
            assert_eq!(found.kernel.is_some(), fails % 4 != 0, "{found}");
            assert_eq!(both(&store), 1.0 + (fails / 4) as f32);
            store.synchronize().unwrap();
            step(&program, &mut store).unwrap();
            assert_eq!(both(&store), 2.0 + (fails / 4) as f32);
        }
    }
}

#[test]
fn what_is_written_between_steps_is_ordered_and_stays() {
    let guest = Guest::new("npu", 4);
    let program = on(&guest, &two());
    let mut store = zeros();
    step(&program, &mut store).unwrap();
    store.set("a", &tensor(&[10.0])).unwrap();
    step(&program, &mut store).unwrap();
    store.insert("b", tensor(&[20.0]));
    step(&program, &mut store).unwrap();
    assert_eq!((state(&store, "a"), state(&store, "b")), (vec![12.0], vec![22.0]));
    // A step that fails takes back what it wrote, not what was inserted since.
    guest.inside.hold();
    guest.inside.fail_after(1, FaultKind::Launch);
    step(&program, &mut store).unwrap();
    store.insert("b", tensor(&[5.0]));
    step(&program, &mut store).unwrap();
    store.insert("c", tensor(&[7.0]));
    guest.inside.go();
    fault(store.synchronize());
    let values = ["a", "b", "c"].map(|name| state(&store, name)[0]);
    assert_eq!(values, [12.0, 5.0, 7.0]);
}

#[test]
fn entries_take_what_is_pending_into_another_store() {
    let guest = Guest::new("npu", 2);
    let program = on(&guest, &two());
    let (mut from, mut to) = (zeros(), Store::new());
    step(&program, &mut from).unwrap();
    from.synchronize().unwrap();
    guest.inside.hold();
    guest.inside.fail_after(2, FaultKind::Launch);
    step(&program, &mut from).unwrap();
    from.transfer("a", &mut to, "moved").unwrap();
    guest.inside.go();
    let told = to.get("moved").unwrap_err();
    assert!(matches!(told, Error::Fault(_)), "{told}");
    assert_eq!((state(&to, "moved"), state(&from, "b")), (vec![1.0], vec![2.0]));
}

/// The fault of one store is also that of steps of others behind it, and harms no state.
#[test]
fn stores_beside_one_another_keep_their_state() {
    let guest = Guest::new("npu", 2);
    let program = on(&guest, &two());
    let mut stores = [zeros(), zeros(), zeros()];
    stores.iter_mut().for_each(|store| step(&program, store).unwrap());
    stores[2].synchronize().unwrap();
    guest.inside.hold();
    guest.inside.fail_after(2, FaultKind::Launch);
    stores[..2].iter_mut().for_each(|store| step(&program, store).unwrap());
    guest.inside.go();
    fault(stores[0].synchronize());
    fault(stores[1].synchronize());
    for store in &mut stores {
        assert_eq!(both(store), 1.0);
        step(&program, store).unwrap();
        assert_eq!(both(store), 2.0);
    }
}

/// Entries of one store on two devices: the fault of each is told, and neither takes back what the
/// other did.
#[test]
fn each_device_of_a_store_tells_its_own_fault() {
    let one = fused(|t| {
        let (x, a) = (t.input("x", vector(1)), t.state("a", vector(1)));
        t.update(a, launch(t, add(1, Some(0)), &[a, x])[0]);
    });
    let other = fused(|t| {
        let (x, b) = (t.input("x", vector(1)), t.state("b", vector(1)));
        t.update(b, launch(t, add(1, Some(0)), &[b, x])[0]);
    });
    let guests = [Guest::new("npu", 2), Guest::new("npu:1", 2)];
    let programs = [on(&guests[0], &one), on(&guests[1], &other)];
    let mut store = zeros();
    programs.iter().for_each(|program| step(program, &mut store).unwrap());
    store.synchronize().unwrap();
    for guest in &guests {
        guest.inside.hold();
        guest.inside.fail_after(1, FaultKind::Launch);
    }
    programs.iter().for_each(|program| step(program, &mut store).unwrap());
    guests.iter().for_each(|guest| guest.inside.go());
    let told = [fault(store.synchronize()), fault(store.synchronize())];
    assert_eq!(told.map(|fault| fault.device.to_string()), ["npu:0", "npu:1"]);
    store.synchronize().unwrap();
    assert_eq!((state(&store, "a"), state(&store, "b")), (vec![1.0], vec![1.0]));
}

#[test]
fn steps_that_nobody_reads_wait_for_nothing() {
    let guest = Guest::new("npu", 128);
    let program = on(&guest, &two());
    let mut store = zeros();
    step(&program, &mut store).unwrap();
    store.synchronize().unwrap();
    let inside = &guest.inside;
    let before = [&inside.waits, &inside.downloads, &inside.uploads].map(count);
    for _ in 0..100 {
        step(&program, &mut store).unwrap();
    }
    let after = [&inside.waits, &inside.downloads].map(count);
    assert_eq!(after, [before[0], before[1]]);
    store.synchronize().unwrap();
    assert_eq!(count(&inside.uploads), before[2] + 100);
    assert_eq!(both(&store), 101.0);
    // The memory of as many values as are in flight, and no more.
    let guest = Guest::new("npu", 3);
    let program = on(&guest, &two());
    let mut used = Vec::new();
    for _ in 0..30 {
        step(&program, &mut store).unwrap();
        used.push(guest.inside.in_use());
    }
    assert_eq!(used[10..].iter().max(), used[..10].iter().max());
    drop((program, store));
    guest.queue().unwrap().run(&mut |_| Ok(())).unwrap();
    assert_eq!(guest.inside.in_use(), 0);
}

#[test]
fn outputs_stay_on_the_device_and_go_into_other_steps() {
    let g = doubled();
    let guest = Guest::new("npu", 8);
    let program = on(&guest, &g);
    let x = tensor(&[1.0, 3.0]);
    let mut store = Store::new();
    let first = program.submit(&mut store, &[("x", Input::from(&x))]).unwrap();
    let second = program.submit(&mut store, &[("x", first.value("y").unwrap().into())]).unwrap();
    let third = program.submit(&mut store, &[("x", second.value("y").unwrap().into())]).unwrap();
    assert_eq!((count(&guest.inside.waits), count(&guest.inside.downloads)), (0, 0));
    assert_eq!(floats(&third.get("y").unwrap()), [8.0, 24.0]);
    assert_eq!((count(&guest.inside.uploads), count(&guest.inside.downloads)), (1, 1));
    assert!(third.value("z").is_err() && third.wait().is_ok());
    // On another device, and on one without a queue.
    let other = on(&Guest::new("npu:1", 1), &g);
    let moved = other.submit(&mut store, &[("x", third.value("y").unwrap().into())]).unwrap();
    assert_eq!(moved.value("y").unwrap().device().unwrap().to_string(), "npu:1");
    let host = super::load(&g, true);
    let home = host.submit(&mut store, &[("x", moved.value("y").unwrap().into())]).unwrap();
    assert_eq!(floats(&home.get("y").unwrap()), [32.0, 96.0]);
    // What reads a value of a failed step falls with it, and each is told.
    guest.inside.hold();
    guest.inside.fail_after(1, FaultKind::Launch);
    let first = program.submit(&mut store, &[("x", Input::from(&x))]).unwrap();
    let second = program.submit(&mut store, &[("x", first.value("y").unwrap().into())]).unwrap();
    guest.inside.go();
    fault(second.wait());
    fault(first.get("y").map(|_| ()));
    fault(program.submit(&mut store, &[("x", first.value("y").unwrap().into())]).map(|_| ()));
    assert_eq!(floats(&program.run(&mut store, &[("x", &x)]).unwrap()["y"]), [2.0, 6.0]);
}

#[test]
fn what_a_lost_device_had_is_an_error_that_names_it() {
    let guest = Guest::new("npu:1", 2);
    let program = on(&guest, &two());
    let mut store = zeros().with("host", Tensor::scalar(3f32));
    step(&program, &mut store).unwrap();
    store.synchronize().unwrap();
    guest.inside.fail_after(1, FaultKind::Lost);
    step(&program, &mut store).unwrap();
    assert!(fault(store.synchronize()).is_lost());
    for _ in 0..2 {
        let said = store.get("a").unwrap_err().to_string();
        assert!(said.contains("npu:1") && said.contains("lost"), "{said}");
        assert!(fault(step(&program, &mut store)).is_lost());
    }
    assert_eq!(store.get("host").unwrap().item::<f32>().unwrap(), 3.0);
    assert!(store.discard("a") && store.discard("b"));
    store.insert("a", tensor(&[1.0]));
    store.insert("b", tensor(&[2.0]));
    let other = Guest::new("npu:2", 2);
    step(&on(&other, &two()), &mut store).unwrap();
    assert_eq!(both(&store), 2.0);
    drop((program, store));
}

/// Threads with stores of their own, on a queue that fails again and again.
#[test]
fn every_store_holds_a_complete_step_whatever_fails() {
    let guest = Guest::new("npu", 3);
    let program = Arc::new(on(&guest, &two()));
    let told = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|seed: usize| {
                let (program, guest) = (program.clone(), guest.clone());
                scope.spawn(move || {
                    let (mut store, mut at, mut given, mut told) = (zeros(), 0.0, 0, 0);
                    for round in 0..400 {
                        if (round * 7 + seed * 13).is_multiple_of(29) {
                            guest.inside.fail_after((round + seed) % 11, FaultKind::Launch);
                        }
                        let ran = match (round + seed) % 5 {
                            4 => store.synchronize().map(|()| {
                                assert_eq!(both_after(&store), at + given as f32);
                                (at, given) = (at + given as f32, 0);
                            }),
                            _ => step(&program, &mut store).map(|()| given += 1),
                        };
                        if let Err(error) = ran {
                            told += 1;
                            assert_ne!(fault(Err(error)).kind, FaultKind::TimedOut);
                            // Told once: nothing is left to tell.
                            store.synchronize().unwrap();
                            let now = both_after(&store);
                            assert!(now >= at && now <= at + given as f32, "{at} {given} {now}");
                            (at, given) = (now, 0);
                        }
                    }
                    told
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    });
    assert!(told > 20, "{told}");
}

/// The value of a store whose reads may fail themselves, and never with a kernel of others.
fn both_after(store: &Store) -> f32 {
    let read = |name: &str| loop {
        match store.get(name) {
            Ok(value) => return floats(&value)[0],
            Err(error) => assert_eq!(fault(Err(error)).kind, FaultKind::Copy),
        }
    };
    let (a, b) = (read("a"), read("b"));
    assert_eq!(b, 2.0 * a);
    a
}

#[test]
fn a_device_in_flight_is_in_use() {
    let (registry, guest) = (Registry::new(), Guest::new("npu", 2));
    registry.register_device(guest.clone()).unwrap();
    let program = on(&guest, &two());
    let mut store = zeros();
    step(&program, &mut store).unwrap();
    assert!(registry.unregister("npu").is_err());
    drop((program, store, guest));
    registry.unregister("npu").unwrap();
}
