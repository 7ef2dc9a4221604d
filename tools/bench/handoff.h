/* SPDX-License-Identifier: Apache-2.0
 *
 * handoff.h - subcommand `handoff`: how long an operation takes from submit to a worker, by queue.
 */
#ifndef BENCH_HANDOFF_H
#define BENCH_HANDOFF_H

/* argv[0] is the subcommand. Returns the exit code: 0, 1 (a run failed), 2 (usage). */
int handoff_main(int argc, char **argv);

#endif
