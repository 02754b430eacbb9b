//! What plans need of memory, and what a query gets.

mod needs;
mod query;

pub(crate) use needs::{builders_at_once, collects, known_bytes};
pub(crate) use query::{PLENTY, PlanMemory, block_bytes, query_context, row_bytes, schema_bytes, stage_memory};
