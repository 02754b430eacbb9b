//! Arrow IPC streams over a connection, batch by batch.

use std::collections::VecDeque;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::ipc::reader::StreamDecoder;
use datafusion::arrow::ipc::root_as_message;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use tokio::io::{AsyncRead, AsyncReadExt};

/// What the messages of an Arrow IPC stream begin with.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// No message describes its batch in more bytes.
const HEADER_BYTES: usize = 64 << 20;

/// An Arrow IPC stream that begins with its first batch.
#[derive(Default)]
pub(crate) struct BatchWriter(Option<StreamWriter<Vec<u8>>>);

impl BatchWriter {
    fn writer(&mut self, schema: &SchemaRef) -> Result<&mut StreamWriter<Vec<u8>>> {
        if self.0.is_none() {
            self.0 = Some(StreamWriter::try_new(Vec::new(), schema)?);
        }
        match &mut self.0 {
            Some(writer) => Ok(writer),
            None => exec_err!("a stream was not begun"),
        }
    }

    /// The next bytes of the stream, with this batch.
    pub(crate) fn bytes_of(&mut self, batch: &RecordBatch) -> Result<Vec<u8>> {
        let writer = self.writer(batch.schema_ref())?;
        writer.write(batch)?;
        Ok(std::mem::take(writer.get_mut()))
    }

    /// The end of the stream; all of it, where there were no batches.
    pub(crate) fn end(&mut self, schema: &SchemaRef) -> Result<Vec<u8>> {
        let writer = self.writer(schema)?;
        writer.finish()?;
        Ok(std::mem::take(writer.get_mut()))
    }
}

/// An Arrow IPC stream that comes in. What comes is validated.
#[derive(Default)]
pub(crate) struct BatchReader {
    decoder: StreamDecoder,
    /// Batches that were decoded together with the one before.
    decoded: VecDeque<RecordBatch>,
    has_ended: bool,
}

impl BatchReader {
    /// Columns of the batches, once one has come or the stream has ended.
    pub(crate) fn schema(&self) -> Option<SchemaRef> {
        self.decoder.schema()
    }

    /// The next batch; none at the end of the stream.
    pub(crate) async fn next(&mut self, from: &mut (impl AsyncRead + Unpin)) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.decoded.pop_front() {
                return Ok(Some(batch));
            }
            if self.has_ended {
                return Ok(None);
            }
            let mut start = [0; 8];
            from.read_exact(&mut start).await?;
            let length = u32::from_le_bytes([start[4], start[5], start[6], start[7]]) as usize;
            if start[..4] != CONTINUATION || length > HEADER_BYTES {
                return exec_err!("what is sent is no Arrow IPC stream");
            }
            if length == 0 {
                self.has_ended = true;
                self.decode(start.to_vec())?;
                continue;
            }
            let mut message = start.to_vec();
            message.resize(start.len() + length, 0);
            from.read_exact(&mut message[start.len()..]).await?;
            let header = root_as_message(&message[start.len()..])
                .map_err(|e| exec_datafusion_err!("a message of an Arrow IPC stream cannot be read: {e}"))?;
            let body = usize::try_from(header.bodyLength()).unwrap_or(0);
            let begin = message.len();
            message.resize(begin + body, 0);
            from.read_exact(&mut message[begin..]).await?;
            self.decode(message)?;
        }
    }

    /// Decodes a message. The decoder looks at one without a body, as of a batch without columns, when the next comes.
    fn decode(&mut self, message: Vec<u8>) -> Result<()> {
        let mut message = Buffer::from(message);
        while !message.is_empty() {
            self.decoded.extend(self.decoder.decode(&mut message)?);
        }
        Ok(())
    }
}
