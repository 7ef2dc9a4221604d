/* SPDX-License-Identifier: Apache-2.0
 *
 * db.h - the facade: a RocksDB database whose pg log keys live in the log store.
 *
 * It mirrors rocksdb/c.h, so that a user of RocksDB's C API needs no manual. In addition to that
 * API's conventions (see the head of rocksdb/c.h and <pglog/pglog.h>):
 *  1. Objects of RocksDB's own (options, batches, column family handles, read and write options)
 *     are those of rocksdb/c.h and stay the caller's.
 *  2. A key of the rule lives in the store or nowhere; every function finds by itself where a key
 *     belongs, batches included.
 *  3. Returned memory is malloc'ed and freed with rocksdb_free(), as there.
 *  4. Every function but open and close may be called from any thread; an iterator or a pinned
 *     value belongs to one thread at a time.
 *  5. A column family handle may be NULL, for the default column family.
 *  6. After an error of the WAL everything that writes fails with that first error until the
 *     database is closed and opened again (DESIGN: failure stops). Reads go on.
 */
#ifndef PGLOG_DB_H
#define PGLOG_DB_H

#include <rocksdb/c.h>

#include "pglog/pglog.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* A database opened through the facade. */
typedef struct pglog_db_t pglog_db_t;
/* An iterator over one column family, pg log keys included. */
typedef struct pglog_iterator_t pglog_iterator_t;
/* A value that is pinned: in RocksDB's block cache, or a copy made by the store. */
typedef struct pglog_pinnable_t pglog_pinnable_t;

/* Open `name` with the default column family alone (and the guard). `po` may be NULL for the
 * defaults. If `options` have no pglog Env, the facade sets one, on a copy; if they have one, `po`
 * must be NULL and the Env's options hold. Neither options object is kept.
 *
 * Refused, with an error that names the option: those that DESIGN section 5 lists (disableWAL is
 * refused at each write); keys of the rule found in the LSM (names the key, and `import`); a
 * comparator other than bytewise for the rule's column family; a missing arena though the guard is
 * there; another rule, database or format version; opened twice.
 * On failure NULL is returned, everything is closed and the files are as recovery left them: the
 * next correct open works. */
pglog_db_t *pglog_db_open(const rocksdb_options_t *options, const struct pglog_options *po,
                          const char *name, char **errptr);

/* The same with column families. The guard need not be listed: it is added when missing from the
 * list (created, if create_if_missing_column_families is set or the database is new; its handle is
 * the facade's). Handles are destroyed by the caller before close, as in RocksDB. */
pglog_db_t *pglog_db_open_column_families(const rocksdb_options_t *options,
                                          const struct pglog_options *po, const char *name,
                                          int num_column_families,
                                          const char *const *column_family_names,
                                          const rocksdb_options_t *const *column_family_options,
                                          rocksdb_column_family_handle_t **column_family_handles,
                                          char **errptr);

/* Close: iterators and pinned values must be gone. Takes a check point, closes RocksDB, then the
 * store. NULL is fine. The handle must not be used again. */
void pglog_db_close(pglog_db_t *db);

/* The plain RocksDB handle, for everything that is not mirrored here. It belongs to the facade.
 * What not to do with it: write, delete, merge or ingest keys of the rule (a write is refused by
 * the file system, which stops the database); disableWAL writes beside pg log; ingest external
 * files at all while sequence numbers matter to recovery; create or drop column families (the
 * facade would refuse batches for new ones); close it. Reading through it does not show pg log
 * keys. */
rocksdb_t *pglog_db_base(pglog_db_t *db);

/* Write a batch, atomically: data and pg log. `batch` is not changed and stays the caller's.
 * Refused before anything is written, with an error that names the record: Merge, wide columns or
 * blob indexes on pg log keys, an unknown column family id (unless the write options ignore missing
 * ones), an inverted DeleteRange, markers of two-phase commit, a record for the guard; and
 * disableWAL. */
void pglog_db_write(pglog_db_t *db, const rocksdb_writeoptions_t *options,
                    rocksdb_writebatch_t *batch, char **errptr);

void pglog_db_put(pglog_db_t *db, const rocksdb_writeoptions_t *options, const char *key,
                  size_t keylen, const char *val, size_t vallen, char **errptr);
void pglog_db_put_cf(pglog_db_t *db, const rocksdb_writeoptions_t *options,
                     rocksdb_column_family_handle_t *cf, const char *key, size_t keylen,
                     const char *val, size_t vallen, char **errptr);
void pglog_db_delete(pglog_db_t *db, const rocksdb_writeoptions_t *options, const char *key,
                     size_t keylen, char **errptr);
void pglog_db_delete_cf(pglog_db_t *db, const rocksdb_writeoptions_t *options,
                        rocksdb_column_family_handle_t *cf, const char *key, size_t keylen,
                        char **errptr);
void pglog_db_singledelete_cf(pglog_db_t *db, const rocksdb_writeoptions_t *options,
                              rocksdb_column_family_handle_t *cf, const char *key, size_t keylen,
                              char **errptr);
/* [start, end). An empty range is a no-op, an inverted one an error (also in a batch). */
void pglog_db_delete_range_cf(pglog_db_t *db, const rocksdb_writeoptions_t *options,
                              rocksdb_column_family_handle_t *cf, const char *start_key,
                              size_t start_key_len, const char *end_key, size_t end_key_len,
                              char **errptr);

/* Value of a key, malloc'ed, or NULL if there is none (errptr left alone) or on failure. */
char *pglog_db_get(pglog_db_t *db, const rocksdb_readoptions_t *options, const char *key,
                   size_t keylen, size_t *vallen, char **errptr);
char *pglog_db_get_cf(pglog_db_t *db, const rocksdb_readoptions_t *options,
                      rocksdb_column_family_handle_t *cf, const char *key, size_t keylen,
                      size_t *vallen, char **errptr);

/* The same, pinned: NULL if there is no such key. pglog_pinnable_value()'s bytes live until
 * destroy. */
pglog_pinnable_t *pglog_db_get_pinned(pglog_db_t *db, const rocksdb_readoptions_t *options,
                                      const char *key, size_t keylen, char **errptr);
pglog_pinnable_t *pglog_db_get_pinned_cf(pglog_db_t *db, const rocksdb_readoptions_t *options,
                                         rocksdb_column_family_handle_t *cf, const char *key,
                                         size_t keylen, char **errptr);
const char *pglog_pinnable_value(const pglog_pinnable_t *p, size_t *vallen);
void pglog_pinnable_destroy(pglog_pinnable_t *p); /* NULL is fine */

/* Many keys at one sequence. Arrays as in rocksdb_multi_get_cf: values_list[i] is malloc'ed or
 * NULL, errs[i] malloc'ed or NULL. `cfs` NULL means the default column family for all. */
void pglog_db_multi_get(pglog_db_t *db, const rocksdb_readoptions_t *options, size_t num_keys,
                        const char *const *keys_list, const size_t *keys_list_sizes,
                        char **values_list, size_t *values_list_sizes, char **errs);
void pglog_db_multi_get_cf(pglog_db_t *db, const rocksdb_readoptions_t *options,
                           const rocksdb_column_family_handle_t *const *column_families,
                           size_t num_keys, const char *const *keys_list,
                           const size_t *keys_list_sizes, char **values_list,
                           size_t *values_list_sizes, char **errs);

/* Iterator: RocksDB's keys and the pg log keys of the column family in one bytewise order, both as
 * of one sequence. Honours iterate_lower_bound and iterate_upper_bound. Refused over the rule's
 * column family: snapshot, tailing, prefix_same_as_start (an invalid iterator with that status is
 * returned, as RocksDB does).
 * As long as it lives it holds a snapshot of RocksDB's and a view of the store's, and so the space
 * of what it can still see. */
pglog_iterator_t *pglog_db_create_iterator(pglog_db_t *db, const rocksdb_readoptions_t *options);
pglog_iterator_t *pglog_db_create_iterator_cf(pglog_db_t *db, const rocksdb_readoptions_t *options,
                                              rocksdb_column_family_handle_t *cf);
void pglog_iter_destroy(pglog_iterator_t *it); /* NULL is fine */
unsigned char pglog_iter_valid(const pglog_iterator_t *it);
void pglog_iter_seek_to_first(pglog_iterator_t *it);
void pglog_iter_seek_to_last(pglog_iterator_t *it);
void pglog_iter_seek(pglog_iterator_t *it, const char *k, size_t klen);
void pglog_iter_seek_for_prev(pglog_iterator_t *it, const char *k, size_t klen);
void pglog_iter_next(pglog_iterator_t *it);
void pglog_iter_prev(pglog_iterator_t *it);
/* Of the present entry; valid until the iterator moves. */
const char *pglog_iter_key(const pglog_iterator_t *it, size_t *klen);
const char *pglog_iter_value(const pglog_iterator_t *it, size_t *vlen);
void pglog_iter_get_error(const pglog_iterator_t *it, char **errptr);

/* Column families. Creating or dropping the guard, and dropping the rule's, is refused. The list
 * leaves the guard out; free it with rocksdb_list_column_families_destroy(). */
rocksdb_column_family_handle_t *pglog_db_create_column_family(pglog_db_t *db,
                                                              const rocksdb_options_t *options,
                                                              const char *name, char **errptr);
void pglog_db_drop_column_family(pglog_db_t *db, rocksdb_column_family_handle_t *cf, char **errptr);
char **pglog_db_list_column_families(const rocksdb_options_t *options, const char *name,
                                     size_t *lencf, char **errptr);

/* Flush memtables; pg log is check pointed as well, so that afterwards everything is in files other
 * than WALs. cf NULL: all column families, and it waits whatever the options say. */
void pglog_db_flush(pglog_db_t *db, const rocksdb_flushoptions_t *options,
                    rocksdb_column_family_handle_t *cf, char **errptr);
/* Compact RocksDB's keys (the store compacts itself). */
void pglog_db_compact_range_cf(pglog_db_t *db, rocksdb_column_family_handle_t *cf,
                               const char *start_key, size_t start_key_len, const char *limit_key,
                               size_t limit_key_len);

/* Take a check point now and wait for it. */
void pglog_db_checkpoint_log(pglog_db_t *db, char **errptr);

uint64_t pglog_db_latest_sequence_number(pglog_db_t *db);

/* `pglog.stats`: the store's and the facade's figures, lines of "name value"; `pglog.pg.<id>`: one
 * PG's, the id as text (without the `until` byte) or 0x hex; everything else is RocksDB's.
 * malloc'ed, or NULL if there is no such property. */
char *pglog_db_property_value(pglog_db_t *db, const char *propname);
char *pglog_db_property_value_cf(pglog_db_t *db, rocksdb_column_family_handle_t *cf,
                                 const char *propname);

/* Remove a database with its arena: RocksDB's files and the log store's. The database must not be
 * open. `po` NULL: defaults (or the options' pglog Env). */
void pglog_destroy_db(const rocksdb_options_t *options, const struct pglog_options *po,
                      const char *name, char **errptr);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
