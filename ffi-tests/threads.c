/* Many threads: concurrent use is detected, close ends a wait, free during a wait or poll is safe, const handles
   serve everybody. No thread is slept for: what must come is waited for, with a bound in the Makefile. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "check.h"

static watchcore_error error;

static pthread_t start(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, body, argument) != 0) {
        perror("pthread_create");
        exit(2);
    }
    return thread;
}

static void *wait_for_ever(void *subscription)
{
    int32_t code;
    do {
        code = watchcore_subscription_wait(subscription, -1, NULL);
    } while (code == WATCHCORE_BUSY); /* the main thread was inside, to look */
    return (void *)(intptr_t)code;
}

static intptr_t result(pthread_t thread)
{
    void *value = NULL;
    if (pthread_join(thread, &value) != 0) {
        perror("pthread_join");
        exit(2);
    }
    return (intptr_t)value;
}

/* Waits until another thread is inside: the lag can be read, a poll is BUSY. */
static int becomes_busy(watchcore_subscription *subscription)
{
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    for (;;) {
        int32_t code = watchcore_subscription_poll(subscription, 1, &batch, &error);
        if (code != WATCHCORE_OK) {
            return code == WATCHCORE_BUSY;
        }
        watchcore_batch_release(&batch);
        sched_yield();
    }
}

/* A subscription that has nothing to say. */
static watchcore_subscription *idle(watchcore_cache *cache)
{
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *subscription = NULL;
    options.start = WATCHCORE_START_NOW;
    CHECK_OK(watchcore_subscription_new(cache, &options, &subscription, &error));
    return subscription;
}

static void test_second_thread_is_busy_and_close_ends_the_wait(void)
{
    watchcore_cache *cache = embedded(NULL);
    watchcore_subscription *subscription = idle(cache);
    watchcore_lag lag = WATCHCORE_LAG_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    uint64_t revision = 9;
    pthread_t thread = start(wait_for_ever, subscription);
    CHECK(becomes_busy(subscription));
    CHECK_CODE(WATCHCORE_BUSY, watchcore_subscription_poll(subscription, 1, &batch, &error));
    CHECK_CODE(WATCHCORE_BUSY, watchcore_subscription_wait(subscription, -1, &error));
    CHECK_OK(watchcore_subscription_lag(subscription, &lag, &error)); /* const: never busy */
    CHECK_OK(watchcore_subscription_position(subscription, &revision, NULL, &error));
    CHECK(lag.events == 0 && revision == 0);
    CHECK_OK(watchcore_subscription_close(subscription, &error));
    CHECK(result(thread) == WATCHCORE_CLOSED);
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_subscription_poll(subscription, 1, &batch, &error));
    watchcore_subscription_free(subscription);
    watchcore_cache_free(cache);
}

static void test_free_during_wait(void)
{
    watchcore_cache *cache = embedded(NULL);
    int round;
    for (round = 0; round < 20; round++) {
        watchcore_subscription *subscription = idle(cache);
        pthread_t thread = start(wait_for_ever, subscription);
        CHECK(becomes_busy(subscription));
        watchcore_subscription_free(subscription); /* the thread inside frees it */
        CHECK(result(thread) == WATCHCORE_CLOSED);
    }
    watchcore_cache_free(cache);
}

static atomic_int polls;

static void *poll_until_refused(void *subscription)
{
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    int32_t code;
    do {
        code = watchcore_subscription_wait(subscription, -1, NULL);
        if (code == WATCHCORE_OK) {
            code = watchcore_subscription_poll(subscription, 7, &batch, NULL);
            if (code == WATCHCORE_OK) {
                watchcore_batch_release(&batch);
                atomic_fetch_add(&polls, 1);
            }
        }
    } while (code == WATCHCORE_OK);
    return (void *)(intptr_t)code;
}

static void test_close_under_a_busy_poller(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_change one = put("/a", "1");
    uint64_t revision = 1;
    int round;
    for (round = 0; round < 20; round++) {
        watchcore_subscription *subscription = idle(cache);
        pthread_t thread;
        int before = atomic_load(&polls);
        thread = start(poll_until_refused, subscription);
        while (atomic_load(&polls) < before + 3) {
            CHECK_OK(watchcore_writer_apply(writer, revision++, &one, 1, &error));
            sched_yield();
        }
        CHECK_OK(watchcore_subscription_close(subscription, &error));
        CHECK(result(thread) == WATCHCORE_CLOSED);
        watchcore_subscription_free(subscription);
    }
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static void *wait_for_a_far_revision(void *cache)
{
    return (void *)(intptr_t)watchcore_cache_wait_until(cache, 1000000, -1, NULL, NULL, NULL);
}

/* Waiting on a const handle: many at once; close, and free, end them all. */
static void wait_on_the_cache(int with_free)
{
    watchcore_cache *cache = embedded(NULL);
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    pthread_t threads[3];
    int i;
    for (i = 0; i < 3; i++) {
        threads[i] = start(wait_for_a_far_revision, cache);
    }
    do {
        CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
        sched_yield();
    } while (stats.waiting < 3);
    if (with_free) {
        watchcore_cache_free(cache);
    } else {
        CHECK_OK(watchcore_cache_close(cache, &error));
    }
    for (i = 0; i < 3; i++) {
        CHECK(result(threads[i]) == WATCHCORE_CLOSED);
    }
    if (!with_free) {
        watchcore_cache_free(cache);
    }
}

static void test_close_ends_waits_on_the_cache(void)
{
    wait_on_the_cache(0);
}

static void test_free_ends_waits_on_the_cache(void)
{
    wait_on_the_cache(1);
}

static atomic_int stop;

/* Reads while the writer writes; what is read is whole, and revisions never go back. */
static void *read_all_the_time(void *cache)
{
    uint64_t last = 0;
    intptr_t reads = 0;
    do {
        watchcore_answer answer = WATCHCORE_ANSWER_INIT;
        watchcore_snapshot *snapshot = NULL;
        const watchcore_key_value *a = NULL, *b = NULL;
        if (watchcore_cache_get(cache, "/a", 2, NULL, &answer, NULL) != WATCHCORE_OK || answer.revision < last) {
            return (void *)-1;
        }
        last = answer.revision;
        if (answer.found && answer.kv->mod_revision > answer.revision) {
            return (void *)-2;
        }
        watchcore_key_value_release(answer.kv);
        if (watchcore_snapshot_new(cache, &snapshot, NULL) != WATCHCORE_OK ||
            watchcore_snapshot_get(snapshot, "/a", 2, NULL, &a, NULL) != WATCHCORE_OK ||
            watchcore_snapshot_get(snapshot, "/b", 2, NULL, &b, NULL) != WATCHCORE_OK) {
            return (void *)-3;
        }
        if ((a == NULL) != (b == NULL) || (a != NULL && a->mod_revision != b->mod_revision)) {
            return (void *)-4; /* a revision torn in two */
        }
        watchcore_snapshot_free(snapshot);
        reads++;
    } while (!atomic_load(&stop) || reads < 100);
    return (void *)reads;
}

static void test_readers_beside_the_writer(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_change two[2];
    pthread_t readers[3];
    uint64_t revision;
    int i;
    two[0] = put("/a", "1");
    two[1] = put("/b", "1");
    for (i = 0; i < 3; i++) {
        readers[i] = start(read_all_the_time, cache);
    }
    for (revision = 1; revision < 3000; revision++) {
        CHECK_OK(watchcore_writer_apply(writer, revision, two, 2, &error));
    }
    atomic_store(&stop, 1);
    for (i = 0; i < 3; i++) {
        CHECK(result(readers[i]) >= 100);
    }
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* The writer is for one at a time: of many callers every revision is applied or refused, none is torn. */
static watchcore_writer *shared_writer;
static atomic_ulong next_revision, applied, busy, late, other;

static void *write_some(void *unused)
{
    watchcore_change one = put("/a", "1");
    int i;
    (void)unused;
    for (i = 0; i < 2000; i++) {
        switch (watchcore_writer_apply(shared_writer, atomic_fetch_add(&next_revision, 1) + 1, &one, 1, NULL)) {
        case WATCHCORE_OK: atomic_fetch_add(&applied, 1); break;
        case WATCHCORE_BUSY: atomic_fetch_add(&busy, 1); break;
        case WATCHCORE_OUT_OF_ORDER: atomic_fetch_add(&late, 1); break;
        default: atomic_fetch_add(&other, 1); break;
        }
    }
    return NULL;
}

static void test_writer_shared_by_mistake(void)
{
    watchcore_cache *cache = embedded(&shared_writer);
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    pthread_t threads[3];
    int i;
    for (i = 0; i < 3; i++) {
        threads[i] = start(write_some, NULL);
    }
    for (i = 0; i < 3; i++) {
        CHECK(result(threads[i]) == 0);
    }
    CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
    CHECK(atomic_load(&applied) + atomic_load(&busy) + atomic_load(&late) == 6000 && atomic_load(&other) == 0);
    CHECK(stats.revisions == atomic_load(&applied) && stats.events == atomic_load(&applied));
    watchcore_writer_free(shared_writer);
    watchcore_cache_free(cache);
}

int main(void)
{
    RUN(test_second_thread_is_busy_and_close_ends_the_wait);
    RUN(test_free_during_wait);
    RUN(test_close_under_a_busy_poller);
    RUN(test_close_ends_waits_on_the_cache);
    RUN(test_free_ends_waits_on_the_cache);
    RUN(test_readers_beside_the_writer);
    RUN(test_writer_shared_by_mistake);
    return check_finish("threads");
}
