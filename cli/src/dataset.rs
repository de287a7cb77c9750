//! Labelled rows to train on: the split into train and test rows, batches, the order of an epoch,
//! and the user's own arrays from an npz file.
//!
//! An npz file is a zip archive of arrays. Two are read: `x`, numbers of shape `[rows, d…]`, whose
//! trailing axes become one row of features, and `y`, integer labels of shape `[rows]`.

use std::io;
use std::path::Path;

use tracecast::runtime::{Error, Tensor, npz};
use tracecast::{DType, Size};

/// The largest number of classes: a label beyond it is taken for a mistake, not for a wish for so
/// wide a layer.
const MAX_CLASSES: usize = 1 << 16;

/// One row in this many is held out for testing.
const HELD_OUT: usize = 5;

/// What can be wrong with the data to train on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DatasetError {
    /// The file could not be opened or unpacked.
    #[error("cannot read the archive: {0}")]
    Archive(#[source] io::Error),
    /// The file is no archive, or an array in it is damaged.
    #[error("{0}")]
    Damaged(String),
    /// An array is not in the archive.
    #[error(
        "the archive has no array `{name}`; it needs `x` with the features and `y` with the labels"
    )]
    Missing {
        /// The array asked for.
        name: &'static str,
    },
    /// An array is there, but is not what it must be.
    #[error("array `{name}`: {reason}")]
    Array {
        /// The array that is wrong.
        name: &'static str,
        /// What was expected and what was found.
        reason: String,
    },
    /// The arrays, or the rows of a table, do not make a dataset.
    #[error("{0}")]
    Rows(String),
}

/// Rows of features, each with a label.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Dataset {
    /// The features of all rows, row after row.
    pub(crate) features: Vec<f32>,
    /// The class of each row, below `classes`.
    pub(crate) labels: Vec<i64>,
    /// Features per row.
    pub(crate) width: usize,
    /// The number of classes: one more than the largest label.
    pub(crate) classes: usize,
}

/// The rows to train on and the rows held out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Split {
    /// Four rows in five.
    pub(crate) train: Dataset,
    /// Row `i` where `i % 5 == 4`.
    pub(crate) test: Dataset,
}

impl Dataset {
    /// Checks and collects the rows; the number of classes follows from the labels.
    ///
    /// # Errors
    ///
    /// If there are fewer than five rows, rows without features, more or fewer labels than rows, a
    /// feature that is not finite, or a label that is negative or absurdly large.
    pub(crate) fn new(
        features: Vec<f32>,
        labels: Vec<i64>,
        width: usize,
    ) -> Result<Self, DatasetError> {
        let rows = |message: String| Err(DatasetError::Rows(message));
        if width == 0 {
            return rows("the rows of `x` have no features".into());
        }
        if features.len() != labels.len() * width {
            let found = features.len() / width;
            return rows(format!(
                "`x` has {found} rows and `y` has {} labels; they must agree",
                labels.len()
            ));
        }
        if labels.len() < HELD_OUT {
            let found = labels.len();
            return rows(format!(
                "{found} rows are too few: one row in {HELD_OUT} is held out for testing"
            ));
        }
        if let Some(at) = features.iter().position(|value| !value.is_finite()) {
            return rows(format!(
                "`x` is not a finite f32 number in row {}: {}",
                at / width,
                features[at]
            ));
        }
        let in_range = |label: i64| usize::try_from(label).is_ok_and(|class| class < MAX_CLASSES);
        if let Some(row) = labels.iter().position(|&label| !in_range(label)) {
            let found = labels[row];
            return rows(format!(
                "the label of row {row} is {found}; labels are 0 to {}",
                MAX_CLASSES - 1
            ));
        }
        let classes = labels.iter().max().map_or(0, |&label| label as usize + 1);
        Ok(Self { features, labels, width, classes })
    }

    /// Reads arrays `x` and `y` of an npz file. Features are taken as they are, without scaling.
    ///
    /// # Errors
    ///
    /// If the file or an array cannot be read, an array has another type or rank than it must, or
    /// the rows are not what [`Dataset::new`] asks for.
    pub(crate) fn from_npz(path: &Path) -> Result<Self, DatasetError> {
        let arrays = npz::read_named(path, &["x", "y"]).map_err(unread)?;
        Self::from_arrays(&arrays)
    }

    fn from_arrays(arrays: &[(String, Tensor)]) -> Result<Self, DatasetError> {
        let named = |name| {
            let found = arrays.iter().find(|(found, _)| found == name);
            found.map(|(_, tensor)| tensor).ok_or(DatasetError::Missing { name })
        };
        let (x, y) = (named("x")?, named("y")?);
        let wrong = |name, reason| Err(DatasetError::Array { name, reason });
        let Some((&rows, axes)) = x.shape().split_first().filter(|(_, axes)| !axes.is_empty())
        else {
            let found = x.shape();
            return wrong(
                "x",
                format!("features have shape [rows, d…], this one has shape {found}"),
            );
        };
        let &[labels] = &y.shape()[..] else {
            let found = y.shape();
            return wrong("y", format!("labels have shape [rows], this one has shape {found}"));
        };
        if y.dtype().is_float() {
            return wrong("y", format!("labels are integers, these are {}", y.dtype()));
        }
        if rows != labels {
            let message =
                format!("`x` has {rows} rows and `y` has {labels} labels; they must agree");
            return Err(DatasetError::Rows(message));
        }
        let width = axes.iter().product::<Size>().get();
        let features = x.cast(DType::F32).and_then(|x| x.to_vec()).map_err(unread)?;
        let labels = y.cast(DType::I64).and_then(|y| y.to_vec()).map_err(unread)?;
        Self::new(features, labels, width)
    }

    /// The number of rows.
    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// Holds out every fifth row, beginning with row 4, for testing.
    pub(crate) fn split(self) -> Split {
        let (test, train): (Vec<_>, Vec<_>) =
            (0..self.len()).partition(|row| row % HELD_OUT == HELD_OUT - 1);
        let part = |rows: &[usize]| {
            let (features, labels) = self.batch(rows);
            Self { features, labels, width: self.width, classes: self.classes }
        };
        Split { train: part(&train), test: part(&test) }
    }

    /// The features and labels of the given rows, in the given order.
    ///
    /// # Panics
    ///
    /// If a row is not below [`Dataset::len`].
    pub(crate) fn batch(&self, rows: &[usize]) -> (Vec<f32>, Vec<i64>) {
        let mut features = Vec::with_capacity(rows.len() * self.width);
        for row in rows {
            features.extend_from_slice(&self.features[row * self.width..][..self.width]);
        }
        (features, rows.iter().map(|&row| self.labels[row]).collect())
    }
}

/// What is wrong with a file, without its path: that is for the caller to say.
fn unread(error: Error) -> DatasetError {
    match error {
        Error::Io { source, .. } => DatasetError::Archive(source),
        Error::Npz { message, .. } => DatasetError::Damaged(message),
        other => DatasetError::Damaged(other.to_string()),
    }
}

/// A seeded source of row orders: splitmix64 (Steele, Lea and Flood 2014) driving a Fisher–Yates
/// shuffle.
#[derive(Debug, Clone)]
pub(crate) struct Shuffle {
    state: u64,
}

impl Shuffle {
    /// A source whose orders depend on the seed alone.
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next order of `0..rows`; every order is as likely as any other.
    pub(crate) fn order(&mut self, rows: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..rows).collect();
        for last in (1..rows).rev() {
            order.swap(last, self.below(last as u64 + 1) as usize);
        }
        order
    }

    /// A number below `bound`, without bias: the high half of a product, drawn again in the few
    /// uneven cases.
    fn below(&mut self, bound: u64) -> u64 {
        let uneven = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.next()) * u128::from(bound);
            if product as u64 >= uneven {
                return (product >> 64) as u64;
            }
        }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array<T: tracecast::runtime::Element>(
        name: &str,
        shape: &[usize],
        elements: &[T],
    ) -> (String, Tensor) {
        (name.into(), Tensor::new(shape, elements).unwrap())
    }

    fn read(arrays: &[(String, Tensor)]) -> Result<Dataset, String> {
        Dataset::from_arrays(arrays).map_err(|error| error.to_string())
    }

    fn ramp(count: u8) -> Vec<f32> {
        (0..count).map(f32::from).collect()
    }

    #[test]
    fn every_fifth_row_is_held_out() {
        let data = Dataset::new(ramp(24), (0..12).collect(), 2).unwrap();
        let Split { train, test } = data.split();
        assert_eq!(test.labels, [4, 9]);
        assert_eq!(test.features, [8.0, 9.0, 18.0, 19.0]);
        assert_eq!(train.labels, [0, 1, 2, 3, 5, 6, 7, 8, 10, 11]);
        assert_eq!((train.len(), train.width, train.classes), (10, 2, 12));
        assert_eq!(test.classes, 12, "a class that no test row has is still a class");
    }

    #[test]
    fn a_batch_follows_the_order_asked_for() {
        let data = Dataset::new(ramp(10), vec![0, 1, 0, 1, 0], 2).unwrap();
        assert_eq!(data.batch(&[3, 0]), (vec![6.0, 7.0, 0.0, 1.0], vec![1, 0]));
        assert_eq!(data.batch(&[]), (vec![], vec![]));
    }

    #[test]
    fn orders_are_permutations_fixed_by_the_seed() {
        let mut shuffle = Shuffle::new(7);
        let (first, second) = (shuffle.order(100), shuffle.order(100));
        assert_ne!(first, second);
        assert_eq!(first, Shuffle::new(7).order(100));
        assert_ne!(first, Shuffle::new(8).order(100));
        let mut sorted = first;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..100));
        assert_eq!((shuffle.order(0), shuffle.order(1)), (vec![], vec![0]));
    }

    #[test]
    fn each_order_of_three_is_as_likely_as_any_other() {
        let mut shuffle = Shuffle::new(0);
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..6000 {
            *counts.entry(shuffle.order(3)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|&count: &i32| (count - 1000).abs() < 120), "{counts:?}");
    }

    #[test]
    fn arrays_of_any_number_type_are_read() {
        let expected = Dataset::new(ramp(20), vec![0, 1, 2, 1, 0], 4).unwrap();
        for dtype in DType::COMPUTABLE {
            let x = Tensor::new([5, 2, 2], &ramp(20)).unwrap().cast(dtype).unwrap();
            let y = Tensor::new([5], &[0_i64, 1, 2, 1, 0]).unwrap().cast(dtype).unwrap();
            let data = read(&[("y".into(), y), ("x".into(), x)]);
            match dtype {
                DType::Bool => assert_eq!(data.unwrap().labels, [0, 1, 1, 1, 0]),
                _ if dtype.is_float() => {
                    assert!(data.unwrap_err().contains("labels are integers, these are"));
                }
                _ => assert_eq!(data.unwrap(), expected),
            }
            let x = Tensor::new([5, 4], &ramp(20)).unwrap().cast(dtype).unwrap();
            let data = read(&[("x".into(), x), array("y", &[5], &[0_u8, 1, 2, 1, 0])]).unwrap();
            assert!(dtype == DType::Bool || data == expected, "{dtype}");
        }
    }

    #[test]
    fn arrays_that_do_not_fit_are_refused() {
        let y =
            |labels: &[i64]| [array("x", &[5, 4], &ramp(20)), array("y", &[labels.len()], labels)];
        let x = |shape: &[usize], values: &[f32]| {
            [array("y", &[5], &[0_i64; 5]), array("x", shape, values)]
        };
        let without = |name| y(&[0; 5]).into_iter().filter(|(n, _)| n != name).collect::<Vec<_>>();
        let no_rows = [array("x", &[0, 4], &ramp(0)), array::<i64>("y", &[0], &[])];
        let columns = [array("x", &[5, 4], &ramp(20)), array("y", &[5, 1], &[0_i64; 5])];
        let cases = [
            (read(&without("x")), "has no array `x`"),
            (read(&without("y")), "has no array `y`"),
            (read(&y(&[0; 4])), "`x` has 5 rows and `y` has 4 labels"),
            (read(&y(&[0, 0, -1, 0, 0])), "the label of row 2 is -1"),
            (read(&y(&[0, 0, 0, 0, 1 << 40])), "the label of row 4 is 1099511627776"),
            (read(&x(&[5], &ramp(5))), "shape [5]"),
            (read(&x(&[], &ramp(1))), "shape []"),
            (read(&x(&[5, 0], &ramp(0))), "no features"),
            (
                read(&x(&[5, 1], &[0.0, 0.0, 0.0, f32::NAN, 0.0])),
                "not a finite f32 number in row 3",
            ),
            (read(&no_rows), "0 rows are too few"),
            (read(&columns), "shape [5, 1]"),
        ];
        for (data, expected) in cases {
            let error = data.unwrap_err();
            assert!(error.contains(expected), "expected `{expected}` in: {error}");
        }
    }

    #[test]
    fn damaged_files_are_errors() {
        let path =
            std::env::temp_dir().join(format!("tracecast-{}-dataset.npz", std::process::id()));
        let arrays = [array("x", &[5, 4], &ramp(20)), array("y", &[5], &[0_i64; 5])];
        npz::write(&path, arrays.iter().map(|(name, tensor)| (name.as_str(), tensor))).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Dataset::from_npz(&path).map_err(|error| error.to_string())
        };
        assert_eq!(read(&whole).unwrap(), Dataset::new(ramp(20), vec![0; 5], 4).unwrap());
        for length in 0..whole.len() {
            let error = read(&whole[..length]).unwrap_err();
            assert!(!error.contains("dataset.npz"), "the caller names the file: {error}");
        }
        for at in 0..whole.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                drop(read(&bytes)); // an error or, where the byte does not matter, the data: never a panic
            }
        }
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Dataset::from_npz(&path), Err(DatasetError::Archive(_))));
    }
}
