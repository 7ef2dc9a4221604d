/* SPDX-License-Identifier: Apache-2.0
 *
 * opq.c - what all op queues share; see opq_internal.h.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "opq_internal.h"
#include "osd_error.h"

#define SHARDS_MAX 1024
#define THREADS_MAX 64
#define CAPACITY_MAX (1u << 20)
#define CAPACITY 4096
#define WEIGHT_MAX 1000
#define SPIN_MAX_US 1000
#define SPIN_US 30

static const uint32_t weights[OPQ_PRIOS] = {[OPQ_CLIENT] = 8, [OPQ_RECOVERY] = 1};

const char *opq_kind_str(int kind) {
  static const char *const names[OPQ_KINDS] = {"single", "sharded", "fast"};
  return kind >= 0 && kind < OPQ_KINDS ? names[kind] : NULL;
}

uint64_t opq_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---------------------------------------------------------------------------------------------- */
/* Taking; the shard's lock is held                                                               */

void pg_done(struct opq_shard *s, struct opq_pg *pg) {
  if (--pg->claims)
    return;
  pg->owner = NULL;
  struct opq_op *op = pg->first;
  if (!op)
    return;
  if (!(pg->first = op->next))
    pg->last = &pg->first;
  s->parked--;
  pg->claims = 1; /* for whoever takes it: later ones must not pass it */
  opq_list_add(&s->ready, op);
}

static void pg_park(struct opq_shard *s, struct opq_op *op) {
  struct opq_pg *pg = op->pg;
  op->next = NULL;
  *pg->last = op;
  pg->last = &op->next;
  s->parked++;
}

/* The next operation by priority. A class that has used its credit up lets the others go first. */
static struct opq_op *by_weight(const struct opq *q, struct opq_shard *s) {
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < OPQ_PRIOS; i++)
      if (s->credit[i] && !opq_list_empty(&s->list[i])) {
        s->credit[i]--;
        return opq_list_pop(&s->list[i]);
      }
    memcpy(s->credit, q->c.weight, sizeof s->credit);
  }
  return NULL;
}

static struct opq_op *take_one(struct opq_worker *w) {
  struct opq_shard *s = w->s;
  struct opq_op *op = opq_list_pop(&s->ready);
  if (op) {
    op->pg->owner = w;
    return op;
  }
  while ((op = by_weight(w->q, s)) != NULL) {
    struct opq_pg *pg = op->pg;
    /* Ours since earlier in this batch will do: the batch is run in order. */
    if (pg->claims == 0 || (pg->owner == w && !pg->first)) {
      pg->claims++;
      pg->owner = w;
      return op;
    }
    pg_park(s, op);
  }
  return NULL;
}

uint32_t worker_take(struct opq_worker *w) {
  struct opq_shard *s = w->s;
  for (uint32_t i = 0; i < w->n; i++)
    pg_done(s, w->pg[i]);
  s->st.run += w->n;
  if (w->q->c.kind == OPQ_FAST)
    fast_collect(s);
  /* With more workers than one, what one has taken the others could be running. */
  uint32_t most = w->q->c.threads == 1 ? OPQ_BATCH : 1;
  struct opq_op *op;
  for (w->n = 0; w->n < most && (op = take_one(w)) != NULL; w->n++) {
    w->op[w->n] = op;
    w->pg[w->n] = op->pg;
  }
  return w->n;
}

/* ---------------------------------------------------------------------------------------------- */
/* Workers                                                                                        */

/* `taken_ns`: the caller's last reading of the clock, if it has just been taken; 0: read it here.
 */
static void run_op(struct opq *q, struct opq_op *op, uint64_t taken_ns) {
  if (q->c.probes)
    op->taken_ns = taken_ns ? taken_ns : opq_now();
  q->c.run(q->c.arg, op);
}

static void run_taken(struct opq_worker *w) {
  for (uint32_t i = 0; i < w->n; i++)
    run_op(w->q, w->op[i], i == 0 ? w->taken_ns : 0);
}

/* What was taken leaves the queue: the clock, and places for others. Lock not held. */
static void taken(struct opq_worker *w, bool more) {
  uint64_t last = w->taken_ns;
  if (w->q->c.kind == OPQ_FAST) {
    w->taken_ns = opq_now();
    fast_taken(w, last, more);
  } else if (w->q->c.probes) {
    w->taken_ns = opq_now();
  }
}

/* Wait until something was taken. False: the queue stops, and there is nothing left. */
static bool worker_next(struct opq_worker *w) {
  struct opq_shard *s = w->s;
  bool fast = w->q->c.kind == OPQ_FAST;
  pthread_mutex_lock(&s->lock);
  while (!worker_take(w) && !s->stopping) {
    if (!fast) {
      locked_wait(w);
      continue;
    }
    pthread_mutex_unlock(&s->lock);
    fast_wait(w);
    pthread_mutex_lock(&s->lock);
  }
  if (w->n && !fast)
    locked_taken(w);
  bool more = fast && w->q->c.threads > 1 && fast_more(s);
  pthread_mutex_unlock(&s->lock);
  if (w->n)
    taken(w, more);
  return w->n > 0;
}

static void *worker_main(void *arg) {
  struct opq_worker *w = arg;
  atomic_store_explicit(&w->tid, (int)syscall(SYS_gettid), memory_order_release);
  while (worker_next(w))
    run_taken(w);
  return NULL;
}

uint32_t opq_step(struct opq *q, uint32_t i) {
  struct opq_worker *w = &q->workers[i];
  bool fast = q->c.kind == OPQ_FAST;
  pthread_mutex_lock(&w->s->lock);
  uint32_t n = worker_take(w);
  if (n && !fast)
    locked_taken(w);
  pthread_mutex_unlock(&w->s->lock);
  if (n) {
    taken(w, false);
    run_taken(w);
  }
  return n;
}

static void worker_pin(const struct opq_worker *w) {
  cpu_set_t set;
  if (!w->q->c.cpus)
    return;
  CPU_ZERO(&set);
  CPU_SET(w->q->c.cpus[w->index], &set);
  pthread_setaffinity_np(w->thread, sizeof set, &set);
}

static int worker_start(struct opq *q, uint32_t i, struct pglog_error *err) {
  struct opq_worker *w = &q->workers[i];
  char name[16];
  int rc = pthread_create(&w->thread, NULL, worker_main, w);
  if (rc)
    return osd_error(err, PGLOG_ENOMEM, "worker %u of %u cannot be started: %s", i, q->c.threads,
                     strerror(rc));
  q->n_workers = i + 1;
  snprintf(name, sizeof name, "opq:%u", i);
  pthread_setname_np(w->thread, name);
  worker_pin(w);
  return 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* Life                                                                                           */

static int out_of_range(struct pglog_error *err, const char *what, uint32_t low, uint32_t high,
                        uint32_t is) {
  return osd_error(err, PGLOG_EINVAL, "op queue: %s is %u, it must be %u to %u", what, is, low,
                   high);
}

static int config_check(struct opq_config *c, struct pglog_error *err) {
  if (!opq_kind_str(c->kind))
    return out_of_range(err, "kind", 0, OPQ_KINDS - 1, (uint32_t)c->kind);
  if (c->shards < 1 || c->shards > SHARDS_MAX)
    return out_of_range(err, "shards", 1, SHARDS_MAX, c->shards);
  if (c->threads < 1 || c->threads > THREADS_MAX)
    return out_of_range(err, "threads", 1, THREADS_MAX, c->threads);
  if (c->capacity > CAPACITY_MAX)
    return out_of_range(err, "capacity", 0, CAPACITY_MAX, c->capacity);
  if (c->spin_max_us > SPIN_MAX_US)
    return out_of_range(err, "spin_max_us", 0, SPIN_MAX_US, c->spin_max_us);
  for (int i = 0; i < OPQ_PRIOS; i++)
    if (c->weight[i] > WEIGHT_MAX)
      return out_of_range(err, "weight", 0, WEIGHT_MAX, c->weight[i]);
  if (!c->run)
    return osd_error(err, PGLOG_EINVAL, "op queue: run is NULL");
  return 0;
}

static void config_complete(struct opq_config *c) {
  if (c->kind == OPQ_SINGLE) {
    c->threads *= c->shards;
    c->shards = 1;
  }
  if (!c->capacity)
    c->capacity = CAPACITY;
  if (!c->spin_max_us)
    c->spin_max_us = SPIN_US;
  for (int i = 0; i < OPQ_PRIOS; i++)
    if (!c->weight[i])
      c->weight[i] = weights[i];
}

/* What was not set up is all zero, and may be released. */
static int shard_init(struct opq *q, struct opq_shard *s) {
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->work, NULL);
  pthread_cond_init(&s->room, NULL);
  opq_list_init(&s->ready);
  for (int i = 0; i < OPQ_PRIOS; i++) {
    opq_list_init(&s->list[i]);
    s->credit[i] = q->c.weight[i];
  }
  return q->c.kind == OPQ_FAST ? fast_init(s, q->c.capacity) : 0;
}

static uint32_t processors(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
}

static void *alloc_lines(size_t n, size_t size) {
  void *p = aligned_alloc(OPQ_LINE, n * size);
  return p ? memset(p, 0, n * size) : NULL;
}

static void worker_init(struct opq *q, uint32_t i) {
  q->workers[i].q = q;
  q->workers[i].s = &q->shards[i / q->c.threads];
  q->workers[i].index = i;
}

static int make(struct opq **out, const struct opq_config *config, bool start,
                struct pglog_error *err) {
  struct opq_config c = *config;
  int rc = config_check(&c, err);
  if (rc)
    return rc;
  config_complete(&c);
  struct opq *q = calloc(1, sizeof *q);
  if (!q)
    return osd_error(err, PGLOG_ENOMEM, "op queue: out of memory");
  q->c = c;
  uint32_t n = c.shards * c.threads;
  q->shards = alloc_lines(c.shards, sizeof *q->shards);
  q->workers = alloc_lines(n, sizeof *q->workers);
  if (!q->shards || !q->workers) {
    free(q->shards);
    free(q->workers);
    free(q);
    return osd_error(err, PGLOG_ENOMEM, "op queue: out of memory for %u workers", n);
  }
  q->crowded = processors() <= n;
  for (uint32_t i = 0; i < c.shards; i++)
    if (shard_init(q, &q->shards[i]) != 0)
      rc = osd_error(err, PGLOG_ENOMEM, "op queue: out of memory for %u rings of %u", c.shards,
                     c.capacity);
  for (uint32_t i = 0; i < n; i++)
    worker_init(q, i);
  for (uint32_t i = 0; i < n && start && rc == 0; i++)
    rc = worker_start(q, i, err);
  if (rc) {
    opq_free(q);
    return rc;
  }
  *out = q;
  return 0;
}

int opq_new(struct opq **out, const struct opq_config *c, struct pglog_error *err) {
  return make(out, c, true, err);
}

int opq_new_manual(struct opq **out, const struct opq_config *c, struct pglog_error *err) {
  return make(out, c, false, err);
}

void opq_stop(struct opq *q) {
  if (!q || q->stopped)
    return;
  for (uint32_t i = 0; i < q->c.shards; i++) {
    struct opq_shard *s = &q->shards[i];
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->work);
    fast_wake_all(s);
    pthread_mutex_unlock(&s->lock);
  }
  for (uint32_t i = 0; i < q->n_workers; i++)
    pthread_join(q->workers[i].thread, NULL);
  q->stopped = true;
}

void opq_free(struct opq *q) {
  if (!q)
    return;
  opq_stop(q);
  for (uint32_t i = 0; i < q->c.shards; i++) {
    pthread_mutex_destroy(&q->shards[i].lock);
    pthread_cond_destroy(&q->shards[i].work);
    pthread_cond_destroy(&q->shards[i].room);
    free(q->shards[i].ring);
  }
  free(q->shards);
  free(q->workers);
  free(q);
}

void opq_pg_init(struct opq_pg *pg, const struct opq *q, uint64_t number) {
  *pg = (struct opq_pg){.shard = (uint32_t)(number % q->c.shards)};
  pg->last = &pg->first;
}

/* ---------------------------------------------------------------------------------------------- */
/* Submitting                                                                                     */

static bool shard_idle(const struct opq *q, struct opq_shard *s) {
  for (int i = 0; i < OPQ_PRIOS; i++)
    if (!opq_list_empty(&s->list[i]))
      return false;
  uint64_t waiting = q->c.kind == OPQ_FAST ? fast_waiting(s)
                                           : atomic_load_explicit(&s->count, memory_order_relaxed);
  return opq_list_empty(&s->ready) && waiting == s->parked;
}

/* Run the operation in this thread, as a worker would, if nothing has to go ahead of it. */
static bool try_inline(struct opq *q, struct opq_shard *s, struct opq_op *op) {
  struct opq_pg *pg = op->pg;
  if (pthread_mutex_trylock(&s->lock) != 0)
    return false;
  bool idle = shard_idle(q, s) && pg->claims == 0 && !s->stopping;
  if (idle) {
    pg->claims = 1;
    pg->owner = pg; /* not a worker's: none adds it to its batch */
    s->st.submitted++;
    s->st.run_inline++;
  }
  pthread_mutex_unlock(&s->lock);
  if (!idle)
    return false;
  run_op(q, op, 0);
  pthread_mutex_lock(&s->lock);
  pg_done(s, pg);
  bool more = !opq_list_empty(&s->ready);
  if (more)
    pthread_cond_signal(&s->work);
  pthread_mutex_unlock(&s->lock);
  if (more)
    fast_wake_one(s);
  return true;
}

int opq_submit(struct opq *q, struct opq_op *op, int flags) {
  struct opq_shard *s = &q->shards[op->pg->shard];
  if (q->c.probes)
    op->queued_ns = opq_now();
  if (q->c.inline_run && !(flags & OPQ_QUEUE) && try_inline(q, s, op))
    return 0;
  return q->c.kind == OPQ_FAST ? fast_submit(q, s, op, flags) : locked_submit(q, s, op, flags);
}

/* ---------------------------------------------------------------------------------------------- */
/* Figures                                                                                        */

void opq_stats(struct opq *q, struct opq_stats *out) {
  memset(out, 0, sizeof *out);
  for (uint32_t i = 0; i < q->c.shards; i++) {
    struct opq_shard *s = &q->shards[i];
    pthread_mutex_lock(&s->lock);
    out->submitted += s->st.submitted;
    out->run += s->st.run + s->st.run_inline;
    out->run_inline += s->st.run_inline;
    out->wakes += s->st.wakes;
    out->sleeps += s->st.sleeps;
    out->spins += s->st.spins;
    out->spins_paid += s->st.spins_paid;
    out->full += s->st.full;
    pthread_mutex_unlock(&s->lock);
  }
}

uint32_t opq_workers(const struct opq *q) {
  return q->n_workers;
}

int opq_worker_tid(const struct opq *q, uint32_t i) {
  int tid;
  while (!(tid = atomic_load_explicit(&q->workers[i].tid, memory_order_acquire)))
    sched_yield(); /* it has only just been started */
  return tid;
}
