/* SPDX-License-Identifier: Apache-2.0
 *
 * pg_log.h - the log of one PG in memory: entries in order of version, dups of those trimmed, and both by
 * request id; entries by object.
 *
 *       dups (at most max_dups)         entries
 *     +--------------------------+------------------------------+
 *     |  oldest ...              | tail <            ... head   |
 *     +--------------------------+------------------------------+
 *
 * `tail` is the version of the last entry trimmed, `head` that of the newest entry (tail if there is
 * none). Versions rise strictly from entry to entry; gaps are allowed.
 *
 * Nothing here writes: what a trim or a rewind means for the database is said through callbacks. A log
 * is used by one thread at a time (the owner of its PG).
 */
#ifndef OSDCORE_PG_LOG_H
#define OSDCORE_PG_LOG_H

#include "log_entry.h"

struct pg_log_limits {
  uint32_t keep;     /* entries that a trim leaves; 0: 2500 */
  uint32_t trim_min; /* a trim takes at least so many at once (batches); 0: 100 */
  uint32_t trim_max; /* and at most so many; 0: 1000 */
  uint32_t max_dups; /* 0: 3000 */
};

struct pg_log;

/* `limits` NULL or zero fields: the defaults. PGLOG_ENOMEM. */
int pg_log_new(struct pg_log **out, const struct pg_log_limits *limits, struct osd_eversion tail);
void pg_log_free(struct pg_log *l); /* NULL is fine */

/* Append an entry; the object's name is copied. PGLOG_EINVAL: its version is not above head;
 * PGLOG_ENOMEM leaves the log as it was. */
int pg_log_add(struct pg_log *l, const struct osd_log_entry *e, struct pglog_error *err);

/* Append a dup, when loading. PGLOG_EINVAL: its version is not above the last one's, or above tail. */
int pg_log_add_dup(struct pg_log *l, const struct osd_dup *d, struct pglog_error *err);

struct osd_eversion pg_log_head(const struct pg_log *l);
struct osd_eversion pg_log_tail(const struct pg_log *l);
size_t pg_log_entries(const struct pg_log *l);
size_t pg_log_dups(const struct pg_log *l);
/* Entry i from the oldest; valid until the log changes. */
const struct osd_log_entry *pg_log_entry(const struct pg_log *l, size_t i);
const struct osd_dup *pg_log_dup(const struct pg_log *l, size_t i);

/* Has this request been answered? Then its version and result. */
bool pg_log_find(const struct pg_log *l, struct osd_reqid r, struct osd_eversion *version,
                 int32_t *result);

/* The newest entry of an object that is not an error; NULL: none in the log. */
const struct osd_log_entry *pg_log_object(const struct pg_log *l, struct osd_slice object);

/* What a change of the log means for the keys. */
struct pg_log_sink {
  void *arg;
  void (*drop_entry)(void *arg, struct osd_eversion v);
  void (*add_dup)(void *arg, const struct osd_dup *d);
  void (*drop_dup)(void *arg, struct osd_eversion v);
};

/* Trim if the log is at least trim_min entries over `keep`: the oldest entries become dups, dups over
 * max_dups go. Returns how many entries went. PGLOG_ENOMEM (negative) leaves the log as it was. */
long pg_log_trim(struct pg_log *l, const struct pg_log_sink *sink);

/* Take off all entries above `to`, the newest first: `divergent` is called for each before it goes, then
 * drop_entry. PGLOG_EINVAL: `to` is below tail. */
int pg_log_rewind(struct pg_log *l, struct osd_eversion to, const struct pg_log_sink *sink,
                  void (*divergent)(void *arg, const struct osd_log_entry *e),
                  struct pglog_error *err);

/* Compare a replica's log with the authoritative one: calls `differs` once for each object whose
 * newest version is not the same in both, with that version ({0, 0}: the object is not in that
 * log above the point where the logs part). PGLOG_EINVAL: the logs have no version in common
 * (head of one is below the tail of the other), so that logs alone do not tell. PGLOG_ENOMEM. */
int pg_log_diff(const struct pg_log *replica, const struct pg_log *auth,
                void (*differs)(void *arg, struct osd_slice object, struct osd_eversion replica,
                                struct osd_eversion auth),
                void *arg, struct pglog_error *err);

#endif
