//! `WITH` tables that are drawn, and read several times.
//!
//! DataFusion puts the query of such a table where it is read, so that `WITH r AS (SELECT id, random() AS v FROM t)`
//! has other numbers in each place. Here the query gets a name by which `share_subplans` knows all copies of it:
//!
//! ```text
//! WITH r AS (SELECT * FROM (SELECT id, random() AS v FROM t) AS "__once_1")
//! ```

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Ident, ObjectName, Query, TableAlias, TableFactor, visit_expressions, visit_relations,
};

use super::names::text_of;
use super::syntax::select_all;
use crate::logical::ONCE;

/// Functions that give another value each time.
const DRAWN: [&str; 2] = ["random", "uuid"];

/// Names the queries of tables that are drawn and read several times. `number` is that of the last name.
pub(super) fn name_drawn(query: &mut Query, number: &mut usize) {
    let Some(with) = &query.with else { return };
    let mut drawn: Vec<String> = Vec::new();
    for table in &with.cte_tables {
        let reads_itself = mentions(&table.query, &text_of(&table.alias.name)) > 0;
        if reads_itself {
            continue;
        }
        if draws(&table.query) || drawn.iter().any(|name| mentions(&table.query, name) > 0) {
            drawn.push(text_of(&table.alias.name));
        }
    }
    let often: HashMap<String, usize> = drawn.iter().map(|name| (name.clone(), mentions(query, name))).collect();
    // Those of a view are others than those of the query that reads it.
    let whole = crc32fast::hash(query.to_string().as_bytes());
    let Some(with) = &mut query.with else { return };
    for table in &mut with.cte_tables {
        if often.get(&text_of(&table.alias.name)).is_none_or(|times| *times < 2) {
            continue;
        }
        *number += 1;
        let name = Ident::with_quote('"', format!("{ONCE}{number}_{whole:08x}"));
        let alias = Some(TableAlias { explicit: true, name, columns: Vec::new(), at: None });
        let inner = TableFactor::Derived { lateral: false, subquery: table.query.clone(), alias, sample: None };
        if let Some(named) = select_all(inner) {
            *table.query = named;
        }
    }
}

/// Whether a query calls a function that gives another value each time.
fn draws(query: &Query) -> bool {
    let is_drawn = |expr: &Expr| match expr {
        Expr::Function(call) => call
            .name
            .0
            .last()
            .and_then(|part| part.as_ident())
            .is_some_and(|name| DRAWN.contains(&name.value.to_ascii_lowercase().as_str())),
        _ => false,
    };
    visit_expressions(
        query,
        |expr: &Expr| if is_drawn(expr) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) },
    )
    .is_break()
}

/// How often a query reads a table of this name, as an argument of a call, too. A column of that name counts as well.
fn mentions(query: &Query, name: &str) -> usize {
    let mut times = 0;
    let _all: ControlFlow<()> = visit_relations(query, |relation: &ObjectName| {
        if let [part] = relation.0.as_slice() {
            times += usize::from(part.as_ident().is_some_and(|ident| text_of(ident) == name));
        }
        ControlFlow::Continue(())
    });
    let _all: ControlFlow<()> = visit_expressions(query, |expr: &Expr| {
        times += usize::from(matches!(expr, Expr::Identifier(ident) if text_of(ident) == name));
        ControlFlow::Continue(())
    });
    times
}
