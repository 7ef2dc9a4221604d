/* SPDX-License-Identifier: Apache-2.0
 *
 * handoff_report.c - tables and JSON of the hand-off bench.
 */
#include <inttypes.h>

#include "handoff_rounds.h"

static const char *const metric_names[H_METRICS] = {
    [H_AVG] = "avg_us",
    [H_MIN] = "min_us",
    [H_P50] = "p50_us",
    [H_P99] = "p99_us",
    [H_P999] = "p999_us",
    [H_WAKES] = "wakes_per_op",
    [H_CPU] = "cpu_us_per_op",
    [H_SUBMIT] = "submit_us",
    [H_RATE] = "ops_per_s",
    [H_CLIENT_CPU] = "client_cpu",
    [H_WORKER_CPU] = "worker_cpu",
};

static void json_queue(const char *name, const double *m) {
  const char *sep = "";
  printf("\"%s\":{", name);
  for (size_t i = 0; i < H_METRICS; i++)
    if (metric_names[i]) {
      printf("%s\"%s\":%.4f", sep, metric_names[i], m[i]);
      sep = ",";
    }
  printf("}");
}

void handoff_json(const struct handoff_outcome *o) {
  const struct handoff_load *l = &o->load;
  const char *sep = "";
  printf("{\"gap_us\":%.3f,\"clients\":%u,\"shards\":%u,\"threads\":%u,\"ops\":%" PRIu64
         ",\"pinned\":%s,\"queues\":{",
         l->gap_us, l->clients, l->shards, l->threads, l->ops,
         handoff_pinned(l) ? "true" : "false");
  for (size_t i = 0; i < HANDOFF_WHATS; i++)
    if (o->has[i]) {
      printf("%s", sep);
      json_queue(handoff_names[i], o->r[i].m);
      sep = ",";
    }
  printf("}}");
}

/* ---------------------------------------------------------------------------------------------- */
/* Table                                                                                          */

static const char *plural(uint64_t n) { return n == 1 ? "" : "s"; }

static void table_head(const struct handoff_plan *p, const struct handoff_load *l) {
  printf("%u client%s, %u shard%s of %u worker%s%s, ", l->clients, plural(l->clients), l->shards,
         plural(l->shards), l->threads, plural(l->threads), handoff_pinned(l) ? " (pinned)" : "");
  if (l->gap_us > 0)
    printf("an operation each %.2f us", l->gap_us);
  else
    printf("operations as fast as they can");
  printf("; %" PRIu64 " operations, %" PRIu64 " rounds (medians); us\n", l->ops, p->rounds);
}

void handoff_table(const struct handoff_plan *p, const struct handoff_outcome *o) {
  table_head(p, &o->load);
  printf("%-8s %9s %9s %9s %9s %9s %9s %9s %9s %10s\n", "queue", "avg", "min", "p50", "p99",
         "p99.9", "wakes/op", "CPU/op", "submit", "ops/s");
  for (size_t i = 0; i < HANDOFF_WHATS; i++) {
    const double *m = o->r[i].m;
    if (o->has[i])
      printf("%-8s %9.2f %9.2f %9.2f %9.2f %9.2f %9.3f %9.2f %9.2f %10.0f\n", handoff_names[i],
             m[H_AVG], m[H_MIN], m[H_P50], m[H_P99], m[H_P999], m[H_WAKES], m[H_CPU], m[H_SUBMIT],
             m[H_RATE]);
  }
  printf("\n");
}
