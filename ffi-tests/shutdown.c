/* One call after which nothing of the library is left: no thread, no memory. run.sh runs this under valgrind with all
   kinds of leaks as errors, and once more with the argument "without", where that must fail. */
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static watchcore_error error;
static watchcore_batch kept = WATCHCORE_BATCH_INITIALIZER;
static atomic_int inside, hold, answer_inside;
static pthread_t main_thread;

/* Threads of the library by the names that it gives them. */
static int threads(void)
{
    int count = 0;
    struct dirent *entry;
    DIR *tasks = opendir("/proc/self/task");
    while (tasks != NULL && (entry = readdir(tasks)) != NULL) {
        char path[300], name[32] = "";
        FILE *comm;
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
        comm = fopen(path, "r");
        if (comm != NULL) {
            count += fgets(name, sizeof(name), comm) != NULL && strncmp(name, "watchcore-", 10) == 0;
            fclose(comm);
        }
    }
    closedir(tasks);
    return count;
}

/* The feeder says on its own thread that the server is out of reach. */
static void log_function(void *context, uint32_t level, const char *message, size_t length)
{
    (void)context, (void)level, (void)message, (void)length;
    if (!atomic_exchange(&inside, 1)) {
        atomic_store(&answer_inside, watchcore_shutdown(0, NULL));
    }
    while (!pthread_equal(pthread_self(), main_thread) && atomic_load(&hold)) {
        usleep(1000);
    }
}

static watchcore_feeder *feeder_of_nothing(watchcore_cache *cache)
{
    watchcore_etcd_options etcd = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_feeder *feeder = NULL;
    etcd.endpoints = text("http://127.0.0.1:1");
    CHECK_OK(watchcore_feeder_start(cache, &etcd, &feeder, &error));
    return feeder;
}

/* Everything that there is is made, used and freed, but for `kept`. */
static void use_everything(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache, *fed = NULL;
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_attribute field = WATCHCORE_ATTRIBUTE_INIT;
    watchcore_index index = WATCHCORE_INDEX_INIT;
    watchcore_subscription_options follow = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_subscription *state = NULL, *chain = NULL, *sleeper = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT, initial = WATCHCORE_BATCH_INIT;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_subscription_list *list = NULL;
    watchcore_snapshot *snapshot = NULL;
    watchcore_iterator *iterator = NULL;
    watchcore_waiter *waiter = NULL;
    watchcore_wakeset *set = NULL;
    watchcore_page *page = NULL;
    watchcore_feeder *feeder;
    const watchcore_key_value *items[4];
    uint64_t revision, count, tags[4];
    size_t found = 0;
    int i;

    field.kind = WATCHCORE_ATTRIBUTE_JSON;
    field.name = text("phase");
    field.pointer = text("/phase");
    index.kind = WATCHCORE_INDEX_FIELD;
    index.name = text("phase");
    options.prefix = text("/");
    options.fields = &field;
    options.field_count = 1;
    options.indexes = &index;
    options.index_count = 1;
    CHECK_OK(watchcore_cache_new(&options, &cache, &error));
    CHECK_OK(watchcore_writer_new(cache, &writer, &error));
    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK_OK(watchcore_subscription_new(cache, NULL, &state, &error));
    follow.start = WATCHCORE_START_NOW;
    follow.fields = text("phase=run");
    follow.bookmarks = 1;
    follow.bookmark_interval_ms = 3600000;
    CHECK_OK(watchcore_subscription_new(cache, &follow, &chain, &error));
    CHECK_OK(watchcore_subscription_new(cache, &follow, &sleeper, &error));
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 2000, 0, &waiter, &error));
    CHECK_OK(watchcore_wakeset_add_subscription(set, sleeper, 1, &error));
    CHECK_OK(watchcore_wakeset_add_waiter(set, waiter, 2, &error));
    for (revision = 1; revision <= 2000; revision++) {
        char key[32];
        watchcore_change one;
        snprintf(key, sizeof(key), "/%d", (int)(revision % 700));
        one = put(key, revision % 3 == 0 ? "{\"phase\":\"run\"}" : "{\"phase\":\"end\"}");
        CHECK(watchcore_writer_apply(writer, revision, &one, 1, &error) == WATCHCORE_OK);
    }
    for (count = 0; count != 3;) {
        CHECK_OK(watchcore_wakeset_wait(set, -1, &error));
        CHECK_OK(watchcore_wakeset_take(set, tags, 4, &found, &error));
        for (i = 0; i < (int)found; i++) {
            count |= tags[i];
        }
    }
    CHECK_OK(watchcore_subscription_poll(state, 0, &initial, &error));
    CHECK_OK(watchcore_subscription_poll(chain, 0, &batch, &error));
    CHECK_OK(watchcore_subscription_poll(sleeper, 0, &kept, &error));
    CHECK(initial.count > 0 && batch.count > 0 && kept.count > 0);
    CHECK_OK(watchcore_cache_get(cache, "/1", 2, NULL, &answer, &error));
    read.limit = 2;
    CHECK_OK(watchcore_cache_list(cache, NULL, &read, &page, NULL, &error));
    CHECK_OK(watchcore_snapshot_new(cache, &snapshot, &error));
    CHECK_OK(watchcore_iterator_new(snapshot, NULL, &iterator, &error));
    CHECK_OK(watchcore_iterator_next(iterator, items, 4, &found, &error));
    CHECK_OK(watchcore_subscription_list_new(cache, &list, &error));
    options.fields = NULL;
    options.indexes = NULL;
    options.field_count = options.index_count = 0;
    CHECK_OK(watchcore_cache_new(&options, &fed, &error));
    feeder = feeder_of_nothing(fed);
    CHECK_CODE(WATCHCORE_TIMEOUT, watchcore_cache_wait_ready(fed, 1, &error));

    CHECK_CODE(WATCHCORE_BUSY, watchcore_shutdown(-1, &error));
    CHECK(strstr(error.message, "2 watchcore_cache, 1 watchcore_writer, 1 watchcore_feeder, 3 watchcore_subscription, "
                                "1 watchcore_waiter, 1 watchcore_snapshot, 1 watchcore_page, 1 watchcore_iterator") != NULL);
    watchcore_feeder_free(feeder);
    watchcore_cache_free(fed);
    watchcore_batch_release(&initial);
    watchcore_batch_release(&batch);
    watchcore_key_value_release(answer.kv);
    watchcore_subscription_list_free(list);
    watchcore_writer_free(writer);
    watchcore_waiter_free(waiter);
    watchcore_cache_free(cache);
    watchcore_wakeset_free(set);
    watchcore_page_free(page);
    watchcore_snapshot_free(snapshot);
    watchcore_iterator_free(iterator);
    watchcore_subscription_free(state);
    watchcore_subscription_free(chain);
    CHECK_CODE(WATCHCORE_BUSY, watchcore_shutdown(-1, &error));
    CHECK(strstr(error.message, "not freed yet: 1 watchcore_subscription. ") != NULL);
    watchcore_subscription_free(sleeper);
}

static void test_nothing_is_left(void)
{
    use_everything();
    CHECK(threads() > 0);
    CHECK_OK(watchcore_shutdown(30000, &error));
    CHECK(threads() == 0);
    CHECK(same(watchcore_event_value(watchcore_batch_event(&kept, 0)), "{\"phase\":\"run\"}"));
    watchcore_batch_release(&kept);
    CHECK_OK(watchcore_shutdown(0, &error));
    BAD(watchcore_shutdown(-2, &error));
}

static void test_it_starts_again(void)
{
    int i;
    for (i = 0; i < 3; i++) {
        watchcore_writer *writer = NULL;
        watchcore_cache *cache = embedded(&writer);
        watchcore_change one = put("/a", "1");
        CHECK_OK(watchcore_writer_apply(writer, 1, &one, 1, &error));
        watchcore_writer_free(writer);
        watchcore_cache_free(cache);
        CHECK_OK(watchcore_shutdown(30000, &error));
        CHECK(threads() == 0);
    }
}

static void *reads_and_ends(void *cache)
{
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    int32_t code = watchcore_cache_get(cache, "/a", 2, NULL, &answer, NULL);
    watchcore_key_value_release(answer.kv);
    return code == WATCHCORE_OK && answer.found == 0 ? cache : NULL;
}

static void test_threads_of_the_program_leave_nothing(void)
{
    watchcore_cache *cache = embedded(NULL);
    pthread_t thread;
    void *result = NULL;
    CHECK(pthread_create(&thread, NULL, reads_and_ends, cache) == 0);
    CHECK(pthread_join(thread, &result) == 0 && result == cache);
    watchcore_cache_free(cache);
    CHECK_OK(watchcore_shutdown(30000, &error));
}

static void test_log_function_that_does_not_return(void)
{
    watchcore_cache *cache = embedded(NULL);
    watchcore_feeder *feeder;
    int tries;
    atomic_store(&hold, 1);
    CHECK_OK(watchcore_log_set(log_function, NULL, WATCHCORE_LOG_WARN, &error));
    feeder = feeder_of_nothing(cache);
    for (tries = 0; !atomic_load(&inside) && tries < 60000; tries++) {
        usleep(1000);
    }
    CHECK(atomic_load(&inside));
    watchcore_feeder_free(feeder); /* 2 s: its thread is inside the log function */
    watchcore_cache_free(cache);
    CHECK_CODE(WATCHCORE_TIMEOUT, watchcore_shutdown(50, &error));
    CHECK(atomic_load(&answer_inside) == WATCHCORE_BUSY);
    CHECK(threads() > 0);
    cache = embedded(NULL); /* nothing has been shut down */
    watchcore_cache_free(cache);
    atomic_store(&hold, 0);
    CHECK_OK(watchcore_shutdown(30000, &error));
    CHECK(threads() == 0);
    CHECK_OK(watchcore_log_set(NULL, NULL, WATCHCORE_LOG_OFF, &error));
}

/* The child answers through a pipe: under valgrind its status is that of its own leaks, which are the parent's memory. */
static void test_forked_child_is_refused(void)
{
    watchcore_cache *cache = embedded(NULL);
    int ends[2];
    int32_t answer = -1;
    pid_t child;
    CHECK(pipe(ends) == 0);
    child = fork();
    if (child == 0) {
        answer = watchcore_shutdown(-1, NULL);
        _exit(write(ends[1], &answer, sizeof(answer)) == (ssize_t)sizeof(answer) ? 0 : 1);
    }
    close(ends[1]);
    CHECK(child > 0 && read(ends[0], &answer, sizeof(answer)) == (ssize_t)sizeof(answer));
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK(answer == WATCHCORE_UNSUPPORTED);
    close(ends[0]);
    watchcore_cache_free(cache);
}

/* After main, and after the thread-locals of its thread. */
static void at_exit(void)
{
    watchcore_cache *cache = embedded(NULL);
    watchcore_cache_free(cache);
    if (watchcore_shutdown(30000, &error) != WATCHCORE_OK || threads() != 0) {
        printf("FAILED: in atexit: %s\n", error.message);
        fflush(stdout);
        _exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "without") == 0) {
        use_everything();
        watchcore_batch_release(&kept);
        return check_broken;
    }
    main_thread = pthread_self();
    atexit(at_exit);
    RUN(test_nothing_is_left);
    RUN(test_it_starts_again);
    RUN(test_threads_of_the_program_leave_nothing);
    RUN(test_log_function_that_does_not_return);
    RUN(test_forked_child_is_refused);
    return check_finish("shutdown");
}
