//! [`Risk`]: autocast tables by dtype and accepted risk, as an alternative to lists by device.
//!
//! A strategy is PyTorch's list for cuda with changes that are data in `strategies/`, each with its
//! reason. The reason is part of the rule id, so `explain` prints it.

use std::sync::{Arc, LazyLock};

use super::{DeviceType, PolicySet, PolicyTable};
use crate::DType;

/// How much a strategy narrows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Risk {
    /// Reductions, norms and losses compute in f32.
    Strict,
    /// PyTorch's list for cuda.
    Standard,
    /// Norms and softmax compute in 16 bits; in bf16 also sums and what overflows in f16.
    Bold,
}

impl Risk {
    /// Every risk, least first.
    pub const ALL: [Risk; 3] = [Risk::Strict, Risk::Standard, Risk::Bold];

    /// The name, the first part of that of a strategy: `strict` in `strict-bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            Risk::Strict => "strict",
            Risk::Standard => "standard",
            Risk::Bold => "bold",
        }
    }
}

/// The low dtypes that strategies are for.
const LOW: [DType; 2] = [DType::F16, DType::BF16];

static STRATEGIES: LazyLock<Vec<Arc<PolicyTable>>> = LazyLock::new(|| {
    let all = LOW.into_iter().flat_map(|low| Risk::ALL.map(|risk| build(low, risk)));
    all.map(Arc::new).collect()
});

fn name_of(low: DType, risk: Risk) -> String {
    format!("{}-{low}", risk.name())
}

fn build(low: DType, risk: Risk) -> PolicyTable {
    let changes: &[&str] = match (risk, low) {
        (Risk::Strict, _) => &[include_str!("strategies/strict.toml")],
        (Risk::Standard, _) => &[],
        (Risk::Bold, DType::BF16) => {
            &[include_str!("strategies/bold.toml"), include_str!("strategies/bold-bf16.toml")]
        }
        (Risk::Bold, _) => &[include_str!("strategies/bold.toml")],
    };
    let read = |text: &&str| PolicyTable::parse(text).expect("the built-in strategies are valid");
    let changes: Vec<PolicyTable> = changes.iter().map(read).collect();
    let base = PolicyTable::named("torch-cuda").expect("PyTorch's list for cuda is built in");
    base.overlaid(&name_of(low, risk), &changes).for_device(DeviceType::PrivateUse1)
}

/// The strategy of that name, with or without its version: `bold-bf16`, `bold-bf16@2.15.0`.
pub(super) fn named(name: &str) -> Option<Arc<PolicyTable>> {
    STRATEGIES.iter().find(|table| table.name() == name || table.title() == name).cloned()
}

impl PolicyTable {
    /// The table for regions of `low`, f16 or bf16, by the risk that is accepted; `None` for
    /// another dtype.
    ///
    /// It is for `privateuse1`: a device from outside takes it and lays rules of its own over it.
    /// [`for_device`](Self::for_device) gives it to another type.
    ///
    /// ```
    /// use tracecast_ir::DType;
    /// use tracecast_ir::policy::{PolicyTable, Risk};
    ///
    /// let policy = |risk, op, overload| {
    ///     let table = PolicyTable::by_dtype(DType::BF16, risk).expect("bf16 has strategies");
    ///     table.get(op, overload).map_or("fallthrough", |(policy, _)| policy.name())
    /// };
    /// assert_eq!(policy(Risk::Strict, "mean", "dim"), "fp32");
    /// assert_eq!(policy(Risk::Standard, "mean", "dim"), "fallthrough");
    /// assert_eq!(policy(Risk::Standard, "layer_norm", ""), "fp32");
    /// assert_eq!(policy(Risk::Bold, "layer_norm", ""), "lower_precision_fp");
    /// ```
    pub fn by_dtype(low: DType, risk: Risk) -> Option<PolicyTable> {
        named(&name_of(low, risk)).map(|table| PolicyTable::clone(&table))
    }
}

impl PolicySet {
    /// The table [`PolicyTable::by_dtype`] for every device type; `None` for another dtype than f16
    /// and bf16.
    ///
    /// ```
    /// use tracecast_ir::DType;
    /// use tracecast_ir::policy::{PolicySet, Risk};
    ///
    /// let bold = PolicySet::by_dtype(DType::F16, Risk::Bold).expect("f16 has strategies");
    /// assert_eq!(PolicySet::strategy("bold-f16"), Some(bold));
    /// assert_eq!(PolicySet::by_dtype(DType::F64, Risk::Bold), None);
    /// ```
    pub fn by_dtype(low: DType, risk: Risk) -> Option<PolicySet> {
        PolicyTable::by_dtype(low, risk).map(|table| PolicySet::everywhere(&table))
    }

    /// [`by_dtype`](Self::by_dtype) by the name of the strategy, such as `strict-bf16`.
    pub fn strategy(name: &str) -> Option<PolicySet> {
        named(name).map(|table| PolicySet::everywhere(&table))
    }

    fn everywhere(table: &PolicyTable) -> PolicySet {
        let mut set = PolicySet::empty();
        for device in DeviceType::ALL {
            set.set_table(table.for_device(device).into());
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops;
    use crate::policy::{Change, Policy};

    fn table(low: DType, risk: Risk) -> PolicyTable {
        PolicyTable::by_dtype(low, risk).unwrap()
    }

    #[test]
    fn standard_is_the_list_of_cuda() {
        let cuda = PolicyTable::named("torch-cuda").unwrap();
        for low in LOW {
            assert!(table(low, Risk::Standard).iter().eq(cuda.iter()));
        }
    }

    #[test]
    fn strict_widens_alone_and_bold_narrows_alone() {
        let width = |policy: &Policy| match policy {
            Policy::LowerPrecisionFp => 0,
            Policy::Fallthrough => 1,
            _ => 2,
        };
        let cuda = PolicyTable::named("torch-cuda").unwrap();
        for (low, changed) in [(DType::F16, 11), (DType::BF16, 21)] {
            for (risk, count) in [(Risk::Strict, 9), (Risk::Bold, changed)] {
                let mut changes = 0;
                for (key, policy) in table(low, risk).iter() {
                    let (op, overload) = key.split_once('.').unwrap_or((key, ""));
                    let before = cuda.get(op, overload).map_or(&Policy::Fallthrough, |(p, _)| p);
                    if before != policy {
                        changes += 1;
                        assert_eq!(width(policy) > width(before), risk == Risk::Strict, "{key}");
                        assert!(ops::find(op).is_some(), "there is no op `{op}`");
                    }
                }
                assert_eq!(changes, count, "{risk:?} in {low}");
            }
        }
    }

    #[test]
    fn every_change_says_why() {
        for low in LOW {
            for risk in [Risk::Strict, Risk::Bold] {
                let (table, standard) = (table(low, risk), table(low, Risk::Standard));
                for (key, policy) in table.iter() {
                    let (op, overload) = key.split_once('.').unwrap_or((key, ""));
                    let listed = standard.get(op, overload).map(|(policy, _)| policy);
                    let rule = table.get(op, overload).unwrap().1.to_string();
                    assert_eq!(rule.contains(", because "), listed != Some(policy), "{rule}");
                }
            }
        }
    }

    #[test]
    fn strategies_are_tables_by_name_and_read_back() {
        for title in ["strict-f16", "standard-bf16@2.15.0", "bold-bf16"] {
            let table = PolicyTable::named(title).unwrap();
            assert_eq!(PolicyTable::parse(&table.to_string()).as_ref(), Ok(&*table));
            let set = PolicySet::strategy(title).unwrap();
            let again = PolicySet::parse(&set.to_toml()).unwrap();
            assert_eq!((again.hash(), again.diff(&set)), (set.hash(), Vec::<Change>::new()));
        }
        assert_eq!(PolicyTable::named("bold-f32"), None);
    }
}
