/* SPDX-License-Identifier: Apache-2.0
 *
 * common.h - small things that every part of pglog_bench uses: error text, byte strings, clocks.
 */
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Why something failed: one sentence. Functions that take one return 0, or -1 with it filled in. */
struct fail {
  char text[1024];
};

/* Fill in `f` and return -1. The arguments may be f's own text. */
int fail_set(struct fail *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A borrowed byte string. */
struct bytes {
  const uint8_t *data;
  size_t size;
};

static inline struct bytes bytes_make(const void *data, size_t size) {
  struct bytes b = {(const uint8_t *)data, size};
  return b;
}

/* Bytewise order: <0, 0, >0. */
static inline int bytes_cmp(struct bytes a, struct bytes b) {
  size_t n = a.size < b.size ? a.size : b.size;
  int c = n ? memcmp(a.data, b.data, n) : 0;
  return c ? c : (a.size > b.size) - (a.size < b.size);
}

/* Print a key readably: printable ASCII as is, other bytes as \xNN, cut where it does not fit. */
const char *bytes_print(char *out, size_t cap, struct bytes b);

/* Nanoseconds of a clock, e.g. CLOCK_MONOTONIC. */
static inline uint64_t clock_ns(clockid_t id) {
  struct timespec ts;
  clock_gettime(id, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* User and system time of all threads of this process, us. */
double cpu_us(void);

/* Order of two uint64_t, for qsort(). */
int cmp_u64(const void *a, const void *b);

/* The median of a double in each of n structures of `size` bytes, n > 0; `offset` is where it is. */
double median_of(const void *structs, size_t n, size_t size, size_t offset);

/* realloc() that ends the program with exit code 1 when there is no memory. */
void *must_realloc(void *p, size_t size);

#endif
