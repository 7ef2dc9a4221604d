/* SPDX-License-Identifier: Apache-2.0 */
#include "wal.h"

#include <inttypes.h>
#include <stdio.h>

#define BATCH_HEADER_BYTES 12 /* of a WriteBatch: sequence and count */
#define CRC_FROM 6            /* the CRC covers the header from its type on */

static bool is_recyclable(uint8_t type) {
  return type >= WAL_R_FULL && type <= WAL_R_LAST;
}

static uint32_t header_size(uint8_t type) {
  return is_recyclable(type) ? WAL_RECYCLABLE_HEADER : WAL_HEADER;
}

static uint32_t block_room(uint64_t offset) {
  return WAL_BLOCK - (uint32_t)(offset % WAL_BLOCK);
}

static bool all_zero(const uint8_t *p, size_t n) {
  return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

static size_t zeros_len(const uint8_t *p, size_t n) {
  size_t i = 0;
  while (i < n && p[i] == 0)
    i++;
  return i;
}

static const char *type_str(uint8_t type) {
  static const char *const names[] = {"FULL", "FIRST", "MIDDLE", "LAST"};
  if (type >= WAL_FULL && type <= WAL_R_LAST)
    return names[(type - WAL_FULL) % 4];
  return type == WAL_SET_COMPRESSION ? "compression" : "unknown";
}

__attribute__((format(printf, 4, 5))) static void end_at(struct wal_parser *w, enum wal_end state,
                                                         uint64_t at, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(w->damage, sizeof w->damage, fmt, ap);
  va_end(ap);
  w->state = state;
  w->damage_at = at;
}

static uint64_t bad_record_at(const struct wal_parser *w) {
  return w->in_record ? w->rec_start : w->frag_at;
}

void wal_init(struct wal_parser *w, uint64_t number, uint64_t start, bool verify) {
  memset(w, 0, sizeof *w);
  w->number = number;
  w->offset = start;
  w->good_end = start;
  w->verify = verify;
  w->state = WAL_END_CLEAN;
}

void wal_free(struct wal_parser *w) {
  buf_free(&w->rec);
}

enum wal_end wal_end(const struct wal_parser *w) {
  if (w->state != WAL_END_CLEAN)
    return (enum wal_end)w->state;
  if (w->maybe_trailer && w->have == 0 && !w->in_payload)
    return WAL_END_ZEROS;
  /* A whole trailer is no torn record: RocksDB reads such a file as a clean one, and as a WAL that
   * is not the last it must stay acceptable. */
  return w->trailer || w->have || w->in_payload || w->in_record ? WAL_END_TORN : WAL_END_CLEAN;
}

static void header_of_zeros(struct wal_parser *w) {
  uint32_t room = block_room(w->frag_at);
  if (w->in_record) {
    end_at(w, WAL_END_DAMAGE, w->rec_start,
           "offset %" PRIu64 ": header of zeros inside the record that starts at %" PRIu64,
           w->frag_at, w->rec_start);
  } else if (w->maybe_trailer) {
    end_at(w, WAL_END_ZEROS, w->good_end, "offset %" PRIu64 ": header of zeros", w->good_end);
  } else if (room < WAL_RECYCLABLE_HEADER && !w->legacy) {
    end_at(w, WAL_END_CLEAN, w->frag_at, "offset %" PRIu64 ": header of zeros", w->frag_at);
    w->maybe_trailer = true;
    w->trailer = room - WAL_HEADER;
  } else {
    end_at(w, WAL_END_ZEROS, w->frag_at, "offset %" PRIu64 ": header of zeros", w->frag_at);
  }
}

/* Rule 4. True if the form fits. */
static bool check_form(struct wal_parser *w, uint8_t type) {
  bool rec = is_recyclable(type);
  if (rec ? w->legacy : w->recyclable) {
    end_at(w, WAL_END_DAMAGE, bad_record_at(w),
           "offset %" PRIu64 ": type %u, a %s record in a file of %s ones", w->frag_at, type,
           rec ? "recyclable" : "legacy", rec ? "legacy" : "recyclable");
    return false;
  }
  if (w->maybe_trailer && !rec) {
    end_at(w, WAL_END_DAMAGE, w->good_end,
           "offset %" PRIu64 ": header of zeros before the %s record at %" PRIu64, w->good_end,
           type_str(type), w->frag_at);
    return false;
  }
  return true;
}

/* Rules 1 to 4, on the 7 bytes that all headers have. True if the fragment may be read. */
static bool check_header(struct wal_parser *w, const uint8_t *h) {
  uint8_t type = h[6];
  uint32_t length = get_le16(h + 4);
  uint32_t room = block_room(w->frag_at);
  uint64_t at = bad_record_at(w);
  if (all_zero(h, WAL_HEADER)) {
    header_of_zeros(w);
    return false;
  }
  if (type == WAL_ZERO || type > WAL_SET_COMPRESSION) {
    end_at(w, WAL_END_DAMAGE, at, "offset %" PRIu64 ": unknown record type %u", w->frag_at, type);
    return false;
  }
  if (header_size(type) + length > room) {
    end_at(w, WAL_END_DAMAGE, at,
           "offset %" PRIu64 ": length %u of %s record (type %u) runs over the block's %u bytes",
           w->frag_at, length, type_str(type), type, room);
    return false;
  }
  if (type == WAL_SET_COMPRESSION)
    return true;
  if (!check_form(w, type))
    return false;
  uint8_t part = is_recyclable(type) ? type - (WAL_R_FULL - WAL_FULL) : type;
  if (w->in_record != (part == WAL_MIDDLE || part == WAL_LAST)) {
    end_at(w, WAL_END_DAMAGE, at, "offset %" PRIu64 ": %s record %s", w->frag_at, type_str(part),
           w->in_record ? "before the end of the one before it" : "without a FIRST");
    return false;
  }
  if ((part == WAL_FIRST || part == WAL_MIDDLE) && header_size(type) + length != room) {
    end_at(w, WAL_END_DAMAGE, at,
           "offset %" PRIu64 ": length %u of %s record leaves a part of the block's %u bytes",
           w->frag_at, length, type_str(part), room);
    return false;
  }
  return true;
}

/* Rule 5, on a whole header; then the fragment is open. */
static void open_fragment(struct wal_parser *w, const uint8_t *h) {
  uint8_t type = h[6];
  if (is_recyclable(type)) {
    uint32_t number = get_le32(h + WAL_HEADER);
    if (number != w->number) {
      end_at(w, WAL_END_DAMAGE, bad_record_at(w),
             "offset %" PRIu64 ": record of WAL %u in WAL %" PRIu64 ": old part of a recycled file",
             w->frag_at, number, w->number);
      return;
    }
    w->recyclable = true;
    w->maybe_trailer = false;
    w->type = type - (WAL_R_FULL - WAL_FULL);
  } else {
    w->legacy = w->legacy || type != WAL_SET_COMPRESSION;
    w->type = type;
  }
  if (!w->in_record) {
    w->rec_start = w->frag_at;
    w->rec.size = 0;
  }
  w->left = get_le16(h + 4);
  w->in_payload = true;
  if (w->verify) {
    w->want = crc32c_unmask(get_le32(h));
    w->crc = crc32c(0, h + CRC_FROM, header_size(type) - CRC_FROM);
  }
}

/* Rule 7. Bytes of a trailer without room for a header are nobody's. */
static size_t take_trailer(struct wal_parser *w, const uint8_t *p, size_t n) {
  size_t k = n < w->trailer ? n : w->trailer;
  bool looked_at = block_room(w->frag_at) >= WAL_HEADER;
  size_t zeros = looked_at ? zeros_len(p, k) : k;
  w->trailer -= (uint32_t)k;
  if (zeros < k)
    end_at(w, WAL_END_DAMAGE, w->frag_at, "offset %" PRIu64 ": byte %u in %s, not 0",
           w->offset + zeros, p[zeros],
           w->maybe_trailer ? "a block's end behind a header of zeros" : "a block's trailer");
  return k;
}

/* Take bytes of a trailer or a header. Returns how many. Afterwards a fragment may be open
 * (in_payload), or the state may have changed. */
static size_t take_header(struct wal_parser *w, const uint8_t *p, size_t n) {
  if (w->have == 0 && w->trailer == 0) {
    uint32_t room = block_room(w->offset);
    w->frag_at = w->offset;
    if (room < (w->recyclable ? WAL_RECYCLABLE_HEADER : WAL_HEADER))
      w->trailer = room;
  }
  if (w->trailer)
    return take_trailer(w, p, n);

  if (w->have == 0 && n >= WAL_HEADER && n >= header_size(p[6])) {
    if (!check_header(w, p))
      return WAL_HEADER;
    open_fragment(w, p);
    return header_size(p[6]);
  }
  uint32_t need = w->have < WAL_HEADER ? WAL_HEADER : WAL_RECYCLABLE_HEADER;
  size_t k = n < need - w->have ? n : need - w->have;
  memcpy(w->header + w->have, p, k);
  w->have += (uint32_t)k;
  if (w->have < need)
    return k;
  if (need == WAL_HEADER && !check_header(w, w->header)) {
    w->have = 0;
  } else if (w->have == header_size(w->header[6])) {
    open_fragment(w, w->header);
    w->have = 0;
  }
  return k;
}

/* The payload of the open fragment is complete; `whole` is all of it, or data NULL if it is in
 * w->rec. */
static int close_fragment(struct wal_parser *w, struct slice whole, wal_record_fn fn, void *arg,
                          struct pglog_error *err) {
  w->in_payload = false;
  if (w->verify && w->crc != w->want) {
    end_at(w, WAL_END_DAMAGE, bad_record_at(w),
           "offset %" PRIu64 ": CRC of %s record is 0x%08x, stored 0x%08x", w->frag_at,
           type_str(w->type), w->crc, w->want);
    return 0;
  }
  if (w->type == WAL_SET_COMPRESSION)
    return error_set(err, PGLOG_ENOTSUP,
                     "WAL %" PRIu64 ", offset %" PRIu64
                     ": a compression record: the option wal_compression is not supported",
                     w->number, w->frag_at);
  if (w->type == WAL_FIRST || w->type == WAL_MIDDLE) {
    w->in_record = true;
    return 0;
  }
  struct wal_record r = {whole.data ? whole : slice_make(w->rec.data, w->rec.size), w->rec_start,
                         w->offset};
  if (r.payload.size < BATCH_HEADER_BYTES) {
    end_at(w, WAL_END_DAMAGE, w->rec_start,
           "offset %" PRIu64 ": record of %zu bytes, shorter than a WriteBatch's header of %d",
           w->rec_start, r.payload.size, BATCH_HEADER_BYTES);
    return 0;
  }
  int rc = fn(arg, &r, err);
  if (rc < 0)
    return rc;
  w->in_record = false;
  w->good_end = w->offset;
  return 0;
}

/* Take up to n bytes of the open fragment's payload; *taken says how many. */
static int take_payload(struct wal_parser *w, const uint8_t *p, size_t n, size_t *taken,
                        wal_record_fn fn, void *arg, struct pglog_error *err) {
  size_t k = n < w->left ? n : w->left;
  bool in_place = w->type == WAL_FULL && k == w->left && w->rec.size == 0;
  if (!in_place && k > 0 && buf_append(&w->rec, p, k) < 0)
    return error_set(err, PGLOG_ENOMEM, "WAL %" PRIu64 ": no memory for a record of over %zu bytes",
                     w->number, w->rec.size);
  if (w->verify)
    w->crc = crc32c(w->crc, p, k);
  *taken = k;
  w->offset += k;
  w->left -= (uint32_t)k;
  if (w->left > 0)
    return 0;
  return close_fragment(w, slice_make(in_place ? p : NULL, k), fn, arg, err);
}

/* Bytes behind the end of the good data. */
static void take_rest(struct wal_parser *w, const uint8_t *p, size_t n) {
  if (w->state == WAL_END_ZEROS && !all_zero(p, n)) {
    size_t i = zeros_len(p, n);
    end_at(w, WAL_END_DAMAGE, w->damage_at,
           "offset %" PRIu64 ": header of zeros, but byte %u at offset %" PRIu64, w->damage_at,
           p[i], w->offset + i);
  }
  w->offset += n;
}

int wal_feed(struct wal_parser *w, const uint8_t *p, size_t n, wal_record_fn fn, void *arg,
             struct pglog_error *err) {
  if (w->failed)
    return error_set(err, w->failed,
                     "WAL %" PRIu64 ": reading stopped at offset %" PRIu64 " after an error",
                     w->number, w->good_end);
  while (n > 0 && w->state == WAL_END_CLEAN) {
    size_t k = 0;
    if (!w->in_payload) {
      k = take_header(w, p, n);
      w->offset += k;
      p += k;
      n -= k;
    }
    if (!w->in_payload)
      continue;
    w->failed = take_payload(w, p, n, &k, fn, arg, err); /* also with n = 0: it may be empty */
    if (w->failed)
      return w->failed;
    p += k;
    n -= k;
  }
  if (n > 0)
    take_rest(w, p, n);
  return 0;
}

static int encode_fragment(struct buf *out, struct slice part, uint8_t type, uint32_t number) {
  uint8_t h[WAL_RECYCLABLE_HEADER];
  uint32_t size = header_size(type);
  put_le16(h + 4, (uint16_t)part.size);
  h[6] = type;
  put_le32(h + WAL_HEADER, number);
  uint32_t crc = crc32c(0, h + CRC_FROM, size - CRC_FROM);
  put_le32(h, crc32c_mask(crc32c(crc, part.data, part.size)));
  int rc = buf_append(out, h, size);
  if (rc == 0 && part.size > 0)
    rc = buf_append(out, part.data, part.size);
  return rc;
}

int wal_encode(struct buf *out, struct slice payload, bool recyclable, uint32_t number) {
  static const uint8_t zeros[WAL_RECYCLABLE_HEADER];
  const uint8_t shift = recyclable ? WAL_R_FULL - WAL_FULL : 0;
  const uint32_t header = recyclable ? WAL_RECYCLABLE_HEADER : WAL_HEADER;
  bool begin = true, end = false;
  while (!end) {
    uint32_t room = block_room(out->size);
    int rc = room < header ? buf_append(out, zeros, room) : 0;
    if (rc < 0)
      return rc;
    if (room < header)
      room = WAL_BLOCK;
    size_t k = payload.size < room - header ? payload.size : room - header;
    end = k == payload.size;
    uint8_t type = begin ? (end ? WAL_FULL : WAL_FIRST) : (end ? WAL_LAST : WAL_MIDDLE);
    rc = encode_fragment(out, slice_make(payload.data, k), type + shift, number);
    if (rc < 0)
      return rc;
    if (!end)
      payload = slice_make(payload.data + k, payload.size - k);
    begin = false;
  }
  return 0;
}

bool wal_file_number(const char *name, uint64_t *number) {
  const char *base = strrchr(name, '/');
  const char *p = base ? base + 1 : name;
  const char *digits = p;
  uint64_t v = 0;
  for (; *p >= '0' && *p <= '9'; p++) {
    if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v))
      return false;
  }
  if (p == digits || strcmp(p, ".log") != 0)
    return false;
  *number = v;
  return true;
}
