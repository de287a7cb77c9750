//! [`stats`]: how the values of a program use the range of their dtypes.

use super::{Place, run};
use crate::error::Result;
use crate::options::Options;
use std::collections::BTreeMap;
use std::fmt;
use tracecast_ir::eval::Value;
use tracecast_ir::op::{Body, Lower};
use tracecast_ir::{DType, Graph, TensorType};
use tracecast_runtime::{Store, Tensor};

/// What numbers are like, counted in the dtype that holds them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Numbers {
    /// How many there are.
    pub count: usize,
    /// The least and the largest of those that are finite; `None` if none is.
    pub range: Option<(f64, f64)>,
    /// The least magnitude above zero; `None` if none is finite and not zero.
    pub smallest: Option<f64>,
    /// Zeros of either sign.
    pub zeros: usize,
    /// Floats below the smallest normal number of the dtype, zeros aside: they have fewer digits,
    /// and what is smaller becomes zero.
    pub subnormal: usize,
    /// Finite floats of at least half the largest number of the dtype: doubled once more, as by the
    /// next growth of a loss scale, they overflow.
    pub near_overflow: usize,
    /// Infinities and NaNs.
    pub nonfinite: usize,
}

impl Numbers {
    /// Those of a value.
    pub fn of(value: &Tensor) -> Numbers {
        Numbers::of_value(value.value())
    }

    pub(super) fn of_value(value: &Value) -> Numbers {
        let float = value.ty.dtype.storage().float;
        let normal = float.map_or(0.0, |float| float.smallest_normal());
        let near = float.map_or(f64::INFINITY, |float| float.largest() / 2.0);
        let mut found = Numbers::default();
        for number in value.to_f64s() {
            let size = number.abs();
            found.count += 1;
            if !number.is_finite() {
                found.nonfinite += 1;
                continue;
            }
            found.widen(number, number);
            if size == 0.0 {
                found.zeros += 1;
                continue;
            }
            found.smallest = Some(found.smallest.map_or(size, |least| least.min(size)));
            found.subnormal += usize::from(size < normal);
            found.near_overflow += usize::from(size >= near);
        }
        found
    }

    /// These and others together.
    #[must_use]
    pub fn and(mut self, other: Numbers) -> Numbers {
        self.count += other.count;
        if let Some((least, most)) = other.range {
            self.widen(least, most);
        }
        self.smallest = match (self.smallest, other.smallest) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.zeros += other.zeros;
        self.subnormal += other.subnormal;
        self.near_overflow += other.near_overflow;
        self.nonfinite += other.nonfinite;
        self
    }

    /// Their share of all; 0 if there are none.
    pub fn share(&self, count: usize) -> f64 {
        if self.count == 0 { 0.0 } else { count as f64 / self.count as f64 }
    }

    fn widen(&mut self, least: f64, most: f64) {
        let (a, b) = self.range.unwrap_or((least, most));
        self.range = Some((a.min(least), b.max(most)));
    }

    /// The cells of a row.
    fn cells(&self) -> [String; 8] {
        let number = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), short);
        let share = |count: usize| match count {
            0 => "0".to_owned(),
            _ => format!("{:.2} %", 100.0 * self.share(count)),
        };
        [
            self.count.to_string(),
            number(self.range.map(|(least, _)| least)),
            number(self.range.map(|(_, most)| most)),
            number(self.smallest),
            share(self.zeros),
            share(self.subnormal),
            share(self.near_overflow),
            share(self.nonfinite),
        ]
    }
}

/// A number in few characters: four significant digits.
pub(super) fn short(number: f64) -> String {
    let size = number.abs();
    if number == number.trunc() && size < 1e6 {
        format!("{number}")
    } else if (1e-3..1e6).contains(&size) {
        let digits = (3 - size.log10().floor() as i32).clamp(0, 6) as usize;
        let text = format!("{number:.digits$}");
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text
        }
    } else {
        format!("{number:.3e}")
    }
}

/// A value, and what its numbers are like.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueStats {
    /// What computes it.
    pub place: Place,
    /// Its type.
    pub ty: TensorType,
    /// Its numbers.
    pub numbers: Numbers,
}

/// How the values of a program use the range of their dtypes. Printing gives two tables.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// The name of the program.
    pub program: String,
    /// The values in the order in which they are computed, what comes from outside first. Views are
    /// left out, since their numbers are those of another value, and so are numbers that the
    /// program was written with.
    pub values: Vec<ValueStats>,
}

impl Stats {
    /// All values of each dtype together.
    pub fn dtypes(&self) -> BTreeMap<DType, Numbers> {
        let mut dtypes: BTreeMap<DType, Numbers> = BTreeMap::new();
        for value in &self.values {
            let known = dtypes.entry(value.ty.dtype).or_default();
            *known = known.and(value.numbers);
        }
        dtypes
    }
}

/// Runs a traced program op by op on these inputs and the state of the store, which stays as it is,
/// and counts the numbers of every value.
///
/// The [module](super) says how programs run for this.
///
/// # Errors
/// An input or an entry of the store that is missing or of another type, a pass that could not
/// finish, data without meaning.
pub fn stats(
    graph: &Graph,
    options: &Options,
    store: &Store,
    inputs: &[(&str, &Tensor)],
) -> Result<Stats> {
    let mut values = Vec::new();
    run(graph, options, store, inputs, |seen, place| {
        let body = &seen.graph.node(seen.node).op.def().body;
        let is_view = matches!(body, Body::Core { kernel: Lower::View(_), .. });
        let is_written = matches!(body, Body::Source(_)) && seen.graph.port_of(seen.node).is_none();
        if is_view || is_written {
            return;
        }
        for value in seen.results {
            let numbers = Numbers::of_value(value);
            values.push(ValueStats { place: place.clone(), ty: value.ty.clone(), numbers });
        }
    })?;
    Ok(Stats { program: graph.name().to_owned(), values })
}

const COLUMNS: [&str; 8] = [
    "numbers",
    "least",
    "largest",
    "smallest above 0",
    "zeros",
    "subnormal",
    "near overflow",
    "inf or NaN",
];

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.values.iter().map(|value| {
            let first = format!("{}: {}", value.place.short(), value.ty);
            (first, value.numbers.cells(), value.place.source.as_str())
        });
        table(f, "value", &rows.collect::<Vec<_>>())?;
        writeln!(f)?;
        let dtypes = self.dtypes();
        let rows = dtypes.iter().map(|(dtype, numbers)| (dtype.to_string(), numbers.cells(), ""));
        table(f, "dtype", &rows.collect::<Vec<_>>())
    }
}

/// Rows below their headings, each with a remark at its end.
fn table(
    f: &mut fmt::Formatter<'_>,
    heading: &str,
    rows: &[(String, [String; 8], &str)],
) -> fmt::Result {
    let columns = COLUMNS.map(str::to_owned);
    let head = (heading.to_owned(), columns, "");
    let all = || [&head].into_iter().chain(rows);
    let first = all().map(|(first, _, _)| first.chars().count()).max().unwrap_or(0);
    let widths: [usize; 8] =
        std::array::from_fn(|i| all().map(|(_, cells, _)| cells[i].len()).max().unwrap_or(0));
    for (name, cells, remark) in all() {
        let mut line = format!("{name:<first$}");
        for (cell, width) in cells.iter().zip(widths) {
            line += &format!("  {cell:>width$}");
        }
        writeln!(f, "{}", format!("{line}  {remark}").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_counted_in_their_dtype() {
        let numbers = [0.0, -0.0, 6e-8, 1.0, -65504.0, 32752.0, f64::INFINITY, f64::NAN];
        let ty = TensorType::new(DType::F16, [8]);
        let found = Numbers::of_value(&Value::from_f64s(ty.clone(), &numbers).unwrap());
        assert_eq!((found.count, found.zeros, found.nonfinite), (8, 2, 2));
        assert_eq!((found.subnormal, found.near_overflow), (1, 2));
        assert_eq!(found.range, Some((-65504.0, 32752.0)));
        assert_eq!(found.share(found.zeros), 0.25);
        // In f32 none of them is small or large.
        let wide = Value::from_f64s(ty.with_dtype(DType::F32), &numbers).unwrap();
        let wide = Numbers::of_value(&wide);
        assert_eq!((wide.subnormal, wide.near_overflow), (0, 0));
        let both = found.and(wide);
        assert_eq!((both.count, both.subnormal, both.zeros), (16, 1, 4));
        let none = Numbers::of_value(&Value::zeros(TensorType::new(DType::F32, [0])).unwrap());
        assert_eq!((none.range, none.share(none.zeros)), (None, 0.0));
        assert_eq!(none.and(found), found);
    }

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (-3.0, "-3"),
            (0.1, "0.1"),
            (2.34567, "2.346"),
            (65504.0, "65504"),
            (1234567.0, "1.235e6"),
            (5.96e-8, "5.960e-8"),
            (-0.001234, "-0.001234"),
        ];
        for (number, text) in cases {
            assert_eq!(short(number), text);
        }
    }
}
