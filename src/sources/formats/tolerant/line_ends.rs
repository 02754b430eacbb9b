//! Lines of a text, and where they end.

use memchr::{memchr, memchr_iter};

/// How many lines a text has; `None` where some decoder could find more, in the middle of one.
pub(super) fn number_of_lines(text: &[u8]) -> Option<usize> {
    let is_of_end = |place: usize| text.get(place + 1).is_none_or(|next| *next == b'\n');
    let lines = memchr_iter(b'\n', text).count() + usize::from(!text.is_empty() && !text.ends_with(b"\n"));
    memchr_iter(b'\r', text).all(is_of_end).then_some(lines)
}

/// Bytes of the line at the beginning of a text, with its end.
pub(super) fn line_length(text: &[u8]) -> usize {
    memchr(b'\n', text).map_or(text.len(), |end| end + 1)
}

/// How many lines begin in a text.
pub(super) fn lines_of(text: &[u8]) -> usize {
    memchr_iter(b'\n', text).count() + usize::from(!text.is_empty() && !text.ends_with(b"\n"))
}

/// A row without the end of its last line.
pub(super) fn without_end(row: &[u8]) -> &[u8] {
    row.strip_suffix(b"\n").map_or(row, |row| row.strip_suffix(b"\r").unwrap_or(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_with_and_without_their_ends() {
        assert_eq!([&b"a\r\n"[..], b"\n", b"bc\n", b"d", b""].map(without_end), [&b"a"[..], b"", b"bc", b"d", b""]);
        assert_eq!([&b""[..], b"a", b"a\n", b"a\nb"].map(lines_of), [0, 1, 1, 2]);
    }
}
