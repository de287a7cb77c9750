//! [`Memory`]: the versions of tensors that are written to, and of the views that share their
//! elements.
//!
//! This is PyTorch's functionalisation. A tensor is a storage and a path of views. A write puts the
//! new value of a view back through its path, which gives the storage a new version; reading a
//! tensor of an older version rematerialises it from the storage.

use crate::argument::Argument;
use crate::call::{Bound, Given, Operator};
use crate::table::Draws;
use std::cell::RefCell;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{Tracer, Var};

/// A tensor of a [`Memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held(usize);

/// The tensors of a program.
pub struct Memory<'t> {
    tracer: &'t Tracer,
    tensors: RefCell<Vec<Tensor<'t>>>,
    storages: RefCell<Vec<Storage<'t>>>,
}

#[derive(Clone)]
struct Tensor<'t> {
    value: Var<'t>,
    version: usize,
    storage: usize,
    /// From the whole storage to this tensor.
    path: Vec<View>,
}

/// A view of the tensor before it in a path.
#[derive(Clone)]
struct View {
    operator: Operator,
    /// Its arguments, of which the first is the tensor before it.
    bound: Bound<Held>,
    /// Which of the results it is.
    result: usize,
}

struct Storage<'t> {
    value: Var<'t>,
    version: usize,
    /// Storages that may be this one.
    doubtful: Vec<usize>,
    /// Why what is here may not be what PyTorch would read.
    lost: Option<String>,
}

impl<'t> Memory<'t> {
    /// No tensors.
    pub fn new(tracer: &'t Tracer) -> Self {
        Memory { tracer, tensors: RefCell::default(), storages: RefCell::default() }
    }

    /// A tensor with a storage of its own.
    pub fn own(&self, value: Var<'t>) -> Held {
        let mut storages = self.storages.borrow_mut();
        storages.push(Storage { value, version: 0, doubtful: Vec::new(), lost: None });
        let storage = storages.len() - 1;
        self.hold(Tensor { value, version: 0, storage, path: Vec::new() })
    }

    fn hold(&self, tensor: Tensor<'t>) -> Held {
        let mut tensors = self.tensors.borrow_mut();
        tensors.push(tensor);
        Held(tensors.len() - 1)
    }

    /// The value that a tensor has now.
    ///
    /// # Errors
    /// If it may or may not share memory with one that was written to since.
    pub fn read(&self, held: Held) -> Result<Var<'t>, String> {
        let mut tensor = self.tensors.borrow()[held.0].clone();
        let (value, version) = {
            let storage = &self.storages.borrow()[tensor.storage];
            if let Some(why) = &storage.lost {
                return Err(why.clone());
            }
            (storage.value, storage.version)
        };
        if tensor.version == version {
            return Ok(tensor.value);
        }
        tensor.value = self.along(&tensor.path, value)?.last().copied().unwrap_or(value);
        tensor.version = version;
        let value = tensor.value;
        self.tensors.borrow_mut()[held.0] = tensor;
        Ok(value)
    }

    /// The values behind each view of a path.
    fn along(&self, path: &[View], from: Var<'t>) -> Result<Vec<Var<'t>>, String> {
        let mut value = from;
        let step = |view: &View| {
            let mut bound = self.read_all(&view.bound, 1)?;
            bound.arguments[0] = Argument::Tensor(value);
            let results = view.operator.record_bound(self.tracer, &bound, &Draws::none())?;
            value = *results.tensors().get(view.result).ok_or("has fewer results than before")?;
            Ok(value)
        };
        path.iter().map(step).collect()
    }

    /// The values of all tensors among arguments but for the first `skipped` arguments, which are
    /// left out.
    fn read_all(&self, bound: &Bound<Held>, skipped: usize) -> Result<Bound<Var<'t>>, String> {
        let read = &mut |held: &Held| self.read(*held);
        let each = bound.arguments.iter().enumerate().map(|(at, argument)| match at {
            at if at < skipped => Ok(Argument::None),
            _ => argument.map(read),
        });
        let arguments = each.collect::<Result<Vec<_>, String>>()?;
        let out = bound.out.iter().map(|(name, to)| Ok((name.clone(), to.map(read)?)));
        Ok(Bound { arguments, out: out.collect::<Result<_, String>>()? })
    }

    /// Gives a tensor a new value, which everything sees that shares its elements.
    ///
    /// # Errors
    /// If it is a view that cannot be written through.
    pub fn write(&self, held: Held, value: Var<'t>) -> Result<(), String> {
        self.read(held)?;
        let tensor = self.tensors.borrow()[held.0].clone();
        let whole = self.storages.borrow()[tensor.storage].value;
        let along = self.along(&tensor.path, whole)?;
        let mut new = value;
        for (at, view) in tensor.path.iter().enumerate().rev() {
            let before = if at == 0 { whole } else { along[at - 1] };
            new = self.put_back(view, before, new)?;
        }
        let mut storages = self.storages.borrow_mut();
        let storage = &mut storages[tensor.storage];
        storage.value = new;
        storage.version += 1;
        let version = storage.version;
        for other in std::mem::take(&mut storage.doubtful) {
            let why = "may share memory with a tensor that was written to since, which its strides do not tell";
            storages[other].lost = Some(why.to_owned());
        }
        let mut tensors = self.tensors.borrow_mut();
        (tensors[held.0].value, tensors[held.0].version) = (value, version);
        Ok(())
    }

    /// The tensor before a view, with `value` in the place of what the view sees.
    fn put_back(&self, view: &View, before: Var<'t>, value: Var<'t>) -> Result<Var<'t>, String> {
        let name = view.operator.schema().name.as_str();
        let bound = self.read_all(&view.bound, 1)?;
        let int = |at: usize| match bound.arguments.get(at) {
            Some(Argument::Int(n)) => Ok(*n),
            _ => Err(format!("cannot be written through: `{name}` has no plain arguments")),
        };
        let some = |at: usize| int(at).ok();
        let list = |at: usize| match bound.arguments.get(at) {
            Some(Argument::List(list)) => list
                .iter()
                .map(|one| match one {
                    Argument::Int(n) => Ok(*n),
                    _ => Err(format!("cannot be written through: `{name}` has no plain arguments")),
                })
                .collect::<Result<Vec<i64>, String>>(),
            _ => int(at).map(|n| vec![n]),
        };
        Ok(match name.split('.').next().unwrap_or(name) {
            "alias" | "detach" | "contiguous" | "to" | "type_as" | "positive" | "lift_fresh"
            | "dropout" => value,
            "view" | "reshape" | "view_as" | "reshape_as" | "squeeze" | "unsqueeze" | "flatten"
            | "unflatten" | "ravel" | "atleast_1d" | "atleast_2d" | "atleast_3d" => {
                value.reshape(&before.shape())
            }
            "transpose" => value.transpose(int(1)?, int(2)?),
            "t" | "numpy_T" => value.permute((0..value.rank() as i64).rev().collect::<Vec<_>>()),
            "mT" => value.m_t(),
            "permute" => {
                let rank = before.rank() as i64;
                let dims: Vec<i64> = list(1)?
                    .into_iter()
                    .map(|dim| if dim < 0 { dim + rank } else { dim })
                    .collect();
                let place = |axis| dims.iter().position(|dim| *dim == axis).unwrap_or(0) as i64;
                value.permute((0..rank).map(place).collect::<Vec<_>>())
            }
            "movedim" => value.movedim(&list(2)?, &list(1)?),
            "select" => before.select_scatter(value, int(1)?, int(2)?),
            "slice" => before.slice_scatter(value, int(1)?, some(2), some(3), int(4)?),
            "narrow" => before.slice_scatter(
                value,
                int(1)?,
                some(2),
                Some(int(2)?.saturating_add(int(3)?)),
                1,
            ),
            "diagonal" => before.diagonal_scatter(value, int(1)?, int(2)?, int(3)?),
            "unbind" => before.select_scatter(value, int(1)?, view.result as i64),
            "split" | "split_with_sizes" | "chunk" => {
                let dim = int(2)?;
                let axis = before.shape().axis(dim)?;
                let own = view.operator.record_bound(
                    self.tracer,
                    &with_first(&bound, before),
                    &Draws::none(),
                )?;
                let sizes: Option<Vec<i64>> =
                    own.tensors().iter().map(|part| part.size(axis).number()).collect();
                let sizes = sizes.ok_or("cannot be written through: sizes are names")?;
                let start: i64 = sizes[..view.result].iter().sum();
                before.slice_scatter(value, dim, Some(start), Some(start + sizes[view.result]), 1)
            }
            other => {
                return Err(format!(
                    "writes to a tensor seen through `{other}`, which repeats elements or skips some"
                ));
            }
        })
    }

    /// Records a call on tensors of this memory. `doubts` says of a result that may be a view or a
    /// copy which it is, if that is known.
    ///
    /// # Errors
    /// As [`Operator::record`], or a write that cannot be followed.
    pub fn call(
        &self,
        operator: &Operator,
        given: &[Given<'_, Held>],
        draws: &Draws<'_, 't>,
        doubts: &dyn Fn() -> Option<bool>,
    ) -> Result<Vec<Argument<Held>>, String> {
        let bound = operator.bind(given)?;
        let values = self.read_all(&bound, 0)?;
        let recorded = operator.record_bound(self.tracer, &values, draws)?;
        for (name, value) in &recorded.writes {
            self.write(target(operator, &bound, name)?, *value)?;
        }
        // A call in place gives back what it wrote to.
        if operator.is_in_place() {
            return Ok(bound.arguments.into_iter().take(1).collect());
        }
        if !bound.out.is_empty() {
            return Ok(bound.out.into_iter().map(|(_, to)| to).collect());
        }
        let source = match bound.arguments.first() {
            Some(Argument::Tensor(held)) => Some(*held),
            _ => None,
        };
        let count = recorded.results.len();
        let results = recorded.results.iter().enumerate().map(|(result, value)| {
            value.map(&mut |value: &Var<'t>| {
                let kind = source.map_or(Kind::Copy, |source| {
                    self.kind(operator, &values, source, *value, count, doubts)
                });
                Ok::<_, String>(match (kind, source) {
                    (Kind::View, Some(source)) => {
                        let view = View { operator: *operator, bound: bound.clone(), result };
                        self.seen(source, view, *value)
                    }
                    (Kind::Doubtful, Some(source)) => {
                        let held = self.own(*value);
                        self.doubt(source, held);
                        held
                    }
                    _ => self.own(*value),
                })
            })
        });
        results.collect()
    }

    fn seen(&self, source: Held, view: View, value: Var<'t>) -> Held {
        let mut tensor = self.tensors.borrow()[source.0].clone();
        tensor.path.push(view);
        tensor.value = value;
        self.hold(tensor)
    }

    fn doubt(&self, source: Held, held: Held) {
        let [a, b] = [source, held].map(|held| self.tensors.borrow()[held.0].storage);
        let mut storages = self.storages.borrow_mut();
        storages[a].doubtful.push(b);
        storages[b].doubtful.push(a);
    }

    /// Whether a result shares memory with the first argument.
    fn kind(
        &self,
        operator: &Operator,
        values: &Bound<Var<'t>>,
        source: Held,
        result: Var<'t>,
        count: usize,
        doubts: &dyn Fn() -> Option<bool>,
    ) -> Kind {
        let schema = operator.schema();
        let same = self.tensors.borrow()[source.0].value.id() == result.id();
        let or_copy = |view: bool| if view { Kind::View } else { Kind::Copy };
        match schema.name.split('.').next().unwrap_or_default() {
            "dropout" | "alpha_dropout" | "feature_dropout" | "feature_alpha_dropout" => {
                or_copy(same)
            }
            "to" | "type_as" => {
                let copies = schema.position("copy").and_then(|at| values.arguments.get(at));
                or_copy(same && !matches!(copies, Some(Argument::Bool(true))))
            }
            "contiguous" | "reshape" | "reshape_as" | "flatten" | "ravel" if count == 1 => {
                doubts().map_or(Kind::Doubtful, or_copy)
            }
            _ => or_copy(schema.is_view),
        }
    }
}

/// What a result is of the first argument.
enum Kind {
    View,
    Copy,
    Doubtful,
}

fn with_first<'t>(bound: &Bound<Var<'t>>, first: Var<'t>) -> Bound<Var<'t>> {
    let mut bound = bound.clone();
    bound.arguments[0] = Argument::Tensor(first);
    bound
}

/// The tensor that a call writes to under this name.
fn target(operator: &Operator, bound: &Bound<Held>, name: &str) -> Result<Held, String> {
    let own = operator.schema().position(name).map(|at| &bound.arguments[at]);
    let out = || bound.out.iter().find(|(out, _)| out == name).map(|(_, to)| to);
    match own.or_else(out) {
        Some(Argument::Tensor(held)) => Ok(*held),
        _ => Err(format!("takes a tensor to write to as `{name}`")),
    }
}
