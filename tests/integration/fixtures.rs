use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use blockyard::prelude::*;
use blockyard::{BlockyardOptions, ByteSize, MemoryLimit};
use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::prelude::SessionConfig;

/// All kinds of join, as SQL says them.
pub(crate) const JOIN_KINDS: [&str; 8] = [
    "JOIN",
    "LEFT JOIN",
    "RIGHT JOIN",
    "FULL JOIN",
    "LEFT SEMI JOIN",
    "RIGHT SEMI JOIN",
    "LEFT ANTI JOIN",
    "RIGHT ANTI JOIN",
];

/// What is expected to happen soon is given so much time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A session with two threads, whatever the machine and the environment.
pub(crate) fn context() -> DataContext {
    context_with(2, |_| {})
}

/// A session with some threads and changed options.
pub(crate) fn context_with(threads: usize, change: impl FnOnce(&mut BlockyardOptions)) -> DataContext {
    let mut options = BlockyardOptions { num_cpus: 2, ..Default::default() };
    change(&mut options);
    let config = SessionConfig::new().with_target_partitions(threads);
    DataContext::with_config(Blockyard { options, ..Default::default() }, config).unwrap()
}

/// A limit in MiB.
pub(crate) fn mib(n: usize) -> MemoryLimit {
    MemoryLimit::Bytes(ByteSize::mib(n))
}

/// A function that gives its input back, and the most calls of it that were made at once.
pub(crate) fn counts_calls_at_once() -> (blockyard::FunctionRef, Arc<AtomicUsize>) {
    let (running, most) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let function = blockyard::functions::from_closure(move |batch| {
        seen.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
        std::thread::yield_now();
        running.fetch_sub(1, SeqCst);
        Ok(batch)
    });
    (function, most)
}

/// The values of an Int64 column over all batches.
pub(crate) fn ints(batches: &[RecordBatch], column: &str) -> Vec<i64> {
    let of = |b: &RecordBatch| b.column_by_name(column).unwrap().as_primitive::<Int64Type>().values().to_vec();
    batches.iter().flat_map(of).collect()
}

/// Names of the files in a directory that are not hidden, sorted.
pub(crate) fn files(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .map(|entries| entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    names.retain(|n| !n.starts_with('.'));
    names.sort();
    names
}

/// All entries of a directory, hidden ones too.
pub(crate) fn entries(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(directory).unwrap().flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The message of a failed SQL text.
pub(crate) async fn sql_error(context: &DataContext, sql: &str) -> String {
    let result = match context.sql(sql).await {
        Ok(dataset) => dataset.take_all().await.map(drop),
        Err(e) => Err(e),
    };
    result.expect_err(&format!("{sql} did not fail")).strip_backtrace()
}

/// The rows of a query as text.
pub(crate) async fn rows(context: &DataContext, sql: &str) -> Vec<String> {
    let batches = context.sql(sql).await.unwrap().take_all().await.unwrap();
    lines(&batches)
}

/// Rows as text, columns joined by a bar.
pub(crate) fn lines(batches: &[RecordBatch]) -> Vec<String> {
    use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
    let options = FormatOptions::default().with_null("NULL");
    let mut lines = Vec::new();
    for batch in batches {
        let columns: Vec<_> =
            batch.columns().iter().map(|c| ArrayFormatter::try_new(c.as_ref(), &options).unwrap()).collect();
        for row in 0..batch.num_rows() {
            lines.push(columns.iter().map(|c| c.value(row).to_string()).collect::<Vec<_>>().join("|"));
        }
    }
    lines
}

/// A function that adds 1 to every integer column; it has a name to show in plans.
pub(crate) fn inc(batch: RecordBatch) -> datafusion::error::Result<RecordBatch> {
    use datafusion::arrow::array::Int64Array;
    let columns = batch
        .columns()
        .iter()
        .map(|c| match c.as_primitive_opt::<Int64Type>() {
            Some(ints) => Arc::new(ints.iter().map(|v| v.map(|v| v + 1)).collect::<Int64Array>()) as _,
            None => Arc::clone(c),
        })
        .collect();
    Ok(RecordBatch::try_new(batch.schema(), columns)?)
}

/// Waits until the store holds nothing in memory. Drivers and readers let go of their blocks when they have run to
/// their end, which yielding gives them time for.
pub(crate) async fn emptied(context: &DataContext) {
    settled(context, |store| store.budget().blocks() == 0).await;
    assert_eq!(context.store().budget().blocks(), 0, "{:?} still holds blocks", context.store());
}

/// Waits until the store is as it is to be.
pub(crate) async fn settled(context: &DataContext, is_so: impl Fn(&blockyard::store::BlockStore) -> bool) {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE && !is_so(context.store()) {
        tokio::task::yield_now().await;
    }
}
