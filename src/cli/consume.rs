//! `blockyard consume`: what one consumer of a served query gets.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::Schema;

use super::arguments::Consumer;
use super::output::Output;
use super::session::{Failure, Session};
use crate::{SplitClient, SplitClientOptions};

/// Writes the batches of some epochs, one after the other.
pub(super) fn consume(session: &mut Session, consumer: &Consumer) -> Result<(), Failure> {
    let key = match &consumer.key_file {
        None => consumer.key.clone(),
        Some(file) => {
            let read = std::fs::read_to_string(file);
            let text = read.map_err(|e| Failure::Usage(format!("cannot read the key of '{}': {e}", file.display())))?;
            Some(text.trim().to_owned())
        }
    };
    let address = consumer.address.clone();
    let options = SplitClientOptions { consumer: consumer.index, key: key.clone(), prefetch_batches: None };
    let (epochs, status) = (consumer.epochs, consumer.status);
    session.listening(async |session| {
        if status {
            let line = session.on_workers(async move { SplitClient::status(&address, key).await }).await?;
            println!("{line}");
            return Ok(());
        }
        let mut client = session.on_workers(async move { SplitClient::connect(&address, options).await }).await?;
        let mut output = None;
        for _ in 0..epochs {
            let (back, epoch) = session
                .on_workers(async move {
                    let epoch = client.next_epoch().await?;
                    Ok((client, epoch))
                })
                .await?;
            client = back;
            if epoch.is_none() {
                break;
            }
            loop {
                let (back, batch) = session
                    .on_workers(async move {
                        let batch = client.next_batch().await?;
                        Ok((client, batch))
                    })
                    .await?;
                client = back;
                let Some(batch) = batch else { break };
                output = Some(write(session, output, batch).await?);
            }
        }
        let schema = client.schema().map_or_else(|| Arc::new(Schema::empty()), Arc::clone);
        let output = match output {
            Some(output) => output,
            None => Box::new(Output::begin(session.destination(), schema, Arc::new(AtomicBool::new(false)))?),
        };
        session.on_writer(move || output.end().map(|_rows| ())).await
    })
}

/// Writes a batch, behind those that were written.
async fn write(session: &Session, output: Option<Box<Output>>, batch: RecordBatch) -> Result<Box<Output>, Failure> {
    let destination = session.destination().clone();
    session
        .on_writer(move || {
            let mut output = match output {
                Some(output) => output,
                None => Box::new(Output::begin(&destination, batch.schema(), Arc::new(AtomicBool::new(false)))?),
            };
            output.write(&batch)?;
            output.flush()?;
            Ok(output)
        })
        .await
}
