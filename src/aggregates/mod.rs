//! Ray's aggregates that DataFusion does not have, for SQL and Rust, and a sum that is never another one than it says.
//!
//! Most of Ray's are a builtin aggregate of some expression, and planned as that: they spill, merge and filter as it
//! does.

mod approx_top_k;
mod exact_sum;
mod rewritten;
mod value_counter;

use std::sync::{Arc, LazyLock};

use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{AggregateUDF, Expr, lit};

pub(crate) use self::exact_sum::{FrameSum, exact_sum, is_sum};

use approx_top_k::ApproxTopK;
use rewritten::Rewritten;
use value_counter::ValueCounter;

static ALL: LazyLock<Vec<Arc<AggregateUDF>>> = LazyLock::new(|| {
    let rewritten = Rewritten::all().into_iter().map(AggregateUDF::new_from_impl);
    let ours = [AggregateUDF::new_from_impl(ValueCounter::new()), AggregateUDF::new_from_impl(ApproxTopK::new())];
    rewritten.chain(ours).map(Arc::new).collect()
});

/// All of them, to be registered in a session.
pub(crate) fn all() -> Vec<Arc<AggregateUDF>> {
    ALL.clone()
}

/// The greatest absolute value of a number. Null without values.
pub fn abs_max(of: Expr) -> Expr {
    call("abs_max", of)
}

/// Percentage of rows for which `of` is null, 0 to 100. Null without rows.
pub fn missing_value_percentage(of: Expr) -> Expr {
    call("missing_value_percentage", of)
}

/// Percentage of the values of a number that are 0, 0 to 100; nulls do not count. Null without values.
pub fn zero_percentage(of: Expr) -> Expr {
    call("zero_percentage", of)
}

/// All values, also nulls, as a list.
pub fn as_list(of: Expr) -> Expr {
    call("as_list", of)
}

/// The different values, also null, as a list in no particular order.
pub fn unique_values(of: Expr) -> Expr {
    call("unique_values", of)
}

/// The different values but null, with the number of rows of each: a list of `{value, count}`, the most frequent first,
/// and of equally frequent ones the least. It holds all different values of a group in memory.
pub fn value_counter(of: Expr) -> Expr {
    call("value_counter", of)
}

/// The `k` most frequent values but null, with about the number of rows of each: a list of `{value, count}`, the most
/// frequent first. A sketch of bounded size: counts are exact while there are at most 24,576 different values; beyond
/// that they may be too large, by no more than what the frequency of the values that it had to forget adds up to.
pub fn approx_top_k(of: Expr, k: usize) -> Expr {
    call_with("approx_top_k", vec![of, lit(k as i64)])
}

/// The type of [`approx_top_k()`] for values of a type.
pub(crate) fn approx_top_k_type(of: &datafusion::arrow::datatypes::DataType) -> datafusion::arrow::datatypes::DataType {
    value_counter::list(of)
}

fn call(name: &str, of: Expr) -> Expr {
    call_with(name, vec![of])
}

fn call_with(name: &str, arguments: Vec<Expr>) -> Expr {
    let function = ALL.iter().find(|function| function.name() == name);
    #[expect(clippy::expect_used, reason = "the names are those of this file")]
    let function = Arc::clone(function.expect("an aggregate of ours"));
    Expr::AggregateFunction(AggregateFunction::new_udf(function, arguments, false, None, vec![], None))
}
