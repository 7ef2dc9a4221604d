/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_rocksdb.h"

#include <stdlib.h>
#include <string.h>

#include "pglog/db.h"

#define BLOB_MIN 4096
#define MEMTABLE_BYTES (64u << 20)
#define WAL_BYTES (1024u << 20)

struct rocks {
  pglog_db_t *split; /* or */
  rocksdb_t *plain;
  rocksdb_writeoptions_t *sync, *nosync;
  rocksdb_readoptions_t *read;
};

/* Take over RocksDB's error text. */
static int failed(char *text, struct pglog_error *err) {
  if (!text)
    return 0;
  osd_error(err, PGLOG_EIO, "%s", text);
  rocksdb_free(text);
  return PGLOG_EIO;
}

static int rocks_write(void *arg, const struct kv_batch *b, bool sync, struct pglog_error *err) {
  struct rocks *r = arg;
  char *text = NULL;
  if (b->no_memory)
    return osd_error(err, PGLOG_ENOMEM, "out of memory for a batch of %zu bytes", b->size);
  if (!b->size)
    return 0;
  rocksdb_writebatch_t *w = rocksdb_writebatch_create_from((const char *)b->data, b->size);
  if (r->split)
    pglog_db_write(r->split, sync ? r->sync : r->nosync, w, &text);
  else
    rocksdb_write(r->plain, sync ? r->sync : r->nosync, w, &text);
  rocksdb_writebatch_destroy(w);
  return failed(text, err);
}

static int rocks_get(void *arg, struct osd_slice key, uint8_t **value, size_t *size,
                     struct pglog_error *err) {
  struct rocks *r = arg;
  char *text = NULL, *v;
  const char *k = (const char *)key.data;
  v = r->split ? pglog_db_get(r->split, r->read, k, key.size, size, &text)
               : rocksdb_get(r->plain, r->read, k, key.size, size, &text);
  if (text)
    return failed(text, err);
  *value = (uint8_t *)v;
  return v ? 0 : PGLOG_ENOTFOUND;
}

typedef int (*scan_fn)(void *fn_arg, struct osd_slice key, struct osd_slice value,
                       struct pglog_error *err);

static int scan_split(struct rocks *r, struct osd_slice begin, struct osd_slice end, scan_fn fn,
                      void *fn_arg, struct pglog_error *err) {
  pglog_iterator_t *it = pglog_db_create_iterator(r->split, r->read);
  int rc = 0;
  for (pglog_iter_seek(it, (const char *)begin.data, begin.size); rc == 0 && pglog_iter_valid(it);
       pglog_iter_next(it)) {
    struct osd_slice k, v;
    k.data = (const uint8_t *)pglog_iter_key(it, &k.size);
    v.data = (const uint8_t *)pglog_iter_value(it, &v.size);
    if (osd_slice_cmp(k, end) >= 0)
      break;
    rc = fn(fn_arg, k, v, err);
  }
  char *text = NULL;
  pglog_iter_get_error(it, &text);
  pglog_iter_destroy(it);
  return text ? failed(text, err) : rc;
}

static int scan_plain(struct rocks *r, struct osd_slice begin, struct osd_slice end, scan_fn fn,
                      void *fn_arg, struct pglog_error *err) {
  rocksdb_iterator_t *it = rocksdb_create_iterator(r->plain, r->read);
  int rc = 0;
  for (rocksdb_iter_seek(it, (const char *)begin.data, begin.size);
       rc == 0 && rocksdb_iter_valid(it); rocksdb_iter_next(it)) {
    struct osd_slice k, v;
    k.data = (const uint8_t *)rocksdb_iter_key(it, &k.size);
    v.data = (const uint8_t *)rocksdb_iter_value(it, &v.size);
    if (osd_slice_cmp(k, end) >= 0)
      break;
    rc = fn(fn_arg, k, v, err);
  }
  char *text = NULL;
  rocksdb_iter_get_error(it, &text);
  rocksdb_iter_destroy(it);
  return text ? failed(text, err) : rc;
}

static int rocks_scan(void *arg, struct osd_slice begin, struct osd_slice end, scan_fn fn,
                      void *fn_arg, struct pglog_error *err) {
  struct rocks *r = arg;
  return r->split ? scan_split(r, begin, end, fn, fn_arg, err)
                  : scan_plain(r, begin, end, fn, fn_arg, err);
}

static void rocks_close(void *arg) {
  struct rocks *r = arg;
  if (r->split)
    pglog_db_close(r->split);
  if (r->plain)
    rocksdb_close(r->plain);
  rocksdb_writeoptions_destroy(r->sync);
  rocksdb_writeoptions_destroy(r->nosync);
  rocksdb_readoptions_destroy(r->read);
  free(r);
}

static rocksdb_options_t *options(void) {
  rocksdb_options_t *o = rocksdb_options_create();
  rocksdb_options_set_create_if_missing(o, 1);
  rocksdb_options_set_write_buffer_size(o, MEMTABLE_BYTES);
  rocksdb_options_set_max_total_wal_size(o, WAL_BYTES);
  rocksdb_options_set_compression(o, rocksdb_lz4_compression);
  rocksdb_options_set_enable_blob_files(o, 1);
  rocksdb_options_set_min_blob_size(o, BLOB_MIN);
  rocksdb_options_set_enable_blob_gc(o, 1);
  return o;
}

int kv_rocksdb_open(struct kv *out, const char *path, enum kv_mode mode, struct pglog_error *err) {
  struct rocks *r = calloc(1, sizeof *r);
  if (!r)
    return osd_error(err, PGLOG_ENOMEM, "%s: out of memory", path);
  char *text = NULL;
  rocksdb_options_t *o = options();
  if (mode == KV_SPLIT)
    r->split = pglog_db_open(o, NULL, path, &text);
  else
    r->plain = rocksdb_open(o, path, &text);
  rocksdb_options_destroy(o);
  r->sync = rocksdb_writeoptions_create();
  r->nosync = rocksdb_writeoptions_create();
  r->read = rocksdb_readoptions_create();
  rocksdb_writeoptions_set_sync(r->sync, 1);
  if (text) {
    rocks_close(r);
    return failed(text, err);
  }
  *out = (struct kv){.arg = r,
                     .write = rocks_write,
                     .get = rocks_get,
                     .scan = rocks_scan,
                     .close = rocks_close};
  return 0;
}
