//! Ray's `summary`: what is known of each column. Rust: `summary()`. SQL: `summary(t)`.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::functions::core::expr_fn::{get_field, named_struct};
use datafusion::functions::encoding::expr_fn::encode;
use datafusion::functions_aggregate::expr_fn::{approx_median, avg, count, max, min, stddev};
use datafusion::functions_nested::expr_fn::make_array;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, cast, col, lit};
use datafusion::prelude::Column;

use crate::aggregates::{approx_top_k, approx_top_k_type, missing_value_percentage, zero_percentage};

use crate::call::{Planning, TableFunction, Tables};

/// `summary(t)`. Its plan has no node of ours, and goes back to SQL as what it is.
#[derive(Debug)]
pub(crate) struct Summary;

impl TableFunction for Summary {
    type Arguments = ();

    fn name(&self) -> &'static str {
        "summary"
    }

    fn about(&self) -> &'static str {
        "One row for each column: its type, how many values it has, which are the least, the greatest, the most frequent."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, (): (), planning: Planning<'_>) -> Result<LogicalPlan> {
        summary(planning.table()?)
    }
}

/// The statistics, in the order of the columns.
const STATISTICS: [&str; 9] =
    ["count", "missing_percentage", "zero_percentage", "mean", "std", "min", "median", "max", "top_values"];
/// How many of the most frequent values there are.
const TOP: usize = 10;

/// One row for each column of `input`: its name and type, and what is known of its values. Reads the input once.
pub(crate) fn summary(input: LogicalPlan) -> Result<LogicalPlan> {
    let (mut aggregates, mut rows) = (Vec::new(), Vec::new());
    for (place, (qualifier, field)) in input.schema().iter().enumerate() {
        let column = Expr::Column(Column::from((qualifier, field)));
        let mut row = vec![lit("column"), lit(field.name().as_str()), lit("type"), lit(field.data_type().to_string())];
        for statistic in STATISTICS {
            row.push(lit(statistic));
            row.push(match aggregate(statistic, column.clone(), field.data_type()) {
                Some(aggregate) => {
                    let name = format!("{statistic} {place}");
                    aggregates.push(aggregate.alias(&name));
                    let value = Expr::Column(Column::from_name(name));
                    if is_text(statistic) { text(value, field.data_type()) } else { value }
                }
                None if is_text(statistic) => lit(ScalarValue::Utf8(None)),
                None if statistic == "top_values" => lit(ScalarValue::try_from(approx_top_k_type(&DataType::Utf8))?),
                None => lit(ScalarValue::Float64(None)),
            });
        }
        rows.push(named_struct(row));
    }
    if rows.is_empty() {
        return plan_err!("summary needs a column");
    }
    let names = ["column", "type"].into_iter().chain(STATISTICS);
    let columns: Vec<_> = names.map(|name| get_field(col("summary"), name).alias(name)).collect();
    LogicalPlanBuilder::from(input)
        .aggregate(Vec::<Expr>::new(), aggregates)?
        .project([make_array(rows).alias("summary")])?
        .unnest_column("summary")?
        .project(columns)?
        .build()
}

/// The least and the greatest value are texts, whatever the type; the others but the last are numbers.
fn is_text(statistic: &str) -> bool {
    matches!(statistic, "min" | "max")
}

/// Values of a type as texts: bytes, which need not be UTF-8, in hexadecimal digits.
fn text(value: Expr, of: &DataType) -> Expr {
    match of {
        DataType::FixedSizeBinary(_) => encode(cast(value, DataType::Binary), lit("hex")),
        of if of.is_binary() => encode(value, lit("hex")),
        _ => cast(value, DataType::Utf8),
    }
}

/// A statistic of a column, if its type has it.
fn aggregate(statistic: &str, column: Expr, of: &DataType) -> Option<Expr> {
    let is_number = of.is_numeric();
    let number = || cast(column.clone(), DataType::Float64);
    match statistic {
        "count" => Some(count(column)),
        "missing_percentage" => Some(missing_value_percentage(column)),
        "min" | "max" if of.is_nested() || of.is_null() => None,
        "top_values" if of.is_nested() || of.is_null() => None,
        "top_values" => Some(approx_top_k(text(column, of), TOP)),
        "min" => Some(min(column)),
        "max" => Some(max(column)),
        _ if !is_number => None,
        "zero_percentage" => Some(zero_percentage(column)),
        "mean" => Some(avg(number())),
        "std" => Some(stddev(number())),
        "median" => Some(approx_median(number())),
        _ => None,
    }
}
