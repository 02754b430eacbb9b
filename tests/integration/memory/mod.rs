//! What the process needs for more data than memory, as the kernel counts it. `benches/memory.rs` measures more, on
//! more data.
#![cfg(target_os = "linux")]

mod at_once;
mod less_at_once;
mod scenarios;

use std::fmt::Write;
use std::path::Path;

use scenarios::{Comparison, Harness, Measured, Outcome, Scale, Scenario, scenarios};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 64 * MIB;

/// What a process may have above its limit: code, stacks, and what the allocator keeps.
const OVERHEAD: i64 = 150 << 20;

/// Scenarios that can run within the limit; the others have rows that are too wide, or operators that cannot spill.
const MIN_COMPLETED: usize = 32;

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

/// Every scenario gives the result that it gives without a limit, leaves nothing on disk, and stays near the limit.
#[test]
fn a_process_keeps_to_its_limit() {
    let directory = tempfile::tempdir().unwrap();
    let mut harness = harness(directory.path());
    // Few rows with long texts: a debug build is slow per row, not per byte.
    let scale = Scale { bytes: 4 * LIMIT, text: 1024, files: 1000, tpch: None };
    let mut table = Measured::HEAD.to_owned();
    let (mut wrong, mut completed) = (0, 0);
    for scenario in scenarios(scale).unwrap() {
        match harness.measure(&scenario, LIMIT) {
            Ok(measured) => {
                let failed = matches!(measured.outcome, Outcome::Failed(_));
                wrong += usize::from(failed || measured.overhead() > OVERHEAD);
                completed += usize::from(measured.outcome == Outcome::Ok);
                write!(table, "\n{measured}").unwrap();
            }
            Err(e) => {
                wrong += 1;
                write!(table, "\n{}: {e}", scenario.name).unwrap();
            }
        }
    }
    assert!(completed >= MIN_COMPLETED, "only {completed} scenarios completed:\n{table}");
    assert_eq!(wrong, 0, "scenarios that fail, or peak more than {} MiB over the limit:\n{table}", OVERHEAD >> 20);
}
