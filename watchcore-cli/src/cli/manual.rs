//! `watchcore manual`: generates the man pages from clap's options.

use super::exit::{Failure, Stop};
use super::options;
use std::path::Path;
use watchcore::Code;

/// Writes a page for the program and one for each of its commands.
pub(crate) fn run(directory: &Path) -> Result<(), Stop> {
    let mut command = options::command().name("watchcore");
    command.build();
    let commands = command.get_subcommands().filter(|command| command.get_name() != "help");
    for command in std::iter::once(&command).chain(commands) {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name()).replace(' ', "-");
        let path = directory.join(format!("{name}.1"));
        let mut page = Vec::new();
        let written = clap_mangen::Man::new(command.clone()).date("").manual("watchcore").render(&mut page);
        written.and_then(|()| std::fs::write(&path, page)).map_err(|error| {
            Failure::new(Code::Internal, format!("the man page {} cannot be written: {error}", path.display()))
        })?;
    }
    Ok(())
}
