//! Our own server: connections, their limits, and their end.

use crate::support::ground::{WIDGETS, widgets};
use crate::support::{Watching, get, within};
use std::time::Duration;
use watchcore::{Cache, Change};
use watchcore_http::{Api, Resource, Server};

#[tokio::test]
async fn a_server_serves_and_ends() {
    let cache = Resource::declare(Cache::builder("/registry/"), [&widgets()]).unwrap().build().unwrap();
    let mut writer = cache.writer().unwrap();
    let api = Api::builder().cache(cache.clone()).resource(widgets()).build().unwrap();
    let server = Server::builder(api).address("127.0.0.1:0").start().await.unwrap();
    let address = server.address();
    assert_eq!(get(address, "/nothing").await.code(), 404);
    let mut watch = Watching::open(address, &format!("{WIDGETS}?watch=1")).await;
    writer.apply(5, [Change::put("/registry/matrix.test/widgets/shop/a", "{}")]).unwrap();
    assert_eq!(watch.told().await, "ADDED shop/a@5");
    let end = tokio::spawn(server.shutdown(Duration::from_secs(8)));
    watch.ended().await;
    within("the end", end).await.unwrap();
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "nobody listens any more");
}
