//! [`PolicySet`]: one table per device type and rules on top; who wins when several speak.

use std::fmt;
use std::sync::{Arc, LazyLock};

use super::index::RuleIndex;
use super::query::Query;
use super::rule::Fnv;
use super::{DeviceType, Policy, PolicyTable, Rule, RuleId, Target};

static STANDARD: LazyLock<PolicySet> =
    LazyLock::new(|| PolicySet::empty().with_tables(PolicyTable::standard()));

/// How `promote` finds the common dtype of its operands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Promotion {
    /// PyTorch's scan from left to right: a foreign low dtype before the first f32 is an error,
    /// optionals do not vote.
    #[default]
    Scan,
    /// The same answer in every order: f32 as soon as two dtypes differ, optionals vote, nothing is
    /// an error.
    Join,
}

impl fmt::Display for Promotion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Promotion::Scan => "scan",
            Promotion::Join => "join",
        })
    }
}

/// All that decides about precision: a table per device type, and rules on top of them.
///
/// A rule about a node wins over one about a module, that over one about an op, that over what a
/// device declares, that over the device's table, that over what the op itself declares
/// ([`Dispatch::Declares`](crate::op::Dispatch::Declares)); an op that nobody names falls through.
/// Between rules of one kind the last one wins, and removing it brings the one before back.
#[derive(Clone, Debug)]
pub struct PolicySet {
    tables: [Option<Arc<PolicyTable>>; DeviceType::ALL.len()],
    rules: Vec<(Rule, RuleId)>,
    index: RuleIndex,
    next: u32,
    promotion: Promotion,
    parity: bool,
}

impl Default for PolicySet {
    fn default() -> Self {
        PolicySet::standard()
    }
}

impl PartialEq for PolicySet {
    /// Sets are equal if they decide alike: the numbers of the rules do not count.
    fn eq(&self, other: &Self) -> bool {
        let rule =
            |(rule, _): &(Rule, RuleId)| (rule.target.clone(), rule.device, rule.policy.clone());
        self.tables == other.tables
            && self.promotion == other.promotion
            && self.parity == other.parity
            && self.rules.iter().map(rule).eq(other.rules.iter().map(rule))
    }
}

impl PolicySet {
    /// No table and no rule.
    pub fn empty() -> PolicySet {
        PolicySet {
            tables: Default::default(),
            rules: Vec::new(),
            index: RuleIndex::default(),
            next: 0,
            promotion: Promotion::Scan,
            parity: false,
        }
    }

    /// PyTorch's tables, those of [`PolicyTable::STANDARD`], and no rule.
    pub fn standard() -> PolicySet {
        STANDARD.clone()
    }

    /// [`standard`](Self::standard) with the tables of a version of PyTorch in the places of
    /// theirs; `None` if no table is of it.
    ///
    /// ```
    /// use tracecast_ir::policy::PolicySet;
    ///
    /// assert_eq!(PolicySet::of_version("2.15.0"), Some(PolicySet::standard()));
    /// assert_eq!(PolicySet::of_version("1.0"), None);
    /// ```
    pub fn of_version(version: &str) -> Option<PolicySet> {
        let mut tables = PolicyTable::of_version(version).peekable();
        tables.peek()?;
        Some(PolicySet::standard().with_tables(tables))
    }

    fn with_tables<'t>(
        mut self,
        tables: impl IntoIterator<Item = &'t Arc<PolicyTable>>,
    ) -> PolicySet {
        for table in tables {
            self.set_table(Arc::clone(table));
        }
        self
    }

    /// PyTorch's tables, with that of torchax for the device from outside.
    pub fn torchax() -> PolicySet {
        let mut set = PolicySet::standard();
        set.set_table(PolicyTable::named("torchax").expect("the table of torchax is built in"));
        set
    }

    /// The table of a device type.
    pub fn table(&self, device: DeviceType) -> Option<&Arc<PolicyTable>> {
        self.tables[device as usize].as_ref()
    }

    /// Puts a table in the place of its device type's, and returns that one.
    pub fn set_table(&mut self, table: Arc<PolicyTable>) -> Option<Arc<PolicyTable>> {
        self.tables[table.device() as usize].replace(table)
    }

    /// How `promote` works.
    pub fn promotion(&self) -> Promotion {
        self.promotion
    }

    /// Sets how `promote` works.
    pub fn set_promotion(&mut self, promotion: Promotion) {
        self.promotion = promotion;
    }

    /// True if a trace has PyTorch's defects too: see [`parity`](super::parity).
    pub fn parity(&self) -> bool {
        self.parity
    }

    /// Sets whether a trace has PyTorch's defects too.
    pub fn set_parity(&mut self, parity: bool) {
        self.parity = parity;
    }

    /// Adds a rule, for one device type or for all, and returns the number to remove it by.
    pub fn add_rule(&mut self, target: Target, device: Option<DeviceType>, policy: Policy) -> u32 {
        let id = self.next;
        self.next += 1;
        let rule = Rule { target, device, policy, id };
        let rule_id = rule.rule_id();
        self.index.add(self.rules.len(), &rule.target);
        self.rules.push((rule, rule_id));
        id
    }

    /// Removes a rule; what it covered holds again.
    pub fn remove_rule(&mut self, id: u32) -> Option<Rule> {
        let at = self.rules.iter().position(|(rule, _)| rule.id == id)?;
        let (rule, _) = self.rules.remove(at);
        self.index = RuleIndex::of(self.rules.iter().map(|(rule, _)| &rule.target));
        Some(rule)
    }

    /// The rules, oldest first.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|(rule, _)| rule)
    }

    /// A hash of everything that decides, the same in every process: part of the key of compiled
    /// programs.
    pub fn hash(&self) -> u64 {
        let mut hash = Fnv::new();
        hash.add(&self.promotion);
        if self.parity {
            hash.add(&"parity");
        }
        for (rule, _) in &self.rules {
            rule.hash_into(&mut hash);
        }
        for table in self.tables.iter().flatten() {
            hash.add(&table.hash());
        }
        hash.finish()
    }

    /// The policy for one op on one device type, and who says so.
    pub(super) fn policy<'p>(
        &'p self,
        query: &Query<'p>,
        device: DeviceType,
    ) -> (&'p Policy, RuleId) {
        if let Some((rule, id)) = self.rule(query, device) {
            return (&rule.policy, id.clone());
        }
        let table = self.tables[device as usize].as_ref();
        if let Some((policy, rule)) = table.and_then(|t| t.get(query.op, query.overload)) {
            return (policy, rule.clone());
        }
        let unnamed = match (query.declared, table) {
            (Some(policy), _) => {
                return (policy, RuleId::new(format!("op/{}:{policy}", query.op)));
            }
            (None, Some(table)) => table.unlisted().clone(),
            (None, None) => RuleId::new(format!("{device} has no table:fallthrough")),
        };
        (&Policy::Fallthrough, unnamed)
    }

    /// The strongest rule about this op on this device type, the last of its kind.
    fn rule<'p>(&'p self, query: &Query<'p>, device: DeviceType) -> Option<&'p (Rule, RuleId)> {
        let here = |at: &usize| self.rules[*at].0.device.is_none_or(|only| only == device);
        let spoken = self.about(query).filter(here);
        spoken.max_by_key(|at| (self.rules[*at].0.target.rank(), *at)).map(|at| &self.rules[at])
    }

    /// The places among [`rules`](Self::rules) of those whose target is this call, on any device
    /// type, in no particular order.
    pub fn about<'p>(&'p self, query: &Query<'p>) -> impl Iterator<Item = usize> + 'p {
        let Query { op, overload, scope, node, .. } = *query;
        let candidates = self.index.candidates(query);
        candidates.filter(move |at| self.rules[*at].0.target.matches(op, overload, scope, node))
    }
}

impl fmt::Display for PolicySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parity = if self.parity { ", with the defects of PyTorch's regions" } else { "" };
        writeln!(f, "policy set {:016x}, promote by {}{parity}", self.hash(), self.promotion)?;
        for (rule, _) in &self.rules {
            writeln!(f, "rule {}: {rule}", rule.id)?;
        }
        for table in self.tables.iter().flatten() {
            writeln!(
                f,
                "{}: {} {}, {} ops",
                table.device(),
                table.name(),
                table.version(),
                table.len()
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::policy::{OperandInfo, Region};

    #[test]
    fn node_beats_module_beats_op_beats_device_beats_table() {
        let region = Region::default().with_device(DeviceType::Cpu, true, DType::BF16);
        let operands = [OperandInfo::tensor(DType::F32, DeviceType::Cpu)];
        let query = Query {
            scope: "enc.0",
            node: "enc.0/matmul#1",
            ..Query::new("matmul", &operands, &region)
        };
        let mut set = PolicySet::standard();
        let rule = |set: &PolicySet| set.decide(&query).rule.to_string();
        let mut hashes = vec![(set.hash(), rule(&set))];
        let mut ids = Vec::new();
        for (target, says) in [
            (Target::DeviceOp("matmul".into()), "rule/device op matmul:fp32"),
            (Target::Op("matmul".into()), "rule/op matmul:fp32"),
            (Target::Module("enc".into()), "rule/module enc:fp32"),
            (Target::Node("enc.*/matmul#*".into()), "rule/node enc.*/matmul#*:fp32"),
        ] {
            ids.push(set.add_rule(target, None, Policy::Fp32));
            assert_eq!(rule(&set), says);
            hashes.push((set.hash(), says.to_string()));
        }
        set.add_rule(Target::DeviceOp("matmul".into()), None, Policy::Promote);
        set.remove_rule(5 - 1).unwrap();
        for id in ids.into_iter().rev() {
            assert_eq!((set.hash(), rule(&set)), hashes.pop().unwrap());
            set.remove_rule(id).unwrap();
        }
        assert_eq!(set, PolicySet::standard());
        assert_eq!(set.remove_rule(0), None);
    }

    #[test]
    fn the_index_finds_what_asking_every_rule_finds() {
        let region = Region::default();
        let pieces = ["a", "b", "mm", "*", "**", "a.b", ".", "", "/mm#0", "mm.out", "mm.*"];
        let texts = pieces.iter().flat_map(|x| pieces.iter().map(move |y| format!("{x}{y}")));
        let targets = texts.flat_map(|text| {
            let makes: [fn(String) -> Target; 4] =
                [Target::DeviceOp, Target::Op, Target::Module, Target::Node];
            makes.map(|make| make(text.clone()))
        });
        let mut set = PolicySet::empty();
        targets.for_each(|target| {
            set.add_rule(target, None, Policy::Fp32);
        });
        for removed in [7, 100, 300] {
            set.remove_rule(removed).unwrap();
        }
        let calls = [("mm", "", ""), ("mm", "out", "a"), ("a", "", "a.b"), ("b", "x", "b.a.mm")];
        for (op, overload, scope) in calls {
            let node = format!("{scope}/{op}#0");
            let query = Query { overload, scope, node: &node, ..Query::new(op, &[], &region) };
            let mut found: Vec<usize> = set.about(&query).collect();
            found.sort_unstable();
            let rules = set.rules().enumerate();
            let is_about = |rule: &Rule| rule.target.matches(op, overload, scope, &node);
            let all: Vec<usize> =
                rules.filter(|(_, rule)| is_about(rule)).map(|(at, _)| at).collect();
            assert!(all.len() > 10 && found == all, "{op} in `{scope}`: {found:?}, not {all:?}");
        }
    }

    #[test]
    fn what_an_op_declares_holds_where_no_table_names_it() {
        let region = Region::default().with_device(DeviceType::Cpu, true, DType::BF16);
        let operands = [OperandInfo::tensor(DType::F32, DeviceType::Cpu)];
        let rule = |op, set: &PolicySet| {
            let declared = Some(&Policy::Fp32);
            set.decide(&Query { declared, ..Query::new(op, &operands, &region) }).rule.to_string()
        };
        let set = PolicySet::standard();
        assert_eq!(rule("matmul", &set), "torch-cpu/matmul:lower_precision_fp");
        assert_eq!(rule("my_op", &set), "op/my_op:fp32");
        assert_eq!(rule("my_op", &PolicySet::empty()), "op/my_op:fp32");
        let mut set = set;
        set.add_rule(Target::DeviceOp("my_op".into()), None, Policy::Fallthrough);
        assert_eq!(rule("my_op", &set), "rule/device op my_op:fallthrough");
    }

    #[test]
    fn the_last_rule_of_a_kind_wins_on_its_device() {
        let mut set = PolicySet::standard();
        let target = || Target::Op("relu".into());
        let plain = set.hash();
        set.set_parity(true);
        assert!(set.hash() != plain && set != PolicySet::standard());
        set.add_rule(target(), None, Policy::Fp32);
        set.add_rule(target(), Some(DeviceType::Cuda), Policy::LowerPrecisionFp);
        let policy = |device| {
            let region = Region::default().with_device(device, true, DType::BF16);
            let operands = [OperandInfo::tensor(DType::F16, device)];
            set.decide(&Query::new("relu", &operands, &region)).casts[0]
        };
        assert_eq!(policy(DeviceType::Cpu), Some(DType::F32));
        assert_eq!(policy(DeviceType::Cuda), Some(DType::BF16));
        let text = set.to_string();
        assert!(text.contains("rule 1: op relu on cuda: lower_precision_fp"), "{text}");
        assert!(
            text.starts_with(&format!("policy set {:016x}", set.hash()))
                && text.contains("cpu: torch-cpu 2.15.0, 126 ops")
        );
    }
}
