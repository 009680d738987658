/* What one event costs a C consumer: delivery in batches of 64 (wait is not called), and the crossing of an empty
   poll. Not part of the tests; `make bench`. Medians of 9 runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "watchcore.h"

enum { EVENTS = 32768, RUNS = 9, POLLS = 1000000 };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void must(int32_t code, const watchcore_error *error)
{
    if (code != WATCHCORE_OK) {
        fprintf(stderr, "%s\n", error->message);
        exit(1);
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(void)
{
    static watchcore_error error = WATCHCORE_ERROR_INIT;
    watchcore_cache *cache = NULL;
    watchcore_writer *writer = NULL;
    watchcore_subscription *subscription = NULL;
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    watchcore_change change = WATCHCORE_CHANGE_INIT;
    double delivery[3][RUNS], empty[RUNS], apply[RUNS];
    static const char *const names[3] = {"poll and release alone", "and the event's type and revision", "and the value's bytes"};
    char value[512], key[16];
    uint64_t revision = 0, sum = 0;
    int run, i, kind;
    memset(value, 'v', sizeof(value));
    must(watchcore_cache_new(NULL, &cache, &error), &error);
    must(watchcore_cache_writer(cache, &writer, &error), &error);
    options.start = WATCHCORE_START_NOW;
    must(watchcore_subscription_new(cache, &options, &subscription, &error), &error);
    change.op = WATCHCORE_CHANGE_PUT;
    change.value = watchcore_bytes_from(value, sizeof(value));
    for (run = 0; run < RUNS; run++) {
        for (kind = 0; kind < 3; kind++) {
            double began = now();
            size_t seen = 0;
            for (i = 0; i < EVENTS; i++) {
                snprintf(key, sizeof(key), "/k%d", i % 1000);
                change.key = watchcore_bytes_from_string(key);
                must(watchcore_writer_apply(writer, ++revision, &change, 1, &error), &error);
            }
            apply[run] = (now() - began) / EVENTS;
            began = now();
            while (seen < EVENTS) {
                size_t at;
                must(watchcore_subscription_poll(subscription, 64, &batch, &error), &error);
                for (at = 0; at < batch.count && kind > 0; at++) {
                    const watchcore_event *event = watchcore_batch_event(&batch, at);
                    sum += event->revision + event->type;
                    if (kind == 2) {
                        sum += event->kv->value[event->kv->value_length - 1];
                    }
                }
                seen += batch.count;
                watchcore_batch_release(&batch);
            }
            delivery[kind][run] = (now() - began) / EVENTS;
        }
        double began = now();
        for (i = 0; i < POLLS; i++) {
            must(watchcore_subscription_poll(subscription, 64, &batch, &error), &error);
            watchcore_batch_release(&batch);
        }
        empty[run] = (now() - began) / POLLS;
    }
    for (kind = 0; kind < 3; kind++) {
        qsort(delivery[kind], RUNS, sizeof(double), ascending);
        printf("%6.1f ns an event in batches of 64 (%.1f to %.1f): %s\n", delivery[kind][RUNS / 2], delivery[kind][0],
               delivery[kind][RUNS - 1], names[kind]);
    }
    qsort(empty, RUNS, sizeof(double), ascending);
    qsort(apply, RUNS, sizeof(double), ascending);
    printf("%6.1f ns an empty poll with its release\n%6.1f ns an apply of one put (512 bytes)\n", empty[RUNS / 2],
           apply[RUNS / 2]);
    watchcore_subscription_free(subscription);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
    return sum == 1;
}
