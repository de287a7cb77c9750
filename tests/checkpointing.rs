//! Activation checkpointing: the bits of a step without it, from fewer bytes that backward keeps.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;
use support::random::program;
use support::{dice::Dice, layers};
use tracecast::nn::{
    Attend, BatchNorm2d, Checkpoint, Context, Conv2d, Dropout, Embedding, Flatten, Gelu, LayerNorm,
    Linear, Module, MultiheadAttention, Relu, Sequential,
};
use tracecast::prelude::*;
use tracecast::runtime::collective::threads;
use tracecast_ir::text::parse;

/// How much of a network is recomputed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Kept,
    /// Each block.
    Blocks,
    /// Each block, and its parts by themselves.
    Nested,
}

const RECOMPUTED: [How; 2] = [How::Blocks, How::Nested];

impl How {
    fn block(self, block: impl Module + 'static) -> Box<dyn Module> {
        if self == How::Kept { Box::new(block) } else { Box::new(Checkpoint(block)) }
    }

    fn part(self, part: impl Module + 'static) -> Box<dyn Module> {
        if self == How::Nested { Box::new(Checkpoint(part)) } else { Box::new(part) }
    }
}

/// Two blocks of two layers with dropout.
fn mlp(how: How) -> Sequential {
    let block = || {
        let part = Sequential::new().then(Gelu).then(Dropout::new(0.3)).then(Linear::new(32, 16));
        Sequential::new().then(how.part(Linear::new(16, 32))).then(how.part(part))
    };
    let blocks = Sequential::new().then(how.block(block())).then(how.block(block()));
    blocks.then(Linear::new(16, 5))
}

/// Convolutions with batch norm, whose statistics are state.
fn convolutions(how: How) -> Sequential {
    let conv = |from, to| Conv2d::new(from, to, [3, 3]).padding([1, 1]);
    let block = |from| {
        let first = Sequential::new().then(conv(from, 6)).then(BatchNorm2d::new(6)).then(Relu);
        let second = Sequential::new().then(conv(6, 6)).then(BatchNorm2d::new(6)).then(Relu);
        Sequential::new().then(how.part(first)).then(how.part(second)).then(Dropout::new(0.2))
    };
    let blocks = Sequential::new().then(how.block(block(2))).then(how.block(block(6)));
    blocks.then(Flatten::new()).then(Linear::new(6 * 6 * 6, 5))
}

/// A block of a transformer, whose attention sees what came before.
struct Block(How, usize);

struct Attention(usize);

impl Module for Attention {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let attention = MultiheadAttention::new(self.0, 4).batch_first().without_weights();
        cx.apply("attention", &attention, Attend::from(x).causal()).0
    }
}

impl Module for Block {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let &Block(how, width) = self;
        let attention = Sequential::new()
            .then(LayerNorm::new(width))
            .then(Attention(width))
            .then(Dropout::new(0.1));
        let x = x + cx.call("attention", &how.part(attention), x);
        let wide =
            Sequential::new().then(LayerNorm::new(width)).then(Linear::new(width, 4 * width));
        let mlp = wide.then(Gelu).then(Linear::new(4 * width, width)).then(Dropout::new(0.1));
        x + cx.call("mlp", &how.part(mlp), x)
    }
}

/// Logits of the next symbol at each position.
struct Transformer {
    how: How,
    layers: usize,
    width: usize,
    symbols: usize,
}

impl Module for Transformer {
    fn forward<'t>(&self, cx: &Context<'t>, codes: Var<'t>) -> Var<'t> {
        let &Transformer { how, layers, width, symbols } = self;
        let mut x = cx.call("embed", &Embedding::new(symbols, width), codes);
        for layer in 0..layers {
            x = cx.call(&format!("block{layer}"), &how.block(Block(how, width)), x);
        }
        let x = cx.call("norm", &LayerNorm::new(width), x);
        cx.call("head", &Linear::new(width, symbols), x).reshape([-1, symbols as i64])
    }
}

fn transformer(how: How) -> Transformer {
    Transformer { how, layers: 2, width: 16, symbols: 11 }
}

fn step(module: impl Module + 'static, dtype: Option<DType>, parts: usize) -> TrainStep {
    let scaler = (dtype == Some(DType::F16)).then(ScalerOptions::default);
    let step = TrainStep::new(module, |t, model| {
        model.forward(t.input("x")).cross_entropy(t.input("y").reshape([-1]))
    });
    let step = step.optimizer(AdamW::new(1e-2));
    let step = if dtype.is_some() { step.autocast("cpu", dtype) } else { step };
    let step = if let Some(scaler) = scaler { step.scaler(scaler) } else { step };
    step.micro_batches(parts, &["x", "y"]).build().expect("a step")
}

type Contents = BTreeMap<String, Vec<u8>>;

fn contents(store: &Store) -> Contents {
    let bytes = |name: &str| store.get(name).expect("is there").bytes().to_vec();
    store.names().map(|name| (name.to_owned(), bytes(name))).collect()
}

/// Losses and all state after a few steps.
fn trained(step: &TrainStep, (x, y): &(Tensor, Tensor)) -> (Vec<u32>, Contents) {
    let mut store = Store::new();
    step.init(&mut store, 3).expect("starts");
    let run =
        |store: &mut Store| step.run(store, &[("x", x), ("y", y)]).expect("runs").loss.to_bits();
    ((0..3).map(|_| run(&mut store)).collect(), contents(&store))
}

fn batch(x: &[usize]) -> (Tensor, Tensor) {
    let labels: Vec<i64> = (0..x[0] as i64).map(|row| row % 5).collect();
    (Tensor::randn(x, 1).expect("a shape"), Tensor::new([x[0]], &labels).expect("as many"))
}

fn codes() -> (Tensor, Tensor) {
    let codes = |from: i64| (0..4 * 8).map(|i| (i * i + from) % 11).collect::<Vec<i64>>();
    let tensor = |from| Tensor::new([4, 8], &codes(from)).expect("as many");
    (tensor(0), tensor(1))
}

fn same(
    network: &dyn Fn(How) -> Box<dyn Module>,
    given: &(Tensor, Tensor),
    dtypes: &[Option<DType>],
    parts: usize,
) {
    for dtype in dtypes {
        let kept = trained(&step(network(How::Kept), *dtype, parts), given);
        for how in RECOMPUTED {
            let recomputed = trained(&step(network(how), *dtype, parts), given);
            assert_eq!(recomputed.0, kept.0, "losses, {dtype:?} {how:?}");
            for (name, bytes) in &kept.1 {
                assert!(recomputed.1[name] == *bytes, "{name}, {dtype:?} {how:?}");
            }
        }
    }
}

const DTYPES: [Option<DType>; 3] = [None, Some(DType::BF16), Some(DType::F16)];

#[test]
fn an_mlp_with_dropout_has_the_same_bits() {
    same(&|how| Box::new(mlp(how)), &batch(&[8, 16]), &DTYPES, 1);
    same(&|how| Box::new(mlp(how)), &batch(&[8, 16]), &DTYPES, 2);
}

#[test]
fn convolutions_with_batch_norm_have_the_same_bits_and_statistics() {
    same(&|how| Box::new(convolutions(how)), &batch(&[4, 2, 6, 6]), &DTYPES, 1);
    same(&|how| Box::new(convolutions(how)), &batch(&[4, 2, 6, 6]), &DTYPES[..2], 2);
}

#[test]
fn a_transformer_has_the_same_bits() {
    same(&|how| Box::new(transformer(how)), &codes(), &DTYPES, 1);
}

#[test]
fn ranks_have_the_same_bits() {
    let on_ranks = |how: How| {
        let step = step(mlp(how), Some(DType::BF16), 1);
        std::thread::scope(|scope| {
            let started: Vec<_> = threads(2, Duration::from_secs(60))
                .into_iter()
                .map(|rank| {
                    let step = &step;
                    scope.spawn(move || {
                        let step = step.data_parallel(rank);
                        let mut store = Store::new();
                        step.init(&mut store, 3).expect("starts");
                        let (x, y) = batch(&[4, 16]);
                        for _ in 0..2 {
                            step.run(&mut store, &[("x", &x), ("y", &y)]).expect("runs");
                        }
                        contents(&store)
                    })
                })
                .collect();
            started.into_iter().map(|rank| rank.join().expect("ends")).collect::<Vec<_>>()
        })
    };
    let kept = on_ranks(How::Kept);
    RECOMPUTED.iter().for_each(|how| assert!(on_ranks(*how) == kept, "{how:?}"));
}

/// Gradients of the magnitude of gradients.
#[test]
fn second_order_has_the_same_bits() {
    let penalty = |how: How, dtype: Option<DType>| {
        let network = mlp(how);
        let program = jit(Options::new(), move |t| {
            let cx = Context::training(t);
            let x = t.input("x");
            let forward = || network.forward(&cx, x).pow(2).sum(());
            let loss = match dtype {
                Some(dtype) => autocast(t, "cpu", dtype, forward),
                None => forward(),
            };
            let first = t.grad(loss, &[x])[0];
            let loss = loss + first.pow(2).sum(());
            for (i, slope) in t.grad(loss, &t.params()).into_iter().enumerate() {
                t.output(&format!("{i}"), slope);
            }
        });
        let mut store = Store::new();
        mlp(how).init(&mut store, 2).expect("starts");
        let out = program.run(&mut store, &[("x", &batch(&[8, 16]).0)]).expect("runs");
        out.iter().map(|(name, y)| (name.to_owned(), y.bytes().to_vec())).collect::<Contents>()
    };
    for dtype in [None, Some(DType::BF16)] {
        let kept = penalty(How::Kept, dtype);
        assert!(RECOMPUTED.iter().all(|how| penalty(*how, dtype) == kept), "{dtype:?}");
    }
}

/// The text of a program with checkpoint regions around some of its lines, one in the other.
fn with_regions(text: &str, dice: &mut Dice) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let is_line = |line: &String| line.trim_start().starts_with('%');
    let first = lines.iter().position(is_line).expect("has a line");
    let mut end = lines.iter().rposition(is_line).expect("has a line") + 1;
    let (mut from, mut depth) = (first, 0);
    while from + 1 < end && depth < 3 {
        let to = from + 1 + dice.below(end - from);
        lines.insert(to, "}".to_owned());
        lines.insert(from, "checkpoint {".to_owned());
        // The next one lies in this one, or behind it.
        match dice.chance(50) {
            true => (from, end, depth) = (from + 1 + dice.below(2), to + 1, depth + 1),
            false => (from, end) = (to + 2, end + 2),
        }
    }
    lines.join("\n")
}

#[test]
fn random_programs_have_the_same_bits_with_regions_anywhere() {
    let device = support::cpu(1);
    for seed in 0..300 {
        let mut dice = Dice::new(seed);
        for graph in [program(seed, 14), layers::program(seed, 8)] {
            let inputs = support::inputs(&graph, seed);
            let (_, kept) =
                support::lowered(graph.clone()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let text = with_regions(&graph.to_string(), &mut dice);
            let graph = parse(&text).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
            let printed = graph.to_string();
            assert_eq!(parse(&printed).expect("reads back").to_string(), printed, "seed {seed}");
            let (_, fused) =
                support::lowered(graph).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
            let run = |fused| support::computed(fused, device.clone(), &inputs).expect("runs");
            let difference = support::difference(&run(&fused), &run(&kept));
            assert!(
                difference.is_none(),
                "seed {seed}: {}\n{text}",
                difference.unwrap_or_default()
            );
        }
    }
}

/// A step of twelve blocks keeps what goes in and out of them, and what one of them has at a time.
#[test]
fn twelve_blocks_keep_less_than_half() {
    for dtype in [None, Some(DType::BF16)] {
        let planned = |how: How| {
            let module = Transformer { how, layers: 12, width: 64, symbols: 128 };
            let step = step(module, dtype, 1);
            let mut store = Store::new();
            step.init(&mut store, 0).expect("starts");
            let codes = Tensor::new([2, 128], &[1i64; 256]).expect("as many");
            let report =
                step.jit().prepare(&store, &[("x", &codes), ("y", &codes)]).expect("compiles");
            (report.saved_bytes as f64, report.peak_bytes as f64)
        };
        let (kept, recomputed) = (planned(How::Kept), planned(How::Blocks));
        println!("{dtype:?}: {kept:?} {recomputed:?}");
        assert!(recomputed.0 <= 0.45 * kept.0, "{dtype:?}: {} of {}", recomputed.0, kept.0);
        assert!(recomputed.1 <= 0.45 * kept.1, "{dtype:?}: {} of {}", recomputed.1, kept.1);
    }
}
