/* A service with an event loop of its own: the loop is the example of watchcore.h (example-4.c), the rest is what a user
   would write beside it. Two caches, one embedded and one whose server is not there, in one loop; it ends when the first
   has had all of its changes. */
#include <stdio.h>
#include <stdlib.h>

#include "example-4.c"

static unsigned seen;
static watchcore_subscription *followed;

static void fail(const char *what, const watchcore_error *error)
{
    fprintf(stderr, "%s: %s: %s\n", what, watchcore_error_name(error->code), error->message);
    exit(1);
}

static void serve(const watchcore_batch *batch)
{
    size_t i;
    for (i = 0; i < batch->count; i++) {
        const watchcore_event *event = watchcore_batch_event(batch, i);
        seen += event->type == WATCHCORE_EVENT_ADDED;
    }
    if (seen == 1000) {
        watchcore_subscription_close(followed, NULL);
    }
}

static void follow(const watchcore_cache *cache, const watchcore_wakeset *set, watchcore_subscription **subscription)
{
    watchcore_error error = WATCHCORE_ERROR_INIT;
    if (watchcore_subscription_new(cache, NULL, subscription, &error) != WATCHCORE_OK ||
        watchcore_wakeset_add_subscription(set, *subscription, (uint64_t)(uintptr_t)*subscription, &error) != WATCHCORE_OK) {
        fail("subscribe", &error);
    }
}

int main(void)
{
    watchcore_error error = WATCHCORE_ERROR_INIT;
    watchcore_etcd_options etcd = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_cache *embedded = NULL, *fed = NULL;
    watchcore_subscription *other = NULL;
    watchcore_feeder *feeder = NULL;
    watchcore_writer *writer = NULL;
    watchcore_wakeset *set = NULL;
    uint64_t revision;
    int32_t rc;
    etcd.endpoints = watchcore_bytes_from_string("http://127.0.0.1:1");
    if (watchcore_cache_new(NULL, &embedded, &error) != WATCHCORE_OK ||
        watchcore_cache_new(NULL, &fed, &error) != WATCHCORE_OK ||
        watchcore_feeder_start(fed, &etcd, &feeder, &error) != WATCHCORE_OK ||
        watchcore_writer_new(embedded, &writer, &error) != WATCHCORE_OK ||
        watchcore_wakeset_new(&set, &error) != WATCHCORE_OK) {
        fail("set up", &error);
    }
    follow(embedded, set, &followed);
    follow(fed, set, &other);
    for (revision = 1; revision <= 1000; revision++) {
        char key[32];
        watchcore_change change = WATCHCORE_CHANGE_INIT;
        snprintf(key, sizeof(key), "/items/%u", (unsigned)revision);
        change.op = WATCHCORE_CHANGE_PUT;
        change.key = watchcore_bytes_from_string(key);
        change.value = watchcore_bytes_from_string("x");
        if (watchcore_writer_apply(writer, revision, &change, 1, &error) != WATCHCORE_OK) {
            fail("apply", &error);
        }
    }
    rc = watch_loop(set, serve, &error);
    printf("%s after %u items\n", watchcore_error_name(rc), seen);
    watchcore_feeder_free(feeder);
    watchcore_writer_free(writer);
    watchcore_subscription_free(followed);
    watchcore_subscription_free(other);
    watchcore_wakeset_free(set);
    watchcore_cache_free(embedded);
    watchcore_cache_free(fed);
    error = WATCHCORE_ERROR_INIT;
    if (watchcore_shutdown(30000, &error) != WATCHCORE_OK) {
        fail("shutdown", &error);
    }
    return 0;
}
