/* SPDX-License-Identifier: Apache-2.0 */
#include "simdisk.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A write since the last sync. */
struct pending {
  uint64_t offset;
  uint32_t length;
  uint8_t *bytes;
};

struct image {
  uint8_t *bytes;
  uint64_t size;
};

struct simdisk {
  pthread_mutex_t lock; /* guards everything */
  struct simdisk_config c;
  struct simdisk_counts n;
  uint64_t random;
  bool off;
  struct image live;    /* what reads see */
  struct image durable; /* what survives for sure */
  struct pending *cache;
  size_t n_cache, cap_cache;
};

/* splitmix64 */
static uint64_t draw(struct simdisk *d) {
  uint64_t z = (d->random += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static uint64_t below(struct simdisk *d, uint64_t n) {
  return draw(d) % n;
}

static int image_resize(struct image *m, uint64_t size) {
  uint8_t *p = realloc(m->bytes, size ? size : 1);
  if (!p)
    return -ENOMEM;
  if (size > m->size)
    memset(p + m->size, 0, size - m->size);
  m->bytes = p;
  m->size = size;
  return 0;
}

static int image_copy(struct image *to, const struct image *from) {
  int rc = image_resize(to, from->size);
  if (rc == 0)
    memcpy(to->bytes, from->bytes, from->size);
  return rc;
}

/* ---------------------------------------------------------------------------------------------- */
/* The cache                                                                                      */

static int cache_add(struct simdisk *d, uint64_t offset, const void *bytes, uint32_t length) {
  if (d->n_cache == d->cap_cache) {
    size_t cap = d->cap_cache ? 2 * d->cap_cache : 64;
    struct pending *p = realloc(d->cache, cap * sizeof *p);
    if (!p)
      return -ENOMEM;
    d->cache = p;
    d->cap_cache = cap;
  }
  struct pending *w = &d->cache[d->n_cache];
  *w = (struct pending){offset, length, malloc(length ? length : 1)};
  if (!w->bytes)
    return -ENOMEM;
  memcpy(w->bytes, bytes, length);
  d->n_cache++;
  return 0;
}

static void cache_clear(struct simdisk *d) {
  for (size_t i = 0; i < d->n_cache; i++)
    free(d->cache[i].bytes);
  d->n_cache = 0;
}

/* Sectors of a pending write to the medium: all, the first `sectors`, or a random choice. */
static void keep(struct simdisk *d, const struct pending *w, uint64_t sectors, bool choose) {
  for (uint64_t at = 0; at < w->length && at / SIMDISK_SECTOR < sectors; at += SIMDISK_SECTOR) {
    uint64_t n = w->length - at < SIMDISK_SECTOR ? w->length - at : SIMDISK_SECTOR;
    if ((!choose || below(d, 2)) && w->offset + at + n <= d->durable.size)
      memcpy(d->durable.bytes + w->offset + at, w->bytes + at, n);
  }
}

/* Let a part of the cache get to the medium, in the way of the power style. */
static int leave(struct simdisk *d) {
  bool newest = d->c.power == SIMDISK_KEEP_ALL || (d->c.power != SIMDISK_LOSE_ALL && below(d, 2));
  int rc = newest ? image_resize(&d->durable, d->live.size) : 0;
  size_t first = below(d, d->n_cache + 1);
  for (size_t i = 0; i < d->n_cache; i++) {
    const struct pending *w = &d->cache[i];
    bool kept = d->c.power == SIMDISK_KEEP_ALL || (d->c.power == SIMDISK_IN_ORDER && i < first) ||
                (d->c.power == SIMDISK_REORDERED && below(d, 2));
    if (kept)
      keep(d, w, UINT64_MAX, false);
    else if (d->c.power == SIMDISK_IN_ORDER && i == first)
      keep(d, w, below(d, w->length / SIMDISK_SECTOR + 1), false);
    else if (d->c.power == SIMDISK_TORN)
      keep(d, w, UINT64_MAX, true);
  }
  cache_clear(d);
  return rc;
}

static int flush(struct simdisk *d) {
  int rc = image_resize(&d->durable, d->live.size);
  for (size_t i = 0; rc == 0 && i < d->n_cache; i++)
    keep(d, &d->cache[i], UINT64_MAX, false);
  if (rc == 0)
    cache_clear(d);
  return rc;
}

static void power_off(struct simdisk *d) {
  if (!d->off)
    leave(d);
  d->off = true;
}

/* Count an operation. False: the power is off, or goes now; then *in_flight tells which. */
static bool begin(struct simdisk *d, bool *in_flight) {
  *in_flight = !d->off && ++d->n.ops == d->c.cut_at;
  return !d->off && !*in_flight;
}

/* ---------------------------------------------------------------------------------------------- */
/* struct pglog_io                                                                                */

static int do_read(struct simdisk *d, struct pglog_io_req *r) {
  bool in_flight;
  if (!begin(d, &in_flight)) {
    power_off(d);
    return -EIO;
  }
  if (++d->n.reads == d->c.fail_read_at || r->offset + r->length > d->live.size)
    return -EIO;
  memcpy(r->buf, d->live.bytes + r->offset, r->length);
  return 0;
}

/* A failing write, as far as it got: some sectors, each of which is then as good as written. */
static int write_partly(struct simdisk *d, const struct pglog_io_req *r) {
  for (uint32_t at = 0; at + SIMDISK_SECTOR <= r->length; at += SIMDISK_SECTOR) {
    if (!below(d, 2))
      continue;
    memcpy(d->live.bytes + r->offset + at, (uint8_t *)r->buf + at, SIMDISK_SECTOR);
    int rc = cache_add(d, r->offset + at, (uint8_t *)r->buf + at, SIMDISK_SECTOR);
    if (rc != 0)
      return rc;
  }
  return -EIO;
}

static int do_write(struct simdisk *d, const struct pglog_io_req *r) {
  bool in_flight;
  bool up = begin(d, &in_flight);
  if ((!up && !in_flight) || r->offset + r->length > d->live.size) {
    if (in_flight)
      power_off(d);
    return -EIO;
  }
  if (up && ++d->n.writes == d->c.fail_write_at)
    return write_partly(d, r);
  int rc = cache_add(d, r->offset, r->buf, r->length);
  if (in_flight) {
    power_off(d);
    return -EIO;
  }
  if (rc == 0)
    memcpy(d->live.bytes + r->offset, r->buf, r->length);
  return rc;
}

static int sim_submit(void *arg, struct pglog_io_req *reqs, size_t n) {
  struct simdisk *d = arg;
  int rc = 0;
  size_t *order = malloc(n * sizeof *order + 1);
  if (!order)
    return -ENOMEM;
  pthread_mutex_lock(&d->lock);
  for (size_t i = 0; i < n; i++) {
    size_t j = below(d, i + 1);
    order[i] = order[j];
    order[j] = i;
  }
  for (size_t i = 0; i < n; i++) {
    struct pglog_io_req *r = &reqs[order[i]];
    if ((r->offset | r->length | (uintptr_t)r->buf) % PGLOG_BLOCK != 0)
      r->result = -EINVAL;
    else
      r->result = r->op == PGLOG_IO_READ ? do_read(d, r) : do_write(d, r);
    if (r->result != 0)
      rc = r->result;
  }
  pthread_mutex_unlock(&d->lock);
  free(order);
  return rc;
}

static int do_sync(struct simdisk *d) {
  bool in_flight;
  if (!begin(d, &in_flight)) {
    power_off(d);
    return -EIO;
  }
  if (++d->n.syncs != d->c.fail_sync_at)
    return flush(d);
  leave(d);
  return -EIO;
}

static int sim_sync(void *arg) {
  struct simdisk *d = arg;
  pthread_mutex_lock(&d->lock);
  int rc = do_sync(d);
  pthread_mutex_unlock(&d->lock);
  return rc;
}

static int64_t sim_size(void *arg) {
  struct simdisk *d = arg;
  pthread_mutex_lock(&d->lock);
  int64_t size = d->off ? -EIO : (int64_t)d->live.size;
  pthread_mutex_unlock(&d->lock);
  return size;
}

static int do_grow(struct simdisk *d, uint64_t bytes) {
  bool in_flight;
  if (!begin(d, &in_flight)) {
    power_off(d);
    return -EIO;
  }
  d->n.grows++;
  if (bytes <= d->live.size)
    return 0;
  if (d->c.capacity && bytes > d->c.capacity)
    return -ENOSPC;
  return image_resize(&d->live, bytes);
}

static int sim_grow(void *arg, uint64_t bytes) {
  struct simdisk *d = arg;
  pthread_mutex_lock(&d->lock);
  int rc = do_grow(d, bytes);
  pthread_mutex_unlock(&d->lock);
  return rc;
}

static void sim_close(void *arg) {
  (void)arg;
}

/* ---------------------------------------------------------------------------------------------- */

int simdisk_new(const struct simdisk_config *c, struct simdisk **out) {
  struct simdisk *d = calloc(1, sizeof *d);
  if (!d)
    return -ENOMEM;
  d->c = *c;
  d->random = c->seed;
  pthread_mutex_init(&d->lock, NULL);
  if (image_resize(&d->live, c->size) != 0 || image_resize(&d->durable, c->size) != 0) {
    simdisk_free(d);
    return -ENOMEM;
  }
  *out = d;
  return 0;
}

void simdisk_free(struct simdisk *d) {
  if (!d)
    return;
  cache_clear(d);
  free(d->cache);
  free(d->live.bytes);
  free(d->durable.bytes);
  pthread_mutex_destroy(&d->lock);
  free(d);
}

struct pglog_io simdisk_io(struct simdisk *d) {
  struct pglog_io io = {d, sim_submit, sim_sync, sim_size, sim_grow, sim_size, sim_close};
  return io;
}

void simdisk_faults(struct simdisk *d, const struct simdisk_config *c) {
  pthread_mutex_lock(&d->lock);
  if (c->seed)
    d->random = c->seed;
  d->c = *c;
  memset(&d->n, 0, sizeof d->n);
  pthread_mutex_unlock(&d->lock);
}

void simdisk_cut(struct simdisk *d) {
  pthread_mutex_lock(&d->lock);
  power_off(d);
  pthread_mutex_unlock(&d->lock);
}

bool simdisk_is_off(struct simdisk *d) {
  pthread_mutex_lock(&d->lock);
  bool off = d->off;
  pthread_mutex_unlock(&d->lock);
  return off;
}

void simdisk_power_on(struct simdisk *d) {
  pthread_mutex_lock(&d->lock);
  power_off(d);
  if (image_copy(&d->live, &d->durable) == 0)
    d->off = false;
  d->c.cut_at = d->c.fail_read_at = d->c.fail_write_at = d->c.fail_sync_at = 0;
  memset(&d->n, 0, sizeof d->n);
  pthread_mutex_unlock(&d->lock);
}

void simdisk_counts(struct simdisk *d, struct simdisk_counts *out) {
  pthread_mutex_lock(&d->lock);
  *out = d->n;
  pthread_mutex_unlock(&d->lock);
}

uint8_t *simdisk_bytes(struct simdisk *d, uint64_t offset) {
  return d->live.bytes + offset;
}

void simdisk_damaged(struct simdisk *d) {
  pthread_mutex_lock(&d->lock);
  if (image_copy(&d->durable, &d->live) == 0)
    cache_clear(d);
  pthread_mutex_unlock(&d->lock);
}
