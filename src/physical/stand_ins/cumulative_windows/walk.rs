//! Goes over the rows of a batch, from one end of a frame to the next.

use std::ops::Range;

use datafusion::common::Result;

use super::rows::Rows;

/// The last row that a window has seen when it says something of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Until {
    /// The row itself.
    Row,
    /// The last that is equal to it in the order.
    Peers,
    /// The last of the partition.
    Partition,
}

/// What comes along on the way.
pub(super) trait Walk {
    /// A partition begins.
    fn begin(&mut self) -> Result<()>;

    /// These rows of the batch come into the frame.
    fn add(&mut self, rows: Range<usize>) -> Result<()>;

    /// What is known now is said of so many rows.
    fn tell(&mut self, rows: usize) -> Result<()>;
}

/// Goes over all rows of a batch.
pub(super) fn walk(rows: &Rows<'_>, until: Until, walk: &mut impl Walk) -> Result<()> {
    let mut peers = rows.peers.ranges.iter().peekable();
    for (number, partition) in rows.partitions.ranges.iter().enumerate() {
        if number > 0 || !rows.partitions.continues {
            walk.begin()?;
        }
        match until {
            Until::Row => {
                for row in partition.clone() {
                    walk.add(row..row + 1)?;
                    walk.tell(1)?;
                }
            }
            Until::Peers => {
                while let Some(group) = peers.next_if(|group| group.start < partition.end) {
                    walk.add(group.clone())?;
                    walk.tell(group.len())?;
                }
            }
            Until::Partition => {
                walk.add(partition.clone())?;
                walk.tell(partition.len())?;
            }
        }
    }
    Ok(())
}
