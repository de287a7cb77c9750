//! [`Attrs`]: the named constants of a node, such as `axes`, `to` or `shape`.

use crate::kernel::Kernel;
use crate::{DType, Number, Size};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// One constant of a node.
#[derive(Clone, Debug)]
pub enum Attr {
    /// `true` or `false`.
    Bool(bool),
    /// `3`
    Int(i64),
    /// `0.5`, `inf`, `nan`; compared by bits.
    Float(f64),
    /// `bf16`
    DType(DType),
    /// `2*batch + 1`: an integer that depends on names. A number is an [`Attr::Int`].
    Size(Size),
    /// `[0, -1]`
    Ints(SmallVec<[i64; 4]>),
    /// `[batch, -1]`: integers of which one depends on names.
    Sizes(SmallVec<[Size; 4]>),
    /// `batch` or `0.1/batch` where a float is expected: a number that depends on names.
    Number(Number),
    /// `[0.5, 1.0]`; compared by bits.
    Floats(Arc<[f64]>),
    /// `"mean"`
    Str(Arc<str>),
    /// A fused kernel; only the op `kernel` has one.
    Kernel(Arc<Kernel>),
}

impl PartialEq for Attr {
    fn eq(&self, other: &Self) -> bool {
        let same = |a: &f64, b: &f64| a.to_bits() == b.to_bits();
        match (self, other) {
            (Attr::Bool(a), Attr::Bool(b)) => a == b,
            (Attr::Int(a), Attr::Int(b)) => a == b,
            (Attr::Float(a), Attr::Float(b)) => same(a, b),
            (Attr::DType(a), Attr::DType(b)) => a == b,
            (Attr::Size(a), Attr::Size(b)) => a == b,
            (Attr::Ints(a), Attr::Ints(b)) => a == b,
            (Attr::Sizes(a), Attr::Sizes(b)) => a == b,
            (Attr::Number(a), Attr::Number(b)) => a == b,
            (Attr::Floats(a), Attr::Floats(b)) => {
                a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| same(a, b))
            }
            (Attr::Str(a), Attr::Str(b)) => a == b,
            (Attr::Kernel(a), Attr::Kernel(b)) => Arc::ptr_eq(a, b) || a == b,
            _ => false,
        }
    }
}

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attr::Bool(b) => write!(f, "{b}"),
            Attr::Int(i) => write!(f, "{i}"),
            Attr::Float(v) => fmt_float(*v, f),
            Attr::DType(d) => write!(f, "{d}"),
            Attr::Size(size) => write!(f, "{size}"),
            Attr::Sizes(list) => fmt_list(list.iter(), f, |size, f| write!(f, "{size}")),
            Attr::Number(number) => write!(f, "{number}"),
            Attr::Ints(list) => fmt_list(list.iter(), f, |i, f| write!(f, "{i}")),
            Attr::Floats(list) => fmt_list(list.iter(), f, |v, f| fmt_float(*v, f)),
            Attr::Str(s) => write!(f, "{:?}", &**s),
            Attr::Kernel(k) => write!(f, "@{}", k.name),
        }
    }
}

/// The shortest text that reads back as the same f64, always distinguishable from an integer.
fn fmt_float(v: f64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if v.is_nan() {
        f.write_str("nan")
    } else if v.is_infinite() {
        f.write_str(if v > 0.0 { "inf" } else { "-inf" })
    } else {
        write!(f, "{v:?}")
    }
}

fn fmt_list<T>(
    items: impl Iterator<Item = T>,
    f: &mut fmt::Formatter<'_>,
    each: impl Fn(T, &mut fmt::Formatter<'_>) -> fmt::Result,
) -> fmt::Result {
    f.write_str("[")?;
    for (i, item) in items.enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        each(item, f)?;
    }
    f.write_str("]")
}

/// The named constants of a node, sorted by name.
///
/// Nodes of one program after the other share them, so a copy costs a count; who sets one gets a
/// list of their own.
#[derive(Clone, Debug, Default)]
pub struct Attrs(Option<Arc<List>>);

/// Never empty.
type List = SmallVec<[(Cow<'static, str>, Attr); 1]>;

impl PartialEq for Attrs {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
            (None, None) => true,
            _ => false,
        }
    }
}

impl Attrs {
    /// No attributes.
    pub fn new() -> Self {
        Attrs::default()
    }

    /// The same with one more; replaces an attribute of that name.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Attr>) -> Self {
        self.set(name, value);
        self
    }

    /// Sets one attribute.
    pub fn set(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Attr>) {
        self.put(name.into(), value.into());
    }

    fn put(&mut self, name: Cow<'static, str>, value: Attr) {
        let list = Arc::make_mut(self.0.get_or_insert_default());
        match list.binary_search_by(|(n, _)| n.as_ref().cmp(name.as_ref())) {
            Ok(at) => list[at].1 = value,
            Err(at) => list.insert(at, (name, value)),
        }
    }

    fn list(&self) -> &[(Cow<'static, str>, Attr)] {
        self.0.as_ref().map_or(&[], |list| list)
    }

    /// Gives every size that depends on names another one.
    pub(crate) fn map_sizes(&mut self, with: &dyn Fn(Size) -> Size) {
        let has_sizes = |(_, attr): &(_, Attr)| attr.sizes().next().is_some();
        if let Some(list) = self.0.as_mut().filter(|list| list.iter().any(has_sizes)) {
            for (_, attr) in Arc::make_mut(list) {
                *attr = attr.map_sizes(with);
            }
        }
    }

    /// The kernel, of the op that has one.
    pub(crate) fn kernel_mut(&mut self) -> Option<&mut Arc<Kernel>> {
        let is_kernel = |(_, attr): &(_, Attr)| matches!(attr, Attr::Kernel(_));
        let list = self.0.as_mut().filter(|list| list.iter().any(is_kernel))?;
        Arc::make_mut(list).iter_mut().find_map(|(_, attr)| match attr {
            Attr::Kernel(kernel) => Some(kernel),
            _ => None,
        })
    }

    /// Removes one attribute, if it is there.
    pub fn remove(&mut self, name: &str) {
        if self.get(name).is_some()
            && let Some(list) = &mut self.0
        {
            Arc::make_mut(list).retain(|(n, _)| n != name);
            self.0 = self.0.take().filter(|list| !list.is_empty());
        }
    }

    /// The attribute of that name.
    pub fn get(&self, name: &str) -> Option<&Attr> {
        self.list().iter().find(|(n, _)| n == name).map(|(_, a)| a)
    }

    /// All of them, in order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Attr)> {
        self.list().iter().map(|(n, a)| (n.as_ref(), a))
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// A truth value; false if absent.
    pub fn bool(&self, name: &str) -> bool {
        matches!(self.get(name), Some(Attr::Bool(true)))
    }

    /// An integer, if present.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.get(name) {
            Some(Attr::Int(i)) => Some(*i),
            _ => None,
        }
    }

    /// A number, if present; integers count.
    pub fn float(&self, name: &str) -> Option<f64> {
        match self.get(name) {
            Some(Attr::Float(v)) => Some(*v),
            Some(Attr::Int(i)) => Some(*i as f64),
            _ => None,
        }
    }

    /// A dtype, if present.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        match self.get(name) {
            Some(Attr::DType(d)) => Some(*d),
            _ => None,
        }
    }

    /// A list of integers; empty if absent.
    pub fn ints(&self, name: &str) -> &[i64] {
        match self.get(name) {
            Some(Attr::Ints(list)) => list,
            _ => &[],
        }
    }

    /// An integer or what names make of one, if present.
    pub fn size(&self, name: &str) -> Option<Size> {
        match self.get(name) {
            Some(Attr::Int(i)) => Some(Size::from(*i)),
            Some(Attr::Size(size)) => Some(*size),
            _ => None,
        }
    }

    /// A list of integers or of what names make of them; empty if absent.
    pub fn sizes(&self, name: &str) -> SmallVec<[Size; 4]> {
        match self.get(name) {
            Some(Attr::Ints(list)) => list.iter().map(|i| Size::from(*i)).collect(),
            Some(Attr::Sizes(list)) => list.clone(),
            _ => SmallVec::new(),
        }
    }

    /// A number or what names make of one, if present; integers count.
    pub fn number(&self, name: &str) -> Option<Number> {
        match self.get(name) {
            Some(Attr::Number(number)) => Some(*number),
            Some(Attr::Size(size)) => Some(Number::Size(*size)),
            _ => self.float(name).map(Number::F64),
        }
    }

    /// True if something in it depends on names.
    pub fn has_names(&self) -> bool {
        self.list().iter().any(|(_, attr)| attr.sizes().any(Size::has_names))
    }

    /// True if something in it is of an op that failed.
    #[inline]
    pub(crate) fn is_unknown(&self) -> bool {
        self.list().iter().any(|(_, attr)| attr.sizes().any(Size::is_unknown))
    }

    /// A list of numbers; empty if absent.
    pub fn floats(&self, name: &str) -> &[f64] {
        match self.get(name) {
            Some(Attr::Floats(list)) => list,
            _ => &[],
        }
    }

    /// A text, if present.
    pub fn str(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Attr::Str(s)) => Some(s),
            _ => None,
        }
    }
}

impl fmt::Display for Attrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (i, (name, value)) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{name} = {value}")?;
        }
        f.write_str("}")
    }
}

impl From<bool> for Attr {
    fn from(v: bool) -> Self {
        Attr::Bool(v)
    }
}

impl From<i64> for Attr {
    fn from(v: i64) -> Self {
        Attr::Int(v)
    }
}

impl From<f64> for Attr {
    fn from(v: f64) -> Self {
        Attr::Float(v)
    }
}

impl From<DType> for Attr {
    fn from(v: DType) -> Self {
        Attr::DType(v)
    }
}

impl From<&[i64]> for Attr {
    fn from(v: &[i64]) -> Self {
        Attr::Ints(v.into())
    }
}

impl From<Size> for Attr {
    fn from(size: Size) -> Self {
        size.plain().map_or(Attr::Size(size), Attr::Int)
    }
}

impl From<&[usize]> for Attr {
    fn from(v: &[usize]) -> Self {
        Attr::Ints(v.iter().map(|&n| n as i64).collect())
    }
}

impl From<&[Size]> for Attr {
    fn from(sizes: &[Size]) -> Self {
        match sizes.iter().map(|size| size.plain()).collect() {
            Some(numbers) => Attr::Ints(numbers),
            None => Attr::Sizes(sizes.into()),
        }
    }
}

impl From<Number> for Attr {
    fn from(number: Number) -> Self {
        match number.value() {
            Some(value) => Attr::Float(value),
            None => Attr::Number(number),
        }
    }
}

impl Attr {
    /// The sizes in it that are not plain numbers.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = Size> + '_ {
        let (one, list): (Option<Size>, &[Size]) = match self {
            Attr::Size(size) => (Some(*size), &[]),
            Attr::Number(number) => (number.size(), &[]),
            Attr::Sizes(list) => (None, list),
            _ => (None, &[]),
        };
        one.into_iter().chain(list.iter().copied())
    }

    /// The same with other sizes; what becomes a number is one.
    pub(crate) fn map_sizes(&self, with: &dyn Fn(Size) -> Size) -> Attr {
        match self {
            Attr::Size(size) => with(*size).into(),
            Attr::Number(number) => number.map(with).into(),
            Attr::Sizes(list) => list.iter().map(|size| with(*size)).collect::<Vec<_>>()[..].into(),
            _ => self.clone(),
        }
    }
}

impl From<&[f64]> for Attr {
    fn from(v: &[f64]) -> Self {
        Attr::Floats(v.into())
    }
}

impl From<&str> for Attr {
    fn from(v: &str) -> Self {
        Attr::Str(v.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_sorted_and_printed() {
        let a = Attrs::new()
            .with("to", DType::BF16)
            .with("axes", &[1i64, 0][..])
            .with("eps", 1e-5)
            .with("to", DType::F16);
        assert_eq!(a.to_string(), "{axes = [1, 0], eps = 1e-5, to = f16}");
        assert_eq!((a.float("eps"), a.dtype("to")), (Some(1e-5), Some(DType::F16)));
        assert_eq!(Attrs::new().with("v", 1.0).to_string(), "{v = 1.0}");
    }
}
