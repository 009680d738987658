//! Prints the public interface of a crate, an item a line, out of the JSON that rustdoc makes of it.
//! Ends with 3 where that has a form of another compiler's.

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: api RUSTDOC.json");
        return ExitCode::from(2);
    };
    match public_api::Builder::from_rustdoc_json(path).omit_blanket_impls(true).build() {
        Ok(api) => {
            api.items().for_each(|item| println!("{item}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("api: {error}");
            ExitCode::from(3)
        }
    }
}
