//! Ranges of codes: all codes cut into ranges by what is known of the bytes of their rows.

use std::ops::RangeInclusive;

use datafusion::common::Result;

/// What is in one piece of every run is cut into at most so many parts, each of which reads the whole piece.
const MAX_PARTS: usize = 1 << 8;

/// All codes in `n` ranges of equal width.
pub(crate) fn equal_ranges(n: usize) -> Vec<RangeInclusive<u64>> {
    (0..n.max(1)).map(|k| equal_range(k, n.max(1))).collect()
}

/// Range number `k` of `n` of equal width.
pub(super) fn equal_range(k: usize, n: usize) -> RangeInclusive<u64> {
    let start = |k: usize| ((k as u128) << 64).div_ceil(n as u128);
    start(k) as u64..=(start(k + 1) - 1) as u64
}

/// A range of codes and what is known of the bytes of its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) range: RangeInclusive<u64>,
    pub(crate) bytes: usize,
}

/// Cuts all codes into ranges, so that each has about `target` bytes of those in `bins` at most, but never fewer than
/// `least` ranges. What is in one bin that has more is cut by `split`, which gets its range and bytes.
pub(crate) fn cuts(
    bins: &[usize],
    target: usize,
    least: usize,
    mut split: impl FnMut(Cut, usize) -> Result<Vec<Cut>>,
) -> Result<Vec<Cut>> {
    let total: usize = bins.iter().sum();
    let target = target.min(total.div_ceil(least.max(1))).max(1);
    let (mut cuts, mut open) = (Vec::new(), None::<Cut>);
    for (bin, bytes) in bins.iter().copied().enumerate() {
        let range = equal_range(bin, bins.len());
        if bytes > target {
            cuts.extend(open.take());
            cuts.extend(split(Cut { range, bytes }, target)?);
            continue;
        }
        match &mut open {
            Some(cut) if cut.bytes + bytes <= target => {
                *cut = Cut { range: *cut.range.start()..=*range.end(), bytes: cut.bytes + bytes };
            }
            _ => cuts.extend(open.replace(Cut { range, bytes })),
        }
    }
    cuts.extend(open);
    Ok(cuts)
}

/// Parts of equal width with about `target` bytes each. Of no use where the bytes are of one key.
pub(crate) fn equal_parts(cut: &Cut, target: usize) -> Vec<Cut> {
    let (start, width) = (u128::from(*cut.range.start()), u128::from(*cut.range.end() - *cut.range.start()) + 1);
    let parts = (cut.bytes.div_ceil(target.max(1)).min(MAX_PARTS) as u128).min(width);
    let end = |part: u128| start + width * part / parts;
    let part = |part| Cut { range: end(part) as u64..=(end(part + 1) - 1) as u64, bytes: cut.bytes / parts as usize };
    (0..parts).map(part).collect()
}

/// Parts with about `target` bytes each, by the codes that there are in order: one that has more for itself is a part
/// of its own.
pub(crate) fn exact_parts(cut: &Cut, codes: &[u64], target: usize) -> Vec<Cut> {
    let row_bytes = (cut.bytes / codes.len().max(1)).max(1);
    let (mut parts, mut next, mut bytes) = (Vec::new(), *cut.range.start(), 0);
    let mut close = |next: &mut u64, end: u64, bytes: &mut usize| {
        parts.push(Cut { range: *next..=end, bytes: std::mem::take(bytes) });
        *next = end.saturating_add(1);
    };
    for rows in codes.chunk_by(|a, b| a == b) {
        let (code, more) = (rows[0], rows.len() * row_bytes);
        if bytes + more > target && code > next {
            close(&mut next, code - 1, &mut bytes);
        }
        bytes += more;
        if bytes > target && code < *cut.range.end() {
            close(&mut next, code, &mut bytes);
        }
    }
    parts.push(Cut { range: next..=*cut.range.end(), bytes });
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cover_all(cuts: &[Cut]) {
        let mut next = 0u128;
        for cut in cuts {
            assert_eq!(u128::from(*cut.range.start()), next, "{cuts:?}");
            next = u128::from(*cut.range.end()) + 1;
        }
        assert_eq!(next, 1 << 64);
    }

    #[test]
    fn cuts_cover_all_codes_once_and_follow_the_bytes() {
        let mut bins = vec![10; 1 << 10];
        bins[7] = 5000;
        let cut = |target, least| cuts(&bins, target, least, |cut, target| Ok(equal_parts(&cut, target))).unwrap();
        for (target, least) in [(1, 1), (100, 1), (100, 64), (usize::MAX, 1), (usize::MAX, 8)] {
            let cuts = cut(target, least);
            assert!(cuts.len() >= least, "{target} {least}");
            cover_all(&cuts);
        }
        assert_eq!(cut(usize::MAX, 1).len(), 1);
        assert!(cut(100, 1).iter().all(|cut| cut.bytes <= 100));
        assert_eq!(cuts(&[0; 4], 10, 3, |_, _| Ok(Vec::new())).unwrap().len(), 1);
    }

    #[test]
    fn a_code_that_is_too_many_rows_is_a_part_of_its_own() {
        let cut = Cut { range: 0..=u64::MAX, bytes: 1000 };
        let codes: Vec<u64> = (0..20).chain([50; 60]).chain(60..80).collect();
        let parts = exact_parts(&cut, &codes, 100);
        cover_all(&parts);
        let sizes: Vec<_> = parts.iter().map(|part| part.bytes).collect();
        assert_eq!(sizes, [100, 100, 600, 100, 100]);
        assert_eq!(parts[2].range, 50..=50);
        cover_all(&exact_parts(&cut, &[u64::MAX; 100], 100));
        cover_all(&exact_parts(&cut, &[0; 100], 100));
    }
}
