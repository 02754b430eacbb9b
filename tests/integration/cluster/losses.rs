//! Executors that die, stop, or start anew while a query runs.

use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use blockyard::prelude::*;
use futures::TryStreamExt;
use tokio::sync::Semaphore;

use super::{driver, executor, process};
use crate::fixtures::{context_with, ints, rows};

/// A function of executors that is held up in one of them, after some batches, until that is let go.
pub(super) fn held_up(context: &DataContext, after: usize) -> (Arc<Semaphore>, Arc<Semaphore>) {
    let (reached, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (tells, waits, calls) = (Arc::clone(&reached), Arc::clone(&go_on), AtomicUsize::new(0));
    context.register_batches("gate", move |batch| {
        if batch.num_rows() > 0 && calls.fetch_add(1, SeqCst) >= after {
            tells.add_permits(1);
            let held = futures::executor::block_on(waits.acquire());
            held.unwrap().forget();
        }
        Ok(batch)
    });
    (reached, go_on)
}

/// Until the session knows that an executor of its query is lost.
pub(super) async fn until_lost(dataset: &Dataset) {
    while !dataset.stats().contains("an executor was lost, unix:") {
        tokio::task::yield_now().await;
    }
}

/// Loses an executor whose function is held up, which goes on when the session knows.
pub(super) async fn lose(
    lost: blockyard::ExecutorServer,
    held_up: (Arc<Semaphore>, Arc<Semaphore>),
    dataset: &Dataset,
) {
    let (reached, go_on) = held_up;
    reached.acquire().await.unwrap().forget();
    drop(lost);
    until_lost(dataset).await;
    go_on.add_permits(100_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_lost_executor_ran_runs_on_another() {
    for (query, comes_back) in [
        ("SELECT id FROM map_batches(range(1000, override_num_blocks => 4), 'gate', batch_size => 10)", false),
        ("SELECT id FROM map_batches(range(1000, override_num_blocks => 40), 'gate', batch_size => 10)", true),
        (
            "SELECT count(*) AS id FROM map_batches(range(1000, override_num_blocks => 4), 'gate', batch_size => 10)",
            false,
        ),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let (lost, kept) = (context_with(1, |_| {}), context_with(1, |_| {}));
        kept.register_batches("gate", Ok);
        let (reached, go_on) = held_up(&lost, 5);
        let servers = [executor(&lost, directory.path(), "0").await, executor(&kept, directory.path(), "1").await];
        let there = driver(&[&servers[0], &servers[1]]);
        there.register_batches("gate", Ok);
        let dataset = there.sql(query).await.unwrap();
        let [first, _second] = servers;
        let lose = async {
            reached.acquire().await.unwrap().forget();
            drop(first);
            until_lost(&dataset).await;
            // Another one at its address, which knows nothing of the query.
            let again = if comes_back { Some(executor(&kept, directory.path(), "0").await) } else { None };
            go_on.add_permits(1000);
            again
        };
        let (batches, _again) = tokio::join!(dataset.take_all(), lose);
        let found = ints(&batches.unwrap(), "id");
        match found.len() {
            1 => assert_eq!(found, [1000]),
            _ => assert_eq!(found, (0..1000).collect::<Vec<_>>()),
        }
        assert!(dataset.stats().contains("an executor was lost, unix:"), "{}", dataset.stats());
    }
}

pub(super) fn signal(child: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_lose_and_double_no_rows() {
    let directory = tempfile::tempdir().unwrap();
    // After how many batches the first one is killed, or asked to end.
    for (round, (batches, how)) in
        [(0, "-TERM"), (0, "-KILL"), (1, "-KILL"), (3, "-TERM"), (7, "-KILL"), (20, "-TERM")].into_iter().enumerate()
    {
        let (mut first, one) = process(directory.path(), &format!("{round}a"));
        let (mut second, other) = process(directory.path(), &format!("{round}b"));
        let there = context_with(2, |options| options.cluster = format!("{one},{other}"));
        let query = "SELECT id, 'some text that is sent ' || id AS s FROM range(2000000) WHERE id % 3 < 2";
        let mut stream = there.sql(query).await.unwrap().stream().await.unwrap();
        let mut found = Vec::new();
        for number in 0.. {
            if number == batches {
                signal(&first, how);
            }
            let Some(batch) = stream.try_next().await.unwrap() else { break };
            found.extend(ints(&[batch], "id"));
        }
        assert!(found.into_iter().eq((0..2_000_000).filter(|id| id % 3 < 2)), "{how} after {batches}");
        for child in [&mut first, &mut second] {
            let _ended = child.kill();
            child.wait().unwrap();
        }
    }
}

/// One that says nothing any more, but whose connections are open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_processes_are_lost() {
    let directory = tempfile::tempdir().unwrap();
    let ((mut first, one), (mut second, other)) = (process(directory.path(), "a"), process(directory.path(), "b"));
    let there = context_with(2, |options| options.cluster = format!("{one},{other}"));
    // One whose stage waits in a queue for its turn.
    let of_queue = there
        .sql("SELECT id FROM map_batches((SELECT id, 'some text that is sent ' || id AS s FROM range(2000000)), 'row_hash', concurrency => 2)")
        .await
        .unwrap();
    let mut queued = of_queue.stream().await.unwrap();
    let mut ids = ints(&[queued.try_next().await.unwrap().unwrap()], "id");
    let query = "SELECT id, 'some text that is sent ' || id AS s FROM range(6000000) WHERE id % 3 < 2";
    let dataset = there.sql(query).await.unwrap();
    let mut stream = dataset.stream().await.unwrap();
    let mut found = ints(&[stream.try_next().await.unwrap().unwrap()], "id");
    signal(&first, "-STOP");
    let queue_goes_on = async {
        while let Some(batch) = queued.try_next().await.unwrap() {
            ids.extend(ints(&[batch], "id"));
        }
        assert!(ids.into_iter().eq(0..2_000_000));
    };
    let goes_on = async {
        while let Some(batch) = stream.try_next().await.unwrap() {
            found.extend(ints(&[batch], "id"));
        }
        assert!(found.into_iter().eq((0..6_000_000).filter(|id| id % 3 < 2)));
    };
    // It is not asked for another query either, and does not say how it is.
    let begins = rows(&there, "EXPLAIN ANALYZE SELECT id FROM range(100) WHERE id > 3");
    let ((), (), plan, statuses) = tokio::join!(queue_goes_on, goes_on, begins, blockyard::executor_statuses(&there));
    assert!(plan.join("\n").contains("executors=1 of 2"), "{plan:?}");
    let living: Vec<bool> = statuses.unwrap().into_iter().map(|(_, status)| status.is_ok()).collect();
    assert_eq!(living, [false, true]);
    let stats = format!("{}{}", dataset.stats(), of_queue.stats());
    assert!(stats.contains("an executor was lost") && stats.contains("it has said nothing for 15 s"), "{stats}");
    for child in [&mut first, &mut second] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
