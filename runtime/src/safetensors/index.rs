//! The index of a model in several files: which file has which tensor.

use super::Metadata;
use super::header::Texts;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::fmt;
use std::path::{Component, Path};

/// The files of tensors, by the names of these.
#[derive(Debug)]
pub(super) struct Index(pub(super) Metadata);

impl Index {
    /// Reads an index. The files lie beside it: a path that leads elsewhere is refused.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let index: Index = serde_json::from_slice(text).map_err(|e| format!("the index: {e}"))?;
        let is_beside = |file: &str| {
            let mut parts = Path::new(file).components();
            matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
        };
        match index.0.iter().find(|(_, file)| !is_beside(file)) {
            Some((name, file)) => {
                Err(format!("the index has `{name}` in `{file}`, which is no file beside it"))
            }
            None => Ok(index),
        }
    }

    /// An index as text.
    pub(super) fn encode(files: &Metadata, bytes: u64) -> String {
        let map: serde_json::Map<String, serde_json::Value> =
            files.iter().map(|(name, file)| (name.clone(), file.as_str().into())).collect();
        let index = serde_json::json!({ "metadata": { "total_size": bytes }, "weight_map": map });
        format!("{index:#}\n")
    }
}

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Index;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a weight_map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Index, A::Error> {
                let mut files = None;
                while let Some(key) = map.next_key::<String>()? {
                    if key != "weight_map" {
                        map.next_value::<IgnoredAny>()?;
                    } else if files.replace(map.next_value::<Texts>()?.0).is_some() {
                        return Err(A::Error::custom("two entries are called `weight_map`"));
                    }
                }
                files.map(Index).ok_or_else(|| A::Error::missing_field("weight_map"))
            }
        }
        from.deserialize_map(Fields)
    }
}
