//! Revocation: open watches end when their user no longer exists, or may no longer watch.
//!
//! One task rechecks all watches of an [`Api`](crate::Api) once per interval. It starts with the first watch that can
//! be rechecked, and ends with the last. A pass groups the watches by user, and rechecks some users concurrently: a
//! hook that hangs for one user does not delay the others.
//!
//! A watch ends at once if the answer is no. If there is no answer, because a hook hangs, panics or fails, the watch
//! continues until it was not confirmed for [`MAX_MISSED`](super::open::MAX_MISSED) intervals, a minute by default. A request whose hook fails
//! is refused at once; a watch gets the minute, so that a short failure does not end all watches together.

use super::open::{OpenWatch, OpenWatches, Recheck};
use crate::access::{Access, Admission, Peer, User, Verdict};
use crate::clients::ClientId;
use crate::request_record::RequestRecord;
use crate::status::Refusal;
use http::request::Parts;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::{JoinSet, consume_budget};
use tokio::time::sleep;
use watchcore::Error;

/// Number of users that are rechecked concurrently.
const MAX_CONCURRENT: usize = 64;

/// A hook may take the interval divided by this.
const HOOK_SHARE: u32 = 3;

impl OpenWatches {
    /// Admits the watch that a request opens. The request is counted and logged when the watch ends.
    pub(crate) fn open(self: &Arc<Self>, request: &Parts) -> Result<OpenWatch, Refusal> {
        let mut permit = self.admit(&ClientId::of(request), Peer::of(request).map(|peer| &peer.watches))?;
        permit.record = RequestRecord::of(request).cloned();
        if let Some(record) = &permit.record {
            record.mark_watch();
        }
        let Some(Recheck { access, interval }) = self.recheck() else { return Ok(permit) };
        let Some(admission) = Admission::of(request, access).map(Arc::new) else { return Ok(permit) };
        self.recheck_by(permit.number, admission, || {
            tokio::spawn(run(Arc::downgrade(self), access.clone(), *interval)).abort_handle()
        });
        Ok(permit)
    }
}

async fn run(all: Weak<OpenWatches>, access: Arc<Access>, interval: Duration) {
    loop {
        sleep(interval).await;
        let Some(all) = all.upgrade() else { return };
        let Some(watches) = all.watches_to_recheck() else { return };
        pass(&all, &access, watches, interval / HOOK_SHARE).await;
    }
}

/// The watches of one user: their numbers and their admissions.
type WatchesOfUser = (Vec<u64>, Vec<Arc<Admission>>);

async fn pass(all: &Arc<OpenWatches>, access: &Arc<Access>, watches: Vec<(u64, Arc<Admission>)>, time_limit: Duration) {
    let mut users: HashMap<Option<User>, WatchesOfUser> = HashMap::new();
    for (number, admission) in watches {
        let (numbers, admissions) = users.entry(admission.user().cloned()).or_default();
        numbers.push(number);
        admissions.push(admission);
        // Yields now and then, so that other tasks of this thread are not delayed.
        consume_budget().await;
    }
    let (mut reviewing, mut unknown) = (JoinSet::new(), Vec::new());
    for (user, (numbers, admissions)) in users {
        if reviewing.len() >= MAX_CONCURRENT {
            unknown.extend(reviewing.join_next().await.and_then(Result::ok).flatten());
        }
        let (all, access) = (all.clone(), access.clone());
        reviewing.spawn(async move {
            let verdicts = access.review(&admissions, time_limit).await;
            let (mut ended, mut why, mut unknown) = (0, None, None);
            for (number, verdict) in numbers.into_iter().zip(verdicts) {
                if let Verdict::Unknown(error) = &verdict {
                    unknown.get_or_insert_with(|| error.clone());
                }
                if let Some(error) = all.apply_verdict(number, verdict) {
                    ended += 1;
                    why = Some(error);
                }
                consume_budget().await;
            }
            if let Some(why) = &why {
                report(user.as_ref(), ended, why);
            }
            unknown
        });
    }
    // If the runtime shuts down and drops the pass, the set aborts the tasks.
    while let Some(reviewed) = reviewing.join_next().await {
        unknown.extend(reviewed.ok().flatten());
    }
    if let Some(why) = unknown.first() {
        let (users, why) = (unknown.len(), why.message());
        tracing::warn!(target: "watchcore_http", users, why, "whether open watches are still allowed could not be checked");
    }
}

fn report(user: Option<&User>, ended: usize, why: &Error) {
    let (user, why) = (user.map_or("system:anonymous", User::name), why.message());
    tracing::info!(target: "watchcore_http", user, watches = ended, why, "watches are ended: their user may not watch any more");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Authenticator, HookFuture};
    use crate::status::Refusal;
    use crate::watch::open::MAX_MISSED;
    use http::request::Parts;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    const INTERVAL: Duration = Duration::from_secs(15);

    /// Authenticates every request and counts the calls, except for /hangs, where it never answers.
    #[derive(Clone, Default)]
    struct Counting(Arc<AtomicUsize>);

    impl Authenticator for Counting {
        fn authenticate<'a>(&'a self, head: &'a Parts) -> HookFuture<'a, Result<Option<User>, Refusal>> {
            let hangs = head.uri.path() == "/hangs";
            self.0.fetch_add(1, SeqCst);
            Box::pin(async move {
                if hangs {
                    std::future::pending::<()>().await;
                }
                Ok(Some(User::new("alice")))
            })
        }
    }

    fn watches(counting: &Counting) -> Arc<OpenWatches> {
        let access = Access { authenticators: vec![Box::new(counting.clone())], ..Access::default() };
        OpenWatches::rechecked(
            100,
            100,
            Duration::MAX,
            Duration::MAX,
            Recheck { access: Arc::new(access), interval: INTERVAL },
        )
    }

    fn request(path: &str) -> Parts {
        let mut head = http::Request::get(path).body(()).unwrap().into_parts().0;
        head.extensions.insert(User::new("alice"));
        head
    }

    /// The task starts with the first watch and ends after the last, repeatedly.
    #[tokio::test(start_paused = true)]
    async fn nobody_is_asked_about_no_watch() {
        let counting = Counting::default();
        let all = watches(&counting);
        for round in 1..3 {
            let permit = all.open(&request("/")).unwrap();
            sleep(INTERVAL + INTERVAL / 2).await;
            assert_eq!(counting.0.load(SeqCst), round, "once an interval");
            drop(permit);
            sleep(INTERVAL * 10).await;
            assert_eq!(counting.0.load(SeqCst), round, "nobody watches");
        }
    }

    /// A service outlives a runtime that it was used on.
    #[test]
    fn rechecks_go_on_upon_another_runtime() {
        let counting = Counting::default();
        let all = watches(&counting);
        let mut permits = Vec::new();
        for round in 0..2 {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
            runtime.block_on(async {
                permits.push(all.open(&request("/")).unwrap());
                let before = counting.0.load(SeqCst);
                sleep(INTERVAL + INTERVAL / 2).await;
                assert!(counting.0.load(SeqCst) > before, "round {round}");
            });
        }
    }

    /// A hook call that never returns delays no other call, even for the same user, and ends its own watch after a
    /// minute.
    #[tokio::test(start_paused = true)]
    async fn hook_that_hangs_holds_up_nobody() {
        let all = watches(&Counting::default());
        let hangs: Vec<_> = (0..30).map(|_| all.open(&request("/hangs")).unwrap()).collect();
        let others: Vec<_> = (0..50).map(|_| all.open(&request("/")).unwrap()).collect();
        let revoked = |permits: &[crate::watch::OpenWatch]| {
            permits.iter().filter(|permit| permit.revocation().error().is_some()).count()
        };
        sleep(INTERVAL * MAX_MISSED).await;
        assert_eq!(revoked(&hangs), 0, "a minute is forgiven");
        sleep(INTERVAL * 3).await;
        assert_eq!((revoked(&hangs), revoked(&others)), (30, 0));
        assert_eq!(all.revoked(), 30);
    }
}
