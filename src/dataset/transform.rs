//! Transformations of rows: what can run in one task.

use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::Expr;

use super::Dataset;
use crate::functions::{
    Compute, Failures, FunctionRef, MapFunction, MapOptions, Row, filter_rows, flat_map_rows, map_rows,
};
use crate::logical::{MapNode, MapOperator, extension, map_batches};

impl Dataset {
    /// Calls a function on batches of rows. It is a closure, or the name of a registered function; its output columns
    /// are found by calling it on an empty batch, or declared by [`MapOptions::schema`].
    ///
    /// # Errors
    ///
    /// When no function has the name, or its columns cannot be found.
    pub fn map_batches(&self, function: impl Into<MapFunction>) -> Result<Self> {
        self.map_batches_with(function, MapOptions::default())
    }

    /// As [`Dataset::map_batches`], with options.
    ///
    /// # Errors
    ///
    /// As [`Dataset::map_batches`], and when options contradict each other or the function.
    pub fn map_batches_with(&self, function: impl Into<MapFunction>, options: MapOptions) -> Result<Self> {
        let (function, options) = function.into().resolve(self.context.functions(), options)?;
        Ok(self.with_plan(map_batches(self.plan.clone(), function, &options)?))
    }

    /// Turns each row into one row, both typed by serde.
    ///
    /// # Errors
    ///
    /// Where serde cannot tell the columns of the result.
    pub fn map<T: Row, U: Row>(&self, f: impl Fn(T) -> U + Send + Sync + 'static) -> Result<Self> {
        self.map_with(f, MapOptions::default())
    }

    /// As [`Dataset::map`], with options; the batch size and the schema of them are not used.
    ///
    /// # Errors
    ///
    /// As [`Dataset::map`], and where options do not fit together.
    pub fn map_with<T: Row, U: Row>(
        &self,
        f: impl Fn(T) -> U + Send + Sync + 'static,
        options: MapOptions,
    ) -> Result<Self> {
        self.map_rows_node(map_rows(f)?, MapOperator::Rows, options)
    }

    /// Turns each row into any number of rows, both typed by serde.
    ///
    /// # Errors
    ///
    /// Where serde cannot tell the columns of the result.
    pub fn flat_map<T: Row, U: Row, I: IntoIterator<Item = U>>(
        &self,
        f: impl Fn(T) -> I + Send + Sync + 'static,
    ) -> Result<Self> {
        self.flat_map_with(f, MapOptions::default())
    }

    /// As [`Dataset::flat_map`], with options; the batch size and the schema of them are not used.
    ///
    /// # Errors
    ///
    /// As [`Dataset::flat_map`], and where options do not fit together.
    pub fn flat_map_with<T: Row, U: Row, I: IntoIterator<Item = U>>(
        &self,
        f: impl Fn(T) -> I + Send + Sync + 'static,
        options: MapOptions,
    ) -> Result<Self> {
        self.map_rows_node(flat_map_rows(f)?, MapOperator::FlatMap, options)
    }

    /// Keeps the rows for which a predicate is true: an expression, or SQL text like `"v > 1"`.
    ///
    /// # Errors
    ///
    /// Where the text is no expression, names a column that is not there, or gives no boolean.
    pub fn filter(&self, predicate: impl Into<Predicate>) -> Result<Self> {
        let predicate = match predicate.into() {
            Predicate::Expression(expression) => expression,
            Predicate::Sql(text) => self.state.create_logical_expr(&text, self.plan.schema())?,
        };
        self.via_dataframe(|frame| frame.filter(predicate))
    }

    /// Keeps the rows, typed by serde, for which a function holds.
    ///
    /// # Errors
    ///
    /// None is known: a plan is built, and building plans can fail.
    pub fn filter_rows<T: Row>(&self, f: impl Fn(&T) -> bool + Send + Sync + 'static) -> Result<Self> {
        self.filter_rows_with(f, MapOptions::default())
    }

    /// As [`Dataset::filter_rows`], with options; the batch size and the schema of them are not used.
    ///
    /// # Errors
    ///
    /// Where options do not fit together.
    pub fn filter_rows_with<T: Row>(
        &self,
        f: impl Fn(&T) -> bool + Send + Sync + 'static,
        options: MapOptions,
    ) -> Result<Self> {
        self.map_rows_node(filter_rows(f), MapOperator::Filter, options)
    }

    /// Keeps these columns, in this order.
    ///
    /// # Errors
    ///
    /// Where a column is not there.
    pub fn select_columns(&self, names: &[&str]) -> Result<Self> {
        let columns = self.columns_of(names, "select_columns")?;
        self.via_dataframe(|frame| frame.select(columns))
    }

    /// Leaves these columns out.
    ///
    /// # Errors
    ///
    /// Where a column is not there.
    pub fn drop_columns(&self, names: &[&str]) -> Result<Self> {
        self.columns_of(names, "drop_columns")?;
        let all = self.plan.schema().fields().iter().map(|f| f.name().as_str());
        self.select_columns(&all.filter(|name| !names.contains(name)).collect::<Vec<_>>())
    }

    /// Renames columns, given as (old, new).
    ///
    /// # Errors
    ///
    /// Where a column is not there, or two get one name.
    pub fn rename_columns(&self, names: &[(&str, &str)]) -> Result<Self> {
        let old: Vec<_> = names.iter().map(|(old, _)| *old).collect();
        self.columns_of(&old, "rename_columns")?;
        check_once(&old, "rename_columns")?;
        let mut columns = Vec::new();
        for field in self.plan.schema().fields() {
            let column = self.column(field.name(), "rename_columns")?;
            let renamed = names.iter().find(|(old, _)| old == field.name());
            columns.push(match renamed {
                Some((_, new)) => column.alias(*new),
                None => column,
            });
        }
        self.via_dataframe(|frame| frame.select(columns))
    }

    /// Adds a column computed by an expression, or replaces the one of this name.
    ///
    /// # Errors
    ///
    /// Where the expression is of columns that are not there.
    pub fn with_column(&self, name: &str, expression: Expr) -> Result<Self> {
        self.via_dataframe(|frame| frame.with_column(name, expression))
    }

    /// Adds or replaces several columns; none of them sees the others.
    ///
    /// # Errors
    ///
    /// Where an expression is of columns that are not there, and where a name comes twice.
    pub fn with_columns(&self, columns: Vec<(&str, Expr)>) -> Result<Self> {
        check_once(&columns.iter().map(|(name, _)| *name).collect::<Vec<_>>(), "with_columns")?;
        let mut expressions = Vec::new();
        for field in self.plan.schema().fields() {
            match columns.iter().find(|(name, _)| name == field.name()) {
                Some((name, expression)) => expressions.push(expression.clone().alias(*name)),
                None => expressions.push(self.column(field.name(), "with_columns")?),
            }
        }
        let added = columns.into_iter().filter(|(name, _)| !self.plan.schema().has_column_with_unqualified_name(name));
        expressions.extend(added.map(|(name, expression)| expression.alias(name)));
        self.via_dataframe(|frame| frame.select(expressions))
    }

    /// The first `n` rows.
    ///
    /// # Errors
    ///
    /// None is known: a plan is built, and building plans can fail.
    pub fn limit(&self, n: usize) -> Result<Self> {
        // DataFusion counts in 64 bits with a sign.
        self.via_dataframe(|frame| frame.limit(0, Some(n.min(i64::MAX as usize))))
    }

    /// Each row with probability `fraction`, the same rows for the same seed and input.
    ///
    /// # Errors
    ///
    /// Where `fraction` is not between 0 and 1.
    pub fn random_sample(&self, fraction: f64, seed: u64) -> Result<Self> {
        self.map_node(MapOperator::Sample { fraction, seed, others: false }, Compute::default(), Failures::default())
    }

    fn map_rows_node(
        &self,
        function: FunctionRef,
        operator: fn(FunctionRef) -> MapOperator,
        options: MapOptions,
    ) -> Result<Self> {
        let function = MapOptions { schema: None, ..options.clone() }.apply(function);
        let compute = options.compute(&function)?;
        self.map_node(operator(function), compute, options.failures()?)
    }

    fn map_node(&self, operator: MapOperator, compute: Compute, failures: Failures) -> Result<Self> {
        Ok(self.with_plan(extension(MapNode::try_new(self.plan.clone(), operator, compute, failures)?)))
    }
}

/// A condition on rows.
#[derive(Debug)]
pub enum Predicate {
    /// An expression of DataFusion.
    Expression(Expr),
    /// The text of one, in SQL.
    Sql(String),
}

impl From<Expr> for Predicate {
    fn from(expression: Expr) -> Self {
        Self::Expression(expression)
    }
}

impl From<&str> for Predicate {
    fn from(text: &str) -> Self {
        Self::Sql(text.to_owned())
    }
}

/// Fails where a column is named twice: of two meanings one would be lost.
fn check_once(names: &[&str], call: &str) -> Result<()> {
    match names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
        Some((_, name)) => plan_err!("{call} names the column '{name}' twice"),
        None => Ok(()),
    }
}
