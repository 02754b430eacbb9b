//! Functions and sources that misbehave on purpose, and what becomes of the queries that use them.

mod failures;
mod functions;
mod sources;
