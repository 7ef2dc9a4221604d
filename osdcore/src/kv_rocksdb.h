/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_rocksdb.h - RocksDB as osdcore's store.
 */
#ifndef OSDCORE_KV_ROCKSDB_H
#define OSDCORE_KV_ROCKSDB_H

#include "kv.h"

enum kv_mode {
  KV_SPLIT,   /* pg log keys (the plugin's default rule) in the log store */
  KV_ROCKSDB, /* all keys in RocksDB */
};

/* Open or create the database in directory `path`. Values of 4 KiB and more go to blob files. The
 * errors are those of pglog_db_open() and rocksdb_open(), with code PGLOG_EIO. */
int kv_rocksdb_open(struct kv *out, const char *path, enum kv_mode mode, struct pglog_error *err);

#endif
