/* SPDX-License-Identifier: Apache-2.0
 *
 * handoff_clients.h - threads that hand over operations, each when it is due, whatever became of
 * the ones before.
 */
#ifndef BENCH_HANDOFF_CLIENTS_H
#define BENCH_HANDOFF_CLIENTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "handoff_run.h"

struct client;

struct clients {
  const struct handoff_load *l;
  /* Hand over operation i, which was due at `due_ns` (as fast as they can: now). Called by client
   * i % l->clients, in order; other than 0 ends this client. */
  int (*hand_over)(void *arg, uint64_t i, uint64_t due_ns);
  void (*ready)(void *arg, uint64_t i); /* called ahead of it, untimed; NULL: nothing */
  void *arg;

  uint64_t start_ns;  /* out: operation i is due i + 1 gaps later */
  uint64_t submit_ns; /* out: in hand_over(), all together */
  uint64_t cpu_ns;    /* out: of the clients, all together */

  struct client *client; /* handoff_clients.c's own, as is what follows */
  atomic_uint go;
};

/* Start the threads, which wait. 0, or -1 with `f` and none left. */
int clients_start(struct clients *c, struct fail *f);

/* Let them run, and wait until they have ended. What hand_over() returned where it was not 0. */
int clients_run(struct clients *c);

/* Pin a thread to the nth processor that this process may use; the first, if there are not so
 * many. */
void thread_pin(pthread_t t, int nth);
int nth_cpu(int nth);

#endif
