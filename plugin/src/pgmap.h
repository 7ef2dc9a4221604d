/* SPDX-License-Identifier: Apache-2.0
 *
 * pgmap.h - the ordered, multi-version map of one PG's staged changes. In memory, no locks (the
 * store serialises), no I/O.
 *
 * Keys are names (store key behind the PG id). The map keeps pointers to key and value bytes, which
 * belong to the caller and outlive the map; it copies neither. Every change carries an ordinal, its
 * place in WAL order; ordinals never fall. Of several changes with one ordinal the last one counts.
 * A reader at ordinal `at` sees of each key the newest version with ordinal <= at. Older versions
 * are kept only while an open view can see them: each change is given `view_max`, the highest
 * ordinal any open view reads at (0: no view), and drops the version it replaces if that is newer
 * than view_max. So readers are open views, whose ordinals are below those of all later changes, or
 * read at the newest ordinal (UINT64_MAX will do).
 *
 * Structure: a row of chunks of sorted entries. The places of the last few changes are remembered
 * (fingers), so that the five ascending streams of a PG (log puts, log deletes, dup puts, dup
 * deletes, info records) each cost at most two comparisons of their own and O(1) amortised; other
 * places are found by binary search. A full chunk is split where an ascending stream goes on, so
 * that the stream leaves full chunks, in the middle of the key order, too.
 *
 * A delete is kept as a tombstone: layers below may hold the key. A range delete removes the map's
 * own entries in the range (those that views can see turn invisible to later readers instead) and
 * is remembered as a mask over the layers below. So a visible entry is newer than every mask over
 * it.
 *
 * Masks are kept disjoint, each with the first ordinal at which its keys are hidden, and neighbours
 * are joined when no open view reads between their ordinals: a log that is trimmed by a range
 * delete at each write has one mask.
 */
#ifndef PGLOG_PGMAP_H
#define PGLOG_PGMAP_H

#include "util.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PGMAP_TOMBSTONE 0xffffffffu /* vlen of a delete */

struct pgmap_ver {
  const uint8_t *val;
  uint32_t vlen; /* PGMAP_TOMBSTONE: deleted */
  uint64_t ord;
  struct pgmap_ver *older; /* next older version, or NULL */
};

struct pgmap_entry {
  const uint8_t *key;
  uint32_t klen;
  struct pgmap_ver v; /* newest version */
};

struct pgmap;
int pgmap_new(struct pgmap **out);
void pgmap_free(struct pgmap *m); /* NULL is fine */

/* PGLOG_ENOMEM leaves the map as it was. */
int pgmap_put(struct pgmap *m, struct slice key, struct slice value, uint64_t ord,
              uint64_t view_max);
int pgmap_delete(struct pgmap *m, struct slice key, uint64_t ord, uint64_t view_max);
/* [begin, end) of names; end.data == NULL: no end. An empty range is a no-op. The mask keeps
 * pointers to the bounds, too. */
int pgmap_delete_range(struct pgmap *m, struct slice begin, struct slice end, uint64_t ord,
                       uint64_t view_max);

enum pgmap_found {
  PGMAP_NONE, /* this map says nothing: ask the layer below */
  PGMAP_VALUE,
  PGMAP_DELETED, /* tombstone, or masked */
};
/* *value is set only for PGMAP_VALUE. */
enum pgmap_found pgmap_get(struct pgmap *m, struct slice key, uint64_t at, struct slice *value);

/* Is a key of the layers below hidden by a range delete, at this ordinal? (Point tombstones are
 * entries and not counted here.) */
bool pgmap_masked(struct pgmap *m, struct slice key, uint64_t at);

/* Masks in ascending order of begin at ordinal `at`, coalesced where they overlap or touch: i from
 * 0; false behind the last. A walk over all of them is linear: the map remembers its place. For the
 * check point, which drops whole leaves below a mask. */
bool pgmap_mask(struct pgmap *m, size_t i, uint64_t at, struct slice *begin, struct slice *end,
                bool *no_end);

/* Cursor at ordinal `at`: stands on entries with a version visible at `at`, tombstones included.
 * Any change of the map may move entries: the cursor notices (pgmap counts its changes) and finds
 * its place again by its key, which stays valid as long as the caller's key bytes do. If its entry
 * was removed, next and prev go on from where the key would be. */
struct pgmap_cursor {
  struct pgmap *m;
  uint64_t at;
  uint64_t changes; /* of the map when the place below was found */
  size_t chunk, slot;
  bool keys_only; /* a hint: the caller looks at no values; may be set after pgmap_cursor_init() */
  bool valid;
  struct slice key;   /* of the present entry */
  struct slice value; /* of the visible version */
  bool deleted;       /* visible version is a tombstone */
  uint64_t ord;       /* its ordinal */
};
void pgmap_cursor_init(struct pgmap_cursor *c, struct pgmap *m, uint64_t at);
void pgmap_cursor_first(struct pgmap_cursor *c);
void pgmap_cursor_last(struct pgmap_cursor *c);
void pgmap_cursor_seek(struct pgmap_cursor *c, struct slice key);          /* first >= key */
void pgmap_cursor_seek_for_prev(struct pgmap_cursor *c, struct slice key); /* last <= key */
void pgmap_cursor_next(struct pgmap_cursor *c);                            /* only when valid */
void pgmap_cursor_prev(struct pgmap_cursor *c);                            /* only when valid */

/* Ask the processor for the memory that the next change will most likely touch, one level of pointers a
 * step (0 to PGMAP_PREFETCH_STEPS - 1). Each step reads what the one before asked for, so that a caller
 * with many maps ahead of it goes through all of them step by step. */
#define PGMAP_PREFETCH_STEPS 4
void pgmap_prefetch(const struct pgmap *m, int step);

/* Remove an entry with all its versions, e.g. from a map used as a directory. False: not there. */
bool pgmap_erase(struct pgmap *m, struct slice key);

/* Entries (keys, those included that only views can see), memory used by the map itself in bytes
 * (not the keys and values), changes so far. */
size_t pgmap_entries(const struct pgmap *m);
size_t pgmap_memory(const struct pgmap *m);
uint64_t pgmap_changes(const struct pgmap *m);

#ifdef __cplusplus
}
#endif
#endif
