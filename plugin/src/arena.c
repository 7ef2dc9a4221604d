/* SPDX-License-Identifier: Apache-2.0 */
#include "arena.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>

#define SLOTS 2u                       /* blocks 0 and 1 */
#define BLOCKS_MAX (UINT64_C(1) << 32) /* block numbers have 32 bits */
#define MERGE_MAX (256u * 1024)        /* bytes of a request made of neighbours */
#define REQS_ON_STACK 64
#define LEVELS_MAX 6 /* 64^6 > BLOCKS_MAX */
#define NO_RUN_FAILED UINT64_MAX

/* A tree of bitmaps. Level 0 has a bit per block, set when it is used or beyond the end; each bit
 * of a higher level stands for one word below and is set when that is full. The top is one word. */
struct map {
  uint64_t *level[LEVELS_MAX];
  uint64_t words[LEVELS_MAX];
  int levels;
  uint64_t bits;
};

struct arena {
  char *path;
  struct pglog_io io;
  bool opened; /* io is usable */
  struct io_file_info info;
  uint64_t max, step; /* blocks */
  uint32_t queue_depth;
  bool caller_io;

  /* Superblocks */
  uint8_t *block;   /* one aligned block; holds the newest superblock until it is settled */
  uint32_t newest;  /* slot of the newest superblock known */
  bool settled;     /* it is known to be durable */
  uint64_t id, top; /* arena id, 0: not formatted; highest generation that may be on disk */
  bool poisoned;
  struct pglog_error poison;

  /* Allocator */
  struct map map;
  uint64_t storage;  /* blocks of the storage when last asked */
  uint64_t end;      /* blocks in the map's charge */
  uint64_t used;     /* bits set below end */
  uint64_t next;     /* where the next search begins */
  uint64_t fail_run; /* no row of this many blocks is free */
};

/* ---------------------------------------------------------------------------------------------- */
/* Map                                                                                            */

static void map_free(struct map *m) {
  for (int l = 0; l < m->levels; l++)
    free(m->level[l]);
  memset(m, 0, sizeof *m);
}

/* All bits set. 0 or PGLOG_ENOMEM. */
static int map_init(struct map *m, uint64_t bits) {
  memset(m, 0, sizeof *m);
  m->bits = bits;
  for (uint64_t n = bits; m->levels == 0 || n > 1;) {
    n = (n + 63) / 64;
    uint64_t *w = malloc(n * sizeof *w);
    if (!w) {
      map_free(m);
      return PGLOG_ENOMEM;
    }
    memset(w, 0xff, n * sizeof *w);
    m->words[m->levels] = n;
    m->level[m->levels++] = w;
  }
  return 0;
}

static bool map_test(const struct map *m, uint64_t b) {
  return m->level[0][b / 64] >> (b % 64) & 1;
}

static void map_set(struct map *m, uint64_t b) {
  for (int l = 0; l < m->levels; l++, b /= 64) {
    m->level[l][b / 64] |= UINT64_C(1) << (b % 64);
    if (~m->level[l][b / 64] != 0)
      return;
  }
}

static void map_clear(struct map *m, uint64_t b) {
  for (int l = 0; l < m->levels; l++, b /= 64) {
    bool was_full = ~m->level[l][b / 64] == 0;
    m->level[l][b / 64] &= ~(UINT64_C(1) << (b % 64));
    if (!was_full)
      return;
  }
}

/* First clear bit at or behind `b`, or m->bits. */
static uint64_t map_next_clear(const struct map *m, uint64_t b) {
  for (int l = 0; l < m->levels; l++) {
    uint64_t w = b / 64;
    if (w >= m->words[l])
      break;
    uint64_t clear = ~m->level[l][w] & (~UINT64_C(0) << (b % 64));
    if (clear) {
      b = w * 64 + (uint64_t)__builtin_ctzll(clear);
      while (l-- > 0)
        b = b * 64 + (uint64_t)__builtin_ctzll(~m->level[l][b]);
      return b;
    }
    b = w + 1;
  }
  return m->bits;
}

/* First set bit in [b, end), or end. */
static uint64_t map_next_set(const struct map *m, uint64_t b, uint64_t end) {
  while (b < end) {
    uint64_t set = m->level[0][b / 64] >> (b % 64);
    if (set) {
      b += (uint64_t)__builtin_ctzll(set);
      return b < end ? b : end;
    }
    b = (b / 64 + 1) * 64;
  }
  return end;
}

/* Room for `bits`, at least doubled so that growing is O(1) per block in the long run. */
static int map_reserve(struct map *m, uint64_t bits) {
  struct map wide;
  if (bits <= m->bits)
    return 0;
  uint64_t want = 2 * m->bits > bits ? 2 * m->bits : bits;
  int rc = map_init(&wide, want < BLOCKS_MAX ? want : BLOCKS_MAX);
  if (rc != 0)
    return rc;
  for (uint64_t w = 0; m->levels && w < m->words[0]; w++) {
    if (~m->level[0][w] == 0)
      continue;
    map_clear(&wide, w * 64); /* tells the levels above */
    wide.level[0][w] = m->level[0][w];
  }
  map_free(m);
  *m = wide;
  return 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* Allocator                                                                                      */

static uint64_t least(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* Take charge of the blocks up to `end`. */
static int extend(struct arena *a, uint64_t end) {
  int rc = map_reserve(&a->map, end);
  if (rc != 0)
    return rc;
  while (a->end < end) {
    bool word = a->end % 64 == 0 && end - a->end >= 64;
    map_clear(&a->map, a->end); /* tells the levels above, for the whole word */
    if (word)
      a->map.level[0][a->end / 64] = 0;
    a->end += word ? 64 : 1;
  }
  a->fail_run = NO_RUN_FAILED;
  return 0;
}

static void take(struct arena *a, uint64_t block, uint64_t n) {
  for (uint64_t b = block; b < block + n; b++)
    map_set(&a->map, b);
  a->used += n;
}

/* Begin with the superblocks only. `storage` is up to date. */
static int allocator_init(struct arena *a) {
  map_free(&a->map);
  a->end = a->used = 0;
  a->next = SLOTS;
  int rc = extend(a, least(a->storage, a->max));
  if (rc == 0)
    take(a, 0, SLOTS);
  return rc;
}

int arena_mark(struct arena *a, uint32_t block, uint32_t n, struct pglog_error *err) {
  uint64_t behind = (uint64_t)block + n;
  if (block < SLOTS || n == 0 || behind > a->storage)
    return error_set(err, PGLOG_ECORRUPT,
                     "arena %s: blocks %u to %" PRIu64 " are outside of the space of %" PRIu64,
                     a->path, block, behind, a->storage);
  if (behind > a->end && extend(a, behind) != 0)
    return error_set(err, PGLOG_ENOMEM, "arena %s: no memory for the map of %" PRIu64 " blocks",
                     a->path, behind);
  uint64_t twice = map_next_set(&a->map, block, behind);
  if (twice < behind)
    return error_set(err, PGLOG_ECORRUPT, "arena %s: block %" PRIu64 " is used twice", a->path,
                     twice);
  take(a, block, n);
  return 0;
}

static int full(const struct arena *a, uint32_t n, const char *limit, uint64_t bytes,
                struct pglog_error *err) {
  char value[64] = "";
  if (bytes)
    snprintf(value, sizeof value, " of %" PRIu64 " bytes", bytes);
  return error_set(err, PGLOG_EFULL,
                   "arena %s is full: %" PRIu64 " of %" PRIu64 " bytes are used, %" PRIu64
                   " more in a row are needed; the limit is %s%s",
                   a->path, a->used * PGLOG_BLOCK, a->end * PGLOG_BLOCK, (uint64_t)n * PGLOG_BLOCK,
                   limit, value);
}

static int full_max(const struct arena *a, uint32_t n, struct pglog_error *err) {
  if (a->info.is_device && a->storage <= a->max)
    return full(a, n, "the device's size", a->storage * PGLOG_BLOCK, err);
  return full(a, n, "arena_max", a->max * PGLOG_BLOCK, err);
}

static bool is_full(int rc) {
  return rc == -ENOSPC || rc == -EDQUOT || rc == -EFBIG;
}

static int full_storage(const struct arena *a, uint32_t n, int rc, struct pglog_error *err) {
  char limit[160];
  if (a->info.is_device)
    return full(a, n, "the device's size", a->storage * PGLOG_BLOCK, err);
  snprintf(limit, sizeof limit, "the space in %s (%s)",
           a->caller_io ? "its storage" : "its file system", strerror(-rc));
  return full(a, n, limit, 0, err);
}

static int io_failed(const struct arena *a, const char *what, int rc, struct pglog_error *err) {
  return error_set(err, PGLOG_EIO, "arena %s: %s: %s", a->path, what, strerror(-rc));
}

/* Ask for the storage's size. */
static int measure(struct arena *a, struct pglog_error *err) {
  int64_t bytes = a->io.size(a->io.arg);
  if (bytes < 0)
    return io_failed(a, "size", (int)bytes, err);
  a->storage = least((uint64_t)bytes / PGLOG_BLOCK, BLOCKS_MAX);
  return 0;
}

/* Make room for a row of n blocks. Searching goes on where it is. */
static int make_room(struct arena *a, uint32_t n, struct pglog_error *err) {
  uint64_t limit = least(a->end, a->max), tail = limit;
  while (tail > SLOTS && limit - tail < n && !map_test(&a->map, tail - 1))
    tail--;
  uint64_t need = n - (limit - tail); /* > 0: the tail was searched */
  uint64_t want = least(limit + (need + a->step - 1) / a->step * a->step, a->max);
  int rc = measure(a, err);
  if (rc != 0)
    return rc;
  if (limit + need > a->max)
    return full_max(a, n, err);
  if (map_reserve(&a->map, want) != 0)
    return error_set(err, PGLOG_ENOMEM, "arena %s: no memory for the map of %" PRIu64 " blocks",
                     a->path, want);
  if (a->storage >= limit + need) { /* a device that has been enlarged */
    want = least(want, a->storage);
  } else {
    rc = a->io.grow(a->io.arg, want * PGLOG_BLOCK);
    if (rc != 0)
      return is_full(rc) ? full_storage(a, n, rc, err) : io_failed(a, "grow", rc, err);
    a->storage = want;
  }
  extend(a, want); /* cannot fail: reserved */
  a->next = tail;
  return 0;
}

/* The first free row of n blocks that begins in [from, to). */
static bool find_row(const struct arena *a, uint64_t from, uint64_t to, uint32_t n, uint64_t *at) {
  uint64_t limit = least(a->end, a->max);
  uint64_t b = from;
  while ((b = map_next_clear(&a->map, b)) < to && b + n <= limit) {
    uint64_t set = map_next_set(&a->map, b, b + n);
    if (set == b + n) {
      *at = b;
      return true;
    }
    b = set;
  }
  return false;
}

int arena_alloc(struct arena *a, uint32_t n, uint32_t *block, struct pglog_error *err) {
  uint64_t at = 0;
  if (n == 0)
    return error_set(err, PGLOG_EINVAL, "arena %s: allocation of 0 blocks", a->path);
  while (n >= a->fail_run ||
         (!find_row(a, a->next, a->end, n, &at) && !find_row(a, SLOTS, a->next, n, &at))) {
    a->fail_run = least(a->fail_run, n);
    int rc = make_room(a, n, err);
    if (rc != 0)
      return rc;
  }
  take(a, at, n);
  a->next = at + n;
  *block = (uint32_t)at;
  return 0;
}

void arena_free(struct arena *a, uint32_t block, uint32_t n) {
  uint64_t behind = (uint64_t)block + n;
  assert(block >= SLOTS && behind <= a->end);
  for (uint64_t b = block; b < behind; b++) {
    assert(map_test(&a->map, b));
    map_clear(&a->map, b);
  }
  a->used -= n;
  a->fail_run = NO_RUN_FAILED;
}

void arena_usage(struct arena *a, struct arena_usage *u) {
  u->used_blocks = a->used;
  u->size_blocks = a->end;
  u->max_blocks = a->info.is_device ? least(a->max, a->storage) : a->max;
  u->allocated = a->io.allocated(a->io.arg);
}

/* ---------------------------------------------------------------------------------------------- */
/* Reads and writes                                                                               */

/* One request for each run of neighbours of v; returns how many. */
static size_t merge(const struct arena_io *v, size_t n, int op, struct pglog_io_req *reqs) {
  size_t m = 0;
  for (size_t i = 0; i < n; i++) {
    struct pglog_io_req *r = m ? &reqs[m - 1] : NULL;
    uint64_t offset = (uint64_t)v[i].block * PGLOG_BLOCK;
    uint32_t length = v[i].n * PGLOG_BLOCK;
    if (r && r->offset + r->length == offset && (uint8_t *)r->buf + r->length == v[i].bytes &&
        (uint64_t)r->length + length <= MERGE_MAX)
      r->length += length;
    else
      reqs[m++] = (struct pglog_io_req){
          .op = op, .result = -EIO, .offset = offset, .length = length, .buf = v[i].bytes};
  }
  return m;
}

/* Results of the merged requests to the parts. The parts of a failed one are done again, each on
 * its own: a bad block must not take its neighbours down. */
static void spread(struct arena *a, struct arena_io *v, size_t n, struct pglog_io_req *r) {
  uint32_t done = 0;
  for (size_t i = 0; i < n; i++) {
    uint32_t length = v[i].n * PGLOG_BLOCK;
    v[i].result = r->result;
    if (r->result != 0 && length != r->length) {
      struct pglog_io_req part = {
          .op = r->op, .offset = r->offset + done, .length = length, .buf = v[i].bytes};
      v[i].result = a->io.submit(a->io.arg, &part, 1);
    }
    done += length;
    if (done == r->length) {
      done = 0;
      r++;
    }
  }
}

static int transfer(struct arena *a, int op, struct arena_io *v, size_t n,
                    struct pglog_error *err) {
  struct pglog_io_req few[REQS_ON_STACK], *reqs = few;
  const char *verb = op == PGLOG_IO_READ ? "read" : "write";
  for (size_t i = 0; i < n; i++)
    if (v[i].n == 0 || v[i].n > UINT32_MAX / PGLOG_BLOCK)
      return error_set(err, PGLOG_EINVAL, "arena %s: %s of %u blocks", a->path, verb, v[i].n);
  if (n > REQS_ON_STACK && !(reqs = malloc(n * sizeof *reqs)))
    return error_set(err, PGLOG_ENOMEM, "arena %s: no memory for %zu requests", a->path, n);
  size_t m = merge(v, n, op, reqs);
  a->io.submit(a->io.arg, reqs, m);
  spread(a, v, n, reqs);
  if (reqs != few)
    free(reqs);
  for (size_t i = 0; i < n; i++)
    if (v[i].result != 0)
      return error_set(err, op == PGLOG_IO_WRITE && is_full(v[i].result) ? PGLOG_EFULL : PGLOG_EIO,
                       "arena %s: %s of block %u (%u in a row): %s", a->path, verb, v[i].block,
                       v[i].n, strerror(-v[i].result));
  return 0;
}

int arena_read(struct arena *a, struct arena_io *v, size_t n, struct pglog_error *err) {
  return transfer(a, PGLOG_IO_READ, v, n, err);
}

static int poisoned(const struct arena *a, struct pglog_error *err) {
  return error_set(err, PGLOG_EPOISONED, "no more writes until reopen, after: %s", a->poison.text);
}

/* Write a superblock and make it durable. */
static int put_slot(struct arena *a, uint32_t slot, const uint8_t *block, struct pglog_error *err) {
  int rc = io_write(&a->io, (uint64_t)slot * PGLOG_BLOCK, block, PGLOG_BLOCK);
  if (rc != 0)
    return error_set(err, PGLOG_EIO, "arena %s: write of superblock slot %u: %s", a->path, slot,
                     strerror(-rc));
  rc = a->io.sync(a->io.arg);
  if (rc != 0)
    return error_set(err, PGLOG_EIO, "arena %s: sync of superblock slot %u: %s", a->path, slot,
                     strerror(-rc));
  return 0;
}

/* Before the first write: make durable what arena_open() found, see the top of arena.h. */
static int settle(struct arena *a, struct pglog_error *err) {
  if (a->poisoned)
    return poisoned(a, err);
  if (a->settled)
    return 0;
  int rc = put_slot(a, a->newest, a->block, err);
  a->settled = rc == 0;
  return rc;
}

int arena_write(struct arena *a, struct arena_io *v, size_t n, struct pglog_error *err) {
  for (size_t i = 0; i < n; i++) {
    uint64_t b = v[i].block, behind = b + v[i].n;
    while (b >= SLOTS && b < behind && behind <= a->end && map_test(&a->map, b))
      b++;
    if (b < behind)
      return error_set(err, PGLOG_EINVAL,
                       "arena %s: write of block %" PRIu64 ", which is not allocated", a->path, b);
  }
  int rc = settle(a, err);
  return rc ? rc : transfer(a, PGLOG_IO_WRITE, v, n, err);
}

int arena_sync(struct arena *a, struct pglog_error *err) {
  if (a->poisoned)
    return poisoned(a, err);
  int rc = a->io.sync(a->io.arg);
  if (rc == 0)
    return 0;
  a->poisoned = true;
  io_failed(a, "sync", rc, &a->poison);
  return error_set(err, a->poison.code, "%s", a->poison.text);
}

/* ---------------------------------------------------------------------------------------------- */
/* Superblocks                                                                                    */

int arena_publish(struct arena *a, const struct super *s, struct pglog_error *err) {
  const char *wrong = super_wrong(s);
  if (!wrong && s->arena_id != a->id)
    wrong = "arena id is another arena's";
  if (!wrong && s->generation <= a->top)
    wrong = "generation has been used";
  if (wrong)
    return error_set(err, PGLOG_EINVAL, "arena %s: superblock of generation %" PRIu64 ": %s",
                     a->path, s->generation, wrong);
  int rc = settle(a, err);
  if (rc == 0)
    rc = arena_sync(a, err);
  if (rc != 0)
    return rc;
  uint32_t slot = 1 - a->newest;
  a->top = s->generation;
  super_encode(s, a->block);
  rc = put_slot(a, slot, a->block, err);
  if (rc == 0)
    a->newest = slot;
  return rc;
}

int arena_invalidate(struct arena *a, struct super *s, struct pglog_error *err) {
  s->invalidated = true;
  for (uint32_t i = 0; i < SLOTS; i++) {
    s->generation++;
    int rc = arena_publish(a, s, err);
    if (rc != 0)
      return rc;
  }
  return 0;
}

/* Create or grow the storage to the first step. */
static int format_space(struct arena *a, struct pglog_error *err) {
  uint64_t want = least(a->step > SLOTS ? a->step : SLOTS + 1, a->max);
  int rc = a->opened ? 0 : io_file_open(a->path, true, a->queue_depth, &a->io, &a->info, err);
  if (rc != 0)
    return rc;
  a->opened = true;
  if ((rc = measure(a, err)) != 0)
    return rc;
  if (a->storage < want) {
    rc = a->io.grow(a->io.arg, want * PGLOG_BLOCK);
    if (rc == 0)
      a->storage = want;
    else if (!is_full(rc))
      return io_failed(a, "grow", rc, err);
    else if (a->storage <= SLOTS) /* otherwise a small device, or a file that does not grow now */
      return full_storage(a, (uint32_t)want, rc, err);
  }
  if (allocator_init(a) != 0)
    return error_set(err, PGLOG_ENOMEM, "arena %s: no memory for the map of %" PRIu64 " blocks",
                     a->path, a->storage);
  return 0;
}

static uint64_t random_id(void) {
  uint64_t id = 0;
  while (id == 0)
    if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id)
      id = 0; /* interrupted: 8 bytes never come in parts otherwise */
  return id;
}

int arena_format(struct arena *a, struct super *first, struct pglog_error *err) {
  a->id = 0;
  first->generation = 1;
  first->arena_id = random_id();
  const char *wrong = super_wrong(first);
  if (wrong)
    return error_set(err, PGLOG_EINVAL, "arena %s: first superblock: %s", a->path, wrong);
  int rc = format_space(a, err);
  if (rc != 0)
    return rc;
  memset(a->block, 0, PGLOG_BLOCK);
  for (uint32_t slot = SLOTS; slot-- > 0;)
    if ((rc = put_slot(a, slot, a->block, err)) != 0)
      return rc;
  super_encode(first, a->block);
  if ((rc = put_slot(a, 0, a->block, err)) != 0)
    return rc;
  a->newest = 0;
  a->settled = true;
  a->poisoned = false;
  a->id = first->arena_id;
  a->top = 1;
  return 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* Opening                                                                                        */

/* Both slots into `head`, zeros where the storage ends. */
static int read_head(struct arena *a, uint8_t *head, struct pglog_error *err) {
  memset(head, 0, SLOTS * PGLOG_BLOCK);
  for (uint32_t slot = 0; slot < least(a->storage, SLOTS); slot++) {
    int rc = io_read(&a->io, (uint64_t)slot * PGLOG_BLOCK, head + slot * PGLOG_BLOCK, PGLOG_BLOCK);
    if (rc != 0)
      return error_set(err, PGLOG_EIO, "arena %s: read of superblock slot %u: %s", a->path, slot,
                       strerror(-rc));
  }
  if (a->caller_io || a->info.is_device || a->storage >= SLOTS)
    return 0;
  /* The file may end within a block, which cannot be had through the arena's I/O. */
  int fd = open(a->path, O_RDONLY | O_CLOEXEC);
  int got = fd < 0 ? -1 : (int)pread(fd, head, SLOTS * PGLOG_BLOCK, 0);
  int e = errno;
  if (fd >= 0)
    close(fd);
  return got < 0 ? io_failed(a, "read of a short file", -e, err) : 0;
}

/* What the two slots hold. */
struct slots {
  struct super super[SLOTS];
  bool ok[SLOTS]; /* valid */
  struct pglog_error why[SLOTS];
  bool magic; /* in one of them */
  bool zeros; /* both are */
};

/* PGLOG_EMISMATCH if one is of another version. */
static int decode(const struct arena *a, const uint8_t *head, struct slots *s,
                  struct pglog_error *err) {
  s->zeros = true;
  for (uint32_t i = 0; i < SLOTS; i++) {
    const uint8_t *b = head + i * PGLOG_BLOCK;
    s->magic = s->magic || memcmp(b, SUPER_MAGIC, SUPER_MAGIC_LEN) == 0;
    s->zeros = s->zeros && b[0] == 0 && memcmp(b, b + 1, PGLOG_BLOCK - 1) == 0;
    int rc = super_decode(&s->super[i], b, &s->why[i]);
    if (rc == PGLOG_EMISMATCH)
      return error_set(err, rc, "arena %s, superblock slot %u: %.400s", a->path, i, s->why[i].text);
    s->ok[i] = rc == 0;
  }
  return 0;
}

/* No slot is valid. */
static enum arena_state invalid(const struct arena *a, const struct slots *s,
                                struct pglog_error *err) {
  if (s->magic) {
    error_set(err, PGLOG_ECORRUPT,
              "arena %s has no valid superblock; slot 0: %.200s; slot 1: %.200s", a->path,
              s->why[0].text, s->why[1].text);
    return ARENA_DAMAGED;
  }
  if (s->zeros)
    return ARENA_ABSENT;
  error_set(err, PGLOG_EMISMATCH, "%s holds something that is not an arena", a->path);
  return ARENA_FOREIGN;
}

/* Choose a slot and take over what it says. */
static int choose(struct arena *a, const uint8_t *head, const struct slots *s,
                  enum arena_state *state, struct super *super, struct pglog_error *err) {
  const struct super *two = s->super;
  bool both = s->ok[0] && s->ok[1];
  uint32_t best = s->ok[1] && (!s->ok[0] || two[1].generation > two[0].generation);
  if (!s->ok[best]) {
    *state = invalid(a, s, err);
    return 0;
  }
  if (both && two[0].arena_id != two[1].arena_id)
    return error_set(err, PGLOG_EMISMATCH,
                     "arena %s: the superblocks' arena ids differ: %016" PRIx64 " and %016" PRIx64,
                     a->path, two[0].arena_id, two[1].arena_id);
  *state = ARENA_DAMAGED;
  if (both && two[0].generation == two[1].generation) {
    error_set(err, PGLOG_ECORRUPT, "arena %s: both superblocks have generation %" PRIu64, a->path,
              two[0].generation);
    return 0;
  }
  if (a->storage < SLOTS) {
    error_set(err, PGLOG_ECORRUPT, "arena %s has been cut to less than %u bytes", a->path,
              SLOTS * PGLOG_BLOCK);
    return 0;
  }
  *state = ARENA_VALID;
  *super = two[best];
  a->newest = best;
  a->id = super->arena_id;
  a->top = super->generation;
  memcpy(a->block, head + best * PGLOG_BLOCK, PGLOG_BLOCK);
  return 0;
}

static int arena_new(const struct arena_config *c, struct arena **out, struct pglog_error *err) {
  struct arena *a = calloc(1, sizeof *a);
  if (a) {
    a->path = strdup(c->path ? c->path : "(storage)");
    a->block = io_alloc(1);
  }
  if (!a || !a->path || !a->block) {
    arena_close(a);
    return error_set(err, PGLOG_ENOMEM, "out of memory opening arena %s", c->path);
  }
  a->max = least(c->max / PGLOG_BLOCK, BLOCKS_MAX);
  a->step = c->step >= PGLOG_BLOCK ? c->step / PGLOG_BLOCK : 1;
  a->queue_depth = c->queue_depth;
  a->fail_run = NO_RUN_FAILED;
  *out = a;
  if (a->max > SLOTS)
    return 0;
  error_set(err, PGLOG_EINVAL, "arena %s: arena_max is %" PRIu64 " bytes; it must be over %u",
            a->path, c->max, SLOTS * PGLOG_BLOCK);
  arena_close(a);
  return PGLOG_EINVAL;
}

/* Look at opened storage. */
static int examine(struct arena *a, enum arena_state *state, struct super *super,
                   struct pglog_error *err) {
  uint8_t *head = io_alloc(SLOTS);
  struct slots *s = calloc(1, sizeof *s);
  int rc = head && s ? 0 : error_set(err, PGLOG_ENOMEM, "arena %s: out of memory", a->path);
  if (rc == 0)
    rc = measure(a, err);
  if (rc == 0)
    rc = read_head(a, head, err);
  if (rc == 0)
    rc = decode(a, head, s, err);
  if (rc == 0)
    rc = choose(a, head, s, state, super, err);
  if (rc == 0 && *state == ARENA_VALID && allocator_init(a) != 0)
    rc = error_set(err, PGLOG_ENOMEM, "arena %s: no memory for the map of %" PRIu64 " blocks",
                   a->path, a->storage);
  free(head);
  free(s);
  return rc;
}

int arena_open(const struct arena_config *c, struct arena **out, enum arena_state *state,
               struct super *super, struct pglog_error *err) {
  struct arena *a = NULL;
  *out = NULL;
  int rc = arena_new(c, &a, err);
  if (rc != 0)
    return rc;
  if (c->io) {
    a->io = *c->io;
    a->caller_io = true;
  } else {
    struct pglog_error e;
    rc = io_file_open(c->path, false, c->queue_depth, &a->io, &a->info, &e);
    if (rc == PGLOG_ENOTFOUND) {
      *state = ARENA_ABSENT;
      *out = a;
      return 0;
    }
    if (rc != 0)
      error_set(err, rc, "arena %s", e.text);
  }
  a->opened = rc == 0;
  if (rc == 0)
    rc = examine(a, state, super, err);
  if (rc == 0)
    *out = a;
  else
    arena_close(a);
  return rc;
}

void arena_close(struct arena *a) {
  if (!a)
    return;
  if (a->opened)
    a->io.close(a->io.arg);
  map_free(&a->map);
  free(a->block);
  free(a->path);
  free(a);
}

const char *arena_buffered_why(const struct arena *a) {
  return a->caller_io || !a->opened || a->info.direct ? NULL : a->info.why;
}
