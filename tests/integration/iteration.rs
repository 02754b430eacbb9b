use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use blockyard::prelude::*;
use datafusion::arrow::array::RecordBatch;
use futures::{StreamExt, TryStreamExt};

use crate::fixtures::{context, context_with, ints, mib};

async fn ids(dataset: &Dataset, options: IterOptions) -> Vec<i64> {
    let batches: Vec<RecordBatch> = dataset.iter_batches(options).await.unwrap().try_collect().await.unwrap();
    ints(&batches, "id")
}

#[tokio::test]
async fn a_local_shuffle_moves_rows_back_by_so_many_places() {
    let ds = context().range_in_blocks(50_000, 9).unwrap();
    let shuffled = ints(&ds.local_shuffle(1000, 7).unwrap().take_all().await.unwrap(), "id");
    let mut sorted = shuffled.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..50_000).collect::<Vec<i64>>(), "each row once");
    // A row is behind at most 8,000 later rows, and ahead of none that came 8,000 rows before.
    let moved: Vec<i64> = shuffled.iter().enumerate().map(|(place, id)| place as i64 - id).collect();
    assert!(moved.iter().all(|places| (-8000..=8000).contains(places)));
    // In the mean rows are held for 1,000 places, so that as many of those before have come after it.
    let spread = (moved.iter().map(|places| (places * places) as f64).sum::<f64>() / moved.len() as f64).sqrt();
    assert!((900.0..1100.0).contains(&spread), "{spread}");
    for (threads, memory) in [(1, 64), (4, 512)] {
        let context = context_with(threads, |options| options.memory_limit = mib(memory));
        let ds = context.range_in_blocks(50_000, 9).unwrap().local_shuffle(1000, 7).unwrap();
        assert_eq!(ints(&ds.take_all().await.unwrap(), "id"), shuffled, "with {threads} threads");
    }
    let other = ints(&ds.local_shuffle(1000, 8).unwrap().take_all().await.unwrap(), "id");
    assert_ne!(other, shuffled);
}

#[tokio::test]
async fn a_local_shuffle_that_does_not_fit_goes_to_disk() {
    let context = context_with(2, |options| options.memory_limit = mib(32));
    let sql = "SELECT id, repeat(md5(CAST(id AS VARCHAR)), 30) AS text FROM range(80000)";
    let ds = context.sql(sql).await.unwrap().local_shuffle(40_000, 7).unwrap();
    let mut batches = ds.iter_batches(IterOptions { batch_size: Some(500), ..IterOptions::default() }).await.unwrap();
    let mut seen = vec![false; 80_000];
    while let Some(batch) = batches.try_next().await.unwrap() {
        for id in ints(&[batch], "id") {
            assert!(!std::mem::replace(&mut seen[id as usize], true));
        }
    }
    assert!(seen.into_iter().all(|seen| seen));
    let stats = ds.stats();
    assert!(!stats.contains("spilled 0B"), "{stats}");
}

#[tokio::test]
async fn each_epoch_has_an_order_of_its_own_that_is_the_same_again() {
    let ds = context().range_in_blocks(5000, 3).unwrap();
    let options = |epoch| IterOptions {
        local_shuffle_buffer_size: Some(300),
        local_shuffle_seed: Some(11),
        epoch,
        ..IterOptions::default()
    };
    let zero = ids(&ds, options(Some(0))).await;
    assert_eq!(ids(&ds, options(None)).await, zero, "executions are counted from 0");
    let one = ids(&ds, options(None)).await;
    assert_ne!(one, zero);
    assert_eq!(ids(&ds, options(Some(1))).await, one);
    let shuffled = ds.random_shuffle(RandomSeed::each_execution(5)).unwrap();
    let plain = |epoch| IterOptions { epoch: Some(epoch), ..IterOptions::default() };
    let two = ids(&shuffled, plain(2)).await;
    assert_ne!(ids(&shuffled, plain(0)).await, two);
    let same = ds.random_shuffle(RandomSeed::each_execution(5).epoch(2)).unwrap();
    assert_eq!(ints(&same.take_all().await.unwrap(), "id"), two);
}

#[tokio::test]
async fn batches_are_mapped_ahead_in_order() {
    let ds = context().range_in_blocks(10_000, 4).unwrap();
    let batches = ds.iter_batches(IterOptions { batch_size: Some(100), ..IterOptions::default() }).await.unwrap();
    let sums = batches.map_ahead(|batch| Ok(ints(&[batch], "id").into_iter().sum::<i64>()));
    let sums: Vec<i64> = sums.try_collect().await.unwrap();
    let expected: Vec<i64> = (0..100).map(|k| (k * 100..(k + 1) * 100).sum()).collect();
    assert_eq!(sums, expected);

    let batches = ds.iter_batches(IterOptions { batch_size: Some(100), ..IterOptions::default() }).await.unwrap();
    let mut failing = batches.map_ahead(|batch| match ints(&[batch], "id")[0] {
        500 => datafusion::common::exec_err!("the sixth"),
        first => Ok(first),
    });
    for k in 0..5 {
        assert_eq!(failing.next().await.unwrap().unwrap(), k * 100);
    }
    let error = failing.next().await.unwrap().unwrap_err().to_string();
    assert!(error.contains("the sixth"), "{error}");
    assert_eq!(failing.token().unwrap().rows(), 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_are_an_iterator_on_any_thread() {
    let ds = context().range(1000).unwrap();
    let batches = ds.iter_batches(IterOptions::default()).await.unwrap().blocking();
    let (send, receive) = tokio::sync::oneshot::channel();
    let reader = std::thread::Builder::new().spawn(move || {
        let mut batches = batches;
        let rows: usize = batches.by_ref().map(|batch| batch.unwrap().num_rows()).sum();
        send.send((rows, batches.stats())).unwrap();
    });
    reader.unwrap();
    let (rows, stats) = receive.await.unwrap();
    assert_eq!((rows, stats.rows, stats.batches), (1000, 1000, 4));
    let rows: usize =
        ds.iter_batches(IterOptions::default()).await.unwrap().blocking().map(|batch| batch.unwrap().num_rows()).sum();
    assert_eq!(rows, 1000, "inside of a runtime as well");
}

#[tokio::test]
async fn no_more_is_made_ahead_than_was_asked_for() {
    let (calls, counted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&calls);
    let ds = context_with(1, |_| {}).range_in_blocks(100, 100).unwrap();
    let ds = ds
        .map_batches(move |batch: RecordBatch| {
            seen.fetch_add(batch.num_rows(), SeqCst);
            Ok(batch)
        })
        .unwrap();
    let options = IterOptions { batch_size: Some(1), prefetch_batches: 3, ..IterOptions::default() };
    let mut batches = ds.iter_batches(options).await.unwrap();
    batches.next().await.unwrap().unwrap();
    // What runs ahead comes to rest.
    while counted.swap(calls.load(SeqCst), SeqCst) != calls.load(SeqCst) || calls.load(SeqCst) < 4 {
        tokio::task::yield_now().await;
    }
    assert!(calls.load(SeqCst) <= 6, "{calls:?}");
    let stats = batches.stats().to_string();
    assert!(stats.contains("Dataset iterator time breakdown:") && stats.contains("* Batches: 1, rows: 1"), "{stats}");
}

#[tokio::test]
async fn options_that_do_not_go_together_are_refused() {
    let ds = context().range(10).unwrap();
    let default = IterOptions::default;
    for (options, said) in [
        (IterOptions { batch_size: Some(0), ..default() }, "batch_size must be at least 1, got 0"),
        (IterOptions { batch_size: None, drop_last: true, ..default() }, "drop_last needs a batch_size"),
        (
            IterOptions { batch_size: None, local_shuffle_buffer_size: Some(5), ..default() },
            "local_shuffle_buffer_size needs a batch_size",
        ),
        (
            IterOptions { local_shuffle_buffer_size: Some(0), ..default() },
            "local_shuffle_buffer_size must be at least 1, got 0",
        ),
        (
            IterOptions { local_shuffle_seed: Some(1), ..default() },
            "local_shuffle_seed needs a local_shuffle_buffer_size",
        ),
    ] {
        let error = ds.iter_batches(options).await.unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let error = ds.local_shuffle(0, 1).unwrap_err().to_string();
    assert!(error.contains("rows of local_shuffle must be at least 1, got 0"), "{error}");
}
