/* SPDX-License-Identifier: Apache-2.0 */
#include "handoff_rounds.h"

#include <stdlib.h>

/* Operations of a run that finds the highest rate. */
#define CAPACITY_OPS 200000
#define CAPACITY_PIPELINE_OPS 20000
#define CAPACITY_RUNS 3
#define CAPACITY_STEPS 10
#define CAPACITY_KEPT 0.97 /* of the rate that was asked for */

const char *const handoff_names[HANDOFF_WHATS] = {
    [HANDOFF_SINGLE] = "single", [HANDOFF_SHARDED] = "sharded", [HANDOFF_FAST] = "fast",
    [HANDOFF_INLINE] = "inline", [HANDOFF_FUTEX] = "futex",
};

/* As fast as the clients can: what limits the operations in flight (the queue's capacity, the
 * store's limits) holds them up. */
static int run_full(int what, struct handoff_load l, struct handoff_result *out, struct fail *f) {
  l.gap_us = 0;
  if (what != HANDOFF_FUTEX) /* which takes as long for each as they do for many */
    l.ops = l.db ? CAPACITY_PIPELINE_OPS : CAPACITY_OPS;
  return handoff_run(what, &l, out, f);
}

/* The rate of several runs, at l->gap_us. */
static int measure_rate(const struct handoff_load *l, double *ops_per_s, struct fail *f) {
  struct handoff_result r[CAPACITY_RUNS], m;
  for (int i = 0; i < CAPACITY_RUNS; i++) {
    int rc = l->gap_us > 0 ? handoff_run(HANDOFF_SHARDED, l, &r[i], f)
                           : run_full(HANDOFF_SHARDED, *l, &r[i], f);
    if (rc != 0)
      return fail_set(f, "capacity of sharded: %.900s", f->text);
  }
  handoff_medians(r, CAPACITY_RUNS, &m);
  *ops_per_s = m.m[H_RATE];
  return 0;
}

/* The highest rate that it keeps up with. Clients that need not keep a pace get more done than those
 * that do, so theirs is where the search begins. */
static int measure_capacity(struct handoff_load l, double *ops_per_s, struct fail *f) {
  double rate, got;
  l.gap_us = 0;
  if (measure_rate(&l, &rate, f) != 0)
    return -1;
  for (int i = 0; i < CAPACITY_STEPS; i++) {
    l.gap_us = 1e6 / rate;
    if (measure_rate(&l, &got, f) != 0)
      return -1;
    if (got >= CAPACITY_KEPT * rate)
      break;
    rate = got;
  }
  *ops_per_s = rate;
  return 0;
}

static int run_one(const struct handoff_outcome *o, int what, struct handoff_result *out,
                   struct fail *f) {
  struct handoff_result full;
  if (handoff_run(what, &o->load, out, f) != 0)
    return -1;
  if (o->max_rate && o->load.gap_us > 0) {
    if (run_full(what, o->load, &full, f) != 0)
      return -1;
    out->m[H_MAX_RATE] = full.m[H_RATE];
  } else if (o->max_rate) {
    out->m[H_MAX_RATE] = out->m[H_RATE];
  }
  return 0;
}

/* One run of each; the results of each are `n` apart. */
static int one_round(const struct handoff_outcome *o, struct handoff_result *r, size_t n,
                     struct fail *f) {
  const struct handoff_load *l = &o->load;
  for (int i = 0; i < HANDOFF_WHATS; i++)
    if (o->has[i] && run_one(o, i, &r[(size_t)i * n], f) != 0)
      return fail_set(f, "%s: %.900s", handoff_names[i], f->text);
  return handoff_pinned(l) ? 0 : handoff_run(HANDOFF_PACE, l, &r[HANDOFF_PACE * n], f);
}

static void summarize(struct handoff_outcome *o, const struct handoff_result *r, size_t n) {
  struct handoff_result pace;
  handoff_medians(&r[HANDOFF_PACE * n], n, &pace);
  for (int i = 0; i < HANDOFF_WHATS; i++) {
    double *m = o->r[i].m;
    if (!o->has[i])
      continue;
    handoff_medians(&r[(size_t)i * n], n, &o->r[i]);
    if (!handoff_pinned(&o->load))
      m[H_CPU] = m[H_CPU_TOTAL] - pace.m[H_CPU_TOTAL];
  }
}

int handoff_rounds(const struct handoff_plan *p, uint32_t clients, struct handoff_outcome *o,
                   struct fail *f) {
  size_t n = p->rounds, all = (HANDOFF_PACE + 1) * n;
  o->load = p->load;
  o->load.clients = clients;
  for (int i = 0; i < HANDOFF_WHATS; i++)
    o->has[i] = p->use[i] && (i != HANDOFF_FUTEX || clients == 1);
  o->capacity = 0;
  o->max_rate = p->max_rate;
  if (p->share > 0) {
    if (measure_capacity(o->load, &o->capacity, f) != 0)
      return -1;
    o->load.gap_us = 1e6 / (o->capacity * p->share);
  }
  struct handoff_result *r = must_realloc(NULL, all * sizeof(*r));
  memset(r, 0, all * sizeof(*r));
  int rc = 0;
  for (size_t round = 0; round < n && rc == 0; round++)
    rc = one_round(o, r + round, n, f);
  if (rc == 0)
    summarize(o, r, n);
  free(r);
  return rc;
}
