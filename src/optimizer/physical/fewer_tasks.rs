//! Reads small row groups of local Parquet files in fewer tasks where nobody sees tasks: below joins, aggregates and
//! the repartitions of DataFusion, with nothing but filters and projections between, and what gathers or codes rows.
//!
//! A task opens its file, asks statistics and dictionaries and looks whether the file has changed, which takes as long
//! as decoding some ten thousand rows. The first tasks stay as they are: they are the ones that show how to read the
//! others (`late_materialization`), and begin before joins have told their keys. Behind them tasks become smaller
//! again, so that threads end at the same time.
//!
//! Correct because neighbours of one file are taken together, in their order. It comes behind the rules that look for
//! reads below stages. Only of files of this machine: a task that has given rows to a join cannot be tried again, and
//! elsewhere more of them are. Not with executors, which are told tasks by their numbers, not where tasks may give up,
//! and not where a call says how many there are to be.
//!
//! ```text
//! HashJoinExec                                   HashJoinExec
//!   ReadExec: ReadParquet, tasks=141      ->       ReadExec: ReadParquet, tasks=44
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use crate::config::BlockyardOptions;
use crate::physical::{CodeExec, GatherExec, IntoPlan, MapExec, PlanExt, ReadExec, is_join};

/// Tasks that stay as they are.
const FIRST_TASKS: usize = 8;
/// Bytes of the rows of a task that others may be added to.
const MAX_BYTES: usize = 4 << 20;
/// A task has this part of the rows that are left, at most, of each thread.
const PART_LEFT: usize = 4;

#[derive(Debug)]
pub(super) struct FewerTasks;

impl PhysicalOptimizerRule for FewerTasks {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let options = BlockyardOptions::from_config(config);
        let is_on = options.optimize_fewer_tasks && options.cluster.is_empty();
        if !is_on || options.max_errored_blocks.allows_any() {
            return Ok(plan);
        }
        let rewrite = |node: Arc<dyn ExecutionPlan>| {
            if !forgets_tasks(node.as_ref()) {
                return Ok(Transformed::no(node));
            }
            let children: Vec<_> = node.children().into_iter().map(in_fewer_tasks).collect::<Result<_>>()?;
            let is_other = children.iter().any(Option::is_some);
            let children = children.into_iter().zip(node.children());
            let children = children.map(|(new, old)| new.unwrap_or_else(|| Arc::clone(old))).collect();
            match is_other {
                true => Ok(Transformed::yes(replace_children_if_necessary(node, children)?)),
                false => Ok(Transformed::no(node)),
            }
        };
        plan.transform_up(rewrite).data()
    }

    fn name(&self) -> &str {
        "fewer_tasks"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Whether rows that an operator gives tell nothing of the tasks that its input is from.
fn forgets_tasks(plan: &dyn ExecutionPlan) -> bool {
    is_join(plan)
        || plan.is::<AggregateExec>()
        || plan.downcast_ref::<RepartitionExec>().is_some_and(|repartition| !repartition.preserve_order())
}

/// The plan over a read of fewer tasks, if it is one of a read below filters and projections.
fn in_fewer_tasks(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if let Some(read) = plan.operator::<ReadExec>() {
        let numbers = read.neighbours().and_then(|tasks| numbers(read.rows_bytes(), &tasks, read.streams()));
        let fewer = numbers.and_then(|numbers| read.in_fewer_tasks(&numbers));
        return Ok(fewer.map(IntoPlan::into_plan));
    }
    let of_rows = |map: &MapExec| {
        map.steps().iter().all(|step| (step.is_filter() || step.keeps_row_numbers()) && step.is_deterministic())
    };
    let is_between = plan.operator::<MapExec>().is_some_and(of_rows)
        || plan.is_operator::<GatherExec>()
        || plan.is_operator::<CodeExec>();
    let [input] = plan.children()[..] else { return Ok(None) };
    match in_fewer_tasks(input)?.filter(|_| is_between) {
        Some(input) => replace_children_if_necessary(Arc::clone(plan), vec![input]).map(Some),
        None => Ok(None),
    }
}

/// How many tasks become one each, by the bytes of the rows of each task and whether it may be put to the one before;
/// `None` where all stay as they are.
fn numbers(bytes: &[usize], follows: &[bool], threads: usize) -> Option<Vec<usize>> {
    let first = bytes.len().min(FIRST_TASKS);
    let mut numbers = vec![1; first];
    let mut at = first;
    while at < bytes.len() {
        let most = (bytes.len() - at).div_ceil(PART_LEFT * threads.max(1));
        let mut sum = bytes[at];
        let is_added = |task: &usize| {
            sum += bytes[*task];
            follows[*task] && sum <= MAX_BYTES
        };
        let number = 1 + (at + 1..bytes.len()).take(most - 1).take_while(is_added).count();
        numbers.push(number);
        at += number;
    }
    (numbers.len() < bytes.len()).then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of tasks of one file.
    fn of_a_file(bytes: &[usize]) -> Option<Vec<usize>> {
        numbers(bytes, &vec![true; bytes.len()], 2)
    }

    #[test]
    fn tasks_become_larger_and_smaller_again() {
        let numbers = of_a_file(&[1 << 19; 200]).unwrap();
        assert_eq!(numbers.iter().sum::<usize>(), 200);
        assert_eq!(numbers[..FIRST_TASKS], [1; FIRST_TASKS]);
        assert_eq!(numbers[FIRST_TASKS..FIRST_TASKS + 3], [8, 8, 8], "by bytes");
        assert!(numbers[FIRST_TASKS..].is_sorted_by(|one, next| one >= next));
        assert_eq!(numbers.last(), Some(&1));
        assert!(numbers.len() < 48, "{numbers:?}");
    }

    #[test]
    fn tasks_of_other_files_stay_apart() {
        let follows: Vec<bool> = (0..200).map(|task| task % 3 > 0).collect();
        let numbers = numbers(&[1; 200], &follows, 2).unwrap();
        assert_eq!(numbers.iter().sum::<usize>(), 200);
        assert_eq!(numbers[FIRST_TASKS..FIRST_TASKS + 3], [1, 3, 3]);
    }

    #[test]
    fn large_and_few_tasks_stay() {
        assert_eq!(of_a_file(&[MAX_BYTES; 100]), None);
        assert_eq!(of_a_file(&[1; FIRST_TASKS]), None);
        assert_eq!(of_a_file(&[1; FIRST_TASKS + 8]), None);
        assert_eq!(of_a_file(&[]), None);
    }
}
