//! Paths of objects as they are said to other processes.

use object_store::path::Path;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(path.as_ref())
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Path, D::Error> {
    Path::parse(String::deserialize(deserializer)?).map_err(D::Error::custom)
}
