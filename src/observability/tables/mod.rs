//! The system tables, `blockyard.queries` and the like. Each scan shows how things stand when it runs, while other
//! queries run too. A table is a file: what its rows are, and each column once, with how its value is found.

mod blocks;
mod column;
mod memory;
mod operators;
mod queries;
mod schema;
mod settings;
mod spills;
mod table;
mod tasks;

pub(crate) use schema::{SYSTEM_SCHEMA, system_schema};
pub use schema::{SystemColumn, SystemTable, system_tables};
