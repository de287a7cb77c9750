//! [`Outputs`]: what a run gives.

use crate::error::{Error, Result};
use crate::tensor::Tensor;
use smallvec::SmallVec;
use std::fmt;
use std::ops::Index;
use std::sync::Arc;

/// The named results of a run, in the order of the program.
#[derive(Clone, PartialEq)]
pub struct Outputs {
    names: Arc<[String]>,
    values: Values,
}

/// Results in the order of the program; few need no memory of their own.
pub(crate) type Values = SmallVec<[Tensor; 8]>;

impl Outputs {
    pub(crate) fn new(names: Arc<[String]>, values: Values) -> Self {
        Outputs { names, values }
    }

    /// The same with each result replaced.
    ///
    /// # Errors
    /// The first error of `result`.
    pub(crate) fn map(
        self,
        mut result: impl FnMut(usize, Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        let values = self.values.into_iter().enumerate().map(|(at, value)| result(at, value));
        Ok(Outputs { names: self.names, values: values.collect::<Result<_>>()? })
    }

    /// Names and results.
    pub(crate) fn into_parts(self) -> (Arc<[String]>, Values) {
        (self.names, self.values)
    }

    /// The result of that name.
    ///
    /// # Errors
    /// If there is none.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        self.find(name).ok_or_else(|| {
            Error::Tensor(format!("no output `{name}`: expected one of {}", self.names.join(", ")))
        })
    }

    /// The result of that name, if there is one.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        let at = self.names.iter().position(|n| n == name)?;
        self.values.get(at)
    }

    /// Names and results, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.names.iter().map(String::as_str).zip(&self.values)
    }

    /// The number of results.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

/// # Panics
/// If there is no result of that name; see [`Outputs::get`].
impl Index<&str> for Outputs {
    type Output = Tensor;

    fn index(&self, name: &str) -> &Tensor {
        self.get(name).expect("the program has an output of that name")
    }
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
