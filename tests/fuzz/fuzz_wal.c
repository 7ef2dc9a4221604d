/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a WAL file: no record is accepted whose CRC does not hold, and the outcome does not
 * depend on the chunking. The input: 00 flags, 01 chunk length, 02-03 start offset, then the bytes
 * of the file from there.
 */
#include "fuzz.h"
#include "wal.h"

enum { VERIFY = 1, REPAIR = 2, RANDOM_CHUNKS = 4 };

#define NUMBER 77u

struct outcome {
  const uint8_t *file; /* byte 0 is at offset `start` */
  uint64_t start, offset, last_end, hash, good_end, damage_at;
  bool verify;
  unsigned records;
  int rc, end;
};

static uint32_t header_size(uint8_t type) {
  return type >= WAL_R_FULL && type <= WAL_R_LAST ? WAL_RECYCLABLE_HEADER : WAL_HEADER;
}

/* The record's fragments, once more: their CRCs hold, and together they are the payload. */
static void check_record(const struct outcome *o, const struct wal_record *r) {
  uint64_t at = r->start;
  size_t n = 0;
  while (at < r->end) {
    const uint8_t *h = o->file + (at - o->start);
    uint32_t size = header_size(h[6]), length = get_le16(h + 4);
    FUZZ_CHECK(at % WAL_BLOCK + size + length <= WAL_BLOCK);
    uint8_t part = (uint8_t)((h[6] - 1) % 4 + 1); /* without the form */
    FUZZ_CHECK(h[6] >= WAL_FULL && h[6] <= WAL_R_LAST);
    FUZZ_CHECK((part == WAL_FULL || part == WAL_FIRST) == (at == r->start));
    FUZZ_CHECK((part == WAL_FULL || part == WAL_LAST) == (at + size + length == r->end));
    FUZZ_CHECK(!o->verify || crc32c(0, h + 6, size - 6 + length) == crc32c_unmask(get_le32(h)));
    FUZZ_CHECK(n + length <= r->payload.size);
    FUZZ_CHECK(memcmp(h + size, r->payload.data + n, length) == 0);
    n += length;
    at += size + length;
  }
  FUZZ_CHECK(at == r->end && n == r->payload.size && n >= 12);
}

static int take(void *arg, const struct wal_record *r, struct pglog_error *err) {
  struct outcome *o = arg;
  (void)err;
  FUZZ_CHECK(r->start >= o->last_end && r->start - o->last_end < WAL_RECYCLABLE_HEADER);
  FUZZ_CHECK(r->end > r->start);
  check_record(o, r);
  o->last_end = r->end;
  o->records++;
  o->hash = crc32c((uint32_t)o->hash, r->payload.data, r->payload.size) ^ r->start << 32;
  return 0;
}

static struct outcome parse(struct slice file, uint64_t start, uint8_t flags, uint8_t chunk) {
  struct outcome o = {.file = file.data, .start = start, .last_end = start};
  struct wal_parser w;
  struct pglog_error err;
  uint32_t random = chunk;
  o.verify = flags & VERIFY;
  wal_init(&w, NUMBER, start, o.verify);
  for (size_t at = 0; at < file.size && o.rc == 0;) {
    size_t n = chunk;
    random = random * 1103515245u + 12345u;
    if (flags & RANDOM_CHUNKS)
      n = 1 + (random >> 16) % 300;
    if (chunk == 0 || n > file.size - at)
      n = file.size - at;
    o.rc = wal_feed(&w, file.data + at, n, take, &o, &err);
    at += n;
  }
  o.end = wal_end(&w);
  o.offset = w.offset;
  o.good_end = w.good_end;
  o.damage_at = o.end >= WAL_END_ZEROS ? w.damage_at : 0;
  FUZZ_CHECK(o.rc == 0 || o.rc == PGLOG_ENOTSUP);
  FUZZ_CHECK(o.good_end == o.last_end);
  if (o.rc == 0)
    FUZZ_CHECK(w.offset == start + file.size);
  if (o.rc == 0 && o.end >= WAL_END_ZEROS)
    FUZZ_CHECK(o.damage_at >= o.good_end && o.damage_at < w.offset && w.damage[0]);
  wal_free(&w);
  return o;
}

/* Give every fragment its right CRC, as far as they can be followed. */
static void repair(uint8_t *file, size_t size, uint64_t start) {
  for (size_t at = 0; size - at >= WAL_RECYCLABLE_HEADER;) {
    uint8_t *h = file + at;
    uint32_t room = WAL_BLOCK - (uint32_t)((start + at) % WAL_BLOCK);
    uint32_t header = header_size(h[6]), length = get_le16(h + 4);
    if (room < WAL_HEADER || (h[6] == 0 && length == 0)) {
      at += room < size - at ? room : size - at;
      continue;
    }
    if (header + length > room || header + length > size - at)
      return;
    put_le32(h, crc32c_mask(crc32c(0, h + 6, header - 6 + length)));
    at += header + length;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct fuzz_in in = {data, data + size};
  uint8_t flags = fuzz_byte(&in), chunk = fuzz_byte(&in);
  uint64_t start = fuzz_u16(&in);
  struct slice file = fuzz_bytes(&in, SIZE_MAX);
  uint8_t *copy = malloc(file.size + 1);
  FUZZ_CHECK(copy);
  memcpy(copy, file.data, file.size);
  if (flags & REPAIR)
    repair(copy, file.size, start);
  struct slice bytes = slice_make(copy, file.size);
  struct outcome a = parse(bytes, start, flags & VERIFY, 0);
  struct outcome b = parse(bytes, start, flags, chunk);
  FUZZ_CHECK(a.records == b.records && a.hash == b.hash && a.good_end == b.good_end);
  FUZZ_CHECK(a.rc == b.rc && (a.rc != 0 || (a.end == b.end && a.damage_at == b.damage_at)));
  /* Cut at good_end, the same records come out and nothing is left over. */
  struct outcome c = parse(slice_make(copy, a.good_end - start), start, flags & VERIFY, 0);
  FUZZ_CHECK(c.rc == 0 && c.end == WAL_END_CLEAN && c.records == a.records && c.hash == a.hash);
  free(copy);
  return 0;
}

size_t fuzz_seed(unsigned i, uint8_t *out, size_t cap) {
  static const uint32_t sizes[] = {12, 13, 200, 40, 33000, 12, 100};
  static const uint16_t starts[] = {0, 32700, 32757, 32758, 32759, 32761, 32735, 100};
  if (i >= 32)
    return 0;
  bool recyclable = i & 1;
  uint16_t start = starts[i / 2 % 8];
  struct buf b = {0};
  uint8_t *payload = calloc(1, 33000);
  FUZZ_CHECK(payload && buf_reserve(&b, start) == 0);
  b.size = start; /* what is before does not matter: the encoder needs the place only */
  for (unsigned k = 0; k < 7; k++) {
    memset(payload, (int)('a' + k), sizes[k]);
    if (sizes[k] < 1000 || i % 4 == 0)
      FUZZ_CHECK(wal_encode(&b, slice_make(payload, sizes[k]), recyclable, NUMBER) == 0);
  }
  free(payload);
  out[0] = (uint8_t)((i % 5 ? VERIFY : 0) | (i % 3 ? REPAIR : 0) | (i & 4 ? RANDOM_CHUNKS : 0));
  out[1] = (uint8_t)(1 + 5 * i);
  put_le16(out + 2, start);
  size_t n = b.size - start;
  FUZZ_CHECK(n + 4 <= cap);
  memcpy(out + 4, b.data + start, n);
  buf_free(&b);
  return n + 4;
}
