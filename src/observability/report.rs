//! The stats report, in the shape of Ray's:
//!
//! ```text
//! Stage 1 ReadParquet->MapBatches(f): 8/8 blocks executed in 1.21s
//! * Tasks: 8
//! * Wall time: 103ms min, 180ms max, 140ms mean, 1.12s total
//! * CPU time: 101ms min, 171ms max, 135ms mean, 1.08s total
//! * Output num rows per block: 100 min, 120 max, 112 mean, 900 total
//! * Output size per block: 1.0MiB min, 1.2MiB max, 1.1MiB mean, 8.8MiB total
//! ```

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricValue;

use super::Execution;
use super::bottleneck::bottleneck;
use crate::config::ByteSize;
use crate::physical::{
    FailureLog, MapSide, Operator, PlanExt, Spread, StageMetrics, TaskRecord, TaskSummary, as_task_plan, ran_below,
};
use crate::store::Owner;

/// The report of an execution, up to now.
pub(super) fn report(execution: &Execution) -> String {
    let mut stages = Vec::new();
    collect(execution.plan().as_ref(), &mut stages);
    let mut text = String::new();
    let mut number = 0;
    for stage in &stages {
        number += usize::from(!matches!(stage, Entry::Remark(_)));
        // Writing to a string cannot fail.
        let _written = stage.write(number, &mut text);
    }
    // Operators of DataFusion spill by themselves.
    let operators: usize = stages.iter().map(Entry::spilled_by_operator).sum();
    let _written = writeln!(
        text,
        "Dataset: {} in total, of which {} for the consumer; memory {} peak of {}; spilled {}, restored {}",
        seconds(execution.elapsed()),
        seconds(execution.untaken()),
        ByteSize(execution.peak_bytes()),
        ByteSize(execution.limit_bytes()),
        ByteSize(execution.spilled_bytes() + operators),
        ByteSize(execution.restored_bytes())
    );
    if let Some(before) = execution.before() {
        let _written = writeln!(
            text,
            "Planned twice: the hash table of a join, or the first rows of a sort, did not fit into memory after {}; with \
             blockyard.prefer_spilling_joins and blockyard.prefer_spilling_sorts that is not tried",
            seconds(before)
        );
    }
    let sentence = bottleneck(execution.plan().as_ref(), execution.elapsed(), execution.untaken(), execution.threads());
    let _written = writeln!(text, "Bottleneck: {sentence}");
    text
}

/// The stages of an execution by their names, inputs first.
pub(super) fn stages(execution: &Execution) -> Vec<(String, StageMetrics)> {
    let mut entries = Vec::new();
    collect(execution.plan().as_ref(), &mut entries);
    let stage = |entry| match entry {
        Entry::Stage { name, metrics, .. } => Some((name, metrics)),
        Entry::Operator { .. } | Entry::Remark(_) => None,
    };
    entries.into_iter().filter_map(stage).collect()
}

/// Tasks of all stages that ended.
pub(super) fn finished_tasks(execution: &Execution) -> usize {
    stages(execution).iter().map(|(_, stage)| stage.ended().count()).sum()
}

/// One line on how an execution stands.
pub(super) fn status(execution: &Execution) -> String {
    let mut stages = Vec::new();
    collect(execution.plan().as_ref(), &mut stages);
    let last = stages.iter().rev().find_map(|entry| match entry {
        Entry::Stage { name, metrics, .. } => Some((name, metrics.ended())),
        Entry::Operator { .. } | Entry::Remark(_) => None,
    });
    let memory = format!("memory {} of {}", ByteSize(execution.used_bytes()), ByteSize(execution.limit_bytes()));
    match last {
        Some((name, tasks)) => {
            let rows = tasks.sum().output.num_rows;
            format!("{name}: {} tasks done, {rows} rows; {memory}", tasks.count())
        }
        None => memory,
    }
}

/// A stage of ours, an operator of DataFusion between stages, or what there is to say of those that follow.
enum Entry {
    Stage { name: String, owner: Arc<Owner>, metrics: StageMetrics },
    Operator { name: String, rows: Option<usize>, time: Duration, spilled: usize },
    Remark(String),
}

/// Entries in the order of the data: inputs first.
fn collect(plan: &dyn ExecutionPlan, entries: &mut Vec<Entry>) {
    for (name, plan) in ran_below(plan) {
        entries.extend(name.map(|name| Entry::Remark(format!("== {name} =="))));
        collect(plan.as_ref(), entries);
    }
    let remarks = plan.as_operator().map(Operator::remarks).unwrap_or_default();
    entries.extend(remarks.into_iter().map(Entry::Remark));
    let Some(stage) = as_task_plan(plan) else { return add_operator(plan, entries) };
    if let Some(map_side) = stage.map_side() {
        add_map_side(map_side, entries);
    }
    add_stage(stage.stage_name(), stage.stage(), stage.stage().owner(), entries);
}

/// The stage that feeds an exchange: what ran below it in the same tasks is shown here and not on its own.
fn add_map_side(map_side: MapSide<'_>, entries: &mut Vec<Entry>) {
    let mut stage: &StageMetrics = map_side.stage;
    if let Some(input) = as_task_plan(map_side.input.as_ref()).filter(|_| map_side.is_fused)
        && stage.ended().count() == 0
    {
        stage = input.stage();
        if matches!(entries.last(), Some(Entry::Stage { .. })) {
            entries.pop();
        }
    }
    add_stage(map_side.name, stage, map_side.stage.owner(), entries);
}

fn add_stage(name: String, stage: &StageMetrics, owner: &Arc<Owner>, entries: &mut Vec<Entry>) {
    if stage.ended().count() > 0 || owner.put_blocks() > 0 || !stage.running().is_empty() {
        entries.push(Entry::Stage { name, owner: Arc::clone(owner), metrics: stage.clone() });
    }
}

fn add_operator(plan: &dyn ExecutionPlan, entries: &mut Vec<Entry>) {
    let Some(metrics) = plan.metrics() else {
        return;
    };
    let time = Duration::from_nanos(metrics.elapsed_compute().unwrap_or(0) as u64);
    let spilled = metrics
        .iter()
        .filter_map(|m| match m.value() {
            MetricValue::SpilledBytes(bytes) => Some(bytes.value()),
            _ => None,
        })
        .sum();
    let name = plan.name().trim_end_matches("Exec").to_owned();
    entries.push(Entry::Operator { name, rows: metrics.output_rows(), time, spilled });
}

impl Entry {
    fn spilled_by_operator(&self) -> usize {
        match self {
            Self::Operator { spilled, .. } => *spilled,
            Self::Stage { .. } | Self::Remark(_) => 0,
        }
    }

    fn write(&self, number: usize, text: &mut String) -> std::fmt::Result {
        match self {
            Self::Remark(remark) => writeln!(text, "{remark}"),
            Self::Operator { name, rows, time, spilled } => {
                write!(text, "Operator {number} {name}: {} compute", seconds(*time))?;
                if let Some(rows) = rows {
                    write!(text, ", {rows} rows")?;
                }
                if *spilled > 0 {
                    write!(text, ", spilled {}", ByteSize(*spilled))?;
                }
                writeln!(text)
            }
            Self::Stage { name, owner, metrics } => {
                let tasks = metrics.ended();
                // Blocks are formed only where a stage ends; else every task counts as one.
                let blocks = tasks.count().max(owner.put_blocks());
                writeln!(
                    text,
                    "Stage {number} {name}: {blocks}/{blocks} blocks executed in {}",
                    seconds(tasks.sum().wall)
                )?;
                writeln!(text, "* Tasks: {}", tasks.count())?;
                if tasks.count() > 0 {
                    let (walls, cpus) = (tasks.spread(|t| t.wall.as_secs_f64()), tasks.spread(|t| t.cpu.as_secs_f64()));
                    let rows = tasks.spread(|t| t.output.num_rows as f64);
                    let bytes = tasks.spread(|t| t.output.size_bytes as f64);
                    let time = |s: f64| seconds(Duration::from_secs_f64(s));
                    let size = |b: f64| ByteSize(b as usize).to_string();
                    let unit = if blocks == tasks.count() { "block" } else { "task" };
                    writeln!(text, "* Wall time: {}", shown(walls, time))?;
                    writeln!(text, "* CPU time: {}", shown(cpus, time))?;
                    writeln!(text, "* Output num rows per {unit}: {}", shown(rows, |n| format!("{n:.0}")))?;
                    writeln!(text, "* Output size per {unit}: {}", shown(bytes, size))?;
                }
                write_times(&tasks, owner, text)?;
                write_schedule(metrics, text)?;
                write_failures(&metrics.failures(), text)?;
                if owner.spilled_bytes() + owner.restored_bytes() > 0 {
                    let (spilled, restored) = (ByteSize(owner.spilled_bytes()), ByteSize(owner.restored_bytes()));
                    let (write, read) = (seconds(owner.spill_time()), seconds(owner.restore_time()));
                    let blocks = owner.spilled_blocks();
                    writeln!(text, "* Blocks spilled: {blocks} ({spilled} in {write}), restored {restored} in {read}")?;
                    let (clean, dirty) = (owner.clean_evictions(), owner.dirty_evictions());
                    let evicted = clean + dirty;
                    if let Some(hits) = (100 * clean).checked_div(evicted) {
                        writeln!(text, "* Blocks evicted: {evicted}, of which {hits}% had been written before")?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// What the time of the tasks went to, as far as that is a tenth of a millisecond.
fn write_times(tasks: &TaskSummary, owner: &Owner, text: &mut String) -> std::fmt::Result {
    let TaskRecord { wall, waited, unasked, .. } = *tasks.sum();
    let memory = owner.memory_wait();
    let classes = [
        ("waiting for input or IO", waited),
        ("waiting for memory", memory),
        ("spilling", owner.spill_time()),
        ("restoring", owner.restore_time()),
        ("not asked for more", unasked),
    ];
    write!(text, "* Time: running {}", seconds(wall.saturating_sub(waited)))?;
    let classes = classes.iter().filter(|(_, time)| time.as_micros() >= 100);
    classes.into_iter().try_for_each(|(class, time)| write!(text, ", {class} {}", seconds(*time)))?;
    writeln!(text)
}

/// What the scheduler has seen of a stage that it ran.
fn write_schedule(metrics: &StageMetrics, text: &mut String) -> std::fmt::Result {
    let Some(schedule) = metrics.schedule() else {
        return Ok(());
    };
    write!(text, "* Scheduling: at most {} tasks at once; running {}", schedule.max_running, seconds(schedule.ran))?;
    let waits = schedule.waited.iter().filter(|(_, time)| !time.is_zero());
    waits.into_iter().try_for_each(|(wait, time)| write!(text, ", {wait} {}", seconds(*time)))?;
    writeln!(text)?;
    let held_back: Vec<_> = schedule.held_back.iter().filter(|(_, time)| time.as_millis() > 0).collect();
    if held_back.is_empty() {
        return Ok(());
    }
    let parts: Vec<_> = held_back.iter().map(|(policy, time)| format!("{policy} {}", seconds(**time))).collect();
    writeln!(
        text,
        "* Backpressure: held back by {}; a smaller batch_size, more concurrency of the next operator, more memory for each \
         task, or smaller blocks (target_max_block_size) may help",
        parts.join(", ")
    )
}

/// Which failures an execution has tolerated, if any.
pub(super) fn failures(execution: &Execution) -> Option<String> {
    let lines = stages(execution).into_iter().filter_map(|(name, stage)| {
        let mut text = String::new();
        write_failures(&stage.failures(), &mut text).ok()?;
        let text = text.trim().strip_prefix("* Errors: ")?;
        Some(format!("{name}: {text}"))
    });
    Some(lines.collect::<Vec<_>>().join("\n")).filter(|text| !text.is_empty())
}

/// What went wrong without ending the query, if anything did.
fn write_failures(failures: &FailureLog, text: &mut String) -> std::fmt::Result {
    let counts = [
        (failures.failed_rows(), "rows failed"),
        (failures.errored_tasks(), "tasks gave up"),
        (failures.retries(), "calls or reads were tried again"),
    ];
    let parts: Vec<_> = counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    match failures.first() {
        Some(first) => writeln!(text, "* Errors: {}; the first: {first}", parts.join(", ")),
        None => Ok(()),
    }
}

fn shown(spread: Spread, show: impl Fn(f64) -> String) -> String {
    let Spread { min, max, mean, total } = spread;
    format!("{} min, {} max, {} mean, {} total", show(min), show(max), show(mean), show(total))
}

fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s >= 1.0 => format!("{s:.2}s"),
        s if s >= 0.001 => format!("{:.1}ms", s * 1e3),
        s => format!("{:.0}us", s * 1e6),
    }
}

impl Execution {
    /// Tasks that ended, rows that came out of the last stage, and memory.
    pub(crate) fn status(&self) -> String {
        status(self)
    }

    /// Which failures it has tolerated, a line for each stage.
    pub(crate) fn failures(&self) -> Option<String> {
        failures(self)
    }

    /// The stats report.
    pub(crate) fn report(&self) -> String {
        report(self)
    }
}
