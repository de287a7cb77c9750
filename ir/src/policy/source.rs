//! [`PolicyFile`]: what a policy file holds, told by its keys.

use std::sync::Arc;

use toml::de::DeTable;

use super::{PolicyError, PolicySet, PolicyTable, ScriptTable};

/// A policy file that was read.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyFile {
    /// A whole set, as [`PolicySet::parse`] reads it.
    Set(Box<PolicySet>),
    /// The table of one device type, as [`PolicyTable::parse`] reads it.
    Table(Arc<PolicyTable>),
    /// The lists of a TorchScript pass, as [`ScriptTable::parse`] reads them.
    Script(Box<ScriptTable>),
}

impl PolicyFile {
    /// Reads a file: one with `classes` at the top has the lists of a TorchScript pass, one with
    /// `device`, `ops`, `name` or `version` a table, every other one a set.
    ///
    /// # Errors
    /// With the line, if the text is no TOML, or not what its keys say that it is.
    ///
    /// ```
    /// use tracecast_ir::policy::PolicyFile;
    ///
    /// let table = "name = \"mine\"\nversion = \"1\"\n\"device\" = \"cpu\"\n[ops]\nmm = \"fp32\"\n";
    /// assert!(matches!(PolicyFile::parse(table), Ok(PolicyFile::Table(_))));
    /// let rule = "[[rule]]\nop = \"mm\"\npolicy = \"fp32\"\ndevice = \"cpu\"\n";
    /// assert!(matches!(PolicyFile::parse(rule), Ok(PolicyFile::Set(_))));
    /// ```
    pub fn parse(text: &str) -> Result<PolicyFile, PolicyError> {
        // What is no TOML is told by the reader of sets.
        let root = DeTable::parse(text).ok();
        let has = |key: &str| root.as_ref().is_some_and(|root| root.get_ref().contains_key(key));
        if has("classes") {
            return Ok(PolicyFile::Script(Box::new(ScriptTable::parse(text)?)));
        }
        if ["device", "ops", "name", "version"].into_iter().any(has) {
            return Ok(PolicyFile::Table(Arc::new(PolicyTable::parse(text)?)));
        }
        Ok(PolicyFile::Set(Box::new(PolicySet::parse(text)?)))
    }

    /// The set that it stands for: itself, or PyTorch's with the table in the place of its device
    /// type's. `None` for the lists of a TorchScript pass, which decide about no traced program.
    pub fn into_set(self) -> Option<PolicySet> {
        match self {
            PolicyFile::Set(set) => Some(*set),
            PolicyFile::Table(table) => {
                let mut set = PolicySet::standard();
                set.set_table(table);
                Some(set)
            }
            PolicyFile::Script(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::review;

    #[test]
    fn keys_tell_what_a_file_is() {
        let table = PolicyTable::named("torchax").unwrap();
        let file = PolicyFile::parse(&table.to_string()).unwrap();
        assert_eq!(file, PolicyFile::Table(table));
        assert_eq!(file.into_set(), Some(PolicySet::torchax()));
        let script = PolicyFile::parse(&ScriptTable::built_in().to_string()).unwrap();
        assert!(matches!(script, PolicyFile::Script(_)) && script.into_set().is_none());
        for set in [
            "",
            "# device = \"cpu\"\n",
            "promote = \"join\"",
            "rule = [\n{op = \"mm\",\ndevice = \"cpu\", policy = \"fp32\"}]",
        ] {
            assert!(matches!(PolicyFile::parse(set), Ok(PolicyFile::Set(_))), "{set}");
        }
        for (text, says) in [
            ("[ops]\nmm = \"fp32\"", "`name` is missing"),
            ("name = \"a\"\n[[rule]]\nop = \"mm\"", "found `rule`"),
            ("rules = []", "found `rules`"),
            ("= 3", "line 1"),
        ] {
            let error = PolicyFile::parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn the_files_of_the_page_read_without_a_warning() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/autocast.md");
        let page = std::fs::read_to_string(page).unwrap().replace("\r\n", "\n");
        let blocks = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
        let ops = crate::ops::known();
        let mut kinds = [0; 2];
        for block in blocks {
            let file = PolicyFile::parse(block).unwrap_or_else(|e| panic!("{e}\n{block}"));
            kinds[usize::from(matches!(file, PolicyFile::Set(_)))] += 1;
            assert_eq!(review(block, &ops, &|_, _| String::new()), Ok(Vec::new()), "{block}");
            let known =
                |key: &str| block.contains(&format!("\n{key} = ")) || block.starts_with(key);
            if let PolicyFile::Set(set) = file {
                assert!(
                    ["promote", "parity", "tables", "op", "device_op", "module", "node"]
                        .into_iter()
                        .all(known)
                );
                assert_eq!(PolicySet::parse(&set.to_toml()), Ok(*set));
            } else {
                assert!(["name", "device", "version", "casts_f64"].into_iter().all(known));
            }
        }
        assert_eq!(kinds, [1, 1], "a table and a set");
    }
}
