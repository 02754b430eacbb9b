//! The driver: a row for each round, and one line for all of them.

use std::path::Path;

use crate::cluster::Cluster;
use crate::scenario::{Finding, Scenario};
use crate::{Outcome, one_stage, scheduler_killed, shuffle};

/// What a round has come to, and the figures to it.
pub(crate) struct Round {
    pub(crate) finding: Finding,
    pub(crate) details: String,
}

/// Plays the scenario that often. Whether it went as expected.
pub(crate) async fn run(scenario: Scenario, rounds: usize) -> Outcome<bool> {
    if rounds == 0 {
        return Err("at least one round is needed".into());
    }
    let mut findings = Vec::with_capacity(rounds);
    for round in 1..=rounds {
        let directory = tempfile::Builder::new().prefix("ballista-probe-").tempdir()?;
        // Its processes are dead when this returns.
        let seen = play(scenario, directory.path(), round == 1).await;
        let seen = seen.unwrap_or_else(|e| failed(&e.to_string()));
        println!("| {scenario} | {round} | {} | {} |", seen.finding, seen.details);
        if !scenario.expects(&seen.finding) {
            println!("logs of round {round}: {}", directory.keep().display());
        }
        findings.push(seen.finding);
    }
    let otherwise = scenario.otherwise(&findings);
    match &otherwise {
        None => println!("{scenario}: as expected"),
        Some(otherwise) => println!("{scenario}: otherwise: {otherwise}"),
    }
    Ok(otherwise.is_none())
}

async fn play(scenario: Scenario, directory: &Path, is_first: bool) -> Outcome<Round> {
    let mut cluster = Cluster::start(scenario, directory).await?;
    if is_first {
        println!("idle: {}", cluster.memory()?);
    }
    match scenario {
        Scenario::Shuffle(variant) => shuffle::play(&mut cluster, variant).await,
        Scenario::OneStage(variant) => one_stage::play(&mut cluster, variant).await,
        Scenario::SchedulerKilled => scheduler_killed::play(&mut cluster).await,
    }
}

/// A round that ended with an error, of the job or of the probe.
pub(crate) fn failed(error: &str) -> Round {
    let error = error.replace('\n', " ").chars().take(200).collect::<String>();
    Round { finding: Finding::Other("failed".to_owned()), details: error }
}
