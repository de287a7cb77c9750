//! Operands and attributes on their way into a [`Tracer`](crate::Tracer).

mod dims;

pub use dims::{Dims, IntoDims};

use crate::graph::Groups;
use crate::op::{AttrKind, OperandKind, Schema};
use crate::{Attr, Attrs, DType, Number, Shape, Size, Var};
use smallvec::SmallVec;

/// The results of one op.
pub type Results<'t> = SmallVec<[Var<'t>; 1]>;

/// Flat operands and their split among the operands of a schema.
#[derive(Clone, Debug, Default)]
pub struct Args<'t> {
    /// In order.
    pub vars: SmallVec<[Var<'t>; 4]>,
    /// How many of them each operand of the schema takes.
    pub groups: Groups,
}

/// What the operands of a schema can be given as: the parameter of [`OperandOf`].
pub mod given {
    /// A value.
    pub enum One {}
    /// A value, or none.
    pub enum Optional {}
    /// Several values.
    pub enum List {}
    /// A value, or a number in its place.
    pub enum OrNumber {}
}

/// What can be given for an operand of kind `K`, one of [`given`].
pub trait OperandOf<'t, K> {
    /// Appends the values and returns how many; a number is the attribute `scalar`.
    fn append(self, to: &mut SmallVec<[Var<'t>; 4]>, attrs: &mut Attrs) -> u16;
}

macro_rules! values {
    ($([$($bounds:tt)*] $kind:ident as $ty:ty: |$given:ident| $values:expr),+ $(,)?) => { $(
        impl<'t, $($bounds)*> OperandOf<'t, given::$kind> for $ty {
            fn append(self, to: &mut SmallVec<[Var<'t>; 4]>, _: &mut Attrs) -> u16 {
                let before = to.len();
                let $given = self;
                to.extend($values);
                (to.len() - before) as u16
            }
        }
    )+ };
}

values! {
    [] One as Var<'t>: |x| [x],
    [] One as &Var<'t>: |x| [*x],
    [] Optional as Var<'t>: |x| [x],
    [] Optional as &Var<'t>: |x| [*x],
    [] Optional as Option<Var<'t>>: |x| x,
    [] List as &[Var<'t>]: |x| x.iter().copied(),
    [const N: usize] List as &[Var<'t>; N]: |x| x.iter().copied(),
    [const N: usize] List as [Var<'t>; N]: |x| x,
    [] OrNumber as Var<'t>: |x| [x],
    [] OrNumber as &Var<'t>: |x| [*x],
}

macro_rules! numbers {
    ($($ty:ty),+) => { $(
        impl<'t> OperandOf<'t, given::OrNumber> for $ty {
            fn append(self, _: &mut SmallVec<[Var<'t>; 4]>, attrs: &mut Attrs) -> u16 {
                attrs.set("scalar", self);
                0
            }
        }
    )+ };
}

numbers!(f64, i64, Number, Size);

impl<'t> Args<'t> {
    /// No operands.
    pub fn new() -> Self {
        Args::default()
    }

    /// Each value is one operand.
    pub fn of(vars: &[Var<'t>]) -> Self {
        Args { vars: SmallVec::from_slice(vars), groups: SmallVec::from_elem(1, vars.len()) }
    }

    /// The flat values with the split of another node.
    pub fn grouped(vars: &[Var<'t>], groups: &Groups) -> Self {
        Args { vars: SmallVec::from_slice(vars), groups: groups.clone() }
    }

    /// Appends an operand: a value, perhaps a value, several.
    pub fn push(&mut self, operand: impl IntoIterator<Item = Var<'t>>) {
        let before = self.vars.len();
        self.vars.extend(operand);
        self.groups.push((self.vars.len() - before) as u16);
    }

    /// Appends what was given for an operand of kind `K`; a number becomes an attribute.
    pub fn take<K>(&mut self, operand: impl OperandOf<'t, K>, attrs: &mut Attrs) {
        let count = operand.append(&mut self.vars, attrs);
        self.groups.push(count);
    }

    /// The same behind a first operand.
    #[must_use]
    pub fn after(mut self, first: Var<'t>) -> Self {
        self.vars.insert(0, first);
        self.groups.insert(0, 1);
        self
    }

    /// Compares the operands with a schema.
    pub(crate) fn check(&self, schema: &Schema) -> Result<(), String> {
        let wanted = schema.operands;
        if self.groups.len() != wanted.len() {
            return Err(format!("takes {} operands, found {}", wanted.len(), self.groups.len()));
        }
        for (operand, &n) in wanted.iter().zip(&self.groups) {
            match operand.kind {
                OperandKind::One if n != 1 => {
                    return Err(format!("operand `{}` is one value, found {n}", operand.name));
                }
                OperandKind::Optional if n > 1 => {
                    return Err(format!(
                        "operand `{}` is at most one value, found {n}",
                        operand.name
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Compares attributes with a schema; integers given for numbers become numbers, and a `false` is
/// left out.
pub(crate) fn check_attrs(schema: &Schema, attrs: &mut Attrs) -> Result<(), String> {
    if let Some((name, _)) = attrs.iter().find(|(n, _)| !schema.attrs.iter().any(|d| d.name == *n))
    {
        let known: Vec<_> = schema.attrs.iter().map(|d| d.name).collect();
        return Err(format!(
            "no attribute `{name}`: it has {}",
            if known.is_empty() { "none".into() } else { known.join(", ") }
        ));
    }
    for def in schema.attrs {
        let fits = match (def.kind, attrs.get(def.name)) {
            (
                AttrKind::Bool
                | AttrKind::OptInt
                | AttrKind::OptFloat
                | AttrKind::OptDType
                | AttrKind::OptNumber
                | AttrKind::OptFloats
                | AttrKind::OptStr,
                None,
            ) => true,
            (_, None) => return Err(format!("attribute `{}` is missing", def.name)),
            (AttrKind::Bool, Some(Attr::Bool(v))) => {
                if !v {
                    attrs.remove(def.name);
                }
                true
            }
            (AttrKind::Float | AttrKind::OptFloat | AttrKind::OptNumber, Some(Attr::Int(v))) => {
                let v = *v as f64;
                attrs.set(def.name, v);
                true
            }
            (AttrKind::OptNumber, Some(Attr::Size(size))) => {
                if size.is_out_of_range() {
                    return Err(format!("attribute `{}` is a size out of range", def.name));
                }
                let number = crate::Number::Size(*size);
                attrs.set(def.name, number);
                true
            }
            (AttrKind::OptNumber, Some(Attr::Number(number))) => {
                if number.size().is_some_and(Size::is_out_of_range) {
                    return Err(format!("attribute `{}` is a size out of range", def.name));
                }
                true
            }
            (AttrKind::OptFloats, Some(Attr::Ints(v))) => {
                let v: Vec<f64> = v.iter().map(|&i| i as f64).collect();
                attrs.set(def.name, &v[..]);
                true
            }
            (AttrKind::Int | AttrKind::OptInt | AttrKind::Size, Some(Attr::Int(_)))
            | (AttrKind::Size, Some(Attr::Size(_)))
            | (AttrKind::Sizes, Some(Attr::Ints(_) | Attr::Sizes(_)))
            | (AttrKind::OptNumber, Some(Attr::Float(_)))
            | (AttrKind::Float | AttrKind::OptFloat, Some(Attr::Float(_)))
            | (AttrKind::DType | AttrKind::OptDType, Some(Attr::DType(_)))
            | (AttrKind::Ints, Some(Attr::Ints(_)))
            | (AttrKind::OptFloats, Some(Attr::Floats(_)))
            | (AttrKind::OptStr, Some(Attr::Str(_)))
            | (AttrKind::Kernel, Some(Attr::Kernel(_))) => true,
            _ => false,
        };
        if !fits {
            return Err(format!(
                "attribute `{}` is to be {:?}, found {}",
                def.name,
                def.kind,
                attrs.get(def.name).expect("present")
            ));
        }
    }
    Ok(())
}

/// What can be given for an attribute.
pub trait IntoAttr {
    /// Sets it, unless there is nothing to set.
    fn put(self, name: &'static str, attrs: &mut Attrs);
}

impl IntoAttr for bool {
    fn put(self, name: &'static str, attrs: &mut Attrs) {
        if self {
            attrs.set(name, true);
        }
    }
}

impl<T: IntoAttr> IntoAttr for Option<T> {
    fn put(self, name: &'static str, attrs: &mut Attrs) {
        if let Some(value) = self {
            value.put(name, attrs);
        }
    }
}

macro_rules! into_attr {
    ($($ty:ty),+) => { $(
        impl IntoAttr for $ty {
            fn put(self, name: &'static str, attrs: &mut Attrs) {
                attrs.set(name, self);
            }
        }
    )+ };
}

into_attr!(i64, f64, Size, DType, &[i64], &[f64], &str);

/// What can be given for an attribute that is a size: every integer, and a [`Size`].
pub trait IntoSize: IntoAttr {}

impl IntoSize for i64 {}
impl IntoSize for Size {}

/// What can be given for a list of sizes: integers of which -1 may mean "what is left", sizes, a
/// shape.
pub trait IntoSizes: IntoAttr {}

impl IntoSizes for &[i64] {}

macro_rules! one_size {
    ($($ty:ty),+) => { $(
        impl IntoAttr for $ty {
            fn put(self, name: &'static str, attrs: &mut Attrs) {
                attrs.set(name, Size::from(self));
            }
        }

        impl IntoSize for $ty {}
    )+ };
}

one_size!(usize, i32);

macro_rules! many_sizes {
    ($([$($bounds:tt)*] $ty:ty),+ $(,)?) => { $(
        impl<$($bounds)*> IntoAttr for $ty {
            fn put(self, name: &'static str, attrs: &mut Attrs) {
                let sizes: SmallVec<[Size; 4]> = self.iter().map(|n| Size::from(*n)).collect();
                attrs.set(name, &sizes[..]);
            }
        }

        impl<$($bounds)*> IntoSizes for $ty {}
    )+ };
}

many_sizes! {
    [const N: usize] [i64; N],
    [const N: usize] [i32; N],
    [const N: usize] [usize; N],
    [const N: usize] [Size; N],
    [const N: usize] &[i64; N],
    [const N: usize] &[i32; N],
    [const N: usize] &[usize; N],
    [const N: usize] &[Size; N],
    [] &[usize],
    [] &[Size],
    [] &Vec<i64>,
    [] &Vec<Size>,
    [] &SmallVec<[i64; 4]>,
    [] &SmallVec<[Size; 4]>,
    [] &Shape,
}
