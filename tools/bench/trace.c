/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include <errno.h>
#include <stdlib.h>
#include <zstd.h>

#define ZSTD_FRAME_MAGIC 0xFD2FB528u

/* Record types of a WriteBatch that occur in traces. */
enum {
  TAG_DELETE = 0x0,
  TAG_PUT = 0x1,
  TAG_MERGE = 0x2,
  TAG_CF_DELETE = 0x4,
  TAG_CF_PUT = 0x5,
  TAG_CF_MERGE = 0x6,
  TAG_SINGLE_DELETE = 0x7,
  TAG_CF_SINGLE_DELETE = 0x8,
};

#define BATCH_HEADER 12
#define EPOCH_DIGITS 10
#define VERSION_DIGITS 20
#define LOG_KEY (TRACE_PG_ID + 1 + 10 + 1 + VERSION_DIGITS) /* id . %010u . %020llu */
#define DUP_KEY (LOG_KEY + 4)                               /* id . dup_ %010u . %020llu */

const char *const trace_cf_names[TRACE_CFS] = {"default", "m-0", "m-1", "m-2", "p-0", "p-1",
                                               "p-2",     "O-0", "O-1", "O-2", "L",   "P"};

static uint32_t le32(const uint8_t *p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return v;
}

/* ---------------------------------------------------------------------------------------------- */
/* Files                                                                                          */

struct filebuf {
  uint8_t *data;
  size_t size, cap;
};

static void filebuf_reserve(struct filebuf *b, size_t more) {
  if (b->cap - b->size >= more)
    return;
  size_t cap = b->cap ? b->cap + b->cap / 2 : 1 << 20;
  b->cap = cap > b->size + more ? cap : b->size + more;
  b->data = must_realloc(b->data, b->cap);
}

static int decompress(struct filebuf *out, const char *path, FILE *in, struct fail *f) {
  int rc = 0;
  uint64_t consumed = 0;
  size_t hint = 1, got, cap = ZSTD_DStreamInSize();
  uint8_t *chunk = must_realloc(NULL, cap);
  ZSTD_DStream *ds = ZSTD_createDStream();
  while (rc == 0 && (got = fread(chunk, 1, cap, in)) > 0) {
    ZSTD_inBuffer ib = {chunk, got, 0};
    while (rc == 0 && ib.pos < ib.size) {
      filebuf_reserve(out, ZSTD_DStreamOutSize());
      ZSTD_outBuffer ob = {out->data + out->size, out->cap - out->size, 0};
      hint = ZSTD_decompressStream(ds, &ob, &ib);
      out->size += ob.pos;
      if (ZSTD_isError(hint))
        rc = fail_set(f, "%s: zstd: %s near compressed byte %llu", path, ZSTD_getErrorName(hint),
                      (unsigned long long)(consumed + ib.pos));
    }
    consumed += got;
  }
  /* A frame may still hold decoded bytes back when its last input byte has been taken. */
  while (rc == 0 && hint != 0) {
    ZSTD_inBuffer ib = {chunk, 0, 0};
    filebuf_reserve(out, ZSTD_DStreamOutSize());
    ZSTD_outBuffer ob = {out->data + out->size, out->cap - out->size, 0};
    hint = ZSTD_decompressStream(ds, &ob, &ib);
    out->size += ob.pos;
    if (hint != 0 && ob.pos == 0)
      rc = fail_set(f, "%s: the zstd frame is cut off at compressed byte %llu", path,
                    (unsigned long long)consumed);
  }
  ZSTD_freeDStream(ds);
  free(chunk);
  return rc;
}

static void read_plain(struct filebuf *out, FILE *in) {
  size_t got;
  do {
    filebuf_reserve(out, 1 << 20);
    got = fread(out->data + out->size, 1, out->cap - out->size, in);
    out->size += got;
  } while (got > 0);
}

/* The whole file, decompressed if it begins with zstd's magic. */
static int read_file(struct filebuf *out, const char *path, struct fail *f) {
  FILE *in = fopen(path, "rb");
  if (!in)
    return fail_set(f, "%s: %s", path, strerror(errno));
  uint8_t magic[4];
  int rc = 0;
  bool zstd = fread(magic, 1, 4, in) == 4 && le32(magic) == ZSTD_FRAME_MAGIC;
  rewind(in);
  if (zstd)
    rc = decompress(out, path, in, f);
  else
    read_plain(out, in);
  if (rc == 0 && ferror(in))
    rc = fail_set(f, "%s: read failed: %s", path, strerror(errno));
  fclose(in);
  if (rc != 0) {
    free(out->data);
    memset(out, 0, sizeof(*out));
  } else if (out->data) {
    out->data = must_realloc(out->data, out->size);
  }
  return rc;
}

/* ---------------------------------------------------------------------------------------------- */
/* Records                                                                                        */

static const uint8_t *varint32(const uint8_t *p, const uint8_t *end, uint32_t *v) {
  uint32_t r = 0;
  for (int shift = 0; shift < 35 && p < end; shift += 7) {
    uint8_t c = *p++;
    if (shift == 28 && c > 0x0f)
      return NULL;
    r |= (uint32_t)(c & 0x7f) << shift;
    if (c < 0x80) {
      *v = r;
      return p;
    }
  }
  return NULL;
}

static const uint8_t *string(const uint8_t *p, const uint8_t *end, struct bytes *s) {
  uint32_t n;
  p = varint32(p, end, &n);
  if (!p || n > (size_t)(end - p))
    return NULL;
  *s = bytes_make(p, n);
  return p + n;
}

const uint8_t *trace_op_next(const uint8_t *p, const uint8_t *end, struct trace_op *op) {
  if (p >= end)
    return NULL;
  uint8_t tag = *p++;
  bool has_value = false, has_cf = false;
  switch (tag) {
    case TAG_CF_PUT:
    case TAG_CF_MERGE:
      has_cf = true;
      /* fall through */
    case TAG_PUT:
    case TAG_MERGE:
      op->type = TRACE_PUT;
      has_value = true;
      break;
    case TAG_CF_DELETE:
    case TAG_DELETE:
      op->type = TRACE_DELETE;
      has_cf = tag == TAG_CF_DELETE;
      break;
    case TAG_CF_SINGLE_DELETE:
    case TAG_SINGLE_DELETE:
      op->type = TRACE_SINGLE_DELETE;
      has_cf = tag == TAG_CF_SINGLE_DELETE;
      break;
    default:
      return NULL;
  }
  op->cf = 0;
  if (has_cf && !(p = varint32(p, end, &op->cf)))
    return NULL;
  if (op->cf >= TRACE_CFS || !(p = string(p, end, &op->key)))
    return NULL;
  op->value = bytes_make(NULL, 0);
  return has_value ? string(p, end, &op->value) : p;
}

static bool digits(const uint8_t *p, size_t n, uint64_t *value) {
  uint64_t v = 0;
  for (size_t i = 0; i < n; i++) {
    if (p[i] < '0' || p[i] > '9')
      return false;
    v = v * 10 + (uint64_t)(p[i] - '0');
  }
  *value = v;
  return true;
}

enum trace_key_kind trace_key_version(struct bytes key, uint64_t *version) {
  *version = 0;
  bool dup = key.size == DUP_KEY;
  if (key.size != LOG_KEY && !dup)
    return TRACE_KEY_OTHER;
  if (key.data[TRACE_PG_ID] != '.' || (dup && memcmp(key.data + TRACE_PG_ID + 1, "dup_", 4) != 0))
    return TRACE_KEY_OTHER;
  uint64_t unused, v;
  const uint8_t *p = key.data + TRACE_PG_ID + 1 + (dup ? 4 : 0);
  if (!digits(p, EPOCH_DIGITS, &unused) || p[EPOCH_DIGITS] != '.' ||
      !digits(p + EPOCH_DIGITS + 1, VERSION_DIGITS, &v))
    return TRACE_KEY_OTHER;
  *version = v;
  return dup ? TRACE_KEY_DUP : TRACE_KEY_LOG;
}

/* ---------------------------------------------------------------------------------------------- */
/* Loading                                                                                        */

/* Where the PG is, or (as -1 - index) where it would have to be inserted. */
static long pg_search(const struct trace *t, const uint8_t *id) {
  size_t lo = 0, hi = t->n_pgs;
  while (lo < hi) {
    size_t mid = (lo + hi) / 2;
    int c = memcmp(t->pgs[mid].id, id, TRACE_PG_ID);
    if (c == 0)
      return (long)mid;
    if (c < 0)
      lo = mid + 1;
    else
      hi = mid;
  }
  return -1 - (long)lo;
}

long trace_pg_find(const struct trace *t, struct bytes key) {
  if (key.size < TRACE_PG_ID)
    return -1;
  long i = pg_search(t, key.data);
  return i < 0 ? -1 : i;
}

static struct trace_pg *pg_get(struct trace *t, const uint8_t *id) {
  long i = pg_search(t, id);
  if (i >= 0)
    return &t->pgs[i];
  size_t at = (size_t)(-1 - i);
  t->pgs = must_realloc(t->pgs, (t->n_pgs + 1) * sizeof(*t->pgs));
  memmove(t->pgs + at + 1, t->pgs + at, (t->n_pgs - at) * sizeof(*t->pgs));
  t->n_pgs++;
  t->pgs[at] = (struct trace_pg){.min = UINT64_MAX};
  memcpy(t->pgs[at].id, id, TRACE_PG_ID);
  return &t->pgs[at];
}

static void count_pglog_op(struct trace *t, const struct trace_op *op) {
  t->logical_bytes += op->key.size + op->value.size;
  if (op->key.size < TRACE_PG_ID)
    return;
  struct trace_pg *pg = pg_get(t, op->key.data);
  uint64_t version;
  if (trace_key_version(op->key, &version) != TRACE_KEY_LOG || op->type != TRACE_PUT)
    return;
  if (version < pg->min)
    pg->min = version;
  if (version > pg->max)
    pg->max = version;
}

/* Check the batch at [p, end) and count what it holds. Returns where it is malformed, or NULL. */
static const uint8_t *check_batch(struct trace *t, const uint8_t *p, const uint8_t *end) {
  uint32_t count = le32(p + 8), n = 0;
  const uint8_t *start = p;
  p += BATCH_HEADER;
  while (p < end) {
    struct trace_op op;
    const uint8_t *next = trace_op_next(p, end, &op);
    if (!next)
      return p;
    if (op.cf == TRACE_CF_P)
      count_pglog_op(t, &op);
    p = next;
    n++;
  }
  if (n != count)
    return start;
  t->n_transactions += n > 0;
  return NULL;
}

static int parse(struct trace *t, const char *path, uint64_t limit, struct fail *f) {
  size_t pos = 0, cap = 0;
  while (pos < t->size && (limit == 0 || t->n_records < limit)) {
    size_t left = t->size - pos;
    uint32_t len = left >= 4 ? le32(t->data + pos) : 0;
    if (len < BATCH_HEADER || len > left - 4)
      return fail_set(f, "%s: malformed record %zu at byte %zu: length %u, %zu bytes left", path,
                      t->n_records, pos, len, left);
    const uint8_t *batch = t->data + pos + 4, *bad = check_batch(t, batch, batch + len);
    if (bad)
      return fail_set(
          f, "%s: malformed record %zu at byte %zu: batch of %u operations, bad at byte %zu", path,
          t->n_records, pos, le32(batch + 8), (size_t)(bad - t->data));
    if (t->n_records + 2 > cap) {
      cap = cap ? cap * 2 : 4096;
      t->records = must_realloc(t->records, cap * sizeof(*t->records));
    }
    t->records[t->n_records++] = pos;
    pos += 4 + (size_t)len;
    t->records[t->n_records] = pos;
  }
  if (t->n_transactions == 0)
    return fail_set(f, "%s: no transactions in %zu records", path, t->n_records);
  return 0;
}

int trace_load(struct trace *t, const char *path, uint64_t limit, struct fail *f) {
  memset(t, 0, sizeof(*t));
  struct filebuf b = {0};
  if (read_file(&b, path, f) != 0)
    return -1;
  t->data = b.data;
  t->size = b.size;
  if (parse(t, path, limit, f) != 0) {
    trace_free(t);
    return -1;
  }
  t->last = must_realloc(NULL, t->n_records);
  trace_group(t, 0, 0);
  return 0;
}

void trace_free(struct trace *t) {
  free(t->data);
  free(t->recorded);
  free(t->records);
  free(t->last);
  for (size_t i = 0; i < t->n_pgs; i++)
    free(t->pgs[i].epochs);
  free(t->pgs);
  memset(t, 0, sizeof(*t));
}

void trace_group(struct trace *t, uint64_t group, uint64_t cut) {
  size_t prev = SIZE_MAX; /* the last transaction seen in the present group */
  uint64_t n = 0;
  memset(t->last, 0, t->n_records);
  for (size_t i = 0; i < t->n_records; i++) {
    bool sync = t->records[i + 1] - t->records[i] == 4 + BATCH_HEADER;
    if (prev != SIZE_MAX && ((cut != 0 && i == cut) || (sync && group == 0))) {
      t->last[prev] = 1;
      prev = SIZE_MAX;
      n = 0;
    }
    if (sync)
      continue;
    prev = i;
    if (++n == group) {
      t->last[i] = 1;
      prev = SIZE_MAX;
      n = 0;
    }
  }
  if (prev != SIZE_MAX)
    t->last[prev] = 1;
}

/* ---------------------------------------------------------------------------------------------- */
/* Passes                                                                                         */

/* A growing list of the epochs that keys of one PG name. */
struct learner {
  struct trace *trace;
  size_t *cap; /* by PG: room in its epochs */
};

static uint64_t number(const uint8_t *p, size_t n) {
  uint64_t v = 0;
  digits(p, n, &v);
  return v;
}

static const uint8_t *epoch_of(struct bytes key) {
  return key.data + key.size - VERSION_DIGITS - 1 - EPOCH_DIGITS;
}

static void learn(struct learner *l, struct bytes key) {
  uint64_t version;
  long i = trace_pg_find(l->trace, key);
  if (i < 0 || trace_key_version(key, &version) == TRACE_KEY_OTHER)
    return;
  struct trace_pg *pg = &l->trace->pgs[i];
  struct trace_epoch e = {version, number(epoch_of(key), EPOCH_DIGITS)};
  /* Within a run of one epoch only its ends matter. */
  if (pg->n_epochs >= 2 && pg->epochs[pg->n_epochs - 1].epoch == e.epoch &&
      pg->epochs[pg->n_epochs - 2].epoch == e.epoch &&
      pg->epochs[pg->n_epochs - 1].version >= pg->epochs[pg->n_epochs - 2].version &&
      version >= pg->epochs[pg->n_epochs - 1].version) {
    pg->epochs[pg->n_epochs - 1].version = version;
    return;
  }
  if (pg->n_epochs == l->cap[i]) {
    l->cap[i] = l->cap[i] ? l->cap[i] * 2 : 16;
    pg->epochs = must_realloc(pg->epochs, l->cap[i] * sizeof(*pg->epochs));
  }
  pg->epochs[pg->n_epochs++] = e;
}

static int epoch_cmp(const void *a, const void *b) {
  const struct trace_epoch *x = a, *y = b;
  if (x->version != y->version)
    return x->version < y->version ? -1 : 1;
  return (x->epoch > y->epoch) - (x->epoch < y->epoch);
}

static void sort_epochs(struct trace_pg *pg) {
  size_t n = 0;
  if (pg->n_epochs)
    qsort(pg->epochs, pg->n_epochs, sizeof(*pg->epochs), epoch_cmp);
  for (size_t i = 0; i < pg->n_epochs; i++)
    if (n == 0 || pg->epochs[n - 1].epoch != pg->epochs[i].epoch)
      pg->epochs[n++] = pg->epochs[i];
  pg->n_epochs = n;
}

typedef void (*key_fn)(void *arg, struct bytes key);

static void each_pglog_key(const struct trace *t, key_fn fn, void *arg) {
  for (size_t i = 0; i < t->n_records; i++) {
    struct trace_op op;
    const uint8_t *end, *p = trace_record(t, i, &end);
    while (p < end) {
      p = trace_op_next(p, end, &op);
      if (op.cf == TRACE_CF_P)
        fn(arg, op.key);
    }
  }
}

static void learn_key(void *arg, struct bytes key) {
  learn(arg, key);
}

void trace_passes(struct trace *t, const struct keyspace_file *before) {
  struct bytes key, value;
  struct learner l = {t, must_realloc(NULL, t->n_pgs * sizeof(*l.cap))};
  memset(l.cap, 0, t->n_pgs * sizeof(*l.cap));
  for (size_t pos = 0; before && keyspace_file_next(before, &pos, &key, &value);)
    learn(&l, key);
  each_pglog_key(t, learn_key, &l);
  free(l.cap);
  for (size_t i = 0; i < t->n_pgs; i++)
    sort_epochs(&t->pgs[i]);
  t->recorded = must_realloc(NULL, t->size);
  memcpy(t->recorded, t->data, t->size);
}

static uint64_t epoch_at(const struct trace_pg *pg, uint64_t version) {
  size_t lo = 0, hi = pg->n_epochs;
  while (lo < hi) {
    size_t mid = (lo + hi) / 2;
    if (pg->epochs[mid].version <= version)
      lo = mid + 1;
    else
      hi = mid;
  }
  return pg->epochs[lo ? lo - 1 : 0].epoch;
}

static void put_digits(uint8_t *p, size_t n, uint64_t v) {
  for (; n > 0; v /= 10)
    p[--n] = (uint8_t)('0' + v % 10);
}

struct shifter {
  const struct trace *trace;
  uint64_t pass;
};

static void shift_key(void *arg, struct bytes key) {
  const struct shifter *s = arg;
  uint64_t version;
  const uint8_t *recorded = s->trace->recorded + (key.data - s->trace->data);
  if (trace_key_version(bytes_make(recorded, key.size), &version) == TRACE_KEY_OTHER)
    return;
  const struct trace_pg *pg = &s->trace->pgs[pg_search(s->trace, recorded)];
  if (pg->min > pg->max)
    return;
  uint64_t span = pg->max - pg->min + 1, moved = version + s->pass * span, named = moved;
  if (moved > pg->max)
    named = pg->min + (moved - pg->min) % span;
  put_digits((uint8_t *)key.data + key.size - VERSION_DIGITS, VERSION_DIGITS, moved);
  put_digits((uint8_t *)epoch_of(key), EPOCH_DIGITS, epoch_at(pg, named));
}

void trace_shift(struct trace *t, uint64_t pass) {
  struct shifter s = {t, pass};
  if (pass == t->pass)
    return;
  if (pass == 0)
    memcpy(t->data, t->recorded, t->size);
  else
    each_pglog_key(t, shift_key, &s);
  t->pass = pass;
}

/* ---------------------------------------------------------------------------------------------- */
/* Key spaces                                                                                     */

bool keyspace_file_next(const struct keyspace_file *k, size_t *offset, struct bytes *key,
                        struct bytes *value) {
  if (*offset >= k->size)
    return false;
  const uint8_t *p = k->data + *offset;
  size_t klen = (size_t)(p[0] | p[1] << 8), vlen = le32(p + 2);
  *key = bytes_make(p + 6, klen);
  *value = bytes_make(p + 6 + klen, vlen);
  *offset += 6 + klen + vlen;
  return true;
}

int keyspace_file_load(struct keyspace_file *k, const char *path, struct fail *f) {
  struct filebuf b = {0};
  if (read_file(&b, path, f) != 0)
    return -1;
  k->data = b.data;
  k->size = b.size;
  struct bytes prev = {0};
  for (size_t pos = 0; pos < k->size;) {
    size_t at = pos, left = k->size - pos;
    uint64_t need = 6;
    if (left >= 6)
      need += (uint64_t)(k->data[pos] | k->data[pos + 1] << 8) + le32(k->data + pos + 2);
    if (need > left) {
      fail_set(f, "%s: malformed entry at byte %zu: needs %llu bytes, %zu left", path, at,
               (unsigned long long)need, left);
      keyspace_file_free(k);
      return -1;
    }
    struct bytes key, value;
    keyspace_file_next(k, &pos, &key, &value);
    if (at > 0 && bytes_cmp(prev, key) >= 0) {
      fail_set(f, "%s: malformed entry at byte %zu: its key is not above the previous one", path,
               at);
      keyspace_file_free(k);
      return -1;
    }
    prev = key;
  }
  return 0;
}

void keyspace_file_free(struct keyspace_file *k) {
  free(k->data);
  memset(k, 0, sizeof(*k));
}
