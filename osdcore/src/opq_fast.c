/* SPDX-License-Identifier: Apache-2.0
 *
 * opq_fast.c - OPQ_FAST: the inbox without a lock, and workers that spin before they sleep.
 *
 * Nothing is lost between a submit and a worker that goes to sleep, since each first says what it
 * does and then looks at what the other has said, with a full fence between:
 *
 *   submit: inbox <- operation; fence; n_sleepers?       worker: n_sleepers + 1; fence; inbox empty?
 *
 * At least one of the two sees the other. The same holds between a worker that makes room and a
 * submit that waits for it (count and blocked).
 */
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <urcu/arch.h>

#include "opq_internal.h"

#ifdef __SANITIZE_THREAD__
/* The list orders what was written before an enqueue with what is read after taking it; the
 * sanitizer cannot see that in liburcu. */
#include <sanitizer/tsan_interface.h>
#define INBOX_RELEASE(op) __tsan_release(op)
#define INBOX_ACQUIRE(op) __tsan_acquire(op)
#else
#define INBOX_RELEASE(op) ((void)0)
#define INBOX_ACQUIRE(op) ((void)0)
#endif

_Static_assert(sizeof(struct cds_wfcq_node) == sizeof(struct opq_op *) &&
                   offsetof(struct opq_op, next) == 0,
               "an operation's link is the list's node");

#define SPIN_BLOCK 32    /* looks between two readings of the clock */
#define MISSES_MAX 4     /* spins in vain, in a row, after which only ... */
#define MISSES_RETRY 16  /* ... one in so many is tried */

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

static bool inbox_empty(struct opq_shard *s) {
  for (int i = 0; i < OPQ_PRIOS; i++)
    if (!cds_wfcq_empty(&s->head[i], &s->tail[i]))
      return false;
  return true;
}

/* --- submitting ------------------------------------------------------------------------------- */

/* Take the sleeper at *at off the stack. Lock held: `asleep` says whether a worker is on it, so that a
 * wake that comes late, when the worker sleeps again, does no more than make it look. */
static struct opq_worker *sleeper_take(struct opq_shard *s, struct opq_worker **at) {
  struct opq_worker *w = *at;
  if (w) {
    *at = w->below;
    atomic_fetch_sub_explicit(&s->n_sleepers, 1, memory_order_relaxed);
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

/* Give n places back, and wake as many that wait for one. */
static void places_give(struct opq_shard *s, uint32_t n) {
  /* Orders making room before looking for who waits for it; pairs with place_take(). */
  atomic_fetch_sub_explicit(&s->count, n, memory_order_seq_cst);
  cmm_smp_mb();
  if (atomic_load_explicit(&s->blocked, memory_order_relaxed)) {
    atomic_fetch_add_explicit(&s->room_seq, 1, memory_order_relaxed);
    futex_wake(&s->room_seq, (int)n);
  }
}

/* Take one of the shard's places, or wait for one. */
static int place_take(struct opq *q, struct opq_shard *s, int flags) {
  if (atomic_fetch_add_explicit(&s->count, 1, memory_order_relaxed) < q->c.capacity)
    return 0;
  pthread_mutex_lock(&s->lock);
  s->st.full++;
  pthread_mutex_unlock(&s->lock);
  for (;;) {
    places_give(s, 1); /* another may have found the shard full because of this one */
    if (flags & OPQ_NOWAIT)
      return PGLOG_EBUSY;
    unsigned seq = atomic_load_explicit(&s->room_seq, memory_order_relaxed);
    /* Orders saying that we wait before looking for room; pairs with places_give(). */
    atomic_fetch_add_explicit(&s->blocked, 1, memory_order_seq_cst);
    cmm_smp_mb();
    if (atomic_load_explicit(&s->count, memory_order_relaxed) >= q->c.capacity)
      futex_wait(&s->room_seq, seq);
    atomic_fetch_sub_explicit(&s->blocked, 1, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&s->count, 1, memory_order_relaxed) < q->c.capacity)
      return 0;
  }
}

int fast_submit(struct opq *q, struct opq_shard *s, struct opq_op *op, int flags) {
  if (atomic_load_explicit(&s->stopping, memory_order_relaxed))
    return PGLOG_EPOISONED;
  int rc = place_take(q, s, flags);
  if (rc)
    return rc;
  struct cds_wfcq_node *node = (struct cds_wfcq_node *)&op->next;
  int prio = op->prio;
  cds_wfcq_node_init(node);
  INBOX_RELEASE(op);
  cds_wfcq_enqueue(&s->head[prio], &s->tail[prio], node);
  /* Orders the operation in the inbox before looking for sleepers; pairs with fast_wait(). */
  cmm_smp_mb();
  if (atomic_load_explicit(&s->n_sleepers, memory_order_relaxed) &&
      !atomic_load_explicit(&s->spinners, memory_order_relaxed))
    fast_wake_one(s);
  return 0;
}

/* --- taking ----------------------------------------------------------------------------------- */

void fast_collect(struct opq_shard *s) {
  s->half_way = false;
  for (int i = 0; i < OPQ_PRIOS; i++) {
    struct cds_wfcq_node *n;
    /* WOULDBLOCK: a submit has its place in the list, but has not linked itself to the one before;
     * its thread may be off the processor. What is behind is taken the next time. */
    while ((n = __cds_wfcq_dequeue_nonblocking(&s->head[i], &s->tail[i])) != NULL &&
           n != CDS_WFCQ_WOULDBLOCK) {
      struct opq_op *op = (struct opq_op *)n;
      INBOX_ACQUIRE(op);
      opq_list_add(&s->list[i], op);
      s->st.submitted++;
    }
    s->half_way = s->half_way || n == CDS_WFCQ_WOULDBLOCK;
  }
}

void fast_taken(struct opq_worker *w, bool more) {
  struct opq_shard *s = w->s;
  uint64_t now = opq_now(), gap = (now - w->last_ns) / w->n;
  w->last_ns = now;
  w->gap_ns += gap / 8 - w->gap_ns / 8;
  places_give(s, w->n);
  /* Submits leave sleepers alone while a worker looks at the inbox: it has to pass the word on. */
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

/* Look at the inbox for a while. */
static bool spin(struct opq_worker *w, uint64_t budget) {
  struct opq_shard *s = w->s;
  uint64_t end = opq_now() + budget;
  bool found = false;
  atomic_fetch_add_explicit(&s->spinners, 1, memory_order_relaxed);
  do {
    for (int i = 0; i < SPIN_BLOCK && !(found = !inbox_empty(s)); i++)
      pause_cpu();
    if (!found && w->q->crowded)
      sched_yield();
  } while (!found && opq_now() < end);
  atomic_fetch_sub_explicit(&s->spinners, 1, memory_order_relaxed);
  w->misses = found ? 0 : w->misses + 1;
  w->spins++;
  w->spins_paid += found;
  return found;
}

bool fast_more(struct opq_shard *s) {
  for (int i = 0; i < OPQ_PRIOS; i++)
    if (!opq_list_empty(&s->list[i]))
      return true;
  return !opq_list_empty(&s->ready) || !inbox_empty(s);
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
  if (s->half_way)
    sched_yield(); /* let its thread go on */
  else if (budget && spin(w, budget))
    return;
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
    atomic_fetch_add_explicit(&s->n_sleepers, 1, memory_order_relaxed);
  }
  pthread_mutex_unlock(&s->lock);
  if (!sleeps)
    return;
  /* Orders being a sleeper before looking at the inbox; pairs with fast_submit(). */
  cmm_smp_mb();
  if (!inbox_empty(s)) {
    pthread_mutex_lock(&s->lock);
    sleeper_remove(s, w);
    pthread_mutex_unlock(&s->lock);
    return;
  }
  /* Acquire: pairs with sleeper_take(). */
  while (atomic_load_explicit(&w->asleep, memory_order_acquire))
    futex_wait(&w->asleep, 1);
}
