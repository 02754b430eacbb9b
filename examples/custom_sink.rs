//! A sink of your own: a store of totals whose writes are transactions.
//!
//! ```sh
//! cargo run --example custom_sink
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use blockyard::{Datasink, WriteJob, prelude::*};
use datafusion::arrow::array::AsArray;
use datafusion::arrow::datatypes::{Int64Type, SchemaRef};
use datafusion::common::{DataFusionError, exec_datafusion_err, plan_err};
use datafusion::error::Result;
use datafusion::execution::SendableRecordBatchStream;
use futures::TryStreamExt;
use serde::{Deserialize, Serialize};

/// Stands for a database: what is committed, and what transactions have staged, by their number and block.
#[derive(Debug, Default)]
struct Database {
    rows: Mutex<Vec<i64>>,
    staged: Mutex<BTreeMap<String, Vec<i64>>>,
}

/// Numbers that go into the database.
#[derive(Debug, Clone)]
struct Numbers(Arc<Database>);

/// One transaction.
struct Transaction(Arc<Database>);

/// What a block has staged.
#[derive(Serialize, Deserialize)]
struct StagedBlock {
    key: String,
    rows: usize,
}

fn poisoned<T>(_: T) -> DataFusionError {
    exec_datafusion_err!("the database is broken")
}

#[async_trait]
impl Datasink for Numbers {
    type Job = Transaction;

    fn name(&self) -> &str {
        "WriteNumbers"
    }

    async fn begin(&self, schema: SchemaRef) -> Result<Option<Transaction>> {
        match schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().as_slice() {
            ["id"] => Ok(Some(Transaction(Arc::clone(&self.0)))),
            other => plan_err!("the database has one column 'id', and the rows have {other:?}"),
        }
    }
}

#[async_trait]
impl WriteJob for Transaction {
    type Written = StagedBlock;

    async fn write(&self, block: &str, mut rows: SendableRecordBatchStream) -> Result<StagedBlock> {
        let mut numbers = Vec::new();
        while let Some(batch) = rows.try_next().await? {
            numbers.extend(batch.column(0).as_primitive::<Int64Type>().values());
        }
        let written = StagedBlock { key: block.to_owned(), rows: numbers.len() };
        // A second try takes the place of the first.
        self.0.staged.lock().map_err(poisoned)?.insert(written.key.clone(), numbers);
        Ok(written)
    }

    async fn commit(&self, written: Vec<StagedBlock>) -> Result<()> {
        let mut staged = self.0.staged.lock().map_err(poisoned)?;
        let mut rows = self.0.rows.lock().map_err(poisoned)?;
        for block in written {
            let numbers = staged.remove(&block.key).filter(|numbers| numbers.len() == block.rows);
            rows.extend(numbers.ok_or_else(|| exec_datafusion_err!("block {} is gone", block.key))?);
        }
        Ok(())
    }

    async fn abort(&self, _error: &DataFusionError) -> Result<()> {
        self.0.staged.lock().map_err(poisoned)?.clear();
        Ok(())
    }
}

/// Rows written from Rust and from SQL, and what is left of a write that fails.
pub(crate) async fn run() -> Result<String> {
    let context = DataContext::new()?;
    let numbers = Numbers(Arc::default());
    let ids = context.range_in_blocks(100_000, 8)?;
    let written = ids.write_datasink(numbers.clone()).await?;
    context.register_sink("numbers", ids.schema(), numbers.clone())?;
    let inserted = context.sql("INSERT INTO numbers SELECT id FROM range(10)").await?.show(1).await?;
    let fails = "INSERT INTO numbers SELECT 1 / (id - 5000) AS id FROM range(10000)";
    let error = context.sql(fails).await?.take_all().await.err();
    let error = error.map_or_else(String::new, |error| error.to_string());
    let (rows, staged) = (numbers.0.rows.lock().map_err(poisoned)?, numbers.0.staged.lock().map_err(poisoned)?);
    let is_in_order = rows.iter().copied().eq((0..100_000).chain(0..10));
    let last = error.lines().next().unwrap_or_default();
    Ok(format!("{written} rows, in order: {is_in_order}\n{inserted}\n{last}\n{} blocks are left", staged.len()))
}

#[tokio::main]
async fn main() -> Result<()> {
    println!("{}", run().await?);
    Ok(())
}
