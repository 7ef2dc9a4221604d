/* SPDX-License-Identifier: Apache-2.0
 *
 * handoff_svg.h - the plots of the hand-off bench, by gnuplot: how latency is distributed, the
 * highest rate over the number of clients, CPU by thread.
 */
#ifndef BENCH_HANDOFF_SVG_H
#define BENCH_HANDOFF_SVG_H

#include "handoff_rounds.h"

#define SVG_PATH_MAX 3000u

/* Ahead of the runs: is there a gnuplot, and can its input be written beside `file`? 0, or -1 with
 * `f`. */
int handoff_svg_check(const char *file, struct fail *f);

/* Write `file`, and what gnuplot makes it from to `file`.gnuplot; from `n` > 0 outcomes in the
 * order of
 * --clients, whose highest rates were measured. 0, or -1 with `f`. */
int handoff_svg(const char *file, const struct handoff_plan *p, const struct handoff_outcome *o,
                size_t n, struct fail *f);

#endif
