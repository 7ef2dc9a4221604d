/* SPDX-License-Identifier: Apache-2.0
 *
 * handoff_rounds.h - the runs of one number of clients, in turns, and what is printed of them.
 */
#ifndef BENCH_HANDOFF_ROUNDS_H
#define BENCH_HANDOFF_ROUNDS_H

#include "handoff_run.h"

extern const char *const handoff_names[HANDOFF_WHATS]; /* "single", ... */

struct handoff_plan {
  bool use[HANDOFF_WHATS];
  uint64_t rounds;          /* up to HANDOFF_ROUNDS_MAX */
  struct handoff_load load; /* all but clients; the gap, if there is no share */
  double share;             /* of the highest rate that sharded keeps up with; 0: the gap counts */
  bool max_rate;            /* measure the highest rate of each, too */
};

struct handoff_outcome {
  struct handoff_load load;
  double capacity; /* operations per second that sharded keeps up with; 0: not measured */
  bool max_rate;   /* it was measured */
  bool has[HANDOFF_WHATS];
  struct handoff_result r[HANDOFF_WHATS]; /* medians */
};

/* Run each `rounds` times, in turns. futex is left out if there are several clients. 0, or -1 with
 * `f`. */
int handoff_rounds(const struct handoff_plan *p, uint32_t clients, struct handoff_outcome *o,
                   struct fail *f);

/* To stdout: a table, or a JSON object without a newline. */
void handoff_table(const struct handoff_plan *p, const struct handoff_outcome *o);
void handoff_json(const struct handoff_outcome *o);

#endif
