//! Files of object stores that executors upload for a session.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use blockyard::prelude::*;
use tokio::sync::mpsc;

use super::losses::signal;
use super::{driver, executor, process_with};
use crate::fixtures::{context, context_with, mib, rows};
use crate::stores::server::{Fault, KEY, SECRET, Server};
use crate::stores::{objects, secret};

async fn run(context: &DataContext, statement: &str) -> Dataset {
    let dataset = context.sql(statement).await.unwrap();
    let _count = dataset.take_all().await.unwrap();
    dataset
}

/// A session that may use the store, and one that is small.
async fn sessions(server: &Server) -> [DataContext; 2] {
    let sessions = [context(), context_with(1, |options| options.memory_limit = mib(64))];
    for session in &sessions {
        run(session, &secret(server)).await;
    }
    sessions
}

fn copy(to: &str, format: &str, options: &str) -> String {
    format!(
        "COPY (SELECT id, id * 2 AS v FROM range(10000, override_num_blocks => 20) WHERE id % 3 > 0) TO 's3://data/{to}/' \
         STORED AS {format} OPTIONS (write_id 'w', {options})"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_upload_the_files_of_one_process() {
    let server = Server::start("data", false);
    let [here, small] = sessions(&server).await;
    let directory = tempfile::tempdir().unwrap();
    let servers = [executor(&small, directory.path(), "0").await, executor(&small, directory.path(), "1").await];
    let there = driver(&[&servers[0], &servers[1]]);
    run(&there, &secret(&server)).await;
    for (format, options) in [("CSV", "mode 'append'"), ("JSON", "compression 'gzip'"), ("PARQUET", "mode 'overwrite'")]
    {
        run(&here, &copy(&format!("ours-{format}"), format, options)).await;
        let written = run(&there, &copy(&format!("theirs-{format}"), format, options)).await;
        let stats = written.stats();
        assert!(stats.contains("ran at unix:") && stats.contains(" files"), "{stats}");
        // The second run does nothing.
        let again = run(&there, &copy(&format!("theirs-{format}"), format, options)).await;
        assert!(!again.stats().contains("ran at unix:"), "{}", again.stats());
        let of = |who: &str| -> Vec<(String, Vec<u8>)> {
            let prefix = format!("{who}-{format}/");
            let names = objects(&server).into_iter().filter(|name| name.starts_with(&prefix) && name.contains("part-"));
            let bytes = |name: &str| std::fs::read(server.path("data").join(name)).unwrap();
            names.map(|name| (name[prefix.len()..].to_owned(), bytes(&name))).collect()
        };
        let (ours, theirs) = (of("ours"), of("theirs"));
        assert_eq!(ours.len(), 20);
        let contents = |files: Vec<(String, Vec<u8>)>| files.into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>();
        // In the order of the names; Parquet has its pages otherwise.
        assert!(format == "PARQUET" || contents(theirs) == contents(ours), "{format}");
        let sums = |who: &str| format!("SELECT count(*), sum(id), sum(v) FROM 's3://data/{who}-{format}/'");
        assert_eq!(rows(&here, &sums("theirs")).await, rows(&here, &sums("ours")).await);
    }
}

/// They send rows, and the session says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_that_may_not_write_to_the_store_send_rows() {
    let server = Server::start("data", false);
    let directory = tempfile::tempdir().unwrap();
    let small = context_with(1, |options| options.memory_limit = mib(64));
    run(&small, &secret(&server).replace(SECRET, "another")).await;
    let other = executor(&small, directory.path(), "0").await;
    let there = driver(&[&other]);
    run(&there, &secret(&server)).await;
    let stats = run(&there, &copy("t", "CSV", "mode 'append'")).await.stats();
    assert!(stats.contains("cannot write files to the directory of") && stats.contains("403"), "{stats}");
    assert_eq!(rows(&there, "SELECT count(*) FROM 's3://data/t/'").await, ["6666"]);
}

/// What an executor has begun to upload when it dies comes from another one, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn uploads_of_a_lost_executor_are_made_by_another() {
    let server = Server::start("data", false);
    let [_, small] = sessions(&server).await;
    run(&small, "SET blockyard.store_read_timeout = '1s'").await;
    let directory = tempfile::tempdir().unwrap();
    let stays = executor(&small, directory.path(), "0").await;
    let variables = [
        ("AWS_ENDPOINT", server.endpoint.as_str()),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", KEY),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
    ];
    let (mut child, listen) = process_with(directory.path(), "1", &variables);
    let there = context_with(2, |options| options.cluster = format!("{},{listen}", stays.address()));
    run(&there, &secret(&server)).await;
    // Each of the two uploads something, of which nothing comes.
    let (hung, mut both) = mpsc::unbounded_channel();
    let parts = AtomicUsize::new(0);
    server.fail(move |_, request| {
        let is_part = request.uri().query().is_some_and(|query| query.contains("partNumber"));
        let hangs = is_part && parts.fetch_add(1, SeqCst) < 2;
        if hangs {
            hung.send(()).unwrap();
        }
        hangs.then_some(Fault::Hang)
    });
    let killed = async {
        both.recv().await.unwrap();
        both.recv().await.unwrap();
        signal(&child, "-KILL");
    };
    let copy = copy("t", "CSV", "mode 'append'");
    let ((), written) = tokio::join!(killed, run(&there, &copy));
    child.wait().unwrap();
    assert!(written.stats().contains("an executor was lost"), "{}", written.stats());
    assert_eq!(rows(&there, "SELECT count(*), count(DISTINCT id) FROM 's3://data/t/'").await, ["6666|6666"]);
    assert_eq!(objects(&server).iter().filter(|name| name.ends_with(".csv")).count(), 20);
}
