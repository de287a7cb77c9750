//! [`AxisNames`]: which axes of the inputs have names for sizes, as the user says or as two calls
//! show that differ in sizes alone.

use std::collections::{BTreeMap, BTreeSet};
use tracecast_ir::TensorType;

/// For inputs, the name of each axis that has one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AxisNames(BTreeMap<String, Vec<Option<String>>>);

impl AxisNames {
    /// Reads `x: [batch, _], y: [batch]`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = |found: &str| {
            format!("expected inputs such as `x: [batch, _], y: [batch]`, found `{found}`")
        };
        let mut names = AxisNames::default();
        if !text.trim_end().ends_with(']') {
            return Err(wrong(text));
        }
        for part in text.trim_end().split_terminator(']') {
            let part = part.trim().trim_start_matches(',').trim();
            let (input, axes) = part.split_once(':').ok_or_else(|| wrong(part))?;
            let axes = axes.trim().strip_prefix('[').ok_or_else(|| wrong(part))?;
            let name = |axis: &str| match axis.trim() {
                "" => Err(wrong(part)),
                "_" => Ok(None),
                name => Ok(Some(name.to_owned())),
            };
            let axes = axes.split(',').map(name).collect::<Result<_, _>>()?;
            if names.0.insert(input.trim().to_owned(), axes).is_some() {
                return Err(format!("input `{}` stands there twice", input.trim()));
            }
        }
        Ok(names)
    }

    /// The names of the axes of an input, if it has any.
    pub(crate) fn get(&self, input: &str) -> Option<&[Option<String>]> {
        self.0.get(input).map(Vec::as_slice)
    }

    /// True if no axis has a name.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if all inputs that have names are there, with as many axes as names.
    pub(crate) fn fit(&self, inputs: &BTreeMap<String, TensorType>) -> bool {
        let fits = |(input, axes): (&String, &Vec<Option<String>>)| {
            inputs.get(input).is_some_and(|ty| ty.shape.rank() == axes.len())
        };
        self.0.iter().all(fits)
    }

    /// With names for the axes that changed between two calls of equal dtypes and ranks. Axes that
    /// had one size before and have one size now share a name, that of the first of them: `x.0`.
    /// `None` if the calls differ in more, or in no axis without a name.
    pub(crate) fn inferred(
        &self,
        before: &BTreeMap<String, TensorType>,
        now: &BTreeMap<String, TensorType>,
    ) -> Option<Self> {
        let alike = |((a, x), (b, y)): ((&String, &TensorType), (&String, &TensorType))| {
            a == b && x.dtype == y.dtype && x.shape.rank() == y.shape.rank()
        };
        if before.len() != now.len() || !before.iter().zip(now).all(alike) {
            return None;
        }
        let mut names = self.clone();
        let taken = self.0.values().flatten().flatten().cloned();
        let mut taken: BTreeSet<String> = taken.collect();
        let mut shared = BTreeMap::new();
        for ((input, was), is) in before.iter().zip(now.values()) {
            let sizes = was.shape.numbers().into_iter().zip(is.shape.numbers());
            for (axis, (was, is)) in sizes.enumerate().filter(|(_, (was, is))| was != is) {
                let axes = names.0.entry(input.clone()).or_default();
                axes.resize(axes.len().max(axis + 1), None);
                if axes[axis].is_none() {
                    let name = shared.entry((was, is));
                    let name = name.or_insert_with(|| fresh(input, axis, &mut taken));
                    axes[axis] = Some(name.clone());
                }
            }
        }
        for (input, axes) in &mut names.0 {
            axes.resize(now.get(input).map_or(axes.len(), |ty| ty.shape.rank()), None);
        }
        (names != *self).then_some(names)
    }
}

/// A name for an axis that is a word and is no other's.
fn fresh(input: &str, axis: usize, taken: &mut BTreeSet<String>) -> String {
    let word = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
    let mut name = format!("{}.{axis}", input.chars().map(word).collect::<String>());
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        name.insert(0, '_');
    }
    while !taken.insert(name.clone()) {
        name.push('_');
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracecast_ir::DType;

    #[test]
    fn names_are_read() {
        let names = AxisNames::parse("x: [batch, _], y:[batch]").unwrap();
        let batch = Some("batch".to_owned());
        assert_eq!(names.get("x"), Some(&[batch.clone(), None][..]));
        assert_eq!((names.get("y"), names.get("z")), (Some(&[batch][..]), None));
        for wrong in ["x", "x: batch", "x: [batch", "x: [a,]", "x: [a], x: [b]"] {
            assert!(AxisNames::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn axes_that_change_together_share_a_name() {
        let call = |x: [usize; 2], y: [usize; 1]| {
            let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
            BTreeMap::from([("x".to_owned(), ty(&x)), ("y 2".to_owned(), ty(&y))])
        };
        let none = AxisNames::default();
        let names = none.inferred(&call([3, 3], [3]), &call([4, 3], [4])).unwrap();
        let first = Some("x.0".to_owned());
        assert_eq!(names.get("x"), Some(&[first.clone(), None][..]));
        assert_eq!(names.get("y 2"), Some(&[first.clone()][..]));
        assert_eq!(names.inferred(&call([3, 3], [3]), &call([5, 3], [6])), None);
        let more = names.inferred(&call([3, 3], [3]), &call([3, 7], [3])).unwrap();
        assert_eq!(more.get("x"), Some(&[first, Some("x.1".to_owned())][..]));
        let apart = none.inferred(&call([3, 3], [4]), &call([5, 3], [6])).unwrap();
        assert_eq!(apart.get("y 2"), Some(&[Some("y_2.0".to_owned())][..]));
        assert_eq!(none.inferred(&call([3, 3], [3]), &call([3, 3], [3])), None);
    }
}
