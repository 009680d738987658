/* No handle, no place for the answer, a handle of another kind: a code, never a crash. */
#include "check.h"

static watchcore_error error;

/* Every fallible function, once with no handle. */
static void test_null_handles(void)
{
    watchcore_writer *writer = NULL;
    watchcore_loading *loading = NULL;
    watchcore_feeder *feeder = NULL;
    watchcore_subscription *subscription = NULL;
    watchcore_snapshot *snapshot = NULL;
    watchcore_iterator *iterator = NULL;
    watchcore_page *page = NULL;
    watchcore_waiter *waiter = NULL;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_status status = WATCHCORE_STATUS_INIT;
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    watchcore_counters counters = WATCHCORE_COUNTERS_INIT;
    watchcore_lag lag = WATCHCORE_LAG_INIT;
    watchcore_subscription_list *list = NULL;
    watchcore_subscription_info info = WATCHCORE_SUBSCRIPTION_INFO_INIT;
    watchcore_page_info of_page = WATCHCORE_PAGE_INFO_INIT;
    watchcore_etcd_options etcd = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    const watchcore_key_value *kv = NULL;
    uint64_t number = 0;
    uint32_t flag = 0;
    size_t count = 0;
    int32_t fd = 0;
    char buffer[8];

    BAD(watchcore_cache_new(NULL, NULL, &error));
    BAD(watchcore_cache_close(NULL, &error));
    BAD(watchcore_cache_wait_ready(NULL, 0, &error));
    BAD(watchcore_cache_wait_until(NULL, 1, 0, &number, NULL, &error));
    BAD(watchcore_cache_consistent_revision(NULL, 0, &number, &error));
    BAD(watchcore_writer_new(NULL, &writer, &error));
    BAD(watchcore_writer_load(NULL, 1, NULL, 0, &error));
    BAD(watchcore_loading_new(NULL, 1, &loading, &error));
    BAD(watchcore_loading_add(NULL, NULL, NULL, 0, &error));
    BAD(watchcore_loading_finish(NULL, NULL, &error));
    BAD(watchcore_writer_apply(NULL, 1, NULL, 0, &error));
    BAD(watchcore_writer_resync(NULL, 1, NULL, 0, 1, NULL, NULL, &error));
    BAD(watchcore_writer_progress(NULL, 1, &error));
    BAD(watchcore_writer_compact(NULL, 1, &error));
    BAD(watchcore_feeder_start(NULL, &etcd, &feeder, &error));
    BAD(watchcore_feeder_stop(NULL, &error));
    BAD(watchcore_feeder_request_resync(NULL, &error));
    BAD(watchcore_feeder_compact(NULL, 1, &error));
    BAD(watchcore_feeder_counters(NULL, &counters, &error));
    BAD(watchcore_cache_get(NULL, "/", 1, NULL, &answer, &error));
    BAD(watchcore_cache_list(NULL, NULL, NULL, &page, NULL, &error));
    BAD(watchcore_page_describe(NULL, &of_page, &error));
    BAD(watchcore_cache_count(NULL, NULL, NULL, &number, NULL, NULL, &error));
    BAD(watchcore_snapshot_new(NULL, &snapshot, &error));
    BAD(watchcore_snapshot_position(NULL, &number, NULL, &error));
    BAD(watchcore_snapshot_get(NULL, "/", 1, &flag, &kv, &error));
    BAD(watchcore_cache_get_many(NULL, NULL, 0, NULL, NULL, NULL, NULL, &error));
    BAD(watchcore_snapshot_get_many(NULL, NULL, 0, NULL, &error));
    BAD(watchcore_snapshot_count(NULL, NULL, &number, &error));
    BAD(watchcore_iterator_new(NULL, NULL, &iterator, &error));
    BAD(watchcore_iterator_next(NULL, &kv, 1, &count, &error));
    BAD(watchcore_subscription_new(NULL, NULL, &subscription, &error));
    BAD(watchcore_subscription_poll(NULL, 0, &batch, &error));
    BAD(watchcore_subscription_wait(NULL, 0, &error));
    BAD(watchcore_subscription_close(NULL, &error));
    BAD(watchcore_subscription_position(NULL, &number, NULL, &error));
    BAD(watchcore_subscription_lag(NULL, &lag, &error));
    BAD(watchcore_waiter_new(NULL, WATCHCORE_WANT_READY, 0, 0, &waiter, &error));
    BAD(watchcore_waiter_try(NULL, &flag, NULL, NULL, &error));
    BAD(watchcore_wakeset_new(NULL, &error));
    BAD(watchcore_wakeset_add_subscription(NULL, NULL, 1, &error));
    BAD(watchcore_wakeset_add_waiter(NULL, NULL, 1, &error));
    BAD(watchcore_wakeset_remove_subscription(NULL, NULL, &error));
    BAD(watchcore_wakeset_remove_waiter(NULL, NULL, &error));
    BAD(watchcore_wakeset_next(NULL, &number, &flag, &error));
    BAD(watchcore_wakeset_take(NULL, &number, 1, &count, &error));
    BAD(watchcore_wakeset_fd(NULL, &fd, &error));
    BAD(watchcore_wakeset_wait(NULL, 0, &error));
    BAD(watchcore_cache_status(NULL, &status, &error));
    BAD(watchcore_cache_position(NULL, &number, &number, &number, &error));
    BAD(watchcore_cache_is_ready(NULL, &flag, &error));
    BAD(watchcore_cache_stats(NULL, &stats, &error));
    BAD(watchcore_subscription_list_new(NULL, &list, &error));
    BAD(watchcore_subscription_list_item(NULL, 0, &info, &error));
    BAD(watchcore_cache_text(NULL, WATCHCORE_TEXT_NAME, buffer, sizeof(buffer), &count, &error));
    BAD(watchcore_metrics_text(NULL, 1, NULL, NULL, &error));
    BAD(watchcore_log_set(NULL, NULL, 99, &error));

    watchcore_cache_free(NULL);
    watchcore_writer_free(NULL);
    watchcore_loading_free(NULL);
    watchcore_feeder_free(NULL);
    watchcore_subscription_free(NULL);
    watchcore_snapshot_free(NULL);
    watchcore_iterator_free(NULL);
    watchcore_page_free(NULL);
    watchcore_subscription_list_free(NULL);
    watchcore_waiter_free(NULL);
    watchcore_wakeset_free(NULL);
    watchcore_batch_release(NULL);
    watchcore_key_value_release(NULL);
    CHECK(watchcore_page_item(NULL, 0) == NULL && watchcore_page_items(NULL) == NULL);
    CHECK(watchcore_batch_event(NULL, 0) == NULL && watchcore_event_key(NULL).data == NULL);
    CHECK(watchcore_event_value(NULL).data == NULL && watchcore_event_prev_value(NULL).data == NULL);
    CHECK(watchcore_bytes_from_string(NULL).data == NULL);
}

static void test_null_outputs(void)
{
    watchcore_bytes slash = text("/");
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_etcd_options etcd = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_subscription *subscription = NULL;
    watchcore_snapshot *snapshot = NULL;
    watchcore_wakeset *set = NULL;
    watchcore_page *page = NULL;
    CHECK_OK(watchcore_subscription_new(cache, NULL, &subscription, &error));
    CHECK_OK(watchcore_cache_list(cache, NULL, NULL, &page, NULL, &error));
    CHECK_OK(watchcore_snapshot_new(cache, &snapshot, &error));
    CHECK_OK(watchcore_wakeset_new(&set, &error));
    BAD(watchcore_writer_new(cache, NULL, &error));
    BAD(watchcore_loading_new(writer, 1, NULL, &error));
    BAD(watchcore_feeder_start(cache, &etcd, NULL, &error));
    BAD(watchcore_cache_get(cache, "/", 1, NULL, NULL, &error));
    BAD(watchcore_cache_list(cache, NULL, NULL, NULL, NULL, &error));
    BAD(watchcore_page_describe(page, NULL, &error));
    BAD(watchcore_cache_count(cache, NULL, NULL, NULL, NULL, NULL, &error));
    BAD(watchcore_cache_consistent_revision(cache, 0, NULL, &error));
    BAD(watchcore_cache_status(cache, NULL, &error));
    BAD(watchcore_cache_is_ready(cache, NULL, &error));
    CHECK_OK(watchcore_cache_position(cache, NULL, NULL, NULL, &error));
    BAD(watchcore_cache_stats(cache, NULL, &error));
    BAD(watchcore_cache_text(cache, WATCHCORE_TEXT_NAME, NULL, 5, NULL, &error));
    BAD(watchcore_snapshot_new(cache, NULL, &error));
    BAD(watchcore_snapshot_position(snapshot, NULL, NULL, &error));
    BAD(watchcore_snapshot_get(snapshot, "/", 1, NULL, NULL, &error));
    BAD(watchcore_cache_get_many(cache, &slash, 1, NULL, NULL, NULL, NULL, &error));
    BAD(watchcore_snapshot_get_many(snapshot, &slash, 1, NULL, &error));
    BAD(watchcore_snapshot_count(snapshot, NULL, NULL, &error));
    BAD(watchcore_iterator_new(snapshot, NULL, NULL, &error));
    BAD(watchcore_subscription_new(cache, NULL, NULL, &error));
    BAD(watchcore_subscription_poll(subscription, 0, NULL, &error));
    BAD(watchcore_subscription_position(subscription, NULL, NULL, &error));
    BAD(watchcore_subscription_lag(subscription, NULL, &error));
    BAD(watchcore_waiter_new(cache, WATCHCORE_WANT_READY, 0, 0, NULL, &error));
    BAD(watchcore_wakeset_next(set, NULL, NULL, &error));
    BAD(watchcore_wakeset_take(set, NULL, 1, NULL, &error));
    BAD(watchcore_wakeset_fd(set, NULL, &error));
    watchcore_wakeset_free(set);
    watchcore_page_free(page);
    watchcore_snapshot_free(snapshot);
    watchcore_subscription_free(subscription);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* A handle of another kind is refused, whatever is asked of it. */
static void test_wrong_kinds(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription *subscription = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    CHECK_OK(watchcore_subscription_new(cache, NULL, &subscription, &error));
    BAD(watchcore_subscription_poll((watchcore_subscription *)(void *)cache, 0, &batch, &error));
    BAD(watchcore_writer_progress((watchcore_writer *)(void *)subscription, 1, &error));
    BAD(watchcore_cache_close((const watchcore_cache *)(const void *)writer, &error));
    BAD(watchcore_cache_close((const watchcore_cache *)(const void *)((const char *)cache + 1), &error));
    watchcore_subscription_free((watchcore_subscription *)(void *)writer); /* does nothing */
    CHECK_OK(watchcore_writer_progress(writer, 5, &error));
    watchcore_subscription_free(subscription);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

int main(void)
{
    RUN(test_null_handles);
    RUN(test_null_outputs);
    RUN(test_wrong_kinds);
    return check_finish("handles");
}
