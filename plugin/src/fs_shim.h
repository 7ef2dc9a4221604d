/* SPDX-License-Identifier: Apache-2.0
 *
 * fs_shim.h - the FileSystem that RocksDB sees. It forwards everything to a base file system, and
 * drives the store of each database directory whose LOCK is held:
 *
 *   LOCK taken / released       store_open / store_close
 *   *.log created               store_wal_create; what is appended and synced goes through the
 * store
 *   *.log deleted               hidden and handed over, really deleted when check pointed (I3)
 *   *.log renamed to archive/   at once, and followed there
 *   *.log moved elsewhere       to archive/ all the same (RepairDB moves WALs to lost/)
 *   MANIFEST written            stops with the store after a failure
 *   OPTIONS renamed into place  refused options stop the store
 *   CURRENT deleted             the database is being destroyed
 *
 * A directory whose LOCK is not held is the base's alone. A file that is none of these costs a look
 * at its name.
 */
#ifndef PGLOG_FS_SHIM_H
#define PGLOG_FS_SHIM_H

#include <rocksdb/file_system.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "refuse.h"
#include "store.h"
#include "wal_files.h"

namespace rocksdb {
class Comparator;
}

/* The guard's comparator, bytewise, named PGLOG_GUARD_COMPARATOR. Never destroyed. */
const rocksdb::Comparator *pglog_guard_comparator();

namespace pglog {

class DirStore;

/* A Status (or IOStatus) for an error of the plugin, by its code. */
rocksdb::IOStatus StatusOf(const pglog_error &err);

class PglogFileSystem : public rocksdb::FileSystemWrapper {
 public:
  static const char *kClassName() { return "pglog"; }

  /* `base` must not be null. With `passive` it does nothing but forward until it is configured. */
  PglogFileSystem(const pglog_options &o, std::shared_ptr<rocksdb::FileSystem> base,
                  bool passive = false);
  ~PglogFileSystem() override;

  /* Make one from option text (URI or string form) or checked options. base null: the one that the
   * options name. nullptr and *err on failure. */
  static std::shared_ptr<PglogFileSystem> Create(const pglog_options &o,
                                                 std::shared_ptr<rocksdb::FileSystem> base,
                                                 pglog_error *err);
  static std::shared_ptr<PglogFileSystem> Create(const std::string &text, pglog_error *err);

  const pglog_options &options() const { return options_; }
  const std::shared_ptr<rocksdb::FileSystem> &base() const { return target_; }

  /* One that does not just forward has been made in this process. */
  static bool InUse();

  /* See shim_api.h. */
  store *StoreOf(const std::string &dir);
  void HintOpen(const std::string &dir, int recovery_mode, const std::string &wal_dir);
  std::string Lines(const std::string &dir);

  /* Set by `key=value` pairs, before first use (id=pglog;key=value;...). */
  rocksdb::Status Configure(const std::unordered_map<std::string, std::string> &map);

  /* Customizable */
  const char *Name() const override { return kClassName(); }
  rocksdb::Status ValidateOptions(const rocksdb::DBOptions &db_opts,
                                  const rocksdb::ColumnFamilyOptions &cf_opts) const override;
  std::string SerializeOptions(const rocksdb::ConfigOptions &, const std::string &) const override {
    return GetId();
  }

  /* FileSystem: what FileSystemWrapper does not forward */
  rocksdb::Status RegisterDbPaths(const std::vector<std::string> &paths) override;
  rocksdb::Status UnregisterDbPaths(const std::vector<std::string> &paths) override;

  /* FileSystem: what matters to the store */
  using Opts = rocksdb::IOOptions;
  using Dbg = rocksdb::IODebugContext;
  using FileOpts = rocksdb::FileOptions;
  rocksdb::IOStatus NewSequentialFile(const std::string &f, const FileOpts &o,
                                      std::unique_ptr<rocksdb::FSSequentialFile> *r,
                                      Dbg *dbg) override;
  rocksdb::IOStatus NewRandomAccessFile(const std::string &f, const FileOpts &o,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile> *r,
                                        Dbg *dbg) override;
  rocksdb::IOStatus NewWritableFile(const std::string &f, const FileOpts &o,
                                    std::unique_ptr<rocksdb::FSWritableFile> *r, Dbg *dbg) override;
  rocksdb::IOStatus ReopenWritableFile(const std::string &f, const FileOpts &o,
                                       std::unique_ptr<rocksdb::FSWritableFile> *r,
                                       Dbg *dbg) override;
  rocksdb::IOStatus ReuseWritableFile(const std::string &f, const std::string &old_f,
                                      const FileOpts &o,
                                      std::unique_ptr<rocksdb::FSWritableFile> *r,
                                      Dbg *dbg) override;
  rocksdb::IOStatus NewRandomRWFile(const std::string &f, const FileOpts &o,
                                    std::unique_ptr<rocksdb::FSRandomRWFile> *r, Dbg *dbg) override;
  rocksdb::IOStatus NewDirectory(const std::string &name, const Opts &o,
                                 std::unique_ptr<rocksdb::FSDirectory> *r, Dbg *dbg) override;
  rocksdb::IOStatus FileExists(const std::string &f, const Opts &o, Dbg *dbg) override;
  rocksdb::IOStatus GetChildren(const std::string &dir, const Opts &o, std::vector<std::string> *r,
                                Dbg *dbg) override;
  rocksdb::IOStatus GetChildrenFileAttributes(const std::string &dir, const Opts &o,
                                              std::vector<rocksdb::FileAttributes> *r,
                                              Dbg *dbg) override;
  rocksdb::IOStatus DeleteFile(const std::string &f, const Opts &o, Dbg *dbg) override;
  rocksdb::IOStatus Truncate(const std::string &f, size_t size, const Opts &o, Dbg *dbg) override;
  rocksdb::IOStatus GetFileSize(const std::string &f, const Opts &o, uint64_t *size,
                                Dbg *dbg) override;
  rocksdb::IOStatus GetFileModificationTime(const std::string &f, const Opts &o, uint64_t *t,
                                            Dbg *dbg) override;
  rocksdb::IOStatus RenameFile(const std::string &src, const std::string &target, const Opts &o,
                               Dbg *dbg) override;
  rocksdb::IOStatus LinkFile(const std::string &src, const std::string &target, const Opts &o,
                             Dbg *dbg) override;
  rocksdb::IOStatus LockFile(const std::string &f, const Opts &o, rocksdb::FileLock **l,
                             Dbg *dbg) override;
  rocksdb::IOStatus UnlockFile(rocksdb::FileLock *l, const Opts &o, Dbg *dbg) override;

 protected:
  rocksdb::Status ConfigureOptions(const rocksdb::ConfigOptions &,
                                   const std::unordered_map<std::string, std::string> &map,
                                   std::unordered_map<std::string, std::string> *) override {
    return Configure(map);
  }

 private:
  /* What a directory is to an open store. */
  enum class Place { kNone, kDb, kWal, kArchive };
  struct Found {
    std::shared_ptr<DirStore> ds; /* null if nothing was found */
    Place place = Place::kNone;   /* kWal also if the WALs are in the database directory */
    uint64_t number = 0;          /* of the WAL asked for */
  };
  struct Hint {
    int recovery_mode = -1;
    bool wal_dir_known = false;
    std::string wal_dir;
  };

  Found FindDir(const std::string &dir);
  /* The open store that holds `fname` as one of its WALs. */
  Found FindWal(const std::string &fname);
  bool HiddenWal(const std::string &fname);
  Place PlaceOf(const DirStore &ds, const std::string &dir);
  bool SameDir(const std::string &a, const std::string &b);
  std::string Absolute(const std::string &dir);

  Hint TakeHint(const std::string &dir);
  DbOptionMap NewestOptions(const std::string &dir);
  int ChooseWalDir(const std::string &dir, const Hint &hint, const DbOptionMap &on_disk,
                   std::string *out, pglog_error *err);
  bool HasGuard(const std::string &dir);
  std::string ReadIdentity(const std::string &dir);
  bool ClaimDir(const std::string &dir);
  void ReleaseDir(const std::string &absolute);
  int OpenStore(const std::string &dir, rocksdb::FileLock *lock, pglog_error *err);

  rocksdb::IOStatus NewWal(const Found &w, const std::string &f, const FileOpts &o,
                           std::unique_ptr<rocksdb::FSWritableFile> *r, Dbg *dbg);
  rocksdb::IOStatus DeleteWal(const Found &w, const std::string &f, const Opts &o, Dbg *dbg);
  rocksdb::IOStatus DeleteCurrent(const Found &d, const std::string &f, const Opts &o, Dbg *dbg);
  rocksdb::IOStatus RenameWal(const Found &w, const std::string &src, const std::string &target,
                              const Opts &o, Dbg *dbg);
  rocksdb::IOStatus CheckOptionsFile(const std::string &src, const Found &target);

  pglog_options options_;
  std::atomic<bool> passive_;

  std::mutex mu_; /* a leaf, but for SameDir() */
  std::vector<std::shared_ptr<DirStore>> stores_;
  std::atomic<size_t> n_stores_{0};
  std::unordered_map<std::string, Found> spellings_; /* directories seen, of the open stores */
  std::vector<std::pair<std::string, Hint>> hints_;
};

}  // namespace pglog

#endif
