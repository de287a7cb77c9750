//! Attention: compiled against interpreted, bit by bit, and both against plain mathematics.
//!
//! `TRACECAST_ATTENTION_PROGRAMS` sets how many random calls are compared.

mod support;

use std::collections::HashMap;
use support::dice::Dice;
use tracecast_ir::eval::Value;
use tracecast_ir::kernel::attention::{Attend, Extents, Pass, Placed};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::ops::sample::Range;
use tracecast_ir::{DType, Graph, TensorType, Tracer, Var};
use tracecast_runtime::Program;

/// A call of attention.
#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    heads: usize,
    shared: usize,
    queries: usize,
    keys: usize,
    width: usize,
    value: usize,
    causal: bool,
    /// Of bool, of floats, or none.
    mask: Option<DType>,
    drop: f64,
    dtype: DType,
}

impl Case {
    fn random(dice: &mut Dice) -> Case {
        let shared = dice.pick(&[1, 1, 2, 3]);
        let causal = dice.chance(40);
        let dtype = dice.pick(&[DType::F32, DType::F32, DType::BF16, DType::F16, DType::F64]);
        Case {
            batch: 1 + dice.below(2),
            heads: shared * dice.pick(&[1, 1, 2]),
            shared,
            queries: dice.pick(&[1, 2, 7, 33, 70, 130]),
            keys: dice.pick(&[1, 3, 16, 31, 100, 257, 300]),
            width: dice.pick(&[1, 4, 8, 17, 32]),
            value: dice.pick(&[1, 5, 16, 20, 32]),
            causal,
            mask: dice.pick(&[None, None, Some(DType::Bool), Some(DType::F32)]).filter(|_| !causal),
            drop: dice.pick(&[0.0, 0.0, 0.0, 0.3, 1.0]),
            dtype,
        }
    }

    fn types(&self) -> Vec<(&'static str, TensorType)> {
        let Case { batch, heads, shared, queries, keys, width, value, dtype, .. } = *self;
        let mut types = vec![
            ("q", TensorType::new(dtype, [batch, queries, heads, width])),
            ("k", TensorType::new(dtype, [batch, shared, keys, width])),
            ("v", TensorType::new(dtype, [batch, shared, keys, value])),
            ("dy", TensorType::new(dtype, [batch, heads, queries, value])),
            ("rng", TensorType::new(DType::I64, [2])),
        ];
        if let Some(mask) = self.mask {
            types.push(("mask", TensorType::new(mask, [batch, 1, queries, keys])));
        }
        types
    }

    fn attend<'t>(&self, of: &HashMap<&str, Var<'t>>) -> Var<'t> {
        let rng = Some(of["rng"]).filter(|_| self.drop > 0.0);
        // Queries lie as a product before the heads leaves them.
        let q = of["q"].permute([0, 2, 1, 3]);
        let (mask, gqa) = (of.get("mask").copied(), self.heads != self.shared);
        q.scaled_dot_product_attention(
            of["k"],
            of["v"],
            mask,
            rng,
            self.drop,
            self.causal,
            0.4,
            gqa,
            3,
        )
    }

    /// The result, and the gradients.
    fn program(&self) -> Graph {
        let t = Tracer::new("attention");
        {
            let of: HashMap<&str, Var<'_>> =
                self.types().into_iter().map(|(name, ty)| (name, t.input(name, ty))).collect();
            let y = self.attend(&of);
            t.output("y", y);
            let loss = y.to(DType::F64).mul(of["dy"].to(DType::F64)).sum(());
            for (name, g) in
                ["dq", "dk", "dv"].iter().zip(t.grad(loss, &[of["q"], of["k"], of["v"]]))
            {
                t.output(name, g);
            }
        }
        t.finish().unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }

    fn inputs(&self, dice: &mut Dice) -> HashMap<String, Value> {
        let value = |(name, ty): (&str, TensorType)| {
            (name.to_owned(), support::value(&ty, Range::Any, dice))
        };
        let mut inputs: HashMap<String, Value> = self.types().into_iter().map(value).collect();
        if let Some(mask) = inputs.get_mut("mask").filter(|mask| mask.ty.dtype.is_float()) {
            // A third of the keys is hidden, and every key from some queries.
            let mut numbers = mask.to_f64s();
            for row in numbers.chunks_mut(self.keys.max(1)) {
                let all = dice.chance(10);
                row.iter_mut().filter(|_| all || dice.chance(33)).for_each(|x| *x = HIDDEN);
            }
            *mask = Value::from_f64s(mask.ty.clone(), &numbers).expect("the same type");
        }
        inputs
    }
}

/// What a mask of floats adds to the score of a key that is not seen.
const HIDDEN: f64 = f64::NEG_INFINITY;

#[test]
fn compiled_attention_agrees_with_the_interpreter() {
    let cpus = support::cpus();
    let mut dice = Dice::new(11);
    let mut failures = Vec::new();
    let count = std::env::var("TRACECAST_ATTENTION_PROGRAMS").ok();
    for round in 0..count.and_then(|count| count.parse().ok()).unwrap_or(60) {
        let case = Case::random(&mut dice);
        let (reference, fused) =
            support::lowered(case.program()).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        let mut inputs = case.inputs(&mut dice);
        // A number that is not finite in each of two operands.
        let spoilt: &[&str] = match round % 4 {
            1 => &["q", "dy"],
            3 => &["k", "v"],
            _ => &[],
        };
        for name in spoilt {
            let of = &inputs[*name];
            let mut numbers = of.to_f64s();
            let at = dice.below(numbers.len());
            numbers[at] = dice.pick(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
            let changed = Value::from_f64s(of.ty.clone(), &numbers).expect("the same type");
            inputs.insert((*name).to_owned(), changed);
        }
        let wanted =
            support::expected(&reference, &inputs).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        failures.extend(support::differences(
            &format!("{case:?}"),
            &cpus,
            (&fused, &inputs),
            &wanted,
        ));
    }
    assert!(failures.is_empty(), "{} differ:\n{}", failures.len(), failures.join("\n"));
}

/// Weights and what they make, in f64 and without blocks.
fn plain(case: &Case, inputs: &HashMap<String, Value>) -> (Vec<f64>, f64) {
    let [q, k, v] = ["q", "k", "v"].map(|name| inputs[name].to_f64s());
    let mask = inputs.get("mask").map(Value::to_f64s);
    let Case { batch, heads, shared, queries, keys, width, value, .. } = *case;
    let (mut y, mut most) = (Vec::new(), 0.0f64);
    for b in 0..batch {
        for h in 0..heads {
            let kind = b * shared + h / (heads / shared);
            for i in 0..queries {
                let score = |j: usize| {
                    let q = &q[((b * queries + i) * heads + h) * width..][..width];
                    let k = &k[(kind * keys + j) * width..][..width];
                    let mut score = q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * 0.4;
                    if let Some(mask) = &mask {
                        let mask = mask[(b * queries + i) * keys + j];
                        let is_bool = case.mask == Some(DType::Bool);
                        score = match is_bool {
                            true if mask == 0.0 => f64::NEG_INFINITY,
                            true => score,
                            false => score + mask,
                        };
                    }
                    if case.causal && j > i { f64::NEG_INFINITY } else { score }
                };
                let scores: Vec<f64> = (0..keys).map(score).collect();
                let peak = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let finite = scores.iter().filter(|s| s.is_finite());
                most = finite.fold(most, |most, s| most.max(s.abs()));
                let base = if peak == f64::NEG_INFINITY { 0.0 } else { peak };
                let weights: Vec<f64> = scores.iter().map(|s| (s - base).exp()).collect();
                let total: f64 = weights.iter().sum();
                for c in 0..value {
                    let of = |(j, w): (usize, &f64)| w * v[(kind * keys + j) * value + c];
                    let sum: f64 = weights.iter().enumerate().map(of).sum();
                    y.push(if total == 0.0 { 0.0 } else { sum / total });
                }
            }
        }
    }
    (y, most)
}

#[test]
fn attention_is_within_its_bound_of_plain_mathematics() {
    let mut dice = Dice::new(12);
    for _ in 0..30 {
        let case = Case { drop: 0.0, dtype: DType::F32, ..Case::random(&mut dice) };
        let (_, fused) =
            support::lowered(case.program()).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        let inputs = case.inputs(&mut dice);
        let found = support::computed(&fused, support::cpu(2), &inputs).expect("runs");
        let y = found.get("y").expect("an output").to_f64s();
        let (wanted, most) = plain(&case, &inputs);
        // The bound that the page of ops tells. Values are between -2 and 2; the rest is what
        // rounds: scores, weights and their sums.
        let bound = 2.0 * f64::from(f32::EPSILON) * (case.width + 24) as f64 * (1.0 + most);
        for (y, wanted) in y.iter().zip(&wanted) {
            assert!(
                (y - wanted).abs() <= bound,
                "{case:?}: {y} for {wanted}, at most {bound} apart"
            );
        }
    }
}

/// Nothing of anything: what is left is zero, but without numbers in a key all keys count alike, as
/// in PyTorch.
#[test]
fn sizes_of_nothing_have_results_and_gradients() {
    let mut dice = Dice::new(13);
    let whole = Case { mask: None, drop: 0.0, causal: false, ..Case::random(&mut dice) };
    let whole = Case { batch: 2, heads: 2, shared: 2, queries: 3, keys: 5, ..whole };
    let whole = Case { width: 4, value: 4, ..whole };
    let nothing = [
        Case { batch: 0, ..whole },
        Case { heads: 0, shared: 0, ..whole },
        Case { queries: 0, ..whole },
        Case { keys: 0, ..whole },
        Case { width: 0, ..whole },
        Case { value: 0, ..whole },
        Case { keys: 0, width: 0, ..whole },
    ];
    let dtypes = [DType::F32, DType::BF16, DType::F64];
    let masks = [None, Some(DType::Bool), Some(DType::F32)];
    for case in nothing.iter().flat_map(|case| dtypes.map(|dtype| Case { dtype, ..*case })) {
        for case in masks.map(|mask| Case { mask, causal: mask.is_none(), ..case }) {
            let lowered = support::lowered(case.program());
            let (reference, fused) = lowered.unwrap_or_else(|e| panic!("{case:?}: {e}"));
            let inputs = case.inputs(&mut dice);
            let wanted = support::expected(&reference, &inputs).expect("runs");
            for (cpu, device) in support::cpus() {
                let found = support::computed(&fused, device, &inputs);
                let found = found.unwrap_or_else(|e| panic!("{case:?} on {cpu}: {e}"));
                assert_eq!(support::difference(&found, &wanted), None, "{case:?} on {cpu}");
            }
            if case.keys == 0 {
                let numbers = wanted.outputs.iter().flat_map(|(_, value)| value.to_f64s());
                numbers.for_each(|x| assert_eq!(x, 0.0, "{case:?}"));
            }
        }
    }
    let t = Tracer::new("alike");
    {
        let numbers = |shape: &[usize], numbers: &[f64]| t.constant(DType::F32, shape, numbers);
        let (q, k) = (numbers(&[2, 0], &[]), numbers(&[4, 0], &[]));
        let v = numbers(&[4, 1], &[1.0, 2.0, 4.0, 9.0]);
        let none = || None::<Var<'_>>;
        let y = q.scaled_dot_product_attention(k, v, none(), none(), 0.0, false, None, false, 0);
        t.output("y", y);
        t.output("dv", t.grad(y.sum(()), &[v])[0]);
    }
    assert_eq!(run(t), [vec![4.0; 2], vec![0.5; 4]]);
}

/// Where one key has all the weight nothing is left for queries and keys: what is taken from the
/// gradient of the weight is that gradient, to the last bit.
#[test]
fn one_key_with_all_the_weight_leaves_no_gradient() {
    let mut dice = Dice::new(14);
    for width in [1, 7, 64, 200] {
        let t = Tracer::new("one");
        {
            let mut numbers = |rows: usize| -> Vec<f64> {
                (0..rows * width).map(|_| dice.below(1 << 20) as f64 / 1e5 - 5.0).collect()
            };
            let (v, dy) = (numbers(3), numbers(2));
            let of = |shape: [usize; 2], numbers: &[f64]| t.constant(DType::F32, &shape, numbers);
            let (q, k) = (of([2, 1], &[40.0, -30.0]), of([3, 1], &[7.0, 0.5, -6.0]));
            let (v, dy) = (of([3, width], &v), of([2, width], &dy));
            let none = || None::<Var<'_>>;
            let y =
                q.scaled_dot_product_attention(k, v, none(), none(), 0.0, false, None, false, 0);
            for (i, g) in t.grad(y.mul(dy).sum(()), &[q, k]).into_iter().enumerate() {
                t.output(&format!("g{i}"), g);
            }
        }
        assert_eq!(run(t), [vec![0.0; 2], vec![0.0; 3]], "values of {width} numbers");
    }
}

/// Attention over keys that all count alike, whose values are the rows of a unit matrix: the
/// results are the weights, or zero where one was dropped.
fn dropped(p: f64, rng: [f64; 2], stream: i64) -> Vec<Vec<f64>> {
    const KEYS: usize = 40;
    let t = Tracer::new("dropped");
    {
        let (queries, sizes) = (30, [2, 3]);
        let [batch, heads] = sizes;
        let shape = |rows: usize, width: usize| [batch, heads, rows, width];
        let zeros = |rows| t.full(TensorType::new(DType::F32, shape(rows, 4)), 0.0);
        let unit: Vec<f64> =
            (0..KEYS * KEYS).map(|i| f64::from(u8::from(i / KEYS == i % KEYS))).collect();
        let unit = t.constant(DType::F32, &[KEYS, KEYS], &unit);
        let v = unit.expand(shape(KEYS, KEYS));
        let rng = t.constant(DType::I64, &[2], &rng);
        let none = None::<Var<'_>>;
        let (q, k) = (zeros(queries), zeros(KEYS));
        let y = q.scaled_dot_product_attention(k, v, none, rng, p, false, None, false, stream);
        t.output("y", y);
        let ones = t.full(TensorType::new(DType::F32, shape(queries, KEYS)), 1.0);
        t.output("ones", ones.dropout(rng, p, stream));
        let g = t.grad(y.mul(y).sum(()), &[q, k, v]);
        for (i, g) in g.into_iter().enumerate() {
            t.output(&format!("g{i}"), g);
        }
    }
    run(t)
}

#[test]
fn dropout_drops_weights_at_its_rate_and_scales_the_others() {
    for p in [0.1, 0.5, 0.9] {
        let found = dropped(p, [3.0, 4.0], 2);
        let (y, ones) = (&found[0], &found[1]);
        let kept = 1.0 / (1.0 - p) / 40.0;
        for (y, one) in y.iter().zip(ones) {
            // The weights that `dropout` would drop of a tensor of them.
            let wanted = if *one == 0.0 { 0.0 } else { kept };
            assert!((y - wanted).abs() < 1e-6 * kept, "{y} for {wanted}");
        }
        let count = y.len() as f64;
        let rate = y.iter().filter(|y| **y == 0.0).count() as f64 / count;
        let deviation = (p * (1.0 - p) / count).sqrt();
        assert!((rate - p).abs() < 4.0 * deviation, "{rate} for {p}");
        // The gradient of values has the weights of the result, which are those of its mask: of y²
        // it is 2 y[l, j] y[l, i] summed over l.
        let row = 40;
        for (head, dv) in found[4].chunks(row * row).enumerate() {
            let y = &y[head * 30 * row..][..30 * row];
            for (i, dv) in dv.iter().enumerate() {
                let (key, column) = (i / row, i % row);
                let of = |l: usize| 2.0 * y[l * row + key] * y[l * row + column];
                let wanted: f64 = (0..30).map(of).sum();
                assert!((dv - wanted).abs() < 1e-5 * (1.0 + wanted), "{dv} for {wanted}");
            }
        }
        assert_eq!(found, dropped(p, [3.0, 4.0], 2));
        for other in
            [dropped(p, [4.0, 4.0], 2), dropped(p, [3.0, 5.0], 2), dropped(p, [3.0, 4.0], 3)]
        {
            assert_ne!(found[0], other[0], "another key, step or stream");
        }
    }
    let none = dropped(0.0, [3.0, 4.0], 2);
    assert!(none[0].iter().all(|y| (y - 0.025).abs() < 1e-8), "nothing is dropped");
    let all = dropped(1.0, [3.0, 4.0], 2);
    for i in [0, 2, 3, 4] {
        assert!(all[i].iter().all(|x| *x == 0.0), "everything is dropped");
    }
}

fn run(t: Tracer) -> Vec<Vec<f64>> {
    let graph = t.finish().unwrap_or_else(|e| panic!("{e}"));
    let (_, fused) = support::lowered(graph).unwrap_or_else(|e| panic!("{e}"));
    let found = support::computed(&fused, support::cpu(1), &HashMap::new()).expect("runs");
    found.outputs.iter().map(|(_, value)| value.to_f64s()).collect()
}

#[test]
fn what_is_masked_does_not_leak() {
    let t = Tracer::new("masked");
    {
        let numbers = |shape: &[usize], numbers: &[f64]| t.constant(DType::F32, shape, numbers);
        let q = numbers(&[2, 1], &[1.0, 2.0]);
        let k = numbers(&[3, 1], &[0.5, f64::NAN, 1.0]);
        let v = numbers(&[3, 1], &[3.0, f64::NAN, 5.0]);
        let mask = t.constant(DType::Bool, &[2, 3], &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let none = None::<Var<'_>>;
        let y = q.scaled_dot_product_attention(k, v, mask, none, 0.0, false, None, false, 0);
        t.output("y", y);
        for (i, g) in t.grad(y.sum(()), &[q, k, v]).into_iter().enumerate() {
            t.output(&format!("g{i}"), g);
        }
    }
    let found = run(t);
    // The second query sees nothing: zero, as in PyTorch.
    assert_eq!(found[0], [3.0, 0.0]);
    assert_eq!(found[1], [0.0, 0.0]);
    assert_eq!(found[2], [0.0, 0.0, 0.0]);
    assert_eq!(found[3], [1.0, 0.0, 0.0]);
}

/// Gradients, and gradients of those, of one query that sees the middle of three keys and another
/// that sees the last, by a mask of that dtype.
fn hidden(dtype: DType, numbers: [f64; 2]) -> Vec<Vec<f64>> {
    let t = Tracer::new("hidden");
    {
        let of = |shape: &[usize], numbers: &[f64]| t.constant(DType::F32, shape, numbers);
        let q = of(&[2, 2], &[1.0, 2.0, -0.5, 0.25]);
        let [first, rest] = numbers;
        let k = of(&[3, 2], &[first, 1.0, 0.5, 1.5, rest, -1.0]);
        let v = of(&[3, 2], &[1.0, first, 4.0, -3.0, rest, 2.0]);
        let seen = [0.0, 1.0, 0.0, 0.0, 1.0, 0.0];
        let mask = match dtype {
            DType::Bool => t.constant(DType::Bool, &[2, 3], &seen),
            dtype => {
                let number = |seen: &f64| if *seen == 0.0 { f64::NEG_INFINITY } else { 0.5 };
                t.constant(dtype, &[2, 3], &seen.iter().map(number).collect::<Vec<_>>())
            }
        };
        let none = None::<Var<'_>>;
        let y = q.scaled_dot_product_attention(k, v, mask, none, 0.0, false, None, false, 0);
        let mut of = vec![q, k, v];
        of.extend(dtype.is_float().then_some(mask));
        let loss = y.mul(y).sum(());
        let first = t.grad(loss, &of);
        let squares = first.iter().map(|g| g.mul(*g).sum(())).reduce(|a, b| a.add(b));
        let second = t.grad(squares.expect("there are three"), &of);
        for (i, x) in [y].into_iter().chain(first).chain(second).enumerate() {
            t.output(&format!("x{i}"), x);
        }
    }
    run(t)
}

#[test]
fn gradients_of_any_order_do_not_read_behind_a_mask() {
    for dtype in [DType::Bool, DType::F32] {
        for number in [f64::NAN, f64::INFINITY] {
            let found = hidden(dtype, [number; 2]);
            assert_eq!(found, hidden(dtype, [0.75; 2]), "{number} behind masks of {dtype}");
        }
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    let refused = |build: &dyn Fn(&Tracer)| {
        let t = Tracer::new("refused");
        build(&t);
        t.finish().expect_err("is refused").to_string()
    };
    let none = || None::<Var<'_>>;
    let of = |t: &Tracer, name: &str, dtype: DType, shape: &[usize]| {
        t.input(name, TensorType::new(dtype, shape)).id()
    };
    let call = |q: &[usize], k: &[usize], mask: Option<(DType, &[usize])>, gqa: bool, p: f64| {
        refused(&|t| {
            let [q, k] =
                [("q", q), ("k", k)].map(|(name, shape)| t.var(of(t, name, DType::F32, shape)));
            let mask = mask.map(|(dtype, shape)| t.var(of(t, "mask", dtype, shape)));
            let y = q.scaled_dot_product_attention(k, k, mask, none(), p, false, None, gqa, 0);
            t.output("y", y);
        })
    };
    // The op, the types of its operands, the line.
    let told = |error: &str, all: &[&str]| {
        let always = ["scaled_dot_product_attention", file!()];
        for part in all.iter().chain(&always) {
            assert!(error.contains(part), "{error:?} does not tell {part:?}");
        }
    };
    let heads = call(&[1, 3, 4, 8], &[1, 2, 5, 8], None, true, 0.0);
    told(&heads, &["2 heads of keys do not divide 3 of queries", "[1, 3, 4, 8]", "[1, 2, 5, 8]"]);
    let mask = call(&[1, 2, 4, 8], &[1, 2, 5, 8], Some((DType::I64, &[4, 5])), false, 0.0);
    told(&mask, &["masks of bool or floating point", "i64[4, 5]"]);
    for other in [DType::F16, DType::BF16, DType::F64] {
        let mask = call(&[1, 2, 4, 8], &[1, 2, 5, 8], Some((other, &[4, 5])), false, 0.0);
        told(&mask, &["masks of bool or f32", &format!("{other}[4, 5]")]);
    }
    let shape = call(&[1, 2, 4, 8], &[1, 2, 5, 8], Some((DType::Bool, &[4, 6])), false, 0.0);
    told(&shape, &["[4, 6]", "[1, 2, 4, 5]"]);
    let vast = call(&[1, 2, 4, 8], &[1, 2, 5, 8], Some((DType::F32, &[2, 2, 4, 5])), false, 0.0);
    told(&vast, &["[2, 2, 4, 5]", "[1, 2, 4, 5]"]);
    let dropout = call(&[1, 2, 4, 8], &[1, 2, 5, 8], None, false, 1.5);
    told(&dropout, &["1.5", "expected 0 to 1"]);
    let width = call(&[1, 2, 4, 8], &[1, 2, 5, 7], None, false, 0.0);
    told(&width, &["do not go together", "[1, 2, 4, 8]", "[1, 2, 5, 7]"]);
    let many = call(&[1, 1, 1 << 33, 1], &[1, 1, 1 << 33, 1], None, false, 0.0);
    told(&many, &["too many weights", "8589934592"]);
}

/// What forward and backward need in memory is that of the operands' lengths, threads included: no
/// weights lie there.
#[test]
fn memory_is_linear_in_the_length() {
    let device = support::cpu(2);
    let needed = |length: usize| {
        let sizes = Case {
            batch: 1,
            heads: 2,
            shared: 2,
            queries: length,
            keys: length,
            width: 16,
            value: 16,
            causal: true,
            mask: None,
            drop: 0.0,
            dtype: DType::F32,
        };
        let (_, fused) = support::lowered(sizes.program()).expect("a program");
        let program = Program::plan(&fused).and_then(|program| program.load(device.clone()));
        let program = program.expect("code");
        program.peak_bytes() + program.scratch_bytes()
    };
    let bytes = [1024, 2048, 4096].map(needed);
    let added = [bytes[1] - bytes[0], bytes[2] - bytes[1]];
    assert!(added[1] <= 2 * added[0], "{bytes:?}");
    // The weights of a head alone would take 64 MiB.
    assert!(bytes[2] < 32 << 20, "{bytes:?}");
}

#[test]
fn sizes_whose_products_no_index_holds_are_refused() {
    let placed = |input| Placed { input, offset: 0, strides: [0, 0, 0, 1] };
    let counts = |[batch, heads, shared, queries, keys, width, value]: [i64; 7]| {
        let of = Attend {
            pass: Pass::Backward,
            extents: Extents { batch, heads, shared, queries, keys, width, value },
            operands: [0, 1, 2].map(placed),
            mask: None,
            drop: None,
            given: None,
            causal: false,
            scale: 1,
        };
        of.counts().map(|_| ())
    };
    assert_eq!(counts([4, 8, 2, 4096, 4096, 64, 64]), Ok(()));
    assert_eq!(counts([0, 8, 8, 1024, 0, 64, 64]), Ok(()));
    let large = i64::MAX;
    for wrong in [
        [1, 1, 1, 1 << 31, 1 << 31, 1, 1],
        [0, large, large, large, 1, 1, 1],
        [1, 1, 1, 1, 1, 0, large],
        [1, 3, 2, 1, 1, 1, 1],
        [1, 1, 0, 1, 1, 1, 1],
        [1, 1, 1, -1, 1, 1, 1],
    ] {
        counts(wrong).expect_err("is refused");
    }
}
