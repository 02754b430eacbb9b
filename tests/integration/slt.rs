//! `.slt` files: those of `sql/tests` give the same answers in every mode of the engine, those of `sql/plans` show
//! plans. `UPDATE_SLT=1` writes what comes in place of what was expected.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use async_trait::async_trait;
use blockyard::prelude::*;
use blockyard::{ExecutorOptions, ExecutorServer};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::DataType;
use datafusion::error::DataFusionError;
use sqllogictest::{AsyncDB, ColumnType, DBOutput, Runner, default_normalizer, default_validator};

use crate::fixtures::{context_with, mib};

/// The engine modes, all of which must give the same answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Default,
    /// What needs more than a little memory spills.
    Spilling,
    FusionOff,
    OnePartition,
    /// Stages run in other sessions, which executors have.
    Cluster,
}

impl Mode {
    fn context(self, executors: &str) -> DataContext {
        match self {
            Self::Cluster => context_with(2, |o| {
                o.cluster = executors.to_owned();
                o.cluster_exchange_min_rows = 0;
            }),
            Self::Default => context_with(2, |_| {}),
            Self::Spilling => context_with(2, |o| o.memory_limit = mib(32)),
            Self::FusionOff => context_with(2, |o| {
                o.optimize_fuse_stages = false;
                o.optimize_fuse_read_stages = false;
                o.optimize_fuse_shuffle_stages = false;
                o.optimize_reorder_stages = false;
            }),
            Self::OnePartition => context_with(1, |_| {}),
        }
    }
}

/// The type of a column by a letter, as DataFusion's own files have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Letter(char);

impl ColumnType for Letter {
    fn from_char(letter: char) -> Option<Self> {
        "BDIPRT?".contains(letter).then_some(Self(letter))
    }

    fn to_char(&self) -> char {
        self.0
    }
}

impl Letter {
    fn of(data_type: &DataType) -> Self {
        Self(match data_type {
            DataType::Boolean => 'B',
            DataType::Date32 | DataType::Date64 => 'D',
            DataType::Timestamp(..) | DataType::Time32(_) | DataType::Time64(_) => 'P',
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => 'T',
            other if other.is_integer() => 'I',
            other if other.is_numeric() => 'R',
            DataType::Dictionary(_, values) => Self::of(values).0,
            _ => '?',
        })
    }
}

struct Session {
    context: DataContext,
    directory: String,
    seen: Arc<Seen>,
}

/// How many statements did something.
#[derive(Debug, Default)]
struct Seen {
    spilled: AtomicUsize,
    ran_elsewhere: AtomicUsize,
}

#[async_trait]
impl AsyncDB for Session {
    type Error = DataFusionError;
    type ColumnType = Letter;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<Letter>, DataFusionError> {
        let dataset = self.context.sql(&sql.replace("__TEST_DIR__", &self.directory)).await?;
        let types: Vec<Letter> = dataset.schema().fields().iter().map(|field| Letter::of(field.data_type())).collect();
        let batches = dataset.take_all().await?;
        let stats = dataset.stats();
        self.seen.spilled.fetch_add(usize::from(!stats.contains("; spilled 0B,")), Relaxed);
        self.seen.ran_elsewhere.fetch_add(usize::from(stats.contains("Remote(")), Relaxed);
        if types.is_empty() {
            return Ok(DBOutput::StatementComplete(0));
        }
        let rows = batches.iter().flat_map(cells).flat_map(|row| self.lines(row)).collect();
        Ok(DBOutput::Rows { types, rows })
    }

    async fn shutdown(&mut self) {}
}

impl Session {
    /// A row as it is compared. A plan is as many rows as it has lines, with a dash for each space before them.
    fn lines(&self, row: Vec<String>) -> Vec<Vec<String>> {
        let text = |value: &str| if value.is_empty() { "(empty)".to_owned() } else { value.to_owned() };
        match row.as_slice() {
            [kind, plan] if kind.ends_with("plan") => {
                let plan = plan.replace(self.directory.trim_start_matches('/'), "__TEST_DIR__");
                let lines = plan.trim_end().lines().enumerate().map(|(number, line)| {
                    let rest = line.trim_start();
                    let line = format!("{:02}){}{rest}", number + 1, "-".repeat(line.len() - rest.len()));
                    if number == 0 { vec![kind.clone(), line] } else { vec![line] }
                });
                lines.collect()
            }
            _ => vec![row.iter().map(|value| text(value)).collect()],
        }
    }
}

fn cells(batch: &RecordBatch) -> Vec<Vec<String>> {
    use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
    let options = FormatOptions::default().with_null("NULL");
    let columns: Vec<_> =
        batch.columns().iter().map(|c| ArrayFormatter::try_new(c.as_ref(), &options).unwrap()).collect();
    (0..batch.num_rows()).map(|row| columns.iter().map(|c| c.value(row).to_string()).collect()).collect()
}

/// Whether the types are those that were said; a question mark is any.
#[expect(clippy::ptr_arg, reason = "the runner asks for this type")]
fn same_types(found: &Vec<Letter>, expected: &Vec<Letter>) -> bool {
    let same = |(found, expected): (&Letter, &Letter)| *expected == Letter('?') || found == expected;
    found.len() == expected.len() && found.iter().zip(expected).all(same)
}

pub(crate) fn slt_files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(slt_files(&path));
        } else if path.extension().is_some_and(|e| e == "slt") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Two executors with a thread and little memory each, and where they are.
async fn executors(directory: &Path) -> (Vec<ExecutorServer>, String) {
    let (mut servers, mut addresses) = (Vec::new(), Vec::new());
    for number in 0..2 {
        let context = context_with(1, |o| o.memory_limit = mib(128));
        let listen = format!("unix:{}/{number}.sock", directory.display());
        let server = ExecutorServer::bind(&context, ExecutorOptions { listen, ..Default::default() }).await.unwrap();
        addresses.push(server.address());
        servers.push(server);
    }
    (servers, addresses.join(","))
}

/// Runs all files below a directory.
async fn run_all(below: &str, mode: Mode) -> Arc<Seen> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(below);
    let files = slt_files(&root);
    assert!(files.len() >= 10, "only {} files under {}", files.len(), root.display());
    let updates = mode == Mode::Default && std::env::var_os("UPDATE_SLT").is_some();
    let (mut failures, seen) = (Vec::new(), Arc::<Seen>::default());
    let sockets = tempfile::tempdir().unwrap();
    let (_servers, executors) = match mode {
        Mode::Cluster => executors(sockets.path()).await,
        _ => (Vec::new(), String::new()),
    };
    for file in files {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap().to_owned();
        let mut runner = Runner::new(|| {
            let (directory, seen, context) = (path.clone(), Arc::clone(&seen), mode.context(&executors));
            async move { Ok(Session { context, directory, seen }) }
        });
        runner.with_column_validator(same_types);
        if updates {
            let update = runner.update_test_file(&file, " ", default_validator, default_normalizer, same_types);
            update.await.unwrap();
        } else if let Err(e) = runner.run_file_async(&file).await {
            failures.push(e.display(false).to_string());
        }
    }
    assert!(failures.is_empty(), "{mode:?}: {} failed\n{}", failures.len(), failures.join("\n\n"));
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slt_files_pass_by_default() {
    run_all("sql/tests", Mode::Default).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slt_files_pass_when_everything_spills() {
    let spilled = run_all("sql/tests", Mode::Spilling).await.spilled.load(Relaxed);
    assert!(spilled >= 10, "only {spilled} statements spilled anything");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slt_files_pass_on_executors() {
    let ran_elsewhere = run_all("sql/tests", Mode::Cluster).await.ran_elsewhere.load(Relaxed);
    assert!(ran_elsewhere >= 400, "only {ran_elsewhere} statements ran on executors");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slt_files_pass_without_fusion() {
    run_all("sql/tests", Mode::FusionOff).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slt_files_pass_with_one_partition() {
    run_all("sql/tests", Mode::OnePartition).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_are_as_they_were() {
    run_all("sql/plans", Mode::Default).await;
}
