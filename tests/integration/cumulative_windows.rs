use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringArray, TimestampMicrosecondArray, UInt8Array,
};
use datafusion::datasource::MemTable;
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::fixtures::{context_with, emptied, lines, mib, rows};

const ROWS: i64 = 2_500;

/// A number that looks as if it were drawn.
fn drawn(row: i64, salt: i64) -> i64 {
    let mixed =
        (row + 1).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(salt.wrapping_mul(1_442_695_040_888_963_407));
    (mixed >> 33).abs()
}

/// A table with keys of few and of many values, one of which is frequent, and values of many types, with nulls.
fn batch(rows: &Range<i64>, text: usize) -> RecordBatch {
    fn column<T: FromIterator<Option<V>>, V>(rows: &Range<i64>, salt: i64, value: impl Fn(i64) -> V) -> T {
        rows.clone().map(|row| (drawn(row, salt) % 11 != 0).then(|| value(drawn(row, salt + 100)))).collect()
    }
    let id = Int64Array::from_iter_values(rows.clone());
    let skewed = |drawn: i64| if drawn % 3 == 0 { 7 } else { drawn % 500 };
    let price = column::<Decimal128Array, _>(rows, 5, |drawn| i128::from(drawn % 100_000 - 50_000));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(id)),
        ("few", Arc::new(column::<Int32Array, _>(rows, 1, |drawn| (drawn % 5) as i32))),
        ("many", Arc::new(column::<StringArray, _>(rows, 2, |drawn| format!("key {}", skewed(drawn))))),
        ("i", Arc::new(column::<Int64Array, _>(rows, 3, |drawn| drawn % 1_000 - 500))),
        ("u", Arc::new(column::<UInt8Array, _>(rows, 4, |drawn| (drawn % 200) as u8))),
        ("d", Arc::new(price.with_precision_and_scale(12, 2).unwrap())),
        // Sums of these are exact in any order.
        ("f", Arc::new(column::<Float64Array, _>(rows, 6, |drawn| (drawn % 4_096) as f64 / 64.0))),
        ("day", Arc::new(column::<Date32Array, _>(rows, 7, |drawn| (drawn % 9_000) as i32))),
        ("at", Arc::new(column::<TimestampMicrosecondArray, _>(rows, 8, |drawn| drawn * 1_000_003))),
        ("b", Arc::new(column::<BooleanArray, _>(rows, 9, |drawn| drawn % 2 == 0))),
        ("s", Arc::new(column::<StringArray, _>(rows, 10, |drawn| format!("{:0>text$}", drawn % 77)))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, values)| (name, values, true))).unwrap()
}

const VALUES: &[&str] = &[
    "row_number()",
    "rank()",
    "dense_rank()",
    "count(*)",
    "count(s)",
    "count(DISTINCT u)",
    "sum(i)",
    "sum(u)",
    "sum(d)",
    "sum(f)",
    "avg(f)",
    "avg(i)",
    "avg(d)",
    "min(i)",
    "max(u)",
    "max(d)",
    "min(f)",
    "max(day)",
    "min(at)",
    "max(s)",
    "bool_or(b)",
    "array_agg(u)",
];

/// Registers such a table of so many rows, with texts of so many characters.
fn register(session: &SessionContext, rows: i64, text: usize) {
    const BATCH: i64 = 1_000;
    let batches: Vec<_> =
        (0..rows).step_by(BATCH as usize).map(|first| batch(&(first..rows.min(first + BATCH)), text)).collect();
    let table = MemTable::try_new(batches[0].schema(), vec![batches]).unwrap();
    session.register_table("t", Arc::new(table)).unwrap();
}

/// Windows in which the order of the rows is known as far as it matters.
const WINDOWS: &[&str] = &[
    "ORDER BY id ROWS UNBOUNDED PRECEDING",
    "PARTITION BY few ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "PARTITION BY many ORDER BY id",
    "PARTITION BY many, few ORDER BY s DESC NULLS LAST, id",
    "PARTITION BY few ORDER BY many, id GROUPS UNBOUNDED PRECEDING",
];

/// Windows whose rows have peers, so that only what does not depend on their order can be compared.
const WITH_PEERS: &[&str] = &[
    "ORDER BY few",
    "PARTITION BY few ORDER BY many",
    "PARTITION BY many ORDER BY few DESC RANGE UNBOUNDED PRECEDING",
    "PARTITION BY many",
    "PARTITION BY few ORDER BY many ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
    "PARTITION BY b ORDER BY i GROUPS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
];

fn queries() -> Vec<String> {
    let depends_on_order = |value: &str| ["row_number", "array_agg"].iter().any(|f| value.contains(f));
    let select = |values: &[&str], window: &str| {
        let values: Vec<_> = values.iter().map(|value| format!("{value} OVER ({window})")).collect();
        format!("SELECT id, {} FROM t", values.join(", "))
    };
    let free: Vec<_> = VALUES.iter().copied().filter(|value| !depends_on_order(value)).collect();
    let mut queries: Vec<_> = WINDOWS.iter().map(|window| select(VALUES, window)).collect();
    queries.extend(WITH_PEERS.iter().map(|window| select(&free, window)));
    // Each for itself: whether rows wait depends on the others.
    queries.extend(VALUES.iter().map(|value| select(&[value], WINDOWS[2])));
    queries.extend(free.iter().map(|value| select(&[value], WITH_PEERS[1])));
    queries
}

#[tokio::test]
async fn windows_that_begin_with_the_partition_say_what_they_say_in_plain_datafusion() {
    let plain = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    register(&plain, ROWS, 3);
    for batch_rows in [1, 61, 8_192] {
        let ours = context_with(2, |options| options.memory_limit = mib(256));
        register(ours.session(), ROWS, 3);
        rows(&ours, &format!("SET datafusion.execution.batch_size = {batch_rows}")).await;
        for sql in queries() {
            let sql = format!("{sql} ORDER BY id");
            let plan = rows(&ours, &format!("EXPLAIN {sql}")).await.join("\n");
            let place = plan.find("CumulativeWindowsExec");
            assert!(place.is_some() && !plan.contains("WindowAggExec"), "{plan}");
            let want = lines(&plain.sql(&sql).await.unwrap().collect().await.unwrap());
            assert_eq!(want.len(), ROWS as usize);
            assert_eq!(rows(&ours, &sql).await, want, "{sql} in batches of {batch_rows}");
        }
    }
}

#[tokio::test]
async fn rows_that_wait_for_others_spill() {
    const MANY: i64 = 200_000;
    let sums = "count(*), sum(n), sum(total), max(id)";
    for (window, spills) in [("ORDER BY b", true), ("", true), ("ORDER BY id", false)] {
        let sql = format!(
            "SELECT {sums} FROM (SELECT id, s, count(*) OVER ({window}) AS n, sum(i) OVER ({window}) AS total FROM t)
             WHERE s >= ''"
        );
        let plain = SessionContext::new();
        register(&plain, MANY, 300);
        let want = lines(&plain.sql(&sql).await.unwrap().collect().await.unwrap());
        let ours = context_with(2, |options| options.memory_limit = mib(32));
        register(ours.session(), MANY, 300);
        let (got, stats) = {
            let dataset = ours.sql(&sql).await.unwrap();
            (lines(&dataset.take_all().await.unwrap()), dataset.stats().to_string())
        };
        assert_eq!(got, want, "{sql}");
        assert_eq!(!stats.contains(", restored 0B"), spills, "{stats}");
        emptied(&ours).await;
    }
}

#[tokio::test]
async fn other_windows_stay_as_they_are() {
    let context = context_with(2, |_| {});
    register(context.session(), 100, 3);
    for (value, operator) in [
        ("sum(i) FILTER (WHERE u > 3) OVER (PARTITION BY few ORDER BY id)", "BoundedWindowAggExec"),
        ("sum(i) OVER (ORDER BY id ROWS 3 PRECEDING)", "BoundedWindowAggExec"),
        ("sum(i) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING)", "BoundedWindowAggExec"),
        ("sum(i) OVER (ORDER BY id ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)", "WindowPartitionsExec"),
        ("lag(i) OVER (ORDER BY id)", "BoundedWindowAggExec"),
        ("percent_rank() OVER (ORDER BY id)", "WindowPartitionsExec"),
        ("ntile(3) OVER (ORDER BY id)", "WindowPartitionsExec"),
    ] {
        let plan = rows(&context, &format!("EXPLAIN SELECT {value} FROM t")).await.join("\n");
        assert!(plan.contains(operator) && !plan.contains("CumulativeWindowsExec"), "{plan}");
    }
    let ranks = "SELECT rank() OVER (ORDER BY few) FROM t";
    rows(&context, "SET blockyard.optimize_cumulative_windows = false").await;
    let plan = rows(&context, &format!("EXPLAIN {ranks}")).await.join("\n");
    assert!(plan.contains("BoundedWindowAggExec"), "{plan}");
}
