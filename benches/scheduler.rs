//! What the scheduler costs, and what it gets out of stages that are slow. All figures are ratios of one run, or times per
//! block; `cargo bench --bench scheduler` prints them.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use blockyard::BlockyardOptions;
use blockyard::prelude::*;
use datafusion::arrow::array::RecordBatch;
use datafusion::error::Result;
use datafusion::prelude::SessionConfig;
use futures::TryStreamExt;
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

fn main() -> ExitCode {
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("measures under `cargo bench` only");
        return ExitCode::SUCCESS;
    }
    let measured = Runtime::new().map_err(Into::into).and_then(|runtime| {
        runtime.block_on(async {
            overhead().await?;
            slow_stages().await
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
