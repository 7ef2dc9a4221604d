/* SPDX-License-Identifier: Apache-2.0 */
#include "pg_log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define uthash_fatal(msg) abort() /* not reached: HASH_NONFATAL_OOM */
#define HASH_NONFATAL_OOM 1
#define uthash_nonfatal_oom(elt) ((elt)->lost = true)
#include <uthash.h>

static const struct pg_log_limits defaults = {
    .keep = 2500, .trim_min = 100, .trim_max = 1000, .max_dups = 3000};

/* The key of a request: no padding, since it is compared as bytes. */
struct req_key {
  uint64_t client, tid, incarnation;
};

/* One entry, or, when it has been trimmed, its dup. Requests are found by it. */
struct node {
  struct osd_log_entry e;
  struct req_key key;
  UT_hash_handle hh;
  bool lost; /* uthash had no memory for it */
  uint8_t name[];
};

/* The newest entry of an object. */
struct object {
  struct node *newest;
  UT_hash_handle hh;
  bool lost;
  size_t size;
  uint8_t name[];
};

/* A ring of nodes, oldest first. */
struct ring {
  struct node **v;
  size_t first, n, cap; /* cap: a power of two */
};

struct pg_log {
  struct pg_log_limits limits;
  struct osd_eversion tail;
  struct ring entries;
  struct ring dups; /* of osd_dup's fields, e.version, e.reqid and e.result are kept */
  struct osd_dup dup; /* what pg_log_dup() hands out */
  struct node *requests;
  struct object *objects;
};

/* ---------------------------------------------------------------------------------------------- */
/* Rings                                                                                          */

static struct node *ring_at(const struct ring *r, size_t i) {
  return r->v[(r->first + i) & (r->cap - 1)];
}

static int ring_room(struct ring *r, size_t more) {
  size_t cap = r->cap ? r->cap : 64;
  while (cap - r->n < more)
    cap *= 2;
  if (cap == r->cap)
    return 0;
  struct node **v = malloc(cap * sizeof *v);
  if (!v)
    return PGLOG_ENOMEM;
  for (size_t i = 0; i < r->n; i++)
    v[i] = ring_at(r, i);
  free(r->v);
  *r = (struct ring){.v = v, .n = r->n, .cap = cap};
  return 0;
}

static void ring_push(struct ring *r, struct node *n) {
  r->v[(r->first + r->n++) & (r->cap - 1)] = n;
}

static struct node *ring_pop_oldest(struct ring *r) {
  struct node *n = ring_at(r, 0);
  r->first = (r->first + 1) & (r->cap - 1);
  r->n--;
  return n;
}

static struct node *ring_pop_newest(struct ring *r) { return ring_at(r, --r->n); }

/* ---------------------------------------------------------------------------------------------- */
/* Requests and objects                                                                           */

static struct req_key req_key(struct osd_reqid r) {
  return (struct req_key){r.client, r.tid, r.incarnation};
}

static struct node *request_find(const struct pg_log *l, struct osd_reqid r) {
  struct req_key key = req_key(r);
  struct node *n;
  HASH_FIND(hh, l->requests, &key, sizeof key, n);
  return n;
}

/* A request that is there already keeps its first answer. */
static int request_add(struct pg_log *l, struct node *n) {
  n->key = req_key(n->e.reqid);
  n->hh.tbl = NULL;
  if (request_find(l, n->e.reqid))
    return 0;
  HASH_ADD(hh, l->requests, key, sizeof n->key, n);
  return n->lost ? PGLOG_ENOMEM : 0;
}

static void request_drop(struct pg_log *l, struct node *n) {
  if (n->hh.tbl)
    HASH_DELETE(hh, l->requests, n);
}

static struct object *object_find(const struct pg_log *l, struct osd_slice name) {
  struct object *o;
  HASH_FIND(hh, l->objects, name.data, name.size, o);
  return o;
}

static struct object *object_add(struct pg_log *l, struct osd_slice name) {
  struct object *o = object_find(l, name);
  if (o)
    return o;
  o = calloc(1, sizeof *o + name.size);
  if (!o)
    return NULL;
  o->size = name.size;
  memcpy(o->name, name.data, name.size);
  HASH_ADD_KEYPTR(hh, l->objects, o->name, o->size, o);
  if (o->lost) {
    free(o);
    return NULL;
  }
  return o;
}

static void object_drop(struct pg_log *l, struct object *o) {
  HASH_DELETE(hh, l->objects, o);
  free(o);
}

/* An entry goes: if it was its object's newest, `older` is now (NULL: none). */
static void object_forget(struct pg_log *l, const struct node *n, struct node *older) {
  struct object *o = object_find(l, n->e.object);
  if (!o || o->newest != n)
    return;
  if (older)
    o->newest = older;
  else
    object_drop(l, o);
}

/* ---------------------------------------------------------------------------------------------- */
/* Life                                                                                           */

int pg_log_new(struct pg_log **out, const struct pg_log_limits *limits, struct osd_eversion tail) {
  struct pg_log *l = calloc(1, sizeof *l);
  if (!l)
    return PGLOG_ENOMEM;
  struct pg_log_limits m = limits ? *limits : defaults;
  m.keep = m.keep ? m.keep : defaults.keep;
  m.trim_min = m.trim_min ? m.trim_min : defaults.trim_min;
  m.trim_max = m.trim_max ? m.trim_max : defaults.trim_max;
  m.max_dups = m.max_dups ? m.max_dups : defaults.max_dups;
  l->limits = m;
  l->tail = tail;
  *out = l;
  return 0;
}

void pg_log_free(struct pg_log *l) {
  if (!l)
    return;
  struct object *o, *next;
  HASH_ITER(hh, l->objects, o, next) object_drop(l, o);
  HASH_CLEAR(hh, l->requests);
  for (size_t i = 0; i < l->entries.n; i++)
    free(ring_at(&l->entries, i));
  for (size_t i = 0; i < l->dups.n; i++)
    free(ring_at(&l->dups, i));
  free(l->entries.v);
  free(l->dups.v);
  free(l);
}

struct osd_eversion pg_log_tail(const struct pg_log *l) { return l->tail; }
size_t pg_log_entries(const struct pg_log *l) { return l->entries.n; }
size_t pg_log_dups(const struct pg_log *l) { return l->dups.n; }

struct osd_eversion pg_log_head(const struct pg_log *l) {
  return l->entries.n ? ring_at(&l->entries, l->entries.n - 1)->e.version : l->tail;
}

const struct osd_log_entry *pg_log_entry(const struct pg_log *l, size_t i) {
  return &ring_at(&l->entries, i)->e;
}

static struct osd_dup dup_of(const struct node *n) {
  return (struct osd_dup){n->e.version, n->e.reqid, n->e.result};
}

const struct osd_dup *pg_log_dup(const struct pg_log *l, size_t i) {
  struct pg_log *m = (struct pg_log *)l;
  m->dup = dup_of(ring_at(&l->dups, i));
  return &m->dup;
}

/* ---------------------------------------------------------------------------------------------- */
/* Adding and finding                                                                             */

static int out_of_order(struct pglog_error *err, const char *what, struct osd_eversion v,
                        struct osd_eversion last) {
  return osd_error(err, PGLOG_EINVAL,
                   "%s %" PRIu32 ".%" PRIu64 " is not above %" PRIu32 ".%" PRIu64, what, v.epoch,
                   v.version, last.epoch, last.version);
}

static int no_memory(struct pglog_error *err, const char *what) {
  return osd_error(err, PGLOG_ENOMEM, "out of memory for a %s", what);
}

int pg_log_add(struct pg_log *l, const struct osd_log_entry *e, struct pglog_error *err) {
  struct osd_eversion head = pg_log_head(l);
  if (osd_eversion_cmp(e->version, head) <= 0)
    return out_of_order(err, "log entry", e->version, head);
  if (e->object.size > OSD_OBJECT_MAX)
    return osd_error(err, PGLOG_ETOOBIG, "object name of %zu bytes, the limit is %d",
                     e->object.size, OSD_OBJECT_MAX);
  struct node *n = calloc(1, sizeof *n + e->object.size);
  if (!n || ring_room(&l->entries, 1) != 0)
    goto fail;
  n->e = *e;
  memcpy(n->name, e->object.data, e->object.size);
  n->e.object.data = n->name;
  struct object *o = e->op == OSD_LOG_ERROR ? NULL : object_add(l, n->e.object);
  if (e->op != OSD_LOG_ERROR && !o)
    goto fail;
  if (request_add(l, n) != 0) {
    if (o && !o->newest)
      object_drop(l, o);
    goto fail;
  }
  if (o)
    o->newest = n;
  ring_push(&l->entries, n);
  return 0;
fail:
  free(n);
  return no_memory(err, "log entry");
}

int pg_log_add_dup(struct pg_log *l, const struct osd_dup *d, struct pglog_error *err) {
  struct osd_eversion last = {0, 0};
  if (l->dups.n)
    last = ring_at(&l->dups, l->dups.n - 1)->e.version;
  if (osd_eversion_cmp(d->version, last) <= 0)
    return out_of_order(err, "dup record", d->version, last);
  if (osd_eversion_cmp(d->version, l->tail) > 0)
    return out_of_order(err, "the log's tail, for a dup record", l->tail, d->version);
  struct node *n = calloc(1, sizeof *n);
  if (n)
    n->e = (struct osd_log_entry){.version = d->version, .reqid = d->reqid, .result = d->result};
  if (!n || ring_room(&l->dups, 1) != 0 || request_add(l, n) != 0) {
    free(n);
    return no_memory(err, "dup record");
  }
  ring_push(&l->dups, n);
  return 0;
}

bool pg_log_find(const struct pg_log *l, struct osd_reqid r, struct osd_eversion *version,
                 int32_t *result) {
  const struct node *n = request_find(l, r);
  if (!n)
    return false;
  *version = n->e.version;
  *result = n->e.result;
  return true;
}

const struct osd_log_entry *pg_log_object(const struct pg_log *l, struct osd_slice object) {
  const struct object *o = object_find(l, object);
  return o ? &o->newest->e : NULL;
}

/* ---------------------------------------------------------------------------------------------- */
/* Trim and rewind                                                                                */

long pg_log_trim(struct pg_log *l, const struct pg_log_sink *sink) {
  const struct pg_log_limits *m = &l->limits;
  size_t over = l->entries.n > m->keep ? l->entries.n - m->keep : 0;
  if (over < m->trim_min)
    return 0;
  if (over > m->trim_max)
    over = m->trim_max;
  if (ring_room(&l->dups, over) != 0)
    return PGLOG_ENOMEM;
  for (size_t i = 0; i < over; i++) {
    struct node *n = ring_pop_oldest(&l->entries);
    struct osd_dup d = dup_of(n);
    object_forget(l, n, NULL); /* older entries of the object are gone already */
    n->e.object = (struct osd_slice){NULL, 0};
    ring_push(&l->dups, n);
    l->tail = n->e.version;
    sink->drop_entry(sink->arg, n->e.version);
    sink->add_dup(sink->arg, &d);
  }
  while (l->dups.n > m->max_dups) {
    struct node *n = ring_pop_oldest(&l->dups);
    sink->drop_dup(sink->arg, n->e.version);
    request_drop(l, n);
    free(n);
  }
  return (long)over;
}

/* The newest entry of this object that is left in the log. */
static struct node *newest_left(const struct pg_log *l, struct osd_slice object) {
  for (size_t i = l->entries.n; i-- > 0;) {
    struct node *n = ring_at(&l->entries, i);
    if (n->e.op != OSD_LOG_ERROR && n->e.object.size == object.size &&
        memcmp(n->e.object.data, object.data, object.size) == 0)
      return n;
  }
  return NULL;
}

int pg_log_rewind(struct pg_log *l, struct osd_eversion to, const struct pg_log_sink *sink,
                  void (*divergent)(void *arg, const struct osd_log_entry *e),
                  struct pglog_error *err) {
  if (osd_eversion_cmp(to, l->tail) < 0)
    return osd_error(err, PGLOG_EINVAL,
                     "rewind to %" PRIu32 ".%" PRIu64 ": the log begins above %" PRIu32
                     ".%" PRIu64,
                     to.epoch, to.version, l->tail.epoch, l->tail.version);
  while (l->entries.n && osd_eversion_cmp(pg_log_head(l), to) > 0) {
    struct node *n = ring_pop_newest(&l->entries);
    divergent(sink->arg, &n->e);
    sink->drop_entry(sink->arg, n->e.version);
    struct object *o = object_find(l, n->e.object);
    if (o && o->newest == n)
      object_forget(l, n, newest_left(l, n->e.object));
    request_drop(l, n);
    free(n);
  }
  return 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* Comparing two logs                                                                             */

/* The newest version that both logs have. Below it they are the same: a version is given once. */
static bool common_version(const struct pg_log *a, const struct pg_log *b,
                           struct osd_eversion *out) {
  size_t i = a->entries.n, j = b->entries.n;
  while (i && j) {
    struct osd_eversion x = pg_log_entry(a, i - 1)->version, y = pg_log_entry(b, j - 1)->version;
    int c = osd_eversion_cmp(x, y);
    if (c == 0) {
      *out = x;
      return true;
    }
    if (c > 0)
      i--;
    else
      j--;
  }
  /* The tails count as versions, too: they were entries. */
  *out = osd_eversion_cmp(a->tail, b->tail) > 0 ? a->tail : b->tail;
  return osd_eversion_cmp(a->tail, b->tail) == 0 ||
         (i == 0 && j && osd_eversion_cmp(a->tail, b->tail) > 0 &&
          osd_eversion_cmp(pg_log_entry(b, j - 1)->version, a->tail) == 0) ||
         (j == 0 && i && osd_eversion_cmp(b->tail, a->tail) > 0 &&
          osd_eversion_cmp(pg_log_entry(a, i - 1)->version, b->tail) == 0);
}

/* Newest version of the object above `from`. */
static struct osd_eversion version_above(const struct pg_log *l, struct osd_slice object,
                                         struct osd_eversion from) {
  const struct osd_log_entry *e = pg_log_object(l, object);
  return e && osd_eversion_cmp(e->version, from) > 0 ? e->version : (struct osd_eversion){0, 0};
}

int pg_log_diff(const struct pg_log *replica, const struct pg_log *auth,
                void (*differs)(void *arg, struct osd_slice object, struct osd_eversion replica,
                                struct osd_eversion auth),
                void *arg, struct pglog_error *err) {
  struct osd_eversion from;
  if (!common_version(replica, auth, &from))
    return osd_error(err, PGLOG_EINVAL,
                     "the logs have no version in common: one has %" PRIu32 ".%" PRIu64
                     " to %" PRIu32 ".%" PRIu64 ", the other %" PRIu32 ".%" PRIu64
                     " to %" PRIu32 ".%" PRIu64,
                     replica->tail.epoch, replica->tail.version, pg_log_head(replica).epoch,
                     pg_log_head(replica).version, auth->tail.epoch, auth->tail.version,
                     pg_log_head(auth).epoch, pg_log_head(auth).version);
  const struct pg_log *logs[2] = {replica, auth};
  for (int which = 0; which < 2; which++) {
    struct object *o, *next;
    HASH_ITER(hh, logs[which]->objects, o, next) {
      struct osd_slice name = {o->name, o->size};
      struct osd_eversion r = version_above(replica, name, from);
      struct osd_eversion a = version_above(auth, name, from);
      bool seen = which == 1 && object_find(replica, name);
      if (osd_eversion_cmp(r, a) != 0 && !seen)
        differs(arg, name, r, a);
    }
  }
  return 0;
}
