use std::fs;
use std::path::Path;
use std::sync::Arc;

use blockyard::functions::from_async;
use blockyard::prelude::*;
use datafusion::arrow::array::RecordBatch;
use datafusion::physical_plan::collect;
use tempfile::TempDir;

use crate::fixtures::{context, context_with, entries, files, ints, mib, rows, sql_error};

async fn write(context: &DataContext, rows: u64, path: &str) {
    context.sql(&format!("COPY (SELECT id FROM range({rows})) TO '{path}'")).await.unwrap().take_all().await.unwrap();
}

fn below(directory: &TempDir, name: &str) -> String {
    directory.path().join(name).display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_reads_what_is_there_when_it_runs() {
    let (context, directory) = (context(), tempfile::tempdir().unwrap());
    let path = below(&directory, "f.parquet");
    write(&context, 10, &path).await;
    let dataset = context.read_parquet(path.as_str()).await.unwrap();
    assert_eq!(dataset.count().await.unwrap(), 10);
    write(&context, 25, &path).await;
    assert_eq!(dataset.count().await.unwrap(), 25);
    assert_eq!(ints(&dataset.take_all().await.unwrap(), "id").len(), 25);
    fs::remove_file(&path).unwrap();
    let error = dataset.take_all().await.unwrap_err().to_string();
    assert!(error.contains("f.parquet"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_change_after_planning_are_errors_that_name_them() {
    let (context, directory) = (context(), tempfile::tempdir().unwrap());
    for (format, change) in ["parquet", "csv", "json"].into_iter().flat_map(|f| [(f, true), (f, false)]) {
        let path = below(&directory, &format!("f.{format}"));
        write(&context, 1000, &path).await;
        let frame = context.session().sql(&format!("SELECT id FROM read_{format}('{path}')")).await.unwrap();
        let task = frame.task_ctx();
        let plan = frame.create_physical_plan().await.unwrap();
        match change {
            true => write(&context, 2000, &path).await,
            false => fs::remove_file(&path).unwrap(),
        }
        let error = collect(plan, task.into()).await.unwrap_err().to_string();
        let expected = if change { "has changed since the query was planned" } else { "is gone since" };
        assert!(error.contains(expected) && error.contains(&path), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn json_arrays_are_read_like_lines() {
    let (context, directory) = (context(), tempfile::tempdir().unwrap());
    let path = below(&directory, "rows.json");
    let select = format!("SELECT a, b FROM read_json('{path}')");
    for text in [
        r#"[{"a":1,"b":"x,y"},{"a":2},{"b":"]"}]"#,
        "\n [\n  {\n \"a\": 1,\n \"b\": \"x,y\"\n },\n {\"a\": 2.0},\n {\"b\": \"]\"}\n]\n",
    ] {
        fs::write(&path, text).unwrap();
        assert_eq!(rows(&context, &select).await.len(), 3, "{text}");
        assert_eq!(rows(&context, &format!("SELECT b FROM read_json('{path}') WHERE a = 1")).await, ["x,y"]);
    }
    fs::write(&path, "[]").unwrap();
    assert_eq!(rows(&context, &format!("SELECT count(*) FROM read_json('{path}')")).await, ["0"]);
    fs::write(&path, r#"[{"a":1},{"a":2"#).unwrap();
    let error = sql_error(&context, &format!("SELECT a FROM read_json('{path}')")).await;
    assert!(error.contains("rows.json"), "{error}");
    // Where the first rows do not tell, the place is told.
    let many: Vec<String> = (0..600_000).map(|i| format!("{{\"a\":{i}}}")).collect();
    fs::write(&path, format!("[{},{{\"a\":1.5}}]", many.join(","))).unwrap();
    let error = sql_error(&context, &format!("SELECT sum(a) FROM read_json('{path}')")).await;
    assert!(error.contains("value '1.5' of column 'a'") && error.contains("object 600001 of"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_do_not_fit_are_told_with_their_line() {
    let (context, directory) = (context(), tempfile::tempdir().unwrap());
    let lines = |row: &dyn Fn(usize) -> String| (0..600_000).map(row).collect::<String>();
    let (csv, json) = (below(&directory, "f.csv"), below(&directory, "f.json"));
    fs::write(&csv, format!("a,b\n{}1.5,x\n", lines(&|i| format!("{i},\n")))).unwrap();
    fs::write(&json, format!("{}{{\"a\":1.0}}\n{{\"a\":1.5}}\n", lines(&|i| format!("{{\"a\":{i}}}\n")))).unwrap();
    for (path, format, line) in [(&csv, "csv", 600_002), (&json, "json", 600_002)] {
        let error = sql_error(&context, &format!("SELECT sum(a) FROM read_{format}('{path}')")).await;
        let expected = format!("line {line} of '{path}'");
        assert!(error.contains("'1.5'") && error.contains("column 'a'") && error.contains(&expected), "{error}");
        let said = format!("SELECT sum(a) FROM read_{format}('{path}', types => 'a double')");
        assert_eq!(rows(&context, &said).await.len(), 1);
    }
    // A column that is empty at first is not null for ever.
    let late = format!("SELECT max(b), count(b) FROM read_csv('{csv}', types => 'a double')");
    assert_eq!(rows(&context, &late).await, ["x|1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_columns_of_one_name_in_a_file_are_not_one() {
    use datafusion::arrow::array::Int64Array;
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use datafusion::parquet::arrow::ArrowWriter;
    use std::sync::Arc;

    let (context, directory) = (context(), tempfile::tempdir().unwrap());
    let fields: Vec<Field> = ["a", "b", "a"].iter().map(|name| Field::new(*name, DataType::Int64, true)).collect();
    let schema = Arc::new(Schema::new(fields));
    let columns = (1..=3).map(|i| Arc::new(Int64Array::from(vec![i])) as _).collect();
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
    let path = below(&directory, "twice.parquet");
    let mut writer = ArrowWriter::try_new(fs::File::create(&path).unwrap(), schema, None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let error = sql_error(&context, &format!("SELECT * FROM read_parquet('{path}')")).await;
    assert!(error.contains("there are two columns 'a'") && error.contains("twice.parquet"), "{error}");
    assert_eq!(rows(&context, &format!("SELECT * FROM read_parquet('{path}', columns => ['b'])")).await, ["2"]);
    let error = sql_error(&context, &format!("SELECT * FROM read_parquet('{path}', columns => ['b', 'a'])")).await;
    assert!(error.contains("there are two columns 'a'"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_rows_are_one_group_without_keys() {
    let context = context();
    context.register_batches("rows_of_group", |batch: RecordBatch| {
        let rows = datafusion::arrow::array::Int64Array::from(vec![batch.num_rows() as i64]);
        Ok(RecordBatch::try_from_iter([("rows", std::sync::Arc::new(rows) as _)])?)
    });
    let dataset = context.range_in_blocks(1000, 10).unwrap();
    let whole = dataset.group_by(&[]).unwrap().map_groups("rows_of_group").unwrap();
    assert_eq!(ints(&whole.take_all().await.unwrap(), "rows"), [1000]);
    let sql = "SELECT * FROM map_groups(range(1000), 'rows_of_group', keys => [])";
    assert_eq!(rows(&context, sql).await, ["1000"]);
    let pieces = "SELECT * FROM map_groups(range(1000), 'rows_of_group', keys => [], batch_size => 400)";
    assert_eq!(rows(&context, pieces).await.len(), 3);
    let again = whole.to_sql().unwrap();
    assert_eq!(rows(&context, &again).await, ["1000"], "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn partitioned_writes_stay_within_their_memory() {
    let context = context_with(2, |o| o.memory_limit = mib(64));
    let directory = tempfile::tempdir().unwrap();
    let path = below(&directory, "out/");
    let copy = format!(
        "COPY (SELECT id, id % 2000 AS k, repeat('x', 100) || id AS text FROM range(400000)) TO '{path}'
         STORED AS PARQUET PARTITIONED BY (k)"
    );
    assert_eq!(rows(&context, &copy).await, ["400000"]);
    let check = format!("SELECT count(*), sum(id), count(DISTINCT k) FROM read_parquet('{path}') WHERE id % 2000 = k");
    assert_eq!(rows(&context, &check).await, ["400000|79999800000|2000"]);
    assert_eq!(entries(Path::new(&path)).len(), 2000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_removes_what_a_dead_one_left_and_nothing_else() {
    let (context, directory) = (context(), tempfile::tempdir().unwrap());
    let [dead, aside, foreign] =
        [".blockyard-dead", ".blockyard-dead-old", ".other"].map(|name| directory.path().join(name));
    for path in [&dead, &aside, &foreign] {
        fs::create_dir(path).unwrap();
        fs::write(path.join("lock"), "").unwrap();
        fs::write(path.join("0.parquet"), "left").unwrap();
    }
    // A living process holds this one.
    let alive = directory.path().join(".blockyard-alive");
    fs::create_dir(&alive).unwrap();
    let lock = fs::File::create(alive.join("lock")).unwrap();
    lock.lock().unwrap();
    write(&context, 3, &below(&directory, "f.parquet")).await;
    let expected = [".blockyard-alive", ".blockyard-dead-old", ".other", "f.parquet"];
    assert_eq!(entries(directory.path()), expected);
    drop(lock);
    write(&context, 3, &below(&directory, "f.parquet")).await;
    assert_eq!(entries(directory.path()), &expected[1..]);
    assert_eq!(files(directory.path()), ["f.parquet"]);
}

/// Both have looked at the place before either of them writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_overwrites_at_once_one_stays_as_a_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    context().range_in_blocks(70, 7).unwrap().write_parquet(path).await.unwrap();
    for round in 0..10 {
        let both = Arc::new(tokio::sync::Barrier::new(2));
        let write = async |blocks: usize, sign: i64| {
            let meet = Arc::clone(&both);
            let wait = from_async("wait", move |batch| {
                let meet = Arc::clone(&meet);
                async move {
                    meet.wait().await;
                    Ok(batch)
                }
            });
            let context = context();
            let met = context.range_in_blocks(1, 1)?.map_batches_with(
                wait,
                MapOptions { schema: Some(context.range(1)?.schema()), ..Default::default() },
            )?;
            let rows = met.union(&context.range_in_blocks(10 * blocks as u64, blocks)?)?;
            let rows = rows.with_column("id", col("id") * lit(sign))?;
            let overwrite = WriteOptions { mode: Some(SaveMode::Overwrite), ..Default::default() };
            rows.write_parquet_with(path, overwrite).await
        };
        let (few, many) = tokio::join!(write(3, 1), write(9, -1));
        assert_eq!((few.unwrap(), many.unwrap()), (31, 91), "round {round}");
        let mut ids = ints(&context().read_parquet(path).await.unwrap().take_all().await.unwrap(), "id");
        ids.sort_unstable();
        let sum: i64 = ids.iter().sum();
        assert!([(31, 435), (91, -4005)].contains(&(ids.len(), sum)), "round {round}: {} rows, {sum}", ids.len());
    }
    assert!(
        std::fs::read_dir(path).unwrap().all(|entry| !entry.unwrap().file_name().to_string_lossy().starts_with('.'))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_with_a_name_takes_the_place_of_what_it_left() {
    let (context, directory) = (context(), tempfile::tempdir().unwrap());
    let out = directory.path().join("t");
    let path = out.to_str().unwrap();
    context.range_in_blocks(4, 2).unwrap().write_parquet(path).await.unwrap();
    let options = || WriteOptions { write_id: Some("a.b-c".to_owned()), ..WriteOptions::default() };
    let many = context.range_in_blocks(100, 5).unwrap();
    assert_eq!(many.write_parquet_with(path, options()).await.unwrap(), 100);
    assert_eq!(many.write_parquet_with(path, options()).await.unwrap(), 100, "it is there already");
    // With the directory of notes.
    assert_eq!(files(&out).len(), 2 + 5 + 1);
    // It was cut short before it could say that it is complete.
    fs::remove_file(out.join("_blockyard/a.b-c.json")).unwrap();
    let few = context.range_in_blocks(7, 2).unwrap();
    assert_eq!(few.write_parquet_with(path, options()).await.unwrap(), 7);
    assert_eq!(files(&out).len(), 2 + 2 + 1);
    assert_eq!(context.read_parquet(path).await.unwrap().count().await.unwrap(), 11);
    fs::write(out.join("_blockyard/a.b-c.json"), "nothing").unwrap();
    let error = few.write_parquet_with(path, options()).await.unwrap_err().to_string();
    assert!(error.contains("a.b-c.json' is no note of a write that was completed"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_whose_last_bytes_are_nonsense_is_named() {
    let (context, directory) = (context(), tempfile::tempdir().unwrap());
    // They say that the footer is longer than the file.
    let nonsense = b"PAR1xxxxxxxPAR1";
    fs::write(directory.path().join("b.parquet"), nonsense).unwrap();
    let query = |name: &str| format!("SELECT count(*) FROM read_parquet('{}')", below(&directory, name));
    let error = sql_error(&context, &query("b.parquet")).await;
    assert!(error.contains("b.parquet") && error.contains("not those of a Parquet file"), "{error}");
    write(&context, 3, &below(&directory, "a.parquet")).await;
    let error = sql_error(&context, &query("")).await;
    assert!(error.contains("b.parquet") && error.contains("not those of a Parquet file"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_on_many_directories_mean_what_they_mean_on_rows() {
    let (context, directory) = (context(), tempfile::tempdir().unwrap());
    let path = below(&directory, "t");
    let run = async |statement: String| context.sql(&statement).await.unwrap().take_all().await.unwrap();
    // Three directories in each of fifty.
    run(format!(
        "COPY (SELECT id, id % 50 AS y, CASE WHEN id % 3 > 0 THEN id % 3 END AS m FROM range(600)) TO '{path}/' \
         STORED AS PARQUET PARTITIONED BY (y, m)"
    ))
    .await;
    fs::create_dir_all(directory.path().join("t/_temporary/y=7")).unwrap();
    fs::write(directory.path().join("t/_temporary/y=7/half.parquet"), "half").unwrap();
    run(format!("CREATE VIEW listed AS SELECT * FROM read_parquet('{path}/')")).await;
    run("CREATE TABLE copied AS SELECT * FROM listed".to_owned()).await;
    // Names of directories as they are.
    run(format!("CREATE VIEW named AS SELECT * FROM read_parquet('{path}/', partitioning => ['a', 'b'])")).await;
    for (condition, shown) in [
        ("y = 7", "skipped directories=49"),
        ("y IN (7, 8) AND m = 2", "skipped directories=52"),
        // So many are left that one listing of all is as good.
        ("y <> 7", "files=147/150"),
        ("m IS NULL", "files=50/150"),
        ("y % 10 = 3 OR m = 2", "files=60/150"),
        ("y BETWEEN 10 AND 20 AND id > 300", "skipped directories=39"),
        ("y < 12 AND m <> 1 AND 12 / (m - 1) > 0", "skipped directories="),
        ("y NOT IN (1, NULL)", ""),
        ("y > 100", ""),
    ] {
        let counted = async |table: &str| {
            rows(&context, &format!("SELECT count(*), sum(id), sum(y), sum(m) FROM {table} WHERE {condition}")).await
        };
        assert_eq!(counted("listed").await, counted("copied").await, "{condition}");
        let plan = rows(&context, &format!("EXPLAIN SELECT id FROM listed WHERE {condition}")).await.join(" ");
        assert!(plan.contains(shown), "{condition}: {plan}");
    }
    let found = rows(&context, "SELECT count(*), sum(id) FROM named WHERE a = 'y=7' AND b LIKE 'm=_'").await;
    assert_eq!(found, rows(&context, "SELECT count(*), sum(id) FROM copied WHERE y = 7 AND m > 0").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_with_more_behind_their_ending_are_of_somebody_else() {
    let (context, directory) = (context(), tempfile::tempdir().unwrap());
    for format in ["parquet", "csv", "json"] {
        let path = below(&directory, format) + "/";
        let copy = |rows: usize| {
            let options = "OPTIONS (mode 'overwrite')";
            format!("COPY (SELECT id FROM range({rows})) TO '{path}' STORED AS {format} {options}")
        };
        context.sql(&copy(4)).await.unwrap().take_all().await.unwrap();
        let first = format!("{path}part-000000.{format}");
        let others = [format!("{first}.bak"), format!("{first}.20260101"), format!("{path}x.{format}.tmp")];
        for other in &others {
            fs::copy(&first, other).unwrap();
        }
        let count = context.sql(&format!("SELECT id FROM '{path}'")).await.unwrap().count().await.unwrap();
        assert_eq!(count, 4, "{format}");
        context.sql(&copy(2)).await.unwrap().take_all().await.unwrap();
        assert!(others.iter().all(|other| Path::new(other).exists()), "{format}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn row_groups_of_many_columns_are_worth_their_footer() {
    let (context, directory) =
        (context_with(2, |options| options.memory_limit = mib(64)), tempfile::tempdir().unwrap());
    let path = below(&directory, "wide.parquet");
    let columns: Vec<String> = (0..300).map(|n| format!("id * {n} AS c{n}")).collect();
    let sql = format!("COPY (SELECT {} FROM range(20000)) TO '{path}'", columns.join(", "));
    context.sql(&sql).await.unwrap().take_all().await.unwrap();
    let file = datafusion::parquet::file::reader::SerializedFileReader::new(fs::File::open(&path).unwrap()).unwrap();
    let footer = datafusion::parquet::file::reader::FileReader::metadata(&file).clone();
    assert_eq!(footer.file_metadata().num_rows(), 20_000);
    assert!(footer.num_row_groups() < 60, "{}", footer.num_row_groups());
}
