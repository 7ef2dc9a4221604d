/* SPDX-License-Identifier: Apache-2.0
 *
 * osd_commit.c - the committer: takes all that is queued, writes it as one batch, answers in order.
 * It never waits for more to come: while it writes, the next group gathers by itself.
 */
#include <stdlib.h>

#include "osd_internal.h"

static bool has_batch(const struct request *r) {
  return r->batch.size || r->batch.no_memory;
}

void commit_queue(struct request *r) {
  struct commit *c = &r->o->commit;
  r->queued = true;
  r->next = NULL;
  atomic_fetch_add_explicit(&r->pg->pending, 1, memory_order_relaxed);
  pthread_mutex_lock(&c->lock);
  *c->last = r;
  c->last = &r->next;
  bool wake = c->waiting;
  c->waiting = false;
  pthread_mutex_unlock(&c->lock);
  if (wake)
    pthread_cond_signal(&c->work);
}

/* Cut a group off the front of the queue; lock held. */
static struct request *group_take(struct commit *c, uint32_t most) {
  struct request *first = c->first, *r;
  struct request **last = &c->first;
  uint64_t bytes = 0;
  for (uint32_t n = 0; (r = *last) != NULL && n < most && bytes < OSD_GROUP_BYTES; n++) {
    bytes += r->batch.size;
    last = &r->next;
  }
  if (last == &c->first)
    return NULL;
  c->first = *last;
  *last = NULL;
  if (!c->first)
    c->last = &c->first;
  return first;
}

/* ---------------------------------------------------------------------------------------------- */
/* Writing                                                                                        */

int osd_poisoned(struct osd *o, struct pglog_error *err) {
  if (!atomic_load_explicit(&o->poisoned, memory_order_acquire))
    return 0;
  return osd_error(err, PGLOG_EPOISONED, "stopped after a failed commit: %.600s", o->poison.text);
}

static void poison(struct osd *o, const struct pglog_error *err) {
  o->poison = *err;
  atomic_store_explicit(&o->poisoned, true, memory_order_release);
  osd_log(o, "commit failed, nothing is accepted until the next open: %s", err->text);
}

static void count_group(struct osd *o, uint64_t n) {
  atomic_fetch_add_explicit(&o->groups, 1, memory_order_relaxed);
  if (n > atomic_load_explicit(&o->group_max, memory_order_relaxed))
    atomic_store_explicit(&o->group_max, n, memory_order_relaxed);
}

/* The group's batch: the only one there is, or all of them copied. */
static const struct kv_batch *group_batch(struct osd *o, struct request *first, uint64_t *n) {
  struct kv_batch *all = &o->commit.group;
  const struct kv_batch *only = NULL;
  *n = 0;
  for (struct request *r = first; r; r = r->next)
    if (has_batch(r)) {
      only = &r->batch;
      ++*n;
    }
  if (*n < 2)
    return only;
  if (all->cap > 2 * OSD_GROUP_BYTES)
    kv_batch_free(all);
  kv_batch_clear(all);
  for (struct request *r = first; r; r = r->next)
    kv_append(all, &r->batch);
  return all;
}

static int group_write(struct osd *o, struct request *first, struct pglog_error *err) {
  uint64_t n;
  const struct kv_batch *b = group_batch(o, first, &n);
  int rc = n ? osd_poisoned(o, err) : 0;
  if (!n || rc)
    return rc;
  rc = o->kv.write(o->kv.arg, b, true, err);
  if (rc)
    poison(o, err);
  count_group(o, n);
  return rc;
}

static void fail(struct request *r, int code, const struct pglog_error *err) {
  free(r->res.data);
  r->res = (struct osd_result){.code = code, .error = *err};
}

/* What was not written fails, and what was queued behind it in its PG: it may have seen it. */
static void finish(struct request *r, int rc, const struct pglog_error *err) {
  struct pglog_error behind;
  if (rc && has_batch(r)) {
    r->pg->failed = true;
    fail(r, rc, err);
  } else if (r->pg->failed) {
    fail(r, osd_poisoned(r->o, &behind), &behind);
  }
  overlay_drop(r);
  request_answer(r);
}

static void stage_all(struct request *first, enum osd_stage stage) {
  for (struct request *r = first; r; r = r->next)
    request_stage(r, stage);
}

uint32_t osd_step_commit(struct osd *o, uint32_t most) {
  pthread_mutex_lock(&o->commit.lock);
  struct request *first = group_take(&o->commit, most), *next;
  pthread_mutex_unlock(&o->commit.lock);
  struct pglog_error err = {0, ""};
  uint32_t n = 0;
  stage_all(first, OSD_GROUPED);
  int rc = first ? group_write(o, first, &err) : 0;
  stage_all(first, OSD_WRITTEN);
  for (struct request *r = first; r; r = next, n++) {
    next = r->next;
    finish(r, rc, &err);
  }
  return n;
}

/* ---------------------------------------------------------------------------------------------- */
/* The thread                                                                                     */

static bool commit_more(struct commit *c) {
  pthread_mutex_lock(&c->lock);
  while (!c->first && !c->stop) {
    c->waiting = true;
    pthread_cond_wait(&c->work, &c->lock);
  }
  c->waiting = false;
  bool more = c->first != NULL;
  pthread_mutex_unlock(&c->lock);
  return more;
}

static void *commit_main(void *arg) {
  struct osd *o = arg;
  while (commit_more(&o->commit))
    osd_step_commit(o, UINT32_MAX);
  return NULL;
}

int commit_start(struct osd *o, bool manual, struct pglog_error *err) {
  struct commit *c = &o->commit;
  int rc = manual ? 0 : pthread_create(&c->thread, NULL, commit_main, o);
  if (rc)
    return osd_error(err, PGLOG_ENOMEM, "the committer cannot be started: %s", strerror(rc));
  c->started = !manual;
  if (c->started)
    pthread_setname_np(c->thread, "osd:commit");
  return 0;
}

void commit_stop(struct osd *o) {
  struct commit *c = &o->commit;
  pthread_mutex_lock(&c->lock);
  c->stop = true;
  pthread_cond_signal(&c->work);
  pthread_mutex_unlock(&c->lock);
  if (c->started)
    pthread_join(c->thread, NULL);
  c->started = false;
  kv_batch_free(&c->group);
}

/* ---------------------------------------------------------------------------------------------- */
/* A batch of PG administration                                                                   */

int commit_wait(struct osd *o, struct pg *pg, struct kv_batch *b, struct pglog_error *err) {
  struct osd_result res = {0};
  struct wait w = WAIT_INIT(&res);
  struct request *r = calloc(1, sizeof *r);
  if (!r || b->no_memory) {
    free(r);
    kv_batch_free(b);
    return osd_error(err, PGLOG_ENOMEM, "PG %s: out of memory for a batch", pg->name);
  }
  r->o = o;
  r->pg = pg;
  r->internal = true;
  r->done = wait_done;
  r->arg = &w;
  r->batch = *b;
  *b = (struct kv_batch){0};
  commit_queue(r);
  while (o->manual && !w.done)
    osd_step_commit(o, UINT32_MAX);
  wait_end(&w);
  if (res.code && err)
    *err = res.error;
  return res.code;
}
