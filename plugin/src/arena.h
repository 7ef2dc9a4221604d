/* SPDX-License-Identifier: Apache-2.0
 *
 * arena.h - the arena: two superblock slots (blocks 0 and 1) and a space of 4 KiB blocks, with its
 * allocator. Knows nothing of PGs, keys or tables.
 *
 * Publication: everything a superblock refers to is written and synced first; then the superblock
 * of generation g is written to one slot and synced. It goes to the slot that does not hold the
 * newest superblock known to be durable, so that one valid slot survives any crash. A failed
 * publication may or may not be on disk: the next one goes to the same slot.
 *
 * A slot is valid if and only if
 *  1. it begins with the magic,
 *  2. its CRC-32C is right,
 *  3. its format version is this library's (another version is an error, not an invalid slot),
 *  4. its reserved bytes are zero and its rule and counts are within their limits,
 *  5. its arena id is not zero, and that of the other slot if that is valid as well.
 * The valid slot with the higher generation counts; two valid slots of one generation are damage. A
 * slot that cannot be read is an error, since it may be the one that counts.
 *
 * Failures: a sync that fails leaves every block written since the last good one in doubt, and a
 * later sync tells nothing about them. If that happens to the sync of data (arena_sync, or the
 * first one of arena_publish) the arena is poisoned: nothing is on disk that refers to those
 * blocks, reads go on, and each later write, sync or publication is PGLOG_EPOISONED with the first
 * error's text, until the arena is opened again. A failure while the superblock itself is written
 * or synced poisons nothing. What a failed arena_write leaves behind is in blocks that no
 * superblock knows.
 *
 * The superblock found by arena_open() may be one whose sync failed in an earlier process:
 * readable, not durable. It is therefore written in place once more and synced before the first
 * write of this process, since that may go to blocks, or to the slot, of the generation before.
 *
 * Thread rules: one thread at a time may allocate, free, write or publish. arena_read() may run
 * from any number of threads beside it.
 */
#ifndef PGLOG_ARENA_H
#define PGLOG_ARENA_H

#include "io.h"
#include "rule.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SUPER_WALS_MAX 256    /* WAL numbers listed in a superblock */
#define SUPER_IDENTITY_MAX 56 /* bytes of the database's IDENTITY */

/* Byte layout of a superblock, one block. Integers are little endian. All other bytes are zero.
 *
 *   0000-0007  magic, SUPER_MAGIC
 *   0008-0011  CRC-32C of the whole block with these four bytes zero
 *   0012-0015  format version, PGLOG_FORMAT_VERSION
 *   0016-0023  generation
 *   0024-0031  arena_id
 *   0032-0039  wal
 *   0040-0047  wal_offset
 *   0048-0055  sequence
 *   0056-0063  blobs
 *   0064-0067  root_block
 *   0068-0071  root_blocks
 *   0072-0079  tables
 *   0080-0087  leaves
 *   0088-0095  entries
 *   0096-0103  overflow_blocks
 *   0104-0107  cf_id
 *   0108-0109  flags: bit 0 invalidated; the others are zero
 *   0110-0111  n_wals, at most SUPER_WALS_MAX
 *   0112       length of the identity, at most SUPER_IDENTITY_MAX
 *   0113       zero
 *   0114-0115  length of the encoded rule, at most RULE_ENCODED_MAX
 *   0116-0123  root_generation
 *   0124-0179  identity: no NUL in it, zeros behind it
 *   0180-0511  rule (rule_encode), zeros behind it
 *   0512-2559  wals, 8 bytes each, zeros behind the last
 *   2560-4095  zero
 *
 * Magic, CRC and version keep place and meaning in every version. A superblock without WALs, such
 * as the first one, differs from a block of zeros in one sector only: formatting cannot be torn. */
#define SUPER_MAGIC "\xb1PGLSUP\n"
#define SUPER_MAGIC_LEN 8

/* What a superblock says. */
struct super {
  uint64_t generation; /* number of the check point, from 1 (format) */
  uint64_t arena_id;   /* random, not 0; fixed at format */
  struct pglog_rule rule;
  uint32_t cf_id; /* id of the rule's column family; PGLOG_CF_UNKNOWN until a door named it */
  char identity[SUPER_IDENTITY_MAX + 1]; /* the database's IDENTITY; "" until known */
  bool invalidated;                      /* the database was destroyed */
  /* Check point position C: everything before it in the WALs is in the arena. */
  uint64_t wal;        /* number of the WAL file; 0: no WAL yet */
  uint64_t wal_offset; /* end of the last record covered in it */
  uint64_t sequence;   /* highest RocksDB sequence covered */
  uint64_t blobs;      /* blobs observed up to C */
  /* Root: `root_blocks` blocks in a row from `root_block` (LEAF_ROOT); none when both are 0. */
  uint32_t root_block, root_blocks;
  uint64_t root_generation; /* of the check point that wrote the root blocks */
  uint64_t tables, leaves, entries, overflow_blocks; /* counts, checked at load */
  /* WAL files that must exist, ascending; all >= wal. */
  uint32_t n_wals;
  uint64_t wals[SUPER_WALS_MAX];
};

/* What is out of its limits in `s`, or NULL. Static storage. */
const char *super_wrong(const struct super *s);

/* Encode into a block (super_wrong() says NULL) / decode and check one. Decode: 0; PGLOG_ECORRUPT
 * (not a valid slot, with the reason); PGLOG_EMISMATCH (another format version, named). On failure
 * *s is unspecified. */
void super_encode(const struct super *s, uint8_t *block);
int super_decode(struct super *s, const uint8_t *block, struct pglog_error *err);

struct arena;

struct arena_config {
  const char *path;          /* for messages, and the file or device when io is NULL */
  const struct pglog_io *io; /* the caller's storage, or NULL */
  uint64_t max, step;        /* bytes: limit and growth step */
  uint32_t queue_depth;
};

enum arena_state {
  ARENA_ABSENT,  /* no file, or nothing but zeros where the superblocks belong */
  ARENA_FOREIGN, /* something is there, but no slot has the magic */
  ARENA_DAMAGED, /* there was an arena, but no slot can be gone by; err says what is wrong */
  ARENA_VALID,
};

/* Open the storage without changing it. On return 0, *out is to be closed with arena_close(),
 * *state says what was found and, if ARENA_VALID, *super holds the newest valid superblock. An
 * absent file is not created: *out is then an arena that only arena_format() and arena_close() may
 * be called on; so it is for every state but ARENA_VALID. A file too short for two blocks is
 * ARENA_ABSENT if it is empty or all zeros. For ARENA_FOREIGN and ARENA_DAMAGED `err` is filled in
 * although 0 is returned. On failure *out is NULL and nothing stays open. PGLOG_EBUSY: open
 * elsewhere. PGLOG_EMISMATCH: other version, or both slots valid with different arena ids.
 * PGLOG_EIO: a slot cannot be read. */
int arena_open(const struct arena_config *c, struct arena **out, enum arena_state *state,
               struct super *super, struct pglog_error *err);

/* Make a new arena: creates the file if absent, grows it to the first step, zeroes both slots,
 * syncs, writes *first (generation 1 and a fresh arena_id are filled in) to slot 0, syncs. The
 * caller has decided that what is there may go, and syncs the directory. On failure only
 * arena_format() and arena_close() may follow. PGLOG_EFULL: no room for the first step;
 * PGLOG_EINVAL: *first is out of limits. */
int arena_format(struct arena *a, struct super *first, struct pglog_error *err);

/* Close the storage. NULL is fine. */
void arena_close(struct arena *a);

/* --- allocator ------------------------------------------------------------------------------- */

/* Mark blocks as used while loading. PGLOG_ECORRUPT: outside the arena, or used twice; nothing is
 * marked then. */
int arena_mark(struct arena *a, uint32_t block, uint32_t n, struct pglog_error *err);

/* Allocate n blocks in a row, growing the storage if none are free. PGLOG_EFULL: names used, size,
 * limit (arena_max or the device's size or the file system's ENOSPC); nothing has changed then, and
 * the next call tries again. Allocation is next-fit from the last one, so that the blocks of a
 * check point lie together. One block costs O(1), however full the arena is; a longer row is
 * searched free row by free row. */
int arena_alloc(struct arena *a, uint32_t n, uint32_t *block, struct pglog_error *err);

/* Free blocks at once. The caller has made sure that no superblock on disk and no view needs them.
 */
void arena_free(struct arena *a, uint32_t block, uint32_t n);

struct arena_usage {
  uint64_t used_blocks; /* superblocks included */
  uint64_t size_blocks; /* present size; of a device: as much of it as may be used */
  uint64_t max_blocks;  /* limit: arena_max, or the device's size if that is less */
  int64_t allocated;    /* bytes of storage really allocated */
};
void arena_usage(struct arena *a, struct arena_usage *u);

/* --- I/O -------------------------------------------------------------------------------------- */

/* One block to read or write; `bytes` aligned to PGLOG_BLOCK, n blocks in a row. */
struct arena_io {
  uint32_t block, n;
  uint8_t *bytes;
  int result; /* out: 0 or -errno */
};
/* Read or write all of them; neighbours in both the arena and memory go as one request. PGLOG_EIO
 * names block and errno of the first failure. Writes: PGLOG_EFULL when it is the file system's
 * ENOSPC (it can be where space was not reserved), PGLOG_EINVAL for a block that is not allocated.
 */
int arena_read(struct arena *a, struct arena_io *v, size_t n, struct pglog_error *err);
int arena_write(struct arena *a, struct arena_io *v, size_t n, struct pglog_error *err);
int arena_sync(struct arena *a, struct pglog_error *err);

/* Publish: sync, write `s` to the slot to use, sync. s->generation must be higher than any
 * published or tried before, and s->arena_id that of the arena (PGLOG_EINVAL, nothing is written).
 * On failure s->generation must not be used again: it may or may not be on disk, see the top
 * comment. */
int arena_publish(struct arena *a, const struct super *s, struct pglog_error *err);

/* Write both slots with `invalidated` set (DestroyDB), as two publications: s->generation is raised
 * by two. */
int arena_invalidate(struct arena *a, struct super *s, struct pglog_error *err);

/* Reason why I/O is buffered, or NULL when it is direct or the caller's. */
const char *arena_buffered_why(const struct arena *a);

#ifdef __cplusplus
}
#endif
#endif
