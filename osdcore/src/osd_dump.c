/* SPDX-License-Identifier: Apache-2.0
 *
 * osd_dump.c - figures, dumps of requests in flight and of the slowest, and the watchdog.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "osd_internal.h"

#define SHOWN 255 /* bytes of a name in dumps */

/* What is kept of a request. */
struct slow_request {
  uint64_t seq, at[OSD_STAGES], took_ns;
  struct osd_reqid id;
  uint32_t hash;
  uint8_t op;
  uint8_t name_size;
  uint8_t name[SHOWN];
};

const char *osd_stage_str(int stage) {
  static const char *const names[OSD_STAGES] = {"submitted", "taken",   "run",
                                                "grouped",   "written", "answered"};
  return stage >= 0 && stage < OSD_STAGES ? names[stage] : NULL;
}

void osd_stats(struct osd *o, struct osd_stats *out) {
  memset(out, 0, sizeof *out);
  opq_stats(o->q, &out->queue);
  out->requests = o->requests;
  out->writes = o->writes;
  out->reads = o->reads;
  out->duplicates = o->duplicates;
  out->errors = o->errors;
  out->groups = o->groups;
  out->group_max = o->group_max;
  out->ops_now = o->ops_now;
  out->bytes_now = o->bytes_now;
  out->waits = o->waits;
  out->stuck = o->stuck;
  out->load_ns = o->load_ns;
  out->load_entries = o->load_entries;
}

static struct slow_request copy_of(struct request *r) {
  struct slow_request c = {.seq = r->seq, .id = r->id, .hash = r->hash, .op = r->op};
  c.name_size = (uint8_t)(r->name.size < SHOWN ? r->name.size : SHOWN);
  memcpy(c.name, r->name.data, c.name_size);
  for (int i = 0; i < OSD_STAGES; i++)
    c.at[i] = atomic_load_explicit(&r->at[i], memory_order_relaxed);
  return c;
}

/* ---------------------------------------------------------------------------------------------- */
/* The slowest                                                                                    */

int slow_init(struct osd *o, struct pglog_error *err) {
  struct slow *s = &o->slow;
  s->keep = o->c.slow_keep;
  s->v = calloc(s->keep, sizeof *s->v);
  return s->v
             ? 0
             : osd_error(err, PGLOG_ENOMEM, "out of memory for %" PRIu32 " slow requests", s->keep);
}

void slow_free(struct osd *o) {
  free(o->slow.v);
}

static void slow_insert(struct slow *s, const struct slow_request *c) {
  uint32_t i = s->n < s->keep ? s->n++ : s->n - 1;
  for (; i && s->v[i - 1].took_ns < c->took_ns; i--)
    s->v[i] = s->v[i - 1];
  s->v[i] = *c;
  if (s->n == s->keep)
    atomic_store_explicit(&s->least, s->v[s->n - 1].took_ns, memory_order_relaxed);
}

void slow_note(struct request *r) {
  struct slow *s = &r->o->slow;
  uint64_t took = atomic_load_explicit(&r->at[OSD_ANSWERED], memory_order_relaxed) -
                  atomic_load_explicit(&r->at[OSD_SUBMITTED], memory_order_relaxed);
  if (took <= atomic_load_explicit(&s->least, memory_order_relaxed))
    return;
  struct slow_request c = copy_of(r);
  c.took_ns = took;
  pthread_mutex_lock(&s->lock);
  if (s->n < s->keep || took > s->v[s->n - 1].took_ns)
    slow_insert(s, &c);
  pthread_mutex_unlock(&s->lock);
}

/* ---------------------------------------------------------------------------------------------- */
/* JSON                                                                                           */

static json_t *name_json(const struct slow_request *c) {
  char out[3 * SHOWN + 1], *p = out;
  for (uint8_t i = 0; i < c->name_size; i++)
    if (c->name[i] > ' ' && c->name[i] < 0x7f && c->name[i] != '%')
      *p++ = (char)c->name[i];
    else
      p += sprintf(p, "%%%02X", c->name[i]);
  return json_stringn(out, (size_t)(p - out));
}

static int last_stage(const struct slow_request *c) {
  int last = OSD_SUBMITTED;
  for (int i = 0; i < OSD_STAGES; i++)
    if (c->at[i])
      last = i;
  return last;
}

static json_t *stages_json(const struct slow_request *c) {
  json_t *j = json_object();
  for (int i = OSD_SUBMITTED + 1; i < OSD_STAGES; i++)
    if (c->at[i])
      json_object_set_new(j, osd_stage_str(i),
                          json_integer((json_int_t)(c->at[i] - c->at[OSD_SUBMITTED])));
  return j;
}

static json_t *pg_json(struct osd *o, uint32_t hash) {
  struct pg *pg = pg_find(o, hash);
  return pg ? json_string(pg->name) : json_null();
}

static json_t *request_json(struct osd *o, const struct slow_request *c, uint64_t now) {
  uint64_t end = c->at[OSD_ANSWERED] ? c->at[OSD_ANSWERED] : now;
  return json_pack("{s:s,s:o,s:o,s:I,s:I,s:I,s:s,s:I,s:o}", "op", osd_op_str(c->op), "object",
                   name_json(c), "pg", pg_json(o, c->hash), "client", (json_int_t)c->id.client,
                   "tid", (json_int_t)c->id.tid, "incarnation", (json_int_t)c->id.incarnation,
                   "stage", osd_stage_str(last_stage(c)), "age_ns",
                   (json_int_t)(end - c->at[OSD_SUBMITTED]), "at_ns", stages_json(c));
}

static char *dump(struct osd *o, const struct slow_request *v, size_t n) {
  json_t *list = json_array(), *all = json_pack("{s:o}", "requests", list);
  uint64_t now = opq_now();
  int rc = all ? 0 : -1;
  for (size_t i = 0; i < n && rc == 0; i++)
    rc = json_array_append_new(list, request_json(o, &v[i], now));
  char *text = rc ? NULL : json_dumps(all, JSON_COMPACT);
  json_decref(all);
  return text;
}

static int by_seq(const void *a, const void *b) {
  const struct slow_request *x = a, *y = b;
  return (x->seq > y->seq) - (x->seq < y->seq);
}

char *osd_dump_in_flight(struct osd *o) {
  struct slow_request *v = NULL, *more;
  size_t n = 0, cap = 0;
  for (uint32_t i = 0; i < OSD_STRIPES; i++) {
    struct stripe *s = &o->stripes[i];
    pthread_mutex_lock(&s->lock);
    for (struct request *r = s->first; r; r = r->right) {
      if (n == cap) {
        cap = 2 * cap + 64;
        more = realloc(v, cap * sizeof *v);
        if (!more) {
          pthread_mutex_unlock(&s->lock);
          free(v);
          return NULL;
        }
        v = more;
      }
      v[n++] = copy_of(r);
    }
    pthread_mutex_unlock(&s->lock);
  }
  if (n)
    qsort(v, n, sizeof *v, by_seq);
  char *text = dump(o, v, n);
  free(v);
  return text;
}

char *osd_dump_slow(struct osd *o) {
  struct slow *s = &o->slow;
  struct slow_request *v = calloc(s->keep, sizeof *v);
  if (!v)
    return NULL;
  pthread_mutex_lock(&s->lock);
  uint32_t n = s->n;
  memcpy(v, s->v, n * sizeof *v);
  pthread_mutex_unlock(&s->lock);
  char *text = dump(o, v, n);
  free(v);
  return text;
}

/* ---------------------------------------------------------------------------------------------- */
/* The watchdog                                                                                   */

/* Since when it is in the hands of a thread that should be quick about it; 0: it is not. */
static uint64_t busy_since(struct request *r, const char **what) {
  static const struct {
    enum osd_stage in, out;
    const char *what;
  } work[] = {{OSD_TAKEN, OSD_RUN, "running"}, {OSD_GROUPED, OSD_WRITTEN, "being written"}};
  for (size_t i = 0; i < sizeof work / sizeof *work; i++) {
    uint64_t in = atomic_load_explicit(&r->at[work[i].in], memory_order_relaxed);
    if (in && !atomic_load_explicit(&r->at[work[i].out], memory_order_relaxed)) {
      *what = work[i].what;
      return in;
    }
  }
  return 0;
}

/* The first one of a stripe that is stuck and was not reported. */
static bool find_stuck(struct osd *o, struct stripe *s, char *out, size_t cap) {
  uint64_t now = opq_now(), most = (uint64_t)o->c.watchdog_ms * 1000000u;
  bool found = false;
  pthread_mutex_lock(&s->lock);
  for (struct request *r = s->first; r && !found; r = r->right) {
    const char *what;
    uint64_t since = r->reported ? 0 : busy_since(r, &what);
    if (!since || now < since || now - since < most)
      continue;
    found = r->reported = true;
    snprintf(out, cap, "stuck: %s of object %.*s, %s for %" PRIu64 " ms", osd_op_str(r->op),
             (int)(r->name.size < SHOWN ? r->name.size : SHOWN), (const char *)r->name.data, what,
             (now - since) / 1000000u);
  }
  pthread_mutex_unlock(&s->lock);
  return found;
}

static void watch(struct osd *o) {
  char text[SHOWN + 128];
  for (uint32_t i = 0; i < OSD_STRIPES; i++)
    while (find_stuck(o, &o->stripes[i], text, sizeof text)) {
      atomic_fetch_add_explicit(&o->stuck, 1, memory_order_relaxed);
      osd_log(o, "%s", text);
    }
}

static struct timespec in_ms(uint64_t ms) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  uint64_t ns = (uint64_t)t.tv_nsec + ms % 1000 * 1000000u;
  t.tv_sec += (time_t)(ms / 1000 + ns / 1000000000u);
  t.tv_nsec = (long)(ns % 1000000000u);
  return t;
}

static void *watchdog_main(void *arg) {
  struct osd *o = arg;
  struct watchdog *w = &o->watchdog;
  pthread_mutex_lock(&w->lock);
  while (!w->stop) {
    struct timespec until = in_ms(o->c.watchdog_ms / 4 + 1);
    pthread_cond_timedwait(&w->stopped, &w->lock, &until);
    pthread_mutex_unlock(&w->lock);
    watch(o);
    pthread_mutex_lock(&w->lock);
  }
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

int watchdog_start(struct osd *o, struct pglog_error *err) {
  struct watchdog *w = &o->watchdog;
  if (o->manual)
    return 0;
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->stopped, &attr);
  pthread_condattr_destroy(&attr);
  int rc = pthread_create(&w->thread, NULL, watchdog_main, o);
  if (rc)
    return osd_error(err, PGLOG_ENOMEM, "the watchdog cannot be started: %s", strerror(rc));
  pthread_setname_np(w->thread, "osd:watch");
  w->started = true;
  return 0;
}

void watchdog_stop(struct osd *o) {
  struct watchdog *w = &o->watchdog;
  if (!w->started)
    return;
  pthread_mutex_lock(&w->lock);
  w->stop = true;
  pthread_cond_signal(&w->stopped);
  pthread_mutex_unlock(&w->lock);
  pthread_join(w->thread, NULL);
  pthread_mutex_destroy(&w->lock);
  pthread_cond_destroy(&w->stopped);
}
