//! The columns of a file by its first objects, in the order in which keys appear.
//!
//! As Arrow finds them, but for what it does otherwise: keys stay in their order, lists may have nulls beside objects
//! and lists, and whole numbers of 64 bits without a sign are whole numbers.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Fields, Schema};
use datafusion::arrow::error::ArrowError;
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use futures::{StreamExt, TryStreamExt};
use indexmap::IndexMap;
use memchr::memrchr;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::lines::{CHUNK_BYTES, lines_of_array};
use crate::sources::formats::text::decompressed;

/// What values of a key are.
#[derive(Debug, Clone, PartialEq)]
enum Kind {
    /// Nulls, or none.
    Nothing,
    Boolean,
    Integer {
        is_negative: bool,
        /// Whether some are above 2^63 - 1.
        is_large: bool,
    },
    Number,
    Text,
    List(Box<Kind>),
    Object(IndexMap<String, Kind>),
}

impl Kind {
    /// What values of two kinds are together.
    fn and(self, other: Self) -> Result<Self, String> {
        use Kind::{Integer, List, Nothing, Number, Object, Text};
        Ok(match (self, other) {
            (Nothing, kind) | (kind, Nothing) => kind,
            (List(one), List(other)) => List(Box::new(one.and(*other)?)),
            (Object(one), Object(other)) => {
                let mut all = one;
                for (key, kind) in other {
                    let known = all.get_mut(&key).map_or(Nothing, |known| std::mem::replace(known, Nothing));
                    let kind = known.and(kind).map_err(|e| within(&key, e))?;
                    all.insert(key, kind);
                }
                Object(all)
            }
            (Object(_), other) | (other, Object(_)) => {
                return Err(format!("an object and {} are values", other.name()));
            }
            (List(item), other) | (other, List(item)) => List(Box::new(item.and(other)?)),
            (one, other) if one == other => one,
            (Integer { is_negative, is_large }, Integer { is_negative: negative, is_large: large }) => {
                Integer { is_negative: is_negative || negative, is_large: is_large || large }
            }
            (Integer { .. } | Number, Integer { .. } | Number) => Number,
            _ => Text,
        })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Boolean => "a boolean",
            Self::Integer { .. } | Self::Number => "a number",
            Self::Text => "a text",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }

    fn data_type(self) -> DataType {
        match self {
            Self::Nothing => DataType::Null,
            Self::Boolean => DataType::Boolean,
            Self::Integer { is_large: false, .. } => DataType::Int64,
            Self::Integer { is_negative: false, .. } => DataType::UInt64,
            Self::Integer { .. } | Self::Number => DataType::Float64,
            Self::Text => DataType::Utf8,
            Self::List(item) => DataType::List(Arc::new(Field::new_list_field(item.data_type(), true))),
            Self::Object(keys) => DataType::Struct(fields(keys)),
        }
    }
}

fn fields(keys: IndexMap<String, Kind>) -> Fields {
    keys.into_iter().map(|(key, kind)| Field::new(key, kind.data_type(), true)).collect()
}

/// A message about values of a key.
fn within(key: &str, message: String) -> String {
    match message.strip_suffix(" are values") {
        Some(values) => format!("{values} are values of '{key}'"),
        None => message,
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KindOfValue)
    }
}

struct KindOfValue;

impl<'de> Visitor<'de> for KindOfValue {
    type Value = Kind;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Nothing)
    }

    fn visit_bool<E>(self, _value: bool) -> Result<Kind, E> {
        Ok(Kind::Boolean)
    }

    fn visit_i64<E>(self, value: i64) -> Result<Kind, E> {
        Ok(Kind::Integer { is_negative: value < 0, is_large: false })
    }

    fn visit_u64<E>(self, value: u64) -> Result<Kind, E> {
        Ok(Kind::Integer { is_negative: false, is_large: i64::try_from(value).is_err() })
    }

    fn visit_f64<E>(self, _value: f64) -> Result<Kind, E> {
        Ok(Kind::Number)
    }

    fn visit_str<E>(self, _value: &str) -> Result<Kind, E> {
        Ok(Kind::Text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Kind, A::Error> {
        let mut all = Kind::Nothing;
        while let Some(item) = items.next_element::<Kind>()? {
            all = all.and(item).map_err(A::Error::custom)?;
        }
        Ok(Kind::List(Box::new(all)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Kind, A::Error> {
        let mut keys = IndexMap::new();
        while let Some((key, kind)) = entries.next_entry::<String, Kind>()? {
            let kind = keys.get(&key).cloned().unwrap_or(Kind::Nothing).and(kind);
            let kind = kind.map_err(|e| A::Error::custom(within(&key, e)))?;
            keys.insert(key, kind);
        }
        Ok(Kind::Object(keys))
    }
}

/// The objects that were seen.
struct Objects {
    all: Kind,
    seen: usize,
}

impl Objects {
    fn new() -> Self {
        Self { all: Kind::Object(IndexMap::new()), seen: 0 }
    }

    fn add(&mut self, object: Kind) -> Result<(), ArrowError> {
        if !matches!(object, Kind::Object(_)) {
            return Err(ArrowError::JsonError(format!("each row is an object, and one is {}", object.name())));
        }
        self.all = std::mem::replace(&mut self.all, Kind::Nothing).and(object).map_err(ArrowError::JsonError)?;
        self.seen += 1;
        Ok(())
    }

    fn columns(self) -> Schema {
        match self.all {
            Kind::Object(keys) => Schema::new(fields(keys)),
            _ => Schema::empty(),
        }
    }
}

/// The columns of a file that is an array, by the first `rows` of its objects.
pub(super) async fn columns_of_array(
    store: &dyn ObjectStore,
    file: &ObjectMeta,
    compression: FileCompressionType,
    rows: usize,
) -> Result<Schema> {
    let text = store.get(&file.location).await?.into_stream().map_err(DataFusionError::from).boxed();
    let mut text = lines_of_array(decompressed(compression, text)?);
    let (mut lines, mut ended, mut enough) = (Vec::new(), false, CHUNK_BYTES);
    loop {
        while !ended && lines.len() < enough {
            match text.try_next().await? {
                Some(chunk) => lines.extend_from_slice(&chunk),
                None => ended = true,
            }
        }
        let mut objects = Objects::new();
        let found = serde_json::Deserializer::from_slice(&lines).into_iter::<Kind>().take(rows);
        for object in found.take_while(|object| ended || !object.as_ref().is_err_and(serde_json::Error::is_eof)) {
            objects.add(object.map_err(|e| ArrowError::JsonError(e.to_string()))?)?;
        }
        if ended || objects.seen == rows {
            return Ok(objects.columns());
        }
        enough = 2 * lines.len();
    }
}

/// The columns of a file of lines, by the first `rows` that are objects. Others are an error unless `passes_over`.
pub(super) async fn columns_of_lines(
    store: &dyn ObjectStore,
    file: &ObjectMeta,
    compression: FileCompressionType,
    rows: usize,
    passes_over: bool,
) -> Result<Schema> {
    let text = store.get(&file.location).await?.into_stream().map_err(DataFusionError::from).boxed();
    let mut text = decompressed(compression, text)?;
    let (mut objects, mut rest, mut ended) = (Objects::new(), Vec::new(), false);
    while !ended && objects.seen < rows {
        // What is left of the chunks before has no end of a line.
        let known = rest.len();
        match text.try_next().await? {
            Some(chunk) => rest.extend_from_slice(&chunk),
            None => ended = true,
        }
        let whole = if ended { rest.len() } else { memrchr(b'\n', &rest[known..]).map_or(0, |end| known + end + 1) };
        let lines: Vec<u8> = rest.drain(..whole).collect();
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
            if objects.seen == rows {
                break;
            }
            let found = serde_json::from_slice::<Kind>(line);
            match found.map_err(|e| ArrowError::JsonError(format!("Not valid JSON: {e}"))) {
                Ok(object) if passes_over && !matches!(object, Kind::Object(_)) => {}
                Ok(object) => objects.add(object)?,
                Err(_) if passes_over => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    Ok(objects.columns())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(lines: &[&str]) -> Result<String, ArrowError> {
        let mut objects = Objects::new();
        for line in lines {
            objects.add(serde_json::from_str(line).map_err(|e| ArrowError::JsonError(e.to_string()))?)?;
        }
        let shown = |field: &Arc<Field>| format!("{} {}", field.name(), field.data_type());
        Ok(objects.columns().fields().iter().map(shown).collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn keys_stay_in_their_order_and_kinds_are_put_together() {
        let found = columns(&[r#"{"z": 1, "a": null, "m": true}"#, r#"{"b": "x", "a": 2.5, "z": 3.5, "m": "no"}"#]);
        assert_eq!(found.unwrap(), "z Float64, a Float64, m Utf8, b Utf8");
        let found = columns(&[r#"{"u": 18446744073709551615, "s": -1, "l": 9223372036854775808}"#, r#"{"l": -1}"#]);
        assert_eq!(found.unwrap(), "u UInt64, s Int64, l Float64");
        let found =
            columns(&[r#"{"v": [{"b": 1}, null, {"a": "x"}], "w": [null, [1]], "n": []}"#, r#"{"w": [[0.5], 2]}"#]);
        let expected = "v List(Struct(\"b\": Int64, \"a\": Utf8)), w List(List(Float64)), n List(Null)";
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn objects_are_nothing_else() {
        let found = columns(&[r#"{"v": {"k": 1}}"#, r#"{"v": "x"}"#]).unwrap_err().to_string();
        assert!(found.contains("an object and a text are values of 'v'"), "{found}");
        let found = columns(&["[1]"]).unwrap_err().to_string();
        assert!(found.contains("each row is an object, and one is a list"), "{found}");
    }
}
