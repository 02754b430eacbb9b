//! What the scheduler costs, and what it gets out of stages that are slow. All figures are ratios of one run, or times per
//! block; `cargo bench --bench scheduler` prints them.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use blockyard::prelude::*;
use blockyard::{BlockyardOptions, ByteSize, MemoryLimit, actor};
use datafusion::arrow::array::{AsArray, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::error::Result;
use datafusion::prelude::SessionConfig;
use futures::TryStreamExt;
use futures::future::try_join_all;
use tokio::runtime::Runtime;

/// Rounds, of which the median counts.
const ROUNDS: usize = 5;
const ROWS: u64 = 10_000_000;
const TINY_BLOCKS: usize = 100_000;
/// What a slow function takes for a block, and for how many.
const SLOW: Duration = Duration::from_millis(100);
const SLOW_BLOCKS: usize = 160;
const CONCURRENCY: usize = 8;

fn context(fuse: bool) -> Result<DataContext> {
    let options = BlockyardOptions { optimize_fuse_stages: fuse, ..Default::default() };
    DataContext::with_config(Blockyard { options, ..Default::default() }, SessionConfig::new())
}

async fn drain(ds: &Dataset) -> Result<Duration> {
    let started = Instant::now();
    ds.stream().await?.try_for_each(|_| async { Ok(()) }).await?;
    Ok(started.elapsed())
}

fn five_maps(ds: Dataset) -> Result<Dataset> {
    (0..5).try_fold(ds, |ds, _| ds.map_batches(Ok, MapOptions::default()))
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

/// Runs both, one after the other, several times; the median times.
async fn paired(one: &Dataset, other: &Dataset) -> Result<(f64, f64)> {
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ones.push(drain(one).await?);
        others.push(drain(other).await?);
    }
    Ok((median(ones), median(others)))
}

async fn overhead() -> Result<()> {
    let fused = five_maps(context(true)?.range(ROWS)?)?;
    let unfused = five_maps(context(false)?.range(ROWS)?)?;
    let (fused_time, unfused_time) = paired(&fused, &unfused).await?;
    let ratio = unfused_time / fused_time;
    println!("five maps over {ROWS} rows, not fused: {ratio:.2} times the fused chain ({fused_time:.3} s)");

    let map = |context: DataContext| {
        context.range_in_blocks(TINY_BLOCKS as u64, TINY_BLOCKS)?.map_batches(Ok, MapOptions::default())
    };
    let (fused_time, unfused_time) = paired(&map(context(true)?)?, &map(context(false)?)?).await?;
    let micros = (unfused_time - fused_time) / TINY_BLOCKS as f64 * 1e6;
    println!(
        "{TINY_BLOCKS} blocks of one row through a queue: {micros:.1} us for each, beside {:.1} us fused",
        fused_time / TINY_BLOCKS as f64 * 1e6
    );
    Ok(())
}

async fn slow_stages() -> Result<()> {
    let slow = |batch: RecordBatch| {
        if batch.num_rows() > 0 {
            std::thread::sleep(SLOW);
        }
        Ok(batch)
    };
    let input = || context(true)?.range_in_blocks(SLOW_BLOCKS as u64 * 100, SLOW_BLOCKS);
    let options = || MapOptions { concurrency: Some(CONCURRENCY.into()), ..Default::default() };
    let ideal = SLOW.as_secs_f64() * (SLOW_BLOCKS / CONCURRENCY) as f64;
    let time = drain(&input()?.map_batches(slow, options())?).await?.as_secs_f64();
    println!("a function of {SLOW:?} with concurrency {CONCURRENCY}: {:.0} % of the ideal", 100.0 * ideal / time);

    let made = input()?.map_batches(Ok, options())?;
    let started = Instant::now();
    let taken = made.stream().await?.try_for_each(|_| async {
        tokio::time::sleep(SLOW / 4).await;
        Ok(())
    });
    taken.await?;
    let (ideal, time) = (SLOW.as_secs_f64() / 4.0 * SLOW_BLOCKS as f64, started.elapsed().as_secs_f64());
    println!("a consumer of {:?} for a block: {:.0} % of the ideal", SLOW / 4, 100.0 * ideal / time);
    Ok(())
}

/// A pool that has to grow: how soon, and what that costs.
async fn growing_pool() -> Result<()> {
    const BLOCKS: usize = 400;
    let (built, all) = (Arc::new(AtomicUsize::new(0)), Arc::new(OnceLock::new()));
    let started = Instant::now();
    let (counted, seen) = (Arc::clone(&built), Arc::clone(&all));
    let slow = actor("slow", move || {
        if counted.fetch_add(1, Relaxed) + 1 == CONCURRENCY {
            let _first = seen.set(started.elapsed());
        }
        Ok(|batch: RecordBatch| {
            std::thread::sleep(SLOW);
            Ok(batch)
        })
    });
    let input = context(true)?.range_in_blocks(BLOCKS as u64 * 100, BLOCKS)?;
    let options =
        MapOptions { concurrency: Some((1, CONCURRENCY).into()), schema: Some(input.schema()), ..Default::default() };
    let time = drain(&input.map_batches(slow, options)?).await?.as_secs_f64();
    let ideal = SLOW.as_secs_f64() * BLOCKS as f64 / CONCURRENCY as f64;
    println!(
        "a pool of 1 to {CONCURRENCY} actors of {SLOW:?}: {:.0} % of the ideal, {CONCURRENCY} of them after {:.2} s",
        100.0 * ideal / time,
        all.get().map_or(f64::NAN, Duration::as_secs_f64)
    );
    Ok(())
}

/// A function that makes 10,000 rows of each, before one that is slow: what waits between them.
async fn bursts() -> Result<()> {
    const LIMIT: usize = 64 << 20;
    let options = BlockyardOptions {
        memory_limit: MemoryLimit::Bytes(ByteSize(LIMIT)),
        target_max_block_size: ByteSize::mib(1),
        ..Default::default()
    };
    let context = DataContext::with_config(Blockyard { options, ..Default::default() }, SessionConfig::new())?;
    let burst = |batch: RecordBatch| {
        let ids = batch["id"].as_primitive::<Int64Type>().values().iter();
        let ids = Int64Array::from_iter_values(ids.flat_map(|id| std::iter::repeat_n(*id, 10_000)));
        Ok(RecordBatch::try_from_iter([("id", Arc::new(ids) as _)])?)
    };
    let slow = |batch: RecordBatch| {
        std::thread::sleep(Duration::from_millis(batch.num_rows() as u64 / 10_000));
        Ok(batch)
    };
    let with = |n: usize| MapOptions { concurrency: Some(n.into()), ..Default::default() };
    let ds = context.range_in_blocks(2000, 20)?.map_batches(burst, with(2))?;
    // Whole bursts, or a batch would be a hundredth of one.
    let ds = ds.map_batches(slow, MapOptions { batch_size: BatchSize::Rows(10_000), ..with(4) })?;
    let time = drain(&ds).await?.as_secs_f64();
    let ideal = 2000.0 * 0.001 / 4.0;
    let peak = context.store().budget().peak();
    println!(
        "1 row to 10,000 before a slow function: {:.0} % of the ideal, {:.0} % of a limit of 64 MiB at the most",
        100.0 * ideal / time,
        100.0 * peak as f64 / LIMIT as f64
    );
    Ok(())
}

/// Eight queries that mostly wait, at once: none later than the others.
async fn eight_queries() -> Result<()> {
    let context = context(true)?;
    let slow = |batch: RecordBatch| {
        if batch.num_rows() > 0 {
            std::thread::sleep(SLOW);
        }
        Ok(batch)
    };
    let options = MapOptions { concurrency: Some(4.into()), num_cpus: Some(0.05), ..Default::default() };
    let queries = (0..8).map(|_| context.range_in_blocks(4000, 40)?.map_batches(slow, options.clone()));
    let queries = queries.collect::<Result<Vec<_>>>()?;
    let mut times = try_join_all(queries.iter().map(drain)).await?;
    times.sort();
    let (first, last) = (times[0].as_secs_f64(), times[7].as_secs_f64());
    let ideal = SLOW.as_secs_f64() * 40.0 / 4.0;
    println!(
        "eight queries at once, 4 tasks of {SLOW:?} each: {:.0} % of the ideal, the last {:.2} times the first",
        100.0 * ideal / last,
        last / first
    );
    Ok(())
}

fn main() -> ExitCode {
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("measures under `cargo bench` only");
        return ExitCode::SUCCESS;
    }
    let measured = Runtime::new().map_err(Into::into).and_then(|runtime| {
        runtime.block_on(async {
            overhead().await?;
            slow_stages().await?;
            growing_pool().await?;
            bursts().await?;
            eight_queries().await
        })
    });
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
