//! The session's planner: DataFusion's, or whatever was there before, with our nodes added.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::Schema;
use datafusion::catalog::Session;
use datafusion::common::display::{PlanType, StringifiedPlan};
use datafusion::common::format::ExplainFormat;
use datafusion::common::{DFSchema, DataFusionError, Result, plan_err};
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Explain, LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::explain::ExplainExec;
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::guards::guarded;
use super::unions::check_unions;
use super::{NodePlanner, node_planners};
use crate::boxed::boxed;
use crate::logical::{is_endless, is_ours};
use crate::observability::DiagnoseExec;
use crate::optimizer::expected_rows;
use crate::physical::{IntoPlan, equi_joins};
use crate::sources::pin_tables;

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

impl BlockyardQueryPlanner {
    /// The operators of a plan.
    fn planned<'a>(
        &'a self,
        plan: &'a LogicalPlan,
        session: &'a dyn Session,
    ) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
        async move {
            is_endless(plan)?;
            check_unions(plan)?;
            let pinned = pin_tables(plan)?;
            let plan = pinned.as_ref().unwrap_or(plan);
            if let Some(others) = &self.others
                && !uses_our_nodes(plan)?
            {
                return others.create_physical_plan(plan, session).await;
            }
            let guarded = guarded(plan)?;
            let plan = guarded.as_ref().unwrap_or(plan);
            let planners: Vec<Arc<dyn ExtensionPlanner + Send + Sync>> =
                node_planners().into_iter().map(|p| Arc::new(Adapter(p)) as _).collect();
            let planned =
                DefaultPhysicalPlanner::with_extension_planners(planners).create_physical_plan(plan, session).await?;
            if let Some(explain) = planned.downcast_ref::<ExplainExec>().filter(|explain| !explain.verbose()) {
                fail_as_planned(explain, session.config_options().explain.logical_plan_only)?;
            }
            // DataFusion puts an AnalyzeExec on top after all rules have run.
            if let Some(analyze) = planned.downcast_ref::<AnalyzeExec>() {
                let joins = expected_of_joins(analyze.input());
                return Ok(DiagnoseExec::new(planned, &joins).into_plan());
            }
            match plan {
                LogicalPlan::Explain(explain) if says_expected(explain, session) => {
                    // Where it cannot be planned, a verbose explanation says why.
                    let Ok(explained) = self.create_physical_plan(&explain.plan, session).await else {
                        return Ok(planned);
                    };
                    let joins = expected_of_joins(&explained);
                    Ok(if joins.is_empty() { planned } else { DiagnoseExec::new(planned, &joins).into_plan() })
                }
                _ => Ok(planned),
            }
        }
        .boxed()
    }
}

impl QueryPlanner for BlockyardQueryPlanner {
    boxed! {
        fn create_physical_plan<'b, 'c>(
            &self,
            plan: &'b LogicalPlan,
            session: &'c dyn Session,
        ) -> Result<Arc<dyn ExecutionPlan>> = Self::planned;
    }
}

/// Whether what is explained is a physical plan, for people.
fn says_expected(explain: &Explain, session: &dyn Session) -> bool {
    let for_people = matches!(explain.explain_format, ExplainFormat::Indent | ExplainFormat::Tree);
    for_people && explain.logical_optimization_succeeded && !session.config_options().explain.logical_plan_only
}

/// The joins of a plan, and how many rows each is expected to give.
fn expected_of_joins(plan: &Arc<dyn ExecutionPlan>) -> Vec<(Arc<dyn ExecutionPlan>, Option<usize>)> {
    let joins = equi_joins(plan).into_iter();
    joins.map(|join| (Arc::clone(&join), expected_rows(&join))).collect()
}

/// Fails where the query that is explained does. DataFusion shows the plan before the rule that failed, and of the
/// error nothing, unless the explanation is verbose.
fn fail_as_planned(explain: &ExplainExec, logical_only: bool) -> Result<()> {
    let plans = explain.stringified_plans();
    let ended = |plan: &StringifiedPlan| match plan.plan_type {
        PlanType::FinalPhysicalPlan | PlanType::PhysicalPlanError => true,
        PlanType::FinalLogicalPlan => logical_only,
        _ => false,
    };
    match plans.last() {
        Some(StringifiedPlan { plan_type, plan }) if !plans.iter().any(ended) => {
            Err(DataFusionError::External(plan.to_string().into()).context(plan_type.to_string()))
        }
        _ => Ok(()),
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
        let Some(plan) = self.0.plan(node, physical_inputs, session).await? else {
            return Ok(None);
        };
        check_columns(node.name(), node.schema(), &plan.schema())?;
        Ok(Some(plan))
    }
}

/// An operator must give the columns that its node promised. DataFusion compares names only, and only as many as there
/// are on both sides.
fn check_columns(node: &str, planned: &DFSchema, got: &Schema) -> Result<()> {
    let same = planned.fields().len() == got.fields().len()
        && planned
            .fields()
            .iter()
            .zip(got.fields())
            .all(|(p, g)| p.name() == g.name() && p.data_type() == g.data_type());
    match same {
        true => Ok(()),
        false => plan_err!("{node} was planned with columns {planned}, but gives {got}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::datatypes::{DataType, Field};

    #[test]
    fn other_names_types_or_numbers_of_columns_are_an_error() {
        let of = |fields: &[(&str, DataType)]| {
            Schema::new(fields.iter().map(|(n, t)| Field::new(*n, t.clone(), true)).collect::<Vec<_>>())
        };
        let planned = DFSchema::try_from(of(&[("a", DataType::Int64)])).unwrap();
        check_columns("Map", &planned, &of(&[("a", DataType::Int64)])).unwrap();
        for wrong in [
            of(&[("b", DataType::Int64)]),
            of(&[("a", DataType::Utf8)]),
            of(&[("a", DataType::Int64), ("b", DataType::Int64)]),
            of(&[]),
        ] {
            let error = check_columns("Map", &planned, &wrong).unwrap_err().to_string();
            assert!(error.contains("Map was planned with columns"), "{error}");
        }
    }
}
