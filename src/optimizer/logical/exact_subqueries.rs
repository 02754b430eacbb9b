//! Conditions on subqueries as SQL means them: null where it is not known whether they are true.
//!
//! DataFusion joins a subquery and marks the rows that have a match, which says false for null. That is as good where
//! only rows count for which a condition is true, and not below NOT, CASE or IS NULL. It compares with `ANY` and `ALL`
//! by columns that may have the names of those outside. And in a SELECT it has no such conditions.
//!
//! ```text
//! a NOT IN (S) OR b    NOT a IN (S) AND NOT (a IS NULL AND S has rows) AND NOT (S has nulls) OR b
//! (a IN (S)) IS NULL   CASE WHEN a IN (S) THEN true WHEN (a IS NULL AND S has rows) OR S has nulls THEN NULL ELSE false ..
//! a > ANY (S)          CASE WHEN a > (SELECT min(s) FROM S) THEN true WHEN (..) THEN NULL ELSE false END
//! SELECT a IN (S)      with (SELECT count(*) FROM S WHERE s = a) > 0 in the place of a IN (S)
//! ```

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ExprSchema, Result, ScalarValue};
use datafusion::functions_aggregate::expr_fn::{count, max, min};
use datafusion::logical_expr::expr::{BinaryExpr, Exists, InSubquery, SetComparison, SetQuantifier};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Aggregate, Expr, ExprSchemable, Filter, LogicalPlan, LogicalPlanBuilder, Operator, Projection, Subquery,
    binary_expr, lit, not, when,
};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use super::unnest_subqueries::{Asked, depends_on_outside, is_simple};
use crate::logical::{has_node, has_part, is_subquery};

#[derive(Debug)]
pub(super) struct ExactSubqueries;

impl OptimizerRule for ExactSubqueries {
    fn name(&self) -> &str {
        "exact_subqueries"
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        if !has_node(&plan, |node| has_part(node, is_subquery)) {
            return Ok(Transformed::no(plan));
        }
        plan.transform_up_with_subqueries(|plan| match plan {
            LogicalPlan::Filter(Filter { predicate, input, .. }) if has_condition(&predicate) => {
                let exact = Exact { config, outer: input.schema(), joins: true };
                let conjuncts = split_conjunction_owned(predicate).into_iter().map(|e| exact.conjunct(e));
                let predicate = conjunction(conjuncts.collect::<Result<Vec<_>>>()?).unwrap_or_else(|| lit(true));
                Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(predicate, Arc::clone(&input))?)))
            }
            LogicalPlan::Projection(projection) if projection.expr.iter().any(has_condition) => {
                let exact = Exact { config, outer: projection.input.schema(), joins: false };
                let exprs = exact.values(&projection.expr)?;
                let projection = Projection::try_new(exprs, Arc::clone(&projection.input))?;
                Ok(Transformed::yes(LogicalPlan::Projection(projection)))
            }
            LogicalPlan::Aggregate(aggregate)
                if aggregate.group_expr.iter().chain(&aggregate.aggr_expr).any(has_condition) =>
            {
                let exact = Exact { config, outer: aggregate.input.schema(), joins: false };
                let (groups, aggregates) = (exact.values(&aggregate.group_expr)?, exact.values(&aggregate.aggr_expr)?);
                let aggregate = Aggregate::try_new(Arc::clone(&aggregate.input), groups, aggregates)?;
                Ok(Transformed::yes(LogicalPlan::Aggregate(aggregate)))
            }
            plan => Ok(Transformed::no(plan)),
        })
    }
}

/// Whether there are such conditions in an expression.
fn has_condition(expr: &Expr) -> bool {
    let is_condition = |e: &Expr| Ok(matches!(e, Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_)));
    expr.exists(is_condition).unwrap_or(true)
}

/// How the conditions of a plan are made exact.
struct Exact<'a> {
    config: &'a dyn OptimizerConfig,
    /// The columns around the subqueries.
    outer: &'a DFSchema,
    /// Whether DataFusion makes joins of IN and EXISTS where they stand.
    joins: bool,
}

impl Exact<'_> {
    /// Whether DataFusion joins a subquery where it stands, as it should.
    fn is_joined(&self, subquery: &Subquery, asked: Asked) -> Result<bool> {
        Ok(self.joins && is_simple(&subquery.subquery, asked)?)
    }

    /// One of several conditions that are all to be true. What stands there alone is joined as it should be: a NOT IN
    /// with a value that is not the same for all rows, and a subquery that is.
    fn conjunct(&self, expr: Expr) -> Result<Expr> {
        match as_membership(expr)? {
            Expr::InSubquery(is_in) if is_in.negated => {
                let is_constant = is_in.expr.column_refs().is_empty();
                match is_constant || depends_on_outside(&is_in.subquery.subquery)? {
                    true => self.holds(Expr::InSubquery(is_in)),
                    false => Ok(Expr::InSubquery(is_in)),
                }
            }
            expr => self.holds(expr),
        }
    }

    /// A condition that is asked only whether it is true.
    fn holds(&self, expr: Expr) -> Result<Expr> {
        match as_membership(expr)? {
            Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right }) => {
                Ok(binary_expr(self.holds(*left)?, op, self.holds(*right)?))
            }
            Expr::IsTrue(inner) => Ok(Expr::IsTrue(Box::new(self.holds(*inner)?))),
            // DataFusion looks for null in what is outside of a single column only.
            Expr::InSubquery(is_in) if is_in.negated && depends_on_outside(&is_in.subquery.subquery)? => {
                self.membership(is_in)
            }
            Expr::InSubquery(is_in) if is_in.negated => {
                let InSubquery { expr, subquery, .. } = &is_in;
                let unknown = self.unknown(expr, subquery)?;
                let is_out = Expr::InSubquery(InSubquery { negated: true, ..is_in.clone() });
                Ok(unknown.map_or(is_out.clone(), |unknown| is_out.and(not(unknown))))
            }
            Expr::InSubquery(is_in) => match self.is_joined(&is_in.subquery, Asked::In)? {
                true => Ok(Expr::InSubquery(is_in)),
                false => self.is_among(&is_in.expr, &is_in.subquery),
            },
            Expr::SetComparison(comparison) => self.comparison(comparison, true),
            expr => self.value(expr),
        }
    }

    /// An expression of which the value counts, and null is one.
    fn value(&self, expr: Expr) -> Result<Expr> {
        let exact = expr.transform_down(|expr| match as_membership(expr)? {
            Expr::InSubquery(is_in) => {
                let value = self.membership(is_in)?;
                Ok(Transformed::new(value, true, TreeNodeRecursion::Jump))
            }
            Expr::SetComparison(comparison) => {
                Ok(Transformed::new(self.comparison(comparison, false)?, true, TreeNodeRecursion::Jump))
            }
            Expr::Exists(Exists { subquery, negated }) if !self.is_joined(&subquery, Asked::Exists)? => {
                let rows = has_rows(&subquery)?;
                Ok(Transformed::new(if negated { not(rows) } else { rows }, true, TreeNodeRecursion::Jump))
            }
            expr => Ok(Transformed::no(expr)),
        });
        Ok(exact?.data)
    }

    /// The same for some, which keep their names.
    fn values(&self, exprs: &[Expr]) -> Result<Vec<Expr>> {
        let names = NamePreserver::new_for_projection();
        exprs.iter().map(|expr| Ok(names.save(expr).restore(self.value(expr.clone())?))).collect()
    }

    fn membership(&self, is_in: InSubquery) -> Result<Expr> {
        let InSubquery { expr, subquery, negated } = &is_in;
        let unknown = self.unknown(expr, subquery)?;
        let found = match self.is_joined(subquery, Asked::In)? {
            true => Expr::InSubquery(InSubquery { negated: false, ..is_in.clone() }),
            false => self.is_among(expr, subquery)?,
        };
        let null = Expr::Literal(ScalarValue::Boolean(None), None);
        let value = match unknown {
            Some(unknown) => when(found, lit(!negated)).when(unknown, null).otherwise(lit(*negated))?,
            None if *negated => not(found),
            None => found,
        };
        Ok(value)
    }

    /// Whether a value compares as asked with any, or with all of a subquery: with the least and the greatest of them.
    /// If it is asked only whether it does, null may be in the place of false.
    fn comparison(&self, comparison: SetComparison, holds: bool) -> Result<Expr> {
        let SetComparison { expr, subquery, op, quantifier } = &comparison;
        let subquery = self.renamed(subquery)?;
        let column = first_column(&subquery);
        let kind = subquery.subquery.schema().field(0).data_type().clone();
        let (is_any, opposite) = (*quantifier == SetQuantifier::Any, op.negate());
        let (true, Some(opposite)) = (has_least(&kind), opposite) else {
            return Ok(Expr::SetComparison(SetComparison { subquery, ..comparison }));
        };
        let (least, greatest) = (aggregated(&subquery, min(column.clone()))?, aggregated(&subquery, max(column))?);
        // What decides: that one of them is as asked, or that one is not.
        let asked = if is_any { *op } else { opposite };
        let with = |bound: Expr| binary_expr(expr.as_ref().clone(), asked, bound);
        let decided = match asked {
            Operator::Gt | Operator::GtEq => with(least),
            Operator::Lt | Operator::LtEq => with(greatest),
            Operator::NotEq => with(least).or(with(greatest)),
            _ => return Ok(Expr::SetComparison(SetComparison { subquery, ..comparison })),
        };
        if holds && is_any {
            return Ok(decided);
        }
        let mut decided = when(decided, lit(is_any));
        match self.unknown(expr, &subquery)? {
            Some(unknown) => {
                decided.when(unknown, Expr::Literal(ScalarValue::Boolean(None), None)).otherwise(lit(!is_any))
            }
            None => decided.otherwise(lit(!is_any)),
        }
    }

    /// When it is not known whether a value is in a subquery where it is not found; `None` if that is always known.
    fn unknown(&self, value: &Expr, subquery: &Subquery) -> Result<Option<Expr>> {
        let of_value = match value.nullable(self.outer).unwrap_or(true) {
            true => Some(value.clone().is_null().and(has_rows(subquery)?)),
            false => None,
        };
        let of_rows = match subquery.subquery.schema().field(0).is_nullable() {
            true => {
                let column = first_column(subquery);
                Some(has_rows(&over(subquery, |plan| plan.filter(column.is_null()))?)?)
            }
            false => None,
        };
        Ok(match (of_value, of_rows) {
            (Some(one), Some(other)) => Some(one.or(other)),
            (one, other) => one.or(other),
        })
    }

    /// Whether a value is found in a subquery, by counting.
    fn is_among(&self, value: &Expr, subquery: &Subquery) -> Result<Expr> {
        let subquery = self.renamed(subquery)?;
        let outer = value.clone().transform_up(|expr| match expr {
            Expr::Column(column) => {
                let field = Arc::clone(self.outer.field_from_column(&column)?);
                Ok(Transformed::yes(Expr::OuterReferenceColumn(field, column)))
            }
            expr => Ok(Transformed::no(expr)),
        });
        let is_same = first_column(&subquery).eq(outer?.data);
        has_rows(&over(&subquery, |plan| plan.filter(is_same))?)
    }

    /// The subquery with a name for its column that nothing outside has.
    fn renamed(&self, subquery: &Subquery) -> Result<Subquery> {
        let name = self.config.alias_generator().next("__of_subquery");
        over(subquery, |plan| plan.project([first_column(subquery).alias(name)]))
    }
}

/// `= ANY` as `IN`, `<> ALL` as `NOT IN`, and the opposite of either below a NOT.
fn as_membership(expr: Expr) -> Result<Expr> {
    Ok(match expr {
        Expr::SetComparison(SetComparison { expr, subquery, op: Operator::Eq, quantifier: SetQuantifier::Any }) => {
            Expr::InSubquery(InSubquery { expr, subquery, negated: false })
        }
        Expr::SetComparison(SetComparison { expr, subquery, op: Operator::NotEq, quantifier: SetQuantifier::All }) => {
            Expr::InSubquery(InSubquery { expr, subquery, negated: true })
        }
        Expr::Not(inner) => match as_membership(*inner)? {
            Expr::InSubquery(is_in) => Expr::InSubquery(InSubquery { negated: !is_in.negated, ..is_in }),
            Expr::Exists(exists) => Expr::Exists(Exists { negated: !exists.negated, ..exists }),
            inner => not(inner),
        },
        expr => expr,
    })
}

/// Whether values of a type have a least one by which they compare.
fn has_least(kind: &DataType) -> bool {
    let is_text = matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    kind.is_numeric() || kind.is_temporal() || is_text || *kind == DataType::Boolean
}

fn first_column(subquery: &Subquery) -> Expr {
    Expr::Column(Column::from(subquery.subquery.schema().qualified_field(0)))
}

/// Another subquery above one.
fn over(subquery: &Subquery, make: impl FnOnce(LogicalPlanBuilder) -> Result<LogicalPlanBuilder>) -> Result<Subquery> {
    let plan = make(LogicalPlanBuilder::from(Arc::clone(&subquery.subquery)))?.build()?;
    let outer_ref_columns = plan.all_out_ref_exprs();
    Ok(Subquery { subquery: Arc::new(plan), outer_ref_columns, spans: subquery.spans.clone() })
}

/// What an aggregate function says of all rows.
fn aggregated(subquery: &Subquery, function: Expr) -> Result<Expr> {
    over(subquery, |plan| plan.aggregate(Vec::<Expr>::new(), [function])).map(Expr::ScalarSubquery)
}

/// Whether there are rows. Of those that do not depend on a row outside one is enough.
fn has_rows(subquery: &Subquery) -> Result<Expr> {
    let some = match depends_on_outside(&subquery.subquery)? {
        true => subquery.clone(),
        false => over(subquery, |plan| plan.limit(0, Some(1)))?,
    };
    Ok(aggregated(&some, count(lit(1_i64)))?.gt(lit(0_i64)))
}
