/* SPDX-License-Identifier: Apache-2.0
 *
 * db_iter.c - iterators. Over the rule's column family two children, RocksDB's iterator and the
 * store's, are merged in both directions. Their keys never mix: RocksDB has none inside the rule's
 * range, the store none outside.
 */
#include "db_internal.h"

enum current { CUR_NONE, CUR_ROCKS, CUR_STORE };

struct pglog_iterator_t {
  pglog_db_t *db;
  rocksdb_iterator_t *rocks; /* NULL: the bounds lie inside the rule's range */
  /* Kept as long as `rocks`: RocksDB 7.8 asks it for its sequence whenever it opens another file.
   */
  const rocksdb_snapshot_t *snapshot;
  struct store_view *view;
  struct store_iter *store; /* NULL: the bounds lie outside the rule's range */
  enum current cur;
  bool forward; /* both children stand at or behind the present key; else at or before it */
  bool store_valid;
  bool dead;              /* could not be made: `err` stays */
  struct buf key;         /* the present key, if it is the store's */
  struct buf target;      /* of a seek; the caller's key may be our own */
  struct pglog_error err; /* code 0: none, or RocksDB's */
};

/* Invariant: if not merged (store == NULL and rocks != NULL) `cur` is not used. */
static bool plain(const pglog_iterator_t *it) {
  return it->rocks && !it->store;
}

/* ---------------------------------------------------------------------------------------------- */
/* Making                                                                                         */

/* The part of [lower, upper) that lies in the rule's range, as store keys. False: none. */
static bool store_bounds(const pglog_db_t *db, struct slice *lower, struct slice *upper) {
  struct slice key;
  enum db_side side = lower->data ? db_side(db, *lower, &key) : DB_BEFORE;
  if (side == DB_BEHIND)
    return false;
  *lower = side == DB_INSIDE ? key : slice_make(NULL, 0);
  side = upper->data ? db_side(db, *upper, &key) : DB_BEHIND;
  if (side == DB_BEFORE || (side == DB_INSIDE && key.size == 0))
    return false;
  *upper = side == DB_INSIDE ? key : slice_make(NULL, 0);
  return true;
}

/* Can RocksDB have keys in [lower, upper)? Not if that lies inside the rule's range. */
static bool rocks_bounds(const pglog_db_t *db, struct slice lower, struct slice upper) {
  struct slice key;
  bool from =
      db->rule.rule->prefix_len == 0 || (lower.data && db_side(db, lower, &key) == DB_INSIDE);
  struct slice end = slice_make(db->rule.end, db->rule.end_len);
  bool to = db->rule.end_len == 0 || (upper.data && slice_cmp(upper, end) <= 0);
  return !(from && to);
}

static int check_options(const rocksdb_readoptions_t *options, struct pglog_error *err) {
  rocksdb_readoptions_t *ro = (rocksdb_readoptions_t *)options; /* the getters lack the const */
  const char *name = NULL;
  if (capi_ro_has_snapshot(options))
    name = "snapshot";
  else if (rocksdb_readoptions_get_tailing(ro))
    name = "tailing";
  else if (rocksdb_readoptions_get_prefix_same_as_start(ro))
    name = "prefix_same_as_start";
  if (!name)
    return 0;
  return error_set(
      err, PGLOG_ENOTSUP,
      "read option %s is not supported by iterators over the column family of the pg log "
      "keys",
      name);
}

static int make_merged(pglog_iterator_t *it, const rocksdb_readoptions_t *options,
                       rocksdb_column_family_handle_t *cf, struct pglog_error *err) {
  pglog_db_t *db = it->db;
  struct slice lower = capi_ro_lower(options), upper = capi_ro_upper(options);
  bool need_rocks = rocks_bounds(db, lower, upper);
  int rc = check_options(options, err);
  if (rc)
    return rc;
  if (!store_bounds(db, &lower, &upper)) {
    it->rocks = capi_iter_create(db->db, options, NULL, true, cf);
    return 0;
  }
  rc = need_rocks ? db_pin(db, &it->view, &it->snapshot, err)
                  : store_view_open(db->store, NULL, NULL, &it->view, err);
  if (rc)
    return rc;
  if (need_rocks)
    it->rocks = capi_iter_create(db->db, options, it->snapshot, true, cf);
  return store_iter_open(it->view, lower, upper, &it->store, err);
}

static void release(pglog_iterator_t *it) {
  capi_iter_destroy(it->rocks);
  if (it->snapshot)
    rocksdb_release_snapshot(it->db->db, it->snapshot);
  store_iter_close(it->store);
  store_view_close(it->view);
  it->rocks = NULL;
  it->snapshot = NULL;
  it->store = NULL;
  it->view = NULL;
}

pglog_iterator_t *pglog_db_create_iterator_cf(pglog_db_t *db, const rocksdb_readoptions_t *options,
                                              rocksdb_column_family_handle_t *cf) {
  pglog_iterator_t *it = calloc(1, sizeof *it);
  if (!it)
    return NULL;
  it->db = db;
  if (db_cf_id(cf) != db->rule.cf_id) {
    it->rocks = capi_iter_create(db->db, options, NULL, false, cf);
  } else if (make_merged(it, options, cf, &it->err) != 0) {
    release(it);
    it->dead = true;
  }
  return it;
}

pglog_iterator_t *pglog_db_create_iterator(pglog_db_t *db, const rocksdb_readoptions_t *options) {
  return pglog_db_create_iterator_cf(db, options, NULL);
}

void pglog_iter_destroy(pglog_iterator_t *it) {
  if (!it)
    return;
  release(it);
  buf_free(&it->key);
  buf_free(&it->target);
  free(it);
}

/* ---------------------------------------------------------------------------------------------- */
/* Moving                                                                                         */

static bool rocks_valid(const pglog_iterator_t *it) {
  return it->rocks && rocksdb_iter_valid(it->rocks);
}

static struct slice rocks_key(const pglog_iterator_t *it) {
  size_t n;
  const char *k = rocksdb_iter_key(it->rocks, &n);
  return slice_make(k, n);
}

/* A child that stopped because of an error makes the whole invalid. */
static bool children_ok(pglog_iterator_t *it) {
  if (!it->store_valid && store_iter_status(it->store, &it->err) != 0)
    return false;
  if (it->rocks && !rocksdb_iter_valid(it->rocks)) {
    char *failed = NULL;
    rocksdb_iter_get_error(it->rocks, &failed);
    free(failed);
    return failed == NULL; /* the text is asked for again in pglog_iter_get_error() */
  }
  return true;
}

/* The store's present key with the rule's prefix. */
static int set_key(pglog_iterator_t *it) {
  const struct pglog_rule *rule = it->db->rule.rule;
  struct slice k = store_iter_key(it->store);
  it->key.size = 0;
  int rc = buf_append(&it->key, rule->prefix, rule->prefix_len);
  if (rc == 0)
    rc = buf_append(&it->key, k.data, k.size);
  return rc == 0 ? 0 : error_set(&it->err, rc, "key of %zu bytes", k.size);
}

/* Choose the child that holds the present key, after both were placed. */
static void choose(pglog_iterator_t *it) {
  const struct pglog_rule *rule = it->db->rule.rule;
  bool rocks = rocks_valid(it);
  it->cur = CUR_NONE;
  if (!children_ok(it))
    return;
  if (rocks) {
    struct slice k = rocks_key(it);
    if (rule_has_prefix(rule, k)) {
      char text[128];
      error_set(&it->err, PGLOG_EMISMATCH, "key %s of the rule is in RocksDB itself",
                key_print(text, sizeof text, k));
      return;
    }
    bool before = slice_cmp(k, slice_make(rule->prefix, rule->prefix_len)) < 0;
    if (!it->store_valid || before == it->forward) {
      it->cur = CUR_ROCKS;
      return;
    }
  }
  if (it->store_valid && set_key(it) == 0)
    it->cur = CUR_STORE;
}

/* Place the store's child at the first key >= k, or the last one <= k. */
static void store_place(pglog_iterator_t *it, struct slice k, bool forward) {
  struct slice key;
  enum db_side side = db_side(it->db, k, &key);
  it->store_valid = true;
  if (side == DB_INSIDE && forward)
    store_iter_seek(it->store, key);
  else if (side == DB_INSIDE)
    store_iter_seek_for_prev(it->store, key);
  else if (side == DB_BEFORE && forward)
    store_iter_seek_first(it->store);
  else if (side == DB_BEHIND && !forward)
    store_iter_seek_last(it->store);
  else
    it->store_valid = false;
  it->store_valid = it->store_valid && store_iter_valid(it->store);
}

static void rocks_place(pglog_iterator_t *it, struct slice k, bool forward) {
  if (!it->rocks)
    return;
  if (forward)
    rocksdb_iter_seek(it->rocks, (const char *)k.data, k.size);
  else
    rocksdb_iter_seek_for_prev(it->rocks, (const char *)k.data, k.size);
}

static void seek(pglog_iterator_t *it, const char *k, size_t klen, bool forward) {
  if (it->dead)
    return;
  it->err.code = 0;
  it->target.size = 0;
  int rc = buf_append(&it->target, k, klen);
  if (rc) {
    error_set(&it->err, rc, "key of %zu bytes", klen);
    it->cur = CUR_NONE;
    return;
  }
  struct slice key = slice_make(it->target.data, klen);
  rocks_place(it, key, forward);
  if (plain(it))
    return;
  store_place(it, key, forward);
  it->forward = forward;
  choose(it);
}

void pglog_iter_seek(pglog_iterator_t *it, const char *k, size_t klen) {
  seek(it, k, klen, true);
}

void pglog_iter_seek_for_prev(pglog_iterator_t *it, const char *k, size_t klen) {
  seek(it, k, klen, false);
}

static void seek_end(pglog_iterator_t *it, bool first) {
  if (it->dead)
    return;
  it->err.code = 0;
  if (it->rocks && first)
    rocksdb_iter_seek_to_first(it->rocks);
  else if (it->rocks)
    rocksdb_iter_seek_to_last(it->rocks);
  if (plain(it))
    return;
  if (first)
    store_iter_seek_first(it->store);
  else
    store_iter_seek_last(it->store);
  it->store_valid = store_iter_valid(it->store);
  it->forward = first;
  choose(it);
}

void pglog_iter_seek_to_first(pglog_iterator_t *it) {
  seek_end(it, true);
}
void pglog_iter_seek_to_last(pglog_iterator_t *it) {
  seek_end(it, false);
}

/* The other child to the other side of the present key, which it does not hold. */
static void turn(pglog_iterator_t *it, bool forward) {
  if (it->cur == CUR_ROCKS)
    store_place(it, rocks_key(it), forward);
  else
    rocks_place(it, slice_make(it->key.data, it->key.size), forward);
  it->forward = forward;
}

static void step(pglog_iterator_t *it, bool forward) {
  if (it->dead || (!plain(it) && it->cur == CUR_NONE) || (plain(it) && !rocks_valid(it)))
    return;
  if (!plain(it) && it->forward != forward)
    turn(it, forward);
  if (plain(it) || it->cur == CUR_ROCKS) {
    if (forward)
      rocksdb_iter_next(it->rocks);
    else
      rocksdb_iter_prev(it->rocks);
  } else {
    if (forward)
      store_iter_next(it->store);
    else
      store_iter_prev(it->store);
    it->store_valid = store_iter_valid(it->store);
  }
  if (!plain(it))
    choose(it);
}

void pglog_iter_next(pglog_iterator_t *it) {
  step(it, true);
}
void pglog_iter_prev(pglog_iterator_t *it) {
  step(it, false);
}

/* ---------------------------------------------------------------------------------------------- */
/* The present entry                                                                              */

unsigned char pglog_iter_valid(const pglog_iterator_t *it) {
  if (it->dead || it->err.code)
    return 0;
  return plain(it) ? rocks_valid(it) : it->cur != CUR_NONE;
}

const char *pglog_iter_key(const pglog_iterator_t *it, size_t *klen) {
  if (plain(it) || it->cur == CUR_ROCKS)
    return rocksdb_iter_key(it->rocks, klen);
  *klen = it->key.size;
  return (const char *)it->key.data;
}

const char *pglog_iter_value(const pglog_iterator_t *it, size_t *vlen) {
  if (plain(it) || it->cur == CUR_ROCKS)
    return rocksdb_iter_value(it->rocks, vlen);
  struct slice v = store_iter_value(it->store);
  *vlen = v.size;
  return (const char *)v.data;
}

void pglog_iter_get_error(const pglog_iterator_t *it, char **errptr) {
  if (it->err.code)
    db_error(errptr, &it->err);
  else if (it->rocks)
    rocksdb_iter_get_error(it->rocks, errptr);
}
