//! A source of your own: measurements of devices, one read task for each of them.
//!
//! ```sh
//! cargo run --example custom_source
//! ```

use std::sync::Arc;

use blockyard::{Datasource, prelude::*};
use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;

/// Measurements of so many devices.
#[derive(Debug)]
struct Measurements {
    devices: i64,
    schema: SchemaRef,
}

impl Measurements {
    fn new(devices: i64) -> Self {
        let fields = [("device", DataType::Int64), ("minute", DataType::Int64), ("celsius", DataType::Float64)];
        let fields: Vec<Field> = fields.into_iter().map(|(name, kind)| Field::new(name, kind, false)).collect();
        Self { devices, schema: Arc::new(Schema::new(fields)) }
    }
}

impl Datasource for Measurements {
    fn name(&self) -> &str {
        "ReadMeasurements"
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn estimated_bytes(&self) -> Option<usize> {
        Some(self.devices as usize * MINUTES as usize * 24)
    }

    // A count needs no reading.
    fn num_rows(&self) -> Option<usize> {
        Some((self.devices * MINUTES) as usize)
    }

    fn read_tasks(&self, _parallelism: usize) -> Result<Vec<Arc<dyn PartitionStream>>> {
        let task = |device| Arc::new(Device { device, schema: Arc::clone(&self.schema) }) as _;
        Ok((0..self.devices).map(task).collect())
    }
}

/// Minutes of a day.
const MINUTES: i64 = 24 * 60;

/// One read task. It may run more than once, and gives the same rows each time.
#[derive(Debug)]
struct Device {
    device: i64,
    schema: SchemaRef,
}

impl PartitionStream for Device {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (device, schema) = (self.device, Arc::clone(&self.schema));
        // A device would be asked here, when somebody wants the rows.
        let rows = futures::stream::once(async move {
            let celsius = |minute: i64| 20.0 + device as f64 + (minute as f64 / MINUTES as f64);
            let columns: Vec<ArrayRef> = vec![
                Arc::new(Int64Array::from_iter_values((0..MINUTES).map(|_| device))),
                Arc::new(Int64Array::from_iter_values(0..MINUTES)),
                Arc::new(Float64Array::from_iter_values((0..MINUTES).map(celsius))),
            ];
            Ok(RecordBatch::try_new(schema, columns)?)
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows))
    }
}

/// The warmest device, and what the plan shows of the source.
pub(crate) async fn run() -> Result<String> {
    let context = DataContext::new()?;
    let measurements = context.read_datasource(Arc::new(Measurements::new(5)), None)?;
    context.register_dataset("measurements", &measurements)?;
    let rows = measurements.count().await?;
    let warmest =
        context.sql("SELECT device, max(celsius) AS most FROM measurements GROUP BY device ORDER BY most DESC LIMIT 1");
    let plan = measurements.explain().await?;
    let plan = plan.lines().find(|line| line.contains("ReadExec")).unwrap_or_default().trim();
    Ok(format!("{rows} rows\n{plan}\n{}", warmest.await?.show(1).await?))
}

#[tokio::main]
async fn main() -> Result<()> {
    println!("{}", run().await?);
    Ok(())
}
