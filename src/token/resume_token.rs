//! [`ResumeToken`]: where an iterator is, as text.

use std::fmt;
use std::str::FromStr;

use datafusion::common::{DataFusionError, Result, plan_datafusion_err, plan_err};
use serde::{Deserialize, Serialize};

use super::Place;

/// The version of tokens that is written and read.
pub(crate) const VERSION: u64 = 1;

/// A position behind a batch, as a line of JSON of at most 512 bytes, and 32 more for each source beyond the first. It
/// says of which plan and files it is, and an iterator over others does not take it. `docs/reference/resume_token.md`
/// has its fields.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ResumeToken {
    pub(crate) version: u64,
    pub(crate) plan: Print,
    pub(crate) files: Print,
    pub(crate) num_files: u64,
    pub(crate) bytes: u64,
    pub(crate) epoch: u64,
    pub(crate) rows: u64,
    pub(crate) cpus: usize,
    /// How many tasks the reads had, all together.
    pub(crate) tasks: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shuffle_seed: Option<u64>,
    pub(crate) place: Place,
}

/// A fingerprint, in JSON as text: not all readers have numbers of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Print(pub(crate) u64);

impl Serialize for Print {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:016x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Print {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        u64::from_str_radix(&text, 16).map(Self).map_err(serde::de::Error::custom)
    }
}

impl ResumeToken {
    /// The epoch in which it was taken.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Rows of the epoch that were handed out before.
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for ResumeToken {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u64,
        }
        let parse = |e: serde_json::Error| plan_datafusion_err!("this is not a resume token: {e}");
        let Versioned { version } = serde_json::from_str(text).map_err(parse)?;
        if version != VERSION {
            return plan_err!("the resume token has version {version}, and this program reads version {VERSION}");
        }
        serde_json::from_str(text).map_err(parse)
    }
}
