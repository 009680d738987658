//! A cache with its writer, and a server over it.

use axum::Router;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use watchcore::{Builder, Cache, Change, Writer};
use watchcore_http::{Api, ApiBuilder, Resource, Server};

/// Prefix of the keys of all resources.
pub(crate) const PREFIX: &str = "/registry/";

/// Path of the list of all widgets; [`SHOP`] is that of one namespace.
pub(crate) const WIDGETS: &str = "/apis/matrix.test/v1/widgets";
/// Path of the widgets of the namespace `shop`.
pub(crate) const SHOP: &str = "/apis/matrix.test/v1/namespaces/shop/widgets";
/// Path of the nodes, which have no namespaces.
pub(crate) const NODES: &str = "/api/v1/nodes";

/// `widgets.matrix.test/v1`: namespaced, with the fields `spec.color` and `spec.size` and a column Color.
pub(crate) fn widgets() -> Resource {
    Resource::new("matrix.test", "v1", "widgets", "Widget")
        .namespaced(true)
        .prefix("/registry/matrix.test/widgets/")
        .short_name("wd")
        .field("spec.color", "/spec/color")
        .field("spec.size", "/spec/size")
        .column("Color", "string", "/spec/color")
}

/// `nodes/v1`: of the core group, without namespaces.
pub(crate) fn nodes() -> Resource {
    Resource::new("", "v1", "nodes", "Node").prefix("/registry/nodes/").short_name("no")
}

/// Returns the key of a widget such as `shop/a`.
pub(crate) fn widget_key(name: &str) -> String {
    format!("/registry/matrix.test/widgets/{name}")
}

/// Returns the key of a node.
pub(crate) fn node_key(name: &str) -> String {
    format!("/registry/nodes/{name}")
}

/// Returns a widget such as `shop/a` with a color, and an app as its label.
pub(crate) fn widget(name: &str, color: &str) -> Value {
    let (namespace, name) = name.split_once('/').expect("namespace/name");
    json!({
        "apiVersion": "matrix.test/v1",
        "kind": "Widget",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": color}, "uid": format!("uid-{name}")},
        "spec": {"color": color, "size": 1},
    })
}

/// Returns a node.
pub(crate) fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"zone": name}}})
}

/// The kind of server. A watch leaves the two on different paths, with the same bytes for the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ServerKind {
    /// Our own server, in which watches bypass hyper on the direct path.
    Own,
    /// The router served by axum, as when a program nests it.
    Nested,
}

/// The environment variable WATCHCORE_HTTP_FACE, `own` or `nested`, selects the server for all tests. Default: our own.
impl Default for ServerKind {
    fn default() -> ServerKind {
        match std::env::var("WATCHCORE_HTTP_FACE").as_deref() {
            Ok("nested") => ServerKind::Nested,
            Ok("own") | Err(_) => ServerKind::Own,
            Ok(other) => panic!("WATCHCORE_HTTP_FACE is {other:?}: say own or nested"),
        }
    }
}

/// The running server, which ends when this is dropped.
enum Serving {
    Own(#[expect(dead_code, reason = "ends the server when it is dropped")] Server),
    Nested(JoinHandle<()>),
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Serving::Nested(task) = self {
            task.abort();
        }
    }
}

/// Builder of a [`Ground`].
pub(crate) struct GroundBuilder {
    resources: Vec<Resource>,
    cache: Builder,
    declare: bool,
    face: ServerKind,
    api: Box<dyn FnOnce(ApiBuilder) -> ApiBuilder + Send>,
    nest: Option<&'static str>,
}

/// An embedded cache, its writer, and a server over it, which end when this is dropped.
pub(crate) struct Ground {
    pub(crate) cache: Cache,
    pub(crate) api: Api,
    pub(crate) address: SocketAddr,
    writer: Mutex<Writer>,
    _serving: Serving,
}

impl GroundBuilder {
    /// Serves these resources instead of widgets and nodes.
    pub(crate) fn resources(mut self, resources: impl IntoIterator<Item = Resource>) -> GroundBuilder {
        self.resources = resources.into_iter().collect();
        self
    }

    /// Configures the cache, for instance its capacity.
    pub(crate) fn cache(mut self, say: impl FnOnce(Builder) -> Builder) -> GroundBuilder {
        self.cache = say(self.cache);
        self
    }

    /// Leaves out [`Resource::declare`], so that the cache is unprepared.
    pub(crate) fn undeclared(mut self) -> GroundBuilder {
        self.declare = false;
        self
    }

    /// Configures the service: its limits, hooks, bookmark interval.
    pub(crate) fn api(mut self, say: impl FnOnce(ApiBuilder) -> ApiBuilder + Send + 'static) -> GroundBuilder {
        self.api = Box::new(say);
        self
    }

    /// Selects the kind of server.
    pub(crate) fn face(mut self, face: ServerKind) -> GroundBuilder {
        self.face = face;
        self
    }

    /// Serves the router below a path.
    pub(crate) fn nest(mut self, path: &'static str) -> GroundBuilder {
        self.nest = Some(path);
        self
    }

    pub(crate) async fn start(self) -> Ground {
        let mut builder = self.cache;
        if self.declare {
            builder = Resource::declare(builder, &self.resources).expect("resources of one cache");
        }
        let cache = builder.build().expect("a cache");
        let api = self.resources.into_iter().fold(Api::builder().cache(cache.clone()), ApiBuilder::resource);
        let api = (self.api)(api).build().expect("a service");
        let router = match self.nest {
            Some(path) => Router::new().nest(path, api.router()),
            None => api.router(),
        };
        let (address, serving) = match self.face {
            ServerKind::Own => {
                let builder = Server::builder(api.clone()).router(router).direct(true);
                let server = builder.address("127.0.0.1:0").start().await;
                let server = server.expect("serves");
                (server.address(), Serving::Own(server))
            }
            ServerKind::Nested => serve_nested(router).await,
        };
        let writer = Mutex::new(cache.writer().expect("the only writer"));
        Ground { cache, api, address, writer, _serving: serving }
    }
}

async fn serve_nested(router: Router) -> (SocketAddr, Serving) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let task = tokio::spawn(async move {
        axum::serve(listener, router).await.expect("serves");
    });
    (address, Serving::Nested(task))
}

impl Ground {
    /// Creates a builder with widgets and nodes in one prepared cache.
    pub(crate) fn builder() -> GroundBuilder {
        GroundBuilder {
            resources: vec![widgets(), nodes()],
            cache: Cache::builder(PREFIX),
            declare: true,
            face: ServerKind::default(),
            api: Box::new(|api| api),
            nest: None,
        }
    }

    /// Builds and starts it with the defaults.
    pub(crate) async fn start() -> Ground {
        Ground::builder().start().await
    }

    /// Locks the writer of the cache.
    pub(crate) fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().expect("a writer that no test broke")
    }

    /// Applies changes as the next revision, and returns it.
    pub(crate) fn apply(&self, changes: &[Change<'_>]) -> u64 {
        let mut writer = self.writer();
        let revision = writer.position().revision + 1;
        writer.apply(revision, changes.iter().cloned()).expect("is applied");
        revision
    }

    /// Puts any value at a key.
    pub(crate) fn put(&self, key: &str, value: impl AsRef<[u8]>) -> u64 {
        self.apply(&[Change::put(key.as_bytes(), value.as_ref())])
    }

    /// Puts a widget such as `shop/a`.
    pub(crate) fn put_widget(&self, name: &str, color: &str) -> u64 {
        self.put(&widget_key(name), widget(name, color).to_string())
    }

    /// Puts a node.
    pub(crate) fn put_node(&self, name: &str) -> u64 {
        self.put(&node_key(name), node(name).to_string())
    }

    /// Deletes a key.
    pub(crate) fn delete(&self, key: &str) -> u64 {
        self.apply(&[Change::delete(key.as_bytes())])
    }

    /// Returns the newest revision.
    pub(crate) fn revision(&self) -> u64 {
        self.cache.position().revision
    }
}
