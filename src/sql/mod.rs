//! Front door 2: SQL. Text becomes the same nodes as the Dataset API: statements are normalised, relations that are
//! ours are planned here, and everything else is DataFusion's.

mod arguments;
mod column_types;
mod create_function;
mod create_table;
mod dates;
mod depth;
mod distinct_from;
mod messages;
mod names;
mod normalise;
mod relations;
mod sample;
mod set_operations;
mod signatures;
mod statements;
mod unparse;
mod using;

pub(crate) use dates::DateArithmetic;
pub(crate) use depth::check_plan_depth;
pub(crate) use relations::BlockyardRelationPlanner;
pub use statements::SqlStatement;
pub(crate) use statements::run_statements;
pub(crate) use unparse::plan_to_sql;
