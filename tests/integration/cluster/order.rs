//! Shuffles, sorts and windows of executors, whose rows come as those of one process do.

use blockyard::prelude::*;

use super::exchanges::{TABLES, exchanging, sorted};
use super::executor;
use super::losses::{held_up, lose};
use crate::fixtures::{context_with, lines, mib, rows};

/// A session that sorts rows with equal keys as they came, however few there are.
async fn stable(context: DataContext) -> DataContext {
    context.sql("SET blockyard.prefer_resumable_plans = true").await.unwrap();
    context
}

const IN_ORDER: [&str; 9] = [
    "SELECT * FROM random_shuffle(a, seed => 3)",
    "SELECT * FROM random_shuffle(a, seed => 4, num_blocks => 7) WHERE k > 9",
    "SELECT * FROM a ORDER BY t, d DESC",
    "SELECT id, k FROM a WHERE id % 3 = 1 ORDER BY k DESC NULLS LAST",
    "SELECT * FROM (SELECT id, repeat('x', 600) || t AS s FROM a) ORDER BY s",
    "SELECT * FROM repartition(a, 5, keys => ['k', 't'], sort => true)",
    "SELECT * FROM (SELECT * FROM random_shuffle(a, seed => 5)) s TABLESAMPLE BERNOULLI (30) REPEATABLE (6)",
    "SELECT id, d FROM random_shuffle(a, seed => 1) ORDER BY d",
    "SELECT id FROM random_shuffle((SELECT id FROM a WHERE id < 0), seed => 1)",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_shuffle_and_sort_in_the_order_of_one_process() {
    let directory = tempfile::tempdir().unwrap();
    let here = stable(context_with(2, |_| {})).await;
    let small = context_with(1, |options| options.memory_limit = mib(64));
    let servers = [executor(&small, directory.path(), "0").await, executor(&small, directory.path(), "1").await];
    let there = stable(exchanging(format!("{},{}", servers[0].address(), servers[1].address()))).await;
    for context in [&here, &there] {
        context.sql(TABLES).await.unwrap();
    }
    for query in IN_ORDER {
        let plan = rows(&there, &format!("EXPLAIN ANALYZE {query}")).await.join("\n");
        assert!(plan.contains(", executors=2") && plan.contains(", by executors"), "{query}: {plan}");
        assert_eq!(rows(&there, query).await, rows(&here, query).await, "{query}");
    }
    // Files of shuffled rows, as many and with the same names.
    let [ours, theirs] = ["ours", "theirs"].map(|name| format!("{}/{name}/", directory.path().display()));
    let copy = |to: &str| {
        format!("COPY (SELECT * FROM random_shuffle(a, seed => 2, num_blocks => 6)) TO '{to}' STORED AS CSV")
    };
    rows(&here, &copy(&ours)).await;
    let dataset = there.sql(&copy(&theirs)).await.unwrap();
    dataset.take_all().await.unwrap();
    assert!(dataset.stats().contains(" files"), "{}", dataset.stats());
    for number in 0..6 {
        let file = format!("part-{number:06}.csv");
        let [ours, theirs] = [&ours, &theirs].map(|directory| std::fs::read(format!("{directory}{file}")).unwrap());
        assert!(ours == theirs, "{file}");
    }
}

/// Whatever is lost is made again, in its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_lost_of_a_shuffle_comes_in_its_place() {
    for (query, after) in [
        ("SELECT * FROM map_batches(random_shuffle(a, seed => 3, num_blocks => 9), 'gate', batch_size => 500)", 3),
        ("SELECT * FROM random_shuffle(map_batches(a, 'gate', batch_size => 500), seed => 3)", 3),
        ("SELECT * FROM map_batches(a, 'gate', batch_size => 500) ORDER BY t, k", 2),
        (
            "SELECT * FROM map_batches((SELECT k, t, n, count(*) AS m FROM (SELECT *, row_number() OVER (PARTITION BY k \
             ORDER BY id) AS n FROM a) GROUP BY k, t, n), 'gate', batch_size => 500) ORDER BY k, t, n, m",
            1,
        ),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let small = || context_with(1, |options| options.memory_limit = mib(64));
        let (lost, kept, here) = (small(), small(), stable(context_with(2, |_| {})).await);
        kept.register_batches("gate", Ok);
        here.register_batches("gate", Ok);
        let held_up = held_up(&lost, after);
        let servers = [executor(&lost, directory.path(), "0").await, executor(&kept, directory.path(), "1").await];
        let there = stable(exchanging(format!("{},{}", servers[0].address(), servers[1].address()))).await;
        there.register_batches("gate", Ok);
        for context in [&here, &there] {
            context.sql(TABLES).await.unwrap();
        }
        let dataset = there.sql(query).await.unwrap();
        let [first, _second] = servers;
        let (batches, ()) = tokio::join!(dataset.take_all(), lose(first, held_up, &dataset));
        let found = lines(&batches.unwrap());
        assert_eq!(found, rows(&here, query).await, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_evaluate_windows_by_partitions() {
    let directory = tempfile::tempdir().unwrap();
    let here = context_with(2, |_| {});
    let small = context_with(1, |options| options.memory_limit = mib(64));
    let servers = [executor(&small, directory.path(), "0").await, executor(&small, directory.path(), "1").await];
    let there = exchanging(format!("{},{}", servers[0].address(), servers[1].address()));
    for context in [&here, &there] {
        context.sql(TABLES).await.unwrap();
    }
    for (query, exchanges) in [
        ("SELECT id, lag(t) OVER (PARTITION BY k ORDER BY id), count(*) OVER (PARTITION BY k) FROM a", 1),
        ("SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY t ORDER BY d, id) AS r FROM a) WHERE r < 3", 1),
        ("SELECT id, sum(id) OVER (PARTITION BY k), ntile(4) OVER (PARTITION BY t ORDER BY id) FROM a WHERE id > 9", 2),
        ("SELECT k, avg(id) OVER (PARTITION BY k ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM a", 1),
        ("SELECT r, count(*) FROM (SELECT rank() OVER (PARTITION BY k ORDER BY id) AS r FROM a) GROUP BY r", 2),
        ("SELECT k, t, n, max(n) OVER (PARTITION BY k, t) FROM (SELECT k, t, count(*) AS n FROM a GROUP BY k, t)", 1),
        // Without keys there is one partition.
        ("SELECT id, sum(id) OVER (ORDER BY id) FROM a", 0),
    ] {
        let plan = rows(&there, &format!("EXPLAIN {query}")).await.join("\n");
        assert_eq!(plan.matches("RemoteExchangeExec").count(), exchanges, "{query}: {plan}");
        assert_eq!(sorted(&there, query).await, sorted(&here, query).await, "{query}");
    }
}
