/* SPDX-License-Identifier: Apache-2.0
 *
 * log_entry.h - what osdcore writes into a PG's log: keys and values of log entries, dups and info
 * records. Bytes only: no I/O, no locks.
 *
 * A PG's keys are "<PG id>/<name>" behind the rule's prefix. Names, which sort in this order:
 *
 *   <version>      a log entry     <version> is "%010u.%020llu": epoch, version
 *   _fastinfo      what changes with each operation
 *   _info          the rest
 *   dup_<version>  a request whose log entry has been trimmed
 *
 * The values are those of FORMAT.md, section 4. The writer appends to a buffer of the caller's; the
 * reader's slices point into the value. Errors: PGLOG_ECORRUPT with what is wrong and where,
 * PGLOG_ENOTSUP for another format byte.
 */
#ifndef OSDCORE_LOG_ENTRY_H
#define OSDCORE_LOG_ENTRY_H

#include <stddef.h>
#include <string.h>

#include "osd_error.h"

struct osd_slice {
  const uint8_t *data;
  size_t size;
};

/* Bytewise order: <0, 0, >0. */
static inline int osd_slice_cmp(struct osd_slice a, struct osd_slice b) {
  size_t n = a.size < b.size ? a.size : b.size;
  int c = n ? memcmp(a.data, b.data, n) : 0;
  return c ? c : (a.size > b.size) - (a.size < b.size);
}

/* Position in a PG's log: later epochs are above all earlier ones. {0, 0} is before every entry. */
struct osd_eversion {
  uint32_t epoch;
  uint64_t version;
};

static inline int osd_eversion_cmp(struct osd_eversion a, struct osd_eversion b) {
  if (a.epoch != b.epoch)
    return a.epoch < b.epoch ? -1 : 1;
  return (a.version > b.version) - (a.version < b.version);
}

/* Which request: of which client, in which life of it, and its number there. */
struct osd_reqid {
  uint64_t client, tid;
  uint32_t incarnation;
};

enum osd_log_op {
  OSD_LOG_MODIFY = 1, /* the object was created or changed */
  OSD_LOG_DELETE = 2,
  OSD_LOG_ERROR = 3,  /* nothing changed: the request failed with `result` */
};

struct osd_log_entry {
  struct osd_eversion version; /* from the key */
  struct osd_eversion prior;   /* of the object's entry before; {0, 0}: the object is new */
  struct osd_reqid reqid;
  uint64_t mtime_ns;
  int32_t result; /* of the request, 0 or a negative PGLOG_* code */
  uint8_t op;     /* enum osd_log_op */
  struct osd_slice object;
};

struct osd_dup {
  struct osd_eversion version; /* from the key */
  struct osd_reqid reqid;
  int32_t result;
};

struct osd_fastinfo {
  struct osd_eversion last_update;
  uint64_t mtime_ns;
};

struct osd_info {
  struct osd_eversion log_tail; /* entries above it are in the log */
  uint64_t objects;
  uint32_t bits;                /* of the hash that choose this PG */
  uint32_t epoch;               /* in which the PG was made, or split */
};

#define OSD_VERSION_LEN 31 /* bytes of a version in a key */
#define OSD_NAME_MAX 36    /* bytes of a name, with its NUL */
#define OSD_OBJECT_MAX 2048

#define OSD_NAME_INFO "_info"
#define OSD_NAME_FASTINFO "_fastinfo"

/* Write a name and its NUL; returns its length. */
size_t osd_entry_name(char out[OSD_NAME_MAX], struct osd_eversion v);
size_t osd_dup_name(char out[OSD_NAME_MAX], struct osd_eversion v);

enum osd_name { OSD_NAME_IS_ENTRY, OSD_NAME_IS_DUP, OSD_NAME_IS_INFO, OSD_NAME_IS_FASTINFO };
/* What a name is, and the version in it. -1: none of these. */
int osd_name_parse(struct osd_slice name, struct osd_eversion *v);

/* Values into `out`, which has room for `OSD_VALUE_MAX` bytes; returns the length. */
#define OSD_VALUE_MAX (OSD_OBJECT_MAX + 96)
size_t osd_entry_put(uint8_t *out, const struct osd_log_entry *e);
size_t osd_dup_put(uint8_t *out, const struct osd_dup *d);
size_t osd_fastinfo_put(uint8_t *out, const struct osd_fastinfo *i);
size_t osd_info_put(uint8_t *out, const struct osd_info *i);

/* The version is left alone: it is in the key. */
int osd_entry_get(struct osd_slice value, struct osd_log_entry *e, struct pglog_error *err);
int osd_dup_get(struct osd_slice value, struct osd_dup *d, struct pglog_error *err);
int osd_fastinfo_get(struct osd_slice value, struct osd_fastinfo *i, struct pglog_error *err);
int osd_info_get(struct osd_slice value, struct osd_info *i, struct pglog_error *err);

#endif
