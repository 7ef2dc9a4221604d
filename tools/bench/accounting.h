/* SPDX-License-Identifier: Apache-2.0
 *
 * accounting.h - counts what RocksDB hands to files, by kind.
 *
 * A FileSystem that wraps RocksDB's default one and counts the bytes appended to each file: *.log
 * is the WAL; an SST counts by the reason it is made for, which an EventListener is told just
 * before the file is created (flush or recovery, or compaction); the rest (MANIFEST, OPTIONS,
 * CURRENT) is `other`. The info log is not counted. These are bytes as written, after compression.
 *
 * It is registered in RocksDB's default object library under the name ACCOUNTING_ID: as an Env
 * ("env=..."), as a FileSystem (for file systems that wrap a base) and as a listener
 * ("listeners=..."). The counters are the process's.
 */
#ifndef BENCH_ACCOUNTING_H
#define BENCH_ACCOUNTING_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ACCOUNTING_ID "pglog_bench_accounting"

struct accounting {
  uint64_t wal_bytes;
  uint64_t flush_bytes;
  uint64_t compaction_bytes;
  uint64_t other_bytes;
  uint64_t wal_files; /* WAL files created */
  uint64_t wal_syncs; /* fsync and fdatasync calls on WAL files */
  uint64_t p_flushes; /* flushes of the pg log column family that wrote a file */
};

/* Register the three. Once per process, before a database is opened. */
void accounting_register(void);

/* The counters, since the process began. */
void accounting_get(struct accounting *a);

#ifdef __cplusplus
}
#endif
#endif
