/* SPDX-License-Identifier: Apache-2.0
 *
 * simdisk.h - a simulated disk: an implementation of struct pglog_io in memory that can lose power,
 * fail and run full.
 *
 * Fault model
 *  1. A write goes to a volatile cache, where reads see it. A sync that succeeds makes every
 * earlier write, and the size, durable. Nothing else does.
 *  2. The requests of one submit call run in an order drawn from the seed.
 *  3. Every request, sync and grow is one operation, numbered from 1. At a power cut at operation n
 *     the operations before n have returned; n itself is in flight: a write may get to the medium
 *     in part, and so may what a sync was about to flush. It and all later ones answer -EIO, until
 *     simdisk_power_on().
 *  4. What a power cut leaves of the cache is drawn from the seed in the way that enum
 * simdisk_power says. The unit is the sector of 512 bytes: it is old or new, never mixed, never
 * anything else. The size is the durable one or the newest one; what lies beyond it is gone.
 *  5. A read that fails changes nothing. A write that fails may have been done in part, sector by
 *     sector. A sync that fails has made a part of the cache durable, in the way of a power cut,
 * and the rest never will be, although reads still see it (the page cache marks such pages clean):
 * a later sync says nothing about it.
 *  6. Growing beyond the capacity answers -ENOSPC and changes nothing. New space reads as zeros.
 *  7. A transfer beyond the size answers -EIO.
 *  8. The medium itself keeps what it holds; simdisk_bytes() is there to damage it by hand.
 *
 * The same configuration and the same calls give the same disk, byte for byte (as long as the calls
 * come from one thread). All functions may be called from several threads.
 */
#ifndef PGLOG_SIMDISK_H
#define PGLOG_SIMDISK_H

#include "pglog/pglog.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SIMDISK_SECTOR 512u

/* What a power cut leaves of the writes since the last sync. */
enum simdisk_power {
  SIMDISK_LOSE_ALL,  /* nothing */
  SIMDISK_KEEP_ALL,  /* everything, the write in flight included */
  SIMDISK_IN_ORDER,  /* the first k, and the first sectors of the one behind them */
  SIMDISK_REORDERED, /* each write whole or not at all */
  SIMDISK_TORN,      /* each sector of each write on its own */
  SIMDISK_POWER_STYLES
};

struct simdisk_config {
  uint64_t seed;            /* of everything random. Any value */
  uint64_t size;            /* bytes at the start, all zeros; a multiple of PGLOG_BLOCK. 0: empty */
  uint64_t capacity;        /* grow answers -ENOSPC beyond this. 0: no limit */
  enum simdisk_power power; /* default SIMDISK_LOSE_ALL */
  /* Each counts from 1 since simdisk_new() or simdisk_faults(); 0: never. */
  uint64_t cut_at;        /* the power goes at this operation */
  uint64_t fail_read_at;  /* this read answers -EIO */
  uint64_t fail_write_at; /* this write answers -EIO */
  uint64_t fail_sync_at;  /* this sync answers -EIO */
};

/* Operations since simdisk_new() or simdisk_faults(). */
struct simdisk_counts {
  uint64_t ops, reads, writes, syncs, grows;
};

struct simdisk;

/* 0, or a negative errno. Release with simdisk_free(). */
int simdisk_new(const struct simdisk_config *c, struct simdisk **out);

/* NULL is fine. No struct pglog_io of the disk may be used any more. */
void simdisk_free(struct simdisk *d);

/* The disk as arena storage; valid until simdisk_free(). Its close does nothing: opening an arena
 * on it once more is a restart of the program, without a power cut. */
struct pglog_io simdisk_io(struct simdisk *d);

/* Take over power style, capacity and faults of *c and begin to count from 0 again. Seed (0 in *c
 * keeps the present one), content and power stay. */
void simdisk_faults(struct simdisk *d, const struct simdisk_config *c);

/* Cut the power now. Nothing is in flight. */
void simdisk_cut(struct simdisk *d);

bool simdisk_is_off(struct simdisk *d);

/* Power is back (it is cut first if it is on): reads now see what has survived. Faults are
 * cleared, counting begins again. */
void simdisk_power_on(struct simdisk *d);

void simdisk_counts(struct simdisk *d, struct simdisk_counts *out);

/* The bytes from `offset` on, to be looked at or damaged by hand: writes show in reads at once and
 * count as durable after simdisk_damaged(). The pointer is valid until the next operation. */
uint8_t *simdisk_bytes(struct simdisk *d, uint64_t offset);

/* Make the present content, damage by hand included, durable, without counting a sync. */
void simdisk_damaged(struct simdisk *d);

#ifdef __cplusplus
}
#endif
#endif
