//! Grouping sets that are made from finer ones, against the same sets of all rows.

use blockyard::prelude::*;
use proptest::prelude::*;

use crate::fixtures::{context_with, mib, rows};

/// Lines with keys of several types, of which some are null, and items of all but one of them.
async fn tables(context: &DataContext, directory: &str, seed: u64) {
    let (step, keys) = (seed % 89 * 2 + 1, 3 + seed % 40_000);
    for (name, query) in [
        (
            "lines",
            format!(
                "SELECT CASE WHEN id % 17 = 3 THEN NULL ELSE id * {step} % {keys} END AS a,
                 CASE WHEN id % 6 = 0 THEN NULL ELSE 'name ' || (id * {step} % 40) END AS b, id % 7 AS c,
                 CASE WHEN id % 5 = 1 THEN NULL ELSE id % 23 END AS v, (id % 1000)::decimal(7, 2) / 4 AS price,
                 (id % 64) / 8.0::double AS f FROM range(130000, override_num_blocks => 4)"
            ),
        ),
        ("items", "SELECT id AS c, 'item ' || (id / 2) AS item FROM range(6, override_num_blocks => 1)".to_owned()),
    ] {
        rows(context, &format!("COPY ({query}) TO '{directory}/{name}/' STORED AS PARQUET")).await;
        rows(context, &format!("CREATE VIEW {name} AS SELECT * FROM read_parquet('{directory}/{name}/')")).await;
    }
}

fn query() -> impl Strategy<Value = String> {
    let sets = proptest::sample::select(vec![
        "ROLLUP (a, b, c)",
        "ROLLUP (b, c)",
        "ROLLUP (a % 3, item, b)",
        "CUBE (b, c)",
        "CUBE (a, b, item)",
        "GROUPING SETS ((b, c), (c), (b))",
        "GROUPING SETS ((a, b), ())",
        "GROUPING SETS ((a), (b), (c))",
        "GROUPING SETS ((b, c), (c), (c), ())",
        "c, ROLLUP (a, item)",
        "CUBE (c), ROLLUP (b)",
    ]);
    let functions = [
        "count(*)",
        "count(v)",
        "sum(v)",
        "sum(price)",
        "min(price)",
        "max(b)",
        "avg(v)",
        "avg(price)",
        "sum(f)",
        "stddev(v * 0)",
        "bool_or(v > 20)",
        "sum(v * 2 + c) FILTER (WHERE c > 3)",
        "count(*) FILTER (WHERE b = 'name 1')",
        "avg(v) FILTER (WHERE c < 0)",
        "avg(price) FILTER (WHERE c < 0)",
        "round(corr(v, c), 6)",
        "approx_distinct(v) FILTER (WHERE c = 4)",
        "count(DISTINCT v)",
    ];
    let functions = proptest::sample::subsequence(functions.to_vec(), 0..=4);
    let condition = proptest::sample::select(vec!["", "WHERE c < 5", "WHERE v IS NOT NULL", "WHERE c < 0"]);
    (sets, functions, condition).prop_map(|(sets, functions, condition)| {
        let (is_of_a, is_of_b) = (sets.contains('a'), sets.contains("b"));
        let told = match (is_of_a && !sets.contains('%'), is_of_b) {
            (true, true) => "a, b, grouping(b)",
            (true, false) => "a, grouping(a)",
            (false, true) => "b, grouping(b)",
            (false, false) => "1",
        };
        let told = std::iter::once(told).chain(functions).collect::<Vec<_>>().join(", ");
        format!("SELECT {told} FROM lines JOIN items USING (c) {condition} GROUP BY {sets}")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sets_are_the_same_from_rows_and_from_finer_sets(
        seed in any::<u32>(),
        queries in proptest::collection::vec(query(), 8),
        limit in prop_oneof![Just(1024_usize), Just(64)],
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let context = context_with(2, |options| options.memory_limit = mib(limit));
            let directory = tempfile::tempdir().unwrap();
            tables(&context, &directory.path().display().to_string(), u64::from(seed)).await;
            for query in queries {
                rows(&context, "SET blockyard.optimize_rolled_up_groups = false").await;
                let mut expected = rows(&context, &query).await;
                rows(&context, "SET blockyard.optimize_rolled_up_groups = true").await;
                let mut found = rows(&context, &query).await;
                expected.sort();
                found.sort();
                prop_assert_eq!(found, expected, "{}", query);
            }
            Ok(())
        })?;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_set_takes_the_groups_of_a_finer_one() {
    let (context, directory) =
        (context_with(2, |options| options.memory_limit = mib(512)), tempfile::tempdir().unwrap());
    tables(&context, &directory.path().display().to_string(), 11).await;
    let query = "SELECT b, c, sum(v) FROM lines GROUP BY ROLLUP (b, c)";
    let told = rows(&context, &format!("EXPLAIN ANALYZE {query}")).await.join("\n");
    let line = told.lines().find(|line| line.contains("RollUpExec")).unwrap();
    assert!(line.contains("sets=[(b, c), (b), ()]"), "{told}");
    // 41 names with each of 7 numbers, the names, and all, from either of two threads: not three times 130,000 rows.
    let given = line.split("output_rows=").nth(1).unwrap().split([',', ']']).next().unwrap();
    let given: usize = given.parse().unwrap();
    assert!((41 * 7 + 41 + 1..=2 * (41 * 7 + 41 + 1)).contains(&given), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_rows_have_the_group_of_all_and_no_other() {
    let context = context_with(2, |_| {});
    let lines = "(SELECT id % 3 AS b, id % 5 AS c, id AS v FROM range(100000))";
    let functions = "count(*), sum(v), avg(v), avg(v::decimal(10, 2)), corr(v, b), approx_distinct(v)";
    // A condition that nobody expects to keep nothing.
    let query = |sets: &str| format!("SELECT b, c, {functions} FROM {lines} WHERE b + c + v < 0 GROUP BY {sets}");
    let told = rows(&context, &format!("EXPLAIN {}", query("ROLLUP (b, c)"))).await.join("\n");
    assert!(told.contains("RollUpExec"), "{told}");
    assert_eq!(rows(&context, &query("ROLLUP (b, c)")).await, ["NULL|NULL|0|NULL|NULL|NULL|NULL|0"]);
    assert_eq!(rows(&context, &query("GROUPING SETS ((b, c), (b))")).await, [""; 0]);
}
