//! Eager tensors: programs are kept, values change in place, and what cannot be is an error.

use tracecast::eager::{DeviceTensor, Eager, EagerOptimizer, Gradient, Parameter, clip_grad_norm};
use tracecast::ir::Attrs;
use tracecast::ir::ops::amp::UNSCALE_CHECK;
use tracecast::ir::ops::elementwise::{ADD, SQRT};
use tracecast::ir::ops::prelude::*;
use tracecast::optim::Sgd;
use tracecast::{Options, Tensor};

fn eager(device: &str) -> Eager {
    Eager::new(Options::new().device(device)).expect("a known device")
}

fn message<T>(result: tracecast::Result<T>) -> String {
    result.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn ops_are_compiled_once_per_signature() {
    for device in ["cpu", "reference"] {
        let eager = eager(device);
        let x = eager.tensor(Tensor::new([2], &[1f32, 4.0]).unwrap());
        let y = eager.tensor(Tensor::new([2], &[9f32, 16.0]).unwrap());
        let apply = |op, operands: &[_]| eager.apply(op, operands, Attrs::new()).unwrap().remove(0);
        for _ in 0..3 {
            let sum = apply(&ADD, &[&x, &y]);
            assert_eq!(sum.to_host().unwrap().to_vec::<f32>().unwrap(), [10.0, 20.0]);
        }
        assert_eq!(eager.programs(), 1);
        let twice = apply(&ADD, &[&x, &x]);
        assert_eq!(twice.to_host().unwrap().to_vec::<f32>().unwrap(), [2.0, 8.0]);
        assert_eq!(eager.programs(), 2);
        let root = apply(&SQRT, &[&y]);
        assert_eq!(root.to_host().unwrap().to_vec::<f32>().unwrap(), [3.0, 4.0]);
        // The operands are as they were.
        assert_eq!(x.to_host().unwrap().to_vec::<f32>().unwrap(), [1.0, 4.0]);
        x.set(&Tensor::new([2], &[7f32, 8.0]).unwrap()).unwrap();
        assert_eq!(
            apply(&ADD, &[&x, &y]).to_host().unwrap().to_vec::<f32>().unwrap(),
            [16.0, 24.0]
        );
    }
}

#[test]
fn ops_with_several_results() {
    for device in ["cpu", "reference"] {
        let eager = eager(device);
        let grad = eager.tensor(Tensor::new([2], &[8f32, f32::INFINITY]).unwrap());
        let inverse = eager.tensor(Tensor::scalar(0.125f32));
        let results = eager.apply(&UNSCALE_CHECK, &[&grad, &inverse], Attrs::new()).unwrap();
        assert_eq!(results[0].to_host().unwrap().to_f64s(), [1.0, f64::INFINITY]);
        assert_eq!(results[1].to_host().unwrap().to_f64s(), [1.0]);
    }
}

#[test]
fn wrong_operands_are_errors() {
    let (here, there) = (eager("cpu"), eager("reference"));
    let x = here.tensor(Tensor::new([2], &[1f32, 4.0]).unwrap());
    let far = there.tensor(Tensor::new([2], &[1f32, 4.0]).unwrap());
    let three = here.tensor(Tensor::new([3], &[1f32, 4.0, 5.0]).unwrap());
    assert!(message(here.apply(&ADD, &[&x, &far], Attrs::new())).contains("one device"));
    assert!(!message(here.apply(&ADD, &[&x, &three], Attrs::new())).is_empty());
    assert!(!message(here.apply(&ADD, &[], Attrs::new())).is_empty());
    assert!(!message(x.set(&Tensor::scalar(1f32))).is_empty());
    let moved = far.to(&here).unwrap();
    assert!(here.apply(&ADD, &[&x, &moved], Attrs::new()).is_ok());
    // A failed call leaves the operands usable.
    assert_eq!(x.to_host().unwrap().to_vec::<f32>().unwrap(), [1.0, 4.0]);
}

#[test]
fn gradients_have_the_type_and_the_place_of_their_parameter() {
    let (here, there) = (eager("cpu"), eager("reference"));
    let weight = here.parameter(Tensor::new([2, 3], &[0f32; 6]).unwrap());
    let tensor = |values: &[f32]| here.tensor(Tensor::new([values.len()], values).unwrap());
    assert!(message(weight.set_grad(tensor(&[1.0]))).contains("expected f32[2, 3]"));
    let far = there.tensor(Tensor::new([2, 3], &[0f32; 6]).unwrap());
    assert!(!message(weight.set_grad(far)).is_empty());
    let outside = Gradient::sparse(tensor(&[1.0]), &[vec![2], vec![0]], &[2, 3]);
    assert!(message(outside).contains("sparse gradient"));
    assert!(Gradient::sparse(tensor(&[1.0]), &[vec![0, 1], vec![0]], &[2, 3]).is_err());

    let indices = [vec![0, 1, 0], vec![2, 0, 2]];
    let sparse = Gradient::sparse(tensor(&[3.0, 4.0, 5.0]), &indices, &[2, 3]).unwrap();
    weight.set_grad(sparse).unwrap();
    weight.add_grad(here.tensor(Tensor::new([2, 3], &[1f32; 6]).unwrap())).unwrap();
    let sum = weight.grad().unwrap().to_dense().unwrap().to_host().unwrap();
    assert_eq!(sum.to_vec::<f32>().unwrap(), [1.0, 1.0, 9.0, 5.0, 1.0, 1.0]);
}

#[test]
fn optimizers_leave_out_parameters_without_gradients() {
    for device in ["cpu", "reference"] {
        let eager = eager(device);
        let params: Vec<Parameter> =
            (0..2).map(|_| eager.parameter(Tensor::new([2], &[1f32, 2.0]).unwrap())).collect();
        params[0].set_grad(eager.tensor(Tensor::new([2], &[3f32, 4.0]).unwrap())).unwrap();
        assert_eq!(clip_grad_norm(&params, 10.0).unwrap(), 5.0);
        let mut sgd = EagerOptimizer::new(Sgd::new(1.0), &params);
        sgd.step().unwrap();
        let value = |i: usize| params[i].value().to_host().unwrap().to_vec::<f32>().unwrap();
        assert_eq!((value(0), value(1)), (vec![-2.0, -2.0], vec![1.0, 2.0]));
        sgd.zero_grad();
        assert_eq!(clip_grad_norm(&params, 10.0).unwrap(), 0.0);
        let named = EagerOptimizer::new(Sgd::new("rate"), &params).step();
        assert!(named.is_ok(), "no parameter has a gradient");
        params[0].set_grad(eager.tensor(Tensor::new([2], &[3f32, 4.0]).unwrap())).unwrap();
        assert!(message(EagerOptimizer::new(Sgd::new("rate"), &params).step()).contains("rate"));
    }
}

#[test]
fn methods_and_operators_read_as_in_pytorch() {
    for device in ["cpu", "reference"] {
        let eager = eager(device);
        let x = eager.tensor(Tensor::from([1f32, -2.0, 3.0]));
        let y = eager.tensor(Tensor::from([0.5f32, 2.0, -1.0]));
        let numbers = |x: &DeviceTensor| x.to_host().unwrap().to_f64s();
        assert_eq!(numbers(&x.relu()), [1.0, 0.0, 3.0]);
        assert_eq!(numbers(&(&x * &y)), [0.5, -4.0, -3.0]);
        assert_eq!(numbers(&(2.0 - &x + &y * 2.0)), [2.0, 8.0, -3.0]);
        assert_eq!(numbers(&-&x), [-1.0, 2.0, -3.0]);
        assert_eq!(numbers(&x.sum(())), [2.0]);
        assert_eq!(numbers(&x.map(|x| x.cumsum(0).abs())), [1.0, 1.0, 2.0]);
        assert_eq!(numbers(&x.lt(&y)), [0.0, 1.0, 0.0]);
        let both = eager.call(&[&x, &y], |_, x| vec![x[0] + x[1], x[0] - x[1]]).unwrap();
        assert_eq!(numbers(&both[1]), [0.5, -4.0, 4.0]);
        // Equal calls are one program.
        let before = eager.programs();
        assert_eq!(numbers(&x.relu()), [1.0, 0.0, 3.0]);
        assert_eq!(eager.programs(), before);
    }
}

#[test]
fn what_fails_is_told_where_the_value_is_asked_for() {
    let eager = eager("reference");
    let x = eager.tensor(Tensor::from([1f32, -2.0, 3.0]));
    let other = eager.tensor(Tensor::from([1f32, 2.0]));
    let wrong = (&x + &other).relu() * 2.0;
    let told = [
        message(wrong.to_host()),
        message(wrong.check()),
        message(eager.call(&[&wrong], |_, x| x.to_vec())),
    ];
    for told in told {
        assert!(told.contains("do not broadcast") && told.contains("tests/eager.rs"), "{told}");
    }
    assert!(x.check().is_ok());
}
