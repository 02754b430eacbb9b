//! What is said in lines of JSON.

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The version of what is said.
pub(super) const PROTOCOL: u64 = 1;
/// Bytes of a line, with its end.
const LINE_BYTES: u64 = 64 << 10;

/// The first line of a client.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Hello {
    pub(super) protocol: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) consumer: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prefetch_batches: Option<u64>,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) status: bool,
}

/// Its other lines, of which each says one of these.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Request {
    #[serde(skip_serializing_if = "is_false")]
    pub(super) next_epoch: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) stop: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ack: Option<u64>,
}

/// A line of the server.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Reply {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) protocol: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) consumers: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) consumer: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) epoch: Option<u64>,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) end: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) stopped: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) batches: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rows: Option<u64>,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) finished: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<Vec<ConsumerStatus>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<String>,
}

/// How a consumer stands.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ConsumerStatus {
    pub(super) consumer: u64,
    pub(super) state: String,
    pub(super) waits_for: String,
    pub(super) epoch: Option<u64>,
    pub(super) window: Option<u64>,
    pub(super) rows: u64,
    pub(super) waited_ms: u64,
    pub(super) user_ms: u64,
    pub(super) buffered_bytes: u64,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// The next line; `None` where there are no more.
pub(super) async fn read_line<T: DeserializeOwned>(from: &mut (impl AsyncBufRead + Unpin)) -> Result<Option<T>> {
    let mut line = String::new();
    if from.take(LINE_BYTES).read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    if !line.ends_with('\n') {
        return exec_err!("a line of the connection does not end within {LINE_BYTES} bytes");
    }
    let line = line.trim_end();
    let shown: String = line.chars().take(100).collect();
    serde_json::from_str(line)
        .map(Some)
        .map_err(|e| exec_datafusion_err!("a line of the connection cannot be read: {e}: {shown}"))
}

/// Writes a line.
pub(super) async fn write_line(to: &mut (impl AsyncWrite + Unpin), line: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec(line).map_err(|e| exec_datafusion_err!("a line cannot be written: {e}"))?;
    text.push(b'\n');
    to.write_all(&text).await?;
    Ok(to.flush().await?)
}
