//! What goes between a device and the host, and what is left when the device is lost.

use crate::guest::{Link, Npu};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracecast::eager::Eager;
use tracecast::ir::Attrs;
use tracecast::ir::ops::elementwise::{MUL, NEG};
use tracecast::prelude::*;

fn counts(link: &Link) -> (usize, usize) {
    (link.uploads.load(Ordering::SeqCst), link.downloads.load(Ordering::SeqCst))
}

#[test]
fn eager_ops_upload_their_operands_and_nothing_else() {
    let npu = Npu::named("npu");
    let link = npu.link.clone();
    let eager = Eager::new(Options::new().on(Arc::new(npu))).unwrap();
    let x = eager.tensor(Tensor::rand([1000], 1).unwrap());
    let mut y = x.clone();
    for _ in 0..10 {
        y = eager.apply(&MUL, &[&y, &x], Attrs::new()).unwrap().remove(0);
        y = eager.apply(&NEG, &[&y], Attrs::new()).unwrap().remove(0);
    }
    assert_eq!(counts(&link), (1, 0));
    let expected = Tensor::rand([1000], 1).unwrap().to_f64s();
    let product = |x: &f64| (0..10).fold(*x as f32, |y, _| -(y * *x as f32));
    let expected: Vec<f64> = expected.iter().map(|x| f64::from(product(x))).collect();
    assert_eq!(y.to_host().unwrap().to_f64s(), expected);
    assert_eq!(counts(&link), (1, 1));
}

#[test]
fn an_entry_without_a_value_is_written_before_it_is_read() {
    let ty = TensorType::new(DType::F32, [2]);
    let mut store = Store::new().with("x", Tensor::new([2], &[1f32, 2.0]).unwrap());
    store.reserve("y", ty.clone());
    assert_eq!(store.ty("y"), Some(&ty));
    let error = store.get("y").unwrap_err().to_string();
    assert!(error.contains("no program has written this f32[2]"), "{error}");
    let double = jit(Options::new(), |t| {
        let y = t.state_of("y", TensorType::new(DType::F32, [2]));
        t.update(y, t.state_of("x", TensorType::new(DType::F32, [2])) * 2.0);
    });
    double.run(&mut store, &[]).unwrap();
    assert_eq!(store.get("y").unwrap().to_f64s(), [2.0, 4.0]);
}

#[test]
fn what_lay_on_a_lost_device_can_be_let_go() {
    let npu = Npu::named("npu");
    let link = npu.link.clone();
    let step = jit(Options::new().on(Arc::new(npu)), |t| {
        let w = t.state_of("w", TensorType::new(DType::F32, [2]));
        t.update(w, w + 1.0);
    });
    let one = || Tensor::new([2], &[1f32, 1.0]).unwrap();
    let mut store = Store::new().with("w", one()).with("host", one());
    step.run(&mut store, &[]).unwrap();
    link.is_lost.store(true, Ordering::SeqCst);
    assert!(store.get("w").is_err() && store.remove("w").is_err());
    // What lives on the host is as it was, and the name is free again.
    assert_eq!(store.get("host").unwrap(), one());
    assert!(store.discard("w") && !store.contains("w"));
    link.is_lost.store(false, Ordering::SeqCst);
    store.insert("w", one());
    step.run(&mut store, &[]).unwrap();
    assert_eq!(store.get("w").unwrap().to_f64s(), [2.0; 2]);
}
