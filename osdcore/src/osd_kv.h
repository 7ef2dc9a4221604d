/* SPDX-License-Identifier: Apache-2.0
 *
 * osd_kv.h - osd over any store, with its threads or by hand; for osd_open() and for tests.
 */
#ifndef OSDCORE_OSD_KV_H
#define OSDCORE_OSD_KV_H

#include "kv.h"
#include "osdcore/osd.h"

/* Open over a store, which is closed in any case: at osd_close(), or on failure. `manual` starts no
 * threads but those for loading: the caller runs osd_step_worker() and osd_step_commit(); what
 * waits does it itself. */
int osd_open_kv(struct osd **out, const struct osd_config *c, struct kv *kv, bool manual,
                struct pglog_error *err);
/* Take a batch from a shard as worker `i` of shards * threads, and run it. Returns how many. */
uint32_t osd_step_worker(struct osd *o, uint32_t i);
/* Write and answer one group of at most `most` requests, as the committer does. Returns how many.
 */
uint32_t osd_step_commit(struct osd *o, uint32_t most);

#endif
