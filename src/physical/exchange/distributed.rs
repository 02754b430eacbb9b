//! The two sides of an exchange where several processes have the tasks of its input: each keeps the rows of some of
//! them, and the tasks above fetch theirs from all.
//!
//! ```text
//!  process A: tasks 0..4, kept ──┐ what is known of them   ranges of rows: the tasks above
//!  process B: tasks 4..8, kept ──┴─────────> cut ─────────> task 0: fetches from A and B, and puts in order
//! ```
//!
//! Rows come as they would from one process: places between them are said by codes, or by keys and where rows stood in
//! the input, never by how a process has cut what it keeps.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::LexOrdering;
use futures::TryStreamExt;
use serde::{Deserialize, Serialize};

use super::buckets::Batches;
use super::router::KeyEncoding;
use super::sort_keys::RowPlace;
use crate::block::{TaskId, sliced_bytes};
use crate::store::{BlockStore, Owner, WorkingSet};

/// What a scheme does where several processes have the tasks of its input.
pub(crate) trait Distributed: Send + Sync {
    /// By what rows are found again.
    fn kept_by(&self) -> KeptBy;

    /// Whether its tasks get the codes of rows, behind their other columns.
    fn with_codes(&self) -> bool {
        false
    }

    /// Whether a task gives its rows in the same order again when some of them were made again, whatever memory has cut
    /// what is kept of them.
    fn is_steady(&self) -> bool {
        true
    }

    /// The rows of each task, by what is known of those of all units in the order of the input.
    fn tasks(&self, units: &[&Extent], sizes: TaskSizes, context: &TaskContext) -> Result<Vec<TaskRows>>;

    /// The rows of a task in their order.
    fn rows(&self, id: TaskId, rows: TaskRows, fetching: Fetching) -> Result<Batches>;
}

/// By what the rows that a process keeps are found.
#[derive(Debug)]
pub(crate) enum KeptBy {
    /// By codes.
    Codes(KeyEncoding),
    /// By keys, and the places of rows in the input where these are equal.
    Keys(LexOrdering),
}

/// How large tasks are to be where nothing else says so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskSizes {
    /// What is sorted at once has about so many bytes.
    pub(crate) sorted_bytes: usize,
    /// So many tasks there are at least, where there is enough for each.
    pub(crate) least: usize,
}

/// Which rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RowRange {
    /// Those with codes from the one to the other.
    Codes(u64, u64),
    /// Those behind the first place and before the second. Runs are called by the numbers of their units there, and
    /// rows by their numbers in these.
    Places(Option<RowPlace>, Option<RowPlace>),
}

/// The rows of a task: those of the ranges, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskRows {
    /// Which they are.
    pub(crate) ranges: Vec<RowRange>,
    /// About how many bytes they have.
    pub(crate) bytes: usize,
}

/// What is known of the rows that a process keeps of a unit of tasks.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Extent {
    /// How many they are.
    pub(crate) rows: u64,
    /// Their bytes, with what is kept beside them.
    pub(crate) bytes: usize,
    /// The sum of their codes, or of those of their keys.
    pub(crate) sum_of_codes: u64,
    /// Bytes by the leading bits of their codes, where they are kept by such.
    pub(crate) bins: Vec<usize>,
    /// Some of their keys in order, where they are kept by these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) keys: Vec<KnownKey>,
}

/// A row of some that are kept in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownKey {
    /// The beginning of its key.
    pub(crate) key: Box<[u8]>,
    /// Its number in its unit.
    pub(crate) row: usize,
    /// Bytes of the rows from it to the next that is known.
    pub(crate) bytes: usize,
}

/// Gives rows of all units, one unit after the other.
pub(crate) type FetchRows = Arc<dyn Fn(RowRange) -> Batches + Send + Sync>;

/// How a task gets its rows.
#[derive(Clone)]
pub(crate) struct Fetching {
    /// Gives them.
    pub(crate) fetch: FetchRows,
    /// Their columns.
    pub(crate) schema: SchemaRef,
    /// Where they are put in order.
    pub(crate) context: Arc<TaskContext>,
    /// For whom.
    pub(crate) owner: Arc<Owner>,
}

impl Fetching {
    /// All rows of a range, and the memory that is reserved for so many copies of them: of `bytes` at least.
    pub(super) async fn all(&self, range: RowRange, bytes: usize, copies: usize) -> Result<Fetched> {
        let store = BlockStore::of_task(&self.context)?;
        let mut reserved = store.working_set(&self.owner, copies * bytes)?;
        let (mut rows, mut batches, mut taken) = ((self.fetch)(range), Vec::new(), 0);
        while let Some(batch) = rows.try_next().await? {
            taken += sliced_bytes(&batch);
            reserved.resize(copies * taken.max(bytes))?;
            batches.push(batch);
        }
        Ok(Fetched { batches, reserved })
    }
}

/// All rows of a range, in memory.
pub(super) struct Fetched {
    pub(super) batches: Vec<RecordBatch>,
    pub(super) reserved: WorkingSet,
}
