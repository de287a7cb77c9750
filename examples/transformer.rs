//! A transformer that tells the next character from those before it: two blocks with rotary
//! positions and gated layers, trained in bf16. It then goes on with a text, one character at a
//! time, from caches of keys and values: `cargo run --release --example transformer`.
//!
//! `examples/transformer.py` trains the same model in PyTorch, from the same start on the same
//! batches.

use std::{io::Write, time::Instant};
use tracecast::generate::{Generator, Sampling};
use tracecast::nn::{Context, Embedding, KvCache, Linear, Module, RmsNorm};
use tracecast::prelude::*;

const SYMBOLS: usize = 128;
const WIDTH: usize = 64;
const HEADS: usize = 4;
/// Characters of a batch: the number of sequences, and their length.
const BATCH: [usize; 2] = [16, 64];
/// Characters that a text may have when the model goes on with it.
const CAPACITY: usize = 256;

/// Logits of the next character at each position; of new characters alone, if some came before
/// them.
pub(crate) struct Characters(pub(crate) Option<Size>);

impl Module for Characters {
    fn forward<'t>(&self, cx: &Context<'t>, codes: Var<'t>) -> Var<'t> {
        let mut x = cx.call("embed", &Embedding::new(SYMBOLS, WIDTH), codes);
        for block in ["block0", "block1"] {
            x = cx.call(block, &Block(self.0), x);
        }
        let x = cx.call("norm", &norm(), x);
        cx.call("head", &linear(WIDTH, SYMBOLS), x).reshape([-1, SYMBOLS as i64])
    }
}

fn norm() -> RmsNorm {
    RmsNorm::new(WIDTH).eps(1e-5)
}

fn linear(inputs: usize, outputs: usize) -> Linear {
    Linear::new(inputs, outputs).without_bias()
}

/// Attention and a gated layer, each behind a norm and beside a path around it.
struct Block(Option<Size>);

impl Block {
    fn attention<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let qkv = cx.call("qkv", &linear(WIDTH, 3 * WIDTH), x);
        let each = WIDTH / HEADS;
        let [q, k, v] = [0, 1, 2].map(|i| {
            let part = qkv.slice(-1, (i * WIDTH) as i64, ((i + 1) * WIDTH) as i64, 1);
            part.reshape(sizes![x.size(0), x.size(1), HEADS, each]).permute([0, 2, 1, 3])
        });
        let before = self.0.unwrap_or(Size::from(0));
        let t = cx.trace().tracer();
        let positions = t.iota(DType::F32, [x.size(1)], 0).add(before);
        let [q, k] = [q, k].map(|x| x.rotary(positions, 10_000.0));
        let cache = KvCache::new(1, HEADS, CAPACITY, each);
        let [k, v] = self.0.map_or([k, v], |filled| cache.extend(cx, [k, v], filled));
        let (none, causal) = (None::<Var<'t>>, self.0.is_none());
        let y = q.scaled_dot_product_attention(k, v, none, none, 0.0, causal, None, false, 0);
        cx.call("mix", &linear(WIDTH, WIDTH), y.permute([0, 2, 1, 3]).flatten(2, 3))
    }
}

impl Module for Block {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let x = x + self.attention(cx, cx.call("norm0", &norm(), x));
        let y = cx.call("norm1", &norm(), x);
        let [up, gate] = ["up", "gate"].map(|name| cx.call(name, &linear(WIDTH, 3 * WIDTH), y));
        x + cx.call("down", &linear(3 * WIDTH, WIDTH), up.swiglu(gate))
    }
}

/// Parameters that depend on nothing but their shapes and their order by name: matrices of hashed
/// numbers, and norms of ones.
fn start(store: &mut Store) -> tracecast::Result<()> {
    let mut model = Store::new();
    Characters(None).init(&mut model, 0)?;
    let mut names: Vec<&str> = model.names().collect();
    names.sort_unstable();
    for (seed, name) in names.into_iter().enumerate() {
        let [rows, columns] = model.get(name)?.shape().numbers()[..] else { continue };
        let bound = 1.0 / (columns as f64).sqrt();
        let number = |i: usize| {
            ((f64::from(hash(i as u32, seed as u32)) + 0.5) / 2f64.powi(31) - 1.0) * bound
        };
        let numbers: Vec<f32> = (0..rows * columns).map(|i| number(i) as f32).collect();
        store.insert(name, Tensor::new([rows, columns], &numbers)?);
    }
    Ok(())
}

fn hash(i: u32, seed: u32) -> u32 {
    let mut x = i.wrapping_add(1).wrapping_mul(2_654_435_761) ^ seed.wrapping_mul(40_503);
    x = (x ^ (x >> 16)).wrapping_mul(2_246_822_519);
    x = (x ^ (x >> 13)).wrapping_mul(3_266_489_917);
    x ^ (x >> 16)
}

/// Sequences that begin so far apart in a text, and the characters behind each of theirs.
fn batch(text: &[i64], step: usize) -> tracecast::Result<[Tensor; 2]> {
    let [sequences, length] = BATCH;
    let first = |i: usize| (step * sequences + i) * 37 % (text.len() - length);
    let from = |more: usize| {
        let rows = (0..sequences).flat_map(|i| &text[first(i) + more..][..length]);
        Tensor::new(BATCH, &rows.copied().collect::<Vec<i64>>())
    };
    Ok([from(0)?, from(1)?])
}

/// The store of a model trained for `steps` steps, and its loss on the tenth of the text that it
/// has not seen.
pub(crate) fn train(text: &[i64], steps: usize) -> tracecast::Result<(Store, f32)> {
    let (seen, held_out) = text.split_at(text.len() / 10 * 9);
    let step = TrainStep::new(Characters(None), |t, model| {
        model.forward(t.input("x")).cross_entropy(t.input("y").reshape([-1]))
    });
    // A rate that ends at zero: else the last steps, and the last bits of the first ones, decide
    // about some percent of the loss.
    let rate = Schedule::linear(0.003, 1.0, 0.0, steps as u64);
    let step = step.optimizer(AdamW::new(rate)).autocast("cpu", DType::BF16).build()?;
    let mut store = Store::new();
    step.init(&mut store, 0)?;
    start(&mut store)?;
    for i in 0..steps {
        let [x, y] = batch(seen, i)?;
        step.run(&mut store, &[("x", &x), ("y", &y)])?;
    }
    let loss = jit(Options::new(), |t| {
        let logits = Characters(None).forward(&Context::evaluation(t), t.input("x"));
        t.output("loss", logits.cross_entropy(t.input("y").reshape([-1])));
    });
    let [x, y] = batch(held_out, 0)?;
    let loss = loss.run(&mut store, &[("x", &x), ("y", &y)])?["loss"].item()?;
    Ok((store, loss))
}

/// The model for one character at a time.
pub(crate) fn generator() -> tracecast::Result<Generator> {
    Generator::new(&Options::new(), CAPACITY, |t, code, before| {
        Characters(Some(before)).forward(&Context::evaluation(t), code)
    })
}

pub(crate) fn text() -> Vec<i64> {
    include_str!("tale.txt").bytes().map(i64::from).collect()
}

fn main() -> tracecast::Result<()> {
    let mut out = std::io::stdout();
    let mut say = |line: String| writeln!(out, "{line}").expect("standard output is open");
    let (begin, text) = (Instant::now(), text());
    let (mut store, loss) = train(&text, 200)?;
    say(format!("loss {loss:.4} after {:.1} s", begin.elapsed().as_secs_f64()));
    let generator = generator()?;
    let begin = Instant::now();
    let sampling = Sampling::at(0.5, 7).top_k(20);
    let codes = generator.run(&mut store, &text[..32], 200, &sampling)?;
    let said: String = codes.iter().map(|code| char::from(*code as u8)).collect();
    say(format!("{said}\n{:.2} ms a character", begin.elapsed().as_secs_f64() * 1e3 / 231.0));
    Ok(())
}
