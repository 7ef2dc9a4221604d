/* SPDX-License-Identifier: Apache-2.0
 *
 * trace.h - transactions recorded from an OSD, in memory.
 *
 * A trace is repeat { u32 LE length; WriteBatch: u64 LE sequence, u32 LE count, records }, as a
 * plain or a zstd file. A batch with count 0 and no records is the commit thread's sync: it ends a
 * group. Column families go by their id in the recorded OSD; P (11) is the pg log. A key space file
 * is sorted { u16 LE key length, u32 LE value length, key, value }.
 *
 * Both are read as a whole, decompressed once, and checked once; what comes after may trust them.
 */
#ifndef BENCH_TRACE_H
#define BENCH_TRACE_H

#include "common.h"

#define TRACE_CFS 12  /* column families of a recorded OSD */
#define TRACE_CF_P 11 /* the one that holds the pg log */
#define TRACE_PG_ID 8 /* bytes of the PG id at the start of each of its keys */

/* Names by id. */
extern const char *const trace_cf_names[TRACE_CFS];

enum trace_op_type { TRACE_PUT = 1, TRACE_DELETE, TRACE_SINGLE_DELETE };

/* One record of a batch. Merges read as puts. The bytes are those of the trace. */
struct trace_op {
  enum trace_op_type type;
  uint32_t cf;
  struct bytes key, value;
};

struct keyspace_file;

/* Log entries from this version on have this epoch. */
struct trace_epoch {
  uint64_t version;
  uint64_t epoch;
};

/* What the trace does to one PG. */
struct trace_pg {
  uint8_t id[TRACE_PG_ID];
  uint64_t min, max;          /* versions of the log entries put; min > max: none */
  struct trace_epoch *epochs; /* by version; see trace_passes() */
  size_t n_epochs;
};

struct trace {
  uint8_t *data;
  size_t size;
  size_t *records; /* offset of each record's length word, and one more: the end */
  size_t n_records;
  uint8_t *last; /* by record: 1 if it is a transaction that ends a group, see trace_group() */
  size_t n_transactions;
  uint64_t logical_bytes; /* pg log: key and value bytes of puts, key bytes of deletes */
  struct trace_pg *pgs;   /* sorted by id */
  size_t n_pgs;
  uint8_t *recorded; /* copy of `data` as recorded, see trace_passes() */
  uint64_t pass;     /* whose keys `data` has at present */
};

/* Read a trace of at most `limit` records (0: all). -1: unreadable or malformed; names the file and
 * the offset in its decompressed bytes. */
int trace_load(struct trace *t, const char *path, uint64_t limit, struct fail *f);
void trace_free(struct trace *t);

/* Set t->last: groups of `group` transactions, or, with 0, the recorded ones. A group also ends
 * with the trace, and ahead of record `cut` (0: no cut), where the databases are reopened. */
void trace_group(struct trace *t, uint64_t group, uint64_t cut);

/* Get ready for more than one pass. A pass moves the versions in log and dup keys, puts and
 * deletes, up by the PG's span of a pass (highest version put - lowest + 1). A key that so comes to
 * name an entry that an earlier pass has put also takes that entry's epoch, without which the
 * deletes would miss what they are to trim. Which version has which epoch is learnt from the trace
 * and from `before` (may be NULL). */
void trace_passes(struct trace *t, const struct keyspace_file *before);

/* Rewrite the keys for pass `pass`; 0 is as recorded. Others need trace_passes(). */
void trace_shift(struct trace *t, uint64_t pass);

/* The records of transaction `i`: [*p, end). A sync has none. */
static inline const uint8_t *trace_record(const struct trace *t, size_t i, const uint8_t **end) {
  *end = t->data + t->records[i + 1];
  return t->data + t->records[i] + 4 + 12;
}

/* Decode the operation at `p`; returns the byte after it, or NULL if it is malformed. */
const uint8_t *trace_op_next(const uint8_t *p, const uint8_t *end, struct trace_op *op);

/* Index in t->pgs of the PG that a pg log key belongs to, or -1. */
long trace_pg_find(const struct trace *t, struct bytes key);

enum trace_key_kind { TRACE_KEY_OTHER, TRACE_KEY_LOG, TRACE_KEY_DUP };

/* Kind of a pg log key, and the version in it (0 for other keys). */
enum trace_key_kind trace_key_version(struct bytes key, uint64_t *version);

/* A key space file in memory. */
struct keyspace_file {
  uint8_t *data;
  size_t size;
};

int keyspace_file_load(struct keyspace_file *k, const char *path, struct fail *f);
void keyspace_file_free(struct keyspace_file *k);
/* Next entry at *offset (0 to begin); false at the end. */
bool keyspace_file_next(const struct keyspace_file *k, size_t *offset, struct bytes *key,
                        struct bytes *value);

#endif
