/* SPDX-License-Identifier: Apache-2.0
 *
 * arena.h - the arena: two superblock slots (blocks 0 and 1) and a space of 4 KiB blocks, with its
 * allocator. Knows nothing of PGs, keys or tables.
 *
 * Publication: everything a superblock refers to is written and synced first; then the superblock of
 * generation g is written to one slot and synced. It goes to the slot that does not hold the newest
 * superblock known to be durable, so that one valid slot survives any crash. A failed publication may
 * or may not be on disk: the next one goes to the same slot.
 *
 * A slot is valid if and only if
 *  1. it begins with the magic,
 *  2. its CRC-32C is right,
 *  3. its format version is this library's (another version is an error, not an invalid slot),
 *  4. its reserved bytes are zero and its rule and counts are within their limits,
 *  5. its arena id is not zero, and that of the other slot if that is valid as well.
 * The valid slot with the higher generation counts.
 *
 * Thread rules: one thread at a time may allocate, free, write or publish. arena_read() may run from
 * any number of threads beside it.
 */
#ifndef PGLOG_ARENA_H
#define PGLOG_ARENA_H

#include "io.h"
#include "rule.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SUPER_WALS_MAX 256     /* WAL numbers listed in a superblock */
#define SUPER_IDENTITY_MAX 64  /* bytes of the database's IDENTITY */

/* What a superblock says. Byte layout: FORMAT.md. */
struct super {
  uint64_t generation; /* number of the check point, from 1 (format) */
  uint64_t arena_id;   /* random, not 0; fixed at format */
  struct pglog_rule rule;
  uint32_t cf_id;      /* id of the rule's column family; PGLOG_CF_UNKNOWN until a door named it */
  char identity[SUPER_IDENTITY_MAX + 1]; /* the database's IDENTITY; "" until known */
  bool invalidated;    /* the database was destroyed */
  /* Check point position C: everything before it in the WALs is in the arena. */
  uint64_t wal;        /* number of the WAL file; 0: no WAL yet */
  uint64_t wal_offset; /* end of the last record covered in it */
  uint64_t sequence;   /* highest RocksDB sequence covered */
  uint64_t blobs;      /* blobs observed up to C */
  /* Root: `root_blocks` blocks in a row from `root_block` (LEAF_ROOT); none when 0. */
  uint32_t root_block, root_blocks;
  uint64_t tables, leaves, entries, overflow_blocks; /* counts, checked at load */
  /* WAL files that must exist, ascending; all >= wal. */
  uint32_t n_wals;
  uint64_t wals[SUPER_WALS_MAX];
};

/* Encode into a block / decode and check one. Decode: 0; PGLOG_ECORRUPT (not a valid slot, with the
 * reason); PGLOG_EMISMATCH (another format version, named). */
void super_encode(const struct super *s, uint8_t *block);
int super_decode(struct super *s, const uint8_t *block, struct pglog_error *err);

struct arena;

struct arena_config {
  const char *path;         /* for messages, and the file or device when io is NULL */
  const struct pglog_io *io;/* the caller's storage, or NULL */
  uint64_t max, step;       /* bytes: limit and growth step */
  uint32_t queue_depth;
};

enum arena_state {
  ARENA_ABSENT,   /* no file, or nothing but zeros where the superblocks belong */
  ARENA_FOREIGN,  /* something is there, but no slot has the magic */
  ARENA_DAMAGED,  /* magic found, but no valid slot; err says what is wrong with each */
  ARENA_VALID,
};

/* Open the storage without changing it. On return 0, *state says what was found and, if ARENA_VALID,
 * *super holds the newest valid superblock. An absent file is not created: *out is then an arena that
 * only arena_format() and arena_close() may be called on. PGLOG_EBUSY: open elsewhere. PGLOG_EMISMATCH: other
 * version, or both slots valid with different arena ids. For ARENA_DAMAGED and ARENA_FOREIGN `err` is filled in although 0 is returned. */
int arena_open(const struct arena_config *c, struct arena **out, enum arena_state *state,
               struct super *super, struct pglog_error *err);

/* Make a new arena: grows to the first step, zeroes slot 1, writes *first (generation 1, a fresh arena_id is filled in)
 * to slot 0, syncs. The caller has decided that what is there may go, and syncs the directory. */
int arena_format(struct arena *a, struct super *first, struct pglog_error *err);

/* Close the storage. NULL is fine. */
void arena_close(struct arena *a);

/* --- allocator ------------------------------------------------------------------------------- */

/* Mark blocks as used while loading. PGLOG_ECORRUPT: outside the arena, or used twice. */
int arena_mark(struct arena *a, uint32_t block, uint32_t n, struct pglog_error *err);

/* Allocate n blocks in a row, growing the storage if none are free. PGLOG_EFULL: names used, size,
 * limit (arena_max or the device's size or the file system's ENOSPC). Allocation is next-fit from
 * the last one, so that the blocks of a check point lie together. */
int arena_alloc(struct arena *a, uint32_t n, uint32_t *block, struct pglog_error *err);

/* Free blocks at once. The caller has made sure that no superblock on disk and no view needs them. */
void arena_free(struct arena *a, uint32_t block, uint32_t n);

struct arena_usage {
  uint64_t used_blocks;  /* superblocks included */
  uint64_t size_blocks;  /* present size */
  uint64_t max_blocks;   /* limit */
  int64_t allocated;     /* bytes of storage really allocated */
};
void arena_usage(struct arena *a, struct arena_usage *u);

/* --- I/O -------------------------------------------------------------------------------------- */

/* One block to read or write; `bytes` aligned to PGLOG_BLOCK, n blocks in a row. */
struct arena_io {
  uint32_t block, n;
  uint8_t *bytes;
  int result; /* out: 0 or -errno */
};
/* Read or write all of them. PGLOG_EIO names block and errno of the first failure. */
int arena_read(struct arena *a, struct arena_io *v, size_t n, struct pglog_error *err);
int arena_write(struct arena *a, struct arena_io *v, size_t n, struct pglog_error *err);
int arena_sync(struct arena *a, struct pglog_error *err);

/* Publish: sync, write `s` to the slot to use, sync. On failure s->generation must not be used
 * again, see the top comment. */
int arena_publish(struct arena *a, const struct super *s, struct pglog_error *err);

/* Write both slots with `invalidated` set (DestroyDB). */
int arena_invalidate(struct arena *a, struct super *s, struct pglog_error *err);

/* Reason why I/O is buffered, or NULL when it is direct or the caller's. */
const char *arena_buffered_why(const struct arena *a);

#ifdef __cplusplus
}
#endif
#endif
