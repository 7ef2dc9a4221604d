/* SPDX-License-Identifier: Apache-2.0
 *
 * osd_request.c - a request's life: made, counted against the limits, listed while in flight,
 * answered.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "osd_internal.h"

static _Thread_local bool answering; /* this thread is in a callback */

bool request_answering(void) {
  return answering;
}

uint64_t osd_wall_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void request_stage(struct request *r, enum osd_stage stage) {
  atomic_store_explicit(&r->at[stage], opq_now(), memory_order_relaxed);
}

/* ---------------------------------------------------------------------------------------------- */
/* Making                                                                                         */

static bool has_data(int op) {
  return op == OSD_WRITE || op == OSD_WRITE_FULL;
}

int request_new(struct osd *o, const struct osd_request *q, struct request **out,
                struct pglog_error *err) {
  struct request *r = calloc(1, sizeof *r + q->name_size);
  if (!r)
    return osd_error(err, PGLOG_ENOMEM, "out of memory for a request");
  r->o = o;
  r->op = (uint8_t)q->op;
  r->q.prio = (uint8_t)q->prio;
  memcpy(r->name_bytes, q->name, q->name_size);
  r->name = (struct osd_slice){r->name_bytes, q->name_size};
  r->hash = osd_hash(q->name, q->name_size);
  r->stripe = r->hash % OSD_STRIPES;
  r->offset = q->op == OSD_WRITE_FULL ? 0 : q->offset;
  r->length = q->length;
  r->id = (struct osd_reqid){.client = q->client, .tid = q->tid, .incarnation = q->incarnation};
  r->done = q->done;
  r->arg = q->arg;
  if (has_data(q->op) && q->length && !q->keep_data) {
    r->own_data = malloc(q->length);
    if (!r->own_data) {
      free(r);
      return osd_error(err, PGLOG_ENOMEM, "out of memory for a request of %" PRIu64 " bytes",
                       q->length);
    }
    memcpy(r->own_data, q->data, q->length);
  }
  r->data = r->own_data ? r->own_data : q->data;
  request_stage(r, OSD_SUBMITTED);
  *out = r;
  return 0;
}

void request_free(struct request *r) {
  for (uint32_t i = 0; i < r->n_layers; i++)
    free(r->layer[i].data);
  kv_batch_free(&r->batch);
  free(r->own_data);
  free(r);
}

/* ---------------------------------------------------------------------------------------------- */
/* Limits                                                                                         */

/* Take first, look then, give back what was too much: no lock while there is room. */
static bool limit_try(struct osd *o, uint64_t bytes) {
  uint64_t ops = atomic_fetch_add(&o->ops_now, 1);
  uint64_t before = atomic_fetch_add(&o->bytes_now, bytes);
  /* One alone may pass max_bytes: it would wait for ever. */
  if (ops < o->c.max_ops && (before + bytes <= o->c.max_bytes || !before))
    return true;
  atomic_fetch_sub(&o->bytes_now, bytes);
  atomic_fetch_sub(&o->ops_now, 1);
  return false;
}

/* Wake those that wait. Whoever gives does so before it looks for waiters; whoever waits says so
 * before it looks for room (limit_wait()). All four are sequentially consistent, so that at least
 * one sees the other. */
static void limit_wake(struct osd *o) {
  if (!atomic_load(&o->limit_waiters))
    return;
  pthread_mutex_lock(&o->limit_lock);
  pthread_cond_broadcast(&o->room);
  pthread_mutex_unlock(&o->limit_lock);
}

static void limit_wait(struct osd *o, uint64_t bytes) {
  pthread_mutex_lock(&o->limit_lock);
  atomic_fetch_add(&o->limit_waiters, 1);
  while (!limit_try(o, bytes))
    pthread_cond_wait(&o->room, &o->limit_lock);
  atomic_fetch_sub(&o->limit_waiters, 1);
  pthread_mutex_unlock(&o->limit_lock);
}

int limit_take(struct osd *o, uint64_t bytes, int flags, struct pglog_error *err) {
  if (limit_try(o, bytes))
    return 0;
  limit_wake(o); /* what was taken for a moment may have been in another one's way */
  if (flags & OPQ_NOWAIT)
    return osd_error(err, PGLOG_EBUSY,
                     "no room for a request of %" PRIu64 " bytes: max_ops is %" PRIu32
                     ", max_bytes is %" PRIu64,
                     bytes, o->c.max_ops, o->c.max_bytes);
  atomic_fetch_add_explicit(&o->waits, 1, memory_order_relaxed);
  limit_wait(o, bytes);
  return 0;
}

void limit_give(struct osd *o, uint64_t bytes) {
  atomic_fetch_sub(&o->bytes_now, bytes);
  atomic_fetch_sub(&o->ops_now, 1);
  limit_wake(o);
}

/* ---------------------------------------------------------------------------------------------- */
/* In flight                                                                                      */

void in_flight_add(struct osd *o, struct request *r) {
  struct stripe *s = &o->stripes[r->stripe];
  pthread_mutex_lock(&s->lock);
  r->seq = atomic_fetch_add_explicit(&o->seq, 1, memory_order_relaxed);
  r->left = s->last;
  if (s->last)
    s->last->right = r;
  else
    s->first = r;
  s->last = r;
  pthread_mutex_unlock(&s->lock);
}

void in_flight_remove(struct osd *o, struct request *r) {
  struct stripe *s = &o->stripes[r->stripe];
  pthread_mutex_lock(&s->lock);
  if (r->left)
    r->left->right = r->right;
  else
    s->first = r->right;
  if (r->right)
    r->right->left = r->left;
  else
    s->last = r->left;
  pthread_mutex_unlock(&s->lock);
  /* A drain that has seen this one in the list was counted before, under the stripe's lock. */
  if (!atomic_load_explicit(&o->drainers, memory_order_relaxed))
    return;
  pthread_mutex_lock(&o->drain_lock);
  pthread_cond_broadcast(&o->drained);
  pthread_mutex_unlock(&o->drain_lock);
}

static bool any_before(struct osd *o, uint64_t seq) {
  bool found = false;
  for (uint32_t i = 0; i < OSD_STRIPES && !found; i++) {
    struct stripe *s = &o->stripes[i];
    pthread_mutex_lock(&s->lock);
    found = s->first && s->first->seq < seq;
    pthread_mutex_unlock(&s->lock);
  }
  return found;
}

static void step_all(struct osd *o) {
  for (uint32_t i = 0; i < o->c.shards * o->c.threads; i++)
    osd_step_worker(o, i);
  osd_step_commit(o, UINT32_MAX);
}

void osd_drain(struct osd *o) {
  uint64_t seq = atomic_load_explicit(&o->seq, memory_order_relaxed);
  while (o->manual && any_before(o, seq))
    step_all(o);
  pthread_mutex_lock(&o->drain_lock);
  atomic_fetch_add_explicit(&o->drainers, 1, memory_order_relaxed);
  while (any_before(o, seq))
    pthread_cond_wait(&o->drained, &o->drain_lock);
  atomic_fetch_sub_explicit(&o->drainers, 1, memory_order_relaxed);
  pthread_mutex_unlock(&o->drain_lock);
}

/* ---------------------------------------------------------------------------------------------- */
/* Answering                                                                                      */

static void call_back(struct request *r) {
  if (!r->done) {
    free(r->res.data);
    return;
  }
  for (int i = 0; i < OSD_STAGES; i++)
    r->res.at_ns[i] = atomic_load_explicit(&r->at[i], memory_order_relaxed);
  bool outer = answering;
  answering = true;
  r->done(r->arg, &r->res);
  answering = outer;
}

void request_answer(struct request *r) {
  struct osd *o = r->o;
  struct pg *pg = r->pg;
  request_stage(r, OSD_ANSWERED);
  if (!r->internal) {
    if (r->res.code)
      atomic_fetch_add_explicit(&o->errors, 1, memory_order_relaxed);
    slow_note(r);
    limit_give(o, r->bytes); /* before the callback, which may submit the next one */
  }
  call_back(r);
  /* Release: whoever sees it go to 0 answers at once, behind this callback. */
  if (r->queued)
    atomic_fetch_sub_explicit(&pg->pending, 1, memory_order_release);
  if (!r->internal) {
    pg_leave(o, pg);
    in_flight_remove(o, r);
  }
  request_free(r);
}

/* ---------------------------------------------------------------------------------------------- */
/* Waiting for an answer                                                                          */

void wait_done(void *arg, struct osd_result *res) {
  struct wait *w = arg;
  pthread_mutex_lock(&w->lock);
  *w->out = *res;
  w->done = true;
  pthread_cond_signal(&w->cond);
  pthread_mutex_unlock(&w->lock);
}

void wait_end(struct wait *w) {
  pthread_mutex_lock(&w->lock);
  while (!w->done)
    pthread_cond_wait(&w->cond, &w->lock);
  pthread_mutex_unlock(&w->lock);
  pthread_mutex_destroy(&w->lock);
  pthread_cond_destroy(&w->cond);
}
