//! The first rows of each group, against windows over all rows.

use blockyard::prelude::*;
use proptest::prelude::*;

use crate::fixtures::{context_with, mib, rows};

/// Rows with keys and orders of several types, with nulls, in some order of their own.
async fn table(context: &DataContext, directory: &str, seed: u64) {
    let (step, groups) = (seed % 97 * 2 + 1, 1 + seed % 30_000);
    let query = format!(
        "SELECT id, CASE WHEN id % 19 = 3 THEN NULL ELSE id * {step} % {groups} END AS a,
         CASE WHEN id % 6 = 0 THEN NULL ELSE 'name ' || (id * {step} % 40) END AS b,
         date '2020-01-01' + (id % 7)::int AS day,
         CASE WHEN id % 11 = 1 THEN NULL ELSE id * 48271 % 1009 END AS v,
         (id * 48271 % 103 - 50) / 4.0::double AS f,
         'a text of which the first letters are equal ' || (id * 7919 % 1013) AS long,
         (id * {step} % 1000)::decimal(30, 2) / 4 AS price, to_timestamp(id * {step} % 100000) AS ts
         FROM range(90000, override_num_blocks => 4)"
    );
    rows(context, &format!("COPY ({query}) TO '{directory}/t/' STORED AS PARQUET")).await;
    rows(context, &format!("CREATE VIEW t AS SELECT * FROM read_parquet('{directory}/t/')")).await;
}

fn query() -> impl Strategy<Value = String> {
    let keys = ["a", "b", "day", "a, b", "b, day", "price", "ts", "a % 5, b", "long"];
    let orders = ["v", "f", "long", "price", "ts", "id", "b", "v, f", "day, long", "b, price", "id - v"];
    let direction = || proptest::sample::select(vec!["", "DESC", "DESC NULLS LAST", "NULLS FIRST"]);
    // Which of equal rows has the number 1 is left open, but for all columns.
    let numbered = proptest::sample::select(vec![("row_number()", true), ("rank()", false), ("dense_rank()", false)]);
    let asked = proptest::sample::select(vec!["= 1", "<= 1", "<= 2", "< 4", "IN (1, 3)", "BETWEEN 2 AND 5", "<= 40"]);
    let beside = proptest::sample::select(vec![
        "0",
        "count(*) OVER w",
        "sum(id) OVER (w ROWS UNBOUNDED PRECEDING)",
        "max(v) OVER (w ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)",
        "lag(v) OVER w",
        "lead(v) OVER w",
        "ntile(3) OVER w",
        "dense_rank() OVER w",
        "sum(v) OVER (PARTITION BY day)",
    ]);
    let condition = proptest::sample::select(vec!["", "AND v % 3 = 0", "AND x IS NOT NULL"]);
    let keys = proptest::sample::select(keys.to_vec());
    let order = (proptest::sample::select(orders.to_vec()), direction());
    (keys, order, numbered, asked, beside, condition).prop_map(
        |(keys, (order, direction), (function, is_open), asked, beside, condition)| {
            let last = if is_open || beside.contains("ROWS") || beside.contains("l") { ", id" } else { "" };
            format!(
                "SELECT id, n, x, long FROM (SELECT *, {function} OVER w AS n, {beside} AS x FROM t
                 WINDOW w AS (PARTITION BY {keys} ORDER BY {order} {direction}{last})) AS y WHERE n {asked} {condition}"
            )
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_first_of_each_group_are_the_same_as_of_all_rows(
        seed in any::<u32>(),
        queries in proptest::collection::vec(query(), 8),
        (limit, batch) in prop_oneof![Just((1024_usize, 8192)), Just((1024, 100)), Just((64, 8192))],
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let context = context_with(2, |options| options.memory_limit = mib(limit));
            let directory = tempfile::tempdir().unwrap();
            table(&context, &directory.path().display().to_string(), u64::from(seed)).await;
            rows(&context, &format!("SET datafusion.execution.batch_size = {batch}")).await;
            for query in queries {
                rows(&context, "SET blockyard.optimize_top_of_groups = false").await;
                let mut expected = rows(&context, &query).await;
                rows(&context, "SET blockyard.optimize_top_of_groups = true").await;
                let mut found = rows(&context, &query).await;
                expected.sort();
                found.sort();
                prop_assert!(found == expected, "{} rows, not {}: {query}", found.len(), expected.len());
            }
            Ok(())
        })?;
    }
}

/// How many rows are left for the window of a query; fewer than 1,000.
async fn given(context: &DataContext, query: &str) -> usize {
    let told = rows(context, &format!("EXPLAIN ANALYZE {query}")).await.join("\n");
    let line = told.lines().find(|line| line.contains("GroupTopKExec")).unwrap();
    line.split("output_rows=").nth(1).unwrap().split([',', ']']).next().unwrap().trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn few_rows_are_left_in_whichever_order_they_come() {
    let context = context_with(2, |options| options.memory_limit = mib(1024));
    for order in ["id", "id DESC", "id * 7919 % 100000"] {
        let query = format!(
            "SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY id % 50 ORDER BY {order}) AS n
             FROM range(100000, override_num_blocks => 4)) WHERE n <= 2"
        );
        assert_eq!(rows(&context, &query).await.len(), 100);
        let left = given(&context, &query).await;
        assert!((100..=200).contains(&left), "{left} of {order}");
    }
    // Each row has a group, so all are passed on.
    let query = "SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY id * 2 ORDER BY id) AS n
                 FROM range(2000000, override_num_blocks => 4)) WHERE n = 1";
    assert_eq!(rows(&context, &format!("SELECT count(*) FROM ({query})")).await, ["2000000"]);
}
