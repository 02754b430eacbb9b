//! What dealer and consumers know of each other. No threads, no clock: whoever changes something wakes the others, and
//! says how late it is where that matters.

use std::collections::VecDeque;
use std::time::Duration;

use super::options::{OnLost, Rules};
use super::seat::{Part, Presence, Seat};

/// What a consumer gets.
#[derive(Debug)]
pub(super) enum Next<B> {
    Part(Part<B>),
    /// The epoch has ended for it.
    Ended,
    /// There is nothing yet.
    Wait,
}

/// What becomes of a consumer that wants to enter an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// It is in the epoch, which is called so.
    Entered(u64),
    /// There are no more epochs.
    Finished,
    Wait,
}

/// Why nobody gets anything any more.
#[derive(Debug, Clone)]
pub(super) enum Stopped<P> {
    /// The dataset has failed.
    Failed(String),
    /// A consumer was lost.
    Lost(Lost<P>),
}

/// A consumer that was lost.
#[derive(Debug, Clone)]
pub(super) struct Lost<P> {
    pub(super) consumer: usize,
    /// What the epoch is called in which it was, and the turns of that of which it had its part.
    pub(super) epoch: u64,
    pub(super) turns: u64,
    /// The turns that all had acknowledged, and where rows stand behind them.
    pub(super) acknowledged: u64,
    pub(super) position: Option<P>,
}

/// An epoch that was begun.
#[derive(Debug, Clone, Copy)]
struct Begun {
    epoch: u64,
    /// What consumers call it.
    label: u64,
}

/// The consumers of a split, by their numbers. Rows are `B`, and `P` says where they stand.
#[derive(Debug)]
pub(super) struct Table<B, P> {
    rules: Rules,
    seats: Vec<Seat<B>>,
    /// Parts for whoever asks, in their order, and their bytes.
    common: VecDeque<Part<B>>,
    common_bytes: usize,
    /// Epochs that were begun, and those of them that were dealt to their end.
    begun: u64,
    dealt: u64,
    labels: VecDeque<Begun>,
    /// No epoch will be begun any more.
    is_last: bool,
    /// Behind so many turns of an epoch rows stand there; from the last that all have acknowledged on.
    positions: VecDeque<(u64, u64, P)>,
    stopped: Option<Stopped<P>>,
}

impl<B: Clone, P: Clone> Table<B, P> {
    pub(super) fn new(n: usize, rules: Rules) -> Self {
        Self {
            rules,
            seats: (0..n).map(|_| Seat::new()).collect(),
            common: VecDeque::new(),
            common_bytes: 0,
            begun: 0,
            dealt: 0,
            labels: VecDeque::new(),
            is_last: false,
            positions: VecDeque::new(),
            stopped: None,
        }
    }

    /// Ends everything with an error, unless something has before.
    pub(super) fn stop(&mut self, message: impl Into<String>) {
        self.stopped.get_or_insert(Stopped::Failed(message.into()));
    }

    pub(super) fn stopped(&self) -> Option<&Stopped<P>> {
        self.stopped.as_ref()
    }

    pub(super) fn consumers(&self) -> usize {
        self.seats.len()
    }

    // What the dealer does.

    /// Whether the dealer may begin the epoch behind those that it has dealt: when all have entered the last of them.
    pub(super) fn may_begin(&self) -> bool {
        self.present().all(|seat| seat.entered >= self.dealt)
    }

    /// The next epoch begins. Its first row stands behind `before`.
    pub(super) fn begin(&mut self, label: u64, before: P) {
        self.labels.push_back(Begun { epoch: self.begun, label });
        self.positions.push_back((self.begun, 0, before));
        self.begun += 1;
    }

    /// Whether the dealer may put a part where a consumer finds it.
    pub(super) fn has_room(&self, consumer: usize) -> bool {
        match self.rules.by_demand {
            true => self.common_bytes < self.rules.buffer_bytes || self.all_gave_up(),
            false => {
                let seat = &self.seats[consumer];
                seat.bytes < self.rules.buffer_bytes || seat.gave_up(self.dealt)
            }
        }
    }

    /// Whether nobody wants what is left of the epoch that is dealt now.
    pub(super) fn all_gave_up(&self) -> bool {
        self.seats.iter().all(|seat| seat.gave_up(self.dealt))
    }

    /// Gives a part of the current epoch to a consumer, or to whoever asks.
    pub(super) fn deal(&mut self, consumer: usize, turn: u64, bytes: usize, rows: B) {
        let part = Part { epoch: self.dealt, turn, bytes, rows };
        if self.rules.by_demand {
            if !self.all_gave_up() {
                self.common_bytes += bytes;
                self.common.push_back(part);
            }
            return;
        }
        let seat = &mut self.seats[consumer];
        if !seat.gave_up(self.dealt) {
            seat.push_back(part);
        }
    }

    /// The parts of a turn are dealt now; behind it rows stand there.
    pub(super) fn begin_turn(&mut self, turn: u64, position: P) {
        self.positions.push_back((self.dealt, turn + 1, position));
    }

    /// All turns of an epoch were dealt. `is_last`: there is none behind it.
    pub(super) fn epoch_dealt(&mut self, is_last: bool) {
        self.dealt += 1;
        self.is_last = is_last;
    }

    /// There is no epoch behind those that were dealt.
    pub(super) fn finish(&mut self) {
        self.is_last = true;
    }

    // What consumers do.

    /// A consumer arrives at its next epoch, and gives up what is left of the one before.
    pub(super) fn arrive(&mut self, consumer: usize) {
        self.seats[consumer].finish();
        self.forget();
    }

    /// Enters the next epoch, if the others have finished the one before or there is no barrier.
    pub(super) fn enter(&mut self, consumer: usize) -> Entry {
        let epoch = self.seats[consumer].entered;
        if self.is_last && self.begun == epoch {
            return Entry::Finished;
        }
        let is_closed = self.rules.barrier && self.present().any(|seat| seat.finished < epoch);
        let Some(begun) = self.labels.iter().find(|begun| begun.epoch == epoch).filter(|_| !is_closed) else {
            return Entry::Wait;
        };
        let label = begun.label;
        self.seats[consumer].enter(label);
        self.forget();
        Entry::Entered(label)
    }

    /// What a consumer gets next.
    pub(super) fn next(&mut self, consumer: usize) -> Next<B> {
        if !self.seats[consumer].is_inside() {
            return Next::Ended;
        }
        let epoch = self.seats[consumer].entered - 1;
        let part = match self.rules.by_demand {
            true => self.take_common(consumer, epoch),
            false => self.seats[consumer].take(epoch),
        };
        let keeps = self.rules.on_lost != OnLost::Fail;
        match part {
            Some(part) => {
                self.seats[consumer].hand_out(&part, keeps);
                Next::Part(part)
            }
            None if self.dealt > epoch && !self.may_come_back(consumer, epoch) => {
                self.seats[consumer].end();
                Next::Ended
            }
            None => Next::Wait,
        }
    }

    /// A part that was given back to this consumer, or the first one for anybody.
    fn take_common(&mut self, consumer: usize, epoch: u64) -> Option<Part<B>> {
        if let Some(part) = self.seats[consumer].take(epoch) {
            return Some(part);
        }
        let place = self.common.iter().position(|part| part.epoch == epoch)?;
        let part = self.common.remove(place)?;
        self.common_bytes -= part.bytes;
        Some(part)
    }

    /// Whether others have parts of the epoch that this consumer gets if they are lost.
    fn may_come_back(&self, consumer: usize, epoch: u64) -> bool {
        let others = self.seats.iter().enumerate().filter(|(other, _)| *other != consumer);
        self.rules.on_lost == OnLost::Redistribute && others.into_iter().any(|(_, seat)| seat.holds_part_of(epoch))
    }

    /// A consumer is done with the first `parts` of those that it has not acknowledged.
    pub(super) fn acknowledge(&mut self, consumer: usize, parts: usize) {
        let unacknowledged = &mut self.seats[consumer].unacknowledged;
        unacknowledged.drain(..parts.min(unacknowledged.len()));
        self.forget();
    }

    /// A consumer will ask no more, from this time on.
    pub(super) fn leave(&mut self, consumer: usize, now: Duration) {
        match self.rules.on_lost {
            OnLost::Wait(_) => self.seats[consumer].presence = Presence::Away { since: now },
            OnLost::Fail => self.lose(consumer),
            OnLost::Redistribute => {
                let others = self.seats.iter().enumerate().any(|(other, seat)| other != consumer && !seat.is_gone());
                if !others {
                    // Nobody is left who gets what it had, and what was not given to anybody.
                    return self.lose(consumer);
                }
                let given_back = self.seats[consumer].go();
                // In their order, before what was not given to anybody.
                for part in given_back.into_iter().rev() {
                    self.common_bytes += part.bytes;
                    self.common.push_front(part);
                }
            }
        }
        self.forget();
    }

    /// A consumer that left is here again. Whether it is in the middle of an epoch, and what that is called.
    pub(super) fn rejoin(&mut self, consumer: usize) -> Result<Option<u64>, &'static str> {
        match self.seats[consumer].presence {
            Presence::Here => return Err("is here already"),
            Presence::Gone => return Err("is gone for good"),
            Presence::Away { .. } => {}
        }
        Ok(self.seats[consumer].come_back())
    }

    /// Gives up those who have been away for too long; when the next one will have been.
    pub(super) fn give_up_late(&mut self, now: Duration) -> Option<Duration> {
        let OnLost::Wait(most) = self.rules.on_lost else { return None };
        let mut next: Option<Duration> = None;
        for consumer in 0..self.seats.len() {
            let Presence::Away { since } = self.seats[consumer].presence else { continue };
            let late = since + most;
            match late <= now {
                true => self.lose(consumer),
                false => next = Some(next.map_or(late, |next| next.min(late))),
            }
        }
        next
    }

    /// A consumer is gone. That ends everything, if others count on it: in its epoch, or in one that they are in
    /// without it, whose rows would be less.
    fn lose(&mut self, consumer: usize) {
        let seat = &self.seats[consumer];
        let is_missed = self.seats.iter().any(|other| !other.is_gone() && other.entered > seat.entered);
        if seat.is_needed() || is_missed {
            let acknowledged = self.acknowledged_by_all().1;
            let (epoch, turns, position) = (seat.label, seat.handed, self.position_of_all().cloned());
            self.stopped.get_or_insert(Stopped::Lost(Lost { consumer, epoch, turns, acknowledged, position }));
        }
        self.seats[consumer].go();
    }

    // What there is to know.

    fn present(&self) -> impl Iterator<Item = &Seat<B>> {
        let redistributes = self.rules.on_lost == OnLost::Redistribute;
        self.seats.iter().filter(move |seat| !(redistributes && seat.is_gone()))
    }

    /// The epoch and the turns of it that all have acknowledged.
    pub(super) fn acknowledged_by_all(&self) -> (u64, u64) {
        self.seats.iter().map(Seat::acknowledged).min().unwrap_or_default()
    }

    /// Where rows stand behind the last turn that all have acknowledged.
    pub(super) fn position_of_all(&self) -> Option<&P> {
        let (epoch, turns) = self.acknowledged_by_all();
        self.position(epoch, turns)
    }

    /// Where rows stand behind the turn of which a consumer has its part.
    pub(super) fn position_of(&self, consumer: usize) -> Option<&P> {
        let seat = &self.seats[consumer];
        self.position(seat.entered.checked_sub(1)?, seat.handed)
    }

    fn position(&self, epoch: u64, turns: u64) -> Option<&P> {
        let before = self.positions.iter().rev().find(|(e, t, _)| *e == epoch && *t <= turns);
        before.map(|(_, _, position)| position)
    }

    /// Forgets what nobody asks for any more.
    fn forget(&mut self) {
        let all = self.acknowledged_by_all();
        while self.positions.get(1).is_some_and(|(e, t, _)| (*e, *t) <= all) {
            self.positions.pop_front();
        }
        let entered = self.present().map(|seat| seat.entered).min().unwrap_or(self.begun);
        self.labels.retain(|begun| begun.epoch >= entered.saturating_sub(1));
        let wanted = self.present().map(|seat| seat.finished).min().unwrap_or(self.begun);
        while let Some(part) = self.common.pop_front_if(|part| part.epoch < wanted) {
            self.common_bytes -= part.bytes;
        }
    }

    pub(super) fn seat(&self, consumer: usize) -> &Seat<B> {
        &self.seats[consumer]
    }

    /// Whether everybody has left, in the middle of nothing.
    pub(super) fn is_over(&self) -> bool {
        self.seats.iter().all(|seat| match seat.presence {
            Presence::Here => false,
            Presence::Away { .. } => !seat.is_needed(),
            Presence::Gone => true,
        })
    }

    /// The first consumer that is gone and has no part in the next epoch of this one, where what is dealt to it nobody
    /// gets. One that has finished that epoch may go.
    pub(super) fn gone_before_next(&self, consumer: usize) -> Option<usize> {
        let epoch = self.seats[consumer].entered;
        match self.rules.on_lost {
            OnLost::Redistribute => None,
            // Nobody has a part in an epoch that there is not.
            _ if self.is_last && self.begun == epoch => None,
            _ => self.seats.iter().position(|seat| seat.is_gone() && seat.entered <= epoch),
        }
    }

    /// For whom a consumer waits: those who have not finished the last epoch, or whose queue is full, or who still have
    /// what it would get if they were lost.
    pub(super) fn waits_for(&self, consumer: usize) -> Vec<usize> {
        let seat = &self.seats[consumer];
        let epoch = seat.entered;
        let behind = |other: &Seat<B>| match seat.is_inside() {
            true if self.rules.by_demand => {
                self.dealt >= epoch && self.rules.on_lost == OnLost::Redistribute && other.holds_part_of(epoch - 1)
            }
            true => other.bytes >= self.rules.buffer_bytes,
            false => other.finished < epoch && !other.is_gone(),
        };
        let others = self.seats.iter().enumerate().filter(|(number, other)| *number != consumer && behind(other));
        others.map(|(number, _)| number).collect()
    }

    /// Bytes that wait for a consumer.
    pub(super) fn buffered_bytes(&self, consumer: usize) -> usize {
        if self.rules.by_demand { self.common_bytes } else { self.seats[consumer].bytes }
    }
}
