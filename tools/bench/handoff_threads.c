/* SPDX-License-Identifier: Apache-2.0 */
#include "handoff_threads.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>

#define TASKS "/proc/self/task"

static const struct {
  const char *prefix;
  enum thread_kind kind;
} names[] = {
    {"client:", THREAD_CLIENT},    {"opq:", THREAD_WORKER},      {"osd:commit", THREAD_COMMITTER},
    {"pglog:", THREAD_CHECKPOINT}, {"rocksdb:", THREAD_ROCKSDB},
};

static enum thread_kind kind_of(const char *name) {
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
    if (strncmp(name, names[i].prefix, strlen(names[i].prefix)) == 0)
      return names[i].kind;
  return THREAD_OTHER;
}

/* False: there is no such thread any more. */
static bool name_of(const char *tid, char name[32]) {
  char path[300];
  snprintf(path, sizeof(path), TASKS "/%s/comm", tid);
  FILE *in = fopen(path, "r");
  if (!in)
    return false;
  bool ok = fgets(name, 32, in) != NULL;
  fclose(in);
  return ok;
}

/* The clock that pthread_getcpuclockid() makes of a thread (4: of one thread, 2: its time on a
 * processor), for one that is known by its number only. /proc has the same in steps of 10 ms. */
static bool cpu_of(const char *tid, double *us) {
  struct timespec ts;
  if (clock_gettime((clockid_t)((~(unsigned)atoi(tid) << 3) | 4 | 2), &ts) != 0)
    return false;
  *us = (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
  return true;
}

int threads_cpu(double us[THREAD_KINDS], struct fail *f) {
  char name[32];
  double one;
  DIR *d = opendir(TASKS);
  if (!d)
    return fail_set(f, TASKS ": %s", strerror(errno));
  memset(us, 0, THREAD_KINDS * sizeof(*us));
  for (struct dirent *e; (e = readdir(d)) != NULL;)
    if (e->d_name[0] != '.' && name_of(e->d_name, name) && cpu_of(e->d_name, &one))
      us[kind_of(name)] += one;
  closedir(d);
  return 0;
}
