/* The feeder: with no server behind the endpoint always, against a server below scripts/with-etcd.sh. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "etcdctl.h"

static watchcore_error error;

/* A port of this machine on which nobody listens: bound, never listened on. */
static int closed_port(char *endpoint, size_t capacity)
{
    struct sockaddr_in address;
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&address, 0, sizeof(address));
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) != 0) {
        perror("socket");
        exit(2);
    }
    snprintf(endpoint, capacity, "http://127.0.0.1:%d", (int)ntohs(address.sin_port));
    return fd;
}

static void test_bad_options(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(NULL);
    watchcore_etcd_options options = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_subscription *subscription = NULL;
    watchcore_feeder *feeder = NULL;
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_feeder_start(cache, NULL, &feeder, &error));
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_feeder_start(cache, &options, &feeder, &error));
    options.endpoints = text(" , ");
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_feeder_start(cache, &options, &feeder, &error));
    options.endpoints = text("http://127.0.0.1:1");
    options.password = text("secret");
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_feeder_start(cache, &options, &feeder, &error));
    CHECK(strstr(error.message, "secret") == NULL);
    options.password = text(NULL);
    options.key_pem = text("PEM");
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_feeder_start(cache, &options, &feeder, &error));
    options.key_pem = text(NULL);
    options.cert_file = text("/none.pem");
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_feeder_start(cache, &options, &feeder, &error));
    options.key_pem = text("PEM");
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_feeder_start(cache, &options, &feeder, &error));
    options.cert_file = options.key_pem = text(NULL);
    options.ca_file = text("/none.pem");
    options.ca_pem = text("PEM");
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_feeder_start(cache, &options, &feeder, &error));
    options.ca_pem = text(NULL); /* TLS, and an endpoint that is http */
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_feeder_start(cache, &options, &feeder, &error));
    CHECK(strstr(error.message, "write https") != NULL);
    options.ca_file = text(NULL);
    options.min_tls_version = 13;
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_feeder_start(cache, &options, &feeder, &error));
    CHECK(strstr(error.message, "0x0304") != NULL);
    options.min_tls_version = 0;
    options.dial_timeout_ms = -5;
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_feeder_start(cache, &options, &feeder, &error));
    options.dial_timeout_ms = 0;
    options.no_progress_requests = 2;
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_feeder_start(cache, &options, &feeder, &error));
    options.no_progress_requests = 0;
    /* A refused start gives the writer back. */
    CHECK_OK(watchcore_writer_new(cache, &writer, &error));
    CHECK_CODE(WATCHCORE_BUSY, watchcore_feeder_start(cache, &options, &feeder, &error));
    CHECK(feeder == NULL);
    watchcore_writer_free(writer);
    /* A subscription of the cache that was ready, and empty, would miss the listing. */
    CHECK_OK(watchcore_subscription_new(cache, NULL, &subscription, &error));
    CHECK_CODE(WATCHCORE_BUSY, watchcore_feeder_start(cache, &options, &feeder, &error));
    CHECK(feeder == NULL && strstr(error.message, "expects a listing") != NULL);
    watchcore_subscription_free(subscription);
    CHECK_OK(watchcore_cache_wait_ready(cache, 0, &error)); /* it is as it was */
    watchcore_cache_free(cache);
}

/* Files are looked at when a connection is made: what is wrong with them is what the first wait answers. */
static void test_certificate_files(void)
{
    watchcore_cache *cache = embedded(NULL);
    watchcore_etcd_options options = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_feeder *feeder = NULL;
    char message[1024];
    options.endpoints = text("https://127.0.0.1:1");
    options.ca_file = text("/etc/passwd");
    options.cert_file = text("/none.pem");
    options.key_file = text("/none.key");
    options.server_name = text("etcd.test");
    options.min_tls_version = 0x0304;
    CHECK_OK(watchcore_feeder_start(cache, &options, &feeder, &error));
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_cache_wait_ready(cache, 60000, &error));
    CHECK(strstr(error.message, "the client certificate /none.pem does not exist") != NULL);
    CHECK_OK(watchcore_cache_text(cache, WATCHCORE_TEXT_WARNING, message, sizeof(message), NULL, &error));
    CHECK(message[0] == '\0');
    watchcore_feeder_free(feeder);
    watchcore_cache_free(cache);
}

static int log_calls;

static void count_messages(void *context, uint32_t level, const char *message, size_t length)
{
    if (level <= WATCHCORE_LOG_DEBUG && message != NULL && length > 0) {
        __atomic_fetch_add((int *)context, 1, __ATOMIC_RELAXED);
    }
}

static void test_server_out_of_reach(void)
{
    watchcore_cache *cache = embedded(NULL);
    watchcore_etcd_options options = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_feeder *feeder = NULL;
    watchcore_status status = WATCHCORE_STATUS_INIT;
    watchcore_counters counters = WATCHCORE_COUNTERS_INIT;
    watchcore_writer *writer = NULL;
    char endpoint[64], message[1024];
    size_t length = 0;
    int fd = closed_port(endpoint, sizeof(endpoint));
    CHECK_OK(watchcore_log_set(count_messages, &log_calls, WATCHCORE_LOG_DEBUG, &error));
    options.endpoints = text(endpoint);
    CHECK_OK(watchcore_feeder_start(cache, &options, &feeder, &error));
    CHECK_CODE(WATCHCORE_BUSY, watchcore_writer_new(cache, &writer, &error));
    do {
        CHECK_OK(watchcore_cache_status(cache, &status, &error));
        sched_yield();
    } while (status.last_error == 0);
    CHECK(status.last_error == WATCHCORE_UNAVAILABLE && status.state == WATCHCORE_STATE_NOT_READY);
    CHECK_OK(watchcore_cache_text(cache, WATCHCORE_TEXT_LAST_ERROR, message, sizeof(message), &length, &error));
    CHECK(length > 0 && strstr(message, endpoint) != NULL);
    CHECK_OK(watchcore_cache_text(cache, WATCHCORE_TEXT_ENDPOINT, message, sizeof(message), &length, &error));
    CHECK_OK(watchcore_cache_text(cache, WATCHCORE_TEXT_SERVER_VERSION, message, sizeof(message), &length, &error));
    CHECK_CODE(WATCHCORE_TIMEOUT, watchcore_cache_wait_ready(cache, 1, &error));
    CHECK_OK(watchcore_feeder_counters(feeder, &counters, &error));
    CHECK(counters.failures > 0 && counters.connects == 0 && counters.events == 0);
    CHECK_OK(watchcore_feeder_request_resync(feeder, &error));
    CHECK_OK(watchcore_feeder_stop(feeder, &error));
    CHECK_OK(watchcore_feeder_stop(feeder, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_cache_wait_ready(cache, -1, &error));
    watchcore_feeder_free(feeder);
    watchcore_cache_free(cache);
    CHECK_OK(watchcore_log_set(NULL, NULL, WATCHCORE_LOG_OFF, &error));
    CHECK(__atomic_load_n(&log_calls, __ATOMIC_RELAXED) > 0);
    close(fd);
}

/* A cache that waits for its listing, with a log of `capacity` events. */
static watchcore_cache *waiting_cache(const char *prefix, uint64_t capacity)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    options.prefix = text(prefix);
    options.expect_load = 1;
    options.capacity = capacity;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    return cache;
}

static uint64_t revision_of(const watchcore_cache *cache)
{
    watchcore_status status = WATCHCORE_STATUS_INIT;
    CHECK_OK(watchcore_cache_status(cache, &status, &error));
    return status.revision;
}

/* The next event, waited for; its batch is the caller's. */
static const watchcore_event *next_event(watchcore_subscription *subscription, watchcore_batch *batch)
{
    watchcore_batch_release(batch);
    if (!check_broken) { /* else it may never come */
        CHECK_OK(watchcore_subscription_wait(subscription, 60000, &error));
        CHECK_OK(watchcore_subscription_poll(subscription, 1, batch, &error));
        CHECK(batch->count == 1);
    }
    return check_broken ? NULL : watchcore_batch_event(batch, 0);
}

static void test_against_a_server(void)
{
    watchcore_cache_options cache_options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_etcd_options options = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    watchcore_feeder *feeder = NULL;
    watchcore_subscription *subscription = NULL;
    watchcore_counters counters = WATCHCORE_COUNTERS_INIT;
    watchcore_status status = WATCHCORE_STATUS_INIT;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    const watchcore_event *event;
    uint64_t revision = 0, reached = 0, first;
    char prefix[64], key[80], buffer[256];
    snprintf(prefix, sizeof(prefix), "/ffi/%d/", (int)getpid());
    snprintf(key, sizeof(key), "%sa", prefix);
    etcdctl("put", key, "1");

    cache_options.prefix = text(prefix);
    cache_options.expect_load = 1; /* so that the subscription waits for the listing */
    CHECK_OK(watchcore_cache_new(&cache_options, &cache, &error));
    CHECK_OK(watchcore_subscription_new(cache, NULL, &subscription, &error));
    options.endpoints = text(getenv("WATCHCORE_TEST_ENDPOINT"));
    options.page_size = 100;
    options.too_far_behind = 1000;
    options.progress_interval_ms = 500;
    options.dial_timeout_ms = 5000;
    options.request_timeout_ms = 5000;
    CHECK_OK(watchcore_feeder_start(cache, &options, &feeder, &error));
    CHECK_OK(watchcore_cache_wait_ready(cache, 60000, &error));

    event = next_event(subscription, &batch);
    CHECK(event != NULL && event->type == WATCHCORE_EVENT_ADDED && same(watchcore_event_key(event), key));
    CHECK(event != NULL && (event->flags & WATCHCORE_FLAG_INITIAL_STATE) != 0 && same(watchcore_event_value(event), "1"));
    first = event != NULL ? event->revision : 0;
    event = next_event(subscription, &batch);
    CHECK(event != NULL && event->type == WATCHCORE_EVENT_BOOKMARK && (event->flags & WATCHCORE_FLAG_INITIAL_STATE_END) != 0);

    etcdctl("put", key, "2");
    etcdctl("del", key, NULL);
    event = next_event(subscription, &batch);
    CHECK(event != NULL && event->type == WATCHCORE_EVENT_MODIFIED && event->revision > first);
    CHECK(event != NULL && same(watchcore_event_value(event), "2") && same(watchcore_event_prev_value(event), "1"));
    CHECK(event != NULL && event->kv->create_revision == first && event->kv->version == 2);
    event = next_event(subscription, &batch);
    CHECK(event != NULL && event->type == WATCHCORE_EVENT_DELETED && same(watchcore_event_prev_value(event), "2"));
    watchcore_batch_release(&batch);

    CHECK_OK(watchcore_cache_consistent_revision(cache, 60000, &revision, &error));
    CHECK(revision > first);
    CHECK_OK(watchcore_cache_wait_until(cache, revision, 60000, &reached, NULL, &error));
    CHECK(reached >= revision);
    CHECK_OK(watchcore_cache_get(cache, key, strlen(key), NULL, &answer, &error));
    CHECK(answer.found == 0 && answer.revision >= revision);
    do { /* told now and then, not with each message */
        CHECK_OK(watchcore_cache_status(cache, &status, &error));
        sched_yield();
    } while (status.source_revision < revision && !check_broken);
    CHECK(status.state == WATCHCORE_STATE_READY);
    CHECK(status.cluster_id != 0 && status.member_id != 0 && status.connects > 0 && status.resyncs == 0);
    CHECK_OK(watchcore_cache_text(cache, WATCHCORE_TEXT_SERVER_VERSION, buffer, sizeof(buffer), NULL, &error));
    CHECK(buffer[0] == '3');
    CHECK_OK(watchcore_cache_text(cache, WATCHCORE_TEXT_ENDPOINT, buffer, sizeof(buffer), NULL, &error));
    CHECK(strcmp(buffer, getenv("WATCHCORE_TEST_ENDPOINT")) == 0);
    CHECK_OK(watchcore_feeder_counters(feeder, &counters, &error));
    CHECK(counters.listings == 1 && counters.resyncs[0] == 0 && counters.events == 2 && counters.revisions == 2);
    CHECK_OK(watchcore_feeder_request_resync(feeder, &error));
    do {
        CHECK_OK(watchcore_feeder_counters(feeder, &counters, &error));
        sched_yield();
    } while (counters.listings < 2 && !check_broken);

    CHECK_OK(watchcore_feeder_stop(feeder, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_cache_wait_until(cache, UINT64_C(1) << 50, 60000, NULL, NULL, &error));
    watchcore_subscription_free(subscription);
    watchcore_feeder_free(feeder);
    watchcore_cache_free(cache);
}

/* The next events have the numbers from `from` to below `end` as their values. */
static void check_numbers(watchcore_subscription *subscription, watchcore_batch *batch, int from, int end)
{
    char value[16];
    for (; from < end && !check_broken; from++) {
        const watchcore_event *event = next_event(subscription, batch);
        snprintf(value, sizeof(value), "%d", from);
        CHECK(event != NULL && same(watchcore_event_value(event), value));
    }
}

/* etcd's own history from its beginning, beside a subscription that the feeder waits for; and from below the newest. */
static void test_history_from_a_revision(void)
{
    enum { WRITES = 5, BELOW = 3 };
    watchcore_cache_options cache_options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_etcd_options options = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_subscription_options start = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_cache *cache = NULL;
    watchcore_feeder *feeder = NULL;
    watchcore_subscription *subscription = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    const watchcore_event *event;
    uint64_t newest = 0;
    char prefix[64], key[80], value[16];
    int i;
    snprintf(prefix, sizeof(prefix), "/ffi/%d/history/", (int)getpid());
    snprintf(key, sizeof(key), "%sa", prefix);
    for (i = 0; i < WRITES; i++) {
        snprintf(value, sizeof(value), "%d", i);
        etcdctl("put", key, value);
    }
    cache_options.prefix = text(prefix);
    cache_options.expect_load = 1;
    CHECK_OK(watchcore_cache_new(&cache_options, &cache, &error));
    CHECK_OK(watchcore_subscription_new(cache, NULL, &subscription, &error));
    options.endpoints = text(getenv("WATCHCORE_TEST_ENDPOINT"));
    options.start_revision = 1;
    options.pace = (watchcore_subscription *)(void *)cache;
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_feeder_start(cache, &options, &feeder, &error));
    options.pace = subscription;
    CHECK_OK(watchcore_feeder_start(cache, &options, &feeder, &error));
    event = next_event(subscription, &batch);
    CHECK(event != NULL && event->type == WATCHCORE_EVENT_BOOKMARK); /* nothing was there at revision 1 */
    check_numbers(subscription, &batch, 0, WRITES);
    watchcore_batch_release(&batch);
    watchcore_subscription_free(subscription);
    watchcore_feeder_free(feeder);
    watchcore_cache_free(cache);

    /* Below the newest one: who was there before the program began goes on. */
    options = WATCHCORE_ETCD_OPTIONS_INIT;
    options.endpoints = text(getenv("WATCHCORE_TEST_ENDPOINT"));
    options.history = BELOW;
    cache = waiting_cache(prefix, 0);
    CHECK_OK(watchcore_feeder_start(cache, &options, &feeder, &error));
    CHECK_OK(watchcore_cache_consistent_revision(cache, 60000, &newest, &error));
    start.start = WATCHCORE_START_AFTER;
    start.revision = newest - BELOW;
    CHECK_OK(watchcore_subscription_new(cache, &start, &subscription, &error));
    check_numbers(subscription, &batch, WRITES - BELOW, WRITES);
    watchcore_batch_release(&batch);
    watchcore_subscription_free(subscription);
    watchcore_feeder_free(feeder);
    watchcore_cache_free(cache);
}

/* A replay longer than the log: with a pace the feeder waits for a reader that does not read, without one the reader
   has lost what the other one still sees. */
static void test_history_longer_than_the_log(void)
{
    enum { REVISIONS = 40, KEYS = 100, CAPACITY = 1024 };
    watchcore_etcd_options options = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_subscription_options start = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_cache *cache, *without;
    watchcore_feeder *feeder = NULL, *other = NULL;
    watchcore_subscription *subscription = NULL, *lost = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    uint64_t newest = 0;
    int next = 0;
    char prefix[64], key[80], value[16];
    snprintf(prefix, sizeof(prefix), "/ffi/%d/long/", (int)getpid());
    cache = waiting_cache(prefix, CAPACITY);
    without = waiting_cache(prefix, CAPACITY);
    options.endpoints = text(getenv("WATCHCORE_TEST_ENDPOINT"));
    {
        /* Where the history begins: what etcd is at now. */
        watchcore_cache *probe = waiting_cache(prefix, 0);
        CHECK_OK(watchcore_feeder_start(probe, &options, &feeder, &error));
        CHECK_OK(watchcore_cache_wait_ready(probe, 60000, &error));
        options.start_revision = revision_of(probe);
        for (next = 0; next < REVISIONS; next++) {
            etcdctl_transaction(prefix, KEYS, next);
        }
        CHECK_OK(watchcore_cache_consistent_revision(probe, 60000, &newest, &error));
        watchcore_feeder_free(feeder);
        watchcore_cache_free(probe);
        feeder = NULL;
    }
    start.start = WATCHCORE_START_AFTER;
    start.revision = options.start_revision;
    CHECK_OK(watchcore_subscription_new(cache, &start, &subscription, &error));
    CHECK_OK(watchcore_subscription_new(without, &start, &lost, &error));
    options.pace = subscription;
    CHECK_OK(watchcore_feeder_start(cache, &options, &feeder, &error));
    options.pace = NULL;
    CHECK_OK(watchcore_feeder_start(without, &options, &other, &error));
    CHECK_OK(watchcore_cache_wait_ready(cache, 60000, &error));
    CHECK_OK(watchcore_cache_wait_until(without, newest, 60000, NULL, NULL, &error));
    CHECK_CODE(WATCHCORE_COMPACTED, watchcore_subscription_poll(lost, 0, &batch, &error));
    CHECK(revision_of(cache) < newest);

    for (next = 0; next < REVISIONS * KEYS && !check_broken;) {
        size_t i;
        CHECK_OK(watchcore_subscription_wait(subscription, 60000, &error));
        CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
        for (i = 0; i < batch.count && !check_broken; i++, next++) {
            const watchcore_event *event = watchcore_batch_event(&batch, i);
            snprintf(key, sizeof(key), "%s%04d", prefix, next % KEYS);
            snprintf(value, sizeof(value), "%d", next / KEYS);
            CHECK(same(watchcore_event_key(event), key) && same(watchcore_event_value(event), value));
        }
        watchcore_batch_release(&batch);
    }
    CHECK(next == REVISIONS * KEYS);
    watchcore_subscription_free(subscription);
    watchcore_subscription_free(lost);
    watchcore_feeder_free(feeder);
    watchcore_feeder_free(other);
    watchcore_cache_free(cache);
    watchcore_cache_free(without);
}

/* What etcd compacts the cache forgets, where that is asked for. */
static void test_compaction_is_followed(void)
{
    enum { WRITES = 10 };
    watchcore_etcd_options options = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_status status = WATCHCORE_STATUS_INIT;
    watchcore_cache *follows, *keeps;
    watchcore_feeder *feeder = NULL, *other = NULL;
    uint64_t last = 0, revision = 0, epoch = 0, oldest = 0;
    time_t end;
    char prefix[64], key[80], number[32];
    int i;
    snprintf(prefix, sizeof(prefix), "/ffi/%d/compacted/", (int)getpid());
    snprintf(key, sizeof(key), "%sa", prefix);
    follows = waiting_cache(prefix, 0);
    keeps = waiting_cache(prefix, 0);
    options.endpoints = text(getenv("WATCHCORE_TEST_ENDPOINT"));
    CHECK_OK(watchcore_feeder_start(keeps, &options, &other, &error));
    options.follow_compaction_ms = 20;
    CHECK_OK(watchcore_feeder_start(follows, &options, &feeder, &error));
    CHECK_OK(watchcore_cache_wait_ready(follows, 60000, &error));
    CHECK_OK(watchcore_cache_wait_ready(keeps, 60000, &error));
    for (i = 0; i < WRITES; i++) {
        snprintf(number, sizeof(number), "%d", i);
        etcdctl("put", key, number);
    }
    CHECK_OK(watchcore_cache_consistent_revision(follows, 60000, &last, &error));
    CHECK_OK(watchcore_cache_wait_until(follows, last, 60000, NULL, NULL, &error));
    CHECK_OK(watchcore_cache_wait_until(keeps, last, 60000, NULL, NULL, &error));
    snprintf(number, sizeof(number), "%llu", (unsigned long long)(last - 3));
    etcdctl("compaction", number, NULL);
    end = time(NULL) + 60;
    do {
        CHECK_OK(watchcore_cache_status(follows, &status, &error));
        sched_yield();
    } while (status.oldest < last - 2 && !check_broken && time(NULL) < end);
    CHECK(status.oldest == last - 2);
    read.mode = WATCHCORE_READ_EXACT;
    read.revision = last - 3;
    CHECK_OK(watchcore_cache_get(follows, key, strlen(key), &read, &answer, &error));
    CHECK(answer.found == 1 && answer.revision == last - 3);
    watchcore_key_value_release(answer.kv);
    read.revision = last - 4;
    CHECK_CODE(WATCHCORE_COMPACTED, watchcore_cache_get(follows, key, strlen(key), &read, &answer, &error));
    CHECK_OK(watchcore_cache_get(keeps, key, strlen(key), &read, &answer, &error));
    CHECK(answer.found == 1 && answer.revision == last - 4);
    watchcore_key_value_release(answer.kv);
    /* Who learned of it elsewhere says so. */
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_feeder_compact(other, UINT64_MAX, &error));
    CHECK_OK(watchcore_feeder_compact(other, last - 3, &error));
    do {
        CHECK_OK(watchcore_cache_position(keeps, &revision, &epoch, &oldest, &error));
        sched_yield();
    } while (oldest < last - 2 && !check_broken && time(NULL) < end);
    CHECK(oldest == last - 2 && revision >= last && epoch != 0);
    CHECK_CODE(WATCHCORE_COMPACTED, watchcore_cache_get(keeps, key, strlen(key), &read, &answer, &error));
    CHECK_OK(watchcore_feeder_stop(other, &error));
    CHECK_CODE(WATCHCORE_CLOSED, watchcore_feeder_compact(other, last, &error));
    watchcore_feeder_free(feeder);
    watchcore_feeder_free(other);
    watchcore_cache_free(follows);
    watchcore_cache_free(keeps);
}

/* The whole cache is compared with etcd each interval, and a negative one is never. */
static void test_audits(void)
{
    watchcore_etcd_options options = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_counters counters = WATCHCORE_COUNTERS_INIT;
    watchcore_cache *often, *never;
    watchcore_feeder *feeder = NULL, *other = NULL;
    time_t end = time(NULL) + 60;
    char prefix[64], key[80];
    snprintf(prefix, sizeof(prefix), "/ffi/%d/audited/", (int)getpid());
    snprintf(key, sizeof(key), "%sa", prefix);
    etcdctl("put", key, "x");
    often = waiting_cache(prefix, 0);
    never = waiting_cache(prefix, 0);
    options.endpoints = text(getenv("WATCHCORE_TEST_ENDPOINT"));
    options.audit_interval_ms = -1;
    CHECK_OK(watchcore_feeder_start(never, &options, &other, &error));
    CHECK_OK(watchcore_cache_wait_ready(never, 60000, &error));
    options.audit_interval_ms = 1;
    CHECK_OK(watchcore_feeder_start(often, &options, &feeder, &error));
    do {
        CHECK_OK(watchcore_feeder_counters(feeder, &counters, &error));
        sched_yield();
    } while (counters.audits < 3 && !check_broken && time(NULL) < end);
    CHECK(counters.audits >= 3 && counters.audited_keys >= 3 && counters.differences == 0);
    CHECK_OK(watchcore_feeder_counters(other, &counters, &error));
    CHECK(counters.audits == 0 && counters.audited_keys == 0);
    watchcore_feeder_free(feeder);
    watchcore_feeder_free(other);
    watchcore_cache_free(often);
    watchcore_cache_free(never);
}

/* One key of the prefix; its neighbours are absent, and move the position all the same. */
static void test_one_key_alone(void)
{
    watchcore_etcd_options options = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_status status = WATCHCORE_STATUS_INIT;
    watchcore_cache *cache;
    watchcore_feeder *feeder = NULL;
    watchcore_subscription *subscription = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    const watchcore_event *event;
    uint64_t revision = 0;
    char prefix[64], key[80], below[96], behind[96];
    snprintf(prefix, sizeof(prefix), "/ffi/%d/one/", (int)getpid());
    snprintf(key, sizeof(key), "%skey", prefix);
    snprintf(below, sizeof(below), "%s/below", key);
    snprintf(behind, sizeof(behind), "%s2", key);
    etcdctl("put", below, "1");
    etcdctl("put", key, "1");
    etcdctl("put", behind, "1");
    cache = waiting_cache(prefix, 0);
    CHECK_OK(watchcore_subscription_new(cache, NULL, &subscription, &error));
    options.endpoints = text(getenv("WATCHCORE_TEST_ENDPOINT"));
    options.only_key = text("/elsewhere");
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_feeder_start(cache, &options, &feeder, &error));
    options.only_key = text(key);
    CHECK_OK(watchcore_feeder_start(cache, &options, &feeder, &error));
    event = next_event(subscription, &batch);
    CHECK(event != NULL && event->type == WATCHCORE_EVENT_ADDED && same(watchcore_event_key(event), key));
    event = next_event(subscription, &batch);
    CHECK(event != NULL && event->type == WATCHCORE_EVENT_BOOKMARK);
    etcdctl("put", below, "2");
    etcdctl("put", behind, "2");
    etcdctl("put", key, "2");
    event = next_event(subscription, &batch);
    CHECK(event != NULL && event->type == WATCHCORE_EVENT_MODIFIED && same(watchcore_event_value(event), "2"));
    etcdctl("put", behind, "3");
    CHECK_OK(watchcore_cache_consistent_revision(cache, 60000, &revision, &error));
    CHECK_OK(watchcore_cache_wait_until(cache, revision, 60000, NULL, NULL, &error));
    CHECK_OK(watchcore_cache_status(cache, &status, &error));
    CHECK(status.objects == 1);
    watchcore_batch_release(&batch);
    watchcore_subscription_free(subscription);
    watchcore_feeder_free(feeder);
    watchcore_cache_free(cache);
}

int main(void)
{
    if (!has_feeder()) {
        printf("(built without etcd)\n");
        return check_finish("feeder");
    }
    RUN(test_bad_options);
    RUN(test_certificate_files);
    RUN(test_server_out_of_reach);
    if (getenv("WATCHCORE_TEST_ENDPOINT") != NULL && getenv("WATCHCORE_TEST_ETCDCTL") != NULL) {
        RUN(test_against_a_server);
        RUN(test_history_from_a_revision);
        RUN(test_history_longer_than_the_log);
        RUN(test_one_key_alone);
        RUN(test_compaction_is_followed);
        RUN(test_audits);
    } else {
        printf("(no server: run it by scripts/with-etcd.sh)\n");
    }
    return check_finish("feeder");
}
