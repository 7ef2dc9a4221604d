/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>

#include "accounting.h"
#include "engine.h"
#include "pglog/db.h"

/* The accounting file system goes below the plugin, so that it sees what the plugin hands down. The
 * arena's own I/O does not pass there: its bytes come from the store's statistics. */
static int split_open(struct bench_db *db, const char *dir, struct fail *f) {
  struct ceph_options o;
  struct pglog_options po;
  struct pglog_error perr;
  if (ceph_options_init(&o, db->mode->db_options, false, f) != 0)
    return -1;
  pglog_options_init(&po);
  int rc =
      pglog_options_parse(&po, "pglog://?cf=P&prefix=&pgid=fixed:8&base=" ACCOUNTING_ID, &perr);
  if (rc != 0) {
    ceph_options_free(&o);
    return fail_set(f, "plugin options: %s", perr.text);
  }
  char *err = NULL;
  pglog_db_t *own =
      pglog_db_open_column_families(o.db, &po, dir, TRACE_CFS, trace_cf_names,
                                    (const rocksdb_options_t *const *)o.cf, db->cf, &err);
  ceph_options_free(&o);
  if (rocksdb_failed(err, "open", f) != 0)
    return -1;
  db->own = own;
  db->base = pglog_db_base(own);
  return 0;
}

static int split_write(struct bench_db *db, const rocksdb_writeoptions_t *o,
                       rocksdb_writebatch_t *batch, struct fail *f) {
  char *err = NULL;
  pglog_db_write(db->own, o, batch, &err);
  return rocksdb_failed(err, "write", f);
}

static int split_flush(struct bench_db *db, struct fail *f) {
  char *err = NULL;
  rocksdb_flushoptions_t *o = rocksdb_flushoptions_create();
  rocksdb_flushoptions_set_wait(o, 1);
  pglog_db_flush(db->own, o, NULL, &err);
  rocksdb_flushoptions_destroy(o);
  return rocksdb_failed(err, "flush", f);
}

static int split_scan(struct bench_db *db, scan_fn fn, void *arg, struct fail *f) {
  int rc = 0;
  rocksdb_readoptions_t *o = rocksdb_readoptions_create();
  pglog_iterator_t *it = pglog_db_create_iterator_cf(db->own, o, db->cf[TRACE_CF_P]);
  for (pglog_iter_seek_to_first(it); rc == 0 && pglog_iter_valid(it); pglog_iter_next(it)) {
    size_t klen, vlen;
    const char *k = pglog_iter_key(it, &klen), *v = pglog_iter_value(it, &vlen);
    rc = fn(arg, bytes_make(k, klen), bytes_make(v, vlen), f);
  }
  char *err = NULL;
  pglog_iter_get_error(it, &err);
  if (err)
    rc = rocksdb_failed(err, "scan", f);
  pglog_iter_destroy(it);
  rocksdb_readoptions_destroy(o);
  return rc;
}

/* A figure of the property pglog.stats, which is lines of "name value". */
static int stat_get(struct bench_db *db, const char *name, uint64_t *value, struct fail *f) {
  char *text = pglog_db_property_value(db->own, "pglog.stats"), *save = NULL;
  size_t n = strlen(name);
  int rc = -1;
  for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line && rc != 0;
       line = strtok_r(NULL, "\n", &save)) {
    if (strncmp(line, name, n) == 0 && line[n] == ' ')
      rc = sscanf(line + n, "%" SCNu64, value) == 1 ? 0 : -1;
  }
  rocksdb_free(text);
  return rc == 0 ? 0 : fail_set(f, "property pglog.stats has no figure %s", name);
}

static int split_space(struct bench_db *db, const char *dir, struct space *s, struct fail *f) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/pglog.arena", dir);
  int64_t allocated = file_allocated(path);
  if (allocated < 0)
    return fail_set(f, "%s: cannot be looked at", path);
  s->file = (uint64_t)allocated;
  return stat_get(db, "arena_live_bytes", &s->live, f);
}

static int split_stats(struct bench_db *db, struct store_stats *s, struct fail *f) {
  if (stat_get(db, "arena_bytes_written", &s->arena_bytes, f) != 0)
    return -1;
  if (stat_get(db, "wal_syncs_checkpoint", &s->checkpoint_syncs, f) != 0)
    return -1;
  return stat_get(db, "checkpoints", &s->checkpoints, f);
}

static void split_close(struct bench_db *db) {
  for (int i = 0; i < TRACE_CFS; i++)
    rocksdb_column_family_handle_destroy(db->cf[i]);
  pglog_db_close(db->own);
  db->own = NULL;
  db->base = NULL;
}

const struct engine engine_split = {
    .open = split_open,
    .write = split_write,
    .flush = split_flush,
    .scan = split_scan,
    .space = split_space,
    .stats = split_stats,
    .close = split_close,
};
