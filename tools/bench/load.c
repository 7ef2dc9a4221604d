/* SPDX-License-Identifier: Apache-2.0 */
#include "load.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <osdcore/osd.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "args.h"
#include "common.h"

#define NAME_MAX_BYTES 32
#define THREADS_LIST_MAX 16

struct args {
  uint64_t pg_bits, entries, rounds;
  uint64_t threads[THREADS_LIST_MAX];
  size_t n_threads;
  int store; /* enum osd_store */
  const char *db;
  bool json;
};

static void usage(FILE *out) {
  fprintf(
      out,
      "usage: pglog_bench load --db=DIR [options]\n"
      "\n"
      "How long osdcore takes to open a store: PGs with logs of the same length are written "
      "through\n"
      "it, then it is closed and opened again. DIR must not exist; it stays.\n"
      "\n"
      "  --pg-bits=N         2^N PGs (11: 2048 PGs)\n"
      "  --entries=N         log entries in each PG (3000)\n"
      "  --store=split|rocksdb  where the logs are (split)\n"
      "  --threads=N,N,..    that load PGs, one opening for each number (1 and one per processor)\n"
      "  --rounds=N          openings with each number, in turn; medians are reported (3)\n"
      "  --json              JSON in place of a table\n");
}

/* ---------------------------------------------------------------------------------------------- */
/* Options                                                                                        */

static int parse_option(struct args *a, const char *name, const char *v) {
  if (strcmp(name, "db") == 0) {
    a->db = v;
    return 0;
  }
  if (strcmp(name, "pg-bits") == 0)
    return parse_number(name, v, 0, OSD_PG_BITS_MAX, &a->pg_bits);
  if (strcmp(name, "entries") == 0)
    return parse_number(name, v, 1, 1000000, &a->entries);
  if (strcmp(name, "rounds") == 0)
    return parse_number(name, v, 1, 1000, &a->rounds);
  if (strcmp(name, "threads") == 0)
    return parse_numbers(name, v, 1, 64, a->threads, THREADS_LIST_MAX, &a->n_threads);
  if (strcmp(name, "store") == 0) {
    a->store = strcmp(v, "rocksdb") == 0 ? OSD_STORE_ROCKSDB : OSD_STORE_SPLIT;
    return strcmp(v, "rocksdb") == 0 || strcmp(v, "split") == 0
               ? 0
               : bad_option(name, "split or rocksdb", v);
  }
  a->json = true;
  return 0;
}

static const struct option options[] = {
    {"db", required_argument, NULL, 0},
    {"pg-bits", required_argument, NULL, 0},
    {"entries", required_argument, NULL, 0},
    {"rounds", required_argument, NULL, 0},
    {"threads", required_argument, NULL, 0},
    {"store", required_argument, NULL, 0},
    {"json", no_argument, NULL, 0},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* 0, an exit code, or -1: help was printed. */
static int parse_args(struct args *a, int argc, char **argv) {
  int c, which = 0;
  uint64_t processors = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
  *a = (struct args){.pg_bits = 11,
                     .entries = 3000,
                     .rounds = 3,
                     .threads = {1, processors < 64 ? processors : 64},
                     .n_threads = processors > 1 ? 2 : 1};
  while ((c = getopt_long(argc, argv, "h", options, &which)) != -1) {
    if (c == 'h') {
      usage(stdout);
      return -1;
    }
    int rc = c == '?' ? 2 : parse_option(a, options[which].name, optarg);
    if (rc != 0)
      return rc;
  }
  if (optind < argc) {
    fprintf(stderr, "pglog_bench: unexpected argument \"%s\"\n", argv[optind]);
    return 2;
  }
  if (!a->db) {
    fprintf(stderr, "pglog_bench: load needs --db=DIR\n");
    return 2;
  }
  return 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* The store                                                                                      */

static int store_open(const struct args *a, uint64_t threads, struct osd **out, struct fail *f) {
  struct pglog_error e;
  struct osd_config c = {.path = a->db,
                         .store = a->store,
                         .pg_bits = (uint32_t)a->pg_bits,
                         .queue = OPQ_FAST,
                         .load_threads = (uint32_t)threads,
                         .log_keep = (uint32_t)a->entries};
  return osd_open(out, &c, &e) == 0 ? 0 : fail_set(f, "%s: %s", a->db, e.text);
}

/* For each PG the name of an object in it. */
static char (*names_make(const struct args *a))[NAME_MAX_BYTES] {
  uint32_t n = 1u << a->pg_bits, found = 0;
  char(*names)[NAME_MAX_BYTES] = must_realloc(NULL, n * sizeof(*names));
  memset(names, 0, n * sizeof(*names));
  for (uint64_t i = 0; found < n; i++) {
    char name[NAME_MAX_BYTES];
    int size = snprintf(name, sizeof(name), "object.%" PRIu64, i);
    uint32_t pg = osd_hash(name, (size_t)size) & (n - 1);
    if (!names[pg][0]) {
      memcpy(names[pg], name, sizeof(name));
      found++;
    }
  }
  return names;
}

struct filled {
  atomic_uint_fast64_t errors;
  struct fail first; /* written by whoever makes `errors` 1 */
};

static void answered(void *arg, struct osd_result *r) {
  struct filled *d = arg;
  if (r->code != 0 && atomic_fetch_add(&d->errors, 1) == 0)
    fail_set(&d->first, "%s", r->error.text);
}

/* Each PG's log gets one entry after the other, all PGs in turn. */
static int fill(const struct args *a, struct osd *o, struct fail *f) {
  char(*names)[NAME_MAX_BYTES] = names_make(a);
  struct filled d = {.errors = 0};
  struct pglog_error e;
  int rc = 0;
  for (uint64_t i = 0; i < a->entries << a->pg_bits && rc == 0; i++) {
    const char *name = names[i & ((1u << a->pg_bits) - 1)];
    struct osd_request r = {.op = OSD_WRITE,
                            .name = name,
                            .name_size = strlen(name),
                            .client = 1,
                            .tid = i + 1,
                            .done = answered,
                            .arg = &d};
    if (osd_submit(o, &r, 0, &e) != 0)
      rc = fail_set(f, "%s", e.text);
  }
  osd_drain(o);
  free(names);
  if (rc == 0 && d.errors > 0)
    rc = fail_set(f, "%" PRIuFAST64 " writes failed, the first: %s", d.errors, d.first.text);
  return rc;
}

/* All PGs are there, each with its entries. */
static int check(const struct args *a, struct osd *o, struct fail *f) {
  struct osd_pg_info *pgs;
  size_t n;
  if (osd_pg_list(o, &pgs, &n) != 0)
    return fail_set(f, "the PGs cannot be listed");
  int rc = n == (size_t)1 << a->pg_bits ? 0 : fail_set(f, "there are %zu PGs", n);
  for (size_t i = 0; i < n && rc == 0; i++)
    if (pgs[i].entries != a->entries)
      rc = fail_set(f, "PG 1.%x has %" PRIu64 " entries, not %" PRIu64, pgs[i].id, pgs[i].entries,
                    a->entries);
  free(pgs);
  return rc;
}

/* ---------------------------------------------------------------------------------------------- */
/* Runs                                                                                           */

struct opening {
  double open_ms, load_ms,
      cpu_ms; /* the whole of osd_open(), loading PGs in it, CPU of all threads */
};

static int open_once(const struct args *a, uint64_t threads, struct opening *out, struct fail *f) {
  struct osd *o;
  struct osd_stats st;
  double cpu = cpu_us();
  uint64_t begin = clock_ns(CLOCK_MONOTONIC);
  if (store_open(a, threads, &o, f) != 0)
    return -1;
  out->open_ms = (double)(clock_ns(CLOCK_MONOTONIC) - begin) / 1e6;
  out->cpu_ms = (cpu_us() - cpu) / 1e3;
  osd_stats(o, &st);
  out->load_ms = (double)st.load_ns / 1e6;
  int rc = check(a, o, f);
  osd_close(o);
  return rc;
}

static struct opening medians(const struct opening *r, size_t n) {
  return (struct opening){
      .open_ms = median_of(r, n, sizeof(*r), offsetof(struct opening, open_ms)),
      .load_ms = median_of(r, n, sizeof(*r), offsetof(struct opening, load_ms)),
      .cpu_ms = median_of(r, n, sizeof(*r), offsetof(struct opening, cpu_ms)),
  };
}

static void report(const struct args *a, double fill_s, const struct opening *all) {
  const char *store = a->store == OSD_STORE_SPLIT ? "split" : "rocksdb";
  uint64_t entries = a->entries << a->pg_bits;
  if (a->json)
    printf("{\"store\":\"%s\",\"pgs\":%u,\"entries\":%" PRIu64 ",\"fill_s\":%.1f,\"loads\":[",
           store, 1u << a->pg_bits, entries, fill_s);
  else
    printf("%s: %u PGs of %" PRIu64 " entries, written in %.1f s; opening, medians of %" PRIu64
           " rounds\n%8s %10s %10s %10s %12s\n",
           store, 1u << a->pg_bits, a->entries, fill_s, a->rounds, "threads", "open, ms",
           "load, ms", "CPU, ms", "entries/s");
  for (size_t i = 0; i < a->n_threads; i++) {
    struct opening m = medians(&all[i * a->rounds], a->rounds);
    printf(a->json ? "%s{\"threads\":%" PRIu64
                     ",\"open_ms\":%.1f,\"load_ms\":%.1f,\"cpu_ms\":%.1f,\"entries_per_s\":%.0f}"
                   : "%s%8" PRIu64 " %10.1f %10.1f %10.1f %12.0f\n",
           a->json && i > 0 ? "," : "", a->threads[i], m.open_ms, m.load_ms, m.cpu_ms,
           (double)entries / m.load_ms * 1e3);
  }
  if (a->json)
    printf("]}\n");
}

static int run(const struct args *a, struct fail *f) {
  struct osd *o;
  struct stat st;
  if (lstat(a->db, &st) == 0)
    return fail_set(f, "%s: there is something already", a->db);
  if (errno != ENOENT)
    return fail_set(f, "%s: %s", a->db, strerror(errno));
  if (store_open(a, 0, &o, f) != 0)
    return -1;
  uint64_t begin = clock_ns(CLOCK_MONOTONIC);
  int rc = fill(a, o, f);
  double fill_s = (double)(clock_ns(CLOCK_MONOTONIC) - begin) / 1e9;
  osd_close(o);
  struct opening *all = must_realloc(NULL, a->n_threads * a->rounds * sizeof(*all));
  for (uint64_t round = 0; round < a->rounds; round++)
    for (size_t i = 0; i < a->n_threads && rc == 0; i++)
      rc = open_once(a, a->threads[i], &all[i * a->rounds + round], f);
  if (rc == 0)
    report(a, fill_s, all);
  free(all);
  return rc;
}

int load_main(int argc, char **argv) {
  struct args a;
  struct fail f;
  int rc = parse_args(&a, argc, argv);
  if (rc != 0)
    return rc < 0 ? 0 : rc;
  if (run(&a, &f) != 0) {
    fprintf(stderr, "pglog_bench: %s\n", f.text);
    return 1;
  }
  return ferror(stdout) ? 1 : 0;
}
