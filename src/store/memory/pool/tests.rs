//! Shares of operators, refusals, and what queries leave to each other.

use super::*;
use crate::store::tests::{block, store};
use crate::store::{Entry, NextUse, Owner};

fn needs() -> QueryNeeds {
    QueryNeeds { memory: 1 << 20, merge_factor: MIN_MERGE_FACTOR, threads: 2, builders: 1 }
}

#[test]
fn an_operator_pushes_blocks_out() {
    let store = store(1 << 20);
    let pool: Arc<dyn MemoryPool> = Arc::new(SharedMemoryPool::new(Arc::clone(&store)));
    let owner = Arc::new(Owner::default());
    let handles: Vec<_> = (0..8).map(|_| store.put(block(16_000), NextUse::Soon, &owner).unwrap()).collect();
    assert!(store.budget().used() <= 1 << 20);
    let reservation = MemoryConsumer::new("sort").register(&pool);
    reservation.try_grow(850 << 10).unwrap();
    assert!(store.budget().used() <= 1 << 20, "{}", store.budget());
    assert!(owner.spilled_blocks() >= 7);
    for handle in handles {
        assert_eq!(handle.get().unwrap().num_rows(), 16_000);
    }
    drop(reservation);
    assert_eq!((store.budget().execution(), store.budget().blocks()), (0, 0));
}

#[test]
fn partial_aggregates_leave_memory_to_those_behind_them() {
    let pool: Arc<dyn MemoryPool> = Arc::new(SharedMemoryPool::new(store(64 << 20)));
    let register = |name: &str| MemoryConsumer::new(name).with_can_spill(true).register(&pool);
    let [partial, other] = ["PartialHashAggregateStream[0]", "PartialHashAggregateStream[1]"].map(&register);
    let last = ["FinalHashAggregateStream[0]", "FinalHashAggregateStream[1]"].map(register);
    partial.try_grow(10 << 20).unwrap();
    other.try_grow(3 << 20).unwrap();
    other.try_grow(2 << 20).unwrap_err();
    // What is left of seven eighths, by six: for two tables, and twice what they hold while they double or are sorted.
    for last in &last {
        last.try_grow(7 << 20).unwrap();
        last.try_grow(1 << 20).unwrap_err();
    }
}

#[test]
fn growing_by_nothing_succeeds_even_over_the_limit() {
    let pool: Arc<dyn MemoryPool> = Arc::new(SharedMemoryPool::new(store(100)));
    let reservation = MemoryConsumer::new("merge").register(&pool);
    reservation.grow(200);
    reservation.try_grow(0).unwrap();
    let error = reservation.try_grow(1).unwrap_err().to_string();
    assert!(error.contains("merge needs 1B more on top of the 200B"), "{error}");
    assert!(error.contains("held by merge 200B"), "{error}");
}

#[test]
fn what_is_promised_to_another_query_is_left_to_it() {
    let store = store(64 << 20);
    let shared = Arc::new(SharedMemoryPool::new(Arc::clone(&store)));
    let enter = |query, bytes| match store.enter(query, bytes) {
        Entry::Admitted(admission) => admission,
        Entry::Waiting(place) => panic!("{place:?}"),
    };
    let (one, other) = (enter(1, 8 << 20), enter(2, 24 << 20));
    let [greedy, modest] = [(1, &one), (2, &other)].map(|(query, admission)| -> MemoryReservation {
        let bytes = Arc::clone(admission.operators());
        let pool: Arc<dyn MemoryPool> = Arc::new(QueryPool::new(query, needs(), Arc::clone(&shared), bytes));
        MemoryConsumer::new("join").register(&pool)
    });
    greedy.try_grow(33 << 20).unwrap_err();
    greedy.try_grow(32 << 20).unwrap();
    modest.try_grow(24 << 20).unwrap();
    drop((modest, other));
    greedy.try_grow(24 << 20).unwrap();
}

#[test]
fn operators_leave_an_eighth_to_blocks_and_tasks() {
    let pool: Arc<dyn MemoryPool> = Arc::new(SharedMemoryPool::new(store(8 << 20)));
    let reservation = MemoryConsumer::new("join").register(&pool);
    reservation.try_grow(7 << 20).unwrap();
    reservation.try_grow(1).unwrap_err();
    // What is next to nothing comes out of the eighth.
    MemoryConsumer::new("count").register(&pool).try_grow(1000).unwrap();
}

#[test]
fn what_tasks_have_leaves_a_trifle_to_operators() {
    let store = store(8 << 20);
    let owner = Arc::new(Owner::default());
    let tasks = store.working_set(&owner, 9 << 20).unwrap();
    let pool: Arc<dyn MemoryPool> = Arc::new(SharedMemoryPool::new(Arc::clone(&store)));
    let count = MemoryConsumer::new("AggregateStream[0]").register(&pool);
    let groups = MemoryConsumer::new("FinalHashAggregateStream[0]").with_can_spill(true).register(&pool);
    count.try_grow(1000).unwrap();
    groups.try_grow(1000).unwrap();
    // This one can spill what it has.
    groups.try_grow(1000).unwrap_err();
    count.try_grow(600 << 10).unwrap_err();
    drop(tasks);
    count.try_grow(600 << 10).unwrap();
}

#[test]
fn a_sort_begins_whatever_others_have() {
    let store = store(16 << 20);
    let owner = Arc::new(Owner::default());
    let _tasks = store.working_set(&owner, 17 << 20).unwrap();
    let pool: Arc<dyn MemoryPool> = Arc::new(SharedMemoryPool::new(Arc::clone(&store)));
    let sort = MemoryConsumer::new("ExternalSorter[0]").with_can_spill(true).register(&pool);
    sort.try_grow(9 << 20).unwrap_err();
    sort.try_grow(8 << 20).unwrap();
    // Now there is something to spill.
    sort.try_grow(2 << 20).unwrap_err();
}

#[test]
fn holders_are_known_by_their_query() {
    let shared = Arc::new(SharedMemoryPool::new(store(1 << 20)));
    let pool: Arc<dyn MemoryPool> = Arc::new(QueryPool::new(7, needs(), Arc::clone(&shared), Arc::default()));
    let reservation = MemoryConsumer::new("sort").with_can_spill(true).register(&pool);
    reservation.try_grow(100).unwrap();
    reservation.shrink(60);
    let holders = shared.holders();
    assert_eq!(holders.len(), 1);
    assert_eq!((holders[0].query, holders[0].bytes, holders[0].peak_bytes), (7, 40, 100));
    drop(reservation);
    assert!(shared.holders().is_empty());
}
