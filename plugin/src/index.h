/* SPDX-License-Identifier: Apache-2.0
 *
 * index.h - the leaf index: which leaf holds which keys. Two levels: the root lists table blocks, a
 * table block lists leaves. In memory both are immutable once made and reference-counted, so that a
 * view keeps the index of its time by one reference and a check point shares what it did not touch.
 *
 * Table entry: key = first key of the leaf; value =
 *     varint block, varint generation, varint entries skipped, varint entries in use, varint about the
 *     payload bytes of these,
 *     varint last key bytes shared with the first key, varint other last key bytes, those bytes,
 *     varint overflow references, for each: varint block, varint blocks
 * Root entry: key = first key of the table block's first leaf; value =
 *     varint block, varint generation, varint entries (leaves)
 *
 * Thread rules: an index may be read by any number of threads; references are counted atomically.
 */
#ifndef PGLOG_INDEX_H
#define PGLOG_INDEX_H

#include <stdatomic.h>

#include "arena.h"
#include "leaf.h"

struct leafref {
  struct slice first, last; /* store keys; in the node's memory */
  uint64_t generation;
  uint32_t block;
  uint32_t skip, entries; /* in use: `entries` behind the block's first `skip` ones */
  uint32_t stored;        /* payload bytes that they take, about: how full it is */
  uint32_t overflows;
  struct {
    uint32_t block, blocks;
  } overflow[LEAF_OVERFLOWS_MAX];
};

/* One table block. */
struct node {
  atomic_uint refs;
  uint32_t block;
  uint64_t generation;
  uint32_t n;
  struct leafref *leaf; /* n, ascending */
  uint64_t entries;     /* of all its leaves */
  uint64_t overflow_blocks;
  struct slice first;   /* first key, also known when damaged */
  bool damaged;         /* could not be read: `why` says it; n is 0 */
  char why[200];
  uint8_t *mem;
};

struct index {
  atomic_uint refs;
  uint64_t generation; /* of the check point that published it; 0: empty and never published */
  uint32_t root_block, root_blocks;
  uint64_t root_generation; /* of the check point that wrote the root blocks */
  size_t n;            /* nodes */
  struct node **node;
  uint64_t leaves, entries, overflow_blocks;
  size_t damaged;      /* nodes that could not be read */
};

/* A leaf's place: node i, leaf j. */
struct leafpos {
  size_t i;
  uint32_t j;
};

/* An empty index, one reference. NULL when out of memory. */
struct index *index_new(void);
struct index *index_ref(struct index *ix);
void index_unref(struct index *ix); /* NULL is fine */

/* Add a node's counts to the index's. */
void index_count(struct index *ix, const struct node *nd);

struct node *node_ref(struct node *nd);
void node_unref(struct node *nd); /* NULL is fine */

/* Make a node of n leafrefs; their keys are copied. NULL when out of memory. */
struct node *node_new(const struct leafref *leaf, size_t n);

/* Load the index that `s` refers to and mark its blocks in the arena's allocator. A table block that cannot be
 * believed becomes a damaged node; a root block that cannot be is PGLOG_ECORRUPT. */
int index_load(struct arena *a, const struct super *s, struct leaf_codec *codec,
               struct index **out, struct pglog_error *err);

/* The last leaf whose first key is <= key: the one that holds `key` if any does. False if the key is
 * before all leaves. With damaged nodes, pos->j may be 0 in a node with n == 0. */
bool index_find(const struct index *ix, struct slice key, struct leafpos *pos);

/* Step to the next or previous leaf (damaged nodes count as one place); false at the end. */
bool index_next(const struct index *ix, struct leafpos *pos);
bool index_prev(const struct index *ix, struct leafpos *pos);
bool index_first(const struct index *ix, struct leafpos *pos);
bool index_last(const struct index *ix, struct leafpos *pos);

static inline const struct leafref *index_leaf(const struct index *ix, struct leafpos pos) {
  return &ix->node[pos.i]->leaf[pos.j];
}

/* Encoded forms. table_encode appends to `out` (its size is reset first). */
int table_encode(struct buf *out, const struct leafref *r);
int table_decode(struct leafref *r, struct slice key, struct slice value, struct buf *last,
                 struct pglog_error *err);
int root_encode(struct buf *out, uint32_t block, uint64_t generation, uint32_t entries);

#endif
