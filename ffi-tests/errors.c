/* Every code that can be reached without a server, and what a caller's mistake answers: a code, never a crash. */
#include <sys/resource.h>

#include "check.h"

static watchcore_error error;

static void test_bad_values(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer), *other = NULL;
    watchcore_cache_options cache_options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *subscription = NULL;
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_range range = WATCHCORE_RANGE_INIT;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_bytes keys[2] = {text("/a"), text("outside")};
    const watchcore_key_value *kvs[2] = {NULL, NULL};
    watchcore_waiter *waiter = NULL;
    watchcore_page *page = NULL;
    watchcore_change changes[2];
    char buffer[8];
    uint64_t before = 0, count = 0;

    cache_options.expect_load = 2;
    BAD(watchcore_cache_new(&cache_options, &other, &error));
    cache_options.expect_load = 0;
    cache_options.keep_events = 5; /* without an age */
    BAD(watchcore_cache_new(&cache_options, &other, &error));
    cache_options.keep_ms = -1;
    BAD(watchcore_cache_new(&cache_options, &other, &error));
    cache_options.keep_ms = 75000;
    cache_options.keep_events = 1 << 30; /* more than the capacity */
    BAD(watchcore_cache_new(&cache_options, &other, &error));
    cache_options.keep_events = cache_options.keep_ms = 0;
    cache_options.name = watchcore_bytes_from("\xff", 1);
    BAD(watchcore_cache_new(&cache_options, &other, &error));
    cache_options.name = watchcore_bytes_from(NULL, 3);
    BAD(watchcore_cache_new(&cache_options, &other, &error));
    CHECK(other == NULL);

    options.start = 4;
    BAD(watchcore_subscription_new(cache, &options, &subscription, &error));
    options.start = WATCHCORE_START_NOW;
    options.revision = 1;
    BAD(watchcore_subscription_new(cache, &options, &subscription, &error));
    options.revision = 0;
    options.range = 5;
    BAD(watchcore_subscription_new(cache, &options, &subscription, &error));
    options.range = WATCHCORE_RANGE_PREFIX; /* without one */
    BAD(watchcore_subscription_new(cache, &options, &subscription, &error));
    options.range = WATCHCORE_RANGE_ALL;
    options.from = text("/a");
    BAD(watchcore_subscription_new(cache, &options, &subscription, &error));
    options.from = text(NULL);
    options.to = text("/b");
    BAD(watchcore_subscription_new(cache, &options, &subscription, &error));
    options.to = text(NULL);
    options.types = 1;
    BAD(watchcore_subscription_new(cache, &options, &subscription, &error));
    options.types = 1u << 8;
    BAD(watchcore_subscription_new(cache, &options, &subscription, &error));
    options.types = 0;
    options.bookmarks = 7;
    BAD(watchcore_subscription_new(cache, &options, &subscription, &error));
    options.bookmarks = 0;
    options.start_timeout_ms = -1;
    BAD(watchcore_subscription_new(cache, &options, &subscription, &error));
    CHECK(subscription == NULL);

    BAD(watchcore_cache_get(cache, NULL, 0, NULL, &answer, &error));
    BAD(watchcore_cache_get(cache, NULL, 1, NULL, &answer, &error));
    BAD(watchcore_cache_get(cache, "outside", 7, NULL, &answer, &error));
    BAD(watchcore_cache_get_many(cache, keys, 2, NULL, kvs, NULL, NULL, &error));
    CHECK(strstr(error.message, "outside") != NULL && kvs[0] == NULL);
    keys[1].data = NULL;
    BAD(watchcore_cache_get_many(cache, keys, 2, NULL, kvs, NULL, NULL, &error));
    CHECK(strstr(error.message, "keys[1]") != NULL);
    keys[1].length = 0;
    BAD(watchcore_cache_get_many(cache, keys, 2, NULL, kvs, NULL, NULL, &error));
    BAD(watchcore_cache_get_many(cache, keys, SIZE_MAX, NULL, kvs, NULL, NULL, &error));
    BAD(watchcore_cache_get_many(cache, NULL, 1, NULL, kvs, NULL, NULL, &error));
    read.mode = 3;
    BAD(watchcore_cache_get(cache, "/a", 2, &read, &answer, &error));
    read.mode = WATCHCORE_READ_ANY;
    read.revision = 1;
    BAD(watchcore_cache_get(cache, "/a", 2, &read, &answer, &error));
    read.revision = 0;
    read.limit = 1;
    BAD(watchcore_cache_get(cache, "/a", 2, &read, &answer, &error));
    read.limit = 0;
    read.timeout_ms = -2;
    BAD(watchcore_cache_list(cache, NULL, &read, &page, NULL, &error));
    range.kind = 5;
    BAD(watchcore_cache_count(cache, &range, NULL, &count, NULL, NULL, &error));
    BAD(watchcore_cache_wait_ready(cache, -2, &error));
    BAD(watchcore_cache_text(cache, 0, buffer, sizeof(buffer), NULL, &error));
    BAD(watchcore_waiter_new(cache, 0, 0, 0, &waiter, &error));
    BAD(watchcore_waiter_new(cache, WATCHCORE_WANT_READY, 1, 0, &waiter, &error));

    /* A change that is refused changes nothing. */
    changes[0] = put("/a", "1");
    changes[1] = put("/b", NULL);
    BAD(watchcore_writer_apply(writer, 1, changes, 2, &error));
    CHECK(strstr(error.message, "changes[1]") != NULL);
    changes[1] = put("/b", "2");
    changes[1].op = 4;
    BAD(watchcore_writer_apply(writer, 1, changes, 2, &error));
    changes[1].op = WATCHCORE_CHANGE_DELETE; /* with a value */
    BAD(watchcore_writer_apply(writer, 1, changes, 2, &error));
    changes[1] = put(NULL, "2");
    BAD(watchcore_writer_apply(writer, 1, changes, 2, &error));
    BAD(watchcore_writer_apply(writer, 1, NULL, 2, &error));
    BAD(watchcore_writer_apply(writer, 1, changes, SIZE_MAX, &error));
    changes[0] = put("/a", "1"); /* a listing takes PUT_EXACT only */
    BAD(watchcore_writer_resync(writer, 5, changes, 1, WATCHCORE_RESYNC_REQUESTED, NULL, NULL, &error));
    BAD(watchcore_writer_resync(writer, 5, NULL, 0, WATCHCORE_RESYNC_LAGGED, NULL, NULL, &error));
    BAD(watchcore_writer_resync(writer, 5, NULL, 0, 0, NULL, NULL, &error));
    CHECK_OK(watchcore_cache_count(cache, NULL, NULL, &count, &before, NULL, &error));
    CHECK(count == 0 && before == 0);

    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

#define TOO_LARGE(call) CHECK_CODE(WATCHCORE_FUTURE_REVISION, call)

/* Revisions have 52 bits: more is no revision of any source. Here are the calls of which row 2.21 has no words. */
static void no_revision(uint64_t revision)
{
    watchcore_etcd_options etcd = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_cache_options expecting = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_writer *loader = NULL;
    watchcore_loading *loading = NULL;
    watchcore_waiter *waiter = NULL;
    watchcore_feeder *feeder = NULL;
    watchcore_cache *empty = NULL;

    expecting.expect_load = 1;
    CHECK_OK(watchcore_cache_new(&expecting, &empty, &error));
    TOO_LARGE(watchcore_waiter_new(empty, WATCHCORE_WANT_REVISION, revision, 0, &waiter, &error));
    TOO_LARGE(watchcore_waiter_new(empty, WATCHCORE_WANT_REVISION, revision, 1, &waiter, &error));
    CHECK_OK(watchcore_writer_new(empty, &loader, &error));
    BAD(watchcore_loading_new(loader, revision, &loading, &error));
    watchcore_writer_free(loader);
    etcd.endpoints = text("http://127.0.0.1:1");
    etcd.start_revision = revision;
    BAD(watchcore_feeder_start(empty, &etcd, &feeder, &error));
    CHECK(waiter == NULL && loading == NULL && feeder == NULL);
    watchcore_cache_free(empty);
}

static void test_impossible_revisions(void)
{
    no_revision(WATCHCORE_REVISION_MAX + 1);
    no_revision(UINT64_MAX);
}

static void test_no_descriptor_left(void)
{
    struct rlimit old, none;
    watchcore_wakeset *set = NULL;
    CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0);
    none = old;
    none.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    CHECK_CODE(WATCHCORE_RESOURCE_EXHAUSTED, watchcore_wakeset_new(&set, &error));
    CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0 && set == NULL);
    CHECK_OK(watchcore_wakeset_new(&set, &error));
    watchcore_wakeset_free(set);
}

/* The error struct: NULL is fine, a wrong one is refused before anything happens, a long text is cut. */
static void test_error_struct(void)
{
    watchcore_cache *cache = embedded(NULL);
    watchcore_writer *writer = NULL;
    watchcore_error bad;
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_attribute fields[20];
    static char names[20][64];
    size_t i;
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    CHECK(watchcore_cache_text(cache, 0, NULL, 0, NULL, NULL) == WATCHCORE_INVALID_ARGUMENT);
    memset(&bad, 0, sizeof(bad));
    CHECK(watchcore_writer_new(cache, &writer, &bad) == WATCHCORE_INVALID_ARGUMENT);
    CHECK(writer == NULL && bad.code == 0);
    bad.size = 12;
    CHECK(watchcore_writer_new(cache, &writer, &bad) == WATCHCORE_INVALID_ARGUMENT && writer == NULL);
    CHECK(watchcore_writer_new(cache, &writer, (watchcore_error *)(void *)((char *)&bad + 1)) ==
          WATCHCORE_INVALID_ARGUMENT);
    watchcore_cache_free(cache);
    /* What names all the fields that there are is long. */
    for (i = 0; i < 20; i++) {
        fields[i] = WATCHCORE_ATTRIBUTE_INIT;
        fields[i].kind = WATCHCORE_ATTRIBUTE_KEY_SEGMENT;
        fields[i].depth = (uint32_t)i;
        (void)snprintf(names[i], sizeof(names[i]), "a-field-with-a-name-of-forty-characters-%02u", (unsigned)i);
        fields[i].name = text(names[i]);
    }
    options.fields = fields;
    options.field_count = 20;
    cache = NULL;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    read.fields = text("another=1");
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_cache_get(cache, "/a", 2, &read, &answer, &error));
    CHECK(strlen(error.message) == WATCHCORE_MESSAGE_BYTES - 1);
    watchcore_cache_free(cache);
}

/* What the codes are: row 9.1. */
static void test_codes(void)
{
    watchcore_code_info info = WATCHCORE_CODE_INFO_INIT;
    int32_t code;
    for (code = -2; code < 200; code++) {
        CHECK_OK(watchcore_code_describe(code, &info, &error));
        CHECK(strcmp(info.name, watchcore_error_name(code)) == 0 && strlen(info.sentence) > 1);
        if (strcmp(info.name, "UNKNOWN") == 0) {
            CHECK(info.retryable == 0 && info.fatal == 0 && info.retry_after_ms == 0 && info.http_status == 500);
            CHECK(strcmp(info.reason, "InternalError") == 0);
        }
    }
    CHECK_OK(watchcore_code_describe(WATCHCORE_OK, &info, &error));
    CHECK(strcmp(info.name, "OK") == 0 && info.http_status == 200 && info.reason[0] == 0);
    BAD(watchcore_code_describe(WATCHCORE_OK, NULL, &error));
    info.size = 0;
    BAD(watchcore_code_describe(WATCHCORE_OK, &info, &error));
    CHECK(info.http_status == 200); /* written only on success */
}

int main(void)
{
    RUN(test_bad_values);
    RUN(test_impossible_revisions);
    RUN(test_no_descriptor_left);
    RUN(test_error_struct);
    RUN(test_codes);
    return check_finish("errors");
}
