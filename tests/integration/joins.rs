use std::sync::Arc;

use datafusion::arrow::array::{DictionaryArray, Float64Array, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::Int32Type;
use datafusion::prelude::SessionContext;
use futures::StreamExt;

use crate::fixtures::{JOIN_KINDS, context_with, emptied, lines, mib, rows};

const ROWS: i64 = 120_000;

/// A side of a join: nine of ten rows have one key if it is `hot`; some keys are null, NaN or minus zero.
fn side(hot: bool, step: i64) -> RecordBatch {
    let number = |row: i64| if hot && row % 10 != 0 { 70 } else { row * step };
    let keys = || (0..ROWS).map(move |row| (row % 11 != 3).then(|| number(row)));
    let float = |key: i64| match key % 1000 {
        0 => -0.0,
        10 => f64::NAN,
        _ => key as f64 / 4.0,
    };
    let texts: Vec<_> =
        keys().map(|key| key.map(|key| format!("{:?}", "x".repeat(key as usize % 5)) + &key.to_string())).collect();
    let dictionary: DictionaryArray<Int32Type> = keys()
        .map(|key| key.map(|key| format!("d{}", key % 3000)))
        .collect::<Vec<_>>()
        .iter()
        .map(|t| t.as_deref())
        .collect();
    RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(Int64Array::from_iter_values(0..ROWS)) as _, true),
        ("k", Arc::new(keys().collect::<Int64Array>()) as _, true),
        ("f", Arc::new(keys().map(|key| key.map(float)).collect::<Float64Array>()) as _, true),
        ("s", Arc::new(texts.iter().map(|t| t.as_deref()).collect::<StringArray>()) as _, true),
        ("d", Arc::new(dictionary) as _, true),
    ])
    .unwrap()
}

/// Joins of sides that are larger than what is built from at once, with one key that nine of ten rows of a side have.
#[tokio::test]
async fn joins_in_buckets_give_the_rows_of_plain_datafusion() {
    let ours = context_with(2, |options| {
        options.memory_limit = mib(48);
        options.prefer_spilling_joins = true;
    });
    let plain = SessionContext::new();
    for session in [ours.session(), &plain] {
        session.register_batch("hot", side(true, 1)).unwrap();
        // Few rows of the other side have the hot key, or the result would be all pairs.
        session.register_batch("cold", side(false, 7)).unwrap();
    }
    for (left, right) in [("hot", "cold"), ("cold", "hot")] {
        for kind in JOIN_KINDS {
            for on in [
                "l.k = r.k",
                "l.s = r.s AND l.k = r.k",
                "l.f = r.f AND l.k % 100 = r.k % 100",
                "l.k = r.k AND l.id < r.id",
            ] {
                let of = |side: &str| {
                    format!("count({side}.id) AS n{side}, sum({side}.id) AS s{side}, max({side}.s) AS m{side}")
                };
                let columns = match kind {
                    kind if kind.starts_with("LEFT S") || kind.starts_with("LEFT A") => of("l"),
                    kind if kind.starts_with("RIGHT S") || kind.starts_with("RIGHT A") => of("r"),
                    _ => format!("{}, {}, sum(l.id * r.id) AS p", of("l"), of("r")),
                };
                let sql = format!("SELECT count(*) AS n, {columns} FROM {left} l {kind} {right} r ON {on}");
                let want = lines(&plain.sql(&sql).await.unwrap().collect().await.unwrap());
                assert_eq!(rows(&ours, &sql).await, want, "{sql}");
            }
        }
    }
    let explained =
        rows(&ours, "EXPLAIN ANALYZE SELECT count(*) FROM hot l JOIN cold r ON l.d = r.d AND l.id = r.id").await;
    let join = explained.iter().find(|line| line.contains("BucketJoinExec")).expect("a bucket join");
    assert!(join.contains("buckets=") && join.contains("built_from_"), "{join}");
}

/// What the keys of one side leave out of the other is not written, and where that is a file, not even decoded.
#[tokio::test]
async fn a_side_tells_the_other_its_keys() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows.parquet").display().to_string();
    for memory in [16, 256] {
        let plain = SessionContext::new();
        let ours = context_with(2, |options| {
            options.memory_limit = mib(memory);
            options.prefer_spilling_joins = true;
        });
        for session in [ours.session(), &plain] {
            session.register_batch("cold", side(false, 7)).unwrap();
            session.register_batch("few", side(false, 7).slice(40_000, 500)).unwrap();
        }
        let write = format!("COPY (SELECT * FROM cold ORDER BY id) TO '{path}' STORED AS PARQUET");
        plain.sql(&write).await.unwrap().collect().await.unwrap();
        for session in [ours.session(), &plain] {
            session.register_parquet("file", &path, Default::default()).await.unwrap();
        }
        for kind in ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"] {
            for (left, right) in [("few", "file"), ("file", "few"), ("few", "cold")] {
                for on in ["l.k = r.k", "l.s = r.s", "(l.k IS NOT DISTINCT FROM r.k) AND l.id = r.id", "l.f = r.f"] {
                    let columns =
                        if kind.contains("LEFT ") && !kind.ends_with("LEFT JOIN") { "" } else { ", sum(r.id)" };
                    let sql = format!("SELECT count(*), sum(l.id){columns} FROM {left} l {kind} {right} r ON {on}");
                    let want = lines(&plain.sql(&sql).await.unwrap().collect().await.unwrap());
                    assert_eq!(rows(&ours, &sql).await, want, "{sql}");
                }
            }
        }
        // Through a join, to both of the other sides.
        let sql = "SELECT count(*), sum(a.id), sum(b.id) FROM few JOIN file a ON few.k = a.k JOIN cold b ON a.k = b.k \
                   WHERE few.k NOT IN (SELECT k FROM cold WHERE k IS NOT NULL AND k % 5 = 0)";
        let want = lines(&plain.sql(sql).await.unwrap().collect().await.unwrap());
        assert_eq!(rows(&ours, sql).await, want);
    }
    let ours = context_with(2, |options| {
        options.memory_limit = mib(16);
        options.prefer_spilling_joins = true;
    });
    let said = |sql: String, part: &'static str| {
        let ours = &ours;
        async move {
            let explained = rows(ours, &format!("EXPLAIN ANALYZE {sql}")).await;
            assert!(explained.iter().any(|line| line.contains(part)), "{part}: {explained:#?}");
        }
    };
    let few = "(SELECT id + 900000 AS id FROM range(100000))";
    said(format!("SELECT count(*) FROM {few} l JOIN range(1000000) r ON l.id = r.id"), "unmatched_rows=89").await;
    let file = format!("read_parquet('{path}')");
    said(format!("SELECT count(*) FROM {file} l JOIN {file} r ON l.k = r.id"), "keys_among(").await;
}

/// A bucket of one key that no hash table has room for is sorted, and spills.
#[tokio::test]
async fn a_key_that_does_not_fit_is_merged() {
    let ours = context_with(2, |options| {
        options.optimize_distinct_keys = false;
        options.memory_limit = mib(16);
        options.prefer_spilling_joins = true;
    });
    let from = "FROM (SELECT id, 1 AS k FROM range(300000)) l LEFT SEMI JOIN (SELECT 1 AS k FROM range(300000)) r ON l.k = r.k";
    assert_eq!(rows(&ours, &format!("SELECT count(*), sum(id) {from}")).await, ["300000|44999850000"]);
    let explained = rows(&ours, &format!("EXPLAIN ANALYZE SELECT count(*) {from}")).await;
    assert!(explained.iter().any(|line| line.contains("merged_buckets=1")), "{explained:?}");
}

#[tokio::test]
async fn dropping_a_join_in_buckets_frees_what_it_held() {
    let ours = context_with(2, |options| options.prefer_spilling_joins = true);
    let sql = "SELECT l.id FROM range(1000000) l JOIN range(1000000) r ON l.id = r.id";
    let mut stream = ours.sql(sql).await.unwrap().stream().await.unwrap();
    stream.next().await.unwrap().unwrap();
    assert!(ours.store().budget().blocks() > 0);
    drop(stream);
    emptied(&ours).await;
}

/// DataFusion keeps one of five rows of a filter that it knows nothing of, so the side that is built is thought to fit.
#[tokio::test]
async fn a_join_that_was_expected_to_fit_is_planned_again_and_says_so() {
    let ours = context_with(2, |options| options.memory_limit = mib(48));
    let sql = "SELECT l.id FROM range(3000000) l JOIN (SELECT * FROM range(2000000) WHERE id % 3 < 3 AND id % 5 < 5 AND id % 7 < 7) r ON l.id = r.id";
    let joined = ours.sql(sql).await.unwrap().materialize().await.unwrap();
    assert_eq!(joined.count().await.unwrap(), 2_000_000);
    let stats = joined.stats();
    assert!(
        stats.contains("Planned twice: the hash table of a join, or the first rows of a sort, did not fit"),
        "{stats}"
    );
    assert!(stats.contains("BucketJoin"), "{stats}");
}
