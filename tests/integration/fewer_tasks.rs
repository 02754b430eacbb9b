use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use blockyard::prelude::*;
use datafusion::arrow::array::{Int64Array, RecordBatch, StringArray};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::prelude::{ParquetReadOptions, SessionContext};

use crate::fixtures::{context_with, emptied, lines, mib, rows};

/// Files of many small row groups: of numbers that follow each other, keys and texts, both with nulls.
fn write_files(directory: &Path) {
    for file in 0..5_i64 {
        let ids: Vec<i64> = (0..4000).map(|row| file * 4000 + row).collect();
        let keys: Int64Array = ids.iter().map(|id| (id % 11 != 0).then_some(id * 7919 % 50)).collect();
        let texts: StringArray = ids.iter().map(|id| (id % 5 != 0).then(|| format!("text {}", id % 90))).collect();
        let batch = RecordBatch::try_from_iter_with_nullable([
            ("id", Arc::new(Int64Array::from(ids)) as _, false),
            ("k", Arc::new(keys) as _, true),
            ("s", Arc::new(texts) as _, true),
        ])
        .unwrap();
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(100)).build();
        let out = File::create(directory.join(format!("{file}.parquet"))).unwrap();
        let mut writer = ArrowWriter::try_new(out, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }
}

fn session(memory: usize, is_on: bool) -> DataContext {
    context_with(2, |options| {
        options.memory_limit = mib(memory);
        options.target_min_block_size = "1KiB".parse().unwrap();
        options.optimize_fewer_tasks = is_on;
    })
}

/// The most tasks that a read of a query has.
async fn tasks(context: &DataContext, sql: &str) -> usize {
    let plan = rows(context, &format!("EXPLAIN {sql}")).await.join("\n");
    let numbers = plan.split("tasks=").skip(1).map(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<usize>().unwrap()
    });
    numbers.max().unwrap()
}

#[tokio::test]
async fn rows_of_fewer_tasks_are_those_of_plain_datafusion() {
    let directory = tempfile::tempdir().unwrap();
    write_files(directory.path());
    let path = directory.path().to_str().unwrap();
    let plain = SessionContext::new();
    plain.register_parquet("t", path, ParquetReadOptions::default()).await.unwrap();
    let queries = [
        "SELECT count(*), sum(id), min(s), max(s) FROM t",
        "SELECT k, count(*), sum(id), max(s) FROM t GROUP BY k",
        "SELECT count(*), sum(id), max(s) FROM t WHERE id BETWEEN 3950 AND 4050 OR id > 19990",
        "SELECT count(s), sum(id) FROM t WHERE s LIKE '%7' AND k < 9",
        "SELECT count(*), sum(a.id), max(b.s) FROM t a JOIN t b ON a.id = b.id * 3 WHERE b.k = 4",
        "SELECT a.k, count(*) FROM t a LEFT JOIN (SELECT k, s FROM t WHERE id % 900 = 1) b ON a.k = b.k GROUP BY a.k",
        "SELECT count(*), sum(id) FROM t WHERE id IN (SELECT k * 100 FROM t WHERE s = 'text 7')",
        "SELECT count(*) FROM t WHERE NOT EXISTS (SELECT 1 FROM t u WHERE u.k = t.k AND u.id > t.id)",
        "SELECT count(DISTINCT s), count(DISTINCT k) FROM t WHERE id > 700",
        "SELECT a.id, b.id FROM t a JOIN t b ON a.id < b.id AND b.id < a.id + 3 WHERE a.k = 1 AND b.k = 2",
    ];
    for (memory, is_on) in [(256, true), (24, true), (256, false)] {
        let context = session(memory, is_on);
        let view = format!("CREATE VIEW t AS SELECT * FROM read_parquet('{path}')");
        context.sql(&view).await.unwrap().take_all().await.unwrap();
        for sql in queries {
            let mut want = lines(&plain.sql(sql).await.unwrap().collect().await.unwrap());
            let mut got = rows(&context, sql).await;
            want.sort();
            got.sort();
            assert_eq!(got, want, "{sql}");
        }
        let seen = tasks(&context, "SELECT * FROM t WHERE k > 3").await;
        let summed = tasks(&context, "SELECT sum(id) FROM t WHERE k > 3").await;
        assert_eq!(seen, 200);
        assert_eq!(summed < 100, is_on, "{summed}");
        emptied(&context).await;
    }
}

/// Where somebody asks for tasks, or for what depends on them, they stay.
#[tokio::test]
async fn tasks_that_are_asked_for_stay() {
    let directory = tempfile::tempdir().unwrap();
    write_files(directory.path());
    let path = directory.path().to_str().unwrap();
    let context = session(256, true);
    for (columns, call, expected) in [
        ("sum(id)", format!("read_parquet('{path}', override_num_blocks => 70)"), 70),
        ("sum(row_number)", format!("read_parquet('{path}', include_row_numbers => true)"), 200),
        ("sum(id)", format!("map_batches(read_parquet('{path}'), 'identity')"), 200),
        ("sum(id)", format!("randomize_block_order(read_parquet('{path}'), seed => 3)"), 200),
        ("sum(id)", format!("read_parquet('{path}') TABLESAMPLE BERNOULLI (50) REPEATABLE (3)"), 200),
    ] {
        assert_eq!(tasks(&context, &format!("SELECT {columns} FROM {call}")).await, expected, "{call}");
    }
}
