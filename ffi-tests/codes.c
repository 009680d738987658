/* The codes of functions by the state in which a handle is: before a listing, closed, in use, and where the system gives no
   thread. The runner holds what is answered here, and elsewhere, against the comments of the header. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>

#include "check.h"

static watchcore_error error;

/* What the library starts its threads with: this program's own, which can refuse. */
static int no_threads;
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*begin)(void *), void *argument)
{
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (no_threads) {
        return EAGAIN;
    }
    if (real == NULL) {
        void *found = dlsym(RTLD_NEXT, "pthread_create");
        memcpy(&real, &found, sizeof(real)); /* ISO C has no cast for it */
    }
    return real(thread, attributes, begin, argument);
}

static watchcore_cache *expecting(watchcore_writer **writer)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    options.expect_load = 1;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    CHECK_OK(watchcore_writer_new(cache, writer, &error));
    return cache;
}

/* The first cache of the process: its threads are not there yet. */
static void test_no_thread_is_left(void)
{
    watchcore_etcd_options etcd = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_feeder *feeder = NULL;
    watchcore_cache *cache = NULL;
    no_threads = 1;
    CHECK_CODE(WATCHCORE_RESOURCE_EXHAUSTED, watchcore_cache_new(NULL, &cache, &error));
    CHECK(cache == NULL);
    no_threads = 0;
    CHECK_OK(watchcore_cache_new(NULL, &cache, &error));
    etcd.endpoints = text("http://127.0.0.1:1");
    no_threads = 1;
    CHECK_CODE(WATCHCORE_RESOURCE_EXHAUSTED, watchcore_feeder_start(cache, &etcd, &feeder, &error));
    no_threads = 0;
    CHECK(feeder == NULL);
    CHECK_OK(watchcore_feeder_start(cache, &etcd, &feeder, &error));
    watchcore_feeder_free(feeder);
    watchcore_cache_free(cache);
}

/* Asks everything that a cache without its listing refuses, with the code that it refuses with. */
static void refused_with(int32_t expected, watchcore_cache *cache)
{
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    watchcore_snapshot *snapshot = NULL;
    watchcore_page *page = NULL;
    uint64_t number = 0;
    CHECK_CODE(expected, watchcore_cache_get(cache, "/a", 2, NULL, &answer, &error));
    CHECK_CODE(expected, watchcore_cache_list(cache, NULL, NULL, &page, NULL, &error));
    CHECK_CODE(expected, watchcore_cache_count(cache, NULL, NULL, &number, NULL, NULL, &error));
    CHECK_CODE(expected, watchcore_cache_diff(cache, 0, 0, 0, 0, NULL, &batch, &error));
    CHECK_CODE(expected, watchcore_snapshot_new(cache, &snapshot, &error));
}

static void test_before_the_listing(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = expecting(&writer);
    watchcore_change one = exact("/a", "1", 1, 1, 1), two = put("/a", "2");
    watchcore_waiter *waiter = NULL;
    uint64_t number = 0;
    uint32_t done = 9;
    refused_with(WATCHCORE_NOT_READY, cache);
    CHECK_CODE(WATCHCORE_NOT_READY, watchcore_writer_apply(writer, 1, &two, 1, &error));
    CHECK_CODE(WATCHCORE_NOT_READY,
               watchcore_writer_resync(writer, 1, &one, 1, WATCHCORE_RESYNC_REQUESTED, NULL, NULL, &error));
    CHECK_CODE(WATCHCORE_NOT_READY, watchcore_writer_progress(writer, 1, &error));
    CHECK_CODE(WATCHCORE_NOT_READY, watchcore_writer_compact(writer, 1, &error));
    CHECK_CODE(WATCHCORE_TIMEOUT, watchcore_cache_wait_ready(cache, 0, &error));
    CHECK_CODE(WATCHCORE_TIMEOUT, watchcore_cache_consistent_revision(cache, 0, &number, &error));
    CHECK_CODE(WATCHCORE_FUTURE_REVISION, watchcore_cache_wait_until(cache, 1, 0, NULL, NULL, &error));
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_READY, 0, 0, &waiter, &error));
    CHECK_OK(watchcore_waiter_try(waiter, &done, NULL, NULL, &error));
    CHECK(done == 0);
    watchcore_waiter_free(waiter);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* A feeder that was stopped before the listing: its own code in the place of NOT_READY. */
static void test_source_that_has_ended(void)
{
    watchcore_etcd_options etcd = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_feeder *feeder = NULL;
    watchcore_cache *cache = NULL;
    watchcore_subscription *subscription = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    watchcore_waiter *waiter = NULL;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    uint64_t number = 0;
    uint32_t done = 9;
    int32_t code;
    etcd.endpoints = text("http://127.0.0.1:1");
    CHECK_OK(watchcore_cache_new(NULL, &cache, &error));
    CHECK_OK(watchcore_feeder_start(cache, &etcd, &feeder, &error));
    CHECK_OK(watchcore_subscription_new(cache, NULL, &subscription, &error));
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_READY, 0, 0, &waiter, &error));
    CHECK_OK(watchcore_feeder_stop(feeder, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_cache_wait_ready(cache, -1, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_cache_wait_until(cache, 1, -1, NULL, NULL, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_cache_consistent_revision(cache, -1, &number, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_waiter_try(waiter, &done, NULL, NULL, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_subscription_poll(subscription, 0, &batch, &error));
    code = watchcore_cache_get(cache, "/a", 2, NULL, &answer, &error);
    CHECK(code == WATCHCORE_NOT_READY || code == WATCHCORE_CLOSED || code == WATCHCORE_UNAVAILABLE);
    refused_with(code, cache);
    watchcore_waiter_free(waiter);
    watchcore_subscription_free(subscription);
    watchcore_feeder_free(feeder);
    watchcore_cache_free(cache);
}

static void test_after_the_close(void)
{
    watchcore_writer *writer = NULL, *loads = NULL;
    watchcore_cache *cache = embedded(&writer), *loaded = expecting(&loads);
    watchcore_etcd_options etcd = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_change one = exact("/a", "1", 1, 1, 1), two = put("/a", "2");
    watchcore_subscription *subscription = NULL;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_loading *loading = NULL, *second = NULL;
    watchcore_feeder *feeder = NULL;
    watchcore_waiter *waiter = NULL;
    watchcore_writer *other = NULL;
    watchcore_page *page = NULL;
    uint64_t number = 0;
    CHECK_OK(watchcore_loading_new(loads, 5, &loading, &error));
    CHECK_OK(watchcore_cache_close(loaded, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_loading_add(loading, loads, &one, 1, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_loading_finish(loading, loads, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_loading_new(loads, 5, &second, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_writer_load(loads, 5, &one, 1, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_cache_wait_ready(loaded, -1, &error));

    CHECK_OK(watchcore_cache_close(cache, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_writer_apply(writer, 1, &two, 1, &error));
    CHECK_CODE(WATCHCORE_CLOSED,
               watchcore_writer_resync(writer, 1, &one, 1, WATCHCORE_RESYNC_REQUESTED, NULL, NULL, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_writer_progress(writer, 1, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_writer_compact(writer, 1, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_writer_new(cache, &other, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_subscription_new(cache, NULL, &subscription, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_waiter_new(cache, WATCHCORE_WANT_CONSISTENT, 0, 0, &waiter, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_cache_consistent_revision(cache, 0, &number, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_cache_wait_until(cache, 1, 0, NULL, NULL, &error));
    read.mode = WATCHCORE_READ_AT_LEAST;
    read.revision = 1;
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_cache_get(cache, "/a", 2, &read, &answer, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_cache_list(cache, NULL, &read, &page, NULL, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_cache_count(cache, NULL, &read, &number, NULL, NULL, &error));
    watchcore_writer_free(writer); /* a feeder wants it */
    etcd.endpoints = text("http://127.0.0.1:1");
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_feeder_start(cache, &etcd, &feeder, &error));

    watchcore_loading_free(loading);
    watchcore_writer_free(loads);
    watchcore_cache_free(loaded);
    watchcore_cache_free(cache);
}

static void test_revision_that_is_not_there(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    watchcore_page *page = NULL;
    uint64_t number = 0;
    read.mode = WATCHCORE_READ_AT_LEAST;
    read.revision = 9;
    read.timeout_ms = 0;
    CHECK_CODE(WATCHCORE_FUTURE_REVISION, watchcore_cache_get(cache, "/a", 2, &read, &answer, &error));
    CHECK_CODE(WATCHCORE_FUTURE_REVISION, watchcore_cache_list(cache, NULL, &read, &page, NULL, &error));
    CHECK_CODE(WATCHCORE_FUTURE_REVISION, watchcore_cache_count(cache, NULL, &read, &number, NULL, NULL, &error));
    CHECK_CODE(WATCHCORE_FUTURE_REVISION, watchcore_cache_diff(cache, 0, 0, 9, 0, NULL, &batch, &error));
    CHECK_CODE(WATCHCORE_FUTURE_REVISION, watchcore_cache_wait_until(cache, 9, 0, NULL, NULL, &error));
    CHECK_CODE(WATCHCORE_FUTURE_REVISION, watchcore_writer_compact(writer, 9, &error));
    CHECK_OK(watchcore_writer_progress(writer, 9, &error));
    CHECK_CODE(WATCHCORE_OUT_OF_ORDER, watchcore_writer_progress(writer, 8, &error));
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static void *wait_for_ever(void *subscription)
{
    return watchcore_subscription_wait(subscription, -1, NULL) == WATCHCORE_CLOSED ? subscription : NULL;
}

static void test_handle_that_is_in_use(void)
{
    watchcore_cache *cache = embedded(NULL);
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription_statistics statistics = WATCHCORE_SUBSCRIPTION_STATISTICS_INIT;
    watchcore_subscription *subscription = NULL;
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    watchcore_wakeset *set = NULL;
    pthread_t thread;
    void *result = NULL;
    options.start = WATCHCORE_START_NOW;
    CHECK_OK(watchcore_subscription_new(cache, &options, &subscription, &error));
    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK(pthread_create(&thread, NULL, wait_for_ever, subscription) == 0);
    while (watchcore_cache_stats(cache, &stats, NULL) == WATCHCORE_OK && stats.waiting == 0) {
        sched_yield();
    }
    CHECK_CODE(WATCHCORE_BUSY, watchcore_subscription_stats(subscription, &statistics, &error));
    CHECK_CODE(WATCHCORE_BUSY, watchcore_wakeset_add_subscription(set, subscription, 1, &error));
    CHECK_CODE(WATCHCORE_BUSY, watchcore_wakeset_remove_subscription(set, subscription, &error));
    CHECK_OK(watchcore_subscription_close(subscription, &error));
    CHECK(pthread_join(thread, &result) == 0 && result == subscription);
    watchcore_subscription_free(subscription);
    watchcore_wakeset_free(set);
    watchcore_cache_free(cache);
}

int main(void)
{
    RUN(test_no_thread_is_left);
    RUN(test_before_the_listing);
    RUN(test_source_that_has_ended);
    RUN(test_after_the_close);
    RUN(test_revision_that_is_not_there);
    RUN(test_handle_that_is_in_use);
    return check_finish("codes");
}
