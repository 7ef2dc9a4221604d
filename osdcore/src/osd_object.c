/* SPDX-License-Identifier: Apache-2.0
 *
 * osd_object.c - keys and records of objects (FORMAT.md, section 5), their blocks, and the overlay
 * of what is not in the store yet.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "osd_internal.h"

#define FORMAT 1
#define SCAN_MIN 5 /* blocks from which one scan is cheaper than single reads */

/* ---------------------------------------------------------------------------------------------- */
/* Keys                                                                                           */

uint32_t osd_reverse_bits(uint32_t v) {
  v = (v >> 1 & 0x55555555u) | (v & 0x55555555u) << 1;
  v = (v >> 2 & 0x33333333u) | (v & 0x33333333u) << 2;
  v = (v >> 4 & 0x0f0f0f0fu) | (v & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(v);
}

static uint8_t *put_be(uint8_t *p, uint64_t v, int bytes) {
  for (int i = bytes; i-- > 0;)
    *p++ = (uint8_t)(v >> (8 * i));
  return p;
}

size_t object_key(uint8_t *out, uint32_t hash, struct osd_slice name) {
  uint8_t *p = out;
  *p++ = 'o';
  *p++ = '/';
  p = put_be(p, osd_reverse_bits(hash), 4);
  memcpy(p, name.data, name.size);
  return (size_t)(p - out) + name.size;
}

size_t block_key(uint8_t *out, uint32_t hash, struct osd_slice name, uint64_t block) {
  uint8_t *p = out;
  *p++ = 'b';
  *p++ = '/';
  p = put_be(put_be(p, osd_reverse_bits(hash), 4), name.size, 2);
  memcpy(p, name.data, name.size);
  return (size_t)(put_be(p + name.size, block, 8) - out);
}

size_t hash_bound(uint8_t *out, char kind, uint32_t id, uint32_t bits, bool end) {
  uint64_t first = osd_reverse_bits(id);
  uint64_t at = end ? first + (1ull << (32 - bits)) : first;
  out[0] = (uint8_t)kind;
  out[1] = '/';
  if (at <= UINT32_MAX)
    return (size_t)(put_be(out + 2, at, 4) - out);
  out[1] = '/' + 1; /* behind the last hash */
  return 2;
}

/* ---------------------------------------------------------------------------------------------- */
/* The object's record                                                                            */

static uint8_t *put_u64(uint8_t *p, uint64_t v) {
  for (; v >= 0x80; v >>= 7)
    *p++ = (uint8_t)(v | 0x80);
  *p++ = (uint8_t)v;
  return p;
}

size_t object_put(uint8_t *out, const struct object_state *st) {
  uint8_t *p = out;
  *p++ = FORMAT;
  p = put_u64(put_u64(put_u64(p, st->size), st->version.epoch), st->version.version);
  for (int i = 0; i < 8; i++)
    *p++ = (uint8_t)(st->mtime_ns >> (8 * i));
  return (size_t)(p - out);
}

/* NULL: cut off, or over 64 bits. */
static const uint8_t *get_u64(const uint8_t *p, const uint8_t *end, uint64_t *out) {
  *out = 0;
  for (unsigned shift = 0; p && p < end && shift < 64; shift += 7) {
    uint8_t b = *p++;
    if (shift == 63 && b > 1)
      return NULL;
    *out |= (uint64_t)(b & 0x7f) << shift;
    if (b < 0x80)
      return p;
  }
  return NULL;
}

int object_get(struct osd_slice value, struct object_state *st, struct pglog_error *err) {
  const uint8_t *p = value.data, *end = p + value.size;
  if (!value.size)
    return osd_error(err, PGLOG_ECORRUPT, "its record is empty");
  if (*p != FORMAT)
    return osd_error(err, PGLOG_ENOTSUP, "its record has format %u, this library knows %u", *p,
                     FORMAT);
  uint64_t epoch;
  p = get_u64(p + 1, end, &st->size);
  p = get_u64(p, end, &epoch);
  p = get_u64(p, end, &st->version.version);
  if (!p || end - p != 8 || epoch > UINT32_MAX)
    return osd_error(err, PGLOG_ECORRUPT, "its record of %zu bytes is malformed", value.size);
  if (st->size > OSD_OBJECT_BYTES_MAX)
    return osd_error(err, PGLOG_ECORRUPT, "its record has a size of %" PRIu64 ", the limit is %llu",
                     st->size, OSD_OBJECT_BYTES_MAX);
  st->exists = true;
  st->version.epoch = (uint32_t)epoch;
  st->mtime_ns = 0;
  for (int i = 0; i < 8; i++)
    st->mtime_ns |= (uint64_t)p[i] << (8 * i);
  return 0;
}

/* Say which object an error is about. */
static int named(const struct request *r, struct pglog_error *err, int rc) {
  if (!err)
    return rc;
  char text[PGLOG_ERROR_TEXT];
  int shown = r->name.size < 100 ? (int)r->name.size : 100;
  snprintf(text, sizeof text, "PG %s, object %.*s: %.600s", r->pg->name, shown,
           (const char *)r->name.data, err->text);
  return osd_error(err, rc, "%s", text);
}

/* ---------------------------------------------------------------------------------------------- */
/* Reading, overlay first                                                                         */

static struct overlay *overlay_find(struct request *r) {
  struct overlay *v;
  HASH_FIND(hh, r->pg->overlay, r->name.data, r->name.size, v);
  return v;
}

static bool overlay_state(struct request *r, struct object_state *st) {
  pthread_mutex_lock(&r->pg->lock);
  struct overlay *v = overlay_find(r);
  if (v)
    *st = v->st;
  pthread_mutex_unlock(&r->pg->lock);
  return v != NULL;
}

int object_load(struct request *r, struct object_state *st, struct pglog_error *err) {
  memset(st, 0, sizeof *st);
  if (overlay_state(r, st))
    return 0;
  uint8_t key[OSD_KEY_MAX], *value;
  struct osd_slice k = {key, object_key(key, r->hash, r->name)}, v;
  int rc = r->o->kv.get(r->o->kv.arg, k, &value, &v.size, err);
  if (rc == PGLOG_ENOTFOUND)
    return 0;
  if (rc)
    return named(r, err, rc);
  v.data = value;
  rc = object_get(v, st, err);
  free(value);
  return rc ? named(r, err, rc) : 0;
}

struct fill {
  struct request *r;
  uint64_t first, n;
  uint8_t *out;
  uint8_t *have; /* of each block: it is done */
};

/* Blocks first .. first + n - 1 from one layer. */
static void fill_layer(struct fill *f, const struct layer *l) {
  uint64_t from = l->first > f->first ? l->first : f->first;
  uint64_t end = l->first + l->n < f->first + f->n ? l->first + l->n : f->first + f->n;
  for (uint64_t b = from; b < end; b++) {
    uint64_t i = b - f->first;
    if (f->have[i])
      continue;
    f->have[i] = 1;
    if (l->data)
      memcpy(f->out + i * OSD_BLOCK, l->data + (b - l->first) * OSD_BLOCK, OSD_BLOCK);
  }
}

static void fill_overlay(struct fill *f) {
  pthread_mutex_lock(&f->r->pg->lock);
  struct overlay *v = overlay_find(f->r);
  for (const struct layer *l = v ? v->newest : NULL; l; l = l->older)
    fill_layer(f, l);
  pthread_mutex_unlock(&f->r->pg->lock);
}

static int fill_block(struct fill *f, uint64_t block, struct osd_slice value,
                      struct pglog_error *err) {
  uint64_t i = block - f->first;
  if (f->have[i])
    return 0;
  if (!value.size || value.size > OSD_BLOCK)
    return osd_error(err, PGLOG_ECORRUPT, "block %" PRIu64 " has %zu bytes, it must have 1 to %u",
                     block, value.size, OSD_BLOCK);
  memcpy(f->out + i * OSD_BLOCK, value.data, value.size);
  return 0;
}

static int fill_scanned(void *arg, struct osd_slice key, struct osd_slice value,
                        struct pglog_error *err) {
  struct fill *f = arg;
  uint64_t block = 0;
  for (int i = 0; i < 8; i++)
    block = block << 8 | key.data[key.size - 8 + (size_t)i];
  return fill_block(f, block, value, err);
}

static int fill_one(struct fill *f, uint64_t block, struct pglog_error *err) {
  uint8_t key[OSD_KEY_MAX], *value;
  struct kv *kv = &f->r->o->kv;
  if (f->have[block - f->first])
    return 0;
  struct osd_slice k = {key, block_key(key, f->r->hash, f->r->name, block)}, v;
  int rc = kv->get(kv->arg, k, &value, &v.size, err);
  if (rc)
    return rc == PGLOG_ENOTFOUND ? 0 : rc;
  v.data = value;
  rc = fill_block(f, block, v, err);
  free(value);
  return rc;
}

static int fill_store(struct fill *f, struct pglog_error *err) {
  int rc = 0;
  if (f->n < SCAN_MIN) {
    for (uint64_t i = 0; i < f->n && rc == 0; i++)
      rc = fill_one(f, f->first + i, err);
    return rc;
  }
  uint8_t begin[OSD_KEY_MAX], end[OSD_KEY_MAX];
  struct request *r = f->r;
  struct osd_slice b = {begin, block_key(begin, r->hash, r->name, f->first)};
  struct osd_slice e = {end, block_key(end, r->hash, r->name, f->first + f->n)};
  return r->o->kv.scan(r->o->kv.arg, b, e, fill_scanned, f, err);
}

int object_blocks(struct request *r, uint64_t first, uint64_t n, uint8_t *out,
                  struct pglog_error *err) {
  struct fill f = {.r = r, .first = first, .n = n, .out = out, .have = calloc(1, n ? n : 1)};
  if (!f.have)
    return osd_error(err, PGLOG_ENOMEM, "out of memory for %" PRIu64 " blocks", n);
  memset(out, 0, n * OSD_BLOCK);
  fill_overlay(&f);
  int rc = memchr(f.have, 0, n) ? fill_store(&f, err) : 0;
  free(f.have);
  return rc ? named(r, err, rc) : 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* Changing the overlay                                                                           */

static struct overlay *overlay_new(struct request *r) {
  struct overlay *v = calloc(1, sizeof *v + r->name.size);
  if (!v)
    return NULL;
  v->name_size = r->name.size;
  memcpy(v->name, r->name.data, r->name.size);
  HASH_ADD_KEYPTR(hh, r->pg->overlay, v->name, v->name_size, v);
  if (!v->lost)
    return v;
  free(v);
  return NULL;
}

int overlay_reserve(struct request *r, struct pglog_error *err) {
  pthread_mutex_lock(&r->pg->lock);
  struct overlay *v = overlay_find(r);
  if (!v)
    v = overlay_new(r);
  if (v)
    v->requests++;
  pthread_mutex_unlock(&r->pg->lock);
  r->overlay = v;
  return v ? 0 : osd_error(err, PGLOG_ENOMEM, "out of memory for an object's uncommitted state");
}

void overlay_add(struct request *r, const struct object_state *st) {
  struct overlay *v = r->overlay;
  pthread_mutex_lock(&r->pg->lock);
  v->st = *st;
  for (uint32_t i = 0; i < r->n_layers; i++) {
    r->layer[i].older = v->newest;
    v->newest = &r->layer[i];
  }
  pthread_mutex_unlock(&r->pg->lock);
}

static bool layer_of(const struct request *r, const struct layer *l) {
  return l >= r->layer && l < r->layer + r->n_layers;
}

void overlay_drop(struct request *r) {
  struct overlay *v = r->overlay;
  if (!v)
    return;
  pthread_mutex_lock(&r->pg->lock);
  for (struct layer **at = &v->newest; *at;)
    if (layer_of(r, *at))
      *at = (*at)->older;
    else
      at = &(*at)->older;
  if (--v->requests == 0) {
    HASH_DELETE(hh, r->pg->overlay, v);
    free(v);
  }
  pthread_mutex_unlock(&r->pg->lock);
  r->overlay = NULL;
}
