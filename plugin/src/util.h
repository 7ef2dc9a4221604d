/* SPDX-License-Identifier: Apache-2.0
 *
 * util.h - byte helpers shared by the core: slices, errors, fixed and variable length integers,
 * CRC-32C. No I/O, no locks, no state.
 */
#ifndef PGLOG_UTIL_H
#define PGLOG_UTIL_H

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "pglog/pglog.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A borrowed byte string. */
struct slice {
  const uint8_t *data;
  size_t size;
};

static inline struct slice slice_make(const void *data, size_t size) {
  struct slice s = {(const uint8_t *)data, size};
  return s;
}

/* Bytewise order: <0, 0, >0. */
static inline int slice_cmp(struct slice a, struct slice b) {
  size_t n = a.size < b.size ? a.size : b.size;
  int c = n ? memcmp(a.data, b.data, n) : 0;
  return c ? c : (a.size > b.size) - (a.size < b.size);
}

static inline bool slice_eq(struct slice a, struct slice b) {
  return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

/* Fill `e` (may be NULL) and return `code`. */
int error_set(struct pglog_error *e, int code, const char *fmt, ...)
    __attribute__((cold, format(printf, 3, 4)));

/* Print a key readably into `out` (always NUL-terminated): printable ASCII as is, other bytes as
 * \xNN; cut with "..." when it does not fit. Returns `out`. */
const char *key_print(char *out, size_t cap, struct slice key);

/* Hash for tables in memory, not for what is stored. Every bit of the bytes reaches the low bits of the
 * result: PG ids are often big-endian numbers, which differ in their last byte only. The mixing of each
 * 8 bytes is MurmurHash3's fmix64. */
uint64_t slice_hash(struct slice s);

/* CRC-32C (Castagnoli) with pre- and post-inversion, of `n` bytes after a part with CRC `crc`
 * (0 to begin). Same values as RocksDB's crc32c::Extend. */
uint32_t crc32c(uint32_t crc, const void *data, size_t n);

/* RocksDB's masking of stored CRCs: rotate right by 15, add 0xa282ead8. */
static inline uint32_t crc32c_mask(uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}
static inline uint32_t crc32c_unmask(uint32_t masked) {
  uint32_t rot = masked - 0xa282ead8u;
  return (rot >> 17) | (rot << 15);
}

static inline void put_le16(uint8_t *p, uint16_t v) { memcpy(p, &v, 2); }
static inline void put_le32(uint8_t *p, uint32_t v) { memcpy(p, &v, 4); }
static inline void put_le64(uint8_t *p, uint64_t v) { memcpy(p, &v, 8); }
static inline uint16_t get_le16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline uint32_t get_le32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint64_t get_le64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }

#define VARINT32_MAX 5
#define VARINT64_MAX 10

/* Write a varint at `p` (room for VARINT64_MAX bytes); returns the byte after it. */
static inline uint8_t *put_varint(uint8_t *p, uint64_t v) {
  while (v >= 0x80) {
    *p++ = (uint8_t)(v | 0x80);
    v >>= 7;
  }
  *p++ = (uint8_t)v;
  return p;
}

static inline size_t varint_size(uint64_t v) {
  size_t n = 1;
  while (v >= 0x80) {
    v >>= 7;
    n++;
  }
  return n;
}

/* Read a varint of at most 32 or 64 bits at [p, end). Returns the byte after it, or NULL if it is cut
 * or too long. */
const uint8_t *get_varint32_slow(const uint8_t *p, const uint8_t *end, uint32_t *v);
const uint8_t *get_varint64(const uint8_t *p, const uint8_t *end, uint64_t *v);
static inline const uint8_t *get_varint32(const uint8_t *p, const uint8_t *end, uint32_t *v) {
  if (p < end && *p < 0x80) {
    *v = *p;
    return p + 1;
  }
  return get_varint32_slow(p, end, v);
}

/* A growing byte buffer. Zero-initialise; release with buf_free(). With `grow` set the bytes belong to
 * someone else: it makes room for `cap` bytes in all, keeps the first `size`, sets data and cap, and
 * returns 0 or PGLOG_ENOMEM; buf_free() is not for such a buffer. */
struct buf {
  uint8_t *data;
  size_t size, cap;
  int (*grow)(struct buf *b, size_t cap);
};
/* Make room for `more` bytes after size; 0 or PGLOG_ENOMEM (the content is kept). */
int buf_reserve(struct buf *b, size_t more);
int buf_append(struct buf *b, const void *data, size_t n);
void buf_free(struct buf *b);

/* Make room for one more element in a malloc'ed array of `n` elements of `size` bytes with room for
 * *cap; `array` is the address of the pointer to it. A new one gets room for `first`, others double.
 * 0 or PGLOG_ENOMEM (the array is kept). */
int array_room(void *array, size_t n, size_t *cap, size_t size, size_t first);

#ifndef __cplusplus
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the formats are written in host order");
#endif

#ifdef __cplusplus
}
#endif
#endif
