//! Ray's `streaming_train_test_split`: rows for training or for testing, each decided by itself while it streams by.
//! SQL: `streaming_train_test_split(t, 'train', 0.2, seed => 7)`, or with `by => 'user'`.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, Result, plan_err};
use datafusion::functions::expr_fn::{coalesce, md5, substring};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, cast, lit, not};

use super::{MapNode, MapOperator, extension, node_of};
use crate::arguments;
use crate::call::{Planning, TableFunction, Tables};
use crate::error::unknown_name;
use crate::functions::{Compute, Failures};

arguments! {
    /// Which rows are for training, and which for testing.
    #[derive(Debug)]
    pub(crate) struct StreamingTrainTestArguments {
        /// `train` or `test`.
        pub(crate) part: String,
        /// About which share of the rows is for testing, above 0 and below 1.
        pub(crate) test_size: f64,
        /// Decides, together with the place of a row.
        pub(crate) seed: Option<u64>,
        /// Instead: a column whose value decides, so that rows with equal values are in the same part.
        pub(crate) by: Option<String>,
    }
}

/// `streaming_train_test_split(t, ..)`.
#[derive(Debug)]
pub(crate) struct StreamingTrainTest;

impl TableFunction for StreamingTrainTest {
    type Arguments = StreamingTrainTestArguments;

    fn name(&self) -> &'static str {
        "streaming_train_test_split"
    }

    fn about(&self) -> &'static str {
        "The rows for training, or those for testing, each decided by itself while it streams by: by its place and a \
         seed, or by the value of a column."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn plan(&self, arguments: StreamingTrainTestArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        let StreamingTrainTestArguments { part, test_size, seed, by } = arguments;
        let (is_test, table) = (is_test(&part)?, planning.table()?);
        match (seed, by) {
            (Some(seed), None) => streamed_by_place(table, test_size, seed, is_test),
            (None, Some(column)) => streamed_by_value(table, &column, test_size, is_test),
            _ => plan_err!("streaming_train_test_split takes one of seed and by"),
        }
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, StreamingTrainTestArguments)>> {
        let Some(map) = node_of::<MapNode>(plan) else { return Ok(None) };
        let MapOperator::Sample { fraction, seed, others } = *map.operator() else { return Ok(None) };
        if check_test_size(fraction).is_err() {
            return Ok(None);
        }
        let part = if others { "train" } else { "test" }.to_owned();
        let arguments = StreamingTrainTestArguments { part, test_size: fraction, seed: Some(seed), by: None };
        Ok(Some((vec![map.input().clone()], arguments)))
    }
}

/// Whether `test` is said, and not `train`.
pub(super) fn is_test(part: &str) -> Result<bool> {
    match part {
        "train" => Ok(false),
        "test" => Ok(true),
        other => plan_err!("the part is 'train' or 'test', got '{other}'"),
    }
}

/// Fails where there would be no rows in one of the parts, whatever they are.
pub(crate) fn check_test_size(fraction: f64) -> Result<()> {
    match fraction > 0.0 && fraction < 1.0 {
        true => Ok(()),
        false => plan_err!("the test size must be above 0 and below 1, got {fraction}"),
    }
}

/// Rows by their places and a seed.
pub(crate) fn streamed_by_place(input: LogicalPlan, test_size: f64, seed: u64, is_test: bool) -> Result<LogicalPlan> {
    check_test_size(test_size)?;
    check_repeats(&input)?;
    let sample = MapOperator::Sample { fraction: test_size, seed, others: !is_test };
    Ok(extension(MapNode::try_new(input, sample, Compute::default(), Failures::default())?))
}

/// Rows by the hash of a column.
pub(crate) fn streamed_by_value(
    input: LogicalPlan,
    column: &str,
    test_size: f64,
    is_test: bool,
) -> Result<LogicalPlan> {
    check_test_size(test_size)?;
    check_repeats(&input)?;
    let Some(found) = input.schema().iter().find(|(_, field)| field.name() == column) else {
        let names: Vec<&str> = input.schema().fields().iter().map(|field| field.name().as_str()).collect();
        return Err(unknown_name("column", column, "streaming_train_test_split", &names));
    };
    let data_type = found.1.data_type().clone();
    let below = hash_below(Expr::Column(Column::from(found)), &data_type, test_size);
    LogicalPlanBuilder::from(input).filter(if is_test { below } else { not(below) })?.build()
}

/// Fails where rows are others in each of the two parts, which run one by one.
fn check_repeats(input: &LogicalPlan) -> Result<()> {
    let mut draws = false;
    input.apply_with_subqueries(|node| {
        draws |= node.expressions().iter().any(Expr::is_volatile);
        Ok(TreeNodeRecursion::Continue)
    })?;
    match draws {
        true => plan_err!(
            "the parts of streaming_train_test_split run one by one, and values are drawn anew; materialize it first"
        ),
        false => Ok(()),
    }
}

/// Whether the hash of a value is in the lowest part of all hashes. It is that of the value's text, so that it is the
/// same in every version and for every type that prints the same.
fn hash_below(value: Expr, data_type: &DataType, part: f64) -> Expr {
    // 0.0 and -0.0 are equal, and print otherwise.
    let value = if data_type.is_floating() { value + lit(0.0) } else { value };
    let text = cast(value, DataType::Utf8);
    let hash = md5(coalesce(vec![text, lit("")]));
    // 13 hexadecimal digits are 52 bits: as texts they compare as the numbers do.
    let below = format!("{:013x}", (part * 4_503_599_627_370_496.0) as u64);
    substring(hash, lit(1), lit(13)).lt(lit(below))
}
