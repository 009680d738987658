/* The smallest test frame: CHECK counts nothing but its test's failure; every test is one line of the report.
   At the end the library's counts of calls go to the file that WATCHCORE_COUNTS names, where it has them. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "watchcore.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Exported by the test build only. */
extern const char *watchcore_debug_count(size_t index, uint64_t *calls, uint64_t *successes, uint64_t *errors)
    __attribute__((weak));
extern uint32_t watchcore_debug_answered(size_t index, uint32_t code) __attribute__((weak));
extern void watchcore_debug_panic_next(void) __attribute__((weak));
#ifdef __cplusplus
}
#endif

static int check_passed;
static int check_failed;
static int check_broken; /* the test that runs now */

static inline int check_report(int good, const char *file, int line, const char *what, const char *more)
{
    if (!good) {
        check_broken = 1;
        printf("  %s:%d: %s%s%s\n", file, line, what, more[0] != 0 ? ": " : "", more);
    }
    return good;
}

#define CHECK(condition) (void)check_report((condition) ? 1 : 0, __FILE__, __LINE__, #condition, "")

/* A message speaks to a C programmer: of no method and no type of Rust's. */
static inline int check_speaks_c(const char *message)
{
    static const char *const foreign[] = {"builder", "::", "Drop ", "unwrap", "Some(", "None", "wait_ready(", "&str"};
    size_t i;
    for (i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++) {
        if (strstr(message, foreign[i]) != NULL) {
            return 0;
        }
    }
    return 1;
}

/* A code, and the message where it is another one. Uses the variable `error`. */
#define CHECK_CODE(expected, call) \
    do { \
        char more_[700]; \
        int32_t code_; \
        memset(&error, 0, sizeof(error)); \
        error.size = (uint32_t)sizeof(error); \
        code_ = (call); \
        snprintf(more_, sizeof(more_), "%s %s", watchcore_error_name(code_), error.message); \
        (void)check_report(code_ == (expected), __FILE__, __LINE__, #call, more_); \
        /* The struct is written by a failing call only, and then says it all. */ \
        (void)check_report(error.code == code_, __FILE__, __LINE__, #call, "error.code is not the code"); \
        (void)check_report((error.message[0] != 0) == (code_ != WATCHCORE_OK), __FILE__, __LINE__, #call, \
                           "a message exactly where it fails"); \
        (void)check_report(check_speaks_c(error.message), __FILE__, __LINE__, #call, error.message); \
    } while (0)

#define CHECK_OK(call) CHECK_CODE(WATCHCORE_OK, call)
#define BAD(call) CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, call)

static inline void check_end(const char *test)
{
    if (check_broken) {
        check_failed++;
    } else {
        check_passed++;
    }
    printf("%s %s\n", check_broken ? "FAILED" : "ok    ", test);
    fflush(stdout);
}

#define RUN(test) \
    do { \
        check_broken = 0; \
        test(); \
        check_end(#test); \
    } while (0)

static inline void check_write_counts(void)
{
    const char *path = getenv("WATCHCORE_COUNTS");
    const char *name;
    uint64_t calls, successes, errors;
    size_t i;
    FILE *file;
    if (path == NULL || watchcore_debug_count == NULL) {
        return;
    }
    file = fopen(path, "a");
    if (file == NULL) {
        perror(path);
        exit(2);
    }
    for (i = 0; (name = watchcore_debug_count(i, &calls, &successes, &errors)) != NULL; i++) {
        uint32_t number;
        fprintf(file, "%s %llu %llu %llu", name, (unsigned long long)calls, (unsigned long long)successes,
                (unsigned long long)errors);
        for (number = 0; number < 128; number++) {
            if (watchcore_debug_answered(i, number)) {
                fprintf(file, " %s", watchcore_error_name((int32_t)number));
            }
        }
        fprintf(file, "\n");
    }
    fclose(file);
}

static inline int check_finish(const char *program)
{
    check_write_counts();
    printf("%s: %d passed, %d failed\n", program, check_passed, check_failed);
    fflush(stdout);
    return check_failed != 0;
}

/* Short ways to say common things. */

static inline watchcore_bytes text(const char *string)
{
    return watchcore_bytes_from_string(string);
}

static inline int same(watchcore_bytes bytes, const char *string)
{
    return bytes.data != NULL && bytes.length == strlen(string) && memcmp(bytes.data, string, bytes.length) == 0;
}

static inline watchcore_change change(uint32_t op, const char *key, const char *value)
{
    watchcore_change one = WATCHCORE_CHANGE_INIT;
    one.op = op;
    one.key = text(key);
    one.value = text(value);
    return one;
}

static inline watchcore_change put(const char *key, const char *value)
{
    return change(WATCHCORE_CHANGE_PUT, key, value);
}

static inline watchcore_change del(const char *key)
{
    return change(WATCHCORE_CHANGE_DELETE, key, NULL);
}

static inline watchcore_change exact(const char *key, const char *value, uint64_t create, uint64_t mod, uint64_t version)
{
    watchcore_change one = change(WATCHCORE_CHANGE_PUT_EXACT, key, value);
    one.create_revision = create;
    one.mod_revision = mod;
    one.version = version;
    return one;
}

/* An embedded cache of everything below "/" and its writer, or the end of the program. */
static inline watchcore_cache *embedded(watchcore_writer **writer)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_error error = WATCHCORE_ERROR_INIT;
    watchcore_cache *cache = NULL;
    options.prefix = text("/");
    if (watchcore_cache_new(&options, &cache, &error) != WATCHCORE_OK ||
        (writer != NULL && watchcore_writer_new(cache, writer, &error) != WATCHCORE_OK)) {
        printf("cannot make a cache: %s\n", error.message);
        exit(2);
    }
    return cache;
}

/* The revision of a snapshot. */
static inline uint64_t snapshot_revision(const watchcore_snapshot *snapshot)
{
    watchcore_error error = WATCHCORE_ERROR_INIT;
    uint64_t revision = 0;
    (void)check_report(watchcore_snapshot_position(snapshot, &revision, NULL, &error) == WATCHCORE_OK, __FILE__, __LINE__,
                       "watchcore_snapshot_position", error.message);
    return revision;
}

/* The properties of a page. */
static inline watchcore_page_info page_info(const watchcore_page *page)
{
    watchcore_page_info info = WATCHCORE_PAGE_INFO_INIT;
    watchcore_error error = WATCHCORE_ERROR_INIT;
    (void)check_report(watchcore_page_describe(page, &info, &error) == WATCHCORE_OK, __FILE__, __LINE__,
                       "watchcore_page_describe", error.message);
    return info;
}

/* Whether the library has the feature etcd. */
static inline int has_feeder(void)
{
    watchcore_cache *cache = embedded(NULL);
    watchcore_etcd_options options = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_error error = WATCHCORE_ERROR_INIT;
    watchcore_feeder *feeder = NULL;
    int32_t code;
    options.endpoints = text("http://127.0.0.1:1");
    code = watchcore_feeder_start(cache, &options, &feeder, &error);
    watchcore_feeder_free(feeder);
    watchcore_cache_free(cache);
    return code != WATCHCORE_UNSUPPORTED;
}

#endif /* CHECK_H */
