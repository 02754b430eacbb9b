//! Lists of values as SQL means them: null where it is not known whether a value is among them.
//!
//! DataFusion puts two lists for one value together, and takes what is left if nothing is: `x NOT IN (1) OR x NOT IN
//! (2)` is true for it, where it is null for null. It also drops a null that is in one of the lists. Here nulls are
//! taken out of the lists, and the value of one of two such lists is hidden, so that DataFusion does not see that it
//! is the same.
//!
//! ```text
//! x NOT IN (1) OR x NOT IN (2)      x NOT IN (1) OR same(x) NOT IN (2)
//! x NOT IN (1, NULL)                x NOT IN (1) AND NULL
//! ```

use std::sync::LazyLock;

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::{BinaryExpr, Cast, InList};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

#[derive(Debug)]
pub(super) struct ExactInLists;

impl OptimizerRule for ExactInLists {
    fn name(&self) -> &str {
        "exact_in_lists"
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        plan.transform_up_with_subqueries(|plan| {
            let asks_for_truth = matches!(plan, LogicalPlan::Filter(_));
            let names = NamePreserver::new(&plan);
            plan.map_expressions(|expr| {
                if !has_lists(&expr) {
                    return Ok(Transformed::no(expr));
                }
                let (name, before) = (names.save(&expr), expr.clone());
                let exact = exact(expr, asks_for_truth)?;
                let is_other = exact != before;
                Ok(Transformed::new_transformed(name.restore(exact), is_other))
            })
        })
    }
}

/// Whether there are two lists in an expression, or null in one.
fn has_lists(expr: &Expr) -> bool {
    let (mut lists, mut nulls) = (0, false);
    // The closure does not fail.
    let _ = expr.apply(|expr| {
        if let Expr::InList(list) = expr {
            lists += 1;
            nulls |= list.list.iter().any(is_null);
        }
        Ok(TreeNodeRecursion::Continue)
    });
    lists > 1 || nulls
}

fn is_null(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(value, _) => value.is_null(),
        Expr::Cast(Cast { expr, .. }) => is_null(expr),
        _ => false,
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
            listed.hidden = SAME.call(vec![listed.hidden]);
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
            let expr = Box::new(SAME.call(vec![*expr]));
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

static SAME: LazyLock<ScalarUDF> =
    LazyLock::new(|| ScalarUDF::from(Same { signature: Signature::any(1, Volatility::Immutable) }));

/// A value as it is.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Same {
    signature: Signature,
}

impl ScalarUDFImpl for Same {
    fn name(&self) -> &str {
        "same"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(arguments[0].clone())
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        Ok(FieldRef::clone(&arguments.arg_fields[0]))
    }

    fn invoke_with_args(&self, mut arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(arguments.args.swap_remove(0))
    }
}
