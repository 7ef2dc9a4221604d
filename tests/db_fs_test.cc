// SPDX-License-Identifier: Apache-2.0
//
// Proves that the file system shim forwards everything, keeps WALs until the store lets them go,
// refuses what it must, stops after an error, and is found by every name under stock RocksDB.
#include <dirent.h>
#include <gtest/gtest.h>
#include <rocksdb/c.h>
#include <rocksdb/comparator.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/transaction_log.h>
#include <rocksdb/utilities/checkpoint.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "pglog/fs.hpp"
#include "wal.h"

using namespace rocksdb;

namespace {

std::string TempDir() {
  char name[] = "/tmp/pglog_fs_XXXXXX";
  return mkdtemp(name);
}

class Dir {
 public:
  Dir() : path_(TempDir()) {}
  ~Dir() { Remove(path_); }
  std::string operator/(const std::string &name) const { return path_ + "/" + name; }
  const std::string &path() const { return path_; }

 private:
  static void Remove(const std::string &p) {
    struct stat st;
    if (lstat(p.c_str(), &st) == 0 && S_ISDIR(st.st_mode)) {
      for (const std::string &n : List(p)) {
        Remove(p + "/" + n);
      }
      rmdir(p.c_str());
    } else {
      unlink(p.c_str());
    }
  }

 public:
  static std::vector<std::string> List(const std::string &p) {
    std::vector<std::string> out;
    if (DIR *d = opendir(p.c_str())) {
      while (dirent *e = readdir(d)) {
        if (std::string(e->d_name) != "." && std::string(e->d_name) != "..") {
          out.push_back(e->d_name);
        }
      }
      closedir(d);
    }
    std::sort(out.begin(), out.end());
    return out;
  }

 private:
  std::string path_;
};

bool IsWal(const std::string &path) {
  uint64_t n;
  return wal_file_number(path.c_str(), &n);
}

bool Exists(const std::string &p) {
  return access(p.c_str(), F_OK) == 0;
}

std::vector<std::string> Logs(const std::vector<std::string> &names) {
  std::vector<std::string> out;
  for (const std::string &n : names) {
    if (IsWal(n)) {
      out.push_back(n);
    }
  }
  return out;
}

std::string ReadText(const std::string &path) {
  std::ifstream in(path);
  std::stringstream s;
  s << in.rdbuf();
  return s.str();
}

/* The names of the virtual methods of `cls` in RocksDB's header. */
std::set<std::string> VirtualMethods(const std::string &cls) {
  std::string text = ReadText("/usr/include/rocksdb/file_system.h");
  size_t from = text.find("\nclass " + cls + " "), to = text.find("\n};", from);
  EXPECT_NE(from, std::string::npos) << "file_system.h has no class " << cls;
  std::string body = std::regex_replace(text.substr(from, to - from), std::regex("//[^\n]*"), "");
  std::set<std::string> out;
  std::regex method("virtual\\s+[\\w:\\s\\*&]*?(\\w+)\\s*\\(");
  for (std::sregex_iterator i(body.begin(), body.end(), method), end; i != end; ++i) {
    out.insert((*i)[1]);
  }
  return out;
}

pglog_options Defaults() {
  pglog_options o;
  pglog_options_init(&o);
  return o;
}

/* A WAL record that holds an empty batch. */
std::string EmptyRecord() {
  struct buf b = {};
  char batch[12] = {1};
  EXPECT_EQ(wal_encode(&b, slice_make(batch, sizeof(batch)), false, 0), 0);
  std::string out(reinterpret_cast<char *>(b.data), b.size);
  buf_free(&b);
  return out;
}

/* --- a base file system that notes every call --------------------------------------------------
 */

#define NOTE() Note(__func__)

class RecordingFile : public FSWritableFile {
 public:
  explicit RecordingFile(std::set<std::string> *calls) : calls_(calls) {}
  void Note(const char *f) const { calls_->insert(f); }
  IOStatus Append(const Slice &, const IOOptions &, IODebugContext *) override {
    NOTE();
    return IOStatus::OK();
  }
  IOStatus Append(const Slice &, const IOOptions &, const DataVerificationInfo &,
                  IODebugContext *) override {
    calls_->insert("Append with checksum");
    return IOStatus::OK();
  }
  IOStatus PositionedAppend(const Slice &, uint64_t, const IOOptions &, IODebugContext *) override {
    NOTE();
    return IOStatus::OK();
  }
  IOStatus PositionedAppend(const Slice &, uint64_t, const IOOptions &,
                            const DataVerificationInfo &, IODebugContext *) override {
    NOTE();
    return IOStatus::OK();
  }
  IOStatus Truncate(uint64_t, const IOOptions &, IODebugContext *) override {
    NOTE();
    return IOStatus::OK();
  }
  IOStatus Close(const IOOptions &, IODebugContext *) override {
    NOTE();
    return IOStatus::OK();
  }
  IOStatus Flush(const IOOptions &, IODebugContext *) override {
    NOTE();
    return IOStatus::OK();
  }
  IOStatus Sync(const IOOptions &, IODebugContext *) override {
    NOTE();
    return IOStatus::OK();
  }
  IOStatus Fsync(const IOOptions &, IODebugContext *) override {
    NOTE();
    return IOStatus::OK();
  }
  bool IsSyncThreadSafe() const override {
    NOTE();
    return true;
  }
  bool use_direct_io() const override {
    NOTE();
    return false;
  }
  size_t GetRequiredBufferAlignment() const override {
    NOTE();
    return 7;
  }
  void SetWriteLifeTimeHint(Env::WriteLifeTimeHint) override { NOTE(); }
  void SetIOPriority(Env::IOPriority) override { NOTE(); }
  Env::IOPriority GetIOPriority() override {
    NOTE();
    return Env::IO_LOW;
  }
  Env::WriteLifeTimeHint GetWriteLifeTimeHint() override {
    NOTE();
    return Env::WLTH_LONG;
  }
  uint64_t GetFileSize(const IOOptions &, IODebugContext *) override {
    NOTE();
    return 77;
  }
  void SetPreallocationBlockSize(size_t) override { NOTE(); }
  void GetPreallocationStatus(size_t *a, size_t *b) override {
    NOTE();
    *a = *b = 5;
  }
  size_t GetUniqueId(char *, size_t) const override {
    NOTE();
    return 3;
  }
  IOStatus InvalidateCache(size_t, size_t) override {
    NOTE();
    return IOStatus::OK();
  }
  IOStatus RangeSync(uint64_t, uint64_t, const IOOptions &, IODebugContext *) override {
    NOTE();
    return IOStatus::OK();
  }
  void PrepareWrite(size_t, size_t, const IOOptions &, IODebugContext *) override { NOTE(); }
  IOStatus Allocate(uint64_t, uint64_t, const IOOptions &, IODebugContext *) override {
    NOTE();
    return IOStatus::OK();
  }

 private:
  std::set<std::string> *calls_;
};

class RecordingFs : public FileSystem {
 public:
  mutable std::set<std::string> calls;
  using Opts = IOOptions;
  using Dbg = IODebugContext;
  using Str = std::string;

  const char *Name() const override { return "recording"; }
  IOStatus Note(const char *f) const {
    calls.insert(f);
    return IOStatus::Aborted(f);
  }
  Status RegisterDbPaths(const std::vector<Str> &) override { return NOTE(); }
  Status UnregisterDbPaths(const std::vector<Str> &) override { return NOTE(); }
  IOStatus NewSequentialFile(const Str &, const FileOptions &, std::unique_ptr<FSSequentialFile> *,
                             Dbg *) override {
    return NOTE();
  }
  IOStatus NewRandomAccessFile(const Str &, const FileOptions &,
                               std::unique_ptr<FSRandomAccessFile> *, Dbg *) override {
    return NOTE();
  }
  IOStatus NewWritableFile(const Str &, const FileOptions &, std::unique_ptr<FSWritableFile> *,
                           Dbg *) override {
    return NOTE();
  }
  IOStatus ReopenWritableFile(const Str &, const FileOptions &, std::unique_ptr<FSWritableFile> *,
                              Dbg *) override {
    return NOTE();
  }
  IOStatus ReuseWritableFile(const Str &, const Str &, const FileOptions &,
                             std::unique_ptr<FSWritableFile> *, Dbg *) override {
    return NOTE();
  }
  IOStatus NewRandomRWFile(const Str &, const FileOptions &, std::unique_ptr<FSRandomRWFile> *,
                           Dbg *) override {
    return NOTE();
  }
  IOStatus NewMemoryMappedFileBuffer(const Str &,
                                     std::unique_ptr<MemoryMappedFileBuffer> *) override {
    return NOTE();
  }
  IOStatus NewDirectory(const Str &, const Opts &, std::unique_ptr<FSDirectory> *, Dbg *) override {
    return NOTE();
  }
  IOStatus FileExists(const Str &, const Opts &, Dbg *) override { return NOTE(); }
  IOStatus GetChildren(const Str &, const Opts &, std::vector<Str> *, Dbg *) override {
    return NOTE();
  }
  IOStatus GetChildrenFileAttributes(const Str &, const Opts &, std::vector<FileAttributes> *,
                                     Dbg *) override {
    return NOTE();
  }
  IOStatus DeleteFile(const Str &, const Opts &, Dbg *) override { return NOTE(); }
  IOStatus Truncate(const Str &, size_t, const Opts &, Dbg *) override { return NOTE(); }
  IOStatus CreateDir(const Str &, const Opts &, Dbg *) override { return NOTE(); }
  IOStatus CreateDirIfMissing(const Str &, const Opts &, Dbg *) override { return NOTE(); }
  IOStatus DeleteDir(const Str &, const Opts &, Dbg *) override { return NOTE(); }
  IOStatus GetFileSize(const Str &, const Opts &, uint64_t *, Dbg *) override { return NOTE(); }
  IOStatus GetFileModificationTime(const Str &, const Opts &, uint64_t *, Dbg *) override {
    return NOTE();
  }
  IOStatus RenameFile(const Str &, const Str &, const Opts &, Dbg *) override { return NOTE(); }
  IOStatus LinkFile(const Str &, const Str &, const Opts &, Dbg *) override { return NOTE(); }
  IOStatus NumFileLinks(const Str &, const Opts &, uint64_t *, Dbg *) override { return NOTE(); }
  IOStatus AreFilesSame(const Str &, const Str &, const Opts &, bool *, Dbg *) override {
    return NOTE();
  }
  IOStatus LockFile(const Str &, const Opts &, FileLock **, Dbg *) override { return NOTE(); }
  IOStatus UnlockFile(FileLock *, const Opts &, Dbg *) override { return NOTE(); }
  IOStatus GetTestDirectory(const Opts &, Str *, Dbg *) override { return NOTE(); }
  IOStatus NewLogger(const Str &, const Opts &, std::shared_ptr<Logger> *, Dbg *) override {
    return NOTE();
  }
  IOStatus GetAbsolutePath(const Str &, const Opts &, Str *, Dbg *) override { return NOTE(); }
  void SanitizeFileOptions(FileOptions *) const override { NOTE(); }
  FileOptions OptimizeForLogRead(const FileOptions &o) const override {
    NOTE();
    return o;
  }
  FileOptions OptimizeForManifestRead(const FileOptions &o) const override {
    NOTE();
    return o;
  }
  FileOptions OptimizeForLogWrite(const FileOptions &o, const DBOptions &) const override {
    NOTE();
    return o;
  }
  FileOptions OptimizeForManifestWrite(const FileOptions &o) const override {
    NOTE();
    return o;
  }
  FileOptions OptimizeForCompactionTableWrite(const FileOptions &o,
                                              const ImmutableDBOptions &) const override {
    NOTE();
    return o;
  }
  FileOptions OptimizeForCompactionTableRead(const FileOptions &o,
                                             const ImmutableDBOptions &) const override {
    NOTE();
    return o;
  }
  FileOptions OptimizeForBlobFileRead(const FileOptions &o,
                                      const ImmutableDBOptions &) const override {
    NOTE();
    return o;
  }
  IOStatus GetFreeSpace(const Str &, const Opts &, uint64_t *, Dbg *) override { return NOTE(); }
  IOStatus IsDirectory(const Str &, const Opts &, bool *, Dbg *) override { return NOTE(); }
  IOStatus Poll(std::vector<void *> &, size_t) override { return NOTE(); }
  IOStatus AbortIO(std::vector<void *> &) override { return NOTE(); }
};

/* --- a base file system that fails and delays on demand ----------------------------------------
 */

enum class Fault { kNone, kAppend, kSync, kCreate };

struct Injector {
  std::atomic<Fault> fault{Fault::kNone};
  std::atomic<int> after{0};            /* matching calls that still go well */
  std::atomic<bool> keep_logs{false};   /* deletes of *.log fail */
  std::atomic<bool> sync_unsafe{false}; /* files say that sync may not run beside append */
  std::atomic<int> overlaps{0};         /* ... and it did */
  std::atomic<int> manifest_appends{0};
  bool Hits(Fault f) { return fault == f && after.fetch_sub(1) <= 0; }
};

class InjectFile : public FSWritableFileWrapper {
 public:
  InjectFile(std::unique_ptr<FSWritableFile> f, Injector *in)
      : FSWritableFileWrapper(f.get()), own_(std::move(f)), in_(in) {}
  bool IsSyncThreadSafe() const override { return !in_->sync_unsafe; }
  IOStatus Append(const Slice &d, const IOOptions &o, IODebugContext *g) override {
    Busy b(this);
    if (in_->Hits(Fault::kAppend)) {
      /* Half of it is written, as on a full disk. */
      FSWritableFileWrapper::Append(Slice(d.data(), d.size() / 2), o, g).PermitUncheckedError();
      return IOStatus::NoSpace("disk full");
    }
    return FSWritableFileWrapper::Append(d, o, g);
  }
  IOStatus Sync(const IOOptions &o, IODebugContext *g) override {
    Busy b(this);
    return in_->Hits(Fault::kSync) ? Retryable() : FSWritableFileWrapper::Sync(o, g);
  }
  IOStatus Fsync(const IOOptions &o, IODebugContext *g) override {
    Busy b(this);
    return in_->Hits(Fault::kSync) ? Retryable() : FSWritableFileWrapper::Fsync(o, g);
  }

 private:
  static IOStatus Retryable() {
    IOStatus s = IOStatus::IOError("no answer");
    s.SetRetryable(true);
    s.SetScope(IOStatus::kIOErrorScopeFile);
    return s;
  }
  struct Busy {
    explicit Busy(InjectFile *f) : f_(f) {
      if (f_->inside_.fetch_add(1) != 0 && f_->in_->sync_unsafe) {
        f_->in_->overlaps++;
      }
    }
    ~Busy() { f_->inside_--; }
    InjectFile *f_;
  };
  std::unique_ptr<FSWritableFile> own_;
  Injector *in_;
  std::atomic<int> inside_{0};
};

class CountManifest : public FSWritableFileWrapper {
 public:
  CountManifest(std::unique_ptr<FSWritableFile> f, Injector *in)
      : FSWritableFileWrapper(f.get()), own_(std::move(f)), in_(in) {}
  IOStatus Append(const Slice &d, const IOOptions &o, IODebugContext *g) override {
    in_->manifest_appends++;
    return FSWritableFileWrapper::Append(d, o, g);
  }

 private:
  std::unique_ptr<FSWritableFile> own_;
  Injector *in_;
};

class InjectFs : public FileSystemWrapper {
 public:
  explicit InjectFs(Injector *in) : FileSystemWrapper(FileSystem::Default()), in_(in) {}
  const char *Name() const override { return "inject"; }
  IOStatus NewWritableFile(const std::string &f, const FileOptions &o,
                           std::unique_ptr<FSWritableFile> *r, IODebugContext *g) override {
    bool log = IsWal(f);
    if (log && in_->Hits(Fault::kCreate)) {
      return IOStatus::NoSpace("disk full");
    }
    IOStatus s = target_->NewWritableFile(f, o, r, g);
    if (s.ok() && log) {
      r->reset(new InjectFile(std::move(*r), in_));
    } else if (s.ok() && f.find("/MANIFEST-") != std::string::npos) {
      r->reset(new CountManifest(std::move(*r), in_));
    }
    return s;
  }
  IOStatus DeleteFile(const std::string &f, const IOOptions &o, IODebugContext *g) override {
    bool log = IsWal(f);
    return log && in_->keep_logs ? IOStatus::IOError("kept", f) : target_->DeleteFile(f, o, g);
  }

 private:
  Injector *in_;
};

/* --- a database over the shim ------------------------------------------------------------------
 */

class Shim {
 public:
  explicit Shim(std::shared_ptr<FileSystem> base = nullptr, pglog_options o = Defaults()) {
    pglog_error err;
    fs = pglog_new_file_system(o, base, &err);
    if (fs == nullptr) {
      ADD_FAILURE() << err.text;
    }
    env = pglog_new_env(fs, nullptr);
  }
  Options DbOptions() const {
    Options o;
    o.env = env.get();
    o.create_if_missing = true;
    return o;
  }
  std::vector<std::string> Children(const std::string &dir) const {
    std::vector<std::string> out;
    EXPECT_TRUE(fs->GetChildren(dir, IOOptions(), &out, nullptr).ok());
    std::sort(out.begin(), out.end());
    return out;
  }
  std::shared_ptr<FileSystem> fs;
  std::unique_ptr<Env> env;
};

std::unique_ptr<DB> Open(const Options &o, const std::string &path, Status *s = nullptr) {
  DB *db = nullptr;
  Status local = DB::Open(o, path, &db);
  if (s != nullptr) {
    *s = local;
  } else {
    EXPECT_TRUE(local.ok()) << local.ToString();
  }
  return std::unique_ptr<DB>(db);
}

void Put(DB *db, const std::string &k, const std::string &v, bool sync = false) {
  WriteOptions w;
  w.sync = sync;
  Status s = db->Put(w, k, v);
  ASSERT_TRUE(s.ok()) << s.ToString();
}

std::string Get(DB *db, const std::string &k) {
  std::string v;
  Status s = db->Get(ReadOptions(), k, &v);
  return s.ok() ? v : s.ToString();
}

/* --- forwarding --------------------------------------------------------------------------------
 */

TEST(Forward, EveryFileSystemMethodReachesTheBase) {
  auto base = std::make_shared<RecordingFs>();
  Shim shim(base);
  FileSystem *fs = shim.fs.get();
  IOOptions o;
  FileOptions fo;
  std::string s;
  uint64_t n;
  bool b;
  std::vector<std::string> names;
  std::vector<void *> handles;
  std::vector<FileAttributes> attributes;
  std::unique_ptr<FSSequentialFile> sequential;
  std::unique_ptr<FSRandomAccessFile> random;
  std::unique_ptr<FSWritableFile> writable;
  std::unique_ptr<FSRandomRWFile> rw;
  std::unique_ptr<MemoryMappedFileBuffer> mapped;
  std::unique_ptr<FSDirectory> dir;
  std::shared_ptr<Logger> logger;
  FileLock *lock;
  base->calls.clear();
  /* A WAL's name in a directory that is not locked, and another name: both must go through. */
  for (const std::string f : {"/d/000001.log", "/d/f"}) {
    EXPECT_TRUE(fs->NewSequentialFile(f, fo, &sequential, nullptr).IsAborted());
    EXPECT_TRUE(fs->NewRandomAccessFile(f, fo, &random, nullptr).IsAborted());
    EXPECT_TRUE(fs->NewWritableFile(f, fo, &writable, nullptr).IsAborted());
    EXPECT_TRUE(fs->ReopenWritableFile(f, fo, &writable, nullptr).IsAborted());
    EXPECT_TRUE(fs->ReuseWritableFile(f, f, fo, &writable, nullptr).IsAborted());
    EXPECT_TRUE(fs->NewRandomRWFile(f, fo, &rw, nullptr).IsAborted());
    EXPECT_TRUE(fs->NewMemoryMappedFileBuffer(f, &mapped).IsAborted());
    EXPECT_TRUE(fs->FileExists(f, o, nullptr).IsAborted());
    EXPECT_TRUE(fs->DeleteFile(f, o, nullptr).IsAborted());
    EXPECT_TRUE(fs->Truncate(f, 1, o, nullptr).IsAborted());
    EXPECT_TRUE(fs->GetFileSize(f, o, &n, nullptr).IsAborted());
    EXPECT_TRUE(fs->GetFileModificationTime(f, o, &n, nullptr).IsAborted());
    EXPECT_TRUE(fs->RenameFile(f, f, o, nullptr).IsAborted());
    EXPECT_TRUE(fs->LinkFile(f, f, o, nullptr).IsAborted());
    EXPECT_TRUE(fs->NumFileLinks(f, o, &n, nullptr).IsAborted());
    EXPECT_TRUE(fs->AreFilesSame(f, f, o, &b, nullptr).IsAborted());
    EXPECT_TRUE(fs->LockFile(f, o, &lock, nullptr).IsAborted());
  }
  EXPECT_TRUE(fs->RegisterDbPaths(names).IsAborted());
  EXPECT_TRUE(fs->UnregisterDbPaths(names).IsAborted());
  EXPECT_TRUE(fs->NewDirectory("/d", o, &dir, nullptr).IsAborted());
  EXPECT_TRUE(fs->GetChildren("/d", o, &names, nullptr).IsAborted());
  EXPECT_TRUE(fs->GetChildrenFileAttributes("/d", o, &attributes, nullptr).IsAborted());
  EXPECT_TRUE(fs->CreateDir("/d", o, nullptr).IsAborted());
  EXPECT_TRUE(fs->CreateDirIfMissing("/d", o, nullptr).IsAborted());
  EXPECT_TRUE(fs->DeleteDir("/d", o, nullptr).IsAborted());
  EXPECT_TRUE(fs->UnlockFile(nullptr, o, nullptr).IsAborted());
  EXPECT_TRUE(fs->GetTestDirectory(o, &s, nullptr).IsAborted());
  EXPECT_TRUE(fs->NewLogger("/d/LOG", o, &logger, nullptr).IsAborted());
  EXPECT_TRUE(fs->GetAbsolutePath("/d", o, &s, nullptr).IsAborted());
  EXPECT_TRUE(fs->GetFreeSpace("/d", o, &n, nullptr).IsAborted());
  EXPECT_TRUE(fs->IsDirectory("/d", o, &b, nullptr).IsAborted());
  EXPECT_TRUE(fs->Poll(handles, 0).IsAborted());
  EXPECT_TRUE(fs->AbortIO(handles).IsAborted());
  fs->SanitizeFileOptions(&fo);
  fs->OptimizeForLogRead(fo);
  fs->OptimizeForManifestRead(fo);
  fs->OptimizeForLogWrite(fo, DBOptions());
  fs->OptimizeForManifestWrite(fo);
  /* ImmutableDBOptions is not a public type; the shim must only pass the reference on. */
  alignas(64) static char opaque[64];
  auto &immutable = reinterpret_cast<const ImmutableDBOptions &>(opaque);
  fs->OptimizeForCompactionTableWrite(fo, immutable);
  fs->OptimizeForCompactionTableRead(fo, immutable);
  fs->OptimizeForBlobFileRead(fo, immutable);

  std::set<std::string> all = VirtualMethods("FileSystem");
  EXPECT_GT(all.size(), 40u);
  for (const std::string &m : all) {
    EXPECT_TRUE(base->calls.count(m)) << m << " is not forwarded";
  }
}

/* Calls every method of a file; appends `record`. */
void TouchFile(FSWritableFile *f, const std::string &record) {
  IOOptions o;
  size_t a, b;
  char id[32];
  EXPECT_TRUE(f->Append(record, o, nullptr).ok());
  EXPECT_TRUE(f->Append(record, o, DataVerificationInfo(), nullptr).ok());
  EXPECT_TRUE(f->Truncate(2 * record.size(), o, nullptr).ok());
  EXPECT_TRUE(f->Flush(o, nullptr).ok());
  EXPECT_TRUE(f->Sync(o, nullptr).ok());
  EXPECT_TRUE(f->Append(record, o, nullptr).ok());
  EXPECT_TRUE(f->Fsync(o, nullptr).ok());
  EXPECT_TRUE(f->IsSyncThreadSafe());
  EXPECT_FALSE(f->use_direct_io());
  EXPECT_EQ(f->GetRequiredBufferAlignment(), 7u);
  f->SetWriteLifeTimeHint(Env::WLTH_LONG);
  f->SetIOPriority(Env::IO_LOW);
  EXPECT_EQ(f->GetIOPriority(), Env::IO_LOW);
  EXPECT_EQ(f->GetWriteLifeTimeHint(), Env::WLTH_LONG);
  EXPECT_EQ(f->GetFileSize(o, nullptr), 77u);
  f->SetPreallocationBlockSize(1);
  f->GetPreallocationStatus(&a, &b);
  EXPECT_EQ(a, 5u);
  EXPECT_EQ(f->GetUniqueId(id, sizeof(id)), 3u);
  EXPECT_TRUE(f->InvalidateCache(0, 0).ok());
  EXPECT_TRUE(f->RangeSync(0, 1, o, nullptr).ok());
  f->PrepareWrite(0, 1, o, nullptr);
  EXPECT_TRUE(f->Allocate(0, 1, o, nullptr).ok());
}

/* Its *.log and MANIFEST files note their calls. */
class RecordingFilesFs : public FileSystemWrapper {
 public:
  std::set<std::string> calls;
  RecordingFilesFs() : FileSystemWrapper(FileSystem::Default()) {}
  const char *Name() const override { return "recording files"; }
  IOStatus NewWritableFile(const std::string &, const FileOptions &,
                           std::unique_ptr<FSWritableFile> *r, IODebugContext *) override {
    r->reset(new RecordingFile(&calls));
    return IOStatus::OK();
  }
};

TEST(Forward, EveryMethodOfAWalAndAManifestReachesTheBase) {
  Dir dir;
  std::set<std::string> all = VirtualMethods("FSWritableFile");
  EXPECT_GT(all.size(), 20u);
  all.insert("Append with checksum");
  for (const std::string name : {"000007.log", "MANIFEST-000008"}) {
    auto base = std::make_shared<RecordingFilesFs>();
    Shim shim(base);
    FileLock *lock;
    ASSERT_TRUE(shim.fs->LockFile(dir / "LOCK", IOOptions(), &lock, nullptr).ok());
    std::unique_ptr<FSWritableFile> f;
    ASSERT_TRUE(shim.fs->NewWritableFile(dir / name, FileOptions(), &f, nullptr).ok());
    TouchFile(f.get(), EmptyRecord());
    std::set<std::string> expect = all;
    if (name[0] == 'M') {
      EXPECT_TRUE(f->PositionedAppend("x", 0, IOOptions(), nullptr).ok());
    } else {
      expect.erase("PositionedAppend");
      EXPECT_FALSE(f->Truncate(0, IOOptions(), nullptr).ok());
      EXPECT_FALSE(f->PositionedAppend("x", 0, IOOptions(), nullptr).ok());
      /* That stopped the store. */
      EXPECT_FALSE(f->Append(EmptyRecord(), IOOptions(), nullptr).ok());
      EXPECT_FALSE(f->Sync(IOOptions(), nullptr).ok());
    }
    EXPECT_TRUE(f->Close(IOOptions(), nullptr).ok());
    f.reset();
    for (const std::string &m : expect) {
      EXPECT_TRUE(base->calls.count(m)) << name << ": " << m << " is not forwarded";
    }
    ASSERT_TRUE(shim.fs->UnlockFile(lock, IOOptions(), nullptr).ok());
  }
}

/* --- names -------------------------------------------------------------------------------------
 */

class CDb {
 public:
  CDb(const std::string &options, const std::string &path) {
    char *err = nullptr;
    base_ = rocksdb_options_create();
    options_ = rocksdb_options_create();
    rocksdb_get_options_from_string(base_, options.c_str(), options_, &err);
    if (err == nullptr) {
      rocksdb_options_set_create_if_missing(options_, 1);
      db_ = rocksdb_open(options_, path.c_str(), &err);
    }
    error_ = err == nullptr ? "" : err;
    rocksdb_free(err);
  }
  ~CDb() {
    if (db_ != nullptr) {
      rocksdb_close(db_);
    }
    rocksdb_options_destroy(options_);
    rocksdb_options_destroy(base_);
  }
  void Put(const std::string &k, const std::string &v) {
    char *err = nullptr;
    rocksdb_writeoptions_t *w = rocksdb_writeoptions_create();
    rocksdb_put(db_, w, k.data(), k.size(), v.data(), v.size(), &err);
    rocksdb_writeoptions_destroy(w);
    EXPECT_EQ(err, nullptr) << err;
  }
  std::string Get(const std::string &k) {
    char *err = nullptr;
    size_t n = 0;
    rocksdb_readoptions_t *r = rocksdb_readoptions_create();
    char *v = rocksdb_get(db_, r, k.data(), k.size(), &n, &err);
    rocksdb_readoptions_destroy(r);
    EXPECT_EQ(err, nullptr) << err;
    std::string out = v == nullptr ? "" : std::string(v, n);
    rocksdb_free(v);
    return out;
  }
  void Flush() {
    char *err = nullptr;
    rocksdb_flushoptions_t *f = rocksdb_flushoptions_create();
    rocksdb_flush(db_, f, &err);
    rocksdb_flushoptions_destroy(f);
    EXPECT_EQ(err, nullptr) << err;
  }
  const std::string &error() const { return error_; }

 private:
  rocksdb_options_t *base_ = nullptr, *options_ = nullptr;
  rocksdb_t *db_ = nullptr;
  std::string error_;
};

TEST(Names, EveryFormOfTheOptionsStringOpensAndReopens) {
  ASSERT_EQ(pglog_register(), 0);
  Dir dir;
  std::string arena = dir / "my.arena";
  int i = 0;
  for (const std::string &form :
       {std::string("env=pglog://"), std::string("env=pglog"), std::string("env={id=pglog}"),
        "env=pglog://?arena=" + arena + "&memory=2M", "env={pglog://?arena=" + arena + "}",
        "env={id=pglog://?arena=" + arena + "}", "env={id=pglog;arena=" + arena + ";memory=2M}"}) {
    SCOPED_TRACE(form);
    std::string db = dir / ("db" + std::to_string(i++));
    std::string expect = form.find("arena") == std::string::npos ? db + "/pglog.arena" : arena;
    unlink(arena.c_str());
    {
      CDb d(form, db);
      ASSERT_EQ(d.error(), "");
      d.Put("a", "1");
      d.Flush();
      d.Put("b", "2");
    }
    EXPECT_TRUE(Exists(expect)) << "the plugin was not in use";
    CDb d(form, db);
    ASSERT_EQ(d.error(), "");
    EXPECT_EQ(d.Get("a"), "1");
    EXPECT_EQ(d.Get("b"), "2");
  }
}

TEST(Names, BadOptionsAreNamed) {
  Dir dir;
  for (const std::string form :
       {"env=pglog://?bogus=1", "env={id=pglog;bogus=1}", "env={id=pglog://?bogus=1}"}) {
    CDb d(form, dir / "db");
    EXPECT_NE(d.error().find("bogus"), std::string::npos) << form << ": " << d.error();
  }
  for (const std::string uri : {"pglog://?bogus=1", "id=pglog;bogus=1", "pglog://?base=nonesuch",
                                "pglog://?base=pglog%3A%2F%2F"}) {
    std::shared_ptr<FileSystem> fs;
    Status s = FileSystem::CreateFromString(ConfigOptions(), uri, &fs);
    EXPECT_TRUE(s.IsInvalidArgument()) << uri << ": " << s.ToString();
  }
  pglog_options o = Defaults();
  o.memory = 1;
  pglog_error err = {};
  EXPECT_EQ(pglog_new_file_system(o, nullptr, &err), nullptr);
  EXPECT_NE(std::string(err.text).find("memory"), std::string::npos) << err.text;
}

TEST(Names, OneEnvForOneUriAndABaseByUri) {
  Env *a = nullptr, *b = nullptr;
  std::shared_ptr<Env> guard;
  ConfigOptions co;
  ASSERT_TRUE(Env::CreateFromUri(co, "pglog://", "", &a, &guard).ok());
  ASSERT_TRUE(Env::CreateFromUri(co, "pglog://", "", &b, &guard).ok());
  EXPECT_EQ(a, b);
  EXPECT_STREQ(a->Name(), "pglog");
  std::shared_ptr<FileSystem> fs;
  ASSERT_TRUE(FileSystem::CreateFromString(co, "pglog://?base=TimedFS", &fs).ok());
  ASSERT_NE(fs->Inner(), nullptr);
  EXPECT_STREQ(fs->Inner()->Name(), "TimedFS");
  Dir dir;
  std::unique_ptr<Env> env = pglog_new_env(fs, nullptr);
  Options o;
  o.env = env.get();
  o.create_if_missing = true;
  auto db = Open(o, dir / "db");
  Put(db.get(), "a", "1");
  EXPECT_EQ(Get(db.get(), "a"), "1");
}

TEST(Names, DefaultEnvIsStillFoundByItsName) {
  Env *env = nullptr;
  ASSERT_TRUE(Env::CreateFromString(ConfigOptions(), Env::Default()->GetId(), &env).ok());
  EXPECT_EQ(env, Env::Default());
  Dir dir;
  CDb d("env={id=" + Env::Default()->GetId() + "}", dir / "db");
  ASSERT_EQ(d.error(), "");
  d.Put("a", "1");
  EXPECT_FALSE(Exists(dir / "db/pglog.arena")) << "the plugin is in use, unasked";
}

TEST(Names, GuardComparatorIsRegisteredAndBytewise) {
  /* Not handed out before a pglog file system exists in the process. */
  Shim shim;
  const Comparator *c = nullptr;
  Status s = Comparator::CreateFromString(ConfigOptions(), PGLOG_GUARD_COMPARATOR, &c);
  ASSERT_TRUE(s.ok()) << s.ToString();
  EXPECT_STREQ(c->Name(), PGLOG_GUARD_COMPARATOR);
  EXPECT_LT(c->Compare("a", "b"), 0);
  EXPECT_GT(c->Compare(Slice("\xff", 1), Slice("a")), 0);
  EXPECT_EQ(c->Compare("a", "a"), 0);
}

/* --- WAL files ---------------------------------------------------------------------------------
 */

TEST(Wals, DeletedOnesAreHiddenUntilTheyReallyGo) {
  Dir dir;
  Injector in;
  Shim shim(std::make_shared<InjectFs>(&in));
  std::string path = dir / "db";
  auto db = Open(shim.DbOptions(), path);
  Put(db.get(), "a", "1");
  std::vector<std::string> before = Logs(Dir::List(path));
  ASSERT_EQ(before.size(), 1u);
  std::string old = path + "/" + before[0];
  in.keep_logs = true;
  ASSERT_TRUE(db->Flush(FlushOptions()).ok());
  Put(db.get(), "b", "2");
  ASSERT_TRUE(Exists(old));
  /* RocksDB has deleted it: it is gone for whoever asks. */
  std::vector<std::string> seen = Logs(shim.Children(path));
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_NE(seen[0], before[0]);
  std::vector<FileAttributes> attributes;
  ASSERT_TRUE(shim.fs->GetChildrenFileAttributes(path, IOOptions(), &attributes, nullptr).ok());
  for (const FileAttributes &a : attributes) {
    EXPECT_NE(a.name, before[0]);
  }
  std::string link = dir / "link";
  ASSERT_EQ(symlink(path.c_str(), link.c_str()), 0);
  for (const std::string &f : {old, path + "//" + before[0], link + "/" + before[0]}) {
    SCOPED_TRACE(f);
    uint64_t n;
    IOOptions o;
    FileOptions fo;
    std::unique_ptr<FSSequentialFile> sequential;
    std::unique_ptr<FSRandomAccessFile> random;
    std::unique_ptr<FSWritableFile> writable;
    EXPECT_TRUE(shim.fs->FileExists(f, o, nullptr).IsNotFound());
    EXPECT_FALSE(shim.fs->GetFileSize(f, o, &n, nullptr).ok());
    EXPECT_FALSE(shim.fs->GetFileModificationTime(f, o, &n, nullptr).ok());
    EXPECT_FALSE(shim.fs->NewSequentialFile(f, fo, &sequential, nullptr).ok());
    EXPECT_FALSE(shim.fs->NewRandomAccessFile(f, fo, &random, nullptr).ok());
    EXPECT_FALSE(shim.fs->ReopenWritableFile(f, fo, &writable, nullptr).ok());
    EXPECT_FALSE(shim.fs->NewWritableFile(f, fo, &writable, nullptr).ok());
    EXPECT_FALSE(shim.fs->LinkFile(f, dir / "x", o, nullptr).ok());
    EXPECT_FALSE(shim.fs->RenameFile(f, dir / "x", o, nullptr).ok());
    EXPECT_FALSE(shim.fs->DeleteFile(f, o, nullptr).ok());
    EXPECT_TRUE(Exists(old));
  }
  in.keep_logs = false;
  db.reset();
  db = Open(shim.DbOptions(), path);
  EXPECT_EQ(Get(db.get(), "a"), "1");
  EXPECT_EQ(Get(db.get(), "b"), "2");
  /* RocksDB has found and deleted it once more. */
  EXPECT_TRUE(shim.fs->FileExists(old, IOOptions(), nullptr).IsNotFound());
  db.reset();
  EXPECT_FALSE(Exists(old));
}

TEST(Wals, WhatWouldDropBytesIsRefused) {
  Dir dir;
  Shim shim;
  std::string path = dir / "db";
  auto db = Open(shim.DbOptions(), path);
  Put(db.get(), "a", "1");
  std::string wal = path + "/" + Logs(Dir::List(path))[0];
  uint64_t size = ReadText(wal).size();
  std::unique_ptr<FSWritableFile> w;
  std::unique_ptr<FSRandomRWFile> rw;
  IOOptions o;
  EXPECT_TRUE(shim.fs->Truncate(wal, 0, o, nullptr).IsNotSupported());
  EXPECT_TRUE(shim.fs->NewRandomRWFile(wal, FileOptions(), &rw, nullptr).IsNotSupported());
  EXPECT_TRUE(shim.fs->ReuseWritableFile(path + "/000099.log", wal, FileOptions(), &w, nullptr)
                  .IsNotSupported());
  EXPECT_TRUE(shim.fs->RenameFile(wal, path + "/000098.log", o, nullptr).IsNotSupported());
  EXPECT_TRUE(shim.fs->RenameFile(wal, wal + ".trash", o, nullptr).IsNotSupported());
  std::ofstream(dir / "f") << "x";
  EXPECT_TRUE(shim.fs->RenameFile(dir / "f", wal, o, nullptr).IsNotSupported());
  ASSERT_TRUE(shim.fs->ReopenWritableFile(wal, FileOptions(), &w, nullptr).ok());
  EXPECT_FALSE(w->Append("x", o, nullptr).ok());
  EXPECT_FALSE(w->Append("x", o, DataVerificationInfo(), nullptr).ok());
  EXPECT_FALSE(w->PositionedAppend("x", 0, o, nullptr).ok());
  EXPECT_FALSE(w->Truncate(size - 1, o, nullptr).ok());
  EXPECT_TRUE(w->Truncate(size, o, nullptr).ok());
  EXPECT_TRUE(w->Close(o, nullptr).ok());
  EXPECT_EQ(ReadText(wal).size(), size);
  Put(db.get(), "b", "2", true);
}

TEST(Wals, OldOnesStayThroughAvoidFlushDuringRecovery) {
  Dir dir;
  Shim shim;
  Options o = shim.DbOptions();
  o.avoid_flush_during_recovery = true;
  o.avoid_flush_during_shutdown = true;
  for (int i = 0; i < 5; i++) {
    auto db = Open(o, dir / "db");
    for (int k = 0; k < i; k++) {
      EXPECT_EQ(Get(db.get(), "k" + std::to_string(k)), "v");
    }
    Put(db.get(), "k" + std::to_string(i), "v");
  }
  EXPECT_GE(Logs(Dir::List(dir / "db")).size(), 2u);
}

TEST(Wals, ArchivedOnesAreFollowed) {
  Dir dir;
  Shim shim;
  Options o = shim.DbOptions();
  o.WAL_ttl_seconds = 3600;
  std::string path = dir / "db";
  for (int round = 0; round < 2; round++) {
    auto db = Open(o, path);
    for (int i = 0; i < 3; i++) {
      Put(db.get(), "k" + std::to_string(i), std::to_string(round));
      ASSERT_TRUE(db->Flush(FlushOptions()).ok());
    }
    VectorLogPtr wals;
    ASSERT_TRUE(db->GetSortedWalFiles(wals).ok());
    std::vector<std::string> archive;
    for (const auto &w : wals) {
      if (w->Type() == kArchivedLogFile) {
        archive.push_back(w->PathName());
        EXPECT_TRUE(Exists(path + w->PathName()));
      }
    }
    EXPECT_GE(archive.size(), 3u);
    std::unique_ptr<TransactionLogIterator> it;
    ASSERT_TRUE(db->GetUpdatesSince(1, &it).ok());
    EXPECT_TRUE(it->Valid());
    if (round == 1) {
      /* Whether covered by a check point or not: for RocksDB they are gone at once. */
      for (const std::string &name : archive) {
        Status s = db->DeleteFile(name);
        EXPECT_TRUE(s.ok()) << s.ToString();
        EXPECT_TRUE(shim.fs->FileExists(path + name, IOOptions(), nullptr).IsNotFound());
      }
      db.reset();
      db = Open(o, path);
      EXPECT_EQ(Get(db.get(), "k2"), "1");
      for (const std::string &name : archive) {
        EXPECT_FALSE(Exists(path + name)) << name;
      }
    }
  }
}

TEST(Wals, InADirectoryOfTheirOwn) {
  Dir dir;
  Shim shim;
  Options o = shim.DbOptions();
  std::string path = dir / "db", wals = dir / "wals";
  o.wal_dir = wals;
  {
    auto db = Open(o, path);
    Put(db.get(), "a", "1");
    ASSERT_TRUE(db->Flush(FlushOptions()).ok());
    Put(db.get(), "b", "2");
    EXPECT_EQ(Logs(Dir::List(path)).size(), 0u);
    EXPECT_GE(Logs(Dir::List(wals)).size(), 1u);
    EXPECT_EQ(Logs(shim.Children(wals)).size(), 1u);
  }
  {
    auto db = Open(o, path);
    EXPECT_EQ(Get(db.get(), "b"), "2");
  }
  pglog_options po = Defaults();
  strcpy(po.wal_dir, (dir / "others").c_str());
  Shim other(nullptr, po);
  Options oo = other.DbOptions();
  oo.wal_dir = wals;
  Status s;
  EXPECT_EQ(Open(oo, path, &s), nullptr);
  EXPECT_TRUE(s.IsInvalidArgument()) << s.ToString();
  EXPECT_NE(s.ToString().find("wal_dir"), std::string::npos) << s.ToString();
  /* Without DB::Open the directory is found in the newest OPTIONS file. */
  ASSERT_TRUE(DestroyDB(path, o).ok());
  EXPECT_EQ(Logs(Dir::List(wals)).size(), 0u);
  EXPECT_FALSE(Exists(path + "/CURRENT"));
}

/* --- directories -------------------------------------------------------------------------------
 */

TEST(Dirs, TwoDatabasesInOneEnv) {
  Dir dir;
  Shim shim;
  auto a = Open(shim.DbOptions(), dir / "a"), b = Open(shim.DbOptions(), dir / "b");
  for (int i = 0; i < 3; i++) {
    Put(a.get(), "k", "a" + std::to_string(i));
    Put(b.get(), "k", "b" + std::to_string(i));
    ASSERT_TRUE(a->Flush(FlushOptions()).ok());
  }
  a.reset();
  Put(b.get(), "l", "1", true);
  a = Open(shim.DbOptions(), dir / "a");
  b.reset();
  b = Open(shim.DbOptions(), dir / "b");
  EXPECT_EQ(Get(a.get(), "k"), "a2");
  EXPECT_EQ(Get(b.get(), "k"), "b2");
  EXPECT_EQ(Get(b.get(), "l"), "1");
}

TEST(Dirs, SecondOpenIsRefusedInEverySpellingAndTheFirstGoesOn) {
  Dir dir;
  Shim shim;
  std::string path = dir / "db", link = dir / "link";
  ASSERT_EQ(symlink(path.c_str(), link.c_str()), 0);
  char cwd[4096];
  ASSERT_NE(getcwd(cwd, sizeof(cwd)), nullptr);
  ASSERT_EQ(chdir(dir.path().c_str()), 0);
  auto db = Open(shim.DbOptions(), "db");
  Shim second;
  for (const std::string &spelling :
       {path, path + "/", link, std::string("db"), std::string("./db"),
        std::string("../") + dir.path().substr(dir.path().rfind('/') + 1) + "/db"}) {
    for (Shim *s : {&shim, &second}) {
      Status st;
      EXPECT_EQ(Open(s->DbOptions(), spelling, &st), nullptr) << spelling;
      EXPECT_TRUE(st.IsIOError()) << st.ToString();
      EXPECT_NE(st.ToString().find("open in this process"), std::string::npos) << st.ToString();
      Put(db.get(), spelling, "1", true);
    }
  }
  ASSERT_TRUE(db->Flush(FlushOptions()).ok());
  EXPECT_EQ(Logs(shim.Children(link)).size(), 1u);
  db.reset();
  ASSERT_EQ(chdir(cwd), 0);
  db = Open(shim.DbOptions(), link + "/");
  EXPECT_EQ(Get(db.get(), link), "1");
}

TEST(Dirs, DestroyLeavesNothingBehindAndMakesNoArena) {
  Dir dir;
  Shim shim;
  std::string path = dir / "db";
  Options o = shim.DbOptions();
  o.WAL_ttl_seconds = 3600;
  {
    auto db = Open(o, path);
    Put(db.get(), "a", "1");
    ASSERT_TRUE(db->Flush(FlushOptions()).ok());
    Put(db.get(), "b", "2");
  }
  ASSERT_TRUE(DestroyDB(path, o).ok());
  for (const std::string &name : Dir::List(path)) {
    EXPECT_EQ(name, "pglog.arena");
  }
  {
    auto db = Open(o, path);
    EXPECT_NE(Get(db.get(), "a"), "1");
    Put(db.get(), "a", "3");
  }
  /* A plain database, destroyed through the shim. */
  Options plain;
  plain.create_if_missing = true;
  {
    auto db = Open(plain, dir / "plain");
    Put(db.get(), "a", "1");
  }
  ASSERT_TRUE(DestroyDB(dir / "plain", o).ok());
  EXPECT_FALSE(Exists(dir / "plain"));
}

TEST(Dirs, RepairKeepsTheDataAndTheArenaFollowsTheNewIdentity) {
  Dir dir;
  Shim shim;
  std::string path = dir / "db";
  {
    auto db = Open(shim.DbOptions(), path);
    /* Not flushed: RepairDB cannot cope with a WAL whose content is in an SST too, and one that was
     * handed over may still be there. */
    Put(db.get(), "a", "1");
    Put(db.get(), "b", "2");
  }
  std::string identity = ReadText(path + "/IDENTITY");
  Status s = RepairDB(path, shim.DbOptions());
  ASSERT_TRUE(s.ok()) << s.ToString();
  ASSERT_NE(ReadText(path + "/IDENTITY"), identity) << "RepairDB makes a new one";
  /* Its WALs went where RocksDB does not read them again, but the store does. */
  EXPECT_EQ(Logs(Dir::List(path)).size(), 0u);
  EXPECT_GE(Logs(Dir::List(path + "/archive")).size(), 1u);
  EXPECT_EQ(Logs(Dir::List(path + "/lost")).size(), 0u);
  {
    auto db = Open(shim.DbOptions(), path);
    EXPECT_EQ(Get(db.get(), "a"), "1");
    EXPECT_EQ(Get(db.get(), "b"), "2");
  }
  /* An identity that changes behind the store's back is another database's. */
  std::ofstream(path + "/IDENTITY") << identity;
  EXPECT_EQ(Open(shim.DbOptions(), path, &s), nullptr);
  EXPECT_TRUE(s.IsInvalidArgument()) << s.ToString();
  EXPECT_NE(s.ToString().find(identity), std::string::npos) << s.ToString();
}

TEST(Dirs, ACleanCloseLeavesNoHandedOverWal) {
  Dir dir;
  for (int i = 0; i < 20; i++) {
    Shim shim;
    std::string path = dir / ("db" + std::to_string(i));
    auto db = Open(shim.DbOptions(), path);
    Put(db.get(), "a", "1");
    ASSERT_TRUE(db->Flush(FlushOptions()).ok());
    Put(db.get(), "b", "2");
    db.reset();
    EXPECT_EQ(Logs(Dir::List(path)).size(), 1u);
  }
}

TEST(Dirs, CheckpointOpensWithoutThePlugin) {
  Dir dir;
  Shim shim;
  auto db = Open(shim.DbOptions(), dir / "db");
  Put(db.get(), "a", "1");
  Checkpoint *cp;
  ASSERT_TRUE(Checkpoint::Create(db.get(), &cp).ok());
  Status s = cp->CreateCheckpoint(dir / "copy", 1 << 30);
  delete cp;
  ASSERT_TRUE(s.ok()) << s.ToString();
  auto copy = Open(Options(), dir / "copy");
  EXPECT_EQ(Get(copy.get(), "a"), "1");
}

TEST(Dirs, OverAMemoryEnv) {
  Dir dir;
  std::unique_ptr<Env> memory(NewMemEnv(Env::Default()));
  pglog_options po = Defaults();
  strcpy(po.arena, (dir / "arena").c_str());
  Shim shim(memory->GetFileSystem(), po);
  for (int i = 0; i < 3; i++) {
    auto db = Open(shim.DbOptions(), "/memory/db");
    for (int k = 0; k < i; k++) {
      EXPECT_EQ(Get(db.get(), "k" + std::to_string(k)), "v");
    }
    Put(db.get(), "k" + std::to_string(i), "v", true);
    if (i == 1) {
      ASSERT_TRUE(db->Flush(FlushOptions()).ok());
    }
  }
  EXPECT_FALSE(Exists("/memory/db"));
}

/* --- refused options ---------------------------------------------------------------------------
 */

TEST(Refuse, EachOptionByNameAndValueThenTheCorrectOpenWorks) {
  Dir dir;
  Shim shim;
  std::string path = dir / "db";
  {
    auto db = Open(shim.DbOptions(), path);
    Put(db.get(), "a", "1");
  }
  std::vector<std::string> files = Dir::List(path);
  for (const std::string text :
       {"manual_wal_flush=true", "wal_compression=kZSTD", "enable_pipelined_write=true",
        "unordered_write=true;allow_concurrent_memtable_write=true", "two_write_queues=true",
        "allow_2pc=true", "paranoid_checks=false", "wal_recovery_mode=kSkipAnyCorruptedRecords"}) {
    Options o;
    Status s = GetOptionsFromString(shim.DbOptions(), text, &o);
    ASSERT_TRUE(s.ok()) << s.ToString();
    EXPECT_EQ(Open(o, path, &s), nullptr) << text;
    std::string name = text, what = s.ToString();
    name = name.substr(0, name.find(';'));
    EXPECT_TRUE(s.IsNotSupported()) << what;
    EXPECT_NE(what.find(name), std::string::npos) << what;
    EXPECT_EQ(Dir::List(path), files) << text << ": files were touched";
  }
  Options o = shim.DbOptions();
  o.recycle_log_file_num = 4; /* RocksDB itself ignores it in this recovery mode */
  auto db = Open(o, path);
  EXPECT_EQ(Get(db.get(), "a"), "1");
}

TEST(Refuse, AnOptionsFileLatches) {
  Dir dir;
  Shim shim;
  int n = 10;
  for (const std::string line :
       {"manual_wal_flush=true", "wal_compression=kZSTD", "enable_pipelined_write=true",
        "unordered_write=true", "two_write_queues=true", "allow_2pc=true", "paranoid_checks=false",
        "wal_recovery_mode=kSkipAnyCorruptedRecords", "recycle_log_file_num=2"}) {
    std::string path = dir / std::to_string(++n);
    ASSERT_TRUE(shim.fs->CreateDir(path, IOOptions(), nullptr).ok());
    FileLock *lock;
    ASSERT_TRUE(shim.fs->LockFile(path + "/LOCK", IOOptions(), &lock, nullptr).ok());
    std::unique_ptr<FSWritableFile> before, after;
    ASSERT_TRUE(
        shim.fs->NewWritableFile(path + "/000003.log", FileOptions(), &before, nullptr).ok());
    ASSERT_TRUE(before->Append(EmptyRecord(), IOOptions(), nullptr).ok());
    std::ofstream(path + "/000005.dbtmp") << "[Version]\n  rocksdb_version=7.8.3\n\n[DBOptions]\n  "
                                          << line << "\n\n[CFOptions \"default\"]\n";
    IOStatus s =
        shim.fs->RenameFile(path + "/000005.dbtmp", path + "/OPTIONS-000005", IOOptions(), nullptr);
    EXPECT_TRUE(s.IsNotSupported()) << s.ToString();
    EXPECT_NE(s.ToString().find(line), std::string::npos) << s.ToString();
    s = before->Append(EmptyRecord(), IOOptions(), nullptr);
    EXPECT_NE(s.ToString().find(line), std::string::npos) << s.ToString();
    before.reset();
    ASSERT_TRUE(shim.fs->UnlockFile(lock, IOOptions(), nullptr).ok());
  }
}

TEST(Refuse, ReadOnlyOpensPassThrough) {
  Dir dir;
  Shim shim;
  {
    auto db = Open(shim.DbOptions(), dir / "db");
    Put(db.get(), "a", "1");
  }
  DB *db = nullptr;
  ASSERT_TRUE(DB::OpenForReadOnly(shim.DbOptions(), dir / "db", &db).ok());
  EXPECT_EQ(Get(db, "a"), "1");
  delete db;
}

/* --- the guard ---------------------------------------------------------------------------------
 */

TEST(Guard, OpensOnlyThroughTheShimAndNotWithoutItsArena) {
  Dir dir;
  Shim shim;
  std::string path = dir / "db", arena = path + "/pglog.arena";
  Options o = shim.DbOptions();
  o.create_missing_column_families = true;
  ColumnFamilyOptions guard;
  Status s =
      Comparator::CreateFromString(ConfigOptions(), PGLOG_GUARD_COMPARATOR, &guard.comparator);
  ASSERT_TRUE(s.ok()) << s.ToString();
  auto open = [&](const Options &with, const ColumnFamilyOptions &cf) {
    std::vector<ColumnFamilyHandle *> handles;
    DB *db = nullptr;
    s = DB::Open(with, path, {{kDefaultColumnFamilyName, with}, {PGLOG_GUARD_CF, cf}}, &handles,
                 &db);
    if (db != nullptr) {
      EXPECT_TRUE(db->Put(WriteOptions(), handles[1], "k", "v").ok());
      EXPECT_TRUE(db->Put(WriteOptions(), handles[0], "k", "v").ok());
      for (ColumnFamilyHandle *h : handles) {
        db->DestroyColumnFamilyHandle(h);
      }
      delete db;
    }
  };
  open(o, guard);
  ASSERT_TRUE(s.ok()) << s.ToString();
  open(Options(), ColumnFamilyOptions());
  EXPECT_TRUE(s.IsInvalidArgument()) << s.ToString();
  EXPECT_NE(s.ToString().find(PGLOG_GUARD_COMPARATOR), std::string::npos) << s.ToString();
  ASSERT_EQ(rename(arena.c_str(), (dir / "kept").c_str()), 0);
  open(o, guard);
  EXPECT_TRUE(s.IsInvalidArgument()) << s.ToString();
  EXPECT_NE(s.ToString().find("arena"), std::string::npos) << s.ToString();
  EXPECT_FALSE(Exists(arena)) << "a new, empty arena";
  ASSERT_EQ(rename((dir / "kept").c_str(), arena.c_str()), 0);
  open(o, guard);
  EXPECT_TRUE(s.ok()) << s.ToString();
}

/* --- failure stops -----------------------------------------------------------------------------
 */

/* Writes until it fails. Returns the number of acknowledged writes. */
int WriteUntilFailure(DB *db, Status *s) {
  WriteOptions w;
  w.sync = true;
  int n = 0;
  for (; n < 1000; n++) {
    *s = db->Put(w, "k" + std::to_string(n), std::string(100, 'v'));
    if (!s->ok()) {
      break;
    }
  }
  return n;
}

class FailureStops : public testing::TestWithParam<Fault> {};

TEST_P(FailureStops, UntilReopenAndNothingIsLost) {
  Dir dir;
  Injector in;
  Shim shim(std::make_shared<InjectFs>(&in));
  std::string path = dir / "db";
  auto db = Open(shim.DbOptions(), path);
  in.after = GetParam() == Fault::kCreate ? 0 : 20;
  in.fault = GetParam();
  Status s;
  int n = 0;
  if (GetParam() == Fault::kCreate) {
    for (; n < 20; n++) {
      Put(db.get(), "k" + std::to_string(n), std::string(100, 'v'), true);
    }
    s = db->Flush(FlushOptions());
    EXPECT_FALSE(s.ok());
  } else {
    n = WriteUntilFailure(db.get(), &s);
    EXPECT_EQ(n, 20);
  }
  EXPECT_TRUE(s.IsIOError()) << s.ToString();
  EXPECT_FALSE(s.IsNoSpace()) << "RocksDB would resume by itself: " << s.ToString();
  in.fault = Fault::kNone;
  int manifest = in.manifest_appends;
  for (int i = 0; i < 3; i++) {
    s = db->Put(WriteOptions(), "later", "x");
    EXPECT_FALSE(s.ok());
    EXPECT_GE(s.severity(), Status::Severity::kFatalError) << s.ToString();
    EXPECT_FALSE(db->Resume().ok());
    EXPECT_FALSE(db->Flush(FlushOptions()).ok());
  }
  EXPECT_EQ(in.manifest_appends, manifest);
  db.reset();
  EXPECT_EQ(in.manifest_appends, manifest);
  db = Open(shim.DbOptions(), path);
  for (int i = 0; i < n; i++) {
    EXPECT_EQ(Get(db.get(), "k" + std::to_string(i)), std::string(100, 'v')) << i;
  }
  EXPECT_NE(Get(db.get(), "later"), "x");
  Put(db.get(), "later", "y", true);
}

INSTANTIATE_TEST_SUITE_P(Faults, FailureStops,
                         testing::Values(Fault::kAppend, Fault::kSync, Fault::kCreate),
                         [](const testing::TestParamInfo<Fault> &i) {
                           return i.param == Fault::kAppend ? "Append"
                                  : i.param == Fault::kSync ? "Sync"
                                                            : "Create";
                         });

/* --- threads -----------------------------------------------------------------------------------
 */

TEST(Threads, WritersFlushesAndReadersOfTheDirectory) {
  for (bool unsafe : {false, true}) {
    Dir dir;
    Injector in;
    in.sync_unsafe = unsafe;
    Shim shim(std::make_shared<InjectFs>(&in));
    Options o = shim.DbOptions();
    o.write_buffer_size = 64 << 10;
    std::string path = dir / "db";
    auto db = Open(o, path);
    std::atomic<bool> stop{false};
    std::thread reader([&] {
      while (!stop) {
        for (const std::string &name : shim.Children(path)) {
          uint64_t n;
          shim.fs->GetFileSize(path + "/" + name, IOOptions(), &n, nullptr).PermitUncheckedError();
        }
      }
    });
    std::vector<std::thread> writers;
    for (int t = 0; t < 3; t++) {
      writers.emplace_back([&, t] {
        for (int i = 0; i < 400; i++) {
          Put(db.get(), std::to_string(t) + "." + std::to_string(i), std::string(500, 'v'),
              i % 8 == 0);
          if (i % 16 == 0) {
            EXPECT_TRUE(db->SyncWAL().ok() || unsafe);
          }
        }
      });
    }
    for (auto &w : writers) {
      w.join();
    }
    stop = true;
    reader.join();
    EXPECT_EQ(in.overlaps, 0);
    db.reset();
    db = Open(o, path);
    for (int t = 0; t < 3; t++) {
      EXPECT_EQ(Get(db.get(), std::to_string(t) + ".399"), std::string(500, 'v'));
    }
  }
}

}  // namespace
