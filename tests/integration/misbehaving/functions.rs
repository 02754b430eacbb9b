//! The functions. All of them take and give a column `id` of Int64.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

use blockyard::functions::from_closure;
use blockyard::{FunctionRef, actor};
use datafusion::arrow::array::{Int64Array, RecordBatch};
use datafusion::common::{Result, exec_err};

use crate::fixtures::ints;

pub(super) fn ids_of(batch: &RecordBatch) -> Vec<i64> {
    ints(std::slice::from_ref(batch), "id")
}

/// Fails for every `k`-th id.
pub(super) fn fails_for_every(k: i64) -> FunctionRef {
    from_closure(move |batch| match ids_of(&batch).into_iter().find(|id| id % k == k - 1) {
        Some(id) => exec_err!("id {id} is bad"),
        None => Ok(batch),
    })
}

/// Panics for every `k`-th id.
#[expect(clippy::panic, reason = "it misbehaves")]
pub(super) fn panics_for_every(k: i64) -> FunctionRef {
    from_closure(move |batch| match ids_of(&batch).into_iter().find(|id| id % k == k - 1) {
        Some(id) => panic!("id {id} is worse"),
        None => Ok(batch),
    })
}

/// Fails at every `k`-th call with rows, and succeeds when it is tried again. Counts its calls.
pub(super) fn fails_at_every(k: usize) -> (FunctionRef, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let function = from_closure(move |batch: RecordBatch| {
        if batch.num_rows() > 0 && counted.fetch_add(1, SeqCst) % k == k - 1 {
            return exec_err!("the service was away for a moment");
        }
        Ok(batch)
    });
    (function, calls)
}

/// Returns columns that it did not declare, for batches with rows.
pub(super) fn returns_other_columns() -> FunctionRef {
    from_closure(|batch: RecordBatch| match batch.num_rows() {
        0 => Ok(batch),
        rows => {
            let names = Arc::new(Int64Array::from(vec![1; rows])) as _;
            Ok(RecordBatch::try_from_iter([("surprise", names)])?)
        }
    })
}

/// Returns a row less than it got.
pub(super) fn loses_a_row() -> FunctionRef {
    from_closure(|batch: RecordBatch| Ok(batch.slice(0, batch.num_rows().saturating_sub(1))))
}

/// Returns so many rows for each that it got.
pub(super) fn returns_a_lot(times: usize) -> FunctionRef {
    from_closure(move |batch: RecordBatch| {
        let ids = ids_of(&batch).into_iter().flat_map(|id| std::iter::repeat_n(id, times));
        Ok(RecordBatch::try_from_iter([("id", Arc::new(Int64Array::from_iter_values(ids)) as _)])?)
    })
}

/// Keeps all batches that it has seen.
pub(super) fn keeps_what_it_sees() -> FunctionRef {
    let seen = Mutex::new(Vec::new());
    from_closure(move |batch: RecordBatch| {
        seen.lock().unwrap().push(batch.clone());
        Ok(batch)
    })
}

/// A gate that is closed until somebody opens it.
#[derive(Debug, Default)]
pub(super) struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
    pub(super) waiting: AtomicUsize,
}

impl Gate {
    pub(super) fn pass(&self) {
        self.waiting.fetch_add(1, SeqCst);
        let open = self.open.lock().unwrap();
        drop(self.changed.wait_while(open, |open| !*open).unwrap());
    }

    pub(super) fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

/// Hangs until the gate opens.
pub(super) fn hangs(gate: &Arc<Gate>) -> FunctionRef {
    let gate = Arc::clone(gate);
    from_closure(move |batch: RecordBatch| {
        if batch.num_rows() > 0 {
            gate.pass();
        }
        Ok(batch)
    })
}

/// An actor that is not built before the gate opens.
pub(super) fn slow_to_build(gate: &Arc<Gate>) -> FunctionRef {
    let gate = Arc::clone(gate);
    actor("slow", move || {
        gate.pass();
        Ok(Ok)
    })
}

/// An actor that counts its calls and panics at the third. Each actor that is built begins to count anew.
pub(super) fn actor_that_panics(built: &Arc<AtomicUsize>) -> FunctionRef {
    let built = Arc::clone(built);
    actor("fragile", move || {
        built.fetch_add(1, SeqCst);
        let mut calls = 0;
        Ok(move |batch: RecordBatch| -> Result<RecordBatch> {
            calls += 1;
            assert!(calls != 3, "the third call is too much");
            Ok(batch)
        })
    })
}
