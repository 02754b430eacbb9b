//! Stages whose tasks come from what is no stage itself: the buckets of an exchange, and the partitions of a plan, like
//! a sort or a join. Their tasks begin when the scheduler says so, and may have to wait for the stages below.

use std::collections::VecDeque;

use super::{Event, Pause, SimBlock, World};
use crate::block::TaskId;

/// Where the tasks of a stage come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Leaf {
    /// Blocks of its inputs, or rows of its own.
    #[default]
    Blocks,
    /// Buckets, which are there when all inputs have ended.
    Exchange,
    /// Partitions that give nothing before all inputs have ended.
    Sort,
    /// Partitions of a plan that takes its first input to the end, and then the others as they come.
    Join,
    /// Partitions of a plan that takes a block of each input in turn.
    Zip,
}

impl Leaf {
    /// Whether tasks may begin before their rows are there.
    fn is_plan(self) -> bool {
        matches!(self, Self::Sort | Self::Join | Self::Zip)
    }
}

/// What is between the inputs of a stage and its tasks.
#[derive(Debug, Default)]
pub(super) struct Below {
    /// Blocks of each task that it has not got.
    parts: Vec<VecDeque<SimBlock>>,
    /// What is kept until the inputs have ended that it waits for.
    held: Vec<SimBlock>,
    taken: usize,
    given: usize,
    ended: bool,
}

impl Below {
    pub(super) fn new(tasks: usize) -> Self {
        Self { parts: vec![VecDeque::new(); tasks], ..Self::default() }
    }

    fn hand_out(&mut self, blocks: Vec<SimBlock>) {
        for block in blocks {
            let part = self.given % self.parts.len();
            self.parts[part].push_back(block);
            self.given += 1;
        }
    }

    /// Everything for a task.
    pub(super) fn bucket(&mut self, task: usize) -> VecDeque<SimBlock> {
        std::mem::take(&mut self.parts[task])
    }

    fn has_more_for(&self, task: usize) -> bool {
        self.ended || !self.parts[task].is_empty()
    }
}

impl World {
    /// The tasks of an operator that could begin, beside those that are blocks of its inputs.
    pub(super) fn own_tasks(&self, query: usize, op: usize) -> usize {
        let of = &self.queries[query].ops[op];
        match of.stage.leaf {
            Leaf::Exchange if !of.below.ended => 0,
            _ => of.stage.tasks.saturating_sub(of.next_task),
        }
    }

    /// Takes what is wanted from the inputs of a stage whose tasks are no blocks of theirs. No stage does that, so it
    /// takes neither time nor resources.
    pub(super) fn pull(&mut self, query: usize, op: usize) -> bool {
        let now = self.time();
        let of = &self.queries[query].ops[op];
        let leaf = of.stage.leaf;
        if leaf == Leaf::Blocks || of.below.ended || self.queries[query].ended {
            return false;
        }
        let inputs = of.stage.inputs.clone();
        let open: Vec<usize> = inputs.iter().copied().filter(|input| !self.is_over(query, *input)).collect();
        let builds = leaf == Leaf::Join && open.first() == inputs.first();
        let below = &mut self.queries[query].ops[op].below;
        if open.is_empty() || (leaf == Leaf::Join && !builds) {
            let held = std::mem::take(&mut below.held);
            below.hand_out(held);
        }
        if open.is_empty() {
            below.ended = true;
            return true;
        }
        let keeps = matches!(leaf, Leaf::Exchange | Leaf::Sort) || builds;
        // What gives rows as they come does not run ahead without end.
        if !keeps && below.parts.iter().all(|part| part.len() > 1) {
            return false;
        }
        let wanted = match leaf {
            Leaf::Zip => vec![open[below.taken % open.len()]],
            Leaf::Join => vec![open[0]],
            _ => open,
        };
        let mut changed = false;
        for input in wanted {
            let from = &mut self.queries[query].ops[input];
            let id = from.id;
            let Some((_, block)) = from.queue.pop() else {
                self.core.consumer_waits(id, true, now);
                continue;
            };
            self.core.consumer_waits(id, false, now);
            self.core.taken(id, block.bytes, now);
            self.core.freed(id, block.bytes, now);
            let below = &mut self.queries[query].ops[op].below;
            below.taken += 1;
            match keeps {
                true => below.held.push(block),
                false => below.hand_out(vec![block]),
            }
            changed = true;
        }
        changed
    }

    /// Gets a task of a plan its next block. Returns whether it has to wait for that.
    pub(super) fn awaits_input(&mut self, query: usize, op: usize, task: &TaskId) -> bool {
        let now = self.time();
        let of = &mut self.queries[query].ops[op];
        let number = task.task_of_source();
        let state = of.tasks.get_mut(task).unwrap();
        if !of.stage.leaf.is_plan() || !state.blocks.is_empty() {
            return false;
        }
        if of.below.has_more_for(number) {
            state.blocks.extend(of.below.parts[number].pop_front());
            return false;
        }
        state.paused = Some(Pause::Input);
        if !self.holds_while_waiting {
            self.core.await_input(of.id, now);
        }
        true
    }

    /// Lets tasks go on whose input has come.
    pub(super) fn input_comes(&mut self, query: usize, op: usize) -> bool {
        let now = self.time();
        let of = &mut self.queries[query].ops[op];
        let mut go_on = Vec::new();
        let mut changed = false;
        for (task, state) in &mut of.tasks {
            if state.paused != Some(Pause::Input) || !of.below.has_more_for(task.task_of_source()) {
                continue;
            }
            changed = true;
            if self.holds_while_waiting {
                state.paused = None;
                go_on.push(task.clone());
            } else {
                self.core.input_came(of.id, now);
                state.paused = Some(Pause::HasInput(self.core.ask_resume(of.id, true, now)));
            }
        }
        go_on.into_iter().for_each(|task| self.at(0, Event::Step { query, op, task }));
        changed
    }
}
