/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <libaio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define RING_BYTES ((uint64_t)RING_BLOCK * RING_BLOCKS)
#define QUEUE_DEPTH 256
#define FILL_STEP (1u << 20)
#define CHUNK (1u << 20)

/* Start of a transaction's first block. */
struct block_head {
  uint32_t magic;
  uint32_t length; /* bytes of operations that follow, over all its blocks */
  uint64_t number; /* of the transaction within the ring */
  uint64_t trim;   /* entries up to this version are trimmed; 0: none */
};
#define BLOCK_MAGIC 0x31636f70u

struct pg_ring {
  uint64_t head, tail;           /* blocks ever written, blocks ever freed */
  uint64_t version[RING_BLOCKS]; /* by block: version of the entry in it, 0 if none */
};

/* Memory of blocks in flight; it does not move. */
struct chunk {
  struct chunk *next;
  uint8_t *data;
  size_t used, cap;
};

struct ring {
  int fd;
  char path[4096];
  io_context_t aio;
  const struct trace *trace;
  struct pg_ring *pgs;          /* as trace->pgs */
  struct chunk *chunks, *chunk; /* all of them, the one being filled */
  struct iocb iocbs[QUEUE_DEPTH];
  struct iocb *free[QUEUE_DEPTH]; /* those not in flight */
  size_t n_free;
  bool wrote; /* in this group */
  uint64_t bytes;
};

static int fill(struct ring *r, uint64_t size, struct fail *f) {
  struct stat st;
  if (fstat(r->fd, &st) == 0 && (uint64_t)st.st_size == size &&
      (uint64_t)st.st_blocks * 512 >= size)
    return 0;
  void *zero;
  if (posix_memalign(&zero, RING_BLOCK, FILL_STEP) != 0)
    return fail_set(f, "out of memory");
  memset(zero, 0, FILL_STEP);
  int rc = 0;
  for (uint64_t at = 0; rc == 0 && at < size; at += FILL_STEP) {
    ssize_t n = pwrite(r->fd, zero, FILL_STEP, (off_t)at);
    if (n != FILL_STEP)
      rc = fail_set(f, "%s: write of %u bytes at %llu: %s", r->path, FILL_STEP,
                    (unsigned long long)at, n < 0 ? strerror(errno) : "short");
  }
  free(zero);
  if (rc == 0 && fsync(r->fd) != 0)
    rc = fail_set(f, "%s: fsync: %s", r->path, strerror(errno));
  return rc;
}

struct ring *ring_open(const char *path, const struct trace *t, struct fail *f) {
  struct ring *r = must_realloc(NULL, sizeof(*r));
  memset(r, 0, sizeof(*r));
  snprintf(r->path, sizeof(r->path), "%s", path);
  r->trace = t;
  r->fd = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0644);
  int rc = r->fd < 0 ? fail_set(f, "%s: open with O_DIRECT: %s", path, strerror(errno))
                     : fill(r, RING_BYTES * t->n_pgs, f);
  int e = rc == 0 ? io_setup(QUEUE_DEPTH, &r->aio) : 0;
  if (e != 0)
    rc = fail_set(f, "io_setup of %d requests: %s", QUEUE_DEPTH, strerror(-e));
  if (rc != 0) {
    ring_close(r);
    return NULL;
  }
  for (size_t i = 0; i < QUEUE_DEPTH; i++)
    r->free[r->n_free++] = &r->iocbs[i];
  r->pgs = must_realloc(NULL, t->n_pgs * sizeof(*r->pgs));
  memset(r->pgs, 0, t->n_pgs * sizeof(*r->pgs));
  return r;
}

void ring_close(struct ring *r) {
  if (!r)
    return;
  if (r->aio)
    io_destroy(r->aio);
  if (r->fd >= 0)
    close(r->fd);
  for (struct chunk *c = r->chunks, *next; c; c = next) {
    next = c->next;
    free(c->data);
    free(c);
  }
  free(r->pgs);
  free(r);
}

static int pg_full(const struct ring *r, size_t pg, size_t blocks, struct fail *f) {
  const struct pg_ring *p = &r->pgs[pg];
  char text[64];
  return fail_set(f, "poc: the ring of PG %s is full: %u blocks, %llu in use, %zu more asked for",
                  bytes_print(text, sizeof(text), bytes_make(r->trace->pgs[pg].id, TRACE_PG_ID)),
                  RING_BLOCKS, (unsigned long long)(p->head - p->tail), blocks);
}

int ring_load(struct ring *r, const struct keyspace_file *k, struct fail *f) {
  struct bytes key, value;
  for (size_t pos = 0; keyspace_file_next(k, &pos, &key, &value);) {
    uint64_t version;
    long pg = trace_pg_find(r->trace, key);
    if (pg < 0 || trace_key_version(key, &version) != TRACE_KEY_LOG)
      continue;
    struct pg_ring *p = &r->pgs[pg];
    if (p->head - p->tail == RING_BLOCKS)
      return pg_full(r, (size_t)pg, 1, f);
    p->version[p->head++ % RING_BLOCKS] = version;
  }
  return 0;
}

/* Room for `n` bytes, aligned: in the present chunk, a later one or a new one. */
static uint8_t *room(struct ring *r, size_t n) {
  struct chunk **at = r->chunk ? &r->chunk : &r->chunks;
  while (*at && (*at)->cap - (*at)->used < n)
    at = &(*at)->next;
  if (!*at) {
    struct chunk *c = must_realloc(NULL, sizeof(*c));
    *c = (struct chunk){.cap = n > CHUNK ? n : CHUNK};
    void *data;
    if (posix_memalign(&data, RING_BLOCK, c->cap) != 0) {
      fprintf(stderr, "pglog_bench: out of memory: %zu bytes asked for\n", c->cap);
      exit(1);
    }
    c->data = data;
    *at = c;
  }
  r->chunk = *at;
  return r->chunk->data + r->chunk->used;
}

static void trim(struct pg_ring *p, uint64_t version) {
  while (p->tail < p->head && p->version[p->tail % RING_BLOCKS] <= version)
    p->tail++;
}

/* The puts of [p, end) to `to`, behind room for a head. Returns the bytes used; fills in what decides
 * the place. */
static size_t encode(const struct ring *r, uint8_t *to, const uint8_t *p, const uint8_t *end,
                     long *pg, uint64_t *version, uint64_t *trim_to) {
  size_t at = sizeof(struct block_head);
  *pg = -1;
  *version = *trim_to = 0;
  while (p < end) {
    struct trace_op op;
    uint64_t v;
    p = trace_op_next(p, end, &op);
    if (op.cf != TRACE_CF_P)
      continue;
    if (*pg < 0)
      *pg = trace_pg_find(r->trace, op.key);
    bool log = trace_key_version(op.key, &v) == TRACE_KEY_LOG;
    if (op.type != TRACE_PUT) {
      *trim_to = log && v > *trim_to ? v : *trim_to;
      continue;
    }
    *version = log && v > *version ? v : *version;
    uint32_t lengths[2] = {(uint32_t)op.key.size, (uint32_t)op.value.size};
    memcpy(to + at, lengths, sizeof(lengths));
    memcpy(to + at + sizeof(lengths), op.key.data, op.key.size);
    at += sizeof(lengths) + op.key.size;
    memcpy(to + at, op.value.data, op.value.size);
    at += op.value.size;
  }
  return at;
}

/* Take what has completed, `min` requests at least. */
static int reap(struct ring *r, long min, struct fail *f) {
  struct io_event events[64];
  int n = io_getevents(r->aio, min, 64, events, NULL);
  if (n < 0 && n != -EINTR)
    return fail_set(f, "%s: io_getevents: %s", r->path, strerror(-n));
  for (int i = 0; i < n; i++) {
    long res = (long)events[i].res;
    unsigned long want = events[i].obj->u.c.nbytes;
    if (res != (long)want)
      return fail_set(f, "%s: write of %lu bytes at %lld: %s", r->path, want,
                      events[i].obj->u.c.offset, res < 0 ? strerror((int)-res) : "short");
    r->free[r->n_free++] = events[i].obj;
  }
  return 0;
}

static int submit(struct ring *r, const struct iovec *v, const uint64_t *at, int n,
                  struct fail *f) {
  struct iocb *ptrs[2];
  while (r->n_free < (size_t)n)
    if (reap(r, 1, f) != 0)
      return -1;
  for (int i = 0; i < n; i++) {
    ptrs[i] = r->free[--r->n_free];
    io_prep_pwrite(ptrs[i], r->fd, v[i].iov_base, v[i].iov_len, (long long)at[i]);
    r->bytes += v[i].iov_len;
  }
  for (int done = 0; done < n;) {
    int got = io_submit(r->aio, n - done, ptrs + done);
    if (got <= 0 && got != -EINTR)
      return fail_set(f, "%s: io_submit: %s", r->path, strerror(-got));
    done += got > 0 ? got : 0;
  }
  r->wrote = true;
  return 0;
}

int ring_add(struct ring *r, const uint8_t *p, const uint8_t *end, struct fail *f) {
  long pg;
  uint64_t version, trim_to;
  uint8_t *to = room(r, (size_t)(end - p) * 2 + 2 * RING_BLOCK);
  size_t used = encode(r, to, p, end, &pg, &version, &trim_to);
  if (pg < 0)
    return 0;
  struct pg_ring *ring = &r->pgs[pg];
  size_t blocks = (used + RING_BLOCK - 1) / RING_BLOCK;
  trim(ring, trim_to);
  if (blocks > RING_BLOCKS - (ring->head - ring->tail))
    return pg_full(r, (size_t)pg, blocks, f);
  struct block_head h = {BLOCK_MAGIC, (uint32_t)used, ring->head, trim_to};
  memcpy(to, &h, sizeof(h));
  memset(to + used, 0, blocks * RING_BLOCK - used);
  size_t slot = ring->head % RING_BLOCKS, first = RING_BLOCKS - slot;
  if (first > blocks)
    first = blocks;
  uint64_t base = (uint64_t)pg * RING_BYTES;
  struct iovec v[2] = {{to, first * RING_BLOCK},
                       {to + first * RING_BLOCK, (blocks - first) * RING_BLOCK}};
  uint64_t at[2] = {base + slot * RING_BLOCK, base};
  for (size_t i = 0; i < blocks; i++)
    ring->version[ring->head++ % RING_BLOCKS] = version;
  r->chunk->used += blocks * RING_BLOCK;
  return submit(r, v, at, blocks > first ? 2 : 1, f);
}

int ring_sync(struct ring *r, struct fail *f) {
  while (r->n_free < QUEUE_DEPTH)
    if (reap(r, 1, f) != 0)
      return -1;
  for (struct chunk *c = r->chunks; c; c = c->next)
    c->used = 0;
  r->chunk = r->chunks;
  if (r->wrote && fdatasync(r->fd) != 0)
    return fail_set(f, "%s: fdatasync: %s", r->path, strerror(errno));
  r->wrote = false;
  return 0;
}

uint64_t ring_bytes(const struct ring *r) {
  return r->bytes;
}

void ring_space(const struct ring *r, struct space *s) {
  s->live = 0;
  for (size_t i = 0; i < r->trace->n_pgs; i++)
    s->live += (r->pgs[i].head - r->pgs[i].tail) * RING_BLOCK;
  int64_t allocated = file_allocated(r->path);
  s->file = allocated < 0 ? 0 : (uint64_t)allocated;
}
