/* SPDX-License-Identifier: Apache-2.0 */
#include "handoff.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>

#include "args.h"
#include "handoff_run.h"
#include "osdcore/opq.h"

#define LIST_MAX 32
#define CAPACITY_OPS 200000 /* operations of a run that finds the highest rate */
#define CAPACITY_RUNS 3

static const struct what {
  const char *name;
  int what;
} whats[] = {
    {"single", OPQ_SINGLE},      {"sharded", OPQ_SHARDED},  {"fast", OPQ_FAST},
    {"inline", HANDOFF_INLINE},  {"futex", HANDOFF_FUTEX},
};
#define N_WHATS (sizeof(whats) / sizeof(whats[0]))
#define FUTEX (N_WHATS - 1)

static const char *const metric_names[H_METRICS] = {
    "avg_us",       "min_us",        "p50_us",    "p99_us",   "p999_us",
    "wakes_per_op", "cpu_us_per_op", "submit_us", "ops_per_s"};

struct args {
  bool use[N_WHATS];
  uint64_t clients[LIST_MAX];
  size_t n_clients;
  uint64_t ops, rounds, shards, threads;
  double gap_us, load; /* load > 0: in place of the gap */
  bool json;
};

static void usage(FILE *out) {
  fprintf(out,
          "usage: pglog_bench handoff [options]\n"
          "\n"
          "How long an operation takes from its submit to a worker, by queue: empty operations, the queue\n"
          "alone. With one client and one worker both are pinned to a processor each.\n"
          "\n"
          "  --queue=A,B,..    single, sharded, fast, inline (fast with inline run), futex (a bare\n"
          "                    futex wake); default: all but inline. futex has one client only\n"
          "  --clients=N,N,..  submitting threads (1)\n"
          "  --gap=US          between two operations, of all clients together; 0: as fast as they can\n"
          "                    (5)\n"
          "  --load=F          instead: F times the highest rate that sharded keeps up with\n"
          "  --ops=N           operations in a run (10000)\n"
          "  --rounds=N        runs of each queue, in turn; medians are reported (5)\n"
          "  --shards=N        (1)\n"
          "  --threads=N       workers per shard (1)\n"
          "  --json            JSON in place of tables: an object, or an array of them if there are\n"
          "                    several numbers of clients\n");
}

/* ---------------------------------------------------------------------------------------------- */
/* Options                                                                                        */

static int parse_queues(struct args *a, const char *text) {
  memset(a->use, 0, sizeof(a->use));
  for (;;) {
    size_t len = strcspn(text, ","), i = 0;
    while (i < N_WHATS && (strlen(whats[i].name) != len || strncmp(whats[i].name, text, len) != 0))
      i++;
    if (i == N_WHATS)
      return bad_option("queue", "some of single, sharded, fast, inline, futex", text);
    a->use[i] = true;
    if (text[len] == 0)
      return 0;
    text += len + 1;
  }
}

static int parse_clients(struct args *a, const char *text) {
  char part[32];
  a->n_clients = 0;
  for (;;) {
    size_t len = strcspn(text, ",");
    if (len >= sizeof(part) || a->n_clients == LIST_MAX)
      return bad_option("clients", "at most 32 numbers", text);
    memcpy(part, text, len);
    part[len] = 0;
    int rc = parse_number("clients", part, 1, 1000, &a->clients[a->n_clients++]);
    if (rc != 0 || text[len] == 0)
      return rc;
    text += len + 1;
  }
}

static int parse_real(const char *name, const char *text, double min, double max, double *out) {
  char *end, limit[64];
  errno = 0;
  double v = strtod(text, &end);
  if (end == text || *end || errno || !(v >= min && v <= max)) {
    snprintf(limit, sizeof(limit), "a number from %g to %g", min, max);
    return bad_option(name, limit, text);
  }
  *out = v;
  return 0;
}

static int parse_option(struct args *a, const char *name, const char *v) {
  if (strcmp(name, "queue") == 0)
    return parse_queues(a, v);
  if (strcmp(name, "clients") == 0)
    return parse_clients(a, v);
  if (strcmp(name, "gap") == 0)
    return parse_real(name, v, 0, 1e6, &a->gap_us);
  if (strcmp(name, "load") == 0)
    return parse_real(name, v, 0.01, 10, &a->load);
  if (strcmp(name, "ops") == 0)
    return parse_number(name, v, 1000, 100000000, &a->ops);
  if (strcmp(name, "rounds") == 0)
    return parse_number(name, v, 1, 1000, &a->rounds);
  if (strcmp(name, "shards") == 0)
    return parse_number(name, v, 1, 1024, &a->shards);
  if (strcmp(name, "threads") == 0)
    return parse_number(name, v, 1, 64, &a->threads);
  a->json = true;
  return 0;
}

static const struct option options[] = {
    {"queue", required_argument, NULL, 0},   {"clients", required_argument, NULL, 0},
    {"gap", required_argument, NULL, 0},     {"load", required_argument, NULL, 0},
    {"ops", required_argument, NULL, 0},     {"rounds", required_argument, NULL, 0},
    {"shards", required_argument, NULL, 0},  {"threads", required_argument, NULL, 0},
    {"json", no_argument, NULL, 0},          {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* 0, an exit code, or -1: help was printed. */
static int parse_args(struct args *a, int argc, char **argv) {
  int c, which = 0;
  *a = (struct args){.clients = {1},
                     .n_clients = 1,
                     .ops = 10000,
                     .rounds = 5,
                     .shards = 1,
                     .threads = 1,
                     .gap_us = 5,
                     .use = {true, true, true, false, true}};
  while ((c = getopt_long(argc, argv, "h", options, &which)) != -1) {
    if (c == 'h') {
      usage(stdout);
      return -1;
    }
    if (c == '?')
      return 2;
    int rc = parse_option(a, options[which].name, optarg);
    if (rc != 0)
      return rc;
  }
  if (optind < argc) {
    fprintf(stderr, "pglog_bench: unexpected argument \"%s\"\n", argv[optind]);
    return 2;
  }
  return 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* Runs                                                                                           */

static int cmp_double(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(const struct handoff_result *r, size_t n, size_t offset) {
  double v[1000];
  for (size_t i = 0; i < n; i++)
    memcpy(&v[i], (const char *)&r[i] + offset, sizeof(v[i]));
  qsort(v, n, sizeof(v[0]), cmp_double);
  return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static struct handoff_result medians(const struct handoff_result *r, size_t n) {
  struct handoff_result out;
  for (size_t i = 0; i < H_METRICS; i++)
    out.m[i] = median(r, n, offsetof(struct handoff_result, m) + i * sizeof(double));
  out.cpu_total = median(r, n, offsetof(struct handoff_result, cpu_total));
  out.client_cpu = median(r, n, offsetof(struct handoff_result, client_cpu));
  out.worker_cpu = median(r, n, offsetof(struct handoff_result, worker_cpu));
  return out;
}

/* The gap at which the offered load is a->load. */
static int gap_of_load(const struct args *a, struct handoff_load l, double *gap_us,
                       struct fail *f) {
  struct handoff_result r[CAPACITY_RUNS];
  l.gap_us = 0;
  l.ops = CAPACITY_OPS;
  for (int i = 0; i < CAPACITY_RUNS; i++)
    if (handoff_run(OPQ_SHARDED, &l, &r[i], f) != 0)
      return -1;
  *gap_us = 1e6 / (medians(r, CAPACITY_RUNS).m[H_RATE] * a->load);
  return 0;
}

struct outcome {
  struct handoff_load load;
  bool has[N_WHATS];
  struct handoff_result r[N_WHATS];
};

static int run_clients(const struct args *a, uint32_t clients, struct outcome *o, struct fail *f) {
  struct handoff_load *l = &o->load;
  *l = (struct handoff_load){.clients = clients,
                             .shards = (uint32_t)a->shards,
                             .threads = (uint32_t)a->threads,
                             .ops = a->ops,
                             .gap_us = a->gap_us};
  if (a->load > 0 && gap_of_load(a, *l, &l->gap_us, f) != 0)
    return -1;
  size_t n = a->rounds;
  struct handoff_result *r = must_realloc(NULL, (N_WHATS + 1) * n * sizeof(*r)), *pace = r + N_WHATS * n;
  int rc = 0;
  for (size_t i = 0; i < N_WHATS; i++)
    o->has[i] = a->use[i] && (i != FUTEX || clients == 1);
  for (size_t round = 0; round < n && rc == 0; round++) {
    for (size_t i = 0; i < N_WHATS && rc == 0; i++)
      if (o->has[i])
        rc = handoff_run(whats[i].what, l, &r[i * n + round], f);
    if (rc == 0 && !handoff_pinned(l))
      rc = handoff_run(HANDOFF_PACE, l, &pace[round], f);
  }
  for (size_t i = 0; i < N_WHATS && rc == 0; i++)
    if (o->has[i]) {
      o->r[i] = medians(&r[i * n], n);
      if (!handoff_pinned(l))
        o->r[i].m[H_CPU] = o->r[i].cpu_total - medians(pace, n).cpu_total;
    }
  free(r);
  return rc;
}

/* ---------------------------------------------------------------------------------------------- */
/* Report                                                                                         */

static void print_json(const struct outcome *o) {
  const char *sep = "";
  printf("{\"gap_us\":%.3f,\"clients\":%u,\"shards\":%u,\"threads\":%u,\"ops\":%" PRIu64
         ",\"pinned\":%s,\"queues\":{",
         o->load.gap_us, o->load.clients, o->load.shards, o->load.threads, o->load.ops,
         handoff_pinned(&o->load) ? "true" : "false");
  for (size_t i = 0; i < N_WHATS; i++) {
    if (!o->has[i])
      continue;
    printf("%s\"%s\":{", sep, whats[i].name);
    for (size_t k = 0; k < H_METRICS; k++)
      printf("\"%s\":%.4f,", metric_names[k], o->r[i].m[k]);
    printf("\"client_cpu\":%.4f,\"worker_cpu\":%.4f}", o->r[i].client_cpu, o->r[i].worker_cpu);
    sep = ",";
  }
  printf("}}");
}

static void print_table(const struct args *a, const struct outcome *o) {
  const struct handoff_load *l = &o->load;
  printf("%u client%s, %u shard%s of %u worker%s%s, ", l->clients, l->clients == 1 ? "" : "s",
         l->shards, l->shards == 1 ? "" : "s", l->threads, l->threads == 1 ? "" : "s",
         handoff_pinned(l) ? " (pinned)" : "");
  if (l->gap_us > 0)
    printf("an operation each %.2f us", l->gap_us);
  else
    printf("operations as fast as they can");
  printf("; %" PRIu64 " operations, %" PRIu64 " rounds (medians); us\n", l->ops, a->rounds);
  printf("%-8s %9s %9s %9s %9s %9s %9s %9s %9s %10s\n", "queue", "avg", "min", "p50", "p99",
         "p99.9", "wakes/op", "CPU/op", "submit", "ops/s");
  for (size_t i = 0; i < N_WHATS; i++) {
    const double *m = o->r[i].m;
    if (o->has[i])
      printf("%-8s %9.2f %9.2f %9.2f %9.2f %9.2f %9.3f %9.2f %9.2f %10.0f\n", whats[i].name,
             m[H_AVG], m[H_MIN], m[H_P50], m[H_P99], m[H_P999], m[H_WAKES], m[H_CPU], m[H_SUBMIT],
             m[H_RATE]);
  }
  printf("\n");
}

int handoff_main(int argc, char **argv) {
  struct args a;
  struct fail f;
  int rc = parse_args(&a, argc, argv);
  if (rc != 0)
    return rc < 0 ? 0 : rc;
  if (a.json && a.n_clients > 1)
    printf("[");
  for (size_t i = 0; i < a.n_clients; i++) {
    struct outcome o;
    if (run_clients(&a, (uint32_t)a.clients[i], &o, &f) != 0) {
      fprintf(stderr, "pglog_bench: %s\n", f.text);
      return 1;
    }
    if (!a.json)
      print_table(&a, &o);
    else {
      print_json(&o);
      printf("%s", i + 1 < a.n_clients ? "," : "");
    }
    fflush(stdout);
  }
  if (a.json)
    printf("%s\n", a.n_clients > 1 ? "]" : "");
  return ferror(stdout) ? 1 : 0;
}
