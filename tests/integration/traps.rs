use blockyard::prelude::*;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::SessionContext;

use crate::fixtures::{context, context_with, ints, lines, mib, rows, sql_error};

/// Repartition of DataFusion vanishes from plans; ours stays.
#[tokio::test]
async fn a_repartition_stays_in_the_plan() {
    let plan = context().range(10).unwrap().repartition(7).unwrap().execution_plan().await.unwrap();
    assert!(plan.contains("scheme=slices(num_blocks=7)"), "{plan}");
}

/// DataFusion parses TABLESAMPLE and ignores it.
#[tokio::test]
async fn tablesample_samples() {
    let context = context();
    let count = "SELECT count(*) FROM range(300000) TABLESAMPLE BERNOULLI (1) REPEATABLE (7)";
    let n: usize = rows(&context, count).await[0].parse().unwrap();
    assert!((2_700..3_300).contains(&n), "{n}");
    let derived = "SELECT count(*) FROM (SELECT * FROM range(1000)) AS r TABLESAMPLE (0)";
    assert_eq!(rows(&context, derived).await, ["0"]);
    context.sql("CREATE TABLE t AS SELECT * FROM range(1000)").await.unwrap();
    assert_eq!(rows(&context, "SELECT count(x.id) FROM t AS x TABLESAMPLE BERNOULLI (100)").await, ["1000"]);
}

/// DataFusion pushes predicates without columns below any node, and into every input.
#[tokio::test]
async fn volatile_predicates_stay_above_our_nodes() {
    let context = context();
    let query = "SELECT * FROM zip(range(100), range(100)) WHERE random() < 0.5 AND id >= 0";
    let plan = context.sql(query).await.unwrap().explain().await.unwrap();
    let optimized = plan.split("-- Optimized plan --").nth(1).unwrap();
    let zip = optimized.find("Zip").unwrap();
    assert!(optimized.find("random()").unwrap() < zip, "{plan}");
    assert!(context.sql(query).await.unwrap().take_all().await.is_ok());
    let shuffled = "SELECT * FROM random_shuffle(range(100), seed => 1) WHERE random() < 2 AND id > 90";
    let plan = context.sql(shuffled).await.unwrap().explain().await.unwrap();
    let optimized = plan.split("-- Optimized plan --").nth(1).unwrap();
    let shuffle = optimized.find("RandomShuffle").unwrap();
    assert!(optimized.find("random()").unwrap() < shuffle && optimized.find("90").unwrap() > shuffle, "{plan}");
}

/// DataFusion strips ORDER BY from subqueries, through our nodes too.
#[tokio::test]
async fn the_order_of_a_subquery_reaches_the_function() {
    let sql = "SELECT * FROM map_batches((SELECT * FROM range(100) ORDER BY id DESC), 'identity')";
    let ids = ints(&context().sql(sql).await.unwrap().take_all().await.unwrap(), "id");
    assert_eq!(ids, (0..100).rev().collect::<Vec<i64>>());
}

/// DataFusion loses or refuses named arguments, and does not look up tables in arguments.
#[tokio::test]
async fn tables_and_names_work_as_arguments() {
    let context = context();
    context.sql("CREATE TABLE t AS SELECT * FROM range(10)").await.unwrap();
    for table in ["t", "TABLE(t)", "(SELECT * FROM t)", "map_batches(t, 'identity')"] {
        let sql = format!("SELECT count(*) FROM repartition({table}, shuffle => true, num_blocks => 3)");
        assert_eq!(rows(&context, &sql).await, ["10"], "{table}");
    }
    let cte = "WITH c AS (SELECT * FROM range(4)) SELECT count(*) FROM random_shuffle(c, seed => 1)";
    assert_eq!(rows(&context, cte).await, ["4"]);
}

/// Bare FROM gives no columns in DataFusion.
#[tokio::test]
async fn bare_from_selects_everything() {
    assert_eq!(rows(&context(), "FROM range(2)").await, ["0", "1"]);
}

/// Clauses that plan and then fail, or are ignored, are refused by name.
#[tokio::test]
async fn unhandled_modifiers_are_refused() {
    let context = context();
    for (sql, word) in [
        ("SELECT * FROM range(3) DISTRIBUTE BY id", "DISTRIBUTE BY"),
        ("SELECT * FROM range(3) SORT BY id", "SORT BY"),
        ("SELECT * FROM range(3) CLUSTER BY id", "CLUSTER BY"),
        ("SELECT * FROM generate_series(1, 3) WITH ORDINALITY", "WITH ORDINALITY"),
    ] {
        assert!(sql_error(&context, sql).await.contains(word), "{sql}");
    }
}

/// View arrays make slices count, and keep, all of their buffers.
#[tokio::test]
async fn strings_are_not_views() {
    use datafusion::arrow::datatypes::DataType;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out").to_str().unwrap().to_owned();
    let context = context();
    let ds = context.sql("SELECT CAST(id AS VARCHAR) AS s FROM range(10)").await.unwrap();
    assert_eq!(ds.schema().field(0).data_type(), &DataType::Utf8);
    ds.write_parquet(&path).await.unwrap();
    let read = context.read_parquet(path).await.unwrap();
    assert_eq!(read.schema().field(0).data_type(), &DataType::Utf8);
}

/// DataFusion would replace the memory pool, and with it the shared limit.
#[tokio::test]
async fn the_memory_limit_of_datafusion_sets_ours() {
    let context = context();
    let pool = std::sync::Arc::clone(&context.session().runtime_env().memory_pool);
    for set in ["SET datafusion.runtime.memory_limit = '64M'", "SET blockyard.memory_limit = '64MiB'"] {
        context.sql("RESET blockyard.memory_limit").await.unwrap();
        context.sql(set).await.unwrap();
        assert_eq!(context.store().budget().limit(), 64 << 20, "{set}");
    }
    assert!(std::sync::Arc::ptr_eq(&pool, &context.session().runtime_env().memory_pool));
    context.sql("RESET datafusion.runtime.memory_limit").await.unwrap();
    assert!(context.store().budget().limit() > 64 << 20);
    assert!(sql_error(&context, "SET datafusion.runtime.temp_directory = '/tmp/x'").await.contains("fixed"));
}

/// Scans keep their tasks: DataFusion neither splits them again nor steals between them.
#[tokio::test]
async fn read_tasks_stay_as_they_were_planned() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out").to_str().unwrap().to_owned();
    let context = context();
    context.range_in_blocks(1000, 9).unwrap().write_parquet(&path).await.unwrap();
    for blocks in [1, 2, 9] {
        let options = ReadParquetOptions { override_num_blocks: Some(blocks), ..Default::default() };
        let ds = context.read(path.as_str(), options).await.unwrap();
        let plan = ds.filter("id > 5").unwrap().execution_plan().await.unwrap();
        assert!(plan.contains(&format!("tasks={blocks}")) && plan.contains(&format!("{blocks} group")), "{plan}");
        assert!(!plan.contains("RepartitionExec"), "{plan}");
        assert_eq!(ints(&ds.take_all().await.unwrap(), "id"), (0..1000).collect::<Vec<i64>>());
    }
}

/// A repartition that spills can wait for itself forever, unless every spilled batch has a file of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repartitions_that_spill_end() {
    let context = context_with(2, |o| o.memory_limit = mib(24));
    let file_size = rows(&context, "SHOW datafusion.execution.max_spill_file_size_bytes").await;
    assert!(file_size[0].ends_with("|1"), "{file_size:?}");
    let sql = "SELECT count(*), sum(n) FROM (SELECT id % 400000 AS k, count(*) AS n FROM range(800000) GROUP BY 1)";
    let run = async { rows(&context, sql).await };
    let limit = std::time::Duration::from_secs(120);
    assert_eq!(tokio::time::timeout(limit, run).await.expect("it hangs"), ["400000|800000"]);
}

/// Options with our prefix are set, shown and reset.
#[tokio::test]
async fn options_are_shown_and_reset() {
    let context = context();
    context.sql("SET blockyard.target_max_block_size = '64MiB'").await.unwrap();
    assert_eq!(rows(&context, "SHOW blockyard.target_max_block_size").await[0].split('|').nth(1), Some("64MiB"));
    context.sql("RESET blockyard.target_max_block_size").await.unwrap();
    assert_eq!(rows(&context, "SHOW blockyard.target_max_block_size").await[0].split('|').nth(1), Some("128MiB"));
}

/// An application of DataFusion with its own state gets everything by one call.
#[tokio::test]
async fn any_application_can_install_us() {
    let builder = SessionStateBuilder::new().with_default_features();
    let state = builder.with_blockyard(Blockyard::default()).unwrap().build();
    let session = SessionContext::new_with_state(state);
    let sql = "SELECT count(*) AS n FROM random_shuffle((SELECT * FROM range(10) WHERE id > 3), seed => 1)";
    let batches = session.sql(sql).await.unwrap().collect().await.unwrap();
    assert_eq!(ints(&batches, "n"), [6]);
}

/// A window, a union and a self-join over our relations run twice and give the same.
#[tokio::test]
async fn shared_relations_are_read_once_each() {
    let context = context();
    context.sql("CREATE VIEW v AS SELECT * FROM random_shuffle(range(100), seed => 9)").await.unwrap();
    let sql = "SELECT count(*) FROM v AS a JOIN v AS b ON a.id = b.id";
    assert_eq!(rows(&context, sql).await, ["100"]);
    let union = "SELECT count(*), sum(id) FROM (SELECT * FROM v UNION ALL SELECT * FROM v)";
    assert_eq!(rows(&context, union).await, ["200|9900"]);
    let window = "SELECT max(r) FROM (SELECT row_number() OVER (ORDER BY id) AS r FROM v)";
    assert_eq!(rows(&context, window).await, ["100"]);
}

/// DataFusion's nested-loop join returns wrong rows when it goes out of memory. Ours fits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_on_other_conditions_than_keys_are_right_within_any_memory() {
    let sql = |kind: &str| {
        format!(
            "SELECT count(*), sum(length(l.pad)) FROM (SELECT id, repeat('x', 4000) AS pad FROM range(1500)) AS l {kind} JOIN \
             (SELECT id, repeat('y', 4000) AS pad FROM range(800)) AS r ON l.id < r.id AND l.pad <> r.pad"
        )
    };
    for kind in ["LEFT", "LEFT SEMI", "LEFT ANTI", "INNER", "RIGHT"] {
        let large = context_with(2, |o| o.memory_limit = mib(1024));
        let want = rows(&large, &sql(kind)).await;
        for limit in [2, 64] {
            let small = context_with(2, |o| o.memory_limit = mib(limit));
            assert_eq!(rows(&small, &sql(kind)).await, want, "{kind} at {limit} MiB");
        }
    }
}

/// DataFusion runs some inputs twice, and applications run plans twice: each run sees all rows.
#[tokio::test]
async fn a_plan_can_run_twice() {
    use datafusion::physical_plan::collect;
    let context = context();
    let sql = "SELECT * FROM map_batches(random_shuffle(range(1000), seed => 1), 'identity')";
    let state = context.session().state();
    let logical = context.sql(sql).await.unwrap().logical_plan().clone();
    let plan = state.create_physical_plan(&logical).await.unwrap();
    for _ in 0..2 {
        let batches = collect(std::sync::Arc::clone(&plan), context.session().task_ctx()).await.unwrap();
        assert_eq!(batches.iter().map(|b| b.num_rows()).sum::<usize>(), 1000);
    }
}

/// Two tables with a `key`: DataFusion swaps their sides, so that filters meet a projection with two columns of one
/// name.
const SIDES: &str = "CREATE TABLE e AS SELECT value % 700 AS key FROM generate_series(1, 5000);
     CREATE TABLE d AS SELECT value AS key FROM generate_series(0, 999)";
const UNMATCHED: &str =
    "SELECT count(*) AS n FROM e RIGHT JOIN (SELECT * FROM d WHERE key > 50) AS d ON d.key = e.key WHERE e.key IS NULL";

/// DataFusion pushes filters to columns of the same name on the other side of a join.
#[tokio::test]
async fn filters_stay_on_their_side_of_a_join() {
    for spill in [false, true] {
        let context = context_with(2, |o| o.prefer_spilling_joins = spill);
        context.sql(SIDES).await.unwrap();
        assert_eq!(rows(&context, UNMATCHED).await, ["300"], "spill: {spill}");
    }
}

/// DataFusion answers `k` of an outer join with USING by the left column, which may be null.
#[tokio::test]
async fn columns_of_using_are_those_of_rows_that_stay() {
    let context = context();
    let joined = |kind: &str| format!("SELECT k FROM (VALUES (1)) AS l(k) {kind} JOIN (VALUES (2)) AS r(k) USING (k)");
    assert_eq!(rows(&context, &joined("RIGHT")).await, ["2"]);
    assert_eq!(rows(&context, &format!("{} ORDER BY k", joined("FULL"))).await, ["1", "2"]);
}

/// What plain DataFusion does with SQL that is rewritten here, or refused.
#[tokio::test]
async fn datafusion_still_misreads_sql() {
    let plain = SessionContext::new();
    let column = async |sql: &str| crate::fixtures::lines(&plain.sql(sql).await.unwrap().collect().await.unwrap());

    let joined = |kind: &str| format!("SELECT k FROM (VALUES (1)) AS l(k) {kind} JOIN (VALUES (2)) AS r(k) USING (k)");
    assert_eq!(column(&joined("RIGHT")).await, ["NULL"], "the column of USING is that of the right side");
    assert!(column(&joined("FULL")).await.contains(&"NULL".to_owned()), "the column of USING is coalesced");
    let ambiguous = plain.sql(&format!("{} WHERE k = 1", joined(""))).await;
    assert!(ambiguous.is_err(), "the column of USING is found in WHERE");

    let except = "SELECT * FROM (VALUES (1), (1)) AS s(a) EXCEPT ALL SELECT * FROM (VALUES (1)) AS t(a)";
    assert_eq!(column(except).await, [""; 0], "EXCEPT ALL counts rows");
    let distinct = "SELECT false IS NOT DISTINCT FROM true AND false";
    assert_eq!(column(distinct).await, ["true"], "IS DISTINCT FROM binds closer than AND");
    assert_eq!(column("SELECT date '2024-01-01' + interval '1 hour'").await, ["2024-01-01"], "a date has hours");
    let zone = "SELECT arrow_typeof(timestamptz '2024-01-01 00:00:00+02')";
    assert_eq!(column(zone).await, ["Timestamp(ns)"], "timestamptz has a zone");

    plain.sql("CREATE TABLE keyed (a int primary key)").await.unwrap().collect().await.unwrap();
    plain.sql("INSERT INTO keyed VALUES (1), (1)").await.unwrap().collect().await.unwrap();
    assert_eq!(column("SELECT DISTINCT a FROM keyed").await, ["1", "1"], "a primary key is checked");

    let sum = "SELECT sum(a) FROM (VALUES (9223372036854775807), (1)) AS t(a)";
    assert_eq!(column(sum).await, ["-9223372036854775808"], "sums of bigint do not wrap");
}

/// DataFusion takes the results of some functions for unordered where they were just sorted by them.
#[tokio::test]
async fn datafusion_still_cannot_order_by_partial_functions() {
    use datafusion::prelude::SessionConfig;
    let plain = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
    plain.sql("CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 9)").await.unwrap().collect().await.unwrap();
    for function in ["acos", "acosh", "asin", "atanh", "ln", "log2", "log10", "sqrt"] {
        let sql = format!("SELECT a FROM (SELECT a FROM t UNION ALL SELECT a FROM t) ORDER BY {function}(a)");
        assert!(plain.sql(&sql).await.unwrap().collect().await.is_err(), "{function} says how it is ordered");
    }
}

/// Sums of integers that do not fit are errors, where DataFusion's begin anew: a wider type has to be asked for.
#[tokio::test]
async fn sums_that_may_not_fit_are_made_of_decimals() {
    let largest = "(VALUES (9223372036854775807), (1)) AS t(a)";
    let context = context();
    let wide = format!("SELECT sum(CAST(a AS decimal(38, 0))) FROM {largest}");
    assert_eq!(rows(&context, &wide).await, ["9223372036854775808"]);
    let narrow = format!("SELECT sum(a) FROM {largest}");
    let error = context.sql(&narrow).await.unwrap().take_all().await.unwrap_err().to_string();
    assert!(error.contains("sum(t.a) exceeds Int64"), "{error}");
    let plain = datafusion::prelude::SessionContext::new();
    let of_datafusion = plain.sql(&narrow).await.unwrap().collect().await.unwrap();
    assert_eq!(lines(&of_datafusion), ["-9223372036854775808"], "it has mended its sum");
}

/// A query that cannot be planned cannot be explained: DataFusion shows what it has, and of the error nothing.
#[tokio::test]
async fn explain_fails_as_the_query_does() {
    use datafusion::common::plan_err;
    use datafusion::config::ConfigOptions;
    use datafusion::physical_optimizer::PhysicalOptimizerRule;
    use datafusion::physical_plan::ExecutionPlan;
    use std::sync::Arc;

    #[derive(Debug)]
    struct Refuses;

    impl PhysicalOptimizerRule for Refuses {
        fn optimize(
            &self,
            _plan: Arc<dyn ExecutionPlan>,
            _config: &ConfigOptions,
        ) -> datafusion::error::Result<Arc<dyn ExecutionPlan>> {
            plan_err!("no plan is good enough")
        }

        fn name(&self) -> &str {
            "refuses"
        }

        fn schema_check(&self) -> bool {
            true
        }
    }

    let context = context();
    assert_eq!(rows(&context, "EXPLAIN SELECT 1").await.len(), 2);
    context
        .configure_rules(|rules| {
            rules.add_physical(Arc::new(Refuses), blockyard::optimizer::Anchor::Last, &[]);
            Ok(())
        })
        .unwrap();
    for sql in ["SELECT id FROM range(3)", "EXPLAIN SELECT id FROM range(3)"] {
        assert!(sql_error(&context, sql).await.contains("no plan is good enough"), "{sql}");
    }
    context.sql("SET datafusion.explain.logical_plan_only = true").await.unwrap();
    assert_eq!(rows(&context, "EXPLAIN SELECT 1").await.len(), 1);
}
