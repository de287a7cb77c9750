//! Labelled rows to train on: the split into train and test rows, batches, the order of an epoch, and the user's own
//! arrays from an npz file.
//!
//! An npz file is a zip archive of arrays. Two are read: `x`, numbers of shape `[rows, d…]`, whose trailing axes become
//! one row of features, and `y`, integer labels of shape `[rows]`. How an array is decoded is left to `array.rs`.

use std::fs::File;
use std::io;
use std::path::Path;

use npyz::npz::NpzArchive;

use crate::array::Array;

/// The largest number of classes: a label beyond it is taken for a mistake, not for a wish for so wide a layer.
const MAX_CLASSES: usize = 1 << 16;

/// One row in this many is held out for testing.
const HELD_OUT: usize = 5;

/// What can be wrong with the data to train on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DatasetError {
    /// The file could not be opened or is no zip archive.
    #[error("cannot read the archive: {0}")]
    Archive(#[source] io::Error),
    /// An array is not in the archive.
    #[error(
        "the archive has no array `{name}`; it needs `x` with the features and `y` with the labels"
    )]
    Missing {
        /// The array asked for.
        name: &'static str,
    },
    /// An array is there, but its bytes are not an array.
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
    /// If there are fewer than five rows, rows without features, more or fewer labels than rows, a feature that is not
    /// finite, or a label that is negative or absurdly large.
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
    /// If the file or an array cannot be read, an array has another type or rank than it must, or the rows are not what
    /// [`Dataset::new`] asks for.
    pub(crate) fn from_npz(path: &Path) -> Result<Self, DatasetError> {
        let file = File::open(path).map_err(DatasetError::Archive)?;
        Self::read_npz(io::BufReader::new(file))
    }

    fn read_npz(source: impl io::Read + io::Seek) -> Result<Self, DatasetError> {
        let mut archive = NpzArchive::new(source).map_err(DatasetError::Archive)?;
        let x = Array::unpack(&mut archive, "x")?;
        let y = Array::unpack(&mut archive, "y")?;
        let Some((&rows, axes)) = x.shape.split_first().filter(|(_, axes)| !axes.is_empty()) else {
            return Err(x.wrong(format!(
                "features have shape [rows, d…], this one has shape {:?}",
                x.shape
            )));
        };
        let &[labels] = y.shape.as_slice() else {
            return Err(
                y.wrong(format!("labels have shape [rows], this one has shape {:?}", y.shape))
            );
        };
        if rows != labels {
            let message =
                format!("`x` has {rows} rows and `y` has {labels} labels; they must agree");
            return Err(DatasetError::Rows(message));
        }
        let width = axes.iter().product();
        Self::new(x.features(), y.labels()?, width)
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

/// A seeded source of row orders: splitmix64 (Steele, Lea and Flood 2014) driving a Fisher–Yates shuffle.
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

    /// A number below `bound`, without bias: the high half of a product, drawn again in the few uneven cases.
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
    use std::io::Cursor;

    use half::f16;
    use npyz::npz::NpzWriter;
    use npyz::{AutoSerialize, Order, WriterBuilder};

    use super::*;

    /// An npz file in memory, written array by array.
    struct Npz(NpzWriter<Cursor<Vec<u8>>>);

    impl Npz {
        fn new() -> Self {
            Self(NpzWriter::new(Cursor::new(Vec::new())))
        }

        fn array<T: AutoSerialize>(self, name: &str, shape: &[u64], values: Vec<T>) -> Self {
            self.ordered(name, Order::C, shape, values)
        }

        fn ordered<T: AutoSerialize>(
            mut self,
            name: &str,
            order: Order,
            shape: &[u64],
            values: Vec<T>,
        ) -> Self {
            let builder = self
                .0
                .array(name, Default::default())
                .unwrap()
                .default_dtype()
                .shape(shape)
                .order(order);
            let mut writer = builder.begin_nd().unwrap();
            writer.extend(values).unwrap();
            writer.finish().unwrap();
            self
        }

        fn bytes(mut self) -> Vec<u8> {
            self.0.zip_writer().finish().unwrap().into_inner()
        }

        fn read(self) -> Result<Dataset, String> {
            read(self.bytes())
        }
    }

    fn read(bytes: Vec<u8>) -> Result<Dataset, String> {
        Dataset::read_npz(Cursor::new(bytes)).map_err(|error| error.to_string())
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
        let labels = || vec![0_i64, 1, 2, 1, 0];
        let wide = ramp(20).into_iter().map(f64::from).collect();
        let half = ramp(20).into_iter().map(f16::from_f32).collect();
        assert_eq!(
            Npz::new().array("x", &[5, 4], ramp(20)).array("y", &[5], labels()).read().unwrap(),
            expected
        );
        assert_eq!(
            Npz::new().array("x", &[5, 2, 2], wide).array("y", &[5], labels()).read().unwrap(),
            expected
        );
        assert_eq!(
            Npz::new()
                .array("x", &[5, 4], half)
                .array("y", &[5], vec![0_u8, 1, 2, 1, 0])
                .read()
                .unwrap(),
            expected
        );
        let bytes = (0_u8..20).collect();
        assert_eq!(
            Npz::new()
                .array("x", &[5, 4], bytes)
                .array("y", &[5], vec![0_i32, 1, 2, 1, 0])
                .read()
                .unwrap(),
            expected
        );
    }

    #[test]
    fn columns_first_is_read_as_rows() {
        let columns = vec![0_f32, 2.0, 4.0, 6.0, 8.0, 1.0, 3.0, 5.0, 7.0, 9.0];
        let data = Npz::new()
            .ordered("x", Order::Fortran, &[5, 2], columns)
            .array("y", &[5], vec![0_i64; 5])
            .read();
        assert_eq!(data.unwrap().features, ramp(10));
    }

    #[test]
    fn arrays_that_do_not_fit_are_refused() {
        let y = |labels: Vec<i64>| {
            Npz::new().array("x", &[5, 4], ramp(20)).array("y", &[labels.len() as u64], labels)
        };
        let x = |shape: &[u64], values| {
            Npz::new().array("y", &[5], vec![0_i64; 5]).array("x", shape, values)
        };
        let cases = [
            (Npz::new().array("y", &[5], vec![0_i64; 5]), "has no array `x`"),
            (Npz::new().array("x", &[5, 4], ramp(20)), "has no array `y`"),
            (y(vec![0; 4]), "`x` has 5 rows and `y` has 4 labels"),
            (y(vec![0, 0, -1, 0, 0]), "the label of row 2 is -1"),
            (y(vec![0, 0, 0, 0, 1 << 40]), "the label of row 4 is 1099511627776"),
            (x(&[5], ramp(5)), "shape [5]"),
            (x(&[], ramp(1)), "shape []"),
            (x(&[5, 0], ramp(0)), "no features"),
            (x(&[5, 1], vec![0.0, 0.0, 0.0, f32::NAN, 0.0]), "not a finite f32 number in row 3"),
            (
                Npz::new().array("x", &[0, 4], ramp(0)).array("y", &[0], vec![0_i64; 0]),
                "0 rows are too few",
            ),
            (
                Npz::new().array("x", &[5, 4], ramp(20)).array("y", &[5, 1], vec![0_i64; 5]),
                "shape [5, 1]",
            ),
            (
                Npz::new().array("x", &[5, 4], ramp(20)).array("y", &[5], ramp(5)),
                "labels are integers",
            ),
            (
                Npz::new().array("x", &[5, 4], ramp(20)).array("y", &[5], vec![u64::MAX; 5]),
                "is no i64",
            ),
        ];
        for (npz, expected) in cases {
            let error = npz.read().unwrap_err();
            assert!(error.contains(expected), "expected `{expected}` in: {error}");
        }
    }

    #[test]
    fn damaged_files_are_errors() {
        let whole =
            Npz::new().array("x", &[5, 4], ramp(20)).array("y", &[5], vec![0_i64; 5]).bytes();
        assert!(read(whole.clone()).is_ok());
        for length in 0..whole.len() {
            assert!(read(whole[..length].to_vec()).is_err(), "cut off at {length}");
        }
        for at in 0..whole.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                drop(read(bytes)); // an error or, where the byte does not matter, the data: never a panic
            }
        }
        assert!(Dataset::from_npz(Path::new("no such file.npz")).is_err());
    }
}
