/* SPDX-License-Identifier: Apache-2.0
 *
 * osd_internal.h - what the files of osd share.
 *
 *   osd.c         open, close, submit, blocking forms
 *   osd_request.c a request's life: limits, list of those in flight, answer, drain
 *   osd_ops.c     what each operation does to its object and its PG's log
 *   osd_object.c  keys and records of objects, their blocks, and the overlay
 *   osd_commit.c  the committer
 *   osd_pg.c      from hash to PG; holding a PG; create, split, delete
 *   osd_list.c    listing PGs, and the objects of one
 *   osd_load.c    new databases, loading and checking old ones
 *   osd_dump.c    figures, dumps, watchdog
 *
 * Who owns what
 *
 * A request belongs to whoever has it: the submitting thread, the op queue, the worker that owns the
 * PG, the committer, in turn. One that changes nothing is answered by the worker if its PG has
 * nothing pending, else by the committer, in the place where it was queued: nobody is shown what a
 * crash can take back, and answers come in PG order.
 *
 * A PG's log and info belong to the owner of the PG (opq.h), or to a thread that holds the PG
 * (pg_hold()), when nothing of it is in flight. A PG's overlay and figures are under pg->lock: the
 * owner adds, the committer drops what has been written. The owner looks into the overlay before it
 * reads the store: what is not there any more is in the store by then.
 *
 * The store (kv) is written by the committer alone, and read by anybody.
 *
 * PGs and directories live until close, so that a pointer to one is never stale in memory; whether
 * a PG still has a hash is asked again once the request is counted in pg->in_flight (pg_route()).
 *
 * Locks, in order: pgs_lock (PG administration, long) > route_lock (held requests, changes of the
 * directory) > the op queue's, commit.lock. drain_lock > stripe.lock. pg->lock, limit_lock and
 * slow.lock have none below them. No thread holds one while it calls back.
 *
 * A crash
 *
 * Before a group's write: nothing of its requests is there, and none was answered. In it or after
 * it: each request's batch is there whole or not at all, and none without those before it, since a
 * group is one WriteBatch and groups are written one after the other; log and objects therefore
 * always agree. Create, split and delete are one batch, too. A failed write leaves memory ahead of
 * the disk: from then on everything is refused, until reopen.
 */
#ifndef OSDCORE_OSD_INTERNAL_H
#define OSDCORE_OSD_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "opq_internal.h"
#include "osd_kv.h"
#include "pg_log.h"

#define uthash_fatal(msg) abort() /* not reached: HASH_NONFATAL_OOM */
#define HASH_NONFATAL_OOM 1
#define uthash_nonfatal_oom(elt) ((elt)->lost = true)
#include <uthash.h>

#define OSD_BLOCK 4096u
#define OSD_STRIPES 16u
#define OSD_GROUP_BYTES (16u << 20) /* a group ends with the transaction that reaches this */
#define OSD_PG_NAME 16              /* "1.<hex>" and its NUL */

struct request;

/* --- objects -----------------------------------------------------------------------------------
 */

struct object_state {
  bool exists;
  uint64_t size;
  struct osd_eversion version; /* of the last change */
  uint64_t mtime_ns;
};

/* Blocks first .. first + n - 1 of an object as one request has made them. */
struct layer {
  struct layer *older; /* of the same object */
  uint64_t first, n;
  uint8_t *data; /* n blocks; NULL: zeros, and not in the store */
};
#define OSD_LAYERS 3

/* An object that requests have changed and the store does not have yet. */
struct overlay {
  UT_hash_handle hh;
  bool lost;         /* uthash had no memory for it */
  uint32_t requests; /* uncommitted ones that changed it */
  struct object_state st;
  struct layer *newest; /* looked through from here: the first that has a block tells */
  size_t name_size;
  uint8_t name[];
};

/* --- PGs ---------------------------------------------------------------------------------------
 */

struct pg {
  struct opq_pg q;
  uint32_t id, bits;
  char name[OSD_PG_NAME];
  struct pg *next; /* all, for close; pgs_lock */
  bool gone;       /* deleted; pgs_lock */

  struct pg_log *log;   /* the owner's */
  struct osd_info info; /* likewise; `objects` counts uncommitted changes */

  pthread_mutex_t lock;
  struct overlay *overlay;
  struct osd_pg_info figures;

  /* Requests queued for the committer and not answered. The owner adds; it sees 0 only if all are
   * answered (acquire; the committer's release comes after the callback). */
  atomic_uint pending;
  /* Requests that are in the op queue or further, and not answered. With `held` it orders a submit
   * and a pg_hold(): each first says what it does, then looks at the other; both seq_cst. */
  atomic_uint in_flight;
  atomic_bool held;                        /* changed under route_lock */
  struct request *held_first, **held_last; /* route_lock */
  bool failed; /* the committer's: a transaction of it was not written */
};

/* From the low bits of a hash to its PG. Entries change in place, under route_lock; readers take
 * no lock (acquire, paired with the release that publishes a PG). */
struct pg_dir {
  struct pg_dir *older; /* kept until close */
  uint32_t bits;
  _Atomic(struct pg *) pg[];
};

/* --- requests ----------------------------------------------------------------------------------
 */

struct request {
  struct opq_op q; /* must be first */
  struct osd *o;
  struct pg *pg;
  struct request *next;         /* held, or queued for commit */
  struct request *left, *right; /* in flight: the stripe's list */
  uint64_t seq;                 /* order of submission */
  uint32_t stripe, hash;
  uint8_t op;
  bool internal; /* a batch of PG administration: not a client's, not in flight */
  bool queued;   /* for the committer: counted in pg->pending */
  bool reported; /* by the watchdog; stripe.lock */
  struct osd_slice name;
  const uint8_t *data;
  uint8_t *own_data;              /* to be freed; NULL: keep_data */
  uint64_t offset, length, bytes; /* bytes: what counts against max_bytes */
  struct osd_reqid id;
  void (*done)(void *arg, struct osd_result *r);
  void *arg;
  _Atomic(uint64_t) at[OSD_STAGES]; /* relaxed: for dumps */

  /* Filled in while it runs. */
  struct osd_result res;
  struct kv_batch batch;
  struct overlay *overlay;
  struct layer layer[OSD_LAYERS];
  uint32_t n_layers;
  uint8_t name_bytes[];
};

/* Requests in flight, oldest first. */
struct stripe {
  _Alignas(OPQ_LINE) pthread_mutex_t lock;
  struct request *first, *last;
};

struct commit {
  pthread_mutex_t lock;
  pthread_cond_t work;
  struct request *first, **last;
  bool stop, started, waiting;
  pthread_t thread;
  struct kv_batch group; /* the committer's */
};

struct slow_request;
struct slow {
  pthread_mutex_t lock;
  struct slow_request *v; /* slowest first */
  uint32_t n, keep;
  atomic_ullong least; /* ns that a request has to be over to get in; relaxed: a hint */
};

struct watchdog {
  pthread_mutex_t lock;
  pthread_cond_t stopped;
  bool stop, started;
  pthread_t thread;
};

struct osd {
  struct osd_config c;
  char *path;
  bool manual; /* no threads */
  struct kv kv;
  struct opq *q;

  pthread_mutex_t pgs_lock;
  struct pg *pgs;
  uint32_t n_pgs;
  pthread_mutex_t route_lock;
  pthread_cond_t idle; /* a held PG has nothing in flight */
  _Atomic(struct pg_dir *) dir;

  struct stripe *stripes;
  atomic_ullong seq;

  /* Limits: see limit_take(). */
  atomic_ullong ops_now, bytes_now;
  atomic_uint limit_waiters;
  pthread_mutex_t limit_lock;
  pthread_cond_t room;

  atomic_uint drainers;
  pthread_mutex_t drain_lock;
  pthread_cond_t drained;

  struct commit commit;
  /* Set once, by the committer, after `poison` is filled (release; acquire to read it). */
  atomic_bool poisoned;
  struct pglog_error poison;

  struct slow slow;
  struct watchdog watchdog;
  atomic_ullong requests, writes, reads, duplicates, errors, groups, group_max, waits, stuck;
  uint64_t load_ns, load_entries;
};

/* --- osd.c -------------------------------------------------------------------------------------
 */

int osd_config_check(const struct osd_config *c, struct pglog_error *err);
__attribute__((format(printf, 2, 3))) void osd_log(struct osd *o, const char *fmt, ...);
uint64_t osd_wall_ns(void);

/* --- osd_request.c -----------------------------------------------------------------------------
 */

int request_new(struct osd *o, const struct osd_request *r, struct request **out,
                struct pglog_error *err);
void request_free(struct request *r);
void request_stage(struct request *r, enum osd_stage stage);
/* Is this thread in a callback? */
bool request_answering(void);
/* Count a request against the limits, or wait, or PGLOG_EBUSY. */
int limit_take(struct osd *o, uint64_t bytes, int flags, struct pglog_error *err);
void limit_give(struct osd *o, uint64_t bytes);
void in_flight_add(struct osd *o, struct request *r);
void in_flight_remove(struct osd *o, struct request *r);
/* Call back, and be done with it. */
void request_answer(struct request *r);

/* --- osd_ops.c ---------------------------------------------------------------------------------
 */

/* Run a request under its PG's ownership: fills res, batch and layers. */
void osd_execute(struct osd *o, struct request *r);
/* opq_config.run */
void osd_run(void *arg, struct opq_op *op);

/* --- osd_object.c ------------------------------------------------------------------------------
 */

#define OSD_KEY_MAX (2 + 4 + 2 + OSD_OBJECT_MAX + 8)
uint32_t osd_reverse_bits(uint32_t v);
size_t object_key(uint8_t *out, uint32_t hash, struct osd_slice name);
size_t block_key(uint8_t *out, uint32_t hash, struct osd_slice name, uint64_t block);
/* Bounds of the keys of a PG's objects ('o') or blocks ('b'). */
size_t hash_bound(uint8_t *out, char kind, uint32_t id, uint32_t bits, bool end);
size_t object_put(uint8_t *out, const struct object_state *st);
int object_get(struct osd_slice value, struct object_state *st, struct pglog_error *err);
#define OSD_OBJECT_RECORD_MAX 40

/* The object as the request finds it. */
int object_load(struct request *r, struct object_state *st, struct pglog_error *err);
/* Blocks as the request finds them; `out` has room for n. */
int object_blocks(struct request *r, uint64_t first, uint64_t n, uint8_t *out,
                  struct pglog_error *err);
/* Make sure that the object has its place in the overlay; PGLOG_ENOMEM. */
int overlay_reserve(struct request *r, struct pglog_error *err);
/* Put the request's layers and the object's new state on top. */
void overlay_add(struct request *r, const struct object_state *st);
/* The request is in the store (or will never be): take its layers out. */
void overlay_drop(struct request *r);

/* --- osd_commit.c ------------------------------------------------------------------------------
 */

int commit_start(struct osd *o, bool manual, struct pglog_error *err);
void commit_stop(struct osd *o);
void commit_queue(struct request *r);
/* Write a batch through the committer and wait. */
int commit_wait(struct osd *o, struct pg *pg, struct kv_batch *b, struct pglog_error *err);
int osd_poisoned(struct osd *o, struct pglog_error *err);

/* --- osd_pg.c ----------------------------------------------------------------------------------
 */

struct pg *pg_new(struct osd *o, uint32_t id, uint32_t bits);
void pg_free(struct pg *pg);
/* These three under pgs_lock, or when nobody else is there. */
/* Make room for a PG of so many bits. PGLOG_ENOMEM. */
int dir_reserve(struct osd *o, uint32_t bits, struct pglog_error *err);
/* The PG that has some of these hashes; NULL: none. */
struct pg *dir_taken(struct osd *o, uint32_t id, uint32_t bits);
/* Add it to the list of all, and give it its hashes (dir_reserve() was called for its bits). */
void pg_publish(struct osd *o, struct pg *pg);
struct pg *pg_find(struct osd *o, uint32_t hash);
/* Queue a request at its PG. PGLOG_ENOTFOUND. */
int pg_route(struct osd *o, struct request *r, struct pglog_error *err);
void pg_leave(struct osd *o, struct pg *pg);
void pg_figures(struct pg *pg);
/* Begin PG administration: pgs_lock is taken and the PG held. PGLOG_ENOTFOUND. */
int admin_begin(struct osd *o, uint32_t id, struct pg **pg, struct pglog_error *err);
/* Let the PG, and what was split off, go on. */
void admin_end(struct osd *o, struct pg *pg, struct pg *child);
void pgs_free(struct osd *o);

/* --- osd_load.c --------------------------------------------------------------------------------
 */

int osd_load(struct osd *o, struct pglog_error *err);
size_t pg_key(char *out, const struct pg *pg, const char *name);
#define OSD_PG_KEY_MAX (8 + OSD_PG_NAME + OSD_NAME_MAX)
void put_entry(struct kv_batch *b, const struct pg *pg, const struct osd_log_entry *e);
void put_dup(struct kv_batch *b, const struct pg *pg, const struct osd_dup *d);
void put_info(struct kv_batch *b, const struct pg *pg, const struct osd_info *info);
void put_fastinfo(struct kv_batch *b, const struct pg *pg, struct osd_eversion v, uint64_t mtime);
void put_super(struct kv_batch *b, uint32_t pgs);
struct pg_log_limits osd_log_limits(const struct osd *o);

/* --- osd_dump.c --------------------------------------------------------------------------------
 */

int slow_init(struct osd *o, struct pglog_error *err);
void slow_free(struct osd *o);
void slow_note(struct request *r);
int watchdog_start(struct osd *o, struct pglog_error *err);
void watchdog_stop(struct osd *o);

/* osd_request.c: a thread that waits for one answer, which goes to *out. wait_done() is the request's
 * callback; wait_end() waits, and is called once. */
struct wait {
  pthread_mutex_t lock;
  pthread_cond_t cond;
  bool done;
  struct osd_result *out;
};
#define WAIT_INIT(result)                                                                      \
  {                                                                                            \
    .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER, .out = (result)       \
  }
void wait_done(void *arg, struct osd_result *res);
void wait_end(struct wait *w);

#endif
