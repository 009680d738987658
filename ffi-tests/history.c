/* Reads of other revisions: continue tokens, and revisions of one history. */

#include "objects.h"

/* What scripts have no words for: tokens of calls without pages, in other bytes, and where the one of a refusal goes. */
static void test_continue_tokens(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = declared(0, &writer);
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_page *first = NULL, *again = NULL;
    watchcore_text *token = NULL;
    char kept[4096];
    size_t length;
    uint64_t count = 0;
    fill(writer);
    read.limit = 2;
    CHECK_OK(watchcore_cache_list(cache, NULL, &read, &first, NULL, &error));
    length = page_info(first).continue_token.length;
    CHECK(length > 0 && length < sizeof(kept));
    memcpy(kept, page_info(first).continue_token.data, length);
    watchcore_page_free(first);
    read.continue_token = text("");
    BAD(watchcore_cache_list(cache, NULL, &read, &again, NULL, &error));
    read.continue_token = watchcore_bytes_from("\xff\xfe", 2);
    BAD(watchcore_cache_list(cache, NULL, &read, &again, NULL, &error));
    CHECK(strstr(error.message, "UTF-8") != NULL);
    read.continue_token = watchcore_bytes_from(kept, length);
    read.limit = 0;
    BAD(watchcore_cache_get(cache, "/x/a", 4, &read, &answer, &error));
    BAD(watchcore_cache_count(cache, NULL, &read, &count, NULL, NULL, &error));
    CHECK(again == NULL && answer.kv == NULL);

    apply(writer, 12, put("/x/c", WEB));
    CHECK_OK(watchcore_writer_compact(writer, 12, &error));
    CHECK_CODE(WATCHCORE_COMPACTED, watchcore_cache_list(cache, NULL, &read, &again, NULL, &error));
    CHECK_CODE(WATCHCORE_COMPACTED, watchcore_cache_list(cache, NULL, &read, &again, &token, &error));
    CHECK(again == NULL && token != NULL && watchcore_text_get(token).length > 0);
    watchcore_text_free(token);
    watchcore_text_free(NULL);
    CHECK(watchcore_text_get(NULL).data == NULL);

    /* COMPACTED without a token has nothing to go on from. */
    read.continue_token = text(NULL);
    read.mode = WATCHCORE_READ_EXACT;
    read.revision = 10;
    token = NULL;
    CHECK_CODE(WATCHCORE_COMPACTED, watchcore_cache_list(cache, NULL, &read, &again, &token, &error));
    CHECK(token == NULL);
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
    RUN(test_epochs);
    return check_finish("history");
}
