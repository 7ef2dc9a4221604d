/* SPDX-License-Identifier: Apache-2.0
 *
 * handoff_run.h - one run of the hand-off bench: clients that submit empty operations at a set pace,
 * workers that take them.
 *
 * Probes are those of the report of 2014: one at enqueue, one at dequeue. With one client and one
 * worker both are pinned, to the first two processors, and the client keeps its pace by looking at the
 * clock. Otherwise nothing is pinned, and clients sleep until the next operation is due, then submit
 * all that are due.
 */
#ifndef BENCH_HANDOFF_RUN_H
#define BENCH_HANDOFF_RUN_H

#include "common.h"

/* What is measured: a kind of queue (enum opq_kind), or one of these. */
enum { HANDOFF_INLINE = 100, HANDOFF_FUTEX, HANDOFF_PACE };

struct handoff_load {
  uint32_t clients;
  uint32_t shards, threads; /* workers per shard */
  uint64_t ops;             /* in all */
  double gap_us;            /* between operations, of all clients together; 0: as fast as they can */
};

enum handoff_metric {
  H_AVG,
  H_MIN,
  H_P50,
  H_P99,
  H_P999,
  H_WAKES,   /* per operation */
  H_CPU,     /* us per operation, of workers and submitting; the pace itself is left out */
  H_SUBMIT,  /* us that a submit takes */
  H_RATE,    /* operations per second */
  H_METRICS
};

struct handoff_result {
  double m[H_METRICS];
  double cpu_total;     /* us of CPU per operation, the pace included */
  double client_cpu;    /* share of one processor: the average client, and ... */
  double worker_cpu;    /* ... the average worker */
};

/* Run once. HANDOFF_PACE submits nothing: its cpu_total is what keeping the pace costs, which the
 * caller takes off (H_CPU is filled in for pinned runs only). 0, or -1 with `f`. */
int handoff_run(int what, const struct handoff_load *l, struct handoff_result *out,
                struct fail *f);

/* Are clients and workers of this load pinned? */
bool handoff_pinned(const struct handoff_load *l);

#endif
