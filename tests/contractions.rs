//! Random products and convolutions, forward and gradients: compiled code has the bits of the
//! interpreter, with any instructions and on any number of threads. Attention has a test of its
//! own, `tests/attention.rs`.
//!
//! `TRACECAST_RANDOM_PROGRAMS` sets how many, `TRACECAST_RANDOM_SEED` the first seed.

mod support;

use support::dice::Dice;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, Graph, TensorType, Tracer, Var};

/// The most multiplications of a case: the interpreter does them one by one.
const MOST: usize = 1 << 16;

/// A product of matrices, or of as many as there are batches.
#[derive(Clone, Copy, Debug)]
struct Product {
    batches: usize,
    /// Rows, columns and summed elements.
    sizes: [usize; 3],
    /// Whether the operands are transposed in memory.
    transposed: [bool; 2],
    /// All batches have one right operand.
    is_shared: bool,
}

/// A convolution of one to three axes.
#[derive(Clone, Debug)]
struct Convolution {
    batch: usize,
    /// Channels of the operand and of the result, and groups.
    channels: [usize; 3],
    axes: Vec<Axis>,
    is_transposed: bool,
}

/// How windows move along an axis.
#[derive(Clone, Copy, Debug)]
struct Axis {
    size: usize,
    window: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
    /// Elements that a transposed convolution adds at the end.
    more: usize,
}

impl Product {
    fn random(dice: &mut Dice) -> Product {
        let sizes = [0; 3].map(|_| size(dice, 8));
        let batches = dice.pick(&[1, 1, 2, 3]);
        let is_shared = dice.chance(50);
        let case =
            Product { batches, sizes, transposed: [50; 2].map(|p| dice.chance(p)), is_shared };
        match batches * sizes.iter().product::<usize>() <= MOST {
            true => case,
            false => Product::random(dice),
        }
    }

    fn operands(&self) -> [Vec<usize>; 2] {
        let [m, n, k] = self.sizes;
        let [left, right] = [[m, k], [k, n]];
        let of = |[rows, columns]: [usize; 2], is_transposed: bool, batches: usize| {
            let matrix = if is_transposed { [columns, rows] } else { [rows, columns] };
            let lead = (batches > 1).then_some(batches);
            lead.into_iter().chain(matrix).collect()
        };
        let of_right = if self.is_shared { 1 } else { self.batches };
        [of(left, self.transposed[0], self.batches), of(right, self.transposed[1], of_right)]
    }

    fn result<'t>(&self, [a, b]: [Var<'t>; 2]) -> Var<'t> {
        let [a, b] = [(a, self.transposed[0]), (b, self.transposed[1])]
            .map(|(x, is_transposed)| if is_transposed { x.transpose(-2, -1) } else { x });
        a.matmul(b)
    }
}

impl Convolution {
    fn random(dice: &mut Dice) -> Convolution {
        let count = dice.pick(&[1, 2, 2, 2, 3]);
        let most = [60, 20, 7][count - 1];
        let groups = dice.pick(&[1, 1, 2, 3, 20]);
        let channels = match (groups, dice.chance(50)) {
            (20, _) => [20, 20 * dice.pick(&[1, 1, 2]), 20],
            (_, true) => [groups * size(dice, 3), groups * dice.pick(&[16, 32]), groups],
            (_, false) => [groups * size(dice, 5), groups * size(dice, 5), groups],
        };
        let is_transposed = dice.chance(30);
        let mut axis = || Axis {
            size: 1 + dice.below(most),
            window: dice.pick(&[1, 2, 3, 3, 3, 5]),
            stride: dice.pick(&[1, 1, 2, 3]),
            padding: dice.below(3),
            dilation: dice.pick(&[1, 1, 1, 2]),
            more: 0,
        };
        let mut axes: Vec<Axis> = (0..count).map(|_| axis()).collect();
        if is_transposed {
            axes.iter_mut().for_each(|axis| axis.more = dice.below(axis.stride));
        }
        let case = Convolution { batch: 1 + dice.below(3), channels, axes, is_transposed };
        if case.multiplications().is_some_and(|count| count <= MOST) {
            case
        } else {
            Convolution::random(dice)
        }
    }

    /// The multiplications of its result; `None` if that has no element.
    fn multiplications(&self) -> Option<usize> {
        let [from, to, groups] = self.channels;
        let mut count = self.batch * from * to / groups;
        for Axis { size, window, stride, padding, dilation, more } in &self.axes {
            let reach = dilation * (window - 1) + 1;
            let windows = if self.is_transposed {
                ((size - 1) * stride + reach + more).checked_sub(2 * padding + 1)?;
                *size
            } else {
                (size + 2 * padding).checked_sub(reach)? / stride + 1
            };
            count *= window * windows;
        }
        Some(count)
    }

    fn operands(&self) -> [Vec<usize>; 2] {
        let [from, to, groups] = self.channels;
        let first = if self.is_transposed { [from, to / groups] } else { [to, from / groups] };
        let sizes = self.axes.iter().map(|axis| axis.size);
        let windows = self.axes.iter().map(|axis| axis.window);
        [
            [self.batch, from].into_iter().chain(sizes).collect(),
            first.into_iter().chain(windows).collect(),
        ]
    }

    fn result<'t>(&self, [x, w]: [Var<'t>; 2]) -> Var<'t> {
        let of = |what: fn(&Axis) -> usize| -> Vec<i64> {
            self.axes.iter().map(|axis| what(axis) as i64).collect()
        };
        let [stride, padding] = [of(|axis| axis.stride), of(|axis| axis.padding)];
        let [dilation, more] = [of(|axis| axis.dilation), of(|axis| axis.more)];
        let groups = Some(self.channels[2] as i64);
        match (self.is_transposed, self.axes.len()) {
            (false, 1) => x.conv1d(w, None, stride, padding, dilation, groups, false),
            (false, 2) => x.conv2d(w, None, stride, padding, dilation, groups, false),
            (false, _) => x.conv3d(w, None, stride, padding, dilation, groups, false),
            (true, 1) => x.conv_transpose1d(w, None, stride, padding, more, groups, dilation),
            (true, 2) => x.conv_transpose2d(w, None, stride, padding, more, groups, dilation),
            (true, _) => x.conv_transpose3d(w, None, stride, padding, more, groups, dilation),
        }
    }
}

/// A size up to `2^bits`, each power of two as often.
fn size(dice: &mut Dice, bits: usize) -> usize {
    let most = 1 << (1 + dice.below(bits));
    1 + dice.below(most)
}

/// A random case: what it is, and the program of its result and both gradients.
fn case(dice: &mut Dice) -> (String, Graph) {
    let dtype =
        dice.pick(&[DType::F32, DType::F32, DType::BF16, DType::BF16, DType::F16, DType::F64]);
    let t = Tracer::new("contraction");
    let is_clipped = dice.chance(50);
    let record = |operands: [Vec<usize>; 2], result: &dyn for<'t> Fn([Var<'t>; 2]) -> Var<'t>| {
        let [a, b] = operands.map(|sizes| TensorType::new(dtype, &sizes[..]));
        let operands = [t.input("a", a), t.input("b", b)];
        let y = result(operands);
        let dy = t.input("dy", TensorType::new(dtype, y.shape()));
        let loss = y.to(DType::F64).mul(dy.to(DType::F64)).sum(());
        for (name, gradient) in ["da", "db"].into_iter().zip(t.grad(loss, &operands)) {
            t.output(name, gradient);
        }
        t.output("y", if is_clipped { y.relu() } else { y });
    };
    let what = if dice.chance(30) {
        let product = Product::random(dice);
        record(product.operands(), &|operands| product.result(operands));
        format!("{product:?}")
    } else {
        let convolution = Convolution::random(dice);
        record(convolution.operands(), &|operands| convolution.result(operands));
        format!("{convolution:?}")
    };
    let graph = t.finish().unwrap_or_else(|e| panic!("{what} in {dtype}: {e}"));
    (format!("{what} in {dtype}"), graph)
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

#[test]
fn random_products_and_convolutions_have_the_bits_of_the_interpreter() {
    let cpus = support::cpus();
    let mut failures = Vec::new();
    let first = setting("TRACECAST_RANDOM_SEED", 0);
    for seed in first..first + setting("TRACECAST_RANDOM_PROGRAMS", 200) {
        let (what, graph) = case(&mut Dice::new(seed));
        let inputs = support::inputs(&graph, seed);
        let lowered =
            support::lowered(graph).unwrap_or_else(|e| panic!("seed {seed}, {what}: {e}"));
        let (reference, fused) = lowered;
        let wanted = support::expected(&reference, &inputs)
            .unwrap_or_else(|e| panic!("seed {seed}, {what}: {e}"));
        failures.extend(support::differences(
            &format!("seed {seed}, {what}"),
            &cpus,
            (&fused, &inputs),
            &wanted,
        ));
    }
    assert!(failures.is_empty(), "{} differ:\n{}", failures.len(), failures.join("\n"));
}
