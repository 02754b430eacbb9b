//! Where an iterator begins, where it is, and the tokens of that.

use std::sync::Arc;

use datafusion::common::{Result, internal_err, plan_err};
use datafusion::physical_plan::ExecutionPlan;

use crate::config::BlockyardOptions;
use crate::dataset::Dataset;
use crate::logical::{OTHER_PLAN, PipelineNode, node_of};
use crate::physical::{Inputs, Mark, Resumes, place_of};
use crate::token::{Place, Print, ResumeToken, VERSION, plan_fingerprint};

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
    /// Batches as they come.
    Batches,
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
            Self::Batches => true,
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
            return plan_err!("{OTHER_PLAN}");
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
        self.resume.as_ref().map_or(Ok(()), |token| Inputs::of(plan).check(token))
    }

    /// The same, with what its plan says.
    pub(super) fn with_plan(mut self, dataset: &Dataset, plan: &Arc<dyn ExecutionPlan>) -> Result<Self> {
        let options = BlockyardOptions::from_config(dataset.state.config_options());
        let resumes = Resumes::of(&options, plan);
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
