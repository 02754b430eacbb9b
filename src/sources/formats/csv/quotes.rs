//! Values in quotes, each of which must end: a decoder takes all that follows for a part of the value, and reads on
//! without a word.

use datafusion::common::config::CsvOptions;
use memchr::{memchr, memchr_iter, memchr2, memrchr2};

/// Follows the quotes of a text that comes in chunks, as the decoder does: a value is in quotes if it begins with one,
/// and of two quotes in it the first stands for the second.
#[derive(Debug, Clone)]
pub(super) struct Quotes {
    quote: u8,
    escape: Option<u8>,
    delimiter: u8,
    /// What ends a row, where that is not a line break.
    terminator: Option<u8>,
    /// What lines begin with that are not read.
    comment: Option<u8>,
    state: State,
    /// Lines and the last byte of the chunks before.
    lines: usize,
    last: u8,
    /// The first byte of the line that the chunks before end in.
    line_begins_with: Option<u8>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Outside,
    Inside(Opened),
    /// Behind a quote that ends the value, or is the first of two.
    BehindQuote(Opened),
    BehindEscape(Opened),
}

/// Where a value begins.
#[derive(Debug, Clone, Copy)]
enum Opened {
    /// At a place in this chunk.
    Here(usize),
    /// In a line, counted from 0, of a chunk before. It may go on in further ones.
    Before { line: usize, has_line_break: bool },
}

/// A value in quotes that is not as it should be. Lines are counted from 0.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stray {
    /// Where the value begins.
    pub(super) line: usize,
    /// The line where it seems to end, and what follows there, if anything is like an end.
    pub(super) end: Option<(usize, u8)>,
}

impl Quotes {
    pub(super) fn new(options: &CsvOptions) -> Self {
        Self {
            quote: options.quote,
            escape: options.escape,
            delimiter: options.delimiter,
            terminator: options.terminator,
            comment: options.comment,
            state: State::Outside,
            lines: 0,
            last: b'\n',
            line_begins_with: None,
        }
    }

    /// Follows the next chunk. Fails where a value of several lines ends in the middle of something: most likely its
    /// end is missing, and what looks like one is the beginning of another.
    pub(super) fn follow(&mut self, chunk: &[u8]) -> Result<(), Stray> {
        let Some(last) = chunk.last() else { return Ok(()) };
        let mut at = 0;
        while at < chunk.len() {
            let rest = &chunk[at..];
            self.state = match self.state {
                State::Outside => {
                    let Some(place) = memchr(self.quote, rest) else { break };
                    at += place + 1;
                    match self.begins_value(chunk, at - 1) {
                        true => State::Inside(Opened::Here(at - 1)),
                        false => State::Outside,
                    }
                }
                State::Inside(opened) => {
                    let found = match self.escape {
                        None => memchr(self.quote, rest),
                        Some(escape) => memchr2(self.quote, escape, rest),
                    };
                    let Some(place) = found else { break };
                    at += place + 1;
                    match chunk[at - 1] == self.quote {
                        true => State::BehindQuote(opened),
                        false => State::BehindEscape(opened),
                    }
                }
                State::BehindEscape(opened) => {
                    at += 1;
                    State::Inside(opened)
                }
                State::BehindQuote(opened) if rest[0] == self.quote => {
                    at += 1;
                    State::Inside(opened)
                }
                State::BehindQuote(opened) => {
                    if rest[0] != self.delimiter && !self.ends_row(rest[0]) {
                        self.check_one_line(opened, chunk, at)?;
                    }
                    State::Outside
                }
            };
        }
        self.state = match self.state {
            State::Outside => State::Outside,
            State::Inside(opened) => State::Inside(self.kept(opened, chunk)),
            State::BehindQuote(opened) => State::BehindQuote(self.kept(opened, chunk)),
            State::BehindEscape(opened) => State::BehindEscape(self.kept(opened, chunk)),
        };
        if self.comment.is_some() {
            self.line_begins_with = self.first_of_line(chunk, chunk.len());
        }
        self.lines += line_breaks(chunk);
        self.last = *last;
        Ok(())
    }

    /// Fails if the text ends in the middle of a value.
    pub(super) fn end(&self) -> Result<(), Stray> {
        match self.state {
            State::Inside(Opened::Before { line, .. }) | State::BehindEscape(Opened::Before { line, .. }) => {
                Err(Stray { line, end: None })
            }
            _ => Ok(()),
        }
    }

    /// Whether the last line may be a comment that does not end: its end would be taken for a row.
    pub(super) fn may_end_in_comment(&self) -> bool {
        self.comment.is_some() && self.last != b'\n'
    }

    fn ends_row(&self, byte: u8) -> bool {
        self.terminator.map_or(matches!(byte, b'\n' | b'\r'), |terminator| byte == terminator)
    }

    /// Whether the quote at `place` is the first byte of a value.
    fn begins_value(&self, chunk: &[u8], place: usize) -> bool {
        let before = place.checked_sub(1).map_or(self.last, |before| chunk[before]);
        let is_first = before == self.delimiter || self.ends_row(before);
        let is_behind_mark = self.lines == 0 && chunk[..place] == *b"\xef\xbb\xbf";
        let is_comment = || self.comment.is_some_and(|comment| self.first_of_line(chunk, place) == Some(comment));
        (is_first || is_behind_mark) && !is_comment()
    }

    /// The first byte of the line that `place` is in, if it is before that.
    fn first_of_line(&self, chunk: &[u8], place: usize) -> Option<u8> {
        match memrchr2(b'\n', b'\r', &chunk[..place]) {
            Some(end) => chunk[..place].get(end + 1).copied(),
            None => self.line_begins_with.or_else(|| chunk[..place].first().copied()),
        }
    }

    /// Fails if a value that ends before `end` has several lines.
    fn check_one_line(&self, opened: Opened, chunk: &[u8], end: usize) -> Result<(), Stray> {
        let line = |place: usize| self.lines + line_breaks(&chunk[..place]);
        let (begin, has_line_break) = match opened {
            Opened::Here(place) => (line(place), memchr2(b'\n', b'\r', &chunk[place..end]).is_some()),
            Opened::Before { line, has_line_break } => {
                (line, has_line_break || memchr2(b'\n', b'\r', &chunk[..end]).is_some())
            }
        };
        match has_line_break {
            true => Err(Stray { line: begin, end: Some((line(end), chunk[end])) }),
            false => Ok(()),
        }
    }

    /// Where a value begins, for who sees the next chunk.
    fn kept(&self, opened: Opened, chunk: &[u8]) -> Opened {
        let breaks = |text| memchr2(b'\n', b'\r', text).is_some();
        match opened {
            Opened::Here(place) => {
                let line = self.lines + line_breaks(&chunk[..place]);
                Opened::Before { line, has_line_break: breaks(&chunk[place..]) }
            }
            Opened::Before { line, has_line_break } => {
                Opened::Before { line, has_line_break: has_line_break || breaks(chunk) }
            }
        }
    }
}

/// Bytes of the row at the beginning of a text, with its end: those of several lines where these are in quotes that end
/// as they should, else of one. `None` where the text ends in the middle of a value.
pub(super) fn row_length(text: &[u8], quotes: &Quotes) -> Option<usize> {
    let first = memchr(b'\n', text).map_or(text.len(), |end| end + 1);
    if memchr(quotes.quote, &text[..first]).is_none() {
        return Some(first);
    }
    let (mut quotes, mut length) = (quotes.clone(), 0);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        length += line.len();
        match quotes.follow(line) {
            Err(_) => return Some(first),
            Ok(()) if quotes.end().is_ok() => return Some(length),
            Ok(()) => {}
        }
    }
    None
}

/// Whether the quotes of a row end.
pub(super) fn is_whole(row: &[u8], quotes: &Quotes) -> bool {
    let mut quotes = quotes.clone();
    quotes.follow(row).and_then(|()| quotes.end()).is_ok()
}

fn line_breaks(text: &[u8]) -> usize {
    memchr_iter(b'\n', text).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn followed<'a>(chunks: impl IntoIterator<Item = &'a [u8]>, options: &CsvOptions) -> Result<(), Stray> {
        let mut quotes = Quotes::new(options);
        chunks.into_iter().try_for_each(|chunk| quotes.follow(chunk))?;
        quotes.end()
    }

    fn whole(text: &str) -> Result<(), Stray> {
        followed([text.as_bytes()], &CsvOptions::default())
    }

    #[test]
    fn values_in_quotes_have_to_end() {
        assert_eq!(whole("a,b\n1,\"x\ny\"\n2,\"\"\"\"\n3,\"\""), Ok(()));
        assert_eq!(whole("a,b\n1,\"x\n2,y\n"), Err(Stray { line: 1, end: None }));
        assert_eq!(whole("a,b\n1,x\n2,\"y"), Err(Stray { line: 2, end: None }));
        assert_eq!(whole("a,b\n1,\"x\n2,\"y\"\n"), Err(Stray { line: 1, end: Some((2, b'y')) }));
    }

    #[test]
    fn quotes_in_a_value_and_on_one_line_are_let_be() {
        assert_eq!(whole("a,b\n1,5\" pipe\n2,\"x\"y\n3,z\"\n"), Ok(()));
        assert_eq!(whole("\u{feff}\"a\nb\",c\n"), Ok(()));
        assert_eq!(whole("\u{feff}\"a\n"), Err(Stray { line: 0, end: None }));
    }

    #[test]
    fn other_signs_count_as_the_options_say() {
        let options = CsvOptions { escape: Some(b'\\'), comment: Some(b'#'), quote: b'\'', ..CsvOptions::default() };
        let text = b"'a\\'b',\"\n#,'\n'c\nd',e\n#'";
        for cut in 0..=text.len() {
            let (one, two) = text.split_at(cut);
            assert_eq!(followed([one, two], &options), Ok(()), "cut at {cut}");
        }
        assert_eq!(followed([&b"'a\\'\n"[..]], &options), Err(Stray { line: 0, end: None }));
        let options = CsvOptions { terminator: Some(b';'), ..CsvOptions::default() };
        assert_eq!(followed([&b"1,\"x;y\";2,z\n\"u;"[..]], &options), Ok(()));
    }

    /// The same byte after byte.
    fn by_bytes(text: &[u8]) -> Result<(), Stray> {
        let (mut opened, mut was_quote, mut before, mut line) = (None, false, b'\n', 0);
        for byte in text.iter().copied() {
            match &mut opened {
                None if byte == b'"' && matches!(before, b',' | b'\n' | b'\r') => opened = Some((line, false)),
                Some(_) if byte == b'"' => was_quote = !was_quote,
                Some((begin, has_line_break)) if was_quote => {
                    if *has_line_break && !matches!(byte, b',' | b'\n' | b'\r') {
                        return Err(Stray { line: *begin, end: Some((line, byte)) });
                    }
                    (opened, was_quote) = (None, false);
                }
                Some((_, has_line_break)) => *has_line_break |= matches!(byte, b'\n' | b'\r'),
                None => {}
            }
            line += usize::from(byte == b'\n');
            before = byte;
        }
        match opened {
            Some((line, _)) if !was_quote => Err(Stray { line, end: None }),
            _ => Ok(()),
        }
    }

    proptest! {
        #[test]
        fn chunks_say_what_bytes_say(text in "[a,\"\n\r]{0,24}", cuts in prop::collection::vec(0_usize..24, 0..4)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).chain([0, text.len()]).collect();
            cuts.sort_unstable();
            let chunks = cuts.windows(2).map(|cut| &text.as_bytes()[cut[0]..cut[1]]);
            prop_assert_eq!(followed(chunks, &CsvOptions::default()), by_bytes(text.as_bytes()));
        }
    }
}
