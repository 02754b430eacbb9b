//! Parts of large files: those that were asked for ahead, and how they come.

use std::collections::hash_map::Entry;
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
/// So many times are remembered at which something was wanted. Who has not wanted a part meanwhile will not.
const REMEMBERED: usize = 64;
/// Requests for the parts of a row group that are under way at once.
const REQUESTS: usize = 8;

/// Ranges of a large file that were asked for together, which may be wanted one by one.
pub(super) struct Part {
    pub(super) file: Path,
    pub(super) ranges: Vec<Range<u64>>,
    pub(super) bytes: OnceCell<Vec<Bytes>>,
}

/// A range that was asked for, as one of a part.
pub(super) struct Asked {
    pub(super) part: Arc<Part>,
    pub(super) place: usize,
}

/// What is known of a range.
enum Known {
    Asked(Asked),
    /// Who is behind need not ask for it again.
    Wanted,
}

/// Parts of large files that were asked for ahead.
#[derive(Default)]
pub(super) struct Parts {
    /// By files, and by where ranges begin.
    files: HashMap<Path, HashMap<u64, Known>>,
    /// In the order in which they were asked for.
    order: VecDeque<Counted>,
    pub(super) bytes: usize,
    /// The ranges that were wanted last.
    wanted: VecDeque<(Path, Vec<u64>)>,
    times_wanted: usize,
}

/// A part of which some ranges are still to be wanted.
struct Counted {
    part: Arc<Part>,
    bytes: usize,
    ranges_left: usize,
    /// How often something had been wanted when it was asked for.
    asked_at: usize,
}

impl Parts {
    /// Notes that ranges are wanted now, and gives away those that were asked for.
    pub(super) fn take(&mut self, file: &Path, ranges: &[Range<u64>]) -> Vec<Option<Asked>> {
        self.times_wanted += 1;
        let known = self.files.entry(file.clone()).or_default();
        let taken: Vec<Option<Asked>> = ranges
            .iter()
            .map(|range| match known.insert(range.start, Known::Wanted) {
                Some(Known::Asked(asked)) if asked.part.ranges[asked.place] == *range => Some(asked),
                _ => None,
            })
            .collect();
        for Asked { part, .. } in taken.iter().flatten() {
            self.has_lost_one(part);
        }
        self.wanted.push_back((file.clone(), ranges.iter().map(|range| range.start).collect()));
        if self.wanted.len() > REMEMBERED
            && let Some((file, starts)) = self.wanted.pop_front()
        {
            self.forget(&file, starts, |known| matches!(known, Known::Wanted));
        }
        taken
    }

    /// One of the ranges of a part is gone, and with the last one the part.
    fn has_lost_one(&mut self, part: &Arc<Part>) {
        let Some(place) = self.order.iter().position(|counted| Arc::ptr_eq(&counted.part, part)) else { return };
        self.order[place].ranges_left -= 1;
        if self.order[place].ranges_left == 0
            && let Some(counted) = self.order.remove(place)
        {
            self.bytes -= counted.bytes;
        }
    }

    fn forget(&mut self, file: &Path, starts: impl IntoIterator<Item = u64>, is_meant: impl Fn(&Known) -> bool) {
        let Entry::Occupied(mut of_file) = self.files.entry(file.clone()) else { return };
        for start in starts {
            if let Entry::Occupied(known) = of_file.get_mut().entry(start)
                && is_meant(known.get())
            {
                known.remove();
            }
        }
        if of_file.get().is_empty() {
            of_file.remove();
        }
    }

    /// The ranges that were neither asked for nor wanted, not long ago.
    pub(super) fn unknown(&self, file: &Path, mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
        if let Some(known) = self.files.get(file) {
            ranges.retain(|range| !known.contains_key(&range.start));
        }
        ranges
    }

    /// Whether there is room for so many bytes among `most`. What nobody has wanted for long makes room.
    pub(super) fn has_room(&mut self, bytes: usize, most: usize) -> bool {
        let times_wanted = self.times_wanted;
        while self.bytes + bytes > most {
            let is_stale = |counted: &mut Counted| times_wanted - counted.asked_at > REMEMBERED;
            let Some(Counted { part, bytes, .. }) = self.order.pop_front_if(is_stale) else { return false };
            self.bytes -= bytes;
            let is_of_it = |known: &Known| matches!(known, Known::Asked(asked) if Arc::ptr_eq(&asked.part, &part));
            self.forget(&part.file, part.ranges.iter().map(|range| range.start), is_of_it);
        }
        true
    }

    /// A new part of so many bytes, none of whose ranges is known.
    pub(super) fn add(&mut self, file: &Path, ranges: Vec<Range<u64>>, bytes: usize) -> Arc<Part> {
        let part = Arc::new(Part { file: file.clone(), ranges, bytes: OnceCell::new() });
        let known = self.files.entry(file.clone()).or_default();
        for (place, range) in part.ranges.iter().enumerate() {
            known.insert(range.start, Known::Asked(Asked { part: Arc::clone(&part), place }));
        }
        self.bytes += bytes;
        let (ranges_left, asked_at) = (part.ranges.len(), self.times_wanted);
        self.order.push_back(Counted { part: Arc::clone(&part), bytes, ranges_left, asked_at });
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
