//! [`SplitClient`]: a consumer of a split that another process serves.

use std::fmt;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use tokio::io::{BufReader, ReadHalf, WriteHalf, split};

use super::lines::{Hello, PROTOCOL, Reply, Request, of_this_machine};
use crate::wire::{BatchReader, Duplex, Trust, read_line, write_line};

/// Which consumer a client is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SplitClientOptions {
    /// The number of the consumer, from 0 on.
    pub consumer: usize,
    /// The key of the server, over TCP.
    pub key: Option<String>,
    /// Batches that are sent beyond those that were acknowledged; 2 if not said.
    pub prefetch_batches: Option<u64>,
}

/// A consumer of a split that a [`SplitServer`](super::SplitServer) serves, as a
/// [`SplitIterator`](crate::SplitIterator) is of one in this process.
pub struct SplitClient {
    read: BufReader<ReadHalf<Box<dyn Duplex>>>,
    write: WriteHalf<Box<dyn Duplex>>,
    consumers: usize,
    /// The epoch that is read, whose stream has not ended.
    stream: Option<BatchReader>,
    schema: Option<SchemaRef>,
    /// Batches of the epoch that came, and were acknowledged; rows that came.
    batches: u64,
    acknowledged: u64,
    rows: u64,
}

impl SplitClient {
    /// Connects to the server at an address, like `unix:/tmp/train.sock`.
    ///
    /// # Errors
    ///
    /// Where nobody is there, the key is wrong, or the consumer is connected already.
    pub async fn connect(address: &str, options: SplitClientOptions) -> Result<Self> {
        let (read, write) = split(of_this_machine(address)?.connect(&Trust::default()).await?.await?);
        let (read, stream) = (BufReader::new(read), None);
        let mut client = Self { read, write, consumers: 0, stream, schema: None, batches: 0, acknowledged: 0, rows: 0 };
        let SplitClientOptions { consumer, key, prefetch_batches } = options;
        let hello = Hello { protocol: PROTOCOL, consumer: Some(consumer), key, prefetch_batches, status: false };
        write_line(&mut client.write, &hello).await?;
        client.consumers = client.reply().await?.consumers.unwrap_or(0);
        Ok(client)
    }

    /// How all consumers of a server stand, as a line of JSON with the token behind what all have acknowledged.
    ///
    /// # Errors
    ///
    /// Where nobody is there, or the key is wrong.
    pub async fn status(address: &str, key: Option<String>) -> Result<String> {
        let (read, mut write) = split(of_this_machine(address)?.connect(&Trust::default()).await?.await?);
        write_line(&mut write, &Hello { protocol: PROTOCOL, key, status: true, ..Hello::default() }).await?;
        let reply = checked(read_line::<Reply>(&mut BufReader::new(read)).await?)?;
        serde_json::to_string(&reply).map_err(|e| exec_datafusion_err!("a status cannot be written: {e}"))
    }

    /// Columns of the batches, once an epoch has given a batch or come to its end.
    pub fn schema(&self) -> Option<&SchemaRef> {
        self.schema.as_ref()
    }

    /// How many consumers the split has.
    pub fn consumers(&self) -> usize {
        self.consumers
    }

    /// Begins the next epoch, and gives its number; `None` where there are no more. What is left of the one before is
    /// given up.
    ///
    /// # Errors
    ///
    /// Where the dataset fails, another consumer is lost, or the connection breaks.
    pub async fn next_epoch(&mut self) -> Result<Option<u64>> {
        write_line(&mut self.write, &Request { next_epoch: true, ..Request::default() }).await?;
        // What was on its way.
        while self.stream.is_some() {
            self.read_batch().await?;
        }
        (self.batches, self.acknowledged, self.rows) = (0, 0, 0);
        let reply = self.reply().await?;
        if reply.finished {
            return Ok(None);
        }
        let Some(epoch) = reply.epoch else { return exec_err!("the server does not say which epoch begins") };
        self.stream = Some(BatchReader::default());
        Ok(Some(epoch))
    }

    /// The next batch of the epoch; `None` at its end, and outside of one. That it is asked for says that the batch
    /// before is done with.
    ///
    /// # Errors
    ///
    /// As [`next_epoch`](Self::next_epoch).
    pub async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        if self.stream.is_none() {
            return Ok(None);
        }
        self.ack().await?;
        self.read_batch().await
    }

    /// The same, which says nothing of the batches before: they come again, if this client is lost and another one is
    /// in its place, until [`ack`](Self::ack) says that they are done with. The server sends as many as
    /// [`prefetch_batches`](SplitClientOptions::prefetch_batches) of such.
    ///
    /// # Errors
    ///
    /// As [`next_epoch`](Self::next_epoch).
    pub async fn next_unacknowledged(&mut self) -> Result<Option<RecordBatch>> {
        self.read_batch().await
    }

    /// Says that all batches up to now are done with, before the next one is asked for.
    ///
    /// # Errors
    ///
    /// Where the connection breaks.
    pub async fn ack(&mut self) -> Result<()> {
        if self.acknowledged == self.batches {
            return Ok(());
        }
        self.acknowledged = self.batches;
        let told = write_line(&mut self.write, &Request { ack: Some(self.batches), ..Request::default() }).await;
        match told {
            Ok(()) => Ok(()),
            // The server has closed the connection, and may have said why.
            Err(_) if self.stream.is_some() => {
                while self.read_batch().await?.is_some() {}
                exec_err!("the server has closed the connection")
            }
            Err(e) => Err(e),
        }
    }

    async fn read_batch(&mut self) -> Result<Option<RecordBatch>> {
        let Some(stream) = &mut self.stream else { return Ok(None) };
        let batch = stream.next(&mut self.read).await.map_err(|e| match e {
            DataFusionError::IoError(e) => {
                exec_datafusion_err!("the connection broke in the middle of an epoch: {e}")
            }
            e => e,
        })?;
        self.schema = stream.schema().or(self.schema.take());
        match &batch {
            Some(batch) => {
                self.batches += 1;
                self.rows += batch.num_rows() as u64;
            }
            None => {
                self.stream = None;
                self.read_end().await?;
            }
        }
        Ok(batch)
    }

    /// Reads the line behind a stream, and compares what was sent with what came.
    async fn read_end(&mut self) -> Result<()> {
        let reply = self.reply().await?;
        if !reply.end && !reply.stopped {
            return exec_err!("the server does not say how the epoch has ended");
        }
        let (batches, rows) = (reply.batches.unwrap_or(0), reply.rows.unwrap_or(0));
        if (batches, rows) != (self.batches, self.rows) {
            return exec_err!(
                "{batches} batches with {rows} rows were sent, and {} with {} came",
                self.batches,
                self.rows
            );
        }
        Ok(())
    }

    async fn reply(&mut self) -> Result<Reply> {
        checked(read_line::<Reply>(&mut self.read).await?)
    }
}

/// What the server says, unless that is an error.
fn checked(reply: Option<Reply>) -> Result<Reply> {
    match reply {
        None => exec_err!("the server has closed the connection"),
        Some(Reply { error: Some(error), .. }) => exec_err!("{error}"),
        Some(reply) => Ok(reply),
    }
}

impl fmt::Debug for SplitClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SplitClient").field("batches", &self.batches).field("rows", &self.rows).finish_non_exhaustive()
    }
}
