//! Stages that the scheduler runs: how many tasks at once, what a slow consumer costs, and how they end.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use blockyard::prelude::*;
use datafusion::arrow::array::RecordBatch;
use datafusion::common::{Result, exec_err};
use futures::StreamExt;
use tokio::time::timeout;

use crate::fixtures::{context, context_with, counts_calls_at_once, ints};

/// Long enough for anything but a stall.
const PATIENCE: Duration = Duration::from_secs(60);

fn with_concurrency(concurrency: usize) -> MapOptions {
    MapOptions { concurrency: Some(concurrency.into()), ..Default::default() }
}

#[tokio::test]
async fn eight_tasks_that_block_run_at_once_on_any_number_of_threads() {
    // Each call waits until eight of them are there.
    let barrier = Arc::new(Barrier::new(8));
    let meet = move |batch: RecordBatch| {
        if batch.num_rows() > 0 {
            barrier.wait();
        }
        Ok(batch)
    };
    let ds = context().range_in_blocks(1600, 16).unwrap();
    let ds = ds.map_batches_with(meet, with_concurrency(8)).unwrap();
    let rows = timeout(PATIENCE, ds.take_all()).await.expect("it stalls").unwrap();
    assert_eq!(ints(&rows, "id"), (0..1600).collect::<Vec<i64>>(), "rows keep their order");
}

#[tokio::test]
async fn no_more_tasks_run_than_were_asked_for() {
    let (count, most) = counts_calls_at_once();
    let ds = context().range_in_blocks(10_000, 100).unwrap().map_batches_with(count, with_concurrency(3)).unwrap();
    assert_eq!(ds.count().await.unwrap(), 10_000);
    assert!((1..=3).contains(&most.load(SeqCst)), "{} at once", most.load(SeqCst));
}

#[tokio::test]
async fn a_chain_of_stages_of_one_task_each_ends_on_one_cpu() {
    let context = context_with(1, |options| options.num_cpus = 1);
    let mut ds = context.range_in_blocks(5000, 50).unwrap();
    for _ in 0..5 {
        // Two CPUs for a task where there is one, or as many as there are threads.
        let options = MapOptions { num_cpus: Some(64.0), ..with_concurrency(1) };
        ds = ds.map_batches_with(crate::fixtures::inc, options).unwrap();
    }
    let rows = timeout(PATIENCE, ds.take_all()).await.expect("it stalls").unwrap();
    assert_eq!(ints(&rows, "id"), (5..5005).collect::<Vec<i64>>());
}

#[tokio::test]
async fn who_takes_nothing_more_stops_those_who_make_it() {
    let calls = Arc::new(AtomicUsize::new(0));
    let called = Arc::clone(&calls);
    let count = move |batch: RecordBatch| {
        called.fetch_add(usize::from(batch.num_rows() > 0), SeqCst);
        Ok(batch)
    };
    let ds = context().range_in_blocks(1_000_000, 1000).unwrap().map_batches_with(count, with_concurrency(4)).unwrap();
    let mut batches = ds.stream().await.unwrap();
    assert!(batches.next().await.unwrap().unwrap().num_rows() > 0);
    drop(batches);
    assert!(calls.load(SeqCst) < 200, "{} of 1000 blocks were made for a consumer of one", calls.load(SeqCst));
}

#[tokio::test]
async fn an_error_or_panic_in_a_task_ends_the_query_and_names_it() {
    let picky = |fails: Option<i64>, panics: Option<i64>| {
        move |batch: RecordBatch| -> Result<RecordBatch> {
            let first = ints(std::slice::from_ref(&batch), "id").first().copied();
            match first {
                Some(_) if first == fails => exec_err!("this one is bad"),
                Some(_) if first == panics => panic!("and this one worse"),
                _ => Ok(batch),
            }
        }
    };
    // One that fails, one that panics, and both at once, of which either may be the first.
    for (fails, panics) in [(Some(500), None), (None, Some(700)), (Some(500), Some(700))] {
        let options = MapOptions { name: Some("picky".to_owned()), ..with_concurrency(2) };
        let ds = context().range_in_blocks(1000, 10).unwrap().map_batches_with(picky(fails, panics), options).unwrap();
        let error = timeout(PATIENCE, ds.take_all()).await.expect("it stalls").unwrap_err().to_string();
        let failed = fails.is_some() && error.contains("this one is bad") && error.contains("of task 5");
        let panicked =
            panics.is_some() && error.contains("panicked: and this one worse") && error.contains("of task 7");
        assert!(failed || panicked, "{error}");
        assert!(error.contains("MapBatches(picky) on rows 0..100"), "{error}");
    }
}

#[tokio::test]
async fn two_inputs_of_one_join_may_have_stages_of_their_own() {
    let side = |context: &DataContext| {
        let ds = context.range_in_blocks(20_000, 20).unwrap();
        ds.map_batches_with(Ok, with_concurrency(2)).unwrap()
    };
    let context = context();
    let joined = side(&context).union(&side(&context)).unwrap();
    let zipped = joined.map_batches_with(Ok, with_concurrency(1)).unwrap();
    let zipped = zipped.zip(&[&joined.rename_columns(&[("id", "other")]).unwrap()]).unwrap();
    assert_eq!(timeout(PATIENCE, zipped.count()).await.expect("it stalls").unwrap(), 40_000);
}

#[tokio::test]
async fn more_tasks_than_there_are_threads_for_io_read_files_at_once() {
    const TASKS: usize = 600;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let context = context();
    context.range_in_blocks(600, TASKS).unwrap().write_parquet(path).await.unwrap();
    let one_each = ReadParquetOptions { override_num_blocks: Some(TASKS), ..Default::default() };
    let ds = context.read(path, one_each).await.unwrap();
    let barrier = Arc::new(Barrier::new(TASKS));
    let meet = move |batch: RecordBatch| {
        if batch.num_rows() > 0 {
            barrier.wait();
        }
        Ok(batch)
    };
    let ds = ds.map_batches_with(meet, MapOptions { num_cpus: Some(0.0), ..with_concurrency(TASKS) }).unwrap();
    let rows = timeout(PATIENCE, ds.take_all()).await.expect("it stalls").unwrap();
    assert_eq!(ints(&rows, "id").len(), TASKS);
}

/// A map that counts its calls, and a dataset of 20 tasks of five rows.
fn counted_calls(options: MapOptions) -> (Dataset, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let called = Arc::clone(&calls);
    let count = move |batch: RecordBatch| {
        called.fetch_add(usize::from(batch.num_rows() > 0), SeqCst);
        Ok(batch)
    };
    (context().range_in_blocks(100, 20).unwrap().map_batches_with(count, options).unwrap(), calls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_begins_as_many_tasks_as_its_rows_need() {
    for (options, most) in [(MapOptions::default(), 2), (with_concurrency(2), 2), (with_concurrency(8), 2)] {
        // One task for each thread, and as many more as rows lack.
        for (limit, tasks) in [(1, most), (5, most), (12, 4), (40, 10)] {
            let (ds, calls) = counted_calls(options.clone());
            let rows = timeout(PATIENCE, ds.limit(limit).unwrap().take_all()).await.expect("it stalls").unwrap();
            assert_eq!(ints(&rows, "id"), (0..limit as i64).collect::<Vec<_>>());
            assert!(calls.load(SeqCst) <= tasks, "{} tasks for {limit} rows, {options:?}", calls.load(SeqCst));
        }
        // What is above leaves out rows.
        let (ds, _) = counted_calls(options.clone());
        let ds = ds.filter("id >= 12").unwrap().limit(1).unwrap();
        assert_eq!(ints(&timeout(PATIENCE, ds.take_all()).await.expect("it stalls").unwrap(), "id"), [12]);
        let (ds, calls) = counted_calls(options);
        let ds = ds.filter("id >= 98").unwrap().limit(7).unwrap();
        assert_eq!(ints(&timeout(PATIENCE, ds.take_all()).await.expect("it stalls").unwrap(), "id"), [98, 99]);
        assert_eq!(calls.load(SeqCst), 20);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_slow_tasks_begins_one_for_each_thread() {
    for options in [MapOptions::default(), with_concurrency(4)] {
        // No call ends before two have begun.
        let (barrier, calls) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
        let called = Arc::clone(&calls);
        let slow = move |batch: RecordBatch| {
            if batch.num_rows() > 0 && called.fetch_add(1, SeqCst) < 2 {
                barrier.wait();
            }
            Ok(batch)
        };
        let ds = context().range_in_blocks(100, 20).unwrap().map_batches_with(slow, options).unwrap();
        let rows = timeout(PATIENCE, ds.limit(1).unwrap().take_all()).await.expect("it stalls").unwrap();
        assert_eq!(ints(&rows, "id"), [0]);
        assert!(calls.load(SeqCst) < 10, "{} of 20 tasks", calls.load(SeqCst));
    }
}

/// Stages above a sort, an exchange, a join or a zip do not keep the only CPU from those below.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_above_a_barrier_leaves_the_cpu_to_those_below() {
    let t = "range(3000, override_num_blocks => 12)";
    let f = |table: &str, options: &str| format!("map_batches({table}, 'identity', {options})");
    let sorted = |table: &str, order: &str| format!("(SELECT * FROM {table} ORDER BY id {order})");
    let two = f(t, "concurrency => 2");
    let queries = [
        f(&sorted(&f(&sorted(t, "DESC"), "concurrency => 2"), ""), "concurrency => 2"),
        format!("repartition({}, 100, shuffle => true)", f(&sorted(&two, "DESC"), "num_cpus => 1")),
        f(&format!("zip({two}, (SELECT id AS other FROM {two}))"), "num_cpus => 1"),
        f(&format!("mix({two}, {two})"), "num_cpus => 1, concurrency => 1"),
        f(&format!("(SELECT a.id FROM {two} AS a JOIN {two} AS b ON a.id = b.id)"), "num_cpus => 1"),
        f(&format!("(SELECT id FROM {two} GROUP BY id)"), "compute => 'actors(1)', num_cpus => 1"),
        f(&format!("(SELECT * FROM {two} LIMIT 2000)"), "num_cpus => 1"),
        f(&format!("random_shuffle({}, seed => 1)", f(&sorted(&two, ""), "num_cpus => 1")), "num_cpus => 1"),
    ];
    for fuses in [false, true] {
        for query in &queries {
            let context = context_with(2, |options| options.optimize_fuse_stages = fuses);
            context.sql("SET blockyard.resource_limits_cpu = 1").await.unwrap().take_all().await.unwrap();
            let rows = async { context.sql(&format!("SELECT id FROM {query}")).await.unwrap().take_all().await };
            let rows = timeout(PATIENCE, rows).await.unwrap_or_else(|_| panic!("it stalls: {query}")).unwrap();
            let mut ids = ints(&rows, "id");
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), if query.contains("LIMIT") { 2000 } else { 3000 }, "{query}");
        }
    }
}
