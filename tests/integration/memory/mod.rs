//! What the process needs for more data than memory, as the kernel counts it. `benches/memory.rs` measures more, on
//! more data.
#![cfg(target_os = "linux")]

mod at_once;
mod less_at_once;
mod scenarios;

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use scenarios::{Comparison, Harness, Measured, Outcome, Scale, Scenario, poll, scenarios};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 64 * MIB;

/// What a process may have above its limit: code, stacks, and what the allocator keeps. That is 150 MiB for the tool as
/// it is released. Code that is not optimized is larger: for `SELECT 1` alone 89 MiB are resident, and not 69.
const OVERHEAD: i64 = if cfg!(debug_assertions) { 170 << 20 } else { 150 << 20 };

/// Parts of the scenarios that run side by side, those of the same inputs together.
const PARTS: usize = 3;

/// Scenarios of a part that may be refused, or fail and say why: their rows are too wide, or operators cannot spill.
const MAX_INCOMPLETE: usize = 3;

fn harness(directory: &Path) -> Harness {
    let tool = Path::new(env!("CARGO_BIN_EXE_blockyard"));
    Harness::new(tool, &directory.join("data"), &directory.join("scratch"), Some(2))
}

#[test]
fn the_harness_sees_another_result() {
    let directory = tempfile::tempdir().unwrap();
    let scenario = Scenario {
        name: "setting".to_owned(),
        inputs: vec![],
        statements: "SELECT value FROM information_schema.df_settings WHERE name = 'blockyard.memory_limit'".to_owned(),
        check: None,
        comparison: Comparison::Ordered,
    };
    let measured = harness(directory.path()).measure(&scenario, LIMIT).unwrap();
    assert!(matches!(&measured.outcome, Outcome::Failed(text) if text.contains("64MiB")), "{measured}");
}

#[test]
fn a_process_keeps_to_its_limit() {
    keeps_to_its_limit(0);
}

#[test]
fn a_process_keeps_to_its_limit_in_the_second_third() {
    keeps_to_its_limit(1);
}

#[test]
fn a_process_keeps_to_its_limit_in_the_last_third() {
    keeps_to_its_limit(2);
}

/// A file of `--output` has row groups that are written when they are large, and not only when they have many rows.
#[test]
fn a_result_in_a_parquet_file_keeps_to_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("t.parquet");
    // 300 MB of texts that no dictionary makes smaller.
    let query = "SELECT id, repeat(md5(CAST(id AS VARCHAR)), 32) AS t FROM range(300000)";
    let mut child = Command::new(env!("CARGO_BIN_EXE_blockyard"))
        .args(["sql", query, "--memory", "64MiB", "--quiet", "--output"])
        .arg(&file)
        .spawn()
        .unwrap();
    let (status, peak) = poll(&mut child, Instant::now(), u64::MAX).unwrap();
    assert!(status.unwrap().success());
    assert!(peak <= LIMIT + OVERHEAD as u64, "{} MiB", peak / MIB);
}

/// Every scenario gives the result that it gives without a limit, leaves nothing on disk, and stays near the limit.
fn keeps_to_its_limit(part: usize) {
    let directory = tempfile::tempdir().unwrap();
    let mut harness = harness(directory.path());
    // Few rows with long texts: a debug build is slow per row, not per byte.
    let scale = Scale { bytes: 4 * LIMIT, text: 1024, files: 1000, tpch: None };
    let mut table = Measured::HEAD.to_owned();
    let (mut wrong, mut incomplete) = (0, 0);
    let scenarios = scenarios(scale).unwrap();
    let of_part = scenarios.chunks(scenarios.len().div_ceil(PARTS)).nth(part).unwrap();
    for scenario in of_part {
        match harness.measure(scenario, LIMIT) {
            Ok(measured) => {
                let failed = matches!(measured.outcome, Outcome::Failed(_));
                wrong += usize::from(failed || measured.overhead() > OVERHEAD);
                incomplete += usize::from(measured.outcome != Outcome::Ok);
                write!(table, "\n{measured}").unwrap();
            }
            Err(e) => {
                wrong += 1;
                write!(table, "\n{}: {e}", scenario.name).unwrap();
            }
        }
    }
    assert!(incomplete <= MAX_INCOMPLETE, "{incomplete} scenarios were not completed:\n{table}");
    assert_eq!(wrong, 0, "scenarios that fail, or peak more than {} MiB over the limit:\n{table}", OVERHEAD >> 20);
}
