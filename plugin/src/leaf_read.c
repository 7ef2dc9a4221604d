/* SPDX-License-Identifier: Apache-2.0 */
#include "leaf_internal.h"

struct shape {
  const uint8_t *last; /* its last value, already in the output */
  uint32_t size;       /* bytes of its values */
  uint32_t runs;
  uint32_t bytes; /* bytes in runs */
  struct leaf_run run[LEAF_RUNS_MAX];
};

/* Decoder of one payload. Invariant: [p, end) is what is left of the payload, [out, out_end) what
 * is left of the room for keys and values. */
struct reader {
  const uint8_t *p, *end;
  uint8_t *out, *out_end;
  struct leaf_entry *e;
  uint32_t i; /* entry being read */
  uint32_t shapes;
  struct shape shape[LEAF_SHAPES_MAX];
};

static bool get(struct reader *r, uint32_t *v) {
  const uint8_t *p = get_varint32(r->p, r->end, v);
  if (!p)
    return false;
  r->p = p;
  return true;
}

static bool has(const struct reader *r, size_t in, size_t out) {
  return (size_t)(r->end - r->p) >= in && (size_t)(r->out_end - r->out) >= out;
}

/* Returns NULL or what is wrong. `prev` is empty for the first entry. */
static const char *read_key(struct reader *r, struct slice prev, struct slice *key) {
  uint32_t shared, other;
  if (!get(r, &shared) || !get(r, &other))
    return "a key's length is cut";
  if (shared > prev.size || other > PGLOG_KEY_MAX || shared + other > PGLOG_KEY_MAX)
    return "a key is too long";
  if (!has(r, other, shared + other))
    return "a key reaches beyond the end";
  uint8_t *k = r->out;
  if (shared)
    memcpy(k, prev.data, shared);
  size_t both = prev.size - shared < other ? prev.size - shared : other;
  for (size_t j = 0; j < both; j++)
    k[shared + j] = (uint8_t)(r->p[j] + prev.data[shared + j]);
  if (other > both)
    memcpy(k + shared + both, r->p + both, other - both);
  /* `shared` is the longest common prefix, so the first other byte decides the order. */
  if (r->i && (other == 0 || (both && k[shared] <= prev.data[shared])))
    return "keys are out of order";
  *key = slice_make(k, shared + other);
  r->p += other;
  r->out += shared + other;
  return NULL;
}

static const char *read_plain(struct reader *r, struct slice *value) {
  uint32_t n;
  if (!get(r, &n))
    return "a value's length is cut";
  if (!has(r, n, n))
    return "a value reaches beyond the end";
  if (n)
    memcpy(r->out, r->p, n);
  *value = slice_make(r->out, n);
  r->p += n;
  r->out += n;
  return NULL;
}

static const char *read_shape(struct reader *r) {
  uint32_t distance, skip, n;
  if (r->shapes == LEAF_SHAPES_MAX)
    return "there are too many shapes";
  struct shape *s = &r->shape[r->shapes];
  if (!get(r, &distance) || !get(r, &s->runs))
    return "a shape is cut";
  if (distance == 0 || distance > r->i || r->e[r->i - distance].value.size == 0 ||
      s->runs > LEAF_RUNS_MAX)
    return "a shape is malformed";
  s->last = r->e[r->i - distance].value.data;
  s->size = (uint32_t)r->e[r->i - distance].value.size;
  s->bytes = 0;
  uint32_t at = 0;
  for (uint32_t j = 0; j < s->runs; j++) {
    if (!get(r, &skip) || !get(r, &n))
      return "a shape is cut";
    if (skip > s->size - at || n > s->size - at - skip || n == 0)
      return "a shape's run is malformed";
    s->run[j] = (struct leaf_run){(uint16_t)(at + skip), (uint16_t)n};
    at += skip + n;
    s->bytes += n;
  }
  r->shapes++;
  return NULL;
}

static const char *read_by_shape(struct reader *r, uint32_t i, struct slice *value) {
  if (i >= r->shapes)
    return "a shape is not defined";
  struct shape *s = &r->shape[i];
  if (!has(r, s->bytes, s->size))
    return "a value reaches beyond the end";
  uint8_t *v = r->out;
  memcpy(v, s->last, s->size);
  const uint8_t *p = r->p;
  for (uint32_t j = 0; j < s->runs; j++) {
    uint8_t *to = v + s->run[j].at;
    for (uint32_t k = 0; k < s->run[j].len; k++)
      to[k] = (uint8_t)(to[k] + *p++);
  }
  r->p = p;
  r->out += s->size;
  s->last = v;
  *value = slice_make(v, s->size);
  return NULL;
}

static const char *read_entry(struct reader *r, struct leaf_entry *e) {
  uint32_t form;
  if (!get(r, &form))
    return "an entry is cut";
  struct slice prev = r->i ? e[-1].key : slice_make(NULL, 0);
  const char *bad = read_key(r, prev, &e->key);
  if (bad)
    return bad;
  e->is_overflow = form == LEAF_REF;
  switch (form) {
    case LEAF_PLAIN:
      return read_plain(r, &e->value);
    case LEAF_REF:
      e->value = slice_make(NULL, 0);
      r->p = leaf_ref_get(r->p, r->end, &e->overflow);
      return r->p ? NULL : "an overflow reference is malformed";
    case LEAF_NEW_SHAPE:
      bad = read_shape(r);
      return bad ? bad : read_by_shape(r, r->shapes - 1, &e->value);
    default:
      return read_by_shape(r, form - LEAF_SHAPE, &e->value);
  }
}

static const char *read_entries(struct reader *r, const struct leaf_head *h) {
  uint32_t overflows = 0;
  for (; r->i < h->entries; r->i++) {
    const char *bad = read_entry(r, &r->e[r->i]);
    if (bad)
      return bad;
    overflows += r->e[r->i].is_overflow;
  }
  if (r->p != r->end)
    return "the payload is longer than its entries";
  if (r->out != r->out_end)
    return "keys and values are smaller than the header says";
  if (overflows > LEAF_OVERFLOWS_MAX || !overflows != !(h->flags & LEAF_FLAG_OVERFLOWS))
    return "overflow references do not agree with the header";
  return NULL;
}

int leaf_decode(struct leaf_codec *c, const uint8_t *bytes, struct leaf *out,
                struct pglog_error *err) {
  memset(out, 0, sizeof *out);
  struct leaf_head h;
  int rc = leaf_head_read(&h, bytes, err);
  if (rc < 0)
    return rc;
  uint32_t block = leaf_block_number(bytes);
  if (h.kind == LEAF_OVERFLOW)
    return error_set(err, PGLOG_ECORRUPT, "arena block %u: an overflow block, expected entries",
                     block);
  const uint8_t *payload = bytes + LEAF_HEADER;
  if (h.flags & LEAF_FLAG_ZSTD) {
    size_t n = ZSTD_decompressDCtx(c->dctx, c->raw, h.raw, payload, h.stored);
    if (n != h.raw)
      return error_set(err, PGLOG_ECORRUPT, "arena block %u: does not decompress: %s", block,
                       ZSTD_isError(n) ? ZSTD_getErrorName(n) : "wrong size");
    payload = c->raw;
  }
  size_t table = h.entries * sizeof(struct leaf_entry);
  uint8_t *mem = malloc(table + h.expanded);
  if (!mem)
    return error_set(err, PGLOG_ENOMEM, "arena block %u: no memory for %zu bytes", block,
                     table + h.expanded);
  struct reader r; /* its shapes are set when they are defined */
  r.p = payload;
  r.end = payload + h.raw;
  r.out = mem + table;
  r.out_end = r.out + h.expanded;
  r.e = (struct leaf_entry *)mem;
  r.i = 0;
  r.shapes = 0;
  const char *bad = read_entries(&r, &h);
  if (bad) {
    uint32_t at = r.i;
    free(mem);
    return error_set(err, PGLOG_ECORRUPT, "arena block %u: entry %u of %u: %s", block, at,
                     h.entries, bad);
  }
  out->n = h.entries;
  out->e = r.e;
  out->mem = mem;
  return 0;
}

void leaf_free(struct leaf *l) {
  free(l->mem);
  memset(l, 0, sizeof *l);
}

uint32_t leaf_lower_bound(const struct leaf *l, struct slice key) {
  uint32_t lo = 0, hi = l->n;
  while (lo < hi) {
    uint32_t mid = lo + (hi - lo) / 2;
    if (slice_cmp(l->e[mid].key, key) < 0)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}
