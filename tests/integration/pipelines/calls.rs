//! What pipelines are made of, parted into, and written as.

use blockyard::prelude::*;
use blockyard::{DatasetPipeline, WindowSize};
use datafusion::arrow::array::{AsArray, RecordBatch};
use futures::TryStreamExt;

use super::windows::{ids, ids_of, windows_of};
use crate::fixtures::context;

#[tokio::test]
async fn datasets_are_windows_one_after_the_other() {
    let context = context();
    let of = |from: i64, to: i64| {
        let filter = format!("id >= {from} AND id < {to}");
        context.range(100).unwrap().filter(filter.as_str()).unwrap()
    };
    let pipeline = DatasetPipeline::from_datasets([of(0, 3), of(10, 15), of(40, 41)]).unwrap();
    assert_eq!(format!("{pipeline:?}"), "DatasetPipeline(num_windows=3, num_stages=1)");
    assert_eq!(windows_of(&pipeline).await, [vec![0, 1, 2], vec![10, 11, 12, 13, 14], vec![40]]);
    let sorted = pipeline.repeat(2).unwrap().sort_each_window([desc("id")]).unwrap();
    let windows: [Vec<i64>; 3] = [vec![2, 1, 0], vec![14, 13, 12, 11, 10], vec![40]];
    assert_eq!(windows_of(&sorted).await, [windows.clone(), windows].concat());
    let again = context.sql(&sorted.to_sql().unwrap()).await.unwrap();
    assert_eq!(ids(&again).await, ids_of(&sorted).await);

    let error = DatasetPipeline::from_datasets([]).unwrap_err().to_string();
    assert!(error.contains("at least 1 dataset"), "{error}");
    let other = context.sql("SELECT 'x' AS id").await.unwrap();
    let error = DatasetPipeline::from_datasets([of(0, 3), other]).unwrap_err().to_string();
    assert!(error.contains("the first has [id Int64], number 2 has [id Utf8"), "{error}");
}

#[tokio::test]
async fn windows_are_split_at_indices() {
    let windows = context().range_in_blocks(12, 12).unwrap().window(WindowSize::Blocks(5)).unwrap();
    let parts = windows.split_at_indices(&[1, 3]).unwrap();
    let mut of_parts = Vec::new();
    for part in &parts {
        of_parts.push(ids_of(part).await);
    }
    assert_eq!(of_parts, [vec![0, 5, 10], vec![1, 2, 6, 7, 11], vec![3, 4, 8, 9]]);
    for (indices, said) in [(&[] as &[usize], "at least one index"), (&[3, 1], "indices must be in order")] {
        assert!(windows.split_at_indices(indices).unwrap_err().to_string().contains(said));
    }
}

#[tokio::test]
async fn what_is_done_with_datasets_is_done_with_windows() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Id {
        id: i64,
    }
    let windows = context().range_in_blocks(12, 6).unwrap().window(WindowSize::Blocks(3)).unwrap();
    let steps = windows
        .filter_rows(|row: &Id| row.id != 4)
        .unwrap()
        .with_column("twice", datafusion::prelude::col("id") * datafusion::prelude::lit(2))
        .unwrap()
        .drop_columns(&["id"])
        .unwrap()
        .rename_columns(&[("twice", "id")])
        .unwrap()
        .flat_map(|row: Id| [Id { id: row.id }, Id { id: row.id + 1 }])
        .unwrap()
        .sort_each_window([desc("id")])
        .unwrap();
    let expected = |from: i64, to: i64| -> Vec<i64> {
        let kept = (from..to).filter(|id| *id != 4).flat_map(|id| [2 * id, 2 * id + 1]);
        kept.rev().collect()
    };
    assert_eq!(windows_of(&steps).await, [expected(0, 6), expected(6, 12)]);
}

fn files(directory: &std::path::Path) -> Vec<String> {
    let entries: Vec<_> =
        std::fs::read_dir(directory).map(|entries| entries.map(|e| e.unwrap()).collect()).unwrap_or_default();
    let names = entries.into_iter().map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| !name.starts_with(['.', '_'])).collect();
    names.sort();
    names
}

#[tokio::test]
async fn each_window_is_published_when_it_is_complete() {
    let directory = tempfile::tempdir().unwrap();
    let (context, all) = (context(), directory.path().join("all"));
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    // The third window fails.
    let failing = |batch: RecordBatch| {
        let ids = batch.column(0).as_primitive::<datafusion::arrow::datatypes::Int64Type>();
        match ids.iter().flatten().any(|id| id == 9) {
            true => datafusion::common::exec_err!("nine is wrong"),
            false => Ok(batch),
        }
    };
    let source = context.range_in_blocks(16, 16).unwrap().window(WindowSize::Blocks(4)).unwrap();
    let windows = source.map_batches(blockyard::functions::from_closure(failing)).unwrap();
    let each = WriteOptions { commit_each_window: true, ..WriteOptions::default() };

    assert!(windows.write_parquet(all.to_str().unwrap()).await.unwrap_err().to_string().contains("nine is wrong"));
    assert!(files(&all).is_empty(), "nothing of a write that failed");
    let error = windows.write_with("parquet", &path("each"), each.clone()).await.unwrap_err().to_string();
    assert!(error.contains("nine is wrong"), "{error}");
    let read = context.read_parquet(path("each").as_str()).await.unwrap();
    assert_eq!(ids(&read).await, (0..8).collect::<Vec<_>>(), "two windows were complete");

    let overwrite = WriteOptions { mode: Some(SaveMode::Overwrite), ..each.clone() };
    assert_eq!(source.write_with("parquet", &path("each"), overwrite).await.unwrap(), 16);
    let read = context.read_parquet(path("each").as_str()).await.unwrap();
    assert_eq!(ids(&read).await, (0..16).collect::<Vec<_>>());
    let ignore = WriteOptions { mode: Some(SaveMode::Ignore), ..each.clone() };
    assert_eq!(source.write_with("parquet", &path("each"), ignore.clone()).await.unwrap(), 0);
    // A window without rows is no sign of files that were there.
    let later = source.filter("id >= 4").unwrap();
    assert_eq!(later.write_with("parquet", &path("later"), ignore).await.unwrap(), 12);

    // An endless pipeline is published as far as it gets.
    let endless = source.repeat(None).unwrap();
    let error = endless.write_with("parquet", &path("endless"), WriteOptions::default()).await.unwrap_err().to_string();
    assert!(error.contains("endless"), "{error}");
    let (to, seen) = (path("endless"), directory.path().join("endless"));
    let write = endless.write_with("parquet", &to, each.clone());
    tokio::select! {
        ended = write => panic!("{ended:?}"),
        () = async { while files(&seen).len() < 6 { tokio::task::yield_now().await } } => {}
    }
    let empty = source.filter("id < 0").unwrap();
    assert_eq!(empty.write_with("parquet", &path("empty"), each.clone()).await.unwrap(), 0);
    assert_eq!(files(&directory.path().join("empty")).len(), 1, "a file says the columns");
    let plain = context.range(3).unwrap().write_with("parquet", &path("plain"), each).await.unwrap_err().to_string();
    assert!(plain.contains("commit_each_window is for pipelines"), "{plain}");
}

/// The blocks of a dataset are what it is cut into.
#[tokio::test]
async fn blocks_are_iterated_as_they_are() {
    let context = context();
    for dataset in [
        context.range(70).unwrap().repartition(7).unwrap(),
        context.range_in_blocks(70, 7).unwrap(),
        context.range_in_blocks(70, 7).unwrap().materialize().await.unwrap(),
    ] {
        let blocks: Vec<_> = dataset.iter_blocks().await.unwrap().try_collect().await.unwrap();
        assert_eq!(blocks.iter().map(|block| block.num_rows()).collect::<Vec<_>>(), [10; 7]);
        let told = dataset.internal_blocks().await.unwrap();
        assert_eq!(told.iter().map(|block| block.num_rows).collect::<Vec<_>>(), [10; 7]);
    }
    let options = IterOptions { batch_size: None, ..IterOptions::default() };
    let batches = context.range_in_blocks(60_000, 3).unwrap().iter_batches(options).await.unwrap();
    let rows: Vec<usize> = batches.map_ok(|batch| batch.num_rows()).try_collect().await.unwrap();
    assert_eq!(rows, [20_000; 3], "a batch is a block, and not what a source gives at once");
}

/// Ray's own test vectors of fusion, as stages of ours.
#[tokio::test]
async fn stages_of_pipelines_fuse_as_rays_do() {
    let stages = |set: &'static [&'static str]| async move {
        let context = context();
        for option in set {
            context.sql(&format!("SET blockyard.{option}")).await.unwrap().take_all().await.unwrap();
        }
        let windows = context.range_in_blocks(3, 3).unwrap().window(WindowSize::Blocks(1)).unwrap().repeat(2).unwrap();
        let mapped = windows.map_batches("identity").unwrap().map_batches("identity").unwrap();
        let shuffled = mapped.random_shuffle_each_window(1).unwrap();
        assert_eq!(shuffled.count().await.unwrap(), 6);
        let stats = shuffled.stats();
        let window = stats.split("== Pipeline Window ").nth(1).unwrap();
        let names = window.lines().filter_map(|line| line.strip_prefix("Stage ")?.split(' ').nth(1).map(str::to_owned));
        // Rows of a queue are counted anew where they are shuffled; that is no stage of Ray's.
        let counting = ["Queue", "StreamingRepartitionMap"];
        let names = names.map(|name| name.trim_end_matches(':').to_owned());
        names.filter(|name| !counting.contains(&name.as_str())).collect::<Vec<_>>()
    };
    let map = "MapBatches(identity)->MapBatches(identity)";
    let all = stages(&[]).await;
    assert_eq!(all, [format!("ReadRange->{map}->RandomShuffleMap"), "RandomShuffleReduce".to_owned()]);
    let reads = stages(&["optimize_fuse_read_stages = false"]).await;
    assert_eq!(reads, ["ReadRange".to_owned(), format!("{map}->RandomShuffleMap"), "RandomShuffleReduce".to_owned()]);
    let shuffles = stages(&["optimize_fuse_read_stages = false", "optimize_fuse_shuffle_stages = false"]).await;
    assert_eq!(shuffles, ["ReadRange", map, "RandomShuffleMap", "RandomShuffleReduce"]);
    let none = stages(&["optimize_fuse_stages = false"]).await;
    let one = "MapBatches(identity)";
    assert_eq!(none, ["ReadRange", one, one, "RandomShuffleMap", "RandomShuffleReduce"]);
}
