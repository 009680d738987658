"""The rows of contract/core over the C ABI, from Python: `python3 contract/python/rows.py [ID...]`.

It shows what a new language costs, and is no package: no promise is made for Python. It needs a C compiler, for the header
is read through its preprocessor, and cffi (`pip install cffi`).
"""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import cffi

import script

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "include/watchcore.h"
BOUND = 60.0

ffi = cffi.FFI()
preprocessed = subprocess.run(
    ["cc", "-E", "-P", "-DWATCHCORE_NO_INLINE", HEADER], capture_output=True, check=True, text=True
).stdout
ffi.cdef(preprocessed[preprocessed.index("typedef struct watchcore_bytes") :])
lib = ffi.dlopen(str(ROOT / "target/watchcore/libwatchcore.so"))
CONSTANT = {name: int(value) for name, value in re.findall(r"#define WATCHCORE_(\w+) (\d+)\n", HEADER.read_text())}


class Refused(Exception):
    """An answer that is no OK."""

    def __init__(self, error):
        self.error = error
        name = ffi.string(lib.watchcore_error_name(error.code)).decode()
        numbers = {
            "COMPACTED": f" asked {error.asked} oldest {error.oldest} current {error.current}",
            "FUTURE_REVISION": f" asked {error.asked} current {error.current}",
            "LAGGED": f" lost {error.lost_from}..{error.lost_to} oldest {error.oldest} current {error.current}",
        }
        super().__init__(name + numbers.get(name, ""))


def call(function, *arguments):
    error = ffi.new("watchcore_error *", {"size": ffi.sizeof("watchcore_error")})
    if function(*arguments, error) != 0:
        raise Refused(error[0])


def answer(function, kind, *arguments):
    """What a function writes into its last parameter."""
    out = ffi.new(f"{kind} *")
    call(function, *arguments, out)
    return out[0]


class Struct:
    """A struct of options, which holds the bytes that it points to."""

    def __init__(self, kind):
        self.held = []
        self.value = ffi.new(f"watchcore_{kind} *", {"size": ffi.sizeof(f"watchcore_{kind}")})

    def set(self, **fields):
        for name, value in fields.items():
            setattr(self.value, name, self.bytes(value) if isinstance(value, bytes) else value)

    def bytes(self, value):
        self.held.append(ffi.from_buffer(value))
        return {"data": self.held[-1], "length": len(value)}


RANGES = {"key": "RANGE_KEY", "prefix": "RANGE_PREFIX", "path": "RANGE_PATH", "from": "RANGE_BETWEEN"}
POLICIES = {"stop": "STOP", "skip": "SKIP_TO_OLDEST", "resnapshot": "RESNAPSHOT", "conflate": "CONFLATE"}
STARTS = {"now": "NOW", "state": "STATE", "after": "AFTER", "state-at-least": "STATE_AT_LEAST"}
STATISTICS = {"current": "revision", "max-lag": "max_lag_events"}
TYPES = ["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "RESYNC", "PUT", "DELETE"]


def name_of(kind, number):
    return ffi.string(lib.watchcore_name(CONSTANT["NAME_" + kind], number)).decode()


def position_of(snapshot):
    """The revision and the epoch of a snapshot."""
    numbers = ffi.new("uint64_t[2]")
    call(lib.watchcore_snapshot_position, snapshot, numbers, numbers + 1)
    return numbers[0], numbers[1]


def milliseconds(word):
    return int(word[:-2]) if word.endswith("ms") else 1000 * int(word[:-1])


def restrict(words, word, options, keys):
    """A range or a filter that begins with this word."""
    if word in RANGES:
        setattr(keys.value, "range" if hasattr(keys.value, "range") else "kind", CONSTANT[RANGES[word]])
        keys.set(**{"from": script.to_bytes(next(words))})
        if word == "from":
            next(words)
            keys.set(to=script.to_bytes(next(words)))
    elif word == "where-labels":
        options.set(labels=next(words).encode())
    elif word == "where-fields":
        options.set(fields=next(words).encode())
    elif word == "none":
        options.value.nothing = 1
    else:
        raise ValueError(f"{word}?")


def types_of(word):
    """Event types as a mask."""
    return sum(2 << TYPES.index(kind) for kind in word.split(","))


class Words:
    """The words of a step that are left."""

    def __init__(self, words):
        self.words = [*words]

    def __iter__(self):
        return self

    def __next__(self):
        if not self.words:
            raise StopIteration
        return self.words.pop(0)

    def position(self, core):
        """A revision, and `in E` where that follows: the lower half of an epoch counts, the upper is the cache's."""
        revision, epoch = int(next(self)), 0
        if self.words[:1] == ["in"]:
            next(self)
            epoch = core.epoch_of(next(self))
        return revision, epoch


class List:
    """Range and options of a read, and how its objects are shown."""

    def __init__(self, words, core=None):
        words = Words(words)
        self.range, self.options, self.full, self.name = Struct("range"), Struct("read_options"), False, None
        self.types = 0
        self.options.value.timeout_ms = int(BOUND * 1000)
        for word in words:
            if word in ("at-least", "exact"):
                mode = "READ_EXACT" if word == "exact" else "READ_AT_LEAST"
                revision, epoch = words.position(core)
                self.options.set(mode=CONSTANT[mode], revision=revision, epoch=epoch)
            elif word == "continue":
                self.options.set(continue_token=next(words).encode())
            elif word == "limit":
                self.options.value.limit = int(next(words))
            elif word == "timeout":
                self.options.value.timeout_ms = milliseconds(next(words))
            elif word == "full":
                self.full = True
            elif word == "as":
                self.name = next(words)
            elif word == "types":
                self.types = types_of(next(words))
            elif word != "any":
                restrict(words, word, self.options, self.range)

    def filter(self):
        """The same for a snapshot or a difference."""
        all = Struct("filter")
        all.value.range, all.held = self.range.value.kind, [self]
        setattr(all.value, "from", getattr(self.range.value, "from"))
        all.value.to = self.range.value.to
        all.value.types = self.types
        for option in ("labels", "fields", "nothing"):
            setattr(all.value, option, getattr(self.options.value, option))
        return all.value


def item(text, change):
    key, _, value = text.partition("=")
    value, _, numbers = value.partition("@")
    change.set(key=script.to_bytes(key), value=script.to_bytes(value))
    if numbers:
        numbers = [int(number) for number in numbers.split(",")]
        created, modified, version, lease = (numbers * 2 if len(numbers) == 1 else numbers + [0])[:2] + (
            [1, 0] if len(numbers) == 1 else (numbers + [0])[2:4]
        )
        change.set(create_revision=created, mod_revision=modified, version=version, lease=lease)
    return CONSTANT["CHANGE_PUT_EXACT" if numbers else "CHANGE_PUT"]


def changes(words):
    held, all = [], ffi.new("watchcore_change[]", len(words))
    for at, word in enumerate(words):
        change = Struct("change")
        if word.startswith("-"):
            change.set(op=CONSTANT["CHANGE_DELETE"], key=script.to_bytes(word[1:]))
        else:
            change.value.op = item(word, change)
        all[at] = change.value[0]
        held.append(change)
    return all, held


def numbers(kv):
    lease = f" lease {kv.lease}" if kv.lease else ""
    return f" create {kv.create_revision} modified {kv.mod_revision} version {kv.version}{lease}"


def object_line(kv, full=False):
    key, value = bytes(ffi.buffer(kv.key, kv.key_length)), bytes(ffi.buffer(kv.value, kv.value_length))
    return f"{script.to_word(key)}={script.to_word(value)}" + (numbers(kv) if full else "")


def event_line(event, full=False):
    line = f"{event.revision} {TYPES[event.type - 1]}"
    if event.type == CONSTANT["EVENT_RESYNC"]:
        phase = "begin" if event.flags & CONSTANT["FLAG_BEGIN"] else "end"
        reason = name_of("RESYNC_REASON", event.resync_reason)
        return f"{line} {phase} {reason.title().replace('_', '')} {event.resync_from}..{event.revision}"
    if event.kv:
        line += " " + script.to_word(ffi.buffer(event.kv.key, event.kv.key_length)[:])
        if event.kv.value:
            line += "=" + script.to_word(ffi.buffer(event.kv.value, event.kv.value_length)[:])
    if event.prev_kv and event.prev_kv.value:
        line += " was " + script.to_word(ffi.buffer(event.prev_kv.value, event.prev_kv.value_length)[:])
    marks = {"INITIAL_STATE": " initial", "INITIAL_STATE_END": " end-of-state", "SYNTHETIC": " synthetic"}
    line += numbers(event.kv) if full and event.kv else ""
    return line + "".join(text for flag, text in marks.items() if event.flags & CONSTANT[f"FLAG_{flag}"])


class Core:
    """What the steps of a case have made."""

    def __init__(self):
        self.made, self.writers, self.subscriptions, self.snapshots, self.lists, self.jobs = None, [], {}, {}, {}, {}

    def close(self):
        for free, all in [
            (lib.watchcore_subscription_free, self.subscriptions.values()),
            (lib.watchcore_snapshot_free, self.snapshots.values()),
            (lib.watchcore_writer_free, self.writers),
            (lib.watchcore_cache_free, [self.made] if self.made else []),
        ]:
            for one in all:
                free(one)

    def cache(self):
        if not self.made:
            self.do_cache(iter([]))
        return self.made

    def writer(self):
        if not self.writers:
            self.do_writer(None)
        return self.writers[0]

    def run(self, words):
        name, rest = words[0], iter(words[1:])
        self.before = []
        try:
            return getattr(self, "do_" + name.replace("-", "_"))(rest) or []
        except Refused as refused:
            self.last = refused.error
            return [*self.before, str(refused)]

    def do_between(self, words):
        low, _, high = next(words).partition("..")
        lines = self.run([*words])
        return [] if len(lines) == 1 and int(low) <= int(lines[0]) <= int(high) else lines

    def do_message(self, words):
        message = ffi.string(self.last.message).decode()
        return [] if all(part in message for part in words) else [message]

    def do_numbers(self, _):
        last = self.last
        lost = f"lost {last.lost_from}..{last.lost_to} position {last.position} in {last.epoch & 0xFFFFFFFF}"
        return [f"asked {last.asked} oldest {last.oldest} current {last.current} {lost}"]

    def do_codes(self, _):
        for code in range(1, 200):
            info = Struct("code_info").value
            call(lib.watchcore_code_describe, code, info)
            name, reason = (ffi.string(text).decode() for text in (info.name, info.reason))
            if name != "UNKNOWN":
                words = [str(code), name, str(info.http_status), *reason.split()]
                words += ["retryable"] * info.retryable + ["fatal"] * info.fatal
                words += [f"after {info.retry_after_ms // 1000}s"] * bool(info.retry_after_ms)
                self.before.append(" ".join(words))
        return self.before

    def do_names(self, words):
        kind = next(words).upper().replace("-", "_")
        names = [(number, name_of(kind, number)) for number in range(200)]
        return [f"{number} {name}" for number, name in names if name != "UNKNOWN"]

    def do_stats(self, words):
        status, stats = Struct("status").value, self.stats()
        call(lib.watchcore_cache_status, self.cache(), status)
        names = [STATISTICS.get(word, word.replace("-", "_")) for word in words]
        return [" ".join(str(getattr(status if hasattr(status, name) else stats, name)) for name in names)]

    def do_subscriptions(self, _):
        list = answer(lib.watchcore_subscription_list_new, "watchcore_subscription_list *", self.cache())
        for at in range(lib.watchcore_subscription_list_count(list)):
            info = Struct("subscription_info").value
            call(lib.watchcore_subscription_list_item, list, at, info)
            name = script.to_word(ffi.buffer(info.name.data, info.name.length)[:]) or "-"
            index = ffi.buffer(info.index.data, info.index.length)[:].decode() if info.index.data else ""
            self.before.append(
                f"{info.id} {name} {name_of('SUBSCRIPTION_STATE', info.state).title().replace('_', '')}"
                f" at {info.revision} behind {info.lag_events} events {info.lag_revisions} revisions,"
                f" {'chain by ' + index if info.read_path else 'scan'}, {'polled' if info.polled else 'never polled'},"
                f" handed out {info.handed_out}, lost {info.lagged}"
            )
        lib.watchcore_subscription_list_free(list)
        return self.before

    def do_token(self, words):
        token = self.lists[next(words)].options.value.continue_token
        return [ffi.buffer(token.data, token.length)[:].decode() if token.length else "none"]

    def do_cache(self, words):
        if self.made:
            self.close()
            self.made, self.writers, self.subscriptions, self.snapshots = None, [], {}, {}
        options, prefix = Struct("cache_options"), b"/"
        fields, indexes = [], []
        for word in words:
            if word == "prefix":
                prefix = script.to_bytes(next(words))
            elif word == "name":
                options.set(name=next(words).encode())
            elif word == "load":
                options.value.expect_load = 1
            elif word == "labels":
                options.set(labels_from=next(words).encode())
            elif word in ("field", "segment"):
                one = Struct("attribute")
                one.set(name=next(words).encode())
                if word == "field":
                    one.set(kind=CONSTANT["ATTRIBUTE_JSON"], pointer=next(words).encode())
                else:
                    one.set(kind=CONSTANT["ATTRIBUTE_KEY_SEGMENT"], depth=int(next(words)))
                fields.append(one)
            elif word == "index":
                kind, one = next(words), Struct("index")
                one.value.kind = CONSTANT["INDEX_" + kind.upper()]
                if kind == "prefix":
                    one.value.depth = int(next(words))
                elif kind != "key":
                    one.set(name=next(words).encode())
                indexes.append(one)
            else:
                names = {"capacity": "capacity", "bytes": "capacity_bytes"}
                names |= {"max-key": "max_key_bytes", "max-value": "max_value_bytes"}
                setattr(options.value, names[word], int(next(words)))
        options.set(prefix=prefix)
        for name, count, all, kind in [
            ("fields", "field_count", fields, "attribute"),
            ("indexes", "index_count", indexes, "index"),
        ]:
            array = ffi.new(f"watchcore_{kind}[]", [one.value[0] for one in all])
            options.held += [array, all]
            options.set(**{name: array, count: len(all)})
        self.made = answer(lib.watchcore_cache_new, "watchcore_cache *", options.value)

    def do_writer(self, _):
        self.writers.append(answer(lib.watchcore_writer_new, "watchcore_writer *", self.cache()))

    def do_apply(self, words):
        revision, (all, _held) = int(next(words)), changes(list(words))
        call(lib.watchcore_writer_apply, self.writer(), revision, all, len(all))

    def do_load(self, words):
        revision, (all, _held) = int(next(words)), changes(list(words))
        call(lib.watchcore_writer_load, self.writer(), revision, all, len(all))

    def do_resync(self, words):
        revision = int(next(words))
        reason = CONSTANT["RESYNC_" + re.sub(r"(?<=.)([A-Z])", r"_\1", next(words)).upper()]
        all, _held = changes(list(words))
        call(lib.watchcore_writer_resync, self.writer(), revision, all, len(all), reason, ffi.NULL, ffi.NULL)

    def do_progress(self, words):
        call(lib.watchcore_writer_progress, self.writer(), int(next(words)))

    def do_compact(self, words):
        call(lib.watchcore_writer_compact, self.writer(), int(next(words)))

    def do_free(self, words):
        name = next(words)
        if name == "writer":
            lib.watchcore_writer_free(self.writers.pop())
        elif name == "cache":
            lib.watchcore_cache_free(self.made)
            self.made = None
        else:
            lib.watchcore_subscription_free(self.subscriptions.pop(name))

    def do_subscribe(self, words):
        name, start, options = next(words), next(words), Struct("subscription_options")
        options.value.start = CONSTANT["START_" + STARTS[start]]
        if start not in ("now", "state"):
            options.value.revision = int(next(words))
        for word in words:
            if word == "in":
                # The lower half counts; the upper is this cache's.
                options.value.epoch = self.epoch_of(next(words))
            elif word == "types":
                options.value.types = types_of(next(words))
            elif word == "name":
                options.set(name=next(words).encode())
            elif word == "raw":
                options.value.raw_types = 1
            elif word == "lag":
                options.value.on_lag = CONSTANT["ON_LAG_" + POLICIES[next(words)]]
            elif word == "max-lag":
                options.value.max_lag_events = int(next(words))
            elif word == "bookmarks":
                options.set(bookmarks=1, bookmark_interval_ms=milliseconds(next(words)))
            elif word == "whole":
                options.value.whole_revisions = 1
            elif word == "stop-on-resync":
                options.value.stop_on_resync = 1
            elif word == "timeout":
                options.value.start_timeout_ms = milliseconds(next(words))
            else:
                restrict(words, word, options, options)
        made = answer(lib.watchcore_subscription_new, "watchcore_subscription *", self.cache(), options.value)
        self.subscriptions[name] = made

    def batch(self, name, *more):
        most = next((int(word) for word in more if word.isdigit()), 1000)
        batch = ffi.new("watchcore_batch *")
        call(lib.watchcore_subscription_poll, self.subscriptions[name], most, batch)
        events = [event_line(lib.watchcore_batch_event(batch, at), "full" in more) for at in range(batch.count)]
        position, continues = batch.position, bool(batch.flags & CONSTANT["BATCH_CONTINUES"])
        lib.watchcore_batch_release(batch)
        return events, position, continues

    def do_poll(self, words):
        events, _, continues = self.batch(*words)
        return events + ["continues"] * continues

    def do_drain(self, words):
        words = [*words]
        while events := self.batch(*words)[0]:
            self.before += events
        return self.before

    def do_batches(self, words):
        words = [*words]
        while (batch := self.batch(*words))[0]:
            events, position, continues = batch
            self.before.append(f"{len(events)} events at {position}" + " continues" * continues)
        return self.before

    def do_wait(self, words):
        name, limit = next(words), milliseconds(next(words, "60s"))
        try:
            call(lib.watchcore_subscription_wait, self.subscriptions[name], limit)
        except Refused as refused:
            if str(refused) != "TIMEOUT":
                raise
            return ["nothing"]
        return ["ready"]

    def position(self, name=None):
        revision, epoch, oldest = ffi.new("uint64_t *"), ffi.new("uint64_t *"), ffi.new("uint64_t *")
        if name:
            call(lib.watchcore_subscription_position, self.subscriptions[name], revision, epoch)
        else:
            call(lib.watchcore_cache_position, self.cache(), revision, epoch, oldest)
        return revision[0], epoch[0], oldest[0]

    def epoch_of(self, word):
        """`2` is of this birth, `7/2` of another."""
        birth, _, of = word.rpartition("/")
        return (int(birth) if birth else self.position()[1] >> 32) << 32 | int(of)

    def do_position(self, words):
        return [str(self.position(next(words))[0])]

    def do_epoch(self, words):
        return [str(self.position(next(words, None))[1] & 0xFFFFFFFF)]

    def do_oldest(self, _):
        return [str(self.position()[2])]

    def do_current(self, _):
        return [str(self.position()[0])]

    def do_lag(self, words):
        lag = Struct("lag").value
        call(lib.watchcore_subscription_lag, self.subscriptions[next(words)], lag)
        return [f"{lag.events} events {lag.revisions} revisions"]

    def do_delivered(self, words):
        statistics = Struct("subscription_statistics").value
        call(lib.watchcore_subscription_stats, self.subscriptions[next(words)], statistics)
        return [str(statistics.delivered_keys)]

    def do_close(self, words):
        name = next(words, None)
        if name:
            call(lib.watchcore_subscription_close, self.subscriptions[name])
        else:
            call(lib.watchcore_cache_close, self.cache())

    def do_ready(self, words):
        call(lib.watchcore_cache_wait_ready, self.cache(), milliseconds(next(words, "60s")))

    def stats(self):
        stats = Struct("stats").value
        call(lib.watchcore_cache_stats, self.cache(), stats)
        return stats

    def do_objects(self, _):
        return [str(self.stats().objects)]

    def do_state(self, _):
        status = Struct("status").value
        call(lib.watchcore_cache_status, self.cache(), status)
        return [name_of("STATE", status.state).title().replace("_", "")]

    def do_get(self, words):
        key, list = script.to_bytes(next(words)), List(words, self)
        found = Struct("answer").value
        call(lib.watchcore_cache_get, self.cache(), key, len(key), list.options.value, found)
        line = object_line(found.kv, list.full) if found.found else "none"
        lib.watchcore_key_value_release(found.kv)
        return [f"{found.revision}: {line}"]

    def many(self, words):
        """Keys between commas as C takes them, what keeps their bytes, and room for their key-values; `-` is no key."""
        word = next(words)
        keys = [ffi.from_buffer(script.to_bytes(key)) for key in ([] if word == "-" else word.split(","))]
        array = ffi.new("watchcore_bytes[]", [{"data": key, "length": len(key)} for key in keys])
        return array, keys, ffi.new("watchcore_key_value *[]", len(keys))

    def many_lines(self, revision, found, full=False):
        lines = [f"at {revision}"] + [object_line(kv, full) if kv else "none" for kv in found]
        lib.watchcore_key_values_release(found, len(found))
        return lines

    def do_get_many(self, words):
        array, keys, found = self.many(words)
        list, numbers = List(words, self), ffi.new("uint64_t[2]")
        call(lib.watchcore_cache_get_many, self.cache(), array, len(keys), list.options.value, found, numbers, numbers + 1)
        return self.many_lines(numbers[0], found, list.full)

    def page(self, list):
        page, token = ffi.new("watchcore_page **"), ffi.new("watchcore_text **")
        try:
            call(lib.watchcore_cache_list, self.cache(), list.range.value, list.options.value, page, token)
            info = Struct("page_info").value
            call(lib.watchcore_page_describe, page[0], info)
            found = info.continue_token
        except Refused:
            found = lib.watchcore_text_get(token[0])
            raise
        finally:
            list.options.set(mode=CONSTANT["READ_ANY"], revision=0, epoch=0, continue_token=bytes(ffi.buffer(found.data, found.length)) if found.data else b"")
            lib.watchcore_text_free(token[0])
        lines = [f"at {info.revision}"]
        lines += [object_line(lib.watchcore_page_item(page[0], at), list.full) for at in range(info.count)]
        lines += [f"more, {info.remaining} remain" if info.remaining else "more"] * info.more
        lib.watchcore_page_free(page[0])
        return lines

    def do_list(self, words):
        list = List(words, self)
        self.lists[list.name] = list
        return self.page(list)

    def do_next(self, words):
        return self.page(self.lists[next(words)])

    def do_count(self, words):
        list, numbers = List(words, self), ffi.new("uint64_t[3]")
        options = list.options.value
        call(lib.watchcore_cache_count, self.cache(), list.range.value, options, numbers, numbers + 1, numbers + 2)
        return [f"{numbers[1]}: {numbers[0]}"]

    def do_diff(self, words):
        words, batch = Words(words), ffi.new("watchcore_batch *")
        ends = *words.position(self), *words.position(self)
        list = List(words)
        call(lib.watchcore_cache_diff, self.cache(), *ends, list.filter(), batch)
        lines = [event_line(lib.watchcore_batch_event(batch, at), list.full) for at in range(batch.count)]
        lib.watchcore_batch_release(batch)
        return lines

    def do_snapshot(self, words):
        made = answer(lib.watchcore_snapshot_new, "watchcore_snapshot *", self.cache())
        self.snapshots[next(words)] = made
        return [f"at {position_of(made)[0]}"]

    def do_in(self, words):
        snapshot, what = self.snapshots[next(words)], next(words)
        revision, epoch = position_of(snapshot)
        if what == "get":
            key, found, kv = script.to_bytes(next(words)), ffi.new("uint32_t *"), ffi.new("watchcore_key_value **")
            call(lib.watchcore_snapshot_get, snapshot, key, len(key), found, kv)
            line = object_line(kv[0]) if found[0] else "none"
            return [f"{revision}: {line}"]
        if what == "get-many":
            array, keys, found = self.many(words)
            call(lib.watchcore_snapshot_get_many, snapshot, array, len(keys), found)
            return self.many_lines(revision, found)
        if what == "epoch":
            return [str(epoch & 0xFFFFFFFF)]
        list = List(words)
        if what == "count":
            return [f"{revision}: {answer(lib.watchcore_snapshot_count, 'uint64_t', snapshot, list.filter())}"]
        iterator = answer(lib.watchcore_iterator_new, "watchcore_iterator *", snapshot, list.filter())
        items, count, lines = ffi.new("watchcore_key_value *[64]"), ffi.new("size_t *", 1), [f"at {revision}"]
        while count[0]:
            call(lib.watchcore_iterator_next, iterator, items, 64, count)
            lines += [object_line(items[at], list.full) for at in range(count[0])]
        lib.watchcore_iterator_free(iterator)
        return lines

    def do_until(self, words):
        reached, revision, timeout = ffi.new("uint64_t[2]"), int(next(words)), int(BOUND * 1000)
        if next(words, None):
            timeout = milliseconds(next(words))
        call(lib.watchcore_cache_wait_until, self.cache(), revision, timeout, reached, reached + 1)
        return [str(reached[0])]

    def do_consistent(self, _):
        return [str(answer(lib.watchcore_cache_consistent_revision, "uint64_t", self.cache(), int(BOUND * 1000)))]

    def do_start(self, words):
        name, step, other, lines = next(words), list(words), Core(), []
        # It shares the cache and the subscriptions, and says by itself what came before a refusal.
        other.made, other.subscriptions = self.cache(), self.subscriptions
        job = threading.Thread(target=lambda: lines.extend(other.run(step)))
        job.start()
        self.jobs[name] = job, lines

    def do_join(self, words):
        job, lines = self.jobs.pop(next(words))
        job.join(2 * BOUND)
        if job.is_alive():
            raise TimeoutError("it hangs")
        return lines

    def do_asleep(self, words):
        count, end = int(next(words)), time.monotonic() + BOUND
        while self.stats().waiting < count:
            if time.monotonic() > end:
                raise TimeoutError("not so many calls sleep")
            time.sleep(0.0001)


def main():
    wanted, passed, failed = sys.argv[1:], 0, 0
    for path in sorted((ROOT / "contract/core").glob("[0-9]*.txt")):
        row = script.Row(path)
        # Python's surface is C's.
        if "c" not in row.faces or (wanted and path.name.split("-")[0] not in wanted):
            continue
        wrong = row.run(Core)
        passed, failed = passed + (not wrong), failed + bool(wrong)
        print(f"{'FAILED' if wrong else 'ok    '} {path.stem}" + (f"\n{wrong}" if wrong else ""))
    print(f"rows: {passed} passed, {failed} failed")
    return failed > 0 or passed == 0


if __name__ == "__main__":
    sys.exit(main())
