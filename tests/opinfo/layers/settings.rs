//! What a layer was made with, found by name or by position.

use crate::arguments::{integers, number};
use crate::cases::{Arg, Argument, Case, Layer};
use std::cell::RefCell;
use tracecast::{DType, Tensor};

/// The arguments of a constructor.
pub(crate) struct Settings<'c> {
    list: &'c [Argument],
    /// The dtype of parameters.
    pub(crate) dtype: DType,
    asked: RefCell<Vec<bool>>,
}

impl<'c> Settings<'c> {
    pub(crate) fn new(case: &Case, layer: &'c Layer) -> Self {
        let dtype = case.entry().1.parse().unwrap_or(DType::F32);
        let list = &layer.constructor[..];
        Settings { list, dtype, asked: RefCell::new(vec![false; list.len()]) }
    }

    /// The argument of that name, or the one at that position if it has none.
    fn get(&self, at: usize, name: &str) -> Option<&'c Arg> {
        let named = self.list.iter().position(|given| given.name.as_deref() == Some(name));
        let placed = self.list.get(at).filter(|given| given.name.is_none()).map(|_| at);
        let at = named.or(placed)?;
        self.asked.borrow_mut()[at] = true;
        Some(&self.list[at].is).filter(|arg| !matches!(arg, Arg::None))
    }

    /// What is wrong if an argument was not asked for.
    pub(crate) fn left(&self) -> Option<String> {
        let asked = self.asked.borrow();
        let at = self
            .list
            .iter()
            .zip(asked.iter())
            .position(|(given, asked)| !asked && !matches!(given.is, Arg::None))?;
        Some(match &self.list[at].name {
            Some(name) => format!("the layer has no setting `{name}`"),
            None => format!("the layer has no setting {at}"),
        })
    }

    /// Whether there is such an argument, if only None.
    pub(crate) fn given(&self, at: usize, name: &str) -> bool {
        let is_named = self.list.iter().any(|given| given.name.as_deref() == Some(name));
        is_named || self.list.get(at).is_some_and(|given| given.name.is_none())
    }

    pub(crate) fn float(&self, at: usize, name: &str) -> Result<Option<f64>, String> {
        let read = |arg| number(arg).ok_or_else(|| format!("takes a number `{name}`"));
        self.get(at, name).map(read).transpose()
    }

    pub(crate) fn int(&self, at: usize, name: &str) -> Result<Option<i64>, String> {
        let read = |arg: &Arg| match arg {
            Arg::Int(n) => Ok(*n),
            _ => Err(format!("takes an integer `{name}`")),
        };
        self.get(at, name).map(read).transpose()
    }

    /// An integer that has to be given, and is no less than zero.
    pub(crate) fn size(&self, at: usize, name: &str) -> Result<usize, String> {
        let given = self.int(at, name)?.and_then(|n| usize::try_from(n).ok());
        given.ok_or_else(|| format!("takes a size `{name}`"))
    }

    pub(crate) fn ints(&self, at: usize, name: &str) -> Result<Option<Vec<i64>>, String> {
        let read = |arg| integers(arg).ok_or_else(|| format!("takes integers `{name}`"));
        self.get(at, name).map(read).transpose()
    }

    /// Integers, of which some may be None.
    pub(crate) fn opt_ints(
        &self,
        at: usize,
        name: &str,
    ) -> Result<Option<Vec<Option<i64>>>, String> {
        let one = |arg: &Arg| match arg {
            Arg::Int(n) => Ok(Some(*n)),
            Arg::None => Ok(None),
            _ => Err(format!("takes integers `{name}`")),
        };
        let read = |arg: &Arg| match arg {
            Arg::List(list) | Arg::Tuple(list) => list.iter().map(one).collect(),
            arg => one(arg).map(|n| vec![n]),
        };
        self.get(at, name).map(read).transpose()
    }

    pub(crate) fn flag(&self, at: usize, name: &str, absent: bool) -> Result<bool, String> {
        match self.get(at, name) {
            None => Ok(absent),
            Some(Arg::Bool(b)) => Ok(*b),
            Some(_) => Err(format!("takes true or false for `{name}`")),
        }
    }

    pub(crate) fn text(&self, at: usize, name: &str) -> Result<Option<&'c str>, String> {
        match self.get(at, name) {
            None => Ok(None),
            Some(Arg::Text(text)) => Ok(Some(text)),
            Some(_) => Err(format!("takes a text `{name}`")),
        }
    }

    pub(crate) fn tensor(&self, at: usize, name: &str) -> Result<Option<Tensor>, String> {
        match self.get(at, name) {
            None => Ok(None),
            Some(Arg::Tensor(value)) => {
                let tensor = Tensor::from_bytes(value.ty.clone(), value.bytes.clone());
                tensor.map(Some).map_err(|error| error.to_string())
            }
            Some(_) => Err(format!("takes a tensor `{name}`")),
        }
    }
}
