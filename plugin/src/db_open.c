/* SPDX-License-Identifier: Apache-2.0
 *
 * db_open.c - opening, closing and destroying a database through the facade.
 */
#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "db_internal.h"
#include "shim_api.h"

/* What opening collects. */
struct opening {
  const char *name;
  rocksdb_options_t *options;     /* copy of the caller's */
  void *made_env;                 /* the Env that the facade made, or NULL */
  const struct pglog_options *po; /* the Env's */
  bool exists;                    /* there is a database already */
  bool has_guard;                 /* and it has the guard; or it will have it */
  bool has_rule_cf;               /* and it has the column family of po->rule */
  int n;                          /* column families of the caller */
  const char **names;             /* n + 1, the guard last */
  const rocksdb_options_t **families;
  rocksdb_options_t *guard_options;
  rocksdb_column_family_handle_t **handles;
};

static void opening_free(struct opening *o) {
  if (o->options)
    rocksdb_options_destroy(o->options);
  if (o->guard_options)
    rocksdb_options_destroy(o->guard_options);
  free(o->names);
  free(o->families);
  free(o->handles);
}

/* Give the options a pglog Env, if they have none. */
static int options_env(rocksdb_options_t *options, const struct pglog_options *po, void **made,
                       const struct pglog_options **used, struct pglog_error *err) {
  void *env = capi_options_env(options);
  *made = NULL;
  *used = shim_env_options(env);
  if (*used && po)
    return error_set(err, PGLOG_EINVAL,
                     "options already have a pglog Env: its settings hold, others cannot be given");
  if (*used)
    return 0;
  struct pglog_options defaults;
  if (!po) {
    pglog_options_init(&defaults);
    po = &defaults;
  }
  *made = shim_env_new(po, env, err);
  if (!*made)
    return err->code;
  capi_options_set_env(options, *made);
  *used = shim_env_options(*made);
  return 0;
}

/* The WAL directory may be named in either kind of options, but not differently. */
static int options_wal_dir(struct opening *o, struct pglog_error *err) {
  const char *want = o->po->wal_dir, *have = capi_options_wal_dir(o->options);
  if (!*want)
    return 0;
  if (*have && strcmp(have, want) != 0)
    return error_set(err, PGLOG_EINVAL, "option wal_dir=%s of RocksDB, but wal_dir=%s of pglog",
                     have, want);
  rocksdb_options_set_wal_dir(o->options, want);
  return 0;
}

static bool listed(const char *name, const char *const *names, int n) {
  for (int i = 0; i < n; i++) {
    if (strcmp(names[i], name) == 0)
      return true;
  }
  return false;
}

/* Whether the directory holds a database, and whether that has the guard. */
static int look_at_database(struct opening *o, struct pglog_error *err) {
  int rc = capi_db_exists(capi_options_env(o->options), o->name, err);
  if (rc < 0)
    return rc;
  o->exists = rc == 1;
  if (!o->exists)
    return 0;
  char *failed = NULL;
  size_t n = 0;
  char **list = rocksdb_list_column_families(o->options, o->name, &n, &failed);
  if (failed)
    rc = error_set(err, PGLOG_ECORRUPT, "column families of %s: %s", o->name, failed);
  else
    rc = 0;
  o->has_guard = listed(PGLOG_GUARD_CF, (const char *const *)list, (int)n);
  o->has_rule_cf = listed(o->po->rule.cf, (const char *const *)list, (int)n);
  free(failed);
  rocksdb_list_column_families_destroy(list, n);
  return rc;
}

/* A key of the rule in RocksDB belongs to nobody: refuse, and name it. */
static int check_lsm(rocksdb_t *db, rocksdb_column_family_handle_t *cf, const char *name,
                     const struct pglog_rule *rule, struct pglog_error *err) {
  uint8_t end[PGLOG_PREFIX_MAX];
  size_t end_len = rule_range_end(rule, end);
  rocksdb_readoptions_t *ro = rocksdb_readoptions_create();
  rocksdb_readoptions_set_iterate_lower_bound(ro, (const char *)rule->prefix, rule->prefix_len);
  if (end_len)
    rocksdb_readoptions_set_iterate_upper_bound(ro, (const char *)end, end_len);
  rocksdb_iterator_t *it = capi_iter_create(db, ro, NULL, true, cf);
  rocksdb_iter_seek_to_first(it);
  int rc = 0;
  if (rocksdb_iter_valid(it)) {
    struct slice key;
    char text[256], ruletext[512];
    key.data = (const uint8_t *)rocksdb_iter_key(it, &key.size);
    rc = error_set(err, PGLOG_EMISMATCH,
                   "database %s: key %s of the rule (%s) is in RocksDB itself; `import` moves such "
                   "keys into the log store",
                   name, key_print(text, sizeof text, key),
                   rule_print(rule, ruletext, sizeof ruletext));
  } else {
    char *failed = NULL;
    rocksdb_iter_get_error(it, &failed);
    if (failed)
      rc = error_set(err, PGLOG_EIO, "looking for keys of the rule in RocksDB: %s", failed);
    free(failed);
  }
  capi_iter_destroy(it);
  rocksdb_readoptions_destroy(ro);
  return rc;
}

/* Look for keys of the rule in a database that is about to get its guard, so that a refused one
 * stays as it was. Read-only: nothing is locked or written. */
static int check_plain_database(struct opening *o, struct pglog_error *err) {
  const struct pglog_rule *rule = &o->po->rule;
  const char *names[2] = {"default", rule->cf};
  const rocksdb_options_t *families[2];
  rocksdb_column_family_handle_t *handles[2];
  int n = strcmp(rule->cf, "default") == 0 ? 1 : 2;
  if (!o->has_rule_cf)
    return 0;
  for (int i = 0; i < n; i++) {
    families[i] = o->options;
    for (int k = 0; k < o->n; k++) {
      if (strcmp(o->names[k], names[i]) == 0)
        families[i] = o->families[k];
    }
  }
  char *failed = NULL;
  rocksdb_t *db = rocksdb_open_for_read_only_column_families(o->options, o->name, n, names,
                                                             families, handles, 0, &failed);
  if (!db) {
    int rc = error_set(err, PGLOG_EIO, "database %s, read-only: %s", o->name, failed);
    free(failed);
    return rc;
  }
  int rc = check_lsm(db, handles[n - 1], o->name, rule, err);
  for (int i = 0; i < n; i++)
    rocksdb_column_family_handle_destroy(handles[i]);
  rocksdb_close(db);
  return rc;
}

/* Decide on the guard, and what a new database needs before it is made. */
static int plan_guard(struct opening *o, bool *want, struct pglog_error *err) {
  bool missing = rocksdb_options_get_create_missing_column_families(o->options);
  *want = o->has_guard || !o->po->no_guard || listed(PGLOG_GUARD_CF, o->names, o->n);
  if (!*want && capi_options_atomic_flush(o->options))
    return error_set(
        err, PGLOG_ENOTSUP,
        "RocksDB option atomic_flush=true is refused with guard=0: WALs of pg log keys "
        "alone would never be retired");
  if (o->has_guard || !*want)
    return 0;
  if (o->exists && !missing)
    return error_set(
        err, PGLOG_EINVAL,
        "database %s has no column family %s: set create_missing_column_families to add "
        "it, or guard=0 to open without",
        o->name, PGLOG_GUARD_CF);
  if (o->exists)
    return check_plain_database(o, err);
  if (!rocksdb_options_get_create_if_missing(o->options))
    return 0; /* RocksDB refuses it */
  for (int i = 0; i < o->n; i++) {
    if (!missing && strcmp(o->names[i], "default") != 0 && strcmp(o->names[i], PGLOG_GUARD_CF) != 0)
      return error_set(err, PGLOG_EINVAL,
                       "new database %s: column family %s is missing and "
                       "create_missing_column_families is off",
                       o->name, o->names[i]);
  }
  rocksdb_options_set_create_missing_column_families(o->options, 1);
  return 0;
}

static void make_guard_options(struct opening *o) {
  o->guard_options = rocksdb_options_create();
  capi_options_set_comparator(o->guard_options, shim_guard_comparator());
  rocksdb_options_set_write_buffer_size(o->guard_options, 64 << 10);
  rocksdb_options_set_compression(o->guard_options, rocksdb_no_compression);
}

static int check_options(struct opening *o, struct pglog_error *err) {
  int rc = capi_options_check_db(o->options, err);
  for (int i = 0; rc == 0 && i < o->n; i++) {
    rc = capi_options_check_cf(o->families[i], o->names[i], err);
    if (rc == 0 && strcmp(o->names[i], PGLOG_GUARD_CF) == 0)
      o->families[i] = o->guard_options;
  }
  const struct pglog_rule *rule = &o->po->rule;
  if (rc == 0 && !o->exists && !listed(rule->cf, o->names, o->n))
    rc = error_set(err, PGLOG_EINVAL,
                   "column family %s of the rule is not among those of the new database %s",
                   rule->cf, o->name);
  return rc;
}

static int opening_prepare(struct opening *o, const rocksdb_options_t *options,
                           const struct pglog_options *po, int n, const char *const *names,
                           const rocksdb_options_t *const *families, struct pglog_error *err) {
  int rc = capi_self_check(err);
  if (rc)
    return rc;
  size_t cap = (size_t)n + 1;
  o->n = n;
  o->options = rocksdb_options_create_copy((rocksdb_options_t *)options); /* only read */
  o->names = calloc(cap, sizeof *o->names);
  o->families = calloc(cap, sizeof *o->families);
  o->handles = calloc(cap, sizeof *o->handles);
  if (!o->names || !o->families || !o->handles)
    return error_set(err, PGLOG_ENOMEM, "%d column families", n);
  make_guard_options(o);
  memcpy(o->names, names, (size_t)n * sizeof *names);
  memcpy(o->families, families, (size_t)n * sizeof *families);
  rc = options_env(o->options, po, &o->made_env, &o->po, err);
  if (rc == 0)
    rc = options_wal_dir(o, err);
  if (rc == 0)
    rc = look_at_database(o, err);
  if (rc == 0)
    rc = check_options(o, err);
  bool want = false;
  if (rc == 0)
    rc = plan_guard(o, &want, err);
  o->has_guard = want;
  /* Last, so that new column families get their ids in the caller's order. If the caller listed it
   * too, RocksDB gives out two handles of it. */
  o->names[n] = PGLOG_GUARD_CF;
  o->families[n] = o->guard_options;
  return rc;
}

/* ---------------------------------------------------------------------------------------------- */
/* The open database                                                                              */

static uint64_t latest_sequence(void *arg) {
  return rocksdb_get_latest_sequence_number(((pglog_db_t *)arg)->db);
}

/* The index of the rule's column family in the list; its comparator must be bytewise. */
static int find_rule_cf(const struct opening *o, const struct pglog_rule *rule, int *index,
                        struct pglog_error *err) {
  for (int i = 0; i < o->n; i++) {
    if (strcmp(o->names[i], rule->cf) != 0)
      continue;
    const char *comparator;
    *index = i;
    if (capi_options_bytewise(o->families[i], &comparator))
      return 0;
    return error_set(err, PGLOG_ENOTSUP,
                     "comparator %s of column family %s, which holds the pg log keys, is not "
                     "supported: only leveldb.BytewiseComparator is",
                     comparator, rule->cf);
  }
  return error_set(err, PGLOG_EINVAL, "database %s has no column family %s, which the rule names",
                   o->name, rule->cf);
}

static int learn_families(pglog_db_t *db, const struct opening *o, struct pglog_error *err) {
  for (int i = 0; i < o->n + o->has_guard; i++) {
    db->memtable_bytes += capi_options_memtable_bytes(o->families[i]);
    if (strcmp(o->names[i], PGLOG_GUARD_CF) == 0)
      continue;
    if (cfs_add(db, db_cf_id(o->handles[i]), o->families[i]) != 0)
      return error_set(err, PGLOG_ENOMEM, "%d column families", o->n);
  }
  if (o->has_guard) {
    db->guard = o->handles[o->n];
    db->guard_id = db_cf_id(db->guard);
  }
  return 0;
}

/* RocksDB is open: open the door of the store. */
static int attach(pglog_db_t *db, struct opening *o, struct pglog_error *err) {
  int rc = capi_db_check(db->db, o->name, err);
  if (rc)
    return rc;
  db->store = shim_store_of(capi_options_env(o->options), o->name);
  if (!db->store)
    return error_set(err, PGLOG_EINVAL, "database %s was opened without its log store", o->name);
  const struct pglog_rule *rule = store_rule(db->store);
  int index = 0;
  rc = find_rule_cf(o, rule, &index, err);
  if (rc == 0)
    rc = learn_families(db, o, err);
  if (rc)
    return rc;
  batch_rule_init(&db->rule, rule, db_cf_id(o->handles[index]));
  rc = check_lsm(db->db, o->handles[index], db->name, rule, err);
  if (rc == 0)
    rc = store_attach(db->store, db->rule.cf_id, latest_sequence, db, err);
  if (rc == 0)
    wals_limit_changed(db);
  return rc;
}

static void db_free(pglog_db_t *db) {
  shim_env_free(db->made_env); /* after RocksDB is closed */
  cfs_free(db);
  pthread_mutex_destroy(&db->cf_mutex);
  pthread_mutex_destroy(&db->wal_mutex);
  free(db->name);
  free(db);
}

/* Close what a failed open has opened. */
static void undo(pglog_db_t *db, struct opening *o) {
  for (int i = 0; i < o->n + o->has_guard; i++) {
    if (o->handles[i])
      rocksdb_column_family_handle_destroy(o->handles[i]);
  }
  rocksdb_close(db->db);
}

static int open_opening(struct opening *o, pglog_db_t *db, char **failed, struct pglog_error *err) {
  const char *wal_dir = capi_options_wal_dir(o->options);
  shim_hint_open(capi_options_env(o->options), o->name,
                 rocksdb_options_get_wal_recovery_mode(o->options), wal_dir);
  db->db = rocksdb_open_column_families(o->options, o->name, o->n + o->has_guard, o->names,
                                        o->families, o->handles, failed);
  if (!db->db)
    return PGLOG_EIO;
  int rc = attach(db, o, err);
  if (rc)
    undo(db, o);
  return rc;
}

static pglog_db_t *db_open(const rocksdb_options_t *options, const struct pglog_options *po,
                           const char *name, int n, const char *const *names,
                           const rocksdb_options_t *const *families,
                           rocksdb_column_family_handle_t **handles, char **errptr) {
  struct opening o = {.name = name};
  struct pglog_error err = {0};
  char *failed = NULL;
  pglog_db_t *db = calloc(1, sizeof *db);
  int rc = db && (db->name = strdup(name)) ? 0 : error_set(&err, PGLOG_ENOMEM, "database handle");
  if (rc) {
    free(db);
    db_error(errptr, &err);
    return NULL;
  }
  pthread_mutex_init(&db->cf_mutex, NULL);
  pthread_mutex_init(&db->wal_mutex, NULL);
  rc = opening_prepare(&o, options, po, n, names, families, &err);
  db->made_env = o.made_env;
  if (rc == 0)
    rc = open_opening(&o, db, &failed, &err);
  if (rc == 0) {
    memcpy(handles, o.handles, (size_t)n * sizeof *handles);
  } else {
    memset(handles, 0, (size_t)n * sizeof *handles);
    db_free(db);
    db = NULL;
    if (failed) {
      free(*errptr);
      *errptr = failed;
    } else {
      db_error(errptr, &err);
    }
  }
  opening_free(&o);
  return db;
}

pglog_db_t *pglog_db_open_column_families(const rocksdb_options_t *options,
                                          const struct pglog_options *po, const char *name,
                                          int num_column_families,
                                          const char *const *column_family_names,
                                          const rocksdb_options_t *const *column_family_options,
                                          rocksdb_column_family_handle_t **column_family_handles,
                                          char **errptr) {
  return db_open(options, po, name, num_column_families, column_family_names, column_family_options,
                 column_family_handles, errptr);
}

pglog_db_t *pglog_db_open(const rocksdb_options_t *options, const struct pglog_options *po,
                          const char *name, char **errptr) {
  const char *names[1] = {"default"};
  rocksdb_column_family_handle_t *handles[1];
  pglog_db_t *db = db_open(options, po, name, 1, names, &options, handles, errptr);
  if (db)
    rocksdb_column_family_handle_destroy(handles[0]); /* the functions without cf do without it */
  return db;
}

void pglog_db_close(pglog_db_t *db) {
  if (!db)
    return;
  store_detach(db->store);
  if (db->guard)
    rocksdb_column_family_handle_destroy(db->guard);
  rocksdb_close(db->db);
  db_free(db);
}

/* ---------------------------------------------------------------------------------------------- */
/* Destroying                                                                                     */

/* Remove WAL tails that recovery saved aside. */
static void remove_cuts(const char *dir) {
  DIR *d = opendir(dir);
  if (!d)
    return;
  for (struct dirent *e; (e = readdir(d));) {
    const char *cut = strstr(e->d_name, ".log.cut");
    if (cut && strspn(e->d_name, "0123456789") == (size_t)(cut - e->d_name))
      unlinkat(dirfd(d), e->d_name, 0);
  }
  closedir(d);
}

/* Remove the arena, if it is a file. A device's superblocks are invalid by now. */
static int remove_arena(const struct pglog_options *po, const char *name, struct pglog_error *err) {
  char path[sizeof po->arena + 64];
  struct stat st;
  if (po->arena[0])
    snprintf(path, sizeof path, "%s", po->arena);
  else
    snprintf(path, sizeof path, "%s/pglog.arena", name);
  if (po->io || stat(path, &st) != 0 || !S_ISREG(st.st_mode))
    return 0;
  if (unlink(path) != 0 && errno != ENOENT)
    return error_set(err, PGLOG_EIO, "removing the arena %s: %s", path, strerror(errno));
  return 0;
}

void pglog_destroy_db(const rocksdb_options_t *options, const struct pglog_options *po,
                      const char *name, char **errptr) {
  struct opening o = {.name = name};
  struct pglog_error err = {0};
  char *failed = NULL;
  o.options = rocksdb_options_create_copy((rocksdb_options_t *)options); /* only read */
  int rc = options_env(o.options, po, &o.made_env, &o.po, &err);
  if (rc == 0)
    rc = options_wal_dir(&o, &err);
  if (rc == 0) {
    rocksdb_destroy_db(o.options, name, &failed);
    if (!failed)
      rc = remove_arena(o.po, name, &err);
  }
  if (failed) {
    free(*errptr);
    *errptr = failed;
  } else if (rc) {
    db_error(errptr, &err);
  } else {
    const char *wal_dir = capi_options_wal_dir(o.options);
    remove_cuts(name);
    if (*wal_dir) {
      remove_cuts(wal_dir);
      rmdir(wal_dir); /* goes if it is empty now, as RocksDB does it */
    }
    rmdir(name);
  }
  opening_free(&o);
  shim_env_free(o.made_env);
}
