/* Structs of callers that were compiled against another version of the header: shorter ones are served, longer ones
   are served as long as they ask for nothing unknown. */
#include <stddef.h>

#include "check.h"

static watchcore_error error;

/* Layouts that must never change (on 64-bit machines). */
static void test_layouts(void)
{
    if (sizeof(void *) != 8) {
        return;
    }
    CHECK(sizeof(watchcore_event) == 64 && offsetof(watchcore_event, kv) == 24 && offsetof(watchcore_event, resync_from) == 40);
    CHECK(offsetof(watchcore_event, resync_epoch) == 48 && offsetof(watchcore_event, resync_reason) == 56);
    CHECK(offsetof(watchcore_event, type) == 16 && offsetof(watchcore_event, prev_kv) == 32);
    CHECK(sizeof(watchcore_batch) == 64 && offsetof(watchcore_batch, position) == 24 && offsetof(watchcore_batch, owner) == 40);
    CHECK(offsetof(watchcore_batch, stride) == 16 && offsetof(watchcore_batch, epoch) == 32);
    CHECK(sizeof(watchcore_key_value) == 56 && offsetof(watchcore_key_value, key_length) == 16);
    CHECK(offsetof(watchcore_key_value, create_revision) == 24 && offsetof(watchcore_key_value, lease) == 48);
    CHECK(sizeof(watchcore_bytes) == 16 && sizeof(watchcore_error) == 576 && offsetof(watchcore_error, message) == 56);
    CHECK(sizeof(watchcore_answer) == 32 && sizeof(watchcore_change) == 72);
}

static void test_shorter_options_have_defaults(void)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    watchcore_writer *writer = NULL;
    watchcore_subscription_options start = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *subscription = NULL;
    watchcore_change one = put("/elsewhere", "1");
    /* Knows the prefix only: what lies behind it is not looked at. */
    options.size = (uint32_t)offsetof(watchcore_cache_options, name);
    options.prefix = text("/p/");
    options.name = watchcore_bytes_from("\xff", 1);
    options.max_key_bytes = 1;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    CHECK_OK(watchcore_writer_new(cache, &writer, &error));
    BAD(watchcore_writer_apply(writer, 1, &one, 1, &error)); /* the prefix was read */
    one.key = text("/p/longer than one byte");
    CHECK_OK(watchcore_writer_apply(writer, 1, &one, 1, &error));
    start.size = (uint32_t)offsetof(watchcore_subscription_options, revision);
    start.start = WATCHCORE_START_NOW;
    start.range = 99;
    CHECK_OK(watchcore_subscription_new(cache, &start, &subscription, &error));
    watchcore_subscription_free(subscription);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static void test_longer_options_must_be_zero_behind(void)
{
    struct {
        watchcore_cache_options known;
        uint64_t unknown[4];
    } later;
    const watchcore_cache_options init = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    memset(&later, 0, sizeof(later));
    later.known = init;
    later.known.size = (uint32_t)sizeof(later);
    CHECK_OK(watchcore_cache_new(&later.known, &cache, &error));
    watchcore_cache_free(cache);
    cache = NULL;
    later.unknown[3] = 1;
    BAD(watchcore_cache_new(&later.known, &cache, &error));
    CHECK(cache == NULL && strstr(error.message, "newer") != NULL);
}

static void test_impossible_sizes(void)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    watchcore_status status = WATCHCORE_STATUS_INIT;
    uint32_t sizes[5] = {0, 4, 13, 4104, UINT32_MAX};
    size_t i;
    for (i = 0; i < 5; i++) {
        options.size = sizes[i];
        BAD(watchcore_cache_new(&options, &cache, &error));
    }
    CHECK(cache == NULL);
    cache = embedded(NULL);
    for (i = 0; i < 5; i++) {
        status.size = sizes[i];
        BAD(watchcore_cache_status(cache, &status, &error));
    }
    BAD(watchcore_cache_status(cache, (watchcore_status *)(void *)((char *)&status + 4), &error)); /* not aligned */
    watchcore_cache_free(cache);
}

static void test_out_structs(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    struct {
        watchcore_status known;
        uint64_t unknown[2];
    } status;
    watchcore_answer answer;
    watchcore_change one = put("/a", "1");
    CHECK_OK(watchcore_writer_apply(writer, 3, &one, 1, &error));
    /* A shorter one is filled as far as it reaches. */
    memset(&status, 0xee, sizeof(status));
    status.known.size = (uint32_t)offsetof(watchcore_status, epoch);
    CHECK_OK(watchcore_cache_status(cache, &status.known, &error));
    CHECK(status.known.revision == 3 && status.known.size == offsetof(watchcore_status, epoch));
    CHECK(status.known.epoch == UINT64_C(0xeeeeeeeeeeeeeeee));
    /* A longer one is zero behind what is known here. */
    status.known.size = (uint32_t)sizeof(status);
    CHECK_OK(watchcore_cache_status(cache, &status.known, &error));
    CHECK(status.known.objects == 1 && status.unknown[0] == 0 && status.unknown[1] == 0);
    /* Without room for the key-value none is handed out that could not be released. */
    memset(&answer, 0, sizeof(answer));
    answer.size = (uint32_t)offsetof(watchcore_answer, kv);
    BAD(watchcore_cache_get(cache, "/a", 2, NULL, &answer, &error));
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* An array steps by the size of its first element. */
static void test_arrays_of_older_callers(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    struct {
        uint32_t size, op;
        watchcore_bytes key, value;
    } older[3];
    struct {
        watchcore_change known;
        uint64_t unknown;
    } later[2];
    uint64_t count = 0;
    const char *keys[3] = {"/1", "/2", "/3"};
    int i;
    for (i = 0; i < 3; i++) {
        older[i].size = (uint32_t)sizeof(older[i]);
        older[i].op = WATCHCORE_CHANGE_PUT;
        older[i].key = text(keys[i]);
        older[i].value = text("v");
    }
    CHECK_OK(watchcore_writer_apply(writer, 1, (const watchcore_change *)(const void *)older, 3, &error));
    CHECK_OK(watchcore_cache_count(cache, NULL, NULL, &count, NULL, NULL, &error));
    CHECK(count == 3);
    older[1].size = sizeof(watchcore_change) - 8;
    BAD(watchcore_writer_apply(writer, 2, (const watchcore_change *)(const void *)older, 3, &error));
    memset(later, 0, sizeof(later));
    for (i = 0; i < 2; i++) {
        later[i].known = put(keys[i], "w");
        later[i].known.size = (uint32_t)sizeof(later[i]);
    }
    CHECK_OK(watchcore_writer_apply(writer, 2, &later[0].known, 2, &error));
    later[1].unknown = 1;
    BAD(watchcore_writer_apply(writer, 3, &later[0].known, 2, &error));
    CHECK(strstr(error.message, "changes[1]") != NULL);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static void test_errors_of_older_callers(void)
{
    struct {
        char bytes[sizeof(watchcore_error)];
    } room;
    watchcore_error *older = (watchcore_error *)(void *)&room;
    watchcore_cache *cache = NULL;
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    memset(&room, 0xee, sizeof(room));
    older->size = (uint32_t)offsetof(watchcore_error, epoch); /* an older one ends with the message */
    options.expect_load = 9;
    CHECK(watchcore_cache_new(&options, &cache, older) == WATCHCORE_INVALID_ARGUMENT);
    CHECK(older->code == WATCHCORE_INVALID_ARGUMENT && strlen(older->message) > 10);
    CHECK(older->epoch == UINT64_C(0xeeeeeeeeeeeeeeee));
}

int main(void)
{
    RUN(test_layouts);
    RUN(test_shorter_options_have_defaults);
    RUN(test_longer_options_must_be_zero_behind);
    RUN(test_impossible_sizes);
    RUN(test_out_structs);
    RUN(test_arrays_of_older_callers);
    RUN(test_errors_of_older_callers);
    return check_finish("sizes");
}
