/* Many members behind one descriptor, and waiters that never block. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "check.h"

static watchcore_error error;

static int readable(int fd, int timeout)
{
    struct pollfd one;
    one.fd = fd;
    one.events = POLLIN;
    one.revents = 0;
    return poll(&one, 1, timeout) == 1 && (one.revents & POLLIN) != 0;
}

static watchcore_subscription *below(watchcore_cache *cache, const char *prefix)
{
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *subscription = NULL;
    options.start = WATCHCORE_START_NOW;
    options.range = WATCHCORE_RANGE_PREFIX;
    options.from = text(prefix);
    CHECK_OK(watchcore_subscription_new(cache, &options, &subscription, &error));
    return subscription;
}

static void test_only_what_is_ready_is_named(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription *a = below(cache, "/a/"), *b = below(cache, "/b/");
    watchcore_wakeset *set = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    watchcore_change one = put("/b/x", "1"), two[2];
    uint64_t tags[4] = {0, 0, 0, 0};
    uint32_t ready = 9;
    size_t count = 9;
    int32_t fd = -1;

    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK_OK(watchcore_wakeset_fd(set, &fd, &error));
    CHECK(fd >= 0 && (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_subscription_arm(a, &ready, &error)); /* in no set */
    CHECK_OK(watchcore_wakeset_add_subscription(set, a, 100, &error));
    CHECK_OK(watchcore_wakeset_add_subscription(set, b, UINT64_MAX, &error));
    CHECK_OK(watchcore_subscription_arm(a, &ready, &error));
    CHECK(ready == 0);
    CHECK_OK(watchcore_subscription_arm(b, &ready, &error));
    CHECK(ready == 0);
    CHECK_OK(watchcore_wakeset_arm(set, &ready, &error));
    CHECK(ready == 0 && !readable(fd, 0));
    CHECK_CODE(WATCHCORE_TIMEOUT, watchcore_wakeset_wait(set, 0, &error));
    CHECK_OK(watchcore_wakeset_take(set, tags, 4, &count, &error));
    CHECK(count == 0);

    CHECK_OK(watchcore_wakeset_arm(set, &ready, &error));
    CHECK_OK(watchcore_writer_apply(writer, 1, &one, 1, &error));
    CHECK(readable(fd, -1));
    CHECK_OK(watchcore_wakeset_take(set, tags, 4, &count, &error));
    CHECK(count == 1 && tags[0] == UINT64_MAX);
    CHECK_OK(watchcore_subscription_poll(b, 0, &batch, &error));
    CHECK(batch.count == 1);
    watchcore_batch_release(&batch);
    CHECK_OK(watchcore_subscription_arm(b, &ready, &error));
    CHECK(ready == 0);

    /* Both at once, with room for one: the other stays listed. */
    CHECK_OK(watchcore_wakeset_arm(set, &ready, &error));
    CHECK(ready == 0 && !readable(fd, 0)); /* arming emptied the descriptor */
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

    /* What is there already: ready at once. */
    CHECK_OK(watchcore_subscription_arm(a, &ready, &error));
    CHECK(ready == 1);

    CHECK_OK(watchcore_wakeset_remove_subscription(set, a, &error));
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_wakeset_remove_subscription(set, a, &error));
    watchcore_subscription_free(b); /* leaves the set by itself */
    watchcore_wakeset_free(set);
    while (fcntl(fd, F_GETFD) != -1) { /* a wake-up in progress ends first */
        sched_yield();
    }
    CHECK(errno == EBADF);
    CHECK_OK(watchcore_subscription_poll(a, 0, &batch, &error));
    CHECK(batch.count == 1);
    watchcore_batch_release(&batch);
    watchcore_subscription_free(a);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* Who arms a set in which something is listed has not armed it: the member may leave before its tag is taken, and then
   there is nothing to take, and nothing raises the descriptor. */
static void test_ready_set_is_not_armed(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription *closed = below(cache, "/a/"), *other = below(cache, "/b/");
    watchcore_wakeset *set = NULL;
    watchcore_change change = put("/b/x", "1");
    uint64_t tags[4] = {0, 0, 0, 0};
    uint32_t ready = 9;
    size_t count = 9;
    int32_t fd = -1;

    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK_OK(watchcore_wakeset_fd(set, &fd, &error));
    CHECK_OK(watchcore_wakeset_add_subscription(set, closed, 1, &error));
    CHECK_OK(watchcore_wakeset_add_subscription(set, other, 2, &error));
    CHECK_OK(watchcore_subscription_arm(closed, &ready, &error));
    CHECK_OK(watchcore_subscription_arm(other, &ready, &error));
    CHECK_OK(watchcore_wakeset_take(set, tags, 4, &count, &error));
    CHECK(count == 0);

    CHECK_OK(watchcore_subscription_close(closed, &error));
    CHECK_OK(watchcore_wakeset_arm(set, &ready, &error));
    CHECK(ready == 1);
    watchcore_subscription_free(closed);
    CHECK_OK(watchcore_wakeset_take(set, tags, 4, &count, &error));
    CHECK(count == 0);

    CHECK_OK(watchcore_wakeset_arm(set, &ready, &error));
    CHECK(ready == 0 && !readable(fd, 0));
    CHECK_OK(watchcore_writer_apply(writer, 1, &change, 1, &error));
    CHECK(readable(fd, -1));
    CHECK_OK(watchcore_wakeset_take(set, tags, 4, &count, &error));
    CHECK(count == 1 && tags[0] == 2);

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
    uint64_t tags[4], revision = 0, epoch = 0;
    uint32_t done = 9, armed = 9;
    size_t count = 0;

    options.expect_load = 1;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    CHECK_OK(watchcore_writer_new(cache, &writer, &error));
    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_READY, 0, 0, &ready_waiter, &error));
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 7, 0, &revision_waiter, &error));
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_waiter_arm(ready_waiter, &armed, &error)); /* in no set */
    CHECK_OK(watchcore_wakeset_add_waiter(set, ready_waiter, 1, &error));
    CHECK_OK(watchcore_wakeset_add_waiter(set, revision_waiter, 2, &error));
    CHECK_OK(watchcore_waiter_try(ready_waiter, &done, &revision, &epoch, &error));
    CHECK(done == 0 && revision == 0);
    CHECK_OK(watchcore_waiter_arm(ready_waiter, &armed, &error));
    CHECK(armed == 0);
    CHECK_OK(watchcore_waiter_arm(revision_waiter, &armed, &error));
    CHECK(armed == 0);

    CHECK_OK(watchcore_writer_load(writer, 5, &one, 1, &error));
    CHECK_OK(watchcore_wakeset_wait(set, -1, &error));
    CHECK_OK(watchcore_wakeset_take(set, tags, 4, &count, &error));
    CHECK(count == 1 && tags[0] == 1);
    CHECK_OK(watchcore_waiter_try(ready_waiter, &done, &revision, &epoch, &error));
    CHECK(done == 1 && revision == 5 && epoch != 0);
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_CONSISTENT, 0, 0, &consistent, &error));
    CHECK_OK(watchcore_waiter_try(consistent, &done, &revision, NULL, &error));
    CHECK(done == 1 && revision == 5);

    CHECK_OK(watchcore_writer_apply(writer, 8, &two, 1, &error));
    CHECK_OK(watchcore_wakeset_wait(set, -1, &error));
    CHECK_OK(watchcore_wakeset_take(set, tags, 4, &count, &error));
    CHECK(count == 1 && tags[0] == 2);
    CHECK_OK(watchcore_waiter_try(revision_waiter, &done, &revision, NULL, &error));
    CHECK(done == 1 && revision >= 7);
    CHECK_OK(watchcore_wakeset_remove_waiter(set, revision_waiter, &error));
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_wakeset_remove_waiter(set, revision_waiter, &error));

    /* Close wakes it; the try then says why. */
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 1000, 0, &late, &error));
    CHECK_OK(watchcore_wakeset_add_waiter(set, late, 3, &error));
    CHECK_OK(watchcore_waiter_arm(late, &armed, &error));
    CHECK(armed == 0);
    CHECK_OK(watchcore_cache_close(cache, &error));
    CHECK_OK(watchcore_wakeset_wait(set, -1, &error));
    CHECK_OK(watchcore_wakeset_take(set, tags, 4, &count, &error));
    CHECK(count == 1 && tags[0] == 3);
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

/* A try, or a poll, that finds nothing ends the arming; the next arming finds what came in between. */
static void test_try_ends_an_arming(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_wakeset *set = NULL;
    watchcore_waiter *waiter = NULL;
    watchcore_change one = put("/a", "1");
    uint64_t tags[2], revision = 0;
    uint32_t done = 9, armed = 9;
    size_t count = 9;
    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 3, 0, &waiter, &error));
    CHECK_OK(watchcore_wakeset_add_waiter(set, waiter, 1, &error));
    CHECK_OK(watchcore_waiter_arm(waiter, &armed, &error));
    CHECK_OK(watchcore_waiter_try(waiter, &done, NULL, NULL, &error));
    CHECK(armed == 0 && done == 0);
    CHECK_OK(watchcore_writer_apply(writer, 3, &one, 1, &error));
    CHECK_OK(watchcore_wakeset_take(set, tags, 2, &count, &error));
    CHECK(count == 0);
    CHECK_OK(watchcore_waiter_arm(waiter, &armed, &error));
    CHECK_OK(watchcore_wakeset_take(set, tags, 2, &count, &error));
    CHECK(armed == 1 && count == 1 && tags[0] == 1);
    CHECK_OK(watchcore_waiter_try(waiter, &done, &revision, NULL, &error));
    CHECK(done == 1 && revision == 3);
    watchcore_waiter_free(waiter);
    watchcore_wakeset_free(set);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* A tag goes with its member: after it was removed or freed (a tag may be a pointer) the set does not name it, and it
   names each once, however often it was armed. */
static void test_tags_go_with_their_members(void)
{
    static const uint64_t first[] = {1, 4}, second[] = {9};
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription *members[5];
    watchcore_wakeset *set = NULL, *other = NULL;
    watchcore_waiter *waiter = NULL, *gone = NULL;
    watchcore_change one = put("/a/x", "1");
    uint32_t ready = 9;
    size_t at, times;

    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK_OK(watchcore_wakeset_new(&other, &error));
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 1, 0, &waiter, &error));
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 1, 0, &gone, &error));
    CHECK_OK(watchcore_wakeset_add_waiter(set, waiter, 4, &error));
    CHECK_OK(watchcore_waiter_arm(waiter, &ready, &error));
    CHECK_OK(watchcore_wakeset_add_waiter(set, gone, 5, &error));
    CHECK_OK(watchcore_waiter_arm(gone, &ready, &error));
    for (at = 1; at < 5; at++) {
        members[at] = below(cache, "/a/");
        CHECK_OK(watchcore_wakeset_add_subscription(set, members[at], at == 4 ? 6 : at, &error));
        CHECK_OK(watchcore_subscription_arm(members[at], &ready, &error));
        CHECK(ready == 0);
    }
    CHECK_OK(watchcore_writer_apply(writer, 1, &one, 1, &error));
    for (at = 1; at < 5; at++) {
        do { /* the notifier has not listed it yet */
            CHECK_OK(watchcore_subscription_arm(members[at], &ready, &error));
        } while (!ready && !check_broken);
        for (times = 0; times < 1000; times++) {
            CHECK_OK(watchcore_subscription_arm(members[at], &ready, &error));
        }
    }
    do {
        CHECK_OK(watchcore_waiter_arm(waiter, &ready, &error));
    } while (!ready && !check_broken);
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_wakeset_remove_subscription(other, members[1], &error));
    CHECK_OK(watchcore_wakeset_remove_subscription(set, members[2], &error));
    watchcore_subscription_free(members[3]);
    watchcore_waiter_free(gone);
    CHECK_OK(watchcore_wakeset_add_subscription(other, members[4], 9, &error)); /* it leaves the set it was in */
    CHECK_OK(watchcore_subscription_arm(members[4], &ready, &error));
    lists(set, first, 2);
    lists(set, first, 0);
    lists(other, second, 1);
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
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    watchcore_change one = put("/a/x", "1");
    uint32_t ready = 9;
    int32_t fd = -1;
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 7, 0, &waiter, &error));
    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK_OK(watchcore_wakeset_fd(set, &fd, &error));
    CHECK_OK(watchcore_wakeset_add_subscription(set, member, 1, &error));
    CHECK_OK(watchcore_wakeset_add_waiter(set, waiter, 2, &error));
    CHECK_OK(watchcore_subscription_arm(member, &ready, &error));
    CHECK_OK(watchcore_waiter_arm(waiter, &ready, &error));
    watchcore_wakeset_free(set);
    while (fcntl(fd, F_GETFD) != -1) { /* a wake-up in progress ends first */
        sched_yield();
    }
    CHECK(errno == EBADF);
    /* They are in no set now, and are woken as before. */
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_subscription_arm(member, &ready, &error));
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_waiter_arm(waiter, &ready, &error));
    CHECK_OK(watchcore_writer_apply(writer, 7, &one, 1, &error));
    CHECK_OK(watchcore_subscription_wait(member, -1, &error));
    CHECK_OK(watchcore_subscription_poll(member, 0, &batch, &error));
    CHECK(batch.count == 1);
    watchcore_batch_release(&batch);
    watchcore_subscription_free(member);
    watchcore_waiter_free(waiter);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

enum { MEMBERS = 100, ROUNDS = 200 };

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

/* One thread serves all members as the header says; nothing is missed however the writer's timing falls. */
static void test_no_wake_up_is_lost(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription *members[MEMBERS];
    watchcore_wakeset *set = NULL;
    uint64_t tags[16], last[MEMBERS], wanted[MEMBERS];
    pthread_t thread;
    void *wrote = NULL;
    int32_t fd = -1;
    int i, round, open_members = MEMBERS;

    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK_OK(watchcore_wakeset_fd(set, &fd, &error));
    for (i = 0; i < MEMBERS; i++) {
        char prefix[16];
        uint32_t ready = 0;
        snprintf(prefix, sizeof(prefix), "/%03d/", i);
        members[i] = below(cache, prefix);
        last[i] = 0;
        wanted[i] = 0;
        CHECK_OK(watchcore_wakeset_add_subscription(set, members[i], (uint64_t)i, &error));
        CHECK_OK(watchcore_subscription_arm(members[i], &ready, &error));
    }
    for (round = 0; round < ROUNDS; round++) {
        for (i = 0; i < MEMBERS; i += 1 + round % 7) {
            wanted[i] = (uint64_t)round * MEMBERS + (uint64_t)i + 1;
        }
    }
    if (pthread_create(&thread, NULL, write_rounds, writer) != 0) {
        perror("pthread_create");
        exit(2);
    }
    while (open_members > 0 && !check_broken) {
        size_t count = 0, t;
        CHECK_OK(watchcore_wakeset_take(set, tags, 16, &count, &error));
        for (t = 0; t < count; t++) {
            watchcore_subscription *member = members[tags[t]];
            uint32_t ready = 1;
            while (ready) {
                watchcore_batch batch = WATCHCORE_BATCH_INIT;
                CHECK_OK(watchcore_subscription_poll(member, 0, &batch, &error));
                if (batch.count > 0) {
                    last[tags[t]] = watchcore_batch_event(&batch, batch.count - 1)->revision;
                }
                watchcore_batch_release(&batch);
                if (last[tags[t]] == wanted[tags[t]]) {
                    open_members--;
                    break;
                }
                CHECK_OK(watchcore_subscription_arm(member, &ready, &error));
                if (check_broken) {
                    break;
                }
            }
        }
        if (count == 0 && open_members > 0) {
            uint32_t ready = 0;
            CHECK_OK(watchcore_wakeset_arm(set, &ready, &error));
            if (!ready) {
                CHECK(readable(fd, -1));
            }
        }
    }
    CHECK(pthread_join(thread, &wrote) == 0 && wrote == NULL);
    for (i = 0; i < MEMBERS; i++) {
        watchcore_subscription_free(members[i]);
    }
    watchcore_wakeset_free(set);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

int main(void)
{
    RUN(test_only_what_is_ready_is_named);
    RUN(test_waiters);
    RUN(test_ready_set_is_not_armed);
    RUN(test_try_ends_an_arming);
    RUN(test_tags_go_with_their_members);
    RUN(test_descriptor_goes_with_its_set);
    RUN(test_no_wake_up_is_lost);
    return check_finish("wakeset");
}
