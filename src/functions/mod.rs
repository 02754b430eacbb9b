//! Functions over batches: what `map_batches`, `map`, `flat_map` and `filter` call. A function is a closure, or
//! registered by name so that SQL can call it too.

mod actor;
mod arguments;
mod batch_function;
mod bounded;
mod builtin;
mod compute;
mod exceeding;
mod failures;
mod intervals;
mod language;
mod map_function;
mod map_options;
mod octet_length;
mod point_of_time;
mod regexp_match;
mod registry;
mod round;
mod row_part;
mod rows;
mod to_timestamp;
mod turns;
mod window_size;

use std::sync::Arc;

use datafusion::logical_expr::ScalarUDF;

pub(crate) use actor::drop_states;
pub use actor::{Actor, actor};
pub use batch_function::{BatchFunction, FunctionRef, from_async, from_closure};
pub(crate) use bounded::bounded;
pub use compute::{ActorPool, BatchSize, Compute, ComputeStrategy, Concurrency, Workers};
pub(crate) use exceeding::{exceeding, exceeds, fits_digits};
pub use failures::{Failures, MaxErrors, OnError};
pub(crate) use intervals::{interval_length, interval_over, interval_times};
pub use language::FunctionLanguage;
pub use map_function::MapFunction;
pub use map_options::MapOptions;
pub(crate) use point_of_time::{NANOS_OF_DAY, begin_of_day, point_of_time};
pub use registry::FunctionRegistry;
pub use row_part::{RowPart, TurnsOf};
pub(crate) use row_part::{check_indices, check_proportions, proportional_cuts};
pub use rows::{Row, filter_rows, flat_map_rows, map_rows};
pub(crate) use rows::{batch_of_rows, rows_of_batch};
pub(crate) use turns::Turns;
pub use window_size::WindowSize;

/// What is made of a function of DataFusion.
type Mended = fn(Arc<ScalarUDF>) -> ScalarUDF;

/// The functions of DataFusion that are others here, by their names.
const MENDED: [(&[&str], Mended); 4] = [
    (&[octet_length::NAME], octet_length::of_both),
    (&[regexp_match::NAME], regexp_match::with_all_groups),
    (&[round::NAME], round::with_digits_as_they_are),
    (&to_timestamp::NAMES, to_timestamp::with_its_zone),
];

/// The functions of DataFusion, with ours in the place of some.
pub(crate) fn mended(functions: Vec<Arc<ScalarUDF>>) -> Vec<Arc<ScalarUDF>> {
    let mended = |function: Arc<ScalarUDF>| match MENDED.iter().find(|(names, _)| names.contains(&function.name())) {
        Some((_, mended)) => Arc::new(mended(function)),
        None => function,
    };
    functions.into_iter().map(mended).collect()
}
