/* SPDX-License-Identifier: Apache-2.0
 *
 * ring.h - the pg log store of mode poc, after the proof of concept of 2018: each transaction's pg
 * log operations take a 4 KiB block (several, if they do not fit) in a ring of 16 MiB that its PG
 * has in one file. It is written with O_DIRECT through libaio, each transaction's by a submission of
 * its own, as BlueStore submits the I/O of a transaction; one fdatasync of the file makes the group
 * durable. There is no read path, and no atomicity with the database beside it.
 *
 * Puts go into the block; deletes of log entries only move the ring's tail over the blocks of the
 * entries deleted. The file is written once ahead of the clock, as a raw device would be, so that a
 * group's sync does not allocate.
 */
#ifndef BENCH_RING_H
#define BENCH_RING_H

#include "common.h"
#include "engine.h"
#include "trace.h"

#define RING_BLOCK 4096u
#define RING_BLOCKS 4096u /* per PG */

struct ring;

/* Open or make the file with a ring for each PG of `t`. NULL on failure. */
struct ring *ring_open(const char *path, const struct trace *t, struct fail *f);
void ring_close(struct ring *r); /* NULL is fine */

/* Count the log entries of a key space as blocks in use. */
int ring_load(struct ring *r, const struct keyspace_file *k, struct fail *f);

/* Begin to write the pg log operations among [p, end), the records of one transaction. -1: the PG's
 * ring is full, the transaction does not fit in it, or an earlier write has failed. */
int ring_add(struct ring *r, const uint8_t *p, const uint8_t *end, struct fail *f);

/* Wait for all that was added, and make it durable. */
int ring_sync(struct ring *r, struct fail *f);

/* Bytes written since it was opened, without the first fill. */
uint64_t ring_bytes(const struct ring *r);
/* Blocks between tail and head, and what the file takes. */
void ring_space(const struct ring *r, struct space *s);

#endif
