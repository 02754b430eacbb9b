//! Datasets as SQL text: it gives the same rows, or is not given.

use blockyard::{asc, desc, prelude::*};
use datafusion::arrow::array::RecordBatch;
use datafusion::logical_expr::{ident, lit};

use crate::fixtures::{context, lines, rows};

/// What stands behind a limit, a sort or a computed column in the plan stands behind it in the text.
#[tokio::test]
async fn text_says_the_same_whatever_the_order_of_clauses() {
    let context = context();
    let all = || context.range(100).unwrap();
    let numbered = |name: &str| all().with_column(name, ident("id") * lit(2)).unwrap();
    let datasets = [
        all().limit(10).unwrap().filter("id > 5").unwrap(),
        all().limit(10).unwrap().sort([desc("id")]).unwrap(),
        all().limit(10).unwrap().limit(3).unwrap(),
        all().limit(3).unwrap().limit(10).unwrap(),
        all().sort([desc("id")]).unwrap().limit(10).unwrap().filter("id < 95").unwrap(),
        all().sort([desc("id")]).unwrap().limit(5).unwrap().sort([asc("id")]).unwrap(),
        all().sort([desc("id")]).unwrap().filter("id < 5").unwrap(),
        all().split(4).await.unwrap()[1].filter("id > 30").unwrap(),
        all().limit(2).unwrap().union(&all().limit(3).unwrap()).unwrap(),
        all().union(&all()).unwrap().sort([desc("id")]).unwrap().limit(3).unwrap(),
        all().union(&all()).unwrap().filter("id < 2").unwrap().sort([asc("id")]).unwrap(),
        numbered("id").filter("id = 4").unwrap(),
        numbered("b").filter("b = 4 AND id < 50").unwrap(),
        numbered("b").rename_columns(&[("b", "id"), ("id", "b")]).unwrap().filter("b < 3").unwrap(),
        numbered("b").limit(5).unwrap().filter("b > 2").unwrap().select_columns(&["b"]).unwrap(),
        numbered("b").with_column("c", ident("b") + lit(1)).unwrap().filter("c = 5").unwrap(),
        all().limit(7).unwrap().random_shuffle(3).unwrap().limit(5).unwrap().sort([asc("id")]).unwrap(),
        all().filter("id > 90").unwrap().filter("id < 93").unwrap(),
    ];
    for dataset in datasets {
        let sql = dataset.to_sql().unwrap();
        let expected = lines(&dataset.take_all().await.unwrap());
        assert!(!expected.is_empty(), "{sql}");
        assert_eq!(rows(&context, &sql).await, expected, "{sql}");
    }
}

/// What came from SQL goes back to it.
#[tokio::test]
async fn queries_come_back_as_text() {
    let context = context();
    context.sql("CREATE TABLE t AS SELECT id, id % 3 AS g FROM range(20)").await.unwrap();
    for query in [
        "SELECT g, sum(id) FROM t GROUP BY g HAVING sum(id) > 60 ORDER BY g",
        "SELECT g, sum(id) AS s FROM t WHERE id > 3 GROUP BY g ORDER BY s DESC LIMIT 2",
        "SELECT DISTINCT g FROM t ORDER BY g",
        "SELECT id, row_number() OVER (PARTITION BY g ORDER BY id) AS n FROM t ORDER BY id LIMIT 4",
        "SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY g ORDER BY id) AS n FROM t) WHERE n = 1 ORDER BY id",
        "SELECT a.id, b.g FROM t a JOIN t b ON a.id = b.id WHERE b.g = 2 AND a.id > 9 ORDER BY a.id",
        "SELECT id FROM t WHERE g IN (SELECT g FROM t WHERE id = 4) ORDER BY id DESC LIMIT 3",
        "SELECT id FROM t WHERE id < 2 UNION ALL SELECT g FROM t WHERE id > 17 ORDER BY id",
        "SELECT count(*) FROM (SELECT id FROM t ORDER BY id LIMIT 7) WHERE id > 2",
        "WITH w AS (SELECT g, max(id) AS m FROM t GROUP BY g) SELECT m + 1 FROM w WHERE m > 17 ORDER BY m",
    ] {
        let sql = context.sql(query).await.unwrap().to_sql().unwrap();
        assert_eq!(rows(&context, &sql).await, rows(&context, query).await, "{query}: {sql}");
    }
}

/// A name in SQL that would mean something else.
#[tokio::test]
async fn what_only_this_process_has_has_no_text() {
    let context = context();
    let range = context.range(10).unwrap();
    let error = |dataset: &Dataset| dataset.to_sql().unwrap_err().to_string();
    let closure = error(&range.map_batches(|batch: RecordBatch| Ok(batch.slice(0, 0))).unwrap());
    assert!(closure.contains("the function 'closure', which is not registered"), "{closure}");
    let named = range.materialize().await.unwrap();
    assert!(error(&named).contains("rows that only this process has"), "{}", error(&named));
    assert!(error(&named.filter("id > 3").unwrap()).contains("rows that only this process has"));
    // Another table of that name is no better.
    context.sql("CREATE TABLE \"InputDataBuffer\" AS SELECT 1 AS id").await.unwrap();
    assert!(error(&named).contains("rows that only this process has"));
    context.sql("CREATE TABLE t AS SELECT id, id AS g FROM range(9)").await.unwrap();
    let joined = context.sql("SELECT a.id, b.g FROM t a JOIN t b ON a.id = b.id LIMIT 3").await.unwrap();
    assert!(error(&joined.filter("g = 2").unwrap()).contains("columns of a join that are known by its sides"));
    context.sql("CREATE TABLE kept AS SELECT * FROM range(10)").await.unwrap();
    let kept = context.sql("SELECT id FROM kept WHERE id < 2").await.unwrap();
    assert_eq!(rows(&context, &kept.to_sql().unwrap()).await, ["0", "1"]);
}
