/* SPDX-License-Identifier: Apache-2.0
 *
 * store_internal.h - what the store's files share. See store.h for the locks and the life cycle.
 *
 * Ordinals. Every blob has an ordinal: its place in WAL order, counted from the arena's beginning. It
 * is the version number in the PG maps and the "number" that blobs carry.
 *
 * Generations. Every check point attempt has a number. Layers (a PG's map of staged changes) carry the
 * number of the check point that is to fold them into leaves; an index carries the number of the one
 * that made it. A reader with index generation g sees the layers with generation > g above it.
 *
 * Reclaim. What check point g replaces (leaves and table blocks, layers, segments) can still be seen by
 * views whose index is older than g. It waits in one list and is freed when no such view is open.
 */
#ifndef PGLOG_STORE_INTERNAL_H
#define PGLOG_STORE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "batch.h"
#include "blob.h"
#include "index.h"
#include "pgmap.h"
#include "store.h"
#include "wal.h"

#define APPLY_ROW 32 /* records that writers let pile up before one of them applies them */

/* Blob bytes as they came from the WAL; the PG maps point into them. */
struct segment {
  struct segment *next;
  uint64_t last_ord; /* ordinal of the last blob in it */
  size_t cap, used;
  bool closed; /* a check point takes all of it: what comes later goes to another one */
  uint8_t data[];
};

/* A usual segment fills one huge page: its keys and values are looked at long after they were written,
 * and with small pages nearly each look costs a walk of the page tables. */
#define SEGMENT_ALLOC (2u << 20)
#define SEGMENT_SIZE (SEGMENT_ALLOC - sizeof(struct segment))

/* A WAL record that is not applied yet. Blobs lie in segments: u32 length, bytes. */
struct pending {
  uint64_t wal, end;   /* position behind the record */
  uint64_t sequence;   /* highest sequence number that the record takes (the one before it if none) */
  bool no_count;       /* took no sequence number */
  bool done;           /* its writer has returned */
  uint32_t n_blobs;
  const uint8_t *blobs;
  uint64_t first_ord;  /* of its first blob */
};

/* A position behind a WAL record. */
struct walpos {
  uint64_t wal, offset;
};

struct wal_info {
  uint64_t number;
  uint64_t size;       /* bytes appended */
  uint64_t durable;    /* bytes known to be on disk */
  bool exists;         /* certain to be there: recovered, or appended to */
  bool dir_synced;     /* its directory entry is durable */
  bool released;       /* RocksDB has deleted it */
  bool archived;       /* renamed to archive/ */
};

struct store_wal {
  struct store *s;
  uint64_t number;
  struct wal_parser parser;
};

/* Staged changes of one PG that one check point folds. */
struct layer {
  struct layer *older;
  struct pgmap *map;
  uint64_t generation; /* check point that folds it */
  size_t accounted;    /* bytes of the map in the store's map_memory; 0 once it is folded */
};

struct pg {
  struct layer *layers; /* newest first */
  struct pg *next_touched;
  struct pg *next_in_bucket;
  uint64_t hash;        /* of the id */
  bool touched;         /* has a layer that is not frozen, and is in the store's touched list */
  size_t id_len;
  uint8_t id[];
};

enum garbage_kind { GARBAGE_BLOCKS, GARBAGE_SEGMENT };
struct garbage {
  struct garbage *next;
  uint64_t generation; /* free when no view has an index older than this */
  int kind;
  union {
    struct {
      uint32_t block, n;
    } blocks;
    struct segment *segment;
  } u;
};

struct store_view {
  struct store *s;
  struct store_view *prev, *next;
  uint64_t ord;
  struct index *index; /* index->generation is the view's generation */
};

struct store {
  struct store_config config;
  struct pglog_rule rule;
  struct batch_rule match; /* cf_id known once a door is open, or from the superblock */
  struct arena *arena;
  bool arena_made;         /* formatted or valid */
  uint64_t arena_id;       /* set once, before the first block is read or written */
  struct super super;      /* the newest one published; writes under queue_mutex */

  /* --- under mutex ------------------------------------------------------------------------- */
  pthread_mutex_t mutex;
  struct pgmap *dir;       /* PG id -> struct pg (the value pointer), for walks in order */
  struct pg **buckets;     /* the same PGs by hash, for lookups */
  size_t n_buckets, n_pgs;
  struct pg *last_pg;      /* of the last lookup */
  struct pg *touched;
  struct pg *global;       /* a PG that is none: masks of range deletes across PGs, by store key */
  uint64_t applied_ord;    /* ordinal of the last blob applied */
  struct walpos applied;   /* position behind the last record applied */
  uint64_t applied_seq;
  struct pglog_error apply_error; /* code not 0: records were lost in memory, see apply_resolved() */
  struct index *index;
  uint64_t next_generation; /* number of the next check point; of layers that are not frozen */
  struct store_view views; /* list head */
  struct garbage *garbage;
  size_t layers;           /* layers in all PGs, and the memory of their maps */
  size_t map_memory;
  store_latest_fn latest;
  void *latest_arg;
  bool detached;           /* a door was open and has been closed: nothing is in flight, and */
  uint64_t final_latest;   /* this was RocksDB's latest sequence then */
  struct leaf_codec *codecs[4]; /* pool for readers */
  size_t n_codecs;

  /* --- under queue_mutex ------------------------------------------------------------------- */
  pthread_mutex_t queue_mutex;
  struct pending *queue;   /* ring */
  size_t queue_cap, queue_head, queue_len; /* queue_len: committed and not */
  size_t queue_committed;  /* of them committed */
  uint64_t observed_ord;   /* ordinal of the last blob queued */
  atomic_uint_fast64_t committed_ord; /* of the last blob committed; read without the lock */
  uint64_t last_seq;       /* highest sequence in the WALs */
  struct segment *segments, *segments_tail;
  struct segment *spare;   /* for reuse: fresh memory costs a page fault for each 4 KiB */
  size_t n_spare;
  uint64_t resolved_wal;   /* records of this and older WALs are resolved */
  struct wal_info *wals;   /* ascending */
  size_t n_wals, cap_wals;
  struct pglog_error poison, refusal;
  bool door;               /* blobs are welcome */
  bool had_door;
  struct slice *blobs;     /* of the record that is being checked (WAL appender only) */
  size_t n_blobs, cap_blobs, blobs_size;
  atomic_size_t queue_depth; /* records committed and not applied; read without the lock */

  atomic_bool poisoned, refused;
  atomic_uint_fast64_t segment_bytes; /* staged blob bytes */
  atomic_uint tag;

  /* --- the check point thread ---------------------------------------------------------------- */
  pthread_mutex_t ckpt_mutex;     /* one check point at a time */
  pthread_t thread;
  bool thread_running;
  pthread_mutex_t wake_mutex;
  pthread_cond_t wake, progress;
  bool wanted, stop;              /* under wake_mutex */
  uint64_t attempts;              /* check points ended, successful or not; under wake_mutex */
  struct pglog_error ckpt_error;  /* of the last attempt; code 0 if it succeeded; under wake_mutex */
  bool started;                   /* a WAL was created: check points are allowed */
  bool destroyed;
  struct leaf_codec *codec;       /* of whoever holds ckpt_mutex */
  struct pglog_error arena_error; /* likewise; code not 0: the arena takes no more until reopen */
  bool publish_failed;            /* likewise; the last publication failed */

  /* --- figures -------------------------------------------------------------------------------- */
  struct {
    atomic_uint_fast64_t records, blobs, ops, blob_bytes;
    atomic_uint_fast64_t syncs_writer, syncs_switch, syncs_checkpoint, syncs_skipped, switches;
    atomic_uint_fast64_t checkpoints, checkpoint_failures, superblock_only;
    atomic_uint_fast64_t leaves_written, leaves_read, leaves_freed, table_blocks, root_blocks,
        overflow_written, superblocks, entries_written, checkpoint_us, compressions_raw;
    atomic_uint_fast64_t wals_removed, throttled, refused;
    uint64_t recovered_records, recovered_blobs, recovered_bytes, recovery_us, cut_bytes;
  } st;
};

#define STAT_ADD(s, f, n) atomic_fetch_add_explicit(&(s)->st.f, (n), memory_order_relaxed)
#define STAT(s, f) atomic_load_explicit(&(s)->st.f, memory_order_relaxed)

void store_log(struct store *s, int level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
uint64_t now_us(void);

/* store_wal.c */
/* Take one complete WAL record: check it and queue its blobs, not committed. Live and recovery. */
int wal_take_record(struct store *s, uint64_t wal, const struct wal_record *r, bool live,
                    struct pglog_error *err);
void segment_release(struct store *s, struct segment *g); /* queue_mutex is taken */
void queue_commit(struct store *s, uint64_t wal, uint64_t size);
void queue_drop_uncommitted(struct store *s);
struct wal_info *wal_find(struct store *s, uint64_t number);              /* queue_mutex held */
int wal_add(struct store *s, uint64_t number, struct wal_info **out);     /* queue_mutex held */
/* Move resolved records with sequence <= limit out of the queue, at most n. `idle`: no writer is in
 * flight, so that records that take no sequence number are resolved too. queue_mutex is taken. */
size_t queue_take(struct store *s, uint64_t latest, bool idle, uint64_t limit,
                  struct pending *out, size_t n);

/* store_apply.c; mutex held */
/* Apply what is resolved. A failure is final: it poisons the store, and every later call fails. */
int apply_resolved(struct store *s, uint64_t limit, struct pglog_error *err);
struct pg *pg_find(struct store *s, struct slice id);
void pg_drop_if_empty(struct store *s, struct pg *pg);
/* Freeze: layers of next_generation take no more changes. Returns that generation. */
uint64_t layers_freeze(struct store *s);
/* Drop layers that no view and no reader as of now can see. */
void layers_reclaim(struct store *s);
void layers_free_all(struct store *s);
uint64_t views_oldest(struct store *s); /* generation; UINT64_MAX if no view is open */
uint64_t views_max_ord(struct store *s);
uint64_t staged_bytes(struct store *s);

enum staged_found { STAGED_NONE, STAGED_VALUE, STAGED_DELETED };
/* Look a store key up in a PG's layers `l` and the global ones `g`, as far as they are above generation
 * `gen`, at ordinal `at`. `name` is the key behind the PG id. */
enum staged_found layers_get(const struct layer *l, const struct layer *g, struct slice key,
                             struct slice name, uint64_t gen, uint64_t at, struct slice *value);
/* Whether a range delete in those layers hides what lies below at this key. */
bool layers_mask(const struct layer *l, const struct layer *g, struct slice key,
                 struct slice name, uint64_t gen, uint64_t at);
/* The same for the store's present layers; mutex held. */
enum staged_found staged_get(struct store *s, struct slice key, uint64_t gen, uint64_t at,
                             struct slice *value);
bool staged_masked(struct store *s, struct slice key, uint64_t gen, uint64_t at);

/* store_read.c */
struct leaf_codec *codec_get(struct store *s);
void codec_put(struct store *s, struct leaf_codec *c);
/* Verify and decode a leaf that was read: it must be the very one that the table names. The error
 * names the PG. */
int leaf_open(struct store *s, struct leaf_codec *c, const struct leafref *r, const uint8_t *bytes,
              struct leaf *out, struct pglog_error *err);
/* Read and open. */
int leaf_read(struct store *s, struct leaf_codec *c, const struct leafref *r, struct leaf *out,
              struct pglog_error *err);
int overflow_read(struct store *s, struct leaf_codec *c, const struct leafref *r,
                  const struct leaf_overflow *o, uint8_t **value, struct pglog_error *err);
void error_add_pg(struct store *s, struct slice key, struct slice last, struct pglog_error *err);

/* ckpt_build.c */
/* Layers of one PG that a check point folds. Their maps are frozen and read without the mutex; the
 * structs are copies, since the lists in struct pg go on changing. */
struct frozen_pg {
  struct slice id;
  const struct layer *layers; /* newest first */
};
/* Everything that building a new index from frozen layers needs and makes. */
struct build {
  struct store *s;
  uint64_t generation;      /* of this check point */
  struct index *old;
  struct frozen_pg *pg;     /* ascending by id */
  size_t n_pgs;
  const struct layer *global; /* newest first */
  struct index *made;       /* out */
  /* Blocks taken for this check point, and blocks of older ones that it replaces. */
  struct extents {
    struct extent {
      uint32_t block, n;
    } *v;
    size_t n, cap;
  } taken, replaced;
};
int build_index(struct build *b, struct pglog_error *err);
int extents_add(struct extents *x, uint32_t block, uint32_t n);

/* recover.c */
int store_recover(struct store *s, struct pglog_error *err);

/* checkpoint.c */
int checkpoint_run(struct store *s, struct pglog_error *err); /* ckpt_mutex held */
void garbage_free(struct store *s);    /* ckpt_mutex held */
void checkpoint_want(struct store *s);
int checkpoint_thread_start(struct store *s, struct pglog_error *err);
void checkpoint_thread_stop(struct store *s);

#endif
