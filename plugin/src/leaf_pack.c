/* SPDX-License-Identifier: Apache-2.0 */
#include "leaf_internal.h"

#define SLOTS 16         /* ratios are kept by value length modulo this */
#define RATIO_FIRST 0.6f /* stored / raw, before anything is known */
#define FILL_LOW 0.8f    /* a block that turns out emptier is filled up, once */
#define TRIES_MAX 4      /* compressions of one block before it is stored as it is */

/* Entries that are left behind when a block is given out are encoded again, and without the block's
 * first entries they may take more. At worst each one is plain. */
#define RAW_CAP (LEAF_EXPANDED_MAX + LEAF_ENTRIES_MAX * leaf_coded_max(0, 0))

struct item {
  uint32_t at; /* of the key in `data`; the value follows it */
  uint16_t key, value;
  uint32_t end; /* of the entry in `raw` */
  float guess;  /* stored bytes up to `end`, by the ratios at the time */
  uint8_t slot;
  int8_t overflow; /* index in `overflow`, or -1 */
};

struct leaf_packer {
  struct leaf_codec *codec;
  int kind;
  leaf_emit_fn emit;
  void *arg;
  int failed; /* code of the error that stopped the packer */
  uint32_t n, overflows;
  size_t data_size;
  bool extended;      /* the open block was tried and found too empty */
  float scale;        /* what that try said of the guesses */
  float ratio[SLOTS]; /* stored / raw of entries with values of this length */
  float error;        /* mean relative error of the guesses */
  struct leaf_coder coder;
  struct leaf_overflow overflow[LEAF_OVERFLOWS_MAX];
  struct item item[LEAF_ENTRIES_MAX];
  uint32_t last_key_size;
  bool any; /* last_key is set */
  uint8_t last_key[PGLOG_KEY_MAX];
  uint8_t *data; /* LEAF_EXPANDED_MAX: keys and values pending */
  uint8_t *raw;  /* RAW_CAP: their payload */
  uint8_t *block;
};

int leaf_packer_new(struct leaf_packer **out, struct leaf_codec *c, int kind, leaf_emit_fn emit,
                    void *arg) {
  struct leaf_packer *p = calloc(1, sizeof *p);
  if (!p)
    return PGLOG_ENOMEM;
  p->data = malloc(LEAF_EXPANDED_MAX);
  p->raw = malloc(RAW_CAP);
  p->block = aligned_alloc(PGLOG_BLOCK, PGLOG_BLOCK);
  if (!p->data || !p->raw || !p->block) {
    leaf_packer_free(p);
    return PGLOG_ENOMEM;
  }
  p->codec = c;
  p->kind = kind;
  p->emit = emit;
  p->arg = arg;
  p->scale = 1;
  p->error = 0.03f;
  for (int i = 0; i < SLOTS; i++)
    p->ratio[i] = RATIO_FIRST;
  leaf_coder_reset(&p->coder);
  *out = p;
  return 0;
}

void leaf_packer_free(struct leaf_packer *p) {
  if (!p)
    return;
  free(p->data);
  free(p->raw);
  free(p->block);
  free(p);
}

static uint32_t raw_size(const struct leaf_packer *p) {
  return p->n ? p->item[p->n - 1].end : 0;
}

static float guess_of(const struct leaf_packer *p, uint32_t n) {
  return n ? p->item[n - 1].guess * p->scale : 0;
}

/* Stored bytes to aim at: full, less twice the usual error. */
static float target(const struct leaf_packer *p) {
  float margin = 2 * p->error;
  margin = margin < 0.01f ? 0.01f : margin > 0.1f ? 0.1f : margin;
  return (1 - margin) * LEAF_PAYLOAD;
}

static bool is_full(const struct leaf_packer *p) {
  return raw_size(p) > LEAF_PAYLOAD && guess_of(p, p->n) >= target(p);
}

/* Put the entry whose key and value are in `data` behind the payload. */
static void encode(struct leaf_packer *p, struct item *it) {
  uint32_t begin = raw_size(p);
  struct leaf_entry e = {.key = slice_make(p->data + it->at, it->key),
                         .value = slice_make(p->data + it->at + it->key, it->value),
                         .is_overflow = it->overflow >= 0};
  if (e.is_overflow)
    e.overflow = p->overflow[it->overflow];
  it->end = (uint32_t)(leaf_coder_put(&p->coder, p->raw + begin, &e) - p->raw);
  it->slot = it->value % SLOTS;
  float before = p->n ? p->item[p->n - 1].guess : 0;
  it->guess = before + (float)(it->end - begin) * p->ratio[it->slot];
  p->n++;
}

/* Learn from n entries that took `stored` bytes. Each length's ratio moves by its share. */
static void learn(struct leaf_packer *p, uint32_t n, uint32_t stored) {
  float total = p->item[n - 1].guess, share[SLOTS] = {0}, before = 0;
  float f = (float)stored / total;
  for (uint32_t i = 0; i < n; i++) {
    share[p->item[i].slot] += p->item[i].guess - before;
    before = p->item[i].guess;
  }
  float off = f > 1 ? f - 1 : 1 - f;
  float gain = off > 0.1f ? 1 : 0.5f;
  for (int i = 0; i < SLOTS; i++) {
    float r = p->ratio[i] * (1 + (f - 1) * gain * share[i] / total);
    p->ratio[i] = r < 0.01f ? 0.01f : r > 1.05f ? 1.05f : r;
  }
  p->error = 0.9f * p->error + 0.1f * (off > 0.1f ? 0.1f : off);
}

/* Take the first n entries off and encode the others again: they begin a block now. */
static void drop(struct leaf_packer *p, uint32_t n) {
  uint32_t left = p->n - n, gone = 0;
  size_t from = left ? p->item[n].at : p->data_size;
  memmove(p->data, p->data + from, p->data_size - from);
  p->data_size -= from;
  for (uint32_t i = 0; i < n; i++)
    gone += p->item[i].overflow >= 0;
  memmove(p->overflow, p->overflow + gone, (p->overflows - gone) * sizeof *p->overflow);
  p->overflows -= gone;
  p->n = 0;
  p->scale = 1;
  p->extended = false;
  leaf_coder_reset(&p->coder);
  for (uint32_t i = 0; i < left; i++) {
    struct item *it = &p->item[i];
    *it = p->item[n + i];
    it->at -= (uint32_t)from;
    it->overflow = it->overflow < 0 ? -1 : (int8_t)(it->overflow - (int)gone);
    encode(p, it);
  }
}

/* Give out the first n entries, stored as the `stored` bytes of `payload`. */
static int give(struct leaf_packer *p, uint32_t n, const uint8_t *payload, uint32_t stored,
                bool zstd, struct pglog_error *err) {
  const struct item *first = &p->item[0], *last = &p->item[n - 1];
  struct leaf_block b = {.bytes = p->block, .entries = n, .raw = last->end, .stored = stored};
  float guess = guess_of(p, n);
  b.share = zstd || guess > (float)stored ? stored : guess < 1 ? 1 : (uint32_t)guess;
  for (uint32_t i = 0; i < n; i++)
    if (p->item[i].overflow >= 0)
      b.overflow[b.overflows++] = p->overflow[p->item[i].overflow];
  struct leaf_head h = {
      .kind = (uint32_t)p->kind,
      .flags = (zstd ? LEAF_FLAG_ZSTD : 0u) | (b.overflows ? LEAF_FLAG_OVERFLOWS : 0u),
      .entries = n,
      .stored = stored,
      .raw = last->end,
      .expanded = last->at + last->key + last->value};
  leaf_head_write(p->block, &h, payload);
  b.first = slice_make(p->data + first->at, first->key);
  b.last = slice_make(p->data + last->at, last->key);
  int rc = p->emit(p->arg, &b, err);
  if (rc < 0)
    return p->failed = rc;
  drop(p, n);
  return 0;
}

/* How many entries have a payload of at most `bytes`, one at least. */
static uint32_t fit(const struct leaf_packer *p, uint32_t bytes) {
  uint32_t lo = 1, hi = p->n;
  while (lo < hi) {
    uint32_t mid = lo + (hi - lo + 1) / 2;
    if (p->item[mid - 1].end <= bytes)
      lo = mid;
    else
      hi = mid - 1;
  }
  return lo;
}

/* The most entries, less than n, that the guesses let expect to take at most `bytes`. */
static uint32_t cut(const struct leaf_packer *p, uint32_t n, float bytes) {
  do
    n--;
  while (n > 1 && guess_of(p, n) > bytes);
  return n;
}

/* Give out one block. May leave entries pending that did not fit. With `more`, when more entries
 * may come: gives out nothing if the block turns out too empty. */
static int give_block(struct leaf_packer *p, bool more, struct pglog_error *err) {
  uint32_t n = fit(p, LEAF_RAW_MAX), min = fit(p, LEAF_PAYLOAD);
  for (int i = 0; i < TRIES_MAX && n > min; i++) {
    size_t z = ZSTD_compress2(p->codec->cctx, p->codec->packed, p->codec->packed_cap, p->raw,
                              p->item[n - 1].end);
    if (ZSTD_isError(z))
      return p->failed = error_set(err, PGLOG_ENOMEM, "cannot compress a payload of %u bytes: %s",
                                   p->item[n - 1].end, ZSTD_getErrorName(z));
    if (i == 0 && !p->extended)
      learn(p, n, (uint32_t)z);
    p->scale *= (float)z / guess_of(p, n);
    if (z <= LEAF_PAYLOAD && more && !p->extended && (float)z < FILL_LOW * LEAF_PAYLOAD) {
      p->extended = true;
      return 0;
    }
    if (z <= LEAF_PAYLOAD)
      return give(p, n, p->codec->packed, (uint32_t)z, true, err);
    n = cut(p, n, (0.98f - 0.02f * (float)i) * LEAF_PAYLOAD);
  }
  return give(p, min, p->raw, p->item[min - 1].end, false, err);
}

static int check(const struct leaf_packer *p, const struct leaf_entry *e, struct pglog_error *err) {
  char text[160];
  if (e->key.size > PGLOG_KEY_MAX)
    return error_set(err, PGLOG_ETOOBIG, "pg log key %s has %zu bytes: the limit is %u",
                     key_print(text, sizeof text, e->key), e->key.size, PGLOG_KEY_MAX);
  if (!e->is_overflow && leaf_needs_overflow(e->key.size, e->value.size))
    return error_set(err, PGLOG_ETOOBIG,
                     "the value of pg log key %s has %zu bytes: it does not fit a leaf of %u",
                     key_print(text, sizeof text, e->key), e->value.size, LEAF_PAYLOAD);
  if (e->is_overflow && !leaf_overflow_ok(&e->overflow))
    return error_set(err, PGLOG_EINVAL,
                     "overflow reference of pg log key %s is not consistent: %u blocks from block "
                     "%u, %u bytes for a value of %u",
                     key_print(text, sizeof text, e->key), e->overflow.blocks, e->overflow.block,
                     e->overflow.stored, e->overflow.size);
  if (p->any && slice_cmp(e->key, slice_make(p->last_key, p->last_key_size)) <= 0)
    return error_set(err, PGLOG_EINVAL, "pg log key %s is not after the one before it",
                     key_print(text, sizeof text, e->key));
  return 0;
}

static bool has_room(const struct leaf_packer *p, const struct leaf_entry *e, size_t value) {
  return p->n < LEAF_ENTRIES_MAX && (!e->is_overflow || p->overflows < LEAF_OVERFLOWS_MAX) &&
         p->data_size + e->key.size + value <= LEAF_EXPANDED_MAX &&
         raw_size(p) + leaf_coded_max(e->key.size, value) <= LEAF_RAW_MAX;
}

static int stopped(const struct leaf_packer *p, struct pglog_error *err) {
  return error_set(err, p->failed, "an earlier error stopped the packer");
}

int leaf_packer_add(struct leaf_packer *p, const struct leaf_entry *e, struct pglog_error *err) {
  if (p->failed)
    return stopped(p, err);
  int rc = check(p, e, err);
  if (rc < 0)
    return rc;
  size_t value = e->is_overflow ? 0 : e->value.size;
  while (!has_room(p, e, value))
    if ((rc = give_block(p, false, err)) < 0)
      return rc;
  struct item *it = &p->item[p->n];
  it->at = (uint32_t)p->data_size;
  it->key = (uint16_t)e->key.size;
  it->value = (uint16_t)value;
  it->overflow = e->is_overflow ? (int8_t)p->overflows : -1;
  if (e->key.size) {
    memcpy(p->data + it->at, e->key.data, e->key.size);
    memcpy(p->last_key, e->key.data, e->key.size);
  }
  p->last_key_size = (uint32_t)e->key.size;
  p->any = true;
  if (value)
    memcpy(p->data + it->at + it->key, e->value.data, value);
  p->data_size += e->key.size + value;
  if (e->is_overflow)
    p->overflow[p->overflows++] = e->overflow;
  encode(p, it);
  while (rc == 0 && is_full(p))
    rc = give_block(p, true, err);
  return rc;
}

size_t leaf_packer_pending(const struct leaf_packer *p) {
  return raw_size(p);
}

size_t leaf_packer_estimate(const struct leaf_packer *p) {
  size_t raw = raw_size(p), guess = (size_t)guess_of(p, p->n);
  return guess < 1 && raw ? 1 : guess < raw ? guess : raw;
}

size_t leaf_packer_fill(const struct leaf_packer *p) {
  return leaf_fill(leaf_packer_estimate(p), p->n);
}

int leaf_packer_boundary(struct leaf_packer *p, struct pglog_error *err) {
  if (p->failed)
    return stopped(p, err);
  return leaf_packer_fill(p) >= LEAF_PAYLOAD / 2 ? give_block(p, false, err) : 0;
}

int leaf_packer_flush(struct leaf_packer *p, struct pglog_error *err) {
  int rc = p->failed ? stopped(p, err) : 0;
  while (rc == 0 && p->n)
    rc = give_block(p, false, err);
  return rc;
}
