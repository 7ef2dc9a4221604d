/* SPDX-License-Identifier: Apache-2.0
 *
 * handoff_threads.h - the CPU time of this process by kind of thread, as `top -H` shows it.
 */
#ifndef BENCH_HANDOFF_THREADS_H
#define BENCH_HANDOFF_THREADS_H

#include "common.h"

/* Known by their names. */
enum thread_kind {
  THREAD_CLIENT,
  THREAD_WORKER,
  THREAD_COMMITTER,
  THREAD_CHECKPOINT, /* of the log store */
  THREAD_ROCKSDB,
  THREAD_OTHER, /* the main thread, the watchdog, ... */
  THREAD_KINDS
};

/* us of CPU that the threads of each kind have used since they were started; those that have ended
 * are not in it. 0, or -1 with `f`. */
int threads_cpu(double us[THREAD_KINDS], struct fail *f);

#endif
