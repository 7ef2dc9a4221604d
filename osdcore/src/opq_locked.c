/* SPDX-License-Identifier: Apache-2.0
 *
 * opq_locked.c - OPQ_SINGLE and OPQ_SHARDED: a mutex and condition variables for each shard.
 */
#include "opq_internal.h"

/* Wait for room; lock held. */
static int wait_for_room(struct opq *q, struct opq_shard *s, int flags) {
  if (atomic_load_explicit(&s->count, memory_order_relaxed) < q->c.capacity)
    return 0;
  s->st.full++;
  while (atomic_load_explicit(&s->count, memory_order_relaxed) >= q->c.capacity) {
    if (flags & OPQ_NOWAIT)
      return PGLOG_EBUSY;
    atomic_fetch_add_explicit(&s->blocked, 1, memory_order_relaxed);
    pthread_cond_wait(&s->room, &s->lock);
    atomic_fetch_sub_explicit(&s->blocked, 1, memory_order_relaxed);
  }
  return 0;
}

int locked_submit(struct opq *q, struct opq_shard *s, struct opq_op *op, int flags) {
  pthread_mutex_lock(&s->lock);
  int rc = s->stopping ? PGLOG_EPOISONED : wait_for_room(q, s, flags);
  bool wake = rc == 0 && s->waiting > 0;
  if (rc == 0) {
    opq_list_add(&s->list[op->prio], op);
    atomic_fetch_add_explicit(&s->count, 1, memory_order_relaxed);
    s->st.submitted++;
    s->st.wakes += wake;
  }
  pthread_mutex_unlock(&s->lock);
  if (wake)
    pthread_cond_signal(&s->work);
  return rc;
}

void locked_wait(struct opq_worker *w) {
  struct opq_shard *s = w->s;
  s->waiting++;
  s->st.sleeps++;
  pthread_cond_wait(&s->work, &s->lock);
  s->waiting--;
}

void locked_taken(struct opq_worker *w) {
  struct opq_shard *s = w->s;
  atomic_fetch_sub_explicit(&s->count, w->n, memory_order_relaxed);
  if (atomic_load_explicit(&s->blocked, memory_order_relaxed))
    pthread_cond_broadcast(&s->room);
}
