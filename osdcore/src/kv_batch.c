/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_batch.c - batches in RocksDB's form (db/write_batch.cc of 7.8.3, top comment): u64 LE sequence,
 * u32 LE count, records of a tag and strings with varint lengths.
 */
#include <stdlib.h>
#include <string.h>

#include "kv.h"

#define HEADER 12
#define COUNT_AT 8
#define TAG_DELETE 0x00
#define TAG_PUT 0x01
#define TAG_DELETE_RANGE 0x0f
#define LENGTH_MAX 5

static bool room(struct kv_batch *b, size_t more) {
  size_t need = (b->size ? b->size : HEADER) + more, cap = b->cap ? b->cap : 512;
  while (cap < need)
    cap *= 2;
  if (cap > b->cap) {
    uint8_t *data = realloc(b->data, cap);
    if (!data)
      return !(b->no_memory = true);
    b->data = data;
    b->cap = cap;
  }
  if (!b->size) {
    memset(b->data, 0, HEADER);
    b->size = HEADER;
  }
  return true;
}

uint32_t kv_batch_count(const struct kv_batch *b) {
  uint32_t n = 0;
  for (int i = 0; i < 4 && b->size; i++)
    n |= (uint32_t)b->data[COUNT_AT + i] << (8 * i);
  return n;
}

static void count_add(struct kv_batch *b, uint32_t more) {
  uint32_t n = kv_batch_count(b) + more;
  for (int i = 0; i < 4; i++)
    b->data[COUNT_AT + i] = (uint8_t)(n >> (8 * i));
}

static void put_string(struct kv_batch *b, struct osd_slice s) {
  uint8_t *p = b->data + b->size;
  size_t n = s.size;
  for (; n >= 0x80; n >>= 7)
    *p++ = (uint8_t)(n | 0x80);
  *p++ = (uint8_t)n;
  if (s.size)
    memcpy(p, s.data, s.size);
  b->size = (size_t)(p - b->data) + s.size;
}

static void put_record(struct kv_batch *b, uint8_t tag, struct osd_slice key,
                       const struct osd_slice *value) {
  if (!room(b, 1 + 2 * LENGTH_MAX + key.size + (value ? value->size : 0)))
    return;
  b->data[b->size++] = tag;
  put_string(b, key);
  if (value)
    put_string(b, *value);
  count_add(b, 1);
}

void kv_put(struct kv_batch *b, struct osd_slice key, struct osd_slice value) {
  put_record(b, TAG_PUT, key, &value);
}

void kv_delete(struct kv_batch *b, struct osd_slice key) {
  put_record(b, TAG_DELETE, key, NULL);
}

void kv_delete_range(struct kv_batch *b, struct osd_slice begin, struct osd_slice end) {
  put_record(b, TAG_DELETE_RANGE, begin, &end);
}

void kv_append(struct kv_batch *b, const struct kv_batch *other) {
  b->no_memory = b->no_memory || other->no_memory;
  if (!other->size || !room(b, other->size - HEADER))
    return;
  memcpy(b->data + b->size, other->data + HEADER, other->size - HEADER);
  b->size += other->size - HEADER;
  count_add(b, kv_batch_count(other));
}

void kv_batch_clear(struct kv_batch *b) {
  b->size = 0;
  b->no_memory = false;
}

void kv_batch_free(struct kv_batch *b) {
  free(b->data);
  *b = (struct kv_batch){0};
}
