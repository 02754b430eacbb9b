//! `blockyard.secrets`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::TaskContext;

use super::column::{Column, text};
use super::table::{Sources, Table};
use crate::cloud::SecretStatus;

/// Secrets, without their values.
pub(super) struct Secrets;

impl Table for Secrets {
    const NAME: &'static str = "secrets";
    const ABOUT: &'static str = "Every secret of the session, without its values.";
    type Row = SecretStatus;

    async fn rows(sources: Sources, _context: Arc<TaskContext>) -> Result<Vec<SecretStatus>> {
        Ok(sources.stores.secrets())
    }

    fn columns() -> Vec<Column<SecretStatus>> {
        vec![
            text("name", "Its name.", |row| row.name.clone()),
            text("type", "`s3`, `gcs`, `azure` or `http`.", |row| row.kind.to_owned()),
            text("scope", "How the addresses begin that it is for.", |row| row.scope.clone()),
            text("keys", "The options that it sets.", |row| row.keys.clone()),
        ]
    }
}
