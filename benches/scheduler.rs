//! What the scheduler costs, and what it gets out of stages that are slow. All figures are ratios of one run, or times
//! per block; `cargo bench --bench scheduler` prints them, `-- bursts pools` only those of these names.

mod common;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use blockyard::prelude::*;
use blockyard::{BlockyardOptions, ByteSize, MemoryLimit, actor};
use datafusion::arrow::array::{AsArray, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::error::Result;
use datafusion::prelude::{SessionConfig, col, lit};
use futures::TryStreamExt;
use futures::future::try_join_all;
use parking_lot::Mutex;
use tokio::runtime::Runtime;

use common::size;

/// Rounds, of which the median counts.
fn rounds() -> usize {
    size(15, 1)
}

fn rows() -> u64 {
    size(10_000_000, 10_000)
}

fn tiny_blocks() -> usize {
    size(100_000, 200)
}

/// What a slow function takes for a block.
fn slow_call() -> Duration {
    Duration::from_millis(size(100, 1))
}

/// Blocks that each of its concurrent calls gets.
const ROUNDS_OF_BLOCKS: usize = 20;
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
    (0..5).try_fold(ds, |ds, _| ds.map_batches(Ok))
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

/// Runs both, one after the other, several times; the median times.
async fn paired(one: &Dataset, other: &Dataset) -> Result<(f64, f64)> {
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    for _ in 0..rounds() {
        ones.push(drain(one).await?);
        others.push(drain(other).await?);
    }
    Ok((median(ones), median(others)))
}

async fn unfused() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let files = directory.path().display().to_string();
    let columns = vec![("half", col("id") / lit(2.0)), ("key", col("id") * lit(7919) % lit(1_000_000))];
    context(true)?.range(rows())?.with_columns(columns)?.write_parquet(&files).await?;
    let read = async |fuse| five_maps(context(fuse)?.read_parquet(files.as_str()).await?);
    let made = |fuse| five_maps(context(fuse)?.range(rows())?);
    let chains = [
        ("rows of three columns from Parquet", read(true).await?, read(false).await?),
        ("rows that are counted up in memory", made(true)?, made(false)?),
    ];
    for (what, fused, unfused) in chains {
        let (fused, unfused) = paired(&fused, &unfused).await?;
        let ratio = unfused / fused;
        println!("five maps over {} {what}, not fused: {ratio:.2} times the fused chain ({fused:.3} s)", rows());
    }
    Ok(())
}

async fn blocks_of_one_row() -> Result<()> {
    let blocks = tiny_blocks();
    let map = |context: DataContext| context.range_in_blocks(blocks as u64, blocks)?.map_batches(Ok);
    let (fused_time, unfused_time) = paired(&map(context(true)?)?, &map(context(false)?)?).await?;
    let micros = (unfused_time - fused_time) / blocks as f64 * 1e6;
    println!(
        "{blocks} blocks of one row through a queue: {micros:.1} us for each, beside {:.1} us fused",
        fused_time / blocks as f64 * 1e6
    );
    Ok(())
}

/// A function that takes `time` for each batch.
fn slow(time: Duration) -> impl Fn(RecordBatch) -> Result<RecordBatch> + Clone {
    move |batch| {
        if batch.num_rows() > 0 {
            std::thread::sleep(time);
        }
        Ok(batch)
    }
}

async fn slow_stages() -> Result<()> {
    let input = |blocks: usize| context(true)?.range_in_blocks(blocks as u64 * 100, blocks);
    let options = || MapOptions { concurrency: Some(CONCURRENCY.into()), ..Default::default() };
    for (time, rounds) in [(slow_call(), ROUNDS_OF_BLOCKS), (10 * slow_call(), 5)] {
        let ideal = time.as_secs_f64() * rounds as f64;
        let took = drain(&input(rounds * CONCURRENCY)?.map_batches_with(slow(time), options())?).await?.as_secs_f64();
        println!("a function of {time:?} with concurrency {CONCURRENCY}: {:.0} % of the ideal", 100.0 * ideal / took);
    }

    const BLOCKS: usize = 160;
    let made = input(BLOCKS)?.map_batches_with(Ok, options())?;
    let started = Instant::now();
    let taken = made.stream().await?.try_for_each(|_| async {
        tokio::time::sleep(slow_call() / 4).await;
        Ok(())
    });
    taken.await?;
    let (ideal, time) = (slow_call().as_secs_f64() / 4.0 * BLOCKS as f64, started.elapsed().as_secs_f64());
    println!("a consumer of {:?} for a block: {:.0} % of the ideal", slow_call() / 4, 100.0 * ideal / time);
    Ok(())
}

/// An actor that is counted while it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Relaxed);
        Self(Arc::clone(alive))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A pool that has to grow, and to shrink once there is little to do: how soon, and what that costs.
async fn pools() -> Result<()> {
    const BLOCKS: usize = 400;
    const TRICKLE: usize = 40;
    let alive = Arc::<AtomicUsize>::default();
    let started = Instant::now();
    // How many live, with the time since the start, as each block comes.
    let seen = Arc::<Mutex<Vec<(f64, usize)>>>::default();
    let (counted, all) = (Arc::clone(&alive), Arc::clone(&seen));
    let worker = actor("slow", move || {
        let state = Counted::new(&counted);
        let all = Arc::clone(&all);
        Ok(move |batch: RecordBatch| {
            std::thread::sleep(slow_call());
            all.lock().push((started.elapsed().as_secs_f64(), state.0.load(Relaxed)));
            Ok(batch)
        })
    });
    let context = context(true)?;
    let input = context.range_in_blocks(BLOCKS as u64 * 100, BLOCKS)?;
    let options =
        MapOptions { concurrency: Some((1, CONCURRENCY).into()), schema: Some(input.schema()), ..Default::default() };
    let time = drain(&input.map_batches_with(worker.clone(), options.clone())?).await?.as_secs_f64();
    let ideal = slow_call().as_secs_f64() * BLOCKS as f64 / CONCURRENCY as f64;
    let all = seen.lock().iter().find(|(_, alive)| *alive == CONCURRENCY).map(|seen| seen.0);
    println!(
        "a pool of 1 to {CONCURRENCY} actors of {:?}: {:.0} % of the ideal, {CONCURRENCY} of them after {:.2} s",
        slow_call(),
        100.0 * ideal / time,
        all.unwrap_or(f64::NAN)
    );
    // A burst, and then a block every 0.6 s, for which one actor is enough.
    let (begun, from) = (started.elapsed().as_secs_f64(), seen.lock().len());
    let trickle = move |batch: RecordBatch| {
        if batch.num_rows() > 0 && batch["id"].as_primitive::<Int64Type>().value(0) >= BLOCKS as i64 * 100 {
            std::thread::sleep(6 * slow_call());
        }
        Ok(batch)
    };
    let blocks = BLOCKS + TRICKLE;
    let input = context.range_in_blocks(blocks as u64 * 100, blocks)?;
    let ds = input.map_batches_with(trickle, MapOptions { concurrency: Some(1.into()), ..Default::default() })?;
    drain(&ds.map_batches_with(worker, options)?).await?;
    let seen = seen.lock();
    let most = seen[from..].iter().map(|(_, alive)| *alive).max().unwrap_or(0);
    let last_busy = seen[from..].iter().rfind(|(_, alive)| *alive == most).map_or(0.0, |seen| seen.0 - begun);
    let least = seen[from..].iter().find(|(at, alive)| *at - begun > last_busy && *alive == 1);
    println!(
        "the same pool before a trickle: {most} actors, the last time after {last_busy:.1} s, and 1 of them after {:.1} s",
        least.map_or(f64::NAN, |seen| seen.0 - begun)
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
    // A sleep takes longer than it says: what the slow stage takes alone is what its calls took.
    let asleep = Arc::<AtomicUsize>::default();
    let sleeping = Arc::clone(&asleep);
    let slow = move |batch: RecordBatch| {
        let started = Instant::now();
        std::thread::sleep(Duration::from_millis(batch.num_rows() as u64 / 10_000));
        sleeping.fetch_add(started.elapsed().as_micros() as usize, Relaxed);
        Ok(batch)
    };
    let with = |n: usize| MapOptions { concurrency: Some(n.into()), ..Default::default() };
    let ds = context.range_in_blocks(2000, 20)?.map_batches_with(burst, with(2))?;
    // Whole bursts, or a batch would be a hundredth of one.
    let ds = ds.map_batches_with(slow, MapOptions { batch_size: BatchSize::Rows(10_000), ..with(4) })?;
    let time = drain(&ds).await?.as_secs_f64();
    let ideal = asleep.load(Relaxed) as f64 / 1e6 / 4.0;
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
    let options = MapOptions { concurrency: Some(4.into()), num_cpus: Some(0.05), ..Default::default() };
    let queries =
        (0..8).map(|_| context.range_in_blocks(4000, 40)?.map_batches_with(slow(slow_call()), options.clone()));
    let queries = queries.collect::<Result<Vec<_>>>()?;
    let mut times = try_join_all(queries.iter().map(drain)).await?;
    times.sort();
    let (first, last) = (times[0].as_secs_f64(), times[7].as_secs_f64());
    let ideal = slow_call().as_secs_f64() * 40.0 / 4.0;
    println!(
        "eight queries at once, 4 tasks of {:?} each: {:.0} % of the ideal, the last {:.2} times the first",
        slow_call(),
        100.0 * ideal / last,
        last / first
    );
    Ok(())
}

async fn measure(wanted: impl Fn(&str) -> bool) -> Result<()> {
    if wanted("unfused") {
        unfused().await?;
    }
    if wanted("tiny_blocks") {
        blocks_of_one_row().await?;
    }
    if wanted("slow_stages") {
        slow_stages().await?;
    }
    if wanted("pools") {
        pools().await?;
    }
    if wanted("bursts") {
        bursts().await?;
    }
    if wanted("eight_queries") {
        eight_queries().await?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with("--")).collect();
    let wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| *wanted == name);
    match Runtime::new().map_err(Into::into).and_then(|runtime| runtime.block_on(measure(wanted))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
