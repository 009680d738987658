/* Selectors, attributes, indexes, lag policies, continue tokens and differences through the C interface. */
#include <sched.h>
#include <stddef.h>

#include "check.h"

static watchcore_error error;

#define BAD(call) CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, call)

/* Object values: labels below /labels, a phase, and a name that only the fourth has. */
#define WEB "{\"labels\":{\"app\":\"web\",\"tier\":\"1\"},\"phase\":\"Running\"}"
#define WEB2 "{\"labels\":{\"app\":\"web\",\"tier\":\"2\"},\"phase\":\"Failed\"}"
#define DB "{\"labels\":{\"app\":\"db\"},\"phase\":\"Running\"}"
#define BARE "{\"phase\":7}"

enum { CAPACITY = 1024, MANY = 2000 };

/* A cache that declares the fields ns and phase and where labels are; with every kind of index, if asked. */
static watchcore_cache *declared(int indexed, watchcore_writer **writer)
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
        CHECK_OK(watchcore_cache_writer(cache, writer, &error));
    }
    /* What the options pointed to may go. */
    memset(fields, 0xee, sizeof(fields));
    memset(indexes, 0xee, sizeof(indexes));
    return cache;
}

static void apply(watchcore_writer *writer, uint64_t revision, watchcore_change one)
{
    CHECK_OK(watchcore_writer_apply(writer, revision, &one, 1, &error));
}

/* Opens a subscription of what a label selector and a field selector select (NULL: absent). */
static watchcore_subscription *selecting(watchcore_cache *cache, uint32_t start, const char *labels, const char *fields)
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
static const watchcore_event *next_is(watchcore_subscription *subscription, watchcore_batch *batch, uint32_t type,
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

static void nothing_comes(watchcore_subscription *subscription, watchcore_batch *batch)
{
    watchcore_batch_release(batch);
    CHECK_OK(watchcore_subscription_poll(subscription, 0, batch, &error));
    CHECK(batch->count == 0);
    watchcore_batch_release(batch);
}

/* An object that comes into a label selector is ADDED, one that leaves it DELETED, with or without indexes. */
static void transitions(int indexed)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = declared(indexed, &writer);
    watchcore_subscription *web = selecting(cache, WATCHCORE_START_NOW, "app=web", NULL);
    watchcore_subscription *live = selecting(cache, WATCHCORE_START_NOW, "app in (web,db), !gone", "phase=Running,ns!=y");
    watchcore_subscription_options history = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *late = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    const watchcore_event *event;
    uint64_t reached = 0;

    apply(writer, 1, put("/x/a", WEB));
    apply(writer, 2, put("/x/a", WEB2));
    apply(writer, 3, put("/x/a", DB));
    apply(writer, 4, put("/x/a", WEB));
    apply(writer, 5, del("/x/a"));
    apply(writer, 6, put("/x/b", DB));
    apply(writer, 7, put("/y/c", BARE));

    event = next_is(web, &batch, WATCHCORE_ADDED, 1, "/x/a");
    CHECK(event->prev_kv == NULL && same(watchcore_event_value(event), WEB));
    event = next_is(web, &batch, WATCHCORE_MODIFIED, 2, "/x/a");
    CHECK(same(watchcore_event_value(event), WEB2) && same(watchcore_event_prev_value(event), WEB));
    event = next_is(web, &batch, WATCHCORE_DELETED, 3, "/x/a"); /* it is still there, but no longer of this selector */
    CHECK(event->kv != NULL && event->kv->value == NULL && same(watchcore_event_prev_value(event), WEB2));
    CHECK(event->kv->mod_revision == 2 && event->kv->create_revision == 1 && event->kv->version == 2);
    event = next_is(web, &batch, WATCHCORE_ADDED, 4, "/x/a");
    CHECK(same(watchcore_event_value(event), WEB) && event->kv->version == 4);
    event = next_is(web, &batch, WATCHCORE_DELETED, 5, "/x/a");
    CHECK(event->kv->value == NULL && same(watchcore_event_prev_value(event), WEB));
    nothing_comes(web, &batch);
    CHECK_OK(watchcore_subscription_position(web, &reached, NULL, &error));
    CHECK(reached == 7); /* it moves also where nothing matches */

    event = next_is(live, &batch, WATCHCORE_ADDED, 1, "/x/a");
    event = next_is(live, &batch, WATCHCORE_DELETED, 2, "/x/a"); /* the phase */
    CHECK(same(watchcore_event_prev_value(event), WEB));
    event = next_is(live, &batch, WATCHCORE_ADDED, 3, "/x/a");
    event = next_is(live, &batch, WATCHCORE_MODIFIED, 4, "/x/a");
    CHECK(same(watchcore_event_prev_value(event), DB));
    event = next_is(live, &batch, WATCHCORE_DELETED, 5, "/x/a");
    event = next_is(live, &batch, WATCHCORE_ADDED, 6, "/x/b");
    nothing_comes(live, &batch);

    /* History by the same rule; a masked type changes no other. */
    history.start = WATCHCORE_START_AFTER;
    history.revision = 1;
    history.labels = text("app=web");
    history.types = WATCHCORE_MASK(WATCHCORE_DELETED);
    CHECK_OK(watchcore_subscription_new(cache, &history, &late, &error));
    event = next_is(late, &batch, WATCHCORE_DELETED, 3, "/x/a");
    CHECK(same(watchcore_event_prev_value(event), WEB2));
    event = next_is(late, &batch, WATCHCORE_DELETED, 5, "/x/a");
    nothing_comes(late, &batch);

    watchcore_subscription_free(late);
    watchcore_subscription_free(live);
    watchcore_subscription_free(web);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static void test_transitions_by_scan(void)
{
    transitions(0);
}

static void test_transitions_by_chain(void)
{
    transitions(1);
}

/* A batch of a filtered deletion may outlive the subscription, the cache and the key-value. */
static void test_filtered_batches_live_on(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = declared(1, &writer);
    watchcore_subscription *web = selecting(cache, WATCHCORE_START_NOW, "app=web", NULL);
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    const watchcore_event *event;
    apply(writer, 1, put("/x/a", WEB));
    apply(writer, 2, put("/x/a", DB));
    CHECK_OK(watchcore_subscription_poll(web, 0, &batch, &error));
    watchcore_subscription_free(web);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
    CHECK(batch.count == 2);
    event = watchcore_batch_event(&batch, 1);
    CHECK(event->type == WATCHCORE_DELETED && same(watchcore_event_key(event), "/x/a"));
    CHECK(same(watchcore_event_prev_value(event), WEB) && event->kv->value == NULL);
    watchcore_batch_release(&batch);
    CHECK(batch.count == 0 && batch.owner == NULL);
}

static void fill(watchcore_writer *writer)
{
    watchcore_change changes[4];
    changes[0] = put("/x/a", WEB);
    changes[1] = put("/x/b", DB);
    changes[2] = put("/y/a", WEB2);
    changes[3] = put("/y/b", BARE);
    CHECK_OK(watchcore_writer_apply(writer, 10, changes, 4, &error));
}

static uint64_t counted(const watchcore_cache *cache, const char *labels, const char *fields, uint32_t nothing)
{
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    uint64_t count = 99;
    read.labels = text(labels);
    read.fields = text(fields);
    read.nothing = nothing;
    CHECK_OK(watchcore_cache_count(cache, NULL, &read, &count, NULL, NULL, &error));
    return count;
}

static void test_reads_take_filters(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = declared(0, &writer);
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_filter filter = WATCHCORE_FILTER_INIT;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_range range = WATCHCORE_RANGE_INIT;
    watchcore_snapshot *snapshot = NULL;
    watchcore_iterator *iterator = NULL;
    const watchcore_key_value *items[4];
    watchcore_page *page = NULL;
    uint64_t count = 0;
    size_t filled = 0;
    fill(writer);

    CHECK(counted(cache, NULL, NULL, 0) == 4 && counted(cache, "", "", 0) == 4);
    CHECK(counted(cache, "app=web", NULL, 0) == 2 && counted(cache, "app=web,tier>1", NULL, 0) == 1);
    CHECK(counted(cache, "!app", NULL, 0) == 1 && counted(cache, "app notin (web)", NULL, 0) == 2);
    CHECK(counted(cache, NULL, "phase=Running", 0) == 2 && counted(cache, NULL, "phase=7", 0) == 1);
    CHECK(counted(cache, "app=web", "ns==y", 0) == 1 && counted(cache, NULL, NULL, 1) == 0);

    read.labels = text("app=db");
    CHECK_OK(watchcore_cache_get(cache, "/x/a", 4, &read, &answer, &error));
    CHECK(answer.found == 0 && answer.kv == NULL && answer.revision == 10);
    CHECK_OK(watchcore_cache_get(cache, "/x/b", 4, &read, &answer, &error));
    CHECK(answer.found == 1);
    watchcore_key_value_release(answer.kv);

    range.kind = WATCHCORE_RANGE_PREFIX;
    range.from = text("/y/");
    read.labels = text("app in (web)");
    read.mode = WATCHCORE_READ_EXACT;
    read.revision = 10;
    CHECK_OK(watchcore_cache_list(cache, &range, &read, &page, &error));
    CHECK(watchcore_page_count(page) == 1 && watchcore_page_remaining(page) == 0 && watchcore_page_more(page) == 0);
    CHECK(watchcore_page_continue_token(page).data == NULL && watchcore_page_continue_token(NULL).data == NULL);
    watchcore_page_free(page);

    CHECK_OK(watchcore_snapshot_new(cache, &snapshot, &error));
    CHECK_OK(watchcore_snapshot_count_filtered(snapshot, NULL, &count, &error));
    CHECK(count == 4);
    filter.labels = text("app");
    filter.types = WATCHCORE_MASK(WATCHCORE_DELETED); /* not looked at */
    CHECK_OK(watchcore_snapshot_count_filtered(snapshot, &filter, &count, &error));
    CHECK(count == 3);
    filter.range = WATCHCORE_RANGE_PATH;
    filter.from = text("/x");
    CHECK_OK(watchcore_iterator_new_filtered(snapshot, &filter, &iterator, &error));
    watchcore_snapshot_free(snapshot);
    apply(writer, 11, put("/x/b", BARE)); /* a snapshot never changes */
    CHECK_OK(watchcore_iterator_next(iterator, items, 4, &filled, &error));
    CHECK(filled == 2 && same(watchcore_bytes_from(items[1]->key, items[1]->key_length), "/x/b"));
    watchcore_iterator_free(iterator);
    CHECK_OK(watchcore_snapshot_new(cache, &snapshot, &error));
    CHECK_OK(watchcore_snapshot_count_filtered(snapshot, &filter, &count, &error));
    CHECK(count == 1);
    filter.nothing = 1;
    CHECK_OK(watchcore_iterator_new_filtered(snapshot, &filter, &iterator, &error));
    CHECK_OK(watchcore_iterator_next(iterator, items, 4, &filled, &error));
    CHECK(filled == 0);
    watchcore_iterator_free(iterator);
    watchcore_snapshot_free(snapshot);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* `nothing` leaves the marks. */
static void test_nothing_passes(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = declared(0, &writer);
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *subscription = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    fill(writer);
    options.nothing = 1;
    CHECK_OK(watchcore_subscription_new(cache, &options, &subscription, &error));
    CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
    CHECK(batch.count == 1 && watchcore_batch_event(&batch, 0)->type == WATCHCORE_BOOKMARK);
    apply(writer, 11, put("/x/c", WEB));
    nothing_comes(subscription, &batch);
    watchcore_subscription_free(subscription);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* Kubernetes' protobuf storage form: "k8s\0", in field 2 the object, in its field 2 a message with a string 10. */
static void test_protobuf_paths(void)
{
    static const char pod[] = "k8s\0\x12\x06\x12\x04\x52\x02n1";
    const uint32_t path[2] = {2, 10};
    watchcore_attribute node = WATCHCORE_ATTRIBUTE_INIT;
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    watchcore_cache *cache = NULL;
    watchcore_writer *writer = NULL;
    watchcore_change one = put("/a", NULL);
    uint64_t count = 0;
    node.kind = WATCHCORE_ATTRIBUTE_JSON;
    node.name = text("node");
    node.pointer = text("/spec/nodeName");
    node.protobuf_path = path;
    node.protobuf_path_length = 2;
    options.fields = &node;
    options.field_count = 1;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    CHECK_OK(watchcore_cache_writer(cache, &writer, &error));
    one.value = watchcore_bytes_from(pod, sizeof(pod) - 1);
    apply(writer, 1, one);
    apply(writer, 2, put("/b", "{\"spec\":{\"nodeName\":\"n1\"}}"));
    apply(writer, 3, put("/c", "{\"spec\":"));
    read.fields = text("node=n1");
    CHECK_OK(watchcore_cache_count(cache, NULL, &read, &count, NULL, NULL, &error));
    CHECK(count == 2);
    CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
    CHECK(stats.extract_failures == 1 && stats.objects == 3); /* counted, and stored all the same */
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static int key_of(watchcore_page *page, size_t index, const char *key)
{
    const watchcore_key_value *kv = watchcore_page_item(page, index);
    return kv != NULL && same(watchcore_bytes_from(kv->key, kv->key_length), key);
}

/* Page by page in one revision, whatever is written meanwhile; in another process too. */
static void test_continue_tokens(void)
{
    watchcore_writer *writer = NULL, *other_writer = NULL;
    watchcore_cache *cache = declared(0, &writer), *other = declared(0, &other_writer);
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_range range = WATCHCORE_RANGE_INIT;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_page *first = NULL, *second = NULL, *again = NULL;
    watchcore_text *token = NULL;
    char kept[4096];
    size_t length;
    uint64_t count = 0;
    fill(writer);
    fill(other_writer);
    read.limit = 2;
    CHECK_OK(watchcore_cache_list(cache, NULL, &read, &first, &error));
    CHECK(watchcore_page_count(first) == 2 && watchcore_page_more(first) == 1 && watchcore_page_remaining(first) == 2);
    apply(writer, 11, del("/y/a"));
    apply(writer, 12, put("/x/c", WEB));
    read.continue_token = watchcore_page_continue_token(first);
    CHECK(read.continue_token.data != NULL && read.continue_token.length > 0 && read.continue_token.length < sizeof(kept));
    length = read.continue_token.length;
    memcpy(kept, read.continue_token.data, length);
    CHECK_OK(watchcore_cache_list_next(cache, NULL, &read, &second, &token, &error));
    CHECK(token == NULL && watchcore_page_revision(second) == 10 && watchcore_page_count(second) == 2);
    CHECK(key_of(second, 0, "/y/a") && key_of(second, 1, "/y/b") && watchcore_page_more(second) == 0);
    CHECK(watchcore_page_continue_token(second).data == NULL);
    watchcore_page_free(second);
    watchcore_page_free(first);
    read.continue_token = watchcore_bytes_from(kept, length);
    CHECK_OK(watchcore_cache_list(other, NULL, &read, &again, &error)); /* same name and prefix, another birth */
    CHECK(watchcore_page_revision(again) == 10 && key_of(again, 0, "/y/a"));
    watchcore_page_free(again);
    again = NULL;

    /* Of another range, another filter, a damaged one, with a mode, of a call without pages. */
    range.kind = WATCHCORE_RANGE_PREFIX;
    range.from = text("/x/");
    BAD(watchcore_cache_list(cache, &range, &read, &again, &error));
    read.labels = text("app=web");
    BAD(watchcore_cache_list_next(cache, NULL, &read, &again, &token, &error));
    read.labels = text(NULL);
    read.mode = WATCHCORE_READ_EXACT;
    read.revision = 10;
    BAD(watchcore_cache_list(cache, NULL, &read, &again, &error));
    read.mode = WATCHCORE_READ_ANY;
    read.revision = 0;
    kept[length / 2] ^= 1;
    BAD(watchcore_cache_list_next(cache, NULL, &read, &again, &token, &error));
    kept[length / 2] ^= 1;
    read.continue_token = watchcore_bytes_from(kept, length - 1);
    BAD(watchcore_cache_list(cache, NULL, &read, &again, &error));
    read.continue_token = text("");
    BAD(watchcore_cache_list(cache, NULL, &read, &again, &error));
    read.continue_token = watchcore_bytes_from("\xff\xfe", 2);
    BAD(watchcore_cache_list(cache, NULL, &read, &again, &error));
    CHECK(strstr(error.message, "UTF-8") != NULL);
    read.continue_token = watchcore_bytes_from(kept, length);
    read.limit = 0;
    BAD(watchcore_cache_get(cache, "/x/a", 4, &read, &answer, &error));
    BAD(watchcore_cache_count(cache, NULL, &read, &count, NULL, NULL, &error));
    CHECK(again == NULL && token == NULL && answer.kv == NULL);

    /* Its revision leaves the window: another token goes on at the same key, in the newest state. */
    CHECK_OK(watchcore_writer_compact(writer, 12, &error));
    read.limit = 1;
    CHECK_CODE(WATCHCORE_COMPACTED, watchcore_cache_list(cache, NULL, &read, &again, &error));
    CHECK_CODE(WATCHCORE_COMPACTED, watchcore_cache_list_next(cache, NULL, &read, &again, &token, &error));
    CHECK(again == NULL && token != NULL && error.asked == 10 && error.oldest == 13 && error.current == 12);
    read.continue_token = watchcore_text_get(token);
    CHECK(read.continue_token.data != NULL && read.continue_token.length > 0);
    CHECK_OK(watchcore_cache_list(cache, NULL, &read, &again, &error));
    CHECK(watchcore_page_revision(again) == 12 && watchcore_page_count(again) == 1 && key_of(again, 0, "/x/c"));
    CHECK(watchcore_page_more(again) == 1);
    watchcore_text_free(token);
    watchcore_text_free(NULL);
    CHECK(watchcore_text_get(NULL).data == NULL);
    watchcore_page_free(again);

    /* COMPACTED without a token has nothing to go on from. */
    read.continue_token = text(NULL);
    read.mode = WATCHCORE_READ_EXACT;
    read.revision = 10;
    token = NULL;
    CHECK_CODE(WATCHCORE_COMPACTED, watchcore_cache_list_next(cache, NULL, &read, &again, &token, &error));
    CHECK(token == NULL);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
    watchcore_writer_free(other_writer);
    watchcore_cache_free(other);
}

static void test_diff(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = declared(0, &writer);
    watchcore_filter filter = WATCHCORE_FILTER_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    const watchcore_event *event;
    uint64_t epoch = 0;
    fill(writer);
    apply(writer, 11, put("/x/a", WEB2));
    apply(writer, 12, put("/x/a", DB));
    apply(writer, 13, del("/y/a"));
    apply(writer, 14, put("/z", WEB));
    apply(writer, 15, put("/once", WEB));
    apply(writer, 16, del("/once"));
    CHECK_OK(watchcore_cache_wait_until(cache, 16, 0, NULL, &epoch, &error));
    CHECK_OK(watchcore_cache_diff(cache, 10, epoch, 16, 0, NULL, &batch, &error));
    CHECK(batch.count == 3 && batch.position == 16 && batch.epoch == epoch);
    event = watchcore_batch_event(&batch, 0);
    CHECK(event->type == WATCHCORE_MODIFIED && event->revision == 12 && same(watchcore_event_key(event), "/x/a"));
    CHECK(same(watchcore_event_value(event), DB) && same(watchcore_event_prev_value(event), WEB));
    event = watchcore_batch_event(&batch, 1);
    CHECK(event->type == WATCHCORE_DELETED && event->revision == 13 && same(watchcore_event_key(event), "/y/a"));
    CHECK(event->kv->value == NULL && same(watchcore_event_prev_value(event), WEB2));
    event = watchcore_batch_event(&batch, 2);
    CHECK(event->type == WATCHCORE_ADDED && event->revision == 14 && event->prev_kv == NULL);
    watchcore_batch_release(&batch);

    filter.labels = text("app=web");
    CHECK_OK(watchcore_cache_diff(cache, 10, 0, 16, epoch, &filter, &batch, &error));
    CHECK(batch.count == 3);
    event = watchcore_batch_event(&batch, 0); /* it left the filter */
    CHECK(event->type == WATCHCORE_DELETED && event->kv->value == NULL && same(watchcore_event_prev_value(event), WEB));
    watchcore_batch_release(&batch);
    filter.types = WATCHCORE_MASK(WATCHCORE_ADDED);
    filter.range = WATCHCORE_RANGE_KEY;
    filter.from = text("/z");
    CHECK_OK(watchcore_cache_diff(cache, 10, 0, 16, 0, &filter, &batch, &error));
    CHECK(batch.count == 1);
    watchcore_batch_release(&batch);
    CHECK_OK(watchcore_cache_diff(cache, 16, 0, 16, 0, NULL, &batch, &error));
    CHECK(batch.count == 0 && batch.position == 16);
    watchcore_batch_release(&batch);

    BAD(watchcore_cache_diff(cache, 16, 0, 10, 0, NULL, &batch, &error));
    CHECK_CODE(WATCHCORE_FUTURE_REVISION, watchcore_cache_diff(cache, 10, 0, 17, 0, NULL, &batch, &error));
    CHECK(error.asked == 17 && error.current == 16);
    filter.types = WATCHCORE_MASK(WATCHCORE_BOOKMARK);
    BAD(watchcore_cache_diff(cache, 10, 0, 16, 0, &filter, &batch, &error));
    filter.types = 1;
    BAD(watchcore_cache_diff(cache, 10, 0, 16, 0, &filter, &batch, &error));
    CHECK_OK(watchcore_writer_compact(writer, 12, &error));
    CHECK_CODE(WATCHCORE_COMPACTED, watchcore_cache_diff(cache, 10, 0, 16, 0, NULL, &batch, &error));
    CHECK(error.asked == 10 && error.oldest == 13 && batch.count == 0);
    CHECK_OK(watchcore_cache_diff(cache, 12, 0, 16, 0, NULL, &batch, &error));
    CHECK(batch.count == 2);
    watchcore_batch_release(&batch);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* Reads and waits of a revision in one history. */
static void test_epochs(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = declared(0, &writer);
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    watchcore_waiter *waiter = NULL, *older = NULL;
    uint64_t before = 0, now = 0, revision = 0, count = 0, epoch = 0;
    uint32_t done = 0;
    fill(writer);
    CHECK_OK(watchcore_cache_count(cache, NULL, NULL, &count, NULL, &before, &error));
    CHECK_OK(watchcore_waiter_new_in(cache, WATCHCORE_WANT_REVISION, 30, before, &older, &error));
    CHECK_OK(watchcore_waiter_try(older, &done, NULL, NULL, &error));
    CHECK(done == 0);
    CHECK_OK(watchcore_writer_resync(writer, 5, NULL, 0, WATCHCORE_RESYNC_HISTORY_RESET, NULL, &now, &error));
    CHECK_CODE(WATCHCORE_RESYNCED, watchcore_waiter_try(older, &done, NULL, NULL, &error));
    watchcore_waiter_free(older);
    apply(writer, 12, put("/x/a", WEB));
    read.mode = WATCHCORE_READ_EXACT;
    read.revision = 12;
    read.epoch = now;
    CHECK_OK(watchcore_cache_count(cache, NULL, &read, &count, &revision, &epoch, &error));
    CHECK(count == 1 && revision == 12 && epoch == now && now == before + 1);
    read.epoch = before;
    CHECK_CODE(WATCHCORE_COMPACTED, watchcore_cache_count(cache, NULL, &read, &count, NULL, NULL, &error));
    read.mode = WATCHCORE_READ_AT_LEAST;
    read.revision = 7;
    CHECK_CODE(WATCHCORE_COMPACTED, watchcore_cache_count(cache, NULL, &read, &count, NULL, NULL, &error));
    read.epoch = now;
    CHECK_OK(watchcore_cache_count(cache, NULL, &read, &count, NULL, NULL, &error));
    CHECK_CODE(WATCHCORE_COMPACTED, watchcore_cache_diff(cache, 10, before, 12, now, NULL, &batch, &error));
    CHECK_OK(watchcore_waiter_new_in(cache, WATCHCORE_WANT_REVISION, 12, now, &waiter, &error));
    CHECK_OK(watchcore_waiter_try(waiter, &done, &revision, &epoch, &error));
    CHECK(done == 1 && revision == 12 && epoch == now);
    watchcore_waiter_free(waiter);
    CHECK_OK(watchcore_waiter_new_in(cache, WATCHCORE_WANT_REVISION, 30, before, &waiter, &error));
    CHECK_CODE(WATCHCORE_RESYNCED, watchcore_waiter_try(waiter, &done, NULL, NULL, &error)); /* it will never come */
    watchcore_waiter_free(waiter);
    waiter = NULL;
    BAD(watchcore_waiter_new_in(cache, WATCHCORE_WANT_READY, 0, now, &waiter, &error));
    BAD(watchcore_waiter_new_in(cache, 9, 0, 0, &waiter, &error));
    read.mode = WATCHCORE_READ_ANY;
    read.revision = 0;
    BAD(watchcore_cache_count(cache, NULL, &read, &count, NULL, NULL, &error));
    CHECK(waiter == NULL);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* A subscription that has seen /x/a of WEB and /x/gone, and then was overtaken: /x/gone deleted, /x/new put. */
static watchcore_subscription *overtaken(watchcore_cache **cache, watchcore_writer **writer, uint32_t on_lag)
{
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *subscription = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    watchcore_change changes[2], one = put("/busy", DB);
    uint64_t revision;
    size_t handed = 0;
    *cache = declared(0, writer);
    changes[0] = put("/x/a", WEB);
    changes[1] = put("/x/gone", WEB2);
    CHECK_OK(watchcore_writer_apply(*writer, 1, changes, 2, &error));
    options.labels = text("app=web");
    options.on_lag = on_lag;
    CHECK_OK(watchcore_subscription_new(*cache, &options, &subscription, &error));
    while (handed < 3) { /* two objects and the mark */
        CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
        CHECK(batch.count != 0);
        handed += batch.count == 0 ? 3 : batch.count;
        watchcore_batch_release(&batch);
    }
    changes[0] = del("/x/gone");
    changes[1] = put("/x/new", WEB);
    CHECK_OK(watchcore_writer_apply(*writer, 2, changes, 2, &error));
    for (revision = 3; revision <= MANY; revision++) {
        if (watchcore_writer_apply(*writer, revision, &one, 1, NULL) != WATCHCORE_OK) {
            break;
        }
    }
    CHECK(revision == MANY + 1);
    return subscription;
}

static void lagged_once(watchcore_subscription *subscription)
{
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    CHECK_CODE(WATCHCORE_LAGGED, watchcore_subscription_poll(subscription, 0, &batch, &error));
    CHECK(error.lost_from == 2 && error.lost_to == error.oldest - 1 && error.current == MANY && error.position == 1);
    CHECK(batch.count == 0);
}

static void test_on_lag_stop(void)
{
    watchcore_cache *cache = NULL;
    watchcore_writer *writer = NULL;
    watchcore_subscription *subscription = overtaken(&cache, &writer, WATCHCORE_ON_LAG_STOP);
    watchcore_subscription_figures figures = WATCHCORE_SUBSCRIPTION_FIGURES_INIT;
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    lagged_once(subscription);
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_subscription_poll(subscription, 0, &batch, &error));
    CHECK_OK(watchcore_subscription_stats(subscription, &figures, &error)); /* stays readable */
    CHECK(figures.lagged == 1 && figures.handed_out == 3 && figures.delivered_keys == 0);
    CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
    CHECK(stats.lagged == 1);
    watchcore_subscription_free(subscription);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static void test_on_lag_skip_to_oldest(void)
{
    watchcore_cache *cache = NULL;
    watchcore_writer *writer = NULL;
    watchcore_subscription *subscription = overtaken(&cache, &writer, WATCHCORE_ON_LAG_SKIP_TO_OLDEST);
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    const watchcore_event *event;
    lagged_once(subscription);
    nothing_comes(subscription, &batch); /* the window has nothing of it */
    apply(writer, MANY + 1, put("/x/a", WEB2));
    event = next_is(subscription, &batch, WATCHCORE_MODIFIED, MANY + 1, "/x/a");
    CHECK(same(watchcore_event_prev_value(event), WEB));
    nothing_comes(subscription, &batch);
    watchcore_subscription_free(subscription);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* The difference between what was handed out and the state: /x/gone DELETED, /x/new ADDED, /x/a as it was. */
static void catches_up(watchcore_subscription *subscription, int bracket)
{
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    const watchcore_event *event;
    size_t at = bracket ? 1 : 0;
    CHECK_OK(watchcore_subscription_wait(subscription, -1, &error));
    CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
    CHECK(batch.count == (bracket ? 4u : 2u) && batch.position == MANY);
    if (bracket) {
        event = watchcore_batch_event(&batch, 0);
        CHECK(event->type == WATCHCORE_RESYNC && (event->flags & WATCHCORE_BEGIN) != 0);
        CHECK(event->resync_reason == WATCHCORE_RESYNC_LAGGED && event->resync_from == 1 && event->revision == MANY);
        CHECK((watchcore_batch_event(&batch, 3)->flags & WATCHCORE_END) != 0);
    }
    event = watchcore_batch_event(&batch, at);
    CHECK(event->type == WATCHCORE_DELETED && same(watchcore_event_key(event), "/x/gone") && event->kv->value == NULL);
    CHECK((event->flags & WATCHCORE_SYNTHETIC) != 0);
    event = watchcore_batch_event(&batch, at + 1);
    CHECK(event->type == WATCHCORE_ADDED && same(watchcore_event_key(event), "/x/new"));
    CHECK(same(watchcore_event_value(event), WEB) && event->kv->mod_revision == 2);
    watchcore_batch_release(&batch);
    nothing_comes(subscription, &batch);
}

static void test_on_lag_resnapshot(void)
{
    watchcore_cache *cache = NULL;
    watchcore_writer *writer = NULL;
    watchcore_subscription *subscription = overtaken(&cache, &writer, WATCHCORE_ON_LAG_RESNAPSHOT);
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    watchcore_subscription_figures figures = WATCHCORE_SUBSCRIPTION_FIGURES_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    lagged_once(subscription);
    catches_up(subscription, 1);
    apply(writer, MANY + 1, put("/x/new", DB));
    next_is(subscription, &batch, WATCHCORE_DELETED, MANY + 1, "/x/new");
    watchcore_batch_release(&batch);
    CHECK_OK(watchcore_subscription_stats(subscription, &figures, &error));
    CHECK(figures.delivered_keys == 1 && figures.delivered_bytes > 0 && figures.lagged == 1);
    CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
    CHECK(stats.delivered_bytes == figures.delivered_bytes && stats.link_bytes == 0);
    watchcore_subscription_free(subscription);
    CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
    CHECK(stats.delivered_bytes == 0);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static void test_on_lag_conflate(void)
{
    watchcore_cache *cache = NULL;
    watchcore_writer *writer = NULL;
    watchcore_subscription *subscription = overtaken(&cache, &writer, WATCHCORE_ON_LAG_CONFLATE);
    watchcore_subscription_figures figures = WATCHCORE_SUBSCRIPTION_FIGURES_INIT;
    catches_up(subscription, 0);
    CHECK_OK(watchcore_subscription_stats(subscription, &figures, &error));
    CHECK(figures.delivered_keys == 2 && figures.lagged == 1);
    watchcore_subscription_free(subscription);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* A limit ends a subscription whatever its policy: in events, and in time. */
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

static void test_maximum_lag(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = declared(0, &writer);
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *few = NULL, *quick = NULL, *patient = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    watchcore_change one;
    uint64_t revision;
    int32_t code = WATCHCORE_INTERNAL;
    options.start = WATCHCORE_START_NOW;
    options.on_lag = WATCHCORE_ON_LAG_CONFLATE;
    CHECK_OK(watchcore_subscription_new(cache, &options, &patient, &error));
    options.max_lag_events = 5;
    CHECK_OK(watchcore_subscription_new(cache, &options, &few, &error));
    options.max_lag_events = 0;
    options.max_lag_age_ms = 1;
    CHECK_OK(watchcore_subscription_new(cache, &options, &quick, &error));
    for (revision = 1; revision <= 6; revision++) {
        apply(writer, revision, put("/x/a", WEB));
    }
    CHECK_CODE(WATCHCORE_LAGGED, watchcore_subscription_poll(few, 0, &batch, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_subscription_poll(few, 0, &batch, &error));
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
    watchcore_subscription_free(few);
    watchcore_subscription_free(quick);
    watchcore_subscription_free(patient);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* Which way a subscription reads, and how much of the log it did not look at. */
static void reads_by(watchcore_cache *cache, watchcore_writer *writer, uint64_t *revision,
                     watchcore_subscription_options options, const char *index)
{
    watchcore_subscription *subscription = NULL;
    watchcore_subscription_figures figures = WATCHCORE_SUBSCRIPTION_FIGURES_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    uint64_t i;
    options.start = WATCHCORE_START_NOW;
    CHECK_OK(watchcore_subscription_new(cache, &options, &subscription, &error));
    apply(writer, ++*revision, put("/q/first", BARE)); /* the writer makes the bucket */
    CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
    watchcore_batch_release(&batch);
    for (i = 0; i < 100; i++) {
        apply(writer, ++*revision, put("/other/busy", BARE));
    }
    apply(writer, ++*revision, put("/x/a", WEB));
    next_is(subscription, &batch, WATCHCORE_ADDED, *revision, "/x/a");
    watchcore_batch_release(&batch);
    CHECK_OK(watchcore_subscription_stats(subscription, &figures, &error));
    if (index != NULL) {
        CHECK(figures.read_path == WATCHCORE_READ_PATH_CHAIN && same(figures.index, index));
        CHECK(figures.looked_at < 20 && figures.handed_out == 1);
    } else {
        CHECK(figures.read_path == WATCHCORE_READ_PATH_SCAN && figures.index.data == NULL && figures.index.length == 0);
        CHECK(figures.looked_at + figures.skipped >= 101 && figures.handed_out == 1);
    }
    CHECK(figures.lagged == 0 && figures.delivered_keys == 0 && figures.delivered_bytes == 0);
    apply(writer, ++*revision, del("/x/a"));
    watchcore_subscription_free(subscription);
}

static void test_routes(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = declared(1, &writer);
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    const watchcore_subscription_options none = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    uint64_t revision = 0;
    options.range = WATCHCORE_RANGE_KEY;
    options.from = text("/x/a");
    reads_by(cache, writer, &revision, options, "key");
    options.range = WATCHCORE_RANGE_PREFIX;
    options.from = text("/x/");
    reads_by(cache, writer, &revision, options, "prefix of depth 1");
    options = none;
    options.fields = text("phase=Running");
    reads_by(cache, writer, &revision, options, "field phase");
    options = none;
    options.labels = text("app=web");
    reads_by(cache, writer, &revision, options, "label app");
    options.labels = text("tier");
    reads_by(cache, writer, &revision, options, NULL);
    CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
    CHECK(stats.buckets >= 1 && stats.caught_panics == 0);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

/* Every new function once without a handle, and without an output. */
static void test_null(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription_figures figures = WATCHCORE_SUBSCRIPTION_FIGURES_INIT;
    watchcore_subscription *subscription = NULL;
    watchcore_snapshot *snapshot = NULL;
    watchcore_iterator *iterator = NULL;
    watchcore_waiter *waiter = NULL;
    watchcore_text *token = NULL;
    watchcore_page *page = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    uint64_t count = 0;
    BAD(watchcore_cache_list_next(NULL, NULL, NULL, &page, &token, &error));
    BAD(watchcore_cache_diff(NULL, 0, 0, 0, 0, NULL, &batch, &error));
    BAD(watchcore_snapshot_count_filtered(NULL, NULL, &count, &error));
    BAD(watchcore_iterator_new_filtered(NULL, NULL, &iterator, &error));
    BAD(watchcore_subscription_stats(NULL, &figures, &error));
    BAD(watchcore_waiter_new_in(NULL, WATCHCORE_WANT_READY, 0, 0, &waiter, &error));
    CHECK_OK(watchcore_subscription_new(cache, NULL, &subscription, &error));
    CHECK_OK(watchcore_snapshot_new(cache, &snapshot, &error));
    BAD(watchcore_cache_list_next(cache, NULL, NULL, NULL, &token, &error));
    BAD(watchcore_cache_list_next(cache, NULL, NULL, &page, NULL, &error));
    BAD(watchcore_cache_diff(cache, 0, 0, 0, 0, NULL, NULL, &error));
    BAD(watchcore_snapshot_count_filtered(snapshot, NULL, NULL, &error));
    BAD(watchcore_iterator_new_filtered(snapshot, NULL, NULL, &error));
    BAD(watchcore_subscription_stats(subscription, NULL, &error));
    BAD(watchcore_waiter_new_in(cache, WATCHCORE_WANT_READY, 0, 0, NULL, &error));
    CHECK(page == NULL && token == NULL && iterator == NULL && waiter == NULL);
    CHECK(watchcore_text_get((const watchcore_text *)(const void *)cache).data == NULL); /* of another kind */
    watchcore_snapshot_free(snapshot);
    watchcore_subscription_free(subscription);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static watchcore_attribute json_field(const char *name, const char *pointer)
{
    watchcore_attribute one = WATCHCORE_ATTRIBUTE_INIT;
    one.kind = WATCHCORE_ATTRIBUTE_JSON;
    one.name = text(name);
    one.pointer = text(pointer);
    return one;
}

static void refused(watchcore_attribute field, const char *because)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    options.fields = &field;
    options.field_count = 1;
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(cache == NULL);
    (void)check_report(strstr(error.message, because) != NULL, __FILE__, __LINE__, because, error.message);
}

static void test_hostile_attributes(void)
{
    const uint32_t zero = 0;
    watchcore_attribute one, many[65];
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    size_t i;
    one = json_field("a", "/a");
    one.kind = 0;
    refused(one, "kind is 0");
    one.kind = UINT32_MAX;
    refused(one, "kind is 4294967295");
    refused(json_field(NULL, "/a"), "name is absent");
    refused(json_field("", "/a"), "empty");
    refused(json_field("a", NULL), "pointer is absent");
    refused(json_field("a", "no slash"), "pointer");
    one = json_field("a", "/a");
    one.name = watchcore_bytes_from("\xc3\x28", 2);
    refused(one, "UTF-8");
    one.name = watchcore_bytes_from(NULL, 7);
    refused(one, "NULL with length 7");
    one.name = watchcore_bytes_from("a", SIZE_MAX);
    refused(one, "impossible length");
    one = json_field("a", "/a");
    one.pointer = watchcore_bytes_from("/\xff", 2);
    refused(one, "UTF-8");
    one = json_field("a", "/a");
    one.depth = 1;
    refused(one, "depth");
    one.depth = 0;
    one.reserved = 1;
    refused(one, "reserved");
    one.reserved = 0;
    one.protobuf_path_length = 2;
    refused(one, "NULL with length 2");
    one.protobuf_path = &zero;
    one.protobuf_path_length = SIZE_MAX; /* never read that far */
    refused(one, "protobuf_path_length");
    one.protobuf_path_length = 1;
    refused(one, "number 0 is 0");
    one.protobuf_path_length = 0;
    refused(one, "protobuf path");
    one.protobuf_path = (const uint32_t *)(const void *)((const char *)&zero + 1);
    one.protobuf_path_length = 1;
    refused(one, "alignment");
    one = json_field("a", "/a");
    one.kind = WATCHCORE_ATTRIBUTE_KEY_SEGMENT;
    refused(one, "pointer is set");
    one.pointer = text(NULL);
    one.protobuf_path = &zero;
    one.protobuf_path_length = 1;
    refused(one, "protobuf_path is set");
    one = json_field("a", "/a");
    one.size = 12;
    refused(one, "size 12");

    for (i = 0; i < 65; i++) {
        many[i] = json_field("a", "/a");
    }
    options.fields = many;
    options.field_count = 2;
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(strstr(error.message, "twice") != NULL);
    options.field_count = 65;
    BAD(watchcore_cache_new(&options, &cache, &error));
    options.field_count = SIZE_MAX / 2; /* refused before it is read */
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(strstr(error.message, "64") != NULL);
    many[1].size += 8;
    options.field_count = 2;
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(strstr(error.message, "options.fields[1]") != NULL);
    options.fields = NULL;
    BAD(watchcore_cache_new(&options, &cache, &error));
    options.field_count = 0;
    options.labels_from = text("labels");
    BAD(watchcore_cache_new(&options, &cache, &error));
    options.labels_from = watchcore_bytes_from("/\xff", 2);
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(cache == NULL);
}

static void refused_index(uint32_t kind, const char *name, uint32_t depth, const char *because)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_index one = WATCHCORE_INDEX_INIT;
    watchcore_cache *cache = NULL;
    one.kind = kind;
    one.name = text(name);
    one.depth = depth;
    options.indexes = &one;
    options.index_count = 1;
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(cache == NULL && strstr(error.message, because) != NULL);
}

static void test_hostile_indexes(void)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_index many[9];
    watchcore_cache *cache = NULL;
    size_t i;
    refused_index(0, NULL, 0, "kind is 0");
    refused_index(5, NULL, 0, "kind is 5");
    refused_index(WATCHCORE_INDEX_KEY, "a", 0, "name is set");
    refused_index(WATCHCORE_INDEX_KEY, NULL, 1, "depth is set");
    refused_index(WATCHCORE_INDEX_PREFIX, NULL, 0, "depth 0");
    refused_index(WATCHCORE_INDEX_PREFIX, "a", 1, "name is set");
    refused_index(WATCHCORE_INDEX_FIELD, NULL, 0, "name is absent");
    refused_index(WATCHCORE_INDEX_FIELD, "a", 2, "depth is set");
    refused_index(WATCHCORE_INDEX_FIELD, "undeclared", 0, "undeclared");
    refused_index(WATCHCORE_INDEX_LABEL, "app", 0, "no labels");
    memset(many, 0, sizeof(many));
    for (i = 0; i < 9; i++) {
        many[i].size = (uint32_t)sizeof(many[i]);
        many[i].kind = WATCHCORE_INDEX_PREFIX;
        many[i].depth = (uint32_t)i + 1;
    }
    options.indexes = many;
    options.index_count = 9;
    BAD(watchcore_cache_new(&options, &cache, &error));
    options.index_count = SIZE_MAX;
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(strstr(error.message, "8") != NULL);
    options.index_count = 8;
    many[7].reserved = 1;
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(strstr(error.message, "options.indexes[7]") != NULL);
    many[7].reserved = 0;
    many[7].depth = 1;
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(cache == NULL && strstr(error.message, "twice") != NULL);
    many[7].depth = 8;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    watchcore_cache_free(cache);
}

static void refuses(const watchcore_cache *cache, watchcore_bytes labels, watchcore_bytes fields, const char *because)
{
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_filter filter = WATCHCORE_FILTER_INIT;
    watchcore_subscription *subscription = NULL;
    watchcore_snapshot *snapshot = NULL;
    watchcore_iterator *iterator = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    watchcore_page *page = NULL;
    uint64_t count = 0;
    options.labels = read.labels = filter.labels = labels;
    options.fields = read.fields = filter.fields = fields;
    BAD(watchcore_subscription_new(cache, &options, &subscription, &error));
    CHECK(strstr(error.message, because) != NULL);
    BAD(watchcore_cache_list(cache, NULL, &read, &page, &error));
    BAD(watchcore_cache_count(cache, NULL, &read, &count, NULL, NULL, &error));
    BAD(watchcore_cache_diff(cache, 0, 0, 0, 0, &filter, &batch, &error));
    CHECK_OK(watchcore_snapshot_new(cache, &snapshot, &error));
    BAD(watchcore_snapshot_count_filtered(snapshot, &filter, &count, &error));
    BAD(watchcore_iterator_new_filtered(snapshot, &filter, &iterator, &error));
    CHECK(strstr(error.message, because) != NULL);
    watchcore_snapshot_free(snapshot);
    CHECK(subscription == NULL && page == NULL && iterator == NULL && batch.count == 0);
}

static void test_hostile_selectors(void)
{
    enum { LONG = 1 << 20 };
    const watchcore_bytes absent = WATCHCORE_BYTES_INIT;
    watchcore_cache *cache = declared(0, NULL), *bare = embedded(NULL);
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_filter filter = WATCHCORE_FILTER_INIT;
    watchcore_snapshot *snapshot = NULL;
    watchcore_subscription *subscription = NULL;
    uint64_t count = 0;
    char *large = (char *)malloc(LONG);
    refuses(cache, text("app in (web"), absent, "11");
    refuses(cache, text("=web"), absent, "0");
    refuses(cache, watchcore_bytes_from("app=\xff", 5), absent, "");
    refuses(cache, watchcore_bytes_from(NULL, 1), absent, "NULL with length 1");
    refuses(cache, watchcore_bytes_from("a", SIZE_MAX), absent, "impossible length");
    refuses(cache, absent, text("phase"), "");
    refuses(cache, absent, text("none=x"), "none");
    refuses(bare, text("app"), absent, "declares none");
    refuses(bare, absent, text("phase=x"), "phase");
    if (large != NULL) {
        memset(large, '(', LONG);
        refuses(cache, watchcore_bytes_from(large, LONG), absent, "");
        refuses(cache, absent, watchcore_bytes_from(large, LONG), "");
        memset(large, 'a', LONG); /* one name of a MiB */
        refuses(cache, watchcore_bytes_from(large, LONG), absent, "");
        free(large);
    }

    options.nothing = 2;
    BAD(watchcore_subscription_new(cache, &options, &subscription, &error));
    options.nothing = 0;
    options.on_lag = 4;
    BAD(watchcore_subscription_new(cache, &options, &subscription, &error));
    options.on_lag = 0;
    options.max_lag_age_ms = -1;
    BAD(watchcore_subscription_new(cache, &options, &subscription, &error));
    CHECK(subscription == NULL);
    CHECK_OK(watchcore_snapshot_new(cache, &snapshot, &error));
    filter.nothing = 9;
    BAD(watchcore_snapshot_count_filtered(snapshot, &filter, &count, &error));
    filter.nothing = 0;
    filter.range = 5;
    BAD(watchcore_snapshot_count_filtered(snapshot, &filter, &count, &error));
    filter.range = WATCHCORE_RANGE_ALL;
    filter.size = 20;
    BAD(watchcore_snapshot_count_filtered(snapshot, &filter, &count, &error));
    filter.size = (uint32_t)offsetof(watchcore_filter, labels); /* an older one ends there */
    filter.labels = watchcore_bytes_from(NULL, 5);
    CHECK_OK(watchcore_snapshot_count_filtered(snapshot, &filter, &count, &error));
    watchcore_snapshot_free(snapshot);
    watchcore_cache_free(cache);
    watchcore_cache_free(bare);
}

/* Structs that end where an older header ended: what lies behind them is not looked at. */
static void test_older_sizes(void)
{
    watchcore_cache_options cache_options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    watchcore_subscription *subscription = NULL;
    watchcore_stats stats;
    watchcore_page *page = NULL;
    const size_t tail = offsetof(watchcore_cache_options, fields);
    memset((char *)&cache_options + tail, 0xee, sizeof(cache_options) - tail);
    cache_options.size = (uint32_t)tail;
    CHECK_OK(watchcore_cache_new(&cache_options, &cache, &error));
    memset(&options.labels, 0xee, sizeof(options) - offsetof(watchcore_subscription_options, labels));
    options.size = (uint32_t)offsetof(watchcore_subscription_options, labels);
    CHECK_OK(watchcore_subscription_new(cache, &options, &subscription, &error));
    memset(&read.epoch, 0xee, sizeof(read) - offsetof(watchcore_read_options, epoch));
    read.size = (uint32_t)offsetof(watchcore_read_options, epoch);
    CHECK_OK(watchcore_cache_list(cache, NULL, &read, &page, &error));
    memset(&stats, 0xee, sizeof(stats));
    stats.size = (uint32_t)offsetof(watchcore_stats, buckets);
    CHECK_OK(watchcore_cache_stats(cache, &stats, &error));
    CHECK(stats.subscriptions == 1 && stats.buckets == UINT64_C(0xeeeeeeeeeeeeeeee));
    watchcore_page_free(page);
    watchcore_subscription_free(subscription);
    watchcore_cache_free(cache);
}

/* An array of a later, longer struct steps by the size that its first element says. */
static void test_arrays_step_by_their_size(void)
{
    struct {
        watchcore_attribute known;
        uint64_t unknown[2];
    } later[2];
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    uint64_t count = 0;
    memset(later, 0, sizeof(later));
    later[0].known = json_field("a", "/a");
    later[1].known = json_field("b", "/b");
    later[0].known.size = later[1].known.size = (uint32_t)sizeof(later[0]);
    options.fields = &later[0].known;
    options.field_count = 2;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    read.fields = text("a=,b=");
    CHECK_OK(watchcore_cache_count(cache, NULL, &read, &count, NULL, NULL, &error));
    watchcore_cache_free(cache);
    cache = NULL;
    later[1].unknown[1] = 1;
    BAD(watchcore_cache_new(&options, &cache, &error));
    CHECK(cache == NULL && strstr(error.message, "options.fields[1]") != NULL);
}

int main(void)
{
    RUN(test_transitions_by_scan);
    RUN(test_transitions_by_chain);
    RUN(test_filtered_batches_live_on);
    RUN(test_reads_take_filters);
    RUN(test_nothing_passes);
    RUN(test_protobuf_paths);
    RUN(test_continue_tokens);
    RUN(test_diff);
    RUN(test_epochs);
    RUN(test_on_lag_stop);
    RUN(test_on_lag_skip_to_oldest);
    RUN(test_on_lag_resnapshot);
    RUN(test_on_lag_conflate);
    RUN(test_polls_without_a_maximum);
    RUN(test_polls_keep_their_maximum);
    RUN(test_maximum_lag);
    RUN(test_routes);
    RUN(test_null);
    RUN(test_hostile_attributes);
    RUN(test_hostile_indexes);
    RUN(test_hostile_selectors);
    RUN(test_older_sizes);
    RUN(test_arrays_step_by_their_size);
    return check_finish("filters");
}
