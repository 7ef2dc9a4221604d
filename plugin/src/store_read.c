/* SPDX-License-Identifier: Apache-2.0
 *
 * store_read.c - views and point reads: staged layers first, then the leaf that the index names.
 */
#include <stdio.h>

#include "store_internal.h"

struct leaf_codec *codec_get(struct store *s) {
  struct leaf_codec *c = NULL;
  pthread_mutex_lock(&s->mutex);
  if (s->n_codecs)
    c = s->codecs[--s->n_codecs];
  pthread_mutex_unlock(&s->mutex);
  if (!c && leaf_codec_new(&c) != PGLOG_OK)
    return NULL;
  return c;
}

void codec_put(struct store *s, struct leaf_codec *c) {
  if (!c)
    return;
  pthread_mutex_lock(&s->mutex);
  if (s->n_codecs < sizeof s->codecs / sizeof s->codecs[0]) {
    s->codecs[s->n_codecs++] = c;
    c = NULL;
  }
  pthread_mutex_unlock(&s->mutex);
  leaf_codec_free(c);
}

/* I7: damage is reported for the PG (or the few small PGs) whose keys the block holds. */
void error_add_pg(struct store *s, struct slice first, struct slice last, struct pglog_error *err) {
  if (!err)
    return;
  char a[140], b[140];
  struct pglog_error cause = *err;
  struct slice pa = slice_make(first.data, rule_pgid_len(&s->rule, first));
  struct slice pb = slice_make(last.data, rule_pgid_len(&s->rule, last));
  if (slice_eq(pa, pb))
    error_set(err, cause.code, "PG %s: %.500s", key_print(a, sizeof a, pa), cause.text);
  else
    error_set(err, cause.code, "PGs %s to %s: %.400s", key_print(a, sizeof a, pa),
              key_print(b, sizeof b, pb), cause.text);
}

int leaf_open(struct store *s, struct leaf_codec *c, const struct leafref *r, const uint8_t *bytes,
              struct leaf *out, struct pglog_error *err) {
  int rc = leaf_verify(bytes, LEAF_LEAF, r->block, r->generation, s->arena_id, err);
  if (rc == PGLOG_OK)
    rc = leaf_decode(c, bytes, out, err);
  bool whole = rc == PGLOG_OK && out->n >= r->skip && out->n - r->skip >= r->entries;
  if (whole) {
    out->e += r->skip; /* the others are not in use any more */
    out->n = r->entries;
  }
  if (rc == PGLOG_OK && (!whole || !slice_eq(out->e[0].key, r->first) ||
                         !slice_eq(out->e[out->n - 1].key, r->last))) {
    rc = error_set(err, PGLOG_ECORRUPT, "block %u is not the leaf that the table names", r->block);
    leaf_free(out);
  }
  if (rc != PGLOG_OK)
    error_add_pg(s, r->first, r->last, err);
  return rc;
}

int leaf_read(struct store *s, struct leaf_codec *c, const struct leafref *r, struct leaf *out,
              struct pglog_error *err) {
  uint8_t *bytes = io_alloc(1);
  if (!bytes)
    return error_set(err, PGLOG_ENOMEM, "out of memory for a block of %u bytes", PGLOG_BLOCK);
  struct arena_io io = {.block = r->block, .n = 1, .bytes = bytes};
  int rc = arena_read(s->arena, &io, 1, err);
  if (rc == PGLOG_OK)
    rc = leaf_open(s, c, r, bytes, out, err);
  else
    error_add_pg(s, r->first, r->last, err);
  free(bytes);
  return rc;
}

int overflow_read(struct store *s, struct leaf_codec *c, const struct leafref *r,
                  const struct leaf_overflow *o, uint8_t **value, struct pglog_error *err) {
  uint8_t *bytes = io_alloc(o->blocks);
  if (!bytes)
    return error_set(err, PGLOG_ENOMEM, "out of memory for a value of %u bytes", o->size);
  struct arena_io io = {.block = o->block, .n = o->blocks, .bytes = bytes};
  int rc = arena_read(s->arena, &io, 1, err);
  if (rc == PGLOG_OK)
    rc = leaf_overflow_decode(c, o, bytes, s->arena_id, value, err);
  free(bytes);
  if (rc != PGLOG_OK)
    error_add_pg(s, r->first, r->last, err);
  return rc;
}

/* ---------------------------------------------------------------------------------------------- */
/* Views                                                                                          */

static void view_link(struct store *s, struct store_view *v) {
  v->s = s;
  v->ord = s->applied_ord;
  v->index = index_ref(s->index);
  v->next = s->views.next;
  v->prev = &s->views;
  v->next->prev = v;
  s->views.next = v;
}

static void view_unlink(struct store *s, struct store_view *v) {
  v->prev->next = v->next;
  v->next->prev = v->prev;
  if (v->index->generation < s->index->generation)
    layers_reclaim(s);
  index_unref(v->index);
}

int store_view_open(struct store *s, store_pin_fn pin, void *arg, struct store_view **out,
                    struct pglog_error *err) {
  struct store_view *v = calloc(1, sizeof *v);
  if (!v)
    return error_set(err, PGLOG_ENOMEM, "out of memory for a view");
  pthread_mutex_lock(&s->mutex);
  /* What is applied is visible in RocksDB already, and nobody applies more while the mutex is held:
   * so the view and RocksDB's snapshot hold the same records. */
  uint64_t limit = pin ? pin(arg) : UINT64_MAX;
  int rc = apply_resolved(s, limit, err);
  if (rc == PGLOG_OK)
    view_link(s, v);
  pthread_mutex_unlock(&s->mutex);
  if (rc != PGLOG_OK) {
    free(v);
    return rc;
  }
  *out = v;
  return PGLOG_OK;
}

void store_view_close(struct store_view *v) {
  if (!v)
    return;
  struct store *s = v->s;
  pthread_mutex_lock(&s->mutex);
  view_unlink(s, v);
  pthread_mutex_unlock(&s->mutex);
  free(v);
}

/* ---------------------------------------------------------------------------------------------- */
/* Point reads                                                                                    */

static int copy_out(struct slice v, uint8_t **value, size_t *size, struct pglog_error *err) {
  *value = malloc(v.size ? v.size : 1);
  if (!*value)
    return error_set(err, PGLOG_ENOMEM, "out of memory for a value of %zu bytes", v.size);
  if (v.size)
    memcpy(*value, v.data, v.size);
  *size = v.size;
  return PGLOG_OK;
}

static int get_from_leaf(struct store *s, const struct index *ix, struct slice key, uint8_t **value,
                         size_t *size, struct pglog_error *err) {
  struct leafpos pos;
  if (!index_find(ix, key, &pos))
    return PGLOG_ENOTFOUND;
  const struct node *nd = ix->node[pos.i];
  if (nd->damaged) {
    error_set(err, PGLOG_ECORRUPT, "%s", nd->why);
    error_add_pg(s, key, key, err);
    return PGLOG_ECORRUPT;
  }
  const struct leafref *r = index_leaf(ix, pos);
  if (slice_cmp(key, r->last) > 0)
    return PGLOG_ENOTFOUND;
  struct leaf_codec *c = codec_get(s);
  if (!c)
    return error_set(err, PGLOG_ENOMEM, "out of memory for a codec");
  struct leaf leaf = {0};
  int rc = leaf_read(s, c, r, &leaf, err);
  if (rc == PGLOG_OK) {
    uint32_t i = leaf_lower_bound(&leaf, key);
    if (i == leaf.n || !slice_eq(leaf.e[i].key, key)) {
      rc = PGLOG_ENOTFOUND;
    } else if (leaf.e[i].is_overflow) {
      rc = overflow_read(s, c, r, &leaf.e[i].overflow, value, err);
      *size = leaf.e[i].overflow.size;
    } else {
      rc = copy_out(leaf.e[i].value, value, size, err);
    }
  }
  leaf_free(&leaf);
  codec_put(s, c);
  return rc;
}

int store_get(struct store *s, struct store_view *v, struct slice key, uint8_t **value,
              size_t *size, struct pglog_error *err) {
  struct store_view now;
  struct slice found;
  int rc = PGLOG_OK;
  pthread_mutex_lock(&s->mutex);
  if (!v)
    rc = apply_resolved(s, UINT64_MAX, err);
  uint64_t gen = v ? v->index->generation : s->index->generation;
  enum staged_found f = STAGED_NONE;
  if (rc == PGLOG_OK)
    f = staged_get(s, key, gen, v ? v->ord : UINT64_MAX, &found);
  if (f == STAGED_VALUE)
    rc = copy_out(found, value, size, err);
  bool below = rc == PGLOG_OK && f == STAGED_NONE;
  if (below && !v)
    view_link(s, &now);
  pthread_mutex_unlock(&s->mutex);
  if (f == STAGED_DELETED)
    return PGLOG_ENOTFOUND;
  if (!below)
    return rc;
  rc = get_from_leaf(s, v ? v->index : now.index, key, value, size, err);
  if (!v) {
    pthread_mutex_lock(&s->mutex);
    view_unlink(s, &now);
    pthread_mutex_unlock(&s->mutex);
  }
  return rc;
}
