//! Functions with state: built once per actor on its own thread, kept between blocks, dropped at the end.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use blockyard::functions::Concurrency;
use blockyard::{Actor, FunctionRef, actor, prelude::*};
use datafusion::arrow::array::RecordBatch;
use datafusion::common::{Result, exec_err};
use tokio::time::timeout;

use crate::fixtures::{context, context_with, counts_calls_at_once, ints};

const PATIENCE: Duration = Duration::from_secs(60);

/// What the actors of a test did.
#[derive(Debug, Default)]
struct Log {
    built: AtomicUsize,
    dropped: AtomicUsize,
    /// Rows that each actor saw, and the threads on which it was called.
    seen: Mutex<HashMap<usize, (usize, Vec<ThreadId>)>>,
}

/// A model that is not `Send`, and which logs what happens to it.
struct Model {
    number: usize,
    calls: Rc<Cell<usize>>,
    log: Arc<Log>,
}

impl Actor for Model {
    fn call(&mut self, batch: RecordBatch) -> Result<RecordBatch> {
        self.calls.set(self.calls.get() + 1);
        let mut seen = self.log.seen.lock().unwrap();
        let (rows, threads) = seen.entry(self.number).or_default();
        *rows += batch.num_rows();
        let thread = std::thread::current().id();
        if !threads.contains(&thread) {
            threads.push(thread);
        }
        Ok(batch)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.log.dropped.fetch_add(1, SeqCst);
    }
}

fn model(log: &Arc<Log>) -> FunctionRef {
    let log = Arc::clone(log);
    actor("model", move || {
        Ok(Model { number: log.built.fetch_add(1, SeqCst), calls: Rc::default(), log: Arc::clone(&log) })
    })
}

fn options(concurrency: impl Into<Concurrency>) -> MapOptions {
    MapOptions { concurrency: Some(concurrency.into()), ..Default::default() }
}

/// The same, with columns declared so that nothing is built to find them.
fn of_ids(context: &DataContext, concurrency: impl Into<Concurrency>) -> MapOptions {
    let schema = context.range(1).unwrap().schema();
    MapOptions { schema: Some(schema), ..options(concurrency) }
}

#[tokio::test]
async fn each_actor_is_built_once_stays_on_its_thread_and_is_dropped_at_the_end() {
    let (log, context) = (Arc::<Log>::default(), context());
    let ds = context.range_in_blocks(6400, 64).unwrap();
    let ds = ds.map_batches_with(model(&log), of_ids(&context, 3)).unwrap();
    assert_eq!(log.built.load(SeqCst), 0, "columns are declared");
    let rows = timeout(PATIENCE, ds.take_all()).await.expect("it stalls").unwrap();
    assert_eq!(ints(&rows, "id"), (0..6400).collect::<Vec<i64>>(), "rows keep their order");
    assert_eq!(log.built.load(SeqCst), 3);
    assert_eq!(log.dropped.load(SeqCst), 3, "all were dropped before the query ended");
    let seen = log.seen.lock().unwrap();
    assert_eq!(seen.values().map(|(rows, _)| rows).sum::<usize>(), 6400);
    assert!(seen.values().all(|(_, threads)| threads.len() == 1), "{seen:?}");
}

#[tokio::test]
async fn without_declared_columns_one_is_built_to_find_them() {
    let (log, context) = (Arc::<Log>::default(), context());
    let ds = context.range_in_blocks(100, 4).unwrap().map_batches_with(model(&log), options(1)).unwrap();
    assert_eq!((log.built.load(SeqCst), log.dropped.load(SeqCst)), (1, 1));
    assert_eq!(ds.count().await.unwrap(), 100);
    assert_eq!((log.built.load(SeqCst), log.dropped.load(SeqCst)), (2, 2));
}

#[tokio::test]
async fn a_pool_grows_while_there_is_work_for_more() {
    let (barrier, built) = (Arc::new(Barrier::new(4)), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&built);
    // Calls end when four of them are there: with fewer actors nothing ever ends.
    let meets = actor("meets", move || {
        count.fetch_add(1, SeqCst);
        let barrier = Arc::clone(&barrier);
        Ok(move |batch: RecordBatch| {
            if batch.num_rows() > 0 {
                barrier.wait();
            }
            Ok(batch)
        })
    });
    let context = context();
    let ds = context.range_in_blocks(400, 40).unwrap();
    let ds = ds.map_batches_with(meets, MapOptions { num_cpus: Some(0.1), ..of_ids(&context, (0, 4)) }).unwrap();
    assert_eq!(timeout(PATIENCE, ds.count()).await.expect("it stalls").unwrap(), 400);
    assert_eq!(built.load(SeqCst), 4);
}

#[tokio::test]
async fn an_actor_that_cannot_be_built_is_tried_again_and_then_an_error_that_names_it() {
    for (failures, succeeds) in [(2, true), (3, false)] {
        let tries = Arc::new(AtomicUsize::new(0));
        let flaky = actor("flaky", move || match tries.fetch_add(1, SeqCst) {
            n if n < failures => exec_err!("the model server is away"),
            _ => Ok(Ok),
        });
        let context = context_with(2, |options| options.actor_init_max_retries = 2);
        let ds = context.range_in_blocks(100, 4).unwrap().map_batches_with(flaky, of_ids(&context, 1)).unwrap();
        match timeout(PATIENCE, ds.count()).await.expect("it stalls") {
            Ok(rows) => assert!(succeeds && rows == 100),
            Err(e) => {
                let e = e.to_string();
                assert!(!succeeds, "{e}");
                assert!(e.contains("building MapBatches(flaky)") && e.contains("tried 3 times"), "{e}");
                assert!(e.contains("the model server is away"), "{e}");
            }
        }
    }
}

#[tokio::test]
async fn a_function_with_state_needs_actors_and_others_may_have_them() {
    let (log, context) = (Arc::<Log>::default(), context());
    let ds = context.range_in_blocks(100, 4).unwrap();
    let tasks = MapOptions { compute: ComputeStrategy::Tasks(None), ..of_ids(&context, 1) };
    let error = ds.map_batches_with(model(&log), tasks).unwrap_err().to_string();
    assert!(error.contains("'model' has state"), "{error}");
    let actors = MapOptions { compute: "actors(2)".parse().unwrap(), ..Default::default() };
    assert_eq!(ds.map_batches_with(Ok, actors).unwrap().count().await.unwrap(), 100);
}

#[tokio::test]
async fn dropping_the_rows_drops_the_actors() {
    let (log, context) = (Arc::<Log>::default(), context());
    let ds = context.range_in_blocks(1_000_000, 1000).unwrap();
    let ds = ds.map_batches_with(model(&log), of_ids(&context, 2)).unwrap();
    assert_eq!(ds.take_batch(5).await.unwrap().num_rows(), 5);
    let all_dropped = async {
        while log.dropped.load(SeqCst) < log.built.load(SeqCst) {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, all_dropped).await.expect("actors stay");
    let rows: usize = log.seen.lock().unwrap().values().map(|(rows, _)| rows).sum();
    assert!(rows < 200_000, "{rows} rows were worked on for a consumer of five");
}

#[tokio::test]
async fn what_a_task_needs_has_to_be_there() {
    let context = context_with(2, |options| options.resources = "license=2".to_owned());
    let ds = context.range_in_blocks(1000, 10).unwrap();
    let with = |name: &str, amount| MapOptions { resources: [(name.to_owned(), amount)].into(), ..options(8) };
    assert_eq!(ds.map_batches_with(Ok, with("license", 1.0)).unwrap().count().await.unwrap(), 1000);
    for (name, amount, text) in
        [("license", 3.0, "needs 3 license, but there are 2"), ("licence", 1.0, "needs 1 licence, but there are 0")]
    {
        let error = ds.map_batches_with(Ok, with(name, amount)).unwrap().count().await.unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    let gpu = MapOptions { num_gpus: Some(1.0), ..Default::default() };
    let error = ds.map_batches_with(Ok, gpu).unwrap().count().await.unwrap_err().to_string();
    assert!(error.contains("needs 1 GPUs, but there are 0"), "{error}");
}

#[tokio::test]
async fn a_resource_bounds_the_tasks_at_once() {
    let (count, most) = counts_calls_at_once();
    let context = context_with(2, |options| options.resources = "license=2".to_owned());
    let resources = [("license".to_owned(), 1.0)].into();
    let ds = context.range_in_blocks(10_000, 100).unwrap();
    let ds = ds.map_batches_with(count, MapOptions { resources, ..options(8) }).unwrap();
    assert_eq!(ds.count().await.unwrap(), 10_000);
    assert!((1..=2).contains(&most.load(SeqCst)), "{} at once", most.load(SeqCst));
}

#[tokio::test]
async fn a_query_keeps_to_its_resource_limits() {
    let (count, most) = counts_calls_at_once();
    let context = context_with(8, |options| {
        options.num_cpus = 8;
        options.resource_limits_cpu = "25%".parse().unwrap();
    });
    let ds = context.range_in_blocks(10_000, 100).unwrap();
    let ds = ds.map_batches_with(count, MapOptions { num_cpus: Some(1.0), ..options(8) }).unwrap();
    assert_eq!(ds.count().await.unwrap(), 10_000);
    assert!((1..=2).contains(&most.load(SeqCst)), "{} at once", most.load(SeqCst));
}
