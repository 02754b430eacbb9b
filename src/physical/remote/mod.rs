//! Stages that run in other processes.
//!
//! ```text
//! this process                               executors, which have planned the same statement
//! RemoteExec ── tasks 0..1 ──────────────>   stage, of these tasks alone
//!            <───────────────── rows ──────
//! ```
//!
//! A rule puts a [`RemoteExec`] above each stage that could run elsewhere. Where it does run is decided before each
//! execution: [`assigned`] asks the executors which of the stages they have planned just so, by a
//! [fingerprint](stage_print) of all that a stage says of itself and of its files. A stage that no executor knows runs
//! here.
//!
//! ```text
//! RemoteExec ── tasks 0..1 ──────────────>   input of an exchange, of these tasks: its rows stay, by their hashes
//!            <────── bytes by hashes ──────
//!            ── hashes 0..99 ────────────>   stage, of the rows with these hashes, which it asks all executors for
//!            <───────────────── rows ──────
//! ```
//!
//! Below joins, groups and windows of a stage there may be [exchanges](RemoteExchangeExec), and those of shuffles and
//! sorts may be [made so](StageExchange), too: what is below them runs first.

mod assign;
mod exchange;
mod exec;
mod fetched;
mod kept;
mod parts;
mod print;
mod stages;
mod units;
mod whole;

use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::prelude::SessionConfig;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

pub(crate) use assign::{assigned, fitting_executors};
pub(crate) use exchange::{RemoteExchangeExec, SchemeInOrder, StageExchange};
pub(crate) use exec::{RemoteExec, remote_stages};
pub(crate) use fetched::{FetchedTasksExec, fetched};
pub(crate) use kept::{KeptRows, ranges_of_codes};
pub(crate) use parts::{ExchangeSource, Part, StageSource, exchange_of, of_part};
pub(crate) use print::{StagePrint, stage_print};
pub(crate) use stages::{
    evaluates_windows, gives_no_left_rows, is_exchanged, is_first_rows_of_stage, is_stage, is_whole, is_worthwhile,
    keeps_partitions,
};
pub(crate) use whole::WholeRows;

use crate::physical::{WritePlace, Writing};

/// How an executor is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorStatus {
    /// The version of Blockyard that it is of.
    pub version: String,
    /// Tasks that it runs at once.
    pub threads: usize,
    /// Queries whose sessions are connected.
    pub queries: usize,
    /// Units of tasks that run now.
    pub units: usize,
    /// Bytes that blocks and operators may have.
    pub memory_limit: usize,
    /// Bytes that blocks and operators have now.
    pub memory_used: usize,
    /// Bytes that it has written to disk since it was started.
    pub spilled_bytes: usize,
}

/// How executors are, or why they do not say, by their addresses.
pub(crate) type Statuses = Vec<(String, Result<ExecutorStatus>)>;

/// Finds out where stages can run.
pub(crate) trait Executors: Debug + Send + Sync {
    /// The least memory of those that a session has, as far as they can be reached: plans have to fit it.
    fn least_memory<'a>(&'a self, config: &'a SessionConfig) -> BoxFuture<'a, Result<Option<usize>>>;

    /// How those are that a session has, by their addresses.
    fn statuses<'a>(&'a self, config: &'a SessionConfig) -> BoxFuture<'a, Result<Statuses>>;

    /// Where the stages of a plan with these prints can run; the plan is of the session with this configuration.
    fn assign<'a>(&'a self, config: &'a SessionConfig, prints: &'a [StagePrint]) -> BoxFuture<'a, Result<Assigned>>;
}

/// What finds out where stages can run, as an extension of a session.
#[derive(Debug)]
pub(crate) struct Connector(pub(crate) Arc<dyn Executors>);

/// How the executors of a session are, by their addresses; none where it has none.
pub(crate) async fn executor_statuses(config: &SessionConfig) -> Result<Statuses> {
    match config.get_extension::<Connector>() {
        Some(connector) => connector.0.statuses(config).await,
        None => Ok(Vec::new()),
    }
}

/// Where stages run.
pub(crate) struct Assigned {
    /// Of each stage who runs it, or why nobody else does.
    pub(crate) stages: Vec<std::result::Result<Arc<dyn StageRunner>, Arc<str>>>,
    /// What is to be held as long as they run.
    pub(crate) held: Arc<dyn Any + Send + Sync>,
}

impl Assigned {
    /// All stages run in this process, for one reason.
    pub(crate) fn nowhere(prints: &[StagePrint], why: &str) -> Self {
        let why: Arc<str> = why.into();
        Self { stages: prints.iter().map(|_| Err(Arc::clone(&why))).collect(), held: Arc::new(()) }
    }
}

/// Runs tasks of a stage in other processes.
pub(crate) trait StageRunner: Debug + Send + Sync {
    /// How many of them it runs at once.
    fn slots(&self) -> usize;

    /// In how many processes.
    fn processes(&self) -> usize;

    /// The processes, for people.
    fn describe(&self) -> String;

    /// What each of them has done of the stage of this name, whose rows are called so, and which of them are gone.
    fn remarks(&self, stage: &str, rows: &str) -> Vec<String>;

    /// The rows of some tasks of the stage, whatever becomes of the process that begins to run them.
    fn run(&self, unit: Unit, context: &Arc<TaskContext>) -> Result<SendableRecordBatchStream>;

    /// Whether any of them can write where this process does. Those that cannot run no tasks that do.
    fn sees<'a>(&'a self, place: &'a WritePlace) -> BoxFuture<'a, bool>;

    /// Runs what is below the exchanges of the stage, and says who runs what is above them.
    fn exchange(&self, source: StageSource, context: &Arc<TaskContext>) -> BoxFuture<'static, Result<Exchanged>>;
}

/// What other processes have exchanged. They keep it as long as this is there.
#[derive(Debug, Clone)]
pub(crate) struct Exchanged {
    /// Runs what is above.
    pub(crate) runner: Arc<dyn StageRunner>,
    /// How many tasks it has.
    pub(crate) tasks: usize,
}

/// Tasks of a stage that run together.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    /// Their numbers.
    pub(crate) tasks: Range<usize>,
    /// Columns of their rows.
    pub(crate) schema: SchemaRef,
    /// Whether they give the same rows in the same order whenever they run.
    pub(crate) is_repeatable: bool,
    /// Where they write files, if they do.
    pub(crate) writing: Option<Arc<Writing>>,
}
