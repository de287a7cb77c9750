//! What kernels add up is held in f32 or wider, and no narrower than what is added.

use crate::kernel::{Body, Form, Kernel, Scalar, Sink, Stage, Val};

/// The accumulators of a kernel that are narrower than what they take.
pub(super) fn narrow(kernel: &Kernel) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut check = |what: &str, acc: Scalar, term: Scalar| {
        if bits(acc) < bits(term) || acc.is_float() != term.is_float() {
            wrong.push(format!(
                "@{}: {what} of {} is accumulated in {}",
                kernel.name,
                term.name(),
                acc.name()
            ));
        }
    };
    match &kernel.form {
        Form::Nest(nest) => {
            for (stage, sink) in
                nest.stages.iter().flat_map(|s| s.sinks.iter().map(move |k| (s, k)))
            {
                match sink {
                    Sink::Reduce { reduction, value, register } if reduction.accumulates() => {
                        let acc = nest.registers.get(*register).copied();
                        if let (Some(acc), Some(term)) = (acc, scalar(&stage.body, *value)) {
                            check("a sum along the row", acc, term);
                        }
                    }
                    _ => down(stage, sink, &mut check),
                }
            }
        }
        Form::Contract(contract) => {
            for factor in [&contract.a, &contract.b] {
                if let Some(term) = scalar(&factor.body, factor.value) {
                    check("a product", contract.acc, term);
                }
            }
            let stage = &contract.epilogue;
            stage.sinks.iter().for_each(|sink| down(stage, sink, &mut check));
        }
        Form::Scatter(scatter) => {
            let acc = kernel.outputs.first().and_then(|o| Scalar::of(o.ty.dtype));
            if let (Some(acc), Some(term)) = (acc, scalar(&scatter.body, scatter.value)) {
                check("a scattered sum", acc, term);
            }
        }
    }
    wrong
}

/// Checks a sum down a column.
fn down(stage: &Stage, sink: &Sink, check: &mut dyn FnMut(&str, Scalar, Scalar)) {
    let Sink::Column { reduction, value, dtype, .. } = sink else { return };
    if !reduction.accumulates() {
        return;
    }
    if let (Some(acc), Some(term)) = (Scalar::of(*dtype), scalar(&stage.body, *value)) {
        check("a sum down a column", acc, term);
    }
}

fn scalar(body: &Body, value: Val) -> Option<Scalar> {
    body.insts.get(value as usize).map(|inst| inst.ty)
}

fn bits(scalar: Scalar) -> usize {
    match scalar {
        Scalar::Bool => 1,
        Scalar::F32 | Scalar::I32 => 32,
        Scalar::F64 | Scalar::I64 => 64,
    }
}
