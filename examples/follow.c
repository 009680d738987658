/* Follows a prefix of etcd and prints what happens, or the same from a writer of its own.
 *
 *     cc -I include examples/follow.c -L target/watchcore -l:libwatchcore.a -lpthread -ldl -lm -o follow
 *     ./follow http://127.0.0.1:2379 /registry/pods/
 *     ./follow                                             (no server: an embedded writer)
 *
 * Ends with Ctrl-C, or in the embedded case after the last event. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>

#include "watchcore.h"

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

static int fail(const char *what, const watchcore_error *error)
{
    fprintf(stderr, "%s: %s: %s\n", what, watchcore_error_name(error->code), error->message);
    return 1;
}

static void print(const watchcore_event *event)
{
    watchcore_bytes key = watchcore_event_key(event);
    watchcore_bytes value = watchcore_event_value(event); /* absent in a deletion */
    printf("%llu %s %.*s", (unsigned long long)event->revision, watchcore_name(WATCHCORE_NAME_EVENT_TYPE, event->type),
           (int)key.length, (const char *)key.data);
    if (value.data != NULL) {
        printf(" = %.*s", (int)value.length, (const char *)value.data);
    }
    printf((event->flags & WATCHCORE_FLAG_INITIAL_STATE_END) != 0 ? " (that was the state)\n" : "\n");
}

/* Hands out what is there now, at most 256 events. Returns a code. */
static int32_t print_some(watchcore_subscription *subscription, watchcore_error *error)
{
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    size_t i;
    int32_t code = watchcore_subscription_poll(subscription, 256, &batch, error);
    if (code == WATCHCORE_LAGGED) { /* once a loss: what follows is what `on_lag` says, here CLOSED */
        fprintf(stderr, "%s\n", error->message);
        return WATCHCORE_OK;
    }
    for (i = 0; i < batch.count; i++) {
        print(watchcore_batch_event(&batch, i));
    }
    watchcore_batch_release(&batch); /* the events are not valid any more */
    return code;                     /* CLOSED comes after the last event */
}

/* Serves the subscription until it ends or somebody presses Ctrl-C, without a thread of its own: what a program
 * with an event loop does with its own poll(2). */
static int follow(watchcore_subscription *subscription, watchcore_wakeset *set, watchcore_error *error)
{
    struct pollfd one;
    int32_t code = WATCHCORE_OK, fd;
    uint32_t found;
    uint64_t tag;
    if (watchcore_wakeset_fd(set, &fd, error) != WATCHCORE_OK ||
        watchcore_wakeset_add_subscription(set, subscription, 1, error) != WATCHCORE_OK) {
        return fail("wake set", error);
    }
    one.fd = fd;
    one.events = POLLIN;
    while (!interrupted && code == WATCHCORE_OK) {
        if (poll(&one, 1, -1) < 0 && errno != EINTR) {
            perror("poll");
            return 1;
        }
        while (code == WATCHCORE_OK && watchcore_wakeset_next(set, &tag, &found, error) == WATCHCORE_OK && found) {
            code = print_some(subscription, error); /* with many members: that of `tag` */
        }
        fflush(stdout);
    }
    return code == WATCHCORE_OK || code == WATCHCORE_CLOSED ? 0 : fail("subscription", error);
}

/* Two revisions of a program's own, then the end. */
static int write_something(watchcore_cache *cache, watchcore_error *error)
{
    watchcore_writer *writer = NULL;
    watchcore_change changes[2] = {WATCHCORE_CHANGE_INIT, WATCHCORE_CHANGE_INIT};
    if (watchcore_writer_new(cache, &writer, error) != WATCHCORE_OK) {
        return fail("writer", error);
    }
    changes[0].op = WATCHCORE_CHANGE_PUT;
    changes[0].key = watchcore_bytes_from_string("/a");
    changes[0].value = watchcore_bytes_from_string("1");
    changes[1].op = WATCHCORE_CHANGE_PUT;
    changes[1].key = watchcore_bytes_from_string("/b");
    changes[1].value = watchcore_bytes_from_string("2");
    if (watchcore_writer_apply(writer, 17, changes, 2, error) == WATCHCORE_OK) {
        changes[0].value = watchcore_bytes_from_string("3");
        changes[1].op = WATCHCORE_CHANGE_DELETE;
        changes[1].value = watchcore_bytes_from(NULL, 0);
        (void)watchcore_writer_apply(writer, 18, changes, 2, error); /* one revision, seen whole or not at all */
    }
    watchcore_writer_free(writer);
    return error->code == WATCHCORE_OK ? 0 : fail("writer", error);
}

int main(int argc, char **argv)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_etcd_options etcd = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_error error = WATCHCORE_ERROR_INIT;
    watchcore_cache *cache = NULL;
    watchcore_feeder *feeder = NULL;
    watchcore_subscription *subscription = NULL;
    watchcore_wakeset *set = NULL;
    int failed = 1;

    signal(SIGINT, on_signal);
    options.prefix = watchcore_bytes_from_string(argc > 2 ? argv[2] : "/");
    if (watchcore_cache_new(&options, &cache, &error) != WATCHCORE_OK) {
        return fail("cache", &error);
    }
    etcd.endpoints = watchcore_bytes_from_string(argc > 1 ? argv[1] : NULL);
    /* The feeder first: from here on the cache waits for its first listing, and so does a subscription to it. */
    if (argc > 1 && watchcore_feeder_start(cache, &etcd, &feeder, &error) != WATCHCORE_OK) {
        failed = fail("feeder", &error);
    } else if (watchcore_wakeset_new(&set, &error) != WATCHCORE_OK ||
               watchcore_subscription_new(cache, NULL, &subscription, &error) != WATCHCORE_OK) {
        failed = fail("subscription", &error);
    } else if (argc > 1) {
        failed = follow(subscription, set, &error);
    } else if (write_something(cache, &error) == 0 && watchcore_cache_close(cache, &error) == WATCHCORE_OK) {
        failed = follow(subscription, set, &error);
    }
    watchcore_feeder_free(feeder);
    watchcore_subscription_free(subscription);
    watchcore_wakeset_free(set);
    watchcore_cache_free(cache);
    return failed;
}
