//! Where a window begins.

use crate::physical::place::Place;

/// Where a window begins.
#[derive(Debug, Clone, Default)]
pub(super) struct Start {
    /// The pass over the source, and the number of the window in it.
    pub(super) pass: u64,
    pub(super) number: u64,
    /// Its epoch, and its number in it.
    pub(super) label: (u32, u32),
    /// The place of its first row in the source, where the window is cut out of rows and the source can begin there.
    pub(super) source: Option<Place>,
    /// Where its plan begins, and the number of the first row that comes from there.
    pub(super) inside: Place,
    pub(super) row: u64,
    /// Whether nobody has waited for a window before.
    pub(super) is_first: bool,
}
