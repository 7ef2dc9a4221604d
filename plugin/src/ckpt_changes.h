/* SPDX-License-Identifier: Apache-2.0
 *
 * ckpt_changes.h - the changes of a check point: all frozen layers of all PGs merged, in order of
 * store key. For one check point and one thread; the layers must not change meanwhile.
 *
 * Functions that move return PGLOG_OK also at the end; PGLOG_ENOMEM.
 */
#ifndef PGLOG_CKPT_CHANGES_H
#define PGLOG_CKPT_CHANGES_H

#include "store_internal.h"

/* Zero-initialise and set `b`; changes_free() releases. */
struct changes {
  struct build *b;
  size_t pg;                /* present PG, b->n_pgs at the end */
  struct pgmap_cursor *cur; /* one per layer of the present PG */
  size_t n_cur, cap_cur;
  struct buf key; /* present store key: the PG's id, and the name */
  bool keys_only; /* values will not be looked at */
  struct slice value;
  bool deleted;
};

int changes_first(struct changes *c, struct pglog_error *err);
int changes_next(struct changes *c, struct pglog_error *err);
/* Move forward to the first change at or behind `key`. */
int changes_seek(struct changes *c, struct slice key, struct pglog_error *err);
void changes_free(struct changes *c);

static inline bool changes_valid(const struct changes *c) {
  return c->pg < c->b->n_pgs;
}
/* Of the present change, as its value and `deleted`; until it moves. */
static inline struct slice changes_key(const struct changes *c) {
  return slice_make(c->key.data, c->key.size);
}

#endif
