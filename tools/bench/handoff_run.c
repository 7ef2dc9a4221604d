/* SPDX-License-Identifier: Apache-2.0 */
#include "handoff_run.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "osdcore/opq.h"

#define PGS_PER_SHARD 8
#define SPIN_NS 20000 /* a pinned client does not sleep at all; others only if it is this far off */

struct probe {
  struct opq_op op;
};

struct bench {
  const struct handoff_load *l;
  int what;
  struct opq *q;
  struct opq_pg *pgs;
  struct probe *ops;
  atomic_uint done;
  atomic_uint go;     /* futex: clients start */
  uint64_t start_ns;
  /* HANDOFF_FUTEX */
  atomic_uint word;   /* futex: number of the operation handed over last */
  atomic_uint parked; /* the waiter is about to sleep for this number */
};

struct client {
  struct bench *b;
  uint32_t index;
  pthread_t thread;
  uint64_t submit_ns; /* in opq_submit(), in all */
  uint64_t cpu_ns;
  int rc;
};

static uint64_t now(void) { return clock_ns(CLOCK_MONOTONIC); }

bool handoff_pinned(const struct handoff_load *l) {
  return l->clients == 1 && l->shards * l->threads == 1;
}

/* The nth processor that this process may use; the first, if there are not so many. */
static int nth_cpu(int nth) {
  cpu_set_t all;
  int first = -1;
  if (sched_getaffinity(0, sizeof all, &all) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
      if (CPU_ISSET(cpu, &all)) {
        first = first < 0 ? cpu : first;
        if (nth-- == 0)
          return cpu;
      }
  return first < 0 ? 0 : first;
}

static void pin(pthread_t t, int nth) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(nth_cpu(nth), &one);
  pthread_setaffinity_np(t, sizeof one, &one);
}

/* ---------------------------------------------------------------------------------------------- */
/* Clients                                                                                        */

static void wait_until(uint64_t due, bool spin) {
  for (uint64_t t; (t = now()) < due;) {
    if (spin || due - t < SPIN_NS)
      continue;
    struct timespec ts = {(time_t)(due / 1000000000u), (long)(due % 1000000000u)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
  }
}

static void hand_by_futex(struct bench *b, uint32_t number) {
  /* As a parked worker would be found: the waiter sleeps, or is about to. */
  while (atomic_load_explicit(&b->parked, memory_order_acquire) != number)
    ;
  b->ops[number].op.queued_ns = now();
  atomic_store_explicit(&b->word, number + 1, memory_order_release);
  syscall(SYS_futex, &b->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static int hand_over(struct client *c, uint64_t i) {
  struct bench *b = c->b;
  struct opq_op *op = &b->ops[i].op;
  uint64_t t = now();
  int rc = 0;
  if (b->what == HANDOFF_FUTEX)
    hand_by_futex(b, (uint32_t)i);
  else if (b->what != HANDOFF_PACE)
    rc = opq_submit(b->q, op, 0);
  c->submit_ns += now() - t;
  return rc;
}

static void *client_main(void *arg) {
  struct client *c = arg;
  struct bench *b = c->b;
  const struct handoff_load *l = b->l;
  bool pinned = handoff_pinned(l);
  prctl(PR_SET_TIMERSLACK, 1);
  while (!atomic_load_explicit(&b->go, memory_order_acquire))
    syscall(SYS_futex, &b->go, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
  for (uint64_t i = c->index; i < l->ops && c->rc == 0; i += l->clients) {
    if (l->gap_us > 0)
      wait_until(b->start_ns + (uint64_t)((double)(i + 1) * l->gap_us * 1000), pinned);
    c->rc = hand_over(c, i);
  }
  c->cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
  return NULL;
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
    b->ops[i].op.taken_ns = now();
    run_op(b, &b->ops[i].op);
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
    b->ops[i].op.pg = &b->pgs[(i * 2654435761u >> 7) % n];
  return 0;
}

static void latencies(const struct bench *b, double *m) {
  size_t n = b->l->ops;
  uint64_t *v = must_realloc(NULL, n * sizeof(*v)), sum = 0;
  for (size_t i = 0; i < n; i++)
    sum += v[i] = b->ops[i].op.taken_ns - b->ops[i].op.queued_ns;
  qsort(v, n, sizeof(*v), cmp_u64);
  m[H_AVG] = (double)sum / (double)n / 1e3;
  m[H_MIN] = (double)v[0] / 1e3;
  m[H_P50] = (double)v[n / 2] / 1e3;
  m[H_P99] = (double)v[n - 1 - n / 100] / 1e3;
  m[H_P999] = (double)v[n - 1 - n / 1000] / 1e3;
  free(v);
}

static void start(struct bench *b) {
  b->start_ns = now() + 1000000;
  atomic_store_explicit(&b->go, 1, memory_order_release);
  syscall(SYS_futex, &b->go, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static int clients_run(struct bench *b, struct client *c, struct handoff_result *out,
                       struct fail *f) {
  const struct handoff_load *l = b->l;
  uint64_t submit = 0, client_cpu = 0;
  uint32_t n = 0;
  int rc = 0;
  for (; n < l->clients && rc == 0; n++) {
    c[n] = (struct client){.b = b, .index = n};
    if ((rc = pthread_create(&c[n].thread, NULL, client_main, &c[n])) != 0)
      fail_set(f, "client %u cannot be started: %s", n, strerror(rc));
    else if (handoff_pinned(l))
      pin(c[n].thread, 0);
  }
  double cpu = cpu_us();
  start(b);
  for (uint32_t i = 0; i < n; i++) {
    pthread_join(c[i].thread, NULL);
    submit += c[i].submit_ns;
    client_cpu += c[i].cpu_ns;
    if (rc == 0 && (rc = c[i].rc) != 0)
      fail_set(f, "submit: %s", pglog_status_str(rc));
  }
  while (rc == 0 && b->what != HANDOFF_PACE &&
         atomic_load_explicit(&b->done, memory_order_acquire) < l->ops)
    sched_yield();
  double wall = (double)(now() - b->start_ns) / 1e3, ops = (double)l->ops;
  out->cpu_total = (cpu_us() - cpu) / ops;
  out->m[H_SUBMIT] = (double)submit / 1e3 / ops;
  out->m[H_RATE] = ops / wall * 1e6;
  out->client_cpu = (double)client_cpu / 1e3 / wall / l->clients;
  out->worker_cpu = (out->cpu_total * ops - (double)client_cpu / 1e3) / wall /
                    (double)(l->shards * l->threads);
  if (handoff_pinned(l))
    out->m[H_CPU] = out->cpu_total - (double)client_cpu / 1e3 / ops + out->m[H_SUBMIT];
  return rc ? -1 : 0;
}

int handoff_run(int what, const struct handoff_load *l, struct handoff_result *out,
                struct fail *f) {
  struct bench b = {.l = l, .what = what};
  pthread_t waiter;
  memset(out, 0, sizeof(*out));
  b.ops = must_realloc(NULL, l->ops * sizeof(*b.ops));
  memset(b.ops, 0, l->ops * sizeof(*b.ops));
  struct client *c = must_realloc(NULL, l->clients * sizeof(*c));
  int rc = 0;
  if (what == HANDOFF_FUTEX) {
    if ((rc = pthread_create(&waiter, NULL, futex_main, &b)) != 0)
      rc = fail_set(f, "the waiter cannot be started: %s", strerror(rc));
    else
      pin(waiter, 1);
  } else if (what != HANDOFF_PACE) {
    rc = queue_open(&b, f);
  }
  if (rc == 0)
    rc = clients_run(&b, c, out, f);
  if (rc == 0 && what == HANDOFF_FUTEX)
    pthread_join(waiter, NULL);
  if (rc == 0 && b.q) {
    struct opq_stats st;
    opq_stop(b.q);
    opq_stats(b.q, &st);
    out->m[H_WAKES] = (double)st.wakes / (double)l->ops;
  } else {
    out->m[H_WAKES] = what == HANDOFF_FUTEX;
  }
  if (rc == 0 && what != HANDOFF_PACE)
    latencies(&b, out->m);
  opq_free(b.q);
  free(b.pgs);
  free(b.ops);
  free(c);
  return rc;
}
