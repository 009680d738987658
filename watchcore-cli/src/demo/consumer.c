/*
 * The C consumer of the live demonstration: follows a prefix of etcd, keeps
 * the state it is told of, and hashes every event.
 *
 *   consumer ENDPOINT PREFIX LAST_KEY [NUMBER]
 *
 * It ends at LAST_KEY. NUMBER is the event that it passes over: a fault that
 * the demonstration must find. What it prints: watchcore-cli/src/demo/consumer.rs.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "watchcore.h"

/* FNV-1a, 64 bits: watchcore-cli/src/demo/hash.rs says over what. */
static uint64_t fnv_bytes(uint64_t hash, const void *bytes, size_t length)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static uint64_t fnv_number(uint64_t hash, uint64_t number, size_t length)
{
    unsigned char bytes[8];
    for (size_t i = 0; i < length; i++) {
        bytes[i] = (unsigned char)(number >> (8 * i));
    }
    return fnv_bytes(hash, bytes, length);
}

/* The length first; that of an absent field is the largest. */
static uint64_t fnv_field(uint64_t hash, const uint8_t *bytes, uint32_t length)
{
    if (bytes == NULL) {
        return fnv_number(hash, UINT32_MAX, 4);
    }
    return fnv_bytes(fnv_number(hash, length, 4), bytes, length);
}

static const uint64_t FNV_BASIS = UINT64_C(0xcbf29ce484222325);

static uint64_t hash_event(uint64_t hash, const watchcore_event *event)
{
    const watchcore_key_value *kv = event->kv;
    hash = fnv_number(hash, event->revision, 8);
    hash = fnv_number(hash, event->type, 1);
    hash = fnv_field(hash, kv->key, kv->key_length);
    return fnv_field(hash, event->type == WATCHCORE_EVENT_DELETED ? NULL : kv->value, kv->value_length);
}

static uint64_t hash_object(const watchcore_key_value *kv)
{
    uint64_t hash = fnv_number(FNV_BASIS, kv->mod_revision, 8);
    hash = fnv_field(hash, kv->key, kv->key_length);
    return fnv_field(hash, kv->value, kv->value_length);
}

/* The state: a table of chains. */
struct object {
    struct object *next;
    uint64_t hash;
    uint32_t key_length;
    unsigned char key[];
};

enum { CHAINS = 1 << 14 };
static struct object *chains[CHAINS];

static struct object **find(const watchcore_key_value *kv)
{
    struct object **place = &chains[fnv_bytes(FNV_BASIS, kv->key, kv->key_length) % CHAINS];
    while (*place != NULL
           && ((*place)->key_length != kv->key_length || memcmp((*place)->key, kv->key, kv->key_length) != 0)) {
        place = &(*place)->next;
    }
    return place;
}

static void put(const watchcore_key_value *kv)
{
    struct object **place = find(kv);
    if (*place == NULL) {
        struct object *object = malloc(sizeof *object + kv->key_length);
        if (object == NULL) {
            fputs("consumer.c: out of memory\n", stderr);
            exit(1);
        }
        object->next = NULL;
        object->key_length = kv->key_length;
        memcpy(object->key, kv->key, kv->key_length);
        *place = object;
    }
    (*place)->hash = hash_object(kv);
}

static void remove_key(const watchcore_key_value *kv)
{
    struct object **place = find(kv);
    struct object *object = *place;
    if (object != NULL) {
        *place = object->next;
        free(object);
    }
}

static void sum_and_free(uint64_t *sum, uint64_t *objects)
{
    *sum = 0;
    *objects = 0;
    for (size_t i = 0; i < CHAINS; i++) {
        while (chains[i] != NULL) {
            struct object *object = chains[i];
            chains[i] = object->next;
            *sum += object->hash;
            *objects += 1;
            free(object);
        }
    }
}

/* What has been seen. */
static struct {
    uint64_t start, number, events, hash, resyncs, passed_over;
    const char *last;
    int is_ready, is_done;
} seen;

static void take(const watchcore_event *event)
{
    if (event->type == WATCHCORE_EVENT_RESYNC) {
        seen.resyncs += (event->flags & WATCHCORE_FLAG_BEGIN) != 0;
        return;
    }
    if ((event->flags & WATCHCORE_FLAG_INITIAL_STATE_END) != 0) {
        seen.start = event->revision;
        seen.is_ready = 1;
        printf("{\"ready\":%" PRIu64 "}\n", seen.start);
        return;
    }
    if (event->kv == NULL) {
        return;
    }
    if (seen.is_ready) {
        seen.number++;
        if (seen.number == seen.passed_over) {
            return;
        }
        seen.events++;
        seen.hash = hash_event(seen.hash, event);
        printf("%" PRIu64 " %016" PRIx64 "\n", event->revision, hash_event(FNV_BASIS, event));
    }
    if (event->type == WATCHCORE_EVENT_DELETED) {
        remove_key(event->kv);
    } else {
        put(event->kv);
    }
    if (event->kv->key_length == strlen(seen.last) && memcmp(event->kv->key, seen.last, event->kv->key_length) == 0) {
        seen.is_done = 1;
    }
}

static int follow(watchcore_subscription *subscription, watchcore_error *error)
{
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    int32_t rc;
    while (!seen.is_done) {
        if ((rc = watchcore_subscription_wait(subscription, -1, error)) != WATCHCORE_OK
            || (rc = watchcore_subscription_poll(subscription, 1024, &batch, error)) != WATCHCORE_OK) {
            return rc;
        }
        for (size_t i = 0; i < batch.count && !seen.is_done; i++) {
            take(watchcore_batch_event(&batch, i));
        }
        watchcore_batch_release(&batch);
        fflush(stdout);
    }
    return WATCHCORE_OK;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fputs("usage: consumer ENDPOINT PREFIX LAST_KEY [NUMBER]\n", stderr);
        return 2;
    }
    seen.last = argv[3];
    seen.passed_over = argc > 4 ? strtoull(argv[4], NULL, 10) : 0;
    seen.hash = FNV_BASIS;

    watchcore_error error = WATCHCORE_ERROR_INIT;
    watchcore_cache_options cache_options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_etcd_options etcd_options = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_subscription_options subscription_options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    watchcore_feeder *feeder = NULL;
    watchcore_subscription *subscription = NULL;
    int32_t rc;

    cache_options.prefix = watchcore_bytes_from_string(argv[2]);
    etcd_options.endpoints = watchcore_bytes_from_string(argv[1]);
    subscription_options.start = WATCHCORE_START_STATE;
    if ((rc = watchcore_cache_new(&cache_options, &cache, &error)) == WATCHCORE_OK
        && (rc = watchcore_feeder_start(cache, &etcd_options, &feeder, &error)) == WATCHCORE_OK
        && (rc = watchcore_subscription_new(cache, &subscription_options, &subscription, &error)) == WATCHCORE_OK) {
        rc = follow(subscription, &error);
    }
    watchcore_subscription_free(subscription);
    watchcore_feeder_free(feeder);
    watchcore_cache_free(cache);
    if (rc != WATCHCORE_OK) {
        fprintf(stderr, "consumer.c: %s\n", error.message);
        return 1;
    }

    uint64_t state, objects;
    sum_and_free(&state, &objects);
    printf("{\"start\":%" PRIu64 ",\"events\":%" PRIu64 ",\"hash\":\"%016" PRIx64 "\",\"state\":\"%016" PRIx64
           "\",\"objects\":%" PRIu64 ",\"resyncs\":%" PRIu64 "}\n",
           seen.start, seen.events, seen.hash, state, objects, seen.resyncs);
    return 0;
}
