//! How well shuffles mix rows: a million rows that come in runs of 2,000, as files sorted by day or by user have them.
//!
//! ```sh
//! cargo run --release --example shuffle_quality
//! ```
//!
//! Of each shuffle it prints, for batches of 1,024 rows, how many runs a batch has rows of, and how far apart its rows
//! were: the standard deviation of their numbers in the source, both averaged over the batches. And how many rows it
//! has to hold, which follows from the order alone: when row `s` leaves at place `p`, rows up to `s` have come, and `p`
//! have left. So behind it at least `m + 1 - (p + 1)` rows are held, where `m` is the largest number among all rows that
//! have left; this is averaged over the places. By Little's law that is also the mean of the places by which rows are
//! held back, for which a local shuffle of 10,000 rows draws numbers with the mean 10,000.

use blockyard::{WindowSize, prelude::*};
use datafusion::arrow::array::AsArray;
use datafusion::arrow::datatypes::Int64Type;
use datafusion::common::{Result, exec_err};
use futures::TryStreamExt;

const ROWS: i64 = 1_000_000;
const RUN: i64 = 2_000;
const BUFFER: usize = 10_000;
const WINDOW: usize = 20_000;
const BATCH: usize = 1_024;
/// What a batch of the local shuffle must have at least.
const MIN_RUNS: f64 = 29.0;
const MIN_SPREAD: f64 = 9_500.0;

/// What is printed of a shuffle.
struct Quality {
    /// Runs in a batch.
    runs: f64,
    /// Standard deviation of the row numbers in a batch.
    spread: f64,
    /// Rows that are held.
    held: f64,
}

/// Looks at all whole batches of `rows`, in the order in which they come.
async fn measure(rows: &Dataset) -> Result<Quality> {
    let options = IterOptions { batch_size: Some(BATCH), ..IterOptions::default() };
    let mut batches = rows.iter_batches(options).await?;
    let (mut runs, mut spread, mut num_batches) = (0, 0.0, 0_u32);
    let (mut held, mut place, mut largest, mut sum_of_ids) = (0_i64, 0_i64, 0_i64, 0_i64);
    while let Some(batch) = batches.try_next().await? {
        let column = |name| batch.column_by_name(name).and_then(|column| column.as_primitive_opt::<Int64Type>());
        let (Some(ids), Some(runs_of_rows)) = (column("id"), column("run")) else {
            return exec_err!("the rows need columns id and run");
        };
        for id in ids.values().iter() {
            largest = largest.max(*id);
            held += largest - place;
            place += 1;
            sum_of_ids += id;
        }
        if batch.num_rows() < BATCH {
            continue;
        }
        let mut found = runs_of_rows.values().to_vec();
        found.sort_unstable();
        found.dedup();
        runs += found.len();
        let mean = ids.values().iter().sum::<i64>() as f64 / BATCH as f64;
        let variance = ids.values().iter().map(|id| (*id as f64 - mean).powi(2)).sum::<f64>() / BATCH as f64;
        spread += variance.sqrt();
        num_batches += 1;
    }
    if place != ROWS || sum_of_ids != ROWS * (ROWS - 1) / 2 {
        return exec_err!("{place} rows have come, with the sum {sum_of_ids}, which are not all of {ROWS}");
    }
    let batches = f64::from(num_batches);
    Ok(Quality { runs: runs as f64 / batches, spread: spread / batches, held: held as f64 / place as f64 })
}

#[tokio::main]
async fn main() -> Result<()> {
    let context = DataContext::new()?;
    let rows = context.sql(&format!("SELECT id, id / {RUN} AS run FROM range({ROWS})")).await?;
    let shuffles = [
        ("in order", rows.clone()),
        ("local_shuffle of 10,000", rows.local_shuffle(BUFFER, 7)?),
        (
            "windows of 20,000, each shuffled",
            rows.window(WindowSize::Rows(WINDOW))?.random_shuffle_each_window(7)?.into_dataset(),
        ),
        ("random_shuffle", rows.random_shuffle(7)?),
    ];
    println!("{:34}{:>14}{:>14}{:>14}", "", "runs in batch", "spread", "rows held");
    for (name, shuffled) in shuffles {
        let Quality { runs, spread, held } = measure(&shuffled).await?;
        println!("{name:34}{runs:>14.1}{spread:>14.0}{held:>14.0}");
        if name.starts_with("local_shuffle") && (runs < MIN_RUNS || spread < MIN_SPREAD) {
            return exec_err!("a batch must have {MIN_RUNS} runs and a spread of {MIN_SPREAD} at least");
        }
    }
    Ok(())
}
