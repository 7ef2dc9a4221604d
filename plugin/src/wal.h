/* SPDX-License-Identifier: Apache-2.0
 *
 * wal.h - parser of RocksDB's WAL (log) file format. Pure: no I/O, no locks; fed with bytes in any
 * chunking, so that the same code follows a live WAL append by append and reads a file back.
 *
 * Format (RocksDB 7.8.3, db/log_format.h): the file is a row of 32 KiB blocks. A block holds
 * fragments: header { u32 masked CRC-32C of type.. and payload, u16 LE length, u8 type }, payload;
 * recyclable types have the u32 log number behind the type, covered by the CRC. A rest of a block
 * smaller than a header (7 bytes; 11 in a file of recyclable records) is zero-filled: the trailer.
 * A record is one FULL fragment, or FIRST, MIDDLE*, LAST. A record that meets a block with room for
 * a header and nothing else begins there with a FIRST of length 0.
 *
 * A fragment is right if and only if
 *  1. its type is one of those below, and header and payload lie within one block;
 *  2. a FULL or FIRST does not come inside a record, a MIDDLE or LAST only there;
 *  3. a FIRST or MIDDLE reaches the end of its block;
 *  4. its form, legacy or recyclable, is that of the fragments before it;
 *  5. a recyclable one carries the file's log number (RocksDB ends the file at another one: the old
 *     records of a recycled file. Here it is damage);
 *  6. its CRC holds (with `verify`);
 *  7. a trailer before it that has room for 7 bytes, which only a recyclable file has, is zeros;
 *  8. the record that it ends has a WriteBatch header's bytes (12).
 * No CRC covers a shorter trailer and RocksDB does not look at it, so its bytes are not looked at
 * here: a flipped one must not cost the records behind it, which RocksDB keeps. In the longer
 * trailer of a recyclable file RocksDB looks for a header.
 * RocksDB's reader asks for less: it lets pass a FIRST or MIDDLE that ends early, both forms in one
 * file, an empty FIRST before a FULL, and skips from a zero header (type and length 0) to the next
 * block without a word.
 */
#ifndef PGLOG_WAL_H
#define PGLOG_WAL_H

#include "util.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WAL_BLOCK 32768u
#define WAL_HEADER 7u
#define WAL_RECYCLABLE_HEADER 11u

enum wal_type {
  WAL_ZERO = 0,
  WAL_FULL = 1,
  WAL_FIRST = 2,
  WAL_MIDDLE = 3,
  WAL_LAST = 4,
  WAL_R_FULL = 5,
  WAL_R_FIRST = 6,
  WAL_R_MIDDLE = 7,
  WAL_R_LAST = 8,
  WAL_SET_COMPRESSION = 9,
};

/* How a stream ends, from wal_end(). */
enum wal_end {
  WAL_END_CLEAN, /* at a record's end, or at a block's end behind a record and its trailer */
  WAL_END_TORN,  /* in the middle of a record or trailer: right as far as it goes */
  WAL_END_ZEROS, /* a header of zeros between two records, and nothing but zeros up to the end
                    (preallocated or unwritten) */
  WAL_END_DAMAGE /* anything else: bad CRC, length, type, order, a recyclable file's trailer that
                    is not zero, a header of zeros inside a record, or one with other bytes behind
                    it */
};

/* A complete record. `payload` (a WriteBatch) points into the bytes being fed, or into the parser's
 * own buffer if the record was fragmented or its payload came in several chunks; valid during the
 * call only. A negative return stops the parser and becomes wal_feed()'s result; good_end then is
 * the end of the record before. */
struct wal_record {
  struct slice payload;
  uint64_t start, end; /* file offsets of the first header's first byte, and behind the last byte */
};
typedef int (*wal_record_fn)(void *arg, const struct wal_record *r, struct pglog_error *err);

/* Parser state. Use wal_init/wal_feed/wal_end/wal_free only; fields up to `damage` may be read. */
struct wal_parser {
  uint64_t number;    /* log number, for recyclable records and messages */
  uint64_t offset;    /* file offset of the next byte to be fed */
  uint64_t good_end;  /* end of the last complete record (or the start offset) */
  uint64_t damage_at; /* DAMAGE and ZEROS: where the bad record starts (or the bad trailer, or the
                         header of zeros) */
  char damage[160];   /* what is wrong there */
  bool verify;        /* check CRCs */
  bool recyclable;    /* a recyclable fragment was seen */
  bool legacy;        /* a legacy fragment was seen */
  bool in_record;     /* FIRST seen, LAST not yet */
  bool in_payload;    /* the header of a fragment is complete, its payload is not */
  bool maybe_trailer; /* zeros that are a trailer if the file turns out to be recyclable */
  uint8_t type;       /* of the open fragment: WAL_FULL..WAL_LAST, WAL_SET_COMPRESSION */
  uint8_t header[WAL_RECYCLABLE_HEADER];
  uint32_t have;      /* header bytes collected */
  uint32_t trailer;   /* bytes of the block trailer still to come */
  uint32_t left;      /* payload bytes of the fragment still to come */
  uint32_t crc, want; /* CRC of the open fragment: so far, and as stored */
  uint64_t frag_at;   /* start of the open fragment or trailer */
  uint64_t rec_start; /* start of the open record */
  struct buf rec;     /* payload of the open record, when it could not be handed out in place */
  int state;          /* enum wal_end, sticky once DAMAGE or ZEROS */
  int failed;         /* sticky result of wal_feed() */
};

/* Start at file offset `start`, which must be 0 or the end of a record. Started elsewhere than at
 * 0, the parser does not know the file's form before the first record: 7 to 10 zeros up to a
 * block's end are then reported as ZEROS until a recyclable record behind them shows that they are
 * a trailer. */
void wal_init(struct wal_parser *w, uint64_t number, uint64_t start, bool verify);

/* Feed the next `n` bytes. Calls fn for each record completed. Returns 0 (damage included: ask
 * wal_end()), the callback's error, or PGLOG_ENOMEM. After damage, bytes are only counted (and
 * looked at to tell ZEROS from DAMAGE). PGLOG_ENOTSUP for a compression record (wal_compression),
 * with a message that names the option. After an error every later call returns the same code. */
int wal_feed(struct wal_parser *w, const uint8_t *p, size_t n, wal_record_fn fn, void *arg,
             struct pglog_error *err);

/* What the stream would be if it ended here. The cut point for damage or a torn record is
 * w->good_end. Not meaningful after wal_feed() failed. */
enum wal_end wal_end(const struct wal_parser *w);

void wal_free(struct wal_parser *w);

/* Encoder, for tests and tools: appends `payload` as a record to `out`, whose size modulo WAL_BLOCK
 * is the place in the block, byte for byte as RocksDB would. With `recyclable`, in that form;
 * otherwise `number` is not used. PGLOG_ENOMEM leaves a part of the record behind. */
int wal_encode(struct buf *out, struct slice payload, bool recyclable, uint32_t number);

/* The number in a WAL file name ("000123.log", any path in front is ignored; like RocksDB, any
 * number of digits that fits 64 bits). False if `name` is not a WAL's name. */
bool wal_file_number(const char *name, uint64_t *number);

#ifdef __cplusplus
}
#endif
#endif
