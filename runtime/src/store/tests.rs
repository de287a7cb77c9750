//! What a store holds, and where.

use super::*;
use crate::{HostMemory, ReferenceDevice};

#[test]
fn entries_follow_their_device_and_stay_current() {
    let mut store = Store::new().with("w", Tensor::scalar(1f32));
    let ty = store.ty("w").unwrap().clone();
    let devices: [Arc<dyn Device>; 2] = [Arc::new(ReferenceDevice), Arc::new(ReferenceDevice)];
    let first = store.memory("w", &ty, &devices[0], true).unwrap();
    assert!(first.same(&store.memory("w", &ty, &devices[0], true).unwrap()));
    devices[0].upload(&2f32.to_le_bytes(), &first, 0).unwrap();
    assert_eq!(store.get("w").unwrap().item::<f32>().unwrap(), 2.0);
    store.set("w", &Tensor::scalar(3f32)).unwrap();
    assert!(first.same(&store.memory("w", &ty, &devices[0], true).unwrap()));
    assert_eq!(store.remove("w").unwrap().item::<f32>().unwrap(), 3.0);
    assert!(store.is_empty());
}

#[test]
fn a_value_that_nobody_else_holds_is_not_copied() {
    let held = Tensor::rand([100], 1).unwrap();
    let mut store = Store::new().with("held", held.clone());
    store.insert("own", Tensor::rand([100], 2).unwrap());
    let own = store.get("own").unwrap().bytes().as_ptr();
    let device: Arc<dyn Device> = Arc::new(ReferenceDevice);
    let mut address = |name: &str| {
        let memory = store.memory(name, held.ty(), &device, true).unwrap();
        memory.get::<HostMemory>().unwrap().as_ptr().cast_const()
    };
    assert!(address("own") == own && address("held") != held.bytes().as_ptr());
    assert_eq!(store.get("own").unwrap(), Tensor::rand([100], 2).unwrap());
    store.set("held", &Tensor::rand([100], 3).unwrap()).unwrap();
    assert_eq!(held, Tensor::rand([100], 1).unwrap());
}

#[test]
fn entries_move_between_stores() {
    let mut from = Store::new().with("w", Tensor::scalar(1f32));
    let mut to = Store::new().with("v", Tensor::scalar(2f64));
    let ty = from.ty("w").unwrap().clone();
    let device: Arc<dyn Device> = Arc::new(ReferenceDevice);
    let memory = from.memory("w", &ty, &device, true).unwrap();
    from.transfer("w", &mut to, "v").unwrap();
    assert!(from.is_empty() && to.len() == 1);
    assert!(memory.same(&to.memory("v", &ty, &device, true).unwrap()));
    assert!(from.transfer("w", &mut to, "v").is_err() && to.contains("v"));
}

#[test]
fn errors_name_the_entry() {
    let mut store = Store::new().with("w", Tensor::scalar(1f32));
    let error = store.get("v").unwrap_err().to_string();
    assert!(error.contains("`v`") && error.contains("has w"), "{error}");
    let error = store.set("w", &Tensor::scalar(1f64)).unwrap_err().to_string();
    assert!(error.contains("expected f32[], found f64[]"), "{error}");
}
