/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target without libFuzzer:
 *
 *     fuzz_<part> FILE...               run these inputs
 *     fuzz_<part> [-n CASES] [-s SEED]  run CASES mutations of the target's own right inputs
 *     fuzz_<part> -w DIR                write those inputs to DIR, as a corpus
 *
 * Case i of a run with seed S is case 0 of a run with seed S + i: a crash prints how to replay it.
 */
#include "fuzz.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#define INPUT_MAX (256u << 10)
#define SEEDS_MAX 64

void __sanitizer_set_death_callback(void (*fn)(void)) __attribute__((weak));

static struct {
  uint8_t *data;
  size_t size;
} seeds[SEEDS_MAX];
static unsigned seed_count;
static uint64_t case_seed;
static uint64_t state;

static uint64_t next(void) { /* splitmix64 */
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static size_t below(size_t n) {
  return n ? (size_t)(next() % n) : 0;
}

static void say_replay(void) {
  char text[80];
  int n = snprintf(text, sizeof text, "replay with: -n 1 -s %llu\n", (unsigned long long)case_seed);
  if (write(2, text, (size_t)n) < 0)
    _exit(1);
}

static void on_signal(int sig) {
  say_replay();
  signal(sig, SIG_DFL);
  raise(sig);
}

static size_t insert(uint8_t *b, size_t n, size_t at, const uint8_t *what, size_t k) {
  if (k > INPUT_MAX - n)
    k = INPUT_MAX - n;
  memmove(b + at + k, b + at, n - at);
  memcpy(b + at, what, k);
  return n + k;
}

/* One random change of the n bytes at b; returns the new length. */
static size_t mutate(uint8_t *b, size_t n) {
  static const uint32_t odd[] = {0,      1,      7,      11,         12,         0x7f,      0x80,
                                 0xff,   0x100,  0x7fff, 0x8000,     0xffff,     0x10000,   32761,
                                 0xfffe, 0x3fff, 0x4000, 0x7fffffff, 0x80000000, 0xffffffff};
  uint8_t bytes[64];
  size_t at = below(n), k;
  uint32_t v = odd[below(sizeof odd / sizeof *odd)];
  if (n == 0)
    return insert(b, n, 0, (const uint8_t *)&v, 4);
  switch (below(8)) {
    case 0:
      b[at] ^= (uint8_t)(1u << below(8));
      return n;
    case 1:
      b[at] = (uint8_t)next();
      return n;
    case 2: /* a length or count at a limit */
      k = (size_t)1 << below(3);
      memcpy(b + at, &v, k < n - at ? k : n - at);
      return n;
    case 3:
      k = 1 + below(below(8) ? 8 : n - at);
      k = k < n - at ? k : n - at;
      memmove(b + at, b + at + k, n - at - k);
      return n - k;
    case 4:
      k = 1 + below(sizeof bytes);
      for (size_t i = 0; i < k; i++)
        bytes[i] = (uint8_t)next();
      return insert(b, n, at, bytes, k);
    case 5: /* a part of another input */
      v = (uint32_t)below(seed_count);
      k = below(seeds[v].size);
      return insert(b, n, at, seeds[v].data + k, 1 + below(seeds[v].size - k));
    case 6:
      memset(b + at, 0, 1 + below(below(4) ? 16 < n - at ? 16 : n - at : n - at));
      return n;
    default:
      return below(8) ? n : at;
  }
}

static void load_seeds(void) {
  uint8_t *b = malloc(INPUT_MAX);
  size_t n;
  FUZZ_CHECK(b);
  while (seed_count < SEEDS_MAX && (n = fuzz_seed(seed_count, b, INPUT_MAX)) > 0) {
    seeds[seed_count].data = malloc(n);
    FUZZ_CHECK(seeds[seed_count].data);
    memcpy(seeds[seed_count].data, b, n);
    seeds[seed_count++].size = n;
  }
  FUZZ_CHECK(seed_count > 0);
  free(b);
}

/* Runs on a copy of just this size, so that a sanitizer sees a read over the end. */
static void run(const uint8_t *data, size_t n) {
  uint8_t *copy = malloc(n ? n : 1);
  FUZZ_CHECK(copy);
  memcpy(copy, data, n);
  LLVMFuzzerTestOneInput(copy, n);
  free(copy);
}

static void run_cases(uint64_t seed, uint64_t cases) {
  uint8_t *b = malloc(INPUT_MAX);
  FUZZ_CHECK(b);
  for (unsigned i = 0; i < seed_count; i++)
    run(seeds[i].data, seeds[i].size);
  for (uint64_t i = 0; i < cases; i++) {
    state = case_seed = seed + i;
    unsigned s = (unsigned)below(seed_count);
    size_t n = seeds[s].size;
    memcpy(b, seeds[s].data, n);
    for (size_t k = 1 + below(6); k > 0; k--)
      n = mutate(b, n);
    run(b, n);
  }
  free(b);
}

static int run_file(const char *path) {
  uint8_t *b = malloc(INPUT_MAX);
  FILE *f = fopen(path, "rb");
  FUZZ_CHECK(b);
  if (!f) {
    perror(path);
    free(b);
    return 1;
  }
  run(b, fread(b, 1, INPUT_MAX, f));
  fclose(f);
  free(b);
  return 0;
}

static int write_seeds(const char *dir) {
  for (unsigned i = 0; i < seed_count; i++) {
    char path[4096];
    snprintf(path, sizeof path, "%s/seed-%02u", dir, i);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(seeds[i].data, 1, seeds[i].size, f) != seeds[i].size || fclose(f)) {
      perror(path);
      return 1;
    }
  }
  return 0;
}

int main(int argc, char **argv) {
  uint64_t cases = 10000, seed = (uint64_t)time(NULL) * 1000003u;
  const char *dir = NULL;
  int rc = 0;
  for (int c; (c = getopt(argc, argv, "n:s:w:")) != -1;) {
    if (c == 'n')
      cases = strtoull(optarg, NULL, 0);
    else if (c == 's')
      seed = strtoull(optarg, NULL, 0);
    else if (c == 'w')
      dir = optarg;
    else
      return 2;
  }
  load_seeds();
  if (dir) {
    rc = write_seeds(dir);
  } else if (optind < argc) {
    for (int i = optind; i < argc; i++)
      rc |= run_file(argv[i]);
  } else {
    if (__sanitizer_set_death_callback)
      __sanitizer_set_death_callback(say_replay);
    signal(SIGABRT, on_signal);
    signal(SIGSEGV, on_signal);
    printf("%u inputs, %llu cases, seed %llu\n", seed_count, (unsigned long long)cases,
           (unsigned long long)seed);
    fflush(stdout);
    run_cases(seed, cases);
  }
  for (unsigned i = 0; i < seed_count; i++)
    free(seeds[i].data);
  return rc;
}
