/* SPDX-License-Identifier: Apache-2.0
 *
 * opq_internal.h - what the kinds of op queues share: a shard's lists, PG ownership, and the
 * workers.
 *
 * All lists of a shard, its PGs' fields and its sleepers are under the shard's lock. A worker takes
 * and gives back under one lock: worker_take() finishes the operations that it has run, and takes
 * the next. OPQ_FAST differs in how operations get to the lists (through a ring, without the lock)
 * and in how idle workers wait.
 */
#ifndef OSDCORE_OPQ_INTERNAL_H
#define OSDCORE_OPQ_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "osdcore/opq.h"

#define OPQ_BATCH 16 /* operations that the only worker of a shard takes at once */
#define OPQ_LINE 64

struct opq_list {
  struct opq_op *first, **last;
};

struct opq_shard;

struct opq_worker {
  struct opq *q;
  struct opq_shard *s;
  pthread_t thread;
  _Atomic(int) tid;
  uint32_t index;
  /* What it has taken: run one after the other. The operations are gone once they have run, so
   * their PGs are kept apart. */
  struct opq_op *op[OPQ_BATCH];
  struct opq_pg *pg[OPQ_BATCH];
  uint32_t n;

  uint64_t taken_ns; /* when it last took some; with probes, and OPQ_FAST */

  /* OPQ_FAST */
  struct opq_worker *below; /* in the shard's stack of sleepers; under the lock */
  uint64_t gap_ns;          /* average time between operations */
  uint32_t misses;          /* spins in a row that found nothing */
  uint64_t spins, spins_paid;
  _Alignas(OPQ_LINE) atomic_uint asleep; /* futex: 1 from going to sleep until woken */
};

struct opq_shard {
  pthread_mutex_t lock;
  struct opq_list ready; /* owned by nobody, but ahead of all others: their PG was busy */
  struct opq_list list[OPQ_PRIOS];
  uint32_t credit[OPQ_PRIOS];
  uint32_t parked;             /* operations that wait beside a PG */
  pthread_cond_t work, room;   /* room: OPQ_SINGLE and OPQ_SHARDED only */
  uint32_t waiting;            /* workers that wait for `work` */
  struct opq_worker *sleepers; /* OPQ_FAST: a stack */
  struct opq_stats st;         /* under the lock */

  atomic_uint count; /* OPQ_SINGLE, OPQ_SHARDED: submitted and not taken */

  /* OPQ_FAST; see opq_fast.c. Lines that threads write which run at the same time are apart: each
   * that both sides write costs an operation the time to bring it from one processor to the other.
   */
  _Alignas(OPQ_LINE) atomic_uint_fast64_t tail; /* places in the ring given to submits so far ... */
  atomic_uint_fast64_t limit; /* ... of this many; what submits last saw of `taken`, and capacity */
  _Alignas(OPQ_LINE) atomic_uint_fast64_t collected; /* places emptied; written under the lock */
  atomic_uint_fast64_t taken; /* operations taken, of those that were in the ring */
  /* Seldom written. */
  _Alignas(OPQ_LINE) _Atomic(struct opq_op *) *ring;
  uint64_t mask; /* places in the ring - 1 */
  atomic_uint n_sleepers;
  atomic_uint spinners; /* workers that look at the ring; of one alone nobody asks */
  atomic_uint blocked;  /* submitting threads that wait for room */
  atomic_uint room_seq; /* futex: rises when there is room */
  atomic_bool stopping; /* set under the lock */
};

struct opq {
  struct opq_config c;
  struct opq_shard *shards;
  struct opq_worker *workers;
  uint32_t n_workers;
  bool crowded; /* not more processors than workers: a spin takes time from whoever submits */
  bool stopped;
};

static inline bool opq_list_empty(const struct opq_list *l) {
  return !l->first;
}
static inline void opq_list_init(struct opq_list *l) {
  l->first = NULL;
  l->last = &l->first;
}
static inline void opq_list_add(struct opq_list *l, struct opq_op *op) {
  op->next = NULL;
  *l->last = op;
  l->last = &op->next;
}
static inline struct opq_op *opq_list_pop(struct opq_list *l) {
  struct opq_op *op = l->first;
  if (op && !(l->first = op->next))
    l->last = &l->first;
  return op;
}

uint64_t opq_now(void);

/* For tests: a queue without threads, and one round of worker `i` of it: take, run. Returns how
 * many. */
int opq_new_manual(struct opq **out, const struct opq_config *c, struct pglog_error *err);
uint32_t opq_step(struct opq *q, uint32_t i);

/* All with the shard's lock held. */
/* Finish what `w` has run, and take the next operations. Returns how many. */
uint32_t worker_take(struct opq_worker *w);
/* Give a PG's ownership of one operation back. */
void pg_done(struct opq_shard *s, struct opq_pg *pg);

/* opq_locked.c; lock held, but for locked_submit() */
int locked_submit(struct opq *q, struct opq_shard *s, struct opq_op *op, int flags);
void locked_wait(struct opq_worker *w);
void locked_taken(struct opq_worker *w); /* w->n were taken */
/* opq_fast.c */
int fast_submit(struct opq *q, struct opq_shard *s, struct opq_op *op, int flags);
int fast_init(struct opq_shard *s, uint32_t capacity);
void fast_collect(struct opq_shard *s);     /* from the ring to the lists; lock held */
uint64_t fast_waiting(struct opq_shard *s); /* operations submitted and not taken */
bool fast_more(struct opq_shard *s);        /* is there anything to take? Lock held */
/* w->n were taken, the last ones at `last_ns`, and there is `more` for another worker; lock not
 * held. */
void fast_taken(struct opq_worker *w, uint64_t last_ns, bool more);
void fast_wait(struct opq_worker *w);    /* lock not held */
void fast_wake_all(struct opq_shard *s); /* lock held */
void fast_wake_one(struct opq_shard *s); /* lock not held */

#endif
