/* SPDX-License-Identifier: Apache-2.0
 *
 * osd.h - operations on objects: queued by shard, run in PG order, logged in their PG's log,
 * committed in groups, completed in PG order.
 *
 *   osd_submit() -> op queue (opq.h) -> a worker that owns the PG: batch of object keys, log entry,
 *   info, trims -> committer: groups, one synced write each -> the request's callback
 *
 * An object is a name and a string of bytes, up to OSD_OBJECT_BYTES_MAX; bytes never written are
 * zeros. It belongs to the PG that its name's hash chooses. A request that changes something and
 * has a request id is answered once: sent again, also after a restart, it gets the first one's
 * result and changes nothing, as long as its PG's log or dups remember it.
 */
#ifndef OSDCORE_OSD_H
#define OSDCORE_OSD_H

#include <stddef.h>

#include "osdcore/opq.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OSD_NAME_BYTES_MAX 2048u          /* of an object's name; at least 1 */
#define OSD_OBJECT_BYTES_MAX (1ull << 32) /* size of an object */
#define OSD_IO_BYTES_MAX (64u << 20)      /* data of one read, write or write_full */
#define OSD_PG_BITS_MAX 16u               /* of a hash that choose a PG */

enum osd_store {
  OSD_STORE_SPLIT,   /* RocksDB with pg log keys in the log store */
  OSD_STORE_ROCKSDB, /* RocksDB for all keys */
};

/* Zero means the default where one is given. */
struct osd_config {
  const char *path;         /* directory of the database; made if missing */
  int store;                /* enum osd_store */
  uint32_t pg_bits;         /* a new database gets 2^pg_bits PGs, 0..16; an old one has its own */
  int queue;                /* enum opq_kind */
  uint32_t shards, threads; /* as in struct opq_config; 0: 4 and 1 */
  bool inline_run, no_spin; /* as in struct opq_config */
  uint32_t load_threads;    /* for loading PGs at start, 1..64; 0: one per processor */
  uint32_t max_ops;         /* requests submitted and not answered, up to 2^20; 0: 4096 */
  uint64_t max_bytes; /* and bytes that they write or read (one alone may have more); 0: 256 MiB */
  uint32_t log_keep, log_trim_min, log_trim_max, max_dups; /* as in struct pg_log_limits */
  uint32_t watchdog_ms; /* a request that runs, or is being written, for longer is reported by
                           `log`, once; 0: 30000 */
  uint32_t slow_keep;   /* of the slowest requests kept for osd_dump_slow(), up to 1000; 0: 20 */
  /* Messages: a failed commit, a stuck request. Any thread; NULL: to stderr. */
  void (*log)(void *log_arg, const char *message);
  void *log_arg;
};

struct osd;

/* Open or create. `c` and the path are copied. All PGs are loaded and checked (versions rise, head
 * is the last update of _fastinfo, nothing at or below the tail of _info): PGLOG_ECORRUPT names the
 * PG and what is wrong, PGLOG_ENOTSUP a record of another format. PGLOG_EINVAL names a field of
 * `c`, its limits and its value; PGLOG_EIO has RocksDB's text; PGLOG_ENOMEM. After an error *out is
 * unchanged. */
int osd_open(struct osd **out, const struct osd_config *c, struct pglog_error *err);

/* Answer everything submitted, then close; `o` is gone after that. Nothing may be submitted while
 * it runs but by callbacks, whose requests are answered, too. NULL is fine. */
void osd_close(struct osd *o);

/* --- requests -------------------------------------------------------------------------------- */

enum osd_op {
  OSD_CREATE,     /* PGLOG_EEXIST if it exists */
  OSD_WRITE,      /* data at offset; makes the object if missing (with no data, too), grows it */
  OSD_WRITE_FULL, /* the object is then exactly data */
  OSD_ZERO,       /* offset, length; does not grow the object; PGLOG_ENOTFOUND */
  OSD_TRUNCATE,   /* to `offset` bytes: shorter, or longer with zeros; PGLOG_ENOTFOUND */
  OSD_REMOVE,     /* PGLOG_ENOTFOUND */
  OSD_READ,       /* offset, length: what there is up to the end; PGLOG_ENOTFOUND */
  OSD_STAT,       /* PGLOG_ENOTFOUND */
  OSD_OPS
};
const char *osd_op_str(int op); /* "create", "write", ...; NULL for another number */

/* When a request came to a stage, ns of CLOCK_MONOTONIC; 0: it did not. */
enum osd_stage {
  OSD_SUBMITTED,
  OSD_TAKEN,    /* by a worker, or by the submitting thread (inline_run) */
  OSD_RUN,      /* done with running; queued for commit, if it has to be */
  OSD_GROUPED,  /* the committer has it in the group that it writes */
  OSD_WRITTEN,  /* that write has returned */
  OSD_ANSWERED, /* before `done` is called */
  OSD_STAGES
};
const char *osd_stage_str(int stage); /* "submitted", ...; NULL for another number */

struct osd_result {
  int code; /* 0 or a PGLOG_* code; the text is in `error` */
  struct pglog_error error;
  bool duplicate; /* answered from the log: it ran before */
  uint32_t epoch; /* version of the log entry; 0, 0: none (reads) */
  uint64_t version;
  uint64_t size;     /* OSD_STAT, OSD_READ: the object's size */
  uint64_t mtime_ns; /* OSD_STAT: of the last change, CLOCK_REALTIME */
  uint8_t *data;     /* OSD_READ: the callee's, free() it; NULL if length is 0 */
  size_t length;
  uint64_t at_ns[OSD_STAGES];
};

struct osd_request {
  int op;           /* enum osd_op */
  int prio;         /* enum opq_prio */
  const void *name; /* of the object; copied */
  size_t name_size;
  uint64_t offset, length; /* bytes; for OSD_WRITE and OSD_WRITE_FULL length is that of data */
  const void *data;        /* copied, unless keep_data */
  bool keep_data;          /* data stays valid and unchanged until the callback */
  /* The request id: a client, a number that is new for each of its requests, and which life of the
   * client this is. Client 0: none. Reads need none. */
  uint64_t client, tid;
  uint32_t incarnation;
  /* Called once, when the request is answered: what it changed is on disk, and what it read was. In
   * the order in which the requests of a PG ran; by a thread of the store or, with inline_run,
   * within osd_submit(). It may submit others (always as if with OPQ_NOWAIT), and must not block.
   * The result is valid during the call; `data` is handed over. NULL: nobody is told. */
  void (*done)(void *arg, struct osd_result *r);
  void *arg;
};

/* Queue a request; `r` may go when this returns. The requests of one thread for one object, of one
 * priority, run in the order of their calls. `flags`: 0 waits while max_ops or max_bytes are used
 * up; OPQ_NOWAIT answers PGLOG_EBUSY. PGLOG_EINVAL names what is wrong with the request, its limit
 * and its value; PGLOG_ENOTFOUND: no PG has this object's hash; PGLOG_ENOMEM. After an error `done`
 * is not called.
 *
 * Answers have, besides those named at enum osd_op: PGLOG_ENOTFOUND ("no PG": deleted meanwhile);
 * PGLOG_ECORRUPT and PGLOG_EIO, when what is stored cannot be read, PGLOG_ENOMEM: nothing was
 * changed, and the request may be sent again; the error of a failed commit, PGLOG_EIO mostly:
 * whether the change is on disk is not known until the next osd_open(); PGLOG_EPOISONED for all
 * after a failed commit. */
int osd_submit(struct osd *o, const struct osd_request *r, int flags, struct pglog_error *err);

/* Wait for the answer: as osd_submit(), with `done` and `arg` ignored. Returns out->code, which is
 * filled in errors of osd_submit(), too; out->data is the caller's to free(). From a callback:
 * PGLOG_EINVAL. */
int osd_do(struct osd *o, const struct osd_request *r, struct osd_result *out);

/* osd_do() in the usual forms, without request ids; name is a C string. Errors are returned and
 * described in *err (may be NULL). */
int osd_write(struct osd *o, const char *name, const void *data, size_t size, uint64_t offset,
              struct pglog_error *err);
int osd_write_full(struct osd *o, const char *name, const void *data, size_t size,
                   struct pglog_error *err);
/* At most *size bytes (up to OSD_IO_BYTES_MAX) into `data`; *size becomes how many there were. */
int osd_read(struct osd *o, const char *name, void *data, size_t *size, uint64_t offset,
             struct pglog_error *err);
int osd_stat(struct osd *o, const char *name, uint64_t *size, struct pglog_error *err);
int osd_remove(struct osd *o, const char *name, struct pglog_error *err);

/* Wait until everything submitted before this call is answered. Not from a callback. */
void osd_drain(struct osd *o);

/* --- PGs ------------------------------------------------------------------------------------- */

/* A PG has the objects whose hash ends in the `bits` low bits of `id`. Names in keys: "1.<id in
 * hexadecimal>", as the default rule wants. PGs need not cover every hash: a request for an object
 * without a PG gets PGLOG_ENOTFOUND ("no PG"). */
struct osd_pg_info {
  uint32_t id, bits;
  uint64_t objects;
  uint32_t tail_epoch, head_epoch;
  uint64_t tail_version, head_version;
  uint64_t entries, dups;
};

/* The hash of a name, 32 bits (FORMAT.md). */
uint32_t osd_hash(const void *name, size_t name_size);

/* The PGs, ordered by id; *out is malloc'ed (NULL if there are none). What runs is in it, committed
 * or not. It waits while a PG is created, split, deleted or listed. PGLOG_ENOMEM; PGLOG_EINVAL:
 * from a callback. */
int osd_pg_list(struct osd *o, struct osd_pg_info **out, size_t *n);

/* Call `fn` for each object of a PG, in order of name, as the PG is after everything submitted
 * before (the list is made first, so `fn` may submit); it returns other than 0 to end it (and that
 * is returned). PGLOG_ENOTFOUND: no such PG; PGLOG_ECORRUPT; PGLOG_ENOMEM. Blocks; not from a
 * callback. */
int osd_list(struct osd *o, uint32_t pg,
             int (*fn)(void *arg, const void *name, size_t name_size, uint64_t size), void *arg,
             struct pglog_error *err);

/* Durable when they return. They wait for the PG's operations and hold back new ones meanwhile; one
 * runs at a time. Not from a callback: PGLOG_EINVAL. `child` may be NULL.
 * Create: PGLOG_EINVAL if bits is over OSD_PG_BITS_MAX or id has more bits; PGLOG_EEXIST if the PG
 * or part of its hashes exist. Split: the upper half of the hashes becomes PG id + 2^bits, with
 * their objects and log entries; both keep all dups, and go on in the next epoch; PGLOG_ETOOBIG at
 * OSD_PG_BITS_MAX. Delete: objects, log and all; what was held back is answered PGLOG_ENOTFOUND.
 * PGLOG_ENOTFOUND: no such PG. Errors of the write are those of a commit, as at osd_submit(). */
int osd_pg_create(struct osd *o, uint32_t id, uint32_t bits, struct pglog_error *err);
int osd_pg_split(struct osd *o, uint32_t id, uint32_t *child, struct pglog_error *err);
int osd_pg_delete(struct osd *o, uint32_t id, struct pglog_error *err);

/* --- figures --------------------------------------------------------------------------------- */

struct osd_stats {
  struct opq_stats queue;
  uint64_t requests, writes, reads, duplicates, errors;
  uint64_t groups, group_max;     /* writes to the store; most transactions in one */
  uint64_t ops_now, bytes_now;    /* submitted and not answered */
  uint64_t waits;                 /* submits that waited for max_ops or max_bytes */
  uint64_t stuck;                 /* reports of the watchdog */
  uint64_t load_ns, load_entries; /* at open */
};
void osd_stats(struct osd *o, struct osd_stats *out);

/* JSON, {"requests": [...]}: requests in flight, oldest first, or the slowest answered ones,
 * slowest first, each with "op", "object" (its first 255 bytes; those that are not printable ASCII
 * as %XX), "pg", "client", "tid", "incarnation", "stage" (the last that it came to), "age_ns"
 * (until now, or the answer) and "at_ns": ns from submit to each stage that it came to. Malloc'ed
 * and zero-terminated; NULL: out of memory. Any thread. */
char *osd_dump_in_flight(struct osd *o);
char *osd_dump_slow(struct osd *o);

#ifdef __cplusplus
}
#endif
#endif
