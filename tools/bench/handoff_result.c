/* SPDX-License-Identifier: Apache-2.0
 *
 * handoff_result.c - figures of a run from its latencies, and medians over runs.
 */
#include <math.h>
#include <stdlib.h>

#include "handoff_run.h"

double handoff_tail(size_t i) {
  return pow(10, -4 * (double)i / (HANDOFF_QUANTILES - 1));
}

void handoff_latencies(uint64_t *ns, size_t n, struct handoff_result *out) {
  double *m = out->m;
  uint64_t sum = 0;
  for (size_t i = 0; i < n; i++)
    sum += ns[i];
  qsort(ns, n, sizeof(*ns), cmp_u64);
  m[H_AVG] = (double)sum / (double)n / 1e3;
  m[H_MIN] = (double)ns[0] / 1e3;
  m[H_P50] = (double)ns[n / 2] / 1e3;
  m[H_P99] = (double)ns[n - 1 - n / 100] / 1e3;
  m[H_P999] = (double)ns[n - 1 - n / 1000] / 1e3;
  for (size_t i = 0; i < HANDOFF_QUANTILES; i++) {
    size_t longer = (size_t)(handoff_tail(i) * (double)n);
    out->q[i] = (double)ns[longer < n ? n - 1 - longer : 0] / 1e3;
  }
}

void handoff_medians(const struct handoff_result *r, size_t n, struct handoff_result *out) {
  /* A result is nothing but doubles. */
  for (size_t at = 0; at < sizeof(*out); at += sizeof(double)) {
    double v = median_of(r, n, sizeof(*r), at);
    memcpy((char *)out + at, &v, sizeof(v));
  }
}
