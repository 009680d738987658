/* Reads of other revisions: continue tokens, differences, and revisions of one history. */

#include "objects.h"

static int key_of(watchcore_page *page, size_t index, const char *key)
{
    const watchcore_key_value *kv = watchcore_page_item(page, index);
    return kv != NULL && same(watchcore_bytes_from(kv->key, kv->key_length), key);
}

/* Page by page in one revision, whatever is written meanwhile; in another process too. */
static void test_continue_tokens(void)
{
    watchcore_writer *writer = NULL, *other_writer = NULL;
    watchcore_cache *cache = declared(0, &writer), *other = declared(0, &other_writer);
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_range range = WATCHCORE_RANGE_INIT;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_page *first = NULL, *second = NULL, *again = NULL;
    watchcore_page_info info;
    watchcore_text *token = NULL;
    char kept[4096];
    size_t length;
    uint64_t count = 0;
    fill(writer);
    fill(other_writer);
    read.limit = 2;
    CHECK_OK(watchcore_cache_list(cache, NULL, &read, &first, NULL, &error));
    info = page_info(first);
    CHECK(info.count == 2 && info.more == 1 && info.remaining == 2);
    apply(writer, 11, del("/y/a"));
    apply(writer, 12, put("/x/c", WEB));
    read.continue_token = info.continue_token;
    CHECK(read.continue_token.data != NULL && read.continue_token.length > 0 && read.continue_token.length < sizeof(kept));
    length = read.continue_token.length;
    memcpy(kept, read.continue_token.data, length);
    CHECK_OK(watchcore_cache_list(cache, NULL, &read, &second, &token, &error));
    info = page_info(second);
    CHECK(token == NULL && info.revision == 10 && info.count == 2);
    CHECK(key_of(second, 0, "/y/a") && key_of(second, 1, "/y/b") && info.more == 0);
    CHECK(info.continue_token.data == NULL);
    watchcore_page_free(second);
    watchcore_page_free(first);
    read.continue_token = watchcore_bytes_from(kept, length);
    CHECK_OK(watchcore_cache_list(other, NULL, &read, &again, NULL, &error)); /* same name and prefix, another birth */
    CHECK(page_info(again).revision == 10 && key_of(again, 0, "/y/a"));
    watchcore_page_free(again);
    again = NULL;

    /* Of another range, another filter, a damaged one, with a mode, of a call without pages. */
    range.kind = WATCHCORE_RANGE_PREFIX;
    range.from = text("/x/");
    BAD(watchcore_cache_list(cache, &range, &read, &again, NULL, &error));
    read.labels = text("app=web");
    BAD(watchcore_cache_list(cache, NULL, &read, &again, &token, &error));
    read.labels = text(NULL);
    read.mode = WATCHCORE_READ_EXACT;
    read.revision = 10;
    BAD(watchcore_cache_list(cache, NULL, &read, &again, NULL, &error));
    read.mode = WATCHCORE_READ_ANY;
    read.revision = 0;
    kept[length / 2] ^= 1;
    BAD(watchcore_cache_list(cache, NULL, &read, &again, &token, &error));
    kept[length / 2] ^= 1;
    read.continue_token = watchcore_bytes_from(kept, length - 1);
    BAD(watchcore_cache_list(cache, NULL, &read, &again, NULL, &error));
    read.continue_token = text("");
    BAD(watchcore_cache_list(cache, NULL, &read, &again, NULL, &error));
    read.continue_token = watchcore_bytes_from("\xff\xfe", 2);
    BAD(watchcore_cache_list(cache, NULL, &read, &again, NULL, &error));
    CHECK(strstr(error.message, "UTF-8") != NULL);
    read.continue_token = watchcore_bytes_from(kept, length);
    read.limit = 0;
    BAD(watchcore_cache_get(cache, "/x/a", 4, &read, &answer, &error));
    BAD(watchcore_cache_count(cache, NULL, &read, &count, NULL, NULL, &error));
    CHECK(again == NULL && token == NULL && answer.kv == NULL);

    /* Its revision leaves the window: another token goes on at the same key, in the newest state. */
    CHECK_OK(watchcore_writer_compact(writer, 12, &error));
    read.limit = 1;
    CHECK_CODE(WATCHCORE_COMPACTED, watchcore_cache_list(cache, NULL, &read, &again, NULL, &error));
    CHECK_CODE(WATCHCORE_COMPACTED, watchcore_cache_list(cache, NULL, &read, &again, &token, &error));
    CHECK(again == NULL && token != NULL && error.asked == 10 && error.oldest == 13 && error.current == 12);
    read.continue_token = watchcore_text_get(token);
    CHECK(read.continue_token.data != NULL && read.continue_token.length > 0);
    CHECK_OK(watchcore_cache_list(cache, NULL, &read, &again, NULL, &error));
    info = page_info(again);
    CHECK(info.revision == 12 && info.count == 1 && info.more == 1 && key_of(again, 0, "/x/c"));
    watchcore_text_free(token);
    watchcore_text_free(NULL);
    CHECK(watchcore_text_get(NULL).data == NULL);
    watchcore_page_free(again);

    /* COMPACTED without a token has nothing to go on from. */
    read.continue_token = text(NULL);
    read.mode = WATCHCORE_READ_EXACT;
    read.revision = 10;
    token = NULL;
    CHECK_CODE(WATCHCORE_COMPACTED, watchcore_cache_list(cache, NULL, &read, &again, &token, &error));
    CHECK(token == NULL);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
    watchcore_writer_free(other_writer);
    watchcore_cache_free(other);
}

static void test_options_of_a_difference(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = declared(0, &writer);
    watchcore_filter filter = WATCHCORE_FILTER_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    uint64_t epoch = 0;
    fill(writer);
    apply(writer, 11, put("/x/a", DB));
    apply(writer, 12, put("/z", WEB));
    CHECK_OK(watchcore_cache_wait_until(cache, 12, 0, NULL, &epoch, &error));
    CHECK_OK(watchcore_cache_diff(cache, 10, epoch, 12, 0, NULL, &batch, &error));
    CHECK(batch.count == 2 && batch.position == 12 && batch.epoch == epoch);
    watchcore_batch_release(&batch);
    filter.types = WATCHCORE_MASK(WATCHCORE_EVENT_ADDED);
    CHECK_OK(watchcore_cache_diff(cache, 10, 0, 12, epoch, &filter, &batch, &error));
    CHECK(batch.count == 1 && same(watchcore_event_key(watchcore_batch_event(&batch, 0)), "/z"));
    watchcore_batch_release(&batch);
    filter.types = WATCHCORE_MASK(WATCHCORE_EVENT_BOOKMARK);
    BAD(watchcore_cache_diff(cache, 10, 0, 12, 0, &filter, &batch, &error));
    filter.types = 1;
    BAD(watchcore_cache_diff(cache, 10, 0, 12, 0, &filter, &batch, &error));
    CHECK(batch.count == 0);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* Reads and waits of a revision in one history. */
static void test_epochs(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = declared(0, &writer);
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_waiter *waiter = NULL, *older = NULL;
    uint64_t before = 0, now = 0, revision = 0, count = 0, epoch = 0;
    uint32_t done = 0;
    fill(writer);
    CHECK_OK(watchcore_cache_count(cache, NULL, NULL, &count, NULL, &before, &error));
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 30, before, &older, &error));
    CHECK_OK(watchcore_waiter_try(older, &done, NULL, NULL, &error));
    CHECK(done == 0);
    CHECK_OK(watchcore_writer_resync(writer, 5, NULL, 0, WATCHCORE_RESYNC_HISTORY_RESET, NULL, &now, &error));
    CHECK_CODE(WATCHCORE_RESYNCED, watchcore_waiter_try(older, &done, NULL, NULL, &error));
    watchcore_waiter_free(older);
    apply(writer, 12, put("/x/a", WEB));
    read.mode = WATCHCORE_READ_EXACT;
    read.revision = 12;
    read.epoch = now;
    CHECK_OK(watchcore_cache_count(cache, NULL, &read, &count, &revision, &epoch, &error));
    CHECK(count == 1 && revision == 12 && epoch == now && now == before + 1);
    read.epoch = before;
    CHECK_CODE(WATCHCORE_COMPACTED, watchcore_cache_count(cache, NULL, &read, &count, NULL, NULL, &error));
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 12, now, &waiter, &error));
    CHECK_OK(watchcore_waiter_try(waiter, &done, &revision, &epoch, &error));
    CHECK(done == 1 && revision == 12 && epoch == now);
    watchcore_waiter_free(waiter);
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 30, before, &waiter, &error));
    CHECK_CODE(WATCHCORE_RESYNCED, watchcore_waiter_try(waiter, &done, NULL, NULL, &error)); /* it will never come */
    watchcore_waiter_free(waiter);
    waiter = NULL;
    BAD(watchcore_waiter_new(cache, WATCHCORE_WANT_READY, 0, now, &waiter, &error));
    BAD(watchcore_waiter_new(cache, 9, 0, 0, &waiter, &error));
    read.mode = WATCHCORE_READ_ANY;
    read.revision = 0;
    BAD(watchcore_cache_count(cache, NULL, &read, &count, NULL, NULL, &error));
    CHECK(waiter == NULL);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

int main(void)
{
    RUN(test_continue_tokens);
    RUN(test_options_of_a_difference);
    RUN(test_epochs);
    return check_finish("history");
}
