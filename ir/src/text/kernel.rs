//! Kernels as text: what they read and write, their loops, and their scalar code. Printed, never
//! read.
//!
//! ```text
//! kernel @relu map(in0: bf16[8, 10]) -> (out0: bf16[8, 10]) {
//!   loop i0 8, row r 10
//!   stage
//!     s0 = load bf16 in0[10*i0 + r] : f32
//!     s1 = const 0.0 : f32
//!     s2 = max s0, s1 : f32
//!     store bf16 out0[10*i0 + r], s2
//! }
//! ```
//!
//! `in0` and `out0` are buffers, or `x0` and `y0` where segments each give their own; `g0` is a
//! register, `w0` a row buffer.

use crate::graph::names::Name;
use crate::kernel::Kernel;
use crate::kernel::scalar_text::commas;
use std::fmt::{self, Display, Formatter, Write};

impl Display for Kernel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        KernelText { kernel: self, sources: true }.fmt(f)
    }
}

/// A kernel, with or without the source lines of its checks.
pub(super) struct KernelText<'a> {
    /// The kernel.
    pub(super) kernel: &'a Kernel,
    /// Whether to print source lines.
    pub(super) sources: bool,
}

impl Display for KernelText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Kernel { name, inputs, outputs, when, checks, arguments, names: _, form } = self.kernel;
        write!(f, "kernel @{} {}(", Name(name), self.kernel.form_name())?;
        commas(f, inputs.iter().enumerate(), |f, (i, ty)| write!(f, "in{i}: {ty}"))?;
        f.write_str(") -> (")?;
        commas(f, outputs.iter().enumerate(), |f, (i, output)| {
            write!(f, "out{i}: {}", output.ty)?;
            output.update.map_or(Ok(()), |input| write!(f, " over in{input}"))
        })?;
        f.write_str(") {\n")?;
        if let Some(input) = when {
            writeln!(f, "  when in{input} is zero")?;
        }
        for (i, check) in checks.iter().enumerate() {
            write!(f, "  check {i} {:?} of {}", check.expects(), check.op)?;
            if self.sources && !check.source.is_empty() {
                write!(f, " at {:?}", check.source)?;
            }
            f.write_char('\n')?;
        }
        for (i, argument) in arguments.iter().enumerate() {
            writeln!(f, "  argument {i} = {argument}")?;
        }
        form.as_loops().show(f)?;
        f.write_str("}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{
        Access, Body, Check, Cmp, Combiner, Contract, Factor, Form, Function, Guard, Load, Nest,
        Output, Over, Reduction, Scalar, ScalarOp, Scatter, Segment, Sink, Stage, Val,
    };
    use crate::{DType, Size, TensorType, sizes};
    use smallvec::smallvec;

    fn ty(dtype: DType, shape: &[usize]) -> TensorType {
        TensorType::new(dtype, shape)
    }

    fn at(strides: &[i64]) -> Access {
        Access { strides: strides.into(), ..Access::default() }.map(&Size::from)
    }

    fn load(input: usize, dtype: DType, strides: &[i64]) -> Load {
        Load { input, dtype, access: at(strides) }
    }

    fn store(output: usize, dtype: DType, strides: &[i64], value: Val) -> Sink {
        Sink::Store { output, dtype, access: at(strides), value }
    }

    fn kernel(name: &str, inputs: &[TensorType], outputs: &[TensorType], form: Form) -> Kernel {
        let outputs = outputs.iter().map(|ty| Output { ty: ty.clone(), update: None }).collect();
        Kernel {
            name: name.to_owned(),
            inputs: inputs.to_vec(),
            outputs,
            when: None,
            checks: Vec::new(),
            arguments: Vec::new(),
            names: Vec::new(),
            form,
        }
    }

    #[test]
    fn rows_with_everything() {
        let mut first = Body::default();
        let at = first.push(ScalarOp::Index(1), &[], Scalar::I64);
        let fine = first.cmp(Cmp::Lt, at, at);
        first.push(ScalarOp::Check(0), &[fine], Scalar::Bool);
        let x = first.push(ScalarOp::Load(0), &[at], Scalar::F32);
        let mut once = Body::default();
        let sum = once.push(ScalarOp::Register(0), &[], Scalar::F32);
        let root = once.unary(ScalarOp::Call(Function::Exp), sum);
        let mut last = Body::default();
        let kept = last.push(ScalarOp::Row(0), &[], Scalar::F32);
        let scale = last.push(ScalarOp::Register(1), &[], Scalar::F32);
        let inf = last.constant(Scalar::F32, f64::NEG_INFINITY);
        let y = last.binary(ScalarOp::Max, kept, inf);
        let y = last.binary(ScalarOp::Mul, y, scale);
        let y = last.as_dtype(y, DType::BF16);
        let mut guarded = load(0, DType::BF16, &[10, -1]);
        guarded.access.offset = Size::from(9);
        guarded.access.indirect = smallvec![Size::from(4)];
        guarded.access.guards =
            smallvec![Guard { offset: -1, strides: smallvec![0, 1], extent: 5 }.map(&Size::from)];
        guarded.access.fill = u64::from(0.5f32.to_bits());
        let nest = Nest {
            segments: vec![Segment {
                extents: sizes![8, 10].to_vec(),
                inputs: vec![0],
                outputs: vec![0, 1],
            }],
            loads: vec![guarded],
            registers: vec![Scalar::F32; 2],
            buffers: vec![Scalar::F32],
            stages: vec![
                Stage {
                    over: Over::Row,
                    body: first,
                    sinks: vec![
                        Sink::Reduce { reduction: Reduction::Sum, value: x, register: 0 },
                        Sink::Keep { value: x, buffer: 0 },
                        Sink::Column {
                            reduction: Reduction::Max,
                            value: x,
                            output: 1,
                            dtype: DType::F32,
                            kept: smallvec![false, true],
                        },
                    ],
                },
                Stage {
                    over: Over::Once,
                    body: once,
                    sinks: vec![Sink::Set { value: root, register: 1 }],
                },
                Stage {
                    over: Over::Row,
                    body: last,
                    sinks: vec![store(0, DType::BF16, &[10, 1], y)],
                },
            ],
        };
        let low = ty(DType::BF16, &[8, 10]);
        let mut k = kernel(
            "k",
            &[low.clone(), ty(DType::F32, &[])],
            &[low, ty(DType::F32, &[10])],
            Form::Nest(nest),
        );
        k.when = Some(1);
        k.outputs[0].update = Some(0);
        k.checks.push(Check {
            message: "too far".to_owned(),
            op: "gather".to_owned(),
            source: "a.rs:1".to_owned(),
            range: None,
        });
        let expected = "\
kernel @k rows(in0: bf16[8, 10], in1: f32[]) -> (out0: bf16[8, 10] over in0, out1: f32[10]) {
  when in1 is zero
  check 0 \"too far\" of gather at \"a.rs:1\"
  loop i0 8, row r 10
  register g0 : f32
  register g1 : f32
  buffer w0 : f32
  stage
    s0 = index r : i64
    s1 = lt s0, s0 : bool
    s2 = check 0 s1 : bool
    s3 = load bf16 in0[10*i0 - r + 4*s0 + 9] if 0 <= r - 1 < 5 else 0.5 : f32
    g0 = sum along the row s3
    w0[r] = s3
    store f32 out1[r], max down the column s3
  once
    s0 = g0 : f32
    s1 = exp s0 : f32
    g1 = s1
  stage
    s0 = w0[r] : f32
    s1 = g1 : f32
    s2 = const -inf : f32
    s3 = max s0, s2 : f32
    s4 = mul s3, s1 : f32
    s5 = round bf16 s4 : f32
    store bf16 out0[10*i0 + r], s5
}
";
        assert_eq!(k.to_string(), expected);
        assert!(!KernelText { kernel: &k, sources: false }.to_string().contains("a.rs"));
    }

    #[test]
    fn several_segments() {
        let mut body = Body::default();
        let x = body.push(ScalarOp::Load(0), &[], Scalar::F32);
        let stage = Stage { over: Over::Row, body, sinks: vec![store(0, DType::F32, &[1], x)] };
        let segment =
            |n, i| Segment { extents: sizes![n].to_vec(), inputs: vec![i], outputs: vec![i] };
        let nest = Nest {
            segments: vec![segment(3, 0), segment(4, 1)],
            loads: vec![load(0, DType::F32, &[1])],
            registers: Vec::new(),
            buffers: Vec::new(),
            stages: vec![stage],
        };
        let types = [ty(DType::F32, &[3]), ty(DType::F32, &[4])];
        let text = kernel("m", &types, &types, Form::Nest(nest)).to_string();
        assert!(text.contains("  segment row r 4: x0 = in1 -> y0 = out1\n"), "{text}");
        assert!(text.contains("    s0 = load x0[r] : f32\n    store f32 y0[r], s0\n"), "{text}");
    }

    #[test]
    fn contractions_and_scatters() {
        let mut plain = Body::default();
        plain.push(ScalarOp::Load(0), &[], Scalar::F32);
        let factor = |input, strides| Factor {
            loads: vec![load(input, DType::F32, strides)],
            body: plain.clone(),
            value: 0,
            split: None,
        };
        let mut acc = Body::default();
        acc.push(ScalarOp::Acc, &[], Scalar::F32);
        let contract = Contract {
            batch: sizes![2].to_vec(),
            m: Size::from(3),
            n: Size::from(4),
            k: Size::from(5),
            acc: Scalar::F32,
            a: factor(0, &[15, 5, 1]),
            b: factor(1, &[0, 4, 1]),
            loads: Vec::new(),
            epilogue: Stage {
                over: Over::Row,
                body: acc,
                sinks: vec![store(0, DType::F32, &[12, 4, 1], 0)],
            },
        };
        let types = [ty(DType::F32, &[2, 3, 5]), ty(DType::F32, &[5, 4])];
        let text = kernel("c", &types, &[ty(DType::F32, &[2, 3, 4])], Form::Contract(contract))
            .to_string();
        for line in [
            "  loop b0 2, i 3, j 4\n  reduce p 5 in f32\n  factor a = a0\n    a0 = load in0[15*b0 + 5*i + p] : f32\n",
            "    b0 = load in1[4*p + j] : f32\n  epilogue\n    s0 = acc : f32\n    store f32 out0[12*b0 + 4*i + j], s0\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let scatter = Scatter {
            extents: sizes![3].to_vec(),
            loads: vec![load(0, DType::F32, &[1])],
            body: plain,
            value: 0,
            combiner: Combiner::Add,
            place: Access { indirect: smallvec![1], ..Access::default() }.map(&Size::from),
            index: smallvec![0],
            base: None,
        };
        let text = kernel("s", &types[..1], &types[..1], Form::Scatter(scatter)).to_string();
        assert!(
            text.ends_with(
                "  base zeros\n  stage\n    s0 = load in0[i0] : f32\n    add out0[s0], s0\n}\n"
            ),
            "{text}"
        );
    }
}
