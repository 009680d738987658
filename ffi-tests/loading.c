/* A first listing that comes in pieces: what shows and when, what is refused, and what a loading outlives. */
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

static watchcore_error error;

/* A cache that expects its listing, and its writer. */
static watchcore_cache *expecting(watchcore_writer **writer)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    options.prefix = text("/");
    options.expect_load = 1;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    CHECK_OK(watchcore_writer_new(cache, writer, &error));
    return cache;
}

static uint64_t objects(const watchcore_cache *cache)
{
    watchcore_status status = WATCHCORE_STATUS_INIT;
    CHECK_OK(watchcore_cache_status(cache, &status, &error));
    return status.objects;
}

static void test_pieces_in_any_order(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = expecting(&writer);
    watchcore_loading *loading = NULL;
    watchcore_snapshot *snapshot = NULL;
    const watchcore_key_value *kv = NULL;
    char key[] = "/c", value[] = "three";
    watchcore_change first[2], second;

    first[0] = exact(key, value, 3, 4, 2);
    first[1] = exact("/a", "", 5, 5, 1);
    second = exact("/b", "two", 7, 7, 1);
    CHECK_OK(watchcore_loading_new(writer, 9, &loading, &error));
    CHECK_OK(watchcore_loading_add(loading, writer, first, 2, &error));
    /* It was copied. */
    memset(key, 'x', sizeof(key) - 1);
    memset(value, 'x', sizeof(value) - 1);
    CHECK_OK(watchcore_loading_add(loading, writer, NULL, 0, &error));
    CHECK_OK(watchcore_loading_add(loading, writer, &second, 1, &error));
    CHECK_CODE(WATCHCORE_NOT_READY, watchcore_snapshot_new(cache, &snapshot, &error));
    CHECK_OK(watchcore_loading_finish(loading, writer, &error));
    watchcore_loading_free(loading);
    CHECK_OK(watchcore_cache_wait_ready(cache, 0, &error));
    CHECK_OK(watchcore_snapshot_new(cache, &snapshot, &error));
    CHECK(snapshot_revision(snapshot) == 9 && objects(cache) == 3);
    CHECK_OK(watchcore_snapshot_get(snapshot, "/c", 2, NULL, &kv, &error));
    CHECK(kv != NULL && same(watchcore_bytes_from(kv->value, kv->value_length), "three") && kv->version == 2);
    CHECK_OK(watchcore_snapshot_get(snapshot, "/a", 2, NULL, &kv, &error));
    CHECK(kv != NULL && kv->value_length == 0 && kv->create_revision == 5);
    watchcore_snapshot_free(snapshot);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* What was begun and not finished leaves no trace. */
static void test_unfinished_is_dropped(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = expecting(&writer);
    watchcore_loading *left = NULL, *loading = NULL;
    watchcore_change one = exact("/left", "1", 1, 1, 1), other = exact("/a", "1", 2, 2, 1);
    CHECK_OK(watchcore_loading_new(writer, 5, &left, &error));
    CHECK_OK(watchcore_loading_add(left, writer, &one, 1, &error));
    CHECK_OK(watchcore_loading_new(writer, 6, &loading, &error));
    CHECK_OK(watchcore_loading_add(loading, writer, &other, 1, &error));
    watchcore_loading_free(left);
    CHECK_OK(watchcore_loading_finish(loading, writer, &error));
    CHECK(objects(cache) == 1);
    watchcore_loading_free(loading);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static void test_refused_key_values(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = expecting(&writer);
    watchcore_loading *loading = NULL;
    watchcore_change some[3];
    CHECK_OK(watchcore_loading_new(writer, 5, &loading, &error));
    some[0] = exact("/a", "1", 1, 1, 1);
    some[1] = put("/b", "1"); /* no PUT_EXACT: nothing of the array is added */
    BAD(watchcore_loading_add(loading, writer, some, 2, &error));
    CHECK(strstr(error.message, "changes[1]") != NULL);
    some[1] = exact("outside", "1", 1, 1, 1); /* the one before it is added */
    some[2] = exact("/c", "1", 1, 1, 1);
    BAD(watchcore_loading_add(loading, writer, some, 3, &error));
    CHECK(strstr(error.message, "outside") != NULL);
    some[1] = exact("/late", "1", 6, 6, 1);
    BAD(watchcore_loading_add(loading, writer, &some[1], 1, &error));
    CHECK_OK(watchcore_loading_add(loading, writer, &some[2], 1, &error));
    CHECK_OK(watchcore_loading_finish(loading, writer, &error));
    CHECK(objects(cache) == 2);
    watchcore_loading_free(loading);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* A refused end spends the loading as one that went well does, and leaves the cache as it was. */
static void test_spent_after_its_end(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = expecting(&writer);
    watchcore_loading *loading = NULL, *late = NULL;
    watchcore_change twice[2], one = exact("/a", "1", 1, 1, 1);
    twice[0] = twice[1] = one;
    CHECK_OK(watchcore_loading_new(writer, 5, &loading, &error));
    CHECK_OK(watchcore_loading_add(loading, writer, twice, 2, &error));
    BAD(watchcore_loading_finish(loading, writer, &error));
    CHECK(strstr(error.message, "twice") != NULL);
    BAD(watchcore_loading_finish(loading, writer, &error));
    CHECK(strstr(error.message, "spent") != NULL);
    watchcore_loading_free(loading);
    CHECK_CODE(WATCHCORE_TIMEOUT, watchcore_cache_wait_ready(cache, 0, &error));

    CHECK_OK(watchcore_loading_new(writer, 5, &loading, &error));
    CHECK_OK(watchcore_loading_new(writer, 5, &late, &error));
    CHECK_OK(watchcore_loading_add(loading, writer, &one, 1, &error));
    CHECK_OK(watchcore_loading_finish(loading, writer, &error));
    BAD(watchcore_loading_add(loading, writer, &one, 1, &error));
    CHECK(strstr(error.message, "spent") != NULL);
    CHECK_CODE(WATCHCORE_OUT_OF_ORDER, watchcore_loading_finish(late, writer, &error));
    CHECK_CODE(WATCHCORE_OUT_OF_ORDER, watchcore_loading_new(writer, 6, &late, &error));
    CHECK(objects(cache) == 1);
    watchcore_loading_free(late);
    watchcore_loading_free(loading);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static void test_writer_of_another_cache(void)
{
    watchcore_writer *writer = NULL, *other = NULL;
    watchcore_cache *cache = expecting(&writer), *elsewhere = expecting(&other);
    watchcore_loading *loading = NULL;
    watchcore_change one = exact("/a", "1", 1, 1, 1);
    CHECK_OK(watchcore_loading_new(writer, 5, &loading, &error));
    BAD(watchcore_loading_add(loading, other, &one, 1, &error));
    CHECK(strstr(error.message, "another cache") != NULL);
    BAD(watchcore_loading_finish(loading, other, &error));
    CHECK(strstr(error.message, "another cache") != NULL);
    CHECK_CODE(WATCHCORE_TIMEOUT, watchcore_cache_wait_ready(elsewhere, 0, &error));
    watchcore_loading_free(loading);
    watchcore_writer_free(other);
    watchcore_writer_free(writer);
    watchcore_cache_free(elsewhere);
    watchcore_cache_free(cache);
}

/* The next writer of the cache goes on with it; without its cache it can still be freed. */
static void test_outlives_writer_and_cache(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = expecting(&writer);
    watchcore_loading *loading = NULL, *left = NULL;
    watchcore_change one = exact("/a", "1", 1, 1, 1), two = exact("/b", "2", 2, 2, 1);
    CHECK_OK(watchcore_loading_new(writer, 5, &loading, &error));
    CHECK_OK(watchcore_loading_new(writer, 5, &left, &error));
    CHECK_OK(watchcore_loading_add(loading, writer, &one, 1, &error));
    CHECK_OK(watchcore_loading_add(left, writer, &one, 1, &error));
    watchcore_writer_free(writer);
    CHECK_OK(watchcore_writer_new(cache, &writer, &error));
    CHECK_OK(watchcore_loading_add(loading, writer, &two, 1, &error));
    CHECK_OK(watchcore_loading_finish(loading, writer, &error));
    CHECK(objects(cache) == 2);
    watchcore_loading_free(loading);
    CHECK_OK(watchcore_cache_close(cache, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_loading_add(left, writer, &one, 1, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_loading_new(writer, 9, &loading, &error));
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
    watchcore_loading_free(left);
}

/* A loading is for one at a time, as its writer is: of many callers each key comes once, or is refused. */
static watchcore_writer *shared_writer;
static watchcore_loading *shared_loading;
static atomic_ulong added, busy, other_answers;

static void *add_some(void *which)
{
    char key[32];
    int i;
    for (i = 0; i < 1000; i++) {
        watchcore_change one;
        snprintf(key, sizeof(key), "/%s/%d", (const char *)which, i);
        one = exact(key, "1", 1, 1, 1);
        switch (watchcore_loading_add(shared_loading, shared_writer, &one, 1, NULL)) {
        case WATCHCORE_OK: atomic_fetch_add(&added, 1); break;
        case WATCHCORE_BUSY: atomic_fetch_add(&busy, 1); break;
        default: atomic_fetch_add(&other_answers, 1); break;
        }
    }
    return NULL;
}

static void test_loading_shared_by_mistake(void)
{
    static char names[3][2] = {"a", "b", "c"};
    watchcore_cache *cache = expecting(&shared_writer);
    pthread_t threads[3];
    int i;
    CHECK_OK(watchcore_loading_new(shared_writer, 5, &shared_loading, &error));
    for (i = 0; i < 3; i++) {
        CHECK(pthread_create(&threads[i], NULL, add_some, names[i]) == 0);
    }
    for (i = 0; i < 3; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(atomic_load(&added) + atomic_load(&busy) == 3000 && atomic_load(&other_answers) == 0);
    CHECK_OK(watchcore_loading_finish(shared_loading, shared_writer, &error));
    CHECK(objects(cache) == atomic_load(&added));
    watchcore_loading_free(shared_loading);
    watchcore_writer_free(shared_writer);
    watchcore_cache_free(cache);
}

int main(void)
{
    RUN(test_pieces_in_any_order);
    RUN(test_unfinished_is_dropped);
    RUN(test_refused_key_values);
    RUN(test_spent_after_its_end);
    RUN(test_writer_of_another_cache);
    RUN(test_outlives_writer_and_cache);
    RUN(test_loading_shared_by_mistake);
    return check_finish("loading");
}
