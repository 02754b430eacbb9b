//! The queries of drivers in an executor: planned here, and kept as long as their drivers are connected.

use std::collections::HashMap;
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use datafusion::common::{DataFusionError, Result, plan_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use parking_lot::Mutex;
use tokio::io::AsyncWrite;
use tokio::runtime::Handle;
use tokio::time::timeout;
use uuid::Uuid;

use super::credentials::Credentials;
use super::messages::{BEAT, Begin, Connection, Prepare, Prepared, Reply, See, VERSION, hung_up};
use super::query::Query;
use crate::dataset::DataContext;
use crate::error::one_message;
use crate::physical::{ExecutorStatus, StagePrint, query_context, remote_stages, stage_print};
use crate::runtime::Drivers;
use crate::wire::{read_line, write_line};

/// Those whose drivers are connected, and how they run.
#[derive(Debug)]
pub(super) struct Queries {
    context: DataContext,
    /// Where they are planned, and their tasks run.
    threads: Handle,
    /// What other executors want to see.
    credentials: Credentials,
    held: Mutex<HashMap<String, Arc<Query>>>,
    /// How many units run.
    pub(super) units: AtomicUsize,
    /// Whether what happens to tasks from now on is because the process ends.
    is_closing: AtomicBool,
}

impl Queries {
    /// None yet, in the memory of a session and on these threads; others want to see these.
    pub(super) fn new(context: DataContext, threads: Handle, credentials: Credentials) -> Self {
        let (units, is_closing) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { context, threads, credentials, held: Mutex::default(), units, is_closing }
    }

    /// What other executors want to see.
    pub(super) fn credentials(&self) -> Credentials {
        self.credentials.clone()
    }

    pub(super) fn threads(&self) -> &Handle {
        &self.threads
    }

    pub(super) fn get(&self, number: &str) -> Option<Arc<Query>> {
        self.held.lock().get(number).cloned()
    }

    /// From now on tasks end because the process does.
    pub(super) fn close(&self) {
        self.is_closing.store(true, Relaxed);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Relaxed)
    }

    /// Sees whether tasks can write somewhere.
    pub(super) async fn sees(&self, see: &See) -> Result<()> {
        see.place.try_out(&self.context.session().task_ctx(), see.attempt).await
    }

    /// How the executor is.
    pub(super) fn status(&self) -> ExecutorStatus {
        let store = self.context.store();
        ExecutorStatus {
            version: VERSION.to_owned(),
            threads: self.tasks_at_once(),
            queries: self.held.lock().len(),
            units: self.units.load(Relaxed),
            memory_limit: store.budget().limit(),
            memory_used: store.budget().used(),
            spilled_bytes: store.totals().spilled_bytes(),
        }
    }

    /// Tasks that run at once.
    fn tasks_at_once(&self) -> usize {
        self.context.session().state().config().target_partitions()
    }

    /// Puts one among them, until what comes back drops.
    fn hold_one(&self, query: Query) -> HeldQuery<'_> {
        let name = query.name.clone();
        self.held.lock().insert(name.clone(), Arc::new(query));
        HeldQuery { queries: self, name }
    }

    /// Keeps a query as long as its driver is there, and tells it so often that this process lives.
    pub(super) async fn hold(self: &Arc<Self>, connection: Connection, prepare: Prepare) -> Result<()> {
        let Connection { mut read, mut write } = connection;
        let plans = Arc::clone(self);
        let planned = Drivers::on(&self.threads, async move { Ok(plans.prepare(prepare).await) });
        let (prepared, planned) = tokio::select! {
            planned = living(&mut write, planned) => planned?,
            () = hung_up(&mut read) => return Ok(()),
        };
        write_line(&mut write, &Reply::Prepared(prepared)).await?;
        let mut _held = None;
        if let (Some(planned), Some(Begin {})) = (planned, living(&mut write, read_line(&mut read)).await?) {
            let admitted = Drivers::on(&self.threads, planned.admitted());
            let admitted = tokio::select! {
                admitted = living(&mut write, admitted) => admitted,
                () = hung_up(&mut read) => return Ok(()),
            };
            match admitted {
                Ok(query) => _held = Some(self.hold_one(query)),
                Err(e) => return write_line(&mut write, &Reply::Failed(one_message(&e))).await,
            }
            write_line(&mut write, &Reply::Begun).await?;
        }
        tokio::select! {
            ended = living(&mut write, pending()) => ended,
            () = hung_up(&mut read) => Ok(()),
        }
    }

    /// Plans a query.
    async fn prepare(&self, prepare: Prepare) -> (Prepared, Option<Planned>) {
        let (query, threads) = (Uuid::new_v4().simple().to_string(), self.tasks_at_once());
        let (memory, reach) = (self.context.store().budget().limit(), self.credentials.reach());
        match self.planned(prepare, &query).await {
            Ok((planned, unrepeated)) => {
                let stages = planned.stages.keys().copied().collect();
                (Prepared { query, threads, memory, reach, stages, error: None, unrepeated }, Some(planned))
            }
            Err(e) => {
                let error = Some(one_message(&e));
                (Prepared { query, threads, memory, reach, stages: Vec::new(), error, unrepeated: None }, None)
            }
        }
    }

    /// A query with those of its stages that were asked for, and what went wrong with the definitions before it.
    async fn planned(&self, prepare: Prepare, name: &str) -> Result<(Planned, Option<String>)> {
        let Prepare { settings, definitions, statement, stages } = prepare;
        let context = self.context.forked(&settings)?;
        context.plan_within(self.context.store().budget().limit());
        let mut wrong = None;
        for definition in definitions {
            // What a definition that cannot be repeated has defined may not be needed.
            if let Err(e) = context.defined(&definition).await {
                wrong.get_or_insert_with(|| one_message(&e));
            }
        }
        let Some(statement) = context.parse(&statement)?.pop() else {
            return plan_err!("there is no statement");
        };
        let planned = context.physical_plan_of(statement).await;
        let plan = planned.map_err(|e| match &wrong {
            Some(wrong) => DataFusionError::Plan(format!("{}; before it: {wrong}", one_message(&e))),
            None => e,
        })?;
        let known = remote_stages(&plan).into_iter().map(|stage| (stage_print(&stage), stage));
        let known: HashMap<_, _> = known.filter(|(print, _)| stages.contains(print)).collect();
        let number = context.store().next_query();
        let context = TaskContext::from(&context.session().state());
        Ok((Planned { name: name.to_owned(), stages: known, plan, context, number }, wrong))
    }
}

/// A query that has no memory yet.
struct Planned {
    name: String,
    stages: HashMap<StagePrint, Arc<dyn ExecutionPlan>>,
    plan: Arc<dyn ExecutionPlan>,
    context: TaskContext,
    number: u64,
}

impl Planned {
    /// The query, when others have left it the memory that it needs.
    async fn admitted(self) -> Result<Query> {
        let (context, admission) = query_context(self.context, self.plan.as_ref(), self.number).await?;
        Ok(Query::new(&self.name, self.stages, context, admission))
    }
}

/// What comes of something that takes a while, when whoever waits for it was told as often as it has to hear that this
/// process lives.
async fn living<T>(write: &mut (impl AsyncWrite + Unpin), future: impl Future<Output = Result<T>>) -> Result<T> {
    let mut future = pin!(future);
    loop {
        match timeout(BEAT, &mut future).await {
            Ok(done) => return done,
            Err(_) => write_line(write, &Reply::Alive).await?,
        }
    }
}

/// A query in the list.
struct HeldQuery<'a> {
    queries: &'a Queries,
    name: String,
}

impl Drop for HeldQuery<'_> {
    fn drop(&mut self) {
        self.queries.held.lock().remove(&self.name);
    }
}
