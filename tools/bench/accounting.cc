// SPDX-License-Identifier: Apache-2.0
#include "accounting.h"

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/listener.h>
#include <rocksdb/utilities/object_registry.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace {

using namespace rocksdb;
using Counter = std::atomic<uint64_t>;

Counter wal_bytes, flush_bytes, compaction_bytes, other_bytes, wal_files, wal_syncs, p_flushes;

void Add(Counter *c, uint64_t n) {
  c->fetch_add(n, std::memory_order_relaxed);
}

// Why each SST that is about to be created is made, by path.
class Reasons {
 public:
  void Set(const std::string &path, TableFileCreationReason reason) {
    std::lock_guard<std::mutex> lock(mu_);
    map_[path] = reason;
  }
  Counter *Take(const std::string &path) {
    std::lock_guard<std::mutex> lock(mu_);
    auto it = map_.find(path);
    if (it == map_.end())
      return &other_bytes;
    TableFileCreationReason reason = it->second;
    map_.erase(it);
    switch (reason) {
      case TableFileCreationReason::kFlush:
      case TableFileCreationReason::kRecovery:
        return &flush_bytes;
      case TableFileCreationReason::kCompaction:
        return &compaction_bytes;
      default:
        return &other_bytes;
    }
  }

 private:
  std::mutex mu_;
  std::map<std::string, TableFileCreationReason> map_;
};

Reasons reasons;

// It has no name of its own, so that RocksDB does not write it into the OPTIONS file, where stock
// tools would not know it.
class Listener : public EventListener {
 public:
  void OnTableFileCreationStarted(const TableFileCreationBriefInfo &info) override {
    reasons.Set(info.file_path, info.reason);
  }
  void OnFlushCompleted(DB *, const FlushJobInfo &info) override {
    if (info.cf_name == "P")
      Add(&p_flushes, 1);
  }
};

class CountingFile : public FSWritableFileOwnerWrapper {
 public:
  CountingFile(std::unique_ptr<FSWritableFile> &&target, Counter *bytes, bool wal)
      : FSWritableFileOwnerWrapper(std::move(target)), bytes_(bytes), wal_(wal) {}

  IOStatus Append(const Slice &data, const IOOptions &o, IODebugContext *dbg) override {
    return Count(data, FSWritableFileOwnerWrapper::Append(data, o, dbg));
  }
  IOStatus Append(const Slice &data, const IOOptions &o, const DataVerificationInfo &v,
                  IODebugContext *dbg) override {
    return Count(data, FSWritableFileOwnerWrapper::Append(data, o, v, dbg));
  }
  IOStatus PositionedAppend(const Slice &data, uint64_t offset, const IOOptions &o,
                            IODebugContext *dbg) override {
    return Count(data, FSWritableFileOwnerWrapper::PositionedAppend(data, offset, o, dbg));
  }
  IOStatus PositionedAppend(const Slice &data, uint64_t offset, const IOOptions &o,
                            const DataVerificationInfo &v, IODebugContext *dbg) override {
    return Count(data, FSWritableFileOwnerWrapper::PositionedAppend(data, offset, o, v, dbg));
  }
  IOStatus Sync(const IOOptions &o, IODebugContext *dbg) override {
    Add(&wal_syncs, wal_);
    return FSWritableFileOwnerWrapper::Sync(o, dbg);
  }
  IOStatus Fsync(const IOOptions &o, IODebugContext *dbg) override {
    Add(&wal_syncs, wal_);
    return FSWritableFileOwnerWrapper::Fsync(o, dbg);
  }

 private:
  IOStatus Count(const Slice &data, IOStatus s) {
    if (s.ok())
      Add(bytes_, data.size());
    return s;
  }

  Counter *bytes_;
  bool wal_;
};

bool EndsWith(const std::string &s, const char *suffix) {
  size_t n = strlen(suffix);
  return s.size() >= n && s.compare(s.size() - n, n, suffix) == 0;
}

class CountingFileSystem : public FileSystemWrapper {
 public:
  CountingFileSystem() : FileSystemWrapper(FileSystem::Default()) {}
  const char *Name() const override { return ACCOUNTING_ID; }

  IOStatus NewWritableFile(const std::string &name, const FileOptions &o,
                           std::unique_ptr<FSWritableFile> *r, IODebugContext *dbg) override {
    return Wrap(name, FileSystemWrapper::NewWritableFile(name, o, r, dbg), r, true);
  }
  IOStatus ReopenWritableFile(const std::string &name, const FileOptions &o,
                              std::unique_ptr<FSWritableFile> *r, IODebugContext *dbg) override {
    return Wrap(name, FileSystemWrapper::ReopenWritableFile(name, o, r, dbg), r, false);
  }
  IOStatus ReuseWritableFile(const std::string &name, const std::string &old, const FileOptions &o,
                             std::unique_ptr<FSWritableFile> *r, IODebugContext *dbg) override {
    return Wrap(name, FileSystemWrapper::ReuseWritableFile(name, old, o, r, dbg), r, true);
  }

 private:
  IOStatus Wrap(const std::string &name, IOStatus s, std::unique_ptr<FSWritableFile> *r,
                bool created) {
    if (!s.ok())
      return s;
    bool wal = EndsWith(name, ".log");
    Counter *bytes = &other_bytes;
    if (wal)
      bytes = &wal_bytes;
    else if (EndsWith(name, ".sst"))
      bytes = reasons.Take(name);
    Add(&wal_files, wal && created);
    r->reset(new CountingFile(std::move(*r), bytes, wal));
    return s;
  }
};

}  // namespace

void accounting_register(void) {
  // Both live as long as the process: background threads use them until its end.
  static auto *fs = new std::shared_ptr<FileSystem>(new CountingFileSystem());
  static Env *env = NewCompositeEnv(*fs).release();
  auto &library = *ObjectLibrary::Default();
  library.AddFactory<FileSystem>(
      ACCOUNTING_ID, [](const std::string &, std::unique_ptr<FileSystem> *guard, std::string *) {
        guard->reset(new CountingFileSystem());
        return guard->get();
      });
  library.AddFactory<Env>(ACCOUNTING_ID, [](const std::string &, std::unique_ptr<Env> *,
                                            std::string *) { return env; });
  library.AddFactory<EventListener>(
      ACCOUNTING_ID, [](const std::string &, std::unique_ptr<EventListener> *guard, std::string *) {
        guard->reset(new Listener());
        return guard->get();
      });
}

void accounting_get(struct accounting *a) {
  a->wal_bytes = wal_bytes;
  a->flush_bytes = flush_bytes;
  a->compaction_bytes = compaction_bytes;
  a->other_bytes = other_bytes;
  a->wal_files = wal_files;
  a->wal_syncs = wal_syncs;
  a->p_flushes = p_flushes;
}
