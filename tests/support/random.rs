//! Random well-typed programs.

use super::dice::Dice;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::ops::view;
use tracecast_ir::policy::{DeviceType, Region};
use tracecast_ir::{DType, Graph, Role, TensorType, Tracer, ValueId, Var};

/// A random program of about `ops` ops. Indices are inputs named `index…`, to be filled with
/// numbers below [`INDEX_LIMIT`].
pub(crate) fn program(seed: u64, ops: usize) -> Graph {
    drawn(&mut Dice::new(seed), seed, ops)
}

/// The program that the dice make; errors name the seed.
pub(crate) fn drawn(dice: &mut Dice, seed: u64, ops: usize) -> Graph {
    let tracer = Tracer::new("random");
    {
        let t = &tracer;
        let mut pool: Vec<Var<'_>> = Vec::new();
        let rng =
            t.port("rng", TensorType::new(DType::I64, [2]), Role::State, false, DeviceType::Cpu);
        let shapes = shapes(dice);
        let low = [Some(DType::BF16), Some(DType::F16), None, None][dice.below(4)];
        let mut region = region(low, 1);
        for i in 0..3 + dice.below(3) {
            let any = [
                DType::F32,
                DType::F32,
                DType::F32,
                DType::BF16,
                DType::F16,
                DType::F64,
                DType::I64,
                DType::I32,
                DType::U8,
                DType::Bool,
            ];
            let dtype = in_region(dice.pick(&any), low);
            let role = if dtype.is_float() && dice.chance(40) { Role::Param } else { Role::Input };
            let shape = &shapes[dice.below(shapes.len())];
            pool.push(t.port(
                &format!("x{i}"),
                TensorType::new(dtype, &shape[..]),
                role,
                false,
                DeviceType::Cpu,
            ));
        }
        let mut budget = ops;
        for attempt in 0..ops * 6 {
            if budget == 0 {
                break;
            }
            if let (Some(low), true) = (low, dice.chance(5)) {
                region = moved_on(dice, low, region);
            }
            let added = t.in_region(&region, || step(dice, t, &pool, rng, (attempt, low)));
            let Some(v) = added else { continue };
            assert!(t.error().is_none(), "seed {seed}: {}", t.error().expect("there is one"));
            if v.shape().checked_numel().is_some_and(|n| n <= 20_000) {
                pool.push(v);
                budget -= 1;
            }
        }
        if dice.chance(50) {
            gradients(dice, t, &pool);
        }
        for i in 0..2 + dice.below(3) {
            let from = pool.len() - 1 - dice.below((pool.len() - 1).min(6));
            t.output(&format!("y{i}"), pool[from]);
        }
    }
    tracer.finish().unwrap_or_else(|e| panic!("seed {seed}: {e}"))
}

/// Indices are below this.
pub(crate) const INDEX_LIMIT: usize = 3;

/// Autocast refuses to promote the other 16-bit float of a region.
fn in_region(dtype: DType, low: Option<DType>) -> DType {
    low.filter(|_| dtype.is_low()).unwrap_or(dtype)
}

fn shapes(dice: &mut Dice) -> Vec<Vec<usize>> {
    let sizes = [1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 40];
    let (a, b, c) = (dice.pick(&sizes), dice.pick(&sizes), dice.pick(&[2, 3, 4, 5]));
    let mut all =
        vec![vec![a, b], vec![b], vec![a, b], vec![c, a, b], vec![], vec![a, 1], vec![b, a]];
    if dice.chance(10) {
        all.push(vec![dice.pick(&[130, 257, 1030]), b]);
    }
    if dice.chance(5) {
        all.push(vec![0, b]);
    }
    all
}

/// Autocast on the CPU with that dtype, if there is one.
pub(crate) fn region(low: Option<DType>, scope: u32) -> Region {
    low.map_or_else(Region::default, |low| {
        let (region, _) = Region::default()
            .enter(DeviceType::Cpu, Some(low), true, None)
            .expect("the cpu takes both");
        region.with_scope(scope)
    })
}

/// The region left for another one, for an island without autocast, back from there, or with the
/// cache switched.
pub(crate) fn moved_on(dice: &mut Dice, low: DType, from: Region) -> Region {
    match dice.below(4) {
        0 => region(Some(low), from.scope() + 1),
        1 => from.off(),
        2 => from.with_device(DeviceType::Cpu, true, low),
        _ => {
            let cache = !from.cache();
            from.with_cache(cache)
        }
    }
}

/// The gradients of one of the last values with respect to every float from outside, and sometimes
/// the gradients of those.
fn gradients(dice: &mut Dice, t: &Tracer, pool: &[Var<'_>]) {
    let floats: Vec<_> = pool.iter().copied().filter(|v| v.dtype().is_float()).collect();
    let ports: Vec<_> = t.with_graph(|g| g.ports().iter().map(|p| p.node).collect());
    let wrt: Vec<_> = ports
        .into_iter()
        .map(|node| t.var(ValueId { node, result: 0 }))
        .filter(|v| v.dtype().is_float())
        .collect();
    if floats.is_empty() || wrt.is_empty() {
        return;
    }
    let loss = floats[floats.len() - 1 - dice.below(floats.len().min(4))].sum(());
    let first = t.grad(loss, &wrt);
    if dice.chance(10) {
        let of = first[dice.below(first.len())].sum(());
        for (i, g) in t.grad(of, &wrt).into_iter().enumerate() {
            t.output(&format!("h{i}"), g);
        }
    }
    for (i, g) in first.into_iter().enumerate() {
        t.output(&format!("g{i}"), g);
    }
}

/// One more value, if the dice find operands that fit.
fn step<'t>(
    dice: &mut Dice,
    t: &'t Tracer,
    pool: &[Var<'t>],
    rng: Var<'t>,
    (serial, low): (usize, Option<DType>),
) -> Option<Var<'t>> {
    let x = pool[if dice.chance(50) {
        pool.len() - 1 - dice.below(pool.len().min(3))
    } else {
        dice.below(pool.len())
    }];
    let float = x.dtype().is_float();
    match dice.below(13) {
        0 | 1 if float => Some(unary(dice, x)),
        2 | 3 => binary(dice, pool, x),
        4 => views(dice, x),
        5 => reduction(dice, x),
        6 if float => product(dice, t, x),
        7 if float && x.rank() > 0 => Some(rows(dice, t, x, serial)),
        8 => {
            let to = dice.pick(&[
                DType::F32,
                DType::BF16,
                DType::F16,
                DType::F64,
                DType::I32,
                DType::Bool,
            ]);
            Some(x.cast(in_region(to, low)))
        }
        9 if float => chosen(dice, pool, x),
        10 => indexed(dice, t, x, serial),
        11 if float && dice.chance(40) => Some(x.dropout(rng, 0.25, i64::from(t.next_stream()))),
        12 if float && x.rank() >= 2 => Some(attention(dice, t, x, (rng, serial))),
        _ => None,
    }
}

fn unary<'t>(dice: &mut Dice, x: Var<'t>) -> Var<'t> {
    match dice.below(13) {
        0 => x.exp(),
        1 => x.abs().add(0.5).log(),
        2 => x.abs().sqrt(),
        3 => x.tanh(),
        4 => x.erf(),
        5 => x.sigmoid(),
        6 => x.relu(),
        7 => x.gelu(dice.pick(&[None, Some("tanh")])),
        8 => x.mul(0.3),
        9 => -x,
        10 => x.rsub(1.0),
        11 if !x.dtype().is_low() => x.round_to(dice.pick(&[DType::BF16, DType::F16])),
        _ => x.abs().add(0.1).rsqrt(),
    }
}

fn binary<'t>(dice: &mut Dice, pool: &[Var<'t>], x: Var<'t>) -> Option<Var<'t>> {
    let y = *pool
        .iter()
        .rev()
        .skip(dice.below(pool.len()))
        .find(|y| y.shape().broadcast(&x.shape()).is_ok())?;
    let numbers = x.dtype() != DType::Bool && y.dtype() != DType::Bool;
    let floats = x.dtype().is_float() || y.dtype().is_float();
    match dice.below(9) {
        0 | 1 if numbers => Some(x.add(y)),
        2 if numbers => Some(x.sub(y)),
        3 | 4 if numbers => Some(x.mul(y)),
        5 if numbers && floats => Some(x.div(y)),
        6 if numbers => Some(x.maximum(y)),
        7 if numbers => Some(x.lt(y)),
        _ => Some(x.eq(y)),
    }
}

fn chosen<'t>(dice: &mut Dice, pool: &[Var<'t>], x: Var<'t>) -> Option<Var<'t>> {
    let y = *pool
        .iter()
        .rev()
        .skip(dice.below(pool.len()))
        .find(|y| y.dtype().is_float() && y.shape().broadcast(&x.shape()).is_ok())?;
    Some(x.gt(0.0).choose(x, y))
}

fn views<'t>(dice: &mut Dice, x: Var<'t>) -> Option<Var<'t>> {
    let shape = x.shape().numbers();
    let rank = shape.len();
    match dice.below(7) {
        0 => Some(x.reshape([-1])).filter(|_| x.ty().numel() != 0),
        1 if rank >= 2 => Some(x.t()),
        2 if rank >= 1 && shape[0] > 1 => Some(x.slice(0, 1, shape[0], dice.pick(&[1, 1, 2]))),
        3 if rank == 2 && x.ty().numel() != 0 => Some(x.reshape([shape[1], shape[0]])),
        4 if rank >= 1 => Some(view::cat(&[x, x], dice.below(rank) as i64)),
        5 if rank >= 1 => {
            let low: Vec<i64> = (0..rank).map(|_| dice.below(3) as i64).collect();
            let high: Vec<i64> = (0..rank).map(|_| dice.below(2) as i64).collect();
            Some(x.pad(&low, &high, dice.pick(&[0.0, 1.0])))
        }
        _ if rank < 3 => {
            let mut sizes = shape.to_vec();
            sizes.insert(0, 3);
            Some(x.expand(&sizes[..]))
        }
        _ => None,
    }
}

fn reduction<'t>(dice: &mut Dice, x: Var<'t>) -> Option<Var<'t>> {
    let rank = x.rank();
    let dim: Vec<i64> = match dice.below(3) {
        0 => vec![],
        1 if rank > 0 => vec![-1],
        _ if rank > 0 => vec![dice.below(rank) as i64],
        _ => vec![],
    };
    let keep = dice.chance(50);
    let solid = x.ty().numel() != 0;
    match dice.below(4) {
        0 => Some(x.sum((&dim).kept(keep))),
        1 if x.dtype().is_float() && solid => Some(x.mean((&dim).kept(keep))),
        2 if x.dtype() != DType::Bool && solid => Some(x.amax((&dim).kept(keep))),
        3 if x.dtype() != DType::Bool && solid && rank > 0 => {
            Some(x.argmax([dice.below(rank) as i64].kept(keep)))
        }
        _ => None,
    }
}

/// A product with a weight. Weights of one type are one weight, used several times.
fn product<'t>(dice: &mut Dice, t: &'t Tracer, x: Var<'t>) -> Option<Var<'t>> {
    let shape = x.shape();
    let inner = shape.last()?.get();
    let out = dice.pick(&[1, 3, 10, 33, inner, inner]);
    let dtype = x.dtype();
    if dice.chance(60) {
        let w = t.param(&format!("w_{out}_{inner}_{dtype}"), TensorType::new(dtype, [out, inner]));
        let b = dice
            .chance(50)
            .then(|| t.param(&format!("b_{out}_{dtype}"), TensorType::new(dtype, [out])));
        return Some(x.linear(w, b));
    }
    let w = t.input(&format!("m_{inner}_{out}_{dtype}"), TensorType::new(dtype, [inner, out]));
    Some(x.matmul(w))
}

fn rows<'t>(dice: &mut Dice, t: &'t Tracer, x: Var<'t>, serial: usize) -> Var<'t> {
    let (shape, dtype) = (x.shape().numbers(), x.dtype());
    let n = shape[shape.len() - 1];
    match dice.below(4) {
        0 if n > 0 => x.softmax(dice.pick(&[-1, 0])),
        1 if n > 0 => x.log_softmax(-1),
        2 if n > 0 && shape.len() == 2 && shape[0] > 0 => {
            let target =
                t.input(&format!("index{serial}"), TensorType::new(DType::I64, [shape[0]]));
            if n < INDEX_LIMIT {
                x.softmax(-1)
            } else {
                x.cross_entropy_loss(target, None, None, None, None)
            }
        }
        _ => {
            let w = t.param(&format!("gamma_{n}_{dtype}"), TensorType::new(dtype, [n]));
            x.layer_norm(w, None, [n], 1e-5)
        }
    }
}

/// Attention of queries to themselves or to keys and values from outside, under its own name or
/// that of PyTorch's kernel.
fn attention<'t>(
    dice: &mut Dice,
    t: &'t Tracer,
    x: Var<'t>,
    (rng, serial): (Var<'t>, usize),
) -> Var<'t> {
    let (shape, dtype) = (x.shape().numbers(), x.dtype());
    let (lead, [queries, width]) =
        (&shape[..shape.len() - 2], [2, 1].map(|i| shape[shape.len() - i]));
    let keys = dice.pick(&[1, 2, 5, 17, queries]);
    let port = |name: &str, dtype: DType, last: [usize; 2]| {
        let whole: Vec<usize> = lead.iter().copied().chain(last).collect();
        let [rows, columns] = last;
        let name =
            format!("{name}_{lead:?}_{rows}_{columns}_{dtype}").replace(['[', ']', ',', ' '], "x");
        t.param(&name, TensorType::new(dtype, &whole[..]))
    };
    let [k, v] = match dice.below(3) {
        0 => [x, x],
        _ => ["k", "v"].map(|name| port(name, dtype, [keys, width])),
    };
    let mask = match dice.below(4) {
        0 => {
            let ty = TensorType::new(DType::Bool, [queries, k.size(k.rank() - 2).get()]);
            Some(t.input(&format!("seen{serial}"), ty))
        }
        1 => Some(port("mask", dtype, [queries, k.size(k.rank() - 2).get()])),
        _ => None,
    };
    let causal = mask.is_none() && dice.chance(50);
    if shape.len() == 3 && dice.chance(30) {
        let [q, k, v] = [x, k, v].map(|x| x.unsqueeze(0));
        let (y, lse) = q.scaled_dot_product_flash_attention_for_cpu(k, v, mask, causal, None);
        let y = if dice.chance(50) { y.mul(lse.unsqueeze(3)).to(dtype) } else { y };
        return y.squeeze(&[0]);
    }
    let (p, rng) = if dice.chance(30) { (0.25, Some(rng)) } else { (0.0, None) };
    let stream = i64::from(rng.map_or(0, |_| t.next_stream()));
    let scale = dice.pick(&[None, Some(0.5)]);
    x.scaled_dot_product_attention(k, v, mask, rng, p, causal, scale, false, stream)
}

fn indexed<'t>(dice: &mut Dice, t: &'t Tracer, x: Var<'t>, serial: usize) -> Option<Var<'t>> {
    let shape = x.shape().numbers();
    if shape.is_empty() || shape[0] < INDEX_LIMIT || shape.contains(&0) {
        return None;
    }
    let rows = dice.pick(&[1, 4, 9]);
    if shape.len() == 2 && x.dtype().is_float() && dice.chance(50) {
        let index = t.input(&format!("index{serial}"), TensorType::new(DType::I64, [rows]));
        return Some(x.embedding(index));
    }
    let mut sizes: Vec<usize> = shape.to_vec();
    sizes[0] = rows;
    let index = t.input(
        &format!("index{serial}"),
        TensorType::new(dice.pick(&[DType::I64, DType::I32]), &sizes[..]),
    );
    if x.dtype() == DType::Bool || dice.chance(50) {
        return Some(x.gather(index, 0));
    }
    Some(x.scatter_add(index, x.gather(index, 0), 0))
}
