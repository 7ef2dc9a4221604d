/* SPDX-License-Identifier: Apache-2.0
 *
 * leaf.h - the 4 KiB blocks of the arena that hold sorted entries: leaves (pg log entries) and table
 * blocks (entries that point to leaves). Pure: bytes in, bytes out; knows no allocation and no I/O.
 *
 * A block is a header and one payload, zstd-compressed if that is smaller. The payload before
 * compression is a row of entries in bytewise key order:
 *     varint shared key bytes with the previous entry, varint other key bytes, varint value word,
 *     key bytes, value bytes
 *     value word = value length << 1, or 1 = the value is an overflow reference (struct leaf_overflow
 *     in its encoded form)
 *
 * Header, 40 bytes:
 *     00-03  magic "PGLF"
 *     04-07  CRC-32C of bytes 08-4095
 *     08     kind: 1 leaf, 2 table, 3 root, 4 overflow
 *     09     flags: bit 0 payload is zstd; bit 1 holds overflow references
 *     10-11  number of entries
 *     12-13  bytes of payload as stored
 *     14-15  reserved, 0
 *     16-19  bytes of payload before compression
 *     20-23  block number of this block (tells misdirected writes)
 *     24-31  generation: number of the check point that wrote it
 *     32-39  id of the arena (tells blocks of another database)
 * The rest of the block behind the payload is zero.
 */
#ifndef PGLOG_LEAF_H
#define PGLOG_LEAF_H

#include "util.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LEAF_HEADER 40
#define LEAF_PAYLOAD (PGLOG_BLOCK - LEAF_HEADER)
#define LEAF_ENTRIES_MAX 1024      /* entries of one block */
#define LEAF_RAW_MAX (64u << 10)   /* payload bytes before compression */
#define LEAF_OVERFLOWS_MAX 8       /* overflow references of one block */

enum leaf_kind { LEAF_LEAF = 1, LEAF_TABLE = 2, LEAF_ROOT = 3, LEAF_OVERFLOW = 4 };

/* Where a value lies that is too large for a leaf: `blocks` blocks in a row from `block`, each an
 * overflow block with a header as above; together they carry `stored` bytes: the value itself, or its
 * zstd frame if `stored` < `size`. */
struct leaf_overflow {
  uint32_t block, blocks;
  uint32_t size;   /* value bytes */
  uint32_t stored; /* bytes in the chain */
  uint32_t crc;    /* CRC-32C of the value */
};

struct leaf_entry {
  struct slice key;
  struct slice value;         /* empty if overflow */
  bool is_overflow;
  struct leaf_overflow overflow;
};

/* Compression contexts and scratch, reused across blocks. One per thread. */
struct leaf_codec;
int leaf_codec_new(struct leaf_codec **out); /* PGLOG_ENOMEM */
void leaf_codec_free(struct leaf_codec *c);  /* NULL is fine */

/* Packer: takes entries in strictly ascending key order, gives out full blocks. It keeps a copy of
 * what it has not given out. It aims at a good fill at few compressions: it predicts the ratio from
 * the blocks before.
 *
 * emit is called for each finished block with its bytes (unsealed: see leaf_seal), its first and last
 * key, the number of entries and its overflow references; all valid during the call only. A negative
 * return stops the packer and becomes the result of the call in progress. */
struct leaf_block {
  uint8_t *bytes; /* PGLOG_BLOCK bytes, aligned to PGLOG_BLOCK; the callee may seal it in place */
  struct slice first, last;
  uint32_t entries;
  uint32_t raw;    /* payload bytes before compression */
  uint32_t stored; /* payload bytes as stored */
  uint32_t overflows;
  struct leaf_overflow overflow[LEAF_OVERFLOWS_MAX];
};
typedef int (*leaf_emit_fn)(void *arg, struct leaf_block *b, struct pglog_error *err);

struct leaf_packer;
int leaf_packer_new(struct leaf_packer **out, struct leaf_codec *c, int kind, leaf_emit_fn emit,
                    void *arg);
void leaf_packer_free(struct leaf_packer *p); /* drops what was not given out; NULL is fine */
/* PGLOG_EINVAL: key not after the last one. PGLOG_ETOOBIG: key over PGLOG_KEY_MAX, or an entry that
 * does not fit a block alone (the caller asks leaf_needs_overflow() first). */
int leaf_packer_add(struct leaf_packer *p, const struct leaf_entry *e, struct pglog_error *err);
/* A good place to end a block (a PG's end): gives out what is pending if it would fill a block at
 * least half, otherwise goes on in the same block. */
int leaf_packer_boundary(struct leaf_packer *p, struct pglog_error *err);
/* Gives out everything pending. The packer can be used again for later keys. */
int leaf_packer_flush(struct leaf_packer *p, struct pglog_error *err);
/* Bytes pending (before compression), to let the caller judge whether to take a neighbour in. */
size_t leaf_packer_pending(const struct leaf_packer *p);

/* Whether an entry of these sizes must go to overflow blocks: it might not fit a block uncompressed. */
static inline bool leaf_needs_overflow(size_t key, size_t value) {
  return key + value + 3 * VARINT32_MAX > LEAF_PAYLOAD;
}

/* Fill in block number, generation, arena id and CRC. The last thing before writing. */
void leaf_seal(uint8_t *bytes, uint32_t block, uint64_t generation, uint64_t arena_id);

/* Check a block that was read: magic, CRC, reserved bytes, kind, block number, arena id, generation
 * (`generation` 0: not known, any) and the header's counts. PGLOG_ECORRUPT, with the block number and
 * what is wrong. */
int leaf_verify(const uint8_t *bytes, int kind, uint32_t block, uint64_t generation,
                uint64_t arena_id, struct pglog_error *err);
uint64_t leaf_generation(const uint8_t *bytes);

/* A decoded block. Keys and values point into memory owned by it. */
struct leaf {
  uint32_t n;
  struct leaf_entry *e; /* n entries, ascending */
  void *mem;
};
/* Decode a verified block. PGLOG_ECORRUPT names the block number from its header. */
int leaf_decode(struct leaf_codec *c, const uint8_t *bytes, struct leaf *out,
                struct pglog_error *err);
void leaf_free(struct leaf *l); /* a zeroed one is fine */
/* Index of the first entry with key >= `key`; n if none. */
uint32_t leaf_lower_bound(const struct leaf *l, struct slice key);

/* Overflow blocks: encode `value` into `*blocks` blocks at *bytes (malloc'ed, aligned to
 * PGLOG_BLOCK; free() it), unsealed; ref gets size, stored, blocks and crc, its `block` is left to the caller,
 * who seals block i with number ref.block + i. Decode checks each block and the value's CRC; `bytes`
 * holds ref->blocks blocks as read; *value is malloc'ed (free() it). */
int leaf_overflow_encode(struct leaf_codec *c, struct slice value, uint8_t **bytes,
                         struct leaf_overflow *ref, struct pglog_error *err);
int leaf_overflow_decode(struct leaf_codec *c, const struct leaf_overflow *ref,
                         const uint8_t *bytes, uint64_t arena_id, uint8_t **value,
                         struct pglog_error *err);

#ifdef __cplusplus
}
#endif
#endif
