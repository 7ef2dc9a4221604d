/* SPDX-License-Identifier: Apache-2.0
 *
 * capi.h - what the facade needs of RocksDB and its C API does not offer.
 *
 * Each struct of rocksdb/c.h has its C++ object (or a pointer to it) as its first member. capi.cc,
 * and nothing else, relies on that; capi_self_check() proves it for the library that is loaded.
 */
#ifndef PGLOG_CAPI_H
#define PGLOG_CAPI_H

#include <rocksdb/c.h>

#include "batch.h"
#include "blob.h"
#include "util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The loaded librocksdb is of the version that this was built for, and objects made and set through
 * the C API read back the same through the casts. PGLOG_ENOTSUP names what differs. */
int capi_self_check(struct pglog_error *err);
/* The same for an open database. */
int capi_db_check(rocksdb_t *db, const char *name, struct pglog_error *err);

/* ---------------------------------------------------------------------------------------------- */
/* Options                                                                                        */

/* Refuse database options that DESIGN section 5 refuses: PGLOG_ENOTSUP with option and value. */
int capi_options_check_db(const rocksdb_options_t *o, struct pglog_error *err);
/* Refuse options of column family `cf`. */
int capi_options_check_cf(const rocksdb_options_t *o, const char *cf, struct pglog_error *err);
/* Bytewise, without timestamps? *name is the comparator's. */
bool capi_options_bytewise(const rocksdb_options_t *o, const char **name);

/* What a column family with these options takes; RocksDB finds out only when a record is in its
 * WAL. *comparator (rocksdb::Comparator *): NULL if bytewise. */
enum capi_family { CAPI_MERGE = 1, CAPI_DELETE_RANGE = 2 };
unsigned capi_options_family(const rocksdb_options_t *o, const void **comparator);
/* Order of two keys by such a comparator, NULL included: <0, 0, >0. */
int capi_compare(const void *comparator, struct slice a, struct slice b);

void *capi_options_env(const rocksdb_options_t *o);         /* rocksdb::Env * */
void capi_options_set_env(rocksdb_options_t *o, void *env); /* kept, not owned */
void capi_options_set_comparator(rocksdb_options_t *o, const void *comparator); /* likewise */
const char *capi_options_wal_dir(const rocksdb_options_t *o); /* valid until `o` changes */
bool capi_options_atomic_flush(const rocksdb_options_t *o);
/* Bytes that a column family's memtables may take: what RocksDB sums up, times 4, as the limit of
 * all WAL files when max_total_wal_size is 0. */
uint64_t capi_options_memtable_bytes(const rocksdb_options_t *o);

/* Does the directory hold a database (a CURRENT file)? 1, 0, or PGLOG_EIO. */
int capi_db_exists(void *env, const char *name, struct pglog_error *err);

/* ---------------------------------------------------------------------------------------------- */
/* Writing                                                                                        */

/* Write a batch given by its bytes. */
void capi_write(rocksdb_t *db, const rocksdb_writeoptions_t *wo, struct slice batch, char **errptr);
/* WriteBatch::MarkWalTerminationPoint() was called. */
bool capi_batch_has_wal_end(const rocksdb_writebatch_t *b);

/* Scratch of the calling thread; released when the thread ends. The bytes of `out` are those of a
 * WriteBatch to be, so that writing them copies nothing. */
struct capi_scratch {
  struct blob_builder blob;
  struct buf out; /* the batch that is written */
};
struct capi_scratch *capi_scratch(void);
/* Write the batch in `out`, which is empty afterwards. */
void capi_scratch_write(rocksdb_t *db, const rocksdb_writeoptions_t *wo, char **errptr);
/* Give memory back, if it is much. */
void capi_scratch_trim(void);

/* Flush the memtables of every column family, and wait. */
void capi_flush_all(rocksdb_t *db, char **errptr);
/* Start a flush that waits for nothing, not even for a stall to end. */
void capi_flush_start(rocksdb_t *db, rocksdb_column_family_handle_t *cf, char **errptr);
/* Let RocksDB compare its WAL bytes with max_total_wal_size and flush what pins the oldest WAL; it
 * does so by itself only when there are two column families or more. */
void capi_purge_wals(rocksdb_t *db, char **errptr);
uint64_t capi_max_total_wal_size(rocksdb_t *db);

/* ---------------------------------------------------------------------------------------------- */
/* Reading                                                                                        */

bool capi_ro_has_snapshot(const rocksdb_readoptions_t *ro);
/* iterate_lower_bound, iterate_upper_bound; data == NULL if there is none. */
struct slice capi_ro_lower(const rocksdb_readoptions_t *ro);
struct slice capi_ro_upper(const rocksdb_readoptions_t *ro);

/* False if the database cannot take snapshots. */
bool capi_snapshot_sequence(const rocksdb_snapshot_t *snapshot, uint64_t *sequence);

/* rocksdb_multi_get_cf() at a snapshot (NULL: that of `ro`); `cfs` NULL: the default column family.
 */
void capi_multi_get(rocksdb_t *db, const rocksdb_readoptions_t *ro,
                    const rocksdb_snapshot_t *snapshot,
                    const rocksdb_column_family_handle_t *const *cfs, size_t n,
                    const char *const *keys, const size_t *key_sizes, char **values,
                    size_t *value_sizes, char **errs);

/* An iterator that keeps its own copies of the bounds. `snapshot` (may be NULL: that of `ro`) must
 * outlive it. `total_order`: as if total_order_seek were set. `cf` NULL: default. Moved and read
 * with rocksdb_iter_*, but destroyed here. */
rocksdb_iterator_t *capi_iter_create(rocksdb_t *db, const rocksdb_readoptions_t *ro,
                                     const rocksdb_snapshot_t *snapshot, bool total_order,
                                     rocksdb_column_family_handle_t *cf);
void capi_iter_destroy(rocksdb_iterator_t *it); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
