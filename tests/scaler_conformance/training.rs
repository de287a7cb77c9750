//! The training loops of the upstream suite: two linear layers, four iterations, one of them with a
//! bad gradient.

use crate::cases::{read, same};
use tracecast::amp::{EagerScaler, GradScaler, ScalerOptions, autocast};
use tracecast::eager::{Eager, EagerOptimizer, Parameter, clip_grad_norm};
use tracecast::optim::{Adagrad, AdamW, Optimizer, Recorded, Sgd};
use tracecast::prelude::{Cast, Elementwise, Products, Reductions, Shorthand};
use tracecast::{DType, Jit, Options, Store, Tensor, TensorType, jit};

type Checked = Result<(), String>;

/// What a loop does besides scaling.
#[derive(Clone, Copy, PartialEq)]
enum Loop {
    /// Nothing.
    Plain,
    /// Clips gradients that are still scaled.
    Clip,
    /// Unscales, then clips.
    UnscaleAndClip,
}

const ITERATIONS: u64 = 4;
const BAD: u64 = 2;

fn text(error: tracecast::Error) -> String {
    error.to_string()
}

fn options(enabled: bool) -> ScalerOptions {
    ScalerOptions { init_scale: 128.0, growth_interval: 1, enabled, ..ScalerOptions::default() }
}

/// Weight and bias of two layers from 8 to 8.
fn model(eager: &Eager, seed: u64) -> Vec<Parameter> {
    let rand = |shape: &[usize], i: u64| {
        let all = Tensor::rand(shape, seed + i).expect("a small tensor");
        let numbers: Vec<f64> = all.to_f64s().iter().map(|v| (v - 0.5) * 0.5).collect();
        let ty = TensorType::new(DType::F32, shape);
        eager.parameter(Tensor::from_f64s(ty, &numbers).expect("a small tensor"))
    };
    vec![rand(&[8, 8], 1), rand(&[8], 2), rand(&[8, 8], 3), rand(&[8], 4)]
}

/// The loss of one model, and the gradients of the loss times `scale`.
fn backward(eager: &Eager, low: Option<DType>) -> Jit {
    jit(Options::new().on(eager.device().clone()), move |t| {
        let params: Vec<_> = (0..4).map(|i| t.input(&format!("p{i}"))).collect();
        let forward = || {
            let hidden = t.input("x").matmul(params[0]) + params[1];
            (hidden.matmul(params[2]) + params[3]).cast(DType::F32)
        };
        let out = match low {
            Some(low) => autocast(t, "cpu", low, forward),
            None => forward(),
        };
        let loss = out.mean_squared_error(t.input("y"));
        for (i, grad) in t.grad(loss * t.input("scale"), &params).into_iter().enumerate() {
            t.output(&format!("d{i}"), grad);
        }
    })
}

/// Adds the gradients of the scaled loss, divided by `share`, to those of the parameters.
fn accumulate(program: &Jit, params: &[Parameter], batch: u64, scale: f64) -> Checked {
    let (x, y) = (Tensor::rand([8, 8], 100 + batch), Tensor::rand([8, 8], 200 + batch));
    let (x, y) = (x.map_err(|e| e.to_string())?, y.map_err(|e| e.to_string())?);
    let scale = Tensor::scalar(scale as f32);
    let values: Vec<Tensor> =
        params.iter().map(|p| p.value().to_host().map_err(text)).collect::<Result<_, _>>()?;
    let names: Vec<String> = (0..values.len()).map(|i| format!("p{i}")).collect();
    let mut inputs = vec![("x", &x), ("y", &y), ("scale", &scale)];
    inputs.extend(names.iter().map(String::as_str).zip(&values));
    let out = program.run(&mut Store::new(), &inputs).map_err(text)?;
    for (i, param) in params.iter().enumerate() {
        let grad = param.value().eager().tensor(out[format!("d{i}").as_str()].clone());
        param.add_grad(grad).map_err(text)?;
    }
    Ok(())
}

/// Makes the gradient of the second weight infinite.
fn spoil(params: &[Parameter]) -> Checked {
    let weight = &params[2];
    let bad =
        Tensor::full(weight.value().ty().clone(), f64::INFINITY).map_err(|e| e.to_string())?;
    weight.set_grad(weight.value().eager().tensor(bad)).map_err(text)
}

fn clip(params: &[Parameter], norm: f64) -> Checked {
    clip_grad_norm(params, norm).map(|_| ()).map_err(text)
}

/// Trains with the scaler, and returns the parameters and the last scale.
fn scaled(
    eager: &Eager,
    kind: Loop,
    low: Option<DType>,
    enabled: bool,
    optimizer: impl Fn(&[Parameter]) -> EagerOptimizer,
) -> Result<(Vec<Parameter>, f64), String> {
    let params = model(eager, 10);
    let (mut optimizer, program) = (optimizer(&params), backward(eager, low));
    let mut scaler = EagerScaler::new(options(enabled)).map_err(text)?;
    for batch in 0..ITERATIONS {
        optimizer.zero_grad();
        scaler.scale(&eager.tensor(Tensor::scalar(1.0f32))).map_err(text)?;
        let scale = scaler.get_scale().map_err(text)?;
        accumulate(&program, &params, batch, scale)?;
        if batch == BAD && enabled {
            spoil(&params)?;
        }
        match kind {
            Loop::Plain => {}
            Loop::Clip => clip(&params, 0.2 * scale)?,
            Loop::UnscaleAndClip => {
                scaler.unscale_(&optimizer).map_err(text)?;
                clip(&params, 0.2)?;
            }
        }
        scaler.step(&mut optimizer).map_err(text)?;
        scaler.update().map_err(text)?;
    }
    Ok((params, scaler.get_scale().map_err(text)?))
}

/// Trains without a scaler, and leaves out the bad step if asked to.
fn unscaled(
    eager: &Eager,
    kind: Loop,
    skip: bool,
    optimizer: impl Fn(&[Parameter]) -> EagerOptimizer,
) -> Result<Vec<Parameter>, String> {
    let params = model(eager, 10);
    let (mut optimizer, program) = (optimizer(&params), backward(eager, None));
    for batch in 0..ITERATIONS {
        optimizer.zero_grad();
        accumulate(&program, &params, batch, 1.0)?;
        if kind != Loop::Plain {
            clip(&params, 0.2)?;
        }
        if !skip || batch != BAD {
            optimizer.step().map_err(text)?;
        }
    }
    Ok(params)
}

fn close(found: &[Parameter], expected: &[Parameter], tolerance: f64) -> Checked {
    for (found, expected) in found.iter().zip(expected) {
        for (a, b) in read(found.value()).into_iter().zip(read(expected.value())) {
            if (a - b).abs() > tolerance + 1e-5 * b.abs() {
                return Err(format!("expected {b}, found {a}"));
            }
        }
    }
    Ok(())
}

fn compared(
    eager: &Eager,
    kind: Loop,
    low: Option<DType>,
    tolerance: f64,
    optimizer: impl Fn(&[Parameter]) -> EagerOptimizer,
) -> Checked {
    for enabled in [true, false] {
        let low = low.filter(|_| enabled);
        let (found, scale) = scaled(eager, kind, low, enabled, &optimizer)?;
        close(&found, &unscaled(eager, kind, enabled, &optimizer)?, tolerance)?;
        same("scale", &[scale], &[if enabled { 512.0 } else { 1.0 }])?;
    }
    Ok(())
}

fn sgd(params: &[Parameter]) -> EagerOptimizer {
    EagerOptimizer::new(Sgd::new(1.0), params)
}

pub(crate) fn plain(eager: &Eager, _: &Eager) -> Checked {
    compared(eager, Loop::Plain, Some(DType::F16), 1e-3, sgd)?;
    for fused in [false, true] {
        let adam = |decay: f64| {
            move |params: &[Parameter]| {
                EagerOptimizer::new(AdamW::new(1e-3).weight_decay(decay), params).fused(fused)
            }
        };
        compared(eager, Loop::Plain, None, 1e-5, adam(0.0))?;
        compared(eager, Loop::Plain, None, 1e-5, adam(0.01))?;
    }
    Ok(())
}

pub(crate) fn clipping(eager: &Eager, _: &Eager) -> Checked {
    compared(eager, Loop::Clip, None, 1e-5, sgd)
}

pub(crate) fn clipping_after_unscale(eager: &Eager, _: &Eager) -> Checked {
    compared(eager, Loop::UnscaleAndClip, None, 1e-5, sgd)
}

/// Step and update on every second iteration only.
pub(crate) fn accumulation(eager: &Eager, _: &Eager) -> Checked {
    let program = backward(eager, None);
    let params = [model(eager, 10), model(eager, 10)];
    let mut optimizers = params.each_ref().map(|params| sgd(params));
    let mut scaler = EagerScaler::new(options(true)).map_err(text)?;
    for batch in 0..ITERATIONS {
        scaler.scale(&eager.tensor(Tensor::scalar(1.0f32))).map_err(text)?;
        accumulate(&program, &params[0], batch, scaler.get_scale().map_err(text)? / 2.0)?;
        accumulate(&program, &params[1], batch, 0.5)?;
        if batch % 2 == 1 {
            if !scaler.step(&mut optimizers[0]).map_err(text)? {
                return Err("a good step was skipped".to_owned());
            }
            scaler.update().map_err(text)?;
            optimizers[1].step().map_err(text)?;
            optimizers.iter().for_each(EagerOptimizer::zero_grad);
        }
    }
    close(&params[0], &params[1], 1e-5)?;
    same("scale", &[scaler.get_scale().map_err(text)?], &[512.0])
}

/// Two models in two losses, the second model with the bad gradient.
pub(crate) fn multiple(eager: &Eager, _: &Eager) -> Checked {
    let program = jit(Options::new().on(eager.device().clone()), |t| {
        let params: Vec<_> = (0..8).map(|i| t.input(&format!("p{i}"))).collect();
        let forward = |at: usize| {
            let hidden = t.input("x").matmul(params[at]) + params[at + 1];
            hidden.matmul(params[at + 2]) + params[at + 3]
        };
        let (a, b) = (forward(0), forward(4));
        let losses = [a * 0.3 + b * 0.7, a * 0.6 - b * 0.4];
        let [first, second] = losses
            .map(|out| t.grad(out.mean_squared_error(t.input("y")) * t.input("scale"), &params));
        for (i, (first, second)) in first.into_iter().zip(second).enumerate() {
            t.output(&format!("d{i}"), first + second);
        }
    });
    let models = || [model(eager, 10), model(eager, 20)];
    let (found, expected) = (models(), models());
    let mut optimizers = found.each_ref().map(|params| sgd(params));
    let mut controls = expected.each_ref().map(|params| sgd(params));
    let mut scaler = EagerScaler::new(options(true)).map_err(text)?;
    for batch in 0..ITERATIONS {
        optimizers.iter().chain(&controls).for_each(EagerOptimizer::zero_grad);
        scaler.scale(&eager.tensor(Tensor::scalar(1.0f32))).map_err(text)?;
        accumulate(&program, &found.concat(), batch, scaler.get_scale().map_err(text)?)?;
        accumulate(&program, &expected.concat(), batch, 1.0)?;
        if batch == BAD {
            spoil(&found[1])?;
        }
        scaler.unscale_(&optimizers[0]).map_err(text)?;
        let stepped = [
            scaler.step(&mut optimizers[0]).map_err(text)?,
            scaler.step(&mut optimizers[1]).map_err(text)?,
        ];
        if stepped != [true, batch != BAD] {
            return Err(format!("iteration {batch}: stepped {stepped:?}"));
        }
        scaler.update().map_err(text)?;
        controls[0].step().map_err(text)?;
        if batch != BAD {
            controls[1].step().map_err(text)?;
        }
    }
    close(&found.concat(), &expected.concat(), 1e-5)?;
    same("scale", &[scaler.get_scale().map_err(text)?], &[512.0])
}

/// A fused optimizer ends in the same bits as one that is not, with and without an explicit
/// `unscale_`. There is no amsgrad here.
pub(crate) fn fused(eager: &Eager, _: &Eager) -> Checked {
    let rules: [fn() -> Box<dyn Optimizer>; 4] = [
        || Box::new(Sgd::new(0.1).momentum(0.9)),
        || Box::new(AdamW::new(1e-3).weight_decay(0.0)),
        || Box::new(AdamW::new(1e-3)),
        || Box::new(Adagrad::new(1e-2)),
    ];
    for rule in rules {
        for kind in [Loop::Plain, Loop::UnscaleAndClip] {
            let run = |fused: bool| {
                scaled(eager, kind, None, true, |params: &[Parameter]| {
                    EagerOptimizer::of(rule(), params).fused(fused)
                })
            };
            let ((plain, _), (fused, scale)) = (run(false)?, run(true)?);
            for (plain, fused) in plain.iter().zip(&fused) {
                same("parameter", &read(fused.value()), &read(plain.value()))?;
                let grads = [plain, fused].map(|p| p.grad().expect("a gradient is left"));
                same("gradient", &read(grads[1].values()), &read(grads[0].values()))?;
            }
            same("scale", &[scale], &[512.0])?;
        }
    }
    Ok(())
}

/// `sum(half(param) * input)`, recorded: scale, tracker and gradients by iteration.
pub(crate) fn recorded_loop(eager: &Eager, _: &Eager) -> Checked {
    let step = jit(Options::new().on(eager.device().clone()), |t| {
        let (w, rule) = (t.param("w"), Sgd::new(0.1));
        let loss = (w.cast(DType::F16) * t.input("input")).sum(());
        let options = ScalerOptions { init_scale: 4.0, ..ScalerOptions::default() };
        let mut scaler = GradScaler::recorded(t, "amp", options);
        let mut optimizer = Recorded::new(t, &rule, &[w]);
        optimizer.backward(scaler.scale(loss));
        t.output("grad", optimizer.grads()[0]);
        scaler.step(&mut optimizer);
        scaler.update();
    });
    let ones = Tensor::full(TensorType::new(DType::F32, [100]), 1.0).map_err(|e| e.to_string())?;
    let mut store = Store::new().with("w", ones);
    let expected = [
        (5.0, 20.0, 4.0, 1.0),
        (20000.0, f64::INFINITY, 2.0, 0.0),
        (5.0, 10.0, 2.0, 1.0),
        (40000.0, f64::INFINITY, 1.0, 0.0),
    ];
    for (input, grad, scale, tracker) in expected {
        let input = Tensor::from_f64s(TensorType::scalar(DType::F16), &[input]);
        let input = input.map_err(|e| e.to_string())?;
        let out = step.run(&mut store, &[("input", &input)]).map_err(text)?;
        same("gradient", &out["grad"].to_f64s(), &[grad; 100])?;
        for (name, expected) in [("amp.scale", scale), ("amp.growth_tracker", tracker)] {
            let found = store.get(name).map_err(|e| e.to_string())?;
            same(name, &found.to_f64s(), &[expected])?;
        }
    }
    Ok(())
}

/// The norm of the unscaled gradients, found with the scaled loss, is a part of the loss: gradients
/// of gradients.
pub(crate) fn penalty(eager: &Eager, _: &Eager) -> Checked {
    let program = jit(Options::new().on(eager.device().clone()), |t| {
        let params: Vec<_> = (0..4).map(|i| t.input(&format!("p{i}"))).collect();
        let hidden = t.input("x").matmul(params[0]) + params[1];
        let out = hidden.matmul(params[2]) + params[3];
        let (loss, scale) = (out.mean_squared_error(t.input("y")), t.input("scale"));
        let inverse = t.ones_like(scale) / scale;
        let squares = t.grad(loss * scale, &params).into_iter().map(|grad| {
            let unscaled = grad * inverse;
            (unscaled * unscaled).sum(())
        });
        let norm = squares.reduce(|a, b| a + b).expect("four parameters").sqrt();
        for (i, grad) in t.grad((loss + norm) * scale, &params).into_iter().enumerate() {
            t.output(&format!("d{i}"), grad);
        }
    });
    for enabled in [true, false] {
        let train = |scaled: bool| -> Result<(Vec<Parameter>, f64), String> {
            let params = model(eager, 10);
            let mut optimizer = EagerOptimizer::new(Sgd::new(0.1), &params);
            let mut scaler = EagerScaler::new(options(enabled && scaled)).map_err(text)?;
            for batch in 0..ITERATIONS {
                optimizer.zero_grad();
                scaler.scale(&eager.tensor(Tensor::scalar(1.0f32))).map_err(text)?;
                accumulate(&program, &params, batch, scaler.get_scale().map_err(text)?)?;
                if batch == BAD && enabled {
                    spoil(&params)?;
                    if !scaled {
                        continue;
                    }
                }
                scaler.step(&mut optimizer).map_err(text)?;
                scaler.update().map_err(text)?;
            }
            Ok((params, scaler.get_scale().map_err(text)?))
        };
        let ((found, scale), (expected, _)) = (train(true)?, train(false)?);
        close(&found, &expected, 1e-5)?;
        same("scale", &[scale], &[if enabled { 512.0 } else { 1.0 }])?;
    }
    Ok(())
}
