//! Sorts of partitions in memory, against DataFusion's sort.

use blockyard::prelude::*;
use proptest::prelude::*;

use crate::fixtures::{context_with, mib, rows};

/// Rows with keys of several types, some of them null, constant or long.
async fn table(context: &DataContext, directory: &str, seed: u64) {
    let step = seed % 97 * 2 + 1;
    let query = format!(
        "SELECT id, CASE WHEN id % 19 = 3 THEN NULL ELSE id * {step} % 9001 END AS a,
         CASE WHEN id % 6 = 0 THEN NULL ELSE 'name ' || (id * {step} % 40) END AS b, 7 AS c, id / 3000 AS ordered,
         (id * 48271 % 10301 - 5000) / 4.0::double AS f, to_timestamp(id * {step} % 100000) AS ts,
         'a text of which the first letters are equal ' || (id * 7919 % 1013) AS long,
         (id * {step} % 1000)::decimal(30, 2) / 4 AS price
         FROM range(140000, override_num_blocks => 4)"
    );
    rows(context, &format!("COPY ({query}) TO '{directory}/t/' STORED AS PARQUET")).await;
    rows(context, &format!("CREATE VIEW t AS SELECT * FROM read_parquet('{directory}/t/')")).await;
}

fn query() -> impl Strategy<Value = String> {
    let columns = ["a", "b", "c", "ordered", "f", "ts", "long", "price"];
    let key = || proptest::sample::select(columns.to_vec());
    let direction = proptest::sample::select(vec!["", "DESC", "DESC NULLS LAST", "NULLS FIRST"]);
    let groups = proptest::sample::select(vec!["b", "c", "a", "ordered", "b, ordered", "long"]);
    (groups, key(), key(), direction).prop_map(|(groups, first, second, direction)| {
        format!(
            "SELECT sum(place * (id % 1009)), sum(before % 1013), sum(total % 1019), count(*) FROM (SELECT id,
             row_number() OVER w AS place, lag(id) OVER w AS before, sum(id) OVER w AS total FROM t
             WINDOW w AS (PARTITION BY {groups} ORDER BY {first} {direction}, {second}, id))"
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rows_are_in_the_order_of_datafusions_sort(
        seed in any::<u32>(),
        queries in proptest::collection::vec(query(), 4),
        // The last is too little for all rows, which are handed over.
        limit in prop_oneof![Just(4096_usize), Just(2048), Just(128)],
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let context = context_with(2, |options| options.memory_limit = mib(limit));
            let directory = tempfile::tempdir().unwrap();
            table(&context, &directory.path().display().to_string(), u64::from(seed)).await;
            for query in queries {
                rows(&context, "SET blockyard.optimize_sorts_in_memory = false").await;
                let expected = rows(&context, &query).await;
                rows(&context, "SET blockyard.optimize_sorts_in_memory = true").await;
                prop_assert_eq!(rows(&context, &query).await, expected, "{}", query);
            }
            Ok(())
        })?;
    }
}

/// How many streams of a query had too many rows to be sorted in memory.
async fn handed_over(context: &DataContext, query: &str) -> String {
    let told = rows(context, &format!("EXPLAIN ANALYZE {query}")).await.join("\n");
    let line = told.lines().find(|line| line.contains("SortInMemoryExec")).unwrap().to_owned();
    line.split("handed_over=").nth(1).unwrap().split([',', ']']).next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_sorted_by_datafusion() {
    let query =
        "SELECT sum(place * id % 11) FROM (SELECT id, row_number() OVER (PARTITION BY id % 9 ORDER BY t) AS place
                 FROM (SELECT id, md5(id::varchar) AS t FROM range(400000, override_num_blocks => 4)))";
    let (large, small) = (
        context_with(2, |options| options.memory_limit = mib(4096)),
        context_with(2, |options| {
            options.memory_limit = mib(192);
        }),
    );
    assert_eq!(rows(&large, query).await, rows(&small, query).await);
    assert_eq!(handed_over(&large, query).await, "0");
    assert_eq!(handed_over(&small, query).await, "2");
}
