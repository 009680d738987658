/* The header alone, twice, with every initialiser. Compiled, not run, under each standard of C and C++. */
#include "watchcore.h"
#include "watchcore.h"

int watchcore_unit(void);

int watchcore_unit(void)
{
    watchcore_error error = WATCHCORE_ERROR_INIT;
    watchcore_bytes bytes = WATCHCORE_BYTES_INIT;
    watchcore_cache_options cache = WATCHCORE_CACHE_OPTIONS_INIT;
    watchcore_attribute attribute = WATCHCORE_ATTRIBUTE_INIT;
    watchcore_index index = WATCHCORE_INDEX_INIT;
    watchcore_filter filter = WATCHCORE_FILTER_INIT;
    watchcore_subscription_figures figures = WATCHCORE_SUBSCRIPTION_FIGURES_INIT;
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
    bytes = watchcore_event_key(event);
    return event == NULL && bytes.data == NULL && error.size == sizeof(error) && cache.size == sizeof(cache) &&
           change.size == sizeof(change) && etcd.size == sizeof(etcd) && counters.size == sizeof(counters) &&
           range.size == sizeof(range) && read.timeout_ms == 3000 && answer.kv == NULL &&
           subscription.start == WATCHCORE_START_STATE && lag.size == sizeof(lag) && status.size == sizeof(status) &&
           stats.size == sizeof(stats) && attribute.size == sizeof(attribute) && index.size == sizeof(index) &&
           filter.size == sizeof(filter) && figures.size == sizeof(figures) && subscription.max_lag_age_ms == 0 &&
           subscription.name.data == NULL && info.size == sizeof(info) && WATCHCORE_MASK(WATCHCORE_DELETED) == 8;
}
