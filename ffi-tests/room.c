/* Structs of a caller that knows the fields of its own header only, each with memory behind it that is not the
   library's: answers end where the caller's struct ends, and options end where they did. */
#include "check.h"

static watchcore_error error;

#define GUARD 256
#define ROOM(type) \
    struct { \
        type known; \
        unsigned char guard[GUARD]; \
    }
/* Fills the struct with its initialiser, and all behind it with a pattern. */
#define PREPARE(room, type, init) \
    do { \
        const type init_ = init; \
        memset(&(room), 0xa5, sizeof(room)); \
        (room).known = init_; \
    } while (0)

static int untouched(const unsigned char *guard)
{
    size_t i;
    for (i = 0; i < GUARD; i++) {
        if (guard[i] != 0xa5) {
            return 0;
        }
    }
    return 1;
}

static void test_answers_end_where_the_struct_ends(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription *subscription = NULL;
    watchcore_change one = put("/a", "1");
    ROOM(watchcore_answer) answer;
    ROOM(watchcore_status) status;
    ROOM(watchcore_stats) stats;
    ROOM(watchcore_lag) lag;
    ROOM(watchcore_code_info) code;
    ROOM(watchcore_page_info) info;
    watchcore_page *page = NULL;
    ROOM(watchcore_batch) batch;
    ROOM(watchcore_error) bad;

    CHECK_OK(watchcore_subscription_new(cache, NULL, &subscription, &error));
    CHECK_OK(watchcore_writer_apply(writer, 3, &one, 1, &error));
    PREPARE(answer, watchcore_answer, WATCHCORE_ANSWER_INIT);
    CHECK_OK(watchcore_cache_get(cache, "/a", 2, NULL, &answer.known, &error));
    CHECK(answer.known.size == sizeof(watchcore_answer) && answer.known.found == 1 && answer.known.revision == 3);
    CHECK(untouched(answer.guard));
    watchcore_key_value_release(answer.known.kv);
    PREPARE(status, watchcore_status, WATCHCORE_STATUS_INIT);
    CHECK_OK(watchcore_cache_status(cache, &status.known, &error));
    CHECK(status.known.size == sizeof(watchcore_status) && status.known.revision == 3 && untouched(status.guard));
    PREPARE(stats, watchcore_stats, WATCHCORE_STATS_INIT);
    CHECK_OK(watchcore_cache_stats(cache, &stats.known, &error));
    CHECK(stats.known.size == sizeof(watchcore_stats) && untouched(stats.guard));
    PREPARE(lag, watchcore_lag, WATCHCORE_LAG_INIT);
    CHECK_OK(watchcore_subscription_lag(subscription, &lag.known, &error));
    CHECK(lag.known.size == sizeof(watchcore_lag) && untouched(lag.guard));
    PREPARE(code, watchcore_code_info, WATCHCORE_CODE_INFO_INIT);
    CHECK_OK(watchcore_code_describe(WATCHCORE_CLOSED, &code.known, &error));
    CHECK(code.known.size == sizeof(watchcore_code_info) && code.known.fatal == 1 && untouched(code.guard));
    PREPARE(info, watchcore_page_info, WATCHCORE_PAGE_INFO_INIT);
    CHECK_OK(watchcore_cache_list(cache, NULL, NULL, &page, NULL, &error));
    CHECK_OK(watchcore_page_describe(page, &info.known, &error));
    CHECK(info.known.size == sizeof(watchcore_page_info) && info.known.revision == 3 && untouched(info.guard));
    watchcore_page_free(page);
    PREPARE(batch, watchcore_batch, WATCHCORE_BATCH_INIT);
    CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch.known, &error));
    CHECK(batch.known.count > 0 && untouched(batch.guard));
    watchcore_batch_release(&batch.known);
    PREPARE(bad, watchcore_error, WATCHCORE_ERROR_INIT);
    CHECK(watchcore_writer_apply(writer, 3, &one, 1, &bad.known) == WATCHCORE_OUT_OF_ORDER);
    CHECK(bad.known.size == sizeof(watchcore_error) && bad.known.code == WATCHCORE_OUT_OF_ORDER);
    CHECK(strlen(bad.known.message) > 10 && untouched(bad.guard));

    watchcore_subscription_free(subscription);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* What lies behind a struct of options is rubbish, and nobody looks at it. */
static void test_options_end_where_the_struct_ends(void)
{
    ROOM(watchcore_cache_options) cache_options;
    ROOM(watchcore_subscription_options) options;
    ROOM(watchcore_read_options) read;
    ROOM(watchcore_range) range;
    ROOM(watchcore_etcd_options) etcd;
    ROOM(watchcore_counters) counters;
    watchcore_change changes[3];
    watchcore_cache *cache = NULL, *fed = NULL;
    watchcore_writer *writer = NULL;
    watchcore_subscription *subscription = NULL;
    watchcore_feeder *feeder = NULL;
    watchcore_page *page = NULL;
    watchcore_page_info info;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    uint64_t count = 0;
    int32_t code;

    PREPARE(cache_options, watchcore_cache_options, WATCHCORE_CACHE_OPTIONS_INIT);
    cache_options.known.prefix = text("/");
    CHECK_OK(watchcore_cache_new(&cache_options.known, &cache, &error));
    CHECK_OK(watchcore_writer_new(cache, &writer, &error));
    /* An array steps by the size that its caller knows. */
    changes[0] = put("/a", "1");
    changes[1] = put("/b/1", "2");
    changes[2] = put("/b/2", "3");
    CHECK_OK(watchcore_writer_apply(writer, 1, changes, 3, &error));
    PREPARE(options, watchcore_subscription_options, WATCHCORE_SUBSCRIPTION_OPTIONS_INIT);
    options.known.range = WATCHCORE_RANGE_PREFIX;
    options.known.from = text("/b/");
    CHECK_OK(watchcore_subscription_new(cache, &options.known, &subscription, &error));
    CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
    CHECK(batch.count == 3); /* two, and the end of the state */
    CHECK(same(watchcore_event_key(watchcore_batch_event(&batch, 0)), "/b/1"));
    watchcore_batch_release(&batch);
    PREPARE(read, watchcore_read_options, WATCHCORE_READ_OPTIONS_INIT);
    PREPARE(range, watchcore_range, WATCHCORE_RANGE_INIT);
    read.known.limit = 2;
    CHECK_OK(watchcore_cache_list(cache, &range.known, &read.known, &page, NULL, &error));
    info = page_info(page);
    CHECK(info.count == 2 && info.more == 1 && info.remaining == 1);
    watchcore_page_free(page);
    CHECK_OK(watchcore_cache_count(cache, &range.known, NULL, &count, NULL, NULL, &error));
    CHECK(count == 3);

    /* Nobody listens there; what it would do is not of interest here. */
    PREPARE(etcd, watchcore_etcd_options, WATCHCORE_ETCD_OPTIONS_INIT);
    etcd.known.endpoints = text("http://127.0.0.1:1");
    CHECK_OK(watchcore_cache_new(&cache_options.known, &fed, &error));
    memset(&error, 0, sizeof(error));
    error.size = (uint32_t)sizeof(error);
    code = watchcore_feeder_start(fed, &etcd.known, &feeder, &error);
    CHECK(code == WATCHCORE_OK || code == WATCHCORE_UNSUPPORTED);
    if (code == WATCHCORE_OK) {
        PREPARE(counters, watchcore_counters, WATCHCORE_COUNTERS_INIT);
        CHECK_OK(watchcore_feeder_counters(feeder, &counters.known, &error));
        CHECK(counters.known.size == sizeof(watchcore_counters) && untouched(counters.guard));
        CHECK_OK(watchcore_feeder_stop(feeder, &error));
    }
    watchcore_feeder_free(feeder);
    watchcore_cache_free(fed);
    watchcore_subscription_free(subscription);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

int main(void)
{
    RUN(test_answers_end_where_the_struct_ends);
    RUN(test_options_end_where_the_struct_ends);
    return check_finish("room");
}
