//! A consumer in another process: a perceptron with two hidden layers that candle trains on batches from Blockyard.
//!
//! ```sh
//! cargo build --release
//! cargo run --release --manifest-path examples/train-candle/Cargo.toml -- --tool target/release/blockyard
//! ```
//!
//! It starts `blockyard serve` on the last query of `train.sql`, shuffled points of two spirals, and connects to it.
//! Over a Unix socket come lines of JSON and an Arrow IPC stream for each epoch: docs/reference/split_protocol.md. So
//! the package needs Arrow's arrays and their format, and nothing of Blockyard or DataFusion. Where a server runs
//! already, `--address` says at which socket:
//!
//! ```sh
//! blockyard serve examples/train-candle/train.sql --splits 1 --batch-size 256 --listen unix:/tmp/train.sock
//! cargo run --release --manifest-path examples/train-candle/Cargo.toml -- --address unix:/tmp/train.sock
//! ```
//!
//! The rows that are held out come from `blockyard sql` in either case; without `--tool` it is looked for in the PATH.
//! The program fails where the model is right about less than 95 % of them.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Float32Type, UInt32Type};
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::StreamReader;
use candle_core::{D, DType, Device, Tensor, Var};
use candle_nn::{Activation, AdamW, Linear, Module, Optimizer, Sequential, loss, seq};
use serde_json::{Value, json};

/// Views, and behind them the query that is served.
const SQL: &str = include_str!("../train.sql");
/// Rows of a step.
const BATCH: &str = "256";
/// How often all rows are asked for. The server runs its query anew each time, as often as one likes.
const EPOCHS: u64 = 3;
/// What goes into each layer, and out of the last one: a score for each spiral.
const WIDTHS: [usize; 4] = [2, 64, 64, 2];
/// The learning rate of the first epoch, and what it is multiplied by from one to the next.
const RATE: f64 = 0.01;
const DECAY: f64 = 0.3;
const SEED: u64 = 7;
/// The part of the rows held out about which the model has to be right.
const ENOUGH: f64 = 0.95;
/// No line of the protocol has more bytes.
const LINE_BYTES: u64 = 64 << 10;

/// The connection of the consumer: lines go both ways, and streams of batches come between them.
struct Consumer {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Consumer {
    fn connect(address: &str) -> Result<Self> {
        let Some(path) = address.strip_prefix("unix:") else {
            bail!("--address takes unix:PATH, as `blockyard serve` has printed it, got '{address}'");
        };
        let writer = UnixStream::connect(path)
            .with_context(|| format!("cannot connect to {address}: start `blockyard serve` with this address first"))?;
        let mut consumer = Self { reader: BufReader::new(writer.try_clone()?), writer };
        say(&mut consumer.writer, &json!({"protocol": 1, "consumer": 0}))?;
        let consumers = consumer.hear()?["consumers"].take();
        ensure!(consumers == 1, "rows are dealt to {consumers} consumers, and this is one: serve with --splits 1");
        Ok(consumer)
    }

    /// The next line of the server. What it says of an error is one here.
    fn hear(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.reader.by_ref().take(LINE_BYTES).read_line(&mut line).context("the connection to the server broke")?;
        ensure!(line.ends_with('\n'), "the server has closed the connection: see what it has printed");
        let said: Value = serde_json::from_str(&line).with_context(|| format!("no line of the protocol: {line}"))?;
        match said["error"].as_str() {
            Some(error) => bail!("the server says: {error}"),
            None => Ok(said),
        }
    }

    /// Calls `step` with each batch of the next epoch. The rows of it; `None` where there are no more epochs.
    fn next_epoch(&mut self, mut step: impl FnMut(&RecordBatch) -> Result<()>) -> Result<Option<u64>> {
        say(&mut self.writer, &json!({"next_epoch": true}))?;
        if self.hear()?["finished"] == true {
            return Ok(None);
        }
        let (mut batches, mut rows) = (0_u64, 0_u64);
        let cut_off = "the stream of batches was cut off: see what the server has printed";
        // This takes no byte behind the end of the stream: the next line is left to `hear`.
        for batch in StreamReader::try_new(&mut self.reader, None).context(cut_off)? {
            let batch = batch.context(cut_off)?;
            step(&batch)?;
            (batches, rows) = (batches + 1, rows + batch.num_rows() as u64);
            // Only now: what was not acknowledged is dealt once more where a consumer is lost and comes back.
            say(&mut self.writer, &json!({"ack": batches}))?;
        }
        let end = self.hear()?;
        let is_whole = end["end"] == true && end["batches"] == batches && end["rows"] == rows;
        ensure!(is_whole, "{batches} batches with {rows} rows have come, and the server says {end}");
        Ok(Some(rows))
    }
}

fn say(writer: &mut UnixStream, line: &Value) -> Result<()> {
    writer.write_all(format!("{line}\n").as_bytes()).context("the server has closed the connection")
}

/// `blockyard serve` as a child. Dropping it kills the child, if it is still there.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// Starts it, and waits until it listens.
    fn start(tool: &str) -> Result<Self> {
        let socket = std::env::temp_dir().join(format!("train-candle-{}.sock", std::process::id()));
        let address = format!("unix:{}", socket.display());
        let mut command = Command::new(tool);
        command.args(["serve", "-", "--quiet", "--splits", "1", "--batch-size", BATCH, "--listen", &address]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| not_started(tool))?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let server = Self { child, address };
        let (Some(mut stdin), Some(stdout)) = pipes else { bail!("the server has no pipes") };
        stdin.write_all(SQL.as_bytes()).context("the server has ended before it had read its query")?;
        // It begins when there is no more to read, and prints a line when it listens.
        drop(stdin);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(!line.is_empty(), "'{tool} serve' has ended at once: it says above why");
        Ok(server)
    }

    /// Waits for its end, which comes by itself when its only consumer has gone.
    fn wait(mut self) -> Result<()> {
        let status = self.child.wait()?;
        ensure!(status.success(), "the server has ended with {status}");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Neither does anything where the server has ended by itself; one that is killed leaves its socket behind.
        let _killed = self.child.kill().and_then(|()| self.child.wait());
        let _removed = self.address.strip_prefix("unix:").map(std::fs::remove_file);
    }
}

fn not_started(tool: &str) -> String {
    format!("cannot start '{tool}': build it with `cargo build --release`, and say with --tool where it is")
}

/// The rows that are held out, as an Arrow IPC stream too.
fn held_out(tool: &str) -> Result<Vec<RecordBatch>> {
    // The statements before the last one, which make the views.
    let Some((views, _served)) = SQL.trim_end().trim_end_matches(';').rsplit_once(';') else {
        bail!("train.sql has to begin with the view `held_out`");
    };
    let query = format!("{views}; SELECT * FROM held_out");
    let mut command = Command::new(tool);
    command.args(["sql", "--quiet", "--format", "arrow", "--", &query]).stderr(Stdio::inherit());
    let output = command.output().with_context(|| not_started(tool))?;
    ensure!(output.status.success(), "'{tool} sql' has failed: it says above why");
    let stream = StreamReader::try_new(output.stdout.as_slice(), None);
    let stream = stream.with_context(|| format!("'{tool} sql' gives no rows: is it the tool of Blockyard?"))?;
    Ok(stream.collect::<Result<_, _>>()?)
}

/// Layers with a rectifier between each and the next, and their variables. The weights follow from the seed: those that
/// candle draws on a CPU are others in each run.
fn perceptron(mut seed: u64) -> Result<(Sequential, Vec<Var>)> {
    let (mut layers, mut variables) = (seq(), Vec::new());
    for (inputs, outputs) in WIDTHS.into_iter().zip(WIDTHS.into_iter().skip(1)) {
        if !layers.is_empty() {
            layers = layers.add(Activation::Relu);
        }
        // He et al., "Delving Deep into Rectifiers", 2015: what comes out is then about as large as what goes in.
        let bound = (6.0 / inputs as f64).sqrt();
        let weights: Vec<f32> = (0..inputs * outputs).map(|_| (bound * uniform(&mut seed)) as f32).collect();
        let weights = Var::from_vec(weights, (outputs, inputs), &Device::Cpu)?;
        let bias = Var::zeros(outputs, DType::F32, &Device::Cpu)?;
        layers = layers.add(Linear::new(weights.as_tensor().clone(), Some(bias.as_tensor().clone())));
        variables.extend([weights, bias]);
    }
    Ok((layers, variables))
}

/// The next number between -1 and 1, by SplitMix64 (Steele et al., "Fast Splittable Pseudorandom Number Generators").
fn uniform(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
}

/// The points of a batch, rows x 2, and their labels.
fn tensors(batch: &RecordBatch) -> Result<(Tensor, Tensor)> {
    let coordinate = |name| Ok::<_, anyhow::Error>(Tensor::new(column::<Float32Type>(batch, name)?, &Device::Cpu)?);
    let points = Tensor::stack(&[coordinate("x")?, coordinate("y")?], 1)?;
    Ok((points, Tensor::new(column::<UInt32Type>(batch, "label")?, &Device::Cpu)?))
}

fn column<'a, T: ArrowPrimitiveType>(batch: &'a RecordBatch, name: &str) -> Result<&'a [T::Native]> {
    match batch.column_by_name(name).and_then(|column| column.as_primitive_opt::<T>()) {
        Some(column) if column.null_count() == 0 => Ok(column.values()),
        _ => bail!("the query that is served has to give a column {name} of {} without nulls", T::DATA_TYPE),
    }
}

/// Trains with what the server gives. How many epochs these were.
fn train(model: &Sequential, mut optimizer: AdamW, mut consumer: Consumer) -> Result<u64> {
    for epoch in 0..EPOCHS {
        let (mut losses, mut steps) = (0.0, 0);
        let rows = consumer.next_epoch(|batch| {
            let (points, labels) = tensors(batch)?;
            let loss = loss::cross_entropy(&model.forward(&points)?, &labels)?;
            optimizer.backward_step(&loss)?;
            (losses, steps) = (losses + loss.to_scalar::<f32>()?, steps + 1);
            Ok(())
        })?;
        let Some(rows) = rows else { return Ok(epoch) };
        println!("epoch {epoch}: {rows} rows in {steps} steps, loss {:.4}", losses / steps.max(1) as f32);
        optimizer.set_learning_rate(optimizer.learning_rate() * DECAY);
    }
    Ok(EPOCHS)
}

/// About how many rows of a batch the model is right.
fn right(model: &Sequential, batch: &RecordBatch) -> Result<u32> {
    let (points, labels) = tensors(batch)?;
    let is_right = model.forward(&points)?.argmax(D::Minus1)?.eq(&labels)?;
    Ok(is_right.to_dtype(DType::U32)?.sum_all()?.to_scalar()?)
}

fn main() -> Result<()> {
    let (mut tool, mut address, mut arguments) = ("blockyard".to_owned(), None, std::env::args().skip(1));
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.next()) {
            ("--tool", Some(path)) => tool = path,
            ("--address", Some(text)) => address = Some(text),
            _ => bail!("usage: train-candle [--tool PATH] [--address unix:PATH], got '{argument}'"),
        }
    }
    let start = Instant::now();
    // Before the training, which would be for nothing without them.
    let held_out = held_out(&tool)?;
    let (model, variables) = perceptron(SEED)?;
    let optimizer = AdamW::new_lr(variables, RATE)?;
    let epochs = match address {
        Some(address) => train(&model, optimizer, Consumer::connect(&address)?)?,
        None => {
            let server = Server::start(&tool)?;
            let epochs = train(&model, optimizer, Consumer::connect(&server.address)?)?;
            server.wait()?;
            epochs
        }
    };
    let (mut correct, mut rows) = (0, 0);
    for batch in &held_out {
        (correct, rows) = (correct + right(&model, batch)?, rows + batch.num_rows());
    }
    let (accuracy, seconds) = (f64::from(correct) / rows as f64, start.elapsed().as_secs_f64());
    println!("accuracy {:.1} % on {rows} rows after {epochs} epochs, {seconds:.1} s", 100.0 * accuracy);
    ensure!(accuracy >= ENOUGH, "the model has learned too little: {:.0} % are needed", 100.0 * ENOUGH);
    Ok(())
}
