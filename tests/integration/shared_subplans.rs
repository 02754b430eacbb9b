use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use blockyard::prelude::*;
use datafusion::arrow::array::{Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::exec_err;
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::prelude::SessionContext;
use futures::StreamExt;

use crate::fixtures::{context_with, emptied, lines, mib, rows, sql_error};

const ROWS: i64 = 60_000;

/// A session with a table `t (k, v, s)` some of whose values are null, and `counted(v)`, which counts its rows and fails
/// at -1.
fn session(memory: usize) -> (DataContext, Arc<AtomicUsize>) {
    let context = context_with(2, |options| options.memory_limit = mib(memory));
    let calls = Arc::<AtomicUsize>::default();
    let counter = Arc::clone(&calls);
    let counted = move |arguments: &[ColumnarValue]| {
        let values = ColumnarValue::values_to_arrays(arguments)?;
        let numbers = values[0].as_any().downcast_ref::<Int64Array>().expect("integers");
        if numbers.iter().any(|number| number == Some(-1)) {
            return exec_err!("there is a -1");
        }
        counter.fetch_add(numbers.len(), SeqCst);
        Ok(ColumnarValue::Array(Arc::clone(&values[0])))
    };
    let types = (vec![DataType::Int64], DataType::Int64);
    let function = create_udf("counted", types.0, types.1, Volatility::Immutable, Arc::new(counted));
    context.session().register_udf(function);
    context.session().register_batch("t", table()).unwrap();
    (context, calls)
}

fn table() -> RecordBatch {
    let keys = (0..ROWS).map(|row| (row % 13 != 0).then_some(row * 7 % 20_000)).collect::<Int64Array>();
    let values = (0..ROWS).map(|row| (row % 17 != 0).then_some(row)).collect::<Int64Array>();
    let texts: StringArray = (0..ROWS).map(|row| (row % 5 != 0).then(|| format!("{row:0>90}"))).collect();
    RecordBatch::try_from_iter_with_nullable([
        ("k", Arc::new(keys) as _, true),
        ("v", Arc::new(values) as _, true),
        ("s", Arc::new(texts) as _, true),
    ])
    .unwrap()
}

const TWICE: &str = "WITH a AS (SELECT k, sum(counted(v)) AS n FROM t GROUP BY k)
    SELECT count(*), sum(x.n), sum(y.n) FROM a x JOIN a y ON x.k = y.k + 1";

#[tokio::test]
async fn a_plan_that_a_query_has_twice_is_computed_once() {
    let (context, calls) = session(256);
    let shared = rows(&context, TWICE).await;
    assert_eq!(calls.swap(0, SeqCst), ROWS as usize);
    // Each execution computes it anew.
    let dataset = context.sql(TWICE).await.unwrap();
    for _ in 0..2 {
        assert_eq!(lines(&dataset.take_all().await.unwrap()), shared);
        assert_eq!(calls.swap(0, SeqCst), ROWS as usize);
    }
    context.sql("SET blockyard.optimize_shared_subplans = false").await.unwrap().take_all().await.unwrap();
    assert_eq!(rows(&context, TWICE).await, shared);
    assert_eq!(calls.load(SeqCst), 2 * ROWS as usize);
}

#[tokio::test]
async fn queries_of_shared_plans_give_the_rows_of_plain_datafusion() {
    let plain = SessionContext::new();
    plain.register_batch("t", table()).unwrap();
    let groups = "WITH a AS (SELECT k, count(*) AS n, sum(v) AS v, max(s) AS s FROM t GROUP BY k)";
    let windows = "WITH a AS (SELECT k, v, s, row_number() OVER (PARTITION BY k ORDER BY v, s) AS n FROM t)";
    let nested = "WITH b AS (SELECT k, sum(v) AS v, max(s) AS s FROM t GROUP BY k),
        a AS (SELECT k % 100 AS k, sum(v) AS v, max(s) AS s, count(*) AS n FROM b GROUP BY 1)";
    let queries = [
        "SELECT count(*), sum(x.n + y.n), max(x.s), min(y.s) FROM a x JOIN a y ON x.k = y.k + 1",
        "SELECT count(*), sum(x.v - y.v), sum(z.n), min(z.s) FROM a x LEFT JOIN a y ON x.k = y.k AND y.n > 2
            FULL JOIN a z ON z.k = x.k - 1 AND z.n = 3",
        "SELECT k, v, n FROM a WHERE v = (SELECT max(v) FROM a) OR v = (SELECT min(v) FROM a)",
        "SELECT count(*), sum(v) FROM a WHERE n > (SELECT avg(n) FROM a) AND k IN (SELECT k + 1 FROM a WHERE v > 9)",
        "SELECT sum(c) FROM (SELECT count(s) AS c FROM a UNION ALL SELECT sum(n) FROM a UNION ALL SELECT max(v) FROM a)",
        "SELECT count(*), sum(v) FROM a x WHERE NOT EXISTS (SELECT 1 FROM a y WHERE y.k = x.k + 1 AND y.n = x.n)",
        "SELECT count(*) FROM a x, (SELECT max(n) AS n FROM a) y WHERE x.n = y.n AND x.v > 1000000000",
        "SELECT count(*), sum(x.v), max(y.s) FROM a x JOIN a y ON x.k = y.k WHERE x.n = 2 AND y.k > 50 AND x.k % 2 = 0",
        "SELECT count(*), sum(x.v) FROM a x LEFT JOIN a y ON x.k = y.k AND y.v IS NULL WHERE x.n > 1",
        "SELECT sum(v) FROM a WHERE k IS NULL UNION ALL SELECT count(s) FROM a WHERE k = 7 AND n > 0
            UNION ALL SELECT max(v) FROM a WHERE k < 40 AND random() >= 0",
        "SELECT sum(x.v), count(y.n) FROM (SELECT 1 AS b, * FROM a UNION ALL SELECT 2 AS b, * FROM a WHERE k > 3) x
            JOIN (SELECT 2 AS b, * FROM a) y ON x.k = y.k WHERE x.b = 2 AND y.k = 9",
    ];
    // Little memory: what is shared is 10 MB.
    for (memory, threads) in [(256, 2), (32, 2), (48, 1)] {
        let ours = context_with(threads, |options| options.memory_limit = mib(memory));
        ours.session().register_batch("t", table()).unwrap();
        let mut shared = 0;
        for (with, query) in [groups, windows, nested].into_iter().flat_map(|with| queries.map(|query| (with, query))) {
            let sql = format!("{with} {query}");
            let mut want = lines(&plain.sql(&sql).await.unwrap().collect().await.unwrap());
            want.sort();
            let plan = rows(&ours, &format!("EXPLAIN {sql}")).await.join("\n");
            shared += usize::from(plan.contains("reader=2"));
            let mut got = rows(&ours, &sql).await;
            got.sort();
            assert_eq!(got, want, "{sql}");
        }
        // Of some, aggregates are computed together instead.
        assert!(shared >= 28, "{shared} of 33");
        emptied(&ours).await;
    }
}

#[tokio::test]
async fn blocks_go_when_nobody_needs_the_rest() {
    let (context, _) = session(256);
    let with = "WITH a AS (SELECT k, v, max(s) AS s FROM t GROUP BY k, v)";
    for sql in [
        format!("{with} SELECT * FROM a UNION ALL SELECT * FROM a LIMIT 3"),
        format!("{with} SELECT * FROM a x JOIN a y ON x.k = y.k LIMIT 3"),
        format!("{with} SELECT x.s FROM a x JOIN (SELECT * FROM a WHERE v < 0) y ON x.k = y.k"),
    ] {
        let dataset = context.sql(&sql).await.unwrap();
        dataset.take_all().await.unwrap();
        emptied(&context).await;
        // Who goes at the first batch.
        let mut batches = dataset.iter_batches(IterOptions::default()).await.unwrap();
        let _first = batches.next().await;
        drop(batches);
        emptied(&context).await;
    }
}

#[tokio::test]
async fn the_error_of_a_shared_plan_is_that_of_the_query() {
    let (context, _) = session(256);
    let of_zero = TWICE.replace("counted(v)", "counted(CASE WHEN v = 777 THEN -1 ELSE v END)");
    for _ in 0..2 {
        let error = sql_error(&context, &of_zero).await;
        assert!(error.contains("there is a -1"), "{error}");
    }
    emptied(&context).await;
    assert_eq!(rows(&context, TWICE).await.len(), 1);
}
