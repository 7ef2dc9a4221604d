/* SPDX-License-Identifier: Apache-2.0
 *
 * opq.h - the operation queues of osdcore: from many submitting threads to sharded workers, in PG
 * order.
 *
 * A PG belongs to one shard (its number modulo the number of shards). Its operations run one at a
 * time and, within one priority, in the order in which they were submitted. The order is kept by
 * ownership: a worker that takes an operation owns the PG until it has run it; what comes for that
 * PG meanwhile waits beside it, while other PGs of the shard go on.
 *
 * Three queues, with the same rules and one interface:
 *   OPQ_SINGLE   one lock and one condition variable for all PGs: the traditional queue
 *   OPQ_SHARDED  a lock and a condition variable for each shard, as Ceph's ShardedOpWQ
 *   OPQ_FAST     submitting takes no lock: a ring for each shard, which a worker empties at once;
 *                an idle worker spins for about the time that operations have been coming in, then
 *                sleeps on a futex; a submit wakes one sleeper, the last that went to sleep (its
 *                cache is the warmest), and only if there is one
 *
 * Within a shard the priorities share the workers by weight: with weights 8 and 1, and both
 * waiting, eight client operations run for each recovery operation.
 */
#ifndef OSDCORE_OPQ_H
#define OSDCORE_OPQ_H

#include <stdbool.h>
#include <stdint.h>

#include "pglog/pglog.h"

#ifdef __cplusplus
extern "C" {
#endif

enum opq_kind { OPQ_SINGLE, OPQ_SHARDED, OPQ_FAST, OPQ_KINDS };
enum opq_prio { OPQ_CLIENT, OPQ_RECOVERY, OPQ_PRIOS };

/* "single", "sharded", "fast"; NULL for another number. */
const char *opq_kind_str(int kind);

struct opq;
struct opq_op;

/* A PG as the queue knows it; part of the caller's own PG, which lives until all of its operations
 * have run. Set up by opq_pg_init(); the fields are the queue's. */
struct opq_pg {
  uint32_t shard;
  uint32_t claims;              /* operations taken and not finished; > 0: owned */
  void *owner;                  /* who has taken them */
  struct opq_op *first, **last; /* waiting for the owner */
};

/* An operation; part of the caller's own, which it gets back when it is run. The caller sets `pg`
 * and `prio` before opq_submit(), and may set nothing else. */
struct opq_op {
  struct opq_op *next; /* the queue's */
  struct opq_pg *pg;
  uint64_t queued_ns; /* probes, if the queue has them: CLOCK_MONOTONIC at submit ... */
  uint64_t taken_ns;  /* ... and when a worker took it */
  uint8_t prio;       /* enum opq_prio */
};

struct opq_config {
  int kind;                   /* enum opq_kind */
  uint32_t shards;            /* 1..1024; OPQ_SINGLE has one whatever is given */
  uint32_t threads;           /* workers per shard, 1..64; OPQ_SINGLE has shards * threads */
  uint32_t capacity;          /* operations waiting per shard, 1..2^20; 0: 4096 */
  uint32_t weight[OPQ_PRIOS]; /* 1..1000; 0: 8 for clients, 1 for recovery */
  uint32_t spin_max_us; /* OPQ_FAST: longest spin, up to 1000; 0: 30. To switch off: no_spin */
  bool no_spin;
  bool inline_run; /* a submitting thread runs the operation itself if shard and PG are idle */
  bool probes;     /* fill in queued_ns and taken_ns */
  const int *cpus; /* processor of each worker, shard by shard: shards * threads; NULL: free */
  /* Runs an operation; it belongs to the callee from here on and may be freed or submitted again.
   * Called by workers and, with inline_run, by submitting threads; never for two operations of a PG
   * at once. It may submit others, but with OPQ_NOWAIT only: a worker that waits for room in its
   * own shard would wait for itself. */
  void (*run)(void *arg, struct opq_op *op);
  void *arg;
};

/* Make a queue and start its workers. `c` is copied. PGLOG_EINVAL names the field, its limits and
 * its value; PGLOG_ENOMEM. */
int opq_new(struct opq **out, const struct opq_config *c, struct pglog_error *err);

/* Run everything that is queued and end the workers. Nothing may be submitted while or after it
 * runs, except by `run` itself: that is refused. Idempotent; NULL is fine. */
void opq_stop(struct opq *q);

/* opq_stop(), and release. NULL is fine. */
void opq_free(struct opq *q);

/* Set up a PG with this number. */
void opq_pg_init(struct opq_pg *pg, const struct opq *q, uint64_t number);

#define OPQ_NOWAIT 1 /* a full shard is an error instead of a reason to wait */
#define OPQ_QUEUE 2  /* not in this thread, even with inline_run */

/* Queue an operation. PGLOG_EBUSY: the shard holds `capacity` operations (OPQ_NOWAIT only);
 * PGLOG_EPOISONED: the queue is stopping. After an error the operation is still the caller's. */
int opq_submit(struct opq *q, struct opq_op *op, int flags);

struct opq_stats {
  uint64_t submitted, run, run_inline;
  uint64_t wakes;      /* workers woken by a submit */
  uint64_t sleeps;     /* times that a worker slept */
  uint64_t spins;      /* times that a worker began to spin, and ... */
  uint64_t spins_paid; /* ... found something by it */
  uint64_t full;       /* submits that found a full shard */
};
/* Sums over all shards; exact when the queue is at rest. */
void opq_stats(struct opq *q, struct opq_stats *out);

/* Worker threads in all, and the kernel's number (tid) of one. */
uint32_t opq_workers(const struct opq *q);
int opq_worker_tid(const struct opq *q, uint32_t i);

#ifdef __cplusplus
}
#endif
#endif
