//! The `blockyard` tool; see `blockyard::cli`.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    blockyard::cli::main()
}
