/* SPDX-License-Identifier: Apache-2.0
 *
 * handoff_pipeline.h - one run through the whole of osdcore, from submit to the answer.
 *
 * Each request is submitted when it is due, whatever became of the ones before: only the store's
 * own limits (requests in flight, their bytes) hold a client up. The hand-off is from a request's
 * entry into the queue to a worker. End to end is from when it was due to its answer, so that what
 * a client was held up counts. The database is opened and closed outside the clock.
 */
#ifndef BENCH_HANDOFF_PIPELINE_H
#define BENCH_HANDOFF_PIPELINE_H

#include "handoff_run.h"

/* handoff_run() calls it if the load has a directory for databases. 0, or -1 with `f`: any request
 * that was not done fails the run. */
int handoff_pipeline(int what, const struct handoff_load *l, struct handoff_result *out,
                     struct fail *f);

#endif
