/* The snippet of README.md over a cache that has one object, and is closed once the snippet has subscribed. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <watchcore.h>

static int32_t readme(watchcore_cache *cache)
{
#include "snippet.h"
    return rc;
}

/* What is written stays to be handed out by a subscription that is open when the cache is closed. */
static void *close_when_subscribed(void *cache)
{
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    while (watchcore_cache_stats(cache, &stats, NULL) == WATCHCORE_OK && stats.subscriptions == 0) {
        sched_yield();
    }
    return watchcore_cache_close(cache, NULL) == WATCHCORE_OK ? cache : NULL;
}

int main(void)
{
    pthread_t thread;
    watchcore_cache *cache = NULL;
    watchcore_writer *writer = NULL;
    watchcore_change change = WATCHCORE_CHANGE_INIT;
    int32_t rc;
    change.op = WATCHCORE_CHANGE_PUT;
    change.key = watchcore_bytes_from_string("/a");
    change.value = watchcore_bytes_from_string("1");
    if (watchcore_cache_new(NULL, &cache, NULL) != 0 || watchcore_writer_new(cache, &writer, NULL) != 0 ||
        watchcore_writer_apply(writer, 17, &change, 1, NULL) != 0 ||
        pthread_create(&thread, NULL, close_when_subscribed, cache) != 0) {
        return 1;
    }
    rc = readme(cache);
    pthread_join(thread, NULL);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
    return rc == WATCHCORE_CLOSED ? 0 : 2;
}
