/* The rows of contract/core, from the same text as in Rust and Go: contract/README.md, "Steps of the core". Its argument
   is the id of one row. */
#include <dirent.h>

#include "reads.h"

#define FOLDER "../contract/core"

/* The first word of a step. */
static const char *verb(const struct step *step)
{
    return step->words.at[0];
}

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
    watchcore_change *changes;
    size_t count;
    char *reason_word, name[40];
    uint32_t reason = WATCHCORE_RESYNC_COMPACTED;
    int32_t code;
    if (is(word, "progress")) {
        code = watchcore_writer_progress(writer, revision, fresh(step));
    } else if (is(word, "compact")) {
        code = watchcore_writer_compact(writer, revision, fresh(step));
    } else if (is(word, "resync")) {
        reason_word = next(step);
        const uint32_t of = WATCHCORE_NAME_RESYNC_REASON;
        for (name_of(of, reason, name); !is(name, reason_word); name_of(of, ++reason, name)) {
            if (reason > WATCHCORE_RESYNC_LAGGED) {
                no_step(step, "%s is no reason", reason_word);
            }
        }
        changes = changes_of(step, &count);
        code = watchcore_writer_resync(writer, revision, changes, count, reason, NULL, NULL, fresh(step));
    } else {
        changes = changes_of(step, &count);
        code = (is(word, "load") ? watchcore_writer_load : watchcore_writer_apply)(writer, revision, changes, count,
                                                                                  fresh(step));
    }
    (void)granted(step, code);
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

static uint32_t types_of(struct step *step)
{
    char *rest = next(step), *one;
    uint32_t types = 0, type;
    while ((one = strsep(&rest, ",")) != NULL) {
        for (type = WATCHCORE_EVENT_ADDED; !is(one, watchcore_name(WATCHCORE_NAME_EVENT_TYPE, type)); type++) {
            if (type > WATCHCORE_EVENT_DELETE) {
                no_step(step, "%s is no type", one);
            }
        }
        types |= WATCHCORE_MASK(type);
    }
    return types;
}

static void read_start(struct step *step, watchcore_subscription_options *options)
{
    const char *word = next(step);
    if (is(word, "now")) {
        options->start = WATCHCORE_START_NOW;
    } else if (is(word, "after") || is(word, "state-at-least")) {
        options->start = is(word, "after") ? WATCHCORE_START_AFTER : WATCHCORE_START_STATE_AT_LEAST;
        options->revision = number(step);
    } else if (!is(word, "state")) {
        no_step(step, "%s?", word);
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
        if (is(word, "types")) {
            options.types = types_of(step);
        } else if (is(word, "lag")) {
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
            print(step, "%zu events at %llu%s", batch.count, (unsigned long long)batch.position,
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
    int64_t timeout = step->at < step->words.count ? duration(step) : BOUND_MS;
    int32_t code = watchcore_subscription_wait(subscription, timeout, fresh(step));
    if (code == WATCHCORE_TIMEOUT) {
        print(step, "nothing");
    } else if (granted(step, code)) {
        print(step, "ready");
    }
}

/* What a subscription says of itself. */
static void do_figure(struct step *step)
{
    const char *word = verb(step);
    watchcore_subscription *subscription = named(step, SUBSCRIPTION)->subscription;
    watchcore_subscription_figures figures = WATCHCORE_SUBSCRIPTION_FIGURES_INIT;
    watchcore_lag lag = WATCHCORE_LAG_INIT;
    uint64_t revision = 0, epoch = 0;
    if (is(word, "lag")) {
        if (granted(step, watchcore_subscription_lag(subscription, &lag, fresh(step)))) {
            print(step, "%llu events %llu revisions", (unsigned long long)lag.events, (unsigned long long)lag.revisions);
        }
    } else if (is(word, "delivered")) {
        if (granted(step, watchcore_subscription_stats(subscription, &figures, fresh(step)))) {
            print_number(step, figures.delivered_keys);
        }
    } else if (granted(step, watchcore_subscription_position(subscription, &revision, &epoch, fresh(step)))) {
        print_number(step, is(word, "epoch") ? epoch & UINT32_MAX : revision);
    }
}

/* The number of a figure of a cache, from its status or its stats. */
static uint64_t figure(struct step *step, const char *name)
{
    static const struct {
        const char *name;
        int is_stat;
        size_t field;
    } all[] = {
#define OF_STATUS(word, field) {word, 0, offsetof(watchcore_status, field)}
#define OF_STATS(word, field) {word, 1, offsetof(watchcore_stats, field)}
        OF_STATUS("current", revision), OF_STATUS("epoch", epoch), OF_STATUS("lapped", lapped),
        OF_STATUS("max-lag", max_lag_events), OF_STATUS("max-lag-seen", max_lag_seen), OF_STATUS("objects", objects),
        OF_STATUS("oldest", oldest), OF_STATUS("subscriptions", subscriptions), OF_STATS("events", events),
        OF_STATS("extract-failures", extract_failures), OF_STATS("lagged", lagged), OF_STATS("pages", pages),
        OF_STATS("revisions", revisions), OF_STATS("snapshots", snapshots), OF_STATS("tombstones", tombstones),
        OF_STATS("tombstone-bytes", tombstone_bytes), OF_STATS("window-bytes", window_bytes),
        OF_STATS("window-segments", window_segments),
    };
    watchcore_status status = WATCHCORE_STATUS_INIT;
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    const void *of[2] = {&status, &stats};
    size_t i = 0;
    while (!is(all[i].name, name)) {
        if (++i == sizeof(all) / sizeof(all[0])) {
            no_step(step, "%s is no figure", name);
        }
    }
    (void)watchcore_cache_status(cache_of(step), &status, NULL);
    (void)watchcore_cache_stats(cache_of(step), &stats, NULL);
    return *(const uint64_t *)(const void *)((const char *)of[all[i].is_stat] + all[i].field);
}

static void do_figures(struct step *step)
{
    char *name;
    while ((name = maybe(step)) != NULL) {
        add(&step->line, "%s%llu", step->line.length > 0 ? " " : "", (unsigned long long)figure(step, name));
    }
    end_line(step);
}

/* A figure that is a word of its own. */
static void do_number(struct step *step)
{
    uint64_t number = figure(step, verb(step));
    print_number(step, is(verb(step), "epoch") ? number & UINT32_MAX : number);
}

static void do_state(struct step *step)
{
    watchcore_status status = WATCHCORE_STATUS_INIT;
    char name[32];
    if (granted(step, watchcore_cache_status(cache_of(step), &status, fresh(step)))) {
        name_of(WATCHCORE_NAME_STATE, status.state, name);
        print(step, "%s", name);
    }
}

static void do_subscriptions(struct step *step)
{
    watchcore_subscription_list *list = NULL;
    size_t i;
    if (!granted(step, watchcore_subscription_list_new(cache_of(step), &list, fresh(step)))) {
        return;
    }
    for (i = 0; i < watchcore_subscription_list_count(list); i++) {
        watchcore_subscription_info info = WATCHCORE_SUBSCRIPTION_INFO_INIT;
        struct text *line = &step->line;
        char state[40];
        (void)granted(step, watchcore_subscription_list_item(list, i, &info, fresh(step)));
        name_of(WATCHCORE_NAME_SUBSCRIPTION_STATE, info.state, state);
        add(line, "%llu %s", (unsigned long long)info.id, info.name.length == 0 ? "-" : "");
        add_word(line, info.name.data, info.name.length);
        add(line, " %s at %llu behind %llu events %llu revisions, ", state, (unsigned long long)info.revision,
            (unsigned long long)info.lag_events, (unsigned long long)info.lag_revisions);
        add(line, info.read_path == WATCHCORE_READ_PATH_SCAN ? "scan" : "chain by ");
        add(line, "%.*s, %s", (int)info.index.length, (const char *)info.index.data, info.polled ? "polled" : "never polled");
        print(step, ", handed out %llu, lost %llu", (unsigned long long)info.handed_out, (unsigned long long)info.lagged);
    }
    watchcore_subscription_list_free(list);
}

/* Prints the last message where it has not all of these words in it. */
static void do_message(struct step *step)
{
    const char *word;
    while ((word = maybe(step)) != NULL) {
        if (strstr(step->core->last.message, word) == NULL) {
            print(step, "%s", step->core->last.message);
            return;
        }
    }
}

/* All numbers of the last refusal. */
static void do_numbers(struct step *step)
{
    const watchcore_error *last = &step->core->last;
    print(step, "asked %llu oldest %llu current %llu lost %llu..%llu position %llu", (unsigned long long)last->asked,
          (unsigned long long)last->oldest, (unsigned long long)last->current, (unsigned long long)last->lost_from,
          (unsigned long long)last->lost_to, (unsigned long long)last->position);
}

static void do_codes(struct step *step)
{
    int32_t code;
    for (code = 1; code < 200; code++) {
        const char *reason = watchcore_error_reason(code);
        if (is(watchcore_error_name(code), "UNKNOWN")) {
            continue;
        }
        add(&step->line, "%d %s %u%s%s", (int)code, watchcore_error_name(code), (unsigned)watchcore_error_http_status(code),
            reason[0] == 0 ? "" : " ", reason);
        add(&step->line, "%s%s", watchcore_error_is_retryable(code) ? " retryable" : "",
            watchcore_error_is_fatal(code) ? " fatal" : "");
        if (watchcore_error_retry_after(code) > 0) {
            add(&step->line, " after %us", (unsigned)watchcore_error_retry_after(code));
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
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    uint64_t count = number(step);
    time_t begin = time(NULL);
    while (watchcore_cache_stats(cache_of(step), &stats, NULL) == WATCHCORE_OK && stats.waiting < count) {
        if (time(NULL) > begin + BOUND_MS / 1000) {
            no_step(step, "%llu calls sleep", (unsigned long long)stats.waiting);
        }
        sched_yield();
    }
}

static void do_ready(struct step *step)
{
    int64_t timeout = step->at < step->words.count ? duration(step) : BOUND_MS;
    (void)granted(step, watchcore_cache_wait_ready(cache_of(step), timeout, fresh(step)));
}

static void do_epoch(struct step *step)
{
    (step->words.count > 1 ? do_figure : do_number)(step);
}

static void run_words(struct step *step)
{
    static const struct {
        const char *words; /* each between spaces */
        void (*run)(struct step *step);
    } all[] = {
        {" cache ", do_cache}, {" apply load resync progress compact ", do_write}, {" writer ", do_writer},
        {" free ", do_free}, {" subscribe ", do_subscribe}, {" poll drain batches ", do_poll}, {" wait ", do_wait},
        {" position lag delivered ", do_figure}, {" state ", do_state}, {" oldest current objects ", do_number},
        {" epoch ", do_epoch}, {" figures ", do_figures}, {" subscriptions ", do_subscriptions}, {" message ", do_message},
        {" numbers ", do_numbers}, {" codes ", do_codes}, {" names ", do_names}, {" token ", do_token},
        {" between ", do_between},
        {" ready ", do_ready}, {" list ", do_list}, {" next ", do_next}, {" get ", do_get}, {" count ", do_count},
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

/* Runs the steps from one line to another, `$NAME` being `value`. */
static int run_case(const char *path, const struct lines *lines, size_t from, size_t to, const char *name, const char *value)
{
    struct core core;
    struct lines names = {NULL, 0, 0};
    struct text where = {NULL, 0, 0};
    int good = 1;
    memset(&core, 0, sizeof(core));
    push(&names, name);
    push(&names, value);
    while (from < to && good) {
        size_t line = from++;
        if (lines->at[line][0] == 0 || lines->at[line][0] == '#') {
            continue;
        }
        while (from < to && (lines->at[from][0] == 0 || lines->at[from][0] == '#' || strncmp(lines->at[from], "  ", 2) == 0)) {
            from++;
        }
        where.length = 0;
        add(&where, "%s:%zu%s%s", path, line + 1, value[0] == 0 ? "" : " with ", value);
        good = run_line(&core, where.bytes, &lines->at[line], from - line - 1, &names);
    }
    end_case(&core);
    return good;
}

/* Runs each case of a row, once for each value that it names. */
static int run_row(const char *path, const struct lines *lines)
{
    static const char word[] = "case ";
    size_t from = 0, to, i;
    int good = 1;
    while (from < lines->count && lines->at[from][0] != 0) {
        from++;
    }
    for (; from < lines->count && good; from = to) {
        struct lines words = {NULL, 0, 0};
        int is_case = strncmp(lines->at[from], word, sizeof(word) - 1) == 0;
        for (to = from + 1; to < lines->count && strncmp(lines->at[to], word, sizeof(word) - 1) != 0; to++) {
        }
        if (is_case) {
            push_words(&words, lines->at[from] + sizeof(word) - 1);
        }
        if (words.count > 2 && is(words.at[1], "in")) {
            for (i = 2; i < words.count && good; i++) {
                good = run_case(path, lines, from + 1, to, words.at[0], words.at[i]);
            }
        } else {
            good = run_case(path, lines, from + is_case, to, "", "");
        }
    }
    return good;
}

static int is_row(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return length > 4 && is(entry->d_name + length - 4, ".txt");
}

int main(int count, char **arguments)
{
    const char *only = count > 1 ? arguments[1] : "";
    struct dirent **files = NULL;
    int found = scandir(FOLDER, &files, is_row, alphasort), i;
    for (i = 0; i < found; i++) {
        struct text path = {NULL, 0, 0};
        struct lines lines = {NULL, 0, 0};
        char *name = files[i]->d_name;
        add(&path, "%s/%s", FOLDER, name);
        name[strlen(name) - 4] = 0;
        if (only[0] == 0 || (strncmp(name, only, strlen(only)) == 0 && name[strlen(only)] == '-')) {
            if (read_lines(path.bytes, &lines) && has_face(&lines, "c")) {
                check_broken = !run_row(path.bytes, &lines);
                check_end(name);
            }
        }
        free_row();
        free(files[i]);
    }
    free(files);
    if (check_passed + check_failed == 0) {
        printf("there is no row %s in %s\n", only, FOLDER);
        return 2;
    }
    return check_finish("rows");
}
