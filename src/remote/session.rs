//! What is said with one client.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, exec_err};
use tokio::io::{AsyncWriteExt, BufReader, ReadHalf, WriteHalf, split};
use tokio::sync::mpsc;

use super::lines::{Hello, PROTOCOL, Reply, Request};
use crate::dataset::{Split, SplitIterator};
use crate::error::one_message;
use crate::runtime::Drivers;
use crate::wire::{BatchWriter, Duplex, read_line, write_line};

/// Batches that are sent beyond those that were acknowledged: one that is worked on, and one ahead.
const PREFETCH_BATCHES: u64 = 2;
/// Lines of a client that were read and not looked at.
const LINES_AHEAD: usize = 16;

/// How long a client may take to hang up when it was told of an error.
const FAREWELL: Duration = Duration::from_secs(5);

/// A connection whose first line was read.
pub(super) struct Connection {
    read: BufReader<ReadHalf<Box<dyn Duplex>>>,
    write: WriteHalf<Box<dyn Duplex>>,
}

impl Connection {
    /// Reads the first line of a connection.
    pub(super) async fn greeted(stream: Box<dyn Duplex>) -> Result<Option<(Self, Hello)>> {
        let (read, write) = split(stream);
        let mut connection = Self { read: BufReader::new(read), write };
        match read_line::<Hello>(&mut connection.read).await {
            Ok(None) => Ok(None),
            Ok(Some(hello)) if hello.protocol == PROTOCOL => Ok(Some((connection, hello))),
            Ok(Some(hello)) => {
                let error = format!("the server speaks version {PROTOCOL}, and the client {}", hello.protocol);
                connection.say(&Reply { error: Some(error), ..Reply::default() }).await?;
                Ok(None)
            }
            Err(e) => {
                connection.say(&Reply { error: Some(one_message(&e)), ..Reply::default() }).await?;
                Ok(None)
            }
        }
    }

    pub(super) async fn say(&mut self, reply: &Reply) -> Result<()> {
        write_line(&mut self.write, reply).await
    }
}

/// Why a connection ends.
enum End {
    /// The client has gone, or is told of an error that is not its own.
    Over,
    /// What the client asks for next.
    Asks(Request),
}

/// A client that gets the batches of a consumer.
pub(super) struct Session {
    split: Arc<Split>,
    schema: SchemaRef,
    consumer: usize,
    write: WriteHalf<Box<dyn Duplex>>,
    requests: mpsc::Receiver<Result<Request>>,
    _reader: Drivers<()>,
    prefetch: u64,
    /// Batches of the epoch that were sent, and those that were acknowledged.
    sent: u64,
    acknowledged: u64,
    rows: u64,
}

impl Session {
    pub(super) fn new(connection: Connection, iterator: &SplitIterator, hello: &Hello) -> Self {
        let Connection { mut read, write } = connection;
        let (send, requests) = mpsc::channel(LINES_AHEAD);
        let reader = async move {
            loop {
                let line = match read_line::<Request>(&mut read).await {
                    Ok(Some(request)) => Ok(request),
                    Ok(None) => return Ok(()),
                    Err(e) => Err(e),
                };
                let is_last = line.is_err();
                if send.send(line).await.is_err() || is_last {
                    return Ok(());
                }
            }
        };
        Self {
            split: Arc::clone(iterator.split()),
            schema: iterator.split().schema(),
            consumer: iterator.index(),
            write,
            requests,
            _reader: Drivers::start([reader]),
            prefetch: hello.prefetch_batches.unwrap_or(PREFETCH_BATCHES).max(1),
            sent: 0,
            acknowledged: 0,
            rows: 0,
        }
    }

    /// Gives the client what it asks for until it goes. Whether it has begun an epoch.
    pub(super) async fn serve(&mut self, iterator: &mut SplitIterator) -> bool {
        let mut has_begun = false;
        // Nobody is there to be told of an error of the connection; one of the client is told to the client.
        let served = self.answer(iterator, &mut has_begun).await;
        if let Err(e) = served {
            let _told = self.tell_error(&e).await;
        }
        has_begun
    }

    async fn answer(&mut self, iterator: &mut SplitIterator, has_begun: &mut bool) -> Result<()> {
        let consumers = Some(self.split.consumers());
        let hello = Reply { protocol: Some(PROTOCOL), consumers, consumer: Some(self.consumer), ..Reply::default() };
        write_line(&mut self.write, &hello).await?;
        let mut request = self.request().await?;
        while let Some(asked) = request.take() {
            if !asked.next_epoch {
                self.acknowledge(asked.ack)?;
                request = self.request().await?;
                continue;
            }
            *has_begun = true;
            let epoch = tokio::select! {
                epoch = iterator.next_epoch() => epoch?,
                more = self.requests.recv() => match more {
                    None => return Ok(()),
                    Some(_) => return exec_err!("a client that waits for an epoch has nothing to say"),
                },
            };
            let Some(epoch) = epoch else {
                write_line(&mut self.write, &Reply { finished: true, ..Reply::default() }).await?;
                request = self.request().await?;
                continue;
            };
            (self.sent, self.acknowledged, self.rows) = (0, 0, 0);
            write_line(&mut self.write, &Reply { epoch: Some(epoch), ..Reply::default() }).await?;
            request = match self.send_epoch(iterator).await? {
                End::Over => None,
                End::Asks(asked) if asked.stop => self.request().await?,
                End::Asks(asked) => Some(asked),
            };
        }
        Ok(())
    }

    /// The next line of the client; `None` when it has gone.
    async fn request(&mut self) -> Result<Option<Request>> {
        tokio::select! {
            biased;
            request = self.requests.recv() => request.transpose(),
            stopped = self.split.stopped() => Err(stopped),
        }
    }

    /// Notes what a client is done with.
    fn acknowledge(&mut self, batches: Option<u64>) -> Result<()> {
        let Some(batches) = batches else { return Ok(()) };
        if batches > self.sent {
            return exec_err!("the client has acknowledged {batches} batches, and was sent {}", self.sent);
        }
        let more = batches.saturating_sub(self.acknowledged);
        self.split.acknowledge(self.consumer, more as usize);
        self.acknowledged += more;
        Ok(())
    }

    /// Sends the batches of an epoch as an Arrow IPC stream.
    async fn send_epoch(&mut self, iterator: &mut SplitIterator) -> Result<End> {
        let mut stream = BatchWriter::default();
        let end = self.send_batches(iterator, &mut stream).await;
        // A reader of the stream comes to its end, whatever has ended it.
        let last = stream.end(&self.schema)?;
        let end = match end {
            Ok(Some(end @ End::Over)) => return Ok(end),
            Ok(end) => end,
            Err(e) => {
                self.write.write_all(&last).await?;
                return Err(e);
            }
        };
        self.write.write_all(&last).await?;
        let (batches, rows) = (Some(self.sent), Some(self.rows));
        let (is_end, stopped) = (end.is_none(), end.is_some());
        write_line(&mut self.write, &Reply { end: is_end, stopped, batches, rows, ..Reply::default() }).await?;
        match end {
            Some(end) => Ok(end),
            None => Ok(self.request().await?.map_or(End::Over, End::Asks)),
        }
    }

    /// Sends batches until there are no more, or the client wants something else.
    async fn send_batches(&mut self, iterator: &mut SplitIterator, stream: &mut BatchWriter) -> Result<Option<End>> {
        let split = Arc::clone(&self.split);
        loop {
            let mut next = Box::pin(iterator.next_unacknowledged());
            let batch = loop {
                let may_send = self.sent - self.acknowledged < self.prefetch;
                tokio::select! {
                    biased;
                    request = self.requests.recv() => match request.transpose()? {
                        None => return Ok(Some(End::Over)),
                        Some(asked) if asked.next_epoch || asked.stop => return Ok(Some(End::Asks(asked))),
                        Some(asked) => self.acknowledge(asked.ack)?,
                    },
                    stopped = split.stopped() => return Err(stopped),
                    batch = &mut next, if may_send => break batch?,
                }
            };
            let Some(batch) = batch else { return Ok(None) };
            self.sent += 1;
            self.rows += batch.num_rows() as u64;
            let bytes = stream.bytes_of(&batch)?;
            self.write.write_all(&bytes).await?;
            self.write.flush().await?;
        }
    }

    async fn tell_error(&mut self, error: &DataFusionError) -> Result<()> {
        let lost = self.split.lost();
        let reply = Reply {
            error: Some(one_message(error)),
            consumer: lost.as_ref().map(|lost| lost.consumer),
            epoch: lost.as_ref().map(|lost| lost.epoch),
            token: lost.and_then(|lost| lost.token).map(|token| token.to_string()),
            ..Reply::default()
        };
        write_line(&mut self.write, &reply).await?;
        Ok(self.write.shutdown().await?)
    }

    /// Waits until the client has hung up. A connection that is closed with lines that nobody has read is reset, and
    /// takes what was written with it.
    pub(super) async fn close(mut self) {
        let hung_up = async { while self.requests.recv().await.is_some() {} };
        let _in_time = tokio::time::timeout(FAREWELL, hung_up).await;
    }
}
