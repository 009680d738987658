/* Members of a wake set, and what a loop over one does. */
#ifndef WAKESET_H
#define WAKESET_H

#include <errno.h>
#include <poll.h>

#include "check.h"

static watchcore_error error;

static int readable(int fd, int timeout)
{
    struct pollfd one;
    one.fd = fd;
    one.events = POLLIN;
    one.revents = 0;
    return poll(&one, 1, timeout) == 1 && (one.revents & POLLIN) != 0;
}

static watchcore_subscription *below(watchcore_cache *cache, const char *prefix)
{
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *subscription = NULL;
    options.start = WATCHCORE_START_NOW;
    options.range = WATCHCORE_RANGE_PREFIX;
    options.from = text(prefix);
    CHECK_OK(watchcore_subscription_new(cache, &options, &subscription, &error));
    return subscription;
}

/* The tag of the next member that is ready; 0: none is. No test uses 0 as a tag. */
static uint64_t next_of(const watchcore_wakeset *set)
{
    uint64_t tag = 0;
    uint32_t found = 9;
    CHECK_OK(watchcore_wakeset_next(set, &tag, &found, &error));
    CHECK(found == 1 || (found == 0 && tag == 0));
    return tag;
}

/* The tag of the member that comes next: sleeps on the descriptor until there is one. It may be readable for nothing. */
static uint64_t comes(const watchcore_wakeset *set, int fd)
{
    uint64_t tag = 0;
    while (tag == 0 && !check_broken) {
        CHECK(readable(fd, -1));
        tag = next_of(set);
    }
    return tag;
}

/* Polls at most that many events; how many came. */
static size_t poll_some(watchcore_subscription *subscription, size_t most)
{
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    size_t count;
    CHECK_OK(watchcore_subscription_poll(subscription, most, &batch, &error));
    count = batch.count;
    watchcore_batch_release(&batch);
    return count;
}

/* A revision for each number from `first` to `last`, a put of the key each. */
static void write_key(watchcore_writer *writer, const char *key, uint64_t first, uint64_t last)
{
    watchcore_change one = put(key, "1");
    for (; first <= last; first++) {
        CHECK_OK(watchcore_writer_apply(writer, first, &one, 1, &error));
    }
}

#endif
