//! Files as a table: which files paths mean, the columns that paths give, and how files become read tasks. What differs
//! between formats is in `formats/`.

mod by_name;
mod calls;
mod choice;
mod column_types;
mod columns;
mod directories;
mod external;
mod glob;
mod hive;
mod listing;
mod path_filters;
mod path_values;
mod pinned;
mod table;
mod tasks;
mod told;

pub(crate) use by_name::{format_of_path, read_functions};
pub use calls::FileRead;
pub(crate) use calls::{Format, FormatOptions, read_options};
pub(crate) use choice::FileChoice;
pub use choice::{FileSchema, FileShuffle, PathPartitioning};
pub(crate) use columns::{distinct_names, fits, missing_fields, plain_unless_asked, twice};
pub(crate) use external::{ExternalTables, files_of};
pub(crate) use listing::{Listing, check_local, first_file, full_path};
pub(crate) use pinned::{PinnedStore, ReadingFile, is_small};
pub(crate) use table::FileTable;
pub(crate) use tasks::{Pieces, Unit, detect_parallelism};

/// Footers and first lines that are read at once.
pub(crate) const CONCURRENT_HEADS: usize = 32;
