//! A column that several relations of a subquery have, said without its relation, is an error. DataFusion takes it for
//! the column of that name of a query around, if there is one:
//!
//! ```text
//! DELETE FROM t WHERE x IN (SELECT x FROM a, b)      x of t: every row is deleted
//! ```
//!
//! What `USING` has brought together has been written out by then.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, plan_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr as PlannedExpr, LogicalPlan};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Expr, Query, Select, SetExpr, TableFactor, Visit, Visitor, visit_expressions};

use super::names::text_of;
use super::other_functions;

/// Plans a statement, with functions that go by other names written out.
pub(super) async fn plan(state: &SessionState, mut statement: Statement) -> Result<LogicalPlan> {
    other_functions::rewrite(&mut statement, &|name| {
        state.scalar_functions().contains_key(name)
            || state.aggregate_functions().contains_key(name)
            || state.window_functions().contains_key(name)
    })?;
    let mut bare = BareNames::default();
    if let Statement::Statement(statement) = &statement {
        let _all_seen = statement.visit(&mut bare);
    }
    let plan = state.statement_to_plan(statement).await?;
    if !bare.names.is_empty() {
        check(&plan, &bare.names)?;
    }
    Ok(plan)
}

/// No column of a query around may be one of which the rows here have several.
fn check(plan: &LogicalPlan, bare: &HashSet<String>) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                let PlannedExpr::OuterReferenceColumn(_, column) = expr else { return Ok(TreeNodeRecursion::Continue) };
                if bare.contains(&column.name) && num_here(node, &column.name) > 1 {
                    return plan_err!(
                        "column '{0}' of a subquery is ambiguous: several of its relations have one; say whose, as in \
                         t.{0}",
                        column.name
                    );
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(())
}

/// How many columns of a name an expression of a node may be over. That of a sort is over what it sorts, and over what
/// that was made of.
fn num_here(node: &LogicalPlan, name: &str) -> usize {
    let columns = |input: &LogicalPlan| input.schema().fields().iter().filter(|field| field.name() == name).count();
    let inputs = node.inputs();
    let here: usize = inputs.iter().map(|input| columns(input)).sum();
    match (node, inputs.as_slice()) {
        (LogicalPlan::Sort(_), [input]) if here == 0 => num_here(input, name),
        _ => here,
    }
}

/// The columns that are said without a relation in subqueries over several relations.
#[derive(Default)]
struct BareNames {
    names: HashSet<String>,
    /// Subqueries around that see the columns of what is around them.
    correlated: usize,
    /// Of each SELECT around, whether it is in such a subquery and has several relations.
    may_be_wrong: Vec<bool>,
}

impl BareNames {
    fn note(&mut self, expr: &Expr) {
        if let Expr::Identifier(ident) = expr {
            self.names.insert(text_of(ident));
        }
    }
}

fn is_correlated(factor: &TableFactor) -> bool {
    matches!(factor, TableFactor::Derived { lateral: true, .. })
}

fn is_subquery(expr: &Expr) -> bool {
    use Expr::{AllOp, AnyOp, Exists, InSubquery, Subquery};
    matches!(expr, Subquery(_) | Exists { .. } | InSubquery { .. } | AnyOp { .. } | AllOp { .. })
}

fn has_several(select: &Select) -> bool {
    select.from.len() > 1 || select.from.iter().any(|table| !table.joins.is_empty())
}

impl Visitor for BareNames {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        if let (SetExpr::Select(select), Some(order), true) =
            (query.body.as_ref(), &query.order_by, self.correlated > 0)
            && has_several(select)
        {
            return visit_expressions(order, |expr| {
                self.note(expr);
                ControlFlow::Continue(())
            });
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        self.may_be_wrong.push(self.correlated > 0 && has_several(select));
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, _select: &Select) -> ControlFlow<()> {
        self.may_be_wrong.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        self.correlated += usize::from(is_correlated(factor));
        ControlFlow::Continue(())
    }

    fn post_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        self.correlated -= usize::from(is_correlated(factor));
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if self.may_be_wrong.last() == Some(&true) {
            self.note(expr);
        }
        self.correlated += usize::from(is_subquery(expr));
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        self.correlated -= usize::from(is_subquery(expr));
        ControlFlow::Continue(())
    }
}
