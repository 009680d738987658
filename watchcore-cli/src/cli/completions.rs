//! `watchcore completions`.

use super::exit::Stop;
use super::options;
use super::output::Output;
use clap_complete::Shell;

pub(crate) fn run(shell: Shell, out: &mut Output) -> Result<(), Stop> {
    out.line(|buffer| clap_complete::generate(shell, &mut options::command(), "watchcore", buffer))?;
    out.flush()
}
