//! The `blockyard` tool; see `blockyard::cli`.

#[cfg(not(target_env = "msvc"))]
mod allocator;

fn main() -> std::process::ExitCode {
    #[cfg(not(target_env = "msvc"))]
    let allocator = Some(allocator::allocator());
    #[cfg(target_env = "msvc")]
    let allocator = None;
    blockyard::cli::main(allocator)
}
