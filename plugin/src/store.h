/* SPDX-License-Identifier: Apache-2.0
 *
 * store.h - the log store of one database: all PGs, staged changes over the arena, recovery, check
 * points, views. Knows nothing of RocksDB: the owner of the WAL files (the fs shim; a test) drives it
 * through this header and answers through struct store_wal_ops.
 *
 * Life of a database directory:
 *   store_open      at LOCK, before RocksDB reads anything: arena, then every WAL record after its
 *                   check point, through the same code as live (I8)
 *   store_wal_*     each WAL file that RocksDB creates, append by append
 *   store_attach    a door (facade) tells how to ask for RocksDB's latest sequence
 *   store_released  RocksDB deletes a WAL: handed over until a check point covers it (I3)
 *   store_detach    the door is about to close RocksDB
 *   store_close     at UNLOCK
 *
 * Locks, in the order they may be taken:
 *   ckpt_mutex   one check point at a time; held through its I/O
 *   mutex        PG maps, leaf index, views, reclaim list. Never held over I/O.
 *   queue_mutex  the pending queue between the WAL appender and those who apply, WAL list, poison
 * The WAL appender (inside RocksDB's write path) takes only queue_mutex.
 */
#ifndef PGLOG_STORE_H
#define PGLOG_STORE_H

#include "arena.h"
#include "rule.h"

#ifdef __cplusplus
extern "C" {
#endif

struct store;

/* ---------------------------------------------------------------------------------------------- */
/* What the store asks of the owner of the WAL files                                              */

struct store_wal_file {
  uint64_t number;
  uint64_t size; /* bytes */
  bool archived; /* in archive/: RocksDB does not read it when it recovers */
};

/* All return 0 or a PGLOG_* code with *err filled, which must name the file. A WAL may be in the WAL
 * directory, handed over (hidden from RocksDB), or in archive/: the owner knows where. */
struct store_wal_ops {
  void *arg;
  /* Every WAL file on disk, those in archive/ included, ascending by number, each once. *files is
   * malloc'ed; the store frees it. */
  int (*list)(void *arg, struct store_wal_file **files, size_t *n, struct pglog_error *err);
  /* Read up to `len` bytes at `off`; *got < len only at the end of the file. */
  int (*read)(void *arg, uint64_t wal, uint64_t off, void *buf, size_t len, size_t *got,
              struct pglog_error *err);
  /* Write the bytes [from, end of file) over themselves in place, and fsync the file (I5). */
  int (*rewrite)(void *arg, uint64_t wal, uint64_t from, struct pglog_error *err);
  /* Save the bytes [at, end of file) to NNN.log.cut (fsynced, directory too), then truncate the WAL
   * to `at` and fsync it. An existing .cut of that name gets a suffix .1, .2, ... */
  int (*cut)(void *arg, uint64_t wal, uint64_t at, struct pglog_error *err);
  /* fsync the WAL file. For a file that is open for writing this may run beside an append. */
  int (*sync)(void *arg, uint64_t wal, struct pglog_error *err);
  /* fsync the WAL directory. */
  int (*sync_dir)(void *arg, struct pglog_error *err);
  /* Really delete a WAL that store_released() handed over. */
  int (*remove)(void *arg, uint64_t wal, struct pglog_error *err);
  /* fsync the directory of the arena file (after format). */
  int (*sync_arena_dir)(void *arg, struct pglog_error *err);
  /* A line for the log: 0 info, 1 warning, 2 error. Any thread. */
  void (*log)(void *arg, int level, const char *text);
};

/* rocksdb::WALRecoveryMode's values. */
enum store_recovery_mode {
  STORE_TOLERATE_TAIL = 0,
  STORE_ABSOLUTE = 1,
  STORE_POINT_IN_TIME = 2,
  STORE_SKIP_ANY = 3, /* refused */
};

struct store_config {
  struct pglog_options options; /* checked; `arena` is a full path (or io is set) */
  struct store_wal_ops ops;     /* must be callable until store_close() has returned */
  int recovery_mode;            /* enum store_recovery_mode */
  bool has_current;             /* the directory has a CURRENT file: RocksDB has a database there */
  bool has_guard;               /* that database has the guard column family */
  char identity[SUPER_IDENTITY_MAX + 1]; /* its IDENTITY; "" if unknown */
};

/* ---------------------------------------------------------------------------------------------- */
/* Life                                                                                           */

/* Open the arena and recover. Nothing is written to the arena, so no free space is needed. An absent
 * arena is fine for a new or plain database (it is made when the first WAL is created), but refused if
 * the guard is present or a WAL holds blobs: PGLOG_EMISMATCH. Errors name what they are about:
 *   PGLOG_EMISMATCH  other rule, version, database (identity); arena of a deleted database (no
 *                    CURRENT): `format=1` sets it aside; missing arena; a WAL listed but missing
 *   PGLOG_ECORRUPT   superblock, table, or WAL damage that may not be cut, with file and offset
 * Leaves are not read here: a damaged leaf shows when it is used. */
int store_open(const struct store_config *c, struct store **out, struct pglog_error *err);

/* Close. If no error has poisoned the store, and a WAL was ever created, a last check point is taken
 * first (failure is logged, not returned: the WALs are still there) and handed-over WALs that it
 * covers are deleted. Views must have been closed. NULL is fine. */
void store_close(struct store *s);

/* The database is being destroyed (CURRENT deleted under the lock): invalidate both superblock slots;
 * no check point follows. */
int store_destroyed(struct store *s, struct pglog_error *err);

/* The database's IDENTITY, once known (new database). Kept for the next superblock. */
void store_set_identity(struct store *s, const char *identity);

/* ---------------------------------------------------------------------------------------------- */
/* WAL files, driven by the fs shim                                                               */

/* One WAL file that is open for appending. */
struct store_wal;

/* Before RocksDB's new WAL `number` is created in the file system: every older WAL and the directory
 * is synced (I5); the first time, the arena is made if it is absent and check points are allowed from now on.
 * PGLOG_EINVAL: number at or below the highest known one. PGLOG_EPOISONED. On success the caller creates the file;
 * if that fails it calls store_wal_abandon(). */
int store_wal_create(struct store *s, uint64_t number, struct store_wal **out,
                     struct pglog_error *err);
void store_wal_abandon(struct store_wal *w);

/* Around one append of the underlying file. begin() parses the bytes, checks every record that they
 * complete and queues its blobs, not yet committed; end() commits them (ok) or poisons the store with
 * *err. If begin() fails, the append must not reach the file and the store is poisoned:
 *   PGLOG_ENOTSUP  a blob while no door is open; a record of wal_compression; a key of the rule outside a
 *                  blob (named); two-phase markers with keys of the rule; Merge etc. likewise
 *   PGLOG_ECORRUPT bytes that are not WAL records, a malformed blob
 * Calls for one database come from one thread at a time (RocksDB's WAL writer). The bytes are copied as needed. */
int store_wal_append_begin(struct store_wal *w, const void *data, size_t n,
                           struct pglog_error *err);
int store_wal_append_end(struct store_wal *w, bool ok, struct pglog_error *err);

/* Around one fsync of the underlying file, made by RocksDB. begin: *offset = what it will cover;
 * *needless is set when the WAL is no longer the newest one and all of it is durable already (then do
 * not sync and do not call end). end(ok): durable, or poisoned with *err. */
int store_wal_sync_begin(struct store_wal *w, uint64_t *offset, bool *needless,
                         struct pglog_error *err);
int store_wal_sync_end(struct store_wal *w, uint64_t offset, bool ok, struct pglog_error *err);

/* RocksDB has closed the file (also after errors). Frees w. */
void store_wal_close(struct store_wal *w);

/* RocksDB deletes WAL `number` (or has archived it: `archived`, then it is renamed, not to be removed
 * by the store, only tracked). The WAL is handed over: hidden by the shim, deleted by ops.remove after
 * a check point that covers it, now or at the next open. Never blocks on I/O. */
void store_released(struct store *s, uint64_t number, bool archived);

/* RocksDB deletes an archived WAL. True: it is covered by a durable check point and may go at once. */
bool store_may_remove(struct store *s, uint64_t number);

/* MANIFEST appends and everything else that must stop after a failure ask here: PGLOG_EPOISONED with
 * the first error's text, else 0. Cheap. */
int store_check(struct store *s, struct pglog_error *err);

/* An error below that must stop the store (first one wins). */
void store_poison(struct store *s, const struct pglog_error *err);

/* An option that the design refuses was found (OPTIONS file). Appends fail with it from now on. */
void store_refuse(struct store *s, const struct pglog_error *err);

/* ---------------------------------------------------------------------------------------------- */
/* Doors                                                                                          */

/* RocksDB's latest visible sequence number; called with store locks held, must not call back. */
typedef uint64_t (*store_latest_fn)(void *arg);

/* Open a door: blobs are accepted from now on. cf_id: id of the rule's column family. Compares the
 * sequence reached by recovery with RocksDB's: PGLOG_ECORRUPT if RocksDB has less. PGLOG_EBUSY: a
 * door is open. PGLOG_EMISMATCH: the superblock has another column family id. */
int store_attach(struct store *s, uint32_t cf_id, store_latest_fn latest, void *arg,
                 struct pglog_error *err);

/* Before the door closes RocksDB: takes a check point so that a clean close leaves little to
 * recover, then stops calling `latest`. Appends that RocksDB makes while closing are still followed. */
void store_detach(struct store *s);

/* The rule in force (after open). Valid until close. */
const struct pglog_rule *store_rule(const struct store *s);

/* For blob headers: blobs observed so far, and a tag that rises by one a call (mod 256). */
uint64_t store_blobs_observed(struct store *s);
uint8_t store_next_tag(struct store *s);

/* Before a write that holds pg log operations: may sleep while staged memory is over twice the
 * budget. PGLOG_EBUSY when it is over four times the budget: the text says how much is staged, the limit, and why
 * check points do not catch up (e.g. the full arena). PGLOG_EPOISONED.
 * `trims`: all of them are deletes. These are slowed, but not refused: they are what makes room. */
int store_throttle(struct store *s, bool trims, struct pglog_error *err);
/* Is it time to call store_throttle()? Cheap. */
bool store_throttles(struct store *s);

/* A writer's RocksDB write has returned OK: its record, and all before, are resolved. `only_blob`: the
 * batch held nothing but the blob with `tag` (it took no sequence number). Applies what is resolved, if no one else is at it. */
void store_written(struct store *s, uint8_t tag, bool only_blob);

/* ---------------------------------------------------------------------------------------------- */
/* Reading. Keys are store keys.                                                                  */

/* A consistent view. While it is open, nothing that it can see is reused. */
struct store_view;

/* Open a view that matches a RocksDB sequence exactly. `pin` is called with the store's mutex held: it
 * takes RocksDB's snapshot (and may create the iterator) and returns its sequence number; the view
 * then holds exactly the records up to it. pin == NULL: everything resolved by now. */
typedef uint64_t (*store_pin_fn)(void *arg);
int store_view_open(struct store *s, store_pin_fn pin, void *arg, struct store_view **out,
                    struct pglog_error *err);
void store_view_close(struct store_view *v); /* NULL is fine */

/* Read one key, at the view or (v NULL) as of now. *value is malloc'ed (free()).
 * PGLOG_ENOTFOUND (err not filled), PGLOG_ECORRUPT with the PG's name, PGLOG_EIO. */
int store_get(struct store *s, struct store_view *v, struct slice key, uint8_t **value,
              size_t *size, struct pglog_error *err);

/* Iterator over a view, both directions, across all PGs. One thread at a time. The view must outlive it.
 * Bounds: lower included, upper excluded; data == NULL: none; copied. */
struct store_iter;
int store_iter_open(struct store_view *v, struct slice lower, struct slice upper,
                    struct store_iter **out, struct pglog_error *err);
void store_iter_close(struct store_iter *it); /* NULL is fine */
bool store_iter_valid(const struct store_iter *it);
void store_iter_seek_first(struct store_iter *it);
void store_iter_seek_last(struct store_iter *it);
void store_iter_seek(struct store_iter *it, struct slice key);          /* first >= key */
void store_iter_seek_for_prev(struct store_iter *it, struct slice key); /* last <= key */
void store_iter_next(struct store_iter *it);
void store_iter_prev(struct store_iter *it);
/* Of the present entry; valid until the iterator moves. */
struct slice store_iter_key(const struct store_iter *it);
struct slice store_iter_value(const struct store_iter *it);
/* 0, or why the iterator is not valid: PGLOG_ECORRUPT (names the PG), PGLOG_EIO. */
int store_iter_status(const struct store_iter *it, struct pglog_error *err);

/* ---------------------------------------------------------------------------------------------- */
/* Check points and figures                                                                       */

/* Take a check point of everything resolved now, and wait for it. PGLOG_EFULL, PGLOG_EIO, PGLOG_EPOISONED,
 * PGLOG_ECORRUPT (a damaged leaf that had to be rewritten). Not from inside RocksDB callbacks. */
int store_checkpoint(struct store *s, struct pglog_error *err);

/* Figures since open, as text lines "name value\n" into `out` (NUL-terminated, cut at cap). Returns
 * the full length. */
size_t store_stats(struct store *s, char *out, size_t cap);

/* One PG's figures in the same form. PGLOG_ENOTFOUND if the store has nothing of it. */
int store_pg_stats(struct store *s, struct slice pgid, char *out, size_t cap,
                   struct pglog_error *err);

/* Highest WAL number known, 0 for none. */
uint64_t store_highest_wal(struct store *s);

#ifdef __cplusplus
}
#endif
#endif
