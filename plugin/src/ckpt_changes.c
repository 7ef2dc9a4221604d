/* SPDX-License-Identifier: Apache-2.0
 *
 * ckpt_changes.c - see ckpt_changes.h.
 */
#include "ckpt_changes.h"

static int nomem(struct pglog_error *err) {
  return error_set(err, PGLOG_ENOMEM, "out of memory in a check point");
}

static int changes_enter(struct changes *c) {
  const struct frozen_pg *pg = &c->b->pg[c->pg];
  c->n_cur = 0;
  c->key.size = 0;
  if (buf_append(&c->key, pg->id.data, pg->id.size) != 0)
    return PGLOG_ENOMEM;
  for (const struct layer *l = pg->layers; l && l->generation > c->b->old->generation;
       l = l->older) {
    if (array_room(&c->cur, c->n_cur, &c->cap_cur, sizeof *c->cur, 4) != 0)
      return PGLOG_ENOMEM;
    struct pgmap_cursor *cur = &c->cur[c->n_cur++];
    pgmap_cursor_init(cur, l->map, UINT64_MAX);
    cur->keys_only = c->keys_only;
    pgmap_cursor_first(cur);
  }
  return PGLOG_OK;
}

/* Choose the smallest key of the present PG's layers. 1: found, 0: none left, < 0: error. */
static int changes_pick(struct changes *c) {
  const struct pgmap_cursor *best = NULL;
  for (size_t i = 0; i < c->n_cur; i++)
    if (c->cur[i].valid && (!best || slice_cmp(c->cur[i].key, best->key) < 0))
      best = &c->cur[i];
  if (!best)
    return 0;
  const struct frozen_pg *pg = &c->b->pg[c->pg];
  c->key.size = pg->id.size;
  if (buf_append(&c->key, best->key.data, best->key.size) != 0)
    return PGLOG_ENOMEM;
  c->value = best->value;
  c->deleted = best->deleted;
  if (c->n_cur > 1 || c->b->global)
    c->deleted =
        layers_get(pg->layers, c->b->global, slice_make(c->key.data, c->key.size), best->key,
                   c->b->old->generation, UINT64_MAX, &c->value) != STAGED_VALUE;
  return 1;
}

/* From the present PG on, stand on the next change. */
static int changes_settle(struct changes *c, struct pglog_error *err) {
  for (;;) {
    int rc = changes_pick(c);
    if (rc < 0)
      return nomem(err);
    if (rc == 1 || ++c->pg >= c->b->n_pgs)
      return PGLOG_OK;
    if (changes_enter(c) != PGLOG_OK)
      return nomem(err);
  }
}

int changes_first(struct changes *c, struct pglog_error *err) {
  c->pg = 0;
  if (!c->b->n_pgs)
    return PGLOG_OK;
  if (changes_enter(c) != PGLOG_OK)
    return nomem(err);
  return changes_settle(c, err);
}

int changes_next(struct changes *c, struct pglog_error *err) {
  const struct frozen_pg *pg = &c->b->pg[c->pg];
  struct slice name = slice_make(c->key.data + pg->id.size, c->key.size - pg->id.size);
  for (size_t i = 0; i < c->n_cur; i++)
    if (c->cur[i].valid && slice_eq(c->cur[i].key, name))
      pgmap_cursor_next(&c->cur[i]);
  return changes_settle(c, err);
}

int changes_seek(struct changes *c, struct slice key, struct pglog_error *err) {
  const struct frozen_pg *pg = NULL;
  bool entered = true;
  for (; changes_valid(c); c->pg++, entered = false) {
    pg = &c->b->pg[c->pg];
    struct slice head = slice_make(key.data, key.size < pg->id.size ? key.size : pg->id.size);
    if (slice_cmp(pg->id, head) >= 0)
      break; /* no earlier PG has keys that are not before `key` */
  }
  if (!changes_valid(c))
    return PGLOG_OK;
  if (!entered && changes_enter(c) != PGLOG_OK)
    return nomem(err);
  size_t n = pg->id.size;
  if (key.size >= n && memcmp(key.data, pg->id.data, n) == 0)
    for (size_t i = 0; i < c->n_cur; i++)
      pgmap_cursor_seek(&c->cur[i], slice_make(key.data + n, key.size - n));
  return changes_settle(c, err);
}

void changes_free(struct changes *c) {
  free(c->cur);
  buf_free(&c->key);
}
