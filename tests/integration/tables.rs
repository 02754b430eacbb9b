use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use blockyard::prelude::*;
use datafusion::arrow::array::AsArray;
use datafusion::arrow::datatypes::UInt64Type;
use datafusion::error::Result;
use futures::TryStreamExt;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::fixtures::{context, context_with, emptied, ints, mib, settled};

/// Runs a statement; returns the number of rows that it says it has changed, if it says so.
async fn run(context: &DataContext, sql: &str) -> Result<Vec<u64>> {
    let batches = context.sql(sql).await?.take_all().await?;
    let counts = batches.iter().filter_map(|batch| batch.column_by_name("count"));
    Ok(counts.flat_map(|count| count.as_primitive::<UInt64Type>().values().to_vec()).collect())
}

async fn ids(context: &DataContext) -> Vec<i64> {
    ints(&context.sql("SELECT id FROM t").await.unwrap().take_all().await.unwrap(), "id")
}

/// A context with a function `wait` that says when it is called with rows, and gives them back once something was sent.
fn with_a_gate() -> (DataContext, Sender<()>, UnboundedReceiver<()>) {
    let context = context();
    let ((open, gate), (begun, has_begun)) = (channel::<()>(), unbounded_channel());
    let gate = Mutex::new(gate);
    context.register_batches("wait", move |batch| {
        // The function is called with no rows to find its columns.
        if batch.num_rows() > 0 {
            begun.send(()).unwrap();
            gate.lock().unwrap().recv().unwrap();
        }
        Ok(batch)
    });
    (context, open, has_begun)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_added_by_two_statements_at_once() {
    let (context, open, mut begun) = with_a_gate();
    run(&context, "CREATE TABLE t AS SELECT id FROM range(10, override_num_blocks => 1)").await.unwrap();
    let slow = "INSERT INTO t SELECT id + 100 FROM map_batches(range(3, override_num_blocks => 1), 'wait')";
    let meanwhile = async {
        begun.recv().await.unwrap();
        let added = run(&context, "INSERT INTO t VALUES (50)").await;
        open.send(()).unwrap();
        added
    };
    let (slow, added) = tokio::join!(run(&context, slow), meanwhile);
    assert_eq!((slow.unwrap(), added.unwrap()), (vec![3], vec![1]));
    assert_eq!(ids(&context).await, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 50, 100, 101, 102]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_a_table_that_was_changed_meanwhile_is_an_error() {
    for slow in [
        "DELETE FROM t WHERE id IN (SELECT id FROM map_batches(range(3, override_num_blocks => 1), 'wait'))",
        "UPDATE t SET id = -1 WHERE id IN (SELECT id FROM map_batches(range(3, override_num_blocks => 1), 'wait'))",
        "INSERT OVERWRITE t SELECT id FROM map_batches(range(3, override_num_blocks => 1), 'wait')",
    ] {
        let (context, open, mut begun) = with_a_gate();
        run(&context, "CREATE TABLE t AS SELECT id FROM range(10, override_num_blocks => 1)").await.unwrap();
        let meanwhile = async {
            begun.recv().await.unwrap();
            let deleted = run(&context, "DELETE FROM t WHERE id > 1").await;
            open.send(()).unwrap();
            deleted
        };
        let (slow, deleted) = tokio::join!(run(&context, slow), meanwhile);
        assert_eq!(deleted.unwrap(), [8]);
        let error = slow.unwrap_err().to_string();
        assert!(error.contains("table 't' was changed by another statement while this one ran"), "{error}");
        assert_eq!(ids(&context).await, [0, 1], "it changed nothing");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_sees_the_table_as_it_was_when_it_began() {
    let context = context();
    run(&context, "CREATE TABLE t AS SELECT id FROM range(100000, override_num_blocks => 20)").await.unwrap();
    let lazy = context.sql("SELECT id FROM t").await.unwrap();
    let mut rows = lazy.stream().await.unwrap();
    let first = rows.try_next().await.unwrap().unwrap().num_rows();
    assert_eq!(run(&context, "TRUNCATE t").await.unwrap(), [100_000]);
    let rest: usize = rows.try_fold(0, |n, batch| async move { Ok(n + batch.num_rows()) }).await.unwrap();
    assert_eq!(first + rest, 100_000);
    assert_eq!(lazy.count().await.unwrap(), 0, "the next execution sees what there is by then");
    // Nobody reads what was there before.
    emptied(&context).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_fails_leaves_table_and_memory_as_they_were() {
    let context = context_with(2, |options| options.memory_limit = mib(64));
    run(&context, "CREATE TABLE t AS SELECT id FROM range(100000, override_num_blocks => 10)").await.unwrap();
    let blocks = context.store().blocks().len();
    for fails in [
        "INSERT INTO t SELECT 10 / (id - 99999) FROM range(100000, override_num_blocks => 10)",
        "UPDATE t SET id = 10 / (id - 99999)",
        "DELETE FROM t WHERE 10 / (id - 99999) > 5",
    ] {
        assert!(run(&context, fails).await.is_err(), "{fails}");
        settled(&context, |store| store.blocks().len() == blocks).await;
        assert_eq!(context.store().blocks().len(), blocks, "{fails}");
    }
    assert_eq!(run(&context, "DELETE FROM t WHERE id >= 3").await.unwrap(), [99_997]);
    assert_eq!(ids(&context).await, [0, 1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_without_a_query_is_in_the_block_store() {
    let context = context();
    run(&context, "CREATE TABLE t (id BIGINT)").await.unwrap();
    assert_eq!(run(&context, "INSERT INTO t SELECT * FROM range(100000)").await.unwrap(), [100_000]);
    let rows: usize = context.store().blocks().iter().map(|block| block.metadata.num_rows).sum();
    assert_eq!(rows, 100_000);
    run(&context, "DROP TABLE t").await.unwrap();
    emptied(&context).await;
}

#[tokio::test]
async fn a_self_join_reads_one_state() {
    let context = context();
    run(&context, "CREATE TABLE t AS SELECT id FROM range(10)").await.unwrap();
    assert_eq!(run(&context, "INSERT INTO t SELECT a.id + 100 FROM t a JOIN t b ON a.id = b.id").await.unwrap(), [10]);
    assert_eq!(run(&context, "DELETE FROM t WHERE id > (SELECT avg(id) FROM t)").await.unwrap(), [10]);
    assert_eq!(ids(&context).await, (0..10).collect::<Vec<_>>());
}
