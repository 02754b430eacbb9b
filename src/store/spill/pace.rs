//! Whether to write through the page cache or past it, by what was faster.
//!
//! The page cache takes what it has room for at the pace of memory, and the rest at the pace of the disk; past it, all goes at the
//! pace of the disk, without a copy. Which is faster depends on the disk, on how much memory is free, and on what a fresh page costs.

use std::time::Duration;

use parking_lot::Mutex;

/// One file in so many is written the way that was slower, to see whether it still is.
const TRY_AGAIN: usize = 16;
/// How much the last write counts.
const WEIGHT: f64 = 0.2;

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Past the page cache.
    Direct,
    /// Through it.
    Buffered,
}

/// How long each way took.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<Paces>);

#[derive(Debug, Default)]
struct Paces {
    files: usize,
    /// Seconds for each byte, where it is known.
    direct: Option<f64>,
    buffered: Option<f64>,
    no_direct: bool,
}

impl Pace {
    /// How to write the next file.
    pub(super) fn next(&self) -> Way {
        let mut paces = self.0.lock();
        paces.files += 1;
        let (faster, slower) = match (paces.direct, paces.buffered) {
            _ if paces.no_direct => return Way::Buffered,
            (None, _) => return Way::Direct,
            (Some(_), None) => return Way::Buffered,
            (Some(direct), Some(buffered)) if direct <= buffered => (Way::Direct, Way::Buffered),
            _ => (Way::Buffered, Way::Direct),
        };
        if paces.files.is_multiple_of(TRY_AGAIN) { slower } else { faster }
    }

    /// So many bytes were written in that time.
    pub(super) fn wrote(&self, way: Way, bytes: usize, took: Duration) {
        let mut paces = self.0.lock();
        let pace = match way {
            Way::Direct => &mut paces.direct,
            Way::Buffered => &mut paces.buffered,
        };
        let last = took.as_secs_f64() / bytes.max(1) as f64;
        *pace = Some(pace.map_or(last, |before| before + WEIGHT * (last - before)));
    }

    /// The file system has no direct access.
    pub(super) fn direct_is_impossible(&self) {
        self.0.lock().no_direct = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_are_tried_and_the_faster_one_taken() {
        let pace = Pace::default();
        let write = |direct: u64, buffered: u64| {
            let way = pace.next();
            let seconds = if way == Way::Direct { direct } else { buffered };
            pace.wrote(way, 1 << 20, Duration::from_secs(seconds));
            way
        };
        assert_eq!([write(1, 2), write(1, 2)], [Way::Direct, Way::Buffered]);
        let ways: Vec<_> = (0..TRY_AGAIN).map(|_| write(1, 2)).collect();
        assert_eq!(ways.iter().filter(|way| **way == Way::Buffered).count(), 1, "{ways:?}");
        // The disk gets slow, and the page cache takes what is written.
        let ways: Vec<_> = (0..3 * TRY_AGAIN).map(|_| write(9, 2)).collect();
        assert_eq!(ways.iter().rev().take(TRY_AGAIN).filter(|way| **way == Way::Direct).count(), 1, "{ways:?}");
        pace.direct_is_impossible();
        assert!((0..2 * TRY_AGAIN).all(|_| pace.next() == Way::Buffered));
    }
}
