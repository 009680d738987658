/* The words of a row as values of C, and what is printed of values: contract/README.md. */
#ifndef WORDS_H
#define WORDS_H

#include "script.h"

/* The most fields and indexes of a cache. */
#define DECLARED 8

enum kind { SUBSCRIPTION, SNAPSHOT, PAGES, JOB };

/* A step that runs on a thread of its own. */
struct job {
    pthread_t thread;
    struct step step;
    int good;
};

/* Something that a step has made and named. */
struct thing {
    enum kind kind;
    char *name;
    watchcore_subscription *subscription;
    watchcore_snapshot *snapshot;
    struct lines list; /* of PAGES: the step that lists */
    char *token;       /* of PAGES: where the next one begins, or NULL */
    struct job *job;
    struct thing *before;
};

/* What the steps of a case have made. */
struct core {
    watchcore_cache *cache;
    watchcore_writer *writers[4];
    size_t writer_count;
    struct thing *things;
    watchcore_error last; /* the last refusal */
};

/* What a list, a count or another read asks for. */
struct list {
    watchcore_filter filter;
    watchcore_range range;
    watchcore_read_options read;
    uint32_t full;
};

static int is(const char *word, const char *other)
{
    return strcmp(word, other) == 0;
}

/* The first word of a step. */
static const char *verb(const struct step *step)
{
    return step->words.at[0];
}

static void print_refusal(struct step *step, int32_t code)
{
    const watchcore_error *error = &step->error;
    add(&step->line, "%s", watchcore_error_name(code));
    if (code == WATCHCORE_COMPACTED || code == WATCHCORE_FUTURE_REVISION) {
        add(&step->line, " asked %llu", U(error->asked));
    } else if (code == WATCHCORE_LAGGED) {
        add(&step->line, " lost %llu..%llu", U(error->lost_from), U(error->lost_to));
    }
    if (code == WATCHCORE_COMPACTED || code == WATCHCORE_LAGGED) {
        add(&step->line, " oldest %llu", U(error->oldest));
    }
    if (code == WATCHCORE_COMPACTED || code == WATCHCORE_LAGGED || code == WATCHCORE_FUTURE_REVISION) {
        add(&step->line, " current %llu", U(error->current));
    }
    end_line(step);
    pthread_mutex_lock(&blocks_lock); /* beside jobs */
    step->core->last = *error;
    pthread_mutex_unlock(&blocks_lock);
}

static watchcore_error *fresh(struct step *step)
{
    step->error = WATCHCORE_ERROR_INIT;
    return &step->error;
}

/* Makes a call, and prints the code that refuses it. */
static int granted(struct step *step, int32_t code)
{
    if (code != WATCHCORE_OK) {
        print_refusal(step, code);
    }
    return code == WATCHCORE_OK;
}

/* A state, or the reason of a resync, in the words of a row: HISTORY_RESET is HistoryReset. */
static void name_of(uint32_t of, uint32_t number, char *name)
{
    const char *constant = watchcore_name(of, number);
    int first = 1;
    for (; *constant != 0; constant++) {
        if (*constant != '_') {
            *name++ = (char)(first ? *constant : tolower((unsigned char)*constant));
        }
        first = *constant == '_';
    }
    *name = 0;
}

/* The number that has this name. */
static uint32_t number_of(struct step *step, uint32_t of, const char *word)
{
    char name[40];
    uint32_t number;
    for (number = 0; number < 20; number++) {
        name_of(of, number, name);
        if (strcasecmp(name, word) == 0) {
            return number;
        }
    }
    no_step(step, "%s is no name", word);
}

static void add_numbers(struct text *line, const watchcore_key_value *kv)
{
    add(line, " create %llu modified %llu version %llu", U(kv->create_revision),
        U(kv->mod_revision), U(kv->version));
    if (kv->lease != 0) {
        add(line, " lease %lld", (long long)kv->lease);
    }
}

static void add_bytes(struct text *line, const char *before, watchcore_bytes bytes)
{
    if (bytes.data != NULL) {
        add(line, "%s", before);
        add_word(line, bytes.data, bytes.length);
    }
}

static void print_event(struct step *step, const watchcore_event *event, int full)
{
    static const struct {
        uint32_t flag;
        const char *mark;
    } marks[] = {
        {WATCHCORE_FLAG_INITIAL_STATE, " initial"},
        {WATCHCORE_FLAG_INITIAL_STATE_END, " end-of-state"},
        {WATCHCORE_FLAG_SYNTHETIC, " synthetic"},
    };
    struct text *line = &step->line;
    uint32_t flags = event->flags;
    size_t i;
    add(line, "%llu %s", U(event->revision), watchcore_name(WATCHCORE_NAME_EVENT_TYPE, event->type));
    if (event->type == WATCHCORE_EVENT_RESYNC) {
        char reason[40];
        name_of(WATCHCORE_NAME_RESYNC_REASON, event->resync_reason, reason);
        add(line, " %s %s %llu..%llu", (flags & WATCHCORE_FLAG_BEGIN) != 0 ? "begin" : "end", reason,
            U(event->resync_from), U(event->revision));
        flags &= ~(uint32_t)(WATCHCORE_FLAG_SYNTHETIC | WATCHCORE_FLAG_BEGIN | WATCHCORE_FLAG_END);
    }
    add_bytes(line, " ", watchcore_event_key(event));
    add_bytes(line, "=", watchcore_event_value(event));
    add_bytes(line, " was ", watchcore_event_prev_value(event));
    if (full && event->kv != NULL) {
        add_numbers(line, event->kv);
    }
    for (i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
        add(line, "%s", (flags & marks[i].flag) != 0 ? marks[i].mark : "");
        flags &= ~marks[i].flag;
    }
    if (flags != 0 || (event->type != WATCHCORE_EVENT_RESYNC && (event->resync_reason != 0 || event->resync_from != 0))) {
        add(line, " flags %u", (unsigned)event->flags);
    }
    end_line(step);
}

static void print_events(struct step *step, const watchcore_batch *batch, int full)
{
    size_t i;
    for (i = 0; i < batch->count; i++) {
        print_event(step, watchcore_batch_event(batch, i), full);
    }
}

static void print_object(struct step *step, const watchcore_key_value *kv, int full)
{
    struct text *line = &step->line;
    add_word(line, kv->key, kv->key_length);
    add(line, "=");
    add_word(line, kv->value, kv->value_length);
    if (full) {
        add_numbers(line, kv);
    }
    end_line(step);
}

/* Prints `7: /k=v`, or `7: none`. */
static void print_found(struct step *step, uint64_t revision, const watchcore_key_value *kv, int full)
{
    add(&step->line, "%llu: ", U(revision));
    if (kv == NULL) {
        print(step, "none");
    } else {
        print_object(step, kv, full);
    }
}

static void print_number(struct step *step, uint64_t number)
{
    print(step, "%llu", U(number));
}

static struct thing *find(struct core *core, enum kind kind, const char *name)
{
    struct thing *thing = core->things;
    while (thing != NULL && !(thing->kind == kind && is(thing->name, name))) {
        thing = thing->before;
    }
    return thing;
}

static struct thing *named(struct step *step, enum kind kind)
{
    const char *name = next(step);
    struct thing *thing = find(step->core, kind, name);
    if (thing == NULL) {
        no_step(step, "nothing has the name %s", name);
    }
    return thing;
}

static struct thing *named_anew(struct step *step, enum kind kind, const char *name)
{
    struct thing *thing = room_for(NULL, 0, sizeof(*thing));
    thing->kind = kind;
    thing->name = room_for(name, strlen(name), strlen(name) + 1);
    thing->before = step->core->things;
    step->core->things = thing;
    return thing;
}

static watchcore_cache *cache_of(struct step *step)
{
    if (step->core->cache == NULL) {
        step->core->cache = embedded(NULL);
    }
    return step->core->cache;
}

static watchcore_writer *writer_of(struct step *step)
{
    struct core *core = step->core;
    if (core->writer_count == 0) {
        if (watchcore_writer_new(cache_of(step), &core->writers[0], fresh(step)) != WATCHCORE_OK) {
            no_step(step, "no writer: %.100s", step->error.message);
        }
        core->writer_count = 1;
    }
    return core->writers[0];
}

/* `in E` or `in BIRTH/E`, if that comes next; else 0. The lower half of an epoch counts, the upper is this cache's. */
static uint64_t maybe_epoch(struct step *step)
{
    uint64_t epoch = 0;
    char *birth, *of;
    if (step->at == step->words.count || !is(step->words.at[step->at], "in")) {
        return 0;
    }
    step->at++;
    birth = next(step);
    of = strchr(birth, '/');
    if (of != NULL) {
        *of++ = 0;
        return as_number(step, birth) << 32 | as_number(step, of);
    }
    (void)watchcore_cache_position(cache_of(step), NULL, &epoch, NULL, NULL);
    return (epoch & ~(uint64_t)UINT32_MAX) + as_number(step, birth);
}

/* An option that is a field of a struct: its word, and what follows that. */
struct option {
    const char *word;
    enum { FLAG, NUMBER, DURATION, BYTES } kind;
    size_t field;
};

/* The option of this word, or NULL. */
static const struct option *option_of(const char *word, const struct option *options)
{
    while (options->word != NULL && !is(word, options->word)) {
        options++;
    }
    return options->word == NULL ? NULL : options;
}

/* Sets the option of this word. 0: the table has none. */
static int set_option(struct step *step, const char *word, const struct option *options, void *of)
{
    const struct option *option = option_of(word, options);
    void *field;
    if (option == NULL) {
        return 0;
    }
    field = (char *)of + option->field;
    switch (option->kind) {
    case FLAG: *(uint32_t *)field = 1; break;
    case NUMBER: *(uint64_t *)field = number(step); break;
    case DURATION: *(int64_t *)field = duration(step); break;
    case BYTES: *(watchcore_bytes *)field = bytes_of(next(step)); break;
    }
    return 1;
}

/* The place of a word in a list that ends with NULL. */
static uint32_t place_of(struct step *step, const char *word, const char *const *list)
{
    uint32_t place = 0;
    while (list[place] != NULL && !is(list[place], word)) {
        place++;
    }
    if (list[place] == NULL) {
        no_step(step, "%s?", word);
    }
    return place;
}

/* Event types as a mask. */
static uint32_t types_of(struct step *step)
{
    char *rest = next(step), *one;
    uint32_t types = 0;
    while ((one = strsep(&rest, ",")) != NULL) {
        types |= WATCHCORE_MASK(number_of(step, WATCHCORE_NAME_EVENT_TYPE, one));
    }
    return types;
}

/* A range or a filter that begins with this word, where no other option does. */
static void narrow(struct step *step, const char *word, watchcore_filter *filter)
{
    static const char *const ranges[] = {"", "key", "prefix", "path", "from", NULL}; /* WATCHCORE_RANGE_... */
    static const struct option options[] = {
        {"where-labels", BYTES, offsetof(watchcore_filter, labels)},
        {"where-fields", BYTES, offsetof(watchcore_filter, fields)},
        {"none", FLAG, offsetof(watchcore_filter, nothing)},
        {NULL, FLAG, 0},
    };
    if (set_option(step, word, options, filter)) {
        return;
    }
    if (is(word, "types")) {
        filter->types = types_of(step);
        return;
    }
    if (filter->range != WATCHCORE_RANGE_ALL) {
        no_step(step, "one range is all that an option can say");
    }
    filter->range = place_of(step, word, ranges);
    filter->from = bytes_of(next(step));
    if (filter->range == WATCHCORE_RANGE_BETWEEN) {
        if (!is(next(step), "to")) {
            no_step(step, "from A to B");
        }
        filter->to = bytes_of(next(step));
    }
}

/* Range, read and filter, in any order. */
static void read_list(struct step *step, struct list *list)
{
    static const struct option options[] = {
        {"limit", NUMBER, offsetof(struct list, read.limit)},
        {"timeout", DURATION, offsetof(struct list, read.timeout_ms)},
        {"continue", BYTES, offsetof(struct list, read.continue_token)},
        {"full", FLAG, offsetof(struct list, full)},
        {NULL, FLAG, 0},
    };
    char *word;
    memset(list, 0, sizeof(*list));
    list->filter = WATCHCORE_FILTER_INIT;
    list->range = WATCHCORE_RANGE_INIT;
    list->read = WATCHCORE_READ_OPTIONS_INIT;
    list->read.timeout_ms = BOUND_MS;
    while ((word = maybe(step)) != NULL) {
        if (is(word, "any")) {
            list->read.mode = WATCHCORE_READ_ANY;
        } else if (is(word, "at-least") || is(word, "exact")) {
            list->read.mode = is(word, "exact") ? WATCHCORE_READ_EXACT : WATCHCORE_READ_AT_LEAST;
            list->read.revision = number(step);
            list->read.epoch = maybe_epoch(step);
        } else if (is(word, "as")) {
            (void)next(step);
        } else if (!set_option(step, word, options, list)) {
            narrow(step, word, &list->filter);
        }
    }
    list->range.kind = list->filter.range;
    list->range.from = list->filter.from;
    list->range.to = list->filter.to;
    list->read.labels = list->filter.labels;
    list->read.fields = list->filter.fields;
    list->read.nothing = list->filter.nothing;
}

/* `/k=v`, and the numbers behind an `@`. */
static watchcore_change item(struct step *step, char *word)
{
    watchcore_change change = WATCHCORE_CHANGE_INIT;
    char *value = strchr(word, '='), *at;
    uint64_t numbers[4] = {0, 0, 1, 0};
    size_t count = 0;
    if (value == NULL) {
        no_step(step, "%s is not KEY=VALUE", word);
    }
    *value++ = 0;
    at = strchr(value, '@');
    if (at != NULL) {
        char *rest = at + 1, *one;
        *at = 0;
        while ((one = strsep(&rest, ",")) != NULL && count < 4) {
            numbers[count++] = as_number(step, one);
        }
        if (count == 2) {
            no_step(step, "numbers of an item");
        }
    }
    change.op = count == 0 ? WATCHCORE_CHANGE_PUT : WATCHCORE_CHANGE_PUT_EXACT;
    change.key = bytes_of(word);
    change.value = bytes_of(value);
    if (count > 0) {
        change.create_revision = numbers[0];
        change.mod_revision = count == 1 ? numbers[0] : numbers[1];
        change.version = numbers[2];
        change.lease = (int64_t)numbers[3];
    }
    return change;
}

/* The changes of the words that are left. */
static watchcore_change *changes_of(struct step *step, size_t *count)
{
    watchcore_change *changes = room_for(NULL, 0, (step->words.count - step->at) * sizeof(*changes));
    char *word;
    for (*count = 0; (word = maybe(step)) != NULL; ++*count) {
        if (word[0] == '-') {
            changes[*count] = WATCHCORE_CHANGE_INIT;
            changes[*count].op = WATCHCORE_CHANGE_DELETE;
            changes[*count].key = bytes_of(word + 1);
        } else {
            changes[*count] = item(step, word);
        }
    }
    return changes;
}

#endif
