//! By what rows are sorted.

use datafusion::common::Result;
use datafusion::logical_expr::SortExpr;

use super::Dataset;

/// A key of a sort: a column by its name, ascending with nulls last, or an expression with its direction and its place
/// of nulls.
#[derive(Debug, Clone)]
pub struct SortKey(Key);

#[derive(Debug, Clone)]
enum Key {
    /// The name of a column, exactly as written, and whether it descends.
    Column(String, bool),
    Expression(Box<SortExpr>),
}

/// A column, ascending, nulls last: the same as its name alone.
pub fn asc(column: impl Into<String>) -> SortKey {
    SortKey(Key::Column(column.into(), false))
}

/// A column, descending, nulls last.
pub fn desc(column: impl Into<String>) -> SortKey {
    SortKey(Key::Column(column.into(), true))
}

impl From<&str> for SortKey {
    fn from(column: &str) -> Self {
        asc(column)
    }
}

impl From<String> for SortKey {
    fn from(column: String) -> Self {
        asc(column)
    }
}

impl From<SortExpr> for SortKey {
    fn from(expression: SortExpr) -> Self {
        Self(Key::Expression(Box::new(expression)))
    }
}

impl Dataset {
    /// Sorted by keys: `sort(["a", "b"])`, `sort([desc("a")])`, or expressions, like
    /// `sort([col("a").sort(false, true)])`, which descends with nulls first.
    ///
    /// # Errors
    ///
    /// When there is no column of a name; the error suggests the nearest one.
    pub fn sort<K: Into<SortKey>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Self> {
        let expression = |key: K| match key.into().0 {
            Key::Column(name, descending) => Ok(self.column(&name, "sort")?.sort(!descending, false)),
            Key::Expression(expression) => Ok(*expression),
        };
        let order = keys.into_iter().map(expression).collect::<Result<_>>()?;
        self.via_dataframe(|frame| frame.sort(order))
    }
}
