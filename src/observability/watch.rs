//! Whoever takes the rows of an execution, and those who hear of that.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use datafusion::common::Result;
use datafusion::physical_plan::displayable;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};

use super::callback::{ExecutionFailed, ExecutionProgress, ExecutionStarted, ExecutionSucceeded};
use super::execution::Execution;
use super::report::finished_tasks;

impl Execution {
    /// Watches what the execution hands out until the result drops. Fails when a callback does not want it to start.
    pub(crate) fn watch(&self) -> Result<Watch> {
        self.observers.running.lock().insert(self.query, self.clone());
        let mut watch = Watch { execution: self.clone(), rows: 0, given: None, told: None, ended: None };
        if !self.observers.callbacks.is_empty() {
            let plan = displayable(self.plan.as_ref()).indent(false).to_string();
            let event = ExecutionStarted { query: self.query, plan };
            for callback in &self.observers.callbacks {
                let wanted = callback.before_execution(&event);
                watch.ended_if_failed(&wanted);
                wanted?;
            }
        }
        Ok(watch)
    }
}

/// How often callbacks hear of progress at most.
const OFTEN: Duration = Duration::from_millis(100);

/// Somebody takes what an execution hands out. The execution has ended when this drops.
#[derive(Debug)]
pub(crate) struct Watch {
    execution: Execution,
    rows: usize,
    /// When rows were handed out, while nobody asks for more.
    given: Option<Instant>,
    told: Option<Instant>,
    ended: Option<std::result::Result<(), String>>,
}

impl Watch {
    /// What an execution hands out, watched. What else it needs is held until the end of that.
    pub(crate) fn over<T, H>(
        self,
        items: impl Stream<Item = Result<T>> + Send + Unpin + 'static,
        held: H,
        rows_of: fn(&T) -> usize,
    ) -> BoxStream<'static, Result<T>>
    where
        T: Send + 'static,
        H: Send + 'static,
    {
        let watched = stream::unfold((items, self, held), move |(mut items, mut watch, held)| async move {
            watch.asked();
            let next = items.next().await;
            match &next {
                Some(Ok(item)) => watch.rows(rows_of(item)),
                Some(Err(e)) => watch.ended(Err(e.to_string())),
                None => watch.ended(Ok(())),
            }
            next.map(|item| (item, (items, watch, held)))
        });
        watched.boxed()
    }

    /// More rows are asked for.
    fn asked(&mut self) {
        if let Some(given) = self.given.take() {
            self.execution.untaken.fetch_add(given.elapsed().as_nanos() as u64, Relaxed);
        }
    }

    /// Rows were handed out.
    fn rows(&mut self, rows: usize) {
        self.rows += rows;
        self.given = Some(Instant::now());
        let callbacks = &self.execution.observers.callbacks;
        if callbacks.is_empty() || self.told.is_some_and(|told| told.elapsed() < OFTEN) {
            return;
        }
        self.told = Some(Instant::now());
        let event = ExecutionProgress {
            query: self.execution.query,
            elapsed: self.execution.elapsed(),
            rows: self.rows,
            tasks: finished_tasks(&self.execution),
        };
        callbacks.iter().for_each(|callback| callback.on_progress(&event));
    }

    /// There will be no rows if something has failed.
    pub(crate) fn ended_if_failed<T>(&mut self, result: &Result<T>) {
        if let Err(e) = result {
            self.ended(Err(e.to_string()));
        }
    }

    /// There are no more rows.
    pub(crate) fn ended(&mut self, result: std::result::Result<(), String>) {
        self.ended.get_or_insert(result);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let (execution, rows) = (&self.execution, self.rows);
        let (query, elapsed) = (execution.query, execution.started.elapsed());
        // Set once: each execution is watched once.
        let _first = execution.ended.set(elapsed);
        let observers = &execution.observers;
        observers.running.lock().remove(&query);
        observers.note_writes(query, execution.written_files());
        if observers.callbacks.is_empty() {
            return;
        }
        match self.ended.take().unwrap_or_else(|| Err("it was dropped before its end".to_owned())) {
            Ok(()) => {
                let event = ExecutionSucceeded { query, elapsed, rows, stats: execution.report() };
                observers.callbacks.iter().for_each(|callback| callback.after_success(&event));
            }
            Err(error) => {
                let event = ExecutionFailed { query, elapsed, rows, error };
                observers.callbacks.iter().for_each(|callback| callback.after_failure(&event));
            }
        }
    }
}
