/* The accessors as symbols, for languages that cannot use inline functions. */
#define WATCHCORE_NO_INLINE
#include "check.h"

static watchcore_error error;

static void test_accessors_exist_as_symbols(void)
{
    watchcore_writer *writer = NULL;
    watchcore_cache *cache = embedded(&writer);
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    watchcore_subscription *subscription = NULL;
    watchcore_batch batch = WATCHCORE_BATCH_INIT;
    const watchcore_event *event;
    watchcore_change one = put("/a", "1");
    options.start = WATCHCORE_START_NOW;
    CHECK_OK(watchcore_subscription_new(cache, &options, &subscription, &error));
    CHECK_OK(watchcore_writer_apply(writer, 1, &one, 1, &error));
    one.value = watchcore_bytes_from("22", 2);
    CHECK_OK(watchcore_writer_apply(writer, 2, &one, 1, &error));
    CHECK_OK(watchcore_subscription_poll(subscription, 0, &batch, &error));
    event = watchcore_batch_event(&batch, 1);
    CHECK(event == (const watchcore_event *)batch.events + 1 && watchcore_batch_event(&batch, 2) == NULL);
    CHECK(same(watchcore_event_key(event), "/a") && same(watchcore_event_value(event), "22"));
    CHECK(same(watchcore_event_prev_value(event), "1"));
    CHECK(watchcore_event_prev_value(watchcore_batch_event(&batch, 0)).data == NULL);
    CHECK(watchcore_batch_event(NULL, 0) == NULL && watchcore_event_key(NULL).data == NULL);
    CHECK(watchcore_bytes_from_string(NULL).data == NULL && watchcore_bytes_from_string("").data != NULL);
    watchcore_batch_release(&batch);
    watchcore_subscription_free(subscription);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
}

int main(void)
{
    RUN(test_accessors_exist_as_symbols);
    return check_finish("symbols");
}
