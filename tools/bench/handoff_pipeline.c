/* SPDX-License-Identifier: Apache-2.0
 *
 * handoff_pipeline.c - a run of the whole of osdcore: 4K WriteFull requests, each of another
 * object, into a new database.
 */
#include "handoff_pipeline.h"

#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdlib.h>

#include "handoff_clients.h"
#include "handoff_threads.h"
#include "osdcore/osd.h"

#define DATA_BYTES 4096
#define PG_BITS 6

struct pipeline;

struct request {
  struct pipeline *p;
  char name[32];
  uint64_t due_ns, handoff_ns, answered_ns;
};

struct pipeline {
  const struct handoff_load *l;
  struct osd *osd;
  struct request *requests;
  uint8_t data[DATA_BYTES];
  atomic_bool failed;
  struct fail *f; /* whoever sets `failed` fills it in */
};

/* ---------------------------------------------------------------------------------------------- */
/* Requests                                                                                       */

static int failed(struct request *r, const char *why) {
  if (!atomic_exchange(&r->p->failed, true))
    fail_set(r->p->f, "write_full of %s: %.900s", r->name, why);
  return -1;
}

static void answered(void *arg, struct osd_result *res) {
  struct request *r = arg;
  if (res->code != 0)
    failed(r, res->error.text);
  r->handoff_ns = res->at_ns[OSD_TAKEN] - res->at_ns[OSD_SUBMITTED];
  r->answered_ns = res->at_ns[OSD_ANSWERED];
}

static int submit(void *arg, uint64_t i, uint64_t due_ns) {
  struct pipeline *p = arg;
  struct request *r = &p->requests[i];
  struct pglog_error e;
  struct osd_request q = {.op = OSD_WRITE_FULL,
                          .name = r->name,
                          .name_size = strlen(r->name),
                          .data = p->data,
                          .length = DATA_BYTES,
                          .keep_data = true,
                          .client = i % p->l->clients + 1,
                          .tid = i + 1,
                          .incarnation = 1,
                          .done = answered,
                          .arg = r};
  r->due_ns = due_ns;
  if (atomic_load_explicit(&p->failed, memory_order_relaxed))
    return -1;
  return osd_submit(p->osd, &q, 0, &e) == 0 ? 0 : failed(r, e.text);
}

/* Bytes that no compression makes fewer of. */
static void data_make(uint8_t *data) {
  uint64_t x = 88172645463325252u;
  for (size_t i = 0; i < DATA_BYTES; i++) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    data[i] = (uint8_t)x;
  }
}

static void requests_make(struct pipeline *p) {
  size_t n = p->l->ops;
  data_make(p->data);
  p->requests = must_realloc(NULL, n * sizeof(*p->requests));
  for (size_t i = 0; i < n; i++) {
    struct request *r = &p->requests[i];
    *r = (struct request){.p = p};
    snprintf(r->name, sizeof(r->name), "rbd_data.1.%016zx", i);
  }
}

/* ---------------------------------------------------------------------------------------------- */
/* Database                                                                                       */

static int dir_make(const char *db, char *dir, size_t cap, struct fail *f) {
  snprintf(dir, cap, "%s/handoff.XXXXXX", db);
  return mkdtemp(dir) ? 0 : fail_set(f, "%s: %s", dir, strerror(errno));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *w) {
  (void)st;
  (void)type;
  (void)w;
  return remove(path);
}

static int dir_remove(const char *dir, struct fail *f) {
  int rc = nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
  return rc == 0 ? 0 : fail_set(f, "%s cannot be removed: %s", dir, strerror(errno));
}

static int store_open(struct pipeline *p, int what, const char *dir, struct fail *f) {
  struct pglog_error e;
  struct osd_config c = {.path = dir,
                         .store = p->l->store,
                         .pg_bits = PG_BITS,
                         .queue = what == HANDOFF_INLINE ? OPQ_FAST : what,
                         .inline_run = what == HANDOFF_INLINE,
                         .shards = p->l->shards,
                         .threads = p->l->threads};
  return osd_open(&p->osd, &c, &e) == 0 ? 0 : fail_set(f, "%s: %.900s", dir, e.text);
}

/* ---------------------------------------------------------------------------------------------- */
/* Figures                                                                                        */

/* Returns when the last one was answered. */
static uint64_t latencies(const struct pipeline *p, struct handoff_result *out) {
  size_t n = p->l->ops;
  uint64_t *ns = must_realloc(NULL, n * sizeof(*ns)), last = 0;
  for (size_t i = 0; i < n; i++)
    ns[i] = p->requests[i].handoff_ns;
  handoff_latencies(ns, n, out);
  for (size_t i = 0; i < n; i++) {
    const struct request *r = &p->requests[i];
    ns[i] = r->answered_ns - r->due_ns;
    last = r->answered_ns > last ? r->answered_ns : last;
  }
  qsort(ns, n, sizeof(*ns), cmp_u64);
  out->m[H_E2E_P50] = (double)ns[n / 2] / 1e3;
  out->m[H_E2E_P99] = (double)ns[n - 1 - n / 100] / 1e3;
  free(ns);
  return last;
}

static void thread_figures(const struct handoff_load *l, const struct clients *c, double wall,
                           const double *before, const double *after, double *m) {
  double share[THREAD_KINDS];
  for (int i = 0; i < THREAD_KINDS; i++)
    share[i] = after[i] > before[i] ? (after[i] - before[i]) / wall : 0;
  /* The clients have ended: they have read their clocks themselves. */
  m[H_CLIENT_CPU] = (double)c->cpu_ns / 1e3 / wall / l->clients;
  m[H_WORKER_CPU] = share[THREAD_WORKER] / (l->shards * l->threads);
  m[H_COMMITTER_CPU] = share[THREAD_COMMITTER];
  m[H_CHECKPOINT_CPU] = share[THREAD_CHECKPOINT];
  m[H_ROCKSDB_CPU] = share[THREAD_ROCKSDB];
  m[H_OTHER_CPU] = share[THREAD_OTHER];
}

static int measure(struct pipeline *p, struct handoff_result *out, struct fail *f) {
  const struct handoff_load *l = p->l;
  struct clients c = {.l = l, .hand_over = submit, .arg = p};
  double before[THREAD_KINDS], after[THREAD_KINDS], ops = (double)l->ops, *m = out->m;
  struct osd_stats st;
  if (threads_cpu(before, f) != 0 || clients_start(&c, f) != 0)
    return -1;
  double cpu = cpu_us();
  clients_run(&c);
  osd_drain(p->osd);
  cpu = cpu_us() - cpu;
  if (atomic_load(&p->failed) || threads_cpu(after, f) != 0)
    return -1;
  osd_stats(p->osd, &st);
  double wall = (double)(latencies(p, out) - c.start_ns) / 1e3;
  m[H_WAKES] = (double)st.queue.wakes / ops;
  m[H_SUBMIT] = (double)c.submit_ns / 1e3 / ops;
  m[H_RATE] = ops / wall * 1e6;
  m[H_CPU_TOTAL] = cpu / ops;
  thread_figures(l, &c, wall, before, after, m);
  return 0;
}

int handoff_pipeline(int what, const struct handoff_load *l, struct handoff_result *out,
                     struct fail *f) {
  struct pipeline p = {.l = l, .f = f};
  struct fail late;
  char dir[4096 + 64];
  memset(out, 0, sizeof(*out));
  if (dir_make(l->db, dir, sizeof(dir), f) != 0)
    return -1;
  requests_make(&p);
  int rc = store_open(&p, what, dir, f);
  if (rc == 0)
    rc = measure(&p, out, f);
  osd_close(p.osd);
  free(p.requests);
  if (dir_remove(dir, &late) != 0 && rc == 0)
    rc = fail_set(f, "%s", late.text);
  return rc;
}
