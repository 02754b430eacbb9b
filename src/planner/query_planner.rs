//! The session's planner: DataFusion's, or whatever was there before, with our nodes added.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::{Result, plan_err};
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};

use super::{NodePlanner, node_planners};
use crate::logical::is_ours;

/// Plans queries which use our nodes, and leaves the others to the planner that the application had.
#[derive(Debug)]
pub(crate) struct BlockyardQueryPlanner {
    others: Option<Arc<dyn QueryPlanner + Send + Sync>>,
}

impl BlockyardQueryPlanner {
    /// Wraps the planner of an application.
    pub(crate) fn wrapping(others: Option<Arc<dyn QueryPlanner + Send + Sync>>) -> Self {
        Self { others }
    }
}

#[async_trait]
impl QueryPlanner for BlockyardQueryPlanner {
    async fn create_physical_plan(&self, plan: &LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        if let Some(others) = &self.others
            && !uses_our_nodes(plan)?
        {
            return others.create_physical_plan(plan, session).await;
        }
        let planners: Vec<Arc<dyn ExtensionPlanner + Send + Sync>> =
            node_planners().into_iter().map(|p| Arc::new(Adapter(p)) as _).collect();
        DefaultPhysicalPlanner::with_extension_planners(planners).create_physical_plan(plan, session).await
    }
}

fn uses_our_nodes(plan: &LogicalPlan) -> Result<bool> {
    use datafusion::common::tree_node::TreeNodeRecursion;
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found |= is_ours(node);
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

struct Adapter(Arc<dyn NodePlanner>);

#[async_trait]
impl ExtensionPlanner for Adapter {
    async fn plan_extension(
        &self,
        _planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _logical_inputs: &[&LogicalPlan],
        physical_inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
        _context: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(plan) = self.0.plan(node, physical_inputs, session.config())? else {
            return Ok(None);
        };
        // DataFusion compares names only, and only as many as there are on both sides.
        let (planned, got) = (node.schema(), plan.schema());
        let same = planned.fields().len() == got.fields().len()
            && planned
                .fields()
                .iter()
                .zip(got.fields())
                .all(|(p, g)| p.name() == g.name() && p.data_type() == g.data_type());
        if !same {
            return plan_err!("{} was planned with columns {planned}, but gives {got}", node.name());
        }
        Ok(Some(plan))
    }
}
