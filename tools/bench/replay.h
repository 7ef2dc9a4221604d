/* SPDX-License-Identifier: Apache-2.0
 *
 * replay.h - subcommand `replay`: recorded transactions through several modes, compared.
 */
#ifndef BENCH_REPLAY_H
#define BENCH_REPLAY_H

/* argv[0] is the subcommand. Returns the exit code: 0, 1 (a run or a check failed), 2 (usage). */
int replay_main(int argc, char **argv);

#endif
