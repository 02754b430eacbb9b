//! Ray's reservation allocator: half of the resources are reserved in equal parts, the rest is shared, and what is left
//! over goes to the operators at the end of the plan first, since what they take frees memory.
//!
//! A pure function of what operators use now. Each operator gets a budget of what it may use in addition.

use super::resources::Amounts;

/// One in how many parts of the resources is reserved.
const RESERVED_PART: u64 = 2;

/// What the allocator knows of an operator.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Demand {
    /// What one task needs.
    pub(super) task: Amounts,
    /// The most tasks that may run at once.
    pub(super) max_tasks: Option<usize>,
    /// What its running tasks have.
    pub(super) used: Amounts,
    /// Bytes that running tasks are expected to give.
    pub(super) pending_bytes: u64,
    /// Bytes of its blocks that are still held.
    pub(super) output_bytes: u64,
    /// Whether its output is taken whatever it is: what feeds an all-to-all operator must end.
    pub(super) is_unbounded: bool,
}

impl Demand {
    fn most(&self) -> Amounts {
        let mut most = self.max_tasks.map_or(Amounts::UNLIMITED, |tasks| self.task.times(tasks as u64));
        // Memory for blocks is wanted by all; of the rest nothing is wanted by those whose tasks take nothing.
        for (most, needed) in most.0.iter_mut().zip(self.task.0) {
            *most = if needed == 0 { 0 } else { *most };
        }
        most.with_bytes(u64::MAX)
    }
}

/// What an operator may use beyond what it uses now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Allowance {
    /// For new tasks.
    pub(super) tasks: Amounts,
    /// Bytes that running tasks may give.
    pub(super) output_bytes: u64,
    /// All bytes that it was given, whether used or not.
    pub(super) total_bytes: u64,
}

/// Divides `limits` among operators in the order of the plan.
pub(super) fn allocate(limits: Amounts, demands: &[Demand]) -> Vec<Allowance> {
    let share = limits.part(RESERVED_PART * demands.len() as u64);
    // Half of the bytes are for what tasks give.
    let outputs = (share.bytes() / 2).max(1);
    let mut remaining = limits;
    let mut reserved = Vec::with_capacity(demands.len());
    for demand in demands {
        let tasks = share.most(demand.task).least(demand.most()).with_bytes(share.bytes() / 2);
        // Upstream operators come first where there is not enough for all.
        let fits = tasks.with_bytes(tasks.bytes() + outputs).fits(remaining);
        let tasks = if fits { tasks } else { Amounts::default().with_bytes(tasks.bytes()) };
        remaining = remaining.minus(tasks.with_bytes(tasks.bytes() + outputs));
        reserved.push(tasks);
    }
    let mut shared = remaining;
    let mut budgets = Vec::with_capacity(demands.len());
    for (demand, tasks) in demands.iter().zip(&reserved) {
        let bytes = demand.pending_bytes + demand.output_bytes.saturating_sub(outputs);
        let used = demand.used.with_bytes(bytes);
        // What it has beyond its part it has from the shared one.
        shared = shared.minus(used.minus(*tasks));
        budgets.push(tasks.minus(used));
    }
    let room = |demand: &Demand, budget: Amounts| demand.most().minus(demand.used).minus(budget);
    for (left, (demand, budget)) in demands.iter().zip(&mut budgets).enumerate().rev() {
        let mut more = shared.part(left as u64 + 1);
        let least = demand.task.minus(*budget);
        if !least.fits(more) && least.fits(shared) {
            more = more.most(least);
        }
        more = more.least(room(demand, *budget));
        shared = shared.minus(more);
        *budget = budget.plus(more);
    }
    // Leftovers are handed out from the end on.
    for (demand, budget) in demands.iter().zip(&mut budgets).rev() {
        let more = shared.least(room(demand, *budget));
        shared = shared.minus(more);
        *budget = budget.plus(more);
    }
    let give = |(demand, mut tasks): (&Demand, Amounts)| {
        if demand.is_unbounded {
            tasks = tasks.with_bytes(u64::MAX);
        }
        let output_bytes = tasks.bytes().saturating_add(outputs.saturating_sub(demand.output_bytes));
        let total_bytes = output_bytes.saturating_add(demand.output_bytes + demand.pending_bytes);
        Allowance { tasks, output_bytes, total_bytes }
    };
    demands.iter().zip(budgets).map(give).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(milli_cpus: u64) -> Amounts {
        Amounts([milli_cpus, 0, 0, 0])
    }

    fn limits(milli_cpus: u64, bytes: u64) -> Amounts {
        cpus(milli_cpus).with_bytes(bytes)
    }

    #[test]
    fn a_budget_is_what_is_free_when_nothing_runs() {
        let demand = Demand { task: cpus(1000), ..Demand::default() };
        let budgets = allocate(limits(4000, 1000), &[demand, demand]);
        let all: u64 = budgets.iter().map(|b| b.tasks.0[0]).sum();
        assert_eq!(all, 4000);
        let bytes: u64 = budgets.iter().map(|b| b.output_bytes).sum();
        assert_eq!(bytes, 1000);
    }

    #[test]
    fn what_one_has_taken_the_others_do_not_get() {
        let idle = Demand { task: cpus(1000), ..Demand::default() };
        let greedy = Demand { used: cpus(3000), output_bytes: 900, ..idle };
        let budgets = allocate(limits(4000, 1000), &[greedy, idle]);
        assert_eq!(budgets[0].output_bytes, 0);
        assert_eq!(budgets[0].tasks.0[0], 0);
        // The half of its half that is reserved for it.
        assert!(budgets[1].output_bytes >= 200 && budgets[1].tasks.0[0] == 1000, "{budgets:?}");
    }

    #[test]
    fn what_feeds_an_exchange_has_no_bound() {
        let demand = Demand { output_bytes: 5000, is_unbounded: true, ..Demand::default() };
        assert_eq!(allocate(limits(1000, 1000), &[demand])[0].output_bytes, u64::MAX);
    }

    #[test]
    fn upstream_operators_come_first_where_cpus_do_not_do_for_all() {
        let demand = Demand { task: cpus(1000), ..Demand::default() };
        let budgets = allocate(limits(2000, 1000), &vec![demand; 3]);
        let all: u64 = budgets.iter().map(|b| b.tasks.0[0]).sum();
        assert!(all <= 2000, "{budgets:?}");
        assert_eq!(budgets[0].tasks.0[0], 1000);
    }
}
