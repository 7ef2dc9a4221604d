/* SPDX-License-Identifier: Apache-2.0
 *
 * store.c - life of a store: open, doors, close; figures.
 */
#include "store.h"

#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "store_internal.h"

void store_log(struct store *s, int level, const char *fmt, ...) {
  char text[PGLOG_ERROR_TEXT + 64];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (s->config.ops.log)
    s->config.ops.log(s->config.ops.arg, level, text);
}

uint64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

/* ---------------------------------------------------------------------------------------------- */
/* Open                                                                                           */

static const char *arena_name(const struct store *s) {
  return s->config.options.io ? "(caller's storage)" : s->config.options.arena;
}

/* What stands in the arena's place is kept, under another name. */
static int set_aside(struct store *s, struct pglog_error *err) {
  char old[sizeof s->config.options.arena + 32];
  for (int i = 0; i < 1000; i++) {
    int n = i ? snprintf(old, sizeof old, "%s.old.%d", arena_name(s), i)
              : snprintf(old, sizeof old, "%s.old", arena_name(s));
    if (n < 0 || access(old, F_OK) == 0)
      continue;
    if (rename(arena_name(s), old) != 0)
      return error_set(err, PGLOG_EIO, "arena %s cannot be renamed to %s: %s", arena_name(s), old,
                       strerror(errno));
    store_log(s, 1, "format=1: %s was set aside as %s", arena_name(s), old);
    return PGLOG_OK;
  }
  return error_set(err, PGLOG_EIO, "arena %s: there are 1000 arenas set aside already",
                   arena_name(s));
}

static int arena_config_open(struct store *s, enum arena_state *state, struct pglog_error *err) {
  const struct pglog_options *o = &s->config.options;
  struct arena_config c = {.path = arena_name(s),
                           .io = o->io,
                           .max = o->arena_max,
                           .step = o->arena_step,
                           .queue_depth = o->queue_depth};
  return arena_open(&c, &s->arena, state, &s->super, err);
}

static int refuse_absent(struct store *s, struct pglog_error *err) {
  if (!s->config.has_guard)
    return PGLOG_OK;
  return error_set(err, PGLOG_EMISMATCH,
                   "arena %s is missing, but the database has the guard column family \"%s\": its pg "
                   "log is in that arena, and a new empty one would lose it",
                   arena_name(s), PGLOG_GUARD_CF);
}

/* format=1: what is there, and no database with it, makes way. A device is written over. */
static int make_way(struct store *s, struct pglog_error *err) {
  struct stat st;
  enum arena_state state;
  if (s->config.options.io || (stat(arena_name(s), &st) == 0 && S_ISBLK(st.st_mode)))
    return PGLOG_OK;
  arena_close(s->arena);
  s->arena = NULL;
  int rc = set_aside(s, err);
  return rc == PGLOG_OK ? arena_config_open(s, &state, err) : rc;
}

/* A valid arena where there is no database. */
static int without_database(struct store *s, struct pglog_error *err) {
  const struct super *p = &s->super;
  /* One with an identity may have WALs elsewhere that need it, though it holds nothing yet. */
  bool holds = p->entries || p->blobs || p->identity[0];
  if (!holds || p->invalidated)
    return PGLOG_OK; /* to be formatted when the first WAL is created */
  if (s->config.options.format)
    return make_way(s, err);
  return error_set(err, PGLOG_EMISMATCH,
                   "arena %s is that of a deleted database: there is no CURRENT file, but it holds "
                   "%llu entries of check point %llu; format=1 sets it aside as %s.old",
                   arena_name(s), (unsigned long long)p->entries,
                   (unsigned long long)p->generation, arena_name(s));
}

static int check_owner(struct store *s, struct pglog_error *err) {
  const struct super *p = &s->super;
  char a[512], b[512];
  if (p->invalidated)
    return error_set(err, PGLOG_EMISMATCH, "arena %s is that of a destroyed database",
                     arena_name(s));
  if (p->identity[0] && s->config.identity[0] && strcmp(p->identity, s->config.identity) != 0)
    return error_set(err, PGLOG_EMISMATCH,
                     "arena %s is of another database: its identity is %s, the database's is %s",
                     arena_name(s), p->identity, s->config.identity);
  if (s->config.options.rule_given && !rule_eq(&p->rule, &s->config.options.rule))
    return error_set(err, PGLOG_EMISMATCH,
                     "the rule (%s) is not the one that arena %s was made with (%s)",
                     rule_print(&s->config.options.rule, a, sizeof a), arena_name(s),
                     rule_print(&p->rule, b, sizeof b));
  return PGLOG_OK;
}

static int open_arena(struct store *s, struct pglog_error *err) {
  enum arena_state state;
  int rc = arena_config_open(s, &state, err);
  if (rc != PGLOG_OK)
    return rc;
  s->rule = s->config.options.rule;
  uint32_t cf_id = PGLOG_CF_UNKNOWN;
  bool fresh = true;
  switch (state) {
    case ARENA_ABSENT:
      rc = refuse_absent(s, err);
      break;
    case ARENA_FOREIGN:
    case ARENA_DAMAGED:
      rc = !s->config.has_current && s->config.options.format ? make_way(s, err) : err->code;
      break;
    case ARENA_VALID:
      if (!s->config.has_current) {
        rc = without_database(s, err);
        break;
      }
      rc = check_owner(s, err);
      fresh = false;
      s->arena_made = true;
      s->arena_id = s->super.arena_id;
      s->rule = s->super.rule;
      cf_id = s->super.cf_id;
      if (!s->config.identity[0])
        memcpy(s->config.identity, s->super.identity, sizeof s->config.identity);
      break;
  }
  if (fresh)
    memset(&s->super, 0, sizeof s->super);
  batch_rule_init(&s->match, &s->rule, cf_id);
  return rc;
}

static int load(struct store *s, struct pglog_error *err) {
  int rc = PGLOG_OK;
  if (s->arena_made) {
    index_unref(s->index);
    s->index = NULL;
    rc = index_load(s->arena, &s->super, s->codec, &s->index, err);
  }
  if (rc != PGLOG_OK)
    return rc;
  s->next_generation = (s->super.generation ? s->super.generation : 1) + 1;
  s->applied_ord = s->observed_ord = s->super.blobs;
  atomic_store(&s->committed_ord, s->super.blobs);
  s->applied = (struct walpos){s->super.wal, s->super.wal_offset};
  s->applied_seq = s->last_seq = s->super.sequence;
  rc = store_recover(s, err);
  if (rc == PGLOG_OK && !s->arena_made && s->applied_ord)
    rc = error_set(err, PGLOG_EMISMATCH,
                   "arena %s is missing, but the WALs hold %llu pg log blobs", arena_name(s),
                   (unsigned long long)s->applied_ord);
  return rc;
}

static int store_init(struct store *s) {
  pthread_condattr_t attr;
  pthread_mutex_init(&s->mutex, NULL);
  pthread_mutex_init(&s->queue_mutex, NULL);
  pthread_mutex_init(&s->ckpt_mutex, NULL);
  pthread_mutex_init(&s->wake_mutex, NULL);
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&s->wake, &attr);
  pthread_cond_init(&s->progress, &attr);
  pthread_condattr_destroy(&attr);
  s->views.next = s->views.prev = &s->views;
  s->next_generation = 2;
  s->index = index_new();
  s->global = calloc(1, sizeof *s->global);
  if (!s->index || !s->global || pgmap_new(&s->dir) != PGLOG_OK ||
      leaf_codec_new(&s->codec) != PGLOG_OK)
    return PGLOG_ENOMEM;
  return PGLOG_OK;
}

static void segments_free(struct segment *g) {
  while (g) {
    struct segment *next = g->next;
    free(g);
    g = next;
  }
}

static void store_free(struct store *s) {
  layers_free_all(s);
  pgmap_free(s->dir);
  free(s->global);
  while (s->garbage) {
    struct garbage *g = s->garbage;
    s->garbage = g->next;
    if (g->kind == GARBAGE_SEGMENT)
      free(g->u.segment);
    free(g);
  }
  segments_free(s->segments);
  segments_free(s->spare);
  free(s->buckets);
  index_unref(s->index);
  leaf_codec_free(s->codec);
  for (size_t i = 0; i < s->n_codecs; i++)
    leaf_codec_free(s->codecs[i]);
  arena_close(s->arena);
  free(s->blobs);
  free(s->queue);
  free(s->wals);
  pthread_cond_destroy(&s->wake);
  pthread_cond_destroy(&s->progress);
  pthread_mutex_destroy(&s->mutex);
  pthread_mutex_destroy(&s->queue_mutex);
  pthread_mutex_destroy(&s->ckpt_mutex);
  pthread_mutex_destroy(&s->wake_mutex);
  free(s);
}

int store_open(const struct store_config *c, struct store **out, struct pglog_error *err) {
  struct pglog_error local;
  if (!err)
    err = &local;
  struct store *s = calloc(1, sizeof *s);
  if (!s)
    return error_set(err, PGLOG_ENOMEM, "out of memory for a store");
  s->config = *c;
  int rc = store_init(s);
  if (rc != PGLOG_OK)
    error_set(err, rc, "out of memory for a store");
  if (rc == PGLOG_OK)
    rc = open_arena(s, err);
  if (rc == PGLOG_OK)
    rc = load(s, err);
  if (rc != PGLOG_OK) {
    store_free(s);
    return rc;
  }
  *out = s;
  return PGLOG_OK;
}

/* ---------------------------------------------------------------------------------------------- */
/* Close                                                                                          */

/* RocksDB is closed: every WAL in the list is there, and nothing is in flight. */
static void last_checkpoint(struct store *s) {
  struct pglog_error err;
  pthread_mutex_lock(&s->queue_mutex);
  for (size_t i = 0; i < s->n_wals; i++)
    s->wals[i].exists = true;
  /* Without a door there are no blobs of this process, and RocksDB's own records need no verdict. */
  if (!s->had_door && s->n_wals)
    s->resolved_wal = s->wals[s->n_wals - 1].number;
  pthread_mutex_unlock(&s->queue_mutex);
  int rc = store_checkpoint(s, &err);
  if (rc != PGLOG_OK)
    store_log(s, 1, "no check point at close: %s; the next open recovers from the WALs", err.text);
}

/* RepairDB gives the database a new identity under the lock, and creates no WAL. */
static void publish_identity(struct store *s) {
  struct pglog_error err;
  struct super n = s->super;
  /* An arena that has no identity yet is not bound to whatever database tried to open it. */
  if (!n.identity[0] || !s->config.identity[0] || !strcmp(n.identity, s->config.identity))
    return;
  n.generation = s->next_generation++;
  memcpy(n.identity, s->config.identity, sizeof n.identity);
  if (arena_publish(s->arena, &n, &err) != PGLOG_OK)
    store_log(s, 2, "arena %s: the database's new identity could not be written: %s",
              arena_name(s), err.text);
}

void store_close(struct store *s) {
  if (!s)
    return;
  checkpoint_thread_stop(s);
  if (!s->started && !s->destroyed && s->arena_made)
    publish_identity(s);
  if (s->started && !s->destroyed && store_check(s, NULL) == PGLOG_OK)
    last_checkpoint(s);
  store_free(s);
}

int store_destroyed(struct store *s, struct pglog_error *err) {
  int rc = PGLOG_OK;
  pthread_mutex_lock(&s->ckpt_mutex);
  pthread_mutex_lock(&s->queue_mutex);
  s->destroyed = true;
  s->started = false;
  struct super dead = s->super;
  pthread_mutex_unlock(&s->queue_mutex);
  /* Behind every generation that was tried, published or not. */
  dead.generation = s->next_generation;
  if (s->arena_made)
    rc = arena_invalidate(s->arena, &dead, err);
  pthread_mutex_unlock(&s->ckpt_mutex);
  /* Nothing needs the WALs that were handed over before CURRENT went. */
  pthread_mutex_lock(&s->queue_mutex);
  size_t n = s->n_wals;
  struct wal_info *w = s->wals;
  s->wals = NULL;
  s->n_wals = s->cap_wals = 0;
  pthread_mutex_unlock(&s->queue_mutex);
  for (size_t i = 0; i < n; i++)
    if (w[i].released && !w[i].archived)
      s->config.ops.remove(s->config.ops.arg, w[i].number, NULL);
  free(w);
  return rc;
}

void store_set_identity(struct store *s, const char *identity) {
  pthread_mutex_lock(&s->queue_mutex);
  snprintf(s->config.identity, sizeof s->config.identity, "%s", identity);
  pthread_mutex_unlock(&s->queue_mutex);
}

/* ---------------------------------------------------------------------------------------------- */
/* Doors                                                                                          */

int store_attach(struct store *s, uint32_t cf_id, store_latest_fn latest, void *arg,
                 struct pglog_error *err) {
  uint64_t have = latest(arg);
  if (s->door)
    return error_set(err, PGLOG_EBUSY, "a door is open on this database already");
  if (s->match.cf_id != PGLOG_CF_UNKNOWN && s->match.cf_id != cf_id)
    return error_set(err, PGLOG_EMISMATCH,
                     "column family \"%s\" of the rule has id %u, the arena was made with id %u: it "
                     "was dropped and made again",
                     s->rule.cf, cf_id, s->match.cf_id);
  if (have < s->last_seq)
    return error_set(err, PGLOG_ECORRUPT,
                     "RocksDB has recovered to sequence %llu, the pg log to %llu: RocksDB has "
                     "dropped records that the WALs hold",
                     (unsigned long long)have, (unsigned long long)s->last_seq);
  pthread_mutex_lock(&s->mutex);
  s->latest = latest;
  s->latest_arg = arg;
  s->detached = false;
  pthread_mutex_unlock(&s->mutex);
  pthread_mutex_lock(&s->queue_mutex);
  s->match.cf_id = cf_id;
  s->door = s->had_door = true;
  pthread_mutex_unlock(&s->queue_mutex);
  return PGLOG_OK;
}

void store_detach(struct store *s) {
  pthread_mutex_lock(&s->mutex);
  if (s->latest)
    s->final_latest = s->latest(s->latest_arg);
  s->latest = NULL;
  s->detached = true;
  pthread_mutex_unlock(&s->mutex);
  if (store_check(s, NULL) == PGLOG_OK) {
    struct pglog_error err;
    if (store_checkpoint(s, &err) != PGLOG_OK)
      store_log(s, 1, "no check point before closing: %s", err.text);
  }
  pthread_mutex_lock(&s->queue_mutex);
  s->door = false;
  pthread_mutex_unlock(&s->queue_mutex);
}

const struct pglog_rule *store_rule(const struct store *s) { return &s->rule; }

uint64_t store_blobs_observed(struct store *s) {
  return atomic_load_explicit(&s->committed_ord, memory_order_relaxed);
}

uint8_t store_next_tag(struct store *s) {
  return (uint8_t)atomic_fetch_add_explicit(&s->tag, 1, memory_order_relaxed);
}

/* ---------------------------------------------------------------------------------------------- */
/* Figures                                                                                        */

struct text {
  char *out;
  size_t cap, len;
};

static void add(struct text *t, const char *name, uint64_t value) {
  size_t room = t->len < t->cap ? t->cap - t->len : 0;
  int n = snprintf(room ? t->out + t->len : NULL, room, "%s %llu\n", name,
                   (unsigned long long)value);
  t->len += n > 0 ? (size_t)n : 0;
}

static void add_figures(struct store *s, struct text *t) {
#define ADD(f) add(t, #f, STAT(s, f))
  ADD(records);
  ADD(blobs);
  ADD(ops);
  ADD(blob_bytes);
  add(t, "wal_syncs_writer", STAT(s, syncs_writer));
  add(t, "wal_syncs_switch", STAT(s, syncs_switch));
  add(t, "wal_syncs_checkpoint", STAT(s, syncs_checkpoint));
  add(t, "wal_syncs_skipped", STAT(s, syncs_skipped));
  add(t, "wal_switches", STAT(s, switches));
  ADD(wals_removed);
  ADD(checkpoints);
  add(t, "checkpoints_position_only", STAT(s, superblock_only));
  ADD(checkpoint_failures);
  ADD(checkpoint_us);
  ADD(leaves_written);
  ADD(leaves_read);
  ADD(leaves_freed);
  ADD(entries_written);
  ADD(table_blocks);
  ADD(root_blocks);
  add(t, "overflow_blocks_written", STAT(s, overflow_written));
  ADD(superblocks);
  add(t, "arena_bytes_written",
      (STAT(s, leaves_written) + STAT(s, table_blocks) + STAT(s, root_blocks) +
       STAT(s, overflow_written) + STAT(s, superblocks)) * PGLOG_BLOCK);
  ADD(throttled);
  ADD(refused);
#undef ADD
  add(t, "recovered_records", s->st.recovered_records);
  add(t, "recovered_blobs", s->st.recovered_blobs);
  add(t, "recovered_bytes", s->st.recovered_bytes);
  add(t, "recovery_us", s->st.recovery_us);
  add(t, "recovery_cut_bytes", s->st.cut_bytes);
}

size_t store_stats(struct store *s, char *out, size_t cap) {
  struct text t = {out, cap, 0};
  add_figures(s, &t);
  add(&t, "staged_bytes", staged_bytes(s));
  add(&t, "memory_budget", s->config.options.memory);
  pthread_mutex_lock(&s->mutex);
  add(&t, "staged_pgs", pgmap_entries(s->dir));
  add(&t, "layers", s->layers);
  add(&t, "index_generation", s->index->generation);
  add(&t, "index_tables", s->index->n);
  add(&t, "index_leaves", s->index->leaves);
  add(&t, "index_entries", s->index->entries);
  add(&t, "index_damaged_tables", s->index->damaged);
  /* Superblocks, root, tables, leaves, overflow: what the present index refers to. */
  add(&t, "arena_live_bytes",
      (2 + s->index->root_blocks + s->index->n + s->index->leaves + s->index->overflow_blocks) *
          (uint64_t)PGLOG_BLOCK);
  pthread_mutex_unlock(&s->mutex);
  pthread_mutex_lock(&s->queue_mutex);
  add(&t, "pending_records", s->queue_len);
  add(&t, "wals", s->n_wals);
  uint64_t handed_over = 0;
  for (size_t i = 0; i < s->n_wals; i++)
    handed_over += s->wals[i].released;
  add(&t, "wals_handed_over", handed_over);
  add(&t, "checkpoint_wal", s->super.wal);
  add(&t, "checkpoint_offset", s->super.wal_offset);
  pthread_mutex_unlock(&s->queue_mutex);
  pthread_mutex_lock(&s->ckpt_mutex);
  if (s->arena_made) {
    struct arena_usage u;
    arena_usage(s->arena, &u);
    add(&t, "arena_used_bytes", u.used_blocks * PGLOG_BLOCK);
    add(&t, "arena_size_bytes", u.size_blocks * PGLOG_BLOCK);
    add(&t, "arena_max_bytes", u.max_blocks * PGLOG_BLOCK);
    add(&t, "arena_allocated_bytes", u.allocated > 0 ? (uint64_t)u.allocated : 0);
  }
  pthread_mutex_unlock(&s->ckpt_mutex);
  return t.len;
}

/* Leaves whose keys begin with the PG id, and the entries in them. */
static void pg_leaves(const struct index *ix, struct slice id, uint64_t *leaves,
                      uint64_t *entries) {
  struct leafpos pos;
  bool at = index_find(ix, id, &pos) || index_first(ix, &pos);
  for (; at; at = index_next(ix, &pos)) {
    const struct node *nd = ix->node[pos.i];
    if (nd->damaged)
      continue;
    const struct leafref *r = index_leaf(ix, pos);
    struct slice head = r->first.size > id.size ? slice_make(r->first.data, id.size) : r->first;
    if (slice_cmp(head, id) > 0)
      break;
    if (slice_cmp(r->last, id) < 0)
      continue;
    (*leaves)++;
    *entries += r->entries;
  }
}

int store_pg_stats(struct store *s, struct slice pgid, char *out, size_t cap,
                   struct pglog_error *err) {
  struct text t = {out, cap, 0};
  uint64_t leaves = 0, entries = 0, staged = 0, layers = 0, memory = 0;
  pthread_mutex_lock(&s->mutex);
  int rc = apply_resolved(s, UINT64_MAX, err);
  const struct pg *pg = pg_find(s, pgid);
  for (const struct layer *l = pg ? pg->layers : NULL; l; l = l->older) {
    layers++;
    staged += pgmap_entries(l->map);
    memory += pgmap_memory(l->map);
  }
  pg_leaves(s->index, pgid, &leaves, &entries);
  pthread_mutex_unlock(&s->mutex);
  if (rc != PGLOG_OK)
    return rc;
  if (!layers && !leaves)
    return PGLOG_ENOTFOUND;
  add(&t, "leaves", leaves);
  add(&t, "entries_in_leaves", entries);
  add(&t, "staged_changes", staged);
  add(&t, "staged_layers", layers);
  add(&t, "staged_map_bytes", memory);
  return PGLOG_OK;
}
