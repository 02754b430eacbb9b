//! What a plan reads, by which places in it are told to be still the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::common::{Result, plan_err};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, displayable};

use crate::block::mix;
use crate::config::ByteSize;
use crate::physical::operator::{Operator, PlanExt};
use crate::physical::tasks::as_task_plan;
use crate::token::{ResumeToken, text_fingerprint};

/// The reads of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Inputs {
    /// How many files there are, and their bytes.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Of the names, sizes and times of the files in their order, and of what other sources say of themselves.
    pub(crate) fingerprint: u64,
    /// How many tasks each read has.
    pub(crate) tasks: Vec<u64>,
}

impl Inputs {
    /// Those of `plan`.
    pub(crate) fn of(plan: &Arc<dyn ExecutionPlan>) -> Self {
        let mut inputs = Self::default();
        let mut files = BTreeMap::new();
        inputs.collect(plan, &mut files);
        inputs.files = files.len() as u64;
        inputs.bytes = files.values().sum();
        inputs
    }

    fn collect(&mut self, plan: &Arc<dyn ExecutionPlan>, files: &mut BTreeMap<String, u64>) {
        if !plan.as_operator().is_some_and(Operator::is_read) {
            return plan.children().into_iter().for_each(|child| self.collect(child, files));
        }
        let read = as_task_plan(plan.as_ref());
        self.tasks.push(read.and_then(|read| read.planned_blocks()).unwrap_or(0) as u64);
        let mut is_of_files = false;
        for file in read.and_then(|read| read.files()).iter().flat_map(|files| files.all()) {
            is_of_files = true;
            let path = file.location.to_string();
            self.add(mix(text_fingerprint(&path) ^ mix(file.size)) ^ file.last_modified.timestamp() as u64);
            files.insert(path, file.size);
        }
        if !is_of_files {
            // How many rows there are tells a range from a longer one.
            let known = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new());
            let rows = known.ok().and_then(|known| known.num_rows.get_value().copied());
            self.add(rows.map_or(0, |rows| rows as u64 + 1));
            for source in plan.children() {
                self.add(text_fingerprint(&displayable(source.as_ref()).indent(false).to_string()));
            }
        }
    }

    /// Fails where a token is of other files, or of files that have changed.
    pub(crate) fn check(&self, token: &ResumeToken) -> Result<()> {
        if self.fingerprint != token.files.0 {
            if (self.files, self.bytes) == (token.num_files, token.bytes) {
                return plan_err!(
                    "what the dataset reads has changed since the resume token was taken: there are as many files of as \
                     many bytes, with other contents or in another order, or another source has other rows"
                );
            }
            return plan_err!(
                "files have changed since the resume token was taken: {} files with {} then, {} with {} now",
                token.num_files,
                ByteSize(token.bytes as usize),
                self.files,
                ByteSize(self.bytes as usize)
            );
        }
        let tasks: u64 = self.tasks.iter().sum();
        if tasks != token.tasks {
            return plan_err!(
                "the resume token is of {} read tasks, and with the settings of now there are {tasks}",
                token.tasks
            );
        }
        Ok(())
    }

    fn add(&mut self, print: u64) {
        self.fingerprint = mix(self.fingerprint ^ mix(print));
    }
}
