//! Kinds and devices by name: registering, renaming, opening, removing, and every name that is
//! refused.

use crate::guest::{Driver, Fault, Npu, with};
use crate::worker::Guest;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use tracecast::eager::Eager;
use tracecast::ir::policy::DeviceType;
use tracecast::prelude::*;
use tracecast::runtime::{AmpSupport, Registry};
use tracecast::trace_with;

fn driver(count: usize) -> Arc<Driver> {
    Arc::new(Driver { count, ..Driver::default() })
}

fn refused<T>(result: tracecast::runtime::Result<T>, says: &str) {
    let Err(error) = result else { panic!("expected an error that says {says}") };
    assert!(error.to_string().contains(says), "{error}");
}

#[test]
fn each_kind_from_outside_gets_a_type_and_the_fifth_is_an_error() {
    let registry = Registry::new();
    for (name, ty) in ["a", "b", "c", "d"].into_iter().zip(DeviceType::OUTSIDE) {
        assert_eq!(registry.register(name, driver(1)).unwrap(), ty);
    }
    refused(registry.register("e", driver(1)), "four kinds from outside already");
    refused(registry.register("b", driver(1)), "`b` is registered already");
    registry.unregister("b").unwrap();
    assert_eq!(registry.register("e", driver(1)).unwrap(), DeviceType::PrivateUse2);
    let names: Vec<String> = registry.kinds().iter().map(|kind| kind.name.to_string()).collect();
    assert_eq!(names, ["a", "c", "d", "e"]);
}

#[test]
fn a_device_is_opened_once_and_by_its_number() {
    let (registry, driver) = with(Driver { count: 2, ..Driver::default() });
    let first = registry.device("npu").unwrap();
    assert_eq!((first.name(), driver.opened.load(Ordering::SeqCst)), ("npu:0", 1));
    assert!(Arc::ptr_eq(&first, &registry.device("npu:0").unwrap()));
    assert_eq!(registry.device("npu:1").unwrap().name(), "npu:1");
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| registry.device("npu:1").unwrap());
        }
    });
    assert_eq!(driver.opened.load(Ordering::SeqCst), 2);
}

#[test]
fn bad_names_are_errors() {
    let (registry, _) = with(Driver { count: 2, ..Driver::default() });
    for (name, says) in [
        ("", "no device can be called ``"),
        ("npu:", "`npu:` names no device"),
        ("npu:-1", "`npu:-1` names no device"),
        ("npu:+1", "`npu:+1` names no device"),
        ("npu:99", "`npu` has 2 devices"),
        ("npu:99999", "`npu:99999` names no device"),
        ("a:b:c", "`a:b:c` names no device"),
        ("my dev!", "no device can be called `my dev!`"),
        ("tpu", "no device `tpu`: expected one of npu:0, npu:1"),
    ] {
        refused(registry.device(name), says);
        let error = Options::new().registry(&registry).device(name).target().unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    for (name, says) in [
        ("", "no device can be called ``"),
        ("my dev!", "no device can be called `my dev!`"),
        ("1npu", "no device can be called `1npu`"),
        ("npu:1", "no device can be called `npu:1`"),
        ("cpu", "cpu is an in-tree device type"),
        ("cuda", "cuda is an in-tree device type"),
        ("npu", "`npu` is registered already"),
        ("privateuse1", "`npu` has the type privateuse1"),
    ] {
        refused(registry.register(name, driver(1)), says);
    }
    refused(Registry::new().device("npu"), "none is registered");
}

#[test]
fn what_a_backend_does_wrong_is_an_error_of_the_device() {
    let fault = |fault| with(Driver { count: 1, fault, ..Driver::default() }).0;
    refused(with(Driver::default()).0.device("npu"), "`npu` has 0 devices");
    refused(fault(Fault::Panics).device("npu"), "`npu:0` cannot be opened: its backend panicked");
    let other = fault(Fault::CallsItself("gpu"));
    refused(other.device("npu"), "opened as `npu:0` calls itself `gpu`");
    refused(fault(Fault::CallsItself("my dev!")).device("npu"), "calls itself `my dev!`");
    // It may work the next time.
    let later = fault(Fault::First);
    refused(later.device("npu"), "no firmware");
    assert!(later.device("npu").is_ok());
    let amp = AmpSupport { default: DType::F16, ..AmpSupport::new([DType::BF16]) };
    let wrong = Arc::new(Driver { count: 1, amp: Some(amp), ..Driver::default() });
    refused(Registry::new().register("npu", wrong), "expected one that its regions take: bf16");
}

#[test]
fn open_devices_are_registered_one_by_one_under_their_own_names() {
    let registry = Registry::new();
    for name in ["npu:1", "npu", "gpu"] {
        registry.register_device(Arc::new(Npu::named(name))).unwrap();
    }
    assert_eq!(registry.kinds()[0].devices.len(), 2);
    assert_eq!(registry.device("npu:0").unwrap().name(), "npu");
    assert_eq!(registry.device("npu:1").unwrap().name(), "npu:1");
    refused(registry.register_device(Arc::new(Npu::named("npu:0"))), "registered already");
    refused(registry.register_device(Arc::new(Npu::named("my dev!"))), "`my dev!`");
    refused(registry.register("npu", driver(1)), "registered already");
}

#[test]
fn a_type_is_given_a_name_once_and_before_its_kind_is_there() {
    let registry = Registry::new();
    let first = DeviceType::PrivateUse1;
    registry.rename(first, "npu").unwrap();
    registry.rename(first, "npu").unwrap();
    refused(registry.rename(first, "tpu"), "it is called `npu` already");
    refused(registry.rename(DeviceType::PrivateUse2, "npu"), "the name is taken");
    refused(registry.rename(DeviceType::PrivateUse2, "cuda"), "the name of a device type");
    refused(registry.rename(DeviceType::Cuda, "mine"), "only types from outside");
    refused(registry.rename(DeviceType::PrivateUse2, "my dev!"), "`my dev!`");
    // The type is kept for the kind of that name.
    assert_eq!(registry.register("other", driver(1)).unwrap(), DeviceType::PrivateUse2);
    assert_eq!(registry.register("npu", driver(1)).unwrap(), first);
    refused(registry.rename(DeviceType::PrivateUse2, "late"), "`other` is registered for it");
}

#[test]
fn a_backend_may_serve_a_type_that_nobody_serves() {
    let card = |ty| Arc::new(Driver { count: 1, serves: Some(ty), ..Driver::default() });
    let registry = Registry::new();
    assert_eq!(registry.register("cuda", card(DeviceType::Cuda)).unwrap(), DeviceType::Cuda);
    refused(registry.register("card", card(DeviceType::Cuda)), "`cuda` serves cuda already");
    refused(registry.register("xpu", card(DeviceType::Mps)), "another device type than mps");
    refused(registry.register("mine", card(DeviceType::Cpu)), "the cpu has its device");
}

#[test]
fn a_kind_in_use_stays() {
    let (registry, _) = with(Driver { count: 2, ..Driver::default() });
    let device = registry.device("npu:1").unwrap();
    refused(registry.unregister("npu"), "`npu:1` is in use");
    let options = Options::new().on(device);
    refused(registry.unregister("npu"), "`npu:1` is in use");
    drop(options);
    registry.unregister("npu").unwrap();
    refused(registry.unregister("npu"), "no device `npu`");
}

/// Whatever holds a device has it in use, and the error says which device that is.
#[test]
fn all_that_lives_on_a_device_has_it_in_use() {
    let (registry, _) = with(Driver { count: 3, ..Driver::default() });
    let options = Options::new().registry(&registry).device("npu:2");
    let step = |options: &Options| {
        let graph = trace_with("step", options, |t| {
            let w = t.state_of("w", TensorType::scalar(DType::F32));
            t.update(w, w + 1.0);
            t.output("y", w * 2.0);
        });
        compile(graph.unwrap(), options).unwrap()
    };
    let one = || Store::new().with("w", Tensor::scalar(1f32));
    let idle = |what: &str, held: &dyn std::any::Any| {
        let _ = held;
        refused(registry.unregister("npu"), "`npu:2` is in use");
        assert_eq!(registry.kinds().len(), 1, "{what}");
    };
    let program = step(&options);
    drop(options);
    idle("an executable", &program);
    let mut store = one();
    program.run(&mut store, &[]).unwrap();
    drop(program);
    idle("an entry of a store", &store);
    let weights = store.snapshot();
    drop(store);
    idle("weights", &weights);
    drop(weights);
    let eager = Eager::new(Options::new().registry(&registry).device("npu:2")).unwrap();
    let tensor = eager.tensor(Tensor::scalar(1f32));
    drop(eager);
    idle("a tensor", &tensor);
    drop(tensor);
    registry.unregister("npu").unwrap();
    // And a value that a step leaves on a device with a queue, or its queue.
    let (registry, guest) = (Registry::new(), Guest::new("npu:2", 2));
    registry.register_device(guest.clone()).unwrap();
    let program = step(&Options::new().on(guest.clone()));
    let left = program.submit(&mut one(), &[]).unwrap();
    let value = left.value("y").unwrap().clone();
    left.wait().unwrap();
    drop((program, left, guest));
    refused(registry.unregister("npu"), "`npu:2` is in use");
    assert_eq!(value.to_host().unwrap().to_f64s(), [2.0]);
    drop(value);
    registry.unregister("npu").unwrap();
}

#[test]
fn two_kinds_behind_one_type_are_an_error() {
    let registry = Registry::new();
    assert_eq!(registry.register("privateuse1", driver(1)).unwrap(), DeviceType::PrivateUse1);
    refused(registry.register("privateuse1", driver(1)), "`privateuse1` is registered already");
    let named = registry.register_device(Arc::new(Npu::named("privateuse1:0")));
    refused(named, "`privateuse1` is registered already");
    refused(registry.rename(DeviceType::PrivateUse1, "npu"), "`privateuse1` is registered for it");
    // Another kind has another type.
    assert_eq!(registry.register("npu", driver(1)).unwrap(), DeviceType::PrivateUse2);
    refused(registry.register("privateuse2", driver(1)), "`npu` has the type privateuse2");
}

#[test]
fn two_threads_that_register_one_name_make_one_kind() {
    let registry = Registry::new();
    let done = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| registry.register("npu", driver(1)).is_ok())).collect();
        threads.into_iter().map(|t| t.join().unwrap()).filter(|done| *done).count()
    });
    assert_eq!((done, registry.kinds().len()), (1, 1));
}

#[test]
fn settings_of_the_cpu_are_no_part_of_its_name() {
    for options in [Options::new().threads(1), Options::new().threads(2)] {
        assert_eq!(options.target().unwrap().name(), "cpu");
    }
}
