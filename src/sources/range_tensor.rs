//! Ray's `range_tensor(n, shape)`: tensors of a shape in a column `data`, each filled with the number of its row.

use datafusion::common::Result;
use datafusion::logical_expr::LogicalPlan;

use super::DatasourceTable;
use super::range::Range;
use crate::arguments;
use crate::call::{Planning, TableFunction};
use crate::tensors::TensorShape;

arguments! {
    /// Which tensors.
    #[derive(Debug)]
    pub(crate) struct RangeTensorArguments {
        /// How many there are.
        n: u64,
        /// Their dimensions, like `[3, 4]`; one value if not said.
        shape: TensorShape = default,
        /// Read tasks, which are blocks; as many as the size asks for if not said.
        override_num_blocks: Option<usize>,
    }
}

/// `range_tensor(n, shape)`.
#[derive(Debug)]
pub(crate) struct ReadRangeTensor;

impl TableFunction for ReadRangeTensor {
    type Arguments = RangeTensorArguments;

    fn name(&self) -> &'static str {
        "range_tensor"
    }

    fn about(&self) -> &'static str {
        "Tensors of one shape in a column `data`, each filled with the number of its row, from 0."
    }

    fn plan(&self, arguments: RangeTensorArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        let range = Range::of_tensors(arguments.n, arguments.shape)?;
        DatasourceTable::plan(range, arguments.override_num_blocks, &planning)
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, RangeTensorArguments)>> {
        let arguments = DatasourceTable::scanned(plan, |range: &Range, override_num_blocks| {
            let shape = range.shape.clone()?;
            Some((Vec::new(), RangeTensorArguments { n: range.n, shape, override_num_blocks }))
        });
        Ok(arguments.flatten())
    }
}
