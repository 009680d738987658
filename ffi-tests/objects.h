/* What the programs share that declare attributes: objects with labels and a phase, a cache that knows them, and
   short words for its events. */
#ifndef OBJECTS_H
#define OBJECTS_H

#include "check.h"

static watchcore_error error;

/* Object values: labels below /labels, a phase, and a name that only the fourth has. */
#define WEB "{\"labels\":{\"app\":\"web\",\"tier\":\"1\"},\"phase\":\"Running\"}"
#define WEB2 "{\"labels\":{\"app\":\"web\",\"tier\":\"2\"},\"phase\":\"Failed\"}"
#define DB "{\"labels\":{\"app\":\"db\"},\"phase\":\"Running\"}"
#define BARE "{\"phase\":7}"

enum { CAPACITY = 1024, MANY = 2000 };

/* A cache that declares the fields ns and phase and where labels are; with every kind of index, if asked. */
static inline watchcore_cache *declared(int indexed, watchcore_writer **writer)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_attribute fields[2] = {WATCHCORE_ATTRIBUTE_INIT, WATCHCORE_ATTRIBUTE_INIT};
    watchcore_index indexes[4] = {WATCHCORE_INDEX_INIT, WATCHCORE_INDEX_INIT, WATCHCORE_INDEX_INIT, WATCHCORE_INDEX_INIT};
    watchcore_cache *cache = NULL;
    fields[0].kind = WATCHCORE_ATTRIBUTE_KEY_SEGMENT;
    fields[0].name = text("ns");
    fields[0].depth = 0;
    fields[1].kind = WATCHCORE_ATTRIBUTE_JSON;
    fields[1].name = text("phase");
    fields[1].pointer = text("/phase");
    indexes[0].kind = WATCHCORE_INDEX_KEY;
    indexes[1].kind = WATCHCORE_INDEX_PREFIX;
    indexes[1].depth = 1;
    indexes[2].kind = WATCHCORE_INDEX_FIELD;
    indexes[2].name = text("phase");
    indexes[3].kind = WATCHCORE_INDEX_LABEL;
    indexes[3].name = text("app");
    options.prefix = text("/");
    options.name = text("declared");
    options.capacity = CAPACITY;
    options.fields = fields;
    options.field_count = 2;
    options.labels_from = text("/labels");
    if (indexed) {
        options.indexes = indexes;
        options.index_count = 4;
        options.max_buckets = 100;
    }
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    if (writer != NULL) {
        CHECK_OK(watchcore_writer_new(cache, writer, &error));
    }
    /* What the options pointed to may go. */
    memset(fields, 0xee, sizeof(fields));
    memset(indexes, 0xee, sizeof(indexes));
    return cache;
}

static inline void apply(watchcore_writer *writer, uint64_t revision, watchcore_change one)
{
    CHECK_OK(watchcore_writer_apply(writer, revision, &one, 1, &error));
}

/* Opens a subscription of what a label selector and a field selector select (NULL: absent). */
static inline watchcore_subscription *selecting(watchcore_cache *cache, uint32_t start, const char *labels, const char *fields)
{
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *subscription = NULL;
    options.start = start;
    options.labels = text(labels);
    options.fields = text(fields);
    CHECK_OK(watchcore_subscription_new(cache, &options, &subscription, &error));
    return subscription;
}

/* The next event must be this one; its batch stays in *batch. */
static inline const watchcore_event *next_is(watchcore_subscription *subscription, watchcore_batch *batch, uint32_t type,
                                      uint64_t revision, const char *key)
{
    const watchcore_event *event;
    watchcore_batch_release(batch);
    CHECK_OK(watchcore_subscription_poll(subscription, 1, batch, &error));
    CHECK(batch->count == 1);
    event = watchcore_batch_event(batch, 0);
    CHECK(event != NULL && event->type == type && event->revision == revision);
    CHECK(event != NULL && same(watchcore_event_key(event), key));
    return event;
}

static inline void nothing_comes(watchcore_subscription *subscription, watchcore_batch *batch)
{
    watchcore_batch_release(batch);
    CHECK_OK(watchcore_subscription_poll(subscription, 0, batch, &error));
    CHECK(batch->count == 0);
    watchcore_batch_release(batch);
}

static inline void fill(watchcore_writer *writer)
{
    watchcore_change changes[4];
    changes[0] = put("/x/a", WEB);
    changes[1] = put("/x/b", DB);
    changes[2] = put("/y/a", WEB2);
    changes[3] = put("/y/b", BARE);
    CHECK_OK(watchcore_writer_apply(writer, 10, changes, 4, &error));
}

#endif /* OBJECTS_H */
