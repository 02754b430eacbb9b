//! Mixed queries in one process for a long time: each must give what it gave first, and the process must not grow. Nor
//! must it with the epochs of one iterator that does not end.
//!
//! ```text
//! cargo bench --bench soak                                       20 minutes, 4 queries at once, within 64 MiB
//! cargo bench --bench soak -- --minutes 2 --at-once 8 --limit 256MiB
//! ```
//!
//! Prints the resident memory of the process (`VmRSS`) in each twentieth of the time, and its peak (`VmHWM`).

#[path = "../src/allocator.rs"]
mod allocator;
mod common;

use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use blockyard::prelude::*;
use blockyard::{BlockyardOptions, MemoryLimit};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::common::{exec_datafusion_err, exec_err};
use datafusion::error::Result;
use datafusion::prelude::SessionConfig;
use futures::TryStreamExt;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Queries over `{in}`, each with its own way to need memory.
const QUERIES: [&str; 8] = [
    "SELECT count(*), sum(place * v) FROM (SELECT v, row_number() OVER () AS place
     FROM (SELECT * FROM read_parquet('{in}/') ORDER BY v, id))",
    "SELECT count(*), sum(n), min(s) FROM (SELECT s, count(*) AS n FROM read_parquet('{in}/') GROUP BY s)",
    "SELECT count(*), sum(a.v + b.v), min(a.s || b.s) FROM read_parquet('{in}/') AS a
     JOIN read_parquet('{in}/') AS b ON a.k = b.id",
    "SELECT count(*), sum(place * v), min(s) FROM (SELECT v, s, row_number() OVER () AS place
     FROM random_shuffle(read_parquet('{in}/'), seed => 7))",
    "SELECT count(*), sum(v), max(s) FROM repartition(read_parquet('{in}/'), 16)",
    "SELECT count(*), sum(v), sum(length(s)) FROM map_batches(read_parquet('{in}/'), 'identity')",
    "SELECT sum(v), max(k) FROM read_parquet('{in}/') WHERE v % 2 = 0",
    "SELECT count(*), sum(total) FROM (SELECT v, sum(v) OVER (PARTITION BY k % 1000 ORDER BY id) AS total
     FROM read_parquet('{in}/'))",
];
/// Parts of the time for which the memory is told.
const PARTS: u32 = 20;
/// What the process may have above its limit.
const MAX_OVERHEAD_MIB: u64 = 150;
/// What nine tenths of the epochs of a pipeline may add.
const MAX_EPOCHS_MIB: u64 = 16;
/// By how much the last quarter may have more memory than the second, at its median.
const MAX_GROWTH: f64 = 1.1;

#[derive(Debug)]
struct Settings {
    minutes: f64,
    at_once: usize,
    limit: String,
}

impl Settings {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut settings = Self { minutes: common::size(20.0, 0.05), at_once: 4, limit: "64MiB".to_owned() };
        while let Some(argument) = arguments.next() {
            if argument == "--bench" {
                continue;
            }
            let value = arguments.next().ok_or_else(|| exec_datafusion_err!("{argument} needs a value"))?;
            let number = |e: &dyn std::fmt::Display| exec_datafusion_err!("{argument} {value}: {e}");
            match argument.as_str() {
                "--minutes" => settings.minutes = value.parse().map_err(|e| number(&e))?,
                "--at-once" => settings.at_once = value.parse().map_err(|e| number(&e))?,
                "--limit" => settings.limit = value,
                _ => return exec_err!("unknown option '{argument}'"),
            }
        }
        Ok(settings)
    }
}

/// A line of `/proc/self/status`, in MiB.
fn status_mib(name: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/self/status")?;
    let kib = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix("kB")?.trim().parse().ok());
    kib.map(|kib: u64| kib >> 10).ok_or_else(|| exec_datafusion_err!("/proc/self/status does not tell {name}"))
}

fn session(limit: &str) -> Result<DataContext> {
    let memory_limit = limit.parse::<MemoryLimit>()?;
    let options = BlockyardOptions { num_cpus: 2, memory_limit, ..Default::default() };
    DataContext::with_config(
        Blockyard { options, allocator: Some(allocator::allocator()), ..Default::default() },
        SessionConfig::new().with_target_partitions(2),
    )
}

async fn run(context: DataContext, sql: String) -> Result<String> {
    Ok(pretty_format_batches(&context.sql(&sql).await?.take_all().await?)?.to_string())
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

async fn soak(settings: &Settings) -> Result<bool> {
    let directory = tempfile::tempdir()?;
    let input = directory.path().join("in").display().to_string();
    let context = session(&settings.limit)?;
    let write = "COPY (SELECT id, id * 7919 % 1000000 AS k, id * 48271 % 1000003 AS v,
                 repeat(md5(CAST(id AS VARCHAR)), 12) AS s FROM range({rows})) TO '{in}/' STORED AS PARQUET";
    let rows = common::size(1_000_000, 10_000).to_string();
    run(context.clone(), write.replace("{in}", &input).replace("{rows}", &rows)).await?;
    let queries = QUERIES.map(|query| query.replace("{in}", &input));
    let mut expected = Vec::new();
    for query in &queries {
        expected.push(run(context.clone(), query.clone()).await?);
    }

    let limit_mib = context.store().budget().limit() as u64 >> 20;
    println!("{} MiB resident when each has run alone, within a limit of {limit_mib} MiB", status_mib("VmRSS:")?);
    println!("{:>8} {:>8} {:>10} {:>10}", "minutes", "queries", "RSS MiB", "peak MiB");
    let (started, whole) = (Instant::now(), Duration::from_secs_f64(settings.minutes * 60.0));
    let (mut ended, mut wrong, mut medians, mut samples) = (0, 0, Vec::new(), Vec::new());
    let mut running = JoinSet::new();
    let mut next = (0..queries.len()).cycle();
    loop {
        while started.elapsed() < whole && running.len() < settings.at_once {
            let i = next.next().unwrap_or(0);
            let (context, sql) = (context.clone(), queries[i].clone());
            running.spawn(async move { (i, run(context, sql).await) });
        }
        let Some(joined) = running.join_next().await else {
            break;
        };
        let (i, result) = joined.map_err(|e| exec_datafusion_err!("{e}"))?;
        ended += 1;
        samples.push(status_mib("VmRSS:")?);
        match result {
            Ok(text) if text == expected[i] => {}
            Ok(text) => {
                wrong += 1;
                println!("another result of {}:\n{text}\ninstead of\n{}", queries[i], expected[i]);
            }
            Err(e) => {
                wrong += 1;
                println!("{} failed: {e}", queries[i]);
            }
        }
        if started.elapsed() >= whole / PARTS * (medians.len() as u32 + 1) && medians.len() < PARTS as usize {
            let (minutes, resident) = (started.elapsed().as_secs_f64() / 60.0, median(std::mem::take(&mut samples)));
            println!("{minutes:>8.1} {ended:>8} {resident:>10} {:>10}", status_mib("VmHWM:")?);
            medians.push(resident);
        }
    }
    let peak = status_mib("VmHWM:")?;
    let quarter = medians.len() / 4;
    let (early, late) =
        (median(medians[quarter..2 * quarter].to_vec()), median(medians[medians.len() - quarter..].to_vec()));
    println!(
        "{ended} queries, {wrong} wrong, peak {peak} MiB, in the second quarter {early} MiB, in the last {late} MiB"
    );
    println!("{} after the last query", context.store().budget());
    // A few queries are too few to tell.
    let flat = late as f64 <= early as f64 * MAX_GROWTH || !common::measures();
    Ok(wrong == 0 && flat && peak <= limit_mib + MAX_OVERHEAD_MIB && context.store().budget().used() == 0)
}

/// Epochs of a small pipeline: what the process has more after all of them than after the first tenth.
async fn epochs(settings: &Settings) -> Result<bool> {
    let context = session(&settings.limit)?;
    let pipeline = context.range(100)?.repeat(None)?.random_shuffle_each_window(7)?;
    let all = common::size(10_000, 100);
    let mut epochs = pipeline.iter_epochs(all, IterOptions::default()).await?;
    let (mut number, mut rows, mut early) = (0, 0, 0);
    while let Some(mut epoch) = epochs.next_epoch().await? {
        while let Some(batch) = epoch.try_next().await? {
            rows += batch.num_rows() as u64;
        }
        number += 1;
        if number == all / 10 {
            early = status_mib("VmRSS:")?;
        }
    }
    let late = status_mib("VmRSS:")?;
    println!("{number} epochs with {rows} rows, {early} MiB behind the first tenth of them, {late} MiB behind all");
    Ok(rows == 100 * all && late < early + MAX_EPOCHS_MIB)
}

fn main() -> ExitCode {
    let settings = Settings::parse(std::env::args().skip(1));
    let run = |settings: Settings| {
        let runtime = Runtime::new()?;
        // In this order: what queries leave to the allocator is no memory of epochs.
        Ok(runtime.block_on(epochs(&settings))? & runtime.block_on(soak(&settings))?)
    };
    let result = settings.and_then(run);
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
