//! Memory that is missing: an error that names the program, state as it was, and the next run as if
//! nothing had happened.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tracecast::ir::eval::Bytes;
use tracecast::ir::kernel::{Capabilities, Kernel};
use tracecast::ir::policy::DeviceType;
use tracecast::prelude::*;
use tracecast::runtime::{Error, Launch, Memory, Result};
use tracecast::{CpuDevice, CpuOptions, Device, Graph, Outputs, Session};

/// Requests of this number of bytes or more are counted, and one of them is refused.
const LARGE: usize = 64 * 1024;

/// The CPU, which refuses a request for memory.
#[derive(Debug)]
struct Refusing {
    cpu: CpuDevice,
    /// How many large requests are left until one is refused.
    left: AtomicUsize,
    /// What it has reserved.
    given: Mutex<Vec<Memory>>,
    /// Whether state may be updated in place; otherwise fresh memory replaces it.
    in_place: bool,
}

impl Refusing {
    fn new(in_place: bool) -> Arc<Self> {
        let cpu = CpuDevice::new(CpuOptions { threads: Some(1), ..CpuOptions::default() });
        Arc::new(Refusing {
            cpu: cpu.unwrap(),
            left: AtomicUsize::new(usize::MAX),
            given: Mutex::default(),
            in_place,
        })
    }

    /// Refuses the large request that comes after a number of others.
    fn refuse_after(&self, requests: usize) {
        self.left.store(requests, Ordering::Relaxed);
    }

    /// How many pieces of memory somebody has.
    fn in_use(&self) -> usize {
        let mut given = self.given.lock().unwrap();
        given.retain(|memory| memory.handles() > 1);
        given.len()
    }

    /// How many large requests there were since.
    fn requested(&self, since: usize) -> usize {
        since.wrapping_sub(self.left.load(Ordering::Relaxed))
    }
}

impl Device for Refusing {
    fn name(&self) -> &str {
        "cpu"
    }

    fn serves(&self) -> Option<DeviceType> {
        self.cpu.serves()
    }

    fn capabilities(&self) -> Capabilities {
        self.cpu.capabilities()
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>> {
        self.cpu.load(kernel)
    }

    fn load_all(&self, kernels: &[&Kernel]) -> Result<Vec<Box<dyn Launch>>> {
        self.cpu.load_all(kernels)
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        if bytes >= LARGE && self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            return Err(Error::Device(format!("{bytes} bytes are refused")));
        }
        let memory = self.cpu.alloc(bytes)?;
        self.given.lock().unwrap().push(memory.clone());
        Ok(memory)
    }

    // State that is copied to the device is a request as well.
    fn adopt(&self, bytes: Bytes) -> std::result::Result<Memory, Bytes> {
        Err(bytes)
    }

    fn upload(&self, from: &[u8], to: &Memory, at: usize) -> Result<()> {
        self.cpu.upload(from, to, at)
    }

    fn download(&self, from: &Memory, at: usize, to: &mut [u8]) -> Result<()> {
        self.cpu.download(from, at, to)
    }

    fn run_step(&self, body: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()> {
        self.cpu.run_step(body)
    }

    fn launches_are_infallible(&self) -> bool {
        self.in_place
    }

    fn takes_loans(&self) -> bool {
        true
    }
}

/// Numbers that are the same in every run of the tests.
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// A step over large values: products, rows, columns, a constant, and state that is replaced.
fn program(draws: &mut Draws) -> Graph {
    let [a, b, c] = [(); 3].map(|()| 130 + draws.below(70));
    let kinds: Vec<usize> = (0..4 + draws.below(6)).map(|_| draws.below(5)).collect();
    let numbers: Vec<f64> = (0..a * c).map(|i| (i % 13) as f64 * 0.25).collect();
    let ty = |shape: [usize; 2]| TensorType::new(DType::F32, shape);
    let graph = trace("step", |t| {
        let x = t.input_of("x", ty([a, b]));
        let (w, m) = (t.param_of("w", ty([b, c])), t.param_of("m", ty([a, c])));
        let mut h = x.matmul(w);
        for (i, kind) in kinds.iter().enumerate() {
            h = match kind {
                0 => h.tanh() + m,
                1 => h.softmax(-1) * t.constant(DType::F32, &[a, c], &numbers),
                2 => h - h.mean([0].keep()),
                3 => x.matmul(w * 0.5) + h,
                _ => h.permute([1, 0]).relu().permute([1, 0]),
            };
            t.output(&format!("s{i}"), h.sum(0));
        }
        t.output("h", h);
        t.update(m, m * 0.5 + h);
        t.update(w, w - x.permute([1, 0]).matmul(h) * 0.001);
    });
    graph.unwrap()
}

fn tensor(graph: &Graph, name: &str, seed: u64) -> Tensor {
    let shape = graph.port_named(name).unwrap().ty.shape.numbers();
    Tensor::rand(&shape[..], seed).unwrap()
}

#[test]
fn a_refused_request_is_an_error_and_state_stays_whole() {
    let (mut draws, mut refused) = (Draws(7), 0);
    for seed in 0..200 {
        let (graph, device) = (program(&mut draws), Refusing::new(seed % 2 == 0));
        let [x, w, m] = ["x", "w", "m"].map(|name| tensor(&graph, name, seed));
        let options = Options::new().on(device.clone());
        // Values that somebody else holds are copied to the device.
        let store = || Store::new().with("w", w.clone()).with("m", m.clone());
        let steps = |store: &mut Store, program: &tracecast::Executable| -> Result<Vec<Outputs>> {
            (0..2).map(|_| program.run(store, &[("x", &x)])).collect()
        };
        device.refuse_after(usize::MAX);
        let program = compile(graph.clone(), &options).unwrap();
        let mut own = store();
        let expected = steps(&mut own, &program).unwrap();
        let requests = device.requested(usize::MAX);
        let steady = device.in_use();
        drop((program, own));
        assert!(steady > 0 && device.in_use() == 0, "{seed}: {} are kept", device.in_use());
        device.refuse_after(draws.below(requests));
        let mut own = store();
        let program = match compile(graph.clone(), &options) {
            Ok(program) => {
                let error = steps(&mut own, &program).unwrap_err().to_string();
                assert!(error.contains("are refused"), "{seed}: {error}");
                assert!(device.in_use() <= steady, "{seed}: {} of {steady}", device.in_use());
                refused += 1;
                program
            }
            Err(error) => {
                assert!(error.to_string().contains("are refused"), "{seed}: {error}");
                assert_eq!(device.in_use(), 0, "{seed}: what compiling had reserved");
                compile(graph, &options).unwrap()
            }
        };
        // No step was done, or the first one.
        let after = own.get("m").unwrap();
        if after == m {
            assert_eq!(own.get("w").unwrap(), w, "{seed}");
            assert_eq!(steps(&mut own, &program).unwrap(), expected, "{seed}");
        } else {
            assert_eq!(steps(&mut own, &program).unwrap()[0], expected[1], "{seed}");
        }
        // Memory that was reserved for what failed has come back.
        assert!(device.in_use() <= steady, "{seed}: {} of {steady}", device.in_use());
        drop((program, own));
        assert_eq!(device.in_use(), 0, "{seed}");
    }
    assert!(refused > 100, "{refused} while running");
}

#[test]
fn errors_name_the_program_and_what_it_needs() {
    let device = Refusing::new(true);
    let graph = program(&mut Draws(1));
    let [x, w, m] = ["x", "w", "m"].map(|name| tensor(&graph, name, 1));
    let program = compile(graph, &Options::new().on(device.clone())).unwrap();
    let mut store = Store::new().with("w", w).with("m", m);
    device.refuse_after(2);
    let error = program.run(&mut store, &[("x", &x)]).unwrap_err().to_string();
    let expected = format!("device: program @step, whose runs need {} bytes", program.peak_bytes());
    assert!(error.starts_with(&expected), "{error}");
}

#[test]
fn a_session_goes_on_after_memory_was_missing() {
    let device = Refusing::new(true);
    let options = Options::new().on(device.clone());
    let double = jit(options, |t| {
        t.output("y", ((t.input("x") * t.param("w")).permute([1, 0]).softmax(-1)).sum(0))
    });
    let w = Tensor::rand([200, 300], 1).unwrap();
    let weights = Store::new().with("w", w.clone()).snapshot();
    let (x, mut session) = (Tensor::rand([200, 300], 2).unwrap(), Session::new());
    double.prepare(&Store::new().with("w", w), &[("x", &x)]).unwrap();
    let mut run = |refused: usize| {
        device.refuse_after(refused);
        double.run_on(&weights, &mut session, &[("x", &x)])
    };
    assert!(run(0).unwrap_err().to_string().contains("are refused"));
    let first = run(usize::MAX).unwrap();
    assert_eq!(run(usize::MAX).unwrap(), first);
}

#[test]
fn element_counts_beyond_memory_are_refused_where_they_are_written() {
    let vast = TensorType::new(DType::F32, [1usize << 40, 1 << 30]);
    let error = trace("vast", |t| t.output("y", t.input_of("x", vast.clone()) * 2.0));
    assert!(error.unwrap_err().to_string().contains("memory.rs"));
    // A value that nothing asks for by name: the program is refused before it is compiled.
    let sum = jit(Options::new().threads(1).memory_limit(1 << 20), |t| {
        let x = t.input("x");
        let all = (x.reshape([-1, 1]) * x).softmax(-1);
        t.output("y", all.permute([1, 0]).softmax(-1));
    });
    let x = Tensor::rand([1000], 1).unwrap();
    let error = sum.run(&mut Store::new(), &[("x", &x)]).unwrap_err().to_string();
    let expected = "option `memory_limit`: a run of @step needs ";
    assert!(
        error.starts_with(expected) && error.ends_with("and at most 1048576 are allowed"),
        "{error}"
    );
}

#[test]
fn memory_for_the_keys_of_an_order_is_known_before_it_runs() {
    const LENGTH: usize = 100_000;
    let order = |limit: usize| {
        let graph = trace("order", |t| {
            let x = t.input_of("x", TensorType::new(DType::F32, [LENGTH]));
            t.output("y", x.argsort(-1, true));
        });
        compile(graph.unwrap(), &Options::new().threads(1).memory_limit(limit))
    };
    let program = order(usize::MAX).unwrap();
    // A word for each key and its position, and one more to sort them by digits.
    assert_eq!(program.kept_bytes(), 2 * 8 * LENGTH);
    let needed = program.peak_bytes() + program.scratch_bytes();
    assert!(order(needed).is_ok());
    let error = order(needed - 1).unwrap_err().to_string();
    assert!(error.contains(&format!("@order needs {needed} bytes")), "{error}");
    let x = Tensor::rand([LENGTH], 1).unwrap();
    let (numbers, out) = (x.to_vec::<f32>().unwrap(), program.run(&mut Store::new(), &[("x", &x)]));
    let order = out.unwrap()["y"].to_vec::<i64>().unwrap();
    assert!(order.windows(2).all(|at| numbers[at[0] as usize] >= numbers[at[1] as usize]));
}

#[test]
fn memory_that_threads_pack_into_counts() {
    let product = |threads: usize, limit: usize| {
        let graph = trace("product", |t| {
            let [x, y] =
                ["x", "y"].map(|name| t.input_of(name, TensorType::new(DType::BF16, [256, 256])));
            t.output("z", x.matmul(y));
        });
        compile(graph.unwrap(), &Options::new().threads(threads).memory_limit(limit))
    };
    let [one, two] = [1, 2].map(|threads| product(threads, usize::MAX).unwrap());
    // At least a panel of the right operand for each.
    assert!(one.scratch_bytes() >= 256 * 16 * 2);
    assert!(two.scratch_bytes() > one.scratch_bytes());
    let needed = one.peak_bytes() + one.scratch_bytes();
    assert!(product(1, needed).is_ok());
    let error = product(1, needed - 1).unwrap_err().to_string();
    assert!(error.contains(&format!("@product needs {needed} bytes")), "{error}");
}

#[test]
fn scratch_that_is_missing_is_told_before_the_step_begins() {
    // Nobody has so much, and packing a row takes four bytes for each of its elements.
    const LONG: usize = 1 << 44;
    let graph = trace("long", |t| {
        let m = t.param_of("m", TensorType::new(DType::F32, [4]));
        t.update(m, m * 0.5 + 1.0);
        let x = t.input_of("x", TensorType::new(DType::BF16, [64, 1]));
        let w = t.param_of("w", TensorType::new(DType::BF16, [1, 64]));
        t.output("y", x.expand([64, LONG]).matmul(w.expand([LONG, 64])));
    });
    let first = Tensor::rand([4], 1).unwrap();
    for threads in [1, 2] {
        let program =
            compile(graph.as_ref().unwrap().clone(), &Options::new().threads(threads)).unwrap();
        let w = Tensor::full(TensorType::new(DType::BF16, [1, 64]), 1.0).unwrap();
        let x = Tensor::full(TensorType::new(DType::BF16, [64, 1]), 1.0).unwrap();
        let mut store = Store::new().with("m", first.clone()).with("w", w);
        for _ in 0..2 {
            let error = program.run(&mut store, &[("x", &x)]).unwrap_err().to_string();
            let is_told =
                error.contains("program @long") && error.contains("bytes of scratch are not there");
            assert!(is_told, "{error}");
            assert_eq!(store.get("m").unwrap(), first, "no kernel has run");
        }
    }
}
