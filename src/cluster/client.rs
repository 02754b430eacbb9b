//! [`ClusterClient`]: asks executors which stages of a query they can run.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use datafusion::common::{Result, exec_datafusion_err, exec_err, plan_datafusion_err, plan_err};
use datafusion::prelude::SessionConfig;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::credentials::Credentials;
use super::executors::Executor;
use super::messages::{Begin, CALL_BYTES, Call, Connection, Prepare, Prepared, Reply, SOON};
use super::runner::Runner;
use crate::config::{BlockyardOptions, ByteSize, MemoryLimit};
use crate::dataset::{DataContext, Replay};
use crate::error::one_message;
use crate::physical::{Assigned, ExecutorStatus, Executors, StagePrint, StageRunner, Statuses};
use crate::runtime::Drivers;
use crate::wire::{Address, write_line};

/// For how long it is believed what an executor has said of its memory. One that is smaller now plans otherwise, and so
/// does not run what does not fit it.
const KNOWN_FOR: Duration = Duration::from_secs(30);

/// Options that are of one process, or that executors need not know.
const OWN_OPTIONS: &[&str] = &[
    "blockyard.cluster_insecure",
    "blockyard.cluster_tls_ca",
    "blockyard.cluster_token_file",
    "blockyard.spill_compression",
    "blockyard.spill_directory",
    "blockyard.spill_quota",
];

/// Finds out which executors can run the stages of a query, by asking them.
#[derive(Debug, Default)]
pub(crate) struct ClusterClient {
    /// The memory of executors by their addresses, and when they were asked.
    memory: Mutex<HashMap<String, (Instant, Option<usize>)>>,
}

impl ClusterClient {
    /// The memory of an executor, if it can be reached; as it was said not long ago.
    async fn memory_of(&self, address: &Address, credentials: &Credentials) -> Option<usize> {
        let (key, now) = (address.to_string(), Instant::now());
        let known = self.memory.lock().get(&key).copied();
        if let Some((_, memory)) = known.filter(|(asked, _)| now.duration_since(*asked) < KNOWN_FOR) {
            return memory;
        }
        let memory = status(address, credentials).await.ok().map(|status| status.memory_limit);
        self.memory.lock().insert(key, (now, memory));
        memory
    }
}

impl Executors for ClusterClient {
    fn least_memory<'a>(&'a self, config: &'a SessionConfig) -> BoxFuture<'a, Result<Option<usize>>> {
        async move {
            let options = BlockyardOptions::from_config(config.options());
            let (addresses, credentials) = (addresses(&options.cluster)?, Credentials::of(&options).await?);
            let asked = addresses.iter().map(|address| self.memory_of(address, &credentials));
            Ok(join_all(asked).await.into_iter().flatten().min())
        }
        .boxed()
    }

    fn statuses<'a>(&'a self, config: &'a SessionConfig) -> BoxFuture<'a, Result<Statuses>> {
        async move {
            let options = BlockyardOptions::from_config(config.options());
            let addresses = addresses(&options.cluster)?;
            if addresses.is_empty() {
                return Ok(Vec::new());
            }
            let credentials = Credentials::of(&options).await?;
            let statuses = join_all(addresses.iter().map(|address| status(address, &credentials))).await;
            Ok(addresses.iter().map(ToString::to_string).zip(statuses).collect())
        }
        .boxed()
    }

    fn assign<'a>(&'a self, config: &'a SessionConfig, prints: &'a [StagePrint]) -> BoxFuture<'a, Result<Assigned>> {
        async move {
            let Some(replay) = config.get_extension::<Replay>() else {
                return Ok(Assigned::nowhere(prints, "it is not of a statement, which executors could plan"));
            };
            let options = BlockyardOptions::from_config(config.options());
            let (addresses, credentials) = (addresses(&options.cluster)?, Credentials::of(&options).await?);
            let call = Call::Prepare(Prepare {
                settings: settings(config, &options),
                definitions: replay.definitions(),
                statement: replay.statement.clone(),
                stages: prints.to_vec(),
            });
            if let Some(why) = is_too_long(&call)? {
                return Ok(Assigned::nowhere(prints, &why));
            }
            let asked = addresses.iter().map(|address| prepare(address, &credentials, &call));
            let mut answers = Vec::new();
            for (address, answer) in addresses.iter().zip(join_all(asked).await) {
                answers.push((address, answer?));
            }
            answers.sort_by_cached_key(|(address, _)| address.to_string());
            for (_, answer) in &mut answers {
                begin(answer).await;
            }
            assigned(prints, answers, credentials)
        }
        .boxed()
    }
}

/// How the executors of a session are: each by its address, with what it says or why it says nothing.
///
/// # Errors
///
/// Where `blockyard.cluster` has no addresses, or the file of the token cannot be read.
pub async fn executor_statuses(context: &DataContext) -> Result<Vec<(String, Result<ExecutorStatus>)>> {
    let statuses = crate::physical::executor_statuses(context.session().state().config()).await?;
    if statuses.is_empty() {
        return plan_err!("there are no executors; blockyard.cluster says where they are");
    }
    Ok(statuses)
}

/// How an executor is.
async fn status(address: &Address, credentials: &Credentials) -> Result<ExecutorStatus> {
    let mut connection = Connection::call(address, credentials, &Call::Status).await?;
    let reply = timeout(SOON, connection.reply()).await;
    match reply.map_err(|_| exec_datafusion_err!("{address} does not answer"))?? {
        Reply::Status(status) => Ok(status),
        Reply::Refused(why) | Reply::Failed(why) => exec_err!("{why}"),
        _ => exec_err!("it is no executor"),
    }
}

/// How an executor has planned a query, with the connection that keeps it; or why it cannot be reached.
type Answer = std::result::Result<(Connection, Prepared), String>;

/// What an executor answers, or why it cannot be reached. Fails where it refuses to be asked.
async fn prepare(address: &Address, credentials: &Credentials, call: &Call) -> Result<Answer> {
    let asked = async {
        let mut connection = Connection::call(address, credentials, call).await?;
        loop {
            match connection.reply_of_living().await? {
                Reply::Alive => {}
                reply => return Ok((connection, reply)),
            }
        }
    };
    match asked.await {
        Ok((connection, Reply::Prepared(prepared))) => Ok(Ok((connection, prepared))),
        Ok((_, Reply::Refused(why))) => exec_err!("the executor at {address} refuses: {why}"),
        Ok((_, Reply::Failed(why))) => Ok(Err(why)),
        Ok(_) => exec_err!("{address} is no executor"),
        Err(e) => Ok(Err(one_message(&e))),
    }
}

/// Asks an executor to begin a query, if it has planned any of it.
async fn begin(answer: &mut Answer) {
    let Ok((connection, prepared)) = answer else { return };
    if prepared.stages.is_empty() {
        return;
    }
    let asked = async {
        write_line(&mut connection.write, &Begin {}).await?;
        loop {
            match connection.reply_of_living().await? {
                Reply::Alive => {}
                Reply::Begun => return Ok(()),
                Reply::Failed(why) => return exec_err!("{why}"),
                _ => return exec_err!("it is no executor"),
            }
        }
    };
    if let Err(e) = asked.await {
        *answer = Err(one_message(&e));
    }
}

/// Who runs which stage.
fn assigned(prints: &[StagePrint], answers: Vec<(&Address, Answer)>, credentials: Credentials) -> Result<Assigned> {
    let (mut leases, mut executors, mut unreachable) = (Drivers::none(), Vec::new(), Vec::new());
    let all = answers.len();
    for (address, answer) in answers {
        match answer {
            Ok((connection, prepared)) => {
                let executor = Arc::new(Executor::new(address.clone(), credentials.clone(), &prepared));
                leases.spawn(watch(connection, Arc::clone(&executor)));
                executors.push((executor, prepared));
            }
            Err(why) => unreachable.push(format!("{address}: {why}")),
        }
    }
    if executors.is_empty() {
        return exec_err!("none of {all} executors takes the query; {}", unreachable.join("; "));
    }
    let next = Arc::<AtomicU64>::default();
    let stages = prints.iter().map(|print| {
        let knows = |(_, prepared): &&(Arc<Executor>, Prepared)| prepared.stages.contains(print);
        let able: Vec<_> = executors.iter().filter(knows).map(|(executor, _)| Arc::clone(executor)).collect();
        if able.is_empty() {
            return Err(reason(&executors));
        }
        let unreachable = unreachable.iter().map(|why| format!("an executor could not be reached, {why}"));
        let others = executors.iter().filter(|executor| !knows(executor)).map(why_not).chain(unreachable).collect();
        Ok(Arc::new(Runner::new(*print, able, others, Arc::clone(&next))) as Arc<dyn StageRunner>)
    });
    let stages = stages.collect();
    // As long as their connections are open, the executors keep the query.
    Ok(Assigned { stages, held: Arc::new(leases) })
}

/// Listens whether an executor lives, as long as the query does.
async fn watch(mut connection: Connection, executor: Arc<Executor>) -> Result<()> {
    loop {
        match connection.reply_of_living().await {
            Ok(Reply::Alive) => {}
            Ok(_) => executor.lose(&exec_datafusion_err!("it has said what makes no sense")),
            Err(e) => executor.lose(&e),
        }
        if executor.is_lost() {
            return Ok(());
        }
    }
}

/// Why one executor does not know a stage that others know.
fn why_not((executor, prepared): &(Arc<Executor>, Prepared)) -> String {
    let address = executor.address();
    match (&prepared.error, &prepared.unrepeated) {
        (Some(error), _) => format!("{address} cannot plan the statement: {error}"),
        (None, Some(error)) => format!("{address} could not repeat a definition: {error}"),
        (None, None) => format!("{address} has planned it otherwise, or over other files"),
    }
}

/// Why no executor knows a stage.
fn reason(executors: &[(Arc<Executor>, Prepared)]) -> Arc<str> {
    let error = |(executor, prepared): &(Arc<Executor>, Prepared)| {
        prepared.error.as_ref().map(|error| format!("{} cannot plan the statement: {error}", executor.address()))
    };
    let unrepeated = |(executor, prepared): &(Arc<Executor>, Prepared)| {
        prepared
            .unrepeated
            .as_ref()
            .map(|error| format!("; {} could not repeat a definition: {error}", executor.address()))
    };
    let planned_otherwise = || {
        let unrepeated = executors.iter().find_map(unrepeated).unwrap_or_default();
        format!("no executor has planned it just so{unrepeated}")
    };
    executors.iter().find_map(error).unwrap_or_else(planned_otherwise).into()
}

/// Why executors do not take a call, if it is longer than they take one.
fn is_too_long(call: &Call) -> Result<Option<String>> {
    let text = serde_json::to_vec(call).map_err(|e| exec_datafusion_err!("a call cannot be written: {e}"))?;
    let (bytes, most) = (ByteSize(text.len()), ByteSize(CALL_BYTES as usize));
    Ok((bytes >= most).then(|| format!("the statements that define its names have {bytes}, and executors take {most}")))
}

/// Where executors are, by the option.
fn addresses(list: &str) -> Result<Vec<Address>> {
    let parts = list.split(',').map(str::trim).filter(|part| !part.is_empty());
    let parsed = parts.map(|part| {
        part.parse().map_err(|e| plan_datafusion_err!("blockyard.cluster = '{list}': {}", one_message(&e)))
    });
    let addresses = parsed.collect::<Result<Vec<Address>>>()?;
    match addresses.iter().enumerate().find(|(place, address)| addresses[..*place].contains(address)) {
        Some((_, twice)) => plan_err!("blockyard.cluster = '{list}' names {twice} twice"),
        None => Ok(addresses),
    }
}

/// The options by which plans are made.
fn settings(config: &SessionConfig, options: &BlockyardOptions) -> Vec<(String, String)> {
    let entries = config.options().entries().into_iter();
    let shared = entries.filter(|entry| !OWN_OPTIONS.contains(&entry.key.as_str()));
    let shared = shared.filter_map(|entry| entry.value.map(|value| (entry.key, value)));
    // A part of the memory of a machine is another one elsewhere.
    let limit = MemoryLimit::Bytes(ByteSize(options.memory_limit.bytes())).to_string();
    let fixed = |(key, value)| if key == "blockyard.memory_limit" { (key, limit.clone()) } else { (key, value) };
    let mut settings: Vec<_> = shared.map(fixed).collect();
    // A preset comes before the sizes that replace its own.
    settings.sort_by_key(|(key, _)| key != "blockyard.block_size_preset");
    settings
}
