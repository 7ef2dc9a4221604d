/* SPDX-License-Identifier: Apache-2.0
 *
 * osd_pg.c - from an object's hash to its PG; holding a PG; create, split, delete.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "osd_internal.h"

static uint32_t mask(uint32_t bits) {
  return (uint32_t)((1ull << bits) - 1);
}

/* ---------------------------------------------------------------------------------------------- */
/* A PG                                                                                           */

struct pg *pg_new(struct osd *o, uint32_t id, uint32_t bits) {
  struct pg *pg = calloc(1, sizeof *pg);
  if (!pg)
    return NULL;
  pg->id = id;
  pg->bits = bits;
  snprintf(pg->name, sizeof pg->name, "1.%" PRIx32, id);
  opq_pg_init(&pg->q, o->q, id);
  pthread_mutex_init(&pg->lock, NULL);
  pg->held_last = &pg->held_first;
  return pg;
}

void pg_free(struct pg *pg) {
  if (!pg)
    return;
  pg_log_free(pg->log);
  pthread_mutex_destroy(&pg->lock);
  free(pg);
}

void pg_figures(struct pg *pg) {
  struct osd_eversion tail = pg_log_tail(pg->log), head = pg_log_head(pg->log);
  pthread_mutex_lock(&pg->lock);
  pg->figures = (struct osd_pg_info){.id = pg->id,
                                     .bits = pg->bits,
                                     .objects = pg->info.objects,
                                     .tail_epoch = tail.epoch,
                                     .tail_version = tail.version,
                                     .head_epoch = head.epoch,
                                     .head_version = head.version,
                                     .entries = pg_log_entries(pg->log),
                                     .dups = pg_log_dups(pg->log)};
  pthread_mutex_unlock(&pg->lock);
}

/* ---------------------------------------------------------------------------------------------- */
/* The directory                                                                                  */

struct pg *pg_find(struct osd *o, uint32_t hash) {
  /* Sequentially consistent: pg_route() asks again after it is counted in the PG. */
  struct pg_dir *d = atomic_load(&o->dir);
  return d ? atomic_load(&d->pg[hash & mask(d->bits)]) : NULL;
}

int dir_reserve(struct osd *o, uint32_t bits, struct pglog_error *err) {
  struct pg_dir *old = atomic_load(&o->dir);
  if (old && old->bits >= bits)
    return 0;
  struct pg_dir *d = calloc(1, sizeof *d + (sizeof *d->pg << bits));
  if (!d)
    return osd_error(err, PGLOG_ENOMEM, "out of memory for a directory of 2^%" PRIu32 " PGs", bits);
  d->bits = bits;
  d->older = old;
  for (uint32_t i = 0; old && i <= mask(bits); i++)
    atomic_store_explicit(&d->pg[i], atomic_load(&old->pg[i & mask(old->bits)]),
                          memory_order_relaxed);
  atomic_store(&o->dir, d);
  return 0;
}

struct pg *dir_taken(struct osd *o, uint32_t id, uint32_t bits) {
  struct pg_dir *d = atomic_load(&o->dir);
  struct pg *pg = NULL;
  for (uint64_t i = id; d && !pg && i <= mask(d->bits); i += 1ull << bits)
    pg = atomic_load(&d->pg[i]);
  return d && bits > d->bits ? atomic_load(&d->pg[id & mask(d->bits)]) : pg;
}

static void dir_set(struct osd *o, uint32_t id, uint32_t bits, struct pg *pg) {
  struct pg_dir *d = atomic_load(&o->dir);
  for (uint64_t i = id; i <= mask(d->bits); i += 1ull << bits)
    atomic_store(&d->pg[i], pg);
}

void pg_publish(struct osd *o, struct pg *pg) {
  pg->next = o->pgs;
  o->pgs = pg;
  o->n_pgs++;
  dir_set(o, pg->id, pg->bits, pg);
}

static struct pg *pg_by_id(struct osd *o, uint32_t id) {
  struct pg_dir *d = atomic_load(&o->dir);
  struct pg *pg = d ? atomic_load(&d->pg[id & mask(d->bits)]) : NULL;
  return pg && pg->id == id ? pg : NULL;
}

void pgs_free(struct osd *o) {
  for (struct pg *pg = o->pgs, *next; pg; pg = next) {
    next = pg->next;
    pg_free(pg);
  }
  for (struct pg_dir *d = atomic_load(&o->dir), *older; d; d = older) {
    older = d->older;
    free(d);
  }
}

/* ---------------------------------------------------------------------------------------------- */
/* Routing and holding                                                                            */

/* Count the request in its PG and queue it, if the PG is not held. */
static int route_now(struct osd *o, struct pg *pg, struct request *r, int flags, bool *done) {
  atomic_fetch_add(&pg->in_flight, 1);
  *done = !atomic_load(&pg->held) && pg_find(o, r->hash) == pg;
  if (!*done) {
    pg_leave(o, pg);
    return 0;
  }
  r->pg = pg;
  r->q.pg = &pg->q;
  int rc = opq_submit(o->q, &r->q, flags);
  if (rc)
    pg_leave(o, pg);
  return rc;
}

/* Put it aside if the PG is held. */
static bool route_later(struct osd *o, struct request *r) {
  pthread_mutex_lock(&o->route_lock);
  struct pg *pg = pg_find(o, r->hash);
  bool held = pg && atomic_load(&pg->held);
  if (held) {
    r->next = NULL;
    *pg->held_last = r;
    pg->held_last = &r->next;
  }
  pthread_mutex_unlock(&o->route_lock);
  return held;
}

int pg_route(struct osd *o, struct request *r, struct pglog_error *err) {
  /* A callback runs nothing: it would nest, and hold up what waits for this thread. */
  int flags = request_answering() ? OPQ_QUEUE : 0;
  for (;;) {
    struct pg *pg = pg_find(o, r->hash);
    bool done;
    if (!pg)
      return osd_error(err, PGLOG_ENOTFOUND, "no PG for an object with hash %08" PRIx32, r->hash);
    int rc = route_now(o, pg, r, flags, &done);
    if (rc)
      return osd_error(err, rc, "the op queue is stopping");
    if (done || route_later(o, r))
      return 0;
  }
}

void pg_leave(struct osd *o, struct pg *pg) {
  if (atomic_fetch_sub(&pg->in_flight, 1) != 1 || !atomic_load(&pg->held))
    return;
  pthread_mutex_lock(&o->route_lock);
  pthread_cond_broadcast(&o->idle);
  pthread_mutex_unlock(&o->route_lock);
}

/* From here on nothing of the PG is in flight, and nothing new comes. */
static void pg_hold(struct osd *o, struct pg *pg) {
  pthread_mutex_lock(&o->route_lock);
  atomic_store(&pg->held, true);
  while (atomic_load(&pg->in_flight) && !o->manual)
    pthread_cond_wait(&o->idle, &o->route_lock);
  pthread_mutex_unlock(&o->route_lock);
  if (o->manual)
    osd_drain(o);
}

/* Queue one that was put aside. Its PG may be another one by now, or none. */
static void held_submit(struct osd *o, struct pg *old, struct request *r) {
  struct pg *pg = pg_find(o, r->hash);
  r->pg = pg ? pg : old;
  r->q.pg = &r->pg->q;
  atomic_fetch_add(&r->pg->in_flight, 1);
  int rc = pg ? opq_submit(o->q, &r->q, OPQ_QUEUE)
              : osd_error(&r->res.error, PGLOG_ENOTFOUND, "no PG any more");
  if (rc) {
    r->res.code = rc;
    commit_queue(r); /* to be answered by its thread */
  }
}

/* What was put aside goes first; only then is the way open. */
static void pg_release(struct osd *o, struct pg *pg, struct pg *child) {
  pthread_mutex_lock(&o->route_lock);
  struct request *r = pg->held_first, *next;
  for (; r; r = next) {
    next = r->next;
    held_submit(o, pg, r);
  }
  pg->held_first = NULL;
  pg->held_last = &pg->held_first;
  atomic_store(&pg->held, false);
  if (child)
    atomic_store(&child->held, false);
  pthread_mutex_unlock(&o->route_lock);
}

int admin_begin(struct osd *o, uint32_t id, struct pg **pg, struct pglog_error *err) {
  if (request_answering())
    return osd_error(err, PGLOG_EINVAL, "a callback must not wait");
  pthread_mutex_lock(&o->pgs_lock);
  *pg = pg_by_id(o, id);
  if (*pg) {
    pg_hold(o, *pg);
    return 0;
  }
  pthread_mutex_unlock(&o->pgs_lock);
  return osd_error(err, PGLOG_ENOTFOUND, "no PG 1.%" PRIx32, id);
}

void admin_end(struct osd *o, struct pg *pg, struct pg *child) {
  pg_release(o, pg, child);
  pthread_mutex_unlock(&o->pgs_lock);
}

/* ---------------------------------------------------------------------------------------------- */
/* Create                                                                                         */

static int create_check(struct osd *o, uint32_t id, uint32_t bits, struct pglog_error *err) {
  if (bits > OSD_PG_BITS_MAX)
    return osd_error(err, PGLOG_EINVAL, "PG: bits is %" PRIu32 ", the limit is %u", bits,
                     OSD_PG_BITS_MAX);
  if (id > mask(bits))
    return osd_error(err, PGLOG_EINVAL,
                     "PG: id is %" PRIu32 ", the limit for %" PRIu32 " bits is %" PRIu32, id, bits,
                     mask(bits));
  struct pg *taken = dir_taken(o, id, bits);
  if (taken)
    return osd_error(err, PGLOG_EEXIST, "PG 1.%" PRIx32 ": its hashes, or some, are PG %s's", id,
                     taken->name);
  return 0;
}

static int create_locked(struct osd *o, uint32_t id, uint32_t bits, struct pglog_error *err) {
  int rc = create_check(o, id, bits, err);
  if (rc == 0)
    rc = dir_reserve(o, bits, err);
  if (rc)
    return rc;
  struct pg_log_limits limits = osd_log_limits(o);
  struct osd_eversion none = {0, 0};
  struct kv_batch b = {0};
  struct pg *pg = pg_new(o, id, bits);
  if (!pg || pg_log_new(&pg->log, &limits, none) != 0) {
    pg_free(pg);
    return osd_error(err, PGLOG_ENOMEM, "out of memory for a PG");
  }
  pg->info = (struct osd_info){.bits = bits, .epoch = 1};
  put_info(&b, pg, &pg->info);
  put_fastinfo(&b, pg, none, osd_wall_ns());
  put_super(&b, o->n_pgs + 1);
  rc = commit_wait(o, pg, &b, err);
  if (rc) {
    pg_free(pg);
    return rc;
  }
  pg_figures(pg);
  pthread_mutex_lock(&o->route_lock);
  pg_publish(o, pg);
  pthread_mutex_unlock(&o->route_lock);
  return 0;
}

int osd_pg_create(struct osd *o, uint32_t id, uint32_t bits, struct pglog_error *err) {
  if (request_answering())
    return osd_error(err, PGLOG_EINVAL, "a callback must not wait");
  pthread_mutex_lock(&o->pgs_lock);
  int rc = create_locked(o, id, bits, err);
  pthread_mutex_unlock(&o->pgs_lock);
  return rc;
}

/* ---------------------------------------------------------------------------------------------- */
/* Split                                                                                          */

struct split {
  struct osd *o;
  struct pg *parent, *child;
  struct pg_log *log; /* the parent's new one */
  struct kv_batch b;
};

static void delete_entry(struct split *s, struct osd_eversion v) {
  char name[OSD_NAME_MAX], key[OSD_PG_KEY_MAX];
  osd_entry_name(name, v);
  struct osd_slice k = {(uint8_t *)key, pg_key(key, s->parent, name)};
  kv_delete(&s->b, k);
}

static int split_dups(struct split *s, struct pglog_error *err) {
  int rc = 0;
  for (size_t i = 0; i < pg_log_dups(s->parent->log) && rc == 0; i++) {
    struct osd_dup d = *pg_log_dup(s->parent->log, i);
    rc = pg_log_add_dup(s->log, &d, err);
    if (rc == 0)
      rc = pg_log_add_dup(s->child->log, &d, err);
    put_dup(&s->b, s->child, &d);
  }
  return rc;
}

static int split_entries(struct split *s, struct pglog_error *err) {
  int rc = 0;
  for (size_t i = 0; i < pg_log_entries(s->parent->log) && rc == 0; i++) {
    const struct osd_log_entry *e = pg_log_entry(s->parent->log, i);
    bool moves = osd_hash(e->object.data, e->object.size) >> s->parent->bits & 1;
    rc = pg_log_add(moves ? s->child->log : s->log, e, err);
    if (moves) {
      delete_entry(s, e->version);
      put_entry(&s->b, s->child, e);
    }
  }
  return rc;
}

static int count_one(void *arg, struct osd_slice key, struct osd_slice value,
                     struct pglog_error *err) {
  (void)key, (void)value, (void)err;
  ++*(uint64_t *)arg;
  return 0;
}

/* Objects stay where they are: their keys have the hash, not the PG. */
static int count_objects(struct osd *o, uint32_t id, uint32_t bits, uint64_t *n,
                         struct pglog_error *err) {
  uint8_t begin[8], end[8];
  struct osd_slice b = {begin, hash_bound(begin, 'o', id, bits, false)};
  struct osd_slice e = {end, hash_bound(end, 'o', id, bits, true)};
  *n = 0;
  return o->kv.scan(o->kv.arg, b, e, count_one, n, err);
}

static int split_begin(struct split *s, struct pglog_error *err) {
  struct pg *p = s->parent;
  struct pg_log_limits limits = osd_log_limits(s->o);
  uint32_t id = p->id | 1u << p->bits;
  s->child = pg_new(s->o, id, p->bits + 1);
  if (!s->child || pg_log_new(&s->log, &limits, pg_log_tail(p->log)) != 0 ||
      pg_log_new(&s->child->log, &limits, pg_log_tail(p->log)) != 0)
    return osd_error(err, PGLOG_ENOMEM, "PG %s: out of memory for a split", p->name);
  s->child->info = (struct osd_info){
      .log_tail = pg_log_tail(p->log), .bits = p->bits + 1, .epoch = p->info.epoch + 1};
  atomic_store(&s->child->held, true);
  return count_objects(s->o, id, p->bits + 1, &s->child->info.objects, err);
}

/* All that the split changes on disk, in one batch. */
static int split_write(struct split *s, struct osd_info *info, struct pglog_error *err) {
  struct pg *p = s->parent, *c = s->child;
  uint64_t now = osd_wall_ns();
  int rc = split_dups(s, err);
  if (rc == 0)
    rc = split_entries(s, err);
  if (rc)
    return rc;
  *info = p->info;
  info->bits++;
  info->epoch++;
  info->objects -= c->info.objects;
  put_info(&s->b, p, info);
  put_info(&s->b, c, &c->info);
  put_fastinfo(&s->b, p, pg_log_head(s->log), now);
  put_fastinfo(&s->b, c, pg_log_head(c->log), now);
  put_super(&s->b, s->o->n_pgs + 1);
  return commit_wait(s->o, p, &s->b, err);
}

static void split_finish(struct split *s, const struct osd_info *info) {
  struct pg *p = s->parent;
  pg_log_free(p->log);
  p->log = s->log;
  p->info = *info;
  p->bits++;
  pg_figures(p);
  pg_figures(s->child);
  pthread_mutex_lock(&s->o->route_lock);
  pg_publish(s->o, s->child);
  pthread_mutex_unlock(&s->o->route_lock);
}

static int split_held(struct split *s, struct pglog_error *err) {
  struct osd_info info;
  if (s->parent->bits >= OSD_PG_BITS_MAX)
    return osd_error(err, PGLOG_ETOOBIG, "PG %s has %" PRIu32 " bits, the limit is %u",
                     s->parent->name, s->parent->bits, OSD_PG_BITS_MAX);
  int rc = dir_reserve(s->o, s->parent->bits + 1, err);
  if (rc == 0)
    rc = split_begin(s, err);
  if (rc == 0)
    rc = split_write(s, &info, err);
  if (rc == 0) {
    split_finish(s, &info);
    return 0;
  }
  kv_batch_free(&s->b);
  pg_log_free(s->log);
  pg_free(s->child);
  s->child = NULL;
  return rc;
}

int osd_pg_split(struct osd *o, uint32_t id, uint32_t *child, struct pglog_error *err) {
  struct split s = {.o = o};
  int rc = admin_begin(o, id, &s.parent, err);
  if (rc)
    return rc;
  rc = split_held(&s, err);
  if (rc == 0 && child)
    *child = s.child->id;
  admin_end(o, s.parent, s.child);
  return rc;
}

/* ---------------------------------------------------------------------------------------------- */
/* Delete                                                                                         */

static void delete_all(struct kv_batch *b, const struct pg *pg) {
  char begin[OSD_PG_KEY_MAX], end[OSD_PG_KEY_MAX];
  struct osd_slice f = {(uint8_t *)begin, pg_key(begin, pg, "")};
  struct osd_slice t = {(uint8_t *)end, pg_key(end, pg, "")};
  end[t.size - 1]++; /* behind the '/' */
  kv_delete_range(b, f, t);
  for (const char *kind = "ob"; *kind; kind++) {
    uint8_t from[8], to[8];
    struct osd_slice o = {from, hash_bound(from, *kind, pg->id, pg->bits, false)};
    struct osd_slice e = {to, hash_bound(to, *kind, pg->id, pg->bits, true)};
    kv_delete_range(b, o, e);
  }
}

int osd_pg_delete(struct osd *o, uint32_t id, struct pglog_error *err) {
  struct pg *pg;
  struct kv_batch b = {0};
  int rc = admin_begin(o, id, &pg, err);
  if (rc)
    return rc;
  delete_all(&b, pg);
  put_super(&b, o->n_pgs - 1);
  rc = commit_wait(o, pg, &b, err);
  if (rc == 0) {
    pthread_mutex_lock(&o->route_lock);
    dir_set(o, pg->id, pg->bits, NULL);
    pthread_mutex_unlock(&o->route_lock);
    o->n_pgs--;
    pg->gone = true;
    pg_log_free(pg->log);
    pg->log = NULL;
  }
  admin_end(o, pg, NULL);
  return rc;
}
