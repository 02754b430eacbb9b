//! Joins in an order, as a plan.

use std::sync::Arc;

use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{JoinSide, JoinType, NullEquality, Result};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};

use super::graph::{ColumnOf, JoinGraph, Predicate, Set, Tree};
use super::search::Costs;

/// A plan, and what its columns are of the relations.
struct Built {
    plan: Arc<dyn ExecutionPlan>,
    columns: Vec<ColumnOf>,
    relations: Set,
}

/// The joins in the order of `tree`, with the columns of `schema`. `None` where they would not be just these.
pub(super) fn plan_of(
    graph: &JoinGraph,
    tree: &Tree,
    costs: &Costs<'_>,
    schema: &SchemaRef,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(built) = (Builder { graph, costs }).build(tree)? else { return Ok(None) };
    let mut columns = Vec::new();
    for (wanted, field) in graph.output.iter().zip(schema.fields()) {
        let Some(index) = built.columns.iter().position(|column| column == wanted) else { return Ok(None) };
        columns.push(ProjectionExpr { expr: column(&built.plan, index), alias: field.name().clone() });
    }
    let plan: Arc<dyn ExecutionPlan> = Arc::new(ProjectionExec::try_new(columns, built.plan)?);
    Ok(Some(plan).filter(|plan| plan.schema() == *schema))
}

struct Builder<'a> {
    graph: &'a JoinGraph,
    costs: &'a Costs<'a>,
}

impl Builder<'_> {
    fn build(&self, tree: &Tree) -> Result<Option<Built>> {
        let (left, right) = match tree {
            Tree::Relation(number) => {
                let plan = Arc::clone(&self.graph.relations[*number].plan);
                let columns = (0..plan.schema().fields().len()).map(|column| (*number, column)).collect();
                return Ok(Some(Built { plan, columns, relations: 1 << number }));
            }
            Tree::Join(left, right) => (left, right),
        };
        let leaves_out = match right.as_ref() {
            Tree::Relation(number) => self.graph.relations[*number].leaves_out.as_ref(),
            Tree::Join(..) => None,
        };
        let (Some(mut left), Some(mut right)) = (self.build(left)?, self.build(right)?) else { return Ok(None) };
        // The first input is the one of which a table is built.
        let swaps = self.costs.builds_right(left.relations, right.relations);
        let (join_type, on, filter) = match leaves_out {
            Some(by) => {
                let on = by.on.iter().map(|(column, own)| Some((left.position(*column)?, *own)));
                let on = on.collect::<Option<Vec<_>>>();
                let filter = filter_of(by.filter.iter(), &left, &right)?;
                match swaps {
                    false => (by.join_type, on, filter),
                    true => {
                        std::mem::swap(&mut left, &mut right);
                        let on = on.map(|on| on.into_iter().map(|(a, b)| (b, a)).collect());
                        (by.join_type.swap(), on, filter.map(|filter| filter.map(|filter| filter.swap())))
                    }
                }
            }
            None => {
                if swaps {
                    std::mem::swap(&mut left, &mut right);
                }
                let both = left.relations | right.relations;
                let is_new = |predicate: &&Predicate| {
                    let of = predicate.relations();
                    of & both == of && of & left.relations != of && of & right.relations != of
                };
                let filter = filter_of(self.graph.predicates.iter().filter(is_new), &left, &right)?;
                (JoinType::Inner, Some(self.equal_columns(&left, &right)), filter)
            }
        };
        let (Some(on), Some(filter)) = (on, filter) else { return Ok(None) };
        let on = on.into_iter().map(|(a, b)| (column(&left.plan, a), column(&right.plan, b))).collect();
        let (plan_left, plan_right, mode) = (Arc::clone(&left.plan), Arc::clone(&right.plan), self.graph.mode);
        let equality = NullEquality::NullEqualsNothing;
        let plan = HashJoinExec::try_new(plan_left, plan_right, on, filter, &join_type, None, mode, equality, false)?;
        let relations = left.relations | right.relations;
        let columns = match (leaves_out, swaps) {
            (Some(_), false) => left.columns,
            (Some(_), true) => right.columns,
            (None, _) => [left.columns, right.columns].concat(),
        };
        self.without_what_nobody_needs(Built { plan: Arc::new(plan), columns, relations }).map(Some)
    }

    /// For each class with columns on both sides, one of each.
    fn equal_columns(&self, left: &Built, right: &Built) -> Vec<(usize, usize)> {
        let of_class = |class: &Vec<ColumnOf>| {
            let side = |built: &Built| class.iter().find_map(|column| built.position(*column));
            Some((side(left)?, side(right)?))
        };
        self.graph.classes.iter().filter_map(of_class).collect()
    }

    /// Only the columns that the joins above, or whoever reads them, look at.
    fn without_what_nobody_needs(&self, built: Built) -> Result<Built> {
        let is_outside = |relation: usize| built.relations >> relation & 1 == 0;
        let mut kept: Vec<ColumnOf> = Vec::new();
        for class in &self.graph.classes {
            // One of a class stands for all.
            if class.iter().any(|(relation, _)| is_outside(*relation)) {
                kept.extend(class.iter().find(|column| built.position(**column).is_some()));
            }
        }
        let of_others = self.graph.relations.iter().enumerate().filter(|(number, _)| is_outside(*number));
        let of_others = of_others.filter_map(|(_, relation)| relation.leaves_out.as_ref());
        for by in of_others {
            kept.extend(by.on.iter().map(|(column, _)| *column));
            kept.extend(by.filter.iter().flat_map(|filter| filter.columns.iter().copied()));
        }
        let outside = |predicate: &&Predicate| predicate.columns.iter().any(|(relation, _)| is_outside(*relation));
        kept.extend(
            self.graph.predicates.iter().filter(outside).flat_map(|predicate| predicate.columns.iter().copied()),
        );
        kept.extend(self.graph.output.iter().copied());
        let wanted: Vec<usize> = (0..built.columns.len()).filter(|at| kept.contains(&built.columns[*at])).collect();
        if wanted.len() == built.columns.len() {
            return Ok(built);
        }
        let schema = built.plan.schema();
        let expression =
            |at: &usize| ProjectionExpr { expr: column(&built.plan, *at), alias: schema.field(*at).name().clone() };
        let projection =
            ProjectionExec::try_new(wanted.iter().map(expression).collect::<Vec<_>>(), Arc::clone(&built.plan))?;
        let columns = wanted.into_iter().map(|at| built.columns[at]).collect();
        Ok(Built { plan: Arc::new(projection), columns, ..built })
    }
}

impl Built {
    fn position(&self, column: ColumnOf) -> Option<usize> {
        self.columns.iter().position(|own| *own == column)
    }
}

fn column(plan: &Arc<dyn ExecutionPlan>, index: usize) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new(plan.schema().field(index).name(), index))
}

/// Conditions as the one of a join, if there are any. The outer `None` is one whose columns are not there.
fn filter_of<'a>(
    predicates: impl Iterator<Item = &'a Predicate>,
    left: &Built,
    right: &Built,
) -> Result<Option<Option<JoinFilter>>> {
    let (mut condition, mut columns, mut fields) = (None::<Arc<dyn PhysicalExpr>>, Vec::new(), Vec::new());
    for predicate in predicates {
        let first = columns.len();
        for wanted in &predicate.columns {
            let (index, side) = match (left.position(*wanted), right.position(*wanted)) {
                (Some(index), _) => (index, JoinSide::Left),
                (None, Some(index)) => (index, JoinSide::Right),
                (None, None) => return Ok(None),
            };
            columns.push(ColumnIndex { index, side });
        }
        fields.extend(predicate.filter.schema().fields().iter().cloned());
        let moved = Arc::clone(predicate.filter.expression()).transform(|node| {
            Ok(match node.downcast_ref::<Column>() {
                Some(column) => {
                    let moved = Column::new(column.name(), column.index() + first);
                    Transformed::yes(Arc::new(moved) as Arc<dyn PhysicalExpr>)
                }
                None => Transformed::no(node),
            })
        });
        let moved = moved.data()?;
        condition = Some(match condition {
            Some(before) => Arc::new(BinaryExpr::new(before, Operator::And, moved)),
            None => moved,
        });
    }
    Ok(Some(condition.map(|condition| JoinFilter::new(condition, columns, Arc::new(Schema::new(fields))))))
}
