//! Scenario a: output of the first stage is lost while the second runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::UInt64Type;

use crate::Outcome;
use crate::client::Client;
use crate::cluster::{Cluster, SURVIVOR, VICTIM, wait};
use crate::gate_exec::Place;
use crate::plans::{self, ROWS};
use crate::rounds::{Round, failed};
use crate::scenario::{Finding, ShuffleVariant};

pub(crate) async fn play(cluster: &mut Cluster, variant: ShuffleVariant) -> Outcome<Round> {
    let (place, finished) = match variant {
        ShuffleVariant::Control | ShuffleVariant::Before => (Place::BeforeInput, 1),
        ShuffleVariant::After => (Place::AfterInput, 4),
    };
    let job = Client::new(cluster.scheduler.port).run(plans::shuffle(&cluster.gates, place)?);
    hold_second_stage(cluster, finished).await?;

    let done = cluster.gates.done()?.len();
    if variant != ShuffleVariant::Control {
        cluster.executors[VICTIM].kill()?;
    }
    let begin = Instant::now();
    cluster.gates.open_all()?;

    let Some(ended) = job.end().await? else {
        return Ok(Round { finding: Finding::Hung, details: format!("{done} done before the kill") });
    };
    let (finding, rows) = match ended.result {
        Ok(batches) => compare(&batches)?,
        Err(e) => return Ok(failed(&e.to_string())),
    };
    let details = format!(
        "{rows} | {:.1} s | tasks of the second stage: {done} done before, {} begun in all | victim removed by then: {}",
        (ended.at - begin).as_secs_f32(),
        cluster.gates.started()?.len(),
        cluster.has_removed_victim()?,
    );
    Ok(Round { finding, details })
}

/// Waits until the survivor has finished so many tasks of the second stage and both executors are held in one.
async fn hold_second_stage(cluster: &Cluster, finished: usize) -> Outcome<()> {
    let (victim, survivor) = (cluster.pid(VICTIM), cluster.pid(SURVIVOR));
    wait("the second stage to run on both executors", || {
        Ok(!cluster.gates.started_on(victim)?.is_empty() && !cluster.gates.started_on(survivor)?.is_empty())
    })
    .await?;
    for executor in [VICTIM, SURVIVOR] {
        if files_of_first_stage(&cluster.work_dir(executor))? == 0 {
            return Err(format!("executor {executor} has no output of the first stage").into());
        }
    }
    // When the next task runs, the last one has been reported: by the same poll.
    for already in 1..=finished {
        let started = cluster.gates.started_on(survivor)?;
        cluster.gates.open(started.last().ok_or("no task runs")?)?;
        wait("the next task of the survivor", || Ok(cluster.gates.started_on(survivor)?.len() > already)).await?;
    }
    Ok(())
}

/// They are in `<job>/<stage>`.
fn files_of_first_stage(work_dir: &Path) -> Outcome<usize> {
    let mut files = 0;
    for job in fs::read_dir(work_dir)? {
        let stage = job?.path().join("1");
        if stage.is_dir() {
            files += fs::read_dir(stage)?.count();
        }
    }
    Ok(files)
}

/// Whether each number from 0 to `ROWS` is there once.
fn compare(batches: &[RecordBatch]) -> Outcome<(Finding, String)> {
    let mut times: BTreeMap<u64, usize> = BTreeMap::new();
    for batch in batches {
        let ids = batch.column(0).as_primitive_opt::<UInt64Type>().ok_or("there are no ids")?;
        ids.values().iter().for_each(|id| *times.entry(*id).or_default() += 1);
    }
    let lost = (0..ROWS).filter(|id| !times.contains_key(id)).count();
    let twice: usize = times.values().map(|times| times - 1).sum();
    let finding = match (twice, lost) {
        (0, 0) => Finding::Exact,
        (_, 0) => Finding::RowsTwice,
        _ => Finding::Other("success with rows lost".to_owned()),
    };
    Ok((finding, format!("{twice} of {ROWS} rows twice, {lost} lost")))
}
