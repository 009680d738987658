//! A watch of `/v1/keys`, and its lines in the form that rows print.
//!
//! A stream does not say that there is no more for now. Each watch here asks for bookmarks, which the server sends
//! periodically, even without changes. A bookmark with the cache's current position follows all events up to that
//! position, so a step that takes everything reads up to such a bookmark.

use crate::client::{Client, Watching};
use crate::face::{Printed, refusal};
use crate::lines::{self, text, whole};
use serde_json::Value;
use std::net::SocketAddr;
use watchcore::Cache;

/// An open watch.
pub(crate) struct Stream {
    /// `None` after the client has closed it, or the server has ended it.
    pub(crate) watching: Option<Watching>,
    /// Position up to which the client has everything.
    pub(crate) position: u64,
    /// Epoch named by the last RESYNC line, or the initial one; 0 after a start in the future, whose watch does not
    /// report a resync during its wait.
    pub(crate) epoch: u64,
    is_initial: bool,
}

impl Stream {
    /// Opens a watch: after a revision, or with the state first.
    pub(crate) async fn open(address: SocketAddr, target: &str, after: Option<u64>, epoch: u64) -> Printed<Stream> {
        let mut client = Client::connect(address).await;
        let after_text = after.map(|after| format!("&after={after}")).unwrap_or_default();
        client.request("GET", &format!("{target}&watch=1&bookmarks=1{after_text}"), &[]).await;
        let head = client.head().await.expect("an answer");
        if head.code != 200 {
            let body = client.body(&head).await;
            return Err(refusal(address, head.code, &serde_json::from_slice(&body).expect("a Status")).await);
        }
        let watching = Some(Watching::over(client, head));
        Ok(Stream { watching, position: after.unwrap_or(0), epoch, is_initial: after.is_none() })
    }

    async fn line(&mut self) -> Option<Value> {
        match self.watching.as_mut()?.line().await {
            Some(line) => Some(serde_json::from_slice(&line).expect("a line of JSON")),
            None => {
                self.watching = None;
                None
            }
        }
    }

    /// Whether neither events nor bookmarks can arrive before the cache changes: at revision 0, and after a start in
    /// the future.
    fn is_before(&self, cache: &Cache) -> bool {
        let now = cache.position();
        let is_none = now.revision == 0 || self.position > now.revision;
        let is_same = [0, now.epoch_number()].contains(&self.epoch);
        self.watching.is_some() && is_none && is_same && !self.is_initial
    }

    /// Whether this bookmark follows everything that the cache has now. The revision alone is not enough, because a
    /// replaced history may have it too.
    fn reaches(&mut self, cache: &Cache, bookmark: &Value) -> bool {
        self.position = whole(bookmark, "revision");
        let now = cache.position();
        [0, now.epoch_number()].contains(&self.epoch) && self.position >= now.revision
    }

    /// Returns the available events as lines of a row. A poll returns at most `most`, and ends with the initial state.
    pub(crate) async fn take(&mut self, cache: &Cache, is_poll: bool, most: usize, full: bool) -> Vec<String> {
        let mut lines = Vec::new();
        while lines.len() < most && !self.is_before(cache) {
            let Some(line) = self.line().await else {
                if lines.is_empty() || !is_poll {
                    lines.push("CLOSED".to_owned());
                }
                break;
            };
            let ends_state = line["initial_state_end"] == true;
            if line["type"] == "BOOKMARK" && !ends_state {
                if self.reaches(cache, &line) {
                    break;
                }
                continue;
            }
            lines.push(self.printed(&line, full));
            if ["ERROR", "LAGGED"].contains(&text(&line, "type")) {
                // A LAGGED is followed by an equivalent ERROR line, then the stream ends.
                while self.line().await.is_some() {}
                break;
            }
            if ends_state && is_poll {
                break;
            }
        }
        lines
    }

    /// The line as a row prints it, and what it says of the stream's position.
    fn printed(&mut self, line: &Value, full: bool) -> String {
        match text(line, "type") {
            "ERROR" => return text(line, "code").to_owned(),
            "RESYNC" if text(line, "phase") == "end" => {
                (self.epoch, self.position) = (whole(line, "epoch"), whole(line, "to"));
            }
            "BOOKMARK" => (self.is_initial, self.position) = (false, whole(line, "revision")),
            _ => {}
        }
        lines::event(line, self.is_initial, full)
    }
}
