//! Parameters, and their refusals.

use crate::support::ground::{NODES, SHOP, WIDGETS};
use crate::support::{Ground, get};

#[tokio::test]
async fn unknown_paths_are_not_found() {
    let ground = Ground::start().await;
    for path in ["/x", "/apis/matrix.test/v1/gadgets", "/apis/matrix.test/v2/widgets"] {
        assert_eq!(get(ground.address, path).await.status(), (404, "NotFound".into()), "{path}");
    }
    let _ = (NODES, SHOP, WIDGETS);
}
