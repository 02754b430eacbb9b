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
        (vec!["sql", "SELECT 1 LIMIT -1"], 1, "error: Error during planning: LIMIT must be >= 0"),
        (
            vec!["sql", "SELECT 1 WHERE true AND 1"],
            1,
            "error: Error during planning: Cannot infer common argument type",
        ),
        (vec!["nosuch"], 2, "nosuch"),
        (vec!["sql", "SELECT 1", "--memory", "lots"], 2, "lots"),
        (vec!["sql", "SELECT 1", "--memory", "1KB"], 2, "memory_limit 1000B is too small"),
        (vec!["sql", "SELECT 1", "--set", "blockyard.nope=1"], 2, "unknown option 'nope'"),
        (vec!["sql", "SELECT 1", "--threads", "0"], 2, "0"),
        (vec!["run", "/no/such/file.sql"], 2, "/no/such/file.sql"),
        (vec!["sql", "SELECT 1", "--spill-dir", "/proc/none"], 2, "cannot spill to '/proc/none'"),
        (vec!["sql", "SELECT 1", "--format", "parquet"], 2, "needs --output"),
        (vec!["sql", "SELECT 1", "--save-token", "t"], 2, "--save-token needs --format arrow, or --output FILE"),
        (vec!["sql", "SELECT 1", "--resume", "/no/such/token"], 2, "cannot read the token of '/no/such/token'"),
        (vec!["sql", "SELECT 1", "--batch-size", "0"], 2, "0"),
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
    assert_eq!(text(&run(&["sql", &query, "--format", "csv"]).stdout), "count(s)\n2\n");
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
    assert_eq!(child.wait().unwrap().code(), Some(130));
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

#[test]
fn what_does_not_run_behind_a_closed_output_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let copy = format!("COPY (SELECT 1 AS a) TO '{}/'", directory.path().join("t").display());
    let mut child = tool(&["sql", &format!("SELECT * FROM range(10000000); {copy}; {copy}"), "--format", "csv"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("2 statements behind it did not run"), "{}", text(&output.stderr));
    assert!(entries(directory.path()).is_empty());
}

#[test]
fn options_that_mean_nothing_to_a_command_are_refused() {
    for (command, option) in [
        (vec!["consume", "unix:/nowhere"], "--resume"),
        (vec!["consume", "unix:/nowhere"], "--save-token"),
        (vec!["serve", "/nowhere.sql", "--splits", "1", "--listen", "unix:/nowhere"], "--output"),
        (vec!["cluster", "executor", "--listen", "unix:/nowhere"], "--save-token"),
    ] {
        let output = run(&[&command[..], &[option, "x.csv"]].concat());
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        assert!(text(&output.stderr).contains(&format!("{option} is nothing to")), "{}", text(&output.stderr));
    }
}

#[cfg(unix)]
#[test]
fn an_output_keeps_its_permissions_and_what_was_left_beside_it_goes() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.csv");
    let write = || run(&["sql", "SELECT 1 AS a", "-o", path.to_str().unwrap()]).status.code();
    assert_eq!(write(), Some(0));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    // No process has such a number, and this one is there.
    let others = [".a.csv.4294967295.partial".to_owned(), format!(".a.csv.{}.partial", std::process::id())];
    others.iter().for_each(|name| std::fs::write(directory.path().join(name), "").unwrap());
    assert_eq!(write(), Some(0));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let left = entries(directory.path());
    assert!(left.contains(&others[1]) && !(cfg!(target_os = "linux") && left.contains(&others[0])), "{left:?}");
}

#[test]
fn columns_of_one_name_are_not_written_where_only_names_tell_them_apart() {
    for format in ["json", "ndjson"] {
        let output =
            run(&["sql", "SELECT 1 AS a, 2 AS b FROM range(1) x JOIN range(1) y ON x.id = y.id", "--format", format]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let output = run(&["sql", "SELECT * FROM range(1) x JOIN range(1) y ON x.id = y.id", "--format", format]);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("there are two columns 'id'"), "{}", text(&output.stderr));
    }
}

#[cfg(unix)]
#[test]
fn a_query_that_only_computes_is_interrupted() {
    let sql = "SELECT 1 AS started; SELECT count(*) FROM range(3000000) AS a JOIN range(3000000) AS b ON a.id < b.id";
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let mut child =
            tool(&["sql", sql, "--format", "csv"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{signal}");
        assert!(text(&output.stderr).contains("cancelled"), "{}", text(&output.stderr));
    }
}

/// Nobody reads what it prints: it waits for its output, and rows are always there.
#[cfg(unix)]
#[test]
fn a_result_that_is_printed_is_interrupted() {
    for format in ["table", "csv"] {
        let sql = "SELECT * FROM range(9000000000)";
        let mut child =
            tool(&["sql", sql, "--format", format]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut printed = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        printed.read_line(&mut line).unwrap();
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(130), "{format}");
    }
}

#[test]
fn the_ending_of_the_output_says_its_format() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    for (name, start) in [
        ("a.csv", "id\n0\n1\n"),
        ("a.TSV", "id\n0\n"),
        ("a.json", "[{\"id\":0}"),
        ("a.jsonl", "{\"id\":0}\n{\"id\":1}\n"),
        ("a.txt", "+----+\n| id |"),
        ("plain", "+----+\n| id |"),
        ("a.parquet", "PAR1"),
    ] {
        let output = run(&["sql", "SELECT * FROM range(2)", "-o", &path(name)]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", text(&output.stderr));
        assert!(text(&std::fs::read(path(name)).unwrap()).starts_with(start), "{name}");
        assert!(text(&output.stdout).is_empty());
    }
    // What is said counts.
    assert_eq!(run(&["sql", "SELECT 1 AS a", "-o", &path("b.csv"), "--format", "json"]).status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(path("b.csv")).unwrap(), "[{\"a\":1}]\n");
    // A result that fails leaves nothing, or what was there.
    let fails = "SELECT 10 / (id - 100000) AS n FROM range(200000)";
    for name in ["none.csv", "a.csv"] {
        assert_eq!(run(&["sql", fails, "-o", &path(name)]).status.code(), Some(1));
    }
    assert!(!Path::new(&path("none.csv")).exists());
    assert_eq!(std::fs::read_to_string(path("a.csv")).unwrap(), "id\n0\n1\n");
    assert_eq!(entries(directory.path()).len(), 8, "{:?}", entries(directory.path()));
}

#[test]
fn an_output_that_cannot_be_is_an_error_before_anything_runs() {
    let directory = tempfile::tempdir().unwrap();
    let made = directory.path().join("made");
    let copy = format!("COPY (SELECT 1 AS a) TO '{}/' STORED AS CSV; SELECT 2 AS b", made.display());
    let missing = directory.path().join("no/such/a.csv");
    let unknown = directory.path().join("a.xlsx");
    for (output, message) in [
        (missing.to_str().unwrap(), "there is no directory"),
        (directory.path().to_str().unwrap(), "it is a directory"),
        (unknown.to_str().unwrap(), "cannot tell from '.xlsx'"),
    ] {
        let output = run(&["sql", &copy, "-o", output]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
        assert!(!made.exists(), "nothing has run");
    }
    let file = directory.path().join("a.csv");
    let several = run(&["sql", &format!("{copy}; SELECT 3 AS c"), "-o", file.to_str().unwrap()]);
    assert_eq!(several.status.code(), Some(2));
    assert!(text(&several.stderr).contains("takes one result") && !made.exists(), "{}", text(&several.stderr));
    // The number of rows that were copied is no result.
    let one = run(&["sql", &copy, "-o", file.to_str().unwrap()]);
    assert_eq!(one.status.code(), Some(0), "{}", text(&one.stderr));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "b\n2\n");
    assert!(text(&one.stdout).contains("count") && made.exists(), "{}", text(&one.stdout));
}

#[test]
fn errors_of_files_say_where() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.sql");
    for (sql, place) in [
        ("SELECT 1;\n\n-- two\nSELECT nope;", "a.sql', statement 2, line 4: "),
        ("SELECT nope", "a.sql', statement 1, line 1: "),
        ("SELECT 1;\nSELEC 2", "a.sql': "),
        ("SET blockyard.nope = 1", "a.sql', statement 1, line 1: "),
    ] {
        std::fs::write(&file, sql).unwrap();
        let output = run(&["run", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(place), "{}", text(&output.stderr));
    }
    let typed = run(&["sql", "SELECT 1; SELECT nope"]);
    assert!(text(&typed.stderr).starts_with("error: statement 2, line 1: "), "{}", text(&typed.stderr));
    let only = run(&["sql", "SELECT nope"]);
    assert!(!text(&only.stderr).contains("statement"), "{}", text(&only.stderr));
    // Some editors begin a file with a mark.
    std::fs::write(&file, "\u{feff}SELECT 1 AS a").unwrap();
    assert_eq!(text(&run(&["run", file.to_str().unwrap(), "--format", "csv"]).stdout), "a\n1\n");
}

#[test]
fn numbers_of_the_environment_are_checked() {
    let output = tool(&["sql", "SELECT 1"]).env("BLOCKYARD_NUM_CPUS", "0").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    assert!(message.contains("BLOCKYARD_NUM_CPUS: num_cpus must be between 1 and 1024"), "{message}");
}

#[test]
fn headers_say_no_more_than_they_have_to() {
    for (sql, header) in [
        ("SELECT sum(t.id) FROM range(3) t", "sum(id)"),
        ("SELECT sum(id), max(id) + 1 FROM range(3) ORDER BY 1", "sum(id),max(id) + Int64(1)"),
        ("SELECT a.id, b.id FROM range(3) a JOIN range(3) b ON a.id = b.id", "id,id"),
        ("SELECT sum(a.id), sum(b.id) FROM range(3) a, range(3) b", "sum(a.id),sum(b.id)"),
        ("SELECT id AS \"t.x\" FROM range(1) t", "t.x"),
    ] {
        let output = run(&["sql", sql, "--format", "csv"]);
        assert_eq!(text(&output.stdout).lines().next(), Some(header), "{sql}: {}", text(&output.stderr));
    }
}

#[test]
fn long_chains_run_and_those_without_end_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("long.sql");
    let run_text = |sql: &str| {
        std::fs::write(&file, sql).unwrap();
        run(&["run", file.to_str().unwrap(), "--format", "csv"])
    };
    let terms: Vec<String> = (0..3000).map(|i| format!("id = {i} + 1000")).collect();
    let any = run_text(&format!("SELECT count(*) AS n FROM range(100) WHERE {} OR id = 3", terms.join(" OR ")));
    assert_eq!(text(&any.stdout), "n\n1\n", "{}", text(&any.stderr));
    let sum = run_text(&format!("SELECT 1{} AS n", " + 1".repeat(1900)));
    assert_eq!(text(&sum.stdout), "n\n1901\n", "{}", text(&sum.stderr));
    for too_long in [" + 1".repeat(100_000), " OR true".repeat(100_000), " UNION ALL SELECT 1".repeat(100_000)] {
        let output = run_text(&format!("SELECT 1{too_long}"));
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("a chain of more than 4000 operators"), "{}", text(&output.stderr));
    }
    let views = (1..400).map(|i| format!("CREATE VIEW v{i} AS SELECT * FROM v{} WHERE id > 0;\n", i - 1));
    let output = run_text(&format!("CREATE VIEW v0 AS SELECT * FROM range(3);\n{}", views.collect::<String>()));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("more than 500 operators above each other"), "{}", text(&output.stderr));
}
