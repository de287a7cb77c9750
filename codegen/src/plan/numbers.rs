//! Numbers for sizes: [`Numbers`] computes what expressions are for the sizes of a binding, and
//! [`SizeTable`] lists those that compiled code reads.
//!
//! Code finds a size that is a number as an immediate. The others are in memory in front of its
//! table of addresses, each as eight bytes, the first of them closest:
//!
//! ```text
//!   … | third | second | first | address 0 | address 1 | …
//!                              ^ slots
//! ```

use super::{Place, Plan, Sink, Strides};
use tracecast_ir::kernel::{Access, Inst, Kernel, Scalar, ScalarOp, argument_bits};
use tracecast_ir::{Number, Size, Values};

/// What sizes are in a binding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers<'v>(&'v Values);

impl<'v> Numbers<'v> {
    /// For names of these values.
    pub(crate) fn new(values: &'v Values) -> Self {
        Numbers(values)
    }

    /// An offset or a stride.
    ///
    /// # Errors
    /// If a name has no value, or the number leaves 63 bits.
    pub(crate) fn number(&self, size: Size) -> Result<i64, String> {
        match size.number() {
            Some(number) => Ok(number),
            None => size.at(&|name| self.0.get(name)),
        }
    }

    /// How many there are of something.
    ///
    /// # Errors
    /// As [`number`](Numbers::number), and if it is negative.
    pub(crate) fn count(&self, size: Size) -> Result<usize, String> {
        let number = self.number(size)?;
        usize::try_from(number).map_err(|_| format!("{size} is {number}"))
    }

    /// The bits of an argument of a kernel as a number of that type. A NaN has no payload: vector
    /// loops that round to bf16 count on that.
    ///
    /// # Errors
    /// As [`number`](Numbers::number), and if there is no such argument.
    pub(crate) fn argument(&self, kernel: &Kernel, at: u32, ty: Scalar) -> Result<u64, String> {
        let number = match kernel.arguments.get(at as usize) {
            Some(Number::Size(size)) => Some(Number::Size(self.number(*size)?.into())),
            Some(Number::Ratio(by, size)) => Some(Number::Ratio(*by, self.number(*size)?.into())),
            known => known.copied(),
        };
        let quiet = |bits: u64| match ty {
            Scalar::F32 if f32::from_bits(bits as u32).is_nan() => u64::from(f32::NAN.to_bits()),
            Scalar::F64 if f64::from_bits(bits).is_nan() => f64::NAN.to_bits(),
            _ => bits,
        };
        let bits = number.and_then(|number| argument_bits(number, ty)).map(quiet);
        bits.ok_or_else(|| format!("there is no argument {at}"))
    }

    /// Several numbers.
    ///
    /// # Errors
    /// As [`number`](Numbers::number).
    pub(crate) fn numbers(&self, sizes: &[Size]) -> Result<Vec<i64>, String> {
        sizes.iter().map(|size| self.number(*size)).collect()
    }
}

/// Something that compiled code reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Entry {
    /// An expression of names.
    Size(Size),
    /// An argument of the kernel, as a number of that type.
    Argument(u32, Scalar),
}

/// What the functions of a kernel read of the sizes of a binding, each once.
#[derive(Clone, Debug, Default)]
pub(crate) struct SizeTable(Vec<Entry>);

impl SizeTable {
    /// All sizes and arguments of some plans that depend on names.
    pub(crate) fn of(plans: &[Plan]) -> SizeTable {
        let mut table = SizeTable::default();
        plans.iter().for_each(|plan| table.collect(plan));
        table
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The number of an entry.
    pub(crate) fn position(&self, entry: Entry) -> Option<usize> {
        self.0.iter().position(|known| *known == entry)
    }

    /// The bits of every entry in a binding of the kernel.
    ///
    /// # Errors
    /// As [`Numbers::number`].
    pub(crate) fn bits(&self, kernel: &Kernel, sizes: &Numbers<'_>) -> Result<Vec<u64>, String> {
        let bits = |entry: &Entry| match *entry {
            Entry::Size(size) => sizes.number(size).map(|number| number as u64),
            Entry::Argument(number, ty) => sizes.argument(kernel, number, ty),
        };
        self.0.iter().map(bits).collect()
    }

    fn add(&mut self, entry: Entry) {
        if self.position(entry).is_none() {
            self.0.push(entry);
        }
    }

    fn size(&mut self, size: Size) {
        if size.has_names() {
            self.add(Entry::Size(size));
        }
    }

    fn sizes(&mut self, sizes: &[Size]) {
        sizes.iter().for_each(|size| self.size(*size));
    }

    fn access(&mut self, access: &Access) {
        let Access { offset, strides, indirect, guards, fill: _ } = access;
        self.size(*offset);
        self.sizes(strides);
        self.sizes(indirect);
        for guard in guards {
            self.size(guard.offset);
            self.sizes(&guard.strides);
            self.size(guard.extent);
        }
    }

    fn collect(&mut self, plan: &Plan) {
        self.sizes(&plan.extents);
        for load in &plan.loads {
            self.size(load.elements);
            if let Place::At(access) = &load.place {
                self.access(access);
            }
        }
        for position in &plan.positions {
            self.size(position.offset);
            self.sizes(&position.strides);
        }
        plan.strided.iter().for_each(|rows| self.access(&rows.access));
        for stage in &plan.stages {
            let insts = &stage.body.insts;
            for Inst { op, ty, .. } in insts {
                if let ScalarOp::Argument(number) = op {
                    self.add(Entry::Argument(*number, *ty));
                }
            }
            stage.sinks.iter().for_each(|sink| self.sink(sink));
        }
    }

    fn sink(&mut self, sink: &Sink) {
        match sink {
            Sink::Store { place: Place::At(access), .. } => self.access(access),
            Sink::Combine { access, elements, .. } => {
                self.access(access);
                self.size(*elements);
            }
            Sink::Column { keep, count, size, .. } => {
                let both: [&Strides; 2] = [keep, count];
                both.into_iter().for_each(|strides| self.sizes(strides));
                self.size(*size);
            }
            Sink::Store { .. } | Sink::Reduce { .. } | Sink::Keep { .. } | Sink::Set { .. } => {}
        }
    }
}
