//! Batches for training: how long an epoch takes, how soon its first batch comes, how soon an iterator goes on at a token
//! behind 95 % of the rows, and how long a consumer waits whose steps take half as long again as batches do.
//!
//! ```text
//! cargo bench --bench ingest                       5 million rows of 140 bytes, made for it
//! BLOCKYARD_BENCH_DATA=dir cargo bench --bench ingest    the Parquet files in a directory
//! ```

#[path = "../src/allocator.rs"]
mod allocator;
mod common;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use blockyard::prelude::*;
use blockyard::{Blockyard, BlockyardOptions, ByteSize, DatasetPipeline, MemoryLimit, ResumeToken, WindowSize};
use datafusion::error::Result;
use datafusion::prelude::SessionConfig;
use futures::TryStreamExt;

/// Rows of a batch, and of the shuffle's buffer.
const BATCH: usize = 1024;
const BUFFER: usize = 10_000;
/// Where in the epoch the token is taken.
const CUT: f64 = 0.95;

/// What an iterator did.
struct Epoch {
    rows: usize,
    first: Duration,
    all: Duration,
    token: Option<ResumeToken>,
}

/// Reads an epoch, and takes a token behind so many rows.
async fn epoch(dataset: &Dataset, options: IterOptions, cut: usize) -> Result<Epoch> {
    let began = Instant::now();
    let mut batches = dataset.iter_batches(options).await?;
    let (mut rows, mut first, mut token) = (0, Duration::ZERO, None);
    while let Some(batch) = batches.try_next().await? {
        if rows == 0 {
            first = began.elapsed();
        }
        rows += batch.num_rows();
        if token.is_none() && rows >= cut {
            token = Some(batches.token()?);
        }
    }
    print!("{}", batches.stats());
    Ok(Epoch { rows, first, all: began.elapsed(), token })
}

async fn measure() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let options = BlockyardOptions { memory_limit: MemoryLimit::Bytes(ByteSize::mib(1024)), ..Default::default() };
    let blockyard = Blockyard { options, allocator: Some(allocator::allocator()), ..Default::default() };
    let context = DataContext::with_config(blockyard, SessionConfig::new().with_target_partitions(2))?;
    let path = match std::env::var("BLOCKYARD_BENCH_DATA") {
        Ok(path) => path,
        Err(_) => {
            let path = directory.path().join("rows").display().to_string();
            let rows = common::size(5_000_000, 20_000);
            let sql = format!(
                "COPY (SELECT id, id * 7919 % 100003 AS key, CAST(id AS DOUBLE) / 7 AS value,
                 repeat(md5(CAST(id AS VARCHAR)), 3) AS payload FROM range({rows}, override_num_blocks => 20))
                 TO '{path}/' STORED AS PARQUET"
            );
            context.sql(&sql).await?.take_all().await?;
            path
        }
    };
    let dataset = context.read_parquet(path.as_str()).await?;
    let cut = (dataset.count().await? as f64 * CUT) as usize;
    let plain = IterOptions { batch_size: Some(BATCH), epoch: Some(0), ..IterOptions::default() };
    let shuffled =
        IterOptions { local_shuffle_buffer_size: Some(BUFFER), local_shuffle_seed: Some(7), ..plain.clone() };
    let whole = dataset.random_shuffle(7)?;
    for (name, dataset, options) in [
        ("in order", &dataset, plain.clone()),
        ("local shuffle", &dataset, shuffled),
        ("random shuffle", &whole, plain.clone()),
    ] {
        let read = epoch(dataset, options.clone(), cut).await?;
        let resumed = epoch(dataset, IterOptions { resume: read.token, ..options }, usize::MAX).await?;
        println!(
            "{name}: {} rows in {:.2} s, the first batch after {:.0} ms; behind 95 % the first after {:.0} ms\n",
            read.rows,
            read.all.as_secs_f64(),
            read.first.as_secs_f64() * 1e3,
            resumed.first.as_secs_f64() * 1e3
        );
    }
    let windows = dataset.window(WindowSize::Rows(common::size(500_000, 5_000)))?.random_shuffle_each_window(7)?;
    for ahead in [1, 32] {
        overlap(&windows, ahead).await?;
    }
    Ok(())
}

/// A consumer whose step takes half as long again as a batch takes on average, over three epochs, with so many batches
/// made ahead.
async fn overlap(windows: &DatasetPipeline, ahead: usize) -> Result<()> {
    let batches = IterOptions { batch_size: Some(BATCH), prefetch_batches: ahead, ..IterOptions::default() };
    let mut once = windows.iter_batches(batches.clone()).await?;
    let began = Instant::now();
    let mut number = 0;
    while once.try_next().await?.is_some() {
        number += 1;
    }
    let step = began.elapsed().mul_f64(1.5) / number.max(1);
    let mut epochs = windows.repeat(3)?.iter_epochs(None, batches).await?;
    let (mut steps, mut worked, mut waited, mut between) = (0, Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let mut asked = Instant::now();
    while let Some(mut epoch) = epochs.next_epoch().await? {
        let mut is_first = true;
        while let Some(batch) = epoch.try_next().await? {
            match (steps, std::mem::take(&mut is_first)) {
                // Everybody waits for the first batch of all.
                (0, _) => {}
                (_, true) => between = between.max(asked.elapsed()),
                (_, false) => waited += asked.elapsed(),
            }
            // A model that works: it takes a thread.
            let began = Instant::now();
            tokio::task::block_in_place(|| std::thread::sleep(step));
            // To let go of rows is the consumer's work, too.
            drop(batch);
            (steps, worked, asked) = (steps + 1, worked + began.elapsed(), Instant::now());
        }
    }
    println!("{}", epochs.stats());
    println!(
        "overlap, {ahead} ahead: {steps} steps of {:.2} ms, {:.2} % of the time waited within epochs, at most {:.2} ms between two",
        (worked / steps.max(1)).as_secs_f64() * 1e3,
        100.0 * waited.as_secs_f64() / (waited + worked).as_secs_f64(),
        between.as_secs_f64() * 1e3
    );
    Ok(())
}

fn main() -> ExitCode {
    let Ok(runtime) = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() else {
        return ExitCode::FAILURE;
    };
    match runtime.block_on(measure()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
