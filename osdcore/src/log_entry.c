/* SPDX-License-Identifier: Apache-2.0 */
#include "log_entry.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FORMAT 1
#define EPOCH_DIGITS 10
#define DUP "dup_"
#define DUP_LEN 4

static size_t version_print(char *out, struct osd_eversion v) {
  return (size_t)snprintf(out, OSD_VERSION_LEN + 1, "%010" PRIu32 ".%020" PRIu64, v.epoch,
                          v.version);
}

size_t osd_entry_name(char out[OSD_NAME_MAX], struct osd_eversion v) {
  return version_print(out, v);
}

size_t osd_dup_name(char out[OSD_NAME_MAX], struct osd_eversion v) {
  memcpy(out, DUP, DUP_LEN);
  return DUP_LEN + version_print(out + DUP_LEN, v);
}

/* Exactly the digits at [p, end), as a number of at most `max`. */
static bool digits(const uint8_t *p, const uint8_t *end, uint64_t max, uint64_t *out) {
  uint64_t v = 0;
  for (; p < end; p++)
    if (*p < '0' || *p > '9' || __builtin_mul_overflow(v, 10, &v) ||
        __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v))
      return false;
  *out = v;
  return v <= max;
}

static bool name_is(struct osd_slice name, const char *text) {
  return name.size == strlen(text) && memcmp(name.data, text, name.size) == 0;
}

int osd_name_parse(struct osd_slice name, struct osd_eversion *v) {
  if (name_is(name, OSD_NAME_INFO))
    return OSD_NAME_IS_INFO;
  if (name_is(name, OSD_NAME_FASTINFO))
    return OSD_NAME_IS_FASTINFO;
  const uint8_t *p = name.data, *end = p + name.size;
  bool dup = name.size > DUP_LEN && memcmp(p, DUP, DUP_LEN) == 0;
  if (dup)
    p += DUP_LEN;
  uint64_t epoch;
  if (end - p != OSD_VERSION_LEN || p[EPOCH_DIGITS] != '.' ||
      !digits(p, p + EPOCH_DIGITS, UINT32_MAX, &epoch) ||
      !digits(p + EPOCH_DIGITS + 1, end, UINT64_MAX, &v->version))
    return -1;
  v->epoch = (uint32_t)epoch;
  return dup ? OSD_NAME_IS_DUP : OSD_NAME_IS_ENTRY;
}

/* ---------------------------------------------------------------------------------------------- */
/* Writing                                                                                        */

static uint8_t *put_u64(uint8_t *p, uint64_t v) {
  for (; v >= 0x80; v >>= 7)
    *p++ = (uint8_t)(v | 0x80);
  *p++ = (uint8_t)v;
  return p;
}

static uint8_t *put_signed(uint8_t *p, int32_t v) {
  return put_u64(p, ((uint32_t)v << 1) ^ (uint32_t)(v >> 31));
}

static uint8_t *put_le64(uint8_t *p, uint64_t v) {
  for (int i = 0; i < 8; i++)
    *p++ = (uint8_t)(v >> (8 * i));
  return p;
}

static uint8_t *put_eversion(uint8_t *p, struct osd_eversion v) {
  return put_u64(put_u64(p, v.epoch), v.version);
}

static uint8_t *put_reqid(uint8_t *p, struct osd_reqid r) {
  return put_u64(put_u64(put_le64(p, r.client), r.incarnation), r.tid);
}

size_t osd_entry_put(uint8_t *out, const struct osd_log_entry *e) {
  uint8_t *p = out;
  *p++ = FORMAT;
  *p++ = e->op;
  p = put_reqid(put_eversion(p, e->prior), e->reqid);
  p = put_signed(put_le64(p, e->mtime_ns), e->result);
  p = put_u64(p, e->object.size);
  memcpy(p, e->object.data, e->object.size);
  return (size_t)(p - out) + e->object.size;
}

size_t osd_dup_put(uint8_t *out, const struct osd_dup *d) {
  uint8_t *p = out;
  *p++ = FORMAT;
  return (size_t)(put_signed(put_reqid(p, d->reqid), d->result) - out);
}

size_t osd_fastinfo_put(uint8_t *out, const struct osd_fastinfo *i) {
  uint8_t *p = out;
  *p++ = FORMAT;
  return (size_t)(put_le64(put_eversion(p, i->last_update), i->mtime_ns) - out);
}

size_t osd_info_put(uint8_t *out, const struct osd_info *i) {
  uint8_t *p = out;
  *p++ = FORMAT;
  p = put_eversion(p, i->log_tail);
  return (size_t)(put_u64(put_u64(put_u64(p, i->objects), i->bits), i->epoch) - out);
}

/* ---------------------------------------------------------------------------------------------- */
/* Reading                                                                                        */

/* A reader that remembers the first thing wrong, so that a record is read without a test a field. */
struct reader {
  const uint8_t *begin, *p, *end;
  const char *wrong; /* NULL: nothing yet */
  size_t at;
};

static void wrong(struct reader *r, const char *what) {
  if (!r->wrong) {
    r->wrong = what;
    r->at = (size_t)(r->p - r->begin);
  }
}

static uint64_t get_u64(struct reader *r, uint64_t max) {
  uint64_t v = 0;
  for (unsigned shift = 0; !r->wrong; shift += 7) {
    if (r->p == r->end) {
      wrong(r, "it is cut off");
    } else if (shift == 63 && *r->p > 1) {
      wrong(r, "a number is over 64 bits");
    } else {
      uint8_t b = *r->p++;
      v |= (uint64_t)(b & 0x7f) << shift;
      if (b < 0x80)
        break;
    }
  }
  if (v > max)
    wrong(r, "a number is over its limit");
  return r->wrong ? 0 : v;
}

static uint32_t get_u32(struct reader *r) { return (uint32_t)get_u64(r, UINT32_MAX); }

static int32_t get_signed(struct reader *r) {
  uint32_t v = get_u32(r);
  return (int32_t)(v >> 1) ^ -(int32_t)(v & 1);
}

static uint64_t get_le64(struct reader *r) {
  uint64_t v = 0;
  if (r->end - r->p < 8)
    wrong(r, "it is cut off");
  for (int i = 0; i < 8 && !r->wrong; i++)
    v |= (uint64_t)*r->p++ << (8 * i);
  return v;
}

static struct osd_eversion get_eversion(struct reader *r) {
  struct osd_eversion v;
  v.epoch = get_u32(r);
  v.version = get_u64(r, UINT64_MAX);
  return v;
}

static struct osd_reqid get_reqid(struct reader *r) {
  struct osd_reqid q;
  q.client = get_le64(r);
  q.incarnation = get_u32(r);
  q.tid = get_u64(r, UINT64_MAX);
  return q;
}

static struct osd_slice get_object(struct reader *r) {
  size_t n = (size_t)get_u64(r, OSD_OBJECT_MAX);
  struct osd_slice s = {r->p, n};
  if (n > (size_t)(r->end - r->p))
    wrong(r, "it is cut off");
  else
    r->p += n;
  return s;
}

/* Stand behind the format byte. */
static int begin(struct reader *r, struct osd_slice value, const char *what,
                 struct pglog_error *err) {
  *r = (struct reader){.begin = value.data, .p = value.data, .end = value.data + value.size};
  if (!value.size)
    return osd_error(err, PGLOG_ECORRUPT, "%s is empty", what);
  if (*r->p != FORMAT)
    return osd_error(err, PGLOG_ENOTSUP, "%s has format %u, this library knows %u", what, *r->p,
                     FORMAT);
  r->p++;
  return 0;
}

static int end(struct reader *r, const char *what, struct pglog_error *err) {
  if (r->p != r->end)
    wrong(r, "bytes follow its end");
  if (!r->wrong)
    return 0;
  return osd_error(err, PGLOG_ECORRUPT, "%s of %zu bytes: %s at offset %zu", what,
                   (size_t)(r->end - r->begin), r->wrong, r->at);
}

int osd_entry_get(struct osd_slice value, struct osd_log_entry *e, struct pglog_error *err) {
  struct reader r;
  int rc = begin(&r, value, "log entry", err);
  if (rc)
    return rc;
  if (r.p < r.end)
    e->op = *r.p++;
  else
    wrong(&r, "it is cut off");
  if (!r.wrong && (e->op < OSD_LOG_MODIFY || e->op > OSD_LOG_ERROR))
    wrong(&r, "the operation is unknown");
  e->prior = get_eversion(&r);
  e->reqid = get_reqid(&r);
  e->mtime_ns = get_le64(&r);
  e->result = get_signed(&r);
  e->object = get_object(&r);
  return end(&r, "log entry", err);
}

int osd_dup_get(struct osd_slice value, struct osd_dup *d, struct pglog_error *err) {
  struct reader r;
  int rc = begin(&r, value, "dup record", err);
  if (rc)
    return rc;
  d->reqid = get_reqid(&r);
  d->result = get_signed(&r);
  return end(&r, "dup record", err);
}

int osd_fastinfo_get(struct osd_slice value, struct osd_fastinfo *i, struct pglog_error *err) {
  struct reader r;
  int rc = begin(&r, value, "_fastinfo record", err);
  if (rc)
    return rc;
  i->last_update = get_eversion(&r);
  i->mtime_ns = get_le64(&r);
  return end(&r, "_fastinfo record", err);
}

int osd_info_get(struct osd_slice value, struct osd_info *i, struct pglog_error *err) {
  struct reader r;
  int rc = begin(&r, value, "_info record", err);
  if (rc)
    return rc;
  i->log_tail = get_eversion(&r);
  i->objects = get_u64(&r, UINT64_MAX);
  i->bits = get_u32(&r);
  i->epoch = get_u32(&r);
  return end(&r, "_info record", err);
}
