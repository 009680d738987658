/* The header alone, twice, with every initialiser as one and in an assignment. Compiled, not run, under each standard of C and C++. */
#include "watchcore.h"
#include "watchcore.h"

/* The braces alone are constants. */
static watchcore_error static_error = WATCHCORE_ERROR_INITIALIZER;
static watchcore_bytes static_bytes = WATCHCORE_BYTES_INITIALIZER;
static watchcore_cache_options static_cache = WATCHCORE_CACHE_OPTIONS_INITIALIZER;
static watchcore_attribute static_attribute = WATCHCORE_ATTRIBUTE_INITIALIZER;
static watchcore_index static_index = WATCHCORE_INDEX_INITIALIZER;
static watchcore_filter static_filter = WATCHCORE_FILTER_INITIALIZER;
static watchcore_subscription_statistics static_statistics = WATCHCORE_SUBSCRIPTION_STATISTICS_INITIALIZER;
static watchcore_change static_change = WATCHCORE_CHANGE_INITIALIZER;
static watchcore_etcd_options static_etcd = WATCHCORE_ETCD_OPTIONS_INITIALIZER;
static watchcore_counters static_counters = WATCHCORE_COUNTERS_INITIALIZER;
static watchcore_range static_range = WATCHCORE_RANGE_INITIALIZER;
static watchcore_read_options static_read = WATCHCORE_READ_OPTIONS_INITIALIZER;
static watchcore_answer static_answer = WATCHCORE_ANSWER_INITIALIZER;
static watchcore_subscription_options static_subscription = WATCHCORE_SUBSCRIPTION_OPTIONS_INITIALIZER;
static watchcore_subscription_info static_info = WATCHCORE_SUBSCRIPTION_INFO_INITIALIZER;
static watchcore_lag static_lag = WATCHCORE_LAG_INITIALIZER;
static watchcore_batch static_batch = WATCHCORE_BATCH_INITIALIZER;
static watchcore_status static_status = WATCHCORE_STATUS_INITIALIZER;
static watchcore_stats static_stats = WATCHCORE_STATS_INITIALIZER;

int watchcore_unit(void);

int watchcore_unit(void)
{
    watchcore_error error = WATCHCORE_ERROR_INIT;
    watchcore_bytes bytes = WATCHCORE_BYTES_INIT;
    watchcore_cache_options cache = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_attribute attribute = WATCHCORE_ATTRIBUTE_INIT;
    watchcore_index index = WATCHCORE_INDEX_INIT;
    watchcore_filter filter = WATCHCORE_FILTER_INIT;
    watchcore_subscription_statistics statistics = WATCHCORE_SUBSCRIPTION_STATISTICS_INIT;
    watchcore_change change = WATCHCORE_CHANGE_INIT;
    watchcore_etcd_options etcd = WATCHCORE_ETCD_OPTIONS_INIT;
    watchcore_counters counters = WATCHCORE_COUNTERS_INIT;
    watchcore_range range = WATCHCORE_RANGE_INIT;
    watchcore_read_options read = WATCHCORE_READ_OPTIONS_INIT;
    watchcore_answer answer = WATCHCORE_ANSWER_INIT;
    watchcore_subscription_options subscription = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription_info info = WATCHCORE_SUBSCRIPTION_INFO_INIT;
    watchcore_lag lag = WATCHCORE_LAG_INIT;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    watchcore_status status = WATCHCORE_STATUS_INIT;
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    const watchcore_event *event = watchcore_batch_event(&batch, 0);
    error = WATCHCORE_ERROR_INIT;
    bytes = WATCHCORE_BYTES_INIT;
    cache = WATCHCORE_CACHE_OPTIONS_INIT;
    attribute = WATCHCORE_ATTRIBUTE_INIT;
    index = WATCHCORE_INDEX_INIT;
    filter = WATCHCORE_FILTER_INIT;
    statistics = WATCHCORE_SUBSCRIPTION_STATISTICS_INIT;
    change = WATCHCORE_CHANGE_INIT;
    etcd = WATCHCORE_ETCD_OPTIONS_INIT;
    counters = WATCHCORE_COUNTERS_INIT;
    range = WATCHCORE_RANGE_INIT;
    read = WATCHCORE_READ_OPTIONS_INIT;
    answer = WATCHCORE_ANSWER_INIT;
    subscription = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    info = WATCHCORE_SUBSCRIPTION_INFO_INIT;
    lag = WATCHCORE_LAG_INIT;
    batch = WATCHCORE_BATCH_INIT;
    status = WATCHCORE_STATUS_INIT;
    stats = WATCHCORE_STATS_INIT;
    bytes = watchcore_event_key(event);
    if (static_bytes.data != NULL || static_error.size != error.size || static_cache.size != cache.size || static_attribute.size != attribute.size || static_index.size != index.size || static_filter.size != filter.size || static_statistics.size != statistics.size || static_change.size != change.size || static_etcd.size != etcd.size || static_counters.size != counters.size || static_range.size != range.size || static_read.size != read.size || static_answer.size != answer.size || static_subscription.size != subscription.size || static_info.size != info.size || static_lag.size != lag.size || static_status.size != status.size || static_stats.size != stats.size || static_batch.count != 0) {
        return 0;
    }
    return event == NULL && bytes.data == NULL && error.size == sizeof(error) && cache.size == sizeof(cache) &&
           change.size == sizeof(change) && etcd.size == sizeof(etcd) && counters.size == sizeof(counters) &&
           range.size == sizeof(range) && read.timeout_ms == 3000 && answer.kv == NULL &&
           subscription.start == WATCHCORE_START_STATE && lag.size == sizeof(lag) && status.size == sizeof(status) &&
           stats.size == sizeof(stats) && attribute.size == sizeof(attribute) && index.size == sizeof(index) &&
           filter.size == sizeof(filter) && statistics.size == sizeof(statistics) && subscription.max_lag_age_ms == 0 &&
           subscription.name.data == NULL && info.size == sizeof(info) && WATCHCORE_MASK(WATCHCORE_EVENT_DELETED) == 8;
}
