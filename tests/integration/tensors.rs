use std::sync::Arc;

use blockyard::prelude::*;
use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Int64Type};

use crate::fixtures::{context, context_with, mib, sql_error};

/// What the field of a column says of its tensors.
fn shape_of(field: &Field) -> Option<&str> {
    assert!(matches!(field.data_type(), DataType::FixedSizeList(..)), "{field:?}");
    let is_tensor = field.extension_type_name() == Some("arrow.fixed_shape_tensor");
    field.extension_type_metadata().filter(|_| is_tensor)
}

/// The values of all tensors, one list for each row.
fn tensors(batches: &[RecordBatch], column: &str) -> Vec<Vec<i64>> {
    let mut rows = Vec::new();
    for batch in batches {
        let lists = batch.column_by_name(column).unwrap().as_fixed_size_list();
        assert_eq!(lists.null_count(), 0);
        rows.extend((0..lists.len()).map(|row| lists.value(row).as_primitive::<Int64Type>().values().to_vec()));
    }
    rows
}

/// The plan and every batch of it say that a column has tensors of a shape.
async fn assert_tensors(dataset: &Dataset, column: &str, shape: &str) -> Vec<RecordBatch> {
    let planned = dataset.schema();
    assert_eq!(shape_of(planned.field_with_name(column).unwrap()), Some(shape), "{dataset:?}");
    let batches = dataset.take_all().await.unwrap();
    assert!(!batches.is_empty());
    for batch in &batches {
        let schema = batch.schema();
        assert_eq!(shape_of(schema.field_with_name(column).unwrap()), Some(shape), "{}", dataset.logical_plan());
    }
    batches
}

#[tokio::test]
async fn a_range_of_tensors_is_filled_with_row_numbers() {
    let context = context();
    let dataset = context.range_tensor(1000, [2, 3]).unwrap();
    let batches = assert_tensors(&dataset, "data", r#"{"shape":[2, 3]}"#).await;
    assert_eq!(tensors(&batches, "data"), (0..1000_i64).map(|row| vec![row; 6]).collect::<Vec<_>>());
    assert_eq!(dataset.count().await.unwrap(), 1000);
    assert_eq!(dataset.to_sql().unwrap(), "SELECT * FROM range_tensor(1000, shape => [2, 3])");
    let again = context.sql(&dataset.to_sql().unwrap()).await.unwrap();
    assert_eq!(again.schema(), dataset.schema());
    let blocks = context.range_tensor_in_blocks(10, vec![4_usize], 5).unwrap();
    assert_eq!(blocks.num_blocks().await.unwrap(), Some(5));
    assert_eq!(tensors(&blocks.take_all().await.unwrap(), "data").len(), 10);
    for (n, shape) in [(1, vec![]), (1, vec![3_usize, 0]), (1, vec![1 << 20, 1 << 20]), (u64::MAX, vec![1])] {
        assert!(context.range_tensor(n, shape).is_err());
    }
}

/// Large tensors come in batches of few rows: one of as many rows as others would not fit in memory.
#[tokio::test]
async fn batches_of_large_tensors_are_small() {
    let context = context_with(2, |o| o.memory_limit = mib(32));
    let batches = context.range_tensor(64, [256, 512]).unwrap().take_all().await.unwrap();
    assert!(batches.iter().all(|batch| batch.num_rows() <= 8));
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 64);
}

#[tokio::test]
async fn tensors_survive_shuffles_spills_and_parquet() {
    const ROWS: u64 = 40_000;
    let context = context_with(2, |o| o.memory_limit = mib(32));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out");
    let path = path.to_str().unwrap();
    let dataset = context.range_tensor(ROWS, [8, 16]).unwrap();
    let dataset = dataset.map_batches("identity").unwrap().random_shuffle(Some(7)).unwrap();
    let dataset = dataset.repartition(6).unwrap().map_batches(crate::fixtures::inc).unwrap();
    assert_eq!(dataset.write_parquet(path).await.unwrap(), ROWS as usize);
    assert!(context.store().totals().spilled_bytes() > 0, "32 MiB must be too little for {}", dataset.stats());

    let read = context.read_parquet(path).await.unwrap();
    let batches = assert_tensors(&read, "data", r#"{"shape":[8, 16]}"#).await;
    let rows = tensors(&batches, "data");
    assert!(rows.iter().all(|row| row.len() == 128 && row.iter().all(|value| *value == row[0])));
    let mut numbers: Vec<i64> = rows.iter().map(|row| row[0]).collect();
    assert_ne!(numbers[..100], (0..100).collect::<Vec<i64>>());
    numbers.sort_unstable();
    assert_eq!(numbers, (0..ROWS as i64).collect::<Vec<_>>());
}

/// A session in which `t` has the columns `id` and `data`.
async fn with_table(context: &DataContext) {
    let table = "CREATE VIEW t AS SELECT * FROM zip(range(100), range_tensor(100, [2, 3]))";
    context.sql(table).await.unwrap();
}

#[tokio::test]
async fn what_moves_rows_keeps_tensors() {
    let context = context();
    with_table(&context).await;
    context.sql("CREATE TABLE stored AS SELECT * FROM t").await.unwrap();
    for sql in [
        "SELECT data FROM t WHERE id > 10 LIMIT 5",
        "SELECT id, data FROM t ORDER BY id DESC",
        "SELECT * FROM random_shuffle(t, seed => 1)",
        "SELECT * FROM local_shuffle(t, rows => 10, seed => 1)",
        "SELECT * FROM randomize_block_order(t, seed => 1)",
        "SELECT * FROM repartition(t, num_blocks => 3)",
        "SELECT * FROM repartition(t, num_blocks => 3, keys => ['id'], sort => true)",
        "SELECT * FROM map_batches(t, 'drop_nulls', batch_size => 7)",
        "SELECT * FROM map_batches(t, 'row_hash')",
        "SELECT * FROM mix(t, stored)",
        "SELECT * FROM t UNION ALL SELECT * FROM stored",
        "SELECT a.data FROM t AS a JOIN stored AS b ON a.id = b.id",
        "SELECT b.data FROM t AS a LEFT JOIN stored AS b ON a.id = b.id",
        "SELECT data, row_number() OVER (ORDER BY id) AS n FROM t",
        "SELECT * FROM stored",
        "SELECT make_tensor(data, [2, 3]) AS data FROM t",
        "SELECT data FROM foreach_window(windows(t, rows_per_window => 30), 'SELECT * FROM this_window ORDER BY id')",
    ] {
        let dataset = context.sql(sql).await.unwrap();
        assert_tensors(&dataset, "data", r#"{"shape":[2, 3]}"#).await;
    }
    let materialized = context.sql("SELECT * FROM t").await.unwrap().materialize().await.unwrap();
    assert_tensors(&materialized, "data", r#"{"shape":[2, 3]}"#).await;
}

#[tokio::test]
async fn tensors_of_different_shapes_do_not_become_one_column() {
    let context = context();
    with_table(&context).await;
    let both = "column 'data' has tensors of shape [2, 3] and of shape [3, 2]";
    for sql in [
        "SELECT data FROM t UNION ALL SELECT data FROM range_tensor(1, [3, 2])",
        "SELECT * FROM mix(range_tensor(1, [2, 3]), range_tensor(1, [3, 2]))",
        "CREATE TABLE s AS SELECT data FROM t; INSERT INTO s SELECT data FROM range_tensor(1, [3, 2])",
    ] {
        let error = sql_error(&context, sql).await;
        assert!(error.contains(both), "{sql}: {error}");
    }
    let directory = tempfile::tempdir().unwrap();
    for (name, shape) in [("a", [2, 3]), ("b", [3, 2])] {
        let path = directory.path().join(name);
        context.range_tensor(5, shape).unwrap().write_parquet(path.to_str().unwrap()).await.unwrap();
    }
    let path = directory.path().to_str().unwrap();
    let error = sql_error(&context, &format!("SELECT * FROM read_parquet(['{path}/a/', '{path}/b/'])")).await;
    assert!(error.contains(both) && error.contains("while reading"), "{error}");
}

/// What other programs say of their tensors comes through.
#[tokio::test]
async fn names_and_orders_of_dimensions_are_kept() {
    let context = context();
    let batch = context.range_tensor(3, [2, 3]).unwrap().take_batch(3).await.unwrap();
    let said = r#"{"shape":[2,3],"dim_names":["a","b"],"permutation":[1,0]}"#;
    let mut field = batch.schema().field(0).clone();
    field.metadata_mut().insert("ARROW:extension:metadata".to_owned(), said.to_owned());
    let schema = Arc::new(datafusion::arrow::datatypes::Schema::new(vec![field]));
    let batch = RecordBatch::try_new(schema, batch.columns().to_vec()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let dataset = context.from_batches(vec![batch]).unwrap().random_shuffle(Some(1)).unwrap();
    dataset.write_parquet(path).await.unwrap();
    assert_tensors(&context.read_parquet(path).await.unwrap(), "data", said).await;
}

#[tokio::test]
async fn lists_become_tensors_in_rust_and_sql() {
    let context = context();
    let lists = context.sql("SELECT [id, id + 1, id + 2, id + 3] AS l FROM range(10)").await.unwrap();
    let call = blockyard::tensors::make_tensor(col("l"), &[2, 2]);
    let in_rust = context.from_dataframe(lists.into_dataframe().select(vec![call.alias("x")]).unwrap());
    let in_sql = "SELECT make_tensor([id, id + 1, id + 2, id + 3], [2, 2]) AS x FROM range(10)";
    let in_sql = context.sql(in_sql).await.unwrap();
    for dataset in [in_rust, in_sql] {
        let batches = assert_tensors(&dataset, "x", r#"{"shape":[2, 2]}"#).await;
        assert_eq!(tensors(&batches, "x")[7], [7, 8, 9, 10]);
    }
}

/// DataFusion leaves out what the fields of Parquet files say, takes what one query of a UNION says for all of its rows,
/// and does not know the value of `[2]` when a function says its type.
#[tokio::test]
async fn plain_datafusion_loses_and_mixes_up_shapes() {
    use datafusion::prelude::{ParquetReadOptions, SessionContext};

    let (context, plain) = (context(), SessionContext::new());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    context.range_tensor(3, [2, 3]).unwrap().write_parquet(path).await.unwrap();
    let read = plain.read_parquet(path, ParquetReadOptions::default()).await.unwrap();
    assert_eq!(shape_of(read.schema().field(0)), None);

    for (name, shape) in [("a", [2, 3]), ("b", [3, 2])] {
        let batch = context.range_tensor(1, shape).unwrap().take_batch(1).await.unwrap();
        plain.register_batch(name, batch).unwrap();
    }
    let union = plain.sql("SELECT * FROM a UNION ALL SELECT * FROM b").await.unwrap();
    let plan = union.create_physical_plan().await.unwrap();
    assert!(shape_of(plan.schema().field(0)).is_some());

    let session = context.session();
    assert!(session.sql("SELECT make_tensor([1, 2], [2])").await.is_err());
    assert!(session.sql("SELECT make_tensor([1, 2], 2)").await.is_ok());
}

#[cfg(feature = "ndarray")]
#[tokio::test]
async fn batches_give_arrays() {
    use futures::TryStreamExt;

    let context = context();
    with_table(&context).await;
    let dataset = context.sql("SELECT id, id * 0.5 AS half, data FROM t").await.unwrap();
    let options = IterOptions { batch_size: Some(30), ..IterOptions::default() };
    let mut batches = dataset.iter_batches(options).await.unwrap();
    let mut rows = 0;
    while let Some(batch) = batches.try_next().await.unwrap() {
        let (tensors, ids) = (batch.tensor::<i64>("data").unwrap(), batch.vector::<i64>("id").unwrap());
        assert_eq!(tensors.shape(), [batch.num_rows(), 2, 3]);
        let matrix = batch.matrix::<f32>(&["id", "half"]).unwrap();
        for (row, id) in ids.iter().enumerate() {
            assert_eq!((tensors[[row, 1, 2]], matrix[[row, 1]]), (*id, *id as f32 / 2.0));
        }
        rows += batch.num_rows();
    }
    assert_eq!(rows, 100);
}

#[cfg(feature = "ffi")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_leave_as_a_stream_of_c() {
    use datafusion::arrow::ffi_stream::ArrowArrayStreamReader;
    use datafusion::arrow::record_batch::RecordBatchReader;

    let context = context();
    let options = IterOptions { batch_size: Some(300), ..IterOptions::default() };
    let batches = context.range_tensor(1000, [2, 3]).unwrap().iter_batches(options.clone()).await.unwrap();
    let reader = ArrowArrayStreamReader::try_new(batches.into_ffi_stream()).unwrap();
    assert_eq!(shape_of(reader.schema().field(0)), Some(r#"{"shape":[2, 3]}"#));
    let read: Vec<RecordBatch> = reader.map(Result::unwrap).collect();
    assert_eq!(read.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [300, 300, 300, 100]);
    assert_eq!(tensors(&read, "data"), (0..1000_i64).map(|row| vec![row; 6]).collect::<Vec<_>>());

    let fails = blockyard::functions::from_closure(|batch| match batch.num_rows() {
        0 => Ok(batch),
        _ => datafusion::common::exec_err!("no rows\0today"),
    });
    let failing = context.range(1000).unwrap().map_batches(fails).unwrap();
    let batches = failing.iter_batches(options).await.unwrap();
    let mut reader = ArrowArrayStreamReader::try_new(batches.into_ffi_stream()).unwrap();
    let error = reader.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("no rows today"), "{error}");
    assert!(reader.next().is_none());
}
