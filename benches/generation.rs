//! What a token costs: 12 blocks of attention and two layers over 768 numbers, f32, two threads,
//! one token behind 100 others, in caches of two capacities.
//!
//! `cargo bench --bench generation [-- ROUNDS]` runs both in turn, each token at the same place,
//! and gives the medians in milliseconds and their ratio. `python benches/peers/generation.py`
//! times PyTorch, which puts the new keys and values behind the others.

#[path = "support/programs.rs"]
mod programs;

use std::time::Instant;
use tracecast::generate::Generator;
use tracecast::nn::{Context, Embedding, KvCache, LayerNorm, Linear, Module};
use tracecast::prelude::*;

const LAYERS: usize = 12;
const WIDTH: usize = 768;
const HEADS: usize = 12;
const SYMBOLS: usize = 256;
const CAPACITIES: [usize; 2] = [128, 4096];
const FILLED: i64 = 100;

/// Scores of the next token, for one token behind `filled` others.
struct Model {
    capacity: usize,
    filled: Size,
}

impl Module for Model {
    fn forward<'t>(&self, cx: &Context<'t>, token: Var<'t>) -> Var<'t> {
        let mut x = cx.call("tokens", &Embedding::new(SYMBOLS, WIDTH), token);
        for layer in 0..LAYERS {
            x = cx.call(&format!("block{layer}"), &Block(self.capacity, self.filled), x);
        }
        cx.call("head", &Linear::new(WIDTH, SYMBOLS), cx.call("norm", &LayerNorm::new(WIDTH), x))
    }
}

struct Block(usize, Size);

impl Module for Block {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let each = WIDTH / HEADS;
        let normal = cx.call("norm0", &LayerNorm::new(WIDTH), x);
        let qkv = cx.call("qkv", &Linear::new(WIDTH, 3 * WIDTH), normal);
        let [q, k, v] = [0, 1, 2].map(|i| {
            let part = qkv.slice(-1, (i * WIDTH) as i64, ((i + 1) * WIDTH) as i64, 1);
            part.reshape([1, 1, HEADS, each]).permute([0, 2, 1, 3])
        });
        let [k, v] = KvCache::new(1, HEADS, self.0, each).extend(cx, [k, v], self.1);
        let none = None::<Var<'t>>;
        let y = q.scaled_dot_product_attention(k, v, none, none, 0.0, false, None, false, 0);
        let y = y.permute([0, 2, 1, 3]).reshape([1, 1, WIDTH]);
        let x = x + cx.call("mix", &Linear::new(WIDTH, WIDTH), y);
        let up = cx.call("norm1", &LayerNorm::new(WIDTH), x);
        let up = cx.call("up", &Linear::new(WIDTH, 4 * WIDTH), up).gelu(Some("tanh"));
        x + cx.call("down", &Linear::new(4 * WIDTH, WIDTH), up)
    }
}

/// A model and its weights and caches.
fn started(capacity: usize) -> (Generator, Store) {
    let options = programs::written(Options::new().threads(2));
    let generator = Generator::new(&options, capacity, |t, token, filled| {
        Model { capacity, filled }.forward(&Context::evaluation(t), token)
    });
    let generator = generator.expect("a program");
    let mut store = Store::new();
    for (seed, port) in generator.program().graph().ports().iter().enumerate() {
        if port.name != "token" {
            let numbers =
                Tensor::randn(port.ty.shape.clone(), seed as u64).expect("a size that fits");
            store.insert(&port.name, numbers);
        }
    }
    (generator, store)
}

#[allow(clippy::print_stdout, reason = "the table is what a bench is for")]
fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let rounds = words.first().and_then(|n| n.parse().ok()).unwrap_or(40);
    let mut models = CAPACITIES.map(started);
    let token = Tensor::new([1, 1], &[7i64]).expect("a token");
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..rounds {
        for ((generator, store), times) in models.iter_mut().zip(&mut times) {
            let begin = Instant::now();
            let sizes = [("filled", FILLED)];
            generator.program().run_at(store, &[("token", &token)], &sizes).expect("runs");
            times.push(begin.elapsed().as_secs_f64() * 1e3);
        }
    }
    let medians = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    for (capacity, median) in CAPACITIES.iter().zip(medians) {
        println!("capacity {capacity:5} | {median:8.3} ms a token behind {FILLED}");
    }
    println!("ratio {:.3}", medians[1] / medians[0]);
}
