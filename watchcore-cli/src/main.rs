//! The `watchcore` command: it inspects a live etcd through the library's public API.
//!
//! Data goes to standard output, everything else to standard error. The
//! commands, their JSON lines and their exit codes are described in
//! `docs/CLI.md`; the modules below `cli/` hold one part each.
#![forbid(unsafe_code)]

mod cli;

/// A server with ten thousand connections allocates a large buffer for each request, between small allocations that
/// last as long as the connection. mimalloc keeps sizes apart and reuses that memory; glibc's allocator leaves holes
/// there, and musl's, in a static binary, is slow under many threads as well.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
