//! The first rows of a CSV file, by which its columns are told.

use bytes::Bytes;
use datafusion::common::Result;
use datafusion::common::config::CsvOptions;
use futures::TryStreamExt;
use futures::stream::BoxStream;
use memchr::{memchr_iter, memrchr};

use super::dialect::format_of;
use super::quotes::Quotes;

/// However long they are, they are no more bytes than this.
const MAX_BYTES: usize = 64 << 20;

/// At least so many rows from the beginning of a text, as far as there are, and no part of another.
pub(super) async fn first_rows(
    text: BoxStream<'static, Result<Bytes>>,
    rows: usize,
    options: &CsvOptions,
) -> Result<Bytes> {
    let (mut head, ended) = head(text, rows).await?;
    let whole = if ended { head.len() } else { whole_rows(&head, Quotes::new(options)) };
    if whole > 0 {
        head.truncate(whole);
    }
    Ok(head.into())
}

/// The same of lines, without those that do not have as many values as the first, in quotes that end: they say nothing
/// of the columns.
pub(super) async fn first_lines(
    text: BoxStream<'static, Result<Bytes>>,
    lines: usize,
    options: &CsvOptions,
) -> Result<Bytes> {
    let (mut head, ended) = head(text, lines).await?;
    if let Some(end) = memrchr(b'\n', &head).filter(|_| !ended) {
        head.truncate(end + 1);
    }
    let format = format_of(options).with_header(false);
    let values = |line: &[u8]| format.infer_schema(line, None).map_or(0, |(schema, _)| schema.fields().len());
    let mut width = None;
    let mut is_kept = |line: &&[u8]| {
        let found = values(line);
        let is_whole = memchr_iter(options.quote, line).count().is_multiple_of(2);
        is_whole && found == *width.get_or_insert(found)
    };
    Ok(head.split_inclusive(|byte| *byte == b'\n').filter(&mut is_kept).flatten().copied().collect())
}

/// The beginning of a text, with so many lines behind the first, and whether it is all of it.
async fn head(mut text: BoxStream<'static, Result<Bytes>>, lines: usize) -> Result<(Vec<u8>, bool)> {
    let (mut head, mut found) = (Vec::new(), 0);
    while found <= lines && head.len() < MAX_BYTES {
        let Some(chunk) = text.try_next().await? else { return Ok((head, true)) };
        found += memchr_iter(b'\n', &chunk).count();
        head.extend_from_slice(&chunk);
    }
    Ok((head, false))
}

/// Bytes of the rows at the beginning of a text that end in it.
fn whole_rows(text: &[u8], mut quotes: Quotes) -> usize {
    let (mut whole, mut at) = (0, 0);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        if quotes.follow(line).is_err() {
            break;
        }
        at += line.len();
        if line.ends_with(b"\n") && quotes.end().is_ok() {
            whole = at;
        }
    }
    whole
}
