/* SPDX-License-Identifier: Apache-2.0
 *
 * db_read.c - single keys and many keys at one sequence.
 */
#include "db_internal.h"

enum db_side db_side(const pglog_db_t *db, struct slice key, struct slice *store_key) {
  const struct pglog_rule *r = db->rule.rule;
  if (rule_has_prefix(r, key)) {
    *store_key = rule_store_key(r, key);
    return DB_INSIDE;
  }
  return slice_cmp(key, slice_make(r->prefix, r->prefix_len)) < 0 ? DB_BEFORE : DB_BEHIND;
}

/* ---------------------------------------------------------------------------------------------- */
/* View and snapshot of one sequence                                                              */

struct pin {
  rocksdb_t *db;
  const rocksdb_snapshot_t *snapshot;
  bool refused;
};

static uint64_t pin_snapshot(void *arg) {
  struct pin *pin = arg;
  uint64_t sequence = 0;
  pin->snapshot = rocksdb_create_snapshot(pin->db);
  pin->refused = !capi_snapshot_sequence(pin->snapshot, &sequence);
  return sequence;
}

int db_pin(pglog_db_t *db, struct store_view **view, const rocksdb_snapshot_t **snapshot,
           struct pglog_error *err) {
  struct pin pin = {.db = db->db};
  int rc = store_view_open(db->store, pin_snapshot, &pin, view, err);
  if (rc == 0 && pin.refused) {
    store_view_close(*view);
    rc = error_set(err, PGLOG_ENOTSUP, "RocksDB refuses snapshots (inplace_update_support)");
  }
  if (rc == 0) {
    *snapshot = pin.snapshot;
  } else if (pin.snapshot) {
    rocksdb_release_snapshot(db->db, pin.snapshot);
  }
  return rc;
}

/* ---------------------------------------------------------------------------------------------- */
/* One key                                                                                        */

static int snapshot_refuse(struct slice key, struct pglog_error *err) {
  char text[128];
  return error_set(err, PGLOG_ENOTSUP, "read option snapshot is not supported for pg log key %s",
                   key_print(text, sizeof text, key));
}

/* Value of a pg log key: malloc'ed, never NULL on success. PGLOG_ENOTFOUND. */
static int pglog_get(pglog_db_t *db, const rocksdb_readoptions_t *options, struct slice key,
                     char **value, size_t *size, struct pglog_error *err) {
  if (capi_ro_has_snapshot(options))
    return snapshot_refuse(key, err);
  uint8_t *v = NULL;
  int rc = store_get(db->store, NULL, rule_store_key(db->rule.rule, key), &v, size, err);
  if (rc == 0 && !v && !(v = malloc(1)))
    rc = error_set(err, PGLOG_ENOMEM, "value of %zu bytes", *size);
  *value = (char *)v;
  return rc;
}

char *pglog_db_get_cf(pglog_db_t *db, const rocksdb_readoptions_t *options,
                      rocksdb_column_family_handle_t *cf, const char *key, size_t keylen,
                      size_t *vallen, char **errptr) {
  struct slice k = slice_make(key, keylen);
  if (!db_is_pglog(db, db_cf_id(cf), k))
    return cf ? rocksdb_get_cf(db->db, options, cf, key, keylen, vallen, errptr)
              : rocksdb_get(db->db, options, key, keylen, vallen, errptr);
  struct pglog_error err;
  char *value;
  int rc = pglog_get(db, options, k, &value, vallen, &err);
  if (rc == 0)
    return value;
  *vallen = 0;
  if (rc != PGLOG_ENOTFOUND)
    db_error(errptr, &err);
  return NULL;
}

char *pglog_db_get(pglog_db_t *db, const rocksdb_readoptions_t *options, const char *key,
                   size_t keylen, size_t *vallen, char **errptr) {
  return pglog_db_get_cf(db, options, NULL, key, keylen, vallen, errptr);
}

struct pglog_pinnable_t {
  rocksdb_pinnableslice_t *pinned; /* RocksDB's, or NULL */
  char *copy;                      /* the store's */
  size_t size;
};

pglog_pinnable_t *pglog_db_get_pinned_cf(pglog_db_t *db, const rocksdb_readoptions_t *options,
                                         rocksdb_column_family_handle_t *cf, const char *key,
                                         size_t keylen, char **errptr) {
  pglog_pinnable_t p = {0};
  struct slice k = slice_make(key, keylen);
  if (db_is_pglog(db, db_cf_id(cf), k)) {
    struct pglog_error err;
    int rc = pglog_get(db, options, k, &p.copy, &p.size, &err);
    if (rc != 0) {
      if (rc != PGLOG_ENOTFOUND)
        db_error(errptr, &err);
      return NULL;
    }
  } else {
    p.pinned = cf ? rocksdb_get_pinned_cf(db->db, options, cf, key, keylen, errptr)
                  : rocksdb_get_pinned(db->db, options, key, keylen, errptr);
    if (!p.pinned)
      return NULL;
  }
  pglog_pinnable_t *out = malloc(sizeof *out);
  if (!out) {
    rocksdb_pinnableslice_destroy(p.pinned);
    free(p.copy);
    db_error(errptr, &(struct pglog_error){.code = PGLOG_ENOMEM, .text = "pinned value"});
    return NULL;
  }
  *out = p;
  return out;
}

pglog_pinnable_t *pglog_db_get_pinned(pglog_db_t *db, const rocksdb_readoptions_t *options,
                                      const char *key, size_t keylen, char **errptr) {
  return pglog_db_get_pinned_cf(db, options, NULL, key, keylen, errptr);
}

const char *pglog_pinnable_value(const pglog_pinnable_t *p, size_t *vallen) {
  if (!p) {
    *vallen = 0;
    return NULL;
  }
  if (p->pinned)
    return rocksdb_pinnableslice_value(p->pinned, vallen);
  *vallen = p->size;
  return p->copy;
}

void pglog_pinnable_destroy(pglog_pinnable_t *p) {
  if (!p)
    return;
  if (p->pinned)
    rocksdb_pinnableslice_destroy(p->pinned);
  free(p->copy);
  free(p);
}

/* ---------------------------------------------------------------------------------------------- */
/* Many keys                                                                                      */

/* One multi_get: the caller's arrays, and those of the keys that are RocksDB's. */
struct multi {
  pglog_db_t *db;
  const rocksdb_readoptions_t *options;
  const rocksdb_column_family_handle_t *const *cfs;
  size_t n;
  const char *const *keys;
  const size_t *key_sizes;
  char **values;
  size_t *value_sizes;
  char **errs;
};

static bool multi_is_pglog(const struct multi *m, size_t i) {
  rocksdb_column_family_handle_t *cf =
      m->cfs ? (rocksdb_column_family_handle_t *)m->cfs[i] : NULL; /* the getter lacks the const */
  return db_is_pglog(m->db, db_cf_id(cf), slice_make(m->keys[i], m->key_sizes[i]));
}

static void multi_fail(struct multi *m, size_t i, const struct pglog_error *err) {
  m->values[i] = NULL;
  m->value_sizes[i] = 0;
  m->errs[i] = NULL;
  if (err)
    db_error(&m->errs[i], err);
}

/* RocksDB's keys among them, at `snapshot` or as the options say. */
static int multi_plain(struct multi *m, const rocksdb_snapshot_t *snapshot, size_t n_plain,
                       struct pglog_error *err) {
  size_t each = sizeof *m->cfs + sizeof *m->keys + sizeof *m->values + sizeof *m->errs +
                2 * sizeof(size_t) + sizeof(size_t);
  void *mem = malloc(n_plain * each);
  if (!mem)
    return error_set(err, PGLOG_ENOMEM, "multi_get of %zu keys", m->n);
  size_t *index = mem, *key_sizes = index + n_plain, *value_sizes = key_sizes + n_plain;
  const char **keys = (const char **)(value_sizes + n_plain);
  char **values = (char **)(keys + n_plain), **errs = values + n_plain;
  const rocksdb_column_family_handle_t **cfs =
      (const rocksdb_column_family_handle_t **)(errs + n_plain);
  size_t k = 0;
  for (size_t i = 0; i < m->n; i++) {
    if (multi_is_pglog(m, i))
      continue;
    index[k] = i;
    keys[k] = m->keys[i];
    key_sizes[k] = m->key_sizes[i];
    if (m->cfs)
      cfs[k] = m->cfs[i];
    k++;
  }
  capi_multi_get(m->db->db, m->options, snapshot, m->cfs ? cfs : NULL, n_plain, keys, key_sizes,
                 values, value_sizes, errs);
  for (size_t i = 0; i < n_plain; i++) {
    m->values[index[i]] = values[i];
    m->value_sizes[index[i]] = value_sizes[i];
    m->errs[index[i]] = errs[i];
  }
  free(mem);
  return 0;
}

/* The pg log keys among them, at `view`. */
static void multi_pglog(struct multi *m, struct store_view *view) {
  for (size_t i = 0; i < m->n; i++) {
    if (!multi_is_pglog(m, i))
      continue;
    struct slice key = slice_make(m->keys[i], m->key_sizes[i]);
    struct pglog_error err;
    uint8_t *value = NULL;
    size_t size = 0;
    int rc =
        store_get(m->db->store, view, rule_store_key(m->db->rule.rule, key), &value, &size, &err);
    multi_fail(m, i, rc == 0 || rc == PGLOG_ENOTFOUND ? NULL : &err);
    if (rc == 0) {
      m->values[i] = value ? (char *)value : malloc(1);
      m->value_sizes[i] = size;
    }
  }
}

/* Both kinds, or pg log keys alone (n_plain == 0). */
static int multi_consistent(struct multi *m, size_t n_plain, struct pglog_error *err) {
  struct store_view *view;
  const rocksdb_snapshot_t *snapshot = NULL;
  int rc = n_plain ? db_pin(m->db, &view, &snapshot, err)
                   : store_view_open(m->db->store, NULL, NULL, &view, err);
  if (rc)
    return rc;
  if (n_plain)
    rc = multi_plain(m, snapshot, n_plain, err);
  if (rc == 0)
    multi_pglog(m, view);
  if (snapshot)
    rocksdb_release_snapshot(m->db->db, snapshot);
  store_view_close(view);
  return rc;
}

static void multi_run(struct multi *m) {
  struct pglog_error err;
  size_t n_plain = 0;
  for (size_t i = 0; i < m->n; i++)
    n_plain += !multi_is_pglog(m, i);
  int rc = 0;
  if (n_plain == m->n) {
    rc = m->n ? multi_plain(m, NULL, n_plain, &err) : 0;
  } else if (!capi_ro_has_snapshot(m->options)) {
    rc = multi_consistent(m, n_plain, &err);
  } else {
    rc = n_plain ? multi_plain(m, NULL, n_plain, &err) : 0;
    for (size_t i = 0; rc == 0 && i < m->n; i++) {
      if (multi_is_pglog(m, i)) {
        snapshot_refuse(slice_make(m->keys[i], m->key_sizes[i]), &err);
        multi_fail(m, i, &err);
      }
    }
  }
  for (size_t i = 0; rc != 0 && i < m->n; i++)
    multi_fail(m, i, &err);
}

void pglog_db_multi_get_cf(pglog_db_t *db, const rocksdb_readoptions_t *options,
                           const rocksdb_column_family_handle_t *const *column_families,
                           size_t num_keys, const char *const *keys_list,
                           const size_t *keys_list_sizes, char **values_list,
                           size_t *values_list_sizes, char **errs) {
  struct multi m = {db,          options,           column_families,
                    num_keys,    keys_list,         keys_list_sizes,
                    values_list, values_list_sizes, errs};
  multi_run(&m);
}

void pglog_db_multi_get(pglog_db_t *db, const rocksdb_readoptions_t *options, size_t num_keys,
                        const char *const *keys_list, const size_t *keys_list_sizes,
                        char **values_list, size_t *values_list_sizes, char **errs) {
  pglog_db_multi_get_cf(db, options, NULL, num_keys, keys_list, keys_list_sizes, values_list,
                        values_list_sizes, errs);
}
