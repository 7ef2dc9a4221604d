/* SPDX-License-Identifier: Apache-2.0
 *
 * handoff_report.c - tables and JSON of the hand-off bench.
 */
#include <inttypes.h>

#include "handoff_rounds.h"
#include "osdcore/osd.h"

/* What is printed, in this order. */
static const struct field {
  enum handoff_metric metric;
  const char *json;
  const char *title; /* in the table */
  int width, decimals;
  bool cpu; /* in the second table, in % of a processor */
  enum { ALWAYS, PIPELINE, MAX_RATE } only;
} fields[] = {
    {H_AVG, "avg_us", "avg", 9, 2, false, ALWAYS},
    {H_MIN, "min_us", "min", 9, 2, false, ALWAYS},
    {H_P50, "p50_us", "p50", 9, 2, false, ALWAYS},
    {H_P99, "p99_us", "p99", 9, 2, false, ALWAYS},
    {H_P999, "p999_us", "p99.9", 9, 2, false, ALWAYS},
    {H_WAKES, "wakes_per_op", "wakes/op", 9, 3, false, ALWAYS},
    {H_CPU, "cpu_us_per_op", "CPU/op", 9, 2, false, ALWAYS},
    {H_SUBMIT, "submit_us", "submit", 9, 2, false, ALWAYS},
    {H_RATE, "ops_per_s", "ops/s", 10, 0, false, ALWAYS},
    {H_MAX_RATE, "max_ops_per_s", "max ops/s", 10, 0, false, MAX_RATE},
    {H_E2E_P50, "e2e_p50_us", "answer p50", 11, 1, false, PIPELINE},
    {H_E2E_P99, "e2e_p99_us", "answer p99", 11, 1, false, PIPELINE},
    {H_CLIENT_CPU, "client_cpu", "client", 9, 1, true, ALWAYS},
    {H_WORKER_CPU, "worker_cpu", "worker", 9, 1, true, ALWAYS},
    {H_COMMITTER_CPU, "committer_cpu", "committer", 10, 1, true, PIPELINE},
    {H_CHECKPOINT_CPU, "checkpoint_cpu", "check points", 13, 1, true, PIPELINE},
    {H_ROCKSDB_CPU, "rocksdb_cpu", "RocksDB", 9, 1, true, PIPELINE},
    {H_OTHER_CPU, "other_cpu", "other", 9, 1, true, PIPELINE},
};
#define N_FIELDS (sizeof(fields) / sizeof(fields[0]))

static const char *store_name(const struct handoff_load *l) {
  return l->store == OSD_STORE_SPLIT ? "split" : "rocksdb";
}

static bool shown(const struct field *f, const struct handoff_outcome *o) {
  return f->only == ALWAYS || (f->only == PIPELINE ? o->load.db != NULL : o->max_rate);
}

/* ---------------------------------------------------------------------------------------------- */
/* JSON                                                                                           */

static void json_queue(const struct handoff_outcome *o, size_t what) {
  const char *sep = "";
  printf("\"%s\":{", handoff_names[what]);
  for (size_t i = 0; i < N_FIELDS; i++)
    if (shown(&fields[i], o)) {
      printf("%s\"%s\":%.4f", sep, fields[i].json, o->r[what].m[fields[i].metric]);
      sep = ",";
    }
  printf("}");
}

void handoff_json(const struct handoff_outcome *o) {
  const struct handoff_load *l = &o->load;
  const char *sep = "";
  printf("{\"gap_us\":%.3f,\"clients\":%u,\"shards\":%u,\"threads\":%u,\"ops\":%" PRIu64
         ",\"pinned\":%s,\"pipeline\":%s,",
         l->gap_us, l->clients, l->shards, l->threads, l->ops, handoff_pinned(l) ? "true" : "false",
         l->db ? "true" : "false");
  if (l->db)
    printf("\"store\":\"%s\",", store_name(l));
  if (o->capacity > 0)
    printf("\"capacity_ops_per_s\":%.1f,", o->capacity);
  printf("\"queues\":{");
  for (size_t i = 0; i < HANDOFF_WHATS; i++)
    if (o->has[i]) {
      printf("%s", sep);
      json_queue(o, i);
      sep = ",";
    }
  printf("}}");
}

/* ---------------------------------------------------------------------------------------------- */
/* Table                                                                                          */

static const char *plural(uint64_t n) {
  return n == 1 ? "" : "s";
}

static void table_head(const struct handoff_plan *p, const struct handoff_outcome *o) {
  const struct handoff_load *l = &o->load;
  if (l->db)
    printf("4K WriteFull through osdcore, store %s: ", store_name(l));
  printf("%u client%s, %u shard%s of %u worker%s%s, ", l->clients, plural(l->clients), l->shards,
         plural(l->shards), l->threads, plural(l->threads), handoff_pinned(l) ? " (pinned)" : "");
  if (l->gap_us > 0)
    printf("an operation each %.2f us", l->gap_us);
  else
    printf("operations as fast as they can");
  if (o->capacity > 0)
    printf(" (%g of %.0f a second, sharded's capacity)", p->share, o->capacity);
  printf("; %" PRIu64 " operations, %" PRIu64 " rounds (medians); us\n", l->ops, p->rounds);
}

static void table_titles(const struct handoff_outcome *o, bool cpu) {
  printf("%-8s", "queue");
  for (size_t i = 0; i < N_FIELDS; i++)
    if (fields[i].cpu == cpu && shown(&fields[i], o))
      printf(" %*s", fields[i].width, fields[i].title);
  printf("\n");
}

static void table_rows(const struct handoff_outcome *o, bool cpu) {
  for (size_t what = 0; what < HANDOFF_WHATS; what++) {
    if (!o->has[what])
      continue;
    printf("%-8s", handoff_names[what]);
    for (size_t i = 0; i < N_FIELDS; i++)
      if (fields[i].cpu == cpu && shown(&fields[i], o))
        printf(" %*.*f", fields[i].width, fields[i].decimals,
               o->r[what].m[fields[i].metric] * (cpu ? 100 : 1));
    printf("\n");
  }
}

void handoff_table(const struct handoff_plan *p, const struct handoff_outcome *o) {
  table_head(p, o);
  table_titles(o, false);
  table_rows(o, false);
  printf("CPU by thread, %% of a processor: the average client and worker%s\n",
         o->load.db ? ", all others of their kind together" : "");
  table_titles(o, true);
  table_rows(o, true);
  printf("\n");
}
