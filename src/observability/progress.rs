//! The lines of a progress display, in the shape of Ray's:
//!
//! ```text
//! Running query 3 for 12s. Active & requested resources: 4/8 CPU; memory 300MiB of 1GiB
//! - ReadParquet: Tasks: 2, 14/200 ended; 120000 rows
//! - MapBatches(f): Tasks: 4, 10/? ended [backpressured: DownstreamCapacity]; Actors: 2; Queued blocks: 7 (1.2GiB); ..
//! ```

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use datafusion::physical_plan::ExecutionPlan;

use super::Execution;
use crate::config::ByteSize;
use crate::physical::{MapSide, StageMetrics, as_task_plan, planned_blocks, ran_below};
use crate::runtime::{OpStatus, Wait};

/// Operators of DataFusion that are shown.
const OPERATORS: usize = 3;
/// Tasks before which nothing is said of one that takes longer than others.
const SAMPLES: usize = 10;
/// Deviations from the mean from which a task is said to hang.
const DEVIATIONS: f64 = 10.0;
/// From when on a stage is shown to be idle, and from when on that is worth a line of its own.
const IDLE: Duration = Duration::from_secs(10);
const STALLED: Duration = Duration::from_secs(60);
/// A task is not said to hang before this.
const SOON: Duration = Duration::from_secs(10);

/// How an execution stands: a line for all of it, a line for each stage, inputs first, and one for each task that seems
/// to hang.
pub(super) fn progress(execution: &Execution) -> Vec<String> {
    let ops: Vec<OpStatus> = execution.scheduler().map_or(Vec::new(), |scheduler| scheduler.statuses());
    let ops: Vec<OpStatus> = ops.into_iter().filter(|op| op.query == execution.query()).collect();
    let total = execution.scheduler().map_or(0, |scheduler| scheduler.total().milli_cpus);
    let active: u64 = ops.iter().map(|op| op.needs.milli_cpus * op.running as u64).sum();
    let cpus = |milli: u64| milli as f64 / 1000.0;
    let resources = if ops.is_empty() {
        String::new()
    } else {
        format!(" Active & requested resources: {}/{} CPU;", cpus(active), cpus(total))
    };
    let mut lines = vec![format!(
        "Running query {} for {}s.{resources} memory {} of {}",
        execution.query(),
        execution.elapsed().as_secs(),
        ByteSize(execution.used_bytes()),
        ByteSize(execution.limit_bytes())
    )];
    add(execution.plan(), &ops, &mut lines);
    if lines.len() == 1 {
        add_operators(execution.plan(), &mut lines);
    }
    lines
}

/// Where no stage of ours runs: the operators of DataFusion that have given most rows.
fn add_operators(plan: &Arc<dyn ExecutionPlan>, lines: &mut Vec<String>) {
    let mut rows = Vec::new();
    let mut plans = vec![plan];
    while let Some(plan) = plans.pop() {
        let given = plan.metrics().and_then(|metrics| metrics.output_rows()).unwrap_or(0);
        rows.push((given, plan.name().trim_end_matches("Exec")));
        plans.extend(plan.children());
    }
    rows.retain(|(given, _)| *given > 0);
    rows.sort_by_key(|(given, _)| std::cmp::Reverse(*given));
    lines.extend(rows.into_iter().take(OPERATORS).map(|(given, name)| format!("- {name}: {given} rows")));
}

fn add(plan: &Arc<dyn ExecutionPlan>, ops: &[OpStatus], lines: &mut Vec<String>) {
    for (_, child) in ran_below(plan.as_ref()) {
        add(&child, ops, lines);
    }
    let Some(stage) = as_task_plan(plan.as_ref()) else { return };
    if let Some(MapSide { name, stage, input, .. }) = stage.map_side() {
        stage_lines(&name, stage, planned_blocks(input), ops, lines);
    }
    if stage.works() {
        stage_lines(&stage.stage_name(), stage.stage(), stage.planned_blocks(), ops, lines);
    }
}

fn stage_lines(name: &str, stage: &StageMetrics, total: Option<usize>, ops: &[OpStatus], lines: &mut Vec<String>) {
    let (ended, running) = (stage.ended(), stage.running());
    let op = ops.iter().find(|op| op.name == name);
    if ended.count() == 0 && running.is_empty() && op.is_none() {
        return;
    }
    let total = total.map_or("?".to_owned(), |total| total.to_string());
    let mut line = format!("- {name}: Tasks: {}, {}/{total} ended", running.len(), ended.count());
    if let Some(op) = op {
        // Writing to a string cannot fail.
        let _written = match &op.wait {
            Some(Wait::Backpressure(policy)) => write!(line, " [backpressured: {policy}]"),
            Some(wait) if op.running == 0 => write!(line, " [{wait}]"),
            _ => Ok(()),
        };
        if op.idle >= IDLE {
            let _written = write!(line, " idle for {}s", op.idle.as_secs());
        }
        if let Some(actors) = op.actors {
            let _written = write!(line, "; Actors: {}", actors.ready);
            if actors.pending > 0 {
                let _written = write!(line, " (and {} being built)", actors.pending);
            }
        }
        let queued = ByteSize(op.queued_bytes as usize);
        let _written = write!(line, "; Queued blocks: {} ({queued})", op.queued_blocks);
        let _written = write!(line, "; Resources: {}", op.needs.times(op.running as u64));
    }
    let _written = write!(line, "; {} rows", stage.rows());
    lines.push(line);
    lines.extend(op.and_then(|op| stalls(name, op.idle, op.wait.as_ref())));
    for (task, since) in running {
        if let Some(mean) = hangs(ended.count(), ended.wall_seconds(), since.elapsed()) {
            let seconds = since.elapsed().as_secs();
            lines.push(format!("  ! task {task} of {name} runs for {seconds}s; others took {mean:.1}s on average"));
        }
    }
}

/// What is said of a stage that has run nothing for long.
fn stalls(name: &str, idle: Duration, wait: Option<&Wait>) -> Option<String> {
    let why = wait.map_or("nothing to do".to_owned(), ToString::to_string);
    (idle >= STALLED).then(|| format!("  ! {name} has run nothing for {}s: {why}", idle.as_secs()))
}

/// The mean of what other tasks took, if one that runs for so long takes much longer.
fn hangs(others: usize, (mean, deviation): (f64, f64), runs_for: Duration) -> Option<f64> {
    if others < SAMPLES || runs_for < SOON {
        return None;
    }
    (runs_for.as_secs_f64() > mean + DEVIATIONS * deviation).then_some(mean)
}

impl Execution {
    /// The lines of a progress display.
    pub(crate) fn progress(&self) -> Vec<String> {
        progress(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_that_runs_nothing_for_a_minute_says_why() {
        let wait = Wait::Resources("license".to_owned());
        assert_eq!(stalls("MapBatches(f)", Duration::from_secs(59), Some(&wait)), None);
        let said = stalls("MapBatches(f)", Duration::from_secs(61), Some(&wait));
        assert_eq!(said.as_deref(), Some("  ! MapBatches(f) has run nothing for 61s: waiting for license"));
    }

    #[test]
    fn a_task_hangs_that_takes_much_longer_than_others() {
        let others = (1.0, 0.1);
        assert_eq!(hangs(10, others, Duration::from_secs(9)), None, "everything may take a moment");
        assert_eq!(hangs(10, others, Duration::from_secs(11)), Some(1.0));
        assert_eq!(hangs(9, others, Duration::from_secs(100)), None, "too few to compare with");
        assert_eq!(hangs(20, (9.5, 5.8), Duration::from_secs(60)), None, "others differ as much");
    }
}
