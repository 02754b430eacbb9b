//! How files become read tasks.

use std::fmt::Debug;
use std::sync::Arc;

use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::FileGroup;

use crate::config::BlockyardOptions;
use crate::physical::FirstRow;

/// How a part of a file is read piece by piece, since it would hold too much memory as a whole.
pub(crate) trait Pieces: Debug + Send + Sync {
    /// The file in parts, one for each piece. What is cut begins at row `first_row` of it.
    fn of_file(&self, file: &PartitionedFile, first_row: Option<usize>) -> Vec<PartitionedFile>;
}

/// A part of a file that cannot be cut further.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    /// Which file.
    pub(crate) file: usize,
    /// First byte, and the byte after the last.
    pub(crate) range: (u64, u64),
    /// Number of the first row in the file, where it is known.
    pub(crate) first_row: Option<usize>,
    /// Bytes of the rows.
    pub(crate) bytes: usize,
    /// Bytes that a reader holds while it reads this, beside the rows that it gives.
    pub(crate) held_bytes: usize,
    /// In which pieces it is read, where it would hold too much as a whole.
    pub(crate) pieces: Option<Arc<dyn Pieces>>,
}

/// Parts of files as tasks.
#[derive(Debug)]
pub(super) struct Packed {
    /// What each task reads.
    pub(super) groups: Vec<FileGroup>,
    /// The most bytes that each task holds while it reads.
    pub(super) held_bytes: Vec<usize>,
    /// Bytes of the rows of each task.
    pub(super) bytes: Vec<usize>,
}

/// More tasks than this cost more to plan than they give; blocks are cut from them anyway.
const MAX_TASKS: usize = 1 << 14;

/// Number of read tasks for data of this size in memory, by Ray's rule: blocks of 1 MiB up to `read_op_min_num_blocks`
/// of them, never larger than the target, at least two per CPU.
pub(crate) fn detect_parallelism(bytes: usize, options: &BlockyardOptions) -> usize {
    let small = options.read_op_min_num_blocks.min(bytes / options.target_min_block_size.bound().max(1));
    let large = bytes / options.target_max_block_size.bound();
    small.max(large).max(2 * options.num_cpus).clamp(1, MAX_TASKS)
}

/// Packs units into at most `tasks` tasks of about equal bytes, in order. A task without units does not come out.
pub(super) fn pack(files: &[PartitionedFile], units: Vec<Unit>, tasks: usize) -> Packed {
    let total: usize = units.iter().map(|u| u.bytes).sum();
    let tasks = tasks.clamp(1, units.len().max(1));
    let mut groups: Vec<Vec<Unit>> = Vec::new();
    let mut before = 0;
    let count = units.len();
    for (index, unit) in units.into_iter().enumerate() {
        // A unit belongs to the task in which its middle falls; the last units must not be fewer than the tasks left.
        let middle = before + unit.bytes / 2;
        let by_bytes = (middle as u128 * tasks as u128 / total.max(1) as u128) as usize;
        let latest = tasks.saturating_sub(count - index);
        let task = by_bytes.max(latest).min(groups.len()).min(tasks - 1);
        before += unit.bytes;
        match groups.get_mut(task) {
            Some(group) => group.push(unit),
            None => groups.push(vec![unit]),
        }
    }
    let held = |units: &Vec<Unit>| units.iter().map(|unit| unit.held_bytes).max().unwrap_or(0);
    let held_bytes = groups.iter().map(held).collect();
    let bytes = groups.iter().map(|units| units.iter().map(|unit| unit.bytes).sum()).collect();
    Packed { groups: groups.into_iter().map(|units| FileGroup::new(join(files, units))).collect(), held_bytes, bytes }
}

/// Neighbouring units of one file are one range, unless they are read in pieces.
fn join(files: &[PartitionedFile], units: Vec<Unit>) -> Vec<PartitionedFile> {
    let mut joined: Vec<Unit> = Vec::new();
    for unit in units {
        match joined.last_mut() {
            Some(last)
                if last.file == unit.file
                    && last.range.1 == unit.range.0
                    && last.pieces.is_none()
                    && unit.pieces.is_none() =>
            {
                last.range.1 = unit.range.1;
            }
            _ => joined.push(unit),
        }
    }
    let parts = |unit: Unit| {
        let file = files[unit.file].clone();
        let file = match unit.first_row {
            Some(row) => file.with_extension(FirstRow(row)),
            None => file,
        };
        let whole = unit.range == (0, file.object_meta.size);
        let file = if whole { file } else { file.with_range(unit.range.0 as i64, unit.range.1 as i64) };
        match unit.pieces {
            None => vec![file],
            Some(pieces) => pieces.of_file(&file, unit.first_row),
        }
    };
    joined.into_iter().flat_map(parts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(sizes: &[usize], tasks: usize) -> Vec<usize> {
        let files: Vec<_> = sizes.iter().map(|s| PartitionedFile::new("f", *s as u64)).collect();
        let unit = |(file, size): (usize, &usize)| Unit {
            file,
            range: (0, *size as u64),
            first_row: None,
            bytes: *size,
            held_bytes: 0,
            pieces: None,
        };
        let units = sizes.iter().enumerate().map(unit).collect();
        pack(&files, units, tasks).groups.iter().map(|g| g.len()).collect()
    }

    #[test]
    fn tasks_are_balanced_in_order() {
        assert_eq!(packed(&[1, 1, 1, 1], 2), [2, 2]);
        assert_eq!(packed(&[10, 1, 1, 1], 2), [1, 3]);
        assert_eq!(packed(&[1, 1, 1, 10], 2), [3, 1]);
        assert_eq!(packed(&[1, 1], 8), [1, 1]);
        assert_eq!(packed(&[0, 0, 0], 3), [1, 1, 1]);
        assert_eq!(packed(&[5], 3), [1]);
    }

    #[test]
    fn parallelism_follows_the_size() {
        let options = BlockyardOptions { num_cpus: 2, ..Default::default() };
        assert_eq!(detect_parallelism(0, &options), 4);
        assert_eq!(detect_parallelism(50 << 20, &options), 50);
        assert_eq!(detect_parallelism(1 << 30, &options), 200);
        assert_eq!(detect_parallelism(128 << 30, &options), 1024);
    }
}
