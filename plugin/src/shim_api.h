/* SPDX-License-Identifier: Apache-2.0
 *
 * shim_api.h - what the facade needs of the file system shim, callable from C.
 *
 * `env` is a `rocksdb::Env *` passed as `void *`, `user_env` too. "A pglog Env" is an Env whose
 * file system is the shim, however it was made: shim_env_new(), `env=pglog://...`,
 * `--fs_uri=pglog://...`.
 *
 * The shim opens the store of a database directory when RocksDB takes its LOCK and closes it when
 * RocksDB gives the LOCK back, both inside RocksDB's open and close. Between the two the store of a
 * directory is found with shim_store_of().
 */
#ifndef PGLOG_SHIM_API_H
#define PGLOG_SHIM_API_H

#include "store.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A new pglog Env with these options (copied; `o->io` must stay valid as long as the Env) over
 * `user_env`: its file system is the base unless `o->base` names another, its threads and clock are
 * used. NULL: RocksDB's default Env. user_env must outlive the result. Release it with
 * shim_env_free() after the database has been closed.
 * NULL and *err: PGLOG_EINVAL (options; `base` unknown; user_env is a pglog Env already). */
void *shim_env_new(const struct pglog_options *o, void *user_env, struct pglog_error *err);
void shim_env_free(void *env); /* NULL is fine */

/* The options of a pglog Env, or NULL if `env` is not one (or NULL). Valid as long as the Env. */
const struct pglog_options *shim_env_options(void *env);

/* The open store of database directory `dbname`, any spelling of its path, or NULL: env is not a
 * pglog Env, or RocksDB does not hold the directory's LOCK. Valid until RocksDB closes. */
struct store *shim_store_of(void *env, const char *dbname);

/* RocksDB is about to open `dbname` in this Env with this wal_recovery_mode (rocksdb's numbers) and
 * wal_dir ("" or NULL: the database directory). Used by the next LOCK of that directory, whichever
 * thread takes it, and then forgotten. Not needed for correctness when RocksDB is opened in the
 * same thread through DB::Open: the shim then sees the DBOptions themselves. The C API's open is
 * DB::Open. */
void shim_hint_open(void *env, const char *dbname, int wal_recovery_mode, const char *wal_dir);

/* The guard's comparator (`const rocksdb::Comparator *`), named PGLOG_GUARD_COMPARATOR, bytewise.
 * Static; never destroyed. */
const void *shim_guard_comparator(void);

/* The last lines that the store of `dbname` logged (64 at most), each ended by '\n', into `out`
 * (NUL-terminated, cut at cap). Returns the full length; 0 if there is no open store. */
size_t shim_log_lines(void *env, const char *dbname, char *out, size_t cap);

#ifdef __cplusplus
}
#endif
#endif
