//! What a recursive query cannot have here.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{ObjectName, Query, SetExpr, visit_relations};

use super::names::text_of;

/// Refuses ORDER BY and LIMIT of a table that a recursive query makes of itself: DataFusion leaves them out.
pub(super) fn check(query: &Query) -> Result<(), String> {
    let Some(with) = query.with.as_ref().filter(|with| with.recursive) else { return Ok(()) };
    for table in &with.cte_tables {
        let name = text_of(&table.alias.name);
        let SetExpr::SetOperation { right, .. } = table.query.body.as_ref() else { continue };
        let is_itself = |relation: &ObjectName| match relation.0.as_slice() {
            [part] if part.as_ident().is_some_and(|ident| text_of(ident) == name) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        let ends = table.query.order_by.is_some() || table.query.limit_clause.is_some() || table.query.fetch.is_some();
        if ends && visit_relations(right, is_itself).is_break() {
            return Err(format!("ORDER BY or LIMIT of the recursive table '{name}'; put them where it is read"));
        }
    }
    Ok(())
}
