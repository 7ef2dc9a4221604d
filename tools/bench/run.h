/* SPDX-License-Identifier: Apache-2.0
 *
 * run.h - one mode over the trace, once, measured.
 *
 * Each run is a process of its own, forked from one that holds the trace and the model, so that
 * modes and rounds do not disturb one another: their memory, their CPU time and their threads are
 * apart.
 *
 * The runs of a round take turns of some groups each, so that a machine that is faster at one time
 * than at another is so for all of them. Only one replays at a time, but what another does in the
 * background (a flush, a check point) goes on.
 *
 * The clock runs from the first transaction until everything is in files other than WALs (all
 * column families flushed, the log store check pointed) and no flush or compaction is running or
 * due. In it:
 *  - CPU is user and system time of all threads of the process (getrusage), bytes are those handed
 * to files. Moving the versions up between passes is taken out, from CPU and from time. A reopening
 * in the middle is in.
 *  - Transactions per second are over the time until the last group is durable: what follows is
 * done once, however long the run.
 *  - A group's latency is from its first write's start, its batches' making included, until it is
 *    durable.
 *  - Peak RSS is the highest resident memory (VmHWM, reset when the clock starts, so that the
 * loading of --before does not count but what it leaves in memory does) less what the process had
 * before it opened the database: the trace does not count. After the clock: the check, a clean
 * close, the reopening (timed), the check again.
 */
#ifndef BENCH_RUN_H
#define BENCH_RUN_H

#include "common.h"
#include "engine.h"
#include "keyspace.h"
#include "trace.h"

enum metric {
  M_TXNS_PER_S,
  M_CPU_US,
  M_P50,
  M_P99,
  M_P999,
  M_WAL,
  M_FLUSH,
  M_COMPACTION,
  M_ARENA,
  M_OTHER,
  M_TOTAL,
  M_LIVE,
  M_FILE,
  M_RSS,
  M_REOPEN_MS,
  M_RECOVER_MS,
  M_P_FLUSHES,
  M_GROUPS,
  M_WAL_SYNCS,
  M_WAL_SWITCHES,
  M_CHECKPOINTS,
  M_CHECKPOINT_SYNCS, /* of a WAL: a check point syncs none if all that it holds is durable */
  M_COUNT
};

/* What all runs share. */
struct plan {
  struct trace *trace;
  const struct keyspace_file *before; /* NULL: none */
  const struct model *model;          /* NULL: no check */
  const struct digest *expect;        /* NULL: none */
  uint64_t passes;
  uint64_t reopen_at; /* close and reopen ahead of this record of the first pass; 0: no */
  uint64_t turn;      /* groups of a turn; 0: one run after the other */
  bool recover;       /* measure opening after a kill, too (and check, if there is one pass) */
};

enum check_state { CHECK_NONE, CHECK_EQUAL, CHECK_FAILED };

struct result {
  bool ok;
  enum check_state check;
  double m[M_COUNT];
  struct digest_part after; /* after the reopening, if checked */
  char text[1024];          /* why it failed, if not ok */
};

/* One run of a round. */
struct entry {
  const struct mode *mode;
  char dir[4096 + 64];    /* of the database: made, or emptied */
  char label[64];         /* in the progress bar; empty: none */
  struct result *result;  /* out; its `ok` tells */
  double recover_ms;      /* run_round()'s own */
};

/* Run each in a process of its own, in turns. */
void run_round(struct entry *entries, size_t n, const struct plan *plan);

/* Remove the database in `dir` and the directory. A directory that this program did not make is
 * refused. */
int run_remove(const char *dir, struct fail *f);

#endif
