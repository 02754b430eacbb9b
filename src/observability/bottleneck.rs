//! What a plan waited for most, and what would help: the last line of EXPLAIN ANALYZE and of the stats.

use std::time::Duration;

use datafusion::physical_plan::ExecutionPlan;

use crate::functions::Workers;
use crate::physical::{MapSide, PlanExt, StageMetrics, TaskPlan, as_task_plan, ran_below, write_time};
use crate::runtime::Wait;
use crate::store::Owner;

/// What the operators of a plan did.
#[derive(Debug, Default)]
struct Work {
    /// Names of operators with the time that their tasks ran, the time on a CPU, and the plan.
    operators: Vec<Operator>,
    /// Time in which blocks were written to disk and read back.
    disk: Duration,
    spilled_bytes: usize,
    /// Time in which tasks waited for memory, summed over threads.
    memory: Duration,
    /// Time in which rows waited for whoever takes the result.
    consumer: Duration,
}

impl Work {
    fn add_owner(&mut self, owner: &Owner) {
        self.disk += owner.spill_time() + owner.restore_time();
        self.spilled_bytes += owner.spilled_bytes();
        self.memory += owner.memory_wait();
    }
}

#[derive(Debug)]
struct Operator {
    name: String,
    wall: Duration,
    cpu: Duration,
    /// Tasks at once, where the user says how many, and for how long any ran.
    concurrency: Option<(usize, Duration)>,
    is_read: bool,
    is_function: bool,
}

/// The part of the time from which something is worth saying.
const MUCH: f64 = 0.3;
/// The part of its time that an operator is on a CPU from which it is said to compute.
const COMPUTES: f64 = 0.6;

/// The part of the time of all threads from which on they are what everybody waits for.
const BUSY: f64 = 0.75;

/// The part of the tasks that may run at once from which more of them would help.
const FULL: f64 = 0.8;
/// What takes less is not worth a word.
const SHORT: Duration = Duration::from_millis(20);

fn at_once(operator: &Operator, ran: Duration) -> f64 {
    operator.wall.as_secs_f64() / ran.as_secs_f64().max(1e-9)
}

/// One sentence on what took the time of a plan that ran for `elapsed` on `threads`. Its rows were there and nobody
/// took them for `untaken`.
pub(crate) fn bottleneck(plan: &dyn ExecutionPlan, elapsed: Duration, untaken: Duration, threads: usize) -> String {
    if elapsed < SHORT {
        return format!("nothing: it took {} ms", elapsed.as_millis());
    }
    let mut work = Work::default();
    add(plan, &mut work);
    work.consumer = work.consumer.max(untaken);
    sentence(&work, elapsed, threads)
}

fn sentence(work: &Work, elapsed: Duration, threads: usize) -> String {
    let total = elapsed.as_secs_f64().max(1e-9);
    let percent = |time: Duration| format!("{:.0} %", (100.0 * time.as_secs_f64() / total).min(100.0));
    if work.disk.as_secs_f64() / total > MUCH && work.spilled_bytes > 0 {
        return format!(
            "the disk: blocks were spilled and restored for {} of the time; a higher blockyard.memory_limit would help",
            percent(work.disk)
        );
    }
    if work.memory.as_secs_f64() / (total * threads.max(1) as f64) > MUCH {
        return format!(
            "memory: tasks waited for room for {} of the time; a higher blockyard.memory_limit or fewer tasks at once would help",
            percent(work.memory / threads.max(1) as u32)
        );
    }
    if work.consumer.as_secs_f64() / total > MUCH {
        return format!(
            "the consumer: blocks were ready and nobody took them for {} of the time; take them faster, or prefetch",
            percent(work.consumer)
        );
    }
    of_operators(work, total, threads, percent)
}

/// The operator that took most, and what would help it.
fn of_operators(work: &Work, total: f64, threads: usize, percent: impl Fn(Duration) -> String) -> String {
    let cpus: f64 = work.operators.iter().map(|operator| operator.cpu.as_secs_f64()).sum();
    let busy = cpus / (total * threads.max(1) as f64);
    // Where the threads are busy, who waits does so for a thread: what computes most is what holds up.
    let most = match busy > BUSY {
        true => work.operators.iter().max_by_key(|operator| operator.cpu),
        false => work.operators.iter().max_by_key(|operator| operator.wall),
    };
    let Some(most) = most else {
        return "nothing that was measured".to_owned();
    };
    let part = |operator: &Operator| if busy > BUSY { operator.cpu.as_secs_f64() } else { operator.wall.as_secs_f64() };
    let all: f64 = work.operators.iter().map(part).sum();
    let share = 100.0 * part(most) / all.max(1e-9);
    let name = &most.name;
    let computes = busy > BUSY || most.cpu.as_secs_f64() > COMPUTES * most.wall.as_secs_f64();
    match most.concurrency {
        Some((tasks, ran)) if !computes && at_once(most, ran) > FULL * tasks as f64 => {
            let at_once = at_once(most, ran);
            format!(
                "{name}: it ran for {} of the time, {at_once:.1} of at most {tasks} tasks at once, mostly waiting; a higher \
                 concurrency would help",
                percent(ran)
            )
        }
        _ if computes => {
            let busy = 100.0 * busy;
            let knob = if most.is_function { "a faster function or a larger batch_size" } else { "more CPUs" };
            format!(
                "{name}: {share:.0} % of the time of all operators, computing ({busy:.0} % of {threads} threads); {knob} would help"
            )
        }
        _ if most.is_read => {
            format!(
                "{name}: {share:.0} % of the time of all operators, mostly waiting for files; more threads or a higher \
                 override_num_blocks would help"
            )
        }
        _ if most.is_function && most.concurrency.is_none() => format!(
            "{name}: {share:.0} % of the time of all operators, mostly waiting; concurrency on it would let it wait for \
             several things at once"
        ),
        _ => format!("{name}: {share:.0} % of the time of all operators, mostly waiting for others or for the disk"),
    }
}

fn add(plan: &dyn ExecutionPlan, work: &mut Work) {
    // What was fused is part of this stage.
    let fused = as_task_plan(plan).is_some_and(TaskPlan::is_fused);
    for (_, child) in ran_below(plan).into_iter().filter(|(_, child)| !(fused && is_read(child.as_ref()))) {
        add(child.as_ref(), work);
    }
    if let Some(MapSide { name, stage, .. }) = as_task_plan(plan).and_then(TaskPlan::map_side) {
        work.add_owner(stage.owner());
        push(name, times_of(stage), None, plan, work);
    }
    match as_task_plan(plan) {
        Some(stage) => add_stage(plan, stage, work),
        None => {
            let metrics = plan.metrics();
            let cpu = metrics.as_ref().and_then(|metrics| metrics.elapsed_compute()).unwrap_or(0) as u64;
            let cpu = Duration::from_nanos(cpu);
            let wall = metrics.as_ref().and_then(write_time).unwrap_or(cpu);
            push(plan.name().trim_end_matches("Exec").to_owned(), (wall, cpu), None, plan, work);
        }
    }
}

fn is_read(plan: &dyn ExecutionPlan) -> bool {
    plan.as_operator().is_some_and(|operator| operator.is_read())
}

fn add_stage(plan: &dyn ExecutionPlan, stage: &dyn TaskPlan, work: &mut Work) {
    let owner = stage.stage().owner();
    work.add_owner(owner);
    if !stage.works() {
        return;
    }
    let schedule = stage.stage().schedule();
    if let Some(schedule) = &schedule
        && schedule.consumer.is_none()
    {
        work.consumer += schedule.waited.get(&Wait::Consumer).copied().unwrap_or_default();
    }
    let concurrency = schedule.map(|schedule| {
        let said = stage.compute().map(|compute| compute.workers);
        let most = match said {
            Some(Workers::Tasks(Some(n))) => n,
            Some(Workers::Actors(pool)) => pool.max.unwrap_or(schedule.max_running),
            _ => schedule.max_running,
        };
        (most.max(1), schedule.ran)
    });
    push(stage.stage_name(), times_of(stage.stage()), concurrency, plan, work);
}

/// For how long the tasks of a stage ran, and were on a CPU.
fn times_of(stage: &StageMetrics) -> (Duration, Duration) {
    let ended = stage.ended();
    (ended.sum().wall, ended.sum().cpu)
}

fn push(
    name: String,
    (wall, cpu): (Duration, Duration),
    concurrency: Option<(usize, Duration)>,
    plan: &dyn ExecutionPlan,
    work: &mut Work,
) {
    let is_function = name.contains("Map") && as_task_plan(plan).is_some_and(|stage| stage.compute().is_some());
    work.operators.push(Operator { name, wall, cpu, concurrency, is_read: is_read(plan), is_function });
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn seconds(n: f64) -> Duration {
        SECOND.mul_f64(n)
    }

    /// A function that ran for `wall` seconds in all tasks, `cpu` of them on a CPU.
    fn function(wall: f64, cpu: f64, concurrency: Option<(usize, Duration)>) -> Operator {
        let name = "MapBatches(f)".to_owned();
        Operator { name, wall: seconds(wall), cpu: seconds(cpu), concurrency, is_read: false, is_function: true }
    }

    fn after_a_second(operators: Vec<Operator>) -> String {
        sentence(&Work { operators, ..Default::default() }, SECOND, 2)
    }

    #[test]
    fn names_the_operator_and_what_would_help_it() {
        assert_eq!(
            after_a_second(vec![function(1.9, 0.1, Some((2, SECOND)))]),
            "MapBatches(f): it ran for 100 % of the time, 1.9 of at most 2 tasks at once, mostly waiting; a higher concurrency \
             would help"
        );
        assert_eq!(
            after_a_second(vec![function(1.9, 1.8, Some((2, SECOND)))]),
            "MapBatches(f): 100 % of the time of all operators, computing (90 % of 2 threads); a faster function or a larger \
             batch_size would help"
        );
        assert_eq!(
            after_a_second(vec![function(1.0, 0.1, Some((2, SECOND)))]),
            "MapBatches(f): 100 % of the time of all operators, mostly waiting for others or for the disk"
        );
        assert_eq!(
            after_a_second(vec![function(1.0, 0.1, None)]),
            "MapBatches(f): 100 % of the time of all operators, mostly waiting; concurrency on it would let it wait for several \
             things at once"
        );
        let read =
            |wall| Operator { name: "Read".to_owned(), is_read: true, is_function: false, ..function(wall, 0.0, None) };
        assert_eq!(
            after_a_second(vec![read(1.5), function(0.5, 0.5, None)]),
            "Read: 75 % of the time of all operators, mostly waiting for files; more threads or a higher override_num_blocks would \
             help"
        );
    }

    #[test]
    fn who_waits_while_all_threads_compute_holds_up_nobody() {
        let read = Operator { name: "Read".to_owned(), is_read: true, is_function: false, ..function(1.9, 0.3, None) };
        let write = || Operator { name: "Write".to_owned(), is_function: false, ..function(1.5, 1.5, None) };
        assert_eq!(
            after_a_second(vec![read, write()]),
            "Write: 83 % of the time of all operators, computing (90 % of 2 threads); more CPUs would help"
        );
    }

    #[test]
    fn names_the_disk_before_memory_before_the_consumer() {
        let mut work = Work { consumer: seconds(0.5), ..Default::default() };
        let says = |work: &Work| sentence(work, SECOND, 2).split(':').next().map(str::to_owned);
        assert_eq!(says(&work).as_deref(), Some("the consumer"));
        work.memory = seconds(0.5);
        assert_eq!(says(&work).as_deref(), Some("the consumer"), "a quarter of the time of two threads is not much");
        work.memory = seconds(1.0);
        assert_eq!(says(&work).as_deref(), Some("memory"));
        work.disk = seconds(0.5);
        assert_eq!(says(&work).as_deref(), Some("memory"), "nothing was spilled");
        work.spilled_bytes = 1;
        assert_eq!(says(&work).as_deref(), Some("the disk"));
    }
}
