use blockyard::prelude::*;
use datafusion::arrow::array::RecordBatch;

use crate::fixtures::{context, files};

#[tokio::test]
async fn write_modes_do_what_they_say() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out");
    let ds = context().range_in_blocks(10, 2).unwrap();
    let write = async |mode| {
        let options = WriteOptions { mode: Some(mode), ..Default::default() };
        ds.write_parquet_with(path.to_str().unwrap(), options).await
    };
    assert_eq!(write(SaveMode::Error).await.unwrap(), 10);
    assert_eq!(write(SaveMode::Ignore).await.unwrap(), 0);
    assert!(write(SaveMode::Error).await.is_err());
    assert_eq!(files(&path).len(), 2);
    assert_eq!(write(SaveMode::Append).await.unwrap(), 10);
    assert_eq!(files(&path)[2..], ["part-000002.parquet", "part-000003.parquet"]);
    assert_eq!(write(SaveMode::Overwrite).await.unwrap(), 10);
    assert_eq!(files(&path), ["part-000000.parquet", "part-000001.parquet"]);
}

/// Of two that write to a place where neither has seen anything, one is faster.
#[tokio::test]
async fn a_write_leaves_alone_what_another_one_has_put_there_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out");
    for name in ["part-000001.parquet", "of-another.csv", "k=1/part-000000.parquet"] {
        let other = path.join(name);
        let others = {
            let other = other.clone();
            move |batch: RecordBatch| {
                // It is asked for its columns before.
                if batch.num_rows() > 0 {
                    std::fs::create_dir_all(other.parent().unwrap())?;
                    std::fs::write(&other, "of another")?;
                }
                Ok(batch)
            }
        };
        let ds = context().range_in_blocks(10, 2).unwrap().map_batches(others).unwrap();
        let write = async |mode| {
            let options = WriteOptions { mode: Some(mode), ..Default::default() };
            ds.write_parquet_with(path.to_str().unwrap(), options).await
        };
        let error = write(SaveMode::Error).await.unwrap_err().strip_backtrace();
        assert!(error.contains("already exists (1 files) and the mode is error"), "{error}");
        std::fs::remove_file(&other).unwrap();
        assert_eq!(write(SaveMode::Ignore).await.unwrap(), 0);
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "of another");
        std::fs::remove_file(&other).unwrap();
        assert!(!path.join("part-000000.parquet").exists(), "{name}");
        assert_eq!(write(SaveMode::Append).await.unwrap(), 10);
        std::fs::remove_dir_all(&path).unwrap();
    }
}

#[tokio::test]
async fn a_single_file_of_another_write_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("one.csv");
    let context = context();
    let other = path.clone();
    context.register_batches("other", move |batch: RecordBatch| {
        if batch.num_rows() > 0 {
            std::fs::write(&other, "of another")?;
        }
        Ok(batch)
    });
    for (mode, said) in [("error", Some("already exists")), ("ignore", None)] {
        let copy = format!(
            "COPY (SELECT * FROM map_batches(range(10), 'other')) TO '{}' STORED AS CSV OPTIONS (mode '{mode}')",
            path.display()
        );
        let copied = match context.sql(&copy).await {
            Ok(dataset) => dataset.take_all().await,
            Err(e) => Err(e),
        };
        match (copied, said) {
            (Err(e), Some(said)) => assert!(e.to_string().contains(said), "{e}"),
            (Ok(_), None) => {}
            (other, _) => panic!("{mode}: {other:?}"),
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "of another");
        std::fs::remove_file(&path).unwrap();
    }
}
