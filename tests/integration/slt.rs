//! `.slt` files: those of `sql/tests` give the same answers in every mode of the engine, those of `sql/plans` show
//! plans. `UPDATE_SLT=1` writes what comes in place of what was expected.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use async_trait::async_trait;
use blockyard::prelude::*;
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
}

impl Mode {
    fn context(self) -> DataContext {
        match self {
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
    /// Statements of which something was spilled.
    spilling: Arc<AtomicUsize>,
}

#[async_trait]
impl AsyncDB for Session {
    type Error = DataFusionError;
    type ColumnType = Letter;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<Letter>, DataFusionError> {
        let dataset = self.context.sql(&sql.replace("__TEST_DIR__", &self.directory)).await?;
        let types: Vec<Letter> = dataset.schema().fields().iter().map(|field| Letter::of(field.data_type())).collect();
        let batches = dataset.take_all().await?;
        let spilled = !dataset.stats().contains("; spilled 0B,");
        self.spilling.fetch_add(usize::from(spilled), Relaxed);
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

/// Runs all files below a directory, and returns of how many statements something was spilled.
async fn run_all(below: &str, mode: Mode) -> usize {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(below);
    let files = slt_files(&root);
    assert!(files.len() >= 10, "only {} files under {}", files.len(), root.display());
    let updates = mode == Mode::Default && std::env::var_os("UPDATE_SLT").is_some();
    let (mut failures, spilling) = (Vec::new(), Arc::new(AtomicUsize::new(0)));
    for file in files {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap().to_owned();
        let mut runner = Runner::new(|| {
            let (directory, spilling) = (path.clone(), Arc::clone(&spilling));
            async move { Ok(Session { context: mode.context(), directory, spilling }) }
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
    spilling.load(Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slt_files_pass_by_default() {
    run_all("sql/tests", Mode::Default).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slt_files_pass_when_everything_spills() {
    let spilling = run_all("sql/tests", Mode::Spilling).await;
    assert!(spilling >= 10, "only {spilling} statements spilled anything");
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
