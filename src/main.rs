//! The `blockyard` tool; see `blockyard::cli`.

#[cfg(not(target_env = "msvc"))]
mod allocator;

fn main() -> std::process::ExitCode {
    blockyard::cli::main()
}
