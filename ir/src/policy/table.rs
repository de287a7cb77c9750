//! [`PolicyTable`]: one device type's op list, as data in a versioned TOML file.
//!
//! ```toml
//! name = "torch-cpu"
//! device = "cpu"
//! version = "2.15.0"
//!
//! [ops]
//! matmul = "lower_precision_fp"             # the default overload
//! "conv1d.padding" = "lower_precision_fp"   # one overload
//! "gelu.*" = "fp32"                         # every overload that has no line of its own
//! binary_cross_entropy = { policy = "banned", advice = "use the form with logits" }
//! layer_norm = { policy = "lower_precision_fp", because = "statistics are f32" }  # the reason is in the rule id
//! ```
//!
//! A table with the line `casts_f64 = true` casts f64 too, where it casts all floats. An op that is
//! not listed falls through. In-place and out forms are other overloads, so a list that does not
//! name them leaves them alone.

use std::collections::BTreeMap;
use std::fmt;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::rule::{Fnv, OpPattern};
use super::toml_text::{place, quoted};
use super::{DeviceType, Policy, PolicyError, RuleId};

/// Op name to [`Policy`] for one device type, one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyTable {
    name: String,
    device: DeviceType,
    version: String,
    casts_f64: bool,
    ops: BTreeMap<String, Vec<Entry>>,
    unlisted: RuleId,
    hash: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// The key as it stands in the file.
    key: String,
    pattern: OpPattern,
    policy: Policy,
    because: Option<String>,
    rule: RuleId,
}

impl Entry {
    /// The entry as one of a table of that name.
    fn of(self, table: &str) -> Entry {
        let reason = self.because.as_ref().map_or(String::new(), |why| format!(", because {why}"));
        let rule = RuleId::new(format!("{table}/{}:{}{reason}", self.key, self.policy));
        Entry { rule, ..self }
    }
}

impl PolicyTable {
    /// A table that lists nothing.
    pub fn empty(name: &str, device: DeviceType, version: &str) -> PolicyTable {
        PolicyTable::build(name, device, version, false, BTreeMap::new())
    }

    /// Reads a table file.
    ///
    /// # Errors
    /// With the line, if the text is no TOML, a field is missing or unknown, a device or policy has
    /// no such name, a ban gives no advice, or an op is listed twice.
    pub fn parse(text: &str) -> Result<PolicyTable, PolicyError> {
        Reader { text }.table()
    }

    /// Reads a table that is a part of `text`.
    pub(super) fn within(text: &str, fields: &DeTable<'_>) -> Result<PolicyTable, PolicyError> {
        Reader { text }.fields(fields)
    }

    fn build(
        name: &str,
        device: DeviceType,
        version: &str,
        casts_f64: bool,
        ops: BTreeMap<String, Vec<Entry>>,
    ) -> PolicyTable {
        let unlisted = RuleId::new(format!("{name}/*:fallthrough"));
        let mut table = PolicyTable {
            name: name.to_string(),
            device,
            version: version.to_string(),
            casts_f64,
            ops,
            unlisted,
            hash: 0,
        };
        table.hash = Fnv::of(&table.to_string());
        table
    }

    /// The name, such as `torch-cpu`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device type this table is for.
    pub fn device(&self) -> DeviceType {
        self.device
    }

    /// The same table for another device type: what a device from outside takes over. Its rules
    /// keep their names.
    ///
    /// ```
    /// use tracecast_ir::policy::{DeviceType, PolicyTable};
    ///
    /// let cuda = PolicyTable::named("torch-cuda").expect("is built in");
    /// let mine = cuda.for_device(DeviceType::PrivateUse1);
    /// assert_eq!(mine.device(), DeviceType::PrivateUse1);
    /// assert_eq!(mine.get("mm", ""), cuda.get("mm", ""));
    /// ```
    #[must_use]
    pub fn for_device(&self, device: DeviceType) -> PolicyTable {
        let mut table = PolicyTable { device, hash: 0, ..self.clone() };
        table.hash = Fnv::of(&table.to_string());
        table
    }

    /// This table under another name, with the lines of others in the places of its own. Later ones
    /// win.
    pub(super) fn overlaid(&self, name: &str, others: &[PolicyTable]) -> PolicyTable {
        let mut ops: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        for table in std::iter::once(self).chain(others) {
            for (op, entries) in &table.ops {
                let listed = ops.entry(op.clone()).or_default();
                for entry in entries {
                    let line = entry.clone().of(name);
                    match listed.iter_mut().find(|known| known.pattern == line.pattern) {
                        Some(known) => *known = line,
                        None => listed.push(line),
                    }
                }
            }
        }
        PolicyTable::build(name, self.device, &self.version, self.casts_f64, ops)
    }

    /// The version of the system that the table describes.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// True if `lower_precision_fp` and `fp32` cast f64 as well.
    pub fn casts_f64(&self) -> bool {
        self.casts_f64
    }

    /// The policy of an op and the rule that says so, or `None` if the op is not listed.
    ///
    /// The line of the overload wins over the line for every overload; the empty overload is the
    /// default one.
    pub fn get(&self, op: &str, overload: &str) -> Option<(&Policy, &RuleId)> {
        let entries = self.ops.get(op)?;
        let exact = entries.iter().find(|entry| entry.pattern.is_exactly(overload));
        let entry = exact.or_else(|| entries.iter().find(|entry| entry.pattern.is_any()))?;
        Some((&entry.policy, &entry.rule))
    }

    /// The rule id of ops that are not listed.
    pub fn unlisted(&self) -> &RuleId {
        &self.unlisted
    }

    /// Every listed op, as `op` or `op.overload`, in the order of the op names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Policy)> {
        self.ops.values().flatten().map(|entry| (entry.key.as_str(), &entry.policy))
    }

    /// The number of listed ops, overloads counted apart.
    pub fn len(&self) -> usize {
        self.ops.values().map(Vec::len).sum()
    }

    /// True if nothing is listed.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// A hash of name, device, version and every line, the same in every process.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

impl fmt::Display for PolicyTable {
    /// Prints the table as a file that [`PolicyTable::parse`] reads back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "name = {}", quoted(&self.name))?;
        writeln!(f, "device = \"{}\"\nversion = {}", self.device, quoted(&self.version))?;
        if self.casts_f64 {
            writeln!(f, "casts_f64 = true")?;
        }
        writeln!(f, "\n[ops]")?;
        for Entry { key, policy, because, .. } in self.ops.values().flatten() {
            let mut fields = Vec::new();
            if let Policy::Banned { advice } = policy {
                fields.push(format!(", advice = {}", quoted(advice)));
            }
            fields.extend(because.iter().map(|why| format!(", because = {}", quoted(why))));
            match &fields[..] {
                [] => writeln!(f, "{} = \"{policy}\"", quoted(key))?,
                _ => {
                    writeln!(f, "{} = {{ policy = \"{policy}\"{} }}", quoted(key), fields.concat())?
                }
            }
        }
        Ok(())
    }
}

/// Reads a table from text, keeping track of where things stand.
struct Reader<'a> {
    text: &'a str,
}

impl Reader<'_> {
    fn table(&self) -> Result<PolicyTable, PolicyError> {
        let root = DeTable::parse(self.text).map_err(|error| {
            self.error(error.span().map_or(0, |span| span.start), error.message())
        })?;
        self.fields(root.get_ref())
    }

    fn fields(&self, root: &DeTable<'_>) -> Result<PolicyTable, PolicyError> {
        let known = |key: &str| ["name", "device", "version", "casts_f64", "ops"].contains(&key);
        if let Some(key) = root.keys().find(|key| !known(key.get_ref())) {
            let message = format!(
                "expected name, device, version, casts_f64 or ops, found `{}`",
                key.get_ref()
            );
            return Err(self.error(key.span().start, message));
        }
        let field = |name: &str| {
            root.get(name).ok_or_else(|| self.error(0, format!("`{name}` is missing")))
        };
        let (name, device, version) = (field("name")?, field("device")?, field("version")?);
        let device_type = self
            .string(device)?
            .parse()
            .map_err(|error: PolicyError| self.error(device.span().start, error))?;
        let ops = field("ops")?;
        let lines = ops
            .get_ref()
            .as_table()
            .ok_or_else(|| self.error(ops.span().start, "expected a table of ops"))?;
        let name = self.string(name)?;
        let casts_f64 = match root.get("casts_f64") {
            None => false,
            Some(flag) => flag
                .get_ref()
                .as_bool()
                .ok_or_else(|| self.error(flag.span().start, "expected true or false"))?,
        };
        let (version, ops) = (self.string(version)?, self.ops(name, lines)?);
        Ok(PolicyTable::build(name, device_type, version, casts_f64, ops))
    }

    fn ops(
        &self,
        table: &str,
        lines: &DeTable<'_>,
    ) -> Result<BTreeMap<String, Vec<Entry>>, PolicyError> {
        let mut ops: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        for (key, value) in lines {
            let text = key.get_ref().as_ref();
            let (op, pattern) = OpPattern::in_table(text);
            let (policy, because) = self.policy(value)?;
            let entries = ops.entry(op.to_string()).or_default();
            if entries.iter().any(|entry| entry.pattern == pattern) {
                return Err(self.error(key.span().start, format!("`{text}` is listed twice")));
            }
            let entry =
                Entry { key: text.to_string(), pattern, policy, because, rule: RuleId::OFF };
            entries.push(entry.of(table));
        }
        Ok(ops)
    }

    /// A policy, and the reason for it.
    fn policy(
        &self,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(Policy, Option<String>), PolicyError> {
        let at = value.span().start;
        let (name, advice, because) = match value.get_ref() {
            DeValue::Table(fields) => {
                let known = |key: &str| ["policy", "advice", "because"].contains(&key);
                if let Some(key) = fields.keys().find(|key| !known(key.get_ref())) {
                    let message =
                        format!("expected policy, advice or because, found `{}`", key.get_ref());
                    return Err(self.error(key.span().start, message));
                }
                let field =
                    |name: &str| fields.get(name).map(|value| self.string(value)).transpose();
                let name = field("policy")?.ok_or_else(|| self.error(at, "`policy` is missing"))?;
                (name, field("advice")?, field("because")?.map(str::to_owned))
            }
            _ => (self.string(value)?, None, None),
        };
        match (Policy::named(name, advice.unwrap_or_default()), advice) {
            (Ok(Policy::Banned { .. }), None) => {
                Err(self.error(at, "a banned op needs an `advice`"))
            }
            (policy, _) => {
                policy.map(|policy| (policy, because)).map_err(|error| self.error(at, error))
            }
        }
    }

    fn string<'v>(&self, value: &'v Spanned<DeValue<'_>>) -> Result<&'v str, PolicyError> {
        let found = value.get_ref();
        found.as_str().ok_or_else(|| {
            self.error(value.span().start, format!("expected a string, found {}", found.type_str()))
        })
    }

    fn error(&self, at: usize, message: impl ToString) -> PolicyError {
        let (line, column) = place(self.text, at);
        PolicyError::Table { line, column, message: message.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "name = \"t\"\ndevice = \"cpu\"\nversion = \"1\"\n[ops]\n";

    #[test]
    fn keys_and_advice_of_many_lines_read_back() {
        let odd = "a\\\nb \"c\" 'd'\t\u{7f}\u{1}é\n[ops]\n";
        let key = quoted(&format!("mm.{odd}"));
        let advice = quoted(odd);
        let text = format!("{HEAD}{key} = {{ policy = \"banned\", advice = {advice} }}\n");
        let table = PolicyTable::parse(&text).unwrap();
        assert_eq!(PolicyTable::parse(&table.to_string()).as_ref(), Ok(&table), "{table}");
        let banned = Policy::Banned { advice: odd.into() };
        assert_eq!(table.iter().next(), Some((&*format!("mm.{odd}"), &banned)));
        let mut set = crate::policy::PolicySet::standard();
        set.set_table(table.into());
        assert_eq!(crate::policy::PolicySet::parse(&set.to_toml()).unwrap(), set);
    }

    #[test]
    fn the_built_in_lists_are_complete() {
        let count = |table: &PolicyTable, name: &str| {
            table.iter().filter(|(_, policy)| policy.name() == name).count()
        };
        let sizes = |name: &str| {
            let table = PolicyTable::named(name).unwrap();
            Policy::NAMES.map(|policy| count(&table, policy))
        };
        assert_eq!(sizes("torch-cpu"), [24, 99, 0, 0, 3, 0, 0]);
        assert_eq!(sizes("torch-cuda"), [35, 60, 11, 2, 11, 1, 0]);
        for shared in ["torch-xpu", "torch-mtia", "torch-maia"] {
            assert_eq!(sizes(shared), [33, 59, 11, 2, 11, 1, 0]);
        }
        assert_eq!(sizes("torch-mps"), [26, 59, 0, 0, 10, 0, 0]);
        assert_eq!(sizes("torch-xla"), [21, 45, 0, 0, 4, 0, 0]);
        assert_eq!(sizes("torchax"), [24, 100, 0, 0, 4, 0, 0]);
        assert_eq!(sizes("privateuse1"), [0; 7]);
        assert!(PolicyTable::named("torchax").unwrap().casts_f64());
        assert_eq!(PolicyTable::named("torch-cpu@2.15.0"), PolicyTable::named("torch-cpu"));
        assert_eq!(PolicyTable::named("torch-cpu@1.0"), None);
    }

    #[test]
    fn a_name_is_the_default_overload_alone() {
        let table = PolicyTable::parse(&format!(
            "{HEAD}mm = \"fp32\"\n\"gelu.*\" = \"promote\"\n\"gelu.out\" = \"fallthrough\"\n"
        ))
        .unwrap();
        let get =
            |op: &str, overload: &str| table.get(op, overload).map(|(policy, _)| policy.name());
        assert_eq!(
            (get("mm", ""), get("mm", "default"), get("mm", "out")),
            (Some("fp32"), Some("fp32"), None)
        );
        assert_eq!((get("gelu", ""), get("gelu", "x")), (Some("promote"), Some("promote")));
        assert_eq!((get("gelu", "out"), get("relu", "")), (Some("fallthrough"), None));
        assert_eq!(table.get("mm", "").unwrap().1.to_string(), "t/mm:fp32");
    }

    #[test]
    fn errors_name_the_line() {
        for (text, line, says) in [
            (format!("{HEAD}mm = \"fp32\"\nbmm = \"fp23\"\n"), 6, "`fp23`"),
            (format!("{HEAD}mm = \"fp32\"\n\nmm = \"promote\"\n"), 7, "duplicate"),
            (format!("{HEAD}mm = \"fp32\"\n\"mm.default\" = \"promote\"\n"), 6, "listed twice"),
            (format!("{HEAD}mm = 3\n"), 5, "integer"),
            (format!("{HEAD}mm = \"banned\"\n"), 5, "advice"),
            (format!("{HEAD}mm = {{ policy = \"fp32\", why = \"x\" }}\n"), 5, "`why`"),
            (HEAD.replace("cpu", "tpu"), 2, "`tpu`"),
            (format!("x = 1\n{HEAD}"), 1, "`x`"),
            ("name = \"t\"\n".to_string(), 1, "`device` is missing"),
        ] {
            let error = PolicyTable::parse(&text).unwrap_err();
            let PolicyError::Table { line: found, ref message, .. } = error else {
                panic!("{error}")
            };
            assert!(found == line && message.contains(says), "{error} (expected line {line})");
        }
    }

    #[test]
    fn tables_round_trip_and_hash_their_content() {
        for table in PolicyTable::built_in() {
            let again = PolicyTable::parse(&table.to_string()).unwrap();
            assert_eq!((&again, again.hash()), (&**table, table.hash()));
        }
        let one = PolicyTable::parse(&format!("{HEAD}mm = \"fp32\"\n")).unwrap();
        let other = PolicyTable::parse(&format!("{HEAD}mm = \"promote\"\n")).unwrap();
        assert_ne!(one.hash(), other.hash());
    }
}
