//! `blockyard.settings`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigEntry;
use datafusion::config::ExtensionOptions;
use datafusion::execution::TaskContext;

use super::column::{Column, text};
use super::table::{Sources, Table};
use crate::config::BlockyardOptions;

/// The options as they are.
pub(super) struct Settings;

impl Table for Settings {
    const NAME: &'static str = "settings";
    const ABOUT: &'static str = "The options of the session as they are now.";
    type Row = ConfigEntry;

    async fn rows(_sources: Sources, context: Arc<TaskContext>) -> Result<Vec<ConfigEntry>> {
        Ok(BlockyardOptions::from_task(&context).entries())
    }

    fn columns() -> Vec<Column<ConfigEntry>> {
        vec![
            text("name", "The option.", |entry| entry.key.clone()),
            text("value", "Its value.", |entry| entry.value.clone().unwrap_or_default()),
            text("description", "What it means.", |entry| entry.description.to_owned()),
        ]
    }
}
