//! The header of a file: the names, types and places of its tensors, read from and written as JSON.

use super::Metadata;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::collections::HashSet;
use std::fmt;
use tracecast_ir::{DType, Shape, TensorType};

/// The bytes before the header: its length.
pub(super) const LENGTH: usize = 8;
/// Headers are not longer than this, as in the format's own reader.
pub(super) const LONGEST: u64 = 100_000_000;
/// The name that no tensor has.
pub(super) const METADATA: &str = "__metadata__";
/// Headers are filled with spaces up to a multiple of this, so that elements are aligned in a file
/// that is mapped.
const ALIGN: usize = 8;
/// Tensors have at most this many axes, as in PyTorch.
const MOST_AXES: usize = 64;

/// The dtypes of the format and how many bits an element has; without a dtype of ours where there
/// is none.
static KINDS: [(&str, usize, Option<DType>); 20] = [
    ("BOOL", 8, Some(DType::Bool)),
    ("U8", 8, Some(DType::U8)),
    ("I8", 8, Some(DType::I8)),
    ("I16", 16, Some(DType::I16)),
    ("I32", 32, Some(DType::I32)),
    ("I64", 64, Some(DType::I64)),
    ("F16", 16, Some(DType::F16)),
    ("BF16", 16, Some(DType::BF16)),
    ("F32", 32, Some(DType::F32)),
    ("F64", 64, Some(DType::F64)),
    ("F8_E4M3", 8, Some(DType::F8E4M3)),
    ("F8_E5M2", 8, Some(DType::F8E5M2)),
    ("C64", 64, Some(DType::C64)),
    ("U16", 16, None),
    ("U32", 32, None),
    ("U64", 64, None),
    ("F8_E8M0", 8, None),
    ("F6_E2M3", 6, None),
    ("F6_E3M2", 6, None),
    ("F4", 4, None),
];

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Item {
    pub(super) name: String,
    /// The dtype as the file names it.
    pub(super) kind: String,
    /// The same as ours, if there is one.
    pub(super) dtype: Option<DType>,
    pub(super) shape: Shape,
    /// Where its bytes begin behind the header, and how many they are.
    pub(super) at: u64,
    pub(super) bytes: u64,
}

/// A header that makes sense.
#[derive(Debug)]
pub(super) struct Header {
    /// In the order of their bytes.
    pub(super) items: Vec<Item>,
    pub(super) metadata: Metadata,
}

impl Header {
    /// Reads a header before `bytes` bytes of elements.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(text: &[u8], bytes: u64) -> Result<Self, String> {
        let text = str::from_utf8(text).map_err(|_| "the header is not text".to_owned())?;
        if !text.starts_with('{') {
            return Err("the header does not begin with `{`".to_owned());
        }
        let Raw { metadata, infos } =
            serde_json::from_str(text).map_err(|e| format!("the header: {e}"))?;
        let items = infos.into_iter().map(|(name, info)| {
            info.checked(name.clone()).map_err(|why| format!("tensor `{name}` {why}"))
        });
        let mut items = items.collect::<Result<Vec<Item>, String>>()?;
        items.sort_by_key(|item| (item.at, item.bytes));
        let mut end = 0;
        for item in &items {
            if item.at != end {
                let what = if item.at < end { "shares bytes with another" } else { "leaves a gap" };
                return Err(format!(
                    "tensor `{}` {what}: it begins at {}, not at {end}",
                    item.name, item.at
                ));
            }
            end += item.bytes;
        }
        if end != bytes {
            return Err(format!("the tensors take {end} bytes, found {bytes}"));
        }
        Ok(Header { items, metadata })
    }

    /// The bytes of a file before those of the elements, for tensors in this order.
    ///
    /// # Errors
    /// If two have one name, the name is not one for a tensor, the format has no such dtype, or
    /// there are too many.
    pub(super) fn encode(
        tensors: &[(&str, TensorType)],
        metadata: &Metadata,
    ) -> Result<Vec<u8>, String> {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let (mut names, mut fields, mut at) = (HashSet::new(), Vec::new(), 0);
        if !metadata.is_empty() {
            let pairs =
                metadata.iter().map(|(key, value)| format!("{}:{}", quoted(key), quoted(value)));
            fields.push(format!(
                "{}:{{{}}}",
                quoted(METADATA),
                pairs.collect::<Vec<_>>().join(",")
            ));
        }
        for (name, ty) in tensors {
            if *name == METADATA || !names.insert(*name) {
                return Err(match *name == METADATA {
                    true => format!("no tensor can be called `{name}`"),
                    false => format!("two tensors are called `{name}`"),
                });
            }
            let kind = KINDS.iter().find(|(_, _, dtype)| *dtype == Some(ty.dtype));
            let (kind, ..) =
                kind.ok_or_else(|| format!("tensor `{name}`: the format has no {}", ty.dtype))?;
            let sizes: Vec<String> = ty.shape.iter().map(ToString::to_string).collect();
            let end = at + ty.bytes().get() as u64;
            fields.push(format!(
                "{}:{{\"dtype\":\"{kind}\",\"shape\":[{}],\"data_offsets\":[{at},{end}]}}",
                quoted(name),
                sizes.join(",")
            ));
            at = end;
        }
        let mut text = format!("{{{}}}", fields.join(","));
        text.push_str(&" ".repeat(text.len().next_multiple_of(ALIGN) - text.len()));
        if text.len() as u64 > LONGEST {
            return Err(format!("a header of {} bytes is too long: at most {LONGEST}", text.len()));
        }
        Ok([&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat())
    }
}

/// A header as JSON has it; names are unique.
#[derive(Default)]
struct Raw {
    metadata: Metadata,
    infos: Vec<(String, Info)>,
}

/// What it says of a tensor.
struct Info {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl Info {
    fn checked(self, name: String) -> Result<Item, String> {
        let Info { dtype: kind, shape, data_offsets: (at, end) } = self;
        let known = KINDS.iter().find(|(known, ..)| *known == kind);
        let (_, bits, dtype) =
            *known.ok_or_else(|| format!("has dtype `{kind}`, which the format does not have"))?;
        if shape.len() > MOST_AXES {
            return Err(format!("has {} axes: expected at most {MOST_AXES}", shape.len()));
        }
        let sizes = shape.iter().map(|&n| usize::try_from(n).map_err(|e| e.to_string()));
        let shape = sizes.collect::<Result<Shape, String>>()?;
        // Whatever the elements are, their number is one that can be computed with.
        TensorType::new(DType::F64, shape.clone())
            .check_size()
            .map_err(|_| format!("has shape {shape}, which is too large"))?;
        let total = shape.numel().get() as u64 * bits as u64;
        let bytes = end
            .checked_sub(at)
            .ok_or_else(|| format!("ends at {end}, before it begins at {at}"))?;
        if !total.is_multiple_of(8) || bytes != total / 8 {
            return Err(format!(
                "is {kind}{shape} and has {bytes} bytes: expected {}",
                total.div_ceil(8)
            ));
        }
        Ok(Item { name, kind, dtype, shape, at, bytes })
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Raw;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
                let (mut raw, mut names) = (Raw::default(), HashSet::new());
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("two entries are called `{name}`")));
                    }
                    if name == METADATA {
                        raw.metadata = map.next_value::<Texts>()?.0;
                    } else {
                        raw.infos.push((name, map.next_value()?));
                    }
                }
                Ok(raw)
            }
        }
        from.deserialize_map(Fields)
    }
}

impl<'de> Deserialize<'de> for Info {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Info;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with dtype, shape and data_offsets")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Info, A::Error> {
                let (mut dtype, mut shape, mut offsets) = (None, None, None);
                while let Some(key) = map.next_key::<String>()? {
                    let is_second = match key.as_str() {
                        "dtype" => dtype.replace(map.next_value()?).is_some(),
                        "shape" => shape.replace(map.next_value()?).is_some(),
                        "data_offsets" => offsets.replace(map.next_value()?).is_some(),
                        _ => map.next_value::<IgnoredAny>().map(|_| false)?,
                    };
                    if is_second {
                        return Err(A::Error::custom(format!("two entries are called `{key}`")));
                    }
                }
                Ok(Info {
                    dtype: dtype.ok_or_else(|| A::Error::missing_field("dtype"))?,
                    shape: shape.ok_or_else(|| A::Error::missing_field("shape"))?,
                    data_offsets: offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?,
                })
            }
        }
        from.deserialize_map(Fields)
    }
}

/// An object whose values are texts; names are unique.
pub(super) struct Texts(pub(super) Metadata);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
                let mut texts = Metadata::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    if texts.insert(key.clone(), value).is_some() {
                        return Err(A::Error::custom(format!("two entries are called `{key}`")));
                    }
                }
                Ok(Texts(texts))
            }
        }
        from.deserialize_map(Fields)
    }
}
