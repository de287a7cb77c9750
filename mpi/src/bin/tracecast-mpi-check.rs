//! What the tests of this crate run under `mpirun`, and beside it on threads: training that prints
//! what came out, and the time of a reduction.
//!
//! ```text
//! tracecast-mpi-check train  STEPS [DTYPE]        trains and prints a line for each rank: digests of losses and of the store
//! tracecast-mpi-check threads N STEPS [DTYPE]     the same on N threads of one process
//! tracecast-mpi-check forever FOLDER DEADLINE_MS  trains until killed; rank 0 saves every tenth step
//! tracecast-mpi-check resume FOLDER STEPS         goes on from the saved state and prints digests
//! tracecast-mpi-check saved FOLDER                prints after how many steps the state was saved
//! tracecast-mpi-check reduce BYTES TIMES          times a reduction
//! tracecast-mpi-check threads-reduce N BYTES TIMES  the same on N threads
//! tracecast-mpi-check library BYTES TIMES         times the library's own
//! ```

use mpi::collective::SystemOperation;
use mpi::topology::Communicator;
use mpi::traits::CommunicatorCollectives;
use std::collections::hash_map::DefaultHasher;
use std::error::Error;
use std::hash::Hasher;
use std::path::Path;
use std::time::{Duration, Instant};
use tracecast::checkpoint::Load;
use tracecast::nn::{Dropout, Linear, Relu, Sequential};
use tracecast::prelude::*;
use tracecast::runtime::Collective;
use tracecast::runtime::collective::{Group, Label, Transfer, threads};
use tracecast::{DataParallel, TrainStep};
use tracecast_ir::op::Across;
use tracecast_runtime::files;

type Failed = Box<dyn Error + Send + Sync>;

const ROWS: usize = 24;
const WIDTH: usize = 20;
const DEADLINE: Duration = Duration::from_secs(30);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["train", steps] => train(DEADLINE, steps, "f32"),
        ["train", steps, dtype] => train(DEADLINE, steps, dtype),
        ["threads", ranks, steps] => on_threads(ranks, steps, "f32"),
        ["threads", ranks, steps, dtype] => on_threads(ranks, steps, dtype),
        ["forever", folder, deadline] => forever(Path::new(folder), deadline),
        ["resume", folder, steps] => resume(Path::new(folder), steps),
        ["saved", folder] => saved(Path::new(folder)),
        ["reduce", bytes, times] => reduce(bytes, times),
        ["threads-reduce", ranks, bytes, times] => reduce_on_threads(ranks, bytes, times),
        ["library", bytes, times] => library(bytes, times),
        _ => {
            Err("expected train, threads, forever, resume or reduce: see the head of the source"
                .into())
        }
    };
    if let Err(error) = done {
        eprintln!("error: {error}");
        // Not in order: other ranks may be waiting, and mpirun ends them.
        std::process::exit(1);
    }
}

fn step(dtype: &str) -> Result<TrainStep, Failed> {
    let model = Sequential::new()
        .named("a", Linear::new(WIDTH, 32))
        .named("act", Relu)
        .named("drop", Dropout::new(0.25))
        .named("b", Linear::new(32, 5));
    let step =
        TrainStep::new(model, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")))
            .optimizer(AdamW::new(1e-2))
            .options(Options::new().threads(1).bucket_bytes(1024));
    let step = match dtype {
        "f16" => step.autocast("cpu", DType::F16).scaler(ScalerOptions::default()),
        "bf16" => step.autocast("cpu", DType::BF16),
        _ => step,
    };
    Ok(step.build()?)
}

/// The rows of a rank in a step; every step has other ones.
fn batch(step: usize, rank: usize, size: usize) -> Result<(Tensor, Tensor), Failed> {
    let rows = ROWS / size * rank..ROWS / size * (rank + 1);
    let x = Tensor::rand([ROWS, WIDTH], 10 + step as u64)?.slice(0, rows.clone())?;
    let y: Vec<i64> = rows.map(|i| ((i * 7 + step * 3) % 5) as i64).collect();
    Ok((x, Tensor::new([y.len()], &y)?))
}

/// Takes some steps from `first` on; a digest of the losses.
fn take(step: &DataParallel, store: &mut Store, first: usize, count: usize) -> Result<u64, Failed> {
    let mut losses = DefaultHasher::new();
    for at in first..first + count {
        let (x, y) = batch(at, step.rank(), step.size())?;
        losses.write_u32(step.run(store, &[("x", &x), ("y", &y)])?.loss.to_bits());
    }
    Ok(losses.finish())
}

fn digest(store: &Store) -> Result<u64, Failed> {
    let mut all = DefaultHasher::new();
    for entry in store.iter() {
        let (name, value) = entry?;
        // What was put there besides the step differs from run to run.
        if name != "steps" {
            all.write(name.as_bytes());
            all.write(value.bytes());
        }
    }
    Ok(all.finish())
}

fn trained(ranks: Group, steps: &str, dtype: &str) -> Result<String, Failed> {
    let step = step(dtype)?.data_parallel(ranks);
    let mut store = Store::new();
    step.init(&mut store, 3)?;
    let losses = take(&step, &mut store, 0, steps.parse()?)?;
    Ok(format!(
        "rank {} of {}: losses {losses:016x}, store {:016x}",
        step.rank(),
        step.size(),
        digest(&store)?
    ))
}

fn train(deadline: Duration, steps: &str, dtype: &str) -> Result<(), Failed> {
    println!("{}", trained(tracecast_mpi::world(deadline)?, steps, dtype)?);
    Ok(())
}

fn on_threads(ranks: &str, steps: &str, dtype: &str) -> Result<(), Failed> {
    let ranks = threads(ranks.parse()?, DEADLINE);
    std::thread::scope(|scope| {
        let of_rank = |rank: Group| scope.spawn(move || trained(rank, steps, dtype));
        let started: Vec<_> = ranks.into_iter().map(of_rank).collect();
        for rank in started {
            println!("{}", rank.join().map_err(|_| "a rank has panicked")??);
        }
        Ok(())
    })
}

fn forever(folder: &Path, deadline: &str) -> Result<(), Failed> {
    let deadline = Duration::from_millis(deadline.parse()?);
    let step = step("f32")?.data_parallel(tracecast_mpi::world(deadline)?);
    let mut store = Store::new();
    step.init(&mut store, 3)?;
    let pid = std::process::id().to_string();
    files::replace(folder.join(format!("pid.{}", step.rank())), pid.as_bytes())?;
    for at in 0.. {
        take(&step, &mut store, at, 1)?;
        if at % 10 == 9 {
            store.insert("steps", Tensor::scalar(at as i64 + 1));
            step.save(&store, folder.join("state.safetensors"))?;
        }
    }
    Ok(())
}

fn resume(folder: &Path, steps: &str) -> Result<(), Failed> {
    let step = step("f32")?.data_parallel(tracecast_mpi::world(DEADLINE)?);
    let mut store = Store::new();
    let file = folder.join("state.safetensors");
    let first = match file.exists() {
        true => {
            step.load(&mut store, &file, &Load::strict())?;
            store.remove("steps")?.item::<i64>()? as usize
        }
        false => {
            step.init(&mut store, 3)?;
            0
        }
    };
    let until: usize = steps.parse()?;
    take(&step, &mut store, first, until.saturating_sub(first))?;
    println!(
        "rank {} of {}: from {first}, store {:016x}",
        step.rank(),
        step.size(),
        digest(&store)?
    );
    Ok(())
}

fn saved(folder: &Path) -> Result<(), Failed> {
    let mut store = Store::new();
    step("f32")?.load(&mut store, folder.join("state.safetensors"), &Load::strict())?;
    println!("{}", store.get("steps")?.item::<i64>()?);
    Ok(())
}

/// Times a reduction between ranks.
fn reduce(bytes: &str, times: &str) -> Result<(), Failed> {
    timed(&tracecast_mpi::world(DEADLINE)?, bytes.parse()?, times.parse()?)
}

fn reduce_on_threads(ranks: &str, bytes: &str, times: &str) -> Result<(), Failed> {
    let (bytes, times): (usize, u64) = (bytes.parse()?, times.parse()?);
    std::thread::scope(|scope| {
        let of_rank = |rank: Group| scope.spawn(move || timed(&rank, bytes, times));
        let started: Vec<_> = threads(ranks.parse()?, DEADLINE).into_iter().map(of_rank).collect();
        started.into_iter().try_for_each(|rank| rank.join().map_err(|_| "a rank has panicked")?)
    })
}

fn timed(ranks: &Group, bytes: usize, times: u64) -> Result<(), Failed> {
    let sum = Transfer::Reduce { across: Across::Sum, dtype: DType::F32 };
    let mut data = vec![0u8; bytes];
    let mut all = Vec::new();
    for step in 0..times + 3 {
        let label = Label { program: 1, step, bucket: 0 };
        let start = Instant::now();
        data = ranks.wait(ranks.start(sum, label, data)?)?.data;
        all.push(start.elapsed());
    }
    told("ours", ranks.rank(), &mut all);
    Ok(())
}

/// Times the library's own.
fn library(bytes: &str, times: &str) -> Result<(), Failed> {
    let universe = mpi::initialize().ok_or("MPI is initialised already")?;
    let world = universe.world();
    let data = vec![1f32; bytes.parse::<usize>()? / 4];
    let mut sum = vec![0f32; data.len()];
    let mut all = Vec::new();
    for _ in 0..times.parse::<u64>()? + 3 {
        let start = Instant::now();
        world.all_reduce_into(&data, &mut sum, SystemOperation::sum());
        all.push(start.elapsed());
    }
    told("library", world.rank() as usize, &mut all);
    Ok(())
}

/// Rank 0 prints the median and the least, without the first runs, which find cold memory.
fn told(what: &str, rank: usize, all: &mut Vec<Duration>) {
    all.drain(..3);
    all.sort();
    if rank == 0 {
        let us = |at: usize| all[at].as_secs_f64() * 1e6;
        println!("{what}: median {:.1} us, least {:.1} us", us(all.len() / 2), us(0));
    }
}
