/* SPDX-License-Identifier: Apache-2.0
 *
 * blob.h - the LogData blob in which pg log operations ride through RocksDB's WAL. Pure.
 *
 *     +-------+---------+-----+-----------------+----------------------------------+
 *     | magic | version | tag | number (varint) | groups ...                       |
 *     +-------+---------+-----+-----------------+----------------------------------+
 *       4 B     1 B       1 B
 *     group: varint PG id length, PG id, varint number of operations (>= 1), operations
 *     operation: kind (1 B), then
 *       PUT        varint name length, name, varint value length, value
 *       DELETE     varint name length, name
 *       DELRANGE   varint begin length, begin, varint end length, end  (store keys, PG id included)
 *       DELREST    varint begin length, begin                           (up to the rule's end)
 *
 * A PG's id is stored once for a run of operations of that PG; a name is the store key behind the
 * PG id. The order of operations is that of the batch. A group ends where the PG changes, so a PG
 * may come more than once. The range operations stand in the group of the PG id of their begin key.
 * The begin key starts with that id, and is less than the end key. No store key is longer than
 * PGLOG_KEY_MAX. A blob without groups is well-formed. Integrity is the WAL record's CRC.
 */
#ifndef PGLOG_BLOB_H
#define PGLOG_BLOB_H

#include "util.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BLOB_MAGIC "\xb1PGL"
#define BLOB_MAGIC_LEN 4

enum blob_kind { BLOB_PUT = 1, BLOB_DELETE = 2, BLOB_DELRANGE = 3, BLOB_DELREST = 4 };

struct blob_header {
  uint8_t version; /* PGLOG_BLOB_VERSION */
  uint8_t tag;     /* tells apart the blobs in flight: a writer finds its own at the WAL's end */
  uint64_t number; /* how many blobs the store had observed when this one was made. In WAL order at
                      least that many come before it; fewer at recovery means that some are lost */
};

struct blob_op {
  int kind;
  struct slice pgid;       /* of the group */
  struct slice name;       /* PUT, DELETE: store key behind the PG id */
  struct slice value;      /* PUT */
  struct slice begin, end; /* DELRANGE, DELREST (end empty): store keys */
};

/* Does this LogData begin with the blob's magic? */
static inline bool blob_is(struct slice s) {
  return s.size >= BLOB_MAGIC_LEN && memcmp(s.data, BLOB_MAGIC, BLOB_MAGIC_LEN) == 0;
}

/* Builder. Zero-initialise; reuse with blob_begin(); release with blob_builder_free().
 * The PG id length comes from the caller (rule_pgid_len). Errors: PGLOG_ENOMEM; PGLOG_ETOOBIG when
 * the blob would reach 4 GiB, for a store key over PGLOG_KEY_MAX and a value over PGLOG_VALUE_MAX;
 * PGLOG_EINVAL for a PG id longer than its key and an empty range. An error is remembered: every
 * call answers with it until the next blob_begin(). */
struct blob_builder {
  struct buf out;
  size_t count_at;  /* offset of the open group's count byte(s) */
  uint32_t ops;     /* operations in the open group */
  size_t pgid_at, pgid_len; /* the open group's PG id in `out` */
  bool open;
  int error; /* the first error since blob_begin(), or 0 */
};
int blob_begin(struct blob_builder *b, uint8_t tag, uint64_t number);
int blob_put(struct blob_builder *b, struct slice store_key, size_t pgid_len, struct slice value,
             struct pglog_error *err);
int blob_delete(struct blob_builder *b, struct slice store_key, size_t pgid_len,
                struct pglog_error *err);
/* end.data == NULL: up to the end of the rule's range. */
int blob_delete_range(struct blob_builder *b, struct slice begin, size_t begin_pgid_len,
                      struct slice end, struct pglog_error *err);
/* Close the last group and return the bytes; they are valid until the next blob_begin(). */
int blob_finish(struct blob_builder *b, struct slice *out, struct pglog_error *err);
void blob_builder_free(struct blob_builder *b);

/* Cursor over a blob's operations; the slices point into the blob. Every bound is checked: a
 * malformed blob is PGLOG_ECORRUPT with the offset, one of a newer version PGLOG_ENOTSUP.
 * blob_next: 1 = *op filled, 0 = clean end, < 0 = error. */
struct blob_cursor {
  const uint8_t *base, *p, *end;
  struct slice pgid;
  uint32_t left; /* operations left in the group */
};
int blob_open(struct blob_cursor *c, struct slice blob, struct blob_header *h,
              struct pglog_error *err);
int blob_next(struct blob_cursor *c, struct blob_op *op, struct pglog_error *err);

/* Walk the whole blob and check it. */
int blob_check(struct slice blob, struct pglog_error *err);

#ifdef __cplusplus
}
#endif
#endif
