//! [`KeptRows`], and how they are cut.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;

use super::StageExchange;
use super::stages::has_windows;
use crate::physical::StageMetrics;
use crate::physical::exchange::{Cut, Extent, KeptBy, RowRange, Runs, SortedUnit, TaskRows, Wanted, cuts};
use crate::physical::tasks::stream_of;
use crate::store::QueryPool;

/// Rows of a unit of tasks below an exchange, which stay in the store of the process that has made them until they are
/// asked for.
#[derive(Debug)]
pub(crate) enum KeptRows {
    /// By codes.
    Coded(Arc<Runs>),
    /// By keys.
    Sorted(Arc<SortedUnit>),
}

impl KeptRows {
    /// The rows of `input`, unit number `unit` of what is below `exchange`.
    pub(crate) async fn collect(
        exchange: StageExchange<'_>,
        unit: usize,
        input: &Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
    ) -> Result<Self> {
        let stage = StageMetrics::default();
        stage.owner().describe(QueryPool::query_of(context), || "RemoteExchangeExec".to_owned());
        match exchange.kept_by()? {
            KeptBy::Codes(coding) => {
                // Which row of a partition was the first is told by other columns than the keys.
                let wanted = Wanted { whole_rows: has_windows(exchange.input()), ..Wanted::default() };
                let runs = Runs::collect(input, context, &stage, coding, None, wanted).await?;
                Ok(Self::Coded(Arc::new(runs)))
            }
            KeptBy::Keys(order) => {
                let unit = SortedUnit::collect(input, context, &stage, &order, unit).await?;
                Ok(Self::Sorted(Arc::new(unit)))
            }
        }
    }

    /// What is known of them.
    pub(crate) fn extent(&self) -> Extent {
        match self {
            Self::Coded(runs) => runs.extent(),
            Self::Sorted(unit) => unit.extent(),
        }
    }

    /// Those of a range, in their order; with their codes behind their other columns, where they have such.
    pub(crate) fn rows(&self, range: RowRange, with_codes: bool) -> Result<SendableRecordBatchStream> {
        Ok(match (self, range) {
            (Self::Coded(runs), RowRange::Codes(low, high)) if with_codes => {
                stream_of(runs.schema_with_code(), runs.stream_with_codes(low..=high))
            }
            (Self::Coded(runs), RowRange::Codes(low, high)) => {
                stream_of(Arc::clone(runs.schema()), runs.stream(0..runs.len(), low..=high))
            }
            (Self::Sorted(unit), RowRange::Places(from, to)) => {
                stream_of(Arc::clone(unit.schema()), unit.stream(from, to))
            }
            (Self::Coded(_), RowRange::Places(..)) | (Self::Sorted(_), RowRange::Codes(..)) => {
                return internal_err!("rows are kept otherwise than they are asked for");
            }
        })
    }
}

/// All codes, in ranges with about `target` bytes each of those in `bins`, and at least `least` of them. What is in one
/// bin stays together.
pub(crate) fn ranges_of_codes(bins: &[usize], target: usize, least: usize) -> Result<Vec<TaskRows>> {
    let cuts = cuts(bins, target, least, |cut, _| Ok(vec![cut]))?;
    let rows = |Cut { range, bytes }: Cut| {
        let ranges = vec![RowRange::Codes(*range.start(), *range.end())];
        TaskRows { ranges, bytes }
    };
    Ok(cuts.into_iter().map(rows).collect())
}
