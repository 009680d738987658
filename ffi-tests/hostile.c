/* Declarations and selectors that are refused, with the reason; structs of older and of later headers; no handles. */
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "objects.h"

/* Every new function once without a handle, and without an output. */
static void test_null(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription_statistics statistics = WATCHCORE_SUBSCRIPTION_STATISTICS_INIT;
    watchcore_subscription *subscription = NULL;
    watchcore_snapshot *snapshot = NULL;
    watchcore_iterator *iterator = NULL;
    watchcore_waiter *waiter = NULL;
    watchcore_text *token = NULL;
    watchcore_page *page = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    uint64_t count = 0;
    BAD(watchcore_cache_list(NULL, NULL, NULL, &page, &token, &error));
    BAD(watchcore_cache_diff(NULL, 0, 0, 0, 0, NULL, &batch, &error));
    BAD(watchcore_snapshot_count(NULL, NULL, &count, &error));
    BAD(watchcore_iterator_new(NULL, NULL, &iterator, &error));
    BAD(watchcore_subscription_stats(NULL, &statistics, &error));
    BAD(watchcore_waiter_new(NULL, WATCHCORE_WANT_READY, 0, 0, &waiter, &error));
    CHECK_OK(watchcore_subscription_new(cache, NULL, &subscription, &error));
    CHECK_OK(watchcore_snapshot_new(cache, &snapshot, &error));
    BAD(watchcore_cache_list(cache, NULL, NULL, NULL, &token, &error));
    BAD(watchcore_cache_list(cache, NULL, NULL, &page, (watchcore_text **)(void *)((char *)&token + 1), &error));
    BAD(watchcore_cache_diff(cache, 0, 0, 0, 0, NULL, NULL, &error));
    BAD(watchcore_snapshot_count(snapshot, NULL, NULL, &error));
    BAD(watchcore_iterator_new(snapshot, NULL, NULL, &error));
    BAD(watchcore_subscription_stats(subscription, NULL, &error));
    BAD(watchcore_waiter_new(cache, WATCHCORE_WANT_READY, 0, 0, NULL, &error));
    CHECK(page == NULL && token == NULL && iterator == NULL && waiter == NULL);
    CHECK(watchcore_text_get((const watchcore_text *)(const void *)cache).data == NULL); /* of another kind */
    watchcore_snapshot_free(snapshot);
    watchcore_subscription_free(subscription);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static watchcore_attribute json_field(const char *name, const char *pointer)
{
    watchcore_attribute one = WATCHCORE_ATTRIBUTE_INIT;
    one.kind = WATCHCORE_ATTRIBUTE_JSON;
    one.name = text(name);
    one.pointer = text(pointer);
    return one;
}

static void refused(watchcore_attribute field, const char *because)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    options.fields = &field;
    options.field_count = 1;
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(cache == NULL);
    (void)check_report(strstr(error.message, because) != NULL, __FILE__, __LINE__, because, error.message);
}

static void test_hostile_attributes(void)
{
    const uint32_t zero = 0;
    watchcore_attribute one, many[65];
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    size_t i;
    one = json_field("a", "/a");
    one.kind = 0;
    refused(one, "kind is 0");
    one.kind = UINT32_MAX;
    refused(one, "kind is 4294967295");
    refused(json_field(NULL, "/a"), "name is absent");
    refused(json_field("", "/a"), "empty");
    refused(json_field("a", NULL), "pointer is absent");
    refused(json_field("a", "no slash"), "pointer");
    one = json_field("a", "/a");
    one.name = watchcore_bytes_from("\xc3\x28", 2);
    refused(one, "UTF-8");
    one.name = watchcore_bytes_from(NULL, 7);
    refused(one, "NULL with length 7");
    one.name = watchcore_bytes_from("a", SIZE_MAX);
    refused(one, "impossible length");
    one = json_field("a", "/a");
    one.pointer = watchcore_bytes_from("/\xff", 2);
    refused(one, "UTF-8");
    one = json_field("a", "/a");
    one.depth = 1;
    refused(one, "depth");
    one.depth = 0;
    one.reserved = 1;
    refused(one, "reserved");
    one.reserved = 0;
    one.protobuf_path_length = 2;
    refused(one, "NULL with length 2");
    one.protobuf_path = &zero;
    one.protobuf_path_length = SIZE_MAX; /* never read that far */
    refused(one, "protobuf_path_length");
    one.protobuf_path_length = 1;
    refused(one, "number 0 is 0");
    one.protobuf_path_length = 0;
    refused(one, "protobuf path");
    one.protobuf_path = (const uint32_t *)(const void *)((const char *)&zero + 1);
    one.protobuf_path_length = 1;
    refused(one, "alignment");
    one = json_field("a", "/a");
    one.kind = WATCHCORE_ATTRIBUTE_KEY_SEGMENT;
    refused(one, "pointer is set");
    one.pointer = text(NULL);
    one.protobuf_path = &zero;
    one.protobuf_path_length = 1;
    refused(one, "protobuf_path is set");
    one = json_field("a", "/a");
    one.size = 12;
    refused(one, "size 12");

    for (i = 0; i < 65; i++) {
        many[i] = json_field("a", "/a");
    }
    options.fields = many;
    options.field_count = 2;
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(strstr(error.message, "twice") != NULL);
    options.field_count = 65;
    BAD(watchcore_cache_new(&options, &cache, &error));
    options.field_count = SIZE_MAX / 2; /* refused before it is read */
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(strstr(error.message, "64") != NULL);
    many[1].size += 8;
    options.field_count = 2;
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(strstr(error.message, "options.fields[1]") != NULL);
    options.fields = NULL;
    BAD(watchcore_cache_new(&options, &cache, &error));
    options.field_count = 0;
    options.labels_from = text("labels");
    BAD(watchcore_cache_new(&options, &cache, &error));
    options.labels_from = watchcore_bytes_from("/\xff", 2);
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(cache == NULL);
}

static void refused_index(uint32_t kind, const char *name, uint32_t depth, const char *because)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_index one = WATCHCORE_INDEX_INIT;
    watchcore_cache *cache = NULL;
    one.kind = kind;
    one.name = text(name);
    one.depth = depth;
    options.indexes = &one;
    options.index_count = 1;
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(cache == NULL && strstr(error.message, because) != NULL);
}

static void test_hostile_indexes(void)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_index many[9];
    watchcore_cache *cache = NULL;
    size_t i;
    refused_index(0, NULL, 0, "kind is 0");
    refused_index(5, NULL, 0, "kind is 5");
    refused_index(WATCHCORE_INDEX_KEY, "a", 0, "name is set");
    refused_index(WATCHCORE_INDEX_KEY, NULL, 1, "depth is set");
    refused_index(WATCHCORE_INDEX_PREFIX, NULL, 0, "depth 0");
    refused_index(WATCHCORE_INDEX_PREFIX, "a", 1, "name is set");
    refused_index(WATCHCORE_INDEX_FIELD, NULL, 0, "name is absent");
    refused_index(WATCHCORE_INDEX_FIELD, "a", 2, "depth is set");
    refused_index(WATCHCORE_INDEX_FIELD, "undeclared", 0, "undeclared");
    refused_index(WATCHCORE_INDEX_LABEL, "app", 0, "no labels");
    memset(many, 0, sizeof(many));
    for (i = 0; i < 9; i++) {
        many[i].size = (uint32_t)sizeof(many[i]);
        many[i].kind = WATCHCORE_INDEX_PREFIX;
        many[i].depth = (uint32_t)i + 1;
    }
    options.indexes = many;
    options.index_count = 9;
    BAD(watchcore_cache_new(&options, &cache, &error));
    options.index_count = SIZE_MAX;
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(strstr(error.message, "8") != NULL);
    options.index_count = 8;
    many[7].reserved = 1;
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(strstr(error.message, "options.indexes[7]") != NULL);
    many[7].reserved = 0;
    many[7].depth = 1;
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(cache == NULL && strstr(error.message, "twice") != NULL);
    many[7].depth = 8;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    watchcore_cache_free(cache);
}

static void refuses(const watchcore_cache *cache, watchcore_bytes labels, watchcore_bytes fields, const char *because)
{
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_filter filter = WATCHCORE_FILTER_INIT;
    watchcore_subscription *subscription = NULL;
    watchcore_snapshot *snapshot = NULL;
    watchcore_iterator *iterator = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    watchcore_page *page = NULL;
    uint64_t count = 0;
    options.labels = read.labels = filter.labels = labels;
    options.fields = read.fields = filter.fields = fields;
    BAD(watchcore_subscription_new(cache, &options, &subscription, &error));
    CHECK(strstr(error.message, because) != NULL);
    BAD(watchcore_cache_list(cache, NULL, &read, &page, NULL, &error));
    BAD(watchcore_cache_count(cache, NULL, &read, &count, NULL, NULL, &error));
    BAD(watchcore_cache_diff(cache, 0, 0, 0, 0, &filter, &batch, &error));
    CHECK_OK(watchcore_snapshot_new(cache, &snapshot, &error));
    BAD(watchcore_snapshot_count(snapshot, &filter, &count, &error));
    BAD(watchcore_iterator_new(snapshot, &filter, &iterator, &error));
    CHECK(strstr(error.message, because) != NULL);
    watchcore_snapshot_free(snapshot);
    CHECK(subscription == NULL && page == NULL && iterator == NULL && batch.count == 0);
}

static void test_hostile_selectors(void)
{
    enum { LONG = 1 << 20 };
    const watchcore_bytes absent = WATCHCORE_BYTES_INIT;
    watchcore_cache *cache = declared(0, NULL), *bare = embedded(NULL);
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_filter filter = WATCHCORE_FILTER_INIT;
    watchcore_snapshot *snapshot = NULL;
    watchcore_subscription *subscription = NULL;
    uint64_t count = 0;
    char *large = (char *)malloc(LONG);
    refuses(cache, text("app in (web"), absent, "11");
    refuses(cache, text("=web"), absent, "0");
    refuses(cache, watchcore_bytes_from("app=\xff", 5), absent, "");
    refuses(cache, watchcore_bytes_from(NULL, 1), absent, "NULL with length 1");
    refuses(cache, watchcore_bytes_from("a", SIZE_MAX), absent, "impossible length");
    refuses(cache, absent, text("phase"), "");
    refuses(cache, absent, text("none=x"), "none");
    refuses(bare, text("app"), absent, "declares none");
    refuses(bare, absent, text("phase=x"), "phase");
    if (large != NULL) {
        memset(large, '(', LONG);
        refuses(cache, watchcore_bytes_from(large, LONG), absent, "");
        refuses(cache, absent, watchcore_bytes_from(large, LONG), "");
        memset(large, 'a', LONG); /* one name of a MiB */
        refuses(cache, watchcore_bytes_from(large, LONG), absent, "");
        free(large);
    }

    options.nothing = 2;
    BAD(watchcore_subscription_new(cache, &options, &subscription, &error));
    options.nothing = 0;
    options.on_lag = 4;
    BAD(watchcore_subscription_new(cache, &options, &subscription, &error));
    options.on_lag = 0;
    options.max_lag_age_ms = -1;
    BAD(watchcore_subscription_new(cache, &options, &subscription, &error));
    CHECK(subscription == NULL);
    CHECK_OK(watchcore_snapshot_new(cache, &snapshot, &error));
    filter.nothing = 9;
    BAD(watchcore_snapshot_count(snapshot, &filter, &count, &error));
    filter.nothing = 0;
    filter.range = 5;
    BAD(watchcore_snapshot_count(snapshot, &filter, &count, &error));
    filter.range = WATCHCORE_RANGE_ALL;
    filter.size = 20;
    BAD(watchcore_snapshot_count(snapshot, &filter, &count, &error));
    filter.size = (uint32_t)offsetof(watchcore_filter, labels); /* an older one ends there */
    filter.labels = watchcore_bytes_from(NULL, 5);
    CHECK_OK(watchcore_snapshot_count(snapshot, &filter, &count, &error));
    watchcore_snapshot_free(snapshot);
    watchcore_cache_free(cache);
    watchcore_cache_free(bare);
}

/* Structs that end where an older header ended: what lies behind them is not looked at. */
static void test_older_sizes(void)
{
    watchcore_cache_options cache_options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    watchcore_subscription *subscription = NULL;
    watchcore_stats stats;
    watchcore_page *page = NULL;
    const size_t tail = offsetof(watchcore_cache_options, fields);
    memset((char *)&cache_options + tail, 0xee, sizeof(cache_options) - tail);
    cache_options.size = (uint32_t)tail;
    CHECK_OK(watchcore_cache_new(&cache_options, &cache, &error));
    memset(&options.labels, 0xee, sizeof(options) - offsetof(watchcore_subscription_options, labels));
    options.size = (uint32_t)offsetof(watchcore_subscription_options, labels);
    CHECK_OK(watchcore_subscription_new(cache, &options, &subscription, &error));
    memset(&read.epoch, 0xee, sizeof(read) - offsetof(watchcore_read_options, epoch));
    read.size = (uint32_t)offsetof(watchcore_read_options, epoch);
    CHECK_OK(watchcore_cache_list(cache, NULL, &read, &page, NULL, &error));
    memset(&stats, 0xee, sizeof(stats));
    stats.size = (uint32_t)offsetof(watchcore_stats, buckets);
    CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
    CHECK(stats.subscriptions == 1 && stats.buckets == UINT64_C(0xeeeeeeeeeeeeeeee));
    watchcore_page_free(page);
    watchcore_subscription_free(subscription);
    watchcore_cache_free(cache);
}

/* An array of a later, longer struct steps by the size that its first element says. */
static void test_arrays_step_by_their_size(void)
{
    struct {
        watchcore_attribute known;
        uint64_t unknown[2];
    } later[2];
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    uint64_t count = 0;
    memset(later, 0, sizeof(later));
    later[0].known = json_field("a", "/a");
    later[1].known = json_field("b", "/b");
    later[0].known.size = later[1].known.size = (uint32_t)sizeof(later[0]);
    options.fields = &later[0].known;
    options.field_count = 2;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    read.fields = text("a=,b=");
    CHECK_OK(watchcore_cache_count(cache, NULL, &read, &count, NULL, NULL, &error));
    watchcore_cache_free(cache);
    cache = NULL;
    later[1].unknown[1] = 1;
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(cache == NULL && strstr(error.message, "options.fields[1]") != NULL);
}

/* The last bytes that can be read are those of the second element: whatever size it says, nothing behind it is read. */
static void test_rubbish_size_of_a_later_element(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const uint32_t sizes[] = {0, 12, sizeof(watchcore_change) - 8, sizeof(watchcore_change) + 8, 4096, UINT32_MAX};
    watchcore_cache_options expecting = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_writer *writer = NULL, *loader = NULL;
    watchcore_cache *cache = embedded(&writer), *empty = NULL;
    watchcore_loading *loading = NULL;
    watchcore_change *changes;
    uint64_t count = 9;
    size_t i;
    char *room = (char *)mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == (char *)MAP_FAILED || mprotect(room + page, page, PROT_NONE) != 0) {
        perror("mmap");
        exit(2);
    }
    changes = (watchcore_change *)(void *)(room + page) - 2;
    changes[0] = exact("/a", "1", 1, 1, 1);
    changes[1] = exact("/b", "1", 1, 1, 1);
    expecting.expect_load = 1;
    CHECK_OK(watchcore_cache_new(&expecting, &empty, &error));
    CHECK_OK(watchcore_writer_new(empty, &loader, &error));
    CHECK_OK(watchcore_loading_new(loader, 1, &loading, &error));
    for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        changes[1].size = sizes[i];
        BAD(watchcore_writer_apply(writer, 1, changes, 2, &error));
        CHECK(strstr(error.message, "changes[1] has size") != NULL);
        BAD(watchcore_writer_resync(writer, 1, changes, 2, WATCHCORE_RESYNC_REQUESTED, NULL, NULL, &error));
        BAD(watchcore_writer_load(loader, 1, changes, 2, &error));
        BAD(watchcore_loading_add(loading, loader, changes, 2, &error));
    }
    CHECK_OK(watchcore_cache_count(cache, NULL, NULL, &count, NULL, NULL, &error));
    CHECK(count == 0);
    changes[1].size = changes[0].size;
    CHECK_OK(watchcore_loading_add(loading, loader, changes, 2, &error));
    CHECK_OK(watchcore_writer_apply(writer, 1, changes, 2, &error));
    watchcore_loading_free(loading);
    watchcore_writer_free(loader);
    watchcore_cache_free(empty);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
    CHECK(munmap(room, 2 * page) == 0);
}

int main(void)
{
    RUN(test_null);
    RUN(test_hostile_attributes);
    RUN(test_hostile_indexes);
    RUN(test_hostile_selectors);
    RUN(test_older_sizes);
    RUN(test_arrays_step_by_their_size);
    RUN(test_rubbish_size_of_a_later_element);
    return check_finish("hostile");
}
