//! Pieces of syntax that several rewrites read and write.

use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{ObjectName, Query, SetExpr, Statement, TableFactor, TableFunctionArgs};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;

use crate::call::{AnyTableFunction, TableFunctions};

/// The table function of ours that has a name.
pub(super) fn function_of(name: &ObjectName, functions: &TableFunctions) -> Option<Arc<dyn AnyTableFunction>> {
    match name.0.as_slice() {
        [part] => functions.find(&part.as_ident()?.value),
        _ => None,
    }
}

/// `SELECT * FROM factor`.
pub(super) fn select_all(factor: TableFactor) -> Option<Query> {
    let mut parsed = Parser::parse_sql(&GenericDialect {}, "SELECT * FROM t").ok()?;
    let Some(Statement::Query(mut query)) = parsed.pop() else {
        return None;
    };
    if let SetExpr::Select(select) = query.body.as_mut() {
        select.from.first_mut()?.relation = factor;
    }
    Some(*query)
}

pub(super) fn named(name: ObjectName, args: Option<TableFunctionArgs>) -> TableFactor {
    TableFactor::Table {
        name,
        alias: None,
        args,
        with_hints: Vec::new(),
        version: None,
        with_ordinality: false,
        partitions: Vec::new(),
        json_path: None,
        sample: None,
        index_hints: Vec::new(),
    }
}
