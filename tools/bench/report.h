/* SPDX-License-Identifier: Apache-2.0
 *
 * report.h - the results as one JSON object, or as a table for people.
 *
 * Every figure is the median over the rounds. The pg log tax of a mode is its CPU per transaction
 * less that of mode `none` in the same run.
 */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "run.h"

struct report {
  const char *trace; /* its path */
  const char *before;
  uint64_t group; /* 0: as recorded */
  uint64_t passes;
  uint64_t transactions; /* per pass */
  double pglog_logical_bytes_per_txn;
  const struct mode **modes;
  size_t n_modes, rounds;
  const struct result *results; /* [mode * rounds + round] */
};

void report_json(const struct report *r, FILE *out);
void report_table(const struct report *r, FILE *out);

#endif
