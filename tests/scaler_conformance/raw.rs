//! The raw ops, the fused steps and the reciprocal, each against recorded numbers.

use crate::cases::{number, numbers, outcome, read, same, tensor};
use crate::replay::optimizer;
use serde_json::Value;
use tracecast::Tensor;
use tracecast::amp::raw::{
    amp_foreach_non_finite_check_and_unscale, amp_update_scale, reciprocal_scale,
};
use tracecast::eager::{Eager, Scaling};

/// One f32 or whatever the case asks for: `NAME_dtype`, `NAME_shape`.
fn operand(
    eager: &Eager,
    case: &Value,
    name: &str,
    value: f64,
) -> Result<tracecast::eager::DeviceTensor, String> {
    let dtype = case[format!("{name}_dtype")].as_str().unwrap_or("f32");
    let shape = case.get(format!("{name}_shape")).cloned().unwrap_or_else(|| Value::Array(vec![]));
    let count: u64 = shape.as_array().into_iter().flatten().filter_map(Value::as_u64).product();
    tensor(eager, dtype, Some(&shape), &vec![value; count as usize])
}

pub(crate) fn unscale(eager: &Eager, case: &Value) -> Result<(), String> {
    let found = operand(eager, case, "found", number(&case["found_inf_before"]))?;
    let inverse = operand(eager, case, "inv", number(&case["inv_scale"]))?;
    let mut grads = Vec::new();
    for grad in case["grads"].as_array().expect("a list of gradients") {
        let dtype = grad["dtype"].as_str().unwrap_or("f32");
        if dtype.starts_with('c') {
            // No tensor has a complex dtype, so there is nothing to call the op with.
            assert!(tensor(eager, dtype, None, &[]).is_err());
            return match case["error"]["class"].as_str() {
                Some("NotImplementedError") => Ok(()),
                other => Err(format!("expected {other:?} for {dtype}")),
            };
        }
        grads.push(tensor(eager, dtype, grad.get("shape"), &numbers(&grad["v"]))?);
    }
    let list: Vec<_> = grads.iter().collect();
    let result = amp_foreach_non_finite_check_and_unscale(&list, &found, &inverse);
    if outcome(result, case.get("error"))?.is_none() {
        return Ok(());
    }
    same("found_inf", &read(&found), &[number(&case["found_inf_after"])])?;
    let after = case["grads_after"].as_array().expect("a list of gradients");
    for (grad, expected) in grads.iter().zip(after) {
        same("gradient", &read(grad), &numbers(expected))?;
    }
    Ok(())
}

pub(crate) fn update(eager: &Eager, case: &Value) -> Result<(), String> {
    let scale = operand(eager, case, "scale", number(&case["scale"]))?;
    let found = operand(eager, case, "found", number(&case["found_inf"]))?;
    let tracker = case["growth_tracker"].as_i64().expect("an integer") as i32;
    let tracker = eager.tensor(Tensor::scalar(tracker));
    let (growth, backoff) = (number(&case["growth_factor"]), number(&case["backoff_factor"]));
    let interval = case["growth_interval"].as_i64().expect("an integer");
    let result = amp_update_scale(&scale, &tracker, &found, growth, backoff, interval);
    if outcome(result, case.get("error"))?.is_none() {
        return Ok(());
    }
    same("scale", &read(&scale), &[number(&case["scale_after"])])?;
    same("tracker", &read(&tracker), &[number(&case["growth_tracker_after"])])
}

/// The recorded step with `parity`; without it, any flag but zero prevents the step.
pub(crate) fn fused(eager: &Eager, case: &Value) -> Result<(), String> {
    for parity in [true, false] {
        let (start, scaled) = (numbers(&case["params"]), numbers(&case["grads"]));
        let param = tracecast::eager::Parameter::new(tensor(eager, "f32", None, &start)?);
        param.set_grad(tensor(eager, "f32", None, &scaled)?).map_err(|e| e.to_string())?;
        let mut rule = optimizer(case, std::slice::from_ref(&param))?.fused(true);
        let scale = tensor(eager, "f32", None, &[number(&case["grad_scale"])])?;
        let flag = number(&case["found_inf"]);
        let found = eager.tensor(Tensor::scalar(flag as f32));
        let scaling = Scaling { grad_scale: Some(&scale), found_inf: Some(&found), parity };
        rule.step_scaled(scaling).map_err(|error| error.to_string())?;
        let grad = param.grad().expect("a gradient was set");
        if parity || flag == 0.0 {
            same("parameter", &read(param.value()), &numbers(&case["params_after"]))?;
            same("gradient", &read(grad.values()), &numbers(&case["grads_after"]))?;
            let steps = rule.steps().map_err(|e| e.to_string())?;
            match (&case["step_counter_after"], steps[0]) {
                (Value::Null, None) => {}
                (counter, Some(steps)) => same("step counter", &[steps], &[number(counter)])?,
                (counter, None) => return Err(format!("no step counter, expected {counter}")),
            }
        } else {
            same("parameter (default)", &read(param.value()), &start)?;
            same("gradient (default)", &read(grad.values()), &scaled)?;
            let steps = rule.steps().map_err(|e| e.to_string())?;
            same("step counter (default)", &[steps[0].unwrap_or(0.0)], &[0.0])?;
        }
    }
    Ok(())
}

pub(crate) fn inverse(eager: &Eager, case: &Value) -> Result<(), String> {
    let scale = operand(eager, case, "scale", number(&case["scale"]))?;
    let inverse = outcome(reciprocal_scale(&scale), None)?.expect("no error is recorded");
    same("inverse", &read(&inverse), &[number(&case["inv_scale"])])
}
