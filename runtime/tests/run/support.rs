//! Fused graphs by hand, and a device whose launches may fail.

use std::sync::Arc;
use tracecast_ir::kernel::{
    Access, Body, Check, Cmp, Form, Kernel, Load, Nest, Output, Over, Scalar, ScalarOp, Segment,
    Sink, Stage, Val,
};
use tracecast_ir::ops::fused::KERNEL;
use tracecast_ir::{
    Args, Attr, Attrs, DType, Graph, Size, Stage as Progress, TensorType, Tracer, Var, Verified,
    verify,
};
use tracecast_runtime::{Device, Executable, Launch, Memory, Program, ReferenceDevice, Result};

/// `f32[n]`
pub(crate) fn vector(n: usize) -> TensorType {
    TensorType::new(DType::F32, [n])
}

/// An elementwise kernel on vectors of `n`.
pub(crate) struct Map {
    kernel: Kernel,
    body: Body,
    values: Vec<Val>,
    n: usize,
}

impl Map {
    /// With that many inputs.
    pub(crate) fn new(name: &str, n: usize, inputs: usize) -> Self {
        let mut body = Body::default();
        let values =
            (0..inputs).map(|i| body.push(ScalarOp::Load(i as u32), &[], Scalar::F32)).collect();
        let form = Form::Nest(Nest {
            segments: vec![],
            loads: vec![],
            registers: vec![],
            buffers: vec![],
            stages: vec![],
        });
        let kernel = Kernel {
            name: name.to_owned(),
            inputs: vec![vector(n); inputs],
            outputs: vec![],
            when: None,
            checks: vec![],
            arguments: vec![],
            names: vec![],
            form,
        };
        Map { kernel, body, values, n }
    }

    /// One more output, computed from the inputs, that may update an input.
    pub(crate) fn output(
        mut self,
        update: Option<usize>,
        rule: impl FnOnce(&mut Body, &[Val]) -> Val,
    ) -> Self {
        let value = rule(&mut self.body, &self.values);
        self.values.push(value);
        self.kernel.outputs.push(Output { ty: vector(self.n), update });
        self
    }

    /// Raises an error if an element of input 0 is 1000 or more.
    pub(crate) fn checked(mut self) -> Self {
        let limit = self.body.constant(Scalar::F32, 1000.0);
        let below = self.body.cmp(Cmp::Lt, self.values[0], limit);
        self.body.push(ScalarOp::Check(0), &[below], Scalar::Bool);
        let source = "model.rs:7:3".to_owned();
        self.kernel.checks.push(Check {
            message: "too large".to_owned(),
            op: "limit".to_owned(),
            source,
            range: None,
        });
        self
    }

    /// Runs only if one more input, a number, is zero.
    pub(crate) fn when(mut self) -> Self {
        self.kernel.when = Some(self.kernel.inputs.len());
        self.kernel.inputs.push(TensorType::scalar(DType::F32));
        self
    }

    /// The kernel.
    pub(crate) fn build(mut self) -> Kernel {
        let strides = [Size::from(1)].into_iter().collect();
        let access = Access { strides, ..Access::default() };
        let (inputs, outputs) = (self.kernel.inputs.len(), self.kernel.outputs.len());
        let loads = (0..inputs)
            .map(|input| Load { input, dtype: DType::F32, access: access.clone() })
            .collect();
        let sinks = self.values[self.values.len() - outputs..].iter().enumerate();
        let sinks = sinks.map(|(output, v)| Sink::Store {
            output,
            dtype: DType::F32,
            access: access.clone(),
            value: *v,
        });
        let sinks = sinks.collect();
        self.kernel.form = Form::Nest(Nest {
            segments: vec![Segment {
                extents: vec![self.n.into()],
                inputs: (0..inputs).collect(),
                outputs: (0..outputs).collect(),
            }],
            loads,
            registers: vec![],
            buffers: vec![],
            stages: vec![Stage { over: Over::Row, body: self.body, sinks }],
        });
        self.kernel
    }
}

/// `a + b`
pub(crate) fn add(n: usize, update: Option<usize>) -> Kernel {
    Map::new("add", n, 2).output(update, |body, v| body.binary(ScalarOp::Add, v[0], v[1])).build()
}

/// `2 * a`
pub(crate) fn double(n: usize, update: Option<usize>) -> Kernel {
    Map::new("double", n, 1)
        .output(update, |body, v| body.binary(ScalarOp::Add, v[0], v[0]))
        .build()
}

/// `a`, if all its elements are below 1000.
pub(crate) fn limit(n: usize) -> Kernel {
    Map::new("limit", n, 1).output(None, |_, v| v[0]).checked().build()
}

/// Records a kernel.
pub(crate) fn launch<'t>(t: &'t Tracer, kernel: Kernel, inputs: &[Var<'t>]) -> Vec<Var<'t>> {
    let mut args = Args::new();
    args.push(inputs.iter().copied());
    t.apply(&KERNEL, args, Attrs::new().with("kernel", Attr::Kernel(Arc::new(kernel)))).into_vec()
}

/// The fused graph that a closure records.
pub(crate) fn fused(record: impl FnOnce(&Tracer)) -> Verified {
    verify(graph(record), Progress::Fused).unwrap()
}

/// The graph that a closure records.
pub(crate) fn graph(record: impl FnOnce(&Tracer)) -> Graph {
    let t = Tracer::explicit("test");
    record(&t);
    t.finish().unwrap()
}

/// A planned program on the reference device, or on one whose launches may fail.
pub(crate) fn load(graph: &Verified, infallible: bool) -> Executable {
    let device: Arc<dyn Device> =
        if infallible { Arc::new(ReferenceDevice) } else { Arc::new(Fallible) };
    Program::plan(graph).unwrap().load(device).unwrap()
}

/// The reference device, but its launches may fail.
#[derive(Debug)]
pub(crate) struct Fallible;

impl Device for Fallible {
    fn name(&self) -> &str {
        "fallible"
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>> {
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
