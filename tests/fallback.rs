//! Random programs on devices of random limits: no kernel beyond the limits reaches the device, the
//! others run on the fallback, the bits are those of the reference, and what runs on the fallback
//! is what the report and `explain` list.
//!
//! `TRACECAST_FALLBACK_PROGRAMS` sets how many, `TRACECAST_RANDOM_SEED` the first seed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use support::dice::Dice;
use support::layers;
use support::random::program;
use tracecast::explain::explain;
use tracecast::prelude::*;
use tracecast::runtime::{
    Arg, Bound, Capabilities, Device, Error, KernelLimits, Launch, Memory, ReferenceDevice,
    Registry, Result,
};
use tracecast::{Graph, compile, compile_reported, trace};
use tracecast_ir::eval::Value;
use tracecast_ir::kernel::{FormKind, Function, Kernel, Scalar};
use tracecast_ir::policy::DeviceType;
use tracecast_ir::{DType, Role};

/// Interprets the kernels within its limits, but for those of some names.
#[derive(Debug)]
struct Limited {
    limits: KernelLimits,
    /// It refuses kernels whose name has this remainder by seven.
    refuses: usize,
    loaded: AtomicUsize,
}

impl Device for Limited {
    fn name(&self) -> &str {
        "limited"
    }

    fn serves(&self) -> Option<DeviceType> {
        Some(DeviceType::Cpu)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { limits: self.limits, ..ReferenceDevice.capabilities() }
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>> {
        assert_eq!(self.limits.refuse(kernel), None, "@{}", kernel.name);
        if kernel.name.len() % 7 == self.refuses {
            return Err(Error::Device(format!("limited: no code for @{}", kernel.name)));
        }
        self.loaded.fetch_add(1, SeqCst);
        ReferenceDevice.load(kernel)
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        ReferenceDevice.alloc(bytes)
    }

    fn upload(&self, from: &[u8], to: &Memory, at: usize) -> Result<()> {
        ReferenceDevice.upload(from, to, at)
    }

    fn download(&self, from: &Memory, at: usize, to: &mut [u8]) -> Result<()> {
        ReferenceDevice.download(from, at, to)
    }
}

/// The reference device, which counts launches and the bytes of uploads and downloads.
#[derive(Debug, Default)]
struct Helper {
    counts: Arc<Mutex<(usize, usize)>>,
}

struct Counted(Box<dyn Launch>, Arc<Mutex<(usize, usize)>>);

struct CountedCall(Box<dyn Bound>, Arc<Mutex<(usize, usize)>>);

impl Launch for Counted {
    fn bind(&self, args: &[Arg], sizes: &[i64]) -> Result<Box<dyn Bound>> {
        Ok(Box::new(CountedCall(self.0.bind(args, sizes)?, self.1.clone())))
    }
}

impl Bound for CountedCall {
    fn run(&self) -> Result<()> {
        self.1.lock().unwrap().0 += 1;
        self.0.run()
    }
}

impl Device for Helper {
    fn name(&self) -> &str {
        "helper"
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>> {
        Ok(Box::new(Counted(ReferenceDevice.load(kernel)?, self.counts.clone())))
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        ReferenceDevice.alloc(bytes)
    }

    fn upload(&self, from: &[u8], to: &Memory, at: usize) -> Result<()> {
        self.counts.lock().unwrap().1 += from.len();
        ReferenceDevice.upload(from, to, at)
    }

    fn download(&self, from: &Memory, at: usize, to: &mut [u8]) -> Result<()> {
        self.counts.lock().unwrap().1 += to.len();
        ReferenceDevice.download(from, at, to)
    }
}

fn some<T: Copy>(dice: &mut Dice, of: &[T], percent: usize) -> &'static [T] {
    of.iter().copied().filter(|_| dice.chance(percent)).collect::<Vec<T>>().leak()
}

fn drawn_limits(dice: &mut Dice) -> KernelLimits {
    let functions: Vec<&'static str> = Function::ALL.iter().map(|f| f.name()).collect();
    let ops = [&functions[..], &["select", "max", "div", "convert"]].concat();
    KernelLimits {
        forms: some(dice, &FormKind::ALL, 80),
        dtypes: some(dice, &DType::COMPUTABLE, 70),
        scalars: some(
            dice,
            &[Scalar::F32, Scalar::F64, Scalar::I32, Scalar::I64, Scalar::Bool],
            85,
        ),
        without: some(dice, &ops, 10),
        most_operands: 2 + dice.below(8),
        most_bytes: if dice.chance(20) { 64 } else { usize::MAX },
    }
}

type Bits = (Vec<(String, Value)>, Vec<(String, Value)>);

/// What a program gives, and the state behind it.
fn bits(
    executable: &tracecast::Executable,
    graph: &Graph,
    inputs: &HashMap<String, Value>,
) -> Bits {
    let (mut store, mut given) = (Store::new(), Vec::new());
    for port in graph.ports() {
        let value = Tensor::from(inputs[&port.name].clone());
        match port.role {
            Role::Input => given.push((port.name.as_str(), value)),
            _ => store.insert(&port.name, value),
        }
    }
    let given: Vec<(&str, &Tensor)> = given.iter().map(|(name, value)| (*name, value)).collect();
    let ran = executable.run(&mut store, &given);
    let out = ran.unwrap_or_else(|error| panic!("{error}\n{graph}"));
    let own = |(name, tensor): (&str, &Tensor)| (name.to_owned(), tensor.value().clone());
    let outputs = out.iter().map(own).collect();
    let state = store.iter().map(|entry| entry.unwrap());
    let state = state.map(|(name, tensor)| (name.to_owned(), tensor.value().clone())).collect();
    (outputs, state)
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn random_programs_on_random_limits_have_the_bits_of_the_reference() {
    let first = setting("TRACECAST_RANDOM_SEED", 0);
    let (mut away, mut own, mut whole) = (0, 0, 0);
    for seed in first..first + setting("TRACECAST_FALLBACK_PROGRAMS", 1000) {
        let mut dice = Dice::new(seed ^ 0x5eed);
        let graph = match seed % 2 {
            0 => program(seed, 14),
            _ => layers::program(seed, 6),
        };
        let inputs = support::inputs(&graph, seed);
        let limits = drawn_limits(&mut dice);
        let device =
            Arc::new(Limited { limits, refuses: dice.below(20), loaded: AtomicUsize::new(0) });
        let helper = Arc::new(Helper::default());
        let registry = Arc::new(Registry::new());
        registry.register_device(helper.clone()).unwrap();
        let options = Options::new().registry(&registry).on(device.clone()).fallback("helper");
        let told = |what: &str| format!("seed {seed}, {what}, {limits:?}\n{graph}");

        let reference = compile(graph.clone(), &Options::new().device("reference")).unwrap();
        let wanted = bits(&reference, &graph, &inputs);
        let (program, report) = compile_reported(graph.clone(), &options)
            .unwrap_or_else(|error| panic!("{}", told(&error.to_string())));
        *helper.counts.lock().unwrap() = (0, 0);
        assert!(bits(&program, &graph, &inputs) == wanted, "{}", told("other bits"));
        let bytes: usize = report.fallback.iter().map(|launch| launch.bytes).sum();
        let counted = *helper.counts.lock().unwrap();
        assert_eq!((report.fallback.len(), bytes), counted, "{}", told("other counts"));
        let explained = explain(&graph, &options).unwrap().fallback.unwrap();
        let launches: Vec<_> =
            explained.launches.iter().map(|n| (&n.kernel, n.bytes, &n.reason)).collect();
        let of_report: Vec<_> =
            report.fallback.iter().map(|l| (&l.kernel, l.bytes, &l.reason)).collect();
        assert_eq!(launches, of_report, "{}", told("explain"));
        // Without a fallback the error names each of them.
        let alone = compile(graph.clone(), &Options::new().registry(&registry).on(device.clone()));
        match (alone, report.fallback.is_empty()) {
            (Ok(_), true) => whole += 1,
            (Err(error), false) => {
                let text = error.to_string();
                let names = report.fallback.iter().all(|l| text.contains(l.reason.as_str()));
                assert!(names, "{}", told(&text));
            }
            (alone, _) => panic!("{}: {alone:?}", told("alone")),
        }
        away += report.fallback.len();
        own += device.loaded.load(SeqCst);
    }
    assert!(away > 50 && own > 50 && whole > 0, "{away} away, {own} own, {whole} whole");
}

#[test]
fn a_relu_trains_where_memory_holds_numbers_only() {
    const NUMBERS: [DType; 2] = [DType::F32, DType::BF16];
    let limits = KernelLimits { dtypes: &NUMBERS, most_operands: 6, ..KernelLimits::NONE };
    let device = Arc::new(Limited { limits, refuses: 7, loaded: AtomicUsize::new(0) });
    let graph = trace("step", |t| {
        let x = t.input_of("x", TensorType::new(DType::F32, [8, 4]));
        let w = t.param_of("w", TensorType::new(DType::F32, [4, 16]));
        let v = t.param_of("v", TensorType::new(DType::F32, [16, 4]));
        let away = x.matmul(w).relu().matmul(v).relu() - x;
        let loss = (away * away).mean(());
        let adam = Adam::new(0.1);
        let mut optimizer = Recorded::new(t, &adam, &[w, v]);
        optimizer.backward(loss);
        optimizer.step();
        t.output("loss", loss);
    })
    .unwrap();
    let (program, report) = compile_reported(graph, &Options::new().on(device)).unwrap();
    assert!(report.fallback.is_empty() && program.kernels() >= 5, "{report}");
}
