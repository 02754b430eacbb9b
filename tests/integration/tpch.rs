use std::path::Path;
use std::sync::Arc;

use datafusion::datasource::MemTable;
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::fixtures::{context, lines};

/// All 22 queries over generated data in the block store, against plain DataFusion over the same rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_22_queries_equal_plain_datafusion() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/tpch");
    let ours = context();
    let tables = std::fs::read_to_string(root.join("00_tables.sql")).unwrap();
    ours.sql(&tables).await.unwrap();
    let plain = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
    for table in ["region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem"] {
        let rows = ours.sql(&format!("SELECT * FROM {table}")).await.unwrap().take_all().await.unwrap();
        let memory = MemTable::try_new(rows[0].schema(), vec![rows]).unwrap();
        plain.register_table(table, Arc::new(memory)).unwrap();
    }
    for number in 1..=22 {
        let sql = std::fs::read_to_string(root.join(format!("q{number:02}.sql"))).unwrap();
        let got = lines(&ours.sql(&sql).await.unwrap().take_all().await.unwrap());
        let want = lines(&plain.sql(sql.trim().trim_end_matches(';')).await.unwrap().collect().await.unwrap());
        assert!(!want.is_empty(), "query {number} must return rows");
        // Sums of floats may differ in the last digits by the order of addition; TPC-H has decimals, so text is exact.
        let (mut got, mut want) = (got, want);
        got.sort();
        want.sort();
        assert_eq!(got, want, "query {number}");
    }
}
