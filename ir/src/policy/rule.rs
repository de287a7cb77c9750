//! Rules that a user or a device lays over the tables, the ids of rules, and stable hashes of both.

use std::fmt::{self, Write};
use std::sync::Arc;

use super::{DeviceType, Policy, Query, pattern};

/// Which rule decided, for messages and explanations: `torch-cpu/matmul:lower_precision_fp`.
///
/// Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RuleId(Source);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Source {
    Off,
    Elsewhere,
    Table(Arc<str>),
    /// A rule of a set, with its number there.
    Rule(Arc<str>, u32),
}

impl RuleId {
    /// No rule was asked: autocast was off.
    pub const OFF: RuleId = RuleId(Source::Off);
    /// No rule was asked: no operand lives on a device whose autocast was on.
    pub const ELSEWHERE: RuleId = RuleId(Source::Elsewhere);

    /// The id of that text.
    pub(super) fn new(text: impl Into<Arc<str>>) -> RuleId {
        RuleId(Source::Table(text.into()))
    }

    /// True for a rule that a user or a device has laid over the tables.
    pub fn is_laid_over(&self) -> bool {
        matches!(self.0, Source::Rule(..))
    }

    /// The text of the id.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Source::Off => "autocast off",
            Source::Elsewhere => "autocast off for its operands",
            Source::Table(text) | Source::Rule(text, _) => text,
        }
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a rule is about, weakest first: a later kind wins over an earlier one.
///
/// In patterns `*` stands for any run of characters without a dot and `**` for any run. An op
/// without a dot is every overload of it; `mm.default` is the default overload alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// An op, as the device itself wants it; stands below every other rule and above the table.
    DeviceOp(String),
    /// An op.
    Op(String),
    /// Every node in the modules whose path matches, and in the modules inside them.
    Module(String),
    /// Every node whose name matches.
    Node(String),
}

impl Target {
    const fn kind(&self) -> &'static str {
        match self {
            Target::DeviceOp(_) => "device op",
            Target::Op(_) => "op",
            Target::Module(_) => "module",
            Target::Node(_) => "node",
        }
    }

    /// The op or the pattern.
    pub fn text(&self) -> &str {
        match self {
            Target::DeviceOp(text)
            | Target::Op(text)
            | Target::Module(text)
            | Target::Node(text) => text,
        }
    }

    /// How strong the kind is.
    pub(super) const fn rank(&self) -> u8 {
        match self {
            Target::DeviceOp(_) => 0,
            Target::Op(_) => 1,
            Target::Module(_) => 2,
            Target::Node(_) => 3,
        }
    }

    pub(super) fn matches(&self, op: &str, overload: &str, scope: &str, node: &str) -> bool {
        match self {
            Target::DeviceOp(text) | Target::Op(text) => {
                let (name, pattern) = OpPattern::in_rule(text);
                name == op && (pattern.is_any() || pattern.is_exactly(overload))
            }
            Target::Module(pattern) => pattern::matches_module(pattern, scope),
            Target::Node(pattern) => pattern::matches(pattern, node),
        }
    }
}

/// `op mm`; in quotes what is no plain name, so that no text can be taken for more than itself:
/// `node "a on cuda"`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text();
        let is_plain = |c: char| c.is_alphanumeric() || "_./*#-".contains(c);
        if !text.is_empty() && text.chars().all(is_plain) {
            write!(f, "{} {text}", self.kind())
        } else {
            write!(f, "{} {text:?}", self.kind())
        }
    }
}

/// A policy for what a target names, on one device type or on all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// What the rule is about.
    pub target: Target,
    /// The device type it holds for; `None` for all.
    pub device: Option<DeviceType>,
    /// What happens there.
    pub policy: Policy,
    /// The number by which the rule can be removed again.
    pub id: u32,
}

impl Rule {
    /// True if it is about this call on one of the device types that it holds for: it decides,
    /// unless a stronger rule does.
    pub fn speaks_of(&self, query: &Query<'_>) -> bool {
        let here =
            self.device.is_none_or(|only| query.operands.iter().any(|operand| operand.is_on(only)));
        here && self.target.matches(query.op, query.overload, query.scope, query.node)
    }

    /// The id that decisions of this rule carry. Its text tells target, device and policy; two
    /// rules that say the same have ids that are not equal, since their numbers differ.
    pub fn rule_id(&self) -> RuleId {
        let device = self.device.map_or(String::new(), |device| format!(" on {device}"));
        let text = format!("rule/{}{device}:{}", self.target, self.policy);
        RuleId(Source::Rule(text.into(), self.id))
    }

    /// Adds all that decides, each field by itself.
    pub(super) fn hash_into(&self, hash: &mut Fnv) {
        hash.add(&self.target.kind());
        hash.add(&self.target.text());
        hash.add(&self.device.map_or("", DeviceType::name));
        hash.add(&self.policy);
        if let Policy::Banned { advice } = &self.policy {
            hash.add(advice);
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.target)?;
        if let Some(device) = self.device {
            write!(f, " on {device}")?;
        }
        write!(f, ": {}", self.policy)?;
        match &self.policy {
            Policy::Banned { advice } => write!(f, " ({advice})"),
            _ => Ok(()),
        }
    }
}

/// Which overloads of an op a line is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OpPattern {
    Any,
    /// One overload; empty for the default.
    One(String),
}

impl OpPattern {
    /// Splits the key of a table line: `op`, `op.overload` or `op.*`.
    pub(super) fn in_table(key: &str) -> (&str, OpPattern) {
        match key.split_once('.') {
            Some((op, "*")) => (op, OpPattern::Any),
            Some((op, overload)) => (op, OpPattern::One(normal(overload).to_string())),
            None => (key, OpPattern::One(String::new())),
        }
    }

    /// Splits the op of a rule, where the bare name means every overload.
    pub(super) fn in_rule(text: &str) -> (&str, OpPattern) {
        if text.contains('.') { OpPattern::in_table(text) } else { (text, OpPattern::Any) }
    }

    pub(super) fn is_any(&self) -> bool {
        *self == OpPattern::Any
    }

    pub(super) fn is_exactly(&self, overload: &str) -> bool {
        matches!(self, OpPattern::One(one) if one == normal(overload))
    }
}

/// The default overload has two spellings.
fn normal(overload: &str) -> &str {
    if overload == "default" { "" } else { overload }
}

/// The 64-bit FNV-1a hash: the same in every process and on every machine.
pub(super) struct Fnv(u64);

impl Fnv {
    pub(super) fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    pub(super) fn of(content: &impl fmt::Display) -> u64 {
        let mut hash = Fnv::new();
        hash.add(content);
        hash.finish()
    }

    /// Adds what `content` prints, and an end mark.
    pub(super) fn add(&mut self, content: &impl fmt::Display) {
        write!(self, "{content}\0").expect("hashing does not fail");
    }

    pub(super) fn finish(self) -> u64 {
        self.0
    }
}

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_match_what_they_name() {
        let op =
            |text: &str, overload: &str| Target::Op(text.into()).matches("sum", overload, "", "");
        assert!(
            op("sum", "") && op("sum", "dim_IntList") && op("sum.default", "") && op("sum.*", "x")
        );
        assert!(!op("sum.default", "dim_IntList") && !op("summary", ""));
        assert!(Target::Module("a.*".into()).matches("sum", "", "a.b.c", "a.b.c/sum#0"));
        assert!(Target::Node("**/sum#0".into()).matches("sum", "", "a.b.c", "a.b.c/sum#0"));
        assert!(Target::Node("x".into()) > Target::Module("y".into()));
    }

    #[test]
    fn no_two_rules_are_taken_for_one() {
        let rule = |text: &str, device, id| Rule {
            target: Target::Node(text.into()),
            device,
            policy: Policy::Fp32,
            id,
        };
        let cuda = Some(DeviceType::Cuda);
        let hash = |rule: &Rule| {
            let mut hash = Fnv::new();
            rule.hash_into(&mut hash);
            hash.finish()
        };
        let (inside, beside) = (rule("a on cuda", None, 0), rule("a", cuda, 0));
        assert_ne!(hash(&inside), hash(&beside));
        assert_ne!(hash(&rule("a", None, 0)), hash(&beside));
        assert_eq!(hash(&rule("a", cuda, 7)), hash(&beside));
        assert_eq!(inside.to_string(), "node \"a on cuda\": fp32");
        assert_eq!(beside.to_string(), "node a on cuda: fp32");
        assert_eq!(beside.rule_id().to_string(), "rule/node a on cuda:fp32");
        assert_ne!(beside.rule_id(), rule("a", Some(DeviceType::Cpu), 0).rule_id());
        assert_ne!(beside.rule_id(), rule("a", cuda, 7).rule_id());
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        let mut hash = Fnv::new();
        hash.write_str("foobar").unwrap();
        assert_eq!(hash.finish(), 0x85944171f73967e8);
    }
}
