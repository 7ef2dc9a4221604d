/* SPDX-License-Identifier: Apache-2.0
 *
 * store_wal.c - the store's side of the WAL: follows appends, queues blobs in WAL order, and knows
 * which WAL files exist and how much of them is durable.
 */
#include <stdio.h>
#include <sys/mman.h>

#include "store_internal.h"

#define BLOB_LEN 4 /* bytes of the length in front of a blob in a segment */

/* ---------------------------------------------------------------------------------------------- */
/* Poison                                                                                         */

void store_poison(struct store *s, const struct pglog_error *err) {
  pthread_mutex_lock(&s->queue_mutex);
  bool first = !atomic_load_explicit(&s->poisoned, memory_order_relaxed);
  if (first) {
    s->poison = *err;
    /* Orders the error's text before the flag that lets others read it without the lock. */
    atomic_store_explicit(&s->poisoned, true, memory_order_release);
  }
  pthread_mutex_unlock(&s->queue_mutex);
  if (first)
    store_log(s, 2, "stopped: %s", err->text);
}

int store_check(struct store *s, struct pglog_error *err) {
  if (!atomic_load_explicit(&s->poisoned, memory_order_acquire))
    return PGLOG_OK;
  return error_set(err, PGLOG_EPOISONED, "the database has stopped after an earlier error: %s",
                   s->poison.text);
}

void store_refuse(struct store *s, const struct pglog_error *err) {
  pthread_mutex_lock(&s->queue_mutex);
  if (!atomic_load_explicit(&s->refused, memory_order_relaxed)) {
    s->refusal = *err;
    /* As with poison: text before flag. */
    atomic_store_explicit(&s->refused, true, memory_order_release);
  }
  pthread_mutex_unlock(&s->queue_mutex);
}

static int check_refused(struct store *s, struct pglog_error *err) {
  if (!atomic_load_explicit(&s->refused, memory_order_acquire))
    return PGLOG_OK;
  return error_set(err, s->refusal.code, "%s", s->refusal.text);
}

/* ---------------------------------------------------------------------------------------------- */
/* The list of WAL files; queue_mutex held                                                        */

struct wal_info *wal_find(struct store *s, uint64_t number) {
  for (size_t i = s->n_wals; i-- > 0;)
    if (s->wals[i].number == number)
      return &s->wals[i];
  return NULL;
}

int wal_add(struct store *s, uint64_t number, struct wal_info **out) {
  if (array_room(&s->wals, s->n_wals, &s->cap_wals, sizeof *s->wals, 16) != 0)
    return PGLOG_ENOMEM;
  size_t at = s->n_wals;
  while (at > 0 && s->wals[at - 1].number > number)
    at--;
  memmove(&s->wals[at + 1], &s->wals[at], (s->n_wals - at) * sizeof *s->wals);
  s->n_wals++;
  s->wals[at] = (struct wal_info){.number = number};
  *out = &s->wals[at];
  return PGLOG_OK;
}

static bool wal_is_newest(const struct store *s, uint64_t number) {
  return s->n_wals && s->wals[s->n_wals - 1].number == number;
}

uint64_t store_highest_wal(struct store *s) {
  pthread_mutex_lock(&s->queue_mutex);
  uint64_t n = s->n_wals ? s->wals[s->n_wals - 1].number : 0;
  pthread_mutex_unlock(&s->queue_mutex);
  return n;
}

/* ---------------------------------------------------------------------------------------------- */
/* The pending queue                                                                              */

static struct pending *queue_at(struct store *s, size_t i) {
  return &s->queue[(s->queue_head + i) & (s->queue_cap - 1)];
}

static int queue_push(struct store *s, const struct pending *p) {
  if (s->queue_len == s->queue_cap) {
    size_t cap = s->queue_cap ? s->queue_cap * 2 : 256;
    struct pending *q = malloc(cap * sizeof *q);
    if (!q)
      return PGLOG_ENOMEM;
    for (size_t i = 0; i < s->queue_len; i++)
      q[i] = *queue_at(s, i);
    free(s->queue);
    s->queue = q;
    s->queue_cap = cap;
    s->queue_head = 0;
  }
  s->queue_len++;
  *queue_at(s, s->queue_len - 1) = *p;
  return PGLOG_OK;
}

static struct segment *segment_new(size_t cap) {
  if (cap != SEGMENT_SIZE)
    return malloc(sizeof(struct segment) + cap);
  struct segment *g = aligned_alloc(SEGMENT_ALLOC, SEGMENT_ALLOC);
  if (g)
    madvise(g, SEGMENT_ALLOC, MADV_HUGEPAGE); /* small pages will do where this is refused */
  return g;
}

#define PREFETCH_MAX 2048 /* bytes */

static uint8_t *segment_room(struct store *s, size_t n) {
  struct segment *g = s->segments_tail;
  if (!g || g->closed || g->cap - g->used < n) {
    size_t cap = n > SEGMENT_SIZE ? n : SEGMENT_SIZE;
    if (cap == SEGMENT_SIZE && s->spare) {
      g = s->spare;
      s->spare = g->next;
      s->n_spare--;
    } else {
      g = segment_new(cap);
    }
    if (!g)
      return NULL;
    *g = (struct segment){.cap = cap};
    if (s->segments_tail)
      s->segments_tail->next = g;
    else
      s->segments = g;
    s->segments_tail = g;
  }
  atomic_fetch_add_explicit(&s->segment_bytes, n, memory_order_relaxed);
  uint8_t *p = g->data + g->used;
  g->used += n;
  /* The next record's lines, while there is time: this memory was last used a check point ago. */
  for (size_t i = 0; i < n && i < PREFETCH_MAX && i < g->cap - g->used; i += 64)
    __builtin_prefetch(p + n + i, 1);
  return p;
}

void segment_release(struct store *s, struct segment *g) {
  pthread_mutex_lock(&s->queue_mutex);
  if (g->cap == SEGMENT_SIZE && s->n_spare < s->config.options.memory / SEGMENT_SIZE) {
    g->next = s->spare;
    s->spare = g;
    s->n_spare++;
    g = NULL;
  }
  pthread_mutex_unlock(&s->queue_mutex);
  free(g);
}

/* Copy the blobs of the record that was checked, each behind its length. */
static void blobs_copy(const struct store *s, uint8_t *to) {
  for (size_t i = 0; i < s->n_blobs; i++) {
    put_le32(to, (uint32_t)s->blobs[i].size);
    memcpy(to + BLOB_LEN, s->blobs[i].data, s->blobs[i].size);
    to += BLOB_LEN + s->blobs[i].size;
  }
}

/* Queue a record with the blobs that were collected in s->blobs. */
static int queue_record(struct store *s, uint64_t wal, const struct wal_record *r, uint64_t seq,
                        uint32_t count) {
  uint32_t n_blobs = (uint32_t)s->n_blobs;
  struct pending p = {.wal = wal,
                      .end = r->end,
                      .sequence = seq + count - 1,
                      .no_count = count == 0,
                      .n_blobs = n_blobs};
  int rc = PGLOG_OK;
  pthread_mutex_lock(&s->queue_mutex);
  if (n_blobs) {
    uint8_t *room = segment_room(s, s->blobs_size);
    if (room) {
      blobs_copy(s, room);
      p.blobs = room;
      p.first_ord = s->observed_ord + 1;
      s->segments_tail->last_ord = s->observed_ord + n_blobs;
    } else {
      rc = PGLOG_ENOMEM;
    }
  }
  if (rc == PGLOG_OK)
    rc = queue_push(s, &p);
  if (rc == PGLOG_OK) {
    s->observed_ord += n_blobs;
    if (p.sequence > s->last_seq)
      s->last_seq = p.sequence;
  }
  pthread_mutex_unlock(&s->queue_mutex);
  return rc;
}

/* Of several records without blobs in a row only the last one matters, for its position. Not over the
 * end of a WAL: the older one may be resolved as a whole, by being handed over. */
static void queue_merge_plain(struct store *s) {
  while (s->queue_committed >= 2) {
    struct pending *a = queue_at(s, s->queue_committed - 2);
    struct pending *b = queue_at(s, s->queue_committed - 1);
    if (a->n_blobs || b->n_blobs || a->wal != b->wal || s->queue_committed != s->queue_len)
      return;
    *a = *b;
    s->queue_len--;
    s->queue_committed--;
  }
}

void queue_commit(struct store *s, uint64_t wal, uint64_t size) {
  pthread_mutex_lock(&s->queue_mutex);
  while (s->queue_committed < s->queue_len) {
    s->queue_committed++;
    queue_merge_plain(s);
  }
  atomic_store_explicit(&s->committed_ord, s->observed_ord, memory_order_relaxed);
  atomic_store_explicit(&s->queue_depth, s->queue_committed, memory_order_relaxed);
  struct wal_info *w = wal_find(s, wal);
  if (w && size > w->size) {
    w->size = size;
    w->exists = true;
  }
  pthread_mutex_unlock(&s->queue_mutex);
}

/* After a failed append. The ordinals are not given back: the store is poisoned. */
void queue_drop_uncommitted(struct store *s) {
  pthread_mutex_lock(&s->queue_mutex);
  s->queue_len = s->queue_committed;
  pthread_mutex_unlock(&s->queue_mutex);
}

size_t queue_take(struct store *s, uint64_t latest, bool idle, uint64_t limit, struct pending *out,
                  size_t n) {
  size_t k = 0;
  pthread_mutex_lock(&s->queue_mutex);
  while (k < n && s->queue_committed) {
    struct pending *p = queue_at(s, 0);
    bool resolved = s->queue_committed > 1 || p->wal <= s->resolved_wal ||
                    (p->no_count ? p->done || idle : latest >= p->sequence);
    if (!resolved || p->sequence > limit)
      break;
    out[k++] = *p;
    s->queue_head = (s->queue_head + 1) & (s->queue_cap - 1);
    s->queue_len--;
    s->queue_committed--;
  }
  atomic_store_explicit(&s->queue_depth, s->queue_committed, memory_order_relaxed);
  pthread_mutex_unlock(&s->queue_mutex);
  return k;
}

/* A batch of a blob alone takes no sequence number, so its writer looks for its own record, which can
 * only be in doubt while it is the last one. */
static void queue_mark_done(struct store *s, uint8_t tag) {
  pthread_mutex_lock(&s->queue_mutex);
  if (s->queue_committed) {
    struct pending *p = queue_at(s, s->queue_committed - 1);
    const uint8_t *b = p->blobs;
    for (uint32_t i = 0; i < p->n_blobs && p->no_count && !p->done; i++) {
      struct blob_cursor c;
      struct blob_header h;
      uint32_t len = get_le32(b);
      if (blob_open(&c, slice_make(b + BLOB_LEN, len), &h, NULL) == PGLOG_OK && h.tag == tag)
        p->done = true;
      b += BLOB_LEN + len;
    }
  }
  pthread_mutex_unlock(&s->queue_mutex);
}

void store_written(struct store *s, uint8_t tag, bool only_blob) {
  if (only_blob)
    queue_mark_done(s, tag);
  /* Readers and check points apply what they need by themselves; here it is done by the row, which
   * touches cold memory less often. If someone else is at it, it will see this record too. */
  if (atomic_load_explicit(&s->queue_depth, memory_order_relaxed) >= APPLY_ROW &&
      pthread_mutex_trylock(&s->mutex) == 0) {
    apply_resolved(s, UINT64_MAX, NULL);
    pthread_mutex_unlock(&s->mutex);
  }
  if (staged_bytes(s) > s->config.options.memory)
    checkpoint_want(s);
}

/* ---------------------------------------------------------------------------------------------- */
/* One record                                                                                     */

static int refuse_outside_blob(struct store *s, const struct batch_record *b,
                               struct pglog_error *err) {
  char key[160], rule[400];
  return error_set(err, PGLOG_ENOTSUP,
                   "%s of key %s outside a pg log blob: keys of the rule (%s) must be written "
                   "through the pglog facade",
                   batch_op_str(b->op), key_print(key, sizeof key, b->key),
                   rule_print(&s->rule, rule, sizeof rule));
}

static int take_blob(struct store *s, struct slice blob, uint64_t before, bool live,
                     struct pglog_error *err) {
  struct blob_cursor c;
  struct blob_header h;
  int rc = blob_open(&c, blob, &h, err);
  if (rc == PGLOG_OK)
    rc = blob_check(blob, err);
  if (rc != PGLOG_OK)
    return rc;
  if (!live && h.number > before)
    return error_set(err, PGLOG_ECORRUPT,
                     "a blob was made after %llu others, but only %llu come before it: "
                     "%llu are lost",
                     (unsigned long long)h.number, (unsigned long long)before,
                     (unsigned long long)(h.number - before));
  if (array_room(&s->blobs, s->n_blobs, &s->cap_blobs, sizeof *s->blobs, 64) != 0)
    return error_set(err, PGLOG_ENOMEM, "out of memory for %zu blobs", s->n_blobs + 1);
  s->blobs[s->n_blobs++] = blob;
  s->blobs_size += BLOB_LEN + blob.size;
  STAT_ADD(s, blobs, 1);
  STAT_ADD(s, blob_bytes, blob.size);
  return PGLOG_OK;
}

int wal_take_record(struct store *s, uint64_t wal, const struct wal_record *r, bool live,
                    struct pglog_error *err) {
  struct slice batch = r->payload;
  if (batch.size < BATCH_HEADER)
    return error_set(err, PGLOG_ECORRUPT, "a WAL record of %zu bytes is shorter than %d",
                     batch.size, BATCH_HEADER);
  uint64_t seq = batch_sequence(batch);
  uint32_t count = batch_count(batch);
  if (!live && seq <= s->last_seq)
    return error_set(err, PGLOG_ECORRUPT, "the sequence goes back from %llu to %llu",
                     (unsigned long long)s->last_seq, (unsigned long long)seq);
  const uint8_t *p = batch.data + BATCH_HEADER, *end = batch.data + batch.size;
  s->n_blobs = s->blobs_size = 0;
  while (p < end) {
    struct batch_record b;
    int rc = batch_next(batch.data, &p, end, &b, err);
    if (rc != PGLOG_OK)
      return rc;
    if (b.op == BATCH_LOG_DATA && blob_is(b.value)) {
      if (live && !s->door)
        return error_set(err, PGLOG_ENOTSUP,
                         "a pg log blob is written, but no door (pglog_db_open) is open on this "
                         "database");
      rc = take_blob(s, b.value, s->observed_ord + s->n_blobs, live, err);
      if (rc != PGLOG_OK)
        return rc;
    } else if (live && batch_record_matches(&s->match, &b)) {
      return refuse_outside_blob(s, &b, err);
    }
  }
  STAT_ADD(s, records, 1);
  if (queue_record(s, wal, r, seq, count) != PGLOG_OK)
    return error_set(err, PGLOG_ENOMEM, "out of memory for %zu bytes of staged pg log",
                     s->blobs_size);
  return PGLOG_OK;
}

static int take_live(void *arg, const struct wal_record *r, struct pglog_error *err) {
  struct store_wal *w = arg;
  return wal_take_record(w->s, w->number, r, true, err);
}

/* ---------------------------------------------------------------------------------------------- */
/* WAL files                                                                                      */

/* I5: before a newer WAL exists, the older ones are on disk, so that WALs become durable in order. */
static int sync_older(struct store *s, struct pglog_error *err) {
  for (;;) {
    uint64_t number = 0, size = 0;
    pthread_mutex_lock(&s->queue_mutex);
    for (size_t i = 0; i < s->n_wals && !number; i++)
      if (!s->wals[i].released && (s->wals[i].durable < s->wals[i].size || i + 1 == s->n_wals)) {
        number = s->wals[i].number;
        size = s->wals[i].size;
      }
    pthread_mutex_unlock(&s->queue_mutex);
    if (!number)
      return PGLOG_OK;
    int rc = s->config.ops.sync(s->config.ops.arg, number, err);
    if (rc != PGLOG_OK)
      return rc;
    STAT_ADD(s, syncs_switch, 1);
    pthread_mutex_lock(&s->queue_mutex);
    struct wal_info *w = wal_find(s, number);
    if (w)
      w->durable = size;
    bool newest = wal_is_newest(s, number);
    pthread_mutex_unlock(&s->queue_mutex);
    if (newest)
      return PGLOG_OK;
  }
}

static int make_arena(struct store *s, uint64_t first_wal, struct pglog_error *err) {
  struct super f = {.rule = s->rule, .cf_id = s->match.cf_id, .generation = 1, .wal = first_wal};
  pthread_mutex_lock(&s->queue_mutex);
  f.sequence = s->last_seq;
  memcpy(f.identity, s->config.identity, sizeof f.identity);
  pthread_mutex_unlock(&s->queue_mutex);
  int rc = arena_format(s->arena, &f, err);
  if (rc == PGLOG_OK)
    rc = s->config.ops.sync_arena_dir(s->config.ops.arg, err);
  if (rc != PGLOG_OK)
    return rc;
  s->super = f;
  s->arena_id = f.arena_id;
  s->arena_made = true;
  const char *why = arena_buffered_why(s->arena);
  if (why)
    store_log(s, 0, "arena I/O is buffered: %s", why);
  return PGLOG_OK;
}

int store_wal_create(struct store *s, uint64_t number, struct store_wal **out,
                     struct pglog_error *err) {
  int rc = store_check(s, err);
  if (rc != PGLOG_OK)
    return rc;
  uint64_t highest = store_highest_wal(s);
  /* A check point position ahead of the WALs: recovery would pass over what is written here. */
  if (s->super.wal > highest + 1)
    highest = s->super.wal - 1;
  if (number <= highest)
    return error_set(err, PGLOG_EINVAL,
                     "WAL %06llu.log cannot be created: its number is not above the highest known "
                     "one, %06llu",
                     (unsigned long long)number, (unsigned long long)highest);
  bool first = !s->started;
  if (highest && !first) {
    STAT_ADD(s, switches, 1);
    rc = sync_older(s, err);
  }
  if (rc == PGLOG_OK)
    rc = s->config.ops.sync_dir(s->config.ops.arg, err);
  if (rc == PGLOG_OK && !s->arena_made)
    rc = make_arena(s, number, err);
  if (rc != PGLOG_OK) {
    struct pglog_error copy = {.code = rc};
    if (err)
      copy = *err;
    store_poison(s, &copy);
    return rc;
  }
  struct store_wal *w = calloc(1, sizeof *w);
  struct wal_info *info = NULL;
  pthread_mutex_lock(&s->queue_mutex);
  for (size_t i = 0; i < s->n_wals; i++)
    s->wals[i].exists = s->wals[i].dir_synced = true;
  if (w)
    rc = wal_add(s, number, &info);
  pthread_mutex_unlock(&s->queue_mutex);
  if (!w || rc != PGLOG_OK) {
    free(w);
    return error_set(err, PGLOG_ENOMEM, "out of memory for WAL %06llu.log",
                     (unsigned long long)number);
  }
  w->s = s;
  w->number = number;
  wal_init(&w->parser, number, 0, false);
  *out = w;
  if (first) {
    s->started = true;
    rc = checkpoint_thread_start(s, err);
    if (rc != PGLOG_OK)
      store_wal_abandon(w);
  }
  return rc;
}

void store_wal_abandon(struct store_wal *w) {
  struct store *s = w->s;
  pthread_mutex_lock(&s->queue_mutex);
  struct wal_info *info = wal_find(s, w->number);
  if (info) {
    memmove(info, info + 1, (size_t)(&s->wals[s->n_wals] - (info + 1)) * sizeof *info);
    s->n_wals--;
  }
  pthread_mutex_unlock(&s->queue_mutex);
  store_wal_close(w);
}

void store_wal_close(struct store_wal *w) {
  wal_free(&w->parser);
  free(w);
}

static int append_check(struct store_wal *w, struct pglog_error *err) {
  struct store *s = w->s;
  int rc = store_check(s, err);
  if (rc == PGLOG_OK)
    rc = check_refused(s, err);
  if (rc != PGLOG_OK)
    return rc;
  pthread_mutex_lock(&s->queue_mutex);
  bool newest = wal_is_newest(s, w->number);
  pthread_mutex_unlock(&s->queue_mutex);
  if (!newest)
    return error_set(err, PGLOG_EINVAL, "append to WAL %06llu.log, which is not the newest one",
                     (unsigned long long)w->number);
  return PGLOG_OK;
}

/* Fail an append: nothing of it stays queued, and the store stops. */
static int append_fail(struct store_wal *w, int rc, struct pglog_error *err) {
  queue_drop_uncommitted(w->s);
  struct pglog_error local;
  if (!err)
    error_set(err = &local, rc, "append to WAL %06llu.log failed", (unsigned long long)w->number);
  store_poison(w->s, err);
  return rc;
}

int store_wal_append_begin(struct store_wal *w, const void *data, size_t n,
                           struct pglog_error *err) {
  struct pglog_error local;
  if (!err)
    err = &local;
  int rc = append_check(w, err);
  if (rc == PGLOG_EPOISONED)
    return rc;
  if (rc == PGLOG_OK)
    rc = wal_feed(&w->parser, data, n, take_live, w, err);
  if (rc == PGLOG_OK && wal_end(&w->parser) >= WAL_END_ZEROS)
    rc = error_set(err, PGLOG_ECORRUPT, "bytes appended to WAL %06llu.log at offset %llu are no "
                   "WAL records: %s", (unsigned long long)w->number,
                   (unsigned long long)w->parser.damage_at, w->parser.damage);
  return rc == PGLOG_OK ? rc : append_fail(w, rc, err);
}

int store_wal_append_end(struct store_wal *w, bool ok, struct pglog_error *err) {
  if (!ok)
    return append_fail(w, err ? err->code : PGLOG_EIO, err);
  queue_commit(w->s, w->number, w->parser.offset);
  return PGLOG_OK;
}

int store_wal_sync_begin(struct store_wal *w, uint64_t *offset, bool *needless,
                         struct pglog_error *err) {
  struct store *s = w->s;
  int rc = store_check(s, err);
  if (rc != PGLOG_OK)
    return rc;
  pthread_mutex_lock(&s->queue_mutex);
  struct wal_info *info = wal_find(s, w->number);
  *offset = info ? info->size : 0;
  /* Creating the newer WAL has synced this one already; RocksDB asks again before a flush. */
  *needless = !info || (!wal_is_newest(s, w->number) && info->durable >= info->size);
  pthread_mutex_unlock(&s->queue_mutex);
  if (*needless)
    STAT_ADD(s, syncs_skipped, 1);
  return PGLOG_OK;
}

int store_wal_sync_end(struct store_wal *w, uint64_t offset, bool ok, struct pglog_error *err) {
  struct store *s = w->s;
  if (!ok)
    return append_fail(w, err ? err->code : PGLOG_EIO, err);
  STAT_ADD(s, syncs_writer, 1);
  pthread_mutex_lock(&s->queue_mutex);
  struct wal_info *info = wal_find(s, w->number);
  if (info && offset > info->durable)
    info->durable = offset;
  pthread_mutex_unlock(&s->queue_mutex);
  return PGLOG_OK;
}

void store_released(struct store *s, uint64_t number, bool archived) {
  pthread_mutex_lock(&s->queue_mutex);
  struct wal_info *w = wal_find(s, number);
  if (w || wal_add(s, number, &w) == PGLOG_OK) {
    w->released = true;
    w->archived = archived;
  }
  /* RocksDB gives a WAL up when all of it is in SSTs: none of its records is in doubt. */
  if (number > s->resolved_wal)
    s->resolved_wal = number;
  pthread_mutex_unlock(&s->queue_mutex);
  checkpoint_want(s);
}

bool store_may_remove(struct store *s, uint64_t number) {
  pthread_mutex_lock(&s->queue_mutex);
  bool may = s->destroyed || (s->arena_made && number < s->super.wal);
  pthread_mutex_unlock(&s->queue_mutex);
  return may;
}
