//! [`ScriptTable`]: the op lists of the TorchScript autocast pass, and what its two cast ops do.
//!
//! That pass inserts a cast op in front of an operand when the graph is rewritten and decides at
//! run time whether it casts. It knows cpu and one kind of graphics card, treats an operand whose
//! dtype it does not know as f32, and skips calls that mutate.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use toml::de::{DeTable, DeValue};

use super::toml_text::{place, quoted};
use super::{DeviceType, PolicyError, Region};
use crate::DType;

static BUILT_IN: LazyLock<ScriptTable> = LazyLock::new(|| {
    ScriptTable::parse(include_str!("torchscript.toml")).expect("the built-in table is valid")
});

/// How the pass treats an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScriptClass {
    /// Operands go to the low dtype.
    LowerPrecision,
    /// Operands go to f32.
    FullPrecision,
    /// Operands go to f32 unless the call has a dtype argument.
    FullPrecisionWithoutDtype,
    /// The same, for operands on a graphics card alone.
    FullPrecisionWithoutDtypeOnGpu,
    /// Operands go to f32 if one of them is f32 or unknown.
    Widest,
    /// Refused while a region is on.
    Banned,
}

impl ScriptClass {
    /// The classes by the names that the file has for them.
    pub const NAMED: [(&'static str, ScriptClass); 6] = [
        ("lower_precision", ScriptClass::LowerPrecision),
        ("full_precision", ScriptClass::FullPrecision),
        ("full_precision_without_dtype", ScriptClass::FullPrecisionWithoutDtype),
        ("full_precision_without_dtype_on_gpu", ScriptClass::FullPrecisionWithoutDtypeOnGpu),
        ("widest", ScriptClass::Widest),
        ("banned", ScriptClass::Banned),
    ];
}

impl fmt::Display for ScriptClass {
    /// The name that the file has for it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = ScriptClass::NAMED.iter().find(|(_, class)| class == self);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}

/// An operand as the pass sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScriptOperand {
    /// A tensor of that dtype.
    Known(DType),
    /// A tensor whose dtype is not in the graph.
    Unknown,
    /// A list of tensors, or no tensor: never cast.
    NoTensor,
}

/// A cast op of the pass. The flags that PyTorch bakes into it are the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScriptCast {
    /// `_autocast_to_reduced_precision`: f32 to the low dtype of its device, if that is on.
    Reduced,
    /// `_autocast_to_full_precision`: f16 and bf16 to f32, if its device is on.
    Full,
    /// The same on graphics cards alone: the cpu flag is off.
    FullOnGpu,
}

impl ScriptCast {
    /// The dtype of the result for an operand; everything that the rule does not name is unchanged.
    pub fn apply(self, dtype: DType, device: DeviceType, region: &Region) -> DType {
        let here = match device {
            DeviceType::Cpu => region.is_enabled(device) && self != ScriptCast::FullOnGpu,
            DeviceType::Cuda => region.is_enabled(device),
            _ => false,
        };
        match (self, dtype) {
            (ScriptCast::Reduced, DType::F32) if here => region.low(device),
            (ScriptCast::Full | ScriptCast::FullOnGpu, DType::F16 | DType::BF16) if here => {
                DType::F32
            }
            _ => dtype,
        }
    }
}

/// The op lists of the pass, one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptTable {
    name: String,
    version: String,
    ops: BTreeMap<String, ScriptClass>,
}

impl ScriptTable {
    /// The lists of PyTorch.
    pub fn built_in() -> &'static ScriptTable {
        &BUILT_IN
    }

    /// Reads a file: `name`, `version`, and under `classes` a list of ops for each class.
    ///
    /// # Errors
    /// With the line, if the text is no TOML, a field is missing, a class has no such name, or an
    /// op stands in two classes.
    pub fn parse(text: &str) -> Result<ScriptTable, PolicyError> {
        let error = |at: usize, message: String| {
            let (line, column) = place(text, at);
            PolicyError::Table { line, column, message }
        };
        let root = DeTable::parse(text).map_err(|wrong| {
            error(wrong.span().map_or(0, |span| span.start), wrong.message().to_string())
        })?;
        let root = root.get_ref();
        let string = |name: &str| {
            let value = root.get(name).and_then(|value| value.get_ref().as_str());
            value.map(str::to_string).ok_or_else(|| error(0, format!("`{name}` must be a string")))
        };
        let classes = root.get("classes").and_then(|value| value.get_ref().as_table());
        let classes = classes.ok_or_else(|| error(0, "`classes` must be a table".to_string()))?;
        let mut ops = BTreeMap::new();
        for (key, list) in classes {
            let named = ScriptClass::NAMED.into_iter().find(|(name, _)| name == key.get_ref());
            let (_, class) = named.ok_or_else(|| {
                error(key.span().start, format!("no class has the name `{}`", key.get_ref()))
            })?;
            let DeValue::Array(list) = list.get_ref() else {
                return Err(error(key.span().start, "expected a list of ops".to_string()));
            };
            for op in list.iter() {
                let at = op.span().start;
                let name = op.get_ref().as_str();
                let name =
                    name.ok_or_else(|| error(at, "expected the name of an op".to_string()))?;
                if ops.insert(name.to_string(), class).is_some() {
                    return Err(error(at, format!("`{name}` is listed twice")));
                }
            }
        }
        Ok(ScriptTable { name: string("name")?, version: string("version")?, ops })
    }

    /// The name, `torchscript`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version of PyTorch that the lists describe.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The class of an op, whatever the overload; `None` if it is left alone.
    pub fn class(&self, op: &str) -> Option<ScriptClass> {
        self.ops.get(op).copied()
    }

    /// Every listed op with its class, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, ScriptClass)> {
        self.ops.iter().map(|(op, class)| (op.as_str(), *class))
    }

    /// The cast op that is inserted in front of every tensor operand of a call, in a region that is
    /// on for some device.
    ///
    /// `has_dtype` says that the call has a dtype argument that is not known to be `None`,
    /// `mutates` that it changes an operand.
    ///
    /// # Errors
    /// If the op is banned.
    pub fn cast(
        &self,
        op: &str,
        operands: &[ScriptOperand],
        has_dtype: bool,
        mutates: bool,
    ) -> Result<Option<ScriptCast>, ScriptBan> {
        let Some(class) = self.class(op).filter(|_| !mutates) else { return Ok(None) };
        let is_wide = |operand: &ScriptOperand| {
            matches!(operand, ScriptOperand::Unknown | ScriptOperand::Known(DType::F32))
        };
        Ok(match class {
            ScriptClass::LowerPrecision => Some(ScriptCast::Reduced),
            ScriptClass::FullPrecision => Some(ScriptCast::Full),
            ScriptClass::FullPrecisionWithoutDtype => (!has_dtype).then_some(ScriptCast::Full),
            ScriptClass::FullPrecisionWithoutDtypeOnGpu => {
                (!has_dtype).then_some(ScriptCast::FullOnGpu)
            }
            ScriptClass::Widest => operands.iter().any(is_wide).then_some(ScriptCast::Full),
            ScriptClass::Banned => return Err(ScriptBan { op: op.to_string() }),
        })
    }
}

impl fmt::Display for ScriptTable {
    /// Prints the lists as a file that [`ScriptTable::parse`] reads back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, version) = (quoted(&self.name), quoted(&self.version));
        writeln!(f, "name = {name}\nversion = {version}\n\n[classes]")?;
        for (name, class) in ScriptClass::NAMED {
            writeln!(f, "{name} = [")?;
            for (op, _) in self.iter().filter(|(_, listed)| *listed == class) {
                writeln!(f, "  {},", quoted(op))?;
            }
            writeln!(f, "]")?;
        }
        Ok(())
    }
}

/// The pass refuses an op.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op} is unsafe under autocast: use the form that takes logits")]
pub struct ScriptBan {
    /// The op.
    pub op: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use ScriptOperand::{Known, NoTensor, Unknown};

    #[test]
    fn the_lists_are_complete() {
        let table = ScriptTable::built_in();
        let count = |class| table.iter().filter(|(_, found)| *found == class).count();
        let sizes = ScriptClass::NAMED.map(|(_, class)| count(class));
        assert_eq!(sizes, [27, 42, 5, 1, 15, 1]);
        assert_eq!((table.name(), table.version()), ("torchscript", "2.15.0"));
        assert_eq!(ScriptTable::parse(&table.to_string()).as_ref(), Ok(table));
    }

    #[test]
    fn classes_choose_casts() {
        let table = ScriptTable::built_in();
        let cast = |op: &str, operands: &[ScriptOperand]| table.cast(op, operands, false, false);
        assert_eq!(cast("mm", &[Unknown]), Ok(Some(ScriptCast::Reduced)));
        assert_eq!(cast("mul", &[Known(DType::BF16), Unknown]), Ok(Some(ScriptCast::Full)));
        assert_eq!(cast("mul", &[Known(DType::BF16), NoTensor]), Ok(None));
        assert_eq!(cast("relu", &[Unknown]), Ok(None));
        assert_eq!(table.cast("sum", &[Unknown], true, false), Ok(None));
        assert_eq!(table.cast("addmm", &[Unknown], false, true), Ok(None));
        assert!(cast("binary_cross_entropy", &[]).is_err());
    }

    #[test]
    fn bad_files_are_refused_with_their_line() {
        let head = "name = \"t\"\nversion = \"1\"\n[classes]\n";
        for (text, line, says) in [
            (format!("{head}low = []"), 4, "`low`"),
            (format!("{head}widest = [3]"), 4, "name of an op"),
            (format!("{head}widest = 3"), 4, "a list"),
            (format!("{head}banned = [\"a\"]\nwidest = [\"a\"]"), 5, "twice"),
            ("name = \"t\"".to_string(), 1, "`classes`"),
        ] {
            let PolicyError::Table { line: found, message, .. } =
                ScriptTable::parse(&text).unwrap_err()
            else {
                panic!("{text}")
            };
            assert!(found == line && message.contains(says), "{message} (expected line {line})");
        }
    }
}
