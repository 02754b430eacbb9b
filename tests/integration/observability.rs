//! What a query says of itself: callbacks, stats, progress, system tables, EXPLAIN ANALYZE.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use blockyard::functions::from_closure;
use blockyard::observability::{
    ExecutionCallback, ExecutionFailed, ExecutionProgress, ExecutionStarted, ExecutionSucceeded,
};
use blockyard::{Blockyard, BlockyardOptions, prelude::*};
use datafusion::arrow::array::RecordBatch;
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::prelude::SessionConfig;
use futures::StreamExt;
use futures::future::join;
use tokio::time::timeout;

use crate::fixtures::{context, context_with, lines, rows, sql_error};

const PATIENCE: Duration = Duration::from_secs(60);

/// Writes down what it hears; refuses plans that sort.
#[derive(Debug, Default)]
struct Diary(Mutex<Vec<String>>);

impl Diary {
    fn note(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }
}

impl ExecutionCallback for Diary {
    fn before_execution(&self, event: &ExecutionStarted) -> Result<()> {
        if event.plan.contains("SortExec") {
            return plan_err!("no sorting here");
        }
        self.note(format!("started {}", event.query));
        Ok(())
    }

    fn on_progress(&self, event: &ExecutionProgress) {
        if event.rows > 0 {
            self.note("progress".to_owned());
        }
    }

    fn after_success(&self, event: &ExecutionSucceeded) {
        assert!(event.stats.contains("Bottleneck:"), "{}", event.stats);
        self.note(format!("succeeded {} {}", event.query, event.rows));
    }

    fn after_failure(&self, event: &ExecutionFailed) {
        self.note(format!("failed {}: {}", event.query, event.error.lines().next().unwrap_or_default()));
    }
}

#[tokio::test]
async fn callbacks_hear_how_executions_begin_go_on_and_end() {
    let diary = Arc::<Diary>::default();
    let options = BlockyardOptions { num_cpus: 2, ..Default::default() };
    let blockyard = Blockyard { options, callbacks: vec![Arc::clone(&diary) as _], ..Default::default() };
    let context = DataContext::with_config(blockyard, SessionConfig::new().with_target_partitions(2)).unwrap();
    let heard = || std::mem::take(&mut *diary.0.lock().unwrap());
    let range = context.range(1000).unwrap();
    range.take_all().await.unwrap();
    assert_eq!(heard(), ["started 1", "progress", "succeeded 1 1000"]);
    range.materialize().await.unwrap();
    assert_eq!(heard(), ["started 2", "succeeded 2 0"]);
    let fails = range.map_batches(from_closure(|batch: RecordBatch| match batch.num_rows() {
        0 => Ok(batch),
        _ => exec_err!("not today"),
    }));
    fails.unwrap().take_all().await.unwrap_err();
    let text = heard();
    assert!(text.len() == 2 && text[1].starts_with("failed 3:") && text[1].contains("not today"), "{text:?}");
    // More than is made ahead of the consumer.
    let many = context.range(10_000_000).unwrap();
    let mut stream = many.map_batches("identity").unwrap().stream().await.unwrap();
    stream.next().await.unwrap().unwrap();
    drop(stream);
    let dropped = async {
        while diary.0.lock().unwrap().last().is_none_or(|last| !last.starts_with("failed 4")) {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, dropped).await.expect("nobody hears of it");
    heard();
    let error = sql_error(&context, "SELECT * FROM range(10000) ORDER BY id * 7 % 13").await;
    assert!(error.contains("no sorting here"), "{error}");
    assert_eq!(heard(), ["failed 5: Error during planning: no sorting here"]);
}

/// A fast stage, and one behind it that blocks until the fast one is far ahead or `ahead` is 0.
async fn stats_of_a_chain(ahead: usize, options: impl FnOnce(&mut BlockyardOptions)) -> String {
    let context = context_with(2, options);
    let made = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&made);
    let fast = from_closure(move |batch: RecordBatch| {
        made.fetch_add(usize::from(batch.num_rows() > 0), SeqCst);
        Ok(batch)
    });
    let slow = from_closure(move |batch: RecordBatch| {
        while batch.num_rows() > 0 && seen.load(SeqCst) < ahead {
            std::thread::yield_now();
        }
        Ok(batch)
    });
    let with = |n: usize, name: &str| MapOptions {
        concurrency: Some(n.into()),
        name: Some(name.to_owned()),
        ..Default::default()
    };
    let ds = context.range_in_blocks(40_000, 40).unwrap();
    let ds = ds.map_batches_with(fast, with(2, "fast")).unwrap().map_batches_with(slow, with(1, "slow")).unwrap();
    timeout(PATIENCE, ds.take_all()).await.expect("it stalls").unwrap();
    ds.stats()
}

#[tokio::test]
async fn the_stats_say_backpressure_when_there_was_some_and_only_then() {
    let stats = stats_of_a_chain(0, |_| {}).await;
    assert!(stats.contains("* Scheduling: at most") && stats.contains("Bottleneck: "), "{stats}");
    assert!(!stats.to_lowercase().contains("backpressure"), "{stats}");
    // The fast stage may hold next to nothing, so that a policy holds it back while the slow one has its first block.
    let stats = stats_of_a_chain(3, |options| {
        options.resource_limits_object_store_memory = "40KiB".parse().unwrap();
    })
    .await;
    let said = stats.lines().find(|line| line.contains("Backpressure")).unwrap_or_else(|| panic!("{stats}"));
    for remedy in ["batch_size", "concurrency", "memory for each task", "smaller blocks"] {
        assert!(said.contains(remedy), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn system_tables_show_queries_operators_and_tasks_while_they_run() {
    let context = context();
    let barrier = Arc::new(Barrier::new(2));
    let meet = Arc::clone(&barrier);
    // Two tasks meet here; the third waits with the one who looks.
    let waits = from_closure(move |batch: RecordBatch| {
        if batch.num_rows() > 0 {
            meet.wait();
        }
        Ok(batch)
    });
    let options = MapOptions { concurrency: Some(1.into()), name: Some("waits".to_owned()), ..Default::default() };
    let ds = context.range_in_blocks(2000, 2).unwrap().map_batches_with(waits, options).unwrap();
    let looks = async {
        let state = "SELECT operator, state FROM blockyard.tasks WHERE operator LIKE '%waits%' AND state = 'running'";
        while rows(&context, state).await.is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(rows(&context, state).await, ["ReadRange->MapBatches(waits)|running"]);
        let queries =
            rows(&context, "SELECT plan LIKE '%MapBatches(waits)%', running_tasks FROM blockyard.queries").await;
        assert!(queries.contains(&"true|1".to_owned()), "{queries:?}");
        let operators = rows(&context, "SELECT operator, running_tasks FROM blockyard.operators").await;
        assert_eq!(operators, ["ReadRange->MapBatches(waits)|1"]);
        let progress = ds.progress();
        assert!(progress[0].starts_with("Running query ") && progress[0].contains("/2 CPU"), "{progress:?}");
        assert!(progress[1].starts_with("- ReadRange->MapBatches(waits): Tasks: 1, 0/2 ended;"), "{progress:?}");
        for _ in 0..2 {
            tokio::task::block_in_place(|| barrier.wait());
        }
    };
    let (taken, ()) = timeout(PATIENCE, join(ds.take_all(), looks)).await.expect("it stalls");
    assert_eq!(taken.unwrap().iter().map(RecordBatch::num_rows).sum::<usize>(), 2000);
    assert!(rows(&context, "SELECT query FROM blockyard.operators").await.is_empty());
}

#[tokio::test]
async fn explain_analyze_ends_with_the_bottleneck() {
    let context = context();
    context.register_batches("slow", |batch: RecordBatch| {
        std::thread::sleep(Duration::from_millis(20 * u64::from(batch.num_rows() > 0)));
        Ok(batch)
    });
    let slow = "map_batches(range(8000, override_num_blocks => 8), 'slow', concurrency => 2)";
    let query = format!("EXPLAIN ANALYZE SELECT sum(id) FROM {slow}");
    let plan = context.sql(&query);
    let text = lines(&plan.await.unwrap().take_all().await.unwrap());
    let last = text.last().unwrap();
    assert!(last.starts_with("Bottleneck|ReadRange->MapBatches(slow)"), "{last}");
    // How many ran at once is up to the machine.
    assert!(last.contains("mostly waiting"), "{last}");
    assert!(text[0].contains("ran_ms="), "{}", text[0]);
}
