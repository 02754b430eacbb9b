//! Functions, sources and sinks that misbehave on purpose, and what becomes of the queries that use them.

mod failures;
mod functions;
mod sinks;
mod sources;
