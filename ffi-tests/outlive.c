/* What was handed out stays valid: batches, key-values, pages, snapshots and subscriptions after everything else is
   freed, on any thread. */
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "check.h"

static watchcore_error error;

static void *release(void *batch)
{
    watchcore_batch_release(batch);
    return NULL;
}

static void test_everything_outlives_the_cache(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *all = NULL, *some = NULL;
    watchcore_batch view = WATCHCORE_BATCH_INIT, filtered = WATCHCORE_BATCH_INIT, rest = WATCHCORE_BATCH_INIT;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_snapshot *snapshot = NULL;
    watchcore_iterator *iterator = NULL;
    watchcore_page *page = NULL;
    const watchcore_key_value *kv = NULL;
    watchcore_change two[2], last = put("/a/last", "x");
    pthread_t threads[2];
    size_t count = 0;

    two[0] = put("/a/1", "one");
    two[1] = put("/b/1", "other");
    options.start = WATCHCORE_START_NOW;
    CHECK_OK(watchcore_subscription_new(cache, &options, &all, &error));
    options.range = WATCHCORE_RANGE_PREFIX;
    options.from = text("/a/");
    CHECK_OK(watchcore_subscription_new(cache, &options, &some, &error));
    CHECK_OK(watchcore_writer_apply(writer, 1, two, 2, &error));
    two[0] = put("/a/1", "two");
    two[1] = del("/b/1");
    CHECK_OK(watchcore_writer_apply(writer, 2, two, 2, &error));
    CHECK_OK(watchcore_subscription_poll(all, 0, &view, &error));
    CHECK_OK(watchcore_subscription_poll(some, 0, &filtered, &error));
    CHECK(view.count == 4 && filtered.count == 2);
    CHECK_OK(watchcore_cache_get(cache, "/a/1", 4, NULL, &answer, &error));
    CHECK_OK(watchcore_cache_list(cache, NULL, NULL, &page, NULL, &error));
    CHECK_OK(watchcore_snapshot_new(cache, &snapshot, &error));
    CHECK_OK(watchcore_iterator_new(snapshot, NULL, &iterator, &error));
    CHECK_OK(watchcore_writer_apply(writer, 3, &last, 1, &error));

    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
    /* The subscription hands out what is left, then says CLOSED. */
    CHECK_OK(watchcore_subscription_wait(some, -1, &error));
    CHECK_OK(watchcore_subscription_poll(some, 0, &rest, &error));
    CHECK(rest.count == 1 && same(watchcore_event_key(watchcore_batch_event(&rest, 0)), "/a/last"));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_subscription_wait(some, -1, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_subscription_poll(some, 0, &view, &error));
    CHECK(view.count == 4); /* written only on success */
    watchcore_subscription_free(all);
    watchcore_subscription_free(some);

    CHECK(same(watchcore_event_value(watchcore_batch_event(&view, 2)), "two"));
    CHECK(same(watchcore_event_prev_value(watchcore_batch_event(&view, 2)), "one"));
    CHECK(same(watchcore_event_prev_value(watchcore_batch_event(&view, 3)), "other"));
    CHECK(same(watchcore_event_prev_value(watchcore_batch_event(&filtered, 1)), "one"));
    CHECK(same(watchcore_bytes_from(answer.kv->value, answer.kv->value_length), "two"));
    CHECK(page_info(page).count == 1 && watchcore_page_item(page, 0) == answer.kv);
    CHECK_OK(watchcore_snapshot_get(snapshot, "/a/1", 4, NULL, &kv, &error));
    CHECK(kv == answer.kv); /* one stored version, everywhere */
    watchcore_snapshot_free(snapshot);
    CHECK_OK(watchcore_iterator_next(iterator, &kv, 1, &count, &error));
    CHECK(count == 1 && kv == answer.kv);
    watchcore_iterator_free(iterator);
    watchcore_page_free(page);
    watchcore_key_value_release(answer.kv);
    CHECK(pthread_create(&threads[0], NULL, release, &view) == 0);
    CHECK(pthread_create(&threads[1], NULL, release, &filtered) == 0);
    CHECK(pthread_join(threads[0], NULL) == 0 && pthread_join(threads[1], NULL) == 0);
    CHECK(view.owner == NULL && filtered.owner == NULL);
    watchcore_batch_release(&rest);
}

/* A batch keeps its events while the log goes round under it. */
static void test_batch_outlives_its_place_in_the_log(void)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_subscription_options start = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    watchcore_writer *writer = NULL;
    watchcore_subscription *subscription = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    watchcore_change one;
    char value[16];
    uint64_t revision;
    options.capacity = 1024;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    CHECK_OK(watchcore_writer_new(cache, &writer, &error));
    start.start = WATCHCORE_START_NOW;
    CHECK_OK(watchcore_subscription_new(cache, &start, &subscription, &error));
    for (revision = 1; revision <= 5000; revision++) {
        snprintf(value, sizeof(value), "%d", (int)revision);
        one = put("/k", value);
        CHECK_OK(watchcore_writer_apply(writer, revision, &one, 1, &error));
        if (revision == 10) {
            CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
        }
    }
    CHECK(batch.count == 10);
    CHECK(same(watchcore_event_value(watchcore_batch_event(&batch, 9)), "10"));
    CHECK(same(watchcore_event_prev_value(watchcore_batch_event(&batch, 9)), "9"));
    watchcore_batch_release(&batch);
    watchcore_subscription_free(subscription);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* Pages and batches of an initial state, small and large, keep what they show, and nothing of the log. */
static void test_pages_keep_nothing_of_the_log(void)
{
    static const size_t objects[] = {1, 8, 9, 40};
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    size_t which, i;

    for (which = 0; which < sizeof(objects) / sizeof(*objects); which++) {
        watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
        watchcore_subscription_options start = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
        watchcore_cache *cache = NULL;
        watchcore_writer *writer = NULL;
        watchcore_subscription *subscription = NULL;
        watchcore_page *page = NULL;
        watchcore_batch batch = WATCHCORE_BATCH_INIT;
        uint64_t revision = 0, many = objects[which] > 8 ? 2 : 0;
        time_t end = time(NULL) + 60;
        char key[16];
        watchcore_change one;

        options.capacity = 128;
        CHECK_OK(watchcore_cache_new(&options, &cache, &error));
        CHECK_OK(watchcore_writer_new(cache, &writer, &error));
        for (i = 0; i < objects[which]; i++) {
            snprintf(key, sizeof(key), "/%02d", (int)i);
            one = put(key, "1");
            CHECK_OK(watchcore_writer_apply(writer, ++revision, &one, 1, &error));
        }
        CHECK_OK(watchcore_cache_list(cache, NULL, NULL, &page, NULL, &error));
        CHECK_OK(watchcore_subscription_new(cache, &start, &subscription, &error));
        CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
        CHECK(batch.flags & WATCHCORE_BATCH_KEEPS_STATE);
        CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
        CHECK(stats.pages == many && stats.snapshots == 0);
        for (i = 0; i < 2000; i++) {
            snprintf(key, sizeof(key), "/%02d", (int)(i % objects[which]));
            one = put(i < 1000 ? key : "/other", "2");
            CHECK_OK(watchcore_writer_apply(writer, ++revision, &one, 1, &error));
        }
        do {
            sched_yield();
            CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
        } while (stats.kept_bytes > 0 && time(NULL) < end);
        CHECK(stats.kept_bytes == 0 && stats.segments == stats.window_segments);
        CHECK(stats.pages == many && (stats.page_bytes > 0) == (many > 0));
        for (i = 0; i < objects[which]; i++) {
            const watchcore_key_value *kv = watchcore_page_item(page, i);
            CHECK(same(watchcore_bytes_from(kv->value, kv->value_length), "1"));
            CHECK(same(watchcore_event_value(watchcore_batch_event(&batch, i)), "1"));
        }
        watchcore_page_free(page);
        watchcore_batch_release(&batch);
        CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
        CHECK(stats.pages == 0 && stats.page_bytes == 0);
        watchcore_subscription_free(subscription);
        watchcore_writer_free(writer);
        watchcore_cache_free(cache);
    }
}

int main(void)
{
    RUN(test_pages_keep_nothing_of_the_log);
    RUN(test_everything_outlives_the_cache);
    RUN(test_batch_outlives_its_place_in_the_log);
    return check_finish("outlive");
}
