//! `blockyard consume`: what one consumer of a served query gets.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{Schema, SchemaRef};

use super::arguments::Consumer;
use super::failure::Failure;
use super::output::{Output, ParquetFile};
use super::session::Session;
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
    // What is only there when it is complete is not done with before.
    let prefetch_batches = (!session.destination().hands_on_batches()).then_some(u64::MAX);
    let options = SplitClientOptions { consumer: consumer.index, key: key.clone(), prefetch_batches };
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
                        let batch = client.next_unacknowledged().await?;
                        Ok((client, batch))
                    })
                    .await?;
                client = back;
                let Some(batch) = batch else { break };
                let (written, is_handed_on) = write(session, output, batch).await?;
                output = Some(written);
                if is_handed_on {
                    client = acknowledged(session, client).await?;
                }
            }
        }
        let schema = client.schema().map_or_else(|| Arc::new(Schema::empty()), Arc::clone);
        let output = output.map_or_else(|| begun(session, schema), Ok)?;
        session.on_writer(move || output.end().map(|_rows| ())).await?;
        acknowledged(session, client).await.map(drop)
    })
}

fn begun(session: &Session, schema: SchemaRef) -> datafusion::common::Result<Box<Output>> {
    let (file, stop) = (ParquetFile::of(session.context()), Arc::new(AtomicBool::new(false)));
    Ok(Box::new(Output::begin(session.destination(), &file, schema, stop)?))
}

/// Says that all batches up to now are done with.
async fn acknowledged(session: &Session, mut client: SplitClient) -> Result<SplitClient, Failure> {
    session
        .on_workers(async move {
            client.ack().await?;
            Ok(client)
        })
        .await
}

/// Writes a batch, behind those that were written. Whether it is with whoever reads them.
async fn write(
    session: &Session,
    output: Option<Box<Output>>,
    batch: RecordBatch,
) -> Result<(Box<Output>, bool), Failure> {
    let (destination, file) = (session.destination().clone(), ParquetFile::of(session.context()));
    session
        .on_writer(move || {
            let mut output = match output {
                Some(output) => output,
                None => Box::new(Output::begin(&destination, &file, batch.schema(), Arc::new(AtomicBool::new(false)))?),
            };
            output.write(&batch)?;
            let is_handed_on = output.flush()?;
            Ok((output, is_handed_on))
        })
        .await
}
