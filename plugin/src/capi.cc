// SPDX-License-Identifier: Apache-2.0
#include "capi.h"

#include <rocksdb/comparator.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/snapshot.h>
#include <rocksdb/table.h>
#include <rocksdb/version.h>
#include <rocksdb/wal_filter.h>
#include <rocksdb/write_batch.h>

#include <string>
#include <vector>

#include "refuse.h"

namespace rdb = ROCKSDB_NAMESPACE;

static_assert(ROCKSDB_MAJOR == 7 && ROCKSDB_MINOR == 8,
              "capi.cc and the fs shim are checked against RocksDB 7.8");

namespace {

// The first member of a C struct: the object itself, or a pointer to it.
template <typename T, typename C>
T &object(C *c) {
  return *reinterpret_cast<T *>(c);
}
template <typename T, typename C>
const T &object(const C *c) {
  return *reinterpret_cast<const T *>(c);
}

rdb::DB *base(rocksdb_t *db) {
  return object<rdb::DB *>(db);
}
rdb::ColumnFamilyHandle *family(rdb::DB *db, const rocksdb_column_family_handle_t *cf) {
  return cf ? object<rdb::ColumnFamilyHandle *>(cf) : db->DefaultColumnFamily();
}
const rdb::Options &options(const rocksdb_options_t *o) {
  return object<rdb::Options>(o);
}
const rdb::ReadOptions &read_options(const rocksdb_readoptions_t *ro) {
  return object<rdb::ReadOptions>(ro);
}

void save(const rdb::Status &s, char **errptr) {
  if (s.ok())
    return;
  free(*errptr);
  *errptr = strdup(s.ToString().c_str());
}

int differs(struct pglog_error *err, const char *what) {
  return error_set(
      err, PGLOG_ENOTSUP,
      "librocksdb %s: %s of its C API is not laid out as this library expects (built for "
      "%d.%d)",
      rdb::GetRocksVersionAsString().c_str(), what, ROCKSDB_MAJOR, ROCKSDB_MINOR);
}

bool options_fit() {
  rocksdb_options_t *o = rocksdb_options_create();
  rocksdb_options_set_write_buffer_size(o, 123456789);
  rocksdb_options_set_max_total_wal_size(o, 987654321);
  rocksdb_options_set_manual_wal_flush(o, 1);
  rocksdb_options_set_wal_recovery_mode(o, 3);
  rocksdb_options_set_wal_dir(o, "self/check");
  const rdb::Options &r = options(o);
  bool ok = r.write_buffer_size == 123456789 && r.max_total_wal_size == 987654321 &&
            r.manual_wal_flush && r.wal_dir == "self/check" &&
            r.wal_recovery_mode == rdb::WALRecoveryMode::kSkipAnyCorruptedRecords;
  rocksdb_options_destroy(o);
  return ok;
}

bool read_options_fit() {
  rocksdb_readoptions_t *ro = rocksdb_readoptions_create();
  rocksdb_readoptions_set_iterate_upper_bound(ro, "upper", 5);
  rocksdb_readoptions_set_iterate_lower_bound(ro, "lower", 5);
  rocksdb_readoptions_set_tailing(ro, 1);
  const rdb::ReadOptions &r = read_options(ro);
  bool ok = r.tailing && r.snapshot == nullptr && r.iterate_lower_bound && r.iterate_upper_bound &&
            *r.iterate_upper_bound == "upper" && *r.iterate_lower_bound == "lower";
  rocksdb_readoptions_destroy(ro);
  return ok;
}

bool write_objects_fit() {
  rocksdb_writeoptions_t *wo = rocksdb_writeoptions_create();
  rocksdb_writeoptions_set_sync(wo, 1);
  rocksdb_writeoptions_disable_WAL(wo, 0);
  const rdb::WriteOptions &w = object<rdb::WriteOptions>(wo);
  bool ok = w.sync && !w.disableWAL;
  rocksdb_writeoptions_destroy(wo);
  rocksdb_writebatch_t *b = rocksdb_writebatch_create();
  rocksdb_writebatch_put(b, "k", 1, "v", 1);
  size_t n;
  const char *data = rocksdb_writebatch_data(b, &n);
  const rdb::WriteBatch &batch = object<rdb::WriteBatch>(b);
  ok = ok && batch.Data().data() == data && batch.Data().size() == n && batch.Count() == 1;
  rocksdb_writebatch_destroy(b);
  return ok;
}

}  // namespace

int capi_self_check(struct pglog_error *err) {
  std::string want = std::to_string(ROCKSDB_MAJOR) + "." + std::to_string(ROCKSDB_MINOR) + ".";
  std::string have = rdb::GetRocksVersionAsString();
  if (have.compare(0, want.size(), want) != 0)
    return error_set(err, PGLOG_ENOTSUP, "librocksdb is version %s, this library is built for %sx",
                     have.c_str(), want.c_str());
  if (!options_fit())
    return differs(err, "rocksdb_options_t");
  if (!read_options_fit())
    return differs(err, "rocksdb_readoptions_t");
  if (!write_objects_fit())
    return differs(err, "rocksdb_writeoptions_t or rocksdb_writebatch_t");
  return 0;
}

int capi_db_check(rocksdb_t *db, const char *name, struct pglog_error *err) {
  return base(db)->GetName() == name ? 0 : differs(err, "rocksdb_t");
}

/* ---------------------------------------------------------------------------------------------- */

int capi_options_check_db(const rocksdb_options_t *o, struct pglog_error *err) {
  const rdb::Options &r = options(o);
  std::string why;
  if (pglog::Refused(pglog::DbOptionsOf(r), &why))
    return error_set(err, PGLOG_ENOTSUP, "%s", why.c_str());
  // Not in an OPTIONS file, or of no matter to other doors.
  if (r.best_efforts_recovery)
    return error_set(
        err, PGLOG_ENOTSUP,
        "RocksDB option best_efforts_recovery=true is refused: it opens without reading "
        "the WAL");
  if (r.wal_filter)
    return error_set(err, PGLOG_ENOTSUP,
                     "RocksDB option wal_filter=%s is refused: a filtered recovery would part data "
                     "and pg log",
                     r.wal_filter->Name());
  return 0;
}

int capi_options_check_cf(const rocksdb_options_t *o, const char *cf, struct pglog_error *err) {
  if (options(o).inplace_update_support)
    return error_set(err, PGLOG_ENOTSUP,
                     "RocksDB option inplace_update_support=true of column family %s is refused: "
                     "consistent reads need snapshots",
                     cf);
  return 0;
}

bool capi_options_bytewise(const rocksdb_options_t *o, const char **name) {
  const rdb::Comparator *c = options(o).comparator;
  *name = c ? c->Name() : "none";
  return c == rdb::BytewiseComparator();
}

unsigned capi_options_family(const rocksdb_options_t *o, const void **comparator) {
  const rdb::Options &r = options(o);
  const char *name;
  *comparator = capi_options_bytewise(o, &name) ? nullptr : r.comparator;
  unsigned takes = 0;
  if (r.merge_operator)
    takes |= CAPI_MERGE;
  if (r.table_factory->IsDeleteRangeSupported())
    takes |= CAPI_DELETE_RANGE;
  return takes;
}

int capi_compare(const void *comparator, struct slice a, struct slice b) {
  if (!comparator)
    return slice_cmp(a, b);
  return static_cast<const rdb::Comparator *>(comparator)
      ->Compare(rdb::Slice(reinterpret_cast<const char *>(a.data), a.size),
                rdb::Slice(reinterpret_cast<const char *>(b.data), b.size));
}

void *capi_options_env(const rocksdb_options_t *o) {
  return options(o).env;
}
void capi_options_set_env(rocksdb_options_t *o, void *env) {
  object<rdb::Options>(o).env = static_cast<rdb::Env *>(env);
}
void capi_options_set_comparator(rocksdb_options_t *o, const void *comparator) {
  object<rdb::Options>(o).comparator = static_cast<const rdb::Comparator *>(comparator);
}
const char *capi_options_wal_dir(const rocksdb_options_t *o) {
  return options(o).wal_dir.c_str();
}
bool capi_options_atomic_flush(const rocksdb_options_t *o) {
  return options(o).atomic_flush;
}
uint64_t capi_options_memtable_bytes(const rocksdb_options_t *o) {
  const rdb::Options &r = options(o);
  return (uint64_t)r.write_buffer_size * (uint64_t)r.max_write_buffer_number;
}

int capi_db_exists(void *env, const char *name, struct pglog_error *err) {
  std::string current = std::string(name) + "/CURRENT";
  rdb::Status s = static_cast<rdb::Env *>(env)->FileExists(current);
  if (s.ok())
    return 1;
  if (s.IsNotFound() || s.IsPathNotFound())
    return 0;
  return error_set(err, PGLOG_EIO, "%s: %s", current.c_str(), s.ToString().c_str());
}

/* ---------------------------------------------------------------------------------------------- */

void capi_write(rocksdb_t *db, const rocksdb_writeoptions_t *wo, struct slice batch,
                char **errptr) {
  rdb::WriteBatch b(std::string(reinterpret_cast<const char *>(batch.data), batch.size));
  save(base(db)->Write(object<rdb::WriteOptions>(wo), &b), errptr);
}

bool capi_batch_has_wal_end(const rocksdb_writebatch_t *b) {
  return !object<rdb::WriteBatch>(b).GetWalTerminationPoint().is_cleared();
}

namespace {

constexpr size_t kScratchKeep = 1 << 20;

struct Scratch {
  struct capi_scratch s = {};
  std::string rep;  // the bytes of s.out; as long as its capacity
  Scratch() { s.out.grow = Grow; }
  ~Scratch() { blob_builder_free(&s.blob); }

  void Give() {
    s.out.data = reinterpret_cast<uint8_t *>(&rep[0]);
    s.out.cap = rep.size();
  }
  static int Grow(struct buf *b, size_t cap);
};

Scratch &scratch() {
  static thread_local Scratch mine;
  return mine;
}

int Scratch::Grow(struct buf *, size_t cap) {
  Scratch &me = scratch();
  try {
    me.rep.resize(cap);
  } catch (const std::exception &) {
    return PGLOG_ENOMEM;
  }
  me.Give();
  return 0;
}

}  // namespace

struct capi_scratch *capi_scratch(void) {
  return &scratch().s;
}

void capi_scratch_write(rocksdb_t *db, const rocksdb_writeoptions_t *wo, char **errptr) {
  Scratch &me = scratch();
  me.rep.resize(me.s.out.size);
  // An eighth of the time of putting the records one by one. The string goes into the batch and
  // comes back out of it, for the thread's next write.
  rdb::WriteBatch b(std::move(me.rep));
  save(base(db)->Write(object<rdb::WriteOptions>(wo), &b), errptr);
  me.rep = std::move(const_cast<std::string &>(b.Data()));
  me.s.out.size = 0;
  me.Give();
}

void capi_scratch_trim(void) {
  Scratch &me = scratch();
  if (me.s.blob.out.cap > kScratchKeep)
    blob_builder_free(&me.s.blob);
  if (me.rep.capacity() > kScratchKeep) {
    std::string().swap(me.rep);
    me.Give();
  }
}

void capi_flush_all(rocksdb_t *db, char **errptr) {
  // The only public call that flushes all column families without having their handles.
  std::vector<std::string> files;
  uint64_t manifest_size;
  save(base(db)->GetLiveFiles(files, &manifest_size, true), errptr);
}

void capi_flush_start(rocksdb_t *db, rocksdb_column_family_handle_t *cf, char **errptr) {
  rdb::FlushOptions fo;
  fo.wait = false;
  fo.allow_write_stall = true;
  save(base(db)->Flush(fo, family(base(db), cf)), errptr);
}

void capi_purge_wals(rocksdb_t *db, char **errptr) {
  // SetDBOptions() looks at the WALs, but only when an option changes: one that means nothing here.
  size_t n = base(db)->GetDBOptions().stats_history_buffer_size;
  save(base(db)->SetDBOptions({{"stats_history_buffer_size", std::to_string(n ^ 1)}}), errptr);
}

uint64_t capi_max_total_wal_size(rocksdb_t *db) {
  return base(db)->GetDBOptions().max_total_wal_size;
}

/* ---------------------------------------------------------------------------------------------- */

bool capi_ro_has_snapshot(const rocksdb_readoptions_t *ro) {
  return read_options(ro).snapshot != nullptr;
}

static struct slice bound(const rdb::Slice *s) {
  return s ? slice_make(s->data(), s->size()) : slice_make(nullptr, 0);
}
struct slice capi_ro_lower(const rocksdb_readoptions_t *ro) {
  return bound(read_options(ro).iterate_lower_bound);
}
struct slice capi_ro_upper(const rocksdb_readoptions_t *ro) {
  return bound(read_options(ro).iterate_upper_bound);
}

bool capi_snapshot_sequence(const rocksdb_snapshot_t *snapshot, uint64_t *sequence) {
  const rdb::Snapshot *s = object<const rdb::Snapshot *>(snapshot);
  if (!s)
    return false;
  *sequence = s->GetSequenceNumber();
  return true;
}

void capi_multi_get(rocksdb_t *db, const rocksdb_readoptions_t *ro,
                    const rocksdb_snapshot_t *snapshot,
                    const rocksdb_column_family_handle_t *const *cfs, size_t n,
                    const char *const *keys, const size_t *key_sizes, char **values,
                    size_t *value_sizes, char **errs) {
  rdb::ReadOptions r = read_options(ro);
  if (snapshot)
    r.snapshot = object<const rdb::Snapshot *>(snapshot);
  std::vector<rdb::ColumnFamilyHandle *> families(n);
  std::vector<rdb::Slice> slices(n);
  for (size_t i = 0; i < n; i++) {
    families[i] = family(base(db), cfs ? cfs[i] : nullptr);
    slices[i] = rdb::Slice(keys[i], key_sizes[i]);
  }
  std::vector<std::string> out(n);
  std::vector<rdb::Status> st = base(db)->MultiGet(r, families, slices, &out);
  for (size_t i = 0; i < n; i++) {
    values[i] = nullptr;
    value_sizes[i] = 0;
    errs[i] = nullptr;
    if (st[i].ok()) {
      values[i] = static_cast<char *>(malloc(out[i].size() ? out[i].size() : 1));
      memcpy(values[i], out[i].data(), out[i].size());
      value_sizes[i] = out[i].size();
    } else if (!st[i].IsNotFound()) {
      save(st[i], &errs[i]);
    }
  }
}

namespace {
struct bounded_iterator {
  rdb::Iterator *rep = nullptr;  // first: this is what a rocksdb_iterator_t has
  std::string lower, upper;
  rdb::Slice lower_slice, upper_slice;
};
}  // namespace

rocksdb_iterator_t *capi_iter_create(rocksdb_t *db, const rocksdb_readoptions_t *ro,
                                     const rocksdb_snapshot_t *snapshot, bool total_order,
                                     rocksdb_column_family_handle_t *cf) {
  auto *it = new bounded_iterator;
  rdb::ReadOptions r = read_options(ro);
  if (snapshot)
    r.snapshot = object<const rdb::Snapshot *>(snapshot);
  if (total_order)
    r.total_order_seek = true;
  if (r.iterate_lower_bound) {
    it->lower = r.iterate_lower_bound->ToString();
    it->lower_slice = it->lower;
    r.iterate_lower_bound = &it->lower_slice;
  }
  if (r.iterate_upper_bound) {
    it->upper = r.iterate_upper_bound->ToString();
    it->upper_slice = it->upper;
    r.iterate_upper_bound = &it->upper_slice;
  }
  it->rep = base(db)->NewIterator(r, family(base(db), cf));
  return reinterpret_cast<rocksdb_iterator_t *>(it);
}

void capi_iter_destroy(rocksdb_iterator_t *c) {
  if (!c)
    return;
  auto *it = reinterpret_cast<bounded_iterator *>(c);
  delete it->rep;
  delete it;
}
