//! Rows become files, files become a shuffled dataset, in Rust and in SQL.
//!
//! ```sh
//! cargo run --example quickstart
//! ```

use std::sync::Arc;

use blockyard::prelude::*;
use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::compute::kernels::numeric::mul;
use datafusion::arrow::datatypes::Int64Type;
use datafusion::error::Result;

/// What a batch becomes: its `id`s, and their squares.
fn squares(batch: RecordBatch) -> Result<RecordBatch> {
    let id = batch.column(0);
    let square = mul(id.as_primitive::<Int64Type>(), id.as_primitive::<Int64Type>())?;
    Ok(RecordBatch::try_from_iter([("id", Arc::clone(id)), ("square", square)])?)
}

/// Writes files into `directory`, and shows what is read from them.
pub(crate) async fn run(directory: &str) -> Result<String> {
    let context = DataContext::new()?;
    context.register_batches("squares", squares);
    let overwrite = WriteOptions { mode: Some(SaveMode::Overwrite), ..Default::default() };

    // In Rust. Nothing runs before the dataset is written: the steps are one plan.
    let rows = context
        .range(100_000)?
        .map_batches("squares")?
        .filter("square % 3 = 1")?
        .random_shuffle(Some(7))?
        .repartition(4)?
        .write_parquet_with(directory, overwrite)
        .await?;

    // In SQL, over the files.
    let query = format!(
        "SELECT count(*) AS rows, max(square) AS largest
         FROM map_batches((SELECT id FROM read_parquet('{directory}')), 'squares')
         WHERE square < 1000000"
    );
    let found = context.sql(&query).await?.show(1).await?;
    Ok(format!("{rows} rows written\n{found}"))
}

#[tokio::main]
async fn main() -> Result<()> {
    let directory = std::env::temp_dir().join("blockyard-quickstart");
    println!("{}", run(&directory.to_string_lossy()).await?);
    Ok(())
}
