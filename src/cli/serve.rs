//! `blockyard serve`: the rows of a query for several consumers in other processes.

use datafusion::common::plan_err;

use super::arguments::{Barrier, Deal, Split};
use super::failure::Failure;
use super::session::Session;
use super::statements::Script;
use crate::{Dataset, SplitBarrier, SplitOptions, SplitServer};

/// Serves the last query of a file until all consumers have come and gone.
pub(super) fn serve(
    session: &mut Session,
    scripts: &[Script],
    split: &Split,
    batch_size: Option<u32>,
) -> Result<(), Failure> {
    let mut statements = Vec::new();
    for script in scripts {
        statements.extend(session.context().parse(&script.text)?);
    }
    let Some(query) = statements.pop().filter(|statement| statement.is_query()) else {
        return Err(Failure::Usage("the last statement must be a query: its rows are served".to_owned()));
    };
    let (n, listen, options) = (usize::from(split.splits), split.listen.clone(), options(session, split, batch_size));
    session.listening(async |session| {
        for statement in statements {
            session.run_statement(statement).await?;
        }
        let context = session.context().clone();
        let bound = session.on_workers(async move {
            let dataset = context.run(query).await?;
            if dataset.columns().is_empty() {
                return plan_err!("the last statement gives no rows that could be served");
            }
            SplitServer::bind(&listen, split_of(&dataset, n, options)?).await
        });
        let server = bound.await?;
        println!("{}", serde_json::json!({"address": server.address(), "consumers": n, "key": server.key()}));
        session.on_workers(async move { server.finished().await }).await
    })
}

/// The iterators of a dataset, or of the pipeline that it is.
fn split_of(
    dataset: &Dataset,
    n: usize,
    options: SplitOptions,
) -> datafusion::common::Result<Vec<crate::SplitIterator>> {
    match dataset.as_pipeline() {
        Some(pipeline) => pipeline.streaming_split(n, options),
        None => dataset.streaming_split(n, options),
    }
}

fn options(session: &Session, split: &Split, batch_size: Option<u32>) -> SplitOptions {
    let default = SplitOptions::default();
    let global_batch_size = split.global_batch_size.map(|rows| rows as usize);
    SplitOptions {
        equal: split.equal,
        batch_size: match global_batch_size {
            Some(_) => None,
            None => batch_size.map(|rows| rows as usize).or(default.batch_size),
        },
        global_batch_size,
        drop_last: split.drop_last,
        barrier: match split.barrier {
            Barrier::Epoch => SplitBarrier::Epoch,
            Barrier::Window => SplitBarrier::Window,
            Barrier::None => SplitBarrier::None,
        },
        deal: match split.deal {
            Deal::Turns => crate::Deal::Turns,
            Deal::Demand => crate::Deal::Demand,
        },
        buffer_bytes: split.buffer,
        on_lost: split.on_lost.0,
        max_wait: split.max_wait,
        resume: session.resume().cloned(),
    }
}
