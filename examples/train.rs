//! Training that is killed and goes on: logistic regression by gradient descent over shuffled batches.
//!
//! ```sh
//! cargo run --release --example train
//! cargo run --release --example train -- rows/    the same, with rows of this directory, made if it is not there
//! ```
//!
//! One model is trained without a pause. Another is trained by a process that saves its weights with a resume token
//! every few steps, and is killed; a third goes on from what that one has saved. The weights of the first and the third
//! must be equal bit for bit.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use blockyard::{ResumeToken, prelude::*};
use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::datatypes::Float64Type;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use futures::TryStreamExt;

const ROWS: usize = 40_000;
const FEATURES: usize = 8;
const EPOCHS: u64 = 4;
const BATCH: usize = 128;
const RATE: f64 = 0.5;
/// Steps from one checkpoint to the next.
const SAVED_EVERY: u64 = 30;
/// The step at which the child is killed. It may be ahead of what it has reported by so many.
const KILLED_AT: usize = 700;
const AHEAD: usize = 20;

/// Weights of the features, and the bias behind them.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    weights: [f64; FEATURES + 1],
    steps: u64,
}

impl Model {
    fn score(&self, row: &[f64; FEATURES]) -> f64 {
        let sum: f64 = self.weights.iter().zip(row).map(|(weight, value)| weight * value).sum();
        sum + self.weights[FEATURES]
    }

    /// A step against the mean gradient of a batch.
    fn step(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut gradient = [0.0; FEATURES + 1];
        for_each_row(batch, |row, label| {
            let error = 1.0 / (1.0 + (-self.score(row)).exp()) - label;
            for (sum, value) in gradient.iter_mut().zip(row.iter().chain([&1.0])) {
                *sum += error * value;
            }
        })?;
        for (weight, sum) in self.weights.iter_mut().zip(gradient) {
            *weight -= RATE * sum / batch.num_rows() as f64;
        }
        self.steps += 1;
        Ok(())
    }

    /// The part of the rows whose label it gets right.
    async fn accuracy(&self, dataset: &Dataset) -> Result<f64> {
        let (mut right, mut rows) = (0, 0);
        let mut batches = dataset.stream().await?;
        while let Some(batch) = batches.try_next().await? {
            rows += batch.num_rows();
            for_each_row(&batch, |row, label| right += usize::from((self.score(row) > 0.0) == (label > 0.5)))?;
        }
        Ok(right as f64 / rows as f64)
    }

    fn bits(&self) -> [u64; FEATURES + 1] {
        self.weights.map(f64::to_bits)
    }
}

/// Calls `f` with the features and the label of each row.
fn for_each_row(batch: &RecordBatch, mut f: impl FnMut(&[f64; FEATURES], f64)) -> Result<()> {
    let mut columns = Vec::with_capacity(FEATURES + 1);
    for name in (0..FEATURES).map(|f| format!("f{f}")).chain(["label".to_owned()]) {
        match batch.column_by_name(&name).and_then(|column| column.as_primitive_opt::<Float64Type>()) {
            Some(column) if column.null_count() == 0 => columns.push(column.values()),
            _ => return exec_err!("the rows need a column {name} of Float64 without nulls"),
        }
    }
    let (features, label) = columns.split_at(FEATURES);
    for (row, label) in label.iter().flat_map(|values| values.iter().copied()).enumerate() {
        f(&std::array::from_fn(|feature| features[feature][row]), label);
    }
    Ok(())
}

/// What is saved: three lines, of the token, the steps, and the bits of the weights.
struct Checkpoint {
    token: ResumeToken,
    model: Model,
}

impl Checkpoint {
    /// Saves it in place of the one before. Whoever is killed meanwhile leaves one or the other.
    fn save(&self, path: &Path) -> Result<()> {
        let weights: Vec<String> = self.model.bits().iter().map(|bits| format!("{bits:016x}")).collect();
        let text = format!("{}\n{}\n{}\n", self.token, self.model.steps, weights.join(" "));
        let unfinished = path.with_extension("unfinished");
        std::fs::write(&unfinished, text)?;
        std::fs::rename(&unfinished, path)?;
        Ok(())
    }

    fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)?;
        let [token, steps, weights] = text.lines().collect::<Vec<_>>()[..] else {
            return exec_err!("'{}' is no checkpoint", path.display());
        };
        let broken = |e: std::num::ParseIntError| exec_datafusion_err!("'{}' is no checkpoint: {e}", path.display());
        let mut model = Model { steps: steps.parse().map_err(broken)?, ..Model::default() };
        for (weight, bits) in model.weights.iter_mut().zip(weights.split(' ')) {
            *weight = f64::from_bits(u64::from_str_radix(bits, 16).map_err(broken)?);
        }
        Ok(Self { token: token.parse()?, model })
    }
}

/// Trains, and calls `after_step` with the number of each step. With a checkpoint it goes on from that, if it is there,
/// and saves others in its place.
async fn train(
    dataset: &Dataset,
    checkpoint: Option<&Path>,
    mut after_step: impl FnMut(u64) -> Result<()>,
) -> Result<Model> {
    let saved = checkpoint.filter(|path| path.exists()).map(Checkpoint::load).transpose()?;
    let (mut model, mut resume) = match saved {
        Some(Checkpoint { token, model }) => (model, Some(token)),
        None => (Model::default(), None),
    };
    let first_epoch = resume.as_ref().map_or(0, ResumeToken::epoch);
    for epoch in first_epoch..EPOCHS {
        let options = IterOptions {
            batch_size: Some(BATCH),
            local_shuffle_buffer_size: Some(2_000),
            local_shuffle_seed: Some(7),
            epoch: Some(epoch),
            // Only the epoch in which the token was taken begins in its middle.
            resume: resume.take(),
            ..IterOptions::default()
        };
        let mut batches = dataset.iter_batches(options).await?;
        while let Some(batch) = batches.try_next().await? {
            model.step(&batch)?;
            if let Some(path) = checkpoint
                && model.steps.is_multiple_of(SAVED_EVERY)
            {
                Checkpoint { token: batches.token()?, model: model.clone() }.save(path)?;
            }
            after_step(model.steps)?;
        }
    }
    Ok(model)
}

/// The work of the child: it trains, says which step it has made, and makes the next one when it gets a line.
async fn train_as_child(dataset: &Dataset, checkpoint: &Path) -> Result<()> {
    let (mut lines, mut stdout) = (std::io::stdin().lines(), std::io::stdout());
    train(dataset, Some(checkpoint), |step| {
        writeln!(stdout, "{step}")?;
        stdout.flush()?;
        match lines.next() {
            Some(line) => line.map(drop).map_err(Into::into),
            None => exec_err!("whoever waits for the steps is gone"),
        }
    })
    .await
    .map(drop)
}

/// Starts a child that trains, and kills it after some steps. It gets lines for a few more of them, so that it is at
/// work when it is killed, and does not come to its end before.
fn train_and_kill(rows: &str, checkpoint: &Path) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("child").arg(rows).arg(checkpoint).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return exec_err!("the child has no pipes");
    };
    stdin.write_all(&b"\n".repeat(KILLED_AT + AHEAD))?;
    let mut lines = BufReader::new(stdout).lines();
    let mut last = None;
    for line in lines.by_ref().take(KILLED_AT) {
        last = Some(line?);
    }
    child.kill()?;
    let status = child.wait()?;
    if status.success() || last != Some(KILLED_AT.to_string()) {
        return exec_err!("the child was to be killed at step {KILLED_AT}: it has ended with {status} behind {last:?}");
    }
    Ok(())
}

/// Makes the rows: features, and a label that follows from them and from noise.
async fn make_rows(context: &DataContext, path: &str) -> Result<()> {
    let features: Vec<_> = (0..FEATURES).map(|f| format!("sin(id * {}) AS f{f}", f + 1)).collect();
    let weighted: Vec<_> = (0..FEATURES).map(|f| format!("{} * f{f}", (f * 3 % 7) as f64 / 2.0 - 1.5)).collect();
    let query = format!(
        "SELECT *, CASE WHEN {} + 0.3 * sin(id * 777) > 0.2 THEN 1.0 ELSE 0.0 END AS label
         FROM (SELECT id, {} FROM range({ROWS}, override_num_blocks => 8))",
        weighted.join(" + "),
        features.join(", ")
    );
    context.sql(&query).await?.write_parquet(path).await?;
    Ok(())
}

/// Trains without a pause, and with one.
async fn run(context: &DataContext, rows: &str, checkpoint: &Path) -> Result<()> {
    if !Path::new(rows).exists() {
        make_rows(context, rows).await?;
    }
    let dataset = context.read_parquet(rows).await?;
    let whole = train(&dataset, None, |_| Ok(())).await?;
    let accuracy = whole.accuracy(&dataset).await?;
    println!("without a pause: {} steps, {:.2} % of the rows are right", whole.steps, accuracy * 100.0);

    train_and_kill(rows, checkpoint)?;
    let saved = Checkpoint::load(checkpoint)?;
    println!(
        "killed behind step {KILLED_AT}: saved behind step {}, which is {} rows into epoch {}",
        saved.model.steps,
        saved.token.rows(),
        saved.token.epoch()
    );

    let mut made = 0;
    let resumed = train(&dataset, Some(checkpoint), |_| {
        made += 1;
        Ok(())
    })
    .await?;
    let accuracy_again = resumed.accuracy(&dataset).await?;
    println!("gone on: {made} steps more, {:.2} % of the rows are right", accuracy_again * 100.0);
    if made + saved.model.steps != whole.steps || resumed.steps != whole.steps {
        return exec_err!("{} steps, and then {made}, are not {}", saved.model.steps, whole.steps);
    }
    if resumed.bits() != whole.bits() {
        return exec_err!("weights differ: {:?} and {:?}", whole.weights, resumed.weights);
    }
    if accuracy < 0.9 {
        return exec_err!("the model has learned too little");
    }
    println!("the weights are equal, bit for bit");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let context = DataContext::new()?;
    if let [mode, rows, checkpoint] = arguments.as_slice()
        && mode == "child"
    {
        let dataset = context.read_parquet(rows.as_str()).await?;
        return train_as_child(&dataset, Path::new(checkpoint)).await;
    }
    let scratch = std::env::temp_dir().join(format!("train-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let rows = arguments.first().cloned().unwrap_or_else(|| scratch.join("rows").display().to_string());
    let result = run(&context, &rows, &scratch.join("checkpoint")).await;
    std::fs::remove_dir_all(scratch)?;
    result
}
