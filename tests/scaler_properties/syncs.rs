//! S5: the host reads nothing between the first and the last kernel of a recorded step, skipped or
//! not.

use super::number;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracecast::amp::EagerScaler;
use tracecast::eager::{Eager, EagerOptimizer};
use tracecast::ir::kernel::Kernel;
use tracecast::ir::policy::DeviceType;
use tracecast::prelude::*;
use tracecast::runtime::{Arg, Bound, Device, Launch, Memory, ReferenceDevice, Result};

/// The reference device, which counts how often the host reads from it.
#[derive(Debug, Default)]
struct Counting {
    inner: ReferenceDevice,
    reads: AtomicUsize,
}

impl Device for Counting {
    fn name(&self) -> &str {
        "counting"
    }

    fn serves(&self) -> Option<DeviceType> {
        self.inner.serves()
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>> {
        self.inner.load(kernel)
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        self.inner.alloc(bytes)
    }

    fn upload(&self, from: &[u8], to: &Memory, at: usize) -> Result<()> {
        self.inner.upload(from, to, at)
    }

    fn download(&self, from: &Memory, at: usize, to: &mut [u8]) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.download(from, at, to)
    }

    fn bind_copy(&self, from: &Arg, to: &Arg) -> Result<Option<Box<dyn Bound>>> {
        self.inner.bind_copy(from, to)
    }
}

#[test]
fn a_recorded_step_reads_nothing_back() {
    let device = Arc::new(Counting::default());
    let step = jit(Options::new().on(device.clone()), |t| {
        let (w, adam) = (t.param("w"), AdamW::new(0.1));
        let mut scaler = GradScaler::recorded(t, "amp", ScalerOptions::default());
        let mut optimizer = Recorded::new(t, &adam, &[w]);
        optimizer.backward(scaler.scale((w * t.input("g")).sum(())));
        scaler.step(&mut optimizer);
        scaler.update();
    });
    let mut store = Store::new().with("w", Tensor::new([2], &[1f32, 2.0]).unwrap());
    let inputs = [1.0, f32::INFINITY, 1.0].map(|g| Tensor::new([2], &[g, 1.0]).unwrap());
    for g in &inputs {
        step.run(&mut store, &[("g", g)]).unwrap();
    }
    assert_eq!(device.reads.load(Ordering::Relaxed), 0);
    assert_eq!(number(&store, "amp.scale"), 32768.0, "one step was skipped");
    assert!(device.reads.load(Ordering::Relaxed) > 0, "reads are counted");
}

/// The eager form reads one flag per step, and none with an optimizer that takes the flag itself.
#[test]
fn an_eager_step_reads_one_flag_or_none() {
    let device = Arc::new(Counting::default());
    let eager = Eager::new(Options::new().on(device.clone())).unwrap();
    for (fused, expected) in [(false, 1), (true, 0)] {
        let params = [1, 2].map(|n| eager.parameter(Tensor::new([n], &vec![1f32; n]).unwrap()));
        let mut adam = EagerOptimizer::new(AdamW::new(0.1), &params).fused(fused);
        let mut scaler = EagerScaler::new(ScalerOptions::default()).unwrap();
        for number_of in 0..3 {
            scaler.scale(&eager.tensor(Tensor::scalar(1f32))).unwrap();
            for (n, param) in params.iter().enumerate() {
                let grad =
                    Tensor::new([n + 1], &vec![if number_of == 1 { f32::NAN } else { 8.0 }; n + 1]);
                param.set_grad(eager.tensor(grad.unwrap())).unwrap();
            }
            let before = device.reads.load(Ordering::Relaxed);
            scaler.step(&mut adam).unwrap();
            scaler.update().unwrap();
            let reads = device.reads.load(Ordering::Relaxed) - before;
            assert_eq!(reads, expected, "fused: {fused}, step {number_of}");
        }
    }
}
