//! How many task slots each operator should get so that the whole plan is fastest: Ray's throughput solver (3.17).

use super::resources::Amounts;

/// What one unit of the plan's work costs an operator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// Seconds of tasks.
    pub(super) work: f64,
    /// What a task needs while it runs.
    pub(super) task: Amounts,
    /// The most tasks that may run at once.
    pub(super) most: Option<usize>,
}

/// Tasks of each operator at once at which none is faster than the slowest. The slowest is bounded by its own `most`,
/// or all of them by `limits`.
pub(super) fn slots(limits: Amounts, loads: &[Load]) -> Vec<f64> {
    let by_tasks = loads.iter().map(|load| load.most.map_or(f64::INFINITY, |most| most as f64 / load.work));
    let by_resource = limits.0.iter().enumerate().map(|(resource, limit)| {
        let wanted: f64 = loads.iter().map(|load| load.task.0[resource] as f64 * load.work).sum();
        if wanted > 0.0 { *limit as f64 / wanted } else { f64::INFINITY }
    });
    let throughput = by_tasks.chain(by_resource).fold(f64::INFINITY, f64::min);
    loads.iter().map(|load| if load.work > 0.0 { throughput * load.work } else { 0.0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(work: f64, milli_cpus: u64, most: Option<usize>) -> Load {
        Load { work, task: Amounts([milli_cpus, 0, 0, 0]), most }
    }

    const FOUR: Amounts = Amounts([4000, u64::MAX, u64::MAX, u64::MAX]);

    #[test]
    fn cpus_go_where_the_work_is() {
        assert_eq!(slots(FOUR, &[load(1.0, 1000, None), load(3.0, 1000, None)]), [1.0, 3.0]);
        assert_eq!(slots(FOUR, &[load(1.0, 1000, None), load(1.0, 3000, None)]), [1.0, 1.0]);
    }

    #[test]
    fn nobody_gets_more_than_the_slowest_can_use() {
        assert_eq!(slots(FOUR, &[load(1.0, 100, None), load(4.0, 100, Some(2))]), [0.5, 2.0]);
        assert_eq!(slots(FOUR, &[load(0.0, 1000, None), load(1.0, 0, Some(8))]), [0.0, 8.0]);
    }
}
