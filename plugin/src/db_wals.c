/* SPDX-License-Identifier: Apache-2.0
 *
 * db_wals.c - the watch that old WALs are retired.
 *
 * RocksDB retires WALs when their sum passes max_total_wal_size: it flushes every column family
 * that still needs the oldest one. It does not do so with one column family alone, nor when no
 * column family needs that WAL any more (its last one was dropped) or none has anything to flush
 * (atomic_flush): then it waits for the next flush of any memtable, and a workload of pg log keys
 * alone never fills one. So whenever one WAL has grown a quarter beyond the limit, the facade puts
 * a key into the guard column family and flushes that, which makes a new WAL and lets go of the old
 * ones. The guard's memtable is empty at all other times, so that the guard itself never holds a
 * WAL back.
 */
#include <inttypes.h>
#include <stdio.h>

#include "db_internal.h"

#define STEPS 16 /* looks at the WAL number in the time that one WAL takes to fill */

static uint64_t wals_limit(pglog_db_t *db) {
  uint64_t limit = capi_max_total_wal_size(db->db);
  if (limit == 0) {
    pthread_mutex_lock(&db->cf_mutex);
    limit = 4 * db->memtable_bytes;
    pthread_mutex_unlock(&db->cf_mutex);
  }
  return limit + limit / 4;
}

void wals_limit_changed(pglog_db_t *db) {
  uint64_t step = wals_limit(db) / STEPS;
  atomic_store_explicit(&db->wal_step, step ? step : 1, memory_order_relaxed);
}

/* Put a key into the guard's memtable and start its flush. */
static void guard_flush(pglog_db_t *db, uint64_t wal) {
  char text[32];
  int n = snprintf(text, sizeof text, "%" PRIu64, wal);
  uint8_t rec[64], *p = rec;
  memset(p, 0, BATCH_HEADER);
  put_le32(p + 8, 1);
  p += BATCH_HEADER;
  *p++ = 0x05; /* kTypeColumnFamilyValue */
  p = put_varint(p, db->guard_id);
  p = put_varint(p, 3);
  memcpy(p, "wal", 3);
  p = put_varint(p + 3, (uint64_t)n);
  memcpy(p, text, (size_t)n);
  p += n;

  rocksdb_writeoptions_t *wo = rocksdb_writeoptions_create();
  char *err = NULL;
  capi_write(db->db, wo, slice_make(rec, (size_t)(p - rec)), &err);
  if (!err)
    capi_flush_start(db->db, db->guard, &err);
  free(err); /* the next write meets it too */
  rocksdb_writeoptions_destroy(wo);
}

static void wals_look(pglog_db_t *db, uint64_t bytes) {
  uint64_t newest = store_highest_wal(db->store);
  if (newest != db->wal_number) {
    db->wal_number = newest;
    db->wal_base = bytes;
    return;
  }
  if (bytes - db->wal_base <= wals_limit(db))
    return;
  wals_limit_changed(db);
  db->wal_base = bytes;
  atomic_fetch_add_explicit(&db->wals_forced, 1, memory_order_relaxed);
  if (db->guard) {
    guard_flush(db, newest);
  } else {
    char *err = NULL;
    capi_purge_wals(db->db, &err);
    free(err);
  }
}

void wals_written(pglog_db_t *db, size_t n) {
  uint64_t before = atomic_fetch_add_explicit(&db->wal_bytes, n, memory_order_relaxed);
  uint64_t step = atomic_load_explicit(&db->wal_step, memory_order_relaxed);
  if (before / step == (before + n) / step || pthread_mutex_trylock(&db->wal_mutex) != 0)
    return;
  wals_look(db, before + n);
  pthread_mutex_unlock(&db->wal_mutex);
}
