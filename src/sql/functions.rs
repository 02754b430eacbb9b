//! The table functions that every session has. Each is described, planned and found again beside what it makes.

use std::sync::Arc;

use crate::call::{AnyTableFunction, TableFunctions};
use crate::logical::{
    LocalShuffle, MapBatches, MapGroups, Mix, RandomShuffle, RandomizeBlockOrder, Repartition, Resume, Split,
    StreamingSplit, StreamingTrainTest, Summary, TrainTest, Zip, pipeline_functions,
};
#[cfg(feature = "tpch")]
use crate::sources::ReadTpch;
use crate::sources::{ReadDiverted, ReadRange, ReadRangeTensor, read_functions};

/// All of them, in the order of the reference.
pub(crate) fn table_functions() -> TableFunctions {
    let range: Vec<Arc<dyn AnyTableFunction>> = vec![Arc::new(ReadRange), Arc::new(ReadRangeTensor)];
    let others: Vec<Arc<dyn AnyTableFunction>> = vec![
        Arc::new(MapBatches),
        Arc::new(MapGroups),
        Arc::new(RandomShuffle),
        Arc::new(Repartition),
        Arc::new(RandomizeBlockOrder),
        Arc::new(LocalShuffle),
        Arc::new(Summary),
        Arc::new(ReadDiverted),
        Arc::new(Zip),
        Arc::new(Mix),
        Arc::new(Split),
        Arc::new(TrainTest),
        Arc::new(StreamingTrainTest),
        Arc::new(Resume),
        Arc::new(StreamingSplit),
    ];
    TableFunctions::new([range, tpch(), read_functions(), others, pipeline_functions()].concat())
}

#[cfg(feature = "tpch")]
fn tpch() -> Vec<Arc<dyn AnyTableFunction>> {
    vec![Arc::new(ReadTpch)]
}

#[cfg(not(feature = "tpch"))]
fn tpch() -> Vec<Arc<dyn AnyTableFunction>> {
    Vec::new()
}
