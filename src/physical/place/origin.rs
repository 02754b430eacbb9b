//! What a plan reads, by which places in it are told to be still the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;

use crate::block::{TaskId, mix};
use crate::physical::operator::{Operator, PlanExt};
use crate::physical::tasks::as_task_plan;

/// The reads of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Inputs {
    /// How many files there are, and their bytes.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Of the names, sizes and times of the files.
    pub(crate) fingerprint: u64,
    /// How many tasks each read has.
    pub(crate) tasks: Vec<u64>,
}

impl Inputs {
    /// Those of `plan`.
    pub(crate) fn of(plan: &Arc<dyn ExecutionPlan>) -> Self {
        let (mut files, mut tasks) = (BTreeMap::new(), Vec::new());
        collect(plan, &mut files, &mut tasks);
        let print = |(path, (size, time)): (&String, &(u64, i64))| {
            let text = path.bytes().fold(0, |h, byte| mix(h ^ u64::from(byte)));
            mix(mix(text ^ mix(*size)) ^ *time as u64)
        };
        Self {
            files: files.len() as u64,
            bytes: files.values().map(|(size, _)| size).sum(),
            fingerprint: files.iter().map(print).fold(0, |h, file| mix(h ^ file)),
            tasks,
        }
    }
}

fn collect(plan: &Arc<dyn ExecutionPlan>, files: &mut BTreeMap<String, (u64, i64)>, tasks: &mut Vec<u64>) {
    if !plan.as_operator().is_some_and(Operator::is_read) {
        return plan.children().into_iter().for_each(|child| collect(child, files, tasks));
    }
    let read = as_task_plan(plan.as_ref());
    tasks.push(read.and_then(|read| read.planned_blocks()).unwrap_or(0) as u64);
    for file in read.and_then(|read| read.files()).iter().flat_map(|files| files.all()) {
        files.insert(file.location.to_string(), (file.size, file.last_modified.timestamp()));
    }
}

/// A number that depends on nothing but a text.
pub(crate) fn text_fingerprint(text: &str) -> u64 {
    TaskId::from(text.bytes().map(u32::from).collect::<Vec<_>>()).hash()
}
