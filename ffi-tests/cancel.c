/* A thread that is cancelled while it is inside of the library: each function ends as it would have, and the thread is
   cancelled behind it. A thread is inside with a cancellation that is pending, so the first point at which one takes effect
   would be it; or it waits, and is cancelled then. */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "check.h"

static watchcore_error error;

/* One call with cancellation enabled; around it this thread's own calls are safe. The library leaves it enabled. */
#define INSIDE(call) \
    do { \
        int before_ = -1; \
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL); \
        call; \
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); \
        CHECK(before_ == PTHREAD_CANCEL_ENABLE); \
    } while (0)
/* Its code is looked at behind it: what a check prints is a point of cancellation, too. */
static int32_t code;
#define ANSWERS(expected, call) \
    do { \
        error = WATCHCORE_ERROR_INIT; \
        INSIDE(code = (call)); \
        (void)check_report(code == (expected), __FILE__, __LINE__, #call, error.message); \
    } while (0)

#define GOOD(call) ANSWERS(WATCHCORE_OK, call)

/* Runs in a thread of its own that has a cancellation pending. It returns; the cancellation takes effect behind it. */
static void *pending(void *test)
{
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    CHECK(pthread_cancel(pthread_self()) == 0);
    (*(void (**)(void))test)();
    *(void (**)(void))test = NULL; /* it came to its end */
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    pthread_testcancel();
    return NULL;
}

static void with_pending(void (*test)(void))
{
    pthread_t thread;
    void *result = NULL;
    CHECK(pthread_create(&thread, NULL, pending, &test) == 0 && pthread_join(thread, &result) == 0);
    CHECK(test == NULL && result == PTHREAD_CANCELED);
}

/* A log function that reaches a cancellation point for each message. */
static void log_to(void *descriptor, uint32_t level, const char *message, size_t length)
{
    (void)level;
    if (write(*(int *)descriptor, message, length) < 0) {
        abort();
    }
}

static watchcore_feeder *feeder_of_nothing(watchcore_cache *cache)
{
    watchcore_etcd_options etcd = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_feeder *feeder = NULL;
    etcd.endpoints = text("http://127.0.0.1:1");
    GOOD(watchcore_feeder_start(cache, &etcd, &feeder, &error));
    return feeder;
}

/* The whole life of a cache, every function of it once, and the end of the library. */
static void live(void)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_subscription_options follow = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_change one = exact("/a", "1", 1, 1, 1), change_of_a = put("/a", "2");
    watchcore_cache *cache = NULL, *fed = NULL;
    const watchcore_cache *caches[1];
    watchcore_writer *writer = NULL;
    watchcore_loading *loading = NULL;
    watchcore_feeder *feeder = NULL;
    watchcore_subscription *subscription = NULL, *other = NULL;
    watchcore_subscription_list *list = NULL;
    watchcore_subscription_info info = WATCHCORE_SUBSCRIPTION_INFO_INIT;
    watchcore_subscription_statistics statistics = WATCHCORE_SUBSCRIPTION_STATISTICS_INIT;
    watchcore_waiter *waiter = NULL;
    watchcore_wakeset *set = NULL;
    watchcore_snapshot *snapshot = NULL;
    watchcore_iterator *iterator = NULL;
    watchcore_page *page = NULL;
    watchcore_text *text_of = NULL;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    watchcore_status status = WATCHCORE_STATUS_INIT;
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    watchcore_counters counters = WATCHCORE_COUNTERS_INIT;
    watchcore_lag lag = WATCHCORE_LAG_INIT;
    watchcore_code_info of_code = WATCHCORE_CODE_INFO_INIT;
    watchcore_page_info of_page = WATCHCORE_PAGE_INFO_INIT;
    watchcore_bytes a = text("/a");
    const watchcore_key_value *kv = NULL;
    uint64_t number = 0, epoch = 0, tag = 0;
    uint32_t flag = 0;
    size_t count = 0;
    int32_t fd = -1;
    char buffer[64];
    FILE *sink = fopen("/dev/null", "w");
    int to = fileno(sink);

    GOOD(watchcore_log_set(log_to, &to, WATCHCORE_LOG_TRACE, &error));
    options.prefix = text("/");
    options.expect_load = 1;
    GOOD(watchcore_cache_new(&options, &cache, &error));
    GOOD(watchcore_writer_new(cache, &writer, &error));
    GOOD(watchcore_wakeset_new(&set, &error));
    GOOD(watchcore_wakeset_fd(set, &fd, &error));
    GOOD(watchcore_subscription_new(cache, NULL, &subscription, &error));
    GOOD(watchcore_waiter_new(cache, WATCHCORE_WANT_READY, 0, 0, &waiter, &error));
    GOOD(watchcore_wakeset_add_subscription(set, subscription, 1, &error));
    GOOD(watchcore_wakeset_add_waiter(set, waiter, 2, &error));
    ANSWERS(WATCHCORE_TIMEOUT, watchcore_cache_wait_ready(cache, 1, &error));
    GOOD(watchcore_loading_new(writer, 5, &loading, &error));
    GOOD(watchcore_loading_add(loading, writer, &one, 1, &error));
    GOOD(watchcore_loading_finish(loading, writer, &error));
    INSIDE(watchcore_loading_free(loading));
    GOOD(watchcore_wakeset_wait(set, -1, &error));
    GOOD(watchcore_wakeset_next(set, &tag, &flag, &error));
    GOOD(watchcore_wakeset_take(set, &tag, 1, &count, &error));
    GOOD(watchcore_waiter_try(waiter, &flag, NULL, NULL, &error));
    GOOD(watchcore_writer_apply(writer, 6, &change_of_a, 1, &error));
    GOOD(watchcore_writer_progress(writer, 7, &error));
    GOOD(watchcore_writer_compact(writer, 5, &error));
    one = exact("/a", "3", 1, 8, 3);
    GOOD(watchcore_writer_resync(writer, 8, &one, 1, WATCHCORE_RESYNC_REQUESTED, &number, &epoch, &error));
    ANSWERS(WATCHCORE_OUT_OF_ORDER, watchcore_writer_load(writer, 9, &one, 1, &error));
    GOOD(watchcore_subscription_wait(subscription, -1, &error));
    GOOD(watchcore_subscription_poll(subscription, 0, &batch, &error));
    CHECK(batch.count > 0);
    INSIDE(watchcore_batch_release(&batch));
    GOOD(watchcore_subscription_position(subscription, &number, &epoch, &error));
    GOOD(watchcore_subscription_lag(subscription, &lag, &error));
    GOOD(watchcore_subscription_stats(subscription, &statistics, &error));
    GOOD(watchcore_subscription_list_new(cache, &list, &error));
    INSIDE(CHECK(watchcore_subscription_list_count(list) == 1));
    GOOD(watchcore_subscription_list_item(list, 0, &info, &error));
    INSIDE(watchcore_subscription_list_free(list));
    GOOD(watchcore_cache_wait_until(cache, 8, -1, &number, &epoch, &error));
    ANSWERS(WATCHCORE_FUTURE_REVISION, watchcore_cache_wait_until(cache, 9, 1, NULL, NULL, &error));
    GOOD(watchcore_cache_consistent_revision(cache, -1, &number, &error));
    GOOD(watchcore_cache_position(cache, &number, NULL, NULL, &error));
    GOOD(watchcore_cache_is_ready(cache, &flag, &error));
    GOOD(watchcore_cache_status(cache, &status, &error));
    GOOD(watchcore_cache_stats(cache, &stats, &error));
    GOOD(watchcore_cache_text(cache, WATCHCORE_TEXT_NAME, buffer, sizeof(buffer), &count, &error));
    caches[0] = cache;
    GOOD(watchcore_metrics_text(caches, 1, NULL, &text_of, &error));
    INSIDE(CHECK(watchcore_text_get(text_of).length > 0));
    INSIDE(watchcore_text_free(text_of));
    GOOD(watchcore_cache_get(cache, "/a", 2, NULL, &answer, &error));
    INSIDE(watchcore_key_value_release(answer.kv));
    GOOD(watchcore_cache_get_many(cache, &a, 1, NULL, &kv, NULL, NULL, &error));
    INSIDE(watchcore_key_values_release(&kv, 1));
    GOOD(watchcore_cache_count(cache, NULL, NULL, &number, NULL, NULL, &error));
    GOOD(watchcore_cache_diff(cache, 8, 0, 8, 0, NULL, &batch, &error));
    INSIDE(watchcore_batch_release(&batch));
    GOOD(watchcore_cache_list(cache, NULL, NULL, &page, NULL, &error));
    GOOD(watchcore_page_describe(page, &of_page, &error));
    CHECK(of_page.count == 1 && of_page.revision == 8);
    INSIDE(CHECK(watchcore_page_item(page, 0) != NULL && watchcore_page_items(page) != NULL));
    INSIDE(watchcore_page_free(page));
    GOOD(watchcore_snapshot_new(cache, &snapshot, &error));
    GOOD(watchcore_snapshot_position(snapshot, &number, &epoch, &error));
    GOOD(watchcore_snapshot_get(snapshot, "/a", 2, &flag, &kv, &error));
    GOOD(watchcore_snapshot_get_many(snapshot, &a, 1, &kv, &error));
    INSIDE(watchcore_key_values_release(&kv, 1));
    GOOD(watchcore_snapshot_count(snapshot, NULL, &number, &error));
    GOOD(watchcore_iterator_new(snapshot, NULL, &iterator, &error));
    GOOD(watchcore_iterator_next(iterator, &kv, 1, &count, &error));
    INSIDE(watchcore_iterator_free(iterator));
    INSIDE(watchcore_snapshot_free(snapshot));
    INSIDE(CHECK(watchcore_version() != NULL && watchcore_abi_version() == 0));
    INSIDE(CHECK(watchcore_name(WATCHCORE_NAME_STATE, 1) != NULL && watchcore_error_name(1) != NULL));
    GOOD(watchcore_code_describe(1, &of_code, &error));
    GOOD(watchcore_wakeset_remove_subscription(set, subscription, &error));
    GOOD(watchcore_wakeset_remove_waiter(set, waiter, &error));
    INSIDE(watchcore_waiter_free(waiter));
    INSIDE(watchcore_wakeset_free(set));

    options.expect_load = 0;
    GOOD(watchcore_cache_new(&options, &fed, &error));
    feeder = feeder_of_nothing(fed);
    GOOD(watchcore_feeder_request_resync(feeder, &error));
    GOOD(watchcore_feeder_compact(feeder, 1, &error));
    GOOD(watchcore_feeder_counters(feeder, &counters, &error));
    GOOD(watchcore_feeder_stop(feeder, &error));
    INSIDE(watchcore_feeder_free(feeder));
    INSIDE(watchcore_cache_free(fed));
    GOOD(watchcore_cache_new(&options, &fed, &error));
    feeder = feeder_of_nothing(fed);
    INSIDE(watchcore_feeder_free(feeder));
    INSIDE(watchcore_cache_free(fed));

    follow.start = WATCHCORE_START_NOW;
    GOOD(watchcore_subscription_new(cache, &follow, &other, &error));
    GOOD(watchcore_subscription_close(other, &error));
    INSIDE(watchcore_subscription_free(other));
    ANSWERS(WATCHCORE_BUSY, watchcore_shutdown(-1, &error));
    GOOD(watchcore_cache_close(cache, &error));
    INSIDE(watchcore_subscription_free(subscription));
    INSIDE(watchcore_writer_free(writer));
    INSIDE(watchcore_cache_free(cache));
    GOOD(watchcore_log_set(NULL, NULL, WATCHCORE_LOG_OFF, &error));
    GOOD(watchcore_shutdown(-1, &error));
    fclose(sink);
}

static void test_every_function_is_left_before_a_cancellation(void)
{
    with_pending(live);
}

/* The state that a caller has is the one that it gets back. */
static void test_state_of_the_caller_stays(void)
{
    int before = -1;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    (void)watchcore_version();
    (void)watchcore_subscription_close(NULL, NULL);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    CHECK(before == PTHREAD_CANCEL_DISABLE);
    (void)watchcore_version();
    (void)watchcore_subscription_close(NULL, NULL);
    watchcore_cache_free(NULL);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    CHECK(before == PTHREAD_CANCEL_ENABLE);
}

/* What the publisher and those who sleep have in common. */
static struct {
    watchcore_cache *cache;
    watchcore_writer *writer;
    watchcore_subscription *member, *sleeper;
    watchcore_wakeset *set;
    int32_t fd;
    uint64_t revision;
} scene;

static void *wait_for_ever(void *subscription)
{
    return watchcore_subscription_wait(subscription, -1, NULL) == WATCHCORE_OK ? subscription : NULL;
}

static uint64_t asleep(void)
{
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    return watchcore_cache_stats(scene.cache, &stats, NULL) == WATCHCORE_OK ? stats.waiting : 0;
}

static void publish(void)
{
    watchcore_change one = put("/a", "1");
    GOOD(watchcore_writer_apply(scene.writer, ++scene.revision, &one, 1, &error));
}

/* A publisher wakes a member of a wake set and a thread itself, by calls of the system. It is cancelled: the revision is whole,
   both are woken, and the next revision is published by another thread, and by another writer. */
static void test_cancelled_publisher_leaves_nothing_half_done(void)
{
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    struct pollfd one;
    pthread_t thread;
    void *woken = NULL;
    uint64_t tag = 0;
    uint32_t found = 0;
    int round;
    scene.cache = embedded(&scene.writer);
    scene.revision = 0;
    options.start = WATCHCORE_START_NOW;
    CHECK(watchcore_subscription_new(scene.cache, &options, &scene.member, &error) == WATCHCORE_OK);
    CHECK(watchcore_subscription_new(scene.cache, &options, &scene.sleeper, &error) == WATCHCORE_OK);
    CHECK(watchcore_wakeset_new(&scene.set, &error) == WATCHCORE_OK);
    CHECK(watchcore_wakeset_fd(scene.set, &scene.fd, &error) == WATCHCORE_OK);
    CHECK(watchcore_wakeset_add_subscription(scene.set, scene.member, 7, &error) == WATCHCORE_OK);
    one.fd = scene.fd;
    one.events = POLLIN;
    for (round = 0; round < 100 && !check_broken; round++) {
        CHECK(pthread_create(&thread, NULL, wait_for_ever, scene.sleeper) == 0);
        while (asleep() < 2) {
            sched_yield();
        }
        with_pending(publish);
        CHECK(pthread_join(thread, &woken) == 0 && woken == scene.sleeper);
        CHECK(poll(&one, 1, -1) == 1);
        CHECK(watchcore_wakeset_next(scene.set, &tag, &found, &error) == WATCHCORE_OK && found == 1 && tag == 7);
        CHECK(watchcore_subscription_poll(scene.member, 0, &batch, &error) == WATCHCORE_OK && batch.count == 1);
        CHECK(batch.position == scene.revision);
        watchcore_batch_release(&batch);
        CHECK(watchcore_wakeset_next(scene.set, &tag, &found, &error) == WATCHCORE_OK && found == 0);
        CHECK(watchcore_subscription_poll(scene.sleeper, 0, &batch, &error) == WATCHCORE_OK && batch.count == 1);
        watchcore_batch_release(&batch);
        CHECK(watchcore_cache_get(scene.cache, "/a", 2, NULL, &answer, &error) == WATCHCORE_OK);
        CHECK(answer.revision == scene.revision && answer.kv != NULL && answer.kv->version == scene.revision);
        watchcore_key_value_release(answer.kv);
        if (round == 50) {
            watchcore_writer_free(scene.writer);
            CHECK(watchcore_writer_new(scene.cache, &scene.writer, &error) == WATCHCORE_OK);
        }
    }
    watchcore_subscription_free(scene.member);
    watchcore_subscription_free(scene.sleeper);
    watchcore_wakeset_free(scene.set);
    watchcore_writer_free(scene.writer);
    watchcore_cache_free(scene.cache);
}

/* A wait, and what it answered. */
typedef struct {
    int32_t (*wait)(void);
    int32_t code;
} waiting;

static int32_t wait_subscription(void)
{
    return watchcore_subscription_wait(scene.sleeper, -1, NULL);
}

static int32_t wait_revision(void)
{
    return watchcore_cache_wait_until(scene.cache, 1000, -1, NULL, NULL, NULL);
}

static int32_t wait_read(void)
{
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    read.mode = WATCHCORE_READ_AT_LEAST;
    read.revision = 1000;
    read.timeout_ms = -1;
    return watchcore_cache_get(scene.cache, "/a", 2, &read, &answer, NULL);
}

static void *wait_and_end(void *what)
{
    ((waiting *)what)->code = ((waiting *)what)->wait();
    pthread_testcancel();
    return NULL;
}

/* A thread that waits is cancelled: it waits on, and leaves when the wait ends. */
static void test_cancelled_waiter_leaves_when_its_wait_ends(void)
{
    int32_t (*const waits[])(void) = {wait_subscription, wait_revision, wait_read};
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    size_t i;
    options.start = WATCHCORE_START_NOW;
    for (i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
        waiting what = {waits[i], -1};
        pthread_t thread;
        void *result = NULL;
        scene.cache = embedded(&scene.writer);
        CHECK(watchcore_subscription_new(scene.cache, &options, &scene.sleeper, &error) == WATCHCORE_OK);
        CHECK(pthread_create(&thread, NULL, wait_and_end, &what) == 0);
        while (asleep() < 1) {
            sched_yield();
        }
        CHECK(pthread_cancel(thread) == 0);
        CHECK(asleep() == 1);
        CHECK(watchcore_cache_close(scene.cache, &error) == WATCHCORE_OK);
        CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
        CHECK(what.code == WATCHCORE_CLOSED);
        watchcore_subscription_free(scene.sleeper);
        watchcore_writer_free(scene.writer);
        watchcore_cache_free(scene.cache);
    }
}

int main(void)
{
    RUN(test_every_function_is_left_before_a_cancellation);
    RUN(test_state_of_the_caller_stays);
    RUN(test_cancelled_publisher_leaves_nothing_half_done);
    RUN(test_cancelled_waiter_leaves_when_its_wait_ends);
    return check_finish("cancel");
}
