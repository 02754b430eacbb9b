//! Without the feature `cloud` there are no kinds of stores, but their addresses are known.

use datafusion::common::{Result, plan_err};

use super::opening::{KindStore, Opening};

/// Schemes that the feature `cloud` reads.
const SCHEMES: [&str; 8] = ["s3", "s3a", "gs", "az", "abfs", "abfss", "http", "https"];

/// A kind of store, of which there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreKind {}

impl StoreKind {
    /// The kind of this name in `CREATE SECRET`.
    pub(super) fn of_name(_name: &str) -> Result<Self> {
        plan_err!("secrets are for object stores; build with the feature `cloud`")
    }

    /// The kind of store that a scheme stands for.
    pub(super) fn of_scheme(scheme: &str) -> Result<Option<Self>> {
        match SCHEMES.contains(&scheme) {
            true => plan_err!("'{scheme}://' needs the feature `cloud`, which is not built in"),
            false => Ok(None),
        }
    }

    /// Whether a variable of an environment is for one of the kinds.
    pub(super) fn reads(_variable: &str) -> bool {
        false
    }

    /// The schemes that are known.
    pub(super) fn all_schemes() -> Vec<&'static str> {
        Vec::new()
    }

    pub(super) fn name(self) -> &'static str {
        match self {}
    }

    pub(super) fn schemes(self) -> &'static [&'static str] {
        match self {}
    }

    pub(super) fn check_key(self, _key: &str) -> Result<()> {
        match self {}
    }

    pub(super) fn options_of(self, _environment: &[(String, String)]) -> Vec<(String, String)> {
        match self {}
    }

    pub(super) fn open(self, _opening: Opening<'_>) -> Result<KindStore> {
        match self {}
    }
}
