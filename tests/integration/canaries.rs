use datafusion::prelude::{JsonReadOptions, SessionContext};

/// What plain DataFusion does, which the tests of `traps.rs` and others guard against. When one of these fails after an upgrade, a
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

/// What plain DataFusion says of groups, windows and expressions, likewise. `sql/tests/plain/padded_and_grouped.slt` and
/// `stand_in_functions.slt` have what is right.
#[tokio::test]
async fn datafusion_still_has_its_traps_with_groups_and_windows() {
    use datafusion::prelude::SessionConfig;
    let plain = SessionContext::new_with_config(SessionConfig::new().with_batch_size(4).with_target_partitions(2));
    let create = "CREATE TABLE t AS SELECT * FROM (VALUES (1, 5, 'a'), (2, NULL, 'b'), (3, 1, 'c')) AS v(i, x, s)";
    plain.sql(create).await.unwrap().collect().await.unwrap();
    let count = async |sql: &str| plain.sql(sql).await.unwrap().count().await.unwrap();

    let sets = "SELECT a, b, count(*) FROM (SELECT 3 AS a, x AS b FROM (VALUES (1), (5), (NULL), (NULL), (3), (NULL))
        AS v(x)) AS q GROUP BY GROUPING SETS ((a, b), (b))";
    assert_ne!(count(sets).await, 8, "a grouping set has no constants");
    let none = "SELECT n FROM (SELECT count(*) AS n, 1 AS k FROM t) AS b WHERE k <> 1";
    assert_eq!(count(none).await, 1, "conditions without columns stay above aggregates");
    let list = "SELECT * FROM t WHERE 7 IN (4, CASE WHEN i = 9 THEN 7 ELSE x END)";
    assert_eq!(count(list).await, 3, "CASE in a list is no constant");
    assert_eq!(count("SELECT * FROM t WHERE i & -i = 0").await, 3, "minus is not NOT");
    let backwards = "SELECT * FROM (SELECT row_number() OVER (ORDER BY i DESC) AS n, string_agg(s, ',') OVER
        (ORDER BY i ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS a FROM t) WHERE a = 'c,b,a' AND n > 0";
    assert_eq!(count(backwards).await, 3, "lists over windows are in order");
    let orders =
        "SELECT * FROM (SELECT array_agg(DISTINCT s ORDER BY s DESC) AS a, array_agg(DISTINCT s ORDER BY s) AS b
        FROM t) WHERE a = b";
    assert_eq!(count(orders).await, 1, "lists of distinct values have their own order");
    let left = "SELECT * FROM (SELECT sum(d) OVER (ORDER BY i ROWS 1 PRECEDING) AS s
        FROM (VALUES (1, 1e17), (2, 1.0), (3, 1.0)) AS v(i, d)) WHERE s = 0";
    assert_eq!(count(left).await, 1, "what has left a frame leaves no trace");
    let lead = "SELECT * FROM (SELECT i, lead(x, 2) IGNORE NULLS OVER (ORDER BY i) AS n
        FROM (VALUES (1, 10), (2, NULL), (3, 30), (4, 40), (5, 50), (6, NULL), (7, 70)) AS v(i, x)) WHERE i = 4 AND n = 70";
    assert_eq!(count(lead).await, 0, "lead counts nulls");
    let before = "SELECT count(*) OVER (ORDER BY x NULLS FIRST RANGE BETWEEN 2 PRECEDING AND 1 PRECEDING) AS c
        FROM (SELECT CASE WHEN value < 0 THEN value END AS x FROM range(10))";
    assert_ne!(
        count(&format!("SELECT * FROM ({before}) WHERE c = 10")).await,
        10,
        "frames have the nulls of all batches"
    );
    let truth = plain.sql("SELECT DISTINCT x > 1 IS TRUE AS e FROM t").await.unwrap().collect().await;
    assert!(truth.is_err(), "DISTINCT of a truth is planned");
}

/// What plain DataFusion does with files, likewise.
#[tokio::test]
async fn datafusion_still_has_its_traps_with_files() {
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

/// What plain DataFusion believes of files, likewise.
#[tokio::test]
async fn datafusion_still_believes_what_files_say() {
    let (plain, directory) = (SessionContext::new(), tempfile::tempdir().unwrap());
    let path = |name: &str| directory.path().join(name).display().to_string();
    let run = async |sql: String| plain.sql(&sql).await.unwrap().collect().await;
    let count = async |sql: String| plain.sql(&sql).await.unwrap().count().await.unwrap();

    let floats = "VALUES (1, 1.0), (2, CAST('nan' AS DOUBLE)), (3, -0.0)";
    let bloom = "OPTIONS ('format.bloom_filter_on_write' true)";
    run(format!("COPY ({floats}) TO '{}' STORED AS PARQUET {bloom}", path("floats.parquet"))).await.unwrap();
    run(format!("CREATE EXTERNAL TABLE f STORED AS PARQUET LOCATION '{}'", path("floats.parquet"))).await.unwrap();
    assert_eq!(count("SELECT * FROM f WHERE column2 > 5".to_owned()).await, 0, "NaN is above the bounds of a file");
    assert_eq!(count("SELECT * FROM f WHERE column2 = 0.0".to_owned()).await, 0, "0 and -0 have one hash");

    run(format!("COPY (SELECT X'ff' AS v) TO '{}' STORED AS PARQUET", path("bytes.parquet"))).await.unwrap();
    let text = format!("CREATE EXTERNAL TABLE b (v VARCHAR) STORED AS PARQUET LOCATION '{}'", path("bytes.parquet"));
    run(text).await.unwrap();
    let length = run("SELECT octet_length(v) FROM b".to_owned()).await;
    assert!(length.is_ok(), "bytes that are read as text are checked");

    std::fs::write(path("decimals.csv"), "1.559\n").unwrap();
    let options = "OPTIONS ('format.has_header' 'false')";
    let decimals = "CREATE EXTERNAL TABLE d (a DECIMAL(10, 2)) STORED AS CSV LOCATION";
    run(format!("{decimals} '{}' {options}", path("decimals.csv"))).await.unwrap();
    assert_eq!(count("SELECT * FROM d WHERE a = 1.55".to_owned()).await, 1, "decimals of CSV are rounded");

    std::fs::write(path("lists.json"), "{\"z\":[{\"a\":1},null],\"b\":1}\n").unwrap();
    let read = plain.read_json(path("lists.json"), JsonReadOptions::default()).await;
    assert!(read.is_err(), "lists of JSON may have nulls beside objects");
}

/// What plain DataFusion makes of times, texts and columns of nulls, likewise.
#[tokio::test]
async fn datafusion_still_has_its_traps_with_times_and_texts() {
    let config = datafusion::prelude::SessionConfig::new();
    let plain = SessionContext::new_with_config(config.set_str("datafusion.execution.time_zone", "UTC"));
    let fails = async |sql: &str| match plain.sql(sql).await {
        Ok(frame) => frame.collect().await.is_err(),
        Err(_) => true,
    };
    let count = async |sql: &str| plain.sql(sql).await.unwrap().count().await.unwrap();
    let gaps = "(SELECT timestamp '2024-01-05 00:00:00' - t AS d FROM (VALUES (timestamp '2024-01-01 00:00:00')) v(t))";
    assert_eq!(
        count(&format!("SELECT * FROM {gaps} WHERE d > interval '1 day'")).await,
        0,
        "gaps are longer than a day"
    );
    let far = "SELECT * FROM (VALUES (date '9999-12-31')) v(d) WHERE d > now()";
    assert!(fails(far).await, "dates that are far away are compared with points of time");
    let groups = "SELECT * FROM (VALUES ('b')) v(t) WHERE cardinality(regexp_match(t, '(a)?(b)')) = 2";
    assert_eq!(count(groups).await, 0, "groups that take no part are null");
    assert!(fails("SELECT to_timestamp(t) FROM (VALUES ('2024-01-01')) v(t)").await, "texts of columns have a zone");
    assert!(fails("SELECT 'n' || a % 6 FROM (VALUES (7)) v(a)").await, "|| binds less closely than %");
    assert!(fails("SELECT sum(q) FROM (SELECT NULL AS q UNION ALL SELECT 1)").await, "unions have the types of all");
    let two = "SELECT (SELECT max(value) FROM range(3)), (SELECT max(value) FROM range(4))";
    assert!(fails(two).await, "subqueries have names of their own");
    let drawn = "WITH r AS (SELECT value, random() AS v FROM range(1000)) SELECT * FROM r a JOIN r b ON a.v = b.v";
    assert_eq!(count(drawn).await, 0, "what is drawn in WITH is drawn once");
}

/// What plain DataFusion takes floating-point numbers for, likewise.
#[tokio::test]
async fn datafusion_still_has_its_traps_with_floats() {
    let plain = SessionContext::new();
    let count = async |sql: &str| plain.sql(sql).await.unwrap().count().await.unwrap();
    let floats = "(VALUES (1, CAST('-inf' AS DOUBLE)), (2, CAST('nan' AS DOUBLE)), (2, 1.0)) v(k, f)";
    let bounds = |of: &str| format!("SELECT * FROM (SELECT k, max(f) AS m FROM {floats} GROUP BY k) WHERE {of}");
    assert_eq!(count(&bounds("k = 1 AND m < -1.7e308 AND m > CAST('-inf' AS DOUBLE)")).await, 1, "-inf is a bound");
    assert_eq!(count(&bounds("k = 2 AND m = 1.0")).await, 1, "NaN is the greatest");
    let zeros = "(SELECT * FROM (VALUES (0.0), (-0.0), (1.0)) v(f))";
    assert_eq!(count(&format!("SELECT * FROM {zeros} WHERE f IN (0.0, 5.0, 6.0, 7.0)")).await, 1, "0 is -0 in lists");
    let case = format!("SELECT * FROM (SELECT CASE f WHEN 0.0 THEN 1 END AS c FROM {zeros}) WHERE c = 1");
    assert_eq!(count(&case).await, 1, "0 is -0 in CASE");
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

/// Views of plain DataFusion read tables that are no longer there.
#[tokio::test]
async fn datafusion_still_keeps_the_tables_of_views() {
    let plain = SessionContext::new();
    for statement in [
        "CREATE TABLE t AS SELECT 1 AS a",
        "CREATE VIEW v AS SELECT a FROM t",
        "CREATE OR REPLACE TABLE t AS SELECT a FROM t WHERE false",
    ] {
        plain.sql(statement).await.unwrap();
    }
    assert_eq!(plain.table("v").await.unwrap().count().await.unwrap(), 1, "views are planned anew");
}

/// Plain DataFusion takes columns of a subquery for those outside, and reads recursive tables to their end.
#[tokio::test]
async fn datafusion_still_takes_ambiguous_columns_from_outside() {
    let plain = SessionContext::new();
    plain.sql("CREATE TABLE a AS SELECT * FROM (VALUES (1, 10), (2, 20)) AS t(x, y)").await.unwrap();
    let inner = "SELECT x FROM a b JOIN a c USING (x) WHERE b.y = 10";
    let subquery = plain.sql(&format!("SELECT * FROM a o WHERE o.x IN ({inner})")).await.unwrap();
    let plan = subquery.logical_plan().display_indent().to_string();
    assert!(plan.contains("outer_ref(o.x)"), "an ambiguous column is an error: {plan}");
    let recursive =
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9 LIMIT 3) SELECT * FROM n";
    assert_eq!(plain.sql(recursive).await.unwrap().count().await.unwrap(), 9, "LIMIT of a recursive table counts");
    let tuples = "SELECT count(*) FROM a GROUP BY GROUPING SETS (x), (x, y)";
    let grouped = plain.sql(tuples).await.unwrap().logical_plan().display_indent().to_string();
    assert!(grouped.contains("struct("), "keys in parentheses are keys: {grouped}");
}
