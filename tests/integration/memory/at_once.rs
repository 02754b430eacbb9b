//! Several queries at once in one session, under one limit.

use std::path::Path;

use blockyard::prelude::*;
use tokio::task::JoinSet;

use crate::fixtures::{context_with, entries, mib, rows};

/// Queries over more data than the limit, each with its own way to need memory.
const QUERIES: [&str; 8] = [
    "SELECT count(*), sum(place * v) FROM (SELECT v, row_number() OVER () AS place
     FROM (SELECT * FROM read_parquet('{in}/') ORDER BY v, id))",
    "SELECT count(*), sum(n), min(s) FROM (SELECT s, count(*) AS n FROM read_parquet('{in}/') GROUP BY s)",
    "SELECT count(*), sum(a.v + b.v), min(a.s || b.s) FROM read_parquet('{in}/') AS a
     JOIN read_parquet('{in}/') AS b ON a.k = b.id",
    "SELECT count(*), sum(place * v), min(s) FROM (SELECT v, s, row_number() OVER () AS place
     FROM random_shuffle(read_parquet('{in}/'), seed => 7))",
    "SELECT count(*), sum(v), max(s) FROM repartition(read_parquet('{in}/'), 16)",
    "SELECT count(*), sum(v), sum(length(s)) FROM map_batches(read_parquet('{in}/'), 'identity')",
    "SELECT count(*), sum(a.v) FROM read_parquet('{in}/') AS a
     LEFT JOIN read_parquet('{in}/') AS b ON a.s = b.s AND b.v % 2 = 0 WHERE b.id IS NULL",
    "SELECT count(*), sum(total) FROM (SELECT v, sum(v) OVER (PARTITION BY k % 1000 ORDER BY id) AS total
     FROM read_parquet('{in}/'))",
];

async fn write_input(directory: &Path) {
    let sql = format!(
        "COPY (SELECT id, id * 7919 % 200000 AS k, id * 48271 % 1000003 AS v,
                      repeat(md5(CAST(id AS VARCHAR)), 24) AS s FROM range(200000)) TO '{}/' STORED AS PARQUET",
        directory.display()
    );
    rows(&context_with(2, |_| {}), &sql).await;
}

async fn run_at_once(number: usize) {
    let directory = tempfile::tempdir().unwrap();
    let (input, spill) = (directory.path().join("in"), directory.path().join("spill"));
    std::fs::create_dir(&spill).unwrap();
    write_input(&input).await;
    let queries = QUERIES.map(|query| query.replace("{in}", &input.display().to_string()));
    let unlimited = context_with(2, |_| {});
    let mut expected = Vec::new();
    for query in &queries {
        expected.push(rows(&unlimited, query).await);
    }
    let limited = context_with(2, |options| {
        options.memory_limit = mib(32);
        options.spill_directory = spill.display().to_string();
    });
    let mut running: JoinSet<(usize, Result<Vec<String>, String>)> = JoinSet::new();
    let start = |i: usize| {
        let (context, sql): (DataContext, String) = (limited.clone(), queries[i].clone());
        async move {
            let dataset = context.sql(&sql).await.map_err(|e| e.to_string())?;
            let batches = dataset.take_all().await.map_err(|e| e.to_string())?;
            Ok(crate::fixtures::lines(&batches))
        }
    };
    let mut failures = Vec::new();
    let mut waiting = (0..queries.len()).chain(0..queries.len());
    for i in waiting.by_ref().take(number) {
        let query = start(i);
        running.spawn(async move { (i, query.await) });
    }
    while let Some(ended) = running.join_next().await {
        let (i, result) = ended.unwrap();
        if result.as_ref() != Ok(&expected[i]) {
            failures.push(format!("{}\n{result:?}", queries[i]));
        }
        if let Some(i) = waiting.next() {
            let query = start(i);
            running.spawn(async move { (i, query.await) });
        }
    }
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n\n"));
    let budget = limited.store().budget();
    assert_eq!(budget.used(), 0);
    drop(limited);
    assert_eq!(entries(&spill), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_one_after_the_other_have_the_limit() {
    run_at_once(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_queries_at_once_share_the_limit() {
    run_at_once(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_queries_at_once_share_the_limit() {
    run_at_once(8).await;
}
