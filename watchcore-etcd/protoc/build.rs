//! Looks for protoc as etcd-client's build script will, and lets it read the protos that etcd's protos import. If that
//! fails, the build ends here, with a message for users who did not know that they need protoc.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// Imports the well-known protos that etcd's protos import.
const PROBE: &str = r#"syntax = "proto3";
package watchcore.probe;
import "google/protobuf/descriptor.proto";
import "google/protobuf/struct.proto";
message Probe {
  google.protobuf.FileDescriptorProto file = 1;
  google.protobuf.Struct fields = 2;
}
"#;

/// The reason why etcd-client cannot be built, or `None`.
fn complaint(out: &Path) -> io::Result<Option<String>> {
    let probe = out.join("probe.proto");
    fs::write(&probe, PROBE)?;
    let protoc = env::var_os("PROTOC").map_or_else(|| PathBuf::from("protoc"), PathBuf::from);
    let mut command = Command::new(&protoc);
    command.args(["--include_imports", "--include_source_info", "-o"]).arg(out.join("probe.bin")).arg("-I").arg(out);
    if let Some(include) = env::var_os("PROTOC_INCLUDE") {
        command.arg("-I").arg(include);
    }
    match command.arg(&probe).output() {
        Ok(output) if output.status.success() => Ok(None),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("nothing").trim();
            Ok(Some(format!("`{}` does not find the well-known protos (it says: {said})", protoc.display())))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok(Some(format!("there is no `{}`", protoc.display())))
        }
        Err(error) => Ok(Some(format!("`{}` does not run ({error})", protoc.display()))),
    }
}

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=WATCHCORE_ETCD_NO_PROTOC");
    // docs.rs has what the build needs; the variable is for users who build another etcd-client.
    if env::var_os("DOCS_RS").is_some() || env::var_os("WATCHCORE_ETCD_NO_PROTOC").is_some() {
        return Ok(());
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    if let Some(complaint) = complaint(&out)? {
        for line in [
            &complaint,
            "watchcore-etcd needs protoc and the well-known protos (google/protobuf/*.proto): etcd-client runs it.",
            "One line that brings both, by cargo alone:",
            "    cargo install --locked protox@0.10.0 --features bin && export PROTOC=protox",
            "or Debian: apt-get install protobuf-compiler libprotobuf-dev; macOS: brew install protobuf.",
            "WATCHCORE_ETCD_NO_PROTOC=1 leaves out this check. More: https://docs.rs/watchcore-etcd",
        ] {
            println!("cargo::error={line}");
        }
    }
    Ok(())
}
