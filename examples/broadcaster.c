/* A broadcaster: what one thread publishes, every watcher sees, each at its own pace.
 *
 *     cc -I include examples/broadcaster.c -L target/watchcore -l:libwatchcore.a -lpthread -ldl -lm -o broadcaster
 *     ./broadcaster
 *
 * It is an embedded cache with one key: a publish is one revision of it, and the log is the history that watchers
 * read. Publishing costs the same for one watcher and for ten thousand. What a watcher does where it is slow is its own
 * choice, as with a channel of its own:
 *
 *     wait   the publisher waits until it is less than QUEUE events behind
 *     drop   it loses what has left the log, and learns how much
 *
 * Prints:
 *
 *     wait: 1000 events in order, 0 lost
 *     drop: some events lost, none of them silently: 1000 in all */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "watchcore.h"

#define EVENTS 1000
#define QUEUE 64
#define TIMEOUT_MS 60000

/* One watcher. */
struct watcher {
    watchcore_subscription *subscription;
    uint64_t seen;
    uint64_t lost;
    uint64_t next; /* the number of the event that must come, where none is lost; below `taking` */
    int failed;
};

/* Where a publisher waits for a place, and who took one says so. A subscription's lag would not do: who sleeps counts as
 * having everything until it is woken. */
static pthread_mutex_t taking = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t taken = PTHREAD_COND_INITIALIZER;

static int fail(const char *what, const watchcore_error *error)
{
    fprintf(stderr, "%s: %s: %s\n", what, watchcore_error_name(error->code), error->message);
    return 1;
}

static int watch(const watchcore_cache *cache, uint32_t on_lag, struct watcher *watcher, watchcore_error *error)
{
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    options.start = WATCHCORE_START_NOW; /* exactly what is published from here on */
    options.on_lag = on_lag;
    watcher->next = 1;
    return watchcore_subscription_new(cache, &options, &watcher->subscription, error);
}

/* Takes events until the broadcaster is shut down and everything was taken. */
static void *take(void *argument)
{
    struct watcher *watcher = argument;
    watchcore_error error = WATCHCORE_ERROR_INIT;
    for (;;) {
        watchcore_batch batch = WATCHCORE_BATCH_INIT;
        size_t i;
        int32_t code = watchcore_subscription_wait(watcher->subscription, TIMEOUT_MS, &error);
        if (code == WATCHCORE_OK) {
            code = watchcore_subscription_poll(watcher->subscription, 16, &batch, &error);
        }
        if (code == WATCHCORE_LAGGED) { /* said once; what is left comes next */
            pthread_mutex_lock(&taking);
            watcher->lost += error.lost_to - error.lost_from + 1;
            watcher->next = error.lost_to + 1;
            pthread_mutex_unlock(&taking);
            continue;
        }
        if (code != WATCHCORE_OK) {
            pthread_mutex_lock(&taking);
            watcher->failed = code != WATCHCORE_CLOSED && fail("take", &error);
            watcher->next = UINT64_MAX - QUEUE; /* nobody waits for who has gone */
            pthread_cond_broadcast(&taken);
            pthread_mutex_unlock(&taking);
            break;
        }
        pthread_mutex_lock(&taking);
        for (i = 0; i < batch.count; i++) {
            const watchcore_event *event = watchcore_batch_event(&batch, i);
            watcher->failed |= event->revision != watcher->next; /* a gap that nobody spoke of */
            watcher->next = event->revision + 1;
            watcher->seen++;
        }
        pthread_cond_broadcast(&taken);
        pthread_mutex_unlock(&taking);
        watchcore_batch_release(&batch);
    }
    return NULL;
}

/* Waits until a watcher has a place in its queue for an event. A program with many of them keeps the number up to which it
 * may publish without asking, and asks each of them only there. */
static void wait_for(const struct watcher *slowest, uint64_t number)
{
    pthread_mutex_lock(&taking);
    while (slowest->next + QUEUE <= number) {
        pthread_cond_wait(&taken, &taking);
    }
    pthread_mutex_unlock(&taking);
}

int main(void)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_error error = WATCHCORE_ERROR_INIT;
    watchcore_change change = WATCHCORE_CHANGE_INIT;
    watchcore_cache *cache = NULL;
    watchcore_writer *writer = NULL;
    struct watcher waiting = {NULL, 0, 0, 0, 0}, dropping = {NULL, 0, 0, 0, 0};
    pthread_t thread;
    char text[32];
    uint64_t number;

    options.capacity = 256; /* the history; more than any queue */
    change.op = WATCHCORE_CHANGE_PUT;
    change.key = watchcore_bytes_from_string("event");
    if (watchcore_cache_new(&options, &cache, &error) != WATCHCORE_OK ||
        watchcore_writer_new(cache, &writer, &error) != WATCHCORE_OK ||
        watch(cache, WATCHCORE_ON_LAG_STOP, &waiting, &error) != WATCHCORE_OK ||
        watch(cache, WATCHCORE_ON_LAG_SKIP_TO_OLDEST, &dropping, &error) != WATCHCORE_OK) {
        return fail("broadcaster", &error);
    }
    if (pthread_create(&thread, NULL, take, &waiting) != 0) {
        return 1;
    }
    for (number = 1; number <= EVENTS; number++) {
        int length = snprintf(text, sizeof(text), "event %llu", (unsigned long long)number);
        change.value = watchcore_bytes_from(text, (size_t)length);
        wait_for(&waiting, number);
        if (watchcore_writer_apply(writer, number, &change, 1, &error) != WATCHCORE_OK) {
            return fail("publish", &error);
        }
    }
    watchcore_writer_free(writer);
    watchcore_cache_free(cache); /* the shutdown: everybody gets what was published, then CLOSED */
    pthread_join(thread, NULL);
    (void)take(&dropping); /* it took nothing meanwhile, and held nobody up */

    printf("wait: %llu events in order, %llu lost\n", (unsigned long long)waiting.seen, (unsigned long long)waiting.lost);
    printf("drop: %s events lost, none of them silently: %llu in all\n", dropping.lost > 0 ? "some" : "no",
           (unsigned long long)(dropping.seen + dropping.lost));
    watchcore_subscription_free(waiting.subscription);
    watchcore_subscription_free(dropping.subscription);
    return waiting.failed || dropping.failed;
}
