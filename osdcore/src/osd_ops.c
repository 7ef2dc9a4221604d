/* SPDX-License-Identifier: Apache-2.0
 *
 * osd_ops.c - what each operation does: blocks, the object's record, the log entry, trims and info,
 * in one batch. Everything that can fail comes before the first change of what is in memory.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "osd_internal.h"

#define DELETES_MAX 16 /* blocks deleted one by one; more take a range */

static uint64_t blocks_of(uint64_t bytes) {
  return (bytes + OSD_BLOCK - 1) / OSD_BLOCK;
}

static uint64_t least(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

static int no_memory(struct request *r, uint64_t bytes) {
  return osd_error(&r->res.error, PGLOG_ENOMEM, "out of memory for %" PRIu64 " bytes", bytes);
}

/* ---------------------------------------------------------------------------------------------- */
/* Layers                                                                                         */

static void layer_zeros(struct request *r, uint64_t first, uint64_t end) {
  if (first < end)
    r->layer[r->n_layers++] = (struct layer){.first = first, .n = end - first};
}

static struct layer *layer_data(struct request *r, uint64_t first, uint64_t n) {
  uint8_t *data = malloc(n * OSD_BLOCK);
  if (!data)
    return NULL;
  struct layer *l = &r->layer[r->n_layers++];
  *l = (struct layer){.first = first, .n = n, .data = data};
  return l;
}

/* A layer over bytes [from, end), whose other bytes in its first and last block are as before;
 * zeros where the object had none. */
static int layer_over(struct request *r, const struct object_state *st, uint64_t from, uint64_t end,
                      const uint8_t *data) {
  uint64_t first = from / OSD_BLOCK, n = blocks_of(end) - first;
  struct layer *l = layer_data(r, first, n);
  if (!l)
    return no_memory(r, n * OSD_BLOCK);
  uint64_t head = from % OSD_BLOCK, tail = end % OSD_BLOCK, last = (n - 1) * OSD_BLOCK;
  bool old_head = head && first * OSD_BLOCK < st->size;
  bool old_tail = tail && end < st->size;
  int rc = 0;
  memset(l->data, 0, OSD_BLOCK);
  memset(l->data + last, 0, OSD_BLOCK);
  if (old_head || (n == 1 && old_tail))
    rc = object_blocks(r, first, 1, l->data, &r->res.error);
  if (rc == 0 && n > 1 && old_tail)
    rc = object_blocks(r, first + n - 1, 1, l->data + last, &r->res.error);
  if (rc)
    return rc;
  if (data)
    memcpy(l->data + head, data, end - from);
  else
    memset(l->data + head, 0, end - from);
  return 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* Operations: layers and the new state from the old one                                          */

static int not_found(struct request *r) {
  return osd_error(&r->res.error, PGLOG_ENOTFOUND, "no such object");
}

static int op_create(struct request *r, struct object_state *st) {
  if (st->exists)
    return osd_error(&r->res.error, PGLOG_EEXIST, "the object exists");
  *st = (struct object_state){.exists = true};
  return 0;
}

static int op_write(struct request *r, struct object_state *st) {
  uint64_t end = r->offset + r->length;
  int rc = r->length ? layer_over(r, st, r->offset, end, r->data) : 0;
  st->exists = true;
  if (r->length && end > st->size)
    st->size = end;
  return rc;
}

static int op_write_full(struct request *r, struct object_state *st) {
  struct object_state none = {0};
  int rc = r->length ? layer_over(r, &none, 0, r->length, r->data) : 0;
  layer_zeros(r, blocks_of(r->length), blocks_of(st->size));
  st->exists = true;
  st->size = r->length;
  return rc;
}

/* Whole blocks go; the parts of blocks at both ends are written with zeros. */
static int op_zero(struct request *r, struct object_state *st) {
  if (!st->exists)
    return not_found(r);
  uint64_t from = r->offset, end = least(r->offset + r->length, st->size);
  if (from >= end)
    return 0;
  uint64_t first = blocks_of(from), last = end == st->size ? blocks_of(end) : end / OSD_BLOCK;
  int rc = 0;
  if (from % OSD_BLOCK)
    rc = layer_over(r, st, from, least(first * OSD_BLOCK, end), NULL);
  layer_zeros(r, first, last);
  if (rc == 0 && first <= last && end > last * OSD_BLOCK)
    rc = layer_over(r, st, last * OSD_BLOCK, end, NULL);
  return rc;
}

static int op_truncate(struct request *r, struct object_state *st) {
  if (!st->exists)
    return not_found(r);
  uint64_t to = r->offset, block_end = blocks_of(to) * OSD_BLOCK;
  int rc = 0;
  layer_zeros(r, blocks_of(to), blocks_of(st->size));
  if (to < st->size && to < block_end)
    rc = layer_over(r, st, to, least(block_end, st->size), NULL);
  st->size = to;
  return rc;
}

static int op_remove(struct request *r, struct object_state *st) {
  if (!st->exists)
    return not_found(r);
  layer_zeros(r, 0, blocks_of(st->size));
  *st = (struct object_state){0};
  return 0;
}

static int op_stat(struct request *r, struct object_state *st) {
  r->res.size = st->size;
  r->res.mtime_ns = st->mtime_ns;
  return st->exists ? 0 : not_found(r);
}

static int op_read(struct request *r, struct object_state *st) {
  if (!st->exists)
    return not_found(r);
  r->res.size = st->size;
  if (r->offset >= st->size || !r->length)
    return 0;
  uint64_t n = least(st->size - r->offset, r->length);
  uint64_t first = r->offset / OSD_BLOCK, blocks = blocks_of(r->offset + n) - first;
  uint8_t *data = malloc(blocks * OSD_BLOCK);
  if (!data)
    return no_memory(r, blocks * OSD_BLOCK);
  int rc = object_blocks(r, first, blocks, data, &r->res.error);
  if (rc) {
    free(data);
    return rc;
  }
  memmove(data, data + r->offset % OSD_BLOCK, n);
  r->res.data = data;
  r->res.length = n;
  return 0;
}

static const struct {
  const char *name;
  bool changes;
  int (*run)(struct request *r, struct object_state *st);
} ops[OSD_OPS] = {
    [OSD_CREATE] = {"create", true, op_create},
    [OSD_WRITE] = {"write", true, op_write},
    [OSD_WRITE_FULL] = {"write_full", true, op_write_full},
    [OSD_ZERO] = {"zero", true, op_zero},
    [OSD_TRUNCATE] = {"truncate", true, op_truncate},
    [OSD_REMOVE] = {"remove", true, op_remove},
    [OSD_READ] = {"read", false, op_read},
    [OSD_STAT] = {"stat", false, op_stat},
};

const char *osd_op_str(int op) {
  return op >= 0 && op < OSD_OPS ? ops[op].name : NULL;
}

/* ---------------------------------------------------------------------------------------------- */
/* The batch                                                                                      */

static void batch_zeros(struct request *r, const struct layer *l) {
  uint8_t key[OSD_KEY_MAX], end[OSD_KEY_MAX];
  if (l->n > DELETES_MAX) {
    struct osd_slice b = {key, block_key(key, r->hash, r->name, l->first)};
    struct osd_slice e = {end, block_key(end, r->hash, r->name, l->first + l->n)};
    kv_delete_range(&r->batch, b, e);
    return;
  }
  for (uint64_t i = 0; i < l->n; i++) {
    struct osd_slice k = {key, block_key(key, r->hash, r->name, l->first + i)};
    kv_delete(&r->batch, k);
  }
}

/* A block ends with the object. */
static void batch_data(struct request *r, const struct layer *l, uint64_t size) {
  uint8_t key[OSD_KEY_MAX];
  for (uint64_t i = 0; i < l->n; i++) {
    uint64_t at = (l->first + i) * OSD_BLOCK;
    struct osd_slice k = {key, block_key(key, r->hash, r->name, l->first + i)};
    struct osd_slice v = {l->data + i * OSD_BLOCK, least(size - at, OSD_BLOCK)};
    kv_put(&r->batch, k, v);
  }
}

static void batch_object(struct request *r, const struct object_state *st) {
  uint8_t key[OSD_KEY_MAX], value[OSD_OBJECT_RECORD_MAX];
  struct osd_slice k = {key, object_key(key, r->hash, r->name)};
  for (uint32_t i = 0; i < r->n_layers; i++)
    if (r->layer[i].data)
      batch_data(r, &r->layer[i], st->size);
    else
      batch_zeros(r, &r->layer[i]);
  struct osd_slice v = {value, object_put(value, st)};
  if (st->exists)
    kv_put(&r->batch, k, v);
  else
    kv_delete(&r->batch, k);
}

static void trim_delete(struct request *r, const char *name) {
  char key[OSD_PG_KEY_MAX];
  struct osd_slice k = {(uint8_t *)key, pg_key(key, r->pg, name)};
  kv_delete(&r->batch, k);
}

static void trim_entry(void *arg, struct osd_eversion v) {
  char name[OSD_NAME_MAX];
  osd_entry_name(name, v);
  trim_delete(arg, name);
}

static void trim_dup(void *arg, struct osd_eversion v) {
  char name[OSD_NAME_MAX];
  osd_dup_name(name, v);
  trim_delete(arg, name);
}

static void trim_to_dup(void *arg, const struct osd_dup *d) {
  struct request *r = arg;
  put_dup(&r->batch, r->pg, d);
}

/* Add the entry to the log, and to the batch what follows from it. `more`: objects there are more.
 */
static int log_entry(struct request *r, const struct osd_log_entry *e, int more) {
  struct pg *pg = r->pg;
  int rc = pg_log_add(pg->log, e, &r->res.error);
  if (rc)
    return rc;
  put_entry(&r->batch, pg, e);
  put_fastinfo(&r->batch, pg, e->version, e->mtime_ns);
  struct pg_log_sink sink = {
      .arg = r, .drop_entry = trim_entry, .add_dup = trim_to_dup, .drop_dup = trim_dup};
  /* Without memory for dups the log is only trimmed later. */
  bool trimmed = pg_log_trim(pg->log, &sink) > 0;
  pg->info.log_tail = pg_log_tail(pg->log);
  pg->info.objects += (uint64_t)(int64_t)more;
  if (trimmed || more)
    put_info(&r->batch, pg, &pg->info);
  pg_figures(pg);
  r->res.epoch = e->version.epoch;
  r->res.version = e->version.version;
  return 0;
}

static struct osd_log_entry entry_of(const struct request *r, uint8_t op) {
  struct osd_log_entry e = {.version = pg_log_head(r->pg->log),
                            .reqid = r->id,
                            .mtime_ns = osd_wall_ns(),
                            .op = op,
                            .object = r->name};
  e.version.epoch = r->pg->info.epoch;
  e.version.version++;
  return e;
}

/* ---------------------------------------------------------------------------------------------- */
/* Running                                                                                        */

/* Only what will be the same when it is sent again is remembered. */
static void log_failure(struct request *r, int rc) {
  if (!r->id.client || (rc != PGLOG_ENOTFOUND && rc != PGLOG_EEXIST))
    return;
  struct osd_log_entry e = entry_of(r, OSD_LOG_ERROR);
  struct pglog_error failed = r->res.error;
  e.result = rc;
  int added = log_entry(r, &e, 0);
  r->res.code = added ? added : rc;
  if (!added)
    r->res.error = failed;
}

static int change(struct request *r, struct object_state *st) {
  struct object_state old = *st;
  int rc = ops[r->op].run(r, st);
  if (rc == 0)
    rc = overlay_reserve(r, &r->res.error);
  if (rc)
    return rc;
  struct osd_log_entry e = entry_of(r, st->exists ? OSD_LOG_MODIFY : OSD_LOG_DELETE);
  e.prior = old.version;
  st->version = e.version;
  st->mtime_ns = e.mtime_ns;
  rc = log_entry(r, &e, (int)st->exists - (int)old.exists);
  if (rc) {
    overlay_drop(r);
    return rc;
  }
  batch_object(r, st);
  overlay_add(r, st);
  return 0;
}

/* Has it run before? Then its answer is that one's. */
static bool duplicate(struct request *r) {
  struct osd_eversion v;
  int32_t result;
  if (!r->id.client || !pg_log_find(r->pg->log, r->id, &v, &result))
    return false;
  r->res.duplicate = true;
  r->res.epoch = v.epoch;
  r->res.version = v.version;
  r->res.code = result;
  if (result)
    osd_error(&r->res.error, result, "answered before, with this code");
  atomic_fetch_add_explicit(&r->o->duplicates, 1, memory_order_relaxed);
  return true;
}

void osd_execute(struct osd *o, struct request *r) {
  struct object_state st;
  bool changes = ops[r->op].changes;
  atomic_fetch_add_explicit(changes ? &o->writes : &o->reads, 1, memory_order_relaxed);
  r->res.code = osd_poisoned(o, &r->res.error);
  if (r->res.code || (changes && duplicate(r)))
    return;
  int rc = object_load(r, &st, &r->res.error);
  if (rc == 0)
    rc = changes ? change(r, &st) : ops[r->op].run(r, &st);
  r->res.code = rc;
  if (rc && changes)
    log_failure(r, rc);
}

void osd_run(void *arg, struct opq_op *op) {
  struct osd *o = arg;
  struct request *r = (struct request *)op;
  request_stage(r, OSD_TAKEN);
  if (!r->internal)
    osd_execute(o, r);
  request_stage(r, OSD_RUN);
  /* Acquire: what the committer did for earlier ones, callbacks included, is done. */
  if (r->batch.size || r->batch.no_memory ||
      atomic_load_explicit(&r->pg->pending, memory_order_acquire))
    commit_queue(r);
  else
    request_answer(r);
}
