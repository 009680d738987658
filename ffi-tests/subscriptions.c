/* The list of a cache's subscriptions: what it says of each, whatever their consumers do. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>

#include "check.h"

static watchcore_error error;

/* A cache whose log holds 128 events, and its writer. */
static watchcore_cache *tiny(watchcore_writer **writer)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_index by_key = WATCHCORE_INDEX_INIT;
    watchcore_cache *cache = NULL;
    by_key.kind = WATCHCORE_INDEX_KEY;
    options.capacity = 128;
    options.indexes = &by_key;
    options.index_count = 1;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    CHECK_OK(watchcore_writer_new(cache, writer, &error));
    return cache;
}

/* Opens a subscription that begins now. */
static watchcore_subscription *named(watchcore_cache *cache, const char *name)
{
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *subscription = NULL;
    options.start = WATCHCORE_START_NOW;
    options.name = text(name);
    CHECK_OK(watchcore_subscription_new(cache, &options, &subscription, &error));
    return subscription;
}

static void write_on(watchcore_writer *writer, uint64_t from, uint64_t to)
{
    watchcore_change one = put("/k", "1");
    for (; from <= to; from++) {
        CHECK_OK(watchcore_writer_apply(writer, from, &one, 1, &error));
    }
}

static watchcore_subscription_list *listed(watchcore_cache *cache)
{
    watchcore_subscription_list *list = NULL;
    CHECK_OK(watchcore_subscription_list_new(cache, &list, &error));
    return list;
}

/* How the one subscription of a cache stands. Its texts have gone with the list. */
static watchcore_subscription_info only(watchcore_cache *cache)
{
    watchcore_subscription_info info = WATCHCORE_SUBSCRIPTION_INFO_INIT;
    watchcore_subscription_list *list = listed(cache);
    CHECK(watchcore_subscription_list_count(list) == 1);
    CHECK_OK(watchcore_subscription_list_item(list, 0, &info, &error));
    watchcore_subscription_list_free(list);
    return info;
}

/* What row 6.46 does not show of names. */
static void test_names(void)
{
    watchcore_cache *cache = embedded(NULL);
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *refused = NULL, *one = named(cache, "");
    watchcore_bytes name = only(cache).name;
    CHECK(same(name, "") && (uintptr_t)name.data >= 4096); /* an address: runtimes that look at pointers refuse others */
    options.name = watchcore_bytes_from("a\xff", 2);
    BAD(watchcore_subscription_new(cache, &options, &refused, &error));
    CHECK(strstr(error.message, "options.name") != NULL);
    options.name = watchcore_bytes_from(NULL, 3);
    BAD(watchcore_subscription_new(cache, &options, &refused, &error));
    CHECK(refused == NULL);
    watchcore_subscription_free(one);
    watchcore_cache_free(cache);
}

/* A list is of its moment, and its own: it outlives what it lists. */
static int has(watchcore_text *text, const char *line)
{
    watchcore_bytes bytes = watchcore_text_get(text);
    return memmem(bytes.data, bytes.length, line, strlen(line)) != NULL;
}

/* All statistics of two caches as one text. */
static void test_metrics(void)
{
    char line[64];
    static const char type[] = "# TYPE watchcore_events_total counter\n";
    watchcore_writer *writer = NULL;
    watchcore_cache *one = embedded(&writer), *other = embedded(NULL);
    const watchcore_cache *both[3];
    watchcore_subscription *subscription = NULL;
    watchcore_metrics_options options = WATCHCORE_METRICS_OPTIONS_INIT;
    watchcore_change change = put("/a", "1");
    watchcore_text *text = NULL;
    watchcore_bytes bytes;
    const char *at;
    both[0] = one;
    both[1] = other;
    both[2] = NULL;
    CHECK_OK(watchcore_writer_apply(writer, 7, &change, 1, &error));
    CHECK_OK(watchcore_subscription_new(one, NULL, &subscription, &error));
    CHECK_OK(watchcore_metrics_text(both, 2, NULL, &text, &error));
    bytes = watchcore_text_get(text);
    CHECK(bytes.length > 1000 && ((const char *)bytes.data)[bytes.length - 1] == '\n');
    at = memmem(bytes.data, bytes.length, type, strlen(type));
    CHECK(at != NULL); /* once for both */
    CHECK(memmem(at + 1, (size_t)((const char *)bytes.data + bytes.length - at - 1), type, strlen(type)) == NULL);
    CHECK(has(text, "watchcore_events_total{cache=\"/\"} 1\n"));
    CHECK(has(text, "watchcore_events_total{cache=\"/#2\"} 0\n"));
    CHECK(!has(text, "watchcore_subscription_info"));
    watchcore_text_free(text);
    options.per_subscription = 1;
    CHECK_OK(watchcore_metrics_text(both, 1, &options, &text, &error));
    CHECK(has(text, "watchcore_subscription_info{cache=\"/\",subscription=\"\",id=\"1\""));
    watchcore_text_free(text);
    CHECK_OK(watchcore_metrics_text(NULL, 0, NULL, &text, &error));
    (void)snprintf(line, sizeof(line), "watchcore_build_info{version=\"%s\"} 1\n", watchcore_version());
    CHECK(has(text, line));
    watchcore_text_free(text);
    text = NULL;
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_metrics_text(both, 3, NULL, &text, &error)); /* a NULL in it */
    options.per_subscription = 2;
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_metrics_text(both, 1, &options, &text, &error));
    CHECK(text == NULL);
    watchcore_subscription_free(subscription);
    watchcore_writer_free(writer);
    watchcore_cache_free(one);
    watchcore_cache_free(other);
}

static void test_list_outlives_its_cache(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = tiny(&writer);
    watchcore_subscription *one = named(cache, "one"), *two;
    watchcore_subscription_list *list = listed(cache);
    watchcore_subscription_info info = WATCHCORE_SUBSCRIPTION_INFO_INIT;
    two = named(cache, "two");
    write_on(writer, 1, 7);
    watchcore_subscription_free(one);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
    CHECK(watchcore_subscription_list_count(list) == 1);
    CHECK_OK(watchcore_subscription_list_item(list, 0, &info, &error));
    CHECK(same(info.name, "one") && info.lag_events == 0);
    watchcore_subscription_list_free(list);
    watchcore_subscription_free(two);
}

/* Structs of callers that were compiled against another version of the header. */
static void test_sizes(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = tiny(&writer);
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *older = NULL;
    watchcore_subscription_list *list;
    struct {
        watchcore_subscription_info known;
        uint64_t unknown[2];
    } info;
    watchcore_status status;
    uint32_t sizes[5] = {0, 4, 13, 4104, UINT32_MAX};
    size_t i;
    /* It knows no name: what lies behind is not looked at. */
    options.size = (uint32_t)offsetof(watchcore_subscription_options, name);
    options.start = WATCHCORE_START_NOW;
    options.name = watchcore_bytes_from("\xff", 1);
    CHECK_OK(watchcore_subscription_new(cache, &options, &older, &error));
    list = listed(cache);
    for (i = 0; i < 5; i++) {
        memset(&info, 0xee, sizeof(info));
        info.known.size = sizes[i];
        BAD(watchcore_subscription_list_item(list, 0, &info.known, &error));
        CHECK(info.known.id == UINT64_C(0xeeeeeeeeeeeeeeee));
    }
    BAD(watchcore_subscription_list_item(list, 0, NULL, &error));
    BAD(watchcore_subscription_list_item(list, 0, (watchcore_subscription_info *)(void *)((char *)&info + 4), &error));
    /* A shorter one is filled as far as it reaches. */
    info.known.size = (uint32_t)offsetof(watchcore_subscription_info, name);
    CHECK_OK(watchcore_subscription_list_item(list, 0, &info.known, &error));
    CHECK(info.known.id == 1 && info.known.state == WATCHCORE_SUBSCRIPTION_STATE_LIVE);
    CHECK(info.known.size == offsetof(watchcore_subscription_info, name));
    CHECK(info.known.name.length == (size_t)UINT64_C(0xeeeeeeeeeeeeeeee));
    /* A longer one is zero behind what is known here. */
    info.known.size = (uint32_t)sizeof(info);
    CHECK_OK(watchcore_subscription_list_item(list, 0, &info.known, &error));
    CHECK(same(info.known.name, "") && info.unknown[0] == 0 && info.unknown[1] == 0);
    CHECK(info.known.index.data == NULL && info.known.epoch != 0 && info.known.polled == 0 && info.known.last_poll_ms == 0);
    BAD(watchcore_subscription_list_item(list, 1, &info.known, &error));
    BAD(watchcore_subscription_list_item(list, SIZE_MAX, &info.known, &error));
    /* The status of a program that ends where it ended before. */
    memset(&status, 0xee, sizeof(status));
    status.size = (uint32_t)offsetof(watchcore_status, max_lag_seen);
    CHECK_OK(watchcore_cache_status(cache, &status, &error));
    CHECK(status.subscriptions == 1 && status.max_lag_seen == UINT64_C(0xeeeeeeeeeeeeeeee));
    watchcore_subscription_list_free(list);
    watchcore_subscription_free(older);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static void test_of_nothing(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = tiny(&writer);
    watchcore_subscription *one = named(cache, "one");
    watchcore_subscription_list *list = NULL;
    watchcore_subscription_info info = WATCHCORE_SUBSCRIPTION_INFO_INIT;
    BAD(watchcore_subscription_list_new(NULL, &list, &error));
    BAD(watchcore_subscription_list_new(cache, NULL, &error));
    BAD(watchcore_subscription_list_new((const watchcore_cache *)(const void *)one, &list, &error));
    BAD(watchcore_subscription_list_item(NULL, 0, &info, &error));
    BAD(watchcore_subscription_list_item((const watchcore_subscription_list *)(const void *)cache, 0, &info, &error));
    CHECK(list == NULL && watchcore_subscription_list_count(NULL) == 0);
    CHECK(watchcore_subscription_list_count((const watchcore_subscription_list *)(const void *)cache) == 0);
    watchcore_subscription_list_free(NULL);
    /* That of a closed cache says that they are closing. */
    CHECK_OK(watchcore_cache_close(cache, &error));
    CHECK(only(cache).state == WATCHCORE_SUBSCRIPTION_STATE_CLOSING);
    watchcore_subscription_free(one);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* Valgrind runs one thread at a time, and slowly. */
#define LAST 300

static atomic_int stop;

/* A consumer: waits and polls until it is closed; what it handed out. */
static void *consume(void *subscription)
{
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    uintptr_t events = 0;
    while (watchcore_subscription_wait(subscription, -1, NULL) == WATCHCORE_OK &&
           watchcore_subscription_poll(subscription, 7, &batch, NULL) == WATCHCORE_OK) {
        events += batch.count;
        watchcore_batch_release(&batch);
    }
    return (void *)events;
}

/* Opens, polls once and frees, all the time. */
static void *come_and_go(void *cache)
{
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    options.name = text("guest");
    while (!atomic_load(&stop)) {
        watchcore_subscription *guest = NULL;
        if (watchcore_subscription_new(cache, &options, &guest, NULL) != WATCHCORE_OK ||
            watchcore_subscription_poll(guest, 0, &batch, NULL) != WATCHCORE_OK) {
            return (void *)1;
        }
        watchcore_batch_release(&batch);
        watchcore_subscription_free(guest);
    }
    return NULL;
}

static void test_list_beside_consumers(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription *worker = named(cache, "worker");
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    pthread_t consumer, guests;
    uint64_t revision = 0, guests_seen = 0, handed_out = 0;
    int parked = 0;
    void *events = NULL, *went_wrong = NULL;
    CHECK(pthread_create(&consumer, NULL, consume, worker) == 0);
    CHECK(pthread_create(&guests, NULL, come_and_go, cache) == 0);
    while ((revision < LAST || guests_seen < 5 || !parked) && !check_broken) {
        watchcore_subscription_list *list;
        watchcore_stats stats = WATCHCORE_STATS_INIT;
        uint64_t last = 0;
        size_t i;
        if (revision < LAST) {
            revision++;
            write_on(writer, revision, revision);
        }
        list = listed(cache);
        CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
        CHECK(watchcore_subscription_list_count(list) >= 1);
        for (i = 0; i < watchcore_subscription_list_count(list); i++) {
            watchcore_subscription_info info = WATCHCORE_SUBSCRIPTION_INFO_INIT;
            CHECK_OK(watchcore_subscription_list_item(list, i, &info, &error));
            CHECK(info.id > last && info.lag_events <= stats.events && info.revision <= revision);
            last = info.id;
            if (i > 0) {
                CHECK(same(info.name, "guest"));
                guests_seen++;
                continue;
            }
            CHECK(info.id == 1 && same(info.name, "worker") && info.handed_out >= handed_out);
            CHECK(info.state == WATCHCORE_SUBSCRIPTION_STATE_LIVE || info.state == WATCHCORE_SUBSCRIPTION_STATE_PARKED);
            handed_out = info.handed_out;
            parked |= info.state == WATCHCORE_SUBSCRIPTION_STATE_PARKED && info.polled == 1;
        }
        watchcore_subscription_list_free(list);
        sched_yield();
    }
    atomic_store(&stop, 1);
    CHECK(pthread_join(guests, &went_wrong) == 0 && went_wrong == NULL);
    CHECK_OK(watchcore_subscription_close(worker, &error));
    CHECK(pthread_join(consumer, &events) == 0 && (uintptr_t)events == LAST);
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_subscription_poll(worker, 0, &batch, &error));
    CHECK(only(cache).state == WATCHCORE_SUBSCRIPTION_STATE_ENDED && only(cache).handed_out == LAST);
    watchcore_subscription_free(worker);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

int main(void)
{
    RUN(test_names);
    RUN(test_metrics);
    RUN(test_list_outlives_its_cache);
    RUN(test_sizes);
    RUN(test_of_nothing);
    RUN(test_list_beside_consumers);
    return check_finish("subscriptions");
}
