/* A forked child has the memory but not the threads: every call answers UNSUPPORTED, every free does nothing, and
   the parent's handles go on. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static watchcore_error error;

static void test_child_is_refused_and_parent_goes_on(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer), *other = NULL;
    watchcore_subscription *subscription = NULL;
    watchcore_snapshot *snapshot = NULL;
    watchcore_wakeset *set = NULL, *second = NULL;
    watchcore_page *page = NULL;
    watchcore_page_info info = WATCHCORE_PAGE_INFO_INIT;
    watchcore_waiter *waiter = NULL;
    watchcore_text *text = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT, kept = WATCHCORE_BATCH_INIT;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_change one = put("/a", "1");
    watchcore_status status = WATCHCORE_STATUS_INIT;
    uint64_t revision = 0;
    int wstatus = 0;
    int ends[2] = {-1, -1};
    char verdict = '?';
    pid_t child;

    CHECK_OK(watchcore_subscription_new(cache, NULL, &subscription, &error));
    CHECK_OK(watchcore_writer_apply(writer, 1, &one, 1, &error));
    CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
    watchcore_batch_release(&batch);
    CHECK_OK(watchcore_subscription_poll(subscription, 0, &kept, &error));
    CHECK_OK(watchcore_cache_get(cache, "/a", 2, NULL, &answer, &error));
    CHECK_OK(watchcore_snapshot_new(cache, &snapshot, &error));
    CHECK_OK(watchcore_cache_list(cache, NULL, NULL, &page, NULL, &error));
    CHECK_OK(watchcore_wakeset_new(&set, &error));
    CHECK_OK(watchcore_waiter_new(cache, WATCHCORE_WANT_REVISION, 99, 0, &waiter, &error));

    CHECK(pipe(ends) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    fflush(stdout);
    child = fork();
    if (child == 0) {
        CHECK_CODE(WATCHCORE_UNSUPPORTED, watchcore_subscription_poll(subscription, 0, &batch, &error));
        CHECK_CODE(WATCHCORE_UNSUPPORTED, watchcore_subscription_close(subscription, &error));
        CHECK_CODE(WATCHCORE_UNSUPPORTED, watchcore_writer_apply(writer, 2, &one, 1, &error));
        CHECK_CODE(WATCHCORE_UNSUPPORTED, watchcore_cache_status(cache, &status, &error));
        CHECK_CODE(WATCHCORE_UNSUPPORTED, watchcore_cache_wait_until(cache, 5, -1, NULL, NULL, &error));
        CHECK_CODE(WATCHCORE_UNSUPPORTED, watchcore_cache_new(NULL, &other, &error));
        CHECK_CODE(WATCHCORE_UNSUPPORTED, watchcore_wakeset_new(&second, &error));
        CHECK_CODE(WATCHCORE_UNSUPPORTED, watchcore_log_set(NULL, NULL, WATCHCORE_LOG_OFF, &error));
        CHECK_CODE(WATCHCORE_UNSUPPORTED, watchcore_metrics_text(NULL, 0, NULL, &text, &error)); /* of no handle */
        CHECK_CODE(WATCHCORE_UNSUPPORTED, watchcore_snapshot_position(snapshot, &revision, NULL, &error));
        CHECK_CODE(WATCHCORE_UNSUPPORTED, watchcore_page_describe(page, &info, &error));
        CHECK(watchcore_page_item(page, 0) == NULL);
        CHECK(same(watchcore_event_key(watchcore_batch_event(&kept, 0)), "/a")); /* memory can be read */
        watchcore_batch_release(&kept);
        CHECK(kept.owner == NULL);
        watchcore_key_value_release(answer.kv);
        watchcore_waiter_free(waiter);
        watchcore_page_free(page);
        watchcore_snapshot_free(snapshot);
        watchcore_subscription_free(subscription);
        watchcore_wakeset_free(set);
        watchcore_writer_free(writer);
        watchcore_cache_free(cache);
        fflush(stdout);
        verdict = check_broken ? 'b' : 'g';
        if (write(ends[1], &verdict, 1) != 1) {
            perror("write");
        }
        kill(getpid(), SIGKILL); /* no look for leaks: the stacks of the parent's threads are gone here */
    }
    CHECK(child > 0 && waitpid(child, &wstatus, 0) == child);
    CHECK(WIFSIGNALED(wstatus) && WTERMSIG(wstatus) == SIGKILL);
    CHECK(read(ends[0], &verdict, 1) == 1 && verdict == 'g');
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);

    CHECK_OK(watchcore_writer_apply(writer, 2, &one, 1, &error));
    CHECK_OK(watchcore_subscription_wait(subscription, -1, &error));
    CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
    CHECK(batch.count == 1);
    watchcore_batch_release(&batch);
    CHECK_OK(watchcore_cache_wait_until(cache, 2, 0, &revision, NULL, &error));
    CHECK(revision == 2 && page_info(page).count == 1);
    CHECK(same(watchcore_event_value(watchcore_batch_event(&kept, 0)), "1"));
    watchcore_batch_release(&kept);
    watchcore_key_value_release(answer.kv);
    watchcore_waiter_free(waiter);
    watchcore_page_free(page);
    watchcore_snapshot_free(snapshot);
    watchcore_wakeset_free(set);
    watchcore_subscription_free(subscription);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

static atomic_int stop;
static atomic_ulong asked;

static void *ask_all_the_time(void *cache)
{
    uint64_t revision = 0;
    while (!atomic_load(&stop) && watchcore_cache_position(cache, &revision, NULL, NULL, NULL) == WATCHCORE_OK) {
        atomic_fetch_add(&asked, 1);
    }
    return NULL;
}

/* What another thread was inside of at the fork stays as it was for ever: the child must wait for nothing of it. */
static void test_child_of_a_busy_process_is_refused(void)
{
    enum { THREADS = 2, SECONDS = 30 };
    const int rounds = watchcore_debug_count != NULL ? 20 : 2; /* the test build alone has a lock for its handles */
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_snapshot *snapshot = NULL;
    pthread_t threads[THREADS];
    int round, i, wstatus = 0;
    CHECK_OK(watchcore_snapshot_new(cache, &snapshot, &error));
    for (i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, ask_all_the_time, cache) != 0) {
            perror("pthread_create");
            exit(2);
        }
    }
    for (round = 0; round < rounds && !check_broken; round++) {
        const unsigned long before = atomic_load(&asked);
        pid_t child;
        while (atomic_load(&asked) < before + 100) {
            sched_yield();
        }
        child = fork();
        if (child == 0) {
            uint64_t revision = 0;
            int good;
            alarm(SECONDS); /* the end of one that hangs */
            good = watchcore_cache_position(cache, &revision, NULL, NULL, NULL) == WATCHCORE_UNSUPPORTED;
            good = watchcore_writer_progress(writer, 9, NULL) == WATCHCORE_UNSUPPORTED && good;
            watchcore_snapshot_free(snapshot);
            kill(getpid(), good ? SIGKILL : SIGABRT); /* no look for leaks, see above */
        }
        CHECK(child > 0 && waitpid(child, &wstatus, 0) == child);
        CHECK(WIFSIGNALED(wstatus) && WTERMSIG(wstatus) == SIGKILL);
    }
    atomic_store(&stop, 1);
    for (i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK_OK(watchcore_writer_progress(writer, 9, &error));
    watchcore_snapshot_free(snapshot);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

int main(void)
{
    RUN(test_child_is_refused_and_parent_goes_on);
    RUN(test_child_of_a_busy_process_is_refused);
    return check_finish("fork");
}
