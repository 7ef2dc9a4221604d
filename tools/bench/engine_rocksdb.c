/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/stat.h>
#include <unistd.h>

#include "accounting.h"
#include "engine.h"

/* What a Ceph OSD sets for its RocksDB on SSD, without what only BlueFS needs. */
#define CEPH_OPTIONS                                                                          \
  "compression=kLZ4Compression;compaction_style=kCompactionStyleLevel;"                       \
  "write_buffer_size=16777216;max_write_buffer_number=64;min_write_buffer_number_to_merge=6;" \
  "max_total_wal_size=1073741824;ttl=21600;max_background_jobs=4;"                            \
  "level0_file_num_compaction_trigger=8;max_bytes_for_level_base=1073741824;"                 \
  "max_bytes_for_level_multiplier=8;compaction_readahead_size=2097152;"
#define CEPH_OPTIONS_L_P "min_write_buffer_number_to_merge=32"

int rocksdb_failed(char *err, const char *what, struct fail *f) {
  if (!err)
    return 0;
  fail_set(f, "%s: %s", what, err);
  rocksdb_free(err);
  return -1;
}

int ceph_options_init(struct ceph_options *o, const char *db_options, bool env, struct fail *f) {
  char text[1024], *err = NULL;
  snprintf(text, sizeof(text), "%slisteners=%s;%s%s", CEPH_OPTIONS, ACCOUNTING_ID, db_options,
           env ? "env=" ACCOUNTING_ID : "");
  rocksdb_options_t *plain = rocksdb_options_create();
  o->db = rocksdb_options_create();
  rocksdb_get_options_from_string(plain, text, o->db, &err);
  rocksdb_options_set_create_if_missing(o->db, 1);
  rocksdb_options_set_create_missing_column_families(o->db, 1);
  for (int i = 0; i < TRACE_CFS; i++) {
    bool late = strcmp(trace_cf_names[i], "L") == 0 || strcmp(trace_cf_names[i], "P") == 0;
    o->cf[i] = rocksdb_options_create();
    if (!err)
      rocksdb_get_options_from_string(o->db, late ? CEPH_OPTIONS_L_P : "", o->cf[i], &err);
  }
  rocksdb_options_destroy(plain);
  if (rocksdb_failed(err, "options", f) == 0)
    return 0;
  ceph_options_free(o);
  return -1;
}

void ceph_options_free(struct ceph_options *o) {
  rocksdb_options_destroy(o->db);
  for (int i = 0; i < TRACE_CFS; i++)
    rocksdb_options_destroy(o->cf[i]);
}

static uint64_t property(struct bench_db *db, int cf, const char *name) {
  uint64_t v = 0;
  rocksdb_property_int_cf(db->base, db->cf[cf], name, &v);
  return v;
}

static bool busy(struct bench_db *db) {
  bool b = property(db, 0, "rocksdb.num-running-flushes") > 0 ||
           property(db, 0, "rocksdb.num-running-compactions") > 0;
  for (int i = 0; i < TRACE_CFS && !b; i++)
    b = property(db, i, "rocksdb.mem-table-flush-pending") > 0 ||
        property(db, i, "rocksdb.compaction-pending") > 0;
  return b;
}

int rocksdb_wait_idle(struct bench_db *db, struct fail *f) {
  /* Between one job's end and the next one's start nothing runs for a moment: ask twice. */
  for (int quiet = 0; quiet < 2; quiet++) {
    if (property(db, 0, "rocksdb.background-errors") > 0)
      return fail_set(f, "RocksDB reports a background error (see its LOG file)");
    if (busy(db))
      quiet = -1;
    usleep(2000);
  }
  return 0;
}

int64_t file_allocated(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 ? (int64_t)st.st_blocks * 512 : -1;
}

/* ---------------------------------------------------------------------------------------------- */

static int rdb_open(struct bench_db *db, const char *dir, struct fail *f) {
  struct ceph_options o;
  if (ceph_options_init(&o, db->mode->db_options, true, f) != 0)
    return -1;
  char *err = NULL;
  db->base = rocksdb_open_column_families(o.db, dir, TRACE_CFS, trace_cf_names,
                                          (const rocksdb_options_t *const *)o.cf, db->cf, &err);
  ceph_options_free(&o);
  return rocksdb_failed(err, "open", f);
}

static int rdb_write(struct bench_db *db, const rocksdb_writeoptions_t *o,
                     rocksdb_writebatch_t *batch, struct fail *f) {
  char *err = NULL;
  rocksdb_write(db->base, o, batch, &err);
  return rocksdb_failed(err, "write", f);
}

static int rdb_flush(struct bench_db *db, struct fail *f) {
  char *err = NULL;
  rocksdb_flushoptions_t *o = rocksdb_flushoptions_create();
  rocksdb_flushoptions_set_wait(o, 1);
  for (int i = 0; i < TRACE_CFS && !err; i++)
    rocksdb_flush_cf(db->base, o, db->cf[i], &err);
  rocksdb_flushoptions_destroy(o);
  return rocksdb_failed(err, "flush", f);
}

static int rdb_scan(struct bench_db *db, scan_fn fn, void *arg, struct fail *f) {
  int rc = 0;
  rocksdb_readoptions_t *o = rocksdb_readoptions_create();
  rocksdb_iterator_t *it = rocksdb_create_iterator_cf(db->base, o, db->cf[TRACE_CF_P]);
  for (rocksdb_iter_seek_to_first(it); rc == 0 && rocksdb_iter_valid(it); rocksdb_iter_next(it)) {
    size_t klen, vlen;
    const char *k = rocksdb_iter_key(it, &klen), *v = rocksdb_iter_value(it, &vlen);
    rc = fn(arg, bytes_make(k, klen), bytes_make(v, vlen), f);
  }
  char *err = NULL;
  rocksdb_iter_get_error(it, &err);
  if (err)
    rc = rocksdb_failed(err, "scan", f);
  rocksdb_iter_destroy(it);
  rocksdb_readoptions_destroy(o);
  return rc;
}

static int rdb_space(struct bench_db *db, const char *dir, struct space *s, struct fail *f) {
  const rocksdb_livefiles_t *files = rocksdb_livefiles(db->base);
  int rc = 0;
  s->live = s->file = 0;
  for (int i = 0; rc == 0 && i < rocksdb_livefiles_count(files); i++) {
    char path[4096];
    if (strcmp(rocksdb_livefiles_column_family_name(files, i), trace_cf_names[TRACE_CF_P]) != 0)
      continue;
    snprintf(path, sizeof(path), "%s%s", dir, rocksdb_livefiles_name(files, i));
    int64_t allocated = file_allocated(path);
    if (allocated < 0)
      rc = fail_set(f, "%s: cannot be looked at", path);
    s->live += rocksdb_livefiles_size(files, i);
    s->file += (uint64_t)allocated;
  }
  rocksdb_livefiles_destroy(files);
  return rc;
}

static int rdb_stats(struct bench_db *db, struct store_stats *s, struct fail *f) {
  (void)db;
  (void)f;
  memset(s, 0, sizeof(*s));
  return 0;
}

static void rdb_close(struct bench_db *db) {
  for (int i = 0; i < TRACE_CFS; i++)
    rocksdb_column_family_handle_destroy(db->cf[i]);
  rocksdb_close(db->base);
  db->base = NULL;
}

const struct engine engine_rocksdb = {
    .open = rdb_open,
    .write = rdb_write,
    .flush = rdb_flush,
    .scan = rdb_scan,
    .space = rdb_space,
    .stats = rdb_stats,
    .close = rdb_close,
};
