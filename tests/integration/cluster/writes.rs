//! Files that executors write for a session.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use blockyard::prelude::*;

use super::losses::{held_up, signal, until_lost};
use super::{FILES, driver, executor};
use crate::fixtures::{context, context_with, mib, rows, sql_error};

/// The files of a directory, with hidden ones, by their names.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().map(Result::unwrap);
    let file = |entry: std::fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap_or_default())
    };
    entries.map(file).collect()
}

async fn run(context: &DataContext, statement: &str) -> Dataset {
    let dataset = context.sql(statement).await.unwrap();
    let _count = dataset.take_all().await.unwrap();
    dataset
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_write_the_files_of_one_process() {
    let directory = tempfile::tempdir().unwrap();
    let read = format!("{}/t/", directory.path().display());
    let here = context();
    run(&here, &FILES.replace("FILES", &read)).await;
    let small = context_with(1, |options| options.memory_limit = mib(64));
    let servers = [executor(&small, directory.path(), "0").await, executor(&small, directory.path(), "1").await];
    let there = driver(&[&servers[0], &servers[1]]);
    let all = "SELECT * FROM 'FILES'";
    let none = "SELECT id FROM 'FILES' WHERE id < 0";
    // Each of them to a directory of its own, one write after the other.
    let writes: [&[(&str, &str)]; 6] = [
        &[("SELECT * FROM 'FILES' WHERE k > 1", "CSV"), (all, "CSV OPTIONS (mode 'overwrite')")],
        &[(all, "JSON OPTIONS (max_bytes_per_file '16KiB')"), (all, "JSON OPTIONS (file_name 'x-{number:03}')")],
        &[
            (all, "CSV OPTIONS (mode 'append')"),
            ("SELECT * FROM 'FILES' WHERE s = 'row 7'", "CSV OPTIONS (mode 'append')"),
        ],
        &[(none, "JSON OPTIONS (write_id 'a')"), (none, "JSON OPTIONS (write_id 'a')")],
        &[("SELECT id, 'a' || id AS a FROM range(100000, override_num_blocks => 7)", "PARQUET")],
        &[("SELECT count(*) AS id FROM 'FILES' GROUP BY k", "CSV")],
    ];
    for (number, writes) in writes.into_iter().enumerate() {
        let [ours, theirs] = ["ours", "theirs"].map(|name| directory.path().join(format!("{name}{number}")));
        let mut ran = 0;
        for (query, how) in writes {
            let copy =
                |to: &Path| format!("COPY ({query}) TO '{}/' STORED AS {how}", to.display()).replace("FILES", &read);
            run(&here, &copy(&ours)).await;
            let stats = run(&there, &copy(&theirs)).await.stats();
            ran += usize::from(stats.contains("Write") && stats.contains(" files; ") | stats.contains(" files\n"));
            let (found, expected) = (files(&theirs), files(&ours));
            assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{query} as {how}");
            // Parts of groups come to few rows, which the session writes. Parquet has its pages otherwise.
            assert!(number == 5 || how.starts_with("PARQUET") || found == expected, "{query} as {how}");
            let all = |of: &Path| format!("SELECT sum(id), count(*) FROM '{}/'", of.display());
            if query != &none {
                assert_eq!(rows(&here, &all(&theirs)).await, rows(&here, &all(&ours)).await, "{query} as {how}");
            }
        }
        // The second run of a write with a name does nothing.
        assert_eq!(ran, [2, 2, 2, 1, 1, 0][number], "{writes:?}");
    }
    // What Rust code writes of a statement.
    let [ours, theirs] = ["ours", "theirs"].map(|name| format!("{}/{name}", directory.path().display()));
    let query = "SELECT id, s AS \"it's\" FROM 'FILES' -- all".replace("FILES", &read);
    let options = || WriteOptions { file_name: Some("it's-{number:02}".to_owned()), ..Default::default() };
    here.sql(&query).await.unwrap().write_csv_with(&ours, options()).await.unwrap();
    let dataset = there.sql(&query).await.unwrap();
    assert_eq!(dataset.write_csv_with(&theirs, options()).await.unwrap(), 5000);
    assert!(dataset.stats().contains("WriteCSV ran at unix:"), "{}", dataset.stats());
    assert_eq!(files(theirs.as_ref()), files(ours.as_ref()));
    let refused = format!(
        "COPY (SELECT id FROM 'FILES') TO '{0}/t' STORED AS PARQUET OPTIONS (mode 'error')",
        directory.path().display()
    );
    assert!(sql_error(&there, &refused.replace("FILES", &read)).await.contains("already exists"));
}

/// What a function of executors has written when one of them is lost is not among the files, however it comes to that.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn files_of_a_lost_executor_are_written_by_another() {
    for (blocks, after) in [(4, 5), (40, 30)] {
        let directory = tempfile::tempdir().unwrap();
        let (lost, kept) = (context_with(1, |_| {}), context_with(1, |_| {}));
        kept.register_batches("gate", Ok);
        let (reached, go_on) = held_up(&lost, after);
        let [first, second] =
            [executor(&lost, directory.path(), "0").await, executor(&kept, directory.path(), "1").await];
        let there = driver(&[&first, &second]);
        there.register_batches("gate", Ok);
        let query = format!("map_batches(range(1000, override_num_blocks => {blocks}), 'gate', batch_size => 10)");
        let [ours, theirs] = ["ours", "theirs"].map(|name| directory.path().join(name));
        let copy =
            |query: &str, to: &Path| format!("COPY (SELECT id FROM {query}) TO '{}/' STORED AS CSV", to.display());
        let dataset = there.sql(&copy(&query, &theirs)).await.unwrap();
        let lose = async {
            reached.acquire().await.unwrap().forget();
            drop(first);
            until_lost(&dataset).await;
            go_on.add_permits(1000);
        };
        let (count, ()) = tokio::join!(dataset.take_all(), lose);
        let _count = count.unwrap();
        run(&context(), &copy(&format!("range(1000, override_num_blocks => {blocks})"), &ours)).await;
        assert_eq!(files(&theirs), files(&ours));
        assert!(dataset.stats().contains("an executor was lost, unix:"), "{}", dataset.stats());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_write_that_is_cancelled_or_fails_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let held = context_with(1, |_| {});
    let (reached, go_on) = held_up(&held, 5);
    let server = executor(&held, directory.path(), "0").await;
    let there = driver(&[&server]);
    there.register_batches("gate", Ok);
    let to = directory.path().join("out");
    let copy = |query: &str| format!("COPY ({query}) TO '{}/' STORED AS CSV", to.display());
    let query = copy("SELECT id FROM map_batches(range(1000, override_num_blocks => 40), 'gate', batch_size => 10)");
    let dataset = there.sql(&query).await.unwrap();
    tokio::select! {
        done = dataset.take_all() => assert!(done.is_err(), "it was not held up"),
        reached = reached.acquire() => reached.unwrap().forget(),
    }
    // What runs in the background ends a moment later.
    while to.exists() {
        tokio::task::yield_now().await;
    }
    go_on.add_permits(1000);
    let failed = sql_error(&there, &copy("SELECT 1 / (id - 50) FROM range(100)")).await;
    assert!(failed.contains(&server.address()) && failed.contains("Divide by zero"), "{failed}");
    assert!(!to.exists(), "{:?}", files(&to).keys());
}

/// An executor that sees other files behind the same path writes none: the session gets its rows.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_that_do_not_see_the_directory_send_rows() {
    let cwd = std::env::current_dir().unwrap();
    std::fs::create_dir_all("target").unwrap();
    let directory = tempfile::tempdir_in("target").unwrap();
    let sockets = tempfile::tempdir().unwrap();
    let mut children = Vec::new();
    let mut process = |name: &str, cwd: &Path| {
        let listen = format!("unix:{}", sockets.path().join(name).display());
        let mut child: Child = Command::new(env!("CARGO_BIN_EXE_blockyard"))
            .args(["cluster", "executor", "--threads", "1", "--memory", "64MiB", "--listen", &listen])
            .current_dir(cwd)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        children.push(child);
        listen
    };
    let (blind, seeing) = (process("0", sockets.path()), process("1", &cwd));
    // The same path, which each process has its own directory behind.
    let own = cwd.join(directory.path());
    let to = format!("/proc/self/cwd/{}/out", own.strip_prefix(&cwd).unwrap().display());
    for (executors, number, expected) in [
        (vec![&blind], 0, ["cannot write files to the directory", "200000 rows"]),
        (vec![&blind, &seeing], 1, ["cannot write files to the directory", " files"]),
        (vec![&seeing], 2, ["ran at unix:", " files"]),
    ] {
        let cluster: Vec<_> = executors.into_iter().cloned().collect();
        let there = context_with(2, |options| options.cluster = cluster.join(","));
        let stats =
            run(&there, &format!("COPY (SELECT * FROM range(200000)) TO '{to}{number}/' STORED AS CSV")).await.stats();
        assert!(expected.iter().all(|text| stats.contains(text)), "{number}: {stats}");
        assert_eq!(
            rows(&there, &format!("SELECT count(*), sum(id) FROM '{}/out{number}/'", own.display())).await,
            ["200000|19999900000"]
        );
    }
    for child in &mut children {
        signal(child, "-KILL");
        child.wait().unwrap();
    }
}
