/* SPDX-License-Identifier: Apache-2.0 */
#include "wal_files.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>

#include "wal.h"

namespace pglog {

using rocksdb::FileOptions;
using rocksdb::FSDirectory;
using rocksdb::FSRandomAccessFile;
using rocksdb::FSRandomRWFile;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

namespace {

const size_t kChunk = 1 << 20;
const size_t kLines = 64;

/* Fill err from a failed file call. */
int Fail(pglog_error *err, const char *what, const std::string &path, const IOStatus &s) {
  int code = s.IsNotFound() || s.IsPathNotFound() ? PGLOG_ENOTFOUND
             : s.IsNotSupported()                 ? PGLOG_ENOTSUP
                                                  : PGLOG_EIO;
  return error_set(err, code, "%s %s: %s", what, path.c_str(), s.ToString().c_str());
}

}  // namespace

std::string StripSlashes(const std::string &dir) {
  size_t n = dir.size();
  while (n > 1 && dir[n - 1] == '/') {
    n--;
  }
  return dir.substr(0, n);
}

std::string DirOf(const std::string &path) {
  size_t slash = path.rfind('/');
  if (slash == std::string::npos) {
    return ".";
  }
  return slash == 0 ? "/" : StripSlashes(path.substr(0, slash));
}

std::string BaseOf(const std::string &path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

/* --- OpenWal -----------------------------------------------------------------------------------
 */

std::unique_lock<std::mutex> OpenWal::WriteLock() {
  return sync_safe_ ? std::unique_lock<std::mutex>() : std::unique_lock<std::mutex>(io_);
}

IOStatus OpenWal::Sync(bool full, const IOOptions &o, IODebugContext *dbg, bool *closed) {
  std::shared_lock<std::shared_mutex> life(life_);
  *closed = file_ == nullptr;
  if (*closed) {
    return IOStatus::OK();
  }
  std::unique_lock<std::mutex> io = WriteLock();
  return full ? file_->Fsync(o, dbg) : file_->Sync(o, dbg);
}

IOStatus OpenWal::Close(const std::function<IOStatus()> &f) {
  std::unique_lock<std::shared_mutex> life(life_);
  if (file_ == nullptr) {
    return IOStatus::OK();
  }
  file_ = nullptr;
  return f();
}

/* --- WalFiles ----------------------------------------------------------------------------------
 */

WalFiles::WalFiles(std::shared_ptr<rocksdb::FileSystem> base, std::string wal_dir,
                   std::string arena)
    : base_(std::move(base)),
      wal_dir_(std::move(wal_dir)),
      archive_dir_(wal_dir_ + "/archive"),
      arena_(std::move(arena)) {}

store_wal_ops WalFiles::Ops() {
  store_wal_ops o;
  o.arg = this;
  o.list = [](void *a, store_wal_file **f, size_t *n, pglog_error *e) {
    return Self(a)->List(f, n, e);
  };
  o.read = [](void *a, uint64_t wal, uint64_t off, void *buf, size_t len, size_t *got,
              pglog_error *e) { return Self(a)->Read(wal, off, buf, len, got, e); };
  o.rewrite = [](void *a, uint64_t wal, uint64_t from, pglog_error *e) {
    return Self(a)->Rewrite(wal, from, e);
  };
  o.cut = [](void *a, uint64_t wal, uint64_t at, pglog_error *e) {
    return Self(a)->Cut(wal, at, e);
  };
  o.sync = [](void *a, uint64_t wal, pglog_error *e) { return Self(a)->Sync(wal, e); };
  o.sync_dir = [](void *a, pglog_error *e) { return Self(a)->SyncDirs(e); };
  o.remove = [](void *a, uint64_t wal, pglog_error *e) { return Self(a)->Remove(wal, e); };
  o.sync_arena_dir = [](void *a, pglog_error *e) { return Self(a)->SyncArenaDir(e); };
  o.log = [](void *a, int level, const char *text) { Self(a)->Log(level, text); };
  return o;
}

void WalFiles::Opened(uint64_t number, std::shared_ptr<OpenWal> w) {
  std::lock_guard<std::mutex> l(mu_);
  open_[number] = std::move(w);
}

void WalFiles::Closed(uint64_t number) {
  std::lock_guard<std::mutex> l(mu_);
  open_.erase(number);
}

bool WalFiles::Hide(uint64_t number) {
  std::lock_guard<std::mutex> l(mu_);
  return hidden_.insert(number).second;
}

bool WalFiles::Hidden(uint64_t number) const {
  std::lock_guard<std::mutex> l(mu_);
  return hidden_.count(number) != 0;
}

std::set<uint64_t> WalFiles::AllHidden() const {
  std::lock_guard<std::mutex> l(mu_);
  return hidden_;
}

IOStatus WalFiles::Archive(uint64_t number, const std::string &from, const std::string &to,
                           const IOOptions &o, IODebugContext *dbg) {
  /* Under the lock: a sync by number must not look for the file in the wrong place. */
  std::lock_guard<std::mutex> l(mu_);
  IOStatus s = base_->RenameFile(from, to, o, dbg);
  if (s.ok()) {
    archived_.insert(number);
    archive_used_ = true;
  }
  return s;
}

void WalFiles::RemoveHidden() {
  for (uint64_t n : AllHidden()) {
    pglog_error err;
    if (Remove(n, &err) != 0) {
      Log(1, err.text);
    }
  }
}

std::string WalFiles::PathLocked(uint64_t wal) const {
  char name[32];
  snprintf(name, sizeof(name), "/%06llu.log", static_cast<unsigned long long>(wal));
  return (archived_.count(wal) ? archive_dir_ : wal_dir_) + name;
}

std::string WalFiles::Path(uint64_t wal) const {
  std::lock_guard<std::mutex> l(mu_);
  return PathLocked(wal);
}

int WalFiles::ListDir(const std::string &dir, bool archive, std::map<uint64_t, uint64_t> *out,
                      pglog_error *err) {
  std::vector<std::string> names;
  IOOptions o;
  IOStatus s = base_->GetChildren(dir, o, &names, nullptr);
  if (s.IsNotFound() || s.IsPathNotFound()) {
    return 0;
  }
  if (!s.ok()) {
    return Fail(err, "list WAL directory", dir, s);
  }
  for (const std::string &name : names) {
    uint64_t number, size;
    if (!wal_file_number(name.c_str(), &number)) {
      continue;
    }
    s = base_->GetFileSize(dir + "/" + name, o, &size, nullptr);
    if (!s.ok()) {
      return Fail(err, "size of WAL", dir + "/" + name, s);
    }
    if (out->count(number)) {
      return error_set(err, PGLOG_ECORRUPT, "WAL %llu is both in %s and in %s",
                       static_cast<unsigned long long>(number), wal_dir_.c_str(),
                       archive_dir_.c_str());
    }
    (*out)[number] = size;
    if (archive) {
      std::lock_guard<std::mutex> l(mu_);
      archived_.insert(number);
    }
  }
  return 0;
}

int WalFiles::List(store_wal_file **files, size_t *n, pglog_error *err) {
  std::map<uint64_t, uint64_t> all;
  int rc = ListDir(wal_dir_, false, &all, err);
  if (rc == 0) {
    rc = ListDir(archive_dir_, true, &all, err);
  }
  if (rc != 0) {
    return rc;
  }
  *files = static_cast<store_wal_file *>(malloc((all.size() + 1) * sizeof(**files)));
  if (*files == nullptr) {
    return error_set(err, PGLOG_ENOMEM, "list of %zu WAL files: out of memory", all.size());
  }
  *n = 0;
  std::lock_guard<std::mutex> l(mu_);
  for (const auto &f : all) {
    (*files)[(*n)++] = {f.first, f.second, archived_.count(f.first) != 0};
  }
  return 0;
}

int WalFiles::Read(uint64_t wal, uint64_t off, void *buf, size_t len, size_t *got,
                   pglog_error *err) {
  std::string path = Path(wal);
  std::unique_ptr<FSRandomAccessFile> f;
  IOStatus s = base_->NewRandomAccessFile(path, FileOptions(), &f, nullptr);
  *got = 0;
  while (s.ok() && *got < len) {
    char *to = static_cast<char *>(buf) + *got;
    Slice part;
    s = f->Read(off + *got, len - *got, IOOptions(), &part, to, nullptr);
    if (!s.ok() || part.empty()) {
      break;
    }
    if (part.data() != to) {
      memcpy(to, part.data(), part.size());
    }
    *got += part.size();
  }
  return s.ok() ? 0 : Fail(err, "read WAL", path, s);
}

int WalFiles::OpenRw(const std::string &path, std::unique_ptr<FSRandomRWFile> *f,
                     pglog_error *err) {
  /* NewRandomRWFile would create a missing file. */
  IOStatus s = base_->FileExists(path, IOOptions(), nullptr);
  if (s.ok()) {
    s = base_->NewRandomRWFile(path, FileOptions(), f, nullptr);
  }
  if (s.IsNotSupported()) {
    return error_set(err, PGLOG_ENOTSUP,
                     "base file system %s cannot open %s for reading and writing, which the log "
                     "store needs (NewRandomRWFile)",
                     base_->Name(), path.c_str());
  }
  return s.ok() ? 0 : Fail(err, "open WAL", path, s);
}

int WalFiles::Rewrite(uint64_t wal, uint64_t from, pglog_error *err) {
  std::string path = Path(wal);
  std::unique_ptr<FSRandomRWFile> f;
  int rc = OpenRw(path, &f, err);
  if (rc != 0) {
    return rc;
  }
  std::vector<char> buf(kChunk);
  IOOptions o;
  IOStatus s;
  for (uint64_t at = from;;) {
    Slice part;
    s = f->Read(at, kChunk, o, &part, buf.data(), nullptr);
    if (!s.ok() || part.empty()) {
      break;
    }
    s = f->Write(at, part, o, nullptr);
    if (!s.ok()) {
      break;
    }
    at += part.size();
  }
  if (s.ok()) {
    s = f->Fsync(o, nullptr);
  }
  if (s.ok()) {
    s = f->Close(o, nullptr);
  }
  return s.ok() ? 0 : Fail(err, "rewrite WAL", path, s);
}

/* Copy [at, end) of `path` to a new file beside it. */
int WalFiles::SaveTail(const std::string &path, uint64_t at, std::string *saved, pglog_error *err) {
  IOOptions o;
  *saved = path + ".cut";
  for (int i = 1; base_->FileExists(*saved, o, nullptr).ok(); i++) {
    *saved = path + ".cut." + std::to_string(i);
  }
  std::unique_ptr<FSRandomAccessFile> in;
  std::unique_ptr<FSWritableFile> out;
  IOStatus s = base_->NewRandomAccessFile(path, FileOptions(), &in, nullptr);
  if (s.ok()) {
    s = base_->NewWritableFile(*saved, FileOptions(), &out, nullptr);
  }
  std::vector<char> buf(kChunk);
  while (s.ok()) {
    Slice part;
    s = in->Read(at, kChunk, o, &part, buf.data(), nullptr);
    if (!s.ok() || part.empty()) {
      break;
    }
    at += part.size();
    s = out->Append(part, o, nullptr);
  }
  if (s.ok()) {
    s = out->Fsync(o, nullptr);
  }
  if (s.ok()) {
    s = out->Close(o, nullptr);
  }
  return s.ok() ? 0 : Fail(err, "save the cut tail to", *saved, s);
}

int WalFiles::Truncate(const std::string &path, uint64_t at, pglog_error *err) {
  IOOptions o;
  IOStatus s = base_->Truncate(path, at, o, nullptr);
  if (s.IsNotSupported()) {
    std::unique_ptr<FSWritableFile> f;
    s = base_->ReopenWritableFile(path, FileOptions(), &f, nullptr);
    if (s.ok()) {
      s = f->Truncate(at, o, nullptr);
    }
    if (s.ok()) {
      s = f->Close(o, nullptr);
    }
  }
  uint64_t size = 0;
  if (s.ok()) {
    s = base_->GetFileSize(path, o, &size, nullptr);
  }
  if (s.ok() && size != at) {
    return error_set(err, PGLOG_EIO,
                     "truncate WAL %s to %llu: base file system %s left it at %llu bytes",
                     path.c_str(), static_cast<unsigned long long>(at), base_->Name(),
                     static_cast<unsigned long long>(size));
  }
  return s.ok() ? 0 : Fail(err, "truncate WAL", path, s);
}

int WalFiles::Cut(uint64_t wal, uint64_t at, pglog_error *err) {
  std::string path = Path(wal), saved;
  int rc = SaveTail(path, at, &saved, err);
  if (rc == 0) {
    rc = SyncDir(DirOf(path), err);
  }
  if (rc == 0) {
    rc = Truncate(path, at, err);
  }
  return rc == 0 ? SyncPath(path, err) : rc;
}

int WalFiles::SyncPath(const std::string &path, pglog_error *err) {
  std::unique_ptr<FSRandomRWFile> f;
  int rc = OpenRw(path, &f, err);
  if (rc != 0) {
    return rc;
  }
  IOStatus s = f->Fsync(IOOptions(), nullptr);
  if (s.ok()) {
    s = f->Close(IOOptions(), nullptr);
  }
  return s.ok() ? 0 : Fail(err, "sync WAL", path, s);
}

int WalFiles::Sync(uint64_t wal, pglog_error *err) {
  std::shared_ptr<OpenWal> w;
  std::string path;
  {
    std::lock_guard<std::mutex> l(mu_);
    auto it = open_.find(wal);
    if (it != open_.end()) {
      w = it->second;
    }
    path = PathLocked(wal);
  }
  if (w != nullptr) {
    bool closed;
    IOStatus s = w->Sync(true, IOOptions(), nullptr, &closed);
    if (!closed) {
      return s.ok() ? 0 : Fail(err, "sync WAL", path, s);
    }
  }
  int rc = SyncPath(path, err);
  if (rc == PGLOG_ENOTFOUND) {
    /* Archived between the look-up and the open. */
    std::string moved = Path(wal);
    rc = moved == path ? rc : SyncPath(moved, err);
  }
  return rc;
}

int WalFiles::SyncDir(const std::string &dir, pglog_error *err) {
  std::unique_ptr<FSDirectory> d;
  IOOptions o;
  IOStatus s = base_->NewDirectory(dir, o, &d, nullptr);
  if (s.ok()) {
    s = d->FsyncWithDirOptions(o, nullptr, rocksdb::DirFsyncOptions());
  }
  if (s.ok()) {
    s = d->Close(o, nullptr);
    if (s.IsNotSupported()) {
      s = IOStatus::OK();
    }
  }
  return s.ok() ? 0 : Fail(err, "sync WAL directory", dir, s);
}

int WalFiles::SyncDirs(pglog_error *err) {
  bool archive;
  {
    std::lock_guard<std::mutex> l(mu_);
    archive = archive_used_;
    archive_used_ = false;
  }
  /* archive/ first: a renamed WAL must not be gone from both after a crash. */
  int rc = archive ? SyncDir(archive_dir_, err) : 0;
  if (rc == 0) {
    rc = SyncDir(wal_dir_, err);
  }
  if (rc != 0 && archive) {
    std::lock_guard<std::mutex> l(mu_);
    archive_used_ = true;
  }
  return rc;
}

int WalFiles::Remove(uint64_t wal, pglog_error *err) {
  std::lock_guard<std::mutex> l(mu_);
  std::string path = PathLocked(wal);
  IOStatus s = base_->DeleteFile(path, IOOptions(), nullptr);
  if (!s.ok() && !s.IsNotFound() && !s.IsPathNotFound()) {
    return Fail(err, "delete WAL", path, s);
  }
  hidden_.erase(wal);
  archived_.erase(wal);
  return 0;
}

int WalFiles::SyncArenaDir(pglog_error *err) {
  if (arena_.empty()) {
    return 0;
  }
  std::string dir = DirOf(arena_);
  int fd = open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int rc = fd < 0 || fsync(fd) != 0 ? errno : 0;
  if (fd >= 0) {
    close(fd);
  }
  return rc == 0 ? 0
                 : error_set(err, PGLOG_EIO, "sync the arena's directory %s: %s", dir.c_str(),
                             strerror(rc));
}

void WalFiles::Log(int level, const char *text) {
  static const char *const kLevels[] = {"info", "warning", "error"};
  std::string line = std::string(kLevels[std::max(0, std::min(level, 2))]) + ": " + text;
  std::lock_guard<std::mutex> l(log_mu_);
  if (level >= 1 && printed_.size() < kLines && printed_.insert(line).second) {
    fprintf(stderr, "pglog: %s: %s\n", wal_dir_.c_str(), line.c_str());
  }
  lines_.push_back(std::move(line));
  if (lines_.size() > kLines) {
    lines_.pop_front();
  }
}

std::string WalFiles::Lines() const {
  std::lock_guard<std::mutex> l(log_mu_);
  std::string out;
  for (const std::string &line : lines_) {
    out += line + "\n";
  }
  return out;
}

}  // namespace pglog
