// watchcore: the Kubernetes watch cache as a library. The C interface, and its manual.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
// Generated from watchcore-capi; do not edit: `make header` rewrites it.
//
// A cache holds the newest state of a range of keys, and a log of the changes that led there. One writer (the
// program's own, or a feeder that follows etcd) changes it; any number of readers read the state at a revision,
// and any number of subscriptions follow the log, each at its own pace, without delaying the writer or each other.
//
// Build      cc program.c $(pkg-config --cflags --libs watchcore)
//            With the archive, where both are installed: pkg-config --cflags --libs watchcore-static. Wholly static:
//            cc -static program.c $(pkg-config --static --cflags --libs watchcore). Neither needs a libgcc. Without
//            pkg-config: cc program.c libwatchcore.a -static-libgcc -lutil -lrt -lpthread -lm -ldl
// For        64-bit Linux. A release's library needs glibc 2.30 or newer.
//
// Contents
//
//   1  Bytes
//   2  Errors
//        error_name  code_describe
//   3  The library
//        version  abi_version  shutdown  name
//   4  Log messages
//        log_set
//   5  Caches
//        cache_new  cache_free  cache_close  cache_position  cache_is_ready  cache_wait_ready
//        cache_wait_until  cache_consistent_revision
//   6  Key-values
//        key_value_release  key_values_release
//   7  Writing
//        writer_new  writer_load  writer_apply  writer_resync  writer_progress  writer_compact
//        writer_free  loading_new  loading_add  loading_finish  loading_free
//   8  Following etcd
//        feeder_start  feeder_stop  feeder_free  feeder_request_resync  feeder_compact  feeder_counters
//   9  Ranges and filters
//  10  Events and batches
//        batch_release  batch_event  bytes_from  bytes_from_string  event_key  event_prev_value
//        event_value
//  11  Reads
//        cache_get  cache_get_many  cache_list  text_get  text_free  cache_count  cache_diff
//        page_describe  page_item  page_items  page_free
//  12  Snapshots
//        snapshot_new  snapshot_position  snapshot_get  snapshot_get_many  snapshot_count  snapshot_free
//        iterator_new  iterator_next  iterator_free
//  13  Subscriptions
//        subscription_new  subscription_poll  subscription_wait  subscription_close
//        subscription_position  subscription_lag  subscription_stats  subscription_free
//        subscription_list_new  subscription_list_count  subscription_list_item  subscription_list_free
//  14  Event loops
//        waiter_new  waiter_try  waiter_free  wakeset_new  wakeset_add_subscription  wakeset_add_waiter
//        wakeset_remove_subscription  wakeset_remove_waiter  wakeset_next  wakeset_take  wakeset_fd
//        wakeset_wait  wakeset_free
//  15  Status and statistics
//        cache_status  cache_stats  cache_text  metrics_text
//  16  Building upon it
//
// A whole program: it writes one key and follows the cache until the key's event arrives.
//
//     #include <stdio.h>
//     #include <watchcore.h>
//
//     int main(void)
//     {
//         watchcore_error error = WATCHCORE_ERROR_INIT;
//         watchcore_batch batch = WATCHCORE_BATCH_INIT;
//         watchcore_change change = WATCHCORE_CHANGE_INIT;
//         watchcore_subscription *subscription = NULL;
//         watchcore_writer *writer = NULL;
//         watchcore_cache *cache = NULL;
//         size_t i;
//         int seen = 0;
//         change.op = WATCHCORE_CHANGE_PUT;
//         change.key = watchcore_bytes_from_string("/greeting");
//         change.value = watchcore_bytes_from_string("hello");
//         if (watchcore_cache_new(NULL, &cache, &error) == WATCHCORE_OK &&
//             watchcore_subscription_new(cache, NULL, &subscription, &error) == WATCHCORE_OK &&
//             watchcore_writer_new(cache, &writer, &error) == WATCHCORE_OK &&
//             watchcore_writer_apply(writer, 1, &change, 1, &error) == WATCHCORE_OK) {
//             while (!seen && watchcore_subscription_wait(subscription, 10000, &error) == WATCHCORE_OK &&
//                    watchcore_subscription_poll(subscription, 0, &batch, &error) == WATCHCORE_OK) {
//                 for (i = 0; i < batch.count; i++) {
//                     const watchcore_event *event = watchcore_batch_event(&batch, i);
//                     watchcore_bytes key = watchcore_event_key(event), value = watchcore_event_value(event);
//                     if (event->type == WATCHCORE_EVENT_ADDED) {
//                         printf("%.*s = %.*s\n", (int)key.length, (const char *)key.data, (int)value.length,
//                                (const char *)value.data);
//                         seen = 1;
//                     }
//                 }
//                 watchcore_batch_release(&batch);
//             }
//         }
//         if (!seen) {
//             fprintf(stderr, "%s: %s\n", watchcore_error_name(error.code), error.message);
//         }
//         watchcore_subscription_free(subscription);
//         watchcore_writer_free(writer);
//         watchcore_cache_free(cache);
//         return watchcore_shutdown(5000, NULL) == WATCHCORE_OK ? 0 : 1;
//     }
//
// Conventions
//
// Language   C99 or newer, or C++11 or newer.
// Codes      Functions that can fail return an int32_t: WATCHCORE_OK (0) or one of the codes of section 2, and
//            take a last `watchcore_error *error`: NULL, or the caller's own memory, prepared with
//            WATCHCORE_ERROR_INIT. It is written only if the call fails. No text is kept in a handle or
//            in a thread. Any function may also answer PANIC, INTERNAL and, in a forked child, UNSUPPORTED:
//            its comment lists the others. Where a comment lists NOT_READY and the source has refused the cache's first
//            listing, the source's own code is answered instead: UNAUTHENTICATED, PERMISSION_DENIED, UNAVAILABLE,
//            RESOURCE_EXHAUSTED, INVALID_ARGUMENT, or CLOSED if its feeder was stopped.
// Memory     If memory is exhausted, the process is aborted (abort(3)); no function reports it. A cache's options bound
//            its memory; watchcore_stats shows its size.
// Pointers   A pointer is NULL, if the comment allows it (else INVALID_ARGUMENT), or valid: readable, for outputs
//            writable, for handles not freed.
// Outputs    Out-parameters come last before `error`, must not be NULL unless the comment says so, and are
//            written only on success (except for the token of watchcore_cache_list).
// Bytes      A pointer and a length, never NUL-terminated; NULL is "absent", a pointer with length 0 is
//            "empty". Every byte string given to a function is copied (or used) before it returns.
// Structs    A struct of the caller starts with `uint32_t size`: use its _INIT macro, as an initialiser or in an
//            assignment. (For a variable of static storage ISO C wants constants: use _INITIALIZER there.) Structs
//            grow at the end: an older caller's smaller size is served, a larger size with anything but zero bytes
//            after the known fields is INVALID_ARGUMENT. In options 0 (or NULL) means the default.
// Handles    Opaque; made by a function ending in _new or _start (a page and a text by watchcore_cache_list), ended
//            by _free, which accepts NULL. A handle must not be used after _free. The order of freeing is free: a
//            subscription, a snapshot, a page, a list or a batch may outlive its cache.
// Threads    A function with a `const` handle may be called from many threads at once. One with a handle
//            that is not const: one thread at a time (any thread); a second one at the same time is detected
//            and answers BUSY. _free while another thread is inside such a function is allowed: the handle
//            is closed and the thread inside frees it on leaving. A waiting function of a const handle
//            (watchcore_cache_wait_ready and the like) also ends with CLOSED when the handle is freed.
// Blocking   A function blocks only where its comment says so. Those that wait for news take a `timeout_ms`: -1
//            waits for ever, 0 does not wait. Each has an alternative that never blocks: section 14.
// Cancelling A thread may be cancelled (pthread_cancel) while it is inside a function. The function defers the
//            cancellation and ends normally; the thread is cancelled at its next cancellation point after the call. A
//            waiting thread leaves the call when the wait ends: by its timeout, or when the object is closed
//            (watchcore_subscription_close, watchcore_cache_close; for a wake set, that of a member). Cancellation must be
//            deferred, which is the default: with PTHREAD_CANCEL_ASYNCHRONOUS a thread may call no function of the
//            library. Do not cancel the library's own threads.
// Signals    No function may be called from a signal handler. A signal does not interrupt a wait.
// Callbacks  None, except for the log function: a program polls on its own threads.
// Time       Milliseconds. Clock times are milliseconds since 1970 (UTC).
// Panics     A bug inside the library is caught and answered as PANIC; the handle is poisoned (it answers
//            PANIC from then on and can only be freed), the process lives.
// Fork       In a forked child every call with a handle answers UNSUPPORTED and every _free does nothing.
// Versions   Each item says since which version of the library it exists. Nothing is removed later: functions,
//            constants and members are only added.

#ifndef WATCHCORE_H
#define WATCHCORE_H

#include <stddef.h>
#include <stdint.h>

// The version of this header; watchcore_version() is the library's.
#define WATCHCORE_VERSION "0.1.0"

// The bit of an event type in watchcore_subscription_options.types.
#define WATCHCORE_MASK(type) ((uint32_t)1 << (type))

// Makes a value from an initialiser, for the _INIT macros.
#ifdef __cplusplus
#define WATCHCORE_LITERAL(type) type
#else
#define WATCHCORE_LITERAL(type) (type)
#endif

#ifdef __cplusplus
extern "C" {
#endif

// ===========================================================================================================
// 1. Bytes
//
// Keys and values are bytes, not strings: a pointer and a length. Texts (names, selectors) are UTF-8, given the
// same way.
// ===========================================================================================================

// A pointer and a length. NULL is "absent"; a pointer with length 0 is "empty". Since 0.1.
typedef struct watchcore_bytes {
    // The first byte, or NULL.
    const void *data;
    // The number of bytes.
    size_t length;
} watchcore_bytes;
#define WATCHCORE_BYTES_INITIALIZER \
    { NULL, 0 }
#define WATCHCORE_BYTES_INIT WATCHCORE_LITERAL(watchcore_bytes) WATCHCORE_BYTES_INITIALIZER

// ===========================================================================================================
// 2. Errors
//
// A call that fails returns a code, which is for the program, and fills the caller's watchcore_error, which is
// for the program (the numbers) and for people (the message: what was asked, what is true, what to do next). Codes by
// reaction:
//
//     correct the call              INVALID_ARGUMENT, OUT_OF_ORDER, UNSUPPORTED
//     call again, later             NOT_READY, TIMEOUT, BUSY, FUTURE_REVISION, UNAVAILABLE, RESOURCE_EXHAUSTED
//     read the state anew           COMPACTED, LAGGED, RESYNCED
//     stop                          CLOSED
//     ask an administrator          UNAUTHENTICATED, PERMISSION_DENIED
//     report a bug                  PANIC, INTERNAL
// ===========================================================================================================

// Success. Since 0.1.
#define WATCHCORE_OK 0
// NULL, a bad size or value, a key outside the prefix, a wrong handle. Correct the call. Since 0.1.
#define WATCHCORE_INVALID_ARGUMENT 1
// Reserved: an absent key is no error. Since 0.1.
#define WATCHCORE_NOT_FOUND 2
// There is no listing yet. Try again, or wait (watchcore_cache_wait_ready). Since 0.1.
#define WATCHCORE_NOT_READY 3
// The deadline passed; nothing is lost. Try again. Since 0.1.
#define WATCHCORE_TIMEOUT 4
// The cache, the subscription or the feeder was closed. Since 0.1.
#define WATCHCORE_CLOSED 5
// The handle is in use by another thread, or the cache has a writer already. Try again later. Since 0.1.
#define WATCHCORE_BUSY 6
// This build, or a forked child, cannot do it. Since 0.1.
#define WATCHCORE_UNSUPPORTED 7
// A revision that does not rise, or a load at the wrong time. Since 0.1.
#define WATCHCORE_OUT_OF_ORDER 8
// The revision is older than the window. Start from the state. Since 0.1.
#define WATCHCORE_COMPACTED 10
// Events were lost to this reader: `lost_from` to `lost_to`. Start from the state. Since 0.1.
#define WATCHCORE_LAGGED 11
// The revision did not come in time. Try again. Since 0.1.
#define WATCHCORE_FUTURE_REVISION 12
// The history was replaced: the subscription asked to stop then, or the wait was for a revision of the previous
// history. Start from the state. Since 0.1.
#define WATCHCORE_RESYNCED 13
// etcd refused the credentials. Since 0.1.
#define WATCHCORE_UNAUTHENTICATED 20
// etcd denied access to the range. Since 0.1.
#define WATCHCORE_PERMISSION_DENIED 21
// etcd is out of reach. Try again. Since 0.1.
#define WATCHCORE_UNAVAILABLE 22
// etcd, or a limit, refused more. Try again later. Since 0.1.
#define WATCHCORE_RESOURCE_EXHAUSTED 23
// A bug: a panic was caught, the handle is poisoned, the process lives. Please report it. Since 0.1.
#define WATCHCORE_PANIC 90
// A bug: an impossible state. Please report it. Since 0.1.
#define WATCHCORE_INTERNAL 91
// The number of bytes of `watchcore_error.message`, its NUL included. Since 0.1.
#define WATCHCORE_MESSAGE_BYTES 512

// Why a call failed. The struct is the caller's memory; it is written only by a call that fails. Numbers that do not
// apply are 0. Since 0.1.
typedef struct watchcore_error {
    // sizeof(watchcore_error), set by WATCHCORE_ERROR_INIT.
    uint32_t size;
    // The code that was returned.
    int32_t code;
    // The revision that was asked for.
    uint64_t asked;
    // The oldest revision of the window: a start after `oldest - 1` is possible.
    uint64_t oldest;
    // The cache's revision.
    uint64_t current;
    // LAGGED: the first revision of which an event was lost.
    uint64_t lost_from;
    // LAGGED: the last revision of which an event was lost.
    uint64_t lost_to;
    // The revision up to which the subscription had everything.
    uint64_t position;
    // A sentence each: what was asked, what is true, what to do next. NUL-terminated UTF-8, cut if too long.
    char message[512];
    // The epoch of `position`.
    uint64_t epoch;
} watchcore_error;
#define WATCHCORE_ERROR_INITIALIZER \
    { (uint32_t)sizeof(watchcore_error), 0, 0, 0, 0, 0, 0, 0, { 0 }, 0 }
#define WATCHCORE_ERROR_INIT WATCHCORE_LITERAL(watchcore_error) WATCHCORE_ERROR_INITIALIZER

// The name of a code, such as "COMPACTED"; "UNKNOWN" for any other number. NUL-terminated, static, never
// freed. Any thread; never blocks. Since 0.1.
const char *watchcore_error_name(int32_t code);

// The properties of a code. Since 0.1.
typedef struct watchcore_code_info {
    // sizeof(watchcore_code_info).
    uint32_t size;
    // The HTTP status that an API server would answer.
    uint32_t http_status;
    // 1: the same call may succeed later without any other step.
    uint32_t retryable;
    // 1: the handle that answered the code is of no further use, whatever handle that was. 0 says no more than that: a
    // subscription may have ended with another code, see watchcore_subscription_poll.
    uint32_t fatal;
    // How long an API server would tell a client to wait before the same call (Retry-After, which is in seconds); 0:
    // it would not say, because waiting does not help.
    uint64_t retry_after_ms;
    // The name, as watchcore_error_name gives it.
    const char *name;
    // The reason that Kubernetes gives with the HTTP status, such as "Expired"; empty if it has none.
    const char *reason;
    // One sentence about the code.
    const char *sentence;
} watchcore_code_info;
#define WATCHCORE_CODE_INFO_INITIALIZER \
    { (uint32_t)sizeof(watchcore_code_info), 0, 0, 0, 0, NULL, NULL, NULL }
#define WATCHCORE_CODE_INFO_INIT WATCHCORE_LITERAL(watchcore_code_info) WATCHCORE_CODE_INFO_INITIALIZER

// The properties of a code, also of WATCHCORE_OK. A number that is no code has the name "UNKNOWN", the HTTP
// status 500 and the reason "InternalError", and is neither retryable nor fatal. `info`: the caller's struct;
// its texts are NUL-terminated, static, never freed. Never blocks, O(1). Any thread, many at once. Codes:
// INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_code_describe(int32_t code,
                                watchcore_code_info *info,
                                watchcore_error *error);

// The largest revision. A read, a wait or a subscription at a larger one gets FUTURE_REVISION at once; a writer that
// is given a larger one gets INVALID_ARGUMENT. Since 0.1.
#define WATCHCORE_REVISION_MAX 4503599627370495

// ===========================================================================================================
// 3. The library
//
// The library needs no initialisation. Its threads are started with the first cache: one that wakes consumers, one
// that frees memory, and one for each feeder, all with all signals blocked. A program need not end them before it
// exits.
// ===========================================================================================================

// The library's version, such as "1.2.3". NUL-terminated, static, never freed. Any thread; never blocks. Since 0.1.
const char *watchcore_version(void);

// The number of the binary interface: the one in the shared library's soname. It changes only when a program
// compiled against an older header would break. Any thread; never blocks. Since 0.1.
uint32_t watchcore_abi_version(void);

// Ends the library's threads, and frees what the library holds. A program that just exits needs no such
// call: it is for tools that look for leftovers, such as a leak checker, or a host of plug-ins.
//
// Free every handle that keeps a cache before: caches, writers, loadings, feeders, subscriptions, waiters,
// snapshots, pages, iterators. While there is one, the answer is BUSY at once, and the message says how many
// of which kind. Batches, key-values, texts, lists and wake sets may stay: they remain valid until they are
// released. After OK, no thread of the library is left. On an error everything is as it was. The function
// may be called again, and then has nothing to do; also from an atexit handler; and a cache that is made
// afterwards starts the threads again. Valgrind then finds nothing, reachable or not, once the threads that
// called the library have ended, except for the few blocks that watchcore.supp names (which `make install`
// installs).
//
// Blocks until freed memory is returned and the threads have ended, up to `timeout_ms` (-1: for ever, 0: not
// at all). Any thread, but not from inside the log function. Codes: INVALID_ARGUMENT, BUSY (also if another
// thread is inside this function, and inside the log function), TIMEOUT (the log function has not returned,
// or a feeder still looks up a name: call it again). Since 0.1.
int32_t watchcore_shutdown(int64_t timeout_ms, watchcore_error *error);

// Names of event types: WATCHCORE_EVENT_... Since 0.1.
#define WATCHCORE_NAME_EVENT_TYPE 1
// Names of a cache's states: WATCHCORE_STATE_... Since 0.1.
#define WATCHCORE_NAME_STATE 2
// Names of a subscription's states: WATCHCORE_SUBSCRIPTION_STATE_... Since 0.1.
#define WATCHCORE_NAME_SUBSCRIPTION_STATE 3
// Names of the reasons of a resync: WATCHCORE_RESYNC_... Since 0.1.
#define WATCHCORE_NAME_RESYNC_REASON 4
// Names of a subscription's read paths: WATCHCORE_READ_PATH_... Since 0.1.
#define WATCHCORE_NAME_READ_PATH 5
// Names of the levels of log messages: WATCHCORE_LOG_... Since 0.1.
#define WATCHCORE_NAME_LOG_LEVEL 6

// The name of a number that the library returns: the name of its constant without the common prefix. `of`:
// WATCHCORE_NAME_...; for example watchcore_name(WATCHCORE_NAME_EVENT_TYPE, WATCHCORE_EVENT_ADDED) is
// "ADDED". "UNKNOWN" for any other number. For a code use watchcore_error_name. NUL-terminated, static,
// never freed. Any thread; never blocks. Since 0.1.
const char *watchcore_name(uint32_t of, uint32_t number);

// ===========================================================================================================
// 4. Log messages
//
// Without a log function the library writes nothing, anywhere. The exception is a panic inside the library, with or
// without a log function: Rust's runtime writes it to standard error.
// ===========================================================================================================

// No message at all. Since 0.1.
#define WATCHCORE_LOG_OFF 0
// A failure. Since 0.1.
#define WATCHCORE_LOG_ERROR 1
// A problem that needs attention. Since 0.1.
#define WATCHCORE_LOG_WARN 2
// Events that a person wants to know of. Since 0.1.
#define WATCHCORE_LOG_INFO 3
// Single steps. Since 0.1.
#define WATCHCORE_LOG_DEBUG 4
// Everything. Since 0.1.
#define WATCHCORE_LOG_TRACE 5

// Receives a message: `length` bytes of UTF-8, not NUL-terminated, valid during the call. It is called on any thread
// of the library or of the caller, on several at once; it must not call the library and must return soon. It must
// return normally: an exception (in C++), longjmp or pthread_exit out of it ends the process. A panic (in Rust) is
// caught by the library. The thread that it runs on is not cancelled meanwhile. Since 0.1.
typedef void (*watchcore_log_function)(void *context, uint32_t level, const char *message, size_t length);

// Sets the process's log function, for messages up to `level` (WATCHCORE_LOG_...); NULL or OFF removes it.
// When this returns, the previous function is not called any more: its `context` may be freed. Blocks while
// a call of the previous function is running. Any thread, many at once.
// Codes: INVALID_ARGUMENT, BUSY (called from inside the log function), UNSUPPORTED (the process collects the
// library's messages by Rust's `tracing` already). Since 0.1.
int32_t watchcore_log_set(watchcore_log_function function,
                          void *context,
                          uint32_t level,
                          watchcore_error *error);

// ===========================================================================================================
// 5. Caches
//
// A cache declares once, when it is made, which keys it holds and what must be found quickly in it: the range of
// keys, the length of its log (the window within which a reader may be behind), attributes of values that
// selectors name, and indexes for subscriptions that each select few of many keys.
//
// A cache is embedded (the program writes into it, section 7) or fed (a feeder writes into it, section
// 8). A revision is a number that rises with each change; in a fed cache it is etcd's. An epoch
// identifies a history: it changes only when the state is replaced by one that did not follow from it, such as a
// restored backup. A position is both together; save both.
// ===========================================================================================================

// An attribute is a segment of the key. Since 0.1.
#define WATCHCORE_ATTRIBUTE_KEY_SEGMENT 1
// An attribute is a scalar of the value, a JSON document or of Kubernetes' protobuf storage form. Since 0.1.
#define WATCHCORE_ATTRIBUTE_JSON 2

// A declared attribute of key-values, for field selectors and indexes. It is extracted once, when a change is
// written. A value without the attribute has the empty string. Since 0.1.
typedef struct watchcore_attribute {
    // sizeof(watchcore_attribute).
    uint32_t size;
    // WATCHCORE_ATTRIBUTE_...
    uint32_t kind;
    // The name that selectors use (UTF-8): not empty, each once.
    struct watchcore_bytes name;
    // JSON: an RFC 6901 pointer (UTF-8), such as "/spec/nodeName". A string counts as it is, a number or a boolean as
    // its JSON text; arrays, objects and null count as absent. KEY_SEGMENT: absent.
    struct watchcore_bytes pointer;
    // KEY_SEGMENT: the number of the segment, split at '/', not counting a leading '/': in "/registry/pods/ns/x",
    // segment 2 is "ns". JSON: 0.
    uint32_t depth;
    // 0.
    uint32_t reserved;
    // JSON: the field numbers that lead to the attribute in a value of Kubernetes' protobuf storage form: for a pod's
    // spec.nodeName 2, 10. NULL: only "/metadata/name" and "/metadata/namespace" are known without.
    const uint32_t *protobuf_path;
    // The number of field numbers: 1 to 100; 0 if `protobuf_path` is NULL.
    size_t protobuf_path_length;
} watchcore_attribute;
#define WATCHCORE_ATTRIBUTE_INITIALIZER \
    { (uint32_t)sizeof(watchcore_attribute), 0, { NULL, 0 }, { NULL, 0 }, 0, 0, NULL, 0 }
#define WATCHCORE_ATTRIBUTE_INIT WATCHCORE_LITERAL(watchcore_attribute) WATCHCORE_ATTRIBUTE_INITIALIZER

// An index by the exact key, for subscriptions to single keys. Since 0.1.
#define WATCHCORE_INDEX_KEY 1
// An index by the first `depth` segments of the key. Since 0.1.
#define WATCHCORE_INDEX_PREFIX 2
// An index by the value of the declared attribute `name`: for field selectors `name=value`. Since 0.1.
#define WATCHCORE_INDEX_FIELD 3
// An index by the value of the label `name`: for label selectors `name=value`. Since 0.1.
#define WATCHCORE_INDEX_LABEL 4

// A declared index: a subscription whose filter fits it reads only the events of its own bucket. The index costs the
// writer one lookup per event, and 16 bytes (FIELD and LABEL 32) in each slot of the log. Since 0.1.
typedef struct watchcore_index {
    // sizeof(watchcore_index).
    uint32_t size;
    // WATCHCORE_INDEX_...
    uint32_t kind;
    // FIELD, LABEL: the name of the attribute or of the label (UTF-8). Else absent.
    struct watchcore_bytes name;
    // PREFIX: the number of segments, at least 1, split as WATCHCORE_ATTRIBUTE_KEY_SEGMENT says: at depth 3
    // "/registry/pods/ns/a" is in the bucket "/registry/pods/ns/". Else 0.
    uint32_t depth;
    // 0.
    uint32_t reserved;
} watchcore_index;
#define WATCHCORE_INDEX_INITIALIZER \
    { (uint32_t)sizeof(watchcore_index), 0, { NULL, 0 }, 0, 0 }
#define WATCHCORE_INDEX_INIT WATCHCORE_LITERAL(watchcore_index) WATCHCORE_INDEX_INITIALIZER

// A cache: the log and the store of one key range. Made by watchcore_cache_new. Since 0.1.
typedef struct watchcore_cache watchcore_cache;

// The options of a cache. Since 0.1.
typedef struct watchcore_cache_options {
    // sizeof(watchcore_cache_options).
    uint32_t size;
    // 1: the cache is not ready before watchcore_writer_load or watchcore_loading_finish. For a program that lists
    // first.
    uint32_t expect_load;
    // The key range: keys that start with these bytes. Absent or empty: every key.
    struct watchcore_bytes prefix;
    // A name for messages and statistics (UTF-8). Absent: the prefix.
    struct watchcore_bytes name;
    // The log's maximum length in events. 0: 65536.
    uint64_t capacity;
    // The log's maximum length in bytes. 0: 256 MiB.
    uint64_t capacity_bytes;
    // The longest key that is accepted. 0: 64 KiB.
    uint64_t max_key_bytes;
    // The longest value that is accepted. 0: 16 MiB.
    uint64_t max_value_bytes;
    // The attributes that field selectors and indexes name, at most 64. NULL: none. All elements have the same
    // `size`; the array steps by it.
    const struct watchcore_attribute *fields;
    // The number of elements of `fields`.
    size_t field_count;
    // The source of a value's labels, for label selectors and indexes: the members of the JSON object at this RFC 6901
    // pointer (UTF-8), for Kubernetes' objects "/metadata/labels" (in their protobuf storage form always
    // metadata.labels). Absent: values have no labels, and a label selector is INVALID_ARGUMENT.
    struct watchcore_bytes labels_from;
    // The indexes, at most 8. NULL: none. All elements have the same `size`; the array steps by it.
    const struct watchcore_index *indexes;
    // The number of elements of `indexes`.
    size_t index_count;
    // The most buckets of all indexes together; subscriptions beyond them scan. 0: 65536.
    uint64_t max_buckets;
    // With `keep_ms`: the minimum number of events in the log, however old they are. At most `capacity`.
    uint64_t keep_events;
    // The log is sized by age: older events leave as long as `keep_events` stay; younger events stay as long as
    // `capacity` and `capacity_bytes` allow. 0: only those two limits apply.
    int64_t keep_ms;
} watchcore_cache_options;
#define WATCHCORE_CACHE_OPTIONS_INITIALIZER \
    { (uint32_t)sizeof(watchcore_cache_options), 0, { NULL, 0 }, { NULL, 0 }, 0, 0, 0, 0, NULL, 0, \
      { NULL, 0 }, NULL, 0, 0, 0, 0 }
#define WATCHCORE_CACHE_OPTIONS_INIT WATCHCORE_LITERAL(watchcore_cache_options) WATCHCORE_CACHE_OPTIONS_INITIALIZER

// Makes an empty cache. Without `expect_load` it is ready at once, at revision 0 (a feeder makes it wait for
// its first listing).
// `options`: NULL for the defaults. `*cache`: the caller's, ended by watchcore_cache_free. Never blocks. Any
// thread. Codes: INVALID_ARGUMENT, UNSUPPORTED (this build reads no JSON), RESOURCE_EXHAUSTED (the system
// starts no thread: the first cache of a process needs two. The cache is not made; try again). Since 0.1.
int32_t watchcore_cache_new(const watchcore_cache_options *options,
                            watchcore_cache **cache,
                            watchcore_error *error);

// Closes the cache and frees the handle; NULL does nothing. Subscriptions hand out what is left, then answer
// CLOSED; snapshots, pages, key-values and batches stay valid until they are freed themselves; calls that
// wait end with CLOSED. No other call on this handle may begin after this one begins, but calls that already
// wait are allowed. Never blocks. Any thread. Since 0.1.
void watchcore_cache_free(watchcore_cache *cache);

// Closes the cache without freeing the handle: its content no longer changes, and calls that wait end with
// CLOSED. Idempotent. Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_cache_close(const watchcore_cache *cache, watchcore_error *error);

// The cache's position and window, without the rest of watchcore_cache_status: `*revision` and `*epoch` are
// its position, `*oldest` the oldest revision of its window (a start after `oldest - 1` is possible). Each
// may be NULL. Never blocks, O(1). Any thread, many at once. Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_cache_position(const watchcore_cache *cache,
                                 uint64_t *revision,
                                 uint64_t *epoch,
                                 uint64_t *oldest,
                                 watchcore_error *error);

// Whether the first listing is there and the cache open, so that reads are answered: `*ready` is 1 or 0. It
// stays 1 while the source is out of reach, which only watchcore_cache_status shows.
// Never blocks, O(1). Any thread, many at once. Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_cache_is_ready(const watchcore_cache *cache,
                                 uint32_t *ready,
                                 watchcore_error *error);

// Waits until the first listing is published.
// Blocks up to `timeout_ms` (-1: for ever, 0: not at all). Any thread, many at once; ended by
// watchcore_cache_close and watchcore_cache_free. The form that never blocks: watchcore_waiter_new with
// WATCHCORE_WANT_READY. Codes: INVALID_ARGUMENT, NOT_READY, TIMEOUT, CLOSED. Since 0.1.
int32_t watchcore_cache_wait_ready(const watchcore_cache *cache,
                                   int64_t timeout_ms,
                                   watchcore_error *error);

// Waits until the cache has reached a revision, for example to read your own writes.
// `*reached`, `*epoch`: the cache's position then; each may be NULL.
// Blocks up to `timeout_ms` (-1: for ever, 0: not at all). Any thread, many at once; ended by
// watchcore_cache_close and watchcore_cache_free. The form that never blocks: watchcore_waiter_new with
// WATCHCORE_WANT_REVISION. Codes: INVALID_ARGUMENT, NOT_READY, FUTURE_REVISION (not in
// this time), RESYNCED, CLOSED. Since 0.1.
int32_t watchcore_cache_wait_until(const watchcore_cache *cache,
                                   uint64_t revision,
                                   int64_t timeout_ms,
                                   uint64_t *reached,
                                   uint64_t *epoch,
                                   watchcore_error *error);

// The revision that the source has now, by one linearizable read (shared by all concurrent callers); in an
// embedded cache, the cache's own. Wait for it with watchcore_cache_wait_until, or read with
// WATCHCORE_READ_AT_LEAST. If a proxy drops etcd's progress notifications, it is the cache's position, once
// the state there is proven to equal etcd's.
// Blocks up to `timeout_ms` (-1: for ever, 0: not at all). Any thread, many at once; ended by
// watchcore_cache_close and watchcore_cache_free. The form that never blocks: watchcore_waiter_new with
// WATCHCORE_WANT_CONSISTENT. Codes: INVALID_ARGUMENT, NOT_READY, TIMEOUT, CLOSED. Since 0.1.
int32_t watchcore_cache_consistent_revision(const watchcore_cache *cache,
                                            int64_t timeout_ms,
                                            uint64_t *revision,
                                            watchcore_error *error);

// ===========================================================================================================
// 6. Key-values
//
// The key-values that the cache stores: events, pages and snapshots point to the same memory.
// ===========================================================================================================

// A stored key-value, which is immutable. Events, pages and snapshots use the same struct. Since 0.1.
typedef struct watchcore_key_value {
    // The key.
    const uint8_t *key;
    // The value; NULL if there is none (a deletion), not NULL with length 0 if it is empty.
    const uint8_t *value;
    // The key's length in bytes.
    uint32_t key_length;
    // The value's length in bytes.
    uint32_t value_length;
    // The revision at which the key was created. In a deletion, this and the next three members are the last value's.
    uint64_t create_revision;
    // The revision of the last change.
    uint64_t mod_revision;
    // 1 + the number of changes since it was created.
    uint64_t version;
    // The lease, 0 for none.
    int64_t lease;
} watchcore_key_value;

// Releases a key-value that came from watchcore_cache_get, or from a get of many; NULL does nothing. Not for the
// key-values of an event, a page or a snapshot. Never blocks. Any thread, even after the cache was freed. Since 0.1.
void watchcore_key_value_release(const watchcore_key_value *kv);

// Releases many key-values at once: those of watchcore_cache_get_many or watchcore_snapshot_get_many. NULLs
// among them are skipped. `kvs`, `count`: the array; NULL with 0 does nothing. Never blocks. Any thread, even
// after the cache was freed. Since 0.1.
void watchcore_key_values_release(const watchcore_key_value *const *kvs,
                                  size_t count);

// ===========================================================================================================
// 7. Writing
//
// A writer changes an embedded cache; there is one at a time. Each call of watchcore_writer_apply is one revision:
// readers see all of it or nothing.
// ===========================================================================================================

// The one handle that may change a cache. Made by watchcore_writer_new. Since 0.1.
typedef struct watchcore_writer watchcore_writer;

// A put: create_revision and version are derived, the lease is 0. Since 0.1.
#define WATCHCORE_CHANGE_PUT 1
// A deletion of a present key. Since 0.1.
#define WATCHCORE_CHANGE_DELETE 2
// A put with given create_revision, mod_revision, version and lease, which are checked. Since 0.1.
#define WATCHCORE_CHANGE_PUT_EXACT 3
// The source compacted revisions that were not read yet. Since 0.1.
#define WATCHCORE_RESYNC_COMPACTED 1
// The source's history went back, or was replaced by another. Since 0.1.
#define WATCHCORE_RESYNC_HISTORY_RESET 2
// An event did not fit the versions before it. Since 0.1.
#define WATCHCORE_RESYNC_CHAIN_BROKEN 3
// Replaying would have taken longer than listing. Since 0.1.
#define WATCHCORE_RESYNC_TOO_FAR_BEHIND 4
// A resync was requested. Since 0.1.
#define WATCHCORE_RESYNC_REQUESTED 5
// A single subscription caught up after it had lost events. Since 0.1.
#define WATCHCORE_RESYNC_LAGGED 6

// One change of one key, or one key-value of a listing (then `op` is PUT_EXACT). All elements of an array
// have the same `size`; the array steps by it. Since 0.1.
typedef struct watchcore_change {
    // sizeof(watchcore_change).
    uint32_t size;
    // WATCHCORE_CHANGE_...
    uint32_t op;
    // The key; not empty.
    struct watchcore_bytes key;
    // The value; must be absent in a deletion.
    struct watchcore_bytes value;
    // PUT_EXACT: the revision at which the key was created.
    uint64_t create_revision;
    // PUT_EXACT: the revision of this change.
    uint64_t mod_revision;
    // PUT_EXACT: 1 + the number of changes since it was created.
    uint64_t version;
    // PUT_EXACT: the lease, 0 for none.
    int64_t lease;
} watchcore_change;
#define WATCHCORE_CHANGE_INITIALIZER \
    { (uint32_t)sizeof(watchcore_change), 0, { NULL, 0 }, { NULL, 0 }, 0, 0, 0, 0 }
#define WATCHCORE_CHANGE_INIT WATCHCORE_LITERAL(watchcore_change) WATCHCORE_CHANGE_INITIALIZER

// Takes the cache's writer. A second one is refused (BUSY) until the first is freed.
// `*writer`: the caller's, ended by watchcore_writer_free. Never blocks. Any thread, many at once.
// Codes: INVALID_ARGUMENT, BUSY, CLOSED. Since 0.1.
int32_t watchcore_writer_new(const watchcore_cache *cache,
                             watchcore_writer **writer,
                             watchcore_error *error);

// Publishes the first listing and makes the cache ready; once, and only on a cache made with `expect_load`.
// `changes`: `count` key-values (op PUT_EXACT) with different keys; copied. On an error nothing has changed.
// Never blocks, but takes time in proportion to `count`. One thread at a time.
// Codes: INVALID_ARGUMENT, OUT_OF_ORDER, BUSY, CLOSED. Since 0.1.
int32_t watchcore_writer_load(watchcore_writer *writer,
                              uint64_t revision,
                              const watchcore_change *changes,
                              size_t count,
                              watchcore_error *error);

// Applies one revision: all its changes become visible together. `revision` must be above the last one; each
// key may occur once; a deletion needs a present key. On an error nothing has changed.
// `changes`: `count` elements; copied. Never blocks. One thread at a time.
// Codes: INVALID_ARGUMENT, OUT_OF_ORDER, NOT_READY, BUSY, CLOSED. Since 0.1.
int32_t watchcore_writer_apply(watchcore_writer *writer,
                               uint64_t revision,
                               const watchcore_change *changes,
                               size_t count,
                               watchcore_error *error);

// Replaces the state by a new listing: the difference becomes one atomic revision between two resync marks,
// in a new epoch. `revision` may be lower than the last one.
// `changes`: `count` key-values (op PUT_EXACT), the whole new state; copied. `reason`: WATCHCORE_RESYNC_...
// `*position`, `*epoch`: the cache's position after it; each may be NULL. On an error nothing has changed.
// Never blocks, but takes time in proportion to the state. One thread at a time.
// Codes: INVALID_ARGUMENT, NOT_READY, BUSY, CLOSED. Since 0.1.
int32_t watchcore_writer_resync(watchcore_writer *writer,
                                uint64_t revision,
                                const watchcore_change *changes,
                                size_t count,
                                uint32_t reason,
                                uint64_t *position,
                                uint64_t *epoch,
                                watchcore_error *error);

// Reports that the source has reached a revision without a change of this range: positions and bookmarks
// advance. Never blocks. One thread at a time. Codes: INVALID_ARGUMENT, OUT_OF_ORDER, NOT_READY, BUSY,
// CLOSED. Since 0.1.
int32_t watchcore_writer_progress(watchcore_writer *writer,
                                  uint64_t revision,
                                  watchcore_error *error);

// Drops the log's events up to and including a revision; the state at that revision stays readable.
// Never blocks. One thread at a time. Codes: INVALID_ARGUMENT, FUTURE_REVISION, NOT_READY, BUSY, CLOSED. Since 0.1.
int32_t watchcore_writer_compact(watchcore_writer *writer,
                                 uint64_t revision,
                                 watchcore_error *error);

// Frees the writer, so that another can be taken; NULL does nothing. The cache stays as it is.
// Never blocks. Any thread, even while another one is inside a call (which then frees it on leaving). Since 0.1.
void watchcore_writer_free(watchcore_writer *writer);

// A first listing in progress, in pieces. Made by watchcore_loading_new. Since 0.1.
typedef struct watchcore_loading watchcore_loading;

// Begins a first listing that comes in pieces: the key-values of each watchcore_loading_add are copied, and
// may be freed before the next call. The listing is invisible before watchcore_loading_finish. Only on a
// cache made with `expect_load`. `*loading`: the caller's, ended by watchcore_loading_free. It keeps the
// cache's memory, not its writer: a writer that is made later may continue it.
// Never blocks. One thread at a time. Codes: INVALID_ARGUMENT, OUT_OF_ORDER, BUSY, CLOSED. Since 0.1.
int32_t watchcore_loading_new(watchcore_writer *writer,
                              uint64_t revision,
                              watchcore_loading **loading,
                              watchcore_error *error);

// Adds key-values to a listing, in any order, each key once. `writer`: a writer of the same cache.
// `changes`: `count` elements (op PUT_EXACT); copied. After an error that names a key, the elements before
// it are part of the listing; after any other nothing has changed.
// Never blocks, but takes time in proportion to `count`. One thread at a time, also for the writer. Codes:
// INVALID_ARGUMENT (also if the listing was finished, or is of another cache), BUSY, CLOSED. Since 0.1.
int32_t watchcore_loading_add(watchcore_loading *loading,
                              watchcore_writer *writer,
                              const watchcore_change *changes,
                              size_t count,
                              watchcore_error *error);

// Publishes a listing and makes the cache ready. `writer`: a writer of the same cache. On an error the cache
// has not changed. After the call the loading is spent and can only be freed, unless a handle was refused or
// is in use. Never blocks, but takes time in proportion to the listing. One thread at a time, also for the
// writer. Codes: INVALID_ARGUMENT (a key twice; finished before; another cache), OUT_OF_ORDER (the cache has
// its listing), BUSY, CLOSED. Since 0.1.
int32_t watchcore_loading_finish(watchcore_loading *loading,
                                 watchcore_writer *writer,
                                 watchcore_error *error);

// Frees a loading; NULL does nothing. An unfinished listing is discarded, and the cache is unchanged. Never
// blocks. Any thread, even while another one is inside a call (which then frees it on leaving). Since 0.1.
void watchcore_loading_free(watchcore_loading *loading);

// ===========================================================================================================
// 8. Following etcd
//
// A feeder is a thread that lists a range of etcd's keys, watches it, and writes the changes into a cache, for
// as long as it runs: it reconnects, checks that the history is still the same, and lists again if it is not.
// ===========================================================================================================

// A running feeder. Made by watchcore_feeder_start. Since 0.1.
typedef struct watchcore_feeder watchcore_feeder;

// How to reach etcd, and what to request from it. For times, 0 means the default. Since 0.1.
typedef struct watchcore_etcd_options {
    // sizeof(watchcore_etcd_options).
    uint32_t size;
    // 1: stop after the first listing.
    uint32_t stop_after_listing;
    // The servers, separated by commas: "http://127.0.0.1:2379,http://127.0.0.1:22379".
    // "unix:///run/etcd.sock" is a Unix socket.
    struct watchcore_bytes endpoints;
    // The user's name (UTF-8). Absent: no authentication.
    struct watchcore_bytes user;
    // The user's password (UTF-8).
    struct watchcore_bytes password;
    // The file (PEM) of the authorities that may sign the server's certificate. With neither this nor `ca_pem`: the
    // system's authorities. The three files are read again for each new connection, so they can be replaced at any
    // time.
    struct watchcore_bytes ca_file;
    // The file (PEM) of the client's certificate, if etcd asks for one; with `key_file`.
    struct watchcore_bytes cert_file;
    // The file (PEM) of the client's private key.
    struct watchcore_bytes key_file;
    // The authorities themselves, PEM, instead of `ca_file`.
    struct watchcore_bytes ca_pem;
    // The client's certificate itself, PEM, instead of `cert_file`; with `key_pem`.
    struct watchcore_bytes cert_pem;
    // The client's private key itself, PEM.
    struct watchcore_bytes key_pem;
    // The name that the server's certificate must be for (UTF-8). Absent: the endpoint's host.
    struct watchcore_bytes server_name;
    // Begin with etcd's own history from this revision on. 0: at the newest revision.
    uint64_t start_revision;
    // The most keys per page of a listing. 0: one stream, if etcd has streams; else as many keys as fit into some 32
    // MiB.
    uint64_t page_size;
    // Lists instead of replaying if more than this many revisions were missed. 0: 20000.
    uint64_t too_far_behind;
    // A progress request is sent after this long without a message. 0: 1000.
    int64_t progress_interval_ms;
    // The longest time to connect. 0: 5000.
    int64_t dial_timeout_ms;
    // The longest time of a request. 0: 10000.
    int64_t request_timeout_ms;
    // 1: send no progress requests.
    uint32_t no_progress_requests;
    // The oldest version of TLS: 0x0303 for TLS 1.2, 0x0304 for TLS 1.3, as on the wire. 0: TLS 1.2.
    uint32_t min_tls_version;
    // With `start_revision`: the feeder stays at most half a window ahead of this subscription of the cache, so that
    // the subscription sees a history longer than the log. NULL: no limit. Only read by the call that starts the
    // feeder.
    struct watchcore_subscription *pace;
    // How often to ask etcd whether the oldest revision of the window still exists; the cache drops what etcd has
    // compacted. 0: never; 15000 is a good interval.
    int64_t follow_compaction_ms;
    // Lists and watches only this key of the cache's prefix, so that read access to this key is enough. Absent: the
    // whole prefix.
    struct watchcore_bytes only_key;
    // Begins this many revisions below the newest one, or at the oldest that etcd still has, so that a client that was
    // at one of them before the program began can resume there. The cache is ready once that history is replayed. 0:
    // at the newest revision. A `start_revision` takes precedence, and with `stop_after_listing` the newest revision
    // is listed.
    uint64_t history;
    // How often the whole cache is compared with etcd, page by page, besides once after each reconnect; if a key
    // differs twice, the cache is listed again as of another history. 0: 3600000. Negative: never.
    int64_t audit_interval_ms;
} watchcore_etcd_options;
#define WATCHCORE_ETCD_OPTIONS_INITIALIZER \
    { (uint32_t)sizeof(watchcore_etcd_options), 0, { NULL, 0 }, { NULL, 0 }, { NULL, 0 }, { NULL, 0 }, \
      { NULL, 0 }, { NULL, 0 }, { NULL, 0 }, { NULL, 0 }, { NULL, 0 }, { NULL, 0 }, 0, 0, 0, 0, 0, 0, 0, \
      0, NULL, 0, { NULL, 0 }, 0, 0 }
#define WATCHCORE_ETCD_OPTIONS_INIT WATCHCORE_LITERAL(watchcore_etcd_options) WATCHCORE_ETCD_OPTIONS_INITIALIZER

// The counters of a feeder since its start. Since 0.1.
typedef struct watchcore_counters {
    // sizeof(watchcore_counters).
    uint32_t size;
    // 0.
    uint32_t reserved;
    // Resyncs by reason (WATCHCORE_RESYNC_...); element 0 is their sum.
    uint64_t resyncs[7];
    // Watches opened.
    uint64_t connects;
    // Watches opened beyond the first.
    uint64_t reconnects;
    // Sessions that failed, including those that never connected.
    uint64_t failures;
    // Watches given up because they were silent for too long.
    uint64_t silences;
    // Watches opened again with fragments, because a message was too long.
    uint64_t fragment_switches;
    // Listings that were begun.
    uint64_t listings;
    // Pages of listings, and messages of those that came as streams.
    uint64_t pages;
    // Reads that proved, after a reconnect, that the history is still the same.
    uint64_t probes;
    // Messages on the watch.
    uint64_t responses;
    // Fragments among those messages.
    uint64_t fragments;
    // Revisions applied.
    uint64_t revisions;
    // Events applied.
    uint64_t events;
    // Bytes of keys and values in those events.
    uint64_t bytes;
    // Messages that broke a rule of etcd's API, or did not fit what the cache held.
    uint64_t integrity_violations;
    // Progress notifications that came.
    uint64_t progress_notifications;
    // Progress notifications that were requested.
    uint64_t progress_requests;
    // Linearizable reads for consistent revisions, those that failed included: one serves all
    // requests that came before it began.
    uint64_t consistent_reads;
    // Times that changed certificate files were taken into use for new connections.
    uint64_t certificate_reloads;
    // Connections for which the certificate files could not be used.
    uint64_t certificate_failures;
    // The most events in one message.
    uint64_t max_events_queued;
    // The most events of one revision.
    uint64_t max_revision_events;
    // Keys that were compared with etcd at once after a reconnect.
    uint64_t sampled_keys;
    // Audits: comparisons of the whole range with etcd.
    uint64_t audits;
    // Keys that audits compared.
    uint64_t audited_keys;
    // Milliseconds that the audits took.
    uint64_t audit_milliseconds;
    // Times that a sample or an audit found that etcd does not hold what the cache has at the same revision.
    uint64_t differences;
    // Consistent reads that compared the cache with etcd's state, because progress requests are not answered.
    uint64_t compared_reads;
    // 1 while progress requests are not answered, though etcd moves on.
    uint64_t progress_unanswered;
    // Events that came again unchanged after they had been applied, and were dropped.
    uint64_t repeated_events;
    // Linearizable reads beside a watch that show whether it lives and is not behind.
    uint64_t liveness_reads;
    // Watches given up because they did not reach a revision that etcd had.
    uint64_t stale_watches;
} watchcore_counters;
#define WATCHCORE_COUNTERS_INITIALIZER \
    { (uint32_t)sizeof(watchcore_counters), 0, { 0 }, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
      0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
#define WATCHCORE_COUNTERS_INIT WATCHCORE_LITERAL(watchcore_counters) WATCHCORE_COUNTERS_INITIALIZER

// Starts the thread that lists and watches etcd and keeps the cache up to date. It takes the cache's writer;
// the cache is ready when its first listing is published. An unreachable server is no error here: the feeder
// retries, and watchcore_cache_status shows the state.
// `*feeder`: the caller's, ended by watchcore_feeder_free. Never blocks. Any thread, many at once. Codes:
// INVALID_ARGUMENT, BUSY (the cache has a writer; or it was made without `expect_load` and has
// subscriptions, which would miss the listing), CLOSED, RESOURCE_EXHAUSTED (no thread or no event loop; the
// cache is unchanged), UNSUPPORTED (built without etcd). Since 0.1.
int32_t watchcore_feeder_start(const watchcore_cache *cache,
                               const watchcore_etcd_options *options,
                               watchcore_feeder **feeder,
                               watchcore_error *error);

// Stops the feeder: no call to etcd is made after it returns. All waits for the feeder end with CLOSED; the
// cache can still be read. Idempotent. Blocks, at most until 2 s after the first stop. Any thread, many at
// once. Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_feeder_stop(const watchcore_feeder *feeder, watchcore_error *error);

// Stops the feeder and frees the handle; NULL does nothing. Blocks, at most until 2 s after the first stop.
// Any thread; no other call on the handle may run or follow. Since 0.1.
void watchcore_feeder_free(watchcore_feeder *feeder);

// Makes the feeder list again; the difference comes as a resync with reason REQUESTED. Returns at once.
// Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_feeder_request_resync(const watchcore_feeder *feeder, watchcore_error *error);

// Makes the feeder compact the cache up to and including a revision, as watchcore_writer_compact does: for a
// program that learns of etcd's compactions first. Returns at once: the feeder's thread compacts up to the
// cache's present position, and again when the cache has reached the revision.
// Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT, CLOSED. Since 0.1.
int32_t watchcore_feeder_compact(const watchcore_feeder *feeder,
                                 uint64_t revision,
                                 watchcore_error *error);

// The feeder's counters so far. `counters`: the caller's struct. Never blocks. Any thread, many at once.
// Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_feeder_counters(const watchcore_feeder *feeder,
                                  watchcore_counters *counters,
                                  watchcore_error *error);

// ===========================================================================================================
// 9. Ranges and filters
//
// A range selects keys; a filter selects key-values, by a range and selectors. The options of a subscription contain
// the members of a filter; a list takes a range, and selectors in its options. NULL selects everything.
// ===========================================================================================================

// The whole cache. Since 0.1.
#define WATCHCORE_RANGE_ALL 0
// A single key: `from`. Since 0.1.
#define WATCHCORE_RANGE_KEY 1
// Keys that start with the bytes of `from`. Since 0.1.
#define WATCHCORE_RANGE_PREFIX 2
// Keys below a path: "/a/foo" selects "/a/foo" and "/a/foo/x", not "/a/foobar". Since 0.1.
#define WATCHCORE_RANGE_PATH 3
// Keys from `from` (inclusive) to `to` (exclusive; absent: the end). Since 0.1.
#define WATCHCORE_RANGE_BETWEEN 4

// A range of keys. Since 0.1.
typedef struct watchcore_range {
    // sizeof(watchcore_range).
    uint32_t size;
    // WATCHCORE_RANGE_...
    uint32_t kind;
    // The key, the prefix, the path, or the first key.
    struct watchcore_bytes from;
    // BETWEEN: the exclusive end of the range.
    struct watchcore_bytes to;
} watchcore_range;
#define WATCHCORE_RANGE_INITIALIZER \
    { (uint32_t)sizeof(watchcore_range), 0, { NULL, 0 }, { NULL, 0 } }
#define WATCHCORE_RANGE_INIT WATCHCORE_LITERAL(watchcore_range) WATCHCORE_RANGE_INITIALIZER

// A selection of key-values: all conditions must hold. Zeroed (except for `size`) it lets everything pass. Selectors
// can only use what the cache declares (watchcore_cache_options): any other name is INVALID_ARGUMENT. Since 0.1.
typedef struct watchcore_filter {
    // sizeof(watchcore_filter).
    uint32_t size;
    // The kind of range: WATCHCORE_RANGE_...
    uint32_t range;
    // The key, the prefix, the path, or the first key.
    struct watchcore_bytes from;
    // BETWEEN: the exclusive end of the range.
    struct watchcore_bytes to;
    // A label selector in Kubernetes' grammar: a=b, a==b, a!=b, a in (x,y), a notin (x,y), a, !a, a>1, a<1, joined by
    // commas. Absent or empty: everything. For a malformed one, the message has the 0-based position.
    struct watchcore_bytes labels;
    // A field selector: name=value, name==value, name!=value, joined by commas. Absent or empty: everything.
    struct watchcore_bytes fields;
    // The types of changes, as in watchcore_subscription_options. Only watchcore_cache_diff uses it.
    uint32_t types;
    // 1: the filter lets nothing pass.
    uint32_t nothing;
} watchcore_filter;
#define WATCHCORE_FILTER_INITIALIZER \
    { (uint32_t)sizeof(watchcore_filter), 0, { NULL, 0 }, { NULL, 0 }, { NULL, 0 }, { NULL, 0 }, 0, 0 }
#define WATCHCORE_FILTER_INIT WATCHCORE_LITERAL(watchcore_filter) WATCHCORE_FILTER_INITIALIZER

// ===========================================================================================================
// 10. Events and batches
//
// A poll gives a batch: a view of the log itself, not a copy. Its events stay valid until the batch is released, even
// if the subscription and the cache are freed. Until then the batch keeps its segments of the log in memory.
//
//     #include <stdio.h>
//     #include <watchcore.h>
//
//     // Prints a line for each change of a batch.
//     static void show(const watchcore_batch *batch)
//     {
//         size_t i;
//         for (i = 0; i < batch->count; i++) {
//             const watchcore_event *event = watchcore_batch_event(batch, i);
//             watchcore_bytes key = watchcore_event_key(event), value = watchcore_event_value(event);
//             if (key.data != NULL) { // bookmarks and resync marks have none, and a deletion has no value
//                 printf("%s %.*s %.*s\n", watchcore_name(WATCHCORE_NAME_EVENT_TYPE, event->type), (int)key.length,
//                        (const char *)key.data, (int)value.length, (const char *)value.data);
//             }
//         }
//     }
// ===========================================================================================================

// A key appeared, or entered the filter. Since 0.1.
#define WATCHCORE_EVENT_ADDED 1
// The value of a present key changed. Since 0.1.
#define WATCHCORE_EVENT_MODIFIED 2
// A key was deleted, or left the filter. `kv` has no value; `prev_kv` is the last one. Since 0.1.
#define WATCHCORE_EVENT_DELETED 3
// Every matching event up to this revision was handed out. Since 0.1.
#define WATCHCORE_EVENT_BOOKMARK 4
// The beginning or the end of the difference between two histories. Since 0.1.
#define WATCHCORE_EVENT_RESYNC 5
// Raw: etcd's PUT. Since 0.1.
#define WATCHCORE_EVENT_PUT 6
// Raw: etcd's DELETE. Since 0.1.
#define WATCHCORE_EVENT_DELETE 7
// Event flag: made by a resync, not by a change at its revision. Since 0.1.
#define WATCHCORE_FLAG_SYNTHETIC 1
// Event flag: part of the initial state. Since 0.1.
#define WATCHCORE_FLAG_INITIAL_STATE 2
// Event flag: the bookmark that ends the initial state. Since 0.1.
#define WATCHCORE_FLAG_INITIAL_STATE_END 4
// Event flag: the resync mark before the difference. Since 0.1.
#define WATCHCORE_FLAG_BEGIN 8
// Event flag: the resync mark after the difference. Since 0.1.
#define WATCHCORE_FLAG_END 16
// Batch flag: the batch ends inside a revision. Since 0.1.
#define WATCHCORE_BATCH_CONTINUES 1
// Batch flag: the batch keeps key-values of an initial state in memory, even those that are replaced meanwhile:
// release it soon. Since 0.1.
#define WATCHCORE_BATCH_KEEPS_STATE 2

// One event: 64 bytes of the library's memory, valid until its batch is released. Since 0.1.
typedef struct watchcore_event {
    // The revision of the change; for an initial object its own; for a resync mark the new state's.
    uint64_t revision;
    // The event's sequence number in the log; 0: not from the log.
    uint64_t sequence;
    // WATCHCORE_EVENT_ADDED to WATCHCORE_EVENT_DELETE.
    uint32_t type;
    // The sum of event flags (WATCHCORE_FLAG_...); no other bit is set. A later version may define more, so test
    // single bits.
    uint32_t flags;
    // The new key-value; in a deletion the key without a value; NULL in bookmarks and resync marks.
    const struct watchcore_key_value *kv;
    // The previous key-value; NULL if there was none (or it left the window).
    const struct watchcore_key_value *prev_kv;
    // RESYNC: the last revision before the resync. Else 0, like the next two members.
    uint64_t resync_from;
    // RESYNC: the new epoch.
    uint64_t resync_epoch;
    // RESYNC: WATCHCORE_RESYNC_...
    uint32_t resync_reason;
    // Internal.
    uint32_t reserved;
} watchcore_event;

// The events of one poll: a view into the library's memory, valid until watchcore_batch_release, even after the
// subscription and the cache are freed. 64 bytes; the struct never grows. Copy it only as a whole, and release only
// one copy. A batch of an initial state keeps its key-values (WATCHCORE_BATCH_KEEPS_STATE), but no part of the log
// outside the window. Since 0.1.
typedef struct watchcore_batch {
    // The first event; NULL if there is none.
    const void *events;
    // The number of events.
    size_t count;
    // The distance between two events in bytes. Step by it, not by sizeof(watchcore_event).
    uint32_t stride;
    // The sum of batch flags.
    uint32_t flags;
    // The subscription's position after this batch: its revision.
    uint64_t position;
    // The subscription's position after this batch: its epoch.
    uint64_t epoch;
    // Internal.
    void *owner;
    // Internal.
    uint64_t reserved[2];
} watchcore_batch;
#define WATCHCORE_BATCH_INITIALIZER \
    { NULL, 0, 0, 0, 0, 0, NULL, { 0 } }
#define WATCHCORE_BATCH_INIT WATCHCORE_LITERAL(watchcore_batch) WATCHCORE_BATCH_INITIALIZER

// Releases a batch and zeroes it; NULL and a zeroed batch do nothing. Only `owner` is read. Never blocks.
// Any thread, even after the subscription and the cache were freed. Since 0.1.
void watchcore_batch_release(watchcore_batch *batch);

// Accessors. They never fail and never block, may be called on any thread, and transfer no ownership: a result is valid
// as long as the batch, page or snapshot that it came from. Each exists as a symbol too: define WATCHCORE_NO_INLINE
// before the include to call the symbols. All since 0.1.

#ifdef WATCHCORE_NO_INLINE
#ifdef __cplusplus
extern "C" {
#endif
const watchcore_event *watchcore_batch_event(const watchcore_batch *batch, size_t index);
watchcore_bytes watchcore_event_key(const watchcore_event *event);
watchcore_bytes watchcore_event_value(const watchcore_event *event);
watchcore_bytes watchcore_event_prev_value(const watchcore_event *event);
watchcore_bytes watchcore_bytes_from(const void *data, size_t length);
watchcore_bytes watchcore_bytes_from_string(const char *string);
#ifdef __cplusplus
}
#endif
#else

// A pointer and a length as one value.
static inline watchcore_bytes watchcore_bytes_from(const void *data, size_t length)
{
    watchcore_bytes bytes;
    bytes.data = data;
    bytes.length = length;
    return bytes;
}

// The bytes of a NUL-terminated string without the NUL; NULL gives "absent".
static inline watchcore_bytes watchcore_bytes_from_string(const char *string)
{
    size_t length = 0;
    if (string != NULL) {
        while (string[length] != 0) {
            length++;
        }
    }
    return watchcore_bytes_from(string, length);
}

// The event at an index; NULL after the last.
static inline const watchcore_event *watchcore_batch_event(const watchcore_batch *batch, size_t index)
{
    if (batch == NULL || index >= batch->count) {
        return NULL;
    }
    return (const watchcore_event *)(const void *)((const unsigned char *)batch->events + index * batch->stride);
}

// The key of an event; absent in bookmarks and resync marks.
static inline watchcore_bytes watchcore_event_key(const watchcore_event *event)
{
    if (event == NULL || event->kv == NULL) {
        return watchcore_bytes_from(NULL, 0);
    }
    return watchcore_bytes_from(event->kv->key, event->kv->key_length);
}

// The new value of an event; absent in deletions, bookmarks and resync marks.
static inline watchcore_bytes watchcore_event_value(const watchcore_event *event)
{
    if (event == NULL || event->kv == NULL) {
        return watchcore_bytes_from(NULL, 0);
    }
    return watchcore_bytes_from(event->kv->value, event->kv->value_length);
}

// The value before the event; absent if there was none (or it left the window).
static inline watchcore_bytes watchcore_event_prev_value(const watchcore_event *event)
{
    if (event == NULL || event->prev_kv == NULL) {
        return watchcore_bytes_from(NULL, 0);
    }
    return watchcore_bytes_from(event->prev_kv->value, event->prev_kv->value_length);
}

#endif // WATCHCORE_NO_INLINE

// ===========================================================================================================
// 11. Reads
//
// A read answers from one revision, and says which. ANY reads the cache's present state; AT_LEAST waits for a
// revision, such as that of the program's own write, or of watchcore_cache_consistent_revision; EXACT reads the state
// at one revision of the window.
// ===========================================================================================================

// The cache's present state; never waits. Since 0.1.
#define WATCHCORE_READ_ANY 0
// The newest state, at least at `revision`; waits for it. Since 0.1.
#define WATCHCORE_READ_AT_LEAST 1
// The state at exactly `revision`; waits for a future one. Since 0.1.
#define WATCHCORE_READ_EXACT 2

// The state to read, a filter for its key-values, and the time to wait for it. NULL means ANY without a filter or a
// limit. Since 0.1.
typedef struct watchcore_read_options {
    // sizeof(watchcore_read_options).
    uint32_t size;
    // WATCHCORE_READ_...
    uint32_t mode;
    // AT_LEAST, EXACT: the revision.
    uint64_t revision;
    // The longest wait. 0: none; -1: for ever. The _INIT macro sets 3000.
    int64_t timeout_ms;
    // watchcore_cache_list: the most items of the page, 0 for all. Else 0.
    uint64_t limit;
    // AT_LEAST, EXACT: the epoch of `revision`; 0: unchecked.
    uint64_t epoch;
    // A label selector: see watchcore_filter. Absent or empty: everything.
    struct watchcore_bytes labels;
    // A field selector: see watchcore_filter. Absent or empty: everything.
    struct watchcore_bytes fields;
    // watchcore_cache_list: continue after the page that gave this token (UTF-8), at the same revision: with the same
    // range and filter, and mode ANY. Absent: from the start. Else absent.
    struct watchcore_bytes continue_token;
    // 1: the read returns nothing.
    uint32_t nothing;
    // 0.
    uint32_t reserved;
} watchcore_read_options;
#define WATCHCORE_READ_OPTIONS_INITIALIZER \
    { (uint32_t)sizeof(watchcore_read_options), 0, 0, 3000, 0, 0, { NULL, 0 }, { NULL, 0 }, { NULL, 0 }, \
      0, 0 }
#define WATCHCORE_READ_OPTIONS_INIT WATCHCORE_LITERAL(watchcore_read_options) WATCHCORE_READ_OPTIONS_INITIALIZER

// The answer of watchcore_cache_get. Since 0.1.
typedef struct watchcore_answer {
    // sizeof(watchcore_answer).
    uint32_t size;
    // 1: `kv` is the key-value; 0: the key was absent at `revision`.
    uint32_t found;
    // The revision of the state that answered.
    uint64_t revision;
    // The epoch of that state.
    uint64_t epoch;
    // The caller's, released by watchcore_key_value_release; NULL if `found` is 0.
    const struct watchcore_key_value *kv;
} watchcore_answer;
#define WATCHCORE_ANSWER_INITIALIZER \
    { (uint32_t)sizeof(watchcore_answer), 0, 0, 0, NULL }
#define WATCHCORE_ANSWER_INIT WATCHCORE_LITERAL(watchcore_answer) WATCHCORE_ANSWER_INITIALIZER

// Some key-values of one revision. Made by watchcore_cache_list. It keeps them until watchcore_page_free, but no part
// of the log outside the window. Copy items that are needed for long. Since 0.1.
typedef struct watchcore_page watchcore_page;

// A text that belongs to the caller. Made by watchcore_cache_list. Since 0.1.
typedef struct watchcore_text watchcore_text;

// Reads one key. An absent key is no error: `found` is 0, and `revision` is the revision of the answer. A
// key-value that the options' filter excludes is absent.
// `key`: a key inside the cache's prefix. `read`: NULL for ANY. `answer`: the caller's struct; release its
// `kv` with watchcore_key_value_release.
// Blocks up to `read->timeout_ms` if the revision is not there yet; ANY never. Any thread, many at once.
// Codes: INVALID_ARGUMENT, NOT_READY, COMPACTED, FUTURE_REVISION, RESYNCED, CLOSED. Since 0.1.
int32_t watchcore_cache_get(const watchcore_cache *cache,
                            const void *key,
                            size_t key_length,
                            const watchcore_read_options *read,
                            watchcore_answer *answer,
                            watchcore_error *error);

// Reads many keys of one state, in less time than as many calls of watchcore_cache_get: with many objects in a third.
// `keys`, `count`: the keys, each inside the cache's prefix; if one is not, none is read. A key may occur twice.
// 0 keys are no error. `read`: NULL for ANY. `kvs`: the caller's array of `count` pointers; kvs[i] is the
// key-value of keys[i], or NULL if that key is absent at `*revision` or excluded by the options' filter. Release
// all of them at once with watchcore_key_values_release, or each with watchcore_key_value_release. `*revision`,
// `*epoch`: the position of the state that answered; each may be NULL. Nothing is written on failure. Takes time
// proportional to `count`.
//
//     const watchcore_key_value *kvs[2];
//     watchcore_bytes keys[2] = {watchcore_bytes_from_string("/a"), watchcore_bytes_from_string("/b")};
//     if (watchcore_cache_get_many(cache, keys, 2, NULL, kvs, NULL, NULL, &error) == WATCHCORE_OK) {
//         printf("/b is %s\n", kvs[1] != NULL ? "there" : "absent");
//         watchcore_key_values_release(kvs, 2);
//     }
//
// Blocks up to `read->timeout_ms` if the revision is not there yet; ANY never. Any thread, many at once.
// Codes: INVALID_ARGUMENT, NOT_READY, COMPACTED, FUTURE_REVISION, RESYNCED, CLOSED. Since 0.1.
int32_t watchcore_cache_get_many(const watchcore_cache *cache,
                                 const watchcore_bytes *keys,
                                 size_t count,
                                 const watchcore_read_options *read,
                                 const watchcore_key_value **kvs,
                                 uint64_t *revision,
                                 uint64_t *epoch,
                                 watchcore_error *error);

// Reads the key-values of a range in key order. With a limit, page by page: give the token of the last page
// (watchcore_page_info.continue_token) as `read->continue_token`; later pages are of exactly the revision of
// the first. If that revision has left the window meanwhile: COMPACTED; and `*token` is then another token,
// which continues at the same key in the newest state: the pages before are of an older revision.
// `range`: NULL for all. `read`: NULL for ANY without a limit. `*page`: the caller's, ended by
// watchcore_page_free. `*token` (`token` may be NULL): set it to NULL before; it is written only with that
// COMPACTED, and is the caller's, ended by watchcore_text_free.
// Blocks up to `read->timeout_ms` if the revision is not there yet; ANY never. Any thread, many at once.
// Codes: INVALID_ARGUMENT (also for a token that is damaged, or of another cache, range or filter),
// NOT_READY, COMPACTED, FUTURE_REVISION, RESYNCED, CLOSED. Since 0.1.
int32_t watchcore_cache_list(const watchcore_cache *cache,
                             const watchcore_range *range,
                             const watchcore_read_options *read,
                             watchcore_page **page,
                             watchcore_text **token,
                             watchcore_error *error);

// The bytes of a text (UTF-8). They belong to the text and are valid until it is freed; absent for NULL.
// Never blocks. Any thread, many at once. Since 0.1.
watchcore_bytes watchcore_text_get(const watchcore_text *text);

// Frees a text; NULL does nothing. Never blocks. Any thread, even after the cache was freed. Since 0.1.
void watchcore_text_free(watchcore_text *text);

// Counts the key-values of a range that the options' filter lets pass, in time proportional to the range.
// `range`: NULL for all. `read`: NULL for ANY. `*count`: the number. `*revision`, `*epoch`: the position of
// the counted state; each may be NULL.
// Blocks up to `read->timeout_ms` if the revision is not there yet; ANY never. Any thread, many at once.
// Codes: INVALID_ARGUMENT, NOT_READY, COMPACTED, FUTURE_REVISION, RESYNCED, CLOSED. Since 0.1.
int32_t watchcore_cache_count(const watchcore_cache *cache,
                              const watchcore_range *range,
                              const watchcore_read_options *read,
                              uint64_t *count,
                              uint64_t *revision,
                              uint64_t *epoch,
                              watchcore_error *error);

// The net changes between the states at two revisions: at most one event per key, in key order, ADDED,
// MODIFIED or DELETED relative to the key at `from`, with the revision of its own newest change; `prev_kv`
// is the key-value at `from`. An object that entered the filter or left it meanwhile is ADDED or DELETED.
// `from_epoch`, `to_epoch`: the epochs of the revisions, 0 for unchecked. `filter`: NULL for everything.
// `batch`: the caller's struct, overwritten on success: release its previous content first, with
// watchcore_batch_release. It has all events, and its position is `to`.
// Never blocks; takes time proportional to the filter's range. Any thread, many at once.
// Codes: INVALID_ARGUMENT (also if `to` is before `from`), NOT_READY, COMPACTED (below the window),
// FUTURE_REVISION (above the cache's revision). Since 0.1.
int32_t watchcore_cache_diff(const watchcore_cache *cache,
                             uint64_t from,
                             uint64_t from_epoch,
                             uint64_t to,
                             uint64_t to_epoch,
                             const watchcore_filter *filter,
                             watchcore_batch *batch,
                             watchcore_error *error);

// The properties of a page. Since 0.1.
typedef struct watchcore_page_info {
    // sizeof(watchcore_page_info).
    uint32_t size;
    // 1: keys of the range remain after the last one that was read, whether the filter lets them pass or not.
    uint32_t more;
    // The number of items.
    size_t count;
    // How many keys of the range remain after the page's last item; 0 if the read had a selector, because they are not
    // counted then.
    uint64_t remaining;
    // The revision of the state that the page was read from.
    uint64_t revision;
    // The epoch of that state.
    uint64_t epoch;
    // The token of the next page (UTF-8), for watchcore_read_options.continue_token; absent if there is no next page.
    // It works in another process too, while the page's revision is in the window there. The bytes belong to the page
    // and are valid until it is freed: copy them to keep them.
    struct watchcore_bytes continue_token;
} watchcore_page_info;
#define WATCHCORE_PAGE_INFO_INITIALIZER \
    { (uint32_t)sizeof(watchcore_page_info), 0, 0, 0, 0, 0, { NULL, 0 } }
#define WATCHCORE_PAGE_INFO_INIT WATCHCORE_LITERAL(watchcore_page_info) WATCHCORE_PAGE_INFO_INITIALIZER

// The properties of a page: the number of its items, the state that it was read from, and what follows it.
// `info`: the caller's struct. Never blocks, O(1). Any thread, many at once. Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_page_describe(const watchcore_page *page,
                                watchcore_page_info *info,
                                watchcore_error *error);

// An item of a page in key order; NULL after the last. It belongs to the page and is valid until the page is
// freed. Never blocks. Any thread, many at once. Since 0.1.
const watchcore_key_value *watchcore_page_item(const watchcore_page *page, size_t index);

// All items of a page at once: an array of as many pointers as watchcore_page_info.count says; NULL for NULL
// and for an empty page. The array belongs to the page and is valid until the page is freed. Never blocks.
// Any thread, many at once. Since 0.1.
const watchcore_key_value *const *watchcore_page_items(const watchcore_page *page);

// Frees a page, and its items with it; NULL does nothing. Never blocks. Any thread, even after the cache was
// freed. Since 0.1.
void watchcore_page_free(watchcore_page *page);

// ===========================================================================================================
// 12. Snapshots
//
// A snapshot serves many reads of one state.
// ===========================================================================================================

// The state at one revision; it never changes. Made by watchcore_snapshot_new. Since 0.1.
typedef struct watchcore_snapshot watchcore_snapshot;

// A walk over a snapshot in key order. Made by watchcore_iterator_new. Since 0.1.
typedef struct watchcore_iterator watchcore_iterator;

// Takes a snapshot of the whole cache: O(1), without copying. It keeps the memory of its state until it is
// freed. `*snapshot`: the caller's, ended by watchcore_snapshot_free. Never blocks. Any thread, many at
// once. Codes: INVALID_ARGUMENT, NOT_READY. Since 0.1.
int32_t watchcore_snapshot_new(const watchcore_cache *cache,
                               watchcore_snapshot **snapshot,
                               watchcore_error *error);

// The position of the snapshot's state: `*revision`, and `*epoch` (may be NULL), which belongs to it. Never
// blocks, O(1). Any thread, many at once. Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_snapshot_position(const watchcore_snapshot *snapshot,
                                    uint64_t *revision,
                                    uint64_t *epoch,
                                    watchcore_error *error);

// Reads one key of a snapshot. `*found` (may be NULL): 1 or 0. `*kv`: the key-value, or NULL if the key is
// absent; it belongs to the snapshot and is valid until that is freed. Never blocks. Any thread, many at
// once. Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_snapshot_get(const watchcore_snapshot *snapshot,
                               const void *key,
                               size_t key_length,
                               uint32_t *found,
                               const watchcore_key_value **kv,
                               watchcore_error *error);

// Reads many keys of a snapshot, in less time than as many calls of watchcore_snapshot_get. `keys`, `count`: the
// keys; 0 are no error. `kvs`: the caller's array of `count` pointers; kvs[i] is the key-value of keys[i], or
// NULL if that key is absent. Other than that of watchcore_snapshot_get each is the caller's, and may outlive
// the snapshot: release all of them at once with watchcore_key_values_release. Nothing is written on failure.
// Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_snapshot_get_many(const watchcore_snapshot *snapshot,
                                    const watchcore_bytes *keys,
                                    size_t count,
                                    const watchcore_key_value **kvs,
                                    watchcore_error *error);

// Counts the key-values of a snapshot that a filter lets pass, in time proportional to the keys of its
// range. `filter`: NULL for all. Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_snapshot_count(const watchcore_snapshot *snapshot,
                                 const watchcore_filter *filter,
                                 uint64_t *count,
                                 watchcore_error *error);

// Frees a snapshot, and the key-values read from it; NULL does nothing. Never blocks. Any thread, even after
// the cache was freed. Since 0.1.
void watchcore_snapshot_free(watchcore_snapshot *snapshot);

// Begins a walk over the key-values of a snapshot that a filter lets pass, in key order. `filter`: NULL for
// all. `*iterator`: the caller's, ended by watchcore_iterator_free; it may outlive the snapshot. Never
// blocks. Any thread, many at once. Codes: INVALID_ARGUMENT (also for a selector that does not parse or
// names what the cache does not declare). Since 0.1.
int32_t watchcore_iterator_new(const watchcore_snapshot *snapshot,
                               const watchcore_filter *filter,
                               watchcore_iterator **iterator,
                               watchcore_error *error);

// The next items of a walk: up to `capacity` pointers go to `items`, their number to `*count`; fewer than
// `capacity` means the end. They are valid until the iterator is freed. Never blocks. One thread at a time.
// Codes: INVALID_ARGUMENT, BUSY. Since 0.1.
int32_t watchcore_iterator_next(watchcore_iterator *iterator,
                                const watchcore_key_value **items,
                                size_t capacity,
                                size_t *count,
                                watchcore_error *error);

// Ends a walk; NULL does nothing. Never blocks. Any thread. Since 0.1.
void watchcore_iterator_free(watchcore_iterator *iterator);

// ===========================================================================================================
// 13. Subscriptions
//
// A subscription is a cursor in the log, with a filter. It begins with the state, or after a revision; then it
// delivers every change that passes its filter, in order, exactly once. A slow subscription delays no other: if
// events that it has not read leave the window, it gets a report of the lost range (LAGGED), or the difference,
// as `on_lag` says.
//
//     #include <watchcore.h>
//
//     // Gives all batches of a subscription to `serve`, until it ends: CLOSED, or why else.
//     static int32_t follow(watchcore_subscription *subscription, void (*serve)(const watchcore_batch *),
//                           watchcore_error *error)
//     {
//         watchcore_batch batch = WATCHCORE_BATCH_INIT;
//         for (;;) {
//             int32_t rc = watchcore_subscription_wait(subscription, -1, error);
//             if (rc == WATCHCORE_OK) {
//                 rc = watchcore_subscription_poll(subscription, 256, &batch, error);
//             }
//             if (rc == WATCHCORE_LAGGED) {
//                 continue; // Once a loss, with the lost range in `error`; the next polls give what `on_lag` says.
//             }
//             if (rc != WATCHCORE_OK) {
//                 return rc;
//             }
//             serve(&batch);
//             watchcore_batch_release(&batch);
//         }
//     }
// ===========================================================================================================

// The whole matching state as ADDED in key order, a bookmark that ends it, then what follows. Since 0.1.
#define WATCHCORE_START_STATE 0
// The changes after the present revision. Since 0.1.
#define WATCHCORE_START_NOW 1
// The changes after `revision`; waits for a future one. Since 0.1.
#define WATCHCORE_START_AFTER 2
// Like STATE, once the cache has `revision`. Since 0.1.
#define WATCHCORE_START_STATE_AT_LEAST 3
// After a loss: LAGGED, then CLOSED. Since 0.1.
#define WATCHCORE_ON_LAG_STOP 0
// After a loss: LAGGED, then from the oldest revision of the window. In the initial state like STOP. Since 0.1.
#define WATCHCORE_ON_LAG_SKIP_TO_OLDEST 1
// After a loss: LAGGED, then the exact difference between the delivered state and the state now, between two RESYNC
// marks with the reason LAGGED, then the following changes. The subscription remembers the keys that it has
// delivered: at most 32 bytes per matching key (plus the key itself if the cache has purged it). If its starting
// state (AFTER; NOW before the listing) has left the window before it was read, no difference can be computed:
// like STOP. Since 0.1.
#define WATCHCORE_ON_LAG_RESNAPSHOT 2
// After a loss: the latest change of each key, without an error; types are relative to the delivered state. The
// subscription remembers keys as RESNAPSHOT does, and ends with LAGGED in the same case. Since 0.1.
#define WATCHCORE_ON_LAG_CONFLATE 3

// A cursor with a filter over a cache. Made by watchcore_subscription_new. Since 0.1.
typedef struct watchcore_subscription watchcore_subscription;

// The start of a subscription, and the selection of events that it delivers. Since 0.1.
typedef struct watchcore_subscription_options {
    // sizeof(watchcore_subscription_options).
    uint32_t size;
    // WATCHCORE_START_...
    uint32_t start;
    // AFTER, STATE_AT_LEAST: the revision.
    uint64_t revision;
    // The epoch of `revision`; 0: unchecked. Save both for a restart.
    uint64_t epoch;
    // The kind of range: WATCHCORE_RANGE_...
    uint32_t range;
    // The types of events: the sum of WATCHCORE_MASK(type), 0 for all. Bookmarks and resync marks are not masked.
    uint32_t types;
    // The key, the prefix, the path, or the first key.
    struct watchcore_bytes from;
    // BETWEEN: the exclusive end of the range.
    struct watchcore_bytes to;
    // 1: types PUT and DELETE instead of ADDED, MODIFIED and DELETED.
    uint32_t raw_types;
    // 1: sends bookmarks (the one that ends the initial state is always sent).
    uint32_t bookmarks;
    // 1: a batch never ends inside a revision.
    uint32_t whole_revisions;
    // 1: ends with RESYNCED when the history is replaced.
    uint32_t stop_on_resync;
    // The shortest time between two bookmarks. 0: 1000.
    int64_t bookmark_interval_ms;
    // STATE_AT_LEAST: how long to wait for the revision. 0: 3000.
    int64_t start_timeout_ms;
    // A label selector: see watchcore_filter. Absent or empty: everything.
    struct watchcore_bytes labels;
    // A field selector: see watchcore_filter. Absent or empty: everything.
    struct watchcore_bytes fields;
    // The reaction to lost events: WATCHCORE_ON_LAG_...
    uint32_t on_lag;
    // 1: delivers no changes, but still marks.
    uint32_t nothing;
    // Ends the subscription with LAGGED, whatever `on_lag` says, once it is more than this many events behind. Checked
    // by each poll and four times a second. 0: no limit.
    uint64_t max_lag_events;
    // Ends the subscription with LAGGED, whatever `on_lag` says, once it has been behind for this long. Checked four
    // times a second. 0: no limit.
    int64_t max_lag_age_ms;
    // A name for people (UTF-8): shown by watchcore_subscription_list_new, in messages of its errors and in log lines.
    // Need not be unique. Absent or empty: none.
    struct watchcore_bytes name;
} watchcore_subscription_options;
#define WATCHCORE_SUBSCRIPTION_OPTIONS_INITIALIZER \
    { (uint32_t)sizeof(watchcore_subscription_options), 0, 0, 0, 0, 0, { NULL, 0 }, { NULL, 0 }, 0, 0, 0, \
      0, 0, 0, { NULL, 0 }, { NULL, 0 }, 0, 0, 0, 0, { NULL, 0 } }
#define WATCHCORE_SUBSCRIPTION_OPTIONS_INIT WATCHCORE_LITERAL(watchcore_subscription_options) WATCHCORE_SUBSCRIPTION_OPTIONS_INITIALIZER

// The lag of a subscription. Since 0.1.
typedef struct watchcore_lag {
    // sizeof(watchcore_lag).
    uint32_t size;
    // 0.
    uint32_t reserved;
    // Events of the log that the subscription has not read. Once its position has left the window, the number may be
    // too large, but never larger than the number of published events.
    uint64_t events;
    // Revisions that the subscription has not read.
    uint64_t revisions;
    // The time since the subscription was last seen to have everything, at most some milliseconds too short; 0 if it
    // has.
    uint64_t age_ms;
} watchcore_lag;
#define WATCHCORE_LAG_INITIALIZER \
    { (uint32_t)sizeof(watchcore_lag), 0, 0, 0, 0 }
#define WATCHCORE_LAG_INIT WATCHCORE_LITERAL(watchcore_lag) WATCHCORE_LAG_INITIALIZER

// The subscription reads every event of the log, or of the segments that could hold a matching one. Since 0.1.
#define WATCHCORE_READ_PATH_SCAN 0
// The subscription reads only the events of one bucket of an index. Since 0.1.
#define WATCHCORE_READ_PATH_CHAIN 1

// The statistics of a subscription, and its read path. Since 0.1.
typedef struct watchcore_subscription_statistics {
    // sizeof(watchcore_subscription_statistics).
    uint32_t size;
    // The present read path: WATCHCORE_READ_PATH_...
    uint32_t read_path;
    // CHAIN: the index (UTF-8), such as "key", "prefix of depth 3", "field phase" or "label app"; it belongs to the
    // subscription and is valid until that is freed. SCAN: absent.
    struct watchcore_bytes index;
    // Events that were read.
    uint64_t looked_at;
    // Events of the log that were skipped without reading.
    uint64_t skipped;
    // Events and marks that were handed out.
    uint64_t handed_out;
    // How often events were lost, reported or not.
    uint64_t lagged;
    // Keys that are remembered as delivered (RESNAPSHOT, CONFLATE).
    uint64_t delivered_keys;
    // The bytes of those keys.
    uint64_t delivered_bytes;
} watchcore_subscription_statistics;
#define WATCHCORE_SUBSCRIPTION_STATISTICS_INITIALIZER \
    { (uint32_t)sizeof(watchcore_subscription_statistics), 0, { NULL, 0 }, 0, 0, 0, 0, 0, 0 }
#define WATCHCORE_SUBSCRIPTION_STATISTICS_INIT WATCHCORE_LITERAL(watchcore_subscription_statistics) WATCHCORE_SUBSCRIPTION_STATISTICS_INITIALIZER

// Opens a subscription; its start is fixed when this returns. Before the first listing it is accepted too,
// and begins there. `options`: NULL for the whole state and the changes after it. `*subscription`: the
// caller's, ended by watchcore_subscription_free; it may outlive the cache. Never blocks. Any thread, many
// at once.
// Codes: INVALID_ARGUMENT (also for a selector that does not parse or names what the cache does not declare,
// and for a name that is not UTF-8), COMPACTED, CLOSED, FUTURE_REVISION (above WATCHCORE_REVISION_MAX). Since 0.1.
int32_t watchcore_subscription_new(const watchcore_cache *cache,
                                   const watchcore_subscription_options *options,
                                   watchcore_subscription **subscription,
                                   watchcore_error *error);

// Hands out the next events, at most `max` (0: 1024), from the log, the initial state or the difference
// after a loss. Only with `whole_revisions` there may be more, because the last revision is whole. The next
// poll continues after the last event. No event is no error: `batch->count` is 0.
// `batch`: the caller's struct, overwritten on success; release the previous batch first, with
// watchcore_batch_release, on any thread.
// Never blocks. One thread at a time.
// A poll that returns nothing arms a member of a wake set; one that leaves events makes a member ready again
// if watchcore_wakeset_next has returned it.
// Codes: INVALID_ARGUMENT, BUSY, NOT_READY, LAGGED (once per loss, with the lost range; the next polls
// continue as `on_lag` says: CLOSED unless it was set), COMPACTED and FUTURE_REVISION (of a start that had
// to wait), RESYNCED, CLOSED (after the last event). Since 0.1.
int32_t watchcore_subscription_poll(watchcore_subscription *subscription,
                                    size_t max,
                                    watchcore_batch *batch,
                                    watchcore_error *error);

// Waits until a poll has something to return: then OK, even if that is an error or a mark; CLOSED only after
// the last event.
// Blocks up to `timeout_ms` (-1: for ever, 0: not at all). One thread at a time;
// watchcore_subscription_close ends it at once. The form that never blocks: a wake set. Codes:
// INVALID_ARGUMENT, BUSY, TIMEOUT, CLOSED. Since 0.1.
int32_t watchcore_subscription_wait(watchcore_subscription *subscription,
                                    int64_t timeout_ms,
                                    watchcore_error *error);

// Closes the subscription: a wait in progress ends at once; polls hand out what is left, then answer CLOSED.
// Idempotent. Never blocks. Any thread, any time before watchcore_subscription_free, many at once.
// Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_subscription_close(const watchcore_subscription *subscription,
                                     watchcore_error *error);

// The position: every matching event up to and including `*revision` was handed out; 0 during the initial
// state. `*epoch` (may be NULL) belongs to it: save both for a restart with AFTER.
// Never blocks. Any thread, many at once, even while another one polls or waits. Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_subscription_position(const watchcore_subscription *subscription,
                                        uint64_t *revision,
                                        uint64_t *epoch,
                                        watchcore_error *error);

// How far the subscription is behind. A sleeping subscription counts as having everything until it is woken,
// so a producer that must wait for its consumers should compare the revisions that they have handled. `lag`:
// the caller's struct. Never blocks. Any thread, many at once, even while another one polls or waits. Codes:
// INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_subscription_lag(const watchcore_subscription *subscription,
                                   watchcore_lag *lag,
                                   watchcore_error *error);

// The statistics of the subscription, and its read path. `stats`: the caller's struct. Never blocks. One
// thread at a time. Codes: INVALID_ARGUMENT, BUSY. Since 0.1.
int32_t watchcore_subscription_stats(watchcore_subscription *subscription,
                                     watchcore_subscription_statistics *stats,
                                     watchcore_error *error);

// Closes the subscription and frees the handle; NULL does nothing. It leaves its wake set. Its batches stay
// valid. Never blocks. Any thread, even while another one polls or waits (the wait ends with CLOSED, and
// that thread frees the handle on leaving). Since 0.1.
void watchcore_subscription_free(watchcore_subscription *subscription);

// The cache has no listing yet; the subscription begins with that. Since 0.1.
#define WATCHCORE_SUBSCRIPTION_STATE_AWAITS_LISTING 1
// The start lies in the future: AFTER or STATE_AT_LEAST a revision that the cache has not reached, or that the
// consumer of STATE_AT_LEAST has not polled since. Since 0.1.
#define WATCHCORE_SUBSCRIPTION_STATE_AWAITS_REVISION 2
// The initial state is being handed out. Since 0.1.
#define WATCHCORE_SUBSCRIPTION_STATE_INITIAL_STATE 3
// The subscription reads the log, and its consumer is awake. Since 0.1.
#define WATCHCORE_SUBSCRIPTION_STATE_LIVE 4
// The subscription has everything, and its consumer sleeps: it waits, or is armed in a wake set. Since 0.1.
#define WATCHCORE_SUBSCRIPTION_STATE_PARKED 5
// Unread events have left the window: the next poll answers LAGGED, or catches up. Since 0.1.
#define WATCHCORE_SUBSCRIPTION_STATE_OVERRUN 6
// A loss was reported; the difference to the state now comes next, or is being handed out. Since 0.1.
#define WATCHCORE_SUBSCRIPTION_STATE_CATCHING_UP 7
// The subscription was closed because it exceeded its lag limit: the next poll answers LAGGED. Since 0.1.
#define WATCHCORE_SUBSCRIPTION_STATE_TOO_SLOW 8
// The subscription or its cache was closed: events published before are handed out, then CLOSED. Since 0.1.
#define WATCHCORE_SUBSCRIPTION_STATE_CLOSING 9
// The subscription has ended: its polls answer CLOSED. It is listed until it is freed. Since 0.1.
#define WATCHCORE_SUBSCRIPTION_STATE_ENDED 10

// The open subscriptions of a cache at one moment. Made by watchcore_subscription_list_new. Since 0.1.
typedef struct watchcore_subscription_list watchcore_subscription_list;

// A subscription as it was when it was listed. Since 0.1.
typedef struct watchcore_subscription_info {
    // sizeof(watchcore_subscription_info).
    uint32_t size;
    // WATCHCORE_SUBSCRIPTION_STATE_...
    uint32_t state;
    // The subscription's number in this cache: from 1, in the order of opening, never reused.
    uint64_t id;
    // The name given in watchcore_subscription_options, else of length 0 (UTF-8). Belongs to the list, valid until
    // that is freed.
    struct watchcore_bytes name;
    // The position as of the last poll: its revision.
    uint64_t revision;
    // The epoch of that position.
    uint64_t epoch;
    // Events of the log that the subscription has not read, as in watchcore_lag; 0 while it sleeps, while its start
    // lies in the future, and once it has ended.
    uint64_t lag_events;
    // Revisions that the subscription has not read.
    uint64_t lag_revisions;
    // The time since the subscription was last seen to have everything, at most some milliseconds too short; 0 if it
    // has.
    uint64_t lag_age_ms;
    // The read path as of the last poll: WATCHCORE_READ_PATH_...
    uint32_t read_path;
    // 1: the subscription was polled, `last_poll_ms` ago; 0: never.
    uint32_t polled;
    // CHAIN: the index (UTF-8), such as "key" or "field phase". Belongs to the list, valid until that is freed. SCAN:
    // absent.
    struct watchcore_bytes index;
    // The time since the last poll. If a consumer polls hundreds of times a second, only every 16th poll is recorded.
    uint64_t last_poll_ms;
    // Events and marks that were handed out.
    uint64_t handed_out;
    // How often events were lost, reported or not.
    uint64_t lagged;
} watchcore_subscription_info;
#define WATCHCORE_SUBSCRIPTION_INFO_INITIALIZER \
    { (uint32_t)sizeof(watchcore_subscription_info), 0, 0, { NULL, 0 }, 0, 0, 0, 0, 0, 0, 0, { NULL, 0 }, \
      0, 0, 0 }
#define WATCHCORE_SUBSCRIPTION_INFO_INIT WATCHCORE_LITERAL(watchcore_subscription_info) WATCHCORE_SUBSCRIPTION_INFO_INITIALIZER

// Lists the open subscriptions of a cache in the order of their opening, each as it is now, including those
// that are never polled. Freed subscriptions are not listed; one that is opened or freed during the call may
// or may not be. `*list`: the caller's, ended by watchcore_subscription_list_free; it never changes. Never
// blocks, and delays neither the writer nor a consumer; takes time proportional to the open subscriptions.
// Any thread, many at once. Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_subscription_list_new(const watchcore_cache *cache,
                                        watchcore_subscription_list **list,
                                        watchcore_error *error);

// The number of subscriptions in a list; 0 for NULL. Never blocks. Any thread, many at once. Since 0.1.
size_t watchcore_subscription_list_count(const watchcore_subscription_list *list);

// The subscription at an index of a list, below watchcore_subscription_list_count. `info`: the caller's
// struct; its texts belong to the list. Never blocks. Any thread, many at once.
// Codes: INVALID_ARGUMENT (also for an index after the last). Since 0.1.
int32_t watchcore_subscription_list_item(const watchcore_subscription_list *list,
                                         size_t index,
                                         watchcore_subscription_info *info,
                                         watchcore_error *error);

// Frees a list; NULL does nothing. Never blocks. Any thread, even after the cache was freed. Since 0.1.
void watchcore_subscription_list_free(watchcore_subscription_list *list);

// ===========================================================================================================
// 14. Event loops
//
// Every wait has a form that does not block: a subscription is polled, and a waiter (for the first listing, a
// revision, a consistent revision) is tried. A wake set tells when to do so: it has one descriptor for epoll, kqueue,
// poll or libuv (uv_poll_t), for any number of members, each under a tag of 64 bits, which may be a pointer to the
// program's own data. A wake set has no timers: event loops have their own.
//
// The example below uses epoll: sleep on the descriptor, ask for the next ready member until there is none, and poll
// each member once. No extra step arms anything: a member is armed by being added and by each poll that returns
// nothing; a member whose poll left something is returned again; and when no member is ready, watchcore_wakeset_next
// has armed the descriptor. A loop may also sleep before it has asked for all ready members: until then the
// descriptor stays readable.
//
//     #include <sys/epoll.h>
//     #include <unistd.h>
//     #include <watchcore.h>
//
//     // Serves the subscriptions that were added to `set` with their own address as the tag, until one of them ends;
//     // `serve` gets each batch.
//     static int32_t watch_loop(watchcore_wakeset *set, void (*serve)(const watchcore_batch *),
//                               watchcore_error *error)
//     {
//         struct epoll_event interest = { 0 }, happened;
//         watchcore_batch batch = WATCHCORE_BATCH_INIT;
//         int32_t rc = WATCHCORE_OK, fd;
//         uint32_t found;
//         uint64_t tag;
//         int loop = epoll_create1(EPOLL_CLOEXEC);
//         interest.events = EPOLLIN;
//         watchcore_wakeset_fd(set, &fd, NULL);
//         epoll_ctl(loop, EPOLL_CTL_ADD, fd, &interest);
//         while (rc == WATCHCORE_OK) {
//             epoll_wait(loop, &happened, 1, -1);
//             while ((rc = watchcore_wakeset_next(set, &tag, &found, error)) == WATCHCORE_OK && found) {
//                 rc = watchcore_subscription_poll((watchcore_subscription *)(uintptr_t)tag, 256, &batch, error);
//                 if (rc == WATCHCORE_OK) {
//                     serve(&batch);
//                     watchcore_batch_release(&batch);
//                 } else if (rc != WATCHCORE_LAGGED) {
//                     break;
//                 } // LAGGED is reported once a loss; the next polls give what `on_lag` says.
//             }
//         }
//         close(loop);
//         return rc;
//     }
//
// Several threads may run such a loop on one set: a member that was returned to one thread is returned to no other
// before it was polled. To end the loop from another thread, close a subscription (watchcore_subscription_close): its
// tag is returned, and its poll answers CLOSED.
// ===========================================================================================================

// The first listing is published. Since 0.1.
#define WATCHCORE_WANT_READY 1
// The cache has `revision`. Since 0.1.
#define WATCHCORE_WANT_REVISION 2
// The cache has the revision that the source had at the time of this request (one linearizable read). Since 0.1.
#define WATCHCORE_WANT_CONSISTENT 3

// A single wait. Made by watchcore_waiter_new. Since 0.1.
typedef struct watchcore_waiter watchcore_waiter;

// Many subscriptions and waiters with one descriptor. Made by watchcore_wakeset_new. Since 0.1.
typedef struct watchcore_wakeset watchcore_wakeset;

// Begins a wait that does not block: ask with watchcore_waiter_try, or put the waiter into a wake set.
// `want`: WATCHCORE_WANT_...; `revision`: for REVISION, else 0; `epoch`: its epoch, 0 for the present one;
// else 0. If the history was replaced since that epoch, the wait ends with RESYNCED. `*waiter`: the
// caller's, ended by watchcore_waiter_free; it may outlive the cache. It has no time limit: free it to give
// up.
// Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT, CLOSED, FUTURE_REVISION (above
// WATCHCORE_REVISION_MAX). Since 0.1.
int32_t watchcore_waiter_new(const watchcore_cache *cache,
                             uint32_t want,
                             uint64_t revision,
                             uint64_t epoch,
                             watchcore_waiter **waiter,
                             watchcore_error *error);

// Checks whether the wait is over: `*done` 1, and then `*revision` and `*epoch` (each may be NULL) are the
// cache's position; or 0: not yet, and they are not written. If the wait failed, the call returns the code
// that the blocking form would return. A try that gives `*done` 0 arms a member of a wake set.
// Never blocks. One thread at a time.
// Codes: INVALID_ARGUMENT, BUSY, NOT_READY, RESYNCED, CLOSED. Since 0.1.
int32_t watchcore_waiter_try(watchcore_waiter *waiter,
                             uint32_t *done,
                             uint64_t *revision,
                             uint64_t *epoch,
                             watchcore_error *error);

// Frees a waiter; NULL does nothing. It leaves its wake set. Never blocks. Any thread. Since 0.1.
void watchcore_waiter_free(watchcore_waiter *waiter);

// Makes an empty wake set. `*set`: the caller's, ended by watchcore_wakeset_free. Never blocks. Any thread.
// Codes: INVALID_ARGUMENT, RESOURCE_EXHAUSTED (no descriptor left). Since 0.1.
int32_t watchcore_wakeset_new(watchcore_wakeset **set, watchcore_error *error);

// Puts a subscription into a set under a tag of the caller's choice, and arms it; it leaves the set it was
// in. Never blocks. The set: any thread, many at once; the subscription: one at a time.
// Codes: INVALID_ARGUMENT, BUSY. Since 0.1.
int32_t watchcore_wakeset_add_subscription(const watchcore_wakeset *set,
                                           watchcore_subscription *subscription,
                                           uint64_t tag,
                                           watchcore_error *error);

// Puts a waiter into a set under a tag of the caller's choice, and arms it; it leaves the set it was in.
// Never blocks. The set: any thread, many at once; the waiter: one at a time.
// Codes: INVALID_ARGUMENT, BUSY. Since 0.1.
int32_t watchcore_wakeset_add_waiter(const watchcore_wakeset *set,
                                     watchcore_waiter *waiter,
                                     uint64_t tag,
                                     watchcore_error *error);

// Removes a subscription from its set; its tag is not returned any more. (Freeing it does the same.) Never
// blocks. The set: any thread, many at once; the subscription: one at a time.
// Codes: INVALID_ARGUMENT (it is not in this set), BUSY. Since 0.1.
int32_t watchcore_wakeset_remove_subscription(const watchcore_wakeset *set,
                                              watchcore_subscription *subscription,
                                              watchcore_error *error);

// Removes a waiter from its set; its tag is not returned any more. (Freeing it does the same.)
// Never blocks. The set: any thread, many at once; the waiter: one at a time.
// Codes: INVALID_ARGUMENT (it is not in this set), BUSY. Since 0.1.
int32_t watchcore_wakeset_remove_waiter(const watchcore_wakeset *set,
                                        watchcore_waiter *waiter,
                                        watchcore_error *error);

// Returns the next ready member: `*found` 1, and `*tag` is its tag; or 0: no member is ready, and the
// descriptor becomes readable when one is. Poll (or try) the member once: if something is left, it becomes
// ready again, and if the poll returns nothing, it is armed. A member that is not polled is not returned
// again before its next poll. Once a member was removed or freed, its tag is not returned any more, so the
// tag may be a pointer that is freed with the member.
// Never blocks. Any thread, many at once: each member goes to one of them. Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_wakeset_next(const watchcore_wakeset *set,
                               uint64_t *tag,
                               uint32_t *found,
                               watchcore_error *error);

// Takes up to `capacity` tags of ready members at once; `*count`: how many. 0: none is ready, and the
// descriptor becomes readable when one is. Ready members beyond `capacity` stay ready. For a program, such
// as a binding, that passes the tags on to its own consumers: each polls its member until a poll returns
// nothing, which arms it. Unlike after watchcore_wakeset_next, a poll that returns events does not make such
// a member ready again. Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_wakeset_take(const watchcore_wakeset *set,
                               uint64_t *tags,
                               size_t capacity,
                               size_t *count,
                               watchcore_error *error);

// The set's descriptor, for poll(2), epoll or a runtime's poller: non-blocking, closed on exec. It belongs
// to the set: do not read, write or close it; valid until watchcore_wakeset_free. Never blocks. Any thread,
// many at once. Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_wakeset_fd(const watchcore_wakeset *set, int32_t *fd, watchcore_error *error);

// Waits until a member is ready, instead of sleeping on the descriptor. Blocks up to `timeout_ms` (-1: for
// ever, 0: not at all); only a member ends it early, for example one that is closed. Any thread, many at
// once; watchcore_wakeset_free may not be called meanwhile. Codes: INVALID_ARGUMENT, TIMEOUT. Since 0.1.
int32_t watchcore_wakeset_wait(const watchcore_wakeset *set,
                               int64_t timeout_ms,
                               watchcore_error *error);

// Frees a wake set; NULL does nothing. Its descriptor is closed, by a wake-up in progress if there is one.
// Members that are left continue to work, outside of any set. Never blocks. Any thread; no other call on the
// set may run or follow. Since 0.1.
void watchcore_wakeset_free(watchcore_wakeset *set);

// ===========================================================================================================
// 15. Status and statistics
// ===========================================================================================================

// There is no listing yet. Since 0.1.
#define WATCHCORE_STATE_NOT_READY 0
// The cache is up to date, as far as it knows. Since 0.1.
#define WATCHCORE_STATE_READY 1
// The source is out of reach; the cache answers with what it has. Since 0.1.
#define WATCHCORE_STATE_STALE 2
// The source refuses the cache; see the last error. Since 0.1.
#define WATCHCORE_STATE_FAILED 3
// The cache is closed. Since 0.1.
#define WATCHCORE_STATE_CLOSED 4
// The last error of the source; empty if there is none. Since 0.1.
#define WATCHCORE_TEXT_LAST_ERROR 1
// The endpoint that the feeder uses. Since 0.1.
#define WATCHCORE_TEXT_ENDPOINT 2
// The server's version. Since 0.1.
#define WATCHCORE_TEXT_SERVER_VERSION 3
// The cache's name. Since 0.1.
#define WATCHCORE_TEXT_NAME 4
// The cache's prefix: bytes, not text. Since 0.1.
#define WATCHCORE_TEXT_PREFIX 5
// Problems that a person has to correct although the source is followed, such as an unusable certificate file; empty
// if there are none. Since 0.1.
#define WATCHCORE_TEXT_WARNING 6

// The status of a cache. Since 0.1.
typedef struct watchcore_status {
    // sizeof(watchcore_status).
    uint32_t size;
    // WATCHCORE_STATE_...
    uint32_t state;
    // The cache's position: its revision.
    uint64_t revision;
    // The cache's position: its epoch.
    uint64_t epoch;
    // The oldest revision of the window: a start after `oldest - 1` is possible.
    uint64_t oldest;
    // Live keys.
    uint64_t objects;
    // Everything that the cache holds, in bytes: the sum of the bytes in `watchcore_stats`.
    uint64_t bytes;
    // Open subscriptions.
    uint64_t subscriptions;
    // The largest present lag of all subscriptions, in events as in watchcore_lag, including one that is never
    // polled. Which one it is: watchcore_subscription_list_new.
    uint64_t max_lag_events;
    // STALE: since when; else 0.
    int64_t stale_since_unix_ms;
    // The newest revision that the feeder knew when it last reported (at intervals); 0 without a feeder.
    uint64_t source_revision;
    // The cluster's id, as reported by the feeder.
    uint64_t cluster_id;
    // The id of the member that the feeder uses.
    uint64_t member_id;
    // The feeder's connections.
    uint64_t connects;
    // The feeder's connections after the first.
    uint64_t reconnects;
    // The feeder's resyncs.
    uint64_t resyncs;
    // The code of the source's last error, 0 without one; WATCHCORE_TEXT_LAST_ERROR is its message.
    int32_t last_error;
    // Why the source is not followed now: the code of its last error; 0 if it is followed, even if it failed before.
    int32_t source_error;
    // How far back the log goes: it has every event since then.
    uint64_t window_age_ms;
    // The largest lag that any subscription was ever found with, in events as in watchcore_lag, including freed
    // ones.
    uint64_t max_lag_seen;
    // Open subscriptions that have lost events which no poll has reported yet (WATCHCORE_SUBSCRIPTION_STATE_OVERRUN).
    uint64_t overrun;
} watchcore_status;
#define WATCHCORE_STATUS_INITIALIZER \
    { (uint32_t)sizeof(watchcore_status), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
#define WATCHCORE_STATUS_INIT WATCHCORE_LITERAL(watchcore_status) WATCHCORE_STATUS_INITIALIZER

// Statistics of a cache: its activity, and its memory by purpose. Since 0.1.
typedef struct watchcore_stats {
    // sizeof(watchcore_stats).
    uint32_t size;
    // 0.
    uint32_t reserved;
    // Events published since the cache was made.
    uint64_t events;
    // Revisions published since the cache was made.
    uint64_t revisions;
    // Live keys.
    uint64_t objects;
    // Bytes of live keys with their values, and of tombstones not purged yet.
    uint64_t version_bytes;
    // Bytes of the indexes, and of memory that the cache keeps for later writes.
    uint64_t index_bytes;
    // Bytes of the log's segments and of the replaced versions that they keep.
    uint64_t log_bytes;
    // Segments in memory: the log's, and those that batches, subscriptions and snapshots keep.
    uint64_t segments;
    // Segments of the log.
    uint64_t window_segments;
    // Deleted keys whose tombstones are not purged yet.
    uint64_t tombstones;
    // Open subscriptions.
    uint64_t subscriptions;
    // Waiters that sleep now.
    uint64_t waiting;
    // How often the notifier itself fell out of the window.
    uint64_t notifier_overruns;
    // The age of the oldest snapshot; 0 without one.
    uint64_t oldest_snapshot_ms;
    // Buckets of the declared indexes.
    uint64_t buckets;
    // Values whose attributes could not be extracted, so they count as absent.
    uint64_t extract_failures;
    // How often a subscription lost events, reported or not yet; including freed subscriptions.
    uint64_t lagged;
    // Panics of foreign code that were caught in this process.
    uint64_t caught_panics;
    // Bytes of the keys that subscriptions remember as delivered (to compute the difference after a loss), including
    // keys that were deleted since.
    uint64_t delivered_bytes;
    // Bytes of the event references that subscriptions have looked up in an index and not read yet.
    uint64_t link_bytes;
    // Bytes that this process has replaced and not freed yet; not part of the other counts. Writers wait beyond a
    // bound: 64 MiB and an eighth of each cache's capacity_bytes.
    uint64_t unfreed_bytes;
    // The bytes that count against capacity_bytes, all of which are freed as segments leave: the window's segments,
    // the versions that their events have replaced, and the remains of keys that they delete. The same bytes are
    // counted by their location in log_bytes, version_bytes and index_bytes.
    uint64_t window_bytes;
    // How far back the window goes: it has every event since then.
    uint64_t window_age_ms;
    // Events that the notifier has yet to evaluate for sleeping subscriptions whose filters are slower than the events
    // come; 0 if it keeps up. Only these subscriptions are notified late, and beyond half a window they are woken to
    // check for themselves: a poll may then return nothing.
    uint64_t notifier_behind;
    // The part of log_bytes outside the window: segments kept by snapshots, batches and subscriptions in the middle of
    // a segment, and memory that is about to be freed.
    uint64_t kept_bytes;
    // Snapshots that were not freed. Each keeps the log from its creation on.
    uint64_t snapshots;
    // Unreleased pages of more than 8 items, and unreleased batches of an initial state with more than 8 events. They
    // keep their key-values, but no part of the log outside the window.
    uint64_t pages;
    // Bytes of the key-values of those pages and batches that are older than the window, whether the cache still has
    // them or not; not part of the other counts.
    uint64_t page_bytes;
    // The remains of deleted keys until their tombstones are purged; part of version_bytes and index_bytes.
    uint64_t tombstone_bytes;
} watchcore_stats;
#define WATCHCORE_STATS_INITIALIZER \
    { (uint32_t)sizeof(watchcore_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
      0, 0, 0, 0, 0, 0, 0 }
#define WATCHCORE_STATS_INIT WATCHCORE_LITERAL(watchcore_stats) WATCHCORE_STATS_INITIALIZER

// The status of the cache. `status`: the caller's struct. Never blocks. Any thread, many at once.
// Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_cache_status(const watchcore_cache *cache,
                               watchcore_status *status,
                               watchcore_error *error);

// The statistics of the cache. `stats`: the caller's struct. Never blocks. Any thread, many at once.
// Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_cache_stats(const watchcore_cache *cache,
                              watchcore_stats *stats,
                              watchcore_error *error);

// Copies a text of the cache into the caller's buffer: `which` is WATCHCORE_TEXT_.... The text is cut if it
// is too long, and always NUL-terminated unless `capacity` is 0; `*length` (may be NULL): its full length
// without the NUL, so that a `buffer` NULL with `capacity` 0 asks for the length.
// Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_cache_text(const watchcore_cache *cache,
                             uint32_t which,
                             char *buffer,
                             size_t capacity,
                             size_t *length,
                             watchcore_error *error);

// The selection of metrics for watchcore_metrics_text. Since 0.1.
typedef struct watchcore_metrics_options {
    // sizeof(watchcore_metrics_options).
    uint32_t size;
    // 1: also some ten series for each open subscription, labelled by its name and number.
    uint32_t per_subscription;
} watchcore_metrics_options;
#define WATCHCORE_METRICS_OPTIONS_INITIALIZER \
    { (uint32_t)sizeof(watchcore_metrics_options), 0 }
#define WATCHCORE_METRICS_OPTIONS_INIT WATCHCORE_LITERAL(watchcore_metrics_options) WATCHCORE_METRICS_OPTIONS_INITIALIZER

// All metrics of these caches, of their feeders, and of the process, as text for Prometheus: a response of
// the type "text/plain; version=0.0.4; charset=utf-8". `options` NULL: the defaults. Give all caches of a
// program at once, so that each name has its HELP and TYPE once; the second of two caches with equal names
// is shown as "name#2". docs/OPERATIONS.md has a table of the names, and which to alert on. The text has
// some 10 KB per cache. `*text`: the caller's, read by watchcore_text_get, ended by watchcore_text_free.
// Never blocks; O(open subscriptions). Any thread, many at once. Codes: INVALID_ARGUMENT. Since 0.1.
int32_t watchcore_metrics_text(const watchcore_cache *const *caches,
                               size_t cache_count,
                               const watchcore_metrics_options *options,
                               watchcore_text **text,
                               watchcore_error *error);

// ===========================================================================================================
// 16. Building upon it
//
// Broadcasters and informers need no functions beyond those above. Two programs show them in full:
// examples/broadcaster.c and examples/informer.c.
//
// Broadcast  An embedded cache with one key. Publishing is watchcore_writer_apply with the next revision. A
// watcher is
//            a subscription with START_NOW (only later events) or START_AFTER (with history, as far back as the log
//            goes). The shutdown is watchcore_cache_free: every watcher gets the events published before, then
// CLOSED.
//            A watcher that drops events when it falls behind has ON_LAG_SKIP_TO_OLDEST, and its LAGGED has the lost
//            range. If the publisher must wait for a watcher, the program compares the published revision with
// that of
//            the last event that the watcher has handled; watchcore_subscription_lag is no measure for that,
// because a
//            sleeping subscription counts as having everything until it is woken.
// Informer   Each handler has its own subscription with ON_LAG_RESNAPSHOT, run by a thread or by a wake set. It
// keeps the
//            last key-value that it was given of each key, so that an update has its old value, and a deletion
// its last
//            one, even after a loss: the difference itself has only the present value. It is synced when it has
// handled
//            the event with FLAG_INITIAL_STATE_END. A lister is watchcore_cache_get and watchcore_cache_list; several
//            informers at one revision are one snapshot; "read your own writes" is watchcore_cache_wait_until.
// To remove
//            a handler: watchcore_subscription_close, and, once its thread has left the callback and read CLOSED,
//            watchcore_subscription_free.
// Until      A subscription with START_STATE, polled until an event meets the condition. The event's revision is
// the one
//            at which the condition held.
// ===========================================================================================================

#ifdef __cplusplus
} // extern "C"
#endif

#endif // WATCHCORE_H
