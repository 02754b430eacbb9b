//! Plans that would be refused, and run because they work on less at once.

use std::path::Path;
use std::sync::Arc;

use blockyard::prelude::*;
use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::common::exec_err;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties};

use crate::fixtures::{context_with, mib, rows};

/// Files of one row group each, of which a task takes several mebibytes.
async fn write_input(directory: &Path) {
    let columns: Vec<String> = (0..5).map(|i| format!("md5(CAST(id * 6 + {i} AS VARCHAR)) AS s{i}")).collect();
    let sql = format!(
        "COPY (SELECT id, id % 100 AS k, {} FROM range(120000, override_num_blocks => 4)) TO '{}/' STORED AS PARQUET",
        columns.join(", "),
        directory.display()
    );
    assert_eq!(rows(&context_with(2, |_| {}), &sql).await, ["120000"]);
}

fn branches(read: &str, number: usize) -> String {
    let branch = |i: usize| format!("SELECT id + {i} AS id, s0, s1, s2, s3, s4 FROM {read} WHERE k <> {i}");
    (0..number).map(branch).collect::<Vec<_>>().join(" UNION ALL ")
}

/// What a session of so little memory gives is what one with plenty gives, in the same order.
#[tokio::test]
async fn plans_that_fit_in_parts_run_in_parts() {
    let directory = tempfile::tempdir().unwrap();
    write_input(directory.path()).await;
    let read = format!("read_parquet('{}/')", directory.path().display());
    let union = branches(&read, 8);
    let sorted: Vec<String> =
        (0..8).map(|i| format!("SELECT * FROM (SELECT * FROM {read} WHERE k = {i} ORDER BY s0)")).collect();
    let all = "count(*), min(s0), max(s1), min(s2), max(s3), min(s4)";
    let queries = [
        format!("SELECT {all}, sum(id) FROM ({union})"),
        format!(
            "SELECT sum(place * id) FROM (SELECT id, row_number() OVER () AS place FROM ({union}) WHERE id % 3 = 0)"
        ),
        format!(
            "SELECT sum(place * id), {all} FROM (SELECT *, row_number() OVER () AS place FROM ({}))",
            sorted.join(" UNION ALL ")
        ),
        format!(
            "SELECT sum(place * id), {all} FROM (SELECT *, row_number() OVER () AS place
                 FROM random_shuffle((SELECT * FROM ({union})), seed => 3))"
        ),
        format!(
            "SELECT count(*), max(a.s0 || b.s1 || a.s2 || b.s3 || b.s4) FROM {read} a JOIN {read} b ON a.id = b.id"
        ),
        format!("SELECT count(*), min(s0) FROM (SELECT * FROM {read} EXCEPT SELECT * FROM {read} WHERE k = 7)"),
        format!("SELECT count(*), min(s0) FROM (SELECT * FROM {read} INTERSECT SELECT * FROM {read} WHERE k = 7)"),
        format!("SELECT {all}, max(s0_1), min(s1_1), max(s2_1), min(s3_1), max(s4_1) FROM zip({read}, {read})"),
    ];
    let (plenty, scarce) = (context_with(2, |_| {}), context_with(2, |options| options.memory_limit = mib(28)));
    for sql in &queries {
        assert_eq!(rows(&scarce, sql).await, rows(&plenty, sql).await, "{sql}");
    }
    let explained = |context: &DataContext, sql: String| {
        let context = context.clone();
        async move { rows(&context, &format!("EXPLAIN {sql}")).await.join("\n") }
    };
    let (of_plenty, of_scarce) =
        (explained(&plenty, queries[0].clone()).await, explained(&scarce, queries[0].clone()).await);
    assert!(of_plenty.contains("UnionExec") && !of_plenty.contains("streams="), "{of_plenty}");
    assert!(of_scarce.contains("TurnsExec") && of_scarce.contains("streams=1"), "{of_scarce}");
    // Nobody counts on the order of each input there.
    let zip = explained(&scarce, queries[7].clone()).await;
    assert!(zip.contains("streams=1") && !zip.contains("TurnsExec"), "{zip}");
}

/// A merge of inputs that are in order needs them all at once.
#[tokio::test]
async fn a_merge_of_sorted_inputs_keeps_them_together() {
    let directory = tempfile::tempdir().unwrap();
    write_input(directory.path()).await;
    let read = format!("read_parquet('{}/')", directory.path().display());
    let branch = |i: usize| format!("SELECT * FROM (SELECT * FROM {read} WHERE k = {i} ORDER BY id)");
    let union = (0..4).map(branch).collect::<Vec<_>>().join(" UNION ALL ");
    let sql =
        format!("SELECT sum(place * id) FROM (SELECT id, row_number() OVER (ORDER BY id) AS place FROM ({union}))");
    let scarce = context_with(2, |options| options.memory_limit = mib(32));
    assert_eq!(rows(&scarce, &sql).await, rows(&context_with(2, |_| {}), &sql).await);
}

/// A file of one row group: numbers and three texts of 32 bytes, 40 MB.
fn write_row_group(path: &Path, says_where_pages_are: bool) {
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(400_000))
        .set_dictionary_enabled(false)
        .set_offset_index_disabled(!says_where_pages_are)
        .set_statistics_enabled(match says_where_pages_are {
            true => EnabledStatistics::Page,
            false => EnabledStatistics::Chunk,
        })
        .build();
    let batch = |start: i64| {
        let ids = Int64Array::from_iter_values(start..start + 10_000);
        let text = |salt: i64| {
            let texts =
                ids.values().iter().map(|id| format!("{:032x}", (id * 6 + salt).wrapping_mul(0x9E37_79B9_7F4A)));
            Arc::new(StringArray::from_iter_values(texts)) as ArrayRef
        };
        let columns = [("id", Arc::new(ids.clone()) as _), ("a", text(1)), ("b", text(2)), ("c", text(3))];
        RecordBatch::try_from_iter(columns).unwrap()
    };
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch(0).schema(), Some(properties)).unwrap();
    for start in (0..400_000).step_by(10_000) {
        writer.write(&batch(start)).unwrap();
    }
    assert_eq!(writer.close().unwrap().num_row_groups(), 1);
}

/// A row group larger than the limit is read page by page, whether or not the file says where its pages are.
#[tokio::test]
async fn a_row_group_is_read_in_pieces() {
    for says_where_pages_are in [true, false] {
        read_in_pieces(says_where_pages_are).await;
    }
}

async fn read_in_pieces(says_where_pages_are: bool) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("whole.parquet");
    write_row_group(&path, says_where_pages_are);
    let read = format!("read_parquet('{}')", path.display());
    let (plenty, scarce) = (context_with(2, |_| {}), context_with(2, |options| options.memory_limit = mib(24)));
    let failing = |batch: RecordBatch| match batch["id"].as_primitive::<Int64Type>().values().contains(&333_333) {
        true => exec_err!("not this row"),
        false => Ok(batch),
    };
    scarce.register_batches("failing", failing);
    let queries = [
        format!("SELECT count(*), sum(id), min(a), max(b), min(c) FROM {read}"),
        format!("SELECT id, b FROM {read} WHERE id % 40000 = 77"),
        format!("SELECT id FROM {read} WHERE id BETWEEN 199990 AND 200010"),
        format!("SELECT id, c FROM {read} LIMIT 3 OFFSET 300000"),
        format!("SELECT sum(place * id) FROM (SELECT id, a, row_number() OVER () AS place FROM {read})"),
        format!("SELECT count(*), max(a_1), min(b), max(c_1) FROM zip({read}, {read})"),
        format!(
            "SELECT id, path LIKE '%whole.parquet' FROM read_parquet('{}', include_paths => true) WHERE id = 255000",
            path.display()
        ),
    ];
    for sql in &queries {
        assert_eq!(rows(&scarce, sql).await, rows(&plenty, sql).await, "{sql}");
    }
    // Its place in the file is known, whatever piece it is in.
    let diverted =
        format!("SELECT count(*) FROM map_batches({read}, 'failing', on_error => 'divert', divert_to => 'bad')");
    assert_eq!(rows(&scarce, &diverted).await, ["399999"]);
    assert_eq!(rows(&scarce, "SELECT id, _row FROM diverted('bad')").await, ["333333|333333"]);
}
