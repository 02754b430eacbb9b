//! One consumer of a split: what waits for it, and what it has.

use std::collections::VecDeque;
use std::time::Duration;

/// A part of a turn, on its way to a consumer.
#[derive(Debug, Clone)]
pub(super) struct Part<B> {
    /// The epoch, counted from the first that was dealt.
    pub(super) epoch: u64,
    /// The number of the turn in its epoch.
    pub(super) turn: u64,
    pub(super) bytes: usize,
    pub(super) rows: B,
}

/// Whether a consumer is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    Here,
    /// It left, and may come back.
    Away {
        since: Duration,
    },
    Gone,
}

/// A part that was handed out and not acknowledged; with its rows, where it may have to be handed out again.
#[derive(Debug)]
pub(super) struct Handed<B> {
    pub(super) epoch: u64,
    pub(super) turn: u64,
    pub(super) part: Option<Part<B>>,
}

/// What is known of a consumer. Epochs are counted from the first that was dealt.
#[derive(Debug)]
pub(super) struct Seat<B> {
    queue: VecDeque<Part<B>>,
    /// Bytes of the queue.
    pub(super) bytes: usize,
    /// In their order.
    pub(super) unacknowledged: VecDeque<Handed<B>>,
    /// Epochs that it has entered, and those that it has finished or given up.
    pub(super) entered: u64,
    pub(super) finished: u64,
    /// What the epoch is called that it entered last.
    pub(super) label: u64,
    /// Turns of that epoch of which it has its part.
    pub(super) handed: u64,
    pub(super) presence: Presence,
}

impl<B: Clone> Seat<B> {
    pub(super) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            bytes: 0,
            unacknowledged: VecDeque::new(),
            entered: 0,
            finished: 0,
            label: 0,
            handed: 0,
            presence: Presence::Here,
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.presence == Presence::Gone
    }

    /// Whether it is inside an epoch.
    pub(super) fn is_inside(&self) -> bool {
        self.finished < self.entered
    }

    /// Whether somebody counts on what it does with the epoch.
    pub(super) fn is_needed(&self) -> bool {
        self.is_inside() || !self.unacknowledged.is_empty()
    }

    /// Whether it wants nothing more of the epoch after so many.
    pub(super) fn gave_up(&self, epochs_before: u64) -> bool {
        self.is_gone() || self.finished > epochs_before
    }

    /// Whether it got a part of the epoch that it has not acknowledged.
    pub(super) fn holds_part_of(&self, epoch: u64) -> bool {
        !self.is_gone() && self.unacknowledged.iter().any(|handed| handed.epoch == epoch)
    }

    pub(super) fn push_back(&mut self, part: Part<B>) {
        self.bytes += part.bytes;
        self.queue.push_back(part);
    }

    /// The next part of an epoch.
    pub(super) fn take(&mut self, epoch: u64) -> Option<Part<B>> {
        let part = self.queue.pop_front_if(|part| part.epoch == epoch)?;
        self.bytes -= part.bytes;
        Some(part)
    }

    /// Notes that it has a part.
    pub(super) fn hand_out(&mut self, part: &Part<B>, keeps: bool) {
        self.handed = part.turn + 1;
        self.unacknowledged.push_back(part.handed(keeps));
    }

    /// The epoch has ended for it.
    pub(super) fn end(&mut self) {
        self.finished = self.entered;
        // Also of turns that had no part for it.
        self.handed = u64::MAX;
    }

    /// It is done with its epoch, whatever is left of that.
    pub(super) fn finish(&mut self) {
        if self.entered > 0 {
            self.end();
        }
        self.unacknowledged.clear();
        while let Some(part) = self.queue.pop_front_if(|part| part.epoch < self.entered) {
            self.bytes -= part.bytes;
        }
    }

    /// It enters the next epoch.
    pub(super) fn enter(&mut self, label: u64) {
        (self.entered, self.label, self.handed) = (self.entered + 1, label, 0);
    }

    /// It will not come back. What it had not acknowledged, in order, where that was kept.
    pub(super) fn go(&mut self) -> Vec<Part<B>> {
        self.presence = Presence::Gone;
        self.finished = self.entered;
        (self.queue, self.bytes) = (VecDeque::new(), 0);
        self.unacknowledged.drain(..).filter_map(|handed| handed.part).collect()
    }

    /// It is here again, at the first part that it had not acknowledged. The epoch in whose middle it is.
    pub(super) fn come_back(&mut self) -> Option<u64> {
        self.presence = Presence::Here;
        if !self.is_needed() {
            return None;
        }
        self.finished = self.entered - 1;
        if let Some(first) = self.unacknowledged.front() {
            self.handed = first.turn;
        }
        for part in self.unacknowledged.drain(..).rev().filter_map(|handed| handed.part) {
            self.bytes += part.bytes;
            self.queue.push_front(part);
        }
        Some(self.label)
    }

    /// The epoch in which it is and the turns of it that it is done with.
    pub(super) fn acknowledged(&self) -> (u64, u64) {
        let turns = self.unacknowledged.front().map_or(self.handed, |first| first.turn);
        (self.entered.saturating_sub(1), turns)
    }
}

impl<B> Part<B> {
    pub(super) fn handed(&self, keeps: bool) -> Handed<B>
    where
        B: Clone,
    {
        Handed { epoch: self.epoch, turn: self.turn, part: keeps.then(|| self.clone()) }
    }
}
