/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz.h - what the fuzz targets share. Each fuzz_<part>.c has the entry point of libFuzzer and a
 * few right inputs to start from. Linked with standalone.c it is a program of its own, for
 * compilers without libFuzzer and for short runs in CI.
 */
#ifndef PGLOG_FUZZ_H
#define PGLOG_FUZZ_H

#include <stdio.h>
#include <stdlib.h>

#include "util.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Write right input number `i` to `out` and return its length; 0 if there are only `i`. */
size_t fuzz_seed(unsigned i, uint8_t *out, size_t cap);

/* A broken promise of the code under test: say which, and die where a debugger or fuzzer sees it.
 */
#define FUZZ_CHECK(cond)                                                   \
  do {                                                                     \
    if (!(cond)) {                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #cond); \
      abort();                                                             \
    }                                                                      \
  } while (0)

/* Takes bytes off the front of an input; zeros once it is used up. */
struct fuzz_in {
  const uint8_t *p, *end;
};

static inline uint8_t fuzz_byte(struct fuzz_in *in) {
  return in->p < in->end ? *in->p++ : 0;
}

static inline uint16_t fuzz_u16(struct fuzz_in *in) {
  uint16_t low = fuzz_byte(in);
  return (uint16_t)(low | fuzz_byte(in) << 8);
}

static inline struct slice fuzz_bytes(struct fuzz_in *in, size_t n) {
  size_t have = (size_t)(in->end - in->p);
  struct slice s = slice_make(in->p, n < have ? n : have);
  in->p += s.size;
  return s;
}

/* Does `part` lie in `whole`? An empty one may lie anywhere. */
static inline bool fuzz_inside(struct slice whole, struct slice part) {
  return part.size == 0 || (part.data >= whole.data && part.size <= whole.size &&
                            part.data - whole.data <= (ptrdiff_t)(whole.size - part.size));
}

#endif
