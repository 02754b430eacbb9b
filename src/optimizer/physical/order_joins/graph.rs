//! Joins that are next to each other, as tables and what connects them.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::{JoinSide, JoinType, NullEquality};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::projection::ProjectionExec;

use super::super::estimate::{Estimate, estimate};

/// More tables than these are not ordered: sets of them are the bits of a number.
const MAX_RELATIONS: usize = 60;
/// Of two tables there is no order; their sides are chosen by `choose_build_sides`.
const MIN_RELATIONS: usize = 3;

/// A set of relations, as bits.
pub(super) type Set = u64;

/// A column of a relation.
pub(super) type ColumnOf = (usize, usize);

/// An input of the joins.
#[derive(Debug)]
pub(super) struct Relation {
    pub(super) plan: Arc<dyn ExecutionPlan>,
    pub(super) estimate: Estimate,
    /// How it leaves out rows of the others, where it gives none itself.
    pub(super) leaves_out: Option<LeavesOut>,
}

/// A semi or anti join.
#[derive(Debug)]
pub(super) struct LeavesOut {
    pub(super) join_type: JoinType,
    /// Columns of other relations, and the ones of this that they are compared with.
    pub(super) on: Vec<(ColumnOf, usize)>,
    pub(super) filter: Option<Predicate>,
    /// The relations that it looks at.
    pub(super) looks_at: Set,
}

/// A condition beside equal columns.
#[derive(Debug, Clone)]
pub(super) struct Predicate {
    pub(super) filter: JoinFilter,
    /// What its columns are.
    pub(super) columns: Vec<ColumnOf>,
}

impl Predicate {
    /// The relations that it looks at.
    pub(super) fn relations(&self) -> Set {
        self.columns.iter().fold(0, |set, (relation, _)| set | 1 << relation)
    }
}

/// An order of joins.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Tree {
    Relation(usize),
    Join(Box<Tree>, Box<Tree>),
}

impl Tree {
    pub(super) fn join(left: Self, right: Self) -> Self {
        Self::Join(Box::new(left), Box::new(right))
    }

    /// The relations in it.
    pub(super) fn relations(&self) -> Set {
        match self {
            Self::Relation(number) => 1 << number,
            Self::Join(left, right) => left.relations() | right.relations(),
        }
    }
}

/// Joins that are next to each other.
#[derive(Debug)]
pub(super) struct JoinGraph {
    pub(super) relations: Vec<Relation>,
    /// Columns that are equal.
    pub(super) classes: Vec<Vec<ColumnOf>>,
    pub(super) predicates: Vec<Predicate>,
    /// What the joins give.
    pub(super) output: Vec<ColumnOf>,
    /// The order in which they stand.
    pub(super) written: Tree,
    pub(super) mode: PartitionMode,
}

impl JoinGraph {
    /// The joins from a node on, if they may come in another order.
    pub(super) fn of(node: &Arc<dyn ExecutionPlan>) -> Option<Self> {
        let top = node.downcast_ref::<HashJoinExec>()?;
        let mut graph = Self {
            relations: Vec::new(),
            classes: Vec::new(),
            predicates: Vec::new(),
            output: Vec::new(),
            written: Tree::Relation(0),
            mode: *top.partition_mode(),
        };
        let (tree, output) = graph.collect(node)?;
        (graph.written, graph.output) = (tree, output);
        // Two columns of one relation that are equal would have to be compared in it.
        let is_simple = |class: &Vec<ColumnOf>| {
            let relations: HashSet<usize> = class.iter().map(|(relation, _)| *relation).collect();
            relations.len() == class.len()
        };
        if !graph.classes.iter().all(is_simple) {
            return None;
        }
        (graph.relations.len() >= MIN_RELATIONS).then_some(graph)
    }

    /// The relations of a plan, and what its columns are of them. `None` where something of it is not known.
    fn collect(&mut self, plan: &Arc<dyn ExecutionPlan>) -> Option<(Tree, Vec<ColumnOf>)> {
        if let Some(projection) = plan.downcast_ref::<ProjectionExec>()
            && let Some(columns) = columns_of(projection.expr().iter().map(|expr| &expr.expr))
            && is_joined(projection.input())
        {
            let (tree, inside) = self.collect(projection.input())?;
            return Some((tree, columns.into_iter().map(|column| inside[column]).collect()));
        }
        let Some(join) = plan.downcast_ref::<HashJoinExec>().filter(|join| may_move(join)) else {
            return self.relation(plan, None);
        };
        let (left, of_left) = self.collect(join.left())?;
        let on = join.on().iter().map(|(left, right)| Some((column(left)?, column(right)?)));
        let on: Vec<(usize, usize)> = on.collect::<Option<_>>()?;
        let (tree, output) = match join.join_type() {
            JoinType::Inner => {
                let (right, of_right) = self.collect(join.right())?;
                for (left, right) in on {
                    self.are_equal(of_left[left], of_right[right]);
                }
                self.predicates.extend(join.filter().map(|filter| predicate(filter, &of_left, &of_right)));
                (Tree::join(left, right), [of_left, of_right].concat())
            }
            join_type => {
                let number = self.relations.len();
                let of_right: Vec<ColumnOf> = (0..join.right().schema().fields().len()).map(|c| (number, c)).collect();
                let filter = join.filter().map(|filter| predicate(filter, &of_left, &of_right));
                let on: Vec<_> = on.into_iter().map(|(left, right)| (of_left[left], right)).collect();
                let of_filter = filter.as_ref().map_or(0, Predicate::relations);
                let looks_at =
                    on.iter().fold(of_filter, |set, ((relation, _), _)| set | 1 << relation) & !(1 << number);
                let leaves_out = LeavesOut { join_type: *join_type, on, filter, looks_at };
                let (right, _) = self.relation(join.right(), Some(leaves_out))?;
                (Tree::join(left, right), of_left)
            }
        };
        let output = match &join.projection {
            Some(projection) => projection.iter().map(|column| output[*column]).collect(),
            None => output,
        };
        Some((tree, output))
    }

    fn relation(
        &mut self,
        plan: &Arc<dyn ExecutionPlan>,
        leaves_out: Option<LeavesOut>,
    ) -> Option<(Tree, Vec<ColumnOf>)> {
        let number = self.relations.len();
        if number == MAX_RELATIONS {
            return None;
        }
        let estimate = estimate(plan)?;
        let columns = (0..plan.schema().fields().len()).map(|column| (number, column)).collect();
        self.relations.push(Relation { plan: Arc::clone(plan), estimate, leaves_out });
        Some((Tree::Relation(number), columns))
    }

    fn are_equal(&mut self, one: ColumnOf, other: ColumnOf) {
        let class_of = |column: &ColumnOf| self.classes.iter().position(|class| class.contains(column));
        match (class_of(&one), class_of(&other)) {
            (Some(a), Some(b)) if a == b => {}
            (Some(a), Some(b)) => {
                let moved = self.classes.swap_remove(a.max(b));
                self.classes[a.min(b)].extend(moved);
            }
            (Some(class), None) => self.classes[class].push(other),
            (None, Some(class)) => self.classes[class].push(one),
            (None, None) => self.classes.push(vec![one, other]),
        }
    }
}

/// Whether there are joins below, perhaps under projections.
fn is_joined(plan: &Arc<dyn ExecutionPlan>) -> bool {
    match plan.downcast_ref::<ProjectionExec>() {
        Some(projection) => is_joined(projection.input()),
        None => plan.downcast_ref::<HashJoinExec>().is_some_and(may_move),
    }
}

/// Whether a join may come before or after others.
fn may_move(join: &HashJoinExec) -> bool {
    let moves = matches!(join.join_type(), JoinType::Inner | JoinType::LeftSemi | JoinType::LeftAnti);
    let types = |side: &Arc<dyn ExecutionPlan>, key: &Arc<dyn PhysicalExpr>| key.data_type(&side.schema()).ok();
    moves
        && !join.null_aware
        && join.fetch().is_none()
        && join.null_equality() == NullEquality::NullEqualsNothing
        && join.filter().is_none_or(|filter| !is_volatile(filter.expression()))
        && join.on().iter().all(|(left, right)| {
            let same = types(join.left(), left) == types(join.right(), right);
            same && column(left).is_some() && column(right).is_some()
        })
}

fn column(expression: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    expression.downcast_ref::<Column>().map(Column::index)
}

/// The columns that expressions are, if all are some.
fn columns_of<'a>(expressions: impl Iterator<Item = &'a Arc<dyn PhysicalExpr>>) -> Option<Vec<usize>> {
    expressions.map(column).collect()
}

fn predicate(filter: &JoinFilter, left: &[ColumnOf], right: &[ColumnOf]) -> Predicate {
    let columns = filter.column_indices().iter().map(|column| match column.side {
        JoinSide::Right => right[column.index],
        _ => left[column.index],
    });
    Predicate { columns: columns.collect(), filter: filter.clone() }
}
