/* SPDX-License-Identifier: Apache-2.0 */
#include "fs_shim.h"

#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <string.h>

#include <algorithm>
#include <set>

#include "shim_file.h"
#include "wal.h"

namespace pglog {

using rocksdb::DBOptions;
using rocksdb::FileSystem;
using rocksdb::IOStatus;
using rocksdb::Status;

namespace {

bool EndsWith(const std::string &s, const char *end, size_t n) {
  return s.size() >= n && memcmp(s.data() + s.size() - n, end, n) == 0;
}

/* Looks like a WAL's name. */
bool LogSuffix(const std::string &f) {
  return EndsWith(f, ".log", 4);
}

bool BaseBegins(const std::string &f, const char *prefix) {
  size_t slash = f.rfind('/');
  size_t at = slash == std::string::npos ? 0 : slash + 1;
  return f.compare(at, strlen(prefix), prefix) == 0;
}

bool BaseIs(const std::string &f, const char *name) {
  size_t n = strlen(name);
  return EndsWith(f, name, n) && (f.size() == n || f[f.size() - n - 1] == '/');
}

IOStatus Gone(const std::string &f) {
  return IOStatus::PathNotFound("deleted, kept until its pg log is check pointed", f);
}

/* What DB::Open told the file system about the database that it is about to open, by thread: it
 * validates its options, opens the directory, and takes the LOCK. Only these three in a row count,
 * so that DestroyDB or RepairDB after an open that failed do not get it. */
struct Opening {
  const void *fs = nullptr;
  DbOptionMap options;
  std::set<std::string> dirs;
};
thread_local Opening opening;

/* Storage that callers supply (pglog_options.io) and an open store uses. */
std::mutex io_mutex;
std::set<const pglog_io *> &IosInUse() {
  static auto *ios = new std::set<const pglog_io *>;
  return *ios;
}

bool ClaimIo(const pglog_io *io) {
  std::lock_guard<std::mutex> l(io_mutex);
  return io == nullptr || IosInUse().insert(io).second;
}

void ReleaseIo(const pglog_io *io) {
  std::lock_guard<std::mutex> l(io_mutex);
  IosInUse().erase(io);
}

std::atomic<bool> in_use{false};

std::mutex locked_mutex;
std::vector<std::pair<FileSystem *, std::string>> &LockedDirs() {
  static auto *dirs = new std::vector<std::pair<FileSystem *, std::string>>;
  return *dirs;
}

std::string Escape(const std::string &value) {
  std::string out;
  for (unsigned char c : value) {
    char hex[4];
    snprintf(hex, sizeof(hex), "%%%02X", c);
    out += isalnum(c) || strchr("/._-:", c) ? std::string(1, static_cast<char>(c)) : hex;
  }
  return out;
}

std::shared_ptr<FileSystem> MakeBase(const pglog_options &o, pglog_error *err) {
  std::shared_ptr<FileSystem> base = FileSystem::Default();
  if (o.base[0] != '\0') {
    rocksdb::ConfigOptions strict;
    strict.ignore_unknown_options = false;
    strict.ignore_unsupported_options = false;
    base.reset();
    Status s = FileSystem::CreateFromString(strict, o.base, &base);
    if (!s.ok() || base == nullptr) {
      error_set(err, PGLOG_EINVAL, "option base=%s: %s", o.base, s.ToString().c_str());
      return nullptr;
    }
  }
  return base;
}

}  // namespace

IOStatus StatusOf(const pglog_error &err) {
  switch (err.code) {
    case PGLOG_ECORRUPT:
      return IOStatus::Corruption(err.text);
    case PGLOG_ENOTSUP:
      return IOStatus::NotSupported(err.text);
    case PGLOG_EINVAL:
    case PGLOG_EMISMATCH:
    case PGLOG_ETOOBIG:
      return IOStatus::InvalidArgument(err.text);
    case PGLOG_EBUSY:
      return IOStatus::Busy(err.text);
    default:
      return IOStatus::IOError(err.text);
  }
}

/* --- making one --------------------------------------------------------------------------------
 */

PglogFileSystem::PglogFileSystem(const pglog_options &o, std::shared_ptr<FileSystem> base,
                                 bool passive)
    : FileSystemWrapper(base), options_(o), passive_(passive) {
  if (!passive) {
    in_use = true;
  }
}

PglogFileSystem::~PglogFileSystem() {}

bool PglogFileSystem::InUse() {
  return in_use;
}

std::shared_ptr<PglogFileSystem> PglogFileSystem::Create(const pglog_options &o,
                                                         std::shared_ptr<FileSystem> base,
                                                         pglog_error *err) {
  if (pglog_options_check(&o, err) != 0) {
    return nullptr;
  }
  if (base == nullptr) {
    base = MakeBase(o, err);
  }
  if (base != nullptr && base->CheckedCast<PglogFileSystem>() != nullptr) {
    error_set(err, PGLOG_EINVAL, "the base file system of pglog is a pglog file system itself");
    return nullptr;
  }
  return base == nullptr ? nullptr : std::make_shared<PglogFileSystem>(o, std::move(base));
}

std::shared_ptr<PglogFileSystem> PglogFileSystem::Create(const std::string &text,
                                                         pglog_error *err) {
  pglog_options o;
  pglog_options_init(&o);
  return pglog_options_parse(&o, text.c_str(), err) == 0 ? Create(o, nullptr, err) : nullptr;
}

Status PglogFileSystem::Configure(const std::unordered_map<std::string, std::string> &map) {
  if (map.empty()) {
    return Status::OK();
  }
  std::string uri;
  for (const auto &kv : map) {
    /* An options parser that knows no URIs has cut one at its first '='. */
    bool cut = kv.first.compare(0, 8, "pglog://") == 0;
    if (cut && map.size() == 1) {
      uri = kv.first + "=" + kv.second;
    } else if (passive_) {
      return Status::InvalidArgument("Could not find option", kv.first);
    } else {
      uri += (uri.empty() ? "pglog://?" : "&") + kv.first + "=" + Escape(kv.second);
    }
  }
  pglog_error err;
  std::shared_ptr<PglogFileSystem> made = Create(uri, &err);
  if (made == nullptr) {
    return Status::InvalidArgument(err.text);
  }
  options_ = made->options_;
  target_ = made->target_;
  passive_ = false;
  return Status::OK();
}

Status PglogFileSystem::ValidateOptions(const DBOptions &db_opts,
                                        const rocksdb::ColumnFamilyOptions &cf_opts) const {
  if (!passive_) {
    opening = {this, DbOptionsOf(db_opts), {}};
    std::string why;
    if (Refused(opening.options, &why)) {
      return Status::NotSupported(why);
    }
  }
  return FileSystemWrapper::ValidateOptions(db_opts, cf_opts);
}

/* --- directories -------------------------------------------------------------------------------
 */

std::string PglogFileSystem::Absolute(const std::string &dir) {
  std::string cwd, stripped = StripSlashes(dir);
  if (stripped[0] == '/' || !target_->GetAbsolutePath(dir, Opts(), &cwd, nullptr).ok()) {
    return stripped;
  }
  /* RocksDB's own file system answers with the working directory alone. */
  for (const std::string &guess : {StripSlashes(cwd), StripSlashes(cwd) + "/" + stripped}) {
    bool same = false;
    if (target_->AreFilesSame(guess, dir, Opts(), &same, nullptr).ok() && same) {
      return guess;
    }
  }
  return stripped;
}

bool PglogFileSystem::SameDir(const std::string &a, const std::string &b) {
  if (StripSlashes(a) == StripSlashes(b)) {
    return true;
  }
  bool same = false;
  IOStatus s = target_->AreFilesSame(a, b, Opts(), &same, nullptr);
  return s.ok() ? same : Absolute(a) == Absolute(b);
}

PglogFileSystem::Place PglogFileSystem::PlaceOf(const DirStore &ds, const std::string &dir) {
  if (SameDir(dir, ds.files.wal_dir())) {
    return Place::kWal;
  }
  if (SameDir(dir, ds.dir)) {
    return Place::kDb;
  }
  bool archive = BaseOf(dir) == "archive" && SameDir(DirOf(dir), ds.files.wal_dir());
  return archive || SameDir(dir, ds.files.archive_dir()) ? Place::kArchive : Place::kNone;
}

PglogFileSystem::Found PglogFileSystem::FindDir(const std::string &dir) {
  Found out;
  if (n_stores_.load(std::memory_order_acquire) == 0) {
    return out;
  }
  std::lock_guard<std::mutex> l(mu_);
  auto it = spellings_.find(dir);
  if (it != spellings_.end()) {
    return it->second;
  }
  for (const auto &ds : stores_) {
    Place p = PlaceOf(*ds, dir);
    if (p != Place::kNone) {
      out = {ds, p, 0};
      spellings_[dir] = out;
      break;
    }
  }
  return out;
}

PglogFileSystem::Found PglogFileSystem::FindWal(const std::string &fname) {
  Found w;
  uint64_t number;
  if (LogSuffix(fname) && wal_file_number(BaseOf(fname).c_str(), &number)) {
    w = FindDir(DirOf(fname));
    w.number = number;
    if (w.place == Place::kDb) {
      w.ds = nullptr;
    }
  }
  return w;
}

bool PglogFileSystem::HiddenWal(const std::string &fname) {
  if (!LogSuffix(fname)) {
    return false;
  }
  Found w = FindWal(fname);
  return w.ds != nullptr && w.ds->files.Hidden(w.number);
}

store *PglogFileSystem::StoreOf(const std::string &dir) {
  std::string d = StripSlashes(dir);
  std::lock_guard<std::mutex> l(mu_);
  for (const auto &ds : stores_) {
    if (SameDir(d, ds->dir)) {
      return ds->Peek();
    }
  }
  return nullptr;
}

std::string PglogFileSystem::Lines(const std::string &dir) {
  std::string d = StripSlashes(dir);
  std::lock_guard<std::mutex> l(mu_);
  for (const auto &ds : stores_) {
    if (SameDir(d, ds->dir)) {
      return ds->files.Lines();
    }
  }
  return "";
}

/* --- LOCK: opening the store -------------------------------------------------------------------
 */

void PglogFileSystem::HintOpen(const std::string &dir, int recovery_mode,
                               const std::string &wal_dir) {
  std::lock_guard<std::mutex> l(mu_);
  hints_.emplace_back(dir, Hint{recovery_mode, true, wal_dir});
}

PglogFileSystem::Hint PglogFileSystem::TakeHint(const std::string &dir) {
  Hint h;
  bool seen = opening.fs == this && opening.dirs.count(dir);
  if (seen) {
    h = {RecoveryModeOf(opening.options), true, opening.options["wal_dir"]};
  }
  opening = Opening();
  std::lock_guard<std::mutex> l(mu_);
  for (auto it = hints_.begin(); it != hints_.end();) {
    if (SameDir(it->first, dir)) {
      /* An open that failed before its LOCK leaves its hint behind. */
      h = seen ? h : it->second;
      it = hints_.erase(it);
    } else {
      ++it;
    }
  }
  return h;
}

DbOptionMap PglogFileSystem::NewestOptions(const std::string &dir) {
  std::vector<std::string> names;
  uint64_t newest = 0;
  std::string newest_name, text;
  target_->GetChildren(dir, Opts(), &names, nullptr).PermitUncheckedError();
  for (const std::string &name : names) {
    if (OptionsFileNumber(name) > newest) {
      newest = OptionsFileNumber(name);
      newest_name = name;
    }
  }
  if (newest == 0 || !ReadFileToString(target_.get(), dir + "/" + newest_name, &text).ok()) {
    return {};
  }
  return ParseOptionsFile(text);
}

int PglogFileSystem::ChooseWalDir(const std::string &dir, const Hint &hint,
                                  const DbOptionMap &on_disk, std::string *out, pglog_error *err) {
  std::string own = options_.wal_dir, used = hint.wal_dir;
  if (!hint.wal_dir_known && own.empty()) {
    auto it = on_disk.find("wal_dir");
    used = it == on_disk.end() ? "" : it->second;
  } else if (!hint.wal_dir_known) {
    used = own;
  }
  if (used.empty()) {
    used = dir;
  }
  if (!own.empty() && !SameDir(own, used)) {
    return error_set(err, PGLOG_EINVAL,
                     "option wal_dir=%s, but RocksDB opens %s with its WAL files in %s",
                     own.c_str(), dir.c_str(), used.c_str());
  }
  *out = SameDir(used, dir) ? Absolute(dir) : Absolute(used);
  return 0;
}

bool PglogFileSystem::HasGuard(const std::string &dir) {
  std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(target_);
  DBOptions o;
  o.env = env.get();
  std::vector<std::string> names;
  /* An unreadable MANIFEST is for RocksDB to report. */
  Status s = rocksdb::DB::ListColumnFamilies(o, dir, &names);
  return s.ok() && std::find(names.begin(), names.end(), PGLOG_GUARD_CF) != names.end();
}

std::string PglogFileSystem::ReadIdentity(const std::string &dir) {
  std::string id;
  if (!ReadFileToString(target_.get(), dir + "/IDENTITY", &id).ok()) {
    return "";
  }
  id = id.substr(0, id.find_first_of("\r\n"));
  return id.size() <= SUPER_IDENTITY_MAX ? id : "";
}

int PglogFileSystem::OpenStore(const std::string &dir, rocksdb::FileLock *lock, pglog_error *err) {
  Hint hint = TakeHint(dir);
  DbOptionMap on_disk = NewestOptions(dir);
  std::string wal_dir, home = Absolute(dir);
  int rc = ChooseWalDir(dir, hint, on_disk, &wal_dir, err);
  if (rc != 0) {
    return rc;
  }
  store_config c = {};
  c.options = options_;
  if (options_.io == nullptr && options_.arena[0] == '\0') {
    std::string arena = home + "/pglog.arena";
    if (arena.size() >= sizeof(c.options.arena)) {
      return error_set(err, PGLOG_ETOOBIG, "path of the arena, %s: %zu bytes, limit %zu",
                       arena.c_str(), arena.size(), sizeof(c.options.arena) - 1);
    }
    strcpy(c.options.arena, arena.c_str());
  }
  auto ds = std::make_shared<DirStore>(target_, home, wal_dir,
                                       options_.io == nullptr ? c.options.arena : "", lock);
  c.ops = ds->files.Ops();
  c.recovery_mode = hint.recovery_mode >= 0 ? hint.recovery_mode : RecoveryModeOf(on_disk);
  if (c.recovery_mode < 0) {
    c.recovery_mode = STORE_POINT_IN_TIME;
  }
  c.has_current = target_->FileExists(dir + "/CURRENT", Opts(), nullptr).ok();
  c.has_guard = c.has_current && HasGuard(dir);
  strcpy(c.identity, ReadIdentity(dir).c_str());
  if (!ClaimIo(options_.io)) {
    return error_set(err, PGLOG_EBUSY,
                     "database %s: the storage supplied in pglog_options.io is in use by another "
                     "open database",
                     dir.c_str());
  }
  ds->io = options_.io;
  store *s = nullptr;
  rc = store_open(&c, &s, err);
  if (rc != 0) {
    ReleaseIo(ds->io);
    return rc;
  }
  ds->Set(s);
  std::lock_guard<std::mutex> l(mu_);
  stores_.push_back(ds);
  n_stores_.store(stores_.size(), std::memory_order_release);
  return 0;
}

/* Directories whose LOCK is held through any pglog file system of this process, with its base. */
bool PglogFileSystem::ClaimDir(const std::string &dir) {
  std::lock_guard<std::mutex> l(locked_mutex);
  for (const auto &d : LockedDirs()) {
    if (d.first == target_.get() && SameDir(dir, d.second)) {
      return false;
    }
  }
  LockedDirs().emplace_back(target_.get(), Absolute(dir));
  return true;
}

void PglogFileSystem::ReleaseDir(const std::string &absolute) {
  std::lock_guard<std::mutex> l(locked_mutex);
  auto &all = LockedDirs();
  all.erase(std::remove(all.begin(), all.end(), std::make_pair(target_.get(), absolute)),
            all.end());
}

IOStatus PglogFileSystem::LockFile(const std::string &f, const Opts &o, rocksdb::FileLock **lock,
                                   Dbg *dbg) {
  if (passive_ || !BaseIs(f, "LOCK")) {
    return target_->LockFile(f, o, lock, dbg);
  }
  std::string dir = DirOf(f), home = Absolute(dir);
  if (!ClaimDir(dir)) {
    /* Not even tried: with another spelling of the path the base would grant the lock, and giving
     * it back would drop the first one, since POSIX locks belong to the process. */
    *lock = nullptr;
    return IOStatus::IOError("pglog: lock " + f +
                             ": this database is open in this process already");
  }
  IOStatus s = target_->LockFile(f, o, lock, dbg);
  pglog_error err = {PGLOG_EIO, ""};
  if (s.ok() && OpenStore(dir, *lock, &err) != 0) {
    target_->UnlockFile(*lock, o, dbg).PermitUncheckedError();
    s = StatusOf(err);
  }
  if (!s.ok()) {
    *lock = nullptr;
    ReleaseDir(home);
  }
  return s;
}

IOStatus PglogFileSystem::UnlockFile(rocksdb::FileLock *lock, const Opts &o, Dbg *dbg) {
  std::shared_ptr<DirStore> ds;
  {
    std::lock_guard<std::mutex> l(mu_);
    for (size_t i = 0; i < stores_.size(); i++) {
      if (stores_[i]->lock == lock) {
        ds = stores_[i];
        stores_.erase(stores_.begin() + static_cast<ptrdiff_t>(i));
        break;
      }
    }
    n_stores_.store(stores_.size(), std::memory_order_release);
    for (auto it = spellings_.begin(); ds != nullptr && it != spellings_.end();) {
      it = it->second.ds == ds ? spellings_.erase(it) : std::next(it);
    }
  }
  if (ds != nullptr) {
    store_close(ds->Take());
    ReleaseIo(ds->io);
    ReleaseDir(ds->dir);
  }
  return target_->UnlockFile(lock, o, dbg);
}

/* --- forwarded ---------------------------------------------------------------------------------
 */

Status PglogFileSystem::RegisterDbPaths(const std::vector<std::string> &paths) {
  return target_->RegisterDbPaths(paths);
}

Status PglogFileSystem::UnregisterDbPaths(const std::vector<std::string> &paths) {
  return target_->UnregisterDbPaths(paths);
}

IOStatus PglogFileSystem::NewDirectory(const std::string &name, const Opts &o,
                                       std::unique_ptr<rocksdb::FSDirectory> *r, Dbg *dbg) {
  if (opening.fs == this) {
    opening.dirs.insert(StripSlashes(name));
  }
  return target_->NewDirectory(name, o, r, dbg);
}

/* --- reading: hidden WALs are not there --------------------------------------------------------
 */

IOStatus PglogFileSystem::NewSequentialFile(const std::string &f, const FileOpts &o,
                                            std::unique_ptr<rocksdb::FSSequentialFile> *r,
                                            Dbg *dbg) {
  return HiddenWal(f) ? Gone(f) : target_->NewSequentialFile(f, o, r, dbg);
}

IOStatus PglogFileSystem::NewRandomAccessFile(const std::string &f, const FileOpts &o,
                                              std::unique_ptr<rocksdb::FSRandomAccessFile> *r,
                                              Dbg *dbg) {
  return HiddenWal(f) ? Gone(f) : target_->NewRandomAccessFile(f, o, r, dbg);
}

IOStatus PglogFileSystem::FileExists(const std::string &f, const Opts &o, Dbg *dbg) {
  return HiddenWal(f) ? IOStatus::NotFound(f) : target_->FileExists(f, o, dbg);
}

IOStatus PglogFileSystem::GetFileSize(const std::string &f, const Opts &o, uint64_t *size,
                                      Dbg *dbg) {
  return HiddenWal(f) ? Gone(f) : target_->GetFileSize(f, o, size, dbg);
}

IOStatus PglogFileSystem::GetFileModificationTime(const std::string &f, const Opts &o, uint64_t *t,
                                                  Dbg *dbg) {
  return HiddenWal(f) ? Gone(f) : target_->GetFileModificationTime(f, o, t, dbg);
}

IOStatus PglogFileSystem::GetChildren(const std::string &dir, const Opts &o,
                                      std::vector<std::string> *r, Dbg *dbg) {
  /* Found first: a WAL that is removed for good meanwhile must not show up as unhidden. */
  Found d = FindDir(StripSlashes(dir));
  std::set<uint64_t> hidden = d.ds == nullptr ? std::set<uint64_t>() : d.ds->files.AllHidden();
  IOStatus s = target_->GetChildren(dir, o, r, dbg);
  if (s.ok() && !hidden.empty() && d.place != Place::kDb) {
    r->erase(std::remove_if(r->begin(), r->end(),
                            [&](const std::string &name) {
                              uint64_t n;
                              return wal_file_number(name.c_str(), &n) && hidden.count(n);
                            }),
             r->end());
  }
  return s;
}

IOStatus PglogFileSystem::GetChildrenFileAttributes(const std::string &dir, const Opts &o,
                                                    std::vector<rocksdb::FileAttributes> *r,
                                                    Dbg *dbg) {
  Found d = FindDir(StripSlashes(dir));
  std::set<uint64_t> hidden = d.ds == nullptr ? std::set<uint64_t>() : d.ds->files.AllHidden();
  IOStatus s = target_->GetChildrenFileAttributes(dir, o, r, dbg);
  if (s.ok() && !hidden.empty() && d.place != Place::kDb) {
    r->erase(std::remove_if(r->begin(), r->end(),
                            [&](const rocksdb::FileAttributes &a) {
                              uint64_t n;
                              return wal_file_number(a.name.c_str(), &n) && hidden.count(n);
                            }),
             r->end());
  }
  return s;
}

IOStatus PglogFileSystem::LinkFile(const std::string &src, const std::string &target, const Opts &o,
                                   Dbg *dbg) {
  return HiddenWal(src) ? Gone(src) : target_->LinkFile(src, target, o, dbg);
}

/* --- writing -----------------------------------------------------------------------------------
 */

IOStatus PglogFileSystem::NewWal(const Found &w, const std::string &f, const FileOpts &o,
                                 std::unique_ptr<rocksdb::FSWritableFile> *r, Dbg *dbg) {
  pglog_error err;
  store_wal *wal = nullptr;
  DirStore::Use use = w.ds->Get();
  if (use.s == nullptr) {
    return IOStatus::IOError("pglog: create " + f + ": the database is closed");
  }
  if (store_wal_create(use.s, w.number, &wal, &err) != 0) {
    return Fatal(err);
  }
  std::unique_ptr<rocksdb::FSWritableFile> file;
  IOStatus s = target_->NewWritableFile(f, o, &file, dbg);
  if (!s.ok()) {
    store_wal_abandon(wal);
    error_set(&err, PGLOG_EIO, "create WAL %s: %s", f.c_str(), s.ToString().c_str());
    store_poison(use.s, &err);
    return Fatal(err);
  }
  r->reset(new WalWriter(w.ds, f, w.number, wal, std::move(file)));
  return s;
}

IOStatus PglogFileSystem::NewWritableFile(const std::string &f, const FileOpts &o,
                                          std::unique_ptr<rocksdb::FSWritableFile> *r, Dbg *dbg) {
  if (LogSuffix(f)) {
    Found w = FindWal(f);
    if (w.ds != nullptr && w.place == Place::kWal) {
      return NewWal(w, f, o, r, dbg);
    }
  } else if (BaseBegins(f, "MANIFEST-")) {
    Found d = FindDir(DirOf(f));
    if (d.ds != nullptr && (d.place == Place::kDb || d.place == Place::kWal)) {
      std::unique_ptr<rocksdb::FSWritableFile> file;
      IOStatus s = target_->NewWritableFile(f, o, &file, dbg);
      if (s.ok()) {
        r->reset(new ManifestWriter(d.ds, std::move(file)));
      }
      return s;
    }
  }
  return target_->NewWritableFile(f, o, r, dbg);
}

IOStatus PglogFileSystem::ReopenWritableFile(const std::string &f, const FileOpts &o,
                                             std::unique_ptr<rocksdb::FSWritableFile> *r,
                                             Dbg *dbg) {
  Found w = FindWal(f);
  if (w.ds == nullptr) {
    return target_->ReopenWritableFile(f, o, r, dbg);
  }
  if (w.ds->files.Hidden(w.number)) {
    return Gone(f);
  }
  uint64_t size = 0;
  std::unique_ptr<rocksdb::FSWritableFile> file;
  IOStatus s = target_->GetFileSize(f, o.io_options, &size, dbg);
  if (s.ok()) {
    s = target_->ReopenWritableFile(f, o, &file, dbg);
  }
  if (s.ok()) {
    r->reset(new OldWal(f, size, std::move(file)));
  }
  return s;
}

IOStatus PglogFileSystem::ReuseWritableFile(const std::string &f, const std::string &old_f,
                                            const FileOpts &o,
                                            std::unique_ptr<rocksdb::FSWritableFile> *r, Dbg *dbg) {
  if (FindWal(f).ds != nullptr || FindWal(old_f).ds != nullptr) {
    return IOStatus::NotSupported("pglog: recycling WAL " + old_f + " as " + f +
                                  " is refused (recycle_log_file_num)");
  }
  return target_->ReuseWritableFile(f, old_f, o, r, dbg);
}

IOStatus PglogFileSystem::NewRandomRWFile(const std::string &f, const FileOpts &o,
                                          std::unique_ptr<rocksdb::FSRandomRWFile> *r, Dbg *dbg) {
  if (FindWal(f).ds != nullptr) {
    return IOStatus::NotSupported("pglog: opening WAL " + f + " for random writes is refused");
  }
  return target_->NewRandomRWFile(f, o, r, dbg);
}

IOStatus PglogFileSystem::Truncate(const std::string &f, size_t size, const Opts &o, Dbg *dbg) {
  if (FindWal(f).ds != nullptr) {
    return IOStatus::NotSupported("pglog: truncating WAL " + f + " is refused");
  }
  return target_->Truncate(f, size, o, dbg);
}

IOStatus PglogFileSystem::DeleteFile(const std::string &f, const Opts &o, Dbg *dbg) {
  if (LogSuffix(f)) {
    Found w = FindWal(f);
    if (w.ds != nullptr && !w.ds->destroyed) {
      return DeleteWal(w, f, o, dbg);
    }
  } else if (BaseIs(f, "CURRENT")) {
    Found d = FindDir(DirOf(f));
    if (d.ds != nullptr && SameDir(DirOf(f), d.ds->dir)) {
      return DeleteCurrent(d, f, o, dbg);
    }
  }
  return target_->DeleteFile(f, o, dbg);
}

IOStatus PglogFileSystem::DeleteWal(const Found &w, const std::string &f, const Opts &o, Dbg *dbg) {
  DirStore::Use use = w.ds->Get();
  if (use.s == nullptr) {
    return target_->DeleteFile(f, o, dbg);
  }
  if (w.ds->files.Hidden(w.number)) {
    return Gone(f);
  }
  IOStatus s = target_->FileExists(f, o, dbg);
  if (!s.ok()) {
    return s;
  }
  /* Hidden before it is handed over: the store may remove it at once. */
  if (w.ds->files.Hide(w.number)) {
    store_released(use.s, w.number, false);
  }
  return s;
}

IOStatus PglogFileSystem::DeleteCurrent(const Found &d, const std::string &f, const Opts &o,
                                        Dbg *dbg) {
  IOStatus s = target_->DeleteFile(f, o, dbg);
  DirStore::Use use = d.ds->Get();
  if (!s.ok() || use.s == nullptr) {
    return s;
  }
  pglog_error err;
  if (store_destroyed(use.s, &err) != 0) {
    return StatusOf(err);
  }
  d.ds->destroyed = true;
  d.ds->files.RemoveHidden();
  return s;
}

IOStatus PglogFileSystem::RenameWal(const Found &w, const std::string &src,
                                    const std::string &target, const Opts &o, Dbg *dbg) {
  if (w.ds->files.Hidden(w.number)) {
    return Gone(src);
  }
  DirStore::Use use = w.ds->Get();
  if (use.s == nullptr || w.ds->destroyed) {
    return target_->RenameFile(src, target, o, dbg);
  }
  if (w.place != Place::kWal || BaseOf(target) != BaseOf(src)) {
    /* RocksDB's delete scheduler comes here with *.log.trash; it then deletes instead. */
    return IOStatus::NotSupported("pglog: renaming WAL " + src + " to " + target +
                                  " is refused: the log store could not follow it there");
  }
  /* To archive/, whatever the target (RepairDB's lost/): there the store finds it, and RocksDB does
   * not read it again. */
  const std::string &archive = w.ds->files.archive_dir();
  IOStatus s = FindDir(DirOf(target)).place == Place::kArchive
                   ? IOStatus::OK()
                   : target_->CreateDirIfMissing(archive, o, dbg);
  if (s.ok()) {
    s = w.ds->files.Archive(w.number, src, archive + "/" + BaseOf(src), o, dbg);
  }
  if (s.ok()) {
    store_released(use.s, w.number, true);
  }
  return s;
}

/* An OPTIONS file is about to get its name: the options of the open database. */
IOStatus PglogFileSystem::CheckOptionsFile(const std::string &src, const Found &target) {
  std::string text, why;
  IOStatus s = ReadFileToString(target_.get(), src, &text);
  if (!s.ok() || !Refused(ParseOptionsFile(text), &why)) {
    return IOStatus::OK(); /* an unreadable file fails the rename itself */
  }
  pglog_error err;
  error_set(&err, PGLOG_ENOTSUP, "%s", why.c_str());
  DirStore::Use use = target.ds->Get();
  if (use.s != nullptr) {
    store_refuse(use.s, &err);
  }
  return StatusOf(err);
}

IOStatus PglogFileSystem::RenameFile(const std::string &src, const std::string &target,
                                     const Opts &o, Dbg *dbg) {
  if (LogSuffix(src)) {
    Found w = FindWal(src);
    if (w.ds != nullptr) {
      return RenameWal(w, src, target, o, dbg);
    }
  }
  if (FindWal(target).ds != nullptr) {
    return IOStatus::NotSupported("pglog: renaming " + src + " over WAL " + target + " is refused");
  }
  bool identity = BaseIs(target, "IDENTITY");
  if (!identity && !BaseBegins(target, "OPTIONS-")) {
    return target_->RenameFile(src, target, o, dbg);
  }
  Found d = FindDir(DirOf(target));
  bool ours = d.ds != nullptr && SameDir(DirOf(target), d.ds->dir);
  if (ours && OptionsFileNumber(BaseOf(target)) != 0) {
    IOStatus s = CheckOptionsFile(src, d);
    if (!s.ok()) {
      return s;
    }
  }
  IOStatus s = target_->RenameFile(src, target, o, dbg);
  if (s.ok() && ours && identity) {
    DirStore::Use use = d.ds->Get();
    if (use.s != nullptr) {
      store_set_identity(use.s, ReadIdentity(d.ds->dir).c_str());
    }
  }
  return s;
}

}  // namespace pglog
