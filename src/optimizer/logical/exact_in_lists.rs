//! Lists of values as SQL means them: null where it is not known whether a value is among them.
//!
//! DataFusion puts two lists for one value together, and takes what is left if nothing is: `x NOT IN (1) OR x NOT IN
//! (2)` is true for it, where it is null for null. It also drops a null that is in one of the lists. Here nulls are
//! taken out of the lists, and the value of one of two such lists is hidden, so that DataFusion does not see that it
//! is the same. What a list has that is computed from columns is hidden, too, since `CASE` is taken for a constant. And
//! as it looks up values by their bits, here and in `CASE x WHEN`, 0.0 comes with -0.0.
//!
//! ```text
//! x NOT IN (1) OR x NOT IN (2)      x NOT IN (1) OR same(x) NOT IN (2)
//! x NOT IN (1, NULL)                x NOT IN (1) AND NULL
//! 7 IN (1, CASE WHEN b THEN x END)  7 IN (1, same(CASE WHEN b THEN x END))
//! x IN (0.0, 1.0)                   x IN (0.0, -0.0, 1.0)
//! CASE x WHEN 0.0 THEN 'a' END      CASE x WHEN 0.0 THEN 'a' WHEN -0.0 THEN 'a' END
//! ```

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::{BinaryExpr, Cast, InList};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, Operator};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use super::same::{is_same, same};
use crate::logical::{has_node, has_part};

#[derive(Debug)]
pub(super) struct ExactInLists;

impl OptimizerRule for ExactInLists {
    fn name(&self) -> &str {
        "exact_in_lists"
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let may_have_lists = |part: &Expr| matches!(part, Expr::InList(_) | Expr::Case(_));
        if !has_node(&plan, |node| has_part(node, may_have_lists)) {
            return Ok(Transformed::no(plan));
        }
        plan.transform_up_with_subqueries(|plan| {
            let asks_for_truth = matches!(plan, LogicalPlan::Filter(_));
            let names = NamePreserver::new(&plan);
            plan.map_expressions(|expr| {
                if !has_lists(&expr) {
                    return Ok(Transformed::no(expr));
                }
                let (name, before) = (names.save(&expr), expr.clone());
                let exact = exact(expr.transform_up(|expr| Ok(with_both_zeros(expr)))?.data, asks_for_truth)?;
                let is_other = exact != before;
                Ok(Transformed::new_transformed(name.restore(exact), is_other))
            })
        })
    }
}

/// Whether there are two lists in an expression, or one with null, a value that is computed, or a zero.
fn has_lists(expr: &Expr) -> bool {
    let (mut lists, mut others) = (0, false);
    // The closure does not fail.
    let _ = expr.apply(|expr| {
        if let Expr::InList(list) = expr {
            lists += 1;
            others |= list.list.iter().any(|value| is_null(value) || is_computed(value) || other_zero(value).is_some());
        }
        if let Expr::Case(case) = expr {
            others |= case.expr.is_some() && case.when_then_expr.iter().any(|(value, _)| other_zero(value).is_some());
        }
        Ok(TreeNodeRecursion::Continue)
    });
    lists > 1 || others
}

/// 0.0 for -0.0, and the other way round.
fn other_zero(expr: &Expr) -> Option<Expr> {
    let zero = match expr {
        Expr::Literal(ScalarValue::Float64(Some(zero)), _) if *zero == 0.0 => ScalarValue::Float64(Some(-zero)),
        Expr::Literal(ScalarValue::Float32(Some(zero)), _) if *zero == 0.0 => ScalarValue::Float32(Some(-zero)),
        _ => return None,
    };
    Some(Expr::Literal(zero, None))
}

/// The same list or `CASE`, which finds both zeros where it finds one.
fn with_both_zeros(expr: Expr) -> Transformed<Expr> {
    match expr {
        Expr::InList(mut list) => {
            let others: Vec<Expr> = list.list.iter().filter_map(other_zero).collect();
            let others: Vec<Expr> = others.into_iter().filter(|other| !list.list.contains(other)).collect();
            list.list.extend(others);
            Transformed::yes(Expr::InList(list))
        }
        Expr::Case(mut case) if case.expr.is_some() => {
            let known: Vec<Expr> = case.when_then_expr.iter().map(|(value, _)| value.as_ref().clone()).collect();
            let both = |(value, result): (Box<Expr>, Box<Expr>)| {
                let other = other_zero(&value).filter(|other| !known.contains(other));
                let other = other.map(|other| (Box::new(other), result.clone()));
                std::iter::once((value, result)).chain(other)
            };
            case.when_then_expr = case.when_then_expr.into_iter().flat_map(both).collect();
            Transformed::yes(Expr::Case(case))
        }
        expr => Transformed::no(expr),
    }
}

fn is_null(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(value, _) => value.is_null(),
        Expr::Cast(Cast { expr, .. }) => is_null(expr),
        _ => false,
    }
}

/// Whether DataFusion may take a value of a list for the same in all rows because it has one value for no rows, as CASE
/// has, though it has columns.
fn is_computed(expr: &Expr) -> bool {
    match expr {
        Expr::Cast(Cast { expr, .. }) => is_computed(expr),
        Expr::Column(_) | Expr::OuterReferenceColumn(..) => false,
        _ => !is_same(expr) && (expr.any_column_refs() || expr.contains_outer()),
    }
}

/// An expression by itself: of a filter it counts only whether it is true.
fn exact(expr: Expr, asks_for_truth: bool) -> Result<Expr> {
    Chain::of(Operator::And).operand(expr, false, asks_for_truth)
}

/// Conditions that are all joined by AND, or all by OR, once every NOT is as far down as it goes.
struct Chain {
    op: Operator,
    /// What is said of values by lists.
    lists: Vec<Listed>,
    /// Whether there are conditions of other kinds.
    has_others: bool,
}

/// What is said of a value by a list, or by lists alone.
struct Listed {
    value: Expr,
    /// The value as it is hidden.
    hidden: Expr,
    /// The list, if there is one, and whether the value is to be in none of it.
    list: Option<(Vec<Expr>, bool)>,
}

impl Chain {
    fn of(op: Operator) -> Self {
        Self { op, lists: Vec::new(), has_others: false }
    }

    fn operand(&mut self, expr: Expr, is_negated: bool, asks_for_truth: bool) -> Result<Expr> {
        match expr {
            Expr::Not(inner) => Ok(Expr::Not(Box::new(self.operand(*inner, !is_negated, false)?))),
            Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right }) => {
                let opposite = if op == Operator::And { Operator::Or } else { Operator::And };
                let joined_by = if is_negated { opposite } else { op };
                let both = |chain: &mut Self| {
                    let left = Box::new(chain.operand(*left, is_negated, asks_for_truth)?);
                    let right = Box::new(chain.operand(*right, is_negated, asks_for_truth)?);
                    Ok(Expr::BinaryExpr(BinaryExpr { left, op, right }))
                };
                if joined_by == self.op {
                    return both(self);
                }
                let mut other = Self::of(joined_by);
                let joined = both(&mut other)?;
                // Lists for one value alone may become one.
                match other.lists.as_slice() {
                    [first, rest @ ..] if !other.has_others && rest.iter().all(|l| l.value == first.value) => {
                        let value = first.value.clone();
                        let times = self.add(Listed { hidden: value.clone(), value, list: None }, asks_for_truth);
                        (0..times).try_fold(joined, |joined, _| hide(joined))
                    }
                    _ => {
                        self.has_others = true;
                        Ok(joined)
                    }
                }
            }
            Expr::InList(list) => self.list(list, is_negated, asks_for_truth),
            other => {
                self.has_others = true;
                Ok(other.map_children(|child| Ok(Transformed::yes(exact(child, false)?)))?.data)
            }
        }
    }

    fn list(&mut self, mut list: InList, is_negated: bool, asks_for_truth: bool) -> Result<Expr> {
        let known = list.list.len();
        list.list.retain(|value| !is_null(value));
        list.list = list.list.into_iter().map(|value| if is_computed(&value) { same(value) } else { value }).collect();
        let (has_null, negated) = (list.list.len() < known, list.negated);
        let null = Expr::Literal(ScalarValue::Boolean(None), None);
        if list.list.is_empty() {
            return Ok(null);
        }
        let value = list.expr.as_ref().clone();
        let listed = Listed { hidden: value.clone(), value, list: Some((list.list.clone(), negated != is_negated)) };
        let times = self.add(listed, asks_for_truth);
        let list = (0..times).try_fold(Expr::InList(list), |list, _| hide(list))?;
        Ok(match (has_null, negated) {
            (false, _) => list,
            (true, false) if asks_for_truth => list,
            (true, false) => list.or(null),
            (true, true) => list.and(null),
        })
    }

    /// How often the value is to be hidden, so that nothing is made of what is listed and of what was before.
    fn add(&mut self, mut listed: Listed, asks_for_truth: bool) -> usize {
        let mut times = 0;
        // Of an AND that is false or null it does not count which. Hidden once it would be the same as others that are.
        while (self.op == Operator::Or || !asks_for_truth) && self.may_become_nothing(&listed) {
            listed.hidden = same(listed.hidden);
            times += 1;
        }
        self.lists.push(listed);
        times
    }

    fn may_become_nothing(&self, listed: &Listed) -> bool {
        let same: Vec<&Listed> = self.lists.iter().filter(|other| other.hidden == listed.hidden).collect();
        let is_of_more = |negated: bool| negated == (self.op == Operator::And);
        same.iter().any(|other| match (&other.list, &listed.list) {
            // What is made of both has the values of both.
            (Some((_, one)), Some((_, other))) if is_of_more(*one) && is_of_more(*other) => false,
            (Some((one, _)), Some((other, _))) => same.len() > 1 || leaves_nothing(one, other),
            _ => true,
        })
    }
}

/// The value of each list in an expression, hidden.
fn hide(expr: Expr) -> Result<Expr> {
    let hidden = expr.transform_up(|expr| match expr {
        Expr::InList(InList { expr, list, negated }) => {
            let expr = Box::new(same(*expr));
            Ok(Transformed::yes(Expr::InList(InList { expr, list, negated })))
        }
        expr => Ok(Transformed::no(expr)),
    });
    Ok(hidden?.data)
}

/// Whether lists have nothing in common, or one has nothing besides the other.
fn leaves_nothing(one: &[Expr], other: &[Expr]) -> bool {
    let has_all = |one: &[Expr], other: &[Expr]| one.iter().all(|value| other.contains(value));
    has_all(one, other) || has_all(other, one) || !one.iter().any(|value| other.contains(value))
}
