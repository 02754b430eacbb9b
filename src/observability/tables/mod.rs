//! The system tables, `blockyard.queries` and the like. Each scan shows how things stand when it runs, while other
//! queries run too. A table is a file: what its rows are, and each column once, with how its
//! value is found; and a line in the list here.

mod blocks;
mod column;
mod executors;
mod iterators;
mod memory;
mod operators;
mod queries;
mod schema;
mod secrets;
mod settings;
mod spills;
mod stores;
mod table;
mod tasks;
mod writes;

pub(crate) use schema::{SYSTEM_SCHEMA, system_schema};
pub use schema::{SystemColumn, SystemTable};

/// The system tables of every session, in the order of the reference.
pub fn system_tables() -> [SystemTable; 12] {
    [
        SystemTable::of::<queries::Queries>(),
        SystemTable::of::<operators::Operators>(),
        SystemTable::of::<tasks::Tasks>(),
        SystemTable::of::<iterators::Iterators>(),
        SystemTable::of::<memory::Memory>(),
        SystemTable::of::<blocks::Blocks>(),
        SystemTable::of::<spills::Spills>(),
        SystemTable::of::<writes::Writes>(),
        SystemTable::of::<stores::Stores>(),
        SystemTable::of::<executors::Executors>(),
        SystemTable::of::<secrets::Secrets>(),
        SystemTable::of::<settings::Settings>(),
    ]
}
