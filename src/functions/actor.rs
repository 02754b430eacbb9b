//! Functions with state that is built once per actor, on the actor's own thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;

use super::{BatchFunction, FunctionRef};

/// Something with state, like a model that was loaded, which transforms batches.
///
/// It is built on the thread of its actor and never leaves it, so it need not be `Send`. It is dropped when the
/// operator has no more work, when the pool shrinks, or after it has panicked, and then built anew.
pub trait Actor {
    /// Transforms one batch. It is never called with a batch of another schema than it was planned with.
    ///
    /// # Errors
    ///
    /// Any error is the error of the query, unless the options of the call tolerate it.
    fn call(&mut self, batch: RecordBatch) -> Result<RecordBatch>;
}

impl<F: FnMut(RecordBatch) -> Result<RecordBatch>> Actor for F {
    fn call(&mut self, batch: RecordBatch) -> Result<RecordBatch> {
        self(batch)
    }
}

thread_local! {
    /// What the actor of this thread has built, by the number of the function.
    static STATES: RefCell<HashMap<u64, Box<dyn Actor>>> = RefCell::default();
}

/// Drops what the actor of this thread has built.
pub(crate) fn drop_states() {
    // Taken out first: what is dropped may call functions itself.
    drop(STATES.take());
}

/// A function whose state `build` makes, once per actor; operators that call it run on actors. Unless its output
/// columns are declared, one is built and called on an empty batch when the plan is made.
///
/// ```
/// # #[tokio::main] async fn main() -> datafusion::error::Result<()> {
/// use blockyard::{actor, prelude::*};
///
/// let context = DataContext::new()?;
/// let count = actor("count", || {
///     let mut calls = 0; // Loading a model would go here.
///     Ok(move |batch| {
///         calls += 1;
///         Ok(batch)
///     })
/// });
/// let dataset = context.range(1000)?.map_batches_with(count, MapOptions { concurrency: Some((1, 4).into()), ..Default::default() })?;
/// assert_eq!(dataset.count().await?, 1000);
/// # Ok(()) }
/// ```
pub fn actor<A, F>(name: &str, build: F) -> FunctionRef
where
    A: Actor + 'static,
    F: Fn() -> Result<A> + Send + Sync + 'static,
{
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let number = NUMBERS.fetch_add(1, Relaxed);
    FunctionRef::new(ActorFunction { name: name.to_owned(), number, build })
}

struct ActorFunction<F> {
    name: String,
    number: u64,
    build: F,
}

impl<A, F> BatchFunction for ActorFunction<F>
where
    A: Actor + 'static,
    F: Fn() -> Result<A> + Send + Sync + 'static,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn call(&self, batch: RecordBatch) -> Result<RecordBatch> {
        self.prepare()?;
        // While it is called it is out of the map: a panic drops it, and the next call builds another.
        let state = STATES.with_borrow_mut(|states| states.remove(&self.number));
        let Some(mut state) = state else {
            return datafusion::common::internal_err!("'{}' calls itself", self.name);
        };
        let result = state.call(batch);
        STATES.with_borrow_mut(|states| states.insert(self.number, state));
        result
    }

    fn prepare(&self) -> Result<()> {
        if STATES.with_borrow(|states| states.contains_key(&self.number)) {
            return Ok(());
        }
        let state = Box::new((self.build)()?);
        STATES.with_borrow_mut(|states| states.insert(self.number, state));
        Ok(())
    }

    fn is_stateful(&self) -> bool {
        true
    }

    fn infer_schema(&self, input: &SchemaRef) -> Result<SchemaRef> {
        Ok((self.build)()?.call(RecordBatch::new_empty(SchemaRef::clone(input)))?.schema())
    }
}
