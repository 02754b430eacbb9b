//! Aggregates over groups.

use datafusion::common::Result;
use datafusion::functions_aggregate::expr_fn;
use datafusion::logical_expr::{Expr, lit};

use super::Dataset;

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
    pub fn aggregate(&self, aggregates: Vec<Expr>) -> Result<Dataset> {
        self.dataset.via_dataframe(|frame| frame.aggregate(self.keys.clone(), aggregates))
    }

    /// Number of rows, in a column `count()`.
    pub fn count(&self) -> Result<Dataset> {
        self.aggregate(vec![expr_fn::count(lit(1)).alias("count()")])
    }

    /// Sums of columns, named `sum(x)`.
    pub fn sum(&self, columns: &[&str]) -> Result<Dataset> {
        self.each("sum", columns, expr_fn::sum)
    }

    /// Least values of columns, named `min(x)`.
    pub fn min(&self, columns: &[&str]) -> Result<Dataset> {
        self.each("min", columns, expr_fn::min)
    }

    /// Greatest values of columns, named `max(x)`.
    pub fn max(&self, columns: &[&str]) -> Result<Dataset> {
        self.each("max", columns, expr_fn::max)
    }

    /// Means of columns, named `mean(x)`.
    pub fn mean(&self, columns: &[&str]) -> Result<Dataset> {
        self.each("mean", columns, expr_fn::avg)
    }

    /// Standard deviations of columns (of a sample: n - 1), named `std(x)`.
    pub fn std(&self, columns: &[&str]) -> Result<Dataset> {
        self.each("std", columns, expr_fn::stddev)
    }

    fn each(&self, name: &str, columns: &[&str], aggregate: impl Fn(Expr) -> Expr) -> Result<Dataset> {
        let of = |column: &&str| {
            let expression = self.dataset.column(column, name)?;
            Ok(aggregate(expression).alias(format!("{name}({column})")))
        };
        self.aggregate(columns.iter().map(of).collect::<Result<_>>()?)
    }
}
