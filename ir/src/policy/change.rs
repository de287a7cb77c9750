//! [`PolicySet::diff`]: what makes two sets decide differently.

use std::fmt;

use super::{DeviceType, Policy, PolicySet, PolicyTable, Promotion, Rule};

/// One difference between two policy sets; `None` stands for nothing on that side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// `promote` works another way.
    Promotion(Promotion, Promotion),
    /// A trace has PyTorch's defects too, or no more.
    Parity {
        /// True if it has now.
        after: bool,
    },
    /// A device type has another table: the name and version of each.
    Table {
        /// The device type.
        device: DeviceType,
        /// What it was, as `name version`.
        before: Option<String>,
        /// What it is.
        after: Option<String>,
    },
    /// The tables of a device type differ in whether f64 is cast.
    CastsF64 {
        /// The device type.
        device: DeviceType,
        /// True if it is now.
        after: bool,
    },
    /// A table line is other, new or gone. The policy of an op that is not listed is `None`.
    Op {
        /// The device type of the tables.
        device: DeviceType,
        /// The op, as `op` or `op.overload`.
        op: String,
        /// What it was.
        before: Option<Policy>,
        /// What it is.
        after: Option<Policy>,
    },
    /// A rule is there no more.
    RuleRemoved(Rule),
    /// A rule is new. Rules that stand in another order are removed and new.
    RuleAdded(Rule),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policy =
            |policy: &Option<Policy>| policy.as_ref().map_or("not listed", Policy::name).to_owned();
        let table = |table: &Option<String>| table.clone().unwrap_or_else(|| "no table".into());
        match self {
            Change::Promotion(before, after) => write!(f, "promote by {before} -> {after}"),
            Change::Parity { after } => {
                write!(
                    f,
                    "{} the defects of PyTorch's regions",
                    if *after { "with" } else { "without" }
                )
            }
            Change::Table { device, before, after } => {
                write!(f, "{device}: {} -> {}", table(before), table(after))
            }
            Change::CastsF64 { device, after } => {
                write!(f, "{device}: f64 is {}cast", if *after { "" } else { "not " })
            }
            Change::Op { device, op, before, after } => {
                write!(f, "{device}: {op}: {} -> {}", policy(before), policy(after))?;
                match (before, after) {
                    (Some(Policy::Banned { .. }), Some(Policy::Banned { advice })) => {
                        write!(f, ", with the advice: {advice}")
                    }
                    _ => Ok(()),
                }
            }
            Change::RuleRemoved(rule) => write!(f, "- {rule}"),
            Change::RuleAdded(rule) => write!(f, "+ {rule}"),
        }
    }
}

impl PolicySet {
    /// What is other in `after`: promotion and parity, then tables by device type and op, then
    /// rules. Empty only if the sets are equal.
    pub fn diff(&self, after: &PolicySet) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.promotion() != after.promotion() {
            changes.push(Change::Promotion(self.promotion(), after.promotion()));
        }
        if self.parity() != after.parity() {
            changes.push(Change::Parity { after: after.parity() });
        }
        for device in DeviceType::ALL {
            let (before, after) = (self.table(device), after.table(device));
            diff_tables(device, before.map(|t| &**t), after.map(|t| &**t), &mut changes);
        }
        diff_rules(self, after, &mut changes);
        changes
    }
}

impl PolicyTable {
    /// What is other in `after`, also if it is the table of another device type; empty only if the
    /// tables decide alike.
    pub fn diff(&self, after: &PolicyTable) -> Vec<Change> {
        let mut changes = Vec::new();
        diff_tables(self.device(), Some(self), Some(after), &mut changes);
        changes
    }
}

fn diff_tables(
    device: DeviceType,
    before: Option<&PolicyTable>,
    after: Option<&PolicyTable>,
    changes: &mut Vec<Change>,
) {
    let title = |table: &PolicyTable| format!("{} {}", table.name(), table.version());
    let titles = (before.map(title), after.map(title));
    if titles.0 != titles.1 {
        changes.push(Change::Table { device, before: titles.0, after: titles.1 });
    }
    let casts_f64 = |table: Option<&PolicyTable>| table.is_some_and(PolicyTable::casts_f64);
    if casts_f64(before) != casts_f64(after) {
        changes.push(Change::CastsF64 { device, after: casts_f64(after) });
    }
    let lines = |table: Option<&PolicyTable>| {
        let lines = table.into_iter().flat_map(PolicyTable::iter);
        lines.map(|(op, policy)| (op.to_owned(), policy.clone())).collect::<Vec<_>>()
    };
    let (old, new) = (lines(before), lines(after));
    let find = |lines: &[(String, Policy)], op: &str| {
        lines.iter().find(|(name, _)| name == op).map(|(_, policy)| policy.clone())
    };
    let mut ops: Vec<_> = old.iter().chain(&new).map(|(op, _)| op).collect();
    ops.sort();
    ops.dedup();
    for op in ops {
        let (before, after) = (find(&old, op), find(&new, op));
        if before != after {
            changes.push(Change::Op { device, op: op.clone(), before, after });
        }
    }
}

/// Keeps the longest common beginning and end of the two lists of rules; what is between is removed
/// and added.
fn diff_rules(before: &PolicySet, after: &PolicySet, changes: &mut Vec<Change>) {
    let alike = |(a, b): &(&&Rule, &&Rule)| {
        (&a.target, a.device, &a.policy) == (&b.target, b.device, &b.policy)
    };
    let (old, new): (Vec<_>, Vec<_>) = (before.rules().collect(), after.rules().collect());
    let head = old.iter().zip(&new).take_while(alike).count();
    let (old, new) = (&old[head..], &new[head..]);
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(alike).count();
    let rule = |rule: &&Rule| (*rule).clone();
    changes.extend(old[..old.len() - tail].iter().map(rule).map(Change::RuleRemoved));
    changes.extend(new[..new.len() - tail].iter().map(rule).map(Change::RuleAdded));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Target;
    use std::sync::Arc;

    #[test]
    fn equal_sets_have_no_difference_and_others_name_it() {
        let set = PolicySet::standard();
        assert_eq!(set.diff(&set.clone()), []);
        let mut other = set.clone();
        other.set_promotion(Promotion::Join);
        other.set_parity(true);
        other.add_rule(Target::Op("gelu".into()), Some(DeviceType::Cpu), Policy::Fp32);
        let text = PolicyTable::named("torch-cpu").unwrap().to_string();
        let text = text.replace("\"mm\" = \"lower_precision_fp\"", "\"mm\" = \"fp32\"");
        other.set_table(Arc::new(PolicyTable::parse(&text).unwrap()));
        let said: Vec<_> = set.diff(&other).iter().map(Change::to_string).collect();
        assert_eq!(said[0], "promote by scan -> join");
        assert_eq!(said[1], "with the defects of PyTorch's regions");
        assert!(said.contains(&"cpu: mm: lower_precision_fp -> fp32".to_owned()), "{said:?}");
        assert_eq!(said.last().unwrap(), "+ op gelu on cpu: fp32");
    }

    #[test]
    fn another_table_is_named_with_its_lines() {
        let changes = PolicySet::standard().diff(&PolicySet::torchax());
        let said: Vec<_> = changes.iter().map(Change::to_string).collect();
        assert_eq!(said[0], "privateuse1: privateuse1 2.15.0 -> torchax b2d44f0d");
        assert_eq!(said[1], "privateuse1: f64 is cast");
        assert_eq!(changes.len(), 2 + 128);
        let table = |name: &str| PolicyTable::named(name).unwrap();
        let changes = table("torch-cpu").diff(&table("torch-cuda"));
        let both = changes
            .iter()
            .filter(|change| matches!(change, Change::Op { before: Some(_), after: Some(_), .. }));
        assert_eq!((both.count(), changes.len()), (4, 1 + 4 + 86 + 80));
    }

    #[test]
    fn rules_in_another_order_are_a_difference() {
        let set = |ops: [&str; 3]| {
            let mut set = PolicySet::empty();
            for op in ops {
                set.add_rule(Target::Op(op.into()), None, Policy::Fp32);
            }
            set
        };
        let changes = set(["a", "b", "c"]).diff(&set(["b", "a", "c"]));
        assert_eq!(changes.len(), 4);
        assert_eq!(set(["a", "b", "c"]).diff(&set(["a", "x", "c"])).len(), 2);
    }
}
