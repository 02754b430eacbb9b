//! Random pipelines whose iterators go on in another session, at a token of one that was somewhere in the middle.

use std::path::Path;

use blockyard::{IterOptions, ResumeToken};
use futures::StreamExt;
use tokio::time::timeout;

use super::plan::{Random, Row};
use super::{PATIENCE, Run, runtime, session, values};

/// Rows of each batch, and the token before the first and behind each.
type Batches = (Vec<Vec<Row>>, Vec<ResumeToken>);

/// The batches of a pipeline from a token on. `None` where it has no tokens.
fn iterate(
    table: &Path,
    sql: &str,
    run: &Run,
    size: usize,
    resume: Option<&ResumeToken>,
) -> Result<Option<Batches>, String> {
    let attempt = |memory| {
        runtime(run.threads).block_on(async {
            let context = session(table, run, memory).await?;
            let options =
                IterOptions { batch_size: Some(size), epoch: Some(0), resume: resume.cloned(), ..Default::default() };
            let read = async {
                let mut batches = context.sql(sql).await?.iter_batches(options).await?;
                let Ok(token) = batches.token() else { return Ok(None) };
                let (mut read, mut tokens) = (Vec::new(), vec![token]);
                while let Some(batch) = batches.next().await {
                    read.push(values(&[batch?]).into_iter().map(|(row, _)| row).collect());
                    tokens.push(batches.token()?);
                }
                Ok(Some((read, tokens)))
            };
            let read = timeout(PATIENCE, read).await.map_err(|_| "it stalls".to_owned())?;
            read.map_err(|e: datafusion::error::DataFusionError| e.to_string())
        })
    };
    match attempt(run.memory) {
        Err(e) if run.memory < 1024 && (e.contains("needs at least") || e.contains("Resources exhausted")) => {
            attempt(1024)
        }
        result => result,
    }
}

/// Reads a pipeline in one session, and from somewhere on in another one. Whether it has tokens.
pub(super) fn check(table: &Path, sql: &str, runs: [&Run; 2], seed: u64) -> Result<bool, String> {
    let mut random = Random(seed ^ 0x5eed);
    let sql = match random.one_in(3) {
        true => format!("SELECT * FROM local_shuffle(({sql}), {}, seed => 3)", 1 + random.below(300)),
        false => sql.to_owned(),
    };
    let size = 1 + random.below(700) as usize;
    let Some((whole, tokens)) = iterate(table, &sql, runs[0], size, None)? else { return Ok(false) };
    let cut = random.below(tokens.len() as u64) as usize;
    let token = &tokens[cut];
    let wrong = |what: &str| Err(format!("{what}, from batch {cut} of {} rows on, at {token}\n{sql}", size));
    match iterate(table, &sql, runs[1], size, Some(token)) {
        Err(e) => wrong(&e),
        Ok(None) => wrong("it has no tokens in the other session"),
        Ok(Some((rest, _))) if rest != whole[cut..] => {
            let place = rest.iter().zip(&whole[cut..]).position(|(a, b)| a != b);
            wrong(&format!("{} batches instead of {}, different at {place:?}", rest.len(), whole.len() - cut))
        }
        Ok(Some(_)) => Ok(true),
    }
}
