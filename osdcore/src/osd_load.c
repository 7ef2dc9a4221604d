/* SPDX-License-Identifier: Apache-2.0
 *
 * osd_load.c - keys of a PG's records; a new database's PGs; loading and checking an old one's,
 * several at a time.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "osd_internal.h"

#define SUPER_KEY "osd/super"
#define SUPER_FORMAT 1
#define SUPER_SIZE 5
#define LOG_PREFIX "pglog/"

struct pg_log_limits osd_log_limits(const struct osd *o) {
  return (struct pg_log_limits){.keep = o->c.log_keep,
                                .trim_min = o->c.log_trim_min,
                                .trim_max = o->c.log_trim_max,
                                .max_dups = o->c.max_dups};
}

static struct osd_slice text(const char *s) {
  return (struct osd_slice){(const uint8_t *)s, strlen(s)};
}

/* ---------------------------------------------------------------------------------------------- */
/* Writing records                                                                                */

size_t pg_key(char *out, const struct pg *pg, const char *name) {
  return (size_t)snprintf(out, OSD_PG_KEY_MAX, LOG_PREFIX "%s/%s", pg->name, name);
}

static void put(struct kv_batch *b, const struct pg *pg, const char *name, const uint8_t *value,
                size_t size) {
  char key[OSD_PG_KEY_MAX];
  struct osd_slice k = {(uint8_t *)key, pg_key(key, pg, name)}, v = {value, size};
  kv_put(b, k, v);
}

void put_entry(struct kv_batch *b, const struct pg *pg, const struct osd_log_entry *e) {
  char name[OSD_NAME_MAX];
  uint8_t value[OSD_VALUE_MAX];
  osd_entry_name(name, e->version);
  put(b, pg, name, value, osd_entry_put(value, e));
}

void put_dup(struct kv_batch *b, const struct pg *pg, const struct osd_dup *d) {
  char name[OSD_NAME_MAX];
  uint8_t value[OSD_VALUE_MAX];
  osd_dup_name(name, d->version);
  put(b, pg, name, value, osd_dup_put(value, d));
}

void put_info(struct kv_batch *b, const struct pg *pg, const struct osd_info *info) {
  uint8_t value[OSD_VALUE_MAX];
  put(b, pg, OSD_NAME_INFO, value, osd_info_put(value, info));
}

void put_fastinfo(struct kv_batch *b, const struct pg *pg, struct osd_eversion v, uint64_t mtime) {
  uint8_t value[OSD_VALUE_MAX];
  struct osd_fastinfo f = {.last_update = v, .mtime_ns = mtime};
  put(b, pg, OSD_NAME_FASTINFO, value, osd_fastinfo_put(value, &f));
}

void put_super(struct kv_batch *b, uint32_t pgs) {
  uint8_t value[SUPER_SIZE] = {SUPER_FORMAT};
  for (int i = 0; i < 4; i++)
    value[1 + i] = (uint8_t)(pgs >> (8 * i));
  kv_put(b, text(SUPER_KEY), (struct osd_slice){value, sizeof value});
}

/* ---------------------------------------------------------------------------------------------- */
/* One PG                                                                                         */

struct load {
  struct osd *o;
  struct pg *pg;
  struct osd_eversion last_update;
};

/* Say which PG an error is about. What a log refuses is damage, when it is loaded. */
static int damaged(const struct pg *pg, struct pglog_error *err, int rc) {
  char what[PGLOG_ERROR_TEXT];
  snprintf(what, sizeof what, "PG %s: %.700s", pg->name, err->text);
  return osd_error(err, rc == PGLOG_EINVAL || rc == PGLOG_ETOOBIG ? PGLOG_ECORRUPT : rc, "%s",
                   what);
}

/* A record that must be there; free() value->data. */
static int get_record(struct load *l, const char *name, struct osd_slice *value,
                      struct pglog_error *err) {
  char key[OSD_PG_KEY_MAX];
  struct osd_slice k = {(uint8_t *)key, pg_key(key, l->pg, name)};
  uint8_t *data = NULL;
  int rc = l->o->kv.get(l->o->kv.arg, k, &data, &value->size, err);
  value->data = data;
  return rc == PGLOG_ENOTFOUND ? osd_error(err, PGLOG_ECORRUPT, "%s is missing", name) : rc;
}

static int load_infos(struct load *l, struct pglog_error *err) {
  struct osd_slice v;
  struct osd_fastinfo f;
  struct pg *pg = l->pg;
  int rc = get_record(l, OSD_NAME_INFO, &v, err);
  if (rc == 0) {
    rc = osd_info_get(v, &pg->info, err);
    free((void *)v.data);
  }
  if (rc == 0)
    rc = get_record(l, OSD_NAME_FASTINFO, &v, err);
  if (rc)
    return rc;
  rc = osd_fastinfo_get(v, &f, err);
  free((void *)v.data);
  l->last_update = f.last_update;
  if (rc == 0 && (pg->info.bits > OSD_PG_BITS_MAX || pg->id >> pg->info.bits))
    rc = osd_error(err, PGLOG_ECORRUPT, "_info has %" PRIu32 " bits, which does not fit the id",
                   pg->info.bits);
  pg->bits = pg->info.bits;
  return rc;
}

static int load_record(void *arg, struct osd_slice key, struct osd_slice value,
                       struct pglog_error *err) {
  struct load *l = arg;
  size_t skip = sizeof LOG_PREFIX + strlen(l->pg->name);
  struct osd_slice name = {key.data + skip, key.size - skip};
  struct osd_log_entry e;
  struct osd_dup d;
  struct osd_eversion v;
  int rc = 0;
  switch (osd_name_parse(name, &v)) {
    case OSD_NAME_IS_ENTRY:
      rc = osd_entry_get(value, &e, err);
      e.version = v;
      return rc ? rc : pg_log_add(l->pg->log, &e, err);
    case OSD_NAME_IS_DUP:
      rc = osd_dup_get(value, &d, err);
      d.version = v;
      return rc ? rc : pg_log_add_dup(l->pg->log, &d, err);
    case OSD_NAME_IS_INFO:
    case OSD_NAME_IS_FASTINFO:
      return 0;
    default:
      return osd_error(err, PGLOG_ECORRUPT, "unknown record %.*s",
                       (int)(name.size < 100 ? name.size : 100), (const char *)name.data);
  }
}

static int check_head(const struct load *l, struct pglog_error *err) {
  struct osd_eversion head = pg_log_head(l->pg->log);
  if (osd_eversion_cmp(head, l->last_update) != 0)
    return osd_error(err, PGLOG_ECORRUPT,
                     "the log ends with %" PRIu32 ".%" PRIu64 ", the last update of _fastinfo is"
                     " %" PRIu32 ".%" PRIu64,
                     head.epoch, head.version, l->last_update.epoch, l->last_update.version);
  if (head.epoch > l->pg->info.epoch)
    return osd_error(err, PGLOG_ECORRUPT, "the log ends in epoch %" PRIu32 ", _info has %" PRIu32,
                     head.epoch, l->pg->info.epoch);
  return 0;
}

static int load_log(struct load *l, struct pglog_error *err) {
  char begin[OSD_PG_KEY_MAX], end[OSD_PG_KEY_MAX];
  struct osd_slice b = {(uint8_t *)begin, pg_key(begin, l->pg, "")};
  struct osd_slice e = {(uint8_t *)end, pg_key(end, l->pg, "")};
  struct pg_log_limits limits = osd_log_limits(l->o);
  end[e.size - 1]++; /* behind the '/' */
  if (pg_log_new(&l->pg->log, &limits, l->pg->info.log_tail) != 0)
    return osd_error(err, PGLOG_ENOMEM, "out of memory for its log");
  return l->o->kv.scan(l->o->kv.arg, b, e, load_record, l, err);
}

static int load_pg(struct osd *o, struct pg *pg, struct pglog_error *err) {
  struct load l = {.o = o, .pg = pg};
  int rc = load_infos(&l, err);
  if (rc == 0)
    rc = load_log(&l, err);
  if (rc == 0)
    rc = check_head(&l, err);
  if (rc)
    return damaged(pg, err, rc);
  pg_figures(pg);
  return 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* All PGs, by some threads                                                                       */

struct loader {
  struct osd *o;
  struct pg **pgs;
  size_t n;
  atomic_size_t next;
  pthread_mutex_t lock;
  int rc; /* the first error, and then no more are loaded */
  struct pglog_error err;
};

static void *load_main(void *arg) {
  struct loader *l = arg;
  struct pglog_error err = {0, ""};
  for (;;) {
    size_t i = atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed);
    if (i >= l->n)
      return NULL;
    int rc = load_pg(l->o, l->pgs[i], &err);
    if (!rc)
      continue;
    atomic_store_explicit(&l->next, l->n, memory_order_relaxed);
    pthread_mutex_lock(&l->lock);
    if (!l->rc) {
      l->rc = rc;
      l->err = err;
    }
    pthread_mutex_unlock(&l->lock);
  }
}

static int load_all(struct osd *o, struct pg **pgs, size_t n, struct pglog_error *err) {
  struct loader l = {.o = o, .pgs = pgs, .n = n, .lock = PTHREAD_MUTEX_INITIALIZER};
  size_t threads = o->c.load_threads < n ? o->c.load_threads : n, started = 0;
  pthread_t *t = calloc(threads + 1, sizeof *t);
  /* This thread is one of them: a thread that cannot be started is one less. */
  while (t && started + 1 < threads && pthread_create(&t[started], NULL, load_main, &l) == 0)
    started++;
  load_main(&l);
  for (size_t i = 0; i < started; i++)
    pthread_join(t[i], NULL);
  free(t);
  pthread_mutex_destroy(&l.lock);
  if (l.rc && err)
    *err = l.err;
  return l.rc;
}

static int publish_loaded(struct osd *o, struct pg *pg, struct pglog_error *err) {
  struct pg *taken = dir_taken(o, pg->id, pg->bits);
  if (taken)
    return osd_error(err, PGLOG_ECORRUPT, "PGs %s and %s have hashes in common", taken->name,
                     pg->name);
  int rc = dir_reserve(o, pg->bits, err);
  if (rc)
    return rc;
  o->load_entries += pg_log_entries(pg->log);
  pg_publish(o, pg);
  return 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* Which PGs there are                                                                            */

struct found {
  struct osd *o;
  struct pg **pgs;
  size_t n, cap;
  char next[64]; /* where to seek for the next PG; "": no key was there */
};

/* "1.<hex>", as it is written. */
static bool id_parse(const char *name, uint32_t *id) {
  char again[OSD_PG_NAME];
  if (strncmp(name, "1.", 2) != 0 || strlen(name) > 10)
    return false;
  *id = (uint32_t)strtoul(name + 2, NULL, 16);
  snprintf(again, sizeof again, "1.%" PRIx32, *id);
  return strcmp(again, name) == 0;
}

static int found_add(struct found *f, uint32_t id, struct pglog_error *err) {
  if (f->n == f->cap) {
    f->cap = 2 * f->cap + 16;
    struct pg **v = realloc(f->pgs, f->cap * sizeof *v);
    if (!v)
      return osd_error(err, PGLOG_ENOMEM, "out of memory for %zu PGs", f->cap);
    f->pgs = v;
  }
  struct pg *pg = pg_new(f->o, id, 0);
  if (!pg)
    return osd_error(err, PGLOG_ENOMEM, "out of memory for PG 1.%" PRIx32, id);
  f->pgs[f->n++] = pg;
  return 0;
}

/* The first key of a PG; stops the scan. */
static int found_key(void *arg, struct osd_slice key, struct osd_slice value,
                     struct pglog_error *err) {
  (void)value;
  struct found *f = arg;
  const uint8_t *name = key.data + strlen(LOG_PREFIX);
  size_t n = key.size - strlen(LOG_PREFIX);
  const uint8_t *slash = memchr(name, '/', n);
  char id_text[OSD_PG_NAME] = "";
  uint32_t id;
  if (slash && slash - name < OSD_PG_NAME)
    memcpy(id_text, name, (size_t)(slash - name));
  if (!id_parse(id_text, &id))
    return osd_error(err, PGLOG_ECORRUPT, "key %.*s is no PG's",
                     (int)(key.size < 100 ? key.size : 100), (const char *)key.data);
  snprintf(f->next, sizeof f->next, LOG_PREFIX "%s%c", id_text, '/' + 1);
  int rc = found_add(f, id, err);
  return rc ? rc : 1;
}

static int find_pgs(struct found *f, struct pglog_error *err) {
  char from[sizeof f->next] = LOG_PREFIX, end[] = LOG_PREFIX;
  end[sizeof end - 2]++;
  int rc;
  do {
    rc = f->o->kv.scan(f->o->kv.arg, text(from), text(end), found_key, f, err);
    memcpy(from, f->next, sizeof from);
  } while (rc == 1);
  return rc;
}

static int load_found(struct found *f, uint32_t want, struct pglog_error *err) {
  int rc = find_pgs(f, err);
  if (rc == 0 && f->n != want)
    rc = osd_error(err, PGLOG_ECORRUPT, "there are %zu PGs, " SUPER_KEY " says %" PRIu32, f->n,
                   want);
  if (rc == 0)
    rc = load_all(f->o, f->pgs, f->n, err);
  size_t i = 0;
  for (; rc == 0 && i < f->n; i += rc == 0)
    rc = publish_loaded(f->o, f->pgs[i], err);
  for (; i < f->n; i++)
    pg_free(f->pgs[i]);
  free(f->pgs);
  return rc;
}

/* ---------------------------------------------------------------------------------------------- */
/* A new database                                                                                 */

static int make_pg(struct osd *o, uint32_t id, struct kv_batch *b, struct pglog_error *err) {
  struct pg_log_limits limits = osd_log_limits(o);
  struct osd_eversion none = {0, 0};
  struct pg *pg = pg_new(o, id, o->c.pg_bits);
  if (!pg || pg_log_new(&pg->log, &limits, none) != 0) {
    pg_free(pg);
    return osd_error(err, PGLOG_ENOMEM, "out of memory for PG 1.%" PRIx32, id);
  }
  pg->info = (struct osd_info){.bits = pg->bits, .epoch = 1};
  put_info(b, pg, &pg->info);
  put_fastinfo(b, pg, none, osd_wall_ns());
  pg_figures(pg);
  pg_publish(o, pg);
  return 0;
}

static int refuse_key(void *arg, struct osd_slice key, struct osd_slice value,
                      struct pglog_error *err) {
  (void)arg, (void)value;
  return osd_error(err, PGLOG_ECORRUPT, "there is no " SUPER_KEY ", but a key %.*s",
                   (int)(key.size < 100 ? key.size : 100), (const char *)key.data);
}

static int make_all(struct osd *o, struct pglog_error *err) {
  struct kv_batch b = {0};
  int rc = o->kv.scan(o->kv.arg, text(""), text("\xff"), refuse_key, NULL, err);
  if (rc == 0)
    rc = dir_reserve(o, o->c.pg_bits, err);
  for (uint32_t id = 0; rc == 0 && id < 1u << o->c.pg_bits; id++)
    rc = make_pg(o, id, &b, err);
  put_super(&b, 1u << o->c.pg_bits);
  if (rc == 0)
    rc = o->kv.write(o->kv.arg, &b, true, err);
  kv_batch_free(&b);
  return rc;
}

int osd_load(struct osd *o, struct pglog_error *err) {
  uint8_t *value;
  size_t size;
  uint64_t begin = opq_now();
  int rc = o->kv.get(o->kv.arg, text(SUPER_KEY), &value, &size, err);
  if (rc == PGLOG_ENOTFOUND)
    return make_all(o, err);
  if (rc)
    return rc;
  uint32_t pgs = 0;
  if (size && value[0] != SUPER_FORMAT)
    rc = osd_error(err, PGLOG_ENOTSUP, SUPER_KEY " has format %u, this library knows %u", value[0],
                   SUPER_FORMAT);
  else if (size != SUPER_SIZE)
    rc = osd_error(err, PGLOG_ECORRUPT, SUPER_KEY " has %zu bytes, it must have %u", size,
                   SUPER_SIZE);
  for (size_t i = 0; rc == 0 && i < 4; i++)
    pgs |= (uint32_t)value[1 + i] << (8 * i);
  free(value);
  struct found f = {.o = o};
  if (rc == 0)
    rc = load_found(&f, pgs, err);
  o->load_ns = opq_now() - begin;
  return rc;
}
