//! One execution of a stage that ends in an out queue.
//!
//! ```text
//! tasks, in order ──> dispatcher ── asks the scheduler ──> workers ── blocks ──> out queue ──> consumers
//! ```
//!
//! The dispatcher (`dispatch.rs`) takes one task after the other, and starts it when the scheduler says so. Workers and
//! consumers meet in the stage (`stage.rs`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;

use super::dispatch::{Dispatcher, TaskWorkers};
use super::spec::spec_of;
use super::stage::{QueueLimit, Stage};
use crate::config::BlockyardOptions;
use crate::physical::operator::TaskPlan;
use crate::physical::tasks::{RowBalance, StageMetrics, Task, all_tasks, as_task_plan, is_ordered};
use crate::runtime::{Drivers, OpId, Scheduler};
use crate::store::{Owner, QueryPool};

/// How often a consumer that waits looks whether anything can still happen.
const LOOK: Duration = Duration::from_secs(2);

/// A running stage. Dropping it cancels the stage.
pub(super) struct StageRun {
    stage: Arc<Stage>,
    scheduler: Arc<Scheduler>,
    query: u64,
    /// How long nothing may happen in the query.
    no_progress: Option<Duration>,
    metrics: Option<StageMetrics>,
    _drivers: Drivers<()>,
}

impl fmt::Debug for StageRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StageRun({:?})", self.stage.op.id())
    }
}

/// Who takes the blocks of a stage.
pub(super) struct Takers {
    /// The operator that does, if it is one that the scheduler knows.
    pub(super) consumer: Option<OpId>,
    /// Whether all blocks are wanted before anything is given.
    pub(super) feeds_all_to_all: bool,
    /// What is known of a limit above.
    pub(super) limit: Option<QueueLimit>,
}

impl StageRun {
    /// Starts the stage `plan`, whose blocks `owner` keeps.
    pub(super) fn start(
        plan: &Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
        owner: Arc<Owner>,
        takers: Takers,
    ) -> Result<Self> {
        let scheduler = Scheduler::of_task(context)?;
        let stage = as_task_plan(plan.as_ref());
        let compute = stage.and_then(TaskPlan::compute).cloned().unwrap_or_default();
        let options = BlockyardOptions::from_task(context);
        let feeds = (takers.consumer, takers.feeds_all_to_all);
        let spec = spec_of(plan, &compute, &options, feeds, scheduler.total());
        let balance = RowBalance::new(format!("the queue behind {}", spec.name), context);
        let query = QueryPool::query_of(context);
        let op = scheduler.add(query, &scheduler.limits_of_query(&options), spec)?;
        let ordered = is_ordered(plan.as_ref()) && options.preserve_order;
        let tasks = all_tasks(plan, Arc::clone(context), Some(op.id()))?;
        let stage = Stage::new(op, plan.schema(), owner, (ordered, takers.limit), balance, context)?;
        let stage = Arc::new(stage);
        let running = Arc::clone(&stage);
        let workers = TaskWorkers::new(plan, &compute, &options);
        let driver = async move {
            running.end(Dispatcher::new(Arc::clone(&running), tasks, workers).run().await);
            Ok(())
        };
        let seconds = options.execution_no_progress_timeout_s as u64;
        let no_progress = (seconds > 0).then(|| Duration::from_secs(seconds));
        let metrics = as_task_plan(plan.as_ref()).map(|plan| plan.stage().clone());
        Ok(Self { stage, scheduler, query, no_progress, metrics, _drivers: Drivers::start([driver]) })
    }

    /// Rows that came into the queue, and those that went out.
    pub(super) fn balance(&self) -> &Arc<RowBalance> {
        self.stage.balance()
    }

    /// The next block as a task; `None` when there is none any more.
    pub(super) async fn next(&self) -> Result<Option<Task>> {
        let look = self.no_progress.map_or(LOOK, |within| within.min(LOOK));
        self.stage.next(look, |quiet| self.scheduler.check_progress(self.query, quiet, self.no_progress)).await
    }
}

impl Drop for StageRun {
    fn drop(&mut self) {
        if let (Some(metrics), Some(status)) = (&self.metrics, self.stage.op.status()) {
            metrics.scheduled(status);
        }
        self.stage.cancel();
    }
}
