//! Writing to local disks, through the page cache or past it.

mod direct;
mod pace;

pub(crate) use direct::{PAGE, Pages, open_direct};
pub(crate) use pace::{Pace, Way};
