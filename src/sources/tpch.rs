//! The tables of the TPC-H benchmark, generated as they are read.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, plan_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::stream;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RecordBatchIterator, RegionArrow,
    SupplierArrow,
};

use super::{Datasource, DatasourceTable, ReadPlan, ReadRequest, ReadTask};
use crate::arguments;
use crate::block::with_plain_types;
use crate::call::{Planning, TableFunction};
use crate::error::unknown_name;

arguments! {
    /// Which table.
    #[derive(Debug)]
    pub(crate) struct TpchArguments {
        /// Its name: `customer`, `lineitem`, `nation`, `orders`, `part`, `partsupp`, `region` or `supplier`.
        table: String,
        /// Its size; at 1 all tables have about 1 GB of text.
        scale: f64,
        /// Read tasks, which are blocks; as many as the size asks for if not said.
        override_num_blocks: Option<usize>,
    }
}

/// `tpch(table, scale)`.
#[derive(Debug)]
pub(crate) struct ReadTpch;

impl TableFunction for ReadTpch {
    type Arguments = TpchArguments;

    fn name(&self) -> &'static str {
        "tpch"
    }

    fn about(&self) -> &'static str {
        "A table of the TPC-H benchmark, generated as it is read."
    }

    fn plan(&self, arguments: TpchArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        let TpchArguments { table, scale, override_num_blocks } = arguments;
        DatasourceTable::plan(Tpch::try_new(&table, scale)?, override_num_blocks, &planning)
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, TpchArguments)>> {
        Ok(DatasourceTable::scanned(plan, |tpch: &Tpch, override_num_blocks| {
            let table = tpch.table.to_owned();
            (Vec::new(), TpchArguments { table, scale: tpch.scale, override_num_blocks })
        }))
    }
}

/// Names of the tables.
const TABLES: [&str; 8] = ["customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier"];

/// One table at one scale.
#[derive(Debug)]
pub(crate) struct Tpch {
    table: &'static str,
    scale: f64,
    schema: SchemaRef,
}

impl Tpch {
    /// The table of this name; `scale` 1 is about 1 GB of text over all tables.
    pub(crate) fn try_new(table: &str, scale: f64) -> Result<Self> {
        let Some(table) = TABLES.into_iter().find(|t| t.eq_ignore_ascii_case(table)) else {
            return Err(unknown_name("table", table, "tpch", &TABLES));
        };
        if !(scale > 0.0 && scale <= 100_000.0) {
            return plan_err!("the scale of tpch must be above 0 and at most 100000, got {scale}");
        }
        let schema = Arc::clone(generate(table, scale, 1, 1, 1).schema());
        let schema = Arc::new(with_plain_types(&schema));
        Ok(Self { table, scale, schema })
    }

    /// About how many bytes all rows take in memory.
    fn estimated_bytes(&self) -> usize {
        // Rows at scale 1, and about how many bytes a row takes in memory.
        let (rows, width) = match self.table {
            "lineitem" => (6_000_000.0, 160.0),
            "orders" => (1_500_000.0, 140.0),
            "partsupp" => (800_000.0, 170.0),
            "part" => (200_000.0, 160.0),
            "customer" => (150_000.0, 190.0),
            "supplier" => (10_000.0, 180.0),
            _ => return 4096,
        };
        (rows * width * self.scale) as usize
    }
}

fn generate(table: &str, scale: f64, part: i32, parts: i32, rows: usize) -> Box<dyn RecordBatchIterator> {
    match table {
        "customer" => Box::new(CustomerArrow::new(CustomerGenerator::new(scale, part, parts)).with_batch_size(rows)),
        "lineitem" => Box::new(LineItemArrow::new(LineItemGenerator::new(scale, part, parts)).with_batch_size(rows)),
        "nation" => Box::new(NationArrow::new(NationGenerator::new(scale, part, parts)).with_batch_size(rows)),
        "orders" => Box::new(OrderArrow::new(OrderGenerator::new(scale, part, parts)).with_batch_size(rows)),
        "part" => Box::new(PartArrow::new(PartGenerator::new(scale, part, parts)).with_batch_size(rows)),
        "partsupp" => Box::new(PartSuppArrow::new(PartSuppGenerator::new(scale, part, parts)).with_batch_size(rows)),
        "region" => Box::new(RegionArrow::new(RegionGenerator::new(scale, part, parts)).with_batch_size(rows)),
        _ => Box::new(SupplierArrow::new(SupplierGenerator::new(scale, part, parts)).with_batch_size(rows)),
    }
}

#[async_trait]
impl Datasource for Tpch {
    fn name(&self) -> &str {
        "ReadTpch"
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn is_anywhere(&self) -> bool {
        true
    }

    async fn plan(&self, request: ReadRequest<'_>) -> Result<ReadPlan> {
        let bytes = self.estimated_bytes();
        let parts = match self.table {
            "nation" | "region" => 1,
            _ => request.parallelism(Some(bytes)).clamp(1, 1 << 20) as i32,
        };
        let task = |part| {
            let task = TpchTask { table: self.table, scale: self.scale, part, parts, schema: self.schema() };
            ReadTask { bytes: Some(bytes.div_ceil(parts as usize)), ..Arc::new(task).into() }
        };
        Ok((1..=parts).map(task).collect::<Vec<_>>().into())
    }
}

#[derive(Debug)]
struct TpchTask {
    table: &'static str,
    scale: f64,
    part: i32,
    parts: i32,
    schema: SchemaRef,
}

impl PartitionStream for TpchTask {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let rows = context.session_config().batch_size();
        let batches = generate(self.table, self.scale, self.part, self.parts, rows);
        let schema = Arc::clone(&self.schema);
        let plain = move |batch: RecordBatch| {
            let columns = batch.columns().iter().zip(schema.fields());
            let columns = columns.map(|(c, f)| cast(c, f.data_type())).collect::<Result<Vec<_>, _>>()?;
            Ok(RecordBatch::try_new(Arc::clone(&schema), columns)?)
        };
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), stream::iter(batches.map(plain))))
    }
}
