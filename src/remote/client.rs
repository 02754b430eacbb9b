//! [`SplitClient`]: a consumer of a split that another process serves.

use std::fmt;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::ipc::reader::StreamDecoder;
use datafusion::arrow::ipc::root_as_message;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use tokio::io::{AsyncReadExt, BufReader, ReadHalf, WriteHalf, split};

use super::address::{Address, Duplex};
use super::lines::{Hello, PROTOCOL, Reply, Request, read_line, write_line};

/// What the messages of an Arrow IPC stream begin with.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// No message describes its batch in more bytes.
const HEADER_BYTES: usize = 64 << 20;

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
    stream: Option<StreamDecoder>,
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
        let (read, write) = split(address.parse::<Address>()?.connect().await?);
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
        let (read, mut write) = split(address.parse::<Address>()?.connect().await?);
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
        self.stream = Some(StreamDecoder::new());
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
        let broken = |e: std::io::Error| exec_datafusion_err!("the connection broke in the middle of an epoch: {e}");
        loop {
            let Some(decoder) = &mut self.stream else { return Ok(None) };
            let mut start = [0; 8];
            self.read.read_exact(&mut start).await.map_err(broken)?;
            let length = u32::from_le_bytes([start[4], start[5], start[6], start[7]]) as usize;
            if start[..4] != CONTINUATION || length > HEADER_BYTES {
                return exec_err!("what the server sends is no Arrow IPC stream");
            }
            if length == 0 {
                // The decoder looks at a message without a body when the next one comes.
                decoder.decode(&mut Buffer::from(start.to_vec()))?;
                self.schema = decoder.schema().or(self.schema.take());
                self.stream = None;
                return self.read_end().await.map(|()| None);
            }
            let mut message = start.to_vec();
            message.resize(start.len() + length, 0);
            self.read.read_exact(&mut message[start.len()..]).await.map_err(broken)?;
            let header = root_as_message(&message[start.len()..])
                .map_err(|e| exec_datafusion_err!("a message of the server cannot be read: {e}"))?;
            let body = usize::try_from(header.bodyLength()).unwrap_or(0);
            let begin = message.len();
            message.resize(begin + body, 0);
            self.read.read_exact(&mut message[begin..]).await.map_err(broken)?;
            let batch = decoder.decode(&mut Buffer::from(message))?;
            self.schema = decoder.schema().or(self.schema.take());
            if let Some(batch) = batch {
                self.batches += 1;
                self.rows += batch.num_rows() as u64;
                return Ok(Some(batch));
            }
        }
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
