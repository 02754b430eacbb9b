//! `blockyard.blocks`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::TaskContext;

use super::column::{Column, id, number, text};
use super::table::{Sources, Table};
use crate::store::{BlockInfo, NextUse};

/// Stored blocks.
pub(super) struct Blocks;

impl Table for Blocks {
    const NAME: &'static str = "blocks";
    const ABOUT: &'static str = "Every stored block.";
    type Row = BlockInfo;

    async fn rows(sources: Sources, _context: Arc<TaskContext>) -> Result<Vec<BlockInfo>> {
        Ok(sources.store.blocks())
    }

    fn columns() -> Vec<Column<BlockInfo>> {
        let file = |block: &BlockInfo| block.file.as_ref().map_or(String::new(), |f| f.display().to_string());
        let next_use = |block: &BlockInfo| match block.next_use {
            NextUse::Soon => "soon".to_owned(),
            NextUse::AfterInput => "after input".to_owned(),
            NextUse::Kept => "kept".to_owned(),
        };
        let states = "`dirty` (in memory only), `clean` (in memory and on disk) or `spilled` (on disk only).";
        vec![
            number("block", "Number of the block.", |block| Some(block.id)),
            number("query", "Number of the query that it belongs to.", |block| id(block.query)),
            text("operator", "The operator that keeps it.", |block| block.operator.clone()),
            text("state", states, |block| block.state.to_owned()),
            text("next_use", "When it is read: `soon`, `after input`, or `kept` until somebody asks.", next_use),
            text("file", "The spill file that it is in.", file),
            number("pins", "How many read it now.", |block| Some(block.pins as u64)),
            number("num_rows", "Rows.", |block| Some(block.metadata.num_rows as u64)),
            number("size_bytes", "Bytes in memory.", |block| Some(block.metadata.size_bytes as u64)),
            number("file_bytes", "Bytes on disk.", |block| Some(block.file_bytes as u64)),
        ]
    }
}
