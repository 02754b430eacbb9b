//! What is said in lines of JSON.

use std::io::ErrorKind;

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes of a line, with its end, where nobody says otherwise.
const LINE_BYTES: u64 = 64 << 10;
/// Letters of a line that are shown where it makes no sense.
const SHOWN: usize = 100;

/// The next line; `None` where there are no more.
pub(crate) async fn read_line<T: DeserializeOwned>(from: &mut (impl AsyncBufRead + Unpin)) -> Result<Option<T>> {
    read_line_within(from, LINE_BYTES).await
}

/// The next line, which has at most so many bytes.
pub(crate) async fn read_line_within<T: DeserializeOwned>(
    from: &mut (impl AsyncBufRead + Unpin),
    most: u64,
) -> Result<Option<T>> {
    let mut line = Vec::new();
    match from.take(most).read_until(b'\n', &mut line).await {
        Ok(_) => {}
        // A process that dies does not say so where what it says is encrypted.
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => {}
        Err(e) => return Err(e.into()),
    }
    if line.is_empty() {
        return Ok(None);
    }
    if !line.ends_with(b"\n") {
        return match line.len() as u64 == most {
            true => exec_err!("a line of the connection does not end within {most} bytes"),
            false => exec_err!("the connection was closed within a line"),
        };
    }
    let unknown = |e: serde_json::Error| {
        let shown: String = String::from_utf8_lossy(&line).trim_end().chars().take(SHOWN).collect();
        // Not all that could have been said.
        let why = e.to_string();
        let why = why.split(", expected one of").next().unwrap_or_default();
        exec_datafusion_err!("a line of the connection cannot be read: {why}: {shown:?}")
    };
    serde_json::from_slice(line.trim_ascii_end()).map(Some).map_err(unknown)
}

/// Writes a line.
pub(crate) async fn write_line(to: &mut (impl AsyncWrite + Unpin), line: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec(line).map_err(|e| exec_datafusion_err!("a line cannot be written: {e}"))?;
    text.push(b'\n');
    to.write_all(&text).await?;
    Ok(to.flush().await?)
}
