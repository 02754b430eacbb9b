//! Batch inference: a model that is loaded once per actor scores the rows of Parquet files.
//!
//! ```sh
//! cargo run --release --example batch_inference -- in/ out/ 2
//! ```
//!
//! The input has columns `f0` to `f15` of Float32; the output has the input's columns and `score`. Without arguments
//! the example makes its own input.

use std::sync::Arc;
use std::time::Instant;

use blockyard::{Actor, actor, prelude::*};
use datafusion::arrow::array::{Array, ArrayRef, AsArray, Float32Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Float32Type, Schema};
use datafusion::common::{Result, exec_err};

const FEATURES: usize = 16;
const HIDDEN: usize = 64;

/// A perceptron with one hidden layer. A real one would read its weights from a file.
struct Model {
    first: Vec<[f32; FEATURES]>,
    second: Vec<f32>,
}

impl Model {
    fn load() -> Result<Self> {
        let weight = |i: usize| ((i * 7919 % 2003) as f32 / 1001.0 - 1.0) * 0.25;
        let first = (0..HIDDEN).map(|h| std::array::from_fn(|f| weight(h * FEATURES + f))).collect();
        Ok(Self { first, second: (0..HIDDEN).map(|h| weight(h + 31)).collect() })
    }

    fn score(&self, row: &[f32; FEATURES]) -> f32 {
        let hidden = self.first.iter().map(|weights| {
            let sum: f32 = weights.iter().zip(row).map(|(weight, value)| weight * value).sum();
            sum.max(0.0)
        });
        hidden.zip(&self.second).map(|(hidden, weight)| hidden * weight).sum()
    }
}

impl Actor for Model {
    fn call(&mut self, batch: RecordBatch) -> Result<RecordBatch> {
        let mut features = Vec::with_capacity(FEATURES);
        for f in 0..FEATURES {
            match batch.column_by_name(&format!("f{f}")).and_then(|c| c.as_primitive_opt::<Float32Type>()) {
                Some(column) if column.null_count() == 0 => features.push(column.values()),
                _ => return exec_err!("the input needs columns f0 to f15 of Float32 without nulls"),
            }
        }
        let row = |row: usize| std::array::from_fn(|f| features[f][row]);
        let scores = Float32Array::from_iter_values((0..batch.num_rows()).map(|r| self.score(&row(r))));
        let score = Field::new("score", DataType::Float32, false);
        let fields: Vec<_> = batch.schema().fields().iter().cloned().chain([Arc::new(score)]).collect();
        let columns = batch.columns().iter().cloned().chain([Arc::new(scores) as ArrayRef]).collect();
        Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
    }
}

/// Rows to try it with.
async fn make_input(context: &DataContext, path: &str) -> Result<()> {
    let columns: Vec<_> = (0..FEATURES).map(|f| format!("CAST(sin(id * {}) AS FLOAT) AS f{f}", f + 1)).collect();
    let query = format!("SELECT id, {} FROM range(100000)", columns.join(", "));
    context.sql(&query).await?.write_parquet(path).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let context = DataContext::new()?;
    let scratch = std::env::temp_dir().join(format!("batch-inference-{}", std::process::id()));
    let own = [scratch.join("in"), scratch.join("out")].map(|path| path.to_string_lossy().into_owned());
    let (input, output) = match arguments.as_slice() {
        [input, output, ..] => (input.clone(), output.clone()),
        _ => {
            make_input(&context, &own[0]).await?;
            (own[0].clone(), own[1].clone())
        }
    };
    let actors = arguments.get(2).and_then(|n| n.parse().ok()).unwrap_or(2);

    let started = Instant::now();
    let options = MapOptions {
        concurrency: Some((1, actors).into()),
        num_cpus: Some(1.0),
        batch_size: BatchSize::Rows(8192),
        // A row that cannot be scored does not end the run; it is kept for later.
        on_error: blockyard::functions::OnError::Divert("unscored".to_owned()),
        ..Default::default()
    };
    let scored = context.read_parquet(input.as_str()).await?.map_batches_with(actor("score", Model::load), options)?;
    let mode = WriteOptions { mode: Some(SaveMode::Overwrite), ..Default::default() };
    let rows = scored.write_parquet_with(&output, mode).await?;
    let unscored = context.diverted("unscored")?.count().await?;
    println!("{rows} rows scored, {unscored} not, in {:.3} s", started.elapsed().as_secs_f64());
    if arguments.is_empty() {
        std::fs::remove_dir_all(scratch)?;
    }
    Ok(())
}
