//! Equations between ops, tried in the interpreter.

use super::values::{bits, every, has_sign, numbers, pairs, some, tensor};
use std::collections::HashMap;
use tracecast_ir::eval::{self, Value};
use tracecast_ir::op::{Compares, Magnitude, Signs, WithItself};
use tracecast_ir::ops::infer;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{Args, Attrs, DType, OpDef, OpRef, TensorType, Tracer, Var};

/// What is wrong with an equation; `None` if nothing is.
pub(crate) type Wrong = Option<String>;

/// An op of operands of one dtype.
pub(crate) struct Case<'a> {
    pub(crate) op: &'a OpRef,
    pub(crate) dtype: DType,
    /// The attributes that it needs, but for `scalar`.
    pub(crate) attrs: Attrs,
}

impl Case<'_> {
    /// The values that a program makes of these operands, or why it makes none.
    fn made(
        &self,
        operands: &[Vec<u64>],
        record: impl for<'t> Fn(&'t Tracer, &[Var<'t>]) -> Vec<Var<'t>>,
    ) -> Result<Vec<Value>, String> {
        let t = Tracer::explicit("equation");
        let ty = |list: &Vec<u64>| TensorType::new(self.dtype, [list.len()]);
        let ports = operands.iter().enumerate();
        let vars: Vec<_> = ports.map(|(i, list)| t.input(&format!("x{i}"), ty(list))).collect();
        for (i, y) in record(&t, &vars).iter().enumerate() {
            t.output(&format!("y{i}"), *y);
        }
        let graph = t.finish().map_err(|e| e.to_string())?;
        let values = operands.iter().enumerate();
        let inputs: HashMap<String, Value> =
            values.map(|(i, list)| (format!("x{i}"), tensor(self.dtype, list))).collect();
        let made = eval::graph(&graph, &inputs).map_err(|e| e.to_string())?;
        Ok(made.outputs.into_iter().map(|(_, value)| value).collect())
    }

    /// Where two sides of an equation differ.
    fn differ(
        &self,
        operands: &[Vec<u64>],
        sides: impl for<'t> Fn(&'t Tracer, &[Var<'t>]) -> [Var<'t>; 2],
    ) -> Wrong {
        let made = match self.made(operands, |t, vars| sides(t, vars).to_vec()) {
            Ok(made) => made,
            Err(why) => return Some(why),
        };
        self.difference(operands, &made[0], &made[1])
    }

    /// Where two values of these operands differ.
    fn difference(&self, operands: &[Vec<u64>], left: &Value, right: &Value) -> Wrong {
        let at = left.first_difference(right)?;
        let of: Vec<f64> =
            operands.iter().map(|list| tensor(self.dtype, &list[at..=at]).to_f64s()[0]).collect();
        let [left, right] = [left, right].map(|v| v.to_f64s().get(at).copied());
        Some(format!("of {of:?} one side is {left:?}, the other {right:?}"))
    }

    /// The op, or another, of these operands, and perhaps with a number in the place of the second.
    pub(crate) fn apply<'t>(&self, op: &OpRef, vars: &[Var<'t>], number: Option<f64>) -> Var<'t> {
        let attrs = if op == self.op { self.attrs.clone() } else { Attrs::new() };
        let attrs = number.map_or(attrs.clone(), |c| attrs.with("scalar", c));
        let mut groups: tracecast_ir::graph::Groups = vars.iter().map(|_| 1).collect();
        groups.resize(op.def().schema.operands.len(), 0);
        vars[0].tracer().apply(op.clone(), Args::grouped(vars, &groups), attrs)[0]
    }

    /// `op(x, c)`: with the number as attribute if the op takes one, else as a tensor.
    fn with<'t>(&self, x: Var<'t>, c: f64) -> Var<'t> {
        if self.op.facts().takes_number {
            return self.apply(self.op, &[x], Some(c));
        }
        self.apply(self.op, &[x, x.tracer().full(x.ty(), c)], None)
    }

    fn takes_second(&self) -> bool {
        self.op.def().schema.operands.len() == 2
    }

    fn all(&self) -> Vec<u64> {
        every(self.dtype)
    }

    fn each_pair(&self) -> [Vec<u64>; 2] {
        pairs(&some(self.dtype))
    }

    /// Everything that the op states and that does not hold, with an example of each.
    pub(crate) fn broken(&self) -> Vec<String> {
        let facts = self.op.facts();
        let mut found: Vec<(&str, Wrong)> = vec![("opposite", self.opposite())];
        let mut when = |is_stated: bool, law, wrong: &dyn Fn() -> Wrong| {
            found.extend(is_stated.then(|| (law, wrong())));
        };
        when(facts.takes_number, "takes a number", &|| self.number_stands_for_operand());
        when(self.op.swapped().is_some(), "swapped", &|| self.exchanged());
        when(facts.is_involution, "involution", &|| self.twice());
        when(facts.passes_signs, "passes signs", &|| self.sign_of_operands());
        when(facts.ignores_sign, "ignores the sign", &|| self.without_sign());
        when(facts.keeps_nonnegative, "keeps what is not negative", &|| self.not_negative());
        when(facts.signs != Signs::Any, "signs", &|| self.signs(facts.signs));
        found.extend(facts.neutral.map(|c| ("neutral", self.neutral(c))));
        // An unsigned tensor takes no -1.
        let negating =
            facts.negating.filter(|c| infer::need_held(self.dtype, "scalar", *c).is_ok());
        found.extend(negating.map(|c| ("negating", self.negating(c))));
        found.extend(facts.absorbing.map(|c| ("absorbing", self.absorbing(c))));
        found.extend(facts.settling.map(|c| ("settling", self.settling(c))));
        found.extend(facts.with_itself.map(|gives| ("with itself", self.with_itself(gives))));
        found.extend(facts.subtracts.map(|other| ("subtracts", self.subtracts(other))));
        found.extend(facts.by_inverse.map(|other| ("by the inverse", self.by_inverse(other))));
        found.extend(facts.compares.map(|what| ("compares", self.compares(what))));
        found.extend(facts.magnitude.map(|of| ("magnitude", self.magnitude(of))));
        let broken = found.into_iter().filter_map(|(law, wrong)| Some((law, wrong?)));
        broken.map(|(law, why)| format!("{:?} of {}: {law}: {why}", self.op, self.dtype)).collect()
    }

    fn number_stands_for_operand(&self) -> Wrong {
        let takes = self.op.def().schema.attrs.iter().any(|attr| attr.name == "scalar");
        if !takes {
            return Some("has no attribute `scalar`".to_owned());
        }
        if !self.takes_second() {
            return None;
        }
        let of = [some(self.dtype)];
        numbers(self.dtype).into_iter().find_map(|c| {
            // What the op refuses, such as division by zero, it refuses both ways.
            let by_tensor = self.made(&of, |t, x| vec![self.of_full(t, x[0], c)]);
            let by_number = self.made(&of, |_, x| vec![self.apply(self.op, x, Some(c))]);
            match (by_tensor, by_number) {
                (Ok(left), Ok(right)) => self.difference(&of, &left[0], &right[0]),
                (Err(left), Err(right)) => (left != right).then(|| format!("{left}, but {right}")),
                (Err(one), Ok(_)) | (Ok(_), Err(one)) => Some(one),
            }
        })
    }

    /// `op(x, c)` with the number as a tensor.
    fn of_full<'t>(&self, t: &'t Tracer, x: Var<'t>, c: f64) -> Var<'t> {
        self.apply(self.op, &[x, t.full(x.ty(), c)], None)
    }

    /// `op(x, y) = op(y, x)`, or the op that is stated in the place of the right one.
    pub(crate) fn exchanged(&self) -> Wrong {
        let other = self.op.swapped().unwrap_or_else(|| self.op.clone());
        if other.def().schema.operands.len() == 2 {
            return self.differ(&self.each_pair(), |_, x| {
                [self.apply(self.op, x, None), self.apply(&other, &[x[1], x[0]], None)]
            });
        }
        numbers(self.dtype).into_iter().find_map(|c| {
            self.differ(&[some(self.dtype)], |t, x| {
                let first = t.full(x[0].ty(), c);
                let left = self.apply(self.op, &[first, x[0]], None);
                [left, self.apply(&other, &[x[0]], Some(c))]
            })
        })
    }

    fn opposite(&self) -> Wrong {
        let is_number = |bits: &u64| !tensor(self.dtype, &[*bits]).to_f64s()[0].is_nan();
        let mut values = some(self.dtype);
        [true, false].into_iter().find_map(|with_nan| {
            if !with_nan {
                values.retain(is_number);
            }
            let other = self.op.opposite(with_nan)?;
            self.differ(&pairs(&values), |_, x| {
                [self.apply(self.op, x, None).logical_not(), self.apply(&other, x, None)]
            })
        })
    }

    fn neutral(&self, c: f64) -> Wrong {
        self.differ(&[self.all()], |_, x| [self.with(x[0], c), x[0]])
    }

    fn negating(&self, c: f64) -> Wrong {
        self.differ(&[self.all()], |_, x| [self.with(x[0], c), x[0].neg()])
    }

    fn absorbing(&self, c: f64) -> Wrong {
        if self.dtype.is_float() {
            return None;
        }
        self.differ(&[self.all()], |t, x| [self.with(x[0], c), t.full(x[0].ty(), c)])
    }

    fn settling(&self, c: f64) -> Wrong {
        self.differ(&[self.all()], |_, x| {
            let once = self.with(x[0], c);
            [self.with(once, c), once]
        })
    }

    pub(crate) fn with_itself(&self, gives: WithItself) -> Wrong {
        if matches!(gives, WithItself::NumberExceptFloats(_)) && self.dtype.is_float() {
            return None;
        }
        self.differ(&[self.all()], |t, x| {
            let y = self.apply(self.op, &[x[0], x[0]], None);
            let expected = match gives {
                WithItself::Operand => x[0],
                WithItself::Number(c) | WithItself::NumberExceptFloats(c) => t.full(y.ty(), c),
            };
            [y, expected]
        })
    }

    /// `op(op(x)) = x`.
    pub(crate) fn twice(&self) -> Wrong {
        self.differ(&[self.all()], |_, x| {
            let once = self.apply(self.op, x, None);
            [self.apply(self.op, &[once], None), x[0]]
        })
    }

    fn subtracts(&self, other: &'static OpDef) -> Wrong {
        self.differ(&self.each_pair(), |_, x| {
            let left = self.apply(self.op, &[x[0], x[1].neg()], None);
            [left, self.apply(&other.into(), x, None)]
        })
    }

    /// `op(-x, y) = op(x, -y) = -op(x, y)`.
    pub(crate) fn sign_of_operands(&self) -> Wrong {
        let pairs = self.each_pair();
        self.differ(&pairs, |_, x| {
            let left = self.apply(self.op, &[x[0].neg(), x[1]], None);
            [left, self.apply(self.op, x, None).neg()]
        })
        .or_else(|| {
            self.differ(&pairs, |_, x| {
                let left = self.apply(self.op, &[x[0], x[1].neg()], None);
                [left, self.apply(self.op, x, None).neg()]
            })
        })
    }

    /// `op(-x) = op(x)`.
    pub(crate) fn without_sign(&self) -> Wrong {
        if self.dtype == DType::U8 {
            return None;
        }
        self.differ(&[self.all()], |_, x| {
            [self.apply(self.op, &[x[0].neg()], None), self.apply(self.op, x, None)]
        })
    }

    fn by_inverse(&self, other: &'static OpDef) -> Wrong {
        if !self.dtype.is_float() {
            return None;
        }
        let exponents: &[i32] = if self.dtype == DType::F64 {
            &[-1022, -3, 0, 7, 1022]
        } else {
            &[-126, -3, 0, 7, 126]
        };
        let powers = exponents.iter().flat_map(|e| [2f64.powi(*e), -2f64.powi(*e)]);
        powers.into_iter().find_map(|c| {
            self.differ(&[self.all()], |_, x| {
                let left = self.apply(self.op, x, Some(c));
                [left, self.apply(&other.into(), x, Some(1.0 / c))]
            })
        })
    }

    /// `op(x) = x` for every `x` without a sign.
    pub(crate) fn not_negative(&self) -> Wrong {
        let mut values = self.all();
        if self.dtype != DType::U8 && self.dtype != DType::Bool {
            values.retain(|bits| !has_sign(self.dtype, *bits));
        }
        self.differ(&[values], |_, x| [self.apply(self.op, x, None), x[0]])
    }

    /// The results have such signs, of floats.
    pub(crate) fn signs(&self, signs: Signs) -> Wrong {
        let operands = match self.op.def().schema.operands.len() {
            1 => vec![self.all()],
            2 => self.each_pair().to_vec(),
            _ => return None,
        };
        if signs == Signs::Any || !self.dtype.is_float() {
            return None;
        }
        let made = match self.made(&operands, |_, x| vec![self.apply(self.op, x, None)]) {
            Ok(made) => made,
            Err(why) => return Some(why),
        };
        let dtype = made[0].ty.dtype;
        let is_wrong = |(bits, number): &(u64, f64)| {
            has_sign(dtype, *bits) && (signs == Signs::Cleared || !number.is_nan())
        };
        let mut results = bits(&made[0]).into_iter().zip(made[0].to_f64s());
        results.find(is_wrong).map(|(bits, number)| format!("a result is {number:?}, {bits:#x}"))
    }

    /// The truth value is decided by how the operands compare, and by what it is said to ask.
    fn compares(&self, what: Compares) -> Wrong {
        let operands = self.each_pair();
        let made = match self.made(&operands, |_, x| vec![self.apply(self.op, x, None)]) {
            Ok(made) => made,
            Err(why) => return Some(why),
        };
        if made[0].ty.dtype != DType::Bool {
            return Some(format!("the result is {}", made[0].ty));
        }
        let [left, right] = [0, 1].map(|i| tensor(self.dtype, &operands[i]).to_f64s());
        let mut seen: HashMap<Option<std::cmp::Ordering>, f64> = HashMap::new();
        for ((x, y), holds) in left.iter().zip(&right).zip(made[0].to_f64s()) {
            // Of integers beyond 2^53 an f64 does not tell how they compare.
            if self.dtype == DType::I64 && x == y && x.abs() > 2f64.powi(53) {
                continue;
            }
            let before = *seen.entry(x.partial_cmp(y)).or_insert(holds);
            if before != holds {
                return Some(format!("{x} and {y} compare as others do, but give {holds}"));
            }
        }
        use std::cmp::Ordering::{Equal, Greater, Less};
        let of = |order| seen[&Some(order)];
        let is_equality = of(Less) == of(Greater) && of(Less) != of(Equal);
        let is_order = of(Less) != of(Greater);
        let is_right = match what {
            Compares::Equality => is_equality,
            Compares::Order => is_order,
        };
        (!is_right).then(|| format!("gives {seen:?}"))
    }

    /// Results of small integers are integers, and no larger than that, as far as the dtype holds
    /// all integers.
    fn magnitude(&self, magnitude: Magnitude) -> Wrong {
        if matches!(self.dtype, DType::U8 | DType::Bool) {
            return None;
        }
        let small: Vec<i64> = (-5..=5).collect();
        let list = Value::from_fn(TensorType::new(self.dtype, [small.len()]), |i| small[i] as f64);
        let [first, second] = pairs(&bits(&list.expect("small integers are of every dtype")));
        let is_binary = magnitude != Magnitude::Operand;
        let by_number = is_binary && !self.takes_second();
        let c = 3.0;
        let made = self.made(&[first.clone(), second.clone()], |_, x| {
            vec![match (is_binary, by_number) {
                (false, _) => self.apply(self.op, &x[..1], None),
                (true, true) => self.apply(self.op, &x[..1], Some(c)),
                (true, false) => self.apply(self.op, x, None),
            }]
        });
        let made = match made {
            Ok(made) => made,
            Err(why) => return Some(why),
        };
        if made[0].ty.dtype == DType::U8 {
            return None;
        }
        let exact = self.dtype.storage().float.map_or(f64::INFINITY, |float| float.exact());
        let [x, y] = [&first, &second].map(|list| tensor(self.dtype, list).to_f64s());
        let all = x.iter().zip(&y).zip(made[0].to_f64s());
        all.into_iter().find_map(|((x, y), z)| {
            let y = if by_number { c } else { *y };
            let most = match magnitude {
                Magnitude::Operand => x.abs(),
                Magnitude::Sum => x.abs() + y.abs(),
                Magnitude::Product => x.abs() * y.abs(),
            };
            let fits = z.fract() == 0.0 && z.abs() <= most;
            (!fits && most <= exact).then(|| format!("of {x} and {y} it gives {z}"))
        })
    }
}
