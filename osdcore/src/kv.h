/* SPDX-License-Identifier: Apache-2.0
 *
 * kv.h - the key-value store under osdcore, behind a small interface: RocksDB with or without the log
 * store, or a test's own.
 *
 * A batch has the bytes of a RocksDB WriteBatch (default column family; Put, Delete, DeleteRange), so
 * that several are joined by copying them one behind the other.
 */
#ifndef OSDCORE_KV_H
#define OSDCORE_KV_H

#include "log_entry.h"

/* Zero-initialise; kv_batch_free() releases. An operation without memory is remembered, and the
 * write of the batch fails. */
struct kv_batch {
  uint8_t *data;
  size_t size, cap;
  bool no_memory;
};
void kv_put(struct kv_batch *b, struct osd_slice key, struct osd_slice value);
void kv_delete(struct kv_batch *b, struct osd_slice key);
void kv_delete_range(struct kv_batch *b, struct osd_slice begin, struct osd_slice end);
/* Append all operations of `other`. */
void kv_append(struct kv_batch *b, const struct kv_batch *other);
uint32_t kv_batch_count(const struct kv_batch *b);
void kv_batch_clear(struct kv_batch *b); /* keeps the memory */
void kv_batch_free(struct kv_batch *b);

/* A store. Any thread may read; one thread at a time writes. */
struct kv {
  void *arg;
  /* Write all of the batch or nothing; with `sync` it is on disk when this returns. */
  int (*write)(void *arg, const struct kv_batch *b, bool sync, struct pglog_error *err);
  /* *value is malloc'ed. PGLOG_ENOTFOUND (err not filled). */
  int (*get)(void *arg, struct osd_slice key, uint8_t **value, size_t *size,
             struct pglog_error *err);
  /* Call `fn` for each key in [begin, end), in order, until it returns other than 0, which is then
   * returned. The slices are valid during the call. */
  int (*scan)(void *arg, struct osd_slice begin, struct osd_slice end,
              int (*fn)(void *fn_arg, struct osd_slice key, struct osd_slice value,
                        struct pglog_error *err),
              void *fn_arg, struct pglog_error *err);
  void (*close)(void *arg);
};

#endif
