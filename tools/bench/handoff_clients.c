/* SPDX-License-Identifier: Apache-2.0 */
#include "handoff_clients.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Shortest sleep, unless a client is pinned: that one does not sleep at all. */
#define SLEEP_NS 50000

enum { GO_WAIT, GO_RUN, GO_END };

struct client {
  struct clients *all;
  uint32_t index;
  pthread_t thread;
  uint64_t submit_ns, cpu_ns;
  int rc;
};

int nth_cpu(int nth) {
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

void thread_pin(pthread_t t, int nth) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(nth_cpu(nth), &one);
  pthread_setaffinity_np(t, sizeof one, &one);
}

/* ---------------------------------------------------------------------------------------------- */
/* A client                                                                                       */

static uint64_t now(void) {
  return clock_ns(CLOCK_MONOTONIC);
}

/* Clients that are many share processors with the workers: they must not be what keeps these busy. */
static void wait_until(uint64_t due, bool spin) {
  for (uint64_t t; (t = now()) < due;) {
    if (spin)
      continue;
    uint64_t until = due - t < SLEEP_NS ? t + SLEEP_NS : due;
    struct timespec ts = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
  }
}

static bool wait_for_go(struct clients *c) {
  unsigned go;
  while ((go = atomic_load_explicit(&c->go, memory_order_acquire)) == GO_WAIT)
    syscall(SYS_futex, &c->go, FUTEX_WAIT_PRIVATE, GO_WAIT, NULL, NULL, 0);
  return go == GO_RUN;
}

static void *client_main(void *arg) {
  struct client *me = arg;
  struct clients *c = me->all;
  const struct handoff_load *l = c->l;
  bool pinned = handoff_pinned(l);
  uint64_t submit_ns = 0; /* not the client's field: those are neighbours in memory */
  prctl(PR_SET_TIMERSLACK, 1);
  if (!wait_for_go(c))
    return NULL;
  for (uint64_t i = me->index; i < l->ops && me->rc == 0; i += l->clients) {
    uint64_t due = c->start_ns + (uint64_t)((double)(i + 1) * l->gap_us * 1000);
    if (l->gap_us > 0)
      wait_until(due, pinned);
    if (c->ready)
      c->ready(c->arg, i);
    uint64_t t = now();
    me->rc = c->hand_over(c->arg, i, l->gap_us > 0 ? due : t);
    submit_ns += now() - t;
  }
  me->submit_ns = submit_ns;
  me->cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
  return NULL;
}

/* ---------------------------------------------------------------------------------------------- */
/* All of them                                                                                    */

static void go(struct clients *c, unsigned what) {
  atomic_store_explicit(&c->go, what, memory_order_release);
  syscall(SYS_futex, &c->go, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static int join(struct clients *c, uint32_t n) {
  int rc = 0;
  for (uint32_t i = 0; i < n; i++) {
    struct client *one = &c->client[i];
    pthread_join(one->thread, NULL);
    c->submit_ns += one->submit_ns;
    c->cpu_ns += one->cpu_ns;
    rc = rc ? rc : one->rc;
  }
  free(c->client);
  c->client = NULL;
  return rc;
}

int clients_start(struct clients *c, struct fail *f) {
  const struct handoff_load *l = c->l;
  char name[32];
  c->client = must_realloc(NULL, l->clients * sizeof(*c->client));
  c->submit_ns = c->cpu_ns = 0;
  atomic_store(&c->go, GO_WAIT);
  for (uint32_t i = 0; i < l->clients; i++) {
    struct client *one = &c->client[i];
    *one = (struct client){.all = c, .index = i};
    int rc = pthread_create(&one->thread, NULL, client_main, one);
    if (rc != 0) {
      go(c, GO_END);
      join(c, i);
      return fail_set(f, "client %u of %u cannot be started: %s", i, l->clients, strerror(rc));
    }
    snprintf(name, sizeof(name), "client:%u", i);
    pthread_setname_np(one->thread, name);
    if (handoff_pinned(l))
      thread_pin(one->thread, 0);
  }
  return 0;
}

int clients_run(struct clients *c) {
  c->start_ns = now() + 1000000;
  go(c, GO_RUN);
  return join(c, c->l->clients);
}
