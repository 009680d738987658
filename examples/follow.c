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
    static const char *const names[] = {"?", "ADDED", "MODIFIED", "DELETED", "BOOKMARK", "RESYNC", "PUT", "DELETE"};
    watchcore_bytes key = watchcore_event_key(event);
    watchcore_bytes value = watchcore_event_value(event); /* absent in a deletion */
    printf("%llu %s %.*s", (unsigned long long)event->revision, names[event->type < 8 ? event->type : 0],
           (int)key.length, (const char *)key.data);
    if (value.data != NULL) {
        printf(" = %.*s", (int)value.length, (const char *)value.data);
    }
    printf((event->flags & WATCHCORE_FLAG_INITIAL_STATE_END) != 0 ? " (that was the state)\n" : "\n");
}

/* Hands out everything there is now. Returns a code. */
static int32_t drain(watchcore_subscription *subscription, watchcore_error *error)
{
    for (;;) {
        watchcore_batch batch = WATCHCORE_BATCH_INIT;
        size_t i, count;
        int32_t code = watchcore_subscription_poll(subscription, 256, &batch, error);
        if (code != WATCHCORE_OK) {
            return code; /* LAGGED says what was lost; CLOSED comes after the last event */
        }
        for (i = 0; i < batch.count; i++) {
            print(watchcore_batch_event(&batch, i));
        }
        count = batch.count;
        watchcore_batch_release(&batch); /* the events are not valid any more */
        if (count == 0) {
            return WATCHCORE_OK;
        }
    }
}

/* Serves the subscription until it ends or somebody presses Ctrl-C, without a thread of its own: what a program
 * with an event loop does with its own poll(2). */
static int follow(watchcore_subscription *subscription, watchcore_wakeset *set, watchcore_error *error)
{
    struct pollfd one;
    int32_t code, fd;
    uint64_t tag;
    uint32_t ready;
    size_t count;
    if (watchcore_wakeset_fd(set, &fd, error) != WATCHCORE_OK ||
        watchcore_wakeset_add_subscription(set, subscription, 1, error) != WATCHCORE_OK) {
        return fail("wake set", error);
    }
    one.fd = fd;
    one.events = POLLIN;
    while (!interrupted) {
        code = drain(subscription, error);
        if (code == WATCHCORE_CLOSED) {
            return 0;
        }
        fflush(stdout);
        if (code != WATCHCORE_OK || (code = watchcore_subscription_arm(subscription, &ready, error)) != WATCHCORE_OK) {
            return fail("subscription", error);
        }
        if (ready) {
            continue; /* something came meanwhile */
        }
        if (watchcore_wakeset_arm(set, &ready, error) != WATCHCORE_OK) {
            return fail("wake set", error);
        }
        if (!ready && poll(&one, 1, -1) < 0 && errno != EINTR) {
            perror("poll");
            return 1;
        }
        if (watchcore_wakeset_take(set, &tag, 1, &count, error) != WATCHCORE_OK) { /* tag 1, or an interrupt */
            return fail("wake set", error);
        }
    }
    return 0;
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
