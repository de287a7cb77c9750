//! [`Entry`]: what a part of a program keeps in the store, and how it starts.

use crate::error::{Error, Result};
use std::fmt;
use std::sync::Arc;
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

/// How often a number is drawn again that has to lie between bounds.
const DRAWS: u64 = 1000;

/// How an entry of the store starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Start {
    /// Every element is this number.
    Constant(f64),
    /// Independent, evenly distributed between these bounds.
    Uniform(f64, f64),
    /// Independent, normally distributed with this mean and this standard deviation.
    Normal(f64, f64),
    /// As [`Normal`](Start::Normal), drawn again until the number lies between two bounds: mean,
    /// standard deviation, least, most.
    Truncated(f64, f64, f64, f64),
    /// Rows, or columns where there are more rows, of length `gain` that are at right angles to
    /// each other; axes but the first count as one.
    Orthogonal(f64),
    /// Normal with this standard deviation (the second number), but for a share of each column (the
    /// first) that is zero.
    Sparse(f64, f64),
    /// These numbers, converted to the dtype of the entry.
    Given(Tensor),
    /// The numbers that are read when they are wanted, converted to the dtype of the entry. The
    /// entry keeps no copy.
    Read(Reader),
    /// As another start, but the row at this position of the first axis is zero.
    ExceptRow(usize, Box<Start>),
    /// The state of the random number generator: the seed and the step number 0.
    Seed,
}

/// Where the first numbers of an entry are read, a file for example. Copies are equal; readers that
/// were made apart are not.
#[derive(Clone)]
pub struct Reader(Arc<dyn Fn() -> Result<Tensor> + Send + Sync>);

impl Reader {
    /// Calls `read` each time the numbers are wanted.
    pub fn new(read: impl Fn() -> Result<Tensor> + Send + Sync + 'static) -> Self {
        Reader(Arc::new(read))
    }
}

impl PartialEq for Reader {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reader")
    }
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
    /// If no tensor has its type, or its numbers cannot be read.
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
            Start::Truncated(_, _, low, high) if low.is_nan() || high.is_nan() || low > high => {
                let message = format!("`{}` has no number from {low} to {high}", self.name);
                return Err(Error::Option { option: "start", message });
            }
            &Start::Truncated(mean, deviation, low, high) => {
                // An element has numbers of its own to draw, which no other element sees.
                let count = ty.numel().number().and_then(|n| u64::try_from(n).ok()).unwrap_or(1);
                let number =
                    |i: u64, again| mean + deviation * self.normal(seed, i + again * count);
                let within =
                    |i| (0..DRAWS).map(|again| number(i, again)).find(|v| (low..=high).contains(v));
                Tensor::from_fn(ty, |i| within(i as u64).unwrap_or_else(|| mean.clamp(low, high)))?
            }
            &Start::Orthogonal(gain) => self.orthogonal(ty, gain, seed)?,
            &Start::Sparse(share, deviation) => self.sparse(ty, share, deviation, seed)?,
            Start::Given(numbers) => numbers.cast(ty.dtype)?.reshape(ty.shape)?,
            Start::Read(reader) => (reader.0)()?.cast(ty.dtype)?.reshape(ty.shape)?,
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
    /// As [`tensor`](Entry::tensor).
    pub fn put(&self, store: &mut Store, seed: u64) -> Result<()> {
        store.insert(&self.name, self.tensor(seed)?);
        Ok(())
    }

    /// Normal numbers made orthogonal one row after the other, each twice, which is as exact as it
    /// gets.
    fn orthogonal(&self, ty: TensorType, gain: f64, seed: u64) -> Result<Tensor> {
        Tensor::zeros(ty.clone())?;
        let sizes = ty.shape.numbers();
        let rows = sizes.first().copied().unwrap_or(1);
        let columns: usize = sizes.iter().skip(1).product();
        let (count, width) = (rows.min(columns), rows.max(columns));
        let mut basis: Vec<Vec<f64>> = Vec::new();
        for i in 0..count {
            let mut row: Vec<f64> =
                (0..width).map(|j| self.normal(seed, (i * width + j) as u64)).collect();
            for other in basis.iter().chain(&basis) {
                let along: f64 = row.iter().zip(other).map(|(a, b)| a * b).sum();
                row.iter_mut().zip(other).for_each(|(a, b)| *a -= along * b);
            }
            let length = row.iter().map(|a| a * a).sum::<f64>().sqrt();
            row.iter_mut().for_each(|a| *a /= length);
            basis.push(row);
        }
        let at = |i: usize| match (i.checked_div(columns), i.checked_rem(columns)) {
            (Some(row), Some(column)) if rows > columns => basis[column][row],
            (Some(row), Some(column)) => basis[row][column],
            _ => 0.0,
        };
        Tensor::from_fn(ty, |i| gain * at(i))
    }

    /// In each column the rows with the least of as many even numbers are zero.
    fn sparse(&self, ty: TensorType, share: f64, deviation: f64, seed: u64) -> Result<Tensor> {
        Tensor::zeros(ty.clone())?;
        let sizes = ty.shape.numbers();
        let rows = sizes.first().copied().unwrap_or(1);
        let columns: usize = sizes.iter().skip(1).product();
        let zeros = ((rows as f64 * share).ceil().max(0.0) as usize).min(rows);
        // Behind the numbers that the normal ones are made of.
        let behind = 2 * rows * columns;
        let mut is_zero = vec![false; rows * columns];
        for column in 0..columns {
            let lot = |row: usize| self.uniform(seed, (behind + row * columns + column) as u64);
            let mut order: Vec<(f64, usize)> = (0..rows).map(|row| (lot(row), row)).collect();
            order.sort_by(|a, b| a.0.total_cmp(&b.0));
            order.iter().take(zeros).for_each(|(_, row)| is_zero[row * columns + column] = true);
        }
        let number = |i: usize| deviation * self.normal(seed, i as u64);
        Tensor::from_fn(ty, |i| if is_zero[i] { 0.0 } else { number(i) })
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
    fn what_is_not_even_or_normal_is_what_it_is_called() {
        let entry =
            |start, sizes: &[usize]| Entry::param("a", TensorType::new(DType::F32, sizes), start);
        let cut = numbers(&entry(Start::Truncated(0.0, 1.0, -0.5, 1.0), &[1000]), 1);
        assert!(cut.iter().all(|v| (-0.5..=1.0).contains(v)));
        for sizes in [[3, 5], [5, 3]] {
            let rows = numbers(&entry(Start::Orthogonal(2.0), &sizes), 1);
            let column = |i: usize, k: usize| {
                if sizes[0] < sizes[1] { rows[i * 5 + k] } else { rows[k * 3 + i] }
            };
            for (i, j) in (0..3).flat_map(|i| (0..3).map(move |j| (i, j))) {
                let product: f32 = (0..5).map(|k| column(i, k) * column(j, k)).sum();
                assert!((product - if i == j { 4.0 } else { 0.0 }).abs() < 1e-5, "{product}");
            }
        }
        let sparse = numbers(&entry(Start::Sparse(0.3, 1.0), &[10, 4]), 1);
        let zeros = |column: usize| (0..10).filter(|row| sparse[row * 4 + column] == 0.0).count();
        assert_eq!([0, 1, 2, 3].map(zeros), [3; 4]);
        let rest = numbers(&entry(Start::ExceptRow(1, Box::new(Start::Constant(2.0))), &[3, 2]), 1);
        assert_eq!(rest, [2.0, 2.0, 0.0, 0.0, 2.0, 2.0]);
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
