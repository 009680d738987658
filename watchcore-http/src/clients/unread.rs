//! Bytes of answers that were produced, and that their clients have not yet taken.
//!
//! The body of an answer produces bytes when the transport has room. From then on, until the socket has taken them, the
//! bytes count: for the answer, for its client, and for the process. A client that has used three quarters of its
//! budget is refused new answers. Answers that have begun may use the rest; beyond it, the client's answer that has
//! made no progress for longest is cut off. When the budget of the process is used up, the client that holds most loses
//! an answer; a new answer of a client that holds less than half of that causes this too. So the counted bytes never
//! stay above the budgets, and a client that reads is served.
//!
//! An event to ten thousand watchers is counted ten thousand times, so small amounts stay with their answer: an answer
//! reports to the budgets in steps of [`GRAIN`].
//!
//! | atomic | written by | read by | order |
//! | --- | --- | --- | --- |
//! | `UnreadAnswer::held` | the thread that produces or drops bytes | the same threads | Relaxed: a count; decisions read it again under `UnreadAnswer::reported` |
//! | `Account::held`, `Unread::held` | reports | admission, reports | Relaxed: counts that publish no other memory |
//! | `UnreadAnswer::last_report`, `Unread::report_count` | reports | the search for the answer without progress | Relaxed: an order between answers that need not be exact |

use super::ClientId;
use crate::status::Refusal;
use bytes::{Buf, Bytes};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// An answer reports to the budgets in steps of this many bytes.
const GRAIN: usize = 4 << 10;

/// Above this, no new answer begins: the rest of a budget is for answers that have begun.
fn admission_limit(limit: usize) -> usize {
    limit / 4 * 3
}

/// The budgets of a service, and the bytes that count against them.
pub(crate) struct Unread {
    limit: usize,
    limit_of_client: usize,
    held: AtomicUsize,
    report_count: AtomicU64,
    cut: AtomicU64,
    accounts: Mutex<HashMap<ClientId, Weak<Account>>>,
}

/// The counted bytes of one client. The account lives as long as one of its answers.
pub(crate) struct Account {
    unread: Arc<Unread>,
    client: ClientId,
    held: AtomicUsize,
    answers: Mutex<HashMap<u64, Weak<UnreadAnswer>>>,
}

/// An answer, and how many of its bytes its client has not taken.
pub(crate) struct UnreadAnswer {
    account: Arc<Account>,
    number: u64,
    held: AtomicUsize,
    /// The part of `held` that is reported to the budgets; `None`: the answer was cut off, and no longer counts.
    reported: Mutex<Option<usize>>,
    /// The order of its last report, from `Unread::report_count`.
    last_report: AtomicU64,
    /// The connection or stream that holds the bytes, and is notified of each change.
    holder: Box<dyn Holder>,
}

/// The connection or stream that holds the bytes of an answer.
pub(crate) trait Holder: Send + Sync {
    /// This many bytes were added.
    fn added(&self, bytes: usize);
    /// This many bytes were removed.
    fn removed(&self, bytes: usize);
    /// All bytes must be dropped at once.
    fn cut(&self);
}

impl Unread {
    /// Creates the budgets in bytes: of all clients together, and of each.
    pub(crate) fn new(limit: usize, limit_of_client: usize) -> Arc<Unread> {
        Arc::new(Unread {
            limit,
            limit_of_client,
            held: AtomicUsize::new(0),
            report_count: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            accounts: Mutex::default(),
        })
    }

    /// Returns the account of a client that sends a request.
    ///
    /// # Errors
    /// 429 if the client, or all clients together, are above three quarters of their budget.
    pub(crate) fn admit(self: &Arc<Self>, client: &ClientId) -> Result<Arc<Account>, Refusal> {
        let account = self.account(client);
        let refused = |held: usize, limit: usize, whose: &str| {
            let message = format!(
                "{whose} has {held} bytes of answers that were not read yet, and may have {limit}: read them, or try again later"
            );
            Err(Refusal::too_many(message, 1))
        };
        let held = account.held.load(Relaxed);
        if held >= admission_limit(self.limit_of_client) {
            return refused(held, self.limit_of_client, &client.to_string());
        }
        loop {
            let held = self.held.load(Relaxed);
            if held < admission_limit(self.limit) {
                return Ok(account);
            }
            // The client that holds most gives way to one that holds less than half of that.
            let has_more = |other: &Arc<Account>| other.held.load(Relaxed) / 2 > account.held.load(Relaxed);
            if !self.largest_account().filter(has_more).is_some_and(|other| other.cut_stalest()) {
                return refused(held, self.limit, "this server");
            }
        }
    }

    /// Returns the account of a client, without checking its budget.
    pub(crate) fn account(self: &Arc<Self>, client: &ClientId) -> Arc<Account> {
        let mut accounts = self.lock();
        if let Some(account) = accounts.get(client).and_then(Weak::upgrade) {
            return account;
        }
        let account = Arc::new(Account {
            unread: self.clone(),
            client: client.clone(),
            held: AtomicUsize::new(0),
            answers: Mutex::default(),
        });
        accounts.insert(client.clone(), Arc::downgrade(&account));
        account
    }

    /// Returns the number of counted bytes.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Returns how many answers were cut off.
    pub(crate) fn cut(&self) -> u64 {
        self.cut.load(Relaxed)
    }

    /// Returns the client that holds most.
    fn largest_account(&self) -> Option<Arc<Account>> {
        // Upgraded under the lock, but dropped after it: dropping the last reference of an account takes the lock.
        let accounts: Vec<_> = self.lock().values().filter_map(Weak::upgrade).collect();
        accounts.into_iter().max_by_key(|account| account.held.load(Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClientId, Weak<Account>>> {
        // A panic cannot leave half a change: no code below this lock panics between two related writes.
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Account {
    /// Begins an answer to this client.
    pub(crate) fn answer(self: &Arc<Self>, holder: Box<dyn Holder>) -> Arc<UnreadAnswer> {
        let number = self.unread.report_count.fetch_add(1, Relaxed);
        let answered = Arc::new(UnreadAnswer {
            account: self.clone(),
            number,
            held: AtomicUsize::new(0),
            reported: Mutex::new(Some(0)),
            last_report: AtomicU64::new(number),
            holder,
        });
        self.lock().insert(number, Arc::downgrade(&answered));
        answered
    }

    /// Cuts off the answer without progress for longest; `false` if no answer has counted bytes.
    fn cut_stalest(&self) -> bool {
        let answers: Vec<_> = self.lock().values().filter_map(Weak::upgrade).collect();
        let counts = |answer: &&Arc<UnreadAnswer>| answer.reported().is_some_and(|reported| reported > 0);
        let Some(still) = answers.iter().filter(counts).min_by_key(|answer| answer.last_report.load(Relaxed)) else {
            return false;
        };
        still.cut();
        true
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Weak<UnreadAnswer>>> {
        // A panic cannot leave half a change: no code below this lock panics between two related writes.
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut accounts = self.unread.lock();
        // A new account of the same client may have replaced this one since its last reference was dropped.
        if accounts.get(&self.client).is_some_and(|account| account.strong_count() == 0) {
            accounts.remove(&self.client);
        }
    }
}

impl UnreadAnswer {
    /// Counts newly produced bytes.
    pub(crate) fn produced(self: &Arc<Self>, bytes: usize) -> ProducedBytes {
        self.add(bytes);
        ProducedBytes { answered: self.clone(), left: bytes }
    }

    fn add(&self, bytes: usize) {
        self.holder.added(bytes);
        let held = self.held.fetch_add(bytes, Relaxed) + bytes;
        // A smaller answer does not touch the shared budgets, which may lag by up to one grain per answer.
        if held >= GRAIN {
            self.report();
        }
    }

    fn sub(&self, bytes: usize) {
        self.holder.removed(bytes);
        let before = self.held.fetch_sub(bytes, Relaxed);
        if before >= GRAIN {
            self.report();
        }
    }

    /// Reports a change of at least one grain, or the fall below one grain, to the budgets; then enforces them.
    fn report(&self) {
        let (account, unread) = (&self.account, &self.account.unread);
        {
            let mut guard = self.reported();
            let Some(reported) = guard.as_mut() else { return };
            // Less than one grain counts as nothing, so the report on falling below it is the last one.
            let held = Some(self.held.load(Relaxed)).filter(|held| *held >= GRAIN).unwrap_or(0);
            if held.abs_diff(*reported) < GRAIN && held > 0 {
                return;
            }
            // Wrapping arithmetic: a difference may be negative, and the sums are exact modulo 2^64.
            let more = held.wrapping_sub(*reported);
            *reported = held;
            account.held.fetch_add(more, Relaxed);
            unread.held.fetch_add(more, Relaxed);
            self.last_report.store(unread.report_count.fetch_add(1, Relaxed), Relaxed);
        }
        while account.held.load(Relaxed) > unread.limit_of_client && account.cut_stalest() {}
        while unread.held.load(Relaxed) > unread.limit
            && unread.largest_account().is_some_and(|account| account.cut_stalest())
        {}
    }

    /// Cuts the answer off: its bytes no longer count, and are about to be freed.
    fn cut(&self) {
        let reported = self.reported().take();
        self.release(reported);
        if reported.is_some() {
            self.account.unread.cut.fetch_add(1, Relaxed);
            let (client, held) = (&self.account.client, self.held.load(Relaxed));
            tracing::info!(target: "watchcore_http", who = %client, held, "an answer is cut off: its client does not read, and the budget of unread bytes is used up");
            self.holder.cut();
        }
    }

    fn release(&self, reported: Option<usize>) {
        let reported = reported.unwrap_or(0);
        self.account.held.fetch_sub(reported, Relaxed);
        self.account.unread.held.fetch_sub(reported, Relaxed);
    }

    fn reported(&self) -> MutexGuard<'_, Option<usize>> {
        // A panic cannot leave half a change: no code below this lock panics between two related writes.
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnreadAnswer {
    fn drop(&mut self) {
        let reported = self.reported().take();
        self.release(reported);
        self.account.lock().remove(&self.number);
    }
}

/// Bytes of an answer that were produced, and not handed to the transport; they stop counting when this is dropped.
pub(crate) struct ProducedBytes {
    answered: Arc<UnreadAnswer>,
    left: usize,
}

impl ProducedBytes {
    /// Counts more produced bytes.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.left += bytes;
        self.answered.add(bytes);
    }

    /// Moves bytes on to the transport; they keep counting.
    pub(crate) fn hand_out(&mut self, bytes: Bytes) -> UnreadBytes {
        self.left -= bytes.len();
        UnreadBytes { bytes, answered: self.answered.clone() }
    }
}

impl Drop for ProducedBytes {
    fn drop(&mut self) {
        if self.left > 0 {
            self.answered.sub(self.left);
        }
    }
}

/// Bytes of an answer on their way to the socket. They count until the socket takes them, or they are dropped.
pub(crate) struct UnreadBytes {
    bytes: Bytes,
    answered: Arc<UnreadAnswer>,
}

impl Buf for UnreadBytes {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.answered.sub(count);
    }
}

impl Drop for UnreadBytes {
    fn drop(&mut self) {
        if !self.bytes.is_empty() {
            self.answered.sub(self.bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// Records that the answer was cut off.
    #[derive(Default)]
    struct Flag(Arc<AtomicBool>);

    impl Holder for Flag {
        fn added(&self, _: usize) {}
        fn removed(&self, _: usize) {}
        fn cut(&self) {
            self.0.store(true, Relaxed);
        }
    }

    fn user(name: &str) -> ClientId {
        ClientId::User(name.into())
    }

    /// Begins an answer with this many bytes; the flag says whether it was cut off.
    fn answer(unread: &Arc<Unread>, name: &str, bytes: usize) -> (ProducedBytes, Arc<AtomicBool>) {
        let flag = Arc::new(AtomicBool::new(false));
        let answered = unread.account(&user(name)).answer(Box::new(Flag(flag.clone())));
        (answered.produced(bytes), flag)
    }

    fn hand_out(made: &mut ProducedBytes, bytes: usize) -> UnreadBytes {
        made.hand_out(Bytes::from(vec![0; bytes]))
    }

    #[test]
    fn bytes_count_until_they_are_taken() {
        let unread = Unread::new(1 << 20, 1 << 20);
        let (mut made, _) = answer(&unread, "alice", 100_000);
        assert_eq!(unread.held(), 100_000);
        let mut bytes = hand_out(&mut made, 60_000);
        assert_eq!(unread.held(), 100_000, "handed out is not taken");
        bytes.advance(50_000);
        assert_eq!(unread.held(), 50_000);
        drop(bytes);
        assert_eq!(unread.held(), 40_000, "nor is what was dropped held");
        made.add(10_000);
        let more = hand_out(&mut made, 50_000);
        assert_eq!(unread.held(), 50_000);
        drop((made, more));
        assert_eq!((unread.held(), unread.lock().len()), (0, 0));
    }

    #[test]
    fn small_answers_ask_nothing_of_the_budget() {
        let unread = Unread::new(1 << 20, 1 << 20);
        let (mut made, _) = answer(&unread, "alice", 0);
        let before = unread.report_count.load(Relaxed);
        for _ in 0..1000 {
            made.add(8);
            drop(hand_out(&mut made, 8));
        }
        assert_eq!((unread.held(), unread.report_count.load(Relaxed)), (0, before));
    }

    #[test]
    fn client_beyond_its_budget_loses_what_stands_still() {
        let unread = Unread::new(100 << 20, 1 << 20);
        let (_bystander, untouched) = answer(&unread, "alice", 500_000);
        let answers: Vec<_> = (0..100).map(|_| answer(&unread, "mallory", 100_000)).collect();
        let cut: Vec<bool> = answers.iter().map(|(_, cut)| cut.load(Relaxed)).collect();
        assert!(cut[..90].iter().all(|cut| *cut) && cut[90..].iter().all(|cut| !cut), "the oldest go: {cut:?}");
        assert!(!untouched.load(Relaxed));
        assert_eq!((unread.held(), unread.cut()), (1_500_000, 90));
        assert_eq!(unread.admit(&user("mallory")).err().map(|refusal| refusal.code()), Some(429));
        assert!(unread.admit(&user("alice")).is_ok());
        drop(answers);
        assert!(unread.admit(&user("mallory")).is_ok());
    }

    #[test]
    fn process_beyond_its_budget_takes_from_who_has_most() {
        let unread = Unread::new(1 << 20, 1 << 20);
        let (_small, small) = answer(&unread, "alice", 10_000);
        let (_large, large) = answer(&unread, "mallory", 800_000);
        let (_next, next) = answer(&unread, "bob", 500_000);
        let cut = [&small, &large, &next].map(|cut| cut.load(Relaxed));
        assert_eq!((cut, unread.held()), ([false, true, false], 510_000));
    }

    #[test]
    fn who_has_most_makes_room_for_who_has_little() {
        let unread = Unread::new(1 << 20, 1 << 20);
        let answers: Vec<_> =
            (0..20).map(|number| answer(&unread, &format!("mallory {}", number % 4), 40_000)).collect();
        let (_own, _) = answer(&unread, "alice", 10_000);
        assert!(unread.admit(&user("alice")).is_ok());
        assert!(unread.held() < admission_limit(1 << 20) && unread.cut() == 1, "{} bytes", unread.held());
        drop(answers);
        let (_all, _) = answer(&unread, "bob", 800_000);
        assert!(unread.admit(&user("alice")).is_ok());
        let (_all, _) = answer(&unread, "alice", 790_000);
        assert_eq!(unread.admit(&user("alice")).err().map(|refusal| refusal.code()), Some(429), "nobody has more");
    }

    /// An answer that was read a moment ago has made progress, and is not cut off.
    #[test]
    fn answer_that_moves_stays() {
        let unread = Unread::new(1 << 20, 1 << 20);
        let (mut moving, moved) = answer(&unread, "mallory", 500_000);
        let (_still, still) = answer(&unread, "mallory", 500_000);
        drop(hand_out(&mut moving, 10_000));
        let (_more, _) = answer(&unread, "mallory", 100_000);
        assert_eq!((moved.load(Relaxed), still.load(Relaxed)), (false, true));
    }
}
