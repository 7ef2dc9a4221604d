/* SPDX-License-Identifier: Apache-2.0
 *
 * ckpt_build.c - builds a check point's new leaves, table blocks and root from frozen layers and
 * the old index. Writes blocks only; publishing them is checkpoint.c's business.
 *
 * The key space is cut into zones: zone z is leaf z's first key up to the next leaf's first key
 * (zone 0 begins before all keys). First pass: find the zones that changes touch, and how, with one
 * look at the changes for each. Second pass: go through the touched zones in order; each is read
 * (if marked so), merged with its changes and fed to the packer; what lies between is kept as it
 * is, by whole table blocks where possible. A row of touched zones that ends in an under-filled
 * leaf takes its neighbour in.
 *
 * Where only the first entries of a leaf go, as trimming does, or its last ones change, the others
 * stay where they are: the table says which entries of a block are in use.
 * When the arena is nearly full, leaves are filled up instead.
 */
#include <stdio.h>

#include "ckpt_changes.h"

#define WRITE_BLOCKS 64 /* blocks per write batch */
#define READ_AHEAD 32   /* leaves per read batch */
#define TABLE_MIN 48    /* leaves: a table block with fewer takes its neighbour in */
#define PEND_FLUSH 4096 /* leaf references collected before tables are packed */
/* A leaf that is less full than FILL_MIN takes in what follows it; one that entries are appended to
 * is left alone from FILL_LOW on. Lower bounds leave more blocks half empty, higher ones write
 * entries again that have not changed. The end of a PG that has other leaves is not put with the
 * next PG's begin from FILL_TAIL on. With less than 1/TIGHT_PART of the arena free, leaves are
 * filled up instead. */
#define FILL_MIN (LEAF_PAYLOAD / 4)
#define FILL_LOW (LEAF_PAYLOAD / 2)
#define FILL_TAIL (LEAF_PAYLOAD / 8)
#define TIGHT_PART 4u

enum touch {
  TOUCH_APPEND = 1, /* keys behind the leaf's last one are put */
  TOUCH_READ = 2,   /* keys within it change */
  TOUCH_DROP = 4,   /* a range delete covers all of it */
};

struct zone {
  uint64_t leaf; /* number of the leaf in the old index */
  struct leafpos pos;
  uint8_t touch;
};

struct work {
  struct build *b;
  struct store *s;
  struct changes ch;
  uint64_t *base; /* number of each node's first leaf; base[n]: leaves in all */
  struct zone *zone;
  size_t n_zones, cap_zones;
  struct leaf_packer *packer;
  bool any_masks;
  bool tight; /* little of the arena is free: blocks count for more than writing entries again */
  struct buf last_pg; /* PG id of the last entry packed */
  bool have_pg;

  /* write batch */
  uint8_t *wbytes;
  struct arena_io wio[WRITE_BLOCKS];
  size_t n_w;

  /* read ahead */
  uint8_t *rbytes;
  struct arena_io rio[READ_AHEAD];
  size_t r_zone[READ_AHEAD]; /* zone number in `zone` of each block read */
  size_t n_r;

  /* output */
  struct node **out;
  size_t n_out, cap_out;
  struct leafref *pend; /* leaves not in a node yet; new keys live in `keys` */
  size_t n_pend, cap_pend;
  struct key_mem {
    struct key_mem *next;
    size_t used;
    uint8_t data[65536];
  } * keys;
  uint8_t *reused;          /* per old node: is part of the new index */
  struct leafref *table_in; /* leaves of the table packer's run */
  size_t table_at;
  uint8_t *root_bytes; /* root blocks, collected */
  size_t n_root, cap_root;
};

int extents_add(struct extents *x, uint32_t block, uint32_t n) {
  if (array_room(&x->v, x->n, &x->cap, sizeof *x->v, 256) != 0)
    return PGLOG_ENOMEM;
  x->v[x->n++] = (struct extent){block, n};
  return PGLOG_OK;
}

static int nomem(struct pglog_error *err) {
  return error_set(err, PGLOG_ENOMEM, "out of memory in a check point");
}

/* ---------------------------------------------------------------------------------------------- */
/* First pass: which zones are touched                                                            */

static uint64_t leaf_number(const struct work *w, struct leafpos pos) {
  return w->base[pos.i] + pos.j;
}

static int zone_touch(struct work *w, struct leafpos pos, uint8_t touch) {
  uint64_t leaf = leaf_number(w, pos);
  if (w->n_zones && w->zone[w->n_zones - 1].leaf == leaf) {
    w->zone[w->n_zones - 1].touch |= touch;
    return PGLOG_OK;
  }
  if (array_room(&w->zone, w->n_zones, &w->cap_zones, sizeof *w->zone, 1024) != 0)
    return PGLOG_ENOMEM;
  w->zone[w->n_zones++] = (struct zone){leaf, pos, touch};
  return PGLOG_OK;
}

/* Zone of `key`, starting from the one before (keys come in ascending order). */
static void zone_find(const struct work *w, struct slice key, struct leafpos *pos) {
  const struct index *ix = w->b->old;
  struct leafpos next = *pos;
  if (slice_cmp(key, index_leaf(ix, *pos)->first) >= 0 &&
      (!index_next(ix, &next) || slice_cmp(key, index_leaf(ix, next)->first) < 0))
    return;
  if (!index_find(ix, key, pos))
    *pos = (struct leafpos){0, 0};
}

/* One look for each zone: what comes after it does not matter once the kind of touch is known. */
static int touch_by_keys(struct work *w, struct pglog_error *err) {
  struct leafpos pos = {0, 0};
  w->ch.keys_only = true;
  int rc = changes_first(&w->ch, err);
  while (rc == PGLOG_OK && changes_valid(&w->ch)) {
    struct slice key = changes_key(&w->ch);
    zone_find(w, key, &pos);
    const struct leafref *r = index_leaf(w->b->old, pos);
    bool behind = slice_cmp(key, r->last) > 0;
    if (behind && w->ch.deleted) { /* the delete of a key that is not there */
      rc = changes_next(&w->ch, err);
      continue;
    }
    /* Before the very first leaf, too: the new entries go in front of it, so it is merged with
     * them. */
    if (zone_touch(w, pos, behind ? TOUCH_APPEND : TOUCH_READ) != PGLOG_OK)
      return nomem(err);
    if (!index_next(w->b->old, &pos))
      break;
    rc = changes_seek(&w->ch, index_leaf(w->b->old, pos)->first, err);
  }
  return rc;
}

/* A range delete of one PG, or (id empty) of store keys. */
struct mask {
  struct slice id;
  struct slice begin, end; /* store keys */
  bool no_end;             /* up to the end of the PG */
};

static bool mask_before_end(const struct mask *m, struct slice key) {
  if (!m->no_end)
    return slice_cmp(key, m->end) < 0;
  struct slice head = slice_make(key.data, key.size < m->id.size ? key.size : m->id.size);
  return slice_cmp(head, m->id) <= 0;
}

static int touch_by_mask(struct work *w, const struct mask *m) {
  const struct index *ix = w->b->old;
  struct leafpos pos;
  if (!index_find(ix, m->begin, &pos))
    pos = (struct leafpos){0, 0};
  do {
    const struct leafref *r = index_leaf(ix, pos);
    if (!mask_before_end(m, r->first))
      break;
    if (slice_cmp(r->last, m->begin) < 0)
      continue;
    bool all = slice_cmp(m->begin, r->first) <= 0 && mask_before_end(m, r->last);
    if (zone_touch(w, pos, all ? TOUCH_DROP : TOUCH_READ) != PGLOG_OK)
      return PGLOG_ENOMEM;
  } while (index_next(ix, &pos));
  return PGLOG_OK;
}

/* Masks of one layer; the names are lifted to store keys by the PG's id. */
static int touch_by_layer(struct work *w, const struct layer *l, struct slice id) {
  struct mask m = {.id = id};
  struct slice begin, end;
  struct buf kb = {0}, ke = {0};
  int rc = PGLOG_OK;
  for (size_t i = 0; rc == PGLOG_OK && pgmap_mask(l->map, i, UINT64_MAX, &begin, &end, &m.no_end);
       i++) {
    w->any_masks = true;
    kb.size = ke.size = 0;
    if (buf_append(&kb, id.data, id.size) != 0 || buf_append(&kb, begin.data, begin.size) != 0 ||
        buf_append(&ke, id.data, id.size) != 0 ||
        (!m.no_end && buf_append(&ke, end.data, end.size) != 0)) {
      rc = PGLOG_ENOMEM;
      break;
    }
    m.begin = slice_make(kb.data, kb.size);
    m.end = slice_make(ke.data, ke.size);
    rc = touch_by_mask(w, &m);
  }
  buf_free(&kb);
  buf_free(&ke);
  return rc;
}

static size_t ref_fill(const struct leafref *r) {
  return leaf_fill(r->stored, r->entries);
}

static int zone_cmp(const void *a, const void *b) {
  uint64_t x = ((const struct zone *)a)->leaf, y = ((const struct zone *)b)->leaf;
  return (x > y) - (x < y);
}

static int touch_all(struct work *w, struct pglog_error *err) {
  struct build *b = w->b;
  int rc = touch_by_keys(w, err);
  for (size_t i = 0; i < b->n_pgs && rc == PGLOG_OK; i++)
    for (const struct layer *l = b->pg[i].layers;
         l && l->generation > b->old->generation && rc == PGLOG_OK; l = l->older)
      rc = touch_by_layer(w, l, b->pg[i].id);
  for (const struct layer *g = b->global; g && g->generation > b->old->generation && rc == PGLOG_OK;
       g = g->older)
    rc = touch_by_layer(w, g, slice_make("", 0));
  if (rc == PGLOG_ENOMEM)
    return nomem(err);
  if (rc != PGLOG_OK || !w->n_zones)
    return rc;
  qsort(w->zone, w->n_zones, sizeof *w->zone, zone_cmp);
  size_t n = 0;
  for (size_t i = 1; i < w->n_zones; i++)
    if (w->zone[i].leaf == w->zone[n].leaf)
      w->zone[n].touch |= w->zone[i].touch;
    else
      w->zone[++n] = w->zone[i];
  w->n_zones = n + 1;
  /* An under-filled leaf takes the entries that follow it. */
  size_t low = w->tight ? LEAF_PAYLOAD * 3 / 4 : FILL_LOW;
  for (size_t i = 0; i < w->n_zones; i++)
    if (w->zone[i].touch == TOUCH_APPEND && ref_fill(index_leaf(b->old, w->zone[i].pos)) < low)
      w->zone[i].touch |= TOUCH_READ;
  return PGLOG_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Blocks                                                                                         */

static int write_flush(struct work *w, struct pglog_error *err) {
  size_t n = w->n_w;
  w->n_w = 0;
  return n ? arena_write(w->s->arena, w->wio, n, err) : PGLOG_OK;
}

static int take_blocks(struct work *w, uint32_t n, uint32_t *block, struct pglog_error *err) {
  int rc = arena_alloc(w->s->arena, n, block, err);
  if (rc == PGLOG_OK && extents_add(&w->b->taken, *block, n) != PGLOG_OK) {
    arena_free(w->s->arena, *block, n);
    rc = nomem(err);
  }
  return rc;
}

/* Seal one block and put it into the write batch. */
static int write_block(struct work *w, uint8_t *bytes, uint32_t *block, struct pglog_error *err) {
  int rc = take_blocks(w, 1, block, err);
  if (rc == PGLOG_OK && w->n_w == WRITE_BLOCKS)
    rc = write_flush(w, err);
  if (rc != PGLOG_OK)
    return rc;
  uint8_t *to = w->wbytes + w->n_w * PGLOG_BLOCK;
  leaf_seal(bytes, *block, w->b->generation, w->s->arena_id);
  memcpy(to, bytes, PGLOG_BLOCK);
  w->wio[w->n_w++] = (struct arena_io){.block = *block, .n = 1, .bytes = to};
  return PGLOG_OK;
}

/* Memory for keys of new leaves, until they are in a node. */
static uint8_t *key_room(struct work *w, size_t n) {
  struct key_mem *m = w->keys;
  if (!m || sizeof m->data - m->used < n) {
    m = malloc(sizeof *m);
    if (!m)
      return NULL;
    m->used = 0;
    m->next = w->keys;
    w->keys = m;
  }
  uint8_t *p = m->data + m->used;
  m->used += n;
  return p;
}

static int key_keep(struct work *w, struct slice *key) {
  uint8_t *p = key_room(w, key->size);
  if (!p)
    return PGLOG_ENOMEM;
  if (key->size)
    memcpy(p, key->data, key->size);
  key->data = p;
  return PGLOG_OK;
}

static int pend_add(struct work *w, const struct leafref *r) {
  if (array_room(&w->pend, w->n_pend, &w->cap_pend, sizeof *w->pend, 1024) != 0)
    return PGLOG_ENOMEM;
  w->pend[w->n_pend++] = *r;
  return PGLOG_OK;
}

static int emit_leaf(void *arg, struct leaf_block *lb, struct pglog_error *err) {
  struct work *w = arg;
  struct leafref r = {.first = lb->first,
                      .last = lb->last,
                      .generation = w->b->generation,
                      .entries = lb->entries,
                      .stored = lb->share,
                      .overflows = lb->overflows};
  for (uint32_t i = 0; i < lb->overflows; i++) {
    r.overflow[i].block = lb->overflow[i].block;
    r.overflow[i].blocks = lb->overflow[i].blocks;
  }
  int rc = write_block(w, lb->bytes, &r.block, err);
  if (rc != PGLOG_OK)
    return rc;
  if (key_keep(w, &r.first) != 0 || key_keep(w, &r.last) != 0 || pend_add(w, &r) != 0)
    return nomem(err);
  STAT_ADD(w->s, leaves_written, 1);
  STAT_ADD(w->s, entries_written, lb->entries);
  return PGLOG_OK;
}

static int replace_overflow(struct work *w, const struct leaf_overflow *o,
                            struct pglog_error *err) {
  return extents_add(&w->b->replaced, o->block, o->blocks) ? nomem(err) : PGLOG_OK;
}

static int replace_leaf(struct work *w, const struct leafref *r, bool with_overflow,
                        struct pglog_error *err) {
  int rc = extents_add(&w->b->replaced, r->block, 1);
  for (uint32_t i = 0; i < r->overflows && with_overflow && rc == PGLOG_OK; i++)
    rc = extents_add(&w->b->replaced, r->overflow[i].block, r->overflow[i].blocks);
  STAT_ADD(w->s, leaves_freed, 1);
  return rc == PGLOG_OK ? rc : nomem(err);
}

/* ---------------------------------------------------------------------------------------------- */
/* Entries into the packer                                                                        */

static struct slice pg_of(const struct work *w, struct slice key) {
  return slice_make(key.data, rule_pgid_len(&w->s->rule, key));
}

/* Is `key` in the PG of the last entry packed? */
static bool same_pg(const struct work *w, struct slice key) {
  return w->have_pg && slice_eq(pg_of(w, key), slice_make(w->last_pg.data, w->last_pg.size));
}

/* Does a leaf before the pending entries begin in their PG? Then its end may be one of a block:
 * apart from the next PG's begin, which trims rewrite, what is appended here is written less often.
 */
static bool pg_is_apart(const struct work *w) {
  const struct leafref *r = NULL;
  if (w->n_pend)
    r = &w->pend[w->n_pend - 1];
  else if (w->n_out && w->out[w->n_out - 1]->n)
    r = &w->out[w->n_out - 1]->leaf[w->out[w->n_out - 1]->n - 1];
  return r && same_pg(w, r->first) && leaf_packer_fill(w->packer) >= FILL_TAIL;
}

static int pg_end(struct work *w, struct pglog_error *err) {
  if (w->tight)
    return PGLOG_OK;
  return pg_is_apart(w) ? leaf_packer_flush(w->packer, err) : leaf_packer_boundary(w->packer, err);
}

static int pack(struct work *w, const struct leaf_entry *e, struct pglog_error *err) {
  if (!same_pg(w, e->key)) {
    struct slice id = pg_of(w, e->key);
    int rc = w->have_pg ? pg_end(w, err) : PGLOG_OK;
    if (rc != PGLOG_OK)
      return rc;
    w->last_pg.size = 0;
    if (buf_append(&w->last_pg, id.data, id.size) != 0)
      return nomem(err);
    w->have_pg = true;
  }
  return leaf_packer_add(w->packer, e, err);
}

static int write_overflow(struct work *w, struct slice value, struct leaf_overflow *ref,
                          struct pglog_error *err) {
  uint8_t *bytes = NULL;
  int rc = leaf_overflow_encode(w->s->codec, value, &bytes, ref, err);
  if (rc == PGLOG_OK)
    rc = take_blocks(w, ref->blocks, &ref->block, err);
  if (rc == PGLOG_OK) {
    for (uint32_t i = 0; i < ref->blocks; i++)
      leaf_seal(bytes + (size_t)i * PGLOG_BLOCK, ref->block + i, w->b->generation, w->s->arena_id);
    struct arena_io io = {.block = ref->block, .n = ref->blocks, .bytes = bytes};
    rc = arena_write(w->s->arena, &io, 1, err);
    STAT_ADD(w->s, overflow_written, ref->blocks);
  }
  free(bytes);
  return rc;
}

/* The present change, if it is a put, goes to the packer; then move on. */
static int pack_change(struct work *w, struct pglog_error *err) {
  int rc = PGLOG_OK;
  if (!w->ch.deleted) {
    struct leaf_entry e = {.key = changes_key(&w->ch), .value = w->ch.value};
    if (leaf_needs_overflow(e.key.size, e.value.size)) {
      e.is_overflow = true;
      rc = write_overflow(w, e.value, &e.overflow, err);
      e.value = slice_make(NULL, 0);
    }
    if (rc == PGLOG_OK)
      rc = pack(w, &e, err);
  }
  return rc == PGLOG_OK ? changes_next(&w->ch, err) : rc;
}

/* All changes before `end` (data NULL: all). */
static int pack_changes(struct work *w, struct slice end, struct pglog_error *err) {
  int rc = PGLOG_OK;
  while (rc == PGLOG_OK && changes_valid(&w->ch) &&
         (!end.data || slice_cmp(changes_key(&w->ch), end) < 0))
    rc = pack_change(w, err);
  return rc;
}

/* Changes that touch no zone are deletes of keys that are not there. */
static int skip_changes(struct work *w, struct slice before, struct pglog_error *err) {
  int rc = PGLOG_OK;
  while (rc == PGLOG_OK && changes_valid(&w->ch) && slice_cmp(changes_key(&w->ch), before) < 0)
    rc = changes_next(&w->ch, err);
  return rc;
}

static bool masked(struct work *w, struct slice key) {
  if (!w->any_masks)
    return false;
  size_t n = rule_pgid_len(&w->s->rule, key);
  struct slice id = slice_make(key.data, n);
  const struct layer *l = NULL;
  size_t lo = 0, hi = w->b->n_pgs;
  while (lo < hi) {
    size_t mid = lo + (hi - lo) / 2;
    int c = slice_cmp(w->b->pg[mid].id, id);
    if (c == 0) {
      l = w->b->pg[mid].layers;
      break;
    }
    if (c < 0)
      lo = mid + 1;
    else
      hi = mid;
  }
  return layers_mask(l, w->b->global, key, slice_make(key.data + n, key.size - n),
                     w->b->old->generation, UINT64_MAX);
}

/* One old entry, with the changes up to and at its key. */
static int merge_entry(struct work *w, const struct leaf_entry *e, struct pglog_error *err) {
  int rc = pack_changes(w, e->key, err);
  if (rc != PGLOG_OK)
    return rc;
  bool changed = changes_valid(&w->ch) && slice_eq(changes_key(&w->ch), e->key);
  if (!changed && !masked(w, e->key))
    return pack(w, e, err);
  if (e->is_overflow)
    rc = replace_overflow(w, &e->overflow, err);
  return changed && rc == PGLOG_OK ? pack_change(w, err) : rc;
}

/* ---------------------------------------------------------------------------------------------- */
/* Reading old leaves                                                                             */

/* Read the leaves of the zones from number `at` on that need it, as one batch. */
static int read_ahead(struct work *w, size_t at, struct pglog_error *err) {
  w->n_r = 0;
  for (size_t i = at; i < w->n_zones && w->n_r < READ_AHEAD; i++) {
    if (!(w->zone[i].touch & TOUCH_READ) || (w->zone[i].touch & TOUCH_DROP))
      continue;
    w->r_zone[w->n_r] = i;
    w->rio[w->n_r] = (struct arena_io){.block = index_leaf(w->b->old, w->zone[i].pos)->block,
                                       .n = 1,
                                       .bytes = w->rbytes + w->n_r * PGLOG_BLOCK};
    w->n_r++;
  }
  return arena_read(w->s->arena, w->rio, w->n_r, err);
}

static int zone_leaf(struct work *w, size_t at, struct leaf *out, struct pglog_error *err) {
  const struct leafref *r = index_leaf(w->b->old, w->zone[at].pos);
  size_t i = 0;
  while (i < w->n_r && w->r_zone[i] != at)
    i++;
  int rc = PGLOG_OK;
  if (i == w->n_r) {
    rc = read_ahead(w, at, err);
    i = 0;
  }
  STAT_ADD(w->s, leaves_read, 1);
  if (rc == PGLOG_OK)
    return leaf_open(w->s, w->s->codec, r, w->rbytes + i * PGLOG_BLOCK, out, err);
  error_add_pg(w->s, r->first, r->last, err);
  return rc;
}

/* Bytes of entries [from, end), as a measure of their part of the payload. */
static size_t part_bytes(const struct leaf *leaf, uint32_t from, uint32_t end) {
  size_t n = 0;
  for (uint32_t i = from; i < end; i++)
    n += leaf->e[i].key.size + leaf->e[i].value.size + 1;
  return n;
}

/* About what they take of it. */
static uint32_t part_stored(const struct leafref *r, const struct leaf *leaf, uint32_t from,
                            uint32_t end) {
  size_t part = (size_t)r->stored * part_bytes(leaf, from, end) / part_bytes(leaf, 0, leaf->n);
  return part ? (uint32_t)part : 1;
}

/* May the pending entries be a leaf of their own, and the next one begin with `next`? */
static bool may_end(const struct work *w, struct slice next) {
  size_t pending = leaf_packer_fill(w->packer);
  return !pending || (!w->tight && (pending >= FILL_MIN || (!same_pg(w, next) && pg_is_apart(w))));
}

/* Pass over deletes of keys before `key`: the leaf does not have them. */
static int skip_deletes(struct work *w, struct slice key, struct pglog_error *err) {
  int rc = PGLOG_OK;
  while (rc == PGLOG_OK && changes_valid(&w->ch) && w->ch.deleted &&
         slice_cmp(changes_key(&w->ch), key) < 0)
    rc = changes_next(&w->ch, err);
  return rc;
}

/* Drop entries of the leaf, up to the first one that stays or at or before which one is put: *at.
 */
static int trim_leaf(struct work *w, const struct leaf *leaf, uint32_t *at,
                     struct pglog_error *err) {
  int rc = PGLOG_OK;
  for (*at = 0; rc == PGLOG_OK && *at < leaf->n; ++*at) {
    const struct leaf_entry *e = &leaf->e[*at];
    rc = skip_deletes(w, e->key, err);
    int c = changes_valid(&w->ch) ? slice_cmp(changes_key(&w->ch), e->key) : 1;
    bool put = c <= 0 && !w->ch.deleted, deleted = c == 0 && w->ch.deleted;
    if (rc != PGLOG_OK || put || (!deleted && !masked(w, e->key)))
      break;
    if (e->is_overflow)
      rc = replace_overflow(w, &e->overflow, err);
    if (deleted && rc == PGLOG_OK)
      rc = changes_next(&w->ch, err);
  }
  return rc;
}

/* The end of the entries from `from` on in which nothing changes. */
static int same_until(struct work *w, const struct leaf *leaf, uint32_t from, uint32_t *end,
                      struct pglog_error *err) {
  int rc = PGLOG_OK;
  for (*end = leaf->n; rc == PGLOG_OK && changes_valid(&w->ch);) {
    *end = leaf_lower_bound(leaf, changes_key(&w->ch));
    if (*end == leaf->n || !w->ch.deleted || slice_eq(leaf->e[*end].key, changes_key(&w->ch)))
      break;
    rc = skip_deletes(w, leaf->e[*end].key, err);
    *end = leaf->n;
  }
  for (uint32_t i = from; w->any_masks && i < *end; i++)
    if (masked(w, leaf->e[i].key))
      *end = i;
  return rc;
}

/* Are entries [from, end) of a leaf worth a block? More so if others follow them in the zone, which
 * ends at `next`: they would be in the same block otherwise. When blocks are rare, what only loses
 * its first entries stays, since writing the others elsewhere takes a block before it gives one
 * back. */
static bool worth_keeping(const struct work *w, const struct leafref *r, const struct leaf *leaf,
                          uint32_t from, uint32_t end, struct slice next) {
  if (end == from)
    return false;
  bool more = end < leaf->n || (changes_valid(&w->ch) && !w->ch.deleted &&
                                (!next.data || slice_cmp(changes_key(&w->ch), next) < 0));
  if (w->tight)
    return !more;
  return leaf_fill(part_stored(r, leaf, from, end), end - from) >= (more ? FILL_LOW : FILL_MIN);
}

/* Keep entries [from, end) of a leaf where they are. */
static int keep_part(struct work *w, const struct leafref *old, const struct leaf *leaf,
                     uint32_t from, uint32_t end, struct pglog_error *err) {
  struct leafref r = *old;
  r.first = leaf->e[from].key;
  r.last = leaf->e[end - 1].key;
  r.skip += from;
  r.entries = end - from;
  r.stored = part_stored(old, leaf, from, end);
  r.overflows = 0;
  for (uint32_t i = from; i < end; i++)
    if (leaf->e[i].is_overflow) {
      r.overflow[r.overflows].block = leaf->e[i].overflow.block;
      r.overflow[r.overflows++].blocks = leaf->e[i].overflow.blocks;
    }
  int rc = leaf_packer_flush(w->packer, err);
  w->have_pg = false;
  if (rc == PGLOG_OK &&
      (key_keep(w, &r.first) != 0 || key_keep(w, &r.last) != 0 || pend_add(w, &r) != 0))
    rc = nomem(err);
  return rc;
}

/* The leaf of a zone, with the changes up to its last key. `next`: where the next zone begins. */
static int merge_leaf(struct work *w, const struct leafref *r, const struct leaf *leaf,
                      struct slice next, struct pglog_error *err) {
  uint32_t i, end;
  int rc = trim_leaf(w, leaf, &i, err);
  end = i;
  if (rc == PGLOG_OK && i < leaf->n)
    rc = same_until(w, leaf, i, &end, err);
  if (rc != PGLOG_OK)
    return rc;
  bool keep = worth_keeping(w, r, leaf, i, end, next) && may_end(w, leaf->e[i].key);
  rc = keep ? keep_part(w, r, leaf, i, end, err) : replace_leaf(w, r, false, err);
  for (i = keep ? end : i; i < leaf->n && rc == PGLOG_OK; i++)
    rc = merge_entry(w, &leaf->e[i], err);
  return rc;
}

/* ---------------------------------------------------------------------------------------------- */
/* Output: nodes                                                                                  */

static int out_add(struct work *w, struct node *nd) {
  if (array_room(&w->out, w->n_out, &w->cap_out, sizeof *w->out, 256) != 0)
    return PGLOG_ENOMEM;
  w->out[w->n_out++] = nd;
  return PGLOG_OK;
}

static int emit_table(void *arg, struct leaf_block *lb, struct pglog_error *err) {
  struct work *w = arg;
  struct node *nd = node_new(w->table_in + w->table_at, lb->entries);
  if (!nd)
    return nomem(err);
  w->table_at += lb->entries;
  nd->generation = w->b->generation;
  int rc = write_block(w, lb->bytes, &nd->block, err);
  if (rc == PGLOG_OK && out_add(w, nd) != PGLOG_OK)
    rc = nomem(err);
  if (rc != PGLOG_OK)
    node_unref(nd);
  STAT_ADD(w->s, table_blocks, 1);
  return rc;
}

/* Pack the pending leaf references into table blocks. */
static int pend_flush(struct work *w, struct pglog_error *err) {
  struct leaf_packer *p = NULL;
  struct buf value = {0};
  w->table_in = w->pend;
  w->table_at = 0;
  int rc = leaf_packer_new(&p, w->s->codec, LEAF_TABLE, emit_table, w);
  for (size_t i = 0; i < w->n_pend && rc == PGLOG_OK; i++) {
    rc = table_encode(&value, &w->pend[i]);
    struct leaf_entry e = {.key = w->pend[i].first, .value = {value.data, value.size}};
    if (rc == PGLOG_OK)
      rc = leaf_packer_add(p, &e, err);
  }
  if (rc == PGLOG_OK)
    rc = leaf_packer_flush(p, err);
  leaf_packer_free(p);
  buf_free(&value);
  w->n_pend = 0;
  return rc == PGLOG_ENOMEM ? nomem(err) : rc;
}

/* Keep the old leaves [a, b): whole nodes as they are, unless pending leaves are too few for a
 * table block of their own. */
static int keep_leaves(struct work *w, uint64_t a, uint64_t b, struct pglog_error *err) {
  const struct index *ix = w->b->old;
  size_t lo = 0, hi = ix->n; /* node of leaf a: last one with base <= a */
  while (hi - lo > 1) {
    size_t mid = lo + (hi - lo) / 2;
    if (w->base[mid] <= a)
      lo = mid;
    else
      hi = mid;
  }
  for (size_t i = lo; a < b; i++) {
    uint64_t end = w->base[i + 1] < b ? w->base[i + 1] : b;
    bool whole = a == w->base[i] && end == w->base[i + 1];
    if (whole && w->n_pend >= TABLE_MIN) {
      int rc = pend_flush(w, err);
      if (rc != PGLOG_OK)
        return rc;
    }
    if (whole && w->n_pend == 0) {
      if (out_add(w, ix->node[i]) != PGLOG_OK)
        return nomem(err);
      node_ref(ix->node[i]);
      w->reused[i] = 1;
    } else {
      for (uint64_t k = a; k < end; k++)
        if (pend_add(w, &ix->node[i]->leaf[k - w->base[i]]) != PGLOG_OK)
          return nomem(err);
    }
    a = end;
  }
  return w->n_pend >= PEND_FLUSH ? pend_flush(w, err) : PGLOG_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Second pass                                                                                    */

static struct leafpos leaf_pos(const struct work *w, uint64_t leaf) {
  size_t lo = 0, hi = w->b->old->n;
  while (hi - lo > 1) {
    size_t mid = lo + (hi - lo) / 2;
    if (w->base[mid] <= leaf)
      lo = mid;
    else
      hi = mid;
  }
  return (struct leafpos){lo, (uint32_t)(leaf - w->base[lo])};
}

static uint64_t n_leaves(const struct work *w) {
  return w->base[w->b->old->n];
}

/* An untouched leaf joins the run. */
static int absorb(struct work *w, uint64_t leaf, struct pglog_error *err) {
  const struct leafref *r = index_leaf(w->b->old, leaf_pos(w, leaf));
  struct leaf l = {0};
  int rc = leaf_read(w->s, w->s->codec, r, &l, err);
  if (rc != PGLOG_OK)
    return rc;
  STAT_ADD(w->s, leaves_read, 1);
  for (uint32_t i = 0; i < l.n && rc == PGLOG_OK; i++)
    rc = pack(w, &l.e[i], err);
  leaf_free(&l);
  return rc == PGLOG_OK ? replace_leaf(w, r, false, err) : rc;
}

/* End a run before leaf *next: while what is pending is under-filled and the next leaf fits in,
 * take it in. */
static int end_run(struct work *w, uint64_t *next, uint64_t limit, struct pglog_error *err) {
  for (int i = 0; i < 4 && *next < limit; i++) {
    const struct leafref *r = index_leaf(w->b->old, leaf_pos(w, *next));
    if (may_end(w, r->first) || leaf_packer_fill(w->packer) + ref_fill(r) > LEAF_PAYLOAD * 7 / 8)
      break;
    int rc = absorb(w, (*next)++, err);
    if (rc != PGLOG_OK)
      return rc;
  }
  w->have_pg = false;
  return leaf_packer_flush(w->packer, err);
}

static struct slice zone_end(const struct work *w, const struct zone *z) {
  struct leafpos pos = z->pos;
  return index_next(w->b->old, &pos) ? index_leaf(w->b->old, pos)->first : slice_make(NULL, 0);
}

static int do_zone(struct work *w, size_t at, struct pglog_error *err) {
  const struct zone *z = &w->zone[at];
  const struct leafref *r = index_leaf(w->b->old, z->pos);
  int rc = z->leaf ? skip_changes(w, r->first, err) : PGLOG_OK;
  if (rc == PGLOG_OK && (z->touch & TOUCH_DROP)) {
    rc = replace_leaf(w, r, true, err);
  } else if (rc == PGLOG_OK && (z->touch & TOUCH_READ)) {
    struct leaf leaf = {0};
    rc = zone_leaf(w, at, &leaf, err);
    if (rc == PGLOG_OK)
      rc = merge_leaf(w, r, &leaf, zone_end(w, z), err);
    leaf_free(&leaf);
  } else if (rc == PGLOG_OK) {
    /* Append only: the leaf stays, its new entries follow it. */
    rc = pend_add(w, r) == PGLOG_OK ? PGLOG_OK : nomem(err);
  }
  return rc == PGLOG_OK ? pack_changes(w, zone_end(w, z), err) : rc;
}

static int second_pass(struct work *w, struct pglog_error *err) {
  uint64_t next = 0; /* first old leaf that is not dealt with */
  w->ch.keys_only = false;
  int rc = changes_first(&w->ch, err);
  if (rc == PGLOG_OK && !n_leaves(w))
    rc = pack_changes(w, slice_make(NULL, 0), err);
  for (size_t i = 0; i < w->n_zones && rc == PGLOG_OK; i++) {
    const struct zone *z = &w->zone[i];
    if (z->leaf < next)
      return error_set(err, PGLOG_ECORRUPT, "check point: zones are out of order");
    bool stays = z->touch == TOUCH_APPEND;
    if (next < z->leaf || stays) {
      rc = end_run(w, &next, z->leaf, err);
      if (rc == PGLOG_OK && next < z->leaf)
        rc = keep_leaves(w, next, z->leaf, err);
    }
    if (rc == PGLOG_OK)
      rc = do_zone(w, i, err);
    next = z->leaf + 1;
  }
  if (rc == PGLOG_OK)
    rc = end_run(w, &next, n_leaves(w), err);
  if (rc == PGLOG_OK && next < n_leaves(w))
    rc = keep_leaves(w, next, n_leaves(w), err);
  return rc == PGLOG_OK && w->n_pend ? pend_flush(w, err) : rc;
}

/* ---------------------------------------------------------------------------------------------- */
/* Root                                                                                           */

static int emit_root(void *arg, struct leaf_block *lb, struct pglog_error *err) {
  struct work *w = arg;
  if (w->n_root == w->cap_root) {
    size_t cap = w->cap_root ? w->cap_root * 2 : 4;
    uint8_t *v = io_alloc(cap);
    if (!v)
      return nomem(err);
    if (w->n_root)
      memcpy(v, w->root_bytes, w->n_root * PGLOG_BLOCK);
    free(w->root_bytes);
    w->root_bytes = v;
    w->cap_root = cap;
  }
  memcpy(w->root_bytes + w->n_root++ * PGLOG_BLOCK, lb->bytes, PGLOG_BLOCK);
  return PGLOG_OK;
}

static int write_root(struct work *w, struct index *ix, struct pglog_error *err) {
  struct leaf_packer *p = NULL;
  struct buf value = {0};
  int rc = leaf_packer_new(&p, w->s->codec, LEAF_ROOT, emit_root, w);
  for (size_t i = 0; i < ix->n && rc == PGLOG_OK; i++) {
    rc = root_encode(&value, ix->node[i]->block, ix->node[i]->generation, ix->node[i]->n);
    struct leaf_entry e = {.key = ix->node[i]->first, .value = {value.data, value.size}};
    if (rc == PGLOG_OK)
      rc = leaf_packer_add(p, &e, err);
  }
  if (rc == PGLOG_OK)
    rc = leaf_packer_flush(p, err);
  leaf_packer_free(p);
  buf_free(&value);
  if (rc != PGLOG_OK || !w->n_root)
    return rc == PGLOG_ENOMEM ? nomem(err) : rc;
  rc = take_blocks(w, (uint32_t)w->n_root, &ix->root_block, err);
  if (rc != PGLOG_OK)
    return rc;
  ix->root_blocks = (uint32_t)w->n_root;
  ix->root_generation = w->b->generation;
  for (size_t i = 0; i < w->n_root; i++)
    leaf_seal(w->root_bytes + i * PGLOG_BLOCK, ix->root_block + (uint32_t)i, w->b->generation,
              w->s->arena_id);
  struct arena_io io = {.block = ix->root_block, .n = ix->root_blocks, .bytes = w->root_bytes};
  STAT_ADD(w->s, root_blocks, ix->root_blocks);
  return arena_write(w->s->arena, &io, 1, err);
}

/* The new index from the output nodes; the old nodes that are not in it are replaced. */
static int finish(struct work *w, struct pglog_error *err) {
  const struct index *old = w->b->old;
  struct index *ix = index_new();
  if (!ix)
    return nomem(err);
  ix->generation = w->b->generation;
  ix->node = w->out;
  ix->n = w->n_out;
  w->out = NULL;
  w->n_out = 0;
  for (size_t i = 0; i < ix->n; i++)
    index_count(ix, ix->node[i]);
  int rc = write_root(w, ix, err);
  if (rc == PGLOG_OK)
    rc = write_flush(w, err);
  for (size_t i = 0; i < old->n && rc == PGLOG_OK; i++)
    if (!w->reused[i] && extents_add(&w->b->replaced, old->node[i]->block, 1) != PGLOG_OK)
      rc = nomem(err);
  if (rc == PGLOG_OK && old->root_blocks &&
      extents_add(&w->b->replaced, old->root_block, old->root_blocks) != PGLOG_OK)
    rc = nomem(err);
  if (rc != PGLOG_OK) {
    index_unref(ix);
    return rc;
  }
  w->b->made = ix;
  return PGLOG_OK;
}

static int work_init(struct work *w, struct build *b, struct pglog_error *err) {
  const struct index *old = b->old;
  *w = (struct work){.b = b, .s = b->s};
  w->ch.b = b;
  w->base = calloc(old->n + 1, sizeof *w->base);
  w->reused = calloc(old->n + 1, 1);
  w->wbytes = io_alloc(WRITE_BLOCKS);
  w->rbytes = io_alloc(READ_AHEAD);
  if (!w->base || !w->reused || !w->wbytes || !w->rbytes)
    return nomem(err);
  for (size_t i = 0; i < old->n; i++)
    w->base[i + 1] = w->base[i] + old->node[i]->n;
  struct arena_usage u;
  arena_usage(b->s->arena, &u);
  w->tight = u.used_blocks > u.max_blocks - u.max_blocks / TIGHT_PART;
  return leaf_packer_new(&w->packer, b->s->codec, LEAF_LEAF, emit_leaf, w);
}

static void work_free(struct work *w) {
  leaf_packer_free(w->packer);
  for (size_t i = 0; i < w->n_out; i++)
    node_unref(w->out[i]);
  free(w->out);
  free(w->pend);
  for (struct key_mem *m = w->keys, *next; m; m = next) {
    next = m->next;
    free(m);
  }
  free(w->base);
  free(w->zone);
  free(w->reused);
  free(w->wbytes);
  free(w->rbytes);
  free(w->root_bytes);
  changes_free(&w->ch);
  buf_free(&w->last_pg);
}

int build_index(struct build *b, struct pglog_error *err) {
  struct work w;
  int rc = work_init(&w, b, err);
  if (rc == PGLOG_OK && b->old->n)
    rc = touch_all(&w, err);
  if (rc == PGLOG_OK)
    rc = second_pass(&w, err);
  if (rc == PGLOG_OK)
    rc = finish(&w, err);
  work_free(&w);
  return rc;
}
