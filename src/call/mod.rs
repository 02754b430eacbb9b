//! Calls of table functions in neutral terms: a name, tables, and values by name. SQL is one way to write a call, and
//! whatever ships plans to other processes can be another.
//!
//! A node or a source carries its call beside its code: an options struct, made by [`arguments!`](crate::arguments),
//! and a [`TableFunction`] that plans it and finds it again in a plan. The Dataset API
//! takes the same struct, so SQL and Rust cannot part.
//!
//! ```text
//! random_shuffle(t, seed => 42)                          SQL
//!      | sql/arguments.rs                    ^ sql/unparse.rs
//!      v                                     |
//! Call { "random_shuffle", [t], seed: 42 }               here
//!      | Arguments::from_values              ^ to_values
//!      v                                     |
//! ShuffleOptions { seed: 42, .. }                        logical/random_shuffle.rs
//! ```

mod argument;
mod arguments;
mod functions;
mod table_function;
mod value;

pub use argument::Argument;
pub(crate) use argument::{parsed, shown};
pub use arguments::{Arguments, Field, Parameter, Values};
#[doc(hidden)]
pub use arguments::{OrDefault, OrTrue, concat_parameters};
/// What [`arguments!`](crate::arguments) names.
#[doc(hidden)]
pub use datafusion::common::Result;
pub use functions::TableFunctions;
pub(crate) use table_function::{AnyTableFunction, extension_of};
pub use table_function::{Call, Planning, TableFunction, Tables};
pub use value::Value;
