// SPDX-License-Identifier: Apache-2.0
//
// Proves what each function of <pglog/db.h> does, and that bad input is refused with an error that
// names the thing, before anything is written, so that the next correct open or write works.
#include <fstream>
#include <thread>

#include "db_testing.h"

namespace {

using KeyValues = std::vector<std::pair<std::string, std::string>>;

class DbFacade : public ::testing::Test {
 protected:
  std::string write_raw(Db &db, const std::string &records, uint32_t count) {
    std::string rep(12, '\0');
    memcpy(rep.data() + 8, &count, 4);
    rep += records;
    rocksdb_writebatch_t *b = rocksdb_writebatch_create_from(rep.data(), rep.size());
    std::string e = db.write(b);
    rocksdb_writebatch_destroy(b);
    return e;
  }
  std::string iterator_error(Db &db, rocksdb_readoptions_t *ro, int cf = 0) {
    pglog_iterator_t *it = pglog_db_create_iterator_cf(db.db, ro, db.handles[cf]);
    pglog_iter_seek_to_first(it);
    EXPECT_FALSE(pglog_iter_valid(it));
    pglog_iter_next(it);
    pglog_iter_seek(it, "a", 1);
    EXPECT_FALSE(pglog_iter_valid(it));
    char *err = nullptr;
    pglog_iter_get_error(it, &err);
    pglog_iter_destroy(it);
    return take(err);
  }
  KeyValues all(Db &db, int cf = 0) {
    pglog_iterator_t *it = pglog_db_create_iterator_cf(db.db, db.ro, db.handles[cf]);
    KeyValues kv = all_of(it);
    pglog_iter_destroy(it);
    return kv;
  }
  // A plain RocksDB, without the plugin.
  rocksdb_t *plain_open(const std::string &path, std::vector<const char *> cfs, std::string *error,
                        std::vector<rocksdb_column_family_handle_t *> *handles) {
    rocksdb_options_t *o = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(o, 1);
    rocksdb_options_set_create_missing_column_families(o, 1);
    std::vector<const rocksdb_options_t *> os(cfs.size(), o);
    handles->assign(cfs.size(), nullptr);
    char *err = nullptr;
    rocksdb_t *db = rocksdb_open_column_families(o, path.c_str(), (int)cfs.size(), cfs.data(),
                                                 os.data(), handles->data(), &err);
    *error = take(err);
    rocksdb_options_destroy(o);
    return db;
  }
  void plain_put(const std::string &path, const std::string &key) {
    std::string error;
    std::vector<rocksdb_column_family_handle_t *> h;
    rocksdb_t *db = plain_open(path, {"default"}, &error, &h);
    ASSERT_TRUE(db) << error;
    rocksdb_writeoptions_t *wo = rocksdb_writeoptions_create();
    char *err = nullptr;
    rocksdb_put(db, wo, key.data(), key.size(), "v", 1, &err);
    ASSERT_EQ("", take(err));
    rocksdb_writeoptions_destroy(wo);
    rocksdb_column_family_handle_destroy(h[0]);
    rocksdb_close(db);
  }
  std::vector<std::string> families(const std::string &path, bool facade) {
    rocksdb_options_t *o = rocksdb_options_create();
    size_t n = 0;
    char *err = nullptr;
    char **list = facade ? pglog_db_list_column_families(o, path.c_str(), &n, &err)
                         : rocksdb_list_column_families(o, path.c_str(), &n, &err);
    EXPECT_EQ("", take(err));
    std::vector<std::string> v(list, list + n);
    rocksdb_list_column_families_destroy(list, n);
    rocksdb_options_destroy(o);
    return v;
  }

  TempDir dir_;
};

/* ---------------------------------------------------------------------------------------------- */
/* What works                                                                                     */

TEST_F(DbFacade, SingleKeysSurviveReopen) {
  Db db(dir_.db());
  ASSERT_OK(db.open());
  for (int round = 0; round < 2; round++) {
    ASSERT_OK(db.put(0, "a", "1"));
    ASSERT_OK(db.put(0, "pglog/1.2a/1", "one"));
    ASSERT_OK(db.put(0, "pglog/1.2a/2", ""));
    ASSERT_OK(db.put(0, "pglog/1.2a/3", "three"));
    ASSERT_OK(db.del(0, "pglog/1.2a/3"));
    EXPECT_EQ("one", db.get(0, "pglog/1.2a/1"));
    EXPECT_EQ("", db.get(0, "pglog/1.2a/2"));
    EXPECT_FALSE(db.get(0, "pglog/1.2a/3"));
    EXPECT_FALSE(db.get(0, "pglog/1.2b/1"));
    EXPECT_EQ("1", db.get(0, "a"));
    db.close();
    ASSERT_OK(db.open());
    KeyValues want = {{"a", "1"}, {"pglog/1.2a/1", "one"}, {"pglog/1.2a/2", ""}};
    EXPECT_EQ(want, all(db));
  }
}

TEST_F(DbFacade, FunctionsWithoutColumnFamily) {
  rocksdb_options_t *o = rocksdb_options_create();
  rocksdb_options_set_create_if_missing(o, 1);
  Db x(dir_.db());  // for its option objects
  char *err = nullptr;
  pglog_db_t *db = pglog_db_open(o, nullptr, dir_.db().c_str(), &err);
  ASSERT_EQ("", take(err));
  for (const char *k : {"k", "pglog/1/k"}) {
    size_t n = strlen(k), vn = 0;
    pglog_db_put(db, x.wo, k, n, "v", 1, &err);
    ASSERT_EQ("", take(err));
    char *v = pglog_db_get(db, x.ro, k, n, &vn, &err);
    ASSERT_TRUE(v);
    EXPECT_EQ("v", std::string(v, vn));
    rocksdb_free(v);
    pglog_pinnable_t *p = pglog_db_get_pinned(db, x.ro, k, n, &err);
    ASSERT_TRUE(p);
    EXPECT_EQ("v", std::string(pglog_pinnable_value(p, &vn), vn));
    pglog_pinnable_destroy(p);
    pglog_db_delete(db, x.wo, k, n, &err);
    EXPECT_FALSE(pglog_db_get_pinned(db, x.ro, k, n, &err));
    EXPECT_FALSE(pglog_db_get(db, x.ro, k, n, &vn, &err));
    EXPECT_EQ(0u, vn);
    ASSERT_EQ("", take(err));
    pglog_db_put_cf(db, x.wo, nullptr, k, n, "w", 1, &err);
    pglog_db_singledelete_cf(db, x.wo, nullptr, k, n, &err);
    pglog_db_put_cf(db, x.wo, nullptr, k, n, "w", 1, &err);
    pglog_db_delete_range_cf(db, x.wo, nullptr, "a", 1, "z", 1, &err);
    pglog_db_delete_range_cf(db, x.wo, nullptr, "a", 1, "a", 1, &err);
    ASSERT_EQ("", take(err));
    EXPECT_FALSE(pglog_db_get(db, x.ro, k, n, &vn, &err));
  }
  pglog_db_compact_range_cf(db, nullptr, nullptr, 0, nullptr, 0);
  pglog_db_close(db);
  pglog_db_close(nullptr);
  pglog_iter_destroy(nullptr);
  pglog_pinnable_destroy(nullptr);
  rocksdb_options_destroy(o);
}

TEST_F(DbFacade, BatchAcrossFamiliesIsOneSequence) {
  Db db(dir_.db(), {"default", "D", "P"});
  db.set("pglog://?cf=P&prefix=&pgid=fixed:8");
  ASSERT_OK(db.open());
  uint64_t before = pglog_db_latest_sequence_number(db.db);
  rocksdb_writebatch_t *b = rocksdb_writebatch_create();
  rocksdb_writebatch_put_cf(b, db.handles[1], "d", 1, "1", 1);
  rocksdb_writebatch_put_cf(b, db.handles[2], "00000001_info", 13, "2", 1);
  rocksdb_writebatch_put(b, "x", 1, "3", 1);
  ASSERT_OK(db.write(b));
  rocksdb_writebatch_destroy(b);
  EXPECT_EQ(before + 2, pglog_db_latest_sequence_number(db.db)) << "pg log keys take no sequence";
  EXPECT_EQ("1", db.get(1, "d"));
  EXPECT_EQ("2", db.get(2, "00000001_info"));
  EXPECT_EQ("3", db.get(0, "x"));
  char *err = nullptr;
  size_t n;
  EXPECT_FALSE(
      rocksdb_get_cf(pglog_db_base(db.db), db.ro, db.handles[2], "00000001_info", 13, &n, &err));
}

TEST_F(DbFacade, FamilyIdsComeInTheOrderOfTheList) {
  std::vector<std::string> names = {"default"};
  for (int i = 1; i < 12; i++)
    names.push_back("cf" + std::to_string(20 - i));
  Db db(dir_.db(), names);
  ASSERT_OK(db.open());
  for (int i = 0; i < 12; i++)
    EXPECT_EQ((uint32_t)i, rocksdb_column_family_handle_get_id(db.handles[i]));
}

TEST_F(DbFacade, MultiGetOfBothKinds) {
  Db db(dir_.db(), {"default", "D"});
  ASSERT_OK(db.open());
  ASSERT_OK(db.put(0, "a", "plain"));
  ASSERT_OK(db.put(1, "pglog/1/a", "other family"));
  ASSERT_OK(db.put(0, "pglog/1/a", "log"));
  ASSERT_OK(db.put(0, "pglog/1/empty", ""));
  const rocksdb_column_family_handle_t *h[] = {db.handles[0], db.handles[1], db.handles[0],
                                               db.handles[0], db.handles[0], db.handles[0]};
  const char *k[] = {"a", "pglog/1/a", "pglog/1/a", "pglog/1/b", "b", "pglog/1/empty"};
  size_t kn[] = {1, 9, 9, 9, 1, 13}, vn[6];
  char *v[6], *e[6];
  pglog_db_multi_get_cf(db.db, db.ro, h, 6, k, kn, v, vn, e);
  const char *want[] = {"plain", "other family", "log", nullptr, nullptr, ""};
  for (int i = 0; i < 6; i++) {
    EXPECT_EQ("", take(e[i]));
    ASSERT_EQ(want[i] != nullptr, v[i] != nullptr) << i;
    if (v[i]) {
      EXPECT_EQ(want[i], std::string(v[i], vn[i]));
    }
    rocksdb_free(v[i]);
  }
  pglog_db_multi_get(db.db, db.ro, 0, nullptr, nullptr, nullptr, nullptr, nullptr);

  // With a snapshot of the caller's the plain keys are read at it, pg log keys are refused.
  const rocksdb_snapshot_t *s = rocksdb_create_snapshot(pglog_db_base(db.db));
  ASSERT_OK(db.put(0, "a", "newer"));
  rocksdb_readoptions_set_snapshot(db.ro, s);
  pglog_db_multi_get_cf(db.db, db.ro, h, 3, k, kn, v, vn, e);
  EXPECT_EQ("plain", std::string(v[0], vn[0]));
  EXPECT_EQ("other family", std::string(v[1], vn[1]));
  EXPECT_FALSE(v[2]);
  EXPECT_TRUE(Says(take(e[2]), {"not supported", "snapshot", "pglog/1/a"}));
  EXPECT_TRUE(Says(*db.get(0, "pglog/1/a"), {"snapshot", "pglog/1/a"}));
  EXPECT_TRUE(Says(iterator_error(db, db.ro), {"not supported", "snapshot"}));
  rocksdb_readoptions_set_snapshot(db.ro, nullptr);
  rocksdb_release_snapshot(pglog_db_base(db.db), s);
  rocksdb_free(v[0]);
  rocksdb_free(v[1]);
}

TEST_F(DbFacade, IteratorRunsAcrossTheRange) {
  Db db(dir_.db());
  ASSERT_OK(db.open());
  std::vector<std::string> keys = {"a",         "pglog",  "pglog/1/a", "pglog/1/b",
                                   "pglog/2/a", "pglog0", "z"};
  for (auto &k : keys)
    ASSERT_OK(db.put(0, k, "v" + k));
  pglog_iterator_t *it = pglog_db_create_iterator(db.db, db.ro);
  EXPECT_FALSE(pglog_iter_valid(it));
  KeyValues kv = all_of(it), back = all_of(it, false);
  std::reverse(back.begin(), back.end());
  EXPECT_EQ(kv, back);
  ASSERT_EQ(keys.size(), kv.size());
  auto at = [&] {
    size_t n;
    const char *k = pglog_iter_valid(it) ? pglog_iter_key(it, &n) : nullptr;
    return k ? std::string(k, n) : std::string("-");
  };
  // Turn round at every place.
  for (size_t i = 0; i < keys.size(); i++) {
    EXPECT_EQ("v" + keys[i], kv[i].second);
    pglog_iter_seek(it, keys[i].data(), keys[i].size());
    EXPECT_EQ(keys[i], at());
    pglog_iter_prev(it);
    EXPECT_EQ(i ? keys[i - 1] : "-", at());
    pglog_iter_seek_for_prev(it, keys[i].data(), keys[i].size());
    EXPECT_EQ(keys[i], at());
    pglog_iter_next(it);
    EXPECT_EQ(i + 1 < keys.size() ? keys[i + 1] : "-", at());
    if (i + 1 < keys.size()) {
      pglog_iter_prev(it);
      EXPECT_EQ(keys[i], at());
      pglog_iter_next(it);
      EXPECT_EQ(keys[i + 1], at());
    }
  }
  // Seek to the iterator's own key.
  pglog_iter_seek_to_first(it);
  for (size_t i = 0; i < keys.size(); i++) {
    size_t n;
    const char *k = pglog_iter_key(it, &n);
    pglog_iter_seek(it, k, n);
    EXPECT_EQ(keys[i], at());
    pglog_iter_next(it);
  }
  pglog_iter_destroy(it);
}

TEST_F(DbFacade, IteratorKeepsItsSequence) {
  Db db(dir_.db());
  ASSERT_OK(db.open());
  ASSERT_OK(db.put(0, "a", "old"));
  ASSERT_OK(db.put(0, "pglog/1/a", "old"));
  pglog_iterator_t *it = pglog_db_create_iterator(db.db, db.ro);
  for (int i = 0; i < 3; i++) {
    ASSERT_OK(db.put(0, "a", "new"));
    ASSERT_OK(db.put(0, "pglog/1/a", "new"));
    ASSERT_OK(db.put(0, "pglog/1/b", "new"));
    ASSERT_OK(db.flush());
    pglog_db_compact_range_cf(db.db, db.handles[0], nullptr, 0, nullptr, 0);
  }
  EXPECT_EQ((KeyValues{{"a", "old"}, {"pglog/1/a", "old"}}), all_of(it));
  pglog_iter_destroy(it);
  EXPECT_EQ(3u, all(db).size());
}

// RocksDB's iterator asks its snapshot for the sequence when it opens a file with range deletes,
// long after it was made.
TEST_F(DbFacade, IteratorOpensFilesWithRangeDeletesLate) {
  Db db(dir_.db());
  rocksdb_options_set_target_file_size_base(db.options, 4096);
  ASSERT_OK(db.open());
  const rocksdb_snapshot_t *keep = rocksdb_create_snapshot(pglog_db_base(db.db));
  for (int i = 100; i < 150; i++) {
    std::string k = "a" + std::to_string(i);
    ASSERT_OK(db.put(0, k, std::string(2000, (char)i)));
    ASSERT_OK(db.del_range(0, k + "x", k + "y"));
  }
  ASSERT_OK(db.put(0, "pglog/1/a", "v"));
  ASSERT_OK(db.flush());
  pglog_db_compact_range_cf(db.db, db.handles[0], nullptr, 0, nullptr, 0);
  rocksdb_release_snapshot(pglog_db_base(db.db), keep);
  pglog_iterator_t *it = pglog_db_create_iterator(db.db, db.ro);
  std::vector<void *> churn;  // reuses memory that was freed
  for (int i = 0; i < 20000; i++) {
    churn.push_back(malloc(16 + i % 128));
    memset(churn.back(), 0x5a, 16 + i % 128);
  }
  EXPECT_EQ(51u, all_of(it).size());
  EXPECT_EQ(51u, all_of(it, false).size());
  pglog_iter_destroy(it);
  for (void *p : churn)
    free(p);
}

TEST_F(DbFacade, DeleteRangeIsSplitAtTheRule) {
  Db db(dir_.db());
  ASSERT_OK(db.open());
  for (const char *k : {"a", "pgl", "pglog/1/a", "pglog/1/b", "pglog/2/a", "pglog0", "q"})
    ASSERT_OK(db.put(0, k, "v"));
  ASSERT_OK(db.del_range(0, "b", "pglog/1/b"));
  EXPECT_EQ(
      (KeyValues{{"a", "v"}, {"pglog/1/b", "v"}, {"pglog/2/a", "v"}, {"pglog0", "v"}, {"q", "v"}}),
      all(db));
  ASSERT_OK(db.del_range(0, "pglog/1/x", "q"));
  EXPECT_EQ((KeyValues{{"a", "v"}, {"pglog/1/b", "v"}, {"q", "v"}}), all(db));
  ASSERT_OK(db.del_range(0, "a", "z"));
  EXPECT_TRUE(all(db).empty());
  ASSERT_OK(db.del_range(0, "a", "a"));
  EXPECT_TRUE(Says(db.del_range(0, "pglog/1/b", "pglog/1/a"), {"invalid", "DeleteRange"}));
  EXPECT_TRUE(Says(db.del_range(0, "b", "a"), {"invalid", "DeleteRange", "end"}));
  ASSERT_OK(db.put(0, "a", "still works"));
}

TEST_F(DbFacade, FamiliesComeAndGo) {
  Db db(dir_.db(), {"default", "D"});
  ASSERT_OK(db.open());
  EXPECT_EQ((std::vector<std::string>{"default", "D"}), families(dir_.db(), true));
  EXPECT_EQ((std::vector<std::string>{"default", "D", PGLOG_GUARD_CF}), families(dir_.db(), false));
  char *err = nullptr;
  auto *h = pglog_db_create_column_family(db.db, db.options, "E", &err);
  ASSERT_TRUE(h) << take(err);
  db.handles.push_back(h);
  ASSERT_OK(db.put(2, "pglog/1/a", "plain here"));
  ASSERT_OK(db.put(0, "pglog/1/a", "log"));
  EXPECT_EQ("plain here", db.get(2, "pglog/1/a"));
  EXPECT_FALSE(pglog_db_create_column_family(db.db, db.options, "E", &err));
  EXPECT_TRUE(Says(take(err), {"already exists"}));
  EXPECT_FALSE(pglog_db_create_column_family(db.db, db.options, PGLOG_GUARD_CF, &err));
  EXPECT_TRUE(Says(take(err), {PGLOG_GUARD_CF, "belongs to the facade"}));
  pglog_db_drop_column_family(db.db, db.handles[0], &err);
  EXPECT_TRUE(Says(take(err), {"default", "cannot be dropped", "pg log"}));
  pglog_db_drop_column_family(db.db, h, &err);
  EXPECT_EQ("", take(err));
  EXPECT_TRUE(Says(db.put(2, "x", "y"), {"record 1", "Put", "unknown column family id 3"}));
  // Many of them, so that the set of known ids grows.
  std::vector<rocksdb_column_family_handle_t *> many;
  for (int i = 0; i < 33; i++)
    many.push_back(
        pglog_db_create_column_family(db.db, db.options, ("m" + std::to_string(i)).c_str(), &err));
  ASSERT_EQ("", take(err));
  for (auto *m : many) {
    pglog_db_put_cf(db.db, db.wo, m, "k", 1, "v", 1, &err);
    EXPECT_EQ("", take(err));
    rocksdb_column_family_handle_destroy(m);
  }
  db.close();
  db.names = families(dir_.db(), true);
  EXPECT_EQ(2u + many.size(), db.names.size());
  ASSERT_OK(db.open());
  EXPECT_EQ("log", db.get(0, "pglog/1/a"));
}

TEST_F(DbFacade, CallerMayListTheGuard) {
  {
    Db db(dir_.db(), {PGLOG_GUARD_CF, "default"});
    ASSERT_OK(db.open());
    ASSERT_OK(db.put(1, "pglog/1/a", "log"));
    EXPECT_TRUE(Says(db.put(0, "k", "v"), {PGLOG_GUARD_CF, "belongs to the facade", "record 1"}));
    char *err = nullptr;
    pglog_db_drop_column_family(db.db, db.handles[0], &err);
    EXPECT_TRUE(Says(take(err), {PGLOG_GUARD_CF, "is the guard"}));
  }
  Db db(dir_.db());
  ASSERT_OK(db.open());
  EXPECT_EQ("log", db.get(0, "pglog/1/a"));
}

TEST_F(DbFacade, Properties) {
  Db db(dir_.db());
  ASSERT_OK(db.open());
  ASSERT_OK(db.put(0, "pglog/1.2a/1", "one"));
  EXPECT_NE("", db.property("pglog.stats"));
  EXPECT_EQ(0u, db.stat("wal_retirements_forced"));
  std::string pg = db.property("pglog.pg.1.2a");
  EXPECT_NE("", pg);
  EXPECT_NE("", db.property("pglog.pg.1.2a/"));
  EXPECT_EQ(pg, db.property("pglog.pg.0x312e32612f"));
  EXPECT_EQ(pg, db.property("pglog.pg.0x312E3261"));
  EXPECT_EQ("", db.property("pglog.pg.9.9"));
  EXPECT_EQ("", db.property("pglog.pg.0x3"));
  EXPECT_EQ("", db.property("pglog.pg.0xzz"));
  EXPECT_NE("", db.property("rocksdb.stats"));
  EXPECT_EQ("", db.property("rocksdb.no.such"));
  EXPECT_EQ("", db.property("pglog.no.such"));
}

TEST_F(DbFacade, EnvFromTheOptions) {
  Db db(dir_.db());
  char *err = nullptr;
  rocksdb_options_t *with_env = rocksdb_options_create();
  rocksdb_get_options_from_string(db.options, "env=pglog://?arena_step=64K", with_env, &err);
  ASSERT_EQ("", take(err));
  std::swap(db.options, with_env);
  EXPECT_TRUE(Says(db.open(true), {"already have a pglog Env"}));
  ASSERT_OK(db.open(false));
  ASSERT_OK(db.put(0, "pglog/1/a", "v"));
  db.close();
  ASSERT_OK(db.open(false));
  EXPECT_EQ("v", db.get(0, "pglog/1/a"));
  rocksdb_options_destroy(with_env);
}

TEST_F(DbFacade, SeparateWalDirectoryAndArena) {
  Db db(dir_.db());
  std::filesystem::create_directory(dir_.path() + "/wal");
  db.set("pglog://?wal_dir=" + dir_.path() + "/wal&arena=" + dir_.path() + "/arena");
  ASSERT_OK(db.open());
  ASSERT_OK(db.put(0, "pglog/1/a", "v"));
  EXPECT_GT(wal_use(dir_.path() + "/wal").files, 0u);
  EXPECT_EQ(0u, wal_use(dir_.db()).files);
  db.close();
  ASSERT_OK(db.open());
  EXPECT_EQ("v", db.get(0, "pglog/1/a"));
  db.close();
  rocksdb_options_set_wal_dir(db.options, "/elsewhere");
  EXPECT_TRUE(Says(db.open(), {"wal_dir=/elsewhere", dir_.path() + "/wal"}));
  rocksdb_options_set_wal_dir(db.options, "");
  char *err = nullptr;
  pglog_destroy_db(db.options, &db.po, dir_.db().c_str(), &err);
  EXPECT_EQ("", take(err));
  for (const char *gone : {"/wal", "/arena", "/db"})
    EXPECT_FALSE(std::filesystem::exists(dir_.path() + gone)) << gone;
}

TEST_F(DbFacade, DestroyRemovesEverything) {
  Db db(dir_.db(), {"default", "D"});
  ASSERT_OK(db.open());
  ASSERT_OK(db.put(0, "pglog/1/a", "v"));
  char *err = nullptr;
  pglog_destroy_db(db.options, &db.po, dir_.db().c_str(), &err);
  EXPECT_TRUE(Says(take(err), {"lock"})) << "while it is open";
  EXPECT_EQ("v", db.get(0, "pglog/1/a"));
  ASSERT_OK(db.flush());
  ASSERT_OK(db.put(0, "pglog/1/b", "v"));
  db.close();
  std::ofstream(dir_.db() + "/000123.log.cut.1") << "saved";
  pglog_destroy_db(db.options, &db.po, dir_.db().c_str(), &err);
  EXPECT_EQ("", take(err));
  EXPECT_FALSE(std::filesystem::exists(dir_.db()));
  ASSERT_OK(db.open());  // as new
  EXPECT_FALSE(db.get(0, "pglog/1/a"));
}

TEST_F(DbFacade, WriteErrorTextStaysWithItsWriter) {
  Db db(dir_.db());
  ASSERT_OK(db.open());
  char *err = strdup("of an earlier call");
  pglog_db_put(db.db, db.wo, "pglog/1/a", 9, "v", 1, &err);
  EXPECT_EQ("of an earlier call", take(err)) << "left alone on success";
}

/* ---------------------------------------------------------------------------------------------- */
/* WAL retirement                                                                                 */

struct Retire {
  const char *name;
  bool guard, atomic_flush;
};
class DbRetire : public DbFacade, public ::testing::WithParamInterface<Retire> {};

TEST_P(DbRetire, WalsOfPgLogKeysAloneStayBounded) {
  const uint64_t limit = 1 << 20;
  Db db(dir_.db());
  rocksdb_options_set_max_total_wal_size(db.options, limit);
  rocksdb_options_set_atomic_flush(db.options, GetParam().atomic_flush);
  if (!GetParam().guard)
    db.set("pglog://?guard=0");
  db.set("pglog://?memory=1M");
  ASSERT_OK(db.open());
  const uint64_t first = wal_use(dir_.db()).newest;
  std::optional<uint64_t> forced;  // until the first new WAL, which a writer makes itself
  const int n = 12 * 1024;         // of 1 KiB
  for (int i = 0; i < n; i++) {
    char key[64];
    snprintf(key, sizeof key, "pglog/1.%x/%020d", i % 16, i);
    std::string v(1000, (char)i);
    ASSERT_OK(db.put(0, key, v));
    if (i >= 1000) {  // trim
      snprintf(key, sizeof key, "pglog/1.%x/%020d", (i - 1000) % 16, i - 1000);
      ASSERT_OK(db.del(0, key));
    }
    if (!forced && i % 16 == 0 && wal_use(dir_.db()).newest > first)
      forced = db.stat("wal_retirements_forced");
    if (i % 512 == 0) {
      ASSERT_TRUE(await_wals(dir_.db(), 4 * limit)) << "while writing";
    }
  }
  ASSERT_OK(db.checkpoint());
  EXPECT_TRUE(await_wals(dir_.db(), 3 * limit)) << "at the end";
  EXPECT_EQ(1000u, all(db).size());
  ASSERT_TRUE(forced);
  if (GetParam().guard && !GetParam().atomic_flush) {
    // Later on a flush that is late may make one: RocksDB starts no other until it is done.
    EXPECT_EQ(0u, *forced) << "RocksDB does it by itself";
  } else {
    EXPECT_EQ(1u, *forced);
    EXPECT_GT(db.stat("wal_retirements_forced"), 2u);
  }
  db.close();
  ASSERT_OK(db.open());
  EXPECT_EQ(1000u, all(db).size());
}

INSTANTIATE_TEST_SUITE_P(Kinds, DbRetire,
                         ::testing::Values(Retire{"guard", true, false},
                                           Retire{"no_guard", false, false},
                                           Retire{"atomic_flush", true, true}),
                         [](const auto &i) { return std::string(i.param.name); });

TEST_F(DbFacade, DroppedFamilyHoldsNoWalBack) {
  const uint64_t limit = 1 << 20;
  Db db(dir_.db(), {"default", "D"});
  rocksdb_options_set_max_total_wal_size(db.options, limit);
  ASSERT_OK(db.open());
  ASSERT_OK(db.put(1, "old", "key"));
  ASSERT_OK(db.put(0, "x", "y"));
  ASSERT_OK(db.flush(0));
  char *err = nullptr;
  pglog_db_drop_column_family(db.db, db.handles[1], &err);
  ASSERT_EQ("", take(err));
  for (int i = 0; i < 12 * 1024; i++)
    ASSERT_OK(db.put(0, "pglog/1/" + std::to_string(i % 100), std::string(1000, 'x')));
  ASSERT_OK(db.checkpoint());
  EXPECT_TRUE(await_wals(dir_.db(), 4 * limit));
}

/* ---------------------------------------------------------------------------------------------- */
/* What is refused                                                                                */

TEST_F(DbFacade, OptionsRefused) {
  struct {
    const char *name;
    void (*set)(rocksdb_options_t *);
  } cases[] = {
      {"manual_wal_flush=true", [](auto *o) { rocksdb_options_set_manual_wal_flush(o, 1); }},
      {"enable_pipelined_write=true",
       [](auto *o) { rocksdb_options_set_enable_pipelined_write(o, 1); }},
      {"unordered_write=true", [](auto *o) { rocksdb_options_set_unordered_write(o, 1); }},
      {"paranoid_checks=false", [](auto *o) { rocksdb_options_set_paranoid_checks(o, 0); }},
      {"wal_compression=kZSTD",
       [](auto *o) { rocksdb_options_set_wal_compression(o, rocksdb_zstd_compression); }},
      {"kSkipAnyCorruptedRecords",
       [](auto *o) {
         rocksdb_options_set_wal_recovery_mode(o, rocksdb_skip_any_corrupted_records_recovery);
       }},
      {"inplace_update_support=true",
       [](auto *o) { rocksdb_options_set_inplace_update_support(o, 1); }},
  };
  for (auto &c : cases) {
    Db db(dir_.db());
    c.set(db.options);
    EXPECT_TRUE(Says(db.open(), {"not supported", c.name}));
    EXPECT_FALSE(std::filesystem::exists(dir_.db() + "/CURRENT")) << c.name;
  }
  for (const char *text :
       {"two_write_queues=true", "allow_2pc=true", "best_efforts_recovery=true"}) {
    Db db(dir_.db());
    char *err = nullptr;
    rocksdb_options_t *o = rocksdb_options_create();
    rocksdb_get_options_from_string(db.options, text, o, &err);
    ASSERT_EQ("", take(err));
    std::swap(o, db.options);
    EXPECT_TRUE(Says(db.open(), {"not supported", text}));
    rocksdb_options_destroy(o);
  }
  Db db(dir_.db());
  db.set("pglog://?guard=0");
  rocksdb_options_set_atomic_flush(db.options, 1);
  EXPECT_TRUE(Says(db.open(), {"atomic_flush=true", "guard=0"}));
  rocksdb_options_set_atomic_flush(db.options, 0);
  db.po.memory = 1;
  EXPECT_TRUE(Says(db.open(), {"memory"}));
  db.po.memory = 64 << 20;
  ASSERT_OK(db.open());
}

TEST_F(DbFacade, WritesRefused) {
  Db db(dir_.db(), {"default", "D"});
  ASSERT_OK(db.open());
  ASSERT_OK(db.put(0, "pglog/1/a", "v"));
  uint64_t seq = pglog_db_latest_sequence_number(db.db);

  rocksdb_writeoptions_disable_WAL(db.wo, 1);
  EXPECT_TRUE(Says(db.put(0, "pglog/1/a", "w"), {"not supported", "disableWAL=true"}));
  EXPECT_TRUE(Says(db.put(0, "a", "w"), {"not supported", "disableWAL=true"}));
  rocksdb_writeoptions_disable_WAL(db.wo, 0);

  const std::string put77("\x05\x4d\x01k\x01v", 6);
  const std::string put0("\x01\x02zz\x01v", 6);
  EXPECT_TRUE(Says(write_raw(db, put0 + put77, 2), {"record 2", "Put", "key k", "family id 77"}));
  EXPECT_FALSE(db.get(0, "zz")) << "nothing of a refused batch is written";
  EXPECT_TRUE(Says(write_raw(db, std::string("\x05\x02\x01k\x01v", 6), 1), {PGLOG_GUARD_CF}));
  EXPECT_TRUE(Says(write_raw(db, std::string("\x02\x09pglog/1/a\x01m", 13), 1),
                   {"not supported", "Merge", "pglog/1/a"}));
  EXPECT_TRUE(Says(write_raw(db, std::string("\x03\x04\xb1PGL", 6), 0), {"LogData"}));
  EXPECT_TRUE(Says(write_raw(db, put0, 2), {"corruption", "count"}));
  EXPECT_TRUE(Says(write_raw(db, put0 + "\x7f", 1), {"corruption"}));
  EXPECT_TRUE(Says(write_raw(db, put0.substr(0, 5), 1), {"corruption"}));
  EXPECT_TRUE(Says(write_raw(db, std::string("\x09", 1), 0), {"not supported", "two-phase"}));
  std::string long_key = "pglog/1/" + std::string(PGLOG_KEY_MAX, 'k');
  EXPECT_TRUE(Says(db.put(0, long_key, "v"), {std::to_string(PGLOG_KEY_MAX)}));
  EXPECT_EQ(seq, pglog_db_latest_sequence_number(db.db));

  rocksdb_writeoptions_set_ignore_missing_column_families(db.wo, 1);
  EXPECT_OK(write_raw(db, put0 + put77, 2));
  EXPECT_EQ("v", db.get(0, "zz"));
  EXPECT_EQ("v", db.get(0, "pglog/1/a"));
  EXPECT_OK(db.put(0, "pglog/1/a", "w"));
  db.close();
  ASSERT_OK(db.open());
  EXPECT_EQ("w", db.get(0, "pglog/1/a"));
}

TEST_F(DbFacade, IteratorOptionsRefused) {
  Db db(dir_.db(), {"default", "D"});
  ASSERT_OK(db.open());
  ASSERT_OK(db.put(0, "pglog/1/a", "v"));
  ASSERT_OK(db.put(1, "k", "v"));
  rocksdb_readoptions_set_tailing(db.ro, 1);
  EXPECT_TRUE(Says(iterator_error(db, db.ro), {"not supported", "tailing"}));
  EXPECT_EQ(1u, all(db, 1).size()) << "another column family";
  rocksdb_readoptions_set_tailing(db.ro, 0);
  rocksdb_readoptions_set_prefix_same_as_start(db.ro, 1);
  EXPECT_TRUE(Says(iterator_error(db, db.ro), {"not supported", "prefix_same_as_start"}));
}

TEST_F(DbFacade, OpenedTwice) {
  Db db(dir_.db()), again(dir_.db()), dots(dir_.path() + "/./db/../db");
  ASSERT_OK(db.open());
  ASSERT_OK(db.put(0, "pglog/1/a", "v"));
  EXPECT_TRUE(Says(again.open(), {"lock"}));
  EXPECT_NE("", dots.open());
  EXPECT_EQ("v", db.get(0, "pglog/1/a"));
  ASSERT_OK(db.put(0, "pglog/1/a", "w"));
  db.close();
  ASSERT_OK(dots.open());
  EXPECT_EQ("w", dots.get(0, "pglog/1/a"));
}

TEST_F(DbFacade, TwoDatabasesSideBySide) {
  Db a(dir_.path() + "/a"), b(dir_.path() + "/b");
  ASSERT_OK(a.open());
  ASSERT_OK(b.open());
  ASSERT_OK(a.put(0, "pglog/1/k", "a"));
  ASSERT_OK(b.put(0, "pglog/1/k", "b"));
  EXPECT_EQ("a", a.get(0, "pglog/1/k"));
  EXPECT_EQ("b", b.get(0, "pglog/1/k"));
  a.close();
  ASSERT_OK(a.open());
  EXPECT_EQ("a", a.get(0, "pglog/1/k"));
}

TEST_F(DbFacade, MissingArenaIsRefused) {
  Db db(dir_.db());
  ASSERT_OK(db.open());
  ASSERT_OK(db.put(0, "pglog/1/a", "v"));
  ASSERT_OK(db.flush());
  db.close();
  std::string arena = dir_.db() + "/pglog.arena";
  std::filesystem::rename(arena, dir_.path() + "/aside");
  EXPECT_TRUE(Says(db.open(), {"arena"}));
  EXPECT_FALSE(std::filesystem::exists(arena)) << "never a new empty one";
  std::filesystem::rename(dir_.path() + "/aside", arena);
  ASSERT_OK(db.open());
  EXPECT_EQ("v", db.get(0, "pglog/1/a"));
}

TEST_F(DbFacade, OtherRuleIsRefused) {
  Db db(dir_.db(), {"default", "P"});
  ASSERT_OK(db.open());
  ASSERT_OK(db.put(0, "pglog/1/a", "v"));
  db.close();
  Db other(dir_.db(), {"default", "P"});
  other.set("pglog://?cf=P&prefix=&pgid=fixed:8");
  EXPECT_TRUE(Says(other.open(), {"rule", "pgid"}));
  db.set("pglog://?prefix=pglog/");
  ASSERT_OK(db.open());
  EXPECT_EQ("v", db.get(0, "pglog/1/a"));
}

TEST_F(DbFacade, RuleInSuperblockHoldsWhenNoneIsGiven) {
  Db db(dir_.db(), {"default", "P"});
  db.set("pglog://?cf=P&prefix=&pgid=fixed:8");
  ASSERT_OK(db.open());
  ASSERT_OK(db.put(1, "00000001x", "v"));
  db.close();
  Db again(dir_.db(), {"default", "P"});
  ASSERT_OK(again.open());
  EXPECT_EQ("v", again.get(1, "00000001x"));
  ASSERT_OK(again.put(0, "pglog/1/a", "not of the rule"));
  size_t n;
  char *err = nullptr;
  char *v = rocksdb_get(pglog_db_base(again.db), again.ro, "pglog/1/a", 9, &n, &err);
  EXPECT_TRUE(v);
  rocksdb_free(v);
}

TEST_F(DbFacade, KeyOfTheRuleInRocksDBIsRefused) {
  plain_put(dir_.db(), "pglog/1.2a/1");
  Db db(dir_.db());
  EXPECT_TRUE(Says(db.open(), {"pglog/1.2a/1", "import", "mismatch"}));
  EXPECT_EQ((std::vector<std::string>{"default"}), families(dir_.db(), false)) << "left as it was";
  db.set("pglog://?prefix=other/");
  ASSERT_OK(db.open());
  EXPECT_EQ("v", db.get(0, "pglog/1.2a/1"));
  db.close();
  // No guard: found after RocksDB is open.
  plain_put(dir_.path() + "/b", "pglog/1.2a/1");
  Db bare(dir_.path() + "/b");
  bare.set("pglog://?guard=0");
  EXPECT_TRUE(Says(bare.open(), {"pglog/1.2a/1", "import", "mismatch"}));
  plain_put(dir_.path() + "/b", "other");
}

TEST_F(DbFacade, PlainDatabaseIsTakenOver) {
  plain_put(dir_.db(), "a");
  {
    Db db(dir_.db());
    rocksdb_options_set_create_missing_column_families(db.options, 0);
    EXPECT_TRUE(Says(db.open(), {PGLOG_GUARD_CF, "create_missing_column_families", "guard=0"}));
  }
  Db db(dir_.db());
  ASSERT_OK(db.open());
  ASSERT_OK(db.put(0, "pglog/1/a", "v"));
  EXPECT_EQ((KeyValues{{"a", "v"}, {"pglog/1/a", "v"}}), all(db));
}

TEST_F(DbFacade, FamiliesMissing) {
  {
    Db db(dir_.db(), {"default", "D"});
    rocksdb_options_set_create_missing_column_families(db.options, 0);
    EXPECT_TRUE(Says(db.open(), {"column family D", "create_missing_column_families"}));
  }
  {
    Db db(dir_.db());
    db.set("pglog://?cf=P&prefix=");
    EXPECT_TRUE(Says(db.open(), {"column family P", "rule"}));
    rocksdb_options_set_create_if_missing(db.options, 0);
    db.names = {"default", "P"};
    EXPECT_TRUE(Says(db.open(), {"does not exist"}));
    EXPECT_FALSE(std::filesystem::exists(dir_.db() + "/CURRENT"));
  }
  Db db(dir_.db(), {"default", "D"});
  ASSERT_OK(db.open());
  db.close();
  db.names = {"default"};
  EXPECT_TRUE(Says(db.open(), {"Column families not opened: D"}));
}

TEST_F(DbFacade, GuardKeepsPlainOpensOut) {
  {
    Db db(dir_.db());
    ASSERT_OK(db.open());
    ASSERT_OK(db.put(0, "pglog/1/a", "v"));
  }
  std::string error;
  std::vector<rocksdb_column_family_handle_t *> h;
  EXPECT_FALSE(plain_open(dir_.db(), {"default"}, &error, &h));
  EXPECT_TRUE(Says(error, {PGLOG_GUARD_CF}));
  EXPECT_FALSE(plain_open(dir_.db(), {"default", PGLOG_GUARD_CF}, &error, &h));
  EXPECT_TRUE(Says(error, {PGLOG_GUARD_COMPARATOR}));
  Db db(dir_.db());
  ASSERT_OK(db.open());
  EXPECT_EQ("v", db.get(0, "pglog/1/a"));
}

TEST_F(DbFacade, OtherComparatorIsRefused) {
  Db db(dir_.db());
  static rocksdb_comparator_t *reverse = rocksdb_comparator_create(
      nullptr, [](void *) {},
      [](void *, const char *a, size_t an, const char *b, size_t bn) {
        return std::string(b, bn).compare(std::string(a, an));
      },
      [](void *) { return "test.reverse"; });
  rocksdb_options_set_comparator(db.options, reverse);
  EXPECT_TRUE(Says(db.open(), {"comparator test.reverse", "default"}));
}

TEST_F(DbFacade, WritersReadWhatTheyWrote) {
  Db db(dir_.db());
  ASSERT_OK(db.open());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; i++) {
        std::string k = (i % 2 ? "pglog/" : "data/") + std::to_string(t) + "/" + std::to_string(i);
        char *err = nullptr;
        pglog_db_put(db.db, db.wo, k.data(), k.size(), "v", 1, &err);
        EXPECT_EQ("", take(err));
        size_t n;
        char *v = pglog_db_get(db.db, db.ro, k.data(), k.size(), &n, &err);
        EXPECT_TRUE(v) << "a writer reads what it wrote";
        rocksdb_free(v);
      }
    });
  }
  for (auto &t : threads)
    t.join();
  EXPECT_EQ(1200u, all(db).size());
}

}  // namespace
