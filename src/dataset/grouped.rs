//! Aggregates over groups.

use datafusion::common::Result;
use datafusion::functions_aggregate::expr_fn;
use datafusion::logical_expr::{Expr, lit};

use super::Dataset;
use crate::aggregates;
use crate::functions::{MapFunction, MapOptions};
use crate::logical::map_groups;

/// A dataset whose rows are grouped by keys. Every method gives one row per group: the keys, then the aggregates.
#[derive(Debug, Clone)]
pub struct GroupedDataset {
    dataset: Dataset,
    keys: Vec<Expr>,
}

impl GroupedDataset {
    pub(super) fn new(dataset: Dataset, keys: Vec<Expr>) -> Self {
        Self { dataset, keys }
    }

    /// Any aggregate expressions of DataFusion.
    ///
    /// # Errors
    ///
    /// Where an expression is no aggregate, or of columns that are not there.
    pub fn aggregate(&self, aggregates: Vec<Expr>) -> Result<Dataset> {
        self.dataset.via_dataframe(|frame| frame.aggregate(self.keys.clone(), aggregates))
    }

    /// Number of rows, in a column `count()`.
    ///
    /// # Errors
    ///
    /// None is known: a plan is built, and building plans can fail.
    pub fn count(&self) -> Result<Dataset> {
        self.aggregate(vec![expr_fn::count(lit(1)).alias("count()")])
    }

    /// Sums of columns, named `sum(x)`.
    ///
    /// # Errors
    ///
    /// Where a column is not there, or is of a type that has no such aggregate.
    pub fn sum(&self, columns: &[&str]) -> Result<Dataset> {
        self.each("sum", columns, expr_fn::sum)
    }

    /// Least values of columns, named `min(x)`.
    ///
    /// # Errors
    ///
    /// Where a column is not there, or is of a type that has no such aggregate.
    pub fn min(&self, columns: &[&str]) -> Result<Dataset> {
        self.each("min", columns, expr_fn::min)
    }

    /// Greatest values of columns, named `max(x)`.
    ///
    /// # Errors
    ///
    /// Where a column is not there, or is of a type that has no such aggregate.
    pub fn max(&self, columns: &[&str]) -> Result<Dataset> {
        self.each("max", columns, expr_fn::max)
    }

    /// Means of columns, named `mean(x)`.
    ///
    /// # Errors
    ///
    /// Where a column is not there, or is of a type that has no such aggregate.
    pub fn mean(&self, columns: &[&str]) -> Result<Dataset> {
        self.each("mean", columns, expr_fn::avg)
    }

    /// Standard deviations of columns (of a sample: n - 1), named `std(x)`.
    ///
    /// # Errors
    ///
    /// Where a column is not there, or is of a type that has no such aggregate.
    pub fn std(&self, columns: &[&str]) -> Result<Dataset> {
        self.each("std", columns, expr_fn::stddev)
    }

    /// Greatest absolute values of columns, named `abs_max(x)`.
    ///
    /// # Errors
    ///
    /// Where a column is not there, or is of a type that has no such aggregate.
    pub fn abs_max(&self, columns: &[&str]) -> Result<Dataset> {
        self.each("abs_max", columns, aggregates::abs_max)
    }

    /// Percentages of rows without a value, named `missing_value_percentage(x)`.
    ///
    /// # Errors
    ///
    /// Where a column is not there, or is of a type that has no such aggregate.
    pub fn missing_value_percentage(&self, columns: &[&str]) -> Result<Dataset> {
        self.each("missing_value_percentage", columns, aggregates::missing_value_percentage)
    }

    /// Percentages of values that are 0, named `zero_percentage(x)`.
    ///
    /// # Errors
    ///
    /// Where a column is not there, or is of a type that has no such aggregate.
    pub fn zero_percentage(&self, columns: &[&str]) -> Result<Dataset> {
        self.each("zero_percentage", columns, aggregates::zero_percentage)
    }

    /// Lists of all values, named `as_list(x)`.
    ///
    /// # Errors
    ///
    /// Where a column is not there, or is of a type that has no such aggregate.
    pub fn as_list(&self, columns: &[&str]) -> Result<Dataset> {
        self.each("as_list", columns, aggregates::as_list)
    }

    /// Lists of the different values, named `unique_values(x)`.
    ///
    /// # Errors
    ///
    /// Where a column is not there, or is of a type that has no such aggregate.
    pub fn unique_values(&self, columns: &[&str]) -> Result<Dataset> {
        self.each("unique_values", columns, aggregates::unique_values)
    }

    /// Lists of the different values with their numbers of rows, named `value_counter(x)`.
    ///
    /// # Errors
    ///
    /// Where a column is not there, or is of a type that has no such aggregate.
    pub fn value_counter(&self, columns: &[&str]) -> Result<Dataset> {
        self.each("value_counter", columns, aggregates::value_counter)
    }

    /// Lists of the `k` most frequent values with about their numbers of rows, named `approx_top_k(x)`.
    ///
    /// # Errors
    ///
    /// Where a column is not there, or is of a type that has no such aggregate.
    pub fn approx_top_k(&self, columns: &[&str], k: usize) -> Result<Dataset> {
        self.each("approx_top_k", columns, |column| aggregates::approx_top_k(column, k))
    }

    /// Estimates of the value below which a part `quantile` of the values is, 0 to 1, named `approx_quantile(x)`.
    ///
    /// # Errors
    ///
    /// As [`GroupedDataset::sum`]. That `quantile` is not between 0 and 1 is found out when it runs at the latest.
    pub fn approx_quantile(&self, columns: &[&str], quantile: f64) -> Result<Dataset> {
        self.each("approx_quantile", columns, |column| {
            expr_fn::approx_percentile_cont(column.sort(true, true), lit(quantile), None)
        })
    }

    /// Calls a function with all rows of each group, and gives the rows that it returns. Without keys all rows are one
    /// group. Groups come in no particular order; the rows of a group in that of the dataset. A group has to fit in
    /// memory, beside others that are sorted with it, unless the function takes pieces of groups: with a `batch_size`
    /// of so many rows it gets at most these at once, all of one group and in any order, and pieces of a group may be
    /// smaller.
    ///
    /// # Errors
    ///
    /// When no function has the name, or its columns cannot be found.
    pub fn map_groups(&self, function: impl Into<MapFunction>) -> Result<Dataset> {
        self.map_groups_with(function, MapOptions::default())
    }

    /// As [`GroupedDataset::map_groups`], with the options of [`Dataset::map_batches_with`], but for `on_error`.
    ///
    /// # Errors
    ///
    /// As [`GroupedDataset::map_groups`], and when options contradict each other or the function.
    pub fn map_groups_with(&self, function: impl Into<MapFunction>, options: MapOptions) -> Result<Dataset> {
        let (function, options) = function.into().resolve(self.dataset.context.functions(), options)?;
        let keys = self.keys.iter().filter_map(|key| key.try_as_col().map(|column| column.name.clone())).collect();
        let plan = map_groups(self.dataset.plan.clone(), keys, function, &options)?;
        Ok(self.dataset.with_plan(plan))
    }

    fn each(&self, name: &str, columns: &[&str], aggregate: impl Fn(Expr) -> Expr) -> Result<Dataset> {
        let of = |column: &&str| {
            let expression = self.dataset.column(column, name)?;
            Ok(aggregate(expression).alias(format!("{name}({column})")))
        };
        self.aggregate(columns.iter().map(of).collect::<Result<_>>()?)
    }
}
