/* SPDX-License-Identifier: Apache-2.0
 *
 * env.h - an Env whose files are a PglogFileSystem's and whose threads and clock are another Env's.
 * (RocksDB's own NewCompositeEnv always takes those of the default Env, and cannot be configured by
 * `id=pglog;key=value`.)
 */
#ifndef PGLOG_ENV_H
#define PGLOG_ENV_H

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace pglog {

class PglogEnv : public rocksdb::EnvWrapper {
 public:
  using Status = rocksdb::Status;
  using EnvOptions = rocksdb::EnvOptions;
  using Str = std::string;

  static const char *kClassName() { return "pglog"; }
  PglogEnv(std::shared_ptr<rocksdb::FileSystem> fs, rocksdb::Env *target);

  const char *Name() const override { return kClassName(); }
  Status ValidateOptions(const rocksdb::DBOptions &db_opts,
                         const rocksdb::ColumnFamilyOptions &cf_opts) const override;
  Str SerializeOptions(const rocksdb::ConfigOptions &, const Str &) const override {
    return GetId();
  }

  Status RegisterDbPaths(const std::vector<Str> &p) override { return files_->RegisterDbPaths(p); }
  Status UnregisterDbPaths(const std::vector<Str> &p) override {
    return files_->UnregisterDbPaths(p);
  }
  Status NewSequentialFile(const Str &f, std::unique_ptr<rocksdb::SequentialFile> *r,
                           const EnvOptions &o) override {
    return files_->NewSequentialFile(f, r, o);
  }
  Status NewRandomAccessFile(const Str &f, std::unique_ptr<rocksdb::RandomAccessFile> *r,
                             const EnvOptions &o) override {
    return files_->NewRandomAccessFile(f, r, o);
  }
  Status NewWritableFile(const Str &f, std::unique_ptr<rocksdb::WritableFile> *r,
                         const EnvOptions &o) override {
    return files_->NewWritableFile(f, r, o);
  }
  Status ReopenWritableFile(const Str &f, std::unique_ptr<rocksdb::WritableFile> *r,
                            const EnvOptions &o) override {
    return files_->ReopenWritableFile(f, r, o);
  }
  Status ReuseWritableFile(const Str &f, const Str &old, std::unique_ptr<rocksdb::WritableFile> *r,
                           const EnvOptions &o) override {
    return files_->ReuseWritableFile(f, old, r, o);
  }
  Status NewRandomRWFile(const Str &f, std::unique_ptr<rocksdb::RandomRWFile> *r,
                         const EnvOptions &o) override {
    return files_->NewRandomRWFile(f, r, o);
  }
  Status NewMemoryMappedFileBuffer(const Str &f,
                                   std::unique_ptr<rocksdb::MemoryMappedFileBuffer> *r) override {
    return file_system_->NewMemoryMappedFileBuffer(f, r);
  }
  Status NewDirectory(const Str &d, std::unique_ptr<rocksdb::Directory> *r) override {
    return files_->NewDirectory(d, r);
  }
  Status FileExists(const Str &f) override { return files_->FileExists(f); }
  Status GetChildren(const Str &d, std::vector<Str> *r) override {
    return files_->GetChildren(d, r);
  }
  Status GetChildrenFileAttributes(const Str &d, std::vector<FileAttributes> *r) override {
    return files_->GetChildrenFileAttributes(d, r);
  }
  Status DeleteFile(const Str &f) override { return files_->DeleteFile(f); }
  Status Truncate(const Str &f, size_t n) override { return files_->Truncate(f, n); }
  Status CreateDir(const Str &d) override { return files_->CreateDir(d); }
  Status CreateDirIfMissing(const Str &d) override { return files_->CreateDirIfMissing(d); }
  Status DeleteDir(const Str &d) override { return files_->DeleteDir(d); }
  Status GetFileSize(const Str &f, uint64_t *n) override { return files_->GetFileSize(f, n); }
  Status GetFileModificationTime(const Str &f, uint64_t *t) override {
    return files_->GetFileModificationTime(f, t);
  }
  Status RenameFile(const Str &a, const Str &b) override { return files_->RenameFile(a, b); }
  Status LinkFile(const Str &a, const Str &b) override { return files_->LinkFile(a, b); }
  Status NumFileLinks(const Str &f, uint64_t *n) override { return files_->NumFileLinks(f, n); }
  Status AreFilesSame(const Str &a, const Str &b, bool *same) override {
    return files_->AreFilesSame(a, b, same);
  }
  Status LockFile(const Str &f, rocksdb::FileLock **l) override { return files_->LockFile(f, l); }
  Status UnlockFile(rocksdb::FileLock *l) override { return files_->UnlockFile(l); }
  Status IsDirectory(const Str &d, bool *is) override { return files_->IsDirectory(d, is); }
  Status GetTestDirectory(Str *d) override { return files_->GetTestDirectory(d); }
  Status NewLogger(const Str &f, std::shared_ptr<rocksdb::Logger> *r) override {
    return files_->NewLogger(f, r);
  }
  Status GetAbsolutePath(const Str &d, Str *r) override { return files_->GetAbsolutePath(d, r); }
  EnvOptions OptimizeForLogRead(const EnvOptions &o) const override {
    return files_->OptimizeForLogRead(o);
  }
  EnvOptions OptimizeForManifestRead(const EnvOptions &o) const override {
    return files_->OptimizeForManifestRead(o);
  }
  EnvOptions OptimizeForLogWrite(const EnvOptions &o, const rocksdb::DBOptions &d) const override {
    return files_->OptimizeForLogWrite(o, d);
  }
  EnvOptions OptimizeForManifestWrite(const EnvOptions &o) const override {
    return files_->OptimizeForManifestWrite(o);
  }
  EnvOptions OptimizeForCompactionTableWrite(const EnvOptions &o,
                                             const rocksdb::ImmutableDBOptions &d) const override {
    return files_->OptimizeForCompactionTableWrite(o, d);
  }
  EnvOptions OptimizeForCompactionTableRead(const EnvOptions &o,
                                            const rocksdb::ImmutableDBOptions &d) const override {
    return files_->OptimizeForCompactionTableRead(o, d);
  }
  EnvOptions OptimizeForBlobFileRead(const EnvOptions &o,
                                     const rocksdb::ImmutableDBOptions &d) const override {
    return files_->OptimizeForBlobFileRead(o, d);
  }
  Status GetFreeSpace(const Str &d, uint64_t *n) override { return files_->GetFreeSpace(d, n); }
  void SanitizeEnvOptions(EnvOptions *o) const override { files_->SanitizeEnvOptions(o); }

 protected:
  Status ConfigureOptions(const rocksdb::ConfigOptions &, const std::unordered_map<Str, Str> &map,
                          std::unordered_map<Str, Str> *) override;

 private:
  std::unique_ptr<rocksdb::Env> files_; /* the file calls of an Env over file_system_ */
};

}  // namespace pglog

#endif
