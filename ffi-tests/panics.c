/* Panics inside the library, and handles that are used after they were freed: a code, and the program goes on. Only the
   test build can plant the one and detect the other. */
#include "check.h"

static watchcore_error error;

/* A panic inside a call is answered, and so is every later call: both say what to do. */
#define PANICS(call) \
    do { \
        watchcore_debug_panic_next(); \
        CHECK_CODE(WATCHCORE_PANIC, call); \
        CHECK(strstr(error.message, "planted") != NULL && strstr(error.message, "free it") != NULL); \
        POISONED(call); \
    } while (0)
#define POISONED(call) \
    do { \
        CHECK_CODE(WATCHCORE_PANIC, call); \
        CHECK(strstr(error.message, "Free it and make a new watchcore_") != NULL); \
    } while (0)

/* A cache with one key, and one handle of each kind on it. */
typedef struct scene {
    watchcore_cache *cache;
    watchcore_writer *writer;
    watchcore_subscription *subscription;
    watchcore_snapshot *snapshot;
    watchcore_iterator *iterator;
    watchcore_page *page;
    watchcore_waiter *waiter;
    watchcore_wakeset *set;
    uint64_t revision;
} scene;

static void open_scene(scene *all)
{
    watchcore_change one = put("/a", "1");
    memset(all, 0, sizeof(*all));
    all->cache = embedded(&all->writer);
    all->revision = 1;
    CHECK_OK(watchcore_writer_apply(all->writer, 1, &one, 1, &error));
    CHECK_OK(watchcore_subscription_new(all->cache, NULL, &all->subscription, &error));
    CHECK_OK(watchcore_snapshot_new(all->cache, &all->snapshot, &error));
    CHECK_OK(watchcore_iterator_new(all->snapshot, NULL, &all->iterator, &error));
    CHECK_OK(watchcore_cache_list(all->cache, NULL, NULL, &all->page, NULL, &error));
    CHECK_OK(watchcore_waiter_new(all->cache, WATCHCORE_WANT_READY, 0, 0, &all->waiter, &error));
    CHECK_OK(watchcore_wakeset_new(&all->set, &error));
}

/* Every handle that is still there does what it should; a freed one is NULL. */
static void goes_on(scene *all)
{
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    watchcore_status status = WATCHCORE_STATUS_INIT;
    const watchcore_key_value *kv = NULL;
    watchcore_change one = put("/a", "more");
    uint64_t position = 0;
    uint32_t flag = 0;
    int polls;
    if (all->writer != NULL) {
        CHECK_OK(watchcore_writer_apply(all->writer, ++all->revision, &one, 1, &error));
    }
    if (all->cache != NULL) {
        CHECK_OK(watchcore_cache_status(all->cache, &status, &error));
        CHECK(status.revision == all->revision);
        CHECK_OK(watchcore_cache_position(all->cache, &position, NULL, NULL, &error));
        CHECK_OK(watchcore_cache_is_ready(all->cache, &flag, &error));
        CHECK(position == all->revision && flag == 1);
        position = 0;
    }
    if (all->subscription != NULL) {
        /* The state comes before what happened since. */
        for (polls = 0; polls < 3 && position < all->revision; polls++) {
            CHECK_OK(watchcore_subscription_poll(all->subscription, 0, &batch, &error));
            position = batch.position;
            watchcore_batch_release(&batch);
        }
        CHECK(position == all->revision);
    }
    if (all->snapshot != NULL) {
        CHECK_OK(watchcore_snapshot_get(all->snapshot, "/a", 2, &flag, &kv, &error));
        CHECK(flag == 1 && snapshot_revision(all->snapshot) == 1);
    }
    if (all->waiter != NULL) {
        CHECK_OK(watchcore_waiter_try(all->waiter, &flag, NULL, NULL, &error));
        CHECK(flag == 1);
    }
    if (all->set != NULL) {
        CHECK_OK(watchcore_wakeset_next(all->set, &position, &flag, &error));
    }
    if (all->page != NULL) {
        CHECK(page_info(all->page).count == 1);
    }
}

static void close_scene(scene *all)
{
    watchcore_iterator_free(all->iterator);
    watchcore_page_free(all->page);
    watchcore_waiter_free(all->waiter);
    watchcore_wakeset_free(all->set);
    watchcore_snapshot_free(all->snapshot);
    watchcore_subscription_free(all->subscription);
    watchcore_writer_free(all->writer);
    watchcore_cache_free(all->cache);
}

static void test_panic_in_a_subscription(void)
{
    scene all;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    open_scene(&all);
    PANICS(watchcore_subscription_poll(all.subscription, 0, &batch, &error));
    CHECK(batch.count == 0 && batch.owner == NULL);
    POISONED(watchcore_subscription_wait(all.subscription, -1, &error));
    POISONED(watchcore_subscription_close(all.subscription, &error));
    watchcore_subscription_free(all.subscription);
    all.subscription = NULL;
    goes_on(&all);
    CHECK_OK(watchcore_subscription_new(all.cache, NULL, &all.subscription, &error));
    goes_on(&all);
    close_scene(&all);
}

static void test_panic_in_a_writer(void)
{
    scene all;
    watchcore_change one = put("/a", "never written");
    open_scene(&all);
    PANICS(watchcore_writer_apply(all.writer, 2, &one, 1, &error));
    POISONED(watchcore_writer_progress(all.writer, 2, &error));
    watchcore_writer_free(all.writer);
    all.writer = NULL;
    goes_on(&all);
    /* What is free can be taken again. */
    CHECK_OK(watchcore_writer_new(all.cache, &all.writer, &error));
    goes_on(&all);
    close_scene(&all);
}

/* How often a function was misused, or failed. */
static uint64_t errors_of(const char *function)
{
    const char *name;
    uint64_t calls, successes, errors;
    size_t i;
    for (i = 0; (name = watchcore_debug_count(i, &calls, &successes, &errors)) != NULL; i++) {
        if (strcmp(name, function) == 0) {
            return errors;
        }
    }
    CHECK(!"a function of this name");
    return 0;
}

static void test_panic_in_a_loading(void)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    watchcore_writer *writer = NULL;
    watchcore_loading *loading = NULL;
    watchcore_change one = exact("/a", "1", 1, 1, 1);
    uint64_t misused = errors_of("watchcore_loading_free");
    options.expect_load = 1;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    CHECK_OK(watchcore_writer_new(cache, &writer, &error));
    CHECK_OK(watchcore_loading_new(writer, 5, &loading, &error));
    PANICS(watchcore_loading_add(loading, writer, &one, 1, &error));
    POISONED(watchcore_loading_finish(loading, writer, &error));
    watchcore_loading_free(loading);
    CHECK(errors_of("watchcore_loading_free") == misused);
    watchcore_loading_free(loading); /* does nothing */
    CHECK(errors_of("watchcore_loading_free") == misused + 1);
    BAD(watchcore_loading_add(loading, writer, &one, 1, &error));
    /* The writer was not in it yet. */
    CHECK_OK(watchcore_loading_new(writer, 5, &loading, &error));
    CHECK_OK(watchcore_loading_finish(loading, writer, &error));
    watchcore_loading_free(loading);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static void test_panic_in_a_snapshot(void)
{
    scene all;
    const watchcore_key_value *kv = NULL, *items[2];
    uint32_t found = 0;
    uint64_t number = 0;
    size_t count = 0;
    open_scene(&all);
    PANICS(watchcore_snapshot_get(all.snapshot, "/a", 2, &found, &kv, &error));
    CHECK(found == 0 && kv == NULL);
    POISONED(watchcore_snapshot_count(all.snapshot, NULL, &number, &error));
    POISONED(watchcore_snapshot_position(all.snapshot, &number, NULL, &error));
    CHECK(number == 0);
    watchcore_snapshot_free(all.snapshot);
    CHECK_OK(watchcore_snapshot_new(all.cache, &all.snapshot, &error));
    PANICS(watchcore_iterator_next(all.iterator, items, 2, &count, &error));
    CHECK(count == 0);
    watchcore_iterator_free(all.iterator);
    all.iterator = NULL;
    goes_on(&all);
    close_scene(&all);
}

static void test_panic_where_no_code_is_answered(void)
{
    watchcore_page_info info = WATCHCORE_PAGE_INFO_INIT;
    scene all;
    open_scene(&all);
    watchcore_debug_panic_next();
    CHECK(watchcore_page_item(all.page, 0) == NULL);
    CHECK(watchcore_page_item(all.page, 0) == NULL && watchcore_page_items(all.page) == NULL);
    POISONED(watchcore_page_describe(all.page, &info, &error));
    CHECK(info.count == 0);
    watchcore_page_free(all.page);
    all.page = NULL;
    goes_on(&all);
    close_scene(&all);
}

static void test_panic_in_a_waiter_and_a_wake_set(void)
{
    scene all;
    uint64_t tag = 0;
    uint32_t flag = 0;
    open_scene(&all);
    CHECK_OK(watchcore_wakeset_add_subscription(all.set, all.subscription, 7, &error));
    PANICS(watchcore_waiter_try(all.waiter, &flag, NULL, NULL, &error));
    watchcore_waiter_free(all.waiter);
    all.waiter = NULL;
    goes_on(&all);
    PANICS(watchcore_wakeset_next(all.set, &tag, &flag, &error));
    watchcore_wakeset_free(all.set);
    all.set = NULL;
    goes_on(&all);
    close_scene(&all);
}

/* What was made from a poisoned cache goes on, and is freed before it or after. */
static void test_panic_in_a_cache(void)
{
    scene all;
    watchcore_status status = WATCHCORE_STATUS_INIT;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_cache *cache;
    open_scene(&all);
    PANICS(watchcore_cache_status(all.cache, &status, &error));
    CHECK(status.revision == 0);
    POISONED(watchcore_cache_get(all.cache, "/a", 2, NULL, &answer, &error));
    POISONED(watchcore_cache_close(all.cache, &error));
    cache = all.cache;
    all.cache = NULL;
    goes_on(&all);
    watchcore_cache_free(cache);
    close_scene(&all);
}

static void test_panic_in_a_feeder(void)
{
    watchcore_cache *cache = embedded(NULL);
    watchcore_etcd_options etcd = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_counters counters = WATCHCORE_COUNTERS_INIT;
    watchcore_status status = WATCHCORE_STATUS_INIT;
    watchcore_feeder *feeder = NULL;
    etcd.endpoints = text("http://127.0.0.1:1");
    CHECK_OK(watchcore_feeder_start(cache, &etcd, &feeder, &error));
    PANICS(watchcore_feeder_counters(feeder, &counters, &error));
    CHECK_OK(watchcore_cache_status(cache, &status, &error));
    watchcore_feeder_free(feeder);
    watchcore_cache_free(cache);
}

static void test_use_after_free_is_detected(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    uint64_t writers = errors_of("watchcore_writer_free"), caches = errors_of("watchcore_cache_free");
    watchcore_writer_free(writer);
    CHECK(errors_of("watchcore_writer_free") == writers);
    watchcore_writer_free(writer); /* does nothing */
    CHECK(errors_of("watchcore_writer_free") == writers + 1);
    BAD(watchcore_writer_progress(writer, 1, &error));
    watchcore_cache_free(cache);
    CHECK(errors_of("watchcore_cache_free") == caches);
    watchcore_cache_free(cache);
    CHECK(errors_of("watchcore_cache_free") == caches + 1);
    BAD(watchcore_cache_close(cache, &error));
}

int main(void)
{
    if (watchcore_debug_panic_next != NULL) {
        RUN(test_panic_in_a_subscription);
        RUN(test_panic_in_a_writer);
        RUN(test_panic_in_a_loading);
        RUN(test_panic_in_a_snapshot);
        RUN(test_panic_where_no_code_is_answered);
        RUN(test_panic_in_a_waiter_and_a_wake_set);
        RUN(test_panic_in_a_cache);
        RUN(test_panic_in_a_feeder);
        RUN(test_use_after_free_is_detected);
    }
    return check_finish("panics");
}
