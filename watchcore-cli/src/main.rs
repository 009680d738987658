//! `watchcore`: looks into a live etcd through the library's public API.
//!
//! Data goes to standard output, everything else to standard error. The
//! commands, their JSON lines and their exit codes are described in
//! `docs/CLI.md`; the modules below `cli/` hold one part each.
#![forbid(unsafe_code)]

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
