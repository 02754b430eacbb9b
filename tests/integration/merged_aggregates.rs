use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use blockyard::prelude::*;
use datafusion::arrow::array::{Float64Array, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::DataType;
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::prelude::SessionContext;

use crate::fixtures::{context_with, emptied, lines, mib, rows, sql_error};

const ROWS: i64 = 20_000;

/// Columns of integers, numbers and texts, each with nulls.
fn table() -> RecordBatch {
    let keys: Int64Array = (0..ROWS).map(|row| (row % 13 != 0).then_some(row * 7 % 100)).collect();
    let values: Int64Array = (0..ROWS).map(|row| (row % 17 != 0).then_some(row % 1000)).collect();
    let numbers: Float64Array = (0..ROWS).map(|row| (row % 11 != 0).then_some((row % 64) as f64 / 4.0)).collect();
    let texts: StringArray = (0..ROWS).map(|row| (row % 5 != 0).then(|| format!("text {}", row % 300))).collect();
    RecordBatch::try_from_iter_with_nullable([
        ("k", Arc::new(keys) as _, true),
        ("v", Arc::new(values) as _, true),
        ("x", Arc::new(numbers) as _, true),
        ("s", Arc::new(texts) as _, true),
    ])
    .unwrap()
}

fn names() -> RecordBatch {
    let keys: Int64Array = (0..60).map(|row| (row % 7 != 0).then_some(row)).collect();
    let names: StringArray = (0..60).map(|row| (row % 3 != 0).then(|| format!("name {row}"))).collect();
    RecordBatch::try_from_iter_with_nullable([("id", Arc::new(keys) as _, true), ("name", Arc::new(names) as _, true)])
        .unwrap()
}

fn session(memory: usize) -> DataContext {
    let context = context_with(2, |options| options.memory_limit = mib(memory));
    context.session().register_batch("t", table()).unwrap();
    context.session().register_batch("u", names()).unwrap();
    context
}

/// How often tables are read.
async fn scans(context: &DataContext, sql: &str) -> usize {
    let plan = rows(context, &format!("EXPLAIN {sql}")).await.join("\n");
    let (_, physical) = plan.split_once("physical_plan").unwrap();
    physical.matches("DataSourceExec").count()
}

/// Queries, and how often each reads a table.
const QUERIES: [(&str, usize); 21] = [
    ("SELECT (SELECT count(*) FROM t WHERE k < 30) AS a, (SELECT sum(v) FROM t WHERE k >= 30) AS b", 1),
    (
        "SELECT (SELECT avg(v) FROM t WHERE k BETWEEN 1 AND 20)
            - (SELECT avg(v) FROM t WHERE k BETWEEN 21 AND 40) AS c0",
        1,
    ),
    (
        "SELECT CASE WHEN (SELECT count(*) FROM t WHERE k < 9) > 10 THEN (SELECT avg(v) FROM t WHERE k < 9)
        ELSE (SELECT avg(x) FROM t WHERE k < 9) END",
        1,
    ),
    (
        "SELECT * FROM (SELECT count(*) AS a, min(v) AS b FROM t WHERE k < 10) y,
        (SELECT count(x) AS c, max(v) AS d FROM t WHERE k > 90) z",
        1,
    ),
    (
        "SELECT z.c, y.a, u.id FROM (SELECT count(*) AS a FROM t WHERE k = 1) y, u,
        (SELECT count(*) AS c FROM t WHERE k = 2) z WHERE u.id < 5 ORDER BY 3",
        2,
    ),
    (
        "SELECT a + c, b FROM (SELECT count(*) + 1 AS a, min(v) AS b FROM t WHERE k < 10) y CROSS JOIN
        (SELECT 2 * count(x) AS c FROM t WHERE k < 20) z",
        1,
    ),
    (
        "SELECT * FROM (SELECT count(DISTINCT v) AS a, avg(v) AS b, count(v) AS c FROM t WHERE k < 10 OR x > 9) y,
        (SELECT count(DISTINCT v) AS d, avg(v) AS e, count(v) AS f FROM t WHERE k > 70 OR x < 2) z",
        1,
    ),
    (
        "SELECT * FROM (SELECT count(*) AS a FROM t, u WHERE t.k = u.id AND u.name = 'name 1' AND v < 500) y,
        (SELECT count(*) AS b FROM t, u WHERE t.k = u.id AND u.name = 'name 2' AND v > 500) z,
        (SELECT count(*) AS c FROM t, u WHERE t.k = u.id AND u.name > 'name 3' AND v IS NULL) w",
        2,
    ),
    ("SELECT (SELECT min(s) FROM t) AS a, (SELECT max(s) FROM t) AS b, (SELECT sum(v) FROM t) AS c", 1),
    (
        "SELECT count(*), sum(v) FROM t WHERE v > (SELECT avg(v) FROM t WHERE k < 50) AND
        v < (SELECT max(v) - 5 FROM t WHERE k >= 50)",
        2,
    ),
    (
        "SELECT (SELECT sum(v) FILTER (WHERE x > 3) FROM t WHERE k < 30) AS c0,
        (SELECT sum(v) FILTER (WHERE x > 3) FROM t
        WHERE k > 60) AS c1, (SELECT count(*) FILTER (WHERE s LIKE '%1%') FROM t WHERE k IN (1, 2, 3)) AS c2",
        1,
    ),
    (
        "SELECT (SELECT count(*) FROM t WHERE NOT k < 30) AS c0, (SELECT count(*) FROM t WHERE k IS NULL) AS c1,
        (SELECT count(*) FROM t WHERE k < 1000 AND k > 2000) AS c2,
        (SELECT sum(v) FROM t WHERE k < 1000 AND k > 2000) AS c3",
        1,
    ),
    (
        "SELECT id, id * (SELECT count(*) FROM t WHERE k < 9), id + (SELECT min(k) FROM t WHERE k > 9)
        FROM u ORDER BY 1, 2",
        2,
    ),
    (
        "SELECT id FROM u WHERE id IN (SELECT (SELECT min(k) FROM t WHERE k > 9)
        + (SELECT min(k) FROM t WHERE k > 19))",
        2,
    ),
    (
        "WITH g AS (SELECT k, sum(v) AS n FROM t GROUP BY k)
        SELECT (SELECT max(n) FROM g WHERE k < 50) AS c0, (SELECT min(n) FROM g WHERE k >= 50) AS c1",
        1,
    ),
    (
        "SELECT (SELECT stddev(v) FROM t WHERE k < 30) AS c0, (SELECT bool_or(v > 990) FROM t WHERE k > 30) AS c1,
        (SELECT var_pop(x) FROM t WHERE k = 30) AS c2",
        1,
    ),
    (
        "SELECT (SELECT count(*) FROM t WHERE k < 10 AND v > 5) AS c0,
        (SELECT count(*) FROM t WHERE k < 10 AND v > 5 AND v < 90) AS c1",
        1,
    ),
    // Not together: other columns are asked, texts that only one of them reads, or functions of an order.
    ("SELECT (SELECT count(*) FROM t WHERE k < 30) AS c0, (SELECT sum(v) FROM t WHERE x >= 3) AS c1", 2),
    ("SELECT (SELECT max(s) FROM t WHERE k < 30) AS c0, (SELECT sum(v) FROM t WHERE k >= 30) AS c1", 2),
    (
        "SELECT (SELECT count(*) FROM t WHERE k < 30 HAVING count(*) > 3) AS c0,
        (SELECT count(*) FROM t WHERE k > 70 LIMIT 1) AS c1",
        2,
    ),
    (
        "SELECT (SELECT array_agg(v ORDER BY v)[1] FROM t WHERE k < 30) AS c0,
        (SELECT count(*) FROM t WHERE k > 70) AS c1",
        2,
    ),
];

#[tokio::test]
async fn rows_are_those_of_plain_datafusion() {
    let plain = SessionContext::new();
    plain.register_batch("t", table()).unwrap();
    plain.register_batch("u", names()).unwrap();
    for memory in [256, 24] {
        let context = session(memory);
        for (sql, reads) in QUERIES {
            let want = lines(&plain.sql(sql).await.unwrap().collect().await.unwrap());
            assert_eq!(rows(&context, sql).await, want, "{sql}");
            assert_eq!(scans(&context, sql).await, reads, "{sql}");
        }
        emptied(&context).await;
    }
}

/// The values of a query are computed once, however often they are mentioned, also where nothing else is shared.
#[tokio::test]
async fn rows_are_taken_once() {
    let context = session(256);
    let calls = Arc::<AtomicUsize>::default();
    let counter = Arc::clone(&calls);
    let counted = move |arguments: &[ColumnarValue]| {
        let values = ColumnarValue::values_to_arrays(arguments)?;
        counter.fetch_add(values[0].len(), SeqCst);
        Ok(ColumnarValue::Array(Arc::clone(&values[0])))
    };
    let function =
        create_udf("counted", vec![DataType::Int64], DataType::Int64, Volatility::Immutable, Arc::new(counted));
    context.session().register_udf(function);
    let of = |condition: &str| format!("(SELECT sum(v) FROM (SELECT counted(v) AS v, k FROM t) WHERE {condition})");
    let (low, high) = (of("k < 90"), of("k > 10"));
    let sql = format!("SELECT id + {low} + {high} FROM u WHERE id < {low} AND id < {high} ORDER BY {high}");
    for is_shared in [true, false] {
        context
            .sql(&format!("SET blockyard.optimize_shared_subplans = {is_shared}"))
            .await
            .unwrap()
            .take_all()
            .await
            .unwrap();
        calls.store(0, SeqCst);
        assert_eq!(rows(&context, &sql).await.len(), 51);
        let taken = calls.load(SeqCst);
        assert!(taken > 0 && taken <= ROWS as usize, "{taken}");
    }
    context.sql("SET blockyard.optimize_merged_aggregates = false").await.unwrap().take_all().await.unwrap();
    calls.store(0, SeqCst);
    rows(&context, &sql).await;
    assert!(calls.load(SeqCst) > ROWS as usize);
}

/// Who asks whether a division is possible is the only one to divide.
#[tokio::test]
async fn what_others_want_is_not_divided() {
    let context = session(256);
    let sql = "SELECT (SELECT sum(100 / k) FROM t WHERE k <> 0), (SELECT sum(v) FROM t WHERE k = 0)";
    let plain = SessionContext::new();
    plain.register_batch("t", table()).unwrap();
    let want = lines(&plain.sql(sql).await.unwrap().collect().await.unwrap());
    assert_eq!(rows(&context, sql).await, want);
    let sql =
        "SELECT (SELECT count(*) FROM t WHERE k > 1 AND 100 / k > 3), (SELECT sum(v) FROM t WHERE k < 1 AND k < 5)";
    assert_eq!(rows(&context, sql).await, ["4432|77800"]);
    assert_eq!(scans(&context, sql).await, 2);
    let sql = "SELECT (SELECT sum(100 / k) FROM t WHERE k >= 0), (SELECT sum(v) FROM t WHERE k < 0)";
    assert!(sql_error(&context, sql).await.contains("ivide by zero"));
}

/// DISTINCT values of which several conditions are asked are grouped by once.
#[tokio::test]
async fn values_meet_several_conditions() {
    let (plain, context) = (SessionContext::new(), session(256));
    plain.register_batch("t", table()).unwrap();
    let all = "count(DISTINCT v) FILTER (WHERE x > 3) AS a, sum(DISTINCT v) FILTER (WHERE x < 3) AS b,
        count(DISTINCT CASE WHEN s LIKE '%1%' THEN v END) AS c, avg(DISTINCT x) FILTER (WHERE v < 500) AS d,
        count(DISTINCT x) FILTER (WHERE v IS NULL) AS e";
    for functions in [
        "count(DISTINCT v) FILTER (WHERE x > 3) AS a, count(DISTINCT v) FILTER (WHERE x < 9) AS b".to_owned(),
        "count(DISTINCT v) FILTER (WHERE x > 3) AS a, count(DISTINCT v) AS b".to_owned(),
        "count(DISTINCT v) FILTER (WHERE x > 99) AS a, count(DISTINCT v) FILTER (WHERE x IS NULL) AS b".to_owned(),
        "count(DISTINCT v) FILTER (WHERE x > 3) AS a, min(v), max(DISTINCT x) FILTER (WHERE v > 9)".to_owned(),
        "count(DISTINCT CASE WHEN x > 3 THEN v END) FILTER (WHERE k < 9) AS a,
            count(DISTINCT v) FILTER (WHERE k < 9) AS b"
            .to_owned(),
        all.to_owned(),
        format!("{all}, count(*), avg(v) FILTER (WHERE x > 7), count(DISTINCT v), count(DISTINCT s)"),
    ] {
        for (groups, rest) in [("", ""), ("k % 7 AS g, ", "GROUP BY 1"), ("k AS g, x > 9 AS h, ", "GROUP BY 1, 2")] {
            for condition in ["", "WHERE k > 1000", "WHERE v IS NULL", "WHERE x IS NULL OR v > 700"] {
                let sql = format!("SELECT {groups}{functions} FROM t {condition} {rest}");
                let mut want = lines(&plain.sql(&sql).await.unwrap().collect().await.unwrap());
                let mut got = rows(&context, &sql).await;
                want.sort();
                got.sort();
                assert_eq!(got, want, "{sql}");
            }
        }
    }
}
