//! [`Query`]: what an executor has of a query of a driver.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, exec_err, internal_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::messages::{Exchange, Held, Map, Mapped};
use super::taken::Taken;
use crate::physical::{KeptRows, RowRange, StagePrint, WholeRows, exchange_of};
use crate::store::Admission;

/// A query that was planned here.
#[derive(Debug)]
pub(super) struct Query {
    /// What this process calls it.
    pub(super) name: String,
    pub(super) stages: HashMap<StagePrint, Arc<dyn ExecutionPlan>>,
    pub(super) context: Arc<TaskContext>,
    /// Rows of units below the exchanges of its stages.
    kept: Mutex<HashMap<(StagePrint, usize, u64), Arc<KeptRows>>>,
    /// Sides of joins that all tasks of a stage have whole.
    whole: Mutex<HashMap<WholeSide, WholeRows>>,
    /// The same where executors have exchanged them, by who keeps them.
    exchanged: Mutex<HashMap<WholeExchange, Exchanged>>,
    /// A permit for each unit that may run at once below an exchange, or where it writes files: several stages of a
    /// query run together, and each asks for as many as there are threads.
    turns: Arc<Semaphore>,
    /// The memory that it was promised.
    _admission: Admission,
}

/// A side of a join that all tasks of a stage have whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct WholeSide {
    pub(super) stage: StagePrint,
    /// Below which of its exchanges the join is, if it is below one.
    pub(super) below: Option<usize>,
    /// Which of the sides there it is.
    pub(super) number: usize,
}

/// An exchange of which all tasks of a stage have all rows, as it was kept at some time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct WholeExchange {
    stage: StagePrint,
    number: usize,
    held: Vec<Held>,
}

/// Rows that were exchanged, and what was taken of them.
#[derive(Debug)]
struct Exchanged {
    rows: WholeRows,
    taken: Arc<Taken>,
}

impl Query {
    /// Of which these stages may run here, in the memory that it was promised.
    pub(super) fn new(
        name: &str,
        stages: HashMap<StagePrint, Arc<dyn ExecutionPlan>>,
        context: Arc<TaskContext>,
        admission: Admission,
    ) -> Self {
        let turns = Arc::new(Semaphore::new(context.session_config().target_partitions()));
        Self {
            name: name.to_owned(),
            stages,
            context,
            kept: Mutex::default(),
            whole: Mutex::default(),
            exchanged: Mutex::default(),
            turns,
            _admission: admission,
        }
    }

    /// Runs a part of what is below an exchange, which takes this of others, and keeps its rows.
    pub(super) async fn keep(&self, map: &Map, part: &Arc<dyn ExecutionPlan>, taken: &Taken) -> Result<Mapped> {
        let exchange = self.stages.get(&map.stage).and_then(|stage| exchange_of(stage, map.exchange));
        let Some(exchange) = exchange else { return exec_err!("the stage has no exchange {}", map.exchange) };
        let _turn = self.turns.acquire().await.map_err(|e| internal_datafusion_err!("{e}"))?;
        let kept = KeptRows::collect(exchange, map.place, part, &self.context).await?;
        let known = Mapped { extent: kept.extent(), taken: taken.rows() };
        match self.kept.lock().insert((map.stage, map.exchange, map.unit), Arc::new(kept)) {
            Some(_) => internal_err!("unit {} of exchange {} came twice", map.unit, map.exchange),
            None => Ok(known),
        }
    }

    /// The rows of a unit that nobody takes before it has come to its end, when there is a turn for it. Those below
    /// exchanges have one too, and wait for none that has: what they have kept is given without.
    pub(super) fn in_turn(
        &self,
        rows: impl FnOnce() -> SendableRecordBatchStream + Send + 'static,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let turns = Arc::clone(&self.turns);
        let in_turn = stream::once(async move {
            let turn = turns.acquire_owned().await.map_err(|e| internal_datafusion_err!("{e}"))?;
            let rows = rows().inspect(move |_| {
                let _held = &turn;
            });
            Ok::<_, DataFusionError>(rows)
        });
        in_turn.try_flatten().boxed()
    }

    /// Rows of units of an exchange that are in a range, unit by unit.
    pub(super) fn kept(
        &self,
        stage: StagePrint,
        exchange: usize,
        units: &[u64],
        range: &RowRange,
        with_codes: bool,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let kept = self.kept.lock();
        let rows = units.iter().map(|unit| match kept.get(&(stage, exchange, *unit)) {
            Some(rows) => Ok(Arc::clone(rows)),
            None => exec_err!("unit {unit} of exchange {exchange} is not here"),
        });
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let range = range.clone();
        Ok(stream::iter(rows).map(move |rows| rows.rows(range.clone(), with_codes)).try_flatten().boxed())
    }

    /// What stands for a side of a join that is the same for all tasks.
    pub(super) fn whole(&self, which: WholeSide, side: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let mut whole = self.whole.lock();
        whole.entry(which).or_insert_with(|| WholeRows::of(Arc::clone(side), &self.context)).plan()
    }

    /// The same of a side that executors have exchanged, as `fetch` gets it where nobody has yet; and what was taken.
    pub(super) fn exchanged(
        &self,
        stage: StagePrint,
        kept: &Exchange,
        fetch: impl Fn(&Arc<Taken>) -> Result<Arc<dyn ExecutionPlan>>,
    ) -> Result<(Arc<dyn ExecutionPlan>, Arc<Taken>)> {
        let mut exchanged = self.exchanged.lock();
        let key = WholeExchange { stage, number: kept.number, held: kept.held.clone() };
        // What has failed may be there now.
        if exchanged.get(&key).is_none_or(|exchanged| exchanged.rows.have_failed()) {
            let taken = Arc::<Taken>::default();
            let rows = WholeRows::of(fetch(&taken)?, &self.context);
            exchanged.insert(key.clone(), Exchanged { rows, taken });
        }
        match exchanged.get(&key) {
            Some(Exchanged { rows, taken }) => Ok((rows.plan()?, Arc::clone(taken))),
            None => internal_err!("rows of an exchange vanished"),
        }
    }

    /// Columns of the rows of an exchange.
    pub(super) fn schema_of(&self, stage: StagePrint, exchange: usize, with_codes: bool) -> Result<SchemaRef> {
        match self.stages.get(&stage).and_then(|stage| exchange_of(stage, exchange)) {
            Some(exchange) => Ok(exchange.schema(with_codes)),
            None => exec_err!("the stage has no exchange {exchange}"),
        }
    }
}
