/* SPDX-License-Identifier: Apache-2.0 */
#include "handoff.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>

#include "args.h"
#include "handoff_rounds.h"

#define LIST_MAX 32

struct args {
  struct handoff_plan plan;
  uint64_t clients[LIST_MAX];
  size_t n_clients;
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
  bool *use = a->plan.use;
  memset(use, 0, sizeof(a->plan.use));
  for (;;) {
    size_t len = strcspn(text, ","), i = 0;
    while (i < HANDOFF_WHATS &&
           (strlen(handoff_names[i]) != len || strncmp(handoff_names[i], text, len) != 0))
      i++;
    if (i == HANDOFF_WHATS)
      return bad_option("queue", "some of single, sharded, fast, inline, futex", text);
    use[i] = true;
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

static int parse_32(const char *name, const char *text, uint32_t max, uint32_t *out) {
  uint64_t v;
  int rc = parse_number(name, text, 1, max, &v);
  if (rc == 0)
    *out = (uint32_t)v;
  return rc;
}

static int parse_option(struct args *a, const char *name, const char *v) {
  struct handoff_plan *p = &a->plan;
  if (strcmp(name, "queue") == 0)
    return parse_queues(a, v);
  if (strcmp(name, "clients") == 0)
    return parse_clients(a, v);
  if (strcmp(name, "gap") == 0)
    return parse_real(name, v, 0, 1e6, &p->load.gap_us);
  if (strcmp(name, "load") == 0)
    return parse_real(name, v, 0.01, 10, &p->share);
  if (strcmp(name, "ops") == 0)
    return parse_number(name, v, 1000, 100000000, &p->load.ops);
  if (strcmp(name, "rounds") == 0)
    return parse_number(name, v, 1, HANDOFF_ROUNDS_MAX, &p->rounds);
  if (strcmp(name, "shards") == 0)
    return parse_32(name, v, 1024, &p->load.shards);
  if (strcmp(name, "threads") == 0)
    return parse_32(name, v, 64, &p->load.threads);
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
  *a = (struct args){
      .clients = {1},
      .n_clients = 1,
      .plan = {.use = {[HANDOFF_SINGLE] = true,
                       [HANDOFF_SHARDED] = true,
                       [HANDOFF_FAST] = true,
                       [HANDOFF_FUTEX] = true},
               .rounds = 5,
               .load = {.shards = 1, .threads = 1, .ops = 10000, .gap_us = 5}}};
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

static int run_all(const struct args *a, struct fail *f) {
  if (a->json && a->n_clients > 1)
    printf("[");
  for (size_t i = 0; i < a->n_clients; i++) {
    struct handoff_outcome o;
    if (handoff_rounds(&a->plan, (uint32_t)a->clients[i], &o, f) != 0)
      return -1;
    if (!a->json)
      handoff_table(&a->plan, &o);
    else {
      handoff_json(&o);
      printf("%s", i + 1 < a->n_clients ? "," : "");
    }
    fflush(stdout);
  }
  if (a->json)
    printf("%s\n", a->n_clients > 1 ? "]" : "");
  return 0;
}

int handoff_main(int argc, char **argv) {
  struct args a;
  struct fail f;
  int rc = parse_args(&a, argc, argv);
  if (rc != 0)
    return rc < 0 ? 0 : rc;
  if (run_all(&a, &f) != 0) {
    fprintf(stderr, "pglog_bench: %s\n", f.text);
    return 1;
  }
  return ferror(stdout) ? 1 : 0;
}
