//! [`Finding`]s: what is odd about a policy file that reads.
//!
//! A rule may speak of an op that nobody knows, say what another rule says already, or never decide
//! because a stronger rule covers it. None of this is an error: the op may be a custom one, the
//! stronger rule may be removed again.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use toml::de::DeTable;

use super::mistakes::{mistakes, odd_op};
use super::rule::OpPattern;
use super::{DeviceType, PolicyError, PolicyFile, PolicySet, PolicyTable, Rule, Target};

/// Something odd in a policy file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The line, counted from 1.
    pub line: usize,
    /// The column, counted from 1.
    pub column: usize,
    /// What is odd.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.message)
    }
}

/// An op that can be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownOp<'a> {
    /// Its name.
    pub name: &'a str,
    /// True if it has an argument `dtype`.
    pub takes_dtype: bool,
    /// True if policies are asked about it, false if it is not for them or they meet its parts.
    pub is_seen: bool,
}

/// Looks through the file of a policy set or of a policy table; nothing is odd about the lists of a
/// TorchScript pass.
///
/// `ops` are the ops that can be recorded; those that a built-in table lists are known besides.
/// `hint` completes the name of an unknown op by names that are close to it; it is given ops that
/// can be recorded only.
///
/// # Errors
/// If the file does not read.
pub fn review(
    text: &str,
    ops: &[KnownOp<'_>],
    hint: &dyn Fn(&str, &mut dyn Iterator<Item = &str>) -> String,
) -> Result<Vec<Finding>, PolicyError> {
    let (set, rules) = match PolicyFile::parse(text)? {
        PolicyFile::Set(set) => {
            let rules = set.rules().cloned().collect();
            (*set, rules)
        }
        PolicyFile::Table(table) => {
            let mut set = PolicySet::empty();
            set.set_table(table);
            (set, Vec::new())
        }
        PolicyFile::Script(_) => return Ok(Vec::new()),
    };
    let mut listed = HashMap::<&str, Vec<&str>>::new();
    for (key, _) in PolicyTable::built_in().flat_map(|table| table.iter()) {
        listed.entry(OpPattern::in_table(key).0).or_default().push(key);
    }
    let ops = ops.iter().map(|op| (op.name, *op)).collect();
    let lines = Lines::of(text);
    let review = Review { lines, ops, listed, hint, set: &set, places: Places::of(text) };
    let mut findings = review.rules(&rules);
    findings.extend(review.tables());
    if let Ok(root) = DeTable::parse(text) {
        let odd = mistakes(root.get_ref(), &|op| review.takes_dtype(op));
        findings.extend(odd.into_iter().map(|(at, message)| review.finding(at, message)));
    }
    findings.sort();
    Ok(findings)
}

/// Where the rules and the lines of tables stand in a file.
#[derive(Default)]
struct Places {
    /// The target of each rule.
    rules: Vec<usize>,
    /// The ops of tables that are written out.
    listed: Vec<(String, usize)>,
}

impl Places {
    fn of(text: &str) -> Places {
        let mut places = Places::default();
        let Ok(root) = DeTable::parse(text) else { return places };
        let root = root.into_inner();
        let entries = |name: &str| root.get(name).and_then(|v| v.get_ref().as_array());
        for rule in entries("rule").into_iter().flat_map(|rules| rules.iter()) {
            let fields = rule.get_ref().as_table();
            let target = ["op", "device_op", "module", "node"]
                .iter()
                .find_map(|name| fields.and_then(|fields| fields.get(*name)));
            places.rules.push(target.map_or(rule.span().start, |target| target.span().start));
        }
        let tables = entries("table").into_iter().flat_map(|tables| tables.iter());
        let within = tables.filter_map(|table| table.get_ref().as_table()?.get("ops"));
        for ops in within.chain(root.get("ops")).filter_map(|ops| ops.get_ref().as_table()) {
            for key in ops.keys() {
                places.listed.push((key.get_ref().to_string(), key.span().start));
            }
        }
        places
    }
}

/// Where the lines of a text begin.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Self {
        let after = text.match_indices('\n').map(|(newline, _)| newline + 1);
        Lines { text, starts: [0].into_iter().chain(after).collect() }
    }

    /// As [`place`](super::toml_text::place), which looks through the whole text.
    fn place(&self, at: usize) -> (usize, usize) {
        let at = at.min(self.text.len());
        let line = self.starts.partition_point(|start| *start <= at);
        let start = self.starts[line - 1];
        let before = String::from_utf8_lossy(&self.text.as_bytes()[start..at]);
        (line, 1 + before.chars().count())
    }
}

/// Rules by what they are about, each list in order.
struct ByTarget<'r>(HashMap<(&'r Target, Option<DeviceType>), Vec<usize>>);

impl<'r> ByTarget<'r> {
    fn of(rules: &'r [Rule]) -> Self {
        let mut all = HashMap::<_, Vec<usize>>::new();
        for (number, rule) in rules.iter().enumerate() {
            all.entry((&rule.target, rule.device)).or_default().push(number);
        }
        ByTarget(all)
    }

    /// The first rule that decides wherever this one would.
    fn stronger(&self, number: usize, rule: &Rule) -> Option<usize> {
        let own = rule.target.rank();
        let known: &HashMap<(&Target, Option<DeviceType>), Vec<usize>> = &self.0;
        let first = |target: &Target, device: Option<DeviceType>| {
            let rules = known.get(&(target, device))?;
            // Of one kind the last rule wins.
            let later = || rules.partition_point(|by| *by <= number);
            rules.get(if target.rank() > own { 0 } else { later() }).copied()
        };
        let targets = covering(&rule.target).into_iter().filter(|target| target.rank() >= own);
        let all = targets.flat_map(|target| {
            [first(&target, None), rule.device.and_then(|_| first(&target, rule.device))]
        });
        all.flatten().min()
    }
}

/// The targets that are about everything that this one is about, some of them twice.
fn covering(target: &Target) -> Vec<Target> {
    let text = target.text().to_owned();
    let name = text.split('.').next().unwrap_or(&text).to_owned();
    let all = "**".to_owned();
    let mut covering = vec![Target::Module(all.clone()), Target::Node(all)];
    match target {
        Target::DeviceOp(_) => covering.extend([
            Target::DeviceOp(text.clone()),
            Target::DeviceOp(name.clone()),
            Target::Op(text),
            Target::Op(name),
        ]),
        Target::Op(_) => covering.extend([Target::Op(text), Target::Op(name)]),
        Target::Module(_) | Target::Node(_) => covering.push(target.clone()),
    }
    covering
}

struct Review<'a> {
    lines: Lines<'a>,
    /// By name.
    ops: HashMap<&'a str, KnownOp<'a>>,
    /// The lines of built-in tables, by the op.
    listed: HashMap<&'a str, Vec<&'a str>>,
    hint: &'a dyn Fn(&str, &mut dyn Iterator<Item = &str>) -> String,
    set: &'a PolicySet,
    places: Places,
}

impl Review<'_> {
    fn finding(&self, at: usize, message: String) -> Finding {
        let (line, column) = self.lines.place(at);
        Finding { line, column, message }
    }

    /// Rules about unknown ops, rules said twice, rules that never decide.
    fn rules(&self, rules: &[Rule]) -> Vec<Finding> {
        let mut findings = Vec::new();
        let line = |number: usize| self.lines.place(self.place(number)).0;
        let by_target = ByTarget::of(rules);
        for (number, rule) in rules.iter().enumerate() {
            if let Target::Op(text) | Target::DeviceOp(text) = &rule.target {
                let unknown = if odd_op("op", text).is_some() { None } else { self.unknown(text) };
                findings.extend(unknown.map(|m| self.finding(self.place(number), m)));
            }
            let same = |other: &Rule| {
                (&other.target, other.device, &other.policy)
                    == (&rule.target, rule.device, &rule.policy)
            };
            let stronger = by_target.stronger(number, rule).map(|by| (by, &rules[by]));
            let message = match stronger {
                Some((other, by)) if same(by) => {
                    format!("`{rule}` is said again on line {}", line(other))
                }
                Some((other, by)) => {
                    format!("`{rule}` never decides: `{by}` on line {} is stronger", line(other))
                }
                None => continue,
            };
            findings.push(self.finding(self.place(number), message));
        }
        findings
    }

    fn place(&self, rule: usize) -> usize {
        self.places.rules.get(rule).copied().unwrap_or(0)
    }

    /// Lines of tables about unknown ops.
    fn tables(&self) -> Vec<Finding> {
        let lines = self.places.listed.iter();
        lines.filter_map(|(op, at)| Some(self.finding(*at, self.unknown(op)?))).collect()
    }

    /// Whether an op has an argument `dtype`: of what cannot be recorded, whether a built-in table
    /// gives it one.
    fn takes_dtype(&self, name: &str) -> Option<bool> {
        if let Some(op) = self.ops.get(name) {
            return Some(op.takes_dtype);
        }
        let lines = PolicyTable::built_in().flat_map(|table| table.iter());
        let mut listed = lines.filter(|(key, _)| OpPattern::in_table(key).0 == name).peekable();
        listed.peek()?;
        Some(listed.any(|(_, policy)| policy.needs_dtype_argument()))
    }

    /// What is wrong with the name of an op: nobody knows it, or no policy is ever asked about it.
    fn unknown(&self, text: &str) -> Option<String> {
        let (name, pattern) = OpPattern::in_table(text);
        let recorded = self.ops.get(name);
        if recorded.is_some_and(|op| !op.is_seen) {
            return Some(format!(
                "no policy is ever asked about `{name}`: it is not for them, or they meet its parts in its place"
            ));
        }
        let keys = self.listed.get(name).map_or(&[][..], Vec::as_slice);
        if keys.is_empty() && recorded.is_none() {
            let mut known = self.ops.values().filter(|op| op.is_seen).map(|op| op.name);
            let hint = (self.hint)(name, &mut known);
            let end = if hint.is_empty() { ": is it a custom op?" } else { "" };
            return Some(format!("no op has the name `{name}`{hint}{end}"));
        }
        let overload = match &pattern {
            OpPattern::One(overload) if !overload.is_empty() => overload,
            _ => return None,
        };
        // An op that no table lists may have any overloads, and so may one of which a table lists
        // all.
        let matches = |key: &&str| match OpPattern::in_table(key).1 {
            OpPattern::Any => true,
            OpPattern::One(one) => one == *overload,
        };
        if keys.is_empty() || keys.iter().any(matches) || self.own_overload(name) {
            return None;
        }
        Some(format!(
            "no built-in table has an overload `{overload}` of `{name}`: they list {}",
            listed(keys.to_vec())
        ))
    }

    /// True if a table of the file itself lists the op: then its author knows the overloads.
    fn own_overload(&self, name: &str) -> bool {
        let tables = DeviceType::ALL.into_iter().filter_map(|d| self.set.table(d));
        let own = |table: &&Arc<PolicyTable>| !PolicyTable::built_in().any(|b| b == *table);
        let mut keys = tables.filter(own).flat_map(|t| t.iter().map(|(key, _)| key));
        keys.any(|key| OpPattern::in_table(key).0 == name)
    }
}

/// Distinct keys, in order.
fn listed(mut keys: Vec<&str>) -> String {
    keys.sort_unstable();
    keys.dedup();
    keys.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let hint = |name: &str, known: &mut dyn Iterator<Item = &str>| {
            crate::text::did_you_mean(name, known)
        };
        let op = |name, takes_dtype| KnownOp { name, takes_dtype, is_seen: name != "cast" };
        let ops = [op("gelu", false), op("own", false), op("sum", true), op("cast", false)];
        review(text, &ops, &hint).unwrap().iter().map(Finding::to_string).collect()
    }

    #[test]
    fn unknown_ops_and_overloads_are_told() {
        let rule = |op: &str| format!("[[rule]]\nop = \"{op}\"\npolicy = \"fp32\"\n");
        let said = found(&rule("gelo"));
        assert!(
            said[0].starts_with("line 2, column 6: no op has the name `gelo`: did you mean `gelu`"),
            "{said:?}"
        );
        assert!(found(&rule("xyzzy"))[0].ends_with("`xyzzy`: is it a custom op?"));
        assert_eq!(found(&rule("sum.dim_IntLst")).len(), 1);
        assert!(found(&rule("cast"))[0].contains("no policy is ever asked about `cast`"));
        for known in ["gelu", "own", "own.x", "mm", "sum.dim_IntList", "conv3d", "matmul.*"] {
            assert_eq!(found(&rule(known)), [""; 0], "{known}");
        }
        let table = "name = \"t\"\ndevice = \"cpu\"\nversion = \"1\"\n[ops]\nmn = \"fp32\"\n";
        assert!(found(table)[0].starts_with("line 5, column 1: no op has the name `mn`"));
        let within = "[[table]]\nname = \"t\"\ndevice = \"cpu\"\nversion = \"1\"\n[table.ops]\n  mn = \"fp32\"\n";
        assert!(found(within)[0].starts_with("line 6, column 3: no op has the name `mn`"));
    }

    #[test]
    fn u6_only_ops_that_exist_are_suggested() {
        // PyTorch's lists have `conv3d` and `mm`, which nobody can record here; no policy is asked
        // about `cast`.
        for name in ["conv3", "mn", "casts"] {
            let said = found(&format!("[[rule]]\nop = \"{name}\"\npolicy = \"fp32\"\n"));
            assert!(said[0].ends_with("is it a custom op?"), "{said:?}");
        }
    }

    #[test]
    fn rules_that_never_decide_are_told() {
        let rules = |lines: &[&str]| {
            let rule = |line: &&str| format!("[[rule]]\n{line}\n");
            found(&lines.iter().map(rule).collect::<String>())
        };
        let fp32 = "op = \"mm\"\npolicy = \"fp32\"";
        let low = "op = \"mm\"\npolicy = \"lower_precision_fp\"";
        let on_cpu = "op = \"mm\"\ndevice = \"cpu\"\npolicy = \"promote\"";
        let everywhere = "module = \"**\"\npolicy = \"fallthrough\"";
        assert_eq!(
            rules(&[fp32, fp32]),
            ["line 2, column 6: `op mm: fp32` is said again on line 5"]
        );
        let shadowed = "line 2, column 6: `op mm: fp32` never decides: `op mm: lower_precision_fp` on line 5 is stronger";
        assert_eq!(rules(&[fp32, low]), [shadowed]);
        assert_eq!(rules(&[low, on_cpu]), [""; 0]);
        assert_eq!(rules(&[on_cpu, low]).len(), 1);
        assert_eq!(rules(&[everywhere, low, on_cpu]).len(), 2);
        assert_eq!(rules(&["device_op = \"mm\"\npolicy = \"promote\"", low]).len(), 1);
        let node = "node = \"**/mm#0\"\npolicy = \"promote\"";
        assert_eq!(rules(&[node, low]), [""; 0]);
        // A rule about a node wins over one about all modules, also over a later one.
        assert_eq!(rules(&[node, everywhere]), [""; 0]);
        assert_eq!(rules(&[node, "node = \"**\"\npolicy = \"fp32\""]).len(), 1);
    }

    #[test]
    fn lines_that_cannot_mean_what_they_say_are_told() {
        let rule = |line: &str, policy: &str| format!("[[rule]]\n{line}\npolicy = \"{policy}\"\n");
        let table = |line: &str| {
            format!("name = \"torch-cpu\"\ndevice = \"cuda\"\nversion = \"1\"\n[ops]\n{line}\n")
        };
        for (text, line, says) in [
            (rule("op = \"*\"", "fp32"), 2, "takes no pattern"),
            (rule("op = \"conv*\"", "fp32"), 2, "takes no pattern"),
            (rule("op = \"mm,linear\"", "fp32"), 2, "write a rule for each op"),
            (rule("device_op = \"\"", "fp32"), 2, "takes the name of an op"),
            (rule("module = \"hidden.\"", "fp32"), 2, "an empty part"),
            (rule("module = \"hidden/mm#0\"", "fp32"), 2, "write `node`"),
            (rule("node = \"mm#0\"", "fp32"), 2, "is `/mm#0`, one in any module `**/mm#0`"),
            (rule("node = \"a/mm\"", "fp32"), 2, "`a/mm#0`"),
            (rule("node = \"%3\"", "fp32"), 2, "a value of one text"),
            (rule("op = \"mm\"\nadvice = \"no\"", "fp32"), 3, "`fp32` leaves it unread"),
            (rule("op = \"mm\"\nadvice = \" \"", "banned"), 3, "the advice is empty"),
            (rule("op = \"gelu\"", "fp32_set_opt_dtype"), 3, "gives `gelu` the argument `dtype`"),
            (rule("op = \"mm\"", "fp32_append_dtype"), 3, "gives `mm` the argument `dtype`"),
            (rule("node = \"**/gelu#*\"", "fp32_append_dtype"), 3, "every call of it is refused"),
            (rule("module = \"a\"", "fp32_set_opt_dtype"), 3, "are refused"),
            (table("gelu = \"fp32_set_opt_dtype\""), 5, "gives `gelu` the argument"),
            (table("mm = { policy = \"fp32\", advice = \"no\" }"), 5, "unread"),
            (table(""), 1, "the built-in table for cpu"),
        ] {
            let said = found(&text);
            let expected = format!("line {line}, ");
            let told = said.iter().any(|one| one.starts_with(&expected) && one.contains(says));
            assert!(told, "expected `{says}` on line {line} of {text}: {said:?}");
            // The name of the table is odd in each of them.
            assert!(said.len() == 1 || text.starts_with("name"), "{said:?}");
        }
        for (line, policy) in [
            ("op = \"sum\"", "fp32_set_opt_dtype"),
            ("op = \"norm\"", "fp32_append_dtype"),
            ("module = \"\"", "fp32"),
            ("module = \"encoder.*\"", "fp32"),
            ("node = \"/mm#0\"", "fp32"),
            ("node = \"**\"", "fp32"),
            ("node = \"encoder.*/mm#*\"", "fp32"),
        ] {
            assert_eq!(found(&rule(line, policy)), [""; 0], "{line}");
        }
    }

    #[test]
    fn what_does_not_read_is_an_error() {
        assert!(review("rule = 3", &[], &|_, _| String::new()).is_err());
    }
}
