/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

/* Where each figure goes in the JSON object, and how many decimals it is worth. */
static const struct {
  const char *group, *name;
  int decimals;
} fields[M_COUNT] = {
    [M_TXNS_PER_S] = {NULL, "txns_per_s", 1},
    [M_CPU_US] = {NULL, "cpu_us_per_txn", 3},
    [M_P50] = {"commit_us", "p50", 1},
    [M_P99] = {"commit_us", "p99", 1},
    [M_P999] = {"commit_us", "p999", 1},
    [M_WAL] = {"bytes_per_txn", "wal", 2},
    [M_FLUSH] = {"bytes_per_txn", "flush", 2},
    [M_COMPACTION] = {"bytes_per_txn", "compaction", 2},
    [M_ARENA] = {"bytes_per_txn", "arena", 2},
    [M_OTHER] = {"bytes_per_txn", "other", 2},
    [M_TOTAL] = {"bytes_per_txn", "total", 2},
    [M_LIVE] = {"pglog_space_bytes", "live", 0},
    [M_FILE] = {"pglog_space_bytes", "file", 0},
    [M_RSS] = {NULL, "peak_rss_bytes", 0},
    [M_REOPEN_MS] = {NULL, "reopen_ms", 2},
    [M_RECOVER_MS] = {NULL, "recover_ms", 2},
    [M_P_FLUSHES] = {NULL, "p_flushes", 0},
    [M_GROUPS] = {NULL, "groups", 0},
    [M_WAL_SYNCS] = {NULL, "wal_syncs", 0},
    [M_WAL_SWITCHES] = {NULL, "wal_switches", 0},
    [M_CHECKPOINTS] = {NULL, "checkpoints", 0},
    [M_CHECKPOINT_SYNCS] = {NULL, "checkpoint_syncs", 0},
};

static double median(const struct report *r, size_t mode, enum metric m) {
  return median_of(r->results + mode * r->rounds, r->rounds, sizeof(*r->results),
                   offsetof(struct result, m) + (size_t)m * sizeof(double));
}

static long mode_index(const struct report *r, const char *name) {
  for (size_t i = 0; i < r->n_modes; i++)
    if (strcmp(r->modes[i]->name, name) == 0)
      return (long)i;
  return -1;
}

/* ---------------------------------------------------------------------------------------------- */
/* JSON                                                                                           */

static json_t *number(double v, int decimals) {
  if (decimals == 0)
    return json_integer((json_int_t)llround(v));
  double scale = pow(10, decimals);
  return json_real(round(v * scale) / scale);
}

static void set_figure(json_t *o, enum metric m, double v) {
  json_t *into = o;
  if (m == M_RECOVER_MS && v == 0)
    return;
  if (fields[m].group) {
    into = json_object_get(o, fields[m].group);
    if (!into) {
      into = json_object();
      json_object_set_new(o, fields[m].group, into);
    }
  }
  json_object_set_new(into, fields[m].name, number(v, fields[m].decimals));
}

static json_t *after_json(const struct digest_part *p) {
  return json_pack("{s:I,s:I,s:s}", "keys", (json_int_t)p->keys, "bytes", (json_int_t)p->bytes,
                   "sha256", p->sha256);
}

static json_t *mode_json(const struct report *r, size_t mode) {
  json_t *o = json_object(), *rounds = json_array();
  const struct result *first = &r->results[mode * r->rounds];
  for (int m = 0; m < M_COUNT; m++)
    set_figure(o, m, median(r, mode, m));
  for (size_t i = 0; i < r->rounds; i++) {
    json_t *round = json_object();
    for (int m = 0; m < M_COUNT; m++)
      set_figure(round, m, first[i].m[m]);
    json_array_append_new(rounds, round);
  }
  if (first->check == CHECK_EQUAL)
    json_object_set_new(o, "after", after_json(&first->after));
  json_object_set_new(o, "rounds", rounds);
  return o;
}

void report_json(const struct report *r, FILE *out) {
  json_t *root = json_object(), *all = json_object();
  json_object_set_new(root, "trace", json_string(r->trace));
  if (r->before)
    json_object_set_new(root, "before", json_string(r->before));
  json_object_set_new(root, "group",
                      r->group ? json_integer((json_int_t)r->group) : json_string("trace"));
  json_object_set_new(root, "passes", json_integer((json_int_t)r->passes));
  json_object_set_new(root, "transactions",
                      json_integer((json_int_t)(r->transactions * r->passes)));
  json_object_set_new(root, "pglog_logical_bytes_per_txn",
                      number(r->pglog_logical_bytes_per_txn, 2));
  for (size_t i = 0; i < r->n_modes; i++)
    json_object_set_new(all, r->modes[i]->name, mode_json(r, i));
  json_object_set_new(root, "modes", all);
  json_dumpf(root, out, JSON_COMPACT | JSON_REAL_PRECISION(12));
  fputc('\n', out);
  json_decref(root);
}

/* ---------------------------------------------------------------------------------------------- */
/* Table                                                                                          */

static void table_figures(const struct report *r, FILE *out) {
  fprintf(out, "%-16s %9s %9s | %8s %8s %8s | %7s %7s %7s %7s %7s %7s\n", "", "", "CPU", "commit",
          "latency", "us", "bytes", "per", "transac", "tion", "", "");
  fprintf(out, "%-16s %9s %9s | %8s %8s %8s | %7s %7s %7s %7s %7s %7s\n", "mode", "txns/s",
          "us/txn", "p50", "p99", "p99.9", "wal", "flush", "compact", "arena", "other", "total");
  for (size_t i = 0; i < r->n_modes; i++) {
    fprintf(out, "%-16s %9.0f %9.2f | %8.0f %8.0f %8.0f |", r->modes[i]->name,
            median(r, i, M_TXNS_PER_S), median(r, i, M_CPU_US), median(r, i, M_P50),
            median(r, i, M_P99), median(r, i, M_P999));
    for (int m = M_WAL; m <= M_TOTAL; m++)
      fprintf(out, " %7.0f", median(r, i, m));
    fputc('\n', out);
  }
  fprintf(out, "\n%-16s %9s %9s %9s %9s %9s | %8s %8s %8s %8s %7s %7s\n", "mode", "live MB",
          "file MB", "RSS MB", "reopen ms", "recov. ms", "P flush", "groups", "WAL sync", "WAL sw.",
          "ckpts", "syncing");
  for (size_t i = 0; i < r->n_modes; i++) {
    fprintf(out, "%-16s %9.1f %9.1f %9.1f %9.1f ", r->modes[i]->name, median(r, i, M_LIVE) / 1e6,
            median(r, i, M_FILE) / 1e6, median(r, i, M_RSS) / 1e6, median(r, i, M_REOPEN_MS));
    double recover = median(r, i, M_RECOVER_MS);
    if (recover > 0)
      fprintf(out, "%9.1f", recover);
    else
      fprintf(out, "%9s", "-");
    fprintf(out, " | %8.0f %8.0f %8.0f %8.0f %7.0f %7.0f\n", median(r, i, M_P_FLUSHES),
            median(r, i, M_GROUPS), median(r, i, M_WAL_SYNCS), median(r, i, M_WAL_SWITCHES),
            median(r, i, M_CHECKPOINTS), median(r, i, M_CHECKPOINT_SYNCS));
  }
}

/* `a` as a share of `b`, right-aligned, or a dash. */
static void share(FILE *out, double a, double b) {
  if (b > 0)
    fprintf(out, " %12.2f", a / b);
  else
    fprintf(out, " %12s", "-");
}

static void table_tax(const struct report *r, FILE *out) {
  long none = mode_index(r, "none"), rocksdb = mode_index(r, "rocksdb");
  if (none < 0)
    return;
  double base = median(r, (size_t)none, M_CPU_US);
  double full = rocksdb < 0 ? 0 : median(r, (size_t)rocksdb, M_CPU_US) - base;
  double bytes = rocksdb < 0 ? 0 : median(r, (size_t)rocksdb, M_TOTAL);
  double live = rocksdb < 0 ? 0 : median(r, (size_t)rocksdb, M_LIVE);
  double speed = rocksdb < 0 ? 0 : median(r, (size_t)rocksdb, M_TXNS_PER_S);
  fprintf(out, "\npg log tax (mode less none)  CPU us/txn  of rocksdb's  | of rocksdb's: bytes "
               "       space       txns/s\n");
  for (size_t i = 0; i < r->n_modes; i++) {
    if ((long)i == none)
      continue;
    double tax = median(r, i, M_CPU_US) - base;
    fprintf(out, "%-28s %11.2f", r->modes[i]->name, tax);
    share(out, tax, full);
    fprintf(out, "   | ");
    share(out, median(r, i, M_TOTAL), bytes);
    share(out, median(r, i, M_LIVE), live);
    share(out, median(r, i, M_TXNS_PER_S), speed);
    fputc('\n', out);
  }
  if (rocksdb >= 0 && median(r, (size_t)rocksdb, M_P_FLUSHES) < 3)
    fprintf(out, "Fewer than 3 flushes of P in mode rocksdb: take more --passes before quoting the "
                 "byte ratios.\n");
}

static void table_check(const struct report *r, FILE *out) {
  for (size_t i = 0; i < r->n_modes; i++) {
    const struct result *res = &r->results[i * r->rounds];
    if (res->check == CHECK_EQUAL)
      fprintf(out,
              "check %s: equal before and after reopening, \"after\":{\"keys\":%" PRIu64
              ",\"bytes\":%" PRIu64 ",\"sha256\":\"%s\"}\n",
              r->modes[i]->name, res->after.keys, res->after.bytes, res->after.sha256);
  }
}

void report_table(const struct report *r, FILE *out) {
  char group[32] = "as recorded";
  if (r->group)
    snprintf(group, sizeof(group), "%" PRIu64, r->group);
  fprintf(out,
          "%s%s%s: %" PRIu64 " transactions, %" PRIu64 " pass%s, group %s, %zu round%s (medians); "
          "pg log %.1f logical bytes/txn\n\n",
          r->trace, r->before ? " after " : "", r->before ? r->before : "",
          r->transactions * r->passes, r->passes, r->passes == 1 ? "" : "es", group, r->rounds,
          r->rounds == 1 ? "" : "s", r->pglog_logical_bytes_per_txn);
  table_figures(r, out);
  table_tax(r, out);
  table_check(r, out);
}
