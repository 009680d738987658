/* What the rows of contract/core ask a cache, a list and a snapshot for. */
#ifndef READS_H
#define READS_H

#include "words.h"

/* The most keys of a get of many. */
#define MANY 16

/* Lists a page: that behind the last one of `pages`, where there was one. */
static void list_page(struct step *step, struct thing *pages)
{
    struct list list;
    watchcore_page_info info = WATCHCORE_PAGE_INFO_INIT;
    watchcore_page *page = NULL;
    watchcore_text *newest = NULL;
    watchcore_bytes token;
    int32_t code;
    size_t i;
    read_list(step, &list);
    if (pages != NULL && pages->token != NULL) {
        /* A token says at which revision it goes on. */
        list.read.mode = WATCHCORE_READ_ANY;
        list.read.revision = list.read.epoch = 0;
        list.read.continue_token = text(pages->token);
    }
    code = watchcore_cache_list(cache_of(step), &list.range, &list.read, &page, &newest, fresh(step));
    if (code == WATCHCORE_OK) {
        (void)watchcore_page_describe(page, &info, NULL);
    }
    token = code == WATCHCORE_OK ? info.continue_token : watchcore_text_get(newest);
    if (pages != NULL) {
        pages->token = token.data == NULL ? NULL : room_for(token.data, token.length, token.length + 1);
    }
    watchcore_text_free(newest);
    if (!granted(step, code)) {
        return;
    }
    print(step, "at %llu", U(info.revision));
    for (i = 0; i < info.count; i++) {
        print_object(step, watchcore_page_item(page, i), list.full);
    }
    if (info.remaining > 0) {
        print(step, "more, %llu remain", U(info.remaining));
    } else if (info.more) {
        print(step, "more"); /* how many of those that follow match a filter is not known */
    }
    watchcore_page_free(page);
}

static void do_list(struct step *step)
{
    struct thing *pages = NULL;
    size_t i;
    for (i = 1; i + 1 < step->words.count; i++) {
        if (is(step->words.at[i], "as")) {
            pages = named_anew(step, PAGES, step->words.at[i + 1]);
            push_all(&pages->list, &step->words);
        }
    }
    list_page(step, pages);
}

static void do_next(struct step *step)
{
    struct thing *pages = named(step, PAGES);
    step->words = pages->list;
    step->at = 1;
    list_page(step, pages);
}

static void do_get(struct step *step)
{
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_bytes key = bytes_of(next(step));
    struct list list;
    read_list(step, &list);
    if (granted(step, watchcore_cache_get(cache_of(step), key.data, key.length, &list.read, &answer, fresh(step)))) {
        print_found(step, answer.revision, answer.kv, list.full);
        watchcore_key_value_release(answer.kv);
    }
}

/* Keys between commas; `-` is none. */
static size_t many_keys(struct step *step, watchcore_bytes keys[MANY])
{
    watchcore_bytes word = bytes_of(next(step));
    const char *at = word.data, *end = at + word.length, *comma;
    size_t count = 0;
    if (word.length == 1 && *at == '-') {
        return 0;
    }
    for (;; at = comma + 1) {
        comma = memchr(at, ',', (size_t)(end - at));
        CHECK(count < MANY);
        keys[count].data = at;
        keys[count++].length = (size_t)((comma == NULL ? end : comma) - at);
        if (comma == NULL) {
            return count;
        }
    }
}

static void print_many(struct step *step, uint64_t revision, const watchcore_key_value **kvs, size_t count, int full)
{
    size_t i;
    print(step, "at %llu", U(revision));
    for (i = 0; i < count; i++) {
        if (kvs[i] == NULL) {
            print(step, "none");
        } else {
            print_object(step, kvs[i], full);
        }
    }
    watchcore_key_values_release(kvs, count);
}

static void do_get_many(struct step *step)
{
    watchcore_bytes keys[MANY];
    const watchcore_key_value *kvs[MANY];
    size_t count = many_keys(step, keys);
    uint64_t revision = 0;
    struct list list;
    read_list(step, &list);
    if (granted(step, watchcore_cache_get_many(cache_of(step), keys, count, &list.read, kvs, &revision, NULL, fresh(step)))) {
        print_many(step, revision, kvs, count, list.full);
    }
}

static void do_count(struct step *step)
{
    uint64_t count = 0, revision = 0;
    struct list list;
    read_list(step, &list);
    if (granted(step, watchcore_cache_count(cache_of(step), &list.range, &list.read, &count, &revision, NULL, fresh(step)))) {
        print(step, "%llu: %llu", U(revision), U(count));
    }
}

static void do_diff(struct step *step)
{
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    uint64_t from = number(step), from_epoch = maybe_epoch(step), to = number(step), to_epoch = maybe_epoch(step);
    struct list list;
    read_list(step, &list);
    if (granted(step, watchcore_cache_diff(cache_of(step), from, from_epoch, to, to_epoch, &list.filter, &batch, fresh(step)))) {
        print_events(step, &batch, list.full);
        watchcore_batch_release(&batch);
    }
}

static void do_until(struct step *step)
{
    uint64_t revision = number(step), reached = 0;
    int64_t timeout = maybe(step) != NULL ? duration(step) : BOUND_MS;
    if (granted(step, watchcore_cache_wait_until(cache_of(step), revision, timeout, &reached, NULL, fresh(step)))) {
        print_number(step, reached);
    }
}

static void do_snapshot(struct step *step)
{
    watchcore_snapshot *snapshot = NULL;
    const char *name = next(step);
    uint64_t revision = 0;
    if (granted(step, watchcore_snapshot_new(cache_of(step), &snapshot, fresh(step)))) {
        named_anew(step, SNAPSHOT, name)->snapshot = snapshot;
        (void)watchcore_snapshot_position(snapshot, &revision, NULL, NULL);
        print(step, "at %llu", U(revision));
    }
}

/* What a snapshot answers. */
static void do_in(struct step *step)
{
    watchcore_snapshot *snapshot = named(step, SNAPSHOT)->snapshot;
    uint64_t revision = 0, epoch = 0, count = 0;
    const watchcore_key_value *kv = NULL;
    watchcore_iterator *iterator = NULL;
    const char *word = next(step);
    struct list list;
    watchcore_bytes key, keys[MANY];
    const watchcore_key_value *kvs[MANY];
    size_t filled;
    (void)watchcore_snapshot_position(snapshot, &revision, &epoch, NULL);
    if (is(word, "get")) {
        key = bytes_of(next(step));
        if (granted(step, watchcore_snapshot_get(snapshot, key.data, key.length, NULL, &kv, fresh(step)))) {
            print_found(step, revision, kv, 0);
        }
        return;
    }
    if (is(word, "get-many")) {
        count = many_keys(step, keys);
        if (granted(step, watchcore_snapshot_get_many(snapshot, keys, count, kvs, fresh(step)))) {
            print_many(step, revision, kvs, count, 0);
        }
        return;
    }
    if (is(word, "epoch")) {
        print(step, "%u", (unsigned)epoch);
        return;
    }
    read_list(step, &list);
    if (is(word, "count")) {
        if (granted(step, watchcore_snapshot_count(snapshot, &list.filter, &count, fresh(step)))) {
            print(step, "%llu: %llu", U(revision), U(count));
        }
    } else if (granted(step, watchcore_iterator_new(snapshot, &list.filter, &iterator, fresh(step)))) {
        print(step, "at %llu", U(revision));
        while (watchcore_iterator_next(iterator, &kv, 1, &filled, NULL) == WATCHCORE_OK && filled == 1) {
            print_object(step, kv, list.full);
        }
        watchcore_iterator_free(iterator);
    }
}

#endif
