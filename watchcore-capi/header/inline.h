// Accessors. They never fail and never block, may be called on any thread, and transfer no ownership: a result is valid
// as long as the batch, page or snapshot that it came from. Each exists as a symbol too: define WATCHCORE_NO_INLINE
// before the include to call the symbols. All since 0.1.

#ifdef WATCHCORE_NO_INLINE
#ifdef __cplusplus
extern "C" {
#endif
const watchcore_event *watchcore_batch_event(const watchcore_batch *batch, size_t index);
watchcore_bytes watchcore_event_key(const watchcore_event *event);
watchcore_bytes watchcore_event_value(const watchcore_event *event);
watchcore_bytes watchcore_event_prev_value(const watchcore_event *event);
watchcore_bytes watchcore_bytes_from(const void *data, size_t length);
watchcore_bytes watchcore_bytes_from_string(const char *string);
#ifdef __cplusplus
}
#endif
#else

// A pointer and a length as one value.
static inline watchcore_bytes watchcore_bytes_from(const void *data, size_t length)
{
    watchcore_bytes bytes;
    bytes.data = data;
    bytes.length = length;
    return bytes;
}

// The bytes of a NUL-terminated string without the NUL; NULL gives "absent".
static inline watchcore_bytes watchcore_bytes_from_string(const char *string)
{
    size_t length = 0;
    if (string != NULL) {
        while (string[length] != 0) {
            length++;
        }
    }
    return watchcore_bytes_from(string, length);
}

// The event at an index; NULL after the last.
static inline const watchcore_event *watchcore_batch_event(const watchcore_batch *batch, size_t index)
{
    if (batch == NULL || index >= batch->count) {
        return NULL;
    }
    return (const watchcore_event *)(const void *)((const unsigned char *)batch->events + index * batch->stride);
}

// The key of an event; absent in bookmarks and resync marks.
static inline watchcore_bytes watchcore_event_key(const watchcore_event *event)
{
    if (event == NULL || event->kv == NULL) {
        return watchcore_bytes_from(NULL, 0);
    }
    return watchcore_bytes_from(event->kv->key, event->kv->key_length);
}

// The new value of an event; absent in deletions, bookmarks and resync marks.
static inline watchcore_bytes watchcore_event_value(const watchcore_event *event)
{
    if (event == NULL || event->kv == NULL) {
        return watchcore_bytes_from(NULL, 0);
    }
    return watchcore_bytes_from(event->kv->value, event->kv->value_length);
}

// The value before the event; absent if there was none (or it left the window).
static inline watchcore_bytes watchcore_event_prev_value(const watchcore_event *event)
{
    if (event == NULL || event->prev_kv == NULL) {
        return watchcore_bytes_from(NULL, 0);
    }
    return watchcore_bytes_from(event->prev_kv->value, event->prev_kv->value_length);
}

#endif // WATCHCORE_NO_INLINE
