//! [`PolicySet`] as a TOML file, written and read.
//!
//! ```toml
//! promote = "scan"                                    # or "join"
//! parity = false                                      # or true: with the defects of PyTorch's regions
//! tables = ["torch-cpu@2.15.0", "torch-cuda@2.15.0"]  # built-in tables, by name and version
//!
//! [[table]]                                           # a table of one's own, as a table file
//! name = "npu"
//! device = "privateuse1"
//! version = "1"
//! ops = { mm = "lower_precision_fp" }
//!
//! [[rule]]                                            # oldest first; one of op, device_op, module and node
//! op = "gelu"
//! device = "cuda"                                     # all device types without this line
//! policy = "fp32"
//! ```
//!
//! Without `tables` the standard ones hold; an empty list is no table. A `[[table]]` takes the
//! place of its device type's.

use std::fmt::Write;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::toml_text::{place, quoted};
use super::{DeviceType, Policy, PolicyError, PolicySet, PolicyTable, Promotion, Target};

type Fields<'a> = DeTable<'a>;

impl PolicySet {
    /// The set as a file that [`PolicySet::parse`] reads back: equal, and of equal hash.
    pub fn to_toml(&self) -> String {
        let tables = DeviceType::ALL.into_iter().filter_map(|device| self.table(device));
        let is_built_in =
            |table: &&Arc<PolicyTable>| PolicyTable::named(&table.title()).as_ref() == Some(*table);
        let (built_in, own): (Vec<_>, Vec<_>) = tables.partition(is_built_in);
        let names: Vec<_> = built_in.iter().map(|table| quoted(&table.title())).collect();
        let mut out =
            format!("promote = \"{}\"\ntables = [{}]\n", self.promotion(), names.join(", "));
        if self.parity() {
            out.insert_str(0, "parity = true\n");
        }
        for table in own {
            let text = table.to_string().replace("\n[ops]\n", "\n[table.ops]\n");
            write!(out, "\n[[table]]\n{text}").expect("writing to a string cannot fail");
        }
        for rule in self.rules() {
            out += "\n[[rule]]\n";
            let mut line = |key: &str, text: &str| {
                writeln!(out, "{key} = {}", quoted(text)).expect("writing to a string cannot fail");
            };
            line(key(&rule.target), rule.target.text());
            if let Some(device) = rule.device {
                line("device", device.name());
            }
            line("policy", rule.policy.name());
            if let Policy::Banned { advice } = &rule.policy {
                line("advice", advice);
            }
        }
        out
    }

    /// Reads a file.
    ///
    /// # Errors
    /// With the line, if the text is no TOML, a field is missing or unknown, no built-in table has
    /// that name and version, two tables are for one device type, or a table, device, policy or
    /// rule is wrong.
    pub fn parse(text: &str) -> Result<PolicySet, PolicyError> {
        let root = DeTable::parse(text).map_err(|error| {
            at(text, error.span().map_or(0, |span| span.start), error.message())
        })?;
        let reader = Reader { text };
        reader.only(root.get_ref(), &["promote", "parity", "tables", "table", "rule"])?;
        reader.set(root.get_ref())
    }
}

/// The field that names a target.
const fn key(target: &Target) -> &'static str {
    match target {
        Target::DeviceOp(_) => "device_op",
        Target::Op(_) => "op",
        Target::Module(_) => "module",
        Target::Node(_) => "node",
    }
}

fn at(text: &str, at: usize, message: impl ToString) -> PolicyError {
    let (line, column) = place(text, at);
    PolicyError::Set { line, column, message: message.to_string() }
}

struct Reader<'a> {
    text: &'a str,
}

impl Reader<'_> {
    fn set(&self, root: &Fields<'_>) -> Result<PolicySet, PolicyError> {
        let mut set = match root.get("tables") {
            None => PolicySet::standard(),
            Some(names) => self.built_in(names)?,
        };
        if let Some(way) = root.get("promote") {
            set.set_promotion(match self.string(way)? {
                "scan" => Promotion::Scan,
                "join" => Promotion::Join,
                other => {
                    let message = format!("expected \"scan\" or \"join\", found \"{other}\"");
                    return Err(self.error(way, message));
                }
            });
        }
        if let Some(parity) = root.get("parity") {
            let found = parity.get_ref();
            let wrong = || {
                self.error(parity, format!("expected true or false, found {}", found.type_str()))
            };
            set.set_parity(found.as_bool().ok_or_else(wrong)?);
        }
        let mut seen = Vec::new();
        for (entry, fields) in self.entries(root, "table")? {
            let table = self.table(entry, fields)?;
            if seen.contains(&table.device()) {
                return Err(self.error(entry, format!("{} has two tables", table.device())));
            }
            seen.push(table.device());
            set.set_table(Arc::new(table));
        }
        for (entry, fields) in self.entries(root, "rule")? {
            let (target, device, policy) = self.rule(entry, fields)?;
            set.add_rule(target, device, policy);
        }
        Ok(set)
    }

    fn built_in(&self, names: &Spanned<DeValue<'_>>) -> Result<PolicySet, PolicyError> {
        let mut set = PolicySet::empty();
        for name in self.array(names)?.iter() {
            let text = self.string(name)?;
            let table = PolicyTable::named(text).ok_or_else(|| {
                let known: Vec<_> = PolicyTable::built_in().map(|table| table.title()).collect();
                let message =
                    format!("no built-in table `{text}`: expected one of {}", known.join(", "));
                self.error(name, message)
            })?;
            if let Some(other) = set.set_table(Arc::clone(&table)) {
                let message = format!("{} has two tables: {} too", table.device(), other.name());
                return Err(self.error(name, message));
            }
        }
        Ok(set)
    }

    /// The table that an entry writes out, read as the file it would be alone.
    fn table(
        &self,
        entry: &Spanned<DeValue<'_>>,
        fields: &Fields<'_>,
    ) -> Result<PolicyTable, PolicyError> {
        PolicyTable::within(self.text, fields).map_err(|error| match error {
            // What is missing stands nowhere: the line of the entry is the best there is.
            PolicyError::Table { message, line: 1, .. } => self.error(entry, message),
            PolicyError::Table { message, line, column } => {
                PolicyError::Set { line, column, message }
            }
            other => other,
        })
    }

    fn rule(
        &self,
        entry: &Spanned<DeValue<'_>>,
        fields: &Fields<'_>,
    ) -> Result<(Target, Option<DeviceType>, Policy), PolicyError> {
        self.only(fields, &["op", "device_op", "module", "node", "device", "policy", "advice"])?;
        let field = |name: &str| {
            let value = fields.get(name).map(|value| self.string(value).map(|text| (value, text)));
            value.transpose()
        };
        let mut target = None;
        for name in ["op", "device_op", "module", "node"] {
            let Some((value, text)) = field(name)? else { continue };
            let text = text.to_owned();
            let named = match name {
                "op" => Target::Op(text),
                "device_op" => Target::DeviceOp(text),
                "module" => Target::Module(text),
                _ => Target::Node(text),
            };
            if target.replace(named).is_some() {
                return Err(self.error(value, "a rule has one of op, device_op, module and node"));
            }
        }
        let target = target
            .ok_or_else(|| self.error(entry, "a rule needs op, device_op, module or node"))?;
        let device = field("device")?
            .map(|(value, text)| {
                text.parse().map_err(|error: PolicyError| self.error(value, error))
            })
            .transpose()?;
        let (value, name) =
            field("policy")?.ok_or_else(|| self.error(entry, "`policy` is missing"))?;
        let advice = field("advice")?.map(|(_, text)| text);
        let policy = Policy::named(name, advice.unwrap_or_default())
            .map_err(|error| self.error(value, error))?;
        match (&policy, advice) {
            (Policy::Banned { .. }, None) => {
                Err(self.error(value, "a banned op needs an `advice`"))
            }
            _ => Ok((target, device, policy)),
        }
    }

    fn entries<'v, 't>(
        &self,
        root: &'v Fields<'t>,
        name: &str,
    ) -> Result<Vec<(&'v Spanned<DeValue<'t>>, &'v Fields<'t>)>, PolicyError> {
        let Some(list) = root.get(name) else { return Ok(Vec::new()) };
        let fields = |entry: &'v Spanned<DeValue<'t>>| {
            let fields = entry.get_ref().as_table();
            fields
                .map(|fields| (entry, fields))
                .ok_or_else(|| self.error(entry, "expected a table"))
        };
        self.array(list)?.iter().map(fields).collect()
    }

    fn only(&self, fields: &Fields<'_>, known: &[&str]) -> Result<(), PolicyError> {
        match fields.keys().find(|key| !known.contains(&key.get_ref().as_ref())) {
            Some(key) => {
                let message = format!("expected {}, found `{}`", known.join(", "), key.get_ref());
                Err(at(self.text, key.span().start, message))
            }
            None => Ok(()),
        }
    }

    fn array<'v, 't>(
        &self,
        value: &'v Spanned<DeValue<'t>>,
    ) -> Result<&'v DeArray<'t>, PolicyError> {
        let list = value.get_ref();
        let wrong = || self.error(value, format!("expected a list, found {}", list.type_str()));
        list.as_array().ok_or_else(wrong)
    }

    fn string<'v>(&self, value: &'v Spanned<DeValue<'_>>) -> Result<&'v str, PolicyError> {
        let found = value.get_ref();
        let wrong = || self.error(value, format!("expected a string, found {}", found.type_str()));
        found.as_str().ok_or_else(wrong)
    }

    fn error(&self, value: &Spanned<DeValue<'_>>, message: impl ToString) -> PolicyError {
        at(self.text, value.span().start, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> PolicySet {
        let mut set = PolicySet::torchax();
        set.set_promotion(Promotion::Join);
        set.set_parity(true);
        set.add_rule(Target::DeviceOp("mm".into()), Some(DeviceType::Cpu), Policy::Fp32);
        set.add_rule(
            Target::Op("my \"op\"".into()),
            None,
            Policy::Banned { advice: "a\nb".into() },
        );
        set.add_rule(Target::Module("encoder.*".into()), None, Policy::Promote);
        set.add_rule(Target::Node("**/softmax#0".into()), None, Policy::Fallthrough);
        set
    }

    #[test]
    fn sets_round_trip_with_their_hash() {
        let mut own = rules();
        let table = "name = \"n\"\ndevice = \"hpu\"\nversion = \"1\"\ncasts_f64 = true\n[ops]\n\"mm.*\" = \"fp32\"\n";
        own.set_table(Arc::new(PolicyTable::parse(table).unwrap()));
        for set in [PolicySet::standard(), PolicySet::empty(), rules(), own] {
            let text = set.to_toml();
            let again = PolicySet::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!((&again, again.hash()), (&set, set.hash()), "{text}");
            assert_eq!(set.diff(&again), []);
        }
        assert_eq!(PolicySet::parse("").unwrap(), PolicySet::standard());
    }

    #[test]
    fn errors_name_the_line() {
        for (text, line, says) in [
            ("\nx = 1", 2, "`x`"),
            ("promote = \"max\"", 1, "scan"),
            ("parity = \"yes\"", 1, "true or false"),
            ("tables = [\"torch-cpu@1.0\"]", 1, "torch-cpu@2.15.0"),
            ("tables = [\"torchax\", \"privateuse1\"]", 1, "two tables"),
            ("[[rule]]\nop = \"mm\"", 1, "`policy`"),
            ("[[rule]]\nop = \"mm\"\npolicy = \"fp23\"", 3, "`fp23`"),
            ("[[rule]]\nop = \"mm\"\npolicy = \"banned\"", 3, "advice"),
            ("[[rule]]\nop = \"mm\"\nnode = \"a\"\npolicy = \"fp32\"", 3, "one of"),
            ("[[rule]]\npolicy = \"fp32\"", 1, "op, device_op, module or node"),
            ("[[rule]]\nop = \"mm\"\ndevice = \"tpu\"\npolicy = \"fp32\"", 3, "`tpu`"),
            ("rule = 3", 1, "a list"),
            ("[[table]]\nname = \"x\"", 1, "`device` is missing"),
            (
                "[[table]]\nname = \"x\"\ndevice = \"cpu\"\nversion = \"1\"\n[table.ops]\nmm = 3",
                6,
                "string",
            ),
        ] {
            let error = PolicySet::parse(text).unwrap_err();
            let PolicyError::Set { line: found, ref message, .. } = error else {
                panic!("{error}")
            };
            assert!(found == line && message.contains(says), "{error} (expected line {line})");
        }
    }
}
