//! Parts of stages, as an executor runs them, and the rows that these fetch from others.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use super::credentials::Credentials;
use super::messages::{Call, Connection, Exchange, Fetch, Held, Part, Reply, Source};
use super::queries::Queries;
use super::query::{Query, WholeSide};
use super::taken::Taken;
use crate::physical::{
    FetchRows, FetchedTasksExec, IntoPlan, Part as StagePart, RowRange, SchemeInOrder, StagePrint, TaskRows,
    exchange_of, fetched, of_part, stream_of,
};
use crate::runtime::in_background;
use crate::wire::{Address, BatchReader, is_distrust};

/// The rows of so many executors are asked for at once where they come after each other.
const FETCHED_AHEAD: usize = 3;

impl Queries {
    /// A part of a stage, or of what is below an exchange of it, with what it takes from other exchanges.
    pub(super) fn part(
        self: &Arc<Self>,
        query: &Arc<Query>,
        print: StagePrint,
        below: Option<usize>,
        source: &Source,
    ) -> Result<(Arc<dyn ExecutionPlan>, Arc<Taken>)> {
        let Some(stage) = query.stages.get(&print) else { return internal_err!("a stage is not there") };
        let (plan, first) = match below {
            None => (stage, 0),
            Some(number) => match exchange_of(stage, number) {
                Some(exchange) => (exchange.input(), number + 1),
                None => return exec_err!("the stage has no exchange {number}"),
            },
        };
        let taken = Arc::new(Taken::default());
        let whole =
            |number, side: &Arc<dyn ExecutionPlan>| query.whole(WholeSide { stage: print, below, number }, side);
        let exchanged = |number| {
            let (Some(exchange), Some(kept)) =
                (exchange_of(stage, number), source.exchanges.iter().find(|exchange| exchange.number == number))
            else {
                return exec_err!("nothing is known of exchange {number}");
            };
            let scheme = exchange.scheme();
            let distributed = scheme.as_ref().map(SchemeInOrder::distributed).transpose()?;
            let (with_codes, in_order) = (distributed.is_some_and(|rows| rows.with_codes()), scheme.is_some());
            let fetching = |taken: &Arc<Taken>| Fetching {
                queries: Arc::clone(self),
                query: Arc::downgrade(query),
                stage: print,
                exchange: kept.clone(),
                with_codes,
                in_order,
                schema: exchange.schema(with_codes),
                taken: Arc::clone(taken),
            };
            match (&source.part, scheme, kept.whole) {
                (_, _, Some(_)) => {
                    let all = RowRange::Codes(0, u64::MAX);
                    let (rows, of_all) = query.exchanged(print, kept, |taken| fetching(taken).plan(all.clone()))?;
                    taken.share(of_all);
                    Ok(rows)
                }
                (Part::Codes(low, high), None, None) => fetching(&taken).plan(RowRange::Codes(*low, *high)),
                (Part::Rows(first, tasks), Some(scheme), None) => {
                    let schema = exchange.input().schema();
                    Ok(fetching(&taken).tasks(scheme, schema, *first, tasks.as_slice().into()))
                }
                _ => exec_err!("the tasks are not such as exchange {number} has"),
            }
        };
        let tasks = match source.part {
            Part::Tasks(start, end) => Some(start..end),
            Part::Codes(..) | Part::Rows(..) => None,
        };
        let part = of_part(plan, first, &StagePart { tasks, exchanged: &exchanged, whole: &whole });
        // What operators have learnt of other rows, or of the same ones before, is nothing to these.
        Ok((part.and_then(reset_plan_states)?, taken))
    }
}

/// The rows of an exchange for a part.
struct Fetching {
    queries: Arc<Queries>,
    /// The query may keep this.
    query: Weak<Query>,
    stage: StagePrint,
    exchange: Exchange,
    with_codes: bool,
    /// Whether rows come in the order of their units.
    in_order: bool,
    schema: SchemaRef,
    taken: Arc<Taken>,
}

impl Fetching {
    /// A plan that gives those of a range.
    fn plan(self, range: RowRange) -> Result<Arc<dyn ExecutionPlan>> {
        let (schema, fetching) = (Arc::clone(&self.schema), Arc::new(self));
        fetched(schema, Arc::new(move || Arc::clone(&fetching).counted(range.clone())))
    }

    /// A plan that gives those of some tasks, with columns of `schema`, in their order.
    fn tasks(
        self,
        scheme: SchemeInOrder,
        schema: SchemaRef,
        first: usize,
        tasks: Arc<[TaskRows]>,
    ) -> Arc<dyn ExecutionPlan> {
        let (number, taken, came) = (self.exchange.number, Arc::clone(&self.taken), Arc::new(AtomicU64::new(0)));
        taken.note(number, None);
        let (fetching, coming) = (Arc::new(self), Arc::clone(&came));
        let fetch: FetchRows = Arc::new(move |range| {
            let coming = Arc::clone(&coming);
            let rows = Arc::clone(&fetching).rows(range);
            rows.inspect_ok(move |batch| _ = coming.fetch_add(batch.num_rows() as u64, Relaxed)).boxed()
        });
        let ended = Arc::new(move |given| {
            let came = came.load(Relaxed);
            taken.note(number, Some(came));
            match came == given {
                true => Ok(()),
                false => internal_err!("exchange {number} gave {came} rows, of which {given} were put in order"),
            }
        });
        FetchedTasksExec::new(scheme, schema, first, tasks, fetch, ended).into_plan()
    }

    /// All of a range, from one executor after the other.
    fn rows(self: Arc<Self>, range: RowRange) -> BoxStream<'static, Result<RecordBatch>> {
        let (held, schema, in_order) = (self.exchange.held.clone(), Arc::clone(&self.schema), self.in_order);
        let all = stream::iter(held).map(move |held| self.rows_of(held, &range));
        match in_order {
            false => all.flatten().boxed(),
            // Of many units that are here and there in turn.
            true => {
                let begun = all.map(move |rows| {
                    let schema = Arc::clone(&schema);
                    async move { Ok::<_, DataFusionError>(in_background(stream_of(schema, rows))) }
                });
                begun.buffered(FETCHED_AHEAD).try_flatten().boxed()
            }
        }
    }

    /// The same, and notes how many they were.
    fn counted(self: Arc<Self>, range: RowRange) -> SendableRecordBatchStream {
        let (number, whole) = (self.exchange.number, self.exchange.whole);
        let (schema, taken) = (Arc::clone(&self.schema), Arc::clone(&self.taken));
        taken.note(number, None);
        let counted = stream::try_unfold((self.rows(range), 0), move |(mut all, rows)| {
            let taken = Arc::clone(&taken);
            async move {
                let Some(batch) = all.try_next().await? else {
                    taken.note(number, Some(rows));
                    return match whole {
                        Some(whole) if whole != rows => {
                            internal_err!("exchange {number} has {whole} rows and gave {rows}")
                        }
                        _ => Ok(None),
                    };
                };
                let rows = rows + batch.num_rows() as u64;
                Ok::<_, DataFusionError>(Some((batch, (all, rows))))
            }
        });
        in_background(stream_of(schema, counted.boxed()))
    }

    /// Those that one executor keeps.
    fn rows_of(&self, held: Held, range: &RowRange) -> BoxStream<'static, Result<RecordBatch>> {
        let own = self.query.upgrade().filter(|query| query.name == held.query);
        if let Some(query) = own {
            let rows = query.kept(self.stage, self.exchange.number, &held.units, range, self.with_codes);
            return match rows {
                Ok(rows) => rows,
                Err(e) => stream::once(async { Err(e) }).boxed(),
            };
        }
        let call = Call::Fetch(Fetch {
            query: held.query,
            stage: self.stage,
            exchange: self.exchange.number,
            units: held.units,
            rows: range.clone(),
            with_codes: self.with_codes,
        });
        let (credentials, address, schema) = (self.queries.credentials(), held.address, Arc::clone(&self.schema));
        let taken = Arc::clone(&self.taken);
        let rows = stream::once(async move { Far::call(address, credentials, &call, schema, taken).await });
        rows.map_ok(Far::rows).try_flatten().boxed()
    }
}

/// Rows that another executor keeps, on their way.
struct Far {
    address: String,
    connection: Connection,
    reader: BatchReader,
    schema: SchemaRef,
    rows: u64,
    taken: Arc<Taken>,
}

impl Far {
    async fn call(
        address: String,
        credentials: Credentials,
        call: &Call,
        schema: SchemaRef,
        taken: Arc<Taken>,
    ) -> Result<Self> {
        let called = async {
            let at: Address = address.parse()?;
            let connection = Connection::call(&at, &credentials, call).await;
            // Others may believe it.
            let mut connection = match connection {
                Err(e) if is_distrust(&e) => return Ok(Err(taken.bar(&address, &e))),
                connection => connection?,
            };
            match connection.reply().await? {
                Reply::Rows => Ok(Ok(connection)),
                Reply::Unknown => exec_err!("it knows nothing of the query"),
                // That is about who asks.
                Reply::Refused(why) => Ok(Err(taken.bar(&address, &exec_datafusion_err!("it refuses: {why}")))),
                Reply::Failed(why) => exec_err!("{why}"),
                _ => exec_err!("it is no executor"),
            }
        };
        match called.await {
            Ok(Err(barred)) => Err(barred),
            Ok(Ok(connection)) => {
                Ok(Self { address, connection, reader: BatchReader::default(), schema, rows: 0, taken })
            }
            Err(e) => Err(taken.miss(&address, &e)),
        }
    }

    fn rows(self) -> BoxStream<'static, Result<RecordBatch>> {
        let next = |mut far: Self| async move {
            match far.next().await {
                Ok(batch) => Ok(batch.map(|batch| (batch, far))),
                Err(e) => Err(far.taken.miss(&far.address, &e)),
            }
        };
        stream::try_unfold(self, next).boxed()
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        if let Some(batch) = self.reader.next(&mut self.connection.read).await? {
            self.rows += batch.num_rows() as u64;
            return Ok(Some(batch.with_schema(Arc::clone(&self.schema))?));
        }
        match self.connection.reply().await? {
            Reply::Done { rows, .. } if rows == self.rows => Ok(None),
            Reply::Done { rows, .. } => exec_err!("it has sent {rows} rows, of which {} came", self.rows),
            Reply::Failed(why) | Reply::Refused(why) => exec_err!("{why}"),
            _ => exec_err!("it is no executor"),
        }
    }
}
