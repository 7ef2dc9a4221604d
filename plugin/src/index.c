/* SPDX-License-Identifier: Apache-2.0
 *
 * index.c - the leaf index, see index.h.
 */
#include <stdio.h>

#include "index.h"

struct index *index_new(void) {
  struct index *ix = calloc(1, sizeof *ix);
  if (ix)
    atomic_init(&ix->refs, 1);
  return ix;
}

struct index *index_ref(struct index *ix) {
  atomic_fetch_add_explicit(&ix->refs, 1, memory_order_relaxed);
  return ix;
}

void index_unref(struct index *ix) {
  /* acq_rel: every use of the index by others comes before its memory is freed. */
  if (!ix || atomic_fetch_sub_explicit(&ix->refs, 1, memory_order_acq_rel) != 1)
    return;
  for (size_t i = 0; i < ix->n; i++)
    node_unref(ix->node[i]);
  free(ix->node);
  free(ix);
}

void index_count(struct index *ix, const struct node *nd) {
  ix->leaves += nd->n;
  ix->entries += nd->entries;
  ix->overflow_blocks += nd->overflow_blocks;
}

struct node *node_ref(struct node *nd) {
  atomic_fetch_add_explicit(&nd->refs, 1, memory_order_relaxed);
  return nd;
}

void node_unref(struct node *nd) {
  if (!nd || atomic_fetch_sub_explicit(&nd->refs, 1, memory_order_acq_rel) != 1)
    return;
  free(nd->leaf);
  free(nd->mem);
  free(nd);
}

struct node *node_new(const struct leafref *leaf, size_t n) {
  size_t bytes = 0;
  for (size_t i = 0; i < n; i++)
    bytes += leaf[i].first.size + leaf[i].last.size;
  struct node *nd = calloc(1, sizeof *nd);
  if (!nd)
    return NULL;
  atomic_init(&nd->refs, 1);
  nd->leaf = malloc(n * sizeof *nd->leaf + 1);
  nd->mem = malloc(bytes + 1);
  if (!nd->leaf || !nd->mem) {
    node_unref(nd);
    return NULL;
  }
  uint8_t *at = nd->mem;
  for (size_t i = 0; i < n; i++) {
    nd->leaf[i] = leaf[i];
    nd->entries += leaf[i].entries;
    for (uint32_t k = 0; k < leaf[i].overflows; k++)
      nd->overflow_blocks += leaf[i].overflow[k].blocks;
    struct slice *key[2] = {&nd->leaf[i].first, &nd->leaf[i].last};
    for (int k = 0; k < 2; k++) {
      if (key[k]->size)
        memcpy(at, key[k]->data, key[k]->size);
      key[k]->data = at;
      at += key[k]->size;
    }
  }
  nd->n = (uint32_t)n;
  if (n)
    nd->first = nd->leaf[0].first;
  return nd;
}

/* ---------------------------------------------------------------------------------------------- */
/* Encoded forms                                                                                  */

int table_encode(struct buf *out, const struct leafref *r) {
  size_t shared = 0;
  while (shared < r->first.size && shared < r->last.size &&
         r->first.data[shared] == r->last.data[shared])
    shared++;
  size_t rest = r->last.size - shared;
  out->size = 0;
  if (buf_reserve(out, rest + (8 + 2 * LEAF_OVERFLOWS_MAX) * VARINT64_MAX) != 0)
    return PGLOG_ENOMEM;
  uint8_t *p = out->data;
  p = put_varint(p, r->block);
  p = put_varint(p, r->generation);
  p = put_varint(p, r->skip);
  p = put_varint(p, r->entries);
  p = put_varint(p, r->stored);
  p = put_varint(p, shared);
  p = put_varint(p, rest);
  if (rest)
    memcpy(p, r->last.data + shared, rest);
  p = put_varint(p + rest, r->overflows);
  for (uint32_t i = 0; i < r->overflows; i++) {
    p = put_varint(p, r->overflow[i].block);
    p = put_varint(p, r->overflow[i].blocks);
  }
  out->size = (size_t)(p - out->data);
  return PGLOG_OK;
}

static int table_bad(struct pglog_error *err) {
  return error_set(err, PGLOG_ECORRUPT, "malformed table entry");
}

int table_decode(struct leafref *r, struct slice key, struct slice value, struct buf *last,
                 struct pglog_error *err) {
  const uint8_t *p = value.data, *end = value.data + value.size;
  uint32_t shared, rest;
  *r = (struct leafref){.first = key};
  if (!(p = get_varint32(p, end, &r->block)) || !(p = get_varint64(p, end, &r->generation)) ||
      !(p = get_varint32(p, end, &r->skip)) || !(p = get_varint32(p, end, &r->entries)) ||
      !(p = get_varint32(p, end, &r->stored)) || !(p = get_varint32(p, end, &shared)) ||
      !(p = get_varint32(p, end, &rest)))
    return table_bad(err);
  if (shared > key.size || rest > (size_t)(end - p) || shared + rest > PGLOG_KEY_MAX)
    return table_bad(err);
  last->size = 0;
  if (buf_append(last, key.data, shared) != 0 || buf_append(last, p, rest) != 0)
    return error_set(err, PGLOG_ENOMEM, "out of memory");
  r->last = slice_make(last->data, last->size);
  p += rest;
  if (!(p = get_varint32(p, end, &r->overflows)) || r->overflows > LEAF_OVERFLOWS_MAX)
    return table_bad(err);
  for (uint32_t i = 0; i < r->overflows; i++)
    if (!(p = get_varint32(p, end, &r->overflow[i].block)) ||
        !(p = get_varint32(p, end, &r->overflow[i].blocks)))
      return table_bad(err);
  if (p != end || r->entries == 0 || r->skip > LEAF_ENTRIES_MAX ||
      r->entries > LEAF_ENTRIES_MAX - r->skip || r->stored > LEAF_PAYLOAD ||
      slice_cmp(r->first, r->last) > 0)
    return table_bad(err);
  return PGLOG_OK;
}

int root_encode(struct buf *out, uint32_t block, uint64_t generation, uint32_t entries) {
  out->size = 0;
  if (buf_reserve(out, 3 * VARINT64_MAX) != 0)
    return PGLOG_ENOMEM;
  uint8_t *p = put_varint(out->data, block);
  p = put_varint(p, generation);
  p = put_varint(p, entries);
  out->size = (size_t)(p - out->data);
  return PGLOG_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Load                                                                                           */

static int read_block(struct arena *a, uint32_t block, int kind, uint64_t generation,
                      uint64_t arena_id, uint8_t *bytes, struct pglog_error *err) {
  struct arena_io io = {.block = block, .n = 1, .bytes = bytes};
  int rc = arena_read(a, &io, 1, err);
  return rc != PGLOG_OK ? rc : leaf_verify(bytes, kind, block, generation, arena_id, err);
}

/* All leaves of a table block, strictly ascending. */
static int table_parse(const struct leaf *t, struct node **out, struct pglog_error *err) {
  struct leafref *r = calloc(t->n, sizeof *r);
  struct buf *last = calloc(t->n, sizeof *last);
  int rc = r && last ? PGLOG_OK : error_set(err, PGLOG_ENOMEM, "out of memory");
  for (uint32_t i = 0; i < t->n && rc == PGLOG_OK; i++) {
    rc = table_decode(&r[i], t->e[i].key, t->e[i].value, &last[i], err);
    if (rc == PGLOG_OK && i > 0 && slice_cmp(r[i - 1].last, r[i].first) >= 0)
      rc = error_set(err, PGLOG_ECORRUPT, "table entry %u overlaps the one before", i);
  }
  if (rc == PGLOG_OK && !(*out = node_new(r, t->n)))
    rc = error_set(err, PGLOG_ENOMEM, "out of memory");
  for (uint32_t i = 0; last && i < t->n; i++)
    buf_free(&last[i]);
  free(last);
  free(r);
  return rc;
}

static int table_load(struct arena *a, const struct super *s, struct leaf_codec *codec,
                      uint32_t block, uint64_t generation, uint32_t entries, uint8_t *bytes,
                      struct node **out, struct pglog_error *err) {
  struct leaf t = {0};
  int rc = read_block(a, block, LEAF_TABLE, generation, s->arena_id, bytes, err);
  if (rc == PGLOG_OK)
    rc = leaf_decode(codec, bytes, &t, err);
  if (rc == PGLOG_OK && t.n != entries)
    rc = error_set(err, PGLOG_ECORRUPT, "table block %u has %u leaves, its root entry says %u",
                   block, t.n, entries);
  if (rc == PGLOG_OK)
    rc = table_parse(&t, out, err);
  leaf_free(&t);
  return rc;
}

static struct node *damaged_node(struct slice first, const struct pglog_error *e) {
  struct leafref r = {.first = first};
  struct node *nd = node_new(&r, 1);
  if (!nd)
    return NULL;
  nd->n = 0;
  nd->damaged = true;
  snprintf(nd->why, sizeof nd->why, "%.190s", e->text);
  return nd;
}

static int mark_leaves(struct arena *a, const struct node *nd, struct pglog_error *err) {
  int rc = PGLOG_OK;
  for (uint32_t j = 0; j < nd->n && rc == PGLOG_OK; j++) {
    const struct leafref *r = &nd->leaf[j];
    rc = arena_mark(a, r->block, 1, err);
    for (uint32_t k = 0; k < r->overflows && rc == PGLOG_OK; k++)
      rc = arena_mark(a, r->overflow[k].block, r->overflow[k].blocks, err);
  }
  return rc;
}

static int load_root_entry(struct arena *a, const struct super *s, struct leaf_codec *codec,
                           const struct leaf_entry *e, uint8_t *bytes, struct index *ix,
                           struct pglog_error *err) {
  const uint8_t *p = e->value.data, *end = p + e->value.size;
  uint32_t block, entries;
  uint64_t generation;
  if (!(p = get_varint32(p, end, &block)) || !(p = get_varint64(p, end, &generation)) ||
      !(p = get_varint32(p, end, &entries)) || p != end)
    return error_set(err, PGLOG_ECORRUPT, "malformed root entry");
  if (ix->n && slice_cmp(ix->node[ix->n - 1]->first, e->key) >= 0)
    return error_set(err, PGLOG_ECORRUPT, "root entries are out of order");
  int rc = arena_mark(a, block, 1, err);
  if (rc != PGLOG_OK)
    return rc;
  struct node *nd = NULL;
  struct pglog_error why;
  rc = table_load(a, s, codec, block, generation, entries, bytes, &nd, &why);
  if (rc == PGLOG_ECORRUPT || rc == PGLOG_EIO) {
    nd = damaged_node(e->key, &why);
    ix->damaged++;
  } else if (rc != PGLOG_OK) {
    if (err)
      *err = why;
    return rc;
  }
  if (!nd)
    return error_set(err, PGLOG_ENOMEM, "out of memory");
  nd->block = block;
  nd->generation = generation;
  ix->node[ix->n++] = nd;
  index_count(ix, nd);
  return mark_leaves(a, nd, err);
}

static int load_root_block(struct arena *a, const struct super *s, struct leaf_codec *codec,
                           uint32_t block, uint8_t *bytes, struct index *ix,
                           struct pglog_error *err) {
  struct leaf root = {0};
  int rc = read_block(a, block, LEAF_ROOT, s->root_generation, s->arena_id, bytes, err);
  if (rc == PGLOG_OK)
    rc = leaf_decode(codec, bytes, &root, err);
  struct node **grown = NULL;
  if (rc == PGLOG_OK) {
    grown = realloc(ix->node, (ix->n + root.n) * sizeof *grown);
    if (grown)
      ix->node = grown;
    else
      rc = error_set(err, PGLOG_ENOMEM, "out of memory");
  }
  for (uint32_t i = 0; i < root.n && rc == PGLOG_OK; i++)
    rc = load_root_entry(a, s, codec, &root.e[i], bytes, ix, err);
  leaf_free(&root);
  return rc;
}

int index_load(struct arena *a, const struct super *s, struct leaf_codec *codec, struct index **out,
               struct pglog_error *err) {
  struct index *ix = index_new();
  uint8_t *bytes = io_alloc(1);
  int rc = ix && bytes ? PGLOG_OK : error_set(err, PGLOG_ENOMEM, "out of memory");
  if (rc == PGLOG_OK && s->root_blocks)
    rc = arena_mark(a, s->root_block, s->root_blocks, err);
  for (uint32_t i = 0; i < s->root_blocks && rc == PGLOG_OK; i++)
    rc = load_root_block(a, s, codec, s->root_block + i, bytes, ix, err);
  if (rc == PGLOG_OK && !ix->damaged &&
      (ix->n != s->tables || ix->leaves != s->leaves || ix->entries != s->entries))
    rc = error_set(err, PGLOG_ECORRUPT,
                   "the leaf table has %zu blocks, %llu leaves, %llu entries; the superblock says "
                   "%llu, %llu, %llu",
                   ix->n, (unsigned long long)ix->leaves, (unsigned long long)ix->entries,
                   (unsigned long long)s->tables, (unsigned long long)s->leaves,
                   (unsigned long long)s->entries);
  free(bytes);
  if (rc != PGLOG_OK) {
    index_unref(ix);
    return rc;
  }
  ix->generation = s->generation;
  ix->root_block = s->root_block;
  ix->root_blocks = s->root_blocks;
  ix->root_generation = s->root_generation;
  *out = ix;
  return PGLOG_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Places                                                                                         */

bool index_find(const struct index *ix, struct slice key, struct leafpos *pos) {
  size_t lo = 0,
         hi = ix->n; /* nodes before lo begin at or before key; hi and later begin after it */
  while (lo < hi) {
    size_t mid = lo + (hi - lo) / 2;
    if (slice_cmp(ix->node[mid]->first, key) <= 0)
      lo = mid + 1;
    else
      hi = mid;
  }
  if (lo == 0)
    return false;
  pos->i = lo - 1;
  const struct node *nd = ix->node[pos->i];
  uint32_t a = 0, b = nd->n;
  while (a < b) {
    uint32_t mid = a + (b - a) / 2;
    if (slice_cmp(nd->leaf[mid].first, key) <= 0)
      a = mid + 1;
    else
      b = mid;
  }
  pos->j = a ? a - 1 : 0;
  return true;
}

bool index_next(const struct index *ix, struct leafpos *pos) {
  if (pos->j + 1 < ix->node[pos->i]->n) {
    pos->j++;
    return true;
  }
  if (pos->i + 1 >= ix->n)
    return false;
  pos->i++;
  pos->j = 0;
  return true;
}

bool index_prev(const struct index *ix, struct leafpos *pos) {
  if (pos->j > 0) {
    pos->j--;
    return true;
  }
  if (pos->i == 0)
    return false;
  pos->i--;
  pos->j = ix->node[pos->i]->n ? ix->node[pos->i]->n - 1 : 0;
  return true;
}

bool index_first(const struct index *ix, struct leafpos *pos) {
  *pos = (struct leafpos){0, 0};
  return ix->n > 0;
}

bool index_last(const struct index *ix, struct leafpos *pos) {
  if (!ix->n)
    return false;
  pos->i = ix->n - 1;
  pos->j = ix->node[pos->i]->n ? ix->node[pos->i]->n - 1 : 0;
  return true;
}
