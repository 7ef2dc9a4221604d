/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.h - walks and splits the bytes of a RocksDB WriteBatch. Pure: no I/O, no locks, no store.
 *
 * Format (RocksDB 7.8.3, db/write_batch.cc, top comment): u64 LE sequence, u32 LE count, records.
 * Tags 0x18/0x19 are those of later releases (value with packed seqno / its column family form, two
 * varstrings).
 */
#ifndef PGLOG_BATCH_H
#define PGLOG_BATCH_H

#include "util.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BATCH_HEADER 12 /* 00-07: sequence, 08-11: count */

/* What a record does, with the column family folded out of the tag. */
enum batch_op {
  BATCH_PUT = 1,
  BATCH_DELETE,
  BATCH_SINGLE_DELETE,
  BATCH_DELETE_RANGE, /* key = begin (included), value = end (excluded) */
  BATCH_MERGE,
  BATCH_LOG_DATA,     /* value = the blob; not counted in the batch's count */
  BATCH_ENTITY,       /* wide columns */
  BATCH_BLOB_INDEX,
  BATCH_TIMED_PUT,    /* 0x18/0x19 */
  BATCH_NOOP,         /* not counted */
  BATCH_XA,           /* prepare, commit, rollback markers of two-phase commit; not counted */
};

struct batch_record {
  int op;           /* enum batch_op */
  uint8_t tag;      /* as in the batch */
  uint32_t cf;      /* column family id; 0 where the tag has none */
  struct slice key, value; /* empty where the tag has none; a marker's XID is in `value` */
  struct slice raw; /* the whole record, tag included */
};

/* Name of an operation for messages: "Put", "Merge", ... */
const char *batch_op_str(int op);

/* Read the record at *p, before `end`; moves *p behind it. PGLOG_ECORRUPT for an unknown tag or a
 * record that runs over the end: the message names the tag and the offset from `base`. */
int batch_next(const uint8_t *base, const uint8_t **p, const uint8_t *end, struct batch_record *r,
               struct pglog_error *err);

/* Whether op counts towards the batch's count (and takes a sequence number). */
bool batch_op_counted(int op);

/* The header's fields. `batch` must have BATCH_HEADER bytes. */
static inline uint64_t batch_sequence(struct slice batch) { return get_le64(batch.data); }
static inline uint32_t batch_count(struct slice batch) { return get_le32(batch.data + 8); }

/* The rule as the batch layer needs it: column family by id. PGLOG_CF_UNKNOWN matches nothing. */
struct batch_rule {
  const struct pglog_rule *rule;
  uint32_t cf_id;
  uint8_t end[PGLOG_PREFIX_MAX]; /* end of the range, from rule_range_end() */
  size_t end_len;
};
void batch_rule_init(struct batch_rule *br, const struct pglog_rule *rule, uint32_t cf_id);

/* True if the record touches the rule's range: its key has the prefix, or it is a DeleteRange over
 * part of it that is not empty. LogData, Noop and XA never match. */
bool batch_record_matches(const struct batch_rule *br, const struct batch_record *r);

struct blob_builder;

/* What the caller has to say while a batch is split; the walk is the only one over the batch. */
struct batch_hooks {
  void *arg;
  /* Called with each record, numbered from 1, before it is split. Other than 0 ends the split with
   * that error. NULL: no such checks. */
  int (*check)(void *arg, const struct batch_record *r, uint32_t n, struct pglog_error *err);
  /* Called once, at the first record of the rule: what goes into the blob's header, see blob.h. */
  void (*stamp)(void *arg, uint64_t *number, uint8_t *tag);
};

/* Split `batch`: records outside the rule are copied verbatim, in order, to `out`; those of the
 * rule become operations of one blob, which is appended to `out` as its last record, a LogData. A
 * DeleteRange that overlaps the rule's bounds is split there and empty parts are dropped; a part
 * that survives is counted. An empty DeleteRange at a pg log key is dropped, which may leave a blob
 * without operations; one elsewhere stays. The header of `out` has the sequence of `batch` and the
 * new count. `bb` is scratch that can be reused by later calls of the same thread (reset here).
 *
 * *split is set to whether anything was taken out; if not, `out` is left empty and the caller
 * passes the batch on as it is. After an error both are as if nothing had been taken out.
 *
 * Refused, PGLOG_ENOTSUP: Merge, entity, blob index and timed put on a pg log key; any two-phase
 * marker together with pg log keys; a LogData of the caller's that begins with the blob's magic.
 * PGLOG_EINVAL: a DeleteRange whose end comes before its begin, if a key between is of the rule
 * (RocksDB 7.8.3 refuses any such range, but only after the batch went into the WAL).
 * PGLOG_ETOOBIG: a store key over PGLOG_KEY_MAX, a value over PGLOG_VALUE_MAX, a batch over 4 GiB.
 * PGLOG_ECORRUPT: malformed batch, or its count is not that of its records. Each names the record's
 * number (from 1) and key. */
int batch_split(const struct batch_rule *br, struct slice batch, const struct batch_hooks *hooks,
                struct blob_builder *bb, struct buf *out, bool *split, struct pglog_error *err);

#ifdef __cplusplus
}
#endif
#endif
