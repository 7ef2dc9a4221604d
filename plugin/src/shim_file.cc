/* SPDX-License-Identifier: Apache-2.0 */
#include "shim_file.h"

namespace pglog {

using rocksdb::IOStatus;

IOStatus Fatal(const pglog_error &err) {
  return IOStatus::IOError(err.text);
}

/* --- DirStore ----------------------------------------------------------------------------------
 */

store *DirStore::Take() {
  std::unique_lock<std::shared_mutex> hold(life_);
  std::lock_guard<std::mutex> l(mu_);
  for (std::atomic<store_wal *> *w : writers_) {
    store_wal *orphan = w->exchange(nullptr);
    if (orphan != nullptr) {
      store_wal_close(orphan);
    }
  }
  writers_.clear();
  store *s = store_;
  store_ = nullptr;
  return s;
}

void DirStore::Add(std::atomic<store_wal *> *w) {
  std::lock_guard<std::mutex> l(mu_);
  writers_.insert(w);
}

void DirStore::Drop(std::atomic<store_wal *> *w) {
  std::lock_guard<std::mutex> l(mu_);
  writers_.erase(w);
  store_wal *mine = w->exchange(nullptr);
  if (mine != nullptr) {
    store_wal_close(mine);
  }
}

/* --- WalWriter ---------------------------------------------------------------------------------
 */

WalWriter::WalWriter(std::shared_ptr<DirStore> ds, std::string path, uint64_t number, store_wal *w,
                     std::unique_ptr<rocksdb::FSWritableFile> f)
    : ForwardFile(std::move(f)),
      ds_(std::move(ds)),
      path_(std::move(path)),
      number_(number),
      w_(w),
      open_(std::make_shared<OpenWal>(file_.get())) {
  ds_->Add(&w_);
  ds_->files.Opened(number_, open_);
}

WalWriter::~WalWriter() {
  if (!closed_) {
    /* The file goes with its destructor; only keep syncs off it. */
    open_->Close([] { return IOStatus::OK(); });
    ds_->files.Closed(number_);
    ds_->Drop(&w_);
  }
}

IOStatus WalWriter::ClosedError(const char *what) const {
  return IOStatus::IOError("pglog: " + std::string(what) + " " + path_ +
                           ": the file or its database is closed");
}

IOStatus WalWriter::Poison(const char *what, const IOStatus &s) {
  pglog_error err;
  error_set(&err, PGLOG_EIO, "%s WAL %s: %s", what, path_.c_str(), s.ToString().c_str());
  DirStore::Use use = ds_->Get();
  if (use.s != nullptr) {
    store_poison(use.s, &err);
  }
  return Fatal(err);
}

IOStatus WalWriter::Refuse(const char *what) {
  return Poison(what, IOStatus::NotSupported("refused, it would change what is written already"));
}

template <typename F>
IOStatus WalWriter::DoAppend(const Slice &d, F append) {
  store_wal *w = w_.load(std::memory_order_relaxed);
  if (w == nullptr) {
    return ClosedError("append to");
  }
  pglog_error err;
  if (store_wal_append_begin(w, d.data(), d.size(), &err) != 0) {
    return Fatal(err);
  }
  IOStatus s;
  {
    std::unique_lock<std::mutex> io = open_->WriteLock();
    s = append();
  }
  if (!s.ok()) {
    error_set(&err, PGLOG_EIO, "append %zu bytes to WAL %s at %llu: %s", d.size(), path_.c_str(),
              static_cast<unsigned long long>(size_), s.ToString().c_str());
    store_wal_append_end(w, false, &err);
    return Fatal(err);
  }
  size_ += d.size();
  return store_wal_append_end(w, true, &err) == 0 ? s : Fatal(err);
}

IOStatus WalWriter::Append(const Slice &d, const Opts &o, Dbg *g) {
  return DoAppend(d, [&] { return file_->Append(d, o, g); });
}

IOStatus WalWriter::Append(const Slice &d, const Opts &o, const Info &i, Dbg *g) {
  return DoAppend(d, [&] { return file_->Append(d, o, i, g); });
}

IOStatus WalWriter::PositionedAppend(const Slice &, uint64_t, const Opts &, Dbg *) {
  return Refuse("positioned append to");
}

IOStatus WalWriter::PositionedAppend(const Slice &, uint64_t, const Opts &, const Info &, Dbg *) {
  return Refuse("positioned append to");
}

IOStatus WalWriter::Truncate(uint64_t size, const Opts &o, Dbg *g) {
  if (size < size_) {
    return Refuse("truncate");
  }
  std::unique_lock<std::mutex> io = open_->WriteLock();
  return size == size_ ? file_->Truncate(size, o, g) : IOStatus::OK();
}

IOStatus WalWriter::Flush(const Opts &o, Dbg *g) {
  IOStatus s;
  {
    std::unique_lock<std::mutex> io = open_->WriteLock();
    s = file_->Flush(o, g);
  }
  return s.ok() ? s : Poison("flush", s);
}

IOStatus WalWriter::RangeSync(uint64_t at, uint64_t n, const Opts &o, Dbg *g) {
  IOStatus s;
  {
    std::unique_lock<std::mutex> io = open_->WriteLock();
    s = file_->RangeSync(at, n, o, g);
  }
  return s.ok() ? s : Poison("range sync of", s);
}

void WalWriter::PrepareWrite(size_t at, size_t n, const Opts &o, Dbg *g) {
  std::unique_lock<std::mutex> io = open_->WriteLock();
  file_->PrepareWrite(at, n, o, g);
}

IOStatus WalWriter::Allocate(uint64_t at, uint64_t n, const Opts &o, Dbg *g) {
  std::unique_lock<std::mutex> io = open_->WriteLock();
  return file_->Allocate(at, n, o, g);
}

IOStatus WalWriter::DoSync(bool full, const Opts &o, Dbg *g) {
  store_wal *w = w_.load(std::memory_order_relaxed);
  if (w == nullptr) {
    return ClosedError("sync");
  }
  pglog_error err;
  uint64_t offset = 0;
  bool needless = false, closed = false;
  if (store_wal_sync_begin(w, &offset, &needless, &err) != 0) {
    return Fatal(err);
  }
  if (needless) {
    return IOStatus::OK();
  }
  IOStatus s = open_->Sync(full, o, g, &closed);
  if (closed) {
    s = IOStatus::IOError("the file is closed");
  }
  if (!s.ok()) {
    error_set(&err, PGLOG_EIO, "sync WAL %s through %llu: %s", path_.c_str(),
              static_cast<unsigned long long>(offset), s.ToString().c_str());
    store_wal_sync_end(w, offset, false, &err);
    return Fatal(err);
  }
  return store_wal_sync_end(w, offset, true, &err) == 0 ? s : Fatal(err);
}

IOStatus WalWriter::Close(const Opts &o, Dbg *g) {
  if (closed_) {
    return IOStatus::OK();
  }
  closed_ = true;
  IOStatus s = open_->Close([&] { return file_->Close(o, g); });
  ds_->files.Closed(number_);
  ds_->Drop(&w_);
  return s.ok() ? s : IOStatus::IOError("close WAL " + path_ + ": " + s.ToString());
}

/* --- the others --------------------------------------------------------------------------------
 */

IOStatus OldWal::Refuse(const char *what) const {
  return IOStatus::NotSupported("pglog: " + std::string(what) + " " + path_ + " (" +
                                std::to_string(size_) +
                                " bytes): refused, a WAL of an earlier life is not changed");
}

IOStatus ManifestWriter::Check() {
  DirStore::Use use = ds_->Get();
  pglog_error err;
  return use.s == nullptr || store_check(use.s, &err) == 0 ? IOStatus::OK() : Fatal(err);
}

}  // namespace pglog
