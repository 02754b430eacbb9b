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
    let ds = ds.map_batches(meet, with_concurrency(8)).unwrap();
    let rows = timeout(PATIENCE, ds.take_all()).await.expect("it stalls").unwrap();
    assert_eq!(ints(&rows, "id"), (0..1600).collect::<Vec<i64>>(), "rows keep their order");
}

#[tokio::test]
async fn no_more_tasks_run_than_were_asked_for() {
    let (count, most) = counts_calls_at_once();
    let ds = context().range_in_blocks(10_000, 100).unwrap().map_batches(count, with_concurrency(3)).unwrap();
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
        ds = ds.map_batches(crate::fixtures::inc, options).unwrap();
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
    let ds = context().range_in_blocks(1_000_000, 1000).unwrap().map_batches(count, with_concurrency(4)).unwrap();
    let mut batches = ds.stream().await.unwrap();
    assert!(batches.next().await.unwrap().unwrap().num_rows() > 0);
    drop(batches);
    assert!(calls.load(SeqCst) < 200, "{} of 1000 blocks were made for a consumer of one", calls.load(SeqCst));
}

#[tokio::test]
async fn an_error_or_panic_in_a_task_ends_the_query_and_names_it() {
    let fail = |batch: RecordBatch| -> Result<RecordBatch> {
        let first = ints(std::slice::from_ref(&batch), "id").first().copied();
        match first {
            Some(500) => exec_err!("this one is bad"),
            Some(700) => panic!("and this one worse"),
            _ => Ok(batch),
        }
    };
    for (rows, text) in [(600, "this one is bad"), (1000, "this one is bad"), (800, "rows 0..100")] {
        let ds = context().range_in_blocks(rows, rows as usize / 100).unwrap();
        let ds = ds.map_batches(fail, MapOptions { name: Some("picky".to_owned()), ..with_concurrency(2) }).unwrap();
        let error = timeout(PATIENCE, ds.take_all()).await.expect("it stalls").unwrap_err().to_string();
        assert!(error.contains("MapBatches(picky)") && error.contains(text), "{error}");
    }
}

#[tokio::test]
async fn two_inputs_of_one_join_may_have_stages_of_their_own() {
    let side = |context: &DataContext| {
        let ds = context.range_in_blocks(20_000, 20).unwrap();
        ds.map_batches(Ok, with_concurrency(2)).unwrap()
    };
    let context = context();
    let joined = side(&context).union(&side(&context)).unwrap();
    let zipped = joined.map_batches(Ok, with_concurrency(1)).unwrap();
    let zipped = zipped.zip(&[&joined.rename_columns(&[("id", "other")]).unwrap()]).unwrap();
    assert_eq!(timeout(PATIENCE, zipped.count()).await.expect("it stalls").unwrap(), 40_000);
}

#[tokio::test]
async fn more_tasks_than_there_are_threads_for_io_read_files_at_once() {
    const TASKS: usize = 600;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let context = context();
    context.range_in_blocks(600, TASKS).unwrap().write_parquet(path, WriteOptions::default()).await.unwrap();
    let one_each = ReadOptions { override_num_blocks: Some(TASKS), ..Default::default() };
    let ds = context.read_parquet(path, one_each).await.unwrap();
    let barrier = Arc::new(Barrier::new(TASKS));
    let meet = move |batch: RecordBatch| {
        if batch.num_rows() > 0 {
            barrier.wait();
        }
        Ok(batch)
    };
    let ds = ds.map_batches(meet, MapOptions { num_cpus: Some(0.0), ..with_concurrency(TASKS) }).unwrap();
    let rows = timeout(PATIENCE, ds.take_all()).await.expect("it stalls").unwrap();
    assert_eq!(ints(&rows, "id").len(), TASKS);
}
