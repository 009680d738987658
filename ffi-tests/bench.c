/* What one event costs a C consumer. Not part of the tests: `make bench BENCH=c`, on a machine that does nothing else.
 *
 * A window that fits the processor's cache is read again and again, each round by a subscription of its own, opened
 * outside of the measured time; of every event the revision, the type and the address of the key are summed. The goal
 * is 8 ns an event in batches of 64 or more. Beside it, without a goal: every byte of key and value of a window that
 * no cache holds, an empty poll, an apply. Each figure is the median of many rounds, with the best and the worst. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "watchcore.h"

enum { KEYS = 1000, SMALL = 8192, LARGE = 60000, POLLS = 100000, MOST_ROUNDS = 501 };

static watchcore_error error = WATCHCORE_ERROR_INITIALIZER;
static uint64_t sum; /* so that nothing is left out */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void must(int32_t code)
{
    if (code != WATCHCORE_OK) {
        fprintf(stderr, "%s: %s\n", watchcore_error_name(code), error.message);
        exit(1);
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *what, double *samples, int rounds)
{
    qsort(samples, (size_t)rounds, sizeof(double), ascending);
    printf("%-58s %8.2f ns  (best %.2f, worst %.2f, %d rounds)\n", what, samples[rounds / 2], samples[0],
           samples[rounds - 1], rounds);
    fflush(stdout);
}

/* A cache whose log holds `events` overwrites behind revision 1. */
static watchcore_cache *window(int events, size_t value_length, watchcore_writer **writer)
{
    watchcore_cache *cache = NULL;
    watchcore_change changes[KEYS];
    static char keys[KEYS][48];
    static char value[4096];
    int i;
    memset(value, 'v', sizeof(value));
    must(watchcore_cache_new(NULL, &cache, &error));
    must(watchcore_writer_new(cache, writer, &error));
    for (i = 0; i < KEYS; i++) {
        const watchcore_change init = WATCHCORE_CHANGE_INIT;
        snprintf(keys[i], sizeof(keys[i]), "/registry/pods/namespace-%04d/p-%06d", i, i);
        changes[i] = init;
        changes[i].op = WATCHCORE_CHANGE_PUT;
        changes[i].key = watchcore_bytes_from_string(keys[i]);
        changes[i].value = watchcore_bytes_from(value, value_length);
    }
    must(watchcore_writer_apply(*writer, 1, changes, KEYS, &error));
    for (i = 0; i < events; i++) {
        must(watchcore_writer_apply(*writer, (uint64_t)i + 2, &changes[i % KEYS], 1, &error));
    }
    return cache;
}

static void heads(const watchcore_batch *batch)
{
    const unsigned char *at = batch->events;
    size_t i;
    for (i = 0; i < batch->count; i++, at += batch->stride) {
        const watchcore_event *event = (const watchcore_event *)(const void *)at;
        sum += event->revision + event->type + (uint64_t)(uintptr_t)event->kv->key;
    }
}

static void contents(const watchcore_batch *batch)
{
    size_t i, byte;
    for (i = 0; i < batch->count; i++) {
        const watchcore_key_value *kv = watchcore_batch_event(batch, i)->kv;
        for (byte = 0; byte < kv->key_length; byte++) {
            sum += kv->key[byte];
        }
        for (byte = 0; byte < kv->value_length; byte++) {
            sum += kv->value[byte];
        }
    }
}

/* Nanoseconds an event for one reading of the whole window. */
static double once(watchcore_cache *cache, int events, size_t max, void (*read)(const watchcore_batch *))
{
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *subscription = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    size_t seen = 0;
    double began, took;
    options.start = WATCHCORE_START_AFTER;
    options.revision = 1;
    must(watchcore_subscription_new(cache, &options, &subscription, &error));
    began = now();
    while (seen < (size_t)events) {
        must(watchcore_subscription_poll(subscription, max, &batch, &error));
        if (batch.count == 0) {
            fprintf(stderr, "%zu events instead of %d\n", seen, events);
            exit(1);
        }
        read(&batch);
        seen += batch.count;
        watchcore_batch_release(&batch);
    }
    took = (now() - began) / events;
    watchcore_subscription_free(subscription);
    return took;
}

int main(void)
{
    static const size_t sizes[] = {1, 64, 1024};
    double samples[MOST_ROUNDS];
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = window(SMALL, 5, &writer);
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *idle = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    watchcore_change one = WATCHCORE_CHANGE_INIT;
    uint64_t revision = SMALL + 1;
    char name[96];
    size_t size;
    int round, i;

    for (size = 0; size < sizeof(sizes) / sizeof(sizes[0]); size++) {
        int rounds = sizes[size] == 1 ? 51 : MOST_ROUNDS;
        for (round = 0; round < rounds; round++) {
            samples[round] = once(cache, SMALL, sizes[size], heads);
        }
        snprintf(name, sizeof(name), "an event in batches of %zu: revision, type, key pointer", sizes[size]);
        report(name, samples, rounds);
    }

    options.start = WATCHCORE_START_NOW;
    must(watchcore_subscription_new(cache, &options, &idle, &error));
    for (round = 0; round < 51; round++) {
        double began = now();
        for (i = 0; i < POLLS; i++) {
            must(watchcore_subscription_poll(idle, 64, &batch, &error));
            watchcore_batch_release(&batch);
        }
        samples[round] = (now() - began) / POLLS;
    }
    report("an empty poll with its release", samples, 51);
    watchcore_subscription_free(idle);

    one.op = WATCHCORE_CHANGE_PUT;
    one.key = watchcore_bytes_from_string("/registry/pods/namespace-0000/p-000000");
    one.value = watchcore_bytes_from("small", 5);
    for (round = 0; round < 51; round++) {
        double began = now();
        for (i = 0; i < SMALL; i++) {
            must(watchcore_writer_apply(writer, ++revision, &one, 1, &error));
        }
        samples[round] = (now() - began) / SMALL;
    }
    report("an apply of one small put", samples, 51);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);

    cache = window(LARGE, 512, &writer);
    for (round = 0; round < 21; round++) {
        samples[round] = once(cache, LARGE, 64, contents);
    }
    report("an event in batches of 64: all bytes (550), cold", samples, 21);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
    return sum == 1; /* never */
}
