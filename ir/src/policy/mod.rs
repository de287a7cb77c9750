//! Autocast as data: which op runs in which precision, on which device, and why.
//!
//! A [`Region`] is the autocast state that a node was recorded under. A [`PolicyTable`] is one
//! device type's versioned list, op name to [`Policy`]. A [`PolicySet`] is one table per device
//! type with rules on top, and [`PolicySet::decide`] is the one function that turns an op, its
//! operands and a region into a [`Decision`]: which operands are cast, what the dtype argument
//! becomes, which rule said so. Nothing here builds or changes a graph.
//!
//! ```
//! use tracecast_ir::DType;
//! use tracecast_ir::policy::{DeviceType, OperandInfo, PolicySet, Query, Region};
//!
//! let (region, _) = Region::default().enter(DeviceType::Cpu, None, true, None).unwrap();
//! let operands = [OperandInfo::tensor(DType::F32, DeviceType::Cpu); 2];
//! let decision = PolicySet::standard().decide(&Query::new("matmul", &operands, &region));
//! assert_eq!(decision.casts[..], [Some(DType::BF16); 2]);
//! assert_eq!(decision.rule.to_string(), "torch-cpu/matmul:lower_precision_fp");
//! ```

mod change;
mod decide;
mod device;
mod file;
mod index;
mod library;
mod mistakes;
pub mod parity;
mod pattern;
mod query;
mod region;
mod review;
mod rule;
mod script;
mod set;
mod site;
mod source;
mod strategy;
mod table;
mod toml_text;

pub use change::Change;
pub use decide::{Casts, Decision, Refusal};
pub use device::{Accepted, DeviceType};
pub use pattern::matches as matches_name;
pub use query::{OperandInfo, OperandKind, Query};
pub use region::Region;
pub use review::{Finding, KnownOp, review};
pub use rule::{Rule, RuleId, Target};
pub use script::{ScriptBan, ScriptCast, ScriptClass, ScriptOperand, ScriptTable};
pub use set::{PolicySet, Promotion};
pub use site::Site;
pub use source::PolicyFile;
pub use strategy::Risk;
pub use table::PolicyTable;

use std::fmt;
use std::sync::Arc;

use crate::DType;

/// What autocast does with one op.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Every eligible operand goes to the low dtype of the region.
    LowerPrecisionFp,
    /// Every eligible operand goes to f32.
    Fp32,
    /// No operand is cast; an absent dtype argument becomes f32 if the first operand is eligible.
    Fp32SetOptDtype,
    /// No operand is cast; the op gets a dtype argument: f32 if the first operand is eligible, else
    /// its own dtype.
    Fp32AppendDtype,
    /// Every eligible operand goes to the wider of the region's low dtype and f32 found among them.
    Promote,
    /// The op is refused while the region is on.
    Banned {
        /// What to do instead.
        advice: Arc<str>,
    },
    /// The op runs with what it gets.
    Fallthrough,
}

impl Policy {
    /// The names of all policies, in declaration order.
    pub const NAMES: [&'static str; 7] = [
        "lower_precision_fp",
        "fp32",
        "fp32_set_opt_dtype",
        "fp32_append_dtype",
        "promote",
        "banned",
        "fallthrough",
    ];

    /// The name used in tables and messages.
    pub const fn name(&self) -> &'static str {
        match self {
            Policy::LowerPrecisionFp => "lower_precision_fp",
            Policy::Fp32 => "fp32",
            Policy::Fp32SetOptDtype => "fp32_set_opt_dtype",
            Policy::Fp32AppendDtype => "fp32_append_dtype",
            Policy::Promote => "promote",
            Policy::Banned { .. } => "banned",
            Policy::Fallthrough => "fallthrough",
        }
    }

    /// True if it works by the op's `dtype` argument: an op that has none is refused where this
    /// policy decides about it.
    pub const fn needs_dtype_argument(&self) -> bool {
        matches!(self, Policy::Fp32SetOptDtype | Policy::Fp32AppendDtype)
    }

    /// The policy of that name; `advice` is kept by `banned` alone.
    ///
    /// # Errors
    /// If no policy has that name.
    pub fn named(name: &str, advice: &str) -> Result<Policy, PolicyError> {
        Ok(match name {
            "lower_precision_fp" => Policy::LowerPrecisionFp,
            "fp32" => Policy::Fp32,
            "fp32_set_opt_dtype" => Policy::Fp32SetOptDtype,
            "fp32_append_dtype" => Policy::Fp32AppendDtype,
            "promote" => Policy::Promote,
            "banned" => Policy::Banned { advice: advice.into() },
            "fallthrough" => Policy::Fallthrough,
            _ => return Err(PolicyError::UnknownPolicy { name: name.to_string() }),
        })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What can be wrong with a region, a table or a name in one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No device type has this name.
    #[error("unknown device type `{name}`: expected one of {}", DeviceType::names())]
    UnknownDevice {
        /// The name found.
        name: String,
    },
    /// No policy has this name.
    #[error("unknown policy `{name}`: expected one of {}", Policy::NAMES.join(", "))]
    UnknownPolicy {
        /// The name found.
        name: String,
    },
    /// A table file does not say what a table must say.
    #[error("policy table, line {line}, column {column}: {message}")]
    Table {
        /// The line, counted from 1.
        line: usize,
        /// The column, counted from 1.
        column: usize,
        /// What was expected and what was found.
        message: String,
    },
    /// A policy set file does not say what it must say.
    #[error("policy set, line {line}, column {column}: {message}")]
    Set {
        /// The line, counted from 1.
        line: usize,
        /// The column, counted from 1.
        column: usize,
        /// What was expected and what was found.
        message: String,
    },
    /// The device has no autocast: nobody registered its low dtypes.
    #[error(
        "{device} has no autocast: no device of this type has registered the low dtypes it supports"
    )]
    Unregistered {
        /// The device of the region.
        device: DeviceType,
    },
    /// The device refuses this low dtype.
    #[error("this {device} device cannot compute in {dtype}; open the region with another dtype")]
    Unsupported {
        /// The device of the region.
        device: DeviceType,
        /// The dtype asked for.
        dtype: DType,
    },
    /// Text that is no region.
    #[error("region `{text}`: {message}")]
    Region {
        /// The whole text.
        text: String,
        /// What was expected and what was found.
        message: String,
    },
}
