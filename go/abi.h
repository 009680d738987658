// This header declares the functions that the Go package calls: each is one cgo call, without
// callbacks and without keeping Go pointers.
//
// A function that can fail returns NULL on success, or an error whose memory the caller releases
// with wc_error_free, so that a successful call has no error handling to pay for.
//
// The most frequent calls pass handles as integers, because cgo checks each pointer argument for Go
// memory.

#ifndef WATCHCORE_GO_ABI_H
#define WATCHCORE_GO_ABI_H

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#ifdef WATCHCORE_SYSTEM
#include <watchcore.h>
#else

// This checks that the module contains the library for this platform. Without the check, the linker
// would report two hundred missing names. __GLIBC__ is defined by the headers above; musl has no such
// name.
#if defined(WATCHCORE_MUSL) && defined(__x86_64__)
#define WC_LIBRARY "internal/musl/libwatchcore_linux_amd64.syso"
#elif defined(WATCHCORE_MUSL) && defined(__aarch64__)
#define WC_LIBRARY "internal/musl/libwatchcore_linux_arm64.syso"
#elif defined(__x86_64__)
#define WC_LIBRARY "internal/static/libwatchcore_linux_amd64.syso"
#elif defined(__aarch64__)
#define WC_LIBRARY "internal/static/libwatchcore_linux_arm64.syso"
#else
#define WC_LIBRARY "internal/static/libwatchcore_of_this_machine.syso"
#endif
#ifndef __linux__
#error "watchcore contains its library for Linux only: set GOOS=linux, or build with -tags watchcore_system, which links the library that pkg-config finds."
#elif defined(WATCHCORE_MUSL) && defined(__GLIBC__)
#error "The tag musl needs a C compiler for musl, and this one is glibc's: set CC=musl-gcc CGO_LDFLAGS=-Wl,--eh-frame-hdr, or build without the tag."
#elif !defined(WATCHCORE_MUSL) && !defined(__GLIBC__)
#error "This C compiler is not glibc's: build with -tags musl for musl (Alpine), or with -tags watchcore_system, which links the library that pkg-config finds."
#elif !__has_include("libwatchcore.h") || !__has_include(WC_LIBRARY)
#error "The library for this system is not in the module watchcore: take a version that has it, run 'make lib' in a checkout ('make go-dist' for another system), or build with -tags watchcore_system, which links the library that pkg-config finds."
#else
#include "libwatchcore.h"
#endif

#endif

static inline watchcore_error *wc_kept(const watchcore_error *error, int32_t code)
{
    watchcore_error *kept = malloc(sizeof *kept);
    if (kept == NULL) {
        abort(); // as Go does
    }
    memcpy(kept, error, sizeof *kept);
    kept->code = code;
    return kept;
}

static inline void wc_error_free(watchcore_error *error)
{
    free(error);
}

// CALL returns the error code of a call that uses &error. The message is not cleared before: it is
// long, and read only after a failure.
#define WC_RETURN(CALL)                                   \
    do {                                                  \
        watchcore_error error;                            \
        error.size = (uint32_t)sizeof error;              \
        error.code = WATCHCORE_OK;                        \
        error.asked = error.oldest = error.current = 0;   \
        error.lost_from = error.lost_to = 0;              \
        error.position = error.epoch = 0;                 \
        error.message[0] = 0;                             \
        int32_t code = (CALL);                            \
        return code == WATCHCORE_OK ? NULL : wc_kept(&error, code); \
    } while (0)

// Describes a code. The call cannot fail: the struct is the right one. Its texts are static.
static inline watchcore_code_info wc_code(int32_t code)
{
    watchcore_code_info info = WATCHCORE_CODE_INFO_INIT;
    (void)watchcore_code_describe(code, &info, NULL);
    return info;
}

// ---- cache ------------------------------------------------------------------

static inline watchcore_error *wc_cache_new(const watchcore_cache_options *options, watchcore_cache **cache)
{
    WC_RETURN(watchcore_cache_new(options, cache, &error));
}

static inline watchcore_error *wc_cache_close(const watchcore_cache *cache)
{
    WC_RETURN(watchcore_cache_close(cache, &error));
}

static inline watchcore_error *wc_feeder_start(const watchcore_cache *cache, const watchcore_etcd_options *options,
                                               watchcore_feeder **feeder)
{
    WC_RETURN(watchcore_feeder_start(cache, options, feeder, &error));
}

static inline watchcore_error *wc_feeder_stop(const watchcore_feeder *feeder)
{
    WC_RETURN(watchcore_feeder_stop(feeder, &error));
}

static inline watchcore_error *wc_feeder_request_resync(const watchcore_feeder *feeder)
{
    WC_RETURN(watchcore_feeder_request_resync(feeder, &error));
}

static inline watchcore_error *wc_feeder_counters(const watchcore_feeder *feeder, watchcore_counters *counters)
{
    WC_RETURN(watchcore_feeder_counters(feeder, counters, &error));
}

static inline watchcore_error *wc_feeder_compact(const watchcore_feeder *feeder, uint64_t revision)
{
    WC_RETURN(watchcore_feeder_compact(feeder, revision, &error));
}

// The position of a cache, by value. All fields are 0 if the handle is poisoned.
typedef struct {
    uint64_t revision, epoch, oldest;
} wc_place;

static inline wc_place wc_where(const watchcore_cache *cache)
{
    wc_place now = { 0, 0, 0 };
    watchcore_cache_position(cache, &now.revision, &now.epoch, &now.oldest, NULL);
    return now;
}

static inline uint32_t wc_ready(const watchcore_cache *cache)
{
    uint32_t ready = 0;
    watchcore_cache_is_ready(cache, &ready, NULL);
    return ready;
}

static inline watchcore_error *wc_status(const watchcore_cache *cache, watchcore_status *status)
{
    WC_RETURN(watchcore_cache_status(cache, status, &error));
}

static inline watchcore_error *wc_stats(const watchcore_cache *cache, watchcore_stats *stats)
{
    WC_RETURN(watchcore_cache_stats(cache, stats, &error));
}

static inline watchcore_error *wc_text(const watchcore_cache *cache, uint32_t which, char *buffer, size_t capacity,
                                       size_t *length)
{
    WC_RETURN(watchcore_cache_text(cache, which, buffer, capacity, length, &error));
}

static inline watchcore_error *wc_metrics(const watchcore_cache **caches, size_t count,
                                          const watchcore_metrics_options *options, watchcore_text **text)
{
    WC_RETURN(watchcore_metrics_text((const watchcore_cache *const *)caches, count, options, text, &error));
}

// ---- writer -----------------------------------------------------------------

static inline watchcore_error *wc_writer(const watchcore_cache *cache, watchcore_writer **writer)
{
    WC_RETURN(watchcore_writer_new(cache, writer, &error));
}

static inline watchcore_error *wc_load(watchcore_writer *writer, uint64_t revision, const watchcore_change *changes,
                                       size_t count)
{
    WC_RETURN(watchcore_writer_load(writer, revision, changes, count, &error));
}

static inline watchcore_error *wc_loading(watchcore_writer *writer, uint64_t revision, watchcore_loading **loading)
{
    WC_RETURN(watchcore_loading_new(writer, revision, loading, &error));
}

static inline watchcore_error *wc_loading_add(watchcore_loading *loading, watchcore_writer *writer,
                                              const watchcore_change *changes, size_t count)
{
    WC_RETURN(watchcore_loading_add(loading, writer, changes, count, &error));
}

static inline watchcore_error *wc_loading_finish(watchcore_loading *loading, watchcore_writer *writer)
{
    WC_RETURN(watchcore_loading_finish(loading, writer, &error));
}

static inline watchcore_error *wc_apply(watchcore_writer *writer, uint64_t revision, const watchcore_change *changes,
                                        size_t count)
{
    WC_RETURN(watchcore_writer_apply(writer, revision, changes, count, &error));
}

// One change, in memory of Go that is valid during the call: `key` and `value` are not NULL, except
// the value of a deletion.
static inline watchcore_error *wc_apply_one(uintptr_t writer, uint64_t revision, uint32_t op, const char *key,
                                            size_t key_length, const char *value, size_t value_length,
                                            uint64_t create_revision, uint64_t mod_revision, uint64_t version,
                                            int64_t lease)
{
    watchcore_change change = WATCHCORE_CHANGE_INIT;
    change.op = op;
    change.key.data = key;
    change.key.length = key_length;
    change.value.data = value;
    change.value.length = value_length;
    change.create_revision = create_revision;
    change.mod_revision = mod_revision;
    change.version = version;
    change.lease = lease;
    WC_RETURN(watchcore_writer_apply((watchcore_writer *)writer, revision, &change, 1, &error));
}

static inline watchcore_error *wc_resync(watchcore_writer *writer, uint64_t revision, const watchcore_change *changes,
                                         size_t count, uint32_t reason, uint64_t *position, uint64_t *epoch)
{
    WC_RETURN(watchcore_writer_resync(writer, revision, changes, count, reason, position, epoch, &error));
}

static inline watchcore_error *wc_progress(watchcore_writer *writer, uint64_t revision)
{
    WC_RETURN(watchcore_writer_progress(writer, revision, &error));
}

static inline watchcore_error *wc_compact(watchcore_writer *writer, uint64_t revision)
{
    WC_RETURN(watchcore_writer_compact(writer, revision, &error));
}

// ---- reads ------------------------------------------------------------------

static inline watchcore_error *wc_answer(const watchcore_cache *cache, const char *key, size_t length,
                                         const watchcore_read_options *read, watchcore_answer *answer)
{
    WC_RETURN(watchcore_cache_get(cache, key, length, read, answer, &error));
}

// The result of a get. `kept` belongs to the caller, who ends it with watchcore_key_value_release;
// it is NULL if the value was copied.
typedef struct {
    uint64_t revision;
    const watchcore_key_value *kept;
    uint64_t found, value_length, create, mod, generation;
    int64_t lease;
} wc_found;

// A value of at most `capacity` bytes is copied to `room`, so that nothing remains to be released;
// without a room it is kept. `words` points to a wc_found.
static inline watchcore_error *wc_get(const watchcore_cache *cache, const char *key, size_t length,
                                      const watchcore_read_options *read, uint64_t *words, char *room,
                                      size_t capacity)
{
    watchcore_answer answer;
    answer.size = (uint32_t)sizeof answer;
    watchcore_error *error = wc_answer(cache, key, length, read, &answer);
    if (error != NULL) {
        return error;
    }
    wc_found *found = (wc_found *)words;
    found->revision = answer.revision;
    found->found = answer.found;
    if (!answer.found) {
        return NULL;
    }
    const watchcore_key_value *kv = answer.kv;
    found->kept = kv;
    found->value_length = kv->value_length;
    found->create = kv->create_revision;
    found->mod = kv->mod_revision;
    found->generation = kv->version;
    found->lease = kv->lease;
    if (room != NULL && kv->value_length <= capacity) {
        memcpy(room, kv->value, kv->value_length);
        watchcore_key_value_release(kv);
        found->kept = NULL;
    }
    return NULL;
}

// Like wc_get for the newest state, without options, so that Go need not prepare them.
static inline watchcore_error *wc_get_newest(uintptr_t cache, const char *key, size_t length, uint64_t *words,
                                             char *room, size_t capacity)
{
    return wc_get((const watchcore_cache *)cache, key, length, NULL, words, room, capacity);
}

// The key-values of many keys at one revision; NULL for an absent key. wc_free with WC_MANY ends it.
typedef struct {
    uint64_t revision, epoch;
    size_t count;
    const watchcore_key_value *kvs[];
} wc_many;

// Room for so many.
static inline wc_many *wc_many_new(size_t count)
{
    wc_many *made = malloc(sizeof *made + count * sizeof *made->kvs);
    if (made == NULL) {
        abort(); // as Go does
    }
    made->revision = made->epoch = 0;
    made->count = count;
    return made;
}

// Keys whose bytes lie one after another, in memory that the caller frees. An array that Go makes would contain pointers
// of Go's.
static inline watchcore_bytes *wc_keys(const char *bytes, const size_t *lengths, size_t count)
{
    watchcore_bytes *keys = malloc((count + 1) * sizeof *keys);
    if (keys == NULL) {
        abort(); // as Go does
    }
    for (size_t i = 0; i < count; i++) {
        keys[i].data = bytes;
        keys[i].length = lengths[i];
        bytes += lengths[i];
    }
    return keys;
}

// Takes over a wc_many after a get of many: it is the caller's after a success, and else freed.
static inline watchcore_error *wc_many_made(wc_many *made, watchcore_error *error, wc_many **many)
{
    if (error != NULL) {
        free(made);
        return error;
    }
    *many = made;
    return NULL;
}

static inline watchcore_error *wc_many_read(const watchcore_cache *cache, const watchcore_bytes *keys,
                                            const watchcore_read_options *read, wc_many *made)
{
    WC_RETURN(watchcore_cache_get_many(cache, keys, made->count, read, made->kvs, &made->revision, &made->epoch, &error));
}

static inline watchcore_error *wc_get_many(const watchcore_cache *cache, const char *bytes, const size_t *lengths,
                                           size_t count, const watchcore_read_options *read, wc_many **many)
{
    wc_many *made = wc_many_new(count);
    watchcore_bytes *keys = wc_keys(bytes, lengths, count);
    watchcore_error *error = wc_many_read(cache, keys, read, made);
    free(keys);
    return wc_many_made(made, error, many);
}

// `token` is NULL before the call; if an error has a token, the caller releases it with
// watchcore_text_free.
static inline watchcore_error *wc_list(const watchcore_cache *cache, const watchcore_range *range,
                                       const watchcore_read_options *read, watchcore_page **page,
                                       watchcore_text **token)
{
    WC_RETURN(watchcore_cache_list(cache, range, read, page, token, &error));
}

// The properties of a page; items and token are the page's memory.
typedef struct {
    const watchcore_key_value *const *items;
    watchcore_page_info info;
} wc_page_content;

// `page` comes from wc_list, so the calls cannot fail.
static inline wc_page_content wc_page(const watchcore_page *page)
{
    wc_page_content content = {watchcore_page_items(page), WATCHCORE_PAGE_INFO_INITIALIZER};
    (void)watchcore_page_describe(page, &content.info, NULL);
    return content;
}

static inline watchcore_error *wc_count(const watchcore_cache *cache, const watchcore_range *range,
                                        const watchcore_read_options *read, uint64_t *count, uint64_t *revision)
{
    WC_RETURN(watchcore_cache_count(cache, range, read, count, revision, NULL, &error));
}

// `batch` has 64 bytes.
static inline watchcore_error *wc_diff(const watchcore_cache *cache, uint64_t from, uint64_t from_epoch, uint64_t to,
                                       uint64_t to_epoch, const watchcore_filter *filter, uint64_t *batch)
{
    WC_RETURN(watchcore_cache_diff(cache, from, from_epoch, to, to_epoch, filter, (watchcore_batch *)(void *)batch,
                                   &error));
}

// The position of a new snapshot cannot be refused.
static inline watchcore_error *wc_snapshot(const watchcore_cache *cache, watchcore_snapshot **snapshot,
                                           uint64_t *revision, uint64_t *epoch)
{
    WC_RETURN(watchcore_snapshot_new(cache, snapshot, &error) == WATCHCORE_OK
                  ? watchcore_snapshot_position(*snapshot, revision, epoch, &error)
                  : error.code);
}

static inline watchcore_error *wc_snapshot_get(const watchcore_snapshot *snapshot, const char *key, size_t length,
                                               const watchcore_key_value **kv)
{
    WC_RETURN(watchcore_snapshot_get(snapshot, key, length, NULL, kv, &error));
}

static inline watchcore_error *wc_many_of(const watchcore_snapshot *snapshot, const watchcore_bytes *keys, wc_many *made)
{
    WC_RETURN(watchcore_snapshot_get_many(snapshot, keys, made->count, made->kvs, &error));
}

static inline watchcore_error *wc_snapshot_get_many(const watchcore_snapshot *snapshot, const char *bytes,
                                                    const size_t *lengths, size_t count, wc_many **many)
{
    wc_many *made = wc_many_new(count);
    watchcore_bytes *keys = wc_keys(bytes, lengths, count);
    watchcore_error *error = wc_many_of(snapshot, keys, made);
    free(keys);
    return wc_many_made(made, error, many);
}

static inline watchcore_error *wc_snapshot_count(const watchcore_snapshot *snapshot, const watchcore_filter *filter,
                                                 uint64_t *count)
{
    WC_RETURN(watchcore_snapshot_count(snapshot, filter, count, &error));
}

static inline watchcore_error *wc_iterator(const watchcore_snapshot *snapshot, const watchcore_filter *filter,
                                           watchcore_iterator **iterator)
{
    WC_RETURN(watchcore_iterator_new(snapshot, filter, iterator, &error));
}

// `items` is an array of pointers, passed as integers so that cgo does not check them.
static inline watchcore_error *wc_iterator_next(watchcore_iterator *iterator, uintptr_t *items, size_t capacity,
                                                size_t *count)
{
    WC_RETURN(watchcore_iterator_next(iterator, (const watchcore_key_value **)(void *)items, capacity, count, &error));
}

// ---- borrowed memory -----------------------------------------------------------

enum { WC_BATCH = 1, WC_PAGE, WC_MANY, WC_WALK };

// For a batch, `what` is its owner, the only field that the release reads. 0 is ignored.
static inline void wc_free(uint32_t kind, uintptr_t what)
{
    switch (kind) {
    case WC_BATCH: {
        watchcore_batch batch = WATCHCORE_BATCH_INIT;
        batch.owner = (void *)what;
        watchcore_batch_release(&batch);
        break;
    }
    case WC_PAGE:
        watchcore_page_free((watchcore_page *)what);
        break;
    case WC_MANY: {
        wc_many *many = (wc_many *)what;
        watchcore_key_values_release(many->kvs, many->count);
        free(many);
        break;
    }
    case WC_WALK:
        watchcore_iterator_free((watchcore_iterator *)what);
        break;
    }
}

// ---- subscriptions ----------------------------------------------------------

static inline watchcore_error *wc_subscribe(const watchcore_cache *cache, const watchcore_subscription_options *options,
                                            watchcore_subscription **subscription)
{
    WC_RETURN(watchcore_subscription_new(cache, options, subscription, &error));
}

// Releases the batch of the previous poll (0: none), then polls into `batch` (64 bytes). A poll
// without events has armed a member of the wake set.
static inline watchcore_error *wc_poll(uintptr_t handle, uintptr_t before, size_t max, uint64_t *batch)
{
    if (before != 0) {
        wc_free(WC_BATCH, before);
    }
    WC_RETURN(watchcore_subscription_poll((watchcore_subscription *)handle, max, (watchcore_batch *)(void *)batch,
                                          &error));
}

// Releases the last batch, returns the position, and frees the subscription, which no other thread
// uses.
static inline void wc_subscription_end(watchcore_subscription *subscription, uintptr_t before, uint64_t *revision,
                                       uint64_t *epoch)
{
    *revision = *epoch = 0;
    wc_free(WC_BATCH, before);
    watchcore_subscription_position(subscription, revision, epoch, NULL);
    watchcore_subscription_free(subscription);
}

static inline watchcore_error *wc_position(const watchcore_subscription *subscription, uint64_t *revision,
                                           uint64_t *epoch)
{
    WC_RETURN(watchcore_subscription_position(subscription, revision, epoch, &error));
}

static inline watchcore_error *wc_lag(const watchcore_subscription *subscription, watchcore_lag *lag)
{
    WC_RETURN(watchcore_subscription_lag(subscription, lag, &error));
}

static inline watchcore_error *wc_subscription_stats(watchcore_subscription *subscription,
                                                     watchcore_subscription_statistics *stats)
{
    WC_RETURN(watchcore_subscription_stats(subscription, stats, &error));
}

// `list` belongs to the caller, who frees it with watchcore_subscription_list_free.
static inline watchcore_error *wc_subscriptions(const watchcore_cache *cache, watchcore_subscription_list **list)
{
    WC_RETURN(watchcore_subscription_list_new(cache, list, &error));
}

// `info` points into memory of the list.
static inline watchcore_error *wc_subscription_info(const watchcore_subscription_list *list, size_t index,
                                                    watchcore_subscription_info *info)
{
    WC_RETURN(watchcore_subscription_list_item(list, index, info, &error));
}

// ---- waiting ----------------------------------------------------------------

static inline watchcore_error *wc_waiter(const watchcore_cache *cache, uint32_t want, uint64_t revision,
                                         uint64_t epoch, watchcore_waiter **waiter)
{
    WC_RETURN(watchcore_waiter_new(cache, want, revision, epoch, waiter, &error));
}

static inline watchcore_error *wc_waiter_try(watchcore_waiter *waiter, uint32_t *done, uint64_t *revision,
                                             uint64_t *epoch)
{
    WC_RETURN(watchcore_waiter_try(waiter, done, revision, epoch, &error));
}

// Makes a wake set, and a descriptor for its notifications, which the caller closes.
static inline int32_t wc_set_opened(watchcore_wakeset **set, int32_t *fd, watchcore_error *error)
{
    int32_t its = -1, code = watchcore_wakeset_new(set, error);
    if (code != WATCHCORE_OK) {
        return code;
    }
    code = watchcore_wakeset_fd(*set, &its, error);
    if (code == WATCHCORE_OK) {
        *fd = fcntl(its, F_DUPFD_CLOEXEC, 0);
        if (*fd < 0) {
            strcpy(error->message, "a wake set needs two descriptors. Close others, or raise the limit of open files.");
            code = WATCHCORE_RESOURCE_EXHAUSTED;
        }
    }
    if (code != WATCHCORE_OK) {
        watchcore_wakeset_free(*set);
        *set = NULL;
    }
    return code;
}

static inline watchcore_error *wc_set(watchcore_wakeset **set, int32_t *fd)
{
    WC_RETURN(wc_set_opened(set, fd, &error));
}

static inline watchcore_error *wc_set_add_subscription(const watchcore_wakeset *set, watchcore_subscription *member,
                                                       uint64_t tag)
{
    WC_RETURN(watchcore_wakeset_add_subscription(set, member, tag, &error));
}

static inline watchcore_error *wc_set_add_waiter(const watchcore_wakeset *set, watchcore_waiter *member, uint64_t tag)
{
    WC_RETURN(watchcore_wakeset_add_waiter(set, member, tag, &error));
}

// Takes the tags that are ready, or arms the set if there are none.
static inline watchcore_error *wc_set_take(const watchcore_wakeset *set, uint64_t *tags, size_t capacity, size_t *count)
{
    WC_RETURN(watchcore_wakeset_take(set, tags, capacity, count, &error));
}

// Waits until a tag is ready, or the given time has passed.
static inline watchcore_error *wc_set_wait(const watchcore_wakeset *set, int64_t milliseconds)
{
    WC_RETURN(watchcore_wakeset_wait(set, milliseconds, &error) == WATCHCORE_TIMEOUT ? WATCHCORE_OK : error.code);
}

// ---- the process ------------------------------------------------------------

static inline watchcore_error *wc_shutdown(int64_t milliseconds)
{
    WC_RETURN(watchcore_shutdown(milliseconds, &error));
}

#endif
