/* SPDX-License-Identifier: Apache-2.0
 *
 * pglog_bench - compares ways to keep the pg log. Subcommands: replay, handoff, load.
 */
#include <signal.h>

#include "common.h"
#include "handoff.h"
#include "load.h"
#include "replay.h"

static void usage(FILE *out) {
  fprintf(out, "usage: pglog_bench COMMAND [options]; pglog_bench COMMAND --help\n"
               "commands:\n"
               "  replay   recorded transactions of an OSD through several modes\n"
               "  handoff  how long an operation takes from submit to a worker, by queue\n"
               "  load     how long osdcore takes to open a store with many PGs\n");
}

int main(int argc, char **argv) {
  /* A file size limit is a full disk like any other: an error to report, not a reason to die. */
  signal(SIGXFSZ, SIG_IGN);
  if (argc < 2) {
    usage(stderr);
    return 2;
  }
  if (strcmp(argv[1], "replay") == 0)
    return replay_main(argc - 1, argv + 1);
  if (strcmp(argv[1], "handoff") == 0)
    return handoff_main(argc - 1, argv + 1);
  if (strcmp(argv[1], "load") == 0)
    return load_main(argc - 1, argv + 1);
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
    usage(stdout);
    return 0;
  }
  fprintf(stderr, "pglog_bench: unknown command \"%s\"\n", argv[1]);
  usage(stderr);
  return 2;
}
