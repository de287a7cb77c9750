//! [`Entry`]: what a part of a program keeps in the store, and how it starts.

use crate::error::Result;
use tracecast_ir::kernel::philox::{random_bits, uniform_f32};
use tracecast_ir::{Role, TensorType};
use tracecast_runtime::{Store, Tensor};

/// A parameter or other state: its name in the store, its type, what it is for, and how it starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The name, with dots between the parts of a module path.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// [`Role::Param`] if it is trained, [`Role::State`] if not.
    pub role: Role,
    /// How it starts.
    pub start: Start,
    shared: bool,
}

/// How an entry of the store starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Start {
    /// Every element is this number.
    Constant(f64),
    /// Independent, evenly distributed between these bounds.
    Uniform(f64, f64),
    /// Independent, normally distributed with this mean and this standard deviation.
    Normal(f64, f64),
    /// These numbers, converted to the dtype of the entry.
    Given(Tensor),
    /// As another start, but the row at this position of the first axis is zero.
    ExceptRow(usize, Box<Start>),
    /// The state of the random number generator: the seed and the step number 0.
    Seed,
}

impl Entry {
    /// A trained parameter.
    pub fn param(name: impl Into<String>, ty: TensorType, start: Start) -> Self {
        Entry { name: name.into(), ty, role: Role::Param, start, shared: false }
    }

    /// Other state.
    pub fn state(name: impl Into<String>, ty: TensorType, start: Start) -> Self {
        Entry { name: name.into(), ty, role: Role::State, start, shared: false }
    }

    /// The same entry, which keeps its name wherever the module is that has it.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Whether another entry stands for the same state: both are shared, and equal.
    pub(crate) fn is_one_with(&self, other: &Entry) -> bool {
        self.shared && self == other
    }

    /// The same entry as state that is not trained.
    #[must_use]
    pub fn frozen(mut self) -> Self {
        self.role = Role::State;
        self
    }

    /// The same entry of a module that is called `path` in another one.
    #[must_use]
    pub fn under(mut self, path: &str) -> Self {
        if !self.shared && !path.is_empty() {
            self.name = format!("{path}.{}", self.name);
        }
        self
    }

    /// The value it starts with. Equal names and seeds give equal values.
    ///
    /// # Errors
    /// If no tensor has its type.
    pub fn tensor(&self, seed: u64) -> Result<Tensor> {
        self.started(&self.start, seed)
    }

    fn started(&self, start: &Start, seed: u64) -> Result<Tensor> {
        let ty = self.ty.clone();
        Ok(match start {
            Start::Constant(v) => Tensor::full(ty, *v)?,
            Start::Uniform(low, high) => {
                Tensor::from_fn(ty, |i| low + (high - low) * self.uniform(seed, i as u64))?
            }
            Start::Normal(mean, deviation) => {
                Tensor::from_fn(ty, |i| mean + deviation * self.normal(seed, i as u64))?
            }
            Start::Given(numbers) => numbers.cast(ty.dtype)?.reshape(ty.shape)?,
            Start::ExceptRow(row, other) => {
                let numbers = self.started(other, seed)?.to_f64s();
                let sizes = ty.shape.numbers();
                let width: usize = sizes.iter().skip(1).product();
                let is_zero = |i: usize| i.checked_div(width) == Some(*row);
                Tensor::from_fn(ty, |i| if is_zero(i) { 0.0 } else { numbers[i] })?
            }
            Start::Seed => Tensor::new([2], &[seed as i64, 0])?,
        })
    }

    /// Puts the value it starts with into a store, in the place of another one.
    ///
    /// # Errors
    /// If no tensor has its type.
    pub fn put(&self, store: &mut Store, seed: u64) -> Result<()> {
        store.insert(&self.name, self.tensor(seed)?);
        Ok(())
    }

    /// The number of the entry among all random ones: a hash of its name.
    fn stream(&self) -> u32 {
        self.name
            .bytes()
            .fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    }

    fn uniform(&self, seed: u64, element: u64) -> f64 {
        f64::from(uniform_f32(random_bits(seed as i64, 0, self.stream(), element)))
    }

    /// Two even numbers make one normal one, by the transform of Box and Muller.
    fn normal(&self, seed: u64, element: u64) -> f64 {
        let (radius, angle) =
            (1.0 - self.uniform(seed, 2 * element), self.uniform(seed, 2 * element + 1));
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracecast_ir::DType;

    fn numbers(entry: &Entry, seed: u64) -> Vec<f32> {
        entry.tensor(seed).unwrap().to_vec::<f32>().unwrap()
    }

    #[test]
    fn starts_are_reproducible_and_differ_by_name() {
        let entry =
            |name: &str, start| Entry::param(name, TensorType::new(DType::F32, [1000]), start);
        let a = numbers(&entry("a", Start::Uniform(-0.5, 0.5)), 1);
        assert_eq!(a, numbers(&entry("a", Start::Uniform(-0.5, 0.5)), 1));
        assert_ne!(a, numbers(&entry("a", Start::Uniform(-0.5, 0.5)), 2));
        assert_ne!(a, numbers(&entry("b", Start::Uniform(-0.5, 0.5)), 1));
        assert!(a.iter().all(|v| (-0.5..0.5).contains(v)));
        let normal = numbers(&entry("a", Start::Normal(1.0, 2.0)), 3);
        let mean = normal.iter().sum::<f32>() / 1000.0;
        let variance = normal.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / 1000.0;
        assert!((mean - 1.0).abs() < 0.2 && (variance - 4.0).abs() < 0.6, "{mean} {variance}");
    }

    #[test]
    fn types_without_tensors_are_refused() {
        for start in [Start::Constant(1.0), Start::Uniform(0.0, 1.0), Start::Normal(0.0, 1.0)] {
            for sizes in [[usize::MAX, usize::MAX], [1 << 53, 1]] {
                let ty = TensorType::new(DType::F32, sizes);
                assert!(Entry::param("vast", ty, start.clone()).tensor(0).is_err());
            }
        }
    }

    #[test]
    fn names_grow_from_the_inside() {
        let entry = Entry::param("weight", TensorType::scalar(DType::F32), Start::Constant(0.0));
        assert_eq!(entry.clone().under("fc").under("0").name, "0.fc.weight");
        assert_eq!(entry.shared().under("fc").name, "weight");
    }
}
