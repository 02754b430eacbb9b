//! The only place that starts work. Everything it starts is owned by what it returns: dropping that cancels the work.

mod background;
mod drivers;
mod io;

pub(crate) use background::in_background;
pub(crate) use drivers::Drivers;
pub(crate) use io::{block_on_io, in_thread, on_io_thread};
