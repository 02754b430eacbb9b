use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::fixtures::{entries, files};

fn tool(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blockyard"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    tool(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn results_go_to_stdout_and_the_rest_to_stderr() {
    let output = run(&["sql", "SELECT * FROM range(2); SELECT 'x' AS a", "--format", "csv", "--stats"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout), "id\n0\n1\na\nx\n");
    assert!(text(&output.stderr).contains("Dataset: "), "{}", text(&output.stderr));
}

#[test]
fn exit_codes_tell_queries_from_calls() {
    for (arguments, code, message) in [
        (vec!["sql", "SELECT 1"], 0, ""),
        (vec!["sql", "SELECT nope"], 1, "nope"),
        (vec!["sql", "SELEC 1"], 1, "SELEC"),
        (vec!["nosuch"], 2, "nosuch"),
        (vec!["sql", "SELECT 1", "--memory", "lots"], 2, "lots"),
        (vec!["sql", "SELECT 1", "--memory", "1KB"], 2, "memory_limit 1000B is too small"),
        (vec!["sql", "SELECT 1", "--set", "blockyard.nope=1"], 2, "unknown option 'nope'"),
        (vec!["sql", "SELECT 1", "--threads", "0"], 2, "0"),
        (vec!["run", "/no/such/file.sql"], 2, "/no/such/file.sql"),
        (vec!["sql", "SELECT 1", "--spill-dir", "/proc/none"], 2, "cannot spill to '/proc/none'"),
        (vec!["sql", "SELECT 1", "--format", "parquet"], 2, "needs --output"),
    ] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(message), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn every_format_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let sql = "SELECT id, CASE WHEN id = 1 THEN NULL ELSE 'v' END AS s FROM range(3)";
    for (format, start) in [
        ("table", "+----+---+\n| id | s |"),
        ("csv", "id,s\n0,v\n1,\n"),
        ("tsv", "id\ts\n0\tv\n"),
        ("json", "[{\"id\":0,\"s\":\"v\"},{\"id\":1,\"s\":null}"),
        ("ndjson", "{\"id\":0,\"s\":\"v\"}\n"),
    ] {
        let output = run(&["sql", sql, "--format", format]);
        assert!(text(&output.stdout).starts_with(start), "{format}: {}", text(&output.stdout));
    }
    for format in ["parquet", "arrow"] {
        let file = directory.path().join(format);
        let path = file.to_str().unwrap();
        assert_eq!(run(&["sql", sql, "--format", format, "--output", path]).status.code(), Some(0));
        assert!(std::fs::metadata(&file).unwrap().len() > 100);
    }
    let query = format!("SELECT count(s) FROM read_parquet('{}/parquet')", directory.path().display());
    assert_eq!(text(&run(&["sql", &query, "--format", "csv"]).stdout), "count(readparquet.s)\n2\n");
}

#[test]
fn files_run_in_one_session() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, sql: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, sql).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (first, second) =
        (file("1.sql", "CREATE TABLE t AS SELECT * FROM range(4);"), file("2.sql", "-- x\nSELECT sum(id) AS s FROM t"));
    let output = run(&["run", &first, &second, "--format", "csv"]);
    assert_eq!(text(&output.stdout), "s\n6\n", "{}", text(&output.stderr));
}

#[test]
fn url_tables_and_explain_work_from_the_tool() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let copy = format!("COPY (SELECT * FROM range(10)) TO '{}/' STORED AS PARQUET", out.display());
    assert_eq!(run(&["sql", &copy]).status.code(), Some(0));
    let query = format!("SELECT count(*) AS n FROM '{}/*.parquet'", out.display());
    assert_eq!(text(&run(&["sql", &query, "--format", "csv"]).stdout), "n\n10\n");
    let explain = "EXPLAIN SELECT * FROM map_batches(range(3), 'identity') WHERE id > 1";
    let plan = text(&run(&["sql", explain]).stdout);
    assert!(plan.contains("MapExec: ReadRange->MapBatches(identity)->Filter(id > 1)"), "{plan}");
    let analyze = text(&run(&["sql", &explain.replace("EXPLAIN", "EXPLAIN ANALYZE")]).stdout);
    assert!(analyze.contains("MapExec: ReadRange->MapBatches(identity)") && analyze.contains("tasks=3"), "{analyze}");
}

/// Starts a write that cannot end, and returns when its first files are staged.
#[cfg(unix)]
fn endless_write(directory: &Path, spill: &Path) -> std::process::Child {
    let sql = format!(
        "SELECT 1 AS started; COPY (SELECT *, sha256(CAST(id AS VARCHAR)) AS h FROM range(2000000000, override_num_blocks => 20000)) TO '{}/out/' STORED AS CSV",
        directory.display()
    );
    let arguments = ["sql", &sql, "--spill-dir", spill.to_str().unwrap(), "--format", "csv"];
    let mut child = tool(&arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let staged = || std::fs::read_dir(directory.join("out")).map_or(0, Iterator::count);
    while staged() == 0 && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    child
}

#[cfg(unix)]
#[test]
fn a_killed_write_shows_nothing() {
    let (directory, spill) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut child = endless_write(directory.path(), spill.path());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(files(&directory.path().join("out")).is_empty(), "only hidden files may be left");
    let query = format!("SELECT * FROM read_csv('{}/out')", directory.path().display());
    assert!(text(&run(&["sql", &query]).stderr).contains("no .csv files"), "what was staged is not read");
}

#[cfg(unix)]
#[test]
fn an_interrupted_write_cleans_up() {
    let (directory, spill) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut child = endless_write(directory.path(), spill.path());
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(!directory.path().join("out").exists(), "{:?}", entries(&directory.path().join("out")));
    assert!(entries(spill.path()).is_empty(), "{:?}", entries(spill.path()));
}

#[test]
fn a_closed_output_is_no_error() {
    let mut child = tool(&["sql", "SELECT * FROM range(10000000)", "--format", "csv"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(line, "id\n");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[cfg(unix)]
#[test]
fn a_query_that_only_computes_is_interrupted() {
    let sql = "SELECT 1 AS started; SELECT count(*) FROM range(3000000) AS a JOIN range(3000000) AS b ON a.id < b.id";
    let mut child =
        tool(&["sql", sql, "--format", "csv"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cancelled"), "{}", text(&output.stderr));
}
