/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <libaio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define RING_BYTES ((uint64_t)RING_BLOCK * RING_BLOCKS)
#define QUEUE_DEPTH 256
#define FILL_STEP (1u << 20)

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

struct ring {
  int fd;
  char path[4096];
  io_context_t aio;
  const struct trace *trace;
  struct pg_ring *pgs; /* as trace->pgs */
  uint8_t *buf;        /* the group's blocks, aligned */
  size_t used, cap;
  struct write {
    size_t at; /* in buf */
    uint32_t length;
    uint64_t offset; /* in the file */
  } * writes;
  size_t n_writes, cap_writes;
  struct iocb *iocbs;
  struct iocb **ptrs;
  size_t submitted, done;
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
  free(r->pgs);
  free(r->buf);
  free(r->writes);
  free(r->iocbs);
  free(r->ptrs);
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

static void buf_room(struct ring *r, size_t more) {
  if (r->used + more <= r->cap)
    return;
  void *bigger;
  size_t cap = r->cap ? r->cap * 2 : 1 << 20;
  while (cap < r->used + more)
    cap *= 2;
  if (posix_memalign(&bigger, RING_BLOCK, cap) != 0) {
    fprintf(stderr, "pglog_bench: out of memory: %zu bytes asked for\n", cap);
    exit(1);
  }
  if (r->used)
    memcpy(bigger, r->buf, r->used);
  free(r->buf);
  r->buf = bigger;
  r->cap = cap;
}

static void write_add(struct ring *r, size_t at, size_t length, uint64_t offset) {
  if (r->n_writes == r->cap_writes) {
    r->cap_writes = r->cap_writes ? r->cap_writes * 2 : 64;
    r->writes = must_realloc(r->writes, r->cap_writes * sizeof(*r->writes));
  }
  r->writes[r->n_writes++] = (struct write){at, (uint32_t)length, offset};
  r->bytes += length;
}

static void trim(struct pg_ring *p, uint64_t version) {
  while (p->tail < p->head && p->version[p->tail % RING_BLOCKS] <= version)
    p->tail++;
}

/* The puts of [p, end) into the buffer, after a head. Returns the bytes used; fills in what decides
 * the place. */
static size_t encode(struct ring *r, const uint8_t *p, const uint8_t *end, long *pg,
                     uint64_t *version, uint64_t *trim_to) {
  size_t at = r->used + sizeof(struct block_head);
  *pg = -1;
  *version = *trim_to = 0;
  buf_room(r, (size_t)(end - p) * 2 + 2 * RING_BLOCK);
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
    memcpy(r->buf + at, lengths, sizeof(lengths));
    memcpy(r->buf + at + sizeof(lengths), op.key.data, op.key.size);
    at += sizeof(lengths) + op.key.size;
    memcpy(r->buf + at, op.value.data, op.value.size);
    at += op.value.size;
  }
  return at - r->used;
}

int ring_add(struct ring *r, const uint8_t *p, const uint8_t *end, struct fail *f) {
  long pg;
  uint64_t version, trim_to;
  size_t used = encode(r, p, end, &pg, &version, &trim_to);
  if (pg < 0)
    return 0;
  struct pg_ring *ring = &r->pgs[pg];
  size_t blocks = (used + RING_BLOCK - 1) / RING_BLOCK;
  trim(ring, trim_to);
  if (blocks > RING_BLOCKS - (ring->head - ring->tail))
    return pg_full(r, (size_t)pg, blocks, f);
  struct block_head h = {BLOCK_MAGIC, (uint32_t)used, ring->head, trim_to};
  memcpy(r->buf + r->used, &h, sizeof(h));
  memset(r->buf + r->used + used, 0, blocks * RING_BLOCK - used);
  size_t slot = ring->head % RING_BLOCKS, first = RING_BLOCKS - slot;
  if (first > blocks)
    first = blocks;
  uint64_t base = (uint64_t)pg * RING_BYTES;
  write_add(r, r->used, first * RING_BLOCK, base + slot * RING_BLOCK);
  if (blocks > first)
    write_add(r, r->used + first * RING_BLOCK, (blocks - first) * RING_BLOCK, base);
  for (size_t i = 0; i < blocks; i++)
    ring->version[ring->head++ % RING_BLOCKS] = version;
  r->used += blocks * RING_BLOCK;
  return 0;
}

/* As many requests as the queue takes. */
static int submit_some(struct ring *r, struct fail *f) {
  while (r->submitted < r->n_writes && r->submitted - r->done < QUEUE_DEPTH) {
    size_t n = r->n_writes - r->submitted, room = QUEUE_DEPTH - (r->submitted - r->done);
    int got = io_submit(r->aio, (long)(n < room ? n : room), r->ptrs + r->submitted);
    if (got <= 0)
      return fail_set(f, "%s: io_submit: %s", r->path, strerror(-got));
    r->submitted += (size_t)got;
  }
  return 0;
}

int ring_submit(struct ring *r, struct fail *f) {
  r->iocbs = must_realloc(r->iocbs, r->cap_writes * sizeof(*r->iocbs));
  r->ptrs = must_realloc(r->ptrs, r->cap_writes * sizeof(*r->ptrs));
  for (size_t i = 0; i < r->n_writes; i++) {
    const struct write *w = &r->writes[i];
    io_prep_pwrite(&r->iocbs[i], r->fd, r->buf + w->at, w->length, (long long)w->offset);
    r->ptrs[i] = &r->iocbs[i];
  }
  return submit_some(r, f);
}

int ring_wait(struct ring *r, struct fail *f) {
  struct io_event events[64];
  while (r->done < r->n_writes) {
    int n = io_getevents(r->aio, 1, 64, events, NULL);
    if (n == -EINTR)
      continue;
    if (n <= 0)
      return fail_set(f, "%s: io_getevents: %s", r->path, strerror(-n));
    for (int i = 0; i < n; i++) {
      long res = (long)events[i].res;
      unsigned long want = events[i].obj->u.c.nbytes;
      if (res != (long)want)
        return fail_set(f, "%s: write of %lu bytes at %lld: %s", r->path, want,
                        events[i].obj->u.c.offset, res < 0 ? strerror((int)-res) : "short");
    }
    r->done += (size_t)n;
    if (submit_some(r, f) != 0)
      return -1;
  }
  bool wrote = r->n_writes > 0;
  r->n_writes = r->submitted = r->done = r->used = 0;
  if (wrote && fdatasync(r->fd) != 0)
    return fail_set(f, "%s: fdatasync: %s", r->path, strerror(errno));
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
