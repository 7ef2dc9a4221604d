/* SPDX-License-Identifier: Apache-2.0 */
#include "replay.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "args.h"
#include "report.h"
#include "run.h"

const struct mode modes[] = {
    {"none", PGLOG_DROP, &engine_rocksdb, "", "pg log operations left out: the bound"},
    {"split", PGLOG_KEEP, &engine_split, "", "the plugin: pg log in the log store"},
    {"rocksdb", PGLOG_KEEP, &engine_rocksdb, "", "all keys in RocksDB, Ceph's options"},
    {"rocksdb+walzstd", PGLOG_KEEP, &engine_rocksdb, "wal_compression=kZSTD;",
     "the same with a compressed WAL"},
    {"poc", PGLOG_RING, &engine_rocksdb, "",
     "a 4 KiB block per transaction in a ring per PG, the rest in RocksDB"},
};
const size_t n_modes = sizeof(modes) / sizeof(modes[0]);

struct args {
  const char *trace, *before, *expect, *db;
  const struct mode *modes[16];
  size_t n_modes;
  uint64_t rounds, group, passes, limit, reopen_at, turn;
  bool check, keep, json, recover;
};

static void usage(FILE *out) {
  fprintf(out,
          "usage: pglog_bench replay --trace=FILE[.zst] [options]\n"
          "\n"
          "Replays transactions recorded from an OSD through several modes and compares them.\n"
          "\n"
          "  --trace=FILE      the transactions\n"
          "  --before=FILE     pg log key space to load and flush ahead of the clock\n"
          "  --modes=A,B,..    default: all, in this order:\n");
  for (size_t i = 0; i < n_modes; i++)
    fprintf(out, "                      %-16s %s\n", modes[i].name, modes[i].what);
  fprintf(out,
          "  --rounds=N        runs of each mode; medians are reported (1)\n"
          "  --group=N|trace   transactions per group commit: unsynced writes and one sync;\n"
          "                    trace: the recorded groups (32)\n"
          "  --turn=N          groups that a mode replays before the next one's turn in a round;\n"
          "                    0: each replays all at once (500)\n"
          "  --passes=N        go through the trace N times, versions moved up each time (1)\n"
          "  --limit=N         only the first N records of the trace\n"
          "  --reopen-at=N     close and reopen the database ahead of record N of the first pass\n"
          "  --db=DIR          where the databases go, one folder a mode\n"
          "                    (a new folder under $TMPDIR or /tmp)\n"
          "  --keep            leave the databases there\n"
          "  --check           compare the pg log key space with a plain map's, before and after\n"
          "                    reopening\n"
          "  --expect=FILE     compare it with the digests in this JSON file too; implies --check\n"
          "  --recover         measure opening after a kill too (one more pass per round);\n"
          "                    checked as well, if --check and --passes=1\n"
          "  --json            print one JSON object in place of the table\n");
}

/* ---------------------------------------------------------------------------------------------- */
/* Options                                                                                        */

static int add_mode(struct args *a, const char *name, size_t len) {
  for (size_t i = 0; i < n_modes; i++) {
    if (strlen(modes[i].name) != len || memcmp(modes[i].name, name, len) != 0)
      continue;
    for (size_t j = 0; j < a->n_modes; j++)
      if (a->modes[j] == &modes[i]) {
        fprintf(stderr, "pglog_bench: mode %s is named twice\n", modes[i].name);
        return 2;
      }
    a->modes[a->n_modes++] = &modes[i];
    return 0;
  }
  fprintf(stderr, "pglog_bench: unknown mode \"%.*s\"; modes are", (int)len, name);
  for (size_t i = 0; i < n_modes; i++)
    fprintf(stderr, "%s %s", i ? "," : "", modes[i].name);
  fputc('\n', stderr);
  return 2;
}

static int parse_modes(struct args *a, const char *text) {
  a->n_modes = 0;
  for (;;) {
    size_t len = strcspn(text, ",");
    int rc = add_mode(a, text, len);
    if (rc != 0 || text[len] == 0)
      return rc;
    text += len + 1;
  }
}

static int parse_option(struct args *a, const char *name, const char *v) {
  if (strcmp(name, "trace") == 0)
    a->trace = v;
  else if (strcmp(name, "before") == 0)
    a->before = v;
  else if (strcmp(name, "db") == 0)
    a->db = v;
  else if (strcmp(name, "modes") == 0)
    return parse_modes(a, v);
  else if (strcmp(name, "rounds") == 0)
    return parse_number(name, v, 1, 1000, &a->rounds);
  else if (strcmp(name, "group") == 0 && strcmp(v, "trace") == 0)
    a->group = 0;
  else if (strcmp(name, "group") == 0)
    return parse_number(name, v, 1, 1000000, &a->group);
  else if (strcmp(name, "turn") == 0)
    return parse_number(name, v, 0, 1000000000, &a->turn);
  else if (strcmp(name, "passes") == 0)
    return parse_number(name, v, 1, 1000000, &a->passes);
  else if (strcmp(name, "limit") == 0)
    return parse_number(name, v, 1, UINT64_MAX, &a->limit);
  else if (strcmp(name, "reopen-at") == 0)
    return parse_number(name, v, 1, UINT64_MAX, &a->reopen_at);
  else if (strcmp(name, "check") == 0)
    a->check = true;
  else if (strcmp(name, "expect") == 0) {
    a->check = true;
    a->expect = v;
  } else if (strcmp(name, "keep") == 0)
    a->keep = true;
  else if (strcmp(name, "recover") == 0)
    a->recover = true;
  else if (strcmp(name, "json") == 0)
    a->json = true;
  return 0;
}

static const struct option options[] = {
    {"trace", required_argument, NULL, 0},
    {"before", required_argument, NULL, 0},
    {"modes", required_argument, NULL, 0},
    {"rounds", required_argument, NULL, 0},
    {"group", required_argument, NULL, 0},
    {"db", required_argument, NULL, 0},
    {"passes", required_argument, NULL, 0},
    {"turn", required_argument, NULL, 0},
    {"check", no_argument, NULL, 0},
    {"keep", no_argument, NULL, 0},
    {"limit", required_argument, NULL, 0},
    {"json", no_argument, NULL, 0},
    {"expect", required_argument, NULL, 0},
    {"reopen-at", required_argument, NULL, 0},
    {"recover", no_argument, NULL, 0},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* 0, an exit code, or -1: help was printed. */
static int parse_args(struct args *a, int argc, char **argv) {
  int c, which = 0;
  *a = (struct args){.rounds = 1, .group = 32, .passes = 1, .turn = 500};
  for (size_t i = 0; i < n_modes; i++)
    a->modes[a->n_modes++] = &modes[i];
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
  if (!a->trace || !*a->trace) {
    fprintf(stderr, "pglog_bench: --trace=FILE is missing\n");
    return 2;
  }
  if (a->db && (!*a->db || strlen(a->db) > 3000))
    return bad_option("db", "a path of 1 to 3000 bytes", a->db);
  return 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* Session                                                                                        */

struct session {
  struct args args;
  struct trace trace;
  struct keyspace_file before;
  struct model model;
  struct digest expect;
  char db[4096];
  bool made_db; /* the directory did not exist */
  struct result *results;
};

static int load(struct session *s, struct fail *f) {
  struct args *a = &s->args;
  if (trace_load(&s->trace, a->trace, a->limit, f) != 0 ||
      (a->before && keyspace_file_load(&s->before, a->before, f) != 0) ||
      (a->expect && digest_load(&s->expect, a->expect, f) != 0))
    return -1;
  if (a->reopen_at >= s->trace.n_records)
    return fail_set(f, "--reopen-at=%" PRIu64 " is beyond the %zu records of the trace",
                    a->reopen_at, s->trace.n_records);
  trace_group(&s->trace, a->group, a->reopen_at);
  if (a->passes > 1)
    trace_passes(&s->trace, a->before ? &s->before : NULL);
  if (a->check)
    model_build(&s->model, a->before ? &s->before : NULL, &s->trace, a->passes);
  /* Memory that the model gave up must not serve the databases of the forked runs. */
  malloc_trim(0);
  return 0;
}

static int make_db_dir(struct session *s, struct fail *f) {
  const char *tmp = getenv("TMPDIR");
  if (s->args.db) {
    snprintf(s->db, sizeof(s->db), "%s", s->args.db);
    s->made_db = mkdir(s->db, 0755) == 0;
    if (!s->made_db && errno != EEXIST)
      return fail_set(f, "--db=%s: %s", s->db, strerror(errno));
    return 0;
  }
  snprintf(s->db, sizeof(s->db), "%s/pglog_bench.XXXXXX", tmp && *tmp ? tmp : "/tmp");
  if (!mkdtemp(s->db))
    return fail_set(f, "%s: %s", s->db, strerror(errno));
  s->made_db = true;
  return 0;
}

static void mode_dir(const struct session *s, const struct mode *m, char *out, size_t cap) {
  snprintf(out, cap, "%s/%s", s->db, m->name);
}

static int remove_dbs(struct session *s, struct fail *f) {
  char dir[4096 + 64];
  for (size_t i = 0; i < s->args.n_modes; i++) {
    mode_dir(s, s->args.modes[i], dir, sizeof(dir));
    if (run_remove(dir, f) != 0)
      return -1;
  }
  if (s->made_db && rmdir(s->db) != 0)
    return fail_set(f, "%s: %s", s->db, strerror(errno));
  return 0;
}

static int run_all(struct session *s, struct fail *f) {
  const struct args *a = &s->args;
  struct plan plan = {.trace = &s->trace,
                      .before = a->before ? &s->before : NULL,
                      .model = a->check ? &s->model : NULL,
                      .expect = a->expect ? &s->expect : NULL,
                      .passes = a->passes,
                      .reopen_at = a->reopen_at,
                      .turn = a->turn,
                      .recover = a->recover};
  s->results = must_realloc(NULL, a->n_modes * a->rounds * sizeof(*s->results));
  struct entry *entries = must_realloc(NULL, a->n_modes * sizeof(*entries));
  int rc = 0;
  for (size_t round = 0; round < a->rounds && rc == 0; round++) {
    for (size_t i = 0; i < a->n_modes; i++) {
      struct entry *e = &entries[i];
      *e = (struct entry){.mode = a->modes[i], .result = &s->results[i * a->rounds + round]};
      mode_dir(s, a->modes[i], e->dir, sizeof(e->dir));
      if (isatty(2))
        snprintf(e->label, sizeof(e->label), "round %zu of %" PRIu64 ", %s", round + 1, a->rounds,
                 a->modes[i]->name);
    }
    run_round(entries, a->n_modes, &plan);
    for (size_t i = 0; i < a->n_modes && rc == 0; i++)
      if (!entries[i].result->ok)
        rc = fail_set(f, "mode %s, round %zu: %.900s", a->modes[i]->name, round + 1,
                      entries[i].result->text);
  }
  free(entries);
  return rc;
}

static void print_report(const struct session *s) {
  const struct args *a = &s->args;
  struct report r = {.trace = a->trace,
                     .before = a->before,
                     .group = a->group,
                     .passes = a->passes,
                     .transactions = s->trace.n_transactions,
                     .pglog_logical_bytes_per_txn =
                         (double)s->trace.logical_bytes / (double)s->trace.n_transactions,
                     .modes = (const struct mode **)a->modes,
                     .n_modes = a->n_modes,
                     .rounds = a->rounds,
                     .results = s->results};
  if (a->json)
    report_json(&r, stdout);
  else
    report_table(&r, stdout);
  for (size_t i = 0; a->check && i < a->n_modes; i++)
    if (a->modes[i]->pglog != PGLOG_KEEP)
      fprintf(stderr, "check %s: not checked: %s\n", a->modes[i]->name,
              a->modes[i]->pglog == PGLOG_RING ? "poc has no read path" : "it holds no pg log");
}

int replay_main(int argc, char **argv) {
  struct session s;
  struct fail f, late;
  memset(&s, 0, sizeof(s));
  int rc = parse_args(&s.args, argc, argv);
  if (rc != 0)
    return rc < 0 ? 0 : rc;
  rc = load(&s, &f);
  if (rc == 0)
    rc = make_db_dir(&s, &f);
  if (rc == 0) {
    rc = run_all(&s, &f);
    if (!s.args.keep && remove_dbs(&s, &late) != 0 && rc == 0)
      rc = fail_set(&f, "%s", late.text);
  }
  if (rc == 0)
    print_report(&s);
  else
    fprintf(stderr, "pglog_bench: %s\n", f.text);
  if (rc == 0 && (fflush(stdout) != 0 || ferror(stdout))) {
    fprintf(stderr, "pglog_bench: standard output: %s\n", strerror(errno));
    rc = -1;
  }
  free(s.results);
  model_free(&s.model);
  digest_free(&s.expect);
  keyspace_file_free(&s.before);
  trace_free(&s.trace);
  return rc == 0 ? 0 : 1;
}
