//! Parts of large files: those that were asked for ahead, and how they come.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use object_store::Result;
use object_store::path::Path;
use tokio::sync::OnceCell;

/// Ranges with fewer bytes between them come with one request.
const GAP: u64 = 1 << 20;
/// A request is for about so many bytes at most: several connections bring more than one.
const REQUEST_BYTES: u64 = 8 << 20;
/// So many parts are remembered that were wanted. Who has not wanted one meanwhile will not.
const REMEMBERED: usize = 64;
/// Requests for the parts of a row group that are under way at once.
const REQUESTS: usize = 8;

/// Some ranges of a large file.
pub(super) type PartKey = (Path, Vec<Range<u64>>);

/// Parts of large files that were asked for ahead.
#[derive(Default)]
pub(super) struct Parts {
    parts: HashMap<PartKey, Arc<OnceCell<Vec<Bytes>>>>,
    /// In the order in which they were asked for, with their bytes, and how many had been wanted then.
    order: VecDeque<(PartKey, usize, usize)>,
    pub(super) bytes: usize,
    /// Those that were wanted last: who is behind need not ask for them again.
    wanted: VecDeque<PartKey>,
    times_wanted: usize,
}

impl Parts {
    /// Notes that a part is wanted now, and gives it away if it was asked for.
    pub(super) fn take(&mut self, key: &PartKey) -> Option<Arc<OnceCell<Vec<Bytes>>>> {
        self.times_wanted += 1;
        self.wanted.push_back(key.clone());
        if self.wanted.len() > REMEMBERED {
            self.wanted.pop_front();
        }
        let part = self.parts.remove(key)?;
        if let Some(place) = self.order.iter().position(|(known, ..)| known == key)
            && let Some((_, bytes, _)) = self.order.remove(place)
        {
            self.bytes -= bytes;
        }
        Some(part)
    }

    /// Whether it was asked for or wanted, not long ago.
    pub(super) fn knows(&self, key: &PartKey) -> bool {
        self.parts.contains_key(key) || self.wanted.contains(key)
    }

    /// Whether there is room for so many bytes among `most`. What nobody has wanted for long makes room.
    pub(super) fn has_room(&mut self, bytes: usize, most: usize) -> bool {
        let times_wanted = self.times_wanted;
        while self.bytes + bytes > most {
            let is_stale = |(_, _, asked): &mut (PartKey, usize, usize)| times_wanted - *asked > REMEMBERED;
            let Some((oldest, its_bytes, _)) = self.order.pop_front_if(is_stale) else { return false };
            self.parts.remove(&oldest);
            self.bytes -= its_bytes;
        }
        true
    }

    /// A new part of so many bytes.
    pub(super) fn add(&mut self, key: &PartKey, bytes: usize) -> Arc<OnceCell<Vec<Bytes>>> {
        let part = Arc::<OnceCell<Vec<Bytes>>>::default();
        self.bytes += bytes;
        self.order.push_back((key.clone(), bytes, self.times_wanted));
        self.parts.insert(key.clone(), Arc::clone(&part));
        part
    }
}

/// The bytes of ranges of a file, of which `request` brings some in pieces.
pub(super) async fn bytes_of_ranges<F, S>(
    ranges: &[Range<u64>],
    request: impl Fn(Range<u64>) -> F,
) -> Result<Vec<Bytes>>
where
    F: Future<Output = Result<S>>,
    S: Stream<Item = Result<Bytes>>,
{
    let runs = runs(ranges);
    let requests: Vec<Range<u64>> = runs.iter().flat_map(requests_for).collect();
    // What comes is put together once, in order.
    let answers = requests.into_iter().map(|range| async { request(range).await?.try_collect::<Vec<Bytes>>().await });
    let mut pieces = stream::iter(answers)
        .buffered(REQUESTS)
        .map_ok(|pieces| stream::iter(pieces).map(Ok::<_, object_store::Error>))
        .try_flatten();
    let mut bytes = Vec::with_capacity(runs.len());
    let mut rest = Bytes::new();
    for run in &runs {
        let length = (run.end - run.start) as usize;
        let mut whole = Vec::with_capacity(length);
        while whole.len() < length {
            if rest.is_empty() {
                match pieces.try_next().await? {
                    Some(next) => rest = next,
                    None => break,
                }
            }
            whole.extend_from_slice(&rest.split_to(rest.len().min(length - whole.len())));
        }
        bytes.push(Bytes::from(whole));
    }
    let of_range = |range: &Range<u64>| {
        let place = runs.partition_point(|run| run.end < range.end);
        let (run, bytes) = (&runs[place], &bytes[place]);
        let at = |place: u64| ((place - run.start) as usize).min(bytes.len());
        bytes.slice(at(range.start)..at(range.end))
    };
    Ok(ranges.iter().map(of_range).collect())
}

/// Ranges that are near each other as one, in order.
fn runs(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable_by_key(|range| (range.start, range.end));
    let mut runs: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        match runs.last_mut() {
            Some(last) if range.start <= last.end + GAP => last.end = last.end.max(range.end),
            _ => runs.push(range),
        }
    }
    runs
}

/// A range in equal parts of not much more than [`REQUEST_BYTES`].
fn requests_for(run: &Range<u64>) -> Vec<Range<u64>> {
    let length = run.end - run.start;
    let parts = (length / REQUEST_BYTES).max(1);
    let cut = |part: u64| run.start + length * part / parts;
    (0..parts).map(|part| cut(part)..cut(part + 1)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[tokio::test]
    async fn ranges_come_with_few_requests_that_are_not_too_large() {
        let file: Vec<u8> = (0..40 << 20).map(|place: u32| ((place * 7) >> 3) as u8).collect();
        let mib = |from: u64, to: u64| (from << 20, to << 20);
        for (ranges, requests) in [
            (vec![(0, 10), (10, 30), (500_000, 500_001)], 1),
            (vec![mib(5, 6), (0, 10)], 2),
            (vec![mib(0, 20)], 2),
            (vec![mib(0, 12), mib(12, 33)], 4),
            (vec![(7, 7)], 0),
            (vec![], 0),
        ] {
            let ranges: Vec<Range<u64>> = ranges.iter().map(|(start, end)| *start..*end).collect();
            let made = AtomicUsize::new(0);
            let request = |range: Range<u64>| {
                made.fetch_add(1, Relaxed);
                let bytes = Bytes::copy_from_slice(&file[range.start as usize..range.end as usize]);
                let pieces =
                    (0..bytes.len()).step_by(100_000).map(move |at| Ok(bytes.slice(at..bytes.len().min(at + 100_000))));
                std::future::ready(Ok(stream::iter(pieces)))
            };
            let found = bytes_of_ranges(&ranges, request).await.unwrap();
            let expected: Vec<&[u8]> = ranges.iter().map(|r| &file[r.start as usize..r.end as usize]).collect();
            assert!(found == expected, "{ranges:?}");
            assert_eq!(made.load(Relaxed), requests, "{ranges:?}");
        }
    }
}
