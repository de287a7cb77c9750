//! Whole programs with names: training steps at random sizes, bit for bit the programs that are
//! traced with the numbers.

use crate::options;
use crate::support::dice::Dice;
use tracecast::nn::{Attend, Context, Layer, MultiheadAttention};
use tracecast::prelude::*;
use tracecast_ir::Graph;

type Sizes = [Size; 2];
type Program = fn(&Trace, Sizes);

/// A step of training on sequences: `batch` of them, each of `length` tokens.
fn attention(t: &Trace, [batch, length]: Sizes) {
    let input = |name, dtype| t.input_of(name, TensorType::new(dtype, sizes![batch, length]));
    let (tokens, target) = (input("tokens", DType::I64), input("target", DType::I64));
    let param =
        |name: &str, shape: [usize; 2]| t.param_of(name, TensorType::new(DType::F32, shape));
    let (table, head) = (param("table", [7, 6]), param("head", [7, 6]));
    let x = table.embedding(tokens);
    let positions = t.tracer().iota(DType::F32, Shape::from(sizes![length, 1]), 0);
    let x = x.add(positions.mul(0.125));
    let x = x.layer_norm(None, None, [6], 1e-5).results()[0];
    let [q, k, v] = ["q", "k", "v"].map(|name| {
        let y = x.linear(param(name, [6, 6]), None);
        y.reshape(sizes![batch, length, 2, 3]).permute([0, 2, 1, 3])
    });
    let scores = q.matmul(k.t()).div(3f64.sqrt());
    let row = t.tracer().iota(DType::I64, Shape::from(sizes![length, 1]), 0);
    let column = t.tracer().iota(DType::I64, Shape::from(sizes![1, length]), 1);
    let scores = column.le(row).choose(scores, t.full(TensorType::scalar(DType::F32), -1e9));
    let mixed = scores.softmax(-1).matmul(v).permute([0, 2, 1, 3]);
    let y = x + mixed.reshape(sizes![batch, length, 6]);
    let logits = y.linear(head, None).reshape(sizes![batch * length, 7]);
    let loss = logits.cross_entropy(target.reshape([-1]));
    let params = t.params();
    for (w, dw) in params.iter().zip(t.grad(loss, &params)) {
        t.update(*w, *w - dw * 0.5);
    }
    t.output("loss", loss);
}

/// Attention of every kind with given numbers of queries and keys: masks, what is causal, and
/// dropout.
fn attends(t: &Trace, [queries, keys]: Sizes) {
    let input = |name, rows| t.input_of(name, TensorType::new(DType::F32, sizes![2, rows, 6]));
    let (x, y) = (input("x", queries), input("y", keys));
    let heads = |name: &str, x: Var<'_>, rows: Size| {
        let w = t.param_of(name, TensorType::new(DType::F32, [6, 6]));
        x.linear(w, None).reshape(sizes![2, rows, 2, 3]).permute([0, 2, 1, 3]).id()
    };
    let [q, k, v] = [heads("q", x, queries), heads("k", y, keys), heads("v", y, keys)]
        .map(|id| t.tracer().var(id));
    let at = |rows: Size, columns: Size, axis| {
        t.tracer().iota(DType::I64, Shape::from(sizes![rows, columns]), axis)
    };
    let apart = at(1.into(), keys, 1).sub(at(queries, 1.into(), 0));
    let (seen, added) = (apart.le(1.0), apart.to(DType::F32).mul(0.125));
    let rng = t.tracer().constant(DType::I64, &[2], &[3.0, 4.0]);
    let none = || None::<Var<'_>>;
    let all = [
        q.scaled_dot_product_attention(k, v, seen, none(), 0.0, false, None, false, 0),
        q.scaled_dot_product_attention(k, v, added, none(), 0.0, false, 0.7, false, 0),
        q.scaled_dot_product_attention(k, v, none(), none(), 0.0, true, None, false, 0),
        q.scaled_dot_product_attention(k, v, none(), rng, 0.3, false, None, false, 5),
        q.to(DType::BF16)
            .scaled_dot_product_attention(
                k.to(DType::BF16),
                v.to(DType::BF16),
                seen,
                none(),
                0.0,
                false,
                None,
                false,
                0,
            )
            .to(DType::F32),
    ];
    let mut loss = t.full(TensorType::scalar(DType::F32), 0.0);
    for (i, y) in all.into_iter().enumerate() {
        t.output(&format!("y{i}"), y);
        loss = loss + y.mul(y).sum(());
    }
    let params = t.params();
    for (w, dw) in params.iter().zip(t.grad(loss, &params)) {
        t.update(*w, *w - dw * 0.125);
    }
}

/// The layer of attention over sequences of some length, with weights and without them, with a mask
/// and with padding.
fn layers(t: &Trace, [batch, length]: Sizes) {
    let x = t.input_of("x", TensorType::new(DType::F32, sizes![batch, length, 6]));
    let y = t.input_of("y", TensorType::new(DType::F32, sizes![batch, length]));
    let (cx, layer) = (Context::evaluation(t), MultiheadAttention::new(6, 2).batch_first());
    let (seen, weights) = layer.forward(&cx, Attend::from(x).causal().key_padding(y.gt(0.5)));
    let (added, _) = layer.without_weights().forward(&cx, Attend::from(x).causal().key_padding(y));
    let weights = weights.expect("asked for");
    t.output("weights", weights);
    t.output("seen", seen);
    t.output("added", added);
    let loss = added.mul(added).sum(());
    let params = t.params();
    for (w, dw) in params.iter().zip(t.grad(loss, &params)) {
        t.update(*w, *w - dw * 0.125);
    }
}

/// Means, maxima, slices and joins along named axes.
fn pieces(t: &Trace, [n, m]: Sizes) {
    let x = t.input_of("x", TensorType::new(DType::F32, sizes![n, m]));
    let w = t.param_of("w", TensorType::new(DType::F32, [1]));
    let y = x * w;
    t.output("mean", y.mean(()));
    t.output("row", y.mean([1].keep()) - y);
    t.output("flat", tracecast_ir::ops::view::cat(&[y.reshape([-1]), y.t().reshape([-1])], 0));
    t.output("tail", y.slice(1, m / 2, m, 1));
    t.output("padded", y.pad(sizes![n, 0], sizes![0, m - m / 2], 2.0));
    t.output("scaled", y * t.number(m, DType::F32).rsqrt());
    t.output("outer", y.reshape(sizes![n, 1, m]).expand(sizes![n, m, m]).sum(0));
    let loss = (y * y).mean(()) + y.slice(0, 0, n, 1).exp().mean(());
    t.update(w, w - t.grad(loss, &[w])[0]);
}

/// A net with a loss over classes, smoothed, in bf16 where autocast says so.
fn classes(t: &Trace, [batch, width]: Sizes) {
    let x = t.input_of("x", TensorType::new(DType::F32, sizes![batch, width]));
    let y = t.input_of("y", TensorType::new(DType::I64, sizes![batch]));
    let w = t.param_of("w", TensorType::new(DType::F32, [5, 1]));
    let logits = autocast(t, "cpu", DType::BF16, || x.unsqueeze(2).matmul(w.reshape([1, 5])));
    let logits = logits.mean(1);
    let loss = logits.cross_entropy_loss(y, None, None, None, Some(0.1));
    t.update(w, w - t.grad(loss, &[w])[0]);
    t.output("loss", loss);
    t.output("best", logits.softmax(1).amax(1));
}

/// A program in which the two sizes are names, and the same with numbers.
fn both(body: Program, numbers: [usize; 2]) -> (Graph, Graph) {
    let named = trace("named", |t| body(t, [t.size_in("n", 0..=99), t.size_in("m", 0..=99)]));
    (named.unwrap(), trace("numbers", |t| body(t, numbers.map(Size::from))).unwrap())
}

fn inputs(graph: &Graph, dice: &mut Dice) -> Vec<(String, Tensor)> {
    let ports = graph.ports().iter();
    let numbers = |ty: &TensorType, dice: &mut Dice| -> Vec<f64> {
        let one = |_| match ty.dtype {
            DType::I64 => dice.below(5) as f64,
            _ => dice.unit(),
        };
        (0..ty.numel().get()).map(one).collect()
    };
    ports
        .map(|port| {
            let numbers = numbers(&port.ty, dice);
            (port.name.clone(), Tensor::from_f64s(port.ty.clone(), &numbers).unwrap())
        })
        .collect()
}

#[test]
fn programs_with_names_compute_what_those_with_numbers_do() {
    let mut dice = Dice::new(17);
    for body in [attention as Program, attends, layers, pieces, classes] {
        let (named, _) = both(body, [3, 4]);
        let text = named.to_string();
        let again = tracecast_ir::text::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(again.to_string(), text);
        let program = compile_sized(named, &options()).unwrap();
        for round in 0..7 {
            let any = |dice: &mut Dice| 1 + dice.below(9);
            let sizes = match round {
                0 => [1, 1],
                1 => [1, 6],
                2 => [6, 1],
                _ => [any(&mut dice), any(&mut dice)],
            };
            let (_, numbers) = both(body, sizes);
            let given = inputs(&numbers, &mut dice);
            let wanted = compile(numbers, &options()).unwrap();
            let state = |name: &str| !["x", "y", "tokens", "target"].contains(&name);
            let mut stores = [0; 2].map(|_| {
                let params = given.iter().filter(|(name, _)| state(name));
                params.fold(Store::new(), |store, (name, value)| store.with(name, value.clone()))
            });
            let fresh: Vec<(&str, &Tensor)> =
                given.iter().filter(|(n, _)| !state(n)).map(|(n, v)| (n.as_str(), v)).collect();
            for _ in 0..2 {
                let found = program.run(&mut stores[0], &fresh).unwrap();
                let wanted = wanted.run(&mut stores[1], &fresh).unwrap();
                for (name, value) in wanted.iter() {
                    let (found, value) = (found[name].value(), value.value());
                    assert_eq!(found.ty, value.ty, "{name} at {sizes:?}");
                    assert_eq!(found.first_difference(value), None, "{name} at {sizes:?}");
                }
            }
            for (name, _) in given.iter().filter(|(name, _)| state(name)) {
                let [found, wanted] = [0, 1].map(|i| stores[i].get(name).unwrap());
                assert_eq!(found.value().first_difference(wanted.value()), None, "{name}");
            }
        }
        assert!(program.kept().len() > 3);
    }
}
