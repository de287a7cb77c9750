//! Random programs with names, gradients included, at random sizes: bit for bit the same programs
//! traced with the numbers.

use crate::options;
use crate::support::dice::Dice;
use tracecast::prelude::*;
use tracecast_ir::ops::view::cat;
use tracecast_ir::{Values, eval::Value};

/// How many programs there are, and at how many sizes each is run.
const PROGRAMS: u64 = 1000;
const ROUNDS: usize = 5;

/// How many other programs are compiled to machine code, unless `TRACECAST_RANDOM_PROGRAMS` says
/// another number.
const COMPILED: u64 = 150;

/// What a program does next, on values by their numbers in the order of making.
#[derive(Clone, Debug)]
enum Step {
    Unary(usize, usize),
    Binary(usize, usize, usize),
    Reduce(usize, usize, Vec<i64>, bool),
    Softmax(usize, i64),
    Reshape(usize, Vec<Size>),
    Transpose(usize),
    Slice(usize, i64, Size, Size),
    Cat(usize, usize, i64),
    Pad(usize, usize, Size, Size),
    Expand(usize, Size),
    Product(usize, usize),
    Count(usize, Size),
    Norm(usize),
}

/// Records a step; sizes are those that `size` makes of the names.
fn record<'t>(t: &'t Trace, step: &Step, made: &[Var<'t>], size: &dyn Fn(Size) -> Size) -> Var<'t> {
    match step {
        Step::Unary(kind, x) => match kind {
            0 => made[*x].tanh(),
            1 => made[*x].relu(),
            2 => made[*x] * 0.5,
            _ => made[*x].exp().rsqrt(),
        },
        Step::Binary(0, x, y) => made[*x] + made[*y],
        Step::Binary(1, x, y) => made[*x] - made[*y],
        Step::Binary(_, x, y) => made[*x] * made[*y],
        Step::Reduce(0, x, dim, keep) => made[*x].sum(dim.kept(*keep)),
        Step::Reduce(1, x, dim, keep) => made[*x].mean(dim.kept(*keep)),
        Step::Reduce(_, x, dim, keep) => made[*x].amax(dim.kept(*keep)),
        Step::Softmax(x, dim) => made[*x].softmax(*dim),
        Step::Reshape(x, sizes) => {
            made[*x].reshape(&sizes.iter().map(|n| size(*n)).collect::<Vec<Size>>())
        }
        Step::Transpose(x) => made[*x].t(),
        Step::Slice(x, axis, start, end) => made[*x].slice(*axis, size(*start), size(*end), 1),
        Step::Cat(x, y, axis) => cat(&[made[*x], made[*y]], *axis),
        Step::Pad(x, axis, low, high) => {
            let at = |n: &Size| {
                (0..made[*x].rank()).map(|i| if i == *axis { size(*n) } else { 0.into() }).collect()
            };
            let (low, high): (Vec<Size>, Vec<Size>) = (at(low), at(high));
            made[*x].pad(&low, &high, 1.0)
        }
        Step::Expand(x, n) => {
            let own = made[*x].shape();
            made[*x].expand(&[size(*n)].into_iter().chain(own.iter().copied()).collect::<Vec<_>>())
        }
        Step::Product(x, y) => made[*x].matmul(made[*y]),
        Step::Count(x, n) => made[*x] * t.number(size(*n) + 1, DType::F32).rsqrt(),
        Step::Norm(x) => {
            let last = made[*x].size(made[*x].rank() - 1);
            made[*x].layer_norm(None, None, [last], 1e-3).results()[0]
        }
    }
}

/// A step that fits the values so far whatever names are worth.
fn drawn(dice: &mut Dice, made: &[Var<'_>], names: [Size; 2]) -> Option<Step> {
    let x = dice.below(made.len());
    let (shape, rank) = (made[x].shape(), made[x].rank());
    let axis = dice.below(rank.max(1));
    let other = |dice: &mut Dice, fits: &dyn Fn(&Shape) -> bool| {
        let from = dice.below(made.len());
        (0..made.len()).map(|i| (from + i) % made.len()).find(|y| fits(&made[*y].shape()))
    };
    Some(match dice.below(14) {
        0 => Step::Unary(dice.below(4), x),
        1 | 2 => {
            let y = other(dice, &|other| *other != shape && shape.broadcast(other).is_ok());
            Step::Binary(dice.below(3), x, y.unwrap_or(x))
        }
        3 if rank > 0 => Step::Reduce(dice.below(3), x, vec![axis as i64], dice.chance(50)),
        4 => Step::Reduce(dice.below(2), x, vec![], false),
        5 if rank > 0 => Step::Softmax(x, axis as i64),
        6 if rank == 2 => Step::Reshape(x, vec![shape[0] * shape[1]]),
        6 if rank == 3 => Step::Reshape(x, vec![shape[0], shape[1] * shape[2]]),
        7 if rank >= 2 => Step::Transpose(x),
        8 if rank > 0 => {
            let (half, all) = (shape[axis] / 2, shape[axis]);
            let (start, end) = if dice.chance(50) { (0.into(), half) } else { (half, all) };
            Step::Slice(x, axis as i64, start, end)
        }
        9 if rank > 0 => Step::Cat(x, x, axis as i64),
        10 if rank > 0 => Step::Pad(x, axis, dice.pick(&names), dice.below(3).into()),
        11 if rank < 3 => Step::Expand(x, dice.pick(&names)),
        12 if rank >= 2 => {
            let inner = shape[rank - 1];
            let y = other(dice, &|other| other.rank() == 2 && other[0] == inner)?;
            Step::Product(x, y)
        }
        13 if rank > 0 => match dice.below(2) {
            0 => Step::Count(x, shape[axis]),
            _ => Step::Norm(x),
        },
        _ => return None,
    })
}

/// Records inputs, steps, a loss and its gradients. Steps that are not given are drawn.
fn program(
    t: &Trace,
    names: [Size; 2],
    steps: &mut Vec<Step>,
    dice: Option<&mut Dice>,
    size: &dyn Fn(Size) -> Size,
) {
    let ty = |shape: &[Size]| TensorType::new(DType::F32, shape);
    let [n, m] = names.map(size);
    let x = t.input_of("x", ty(&[n, m]));
    let y = t.input_of("y", ty(&[m]));
    let w = t.param_of("w", ty(&[3.into(), 1.into()]));
    let mut made = vec![x, y, w, w * y];
    if let Some(dice) = dice {
        while steps.len() < 9 {
            let few = |v: &Var<'_>| {
                let count = t.tracer().with_graph(|graph| graph.sizes().hint(v.ty().numel()));
                count.is_ok_and(|count| count < 3000)
            };
            let Some(step) = drawn(dice, &made, names) else { continue };
            let next = record(t, &step, &made, size);
            if few(&next) {
                made.push(next);
                steps.push(step);
            }
        }
    } else {
        for step in steps.iter() {
            made.push(record(t, step, &made, size));
        }
    }
    let last = &made[made.len().saturating_sub(3)..];
    let loss = last.iter().map(|v| v.sum(())).reduce(|a, b| a + b).unwrap();
    let [dx, dw] = t.grad(loss, &[x, w])[..] else { panic!("two gradients") };
    t.output("dx", dx);
    t.update(w, w - dw * 0.25);
    for (i, v) in last.iter().enumerate() {
        t.output(&format!("v{i}"), *v);
    }
}

fn tensor(dice: &mut Dice, shape: &[usize]) -> Tensor {
    let numbers = (0..shape.iter().product()).map(|_| dice.unit() as f32);
    Tensor::new(shape, &numbers.collect::<Vec<f32>>()).unwrap()
}

/// The first difference that is more than the sign of a zero: an axis of size 1 that is written is
/// not summed, one that is a name is.
fn difference(found: &Value, wanted: &Value) -> Option<usize> {
    if found.ty != wanted.ty {
        return Some(0);
    }
    let alike =
        |(a, b): (f64, f64)| a.to_bits() == b.to_bits() || a == b || a.is_nan() && b.is_nan();
    let mut pairs = found.to_f64s().into_iter().zip(wanted.to_f64s());
    pairs.position(|pair| !alike(pair))
}

#[test]
fn random_programs_with_names_are_those_with_numbers() {
    each_program(0..PROGRAMS, |_| options());
}

/// The code of the CPU for classes of sizes, on every kind of vectors.
#[test]
#[cfg(feature = "cpu")]
fn compiled_code_serves_all_sizes() {
    use tracecast::Vectors;
    let vectors = [Vectors::Native, Vectors::Avx2, Vectors::Portable];
    let of = |seed: u64| Options::new().threads(1).vectors(vectors[seed as usize % 3]);
    let asked =
        std::env::var("TRACECAST_RANDOM_PROGRAMS").ok().map(|number| number.parse().unwrap());
    each_program(PROGRAMS..PROGRAMS + asked.unwrap_or(COMPILED), of);
}

/// Runs programs with names at several sizes, and compares them with the same programs with numbers
/// on the device that interprets.
fn each_program(seeds: std::ops::Range<u64>, options_of: impl Fn(u64) -> Options) {
    let programs = (seeds.end - seeds.start) as usize;
    let (mut compared, mut guarded, mut steps_seen) = (0, 0, 0);
    for seed in seeds {
        let mut dice = Dice::new(seed * 7919 + 5);
        let mut steps = Vec::new();
        let named = trace("named", |t| {
            let names = [t.size_at("n", 0..=64, 5), t.size_at("m", 0..=64, 4)];
            program(t, names, &mut steps, Some(&mut dice), &|size| size);
        });
        let named = named.unwrap_or_else(|e| panic!("{seed}: {e}\n{steps:?}"));
        steps_seen += steps.len();
        let program_of_all = compile_sized(named, &options_of(seed));
        let program_of_all = program_of_all.unwrap_or_else(|e| panic!("{seed}: {e}\n{steps:?}"));
        let (served, kernels) = program_of_all.served();
        assert_eq!(served, kernels, "{seed}: every kernel takes names");
        for round in 0..ROUNDS {
            let sizes = match round {
                0 => [1, 1 + dice.below(7)],
                1 => [dice.below(2) * 3, dice.below(3)],
                _ => [1 + dice.below(7), 1 + dice.below(7)],
            };
            let (x, y) = (tensor(&mut dice, &sizes), tensor(&mut dice, &sizes[1..]));
            let w = tensor(&mut dice, &[3, 1]);
            let given = [("x", &x), ("y", &y)];
            let mut store = Store::new().with("w", w.clone());
            let found = match program_of_all.run(&mut store, &given) {
                Ok(found) => found,
                Err(error) => {
                    assert!(error.to_string().contains("the program needs"), "{seed}: {error}");
                    guarded += 1;
                    continue;
                }
            };
            let names = [("n", sizes[0] as i64), ("m", sizes[1] as i64)];
            let values = Values::from_iter(names);
            let number = |size: Size| Size::from(size.at(&|name| values.get(name)).unwrap());
            let numbers = trace("numbers", |t| {
                program(t, ["n", "m"].map(Size::named), &mut steps, None, &number);
            });
            let numbers = numbers.unwrap_or_else(|e| panic!("{seed} at {values}: {e}\n{steps:?}"));
            let numbers = compile(numbers, &options()).unwrap();
            let mut wanted_store = Store::new().with("w", w);
            let wanted = numbers.run(&mut wanted_store, &given).unwrap();
            for (name, value) in wanted.iter() {
                let at = difference(found[name].value(), value.value());
                assert_eq!(at, None, "{seed}: {name} at {values}\n{steps:?}");
            }
            let [a, b] = [&store, &wanted_store].map(|store| store.get("w").unwrap());
            assert_eq!(difference(a.value(), b.value()), None, "{seed}: w at {values}\n{steps:?}");
            compared += 1;
        }
    }
    let all = programs * ROUNDS;
    assert!(compared > all / 2 && guarded > all / 50, "{compared} compared, {guarded} guarded");
    assert!(steps_seen == 9 * programs);
}
