/* Many members behind one descriptor, and waiters that never block: a loop that sleeps on the descriptor, asks for the next
   member until there is none and polls each once misses nothing, whatever else is done to a member. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "wakeset.h"

static void test_only_what_is_ready_is_named(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription *a = below(cache, "/a/"), *b = below(cache, "/b/");
    watchcore_wakeset *set = NULL;
    watchcore_change two[2];
    uint64_t tags[4] = {0, 0, 0, 0};
    size_t count = 9;
    int32_t fd = -1;

    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK_OK(watchcore_wakeset_fd(set, &fd, &error));
    CHECK(fd >= 0 && (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    CHECK_OK(watchcore_wakeset_add_subscription(set, a, 100, &error));
    CHECK_OK(watchcore_wakeset_add_subscription(set, b, UINT64_MAX, &error));
    CHECK(!readable(fd, 0));
    CHECK_CODE(WATCHCORE_TIMEOUT, watchcore_wakeset_wait(set, 0, &error));
    CHECK_OK(watchcore_wakeset_take(set, tags, 4, &count, &error));
    CHECK(count == 0 && next_of(set) == 0);

    write_key(writer, "/b/x", 1, 1);
    CHECK(readable(fd, -1));
    CHECK_OK(watchcore_wakeset_take(set, tags, 4, &count, &error));
    CHECK(count == 1 && tags[0] == UINT64_MAX);
    CHECK(poll_some(b, 0) == 1 && poll_some(b, 0) == 0);
    CHECK(next_of(set) == 0 && !readable(fd, 0));

    /* Both at once, with room for one: the other stays ready. */
    two[0] = put("/a/x", "1");
    two[1] = put("/b/x", "2");
    CHECK_OK(watchcore_writer_apply(writer, 2, two, 2, &error));
    CHECK_OK(watchcore_wakeset_wait(set, -1, &error));
    CHECK_OK(watchcore_wakeset_take(set, tags, 1, &count, &error));
    CHECK(count == 1);
    CHECK_OK(watchcore_wakeset_wait(set, -1, &error));
    CHECK_OK(watchcore_wakeset_take(set, tags + 1, 1, &count, &error));
    CHECK(count == 1 && tags[0] != tags[1] && (tags[0] == 100 || tags[1] == 100));
    CHECK_OK(watchcore_wakeset_take(set, tags, 0, &count, &error));
    CHECK(count == 0);

    CHECK_OK(watchcore_wakeset_remove_subscription(set, a, &error));
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_wakeset_remove_subscription(set, a, &error));
    watchcore_subscription_free(b); /* leaves the set by itself */
    watchcore_wakeset_free(set);
    while (fcntl(fd, F_GETFD) != -1) { /* a wake-up in progress ends first */
        sched_yield();
    }
    CHECK(errno == EBADF);
    CHECK(poll_some(a, 0) == 1);
    watchcore_subscription_free(a);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* A member that is added is armed, and the set is from its making: nothing but a sleep on the descriptor is needed. */
static void test_added_member_is_armed(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription *follows = below(cache, "/a/"), *state = NULL;
    watchcore_waiter *waiter = NULL, *late = NULL;
    watchcore_wakeset *set = NULL, *other = NULL;
    uint64_t revision = 0;
    uint32_t done = 9;
    int32_t fd = -1;

    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK_OK(watchcore_wakeset_fd(set, &fd, &error));
    CHECK_OK(watchcore_wakeset_add_subscription(set, follows, 1, &error));
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 2, 0, &waiter, &error));
    CHECK(!readable(fd, 0));
    write_key(writer, "/a/x", 1, 1);
    CHECK(comes(set, fd) == 1);
    CHECK(poll_some(follows, 0) == 1 && next_of(set) == 0 && !readable(fd, 0));

    CHECK_OK(watchcore_wakeset_add_waiter(set, waiter, 2, &error));
    CHECK(next_of(set) == 0 && !readable(fd, 0));
    write_key(writer, "/b/x", 2, 2);
    CHECK(comes(set, fd) == 2);
    CHECK_OK(watchcore_waiter_try(waiter, &done, &revision, NULL, &error));
    CHECK(done == 1 && revision == 2);

    /* What has something already is ready at once, in a set that nobody has asked. */
    CHECK_OK(watchcore_wakeset_new(&other, &error));
    CHECK_OK(watchcore_wakeset_fd(other, &fd, &error));
    CHECK_OK(watchcore_subscription_new(cache, NULL, &state, &error));
    CHECK_OK(watchcore_wakeset_add_subscription(other, state, 3, &error));
    CHECK(readable(fd, 0) && next_of(other) == 3 && next_of(other) == 0);
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 1, 0, &late, &error));
    CHECK_OK(watchcore_wakeset_add_waiter(other, late, 4, &error));
    CHECK(readable(fd, 0) && next_of(other) == 4);

    watchcore_waiter_free(waiter);
    watchcore_waiter_free(late);
    watchcore_subscription_free(follows);
    watchcore_subscription_free(state);
    watchcore_wakeset_free(set);
    watchcore_wakeset_free(other);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* One poll for each time that a member is named takes all of them to their end, and the descriptor is readable until then. */
static void test_member_is_named_while_something_is_left(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription *members[3];
    watchcore_wakeset *set = NULL;
    size_t seen[3] = {0, 0, 0};
    uint64_t tag;
    int32_t fd = -1;
    int i, asked = 0;

    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK_OK(watchcore_wakeset_fd(set, &fd, &error));
    members[1] = below(cache, "/a/");
    members[2] = below(cache, "/b/");
    for (i = 1; i <= 2; i++) {
        CHECK_OK(watchcore_wakeset_add_subscription(set, members[i], (uint64_t)i, &error));
    }
    write_key(writer, "/a/x", 1, 100);
    write_key(writer, "/b/x", 101, 150);
    CHECK(readable(fd, -1));
    while (seen[1] + seen[2] < 150 && !check_broken) {
        CHECK(readable(fd, -1));
        tag = next_of(set);
        if (tag != 0) {
            seen[tag] += poll_some(members[tag], 10);
            asked++;
        }
    }
    CHECK(seen[1] == 100 && seen[2] == 50 && asked >= 15);
    while ((tag = next_of(set)) != 0 && !check_broken) {
        CHECK(poll_some(members[tag], 10) == 0);
    }
    write_key(writer, "/b/x", 151, 151);
    CHECK(comes(set, fd) == 2 && poll_some(members[2], 10) == 1);

    /* Named, and not polled: it comes again by its next poll. */
    write_key(writer, "/a/x", 152, 153);
    CHECK(comes(set, fd) == 1 && next_of(set) == 0);
    CHECK(poll_some(members[1], 1) == 1 && next_of(set) == 1);
    CHECK(poll_some(members[1], 1) == 1 && next_of(set) == 0);
    watchcore_subscription_free(members[1]);
    watchcore_subscription_free(members[2]);
    watchcore_wakeset_free(set);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* A poll, a try or a wait that the set did not ask for ends no arming: what is left is named all the same. */
static void test_call_by_hand_ends_no_arming(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription *member = below(cache, "/a/");
    watchcore_waiter *waiter = NULL;
    watchcore_wakeset *set = NULL;
    uint64_t tags[2], revision = 0;
    uint32_t done = 9;
    size_t count = 9;
    int32_t fd = -1;
    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK_OK(watchcore_wakeset_fd(set, &fd, &error));
    CHECK_OK(watchcore_wakeset_add_subscription(set, member, 1, &error));
    CHECK(poll_some(member, 0) == 0);
    write_key(writer, "/a/x", 1, 3);
    CHECK(poll_some(member, 1) == 1);
    CHECK(comes(set, fd) == 1);
    CHECK(poll_some(member, 0) == 2 && next_of(set) == 0);
    CHECK_CODE(WATCHCORE_TIMEOUT, watchcore_subscription_wait(member, 0, &error));
    write_key(writer, "/a/x", 4, 5);
    CHECK_OK(watchcore_subscription_wait(member, -1, &error));
    CHECK(poll_some(member, 1) == 1);
    CHECK(comes(set, fd) == 1);
    CHECK(poll_some(member, 0) == 1 && poll_some(member, 0) == 0 && next_of(set) == 0);

    /* Of one whose tag was taken the polls up to the one that gives nothing are its consumer's. */
    write_key(writer, "/a/x", 6, 7);
    CHECK(readable(fd, -1));
    CHECK_OK(watchcore_wakeset_take(set, tags, 2, &count, &error));
    CHECK(count == 1 && tags[0] == 1);
    CHECK(poll_some(member, 1) == 1 && next_of(set) == 0 && poll_some(member, 1) == 1 && poll_some(member, 1) == 0);
    write_key(writer, "/a/x", 8, 8);
    CHECK(comes(set, fd) == 1 && poll_some(member, 0) == 1);

    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 9, 0, &waiter, &error));
    CHECK_OK(watchcore_wakeset_add_waiter(set, waiter, 2, &error));
    CHECK_OK(watchcore_waiter_try(waiter, &done, NULL, NULL, &error));
    CHECK(done == 0 && next_of(set) == 0);
    write_key(writer, "/b/x", 9, 9);
    CHECK(comes(set, fd) == 2);
    CHECK_OK(watchcore_waiter_try(waiter, &done, &revision, NULL, &error));
    CHECK(done == 1 && revision == 9);
    watchcore_waiter_free(waiter);
    watchcore_subscription_free(member);
    watchcore_wakeset_free(set);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* A member that was closed is named until its poll has said so, and not after it; one that left after it was listed is not
   named, and hides no other. */
static void test_closed_member_is_named_until_it_says_so(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription *closed = below(cache, "/a/"), *gone = below(cache, "/a/"), *other = below(cache, "/b/");
    watchcore_wakeset *set = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    int32_t fd = -1;

    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK_OK(watchcore_wakeset_fd(set, &fd, &error));
    CHECK_OK(watchcore_wakeset_add_subscription(set, closed, 1, &error));
    CHECK_OK(watchcore_wakeset_add_subscription(set, gone, 2, &error));
    CHECK_OK(watchcore_wakeset_add_subscription(set, other, 3, &error));
    CHECK_OK(watchcore_subscription_close(gone, &error));
    CHECK(readable(fd, -1));
    watchcore_subscription_free(gone);
    CHECK(next_of(set) == 0 && !readable(fd, 0));

    write_key(writer, "/a/x", 1, 2);
    CHECK_OK(watchcore_subscription_close(closed, &error));
    CHECK(comes(set, fd) == 1 && poll_some(closed, 1) == 1);
    CHECK(next_of(set) == 1 && poll_some(closed, 1) == 1);
    CHECK(next_of(set) == 1);
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_subscription_poll(closed, 0, &batch, &error));
    CHECK(next_of(set) == 0 && !readable(fd, 0));

    write_key(writer, "/b/x", 3, 3);
    CHECK(comes(set, fd) == 3);
    watchcore_subscription_free(closed);
    watchcore_subscription_free(other);
    watchcore_wakeset_free(set);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static void test_waiters(void)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    watchcore_writer *writer = NULL;
    watchcore_wakeset *set = NULL;
    watchcore_waiter *ready_waiter = NULL, *revision_waiter = NULL, *consistent = NULL, *late = NULL;
    watchcore_change one = exact("/a", "1", 1, 1, 1), two = put("/a", "2");
    uint64_t revision = 0, epoch = 0;
    uint32_t done = 9;

    options.expect_load = 1;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    CHECK_OK(watchcore_writer_new(cache, &writer, &error));
    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_READY, 0, 0, &ready_waiter, &error));
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 7, 0, &revision_waiter, &error));
    CHECK_OK(watchcore_wakeset_add_waiter(set, ready_waiter, 1, &error));
    CHECK_OK(watchcore_wakeset_add_waiter(set, revision_waiter, 2, &error));
    CHECK_OK(watchcore_waiter_try(ready_waiter, &done, &revision, &epoch, &error));
    CHECK(done == 0 && revision == 0 && next_of(set) == 0);

    CHECK_OK(watchcore_writer_load(writer, 5, &one, 1, &error));
    CHECK_OK(watchcore_wakeset_wait(set, -1, &error));
    CHECK(next_of(set) == 1 && next_of(set) == 0);
    CHECK_OK(watchcore_waiter_try(ready_waiter, &done, &revision, &epoch, &error));
    CHECK(done == 1 && revision == 5 && epoch != 0);
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_CONSISTENT, 0, 0, &consistent, &error));
    CHECK_OK(watchcore_waiter_try(consistent, &done, &revision, NULL, &error));
    CHECK(done == 1 && revision == 5);

    CHECK_OK(watchcore_writer_apply(writer, 8, &two, 1, &error));
    CHECK_OK(watchcore_wakeset_wait(set, -1, &error));
    CHECK(next_of(set) == 2 && next_of(set) == 0);
    CHECK_OK(watchcore_waiter_try(revision_waiter, &done, &revision, NULL, &error));
    CHECK(done == 1 && revision >= 7);
    CHECK_OK(watchcore_wakeset_remove_waiter(set, revision_waiter, &error));
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_wakeset_remove_waiter(set, revision_waiter, &error));

    /* Close wakes it; the try then says why. */
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 1000, 0, &late, &error));
    CHECK_OK(watchcore_wakeset_add_waiter(set, late, 3, &error));
    CHECK_OK(watchcore_cache_close(cache, &error));
    CHECK_OK(watchcore_wakeset_wait(set, -1, &error));
    CHECK(next_of(set) == 3 && next_of(set) == 0);
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_waiter_try(late, &done, &revision, NULL, &error));

    watchcore_waiter_free(late);
    watchcore_waiter_free(consistent);
    watchcore_waiter_free(ready_waiter);
    watchcore_waiter_free(revision_waiter);
    watchcore_wakeset_free(set);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* Whether a set lists these tags, each once, in any order. */
static void lists(const watchcore_wakeset *set, const uint64_t *expected, size_t length)
{
    uint64_t tags[64];
    size_t count = 0, at, other, found;
    CHECK_OK(watchcore_wakeset_take(set, tags, 64, &count, &error));
    CHECK(count == length);
    for (at = 0; at < length; at++) {
        found = 0;
        for (other = 0; other < count; other++) {
            found += tags[other] == expected[at];
        }
        CHECK(found == 1);
    }
}

/* A tag goes with its member: after it was removed or freed (a tag may be a pointer) the set does not name it, and it
   names each once, however often it was polled. */
static void test_tags_go_with_their_members(void)
{
    static const uint64_t first[] = {1, 4}, second[] = {9};
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription *members[5];
    watchcore_wakeset *set = NULL, *other = NULL;
    watchcore_waiter *waiter = NULL, *gone = NULL;
    watchcore_change one = put("/a/x", "1");
    uint64_t tag;
    uint32_t named, found, done;
    size_t at, times;

    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK_OK(watchcore_wakeset_new(&other, &error));
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 1, 0, &waiter, &error));
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 1, 0, &gone, &error));
    CHECK_OK(watchcore_wakeset_add_waiter(set, waiter, 4, &error));
    CHECK_OK(watchcore_wakeset_add_waiter(set, gone, 5, &error));
    for (at = 1; at < 5; at++) {
        members[at] = below(cache, "/a/");
        CHECK_OK(watchcore_wakeset_add_subscription(set, members[at], at == 4 ? 6 : at, &error));
    }
    CHECK_OK(watchcore_writer_apply(writer, 1, &one, 1, &error));
    for (named = 0; named != 0x7e && !check_broken;) { /* all six, as the notifier lists them */
        CHECK_OK(watchcore_wakeset_wait(set, -1, &error));
        CHECK_OK(watchcore_wakeset_next(set, &tag, &found, &error));
        named |= found ? (uint32_t)1 << tag : 0;
    }
    /* All are ready again: the second event of each, and the waiters by being added anew. */
    CHECK_OK(watchcore_writer_apply(writer, 2, &one, 1, &error));
    for (at = 1; at < 5; at++) {
        CHECK(poll_some(members[at], 1) == 1);
    }
    for (times = 0; times < 1000; times++) {
        CHECK_OK(watchcore_wakeset_add_waiter(set, waiter, 4, &error));
    }
    CHECK_OK(watchcore_wakeset_add_waiter(set, gone, 5, &error));
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_wakeset_remove_subscription(other, members[1], &error));
    CHECK_OK(watchcore_wakeset_remove_subscription(set, members[2], &error));
    watchcore_subscription_free(members[3]);
    watchcore_waiter_free(gone);
    CHECK_OK(watchcore_wakeset_add_subscription(other, members[4], 9, &error)); /* it leaves the set it was in */
    lists(set, first, 2);
    lists(set, first, 0);
    lists(other, second, 1);
    CHECK_OK(watchcore_waiter_try(waiter, &done, NULL, NULL, &error));
    CHECK(done == 1);
    watchcore_subscription_free(members[1]);
    watchcore_subscription_free(members[2]);
    watchcore_subscription_free(members[4]);
    watchcore_waiter_free(waiter);
    watchcore_wakeset_free(set);
    watchcore_wakeset_free(other);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* A set that is freed closes its descriptor, whoever is still a member of it. */
static void test_descriptor_goes_with_its_set(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription *member = below(cache, "/a/");
    watchcore_waiter *waiter = NULL;
    watchcore_wakeset *set = NULL;
    watchcore_change one = put("/a/x", "1");
    uint32_t done = 9;
    int32_t fd = -1;
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 7, 0, &waiter, &error));
    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK_OK(watchcore_wakeset_fd(set, &fd, &error));
    CHECK_OK(watchcore_wakeset_add_subscription(set, member, 1, &error));
    CHECK_OK(watchcore_wakeset_add_waiter(set, waiter, 2, &error));
    watchcore_wakeset_free(set);
    while (fcntl(fd, F_GETFD) != -1) { /* a wake-up in progress ends first */
        sched_yield();
    }
    CHECK(errno == EBADF);
    /* They are in no set now, and are polled, tried and woken as before. */
    CHECK(poll_some(member, 0) == 0);
    CHECK_OK(watchcore_waiter_try(waiter, &done, NULL, NULL, &error));
    CHECK(done == 0);
    CHECK_OK(watchcore_writer_apply(writer, 7, &one, 1, &error));
    CHECK_OK(watchcore_subscription_wait(member, -1, &error));
    CHECK(poll_some(member, 0) == 1);
    CHECK_OK(watchcore_waiter_try(waiter, &done, NULL, NULL, &error));
    CHECK(done == 1);
    watchcore_subscription_free(member);
    watchcore_waiter_free(waiter);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

enum { MEMBERS = 100, ROUNDS = 200, LOOPS = 4 };

static void *write_rounds(void *writer)
{
    char keys[MEMBERS][16];
    int round, i;
    for (i = 0; i < MEMBERS; i++) {
        snprintf(keys[i], sizeof(keys[i]), "/%03d/x", i);
    }
    for (round = 0; round < ROUNDS; round++) {
        for (i = 0; i < MEMBERS; i += 1 + round % 7) {
            watchcore_change one = put(keys[i], "1");
            if (watchcore_writer_apply(writer, (uint64_t)round * MEMBERS + (uint64_t)i + 1, &one, 1, NULL) != WATCHCORE_OK) {
                return (void *)-1;
            }
        }
    }
    return NULL;
}

/* What the threads of one set share. */
static struct {
    watchcore_wakeset *set;
    watchcore_subscription *members[MEMBERS + 1]; /* by tag; the last one ends the loops */
    uint64_t last[MEMBERS], wanted[MEMBERS];      /* a member's is written by the thread that polls it */
    atomic_int open_members, refused;
} shared;

/* The loop of the header. It ends when the last member is closed. */
static void *run_loop(void *unused)
{
    int32_t fd = -1;
    watchcore_wakeset_fd(shared.set, &fd, NULL);
    for (;;) {
        uint64_t tag;
        uint32_t found;
        if (!readable(fd, -1)) {
            atomic_fetch_add(&shared.refused, 1);
        }
        while (watchcore_wakeset_next(shared.set, &tag, &found, NULL) == WATCHCORE_OK && found) {
            watchcore_batch batch = WATCHCORE_BATCH_INIT;
            if (tag == MEMBERS) { /* closed, and named to one of us after the other */
                watchcore_wakeset_add_subscription(shared.set, shared.members[MEMBERS], MEMBERS, NULL);
                return unused;
            }
            if (watchcore_subscription_poll(shared.members[tag], 2, &batch, NULL) != WATCHCORE_OK) {
                atomic_fetch_add(&shared.refused, 1);
            } else if (batch.count > 0) {
                shared.last[tag] = watchcore_batch_event(&batch, batch.count - 1)->revision;
                if (shared.last[tag] == shared.wanted[tag]) {
                    atomic_fetch_sub(&shared.open_members, 1);
                }
            }
            watchcore_batch_release(&batch);
        }
    }
}

/* `loops` threads serve all members as the header says; nothing is missed and nobody meets another one inside of a member,
   however the writer's timing falls. */
static void serve_with(int loops)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    pthread_t threads[LOOPS], thread;
    void *wrote = NULL;
    int i, round;

    CHECK_OK(watchcore_wakeset_new(&shared.set, &error));
    atomic_store(&shared.open_members, MEMBERS);
    atomic_store(&shared.refused, 0);
    for (i = 0; i <= MEMBERS; i++) {
        char prefix[16];
        snprintf(prefix, sizeof(prefix), "/%03d/", i);
        shared.members[i] = below(cache, prefix);
        CHECK_OK(watchcore_wakeset_add_subscription(shared.set, shared.members[i], (uint64_t)i, &error));
    }
    memset(shared.last, 0, sizeof(shared.last));
    for (round = 0; round < ROUNDS; round++) {
        for (i = 0; i < MEMBERS; i += 1 + round % 7) {
            shared.wanted[i] = (uint64_t)round * MEMBERS + (uint64_t)i + 1;
        }
    }
    for (i = 0; i < loops; i++) {
        CHECK(pthread_create(&threads[i], NULL, run_loop, NULL) == 0);
    }
    CHECK(pthread_create(&thread, NULL, write_rounds, writer) == 0);
    CHECK(pthread_join(thread, &wrote) == 0 && wrote == NULL);
    while (atomic_load(&shared.open_members) > 0) {
        sched_yield();
    }
    CHECK_OK(watchcore_subscription_close(shared.members[MEMBERS], &error));
    for (i = 0; i < loops; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(atomic_load(&shared.refused) == 0);
    for (i = 0; i <= MEMBERS; i++) {
        watchcore_subscription_free(shared.members[i]);
    }
    watchcore_wakeset_free(shared.set);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static void test_no_wake_up_is_lost(void)
{
    serve_with(1);
}

static void test_threads_share_a_set(void)
{
    serve_with(LOOPS);
}

int main(void)
{
    RUN(test_only_what_is_ready_is_named);
    RUN(test_added_member_is_armed);
    RUN(test_member_is_named_while_something_is_left);
    RUN(test_call_by_hand_ends_no_arming);
    RUN(test_closed_member_is_named_until_it_says_so);
    RUN(test_waiters);
    RUN(test_tags_go_with_their_members);
    RUN(test_descriptor_goes_with_its_set);
    RUN(test_no_wake_up_is_lost);
    RUN(test_threads_share_a_set);
    return check_finish("wakeset");
}
