/* The rows of contract/core, from the same text as in Rust and Go: contract/README.md, "Steps of the core". Its argument
   is the id of one row. */
#include <glob.h>

#include "statistics.h"
#include "reads.h"

#define FOLDER "../contract/core/"

static watchcore_attribute field_of(struct step *step, uint32_t kind)
{
    watchcore_attribute field = WATCHCORE_ATTRIBUTE_INIT;
    field.kind = kind;
    field.name = bytes_of(next(step));
    if (kind == WATCHCORE_ATTRIBUTE_JSON) {
        field.pointer = bytes_of(next(step));
    } else {
        field.depth = (uint32_t)number(step);
    }
    return field;
}

static watchcore_index index_of(struct step *step)
{
    static const char *const kinds[] = {"", "key", "prefix", "label", "field", NULL};
    static const uint32_t numbers[] = {0, WATCHCORE_INDEX_KEY, WATCHCORE_INDEX_PREFIX, WATCHCORE_INDEX_LABEL, WATCHCORE_INDEX_FIELD};
    watchcore_index index = WATCHCORE_INDEX_INIT;
    index.kind = numbers[place_of(step, next(step), kinds)];
    if (index.kind == WATCHCORE_INDEX_PREFIX) {
        index.depth = (uint32_t)number(step);
    } else if (index.kind != WATCHCORE_INDEX_KEY) {
        index.name = bytes_of(next(step));
    }
    return index;
}

static void free_cache(struct core *core)
{
    while (core->writer_count > 0) {
        watchcore_writer_free(core->writers[--core->writer_count]);
    }
    watchcore_cache_free(core->cache);
    core->cache = NULL;
}

static void do_cache(struct step *step)
{
    static const struct option words[] = {
        {"prefix", BYTES, offsetof(watchcore_cache_options, prefix)},
        {"name", BYTES, offsetof(watchcore_cache_options, name)},
        {"load", FLAG, offsetof(watchcore_cache_options, expect_load)},
        {"capacity", NUMBER, offsetof(watchcore_cache_options, capacity)},
        {"bytes", NUMBER, offsetof(watchcore_cache_options, capacity_bytes)},
        {"max-key", NUMBER, offsetof(watchcore_cache_options, max_key_bytes)},
        {"max-value", NUMBER, offsetof(watchcore_cache_options, max_value_bytes)},
        {"labels", BYTES, offsetof(watchcore_cache_options, labels_from)},
        {NULL, FLAG, 0},
    };
    watchcore_cache_options options = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_attribute fields[DECLARED];
    watchcore_index indexes[DECLARED];
    char *word;
    free_cache(step->core);
    options.prefix = text("/");
    options.fields = fields;
    options.indexes = indexes;
    while ((word = maybe(step)) != NULL) {
        if (options.field_count == DECLARED || options.index_count == DECLARED) {
            no_step(step, "more than %d fields or indexes", DECLARED);
        }
        if (is(word, "field")) {
            fields[options.field_count++] = field_of(step, WATCHCORE_ATTRIBUTE_JSON);
        } else if (is(word, "segment")) {
            fields[options.field_count++] = field_of(step, WATCHCORE_ATTRIBUTE_KEY_SEGMENT);
        } else if (is(word, "index")) {
            indexes[options.index_count++] = index_of(step);
        } else if (!set_option(step, word, words, &options)) {
            no_step(step, "%s?", word);
        }
    }
    (void)granted(step, watchcore_cache_new(&options, &step->core->cache, fresh(step)));
}

static void do_write(struct step *step)
{
    const char *word = verb(step);
    watchcore_writer *writer = writer_of(step);
    uint64_t revision = number(step);
    uint32_t reason = is(word, "resync") ? number_of(step, WATCHCORE_NAME_RESYNC_REASON, next(step)) : 0;
    size_t count;
    watchcore_change *changes = changes_of(step, &count);
    (void)granted(step, is(word, "progress") ? watchcore_writer_progress(writer, revision, fresh(step))
                      : is(word, "compact")  ? watchcore_writer_compact(writer, revision, fresh(step))
                      : is(word, "load")     ? watchcore_writer_load(writer, revision, changes, count, fresh(step))
                      : is(word, "apply")    ? watchcore_writer_apply(writer, revision, changes, count, fresh(step))
                                             : watchcore_writer_resync(writer, revision, changes, count, reason, NULL, NULL,
                                                                       fresh(step)));
}

static void do_writer(struct step *step)
{
    struct core *core = step->core;
    if (core->writer_count == sizeof(core->writers) / sizeof(core->writers[0])) {
        no_step(step, "too many writers");
    }
    if (granted(step, watchcore_writer_new(cache_of(step), &core->writers[core->writer_count], fresh(step)))) {
        core->writer_count++;
    }
}

static void do_free(struct step *step)
{
    struct core *core = step->core;
    struct thing *thing;
    if (is(step->words.at[step->words.count - 1], "cache")) {
        watchcore_cache_free(core->cache);
        core->cache = NULL;
    } else if (is(step->words.at[step->words.count - 1], "writer")) {
        if (core->writer_count > 0) {
            watchcore_writer_free(core->writers[--core->writer_count]);
        }
    } else {
        thing = named(step, SUBSCRIPTION);
        watchcore_subscription_free(thing->subscription);
        thing->subscription = NULL;
        thing->name[0] = 0;
    }
}

static void read_start(struct step *step, watchcore_subscription_options *options)
{
    static const char *const starts[] = {"state", "now", "after", "state-at-least", NULL}; /* WATCHCORE_START_... */
    options->start = place_of(step, next(step), starts);
    if (options->start == WATCHCORE_START_AFTER || options->start == WATCHCORE_START_STATE_AT_LEAST) {
        options->revision = number(step);
    }
    options->epoch = maybe_epoch(step);
}

static void do_subscribe(struct step *step)
{
    static const char *const policies[] = {"stop", "skip", "resnapshot", "conflate", NULL}; /* WATCHCORE_ON_LAG_... */
    static const struct option words[] = {
        {"name", BYTES, offsetof(watchcore_subscription_options, name)},
        {"raw", FLAG, offsetof(watchcore_subscription_options, raw_types)},
        {"max-lag", NUMBER, offsetof(watchcore_subscription_options, max_lag_events)},
        {"whole", FLAG, offsetof(watchcore_subscription_options, whole_revisions)},
        {"stop-on-resync", FLAG, offsetof(watchcore_subscription_options, stop_on_resync)},
        {"timeout", DURATION, offsetof(watchcore_subscription_options, start_timeout_ms)},
        {NULL, FLAG, 0},
    };
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_filter filter = WATCHCORE_FILTER_INIT;
    watchcore_subscription *subscription = NULL;
    const char *name = next(step);
    struct thing *thing;
    char *word;
    read_start(step, &options);
    while ((word = maybe(step)) != NULL) {
        if (is(word, "lag")) {
            options.on_lag = place_of(step, next(step), policies);
        } else if (is(word, "bookmarks")) {
            options.bookmarks = 1;
            options.bookmark_interval_ms = duration(step);
        } else if (!set_option(step, word, words, &options)) {
            narrow(step, word, &filter);
        }
    }
    options.range = filter.range;
    options.from = filter.from;
    options.to = filter.to;
    options.labels = filter.labels;
    options.fields = filter.fields;
    options.types = filter.types;
    options.nothing = filter.nothing;
    if (granted(step, watchcore_subscription_new(cache_of(step), &options, &subscription, fresh(step)))) {
        thing = find(step->core, SUBSCRIPTION, name);
        thing = thing != NULL ? thing : named_anew(step, SUBSCRIPTION, name);
        watchcore_subscription_free(thing->subscription);
        thing->subscription = subscription;
    }
}

/* What a subscription gives: `poll`, `drain` and `batches`. */
static void do_poll(struct step *step)
{
    const char *how = verb(step);
    watchcore_subscription *subscription = named(step, SUBSCRIPTION)->subscription;
    int full = is(step->words.at[step->words.count - 1], "full");
    size_t most = step->at + (size_t)full < step->words.count ? (size_t)number(step) : 1000;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    int more;
    do {
        if (!granted(step, watchcore_subscription_poll(subscription, most, &batch, fresh(step)))) {
            return;
        }
        more = batch.count > 0 && !is(how, "poll");
        if (!is(how, "batches")) {
            print_events(step, &batch, full);
        } else if (more) {
            print(step, "%zu events at %llu%s", batch.count, U(batch.position),
                  (batch.flags & WATCHCORE_BATCH_CONTINUES) != 0 ? " continues" : "");
        }
        if (is(how, "poll") && (batch.flags & WATCHCORE_BATCH_CONTINUES) != 0) {
            print(step, "continues");
        }
        watchcore_batch_release(&batch);
    } while (more);
}

static void do_wait(struct step *step)
{
    watchcore_subscription *subscription = named(step, SUBSCRIPTION)->subscription;
    int32_t code = watchcore_subscription_wait(subscription, maybe_duration(step), fresh(step));
    if (code == WATCHCORE_TIMEOUT) {
        print(step, "nothing");
    } else if (granted(step, code)) {
        print(step, "ready");
    }
}

static void do_codes(struct step *step)
{
    int32_t code;
    for (code = 1; code < 200; code++) {
        watchcore_code_info info = WATCHCORE_CODE_INFO_INIT;
        (void)granted(step, watchcore_code_describe(code, &info, fresh(step)));
        if (is(info.name, "UNKNOWN")) {
            continue;
        }
        add(&step->line, "%d %s %u%s%s", (int)code, info.name, (unsigned)info.http_status, info.reason[0] == 0 ? "" : " ",
            info.reason);
        add(&step->line, "%s%s", info.retryable ? " retryable" : "", info.fatal ? " fatal" : "");
        if (info.retry_after_ms > 0) {
            add(&step->line, " after %llus", U(info.retry_after_ms / 1000));
        }
        end_line(step);
    }
}

/* The names of the numbers of a kind. */
static void do_names(struct step *step)
{
    static const char *const kinds[] = {"", "event-type", "state", "subscription-state", "resync-reason", "read-path",
                                        "log-level", NULL}; /* WATCHCORE_NAME_... */
    uint32_t kind = place_of(step, next(step), kinds), number;
    for (number = 0; number < 200; number++) {
        if (!is(watchcore_name(kind, number), "UNKNOWN")) {
            print(step, "%u %s", (unsigned)number, watchcore_name(kind, number));
        }
    }
}

static void do_token(struct step *step)
{
    struct thing *pages = named(step, PAGES);
    print(step, "%s", pages->token == NULL ? "none" : pages->token);
}

static void run_words(struct step *step);

/* Prints what a step prints, unless that is one number within bounds. */
static void do_between(struct step *step)
{
    char *from = next(step), *to = strstr(from, "..");
    struct lines words;
    size_t before = step->printed.count;
    if (to == NULL) {
        no_step(step, "between A..B");
    }
    *to = 0;
    words = step->words;
    step->words.at += step->at;
    step->words.count -= step->at;
    step->at = 0;
    run_words(step);
    step->words = words;
    if (step->printed.count == before + 1) {
        uint64_t number = as_number(step, step->printed.at[before]);
        step->printed.count -= number >= as_number(step, from) && number <= as_number(step, to + 2);
    }
}

static void do_close(struct step *step)
{
    int32_t code = step->at < step->words.count
        ? watchcore_subscription_close(named(step, SUBSCRIPTION)->subscription, fresh(step))
        : watchcore_cache_close(cache_of(step), fresh(step));
    (void)granted(step, code);
}

static void do_consistent(struct step *step)
{
    uint64_t revision = 0;
    if (granted(step, watchcore_cache_consistent_revision(cache_of(step), BOUND_MS, &revision, fresh(step)))) {
        print_number(step, revision);
    }
}

static void *work(void *argument)
{
    struct job *job = argument;
    job->good = run(&job->step);
    return NULL;
}

static void do_start(struct step *step)
{
    struct thing *thing = named_anew(step, JOB, next(step));
    struct job *job = room_for(NULL, 0, sizeof(*job));
    size_t i;
    job->step.core = step->core;
    for (i = step->at; i < step->words.count; i++) {
        push(&job->step.words, step->words.at[i]);
    }
    (void)cache_of(step);
    if (pthread_create(&job->thread, NULL, work, job) != 0) {
        no_step(step, "no thread");
    }
    thing->job = job;
}

static void do_join(struct step *step)
{
    struct thing *thing = named(step, JOB);
    struct job *job = thing->job;
    int good;
    if (job == NULL) {
        no_step(step, "%s is no job any more", thing->name);
    }
    thing->job = NULL;
    pthread_join(job->thread, NULL);
    good = job->good;
    push_all(&step->printed, &job->step.printed);
    memcpy(step->fault, job->step.fault, sizeof(step->fault));
    if (!good) {
        longjmp(step->bad, 1);
    }
}

/* Until so many calls sleep in the cache. */
static void do_asleep(struct step *step)
{
    uint64_t count = number(step);
    time_t begin = time(NULL);
    while (statistic(step, "waiting") < count) {
        if (time(NULL) > begin + BOUND_MS / 1000) {
            no_step(step, "so many calls do not sleep");
        }
        sched_yield();
    }
}

static void do_ready(struct step *step)
{
    (void)granted(step, watchcore_cache_wait_ready(cache_of(step), maybe_duration(step), fresh(step)));
}

static void do_epoch(struct step *step)
{
    (step->words.count > 1 ? do_of_subscription : do_number)(step);
}

static void run_words(struct step *step)
{
    static const struct {
        const char *words; /* each between spaces */
        void (*run)(struct step *step);
    } all[] = {
        {" cache ", do_cache}, {" apply load resync progress compact ", do_write}, {" writer ", do_writer},
        {" free ", do_free}, {" subscribe ", do_subscribe}, {" poll drain batches ", do_poll}, {" wait ", do_wait},
        {" position lag delivered ", do_of_subscription}, {" state ", do_state}, {" oldest current objects ", do_number},
        {" epoch ", do_epoch}, {" stats ", do_stats}, {" subscriptions ", do_subscriptions}, {" message ", do_message},
        {" numbers ", do_numbers}, {" codes ", do_codes}, {" names ", do_names}, {" token ", do_token},
        {" between ", do_between},
        {" ready ", do_ready}, {" list ", do_list}, {" next ", do_next}, {" get ", do_get}, {" get-many ", do_get_many}, {" count ", do_count},
        {" diff ", do_diff}, {" until ", do_until}, {" consistent ", do_consistent}, {" snapshot ", do_snapshot},
        {" in ", do_in}, {" close ", do_close}, {" start ", do_start}, {" join ", do_join}, {" asleep ", do_asleep},
    };
    const char *word = next(step);
    size_t i;
    for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        const char *found = strstr(all[i].words, word);
        if (found != NULL && found[-1] == ' ' && found[strlen(word)] == ' ') {
            all[i].run(step);
            return;
        }
    }
    no_step(step, "%s is no step", word);
}

/* Frees what a case has made. Its jobs end first: where a step has failed they may still wait. */
static void end_case(struct core *core)
{
    struct thing *thing;
    if (core->cache != NULL) {
        (void)watchcore_cache_close(core->cache, NULL);
    }
    for (thing = core->things; thing != NULL; thing = thing->before) {
        if (thing->job != NULL) {
            pthread_join(thing->job->thread, NULL);
        }
    }
    while ((thing = core->things) != NULL) {
        core->things = thing->before;
        watchcore_subscription_free(thing->subscription);
        watchcore_snapshot_free(thing->snapshot);
    }
    free_cache(core);
}

/* What begins a line: a word, a space. */
static int begins(const char *line, const char *with)
{
    return strncmp(line, with, strlen(with)) == 0;
}

/* Runs the steps from one line to another, `$NAME` being `value`. */
static int run_case(const char *path, const struct lines *lines, size_t from, size_t to, const char *name, const char *value)
{
    struct core core;
    struct lines names = {NULL, 0, 0};
    int good = 1;
    size_t next;
    memset(&core, 0, sizeof(core));
    push(&names, name);
    push(&names, value);
    for (; from < to && good; from = next) {
        struct text where = {NULL, 0, 0};
        /* What it must print stands below it, between comments and empty lines. */
        for (next = from + 1; next < to && (lines->at[next][0] == 0 || strchr(" #", lines->at[next][0]) != NULL); next++) {
        }
        add(&where, "%s:%zu%s%s", path, from + 1, value[0] == 0 ? "" : " with ", value);
        good = lines->at[from][0] == 0 || lines->at[from][0] == '#' ||
               run_line(&core, where.bytes, &lines->at[from], next - from - 1, &names);
    }
    end_case(&core);
    return good;
}

/* Runs each case of a row, once for each value that it names. */
static int run_row(const char *path, const struct lines *lines)
{
    size_t from = 0, to, i;
    int good = 1;
    while (from < lines->count && lines->at[from][0] != 0) {
        from++;
    }
    for (; from < lines->count && good; from = to) {
        struct lines words = {NULL, 0, 0};
        for (to = from + 1; to < lines->count && !begins(lines->at[to], "case "); to++) {
        }
        if (begins(lines->at[from], "case ")) {
            push_words(&words, lines->at[from]);
        }
        if (words.count > 3 && is(words.at[2], "in")) {
            for (i = 3; i < words.count && good; i++) {
                good = run_case(path, lines, from + 1, to, words.at[1], words.at[i]);
            }
        } else {
            good = run_case(path, lines, from + (words.count > 0), to, "", "");
        }
    }
    return good;
}

int main(int count, char **arguments)
{
    const char *only = count > 1 ? arguments[1] : "";
    glob_t files;
    size_t i;
    if (glob(FOLDER "*.txt", 0, NULL, &files) != 0) {
        return 2;
    }
    for (i = 0; i < files.gl_pathc; i++) {
        struct lines lines = {NULL, 0, 0};
        char *path = files.gl_pathv[i], *name = path + strlen(FOLDER);
        int is_wanted = only[0] == 0 || (strncmp(name, only, strlen(only)) == 0 && name[strlen(only)] == '-');
        if (is_wanted && read_lines(path, &lines) && has_face(&lines, "c")) {
            check_broken = !run_row(path, &lines);
            name[strlen(name) - 4] = 0;
            check_end(name);
        }
        free_row();
    }
    globfree(&files);
    if (check_passed + check_failed == 0) {
        printf("there is no row %s in %s\n", only, FOLDER);
        return 2;
    }
    return check_finish("rows");
}
