/* SPDX-License-Identifier: Apache-2.0 */
#include "leaf_internal.h"

#define DIFF_MIN 16 /* values shorter than this are written plain */
#define GAP 1       /* runs this close are made one: a byte costs less than a run */

void leaf_coder_reset(struct leaf_coder *k) {
  k->entries = 0;
  k->shapes = 0;
  k->key = slice_make(NULL, 0);
  for (int i = 0; i < LEAF_KINS; i++)
    k->kin[i].size = 0;
}

static uint64_t load64(const uint8_t *p) {
  uint64_t v;
  memcpy(&v, p, 8);
  return v;
}

/* First index from `from` on at which a and b differ, or n. */
static uint32_t mismatch(const uint8_t *a, const uint8_t *b, uint32_t from, uint32_t n) {
  for (; from + 8 <= n; from += 8) {
    uint64_t x = load64(a + from) ^ load64(b + from);
    if (x)
      return from + (uint32_t)(__builtin_ctzll(x) >> 3);
  }
  while (from < n && a[from] == b[from])
    from++;
  return from;
}

/* Append [at, end) to the runs, which lie before it or overlap it. False: one run too many. */
static bool add_run(struct leaf_run *run, uint32_t *n, uint32_t at, uint32_t end) {
  struct leaf_run *last = run + *n - 1;
  if (*n && at <= (uint32_t)last->at + last->len + GAP) {
    if (end > (uint32_t)last->at + last->len)
      last->len = (uint16_t)(end - last->at);
    return true;
  }
  if (*n == LEAF_RUNS_MAX)
    return false;
  run[(*n)++] = (struct leaf_run){(uint16_t)at, (uint16_t)(end - at)};
  return true;
}

static bool find_runs(const uint8_t *a, const uint8_t *b, uint32_t size, struct leaf_run *run,
                      uint32_t *n) {
  *n = 0;
  for (uint32_t at = 0; (at = mismatch(a, b, at, size)) < size; at++)
    if (!add_run(run, n, at, at + 1))
      return false;
  return true;
}

static bool join_runs(const struct leaf_run *a, uint32_t na, const struct leaf_run *b, uint32_t nb,
                      struct leaf_run *out, uint32_t *n) {
  *n = 0;
  while (na || nb) {
    bool first = na && (!nb || a->at <= b->at);
    const struct leaf_run *r = first ? a++ : b++;
    *(first ? &na : &nb) -= 1;
    if (!add_run(out, n, r->at, (uint32_t)r->at + r->len))
      return false;
  }
  return true;
}

static uint32_t run_bytes(const struct leaf_run *run, uint32_t n) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < n; i++)
    sum += run[i].len;
  return sum;
}

/* Do the values differ inside the runs of the shape in use only? */
static bool shape_fits(const struct leaf_kin *kin, const uint8_t *value) {
  uint32_t at = 0;
  for (uint32_t i = 0; i < kin->runs; i++) {
    uint32_t to = kin->run[i].at;
    if (mismatch(kin->value, value, at, to) < to)
      return false;
    at = to + kin->run[i].len;
  }
  return mismatch(kin->value, value, at, kin->size) == kin->size;
}

/* Is a new shape shorter than the plain value, and does it leave most of it out? Otherwise zstd
 * alone does better. */
static bool worth(uint32_t size, uint32_t runs, uint32_t bytes) {
  return bytes <= size / 2 && bytes + 4 * runs + 2 * VARINT32_MAX < size;
}

/* Give `kin` a shape that covers the difference of its last value to this one: together with the
 * shape in use, since those bytes are likely to differ again, or by itself. */
static bool new_shape(struct leaf_kin *kin, const uint8_t *value) {
  struct leaf_run diff[LEAF_RUNS_MAX], both[LEAF_RUNS_MAX];
  uint32_t n, m;
  if (!find_runs(kin->value, value, kin->size, diff, &n))
    return false;
  if (kin->form && join_runs(kin->run, kin->runs, diff, n, both, &m) &&
      worth(kin->size, m, run_bytes(both, m))) {
    memcpy(kin->run, both, m * sizeof *both);
    n = m;
  } else if (worth(kin->size, n, run_bytes(diff, n))) {
    memcpy(kin->run, diff, n * sizeof *diff);
  } else {
    return false;
  }
  kin->runs = n;
  kin->bytes = run_bytes(kin->run, n);
  return true;
}

static uint8_t *put_shape(const struct leaf_kin *kin, uint8_t *p, uint32_t distance) {
  p = put_varint(p, distance);
  p = put_varint(p, kin->runs);
  uint32_t at = 0;
  for (uint32_t i = 0; i < kin->runs; i++) {
    p = put_varint(p, kin->run[i].at - at);
    p = put_varint(p, kin->run[i].len);
    at = (uint32_t)kin->run[i].at + kin->run[i].len;
  }
  return p;
}

static uint8_t *put_difference(const struct leaf_kin *kin, uint8_t *p, const uint8_t *value) {
  for (uint32_t i = 0; i < kin->runs; i++) {
    const uint8_t *a = kin->value + kin->run[i].at, *b = value + kin->run[i].at;
    for (uint32_t j = 0; j < kin->run[i].len; j++)
      *p++ = (uint8_t)(b[j] - a[j]);
  }
  return p;
}

static uint8_t *put_key(struct leaf_coder *k, uint8_t *p, struct slice key) {
  size_t min = key.size < k->key.size ? key.size : k->key.size;
  uint32_t shared = min ? mismatch(key.data, k->key.data, 0, (uint32_t)min) : 0;
  p = put_varint(p, shared);
  p = put_varint(p, key.size - shared);
  for (size_t i = shared; i < min; i++)
    *p++ = (uint8_t)(key.data[i] - k->key.data[i]);
  if (key.size > min)
    memcpy(p, key.data + min, key.size - min);
  k->key = key;
  return p + (key.size - min);
}

static uint8_t *put_plain(struct leaf_coder *k, uint8_t *p, const struct leaf_entry *e) {
  *p++ = LEAF_PLAIN;
  p = put_varint(put_key(k, p, e->key), e->value.size);
  if (e->value.size)
    memcpy(p, e->value.data, e->value.size);
  return p + e->value.size;
}

static uint8_t *put_value(struct leaf_coder *k, uint8_t *p, const struct leaf_entry *e) {
  uint32_t size = (uint32_t)e->value.size;
  if (size < DIFF_MIN)
    return put_plain(k, p, e);
  struct leaf_kin *kin = &k->kin[size % LEAF_KINS];
  if (kin->size != size) {
    kin->size = size;
    kin->form = 0;
    p = put_plain(k, p, e);
  } else if (kin->form && shape_fits(kin, e->value.data)) {
    p = put_key(k, put_varint(p, kin->form), e->key);
    p = put_difference(kin, p, e->value.data);
  } else if (k->shapes < LEAF_SHAPES_MAX && new_shape(kin, e->value.data)) {
    *p++ = LEAF_NEW_SHAPE;
    kin->form = LEAF_SHAPE + k->shapes++;
    p = put_shape(kin, put_key(k, p, e->key), k->entries - kin->entry);
    p = put_difference(kin, p, e->value.data);
  } else {
    kin->form = 0;
    p = put_plain(k, p, e);
  }
  kin->value = e->value.data;
  kin->entry = k->entries;
  return p;
}

uint8_t *leaf_coder_put(struct leaf_coder *k, uint8_t *p, const struct leaf_entry *e) {
  if (e->is_overflow) {
    *p++ = LEAF_REF;
    p = leaf_ref_put(put_key(k, p, e->key), &e->overflow);
  } else {
    p = put_value(k, p, e);
  }
  k->entries++;
  return p;
}
