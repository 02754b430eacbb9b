//! What the windows of a pipeline did.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use datafusion::physical_plan::ExecutionPlan;
use parking_lot::Mutex;

use super::start::Start;
use crate::physical::place::MarkLog;

/// So many of the last windows are told of.
const TOLD: usize = 3;
/// Where windows began is known of so many of the last ones.
const KNOWN: usize = 4096;

/// How long a consumer waited for the first rows of windows, but for the very first one.
#[derive(Debug, Clone, Copy, Default)]
struct Stalls {
    windows: u32,
    min: Duration,
    max: Duration,
    total: Duration,
}

impl Stalls {
    fn add(&mut self, time: Duration) {
        self.min = if self.windows == 0 { time } else { self.min.min(time) };
        self.max = self.max.max(time);
        self.total += time;
        self.windows += 1;
    }
}

/// What is known of the windows of a pipeline that runs. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct History(Arc<Mutex<Windows>>);

#[derive(Debug, Default)]
struct Windows {
    begun: u64,
    in_flight: usize,
    max_in_flight: usize,
    /// The number of the last windows that began, from 0 on, and their plans.
    told: VecDeque<(String, Arc<dyn ExecutionPlan>)>,
    known: VecDeque<Known>,
    stalls: Stalls,
}

/// Where a window began.
#[derive(Debug, Clone)]
struct Known {
    start: Start,
    /// Its plan, and where its rows stand in it, as long as it is in flight or was not long ago.
    rows: Option<(Arc<dyn ExecutionPlan>, MarkLog)>,
}

impl History {
    /// A window begins, with a plan whose rows are noted in a log. It is told of later, unless that would hold blocks.
    pub(super) fn begin(&self, start: &Start, plan: &Arc<dyn ExecutionPlan>, log: &MarkLog, is_told: bool) {
        let mut windows = self.0.lock();
        windows.begun += 1;
        windows.in_flight += 1;
        windows.max_in_flight = windows.max_in_flight.max(windows.in_flight);
        if windows.known.len() == KNOWN {
            windows.known.pop_front();
        }
        let rows = Some((Arc::clone(plan), log.clone()));
        windows.known.push_back(Known { start: start.clone(), rows });
        if is_told {
            if windows.told.len() == TOLD {
                windows.told.pop_front();
            }
            let (epoch, window) = start.label;
            windows.told.push_back((format!("Pipeline Window {window} of epoch {epoch}"), Arc::clone(plan)));
        }
        // Of the others, a place in their middle is found by their rows alone.
        if let Some(old) = windows.known.len().checked_sub(TOLD + 1) {
            windows.known[old].rows = None;
        }
    }

    /// The last row of a window was taken, or nobody wants it any more.
    pub(super) fn end(&self, label: (u32, u32), holds_blocks: bool) {
        let mut windows = self.0.lock();
        windows.in_flight = windows.in_flight.saturating_sub(1);
        if let Some(known) = windows.known.iter_mut().find(|known| known.start.label == label && holds_blocks) {
            known.rows = None;
        }
    }

    /// A consumer has waited for the first rows of a window.
    pub(super) fn waited(&self, time: Duration, is_first: bool) {
        if !is_first {
            self.0.lock().stalls.add(time);
        }
    }

    /// Where a window began, and the place in its plan of a row of it. `None` where it began long ago.
    pub(super) fn find(&self, label: (u32, u32), row: u64) -> Option<(Start, Option<crate::token::Place>)> {
        let known = self.0.lock().known.iter().rev().find(|known| known.start.label == label).cloned()?;
        let inside = known.rows.and_then(|(plan, log)| log.place_of(&plan, row));
        Some((known.start, inside))
    }

    /// The last windows that began, each with its name.
    pub(super) fn told(&self) -> Vec<(String, Arc<dyn ExecutionPlan>)> {
        self.0.lock().told.iter().cloned().collect()
    }

    /// What there is to say of all windows.
    pub(super) fn remarks(&self) -> Vec<String> {
        let windows = self.0.lock();
        let stalls = windows.stalls;
        let mut remarks = vec![
            "##### Overall Pipeline Time Breakdown #####".to_owned(),
            format!("* Windows: {}, at most {} in flight", windows.begun, windows.max_in_flight),
        ];
        if stalls.windows > 0 {
            let shown = |time: Duration| format!("{:.2}ms", time.as_secs_f64() * 1e3);
            let (min, max, mean) = (shown(stalls.min), shown(stalls.max), shown(stalls.total / stalls.windows));
            remarks.push(format!(
                "* Time stalled waiting for next dataset: {min} min, {max} max, {mean} mean, {} total",
                shown(stalls.total)
            ));
        }
        remarks
    }
}
