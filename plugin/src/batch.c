/* SPDX-License-Identifier: Apache-2.0 */
#include "batch.h"

#include "blob.h"
#include "rule.h"

/* What follows a tag: the column family's id or not, and which of key and value. */
enum { HAS_CF = 1, HAS_KEY = 2, HAS_VALUE = 4 };

struct tag_info {
  uint8_t op; /* 0: unknown tag */
  uint8_t parts;
};

static const struct tag_info tags[] = {
    [0x00] = {BATCH_DELETE, HAS_KEY},
    [0x01] = {BATCH_PUT, HAS_KEY | HAS_VALUE},
    [0x02] = {BATCH_MERGE, HAS_KEY | HAS_VALUE},
    [0x03] = {BATCH_LOG_DATA, HAS_VALUE},
    [0x04] = {BATCH_DELETE, HAS_CF | HAS_KEY},
    [0x05] = {BATCH_PUT, HAS_CF | HAS_KEY | HAS_VALUE},
    [0x06] = {BATCH_MERGE, HAS_CF | HAS_KEY | HAS_VALUE},
    [0x07] = {BATCH_SINGLE_DELETE, HAS_KEY},
    [0x08] = {BATCH_SINGLE_DELETE, HAS_CF | HAS_KEY},
    [0x09] = {BATCH_XA, 0},         /* begin prepare */
    [0x0a] = {BATCH_XA, HAS_VALUE}, /* end prepare */
    [0x0b] = {BATCH_XA, HAS_VALUE}, /* commit */
    [0x0c] = {BATCH_XA, HAS_VALUE}, /* rollback */
    [0x0d] = {BATCH_NOOP, 0},
    [0x0e] = {BATCH_DELETE_RANGE, HAS_CF | HAS_KEY | HAS_VALUE},
    [0x0f] = {BATCH_DELETE_RANGE, HAS_KEY | HAS_VALUE},
    [0x10] = {BATCH_BLOB_INDEX, HAS_CF | HAS_KEY | HAS_VALUE},
    [0x11] = {BATCH_BLOB_INDEX, HAS_KEY | HAS_VALUE},
    [0x12] = {BATCH_XA, 0},                   /* begin persisted prepare */
    [0x13] = {BATCH_XA, 0},                   /* begin unprepare */
    [0x15] = {BATCH_XA, HAS_KEY | HAS_VALUE}, /* commit with timestamp: the timestamp, the XID */
    [0x16] = {BATCH_ENTITY, HAS_KEY | HAS_VALUE},
    [0x17] = {BATCH_ENTITY, HAS_CF | HAS_KEY | HAS_VALUE},
    [0x18] = {BATCH_TIMED_PUT, HAS_KEY | HAS_VALUE},
    [0x19] = {BATCH_TIMED_PUT, HAS_CF | HAS_KEY | HAS_VALUE},
};

#define TAG_LOG_DATA 0x03
#define TAG_CF_DELETE_RANGE 0x0e
#define TAG_DELETE_RANGE 0x0f

const char *batch_op_str(int op) {
  static const char *const names[] = {
      [BATCH_PUT] = "Put",
      [BATCH_DELETE] = "Delete",
      [BATCH_SINGLE_DELETE] = "SingleDelete",
      [BATCH_DELETE_RANGE] = "DeleteRange",
      [BATCH_MERGE] = "Merge",
      [BATCH_LOG_DATA] = "LogData",
      [BATCH_ENTITY] = "PutEntity",
      [BATCH_BLOB_INDEX] = "BlobIndex",
      [BATCH_TIMED_PUT] = "TimedPut",
      [BATCH_NOOP] = "Noop",
      [BATCH_XA] = "two-phase commit marker",
  };
  return op >= BATCH_PUT && op <= BATCH_XA ? names[op] : "unknown";
}

bool batch_op_counted(int op) {
  return op != BATCH_LOG_DATA && op != BATCH_NOOP && op != BATCH_XA;
}

/* ---------------------------------------------------------------------------------------------- */
/* Walking                                                                                        */

/* Most lengths in a batch take one or two bytes. */
static inline const uint8_t *get_length(const uint8_t *p, const uint8_t *end, uint32_t *n) {
  if (end - p >= 2) {
    if (p[0] < 0x80) {
      *n = p[0];
      return p + 1;
    }
    if (p[1] < 0x80) {
      *n = (uint32_t)(p[0] & 0x7f) | (uint32_t)p[1] << 7;
      return p + 2;
    }
  }
  return get_varint32(p, end, n);
}

static inline const uint8_t *get_string(const uint8_t *p, const uint8_t *end, struct slice *s) {
  uint32_t n;
  p = get_length(p, end, &n);
  if (!p || n > (size_t)(end - p))
    return NULL;
  *s = slice_make(p, n);
  return p + n;
}

/* Read the record at p < end. Returns the byte after it; NULL: unknown tag (op is 0) or cut off. */
static inline const uint8_t *record_get(const uint8_t *p, const uint8_t *end,
                                        struct batch_record *r) {
  const uint8_t *begin = p;
  uint8_t tag = *p++;
  struct tag_info info = {0, 0};
  if (tag < sizeof tags / sizeof tags[0])
    info = tags[tag];
  r->op = info.op;
  r->tag = tag;
  r->cf = 0;
  r->key = r->value = slice_make(begin, 0);
  if (info.op == 0)
    return NULL;
  if (info.parts & HAS_CF && !(p = get_length(p, end, &r->cf)))
    return NULL;
  if (info.parts & HAS_KEY && !(p = get_string(p, end, &r->key)))
    return NULL;
  if (info.parts & HAS_VALUE && !(p = get_string(p, end, &r->value)))
    return NULL;
  r->raw = slice_make(begin, (size_t)(p - begin));
  return p;
}

static int record_fault(const uint8_t *base, const uint8_t *p, const uint8_t *end,
                        const struct batch_record *r, struct pglog_error *err) {
  size_t at = (size_t)(p - base), size = (size_t)(end - base);
  if (r->op == 0)
    return error_set(err, PGLOG_ECORRUPT, "batch: unknown tag 0x%02x at offset %zu of %zu", r->tag,
                     at, size);
  return error_set(err, PGLOG_ECORRUPT,
                   "batch: record with tag 0x%02x (%s) at offset %zu is malformed or runs over the "
                   "end at %zu",
                   r->tag, batch_op_str(r->op), at, size);
}

int batch_next(const uint8_t *base, const uint8_t **p, const uint8_t *end, struct batch_record *r,
               struct pglog_error *err) {
  if (*p >= end)
    return error_set(err, PGLOG_ECORRUPT, "batch: no record at its end at offset %zu",
                     (size_t)(end - base));
  const uint8_t *next = record_get(*p, end, r);
  if (!next)
    return record_fault(base, *p, end, r, err);
  *p = next;
  return 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* Matching                                                                                       */

void batch_rule_init(struct batch_rule *br, const struct pglog_rule *rule, uint32_t cf_id) {
  br->rule = rule;
  br->cf_id = cf_id;
  br->end_len = rule_range_end(rule, br->end);
}

static inline bool in_family(const struct batch_rule *br, uint32_t cf) {
  return cf == br->cf_id && cf != PGLOG_CF_UNKNOWN;
}

static struct slice range_begin(const struct batch_rule *br) {
  return slice_make(br->rule->prefix, br->rule->prefix_len);
}

/* key < end of the rule's range? */
static bool before_end(const struct batch_rule *br, struct slice key) {
  return br->end_len == 0 || slice_cmp(key, slice_make(br->end, br->end_len)) < 0;
}

/* Has [a, b) a key in common with the rule's range? */
static bool range_overlaps(const struct batch_rule *br, struct slice a, struct slice b) {
  return slice_cmp(a, b) < 0 && slice_cmp(b, range_begin(br)) > 0 && before_end(br, a);
}

bool batch_record_matches(const struct batch_rule *br, const struct batch_record *r) {
  if (r->op == BATCH_LOG_DATA || r->op == BATCH_NOOP || r->op == BATCH_XA || !in_family(br, r->cf))
    return false;
  if (r->op == BATCH_DELETE_RANGE)
    return range_overlaps(br, r->key, r->value);
  return rule_has_prefix(br->rule, r->key);
}

/* ---------------------------------------------------------------------------------------------- */
/* Splitting                                                                                      */

struct splitter {
  const struct batch_rule *br;
  struct slice batch;
  const struct batch_hooks *hooks;
  struct blob_builder *bb;
  struct buf *out;
  struct pglog_error *err;
  const uint8_t *run; /* begin of the records not copied yet */
  uint32_t record;    /* number of the present record, from 1 */
  uint32_t found;     /* counted records of the batch so far */
  uint32_t kept;      /* counted records of `out`, the present run included */
  uint32_t marker;    /* number of the first two-phase marker, or 0 */
  bool split;
};

static int no_memory(struct splitter *s) {
  return error_set(s->err, PGLOG_ENOMEM, "batch: no memory for a split batch of %zu bytes",
                   s->batch.size);
}

static int refuse(struct splitter *s, const struct batch_record *r, int code, const char *why) {
  char key[256];
  return error_set(s->err, code, "batch record %u (%s, key '%s'): %s", s->record,
                   batch_op_str(r->op), key_print(key, sizeof key, r->key), why);
}

/* Say in which record of the batch the blob's builder failed. */
static int refuse_wrapped(struct splitter *s, const struct batch_record *r,
                          const struct pglog_error *why) {
  return refuse(s, r, why->code, why->text);
}

/* The present record is of the rule: from the first one on there is a blob. */
static int take(struct splitter *s) {
  s->kept--;
  if (s->split)
    return 0;
  uint64_t number;
  uint8_t tag;
  s->hooks->stamp(s->hooks->arg, &number, &tag);
  s->split = true;
  return blob_begin(s->bb, tag, number) ? no_memory(s) : 0;
}

/* Copy the records before `p` that are still to copy; those from `next` on are the next run. */
static int copy_run(struct splitter *s, const uint8_t *p, const uint8_t *next) {
  /* Room for all at once: the blob is about as large as the records that it replaces. */
  if (s->out->size == 0 && buf_reserve(s->out, s->batch.size + 64))
    return no_memory(s);
  if (buf_append(s->out, s->run, (size_t)(p - s->run)))
    return no_memory(s);
  s->run = next;
  return 0;
}

static int copy_before(struct splitter *s, const struct batch_record *r) {
  return copy_run(s, r->raw.data, r->raw.data + r->raw.size);
}

/* Append a DeleteRange over [a, b), which is not empty, of the rule's column family. */
static int put_range(struct splitter *s, const struct batch_record *r, struct slice a,
                     struct slice b) {
  if (buf_reserve(s->out, 1 + 3 * VARINT32_MAX + a.size + b.size))
    return no_memory(s);
  uint8_t *p = s->out->data + s->out->size;
  *p++ = r->tag;
  if (r->tag == TAG_CF_DELETE_RANGE)
    p = put_varint(p, r->cf);
  p = put_varint(p, a.size);
  memcpy(p, a.data, a.size);
  p = put_varint(p + a.size, b.size);
  memcpy(p, b.data, b.size);
  s->out->size = (size_t)(p + b.size - s->out->data);
  s->kept++;
  return 0;
}

/* The part of [a, b) in the rule's range goes into the blob. */
static int blob_range(struct splitter *s, const struct batch_record *r) {
  const struct pglog_rule *rule = s->br->rule;
  struct slice begin =
      rule_has_prefix(rule, r->key) ? rule_store_key(rule, r->key) : slice_make(r->key.data, 0);
  struct slice end = {NULL, 0};
  if (before_end(s->br, r->value))
    end = rule_store_key(rule, r->value);
  struct pglog_error why;
  if (blob_delete_range(s->bb, begin, rule_pgid_len(rule, begin), end, &why))
    return refuse_wrapped(s, r, &why);
  return 0;
}

static int split_range(struct splitter *s, const struct batch_record *r) {
  struct slice a = r->key, b = r->value, low = range_begin(s->br);
  int order = slice_cmp(a, b);
  if (order > 0) {
    if (slice_cmp(a, low) >= 0 && before_end(s->br, b))
      return refuse(s, r, PGLOG_EINVAL, "the end key comes before the begin key");
    return 0;
  }
  bool empty_here = order == 0 && rule_has_prefix(s->br->rule, a);
  if (!empty_here && !range_overlaps(s->br, a, b))
    return 0;
  int rc = take(s);
  if (!rc && !empty_here)
    rc = blob_range(s, r); /* first, since it checks the limits */
  if (!rc)
    rc = copy_before(s, r);
  if (rc || empty_here)
    return rc;
  if (slice_cmp(a, low) < 0 && (rc = put_range(s, r, a, low)))
    return rc;
  struct slice high = slice_make(s->br->end, s->br->end_len);
  return !before_end(s->br, b) && slice_cmp(high, b) < 0 ? put_range(s, r, high, b) : 0;
}

/* A record of the rule's column family. */
static int split_record(struct splitter *s, const struct batch_record *r) {
  const struct pglog_rule *rule = s->br->rule;
  if (r->op == BATCH_DELETE_RANGE)
    return split_range(s, r);
  if (!rule_has_prefix(rule, r->key))
    return 0;
  if (r->op != BATCH_PUT && r->op != BATCH_DELETE && r->op != BATCH_SINGLE_DELETE)
    return refuse(s, r, PGLOG_ENOTSUP, "not supported on a pg log key");
  int rc = take(s);
  if (rc)
    return rc;
  struct slice key = rule_store_key(rule, r->key);
  size_t pgid_len = rule_pgid_len(rule, key);
  struct pglog_error why;
  rc = r->op == BATCH_PUT ? blob_put(s->bb, key, pgid_len, r->value, &why)
                          : blob_delete(s->bb, key, pgid_len, &why);
  return rc ? refuse_wrapped(s, r, &why) : copy_before(s, r);
}

static int split_records(struct splitter *s) {
  const uint8_t *base = s->batch.data, *p = base + BATCH_HEADER, *end = base + s->batch.size;
  while (p < end) {
    struct batch_record r;
    const uint8_t *next = record_get(p, end, &r);
    if (!next)
      return record_fault(base, p, end, &r, s->err);
    p = next;
    s->record++;
    int rc = s->hooks->check ? s->hooks->check(s->hooks->arg, &r, s->record, s->err) : 0;
    if (rc)
      return rc;
    if (batch_op_counted(r.op)) {
      s->found++;
      s->kept++;
      if (in_family(s->br, r.cf) && (rc = split_record(s, &r)))
        return rc;
    } else if (r.op == BATCH_XA) {
      if (!s->marker)
        s->marker = s->record;
    } else if (r.op == BATCH_LOG_DATA && blob_is(r.value)) {
      return refuse(s, &r, PGLOG_ENOTSUP, "begins with the magic of a pg log blob");
    }
  }
  if (s->found != batch_count(s->batch))
    return error_set(s->err, PGLOG_ECORRUPT, "batch: its count is %u, but it has %u records",
                     batch_count(s->batch), s->found);
  if (s->split && s->marker)
    return error_set(s->err, PGLOG_ENOTSUP,
                     "batch record %u: a two-phase commit marker together with pg log keys is not "
                     "supported",
                     s->marker);
  return 0;
}

/* Append the last run and the blob, and complete the header. */
static int split_finish(struct splitter *s) {
  const uint8_t *end = s->batch.data + s->batch.size;
  struct slice blob;
  int rc = copy_run(s, end, end);
  if (!rc)
    rc = blob_finish(s->bb, &blob, s->err);
  if (rc)
    return rc;
  size_t size = s->out->size + 1 + VARINT32_MAX + blob.size;
  if (size > UINT32_MAX)
    return error_set(s->err, PGLOG_ETOOBIG,
                     "batch of %zu bytes after the split, the limit is 4 GiB", size);
  if (buf_reserve(s->out, 1 + VARINT32_MAX + blob.size))
    return no_memory(s);
  uint8_t *p = s->out->data + s->out->size;
  *p++ = TAG_LOG_DATA;
  p = put_varint(p, blob.size);
  memcpy(p, blob.data, blob.size);
  s->out->size = (size_t)(p + blob.size - s->out->data);
  put_le32(s->out->data + 8, s->kept);
  return 0;
}

int batch_split(const struct batch_rule *br, struct slice batch, const struct batch_hooks *hooks,
                struct blob_builder *bb, struct buf *out, bool *split, struct pglog_error *err) {
  out->size = 0;
  *split = false;
  if (batch.size < BATCH_HEADER)
    return error_set(err, PGLOG_ECORRUPT, "batch of %zu bytes, its header takes %d", batch.size,
                     BATCH_HEADER);
  if (batch.size > UINT32_MAX)
    return error_set(err, PGLOG_ETOOBIG, "batch of %zu bytes, the limit is 4 GiB", batch.size);
  struct splitter s = {.br = br,
                       .batch = batch,
                       .hooks = hooks,
                       .bb = bb,
                       .out = out,
                       .err = err,
                       .run = batch.data}; /* the first run takes the header along */
  int rc = split_records(&s);
  if (!rc && s.split)
    rc = split_finish(&s);
  if (rc)
    out->size = 0;
  else
    *split = s.split;
  return rc;
}
