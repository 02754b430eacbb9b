//! What can be said on the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::MemoryLimit;

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
        statements: String,
    },
    /// Run the statements in files, one after the other in one session
    Run {
        /// Files of SQL; '-' is standard input
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Read statements from a prompt (the default on a terminal)
    Shell,
}

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Memory for blocks and operators: a size like 1GiB, or a percentage like 50%
    #[arg(long, global = true, value_name = "SIZE")]
    pub(super) memory: Option<MemoryLimit>,
    /// Threads that run queries; as many as the machine has CPUs by default
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) threads: Option<u16>,
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
