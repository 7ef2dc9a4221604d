/* SPDX-License-Identifier: Apache-2.0 */
#include "args.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int bad_option(const char *name, const char *limit, const char *value) {
  fprintf(stderr, "pglog_bench: --%s must be %s, not \"%s\"\n", name, limit, value);
  return 2;
}

int parse_number(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *out) {
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

int parse_numbers(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *out,
                  size_t cap, size_t *n) {
  char part[32], limit[64];
  for (*n = 0;; text++) {
    size_t len = strcspn(text, ",");
    if (len >= sizeof(part) || *n == cap) {
      snprintf(limit, sizeof(limit), "at most %zu numbers", cap);
      return bad_option(name, limit, text);
    }
    memcpy(part, text, len);
    part[len] = 0;
    int rc = parse_number(name, part, min, max, &out[(*n)++]);
    text += len;
    if (rc != 0 || *text == 0)
      return rc;
  }
}
