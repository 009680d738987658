/* An informer: handlers that are called with what was added, updated (old and new) and deleted (the last value).
 *
 *     cc -I include examples/informer.c -L target/watchcore -l:libwatchcore.a -lpthread -ldl -lm -o informer
 *     ./informer
 *
 * Each handler is a subscription of its own, so a slow one lags alone and costs nothing meanwhile. It keeps the values that
 * it was given: so an update has its old value and a deletion its last one, also where the window has left the
 * handler behind and the difference to the present state is all that there is. Reads need no handler: they ask the cache.
 *
 * Prints:
 *
 *     quick + /a = 1
 *     quick + /b = 1
 *     quick synced
 *     slow + /a = 1
 *     slow + /b = 1
 *     slow synced
 *     quick was called 301 more times
 *     slow was left behind
 *     slow - /b = 1
 *     slow ~ /a = 1 -> 301 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "watchcore.h"

/* What a handler was given of one key. */
struct known {
    struct known *next;
    size_t key_length, value_length;
    char bytes[]; /* key, then value */
};

#define CHAINS 64

struct handler {
    const char *name;
    int quiet;
    unsigned calls;
    int synced; /* every object of the initial state was handled */
    watchcore_subscription *subscription;
    struct known *known[CHAINS];
};

static int fail(const char *what, const watchcore_error *error)
{
    fprintf(stderr, "%s: %s: %s\n", what, watchcore_error_name(error->code), error->message);
    return 1;
}

/* The place of a key: of what is known of it, or of the end of its chain. */
static struct known **place(struct handler *handler, watchcore_bytes key)
{
    const unsigned char *bytes = key.data;
    struct known **at;
    size_t hash = 5381, i;
    for (i = 0; i < key.length; i++) {
        hash = hash * 33 + bytes[i];
    }
    at = &handler->known[hash % CHAINS];
    while (*at != NULL && ((*at)->key_length != key.length || memcmp((*at)->bytes, key.data, key.length) != 0)) {
        at = &(*at)->next;
    }
    return at;
}

/* The three callbacks of this handler: what a program does with a change. */
static void call(struct handler *handler, char what, watchcore_bytes key, const struct known *old, watchcore_bytes value)
{
    handler->calls++;
    if (handler->quiet) {
        return;
    }
    printf("%s %c %.*s =", handler->name, what, (int)key.length, (const char *)key.data);
    if (old != NULL) {
        printf(" %.*s%s", (int)old->value_length, old->bytes + old->key_length, what == '~' ? " ->" : "");
    }
    if (what != '-') {
        printf(" %.*s", (int)value.length, (const char *)value.data);
    }
    printf("\n");
}

/* One event of the log: whatever type it has there, the call is what it is to this handler. */
static int handle(struct handler *handler, const watchcore_event *event)
{
    watchcore_bytes key = watchcore_event_key(event), value = watchcore_event_value(event);
    struct known **at = place(handler, key), *old = *at, *new;
    if ((event->flags & WATCHCORE_FLAG_INITIAL_STATE_END) != 0) {
        handler->synced = 1;
        printf("%s synced\n", handler->name);
        return 0;
    }
    switch (event->type) {
    case WATCHCORE_EVENT_ADDED:
    case WATCHCORE_EVENT_MODIFIED:
        new = malloc(sizeof(*new) + key.length + value.length);
        if (new == NULL) {
            return 1;
        }
        new->key_length = key.length;
        new->value_length = value.length;
        memcpy(new->bytes, key.data, key.length);
        memcpy(new->bytes + key.length, value.data, value.length);
        new->next = old != NULL ? old->next : NULL;
        call(handler, old != NULL ? '~' : '+', key, old, value);
        *at = new;
        free(old);
        return 0;
    case WATCHCORE_EVENT_DELETED:
        if (old != NULL) {
            call(handler, '-', key, old, value);
            *at = old->next;
            free(old);
        }
        return 0;
    default: /* marks: what is between two of them is a difference, and handled like any change */
        return 0;
    }
}

static int start(const watchcore_cache *cache, struct handler *handler, watchcore_error *error)
{
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    options.on_lag = WATCHCORE_ON_LAG_RESNAPSHOT;
    options.name = watchcore_bytes_from_string(handler->name);
    return watchcore_subscription_new(cache, &options, &handler->subscription, error);
}

/* Handles what there is now. A program calls it on a thread of the handler's own, each time that
 * watchcore_subscription_wait returns, or from an event loop by a wake set. */
static int run(struct handler *handler, watchcore_error *error)
{
    for (;;) {
        watchcore_batch batch = WATCHCORE_BATCH_INIT;
        size_t i, count;
        int32_t code = watchcore_subscription_poll(handler->subscription, 256, &batch, error);
        if (code == WATCHCORE_LAGGED) { /* said once: the difference comes next */
            printf("%s was left behind\n", handler->name);
            continue;
        }
        if (code != WATCHCORE_OK) {
            return code == WATCHCORE_CLOSED ? 0 : fail(handler->name, error);
        }
        for (i = 0; i < batch.count; i++) {
            if (handle(handler, watchcore_batch_event(&batch, i)) != 0) {
                perror("malloc");
                return 1;
            }
        }
        count = batch.count;
        watchcore_batch_release(&batch);
        if (count == 0) {
            return 0;
        }
    }
}

static void end(struct handler *handler)
{
    size_t i;
    watchcore_subscription_free(handler->subscription);
    for (i = 0; i < CHAINS; i++) {
        while (handler->known[i] != NULL) {
            struct known *first = handler->known[i];
            handler->known[i] = first->next;
            free(first);
        }
    }
}

static int put(watchcore_writer *writer, uint64_t revision, const char *key, const char *value, watchcore_error *error)
{
    watchcore_change change = WATCHCORE_CHANGE_INIT;
    change.op = value != NULL ? WATCHCORE_CHANGE_PUT : WATCHCORE_CHANGE_DELETE;
    change.key = watchcore_bytes_from_string(key);
    change.value = watchcore_bytes_from_string(value);
    return watchcore_writer_apply(writer, revision, &change, 1, error);
}

int main(void)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_error error = WATCHCORE_ERROR_INIT;
    watchcore_cache *cache = NULL;
    watchcore_writer *writer = NULL;
    struct handler quick, slow;
    uint64_t revision;
    int failed;

    memset(&quick, 0, sizeof(quick));
    memset(&slow, 0, sizeof(slow));
    quick.name = "quick";
    slow.name = "slow";
    options.capacity = 128;
    if (watchcore_cache_new(&options, &cache, &error) != WATCHCORE_OK ||
        watchcore_writer_new(cache, &writer, &error) != WATCHCORE_OK ||
        put(writer, 1, "/a", "1", &error) != WATCHCORE_OK || put(writer, 2, "/b", "1", &error) != WATCHCORE_OK ||
        start(cache, &quick, &error) != WATCHCORE_OK || start(cache, &slow, &error) != WATCHCORE_OK) {
        return fail("informer", &error);
    }
    failed = run(&quick, &error) || run(&slow, &error);

    quick.quiet = 1;
    quick.calls = 0;
    for (revision = 3; !failed && revision <= 302; revision++) {
        char value[32];
        snprintf(value, sizeof(value), "%llu", (unsigned long long)revision - 1);
        failed = put(writer, revision, "/a", value, &error) != WATCHCORE_OK || run(&quick, &error);
    }
    failed = failed || put(writer, revision, "/b", NULL, &error) != WATCHCORE_OK || run(&quick, &error);
    printf("quick was called %u more times\n", quick.calls);
    failed = failed || run(&slow, &error);

    end(&quick);
    end(&slow);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
    return failed;
}
