/* An example backend in C: the smallest plugin that can run a Llama.
 *
 * Build it with nothing but a C compiler and the header:
 *
 *     cc -std=c11 -O2 -fPIC -shared -I backend-api/include backends/example-c/example.c -lm -o libtokenspeed_example.so
 *     tokenspeed conform ./libtokenspeed_example.so
 *
 * It is tier T0: memory, queues, events, op_support and op_launch. It has no programs, so the host walks the op list;
 * it supports no fused op, so the host expands them; it keeps activations and caches in f32 and reads weights in f32,
 * f16, bf16 and q8_0. Everything runs on the calling thread, inside the call, which makes queues trivial. Speed was not
 * a goal, being read was.
 *
 * Order of the file: errors, objects, operands, the parameter block, the ops, op_support and op_launch, the table.
 */
#include "tokenspeed_backend.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>
#include <time.h>

enum { ALIGNMENT = 64, HEAD_DIM_MAX = 512, GEMM_TILE = 16, BLOCK = 32 };

/* ---- Errors and struct_size ---------------------------------------------------------------------------------- */

/* Fills the caller's record as far as it reaches and gives back the status. */
static ts_status fail(ts_error *error, ts_status code, const char *format, ...) {
    if (error != NULL && error->struct_size > offsetof(ts_error, text)) {
        size_t room = error->struct_size - offsetof(ts_error, text);
        va_list list;
        error->code = code;
        error->vendor_code = 0;
        error->device = error->rank = error->peer = -1;
        va_start(list, format);
        vsnprintf(error->text, room < sizeof error->text ? room : sizeof error->text, format, list);
        va_end(list);
    }
    return code;
}

/* Writes min(its, our) bytes of a struct that starts with struct_size. */
static void put(void *destination, const void *source, uint32_t size) {
    uint32_t theirs;
    memcpy(&theirs, destination, sizeof theirs);
    if (theirs < size) size = theirs;
    memcpy(destination, source, size);
    memcpy(destination, &size, sizeof size);
}

static ts_str text(const char *s) {
    ts_str t = {s, strlen(s)};
    return t;
}

/* ---- Objects ------------------------------------------------------------------------------------------------- */

/* Every object is in its device's list, so that closing the device frees what the host forgot. */
typedef struct object {
    struct object *next, **link;
    void *data;
} object;

struct ts_device {
    object *first;
};
struct ts_arena {
    object head;
    uint64_t bytes;
};
struct ts_queue {
    object head;
};
struct ts_event {
    object head;
    _Atomic uint64_t value;
};

static void *create(ts_device *device, size_t size) {
    object *o = calloc(1, size);
    if (o == NULL) return NULL;
    o->next = device->first;
    o->link = &device->first;
    if (o->next != NULL) o->next->link = &o->next;
    device->first = o;
    return o;
}

static void destroy(object *o) {
    if (o == NULL) return;
    *o->link = o->next;
    if (o->next != NULL) o->next->link = o->link;
    free(o->data);
    free(o);
}

static ts_status device_open(uint32_t index, const ts_option *options, uint32_t n_options, ts_device **device,
                             ts_error *error) {
    if (index != 0) return fail(error, TS_ERR_INVALID, "device %u does not exist: there is 1", index);
    /* An option that is not understood must never be ignored. */
    if (n_options > 0) {
        return fail(error, TS_ERR_INVALID, "unknown option %.*s=%.*s; known options: none", (int)options[0].key.len,
                    options[0].key.data, (int)options[0].value.len, options[0].value.data);
    }
    *device = calloc(1, sizeof **device);
    return *device != NULL ? TS_OK : fail(error, TS_ERR_OUT_OF_MEMORY, "no memory for a device");
}

static void device_close(ts_device *device) {
    while (device->first != NULL) destroy(device->first);
    free(device);
}

static ts_status device_status(ts_device *device, ts_error *error) {
    (void)device, (void)error; /* Nothing can be lost. */
    return TS_OK;
}

static ts_status arena_alloc(ts_device *device, uint32_t kind, uint64_t bytes, ts_arena **arena, ts_error *error) {
    (void)kind; /* All memory is alike here. */
    ts_arena *a = bytes <= SIZE_MAX - ALIGNMENT ? create(device, sizeof *a) : NULL;
    if (a != NULL) {
        a->bytes = bytes;
        a->head.data = aligned_alloc(ALIGNMENT, ((size_t)bytes / ALIGNMENT + 1) * ALIGNMENT);
    }
    if (a == NULL || a->head.data == NULL) {
        if (a != NULL) destroy(&a->head);
        return fail(error, TS_ERR_OUT_OF_MEMORY, "no memory for an arena of %llu bytes", (unsigned long long)bytes);
    }
    *arena = a;
    return TS_OK;
}

static void arena_free(ts_device *device, ts_arena *arena) {
    (void)device;
    destroy(&arena->head);
}

/* Address of a range of an arena, or null if it is not inside. */
static uint8_t *range(const ts_arena *arena, uint64_t offset, uint64_t bytes) {
    if (arena == NULL || offset > arena->bytes || bytes > arena->bytes - offset) return NULL;
    return (uint8_t *)arena->head.data + offset;
}

static ts_status arena_write(ts_device *device, ts_arena *arena, uint64_t offset, const uint8_t *data, uint64_t bytes,
                             ts_error *error) {
    uint8_t *to = range(arena, offset, bytes);
    (void)device;
    if (to == NULL) return fail(error, TS_ERR_INVALID, "a write passes the end of its arena");
    memcpy(to, data, (size_t)bytes);
    return TS_OK;
}

static ts_status arena_read(ts_device *device, ts_arena *arena, uint64_t offset, uint8_t *data, uint64_t bytes,
                            ts_error *error) {
    const uint8_t *from = range(arena, offset, bytes);
    (void)device;
    if (from == NULL) return fail(error, TS_ERR_INVALID, "a read passes the end of its arena");
    memcpy(data, from, (size_t)bytes);
    return TS_OK;
}

static ts_status queue_create(ts_device *device, ts_queue **queue, ts_error *error) {
    *queue = create(device, sizeof **queue);
    return *queue != NULL ? TS_OK : fail(error, TS_ERR_OUT_OF_MEMORY, "no memory for a queue");
}

static void queue_destroy(ts_device *device, ts_queue *queue) {
    (void)device;
    destroy(&queue->head);
}

static ts_status queue_copy(ts_queue *queue, const ts_binding *to, const ts_binding *from, ts_error *error) {
    uint8_t *d = range(to->arena, to->offset, to->bytes);
    const uint8_t *s = range(from->arena, from->offset, from->bytes);
    (void)queue;
    if (d == NULL || s == NULL || to->bytes != from->bytes) {
        return fail(error, TS_ERR_INVALID, "a copy passes the end of an arena, or its ranges differ in length");
    }
    memmove(d, s, (size_t)to->bytes);
    return TS_OK;
}

/* Work is done when the call that enqueued it returns, so signalling is storing. */
static ts_status queue_signal(ts_queue *queue, ts_event *event, uint64_t value, ts_error *error) {
    (void)queue;
    if (value < atomic_load(&event->value)) return fail(error, TS_ERR_INVALID, "a timeline only grows");
    atomic_store(&event->value, value);
    return TS_OK;
}

static ts_status event_create(ts_device *device, ts_event **event, ts_error *error) {
    *event = create(device, sizeof **event);
    return *event != NULL ? TS_OK : fail(error, TS_ERR_OUT_OF_MEMORY, "no memory for an event");
}

static void event_destroy(ts_device *device, ts_event *event) {
    (void)device;
    destroy(&event->head);
}

static ts_status event_query(ts_event *event, uint64_t *value, ts_error *error) {
    (void)error;
    *value = atomic_load(&event->value);
    return TS_OK;
}

static ts_status event_wait(ts_event *event, uint64_t value, uint64_t timeout_ns, ts_error *error) {
    struct timespec start, now;
    timespec_get(&start, TIME_UTC);
    while (atomic_load(&event->value) < value) {
        timespec_get(&now, TIME_UTC);
        double waited = (double)(now.tv_sec - start.tv_sec) * 1e9 + (double)(now.tv_nsec - start.tv_nsec);
        if (waited >= (double)timeout_ns) return fail(error, TS_ERR_TIMEOUT, "the event did not reach its value");
        thrd_yield();
    }
    return TS_OK;
}

static ts_status queue_wait(ts_queue *queue, ts_event *event, uint64_t value, ts_error *error) {
    (void)queue;
    return event_wait(event, value, 60u * UINT64_C(1000000000), error);
}

/* ---- Element formats ----------------------------------------------------------------------------------------- */

static float from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h >> 15) << 31, exponent = (h >> 10) & 31, fraction = h & 1023;
    if (exponent == 31) return from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float subnormal = (float)fraction * 0x1p-24f;
    return sign != 0 ? -subnormal : subnormal;
}

/* Bytes of n consecutive values, 0 if this backend does not know the format or n is not whole blocks. */
static uint64_t bytes_of(uint32_t dtype, uint64_t n) {
    switch (dtype) {
    case TS_DTYPE_F32:
    case TS_DTYPE_U32: return n * 4;
    case TS_DTYPE_F16:
    case TS_DTYPE_BF16: return n * 2;
    case TS_DTYPE_Q8_0: return n % 32 == 0 ? n / 32 * 34 : 0;
    default: return 0;
    }
}

static bool is_weight_format(uint32_t dtype) {
    return dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_F16 || dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_Q8_0;
}

/* Values [first, first + n) of a row, n <= BLOCK, first a multiple of BLOCK. */
static void decode(uint32_t dtype, const uint8_t *row, uint64_t first, uint32_t n, float *out) {
    uint16_t half;
    if (dtype == TS_DTYPE_F32) {
        memcpy(out, row + first * 4, n * sizeof *out);
    } else if (dtype == TS_DTYPE_Q8_0) { /* f16 scale, then 32 signed bytes */
        const uint8_t *block = row + first / 32 * 34;
        memcpy(&half, block, 2);
        for (uint32_t i = 0; i < n; i++) out[i] = from_f16(half) * (float)(int8_t)block[2 + i];
    } else {
        for (uint32_t i = 0; i < n; i++) {
            memcpy(&half, row + (first + i) * 2, 2);
            out[i] = dtype == TS_DTYPE_F16 ? from_f16(half) : from_bits((uint32_t)half << 16);
        }
    }
}

/* ---- Operands and the parameter block ------------------------------------------------------------------------ */

/* An operand in memory. Rows are the entries of dims[0]; n is how many of them this step uses. */
typedef struct {
    const ts_tensor *desc;
    uint8_t *data;
    uint64_t n, row_bytes, row_len;
} operand;

enum { OPERANDS_MAX = 64 };

typedef struct {
    const ts_op *op;
    operand o[OPERANDS_MAX];
    ts_step step;
    const ts_step_row *rows;
    const ts_step_token *tokens;
    const uint32_t *logit_rows;
    const ts_table_delta *deltas;
} call;

static uint64_t row_len(const ts_tensor *t) {
    uint64_t n = 1;
    for (uint32_t i = 1; i < t->rank; i++) n *= t->dims[i];
    return n;
}

static float *f32_row(const operand *o, uint64_t row) { return (float *)(void *)(o->data + row * o->row_bytes); }

static const void *step_array(const uint8_t *block, const ts_step *s, uint32_t offset, uint32_t n, size_t size) {
    return n == 0 || (offset % 16 == 0 && offset + (uint64_t)n * size <= s->bytes) ? block + offset : NULL;
}

/* Reads and checks the parameter block, so that ops can trust its indices. */
static ts_status open_step(call *c, const ts_binding *bindings, uint32_t n_bindings, ts_error *error) {
    const uint8_t *block = n_bindings > TS_BIND_STEP
                               ? range(bindings[TS_BIND_STEP].arena, bindings[TS_BIND_STEP].offset, sizeof(ts_step))
                               : NULL;
    if (block == NULL || bindings[TS_BIND_STEP].bytes < sizeof(ts_step)) {
        return fail(error, TS_ERR_INVALID, "no parameter block is bound");
    }
    ts_step *s = &c->step;
    memcpy(s, block, sizeof *s);
    if (s->bytes > bindings[TS_BIND_STEP].bytes ||
        range(bindings[TS_BIND_STEP].arena, bindings[TS_BIND_STEP].offset, s->bytes) == NULL) {
        return fail(error, TS_ERR_INVALID, "the parameter block is longer than its binding");
    }
    c->rows = step_array(block, s, s->rows_offset, s->n_rows, sizeof *c->rows);
    c->tokens = step_array(block, s, s->tokens_offset, s->n_tokens, sizeof *c->tokens);
    c->logit_rows = step_array(block, s, s->logit_rows_offset, s->n_logit_rows, sizeof *c->logit_rows);
    c->deltas = step_array(block, s, s->deltas_offset, s->n_deltas, sizeof *c->deltas);
    if (c->rows == NULL || c->tokens == NULL || c->logit_rows == NULL || c->deltas == NULL) {
        return fail(error, TS_ERR_INVALID, "an array passes the end of the parameter block");
    }
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        if (c->tokens[i].row >= s->n_rows) return fail(error, TS_ERR_INVALID, "token %u has no row", i);
    }
    for (uint32_t i = 0; i < s->n_logit_rows; i++) {
        if (c->logit_rows[i] >= s->n_tokens) return fail(error, TS_ERR_INVALID, "logit row %u has no token", i);
    }
    return TS_OK;
}

/* Finds operand i in memory. */
static ts_status open_operand(call *c, uint32_t i, const ts_binding *bindings, uint32_t n_bindings, ts_error *error) {
    const ts_tensor *t = &c->op->operands[i];
    operand *o = &c->o[i];
    o->desc = t;
    o->row_len = row_len(t);
    uint64_t dense = bytes_of(t->dtype, t->rank == 1 ? t->dims[0] : o->row_len);
    o->row_bytes = t->stride0 != 0 ? t->stride0 : t->rank == 1 ? bytes_of(t->dtype, 1) : dense;
    uint64_t span = t->rank == 1 ? dense : o->row_bytes * (t->dims[0] - 1) + dense;
    const ts_binding *b = t->binding < n_bindings ? &bindings[t->binding] : NULL;
    if (b == NULL || t->offset > b->bytes || span > b->bytes - t->offset) {
        return fail(error, TS_ERR_INVALID, "operand %u is outside of binding %u", i, t->binding);
    }
    o->data = range(b->arena, b->offset + t->offset, span);
    if (o->data == NULL) return fail(error, TS_ERR_INVALID, "operand %u is outside of its arena", i);
    switch (t->vary) {
    case TS_VARY_TOKENS: o->n = c->step.n_tokens; break;
    case TS_VARY_ROWS: o->n = c->step.n_rows; break;
    case TS_VARY_LOGIT_ROWS: o->n = c->step.n_logit_rows; break;
    default: o->n = t->dims[0]; break;
    }
    return o->n <= t->dims[0] ? TS_OK : fail(error, TS_ERR_INVALID, "operand %u is too small for the step", i);
}

/* Block and slot in which a component keeps the token at `position` of a row. */
static ts_status locate(const operand *cache, const operand *table, uint32_t table_row, uint32_t position, uint64_t *at,
                        ts_error *error) {
    uint64_t block_tokens = cache->desc->dims[1], index = position / block_tokens;
    if (table_row >= table->desc->dims[0] || index >= table->desc->dims[1]) {
        return fail(error, TS_ERR_INVALID, "position %u of table row %u is outside of the table", position, table_row);
    }
    uint32_t block = ((const uint32_t *)(const void *)(table->data + table_row * table->row_bytes))[index];
    if (block >= cache->desc->dims[0]) return fail(error, TS_ERR_INVALID, "block %u does not exist", block);
    *at = block * cache->row_bytes + position % block_tokens * cache->row_len / block_tokens * sizeof(float);
    return TS_OK;
}

/* ---- The ops ------------------------------------------------------------------------------------------------- */

static ts_status table_update(const call *c, ts_error *error) {
    for (uint32_t i = 0; i < c->step.n_deltas; i++) {
        const ts_table_delta *d = &c->deltas[i];
        const operand *t = d->component < c->op->n_operands ? &c->o[d->component] : NULL;
        if (t == NULL || d->table_row >= t->desc->dims[0] || d->index >= t->desc->dims[1]) {
            return fail(error, TS_ERR_INVALID, "table delta %u is outside of its table", i);
        }
        ((uint32_t *)(void *)(t->data + d->table_row * t->row_bytes))[d->index] = d->block;
    }
    return TS_OK;
}

static void copy(const operand *x, const operand *y) {
    for (uint64_t i = 0; i < x->n; i++) memmove(f32_row(y, i), f32_row(x, i), (size_t)x->row_len * sizeof(float));
}

/* y = x w^T (+ bias). A tile of rows of x shares each decoded piece of w. */
static void gemm(const operand *x, const operand *w, const operand *bias, const operand *y) {
    uint64_t k_end = w->row_len;
    for (uint64_t t0 = 0; t0 < x->n; t0 += GEMM_TILE) {
        uint64_t tile = x->n - t0 < GEMM_TILE ? x->n - t0 : GEMM_TILE;
        for (uint64_t j = 0; j < w->n; j++) {
            double sum[GEMM_TILE] = {0};
            for (uint64_t k = 0; k < k_end; k += BLOCK) {
                uint32_t n = k_end - k < BLOCK ? (uint32_t)(k_end - k) : BLOCK;
                float piece[BLOCK];
                decode(w->desc->dtype, w->data + j * w->row_bytes, k, n, piece);
                for (uint64_t t = 0; t < tile; t++) {
                    const float *row = f32_row(x, t0 + t) + k;
                    for (uint32_t i = 0; i < n; i++) sum[t] += (double)row[i] * piece[i];
                }
            }
            double offset = bias != NULL ? ((const float *)(void *)bias->data)[j] : 0.0;
            for (uint64_t t = 0; t < tile; t++) f32_row(y, t0 + t)[j] = (float)(sum[t] + offset);
        }
    }
}

static void rmsnorm(const operand *x, const operand *w, const operand *y, double eps) {
    uint64_t d = w->desc->dims[0];
    const float *weight = (const float *)(void *)w->data;
    for (uint64_t i = 0; i < x->n; i++) {
        for (uint64_t part = 0; part < x->row_len; part += d) {
            const float *in = f32_row(x, i) + part;
            float *out = f32_row(y, i) + part;
            double squares = 0;
            for (uint64_t j = 0; j < d; j++) squares += (double)in[j] * in[j];
            double scale = 1.0 / sqrt(squares / (double)d + eps);
            for (uint64_t j = 0; j < d; j++) out[j] = (float)(in[j] * scale * weight[j]);
        }
    }
}

/* Rotates pairs of a head by position * inv_freq; y may be x, so each pair is read before it is written. */
static void rope(const call *c, const operand *x, const operand *freq, const operand *y) {
    bool pairs = c->op->attrs_i[0] == 1;
    double factor = c->op->attrs_f[0] == 0 ? 1.0 : c->op->attrs_f[0];
    uint64_t heads = x->desc->dims[1], d = x->desc->dims[2], half = freq->desc->dims[0];
    const float *inv_freq = (const float *)(void *)freq->data;
    for (uint64_t t = 0; t < x->n; t++) {
        for (uint64_t j = 0; j < half; j++) {
            double angle = (double)c->tokens[t].position * inv_freq[j];
            double cosine = cos(angle) * factor, sine = sin(angle) * factor;
            uint64_t a = pairs ? 2 * j : j, b = pairs ? 2 * j + 1 : j + half;
            for (uint64_t h = 0; h < heads; h++) {
                const float *in = f32_row(x, t) + h * d;
                float *out = f32_row(y, t) + h * d;
                double u = in[a], v = in[b];
                out[a] = (float)(u * cosine - v * sine);
                out[b] = (float)(v * cosine + u * sine);
            }
        }
        for (uint64_t h = 0; h < heads; h++) {
            memmove(f32_row(y, t) + h * d + 2 * half, f32_row(x, t) + h * d + 2 * half,
                    (size_t)(d - 2 * half) * sizeof(float));
        }
    }
}

static void silu(const operand *x, const operand *y) {
    for (uint64_t i = 0; i < x->n; i++) {
        for (uint64_t j = 0; j < x->row_len; j++) {
            double v = f32_row(x, i)[j];
            f32_row(y, i)[j] = (float)(v / (1.0 + exp(-v)));
        }
    }
}

static void add_or_mul(const operand *a, const operand *b, const operand *y, bool add) {
    for (uint64_t i = 0; i < a->n; i++) {
        const float *p = f32_row(a, i), *q = f32_row(b, i);
        for (uint64_t j = 0; j < a->row_len; j++) f32_row(y, i)[j] = add ? p[j] + q[j] : p[j] * q[j];
    }
}

static ts_status embedding(const call *c, const operand *table, const operand *y, ts_error *error) {
    for (uint64_t t = 0; t < y->n; t++) {
        int64_t id = c->tokens[t].id; /* negative: an id sampled on the device, which this backend does not do */
        if (id < 0 || (uint64_t)id >= table->desc->dims[0]) {
            return fail(error, TS_ERR_INVALID, "token id %lld is outside of the vocabulary", (long long)id);
        }
        for (uint64_t k = 0; k < table->row_len; k += BLOCK) {
            uint32_t n = table->row_len - k < BLOCK ? (uint32_t)(table->row_len - k) : BLOCK;
            decode(table->desc->dtype, table->data + (uint64_t)id * table->row_bytes, k, n, f32_row(y, t) + k);
        }
    }
    return TS_OK;
}

static ts_status kv_write(const call *c, const operand *x, const operand *cache, const operand *table,
                          ts_error *error) {
    for (uint64_t t = 0; t < x->n; t++) {
        uint64_t at;
        uint32_t table_row = c->rows[c->tokens[t].row].table_row;
        ts_status status = locate(cache, table, table_row, c->tokens[t].position, &at, error);
        if (status != TS_OK) return status;
        memcpy(cache->data + at, f32_row(x, t), (size_t)x->row_len * sizeof(float));
    }
    return TS_OK;
}

/* Softmax over the context in one pass: a new maximum rescales what was summed so far. */
static ts_status paged_attention(const call *c, ts_error *error) {
    const operand *q = &c->o[0], *k = &c->o[1], *v = &c->o[2], *table = &c->o[3], *y = &c->o[4];
    uint64_t heads = q->desc->dims[1], d = q->desc->dims[2], kv_heads = k->desc->dims[2];
    uint64_t window = (uint64_t)c->op->attrs_i[1];
    double scale = c->op->attrs_f[0];
    for (uint64_t t = 0; t < q->n; t++) {
        uint32_t position = c->tokens[t].position, table_row = c->rows[c->tokens[t].row].table_row;
        uint32_t first = window != 0 && position + 1 > window ? (uint32_t)(position + 1 - window) : 0;
        for (uint64_t h = 0; h < heads; h++) {
            uint64_t kv = h / (heads / kv_heads) * d;
            double best = -INFINITY, total = 0, sum[HEAD_DIM_MAX] = {0};
            for (uint32_t p = first; p <= position; p++) {
                uint64_t k_at, v_at;
                ts_status status = locate(k, table, table_row, p, &k_at, error);
                if (status == TS_OK) status = locate(v, table, table_row, p, &v_at, error);
                if (status != TS_OK) return status;
                const float *key = (const float *)(void *)(k->data + k_at) + kv;
                const float *value = (const float *)(void *)(v->data + v_at) + kv;
                double score = 0;
                for (uint64_t i = 0; i < d; i++) score += (double)f32_row(q, t)[h * d + i] * key[i];
                score *= scale;
                if (score > best) {
                    double shrink = exp(best - score);
                    for (uint64_t i = 0; i < d; i++) sum[i] *= shrink;
                    total *= shrink;
                    best = score;
                }
                double weight = exp(score - best);
                for (uint64_t i = 0; i < d; i++) sum[i] += weight * value[i];
                total += weight;
            }
            for (uint64_t i = 0; i < d; i++) f32_row(y, t)[h * d + i] = (float)(sum[i] / total);
        }
    }
    return TS_OK;
}

static void row_gather(const call *c, const operand *x, const operand *y) {
    for (uint64_t i = 0; i < y->n; i++) {
        memcpy(f32_row(y, i), f32_row(x, c->logit_rows[i]), (size_t)x->row_len * sizeof(float));
    }
}

/* ---- Support ------------------------------------------------------------------------------------------------- */

static bool same_shape(const ts_tensor *a, const ts_tensor *b) {
    return a->rank == b->rank && memcmp(a->dims, b->dims, sizeof a->dims) == 0 && a->vary == b->vary;
}

static bool is_f32(const ts_tensor *t, uint32_t rank) {
    return t->dtype == TS_DTYPE_F32 && (rank == 0 || t->rank == rank);
}

/* Why this backend cannot run an op, or null if it can. What passes here is not checked again when the op runs. */
static const char *why_not(const ts_op *op) {
    const ts_tensor *o = op->operands;
    uint32_t n = op->n_operands;
    if (op->version != 1) return "unknown schema version";
    if (n > OPERANDS_MAX) return "too many operands";
    for (uint32_t i = 0; i < n; i++) {
        if (o[i].rank == 0 || o[i].rank > TS_MAX_RANK || o[i].dims[0] == 0) return "bad shape";
        if (o[i].layout != 0) return "no private layout was asked for";
        if (bytes_of(o[i].dtype, o[i].rank == 1 ? o[i].dims[0] : row_len(&o[i])) == 0) {
            return "element formats are f32, f16, bf16, q8_0 in whole blocks, and u32 for tables";
        }
        if (o[i].stride0 != 0 && (o[i].rank == 1 || o[i].stride0 < bytes_of(o[i].dtype, row_len(&o[i])))) {
            return "bad stride";
        }
    }
    switch (op->kind) {
    case TS_OP_TABLE_UPDATE:
        for (uint32_t i = 0; i < n; i++) {
            if (o[i].dtype != TS_DTYPE_U32 || o[i].rank != 2) return "tables are u32 [rows, blocks]";
        }
        return NULL;
    case TS_OP_COPY:
    case TS_OP_SILU:
        if (n != 2 || !is_f32(&o[0], 0) || !is_f32(&o[1], 0)) return "wants x, y f32";
        return same_shape(&o[0], &o[1]) ? NULL : "wants equal shapes";
    case TS_OP_ADD:
    case TS_OP_MUL:
        if (n != 3 || !is_f32(&o[0], 0) || !is_f32(&o[1], 0) || !is_f32(&o[2], 0)) return "wants a, b, y f32";
        return same_shape(&o[0], &o[1]) && same_shape(&o[0], &o[2]) ? NULL : "wants equal shapes";
    case TS_OP_GEMM: {
        bool bias = op->attrs_i[0] == 1;
        if (!bias && op->attrs_i[0] != 0) return "unknown bias attribute";
        if (n != (bias ? 4u : 3u) || !is_f32(&o[0], 2) || !is_f32(&o[n - 1], 2)) return "wants x, w, (bias,) y";
        if (o[1].rank != 2 || !is_weight_format(o[1].dtype)) return "weights are f32, f16, bf16 or q8_0";
        if (bias && (!is_f32(&o[2], 1) || o[2].dims[0] != o[1].dims[0])) return "bias is f32 [N]";
        if (o[0].vary != o[n - 1].vary || o[1].vary != TS_VARY_FIXED) return "x and y vary alike";
        return o[0].dims[1] == o[1].dims[1] && o[n - 1].dims[1] == o[1].dims[0] && o[0].dims[0] == o[n - 1].dims[0]
                   ? NULL
                   : "wants x [T,K], w [N,K], y [T,N]";
    }
    case TS_OP_RMSNORM:
        if (n != 3 || !is_f32(&o[0], 0) || !is_f32(&o[1], 1) || !is_f32(&o[2], 0)) return "wants x, w, y f32";
        if (o[0].rank < 2 || !same_shape(&o[0], &o[2])) return "wants x and y alike";
        return o[0].dims[o[0].rank - 1] == o[1].dims[0] ? NULL : "w has the last dimension of x";
    case TS_OP_ROPE:
        if (n != 3 || !is_f32(&o[0], 3) || !is_f32(&o[1], 1) || !is_f32(&o[2], 3)) return "wants x, inv_freq, y f32";
        if (op->attrs_i[0] < 0 || op->attrs_i[0] > 1) return "unknown rope style";
        if (o[0].vary != TS_VARY_TOKENS || !same_shape(&o[0], &o[2])) return "wants x and y alike, per token";
        return 2 * o[1].dims[0] <= o[0].dims[2] ? NULL : "rotates more than a head has";
    case TS_OP_EMBEDDING:
        if (n != 2 || o[0].rank != 2 || !is_weight_format(o[0].dtype) || !is_f32(&o[1], 2)) return "wants table, y f32";
        return o[0].dims[1] == o[1].dims[1] && o[1].vary == TS_VARY_TOKENS ? NULL : "wants y [T,D] per token";
    case TS_OP_KV_WRITE:
        if (n != 3 || !is_f32(&o[0], 3) || !is_f32(&o[1], 4)) return "wants x and cache f32";
        if (o[2].dtype != TS_DTYPE_U32 || o[2].rank != 2) return "tables are u32 [rows, blocks]";
        return o[0].dims[1] == o[1].dims[2] && o[0].dims[2] == o[1].dims[3] && o[0].vary == TS_VARY_TOKENS
                   ? NULL
                   : "wants x [T,H,D], cache [blocks,block_tokens,H,D]";
    case TS_OP_PAGED_ATTENTION:
        if (n != 5 || !is_f32(&o[0], 3) || !is_f32(&o[1], 4) || !is_f32(&o[2], 4) || !is_f32(&o[4], 3)) {
            return "wants q, k, v, table, y with f32 caches";
        }
        if (o[3].dtype != TS_DTYPE_U32 || o[3].rank != 2) return "tables are u32 [rows, blocks]";
        if (!same_shape(&o[0], &o[4]) || o[0].vary != TS_VARY_TOKENS || !same_shape(&o[1], &o[2])) {
            return "wants q and y alike, k and v alike";
        }
        if (op->attrs_i[1] < 0) return "the window is negative";
        if (o[0].dims[2] != o[1].dims[3] || o[0].dims[2] > HEAD_DIM_MAX) return "heads have at most 512 values";
        return o[1].dims[2] != 0 && o[0].dims[1] % o[1].dims[2] == 0 ? NULL : "query heads are a multiple of kv heads";
    case TS_OP_ROW_GATHER:
        if (n != 2 || !is_f32(&o[0], 2) || !is_f32(&o[1], 2)) return "wants x, y f32";
        return o[0].dims[1] == o[1].dims[1] && o[0].vary == TS_VARY_TOKENS && o[1].vary == TS_VARY_LOGIT_ROWS
                   ? NULL
                   : "wants x per token, y per logit row";
    default: return "not among the ops of this backend";
    }
}

static ts_status op_support(ts_device *device, const ts_op *op, ts_support *support, ts_error *error) {
    const char *reason = why_not(op);
    ts_support answer = {.struct_size = sizeof answer, .pack_operand = TS_NO_OPERAND};
    (void)device, (void)error;
    answer.answer = reason == NULL ? TS_SUPPORT_YES : TS_SUPPORT_NO;
    answer.determinism = TS_DETERMINISM_BATCH_INVARIANT; /* each output depends on its own row alone */
    snprintf(answer.implementation, sizeof answer.implementation, "%s", reason == NULL ? "plain C" : "");
    snprintf(answer.reason, sizeof answer.reason, "%s", reason == NULL ? "" : reason);
    put(support, &answer, sizeof answer);
    return TS_OK;
}

static ts_status op_launch(ts_queue *queue, const ts_op *op, const ts_binding *bindings, uint32_t n_bindings,
                           ts_error *error) {
    const char *reason = why_not(op);
    if (reason != NULL) return fail(error, TS_ERR_UNSUPPORTED, "op kind %u: %s", op->kind, reason);
    call c = {.op = op};
    ts_status status = open_step(&c, bindings, n_bindings, error);
    for (uint32_t i = 0; status == TS_OK && i < op->n_operands; i++) {
        status = open_operand(&c, i, bindings, n_bindings, error);
    }
    if (status != TS_OK) return status;
    const operand *o = c.o;
    (void)queue;
    switch (op->kind) {
    case TS_OP_TABLE_UPDATE: return table_update(&c, error);
    case TS_OP_COPY: copy(&o[0], &o[1]); break;
    case TS_OP_GEMM: gemm(&o[0], &o[1], op->n_operands == 4 ? &o[2] : NULL, &o[op->n_operands - 1]); break;
    case TS_OP_RMSNORM: rmsnorm(&o[0], &o[1], &o[2], op->attrs_f[0]); break;
    case TS_OP_ROPE: rope(&c, &o[0], &o[1], &o[2]); break;
    case TS_OP_SILU: silu(&o[0], &o[1]); break;
    case TS_OP_ADD: add_or_mul(&o[0], &o[1], &o[2], true); break;
    case TS_OP_MUL: add_or_mul(&o[0], &o[1], &o[2], false); break;
    case TS_OP_EMBEDDING: return embedding(&c, &o[0], &o[1], error);
    case TS_OP_KV_WRITE: return kv_write(&c, &o[0], &o[1], &o[2], error);
    case TS_OP_PAGED_ATTENTION: return paged_attention(&c, error);
    case TS_OP_ROW_GATHER: row_gather(&c, &o[0], &o[1]); break;
    default: return fail(error, TS_ERR_INTERNAL, "op kind %u passed the support check", op->kind);
    }
    return TS_OK;
}

/* ---- The table ----------------------------------------------------------------------------------------------- */

static ts_status backend_info(ts_backend_info *info) {
    ts_backend_info own = {.struct_size = sizeof own, .profiles = TS_PROFILE_LLAMA};
    own.name = text("example");
    own.version = text("1.0");
    own.description = text("example backend in plain C: the llama op profile, one thread");
    put(info, &own, sizeof own);
    return TS_OK;
}

static ts_status device_count(uint32_t *count, ts_error *error) {
    (void)error;
    *count = 1;
    return TS_OK;
}

static ts_status device_info(uint32_t index, ts_device_info *info, ts_error *error) {
    ts_device_info own = {.struct_size = sizeof own, .alignment = ALIGNMENT, .memory_bytes = UINT64_C(8) << 30};
    if (index != 0) return fail(error, TS_ERR_INVALID, "device %u does not exist: there is 1", index);
    own.name = text("the calling thread");
    put(info, &own, sizeof own);
    return TS_OK;
}

ts_status ts_backend_entry(const ts_host *host, ts_backend_table *table, ts_error *error) {
    uint32_t major = TS_ABI_VERSION & 0xffff0000u;
    uint32_t common = host->abi_max < TS_ABI_VERSION ? host->abi_max : TS_ABI_VERSION;
    if (common < major || common < host->abi_min) {
        return fail(error, TS_ERR_INCOMPATIBLE, "this plugin speaks ABI %u.0 to %u.%u, the host %u.%u to %u.%u",
                    major >> 16, major >> 16, (unsigned)TS_ABI_VERSION & 0xffffu, host->abi_min >> 16,
                    host->abi_min & 0xffffu, host->abi_max >> 16, host->abi_max & 0xffffu);
    }
    /* Entries that are not named stay null: no import, no programs, no collectives. */
    ts_backend_table own = {
        .struct_size = sizeof own,
        .abi_version = common,
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
        .queue_signal = queue_signal,
        .queue_wait = queue_wait,
        .event_create = event_create,
        .event_destroy = event_destroy,
        .event_query = event_query,
        .event_wait = event_wait,
        .op_support = op_support,
        .op_launch = op_launch,
    };
    put(table, &own, sizeof own);
    return TS_OK;
}
