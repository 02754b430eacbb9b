//! [`KeptRows`], and how they are cut.

use std::ops::RangeInclusive;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;

use super::RemoteExchangeExec;
use crate::physical::StageMetrics;
use crate::physical::exchange::{Cut, KeyEncoding, Runs, Wanted, cuts};
use crate::physical::tasks::stream_of;
use crate::store::QueryPool;

/// Rows of some tasks below an exchange, which stay in the store of the process that has made them until they are asked
/// for by their codes: hashes of their keys.
#[derive(Debug)]
pub(crate) struct KeptRows(Arc<Runs>);

impl KeptRows {
    /// The rows of `input`, a part of what is below `exchange`.
    pub(crate) async fn collect(
        exchange: &RemoteExchangeExec,
        input: &Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
    ) -> Result<Self> {
        let stage = StageMetrics::default();
        stage.owner().describe(QueryPool::query_of(context), || "RemoteExchangeExec".to_owned());
        let coding = KeyEncoding::Hash { keys: exchange.keys().to_vec() };
        let runs = Runs::collect(input, context, &stage, coding, None, Wanted::default()).await?;
        Ok(Self(Arc::new(runs)))
    }

    /// How many they are.
    pub(crate) fn num_rows(&self) -> usize {
        self.0.num_rows()
    }

    /// The sum of their codes.
    pub(crate) fn sum_of_codes(&self) -> u64 {
        self.0.sum_of_codes()
    }

    /// Their bytes by the leading bits of their codes.
    pub(crate) fn bins(&self) -> &[usize] {
        self.0.bins()
    }

    /// Those with codes in a range, in their order.
    pub(crate) fn rows(&self, codes: RangeInclusive<u64>) -> SendableRecordBatchStream {
        stream_of(Arc::clone(self.0.schema()), self.0.stream(0..self.0.len(), codes))
    }
}

/// All codes, in ranges with about `target` bytes each of those in `bins`, and at least `least` of them. What is in one
/// bin stays together.
pub(crate) fn ranges_of_codes(bins: &[usize], target: usize, least: usize) -> Result<Vec<RangeInclusive<u64>>> {
    let cuts = cuts(bins, target, least, |cut, _| Ok(vec![cut]))?;
    Ok(cuts.into_iter().map(|Cut { range, .. }| range).collect())
}
