/* SPDX-License-Identifier: Apache-2.0
 *
 * osd.c - open and close, submit, and the blocking forms; see osd_internal.h.
 */
#include <inttypes.h>
#include <isa-l/crc.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "osd_internal.h"

#define SHARDS 4
#define SHARDS_MAX 1024
#define THREADS_MAX 64
#define LOAD_THREADS_MAX 64
#define MAX_OPS 4096
#define MAX_OPS_MAX (1u << 20) /* an op queue's capacity: a shard is never full */
#define MAX_BYTES (256u << 20)
#define WATCHDOG_MS 30000
#define SLOW_KEEP 20
#define SLOW_KEEP_MAX 1000

void osd_log(struct osd *o, const char *fmt, ...) {
  char text[PGLOG_ERROR_TEXT + 128];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (o->c.log)
    o->c.log(o->c.log_arg, text);
  else
    fprintf(stderr, "osd %s: %s\n", o->path ? o->path : "", text);
}

uint32_t osd_hash(const void *name, size_t name_size) {
  uint32_t crc = UINT32_MAX;
  const uint8_t *p = name;
  for (size_t n; name_size; p += n, name_size -= n) {
    n = name_size < INT32_MAX ? name_size : INT32_MAX;
    crc = crc32_iscsi((unsigned char *)p, (int)n, crc);
  }
  return ~crc;
}

/* ---------------------------------------------------------------------------------------------- */
/* Configuration                                                                                  */

struct limit {
  const char *name;
  uint64_t is, high;
};

int osd_config_check(const struct osd_config *c, struct pglog_error *err) {
  const struct limit limits[] = {
      {"store", (uint32_t)c->store, OSD_STORE_ROCKSDB},
      {"pg_bits", c->pg_bits, OSD_PG_BITS_MAX},
      {"queue", (uint32_t)c->queue, OPQ_KINDS - 1},
      {"shards", c->shards, SHARDS_MAX},
      {"threads", c->threads, THREADS_MAX},
      {"load_threads", c->load_threads, LOAD_THREADS_MAX},
      {"max_ops", c->max_ops, MAX_OPS_MAX},
      {"slow_keep", c->slow_keep, SLOW_KEEP_MAX},
  };
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
    if (limits[i].is > limits[i].high)
      return osd_error(err, PGLOG_EINVAL, "osd: %s is %" PRIu64 ", it must be 0 to %" PRIu64,
                       limits[i].name, limits[i].is, limits[i].high);
  return 0;
}

static uint32_t processors(void) {
  cpu_set_t set;
  int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return n < LOAD_THREADS_MAX ? (uint32_t)n : LOAD_THREADS_MAX;
}

static void config_complete(struct osd_config *c) {
  c->shards = c->shards ? c->shards : SHARDS;
  c->threads = c->threads ? c->threads : 1;
  c->load_threads = c->load_threads ? c->load_threads : processors();
  c->max_ops = c->max_ops ? c->max_ops : MAX_OPS;
  c->max_bytes = c->max_bytes ? c->max_bytes : MAX_BYTES;
  c->watchdog_ms = c->watchdog_ms ? c->watchdog_ms : WATCHDOG_MS;
  c->slow_keep = c->slow_keep ? c->slow_keep : SLOW_KEEP;
}

/* ---------------------------------------------------------------------------------------------- */
/* Life                                                                                           */

static void stripes_init(struct osd *o) {
  for (uint32_t i = 0; i < OSD_STRIPES; i++) {
    memset(&o->stripes[i], 0, sizeof o->stripes[i]);
    pthread_mutex_init(&o->stripes[i].lock, NULL);
  }
}

static struct osd *osd_new(const struct osd_config *c, bool manual) {
  struct osd *o = calloc(1, sizeof *o);
  if (!o)
    return NULL;
  o->stripes = aligned_alloc(OPQ_LINE, OSD_STRIPES * sizeof *o->stripes);
  o->path = c->path ? strdup(c->path) : NULL;
  if (!o->stripes || (c->path && !o->path)) {
    free(o->stripes);
    free(o->path);
    free(o);
    return NULL;
  }
  o->c = *c;
  o->c.path = o->path;
  config_complete(&o->c);
  o->manual = manual;
  stripes_init(o);
  pthread_mutex_init(&o->pgs_lock, NULL);
  pthread_mutex_init(&o->route_lock, NULL);
  pthread_cond_init(&o->idle, NULL);
  pthread_mutex_init(&o->limit_lock, NULL);
  pthread_cond_init(&o->room, NULL);
  pthread_mutex_init(&o->drain_lock, NULL);
  pthread_cond_init(&o->drained, NULL);
  pthread_mutex_init(&o->commit.lock, NULL);
  pthread_cond_init(&o->commit.work, NULL);
  o->commit.last = &o->commit.first;
  pthread_mutex_init(&o->slow.lock, NULL);
  return o;
}

static void osd_free(struct osd *o) {
  for (uint32_t i = 0; i < OSD_STRIPES; i++)
    pthread_mutex_destroy(&o->stripes[i].lock);
  pthread_mutex_destroy(&o->pgs_lock);
  pthread_mutex_destroy(&o->route_lock);
  pthread_cond_destroy(&o->idle);
  pthread_mutex_destroy(&o->limit_lock);
  pthread_cond_destroy(&o->room);
  pthread_mutex_destroy(&o->drain_lock);
  pthread_cond_destroy(&o->drained);
  pthread_mutex_destroy(&o->commit.lock);
  pthread_cond_destroy(&o->commit.work);
  slow_free(o);
  pthread_mutex_destroy(&o->slow.lock);
  free(o->stripes);
  free(o->path);
  free(o);
}

static int queue_start(struct osd *o, struct pglog_error *err) {
  struct opq_config c = {.kind = o->c.queue,
                         .shards = o->c.shards,
                         .threads = o->c.threads,
                         .capacity = MAX_OPS_MAX,
                         .no_spin = o->c.no_spin,
                         .inline_run = o->c.inline_run,
                         .run = osd_run,
                         .arg = o};
  return o->manual ? opq_new_manual(&o->q, &c, err) : opq_new(&o->q, &c, err);
}

int osd_open_kv(struct osd **out, const struct osd_config *c, struct kv *kv, bool manual,
                struct pglog_error *err) {
  int rc = osd_config_check(c, err);
  struct osd *o = rc ? NULL : osd_new(c, manual);
  if (!o) {
    kv->close(kv->arg);
    return rc ? rc : osd_error(err, PGLOG_ENOMEM, "osd: out of memory");
  }
  o->kv = *kv;
  rc = slow_init(o, err);
  if (rc == 0)
    rc = queue_start(o, err);
  if (rc == 0)
    rc = osd_load(o, err);
  if (rc == 0)
    rc = commit_start(o, manual, err);
  if (rc == 0)
    rc = watchdog_start(o, err);
  if (rc)
    osd_close(o);
  else
    *out = o;
  return rc;
}

void osd_close(struct osd *o) {
  if (!o)
    return;
  /* Callbacks may submit more. */
  for (uint64_t seq = UINT64_MAX; seq != o->seq;) {
    seq = o->seq;
    osd_drain(o);
  }
  watchdog_stop(o);
  opq_free(o->q);
  commit_stop(o);
  pgs_free(o);
  o->kv.close(o->kv.arg);
  osd_free(o);
}

uint32_t osd_step_worker(struct osd *o, uint32_t i) {
  return opq_step(o->q, i);
}

/* ---------------------------------------------------------------------------------------------- */
/* Submitting                                                                                     */

static int over(struct pglog_error *err, const char *what, uint64_t is, uint64_t most) {
  return osd_error(err, PGLOG_EINVAL, "request: %s is %" PRIu64 ", the limit is %" PRIu64, what, is,
                   most);
}

/* What an operation uses of offset and length. */
static bool uses_offset(int op) {
  return op == OSD_WRITE || op == OSD_ZERO || op == OSD_TRUNCATE || op == OSD_READ;
}
static bool moves_data(int op) {
  return op == OSD_WRITE || op == OSD_WRITE_FULL || op == OSD_READ;
}

static int range_check(const struct osd_request *r, struct pglog_error *err) {
  uint64_t most = moves_data(r->op) ? OSD_IO_BYTES_MAX : OSD_OBJECT_BYTES_MAX;
  bool uses_length = moves_data(r->op) || r->op == OSD_ZERO;
  if (uses_offset(r->op) && r->offset > OSD_OBJECT_BYTES_MAX)
    return over(err, "offset", r->offset, OSD_OBJECT_BYTES_MAX);
  if (uses_length && r->length > most)
    return over(err, "length", r->length, most);
  if (r->op == OSD_WRITE && r->offset + r->length > OSD_OBJECT_BYTES_MAX)
    return over(err, "offset + length", r->offset + r->length, OSD_OBJECT_BYTES_MAX);
  if ((r->op == OSD_WRITE || r->op == OSD_WRITE_FULL) && r->length && !r->data)
    return osd_error(err, PGLOG_EINVAL, "request: data is NULL, length is %" PRIu64, r->length);
  return 0;
}

static int request_check(const struct osd_request *r, struct pglog_error *err) {
  if (r->op < 0 || r->op >= OSD_OPS)
    return over(err, "op", (uint32_t)r->op, OSD_OPS - 1);
  if (r->prio < 0 || r->prio >= OPQ_PRIOS)
    return over(err, "prio", (uint32_t)r->prio, OPQ_PRIOS - 1);
  if (!r->name || !r->name_size)
    return osd_error(err, PGLOG_EINVAL, "request: the object's name is empty");
  if (r->name_size > OSD_NAME_BYTES_MAX)
    return over(err, "name_size", r->name_size, OSD_NAME_BYTES_MAX);
  return range_check(r, err);
}

int osd_submit(struct osd *o, const struct osd_request *q, int flags, struct pglog_error *err) {
  struct request *r;
  int rc = request_check(q, err);
  if (rc)
    return rc;
  uint64_t bytes = moves_data(q->op) ? q->length : 0;
  if (request_answering())
    flags |= OPQ_NOWAIT; /* what it would wait for may have to be answered by this thread */
  rc = limit_take(o, bytes, flags, err);
  if (rc)
    return rc;
  rc = request_new(o, q, &r, err);
  if (rc) {
    limit_give(o, bytes);
    return rc;
  }
  r->bytes = bytes;
  in_flight_add(o, r);
  rc = pg_route(o, r, err);
  if (rc) {
    in_flight_remove(o, r);
    limit_give(o, bytes);
    request_free(r);
  } else {
    atomic_fetch_add_explicit(&o->requests, 1, memory_order_relaxed);
  }
  return rc;
}

/* ---------------------------------------------------------------------------------------------- */
/* Blocking forms                                                                                 */

int osd_do(struct osd *o, const struct osd_request *q, struct osd_result *out) {
  struct wait w = WAIT_INIT(out);
  struct osd_request r = *q;
  memset(out, 0, sizeof *out);
  if (request_answering())
    return out->code = osd_error(&out->error, PGLOG_EINVAL, "a callback must not wait");
  r.keep_data = true;
  r.done = wait_done;
  r.arg = &w;
  int rc = osd_submit(o, &r, 0, &out->error);
  if (rc)
    return out->code = rc;
  if (o->manual)
    osd_drain(o);
  wait_end(&w);
  return out->code;
}

/* osd_do() for an object named by a C string; the caller frees res->data. */
static int simple(struct osd *o, int op, const char *name, struct osd_request r,
                  struct osd_result *res, struct pglog_error *err) {
  r.op = op;
  r.name = name;
  r.name_size = strlen(name);
  int rc = osd_do(o, &r, res);
  if (rc && err)
    *err = res->error;
  return rc;
}

int osd_write(struct osd *o, const char *name, const void *data, size_t size, uint64_t offset,
              struct pglog_error *err) {
  struct osd_result res;
  struct osd_request r = {.data = data, .length = size, .offset = offset};
  return simple(o, OSD_WRITE, name, r, &res, err);
}

int osd_write_full(struct osd *o, const char *name, const void *data, size_t size,
                   struct pglog_error *err) {
  struct osd_result res;
  struct osd_request r = {.data = data, .length = size};
  return simple(o, OSD_WRITE_FULL, name, r, &res, err);
}

int osd_read(struct osd *o, const char *name, void *data, size_t *size, uint64_t offset,
             struct pglog_error *err) {
  struct osd_result res;
  struct osd_request r = {.length = *size, .offset = offset};
  int rc = simple(o, OSD_READ, name, r, &res, err);
  if (rc)
    return rc;
  if (res.length)
    memcpy(data, res.data, res.length);
  *size = res.length;
  free(res.data);
  return 0;
}

int osd_stat(struct osd *o, const char *name, uint64_t *size, struct pglog_error *err) {
  struct osd_result res;
  int rc = simple(o, OSD_STAT, name, (struct osd_request){0}, &res, err);
  if (rc == 0)
    *size = res.size;
  return rc;
}

int osd_remove(struct osd *o, const char *name, struct pglog_error *err) {
  struct osd_result res;
  return simple(o, OSD_REMOVE, name, (struct osd_request){0}, &res, err);
}
