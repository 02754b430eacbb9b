//! Whether to write through the page cache or past it, by what was faster.
//!
//! The page cache takes what it has room for at the pace of memory, and the rest at the pace of the disk; past it, all
//! goes at the pace of the disk, without a copy. Which is faster depends on the disk, on how much memory is free, and
//! on what a fresh page costs.

use std::time::Duration;

use parking_lot::Mutex;

/// One write in so many goes the way that was slower, to see whether it still is, for each time that it took as long as
/// the other.
const TRY_AGAIN: f64 = 16.0;
/// But not fewer than one in so many.
const SELDOM: f64 = 256.0;
/// How much the last write counts.
const WEIGHT: f64 = 0.2;

/// How bytes are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteMode {
    /// Past the page cache.
    Direct,
    /// Through it.
    Buffered,
}

/// How long each way took.
#[derive(Debug, Default)]
pub(crate) struct WriteSpeeds(Mutex<Speeds>);

#[derive(Debug, Default)]
struct Speeds {
    /// Writes since the slower way was taken.
    writes: usize,
    /// Seconds for each byte, where it is known.
    direct: Option<f64>,
    buffered: Option<f64>,
    no_direct: bool,
}

impl WriteSpeeds {
    /// How to write next: a file, or a stretch of one.
    pub(crate) fn next(&self) -> WriteMode {
        let mut paces = self.0.lock();
        let (faster, slower, times) = match (paces.direct, paces.buffered) {
            _ if paces.no_direct => return WriteMode::Buffered,
            (None, _) => return WriteMode::Direct,
            (Some(_), None) => return WriteMode::Buffered,
            (Some(direct), Some(buffered)) if direct <= buffered => {
                (WriteMode::Direct, WriteMode::Buffered, buffered / direct)
            }
            (Some(direct), Some(buffered)) => (WriteMode::Buffered, WriteMode::Direct, direct / buffered),
        };
        paces.writes += 1;
        if (paces.writes as f64) < (TRY_AGAIN * times).min(SELDOM) {
            return faster;
        }
        paces.writes = 0;
        slower
    }

    /// So many bytes were written in that time.
    pub(crate) fn wrote(&self, way: WriteMode, bytes: usize, took: Duration) {
        let mut paces = self.0.lock();
        let pace = match way {
            WriteMode::Direct => &mut paces.direct,
            WriteMode::Buffered => &mut paces.buffered,
        };
        let last = took.as_secs_f64() / bytes.max(1) as f64;
        *pace = Some(pace.map_or(last, |before| before + WEIGHT * (last - before)));
    }

    /// The file system has no direct access.
    pub(crate) fn direct_is_impossible(&self) {
        self.0.lock().no_direct = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_are_tried_and_the_faster_one_taken() {
        let pace = WriteSpeeds::default();
        let write = |direct: u64, buffered: u64| {
            let way = pace.next();
            let seconds = if way == WriteMode::Direct { direct } else { buffered };
            pace.wrote(way, 1 << 20, Duration::from_secs(seconds));
            way
        };
        assert_eq!([write(1, 2), write(1, 2)], [WriteMode::Direct, WriteMode::Buffered]);
        let ways: Vec<_> = (0..64).map(|_| write(1, 2)).collect();
        assert_eq!(ways.iter().filter(|way| **way == WriteMode::Buffered).count(), 2, "{ways:?}");
        // The disk gets slow, and the page cache takes what is written.
        let ways: Vec<_> = (0..600).map(|_| write(1000, 1)).collect();
        assert_eq!(ways.iter().rev().take(256).filter(|way| **way == WriteMode::Direct).count(), 1, "{ways:?}");
        pace.direct_is_impossible();
        assert!((0..64).all(|_| pace.next() == WriteMode::Buffered));
    }
}
