/* The steps of contract/core that print statistics: of a subscription, of a cache, of the last refusal. */
#ifndef STATISTICS_H
#define STATISTICS_H

#include "words.h"

/* What a subscription says of itself. */
static void do_of_subscription(struct step *step)
{
    const char *word = verb(step);
    watchcore_subscription *subscription = named(step, SUBSCRIPTION)->subscription;
    watchcore_subscription_statistics statistics = WATCHCORE_SUBSCRIPTION_STATISTICS_INIT;
    watchcore_lag lag = WATCHCORE_LAG_INIT;
    uint64_t revision = 0, epoch = 0;
    (void)watchcore_subscription_lag(subscription, &lag, NULL);
    (void)watchcore_subscription_stats(subscription, &statistics, NULL);
    if (!granted(step, watchcore_subscription_position(subscription, &revision, &epoch, fresh(step)))) {
        return;
    }
    if (is(word, "lag")) {
        print(step, "%llu events %llu revisions", U(lag.events), U(lag.revisions));
    } else {
        print_number(step, is(word, "delivered") ? statistics.delivered_keys : is(word, "epoch") ? epoch & UINT32_MAX : revision);
    }
}

/* Status and stats of a cache, and where each statistic of a row stands in them. */
struct statistics {
    watchcore_status status;
    watchcore_stats stats;
};

static const struct option statistics[] = {
#define STATUS(word, field) {word, NUMBER, offsetof(struct statistics, status.field)}
#define STATS(word, field) {word, NUMBER, offsetof(struct statistics, stats.field)}
    STATUS("current", revision), STATUS("epoch", epoch), STATUS("overrun", overrun), STATUS("max-lag", max_lag_events),
    STATUS("max-lag-seen", max_lag_seen), STATUS("objects", objects), STATUS("oldest", oldest),
    STATUS("subscriptions", subscriptions), STATS("events", events), STATS("extract-failures", extract_failures),
    STATS("lagged", lagged), STATS("pages", pages), STATS("revisions", revisions), STATS("snapshots", snapshots),
    STATS("tombstones", tombstones), STATS("tombstone-bytes", tombstone_bytes), STATS("waiting", waiting),
    STATS("window-bytes", window_bytes), STATS("window-segments", window_segments), {NULL, NUMBER, 0},
};

static uint64_t statistic(struct step *step, const char *word)
{
    struct statistics now = {WATCHCORE_STATUS_INIT, WATCHCORE_STATS_INIT};
    const struct option *option = option_of(word, statistics);
    if (option == NULL) {
        no_step(step, "%s is no statistic", word);
    }
    (void)watchcore_cache_status(cache_of(step), &now.status, NULL);
    (void)watchcore_cache_stats(cache_of(step), &now.stats, NULL);
    return *(const uint64_t *)(const void *)((const char *)&now + option->field);
}

static void do_stats(struct step *step)
{
    char *name;
    while ((name = maybe(step)) != NULL) {
        add(&step->line, "%s%llu", step->line.length > 0 ? " " : "", U(statistic(step, name)));
    }
    end_line(step);
}

/* A statistic that is a step of its own. */
static void do_number(struct step *step)
{
    uint64_t number = statistic(step, verb(step));
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
        add(line, "%llu %s", U(info.id), info.name.length == 0 ? "-" : "");
        add_word(line, info.name.data, info.name.length);
        add(line, " %s at %llu behind %llu events %llu revisions, ", state, U(info.revision),
            U(info.lag_events), U(info.lag_revisions));
        add(line, info.read_path == WATCHCORE_READ_PATH_SCAN ? "scan" : "chain by ");
        add(line, "%.*s, %s", (int)info.index.length, (const char *)info.index.data, info.polled ? "polled" : "never polled");
        print(step, ", handed out %llu, lost %llu", U(info.handed_out), U(info.lagged));
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
    print(step, "asked %llu oldest %llu current %llu lost %llu..%llu position %llu in %llu", U(last->asked), U(last->oldest),
          U(last->current), U(last->lost_from), U(last->lost_to), U(last->position), U(last->epoch & UINT32_MAX));
}

#endif
