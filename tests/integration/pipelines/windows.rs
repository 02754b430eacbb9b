//! Dataset pipelines: windows, epochs, and what is in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use blockyard::prelude::*;
use blockyard::{DatasetPipeline, WindowSize};
use datafusion::arrow::array::RecordBatch;
use datafusion::common::Result;
use futures::{StreamExt, TryStreamExt};

use crate::fixtures::{context, context_with, ints, mib};

pub(super) async fn ids(dataset: &Dataset) -> Vec<i64> {
    ints(&dataset.take_all().await.unwrap(), "id")
}

pub(super) async fn ids_of(pipeline: &DatasetPipeline) -> Vec<i64> {
    ids(&pipeline.clone().into_dataset()).await
}

/// The rows of each window.
pub(super) async fn windows_of(pipeline: &DatasetPipeline) -> Vec<Vec<i64>> {
    let windows: Vec<Dataset> = pipeline.iter_windows().await.unwrap().try_collect().await.unwrap();
    let mut rows = Vec::new();
    for window in &windows {
        rows.push(ids(window).await);
    }
    rows
}

/// So many rows, one in each block.
fn rows_in_blocks(rows: u64) -> Dataset {
    context().range_in_blocks(rows, rows as usize).unwrap()
}

#[tokio::test]
async fn each_window_is_sorted_for_itself() {
    let windows = rows_in_blocks(12).window(WindowSize::Blocks(3)).unwrap().sort_each_window([desc("id")]).unwrap();
    assert_eq!(ids_of(&windows).await, [2, 1, 0, 5, 4, 3, 8, 7, 6, 11, 10, 9]);
    // It can be read again.
    assert_eq!(ids_of(&windows).await, [2, 1, 0, 5, 4, 3, 8, 7, 6, 11, 10, 9]);
}

#[tokio::test]
async fn windows_are_blocks_bytes_or_rows_of_the_source() {
    let dataset = rows_in_blocks(10);
    let sizes = |windows: Vec<Vec<i64>>| windows.iter().map(Vec::len).collect::<Vec<_>>();
    let cut = |size| windows_of_size(dataset.clone(), size);
    assert_eq!(sizes(cut(WindowSize::Blocks(4)).await), [4, 4, 2]);
    assert_eq!(sizes(cut(WindowSize::Blocks(100)).await), [10]);
    // A row has 8 bytes.
    assert_eq!(sizes(cut(WindowSize::Bytes(24)).await), [3, 3, 3, 1]);
    assert_eq!(sizes(cut(WindowSize::Bytes(1)).await), [1; 10]);
    assert_eq!(sizes(cut(WindowSize::Rows(7)).await), [7, 3]);
    // Blocks are tasks of the read also behind filters; rows are counted behind them.
    let few = dataset.filter("id % 3 = 0").unwrap();
    assert_eq!(windows_of_size(few.clone(), WindowSize::Blocks(4)).await, [vec![0, 3], vec![6], vec![9]]);
    assert_eq!(windows_of_size(few, WindowSize::Rows(3)).await, [vec![0, 3, 6], vec![9]]);
    // Sources that are no read.
    let sorted = dataset.sort([desc("id")]).unwrap();
    assert_eq!(windows_of_size(sorted, WindowSize::Rows(6)).await, [vec![9, 8, 7, 6, 5, 4], vec![3, 2, 1, 0]]);
    let both = dataset.union(&dataset).unwrap();
    assert_eq!(sizes(windows_of_size(both, WindowSize::Blocks(8)).await), [8, 8, 4]);
}

async fn windows_of_size(dataset: Dataset, size: WindowSize) -> Vec<Vec<i64>> {
    windows_of(&dataset.window(size).unwrap()).await
}

#[tokio::test]
async fn a_pipeline_is_repeated() {
    let dataset = rows_in_blocks(4);
    assert_eq!(ids_of(&dataset.repeat(3).unwrap()).await, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]);
    let windows = dataset.window(WindowSize::Blocks(2)).unwrap().sort_each_window([desc("id")]).unwrap();
    assert_eq!(ids_of(&windows.repeat(2).unwrap()).await, [1, 0, 3, 2, 1, 0, 3, 2]);
    assert_eq!(windows.repeat(2).unwrap().repeat(3).unwrap().count().await.unwrap(), 24);
    let endless = windows.repeat(None).unwrap();
    let first = endless.clone().into_dataset().limit(10).unwrap();
    assert_eq!(ids(&first).await, [1, 0, 3, 2, 1, 0, 3, 2, 1, 0]);
    assert_eq!(format!("{endless:?}"), "DatasetPipeline(num_windows=inf, num_stages=2)");
}

#[tokio::test]
async fn windows_are_merged_and_sliced() {
    let sizes = |windows: Vec<Vec<i64>>| windows.iter().map(Vec::len).collect::<Vec<_>>();
    let one = rows_in_blocks(10).window(WindowSize::Blocks(1)).unwrap();
    let merged = one.rewindow(WindowSize::Blocks(3), true).unwrap();
    assert_eq!(sizes(windows_of(&merged).await), [3, 3, 3, 1]);
    let sliced =
        rows_in_blocks(10).window(WindowSize::Blocks(6)).unwrap().rewindow(WindowSize::Blocks(4), true).unwrap();
    assert_eq!(sizes(windows_of(&sliced).await), [4, 4, 2]);
    // No window has rows of two epochs, unless that is wanted.
    let twice = one.repeat(2).unwrap();
    let apart = twice.rewindow(WindowSize::Blocks(7), true).unwrap();
    assert_eq!(sizes(windows_of(&apart).await), [7, 3, 7, 3]);
    let mixed = twice.rewindow(WindowSize::Rows(7), false).unwrap();
    assert_eq!(sizes(windows_of(&mixed).await), [7, 7, 6]);
    let descending = mixed.sort_each_window([desc("id")]).unwrap();
    assert_eq!(ids_of(&descending).await, [6, 5, 4, 3, 2, 1, 0, 9, 8, 7, 3, 2, 1, 0, 9, 8, 7, 6, 5, 4]);
}

#[tokio::test]
async fn every_window_and_epoch_has_an_order_of_its_own() {
    let context = context();
    let dataset = context.range_in_blocks(400, 8).unwrap();
    let shuffled = dataset.window(WindowSize::Blocks(4)).unwrap().repeat(2).unwrap();
    let shuffled = shuffled.random_shuffle_each_window(7).unwrap();
    let windows = windows_of(&shuffled).await;
    assert_eq!(windows.len(), 4);
    let places = |window: &[i64]| window.iter().map(|id| id % 200).collect::<Vec<_>>();
    for (number, window) in windows.iter().enumerate() {
        let mut sorted = window.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..200).map(|id| id + 200 * (number as i64 % 2)).collect::<Vec<_>>());
        for other in &windows[..number] {
            assert_ne!(places(window), places(other));
        }
    }
    assert_eq!(windows_of(&shuffled).await, windows, "the same again");
    let fixed = dataset.window(WindowSize::Blocks(4)).unwrap().repeat(2).unwrap();
    let fixed = fixed.foreach_window(|window| window.random_shuffle(RandomSeed::fixed(7))).unwrap();
    let windows = windows_of(&fixed).await;
    assert_eq!(windows[0], windows[2]);
}

#[tokio::test]
async fn a_window_is_read_several_times_by_its_plan() {
    let dataset = rows_in_blocks(9);
    let pairs = dataset.window(WindowSize::Blocks(3)).unwrap().foreach_window(|window| {
        let other = window.rename_columns(&[("id", "other")])?;
        window.join(&other, JoinType::Inner, &["id"], &["other"])?.sort(["id"])
    });
    assert_eq!(ids_of(&pairs.unwrap()).await, (0..9).collect::<Vec<_>>());
}

#[tokio::test]
async fn files_are_read_anew_in_each_epoch() {
    let directory = tempfile::tempdir().unwrap();
    let (context, path) = (context(), directory.path().join("t"));
    context.range_in_blocks(6, 3).unwrap().write_parquet(path.to_str().unwrap()).await.unwrap();
    let read = context.read_parquet(path.to_str().unwrap()).await.unwrap();
    let mut epochs = read
        .window(WindowSize::Blocks(1))
        .unwrap()
        .repeat(None)
        .unwrap()
        .iter_epochs(3, IterOptions::default())
        .await
        .unwrap();
    let mut sums = Vec::new();
    while let Some(epoch) = epochs.next_epoch().await.unwrap() {
        let batches: Vec<RecordBatch> = epoch.try_collect().await.unwrap();
        sums.push(ints(&batches, "id").iter().sum::<i64>());
    }
    assert_eq!(sums, [15, 15, 15]);
}

#[tokio::test]
async fn epochs_end_with_their_short_batch_and_are_left_before_their_end() {
    let windows = context().range_in_blocks(100, 5).unwrap().window(WindowSize::Blocks(2)).unwrap().repeat(4).unwrap();
    let options = IterOptions { batch_size: Some(30), ..IterOptions::default() };
    let mut epochs = windows.iter_epochs(None, options.clone()).await.unwrap();
    let mut seen = Vec::new();
    while let Some(mut epoch) = epochs.next_epoch().await.unwrap() {
        let number = epoch.number();
        let mut sizes = Vec::new();
        while let Some(batch) = epoch.try_next().await.unwrap() {
            sizes.push(batch.num_rows());
            if number == 1 && sizes.len() == 2 {
                break;
            }
        }
        seen.push((number, sizes));
    }
    let whole = vec![30, 30, 30, 10];
    assert_eq!(seen, [(0, whole.clone()), (1, vec![30, 30]), (2, whole.clone()), (3, whole)]);
    assert_eq!(epochs.stats().skipped, 40);
    assert!(epochs.stats().to_string().contains("left before their end: 40"), "{}", epochs.stats());
    // Across epochs.
    let batches: Vec<RecordBatch> = windows.iter_batches(options).await.unwrap().try_collect().await.unwrap();
    let sizes: Vec<_> = batches.iter().map(RecordBatch::num_rows).collect();
    assert_eq!(sizes, [vec![30; 13], vec![10]].concat());
}

#[tokio::test]
async fn pipelines_go_on_at_tokens() {
    let dataset = context().range_in_blocks(1000, 10).unwrap();
    let plain = || dataset.window(WindowSize::Blocks(3)).unwrap();
    let pipelines = [
        plain().repeat(3).unwrap(),
        plain().repeat(3).unwrap().random_shuffle_each_window(3).unwrap(),
        dataset.repeat(3).unwrap(),
        dataset.random_shuffle(RandomSeed::each_execution(1)).unwrap().repeat(3).unwrap(),
        dataset.filter("id % 7 <> 0").unwrap().window(WindowSize::Rows(130)).unwrap().repeat(None).unwrap(),
        dataset.sort([desc("id")]).unwrap().window(WindowSize::Rows(300)).unwrap().repeat(2).unwrap(),
        plain()
            .repeat(2)
            .unwrap()
            .rewindow(WindowSize::Rows(270), true)
            .unwrap()
            .random_shuffle_each_window(3)
            .unwrap(),
        plain().foreach_window(|w| w.local_shuffle(40, RandomSeed::each_execution(2))).unwrap().repeat(2).unwrap(),
    ];
    let options = IterOptions { batch_size: Some(70), ..IterOptions::default() };
    for pipeline in &pipelines {
        let mut batches = pipeline.iter_batches(options.clone()).await.unwrap();
        let (mut all, mut tokens) = (Vec::new(), vec![batches.token().unwrap().to_string()]);
        while let Some(batch) = batches.next().await {
            all.extend(ints(&[batch.unwrap()], "id"));
            tokens.push(batches.token().unwrap().to_string());
            if all.len() > 2500 {
                break;
            }
        }
        for (number, token) in tokens.iter().enumerate().step_by(3) {
            assert!(token.len() <= 512, "{token}");
            let resume = Some(token.parse().unwrap());
            let mut rest = pipeline.iter_batches(IterOptions { resume, ..options.clone() }).await.unwrap();
            let mut rows = Vec::new();
            while rows.len() < all.len() - (number * 70).min(all.len())
                && let Some(batch) = rest.next().await
            {
                rows.extend(ints(&[batch.unwrap()], "id"));
            }
            assert_eq!(rows, all[(number * 70).min(all.len())..], "from batch {number} of {pipeline:?}, {token}");
        }
    }
}

/// What runs of a pipeline whose function says when it is called, and goes on when it is told to.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_next_window_is_read_while_one_is_transformed_and_no_third() {
    let (read, transformed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let gates: Arc<Vec<_>> = Arc::new((0..8).map(|_| tokio::sync::Semaphore::new(0)).collect());
    let context = context_with(4, |_| {});
    let seen = Arc::clone(&read);
    let source = context.range_in_blocks(8, 8).unwrap();
    let source = source.map_batches(move |batch: RecordBatch| {
        seen.fetch_add(batch.num_rows(), SeqCst);
        Ok(batch)
    });
    let (done, open) = (Arc::clone(&transformed), Arc::clone(&gates));
    let transform = move |batch: RecordBatch| -> Result<RecordBatch> {
        for id in ints(std::slice::from_ref(&batch), "id") {
            // What waits for this thread goes on at another one.
            tokio::task::block_in_place(|| futures::executor::block_on(open[id as usize].acquire())).unwrap().forget();
            done.fetch_add(1, SeqCst);
        }
        Ok(batch)
    };
    // A stage of its own: the source goes on while it is held.
    let windows = source.unwrap().window(WindowSize::Blocks(1)).unwrap();
    let windows =
        windows.map_batches_with(transform, MapOptions { num_cpus: Some(0.5), ..MapOptions::default() }).unwrap();
    let (taken, mut given) = tokio::sync::mpsc::unbounded_channel();
    let consumed = windows.clone();
    let consumer = async move {
        let options = IterOptions { batch_size: Some(1), ..IterOptions::default() };
        let mut batches = consumed.iter_batches(options).await.unwrap();
        while let Some(batch) = batches.try_next().await.unwrap() {
            taken.send(ints(&[batch], "id")).unwrap();
        }
    };
    let gatekeeper = async {
        for window in 0..8 {
            // The window after the one that is held is read before that is transformed.
            while read.load(SeqCst) < (window + 2).min(8) {
                tokio::task::yield_now().await;
            }
            assert_eq!(transformed.load(SeqCst), window);
            assert!(read.load(SeqCst) <= window + 2, "{} windows are read", read.load(SeqCst));
            gates[window].add_permits(1);
            assert_eq!(given.recv().await, Some(vec![window as i64]));
        }
    };
    tokio::join!(consumer, gatekeeper);
    let stats = windows.stats();
    assert!(stats.contains("at most 2 in flight"), "{stats}");
}

#[tokio::test]
async fn what_an_endless_pipeline_cannot_do_is_an_error() {
    let endless = rows_in_blocks(4).repeat(None).unwrap();
    let dataset = endless.clone().into_dataset();
    let error = |result: Result<()>| result.unwrap_err().to_string();
    for (what, error) in [
        ("count", error(endless.count().await.map(drop))),
        ("take_all", error(dataset.take_all().await.map(drop))),
        ("materialize", error(dataset.materialize().await.map(drop))),
        ("sort", error(dataset.sort(["id"]).unwrap().take(1).await.map(drop::<Vec<i64>>))),
        ("repeat", error(endless.repeat(2).map(drop))),
        ("write", error(dataset.write_parquet("/tmp/never").await.map(drop))),
    ] {
        assert!(error.contains("endless pipeline"), "{what}: {error}");
    }
    let empty = rows_in_blocks(4).filter("id < 0").unwrap().repeat(None).unwrap();
    let mut batches = empty.iter_batches(IterOptions::default()).await.unwrap();
    let error = batches.try_next().await.unwrap_err().to_string();
    assert!(error.contains("gave no rows"), "{error}");
    for (size, message) in
        [(WindowSize::Blocks(0), "1 block"), (WindowSize::Bytes(0), "1 byte"), (WindowSize::Rows(0), "1 row")]
    {
        let error = rows_in_blocks(4).window(size).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    assert!(rows_in_blocks(4).repeat(0).unwrap_err().to_string().contains("times must be at least 1"));
}

#[tokio::test]
async fn windows_keep_to_the_memory_limit_and_errors_come_through() {
    let context = context_with(2, |options| options.memory_limit = mib(32));
    let rows = context.sql("SELECT id, repeat('x', 400) AS x FROM range(200000)").await.unwrap();
    let windows = rows.window(WindowSize::Rows(60_000)).unwrap().random_shuffle_each_window(1).unwrap();
    assert_eq!(windows.repeat(2).unwrap().count().await.unwrap(), 400_000);
    let failing = windows.map_batches(|batch: RecordBatch| {
        if ints(std::slice::from_ref(&batch), "id").contains(&130_000) {
            return datafusion::common::exec_err!("a bad row");
        }
        Ok(batch)
    });
    let error = failing.unwrap().count().await.unwrap_err().to_string();
    assert!(error.contains("a bad row"), "{error}");
}

#[tokio::test]
async fn a_pipeline_tells_its_stages_its_windows_and_its_sql() {
    let context = context();
    let windows = context.range_in_blocks(12, 6).unwrap().window(WindowSize::Blocks(2)).unwrap().repeat(2).unwrap();
    let mapped = windows.map_batches("identity").unwrap().map_batches("identity").unwrap();
    let shuffled = mapped.random_shuffle_each_window(5).unwrap();
    let all = ids_of(&shuffled).await;
    let stats = shuffled.stats();
    let fused = "ReadRange->MapBatches(identity)->MapBatches(identity)->RandomShuffleMap";
    assert!(stats.contains(fused) && stats.contains("RandomShuffleReduce"), "{stats}");
    assert!(stats.contains("== Pipeline Window 2 of epoch 1 =="), "{stats}");
    assert!(!stats.contains("of epoch 0"), "only the last three windows are told: {stats}");
    assert!(stats.contains("* Time stalled waiting for next dataset: "), "{stats}");

    let explained = mapped.explain().await.unwrap();
    for line in ["3 windows in each pass", "Blocks per window: 2 min, 2 max, 2 mean", "Bytes per window: 32B min"] {
        assert!(explained.contains(line), "{line}: {explained}");
    }
    let small = context.range_in_blocks(12, 12).unwrap().window(WindowSize::Blocks(1)).unwrap();
    let explained = small.explain().await.unwrap();
    assert!(explained.contains("Warning: windows of 1 blocks keep 1 of 2 threads busy"), "{explained}");

    for pipeline in [&mapped, &shuffled] {
        let sql = pipeline.to_sql().unwrap();
        let again = context.sql(&sql).await.unwrap();
        assert_eq!(ids(&again).await, ids_of(pipeline).await, "{sql}");
    }
    let error = shuffled.map_batches("identity").unwrap().to_sql().unwrap_err().to_string();
    assert!(error.contains("another one in each window"), "{error}");
    let mut sorted = all;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..12).flat_map(|id| [id, id]).collect::<Vec<_>>());

    let shown = mapped.show_windows(1).await.unwrap();
    assert_eq!(shown.matches("=== Window").count(), 6, "{shown}");
}

/// What a sort gives is in as many blocks as memory asks for, and blocks of so many bytes are cut in the batches that
/// come: windows are not.
#[tokio::test]
async fn windows_are_the_same_whatever_memory_and_threads_there_are() {
    let rows = "(SELECT md5(id::varchar) AS s FROM range(100000) WHERE id % 7 > 0)";
    let sorted = format!("(SELECT * FROM {rows} ORDER BY s)");
    let by_bytes = |bytes: u32| format!("repartition({rows}, target_bytes_per_block => {bytes})");
    for (source, size, least) in [
        (sorted.clone(), "blocks_per_window => 2", 4),
        (sorted, "bytes_per_window => 400000", 4),
        (by_bytes(500_000), "blocks_per_window => 2", 4),
        // Blocks of fewer rows than are counted together.
        (by_bytes(4096), "blocks_per_window => 10", 70),
    ] {
        let sql = format!(
            "SELECT _window, count(*) AS rows, min(s) AS first FROM windows({source}, {size}, include_epoch => true)
             GROUP BY _window ORDER BY _window"
        );
        let mut all = Vec::new();
        for (threads, memory) in [(1, 512), (4, 512), (2, 32)] {
            let context = context_with(threads, |options| {
                options.memory_limit = mib(memory);
                options.target_max_block_size = blockyard::ByteSize(500_000);
            });
            all.push(crate::fixtures::rows(&context, &sql).await);
        }
        assert!(all[0].len() >= least, "{source}: {:?}", all[0]);
        assert!(all.iter().all(|rows| *rows == all[0]), "{source}: {all:#?}");
    }
}
