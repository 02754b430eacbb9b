//! Writes whose processes have died in their commit.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::UNIX_EPOCH;

use crate::fixtures::{context, rows, sql_error};

/// What a process has left that was about to put `2,x` in the place of the first file of a directory.
fn cut_short(directory: &Path) {
    let staged = directory.join(".blockyard-1");
    fs::create_dir(&staged).unwrap();
    fs::write(staged.join("lock"), "").unwrap();
    fs::write(staged.join("0.csv"), "id,s\n2,x\n").unwrap();
    let old = fs::metadata(directory.join("part-000000.csv")).unwrap();
    let modified = old.modified().unwrap().duration_since(UNIX_EPOCH).unwrap();
    let record = format!(
        r#"{{"places":[["0.csv","part-000002.csv"]],"old":[{{"path":"part-000000.csv","bytes":{},
        "modified":{{"secs_since_epoch":{},"nanos_since_epoch":{}}}}}]}}"#,
        old.len(),
        modified.as_secs(),
        modified.subsec_nanos()
    );
    fs::write(staged.join("commit.json"), record).unwrap();
}

/// The same, with a record that nobody understands.
fn cut_short_again(directory: &Path) {
    let staged = directory.join(".blockyard-3");
    fs::create_dir(&staged).unwrap();
    fs::write(staged.join("lock"), "").unwrap();
    fs::write(staged.join("commit.json"), r#"{"places":[["0.csv","../part-000002.csv"]],"old":[]}"#).unwrap();
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

async fn written() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().display();
    let copy = format!("COPY (SELECT id, 'a' AS s FROM range(2, override_num_blocks => 2)) TO '{to}/' STORED AS CSV");
    rows(&context(), &copy).await;
    assert_eq!(names(directory.path()), ["part-000000.csv", "part-000001.csv"]);
    directory
}

#[tokio::test]
async fn the_next_write_finishes_a_commit_that_was_cut_short() {
    for (mode, expected) in [
        ("append", &["1,a", "2,x", "3,b"][..]),
        ("overwrite", &["3,b"]),
        // Not what it finds when it begins.
        ("ignore", &["1,a", "2,x"]),
    ] {
        let directory = written().await;
        cut_short(directory.path());
        let to = directory.path().display();
        let copy = format!("COPY (SELECT 3 AS id, 'b' AS s) TO '{to}/' STORED AS CSV OPTIONS (mode '{mode}')");
        rows(&context(), &copy).await;
        let mut found = rows(&context(), &format!("SELECT * FROM '{to}/'")).await;
        found.sort_unstable();
        let found: Vec<String> = found.iter().map(|row| row.replace('|', ",")).collect();
        assert_eq!(found, expected, "{mode}");
        assert!(names(directory.path()).iter().all(|name| !name.starts_with('.')), "{:?}", names(directory.path()));
    }
}

#[tokio::test]
async fn the_tool_repairs_directories() {
    let directory = written().await;
    cut_short(directory.path());
    let other = directory.path().join(".blockyard-2");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("lock"), "").unwrap();
    let repair = |path: &Path| Command::new(env!("CARGO_BIN_EXE_blockyard")).arg("repair").arg(path).output().unwrap();
    let done = repair(directory.path());
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(said.contains(r#""files":1,"finished_writes":1,"removed_writes":1"#), "{said}");
    assert_eq!(names(directory.path()), ["part-000001.csv", "part-000002.csv"]);
    let again = blockyard::repair(directory.path()).unwrap();
    assert_eq!(again, blockyard::Repaired::default());
    // What cannot be finished is said, and left.
    cut_short_again(directory.path());
    let failed = repair(directory.path());
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("a commit cannot be finished, '"), "{failed:?}");
    let copy = format!("COPY (SELECT 1 AS id) TO '{}/' STORED AS CSV", directory.path().display());
    assert!(sql_error(&context(), &copy).await.contains("a write was cut short in its commit"));
    assert!(directory.path().join(".blockyard-3").exists());
    let missing = repair(&directory.path().join("missing"));
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("cannot repair '"), "{missing:?}");
}
