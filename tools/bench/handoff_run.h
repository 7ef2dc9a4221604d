/* SPDX-License-Identifier: Apache-2.0
 *
 * handoff_run.h - one run of the hand-off bench: clients that submit operations at a set pace,
 * workers that take them. The operations are empty and the queue is alone, or they are osdcore's
 * (see handoff_pipeline.h).
 *
 * Probes are those of the report of 2014: one at enqueue, one at dequeue. If the queue is alone,
 * with one client and one worker, both are pinned, to the first two processors, and the client
 * keeps its pace by looking at the clock. Otherwise nothing is pinned, and clients sleep until the
 * next operation is due, then submit all that are due.
 */
#ifndef BENCH_HANDOFF_RUN_H
#define BENCH_HANDOFF_RUN_H

#include "common.h"
#include "osdcore/opq.h"

#define HANDOFF_ROUNDS_MAX 1000u
#define HANDOFF_QUANTILES 200u

/* What is measured: a kind of queue, or one of these. */
enum handoff_what {
  HANDOFF_SINGLE = OPQ_SINGLE,
  HANDOFF_SHARDED = OPQ_SHARDED,
  HANDOFF_FAST = OPQ_FAST,
  HANDOFF_INLINE, /* fast, with inline run */
  HANDOFF_FUTEX,  /* a bare futex wake; one client, one waiter */
  HANDOFF_WHATS,
  HANDOFF_PACE = HANDOFF_WHATS /* nothing is submitted: what keeping the pace costs */
};

struct handoff_load {
  uint32_t clients;
  uint32_t shards, threads; /* workers per shard */
  uint64_t ops;             /* in all */
  double gap_us;  /* between operations, of all clients together; 0: as fast as they can */
  const char *db; /* pipeline: where databases are made; NULL: the queue alone */
  int store;      /* pipeline: enum osd_store */
};

enum handoff_metric {
  H_AVG,
  H_MIN,
  H_P50,
  H_P99,
  H_P999,
  H_WAKES,      /* per operation */
  H_CPU,        /* us per operation, of workers and submitting; the pace itself is left out */
  H_SUBMIT,     /* us that a submit takes, its waiting for room included */
  H_RATE,       /* operations per second */
  H_MAX_RATE,   /* the same without a gap; 0: not measured (handoff_run() does not) */
  H_CPU_TOTAL,  /* us of CPU per operation, the pace included */
  H_CLIENT_CPU, /* share of one processor: the average client, and ... */
  H_WORKER_CPU, /* ... the average worker */
  /* Pipeline only */
  H_COMMITTER_CPU, /* shares of one processor: all threads of that kind */
  H_CHECKPOINT_CPU,
  H_ROCKSDB_CPU,
  H_OTHER_CPU,
  H_E2E_P50, /* from when an operation was due to its answer */
  H_E2E_P99,
  H_METRICS
};

struct handoff_result {
  double m[H_METRICS];
  double q[HANDOFF_QUANTILES]; /* us that handoff_tail(i) of the operations took, or longer */
};

/* Run once. HANDOFF_PACE has no latencies; its H_CPU_TOTAL is what the caller takes off (H_CPU is
 * filled in for pinned runs only). 0, or -1 with `f`. */
int handoff_run(int what, const struct handoff_load *l, struct handoff_result *out, struct fail *f);

/* Are clients and workers of this load pinned? */
bool handoff_pinned(const struct handoff_load *l);

/* From 1 (all) to 0.0001, in equal steps of its logarithm. */
double handoff_tail(size_t i);

/* The latencies' figures, from `n` of them in ns; they are sorted in place. */
void handoff_latencies(uint64_t *ns, size_t n, struct handoff_result *out);

/* The median of each figure over `n` runs, up to HANDOFF_ROUNDS_MAX. */
void handoff_medians(const struct handoff_result *r, size_t n, struct handoff_result *out);

#endif
