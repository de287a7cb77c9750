//! Which differences the rows of `docs/parity.md` speak of.

use crate::cases::Case;
use crate::compare::{Difference, What};
use std::fmt;

/// What of a call differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A result.
    Out,
    /// A gradient.
    Grad,
    /// It is refused here.
    Refused,
    /// PyTorch refuses it.
    Taken,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Out => "result",
            Part::Grad => "gradient",
            Part::Refused => "refusal",
            Part::Taken => "answer",
        })
    }
}

/// A row of the page and the differences that it names.
pub(crate) struct Known {
    /// The first cell of the row.
    pub(crate) row: &'static str,
    /// The operators.
    ops: &'static [&'static str],
    /// The dtypes; empty for all.
    dtypes: &'static [&'static str],
    part: Part,
    /// What differs in results and gradients.
    what: Option<What>,
}

/// The rows.
pub(crate) const ALL: &[Known] = &[
    Known {
        row: "a float cast to an integer dtype that does not hold it",
        ops: &["byte", "int", "long"],
        dtypes: &["f16", "bf16", "f32", "f64"],
        part: Part::Out,
        what: Some(What::Numbers),
    },
    Known {
        row: "an integer or a truth value where a function needs a float",
        ops: &[
            "cos",
            "div",
            "erf",
            "exp",
            "floor",
            "log",
            "rsqrt",
            "sigmoid",
            "sin",
            "sqrt",
            "tanh",
            "true_divide",
        ],
        dtypes: &["bool", "u8", "i32", "i64"],
        part: Part::Refused,
        what: None,
    },
    Known {
        row: "arithmetic on truth values",
        ops: &["amax", "max", "maximum", "min", "minimum", "mul"],
        dtypes: &["bool"],
        part: Part::Refused,
        what: None,
    },
    Known {
        row: "logic on numbers",
        ops: &["logical_and", "logical_not", "logical_or"],
        dtypes: &["u8", "i32", "i64", "f16", "bf16", "f32", "f64"],
        part: Part::Refused,
        what: None,
    },
    Known {
        row: "`relu(-0.0)`",
        ops: &["relu"],
        dtypes: &["f32", "f64"],
        part: Part::Out,
        what: Some(What::SignsOfZero),
    },
    Known {
        row: "`maximum` and `minimum` of `0.0` and `-0.0`",
        ops: &["max", "maximum", "minimum"],
        dtypes: &["f64"],
        part: Part::Out,
        what: Some(What::SignsOfZero),
    },
    Known {
        row: "the gradient of `maximum` and `minimum` where one operand is NaN",
        ops: &["max", "maximum", "min", "minimum"],
        dtypes: &[],
        part: Part::Grad,
        what: Some(What::Numbers),
    },
    Known {
        row: "the gradient of `abs` at NaN",
        ops: &["abs"],
        dtypes: &[],
        part: Part::Grad,
        what: Some(What::Numbers),
    },
    Known {
        row: "the sign of a gradient that is zero",
        ops: &["abs"],
        dtypes: &[],
        part: Part::Grad,
        what: Some(What::SignsOfZero),
    },
];

/// The row that names a difference.
pub(crate) fn known(
    case: &Case,
    part: Part,
    difference: Option<&Difference>,
) -> Option<&'static Known> {
    let (_, dtype) = case.entry();
    ALL.iter().find(|known| {
        known.part == part
            && known.what == difference.map(|d| d.what)
            && known.ops.contains(&case.op.as_str())
            && (known.dtypes.is_empty() || known.dtypes.contains(&dtype))
    })
}
