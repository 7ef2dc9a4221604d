/* SPDX-License-Identifier: Apache-2.0
 *
 * handoff_run.c - a run of the queue alone: empty operations.
 */
#include "handoff_run.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "handoff_clients.h"
#include "handoff_pipeline.h"

#define PGS_PER_SHARD 8
#define ASLEEP_NS 5000 /* a waiter that says that it is about to sleep does so by then */

struct bench {
  const struct handoff_load *l;
  int what;
  struct opq *q;
  struct opq_pg *pgs;
  struct opq_op *ops;
  atomic_uint done;
  /* HANDOFF_FUTEX */
  pthread_t waiter;
  atomic_uint word;   /* futex: number of the operation handed over last */
  atomic_uint parked; /* the waiter is about to sleep for this number */
  uint64_t woken;     /* times that it really slept, and was woken */
};

bool handoff_pinned(const struct handoff_load *l) {
  return !l->db && l->clients == 1 && l->shards * l->threads == 1;
}

/* ---------------------------------------------------------------------------------------------- */
/* Handing over                                                                                   */

static int by_nothing(void *arg, uint64_t i, uint64_t due_ns) {
  (void)arg;
  (void)i;
  (void)due_ns;
  return 0;
}

static int by_queue(void *arg, uint64_t i, uint64_t due_ns) {
  struct bench *b = arg;
  (void)due_ns;
  return opq_submit(b->q, &b->ops[i], 0);
}

/* As a parked worker is found: the waiter sleeps. One that has not come to it yet would take the
 * operation without a wake. */
static void waiter_ready(void *arg, uint64_t i) {
  struct bench *b = arg;
  while (atomic_load_explicit(&b->parked, memory_order_acquire) != (uint32_t)i)
    ;
  for (uint64_t t = clock_ns(CLOCK_MONOTONIC); clock_ns(CLOCK_MONOTONIC) - t < ASLEEP_NS;)
    ;
}

static int by_futex(void *arg, uint64_t i, uint64_t due_ns) {
  struct bench *b = arg;
  (void)due_ns;
  b->ops[i].queued_ns = clock_ns(CLOCK_MONOTONIC);
  atomic_store_explicit(&b->word, (uint32_t)i + 1, memory_order_release);
  b->woken += syscall(SYS_futex, &b->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) == 1;
  return 0;
}

static void run_op(void *arg, struct opq_op *op) {
  struct bench *b = arg;
  (void)op;
  atomic_fetch_add_explicit(&b->done, 1, memory_order_release);
}

static void *futex_main(void *arg) {
  struct bench *b = arg;
  for (uint32_t i = 0; i < b->l->ops; i++) {
    atomic_store_explicit(&b->parked, i, memory_order_release);
    while (atomic_load_explicit(&b->word, memory_order_acquire) == i)
      syscall(SYS_futex, &b->word, FUTEX_WAIT_PRIVATE, i, NULL, NULL, 0);
    b->ops[i].taken_ns = clock_ns(CLOCK_MONOTONIC);
    run_op(b, &b->ops[i]);
  }
  return NULL;
}

/* ---------------------------------------------------------------------------------------------- */
/* One run                                                                                        */

static int queue_open(struct bench *b, struct fail *f) {
  const struct handoff_load *l = b->l;
  int cpus[1] = {nth_cpu(1)};
  struct pglog_error e;
  struct opq_config c = {.kind = b->what == HANDOFF_INLINE ? OPQ_FAST : b->what,
                         .inline_run = b->what == HANDOFF_INLINE,
                         .shards = l->shards,
                         .threads = l->threads,
                         .cpus = handoff_pinned(l) ? cpus : NULL,
                         .probes = true,
                         .run = run_op,
                         .arg = b};
  if (opq_new(&b->q, &c, &e) != 0)
    return fail_set(f, "%s", e.text);
  uint32_t n = l->shards * PGS_PER_SHARD;
  b->pgs = must_realloc(NULL, n * sizeof(*b->pgs));
  for (uint32_t i = 0; i < n; i++)
    opq_pg_init(&b->pgs[i], b->q, i);
  for (uint64_t i = 0; i < l->ops; i++)
    b->ops[i].pg = &b->pgs[(i * 2654435761u >> 7) % n];
  return 0;
}

static int waiter_start(struct bench *b, struct fail *f) {
  int rc = pthread_create(&b->waiter, NULL, futex_main, b);
  if (rc != 0)
    return fail_set(f, "the waiter cannot be started: %s", strerror(rc));
  thread_pin(b->waiter, 1);
  return 0;
}

/* After a failed run there may be operations that never come: this number is none of theirs. */
static void waiter_end(struct bench *b) {
  atomic_store_explicit(&b->word, UINT32_MAX, memory_order_release);
  syscall(SYS_futex, &b->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
  pthread_join(b->waiter, NULL);
}

static void cpu_figures(const struct bench *b, const struct clients *c, double cpu, double wall,
                        double *m) {
  const struct handoff_load *l = b->l;
  double ops = (double)l->ops, clients = (double)c->cpu_ns / 1e3;
  m[H_CPU_TOTAL] = cpu / ops;
  m[H_SUBMIT] = (double)c->submit_ns / 1e3 / ops;
  m[H_RATE] = ops / wall * 1e6;
  m[H_CLIENT_CPU] = clients / wall / l->clients;
  m[H_WORKER_CPU] = (cpu - clients) / wall / (double)(l->shards * l->threads);
  if (handoff_pinned(l))
    m[H_CPU] = m[H_CPU_TOTAL] - clients / ops + m[H_SUBMIT];
}

static int measure(struct bench *b, struct handoff_result *out, struct fail *f) {
  struct clients c = {.l = b->l, .arg = b};
  c.hand_over = b->what == HANDOFF_PACE    ? by_nothing
                : b->what == HANDOFF_FUTEX ? by_futex
                                           : by_queue;
  c.ready = b->what == HANDOFF_FUTEX ? waiter_ready : NULL;
  if (clients_start(&c, f) != 0)
    return -1;
  double cpu = cpu_us();
  int rc = clients_run(&c);
  if (rc != 0)
    return fail_set(f, "submit: %s", pglog_status_str(rc));
  while (b->what != HANDOFF_PACE &&
         atomic_load_explicit(&b->done, memory_order_acquire) < b->l->ops)
    sched_yield();
  cpu_figures(b, &c, cpu_us() - cpu, (double)(clock_ns(CLOCK_MONOTONIC) - c.start_ns) / 1e3,
              out->m);
  return 0;
}

static void latencies(const struct bench *b, struct handoff_result *out) {
  size_t n = b->l->ops;
  uint64_t *ns = must_realloc(NULL, n * sizeof(*ns));
  for (size_t i = 0; i < n; i++)
    ns[i] = b->ops[i].taken_ns - b->ops[i].queued_ns;
  handoff_latencies(ns, n, out);
  free(ns);
}

static double wakes(struct bench *b) {
  struct opq_stats st;
  if (!b->q)
    return (double)b->woken / (double)b->l->ops;
  opq_stop(b->q);
  opq_stats(b->q, &st);
  return (double)st.wakes / (double)b->l->ops;
}

int handoff_run(int what, const struct handoff_load *l, struct handoff_result *out,
                struct fail *f) {
  struct bench b = {.l = l, .what = what};
  if (l->db && what != HANDOFF_PACE)
    return handoff_pipeline(what, l, out, f);
  memset(out, 0, sizeof(*out));
  b.ops = must_realloc(NULL, l->ops * sizeof(*b.ops));
  memset(b.ops, 0, l->ops * sizeof(*b.ops));
  int rc = 0;
  if (what == HANDOFF_FUTEX)
    rc = waiter_start(&b, f);
  else if (what != HANDOFF_PACE)
    rc = queue_open(&b, f);
  if (rc == 0) {
    rc = measure(&b, out, f);
    if (what == HANDOFF_FUTEX)
      waiter_end(&b);
  }
  if (rc == 0)
    out->m[H_WAKES] = wakes(&b);
  if (rc == 0 && what != HANDOFF_PACE)
    latencies(&b, out);
  opq_free(b.q);
  free(b.pgs);
  free(b.ops);
  return rc;
}
