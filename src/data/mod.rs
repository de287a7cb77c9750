//! [`Dataset`]: named tensors with a row for each example, to be shuffled, split and taken in
//! batches. Where the rows come from is the user's.

use crate::error::Result;
use std::fmt;
use std::ops::{Index, RangeBounds};
use tracecast_ir::kernel::philox::random_quad;
use tracecast_runtime::{Error, Tensor};

/// Tensors by name, each with one row for each example: the inputs of a run, of which any rows can
/// be taken.
///
/// ```
/// use tracecast::data::Dataset;
/// use tracecast::nn::Linear;
/// use tracecast::prelude::*;
///
/// let x = Tensor::rand([100, 3], 1)?;
/// let y = x.slice(1, 0..1)?;
/// let (train, test) = Dataset::new([("x", x), ("y", y)])?.shuffled(0).split_at(80)?;
///
/// let step = TrainStep::new(Linear::new(3, 1), |t, model| model.forward(t.input("x")).mean_squared_error(t.input("y")))
///     .optimizer(AdamW::new(0.1))
///     .build()?;
/// let mut store = Store::new();
/// step.init(&mut store, 0)?;
/// for epoch in 0..20 {
///     for batch in train.shuffled(epoch).batches(16)? {
///         step.run(&mut store, &batch.inputs())?;
///     }
/// }
///
/// let evaluate = step.evaluation(|t, model| t.output("error", model.forward(t.input("x")).mean_squared_error(t.input("y"))));
/// assert!(evaluate.run(&mut store, &test.inputs())?["error"].item::<f32>()? < 0.01);
/// # Ok::<(), tracecast::Error>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct Dataset {
    tensors: Vec<(String, Tensor)>,
    rows: usize,
}

impl Dataset {
    /// The examples that these tensors have along their first axes.
    ///
    /// # Errors
    /// If a tensor has no axis, another number of rows than the first one, or the name of another;
    /// if there is none.
    pub fn new<N: Into<String>>(tensors: impl IntoIterator<Item = (N, Tensor)>) -> Result<Self> {
        let tensors: Vec<(String, Tensor)> =
            tensors.into_iter().map(|(name, tensor)| (name.into(), tensor)).collect();
        let wrong = |message: String| Error::Tensor(format!("dataset: {message}"));
        let rows = |tensor: &Tensor| tensor.shape().numbers().first().copied();
        let mut first = None;
        for (i, (name, tensor)) in tensors.iter().enumerate() {
            let Some(found) = rows(tensor) else {
                return Err(wrong(format!("`{name}` is {} and has no rows", tensor.ty())));
            };
            if tensors[..i].iter().any(|(other, _)| other == name) {
                return Err(wrong(format!("`{name}` is given twice")));
            }
            let (of, expected) = *first.get_or_insert((name, found));
            if found != expected {
                let message = format!("`{name}` has {found} rows, `{of}` has {expected}");
                return Err(wrong(message));
            }
        }
        let Some((_, rows)) = first else {
            return Err(wrong("no tensors are given".to_owned()));
        };
        Ok(Dataset { tensors, rows })
    }

    /// The number of examples.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// True if there are no examples.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Names and tensors as a run takes them: `step.run(&mut store, &batch.inputs())`.
    pub fn inputs(&self) -> Vec<(&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect()
    }

    /// The tensor of that name, if there is one.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|(known, _)| known == name).map(|(_, tensor)| tensor)
    }

    /// The examples with these numbers, in this order; a number may stand there more than once.
    ///
    /// # Errors
    /// If there is no such example.
    pub fn select(&self, rows: &[usize]) -> Result<Self> {
        self.with(rows.len(), |tensor| tensor.select(rows))
    }

    /// The examples with numbers in a range.
    ///
    /// # Errors
    /// If the range does not lie within them.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let range = (range.start_bound().cloned(), range.end_bound().cloned());
        let parts = self.tensors.iter().map(|(name, x)| Ok((name.clone(), x.slice(0, range)?)));
        Dataset::new(parts.collect::<Result<Vec<_>>>()?)
    }

    /// The first `rows` examples, and the others.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn split_at(&self, rows: usize) -> Result<(Self, Self)> {
        Ok((self.slice(..rows)?, self.slice(rows..)?))
    }

    /// All examples in another order, which the seed decides: see [`permutation`]. With the number
    /// of the epoch as the seed each has its own.
    #[must_use]
    pub fn shuffled(&self, seed: u64) -> Self {
        let order = permutation(self.rows, seed);
        self.select(&order).expect("a permutation names rows that there are")
    }

    /// The examples in order, `size` at a time; the last batch has what is left, as in PyTorch's
    /// `DataLoader`.
    ///
    /// # Errors
    /// If `size` is 0.
    pub fn batches(&self, size: usize) -> Result<impl ExactSizeIterator<Item = Dataset>> {
        self.parts(size, self.rows)
    }

    /// As [`batches`](Dataset::batches) without a last batch of fewer than `size` examples:
    /// `drop_last=True`.
    ///
    /// # Errors
    /// If `size` is 0.
    pub fn batches_exact(&self, size: usize) -> Result<impl ExactSizeIterator<Item = Dataset>> {
        self.parts(size, self.rows - self.rows.checked_rem(size).unwrap_or(0))
    }

    fn parts(&self, size: usize, rows: usize) -> Result<impl ExactSizeIterator<Item = Dataset>> {
        if size == 0 {
            let message = "dataset: a batch has at least one example, found 0";
            return Err(Error::Tensor(message.to_owned()));
        }
        Ok((0..rows.div_ceil(size)).map(move |i| {
            let range = i * size..rows.min((i + 1) * size);
            self.slice(range).expect("the range ends where the rows do")
        }))
    }

    fn with(
        &self,
        rows: usize,
        part: impl Fn(&Tensor) -> tracecast_runtime::Result<Tensor>,
    ) -> Result<Self> {
        let parts = self.tensors.iter().map(|(name, tensor)| Ok((name.clone(), part(tensor)?)));
        Ok(Dataset { tensors: parts.collect::<Result<_>>()?, rows })
    }
}

/// # Panics
/// If there is no tensor of that name; see [`Dataset::find`].
impl Index<&str> for Dataset {
    type Output = Tensor;

    fn index(&self, name: &str) -> &Tensor {
        self.find(name).unwrap_or_else(|| panic!("the dataset has no `{name}`"))
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.inputs()).finish()
    }
}

/// The numbers below `count` in an order that the seed decides, every order as likely as every
/// other: `torch.randperm`. It is the same for the same seed on every machine.
///
/// ```
/// use tracecast::data::permutation;
///
/// let mut order = permutation(5, 7);
/// assert_eq!(order, permutation(5, 7));
/// order.sort();
/// assert_eq!(order, [0, 1, 2, 3, 4]);
/// ```
pub fn permutation(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for i in (1..count).rev() {
        // The high half of a product with 64 random bits is spread over `0..=i` to within i / 2^64.
        let [low, high, ..] = random_quad(seed as i64, 0, STREAM, i as u64);
        let bits = (u128::from(high) << 32) | u128::from(low);
        order.swap(i, ((bits * (i as u128 + 1)) >> 64) as usize);
    }
    order
}

/// The stream of random numbers that orders are drawn from; host tensors draw from those before it.
const STREAM: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn examples(rows: usize) -> Dataset {
        let x: Vec<[i64; 2]> = (0..rows as i64).map(|i| [i, -i]).collect();
        let y: Vec<i64> = (0..rows as i64).collect();
        let x = Tensor::new([rows, 2], x.as_flattened()).unwrap();
        Dataset::new([("x", x), ("y", Tensor::from(y))]).unwrap()
    }

    fn numbers(examples: &Dataset) -> Vec<i64> {
        let y = examples["y"].to_vec::<i64>().unwrap();
        // What belongs together stays together.
        assert_eq!(
            examples["x"].to_rows::<i64>().unwrap(),
            y.iter().map(|i| vec![*i, -i]).collect::<Vec<_>>()
        );
        assert_eq!(y.len(), examples.len());
        y
    }

    #[test]
    fn batches_have_every_example_once() {
        let all = examples(10);
        let sizes = |parts: Vec<Dataset>| parts.iter().map(Dataset::len).collect::<Vec<_>>();
        assert_eq!(sizes(all.batches(4).unwrap().collect()), [4, 4, 2]);
        assert_eq!(sizes(all.batches_exact(4).unwrap().collect()), [4, 4]);
        assert_eq!(sizes(all.batches(5).unwrap().collect()), [5, 5]);
        assert_eq!(sizes(all.batches(99).unwrap().collect()), [10]);
        assert_eq!(all.batches_exact(99).unwrap().len(), 0);
        assert_eq!(all.slice(3..3).unwrap().batches(2).unwrap().len(), 0);
        let shuffled = all.shuffled(3);
        let mut seen: Vec<i64> = shuffled.batches(3).unwrap().flat_map(|b| numbers(&b)).collect();
        assert_ne!(seen, numbers(&all));
        seen.sort_unstable();
        assert_eq!(seen, numbers(&all));
        assert_ne!(numbers(&all.shuffled(4)), numbers(&shuffled));
        assert_eq!(all.shuffled(3), shuffled);
    }

    #[test]
    fn rows_are_taken_and_split() {
        let all = examples(5);
        assert_eq!(numbers(&all.select(&[4, 0, 4]).unwrap()), [4, 0, 4]);
        let (first, rest) = all.split_at(2).unwrap();
        assert_eq!((numbers(&first), numbers(&rest)), (vec![0, 1], vec![2, 3, 4]));
        assert!(all.split_at(5).unwrap().1.is_empty());
        assert!(all.split_at(6).is_err() && all.select(&[5]).is_err());
        assert_eq!(all.inputs().iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["x", "y"]);
        assert!(all.find("z").is_none() && format!("{all:?}").contains("\"y\": i64[5]"));
    }

    #[test]
    fn what_is_no_dataset_is_an_error() {
        let said =
            |tensors: &[(&str, Tensor)]| Dataset::new(tensors.to_vec()).unwrap_err().to_string();
        let (two, three) = (Tensor::from([1i64, 2]), Tensor::from([1i64, 2, 3]));
        let rows = said(&[("x", two.clone()), ("y", three)]);
        assert!(rows.contains("`y` has 3 rows, `x` has 2"), "{rows}");
        assert!(said(&[("x", two.clone()), ("x", two)]).contains("`x` is given twice"));
        assert!(said(&[("x", Tensor::scalar(1i64))]).contains("`x` is i64[] and has no rows"));
        assert!(said(&[]).contains("no tensors"));
        assert!(examples(2).batches(0).is_err() && examples(2).batches_exact(0).is_err());
    }

    #[test]
    fn every_order_is_as_likely() {
        let mut count = [0; 6];
        for seed in 0..6000 {
            let order = permutation(3, seed);
            count[order[0] * 2 + usize::from(order[1] > order[2])] += 1;
        }
        // Five standard deviations of 1000 draws of 6000.
        assert!(count.iter().all(|n| (855..1145).contains(n)), "{count:?}");
        assert!(permutation(0, 1).is_empty() && permutation(1, 1) == [0]);
    }
}
