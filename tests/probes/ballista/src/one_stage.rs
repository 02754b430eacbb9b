//! Scenario b: an executor is lost with results of a stage that nobody reads.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::Outcome;
use crate::client::Client;
use crate::cluster::{Cluster, SURVIVOR, VICTIM, executor_id, wait};
use crate::plans::{self, TASKS};
use crate::rounds::{Round, failed};
use crate::scenario::{Finding, OneStageVariant};

pub(crate) async fn play(cluster: &mut Cluster, variant: OneStageVariant) -> Outcome<Round> {
    let client = Client::new(cluster.scheduler.port);
    let job = client.run(plans::one_stage(&cluster.gates, 0..TASKS)?);
    match variant {
        OneStageVariant::Control => {}
        OneStageVariant::Idle => do_all_but_one(cluster).await?,
        _ => cluster.progress(2, 1).await?,
    }
    let victim = cluster.pid(VICTIM);
    let before = cluster.gates.done_on(victim)?.len();

    let begin = Instant::now();
    match variant {
        OneStageVariant::Control => {}
        OneStageVariant::Plain | OneStageVariant::Idle => cluster.executors[VICTIM].kill()?,
        OneStageVariant::Stopped => {
            cluster.executors[VICTIM].kill()?;
            client.executor_stopped(executor_id(VICTIM)).await?;
        }
        OneStageVariant::Pause => pause(cluster).await?,
    }
    cluster.gates.open_all()?;
    let removal = match variant {
        OneStageVariant::Plain | OneStageVariant::Stopped => {
            format!("{:.2} s", cluster.removal(begin).await?.as_secs_f32())
        }
        _ => "not waited for".to_owned(),
    };

    let Some(ended) = job.end().await? else {
        let details = format!("{} of {TASKS} done", cluster.gates.done()?.len());
        return Ok(Round { finding: Finding::Hung, details });
    };
    if let Err(e) = ended.result {
        return Ok(failed(&e.to_string()));
    }
    let (finding, results) = results(cluster, variant)?;
    let took = (ended.at - begin).as_secs_f32();
    let details = format!("{took:.2} s | removal: {removal} | victim had done {before} before | {results}");
    Ok(Round { finding, details })
}

/// Waits until the victim has done all tasks but the first one of the survivor.
async fn do_all_but_one(cluster: &Cluster) -> Outcome<()> {
    let victim = cluster.pid(VICTIM);
    wait("the victim to do all tasks but one", || {
        cluster.gates.started_on(victim)?.iter().try_for_each(|task| cluster.gates.open(task))?;
        Ok(cluster.gates.done_on(victim)?.len() as u64 == TASKS - 1)
    })
    .await
}

/// Stops the scheduler until a poll of each executor has failed by its time-out of 20 s.
async fn pause(cluster: &Cluster) -> Outcome<()> {
    cluster.scheduler.stop()?;
    cluster.gates.open_all()?;
    wait("a poll of each executor to fail", || {
        let has_failed =
            |executor| Ok::<_, std::io::Error>(cluster.executor_log(executor)?.contains("poll work loop failed"));
        Ok(has_failed(VICTIM)? && has_failed(SURVIVOR)?)
    })
    .await?;
    cluster.scheduler.go_on()
}

/// Where the results are of a job that is a success.
fn results(cluster: &Cluster, variant: OneStageVariant) -> Outcome<(Finding, String)> {
    let names = |pid: u32| -> Outcome<BTreeSet<String>> {
        Ok(cluster.gates.done_on(pid)?.into_iter().map(|task| task.name).collect())
    };
    let (of_victim, of_survivor) = (names(cluster.pid(VICTIM))?, names(cluster.pid(SURVIVOR))?);
    let only_victim = of_victim.difference(&of_survivor).count();
    let done = of_survivor.len() + only_victim;
    let runs = cluster.gates.done()?.len();
    let all = TASKS as usize;
    let nobody_died = matches!(variant, OneStageVariant::Control | OneStageVariant::Pause);
    let finding = match nobody_died {
        _ if done < all => Finding::Other("success with tasks that are not done".to_owned()),
        true if runs == all => Finding::DoneOnce,
        true => Finding::Other("success with tasks done twice".to_owned()),
        false if of_survivor.len() == all => Finding::OnSurvivor,
        false => Finding::OnDead,
    };
    let details = format!(
        "survivor has {} of {TASKS}, only victim {only_victim}, done in all {runs}, begun in all {}",
        of_survivor.len(),
        cluster.gates.started()?.len(),
    );
    Ok((finding, details))
}
