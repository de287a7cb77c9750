//! [`Query`]: one call and its operands, as autocast sees them.

use super::{DeviceType, Policy, Region};
use crate::DType;

/// How an operand is passed, which is how much autocast looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperandKind {
    /// A tensor.
    Tensor,
    /// A tensor that may be left out; one that is left out is not in the operand list. Cast, but
    /// without a vote.
    Optional,
    /// An element of a tensor list.
    ListItem,
    /// Not looked at: an element of a list of optional tensors (indices), a weak scalar, an operand
    /// that is written to.
    Ignored,
}

/// What autocast needs to know of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OperandInfo {
    /// Its element type.
    pub dtype: DType,
    /// Where it lives.
    pub device: DeviceType,
    /// How it is passed.
    pub kind: OperandKind,
}

impl OperandInfo {
    /// A plain tensor operand.
    pub const fn tensor(dtype: DType, device: DeviceType) -> OperandInfo {
        OperandInfo { dtype, device, kind: OperandKind::Tensor }
    }

    /// True if it lives where the region of `device` reaches. The cuda region takes xla operands
    /// too, as PyTorch's does.
    pub(super) fn is_on(&self, device: DeviceType) -> bool {
        self.device == device || (device == DeviceType::Cuda && self.device == DeviceType::Xla)
    }

    /// True if the region of `device` may cast this operand.
    pub(super) fn is_eligible(&self, device: DeviceType) -> bool {
        self.is_within_reach(device, false)
    }

    /// [`OperandInfo::is_eligible`], for a table that may cast f64 as well.
    pub(super) fn is_within_reach(&self, device: DeviceType, casts_f64: bool) -> bool {
        self.is_on(device)
            && self.kind != OperandKind::Ignored
            && self.dtype.is_float()
            && (casts_f64 || self.dtype != DType::F64)
    }
}

/// One call, as autocast sees it.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// The op's name in the tables.
    pub op: &'a str,
    /// Its overload; empty for the default.
    pub overload: &'a str,
    /// The path of the module it is called in.
    pub scope: &'a str,
    /// The name of its node.
    pub node: &'a str,
    /// Every operand, lists flattened.
    pub operands: &'a [OperandInfo],
    /// `None` if the op has no dtype argument, `Some(None)` if it has one that is absent.
    pub dtype_arg: Option<Option<DType>>,
    /// The autocast state.
    pub region: &'a Region,
    /// The policy that the op itself declares, for devices whose table does not name it.
    pub declared: Option<&'a Policy>,
    /// True if the op is one that can be recorded: then a policy that works by a dtype argument
    /// refuses an op without one. Of other ops the tables know more than `dtype_arg` tells.
    pub recorded: bool,
}

impl<'a> Query<'a> {
    /// A call of the default overload, without dtype argument and outside of every module.
    pub fn new(op: &'a str, operands: &'a [OperandInfo], region: &'a Region) -> Query<'a> {
        Query {
            op,
            overload: "",
            scope: "",
            node: "",
            operands,
            dtype_arg: None,
            region,
            declared: None,
            recorded: false,
        }
    }
}
