//! Spilling and restoring against plain sequential writing and reading of as many bytes, and a pipeline that spills
//! everything against the slower of its computation and its disk. All in one run, with the allocator of the tool;
//! `cargo bench --bench store` prints the ratios.

#[path = "../src/allocator.rs"]
mod allocator;
mod common;

use std::fs::File;
use std::hint::black_box;
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockyard::block::Block;
use blockyard::config::SpillCompression;
use blockyard::prelude::*;
use blockyard::store::{BlockHandle, BlockStore, Budget, NextUse, Owner, SpillDirectories};
use blockyard::{BlockyardOptions, ByteSize, MemoryLimit};
use datafusion::arrow::array::{Float64Array, Int64Array, RecordBatch, StringArray};
use datafusion::common::exec_datafusion_err;
use datafusion::error::Result;
use datafusion::prelude::SessionConfig;
use tokio::runtime::Runtime;

use common::size;

/// Rounds. Of the pipeline their median counts; of spilling and restoring the fastest, because some rounds, ours and
/// the plain ones alike, wait ten times as long for the disk to write what is in the cache.
fn rounds() -> usize {
    size(9, 1)
}

/// Blocks of a round, of about 16 MiB each.
fn blocks() -> i64 {
    size(24, 2)
}

const ROWS: i64 = 8192;
/// Bytes that plain files are written and read in.
const CHUNK: usize = 4 << 20;
/// Threads that spill and restore at once, as the partitions of a plan do.
const THREADS: usize = 2;

fn batch(seed: i64) -> Result<RecordBatch> {
    let id = Int64Array::from_iter_values((0..ROWS).map(|i| seed * ROWS + i));
    let x = Float64Array::from_iter_values((0..ROWS).map(|i| (seed * ROWS + i) as f64 * 0.5));
    let text = StringArray::from_iter_values((0..ROWS).map(|i| format!("{:032x}", (seed * ROWS + i) * 0x9e37_79b9)));
    Ok(RecordBatch::try_from_iter([("id", Arc::new(id) as _), ("x", Arc::new(x) as _), ("text", Arc::new(text) as _)])?)
}

fn block(seed: i64) -> Result<Block> {
    let batches = (0..40).map(|i| batch(seed * 40 + i)).collect::<Result<Vec<_>>>()?;
    Ok(Block::new(batches[0].schema(), batches))
}

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let started = Instant::now();
    let value = work()?;
    Ok((value, started.elapsed()))
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

fn fastest(times: Vec<Duration>) -> f64 {
    times.into_iter().min().unwrap_or_default().as_secs_f64()
}

/// Writes bytes and reads them back; the times of both.
fn plain(directory: &Path, bytes: &[u8]) -> Result<(Duration, Duration)> {
    let path = directory.join("plain");
    let (_, write) = timed(|| {
        let mut file = File::create(&path)?;
        bytes.chunks(CHUNK).try_for_each(|chunk| Ok(file.write_all(chunk)?))
    })?;
    let (_, read) = timed(|| {
        let mut file = File::open(&path)?;
        // Into the same memory every time, as nothing is kept.
        let mut read = Vec::with_capacity(CHUNK);
        bytes.chunks(CHUNK).try_for_each(|chunk| {
            read.clear();
            Read::by_ref(&mut file).take(chunk.len() as u64).read_to_end(&mut read)?;
            black_box(&read);
            Ok(())
        })
    })?;
    std::fs::remove_file(path)?;
    Ok((write, read))
}

/// Does the same with each of `things`, in several threads.
fn in_threads<T: Sync, U: Send>(things: &[T], each: impl Fn(&T) -> Result<U> + Sync) -> Result<Vec<U>> {
    let parts = things.chunks(things.len().div_ceil(THREADS));
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            parts.map(|part| scope.spawn(|| part.iter().map(&each).collect::<Result<Vec<_>>>())).collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().map_err(|_| exec_datafusion_err!("a thread panicked"))??);
        }
        Ok(all)
    })
}

/// Spills blocks and reads them back; the bytes on disk, and the times of both.
fn spill(directory: &Path, blocks: &[Block]) -> Result<(usize, Duration, Duration)> {
    let directories = SpillDirectories::open(&[directory.to_owned()], u64::MAX)?;
    // Nothing fits, so that every put is a write.
    let store = BlockStore::new(Arc::new(Budget::new(0)), Arc::new(directories), SpillCompression::None);
    let (store, owner) = (Arc::new(store), Arc::new(Owner::default()));
    let put = |b: &Block| store.put(b.clone(), NextUse::Soon, &owner);
    let (handles, write) = timed(|| in_threads(blocks, put))?;
    let get = |handle: &BlockHandle| {
        (0..handle.batch_rows().len()).try_for_each(|index| {
            black_box(handle.get_batch(index)?);
            Ok(())
        })
    };
    let (_, read) = timed(|| in_threads(&handles, get))?;
    Ok((store.totals().spilled_bytes(), write, read))
}

fn throughput(directory: &Path) -> Result<()> {
    let blocks = (0..blocks()).map(block).collect::<Result<Vec<_>>>()?;
    let (mut writes, mut reads, mut plain_writes, mut plain_reads) = (vec![], vec![], vec![], vec![]);
    let mut bytes = Vec::new();
    for _ in 0..rounds() {
        let (spilled, write, read) = spill(directory, &blocks)?;
        bytes.resize(spilled, 7);
        let (plain_write, plain_read) = plain(directory, &bytes)?;
        writes.push(write);
        reads.push(read);
        plain_writes.push(plain_write);
        plain_reads.push(plain_read);
    }
    let ratio = |plain: Vec<Duration>, ours: Vec<Duration>| 100.0 * fastest(plain) / fastest(ours);
    println!("{} MiB per round, the fastest of {} rounds", bytes.len() >> 20, rounds());
    println!("spill: {:.0} % of the throughput of a plain write", ratio(plain_writes, writes));
    println!("restore: {:.0} % of the throughput of a plain read", ratio(plain_reads, reads));
    Ok(())
}

/// Computes rows, keeps them as blocks, and reads them again.
async fn pipeline(directory: &Path, limit: usize) -> Result<usize> {
    let options = BlockyardOptions {
        memory_limit: MemoryLimit::Bytes(ByteSize(limit)),
        spill_directory: directory.display().to_string(),
        spill_compression: SpillCompression::None,
        ..Default::default()
    };
    let context = DataContext::with_config(
        Blockyard { options, allocator: Some(allocator::allocator()), ..Default::default() },
        SessionConfig::new(),
    )?;
    let rows = size(3_000_000, 3_000);
    let rows = format!(
        "SELECT id, sha256(CAST(id AS VARCHAR)) AS a, md5(CAST(id AS VARCHAR)) AS b, id * 3 AS c FROM range({rows})",
    );
    let kept = context.sql(&rows).await?.materialize().await?;
    let again = kept.filter("c % 2 = 0")?;
    again.take_all().await?;
    Ok(context.store().totals().spilled_bytes() + context.store().totals().restored_bytes())
}

fn overlap(directory: &Path) -> Result<()> {
    let runtime = Runtime::new()?;
    let (mut all, mut compute, mut disk) = (vec![], vec![], vec![]);
    for _ in 0..rounds() {
        let (moved, time) = timed(|| runtime.block_on(pipeline(directory, 64 << 20)))?;
        all.push(time);
        compute.push(timed(|| runtime.block_on(pipeline(directory, 8 << 30)))?.1);
        let (write, read) = plain(directory, &vec![7; moved / 2])?;
        disk.push(write + read);
    }
    let (all, compute, disk) = (median(all), median(compute), median(disk));
    let ratio = all / compute.max(disk);
    println!("a pipeline that spills: {ratio:.2} times max(compute {compute:.2} s, disk {disk:.2} s)");
    Ok(())
}

fn main() -> ExitCode {
    let measured = tempfile::tempdir().map_err(Into::into).and_then(|directory| {
        throughput(directory.path())?;
        overlap(directory.path())
    });
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
