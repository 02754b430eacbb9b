//! Joins and groups of executors, which exchange rows for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use blockyard::prelude::*;
use datafusion::arrow::array::RecordBatch;
use futures::TryStreamExt;

use super::losses::{held_up, lose, signal};
use super::{driver, executor, process};
use crate::fixtures::{context_with, ints, lines, mib, rows, sql_error};

/// A session that has its executors join and group, however few rows there are.
pub(super) fn exchanging(cluster: String) -> DataContext {
    context_with(2, |options| {
        options.cluster = cluster;
        options.cluster_exchange_min_rows = 0;
    })
}

/// Rows in an order of their own: joins and groups give them as they come.
pub(super) async fn sorted(context: &DataContext, query: &str) -> Vec<String> {
    let mut rows = rows(context, query).await;
    rows.sort_unstable();
    rows
}

/// Tables whose keys are null, equal for many rows, and of several types.
pub(super) const TABLES: &str = "
    CREATE VIEW a AS SELECT id, CASE WHEN id % 13 = 0 THEN NULL WHEN id % 5 = 0 THEN 7 ELSE id % 3001 END AS k,
        'text ' || (id % 97) AS t, CAST(id % 11 AS DOUBLE) / 4 AS d FROM range(20000, override_num_blocks => 9);
    CREATE VIEW b AS SELECT id + 500 AS id, CASE WHEN id % 17 = 0 THEN NULL ELSE id % 1999 END AS k,
        'text ' || (id % 113) AS t, CAST(id % 7 AS DOUBLE) / 2 - 0.5 AS d FROM range(6000, override_num_blocks => 5);
    CREATE VIEW c AS SELECT id, id % 50 AS k FROM range(300, override_num_blocks => 2)";

/// Queries with exchanges, and how many: with sides that all executors have whole, and with both sides by keys.
const QUERIES: [(&str, (usize, usize)); 21] = [
    (
        "SELECT k, sum(n) FROM (SELECT k, count(*) AS n FROM a GROUP BY k UNION ALL SELECT k, count(*) AS n FROM b GROUP BY k) \
         GROUP BY k",
        (2, 2),
    ),
    ("SELECT k, t, rank() OVER (PARTITION BY k ORDER BY sum(id) DESC) FROM a GROUP BY k, t", (2, 2)),
    ("SELECT k, array_agg(id ORDER BY id) FROM (SELECT k, max(id) AS id FROM a GROUP BY k, t) GROUP BY k", (1, 1)),
    ("SELECT k, count(*), sum(id), min(t), max(d) FROM a GROUP BY k", (1, 1)),
    ("SELECT t, d, count(DISTINCT k) FROM a GROUP BY t, d", (2, 2)),
    ("SELECT count(DISTINCT t), count(DISTINCT id) FROM a", (1, 1)),
    ("SELECT DISTINCT t, k % 10 FROM a WHERE id > 77", (1, 1)),
    ("SELECT k, t, count(*) FROM a GROUP BY ROLLUP (k, t)", (1, 1)),
    ("SELECT a.id, b.id, a.t FROM a JOIN b ON a.k = b.k AND a.id < b.id", (1, 2)),
    ("SELECT a.id, b.id FROM a LEFT JOIN b ON a.id = b.id", (1, 2)),
    ("SELECT a.id, b.id FROM a RIGHT JOIN b ON a.id = b.id AND a.t <> b.t", (2, 2)),
    ("SELECT a.id, a.k, b.id, b.k FROM a FULL JOIN b ON a.id = b.id AND a.d = b.d", (2, 2)),
    ("SELECT id, t FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.d > 0)", (1, 2)),
    ("SELECT id FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.id = a.id)", (1, 2)),
    ("SELECT a.t, b.t, count(*), sum(a.d * b.d) FROM a JOIN b USING (id) GROUP BY a.t, b.t", (2, 3)),
    (
        "SELECT x.k, n, count(*) FROM (SELECT k, count(*) AS n FROM a GROUP BY k) x JOIN b ON x.k = b.k GROUP BY x.k, n",
        (3, 4),
    ),
    ("SELECT a.id, b.t, c.k FROM a JOIN b ON a.id = b.id JOIN c ON b.k = c.id", (2, 4)),
    ("SELECT a.k, count(*) FROM a JOIN b ON a.d = b.d AND a.t = b.t GROUP BY a.k HAVING count(*) > 3", (2, 3)),
    ("SELECT k, count(*) AS n FROM a GROUP BY k ORDER BY n DESC, k LIMIT 10", (1, 1)),
    ("SELECT k, count(*) FROM a WHERE id < 0 GROUP BY k", (1, 1)),
    ("SELECT sum(n), count(*) FROM (SELECT id, count(*) AS n FROM map_batches(a, 'identity') GROUP BY id)", (1, 1)),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_join_and_group_as_one_process_does() {
    let directory = tempfile::tempdir().unwrap();
    let here = context_with(2, |_| {});
    let small = context_with(1, |options| options.memory_limit = mib(64));
    let servers = [executor(&small, directory.path(), "0").await, executor(&small, directory.path(), "1").await];
    let there = exchanging(format!("{},{}", servers[0].address(), servers[1].address()));
    let spilling = exchanging(format!("{},{}", servers[0].address(), servers[1].address()));
    spilling.sql("SET blockyard.prefer_spilling_joins = true").await.unwrap();
    for context in [&here, &there, &spilling] {
        context.sql(TABLES).await.unwrap();
    }
    for (query, exchanges) in QUERIES {
        let expected = sorted(&here, query).await;
        for (context, exchanges) in [(&there, exchanges.0), (&spilling, exchanges.1)] {
            let plan = rows(context, &format!("EXPLAIN ANALYZE {query}")).await.join("\n");
            assert_eq!(plan.matches("RemoteExchangeExec").count(), exchanges, "{query}: {plan}");
            assert!(plan.contains("executors=2"), "{query}: {plan}");
            assert_eq!(sorted(context, query).await, expected, "{query}");
        }
    }
}

/// Few rows come to the session's process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_exchange_no_few_rows() {
    let directory = tempfile::tempdir().unwrap();
    let server = executor(&context_with(1, |_| {}), directory.path(), "0").await;
    let there = context_with(2, |options| options.cluster = server.address());
    let query =
        |rows: usize| format!("EXPLAIN SELECT k, count(*) FROM (SELECT id / 2 AS k FROM range({rows})) GROUP BY k");
    for (number, exchanges) in [(10_000, 0), (10_000_000, 1)] {
        let plan = rows(&there, &query(number)).await.join("\n");
        assert_eq!(plan.matches("RemoteExchangeExec").count(), exchanges, "{plan}");
    }
}

/// Plans that a query has twice run once, with stages below them. Their joins have one side in the session's process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_over_stages_are_shared_as_they_are_in_one_process() {
    let directory = tempfile::tempdir().unwrap();
    let server = executor(&context_with(1, |_| {}), directory.path(), "0").await;
    let (here, there) = (context_with(2, |_| {}), context_with(2, |options| options.cluster = server.address()));
    let query = "WITH joined AS (SELECT a.k, count(*) AS n, count(b.id) AS matched, sum(a.id + coalesce(b.id, 0)) AS s \
                 FROM a LEFT JOIN b ON a.id = b.id GROUP BY a.k) \
                 SELECT x.k, x.n, x.matched, x.s, y.n AS m, y.s AS t FROM joined x JOIN joined y ON x.k = y.k + 1 \
                 UNION ALL SELECT k, n, matched, s, 0 AS m, 0 AS t FROM joined";
    for context in [&here, &there] {
        context.sql(TABLES).await.unwrap();
    }
    let plan = rows(&there, &format!("EXPLAIN ANALYZE {query}")).await.join("\n");
    assert!(plan.contains("plan=0, reader=3") && plan.contains("executors=1"), "{plan}");
    assert_eq!(sorted(&there, query).await, sorted(&here, query).await);
}

/// Equal stages of a query have rows of their own, of whichever the executors have run at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_stages_keep_their_rows_apart() {
    let directory = tempfile::tempdir().unwrap();
    let (calls, given) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let small = context_with(1, |options| options.memory_limit = mib(64));
    let counts = Arc::clone(&given);
    small.register_batches("uneven", move |batch: RecordBatch| {
        let rows = batch.num_rows().saturating_sub(calls.fetch_add(1, SeqCst) % 7);
        counts.fetch_add(rows, SeqCst);
        Ok(batch.slice(0, rows))
    });
    let servers = [executor(&small, directory.path(), "0").await, executor(&small, directory.path(), "1").await];
    let there = exchanging(format!("{},{}", servers[0].address(), servers[1].address()));
    there.register_batches("uneven", Ok);
    there.sql("SET blockyard.optimize_shared_subplans = false").await.unwrap();
    let groups = "SELECT id % 500 AS k, count(*) AS n FROM map_batches(range(20000, override_num_blocks => 9), 'uneven') \
                  GROUP BY k";
    let query = [groups; 4].join(" UNION ALL ");
    for _ in 0..5 {
        given.store(0, SeqCst);
        let sum = rows(&there, &format!("SELECT sum(n) FROM ({query})")).await;
        assert_eq!(sum, [given.load(SeqCst).to_string()]);
    }
}

/// An executor is lost while it makes what is exchanged, or while it makes something of that, or keeps it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_lost_executor_has_exchanged_is_made_again() {
    let below = "SELECT k, count(*), sum(id) FROM (SELECT id, id % 1000 AS k FROM map_batches(range(100000, \
                 override_num_blocks => 16), 'gate')) GROUP BY k";
    let above = "SELECT * FROM map_batches((SELECT a.id, b.id * 2 AS s FROM range(50000, override_num_blocks => 7) a JOIN \
                 range(80000, override_num_blocks => 5) b ON a.id = b.id), 'gate')";
    let between = "SELECT k, count(*), sum(s) FROM (SELECT id % 500 AS k, s FROM map_batches((SELECT a.id, b.id * 2 AS s \
                   FROM range(50000, override_num_blocks => 7) a JOIN range(80000, override_num_blocks => 5) b ON a.id = \
                   b.id), 'gate')) GROUP BY k";
    // Behind how many batches: it runs one unit at least.
    for (query, after, by_keys) in [
        (below, 0, false),
        (below, 1, false),
        (above, 0, false),
        (above, 0, true),
        (between, 0, false),
        (between, 0, true),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let here = context_with(2, |_| {});
        let (lost, kept) = (context_with(1, |_| {}), context_with(1, |_| {}));
        let held_up = held_up(&lost, after);
        let servers = [executor(&lost, directory.path(), "0").await, executor(&kept, directory.path(), "1").await];
        let there = exchanging(format!("{},{}", servers[0].address(), servers[1].address()));
        for context in [&here, &kept, &there] {
            context.register_batches("gate", Ok);
        }
        there.sql(&format!("SET blockyard.prefer_spilling_joins = {by_keys}")).await.unwrap();
        let expected = sorted(&here, query).await;
        let dataset = there.sql(query).await.unwrap();
        let [first, _second] = servers;
        let (batches, ()) = tokio::join!(dataset.take_all(), lose(first, held_up, &dataset));
        let mut found = lines(&batches.unwrap());
        found.sort_unstable();
        assert!(found == expected, "{query} after {after}: {} rows, not {}", found.len(), expected.len());
        let stats = dataset.stats();
        assert!(stats.contains("an executor was lost, unix:"), "{query} after {after}: {stats}");
        assert!(stats.contains(" exchanged by executors"), "{query} after {after}: {stats}");
    }
}

/// Processes that are killed at some moment of a join.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_lose_nothing_of_a_join() {
    let directory = tempfile::tempdir().unwrap();
    let query = "SELECT a.id AS id, b.t FROM range(600000, override_num_blocks => 20) a JOIN (SELECT id * 2 AS id, 'some text \
                 that is exchanged ' || id AS t FROM range(600000, override_num_blocks => 20)) b ON a.id = b.id";
    // After how many batches the first one is killed, or asked to end; or at once, while it works below the join.
    for (round, (batches, how)) in
        [(None, "-KILL"), (Some(0), "-KILL"), (Some(0), "-TERM"), (Some(5), "-KILL"), (Some(20), "-TERM")]
            .into_iter()
            .enumerate()
    {
        let (mut first, one) = process(directory.path(), &format!("{round}a"));
        let (mut second, other) = process(directory.path(), &format!("{round}b"));
        let there = exchanging(format!("{one},{other}"));
        let mut stream = there.sql(query).await.unwrap().stream().await.unwrap();
        if batches.is_none() {
            signal(&first, how);
        }
        let mut found = Vec::new();
        for number in 0.. {
            if batches == Some(number) {
                signal(&first, how);
            }
            let Some(batch) = stream.try_next().await.unwrap() else { break };
            found.extend(ints(&[batch], "id"));
        }
        found.sort_unstable();
        assert!(found.into_iter().eq((0..600_000).step_by(2)), "{how} after {batches:?}");
        for child in [&mut first, &mut second] {
            let _ended = child.kill();
            child.wait().unwrap();
        }
    }
}

/// All executors at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_whose_executors_are_all_lost_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let ((mut first, one), (mut second, other)) = (process(directory.path(), "a"), process(directory.path(), "b"));
    let there = Arc::new(exchanging(format!("{one},{other}")));
    let query = "SELECT k, count(*) FROM (SELECT id % 1000003 AS k FROM range(30000000)) GROUP BY k";
    let dataset = there.sql(query).await.unwrap();
    let mut stream = dataset.stream().await.unwrap();
    let killed = async {
        for child in [&mut first, &mut second] {
            signal(child, "-KILL");
            child.wait().unwrap();
        }
    };
    let (next, ()) = tokio::join!(stream.try_next(), killed);
    let error = next.unwrap_err().to_string();
    assert!(error.contains("all executors that have planned the query were lost"), "{error}");
}

/// Sessions that name the same executors in another order, whose memory is for few queries at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn queries_at_once_do_not_wait_for_each_other_in_a_circle() {
    let directory = tempfile::tempdir().unwrap();
    let small = || context_with(1, |options| options.memory_limit = mib(16));
    let servers = [executor(&small(), directory.path(), "0").await, executor(&small(), directory.path(), "1").await];
    let (one, other) = (servers[0].address(), servers[1].address());
    let query = "SELECT a.k, count(*) AS n FROM (SELECT id, id % 100 AS k FROM range(20000)) a JOIN range(30000) b ON a.id \
                 = b.id GROUP BY a.k ORDER BY a.k";
    let expected = rows(&context_with(2, |_| {}), query).await;
    let sessions: Vec<_> = (0..12)
        .map(|number| if number % 2 == 0 { format!("{one},{other}") } else { format!("{other},{one}") })
        .map(exchanging)
        .collect();
    let found = futures::future::join_all(sessions.iter().map(|session| rows(session, query))).await;
    assert!(found.iter().all(|rows| *rows == expected));
}

/// One that has no token to show to the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_that_may_not_ask_others_is_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let session = || context_with(1, |_| {});
    let options = |listen: &str, token: Option<&str>| blockyard::ExecutorOptions {
        listen: listen.to_owned(),
        token: token.map(str::to_owned),
        ..Default::default()
    };
    let with_token = blockyard::ExecutorServer::bind(&session(), options("tcp:127.0.0.1:0", Some("t"))).await.unwrap();
    let without = executor(&session(), directory.path(), "0").await;
    let token = directory.path().join("token");
    std::fs::write(&token, "t").unwrap();
    let there = context_with(2, |options| {
        options.cluster = format!("{},{}", with_token.address(), without.address());
        options.cluster_token_file = token.display().to_string();
        options.cluster_exchange_min_rows = 0;
    });
    let query = "SELECT k, count(*) AS n FROM (SELECT id % 1000 AS k FROM range(50000)) GROUP BY k";
    let dataset = there.sql(query).await.unwrap();
    assert_eq!(lines(&dataset.take_all().await.unwrap()).len(), 1000);
    let stats = dataset.stats();
    let without = format!("{} has no token to show to others, and runs nothing above an exchange", without.address());
    assert!(stats.contains(&without) && !stats.contains("was lost") && !stats.contains("made again"), "{stats}");
}

/// Whoever runs nothing is named, with the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_that_run_nothing_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let (without, with) = (context_with(1, |_| {}), context_with(1, |_| {}));
    with.register_batches("same", Ok);
    let without = executor(&without, directory.path(), "0").await;
    let with = executor(&with, directory.path(), "1").await;
    let there = driver(&[&without, &with]);
    there.register_batches("same", Ok);
    let dataset = there.sql("SELECT * FROM map_batches(range(1000), 'same')").await.unwrap();
    assert_eq!(lines(&dataset.take_all().await.unwrap()).len(), 1000);
    let stats = dataset.stats();
    assert!(stats.contains(&format!("{} cannot plan the statement: ", without.address())), "{stats}");
}

/// A name that stands for nothing is an executor that cannot be reached, and one that is named twice a mistake.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_hosts_are_looked_up_when_they_are_used() {
    let directory = tempfile::tempdir().unwrap();
    let server = executor(&context_with(1, |_| {}), directory.path(), "0").await;
    let with = |cluster: String| context_with(2, move |options| options.cluster = cluster);
    let there = with(format!("tcp:host.invalid:7101,{}", server.address()));
    let dataset = there.sql("SELECT count(*) FROM range(100000) WHERE id > 7").await.unwrap();
    dataset.take_all().await.unwrap();
    let stats = dataset.stats();
    assert!(stats.contains("could not be reached, tcp:host.invalid:7101: cannot connect"), "{stats}");
    let error = sql_error(&with(format!("{0},{0}", server.address())), "SELECT count(*) FROM range(100000)").await;
    assert!(error.contains("names unix:") && error.contains("twice"), "{error}");
}

/// One side of a join comes from executors, the other one is of this process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sides_of_executors_meet_those_of_the_session() {
    let directory = tempfile::tempdir().unwrap();
    let server = executor(&context_with(1, |_| {}), directory.path(), "0").await;
    let (here, there) = (context_with(2, |_| {}), exchanging(server.address()));
    for context in [&here, &there] {
        context.sql(TABLES).await.unwrap();
        context.sql("CREATE TABLE m AS SELECT * FROM b").await.unwrap().take_all().await.unwrap();
        context.sql("SET datafusion.optimizer.hash_join_single_partition_threshold = 0").await.unwrap();
        context.sql("SET datafusion.optimizer.hash_join_single_partition_threshold_rows = 0").await.unwrap();
    }
    let grouped = |table: &str| format!("(SELECT k, t, count(*) AS n FROM {table} GROUP BY k, t)");
    for (left, right) in [("a", "m"), ("m", "a")] {
        for (kind, on) in [("", "x.k = y.k"), ("FULL", "x.k = y.k AND x.t = y.t"), ("LEFT", "x.t = y.t AND x.n = y.n")]
        {
            let query = format!(
                "SELECT x.k, y.t, count(*), sum(x.n), sum(y.n) FROM {} x {kind} JOIN {} y ON {on} GROUP BY x.k, y.t",
                grouped(left),
                grouped(right)
            );
            let plan = rows(&there, &format!("EXPLAIN {query}")).await.join("\n");
            assert!(plan.contains("RemoteExchangeExec"), "{plan}");
            assert_eq!(sorted(&there, &query).await, sorted(&here, &query).await, "{query}: {plan}");
        }
    }
}
