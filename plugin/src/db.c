/* SPDX-License-Identifier: Apache-2.0
 *
 * db.c - the facade's writes, column families, flushes and properties. Opening is in db_open.c,
 * reading in db_read.c and db_iter.c.
 */
#include <inttypes.h>
#include <stdio.h>

#include "db_internal.h"


void db_error(char **errptr, const struct pglog_error *e) {
  free(*errptr);
  if (asprintf(errptr, "%s: %s", pglog_status_str(e->code), e->text) < 0)
    *errptr = strdup(pglog_status_str(e->code));
}

rocksdb_t *pglog_db_base(pglog_db_t *db) {
  return db->db;
}

/* ---------------------------------------------------------------------------------------------- */
/* Known column families                                                                          */

struct cf_info *cfs_find(pglog_db_t *db, uint32_t id) {
  /* Acquire: the members of a set are copied before it is published. */
  struct cf_set *s = atomic_load_explicit(&db->cfs, memory_order_acquire);
  if (!s || id >= s->n)
    return NULL;
  /* Acquire: the comparator is stored before the flags. */
  return atomic_load_explicit(&s->cf[id].flags, memory_order_acquire) ? &s->cf[id] : NULL;
}

static void cf_set_one(struct cf_info *cf, unsigned flags, const void *comparator) {
  atomic_store_explicit(&cf->comparator, comparator, memory_order_relaxed);
  atomic_store_explicit(&cf->flags, flags, memory_order_release); /* see cfs_find() */
}

/* A set with room for `id`, published in place of the present one. cf_mutex held. */
static struct cf_set *cfs_grow(pglog_db_t *db, uint32_t id) {
  struct cf_set *s = atomic_load_explicit(&db->cfs, memory_order_relaxed);
  if (s && id < s->n)
    return s;
  uint32_t n = id < 16 ? 32 : 2 * id;
  struct cf_set *larger = calloc(1, sizeof *larger + n * sizeof larger->cf[0]);
  if (!larger)
    return NULL;
  larger->older = s;
  larger->n = n;
  for (uint32_t i = 0; s && i < s->n; i++)
    cf_set_one(&larger->cf[i], atomic_load_explicit(&s->cf[i].flags, memory_order_relaxed),
               atomic_load_explicit(&s->cf[i].comparator, memory_order_relaxed));
  atomic_store_explicit(&db->cfs, larger, memory_order_release); /* see cfs_find() */
  return larger;
}

int cfs_add(pglog_db_t *db, uint32_t id, const rocksdb_options_t *o) {
  const void *comparator;
  unsigned flags = CF_KNOWN | capi_options_family(o, &comparator);
  pthread_mutex_lock(&db->cf_mutex);
  struct cf_set *s = cfs_grow(db, id);
  if (s)
    cf_set_one(&s->cf[id], flags, comparator);
  pthread_mutex_unlock(&db->cf_mutex);
  return s ? 0 : PGLOG_ENOMEM;
}

void cfs_remove(pglog_db_t *db, uint32_t id) {
  pthread_mutex_lock(&db->cf_mutex);
  struct cf_set *s = atomic_load_explicit(&db->cfs, memory_order_relaxed);
  if (s && id < s->n)
    atomic_store_explicit(&s->cf[id].flags, 0, memory_order_relaxed);
  pthread_mutex_unlock(&db->cf_mutex);
}

void cfs_free(pglog_db_t *db) {
  struct cf_set *s = atomic_load_explicit(&db->cfs, memory_order_relaxed);
  while (s) {
    struct cf_set *older = s->older;
    free(s);
    s = older;
  }
}

/* ---------------------------------------------------------------------------------------------- */
/* Writing                                                                                        */

static int record_refuse(struct pglog_error *err, int code, const struct batch_record *r,
                         uint32_t n, const char *why) {
  char key[128];
  return error_set(err, code, "record %" PRIu32 " of the batch (%s, key %s): %s", n,
                   batch_op_str(r->op), key_print(key, sizeof key, r->key), why);
}

static int range_check(const struct batch_record *r, uint32_t n, struct cf_info *cf, unsigned flags,
                       struct pglog_error *err) {
  const void *comparator = atomic_load_explicit(&cf->comparator, memory_order_relaxed);
  if (!(flags & CAPI_DELETE_RANGE))
    return record_refuse(err, PGLOG_ENOTSUP, r, n,
                         "the table format of its column family has no range deletes");
  return capi_compare(comparator, r->key, r->value) > 0
             ? record_refuse(err, PGLOG_EINVAL, r, n, "its start is behind its end")
             : 0;
}

/* Check record `n` (from 1): what RocksDB would refuse when it is in the WAL already stops the
 * database. */
static int record_check(pglog_db_t *db, const struct batch_record *r, uint32_t n,
                        bool ignore_missing, struct pglog_error *err) {
  if (r->op == BATCH_NOOP)
    return 0;
  if (r->op == BATCH_XA)
    return record_refuse(err, PGLOG_ENOTSUP, r, n, "two-phase commit is not supported");
  if (r->op == BATCH_TIMED_PUT)
    return record_refuse(err, PGLOG_ENOTSUP, r, n, "RocksDB 7.8 does not know such records");
  if (r->op == BATCH_LOG_DATA)
    return blob_is(r->value) ? record_refuse(err, PGLOG_ENOTSUP, r, n,
                                             "LogData that begins like one of the log store's")
                             : 0;
  if (db->guard && r->cf == db->guard_id)
    return record_refuse(err, PGLOG_ENOTSUP, r, n,
                         "column family " PGLOG_GUARD_CF " belongs to the facade");
  struct cf_info *cf = cfs_find(db, r->cf);
  if (!cf) {
    char why[64];
    snprintf(why, sizeof why, "unknown column family id %" PRIu32, r->cf);
    return ignore_missing ? 0 : record_refuse(err, PGLOG_EINVAL, r, n, why);
  }
  if (r->op != BATCH_DELETE_RANGE && r->op != BATCH_MERGE)
    return 0;
  unsigned flags = atomic_load_explicit(&cf->flags, memory_order_relaxed);
  if (r->op == BATCH_DELETE_RANGE)
    return range_check(r, n, cf, flags, err);
  return flags & CAPI_MERGE || batch_record_matches(&db->rule, r)
             ? 0 /* one on a pg log key is refused by the split */
             : record_refuse(err, PGLOG_EINVAL, r, n, "its column family has no merge operator");
}

/* A write on its way through batch_split(). */
struct writing {
  pglog_db_t *db;
  bool ignore_missing;
  uint8_t tag; /* of its blob */
};

static int check_hook(void *arg, const struct batch_record *r, uint32_t n,
                      struct pglog_error *err) {
  const struct writing *w = arg;
  return record_check(w->db, r, n, w->ignore_missing, err);
}

static void stamp_hook(void *arg, uint64_t *number, uint8_t *tag) {
  struct writing *w = arg;
  *number = store_blobs_observed(w->db->store);
  *tag = w->tag = store_next_tag(w->db->store);
}

/* While the store has no room, writes of pg log keys wait here. */
static int write_throttle(pglog_db_t *db, struct slice batch, struct pglog_error *err) {
  if (!store_throttles(db->store) || batch.size < BATCH_HEADER)
    return 0;
  const uint8_t *p = batch.data + BATCH_HEADER, *end = batch.data + batch.size;
  bool any = false, trims = true;
  struct batch_record r;
  while (p < end && batch_next(batch.data, &p, end, &r, NULL) == 0)
    if (batch_record_matches(&db->rule, &r)) {
      any = true;
      trims = trims && r.op != BATCH_PUT;
    }
  return any ? store_throttle(db->store, trims, err) : 0;
}

/* Check a batch and write it, without the rule's keys if it holds any. */
static int write_batch(pglog_db_t *db, const rocksdb_writeoptions_t *wo,
                       rocksdb_writebatch_t *batch, char **failed, struct pglog_error *err) {
  /* The getters lack the const. */
  bool ignore =
      rocksdb_writeoptions_get_ignore_missing_column_families((rocksdb_writeoptions_t *)wo);
  struct writing w = {.db = db, .ignore_missing = ignore};
  struct batch_hooks hooks = {.arg = &w, .check = check_hook, .stamp = stamp_hook};
  struct capi_scratch *scratch = capi_scratch();
  struct slice bytes;
  bool split;
  bytes.data = (const uint8_t *)rocksdb_writebatch_data(batch, &bytes.size);
  int rc = write_throttle(db, bytes, err);
  if (rc == 0)
    rc = batch_split(&db->rule, bytes, &hooks, &scratch->blob, &scratch->out, &split, err);
  if (rc)
    return rc;
  if (!split) {
    rocksdb_write(db->db, wo, batch, failed);
    if (!*failed)
      wals_written(db, bytes.size);
    return 0;
  }
  size_t size = scratch->out.size;
  bool only_blob = batch_count(slice_make(scratch->out.data, size)) == 0;
  capi_scratch_write(db->db, wo, failed);
  if (!*failed) {
    store_written(db->store, w.tag, only_blob);
    wals_written(db, size);
  }
  return 0;
}

void pglog_db_write(pglog_db_t *db, const rocksdb_writeoptions_t *options,
                    rocksdb_writebatch_t *batch, char **errptr) {
  struct pglog_error err;
  char *failed = NULL;
  int rc = 0;
  if (rocksdb_writeoptions_get_disable_WAL((rocksdb_writeoptions_t *)options))
    rc = error_set(&err, PGLOG_ENOTSUP,
                   "write option disableWAL=true is not supported: the WAL is the pg log");
  else if (capi_batch_has_wal_end(batch))
    rc = error_set(
        &err, PGLOG_ENOTSUP,
        "batch with a WAL termination point is not supported: data and pg log would part");
  if (rc == 0)
    rc = write_batch(db, options, batch, &failed, &err);
  capi_scratch_trim();
  if (rc)
    db_error(errptr, &err);
  if (failed) {
    free(*errptr);
    *errptr = failed;
  }
}

/* RocksDB's C API drops a record that is too large in silence: refuse it before. */
static bool sizes_fit(size_t keylen, size_t vallen, char **errptr) {
  struct pglog_error err;
  bool key = keylen > UINT32_MAX;
  if (!key && vallen <= UINT32_MAX)
    return true;
  error_set(&err, PGLOG_ETOOBIG, "%s of %zu bytes, the limit is %" PRIu32 " bytes",
            key ? "key" : "value", key ? keylen : vallen, UINT32_MAX);
  db_error(errptr, &err);
  return false;
}

static void write_and_destroy(pglog_db_t *db, const rocksdb_writeoptions_t *options,
                              rocksdb_writebatch_t *batch, char **errptr) {
  pglog_db_write(db, options, batch, errptr);
  rocksdb_writebatch_destroy(batch);
}

void pglog_db_put_cf(pglog_db_t *db, const rocksdb_writeoptions_t *options,
                     rocksdb_column_family_handle_t *cf, const char *key, size_t keylen,
                     const char *val, size_t vallen, char **errptr) {
  if (!sizes_fit(keylen, vallen, errptr))
    return;
  rocksdb_writebatch_t *b = rocksdb_writebatch_create();
  if (cf)
    rocksdb_writebatch_put_cf(b, cf, key, keylen, val, vallen);
  else
    rocksdb_writebatch_put(b, key, keylen, val, vallen);
  write_and_destroy(db, options, b, errptr);
}

void pglog_db_put(pglog_db_t *db, const rocksdb_writeoptions_t *options, const char *key,
                  size_t keylen, const char *val, size_t vallen, char **errptr) {
  pglog_db_put_cf(db, options, NULL, key, keylen, val, vallen, errptr);
}

void pglog_db_delete_cf(pglog_db_t *db, const rocksdb_writeoptions_t *options,
                        rocksdb_column_family_handle_t *cf, const char *key, size_t keylen,
                        char **errptr) {
  if (!sizes_fit(keylen, 0, errptr))
    return;
  rocksdb_writebatch_t *b = rocksdb_writebatch_create();
  if (cf)
    rocksdb_writebatch_delete_cf(b, cf, key, keylen);
  else
    rocksdb_writebatch_delete(b, key, keylen);
  write_and_destroy(db, options, b, errptr);
}

void pglog_db_delete(pglog_db_t *db, const rocksdb_writeoptions_t *options, const char *key,
                     size_t keylen, char **errptr) {
  pglog_db_delete_cf(db, options, NULL, key, keylen, errptr);
}

void pglog_db_singledelete_cf(pglog_db_t *db, const rocksdb_writeoptions_t *options,
                              rocksdb_column_family_handle_t *cf, const char *key, size_t keylen,
                              char **errptr) {
  if (!sizes_fit(keylen, 0, errptr))
    return;
  rocksdb_writebatch_t *b = rocksdb_writebatch_create();
  if (cf)
    rocksdb_writebatch_singledelete_cf(b, cf, key, keylen);
  else
    rocksdb_writebatch_singledelete(b, key, keylen);
  write_and_destroy(db, options, b, errptr);
}

void pglog_db_delete_range_cf(pglog_db_t *db, const rocksdb_writeoptions_t *options,
                              rocksdb_column_family_handle_t *cf, const char *start_key,
                              size_t start_key_len, const char *end_key, size_t end_key_len,
                              char **errptr) {
  if (start_key_len == end_key_len && memcmp(start_key, end_key, end_key_len) == 0)
    return;
  if (!sizes_fit(start_key_len, 0, errptr) || !sizes_fit(end_key_len, 0, errptr))
    return;
  rocksdb_writebatch_t *b = rocksdb_writebatch_create();
  if (cf)
    rocksdb_writebatch_delete_range_cf(b, cf, start_key, start_key_len, end_key, end_key_len);
  else
    rocksdb_writebatch_delete_range(b, start_key, start_key_len, end_key, end_key_len);
  write_and_destroy(db, options, b, errptr);
}

/* ---------------------------------------------------------------------------------------------- */
/* Column families                                                                                */

rocksdb_column_family_handle_t *pglog_db_create_column_family(pglog_db_t *db,
                                                              const rocksdb_options_t *options,
                                                              const char *name, char **errptr) {
  struct pglog_error err;
  int rc = capi_options_check_cf(options, name, &err);
  if (rc == 0 && strcmp(name, PGLOG_GUARD_CF) == 0)
    rc = error_set(&err, PGLOG_ENOTSUP, "column family %s belongs to the facade", name);
  if (rc) {
    db_error(errptr, &err);
    return NULL;
  }
  char *failed = NULL;
  rocksdb_column_family_handle_t *cf = rocksdb_create_column_family(db->db, options, name, &failed);
  if (!failed && cfs_add(db, db_cf_id(cf), options) != 0)
    failed = strdup(pglog_status_str(PGLOG_ENOMEM));
  if (failed) {
    free(*errptr);
    *errptr = failed;
    rocksdb_column_family_handle_destroy(cf); /* holds NULL if it was not created */
    return NULL;
  }
  pthread_mutex_lock(&db->cf_mutex);
  db->memtable_bytes += capi_options_memtable_bytes(options);
  pthread_mutex_unlock(&db->cf_mutex);
  wals_limit_changed(db);
  return cf;
}

void pglog_db_drop_column_family(pglog_db_t *db, rocksdb_column_family_handle_t *cf,
                                 char **errptr) {
  struct pglog_error err;
  uint32_t id = db_cf_id(cf);
  const char *whose = NULL;
  if (id == db->rule.cf_id)
    whose = "holds the pg log keys";
  else if (db->guard && id == db->guard_id)
    whose = "is the guard";
  if (whose) {
    size_t n;
    char *name = rocksdb_column_family_handle_get_name(cf, &n);
    error_set(&err, PGLOG_ENOTSUP, "column family %.*s cannot be dropped: it %s", (int)n, name,
              whose);
    free(name);
    db_error(errptr, &err);
    return;
  }
  char *failed = NULL;
  rocksdb_drop_column_family(db->db, cf, &failed);
  if (!failed) {
    cfs_remove(db, id);
    return;
  }
  free(*errptr);
  *errptr = failed;
}

char **pglog_db_list_column_families(const rocksdb_options_t *options, const char *name,
                                     size_t *lencf, char **errptr) {
  size_t n = 0, kept = 0;
  char **list = rocksdb_list_column_families(options, name, &n, errptr);
  for (size_t i = 0; i < n; i++) {
    if (strcmp(list[i], PGLOG_GUARD_CF) == 0)
      free(list[i]);
    else
      list[kept++] = list[i];
  }
  *lencf = kept;
  return list;
}

/* ---------------------------------------------------------------------------------------------- */
/* Flushes, check points, properties                                                              */

void pglog_db_flush(pglog_db_t *db, const rocksdb_flushoptions_t *options,
                    rocksdb_column_family_handle_t *cf, char **errptr) {
  char *failed = NULL;
  if (cf)
    rocksdb_flush_cf(db->db, options, cf, &failed);
  else
    capi_flush_all(db->db, &failed);
  if (!failed) {
    pglog_db_checkpoint_log(db, errptr);
    return;
  }
  free(*errptr);
  *errptr = failed;
}

void pglog_db_compact_range_cf(pglog_db_t *db, rocksdb_column_family_handle_t *cf,
                               const char *start_key, size_t start_key_len, const char *limit_key,
                               size_t limit_key_len) {
  if (cf)
    rocksdb_compact_range_cf(db->db, cf, start_key, start_key_len, limit_key, limit_key_len);
  else
    rocksdb_compact_range(db->db, start_key, start_key_len, limit_key, limit_key_len);
}

void pglog_db_checkpoint_log(pglog_db_t *db, char **errptr) {
  struct pglog_error err;
  if (store_checkpoint(db->store, &err) != 0)
    db_error(errptr, &err);
}

uint64_t pglog_db_latest_sequence_number(pglog_db_t *db) {
  return rocksdb_get_latest_sequence_number(db->db);
}

static char *stats_property(pglog_db_t *db) {
  size_t cap = 16384;
  for (;;) {
    char *text = malloc(cap);
    if (!text)
      return NULL;
    size_t n = store_stats(db->store, text, cap);
    n += (size_t)snprintf(n < cap ? text + n : NULL, n < cap ? cap - n : 0,
                          "wal_retirements_forced %" PRIuFAST64 "\n",
                          atomic_load_explicit(&db->wals_forced, memory_order_relaxed));
    if (n < cap)
      return text;
    free(text);
    cap = n + 1024; /* figures may grow meanwhile */
  }
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  c |= 0x20;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The PG id that `text` names, into `id` (room for `cap`). Returns its length, or 0. */
static size_t pgid_parse(const struct pglog_rule *rule, const char *text, uint8_t *id, size_t cap) {
  size_t len = strlen(text), n = 0;
  if (len > 2 && text[0] == '0' && text[1] == 'x' && len % 2 == 0) {
    for (size_t i = 2; i < len && n < cap; i += 2) {
      int hi = hex_digit(text[i]), lo = hex_digit(text[i + 1]);
      if (hi < 0 || lo < 0)
        return 0;
      id[n++] = (uint8_t)(hi << 4 | lo);
    }
  } else {
    n = len < cap ? len : cap;
    memcpy(id, text, n);
  }
  if (rule->pgid_kind == PGLOG_PGID_UNTIL && n < cap && (n == 0 || id[n - 1] != rule->pgid_arg))
    id[n++] = (uint8_t)rule->pgid_arg;
  return n;
}

static char *pg_property(pglog_db_t *db, const char *text) {
  uint8_t id[PGLOG_KEY_MAX];
  size_t n = pgid_parse(db->rule.rule, text, id, sizeof id);
  char out[4096];
  struct pglog_error err;
  if (n == 0 || store_pg_stats(db->store, slice_make(id, n), out, sizeof out, &err) != 0)
    return NULL;
  return strdup(out);
}

char *pglog_db_property_value_cf(pglog_db_t *db, rocksdb_column_family_handle_t *cf,
                                 const char *propname) {
  if (strcmp(propname, "pglog.stats") == 0)
    return stats_property(db);
  if (strncmp(propname, "pglog.pg.", 9) == 0)
    return pg_property(db, propname + 9);
  return cf ? rocksdb_property_value_cf(db->db, cf, propname)
            : rocksdb_property_value(db->db, propname);
}

char *pglog_db_property_value(pglog_db_t *db, const char *propname) {
  return pglog_db_property_value_cf(db, NULL, propname);
}
