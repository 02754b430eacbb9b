//! What is compared and when, and that each comparison fires when rows are lost on purpose.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::prelude::SessionConfig;
use futures::{StreamExt, TryStreamExt, stream};

use super::RowBalance;
use crate::physical::tasks::faults::{Fault, Faults};
use crate::physical::tasks::stream_of;
use crate::{Blockyard, BlockyardOptions, ByteSize, DataContext, MemoryLimit};

/// A stream of batches with so many rows.
fn rows(sizes: &[i64]) -> SendableRecordBatchStream {
    let batch = |size: &i64| {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..*size));
        RecordBatch::try_from_iter([("n", column)]).unwrap()
    };
    let batches: Vec<_> = sizes.iter().map(|size| Ok(batch(size))).collect();
    stream_of(batch(&0).schema(), stream::iter(batches).boxed())
}

fn balance() -> Arc<RowBalance> {
    RowBalance::new("An operator", &TaskContext::default())
}

async fn drained(batches: SendableRecordBatchStream) -> Result<usize> {
    batches.try_fold(0, |rows, batch| async move { Ok(rows + batch.num_rows()) }).await
}

#[tokio::test]
async fn the_last_output_to_end_compares() {
    let balance = balance();
    assert_eq!(drained(balance.taking(rows(&[3, 0, 4]))).await.unwrap(), 7);
    let (first, second) = (balance.giving(rows(&[3])), balance.giving(rows(&[1, 2])));
    balance.all_begun().unwrap();
    balance.all_begun().unwrap();
    assert_eq!(drained(first).await.unwrap(), 3);
    let error = drained(second).await.unwrap_err().to_string();
    assert!(error.contains("An operator took 7 rows and gave 6"), "{error}");
}

#[tokio::test]
async fn whoever_says_that_all_have_begun_may_be_the_last() {
    let balance = balance();
    balance.take(2);
    drained(balance.giving(rows(&[2, 1]))).await.unwrap();
    assert!(balance.all_begun().unwrap_err().to_string().contains("took 2 rows and gave 3"));
    assert!(balance.all_begun().is_ok(), "it is said once");
}

#[tokio::test]
async fn what_is_left_early_is_not_compared() {
    let early = balance();
    early.take(10);
    let mut output = early.giving(rows(&[1, 2]));
    output.next().await.unwrap().unwrap();
    drop(output);
    drained(early.giving(rows(&[2]))).await.unwrap();
    early.all_begun().unwrap();
    let unread = balance();
    unread.take(10);
    drop(unread.output());
    unread.all_begun().unwrap();
}

#[tokio::test]
async fn equal_numbers_are_right() {
    let balance = balance();
    balance.take(5);
    let outputs = [balance.giving(rows(&[5])), balance.giving(rows(&[]))];
    balance.all_begun().unwrap();
    for output in outputs {
        drained(output).await.unwrap();
    }
}

/// A session in which an operator goes wrong, and what a stage gives waits in a queue.
fn faulty(operator: &'static str, fault: Fault) -> DataContext {
    let options = BlockyardOptions { num_cpus: 2, optimize_fuse_stages: false, ..Default::default() };
    let config = SessionConfig::new().with_target_partitions(2).with_extension(Arc::new(Faults { operator, fault }));
    DataContext::with_config(Blockyard { options, ..Default::default() }, config).unwrap()
}

/// The error of a statement, or the rows that it gives.
async fn run(context: &DataContext, sql: &str) -> Result<usize> {
    drained(context.sql(sql).await?.stream().await?).await
}

/// Operators, by a part of their names in errors, and a query that has each.
const PLACES: &[(&str, &str)] = &[
    ("scheme=random", "SELECT * FROM random_shuffle(range(5000), seed => 1)"),
    ("scheme=hash", "SELECT * FROM repartition(range(5000), 4, keys => 'id')"),
    ("scheme=hash", "SELECT * FROM repartition(range(5000), 4, keys => 'id', sort => true)"),
    ("scheme=range", "SELECT * FROM repartition(range(5000), keys => 'id', boundaries => [100, 4000])"),
    ("scheme=slices", "SELECT * FROM repartition(map_batches(range(5000), 'identity'), 3)"),
    ("scheme=sized", "SELECT * FROM repartition(range(5000), target_num_rows_per_block => 70)"),
    ("scheme=spread", "SELECT * FROM repartition(range(5000), 3, shuffle => true)"),
    (
        "scheme=block_order",
        "SELECT * FROM randomize_block_order(repartition(range(5000), target_num_rows_per_block => 500), seed => 1)",
    ),
    ("the queue behind", "SELECT * FROM map_batches(range(5000), 'identity', concurrency => 2)"),
    ("gathering the rows", "SELECT * FROM map_batches(range(5000), 'identity')"),
    ("input 1 of ZipExec", "SELECT * FROM zip(range(5000), (SELECT id AS other FROM range(5000)))"),
    ("MixExec", "SELECT * FROM mix(range(5000), range(300))"),
    (
        "BucketJoinExec: JoinLeft",
        "SELECT * FROM (SELECT id AS a FROM range(150000)) JOIN (SELECT id AS b FROM range(170000)) ON a = b",
    ),
    (
        "BucketJoinExec: JoinRight",
        "SELECT * FROM (SELECT id AS a FROM range(170000)) JOIN (SELECT id AS b FROM range(150000)) ON a = b",
    ),
    (
        "LoopJoinExec: JoinLeft",
        "SELECT a, b FROM (SELECT id AS a FROM range(200000)) JOIN (SELECT id AS b FROM range(200)) ON a < b AND a + 2 > b",
    ),
    (
        "LoopJoinExec: JoinRight",
        "SELECT a, b FROM (SELECT id AS a FROM range(200000)) FULL JOIN (SELECT id AS b FROM range(200000)) ON a < b AND a + 2 > b",
    ),
    ("CumulativeWindowsExec", "SELECT count(*) OVER (PARTITION BY id % 7) FROM range(5000)"),
    ("CumulativeWindowsExec", "SELECT rank() OVER (ORDER BY id % 7) FROM range(5000)"),
    ("WindowPartitionsExec", "SELECT ntile(3) OVER (PARTITION BY id % 7 ORDER BY id) FROM range(5000)"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_operator_finds_rows_that_it_loses_or_doubles() {
    for (operator, sql) in PLACES {
        let part = operator.trim_start_matches("scheme=");
        let right = run(&faulty("no such operator", Fault::Dropped), sql).await;
        assert!(right.is_ok_and(|rows| rows > 0), "{sql}");
        for fault in [Fault::Dropped, Fault::Twice, Fault::OffByOne] {
            let context = faulty(part, fault);
            if operator.contains("Join") {
                // Both sides are written.
                let little = |options: &mut BlockyardOptions| {
                    options.prefer_spilling_joins = true;
                    options.memory_limit = MemoryLimit::Bytes(ByteSize::mib(32));
                };
                context.configure(little).unwrap();
            }
            let error = run(&context, sql).await.expect_err(&format!("{fault:?} in {operator}")).to_string();
            // Inputs of different lengths are an error of the user's, which a zip finds first.
            let found = error.contains(part) && error.contains("rows and gave");
            assert!(found || error.contains("zip needs equally many rows"), "{fault:?} in {operator}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_loses_rows_commits_nothing() {
    for fault in [Fault::Dropped, Fault::Twice, Fault::OffByOne] {
        for single in ["out", "out.parquet"] {
            let context = faulty("WriteParquet", fault);
            let directory = tempfile::tempdir().unwrap();
            let to = directory.path().join(single).display().to_string();
            let copy = format!("COPY (SELECT * FROM range(5000)) TO '{to}' STORED AS PARQUET");
            let error = run(&context, &copy).await.unwrap_err().to_string();
            assert!(error.contains("WriteParquet took"), "{error}");
            let left: Vec<_> = walk(directory.path()).into_iter().filter(|file| file.ends_with(".parquet")).collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

/// All files below a directory, hidden ones too.
fn walk(directory: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path()) {
        match path.is_dir() {
            true => found.extend(walk(&path)),
            false => found.push(path.display().to_string()),
        }
    }
    found
}
