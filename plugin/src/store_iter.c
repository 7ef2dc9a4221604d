/* SPDX-License-Identifier: Apache-2.0
 *
 * store_iter.c - iterator over a view: merges the staged layers of each PG with the leaves below.
 *
 * Two sources stand on their next key in the direction of travel: `staged` walks the PG directory and
 * merges the layers of one PG, `below` walks leaves. The nearer key is the candidate; on equal keys
 * the staged one counts. Staged memory and leaf blocks stay in place as long as the view is open, so
 * the mutex is held for single steps only, and never while a leaf is read.
 */
#include "store_internal.h"

enum direction { FORWARD, BACKWARD };

struct store_iter {
  struct store *s;
  struct store_view *v;
  struct buf lower, upper;
  bool has_lower, has_upper;
  struct pglog_error status; /* code 0: none */
  enum direction dir;
  bool valid;
  struct buf key;      /* of the present entry */
  struct slice value;
  uint8_t *overflow;   /* value of the present entry, when it came from overflow blocks */

  /* staged */
  struct pg *pg;       /* NULL: at the end */
  struct pgmap_cursor *cur; /* one per visible layer, newest first */
  size_t n_cur, cap_cur;
  struct buf staged_key;
  struct slice staged_value;
  bool staged_deleted;

  /* below */
  bool at_leaf;        /* stands on entry `slot` of `leaf` */
  struct leafpos pos;
  struct leaf leaf;
  uint32_t slot;
  struct leaf_codec *codec;

  bool took_staged, took_leaf; /* sources of the present entry */
};

static void iter_fail(struct store_iter *it, int rc, struct pglog_error *e) {
  it->status = *e;
  it->status.code = rc;
  it->valid = false;
}

static int set_key(struct buf *b, struct slice x, struct slice y) {
  b->size = 0;
  if (buf_append(b, x.data, x.size) != 0 || buf_append(b, y.data, y.size) != 0)
    return PGLOG_ENOMEM;
  return PGLOG_OK;
}

static struct slice buf_slice(const struct buf *b) { return slice_make(b->data, b->size); }

/* ---------------------------------------------------------------------------------------------- */
/* Staged source; mutex held                                                                      */

/* Stand before the layers of `pg` that the view sees. */
static int staged_enter(struct store_iter *it, struct pg *pg) {
  it->pg = pg;
  it->n_cur = 0;
  for (struct layer *l = pg->layers; l && l->generation > it->v->index->generation; l = l->older) {
    if (array_room(&it->cur, it->n_cur, &it->cap_cur, sizeof *it->cur, 4) != 0)
      return PGLOG_ENOMEM;
    pgmap_cursor_init(&it->cur[it->n_cur++], l->map, it->v->ord);
  }
  return PGLOG_OK;
}

/* Choose the nearest entry of the layers. 1: found, 0: there is none, < 0: error. */
static int staged_pick(struct store_iter *it) {
  const struct pgmap_cursor *best = NULL;
  for (size_t i = 0; i < it->n_cur; i++) {
    const struct pgmap_cursor *c = &it->cur[i];
    if (!c->valid)
      continue;
    int cmp = best ? slice_cmp(c->key, best->key) : -1;
    if (!best || (it->dir == FORWARD ? cmp < 0 : cmp > 0))
      best = c;
  }
  if (!best)
    return 0;
  if (set_key(&it->staged_key, slice_make(it->pg->id, it->pg->id_len), best->key) != PGLOG_OK)
    return PGLOG_ENOMEM;
  it->staged_value = best->value;
  it->staged_deleted = best->deleted;
  /* With several layers a newer range delete may hide an older layer's entry: ask for the verdict. */
  if (it->n_cur > 1 || it->s->global->layers) {
    enum staged_found f = staged_get(it->s, buf_slice(&it->staged_key), it->v->index->generation,
                                     it->v->ord, &it->staged_value);
    it->staged_deleted = f != STAGED_VALUE;
  }
  return 1;
}

/* From directory place `d` on, find the first PG with a staged entry. */
static int staged_scan(struct store_iter *it, struct pgmap_cursor *d) {
  for (; d->valid; it->dir == FORWARD ? pgmap_cursor_next(d) : pgmap_cursor_prev(d)) {
    int rc = staged_enter(it, (struct pg *)(uintptr_t)d->value.data);
    if (rc != PGLOG_OK)
      return rc;
    for (size_t i = 0; i < it->n_cur; i++)
      if (it->dir == FORWARD)
        pgmap_cursor_first(&it->cur[i]);
      else
        pgmap_cursor_last(&it->cur[i]);
    rc = staged_pick(it);
    if (rc != 0)
      return rc < 0 ? rc : PGLOG_OK;
  }
  it->pg = NULL;
  return PGLOG_OK;
}

static int staged_next_pg(struct store_iter *it) {
  struct pgmap_cursor d;
  struct slice id = slice_make(it->pg->id, it->pg->id_len);
  pgmap_cursor_init(&d, it->s->dir, UINT64_MAX);
  if (it->dir == FORWARD) {
    pgmap_cursor_seek(&d, id);
    if (d.valid && slice_eq(d.key, id))
      pgmap_cursor_next(&d);
  } else {
    pgmap_cursor_seek_for_prev(&d, id);
    if (d.valid && slice_eq(d.key, id))
      pgmap_cursor_prev(&d);
  }
  return staged_scan(it, &d);
}

/* The nearest entry of this PG, or else the first of the next PG that has one. */
static int staged_pick_on(struct store_iter *it) {
  int rc = staged_pick(it);
  if (rc == 0)
    return staged_next_pg(it);
  return rc < 0 ? rc : PGLOG_OK;
}

static int staged_advance(struct store_iter *it) {
  struct slice name = slice_make(it->staged_key.data + it->pg->id_len,
                                 it->staged_key.size - it->pg->id_len);
  for (size_t i = 0; i < it->n_cur; i++) {
    struct pgmap_cursor *c = &it->cur[i];
    if (!c->valid || !slice_eq(c->key, name))
      continue;
    if (it->dir == FORWARD)
      pgmap_cursor_next(c);
    else
      pgmap_cursor_prev(c);
  }
  return staged_pick_on(it);
}

/* First staged entry >= key, or last one <= key. key.data NULL: from the very end in that direction. */
static int staged_seek(struct store_iter *it, struct slice key) {
  struct pgmap_cursor d;
  pgmap_cursor_init(&d, it->s->dir, UINT64_MAX);
  if (!key.data) {
    if (it->dir == FORWARD)
      pgmap_cursor_first(&d);
    else
      pgmap_cursor_last(&d);
    return staged_scan(it, &d);
  }
  size_t n = rule_pgid_len(&it->s->rule, key);
  struct slice id = slice_make(key.data, n), name = slice_make(key.data + n, key.size - n);
  if (it->dir == FORWARD)
    pgmap_cursor_seek(&d, id);
  else
    pgmap_cursor_seek_for_prev(&d, id);
  if (!d.valid || !slice_eq(d.key, id))
    return staged_scan(it, &d);
  int rc = staged_enter(it, (struct pg *)(uintptr_t)d.value.data);
  if (rc != PGLOG_OK)
    return rc;
  for (size_t i = 0; i < it->n_cur; i++)
    if (it->dir == FORWARD)
      pgmap_cursor_seek(&it->cur[i], name);
    else
      pgmap_cursor_seek_for_prev(&it->cur[i], name);
  return staged_pick_on(it);
}

/* ---------------------------------------------------------------------------------------------- */
/* Source below; no lock                                                                          */

static int below_load(struct store_iter *it, struct pglog_error *err) {
  const struct index *ix = it->v->index;
  const struct node *nd = ix->node[it->pos.i];
  leaf_free(&it->leaf);
  it->leaf = (struct leaf){0};
  if (nd->damaged) {
    error_set(err, PGLOG_ECORRUPT, "%s", nd->why);
    error_add_pg(it->s, nd->first, nd->first, err);
    return PGLOG_ECORRUPT;
  }
  return leaf_read(it->s, it->codec, index_leaf(ix, it->pos), &it->leaf, err);
}

static int below_advance(struct store_iter *it, struct pglog_error *err) {
  if (it->dir == FORWARD ? it->slot + 1 < it->leaf.n : it->slot > 0) {
    it->slot += it->dir == FORWARD ? 1 : -1;
    return PGLOG_OK;
  }
  it->at_leaf = it->dir == FORWARD ? index_next(it->v->index, &it->pos)
                                   : index_prev(it->v->index, &it->pos);
  if (!it->at_leaf)
    return PGLOG_OK;
  int rc = below_load(it, err);
  it->slot = it->dir == FORWARD || rc != PGLOG_OK ? 0 : it->leaf.n - 1;
  return rc;
}

/* A leaf is left without reading it when the place sought lies behind its last key. */
static int below_seek(struct store_iter *it, struct slice key, struct pglog_error *err) {
  const struct index *ix = it->v->index;
  it->at_leaf = key.data ? index_find(ix, key, &it->pos) : false;
  if (!it->at_leaf && (!key.data || it->dir == FORWARD))
    it->at_leaf = it->dir == FORWARD ? index_first(ix, &it->pos) : index_last(ix, &it->pos);
  if (!it->at_leaf)
    return PGLOG_OK;
  const struct node *nd = ix->node[it->pos.i];
  if (key.data && it->dir == FORWARD && !nd->damaged &&
      slice_cmp(index_leaf(ix, it->pos)->last, key) < 0 && !index_next(ix, &it->pos)) {
    it->at_leaf = false;
    return PGLOG_OK;
  }
  int rc = below_load(it, err);
  if (rc != PGLOG_OK)
    return rc;
  if (!key.data) {
    it->slot = it->dir == FORWARD ? 0 : it->leaf.n - 1;
    return PGLOG_OK;
  }
  it->slot = leaf_lower_bound(&it->leaf, key);
  if (it->dir == FORWARD)
    return PGLOG_OK; /* the leaf's last key is >= key, or the leaf begins behind it */
  if (it->slot == it->leaf.n || !slice_eq(it->leaf.e[it->slot].key, key))
    it->slot--; /* its first key is <= key */
  return PGLOG_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Merge                                                                                          */

static int advance_sources(struct store_iter *it, struct pglog_error *err) {
  int rc = PGLOG_OK;
  if (it->took_staged) {
    pthread_mutex_lock(&it->s->mutex);
    rc = staged_advance(it);
    pthread_mutex_unlock(&it->s->mutex);
    if (rc != PGLOG_OK)
      return error_set(err, rc, "out of memory in an iterator");
  }
  return it->took_leaf ? below_advance(it, err) : rc;
}

/* Decide on the candidate: which sources it takes. Returns whether it is an entry to show. */
static bool choose(struct store_iter *it) {
  struct slice staged = buf_slice(&it->staged_key);
  int cmp; /* < 0: the staged key comes first */
  if (!it->pg)
    cmp = 1;
  else if (!it->at_leaf)
    cmp = -1;
  else
    cmp = slice_cmp(staged, it->leaf.e[it->slot].key) * (it->dir == FORWARD ? 1 : -1);
  it->took_staged = cmp <= 0;
  it->took_leaf = cmp >= 0;
  if (it->took_staged)
    return !it->staged_deleted;
  struct slice key = it->leaf.e[it->slot].key;
  pthread_mutex_lock(&it->s->mutex);
  bool masked = staged_masked(it->s, key, it->v->index->generation, it->v->ord);
  pthread_mutex_unlock(&it->s->mutex);
  return !masked;
}

static bool outside(const struct store_iter *it, struct slice key) {
  if (it->dir == FORWARD)
    return it->has_upper && slice_cmp(key, buf_slice(&it->upper)) >= 0;
  return it->has_lower && slice_cmp(key, buf_slice(&it->lower)) < 0;
}

static int show(struct store_iter *it, struct pglog_error *err) {
  const struct leaf_entry *e = it->took_staged ? NULL : &it->leaf.e[it->slot];
  struct slice key = e ? e->key : buf_slice(&it->staged_key);
  if (set_key(&it->key, key, slice_make(NULL, 0)) != 0)
    return error_set(err, PGLOG_ENOMEM, "out of memory in an iterator");
  it->value = e ? e->value : it->staged_value;
  it->valid = true;
  if (!e || !e->is_overflow)
    return PGLOG_OK;
  int rc = overflow_read(it->s, it->codec, index_leaf(it->v->index, it->pos), &e->overflow,
                         &it->overflow, err);
  it->value = slice_make(it->overflow, e->overflow.size);
  return rc;
}

/* Go on from the sources' places to the next entry that is to be shown. */
static void settle(struct store_iter *it) {
  struct pglog_error err;
  int rc = PGLOG_OK;
  it->valid = false;
  free(it->overflow);
  it->overflow = NULL;
  while (rc == PGLOG_OK && (it->pg || it->at_leaf)) {
    bool visible = choose(it);
    struct slice key =
        it->took_staged ? buf_slice(&it->staged_key) : it->leaf.e[it->slot].key;
    if (outside(it, key))
      return;
    if (visible) {
      rc = show(it, &err);
      break;
    }
    rc = advance_sources(it, &err);
  }
  if (rc != PGLOG_OK)
    iter_fail(it, rc, &err);
}

static void iter_position(struct store_iter *it, enum direction dir, struct slice key) {
  struct pglog_error err;
  it->dir = dir;
  it->status.code = PGLOG_OK;
  pthread_mutex_lock(&it->s->mutex);
  int rc = staged_seek(it, key);
  pthread_mutex_unlock(&it->s->mutex);
  if (rc != PGLOG_OK)
    error_set(&err, rc, "out of memory in an iterator");
  else
    rc = below_seek(it, key, &err);
  if (rc != PGLOG_OK)
    iter_fail(it, rc, &err);
  else
    settle(it);
}

/* ---------------------------------------------------------------------------------------------- */
/* Interface                                                                                      */

int store_iter_open(struct store_view *v, struct slice lower, struct slice upper,
                    struct store_iter **out, struct pglog_error *err) {
  struct store_iter *it = calloc(1, sizeof *it);
  if (!it)
    return error_set(err, PGLOG_ENOMEM, "out of memory for an iterator");
  it->s = v->s;
  it->v = v;
  it->has_lower = lower.data != NULL;
  it->has_upper = upper.data != NULL;
  it->codec = codec_get(v->s);
  if (!it->codec || buf_append(&it->lower, lower.data, lower.size) != 0 ||
      buf_append(&it->upper, upper.data, upper.size) != 0) {
    store_iter_close(it);
    return error_set(err, PGLOG_ENOMEM, "out of memory for an iterator");
  }
  *out = it;
  return PGLOG_OK;
}

void store_iter_close(struct store_iter *it) {
  if (!it)
    return;
  codec_put(it->s, it->codec);
  leaf_free(&it->leaf);
  buf_free(&it->lower);
  buf_free(&it->upper);
  buf_free(&it->key);
  buf_free(&it->staged_key);
  free(it->overflow);
  free(it->cur);
  free(it);
}

bool store_iter_valid(const struct store_iter *it) { return it->valid; }

void store_iter_seek_first(struct store_iter *it) {
  iter_position(it, FORWARD, it->has_lower ? buf_slice(&it->lower) : slice_make(NULL, 0));
}

void store_iter_seek_last(struct store_iter *it) {
  if (!it->has_upper) {
    iter_position(it, BACKWARD, slice_make(NULL, 0));
    return;
  }
  store_iter_seek_for_prev(it, buf_slice(&it->upper));
}

void store_iter_seek(struct store_iter *it, struct slice key) {
  struct slice lower = buf_slice(&it->lower);
  if (!key.data)
    key = slice_make("", 0);
  if (it->has_lower && slice_cmp(key, lower) < 0)
    key = lower;
  iter_position(it, FORWARD, key.data ? key : slice_make("", 0));
}

void store_iter_seek_for_prev(struct store_iter *it, struct slice key) {
  struct slice upper = buf_slice(&it->upper);
  bool at_upper = it->has_upper && slice_cmp(key, upper) >= 0;
  if (at_upper)
    key = upper;
  iter_position(it, BACKWARD, key.data ? key : slice_make("", 0));
  /* The upper bound itself is outside. */
  if (at_upper && it->valid && slice_eq(buf_slice(&it->key), upper))
    store_iter_prev(it);
}

/* Turn round: stand on the present key in the other direction, then leave it. */
static void turn(struct store_iter *it, enum direction dir) {
  struct buf here = it->key;
  it->key = (struct buf){0};
  iter_position(it, dir, here.data ? buf_slice(&here) : slice_make("", 0));
  bool same = it->valid && slice_eq(buf_slice(&it->key), buf_slice(&here));
  buf_free(&here);
  if (same && dir == FORWARD)
    store_iter_next(it);
  else if (same)
    store_iter_prev(it);
}

static void step(struct store_iter *it, enum direction dir) {
  struct pglog_error err;
  if (!it->valid)
    return;
  if (it->dir != dir) {
    turn(it, dir);
    return;
  }
  int rc = advance_sources(it, &err);
  if (rc != PGLOG_OK)
    iter_fail(it, rc, &err);
  else
    settle(it);
}

void store_iter_next(struct store_iter *it) { step(it, FORWARD); }
void store_iter_prev(struct store_iter *it) { step(it, BACKWARD); }

struct slice store_iter_key(const struct store_iter *it) { return buf_slice(&it->key); }
struct slice store_iter_value(const struct store_iter *it) { return it->value; }

int store_iter_status(const struct store_iter *it, struct pglog_error *err) {
  if (it->status.code != PGLOG_OK && err)
    *err = it->status;
  return it->status.code;
}
