/* SPDX-License-Identifier: Apache-2.0
 *
 * shim_file.h - one database directory whose LOCK is held, and the writable files in it that go
 * through its store: WALs, old WALs reopened at recovery, MANIFESTs.
 */
#ifndef PGLOG_SHIM_FILE_H
#define PGLOG_SHIM_FILE_H

#include <atomic>
#include <memory>
#include <set>
#include <string>

#include "wal_files.h"

namespace pglog {

/* A WAL error as RocksDB gets it: an IOError without sub-code, scope or retry flag, so that it is
 * fatal and neither RocksDB nor DB::Resume() goes on by itself. */
rocksdb::IOStatus Fatal(const pglog_error &err);

/* A directory with an open store. Holders of a shared_ptr may outlive the store. */
class DirStore {
 public:
  DirStore(std::shared_ptr<rocksdb::FileSystem> base, std::string dir_, std::string wal_dir,
           std::string arena, rocksdb::FileLock *lock_)
      : files(std::move(base), std::move(wal_dir), std::move(arena)),
        dir(std::move(dir_)),
        lock(lock_) {}

  /* The store, kept from closing as long as this lives; s is null after it has closed. */
  struct Use {
    std::shared_lock<std::shared_mutex> hold;
    store *s;
  };
  Use Get() { return {std::shared_lock<std::shared_mutex>(life_), store_}; }
  store *Peek() { return store_; }
  void Set(store *s) { store_ = s; }
  /* Take the store out to close it. WALs still open for writing are cut off from it. */
  store *Take();

  /* A WAL opened for writing; *w becomes null when the store or the file closes. */
  void Add(std::atomic<store_wal *> *w);
  void Drop(std::atomic<store_wal *> *w);

  WalFiles files;
  const std::string dir; /* absolute */
  rocksdb::FileLock *const lock;
  const pglog_io *io = nullptr;       /* claimed for this store */
  std::atomic<bool> destroyed{false}; /* CURRENT is gone: WALs go for real */

 private:
  std::shared_mutex life_;
  store *store_ = nullptr;
  std::mutex mu_;
  std::set<std::atomic<store_wal *> *> writers_;
};

/* Forwards every method of FSWritableFile (FSWritableFileWrapper leaves some out). */
class ForwardFile : public rocksdb::FSWritableFile {
 public:
  using Opts = rocksdb::IOOptions;
  using Dbg = rocksdb::IODebugContext;
  using Info = rocksdb::DataVerificationInfo;
  using IOStatus = rocksdb::IOStatus;
  using Slice = rocksdb::Slice;

  explicit ForwardFile(std::unique_ptr<rocksdb::FSWritableFile> f) : file_(std::move(f)) {}

  IOStatus Append(const Slice &d, const Opts &o, Dbg *g) override { return file_->Append(d, o, g); }
  IOStatus Append(const Slice &d, const Opts &o, const Info &i, Dbg *g) override {
    return file_->Append(d, o, i, g);
  }
  IOStatus PositionedAppend(const Slice &d, uint64_t at, const Opts &o, Dbg *g) override {
    return file_->PositionedAppend(d, at, o, g);
  }
  IOStatus PositionedAppend(const Slice &d, uint64_t at, const Opts &o, const Info &i,
                            Dbg *g) override {
    return file_->PositionedAppend(d, at, o, i, g);
  }
  IOStatus Truncate(uint64_t size, const Opts &o, Dbg *g) override {
    return file_->Truncate(size, o, g);
  }
  IOStatus Close(const Opts &o, Dbg *g) override { return file_->Close(o, g); }
  IOStatus Flush(const Opts &o, Dbg *g) override { return file_->Flush(o, g); }
  IOStatus Sync(const Opts &o, Dbg *g) override { return file_->Sync(o, g); }
  IOStatus Fsync(const Opts &o, Dbg *g) override { return file_->Fsync(o, g); }
  bool IsSyncThreadSafe() const override { return file_->IsSyncThreadSafe(); }
  bool use_direct_io() const override { return file_->use_direct_io(); }
  size_t GetRequiredBufferAlignment() const override { return file_->GetRequiredBufferAlignment(); }
  void SetWriteLifeTimeHint(rocksdb::Env::WriteLifeTimeHint h) override {
    file_->SetWriteLifeTimeHint(h);
  }
  void SetIOPriority(rocksdb::Env::IOPriority p) override { file_->SetIOPriority(p); }
  rocksdb::Env::IOPriority GetIOPriority() override { return file_->GetIOPriority(); }
  rocksdb::Env::WriteLifeTimeHint GetWriteLifeTimeHint() override {
    return file_->GetWriteLifeTimeHint();
  }
  uint64_t GetFileSize(const Opts &o, Dbg *g) override { return file_->GetFileSize(o, g); }
  void SetPreallocationBlockSize(size_t n) override { file_->SetPreallocationBlockSize(n); }
  void GetPreallocationStatus(size_t *block, size_t *last) override {
    file_->GetPreallocationStatus(block, last);
  }
  size_t GetUniqueId(char *id, size_t n) const override { return file_->GetUniqueId(id, n); }
  IOStatus InvalidateCache(size_t at, size_t n) override { return file_->InvalidateCache(at, n); }
  IOStatus RangeSync(uint64_t at, uint64_t n, const Opts &o, Dbg *g) override {
    return file_->RangeSync(at, n, o, g);
  }
  void PrepareWrite(size_t at, size_t n, const Opts &o, Dbg *g) override {
    file_->PrepareWrite(at, n, o, g);
  }
  IOStatus Allocate(uint64_t at, uint64_t n, const Opts &o, Dbg *g) override {
    return file_->Allocate(at, n, o, g);
  }

 protected:
  std::unique_ptr<rocksdb::FSWritableFile> file_;
};

/* The WAL that RocksDB writes. */
class WalWriter : public ForwardFile {
 public:
  /* Takes over `w`. */
  WalWriter(std::shared_ptr<DirStore> ds, std::string path, uint64_t number, store_wal *w,
            std::unique_ptr<rocksdb::FSWritableFile> f);
  ~WalWriter() override;

  IOStatus Append(const Slice &d, const Opts &o, Dbg *g) override;
  IOStatus Append(const Slice &d, const Opts &o, const Info &i, Dbg *g) override;
  IOStatus PositionedAppend(const Slice &, uint64_t, const Opts &, Dbg *) override;
  IOStatus PositionedAppend(const Slice &, uint64_t, const Opts &, const Info &, Dbg *) override;
  IOStatus Truncate(uint64_t size, const Opts &, Dbg *) override;
  IOStatus Close(const Opts &o, Dbg *g) override;
  IOStatus Flush(const Opts &o, Dbg *g) override;
  IOStatus Sync(const Opts &o, Dbg *g) override { return DoSync(false, o, g); }
  IOStatus Fsync(const Opts &o, Dbg *g) override { return DoSync(true, o, g); }
  IOStatus RangeSync(uint64_t at, uint64_t n, const Opts &o, Dbg *g) override;
  void PrepareWrite(size_t at, size_t n, const Opts &o, Dbg *g) override;
  IOStatus Allocate(uint64_t at, uint64_t n, const Opts &o, Dbg *g) override;

 private:
  template <typename F>
  IOStatus DoAppend(const Slice &d, F append);
  IOStatus DoSync(bool full, const Opts &o, Dbg *g);
  /* An error of the file itself: stops the store. Returns it as RocksDB gets it. */
  IOStatus Poison(const char *what, const IOStatus &s);
  IOStatus ClosedError(const char *what) const;
  IOStatus Refuse(const char *what);

  const std::shared_ptr<DirStore> ds_;
  const std::string path_;
  const uint64_t number_;
  std::atomic<store_wal *> w_;
  const std::shared_ptr<OpenWal> open_;
  uint64_t size_ = 0; /* bytes appended */
  bool closed_ = false;
};

/* A WAL of an earlier life, reopened: RocksDB drops its preallocated space by a truncate to its
 * size. */
class OldWal : public ForwardFile {
 public:
  OldWal(std::string path, uint64_t size, std::unique_ptr<rocksdb::FSWritableFile> f)
      : ForwardFile(std::move(f)), path_(std::move(path)), size_(size) {}
  IOStatus Append(const Slice &, const Opts &, Dbg *) override { return Refuse("append to"); }
  IOStatus Append(const Slice &, const Opts &, const Info &, Dbg *) override {
    return Refuse("append to");
  }
  IOStatus PositionedAppend(const Slice &, uint64_t, const Opts &, Dbg *) override {
    return Refuse("append to");
  }
  IOStatus PositionedAppend(const Slice &, uint64_t, const Opts &, const Info &, Dbg *) override {
    return Refuse("append to");
  }
  IOStatus Truncate(uint64_t size, const Opts &o, Dbg *g) override {
    return size == size_ ? file_->Truncate(size, o, g) : Refuse("truncate");
  }

 private:
  IOStatus Refuse(const char *what) const;
  const std::string path_;
  const uint64_t size_;
};

/* The MANIFEST: nothing is written to it once the store has failed. */
class ManifestWriter : public ForwardFile {
 public:
  ManifestWriter(std::shared_ptr<DirStore> ds, std::unique_ptr<rocksdb::FSWritableFile> f)
      : ForwardFile(std::move(f)), ds_(std::move(ds)) {}
  IOStatus Append(const Slice &d, const Opts &o, Dbg *g) override {
    IOStatus s = Check();
    return s.ok() ? file_->Append(d, o, g) : s;
  }
  IOStatus Append(const Slice &d, const Opts &o, const Info &i, Dbg *g) override {
    IOStatus s = Check();
    return s.ok() ? file_->Append(d, o, i, g) : s;
  }
  IOStatus PositionedAppend(const Slice &d, uint64_t at, const Opts &o, Dbg *g) override {
    IOStatus s = Check();
    return s.ok() ? file_->PositionedAppend(d, at, o, g) : s;
  }
  IOStatus PositionedAppend(const Slice &d, uint64_t at, const Opts &o, const Info &i,
                            Dbg *g) override {
    IOStatus s = Check();
    return s.ok() ? file_->PositionedAppend(d, at, o, i, g) : s;
  }
  IOStatus Sync(const Opts &o, Dbg *g) override {
    IOStatus s = Check();
    return s.ok() ? file_->Sync(o, g) : s;
  }
  IOStatus Fsync(const Opts &o, Dbg *g) override {
    IOStatus s = Check();
    return s.ok() ? file_->Fsync(o, g) : s;
  }

 private:
  IOStatus Check();
  const std::shared_ptr<DirStore> ds_;
};

}  // namespace pglog

#endif
