//! Rows that are grouped before they are joined, and by numbers in place of texts, against the same rows grouped behind
//! the joins by texts.

use blockyard::prelude::*;
use proptest::prelude::*;

use crate::fixtures::{context_with, mib, rows};

/// Sales whose keys may be null or of nobody, customers of which several may have one key, and their nations.
async fn tables(context: &DataContext, directory: &str, seed: u64) {
    let (step, keys) = (seed % 89 * 2 + 1, 300 + seed % 1500);
    for (name, query) in [
        (
            "sales",
            format!(
                "SELECT CASE WHEN id % 17 = 3 THEN NULL ELSE id * {step} % {keys} END AS customer,
                 CASE WHEN id % 5 = 1 THEN NULL ELSE id % 23 END AS v, id % 7 AS w, id * 1.25 AS price,
                 'item ' || (id % 3) AS item FROM range(130000, override_num_blocks => 4)"
            ),
        ),
        (
            "customers",
            format!(
                "SELECT id % {} AS customer, CASE WHEN id % 6 = 0 THEN NULL ELSE 'name ' || (id % 40) END AS name,
                 CASE WHEN id % 9 = 0 THEN NULL ELSE id % 5 END AS nation FROM range(900, override_num_blocks => 1)",
                500 + seed % 400
            ),
        ),
        (
            "nations",
            "SELECT id AS nation, 'nation ' || (id / 2) AS place FROM range(4, override_num_blocks => 1)".to_owned(),
        ),
    ] {
        rows(context, &format!("COPY ({query}) TO '{directory}/{name}/' STORED AS PARQUET")).await;
        rows(context, &format!("CREATE VIEW {name} AS SELECT * FROM read_parquet('{directory}/{name}/')")).await;
    }
}

fn some_of(of: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
    proptest::sample::subsequence(of.to_vec(), 1..=of.len())
}

fn query() -> impl Strategy<Value = String> {
    let groups = some_of(&["name", "place", "item", "w", "name || item", "w % 2", "coalesce(place, name)"]);
    let functions = some_of(&[
        "count(*)",
        "count(v)",
        "sum(v)",
        "sum(price)",
        "min(price)",
        "max(item)",
        "avg(v)",
        "bool_or(v > 20)",
        "sum(v * 2 + w) FILTER (WHERE w > 3)",
        "count(*) FILTER (WHERE item = 'item 1')",
        "count(DISTINCT v)",
        "max(name)",
    ]);
    let condition =
        proptest::sample::select(vec!["", "WHERE w < 5", "WHERE place <> 'nation 1'", "WHERE v IS NOT NULL"]);
    (groups, functions, condition).prop_map(|(groups, functions, condition)| {
        let (groups, functions) = (groups.join(", "), functions.join(", "));
        format!(
            "SELECT {groups}, {functions} FROM sales JOIN customers ON sales.customer = customers.customer
             JOIN nations ON customers.nation = nations.nation {condition} GROUP BY {groups}"
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn groups_are_the_same_before_and_behind_joins(
        seed in any::<u32>(),
        queries in proptest::collection::vec(query(), 10),
        limit in prop_oneof![Just(1024_usize), Just(96)],
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let context = context_with(2, |options| options.memory_limit = mib(limit));
            let directory = tempfile::tempdir().unwrap();
            tables(&context, &directory.path().display().to_string(), u64::from(seed)).await;
            for query in queries {
                let mut expected = None;
                for (is_early, is_coded) in [(false, false), (true, true), (false, true)] {
                    rows(&context, &format!("SET blockyard.optimize_group_before_joins = {is_early}")).await;
                    rows(&context, &format!("SET blockyard.optimize_coded_texts = {is_coded}")).await;
                    let mut found = rows(&context, &query).await;
                    found.sort();
                    prop_assert_eq!(&found, expected.get_or_insert(found.clone()), "{}", query);
                }
            }
            Ok(())
        })?;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn few_states_are_joined_instead_of_many_rows() {
    let (context, directory) =
        (context_with(2, |options| options.memory_limit = mib(512)), tempfile::tempdir().unwrap());
    tables(&context, &directory.path().display().to_string(), 11).await;
    let query = "SELECT name, sum(v) FROM sales JOIN customers ON sales.customer = customers.customer GROUP BY name";
    let told = rows(&context, &format!("EXPLAIN ANALYZE {query}")).await.join("\n");
    let join = told.lines().find(|line| line.contains("HashJoinExec")).unwrap();
    // Of 130,000 rows a thread has at most as many keys as there are, and null.
    let read = join.split("input_rows=").last().unwrap().split([',', ']']).next().unwrap();
    let read: f64 = read.trim_end_matches(" K").parse().unwrap();
    assert!(join.contains("input_rows=") && read < 10.0 * 1000.0, "{told}");
    assert!(told.contains("mode=Partial, gby=[customer@0 as customer]"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_of_joins_are_numbers_until_they_are_grouped() {
    let (context, directory) =
        (context_with(2, |options| options.memory_limit = mib(512)), tempfile::tempdir().unwrap());
    tables(&context, &directory.path().display().to_string(), 11).await;
    rows(&context, "SET blockyard.optimize_group_before_joins = false").await;
    let query =
        "SELECT name, w, sum(v) FROM sales JOIN customers ON sales.customer = customers.customer GROUP BY name, w";
    let told = rows(&context, &format!("EXPLAIN {query}")).await.join("\n");
    assert!(told.contains("DecodeExec: name") && told.contains("CodeExec: name"), "{told}");
    // The same plan twice in one query, at once.
    let twice = format!("SELECT count(*), count(DISTINCT name) FROM (({query}) UNION ALL ({query}))");
    assert_eq!(rows(&context, &twice).await, ["574|40"]);
}
