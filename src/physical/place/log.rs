//! Where the rows of an input came from.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;

use super::marked::{Marked, MarkedStream};
use super::seek::place_of;
use super::value::Mark;
use crate::token::Place;

/// For rows of an input, counted through, in which of its tasks they were. It grows by an entry for each task. Clones
/// are the same log: an operator and the one that begins in its middle have one, since the first is asked for places
/// while the other runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct MarkLog(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    /// The number of the first row that came, and the place where the input began.
    begun: (u64, Place),
    marks: Vec<(u64, Mark)>,
}

impl MarkLog {
    /// Says that row `number` of the input was at `mark`. Numbers increase.
    pub(crate) fn note(&self, number: u64, mark: &Mark) {
        let marks = &mut self.0.lock().marks;
        let goes_on = |(first, begun): &(u64, Mark)| begun.id == mark.id && begun.row + (number - first) == mark.row;
        if !marks.last().is_some_and(goes_on) {
            marks.push((number, mark.clone()));
        }
    }

    /// The same rows, noted as they come, the first one as row `number`: the one at which the input began.
    pub(crate) fn noting(&self, number: u64, begin: &Place, rows: MarkedStream) -> MarkedStream {
        self.0.lock().begun = (number, begin.clone());
        let (log, mut next) = (self.clone(), number);
        let note = move |marked: &Marked| {
            log.note(next, &marked.mark);
            next += marked.batch.num_rows() as u64;
        };
        rows.inspect_ok(note).boxed()
    }

    /// The place of row `number` in `input`. `None` where rows before it have not come.
    pub(crate) fn place_of(&self, input: &Arc<dyn ExecutionPlan>, number: u64) -> Option<Place> {
        match self.mark_of(number) {
            Some(mark) => place_of(input, &mark),
            None => Some(&self.0.lock().begun).filter(|(first, _)| *first == number).map(|(_, place)| place.clone()),
        }
    }

    /// Where row `number` of the input was, or would have been if its task had had another row.
    fn mark_of(&self, number: u64) -> Option<Mark> {
        let marks = &self.0.lock().marks;
        let behind = marks.partition_point(|(first, _)| *first <= number);
        let (first, mark) = marks.get(behind.checked_sub(1)?)?;
        Some(Mark { id: mark.id.clone(), row: mark.row + (number - first) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::TaskId;

    #[test]
    fn rows_are_found_in_the_task_that_they_were_in() {
        let (log, mark) = (MarkLog::default(), |task, row| Mark { id: TaskId::root(task), row });
        assert!(log.mark_of(0).is_none());
        for (number, at) in [(0, mark(3, 0)), (10, mark(3, 10)), (25, mark(4, 0)), (30, mark(6, 0))] {
            log.note(number, &at);
        }
        assert_eq!(log.0.lock().marks.len(), 3);
        let found = [0, 24, 25, 29, 30, 99].map(|number| log.mark_of(number).unwrap());
        assert_eq!(found, [mark(3, 0), mark(3, 24), mark(4, 0), mark(4, 4), mark(6, 0), mark(6, 69)]);
    }
}
