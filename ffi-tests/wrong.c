/* The feeder against servers that break the rules of etcd's API: the fake etcd, whose path is in WATCHCORE_FAKE_ETCD. */
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static watchcore_error error;
static size_t rows = 1; /* each of the tables, or each of so many: valgrind runs one thread at a time, and slowly */

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

/* The commands of a list that semicolons divide; the answer of the last one. */
static uint64_t fake_do_all(struct fake *fake, const char *commands)
{
    char copy[128], *rest = NULL, *command;
    uint64_t last = 0;
    snprintf(copy, sizeof(copy), "%s", commands);
    for (command = strtok_r(copy, ";", &rest); command != NULL; command = strtok_r(NULL, ";", &rest)) {
        last = fake_do(fake, command);
    }
    return last;
}

/* A cache of /x/ and the servers that it follows: the first one is wrong, and the other one holds the same. */
struct scene {
    struct fake servers[2];
    size_t count;
    uint64_t keys; /* /x/a alone, or /x/b too: all are written in one revision */
    int64_t progress_ms, timeout_ms, audit_ms; /* the feeder's, 0 for its defaults */
    watchcore_cache *cache;
    watchcore_feeder *feeder;
    watchcore_status status;
    uint64_t last; /* the newest revision of the servers */
    time_t end;    /* of what is waited for */
};

/* Writes the next value of each key, which is the revision before it, to each server. */
static void scene_put(struct scene *scene)
{
    char command[64];
    size_t i;
    int length = snprintf(command, sizeof(command), "put /x/a %" PRIu64, scene->last);
    if (scene->keys == 2) {
        snprintf(command + length, sizeof(command) - (size_t)length, " /x/b %" PRIu64, scene->last);
    }
    for (i = 0; i < scene->count; i++) {
        scene->last = fake_do(&scene->servers[i], command);
    }
}

enum { MAX_VALUE = 100000 };

static void scene_start(struct scene *scene, size_t count, uint64_t keys)
{
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    size_t i;
    memset(scene, 0, sizeof(*scene));
    scene->count = count;
    scene->keys = keys;
    scene->progress_ms = 10;
    for (i = 0; i < count; i++) {
        fake_start(&scene->servers[i]);
    }
    scene->last = 1; /* an empty etcd */
    scene->end = time(NULL) + 60;
    scene_put(scene);
    options.prefix = text("/x/");
    options.expect_load = 1;
    options.max_value_bytes = MAX_VALUE;
    CHECK_OK(watchcore_cache_new(&options, &scene->cache, &error));
}

static void scene_follow(struct scene *scene)
{
    watchcore_etcd_options options = WATCHCORE_ETCD_OPTIONS_INIT;
    char endpoints[200];
    snprintf(endpoints, sizeof(endpoints), "%s,%s", scene->servers[0].url, scene->servers[1].url);
    options.endpoints = text(endpoints);
    options.progress_interval_ms = scene->progress_ms;
    options.request_timeout_ms = scene->timeout_ms;
    options.audit_interval_ms = scene->audit_ms;
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
        scene->status.objects != scene->keys) {
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

/* Until the cache holds what the servers do. */
static void scene_settle(struct scene *scene)
{
    do {
        scene_look(scene);
    } while (scene_waits(scene, scene_is_equal(scene)));
}

/* What a server does wrong again and again. */
static const struct wrong {
    const char *name;
    const char *commands;
    int first;           /* it is wrong before the first listing, else behind the first watch */
    const char *reason;  /* a part of the message of the last error */
    uint64_t violations; /* counted until the other endpoint is taken */
    uint64_t failures;   /* sessions that failed until then */
} wrongs[] = {
    {"key outside the range in a listing", "fault lists-foreign-key", 1, "a key outside the range that was asked for", 4, 2},
    {"empty key in a listing", "fault lists-empty-key", 1, "an empty key", 4, 2},
    {"key twice in a listing", "fault lists-key-twice", 1, "keys of a listing that do not rise", 4, 2},
    {"large revision in a listing", "fault lists-large-revision", 1, "numbers that no value has", 4, 2},
    {"negative version in a listing", "fault lists-negative-version", 1, "numbers that no value has", 4, 2},
    {"key from the future in a listing", "fault lists-future-key", 1, "numbers that no value has", 4, 2},
    {"large revision of each answer", "fault large-revision", 1, "a revision that no etcd reaches", 2, 2},
    {"pages that never end", "fault no-streams;fault endless-pages", 1, "a page of a listing", 2, 2},
    {"listing that is compacted", "fault compacted-reads", 1, "twice in a row", 0, 1},
    {"stream that is compacted", "fault compacted-streams", 1, "twice in a row", 0, 1},
    {"watch that is compacted", "fault compacted-watches", 1, "reason Compacted", 0, 1},
    {"key outside the range in an event", "fault sends-foreign-key", 0, "a key outside the range that was asked for", 2, 2},
    {"empty key in an event", "fault sends-empty-key", 0, "an empty key", 2, 2},
    {"key twice in a revision", "fault sends-key-twice", 0, "a key that changes twice in one revision", 2, 2},
    {"large revision of an event", "fault sends-large-revision", 0, "a revision that no etcd reaches", 2, 2},
    {"negative revision of an event", "fault sends-negative-revision", 0, "a revision that no etcd reaches", 2, 2},
    {"event from the future", "fault sends-future-event", 0, "an event after the revision of its message", 2, 2},
    {"corrupt member", "fault sends-wrong-version", 0, "a changed key whose version is not the next", 2, 2},
    {"events of another watch", "fault other-watch", 0, "a message of another watch", 2, 2},
    {"progress between fragments", "fault progress-in-fragments", 0, "a progress notification between fragments", 2, 2},
    {"watch that stands still", "fault old-progress", 0, "the watch stands at revision", 0, 1},
};

enum { WRONGS = sizeof(wrongs) / sizeof(wrongs[0]) };

/* A cache without a listing is not ready, another one is stale; the first listing of a watch that is compacted succeeds. */
static uint32_t wrong_state(const struct wrong *wrong)
{
    return wrong->first && strstr(wrong->commands, "watches") == NULL ? WATCHCORE_STATE_NOT_READY : WATCHCORE_STATE_STALE;
}

/* Follows the servers, of which the first one has the fault: from the beginning, or as soon as it is watched. */
static void scene_begin(struct scene *scene, const struct wrong *wrong, size_t servers)
{
    scene_start(scene, servers, 2);
    if (!wrong->first) {
        scene_follow(scene);
        do {
            scene_look(scene);
        } while (scene_waits(scene, fake_do(&scene->servers[0], "watches") > 0 && scene_is_equal(scene)));
    }
    (void)fake_do_all(&scene->servers[0], wrong->commands);
    if (wrong->first) {
        scene_follow(scene);
    }
}

/* A server that is wrong again and again is the reason that the status names, until the server is well again. */
static void test_wrong_server_alone(void)
{
    struct scene scene;
    size_t i;
    for (i = 0; i < WRONGS && !check_broken; i += rows) {
        const struct wrong *wrong = &wrongs[i];
        scene_begin(&scene, wrong, 1);
        do {
            scene_look(&scene);
        } while (scene_waits(&scene, scene_counters(&scene).failures >= 3 && scene.status.state == wrong_state(wrong) &&
                                         scene_says(&scene, WATCHCORE_TEXT_LAST_ERROR, wrong->reason)));
        do {
            scene_look(&scene);
            CHECK(scene.status.state == wrong_state(wrong)); /* between the failures, too */
            CHECK(scene.status.source_error == WATCHCORE_UNAVAILABLE);
        } while (scene_waits(&scene, scene_counters(&scene).failures >= 4));
        CHECK((scene_counters(&scene).integrity_violations > 0) == (wrong->violations > 0));
        (void)fake_do(&scene.servers[0], "heal");
        (void)fake_do(&scene.servers[0], "puts /x/a 1000"); /* so many revisions are calm */
        scene_put(&scene);
        scene_settle(&scene);
        CHECK(scene.status.source_error == 0 && scene.status.last_error != 0);
        CHECK(scene_counters(&scene).resyncs[WATCHCORE_RESYNC_HISTORY_RESET] == 0);
        scene_free(&scene);
        if (check_broken) {
            printf("  with %s\n", wrong->name);
        }
    }
}

/* A server that is wrong again and again is left for one that is well. */
static void test_wrong_server_beside_another(void)
{
    struct scene scene;
    watchcore_counters counters;
    size_t i;
    for (i = 0; i < WRONGS && !check_broken; i += rows) {
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
            printf("  with %s: %" PRIu64 " violations, %" PRIu64 " failures\n", wrong->name,
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
        scene_start(&scene, 1, 1);
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

/* Servers that are not as they should be, and need not be left. The steps are commands of the fake etcd, and `follow`, which
   starts the feeder and waits for its watch, `settle`, `put`, `read`, which is a consistent read, `far` and `near`, which wait
   until the server's newest revision is one that it cannot have, or can, and `differs`, which waits for an audit that found something. At the end the cache holds what the server does. */
static const struct odd {
    const char *name;
    const char *steps;
    int64_t progress_ms, timeout_ms, audit_ms;
    uint64_t violations;
    uint64_t failures; /* at most: cuts are among them */
    uint64_t resets;   /* resyncs as of another history */
    uint64_t compared; /* consistent reads by a comparison */
} odds[] = {
    {"server without streams", "fault no-streams;follow", 10, 0, 0, 0, 0, 0, 0},
    {"stream that never ends", "fault endless-stream;follow", 10, 300, 0, 0, 0, 0, 0},
    {"stream that repeats a key", "fault repeating-stream;follow", 10, 0, 0, 1, 0, 0, 0},
    {"stream whose keys rise for ever", "fault rising-stream;follow", 10, 0, 0, 1, 0, 0, 0},
    {"fragments", "follow;fault fragments;put", 10, 0, 0, 0, 0, 0, 0},
    {"message under way", "follow;fault slow 1;fill /x/b 25000", 50, 0, 0, 0, 0, 0, 0},
    {"headers without a cluster", "follow;fault no-cluster;cut;put;settle;heal;cut;put", 10, 0, 0, 0, 9, 0, 0},
    {"headers far away for a while", "follow;fault far-header;far;heal;near", 60000, 0, 0, 0, 0, 0, 0},
    {"requests for progress without an answer", "fault no-progress;follow;put /y/n 1;read;heal;put", 10, 0, 0, 0, 0, 0, 1},
    {"differing value", "follow;corrupt /x/a other;differs", 10, 0, 10, 0, 0, 1, 0},
};

static void scene_step(struct scene *scene, const char *step)
{
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    uint64_t revision = 0;
    int holds = 0;
    if (strcmp(step, "follow") == 0) {
        scene_follow(scene);
        do {
            scene_look(scene);
        } while (scene_waits(scene, fake_do(&scene->servers[0], "watches") > 0 && scene_is_equal(scene)));
    } else if (strcmp(step, "settle") == 0) {
        scene_settle(scene);
    } else if (strcmp(step, "put") == 0) {
        scene_put(scene);
    } else if (strcmp(step, "read") == 0) {
        /* As long as a request over HTTP waits; nothing has to be waited for behind it. */
        CHECK_OK(watchcore_cache_consistent_revision(scene->cache, 3000, &revision, &error));
        scene_look(scene);
        CHECK(scene->status.revision >= revision);
    } else if (strcmp(step, "far") == 0 || strcmp(step, "near") == 0) {
        do {
            scene_look(scene);
            holds = (scene->status.source_revision > scene->last) == (strcmp(step, "far") == 0);
        } while (scene_waits(scene, holds));
    } else if (strcmp(step, "differs") == 0) {
        /* The next write would be the repair. */
        while (!holds && !check_broken) {
            sched_yield();
            CHECK_OK(watchcore_cache_get(scene->cache, "/x/a", 4, NULL, &answer, &error));
            holds = answer.kv->value_length == 5 && memcmp(answer.kv->value, "other", 5) == 0;
            watchcore_key_value_release(answer.kv);
            CHECK(holds || time(NULL) < scene->end);
        }
        CHECK(scene_counters(scene).differences == 1);
    } else {
        revision = fake_do(&scene->servers[0], step);
        /* A key of the cache's. */
        scene->last = strstr(step, " /x/") != NULL ? revision : scene->last;
    }
}

/* A server that is odd is followed all the same. */
static void test_odd_server(void)
{
    size_t i;
    for (i = 0; i < sizeof(odds) / sizeof(odds[0]) && !check_broken; i += rows) {
        const struct odd *odd = &odds[i];
        struct scene scene;
        watchcore_counters counters;
        char steps[128], *rest = NULL, *step;
        scene_start(&scene, 1, 2);
        scene.progress_ms = odd->progress_ms;
        scene.timeout_ms = odd->timeout_ms;
        scene.audit_ms = odd->audit_ms;
        snprintf(steps, sizeof(steps), "%s", odd->steps);
        for (step = strtok_r(steps, ";", &rest); step != NULL; step = strtok_r(NULL, ";", &rest)) {
            scene_step(&scene, step);
        }
        scene_settle(&scene);
        counters = scene_counters(&scene);
        CHECK(counters.integrity_violations == odd->violations);
        CHECK(counters.failures <= odd->failures);
        CHECK(counters.resyncs[WATCHCORE_RESYNC_HISTORY_RESET] == odd->resets);
        CHECK(counters.compared_reads == odd->compared);
        CHECK(counters.silences == 0);
        scene_free(&scene);
        if (check_broken) {
            printf("  with %s\n", odd->name);
        }
    }
}

/* A value above the cache's limit is the user's matter, unless another endpoint has a shorter one. */
static void test_refused_value(void)
{
    char fill[64];
    size_t servers;
    snprintf(fill, sizeof(fill), "fill /x/a %d", MAX_VALUE + 1);
    for (servers = 1; servers <= 2 && !check_broken; servers++) {
        struct scene scene;
        scene_start(&scene, servers, 1);
        scene.last = fake_do(&scene.servers[0], fill);
        if (servers == 2) {
            CHECK(fake_do(&scene.servers[1], "put /x/a short") == scene.last);
        }
        scene_follow(&scene);
        /* Beside another one the refusal shows for a moment. */
        do {
            scene_look(&scene);
            sched_yield();
            CHECK(time(NULL) < scene.end);
        } while (!check_broken &&
                 (servers == 2 ? !scene_is_equal(&scene) : scene.status.state != WATCHCORE_STATE_FAILED));
        if (servers == 2) {
            CHECK(scene_says(&scene, WATCHCORE_TEXT_ENDPOINT, scene.servers[1].url));
        } else {
            CHECK(scene.status.last_error == WATCHCORE_INVALID_ARGUMENT);
            CHECK(scene_says(&scene, WATCHCORE_TEXT_LAST_ERROR, "/x/a"));
        }
        scene_free(&scene);
    }
}

/* `few`: not each row. */
int main(int count, char **arguments)
{
    rows = count == 2 && strcmp(arguments[1], "few") == 0 ? 4 : 1;
    if (!has_feeder()) {
        printf("(built without etcd)\n");
    } else if (getenv("WATCHCORE_FAKE_ETCD") == NULL) {
        printf("(no fake etcd: scripts/fake-etcd.sh prints what WATCHCORE_FAKE_ETCD names)\n");
    } else {
        RUN(test_wrong_server_alone);
        RUN(test_wrong_server_beside_another);
        RUN(test_events_that_come_twice);
        RUN(test_odd_server);
        RUN(test_refused_value);
    }
    return check_finish("wrong");
}
