// SPDX-License-Identifier: Apache-2.0
//
// db_testing.h - what the tests of the facade share: a directory that goes away, an open database
// with its options, and calls that take and return std::string.
#ifndef PGLOG_DB_TESTING_H
#define PGLOG_DB_TESTING_H

#include <dirent.h>
#include <gtest/gtest.h>
#include <pglog/db.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

class TempDir {
 public:
  TempDir() {
    const char *base = getenv("TMPDIR");
    std::string t = std::string(base ? base : "/tmp") + "/pglog_db_XXXXXX";
    if (!mkdtemp(t.data()))
      abort();
    path_ = t;
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  std::string db() const { return path_ + "/db"; }
  std::string path() const { return path_; }

 private:
  std::string path_;
};

// Take an error string: "" if there was none.
inline std::string take(char *&err) {
  std::string s = err ? err : "";
  if (err)
    rocksdb_free(err);
  err = nullptr;
  return s;
}

// Bytes of the WAL files in a directory, their number, and the number of the newest.
struct WalUse {
  uint64_t bytes = 0;
  size_t files = 0;
  uint64_t newest = 0;
};
inline WalUse wal_use(const std::string &dir) {
  WalUse u;
  for (auto &e : std::filesystem::directory_iterator(dir)) {
    std::error_code ec;
    if (e.path().extension() == ".log") {
      uint64_t n = e.file_size(ec);  // it may be gone by now
      if (!ec) {
        u.bytes += n;
        u.files++;
        u.newest = std::max<uint64_t>(u.newest, strtoull(e.path().stem().c_str(), nullptr, 10));
      }
    }
  }
  return u;
}

// Waits until no more than this is left of the WALs; background threads may be late. False after 30
// s.
inline bool await_wals(const std::string &dir, uint64_t bytes) {
  for (int i = 0; i < 30000; i++) {
    if (wal_use(dir).bytes <= bytes)
      return true;
    usleep(1000);
  }
  return false;
}

// A database with column families, and all its option objects.
class Db {
 public:
  explicit Db(std::string path, std::vector<std::string> cfs = {"default"})
      : path(std::move(path)), names(std::move(cfs)) {
    options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_options_set_create_missing_column_families(options, 1);
    ro = rocksdb_readoptions_create();
    wo = rocksdb_writeoptions_create();
    fo = rocksdb_flushoptions_create();
    pglog_options_init(&po);
    po.arena_step = 1 << 20;
  }
  ~Db() {
    close();
    rocksdb_options_destroy(options);
    rocksdb_readoptions_destroy(ro);
    rocksdb_writeoptions_destroy(wo);
    rocksdb_flushoptions_destroy(fo);
  }
  Db(const Db &) = delete;
  Db &operator=(const Db &) = delete;

  // "" or the error.
  std::string open(bool with_po = true) {
    std::vector<const char *> n;
    for (auto &s : names)
      n.push_back(s.c_str());
    std::vector<const rocksdb_options_t *> o(n.size(), options);
    handles.assign(n.size(), nullptr);
    db = pglog_db_open_column_families(options, with_po ? &po : nullptr, path.c_str(),
                                       (int)n.size(), n.data(), o.data(), handles.data(), &err);
    if (!db)
      handles.clear();
    return take(err);
  }
  void close() {
    for (auto *h : handles)
      rocksdb_column_family_handle_destroy(h);
    handles.clear();
    pglog_db_close(db);
    db = nullptr;
  }
  // Parse pglog options over the present ones.
  void set(const std::string &uri) {
    struct pglog_error e;
    ASSERT_EQ(0, pglog_options_parse(&po, uri.c_str(), &e)) << e.text;
  }

  std::string put(int cf, const std::string &k, const std::string &v) {
    pglog_db_put_cf(db, wo, handles[cf], k.data(), k.size(), v.data(), v.size(), &err);
    return take(err);
  }
  std::string del(int cf, const std::string &k) {
    pglog_db_delete_cf(db, wo, handles[cf], k.data(), k.size(), &err);
    return take(err);
  }
  std::string del_range(int cf, const std::string &a, const std::string &b) {
    pglog_db_delete_range_cf(db, wo, handles[cf], a.data(), a.size(), b.data(), b.size(), &err);
    return take(err);
  }
  std::string write(rocksdb_writebatch_t *b) {
    pglog_db_write(db, wo, b, &err);
    return take(err);
  }
  // The value, nothing, or "!" and the error.
  std::optional<std::string> get(int cf, const std::string &k) {
    size_t n = 0;
    char *v = pglog_db_get_cf(db, ro, handles[cf], k.data(), k.size(), &n, &err);
    if (err)
      return "!" + take(err);
    if (!v)
      return std::nullopt;
    std::string s(v, n);
    rocksdb_free(v);
    return s;
  }
  std::string flush(int cf = -1) {
    pglog_db_flush(db, fo, cf < 0 ? nullptr : handles[cf], &err);
    return take(err);
  }
  std::string checkpoint() {
    pglog_db_checkpoint_log(db, &err);
    return take(err);
  }
  std::string property(const std::string &name) {
    char *v = pglog_db_property_value(db, name.c_str());
    std::string s = v ? v : "";
    if (v)
      rocksdb_free(v);
    return s;
  }
  // A figure of pglog.stats; fails the test if it is not there.
  uint64_t stat(const std::string &name) {
    std::string s = "\n" + property("pglog.stats"), want = "\n" + name + " ";
    size_t at = s.find(want);
    EXPECT_NE(std::string::npos, at) << name << " in" << s;
    return at == std::string::npos ? 0 : strtoull(s.c_str() + at + want.size(), nullptr, 10);
  }

  std::string path;
  std::vector<std::string> names;
  pglog_db_t *db = nullptr;
  rocksdb_options_t *options;
  rocksdb_readoptions_t *ro;
  rocksdb_writeoptions_t *wo;
  rocksdb_flushoptions_t *fo;
  struct pglog_options po;
  std::vector<rocksdb_column_family_handle_t *> handles;
  char *err = nullptr;
};

#define ASSERT_OK(e) ASSERT_EQ("", (e))
#define EXPECT_OK(e) EXPECT_EQ("", (e))

// The text holds each of the words.
inline ::testing::AssertionResult Says(const std::string &text, std::vector<std::string> words) {
  for (auto &w : words)
    if (text.find(w) == std::string::npos)
      return ::testing::AssertionFailure() << "no \"" << w << "\" in \"" << text << "\"";
  return ::testing::AssertionSuccess();
}

// Walk a whole iterator.
inline std::vector<std::pair<std::string, std::string>> all_of(pglog_iterator_t *it,
                                                               bool forward = true) {
  std::vector<std::pair<std::string, std::string>> out;
  size_t kn, vn;
  for (forward ? pglog_iter_seek_to_first(it) : pglog_iter_seek_to_last(it); pglog_iter_valid(it);
       forward ? pglog_iter_next(it) : pglog_iter_prev(it)) {
    const char *k = pglog_iter_key(it, &kn), *v = pglog_iter_value(it, &vn);
    out.emplace_back(std::string(k, kn), std::string(v, vn));
  }
  char *err = nullptr;
  pglog_iter_get_error(it, &err);
  EXPECT_EQ("", take(err));
  return out;
}

#endif
