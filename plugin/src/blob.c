/* SPDX-License-Identifier: Apache-2.0 */
#include "blob.h"

/* A group's count is written when the group closes, and takes one byte until then. Closing the open
 * group and later the one that follows may each need this much more. */
#define COUNT_SLACK (VARINT32_MAX - 1)

static int fail(struct blob_builder *b, int code) {
  b->error = code;
  return code;
}

static int remembered(const struct blob_builder *b, struct pglog_error *err) {
  return error_set(err, b->error, "blob: an earlier operation failed: %s",
                   pglog_status_str(b->error));
}

static int no_memory(struct blob_builder *b, struct pglog_error *err) {
  return fail(b, error_set(err, PGLOG_ENOMEM, "blob: no memory beyond %zu bytes", b->out.size));
}

int blob_begin(struct blob_builder *b, uint8_t tag, uint64_t number) {
  b->out.size = 0;
  b->open = false;
  b->error = 0;
  if (buf_reserve(&b->out, BLOB_MAGIC_LEN + 2 + VARINT64_MAX))
    return fail(b, PGLOG_ENOMEM);
  uint8_t *p = b->out.data;
  memcpy(p, BLOB_MAGIC, BLOB_MAGIC_LEN);
  p += BLOB_MAGIC_LEN;
  *p++ = PGLOG_BLOB_VERSION;
  *p++ = tag;
  p = put_varint(p, number);
  b->out.size = (size_t)(p - b->out.data);
  return 0;
}

/* Write the open group's count. Needs COUNT_SLACK bytes of room. */
static void group_close(struct blob_builder *b) {
  if (!b->open)
    return;
  b->open = false;
  size_t extra = varint_size(b->ops) - 1;
  uint8_t *at = b->out.data + b->count_at;
  if (extra) {
    memmove(at + 1 + extra, at + 1, b->out.size - b->count_at - 1);
    b->out.size += extra;
  }
  put_varint(at, b->ops);
}

static void group_open(struct blob_builder *b, struct slice pgid) {
  uint8_t *p = put_varint(b->out.data + b->out.size, pgid.size);
  b->pgid_at = (size_t)(p - b->out.data);
  b->pgid_len = pgid.size;
  if (pgid.size)
    memcpy(p, pgid.data, pgid.size);
  b->count_at = b->pgid_at + pgid.size;
  b->out.data[b->count_at] = 0;
  b->out.size = b->count_at + 1;
  b->ops = 0;
  b->open = true;
}

/* Make room for an operation with two strings and count it in its PG's group, opened if need be. */
static int op_begin(struct blob_builder *b, struct slice key, size_t pgid_len, size_t other,
                    struct pglog_error *err) {
  if (b->error)
    return remembered(b, err);
  if (key.size > PGLOG_KEY_MAX)
    return fail(b, error_set(err, PGLOG_ETOOBIG, "pg log key of %zu bytes, the limit is %d",
                             key.size, PGLOG_KEY_MAX));
  if (pgid_len > key.size)
    return fail(
        b, error_set(err, PGLOG_EINVAL, "PG id of %zu bytes in a key of %zu", pgid_len, key.size));
  size_t need = 1 + 3 * VARINT32_MAX + pgid_len + 1 + key.size + other + 2 * COUNT_SLACK;
  if (need > UINT32_MAX || b->out.size > UINT32_MAX - need)
    return fail(b,
                error_set(err, PGLOG_ETOOBIG, "blob of %zu bytes and %zu more, the limit is 4 GiB",
                          b->out.size, need));
  if (buf_reserve(&b->out, need))
    return no_memory(b, err);
  struct slice pgid = slice_make(key.data, pgid_len);
  if (!b->open || !slice_eq(pgid, slice_make(b->out.data + b->pgid_at, b->pgid_len))) {
    group_close(b);
    group_open(b, pgid);
  }
  b->ops++;
  return 0;
}

static inline uint8_t *put_string(uint8_t *p, struct slice s) {
  p = put_varint(p, s.size);
  if (s.size)
    memcpy(p, s.data, s.size);
  return p + s.size;
}

static struct slice key_name(struct slice key, size_t pgid_len) {
  return slice_make(key.data + pgid_len, key.size - pgid_len);
}

int blob_put(struct blob_builder *b, struct slice store_key, size_t pgid_len, struct slice value,
             struct pglog_error *err) {
  if (value.size > PGLOG_VALUE_MAX && !b->error)
    return fail(b, error_set(err, PGLOG_ETOOBIG, "pg log value of %zu bytes, the limit is %u",
                             value.size, PGLOG_VALUE_MAX));
  int rc = op_begin(b, store_key, pgid_len, value.size, err);
  if (rc)
    return rc;
  uint8_t *p = b->out.data + b->out.size;
  *p++ = BLOB_PUT;
  p = put_string(p, key_name(store_key, pgid_len));
  p = put_string(p, value);
  b->out.size = (size_t)(p - b->out.data);
  return 0;
}

int blob_delete(struct blob_builder *b, struct slice store_key, size_t pgid_len,
                struct pglog_error *err) {
  int rc = op_begin(b, store_key, pgid_len, 0, err);
  if (rc)
    return rc;
  uint8_t *p = b->out.data + b->out.size;
  *p++ = BLOB_DELETE;
  p = put_string(p, key_name(store_key, pgid_len));
  b->out.size = (size_t)(p - b->out.data);
  return 0;
}

int blob_delete_range(struct blob_builder *b, struct slice begin, size_t begin_pgid_len,
                      struct slice end, struct pglog_error *err) {
  bool rest = end.data == NULL;
  if (!b->error && !rest && end.size > PGLOG_KEY_MAX)
    return fail(b, error_set(err, PGLOG_ETOOBIG, "end key of %zu bytes, the limit is %d", end.size,
                             PGLOG_KEY_MAX));
  if (!b->error && !rest && slice_cmp(begin, end) >= 0)
    return fail(b, error_set(err, PGLOG_EINVAL, "range whose end is not behind its begin"));
  int rc = op_begin(b, begin, begin_pgid_len, rest ? 0 : end.size, err);
  if (rc)
    return rc;
  uint8_t *p = b->out.data + b->out.size;
  *p++ = rest ? BLOB_DELREST : BLOB_DELRANGE;
  p = put_string(p, begin);
  if (!rest)
    p = put_string(p, end);
  b->out.size = (size_t)(p - b->out.data);
  return 0;
}

int blob_finish(struct blob_builder *b, struct slice *out, struct pglog_error *err) {
  if (b->error)
    return remembered(b, err);
  if (buf_reserve(&b->out, COUNT_SLACK))
    return no_memory(b, err);
  group_close(b);
  *out = slice_make(b->out.data, b->out.size);
  return 0;
}

void blob_builder_free(struct blob_builder *b) {
  buf_free(&b->out);
  *b = (struct blob_builder){0};
}

/* ---------------------------------------------------------------------------------------------- */
/* Reading                                                                                        */

static int corrupt(const struct blob_cursor *c, const uint8_t *at, struct pglog_error *err,
                   const char *what) {
  return error_set(err, PGLOG_ECORRUPT, "blob of %zu bytes: %s at offset %zu",
                   (size_t)(c->end - c->base), what, (size_t)(at - c->base));
}

static inline const uint8_t *get_string(const uint8_t *p, const uint8_t *end, struct slice *s) {
  uint32_t n;
  p = get_varint32(p, end, &n);
  if (!p || n > (size_t)(end - p))
    return NULL;
  *s = slice_make(p, n);
  return p + n;
}

int blob_open(struct blob_cursor *c, struct slice blob, struct blob_header *h,
              struct pglog_error *err) {
  *c = (struct blob_cursor){.base = blob.data, .p = blob.data, .end = blob.data + blob.size};
  if (!blob_is(blob) || blob.size < BLOB_MAGIC_LEN + 2)
    return corrupt(c, c->base, err, "no header");
  const uint8_t *p = blob.data + BLOB_MAGIC_LEN;
  h->version = p[0];
  h->tag = p[1];
  if (h->version > PGLOG_BLOB_VERSION)
    return error_set(err, PGLOG_ENOTSUP, "blob of version %d, this library knows versions up to %d",
                     h->version, PGLOG_BLOB_VERSION);
  if (h->version == 0)
    return corrupt(c, p, err, "version 0");
  p = get_varint64(p + 2, c->end, &h->number);
  if (!p)
    return corrupt(c, c->base + BLOB_MAGIC_LEN + 2, err, "malformed number");
  c->p = p;
  return 0;
}

static int group_next(struct blob_cursor *c, struct pglog_error *err) {
  const uint8_t *p = get_string(c->p, c->end, &c->pgid);
  if (!p || c->pgid.size > PGLOG_KEY_MAX)
    return corrupt(c, c->p, err, "malformed PG id");
  const uint8_t *q = get_varint32(p, c->end, &c->left);
  if (!q || c->left == 0) {
    c->left = 0;
    return corrupt(c, p, err, "malformed number of operations");
  }
  c->p = q;
  return 0;
}

/* The strings behind an operation's kind. NULL: over the end. */
static const uint8_t *op_strings(const uint8_t *p, const uint8_t *end, struct blob_op *op) {
  switch (op->kind) {
    case BLOB_PUT:
      p = get_string(p, end, &op->name);
      return p ? get_string(p, end, &op->value) : NULL;
    case BLOB_DELETE:
      return get_string(p, end, &op->name);
    case BLOB_DELRANGE:
      p = get_string(p, end, &op->begin);
      return p ? get_string(p, end, &op->end) : NULL;
    default:
      return get_string(p, end, &op->begin);
  }
}

/* What is wrong with the operation, or NULL. */
static const char *op_fault(const struct blob_op *op) {
  if (op->kind == BLOB_PUT || op->kind == BLOB_DELETE) {
    if (op->pgid.size + op->name.size > PGLOG_KEY_MAX)
      return "key over the limit";
    return op->value.size > PGLOG_VALUE_MAX ? "value over the limit" : NULL;
  }
  if (op->begin.size > PGLOG_KEY_MAX || op->end.size > PGLOG_KEY_MAX)
    return "key over the limit";
  if (op->begin.size < op->pgid.size ||
      (op->pgid.size && memcmp(op->begin.data, op->pgid.data, op->pgid.size) != 0))
    return "range outside its PG";
  if (op->kind == BLOB_DELRANGE && slice_cmp(op->begin, op->end) >= 0)
    return "range whose end is not behind its begin";
  return NULL;
}

int blob_next(struct blob_cursor *c, struct blob_op *op, struct pglog_error *err) {
  if (c->left == 0) {
    if (c->p == c->end)
      return 0;
    int rc = group_next(c, err);
    if (rc)
      return rc;
  }
  if (c->p == c->end)
    return corrupt(c, c->p, err, "group cut off");
  *op = (struct blob_op){.kind = *c->p, .pgid = c->pgid};
  if (op->kind < BLOB_PUT || op->kind > BLOB_DELREST)
    return corrupt(c, c->p, err, "unknown kind of operation");
  const uint8_t *p = op_strings(c->p + 1, c->end, op);
  if (!p)
    return corrupt(c, c->p, err, "operation cut off");
  const char *fault = op_fault(op);
  if (fault)
    return corrupt(c, c->p, err, fault);
  c->p = p;
  c->left--;
  return 1;
}

int blob_check(struct slice blob, struct pglog_error *err) {
  struct blob_cursor c;
  struct blob_header h;
  struct blob_op op;
  int rc = blob_open(&c, blob, &h, err);
  if (rc)
    return rc;
  do
    rc = blob_next(&c, &op, err);
  while (rc > 0);
  return rc;
}
