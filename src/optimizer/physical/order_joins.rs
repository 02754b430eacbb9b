//! Inner joins of several tables, and the semi and anti joins above them, in an order that is expected to be much less
//! work. DataFusion joins in the order of the text.
//!
//! How many rows a join gives is estimated from what is known of its inputs: their rows, and how many values a key can
//! have at the most, by the least and the greatest one that footers say. The order is the best of all where there are
//! up to ten tables, by dynamic programming over sets of them; with more, the two that give the fewest rows are joined
//! first. It stays as it was unless it is expected to be at least twice as much work as the best; then only the sides
//! are changed of which tables are built, where that is half the work.
//!
//! ```text
//! HashJoinExec: on=[(item, item)]                    ProjectionExec: the columns as they were
//!   HashJoinExec: on=[(item, item)]            ->      HashJoinExec: on=[(item, item)]
//!     ReadExec: sales                                    ReadExec: inventory
//!     ReadExec: inventory                                HashJoinExec: on=[(item, item)]
//!   FilterExec: few items                                  FilterExec: few items
//!                                                          ReadExec: sales
//! ```
//!
//! Correct because inner joins may be done in any order as long as all of their conditions are kept: columns that are
//! equal by one condition or several are a class, of which each join compares what is on both of its sides. A semi or
//! anti join only leaves out rows of what is on its left, so it may come as soon as all columns are there that it looks
//! at. Rows of a join have no order that anybody may rely on.
//!
//! It changes nothing where a condition is volatile or more than columns that are equal, where the number of rows of an
//! input is not known, where tables would be multiplied with each other, or where `optimize_join_order` is off. Outer
//! joins stay, and are inputs.

mod build;
mod graph;
mod search;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::config::BlockyardOptions;

/// By what part the work has to become less. Estimates are rough.
const WORTH_IT: f64 = 0.8;

#[derive(Debug)]
pub(super) struct OrderJoins;

impl PhysicalOptimizerRule for OrderJoins {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if !BlockyardOptions::from_config(config).optimize_join_order {
            return Ok(plan);
        }
        // From the top: of joins above each other all are ordered at once, and then those in their inputs.
        plan.transform_down(|node| {
            Ok(match ordered(&node)? {
                Some(Ordered { plan, inputs }) => {
                    // Its joins are in order. What they read is looked at by itself.
                    let inputs: Vec<_> = inputs
                        .into_iter()
                        .map(|input| Ok((Arc::clone(&input), self.optimize(input, config)?)))
                        .collect::<Result<_>>()?;
                    Transformed::new(with_inputs(plan, &inputs)?, true, TreeNodeRecursion::Jump)
                }
                None => Transformed::no(node),
            })
        })
        .data()
    }

    fn name(&self) -> &str {
        "order_joins"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// An input of joins, and the same with its own joins in order.
type BeforeAndAfter = (Arc<dyn ExecutionPlan>, Arc<dyn ExecutionPlan>);

/// Joins in order, and what they join.
struct Ordered {
    plan: Arc<dyn ExecutionPlan>,
    inputs: Vec<Arc<dyn ExecutionPlan>>,
}

fn ordered(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Ordered>> {
    let Some(graph) = graph::JoinGraph::of(node) else { return Ok(None) };
    let costs = search::Costs::of(&graph);
    let Some(best) = costs.best() else { return Ok(None) };
    let (written, as_written) = (costs.of_tree(&graph.written), costs.as_written(&graph.written));
    let order = match costs.of_tree(&best) <= WORTH_IT * written {
        true => &best,
        // The order is good; the tables may be built of the wrong sides.
        false if written <= WORTH_IT * as_written => &graph.written,
        false => return Ok(None),
    };
    let plan = build::plan_of(&graph, order, &costs, &node.schema())?;
    let inputs = graph.relations.into_iter().map(|relation| relation.plan).collect();
    Ok(plan.map(|plan| Ordered { plan, inputs }))
}

/// The same joins over inputs that have been looked at.
fn with_inputs(plan: Arc<dyn ExecutionPlan>, inputs: &[BeforeAndAfter]) -> Result<Arc<dyn ExecutionPlan>> {
    let replaced = plan.transform_down(|node| match inputs.iter().find(|(before, _)| Arc::ptr_eq(before, &node)) {
        Some((_, after)) => Ok(Transformed::new(Arc::clone(after), true, TreeNodeRecursion::Jump)),
        None => Ok(Transformed::no(node)),
    });
    replaced.data()
}
