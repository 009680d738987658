/* The whole surface once, as a program would use it. */
#include "check.h"

static watchcore_error error;

static void test_versions_and_codes(void)
{
    watchcore_code_info info = WATCHCORE_CODE_INFO_INIT;
    const char *later = getenv("WATCHCORE_LATER"); /* a library that took the place of the header's */
    CHECK(strcmp(watchcore_version(), later != NULL ? later : WATCHCORE_VERSION) == 0);
    CHECK(watchcore_abi_version() == 0);
    CHECK(strcmp(watchcore_error_name(WATCHCORE_COMPACTED), "COMPACTED") == 0);
    CHECK(strcmp(watchcore_error_name(12345), "UNKNOWN") == 0);
    CHECK_OK(watchcore_code_describe(WATCHCORE_TIMEOUT, &info, &error));
    CHECK(info.retryable == 1 && info.fatal == 0 && info.http_status == 504 && info.retry_after_ms == 1000);
    CHECK(strcmp(info.name, "TIMEOUT") == 0 && strcmp(info.reason, "Timeout") == 0 && strlen(info.sentence) > 0);
    CHECK_OK(watchcore_code_describe(WATCHCORE_PANIC, &info, &error));
    CHECK(info.retryable == 0 && info.fatal == 1 && info.http_status == 500 && info.retry_after_ms == 0);
    CHECK_OK(watchcore_code_describe(777, &info, &error));
    CHECK(info.http_status == 500 && strcmp(info.name, "UNKNOWN") == 0 && strlen(info.sentence) > 0);
}

/* The name of a number is that of its constant. tests/header.rs of the library knows that none is forgotten. */
static void test_numbers_have_names(void)
{
    CHECK(strcmp(watchcore_name(WATCHCORE_NAME_EVENT_TYPE, WATCHCORE_EVENT_ADDED), "ADDED") == 0);
    CHECK(strcmp(watchcore_name(WATCHCORE_NAME_EVENT_TYPE, WATCHCORE_EVENT_DELETE), "DELETE") == 0);
    CHECK(strcmp(watchcore_name(WATCHCORE_NAME_STATE, WATCHCORE_STATE_NOT_READY), "NOT_READY") == 0);
    CHECK(strcmp(watchcore_name(WATCHCORE_NAME_SUBSCRIPTION_STATE, WATCHCORE_SUBSCRIPTION_STATE_TOO_SLOW), "TOO_SLOW") == 0);
    CHECK(strcmp(watchcore_name(WATCHCORE_NAME_RESYNC_REASON, WATCHCORE_RESYNC_HISTORY_RESET), "HISTORY_RESET") == 0);
    CHECK(strcmp(watchcore_name(WATCHCORE_NAME_READ_PATH, WATCHCORE_READ_PATH_CHAIN), "CHAIN") == 0);
    CHECK(strcmp(watchcore_name(WATCHCORE_NAME_LOG_LEVEL, WATCHCORE_LOG_WARN), "WARN") == 0);
    CHECK(strcmp(watchcore_name(WATCHCORE_NAME_EVENT_TYPE, 0), "UNKNOWN") == 0);
    CHECK(strcmp(watchcore_name(WATCHCORE_NAME_EVENT_TYPE, 8), "UNKNOWN") == 0);
    CHECK(strcmp(watchcore_name(0, 1), "UNKNOWN") == 0 && strcmp(watchcore_name(7, 1), "UNKNOWN") == 0);
}

static void test_state_then_events(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription *subscription = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    const watchcore_event *event;
    watchcore_change first[2], second[3];
    uint64_t revision = 0, epoch = 0;

    first[0] = put("/a", "1");
    first[1] = put("/b", "");
    CHECK_OK(watchcore_writer_apply(writer, 17, first, 2, &error));
    CHECK_OK(watchcore_subscription_new(cache, NULL, &subscription, &error));

    CHECK_OK(watchcore_subscription_wait(subscription, 0, &error));
    CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
    CHECK(batch.count >= 2 && batch.stride == 64 && batch.flags == WATCHCORE_BATCH_KEEPS_STATE);
    event = watchcore_batch_event(&batch, 0);
    CHECK(event != NULL && event->type == WATCHCORE_EVENT_ADDED && (event->flags & WATCHCORE_FLAG_INITIAL_STATE) != 0);
    CHECK(event->revision == 17 && event->sequence == 0 && event->prev_kv == NULL);
    CHECK(same(watchcore_event_key(event), "/a") && same(watchcore_event_value(event), "1"));
    CHECK(event->kv->create_revision == 17 && event->kv->mod_revision == 17 && event->kv->version == 1);
    CHECK(event->kv->lease == 0);
    event = watchcore_batch_event(&batch, 1);
    CHECK(same(watchcore_event_key(event), "/b") && same(watchcore_event_value(event), ""));
    CHECK(event->kv->value != NULL && event->kv->value_length == 0); /* empty is not absent */
    CHECK(watchcore_batch_event(&batch, batch.count) == NULL);
    if (batch.count == 2) { /* the mark may come by itself */
        watchcore_batch_release(&batch);
        CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
        event = watchcore_batch_event(&batch, 0);
    } else {
        event = watchcore_batch_event(&batch, 2);
    }
    CHECK(event != NULL && event->type == WATCHCORE_EVENT_BOOKMARK && event->kv == NULL && event->revision == 17);
    CHECK(event != NULL && (event->flags & WATCHCORE_FLAG_INITIAL_STATE_END) != 0);
    CHECK(watchcore_event_key(event).data == NULL && watchcore_event_value(event).data == NULL);
    watchcore_batch_release(&batch);
    CHECK(batch.events == NULL && batch.count == 0 && batch.owner == NULL);
    watchcore_batch_release(&batch);
    CHECK_OK(watchcore_subscription_position(subscription, &revision, &epoch, &error));
    CHECK(revision == 17 && epoch != 0);

    CHECK_OK(watchcore_subscription_poll(subscription, 64, &batch, &error));
    CHECK(batch.count == 0);
    watchcore_batch_release(&batch);

    second[0] = put("/a", "2");
    second[1] = del("/b");
    second[2] = exact("/c", "x", 18, 18, 1);
    second[2].lease = 77;
    CHECK_OK(watchcore_writer_apply(writer, 18, second, 3, &error));
    CHECK_OK(watchcore_subscription_wait(subscription, -1, &error));
    CHECK_OK(watchcore_subscription_poll(subscription, 64, &batch, &error));
    CHECK(batch.count == 3 && batch.position == 18 && batch.epoch == epoch);
    event = watchcore_batch_event(&batch, 0);
    CHECK(event->type == WATCHCORE_EVENT_MODIFIED && event->revision == 18 && event->sequence != 0);
    CHECK(same(watchcore_event_value(event), "2") && same(watchcore_event_prev_value(event), "1"));
    CHECK(event->kv->version == 2 && event->kv->create_revision == 17);
    event = watchcore_batch_event(&batch, 1);
    CHECK(event->type == WATCHCORE_EVENT_DELETED && event->kv != NULL && event->kv->value == NULL);
    CHECK(same(watchcore_event_key(event), "/b") && watchcore_event_value(event).data == NULL);
    CHECK(same(watchcore_event_prev_value(event), ""));
    event = watchcore_batch_event(&batch, 2);
    CHECK(event->type == WATCHCORE_EVENT_ADDED && event->kv->lease == 77 && watchcore_event_prev_value(event).data == NULL);
    watchcore_batch_release(&batch);

    watchcore_subscription_free(subscription);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static void test_reads(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_filter filter = WATCHCORE_FILTER_INIT;
    watchcore_range range = WATCHCORE_RANGE_INIT;
    watchcore_range none = WATCHCORE_RANGE_INIT;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_page_info info = WATCHCORE_PAGE_INFO_INIT;
    watchcore_page *page = NULL;
    watchcore_snapshot *snapshot = NULL;
    watchcore_iterator *iterator = NULL;
    const watchcore_key_value *kv = NULL, *items[3] = {NULL, NULL, NULL};
    watchcore_bytes keys[3] = {text("/p/2"), text("/p/absent"), text("/p/1")};
    const watchcore_key_value *const *all;
    watchcore_change changes[3];
    uint64_t count = 0, revision = 0, epoch = 0;
    uint32_t found = 9;
    size_t filled = 9;

    changes[0] = put("/p/1", "one");
    changes[1] = put("/p/2", "two");
    changes[2] = put("/q", "three");
    CHECK_OK(watchcore_writer_apply(writer, 5, changes, 3, &error));
    CHECK_OK(watchcore_snapshot_new(cache, &snapshot, &error));
    changes[0] = put("/p/1", "ONE");
    changes[1] = del("/p/2");
    CHECK_OK(watchcore_writer_apply(writer, 6, changes, 2, &error));

    CHECK_OK(watchcore_cache_get(cache, "/p/1", 4, NULL, &answer, &error));
    CHECK(answer.found == 1 && answer.revision == 6 && answer.epoch != 0 && answer.kv != NULL);
    CHECK(same(watchcore_bytes_from(answer.kv->value, answer.kv->value_length), "ONE") && answer.kv->version == 2);
    watchcore_key_value_release(answer.kv);
    watchcore_key_value_release(NULL);
    CHECK_OK(watchcore_cache_get(cache, "/p/2", 4, NULL, &answer, &error));
    CHECK(answer.found == 0 && answer.kv == NULL && answer.revision == 6);
    read.mode = WATCHCORE_READ_EXACT;
    read.revision = 5;
    CHECK_OK(watchcore_cache_get(cache, "/p/2", 4, &read, &answer, &error));
    CHECK(answer.found == 1 && answer.revision == 5);
    watchcore_key_value_release(answer.kv);

    CHECK_OK(watchcore_cache_get_many(cache, keys, 3, &read, items, &revision, &epoch, &error));
    CHECK(revision == 5 && epoch == answer.epoch && items[1] == NULL);
    CHECK(items[0] != NULL && same(watchcore_bytes_from(items[0]->key, items[0]->key_length), "/p/2"));
    CHECK(items[2] != NULL && same(watchcore_bytes_from(items[2]->value, items[2]->value_length), "one"));
    watchcore_key_values_release(items, 3);
    CHECK_OK(watchcore_cache_get_many(cache, NULL, 0, NULL, NULL, &revision, NULL, &error));
    CHECK(revision == 6);
    watchcore_key_values_release(NULL, 0);

    range.kind = WATCHCORE_RANGE_PREFIX;
    range.from = text("/p/");
    CHECK_OK(watchcore_cache_count(cache, &range, &read, &count, &revision, &epoch, &error));
    CHECK(count == 2 && revision == 5 && epoch != 0);
    read.mode = WATCHCORE_READ_AT_LEAST;
    read.revision = 6;
    CHECK_OK(watchcore_cache_count(cache, &range, &read, &count, NULL, NULL, &error));
    CHECK(count == 1);
    CHECK_OK(watchcore_cache_count(cache, NULL, NULL, &count, NULL, NULL, &error));
    CHECK(count == 2);

    read.limit = 1;
    CHECK_OK(watchcore_cache_list(cache, NULL, &read, &page, NULL, &error));
    CHECK_OK(watchcore_page_describe(page, &info, &error));
    CHECK(info.count == 1 && info.more == 1 && info.remaining == 1 && info.continue_token.length > 0);
    CHECK(info.revision == 6 && info.epoch == answer.epoch);
    kv = watchcore_page_item(page, 0);
    all = watchcore_page_items(page);
    CHECK(kv != NULL && all != NULL && all[0] == kv && watchcore_page_item(page, 1) == NULL);
    CHECK(kv != NULL && same(watchcore_bytes_from(kv->key, kv->key_length), "/p/1"));
    watchcore_page_free(page);
    /* No items have no address: a caller in Go may not have one that is none on its stack. */
    none.kind = WATCHCORE_RANGE_KEY;
    none.from = text("/p/absent");
    CHECK_OK(watchcore_cache_list(cache, &none, &read, &page, NULL, &error));
    CHECK(page_info(page).count == 0 && watchcore_page_items(page) == NULL);
    watchcore_page_free(page);

    CHECK_OK(watchcore_snapshot_position(snapshot, &revision, &epoch, &error));
    CHECK(revision == 5 && epoch == answer.epoch);
    CHECK_OK(watchcore_snapshot_get(snapshot, "/p/2", 4, &found, &kv, &error));
    CHECK(found == 1 && kv != NULL && same(watchcore_bytes_from(kv->value, kv->value_length), "two"));
    CHECK_OK(watchcore_snapshot_get(snapshot, "/none", 5, &found, &kv, &error));
    CHECK(found == 0 && kv == NULL);
    CHECK_OK(watchcore_snapshot_get_many(snapshot, keys, 3, items, &error));
    CHECK(items[0] != NULL && items[1] == NULL && items[2] != NULL && items[2]->version == 1);
    watchcore_key_values_release(items, 3);
    filter.range = range.kind;
    filter.from = range.from;
    CHECK_OK(watchcore_snapshot_count(snapshot, &filter, &count, &error));
    CHECK(count == 2);
    CHECK_OK(watchcore_iterator_new(snapshot, NULL, &iterator, &error));
    watchcore_snapshot_free(snapshot); /* the iterator may outlive it */
    CHECK_OK(watchcore_iterator_next(iterator, items, 2, &filled, &error));
    CHECK(filled == 2 && same(watchcore_bytes_from(items[1]->key, items[1]->key_length), "/p/2"));
    CHECK_OK(watchcore_iterator_next(iterator, items, 2, &filled, &error));
    CHECK(filled == 1 && same(watchcore_bytes_from(items[0]->key, items[0]->key_length), "/q"));
    CHECK_OK(watchcore_iterator_next(iterator, items, 2, &filled, &error));
    CHECK(filled == 0);
    watchcore_iterator_free(iterator);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static void test_load_resync_compact(void)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    watchcore_writer *writer = NULL;
    watchcore_subscription *subscription = NULL;
    watchcore_status status = WATCHCORE_STATUS_INIT;
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    const watchcore_event *event;
    watchcore_change listing[2], one;
    uint64_t position = 0, epoch = 0, revision = 0;
    size_t i, deleted = 0, length = 0;
    char buffer[64];

    options.prefix = text("/");
    options.name = text("a name");
    options.capacity = 1024;
    options.capacity_bytes = 1 << 20;
    options.max_key_bytes = 100;
    options.max_value_bytes = 100;
    options.expect_load = 1;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    CHECK_OK(watchcore_cache_status(cache, &status, &error));
    CHECK(status.state == WATCHCORE_STATE_NOT_READY && status.last_error == 0);
    CHECK_OK(watchcore_writer_new(cache, &writer, &error));
    listing[0] = exact("/a", "1", 3, 4, 2);
    listing[1] = exact("/b", "2", 5, 5, 1);
    CHECK_OK(watchcore_writer_load(writer, 9, listing, 2, &error));
    CHECK_OK(watchcore_cache_wait_ready(cache, -1, &error));
    CHECK_OK(watchcore_cache_wait_until(cache, 9, -1, &revision, &epoch, &error));
    CHECK(revision == 9 && epoch != 0);
    CHECK_OK(watchcore_cache_consistent_revision(cache, -1, &revision, &error));
    CHECK(revision == 9);
    CHECK_OK(watchcore_cache_status(cache, &status, &error));
    CHECK(status.state == WATCHCORE_STATE_READY && status.revision == 9 && status.objects == 2 && status.oldest == 10);
    CHECK_OK(watchcore_cache_text(cache, WATCHCORE_TEXT_NAME, buffer, sizeof(buffer), &length, &error));
    CHECK(length == 6 && strcmp(buffer, "a name") == 0);
    CHECK_OK(watchcore_cache_text(cache, WATCHCORE_TEXT_NAME, buffer, 4, &length, &error));
    CHECK(length == 6 && strcmp(buffer, "a n") == 0);
    CHECK_OK(watchcore_cache_text(cache, WATCHCORE_TEXT_PREFIX, NULL, 0, &length, &error));
    CHECK(length == 1);
    CHECK_OK(watchcore_cache_text(cache, WATCHCORE_TEXT_LAST_ERROR, buffer, sizeof(buffer), NULL, &error));
    CHECK(buffer[0] == 0);

    CHECK_OK(watchcore_subscription_new(cache, NULL, &subscription, &error));
    for (i = 0; i < 2; i++) { /* the state, and its end if that comes by itself */
        CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
        watchcore_batch_release(&batch);
    }
    one = exact("/b", "3", 5, 7, 2);
    CHECK_OK(watchcore_writer_resync(writer, 20, &one, 1, WATCHCORE_RESYNC_COMPACTED, &position, &epoch, &error));
    CHECK(position == 20);
    CHECK_OK(watchcore_subscription_wait(subscription, -1, &error));
    CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
    CHECK(batch.count == 4 && batch.position == 20 && batch.epoch == epoch);
    event = watchcore_batch_event(&batch, 0);
    CHECK(event->type == WATCHCORE_EVENT_RESYNC && (event->flags & WATCHCORE_FLAG_BEGIN) != 0 && event->kv == NULL);
    CHECK(event->resync_from == 9 && event->revision == 20 && event->resync_epoch == epoch);
    CHECK(event->resync_reason == WATCHCORE_RESYNC_COMPACTED);
    for (i = 1; i < 3; i++) {
        event = watchcore_batch_event(&batch, i);
        CHECK((event->flags & WATCHCORE_FLAG_SYNTHETIC) != 0);
        deleted += event->type == WATCHCORE_EVENT_DELETED && same(watchcore_event_prev_value(event), "1");
    }
    CHECK(deleted == 1);
    CHECK((watchcore_batch_event(&batch, 3)->flags & WATCHCORE_FLAG_END) != 0);
    watchcore_batch_release(&batch);

    one = put("/c", "4");
    CHECK_OK(watchcore_writer_apply(writer, 21, &one, 1, &error));
    CHECK_OK(watchcore_writer_compact(writer, 21, &error));
    CHECK_OK(watchcore_cache_status(cache, &status, &error));
    CHECK(status.oldest == 22 && status.subscriptions == 1);
    CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
    CHECK(stats.objects == 2 && stats.subscriptions == 1 && stats.events >= 3);
    CHECK(stats.log_bytes > 0 && stats.version_bytes > 0 && stats.segments >= stats.window_segments);
    watchcore_subscription_free(subscription);
    CHECK_OK(watchcore_cache_close(cache, &error));
    CHECK_OK(watchcore_cache_status(cache, &status, &error));
    CHECK(status.state == WATCHCORE_STATE_CLOSED);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static char logged[4096];
static int log_calls;

static void log_function(void *context, uint32_t level, const char *message, size_t length)
{
    int32_t code;
    log_calls++;
    CHECK(context == logged && level >= WATCHCORE_LOG_ERROR && level <= WATCHCORE_LOG_TRACE && length > 0);
    snprintf(logged, sizeof(logged), "%.*s", (int)length, message);
    code = watchcore_log_set(NULL, NULL, WATCHCORE_LOG_OFF, NULL);
    CHECK(code == WATCHCORE_BUSY);
}

static void test_log_function_can_be_set_and_taken_away(void)
{
    CHECK_OK(watchcore_log_set(log_function, logged, WATCHCORE_LOG_TRACE, &error));
    CHECK_OK(watchcore_log_set(NULL, NULL, WATCHCORE_LOG_OFF, &error));
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_log_set(log_function, logged, 6, &error));
}

int main(void)
{
    RUN(test_versions_and_codes);
    RUN(test_numbers_have_names);
    RUN(test_state_then_events);
    RUN(test_reads);
    RUN(test_load_resync_compact);
    RUN(test_log_function_can_be_set_and_taken_away);
    return check_finish("tour");
}
