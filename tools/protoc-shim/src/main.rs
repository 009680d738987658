//! Copies protoc and the well-known protos into the directory given:
//! `bin/protoc` and `include/google/protobuf/*.proto`. protoc itself looks for
//! the protos in `../include`, so the copy needs no further settings and no
//! longer depends on where cargo keeps its sources.

use std::path::Path;
use std::{env, fs, io, process};

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

fn run() -> Result<(), String> {
    let out = env::args_os()
        .nth(1)
        .ok_or("usage: protoc-shim DIRECTORY")?;
    let out = Path::new(&out);
    let protoc = protoc_bin_vendored::protoc_bin_path().map_err(|e| e.to_string())?;
    let include = protoc_bin_vendored::include_path().map_err(|e| e.to_string())?;
    let bin = out.join("bin");
    fs::create_dir_all(&bin).map_err(|e| format!("{}: {e}", bin.display()))?;
    fs::copy(&protoc, bin.join("protoc")).map_err(|e| format!("{}: {e}", protoc.display()))?;
    copy_tree(&include, &out.join("include")).map_err(|e| format!("{}: {e}", include.display()))
}

fn main() {
    if let Err(error) = run() {
        eprintln!("protoc-shim: {error}");
        process::exit(1);
    }
}
