//! What becomes of the queries.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use blockyard::config::MaxErroredBlocks;
use blockyard::functions::{MaxErrors, OnError, from_async};
use blockyard::{Dataset, FunctionRef, prelude::*};
use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::common::Result;
use futures::StreamExt;
use futures::future::join;
use tokio::time::timeout;

use super::functions::*;
use super::sources::{BreaksOff, Meets};
use crate::fixtures::{context, context_with, ints, lines};

const PATIENCE: Duration = Duration::from_secs(60);

/// 1,000 ids in ten tasks, through a function.
fn thousand(context: &DataContext, function: FunctionRef, options: MapOptions) -> Dataset {
    let schema = context.range(1).unwrap().schema();
    let options = MapOptions { schema: Some(schema), name: Some("f".to_owned()), ..options };
    context.range_in_blocks(1000, 10).unwrap().map_batches_with(function, options).unwrap()
}

async fn run(ds: &Dataset) -> Result<Vec<RecordBatch>> {
    timeout(PATIENCE, ds.take_all()).await.expect("it stalls")
}

fn on_error(on_error: OnError) -> MapOptions {
    MapOptions { on_error, ..Default::default() }
}

/// Ids below 1,000 without every hundredth.
fn good() -> Vec<i64> {
    (0..1000).filter(|id| id % 100 != 99).collect()
}

#[tokio::test]
async fn bad_rows_are_skipped_and_counted() {
    for function in [fails_for_every(100), panics_for_every(100)] {
        for batch_size in [BatchSize::AsTheyCome, BatchSize::Rows(7), BatchSize::WholeBlock] {
            let ds = thousand(&context(), function.clone(), MapOptions { batch_size, ..on_error(OnError::Skip) });
            assert_eq!(ints(&run(&ds).await.unwrap(), "id"), good());
            let stats = ds.stats();
            assert!(stats.contains("10 rows failed"), "{stats}");
            assert!(
                ds.failures().unwrap().contains("MapBatches(f): 10 rows failed; the first:"),
                "{:?}",
                ds.failures()
            );
        }
    }
}

#[tokio::test]
async fn bad_rows_are_skipped_on_actors_and_own_threads_too() {
    for compute in ["tasks(3)", "actors(2)"] {
        let options = MapOptions { compute: compute.parse().unwrap(), ..on_error(OnError::Skip) };
        let ds = thousand(&context(), panics_for_every(100), options);
        assert_eq!(ints(&run(&ds).await.unwrap(), "id"), good(), "{compute}");
    }
}

#[tokio::test]
async fn bad_rows_become_nulls_but_for_what_they_came_with() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct In {
        id: i64,
    }
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Out {
        id: i64,
        half: i64,
    }
    let ds = context().range_in_blocks(6, 2).unwrap();
    let halve = |row: In| {
        assert!(row.id != 4, "four is unlucky");
        Out { id: row.id, half: row.id / 2 }
    };
    let ds = ds.map_with(halve, on_error(OnError::Null)).unwrap();
    assert_eq!(lines(&run(&ds).await.unwrap()), ["0|0", "1|0", "2|1", "3|1", "4|NULL", "5|2"]);
}

#[tokio::test]
async fn bad_rows_are_diverted_with_the_error_the_file_and_the_row() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let context = context();
    context.range_in_blocks(1000, 10).unwrap().write_parquet(path).await.unwrap();
    for compute in ["tasks", "actors(2)"] {
        let one_each = ReadParquetOptions { override_num_blocks: Some(10), ..Default::default() };
        let ds = context.read(path, one_each).await.unwrap();
        let options = MapOptions { compute: compute.parse().unwrap(), ..on_error(OnError::Divert("bad".to_owned())) };
        let ds = ds.map_batches_with(fails_for_every(100), options).unwrap();
        assert_eq!(run(&ds).await.unwrap().iter().map(RecordBatch::num_rows).sum::<usize>(), 990);
        let bad = run(&context.diverted("bad").unwrap()).await.unwrap();
        assert_eq!(ints(&bad, "id"), (0..10).map(|i| i * 100 + 99).collect::<Vec<_>>());
        let text = lines(&bad);
        assert!(text.iter().all(|row| row.contains("is bad") && row.contains(".parquet|99|")), "{text:?}");
    }
    // Tasks of several files become tasks of one; one file in several tasks counts its rows through.
    let few = ReadParquetOptions { override_num_blocks: Some(2), ..Default::default() };
    let many_files = context.read(path, few).await.unwrap();
    let other = tempfile::tempdir().unwrap();
    let file = other.path().join("one.parquet");
    let rows: Vec<_> = (0..1000).map(|id| format!("({id})")).collect();
    let sql = format!(
        "COPY (SELECT column1 AS id FROM (VALUES {}) ORDER BY id) TO '{}' OPTIONS ('format.max_row_group_size' '150')",
        rows.join(","),
        file.display()
    );
    run(&context.sql(&sql).await.unwrap()).await.unwrap();
    let parts = ReadParquetOptions { override_num_blocks: Some(4), ..Default::default() };
    let one_file = context.read(file.to_str().unwrap(), parts).await.unwrap();
    for (ds, expected) in [(many_files, vec![99; 10]), (one_file, (0..10).map(|i| i * 100 + 99).collect())] {
        for compute in ["tasks", "actors(2)"] {
            let divert = on_error(OnError::Divert("bad".to_owned()));
            let options = MapOptions { compute: compute.parse().unwrap(), ..divert };
            run(&ds.clone().map_batches_with(fails_for_every(100), options).unwrap()).await.unwrap();
            let bad = context.sql("SELECT id, CAST(_row AS BIGINT) AS row FROM diverted('bad')").await.unwrap();
            let bad = run(&bad).await.unwrap();
            assert_eq!(ints(&bad, "id"), (0..10).map(|i| i * 100 + 99).collect::<Vec<_>>());
            assert_eq!(ints(&bad, "row"), expected);
        }
    }
    // The next query to divert to the name replaces what is there.
    let none = thousand(&context, returns_a_lot(1), on_error(OnError::Divert("bad".to_owned())));
    run(&none).await.unwrap();
    assert_eq!(context.diverted("bad").unwrap().count().await.unwrap(), 0);
    let error = context.diverted("bed").unwrap_err().to_string();
    assert!(error.contains("Did you mean 'bad'?"), "{error}");
}

#[tokio::test]
async fn more_bad_rows_than_allowed_are_an_error() {
    for (most, succeeds) in [
        (MaxErrors::Rows(10), true),
        (MaxErrors::Rows(9), false),
        (MaxErrors::Percent(1.0), true),
        (MaxErrors::Percent(0.5), false),
    ] {
        let options = MapOptions { max_errors: Some(most), ..on_error(OnError::Skip) };
        let result = run(&thousand(&context(), fails_for_every(100), options)).await;
        match result {
            Ok(rows) => assert!(succeeds && ints(&rows, "id") == good()),
            Err(e) => {
                let e = e.to_string();
                assert!(!succeeds && e.contains("MapBatches(f) failed for") && e.contains("max_errors ="), "{e}");
            }
        }
    }
}

#[tokio::test]
async fn calls_that_fail_are_tried_again_when_the_error_is_named() {
    let context = context_with(2, |options| {
        options.retried_map_errors = "away for a moment".to_owned();
        options.max_map_retries = 1;
    });
    let (function, calls) = fails_at_every(3);
    let ds = thousand(&context, function, MapOptions::default());
    assert_eq!(ints(&run(&ds).await.unwrap(), "id"), (0..1000).collect::<Vec<_>>(), "each row exactly once");
    assert!(calls.load(SeqCst) > 10);
    let stats = ds.stats();
    assert!(stats.contains("tried again"), "{stats}");
    // An error that is not named is not tried again, and one that stays is an error.
    let error = run(&thousand(&context, fails_for_every(100), MapOptions::default())).await.unwrap_err().to_string();
    assert!(error.contains("is bad"), "{error}");
    let (always, calls) = fails_at_every(1);
    let error = run(&thousand(&context, always, MapOptions::default())).await.unwrap_err().to_string();
    assert!(error.contains("away for a moment") && calls.load(SeqCst) >= 2, "{error}");
}

#[tokio::test]
async fn blocks_that_fail_are_lost_up_to_a_number() {
    for (most, succeeds) in [(Some(10), true), (Some(9), false), (None, true)] {
        for compute in ["tasks", "tasks(2)", "actors(2)"] {
            let context = context_with(2, |options| options.max_errored_blocks = MaxErroredBlocks(most));
            // Each of ten tasks has one bad row, in its last batch.
            let options =
                MapOptions { batch_size: BatchSize::Rows(10), compute: compute.parse().unwrap(), ..Default::default() };
            let ds = thousand(&context, fails_for_every(100), options);
            match run(&ds).await {
                Ok(rows) => {
                    assert!(succeeds);
                    let kept: Vec<i64> = (0..1000).filter(|id| id % 100 < 90).collect();
                    assert_eq!(ints(&rows, "id"), kept, "what came before the error stays");
                    let stats = ds.stats();
                    assert!(stats.contains("10 tasks gave up"), "{stats}");
                }
                Err(e) => assert!(!succeeds && e.to_string().contains("is bad"), "{compute}: {e}"),
            }
        }
    }
}

#[tokio::test]
async fn other_columns_than_declared_are_an_error_whatever_is_put_up_with() {
    for options in [MapOptions::default(), on_error(OnError::Skip)] {
        let error = run(&thousand(&context(), returns_other_columns(), options)).await.unwrap_err().to_string();
        assert!(error.contains("returned columns [surprise Int64], but was planned to return [id Int64]"), "{error}");
    }
}

#[tokio::test]
async fn another_number_of_rows_than_declared_is_an_error() {
    let options = MapOptions { preserves_row_count: true, ..Default::default() };
    let error = run(&thousand(&context(), loses_a_row(), options)).await.unwrap_err().to_string();
    assert!(error.contains("rows for 100, but is declared to keep their number"), "{error}");
    let rows = run(&thousand(&context(), loses_a_row(), MapOptions::default())).await.unwrap();
    assert_eq!(ints(&rows, "id").len(), 990, "undeclared it is a filter");
}

#[tokio::test]
async fn a_huge_output_is_cut_into_blocks() {
    let context = context_with(2, |options| options.target_max_block_size = "64KiB".parse().unwrap());
    for compute in ["tasks", "actors(2)"] {
        let options = MapOptions { compute: compute.parse().unwrap(), ..Default::default() };
        let ds = thousand(&context, returns_a_lot(500), options).materialize().await.unwrap();
        assert_eq!(ds.count().await.unwrap(), 500_000);
        let blocks = ds.num_blocks().await.unwrap().unwrap();
        assert!(blocks >= 10, "{blocks} blocks");
    }
}

#[tokio::test]
async fn a_function_that_keeps_its_batches_disturbs_nobody() {
    let context = context();
    let ds = thousand(&context, keeps_what_it_sees(), MapOptions { concurrency: Some(2.into()), ..Default::default() });
    assert_eq!(ints(&run(&ds).await.unwrap(), "id"), (0..1000).collect::<Vec<_>>());
    drop(ds);
    let left = run(&context.sql("SELECT * FROM blockyard.blocks").await.unwrap()).await.unwrap();
    assert_eq!(left.iter().map(RecordBatch::num_rows).sum::<usize>(), 0, "the store has nothing of it any more");
}

#[tokio::test]
async fn a_function_that_hangs_does_not_keep_a_query_from_being_cancelled() {
    for compute in ["tasks(2)", "actors(2)"] {
        let gate = Arc::<Gate>::default();
        let options = MapOptions { compute: compute.parse().unwrap(), ..Default::default() };
        let mut rows = thousand(&context(), hangs(&gate), options).stream().await.unwrap();
        let hung = async {
            while gate.waiting.load(SeqCst) == 0 {
                // Polled, so that the query gets on as far as it can.
                let _pending = futures::poll!(rows.next());
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, hung).await.expect("it does not begin");
        let began = std::time::Instant::now();
        drop(rows);
        assert!(began.elapsed() < Duration::from_secs(1), "{compute}: {:?}", began.elapsed());
        gate.open();
    }
}

#[tokio::test]
async fn other_queries_run_while_one_hangs() {
    let (gate, context) = (Arc::<Gate>::default(), context());
    let options = MapOptions { concurrency: Some(4.into()), ..Default::default() };
    let hung = thousand(&context, hangs(&gate), options.clone());
    let meanwhile = async {
        while gate.waiting.load(SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
        let other = thousand(&context, returns_a_lot(1), MapOptions { num_cpus: Some(0.5), ..options });
        assert_eq!(ints(&run(&other).await.unwrap(), "id").len(), 1000);
        gate.open();
    };
    let (rows, ()) = timeout(PATIENCE, join(run(&hung), meanwhile)).await.expect("it stalls");
    assert_eq!(ints(&rows.unwrap(), "id").len(), 1000);
}

#[tokio::test]
async fn work_waits_for_an_actor_that_is_slow_to_build() {
    let (gate, context) = (Arc::<Gate>::default(), context());
    let ds = thousand(&context, slow_to_build(&gate), MapOptions { concurrency: Some(1.into()), ..Default::default() });
    let meanwhile = async {
        while gate.waiting.load(SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let state = context.sql("SELECT state, pending_actors FROM blockyard.operators").await.unwrap();
        assert_eq!(lines(&run(&state).await.unwrap()), ["waiting for actors|1"]);
        gate.open();
    };
    let (rows, ()) = timeout(PATIENCE, join(run(&ds), meanwhile)).await.expect("it stalls");
    assert_eq!(ints(&rows.unwrap(), "id").len(), 1000);
}

#[tokio::test]
async fn an_actor_that_panicked_is_built_anew() {
    let built = Arc::new(AtomicUsize::new(0));
    let context = context_with(1, |options| options.retried_map_errors = "*".to_owned());
    let options = MapOptions { concurrency: Some(1.into()), ..Default::default() };
    let rows = run(&thousand(&context, actor_that_panics(&built), options.clone())).await.unwrap();
    assert_eq!(ints(&rows, "id"), (0..1000).collect::<Vec<_>>());
    // Ten calls; every third panics and is made again by a new one.
    assert_eq!(built.load(SeqCst), 5);
    let context = context_with(1, |_| {});
    let error = run(&thousand(&context, actor_that_panics(&built), options)).await.unwrap_err().to_string();
    assert!(error.contains("panicked: the third call is too much"), "{error}");
}

#[tokio::test]
async fn files_that_cannot_be_read_are_lost_blocks_if_that_is_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    context().range_in_blocks(1000, 10).unwrap().write_csv(path).await.unwrap();
    let file = std::fs::read_dir(path).unwrap().flatten().map(|entry| entry.path()).min().unwrap();
    std::fs::write(file, "id\n1\nnot a number\n").unwrap();
    for (most, succeeds) in [(Some(0), false), (Some(1), true)] {
        let context = context_with(2, |options| options.max_errored_blocks = MaxErroredBlocks(most));
        let many = ReadCsvOptions { override_num_blocks: Some(10), ..Default::default() };
        let read = context.read(path, many).await.unwrap();
        let typed = read.with_column("id", datafusion::prelude::cast(col("id"), arrow::datatypes::DataType::Int64));
        match run(&typed.unwrap()).await {
            Ok(rows) => {
                let ids: Vec<i64> = rows
                    .iter()
                    .flat_map(|b| b["id"].as_primitive::<arrow::datatypes::Int64Type>().values().to_vec())
                    .collect();
                assert!(succeeds && (700..1000).contains(&ids.len()), "{}", ids.len());
            }
            Err(e) => assert!(!succeeds, "{e}"),
        }
    }
}

#[tokio::test]
async fn a_file_without_a_footer_is_a_lost_block_and_the_others_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    context().range_in_blocks(1000, 10).unwrap().write_parquet(path).await.unwrap();
    let file = std::fs::read_dir(path).unwrap().flatten().map(|entry| entry.path()).max().unwrap();
    std::fs::write(&file, "not parquet").unwrap();
    for (most, succeeds) in [(Some(0), false), (Some(1), true)] {
        let context = context_with(2, |options| options.max_errored_blocks = MaxErroredBlocks(most));
        let few = ReadParquetOptions { override_num_blocks: Some(2), ..Default::default() };
        let read = context.read(path, few).await.unwrap();
        match run(&read).await {
            Ok(rows) => {
                assert!(succeeds && ints(&rows, "id") == (0..900).collect::<Vec<_>>());
                assert_eq!(read.count().await.unwrap(), 900);
            }
            Err(e) => assert!(!succeeds && e.to_string().contains(file.to_str().unwrap()), "{e}"),
        }
    }
}

#[tokio::test]
async fn reads_that_break_off_go_on_where_they_were() {
    let breaks = BreaksOff::default();
    let opened = Arc::clone(&breaks.opened);
    let ds = context().read_datasource(Arc::new(breaks), None).unwrap();
    assert_eq!(ints(&run(&ds).await.unwrap(), "id"), (0..100).collect::<Vec<_>>(), "each row exactly once");
    assert_eq!(opened.load(SeqCst), 3);
    let stats = ds.stats();
    assert!(stats.contains("2 calls or reads were tried again; the first: connection reset"), "{stats}");
    let never = context_with(2, |options| options.max_io_retries = 1);
    let error = run(&never.read_datasource(Arc::new(BreaksOff::default()), None).unwrap()).await.unwrap_err();
    assert!(error.to_string().contains("connection reset"), "{error}");
}

#[tokio::test]
async fn async_calls_are_in_flight_together_and_rows_keep_their_order() {
    let (waiting, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(tokio::sync::Barrier::new(4)));
    let most = Arc::clone(&waiting);
    // A call ends when four of them are there, the later ones first.
    let function = from_async("meets", move |batch: RecordBatch| {
        let (gate, waiting) = (Arc::clone(&gate), Arc::clone(&waiting));
        async move {
            waiting.fetch_add(1, SeqCst);
            gate.wait().await;
            for _ in 0..(1000 - ids_of(&batch)[0]) / 10 {
                tokio::task::yield_now().await;
            }
            Ok(batch)
        }
    });
    let context = context_with(1, |_| {});
    let options = MapOptions { batch_size: BatchSize::Rows(25), max_concurrency: Some(4), ..Default::default() };
    let rows = run(&thousand(&context, function, options)).await.unwrap();
    assert_eq!(ints(&rows, "id"), (0..1000).collect::<Vec<_>>());
    assert_eq!(most.load(SeqCst), 40);
}

#[tokio::test]
async fn async_functions_fail_like_others() {
    let picky = || {
        from_async("picky", |batch: RecordBatch| async move {
            tokio::task::yield_now().await;
            match ids_of(&batch).into_iter().find(|id| id % 100 == 99) {
                Some(id) if id > 500 => panic!("id {id} is worse"),
                Some(id) => datafusion::common::exec_err!("id {id} is bad"),
                None => Ok(batch),
            }
        })
    };
    let rows = run(&thousand(&context(), picky(), on_error(OnError::Skip))).await.unwrap();
    assert_eq!(ints(&rows, "id"), good());
    let error = run(&thousand(&context(), picky(), MapOptions::default())).await.unwrap_err().to_string();
    assert!(error.contains("running MapBatches(f) on rows") && error.contains("is bad"), "{error}");
    let context = context_with(2, |options| options.max_errored_blocks = MaxErroredBlocks(None));
    let tens = MapOptions { batch_size: BatchSize::Rows(10), ..Default::default() };
    let rows = run(&thousand(&context, picky(), tens)).await.unwrap();
    assert_eq!(ints(&rows, "id"), (0..1000).filter(|id| id % 100 < 90).collect::<Vec<i64>>());
    let error =
        context.range(10).unwrap().map_batches_with(Ok, MapOptions { max_concurrency: Some(4), ..Default::default() });
    assert!(error.unwrap_err().to_string().contains("max_concurrency is for async functions"));
}

#[tokio::test]
async fn tasks_that_can_never_start_any_more_end_the_query_soon() {
    let (gate, context) = (Arc::<Gate>::default(), context_with(2, |options| options.num_gpus = 1.0));
    let options = MapOptions { concurrency: Some(1.into()), num_gpus: Some(1.0), ..Default::default() };
    let hung = thousand(&context, hangs(&gate), options);
    let meanwhile = async {
        while gate.waiting.load(SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        context.sql("SET blockyard.num_gpus = 0").await.unwrap().take_all().await.unwrap();
        gate.open();
    };
    let (rows, ()) = timeout(PATIENCE, join(run(&hung), meanwhile)).await.expect("it stalls");
    let error = rows.unwrap_err().to_string();
    assert!(error.contains("needs 1 GPUs, but there are 0 since blockyard.num_gpus was changed"), "{error}");
    assert!(error.contains("is waiting for GPUs"), "{error}");
}

#[tokio::test]
async fn tasks_go_on_where_there_are_fewer_cpus_than_before() {
    let (gate, context) = (Arc::<Gate>::default(), context_with(1, |options| options.num_cpus = 8));
    let options = MapOptions { concurrency: Some(2.into()), num_cpus: Some(4.0), ..Default::default() };
    let hung = thousand(&context, hangs(&gate), options);
    let meanwhile = async {
        while gate.waiting.load(SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
        context.sql("SET blockyard.num_cpus = 1").await.unwrap().take_all().await.unwrap();
        gate.open();
    };
    let (rows, ()) = timeout(PATIENCE, join(run(&hung), meanwhile)).await.expect("it stalls");
    assert_eq!(ints(&rows.unwrap(), "id").len(), 1000);
}

#[tokio::test]
async fn a_query_in_which_nothing_happens_fails_and_says_why() {
    let gate = Arc::<Gate>::default();
    let context = context_with(2, |options| options.execution_no_progress_timeout_s = 1);
    let one = MapOptions { concurrency: Some(1.into()), ..Default::default() };
    let error = run(&thousand(&context, slow_to_build(&gate), one.clone())).await.unwrap_err().to_string();
    assert!(error.contains("no progress for 1 s: ReadRange->MapBatches(f) is waiting for actors"), "{error}");
    assert!(error.contains("blockyard.execution_no_progress_timeout_s"), "{error}");
    gate.open();
    // A task that takes longer is no reason.
    let slow = blockyard::functions::from_closure(|batch: RecordBatch| {
        std::thread::sleep(Duration::from_millis(1500 * u64::from(ids_of(&batch).contains(&0))));
        Ok(batch)
    });
    assert_eq!(ints(&run(&thousand(&context, slow, one)).await.unwrap(), "id").len(), 1000);
}

#[tokio::test]
async fn reads_that_are_stages_of_their_own_take_half_a_cpu() {
    for (read_num_cpus, at_once) in [(0.5, 4), (0.25, 8)] {
        let context = context_with(2, |options| {
            options.optimize_fuse_read_stages = false;
            options.read_num_cpus = read_num_cpus;
        });
        // Reads end when as many of them run as two CPUs are enough for.
        let meets = Meets { tasks: 16, barrier: Arc::new(tokio::sync::Barrier::new(at_once)) };
        let ds = context.read_datasource(Arc::new(meets), None).unwrap();
        let ds = ds.map_batches(Ok).unwrap();
        assert_eq!(ints(&run(&ds).await.unwrap(), "id").len(), 16);
    }
}

#[tokio::test]
async fn a_budget_that_is_used_up_ends_the_query_even_where_tasks_may_give_up() {
    let context = context_with(2, |options| options.max_errored_blocks = MaxErroredBlocks(None));
    let options = MapOptions { max_errors: Some(MaxErrors::Rows(3)), ..on_error(OnError::Skip) };
    let error = run(&thousand(&context, fails_for_every(100), options)).await.unwrap_err().to_string();
    assert!(error.contains("more than max_errors = 3"), "{error}");
}

#[tokio::test]
async fn one_name_is_for_rows_of_one_kind() {
    let context = context();
    let divert = || on_error(OnError::Divert("bad".to_owned()));
    let hashed = context.range(100).unwrap().map_batches_with("row_hash", divert()).unwrap();
    let error = run(&hashed.map_batches_with("identity", divert()).unwrap()).await.unwrap_err().to_string();
    assert!(error.contains("divert rows with different columns to 'bad'"), "{error}");
    let taken =
        context.sql("SELECT id AS _row FROM range(5)").await.unwrap().map_batches_with("identity", divert()).unwrap();
    let error = run(&taken).await.unwrap_err().to_string();
    assert!(error.contains("rows with a column '_row' cannot be diverted"), "{error}");
}

#[tokio::test]
async fn errors_of_the_input_are_no_reason_for_a_step_to_give_up() {
    let context = context_with(2, |options| options.max_errored_blocks = MaxErroredBlocks(None));
    let query = "SELECT id, sum(1 / (id - 50)) AS s FROM range(100) GROUP BY id";
    let functions: [(&str, FunctionRef); 2] = [
        ("sync", blockyard::functions::from_closure(Ok)),
        ("async", from_async("keep", |batch| async move { Ok(batch) })),
    ];
    for (name, function) in functions {
        let ds = context.sql(query).await.unwrap().map_batches(function).unwrap();
        let error = run(&ds).await.expect_err(name).to_string();
        assert!(error.to_lowercase().contains("divide by zero"), "{name}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_slow_function_does_not_hold_up_other_queries_on_its_thread() {
    let (gate, context) = (Arc::<Gate>::default(), context_with(1, |_| {}));
    // The first call takes long enough to be known for it; those of the next task wait for the other query.
    let (calls, closed) = (AtomicUsize::new(0), Arc::clone(&gate));
    let slow = blockyard::functions::from_closure(move |batch: RecordBatch| {
        match calls.fetch_add(usize::from(batch.num_rows() > 0), SeqCst) {
            0 if batch.num_rows() > 0 => std::thread::sleep(Duration::from_millis(30)),
            _ if batch.num_rows() > 0 => closed.pass(),
            _ => {}
        }
        Ok(batch)
    });
    let slow = thousand(&context, slow, MapOptions::default());
    let meanwhile = async {
        while gate.waiting.load(SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            run(&context.range(1000).unwrap()).await.unwrap().iter().map(RecordBatch::num_rows).sum::<usize>(),
            1000
        );
        gate.open();
    };
    let (rows, ()) = timeout(PATIENCE, join(run(&slow), meanwhile)).await.expect("one waits for the other");
    assert_eq!(ints(&rows.unwrap(), "id").len(), 1000);
}
