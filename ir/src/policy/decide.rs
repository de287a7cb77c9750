//! [`PolicySet::decide`]: from an op, its operands and a region to the casts that autocast makes.
//!
//! A region of a device casts an operand only if it lives on that device and is a float other than
//! f64; ints, bools, complex numbers and f64 pass through and have no vote. Regions of several
//! devices apply one after another, each to its own operands.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::query::{OperandInfo, OperandKind, Query};
use super::{DeviceType, Policy, PolicySet, Promotion, RuleId};
use crate::DType;

/// One entry per flat operand: the dtype it is cast to, or `None` if it stays as it is.
pub type Casts = SmallVec<[Option<DType>; 4]>;

/// What autocast does with one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// One entry per operand of the query.
    pub casts: Casts,
    /// What the dtype argument becomes; `None` leaves it as it is.
    pub dtype_arg: Option<DType>,
    /// Who decided.
    pub rule: RuleId,
    /// What was decided.
    pub policy: Policy,
    /// Why the call is refused.
    pub error: Option<Refusal>,
}

impl Decision {
    /// A decision that changes nothing.
    pub fn untouched(operands: usize, rule: RuleId) -> Decision {
        let casts = smallvec![None; operands];
        Decision { casts, dtype_arg: None, rule, policy: Policy::Fallthrough, error: None }
    }

    /// True if the call goes through unchanged.
    pub fn is_trivial(&self) -> bool {
        self.error.is_none() && self.dtype_arg.is_none() && self.casts.iter().all(Option::is_none)
    }
}

/// Why autocast refuses a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The op is banned.
    #[error("{op} is not allowed while autocast is on for {device}: {advice}")]
    Banned {
        /// The op.
        op: Arc<str>,
        /// The device of the region.
        device: DeviceType,
        /// What to do instead.
        advice: Arc<str>,
    },
    /// `promote` met a foreign low dtype before any f32.
    #[error(
        "promote: operand {operand} is {found}, in a region of {low} and with no f32 operand before it; cast it to {low} \
         or f32"
    )]
    PromoteMixedLow {
        /// The operand's position in the flat list.
        operand: usize,
        /// Its dtype.
        found: DType,
        /// The low dtype of the region.
        low: DType,
    },
    /// A policy that works by the op's dtype argument, and an op without one.
    #[error(
        "{rule} gives it the argument `dtype`, which it does not have: say `fp32` to cast its operands, `fallthrough` to leave it alone"
    )]
    NoDtypeArgument {
        /// Who decided.
        rule: RuleId,
    },
    /// `promote` cannot start from f64.
    #[error("promote: the low dtype of the region is f64; open the region with f16 or bf16")]
    PromoteRegionIsF64,
}

impl Refusal {
    /// The kind of refusal in one word: `banned`, `promote_mixed_low`, `no_dtype_argument` or
    /// `promote_region_is_f64`.
    pub const fn class(&self) -> &'static str {
        match self {
            Refusal::Banned { .. } => "banned",
            Refusal::PromoteMixedLow { .. } => "promote_mixed_low",
            Refusal::NoDtypeArgument { .. } => "no_dtype_argument",
            Refusal::PromoteRegionIsF64 => "promote_region_is_f64",
        }
    }
}

impl PolicySet {
    /// Decides what autocast does with one call.
    ///
    /// If regions of several devices have a say, the decision names the first one that changes
    /// something, else the first whose policy is not fall-through, in the order in which they
    /// apply.
    pub fn decide(&self, query: &Query<'_>) -> Decision {
        let operands = query.operands.len();
        if query.region.is_off() {
            return Decision::untouched(operands, RuleId::OFF);
        }
        let present = query.operands.iter().fold(0, |bits, operand| bits | operand.device.bit());
        let active = present & query.region.enabled_bits();
        if active == 0 {
            return Decision::untouched(operands, RuleId::ELSEWHERE);
        }
        let mut decision = Decision::untouched(operands, RuleId::ELSEWHERE);
        for device in
            DeviceType::DISPATCH_ORDER.into_iter().filter(|device| active & device.bit() != 0)
        {
            let (policy, rule) = self.policy(query, device);
            let silent = decision.is_trivial();
            let lacks_dtype = query.recorded && query.dtype_arg.is_none();
            if lacks_dtype && policy.needs_dtype_argument() {
                decision.error = Some(Refusal::NoDtypeArgument { rule: rule.clone() });
            }
            let redirected = self.apply(policy, device, query, &mut decision);
            let acts = silent && !decision.is_trivial();
            if acts
                || decision.rule == RuleId::ELSEWHERE
                || (silent && decision.policy == Policy::Fallthrough)
            {
                (decision.policy, decision.rule) = (policy.clone(), rule);
            }
            if redirected || decision.error.is_some() {
                break;
            }
        }
        decision
    }

    /// Adds what the region of one device does; true if the call is now one of another overload,
    /// which nobody lists.
    fn apply(
        &self,
        policy: &Policy,
        device: DeviceType,
        query: &Query<'_>,
        decision: &mut Decision,
    ) -> bool {
        let low = query.region.low(device);
        let casts_f64 = self.table(device).is_some_and(|table| table.casts_f64());
        let mut cast_all = |to, casts_f64| {
            let reach = |operand: &OperandInfo| operand.is_within_reach(device, casts_f64);
            for (operand, cast) in query.operands.iter().zip(&mut decision.casts) {
                if reach(operand) && operand.dtype != to {
                    *cast = Some(to);
                }
            }
        };
        match policy {
            Policy::Fallthrough => {}
            Policy::LowerPrecisionFp => cast_all(low, casts_f64),
            Policy::Fp32 => cast_all(DType::F32, casts_f64),
            Policy::Fp32SetOptDtype => {
                let absent = query.dtype_arg == Some(None) && decision.dtype_arg.is_none();
                if absent
                    && first(query.operands).is_some_and(|operand| operand.is_eligible(device))
                {
                    decision.dtype_arg = Some(DType::F32);
                }
            }
            Policy::Fp32AppendDtype => {
                let explicit =
                    matches!(query.dtype_arg, Some(Some(_))) || decision.dtype_arg.is_some();
                if let Some(operand) = first(query.operands).filter(|_| !explicit) {
                    decision.dtype_arg =
                        Some(if operand.is_eligible(device) { DType::F32 } else { operand.dtype });
                    return true;
                }
            }
            Policy::Promote => match self.promoted(query.operands, device, low) {
                Ok(wide) => cast_all(wide, false),
                Err(error) => decision.error = Some(error),
            },
            Policy::Banned { advice } => {
                decision.error =
                    Some(Refusal::Banned { op: query.op.into(), device, advice: advice.clone() });
            }
        }
        false
    }

    /// The common dtype of the eligible operands.
    fn promoted(
        &self,
        operands: &[OperandInfo],
        device: DeviceType,
        low: DType,
    ) -> Result<DType, Refusal> {
        match self.promotion() {
            Promotion::Scan => scan(operands, device, low),
            Promotion::Join => {
                let eligible = operands.iter().filter(|operand| operand.is_eligible(device));
                Ok(eligible.fold(low, |wide, operand| join(wide, operand.dtype)))
            }
        }
    }
}

/// The operand that `fp32_set_opt_dtype` and `fp32_append_dtype` look at.
fn first(operands: &[OperandInfo]) -> Option<&OperandInfo> {
    operands.iter().find(|operand| operand.kind != OperandKind::Ignored)
}

/// PyTorch's scan. What stands before the first f32 must be the region's low dtype; behind it
/// anything goes.
fn scan(operands: &[OperandInfo], device: DeviceType, low: DType) -> Result<DType, Refusal> {
    let mut wide = low;
    for (operand, info) in operands.iter().enumerate() {
        if !matches!(info.kind, OperandKind::Tensor | OperandKind::ListItem) {
            continue;
        }
        if wide == DType::F64 {
            return Err(Refusal::PromoteRegionIsF64);
        }
        if !info.is_eligible(device) {
            continue;
        }
        if wide == DType::F32 || info.dtype == DType::F32 {
            wide = DType::F32;
        } else if info.dtype != low {
            return Err(Refusal::PromoteMixedLow { operand, found: info.dtype, low });
        }
    }
    Ok(wide)
}

/// The narrowest of the dtypes at hand and f32 that holds both; 8-bit floats fit in either 16-bit
/// one.
fn join(wide: DType, other: DType) -> DType {
    match (wide.bytes(), other.bytes()) {
        _ if wide == other => wide,
        (1, 2) => other,
        (2, 1) => wide,
        _ => DType::F32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Region;
    use DType::{BF16, F8E4M3, F16, F32, F64, I64};
    use DeviceType::{Cpu, Cuda, Ipu};

    fn region(devices: &[(DeviceType, DType)]) -> Region {
        devices.iter().fold(Region::default(), |region, (device, low)| {
            region.with_device(*device, true, *low)
        })
    }

    fn on(device: DeviceType, dtypes: &[DType]) -> Vec<OperandInfo> {
        dtypes.iter().map(|dtype| OperandInfo::tensor(*dtype, device)).collect()
    }

    #[test]
    fn nothing_happens_outside_of_regions_and_away_from_them() {
        let set = PolicySet::standard();
        let operands = on(Cpu, &[F32, F32]);
        let off = set.decide(&Query::new("mm", &operands, &Region::default()));
        assert!(off.is_trivial() && off.casts.len() == 2 && off.rule == RuleId::OFF);
        let elsewhere = set.decide(&Query::new("mm", &operands, &region(&[(Cuda, F16)])));
        assert!(elsewhere.is_trivial() && elsewhere.rule == RuleId::ELSEWHERE);
        let unlisted = set.decide(&Query::new("relu", &operands, &region(&[(Cpu, BF16)])));
        assert!(unlisted.is_trivial() && unlisted.rule.as_str() == "torch-cpu/*:fallthrough");
    }

    #[test]
    fn only_floats_but_f64_are_cast() {
        let set = PolicySet::standard();
        let operands = on(Cpu, &[F32, F16, BF16, F8E4M3, F64, I64, DType::C64, DType::Bool]);
        let decision = set.decide(&Query::new("mm", &operands, &region(&[(Cpu, BF16)])));
        let low = Some(BF16);
        assert_eq!(decision.casts[..], [low, low, None, low, None, None, None, None]);
    }

    #[test]
    fn promote_scans_from_left_to_right() {
        let set = PolicySet::standard();
        let cat = |low, dtypes: &[DType]| {
            let decision = set.decide(&Query::new("cat", &on(Cpu, dtypes), &region(&[(Cpu, low)])));
            decision.error.map_or(Ok(decision.casts.to_vec()), |error| Err(error.class()))
        };
        assert_eq!(cat(BF16, &[BF16, BF16]), Ok(vec![None, None]));
        assert_eq!(cat(BF16, &[BF16, F32]), Ok(vec![Some(F32), None]));
        assert_eq!(cat(BF16, &[F64, BF16, I64]), Ok(vec![None, None, None]));
        assert_eq!(cat(BF16, &[F32, F16]), Ok(vec![None, Some(F32)]));
        assert_eq!(cat(BF16, &[F16, F32]), Err("promote_mixed_low"));
        assert_eq!(cat(BF16, &[F16, F16]), Err("promote_mixed_low"));
        assert_eq!(cat(F64, &[F32]), Err("promote_region_is_f64"));
        assert_eq!(cat(F64, &[]), Ok(vec![]));
    }

    #[test]
    fn optionals_have_no_vote_in_a_scan_and_one_in_a_join() {
        let mut set = PolicySet::standard();
        let mut operands = on(Cuda, &[F16, F16, F16, F32]);
        operands[3].kind = OperandKind::Optional;
        let region = region(&[(Cuda, F16)]);
        let query = Query::new("bilinear", &operands, &region);
        assert_eq!(set.decide(&query).casts[..], [None, None, None, Some(F16)]);
        set.set_promotion(Promotion::Join);
        assert_eq!(set.decide(&query).casts[..], [Some(F32), Some(F32), Some(F32), None]);
    }

    #[test]
    fn a_join_does_not_depend_on_order() {
        let mut set = PolicySet::standard();
        set.set_promotion(Promotion::Join);
        let region = region(&[(Cpu, BF16)]);
        let cat = |dtypes: &[DType]| {
            set.decide(&Query::new("cat", &on(Cpu, dtypes), &region)).casts.to_vec()
        };
        assert_eq!(cat(&[F16, BF16]), [Some(F32), Some(F32)]);
        assert_eq!(cat(&[BF16, F16]), [Some(F32), Some(F32)]);
        assert_eq!(cat(&[F8E4M3, BF16]), [Some(BF16), None]);
    }

    #[test]
    fn each_region_casts_its_own_operands() {
        let set = PolicySet::standard();
        let both = region(&[(Cpu, BF16), (Cuda, F16)]);
        let mixed = [OperandInfo::tensor(F32, Cpu), OperandInfo::tensor(F32, Cuda)];
        let decision = set.decide(&Query::new("mm", &mixed, &both));
        assert_eq!(decision.casts[..], [Some(BF16), Some(F16)]);
        assert_eq!(decision.rule.as_str(), "torch-cuda/mm:lower_precision_fp");
        let decision = set.decide(&Query::new(
            "cholesky_inverse",
            &[mixed[0], OperandInfo::tensor(I64, Cuda)],
            &both,
        ));
        assert!(
            decision.is_trivial() && decision.rule.as_str() == "torch-cpu/cholesky_inverse:fp32"
        );
        let none = set.decide(&Query::new("mm", &on(Ipu, &[F32]), &region(&[(Ipu, F16)])));
        assert_eq!((none.is_trivial(), none.rule.as_str()), (true, "ipu has no table:fallthrough"));
    }

    #[test]
    fn the_table_of_torchax_casts_f64_too() {
        let set = PolicySet::torchax();
        let outside = DeviceType::PrivateUse1;
        let region = region(&[(outside, BF16), (Cpu, BF16)]);
        let casts = |op, device| {
            set.decide(&Query::new(op, &on(device, &[F64, F32, I64]), &region)).casts.to_vec()
        };
        assert_eq!(casts("mm", outside), [Some(BF16), Some(BF16), None]);
        assert_eq!(casts("mse_loss", outside), [Some(F32), None, None]);
        assert_eq!(casts("cat", outside), [None, None, None]);
        assert_eq!(casts("mm", Cpu), [None, Some(BF16), None]);
    }

    #[test]
    fn the_dtype_argument_follows_the_first_operand() {
        let set = PolicySet::standard();
        let region = region(&[(Cuda, F16)]);
        let ask = |op, overload, dtype, dtype_arg| {
            let operands = on(Cuda, &[dtype]);
            let decision =
                set.decide(&Query { overload, dtype_arg, ..Query::new(op, &operands, &region) });
            assert_eq!(decision.casts[..], [None]);
            decision.dtype_arg
        };
        assert_eq!(ask("softmax", "int", F16, Some(None)), Some(F32));
        assert_eq!(ask("softmax", "int", F16, Some(Some(F16))), None);
        assert_eq!(ask("softmax", "int", F64, Some(None)), None);
        assert_eq!(ask("sum", "dim_IntList", I64, Some(None)), None);
        assert_eq!(ask("norm", "Scalar", F16, None), Some(F32));
        assert_eq!(ask("norm", "Scalar", DType::C64, None), Some(DType::C64));
        assert_eq!(ask("norm", "Scalar", F64, Some(None)), Some(F64));
        assert_eq!(ask("norm", "Scalar", F16, Some(Some(F16))), None);
    }

    #[test]
    fn a_policy_that_gives_a_dtype_refuses_an_op_that_takes_none() {
        let region = region(&[(Cpu, BF16), (Cuda, F16)]);
        let mixed = [OperandInfo::tensor(F32, Cpu), OperandInfo::tensor(F32, Cuda)];
        for policy in [Policy::Fp32SetOptDtype, Policy::Fp32AppendDtype] {
            let mut set = PolicySet::standard();
            set.add_rule(crate::policy::Target::Op("mm".into()), Some(Cpu), policy.clone());
            let ask = |operands: &[OperandInfo], dtype_arg| {
                let query =
                    Query { recorded: true, dtype_arg, ..Query::new("mm", operands, &region) };
                set.decide(&query).error
            };
            assert_eq!(ask(&mixed[..1], Some(None)), None);
            for operands in [&mixed[..1], &mixed[..]] {
                let error = ask(operands, None).unwrap();
                assert_eq!(error.class(), "no_dtype_argument");
                let said = format!("rule/op mm on cpu:{policy} gives it the argument `dtype`");
                assert!(error.to_string().starts_with(&said), "{error}");
            }
            assert_eq!(ask(&mixed[1..], None), None, "no rule for cuda");
        }
    }

    #[test]
    fn a_ban_holds_whatever_the_dtypes() {
        let set = PolicySet::standard();
        let operands = on(Cuda, &[F64, I64]);
        let decision =
            set.decide(&Query::new("binary_cross_entropy", &operands, &region(&[(Cuda, F16)])));
        let text = decision.error.unwrap().to_string();
        assert!(
            text.contains("cuda") && text.contains("binary_cross_entropy_with_logits"),
            "{text}"
        );
    }
}
