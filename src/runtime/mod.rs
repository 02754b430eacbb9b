//! The only place that starts work. Everything it starts is owned by what it returns: dropping that cancels the work.

mod drivers;
mod io;

pub(crate) use drivers::Drivers;
pub(crate) use io::block_on_io;
