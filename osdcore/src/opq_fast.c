/* SPDX-License-Identifier: Apache-2.0
 *
 * opq_fast.c - OPQ_FAST: a ring in place of a lock, and workers that spin before they sleep.
 *
 * A submit takes the next place of the ring (`tail`), then puts its operation there. Workers, one
 * at a time, empty places in order (`collected`), so an operation whose submit has been interrupted
 * between the two keeps those behind it waiting. At most `capacity` operations are waiting, in the
 * ring or in the lists behind it: a place is given out below `taken` + capacity, so it has been
 * emptied before.
 *
 * Nothing is lost between a submit and a worker that goes to sleep, since each first says what it
 * does and then looks at what the other has said. These accesses are sequentially consistent:
 *
 *   submit: tail + 1; n_sleepers, spinners?       worker: spinners - 1; n_sleepers + 1; tail?
 *
 * At least one of the two sees the other. The same holds between a worker that makes room and a
 * submit that waits for it (taken and blocked).
 */
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "opq_internal.h"

#define SPIN_BLOCK 32   /* looks between two readings of the clock */
#define MISSES_MAX 4    /* spins in vain, in a row, after which only ... */
#define MISSES_RETRY 16 /* ... one in so many is tried */

static void futex_wait(atomic_uint *word, unsigned value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}
static void futex_wake(atomic_uint *word, int n) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static inline void pause_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

int fast_init(struct opq_shard *s, uint32_t capacity) {
  uint64_t places = 1;
  while (places < capacity)
    places *= 2;
  s->ring = calloc(places, sizeof *s->ring);
  s->mask = places - 1;
  s->limit = capacity;
  return s->ring ? 0 : PGLOG_ENOMEM;
}

static _Atomic(struct opq_op *) *place(struct opq_shard *s, uint64_t i) {
  return &s->ring[i & s->mask];
}

uint64_t fast_waiting(struct opq_shard *s) {
  uint64_t taken = atomic_load(&s->taken); /* first: it is never more than tail */
  return atomic_load(&s->tail) - taken;
}

static bool ring_empty(struct opq_shard *s) {
  uint64_t collected = atomic_load_explicit(&s->collected, memory_order_relaxed);
  return atomic_load(&s->tail) == collected;
}

/* Is there something that can be collected? The line that submits write first is left to them. */
static bool ring_ready(struct opq_shard *s) {
  uint64_t i = atomic_load_explicit(&s->collected, memory_order_relaxed);
  return atomic_load_explicit(place(s, i), memory_order_relaxed) != NULL;
}

/* --- submitting ------------------------------------------------------------------------------- */

/* Take the sleeper at *at off the stack. Lock held: `asleep` says whether a worker is on it, so
 * that a wake that comes late, when the worker sleeps again, does no more than make it look. */
static struct opq_worker *sleeper_take(struct opq_shard *s, struct opq_worker **at) {
  struct opq_worker *w = *at;
  if (w) {
    *at = w->below;
    atomic_fetch_sub(&s->n_sleepers, 1);
    /* Release: what was done before is seen by the worker that wakes. */
    atomic_store_explicit(&w->asleep, 0, memory_order_release);
  }
  return w;
}

void fast_wake_one(struct opq_shard *s) {
  if (!atomic_load_explicit(&s->n_sleepers, memory_order_relaxed))
    return;
  pthread_mutex_lock(&s->lock);
  struct opq_worker *w = sleeper_take(s, &s->sleepers); /* the last that went to sleep */
  s->st.wakes += w != NULL;
  pthread_mutex_unlock(&s->lock);
  if (w)
    futex_wake(&w->asleep, 1);
}

void fast_wake_all(struct opq_shard *s) {
  struct opq_worker *w;
  while ((w = sleeper_take(s, &s->sleepers)) != NULL)
    futex_wake(&w->asleep, 1);
}

/* n operations are no longer waiting. Submits that wait for room are woken when half of the shard's
 * places have been taken since they were last: woken at the first one, they would go back to sleep
 * as soon, and a wake costs more than an operation does. A full shard has that many left to take. */
static void room_make(struct opq *q, struct opq_shard *s, uint32_t n) {
  uint64_t half = q->c.capacity > 1 ? q->c.capacity / 2 : 1;
  uint64_t before = atomic_fetch_add(&s->taken, n);
  if (atomic_load(&s->blocked) && before / half != (before + n) / half) {
    atomic_fetch_add_explicit(&s->room_seq, 1, memory_order_relaxed);
    futex_wake(&s->room_seq, INT_MAX);
  }
}

static void room_await(struct opq *q, struct opq_shard *s) {
  unsigned seq = atomic_load_explicit(&s->room_seq, memory_order_relaxed);
  atomic_fetch_add(&s->blocked, 1);
  if (fast_waiting(s) >= q->c.capacity)
    futex_wait(&s->room_seq, seq);
  atomic_fetch_sub(&s->blocked, 1);
}

/* Take the next place of the ring. False: the shard is full. */
static bool place_take(struct opq *q, struct opq_shard *s, uint64_t *at) {
  *at = atomic_load_explicit(&s->tail, memory_order_relaxed);
  for (;;) {
    /* Acquire: pairs with room_make(), by way of another submit that has seen it: the place is
     * empty. */
    if (*at < atomic_load_explicit(&s->limit, memory_order_acquire)) {
      if (atomic_compare_exchange_weak(&s->tail, at, *at + 1))
        return true;
      continue;
    }
    uint64_t limit = atomic_load(&s->taken) + q->c.capacity;
    if (*at >= limit)
      return false;
    atomic_store_explicit(&s->limit, limit, memory_order_release);
  }
}

/* The same, waiting for one. */
static int place_await(struct opq *q, struct opq_shard *s, int flags, uint64_t *at) {
  if (place_take(q, s, at))
    return 0;
  pthread_mutex_lock(&s->lock);
  s->st.full++;
  pthread_mutex_unlock(&s->lock);
  while (!(flags & OPQ_NOWAIT)) {
    room_await(q, s);
    if (place_take(q, s, at))
      return 0;
  }
  return PGLOG_EBUSY;
}

int fast_submit(struct opq *q, struct opq_shard *s, struct opq_op *op, int flags) {
  uint64_t at;
  if (atomic_load_explicit(&s->stopping, memory_order_relaxed))
    return PGLOG_EPOISONED;
  int rc = place_await(q, s, flags, &at);
  if (rc)
    return rc;
  /* Release: pairs with fast_collect(); the operation is the worker's from here on. */
  atomic_store_explicit(place(s, at), op, memory_order_release);
  if (atomic_load(&s->n_sleepers) && !atomic_load(&s->spinners))
    fast_wake_one(s);
  return 0;
}

/* --- taking ----------------------------------------------------------------------------------- */

void fast_collect(struct opq_shard *s) {
  uint64_t i = atomic_load_explicit(&s->collected, memory_order_relaxed), begin = i;
  struct opq_op *op;
  while ((op = atomic_load_explicit(place(s, i), memory_order_acquire)) != NULL) {
    atomic_store_explicit(place(s, i++), NULL, memory_order_relaxed);
    opq_list_add(&s->list[op->prio], op);
  }
  s->st.submitted += i - begin;
  atomic_store_explicit(&s->collected, i, memory_order_relaxed);
}

void fast_taken(struct opq_worker *w, uint64_t last_ns, bool more) {
  struct opq_shard *s = w->s;
  uint64_t gap = (w->taken_ns - last_ns) / w->n;
  w->gap_ns += gap / 8 - w->gap_ns / 8;
  room_make(w->q, s, w->n);
  /* Submits leave sleepers alone while a worker looks at the ring: it has to pass the word on. */
  if (more)
    fast_wake_one(s);
}

/* --- waiting ---------------------------------------------------------------------------------- */

/* How long to look before going to sleep, ns; 0: not at all. Twice the usual gap between operations
 * catches most of them; when that is more than a sleep and a wake cost, sleeping is better. */
static uint64_t spin_budget(struct opq_worker *w) {
  const struct opq_config *c = &w->q->c;
  uint64_t most = (uint64_t)c->spin_max_us * 1000;
  if (c->no_spin || w->gap_ns > most)
    return 0;
  if (w->misses >= MISSES_MAX && w->misses++ % MISSES_RETRY)
    return 0;
  uint64_t want = 2 * w->gap_ns + 1000;
  return want < most ? want : most;
}

/* Look at the ring for a while. */
static bool spin(struct opq_worker *w, uint64_t budget) {
  struct opq_shard *s = w->s;
  uint64_t end = opq_now() + budget;
  bool found = false, others = w->q->c.threads > 1;
  if (others)
    atomic_fetch_add(&s->spinners, 1);
  do {
    for (int i = 0; i < SPIN_BLOCK && !(found = ring_ready(s)); i++)
      pause_cpu();
    if (!found && w->q->crowded)
      sched_yield();
  } while (!found && opq_now() < end);
  if (others)
    atomic_fetch_sub(&s->spinners, 1);
  w->misses = found ? 0 : w->misses + 1;
  w->spins++;
  w->spins_paid += found;
  return found;
}

bool fast_more(struct opq_shard *s) {
  for (int i = 0; i < OPQ_PRIOS; i++)
    if (!opq_list_empty(&s->list[i]))
      return true;
  return !opq_list_empty(&s->ready) || !ring_empty(s);
}

static void sleeper_remove(struct opq_shard *s, struct opq_worker *w) {
  struct opq_worker **at = &s->sleepers;
  while (*at && *at != w)
    at = &(*at)->below;
  sleeper_take(s, at);
}

void fast_wait(struct opq_worker *w) {
  struct opq_shard *s = w->s;
  uint64_t budget = spin_budget(w);
  if (budget && spin(w, budget))
    return;
  if (!ring_empty(s) && !ring_ready(s))
    sched_yield(); /* a submit has its place and nothing more: let its thread go on */
  pthread_mutex_lock(&s->lock);
  s->st.spins += w->spins;
  s->st.spins_paid += w->spins_paid;
  w->spins = w->spins_paid = 0;
  bool sleeps = !fast_more(s) && !s->stopping;
  if (sleeps) {
    atomic_store_explicit(&w->asleep, 1, memory_order_relaxed);
    w->below = s->sleepers;
    s->sleepers = w;
    s->st.sleeps++;
    atomic_fetch_add(&s->n_sleepers, 1);
  }
  pthread_mutex_unlock(&s->lock);
  if (!sleeps)
    return;
  if (!ring_empty(s)) {
    pthread_mutex_lock(&s->lock);
    sleeper_remove(s, w);
    pthread_mutex_unlock(&s->lock);
    return;
  }
  /* Acquire: pairs with sleeper_take(). */
  while (atomic_load_explicit(&w->asleep, memory_order_acquire))
    futex_wait(&w->asleep, 1);
}
