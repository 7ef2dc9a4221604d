/* SPDX-License-Identifier: Apache-2.0
 *
 * wal_files.h - the WAL files of one database, over the base file system: where each of them is
 * (WAL directory or archive/), which ones RocksDB has deleted but the store still needs (hidden),
 * and struct store_wal_ops on them.
 *
 * The mutex here is a leaf: nothing is called back under it, and of file calls only a rename, a
 * delete and the opening of a file.
 */
#ifndef PGLOG_WAL_FILES_H
#define PGLOG_WAL_FILES_H

#include <rocksdb/file_system.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "store.h"

namespace pglog {

/* Path helpers. Directories carry no trailing slash ("/" excepted). */
std::string DirOf(const std::string &path);
std::string BaseOf(const std::string &path);
std::string StripSlashes(const std::string &dir);

/* A WAL that RocksDB writes, as the store's sync sees it. */
class OpenWal {
 public:
  explicit OpenWal(rocksdb::FSWritableFile *f) : file_(f), sync_safe_(f->IsSyncThreadSafe()) {}
  /* Hold this around whatever the writer does to the file: keeps Sync() out if the file is not safe
   * for both at once. */
  std::unique_lock<std::mutex> WriteLock();
  /* Sync or (full) Fsync the file; *closed: it has been closed, nothing was done. */
  rocksdb::IOStatus Sync(bool full, const rocksdb::IOOptions &o, rocksdb::IODebugContext *dbg,
                         bool *closed);
  /* Close and forget the file, once no sync uses it. */
  rocksdb::IOStatus Close(const std::function<rocksdb::IOStatus()> &f);

 private:
  std::shared_mutex life_; /* shared by syncs; exclusive to close */
  std::mutex io_;          /* write against sync, if !sync_safe_ */
  rocksdb::FSWritableFile *file_;
  const bool sync_safe_;
};

class WalFiles {
 public:
  /* `arena` is the path of the arena file, "" if the caller supplies the storage. */
  WalFiles(std::shared_ptr<rocksdb::FileSystem> base, std::string wal_dir, std::string arena);

  /* Valid as long as this object. */
  store_wal_ops Ops();

  const std::string &wal_dir() const { return wal_dir_; }
  const std::string &archive_dir() const { return archive_dir_; }

  /* RocksDB has opened / is closing a WAL for writing. */
  void Opened(uint64_t number, std::shared_ptr<OpenWal> w);
  void Closed(uint64_t number);

  /* Hide a WAL from RocksDB. False if it was hidden before. */
  bool Hide(uint64_t number);
  bool Hidden(uint64_t number) const;
  std::set<uint64_t> AllHidden() const;

  /* Rename a WAL to archive/. */
  rocksdb::IOStatus Archive(uint64_t number, const std::string &from, const std::string &to,
                            const rocksdb::IOOptions &o, rocksdb::IODebugContext *dbg);
  /* Really delete all hidden WALs: the database has been destroyed. */
  void RemoveHidden();

  /* The last lines logged, each with '\n'. */
  std::string Lines() const;

 private:
  static WalFiles *Self(void *arg) { return static_cast<WalFiles *>(arg); }
  int List(store_wal_file **files, size_t *n, pglog_error *err);
  int Read(uint64_t wal, uint64_t off, void *buf, size_t len, size_t *got, pglog_error *err);
  int Rewrite(uint64_t wal, uint64_t from, pglog_error *err);
  int Cut(uint64_t wal, uint64_t at, pglog_error *err);
  int Sync(uint64_t wal, pglog_error *err);
  int SyncDirs(pglog_error *err);
  int Remove(uint64_t wal, pglog_error *err);
  int SyncArenaDir(pglog_error *err);
  void Log(int level, const char *text);

  std::string PathLocked(uint64_t wal) const;
  std::string Path(uint64_t wal) const;
  int ListDir(const std::string &dir, bool archive, std::map<uint64_t, uint64_t> *out,
              pglog_error *err);
  int SyncDir(const std::string &dir, pglog_error *err);
  int SaveTail(const std::string &path, uint64_t at, std::string *saved, pglog_error *err);
  int SyncPath(const std::string &path, pglog_error *err);
  int Truncate(const std::string &path, uint64_t at, pglog_error *err);
  /* Open `path`, which exists, for reading and writing. */
  int OpenRw(const std::string &path, std::unique_ptr<rocksdb::FSRandomRWFile> *f,
             pglog_error *err);

  const std::shared_ptr<rocksdb::FileSystem> base_;
  const std::string wal_dir_, archive_dir_, arena_;

  mutable std::mutex mu_;
  std::map<uint64_t, std::shared_ptr<OpenWal>> open_;
  std::set<uint64_t> hidden_, archived_;
  bool archive_used_ = false; /* archive/ has to be synced with the WAL directory */

  mutable std::mutex log_mu_;
  std::deque<std::string> lines_;
  std::set<std::string> printed_; /* warnings that went to stderr; bounded */
};

}  // namespace pglog

#endif
