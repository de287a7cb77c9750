//! The list of scalar functions: the name of each, and which definition in [`math`] it is.
//!
//! A new function is one entry in this list and its definition in [`math`]. Whoever needs a table
//! of functions, such as a device with precompiled routines, makes it from [`Function::ALL`] with
//! [`PerFunction`], and names none of them.

use super::math::{self, Double, Lane};

/// A scalar function, as a type: what generic code over all functions is instantiated with.
pub trait Definition {
    /// Which function it is.
    const FUNCTION: Function;
    /// The function of every lane.
    fn of_lanes<L: Lane>(x: L) -> L;
    /// The function of one f64.
    fn of_f64(x: f64) -> f64;
    /// The function of every lane of f64; `None` if it is made for one number at a time.
    fn of_doubles<D: Double>(x: D) -> Option<D>;
}

/// Something that is made for one function, whichever it is: see [`Function::with`].
pub trait PerFunction {
    /// What is made.
    type Output;
    /// Makes it for the function `F`.
    fn make<F: Definition>(self) -> Self::Output;
}

macro_rules! functions {
    (@doubles $x:ident, $of_f64:ident, doubles) => {
        Some(math::$of_f64($x))
    };
    (@doubles $x:ident, $of_f64:ident) => {{
        let _ = $x;
        None
    }};
    (@runs doubles) => { true };
    (@runs) => { false };
    ($($(#[$doc:meta])* $function:ident = $name:literal, $of_lanes:ident, $of_f64:ident, $code:ident $(, $doubles:ident)?;)*) => {
        /// Functions of one float whose operation sequence is fixed in [`math`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Function {
            $($(#[$doc])* $function,)*
        }

        impl Function {
            /// Every function, in the order of declaration: `ALL[f as usize]` is `f`.
            pub const ALL: [Function; [$(Function::$function),*].len()] = [$(Function::$function),*];

            /// The name used in text.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Function::$function => $name,)*
                }
            }

            /// What kind of code its definition is.
            pub const fn code(self) -> Code {
                match self {
                    $(Function::$function => Code::$code,)*
                }
            }

            /// True if its f64 form is a sequence of operations on lanes:
            /// [`Definition::of_doubles`].
            pub const fn has_doubles(self) -> bool {
                match self {
                    $(Function::$function => functions!(@runs $($doubles)?),)*
                }
            }

            /// What `per_function` makes for this function.
            pub fn with<P: PerFunction>(self, per_function: P) -> P::Output {
                match self {
                    $(Function::$function => per_function.make::<types::$function>(),)*
                }
            }
        }

        /// The functions as types.
        mod types {
            use super::{Definition, Double, Function, Lane, math};
            $(
                pub(super) enum $function {}

                impl Definition for $function {
                    const FUNCTION: Function = Function::$function;

                    #[inline(always)]
                    fn of_lanes<L: Lane>(x: L) -> L {
                        math::$of_lanes(x)
                    }

                    #[inline(always)]
                    fn of_f64(x: f64) -> f64 {
                        math::$of_f64(x)
                    }

                    #[inline(always)]
                    fn of_doubles<D: Double>(x: D) -> Option<D> {
                        functions!(@doubles x, $of_f64 $(, $doubles)?)
                    }
                }
            )*
        }
    };
}

functions! {
    /// `e` to the power.
    Exp = "exp", exp, exp_f64, StraightLine, doubles;
    /// Natural logarithm.
    Log = "log", log, log_f64, StraightLine, doubles;
    /// Hyperbolic tangent.
    Tanh = "tanh", tanh, tanh_f64, StraightLine, doubles;
    /// The error function.
    Erf = "erf", erf, erf_f64, StraightLine, doubles;
    /// Sine.
    Sin = "sin", sin, sin_f64, Patched, doubles;
    /// Cosine.
    Cos = "cos", cos, cos_f64, Patched, doubles;
    /// Tangent.
    Tan = "tan", tan, tan_f64, Patched, doubles;
    /// Inverse sine.
    Asin = "asin", asin, asin_f64, StraightLine, doubles;
    /// Inverse cosine.
    Acos = "acos", acos, acos_f64, StraightLine, doubles;
    /// Inverse tangent.
    Atan = "atan", atan, atan_f64, StraightLine, doubles;
    /// Hyperbolic sine.
    Sinh = "sinh", sinh, sinh_f64, StraightLine, doubles;
    /// Hyperbolic cosine.
    Cosh = "cosh", cosh, cosh_f64, StraightLine, doubles;
    /// Inverse hyperbolic sine.
    Asinh = "asinh", asinh, asinh_f64, StraightLine, doubles;
    /// Inverse hyperbolic cosine.
    Acosh = "acosh", acosh, acosh_f64, StraightLine, doubles;
    /// Inverse hyperbolic tangent.
    Atanh = "atanh", atanh, atanh_f64, StraightLine, doubles;
    /// Two to the power.
    Exp2 = "exp2", exp2, exp2_f64, StraightLine, doubles;
    /// `e` to the power, less one.
    Expm1 = "expm1", expm1, expm1_f64, StraightLine, doubles;
    /// Natural logarithm of one more.
    Log1p = "log1p", log1p, log1p_f64, StraightLine, doubles;
    /// Logarithm to base two.
    Log2 = "log2", log2, log2_f64, StraightLine, doubles;
    /// Logarithm to base ten.
    Log10 = "log10", log10, log10_f64, StraightLine, doubles;
    /// One less the error function.
    Erfc = "erfc", erfc, erfc_f64, StraightLine, doubles;
    /// [`Erfc`](Function::Erfc) times `e` to the power of the square.
    Erfcx = "erfcx", erfcx, erfcx_f64, StraightLine, doubles;
    /// The inverse of the error function.
    Erfinv = "erfinv", erfinv, erfinv_f64, StraightLine, doubles;
    /// The number that a normal number is below with a probability.
    Ndtri = "ndtri", ndtri, ndtri_f64, StraightLine, doubles;
    /// Logarithm of the magnitude of the gamma function.
    Lgamma = "lgamma", lgamma, lgamma_f64, StraightLine, doubles;
    /// Derivative of [`Lgamma`](Function::Lgamma).
    Digamma = "digamma", digamma, digamma_f64, StraightLine, doubles;
    /// Derivative of [`Digamma`](Function::Digamma).
    Trigamma = "trigamma", trigamma, trigamma_f64, StraightLine, doubles;
}

/// What kind of code a definition over lanes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The same operations for every number: a compiler may write them wherever the function is
    /// called.
    StraightLine,
    /// Some lanes need [`Lane::or_exact`] or [`Double::or_exact`]: a device calls a routine.
    Patched,
}

impl Function {
    /// The function of one f32.
    pub fn of_f32(self, x: f32) -> f32 {
        struct Apply(f32);
        impl PerFunction for Apply {
            type Output = f32;
            #[inline(always)]
            fn make<F: Definition>(self) -> f32 {
                F::of_lanes(self.0)
            }
        }
        self.with(Apply(x))
    }

    /// How many units in the last place an f32 may be off at most. Below zero, where `lgamma` and
    /// `digamma` are differences of two numbers, the units are those of the larger of these, and at
    /// least of 1.
    pub const fn bound(self) -> f64 {
        match self {
            Function::Asinh => 2.25,
            Function::Erfc | Function::Erfinv => 2.5,
            Function::Lgamma => 2.75,
            Function::Erfcx | Function::Ndtri => 3.25,
            Function::Digamma => 4.0,
            Function::Trigamma => 6.0,
            _ => 2.0,
        }
    }

    /// How many units in the last place an f64 may be off at most, of a function that
    /// [has a sequence](Function::has_doubles); of others that is not promised. The units of
    /// `digamma` are at least of 1; below zero those of `lgamma` and `digamma` are as for
    /// [an f32](Function::bound).
    pub const fn bound_of_doubles(self) -> Option<f64> {
        if !self.has_doubles() {
            return None;
        }
        Some(match self {
            Function::Log2 | Function::Log10 => 1.0,
            Function::Sin | Function::Cos | Function::Asin | Function::Acos | Function::Atan => 1.0,
            Function::Erf => 1.5,
            Function::Erfc => 3.0,
            Function::Ndtri => 3.5,
            Function::Lgamma => 4.0,
            Function::Erfcx | Function::Trigamma => 5.0,
            Function::Digamma => 6.0,
            _ => 2.0,
        })
    }

    /// The function of one f64.
    pub fn of_f64(self, x: f64) -> f64 {
        struct Apply(f64);
        impl PerFunction for Apply {
            type Output = f64;
            #[inline(always)]
            fn make<F: Definition>(self) -> f64 {
                F::of_f64(self.0)
            }
        }
        self.with(Apply(x))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_is_its_own_definition() {
        struct Which;
        impl PerFunction for Which {
            type Output = Function;
            fn make<F: Definition>(self) -> Function {
                F::FUNCTION
            }
        }
        for (at, function) in Function::ALL.into_iter().enumerate() {
            assert_eq!((function as usize, function.with(Which)), (at, function));
        }
        assert_eq!(Function::Sin.of_f64(1.0), math::sin_f64(1.0));
        assert_eq!(Function::Exp.of_f32(1.0).to_bits(), math::exp(1.0f32).to_bits());
    }

    #[test]
    fn each_function_is_the_same_in_both_widths() {
        for function in Function::ALL {
            for x in [0.25f32, 0.75, 1.5, 3.0] {
                let (single, double) = (f64::from(function.of_f32(x)), function.of_f64(x.into()));
                if double.is_nan() {
                    assert!(single.is_nan(), "{} {x}: {single}", function.name());
                    continue;
                }
                let error = (single - double).abs();
                assert!(error <= 1e-5 * double.abs().max(1.0), "{} {x}: {error}", function.name());
            }
        }
    }
}
