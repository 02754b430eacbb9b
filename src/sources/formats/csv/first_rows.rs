//! The first rows of a CSV file, by which its columns are told.

use bytes::Bytes;
use datafusion::common::config::CsvOptions;
use datafusion::common::{Result, exec_err};
use futures::TryStreamExt;
use futures::stream::BoxStream;
use memchr::{memchr, memchr_iter, memrchr};

use super::dialect::format_of;
use super::quotes::{Quotes, is_whole, row_length};

/// However long they are, they are no more bytes than this.
const MAX_BYTES: usize = 64 << 20;

/// At least so many rows from the beginning of a text, as far as there are, and no part of another.
pub(super) async fn first_rows(
    text: BoxStream<'static, Result<Bytes>>,
    rows: usize,
    options: &CsvOptions,
) -> Result<Bytes> {
    let (mut head, ended) = head(text, rows, options).await?;
    let whole = if ended { head.len() } else { whole_rows(&head, Quotes::new(options)) };
    if whole > 0 {
        head.truncate(whole);
    }
    Ok(head.into())
}

/// The same, without rows that do not have as many values as the first, in quotes that end: they say nothing of the
/// columns. Fails where the first line is to name them and is such a row.
pub(super) async fn first_lines(
    text: BoxStream<'static, Result<Bytes>>,
    lines: usize,
    options: &CsvOptions,
    has_header: bool,
) -> Result<Bytes> {
    let (mut head, ended) = head(text, lines, options).await?;
    if let Some(end) = memrchr(b'\n', &head).filter(|_| !ended) {
        head.truncate(end + 1);
    }
    let (format, quotes) = (format_of(options).with_header(false), Quotes::new(options));
    let values = |row: &[u8]| format.infer_schema(row, None).map_or(0, |(schema, _)| schema.fields().len());
    let (mut kept, mut width, mut rest) = (Vec::new(), None, head.as_slice());
    while !rest.is_empty() {
        let length = row_length(rest, &quotes).unwrap_or_else(|| line_length(rest));
        let (row, behind) = rest.split_at(length);
        let is_whole = is_whole(row, &quotes);
        if !is_whole && width.is_none() && has_header {
            return exec_err!("the quotes of the first line do not end, and it is to name the columns");
        }
        let found = values(row);
        if is_whole && found == *width.get_or_insert(found) {
            kept.extend_from_slice(row);
        }
        rest = behind;
    }
    Ok(kept.into())
}

fn line_length(text: &[u8]) -> usize {
    memchr(b'\n', text).map_or(text.len(), |end| end + 1)
}

/// The beginning of a text, with so many lines behind the first, and whether it is all of it.
async fn head(
    mut text: BoxStream<'static, Result<Bytes>>,
    lines: usize,
    options: &CsvOptions,
) -> Result<(Vec<u8>, bool)> {
    let (mut head, mut found) = (Vec::new(), 0);
    while found <= lines && head.len() < MAX_BYTES {
        let Some(chunk) = text.try_next().await? else {
            // The end of the text does not end a comment.
            if options.comment.is_some() && !head.ends_with(b"\n") {
                head.push(b'\n');
            }
            return Ok((head, true));
        };
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
