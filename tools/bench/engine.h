/* SPDX-License-Identifier: Apache-2.0
 *
 * engine.h - the databases that the modes run on, behind one small interface.
 */
#ifndef BENCH_ENGINE_H
#define BENCH_ENGINE_H

#include <rocksdb/c.h>

#include "common.h"
#include "trace.h"

/* What a mode does with the pg log operations of a transaction. */
enum pglog_to {
  PGLOG_DROP, /* left out */
  PGLOG_KEEP, /* in the batch, with the others */
  PGLOG_RING, /* into a ring of blocks beside the database */
};

struct engine;

struct mode {
  const char *name;
  enum pglog_to pglog;
  const struct engine *engine;
  const char *db_options; /* added to Ceph's, or "" */
  const char *what;       /* for the usage text */
};

extern const struct mode modes[];
extern const size_t n_modes;

/* An open database. Zero-initialise, set `mode`, and call open. */
struct bench_db {
  const struct mode *mode;
  rocksdb_t *base;                               /* for RocksDB's own properties and files */
  void *own;                                     /* the engine's */
  rocksdb_column_family_handle_t *cf[TRACE_CFS]; /* by id in the trace */
};

/* Space of the pg log, bytes. */
struct space {
  uint64_t live, file;
};

/* Figures of a store that are not counted by the file system. */
struct store_stats {
  uint64_t arena_bytes; /* written to the arena since it was opened */
  uint64_t checkpoints; /* published since it was opened */
  uint64_t checkpoint_syncs; /* of a WAL, by those of them that found one not durable */
};

/* Called with each pg log key in order. Not 0 ends the scan. */
typedef int (*scan_fn)(void *arg, struct bytes key, struct bytes value, struct fail *f);

/* Functions that take a `struct fail` return 0, or -1 with the reason. */
struct engine {
  /* Open, or create with all column families, the database in directory `dir`. On failure nothing
   * is left open. */
  int (*open)(struct bench_db *db, const char *dir, struct fail *f);
  int (*write)(struct bench_db *db, const rocksdb_writeoptions_t *o, rocksdb_writebatch_t *batch,
               struct fail *f);
  /* Everything into files other than WALs: flush all column families, take a check point. */
  int (*flush)(struct bench_db *db, struct fail *f);
  int (*scan)(struct bench_db *db, scan_fn fn, void *arg, struct fail *f);
  int (*space)(struct bench_db *db, const char *dir, struct space *s, struct fail *f);
  int (*stats)(struct bench_db *db, struct store_stats *s, struct fail *f);
  void (*close)(struct bench_db *db);
};

extern const struct engine engine_rocksdb;
extern const struct engine engine_split;

/* Today's options of a Ceph OSD, with the accounting file system as Env if `env`, and column family
 * options by trace id. Release with ceph_options_free(). */
struct ceph_options {
  rocksdb_options_t *db;
  rocksdb_options_t *cf[TRACE_CFS];
};

int ceph_options_init(struct ceph_options *o, const char *db_options, bool env, struct fail *f);
void ceph_options_free(struct ceph_options *o);

/* Turn RocksDB's error text, if any, into a failure of `what`; frees it. */
int rocksdb_failed(char *err, const char *what, struct fail *f);

/* Wait until no flush and no compaction is running or due. */
int rocksdb_wait_idle(struct bench_db *db, struct fail *f);

/* st_blocks of a file in bytes, or -1 if it cannot be looked at. */
int64_t file_allocated(const char *path);

#endif
