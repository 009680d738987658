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
@TOC@
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
// Codes      Functions that can fail return an int32_t: WATCHCORE_OK (0) or one of the codes of section @SECTION:error@, and
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
//            waits for ever, 0 does not wait. Each has an alternative that never blocks: section @SECTION:wakeset@.
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
