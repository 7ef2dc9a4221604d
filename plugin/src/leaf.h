/* SPDX-License-Identifier: Apache-2.0
 *
 * leaf.h - the 4 KiB blocks of the arena that hold sorted entries: leaves (pg log entries) and
 * table blocks (entries that point to leaves). Pure: bytes in, bytes out; knows no allocation and
 * no I/O.
 *
 * A block is a header and one payload. Header, 40 bytes, little endian:
 *     00-03  magic "PGLF"
 *     04-07  CRC-32C of bytes 08-4095
 *     08     kind: 1 leaf, 2 table, 3 root, 4 overflow
 *     09     flags: bit 0 payload is one zstd frame; bit 1 holds overflow references; others 0
 *     10-11  number of entries, 1..LEAF_ENTRIES_MAX; 0 in an overflow block
 *     12-13  bytes of payload as stored, 1..LEAF_PAYLOAD
 *     14-15  bytes of payload before compression, 1..LEAF_RAW_MAX; as stored if bit 0 is not set
 *     16-19  key bytes and value bytes of all entries, 0..LEAF_EXPANDED_MAX (values in overflow
 *            blocks not counted). Overflow block: its index in its chain, from 0
 *     20-23  block number of this block (tells misdirected writes)
 *     24-31  generation: number of the check point that wrote it
 *     32-39  id of the arena (tells blocks of another database)
 * The rest of the block behind the payload is written as zeros. It is covered by the CRC and not
 * looked at otherwise. There are no reserved bytes.
 *
 * The payload of a leaf, table or root is compressed if and only if it would not fit the block
 * otherwise. Before compression it is a row of entries in strictly ascending bytewise key order,
 * with nothing before, between or behind them:
 *
 *     +------+--------+-------+-----------+-------------------------+
 *     | form | shared | other | key bytes | value, as the form says |
 *     +------+--------+-------+-----------+-------------------------+
 *      varint  varint   varint   `other` B
 *
 *   Key: its first `shared` bytes are those of the key of the entry before (the longest common
 *   prefix; 0 in the first entry); `other` more follow. The i-th of them is stored minus (modulo
 *   256) byte shared + i of the key before, or as it is where that key has no such byte.
 *
 *   Value: entries of one kind differ in few bytes, at places that stay the same. A `shape` says
 *   where values may differ: a row of runs of bytes. Shapes are numbered from 0 in the order in
 *   which they come in the block, and each remembers its last value.
 *
 *   form   value
 *     0    plain: varint value length, value bytes
 *     1    overflow reference: varints block, blocks, size, stored, then 4 bytes CRC (see
 *          struct leaf_overflow)
 *     2    a new shape: varint distance (1: the entry before; ...) back to the entry of this
 *          block whose value is the shape's last one for now (not of form 1, and not empty),
 *          varint number of runs (0..LEAF_RUNS_MAX), for each run varint bytes skipped since the
 *          end of the run before (or since the value's begin) and varint bytes of the run (at
 *          least 1); then the value as in form 3
 *   3 + i  by shape i: a value as long as the shape's last one and equal to it outside the runs;
 *          for each byte in a run, in order, its difference (modulo 256) to the last value's
 *          byte. The value becomes the shape's last one
 *
 *   There are at most LEAF_SHAPES_MAX shapes in a block.
 *
 * An overflow block's payload is a slice of the stored bytes of one large value (see struct
 * leaf_overflow): LEAF_PAYLOAD bytes, in the last block of the chain the rest. Its flags are 0.
 */
#ifndef PGLOG_LEAF_H
#define PGLOG_LEAF_H

#include "util.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LEAF_HEADER 40
#define LEAF_PAYLOAD (PGLOG_BLOCK - LEAF_HEADER)
#define LEAF_ENTRIES_MAX 1024          /* entries of one block */
#define LEAF_RAW_MAX 0xffffu           /* payload bytes before compression */
#define LEAF_EXPANDED_MAX (256u << 10) /* key and value bytes of one block */
#define LEAF_OVERFLOWS_MAX 8           /* overflow references of one block */
#define LEAF_SHAPES_MAX 64             /* shapes of one block */
#define LEAF_RUNS_MAX 32               /* runs of one shape */

enum leaf_kind { LEAF_LEAF = 1, LEAF_TABLE = 2, LEAF_ROOT = 3, LEAF_OVERFLOW = 4 };

/* Where a value lies that is too large for a leaf: `blocks` blocks in a row from `block`, each an
 * overflow block with a header as above; together they carry `stored` bytes: the value itself, or
 * its zstd frame (with its content size) if `stored` < `size`. blocks = stored / LEAF_PAYLOAD,
 * rounded up. */
struct leaf_overflow {
  uint32_t block, blocks;
  uint32_t size;   /* value bytes */
  uint32_t stored; /* bytes in the chain */
  uint32_t crc;    /* CRC-32C of the value */
};

struct leaf_entry {
  struct slice key;
  struct slice value; /* empty if overflow */
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
 * emit is called for each finished block with its bytes (unsealed: see leaf_seal), its first and
 * last key, the number of entries and its overflow references; all valid during the call only. A
 * negative return stops the packer and becomes the result of the call in progress and of all later
 * ones. */
struct leaf_block {
  uint8_t *bytes; /* PGLOG_BLOCK bytes, aligned to PGLOG_BLOCK; the callee may seal it in place */
  struct slice first, last;
  uint32_t entries;
  uint32_t raw;    /* payload bytes before compression */
  uint32_t stored; /* payload bytes as stored */
  uint32_t share;  /* about what they would take of a full block; less than stored if not compressed */
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
/* A good place to end a block (a PG's end): gives out what is pending if its fill is at least half
 * a block, otherwise goes on in the same block. */
int leaf_packer_boundary(struct leaf_packer *p, struct pglog_error *err);
/* Gives out everything pending. The packer can be used again for later keys. */
int leaf_packer_flush(struct leaf_packer *p, struct pglog_error *err);
/* Payload bytes pending: before compression, and about what they would take in a block (0 if and
 * only if nothing is pending; never more than the former), to let the caller judge whether to take
 * a neighbour in. */
size_t leaf_packer_pending(const struct leaf_packer *p);
size_t leaf_packer_estimate(const struct leaf_packer *p);

/* How full a block is: the larger part of its two limits, as bytes of payload. */
static inline size_t leaf_fill(size_t stored, size_t entries) {
  size_t by_entries = (entries * LEAF_PAYLOAD + LEAF_ENTRIES_MAX - 1) / LEAF_ENTRIES_MAX;
  return stored > by_entries ? stored : by_entries;
}
/* That of what is pending, by the estimate. */
size_t leaf_packer_fill(const struct leaf_packer *p);

/* Whether an entry of these sizes must go to overflow blocks: it might not fit a block
 * uncompressed. */
static inline bool leaf_needs_overflow(size_t key, size_t value) {
  return key + value + 3 * VARINT32_MAX > LEAF_PAYLOAD;
}

/* Fill in block number, generation, arena id and CRC. The last thing before writing. */
void leaf_seal(uint8_t *bytes, uint32_t block, uint64_t generation, uint64_t arena_id);

/* Check a block that was read: magic, CRC, reserved bytes, kind, block number, arena id, generation
 * (`generation` 0: not known, any) and the header's counts. PGLOG_ECORRUPT, with the block number
 * and what is wrong. */
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

/* Overflow blocks: encode `value` (not empty) into ref->blocks blocks at *bytes (malloc'ed, aligned
 * to PGLOG_BLOCK; free() it), unsealed; ref gets size, stored, blocks and crc, its `block` is left
 * to the caller, who seals block i with number ref.block + i. Decode checks each block and the
 * value's CRC; `bytes` holds ref->blocks blocks as read; *value is malloc'ed (free() it). */
int leaf_overflow_encode(struct leaf_codec *c, struct slice value, uint8_t **bytes,
                         struct leaf_overflow *ref, struct pglog_error *err);
int leaf_overflow_decode(struct leaf_codec *c, const struct leaf_overflow *ref,
                         const uint8_t *bytes, uint64_t arena_id, uint8_t **value,
                         struct pglog_error *err);

#ifdef __cplusplus
}
#endif
#endif
