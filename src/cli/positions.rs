//! Results that go on where another call of the tool was: `--resume` and `--save-token`.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use futures::{Stream, StreamExt};

use super::arguments::{Format, Options};
use super::destination::Destination;
use crate::{Batches, Dataset, IterOptions, ResumeToken};

/// How the batches of a result are cut, where they begin, and where it is said how far they are.
#[derive(Debug, Clone)]
pub(super) struct Positions {
    batch_size: Option<usize>,
    resume: Option<ResumeToken>,
    save: Option<PathBuf>,
}

impl Positions {
    /// What the options ask for, if they ask for any of that.
    pub(super) fn new(options: &Options, destination: &Destination) -> std::result::Result<Option<Self>, String> {
        if options.batch_size.is_none() && options.resume.is_none() && options.save_token.is_none() {
            return Ok(None);
        }
        let read = |path: &PathBuf| {
            let text = std::fs::read_to_string(path)
                .map_err(|e| format!("cannot read the token of '{}': {e}", path.display()))?;
            text.trim().parse::<ResumeToken>().map_err(|e| format!("'{}': {}", path.display(), e.strip_backtrace()))
        };
        let in_order = destination.format == Format::Arrow || destination.file.is_some();
        if options.save_token.is_some() && !in_order {
            return Err(
                "--save-token needs --format arrow, or --output FILE: what is written of other formats is not \
                        whole before its end"
                    .to_owned(),
            );
        }
        Ok(Some(Self {
            batch_size: options.batch_size.map(|rows| rows as usize),
            resume: options.resume.as_ref().map(read).transpose()?,
            save: options.save_token.clone(),
        }))
    }

    /// Whether they are those of one result.
    pub(super) fn is_of_one(&self) -> bool {
        self.resume.is_some() || self.save.is_some()
    }

    /// Where results begin, if not at their first row.
    pub(super) fn resume(&self) -> Option<&ResumeToken> {
        self.resume.as_ref()
    }

    /// The batches of a result.
    pub(super) async fn batches(positions: Option<Self>, dataset: Dataset) -> Result<Results> {
        let Some(Self { batch_size, resume, save }) = positions else {
            return Ok(Results::Plain(dataset.stream().await?));
        };
        let options = IterOptions { batch_size, resume, ..IterOptions::default() };
        Ok(Results::Positioned(dataset.iter_batches(options).await?, save))
    }
}

/// The batches of a result.
pub(super) enum Results {
    Plain(SendableRecordBatchStream),
    Positioned(Batches, Option<PathBuf>),
}

impl Results {
    /// Whether it is said in a file how far they are.
    pub(super) fn is_saved(&self) -> bool {
        matches!(self, Self::Positioned(_, Some(_)))
    }

    /// What is to be written behind the last batch, and where, when that has been written.
    pub(super) fn saved(&self) -> Result<Option<Saved>> {
        match self {
            Self::Positioned(batches, Some(path)) => {
                Ok(Some(Saved { path: path.clone(), text: batches.token()?.to_string() }))
            }
            _ => Ok(None),
        }
    }
}

impl Stream for Results {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut *self {
            Self::Plain(batches) => batches.poll_next_unpin(context),
            Self::Positioned(batches, _) => batches.poll_next_unpin(context),
        }
    }
}

/// A token on its way to a file.
#[derive(Debug)]
pub(super) struct Saved {
    path: PathBuf,
    text: String,
}

impl Saved {
    /// Writes it in place of the one before: a reader sees one or the other.
    pub(super) fn write(&self) -> Result<()> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let hidden = self.path.with_file_name(format!(".{name}.{}.partial", std::process::id()));
        let written = std::fs::write(&hidden, &self.text).and_then(|()| std::fs::rename(&hidden, &self.path));
        written.map_err(|e| {
            let _removed = std::fs::remove_file(&hidden);
            exec_datafusion_err!("cannot save the token to '{}': {e}", Path::display(&self.path))
        })
    }
}
