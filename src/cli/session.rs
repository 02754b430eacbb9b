//! A session of the tool: its runtime, its context, and how statements are run and their results written.

use std::fmt;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::common::DataFusionError;
use datafusion::prelude::SessionConfig;
use futures::StreamExt;
use tokio::runtime::{Builder, Runtime};

use super::arguments::{Format, Options};
use super::output::Output;
use super::progress::Progress;
use crate::{Allocator, Blockyard, BlockyardOptions, DataContext, Dataset, IterOptions};

/// Why the tool stops.
#[derive(Debug)]
pub(super) enum Failure {
    /// The call is wrong.
    Usage(String),
    /// A statement failed.
    Statement(DataFusionError),
    /// Ctrl-C.
    Cancelled,
    /// Nobody reads the results any more.
    OutputClosed,
}

impl Failure {
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Statement(_) | Self::Cancelled => 1,
            Self::OutputClosed => 0,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) => f.write_str(text),
            Self::Statement(error) => f.write_str(error.strip_backtrace().trim_end()),
            Self::Cancelled => f.write_str("cancelled"),
            Self::OutputClosed => f.write_str("the output was closed"),
        }
    }
}

impl From<DataFusionError> for Failure {
    fn from(error: DataFusionError) -> Self {
        let closed = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
        match error.find_root() {
            DataFusionError::IoError(e) if closed(e) => Self::OutputClosed,
            DataFusionError::ArrowError(e, _) if e.to_string().contains("Broken pipe") => Self::OutputClosed,
            _ => Self::Statement(error),
        }
    }
}

/// A running session.
pub(super) struct Session {
    context: DataContext,
    /// Runs queries.
    workers: Option<Runtime>,
    /// Waits for queries and signals. Queries that only compute leave their own threads no time for signals.
    foreground: Option<Runtime>,
    format: Format,
    output: Option<PathBuf>,
    written: bool,
    stats: bool,
    quiet: bool,
    progress: bool,
}

impl Session {
    /// Starts a session. Everything that can be wrong with the options is, before any statement runs.
    pub(super) fn start(options: &Options, allocator: Option<Arc<dyn Allocator>>) -> Result<Self, Failure> {
        let usage = |error: DataFusionError| Failure::Usage(error.strip_backtrace());
        let mut settings = BlockyardOptions::from_env(std::env::vars()).map_err(usage)?;
        if let Some(memory) = options.memory {
            settings.memory_limit = memory;
        }
        if let Some(directory) = &options.spill_dir {
            settings.spill_directory = directory.display().to_string();
        }
        let mut config = SessionConfig::from_env().map_err(usage)?;
        let threads = options.threads.map_or_else(|| settings.num_cpus, usize::from);
        config = config.with_target_partitions(threads);
        let blockyard = Blockyard { options: settings, allocator, ..Default::default() };
        let context = DataContext::with_config(blockyard, config).map_err(usage)?;
        let workers = Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .build()
            .map_err(|e| Failure::Usage(format!("cannot start {threads} threads: {e}")))?;
        let foreground = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Failure::Usage(format!("cannot wait for signals: {e}")))?;
        for setting in &options.set {
            let Some((key, value)) = setting.split_once('=') else {
                return Err(Failure::Usage(format!("--set takes KEY=VALUE, got '{setting}'")));
            };
            let statement = format!("SET {} = '{}'", key.trim(), value.trim().replace('\'', "''"));
            workers.block_on(context.sql(&statement)).map_err(usage)?;
        }
        if options.format == Format::Parquet && options.output.is_none() {
            return Err(Failure::Usage("--format parquet needs --output FILE".to_owned()));
        }
        Ok(Self {
            context,
            workers: Some(workers),
            foreground: Some(foreground),
            format: options.format,
            output: options.output.clone(),
            written: false,
            stats: options.stats,
            quiet: options.quiet,
            progress: !options.quiet && !options.no_progress,
        })
    }

    /// The context of the session.
    pub(super) fn context(&self) -> &DataContext {
        &self.context
    }

    /// Whether nothing but results and errors is to be printed.
    pub(super) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Runs statements one after the other until one fails.
    pub(super) fn run_text(&mut self, text: &str) -> Result<(), Failure> {
        let statements = self.context.parse(text)?;
        let Some(foreground) = self.foreground.take() else {
            return Err(Failure::Cancelled);
        };
        let result = foreground.block_on(async {
            // Listens from before the first statement to after the last: a signal between two of them counts too.
            let mut stop = pin!(interrupted());
            for statement in statements {
                tokio::select! {
                    biased;
                    _ = &mut stop => return Err(Failure::Cancelled),
                    result = self.run_statement(statement) => result?,
                }
            }
            Ok(())
        });
        self.foreground = Some(foreground);
        result
    }

    async fn run_statement(&mut self, statement: crate::SqlStatement) -> Result<(), Failure> {
        let started = Instant::now();
        let progress = Progress::start(self.progress);
        let context = self.context.clone();
        let dataset = self.on_workers(async move { context.run(statement).await }).await?;
        let result = self.write_result(&dataset, &progress).await;
        progress.clear();
        let rows = result?;
        if let Some(failures) = dataset.failures().filter(|_| !self.quiet) {
            eprintln!("warning: {}", failures.replace('\n', "\nwarning: "));
        }
        if self.stats {
            eprint!("{}", dataset.stats());
        }
        if let Some(rows) = rows.filter(|_| self.progress && progress.is_shown()) {
            eprintln!("{rows} rows in {:.3}s", started.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// Runs a future on the threads that run queries, and cancels it when nobody waits for it any more.
    async fn on_workers<T: Send + 'static>(
        &self,
        future: impl Future<Output = datafusion::common::Result<T>> + Send + 'static,
    ) -> Result<T, Failure> {
        struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);
        impl<T> Drop for AbortOnDrop<T> {
            fn drop(&mut self) {
                self.0.abort();
            }
        }
        let Some(workers) = &self.workers else {
            return Err(Failure::Cancelled);
        };
        let mut task = AbortOnDrop(workers.handle().spawn(future));
        match (&mut task.0).await {
            Ok(result) => Ok(result?),
            Err(e) if e.is_panic() => Err(Failure::Statement(DataFusionError::External(Box::new(e)))),
            Err(_) => Err(Failure::Cancelled),
        }
    }

    /// Writes the rows of a dataset, if it has columns; returns how many.
    async fn write_result(&mut self, dataset: &Dataset, progress: &Progress) -> Result<Option<usize>, Failure> {
        if dataset.columns().is_empty() {
            return Ok(None);
        }
        if self.output.is_some() && std::mem::replace(&mut self.written, true) {
            return Err(Failure::Usage("--output takes one result, but the statements give several".to_owned()));
        }
        let started = dataset.clone();
        let whole = IterOptions { batch_size: None, drop_last: false };
        let mut batches = self.on_workers(async move { started.iter_batches(whole).await }).await?;
        let mut output = None;
        let mut rows = 0;
        let schema = dataset.schema();
        let mut tick = tokio::time::interval(Duration::from_millis(100));
        loop {
            let batch = tokio::select! {
                batch = batches.next() => batch,
                _ = tick.tick(), if progress.is_shown() => {
                    progress.show(dataset.progress().join("\n"));
                    continue;
                }
            };
            let Some(batch) = batch else { break };
            let batch = batch?;
            rows += batch.num_rows();
            progress.clear();
            let output = match &mut output {
                Some(output) => output,
                none => none.insert(Output::begin(self.format, self.output.as_ref(), batch.schema())?),
            };
            output.write(&batch)?;
        }
        progress.clear();
        let output = match output {
            Some(output) => output,
            None => Output::begin(self.format, self.output.as_ref(), Arc::clone(&schema))?,
        };
        output.end(rows, &schema)?;
        Ok(Some(rows))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(workers) = self.workers.take() {
            // Work that was cancelled ends at its next await; what does not end soon is left behind.
            workers.shutdown_timeout(Duration::from_secs(2));
        }
        self.context.store().directories().close();
    }
}

/// Ends when the process is asked to stop: Ctrl-C, or a termination signal.
async fn interrupted() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let signals = (signal(SignalKind::terminate()), signal(SignalKind::hangup()));
        if let (Ok(mut terminate), Ok(mut hangup)) = signals {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            return;
        }
    }
    if tokio::signal::ctrl_c().await.is_err() {
        // Without signals nothing can interrupt.
        std::future::pending::<()>().await;
    }
}
