mod encrypted;
mod exchanges;
mod losses;
mod order;
mod stores;
mod writes;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use blockyard::prelude::*;
use blockyard::{ExecutorOptions, ExecutorServer};
use datafusion::arrow::array::RecordBatch;
use futures::TryStreamExt;

use crate::fixtures::{context, context_with, mib, rows, sql_error};

/// An executor of a session, at a socket that another one may be about to leave.
async fn executor(context: &DataContext, directory: &Path, name: &str) -> ExecutorServer {
    let listen = format!("unix:{}", directory.join(name).display());
    loop {
        let options = ExecutorOptions { listen: listen.clone(), ..Default::default() };
        match ExecutorServer::bind(context, options).await {
            Err(e) if e.to_string().contains("there is something already") => tokio::task::yield_now().await,
            server => return server.unwrap(),
        }
    }
}

/// A session that has these executors.
fn driver(executors: &[&ExecutorServer]) -> DataContext {
    let addresses: Vec<String> = executors.iter().map(|executor| executor.address()).collect();
    context_with(2, |options| options.cluster = addresses.join(","))
}

/// An executor as a process of its own, and where it is.
fn process(directory: &Path, name: &str) -> (Child, String) {
    process_with(directory, name, &[])
}

/// The same with these variables.
fn process_with(directory: &Path, name: &str, variables: &[(&str, &str)]) -> (Child, String) {
    let listen = format!("unix:{}", directory.join(name).display());
    let mut child = Command::new(env!("CARGO_BIN_EXE_blockyard"))
        .args(["cluster", "executor", "--threads", "1", "--memory", "64MiB", "--listen", &listen])
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim(), format!("listening on {listen}"));
    (child, listen)
}

/// Queries whose stages run elsewhere, with functions, aggregates, first rows, joins and files.
fn queries(files: &str) -> Vec<String> {
    [
        "SELECT id, id * 2 AS b FROM range(100000) WHERE id % 7 = 3",
        "SELECT id % 10 AS k, count(*), sum(id) FROM range(100000) GROUP BY k ORDER BY k",
        "SELECT count(*) FROM range(100000) WHERE id > 7",
        "SELECT id FROM range(100000) ORDER BY id DESC LIMIT 5",
        "SELECT id FROM range(100000) WHERE id > 99 LIMIT 5 OFFSET 3",
        "SELECT id FROM map_batches(range(1000), 'identity', batch_size => 10)",
        "SELECT id FROM map_batches(range(1000, override_num_blocks => 9), 'identity', concurrency => 1)",
        "SELECT sum(id) FROM map_batches(range(1000, override_num_blocks => 9), 'row_hash', concurrency => 3)",
        "SELECT id FROM map_batches(range(1000, override_num_blocks => 9), 'identity', compute => 'actors(2)')",
        "SELECT id FROM map_batches(map_batches('FILES', 'identity', compute => 'actors(2)'), 'row_hash') WHERE id < 77",
        "SELECT k, count(*) FROM map_batches('FILES', 'identity', compute => 'actors(2)') GROUP BY k ORDER BY k",
        "SELECT id FROM random_shuffle(map_batches(range(500), 'identity', compute => 'actors(1..2)'), seed => 5)",
        "SELECT id FROM map_batches(range(1000), 'identity', compute => 'actors(2)') LIMIT 7",
        "SELECT * FROM random_shuffle((SELECT id FROM range(1000) WHERE id % 2 = 0), seed => 3)",
        "SELECT a.id FROM range(1000) a JOIN range(2000) b ON a.id = b.id - 500 ORDER BY 1",
        "SELECT s, row_number FROM read_parquet('FILES', include_row_numbers => true) WHERE k < 2",
        "SELECT k, min(s), max(s) FROM 'FILES' GROUP BY k ORDER BY k",
        "SELECT count(*) FROM 'FILES' TABLESAMPLE BERNOULLI (50) REPEATABLE (1)",
        "SELECT s FROM 'FILES' WHERE k IS NULL UNION ALL SELECT s FROM 'FILES' WHERE k = 1",
    ]
    .map(|query| query.replace("FILES", files))
    .to_vec()
}

const FILES: &str = "COPY (SELECT id, CASE WHEN id % 11 = 0 THEN NULL ELSE id % 4 END AS k, 'row ' || id AS s FROM range(5000, \
                     override_num_blocks => 5)) TO 'FILES' STORED AS PARQUET";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_give_the_rows_of_one_process() {
    let directory = tempfile::tempdir().unwrap();
    let files = format!("{}/t/", directory.path().display());
    let here = context();
    here.sql(&FILES.replace("FILES", &files)).await.unwrap().take_all().await.unwrap();
    let small = context_with(1, |options| options.memory_limit = mib(64));
    let servers = [executor(&small, directory.path(), "0").await, executor(&small, directory.path(), "1").await];
    let there = driver(&[&servers[0], &servers[1]]);
    for query in queries(&files) {
        let expected = rows(&here, &query).await;
        let dataset = there.sql(&query).await.unwrap();
        let batches = dataset.take_all().await.unwrap();
        let shown = datafusion::arrow::util::pretty::pretty_format_batches(&batches).unwrap().to_string();
        assert!(dataset.stats().contains("Remote("), "{query}: {}", dataset.stats());
        assert_eq!(rows(&there, &query).await, expected, "{query}: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_and_external_tables_are_known_to_executors_and_tables_in_memory_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let files = format!("{}/t/", directory.path().display());
    let server = executor(&context(), directory.path(), "0").await;
    let there = driver(&[&server]);
    there.sql(&FILES.replace("FILES", &files)).await.unwrap().take_all().await.unwrap();
    there
        .sql(&format!(
            "CREATE EXTERNAL TABLE e STORED AS PARQUET LOCATION '{files}'; CREATE VIEW v AS SELECT s FROM e WHERE k = 1;
             CREATE TABLE m AS SELECT 'row 1' AS s; CREATE VIEW w AS SELECT * FROM m;
             CREATE FUNCTION same() LANGUAGE blockyard AS 'identity'; SET blockyard.num_cpus = 3;
             PREPARE named AS SELECT count(*) FROM m; DEALLOCATE named; PREPARE named AS SELECT count(*) FROM e WHERE k = 1;
             SET datafusion.execution.time_zone = '+05:00';
             CREATE VIEW z AS SELECT CAST('2024-01-01T0' || k || ':00:00' AS TIMESTAMP WITH TIME ZONE) AS t FROM e;
             RESET datafusion.execution.time_zone"
        ))
        .await
        .unwrap();
    for (query, why) in [
        ("SELECT count(*) FROM v", None),
        ("SELECT count(*) FROM map_batches(e, 'same')", None),
        ("EXECUTE named", None),
        // The executor plans a view with the options of now, by which what it has means something else.
        ("SELECT min(t) FROM z", Some("no executor has planned it just so")),
        (
            "SELECT count(*) FROM v JOIN m USING (s)",
            Some("cannot plan the statement: table 'datafusion.public.m' not found"),
        ),
    ] {
        let dataset = there.sql(query).await.unwrap();
        let _counted = dataset.take_all().await.unwrap();
        let stats = dataset.stats();
        match why {
            None => assert!(stats.contains("Remote("), "{query}: {stats}"),
            Some(why) => assert!(stats.contains("ran in this process") && stats.contains(why), "{query}: {stats}"),
        }
    }
    assert_eq!(rows(&there, "SELECT count(*) FROM v JOIN m USING (s)").await, ["1"]);
}

/// As many calls at once as was said, on all executors together.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrency_counts_over_all_executors() {
    let directory = tempfile::tempdir().unwrap();
    let (function, most) = crate::fixtures::counts_calls_at_once();
    let mut servers = Vec::new();
    for name in ["0", "1"] {
        let session = context_with(4, |_| {});
        session.functions().register("seen", function.clone());
        servers.push(executor(&session, directory.path(), name).await);
    }
    let there = driver(&[&servers[0], &servers[1]]);
    there.register_batches("seen", Ok);
    let query = "SELECT count(*) FROM map_batches(range(40000, override_num_blocks => 40), 'seen', batch_size => 10, \
                 concurrency => 2)";
    assert_eq!(rows(&there, query).await, ["40000"]);
    assert!((1..=2).contains(&most.load(SeqCst)), "{most:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_say_which_executor_and_why() {
    let directory = tempfile::tempdir().unwrap();
    let bind = async |listen: &str, token: Option<&str>| {
        let token = token.map(str::to_owned);
        ExecutorServer::bind(&context(), ExecutorOptions { listen: listen.to_owned(), token, ..Default::default() })
            .await
    };
    let error = async |listen: &str, token| bind(listen, token).await.unwrap_err().strip_backtrace();
    assert!(error("tcp:127.0.0.1:0", None).await.contains("needs a token"));
    assert!(error("tcp:0.0.0.0:0", Some("t")).await.contains("is not encrypted"));
    assert!(error("somewhere", None).await.contains("unix:PATH, tcp:HOST:PORT or tls:HOST:PORT"));

    let server = bind("tcp:127.0.0.1:0", Some("right")).await.unwrap();
    let token = directory.path().join("token");
    let there = context_with(2, |options| {
        options.cluster = server.address();
        options.cluster_token_file = token.display().to_string();
    });
    let count = "SELECT count(*) FROM range(101) WHERE id > 0";
    assert!(sql_error(&there, count).await.contains("cannot be read"));
    std::fs::write(&token, "wrong\n").unwrap();
    let refused = sql_error(&there, count).await;
    assert!(refused.contains(&server.address()) && refused.contains("the token is not"), "{refused}");
    std::fs::write(&token, "right\n").unwrap();
    assert_eq!(rows(&there, count).await, ["100"]);

    let address = server.address();
    drop(server);
    let gone = sql_error(&there, count).await;
    assert!(gone.contains("none of 1 executors takes the query") && gone.contains(&address), "{gone}");
    let nonsense = context_with(2, |options| options.cluster = "10.0.0.1".to_owned());
    assert!(sql_error(&nonsense, count).await.contains("blockyard.cluster = '10.0.0.1'"));

    // One of two is enough.
    let living = executor(&context(), directory.path(), "0").await;
    let half = context_with(2, |options| options.cluster = format!("{},unix:/nowhere", living.address()));
    let listed = rows(&half, "SELECT threads, queries, units, error FROM blockyard.executors").await;
    assert!(listed[0].ends_with("|0|0|NULL") && listed[1].contains("cannot connect to unix:/nowhere"), "{listed:?}");
    let analyzed = rows(&half, "EXPLAIN ANALYZE SELECT id FROM range(100) WHERE id > 3").await.join("\n");
    assert!(analyzed.contains("executors=1 of 2"), "{analyzed}");

    // An error of a task is not tried elsewhere.
    let failed = sql_error(&half, "SELECT 1 / (id - 50) FROM range(100)").await;
    assert!(failed.contains(&living.address()) && failed.to_lowercase().contains("divide by zero"), "{failed}");
}

/// What a process has had in memory at most, but for its code: of that, builds that are not optimized have much more.
#[cfg(target_os = "linux")]
fn peak_bytes(child: &Child) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let kilobytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
    };
    (kilobytes("VmHWM:") - kilobytes("RssFile:")) * 1024
}

/// Each process keeps to its own limit of 64 MiB, whatever that of the session is.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_keep_to_their_own_limits() {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, one) = process(directory.path(), "0");
    let (mut second, other) = process(directory.path(), "1");
    let there = context_with(2, |options| {
        options.memory_limit = mib(1024);
        options.cluster = format!("{one},{other}");
    });
    let texts = "SELECT id % 300000 AS k, count(*) AS n, max('a text of some length ' || id) AS t FROM range(1200000) \
                 GROUP BY k";
    assert_eq!(rows(&there, &format!("SELECT count(*), sum(n) FROM ({texts})")).await, ["300000|1200000"]);
    // Sides that do not fit, of which each executor keeps a part.
    let joined = "SELECT count(*), max(a.t), sum(b.id) FROM (SELECT id, 'a text of some length ' || id AS t FROM range(1500000)) \
                  a JOIN (SELECT id * 2 AS id, 'another text of some length ' || id AS u FROM range(1500000)) b ON a.id = \
                  b.id AND a.t <> b.u";
    assert_eq!(rows(&there, joined).await, ["750000|a text of some length 999998|562499250000"]);
    let long = "SELECT sum(length(t)) FROM (SELECT repeat('x', 100000) AS t, id FROM range(4000)) WHERE id >= 0";
    assert_eq!(rows(&there, long).await, ["400000000"]);
    // What they read is cut as it fits them, whatever the session has.
    let files = format!("{}/t/", directory.path().display());
    let copy = format!(
        "COPY (SELECT id, repeat(md5(CAST(id AS VARCHAR)), 20) AS s FROM range(60000, override_num_blocks => 1)) TO '{files}' \
         STORED AS PARQUET"
    );
    context().sql(&copy).await.unwrap().take_all().await.unwrap();
    let read = format!("EXPLAIN ANALYZE SELECT max(s), min(length(s)) FROM '{files}' WHERE id > 5");
    let analyzed = rows(&there, &read).await.join("\n");
    assert!(analyzed.contains("executors=2"), "{analyzed}");
    let statuses = loop {
        let statuses = blockyard::executor_statuses(&there).await.unwrap();
        // An executor may not have seen yet that the query has ended.
        if statuses.iter().all(|(_, status)| status.as_ref().is_ok_and(|status| status.queries == 0)) {
            break statuses;
        }
    };
    for ((address, status), expected) in statuses.into_iter().zip([&one, &other]) {
        let status = status.unwrap();
        assert_eq!((&address, status.threads, status.queries, status.units), (expected, 1, 0, 0));
        assert_eq!(status.memory_limit, 64 << 20);
    }
    for child in [&mut first, &mut second] {
        let peak = peak_bytes(child);
        // The code of a build that is optimized has 60 MiB of the 150 that a process may have above its limit.
        assert!(peak < (64 + 90) << 20, "{} MiB", peak >> 20);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let silent = blockyard::executor_statuses(&there).await.unwrap();
    assert!(silent.iter().all(|(_, status)| status.is_err()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_keep_nothing_of_a_query_that_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let session = context_with(1, |options| options.memory_limit = mib(64));
    let server = executor(&session, directory.path(), "0").await;
    let there = driver(&[&server]);
    for _ in 0..3 {
        let mut stream = there.sql("SELECT id FROM range(100000000)").await.unwrap().stream().await.unwrap();
        assert!(stream.try_next().await.unwrap().is_some());
        drop(stream);
        // The next query would wait for ever for the memory of this one.
        assert_eq!(rows(&there, "SELECT count(*) FROM range(1000) WHERE id > 9").await, ["990"]);
    }
}

/// What is more than executors take runs here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_with_long_definitions_runs_its_queries_itself() {
    let directory = tempfile::tempdir().unwrap();
    let server = executor(&context(), directory.path(), "0").await;
    let there = driver(&[&server]);
    let long = "x".repeat(17 << 20);
    there.sql(&format!("CREATE VIEW v AS SELECT '{long}' AS t")).await.unwrap();
    let dataset = there.sql("SELECT id FROM range(100) WHERE id > 3").await.unwrap();
    assert_eq!(dataset.count().await.unwrap(), 96);
    let stats = dataset.stats();
    assert!(stats.contains("the statements that define its names have 17.0MiB"), "{stats}");
}

/// Units are few, so that each builds its actors for many tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn actors_are_built_about_twice_in_each_executor() {
    struct Counted;
    impl blockyard::Actor for Counted {
        fn call(&mut self, batch: RecordBatch) -> datafusion::common::Result<RecordBatch> {
            Ok(batch)
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let built = Arc::new(AtomicUsize::new(0));
    let mut servers = Vec::new();
    for name in ["0", "1"] {
        let (session, built) = (context_with(2, |_| {}), Arc::clone(&built));
        let builds = move || {
            built.fetch_add(1, SeqCst);
            Ok(Counted)
        };
        session.functions().register("counted", blockyard::actor("counted", builds));
        servers.push(executor(&session, directory.path(), name).await);
    }
    let there = driver(&[&servers[0], &servers[1]]);
    there.functions().register("counted", blockyard::actor("counted", || Ok(Counted)));
    let query = "SELECT count(*) FROM map_batches(range(40000, override_num_blocks => 40), 'counted', compute => \
                 'actors(1)')";
    assert_eq!(rows(&there, query).await, ["40000"]);
    // In each of 2 executors one to learn the columns, and one for each of 2 units at most.
    let built = built.load(SeqCst);
    assert!((4..=6).contains(&built), "{built}");
}
