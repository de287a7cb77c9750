//! Programs with collectives: every rank computes what the interpreter says, bit for bit, whatever
//! the buckets; and gradients.

use crate::support::{self, dice::Dice};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tracecast_ir::eval::{self, Outputs, Value};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, Graph, Role, TensorType, Tracer, Verified};
use tracecast_passes::{Autodiff, PassOptions, standard};
use tracecast_runtime::collective::{Collective, Done, Group, Label, Pending, Transfer, threads};
use tracecast_runtime::{Device, Program, ReferenceDevice, Result, Store, Tensor};

pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// What each rank computes, each on a thread.
pub(crate) fn run(
    fused: &Verified,
    inputs: &[HashMap<String, Value>],
    bucket: usize,
    device: &(dyn Fn() -> Arc<dyn Device> + Sync),
) -> Vec<Outputs> {
    run_over(fused, inputs, bucket, device, &|rank| Arc::new(rank))
}

/// The same, each over what becomes of its rank.
fn run_over(
    fused: &Verified,
    inputs: &[HashMap<String, Value>],
    bucket: usize,
    device: &(dyn Fn() -> Arc<dyn Device> + Sync),
    over: &(dyn Fn(Group) -> Arc<dyn Collective> + Sync),
) -> Vec<Outputs> {
    let of_rank = |rank: Group, given: &HashMap<String, Value>| {
        let program = Program::plan_in_buckets(fused, bucket).unwrap().load(device()).unwrap();
        let program = program.on_ranks(over(rank), 7).unwrap();
        let tensor = |name: &str| {
            Tensor::from_bytes(given[name].ty.clone(), given[name].bytes.clone()).unwrap()
        };
        let (mut store, mut own) = (Store::new(), Vec::new());
        for port in fused.ports() {
            match port.role {
                Role::Input => own.push((port.name.as_str(), tensor(&port.name))),
                _ => store.insert(&port.name, tensor(&port.name)),
            }
        }
        let own: Vec<(&str, &Tensor)> = own.iter().map(|(n, t)| (*n, t)).collect();
        let out = program.run(&mut store, &own).unwrap();
        let updated = |(port, _): &(usize, _)| {
            let name = fused.ports()[*port].name.clone();
            let value = store.get(&name).unwrap().value().clone();
            (name, value)
        };
        Outputs {
            outputs: out.iter().map(|(n, t)| (n.to_owned(), t.value().clone())).collect(),
            updates: fused.updates().iter().map(updated).collect(),
        }
    };
    std::thread::scope(|scope| {
        let ranks = threads(inputs.len(), DEADLINE).into_iter().zip(inputs);
        let started: Vec<_> =
            ranks.map(|(rank, given)| scope.spawn(move || of_rank(rank, given))).collect();
        started.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Random values for the ports of every rank; state is the same on all.
fn inputs(graph: &Graph, ranks: usize) -> Vec<HashMap<String, Value>> {
    let of_rank = |rank: usize| {
        let mut all = support::inputs(graph, 100 + rank as u64);
        for port in graph.ports().iter().filter(|port| port.role != Role::Input) {
            all.insert(port.name.clone(), support::inputs(graph, 5)[&port.name].clone());
        }
        all
    };
    (0..ranks).map(of_rank).collect()
}

/// All collectives, on values that kernels make and that kernels read, on what comes from outside,
/// and on what only leaves.
fn everything(dtype: DType, ranks: i64) -> Graph {
    let tracer = Tracer::new("everything");
    {
        let t = &tracer;
        let x = t.input("x", TensorType::new(dtype, [4 * ranks as usize, 33]));
        let w = t.param("w", TensorType::new(dtype, [33]));
        let y = x.mul(w);
        let sum = y.all_reduce(Some("sum"), ranks);
        let max = x.all_reduce(Some("max"), ranks);
        let mean = y.sum(0).all_reduce(Some("mean"), ranks);
        let of_two = y.permute([1, 0]).broadcast(ranks - 1, ranks);
        let all = y.mul(y).all_gather(ranks);
        let own = sum.add(max).reduce_scatter(ranks);
        let last = own.reduce_to(ranks - 1, ranks);
        t.output("sum", sum.add(1.0));
        t.output("max", max);
        t.output("of_two", of_two.sum(1));
        t.output("all", all);
        t.output("last", last.mul(own));
        t.update(w, w.sub(mean.mul(0.5)));
    }
    tracer.finish().unwrap()
}

#[test]
fn every_rank_computes_what_the_interpreter_says() {
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        for ranks in [2, 3, 4] {
            let graph = everything(dtype, ranks as i64);
            let given = inputs(&graph, ranks);
            let (reference, fused) = support::lowered(graph).unwrap();
            let wanted = eval::ranks(&reference, &given).unwrap();
            let on_cpu = || support::cpu(1);
            let on_reference = || Arc::new(ReferenceDevice) as Arc<dyn Device>;
            let devices: [&(dyn Fn() -> Arc<dyn Device> + Sync); 2] = [&on_cpu, &on_reference];
            for (device, bucket) in [(0, 0), (0, 1 << 20), (1, 300)] {
                let found = run(&fused, &given, bucket, devices[device]);
                for (rank, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                    let difference = support::difference(found, wanted);
                    assert!(
                        difference.is_none(),
                        "rank {rank} of {ranks}, {dtype}, buckets of {bucket}: {}",
                        difference.unwrap_or_default()
                    );
                }
            }
        }
    }
}

/// Reductions alone, which ranks of one process make where the values lie: of what only they read,
/// of what is read later, of a port and of state that is replaced, of one value twice, one of the
/// result of another, and of values that only leave.
fn reductions(dtype: DType, ranks: i64) -> Graph {
    let tracer = Tracer::new("reductions");
    {
        let t = &tracer;
        let x = t.input("x", TensorType::new(dtype, [5, 33]));
        let w = t.param("w", TensorType::new(dtype, [33]));
        let y = x.mul(w);
        let sum = y.all_reduce(Some("sum"), ranks);
        let mean = x.mul(x).all_reduce(Some("mean"), ranks);
        let later = y.mul(sum).sub(mean);
        let twice = y.all_reduce(Some("sum"), ranks).add(y.all_reduce(Some("max"), ranks));
        let of_port = x.all_reduce(Some("max"), ranks);
        let of_state = w.all_reduce(Some("mean"), ranks);
        let of_sum = sum.sum(0).all_reduce(Some("mean"), ranks);
        t.output("later", later);
        t.output("twice", twice);
        t.output("of_port", of_port);
        t.output("leaves", x.exp().all_reduce(Some("max"), ranks));
        t.update(w, of_state.sub(of_sum.mul(0.25)));
    }
    tracer.finish().unwrap()
}

/// A rank that sends what it has, as processes do.
#[derive(Debug)]
struct Sends(Group);

impl Collective for Sends {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn start(&self, transfer: Transfer, label: Label, data: Vec<u8>) -> Result<Pending> {
        self.0.start(transfer, label, data)
    }

    fn give_up(&self, label: Label, why: &str) {
        self.0.give_up(label, why);
    }

    fn wait(&self, pending: Pending) -> Result<Done> {
        self.0.wait(pending)
    }
}

#[test]
fn values_are_reduced_where_they_lie_as_if_they_were_sent() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        for ranks in [2, 3] {
            let graph = reductions(dtype, ranks as i64);
            let given = inputs(&graph, ranks);
            let (reference, fused) = support::lowered(graph).unwrap();
            let wanted = eval::ranks(&reference, &given).unwrap();
            // Some of the ranks send what they have, and the others find out.
            for (sending, bucket) in [(0, 0), (0, 1 << 20), (0, 700), (1, 700), (ranks, 0)] {
                let found = run_over(&fused, &given, bucket, &|| support::cpu(1), &|rank| {
                    if rank.rank() < sending { Arc::new(Sends(rank)) } else { Arc::new(rank) }
                });
                for (rank, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                    let difference = support::difference(found, wanted);
                    let difference = difference.unwrap_or_default();
                    assert!(
                        difference.is_empty(),
                        "rank {rank} of {ranks}, {dtype}, {sending} send, buckets of {bucket}: {difference}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_is_reduced_takes_no_memory_beside_its_operand() {
    let program = |reduces: bool| {
        let tracer = Tracer::new("sums");
        for i in 0..3 {
            let w = tracer.param(&format!("w{i}"), TensorType::new(DType::F32, [1000]));
            let gradient = w.exp();
            let sum = if reduces { gradient.all_reduce(Some("sum"), 2) } else { gradient };
            // Kernels of their own, as those of gradients and of an optimizer are.
            let sum = sum.sum([0].keep()).mul(sum);
            tracer.update(w, w.sub(sum));
        }
        let fused = support::lowered(tracer.finish().unwrap()).unwrap().1;
        Program::plan(&fused).unwrap().peak_bytes()
    };
    assert!(program(true) <= 3 * 4096 + 3 * 64, "{} bytes", program(true));
    assert!(program(false) <= program(true), "{} bytes", program(false));
}

/// Σ of results · weights, which differ from rank to rank as the input `k` does.
fn weighted(op: usize, ranks: i64) -> Graph {
    let tracer = Tracer::new("loss");
    {
        let t = &tracer;
        let x = t.param("x", TensorType::new(DType::F64, [2 * ranks as usize, 3]));
        let k = t.input("k", TensorType::scalar(DType::F64));
        let y = match op {
            0 => x.all_reduce(Some("sum"), ranks),
            1 => x.all_reduce(Some("mean"), ranks),
            2 => x.all_reduce(Some("max"), ranks),
            3 => x.broadcast(1, ranks),
            4 => x.all_gather(ranks),
            5 => x.reduce_to(1, ranks),
            _ => x.reduce_scatter(ranks),
        };
        let places = t.iota(DType::F64, y.shape(), 0).add(k).sin();
        let loss = y.mul(y).mul(places).sum(());
        t.output("loss", loss);
        t.output("dx", t.grad(loss, &[x])[0]);
    }
    tracer.finish().unwrap()
}

#[test]
fn gradients_are_those_of_the_sum_of_all_losses() {
    const H: f64 = 1e-5;
    for op in 0..7 {
        for ranks in [2usize, 3] {
            let graph = weighted(op, ranks as i64);
            let pipeline = standard(&PassOptions::default()).up_to(Autodiff::NAME).unwrap();
            let graph = pipeline.run(graph, |_, _, _| ()).unwrap();
            let mut dice = Dice::new(40 + op as u64);
            let of_rank = |rank: usize| {
                let mut all = HashMap::new();
                let ty = graph.port_named("x").unwrap().ty.clone();
                let k = Value::from_f64s(TensorType::scalar(DType::F64), &[rank as f64]).unwrap();
                all.insert("k".to_owned(), k);
                all.insert(
                    "x".to_owned(),
                    support::value(&ty, tracecast_ir::ops::sample::Range::Any, &mut dice),
                );
                all
            };
            let given: Vec<_> = (0..ranks).map(of_rank).collect();
            let total = |given: &[HashMap<String, Value>]| -> f64 {
                let out = eval::ranks(&graph, given).unwrap();
                out.iter().map(|out| out.get("loss").unwrap().to_f64s()[0]).sum()
            };
            let found = eval::ranks(&graph, &given).unwrap();
            for rank in 0..ranks {
                let dx = found[rank].get("dx").unwrap().to_f64s();
                for at in [0, 3, dx.len() - 1] {
                    let moved = |by: f64| {
                        let mut given = given.clone();
                        let mut x = given[rank]["x"].to_f64s();
                        x[at] += by;
                        let ty = given[rank]["x"].ty.clone();
                        given[rank].insert("x".to_owned(), Value::from_f64s(ty, &x).unwrap());
                        total(&given)
                    };
                    let wanted = (moved(H) - moved(-H)) / (2.0 * H);
                    assert!(
                        (dx[at] - wanted).abs() < 1e-6 * wanted.abs().max(1.0),
                        "op {op}, rank {rank} of {ranks}, element {at}: {} for {wanted}",
                        dx[at]
                    );
                }
            }
        }
    }
}

#[test]
fn collectives_keep_to_the_order_of_the_program() {
    let steps = |graph: Graph, bucket: usize| {
        let fused = support::lowered(graph).unwrap().1;
        let program = Program::plan_in_buckets(&fused, bucket).unwrap();
        let names = program.steps().filter(|(_, kernel)| kernel.is_none());
        names.map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
    };
    let alone = steps(everything(DType::F32, 2), 0);
    assert_eq!(alone.len(), 14, "{alone:?}");
    assert_eq!(steps(everything(DType::F32, 2), 0), alone);
    // Each begins before it is waited for, and none waits before it has to.
    for (at, name) in alone.iter().enumerate() {
        if let Some(bucket) = name.strip_suffix(".wait") {
            let begun =
                alone[..at].iter().any(|other| other.strip_suffix(".begin") == Some(bucket));
            assert!(begun, "{alone:?}");
        }
    }
}

#[test]
fn small_reductions_share_a_bucket_as_far_as_it_takes_them() {
    let tracer = Tracer::new("sums");
    for i in 0..5 {
        let x = tracer.input(&format!("x{i}"), TensorType::new(DType::F32, [100]));
        let sum = x.exp().all_reduce(Some("sum"), 2);
        tracer.output(&format!("y{i}"), sum.neg());
    }
    let fused = support::lowered(tracer.finish().unwrap()).unwrap().1;
    let bytes = |bucket: usize| {
        let program = Program::plan_in_buckets(&fused, bucket).unwrap();
        program.exchanges().map(|(_, bytes)| bytes).collect::<Vec<_>>()
    };
    assert_eq!(bytes(0), [400; 5]);
    assert_eq!(bytes(1000), [800, 800, 400]);
    assert_eq!(bytes(1 << 20), [2000]);
}

/// Whatever kernels are formed: those of `a` and `early` are one here, which comes behind that of
/// `b`.
#[test]
fn what_ranks_exchange_has_the_order_of_the_program() {
    let tracer = Tracer::new("order");
    {
        let t = &tracer;
        let x = t.input("x", TensorType::new(DType::F32, [8]));
        let z = t.input("z", TensorType::new(DType::F32, [9]));
        let a = x.exp();
        let first = a.all_reduce(Some("sum"), 2);
        let early = first.neg();
        let b = z.tanh();
        let second = b.all_reduce(Some("sum"), 2);
        let third = early.all_reduce(Some("sum"), 2);
        t.output("late", a.add(1.0));
        t.output("early", early);
        t.output("second", second.neg());
        t.output("third", third);
    }
    let fused = support::lowered(tracer.finish().unwrap()).unwrap().1;
    let bytes = |bucket: usize| {
        let program = Program::plan_in_buckets(&fused, bucket).unwrap();
        program.exchanges().map(|(_, bytes)| bytes).collect::<Vec<_>>()
    };
    assert_eq!(bytes(0), [32, 36, 32]);
    // The second is no later for the first being read before it is there; the third is made of the
    // first.
    assert_eq!(bytes(1 << 20), [68, 32]);
}

/// Equal on one rank is not equal on another: with a row each, a sum is a mean.
#[test]
fn what_ranks_exchange_does_not_depend_on_their_rows() {
    let exchanges = |rows: usize| {
        let tracer = Tracer::new("rows");
        {
            let t = &tracer;
            let x = t.input("x", TensorType::new(DType::F32, [rows, 16]));
            let w = t.param("w", TensorType::new(DType::F32, [16, 16]));
            let y = x.matmul(w).relu();
            let sum = y.sum(0).all_reduce(Some("sum"), 2);
            let mean = y.mean(0).all_reduce(Some("sum"), 2);
            let loss = y.mul(y).mean(());
            let grad = t.grad(loss, &[w])[0].all_reduce(Some("sum"), 2);
            t.output("y", sum.add(mean));
            t.output("row", y.div(y.sum([1].keep()).add(1.0)));
            t.update(w, w.sub(grad));
        }
        let fused = support::lowered(tracer.finish().unwrap()).unwrap().1;
        let program = Program::plan_in_buckets(&fused, 100).unwrap();
        let told = program.exchanges().map(|(name, bytes)| (name.to_owned(), bytes));
        told.collect::<Vec<_>>()
    };
    let wanted = exchanges(2);
    assert_eq!(wanted.iter().map(|(_, bytes)| bytes).collect::<Vec<_>>(), [&64, &64, &1024]);
    for rows in [1, 3, 64, 5000] {
        assert_eq!(exchanges(rows), wanted, "{rows} rows");
    }
}

/// Gradients of weights that were cast to 16 bits are added up in f32, as what makes them sums them
/// up.
#[test]
fn parts_of_gradients_are_not_rounded_before_they_are_added_up() {
    let tracer = Tracer::new("low");
    {
        let t = &tracer;
        let x = t.input("x", TensorType::new(DType::BF16, [64, 8]));
        let (w, b) = (
            t.param("w", TensorType::new(DType::F32, [4, 8])),
            t.param("b", TensorType::new(DType::F32, [4])),
        );
        let y = x.linear(w.cast(DType::BF16), Some(b.cast(DType::BF16)));
        let loss = y.mul(y).sum(().dtype(DType::F32));
        for (name, grad) in ["w", "b"].iter().zip(t.grad(loss, &[w, b])) {
            t.output(name, grad.all_reduce(Some("sum"), 2));
        }
    }
    let graph = tracer.finish().unwrap();
    let given = inputs(&graph, 2);
    let (reference, fused) = support::lowered(graph).unwrap();
    let wanted = eval::ranks(&reference, &given).unwrap();
    for (found, wanted) in run(&fused, &given, 1 << 20, &|| support::cpu(1)).iter().zip(&wanted) {
        assert_eq!(support::difference(found, wanted), None);
        for name in ["w", "b"] {
            let all = found.get(name).unwrap().to_f64s();
            let is_rounded =
                |x: &f64| tracecast_ir::kernel::narrow::round(DType::BF16, *x as f32) as f64 == *x;
            assert!(!all.iter().all(is_rounded), "{name}: {all:?}");
        }
    }
}
