//! The arguments of a recorded call, found by name or by position, with inputs of the program in
//! the place of tensors.

use crate::cases::{Arg, Case};
use std::cell::RefCell;
use tracecast_ir::{DType, TensorType, Tracer, Var};

/// Two lists of axes.
pub(crate) type Lists = (Vec<i64>, Vec<i64>);

/// The arguments of a call.
pub(crate) struct Arguments<'c, 't> {
    pub(crate) t: &'t Tracer,
    pub(crate) case: &'c Case,
    pub(crate) list: Vec<Given<'c, 't>>,
    /// The tensors, by the path of their argument.
    pub(crate) leaves: Vec<(String, Var<'t>)>,
    /// Which of `list` were asked for.
    asked: RefCell<Vec<bool>>,
}

/// An argument.
pub(crate) struct Given<'c, 't> {
    pub(crate) name: Option<&'c str>,
    pub(crate) is: Bound<'c, 't>,
}

/// What an argument is.
#[derive(Clone)]
pub(crate) enum Bound<'c, 't> {
    Tensor(Var<'t>),
    /// A list with tensors in it.
    List(Vec<Bound<'c, 't>>),
    /// Start, stop and step, with tensors among them.
    Slice(Vec<Bound<'c, 't>>),
    Plain(&'c Arg),
}

impl<'t> Bound<'_, 't> {
    /// The tensors, in order; `None` if there is something else.
    pub(crate) fn tensors(&self) -> Option<Vec<Var<'t>>> {
        match self {
            Bound::Tensor(v) => Some(vec![*v]),
            Bound::List(list) => {
                Some(list.iter().map(Bound::tensors).collect::<Option<Vec<_>>>()?.concat())
            }
            Bound::Plain(Arg::List(list)) if list.is_empty() => Some(Vec::new()),
            _ => None,
        }
    }
}

impl<'c, 't> Arguments<'c, 't> {
    /// Makes inputs of the tensors, named by their paths.
    pub(crate) fn new(t: &'t Tracer, case: &'c Case) -> Self {
        let mut leaves = Vec::new();
        let given = case.args.iter().map(|arg| Given {
            name: arg.name.as_deref(),
            is: bind(t, &arg.path, &arg.is, &mut leaves),
        });
        let list: Vec<_> = given.collect();
        let asked = RefCell::new(vec![false; list.len()]);
        Arguments { t, case, list, leaves, asked }
    }

    /// The argument of that name, or the one at that position if it has none.
    pub(crate) fn get(&self, at: usize, name: &str) -> Option<&Bound<'c, 't>> {
        let named = self.list.iter().position(|given| given.name == Some(name));
        let placed = self.list.get(at).filter(|given| given.name.is_none()).map(|_| at);
        let at = named.or(placed)?;
        self.asked.borrow_mut()[at] = true;
        let is_none = |bound: &&Bound<'_, '_>| !matches!(bound, Bound::Plain(Arg::None));
        Some(&self.list[at].is).filter(is_none)
    }

    /// The arguments from a position on: those of variadic calls.
    pub(crate) fn from(&self, at: usize) -> Vec<&Bound<'c, 't>> {
        let positional =
            self.list.iter().enumerate().skip(at).filter(|(_, given)| given.name.is_none());
        positional
            .map(|(i, given)| {
                self.asked.borrow_mut()[i] = true;
                &given.is
            })
            .collect()
    }

    /// The first argument that was not asked for, unless it is None.
    pub(crate) fn left(&self) -> Option<String> {
        let asked = self.asked.borrow();
        let mut all = self.list.iter().enumerate();
        let (i, given) = all.find(|(i, given)| {
            let says_nothing = matches!(given.is, Bound::Plain(Arg::None | Arg::Other));
            !asked[*i] && !says_nothing
        })?;
        Some(given.name.map_or_else(|| format!("argument {i}"), |name| format!("`{name}`")))
    }

    /// The tensor that the op is called on; a number is one without axes.
    pub(crate) fn x(&self) -> Result<Var<'t>, String> {
        let first = self.list.first();
        self.asked.borrow_mut().iter_mut().take(1).for_each(|asked| *asked = true);
        match first.map(|given| &given.is) {
            Some(Bound::Tensor(v)) => Ok(*v),
            Some(Bound::Plain(arg)) => self.scalar(arg),
            _ => Err("takes a tensor first".to_owned()),
        }
    }

    /// A number as a tensor without axes, in the dtype that PyTorch gives it.
    pub(crate) fn scalar(&self, arg: &Arg) -> Result<Var<'t>, String> {
        let dtype = match arg {
            Arg::Bool(_) => DType::Bool,
            Arg::Int(_) => DType::I64,
            _ => DType::F32,
        };
        let number = number(arg).ok_or("takes a tensor first")?;
        Ok(self.t.full(TensorType::scalar(dtype), number))
    }

    pub(crate) fn tensor(&self, at: usize, name: &str) -> Result<Var<'t>, String> {
        self.opt_tensor(at, name)?.ok_or_else(|| format!("takes a tensor `{name}`"))
    }

    pub(crate) fn opt_tensor(&self, at: usize, name: &str) -> Result<Option<Var<'t>>, String> {
        match self.get(at, name) {
            None => Ok(None),
            Some(Bound::Tensor(v)) => Ok(Some(*v)),
            Some(_) => Err(format!("takes a tensor `{name}`")),
        }
    }

    /// A list of tensors, or all positional arguments.
    pub(crate) fn tensors(&self, at: usize, name: &str) -> Result<Vec<Var<'t>>, String> {
        let list = self.get(at, name).and_then(Bound::tensors);
        list.ok_or_else(|| format!("takes tensors `{name}`"))
    }

    /// The positional arguments, which are tensors, or a list of them.
    pub(crate) fn all_tensors(&self) -> Result<Vec<Var<'t>>, String> {
        let list = self.from(0).into_iter().map(Bound::tensors).collect::<Option<Vec<_>>>();
        let named = || self.get(0, "tensors").and_then(Bound::tensors);
        let list = list.map(|list| list.concat()).filter(|list| !list.is_empty()).or_else(named);
        list.ok_or_else(|| "takes tensors".to_owned())
    }

    pub(crate) fn plain(&self, at: usize, name: &str) -> Option<&'c Arg> {
        match self.get(at, name)? {
            Bound::Plain(arg) => Some(arg),
            _ => None,
        }
    }

    pub(crate) fn opt_int(&self, at: usize, name: &str) -> Result<Option<i64>, String> {
        match self.get(at, name) {
            None => Ok(None),
            Some(Bound::Plain(Arg::Int(n))) => Ok(Some(*n)),
            Some(_) => Err(format!("takes an integer `{name}`")),
        }
    }

    pub(crate) fn int(&self, at: usize, name: &str) -> Result<i64, String> {
        self.opt_int(at, name)?.ok_or_else(|| format!("takes an integer `{name}`"))
    }

    /// Integers, or one of them; none if the argument is absent.
    pub(crate) fn opt_ints(&self, at: usize, name: &str) -> Result<Option<Vec<i64>>, String> {
        let wrong = || format!("takes integers `{name}`");
        match self.get(at, name) {
            None => Ok(None),
            Some(Bound::Plain(arg)) => integers(arg).map(Some).ok_or_else(wrong),
            Some(_) => Err(wrong()),
        }
    }

    pub(crate) fn ints(&self, at: usize, name: &str) -> Result<Vec<i64>, String> {
        self.opt_ints(at, name)?.ok_or_else(|| format!("takes integers `{name}`"))
    }

    /// Two lists of integers; of a number `n` the last `n` axes and the first `n`.
    pub(crate) fn pair_of_ints(&self, at: usize, name: &str) -> Result<Option<Lists>, String> {
        if let Some(Bound::Plain(Arg::Int(n))) = self.get(at, name) {
            return Ok(Some(((-n..0).collect(), (0..*n).collect())));
        }
        let wrong = || format!("takes two lists of integers `{name}`");
        match self.get(at, name) {
            None => Ok(None),
            Some(Bound::Plain(Arg::List(list))) => match &list[..] {
                [a, b] => integers(a).zip(integers(b)).map(Some).ok_or_else(wrong),
                _ => Err(wrong()),
            },
            Some(_) => Err(wrong()),
        }
    }

    /// Integers in one list, or each an argument of its own.
    pub(crate) fn sizes(&self, at: usize, name: &str) -> Result<Vec<i64>, String> {
        let several = self.from(at);
        let [Bound::Plain(Arg::Int(_)), ..] = several[..] else { return self.ints(at, name) };
        let each = several.into_iter().map(|bound| match bound {
            Bound::Plain(Arg::Int(n)) => Ok(*n),
            _ => Err(format!("takes integers `{name}`")),
        });
        each.collect()
    }

    pub(crate) fn opt_float(&self, at: usize, name: &str) -> Result<Option<f64>, String> {
        match self.get(at, name) {
            None => Ok(None),
            Some(Bound::Plain(arg)) => {
                number(arg).map(Some).ok_or_else(|| format!("takes a number `{name}`"))
            }
            Some(_) => Err(format!("takes a number `{name}`")),
        }
    }

    pub(crate) fn float(&self, at: usize, name: &str) -> Result<f64, String> {
        self.opt_float(at, name)?.ok_or_else(|| format!("takes a number `{name}`"))
    }

    pub(crate) fn flag(&self, at: usize, name: &str) -> Result<Option<bool>, String> {
        match self.get(at, name) {
            None => Ok(None),
            Some(Bound::Plain(Arg::Bool(b))) => Ok(Some(*b)),
            Some(_) => Err(format!("takes true or false for `{name}`")),
        }
    }

    pub(crate) fn text(&self, at: usize, name: &str) -> Result<Option<&'c str>, String> {
        match self.get(at, name) {
            None => Ok(None),
            Some(Bound::Plain(Arg::Text(text))) => Ok(Some(text)),
            Some(_) => Err(format!("takes a text `{name}`")),
        }
    }

    pub(crate) fn dtype(&self, at: usize, name: &str) -> Result<Option<DType>, String> {
        match self.get(at, name) {
            None => Ok(None),
            Some(Bound::Plain(Arg::DType(dtype))) => Ok(Some(*dtype)),
            Some(_) => Err(format!("takes a dtype `{name}`")),
        }
    }
}

pub(crate) fn number(arg: &Arg) -> Option<f64> {
    match arg {
        Arg::Int(n) => Some(*n as f64),
        Arg::Float(v) => Some(*v),
        Arg::Bool(b) => Some(f64::from(u8::from(*b))),
        _ => None,
    }
}

pub(crate) fn integers(arg: &Arg) -> Option<Vec<i64>> {
    match arg {
        Arg::Int(n) => Some(vec![*n]),
        Arg::List(list) | Arg::Tuple(list) => list
            .iter()
            .map(|arg| match arg {
                Arg::Int(n) => Some(*n),
                _ => None,
            })
            .collect(),
        _ => None,
    }
}

fn bind<'c, 't>(
    t: &'t Tracer,
    path: &str,
    arg: &'c Arg,
    leaves: &mut Vec<(String, Var<'t>)>,
) -> Bound<'c, 't> {
    let mut each = |list: &'c [Arg]| {
        let bound = |(i, arg)| bind(t, &format!("{path}/{i}"), arg, leaves);
        list.iter().enumerate().map(bound).collect()
    };
    match arg {
        Arg::Tensor(value) => {
            let v = t.input(path, value.ty.clone());
            leaves.push((path.to_owned(), v));
            Bound::Tensor(v)
        }
        Arg::List(list) | Arg::Tuple(list) if arg.has_tensors() => Bound::List(each(list)),
        Arg::Slice(list) if arg.has_tensors() => Bound::Slice(each(list)),
        plain => Bound::Plain(plain),
    }
}
