use std::path::{Path, PathBuf};

use async_trait::async_trait;
use blockyard::prelude::*;
use datafusion::error::DataFusionError;
use sqllogictest::{AsyncDB, DBOutput, DefaultColumnType};

use crate::fixtures::{context_with, mib};

/// The engine modes, all of which must give the same answers.
#[derive(Debug, Clone, Copy)]
enum Mode {
    Default,
    /// Everything that can spill, does.
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

struct Session {
    context: DataContext,
    directory: String,
}

#[async_trait]
impl AsyncDB for Session {
    type Error = DataFusionError;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, DataFusionError> {
        let dataset = self.context.sql(&sql.replace("__TEST_DIR__", &self.directory)).await?;
        let columns = dataset.schema().fields().len();
        let batches = dataset.take_all().await?;
        if columns == 0 {
            return Ok(DBOutput::StatementComplete(0));
        }
        let text = |value: String| if value.is_empty() { "(empty)".to_owned() } else { value };
        let rows = batches.iter().flat_map(cells).map(|row| row.into_iter().map(text).collect()).collect();
        Ok(DBOutput::Rows { types: vec![DefaultColumnType::Any; columns], rows })
    }

    async fn shutdown(&mut self) {}
}

fn cells(batch: &datafusion::arrow::array::RecordBatch) -> Vec<Vec<String>> {
    use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
    let options = FormatOptions::default().with_null("NULL");
    let columns: Vec<_> =
        batch.columns().iter().map(|c| ArrayFormatter::try_new(c.as_ref(), &options).unwrap()).collect();
    (0..batch.num_rows()).map(|row| columns.iter().map(|c| c.value(row).to_string()).collect()).collect()
}

fn slt_files(directory: &Path) -> Vec<PathBuf> {
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

async fn run_all(mode: Mode) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/tests");
    let files = slt_files(&root);
    assert!(files.len() >= 10, "only {} files under {}", files.len(), root.display());
    let mut failures = Vec::new();
    for file in files {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap().to_owned();
        let mut runner = sqllogictest::Runner::new(|| {
            let session = Session { context: mode.context(), directory: path.clone() };
            async move { Ok(session) }
        });
        if let Err(e) = runner.run_file_async(&file).await {
            failures.push(e.display(false).to_string());
        }
    }
    assert!(failures.is_empty(), "{mode:?}: {} failed\n{}", failures.len(), failures.join("\n\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slt_files_pass_by_default() {
    run_all(Mode::Default).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slt_files_pass_when_everything_spills() {
    run_all(Mode::Spilling).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slt_files_pass_without_fusion() {
    run_all(Mode::FusionOff).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slt_files_pass_with_one_partition() {
    run_all(Mode::OnePartition).await;
}
