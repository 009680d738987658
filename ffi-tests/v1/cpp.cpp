// The same interface from C++: handles in std::unique_ptr, batches in a guard, threads of the standard library.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace {

watchcore_error error;

template <typename T, void (*Free)(T *)>
struct Freer {
    void operator()(T *handle) const { Free(handle); }
};
using Cache = std::unique_ptr<watchcore_cache, Freer<watchcore_cache, watchcore_cache_free>>;
using Writer = std::unique_ptr<watchcore_writer, Freer<watchcore_writer, watchcore_writer_free>>;
using Subscription =
    std::unique_ptr<watchcore_subscription, Freer<watchcore_subscription, watchcore_subscription_free>>;

class Batch {
public:
    Batch() = default;
    Batch(const Batch &) = delete;
    Batch &operator=(const Batch &) = delete;
    ~Batch() { watchcore_batch_release(&batch_); }
    watchcore_batch *out()
    {
        watchcore_batch_release(&batch_);
        return &batch_;
    }
    std::size_t size() const { return batch_.count; }
    const watchcore_event &operator[](std::size_t index) const { return *watchcore_batch_event(&batch_, index); }

private:
    watchcore_batch batch_ = WATCHCORE_BATCH_INIT;
};

std::string string(watchcore_bytes bytes)
{
    return std::string(static_cast<const char *>(bytes.data), bytes.length);
}

void test_follow_from_another_thread()
{
    watchcore_writer *raw_writer = nullptr;
    Cache cache(embedded(&raw_writer));
    Writer writer(raw_writer);
    watchcore_subscription_options options = WATCHCORE_SUBSCRIPTION_OPTIONS_INIT;
    options.start = WATCHCORE_START_NOW;
    options.whole_revisions = 1;
    watchcore_subscription *raw = nullptr;
    CHECK_OK(watchcore_subscription_new(cache.get(), &options, &raw, &error));
    Subscription subscription(raw);

    std::vector<std::string> seen;
    int32_t ended = WATCHCORE_OK;
    std::thread reader([&] {
        Batch batch;
        while ((ended = watchcore_subscription_wait(subscription.get(), -1, nullptr)) == WATCHCORE_OK &&
               (ended = watchcore_subscription_poll(subscription.get(), 3, batch.out(), nullptr)) == WATCHCORE_OK) {
            for (std::size_t i = 0; i < batch.size(); i++) {
                seen.push_back(string(watchcore_event_key(&batch[i])));
            }
        }
    });
    for (std::uint64_t revision = 1; revision <= 100; revision++) {
        const std::string key = "/" + std::to_string(revision);
        watchcore_change one = put(key.c_str(), "v");
        CHECK_OK(watchcore_writer_apply(writer.get(), revision, &one, 1, &error));
    }
    CHECK_OK(watchcore_cache_close(cache.get(), &error)); // the reader gets the rest first
    reader.join();
    CHECK(ended == WATCHCORE_CLOSED && seen.size() == 100 && seen.front() == "/1" && seen.back() == "/100");
}

} // namespace

int main()
{
    RUN(test_follow_from_another_thread);
    return check_finish("cpp");
}
