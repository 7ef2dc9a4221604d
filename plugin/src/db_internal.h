/* SPDX-License-Identifier: Apache-2.0
 *
 * db_internal.h - what the facade's files share.
 */
#ifndef PGLOG_DB_INTERNAL_H
#define PGLOG_DB_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "capi.h"
#include "pglog/db.h"
#include "store.h"

/* What a batch's records are checked against, by column family id. Changed in place; a larger set
 * is published beside the old one, which lives until close since writers read without a lock. */
struct cf_info {
  _Atomic(const void *) comparator; /* rocksdb::Comparator *; NULL: bytewise */
  atomic_uint flags;                /* CF_KNOWN and enum capi_family; 0: unknown */
};
#define CF_KNOWN 0x80u
struct cf_set {
  struct cf_set *older;
  uint32_t n; /* ids 0..n-1 */
  struct cf_info cf[];
};

struct pglog_db_t {
  rocksdb_t *db;
  struct store *store;
  struct batch_rule rule;
  char *name;
  void *made_env;                        /* the Env that the facade made, or NULL */
  rocksdb_column_family_handle_t *guard; /* NULL: opened without */
  uint32_t guard_id;

  pthread_mutex_t cf_mutex; /* changes of `cfs` */
  _Atomic(struct cf_set *) cfs;

  /* Watch over WAL retirement, see db_wals.c. */
  pthread_mutex_t wal_mutex;
  atomic_uint_fast64_t wal_bytes; /* batch bytes written since open */
  atomic_uint_fast64_t wal_step;  /* look at the WAL number whenever that many more were written */
  uint64_t memtable_bytes;        /* as RocksDB sums them up; cf_mutex */
  uint64_t wal_number, wal_base;  /* newest WAL, and wal_bytes when it was first seen; wal_mutex */
  atomic_uint_fast64_t wals_forced;
};

/* Set *errptr as RocksDB does. */
void db_error(char **errptr, const struct pglog_error *e);

/* Is this a pg log key? cf_id is that of the key's column family. */
static inline bool db_is_pglog(const pglog_db_t *db, uint32_t cf_id, struct slice key) {
  return cf_id == db->rule.cf_id && rule_has_prefix(db->rule.rule, key);
}
static inline uint32_t db_cf_id(rocksdb_column_family_handle_t *cf) {
  return cf ? rocksdb_column_family_handle_get_id(cf) : 0;
}

/* Where a key lies: before the rule's range, in it (and *store_key is its store key), behind it. */
enum db_side { DB_BEFORE = -1, DB_INSIDE = 0, DB_BEHIND = 1 };
enum db_side db_side(const pglog_db_t *db, struct slice key, struct slice *store_key);

/* A view of the store together with the RocksDB snapshot of the same sequence. The caller releases
 * both. */
int db_pin(pglog_db_t *db, struct store_view **view, const rocksdb_snapshot_t **snapshot,
           struct pglog_error *err);

/* Known column families. `o`: its options. */
int cfs_add(pglog_db_t *db, uint32_t id, const rocksdb_options_t *o);
void cfs_remove(pglog_db_t *db, uint32_t id);
/* NULL: unknown. Valid until close. */
struct cf_info *cfs_find(pglog_db_t *db, uint32_t id);
void cfs_free(pglog_db_t *db);

/* db_wals.c: a batch of `bytes` was written. */
void wals_written(pglog_db_t *db, size_t bytes);
/* The limit of all WAL bytes may have changed. */
void wals_limit_changed(pglog_db_t *db);

#endif
