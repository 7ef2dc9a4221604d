/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything by which the shim is found: registry entries, C++ makers, and the facade's entrance.
 */
#include "env.h"

#include <rocksdb/comparator.h>
#include <rocksdb/utilities/object_registry.h>

#include <map>

#include "fs_shim.h"
#include "pglog/fs.hpp"
#include "shim_api.h"

using rocksdb::Comparator;
using rocksdb::Env;
using rocksdb::FileSystem;
using rocksdb::ObjectLibrary;
using rocksdb::Slice;

namespace pglog {

/* --- PglogEnv ----------------------------------------------------------------------------------
 */

PglogEnv::PglogEnv(std::shared_ptr<FileSystem> fs, Env *target)
    : EnvWrapper(target), files_(rocksdb::NewCompositeEnv(fs)) {
  file_system_ = std::move(fs);
  system_clock_ = target->GetSystemClock();
}

rocksdb::Status PglogEnv::ValidateOptions(const rocksdb::DBOptions &db_opts,
                                          const rocksdb::ColumnFamilyOptions &cf_opts) const {
  Status s = EnvWrapper::ValidateOptions(db_opts, cf_opts);
  return s.ok() ? file_system_->ValidateOptions(db_opts, cf_opts) : s;
}

rocksdb::Status PglogEnv::ConfigureOptions(const rocksdb::ConfigOptions &,
                                           const std::unordered_map<Str, Str> &map,
                                           std::unordered_map<Str, Str> *) {
  return file_system_->CheckedCast<PglogFileSystem>()->Configure(map);
}

namespace {

/* The shim of an Env, or null. */
PglogFileSystem *ShimOf(void *env) {
  if (env == nullptr) {
    return nullptr;
  }
  return static_cast<Env *>(env)->GetFileSystem()->CheckedCast<PglogFileSystem>();
}

/* --- the guard's comparator --------------------------------------------------------------------
 */

class GuardComparator : public Comparator {
 public:
  const char *Name() const override { return PGLOG_GUARD_COMPARATOR; }
  int Compare(const Slice &a, const Slice &b) const override { return a.compare(b); }
  bool Equal(const Slice &a, const Slice &b) const override { return a == b; }
  void FindShortestSeparator(std::string *start, const Slice &limit) const override {
    rocksdb::BytewiseComparator()->FindShortestSeparator(start, limit);
  }
  void FindShortSuccessor(std::string *key) const override {
    rocksdb::BytewiseComparator()->FindShortSuccessor(key);
  }
  bool IsSameLengthImmediateSuccessor(const Slice &s, const Slice &t) const override {
    return rocksdb::BytewiseComparator()->IsSameLengthImmediateSuccessor(s, t);
  }
};

/* --- registry ----------------------------------------------------------------------------------
 */

/* Envs made by name. RocksDB keeps plain pointers to them, so they are never freed. */
struct Immortals {
  std::mutex mu;
  std::map<std::string, Env *> by_uri;
  std::vector<Env *> others;
};

Immortals &TheImmortals() {
  static auto *all = new Immortals;
  return *all;
}

/* The Env of a URI: one for each text. */
Env *EnvOfUri(const std::string &uri, std::string *msg) {
  Immortals &all = TheImmortals();
  std::lock_guard<std::mutex> l(all.mu);
  Env *&env = all.by_uri[uri];
  if (env == nullptr) {
    pglog_error err;
    std::shared_ptr<PglogFileSystem> fs = PglogFileSystem::Create(uri, &err);
    if (fs == nullptr) {
      *msg = err.text;
      all.by_uri.erase(uri);
      return nullptr;
    }
    env = new PglogEnv(std::move(fs), Env::Default());
  }
  return env;
}

/* An Env with the defaults, to be configured by whoever asked for it. */
Env *BlankEnv(bool passive) {
  pglog_options o;
  pglog_options_init(&o);
  auto fs = std::make_shared<PglogFileSystem>(o, FileSystem::Default(), passive);
  Immortals &all = TheImmortals();
  std::lock_guard<std::mutex> l(all.mu);
  all.others.push_back(new PglogEnv(std::move(fs), Env::Default()));
  return all.others.back();
}

FileSystem *MakeFs(const std::string &target, std::unique_ptr<FileSystem> *guard,
                   std::string *msg) {
  pglog_error err;
  std::shared_ptr<PglogFileSystem> fs =
      PglogFileSystem::Create(target == "pglog" ? "pglog://" : target, &err);
  if (fs == nullptr) {
    *msg = err.text;
    return nullptr;
  }
  /* The registry wants sole ownership of a new object. */
  guard->reset(new PglogFileSystem(fs->options(), fs->base()));
  return guard->get();
}

void RegisterAll() {
  auto name = ObjectLibrary::PatternEntry("pglog").AddSeparator("://", false);
  auto &library = *ObjectLibrary::Default();
  library.AddFactory<FileSystem>(name, MakeFs);
  library.AddFactory<Env>(name,
                          [](const std::string &target, std::unique_ptr<Env> *, std::string *msg) {
                            return target == "pglog" ? BlankEnv(false) : EnvOfUri(target, msg);
                          });
  /* RocksDB's options parser takes the first part of `env=pglog://?a=b` for an option of the Env
   * that was there before, drops it in silence, and goes on without the plugin. So the name of the
   * default Env gets a factory, which the registry does not have otherwise, and whose Env
   * understands that option. */
  library.AddFactory<Env>(
      ObjectLibrary::PatternEntry(Env::Default()->GetId()),
      [](const std::string &, std::unique_ptr<Env> *, std::string *) { return BlankEnv(true); });
  library.AddFactory<const Comparator>(
      PGLOG_GUARD_COMPARATOR,
      [](const std::string &, std::unique_ptr<const Comparator> *,
         std::string *msg) -> const Comparator * {
        /* With the library preloaded but its file system not named, the guard would open. */
        if (!PglogFileSystem::InUse()) {
          *msg = "a database guarded by pglog must be opened through its file system "
                 "(--fs_uri=pglog://... or env=pglog://...)";
          return nullptr;
        }
        return pglog_guard_comparator();
      });
}

__attribute__((constructor)) void RegisterAtLoad() {
  pglog_register();
}

}  // namespace
}  // namespace pglog

using pglog::PglogEnv;
using pglog::PglogFileSystem;

const Comparator *pglog_guard_comparator() {
  static const Comparator *guard = new pglog::GuardComparator;
  return guard;
}

extern "C" {

int pglog_register(void) {
  static std::once_flag once;
  std::call_once(once, pglog::RegisterAll);
  return PGLOG_OK;
}

/* --- fs.hpp ------------------------------------------------------------------------------------
 */

std::shared_ptr<FileSystem> pglog_new_file_system(const struct pglog_options &options,
                                                  std::shared_ptr<FileSystem> base,
                                                  struct pglog_error *err) {
  return PglogFileSystem::Create(options, std::move(base), err);
}

std::unique_ptr<Env> pglog_new_env(std::shared_ptr<FileSystem> fs, Env *target) {
  return std::unique_ptr<Env>(
      new PglogEnv(std::move(fs), target != nullptr ? target : Env::Default()));
}

/* --- shim_api.h --------------------------------------------------------------------------------
 */

void *shim_env_new(const struct pglog_options *o, void *user_env, struct pglog_error *err) {
  Env *target = user_env != nullptr ? static_cast<Env *>(user_env) : Env::Default();
  std::shared_ptr<FileSystem> base = o->base[0] == '\0' ? target->GetFileSystem() : nullptr;
  std::shared_ptr<PglogFileSystem> fs = PglogFileSystem::Create(*o, std::move(base), err);
  return fs == nullptr ? nullptr : new PglogEnv(std::move(fs), target);
}

void shim_env_free(void *env) {
  delete static_cast<Env *>(env);
}

const struct pglog_options *shim_env_options(void *env) {
  PglogFileSystem *fs = pglog::ShimOf(env);
  return fs == nullptr ? nullptr : &fs->options();
}

struct store *shim_store_of(void *env, const char *dbname) {
  PglogFileSystem *fs = pglog::ShimOf(env);
  return fs == nullptr ? nullptr : fs->StoreOf(dbname);
}

void shim_hint_open(void *env, const char *dbname, int wal_recovery_mode, const char *wal_dir) {
  PglogFileSystem *fs = pglog::ShimOf(env);
  if (fs != nullptr) {
    fs->HintOpen(dbname, wal_recovery_mode, wal_dir != nullptr ? wal_dir : "");
  }
}

const void *shim_guard_comparator(void) {
  return pglog_guard_comparator();
}

size_t shim_log_lines(void *env, const char *dbname, char *out, size_t cap) {
  PglogFileSystem *fs = pglog::ShimOf(env);
  std::string lines = fs == nullptr ? "" : fs->Lines(dbname);
  if (cap > 0) {
    size_t n = lines.copy(out, cap - 1);
    out[n] = '\0';
  }
  return lines.size();
}
}
