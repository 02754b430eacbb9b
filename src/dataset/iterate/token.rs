//! [`ResumeToken`]: where an iterator is.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result, internal_err, plan_datafusion_err, plan_err};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use serde::{Deserialize, Serialize};

use crate::config::{BlockyardOptions, ByteSize};
use crate::dataset::Dataset;
use crate::logical::{PipelineNode, node_of};
use crate::physical::{Inputs, Mark, Place, place_of, seeks, text_fingerprint, unsteady};

/// The version of tokens that is written and read.
const VERSION: u64 = 1;

/// A position behind a batch, as a line of JSON of at most 512 bytes, and 32 more for each source beyond the first. It
/// says of which plan and files it is, and an iterator over others does not take it. `docs/reference/resume_token.md`
/// has its fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeToken {
    version: u64,
    plan: Print,
    files: Print,
    num_files: u64,
    bytes: u64,
    epoch: u64,
    rows: u64,
    cpus: usize,
    /// How many tasks the reads had, all together.
    tasks: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shuffle_seed: Option<u64>,
    place: Place,
}

/// A fingerprint, in JSON as text: not all readers have numbers of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Print(u64);

impl Serialize for Print {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:016x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Print {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        u64::from_str_radix(&text, 16).map(Self).map_err(serde::de::Error::custom)
    }
}

impl ResumeToken {
    /// The epoch in which it was taken.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Rows of the epoch that were handed out before.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn shuffle_seed(&self) -> Option<u64> {
        self.shuffle_seed
    }
}

impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for ResumeToken {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u64,
        }
        let parse = |e: serde_json::Error| plan_datafusion_err!("this is not a resume token: {e}");
        let Versioned { version } = serde_json::from_str(text).map_err(parse)?;
        if version != VERSION {
            return plan_err!("the resume token has version {version}, and this program reads version {VERSION}");
        }
        serde_json::from_str(text).map_err(parse)
    }
}

/// How an iterator comes to the position of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resumes {
    /// It begins there: at most a read task of each source is read again, and what a local shuffle holds.
    Seeks,
    /// It reads its input again from the start, since the operator needs all of it, and passes over what was handed
    /// out.
    Replays {
        /// The name of the operator.
        operator: String,
    },
    /// Not at all: rows may come otherwise when the dataset runs again.
    DoesNot {
        /// The name of the operator, or the option, that is the reason.
        operator: String,
        /// What helps.
        remedy: String,
    },
}

impl Resumes {
    pub(super) fn of(dataset: &Dataset, plan: &Arc<dyn ExecutionPlan>) -> Self {
        let options = BlockyardOptions::from_config(dataset.state.config_options());
        let does_not =
            |operator: &str, remedy: &str| Self::DoesNot { operator: operator.into(), remedy: remedy.into() };
        if !options.preserve_order {
            return does_not("blockyard.preserve_order = false", "set it to true");
        }
        if options.max_errored_blocks.allows_any() {
            return does_not("blockyard.max_errored_blocks", "set it to 0: which tasks fail may change");
        }
        if let Some(unsteady) = unsteady(plan) {
            return does_not(&unsteady.operator, unsteady.remedy);
        }
        match seeks(plan) {
            Ok(()) => Self::Seeks,
            Err(operator) => Self::Replays { operator },
        }
    }
}

impl fmt::Display for Resumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seeks => f.write_str("seeks"),
            Self::Replays { operator } => write!(f, "replays: {operator} needs all of its input"),
            Self::DoesNot { operator, remedy } => write!(f, "does not, because of {operator}: {remedy}"),
        }
    }
}

/// Where an iterator stands behind a batch.
#[derive(Debug, Clone)]
pub(in crate::dataset) struct Position {
    /// The plan that gave the batch.
    pub(super) plan: Arc<dyn ExecutionPlan>,
    /// Where the row behind the batch stands.
    pub(super) mark: Mark,
    /// Rows of the epoch up to there.
    pub(super) rows: u64,
}

/// What no batch has rows of two of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dataset) enum Apart {
    Nothing,
    /// Epochs of a pipeline.
    Epochs,
    /// Windows of a pipeline.
    Windows,
}

impl Apart {
    /// Whether a row is not in the same part as the one before.
    pub(super) fn parts(self, before: &Mark, row: &Mark) -> bool {
        match self {
            Self::Nothing => false,
            Self::Epochs => before.id.task_of_source() != row.id.task_of_source(),
            Self::Windows => before.id != row.id,
        }
    }

    /// As [`Apart::parts`], of the rows behind which positions are.
    pub(in crate::dataset) fn parts_positions(self, before: &Position, row: &Position) -> bool {
        self.parts(&before.mark, &row.mark)
    }
}

/// Of what an iterator is, and where it begins.
#[derive(Debug)]
pub(in crate::dataset) struct Origin {
    plan: u64,
    epoch: u64,
    cpus: usize,
    shuffle_seed: Option<u64>,
    resume: Option<ResumeToken>,
    place: Place,
    is_pipeline: bool,
    /// What is known when the plan has been made.
    planned: Option<(Inputs, Resumes)>,
}

impl Origin {
    /// That of an epoch of `dataset`, which goes on at a token of it.
    pub(super) fn of(
        dataset: &Dataset,
        epoch: u64,
        shuffle_seed: Option<u64>,
        resume: Option<&ResumeToken>,
    ) -> Result<Self> {
        let plan = plan_fingerprint(&dataset.plan);
        let options = BlockyardOptions::from_config(dataset.state.config_options());
        if resume.is_some_and(|token| token.plan.0 != plan) {
            return plan_err!(
                "the resume token is of another plan: other steps, options or seeds. Seeds that are not said are drawn \
                 anew in each program"
            );
        }
        let cpus = resume.map_or(options.num_cpus, |token| token.cpus);
        let place = resume.map(|token| token.place.clone()).unwrap_or_default();
        let is_pipeline = node_of::<PipelineNode>(&dataset.plan).is_some();
        Ok(Self { plan, epoch, cpus, shuffle_seed, resume: resume.cloned(), place, is_pipeline, planned: None })
    }

    /// The CPUs by which reads are cut into tasks.
    pub(super) fn cpus(&self) -> usize {
        self.cpus
    }

    /// The epoch in which rows at a position are, and the window of it where they are those of a pipeline.
    pub(in crate::dataset) fn epoch_and_window(&self, position: Option<&Position>) -> (u64, Option<u64>) {
        match position.filter(|_| self.is_pipeline).and_then(|position| position.mark.id.out_of()) {
            Some((epoch, rest)) => (u64::from(epoch), Some(rest.task_of_source() as u64)),
            None => (self.epoch, None),
        }
    }

    /// Where it begins.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Rows of the epoch that were handed out before.
    pub(super) fn rows_before(&self) -> u64 {
        self.resume.as_ref().map_or(0, |token| token.rows)
    }

    /// Fails where the token is not one of this plan with these files.
    pub(super) fn check(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<()> {
        let Some(token) = &self.resume else { return Ok(()) };
        let now = Inputs::of(plan);
        if now.fingerprint != token.files.0 {
            if (now.files, now.bytes) == (token.num_files, token.bytes) {
                return plan_err!(
                    "what the dataset reads has changed since the resume token was taken: there are as many files of as \
                     many bytes, with other contents or in another order, or another source has other rows"
                );
            }
            return plan_err!(
                "files have changed since the resume token was taken: {} files with {} then, {} with {} now",
                token.num_files,
                ByteSize(token.bytes as usize),
                now.files,
                ByteSize(now.bytes as usize)
            );
        }
        let tasks: u64 = now.tasks.iter().sum();
        if tasks != token.tasks {
            return plan_err!(
                "the resume token is of {} read tasks, and with the settings of now there are {tasks}",
                token.tasks
            );
        }
        Ok(())
    }

    /// The same, with what its plan says.
    pub(super) fn with_plan(mut self, dataset: &Dataset, plan: &Arc<dyn ExecutionPlan>) -> Result<Self> {
        let resumes = Resumes::of(dataset, plan);
        if let (Some(_), Resumes::DoesNot { .. }) = (&self.resume, &resumes) {
            return plan_err!("the dataset cannot go on at a resume token: it {resumes}");
        }
        self.planned = Some((Inputs::of(plan), resumes));
        Ok(self)
    }

    /// The token of a position; `None` is where it began.
    pub(in crate::dataset) fn token(&self, position: Option<&Position>) -> Result<ResumeToken> {
        let Some((inputs, resumes)) = &self.planned else {
            return plan_err!("there is no plan to take a resume token of");
        };
        if let Resumes::DoesNot { .. } = resumes {
            return plan_err!("there is no resume token of this dataset: it {resumes}");
        }
        let (place, rows) = match position {
            Some(Position { plan, mark, rows }) => match place_of(plan, mark) {
                Some(place) => (place, *rows),
                None => return internal_err!("nothing is known of where row {} of task {} stands", mark.row, mark.id),
            },
            None => (self.place.clone(), self.rows_before()),
        };
        Ok(ResumeToken {
            version: VERSION,
            plan: Print(self.plan),
            files: Print(inputs.fingerprint),
            num_files: inputs.files,
            bytes: inputs.bytes,
            epoch: self.epoch,
            rows,
            cpus: self.cpus,
            tasks: inputs.tasks.iter().sum(),
            shuffle_seed: self.shuffle_seed,
            place,
        })
    }
}

/// Of all that a plan says of itself, its columns and seeds included.
fn plan_fingerprint(plan: &LogicalPlan) -> u64 {
    text_fingerprint(&plan.display_indent_schema().to_string())
}
