/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint.c - the check point: choose a position, make the WAL durable through it, build new
 * leaves, publish, free, delete WALs; and the thread that does it.
 *
 * What a crash leaves, step by step: before the superblock is written, the old one is valid and its
 * blocks are untouched (new blocks came from free space only). After it, the new one is; the WALs
 * that it no longer needs are still there and are deleted by this process or handed over again by
 * RocksDB at the next open. The superblock never names a position or a WAL that is not on disk,
 * because the WAL and its directory are synced before it is written.
 */
#include <stdio.h>
#include <time.h>

#include "store_internal.h"

#define RETRY_MS 1000   /* after a failed check point */
#define RESERVE_PART 8u /* of the arena, for check points that trim */

/* A check point in progress. */
struct ckpt {
  struct build build;
  struct layer *copies; /* of all frozen layers */
  uint64_t ord;         /* ordinal of the last blob in it */
  struct super super;   /* the next superblock */
};

void checkpoint_want(struct store *s) {
  if (!s->thread_running)
    return;
  pthread_mutex_lock(&s->wake_mutex);
  if (!s->wanted) {
    s->wanted = true;
    pthread_cond_signal(&s->wake);
  }
  pthread_mutex_unlock(&s->wake_mutex);
}

/* ---------------------------------------------------------------------------------------------- */
/* Garbage                                                                                        */

static int garbage_add(struct garbage **list, uint64_t generation, const struct extent *e,
                       struct segment *segment) {
  struct garbage *g = malloc(sizeof *g);
  if (!g)
    return PGLOG_ENOMEM;
  *g = (struct garbage){.next = *list, .generation = generation};
  g->kind = segment ? GARBAGE_SEGMENT : GARBAGE_BLOCKS;
  if (segment) {
    g->u.segment = segment;
  } else {
    g->u.blocks.block = e->block;
    g->u.blocks.n = e->n;
  }
  *list = g;
  return PGLOG_OK;
}

void garbage_free(struct store *s) {
  struct garbage *ready = NULL;
  pthread_mutex_lock(&s->mutex);
  uint64_t oldest = views_oldest(s);
  for (struct garbage **at = &s->garbage; *at;) {
    struct garbage *g = *at;
    if (g->generation > oldest) {
      at = &g->next;
      continue;
    }
    *at = g->next;
    g->next = ready;
    ready = g;
  }
  pthread_mutex_unlock(&s->mutex);
  while (ready) {
    struct garbage *g = ready;
    ready = g->next;
    if (g->kind == GARBAGE_BLOCKS)
      arena_free(s->arena, g->u.blocks.block, g->u.blocks.n);
    else
      segment_release(s, g->u.segment);
    free(g);
  }
}

/* ---------------------------------------------------------------------------------------------- */
/* Freeze                                                                                         */

static size_t layers_to_fold(const struct layer *l, uint64_t above) {
  size_t n = 0;
  for (; l && l->generation > above; l = l->older)
    n++;
  return n;
}

/* Copy the structs of the layers to fold to `to`; returns the newest copy or NULL. */
static const struct layer *layers_copy(const struct layer *l, uint64_t above, struct layer **to) {
  struct layer *first = NULL, *last = NULL;
  for (; l && l->generation > above; l = l->older) {
    struct layer *c = (*to)++;
    *c = *l;
    c->older = NULL;
    if (last)
      last->older = c;
    else
      first = c;
    last = c;
  }
  return first;
}

static int capture(struct store *s, struct ckpt *k) {
  struct pgmap_cursor c;
  uint64_t above = s->index->generation;
  size_t n_pgs = 0, n_layers = layers_to_fold(s->global->layers, above);
  pgmap_cursor_init(&c, s->dir, UINT64_MAX);
  for (pgmap_cursor_first(&c); c.valid; pgmap_cursor_next(&c)) {
    size_t n = layers_to_fold(((struct pg *)(uintptr_t)c.value.data)->layers, above);
    n_layers += n;
    n_pgs += n > 0;
  }
  k->copies = calloc(n_layers + 1, sizeof *k->copies);
  k->build.pg = calloc(n_pgs + 1, sizeof *k->build.pg);
  if (!k->copies || !k->build.pg)
    return PGLOG_ENOMEM;
  struct layer *to = k->copies;
  k->build.global = layers_copy(s->global->layers, above, &to);
  for (pgmap_cursor_first(&c); c.valid; pgmap_cursor_next(&c)) {
    struct pg *pg = (struct pg *)(uintptr_t)c.value.data;
    const struct layer *l = layers_copy(pg->layers, above, &to);
    if (l)
      k->build.pg[k->build.n_pgs++] = (struct frozen_pg){c.key, l};
  }
  return PGLOG_OK;
}

/* Choose the position, and stop changes to what is staged up to it. */
static int freeze(struct store *s, struct ckpt *k, struct pglog_error *err) {
  pthread_mutex_lock(&s->mutex);
  int rc = apply_resolved(s, UINT64_MAX, err);
  if (rc == PGLOG_OK && capture(s, k) != PGLOG_OK)
    rc = error_set(err, PGLOG_ENOMEM, "out of memory for a check point");
  if (rc == PGLOG_OK) {
    k->build.s = s;
    k->build.generation = layers_freeze(s);
    k->build.old = index_ref(s->index);
    k->ord = s->applied_ord;
    k->super.wal = s->applied.wal;
    k->super.wal_offset = s->applied.offset;
    k->super.sequence = s->applied_seq;
    k->super.blobs = s->applied_ord;
    pthread_mutex_lock(&s->queue_mutex);
    if (s->segments_tail)
      s->segments_tail->closed = true;
    pthread_mutex_unlock(&s->queue_mutex);
  }
  pthread_mutex_unlock(&s->mutex);
  return rc;
}

/* ---------------------------------------------------------------------------------------------- */
/* WAL                                                                                            */

/* I4: the newest WAL that holds anything is synced (older ones are, since creating it synced them),
 * and the directory if a WAL is new in it. What was appended before this call is durable
 * afterwards. */
static int wal_sync(struct store *s, struct pglog_error *err) {
  uint64_t number = 0, size = 0;
  bool dir = false;
  pthread_mutex_lock(&s->queue_mutex);
  for (size_t i = s->n_wals; i-- > 0 && !number;)
    if (s->wals[i].exists && !s->wals[i].released) {
      number = s->wals[i].number;
      size = s->wals[i].size;
    }
  for (size_t i = 0; i < s->n_wals; i++)
    dir |= s->wals[i].exists && !s->wals[i].dir_synced;
  pthread_mutex_unlock(&s->queue_mutex);
  int rc = PGLOG_OK;
  if (number) {
    rc = s->config.ops.sync(s->config.ops.arg, number, err);
    STAT_ADD(s, syncs_checkpoint, 1);
  }
  if (rc == PGLOG_OK && dir)
    rc = s->config.ops.sync_dir(s->config.ops.arg, err);
  if (rc != PGLOG_OK)
    return rc;
  pthread_mutex_lock(&s->queue_mutex);
  for (size_t i = 0; i < s->n_wals && s->wals[i].number <= number; i++) {
    s->wals[i].dir_synced = true;
    if (s->wals[i].number == number && size > s->wals[i].durable)
      s->wals[i].durable = size;
  }
  pthread_mutex_unlock(&s->queue_mutex);
  return PGLOG_OK;
}

/* Move the position over WALs that hold nothing behind it, so that they need not be listed; then
 * list those that must exist. Only WALs that are durable, name and bytes, may be named; a probe,
 * before wal_sync(), takes all that will be. */
static void wal_position(struct store *s, struct super *n, bool probe) {
  pthread_mutex_lock(&s->queue_mutex);
  for (size_t i = 0; i < s->n_wals; i++) {
    const struct wal_info *w = &s->wals[i];
    bool passed = w->number < n->wal || (w->number == n->wal && n->wal_offset >= w->size);
    if (passed && i + 1 < s->n_wals && s->wals[i + 1].number > n->wal && s->wals[i + 1].exists &&
        (probe || s->wals[i + 1].dir_synced)) {
      n->wal = s->wals[i + 1].number;
      n->wal_offset = 0;
    }
  }
  n->n_wals = 0;
  for (size_t i = 0; i < s->n_wals && n->n_wals < SUPER_WALS_MAX; i++)
    if (s->wals[i].number >= n->wal && s->wals[i].dir_synced)
      n->wals[n->n_wals++] = s->wals[i].number;
  n->cf_id = s->match.cf_id;
  memcpy(n->identity, s->config.identity, sizeof n->identity);
  pthread_mutex_unlock(&s->queue_mutex);
}

/* Delete the WALs that were handed over and that the superblock covers. */
static void wal_remove(struct store *s) {
  for (;;) {
    struct pglog_error err;
    uint64_t number = 0;
    bool archived = false;
    pthread_mutex_lock(&s->queue_mutex);
    for (size_t i = 0; i < s->n_wals && !number; i++)
      if (s->wals[i].released && s->wals[i].number < s->super.wal) {
        number = s->wals[i].number;
        archived = s->wals[i].archived;
        memmove(&s->wals[i], &s->wals[i + 1], (s->n_wals - i - 1) * sizeof *s->wals);
        s->n_wals--;
      }
    pthread_mutex_unlock(&s->queue_mutex);
    if (!number)
      return;
    if (archived)
      continue; /* RocksDB deletes it when its time has come */
    if (s->config.ops.remove(s->config.ops.arg, number, &err) == PGLOG_OK)
      STAT_ADD(s, wals_removed, 1);
    else
      store_log(s, 1, "WAL %06llu.log cannot be deleted: %s", (unsigned long long)number, err.text);
  }
}

/* ---------------------------------------------------------------------------------------------- */
/* Publication                                                                                    */

static void fill_super(struct store *s, struct ckpt *k) {
  const struct index *ix = k->build.made;
  struct super *n = &k->super;
  n->generation = k->build.generation;
  n->arena_id = s->arena_id;
  n->rule = s->rule;
  n->root_block = ix->root_block;
  n->root_blocks = ix->root_blocks;
  n->root_generation = ix->root_generation;
  n->tables = ix->n;
  n->leaves = ix->leaves;
  n->entries = ix->entries;
  n->overflow_blocks = ix->overflow_blocks;
}

/* The published state replaces the old one for all new readers. */
static void install(struct store *s, struct ckpt *k, struct garbage *garbage) {
  struct garbage **end = &garbage;
  pthread_mutex_lock(&s->queue_mutex);
  s->super = k->super;
  while (s->segments && s->segments->last_ord <= k->ord) {
    struct segment *g = s->segments;
    s->segments = g->next;
    if (!s->segments)
      s->segments_tail = NULL;
    atomic_fetch_sub_explicit(&s->segment_bytes, g->used, memory_order_relaxed);
    if (garbage_add(&garbage, k->build.generation, NULL, g) != PGLOG_OK)
      break; /* out of memory: this one is lost to us until the process ends */
  }
  pthread_mutex_unlock(&s->queue_mutex);
  while (*end)
    end = &(*end)->next;
  pthread_mutex_lock(&s->mutex);
  struct index *old = s->index;
  s->index = k->build.made;
  k->build.made = NULL;
  *end = s->garbage;
  s->garbage = garbage;
  layers_reclaim(s);
  pthread_mutex_unlock(&s->mutex);
  index_unref(old);
}

static uint64_t extents_blocks(const struct extents *x) {
  uint64_t n = 0;
  for (size_t i = 0; i < x->n; i++)
    n += x->v[i].n;
  return n;
}

/* New blocks are written before the old ones are free, so a check point that trims needs room too:
 * a part of the arena is kept from those that take more than they give back. */
static int keep_reserve(struct store *s, const struct ckpt *k, struct pglog_error *err) {
  struct arena_usage u;
  uint64_t taken = extents_blocks(&k->build.taken), back = extents_blocks(&k->build.replaced);
  arena_usage(s->arena, &u);
  uint64_t usable = u.max_blocks - u.max_blocks / RESERVE_PART, after = u.used_blocks - back;
  /* Trims may keep a leaf that they take entries from, and change the tables only. */
  bool trims = k->build.made->entries < k->build.old->entries;
  if (taken <= back || trims || after <= usable)
    return PGLOG_OK;
  return error_set(err, PGLOG_EFULL,
                   "arena %s is full: %llu bytes would be in use; the limit is %llu, arena_max (or "
                   "the device's size) of %llu less 1/%u that is kept for trimming",
                   s->config.options.io ? "(caller's storage)" : s->config.options.arena,
                   (unsigned long long)after * PGLOG_BLOCK,
                   (unsigned long long)usable * PGLOG_BLOCK,
                   (unsigned long long)u.max_blocks * PGLOG_BLOCK, RESERVE_PART);
}

static int publish(struct store *s, struct ckpt *k, struct pglog_error *err) {
  struct garbage *garbage = NULL;
  int rc = PGLOG_OK;
  fill_super(s, k);
  wal_position(s, &k->super, false);
  for (size_t i = 0; i < k->build.replaced.n && rc == PGLOG_OK; i++)
    rc = garbage_add(&garbage, k->build.generation, &k->build.replaced.v[i], NULL);
  if (rc != PGLOG_OK)
    error_set(err, rc, "out of memory for a check point");
  if (rc == PGLOG_OK)
    rc = store_check(s, err);
  if (rc == PGLOG_OK)
    rc = keep_reserve(s, k, err);
  if (rc == PGLOG_OK) {
    rc = arena_publish(s->arena, &k->super, err);
    /* I6: whether it is on disk or not, its blocks stay taken until the next open. */
    k->build.taken.n = 0;
    s->publish_failed = rc != PGLOG_OK;
  }
  if (rc != PGLOG_OK) {
    while (garbage) {
      struct garbage *g = garbage;
      garbage = g->next;
      free(g);
    }
    return rc;
  }
  STAT_ADD(s, superblocks, 1);
  install(s, k, garbage);
  return PGLOG_OK;
}

/* Nothing staged: only the position moves. The index stays, under the new generation. */
static int build_same(struct ckpt *k, struct pglog_error *err) {
  const struct index *old = k->build.old;
  struct index *ix = index_new();
  if (ix)
    ix->node = calloc(old->n + 1, sizeof *ix->node);
  if (!ix || !ix->node) {
    index_unref(ix);
    return error_set(err, PGLOG_ENOMEM, "out of memory for a check point");
  }
  for (size_t i = 0; i < old->n; i++)
    ix->node[i] = node_ref(old->node[i]);
  ix->n = old->n;
  ix->generation = k->build.generation;
  ix->root_block = old->root_block;
  ix->root_blocks = old->root_blocks;
  ix->root_generation = old->root_generation;
  ix->leaves = old->leaves;
  ix->entries = old->entries;
  ix->overflow_blocks = old->overflow_blocks;
  k->build.made = ix;
  return PGLOG_OK;
}

static void ckpt_end(struct store *s, struct ckpt *k) {
  /* Not published: nothing on disk refers to the blocks it took. */
  for (size_t i = 0; i < k->build.taken.n; i++)
    arena_free(s->arena, k->build.taken.v[i].block, k->build.taken.v[i].n);
  free(k->build.taken.v);
  free(k->build.replaced.v);
  free(k->build.pg);
  free(k->copies);
  index_unref(k->build.old);
  index_unref(k->build.made);
}

static int ckpt_steps(struct store *s, struct ckpt *k, bool *skipped, struct pglog_error *err) {
  int rc = freeze(s, k, err);
  if (rc != PGLOG_OK)
    return rc;
  bool empty = !k->build.n_pgs && !k->build.global;
  struct super probe = k->super;
  wal_position(s, &probe, true);
  *skipped = empty && probe.wal == s->super.wal && probe.wal_offset == s->super.wal_offset &&
             probe.cf_id == s->super.cf_id && !strcmp(probe.identity, s->super.identity);
  if (*skipped)
    return PGLOG_OK;
  rc = wal_sync(s, err);
  if (rc != PGLOG_OK) {
    store_poison(s, err);
    return rc;
  }
  rc = empty ? build_same(k, err) : build_index(&k->build, err);
  if (rc == PGLOG_OK)
    rc = publish(s, k, err);
  if (rc == PGLOG_OK && empty)
    STAT_ADD(s, superblock_only, 1);
  return rc;
}

/* A failed publication costs its blocks until the next open. So that a superblock that cannot be
 * written does not eat up the arena, the published state is published once more first, which takes
 * none. */
static int retry_publication(struct store *s, struct pglog_error *err) {
  struct super again = s->super;
  if (!s->publish_failed)
    return PGLOG_OK;
  pthread_mutex_lock(&s->mutex);
  again.generation = layers_freeze(s);
  pthread_mutex_unlock(&s->mutex);
  int rc = arena_publish(s->arena, &again, err);
  if (rc != PGLOG_OK)
    return rc;
  STAT_ADD(s, superblocks, 1);
  s->publish_failed = false;
  pthread_mutex_lock(&s->queue_mutex);
  s->super = again;
  pthread_mutex_unlock(&s->queue_mutex);
  return PGLOG_OK;
}

static int check_index(struct store *s, struct pglog_error *err) {
  for (size_t i = 0; s->index->damaged && i < s->index->n; i++)
    if (s->index->node[i]->damaged)
      return error_set(err, PGLOG_ECORRUPT,
                       "check points have stopped, a table block is damaged: %s",
                       s->index->node[i]->why);
  return PGLOG_OK;
}

int checkpoint_run(struct store *s, struct pglog_error *err) {
  struct ckpt k = {.copies = NULL};
  bool skipped = false;
  uint64_t start = now_us();
  int rc = store_check(s, err);
  if (rc == PGLOG_OK && !s->arena_made)
    return PGLOG_OK;
  if (rc == PGLOG_OK && s->arena_error.code != PGLOG_OK)
    rc = error_set(err, s->arena_error.code, "%s", s->arena_error.text);
  if (rc == PGLOG_OK)
    rc = check_index(s, err);
  if (rc == PGLOG_OK) {
    garbage_free(s);
    rc = retry_publication(s, err);
    if (rc == PGLOG_OK)
      rc = ckpt_steps(s, &k, &skipped, err);
    ckpt_end(s, &k);
    if (rc == PGLOG_EPOISONED && store_check(s, NULL) == PGLOG_OK)
      s->arena_error = *err;
  }
  if (rc == PGLOG_OK) {
    garbage_free(s);
    wal_remove(s);
  }
  if (rc != PGLOG_OK)
    STAT_ADD(s, checkpoint_failures, 1);
  else if (!skipped)
    STAT_ADD(s, checkpoints, 1);
  STAT_ADD(s, checkpoint_us, now_us() - start);
  return rc;
}

/* Is there a reason for one? While a check point runs, what it is about to make room for, and the
 * WALs that it will cover, ask for the next one. ckpt_mutex held. */
static bool checkpoint_due(struct store *s) {
  bool due = staged_bytes(s) > s->config.options.memory || store_check(s, NULL) != PGLOG_OK;
  pthread_mutex_lock(&s->queue_mutex);
  for (size_t i = 0; i < s->n_wals && !due; i++)
    due = s->wals[i].released && s->wals[i].number >= s->super.wal;
  pthread_mutex_unlock(&s->queue_mutex);
  return due;
}

/* A check point; with `if_due` only if there is a reason, else just the WALs that the last one
 * covers go, and what no view needs any more. */
static int checkpoint_attempt(struct store *s, bool if_due, struct pglog_error *err) {
  int rc = PGLOG_OK;
  pthread_mutex_lock(&s->ckpt_mutex);
  if (s->started && (!if_due || checkpoint_due(s))) {
    rc = checkpoint_run(s, err);
  } else if (s->started) {
    garbage_free(s);
    wal_remove(s);
  }
  pthread_mutex_unlock(&s->ckpt_mutex);
  pthread_mutex_lock(&s->wake_mutex);
  s->ckpt_error.code = PGLOG_OK;
  if (rc != PGLOG_OK)
    s->ckpt_error = *err;
  s->attempts++;
  pthread_cond_broadcast(&s->progress);
  pthread_mutex_unlock(&s->wake_mutex);
  return rc;
}

int store_checkpoint(struct store *s, struct pglog_error *err) {
  struct pglog_error local;
  return checkpoint_attempt(s, false, err ? err : &local);
}

/* ---------------------------------------------------------------------------------------------- */
/* Thread                                                                                         */

static void deadline(struct timespec *t, unsigned ms) {
  clock_gettime(CLOCK_MONOTONIC, t);
  t->tv_sec += ms / 1000;
  t->tv_nsec += (long)(ms % 1000) * 1000000;
  if (t->tv_nsec >= 1000000000) {
    t->tv_sec++;
    t->tv_nsec -= 1000000000;
  }
}

/* Sit out the pause after a failure, whoever asks: an attempt costs a sync, writes and a layer in
 * every PG that was touched since the one before. wake_mutex held. */
static void retry_wait(struct store *s) {
  struct timespec t;
  deadline(&t, RETRY_MS);
  while (!s->stop && pthread_cond_timedwait(&s->wake, &s->wake_mutex, &t) == 0)
    ;
}

static void *checkpoint_thread(void *arg) {
  struct store *s = arg;
  int last = PGLOG_OK;
  pthread_mutex_lock(&s->wake_mutex);
  while (!s->stop) {
    if (last != PGLOG_OK)
      retry_wait(s);
    /* When poisoned nothing is written any more until reopen: only who asks is told so. */
    while (!s->stop && !s->wanted && (last == PGLOG_OK || last == PGLOG_EPOISONED))
      pthread_cond_wait(&s->wake, &s->wake_mutex);
    if (s->stop)
      continue;
    s->wanted = false;
    pthread_mutex_unlock(&s->wake_mutex);
    struct pglog_error err = {.code = PGLOG_OK};
    int rc = checkpoint_attempt(s, true, &err);
    if (rc != PGLOG_OK && rc != last)
      store_log(s, 1, "check point failed%s: %s",
                rc == PGLOG_EPOISONED ? "" : ", will be tried again", err.text);
    last = rc;
    pthread_mutex_lock(&s->wake_mutex);
  }
  pthread_mutex_unlock(&s->wake_mutex);
  return NULL;
}

int checkpoint_thread_start(struct store *s, struct pglog_error *err) {
  int rc = pthread_create(&s->thread, NULL, checkpoint_thread, s);
  if (rc)
    return error_set(err, PGLOG_ENOMEM, "the check point thread cannot be started: %s",
                     strerror(rc));
  pthread_setname_np(s->thread, "pglog:ckpt");
  s->thread_running = true;
  if (staged_bytes(s) > s->config.options.memory)
    checkpoint_want(s);
  return PGLOG_OK;
}

void checkpoint_thread_stop(struct store *s) {
  if (!s->thread_running)
    return;
  pthread_mutex_lock(&s->wake_mutex);
  s->stop = true;
  pthread_cond_signal(&s->wake);
  pthread_mutex_unlock(&s->wake_mutex);
  pthread_join(s->thread, NULL);
  s->thread_running = false;
}

/* ---------------------------------------------------------------------------------------------- */
/* Throttle                                                                                       */

/* Wait for the end of a check point attempt, or a little while. */
static void wait_progress(struct store *s, unsigned ms) {
  struct timespec t;
  deadline(&t, ms);
  pthread_mutex_lock(&s->wake_mutex);
  pthread_cond_timedwait(&s->progress, &s->wake_mutex, &t);
  pthread_mutex_unlock(&s->wake_mutex);
}

bool store_throttles(struct store *s) {
  return staged_bytes(s) > 2 * s->config.options.memory;
}

int store_throttle(struct store *s, bool trims, struct pglog_error *err) {
  uint64_t budget = s->config.options.memory;
  if (!store_throttles(s))
    return PGLOG_OK;
  int rc = store_check(s, err); /* nothing will ever make room */
  if (rc != PGLOG_OK)
    return rc;
  STAT_ADD(s, throttled, 1);
  checkpoint_want(s);
  wait_progress(s, 10);
  if (trims || staged_bytes(s) <= 4 * budget)
    return store_check(s, err);
  for (int i = 0; i < 20 && staged_bytes(s) > 4 * budget; i++)
    wait_progress(s, 50);
  uint64_t staged = staged_bytes(s);
  if (staged <= 4 * budget)
    return store_check(s, err);
  STAT_ADD(s, refused, 1);
  pthread_mutex_lock(&s->wake_mutex);
  struct pglog_error why = s->ckpt_error;
  pthread_mutex_unlock(&s->wake_mutex);
  return error_set(
      err, PGLOG_EBUSY,
      "write refused: %llu bytes of pg log are staged, the limit is %llu (4 x memory=%llu)"
      " and check points do not catch up: %.400s",
      (unsigned long long)staged, (unsigned long long)(4 * budget), (unsigned long long)budget,
      why.code ? why.text : "one is running");
}
