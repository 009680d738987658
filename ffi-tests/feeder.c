/* The feeder: with no server behind the endpoint always, against a server where WATCHCORE_ETCD names one. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

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

/* Without the feature etcd there is none; everything else here needs it. */
static int supported(void)
{
    watchcore_cache *cache = embedded(NULL);
    watchcore_etcd_options options = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_feeder *feeder = NULL;
    int32_t code;
    options.endpoints = text("http://127.0.0.1:1");
    code = watchcore_feeder_start(cache, &options, &feeder, &error);
    watchcore_feeder_free(feeder);
    watchcore_cache_free(cache);
    return code != WATCHCORE_UNSUPPORTED;
}

static void test_bad_options(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(NULL);
    watchcore_etcd_options options = WATCHCORE_ETCD_OPTIONS_INIT;
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
    options.dial_timeout_ms = -5;
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_feeder_start(cache, &options, &feeder, &error));
    options.dial_timeout_ms = 0;
    options.no_progress_requests = 2;
    CHECK_CODE(WATCHCORE_INVALID_ARGUMENT, watchcore_feeder_start(cache, &options, &feeder, &error));
    options.no_progress_requests = 0;
    /* A refused start gives the writer back. */
    CHECK_OK(watchcore_cache_writer(cache, &writer, &error));
    CHECK_CODE(WATCHCORE_BUSY, watchcore_feeder_start(cache, &options, &feeder, &error));
    CHECK(feeder == NULL);
    watchcore_writer_free(writer);
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
    CHECK_CODE(WATCHCORE_BUSY, watchcore_cache_writer(cache, &writer, &error));
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

static void test_against_a_server(void)
{
    watchcore_cache *cache = embedded(NULL);
    watchcore_etcd_options options = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_feeder *feeder = NULL;
    watchcore_subscription *subscription = NULL;
    watchcore_counters counters = WATCHCORE_COUNTERS_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    uint64_t revision = 0, reached = 0;
    char version[64];
    options.endpoints = text(getenv("WATCHCORE_ETCD"));
    options.page_size = 100;
    options.too_far_behind = 1000;
    options.progress_interval_ms = 500;
    options.dial_timeout_ms = 5000;
    options.request_timeout_ms = 5000;
    CHECK_OK(watchcore_subscription_new(cache, NULL, &subscription, &error));
    CHECK_OK(watchcore_feeder_start(cache, &options, &feeder, &error));
    CHECK_OK(watchcore_cache_wait_ready(cache, 30000, &error));
    CHECK_OK(watchcore_cache_consistent_revision(cache, 30000, &revision, &error));
    CHECK(revision > 0);
    CHECK_OK(watchcore_cache_wait_until(cache, revision, 30000, &reached, NULL, &error));
    CHECK(reached >= revision);
    CHECK_OK(watchcore_subscription_wait(subscription, 30000, &error));
    CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
    CHECK(batch.count > 0);
    watchcore_batch_release(&batch);
    CHECK_OK(watchcore_feeder_counters(feeder, &counters, &error));
    CHECK(counters.listings > 0 && counters.resyncs[0] == 0);
    CHECK_OK(watchcore_cache_text(cache, WATCHCORE_TEXT_SERVER_VERSION, version, sizeof(version), NULL, &error));
    CHECK(version[0] == '3');
    watchcore_subscription_free(subscription);
    watchcore_feeder_free(feeder);
    watchcore_cache_free(cache);
}

int main(void)
{
    if (!supported()) {
        printf("(built without etcd)\n");
        return check_finish("feeder");
    }
    RUN(test_bad_options);
    RUN(test_server_out_of_reach);
    if (getenv("WATCHCORE_ETCD") != NULL) {
        RUN(test_against_a_server);
    }
    return check_finish("feeder");
}
