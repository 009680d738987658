//! Nothing is built here. The build dependency `watchcore-etcd-protoc` looks for protoc when it is built, and
//! cargo runs what has most behind it first: behind this script and its dependency that search comes before the
//! build of etcd-client, which would end for want of protoc with a message that leads only half of the way.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
