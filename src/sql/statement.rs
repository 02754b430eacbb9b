//! [`SqlStatement`].

use std::fmt;

use datafusion::sql::parser::Statement as DFStatement;
use datafusion::sql::sqlparser::ast::Statement as AstStatement;

/// One parsed statement.
#[derive(Debug, Clone)]
pub struct SqlStatement {
    pub(super) statement: DFStatement,
    pub(super) line: Option<u64>,
    /// As it was written.
    pub(super) text: String,
}

impl SqlStatement {
    /// Whether it asks for rows. What other statements give, like COPY, is the number of rows that they changed, or
    /// nothing.
    pub fn is_query(&self) -> bool {
        match &self.statement {
            DFStatement::Explain(_) => true,
            DFStatement::Statement(statement) => matches!(
                statement.as_ref(),
                AstStatement::Query(_)
                    | AstStatement::Explain { .. }
                    | AstStatement::ExplainTable { .. }
                    | AstStatement::Execute { .. }
                    | AstStatement::ShowFunctions { .. }
                    | AstStatement::ShowVariable { .. }
                    | AstStatement::ShowTables { .. }
                    | AstStatement::ShowColumns { .. }
                    | AstStatement::ShowCreate { .. }
                    | AstStatement::Fetch { .. }
            ),
            _ => false,
        }
    }

    /// The line of the text on which it begins, from 1 on, if that is known.
    pub fn line(&self) -> Option<u64> {
        self.line
    }
}

impl fmt::Display for SqlStatement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.statement.fmt(f)
    }
}
