//! This script builds nothing. Its build dependency `watchcore-etcd-protoc` looks for protoc when it is built. Cargo
//! builds first the packages that most others depend on, so with this script in between the search runs before the
//! build of etcd-client, whose own message about a missing protoc does not say how to install it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
