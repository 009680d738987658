//! Following a watch: apply its events, keep it alive, notice when it dies.

use super::assemble::{Assembler, revisions};
use super::config::{Config, Options};
use super::connect::{Header, Reader, dial, within};
use super::counters::{add, highest, one};
use super::failure::{Class, Failure};
use super::feed::{End, Feed, refused};
use super::integrity::{self, Live, is_delete};
use super::list::record;
use super::range::KeyRange;
use super::resume::Order;
use crate::data::event::ResyncReason;
use crate::error::Code;
use crate::writer::{Change, Writer};
use etcd_client::proto::{PbEvent, PbWatchResponse};
use etcd_client::{Client, WatchOptions, WatchStream};
use std::pin::Pin;
use std::time::Duration;
use tokio::time::Instant;

/// How often progress is asked for while somebody waits for a revision.
const IMPATIENT: Duration = Duration::from_millis(100);
/// No shorter silence is taken for a dead server.
const SHORTEST_SILENCE: Duration = Duration::from_secs(1);
/// While catching up the server may be busy cutting and sending.
const CATCHING_UP_SILENCE: Duration = Duration::from_secs(30);
const LONGEST_SILENCE: Duration = Duration::from_secs(600);
/// So many revisions behind the store's newest, the watch is catching up.
const CATCHING_UP: u64 = 1000;

/// An open watch, with the connection that carries it.
pub(super) struct Watch {
    stream: WatchStream,
    from: u64,
    _client: Client,
}

/// What is known of a running watch.
struct Pulse {
    created: bool,
    /// When the last message was done with.
    heard: Instant,
    /// When progress was last asked for.
    asked: Instant,
    /// The newest revision of the store that the stream spoke of.
    newest: u64,
    /// The highest revision that somebody waits for.
    wanted: u64,
    assembler: Assembler,
}

/// A linearizable read under way.
type Sign<'a> = Pin<Box<dyn Future<Output = Result<Header, Failure>> + 'a>>;

/// A question for the revision that etcd is compacted at, under way.
type Question<'a> = Pin<Box<dyn Future<Output = Option<u64>> + 'a>>;

/// The revision that etcd is compacted at, where `at` lies before it: only a watch tells.
pub(super) async fn compacted_at(config: &Config, url: &str, at: u64) -> Option<u64> {
    let options = &config.options;
    let client = dial(options, url).await.ok()?;
    let KeyRange { start, end } = config.range.clone();
    let request = WatchOptions::new().with_range(end).with_start_revision(at as i64);
    let mut watcher = client.watch_client();
    let mut stream = within("the watch", options.request_timeout, watcher.watch(start, Some(request))).await.ok()?;
    loop {
        let message = within("the watch", options.request_timeout, stream.message()).await.ok()??;
        if message.compact_revision() > 0 {
            return Some(message.compact_revision() as u64);
        }
        if !message.created() || message.canceled() {
            return None;
        }
    }
}

impl Feed<'_> {
    /// Opens the watch on its own connection, behind the last event applied.
    pub(super) async fn open(&mut self, url: &str) -> Result<Watch, Failure> {
        let options = &self.config.options;
        let resume = self.resume.as_ref().expect("a session lists before it watches");
        let from = resume.watch_from();
        let client = dial(options, url).await?;
        let mut request = WatchOptions::new()
            .with_range(self.config.range.end.clone())
            .with_start_revision(from as i64)
            .with_progress_notify();
        if self.fragment {
            request = request.with_fragment();
        }
        let mut watcher = client.watch_client().max_decoding_message_size(self.message_limit);
        let call = watcher.watch(self.config.range.start.clone(), Some(request));
        let stream = within("the watch", options.request_timeout, call).await?;
        tracing::debug!(endpoint = url, from, fragment = self.fragment, "watch asked for");
        Ok(Watch { stream, from, _client: client })
    }

    /// Follows the watch until it fails or the feeder has to do something else.
    pub(super) async fn follow(&mut self, reader: &Reader, mut watch: Watch) -> Result<End, Failure> {
        let now = Instant::now();
        let mut pulse =
            Pulse { created: false, heard: now, asked: now, newest: 0, wanted: 0, assembler: Assembler::default() };
        self.look_at_demand(&mut pulse);
        // Under way while the stream cannot give a sign of life.
        let mut sign: Option<Sign<'_>> = None;
        let config = self.config;
        let range = &config.range;
        let mut question: Option<Question<'_>> = None;
        let mut questioned = Instant::now();
        loop {
            let timer = self.next_timer(&pulse);
            let every = config.options.follow_compaction;
            let ask_at = questioned + every.unwrap_or(LONGEST_SILENCE).min(LONGEST_SILENCE);
            tokio::select! {
                biased;
                message = watch.stream.message() => {
                    let response = match message {
                        Ok(Some(response)) => response.0,
                        Ok(None) => return Err(Failure::new(Class::Retry, "etcd ended the watch")),
                        Err(error) => {
                            let failure = Failure::of(&error);
                            let Class::TooLarge(length) = failure.class else { return Err(failure) };
                            self.lengthen(length, failure)?;
                            return Ok(End::Reopen);
                        }
                    };
                    if let Some(end) = self.take(reader, &mut pulse, watch.from, response).await? {
                        return Ok(end);
                    }
                    pulse.heard = Instant::now();
                    // The stream may always have more; others live in this thread too.
                    tokio::task::yield_now().await;
                }
                () = self.shared.watch.notified() => self.look_at_demand(&mut pulse),
                answer = async { sign.as_mut().expect("is some").await }, if sign.is_some() => {
                    sign = None;
                    // Where it fails, the silence goes on.
                    if let Ok(header) = answer {
                        if header.revision < self.point() {
                            return Ok(End::Resync(ResyncReason::HistoryReset));
                        }
                        pulse.newest = pulse.newest.max(header.revision);
                        pulse.heard = Instant::now();
                    }
                }
                kept = async { question.as_mut().expect("is some").await }, if question.is_some() => {
                    (question, questioned) = (None, Instant::now());
                    if let Some(kept) = kept {
                        let mut writer = self.writer.borrow_mut();
                        let kept = kept.min(writer.position().revision);
                        tracing::debug!(kept, "etcd is compacted: forgetting what lies before");
                        writer.compact(kept).map_err(|error| refused(&error))?;
                    }
                }
                () = tokio::time::sleep_until(ask_at), if every.is_some() && question.is_none() => {
                    let oldest = self.writer.borrow().oldest();
                    if oldest > 1 {
                        let url = self.url().to_owned();
                        question = Some(Box::pin(async move { compacted_at(config, &url, oldest - 1).await }));
                    } else {
                        questioned = Instant::now();
                    }
                }
                () = tokio::time::sleep_until(timer) => {
                    self.on_timer(&mut pulse, &mut watch).await?;
                    if sign.is_none() && self.is_mute(&pulse, watch.from) {
                        sign = Some(Box::pin(reader.newest(range)));
                    }
                }
            }
            if self.shared.take_resync() {
                return Ok(End::Resync(ResyncReason::Requested));
            }
        }
    }

    fn point(&self) -> u64 {
        self.resume.as_ref().map_or(0, |resume| resume.point())
    }

    /// Reads what is waited for; a new wait is asked for at once.
    fn look_at_demand(&self, pulse: &mut Pulse) {
        let wanted = self.writer.borrow().demand().progress_until;
        if wanted > pulse.wanted && wanted > self.point() {
            pulse.asked = pulse.asked.checked_sub(IMPATIENT).unwrap_or(pulse.asked);
        }
        pulse.wanted = wanted;
    }

    fn silence_limit(&self, pulse: &Pulse) -> Option<Duration> {
        if !pulse.created {
            return Some(self.config.options.request_timeout);
        }
        let catching_up = pulse.assembler.is_open() || pulse.newest > self.point() + CATCHING_UP;
        silence_limit(&self.config.options, catching_up, self.silences)
    }

    /// etcd answers no request for progress before its newest revision has reached the watch's first:
    /// then a read has to show that it lives.
    fn is_mute(&self, pulse: &Pulse, from: u64) -> bool {
        let options = &self.config.options;
        let idle = pulse.heard.elapsed() >= options.progress_interval;
        pulse.created && options.progress_requests && pulse.newest < from && idle
    }

    fn is_waited_for(&self, pulse: &Pulse) -> bool {
        pulse.wanted > self.point()
    }

    /// When progress is to be asked for next, if at all.
    fn next_request(&self, pulse: &Pulse) -> Option<Instant> {
        if !pulse.created {
            return None;
        }
        if self.is_waited_for(pulse) {
            return Some(pulse.asked + IMPATIENT);
        }
        let options = &self.config.options;
        options.progress_requests.then(|| pulse.heard.max(pulse.asked) + options.progress_interval)
    }

    fn next_timer(&self, pulse: &Pulse) -> Instant {
        let silence = self.silence_limit(pulse).map(|limit| pulse.heard + limit);
        let far = || Instant::now() + LONGEST_SILENCE;
        silence.into_iter().chain(self.next_request(pulse)).min().unwrap_or_else(far)
    }

    async fn on_timer(&mut self, pulse: &mut Pulse, watch: &mut Watch) -> Result<(), Failure> {
        let now = Instant::now();
        if let Some(limit) = self.silence_limit(pulse).filter(|limit| pulse.heard + *limit <= now) {
            one(&self.shared.counts.silences);
            self.silences = self.silences.saturating_add(1);
            return Err(Failure::timeout("the watch", limit.as_secs_f64()));
        }
        if self.next_request(pulse).is_some_and(|at| at <= now) {
            pulse.asked = now;
            self.look_at_demand(pulse);
            one(&self.shared.counts.progress_requests);
            // A stalled connection may have no room for it: then the silence says so.
            let sent = tokio::time::timeout(Duration::from_millis(1), watch.stream.request_progress()).await;
            if let Ok(Err(error)) = sent {
                return Err(Failure::of(&error));
            }
        }
        Ok(())
    }

    /// Takes one message.
    async fn take(
        &mut self,
        reader: &Reader,
        pulse: &mut Pulse,
        from: u64,
        response: PbWatchResponse,
    ) -> Result<Option<End>, Failure> {
        one(&self.shared.counts.responses);
        // A refusal is marked as created too, so this goes first.
        if response.canceled {
            let failure = Failure::of_cancel(response.compact_revision, &response.cancel_reason);
            return match failure.class {
                Class::Compacted(_) => Ok(Some(End::Resync(ResyncReason::Compacted))),
                _ => Err(failure),
            };
        }
        let header = response.header.as_ref().map_or_else(Header::default, |header| Header {
            revision: header.revision.max(0) as u64,
            cluster: header.cluster_id,
            member: header.member_id,
        });
        pulse.newest = pulse.newest.max(header.revision);
        self.newest_seen = self.newest_seen.max(header.revision);
        self.report_now_and_then();
        if response.created {
            pulse.created = true;
            if header.revision + 1 < from && self.went_back(reader).await? {
                return Ok(Some(End::Resync(ResyncReason::HistoryReset)));
            }
            pulse.newest = pulse.newest.max(self.newest_seen);
            self.live();
        }
        if response.fragment {
            one(&self.shared.counts.fragments);
        }
        if !response.events.is_empty() || response.fragment || pulse.assembler.is_open() {
            highest(&self.shared.counts.max_events_queued, response.events.len() as u64);
            let events = pulse.assembler.push(response.events, response.fragment);
            return self.apply(events).await;
        }
        if !response.created && header.revision > 0 {
            return self.progress(reader, header.revision).await;
        }
        Ok(None)
    }

    /// A progress notification: everything up to `revision` was delivered.
    async fn progress(&mut self, reader: &Reader, revision: u64) -> Result<Option<End>, Failure> {
        one(&self.shared.counts.progress_notifications);
        let resume = self.resume.as_mut().expect("a watch follows a listing");
        let before = resume.point();
        if !resume.progressed(revision) {
            let back = self.went_back(reader).await?;
            return Ok(back.then_some(End::Resync(ResyncReason::HistoryReset)));
        }
        if revision > before {
            self.writer.borrow_mut().progress(revision).map_err(|error| refused(&error))?;
        }
        self.progressed();
        Ok(None)
    }

    /// A member may lag behind what was applied; the whole cluster may not.
    async fn went_back(&mut self, reader: &Reader) -> Result<bool, Failure> {
        let newest = reader.newest(&self.config.range).await?.revision;
        let point = self.point();
        if newest < point {
            tracing::warn!(applied = point, newest, "etcd's revision went back: another history");
        }
        Ok(newest < point)
    }

    /// Applies events, one revision after the other.
    async fn apply(&mut self, mut events: Vec<PbEvent>) -> Result<Option<End>, Failure> {
        let mut before = (0, 0, 0);
        for (revision, run) in revisions(&events) {
            let resume = self.resume.as_ref().expect("a watch follows a listing");
            match resume.order(revision) {
                Order::Next => {}
                Order::BelowProgress => {
                    let complete = resume.point();
                    tracing::warn!(revision, complete, "an event below what etcd called complete: another history");
                    return Ok(Some(End::Resync(ResyncReason::HistoryReset)));
                }
                Order::Repeated => {
                    one(&self.shared.counts.integrity_violations);
                    tracing::error!(revision, applied = resume.firm(), "integrity: the revision does not rise");
                    return Ok(Some(End::Resync(ResyncReason::ChainBroken)));
                }
            }
            if resume.replays() {
                self.keep_pace().await;
            }
            let mut writer = self.writer.borrow_mut();
            for event in run {
                let held = event.kv.as_ref().and_then(|kv| live(&writer, &kv.key));
                if let Err(violation) = integrity::check(event, held) {
                    one(&self.shared.counts.integrity_violations);
                    tracing::error!("integrity: {violation}; listing again");
                    return Ok(Some(End::Resync(ResyncReason::ChainBroken)));
                }
                before = held.map_or((0, 0, 0), |held| (held.create, held.modified, held.version));
            }
            // Before they show: who sees them finds them counted.
            let counts = &self.shared.counts;
            one(&counts.revisions);
            add(&counts.events, run.len() as u64);
            add(
                &counts.bytes,
                run.iter().filter_map(|event| event.kv.as_ref()).map(|kv| kv.key.len() + kv.value.len()).sum::<usize>()
                    as u64,
            );
            highest(&counts.max_revision_events, run.len() as u64);
            if let Err(error) = writer.apply(revision, run.iter().filter_map(change)) {
                if error.code() == Code::OutOfOrder {
                    one(&self.shared.counts.integrity_violations);
                    tracing::error!(revision, "integrity: {error}; listing again");
                    return Ok(Some(End::Resync(ResyncReason::ChainBroken)));
                }
                return Err(refused(&error));
            }
            drop(writer);
            if let Some(resume) = &mut self.resume {
                resume.applied(revision);
            }
        }
        if let (Some(last), Some(resume)) = (events.pop(), &mut self.resume) {
            resume.proved_by(last, before);
            self.progressed();
        }
        Ok(None)
    }

    /// Waits while the subscription that sets the pace is half a window behind.
    async fn keep_pace(&self) {
        let Some(pace) = &self.config.pace else { return };
        while !pace.may_go_on() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// How long an open watch may be silent, after so many silences in a row. Without requests only
/// keep-alive tells.
fn silence_limit(options: &Options, catching_up: bool, silences: u32) -> Option<Duration> {
    if !options.progress_requests {
        return None;
    }
    let limit = (options.progress_interval * 3).max(SHORTEST_SILENCE);
    if !catching_up {
        return Some(limit);
    }
    // Wider each time: a server that needs longer would be left for ever.
    let widened = CATCHING_UP_SILENCE.max(limit) * 2u32.pow(silences.min(8));
    Some(widened.min(LONGEST_SILENCE))
}

fn live(writer: &Writer, key: &[u8]) -> Option<Live> {
    writer.get(key).map(|kv| Live { create: kv.create_revision(), modified: kv.mod_revision(), version: kv.version() })
}

fn change(event: &PbEvent) -> Option<Change<'_>> {
    let kv = event.kv.as_ref()?;
    Some(match is_delete(event)? {
        true => Change::delete(&kv.key),
        false => Change::put_exact(record(kv)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::Feeder;

    fn limit(interval: u64, catching_up: bool, silences: u32) -> Option<u64> {
        let options = Options::for_tests(Feeder::new(["a"]).progress_interval(Duration::from_millis(interval)));
        silence_limit(&options, catching_up, silences).map(|limit| limit.as_millis() as u64)
    }

    #[test]
    fn three_silent_periods_are_the_limit() {
        assert_eq!(limit(1000, false, 0), Some(3000));
        assert_eq!(limit(1000, false, 5), Some(3000), "silences widen nothing once it is up to date");
        assert_eq!(limit(10, false, 0), Some(1000), "no shorter one is taken for a dead server");
    }

    #[test]
    fn the_limit_widens_while_catching_up() {
        let widened: Vec<_> = (0..7).map(|silences| limit(1000, true, silences).unwrap() / 1000).collect();
        assert_eq!(widened, [30, 60, 120, 240, 480, 600, 600]);
        assert_eq!(limit(60_000, true, 0), Some(180_000));
        assert_eq!(limit(1000, true, u32::MAX), Some(600_000));
    }

    #[test]
    fn without_requests_silence_says_nothing() {
        let options = Options::for_tests(Feeder::new(["a"]).progress_requests(false));
        assert_eq!((silence_limit(&options, false, 0), silence_limit(&options, true, 9)), (None, None));
    }
}
