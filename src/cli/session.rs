//! A session of the tool: its runtime, its context, and how statements are run and their results written.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, internal_err};
use datafusion::prelude::SessionConfig;
use futures::{FutureExt, Stream, StreamExt};
use tokio::runtime::{Builder, Runtime};

use super::arguments::{Format, Options};
use super::destination::Destination;
use super::headers;
use super::output::{Output, ParquetFile};
use super::positions::{Positions, Saved};
use super::progress::Progress;

use super::failure::{Failure, Place};
use super::signals::{Stop, stopped};
use super::statements::Script;
use super::waits::WaitWarnings;
use crate::block::sliced_bytes;
use crate::observability::ExecutionCallback;
use crate::runtime::await_begun;
use crate::sql::SqlStatement;
use crate::store::Allocator;
use crate::{Blockyard, BlockyardOptions, DataContext, Dataset, ResumeToken};

/// Bytes of the stacks of threads: expressions of thousands of terms are trees as deep as that. Memory is what they
/// touch.
pub(super) const STACK_BYTES: usize = 64 << 20;

/// How long what must not stay half done may take when the session ends.
const COMMIT: Duration = Duration::from_secs(60);

/// So many bytes of batches are written at once, or a batch that has more.
const TOGETHER_BYTES: usize = 1 << 20;

/// What the environment says, and what is said beside it.
fn settings(options: &Options, environment: &[(String, String)]) -> datafusion::common::Result<BlockyardOptions> {
    let mut settings = BlockyardOptions::from_env(environment.iter().cloned())?;
    if let Some(memory) = options.memory {
        settings.memory_limit = memory;
    }
    if let Some(directory) = &options.spill_dir {
        settings.spill_directory = directory.display().to_string();
    }
    if let Some(cluster) = &options.cluster {
        settings.cluster.clone_from(cluster);
    }
    Ok(settings)
}

/// A running session.
pub(super) struct Session {
    context: DataContext,
    /// Runs queries.
    workers: Option<Runtime>,
    /// Waits for queries and signals. Queries that only compute leave their own threads no time for signals.
    foreground: Option<Runtime>,
    destination: Destination,
    positions: Option<Positions>,
    /// Queries up to now.
    queries: usize,
    /// Whether the file of the destination is written.
    written: bool,
    stats: bool,
    quiet: bool,
    progress: bool,
    /// Whether statements run, which end by themselves when they are asked to.
    busy: Arc<AtomicBool>,
}

impl Session {
    /// Starts a session. Everything that can be wrong with the options is, before any statement runs.
    pub(super) fn start(options: &Options, allocator: Option<Arc<dyn Allocator>>) -> Result<Self, Failure> {
        let usage = |error: DataFusionError| Failure::Usage(error.strip_backtrace());
        let destination = Destination::new(options.format, options.output.as_deref(), options.save_token.is_none())
            .map_err(Failure::Usage)?;
        let positions = Positions::new(options, &destination).map_err(Failure::Usage)?;
        let environment: Vec<_> = std::env::vars().collect();
        let settings = settings(options, &environment).map_err(usage)?;
        let mut config = SessionConfig::from_env().map_err(usage)?;
        let threads = options.threads.map_or_else(|| settings.num_cpus, usize::from);
        config = config.with_target_partitions(threads);
        let callbacks: Vec<Arc<dyn ExecutionCallback>> = match options.quiet {
            true => Vec::new(),
            false => vec![Arc::new(WaitWarnings)],
        };
        let blockyard = Blockyard {
            options: settings,
            environment: environment.into_iter().collect(),
            allocator,
            callbacks,
            ..Default::default()
        };
        let context = DataContext::with_config(blockyard, config).map_err(usage)?;
        let workers = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_stack_size(STACK_BYTES)
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
        Ok(Self {
            context,
            workers: Some(workers),
            foreground: Some(foreground),
            destination,
            positions,
            queries: 0,
            written: false,
            stats: options.stats,
            quiet: options.quiet,
            progress: !options.quiet && !options.no_progress,
            busy: Arc::default(),
        })
    }

    /// The context of the session.
    pub(super) fn context(&self) -> &DataContext {
        &self.context
    }

    /// The token at which results go on, if they do.
    pub(super) fn resume(&self) -> Option<&ResumeToken> {
        self.positions.as_ref().and_then(Positions::resume)
    }

    /// Where results go.
    pub(super) fn destination(&self) -> &Destination {
        &self.destination
    }

    /// Whether nothing but results and errors is to be printed.
    pub(super) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Runs scripts one after the other until one fails.
    pub(super) fn run_scripts(&mut self, scripts: &[Script]) -> Result<(), Failure> {
        for (number, script) in scripts.iter().enumerate() {
            self.run_script(script).map_err(|failure| match failure {
                Failure::OutputClosed { left } => {
                    let more =
                        |script: &Script| self.context.parse(&script.text).map_or(1, |statements| statements.len());
                    Failure::OutputClosed { left: left + scripts[number + 1..].iter().map(more).sum::<usize>() }
                }
                failure => failure,
            })?;
        }
        Ok(())
    }

    /// Runs statements one after the other until one fails.
    pub(super) fn run_script(&mut self, script: &Script) -> Result<(), Failure> {
        let place = |statement, is_only| Place { source: script.source.clone(), statement, is_only };
        let at = |place: Place, failure: Failure| match failure {
            stopped @ (Failure::Stopped(_) | Failure::OutputClosed { .. }) => stopped,
            failure => Failure::At(place, Box::new(failure)),
        };
        let statements = self.context.parse(&script.text).map_err(|e| at(place(None, true), e.into()))?;
        let queries = statements.iter().filter(|statement| statement.is_query()).count();
        if self.destination.file.is_some() && queries + usize::from(self.written) > 1 {
            return Err(Failure::Usage("--output takes one result, but the statements give several".to_owned()));
        }
        if self.positions.as_ref().is_some_and(Positions::is_of_one) && queries + self.queries > 1 {
            let text = "--resume and --save-token take one result, but the statements give several";
            return Err(Failure::Usage(text.to_owned()));
        }
        self.queries += queries;
        let is_only = statements.len() == 1;
        self.listening(async |session| {
            let all = statements.len();
            for (index, statement) in statements.into_iter().enumerate() {
                let place = place(Some((index + 1, statement.line())), is_only);
                session.run_statement(statement).await.map_err(|failure| match failure {
                    Failure::OutputClosed { .. } => Failure::OutputClosed { left: all - index - 1 },
                    failure => at(place, failure),
                })?;
            }
            Ok(())
        })
    }

    /// Does what signals end.
    pub(super) fn listening<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Some(foreground) = self.foreground.take() else {
            return Err(Failure::Stopped(Stop::Interrupt));
        };
        self.busy.store(true, Relaxed);
        let result = foreground.block_on(async {
            // Listens from before the first statement to after the last: a signal between two of them counts too.
            let mut stop = pin!(stopped());
            tokio::select! {
                biased;
                stop = &mut stop => Err(Failure::Stopped(stop)),
                result = work(self) => result,
            }
        });
        self.busy.store(false, Relaxed);
        self.foreground = Some(foreground);
        result
    }

    /// Lets signals end the process while no statement runs: once they are listened to, they no longer do so by
    /// themselves.
    pub(super) fn end_while_idle(&self) -> Result<(), Failure> {
        let (busy, directories) = (Arc::clone(&self.busy), Arc::clone(self.context.store().directories()));
        self.workers()?.handle().spawn(async move {
            loop {
                let stop = stopped().await;
                if stop != Stop::Interrupt && !busy.load(Relaxed) {
                    directories.close();
                    std::process::exit(i32::from(stop.exit_code()));
                }
            }
        });
        Ok(())
    }

    /// Whether what was asked for was written, now that all statements have run.
    pub(super) fn check_written(&self) -> Result<(), Failure> {
        match &self.destination.file {
            Some(path) if !self.written => {
                Err(Failure::Usage(format!("'{}' was not written, since no statement is a query", path.display())))
            }
            _ => Ok(()),
        }
    }

    /// Runs a statement, and writes its result.
    pub(super) async fn run_statement(&mut self, statement: SqlStatement) -> Result<(), Failure> {
        let started = Instant::now();
        let progress = Progress::start(self.progress);
        let context = self.context.clone();
        let is_query = statement.is_query();
        let dataset = self.on_workers(async move { context.run(statement).await }).await?;
        let result = self.write_result(&dataset, is_query, &progress).await;
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
    pub(super) async fn on_workers<T: Send + 'static>(
        &self,
        future: impl Future<Output = datafusion::common::Result<T>> + Send + 'static,
    ) -> Result<T, Failure> {
        struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);
        impl<T> Drop for AbortOnDrop<T> {
            fn drop(&mut self) {
                self.0.abort();
            }
        }
        let mut task = AbortOnDrop(self.workers()?.handle().spawn(future));
        joined((&mut task.0).await)
    }

    /// Runs what may take long or wait for whoever reads the output, where signals are heard meanwhile.
    pub(super) async fn on_writer<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> datafusion::common::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        joined(self.workers()?.handle().spawn_blocking(work).await)
    }

    fn workers(&self) -> Result<&Runtime, Failure> {
        self.workers.as_ref().ok_or(Failure::Stopped(Stop::Interrupt))
    }

    /// Writes the rows of a dataset, if it has columns; returns how many. Only those of a query go into a file.
    async fn write_result(
        &mut self,
        dataset: &Dataset,
        is_query: bool,
        progress: &Progress,
    ) -> Result<Option<usize>, Failure> {
        if dataset.columns().is_empty() {
            return Ok(None);
        }
        let destination = match (&self.destination.file, is_query) {
            (Some(_), true) if std::mem::replace(&mut self.written, true) => {
                return Err(Failure::Usage("--output takes one result, but the statements give several".to_owned()));
            }
            (Some(_), false) => Destination { format: Format::Table, file: None, fills_pipes: true },
            _ => self.destination.clone(),
        };
        let (started, positions) = (dataset.clone(), self.positions.clone().filter(|_| is_query));
        let batches = self.on_workers(async move { Positions::batches(positions, started).await }).await?;
        // Where tokens are saved, there is one behind each batch: who has read a batch finds that of the one before.
        let limit = if batches.is_saved() { 0 } else { TOGETHER_BYTES };
        let mut batches = batches.fuse();
        let stop = StopOnDrop(Arc::default());
        let (names, stopped, planned) = (headers::shown(dataset), Arc::clone(&stop.0), dataset.schema());
        let file = ParquetFile::of(&self.context);
        let begin = move |first: Option<&RecordBatch>| {
            let schema = first.map_or(planned, RecordBatch::schema);
            Output::begin(&destination, &file, headers::renamed(&schema, &names), stopped)
        };
        let mut begin = Some(begin);
        let mut output: Option<Box<Output>> = None;
        let mut tick = tokio::time::interval(Duration::from_millis(100));
        // What went wrong behind batches that are to be written first.
        let mut failed: Option<DataFusionError> = None;
        loop {
            let together = tokio::select! {
                together = next_together(&mut batches, limit, &mut failed) => together?,
                _ = tick.tick(), if progress.is_shown() => {
                    progress.show(dataset.progress().join("\n"));
                    continue;
                }
            };
            let saved = batches.get_ref().saved()?;
            progress.clear();
            let (begun, begin) = (output.take(), begin.take());
            let write = move || {
                let output = match (begun, begin) {
                    (Some(output), _) => output,
                    (None, Some(begin)) => Box::new(begin(together.first())?),
                    (None, None) => return internal_err!("a result was not begun"),
                };
                written(output, &together, saved)
            };
            match self.on_writer(write).await? {
                Written::More(more) => output = Some(more),
                Written::All(rows) => return Ok(Some(rows)),
            }
        }
    }
}

/// The next batch, and those behind it that are there already, until they have so many bytes: to wake who writes them
/// can take longer than to write one. None at the end. What fails behind the first is for the next call.
async fn next_together(
    batches: &mut (impl Stream<Item = datafusion::common::Result<RecordBatch>> + Unpin),
    limit: usize,
    failed: &mut Option<DataFusionError>,
) -> datafusion::common::Result<Vec<RecordBatch>> {
    if let Some(e) = failed.take() {
        return Err(e);
    }
    let Some(first) = batches.next().await.transpose()? else { return Ok(Vec::new()) };
    let (mut bytes, mut together) = (sliced_bytes(&first), vec![first]);
    while bytes < limit
        && let Some(Some(next)) = batches.next().now_or_never()
    {
        match next {
            Ok(batch) => {
                bytes += sliced_bytes(&batch);
                together.push(batch);
            }
            Err(e) => {
                *failed = Some(e);
                break;
            }
        }
    }
    Ok(together)
}

/// How far a result is written.
enum Written {
    More(Box<Output>),
    All(usize),
}

/// Writes batches, or the end if there are none; then the token behind them, if all up to there can be read.
fn written(
    mut output: Box<Output>,
    batches: &[RecordBatch],
    token: Option<Saved>,
) -> datafusion::common::Result<Written> {
    let (written, is_whole) = match batches {
        [] => (Written::All(output.end()?), true),
        batches => {
            batches.iter().try_for_each(|batch| output.write(batch))?;
            let is_whole = token.is_some() && output.flush()?;
            (Written::More(output), is_whole)
        }
    };
    match token.filter(|_| is_whole) {
        Some(token) => token.write().map(|()| written),
        None => Ok(written),
    }
}

/// Tells a writer that nobody waits for it any more.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The result of what ran on another thread.
fn joined<T>(joined: Result<datafusion::common::Result<T>, tokio::task::JoinError>) -> Result<T, Failure> {
    match joined {
        Ok(result) => Ok(result?),
        Err(e) if e.is_panic() => Err(Failure::Statement(DataFusionError::External(Box::new(e)))),
        Err(_) => Err(Failure::Stopped(Stop::Interrupt)),
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        await_begun(COMMIT);
        if let Some(workers) = self.workers.take() {
            // Work that was cancelled ends at its next await; what does not end soon is left behind.
            workers.shutdown_timeout(Duration::from_secs(2));
        }
        self.context.store().directories().close();
    }
}
