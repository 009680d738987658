/* The programs of the header as they stand there in comments: the Makefile takes them out of it, so that what a user copies
   compiles and does what it says. */
#include <pthread.h>

#include "check.h"

/* A program of its own. */
#define main whole_program
int whole_program(void);
#include "example-1.c"
#undef main
#include "example-2.c"
#include "example-3.c"
#include "example-4.c"

static watchcore_error error;

enum { CAPACITY = 128, LAST = 10000 };

/* What the loops gave, and the subscription that ends once it has come to the last revision. */
static struct {
    watchcore_subscription *subscription;
    size_t events, marks;
    uint64_t last;
} seen;

static void serve(const watchcore_batch *batch)
{
    size_t i;
    for (i = 0; i < batch->count; i++) {
        const watchcore_event *event = watchcore_batch_event(batch, i);
        seen.events += event->kv != NULL;
        seen.marks += event->type == WATCHCORE_EVENT_RESYNC && event->resync_reason == WATCHCORE_RESYNC_LAGGED;
        seen.last = event->kv != NULL ? event->kv->mod_revision : seen.last;
    }
    if (batch->count < 4) {
        show(batch);
    }
    if (batch->position == LAST) {
        watchcore_subscription_close(seen.subscription, NULL);
    }
}

/* A subscription that has lost events, and is to be given the difference. */
static watchcore_cache *lagging(uint32_t on_lag)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_subscription_options wanted = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_change one = put("/a", "1");
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = NULL;
    uint64_t revision;
    options.capacity = CAPACITY;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    CHECK_OK(watchcore_writer_new(cache, &writer, &error));
    wanted.start = WATCHCORE_START_NOW;
    wanted.on_lag = on_lag;
    memset(&seen, 0, sizeof(seen));
    CHECK_OK(watchcore_subscription_new(cache, &wanted, &seen.subscription, &error));
    for (revision = 1; revision <= LAST; revision++) {
        CHECK_OK(watchcore_writer_apply(writer, revision, &one, 1, &error));
    }
    watchcore_writer_free(writer);
    return cache;
}

static int32_t by_waiting(watchcore_subscription *subscription)
{
    return follow(subscription, serve, &error);
}

static int32_t by_epoll(watchcore_subscription *subscription)
{
    watchcore_wakeset *set = NULL;
    int32_t code;
    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK_OK(watchcore_wakeset_add_subscription(set, subscription, (uint64_t)(uintptr_t)subscription, &error));
    code = watch_loop(set, serve, &error);
    watchcore_wakeset_free(set);
    return code;
}

/* LAGGED is no end: by its policy it goes on, from the difference or from the oldest revision, or ends with CLOSED. */
static void loop_goes_on(int32_t (*loop)(watchcore_subscription *))
{
    static const uint32_t policies[] = {WATCHCORE_ON_LAG_RESNAPSHOT, WATCHCORE_ON_LAG_CONFLATE,
                                        WATCHCORE_ON_LAG_SKIP_TO_OLDEST, WATCHCORE_ON_LAG_STOP};
    size_t i;
    for (i = 0; i < 4; i++) {
        watchcore_cache *cache = lagging(policies[i]);
        error = WATCHCORE_ERROR_INIT;
        CHECK(loop(seen.subscription) == WATCHCORE_CLOSED);
        CHECK(seen.last == (policies[i] == WATCHCORE_ON_LAG_STOP ? 0 : LAST));
        CHECK(seen.marks == (policies[i] == WATCHCORE_ON_LAG_RESNAPSHOT ? 2 : 0));
        CHECK(policies[i] != WATCHCORE_ON_LAG_RESNAPSHOT || seen.events == 1);
        watchcore_subscription_free(seen.subscription);
        watchcore_cache_free(cache);
    }
}

static void test_loop_goes_on_after_a_loss(void)
{
    loop_goes_on(by_waiting);
}

static void test_event_loop_goes_on_after_a_loss(void)
{
    loop_goes_on(by_epoll);
}

static void test_whole_program_runs(void)
{
    CHECK(whole_program() == 0);
}

int main(void)
{
    RUN(test_loop_goes_on_after_a_loss);
    RUN(test_event_loop_goes_on_after_a_loss);
    RUN(test_whole_program_runs);
    return check_finish("examples");
}
