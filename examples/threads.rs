//! One compiled program, run by eight threads at once: each thread brings a store of its own and gets the bits that one thread alone would get.
//!
//! `cargo run --release --example threads`

use std::io::Write;
use std::thread;
use tracecast::nn::{Context, Linear, Relu, Sequential};
use tracecast::prelude::*;

const THREADS: usize = 8;

fn main() -> tracecast::Result<()> {
    let layers = || Sequential::new().then(Linear::new(16, 64)).then(Relu).then(Linear::new(64, 4));
    let mut store = Store::new();
    layers().init(&mut store, 0)?;
    // Kernels run on the thread that calls `run`: eight callers are parallel enough.
    let model = layers();
    let program = jit(Options::new().threads(1), move |t| {
        let cx = Context::evaluation(t);
        t.output("y", model.forward(&cx, t.input("x")).softmax(1, None));
    });
    let batches: Vec<Tensor> =
        (0..64).map(|seed| Tensor::randn([8, 16], seed)).collect::<Result<_, _>>()?;

    // Each thread takes every eighth batch. The first call compiles, the others wait for it and run what it has made.
    let parts: Vec<Vec<Vec<f32>>> = thread::scope(|scope| {
        let work = |first: usize| {
            let mut store = copied(&store)?;
            let mine = batches.iter().skip(first).step_by(THREADS);
            mine.map(|x| Ok(program.run(&mut store, &[("x", x)])?["y"].to_vec()?))
                .collect::<tracecast::Result<Vec<_>>>()
        };
        let workers: Vec<_> = (0..THREADS).map(|i| scope.spawn(move || work(i))).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker does not panic"))
            .collect::<tracecast::Result<_>>()
    })?;

    for (i, x) in batches.iter().enumerate() {
        let alone = program.run(&mut store, &[("x", x)])?["y"].to_vec::<f32>()?;
        assert_eq!(alone, parts[i % THREADS][i / THREADS], "batch {i}");
    }
    let compiled = program.recompilations().len();
    writeln!(
        std::io::stdout(),
        "{} batches on {THREADS} threads, {compiled} program compiled, every result as from one thread",
        batches.len()
    )
    .expect("standard output is open");
    Ok(())
}

/// The values of a store in another one, which holds a copy of its own once a program has run with it.
fn copied(store: &Store) -> tracecast::Result<Store> {
    let mut copy = Store::new();
    for entry in store.iter() {
        let (name, value) = entry?;
        copy.insert(name, value);
    }
    Ok(copy)
}
