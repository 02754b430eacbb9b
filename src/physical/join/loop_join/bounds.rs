//! Comparisons in the condition of a join that say where in an order its matches are.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::common::JoinSide;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use datafusion::physical_expr::split_conjunction;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::PhysicalExpr;
use datafusion::physical_plan::joins::utils::JoinFilter;

use super::keys::has_order;

/// A comparison of what only needs the left side with what only needs the right one.
#[derive(Debug, Clone)]
pub(super) struct Comparison {
    pub(super) left: Arc<dyn PhysicalExpr>,
    pub(super) operator: Operator,
    pub(super) right: Arc<dyn PhysicalExpr>,
}

/// The comparisons by which a join finds its matches.
#[derive(Debug, Clone)]
pub(super) struct Bounds {
    /// What the left side is sorted by,
    pub(super) key: Arc<dyn PhysicalExpr>,
    /// and what that is compared with.
    pub(super) limits: Vec<(Operator, Arc<dyn PhysicalExpr>)>,
    /// One of something else of the left side.
    pub(super) other: Option<Comparison>,
    /// Whether they are all of the condition.
    pub(super) exact: bool,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "left {} {} right {}", self.left, self.operator, self.right)
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.limits.iter().map(|(operator, right)| format!("left {} {operator} right {right}", self.key));
        let all: Vec<String> = limits.chain(self.other.as_ref().map(ToString::to_string)).collect();
        write!(f, "{}", all.join(", "))
    }
}

impl Bounds {
    /// Those of a condition on the sides, if there are any. What has a limit on both sides comes first.
    pub(super) fn of(filter: &JoinFilter, left: &Schema, right: &Schema) -> Option<Self> {
        let conjuncts = split_conjunction(filter.expression());
        let parts = conjuncts.len();
        let all: Vec<Comparison> =
            conjuncts.into_iter().filter_map(|part| comparison(part, filter, left, right)).collect();
        let is_lower = |operator: Operator| matches!(operator, Operator::Gt | Operator::GtEq);
        let of_key = |key: &Arc<dyn PhysicalExpr>| all.iter().filter(|c| c.left.eq(key)).collect::<Vec<_>>();
        let has_both = |comparison: &&Comparison| {
            let limits = of_key(&comparison.left);
            limits.iter().any(|c| is_lower(c.operator)) && limits.iter().any(|c| !is_lower(c.operator))
        };
        let key = Arc::clone(&all.iter().find(has_both).or(all.first())?.left);
        let limits: Vec<_> = of_key(&key).into_iter().map(|c| (c.operator, Arc::clone(&c.right))).collect();
        let other = all.iter().find(|c| c.left.ne(&key)).cloned();
        let exact = limits.len() + usize::from(other.is_some()) == parts;
        Some(Self { key, limits, other, exact })
    }
}

/// The comparison that a part of the condition is.
fn comparison(part: &Arc<dyn PhysicalExpr>, filter: &JoinFilter, left: &Schema, right: &Schema) -> Option<Comparison> {
    let part = part.downcast_ref::<BinaryExpr>()?;
    if !matches!(part.op(), Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq) {
        return None;
    }
    let of_side = |expression, side, schema| of_side(expression, filter, side, schema);
    let (first, second) = (part.left(), part.right());
    let as_it_is = of_side(first, JoinSide::Left, left).zip(of_side(second, JoinSide::Right, right));
    let (sides, operator) = match as_it_is {
        Some(sides) => (sides, *part.op()),
        None => (of_side(second, JoinSide::Left, left).zip(of_side(first, JoinSide::Right, right))?, part.op().swap()?),
    };
    let comparison = Comparison { left: sides.0, operator, right: sides.1 };
    let (of_left, of_right) = (comparison.left.data_type(left).ok()?, comparison.right.data_type(right).ok()?);
    (of_left == of_right && has_order(&of_left)).then_some(comparison)
}

/// An expression over the columns of the condition as one over those of a side, if it needs some of it and nothing of
/// the other.
fn of_side(
    expression: &Arc<dyn PhysicalExpr>,
    filter: &JoinFilter,
    side: JoinSide,
    schema: &Schema,
) -> Option<Arc<dyn PhysicalExpr>> {
    let columns = collect_columns(expression);
    let is_of_side = |column: &Column| filter.column_indices().get(column.index()).is_some_and(|at| at.side == side);
    if columns.is_empty() || !columns.iter().all(is_of_side) {
        return None;
    }
    let moved = Arc::clone(expression).transform(|part| {
        Ok(match part.downcast_ref::<Column>().map(|column| &filter.column_indices()[column.index()]) {
            Some(at) => Transformed::yes(Arc::new(Column::new(schema.field(at.index).name(), at.index)) as _),
            None => Transformed::no(part),
        })
    });
    moved.data().ok().filter(|moved| !is_volatile(moved))
}
