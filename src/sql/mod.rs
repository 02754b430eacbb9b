//! Front door 2: SQL. Text becomes the same nodes as the Dataset API: statements are normalised, relations that are
//! ours are planned here, and everything else is DataFusion's.

mod ambiguous;
mod arguments;
mod concatenation;
mod copies;
mod create_function;
mod create_table;
mod cursors;
mod dates;
mod depth;
mod distinct_from;
mod escapes;
mod functions;
mod messages;
mod names;
mod normalise;
mod numbers;
mod once;
mod other_functions;
mod other_words;
mod recursive;
mod relations;
mod repeated_calls;
mod repeated_names;
mod row_in;
mod sample;
mod secrets;
mod set_operations;
mod similar_to;
mod statement;
mod statements;
mod syntax;
mod tensor_shapes;
mod this_window;
mod unparse;
mod using;
mod views;
mod windows;

pub(crate) use dates::DateArithmetic;
pub(crate) use functions::table_functions;
pub(crate) use relations::BlockyardRelationPlanner;
pub use statement::SqlStatement;
