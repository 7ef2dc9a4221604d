/* SPDX-License-Identifier: Apache-2.0 */
#include "args.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int bad_option(const char *name, const char *limit, const char *value) {
  fprintf(stderr, "pglog_bench: --%s must be %s, not \"%s\"\n", name, limit, value);
  return 2;
}

int parse_number(const char *name, const char *text, uint64_t min, uint64_t max,
                        uint64_t *out) {
  char *end, limit[64];
  errno = 0;
  unsigned long long v = strtoull(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end || errno || v < min || v > max) {
    snprintf(limit, sizeof(limit), "a number from %" PRIu64 " to %" PRIu64, min, max);
    return bad_option(name, limit, text);
  }
  *out = v;
  return 0;
}
