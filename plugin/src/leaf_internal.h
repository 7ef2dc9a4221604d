/* SPDX-License-Identifier: Apache-2.0
 *
 * leaf_internal.h - what the files of the leaf part share: the header's fields, the codec's insides
 * and the forms of an entry (see leaf.h). Not for other parts.
 */
#ifndef PGLOG_LEAF_INTERNAL_H
#define PGLOG_LEAF_INTERNAL_H

#include <zstd.h>

#include "leaf.h"

enum { LEAF_FLAG_ZSTD = 1, LEAF_FLAG_OVERFLOWS = 2 };

enum leaf_form { LEAF_PLAIN = 0, LEAF_REF = 1, LEAF_NEW_SHAPE = 2, LEAF_SHAPE = 3 };

/* Bytes [at, at + len) of a value. */
struct leaf_run {
  uint16_t at, len;
};

struct leaf_codec {
  ZSTD_CCtx *cctx;
  ZSTD_DCtx *dctx;
  uint8_t *raw;    /* LEAF_RAW_MAX bytes: a payload decompressed */
  uint8_t *packed; /* packed_cap bytes: a payload compressed, whether it fits a block or not */
  size_t packed_cap;
};

/* The header's fields that the packer fills in; leaf_seal() adds the others. */
struct leaf_head {
  uint32_t kind, flags, entries;
  uint32_t stored, raw;
  uint32_t expanded; /* overflow block: index in its chain */
};

/* Write header and payload into a block; the rest is zeroed. */
void leaf_head_write(uint8_t *block, const struct leaf_head *h, const uint8_t *payload);
/* Read the fields and check magic, kind, flags and counts against their limits. PGLOG_ECORRUPT. */
int leaf_head_read(struct leaf_head *h, const uint8_t *block, struct pglog_error *err);
/* Block number in the header, for messages. */
uint32_t leaf_block_number(const uint8_t *block);

/* Are size, stored and blocks of a reference consistent, and its blocks within 32 bits? */
bool leaf_overflow_ok(const struct leaf_overflow *o);

#define LEAF_REF_MAX (4 * VARINT32_MAX + 4) /* bytes of an encoded reference */
uint8_t *leaf_ref_put(uint8_t *p, const struct leaf_overflow *o);
/* Returns the byte after it, or NULL if it is cut or inconsistent. */
const uint8_t *leaf_ref_get(const uint8_t *p, const uint8_t *end, struct leaf_overflow *o);

/* Writer of one payload, entry by entry. It keeps pointers to the keys and values of the block so
 * far: they stay in place until the next leaf_coder_reset(). */
#define LEAF_KINS 16
struct leaf_kin {       /* the values of one length; of lengths that clash the later one stays */
  uint32_t size;        /* value bytes; 0: none */
  uint32_t entry;       /* the last of them */
  const uint8_t *value; /* its value */
  uint32_t form;        /* form of the shape in use; 0: none. `entry` is then the shape's last */
  uint32_t runs, bytes; /* of that shape */
  struct leaf_run run[LEAF_RUNS_MAX];
};
struct leaf_coder {
  uint32_t entries, shapes;
  struct slice key; /* of the last entry */
  struct leaf_kin kin[LEAF_KINS];
};
void leaf_coder_reset(struct leaf_coder *k);
/* Write an entry at p, with room for leaf_coded_max() bytes; returns the byte after it. */
uint8_t *leaf_coder_put(struct leaf_coder *k, uint8_t *p, const struct leaf_entry *e);
static inline size_t leaf_coded_max(size_t key, size_t value) {
  return 4 * VARINT32_MAX + key + (value > LEAF_REF_MAX ? value : LEAF_REF_MAX);
}

#endif
