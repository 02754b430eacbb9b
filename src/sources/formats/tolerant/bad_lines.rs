//! What becomes of the lines that do not fit, and how many there are.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::datasource::listing::PartitionedFile;
use object_store::ObjectStore;
use object_store::path::Path;
use tokio::sync::OnceCell;

use crate::functions::{Failures, OnError};
use crate::sources::formats::text::lines_before;
use crate::store::BlockStore;

/// What becomes of the lines of a scan that do not fit.
#[derive(Debug)]
pub(in crate::sources::formats) struct BadLines {
    failures: Failures,
    store: Option<Arc<BlockStore>>,
    /// The number by which the store knows who diverts.
    query: OnceCell<u64>,
    bad: AtomicU64,
    seen: AtomicU64,
    /// How many lines are before some bytes of files.
    known: tokio::sync::Mutex<HashMap<Path, BTreeMap<u64, usize>>>,
}

impl BadLines {
    /// Those of a scan; `None` where they are an error.
    pub(in crate::sources::formats) fn of(failures: Failures, session: &dyn Session) -> Option<Self> {
        let store = session.config().get_extension::<BlockStore>();
        let (bad, seen) = (AtomicU64::new(0), AtomicU64::new(0));
        let (query, known) = (OnceCell::new(), tokio::sync::Mutex::default());
        (failures.on_error != OnError::Fail).then(|| Self { failures, store, query, bad, seen, known })
    }

    pub(super) fn schema() -> SchemaRef {
        let fields = [
            Field::new("_error", DataType::Utf8, false),
            Field::new("_file", DataType::Utf8, false),
            Field::new("_line", DataType::UInt64, false),
            Field::new("_byte", DataType::UInt64, false),
            Field::new("_raw", DataType::Utf8, false),
        ];
        Arc::new(Schema::new(fields.to_vec()))
    }

    /// Where lines are diverted to: the store, the name, and the number of the scan.
    pub(super) async fn place(&self) -> Result<Option<(&Arc<BlockStore>, &str, u64)>> {
        let OnError::Divert(name) = &self.failures.on_error else { return Ok(None) };
        let Some(store) = &self.store else {
            return exec_err!("lines are diverted in a session without a block store");
        };
        let begin = || async {
            let query = store.next_query();
            store.diverted().begin(name, query, &Self::schema())?;
            Ok::<_, DataFusionError>(query)
        };
        Ok(Some((store, name, *self.query.get_or_try_init(begin).await?)))
    }

    /// Lines and bytes in front of the first line that begins at `start` or behind it. Each byte of a file is looked at
    /// once for all parts of it.
    pub(super) async fn lines_before(
        &self,
        store: &dyn ObjectStore,
        file: &PartitionedFile,
        start: u64,
    ) -> Result<(usize, u64)> {
        let mut known = self.known.lock().await;
        let known = known.entry(file.object_meta.location.clone()).or_default();
        let from = known.range(..=start).next_back().map_or((0, 0), |(byte, lines)| (*lines, *byte));
        let (lines, byte) = lines_before(store, file, from, start).await?;
        known.insert(byte, lines);
        Ok((lines, byte))
    }

    /// Counts lines that were looked at.
    pub(super) fn seen(&self, lines: usize) {
        self.seen.fetch_add(lines as u64, Relaxed);
    }

    /// Counts one that does not fit.
    pub(super) fn found(&self) {
        self.bad.fetch_add(1, Relaxed);
    }

    /// Whether they are kept elsewhere.
    pub(super) fn diverts(&self) -> bool {
        matches!(self.failures.on_error, OnError::Divert(_))
    }

    /// Whether they are rows, with nulls.
    pub(super) fn makes_nulls(&self) -> bool {
        self.failures.on_error == OnError::Null
    }

    /// Whether there are too many of them.
    pub(super) fn are_too_many(&self, task_ends: bool) -> bool {
        let (bad, seen) = (self.bad.load(Relaxed), self.seen.load(Relaxed));
        self.failures.max_errors.is_some_and(|most| bad > 0 && most.is_exceeded(bad, seen, task_ends))
    }

    /// What to say then.
    pub(super) fn too_many(&self) -> String {
        let (bad, seen) = (self.bad.load(Relaxed), self.seen.load(Relaxed));
        let most = self.failures.max_errors.map_or_else(String::new, |most| most.to_string());
        format!("{bad} of {seen} lines do not fit the columns, and max_errors is {most}")
    }
}
