/* SPDX-License-Identifier: Apache-2.0
 *
 * load.h - subcommand `load`: how long osdcore takes to open a store with many PGs.
 */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

/* argv[0] is the subcommand. Returns the exit code: 0, 1 (a run failed), 2 (usage). */
int load_main(int argc, char **argv);

#endif
