/* A plugin that is right until one of its macros makes it wrong. Each test builds it with one macro. */
#include "tokenspeed_backend.h"

#include <string.h>

#ifndef NAME
#define NAME "faulty"
#endif

struct ts_device {
    int open;
};
struct ts_queue {
    int open;
};

static ts_status backend_info(ts_backend_info *info) {
    info->tiers = 0;
#ifdef CLAIMS_PROGRAMS
    info->tiers |= TS_TIER_PROGRAMS;
#endif
#ifdef CLAIMS_COLLECTIVES
    info->tiers |= TS_TIER_COLLECTIVES;
#endif
    info->name.data = NAME;
    info->name.len = strlen(NAME);
    info->version.data = "1";
    info->version.len = 1;
    return TS_OK;
}

static ts_status device_count(uint32_t *count, ts_error *error) {
    (void)error;
    *count = 1;
    return TS_OK;
}

static ts_status device_info(uint32_t index, ts_device_info *info, ts_error *error) {
    (void)index, (void)error;
    info->alignment = 1;
    return TS_OK;
}

static ts_status device_open(uint32_t index, const ts_option *options, uint32_t n, ts_device **device,
                             ts_error *error) {
    static ts_device the_device;
    (void)index, (void)options, (void)n, (void)error;
    *device = &the_device;
#ifdef OPENS_NOTHING
    *device = NULL;
#endif
    return TS_OK;
}

static void device_close(ts_device *device) { (void)device; }

static ts_status device_status(ts_device *device, ts_error *error) {
    (void)device, (void)error;
    return TS_OK;
}

static ts_status arena_alloc(ts_device *device, uint32_t kind, uint64_t bytes, ts_arena **arena, ts_error *error) {
    (void)device, (void)kind, (void)bytes, (void)arena;
    if (error != NULL) {
        strcpy(error->text, "card 3 has\n12 MB left");
        error->vendor_code = 1002;
    }
    return TS_ERR_OUT_OF_MEMORY;
}

static void arena_free(ts_device *device, ts_arena *arena) { (void)device, (void)arena; }

static ts_status arena_write(ts_device *d, ts_arena *a, uint64_t o, const uint8_t *data, uint64_t n, ts_error *e) {
    (void)d, (void)a, (void)o, (void)data, (void)n, (void)e;
    return TS_ERR_INTERNAL;
}

static ts_status arena_read(ts_device *d, ts_arena *a, uint64_t o, uint8_t *data, uint64_t n, ts_error *e) {
    (void)d, (void)a, (void)o, (void)data, (void)n, (void)e;
    return TS_ERR_INTERNAL;
}

static ts_status queue_create(ts_device *device, ts_queue **queue, ts_error *error) {
    (void)device, (void)queue, (void)error;
    return 4242;
}

static void queue_destroy(ts_device *device, ts_queue *queue) { (void)device, (void)queue; }

static ts_status queue_copy(ts_queue *queue, const ts_binding *to, const ts_binding *from, ts_error *error) {
    (void)queue, (void)to, (void)from, (void)error;
    return TS_OK;
}

static ts_status queue_event(ts_queue *queue, ts_event *event, uint64_t value, ts_error *error) {
    (void)queue, (void)event, (void)value, (void)error;
    return TS_OK;
}

static ts_status event_create(ts_device *device, ts_event **event, ts_error *error) {
    (void)device, (void)event, (void)error;
    return TS_ERR_UNSUPPORTED;
}

static void event_destroy(ts_device *device, ts_event *event) { (void)device, (void)event; }

static ts_status event_query(ts_event *event, uint64_t *value, ts_error *error) {
    (void)event, (void)value, (void)error;
    return TS_OK;
}

static ts_status event_wait(ts_event *event, uint64_t value, uint64_t timeout_ns, ts_error *error) {
    (void)event, (void)value, (void)timeout_ns, (void)error;
    return TS_OK;
}

static ts_status op_support(ts_device *device, const ts_op *op, ts_support *support, ts_error *error) {
    (void)device, (void)op, (void)error;
    support->answer = TS_SUPPORT_YES;
    support->pack_operand = 0;
    support->pack_layout = 1; /* without an op_pack entry */
    return TS_OK;
}

static ts_status op_launch(ts_queue *queue, const ts_op *op, const ts_binding *b, uint32_t n, ts_error *error) {
    (void)queue, (void)op, (void)b, (void)n, (void)error;
    return TS_OK;
}

#ifdef UNDEFINED_FUNCTION
int vendor_runtime_start(void);
#endif

#ifdef WRONG_ROOT_MODULE
/* What a Rust plugin exports for its layout check, of another version of the library that checks. */
__attribute__((visibility("default"))) const char _1as_0lib_1header_0root_bmodule_bloader[256] = "abi stable 99";
#endif

#ifdef WRONG_SYMBOL
#define ts_backend_entry ts_backend_start
ts_status ts_backend_entry(const ts_host *host, ts_backend_table *table, ts_error *error);
#endif

ts_status ts_backend_entry(const ts_host *host, ts_backend_table *table, ts_error *error) {
    uint32_t size = table->struct_size;
    ts_backend_table own = {
        .abi_version = host->abi_max,
        .backend_info = backend_info,
        .device_count = device_count,
        .device_info = device_info,
        .device_open = device_open,
        .device_close = device_close,
        .device_status = device_status,
        .arena_alloc = arena_alloc,
        .arena_free = arena_free,
        .arena_write = arena_write,
        .arena_read = arena_read,
        .queue_create = queue_create,
        .queue_destroy = queue_destroy,
        .queue_copy = queue_copy,
        .queue_signal = queue_event,
        .queue_wait = queue_event,
        .event_create = event_create,
        .event_destroy = event_destroy,
        .event_query = event_query,
        .event_wait = event_wait,
        .op_support = op_support,
        .op_launch = op_launch,
    };
    (void)error;
#ifdef UNDEFINED_FUNCTION
    if (vendor_runtime_start() != 0) return TS_ERR_INTERNAL;
#endif
#ifdef INIT_ERROR
    strcpy(error->text, "the driver is version 3.1,\n\tthis plugin needs 6.0");
    return TS_ERR_INTERNAL;
#endif
#ifdef INIT_ERROR_WITHOUT_WORDS
    return 77;
#endif
#ifdef HONESTLY_NEWER
    strcpy(error->text, "this plugin speaks ABI 2.0 to 2.3");
    return TS_ERR_INCOMPATIBLE;
#endif
#ifdef NEWER
    own.abi_version = TS_ABI_VERSION + 0x10000;
#endif
#ifdef OLDER
    own.abi_version = 9; /* 0.9 */
#endif
#ifdef MISSING_ENTRY
    own.op_launch = NULL;
#endif
#ifdef SHORT_TABLE
    size = offsetof(ts_backend_table, event_wait);
#endif
    own.struct_size = size;
    memcpy(table, &own, sizeof own < table->struct_size ? sizeof own : table->struct_size);
    return TS_OK;
}
