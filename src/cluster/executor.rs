//! [`ExecutorServer`]: plans the statements of drivers, and runs stages of them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result, exec_err, plan_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use uuid::Uuid;

use super::messages::{
    CALL_BYTES, Call, Connection, ExecutorStatus, Hello, PROTOCOL, Prepare, Prepared, Reply, Run, VERSION,
};
use crate::block::compact_views;
use crate::dataset::DataContext;
use crate::error::one_message;
use crate::physical::{StagePrint, of_tasks, query_context, remote_stages, stage_print, stream_of};
use crate::runtime::{Drivers, in_background};
use crate::store::Admission;
use crate::wire::{Address, BatchWriter, Duplex, Listener, read_line, read_line_within, write_line};

/// How long a connection may take to say what it is for.
const GREETING: Duration = Duration::from_secs(10);
/// How long a driver may take to hang up when it was told all.
const FAREWELL: Duration = Duration::from_secs(10);

/// Where and for whom an executor works.
#[derive(Debug, Clone, Default)]
pub struct ExecutorOptions {
    /// `unix:PATH`, a socket that nobody else may open, or `tcp:IP:PORT`, where port 0 takes a free one.
    pub listen: String,
    /// What drivers have to show. Needed for `tcp:`.
    pub token: Option<String>,
    /// Whether drivers on other machines may connect. What is said is not encrypted.
    pub insecure: bool,
}

/// Runs stages of queries of other processes. Dropping it ends all of them.
#[derive(Debug)]
pub struct ExecutorServer {
    address: Address,
    _accepts: Drivers<()>,
}

impl ExecutorServer {
    /// Takes the stages of drivers, in the memory of a session and with its functions.
    ///
    /// # Errors
    ///
    /// Where the address is none or taken, nothing says who may connect, or connections of other machines are not
    /// allowed.
    pub async fn bind(context: &DataContext, options: ExecutorOptions) -> Result<Self> {
        let ExecutorOptions { listen, token, insecure } = options;
        let address: Address = listen.parse()?;
        if address.needs_key() && token.as_ref().is_none_or(String::is_empty) {
            return plan_err!(
                "an executor at {address} needs a token, without which anybody could read files as it can"
            );
        }
        if !address.is_of_this_machine() && !insecure {
            return plan_err!(
                "{address} can be reached from other machines, and what is said there is not encrypted; say that it may \
                 be insecure, or listen at 127.0.0.1"
            );
        }
        let (listener, address) = address.listen().await?;
        let token = token.filter(|_| address.needs_key());
        let (queries, units) = (Mutex::default(), AtomicUsize::new(0));
        let executor = Arc::new(Executor { context: context.clone(), token, queries, units });
        Ok(Self { address, _accepts: Drivers::start([accept(listener, executor)]) })
    }

    /// Where drivers connect: with the port, where a free one was asked for.
    pub fn address(&self) -> String {
        self.address.to_string()
    }
}

/// What the connections of an executor share.
struct Executor {
    context: DataContext,
    token: Option<String>,
    /// The queries of drivers that are connected.
    queries: Mutex<HashMap<String, Arc<Query>>>,
    /// How many units run.
    units: AtomicUsize,
}

/// A query that was planned here.
struct Query {
    stages: HashMap<StagePrint, Arc<dyn ExecutionPlan>>,
    context: Arc<TaskContext>,
    /// The memory that it was promised.
    _admission: Admission,
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("queries", &self.queries.lock().len()).finish_non_exhaustive()
    }
}

/// Takes connections, each in a driver of its own.
async fn accept(listener: Listener, executor: Arc<Executor>) -> Result<()> {
    let mut open = Drivers::<()>::start(std::iter::empty::<std::future::Ready<Result<()>>>());
    loop {
        tokio::select! {
            // A connection that cannot be taken, or breaks, is the driver's to notice.
            stream = listener.accept() => if let Ok(stream) = stream {
                open.spawn(Arc::clone(&executor).serve(stream));
            },
            Some(_ended) = open.next() => {}
        }
    }
}

impl Executor {
    async fn serve(self: Arc<Self>, stream: Box<dyn Duplex>) -> Result<()> {
        let mut connection = Connection::of(stream);
        let greeted = tokio::time::timeout(GREETING, self.greeted(&mut connection)).await;
        let call = match greeted {
            Err(_) | Ok(Ok(None)) => return Ok(()),
            Ok(Ok(Some(call))) => call,
            Ok(Err(e)) => return connection.refuse(&e).await,
        };
        match call {
            Call::Prepare(prepare) => self.hold(connection, prepare).await,
            Call::Status => connection.say_last(&Reply::Status(self.status())).await,
            Call::Run(run) => self.run(connection, run).await,
        }
    }

    /// What a connection is for, if it may be.
    async fn greeted(&self, connection: &mut Connection) -> Result<Option<Call>> {
        let Some(hello) = read_line::<Hello>(&mut connection.read).await? else { return Ok(None) };
        if hello.protocol != PROTOCOL || hello.version != VERSION {
            return exec_err!("it is of version {VERSION}, and the driver of {}", hello.version);
        }
        if self.token.as_ref().is_some_and(|token| !is_same(token, hello.token.as_deref().unwrap_or_default())) {
            return exec_err!("the token is not the one that it was started with; see blockyard.cluster_token_file");
        }
        read_line_within(&mut connection.read, CALL_BYTES).await
    }

    /// How it is.
    fn status(&self) -> ExecutorStatus {
        let store = self.context.store();
        ExecutorStatus {
            version: VERSION.to_owned(),
            threads: self.threads(),
            queries: self.queries.lock().len(),
            units: self.units.load(Relaxed),
            memory_limit: store.budget().limit(),
            memory_used: store.budget().used(),
            spilled_bytes: store.totals().spilled_bytes(),
        }
    }

    /// Keeps a query as long as its driver is there.
    async fn hold(&self, mut connection: Connection, prepare: Prepare) -> Result<()> {
        let prepared = tokio::select! {
            prepared = self.prepare(prepare) => prepared,
            () = hung_up(&mut connection.read) => return Ok(()),
        };
        let (prepared, query) = prepared;
        let _kept = query.map(|query| Kept::of(self, &prepared.query, query));
        write_line(&mut connection.write, &Reply::Prepared(prepared)).await?;
        hung_up(&mut connection.read).await;
        Ok(())
    }

    /// Plans a query.
    async fn prepare(&self, prepare: Prepare) -> (Prepared, Option<Query>) {
        let (query, threads) = (Uuid::new_v4().simple().to_string(), self.threads());
        match self.planned(prepare).await {
            Ok((planned, mut error)) => {
                let mut stages: Vec<_> = planned.stages.keys().copied().collect();
                if !stages.is_empty() {
                    error = None;
                }
                stages.sort_by_key(|print| format!("{print:?}"));
                (Prepared { query, threads, stages, error }, Some(planned))
            }
            Err(e) => (Prepared { query, threads, stages: Vec::new(), error: Some(one_message(&e)) }, None),
        }
    }

    /// A query with those of its stages that were asked for, and what went wrong with the definitions before it.
    async fn planned(&self, prepare: Prepare) -> Result<(Query, Option<String>)> {
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
        let state = context.session().state();
        let (context, admission) = query_context(TaskContext::from(&state), plan.as_ref(), number).await?;
        Ok((Query { stages: known, context, _admission: admission }, wrong))
    }

    /// Tasks that run at once.
    fn threads(&self) -> usize {
        self.context.session().state().config().target_partitions()
    }

    /// Sends the rows of tasks.
    async fn run(&self, mut connection: Connection, run: Run) -> Result<()> {
        let query = self.queries.lock().get(&run.query).cloned();
        let Some(query) = query else {
            return connection.refuse(&DataFusionError::Execution("the query has ended".to_owned())).await;
        };
        let Some(stage) = query.stages.get(&run.stage) else {
            return connection.refuse(&DataFusionError::Execution("the query has no such stage".to_owned())).await;
        };
        let schema = stage.schema();
        let _running = Running::begin(&self.units);
        let rows = of_tasks(Arc::clone(stage), run.tasks.0..run.tasks.1).map(|stage| rows_of(stage, &query.context));
        let mut writer = BatchWriter::default();
        let sent = match rows {
            Ok(rows) => tokio::select! {
                sent = connection_sent(&mut connection.write, in_background(rows), &mut writer, run.skip) => sent,
                () = hung_up(&mut connection.read) => return Ok(()),
            },
            Err(e) => Err(e),
        };
        let end = writer.end(&schema)?;
        connection.write.write_all(&end).await?;
        let reply = match sent {
            Ok(rows) => Reply::Done { rows },
            Err(e) => Reply::Failed(one_message(&e)),
        };
        connection.say_last(&reply).await
    }
}

/// A unit that runs.
struct Running<'a>(&'a AtomicUsize);

impl<'a> Running<'a> {
    fn begin(units: &'a AtomicUsize) -> Self {
        units.fetch_add(1, Relaxed);
        Self(units)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Whether two tokens are the same, in a time that does not tell how much of them is.
fn is_same(one: &str, other: &str) -> bool {
    let differences = one.bytes().zip(other.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && differences == 0
}

/// A query in the list, until its driver has gone.
struct Kept<'a> {
    executor: &'a Executor,
    number: String,
}

impl<'a> Kept<'a> {
    fn of(executor: &'a Executor, number: &str, query: Query) -> Self {
        executor.queries.lock().insert(number.to_owned(), Arc::new(query));
        Self { executor, number: number.to_owned() }
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.executor.queries.lock().remove(&self.number);
    }
}

impl Connection {
    async fn refuse(self, why: &DataFusionError) -> Result<()> {
        self.say_last(&Reply::Refused(one_message(why))).await
    }

    /// Says a line, and waits until the other side has hung up: a connection that is closed with lines that nobody has
    /// read is reset, and takes what was written with it.
    async fn say_last(mut self, reply: &Reply) -> Result<()> {
        write_line(&mut self.write, reply).await?;
        let _in_time = tokio::time::timeout(FAREWELL, hung_up(&mut self.read)).await;
        Ok(())
    }
}

/// Waits until the other side has hung up.
async fn hung_up(read: &mut (impl AsyncRead + Unpin)) {
    let mut some = [0; 256];
    while matches!(read.read(&mut some).await, Ok(bytes) if bytes > 0) {}
}

/// All rows of a plan, partition by partition.
fn rows_of(plan: Arc<dyn ExecutionPlan>, context: &Arc<TaskContext>) -> SendableRecordBatchStream {
    let (schema, context) = (plan.schema(), Arc::clone(context));
    let partitions = 0..plan.output_partitioning().partition_count();
    let rows = stream::iter(partitions).map(move |partition| plan.execute(partition, Arc::clone(&context)));
    stream_of(schema, rows.try_flatten().boxed())
}

/// Writes the rows behind the first `skip`; returns how many there are with these.
async fn connection_sent(
    to: &mut (impl AsyncWriteExt + Unpin),
    mut rows: SendableRecordBatchStream,
    writer: &mut BatchWriter,
    skip: u64,
) -> Result<u64> {
    let mut seen = 0;
    while let Some(batch) = rows.try_next().await? {
        let before = skip.saturating_sub(seen).min(batch.num_rows() as u64) as usize;
        seen += batch.num_rows() as u64;
        let left: RecordBatch = batch.slice(before, batch.num_rows() - before);
        if left.num_rows() > 0 {
            to.write_all(&writer.bytes_of(&compact_views(&left)?)?).await?;
        }
    }
    Ok(seen)
}
