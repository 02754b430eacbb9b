//! Scenario c: the scheduler is lost, and what is not done yet is given to a new one.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::Outcome;
use crate::client::Client;
use crate::cluster::{Cluster, wait};
use crate::plans::{self, TASKS};
use crate::rounds::{Round, failed};
use crate::scenario::Finding;

pub(crate) async fn play(cluster: &mut Cluster) -> Outcome<Round> {
    let client = Client::new(cluster.scheduler.port);
    let job = client.run(plans::one_stage(&cluster.gates, 0..TASKS)?);
    cluster.progress(2, 1).await?;

    cluster.scheduler.kill()?;
    let killed = Instant::now();
    let Some(ended) = job.end().await? else {
        return Ok(Round { finding: Finding::Hung, details: "the client of the dead scheduler".to_owned() });
    };
    if ended.result.is_ok() {
        return Ok(failed("the job was a success without a scheduler"));
    }
    let told = (ended.at - killed).as_millis();

    cluster.restart_scheduler()?;
    let restarted = Instant::now();
    cluster.ready().await?;
    let back = restarted.elapsed().as_millis();

    // Of the old job the two held tasks are left.
    let before = cluster.gates.done()?.len();
    let opened = Instant::now();
    cluster.gates.open_all()?;
    wait("the held tasks to end", || Ok(cluster.gates.done()?.len() >= before + 2)).await?;
    let went_on = opened.elapsed().as_millis();

    let done = times_done(cluster)?;
    let missing: Vec<u64> = (0..TASKS).filter(|task| !done.contains_key(&task.to_string())).collect();
    let (again, count) = (Instant::now(), missing.len());
    let Some(ended) = client.run(plans::one_stage(&cluster.gates, missing.into_iter())?).end().await? else {
        return Ok(Round { finding: Finding::Hung, details: format!("the second job, of {count} tasks") });
    };
    if let Err(e) = ended.result {
        return Ok(failed(&e.to_string()));
    }
    let took = (ended.at - again).as_millis();
    let done = times_done(cluster)?;
    let twice: usize = done.values().map(|times| times - 1).sum();
    let finding = match (done.len() as u64, twice) {
        (TASKS, 0) => Finding::DoneOnce,
        _ => Finding::Other("not all tasks once".to_owned()),
    };
    let details = format!(
        "{} of {TASKS} done, {twice} twice | client told after {told} ms | executors back {back} ms after the new \
         scheduler listens | held tasks done in {went_on} ms | second job, of {count} tasks, in {took} ms",
        done.len(),
    );
    Ok(Round { finding, details })
}

fn times_done(cluster: &Cluster) -> Outcome<BTreeMap<String, usize>> {
    let mut times = BTreeMap::new();
    cluster.gates.done()?.into_iter().for_each(|task| *times.entry(task.name).or_default() += 1);
    Ok(times)
}
