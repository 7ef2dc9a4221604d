/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include <stdarg.h>
#include <stdlib.h>
#include <sys/resource.h>

int fail_set(struct fail *f, const char *fmt, ...) {
  char text[sizeof(f->text)];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof(text), fmt, ap);
  va_end(ap);
  memcpy(f->text, text, sizeof(text));
  return -1;
}

const char *bytes_print(char *out, size_t cap, struct bytes b) {
  size_t n = 0;
  for (size_t i = 0; i < b.size && n + 5 <= cap; i++) {
    uint8_t c = b.data[i];
    if (c >= 0x20 && c < 0x7f && c != '\\')
      out[n++] = (char)c;
    else
      n += (size_t)snprintf(out + n, cap - n, "\\x%02x", c);
  }
  out[n] = 0;
  return out;
}

void *must_realloc(void *p, size_t size) {
  void *q = realloc(p, size ? size : 1);
  if (!q) {
    fprintf(stderr, "pglog_bench: out of memory: %zu bytes asked for\n", size);
    exit(1);
  }
  return q;
}

double cpu_us(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 +
         (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

int cmp_u64(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static int cmp_double(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double median_of(const void *structs, size_t n, size_t size, size_t offset) {
  double *v = must_realloc(NULL, n * sizeof(*v));
  for (size_t i = 0; i < n; i++)
    memcpy(&v[i], (const char *)structs + i * size + offset, sizeof(*v));
  qsort(v, n, sizeof(*v), cmp_double);
  double m = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
  free(v);
  return m;
}
