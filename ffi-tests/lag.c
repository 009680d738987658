/* What is lost and what follows, by policy; how long a batch is, and how far behind a subscription may be. */
#include <sched.h>

#include "objects.h"

/* What a subscription remembers as delivered is counted, in its own figures and in those of the cache. */
static void test_delivered_keys_are_counted(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = declared(0, &writer);
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription_figures figures = WATCHCORE_SUBSCRIPTION_FIGURES_INIT;
    watchcore_subscription *subscription = NULL;
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    apply(writer, 1, put("/x/a", WEB));
    options.on_lag = WATCHCORE_ON_LAG_RESNAPSHOT;
    CHECK_OK(watchcore_subscription_new(cache, &options, &subscription, &error));
    CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
    watchcore_batch_release(&batch);
    CHECK_OK(watchcore_subscription_stats(subscription, &figures, &error));
    CHECK(figures.delivered_keys == 1 && figures.delivered_bytes > 0 && figures.lagged == 0 && figures.handed_out == 2);
    CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
    CHECK(stats.delivered_bytes == figures.delivered_bytes && stats.link_bytes == 0);
    watchcore_subscription_free(subscription);
    CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
    CHECK(stats.delivered_bytes == 0);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* Polls until nothing comes; no batch is longer than `most`, and all of it arrives. A loss is told once on the way. */
static void comes_in_parts(watchcore_subscription *subscription, size_t max, size_t most, size_t all)
{
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    size_t sum = 0, longest = 0;
    int32_t code;
    do {
        watchcore_batch_release(&batch);
        code = watchcore_subscription_poll(subscription, max, &batch, &error);
        CHECK(code == WATCHCORE_OK || code == WATCHCORE_LAGGED);
        sum += batch.count;
        longest = batch.count > longest ? batch.count : longest;
    } while (batch.count != 0 || code == WATCHCORE_LAGGED);
    CHECK(longest <= most && sum == all);
    if (longest > most || sum != all) {
        printf("  max %zu: %zu events, at most %zu in a batch\n", max, sum, longest);
    }
}

/* Without a maximum a batch has at most 1024 events, wherever they come from: the state, the log (one revision longer
   than that), a bucket of an index, a difference after a loss. A maximum of the caller's is kept to as well. */
static void bounded_polls(size_t max, size_t most)
{
    enum { KEYS = 3000 };
    static char keys[KEYS][8];
    static watchcore_change changes[KEYS];
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *catches = NULL, *conflates = NULL, *state = NULL;
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = declared(1, &writer);
    watchcore_subscription *log = selecting(cache, WATCHCORE_START_NOW, NULL, NULL);
    watchcore_subscription *scan = selecting(cache, WATCHCORE_START_NOW, "tier", NULL);
    watchcore_subscription *chain = selecting(cache, WATCHCORE_START_NOW, "app=web", NULL);
    size_t at;
    for (at = 0; at < KEYS; at++) {
        snprintf(keys[at], sizeof(keys[at]), "/%zu", at);
        changes[at] = put(keys[at], WEB);
    }
    CHECK_OK(watchcore_writer_apply(writer, 1, changes, KEYS, &error));
    comes_in_parts(log, max, most, KEYS);
    comes_in_parts(scan, max, most, KEYS);
    comes_in_parts(chain, max, most, KEYS);
    options.labels = text("tier");
    CHECK_OK(watchcore_subscription_new(cache, &options, &state, &error));
    comes_in_parts(state, max, most, KEYS + 1); /* and the mark */
    options.on_lag = WATCHCORE_ON_LAG_RESNAPSHOT;
    CHECK_OK(watchcore_subscription_new(cache, &options, &catches, &error));
    comes_in_parts(catches, max, most, KEYS + 1);
    options.on_lag = WATCHCORE_ON_LAG_CONFLATE;
    CHECK_OK(watchcore_subscription_new(cache, &options, &conflates, &error));
    comes_in_parts(conflates, max, most, KEYS + 1);
    for (at = 0; at < KEYS; at++) {
        changes[at] = put(keys[at], WEB2);
    }
    CHECK_OK(watchcore_writer_apply(writer, 2, changes, KEYS, &error));
    for (at = 0; at < KEYS; at++) {
        changes[at] = put(keys[at], WEB);
    }
    CHECK_OK(watchcore_writer_apply(writer, 3, changes, KEYS, &error));
    for (at = 0; at < CAPACITY; at++) { /* revision 2 leaves the window, and most of 3 */
        apply(writer, 4 + 2 * at, put("/busy", DB));
        apply(writer, 5 + 2 * at, put("/busy", DB));
    }
    comes_in_parts(catches, max, most, KEYS + 2); /* and two marks */
    comes_in_parts(conflates, max, most, KEYS);
    watchcore_subscription_free(log);
    watchcore_subscription_free(scan);
    watchcore_subscription_free(chain);
    watchcore_subscription_free(state);
    watchcore_subscription_free(catches);
    watchcore_subscription_free(conflates);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static void test_polls_without_a_maximum(void)
{
    bounded_polls(0, 1024);
}

static void test_polls_keep_their_maximum(void)
{
    bounded_polls(1, 1);
    bounded_polls(700, 700);
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
    RUN(test_polls_without_a_maximum);
    RUN(test_polls_keep_their_maximum);
    RUN(test_maximum_age);
    return check_finish("lag");
}
