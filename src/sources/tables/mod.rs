//! Tables of the block store, which statements can change.
//!
//! ```text
//! INSERT, DELETE, UPDATE, TRUNCATE      optimizer/logical/change_tables.rs: a query for what the table is to hold
//!   -> TableChange                      a table provider that plans that query to be stored: StoreExec
//!   -> StoredTable                      a list of blocks with a version; a change puts another list in its place
//! ```
//!
//! Each query reads the blocks that a table had when the query was planned, the same ones wherever it names the table
//! (`pin_tables`). A change becomes visible with its last row. Rows may be added by several statements at once; what
//! was computed from all rows of a table is refused when the table has changed meanwhile.

mod change;
mod numbered;
mod pin;
mod stored;
mod unique;

pub(crate) use change::{Change, TableChange};
pub(crate) use numbered::NumberedTable;
pub(crate) use pin::pin_tables;
pub(crate) use stored::StoredTable;
