//! What dealer and consumers know of each other. No threads, no time: whoever changes something wakes the others.

use std::collections::VecDeque;

use super::super::iterate::Position;

/// A part of a turn, on its way to a consumer.
#[derive(Debug, Clone)]
pub(super) struct Part<B> {
    /// The number of the turn in its epoch.
    pub(super) turn: u64,
    pub(super) bytes: usize,
    pub(super) rows: B,
}

/// What waits for a consumer.
#[derive(Debug)]
enum Queued<B> {
    Part(Part<B>),
    /// There are no more turns in the epoch.
    End,
}

/// What a consumer gets.
#[derive(Debug)]
pub(super) enum Next<B> {
    Part(Part<B>),
    /// The epoch has ended for it.
    Ended,
    /// There is nothing yet.
    Wait,
}

#[derive(Debug)]
struct Seat<B> {
    queue: VecDeque<Queued<B>>,
    bytes: usize,
    /// Epochs that it has entered, and those that it has finished or given up.
    entered: u64,
    finished: u64,
    /// Turns of this epoch of which it has its part, and those that it has acknowledged.
    handed: u64,
    acknowledged: u64,
    is_gone: bool,
}

/// Why nobody gets anything any more.
#[derive(Debug, Clone)]
pub(super) struct Stopped {
    pub(super) message: String,
}

/// The consumers of a split, by their numbers.
#[derive(Debug)]
pub(super) struct Table<B> {
    seats: Vec<Seat<B>>,
    buffer_bytes: usize,
    /// Epochs that were dealt to their end.
    dealt: u64,
    /// Behind which turn of the current epoch rows stand where, from the first that not all have acknowledged on.
    positions: VecDeque<(u64, u64, Position)>,
    stopped: Option<Stopped>,
}

impl<B> Table<B> {
    pub(super) fn new(n: usize, buffer_bytes: usize) -> Self {
        let seat = || Seat {
            queue: VecDeque::new(),
            bytes: 0,
            entered: 0,
            finished: 0,
            handed: 0,
            acknowledged: 0,
            is_gone: false,
        };
        let seats = (0..n).map(|_| seat()).collect();
        Self { seats, buffer_bytes, dealt: 0, positions: VecDeque::new(), stopped: None }
    }

    /// Ends everything with an error, unless something has before.
    pub(super) fn stop(&mut self, message: impl Into<String>) {
        self.stopped.get_or_insert(Stopped { message: message.into() });
    }

    pub(super) fn stopped(&self) -> Option<&Stopped> {
        self.stopped.as_ref()
    }

    /// Whether the dealer may put a part into the queue of a consumer.
    pub(super) fn has_room(&self, consumer: usize) -> bool {
        let seat = &self.seats[consumer];
        seat.bytes < self.buffer_bytes || seat.gave_up(self.dealt)
    }

    /// Whether the dealer may begin the epoch behind those that it has dealt: when all have entered the last of them.
    pub(super) fn may_begin(&self) -> bool {
        self.seats.iter().all(|seat| seat.entered >= self.dealt)
    }

    /// Puts a part into the queue of a consumer.
    pub(super) fn deal(&mut self, consumer: usize, part: Part<B>) {
        let epoch = self.dealt;
        let seat = &mut self.seats[consumer];
        if !seat.gave_up(epoch) {
            seat.bytes += part.bytes;
            seat.queue.push_back(Queued::Part(part));
        }
    }

    /// The parts of a turn are dealt now; behind it rows stand there.
    pub(super) fn begin_turn(&mut self, turn: u64, position: Position) {
        self.positions.push_back((self.dealt, turn, position));
    }

    /// All turns of an epoch were dealt.
    pub(super) fn epoch_dealt(&mut self) {
        self.seats.iter_mut().for_each(|seat| {
            if !seat.gave_up(self.dealt) {
                seat.queue.push_back(Queued::End);
            }
        });
        self.dealt += 1;
    }

    /// A consumer arrives at its next epoch, and gives up what is left of the one before.
    pub(super) fn arrive(&mut self, consumer: usize) {
        let seat = &mut self.seats[consumer];
        if seat.finished < seat.entered {
            seat.finished = seat.entered;
            // What was dealt of it already goes; the dealer gives no more of it.
            while let Some(queued) = seat.queue.pop_front() {
                match queued {
                    Queued::Part(part) => seat.bytes -= part.bytes,
                    Queued::End => break,
                }
            }
        }
    }

    /// Enters the next epoch, if the others have finished the one before or there is no barrier.
    pub(super) fn enter(&mut self, consumer: usize, barrier: bool) -> bool {
        let epoch = self.seats[consumer].entered;
        if barrier && self.seats.iter().any(|seat| seat.finished < epoch) {
            return false;
        }
        let seat = &mut self.seats[consumer];
        (seat.entered, seat.handed, seat.acknowledged) = (epoch + 1, 0, 0);
        // Nobody needs the positions of epochs that all have finished.
        let finished = self.seats.iter().map(|seat| seat.finished).min().unwrap_or(0);
        self.positions.retain(|(epoch, _, _)| *epoch >= finished);
        true
    }

    /// Whether a consumer is inside an epoch.
    pub(super) fn is_inside(&self, consumer: usize) -> bool {
        self.seats[consumer].finished < self.seats[consumer].entered
    }

    /// What a consumer gets, which acknowledges what it got before.
    pub(super) fn next(&mut self, consumer: usize) -> Next<B> {
        self.acknowledge(consumer);
        if !self.is_inside(consumer) {
            return Next::Ended;
        }
        let seat = &mut self.seats[consumer];
        match seat.queue.pop_front() {
            Some(Queued::Part(part)) => {
                seat.bytes -= part.bytes;
                seat.handed = part.turn + 1;
                Next::Part(part)
            }
            Some(Queued::End) => {
                seat.finished = seat.entered;
                // Also of turns that had no part for it.
                (seat.handed, seat.acknowledged) = (u64::MAX, u64::MAX);
                Next::Ended
            }
            None => Next::Wait,
        }
    }

    /// A consumer is done with what it got.
    pub(super) fn acknowledge(&mut self, consumer: usize) {
        let seat = &mut self.seats[consumer];
        seat.acknowledged = seat.handed;
        let (epoch, turn) = self.acknowledged_by_all();
        // The position behind the last of these is still needed.
        while self.positions.get(1).is_some_and(|(e, t, _)| (*e, *t) < (epoch, turn)) {
            self.positions.pop_front();
        }
    }

    /// The epoch, from 0 on, and the turns of it that all have acknowledged.
    pub(super) fn acknowledged_by_all(&self) -> (u64, u64) {
        let of = |seat: &Seat<B>| (seat.entered.saturating_sub(1), seat.acknowledged);
        self.seats.iter().map(of).min().unwrap_or_default()
    }

    /// Where rows stand behind the last turn that all have acknowledged; `None` before the first.
    pub(super) fn position_of_all(&self) -> Option<&Position> {
        let (epoch, turns) = self.acknowledged_by_all();
        self.position(epoch, turns)
    }

    /// Where rows stand behind the turn of which a consumer has its part; `None` before the first.
    pub(super) fn position_of(&self, consumer: usize) -> Option<&Position> {
        let seat = &self.seats[consumer];
        self.position(seat.entered.saturating_sub(1), seat.handed)
    }

    fn position(&self, epoch: u64, turns: u64) -> Option<&Position> {
        let before = self.positions.iter().rev().find(|(e, t, _)| *e == epoch && *t < turns);
        before.map(|(_, _, position)| position)
    }

    /// The epoch in which a consumer is, from 0 on, and the turns of which it has its part.
    pub(super) fn at(&self, consumer: usize) -> (u64, u64) {
        (self.seats[consumer].entered.saturating_sub(1), self.seats[consumer].handed)
    }

    /// A consumer will ask no more. Whether somebody still counts on it.
    pub(super) fn leave(&mut self, consumer: usize) -> bool {
        let seat = &mut self.seats[consumer];
        seat.is_gone = true;
        let was_inside = seat.finished < seat.entered;
        (seat.finished, seat.bytes) = (seat.entered, 0);
        seat.queue.clear();
        was_inside
    }

    /// The first consumer that is gone: what is dealt to it, nobody gets.
    pub(super) fn gone(&self) -> Option<usize> {
        self.seats.iter().position(|seat| seat.is_gone)
    }

    /// For whom a consumer waits: those who have not finished the last epoch, or whose queue is full.
    pub(super) fn waits_for(&self, consumer: usize) -> Vec<usize> {
        let epoch = self.seats[consumer].entered;
        let behind = |seat: &Seat<B>| match self.is_inside(consumer) {
            true => seat.bytes >= self.buffer_bytes,
            false => seat.finished < epoch,
        };
        let others = self.seats.iter().enumerate().filter(|(number, seat)| *number != consumer && behind(seat));
        others.map(|(number, _)| number).collect()
    }
}

impl<B> Seat<B> {
    /// Whether it wants nothing more of the epoch after so many.
    fn gave_up(&self, epochs_before: u64) -> bool {
        self.is_gone || self.finished > epochs_before
    }
}
