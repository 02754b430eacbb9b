//! Between processes: addresses, lines of JSON, and Arrow IPC streams over a connection.

mod address;
mod batches;
mod duplex;
mod lines;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;

pub(crate) use address::{Address, Listener, Opening, SocketFile, is_distrust};
pub(crate) use batches::{BatchReader, BatchWriter};
pub(crate) use duplex::Duplex;
pub(crate) use lines::{read_line, read_line_within, write_line};
pub(crate) use tls::{Identity, Trust};
