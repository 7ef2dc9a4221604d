/* SPDX-License-Identifier: Apache-2.0
 *
 * osd_open.c - osd over RocksDB.
 */
#include "kv_rocksdb.h"
#include "osd_internal.h"

int osd_open(struct osd **out, const struct osd_config *c, struct pglog_error *err) {
  struct kv kv;
  int rc = osd_config_check(c, err);
  if (rc)
    return rc;
  if (!c->path || !*c->path)
    return osd_error(err, PGLOG_EINVAL, "osd: path is empty");
  rc = kv_rocksdb_open(&kv, c->path, c->store == OSD_STORE_SPLIT ? KV_SPLIT : KV_ROCKSDB, err);
  return rc ? rc : osd_open_kv(out, c, &kv, false, err);
}
