/* SPDX-License-Identifier: Apache-2.0 */
#include "handoff.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "args.h"
#include "handoff_rounds.h"
#include "handoff_svg.h"
#include "osdcore/osd.h"

#define LIST_MAX 32
#define GAP_US 5
#define PIPELINE_SHARE 0.5
#define PIPELINE_SHARDS 4 /* osdcore's default */

struct args {
  struct handoff_plan plan; /* its gap is < 0, its shards 0, until they are given or defaults */
  uint64_t clients[LIST_MAX];
  size_t n_clients;
  const char *queue, *db, *store, *svg; /* as given; NULL: not */
  bool pipeline, json;
};

static void usage(FILE *out) {
  fprintf(
      out,
      "usage: pglog_bench handoff [options]\n"
      "\n"
      "How long an operation takes from its submit to a worker, by queue: empty operations,\n"
      "the queue alone. With one client and one worker both are pinned to a processor each.\n"
      "\n"
      "  --queue=A,B,..    single, sharded, fast, inline (fast with inline run), futex (a\n"
      "                    bare futex wake, one client only, not with --pipeline); default: all\n"
      "                    but inline\n"
      "  --clients=N,N,..  submitting threads (1)\n"
      "  --gap=US          between two operations, of all clients together; 0: as fast as\n"
      "                    they can (5)\n"
      "  --load=F          instead: F times the highest rate that sharded keeps up with (with\n"
      "                    --pipeline 0.5)\n"
      "  --ops=N           operations in a run (10000)\n"
      "  --rounds=N        runs of each queue, in turn; medians are reported (5)\n"
      "  --shards=N        (1; with --pipeline 4)\n"
      "  --threads=N       workers per shard (1)\n"
      "  --pipeline        all of osdcore, from submit to the answer: 4K WriteFull, each\n"
      "                    request when it is due, a new database for each run\n"
      "  --db=DIR          where the databases go (a new folder under $TMPDIR or /tmp)\n"
      "  --store=S         split (PG logs by the plugin) or rocksdb (split)\n"
      "  --svg=FILE        plots, by gnuplot: latency, CPU by thread, and the highest rate of\n"
      "                    each queue over the number of clients, from one more run of each\n"
      "                    in a round. FILE.gnuplot is what they are made from\n"
      "  --json            JSON in place of tables: an object, or an array for several numbers\n"
      "                    of clients\n");
}

/* ---------------------------------------------------------------------------------------------- */
/* Options                                                                                        */

static int parse_queues(struct args *a, const char *text) {
  a->queue = text;
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
    return parse_numbers(name, v, 1, 1000, a->clients, LIST_MAX, &a->n_clients);
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
  if (strcmp(name, "pipeline") == 0)
    a->pipeline = true;
  else if (strcmp(name, "db") == 0)
    a->db = v;
  else if (strcmp(name, "store") == 0)
    a->store = v;
  else if (strcmp(name, "svg") == 0)
    a->svg = v;
  else
    a->json = true;
  return 0;
}

static const struct option options[] = {
    {"queue", required_argument, NULL, 0},
    {"clients", required_argument, NULL, 0},
    {"gap", required_argument, NULL, 0},
    {"load", required_argument, NULL, 0},
    {"ops", required_argument, NULL, 0},
    {"rounds", required_argument, NULL, 0},
    {"shards", required_argument, NULL, 0},
    {"threads", required_argument, NULL, 0},
    {"pipeline", no_argument, NULL, 0},
    {"db", required_argument, NULL, 0},
    {"store", required_argument, NULL, 0},
    {"svg", required_argument, NULL, 0},
    {"json", no_argument, NULL, 0},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static int usage_error(const char *text) {
  fprintf(stderr, "pglog_bench: %s\n", text);
  return 2;
}

static bool futex_only(const struct args *a) {
  for (int i = 0; i < HANDOFF_WHATS; i++)
    if (a->plan.use[i] && i != HANDOFF_FUTEX)
      return false;
  return true;
}

static int check_pipeline(struct args *a) {
  struct handoff_load *l = &a->plan.load;
  if (a->queue && a->plan.use[HANDOFF_FUTEX])
    return bad_option("queue", "some of single, sharded, fast, inline with --pipeline", a->queue);
  if (a->db && (!*a->db || strlen(a->db) > 3000))
    return bad_option("db", "a path of 1 to 3000 bytes", a->db);
  if (a->store && strcmp(a->store, "split") != 0 && strcmp(a->store, "rocksdb") != 0)
    return bad_option("store", "split or rocksdb", a->store);
  a->plan.use[HANDOFF_FUTEX] = false;
  l->store = a->store && strcmp(a->store, "rocksdb") == 0 ? OSD_STORE_ROCKSDB : OSD_STORE_SPLIT;
  return 0;
}

/* What options mean together, and defaults that depend on others. */
static int complete_args(struct args *a) {
  struct handoff_plan *p = &a->plan;
  if (p->share > 0 && p->load.gap_us >= 0)
    return usage_error("--gap and --load say the same thing: only one of them may be given");
  if (a->svg && (!*a->svg || strlen(a->svg) > SVG_PATH_MAX))
    return bad_option("svg", "a path of 1 to 3000 bytes", a->svg);
  for (size_t i = 0; i < a->n_clients; i++)
    if (futex_only(a) && a->clients[i] > 1)
      return usage_error("--queue=futex has one client only");
  if (!a->pipeline && (a->db || a->store))
    return usage_error(a->db ? "--db needs --pipeline" : "--store needs --pipeline");
  if (a->pipeline && p->share == 0 && p->load.gap_us < 0)
    p->share = PIPELINE_SHARE;
  if (p->load.gap_us < 0)
    p->load.gap_us = GAP_US;
  if (p->load.shards == 0)
    p->load.shards = a->pipeline ? PIPELINE_SHARDS : 1;
  p->max_rate = a->svg != NULL;
  return a->pipeline ? check_pipeline(a) : 0;
}

/* 0, an exit code, or -1: help was printed. */
static int parse_args(struct args *a, int argc, char **argv) {
  int c, which = 0;
  *a = (struct args){.clients = {1},
                     .n_clients = 1,
                     .plan = {.use = {[HANDOFF_SINGLE] = true,
                                      [HANDOFF_SHARDED] = true,
                                      [HANDOFF_FAST] = true,
                                      [HANDOFF_FUTEX] = true},
                              .rounds = 5,
                              .load = {.threads = 1, .ops = 10000, .gap_us = -1}}};
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
  return complete_args(a);
}

/* ---------------------------------------------------------------------------------------------- */
/* Runs                                                                                           */

/* Make the directory for databases, if it is missing; `made`: it was. */
static int make_db_dir(const struct args *a, char *dir, size_t cap, bool *made, struct fail *f) {
  const char *tmp = getenv("TMPDIR");
  if (a->db) {
    snprintf(dir, cap, "%s", a->db);
    *made = mkdir(dir, 0755) == 0;
    return *made || errno == EEXIST ? 0 : fail_set(f, "--db=%s: %s", dir, strerror(errno));
  }
  snprintf(dir, cap, "%s/pglog_bench.XXXXXX", tmp && *tmp ? tmp : "/tmp");
  *made = mkdtemp(dir) != NULL;
  return *made ? 0 : fail_set(f, "%s: %s", dir, strerror(errno));
}

/* Print each number of clients when it is done. */
static int run_clients(const struct args *a, struct handoff_outcome *o, struct fail *f) {
  if (a->json && a->n_clients > 1)
    printf("[");
  for (size_t i = 0; i < a->n_clients; i++) {
    if (handoff_rounds(&a->plan, (uint32_t)a->clients[i], &o[i], f) != 0)
      return -1;
    if (!a->json)
      handoff_table(&a->plan, &o[i]);
    else {
      handoff_json(&o[i]);
      printf("%s", i + 1 < a->n_clients ? "," : "");
    }
    fflush(stdout);
  }
  if (a->json)
    printf("%s\n", a->n_clients > 1 ? "]" : "");
  return 0;
}

static int run_all(const struct args *a, struct fail *f) {
  if (a->svg && handoff_svg_check(a->svg, f) != 0)
    return -1;
  struct handoff_outcome *o = must_realloc(NULL, a->n_clients * sizeof(*o));
  int rc = run_clients(a, o, f);
  if (rc == 0 && a->svg)
    rc = handoff_svg(a->svg, &a->plan, o, a->n_clients, f);
  free(o);
  return rc;
}

static int run_in_dir(struct args *a, struct fail *f) {
  char dir[4096];
  bool made = false;
  if (!a->pipeline)
    return run_all(a, f);
  if (make_db_dir(a, dir, sizeof(dir), &made, f) != 0)
    return -1;
  a->plan.load.db = dir;
  int rc = run_all(a, f);
  if (made && rmdir(dir) != 0 && rc == 0)
    rc = fail_set(f, "%s: %s", dir, strerror(errno));
  return rc;
}

int handoff_main(int argc, char **argv) {
  struct args a;
  struct fail f;
  int rc = parse_args(&a, argc, argv);
  if (rc != 0)
    return rc < 0 ? 0 : rc;
  if (run_in_dir(&a, &f) != 0) {
    fprintf(stderr, "pglog_bench: %s\n", f.text);
    return 1;
  }
  return ferror(stdout) ? 1 : 0;
}
