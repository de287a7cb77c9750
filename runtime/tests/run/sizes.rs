//! Programs whose sizes are names: one set of code on a device that takes names, numbers for one
//! that does not, and one arena.

use super::support::{Fallible, fused, launch};
use super::{floats, state, store};
use std::sync::Arc;
use tracecast_ir::kernel::{Kernel, build};
use tracecast_ir::{Graph, Values, Verified, text};
use tracecast_runtime::{Device, Error, Executable, Family, Program, ReferenceDevice, Tensor};

const CORE: &str = "
size n = 3 in 1..=10000

graph @sized(%x: f32[n, 4], %i: i64[1, 4], %s: f32[4] state) {
  %0 = neg %x : f32[n, 4]
  %1 = reduce_row %0 {kind = \"sum\"} : f32[n]
  %2 = reduce_column %x {dim = [0], kind = \"sum\"} : f32[4]
  %3 = add %s, %2 : f32[4]
  %4 = gather %x, %i {dim = 0} : f32[1, 4]
  update %s = %3
  return rows = %1, picked = %4
}";

/// A kernel for each node of the program, in which `n` is `10000` at most if it is not said
/// otherwise.
fn sized(most: &str) -> Verified {
    let core: Graph = text::parse(&CORE.replace("10000", most)).unwrap();
    let kernels: Vec<Kernel> = core
        .nodes()
        .skip(core.ports().len())
        .map(|node| build::single(&core, node).unwrap().kernel)
        .collect();
    fused(|t| {
        t.take_sizes(&core);
        let port = |name: &str| {
            let port = core.port_named(name).unwrap();
            t.port(&port.name, port.ty.clone(), port.role, port.grad, port.device)
        };
        let (x, i, s) = (port("x"), port("i"), port("s"));
        let one = |at: usize, inputs: &[_]| launch(t, kernels[at].clone(), inputs)[0];
        let rows = one(1, &[one(0, &[x])]);
        t.update(s, one(3, &[s, one(2, &[x])]));
        t.output("rows", rows);
        t.output("picked", one(4, &[i, x]));
    })
}

fn at(family: &Family, n: i64) -> Executable {
    family.at(&Values::from_iter([("n", n)])).unwrap()
}

fn family(device: Arc<dyn Device>) -> Family {
    Program::plan(&sized("10000")).unwrap().load_sized(device).unwrap()
}

#[test]
fn every_size_runs_with_what_it_means() {
    let devices: [(Arc<dyn Device>, usize); 2] =
        [(Arc::new(ReferenceDevice), 5), (Arc::new(Fallible), 1)];
    for (device, served) in devices {
        let family = family(device);
        assert_eq!(family.served().0, served, "{family:?}");
        let mut store = store(&[("s", &[0.0; 4])]);
        let mut expected = [0.0f32; 4];
        let i = Tensor::new([1, 4], &[0i64; 4]).unwrap();
        let mut kept = Vec::new();
        for n in [3usize, 1, 700, 3] {
            let numbers: Vec<f32> = (0..n * 4).map(|i| (i % 7) as f32).collect();
            let x = Tensor::new([n, 4], &numbers).unwrap();
            kept.push(at(&family, n as i64));
            for program in kept.iter().filter(|p| p.program().ports()[0].ty == *x.ty()) {
                let out = program.run(&mut store, &[("x", &x), ("i", &i)]).unwrap();
                let rows: Vec<f32> =
                    numbers.chunks(4).map(|row| -row.iter().sum::<f32>()).collect();
                assert_eq!(floats(&out["rows"]), rows);
                for (sum, place) in expected.iter_mut().zip(0..) {
                    *sum += numbers.iter().skip(place).step_by(4).sum::<f32>();
                }
                assert_eq!(state(&store, "s"), expected);
            }
        }
    }
}

#[test]
fn arenas_grow_and_are_shared() {
    let family = family(Arc::new(ReferenceDevice));
    let run = |program: &Executable, n: usize| {
        let x = Tensor::new([n, 4], &vec![1.0f32; n * 4]).unwrap();
        let i = Tensor::new([1, 4], &[0i64; 4]).unwrap();
        program.run(&mut store(&[("s", &[0.0; 4])]), &[("x", &x), ("i", &i)]).unwrap();
    };
    let (small, large) = (at(&family, 2), at(&family, 500));
    run(&small, 2);
    let before = family.arena_bytes();
    run(&large, 500);
    let grown = family.arena_bytes();
    assert!(before > 0 && grown >= large.peak_bytes() && grown > 10 * before, "{before} {grown}");
    run(&small, 2);
    run(&at(&family, 400), 400);
    assert_eq!(family.arena_bytes(), grown);
}

#[test]
fn arenas_within_narrow_bounds_do_not_grow() {
    let program = Program::plan(&sized("30")).unwrap();
    let family = program.load_sized(Arc::new(ReferenceDevice)).unwrap();
    let before = family.arena_bytes();
    assert!(before >= at(&family, 30).peak_bytes(), "{before}");
    for n in [1, 30, 7] {
        let x = Tensor::new([n, 4], &vec![1.0f32; n * 4]).unwrap();
        let i = Tensor::new([1, 4], &[0i64; 4]).unwrap();
        let mut store = store(&[("s", &[0.0; 4])]);
        at(&family, n as i64).run(&mut store, &[("x", &x), ("i", &i)]).unwrap();
        assert_eq!(family.arena_bytes(), before);
    }
}

#[test]
fn errors_speak_of_the_sizes_of_the_run() {
    for device in [Arc::new(ReferenceDevice) as Arc<dyn Device>, Arc::new(Fallible)] {
        let family = family(device);
        let i = Tensor::new([1, 4], &[0i64, 0, 7, 0]).unwrap();
        let x = Tensor::new([5, 4], &[1.0f32; 20]).unwrap();
        let mut store = store(&[("s", &[1.0; 4])]);
        let error = at(&family, 5).run(&mut store, &[("x", &x), ("i", &i)]).unwrap_err();
        let Error::Data { message, .. } = error else { panic!("{error}") };
        assert_eq!(message, "index out of range: expected 0..5, found 7");
        assert_eq!(state(&store, "s"), [1.0; 4], "a failed step leaves state as it was");
        let wrong = at(&family, 4).run(&mut store, &[("x", &x), ("i", &i)]).unwrap_err();
        assert!(wrong.to_string().contains("expected f32[4, 4], found f32[5, 4]"), "{wrong}");
        assert!(family.at(&Values::default()).unwrap_err().to_string().contains("`n`"));
        assert!(family.at(&Values::from_iter([("n", -1)])).is_err());
    }
    let refused =
        Program::plan(&sized("10000")).unwrap().load(Arc::new(ReferenceDevice)).unwrap_err();
    assert!(refused.to_string().contains("names"), "{refused}");
}
