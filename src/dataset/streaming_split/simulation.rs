//! Random schedules of a dealer and its consumers, who arrive, leave and come back, in virtual time: nobody waits for
//! what never comes, and each row is acknowledged once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::options::{OnLost, Rules};
use super::seat::Part;
use super::table::{Entry, Next, Table};
use crate::block::mix;

const SCHEDULES: u64 = 1_000;

struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = mix(self.0.wrapping_add(0x9e37_79b9_7f4a_7c15));
        self.0 % n.max(1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What a consumer does next.
#[derive(Debug, Clone, PartialEq)]
enum Does {
    Arrives,
    Enters,
    Reads,
    /// It left, and comes back then.
    IsAway(Option<Duration>),
    Stops,
}

struct Consumer {
    does: Does,
    epochs_wanted: u64,
    /// Parts that it has and did not acknowledge: a batch over a connection is acknowledged later.
    has: Vec<(u64, u64)>,
}

struct Schedule {
    table: Table<u64, u64>,
    rules: Rules,
    chance: Chance,
    now: Duration,
    /// Rows of each turn, by epochs; where the dealer is.
    epochs: Vec<Vec<u64>>,
    begun: bool,
    epoch: usize,
    turn: usize,
    /// The consumer whose part of the turn comes next, and the next row.
    part: usize,
    row: u64,
    consumers: Vec<Consumer>,
    /// Rows that were acknowledged, and by which consumer.
    acknowledged: BTreeMap<(u64, u64), usize>,
    gave_up: BTreeSet<u64>,
}

impl Schedule {
    fn new(seed: u64) -> Self {
        let mut chance = Chance(seed);
        let n = 1 + chance.below(5) as usize;
        let by_demand = chance.one_in(2);
        let on_lost = match chance.below(3) {
            0 => OnLost::Fail,
            1 if by_demand => OnLost::Redistribute,
            _ => OnLost::Wait(Duration::from_secs(1 + chance.below(20))),
        };
        let rules =
            Rules { barrier: !chance.one_in(3), by_demand, on_lost, buffer_bytes: 1 + chance.below(4) as usize };
        let epochs = (0..1 + chance.below(4)).map(|_| (0..chance.below(7)).map(|_| chance.below(9)).collect());
        let epochs: Vec<Vec<u64>> = epochs.collect();
        let wanted = if chance.one_in(2) { u64::MAX } else { chance.below(epochs.len() as u64 + 1) };
        let consumer = |_| Consumer { does: Does::Arrives, epochs_wanted: wanted, has: Vec::new() };
        Self {
            table: Table::new(n, rules),
            rules,
            chance,
            now: Duration::ZERO,
            epochs,
            begun: false,
            epoch: 0,
            turn: 0,
            part: 0,
            row: 0,
            consumers: (0..n).map(consumer).collect(),
            acknowledged: BTreeMap::new(),
            gave_up: BTreeSet::new(),
        }
    }

    /// One thing that the dealer can do.
    fn dealer_steps(&mut self) -> bool {
        if self.epoch == self.epochs.len() {
            return false;
        }
        if !self.begun {
            if !self.table.may_begin() {
                return false;
            }
            self.table.begin(self.epoch as u64, 0);
            self.begun = true;
            return true;
        }
        let turns = &self.epochs[self.epoch];
        let Some(rows) = turns.get(self.turn) else {
            self.table.epoch_dealt(self.epoch + 1 == self.epochs.len());
            (self.begun, self.epoch, self.turn, self.row) = (false, self.epoch + 1, 0, 0);
            return true;
        };
        // Each row is a part, for one consumer after the other.
        let n = if self.rules.by_demand { 1 } else { self.consumers.len() };
        if self.part as u64 == *rows {
            (self.turn, self.part) = (self.turn + 1, 0);
            return true;
        }
        if self.part == 0 {
            self.table.begin_turn(self.turn as u64, self.row);
        }
        let consumer = self.part % n;
        if !self.table.has_room(consumer) {
            return false;
        }
        self.table.deal(consumer, self.turn as u64, 1, self.row);
        (self.part, self.row) = (self.part + 1, self.row + 1);
        true
    }

    fn acknowledge(&mut self, consumer: usize, parts: usize) {
        self.table.acknowledge(consumer, parts);
        let has = &mut self.consumers[consumer].has;
        for row in has.drain(..parts.min(has.len())) {
            assert_eq!(self.acknowledged.insert(row, consumer), None, "row {row:?} came twice");
        }
    }

    /// One thing that a consumer can do.
    fn consumer_steps(&mut self, consumer: usize) -> bool {
        match self.consumers[consumer].does.clone() {
            Does::Stops | Does::IsAway(None) => false,
            Does::IsAway(Some(until)) if self.now < until => false,
            Does::IsAway(Some(_)) => {
                let inside = self.table.rejoin(consumer);
                self.consumers[consumer].does = match inside {
                    Ok(Some(_)) => Does::Reads,
                    Ok(None) => Does::Arrives,
                    Err(_) => Does::Stops,
                };
                true
            }
            Does::Arrives if self.consumers[consumer].epochs_wanted == self.table.seat(consumer).entered => {
                self.acknowledge(consumer, usize::MAX);
                self.consumers[consumer].does = Does::Stops;
                self.table.leave(consumer, self.now);
                true
            }
            Does::Arrives => {
                if self.table.seat(consumer).is_inside() {
                    self.gave_up.insert(self.table.seat(consumer).entered - 1);
                }
                self.acknowledge(consumer, usize::MAX);
                self.table.arrive(consumer);
                self.consumers[consumer].does = Does::Enters;
                true
            }
            Does::Enters if self.table.gone_before_next(consumer).is_some() => {
                self.consumers[consumer].does = Does::Stops;
                true
            }
            Does::Enters => match self.table.enter(consumer) {
                Entry::Entered(_) => {
                    self.consumers[consumer].does = Does::Reads;
                    true
                }
                Entry::Finished => {
                    self.consumers[consumer].does = Does::Stops;
                    true
                }
                Entry::Wait => false,
            },
            Does::Reads => self.reads(consumer),
        }
    }

    fn reads(&mut self, consumer: usize) -> bool {
        if self.chance.one_in(60) {
            self.consumers[consumer].does = Does::Arrives;
            return true;
        }
        let lag = self.chance.below(3) as usize;
        let done = self.consumers[consumer].has.len().saturating_sub(lag);
        self.acknowledge(consumer, done);
        match self.table.next(consumer) {
            Next::Part(Part { epoch, rows, .. }) => {
                self.consumers[consumer].has.push((epoch, rows));
                true
            }
            Next::Ended => {
                self.acknowledge(consumer, usize::MAX);
                self.consumers[consumer].does = Does::Arrives;
                true
            }
            Next::Wait => {
                // A consumer that waits is done with what it has.
                let had = self.consumers[consumer].has.len();
                self.acknowledge(consumer, usize::MAX);
                had > 0
            }
        }
    }

    /// Now and then somebody leaves.
    fn somebody_leaves(&mut self) {
        let consumer = self.chance.below(self.consumers.len() as u64) as usize;
        if matches!(self.consumers[consumer].does, Does::Stops | Does::IsAway(_)) {
            return;
        }
        self.table.leave(consumer, self.now);
        self.consumers[consumer].has.clear();
        let back = match self.rules.on_lost {
            OnLost::Wait(_) => Some(self.now + Duration::from_secs(self.chance.below(30))),
            _ => None,
        };
        self.consumers[consumer].does = Does::IsAway(back);
    }

    /// Goes on until nobody wants anything more. The number of times that somebody left.
    fn run(&mut self) -> usize {
        let (mut leaves, leaving) = (0, [0, 20, 200][self.chance.below(3) as usize]);
        loop {
            if leaving > 0 && self.chance.one_in(leaving) {
                self.somebody_leaves();
                leaves += 1;
            }
            let late = self.table.give_up_late(self.now);
            if self.table.stopped().is_some() {
                return leaves;
            }
            let actors = self.consumers.len() + 1;
            let first = self.chance.below(actors as u64) as usize;
            let steps = |schedule: &mut Self, actor: usize| match actor.checked_sub(1) {
                None => schedule.dealer_steps(),
                Some(consumer) => schedule.consumer_steps(consumer),
            };
            if (0..actors).any(|actor| steps(self, (first + actor) % actors)) {
                continue;
            }
            let is_done = |consumer: &Consumer| matches!(consumer.does, Does::Stops | Does::IsAway(None));
            if self.consumers.iter().all(is_done) {
                return leaves;
            }
            let back = self.consumers.iter().filter_map(|consumer| match consumer.does {
                Does::IsAway(until) => until,
                _ => None,
            });
            match back.chain(late).filter(|time| *time > self.now).min() {
                Some(time) => self.now = time,
                None => panic!("stalled: {:?}", self.consumers.iter().map(|c| &c.does).collect::<Vec<_>>()),
            }
        }
    }

    /// Each row of an epoch that somebody read to its end and nobody gave up was acknowledged.
    fn check(&self) {
        let somebody_left = (0..self.consumers.len()).any(|consumer| self.table.seat(consumer).is_gone());
        if self.table.stopped().is_some() || (somebody_left && self.rules.on_lost != OnLost::Redistribute) {
            return;
        }
        let all_left = self.consumers.iter().all(|consumer| matches!(consumer.does, Does::IsAway(None)));
        let finished = (0..self.consumers.len()).map(|c| self.table.seat(c)).filter(|seat| !seat.is_gone());
        let finished = finished.map(|seat| seat.finished).min().filter(|_| !all_left).unwrap_or(0);
        for (epoch, turns) in self.epochs.iter().enumerate().take(finished as usize) {
            if !self.gave_up.contains(&(epoch as u64)) {
                for row in 0..turns.iter().sum() {
                    assert!(self.acknowledged.contains_key(&(epoch as u64, row)), "row {row} of epoch {epoch} is lost");
                }
            }
        }
    }
}

#[test]
fn nobody_waits_for_what_never_comes_and_rows_are_acknowledged_once() {
    let (mut leaves, mut rows, mut stopped) = (0, 0, 0);
    for seed in 0..SCHEDULES {
        let mut schedule = Schedule::new(seed);
        leaves += schedule.run();
        schedule.check();
        rows += schedule.acknowledged.len();
        stopped += usize::from(schedule.table.stopped().is_some());
    }
    assert!(leaves > 500 && rows > 10_000, "{leaves} left, {rows} rows");
    assert!(stopped > 50 && stopped < 900, "{stopped} were stopped");
}
