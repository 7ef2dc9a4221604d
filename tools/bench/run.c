/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "accounting.h"
#include "ring.h"

#define MARKER "PGLOG_BENCH" /* a file that says that the directory is ours to empty */
#define RING_FILE "poc.ring"

/* ---------------------------------------------------------------------------------------------- */
/* Directories                                                                                    */

static int dir_empty(const char *dir, bool keep_ring, struct fail *f) {
  char path[4096 + 300];
  int rc = 0;
  DIR *d = opendir(dir);
  if (!d)
    return fail_set(f, "%s: %s", dir, strerror(errno));
  struct dirent *e;
  while (rc == 0 && (e = readdir(d)) != NULL) {
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
        strcmp(e->d_name, MARKER) == 0 || (keep_ring && strcmp(e->d_name, RING_FILE) == 0))
      continue;
    if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode))
      rc = dir_empty(path, false, f);
    if (rc == 0 && remove(path) != 0)
      rc = fail_set(f, "%s: %s", path, strerror(errno));
  }
  closedir(d);
  return rc;
}

static bool dir_is_ours(const char *dir) {
  char path[4096 + 32];
  snprintf(path, sizeof(path), "%s/%s", dir, MARKER);
  return access(path, F_OK) == 0;
}

/* Make `dir`, or empty it if a run of ours left it. */
static int dir_prepare(const char *dir, struct fail *f) {
  char path[4096 + 32];
  if (mkdir(dir, 0755) == 0) {
    snprintf(path, sizeof(path), "%s/%s", dir, MARKER);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0)
      return fail_set(f, "%s: %s", path, strerror(errno));
    close(fd);
    return 0;
  }
  if (errno != EEXIST)
    return fail_set(f, "%s: %s", dir, strerror(errno));
  if (!dir_is_ours(dir))
    return fail_set(f, "%s: exists and was not made by pglog_bench; choose another --db", dir);
  return dir_empty(dir, true, f);
}

int run_remove(const char *dir, struct fail *f) {
  char path[4096 + 32];
  if (!dir_is_ours(dir))
    return access(dir, F_OK) != 0 ? 0 : fail_set(f, "%s: was not made by pglog_bench", dir);
  if (dir_empty(dir, false, f) != 0)
    return -1;
  snprintf(path, sizeof(path), "%s/%s", dir, MARKER);
  unlink(path);
  return rmdir(dir) == 0 ? 0 : fail_set(f, "%s: %s", dir, strerror(errno));
}

/* ---------------------------------------------------------------------------------------------- */
/* Readings                                                                                       */

/* A figure of /proc/self/status in bytes. */
static uint64_t proc_status(const char *name) {
  char line[256];
  uint64_t kb = 0;
  FILE *in = fopen("/proc/self/status", "r");
  while (in && fgets(line, sizeof(line), in))
    if (strncmp(line, name, strlen(name)) == 0)
      sscanf(line + strlen(name), ": %" SCNu64, &kb);
  if (in)
    fclose(in);
  return kb * 1024;
}

static void reset_peak_rss(void) {
  FILE *out = fopen("/proc/self/clear_refs", "w");
  if (!out)
    return;
  fputs("5", out);
  fclose(out);
}

struct reading {
  uint64_t ns;
  double cpu;
  struct accounting acc;
  struct store_stats store;
  uint64_t ring_bytes;
};

/* ---------------------------------------------------------------------------------------------- */
/* One run                                                                                        */

struct run {
  const struct mode *mode;
  const struct plan *plan;
  const char *dir, *label;
  struct bench_db db;
  struct ring *ring;
  rocksdb_writeoptions_t *sync, *nosync;
  rocksdb_writebatch_t *batch;
  uint64_t *latency; /* by group, ns */
  size_t n_groups, cap_groups;
  uint64_t group_start;      /* 0: no group is open */
  struct store_stats closed; /* figures of stores closed within the clock */
  uint64_t paused_ns;        /* moving versions, others' turns: time that the clock leaves out */
  uint64_t paused_cpu_ns;
  uint64_t next_progress;
  uint64_t rss_base;
  int parent; /* socket: our turn comes from it, and what we say goes to it */
  uint64_t in_turn;  /* groups of this turn */
};

static int read_clock(struct run *r, struct reading *x, struct fail *f) {
  x->ns = clock_ns(CLOCK_MONOTONIC);
  x->cpu = cpu_us();
  accounting_get(&x->acc);
  x->ring_bytes = r->ring ? ring_bytes(r->ring) : 0;
  if (r->mode->engine->stats(&r->db, &x->store, f) != 0)
    return -1;
  x->store.arena_bytes += r->closed.arena_bytes;
  x->store.checkpoints += r->closed.checkpoints;
  x->store.checkpoint_syncs += r->closed.checkpoint_syncs;
  return 0;
}

static void batch_add(struct run *r, const struct trace_op *op) {
  rocksdb_column_family_handle_t *cf = r->db.cf[op->cf];
  const char *k = (const char *)op->key.data, *v = (const char *)op->value.data;
  switch (op->type) {
    case TRACE_PUT:
      rocksdb_writebatch_put_cf(r->batch, cf, k, op->key.size, v ? v : "", op->value.size);
      break;
    case TRACE_DELETE:
      rocksdb_writebatch_delete_cf(r->batch, cf, k, op->key.size);
      break;
    case TRACE_SINGLE_DELETE:
      rocksdb_writebatch_singledelete_cf(r->batch, cf, k, op->key.size);
      break;
  }
}

static int write_batch(struct run *r, bool last, struct fail *f) {
  int rc = 0;
  if (last || rocksdb_writebatch_count(r->batch) > 0)
    rc = r->mode->engine->write(&r->db, last ? r->sync : r->nosync, r->batch, f);
  rocksdb_writebatch_clear(r->batch);
  return rc;
}

static int write_transaction(struct run *r, size_t i, struct fail *f) {
  const struct trace *t = r->plan->trace;
  bool last = t->last[i], keep = r->mode->pglog == PGLOG_KEEP;
  const uint8_t *end, *p = trace_record(t, i, &end);
  if (r->ring && ring_add(r->ring, p, end, f) != 0)
    return -1;
  while (p < end) {
    struct trace_op op;
    p = trace_op_next(p, end, &op);
    if (keep || op.cf != TRACE_CF_P)
      batch_add(r, &op);
  }
  if (write_batch(r, last, f) != 0)
    return -1;
  return r->ring && last ? ring_sync(r->ring, f) : 0;
}

static void group_done(struct run *r) {
  if (r->n_groups == r->cap_groups) {
    r->cap_groups = r->cap_groups ? r->cap_groups * 2 : 1 << 16;
    r->latency = must_realloc(r->latency, r->cap_groups * sizeof(*r->latency));
  }
  r->latency[r->n_groups++] = clock_ns(CLOCK_MONOTONIC) - r->group_start;
  r->group_start = 0;
}

static void progress(struct run *r, uint64_t pass, size_t i, bool end) {
  const struct plan *plan = r->plan;
  uint64_t now = clock_ns(CLOCK_MONOTONIC);
  if (!r->label || (now < r->next_progress && !end))
    return;
  r->next_progress = now + 100000000;
  double done = ((double)pass + (double)i / (double)plan->trace->n_records) / (double)plan->passes;
  char bar[41];
  for (int b = 0; b < 40; b++)
    bar[b] = b < (int)(done * 40) ? '#' : '.';
  bar[40] = 0;
  if (end)
    fprintf(stderr, "\r\033[K");
  else
    fprintf(stderr, "\r%-32s [%s] %3d %%", r->label, bar, (int)(done * 100));
  fflush(stderr);
}

static int reopen_in_the_middle(struct run *r, struct fail *f) {
  struct store_stats s;
  if (r->mode->engine->stats(&r->db, &s, f) != 0)
    return -1;
  r->closed.arena_bytes += s.arena_bytes;
  r->closed.checkpoints += s.checkpoints;
  r->closed.checkpoint_syncs += s.checkpoint_syncs;
  r->mode->engine->close(&r->db);
  return r->mode->engine->open(&r->db, r->dir, f);
}

/* What a child says to its parent. */
enum { SAYS_NEXT = 'n', SAYS_RESULT = 'r' };

static void await_turn(const struct run *r) {
  char c;
  if (recv(r->parent, &c, 1, 0) != 1)
    _exit(1); /* the parent is gone */
}

/* At the end of a group: let the others have their turn. */
static void take_turns(struct run *r) {
  char c = SAYS_NEXT;
  if (!r->plan->turn || ++r->in_turn < r->plan->turn)
    return;
  uint64_t ns = clock_ns(CLOCK_MONOTONIC);
  r->in_turn = 0;
  if (send(r->parent, &c, 1, MSG_NOSIGNAL) != 1)
    _exit(1);
  await_turn(r);
  r->paused_ns += clock_ns(CLOCK_MONOTONIC) - ns;
}

static int replay_pass(struct run *r, uint64_t pass, struct fail *f) {
  const struct trace *t = r->plan->trace;
  for (size_t i = 0; i < t->n_records; i++) {
    if (pass == 0 && i > 0 && i == r->plan->reopen_at && reopen_in_the_middle(r, f) != 0)
      return -1;
    if (t->records[i + 1] - t->records[i] == 4 + 12)
      continue;
    if (r->group_start == 0)
      r->group_start = clock_ns(CLOCK_MONOTONIC);
    if (write_transaction(r, i, f) != 0) {
      char why[sizeof(f->text)];
      memcpy(why, f->text, sizeof(why));
      return fail_set(f, "pass %" PRIu64 ", record %zu: %.900s", pass, i, why);
    }
    if (t->last[i]) {
      group_done(r);
      progress(r, pass, i, false);
      take_turns(r);
    }
  }
  return 0;
}

static int replay(struct run *r, uint64_t passes, struct fail *f) {
  for (uint64_t pass = 0; pass < passes; pass++) {
    uint64_t ns = clock_ns(CLOCK_MONOTONIC), cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    trace_shift(r->plan->trace, pass);
    r->paused_ns += clock_ns(CLOCK_MONOTONIC) - ns;
    r->paused_cpu_ns += clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
    if (replay_pass(r, pass, f) != 0)
      return -1;
  }
  return 0;
}

static int load_before(struct run *r, struct fail *f) {
  const struct keyspace_file *k = r->plan->before;
  struct trace_op op = {.type = TRACE_PUT, .cf = TRACE_CF_P};
  size_t pos = 0, n = 0;
  if (!k || r->mode->pglog == PGLOG_DROP)
    return 0;
  if (r->ring)
    return ring_load(r->ring, k, f);
  while (keyspace_file_next(k, &pos, &op.key, &op.value)) {
    batch_add(r, &op);
    if (++n % 100 == 0 && write_batch(r, false, f) != 0)
      return -1;
  }
  if (write_batch(r, true, f) != 0 || r->mode->engine->flush(&r->db, f) != 0)
    return -1;
  return rocksdb_wait_idle(&r->db, f);
}

/* The value that a share `q` of the groups does not exceed, us. */
static double quantile(const struct run *r, double q) {
  size_t i = (size_t)((double)r->n_groups * q);
  return (double)r->latency[i < r->n_groups ? i : r->n_groups - 1] / 1000.0;
}

static void evaluate(struct run *r, const struct reading *a, const struct reading *replayed,
                     const struct reading *b, struct result *out) {
  double txns = (double)r->plan->trace->n_transactions * (double)r->plan->passes, *m = out->m;
  m[M_TXNS_PER_S] = txns / ((double)(replayed->ns - a->ns - r->paused_ns) / 1e9);
  m[M_CPU_US] = (b->cpu - a->cpu - (double)r->paused_cpu_ns / 1000.0) / txns;
  qsort(r->latency, r->n_groups, sizeof(*r->latency), cmp_u64);
  m[M_P50] = quantile(r, 0.5);
  m[M_P99] = quantile(r, 0.99);
  m[M_P999] = quantile(r, 0.999);
  m[M_WAL] = (double)(b->acc.wal_bytes - a->acc.wal_bytes) / txns;
  m[M_FLUSH] = (double)(b->acc.flush_bytes - a->acc.flush_bytes) / txns;
  m[M_COMPACTION] = (double)(b->acc.compaction_bytes - a->acc.compaction_bytes) / txns;
  m[M_OTHER] = (double)(b->acc.other_bytes - a->acc.other_bytes) / txns;
  m[M_ARENA] =
      (double)(b->ring_bytes - a->ring_bytes + b->store.arena_bytes - a->store.arena_bytes) / txns;
  m[M_TOTAL] = m[M_WAL] + m[M_FLUSH] + m[M_COMPACTION] + m[M_ARENA] + m[M_OTHER];
  m[M_P_FLUSHES] = (double)(b->acc.p_flushes - a->acc.p_flushes);
  m[M_GROUPS] = (double)r->n_groups;
  m[M_WAL_SYNCS] = (double)(b->acc.wal_syncs - a->acc.wal_syncs);
  m[M_WAL_SWITCHES] = (double)(b->acc.wal_files - a->acc.wal_files);
  m[M_CHECKPOINTS] = (double)(b->store.checkpoints - a->store.checkpoints);
  m[M_CHECKPOINT_SYNCS] = (double)(b->store.checkpoint_syncs - a->store.checkpoint_syncs);
}

static int measure(struct run *r, struct result *out, struct fail *f) {
  struct reading start, replayed, end;
  struct space space = {0, 0};
  reset_peak_rss();
  if (read_clock(r, &start, f) != 0 || replay(r, r->plan->passes, f) != 0 ||
      read_clock(r, &replayed, f) != 0 || r->mode->engine->flush(&r->db, f) != 0 ||
      rocksdb_wait_idle(&r->db, f) != 0 || read_clock(r, &end, f) != 0)
    return -1;
  uint64_t peak = proc_status("VmHWM");
  evaluate(r, &start, &replayed, &end, out);
  out->m[M_RSS] = peak > r->rss_base ? (double)(peak - r->rss_base) : 0;
  progress(r, 0, 0, true);
  if (r->ring)
    ring_space(r->ring, &space);
  else if (r->mode->engine->space(&r->db, r->dir, &space, f) != 0)
    return -1;
  out->m[M_LIVE] = (double)space.live;
  out->m[M_FILE] = (double)space.file;
  return 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* Check                                                                                          */

static int check_one(void *arg, struct bytes key, struct bytes value, struct fail *f) {
  return model_check_add(arg, key, value, f);
}

static int check(struct run *r, const char *when, struct result *out, struct fail *f) {
  struct model_check c;
  if (!r->plan->model || r->mode->pglog != PGLOG_KEEP)
    return 0;
  struct fail why, tail;
  model_check_begin(&c, r->plan->model);
  int rc = r->mode->engine->scan(&r->db, check_one, &c, &why);
  int end = model_check_end(&c, &tail);
  if (rc == 0 && end != 0) {
    rc = end;
    why = tail;
  }
  if (rc == 0)
    rc = digest_compare(&r->plan->model->digest, &c.digest, &why);
  if (rc == 0 && r->plan->expect)
    rc = digest_compare(r->plan->expect, &c.digest, &why);
  out->after = c.digest.total;
  out->check = rc == 0 ? CHECK_EQUAL : CHECK_FAILED;
  digest_free(&c.digest);
  return rc == 0 ? 0 : fail_set(f, "check %s: %.900s", when, why.text);
}

/* ---------------------------------------------------------------------------------------------- */
/* The process of a run                                                                           */

static int open_all(struct run *r, struct fail *f) {
  char path[4096 + 32];
  if (dir_prepare(r->dir, f) != 0)
    return -1;
  snprintf(path, sizeof(path), "%s/%s", r->dir, RING_FILE);
  if (r->mode->pglog == PGLOG_RING && !(r->ring = ring_open(path, r->plan->trace, f)))
    return -1;
  r->rss_base = proc_status("VmRSS");
  return r->mode->engine->open(&r->db, r->dir, f);
}

static int reopen_timed(struct run *r, double *ms, struct fail *f) {
  uint64_t ns = clock_ns(CLOCK_MONOTONIC);
  int rc = r->mode->engine->open(&r->db, r->dir, f);
  *ms = (double)(clock_ns(CLOCK_MONOTONIC) - ns) / 1e6;
  return rc;
}

static void run_init(struct run *r, const struct mode *mode, const struct plan *plan,
                     const char *dir, const char *label) {
  memset(r, 0, sizeof(*r));
  r->mode = r->db.mode = mode;
  r->plan = plan;
  r->dir = dir;
  r->label = label;
  r->sync = rocksdb_writeoptions_create();
  r->nosync = rocksdb_writeoptions_create();
  rocksdb_writeoptions_set_sync(r->sync, 1);
  r->batch = rocksdb_writebatch_create();
  accounting_register();
}

static int run_whole(struct run *r, struct result *out, struct fail *f) {
  if (open_all(r, f) != 0 || load_before(r, f) != 0 || measure(r, out, f) != 0 ||
      check(r, "before reopening", out, f) != 0)
    return -1;
  r->mode->engine->close(&r->db);
  if (reopen_timed(r, &out->m[M_REOPEN_MS], f) != 0 || check(r, "after reopening", out, f) != 0)
    return -1;
  r->mode->engine->close(&r->db);
  ring_close(r->ring);
  return 0;
}

/* Replay one pass and leave the database as a kill would. */
static int run_until_killed(struct run *r, struct result *out, struct fail *f) {
  (void)out;
  return open_all(r, f) != 0 || load_before(r, f) != 0 || replay(r, 1, f) != 0 ? -1 : 0;
}

static int run_recovery(struct run *r, struct result *out, struct fail *f) {
  if (reopen_timed(r, &out->m[M_RECOVER_MS], f) != 0)
    return -1;
  /* The model is that of all passes; one was replayed. */
  if (r->plan->passes == 1 && check(r, "after a kill", out, f) != 0)
    return -1;
  r->mode->engine->close(&r->db);
  return 0;
}

typedef int (*run_fn)(struct run *r, struct result *out, struct fail *f);

/* A child that runs, as its parent sees it. */
struct child {
  pid_t pid;
  int socket;
  bool done;
};

/* Run `fn` in a child, which waits for its first turn. It ends without cleaning up. */
static int child_start(struct child *c, run_fn fn, struct run *r, struct result *out) {
  int ends[2];
  memset(out, 0, sizeof(*out));
  *c = (struct child){.pid = -1, .done = true};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return snprintf(out->text, sizeof(out->text), "socketpair: %s", strerror(errno)), -1;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    struct fail f = {""};
    /* Other children hold our parent's end too: that it is gone could go unnoticed. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    run_init(r, r->mode, r->plan, r->dir, r->label);
    r->parent = ends[1];
    await_turn(r);
    out->ok = fn(r, out, &f) == 0;
    progress(r, 0, 0, true);
    memcpy(out->text, f.text, sizeof(out->text));
    char says = SAYS_RESULT;
    bool said = send(r->parent, &says, 1, MSG_NOSIGNAL) == 1 &&
                send(r->parent, out, sizeof(*out), MSG_NOSIGNAL) == (ssize_t)sizeof(*out);
    _exit(said ? 0 : 1);
  }
  close(ends[1]);
  if (pid < 0) {
    snprintf(out->text, sizeof(out->text), "fork: %s", strerror(errno));
    close(ends[0]);
    return -1;
  }
  *c = (struct child){.pid = pid, .socket = ends[0]};
  return 0;
}

/* The child's result, or how it ended without one. */
static void child_end(struct child *c, bool whole, struct result *out) {
  struct result got = {.ok = false};
  int status = 0;
  whole = whole && recv(c->socket, &got, sizeof(got), MSG_WAITALL) == (ssize_t)sizeof(got);
  close(c->socket);
  waitpid(c->pid, &status, 0);
  c->done = true;
  if (whole)
    *out = got;
  else if (WIFSIGNALED(status))
    snprintf(out->text, sizeof(out->text), "its process ended by signal %d", WTERMSIG(status));
  else
    snprintf(out->text, sizeof(out->text), "its process ended with %d", WEXITSTATUS(status));
}

/* Let it have one turn. */
static void child_turn(struct child *c, struct result *out) {
  char says = 0;
  /* It may have ended in another's turn: no signal for us then. */
  bool heard = send(c->socket, "t", 1, MSG_NOSIGNAL) == 1 && recv(c->socket, &says, 1, 0) == 1;
  if (!heard || says == SAYS_RESULT)
    child_end(c, heard, out);
}

static void in_child(run_fn fn, struct run *r, struct result *out) {
  struct child c;
  if (child_start(&c, fn, r, out) == 0)
    while (!c.done)
      child_turn(&c, out);
}

/* Kill the process of a replay, and measure the opening after it. */
static bool recover_first(const struct run *plan, struct result *out) {
  struct run r = *plan;
  in_child(run_until_killed, &r, out);
  if (out->ok)
    in_child(run_recovery, &r, out);
  return out->ok;
}

void run_round(struct entry *entries, size_t n, const struct plan *plan) {
  struct child *c = must_realloc(NULL, n * sizeof(*c));
  struct plan alone = *plan;
  alone.turn = 0;
  for (size_t i = 0; i < n; i++) {
    struct entry *e = &entries[i];
    struct run r = {.mode = e->mode,
                    .plan = &alone,
                    .dir = e->dir,
                    .label = e->label[0] ? e->label : NULL};
    memset(e->result, 0, sizeof(*e->result));
    c[i].done = true;
    if (plan->recover && !recover_first(&r, e->result))
      continue;
    double recovered = e->result->m[M_RECOVER_MS];
    r.plan = plan;
    child_start(&c[i], run_whole, &r, e->result);
    e->recover_ms = recovered;
  }
  for (bool any = true; any;) {
    any = false;
    for (size_t i = 0; i < n; i++)
      if (!c[i].done) {
        child_turn(&c[i], entries[i].result);
        any = any || !c[i].done;
        if (c[i].done && entries[i].result->ok)
          entries[i].result->m[M_RECOVER_MS] = entries[i].recover_ms;
      }
  }
  free(c);
}
