/* SPDX-License-Identifier: Apache-2.0
 *
 * store_apply.c - applies queued blobs to the PG maps, and looks keys up in them. All functions here
 * run with the store's mutex held.
 */
#include "store_internal.h"

#define BLOB_LEN 4
#define TAKE_MAX 64 /* records taken out of the queue under one lock */

/* ---------------------------------------------------------------------------------------------- */
/* PGs                                                                                            */

static struct slice pg_id(const struct pg *pg) { return slice_make(pg->id, pg->id_len); }

static struct pg **pg_bucket(struct store *s, uint64_t hash) {
  return &s->buckets[hash & (s->n_buckets - 1)];
}

struct pg *pg_find(struct store *s, struct slice id) {
  if (s->last_pg && slice_eq(pg_id(s->last_pg), id))
    return s->last_pg;
  if (!s->n_buckets)
    return NULL;
  uint64_t hash = slice_hash(id);
  struct pg *pg = *pg_bucket(s, hash);
  while (pg && !(pg->hash == hash && slice_eq(pg_id(pg), id)))
    pg = pg->next_in_bucket;
  if (pg)
    s->last_pg = pg;
  return pg;
}

static struct pg *pg_new(struct slice id) {
  struct pg *pg = calloc(1, sizeof *pg + id.size);
  if (pg) {
    pg->id_len = id.size;
    pg->hash = slice_hash(id);
    if (id.size)
      memcpy(pg->id, id.data, id.size);
  }
  return pg;
}

/* At least four times as many buckets as PGs: one more PG in a chain is one more cold line. */
static int buckets_grow(struct store *s) {
  size_t old = s->n_buckets, n = old ? old * 4 : 64;
  struct pg **was = s->buckets, **now = calloc(n, sizeof *now);
  if (!now)
    return PGLOG_ENOMEM;
  s->buckets = now;
  s->n_buckets = n;
  for (size_t i = 0; i < old; i++)
    for (struct pg *pg = was[i], *next; pg; pg = next) {
      next = pg->next_in_bucket;
      pg->next_in_bucket = *pg_bucket(s, pg->hash);
      *pg_bucket(s, pg->hash) = pg;
    }
  free(was);
  return PGLOG_OK;
}

static struct pg *pg_find_or_make(struct store *s, struct slice id) {
  struct pg *pg = pg_find(s, id);
  if (pg)
    return pg;
  if (s->n_pgs >= s->n_buckets / 4 && buckets_grow(s) != PGLOG_OK)
    return NULL;
  pg = pg_new(id);
  if (!pg)
    return NULL;
  if (pgmap_put(s->dir, pg_id(pg), slice_make(pg, sizeof *pg), 0, 0) != PGLOG_OK) {
    free(pg);
    return NULL;
  }
  pg->next_in_bucket = *pg_bucket(s, pg->hash);
  *pg_bucket(s, pg->hash) = pg;
  s->n_pgs++;
  return s->last_pg = pg;
}

void pg_drop_if_empty(struct store *s, struct pg *pg) {
  if (pg == s->global || pg->layers || pg->touched)
    return;
  pgmap_erase(s->dir, pg_id(pg));
  struct pg **at = pg_bucket(s, pg->hash);
  while (*at != pg)
    at = &(*at)->next_in_bucket;
  *at = pg->next_in_bucket;
  s->n_pgs--;
  if (s->last_pg == pg)
    s->last_pg = NULL;
  free(pg);
}

static void layer_account(struct store *s, struct layer *l) {
  size_t now = pgmap_memory(l->map);
  __atomic_store_n(&s->map_memory, s->map_memory + now - l->accounted, __ATOMIC_RELAXED);
  l->accounted = now;
}

/* The layer that takes changes; made when there is none since the last freeze. */
static struct layer *pg_active(struct store *s, struct pg *pg) {
  if (pg->layers && pg->layers->generation == s->next_generation)
    return pg->layers;
  struct layer *l = malloc(sizeof *l);
  if (!l)
    return NULL;
  if (pgmap_new(&l->map) != PGLOG_OK) {
    free(l);
    return NULL;
  }
  l->generation = s->next_generation;
  l->older = pg->layers;
  pg->layers = l;
  l->accounted = 0;
  s->layers++;
  layer_account(s, l);
  if (!pg->touched) {
    pg->touched = true;
    pg->next_touched = s->touched;
    s->touched = pg;
  }
  return l;
}

uint64_t layers_freeze(struct store *s) {
  for (struct pg *pg = s->touched, *next; pg; pg = next) {
    next = pg->next_touched;
    pg->touched = false;
  }
  s->touched = NULL;
  return s->next_generation++;
}

static void layer_unaccount(struct store *s, struct layer *l) {
  __atomic_store_n(&s->map_memory, s->map_memory - l->accounted, __ATOMIC_RELAXED);
  l->accounted = 0;
}

static void layer_free(struct store *s, struct layer *l) {
  s->layers--;
  layer_unaccount(s, l);
  pgmap_free(l->map);
  free(l);
}

static void pg_reclaim(struct store *s, struct pg *pg, uint64_t keep) {
  for (struct layer **at = &pg->layers; *at;) {
    struct layer *l = *at;
    if (l->generation > keep) {
      /* In leaves already: only views need it, and no check point makes it less. */
      if (l->generation <= s->index->generation)
        layer_unaccount(s, l);
      at = &l->older;
      continue;
    }
    *at = l->older;
    layer_free(s, l);
  }
}

void layers_reclaim(struct store *s) {
  uint64_t keep = s->index->generation, oldest = views_oldest(s);
  if (oldest < keep)
    keep = oldest;
  pg_reclaim(s, s->global, keep);
  struct pgmap_cursor c;
  pgmap_cursor_init(&c, s->dir, UINT64_MAX);
  pgmap_cursor_first(&c);
  while (c.valid) {
    struct pg *pg = (struct pg *)(uintptr_t)c.value.data;
    pg_reclaim(s, pg, keep);
    bool empty = !pg->layers && !pg->touched;
    pgmap_cursor_next(&c);
    if (empty) {
      /* The cursor has moved on; it finds its place again by its own key. */
      pg_drop_if_empty(s, pg);
    }
  }
}

void layers_free_all(struct store *s) {
  struct pgmap_cursor c;
  if (!s->dir || !s->global)
    return;
  pg_reclaim(s, s->global, UINT64_MAX);
  pgmap_cursor_init(&c, s->dir, UINT64_MAX);
  for (pgmap_cursor_first(&c); c.valid; pgmap_cursor_next(&c)) {
    struct pg *pg = (struct pg *)(uintptr_t)c.value.data;
    pg_reclaim(s, pg, UINT64_MAX);
  }
  /* The directory's keys lie in the PGs: free the map's places first, the PGs after. */
  for (;;) {
    pgmap_cursor_first(&c);
    if (!c.valid)
      break;
    struct pg *pg = (struct pg *)(uintptr_t)c.value.data;
    pg->touched = false;
    pg_drop_if_empty(s, pg);
  }
}

/* ---------------------------------------------------------------------------------------------- */
/* Views                                                                                          */

uint64_t views_oldest(struct store *s) {
  uint64_t oldest = UINT64_MAX;
  for (struct store_view *v = s->views.next; v != &s->views; v = v->next)
    if (v->index->generation < oldest)
      oldest = v->index->generation;
  return oldest;
}

/* Views are opened in order of ordinal, newest at the front. */
uint64_t views_max_ord(struct store *s) {
  return s->views.next == &s->views ? 0 : s->views.next->ord;
}

uint64_t staged_bytes(struct store *s) {
  return atomic_load_explicit(&s->segment_bytes, memory_order_relaxed) +
         __atomic_load_n(&s->map_memory, __ATOMIC_RELAXED);
}

/* ---------------------------------------------------------------------------------------------- */
/* Applying                                                                                       */

/* Name part of `key` if it lies in PG `id`, an empty name if key < PG, or none (data NULL) if behind. */
static struct slice range_bound_in_pg(struct slice key, struct slice id) {
  if (key.size >= id.size && memcmp(key.data, id.data, id.size) == 0)
    return slice_make(key.data + id.size, key.size - id.size);
  if (slice_cmp(key, id) < 0)
    return slice_make("", 0);
  return slice_make(NULL, 0);
}

static int layer_delete_range(struct store *s, struct layer *l, struct slice begin,
                              struct slice end, uint64_t ord, uint64_t view_max) {
  if (!l)
    return PGLOG_ENOMEM;
  int rc = pgmap_delete_range(l->map, begin, end, ord, view_max);
  layer_account(s, l);
  return rc;
}

/* A range that reaches over several PGs: every staged PG in it, and a mask for what lies below. */
static int apply_range_across(struct store *s, struct slice begin, struct slice end, uint64_t ord,
                              uint64_t view_max) {
  struct pgmap_cursor c;
  pgmap_cursor_init(&c, s->dir, UINT64_MAX);
  struct slice first = slice_make(begin.data, rule_pgid_len(&s->rule, begin));
  for (pgmap_cursor_seek(&c, first); c.valid; pgmap_cursor_next(&c)) {
    struct pg *pg = (struct pg *)(uintptr_t)c.value.data;
    if (end.data && slice_cmp(pg_id(pg), end) >= 0)
      break;
    struct slice b = range_bound_in_pg(begin, pg_id(pg));
    struct slice e = end.data ? range_bound_in_pg(end, pg_id(pg)) : end;
    /* Older layers are below the mask that is set at the end. */
    if (!b.data || !pg->layers || pg->layers->generation != s->next_generation)
      continue;
    int rc = layer_delete_range(s, pg->layers, b, e, ord, view_max);
    if (rc != PGLOG_OK)
      return rc;
  }
  return layer_delete_range(s, pg_active(s, s->global), begin, end, ord, view_max);
}

static int apply_range(struct store *s, const struct blob_op *op, uint64_t ord,
                       uint64_t view_max) {
  struct slice end = op->kind == BLOB_DELREST ? slice_make(NULL, 0) : op->end;
  size_t n = rule_pgid_len(&s->rule, op->begin);
  if (!end.data || end.size < n || memcmp(end.data, op->begin.data, n) != 0 ||
      rule_pgid_len(&s->rule, end) != n)
    return apply_range_across(s, op->begin, end, ord, view_max);
  struct pg *pg = pg_find_or_make(s, slice_make(op->begin.data, n));
  return layer_delete_range(s, pg ? pg_active(s, pg) : NULL,
                            slice_make(op->begin.data + n, op->begin.size - n),
                            slice_make(end.data + n, end.size - n), ord, view_max);
}

static int apply_blob(struct store *s, struct slice blob, uint64_t ord, uint64_t view_max,
                      struct pglog_error *err) {
  struct blob_cursor c;
  struct blob_header h;
  struct blob_op op;
  struct pg *pg = NULL;
  struct layer *l = NULL;
  struct slice id = {NULL, 0};
  size_t n = 0;
  int rc = blob_open(&c, blob, &h, err);
  while (rc == PGLOG_OK && (rc = blob_next(&c, &op, err)) == 1) {
    n++;
    rc = PGLOG_OK;
    if (op.kind != BLOB_PUT && op.kind != BLOB_DELETE) {
      if (l)
        layer_account(s, l);
      rc = apply_range(s, &op, ord, view_max);
      l = NULL;
      id.data = NULL;
    } else {
      if (op.pgid.data != id.data || !l) {
        if (l)
          layer_account(s, l);
        id = op.pgid;
        pg = pg_find_or_make(s, id);
        l = pg ? pg_active(s, pg) : NULL;
      }
      if (!l)
        rc = PGLOG_ENOMEM;
      else if (op.kind == BLOB_PUT)
        rc = pgmap_put(l->map, op.name, op.value, ord, view_max);
      else
        rc = pgmap_delete(l->map, op.name, ord, view_max);
    }
    if (rc != PGLOG_OK)
      return error_set(err, rc, "out of memory while applying pg log blob %llu",
                       (unsigned long long)ord);
  }
  if (l)
    layer_account(s, l);
  STAT_ADD(s, ops, n);
  return rc;
}

static int apply_record(struct store *s, const struct pending *p, uint64_t view_max,
                        struct pglog_error *err) {
  const uint8_t *b = p->blobs;
  for (uint32_t i = 0; i < p->n_blobs; i++) {
    uint32_t len = get_le32(b);
    int rc = apply_blob(s, slice_make(b + BLOB_LEN, len), p->first_ord + i, view_max, err);
    if (rc != PGLOG_OK)
      return rc;
    b += BLOB_LEN + len;
  }
  if (p->n_blobs)
    s->applied_ord = p->first_ord + p->n_blobs - 1;
  s->applied = (struct walpos){p->wal, p->end};
  if (p->sequence > s->applied_seq)
    s->applied_seq = p->sequence;
  return PGLOG_OK;
}

/* The records taken out of the queue are lost to this process: nothing may be published or read as of
 * now any more. The WALs still have them. */
static int apply_failed(struct store *s, const struct pglog_error *e, struct pglog_error *err) {
  s->apply_error = *e;
  store_poison(s, e);
  return error_set(err, e->code, "%s", e->text);
}

/* Which PGs the records will touch first, and their memory, level by level: a PG is cold when its next
 * transaction comes, and each miss that is not overlapped costs as much as applying an operation. */
#define AHEAD 64
static void prefetch_records(struct store *s, const struct pending *p, size_t n) {
  uint64_t hash[AHEAD];
  const struct pg *pg[AHEAD];
  size_t k = 0, m = 0;
  if (!s->n_buckets)
    return;
  for (size_t i = 0; i < n; i++) {
    const uint8_t *b = p[i].blobs;
    for (uint32_t j = 0; j < p[i].n_blobs && k < AHEAD; j++) {
      struct blob_cursor c;
      struct blob_header h;
      struct blob_op op;
      uint32_t len = get_le32(b);
      b += BLOB_LEN + len;
      if (blob_open(&c, slice_make(b - len, len), &h, NULL) != PGLOG_OK ||
          blob_next(&c, &op, NULL) != 1)
        continue;
      hash[k] = slice_hash(op.pgid);
      __builtin_prefetch(pg_bucket(s, hash[k++]));
    }
  }
  for (size_t i = 0; i < k; i++)
    if ((pg[m] = *pg_bucket(s, hash[i])) != NULL)
      __builtin_prefetch(pg[m++]);
  for (size_t i = 0; i < m; i++)
    if (pg[i]->layers)
      __builtin_prefetch(pg[i]->layers);
  for (int step = 0; step < PGMAP_PREFETCH_STEPS; step++)
    for (size_t i = 0; i < m; i++)
      if (pg[i]->layers)
        pgmap_prefetch(pg[i]->layers->map, step);
}

int apply_resolved(struct store *s, uint64_t limit, struct pglog_error *err) {
  struct pending p[TAKE_MAX];
  struct pglog_error e;
  size_t n;
  uint64_t view_max = views_max_ord(s);
  if (s->apply_error.code != PGLOG_OK)
    return error_set(err, s->apply_error.code, "%s", s->apply_error.text);
  do {
    uint64_t latest = s->latest ? s->latest(s->latest_arg) : s->final_latest;
    n = queue_take(s, latest, s->detached, limit, p, TAKE_MAX);
    if (n > 1)
      prefetch_records(s, p, n);
    for (size_t i = 0; i < n; i++)
      if (apply_record(s, &p[i], view_max, &e) != PGLOG_OK)
        return apply_failed(s, &e, err);
  } while (n == TAKE_MAX);
  return PGLOG_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Lookup                                                                                         */

/* The layers of one generation are looked at together: the PG's own entries first, then ranges that
 * were deleted across PGs (entries put later than such a range are above it, earlier ones were
 * removed). */
enum staged_found layers_get(const struct layer *l, const struct layer *g, struct slice key,
                             struct slice name, uint64_t gen, uint64_t at, struct slice *value) {
  while ((l && l->generation > gen) || (g && g->generation > gen)) {
    uint64_t newest = l ? l->generation : 0;
    if (g && g->generation > newest)
      newest = g->generation;
    if (l && l->generation == newest) {
      enum pgmap_found f = pgmap_get(l->map, name, at, value);
      if (f != PGMAP_NONE)
        return f == PGMAP_VALUE ? STAGED_VALUE : STAGED_DELETED;
      l = l->older;
    }
    if (g && g->generation == newest) {
      if (pgmap_masked(g->map, key, at))
        return STAGED_DELETED;
      g = g->older;
    }
  }
  return STAGED_NONE;
}

bool layers_mask(const struct layer *l, const struct layer *g, struct slice key,
                 struct slice name, uint64_t gen, uint64_t at) {
  for (; l && l->generation > gen; l = l->older)
    if (pgmap_masked(l->map, name, at))
      return true;
  for (; g && g->generation > gen; g = g->older)
    if (pgmap_masked(g->map, key, at))
      return true;
  return false;
}

enum staged_found staged_get(struct store *s, struct slice key, uint64_t gen, uint64_t at,
                             struct slice *value) {
  size_t n = rule_pgid_len(&s->rule, key);
  const struct pg *pg = pg_find(s, slice_make(key.data, n));
  return layers_get(pg ? pg->layers : NULL, s->global->layers, key,
                    slice_make(key.data + n, key.size - n), gen, at, value);
}

bool staged_masked(struct store *s, struct slice key, uint64_t gen, uint64_t at) {
  size_t n = rule_pgid_len(&s->rule, key);
  const struct pg *pg = pg_find(s, slice_make(key.data, n));
  return layers_mask(pg ? pg->layers : NULL, s->global->layers, key,
                     slice_make(key.data + n, key.size - n), gen, at);
}
