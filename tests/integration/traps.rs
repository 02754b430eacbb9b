use blockyard::prelude::*;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::SessionContext;

use crate::fixtures::{context, context_with, ints, mib, rows, sql_error};

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
        let ds = context.read_parquet_with(path.as_str(), options).await.unwrap();
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

/// DataFusion's nested-loop join returns wrong rows when it goes out of memory; here it fails instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_loop_joins_are_right_or_fail() {
    let sql = |kind: &str| {
        format!(
            "SELECT count(*), sum(length(l.pad)) FROM (SELECT id, repeat('x', 4000) AS pad FROM range(1500)) AS l {kind} JOIN \
             (SELECT id, repeat('y', 4000) AS pad FROM range(800)) AS r ON l.id < r.id AND l.pad <> r.pad"
        )
    };
    let mut failed = 0;
    for kind in ["LEFT", "LEFT SEMI", "LEFT ANTI", "INNER", "RIGHT"] {
        let large = context_with(2, |o| o.memory_limit = mib(1024));
        let want = rows(&large, &sql(kind)).await;
        for limit in [2, 4, 64] {
            let small = context_with(2, |o| o.memory_limit = mib(limit));
            match small.sql(&sql(kind)).await.unwrap().take_all().await {
                Ok(batches) => assert_eq!(crate::fixtures::lines(&batches), want, "{kind} at {limit} MiB"),
                Err(e) => {
                    failed += 1;
                    let text = e.strip_backtrace();
                    assert!(text.contains("a nested-loop join cannot spill") || text.contains("memory"), "{text}");
                }
            }
        }
    }
    assert!(failed > 0, "the limits must be too small for some");
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

/// What plain DataFusion does, which the tests above guard against. When one of these fails after an upgrade, a
/// workaround may have become unnecessary.
#[tokio::test]
async fn datafusion_still_has_its_traps() {
    use datafusion::logical_expr::Partitioning;
    use datafusion::physical_plan::ExecutionPlanProperties;
    let plain = SessionContext::new();
    let count = async |sql: &str| plain.sql(sql).await.unwrap().collect().await.unwrap()[0].num_rows();
    plain.sql("CREATE TABLE t AS SELECT value AS a FROM range(1000)").await.unwrap();

    let frame = plain.table("t").await.unwrap().repartition(Partitioning::RoundRobinBatch(7)).unwrap();
    let partitions = frame.create_physical_plan().await.unwrap().output_partitioning().partition_count();
    assert_ne!(partitions, 7, "a repartition stays in the plan");

    let sampled = plain.sql("SELECT * FROM t TABLESAMPLE BERNOULLI (1)").await.unwrap().count().await.unwrap();
    assert_eq!(sampled, 1000, "TABLESAMPLE is acted on");

    let stripped = plain.sql("SELECT * FROM (SELECT * FROM t ORDER BY a DESC)").await.unwrap();
    let plan = stripped.into_optimized_plan().unwrap().display_indent().to_string();
    assert!(!plan.contains("Sort"), "the order of a subquery stays");

    let columns = plain.sql("FROM t").await.unwrap().schema().fields().len();
    assert_eq!(columns, 0, "bare FROM selects columns");

    let planned = plain.sql("SELECT * FROM t DISTRIBUTE BY a").await;
    assert!(planned.is_ok() && planned.unwrap().collect().await.is_err(), "DISTRIBUTE BY runs, or is refused at once");

    assert!(plain.sql("SELECT * FROM range(\"end\" => 3)").await.is_err(), "table functions take names");
    let views = plain.sql("SELECT CAST(a AS VARCHAR) AS s FROM t").await.unwrap();
    assert_eq!(views.schema().field(0).data_type(), &datafusion::arrow::datatypes::DataType::Utf8View);

    let layers = "SELECT a + 2 AS a FROM (SELECT a + 2 AS a FROM (SELECT 1 AS a)) WHERE a > 3";
    assert_eq!(plain.sql(layers).await.unwrap().collect().await.unwrap(), [], "equal projections are each kept");

    plain.sql("CREATE TABLE d AS SELECT value AS a FROM range(10)").await.unwrap();
    plain.sql("DELETE FROM d WHERE a IN (SELECT a FROM t WHERE a > 5000)").await.unwrap().collect().await.unwrap();
    let left = plain.table("d").await.unwrap().count().await.unwrap();
    assert_eq!(left, 0, "a DELETE with a subquery keeps its predicate");

    plain.sql("CREATE TABLE u (a INT UNIQUE) AS VALUES (NULL), (NULL)").await.unwrap();
    let distinct = plain.sql("SELECT DISTINCT a FROM u").await.unwrap().count().await.unwrap();
    assert_eq!(distinct, 2, "nulls of a unique column are brought together");

    let pool = std::sync::Arc::clone(&plain.runtime_env().memory_pool);
    plain.sql("SET datafusion.runtime.memory_limit = '64M'").await.unwrap();
    assert!(!std::sync::Arc::ptr_eq(&pool, &plain.runtime_env().memory_pool), "SET keeps the memory pool");
    assert!(count("SELECT count(*) FROM t").await == 1);
}

/// What plain DataFusion says of conditions on subqueries, likewise. `sql/tests/plain/subquery_conditions.slt` has what
/// is right.
#[tokio::test]
async fn datafusion_still_has_its_traps_with_subqueries() {
    let plain = SessionContext::new();
    for table in ["t(a)", "s(i)"] {
        let name = &table[..1];
        let create = format!("CREATE TABLE {name} AS SELECT * FROM (VALUES (1), (2), (NULL)) AS {table}");
        plain.sql(&create).await.unwrap().collect().await.unwrap();
    }
    let count = async |sql: &str| plain.sql(sql).await.unwrap().count().await.unwrap();
    assert_eq!(count("SELECT * FROM t WHERE 4 NOT IN (SELECT i FROM s)").await, 3, "NOT IN of a constant finds nulls");
    let either = "SELECT * FROM t WHERE a NOT IN (SELECT i FROM s) OR a = 1";
    assert_eq!(count(either).await, 2, "NOT IN below OR finds nulls");
    assert_eq!(count("SELECT * FROM t WHERE (a IN (SELECT i FROM s)) IS NULL").await, 0, "IN may be null");
    let same_names = "SELECT * FROM t WHERE a > ANY (SELECT a FROM t)";
    assert_eq!(count(same_names).await, 0, "ANY compares with the column outside");
    let windows =
        "SELECT * FROM (SELECT count(*) OVER (w ORDER BY a) AS n FROM t WINDOW w AS (PARTITION BY a)) WHERE n > 1";
    assert_eq!(count(windows).await, 2, "windows go on from others");
    let selected = plain.sql("SELECT a IN (SELECT i FROM s) FROM t").await.unwrap().collect().await;
    assert!(selected.is_err(), "IN with a subquery works in a SELECT");
    // Where the columns outside are taken out of it, whatever stands between.
    let offset = "SELECT * FROM t WHERE EXISTS (SELECT i FROM s WHERE i = a OFFSET 1)";
    assert_eq!(count(offset).await, 2, "rows are left out for each row outside");
    let counted = "SELECT * FROM t WHERE EXISTS (SELECT count(*) FROM s WHERE i = a)";
    assert_eq!(count(counted).await, 2, "there is a count of no rows");
    let padded = "SELECT * FROM t WHERE EXISTS
        (SELECT * FROM (VALUES (1)) AS v(w) LEFT JOIN (SELECT i FROM s WHERE i = a) AS s ON i = w)";
    assert_eq!(count(padded).await, 1, "rows are padded for each row outside");
    let numbered = "SELECT n FROM t, LATERAL (SELECT row_number() OVER () AS n FROM s WHERE i = a) WHERE n = 2";
    assert_eq!(count(numbered).await, 1, "rows are numbered for each row outside");
}

/// The value of a subquery is one of its column.
#[tokio::test]
async fn datafusion_still_takes_no_rows_for_a_value() {
    let plain = SessionContext::new();
    let sql = "SELECT 1 WHERE (SELECT value FROM generate_series(1, 5) AS t(value) WHERE value > 7) IS NULL";
    assert_eq!(plain.sql(sql).await.unwrap().count().await.unwrap(), 0, "a subquery without rows is null");
}

/// Two lists for one value are put together.
#[tokio::test]
async fn datafusion_still_forgets_nulls_of_lists() {
    let plain = SessionContext::new();
    plain.sql("CREATE TABLE t AS SELECT * FROM (VALUES (1), (NULL)) AS t(x)").await.unwrap().collect().await.unwrap();
    let count = async |sql: &str| plain.sql(sql).await.unwrap().count().await.unwrap();
    assert_eq!(count("SELECT * FROM t WHERE x NOT IN (1, 2) OR x NOT IN (3, 4)").await, 2, "null is not in a list");
    assert_eq!(count("SELECT * FROM t WHERE x NOT IN (5, NULL) AND x IN (1, 2)").await, 1, "null in a list counts");
}

/// A join has one law of nulls for all of its keys.
#[tokio::test]
async fn datafusion_still_mixes_laws_of_nulls() {
    let plain = SessionContext::new();
    let create = "CREATE TABLE t AS SELECT * FROM (VALUES (1, 1), (NULL, NULL), (2, NULL)) AS t(x, y)";
    plain.sql(create).await.unwrap().collect().await.unwrap();
    let count = async |sql: &str| plain.sql(sql).await.unwrap().count().await.unwrap();
    let beside = "SELECT * FROM t AS a JOIN t AS b ON a.x IS NOT DISTINCT FROM b.x WHERE a.y = b.y";
    assert_eq!(count(beside).await, 3, "= beside IS NOT DISTINCT FROM finds no nulls");
    let crossed = "SELECT * FROM t AS a JOIN t AS b ON a.x IS NOT DISTINCT FROM b.x, t AS c WHERE c.x = 1";
    assert_eq!(count(crossed).await, 2, "IS NOT DISTINCT FROM finds nulls below a cross join");
}

/// Of files that were compressed in pieces DataFusion reads the first piece.
#[tokio::test]
async fn datafusion_still_reads_one_member() {
    use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
    use futures::{StreamExt, TryStreamExt};
    let piece = |bytes: Vec<u8>| futures::stream::iter([Ok(bytes::Bytes::from(bytes))]).boxed();
    for kind in [FileCompressionType::BZIP2, FileCompressionType::XZ, FileCompressionType::ZSTD] {
        let packed = kind.convert_to_compress_stream(piece(b"text".to_vec())).unwrap();
        let packed: Vec<bytes::Bytes> = packed.try_collect().await.unwrap();
        let twice = piece([packed.concat(), packed.concat()].concat());
        let read: Vec<bytes::Bytes> = kind.convert_stream(twice).unwrap().try_collect().await.unwrap();
        assert_eq!(read.concat(), b"text", "all members are read");
    }
}

/// What plain DataFusion does with files, likewise.
#[tokio::test]
async fn datafusion_still_has_its_traps_with_files() {
    use datafusion::prelude::JsonReadOptions;
    let (plain, directory) = (SessionContext::new(), tempfile::tempdir().unwrap());
    let path = |name: &str| directory.path().join(name).display().to_string();
    let count = async |sql: &str| plain.sql(sql).await.unwrap().count().await.unwrap();

    let rows: String = (0..1000).map(|i| format!("{{\"a\":{i}}}\n")).collect();
    std::fs::write(path("late.json"), rows + "{\"a\":1.5,\"z\":1}\n").unwrap();
    let read = plain.read_json(path("late.json"), JsonReadOptions::default()).await.unwrap();
    assert_eq!(read.schema().fields().len(), 1, "later keys are found");
    plain.register_table("late", read.into_view()).unwrap();
    assert_eq!(count("SELECT * FROM late WHERE a = 1").await, 2, "1.5 is no longer 1");

    plain.sql(&format!("COPY (SELECT 1 AS a) TO '{}'", path("d/1.csv"))).await.unwrap().collect().await.unwrap();
    let external = format!("CREATE EXTERNAL TABLE d (a INT) STORED AS CSV LOCATION '{}'", path("d/"));
    plain.sql(&external).await.unwrap();
    assert_eq!(count("SELECT * FROM d").await, 1);
    std::fs::copy(path("d/1.csv"), path("d/2.csv")).unwrap();
    assert_eq!(count("SELECT * FROM d").await, 1, "new files are seen");
}

/// External tables of plain DataFusion take the name that Hive gives null for a text.
#[tokio::test]
async fn datafusion_still_has_no_nulls_in_directories() {
    let (plain, directory) = (SessionContext::new(), tempfile::tempdir().unwrap());
    let place = directory.path().join("k=__HIVE_DEFAULT_PARTITION__");
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("1.csv"), "a\n1\n").unwrap();
    let create = format!(
        "CREATE EXTERNAL TABLE h (a INT, k VARCHAR) STORED AS CSV PARTITIONED BY (k) LOCATION '{}/'",
        directory.path().display()
    );
    plain.sql(&create).await.unwrap();
    let nulls = plain.sql("SELECT * FROM h WHERE k IS NULL").await.unwrap().count().await.unwrap();
    assert_eq!(nulls, 0, "directories can be null");
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

/// Sums of integers that do not fit wrap, as DataFusion's do: a wider type has to be asked for.
#[tokio::test]
async fn sums_that_may_not_fit_are_made_of_decimals() {
    let largest = "(VALUES (9223372036854775807), (1)) AS t(a)";
    let context = context();
    let wide = format!("SELECT sum(CAST(a AS decimal(38, 0))) FROM {largest}");
    assert_eq!(rows(&context, &wide).await, ["9223372036854775808"]);
    assert_eq!(rows(&context, &format!("SELECT sum(a) FROM {largest}")).await, ["-9223372036854775808"]);
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
