//! Contractions: products of two factors summed over an inner axis, and what becomes of the sums.

use super::loops::{
    Grouping, Joins, Loops, Operands, column_accumulator, numbers, scalar, sizes_of_loads,
    sizes_of_stores,
};
use crate::Size;
use crate::kernel::build;
use crate::kernel::code::Code;
use crate::kernel::cost::{Reads, arithmetic, of_stage, product};
use crate::kernel::interpret::reduce::{Column, column, finish, kept_place};
use crate::kernel::interpret::scalar::{Bits, write};
use crate::kernel::interpret::{Failed, Machine, Stopped, each_position, malformed, of, room};
use crate::kernel::{
    Body, Inst, Kernel, Load, Reduction, Scalar, ScalarOp, Sink, Stage, Val, math,
};
use std::fmt::{self, Formatter, Write};

pub(super) const GROUPING: Grouping = Grouping {
    joins: Joins::Epilogue,
    operands: Operands::InOwnOrder { why: "a contraction packs it from memory" },
    domain: |graph, node| &graph.node(node).results[0].shape,
    build: build::contract,
};

/// `C[b.., i, j] = epilogue(Σ_p A[b.., i, p] * B[b.., p, j])`, accumulated in f32 (f64 for f64).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contract {
    /// Sizes of the batch axes.
    pub batch: Vec<Size>,
    /// Rows of the result.
    pub m: Size,
    /// Columns of the result.
    pub n: Size,
    /// The summed axis.
    pub k: Size,
    /// The accumulator: f32 or f64.
    pub acc: Scalar,
    /// The left operand, over the axes (batch.., i, p).
    pub a: Factor,
    /// The right operand, over the axes (batch.., p, j).
    pub b: Factor,
    /// What `epilogue` loads, over the axes (batch.., i, j).
    pub loads: Vec<Load>,
    /// Takes [`ScalarOp::Acc`] to [`Sink::Store`], [`Sink::Column`] and [`Sink::Largest`]; axes
    /// (batch.., i, j).
    pub epilogue: Stage,
}

/// An operand of a contraction: what is multiplied, computed from loads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Factor {
    /// What the body loads; `input` is the kernel's input.
    pub loads: Vec<Load>,
    /// The scalar code; for a plain operand a single `Load`.
    pub body: Body,
    /// Its result, of the accumulator's type.
    pub value: Val,
    /// The axes that its rows and its columns are made of, if these are not one axis each: loads
    /// and body are over (batch.., rows.., columns..).
    pub split: Option<Split>,
}

/// Axes in the place of one: rows and columns of a factor are counted row-major through them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Split {
    /// Those of the rows.
    pub rows: Vec<Size>,
    /// Those of the columns.
    pub columns: Vec<Size>,
}

impl Split {
    /// The names of the axes in text, where rows and columns have these.
    fn names(&self, [rows, columns]: [&str; 2]) -> Vec<String> {
        let named = |name: &str, count: usize| -> Vec<String> {
            match count {
                1 => vec![name.to_owned()],
                _ => (0..count).map(|i| format!("{name}{i}")).collect(),
            }
        };
        [named(rows, self.rows.len()), named(columns, self.columns.len())].concat()
    }
}

impl Factor {
    /// The sizes of its axes behind those of the batch, if it has that number of rows and columns.
    pub fn axes(&self, [rows, columns]: [Size; 2]) -> Vec<Size> {
        match &self.split {
            Some(split) => split.rows.iter().chain(&split.columns).copied().collect(),
            None => vec![rows, columns],
        }
    }

    /// The load, if the factor is one operand read in place, widened or rounded to the values of a
    /// 16-bit float; and which float that is.
    pub fn in_memory(&self) -> Option<(&Load, Option<crate::DType>)> {
        self.from_one_load().filter(|(l, _)| l.access.guards.is_empty() && self.split.is_none())
    }

    /// As [`in_memory`](Factor::in_memory), also if rows or columns are several axes, or if the
    /// operand ends before the loops do and there are zeros beyond it.
    pub fn from_one_load(&self) -> Option<(&Load, Option<crate::DType>)> {
        match self.body.insts.as_slice() {
            [Inst { op: ScalarOp::Load(l), .. }, Inst { op: ScalarOp::Round(to), .. }]
                if self.value == 1 =>
            {
                Some((&self.loads[*l as usize], Some(*to)))
            }
            [Inst { op: ScalarOp::Load(l), .. }] => Some((&self.loads[*l as usize], None)),
            _ => None,
        }
        .filter(|(l, _)| l.access.indirect.is_empty() && l.access.fill == 0)
    }
}

impl Loops for Contract {
    fn name(&self) -> &'static str {
        "contraction"
    }

    fn evaluate(
        &self,
        _: &Kernel,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<Failed, Stopped> {
        let c = self;
        let axes = c.batch.len();
        let mut run = Run::new(c, inputs)?;
        let mut values = Vec::new();
        let [m, n, k] = [c.m, c.n, c.k].map(Size::get);
        each_position(&numbers(&c.batch), |batch| {
            let machine = &mut run.machine;
            machine.position[..axes].copy_from_slice(batch);
            let a = factor(machine, &c.a, axes, &numbers(&c.a.axes([c.m, c.k])))?;
            let b = factor(machine, &c.b, axes, &numbers(&c.b.axes([c.k, c.n])))?;
            for i in 0..m {
                for j in 0..n {
                    let machine = &mut run.machine;
                    machine.position.truncate(axes);
                    machine.position.extend([i as i64, j as i64]);
                    let left = &a[i * k..(i + 1) * k];
                    machine.acc = match c.acc {
                        Scalar::F32 => dot_f32(left, &b, j, n),
                        Scalar::F64 => dot_f64(left, &b, j, n),
                        _ => return Err(malformed("a contraction accumulates floats")),
                    };
                    machine.run(&c.epilogue.body, &c.loads, &mut values)?;
                    run.sinks(&values, outputs)?;
                }
            }
            Ok(())
        })?;
        run.finish(outputs)?;
        Ok(run.machine.failed)
    }

    fn cost(&self, _: &Kernel, reads: &mut Reads) -> u64 {
        let Contract { batch, m, n, k, a, b, loads, epilogue, .. } = self;
        let over = |ends: Vec<Size>| numbers(&[batch.as_slice(), &ends].concat());
        let (over_a, over_b) = (over(a.axes([*m, *k])), over(b.axes([*k, *n])));
        a.loads.iter().for_each(|load| reads.add(load, load.input, &over_a));
        b.loads.iter().for_each(|load| reads.add(load, load.input, &over_b));
        let over_results = over(vec![*m, *n]);
        loads.iter().for_each(|load| reads.add(load, load.input, &over_results));
        let results = product(&over_results);
        let factors = arithmetic(&a.body)
            .saturating_mul(product(&over_a))
            .saturating_add(arithmetic(&b.body).saturating_mul(product(&over_b)));
        let each = (2 * k.get() as u64).saturating_add(of_stage(epilogue));
        results.saturating_mul(each).saturating_add(factors)
    }

    fn show(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Contract { batch, m, n, k, acc, a, b, loads, epilogue } = self;
        let axes = |rest: &[&str]| -> Vec<String> {
            let batch = (0..batch.len()).map(|i| format!("b{i}"));
            batch.chain(rest.iter().map(|&s| s.to_owned())).collect()
        };
        f.write_str("  loop ")?;
        for (i, extent) in batch.iter().enumerate() {
            write!(f, "b{i} {extent}, ")?;
        }
        writeln!(f, "i {m}, j {n}\n  reduce p {k} in {}", acc.name())?;
        for (factor, letter, ends) in [(a, 'a', ["i", "p"]), (b, 'b', ["p", "j"])] {
            let own = match &factor.split {
                None => ends.map(str::to_owned).to_vec(),
                Some(split) => split.names(ends),
            };
            show_factor(f, factor, letter, [axes(&[]), own].concat())?;
        }
        let code =
            Code { axes: axes(&["i", "j"]), loads, inputs: None, outputs: None, letter: 's' };
        f.write_str("  epilogue\n")?;
        code.body(f, &epilogue.body, true)?;
        epilogue.sinks.iter().try_for_each(|sink| code.sink(f, sink, true))
    }

    fn accumulators(&self, _: &Kernel, found: &mut dyn FnMut(&str, Scalar, Scalar)) {
        for factor in [&self.a, &self.b] {
            if let Some(term) = scalar(&factor.body, factor.value) {
                found("a product", self.acc, term);
            }
        }
        let stage = &self.epilogue;
        stage.sinks.iter().for_each(|sink| column_accumulator(stage, sink, found));
    }

    fn each_size(&mut self, each: &mut dyn FnMut(&mut Size)) {
        self.batch.iter_mut().for_each(&mut *each);
        [&mut self.m, &mut self.n, &mut self.k].into_iter().for_each(&mut *each);
        for split in [&mut self.a, &mut self.b].into_iter().filter_map(|f| f.split.as_mut()) {
            split.rows.iter_mut().chain(&mut split.columns).for_each(&mut *each);
        }
        for loads in [&mut self.a.loads, &mut self.b.loads, &mut self.loads] {
            sizes_of_loads(loads, each);
        }
        sizes_of_stores(&mut self.epilogue, each);
    }

    fn each_body(&mut self, each: &mut dyn FnMut(&mut Body)) {
        [&mut self.a.body, &mut self.b.body, &mut self.epilogue.body].into_iter().for_each(each);
    }
}

fn show_factor(
    f: &mut Formatter<'_>,
    factor: &Factor,
    letter: char,
    axes: Vec<String>,
) -> fmt::Result {
    write!(f, "  factor {letter} = {letter}{}", factor.value)?;
    if let Some(split) = &factor.split {
        let own = axes[axes.len() - split.rows.len() - split.columns.len()..].iter();
        let sizes = split.rows.iter().chain(&split.columns);
        let own: Vec<String> =
            own.zip(sizes).map(|(name, size)| format!("{name} {size}")).collect();
        write!(f, " over {}", own.join(", "))?;
    }
    f.write_char('\n')?;
    Code { axes, loads: &factor.loads, inputs: None, outputs: None, letter }.body(
        f,
        &factor.body,
        true,
    )
}

/// A run of a contraction's epilogue.
struct Run<'a> {
    c: &'a Contract,
    machine: Machine<'a>,
    /// Sizes of the axes of the result.
    extents: Vec<usize>,
    /// For each sink, the largest value so far; zero for other sinks.
    largest: Vec<Bits>,
    /// For each sink, what has come down each column, row-major over the kept axes; nothing for
    /// other sinks.
    columns: Vec<Vec<Column>>,
}

impl<'a> Run<'a> {
    fn new(c: &'a Contract, inputs: &'a [&'a [u8]]) -> Result<Self, Stopped> {
        let extents: Vec<usize> =
            c.batch.iter().copied().chain([c.m, c.n]).map(Size::get).collect();
        let (body, sinks) = (&c.epilogue.body, &c.epilogue.sinks);
        let columns = sinks
            .iter()
            .map(|sink| Ok(column(body, sink, &extents)?.unwrap_or_default()))
            .collect::<Result<_, Stopped>>()?;
        let (machine, largest) = (Machine::new(inputs, extents.len()), vec![0; sinks.len()]);
        Ok(Run { c, machine, largest, columns, extents })
    }

    /// What becomes of the results at one position.
    fn sinks(&mut self, values: &[Bits], outputs: &mut [&mut [u8]]) -> Result<(), Stopped> {
        let body = &self.c.epilogue.body;
        for (number, sink) in self.c.epilogue.sinks.iter().enumerate() {
            match sink {
                Sink::Store { output, dtype, access, value } => {
                    let at = self
                        .machine
                        .place(access, &[], &[])
                        .ok_or_else(|| malformed("a store is guarded"))?;
                    let to = outputs.get_mut(*output).ok_or_else(|| malformed("no such output"))?;
                    write(to, *dtype, at, body.ty(*value), of(values, *value)?)
                        .ok_or_else(|| malformed("a store is outside of its output"))?;
                }
                Sink::Largest { value, .. } => {
                    let largest = &mut self.largest[number];
                    *largest =
                        Reduction::Max.combine(body.ty(*value), *largest, of(values, *value)?);
                }
                Sink::Column { value, kept, .. } => {
                    let at = kept_place(&self.extents, &self.machine.position, kept);
                    self.columns[number][at].push(of(values, *value)?);
                }
                Sink::Reduce { .. } | Sink::Keep { .. } | Sink::Set { .. } => {
                    return Err(malformed("an epilogue does what only rows can do"));
                }
            }
        }
        Ok(())
    }

    /// Stores what is known after the last position.
    fn finish(&self, outputs: &mut [&mut [u8]]) -> Result<(), Stopped> {
        for (number, sink) in self.c.epilogue.sinks.iter().enumerate() {
            let (output, dtype, value) = match sink {
                Sink::Largest { value, output } => {
                    (output, self.c.epilogue.body.ty(*value).dtype(), value)
                }
                Sink::Column { value, output, dtype, .. } => (output, *dtype, value),
                Sink::Store { .. } | Sink::Reduce { .. } | Sink::Keep { .. } | Sink::Set { .. } => {
                    continue;
                }
            };
            let ty = self.c.epilogue.body.ty(*value);
            let to = outputs.get_mut(*output).ok_or_else(|| malformed("no such output"))?;
            if let Sink::Largest { .. } = sink {
                write(to, dtype, 0, ty, self.largest[number])
                    .ok_or_else(|| malformed("an output is too small"))?;
            } else {
                finish(to, (dtype, ty), self.columns[number].iter())?;
            }
        }
        Ok(())
    }
}

/// All elements of a factor in one batch, row-major.
fn factor(
    machine: &mut Machine<'_>,
    factor: &Factor,
    axes: usize,
    sizes: &[usize],
) -> Result<Vec<Bits>, Stopped> {
    let mut all = room(usize::try_from(product(sizes)).unwrap_or(usize::MAX))?;
    let mut values = Vec::new();
    each_position(sizes, |position| {
        machine.position.truncate(axes);
        machine.position.extend_from_slice(position);
        machine.run(&factor.body, &factor.loads, &mut values)?;
        all.push(of(&values, factor.value)?);
        Ok(())
    })?;
    Ok(all)
}

macro_rules! dot {
    ($name:ident, $ty:ident, $word:ident, $fma:path) => {
        /// A row of the left factor by column `j` of the right one, in blocks.
        fn $name(left: &[Bits], right: &[Bits], j: usize, n: usize) -> Bits {
            let at = |b: Bits| $ty::from_bits(b as $word);
            let block = |(number, block): (usize, &[Bits])| {
                let first = number * math::CONTRACT_BLOCK;
                let term = |acc: $ty, (p, a): (usize, &Bits)| {
                    $fma(at(*a), at(right[(first + p) * n + j]), acc)
                };
                block.iter().enumerate().fold(0.0, term)
            };
            let blocks = left.chunks(math::CONTRACT_BLOCK).enumerate().map(block);
            Bits::from(blocks.reduce(|a, b| a + b).unwrap_or(0.0).to_bits())
        }
    };
}

dot!(dot_f32, f32, u32, math::fma);
dot!(dot_f64, f64, u64, f64::mul_add);
