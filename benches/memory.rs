//! What the process needs for data of 8 times the memory limit, as the kernel counts it: every scenario of
//! `tests/integration/memory/scenarios.rs` at several limits, as a table.
//!
//! ```text
//! cargo bench --bench memory                              everything; hours, and about 50 GB of disk
//! cargo bench --bench memory -- sort join                 scenarios whose names have one of these in them
//! cargo bench --bench memory -- --limit 64MiB tpch        at one limit
//! UPDATE_DOCS=1 cargo bench --bench memory                also writes what is measured to docs/reference/memory.md
//! BLOCKYARD_BENCH_DATA=dir cargo bench --bench memory     keeps the inputs in a directory, and uses what is there
//! ```

mod common;
#[path = "../tests/integration/memory/scenarios.rs"]
mod scenarios;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use scenarios::{Harness, Measured, Outcome, Scale, machine_memory, scenarios};

const LIMITS: [(&str, u64); 3] = [("64MiB", 64 << 20), ("256MiB", 256 << 20), ("1GiB", 1 << 30)];

/// Data in memory per byte of the limit.
const TIMES_THE_LIMIT: u64 = 8;

/// What is measured.
#[derive(Debug, Default)]
struct Selection {
    /// Parts of names; none: every scenario.
    names: Vec<String>,
    /// One limit; none: all.
    limit: Option<String>,
}

impl Selection {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut selection = Self::default();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--bench" => {}
                "--limit" => {
                    let limit = arguments.next().filter(|limit| LIMITS.iter().any(|(name, _)| name == limit));
                    let Some(limit) = limit else {
                        return Err(format!("--limit takes one of {:?}", LIMITS.map(|(name, _)| name)));
                    };
                    selection.limit = Some(limit);
                }
                flag if flag.starts_with('-') => return Err(format!("unknown option '{flag}'")),
                name => selection.names.push(name.to_owned()),
            }
        }
        Ok(selection)
    }

    fn has_scenario(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(part))
    }

    fn has_limit(&self, name: &str) -> bool {
        self.limit.as_ref().is_none_or(|limit| limit == name)
    }
}

/// Measures what is selected, prints a line for each, and returns the lines and how many of them failed.
fn measure(selection: &Selection, data: &Path, scratch: &Path) -> io::Result<(Vec<String>, usize)> {
    let mut harness = Harness::new(Path::new(env!("CARGO_BIN_EXE_blockyard")), data, scratch, None);
    let (mut lines, mut failed) = (Vec::new(), 0);
    println!("{}", Measured::HEAD);
    for (name, limit) in LIMITS.iter().filter(|(name, _)| selection.has_limit(name)) {
        let scale = Scale { bytes: TIMES_THE_LIMIT * limit, text: 256, files: 1200, tpch: Some(1) };
        let scale = common::size(scale, Scale { bytes: 8 << 20, text: 256, files: 8, tpch: None });
        for scenario in scenarios(scale)?.iter().filter(|s| selection.has_scenario(&s.name)) {
            let (line, ok) = match harness.measure(scenario, *limit) {
                Ok(measured) => (measured.to_string(), !matches!(measured.outcome, Outcome::Failed(_))),
                Err(e) => (format!("| {} | {name} | | | | | | | FAILED: {e} |", scenario.name), false),
            };
            failed += usize::from(!ok);
            println!("{line}");
            lines.push(line);
        }
    }
    Ok((lines, failed))
}

/// The lines of a page with those that were measured now in place of older ones, by limit and scenario.
fn merged(page: &str, lines: Vec<String>) -> io::Result<Vec<String>> {
    let cells = |line: &str| -> (String, String) {
        let mut cells = line.split('|').map(|cell| cell.trim().to_owned()).skip(1);
        (cells.next().unwrap_or_default(), cells.next().unwrap_or_default())
    };
    let scale = Scale { bytes: TIMES_THE_LIMIT, text: 256, files: 1, tpch: Some(1) };
    let names: Vec<String> = scenarios(scale)?.into_iter().map(|scenario| scenario.name).collect();
    let known = page.lines().filter(|line| line.starts_with('|')).map(str::to_owned);
    let mut rows = Vec::new();
    for (limit, _) in LIMITS {
        for name in &names {
            let wanted = |line: &&String| cells(line) == (name.clone(), limit.to_owned());
            let now = lines.iter().find(wanted).cloned();
            rows.extend(now.or_else(|| known.clone().find(|line| wanted(&line))));
        }
    }
    Ok(rows)
}

/// CPUs and memory of this machine.
fn machine() -> io::Result<String> {
    let cpus = std::thread::available_parallelism()?;
    Ok(format!("{cpus} CPUs and {} GiB of RAM", (machine_memory("MemTotal:")? + (1 << 29)) >> 30))
}

/// The page of the documentation.
fn page(lines: &[String]) -> io::Result<String> {
    Ok(format!(
        "# Memory, measured\n\n\
         The most memory that a process of the tool had resident (`VmHWM` of `/proc/<pid>/status`) in each scenario at each\n\
         `--memory` limit, beside the same run without the option. Inputs are {TIMES_THE_LIMIT} times the limit when in \
         memory, except the\n\
         TPC-H tables, which have scale factor 1. `ok`: the result is that of the run without a limit, and the spill\n\
         directory is empty afterwards. `refused`: the tool said that the limit is too low, and did not start. `cannot\n\
         spill`: the query ended with an error that names an operator which cannot spill, and what it would need. `nothing` is\n\
         what a process needs without any data. The scenarios are in `tests/integration/memory/scenarios.rs`.\n\n\
         Measured on a machine with {}, by\n\n\
         ```sh\nUPDATE_DOCS=1 cargo bench --bench memory\n```\n\n{}\n{}\n",
        machine()?,
        Measured::HEAD,
        lines.join("\n")
    ))
}

fn run(selection: &Selection) -> io::Result<usize> {
    let update = std::env::var_os("UPDATE_DOCS").is_some();
    let scratch = tempfile::tempdir()?;
    let kept = std::env::var_os("BLOCKYARD_BENCH_DATA").map(PathBuf::from);
    let data = match kept {
        Some(data) => std::path::absolute(data)?,
        None => scratch.path().join("data"),
    };
    let (lines, failed) = measure(selection, &data, &scratch.path().join("scratch"))?;
    if update {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/memory.md");
        let known = fs::read_to_string(&path).unwrap_or_default();
        fs::write(path, page(&merged(&known, lines)?)?)?;
    }
    Ok(failed)
}

fn main() -> ExitCode {
    let selection = match Selection::parse(std::env::args().skip(1)) {
        Ok(selection) if common::measures() => selection,
        Ok(_) => Selection { names: vec!["group_by_numbers".to_owned()], limit: Some("64MiB".to_owned()) },
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    match run(&selection) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("{failed} failed");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
