/* Selectors, attributes and indexes through the C interface: what outlives them, and how they read. */

#include "objects.h"

/* A batch of a filtered deletion may outlive the subscription, the cache and the key-value. */
static void test_filtered_batches_live_on(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = declared(1, &writer);
    watchcore_subscription *web = selecting(cache, WATCHCORE_START_NOW, "app=web", NULL);
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    const watchcore_event *event;
    apply(writer, 1, put("/x/a", WEB));
    apply(writer, 2, put("/x/a", DB));
    CHECK_OK(watchcore_subscription_poll(web, 0, &batch, &error));
    watchcore_subscription_free(web);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
    CHECK(batch.count == 2);
    event = watchcore_batch_event(&batch, 1);
    CHECK(event->type == WATCHCORE_EVENT_DELETED && same(watchcore_event_key(event), "/x/a"));
    CHECK(same(watchcore_event_prev_value(event), WEB) && event->kv->value == NULL);
    watchcore_batch_release(&batch);
    CHECK(batch.count == 0 && batch.owner == NULL);
}

/* A snapshot has no events, so that it does not look at the types of a filter; an iterator outlives it. */
static void test_snapshots_ignore_types(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = declared(0, &writer);
    watchcore_filter filter = WATCHCORE_FILTER_INIT;
    watchcore_snapshot *snapshot = NULL;
    watchcore_iterator *iterator = NULL;
    const watchcore_key_value *items[4];
    uint64_t count = 0;
    size_t filled = 0;
    fill(writer);
    filter.labels = text("app");
    filter.types = WATCHCORE_MASK(WATCHCORE_EVENT_DELETED);
    CHECK_OK(watchcore_snapshot_new(cache, &snapshot, &error));
    CHECK_OK(watchcore_snapshot_count(snapshot, &filter, &count, &error));
    CHECK(count == 3);
    CHECK_OK(watchcore_iterator_new(snapshot, &filter, &iterator, &error));
    watchcore_snapshot_free(snapshot);
    CHECK_OK(watchcore_iterator_next(iterator, items, 4, &filled, &error));
    CHECK(filled == 3);
    watchcore_iterator_free(iterator);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* Kubernetes' protobuf storage form: "k8s\0", in field 2 the object, in its field 2 a message with a string 10. */
static void test_protobuf_paths(void)
{
    static const char pod[] = "k8s\0\x12\x06\x12\x04\x52\x02n1";
    const uint32_t path[2] = {2, 10};
    watchcore_attribute node = WATCHCORE_ATTRIBUTE_INIT;
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    watchcore_cache *cache = NULL;
    watchcore_writer *writer = NULL;
    watchcore_change one = put("/a", NULL);
    uint64_t count = 0;
    node.kind = WATCHCORE_ATTRIBUTE_JSON;
    node.name = text("node");
    node.pointer = text("/spec/nodeName");
    node.protobuf_path = path;
    node.protobuf_path_length = 2;
    options.fields = &node;
    options.field_count = 1;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    CHECK_OK(watchcore_writer_new(cache, &writer, &error));
    one.value = watchcore_bytes_from(pod, sizeof(pod) - 1);
    apply(writer, 1, one);
    apply(writer, 2, put("/b", "{\"spec\":{\"nodeName\":\"n1\"}}"));
    apply(writer, 3, put("/c", "{\"spec\":"));
    read.fields = text("node=n1");
    CHECK_OK(watchcore_cache_count(cache, NULL, &read, &count, NULL, NULL, &error));
    CHECK(count == 2);
    CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
    CHECK(stats.extract_failures == 1 && stats.objects == 3); /* counted, and stored all the same */
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* Which way a subscription reads, and how much of the log it did not look at. */
static void reads_by(watchcore_cache *cache, watchcore_writer *writer, uint64_t *revision,
                     watchcore_subscription_options options, const char *index)
{
    watchcore_subscription *subscription = NULL;
    watchcore_subscription_statistics statistics = WATCHCORE_SUBSCRIPTION_STATISTICS_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    uint64_t i;
    options.start = WATCHCORE_START_NOW;
    CHECK_OK(watchcore_subscription_new(cache, &options, &subscription, &error));
    apply(writer, ++*revision, put("/q/first", BARE)); /* the writer makes the bucket */
    CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
    watchcore_batch_release(&batch);
    for (i = 0; i < 100; i++) {
        apply(writer, ++*revision, put("/other/busy", BARE));
    }
    apply(writer, ++*revision, put("/x/a", WEB));
    next_is(subscription, &batch, WATCHCORE_EVENT_ADDED, *revision, "/x/a");
    watchcore_batch_release(&batch);
    CHECK_OK(watchcore_subscription_stats(subscription, &statistics, &error));
    if (index != NULL) {
        CHECK(statistics.read_path == WATCHCORE_READ_PATH_CHAIN && same(statistics.index, index));
        CHECK(statistics.looked_at < 20 && statistics.handed_out == 1);
    } else {
        CHECK(statistics.read_path == WATCHCORE_READ_PATH_SCAN && statistics.index.data == NULL && statistics.index.length == 0);
        CHECK(statistics.looked_at + statistics.skipped >= 101 && statistics.handed_out == 1);
    }
    CHECK(statistics.lagged == 0 && statistics.delivered_keys == 0 && statistics.delivered_bytes == 0);
    apply(writer, ++*revision, del("/x/a"));
    watchcore_subscription_free(subscription);
}

static void test_routes(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = declared(1, &writer);
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    const watchcore_subscription_options none = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    uint64_t revision = 0;
    options.range = WATCHCORE_RANGE_KEY;
    options.from = text("/x/a");
    reads_by(cache, writer, &revision, options, "key");
    options.range = WATCHCORE_RANGE_PREFIX;
    options.from = text("/x/");
    reads_by(cache, writer, &revision, options, "prefix of depth 1");
    options = none;
    options.fields = text("phase=Running");
    reads_by(cache, writer, &revision, options, "field phase");
    options = none;
    options.labels = text("app=web");
    reads_by(cache, writer, &revision, options, "label app");
    options.labels = text("tier");
    reads_by(cache, writer, &revision, options, NULL);
    CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
    CHECK(stats.buckets >= 1 && stats.caught_panics == 0);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

int main(void)
{
    RUN(test_filtered_batches_live_on);
    RUN(test_snapshots_ignore_types);
    RUN(test_protobuf_paths);
    RUN(test_routes);
    return check_finish("filters");
}
