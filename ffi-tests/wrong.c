/* The feeder against servers that break the rules of etcd's API: the fake etcd, whose path is in WATCHCORE_FAKE_ETCD. */
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static watchcore_error error;

/* A running fake etcd. All of them say that they are members of one cluster. */
struct fake {
    pid_t process;
    FILE *input;
    FILE *output;
    char url[64];
};

static void fake_start(struct fake *fake)
{
    int in[2], out[2];
    memset(fake, 0, sizeof(*fake));
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) {
        perror("pipe2");
        exit(2);
    }
    fake->process = fork();
    if (fake->process == 0) {
        const char *program = getenv("WATCHCORE_FAKE_ETCD");
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        execl(program, program, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    fake->input = fdopen(in[1], "w");
    fake->output = fdopen(out[0], "r");
    if (fake->process < 0 || fake->input == NULL || fake->output == NULL ||
        fgets(fake->url, sizeof(fake->url), fake->output) == NULL) {
        printf("the fake etcd does not start\n");
        exit(2);
    }
    fake->url[strcspn(fake->url, "\n")] = 0;
}

/* It ends with its input. */
static void fake_stop(struct fake *fake)
{
    int status = 0;
    fclose(fake->input);
    fclose(fake->output);
    CHECK(waitpid(fake->process, &status, 0) == fake->process && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* One command of tests/support/fake/mod.rs, which answers with a revision or a count. */
static uint64_t fake_do(struct fake *fake, const char *command)
{
    char answer[256] = "";
    uint64_t number = 0;
    fprintf(fake->input, "%s\n", command);
    fflush(fake->input);
    CHECK(fgets(answer, sizeof(answer), fake->output) != NULL && sscanf(answer, "%" SCNu64, &number) == 1);
    return number;
}

/* A cache of /x/ and the servers that it follows: the first one is wrong, and the other one holds the same. */
struct scene {
    struct fake servers[2];
    size_t count;
    watchcore_cache *cache;
    watchcore_feeder *feeder;
    watchcore_status status;
    uint64_t last; /* the newest revision of the servers */
    time_t end;    /* of what is waited for */
};

/* Writes the next value of /x/a, which is the revision before it, to each server. */
static void scene_put(struct scene *scene)
{
    char command[64];
    size_t i;
    snprintf(command, sizeof(command), "put /x/a %" PRIu64, scene->last);
    for (i = 0; i < scene->count; i++) {
        scene->last = fake_do(&scene->servers[i], command);
    }
}

static void scene_start(struct scene *scene, size_t count)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    size_t i;
    memset(scene, 0, sizeof(*scene));
    scene->count = count;
    for (i = 0; i < count; i++) {
        fake_start(&scene->servers[i]);
    }
    scene->last = 1; /* an empty etcd */
    scene->end = time(NULL) + 60;
    scene_put(scene);
    options.prefix = text("/x/");
    options.expect_load = 1;
    CHECK_OK(watchcore_cache_new(&options, &scene->cache, &error));
}

static void scene_follow(struct scene *scene)
{
    watchcore_etcd_options options = WATCHCORE_ETCD_OPTIONS_INIT;
    char endpoints[200];
    snprintf(endpoints, sizeof(endpoints), "%s,%s", scene->servers[0].url, scene->servers[1].url);
    options.endpoints = text(endpoints);
    options.progress_interval_ms = 10;
    CHECK_OK(watchcore_feeder_start(scene->cache, &options, &scene->feeder, &error));
}

static void scene_free(struct scene *scene)
{
    size_t i;
    watchcore_feeder_free(scene->feeder);
    watchcore_cache_free(scene->cache);
    for (i = 0; i < scene->count; i++) {
        fake_stop(&scene->servers[i]);
    }
}

/* While it is true somebody waits for a condition. Nothing is said to be the user's mistake meanwhile, and whenever the
   cache has what was written, the next value is. */
static int scene_waits(struct scene *scene, int holds)
{
    CHECK(scene->status.state != WATCHCORE_STATE_FAILED);
    CHECK(scene->status.last_error == 0 || scene->status.last_error == WATCHCORE_UNAVAILABLE);
    CHECK(holds || time(NULL) < scene->end);
    if (holds || check_broken) {
        return 0;
    }
    if (scene->status.revision >= scene->last) {
        scene_put(scene);
    }
    sched_yield();
    return 1;
}

static void scene_look(struct scene *scene)
{
    scene->status.size = (uint32_t)sizeof(scene->status);
    CHECK_OK(watchcore_cache_status(scene->cache, &scene->status, &error));
}

/* Whether the cache is ready and holds what the servers do. */
static int scene_is_equal(struct scene *scene)
{
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    int equal;
    if (scene->status.state != WATCHCORE_STATE_READY || scene->status.revision != scene->last ||
        scene->status.objects != 1) {
        return 0;
    }
    CHECK_OK(watchcore_cache_get(scene->cache, "/x/a", 4, NULL, &answer, &error));
    equal = answer.found == 1 && answer.revision == scene->last && answer.kv->mod_revision == scene->last;
    watchcore_key_value_release(answer.kv);
    return equal;
}

/* Whether this text of the cache contains a part. */
static int scene_says(struct scene *scene, uint32_t which, const char *part)
{
    char message[1024];
    CHECK_OK(watchcore_cache_text(scene->cache, which, message, sizeof(message), NULL, &error));
    return strstr(message, part) != NULL;
}

static watchcore_counters scene_counters(struct scene *scene)
{
    watchcore_counters counters = WATCHCORE_COUNTERS_INIT;
    CHECK_OK(watchcore_feeder_counters(scene->feeder, &counters, &error));
    return counters;
}

/* What a server does wrong again and again. */
static const struct wrong {
    const char *fault;
    int first;           /* the fault is there before the first listing, else behind the first watch */
    uint32_t state;      /* of a cache that has this server alone */
    const char *reason;  /* a part of the message of the last error */
    uint64_t violations; /* counted until the other endpoint is taken */
    uint64_t failures;   /* sessions that failed until then */
} wrongs[] = {
    {"fault lists-foreign-key", 1, WATCHCORE_STATE_NOT_READY, "a key outside the range that was asked for", 4, 2},
    {"fault compacted-reads", 1, WATCHCORE_STATE_NOT_READY, "twice in a row", 0, 1},
    {"fault compacted-watches", 1, WATCHCORE_STATE_STALE, "reason Compacted", 0, 1},
    {"fault sends-foreign-key", 0, WATCHCORE_STATE_STALE, "a key outside the range that was asked for", 2, 2},
    {"fault sends-wrong-version", 0, WATCHCORE_STATE_STALE, "a changed key whose version is not the next", 2, 2},
    {"fault old-progress", 0, WATCHCORE_STATE_STALE, "the watch stands at revision", 0, 1},
};

enum { WRONGS = sizeof(wrongs) / sizeof(wrongs[0]) };

/* Follows the servers, of which the first one has the fault: from the beginning, or as soon as it is watched. */
static void scene_begin(struct scene *scene, const struct wrong *wrong, size_t servers)
{
    scene_start(scene, servers);
    if (!wrong->first) {
        scene_follow(scene);
        do {
            scene_look(scene);
        } while (scene_waits(scene, fake_do(&scene->servers[0], "watches") > 0 && scene_is_equal(scene)));
    }
    (void)fake_do(&scene->servers[0], wrong->fault);
    if (wrong->first) {
        scene_follow(scene);
    }
}

/* A server that is wrong again and again is the reason that the status names, until the server is well again. */
static void test_wrong_server_alone(void)
{
    struct scene scene;
    size_t i;
    for (i = 0; i < WRONGS && !check_broken; i++) {
        const struct wrong *wrong = &wrongs[i];
        scene_begin(&scene, wrong, 1);
        do {
            scene_look(&scene);
        } while (scene_waits(&scene, scene_counters(&scene).failures >= 3 && scene.status.state == wrong->state &&
                                         scene_says(&scene, WATCHCORE_TEXT_LAST_ERROR, wrong->reason)));
        do {
            scene_look(&scene);
            CHECK(scene.status.state == wrong->state); /* between the failures, too */
        } while (scene_waits(&scene, scene_counters(&scene).failures >= 5));
        CHECK((scene_counters(&scene).integrity_violations > 0) == (wrong->violations > 0));
        (void)fake_do(&scene.servers[0], "heal");
        do {
            scene_look(&scene);
        } while (scene_waits(&scene, scene_is_equal(&scene)));
        CHECK(scene_counters(&scene).resyncs[WATCHCORE_RESYNC_HISTORY_RESET] == 0);
        scene_free(&scene);
        if (check_broken) {
            printf("  with %s\n", wrong->fault);
        }
    }
}

/* A server that is wrong again and again is left for one that is well. */
static void test_wrong_server_beside_another(void)
{
    struct scene scene;
    watchcore_counters counters;
    size_t i;
    for (i = 0; i < WRONGS && !check_broken; i++) {
        const struct wrong *wrong = &wrongs[i];
        scene_begin(&scene, wrong, 2);
        do {
            scene_look(&scene);
        } while (scene_waits(&scene, scene_says(&scene, WATCHCORE_TEXT_ENDPOINT, scene.servers[1].url) &&
                                         scene_is_equal(&scene)));
        CHECK(scene_says(&scene, WATCHCORE_TEXT_LAST_ERROR, wrong->reason));
        counters = scene_counters(&scene);
        CHECK(counters.integrity_violations == wrong->violations);
        CHECK(counters.failures == wrong->failures);
        scene_free(&scene);
        if (check_broken) {
            printf("  with %s: %" PRIu64 " violations, %" PRIu64 " failures\n", wrong->fault,
                   counters.integrity_violations, counters.failures);
        }
    }
}

/* An event that comes twice is applied once, counted, and no reason to list again. */
static void test_events_that_come_twice(void)
{
    enum { WRITES = 100 };
    static const char *const faults[] = {"fault sends-twice", "fault events-twice"};
    struct scene scene;
    watchcore_counters counters;
    size_t i, writes;
    for (i = 0; i < 2 && !check_broken; i++) {
        watchcore_subscription_options now = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
        watchcore_subscription *subscription = NULL;
        watchcore_batch batch = WATCHCORE_BATCH_INIT;
        uint64_t next;
        scene_start(&scene, 1);
        scene_follow(&scene);
        CHECK_OK(watchcore_cache_wait_ready(scene.cache, 60000, &error));
        now.start = WATCHCORE_START_NOW;
        CHECK_OK(watchcore_subscription_new(scene.cache, &now, &subscription, &error));
        (void)fake_do(&scene.servers[0], faults[i]);
        next = scene.last + 1;
        for (writes = 0; writes < WRITES; writes++) {
            scene_put(&scene);
        }
        for (; next <= scene.last && !check_broken; next++) {
            const watchcore_event *event;
            CHECK_OK(watchcore_subscription_wait(subscription, 60000, &error));
            CHECK_OK(watchcore_subscription_poll(subscription, 1, &batch, &error));
            event = watchcore_batch_event(&batch, 0);
            CHECK(batch.count == 1 && event->type == WATCHCORE_EVENT_MODIFIED && event->revision == next);
            watchcore_batch_release(&batch);
        }
        do {
            counters = scene_counters(&scene);
            sched_yield();
        } while (counters.repeated_events < WRITES && !check_broken && time(NULL) < scene.end);
        scene_look(&scene);
        CHECK(counters.repeated_events == WRITES && counters.events == WRITES && counters.integrity_violations == 0);
        CHECK(counters.listings == 1 && counters.failures == 0 && scene.status.state == WATCHCORE_STATE_READY);
        watchcore_subscription_free(subscription);
        scene_free(&scene);
        if (check_broken) {
            printf("  with %s\n", faults[i]);
        }
    }
}

int main(void)
{
    if (!has_feeder()) {
        printf("(built without etcd)\n");
    } else if (getenv("WATCHCORE_FAKE_ETCD") == NULL) {
        printf("(no fake etcd: scripts/fake-etcd.sh prints what WATCHCORE_FAKE_ETCD names)\n");
    } else {
        RUN(test_wrong_server_alone);
        RUN(test_wrong_server_beside_another);
        RUN(test_events_that_come_twice);
    }
    return check_finish("wrong");
}
