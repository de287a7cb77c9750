//! Eager tensors on devices with a queue: faults, memory under pressure, and what a scaler copies
//! between devices.

use crate::worker::{Guest, count};
use std::sync::Arc;
use std::time::Duration;
use tracecast::amp::EagerScaler;
use tracecast::eager::{DeviceTensor, Eager, EagerOptimizer};
use tracecast::ir::Attrs;
use tracecast::ir::ops::elementwise::{ADD, MUL, NEG};
use tracecast::nn::Linear;
use tracecast::prelude::*;
use tracecast::runtime::Collective;
use tracecast::runtime::collective::{Group, threads};
use tracecast::runtime::{Device, FaultKind};

fn on(guest: &Arc<Guest>) -> Eager {
    Eager::new(Options::new().on(guest.clone())).unwrap()
}

fn apply(eager: &Eager, x: &DeviceTensor) -> tracecast::Result<DeviceTensor> {
    Ok(eager.apply(&NEG, &[x], Attrs::new())?.remove(0))
}

#[test]
fn ops_wait_for_nothing_until_numbers_are_asked_for() {
    let guest = Guest::new("npu", 64);
    let eager = on(&guest);
    let x = eager.tensor(Tensor::rand([100], 1).unwrap());
    guest.inside.hold();
    let mut y = eager.apply(&MUL, &[&x, &x], Attrs::new()).unwrap().remove(0);
    for _ in 0..10 {
        y = eager.apply(&ADD, &[&y, &x], Attrs::new()).unwrap().remove(0);
    }
    assert_eq!((count(&guest.inside.waits), count(&guest.inside.launches)), (0, 0));
    guest.inside.go();
    let expected = Tensor::rand([100], 1).unwrap().to_vec::<f32>().unwrap();
    let sum = |x: &f32| (0..10).fold(x * x, |y, _| y + x);
    let expected: Vec<f32> = expected.iter().map(sum).collect();
    assert_eq!(y.to_host().unwrap().to_vec::<f32>().unwrap(), expected);
    assert_eq!((count(&guest.inside.uploads), count(&guest.inside.downloads)), (1, 1));
}

#[test]
fn an_op_that_fails_is_told_where_its_result_is_read() {
    let guest = Guest::new("npu:1", 64);
    let eager = on(&guest);
    let x = eager.tensor(Tensor::new([2], &[1f32, 2.0]).unwrap());
    let first = apply(&eager, &x).unwrap();
    assert_eq!(first.to_host().unwrap().to_f64s(), [-1.0, -2.0]);
    guest.inside.hold();
    guest.inside.fail_after(1, FaultKind::Launch);
    let second = apply(&eager, &first).unwrap();
    let third = apply(&eager, &second).unwrap();
    let fourth = apply(&eager, &third).unwrap();
    guest.inside.go();
    let said = fourth.to_host().unwrap_err().to_string();
    assert!(said.contains("npu:1") && said.contains("kernel @"), "{said}");
    // The first of them did not fail, and the others have no value.
    assert_eq!(second.to_host().unwrap().to_f64s(), [1.0, 2.0]);
    assert!(third.to_host().is_err() && third.to_host().is_err());
    assert_eq!(apply(&eager, &second).unwrap().to_host().unwrap().to_f64s(), [-1.0, -2.0]);
}

/// An op that finds no memory asks others for it, but not because one before it found none.
#[test]
fn want_of_memory_of_an_earlier_op_is_told() {
    let guest = Guest::new("npu", 64);
    let eager = on(&guest);
    let x = eager.tensor(Tensor::new([2], &[1f32, 2.0]).unwrap());
    let first = apply(&eager, &x).unwrap();
    first.to_host().unwrap();
    guest.inside.fail_after(0, FaultKind::OutOfMemory { asked: 1, in_use: 2, limit: None });
    let second = apply(&eager, &first).unwrap();
    while guest.inside.stopped().is_none() {
        std::thread::yield_now();
    }
    let said = apply(&eager, &second).unwrap_err().to_string();
    assert!(said.contains("1 bytes asked for, 2 in use") && !said.contains("@eager,"), "{said}");
    assert_eq!(apply(&eager, &first).unwrap().to_host().unwrap().to_f64s(), [1.0, 2.0]);
}

/// What programs keep for their next run makes room for what is needed now.
#[test]
fn short_lived_ops_do_not_fill_a_device() {
    let guest = Guest::new("npu", 2);
    guest.inside.limit(200_000);
    let eager = on(&guest);
    for size in 1..=40usize {
        let x = eager.tensor(Tensor::rand([500 * size], size as u64).unwrap());
        let y = apply(&eager, &x).unwrap().to_host().unwrap();
        assert_eq!(y.to_f64s()[0], -x.to_host().unwrap().to_f64s()[0]);
    }
    let large = eager.tensor(Tensor::rand([60_000], 1).unwrap());
    let said = apply(&eager, &large).unwrap_err().to_string();
    assert!(said.contains("npu:0") && said.contains("of 200000"), "{said}");
    drop((eager, large));
    guest.queue().unwrap().run(&mut |_| Ok(())).unwrap();
    assert_eq!(guest.inside.in_use(), 0);
}

/// What became of a rank: losses and state, or why it ended.
type Trained = tracecast::Result<(Vec<f32>, Vec<Vec<u8>>)>;

/// Trains a layer on two ranks, each with the options for its number.
fn trained_on_ranks(options: impl Fn(usize) -> Options + Sync) -> Vec<Trained> {
    let train = |rank: Group| -> Trained {
        let number = rank.rank();
        let step = TrainStep::new(Linear::new(6, 3), |t, model| {
            model.forward(t.input("x")).mean_squared_error(t.input("y"))
        });
        let step = step.optimizer(Sgd::new(0.1).momentum(0.9)).options(options(number)).build()?;
        let step = step.data_parallel(rank);
        let mut store = Store::new();
        step.init(&mut store, 1)?;
        let mut losses = Vec::new();
        for at in 0..5 {
            let x = Tensor::rand([4, 6], 2 * at + number as u64)?;
            let y = x.slice(1, 0..3)?;
            losses.push(step.run(&mut store, &[("x", &x), ("y", &y)])?.loss);
        }
        let bytes = |entry: tracecast::Result<(&str, Tensor)>| Ok(entry?.1.bytes().to_vec());
        Ok((losses, store.iter().map(bytes).collect::<tracecast::Result<_>>()?))
    };
    std::thread::scope(|scope| {
        let ranks = threads(2, Duration::from_secs(5)).into_iter();
        let train = &train;
        let started: Vec<_> = ranks.map(|rank| scope.spawn(move || train(rank))).collect();
        started.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// An exchange reads behind the commands of the queue, and its results go back into it.
#[test]
fn ranks_on_devices_with_queues_have_the_bits_of_the_reference() {
    let guests = [Guest::new("npu", 2), Guest::new("npu:1", 2)];
    let found = trained_on_ranks(|rank| Options::new().on(guests[rank].clone()));
    let wanted = trained_on_ranks(|_| Options::new().device("reference"));
    for (found, wanted) in found.iter().zip(&wanted) {
        assert_eq!(found.as_ref().unwrap(), wanted.as_ref().unwrap());
    }
    assert!(guests.iter().all(|guest| count(&guest.inside.launches) > 0));
}

#[test]
fn a_fault_of_one_rank_ends_the_other() {
    let guests = [Guest::new("npu", 2), Guest::new("npu:1", 2)];
    guests[1].inside.fail_after(4, FaultKind::Launch);
    let ended = trained_on_ranks(|rank| Options::new().on(guests[rank].clone()));
    let said: Vec<String> = ended.into_iter().map(|end| end.unwrap_err().to_string()).collect();
    assert!(said[0].contains("rank 1") && said[0].contains("npu:1"), "{said:?}");
    assert!(said[1].contains("npu:1"), "{said:?}");
}

/// Scale and flag cross between two devices once a step, however many parameters there are.
#[test]
fn scale_and_flag_are_copied_once_for_each_device() {
    for fused in [false, true] {
        for params in [1, 8, 64usize] {
            let guests = [Guest::new("npu", 1), Guest::new("npu:1", 1)];
            let eagers = [on(&guests[0]), on(&guests[1])];
            // The first one lives where the scale does not.
            let values: Vec<_> = (0..params)
                .map(|i| eagers[(i + 1) % 2].parameter(Tensor::new([1], &[1f32]).unwrap()))
                .collect();
            let mut sgd = EagerOptimizer::new(Sgd::new(0.5), &values).fused(fused);
            let options = ScalerOptions { init_scale: 4.0, ..ScalerOptions::default() };
            let mut scaler = EagerScaler::new(options).unwrap();
            scaler.scale(&eagers[0].tensor(Tensor::scalar(1f32))).unwrap();
            for step in 0..3 {
                for value in &values {
                    let grad = Tensor::new([1], &[4f32]).unwrap();
                    value.set_grad(value.value().eager().tensor(grad)).unwrap();
                }
                let before = [0, 1].map(|i| count(&guests[i].inside.downloads));
                scaler.step(&mut sgd).unwrap();
                scaler.update().unwrap();
                let read = [0, 1].map(|i| count(&guests[i].inside.downloads) - before[i]);
                // There: the flag. Here: the inverse scale, and the flag for the host; or scale and
                // flag for the other device. A flag that is the only one has been read with that.
                let expected = if params == 1 { [1, 1] } else { [2, 1] };
                assert_eq!(read, expected, "{params} parameters, step {step}, fused: {fused}");
            }
            let last = values[params - 1].value().to_host().unwrap().to_f64s();
            assert_eq!(last, [-0.5]);
        }
    }
}
