//! What plans need of memory, and what a query gets.

mod needs;
mod query;

pub(crate) use needs::{collects, known_bytes};
pub(crate) use query::{PLENTY, PlanMemory, block_bytes, query_context, query_memory, row_bytes, schema_bytes};
