//! What a device is told of operands that last: the same version of a memory never holds two
//! things.

use super::{state, store, tensor};
use crate::support::{add, double, fused, launch, limit, vector};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tracecast_ir::Verified;
use tracecast_ir::kernel::Kernel;
use tracecast_runtime::{
    Arg, Bound, Device, Error, Executable, HostMemory, Launch, Memory, Program, ReferenceDevice,
    Result, Store,
};

/// The bytes of every version that a kernel was given, and how often it was given one of them
/// again.
#[derive(Debug, Default)]
struct Seen {
    versions: HashMap<u64, Vec<u8>>,
    again: usize,
}

/// The reference device, which looks at all operands that last before a kernel runs.
#[derive(Debug)]
struct Watched {
    infallible: bool,
    seen: Arc<Mutex<Seen>>,
}

impl Device for Watched {
    fn name(&self) -> &str {
        "watched"
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>> {
        Ok(Box::new(Watching { inner: ReferenceDevice.load(kernel)?, seen: self.seen.clone() }))
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

    fn launches_are_infallible(&self) -> bool {
        self.infallible
    }
}

struct Watching<T> {
    inner: T,
    seen: Arc<Mutex<Seen>>,
}

impl Launch for Watching<Box<dyn Launch>> {
    fn bind(&self, args: &[Arg], sizes: &[i64]) -> Result<Box<dyn Bound>> {
        let lasting = args.iter().filter(|arg| arg.lasting).cloned().collect();
        let inner = (self.inner.bind(args, sizes)?, lasting);
        Ok(Box::new(Watching { inner, seen: self.seen.clone() }))
    }

    /// Ten bytes for each, to be counted.
    fn kept_bytes(&self, lasting: &[usize], _: &[i64]) -> usize {
        10 * lasting.len()
    }
}

impl Bound for Watching<(Box<dyn Bound>, Vec<Arg>)> {
    fn run(&self) -> Result<()> {
        let (bound, lasting) = &self.inner;
        for arg in lasting {
            let mut bytes = vec![0; arg.len];
            arg.memory.get::<HostMemory>()?.read(arg.offset, &mut bytes)?;
            let mut seen = self.seen.lock().unwrap();
            if let Some(before) = seen.versions.insert(arg.memory.version(), bytes.clone()) {
                seen.again += 1;
                if before != bytes {
                    return Err(Error::Device("one version holds two things".to_owned()));
                }
            }
        }
        bound.run()
    }
}

fn load(graph: &Verified, device: &Arc<dyn Device>) -> Executable {
    Program::plan(graph).unwrap().load(device.clone()).unwrap()
}

/// Reads both states.
fn reader() -> Verified {
    fused(|t| {
        let [a, b] = ["a", "b"].map(|name| t.state(name, vector(3)));
        t.output("y", launch(t, add(3, None), &[a, b])[0]);
    })
}

/// Doubles `a`, which `b` is added to before.
fn updater() -> Verified {
    fused(|t| {
        let [a, b] = ["a", "b"].map(|name| t.state(name, vector(3)));
        let sum = launch(t, add(3, None), &[a, b])[0];
        t.update(a, launch(t, double(3, None), &[sum])[0]);
    })
}

/// As [`updater`], but fails if `a` is too large; either way `a` may be written.
fn checked() -> Verified {
    fused(|t| {
        let [a, b] = ["a", "b"].map(|name| t.state(name, vector(3)));
        let sum = launch(t, add(3, Some(0)), &[a, b])[0];
        t.update(a, sum);
        t.output("y", launch(t, limit(3), &[sum])[0]);
    })
}

/// Adds `a` to `b` forty times before it replaces `a` by the sum.
fn repeated() -> Verified {
    fused(|t| {
        let [a, b] = ["a", "b"].map(|name| t.state(name, vector(3)));
        t.update(a, (0..40).fold(b, |sum, _| launch(t, add(3, None), &[sum, a])[0]));
    })
}

fn exchange() -> Verified {
    fused(|t| {
        let [a, b] = ["a", "b"].map(|name| t.state(name, vector(3)));
        t.update(a, b);
        t.update(b, a);
    })
}

#[test]
fn a_version_never_holds_two_things() {
    for infallible in [true, false] {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let device: Arc<dyn Device> = Arc::new(Watched { infallible, seen: seen.clone() });
        let [reader, updater, checked, repeated, exchange] =
            [reader(), updater(), checked(), repeated(), exchange()]
                .map(|graph| load(&graph, &device));
        let mut store = store(&[("a", &[1.0, 2.0, 3.0]), ("b", &[0.5, 0.25, 0.0])]);
        let mut random = 1u64;
        for step in 0..600 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let value = tensor(&[step as f32, 1.0, -1.0]);
            match random >> 33 & 15 {
                0 => store.set("a", &value).unwrap(),
                1 => store.insert("b", value),
                2 => drop(updater.run(&mut store, &[]).unwrap()),
                3 => drop(exchange.run(&mut store, &[]).unwrap()),
                6 => drop(repeated.run(&mut store, &[]).unwrap()),
                4 => {
                    let (mut other, before) = (Store::new(), state(&store, "a"));
                    store.transfer("a", &mut other, "c").unwrap();
                    other.transfer("c", &mut store, "a").unwrap();
                    assert_eq!(before, state(&store, "a"));
                }
                5 => {
                    let before = state(&store, "a");
                    if checked.run(&mut store, &[]).is_err() {
                        assert_eq!(before, state(&store, "a"));
                        store.set("a", &value).unwrap();
                    }
                }
                _ => drop(reader.run(&mut store, &[]).unwrap()),
            }
        }
        let Seen { versions, again } = &*seen.lock().unwrap();
        assert!(versions.len() > 100 && *again > 100, "{} {again}", versions.len());
    }
}

/// State lasts that a program does not update, or reads often before, and what is kept of it counts
/// once for each kernel.
#[test]
fn what_lasts_is_state_that_is_read_only_or_often() {
    let device: Arc<dyn Device> = Arc::new(Watched { infallible: true, seen: Arc::default() });
    let kept = |graph: &Verified| {
        let program = load(graph, &device);
        assert_eq!(program.peak_bytes(), program.program().peak_bytes() + program.kept_bytes());
        program.kept_bytes()
    };
    let of_input = fused(|t| {
        let (a, x) = (t.state("a", vector(3)), t.input("x", vector(3)));
        t.output("y", launch(t, add(3, None), &[a, x])[0]);
    });
    assert_eq!(
        [kept(&reader()), kept(&updater()), kept(&of_input), kept(&exchange())],
        [20, 10, 10, 0]
    );
    // `a` and `b` in the first launch, `a` in those between, `a` no more where it is written.
    // Twice, since `a` changes in each run.
    assert_eq!(kept(&repeated()), 60);
    let fallible: Arc<dyn Device> = Arc::new(Watched { infallible: false, seen: Arc::default() });
    assert_eq!(load(&repeated(), &fallible).kept_bytes(), 10);
}
