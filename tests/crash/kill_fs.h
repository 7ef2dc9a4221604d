// SPDX-License-Identifier: Apache-2.0
//
// kill_fs.h - a file system that kills its process with SIGKILL in the middle of its N-th call that
// changes something. An append is cut short first. Registered as "crash_kill_fs".
#ifndef PGLOG_CRASH_KILL_FS_H
#define PGLOG_CRASH_KILL_FS_H

#include <rocksdb/file_system.h>
#include <rocksdb/utilities/object_registry.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <string>

namespace crash {

#define KILL_FS "crash_kill_fs"

// Calls left until the kill; 0 or less: none.
inline std::atomic<int64_t> calls_left{0};

inline void die() {
  kill(getpid(), SIGKILL);
  for (;;)
    pause();
}
inline bool last_call() {
  return calls_left.load() > 0 && calls_left.fetch_sub(1) == 1;
}
inline void tick() {
  if (last_call())
    die();
}

class KillFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  using Base = rocksdb::FSWritableFileOwnerWrapper;
  using Slice = rocksdb::Slice;
  using IOOptions = rocksdb::IOOptions;
  using Dbg = rocksdb::IODebugContext;
  explicit KillFile(std::unique_ptr<rocksdb::FSWritableFile> &&f) : Base(std::move(f)) {}
  rocksdb::IOStatus Append(const Slice &d, const IOOptions &o, Dbg *dbg) override {
    cut(d, o, dbg);
    return Base::Append(d, o, dbg);
  }
  rocksdb::IOStatus Append(const Slice &d, const IOOptions &o,
                           const rocksdb::DataVerificationInfo &v, Dbg *dbg) override {
    cut(d, o, dbg);
    return Base::Append(d, o, v, dbg);
  }
  rocksdb::IOStatus Sync(const IOOptions &o, Dbg *dbg) override {
    tick();
    return Base::Sync(o, dbg);
  }
  rocksdb::IOStatus Fsync(const IOOptions &o, Dbg *dbg) override {
    tick();
    return Base::Fsync(o, dbg);
  }
  rocksdb::IOStatus Close(const IOOptions &o, Dbg *dbg) override {
    tick();
    return Base::Close(o, dbg);
  }

 private:
  void cut(const Slice &d, const IOOptions &o, Dbg *dbg) {
    if (!last_call())
      return;
    size_t keep = reinterpret_cast<uintptr_t>(d.data()) * 2654435761u % (d.size() + 1);
    Base::Append(Slice(d.data(), keep), o, dbg).PermitUncheckedError();
    die();
  }
};

class KillFileSystem : public rocksdb::FileSystemWrapper {
 public:
  using Base = rocksdb::FileSystemWrapper;
  using IOOptions = rocksdb::IOOptions;
  using Dbg = rocksdb::IODebugContext;
  KillFileSystem() : Base(rocksdb::FileSystem::Default()) {}
  const char *Name() const override { return KILL_FS; }
  rocksdb::IOStatus NewWritableFile(const std::string &f, const rocksdb::FileOptions &o,
                                    std::unique_ptr<rocksdb::FSWritableFile> *r,
                                    Dbg *dbg) override {
    tick();
    rocksdb::IOStatus s = Base::NewWritableFile(f, o, r, dbg);
    if (s.ok())
      r->reset(new KillFile(std::move(*r)));
    return s;
  }
  rocksdb::IOStatus NewRandomRWFile(const std::string &f, const rocksdb::FileOptions &o,
                                    std::unique_ptr<rocksdb::FSRandomRWFile> *r,
                                    Dbg *dbg) override {
    tick();
    return Base::NewRandomRWFile(f, o, r, dbg);
  }
  rocksdb::IOStatus DeleteFile(const std::string &f, const IOOptions &o, Dbg *dbg) override {
    tick();
    return Base::DeleteFile(f, o, dbg);
  }
  rocksdb::IOStatus RenameFile(const std::string &a, const std::string &b, const IOOptions &o,
                               Dbg *dbg) override {
    tick();
    return Base::RenameFile(a, b, o, dbg);
  }
  rocksdb::IOStatus Truncate(const std::string &f, size_t n, const IOOptions &o,
                             Dbg *dbg) override {
    tick();
    return Base::Truncate(f, n, o, dbg);
  }
  rocksdb::IOStatus NewDirectory(const std::string &d, const IOOptions &o,
                                 std::unique_ptr<rocksdb::FSDirectory> *r, Dbg *dbg) override {
    tick();
    return Base::NewDirectory(d, o, r, dbg);
  }
};

inline void register_kill_fs() {
  rocksdb::ObjectLibrary::Default()->AddFactory<rocksdb::FileSystem>(
      KILL_FS, [](const std::string &, std::unique_ptr<rocksdb::FileSystem> *guard, std::string *) {
        guard->reset(new KillFileSystem());
        return guard->get();
      });
}

}  // namespace crash

#endif
