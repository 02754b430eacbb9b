//! `PipelineNode` -> `PipelineExec`, and the plans of its windows while it runs.
//!
//! What comes here is optimized. A window is planned from that: what is random gets the seeds of the window, and in the
//! place of the [`WindowNode`] comes its source, with fewer tasks in its read, or the rows of the window as blocks.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result, internal_err};
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::logical_plan::TableScanBuilder;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, TableScan, UserDefinedLogicalNode, lit};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::union::UnionExec;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::NodePlanner;
use crate::functions::WindowSize;
use crate::logical::{Epochs, LABELS, MapNode, PipelineNode, WindowNode, node_of, plan_of_epoch};
use crate::physical::{
    IntoPlan, Pass, PassEpochs, PassSource, PipelineExec, ReadExec, WindowInput, WindowPlans, WindowTasks,
};
use crate::sources::{DatasourceTable, WindowBlocks, WindowedTable};

/// A window in the plan that shows how each window is planned: all rows of the source.
#[derive(Debug)]
pub(super) struct PlanWindows;

#[async_trait]
impl NodePlanner for PlanWindows {
    async fn plan(
        &self,
        node: &dyn UserDefinedLogicalNode,
        inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(window) = node.as_any().downcast_ref::<WindowNode>() else {
            return Ok(None);
        };
        if !window.has_labels() {
            let [input] = inputs else { return UnionExec::try_new(inputs.to_vec()).map(Some) };
            return Ok(Some(Arc::clone(input)));
        }
        planned(session, with_labels(window, window.all_rows()?, (0, 0))?).await.map(Some)
    }
}

#[derive(Debug)]
pub(super) struct PlanPipeline;

#[async_trait]
impl NodePlanner for PlanPipeline {
    async fn plan(
        &self,
        node: &dyn UserDefinedLogicalNode,
        inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let node = node.as_any().downcast_ref::<PipelineNode>();
        let planned = node.map(|node| pipeline(node, Arc::clone(&inputs[0]), session));
        match planned {
            Some(planned) => planned.await.map(Some),
            None => Ok(None),
        }
    }
}

/// The operator of a pipeline.
fn pipeline<'a>(
    node: &'a PipelineNode,
    source: Arc<dyn ExecutionPlan>,
    session: &'a dyn Session,
) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
    async move {
        let window = node.window().clone();
        let epochs = match node.epochs() {
            Epochs::OfSource => PassEpochs::OfSource,
            Epochs::Of { passes, times } => PassEpochs::Of { passes, times },
        };
        let plans = Plans {
            state: state_of(session)?.clone(),
            each_window: node.each_window().clone(),
            readers: node.num_readers()?,
            window,
        };
        let first = plans.begin(0).await?;
        let about = about(node, first.source());
        Ok(PipelineExec::new(source, Arc::new(plans), first, epochs, about).into_plan())
    }
    .boxed()
}

/// How the windows of a pipeline are, and how many there are in a pass where that is known.
fn about(node: &PipelineNode, source: &PassSource) -> String {
    let windows = match source {
        PassSource::Inputs(inputs) => format!("windows={inputs}"),
        PassSource::Tasks(windows) => format!("windows={}", windows.len()),
        PassSource::Rows { size, .. } => format!("windows by {size}"),
    };
    format!("{windows}, {}", node.epochs())
}

fn state_of(session: &dyn Session) -> Result<&SessionState> {
    match session.as_any().downcast_ref::<SessionState>() {
        Some(state) => Ok(state),
        None => internal_err!("a pipeline was planned in a session of another kind"),
    }
}

/// The operators of a plan that is optimized.
fn planned(session: &dyn Session, plan: LogicalPlan) -> BoxFuture<'_, Result<Arc<dyn ExecutionPlan>>> {
    async move {
        let state = state_of(session)?;
        state.query_planner().create_physical_plan(&plan, state).await
    }
    .boxed()
}

/// Plans windows.
#[derive(Debug)]
struct Plans {
    state: SessionState,
    /// The plan of a window, with `readers` times the `window`.
    each_window: LogicalPlan,
    window: WindowNode,
    readers: usize,
}

impl WindowPlans for Plans {
    fn begin(&self, pass: u64) -> BoxFuture<'_, Result<Arc<dyn Pass>>> {
        async move {
            let inputs = self.window.sources().len();
            let mut planner = PassPlanner {
                state: self.state.clone(),
                each_window: self.each_window.clone(),
                window: self.window.clone(),
                readers: self.readers,
                pass,
                table: None,
                source: PassSource::Inputs(inputs),
            };
            let Some(size) = self.window.size() else {
                return Ok(Arc::new(planner) as Arc<dyn Pass>);
            };
            let source = plan_of_epoch(self.window.source(0)?, pass)?;
            if self.readers == 1
                && let Some(table) = table_of_tasks(&source)?
            {
                planner.table = Some(WindowedTable::new(table));
                // It is planned to see which tasks are left behind filters, and of which columns.
                planner.plan(0, (0, 0), WindowInput::Source(0)).await?;
                let windows = planner.table.as_ref().and_then(WindowedTable::read).and_then(|read| windows(read, size));
                if let Some(windows) = windows {
                    planner.source = PassSource::Tasks(windows);
                    return Ok(Arc::new(planner) as Arc<dyn Pass>);
                }
                planner.table = None;
            }
            // A window that no plan reads was not optimized with it.
            let plan = match self.readers {
                0 => self.state.create_physical_plan(&source).await?,
                _ => planned(&self.state, source).await?,
            };
            planner.source = PassSource::Rows { plan, size, keeps_epochs: self.window.keeps_epochs() };
            Ok(Arc::new(planner) as Arc<dyn Pass>)
        }
        .boxed()
    }
}

/// The table of a plan whose rows are those of the tasks of its read, one after the other: each on its own is the same
/// with fewer tasks.
fn table_of_tasks(plan: &LogicalPlan) -> Result<Option<Arc<dyn datafusion::catalog::TableProvider>>> {
    match plan {
        LogicalPlan::TableScan(scan) if scan.fetch.is_none() => source_as_provider(&scan.source).map(Some),
        LogicalPlan::Projection(_) | LogicalPlan::Filter(_) | LogicalPlan::SubqueryAlias(_) => {
            table_of_tasks(plan.inputs()[0])
        }
        plan if node_of::<MapNode>(plan).is_some_and(|map| map.is_row_by_row()) => table_of_tasks(plan.inputs()[0]),
        _ => Ok(None),
    }
}

/// Windows of the tasks of a read. `None` where nothing is known of their bytes and that is asked for.
fn windows(read: &ReadExec, size: WindowSize) -> Option<Vec<WindowTasks>> {
    let bytes = Some(read.rows_bytes()).filter(|bytes| bytes.len() == read.num_tasks());
    let bytes_of = |tasks: &Range<usize>| bytes.map(|bytes| bytes[tasks.clone()].iter().sum());
    let mut windows: Vec<WindowTasks> = Vec::new();
    for task in 0..read.num_tasks() {
        let has_room = match (windows.last(), size) {
            (None, _) => false,
            (Some(last), WindowSize::Blocks(blocks)) => last.tasks.len() < blocks,
            (Some(last), WindowSize::Bytes(bytes)) => bytes_of(&(last.tasks.start..task + 1))? <= bytes,
            (Some(_), WindowSize::Rows(_)) => return None,
        };
        let first = windows.last().filter(|_| has_room).map_or(task, |last| last.tasks.start);
        if has_room {
            windows.pop();
        }
        let tasks = first..task + 1;
        windows.push(WindowTasks { bytes: bytes_of(&tasks), tasks });
    }
    Some(windows).filter(|_| !matches!(size, WindowSize::Rows(_)))
}

/// Plans the windows of a pass.
#[derive(Debug)]
struct PassPlanner {
    state: SessionState,
    each_window: LogicalPlan,
    window: WindowNode,
    readers: usize,
    pass: u64,
    /// The table that the source reads, where windows are tasks of it.
    table: Option<WindowedTable>,
    source: PassSource,
}

impl PassPlanner {
    /// What comes in the place of the window.
    fn rows(&self, input: &WindowInput) -> Result<LogicalPlan> {
        let blocks = match input {
            WindowInput::Blocks(blocks) => blocks.clone(),
            WindowInput::Source(number) => return self.of_tasks(*number, None),
            WindowInput::Tasks(tasks) => return self.of_tasks(0, Some(tasks.clone())),
        };
        let source = self.window.source(0)?;
        let schema = source.schema();
        let blocks = WindowBlocks::new(Arc::new(schema.as_arrow().clone()), blocks, self.readers == 1);
        let table = DatasourceTable::new(Arc::new(blocks), None);
        let mut scan = TableScanBuilder::new("window", provider_as_source(Arc::new(table))).build()?;
        // The same names of the same relations as before.
        scan.projected_schema = Arc::clone(schema);
        Ok(LogicalPlan::TableScan(scan))
    }

    /// The rows of a source, or of some of its tasks.
    fn of_tasks(&self, source: usize, tasks: Option<Range<usize>>) -> Result<LogicalPlan> {
        let source = plan_of_epoch(self.window.source(source)?, self.pass)?;
        let Some(table) = &self.table else { return Ok(source) };
        let table = tasks.map_or_else(|| table.clone(), |tasks| table.of_tasks(tasks));
        let table = provider_as_source(Arc::new(table));
        let replaced = source.transform_down(|node| match node {
            LogicalPlan::TableScan(scan) => {
                Ok(Transformed::yes(LogicalPlan::TableScan(TableScan { source: Arc::clone(&table), ..scan })))
            }
            node => Ok(Transformed::no(node)),
        });
        replaced.data()
    }
}

impl Pass for PassPlanner {
    fn source(&self) -> &PassSource {
        &self.source
    }

    fn plans_hold_blocks(&self) -> bool {
        self.readers > 1
    }

    fn plan(
        &self,
        number: u64,
        label: (u32, u32),
        input: WindowInput,
    ) -> BoxFuture<'_, Result<Arc<dyn ExecutionPlan>>> {
        async move {
            let rows = self.rows(&input)?;
            // Other seeds for each window of each pass. In the first window of the first pass they are those of the
            // plan.
            let plan = plan_of_epoch(self.each_window.clone(), self.pass << 32 | number)?;
            let plan = plan.transform_down_with_subqueries(|node| {
                if node_of::<PipelineNode>(&node).is_some() {
                    return Ok(Transformed::new(node, false, TreeNodeRecursion::Jump));
                }
                Ok(match node_of::<WindowNode>(&node) {
                    Some(window) => {
                        let rows =
                            if window.has_labels() { with_labels(window, rows.clone(), label)? } else { rows.clone() };
                        Transformed::new(rows, true, TreeNodeRecursion::Jump)
                    }
                    None => Transformed::no(node),
                })
            });
            planned(&self.state, plan.data()?).await
        }
        .boxed()
    }
}

/// Rows with the columns that say of which epoch and window they are.
fn with_labels(window: &WindowNode, rows: LogicalPlan, (epoch, number): (u32, u32)) -> Result<LogicalPlan> {
    let columns = rows.schema().iter().map(|(owner, field)| Expr::Column(Column::from((owner, field))));
    let labels = LABELS.iter().zip([epoch, number]).map(|(label, n)| lit(i64::from(n)).alias(*label));
    let columns = columns.chain(labels).collect();
    let schema = datafusion::logical_expr::UserDefinedLogicalNodeCore::schema(window);
    Ok(LogicalPlan::Projection(Projection::try_new_with_schema(columns, Arc::new(rows), Arc::clone(schema))?))
}
