//! What the benches share: whether they are to measure, or only to show that they run.

/// Whether `cargo bench` has called this. `cargo test --bench '*'` runs the benches too, once and with little.
pub(crate) fn measures() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// How much of something there is where it is measured, and where it only runs.
pub(crate) fn size<T>(measured: T, once: T) -> T {
    if measures() { measured } else { once }
}
