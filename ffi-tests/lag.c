/* What is lost and what follows, by policy; how long a batch is, and how far behind a subscription may be. */
#include <sched.h>

#include "objects.h"

/* What a subscription remembers as delivered is counted, in its own statistics and in those of the cache. */
static void test_delivered_keys_are_counted(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = declared(0, &writer);
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription_statistics statistics = WATCHCORE_SUBSCRIPTION_STATISTICS_INIT;
    watchcore_subscription *subscription = NULL;
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    apply(writer, 1, put("/x/a", WEB));
    options.on_lag = WATCHCORE_ON_LAG_RESNAPSHOT;
    CHECK_OK(watchcore_subscription_new(cache, &options, &subscription, &error));
    CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
    watchcore_batch_release(&batch);
    CHECK_OK(watchcore_subscription_stats(subscription, &statistics, &error));
    CHECK(statistics.delivered_keys == 1 && statistics.delivered_bytes > 0 && statistics.lagged == 0 && statistics.handed_out == 2);
    CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
    CHECK(stats.delivered_bytes == statistics.delivered_bytes && stats.link_bytes == 0);
    watchcore_subscription_free(subscription);
    CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
    CHECK(stats.delivered_bytes == 0);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* A limit in time ends a subscription whatever its policy. */
static void test_maximum_age(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = declared(0, &writer);
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *quick = NULL, *patient = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    watchcore_change one;
    uint64_t revision;
    int32_t code = WATCHCORE_INTERNAL;
    options.start = WATCHCORE_START_NOW;
    options.on_lag = WATCHCORE_ON_LAG_CONFLATE;
    CHECK_OK(watchcore_subscription_new(cache, &options, &patient, &error));
    options.max_lag_age_ms = 1;
    CHECK_OK(watchcore_subscription_new(cache, &options, &quick, &error));
    for (revision = 1; revision <= 6; revision++) {
        apply(writer, revision, put("/x/a", WEB));
    }
    /* It goes on polling and never catches up: looked at four times a second. */
    do {
        one = put("/x/a", WEB2);
        if (watchcore_writer_apply(writer, revision++, &one, 1, NULL) != WATCHCORE_OK) {
            break;
        }
        watchcore_batch_release(&batch);
        sched_yield();
        code = watchcore_subscription_poll(quick, 1, &batch, NULL);
    } while (code == WATCHCORE_OK);
    CHECK(code == WATCHCORE_LAGGED);
    watchcore_batch_release(&batch);
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_subscription_poll(quick, 0, &batch, &error));
    CHECK_OK(watchcore_subscription_poll(patient, 0, &batch, &error));
    CHECK(batch.count != 0);
    watchcore_batch_release(&batch);
    watchcore_subscription_free(quick);
    watchcore_subscription_free(patient);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

int main(void)
{
    RUN(test_delivered_keys_are_counted);
    RUN(test_maximum_age);
    return check_finish("lag");
}
