//! What can be said on the command line.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::failure::Failure;
use crate::{ByteSize, MemoryLimit};

/// Ray Data's dataset model on Apache DataFusion: SQL over files and blocks, within a memory limit.
#[derive(Debug, Parser)]
#[command(name = "blockyard", version, about)]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub(super) command: Option<Command>,
    #[command(flatten)]
    pub(super) options: Options,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run statements separated by ';'
    Sql {
        /// The statements
        // They may begin with a comment.
        #[arg(allow_hyphen_values = true)]
        statements: String,
    },
    /// Run the statements in files, one after the other in one session
    Run {
        /// Files of SQL; '-' is standard input
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Deal the rows of the last query of a file to several consumers in other processes
    Serve {
        /// A file of SQL; '-' is standard input
        file: PathBuf,
        #[command(flatten)]
        split: Split,
    },
    /// Write what one consumer of a served query gets
    Consume(Consumer),
    /// Run stages of queries for other processes
    Cluster {
        #[command(subcommand)]
        command: Cluster,
    },
    /// End the writes to local directories whose processes have died: a commit that had begun is finished, what was
    /// staged otherwise is removed
    Repair {
        /// Directories that were written to
        #[arg(required = true)]
        directories: Vec<PathBuf>,
    },
    /// Read statements from a prompt (the default on a terminal)
    Shell,
}

#[derive(Debug, Subcommand)]
pub(super) enum Cluster {
    /// Run stages for the sessions that have this process in blockyard.cluster, until it is asked to end
    Executor(Executor),
    /// Say how the executors of --cluster are, in a line of JSON for each
    Status,
}

/// Where an executor listens, and for whom.
#[derive(Debug, Clone, Args)]
pub(super) struct Executor {
    /// Where sessions connect: unix:PATH, tls:IP:PORT or tcp:IP:PORT, where port 0 takes a free one
    #[arg(long, value_name = "ADDRESS")]
    pub(super) listen: String,
    /// A file with the token that sessions have to show at tls: and tcp:
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// A file with the certificate to show at tls:, in PEM, and those that have signed it
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(super) tls_cert: Option<PathBuf>,
    /// A file with the key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(super) tls_key: Option<PathBuf>,
    /// A file with the certificates that have signed those of other executors (if not said: those of --tls-cert)
    #[arg(long, value_name = "FILE")]
    pub(super) tls_ca: Option<PathBuf>,
    /// Let other machines connect to tcp:, where nothing is encrypted
    #[arg(long)]
    pub(super) insecure: bool,
}

/// How rows are dealt.
#[derive(Debug, Args)]
pub(super) struct Split {
    /// How many consumers there are
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) splits: u16,
    /// Where they connect: unix:PATH, or tcp:127.0.0.1:PORT, where port 0 takes a free one
    #[arg(long, value_name = "ADDRESS")]
    pub(super) listen: String,
    /// Rows of a step for all consumers together, instead of --batch-size for each
    #[arg(long, value_name = "N", conflicts_with = "batch_size", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) global_batch_size: Option<u32>,
    /// Everyone gets equally many rows
    #[arg(long)]
    pub(super) equal: bool,
    /// Leave out the last step when it is short
    #[arg(long)]
    pub(super) drop_last: bool,
    /// Between what consumers wait for each other
    #[arg(long, value_enum, default_value_t = Barrier::Epoch)]
    pub(super) barrier: Barrier,
    /// Whether batches come in turn, or whoever asks gets the next one
    #[arg(long, value_enum, default_value_t = Deal::Turns)]
    pub(super) deal: Deal,
    /// What happens when a consumer is gone: fail, redistribute (by demand), or a time to come back like 30s
    #[arg(long, value_name = "WHAT", default_value = "fail")]
    pub(super) on_lost: OnLost,
    /// Bytes that may wait for each consumer
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub(super) buffer: ByteSize,
    /// How long a consumer waits for others before that is an error, like 10min
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) max_wait: Option<Duration>,
}

/// Which consumer one is.
#[derive(Debug, Args)]
pub(super) struct Consumer {
    /// The address that `serve` has printed
    pub(super) address: String,
    /// The number of the consumer, from 0 on
    #[arg(long, value_name = "I", default_value_t = 0)]
    pub(super) index: usize,
    /// The key that `serve` has printed
    #[arg(long, value_name = "KEY", conflicts_with = "key_file")]
    pub(super) key: Option<String>,
    /// A file with that key, which other users of the machine need not see
    #[arg(long, value_name = "FILE")]
    pub(super) key_file: Option<PathBuf>,
    /// How many epochs are read
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) epochs: u64,
    /// Say how all consumers stand instead, as a line of JSON
    #[arg(long)]
    pub(super) status: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Barrier {
    /// Epochs
    Epoch,
    /// Windows of a pipeline
    Window,
    /// Nobody waits
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Deal {
    /// Batches come in turn
    Turns,
    /// Whoever asks gets the next one
    Demand,
}

/// What happens when a consumer is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OnLost(pub(super) crate::OnLost);

impl FromStr for OnLost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(match text {
            "fail" => crate::OnLost::Fail,
            "redistribute" => crate::OnLost::Redistribute,
            time => crate::OnLost::Wait(duration(time).map_err(|e| format!("fail, redistribute, or a time: {e}"))?),
        }))
    }
}

/// A time like `500ms`, `30s` or `10min`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("a time is a number and ms, s or min, got '{text}'"))?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "min" => Ok(Duration::from_secs(number.saturating_mul(60))),
        _ => Err(format!("a time is a number and ms, s or min, got '{text}'")),
    }
}

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Memory for blocks and operators: a size like 1GiB, or a percentage like 50%
    #[arg(long, global = true, value_name = "SIZE")]
    pub(super) memory: Option<MemoryLimit>,
    /// Threads that run queries; as many as the machine has CPUs by default
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) threads: Option<u16>,
    /// Executors that run stages of queries, separated by commas, like tcp:10.0.0.2:7070
    #[arg(long, global = true, value_name = "ADDRESSES")]
    pub(super) cluster: Option<String>,
    /// Directory for spilled data
    #[arg(long, global = true, value_name = "DIR")]
    pub(super) spill_dir: Option<PathBuf>,
    /// Set an option before the first statement, like blockyard.target_max_block_size=64MiB
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// How results are written: tables, unless the name of the output says otherwise
    #[arg(long, global = true, value_enum)]
    pub(super) format: Option<Format>,
    /// Write the result of the query to a file; its ending says the format, like .csv or .parquet
    #[arg(long, short, global = true, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Rows of each batch of the result, in formats that have batches
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) batch_size: Option<u32>,
    /// Go on behind the batch at which a token was saved
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) resume: Option<PathBuf>,
    /// Save a token behind each batch that was written, with --format arrow, or behind the last one, with --output
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) save_token: Option<PathBuf>,
    /// Print what each stage did, on standard error
    #[arg(long, global = true)]
    pub(super) stats: bool,
    /// Print nothing but results and errors
    #[arg(long, short, global = true)]
    pub(super) quiet: bool,
    /// Do not show progress
    #[arg(long, global = true)]
    pub(super) no_progress: bool,
}

impl Options {
    /// Fails where something is said that a command makes nothing of.
    pub(super) fn check_for(&self, command: &Command) -> Result<(), Failure> {
        let results = [("--format", self.format.is_some()), ("--output", self.output.is_some())];
        let tokens = [("--resume", self.resume.is_some()), ("--save-token", self.save_token.is_some())];
        let batches = [("--batch-size", self.batch_size.is_some())];
        let (name, unused) = match command {
            Command::Sql { .. } | Command::Run { .. } | Command::Shell => return Ok(()),
            Command::Serve { .. } => ("serve", [&results[..], &tokens[1..]].concat()),
            Command::Consume(_) => ("consume", [&tokens[..], &batches[..]].concat()),
            Command::Repair { .. } => ("repair", [&results[..], &tokens[..], &batches[..]].concat()),
            Command::Cluster { .. } => ("cluster", [&results[..], &tokens[..], &batches[..]].concat()),
        };
        match unused.into_iter().find(|(_, is_said)| *is_said) {
            Some((option, _)) => Err(Failure::Usage(format!("{option} is nothing to 'blockyard {name}'"))),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Tables for people
    Table,
    /// Comma-separated values
    Csv,
    /// Tab-separated values
    Tsv,
    /// One JSON array
    Json,
    /// One JSON object per line
    Ndjson,
    /// Arrow IPC stream
    Arrow,
    /// Parquet
    Parquet,
}
