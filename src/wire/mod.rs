//! Between processes: addresses, lines of JSON, and Arrow IPC streams over a connection.

mod address;
mod batches;
mod lines;

pub(crate) use address::{Address, Duplex, Listener, SocketFile};
pub(crate) use batches::{BatchReader, BatchWriter};
pub(crate) use lines::{read_line, read_line_within, write_line};
