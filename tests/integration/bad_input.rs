use std::sync::Arc;

use blockyard::prelude::*;
use blockyard::{BlockyardOptions, ByteSize, MemoryLimit, WindowSize};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionConfig;

use crate::fixtures::{context, context_with, entries, inc, ints, sql_error};

fn contains(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "'{part}' is not in: {error}");
    }
}

async fn failure(dataset: datafusion::error::Result<Dataset>) -> String {
    let error: DataFusionError = match dataset {
        Ok(dataset) => dataset.take_all().await.map(drop).unwrap_err(),
        Err(e) => e,
    };
    error.strip_backtrace()
}

#[tokio::test]
async fn a_missing_path_suggests_its_neighbour() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("orders.csv"), "a\n1\n").unwrap();
    let path = directory.path().join("order.csv");
    let error = sql_error(&context(), &format!("SELECT * FROM read_csv('{}')", path.display())).await;
    contains(&error, &["does not exist", "Did you mean", "orders.csv"]);
}

#[tokio::test]
async fn an_empty_file_beside_others_has_no_rows() {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [("a.csv", "x\n1\n"), ("b.csv", ""), ("c.csv", "x\n2\n"), ("d.csv", "x\n")] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let read = format!("SELECT x FROM read_csv('{}') ORDER BY x", directory.path().display());
    assert_eq!(crate::fixtures::rows(&context(), &read).await, ["1", "2"]);
}

#[tokio::test]
async fn an_empty_directory_says_what_it_lacks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display();
    contains(&sql_error(&context(), &format!("SELECT * FROM read_parquet('{path}')")).await, &["no .parquet files in"]);
}

#[tokio::test]
async fn a_corrupt_parquet_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bad.parquet");
    std::fs::write(&path, "this is not parquet at all").unwrap();
    let error = sql_error(&context(), &format!("SELECT * FROM read_parquet('{}')", path.display())).await;
    contains(&error, &["bad.parquet", "Parquet"]);
    std::fs::write(&path, "").unwrap();
    let error = sql_error(&context(), &format!("SELECT * FROM read_parquet('{}')", path.display())).await;
    contains(&error, &["bad.parquet"]);
}

#[tokio::test]
async fn files_with_other_types_are_an_error_and_missing_columns_are_null() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display();
    let context = context();
    let copy = |select: &str, name: &str| format!("COPY ({select}) TO '{path}/{name}.parquet' STORED AS PARQUET");
    context.sql(&copy("SELECT 1 AS a, 2 AS b", "1")).await.unwrap().take_all().await.unwrap();
    context.sql(&copy("SELECT 3 AS a", "2")).await.unwrap().take_all().await.unwrap();
    let query = format!("SELECT * FROM read_parquet('{path}')");
    assert_eq!(crate::fixtures::rows(&context, &query).await, ["1|2", "3|NULL"]);
    context.sql(&copy("SELECT 'text' AS a", "3")).await.unwrap().take_all().await.unwrap();
    contains(&sql_error(&context, &query).await, &["3.parquet", "column 'a' is Utf8 here, but Int64 in the table"]);
}

#[tokio::test]
async fn a_panicking_function_is_named_with_its_rows() {
    let ds = context().range_in_blocks(100, 1).unwrap();
    let f = |batch: datafusion::arrow::array::RecordBatch| {
        assert!(batch.num_rows() == 0, "boom");
        Ok(batch)
    };
    let options = MapOptions { name: Some("explode".into()), batch_size: BatchSize::Rows(10), ..Default::default() };
    let error = failure(ds.map_batches_with(f, options)).await;
    contains(&error, &["function 'explode' panicked: boom", "running MapBatches(explode) on rows 0..10 of task 0"]);
}

#[tokio::test]
async fn other_columns_than_declared_are_an_error() {
    let schema = Arc::new(Schema::new(vec![Field::new("score", DataType::Float64, true)]));
    let options = MapOptions { schema: Some(schema), ..Default::default() };
    let error = failure(context().range(5).unwrap().map_batches_with(inc, options)).await;
    contains(&error, &["function 'inc' returned columns [id Int64]", "was planned to return [score Float64]"]);
}

#[tokio::test]
async fn zip_of_unequal_lengths_says_both() {
    let context = context();
    let error = failure(context.range(10).unwrap().zip(&[&context.range(7).unwrap()])).await;
    contains(&error, &["zip needs equally many rows in all inputs, got 10 and 7"]);
}

#[tokio::test]
async fn unknown_columns_are_suggested() {
    let ds = context().range(3).unwrap();
    contains(&ds.select_columns(&["idd"]).unwrap_err().to_string(), &["unknown column 'idd'", "Did you mean 'id'?"]);
    contains(&ds.sort(["x"]).unwrap_err().to_string(), &["unknown column 'x' of sort", "Accepted: id"]);
    let error = sql_error(&context(), "SELECT idd FROM range(3)").await;
    contains(&error, &["idd", "id"]);
}

#[tokio::test]
async fn a_memory_limit_that_holds_nothing_is_refused() {
    let options = BlockyardOptions { memory_limit: MemoryLimit::Bytes(ByteSize(1000)), ..Default::default() };
    let config = SessionConfig::new().with_target_partitions(2);
    let error = DataContext::with_config(Blockyard { options, ..Default::default() }, config).unwrap_err().to_string();
    contains(&error, &["memory_limit 1000B is too small", "2 threads need at least 2MiB"]);
}

#[tokio::test]
async fn an_unusable_spill_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let options = BlockyardOptions { spill_directory: file.join("below").display().to_string(), ..Default::default() };
    let error =
        DataContext::with_config(Blockyard { options, ..Default::default() }, SessionConfig::new()).unwrap_err();
    contains(&error.to_string(), &["cannot spill to", "file/below"]);
}

#[tokio::test]
async fn existing_output_with_mode_error_fails_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display();
    let context = context();
    let copy = format!("COPY (SELECT * FROM range(5)) TO '{path}/out/' STORED AS PARQUET OPTIONS ('mode' 'error')");
    context.sql(&copy).await.unwrap().take_all().await.unwrap();
    let before = entries(&directory.path().join("out"));
    contains(&sql_error(&context, &copy).await, &["already exists", "mode is error"]);
    assert_eq!(entries(&directory.path().join("out")), before);
    let wrong = copy.replace("'error'", "'eror'");
    contains(&sql_error(&context, &wrong).await, &["unknown value 'eror' of mode", "Did you mean 'error'?"]);
}

#[tokio::test]
async fn a_failing_write_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let f =
        |batch: datafusion::arrow::array::RecordBatch| match crate::fixtures::ints(std::slice::from_ref(&batch), "id")
            .contains(&90)
        {
            true => Err(DataFusionError::Execution("row 90 is cursed".into())),
            false => Ok(batch),
        };
    let ds = context().range_in_blocks(100, 10).unwrap().map_batches(f).unwrap();
    let error = ds.write_parquet(out.to_str().unwrap()).await.unwrap_err().to_string();
    contains(&error, &["row 90 is cursed", "MapBatches(closure)"]);
    assert!(!out.exists() || entries(&out).is_empty(), "{:?}", entries(&out));
}

#[tokio::test]
async fn arguments_of_table_functions_are_checked() {
    let context = context();
    for (sql, parts) in [
        (
            "SELECT * FROM map_batches(range(3), 'identity', bath_size => 3)",
            vec!["unknown argument 'bath_size'", "Did you mean 'batch_size'?"],
        ),
        (
            "SELECT * FROM map_batches(range(3), 'identiti')",
            vec!["unknown function 'identiti'", "Did you mean 'identity'?"],
        ),
        ("SELECT * FROM map_batches(range(3), 3)", vec!["argument 'function' of map_batches must be a string, got 3"]),
        ("SELECT * FROM map_batches(range(3), 'identity', batch_size => 0)", vec!["argument 'batch_size'", "above 0"]),
        ("SELECT * FROM repartition(range(3))", vec!["repartition needs one of the arguments 'num_blocks'"]),
        ("SELECT * FROM repartition(range(3), num_blocks => 0)", vec!["num_blocks must be at least 1"]),
        ("SELECT * FROM random_shuffle()", vec!["random_shuffle needs 1 table argument(s), got 0"]),
        (
            "SELECT * FROM tpch('lineitems', 0.01)",
            vec!["unknown table 'lineitems' of tpch", "Did you mean 'lineitem'?"],
        ),
        ("SELECT * FROM range(n => 3, n => 4)", vec!["'n' of range is given twice"]),
        ("SELECT * FROM zip(range(3))", vec!["zip needs 2 or more table argument(s), got 1"]),
        ("SELECT * FROM range(3) TABLESAMPLE SYSTEM (10)", vec!["SYSTEM", "BERNOULLI"]),
        ("SELECT * FROM range(3) TABLESAMPLE BERNOULLI (101)", vec!["from 0 to 100"]),
        ("SELECT * FROM range(3) DISTRIBUTE BY id", vec!["DISTRIBUTE BY", "repartition"]),
        (
            "SET blockyard.target_max_block_sice = '1MiB'",
            vec!["unknown option 'target_max_block_sice'", "target_max_block_size"],
        ),
        ("SET blockyard.target_max_block_size = '1 furlong'", vec!["unknown unit 'furlong'"]),
    ] {
        contains(&sql_error(&context, sql).await, &parts);
    }
}

#[tokio::test]
async fn rows_of_another_shape_are_an_error() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Point {
        x: f64,
    }
    let error = failure(context().range(3).unwrap().map(|p: Point| p)).await;
    contains(&error, &["rows do not have the shape of", "Point", "Map(closure)"]);
}

#[tokio::test]
async fn csv_files_with_other_headers_are_an_error() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("1.csv"), "a,b\n1,2\n").unwrap();
    std::fs::write(directory.path().join("2.csv"), "b,a\n3,4\n").unwrap();
    let error = sql_error(&context(), &format!("SELECT * FROM read_csv('{}')", directory.path().display())).await;
    contains(&error, &["2.csv", "[\"b\", \"a\"]", "[\"a\", \"b\"]"]);
}

#[tokio::test]
async fn parquet_files_whose_values_would_change_are_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display();
    let context = context();
    for (name, select) in [("1", "SELECT 1 AS a"), ("2", "SELECT 1.5::DOUBLE AS a")] {
        context.sql(&format!("COPY ({select}) TO '{path}/{name}.parquet'")).await.unwrap().take_all().await.unwrap();
    }
    let error = sql_error(&context, &format!("SELECT * FROM read_parquet('{path}')")).await;
    contains(&error, &["column 'a' is Float64 here, but Int64 in the table", "2.parquet"]);
}

#[tokio::test]
async fn unknown_stores_and_paths_of_nothing_are_told() {
    let context = context();
    contains(
        &sql_error(&context, "SELECT * FROM read_csv('s4://bucket/x.csv')").await,
        &["no store is known for 's4://bucket/'", "s3://"],
    );
    contains(&sql_error(&context, "SELECT * FROM 'nosuch/x.parquet'").await, &["does not exist"]);
    contains(&sql_error(&context, "SELECT * FROM 'nosuch'").await, &["path 'nosuch' does not exist"]);
    contains(
        &sql_error(&context, "SELECT * FROM 'Cargo.toml'").await,
        &["not the path of a Parquet, CSV or JSON file"],
    );
}

#[tokio::test]
async fn an_overwrite_that_fails_while_it_commits_brings_the_old_files_back() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let path = out.to_str().unwrap();
    let context = context();
    context.range_in_blocks(3, 1).unwrap().write_csv(path).await.unwrap();
    // The second new file finds its place taken.
    std::fs::create_dir(out.join("part-000001.csv")).unwrap();
    let before = entries(&out);
    let options = WriteOptions { mode: Some(SaveMode::Overwrite), ..Default::default() };
    let error = context.range_in_blocks(9, 2).unwrap().write_csv_with(path, options).await.unwrap_err().to_string();
    contains(&error, &["part-000001.csv", "already exists"]);
    assert_eq!(entries(&out), before);
    assert_eq!(std::fs::read_to_string(out.join("part-000000.csv")).unwrap(), "id\n0\n1\n2\n");
}

/// DataFusion takes these for patterns, and what they are below for the place.
#[tokio::test]
async fn nothing_is_written_beside_a_place_with_a_pattern() {
    let directory = tempfile::tempdir().unwrap();
    let context = context();
    let there = directory.path().join("precious.parquet");
    std::fs::write(&there, "rows").unwrap();
    let range = context.range(10).unwrap();
    for name in ["a?b", "x[1]", "st*r", "st*r.parquet"] {
        let place = directory.path().join(name).display().to_string();
        let options = WriteOptions { mode: Some(SaveMode::OverwriteAll), ..WriteOptions::default() };
        let error = range.write_parquet_with(&place, options).await.unwrap_err().to_string();
        assert!(error.contains("has a pattern"), "{error}");
        let copy = format!("COPY (SELECT 1) TO '{place}' STORED AS PARQUET OPTIONS (mode 'overwrite_all')");
        assert!(sql_error(&context, &copy).await.contains("has a pattern"));
    }
    assert_eq!(entries(directory.path()), ["precious.parquet"]);
    for nowhere in ["", "/"] {
        let error = range.write_parquet(nowhere).await.unwrap_err().to_string();
        assert!(error.contains("not the root of the disk"), "{error}");
    }
}

/// What is by the places of rows, where rows have none.
#[tokio::test]
async fn places_need_an_order() {
    let context = context_with(2, |options| options.preserve_order = false);
    let range = context.range_in_blocks(10_000, 5).unwrap();
    let mut all = Vec::new();
    for part in range.split(7).await.unwrap() {
        all.extend(ints(&part.take_all().await.unwrap(), "id"));
    }
    all.sort_unstable();
    assert!(all.into_iter().eq(0..10_000));
    for sql in
        ["SELECT * FROM split(range(100), 1, parts => 4)", "SELECT * FROM train_test_split(range(100), 'train', 0.2)"]
    {
        let error = sql_error(&context, sql).await;
        assert!(error.contains("parts of a dataset") && error.contains("preserve_order"), "{error}");
    }
    let drawn = context_with(2, |_| ()).sql("SELECT id FROM range(100) WHERE random() < 0.5").await.unwrap();
    let error = drawn.streaming_train_test_split(0.2, 1).unwrap_err().to_string();
    assert!(error.contains("values are drawn anew"), "{error}");
}

#[tokio::test]
async fn options_in_rust_are_checked_as_in_sql() {
    let context = context_with(2, |_| ());
    for (change, said) in [
        ((|options| options.num_cpus = 0) as fn(&mut BlockyardOptions), "num_cpus must be between 1 and 1024"),
        (|options| options.store_concurrency = 0, "store_concurrency must be at least 1"),
    ] {
        let error = context.configure(change).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let range = context.range(10).unwrap();
    assert_eq!(range.limit(usize::MAX).unwrap().count().await.unwrap(), 10);
    let twice = range.rename_columns(&[("id", "x"), ("id", "y")]).unwrap_err().to_string();
    assert!(twice.contains("names the column 'id' twice"), "{twice}");
    let pipeline = range.window(WindowSize::Rows(3)).unwrap();
    let options = WriteOptions { commit_each_window: true, write_id: Some("q".to_owned()), ..WriteOptions::default() };
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("w").display().to_string();
    let error = pipeline.write_with("parquet", &place, options).await.unwrap_err().to_string();
    assert!(error.contains("does not go together with write_id"), "{error}");
    let huge = context.range(1 << 62).unwrap().split(8).await.unwrap();
    assert_eq!(huge.len(), 8);
    let bare = range.drop_columns(&["id"]).unwrap().map_batches("identity").unwrap();
    assert_eq!(bare.take_all().await.unwrap().iter().map(|batch| batch.num_rows()).sum::<usize>(), 10);
}
