// SPDX-License-Identifier: Apache-2.0
//
// Proves that bad input is refused through every door with an error that names thing, limit and
// value, that nothing written is lost by it, and that the next correct open works.
#include <fcntl.h>
#include <linux/loop.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/write_batch.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <random>

#include "db_testing.h"
#include "simdisk.h"
#include "util.h"

extern char **environ;

namespace {

namespace fs = std::filesystem;

std::string random_bytes(size_t n, uint64_t seed) {
  std::mt19937_64 rnd(seed);
  std::string s(n, '\0');
  for (auto &c : s)
    c = static_cast<char>(rnd());
  return s;
}

std::string entry(int pg, int n) {
  char key[64];
  snprintf(key, sizeof key, "pglog/1.%x/%010d", pg, n);
  return key;
}

std::string destroy(Db &db) {
  pglog_destroy_db(db.options, &db.po, db.path.c_str(), &db.err);
  return take(db.err);
}

// The options of `db` with `text` over them.
void options_from(Db &db, const std::string &text) {
  rocksdb_options_t *o = rocksdb_options_create();
  rocksdb_get_options_from_string(db.options, text.c_str(), o, &db.err);
  ASSERT_EQ("", take(db.err)) << text;
  std::swap(o, db.options);
  rocksdb_options_destroy(o);
}

class DbBadInput : public ::testing::Test {
 protected:
  // A database with a plain key and a pg log key, closed.
  void make(Db &db) {
    ASSERT_OK(db.open());
    ASSERT_OK(db.put(0, "plain", "1"));
    ASSERT_OK(db.put(0, entry(1, 1), "one"));
    db.close();
  }
  void expect_made(Db &db) {
    ASSERT_OK(db.open());
    EXPECT_EQ("1", db.get(0, "plain"));
    EXPECT_EQ("one", db.get(0, entry(1, 1)));
  }
  // What would be on disk if the process were killed now.
  void crash_image(Db &db, const std::string &to) {
    fs::remove_all(to);
    fs::copy(db.path, to, fs::copy_options::recursive);
  }
  std::vector<std::string> wals(const std::string &path) {
    std::vector<std::string> v;
    for (auto &e : fs::directory_iterator(path))
      if (e.path().extension() == ".log")
        v.push_back(e.path());
    std::sort(v.begin(), v.end());
    return v;
  }
  void patch(const std::string &file, uint64_t at, const std::string &bytes) {
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(static_cast<std::streamoff>(at));
    f << bytes;
    ASSERT_TRUE(f.good());
  }

  TempDir dir_;
};

/* ---------------------------------------------------------------------------------------------- */
/* Options                                                                                        */

TEST_F(DbBadInput, PglogOptionsThroughEveryDoor) {
  struct {
    const char *text;
    std::vector<std::string> words;
  } cases[] = {
      {"bogus=1", {"bogus"}},
      {"memory=1", {"memory", "1", "1M"}},
      {"memory=12X", {"memory", "12X"}},
      {"arena_max=1K", {"arena_max", "1K"}},
      {"arena_step=2G", {"arena_step", "2G"}},
      {"queue_depth=0", {"queue_depth", "0", "1..1K"}},
      {"pgid=fixed:0", {"pgid", "fixed:0"}},
      {"pgid=sometimes:3", {"pgid", "sometimes:3"}},
      {"prefix=0xZZ", {"prefix", "0xZZ"}},
      {"format=2", {"format", "2"}},
      {"guard=maybe", {"guard", "maybe"}},
  };
  for (auto &c : cases) {
    SCOPED_TRACE(c.text);
    std::string uri = std::string("pglog://?") + c.text;
    // The facade's own options.
    struct pglog_options o;
    struct pglog_error e;
    pglog_options_init(&o);
    EXPECT_EQ(PGLOG_EINVAL, pglog_options_parse(&o, uri.c_str(), &e));
    EXPECT_TRUE(Says(e.text, c.words));
    // env=, in its two forms.
    for (const std::string &text : {"env=" + uri, std::string("env={id=pglog;") + c.text + "}"}) {
      rocksdb_options_t *in = rocksdb_options_create(), *out = rocksdb_options_create();
      char *err = nullptr;
      rocksdb_get_options_from_string(in, text.c_str(), out, &err);
      EXPECT_TRUE(Says(take(err), c.words)) << text;
      rocksdb_options_destroy(in);
      rocksdb_options_destroy(out);
    }
    // What --fs_uri does.
    std::shared_ptr<rocksdb::Env> guard;
    rocksdb::Env *env = nullptr;
    rocksdb::Status s =
        rocksdb::Env::CreateFromUri(rocksdb::ConfigOptions(), "", uri, &env, &guard);
    EXPECT_TRUE(s.IsInvalidArgument());
    EXPECT_TRUE(Says(s.ToString(), c.words));
  }
  Db db(dir_.db());
  make(db);
  options_from(db, "env=pglog://?memory=1M");
  ASSERT_OK(db.open(false));
  EXPECT_EQ("one", db.get(0, entry(1, 1)));
}

TEST_F(DbBadInput, RocksDBOptionsThroughEveryDoor) {
  Db db(dir_.db());
  db.set("pglog://?guard=0");  // so that the other doors may open it too
  make(db);
  for (const std::string text :
       {"manual_wal_flush=true", "wal_compression=kZSTD", "enable_pipelined_write=true",
        "unordered_write=true", "two_write_queues=true", "allow_2pc=true", "paranoid_checks=false",
        "wal_recovery_mode=kSkipAnyCorruptedRecords"}) {
    SCOPED_TRACE(text);
    Db facade(dir_.db());
    facade.set("pglog://?guard=0");
    options_from(facade, text + ";allow_concurrent_memtable_write=true");
    EXPECT_TRUE(Says(facade.open(), {text}));
    // Plain RocksDB with env=pglog://, and the facade on the same options.
    options_from(facade, "env=pglog://");
    char *err = nullptr;
    EXPECT_EQ(nullptr, rocksdb_open(facade.options, dir_.db().c_str(), &err));
    EXPECT_TRUE(Says(take(err), {text}));
    EXPECT_TRUE(Says(facade.open(false), {text}));
    // The Env that --fs_uri makes.
    std::shared_ptr<rocksdb::Env> guard;
    rocksdb::Env *env = nullptr;
    ASSERT_TRUE(
        rocksdb::Env::CreateFromUri(rocksdb::ConfigOptions(), "", "pglog://", &env, &guard).ok());
    rocksdb::Options o = *reinterpret_cast<rocksdb::Options *>(facade.options);
    o.env = env;
    rocksdb::DB *cxx = nullptr;
    rocksdb::Status s = rocksdb::DB::Open(o, dir_.db(), &cxx);
    EXPECT_TRUE(Says(s.ToString(), {text}));
  }
  expect_made(db);
}

TEST_F(DbBadInput, FamilyOptionsRefusedWhenMadeLater) {
  Db db(dir_.db());
  ASSERT_OK(db.open());
  rocksdb_options_t *o = rocksdb_options_create();
  rocksdb_options_set_inplace_update_support(o, 1);
  EXPECT_EQ(nullptr, pglog_db_create_column_family(db.db, o, "D", &db.err));
  EXPECT_TRUE(Says(take(db.err), {"inplace_update_support=true", "D"}));
  EXPECT_EQ(nullptr, pglog_db_create_column_family(db.db, o, PGLOG_GUARD_CF, &db.err));
  EXPECT_NE("", take(db.err));
  rocksdb_options_destroy(o);
  ASSERT_OK(db.put(0, entry(1, 1), "v"));
}

/* Records that RocksDB would refuse only when they are in its WAL, and those that the WAL must not
 * hold. */
TEST_F(DbBadInput, RecordsRefusedBeforeTheyAreWritten) {
  Db db(dir_.db());
  make(db);
  expect_made(db);
  uint64_t seq = pglog_db_latest_sequence_number(db.db);
  struct {
    std::string record;
    uint32_t count;
    std::vector<std::string> words;
  } cases[] = {
      {std::string("\x02\x09pglog/1/a\x01m", 13), 1, {"Merge", "pglog/1/a"}},
      {std::string("\x16\x09pglog/1/a\x01m", 13), 1, {"PutEntity", "pglog/1/a"}},
      {std::string("\x18\x09pglog/1/a\x01m", 13), 1, {"TimedPut", "pglog/1/a"}},
      {std::string("\x18\x01k\x01v", 5), 1, {"TimedPut", "key k", "7.8"}},
      {std::string("\x19\x00\x01k\x01v", 6), 1, {"TimedPut", "key k", "7.8"}},
      {std::string("\x02\x01k\x01m", 5), 1, {"Merge", "key k", "merge operator"}},
      {std::string("\x0f\x01z\x01k", 5), 1, {"DeleteRange", "key z", "behind its end"}},
  };
  for (auto &c : cases) {
    std::string rep(12, '\0');
    memcpy(rep.data() + 8, &c.count, 4);
    rep += c.record;
    rocksdb_writebatch_t *b = rocksdb_writebatch_create_from(rep.data(), rep.size());
    EXPECT_TRUE(Says(db.write(b), c.words));
    rocksdb_writebatch_destroy(b);
  }
  // Families that cannot take what others can.
  static rocksdb_comparator_t *reverse = rocksdb_comparator_create(
      nullptr, [](void *) {},
      [](void *, const char *x, size_t xn, const char *y, size_t yn) {
        return std::string(y, yn).compare(std::string(x, xn));
      },
      [](void *) { return "test.reverse"; });
  rocksdb_options_t *o = rocksdb_options_create();
  rocksdb_options_set_comparator(o, reverse);
  auto *cf = pglog_db_create_column_family(db.db, o, "R", &db.err);
  ASSERT_OK(take(db.err));
  pglog_db_delete_range_cf(db.db, db.wo, cf, "a", 1, "z", 1, &db.err);
  EXPECT_TRUE(Says(take(db.err), {"DeleteRange", "behind its end"}));
  pglog_db_delete_range_cf(db.db, db.wo, cf, "z", 1, "a", 1, &db.err);
  EXPECT_OK(take(db.err));
  pglog_db_drop_column_family(db.db, cf, &db.err);
  EXPECT_OK(take(db.err));
  rocksdb_column_family_handle_destroy(cf);
  rocksdb_options_destroy(o);
  o = rocksdb_options_create();
  rocksdb_options_set_plain_table_factory(o, 8, 10, 0.75, 16);
  rocksdb_options_set_prefix_extractor(o, rocksdb_slicetransform_create_noop());
  rocksdb_options_set_allow_mmap_reads(o, 1);
  rocksdb_options_set_uint64add_merge_operator(o);
  cf = pglog_db_create_column_family(db.db, o, "T", &db.err);
  ASSERT_OK(take(db.err));
  pglog_db_delete_range_cf(db.db, db.wo, cf, "a", 1, "z", 1, &db.err);
  EXPECT_TRUE(Says(take(db.err), {"DeleteRange", "no range deletes"}));
  rocksdb_writebatch_t *merge = rocksdb_writebatch_create();
  rocksdb_writebatch_merge_cf(merge, cf, "counter1", 8, "\1\0\0\0\0\0\0\0", 8);
  EXPECT_OK(db.write(merge));
  rocksdb_writebatch_destroy(merge);
  pglog_db_drop_column_family(db.db, cf, &db.err);
  rocksdb_column_family_handle_destroy(cf);
  EXPECT_OK(take(db.err));
  rocksdb_options_destroy(o);
  seq = pglog_db_latest_sequence_number(db.db);
  rocksdb_writebatch_t *b = rocksdb_writebatch_create();
  rocksdb_writebatch_put(b, "a", 1, "v", 1);
  reinterpret_cast<rocksdb::WriteBatch *>(b)->MarkWalTerminationPoint();
  rocksdb_writebatch_put(b, "pglog/1/a", 9, "v", 1);
  EXPECT_TRUE(Says(db.write(b), {"WAL termination point"}));
  rocksdb_writebatch_destroy(b);
  EXPECT_EQ(seq, pglog_db_latest_sequence_number(db.db));
  ASSERT_OK(db.put(0, entry(1, 2), "two"));
  db.close();
  expect_made(db);
  EXPECT_EQ("two", db.get(0, entry(1, 2)));
}

/* ---------------------------------------------------------------------------------------------- */
/* Keys in the wrong place                                                                        */

TEST_F(DbBadInput, KeyOfTheRuleWrittenBesideTheFacade) {
  Db db(dir_.db());
  make(db);
  expect_made(db);
  rocksdb_put(pglog_db_base(db.db), db.wo, "pglog/1.2a/x", 12, "v", 1, &db.err);
  EXPECT_TRUE(Says(take(db.err), {"Put", "pglog/1.2a/x", "outside", "prefix"}));
  EXPECT_TRUE(Says(db.put(0, entry(1, 2), "two"), {"pglog/1.2a/x"})) << "the first error stays";
  EXPECT_EQ("one", db.get(0, entry(1, 1)));
  db.close();
  expect_made(db);
  EXPECT_FALSE(db.get(0, "pglog/1.2a/x"));
  ASSERT_OK(db.put(0, entry(1, 2), "two"));
}

/* Written without the plugin, still in the WAL at the next open. */
TEST_F(DbBadInput, KeyOfTheRuleInAWalOfPlainRocksDB) {
  rocksdb_options_t *o = rocksdb_options_create();
  rocksdb_options_set_create_if_missing(o, 1);
  rocksdb_writeoptions_t *wo = rocksdb_writeoptions_create();
  char *err = nullptr;
  auto plain = [&](auto f) {
    rocksdb_t *db = rocksdb_open(o, dir_.db().c_str(), &err);
    ASSERT_EQ("", take(err));
    f(db);
    ASSERT_EQ("", take(err));
    rocksdb_close(db);
  };
  plain([&](rocksdb_t *db) { rocksdb_put(db, wo, "pglog/9/x", 9, "v", 1, &err); });
  for (const char *uri : {"pglog://", "pglog://?guard=0"}) {
    Db facade(dir_.db());
    facade.set(uri);
    EXPECT_TRUE(Says(facade.open(), {"pglog/9/x", "import", dir_.db()})) << uri;
  }
  plain([&](rocksdb_t *db) { rocksdb_delete(db, wo, "pglog/9/x", 9, &err); });
  Db facade(dir_.db());
  make(facade);
  expect_made(facade);
  rocksdb_options_destroy(o);
  rocksdb_writeoptions_destroy(wo);
}

/* ---------------------------------------------------------------------------------------------- */
/* The arena                                                                                      */

TEST_F(DbBadInput, OtherRuleIsNamedWithBoth) {
  Db db(dir_.db());
  make(db);
  Db other(dir_.db());
  other.set("pglog://?prefix=else/");
  EXPECT_TRUE(Says(other.open(), {"else/", "pglog/", dir_.db() + "/pglog.arena"}));
  expect_made(db);
}

TEST_F(DbBadInput, ArenaOfAnotherDatabase) {
  Db a(dir_.path() + "/a"), b(dir_.path() + "/b");
  make(a);
  make(b);
  auto swap = [&] {
    fs::rename(a.path + "/pglog.arena", dir_.path() + "/x");
    fs::rename(b.path + "/pglog.arena", a.path + "/pglog.arena");
    fs::rename(dir_.path() + "/x", b.path + "/pglog.arena");
  };
  auto identity = [](const Db &db) {
    std::string id;
    std::ifstream(db.path + "/IDENTITY") >> id;
    return id;
  };
  swap();
  EXPECT_TRUE(Says(a.open(), {"another database", identity(a), identity(b)}));
  EXPECT_TRUE(Says(b.open(), {"another database", identity(a), identity(b)}));
  swap();
  expect_made(a);
  // In use by an open database.
  Db c(dir_.path() + "/c");
  c.set("pglog://?arena=" + a.path + "/pglog.arena");
  EXPECT_TRUE(Says(c.open(), {a.path + "/pglog.arena", "open already"}));
  b.set("pglog://?arena=" + a.path + "/pglog.arena");
  EXPECT_TRUE(Says(b.open(), {a.path + "/pglog.arena", "open already"}));
  b.set("pglog://?arena=" + b.path + "/pglog.arena");
  expect_made(b);
}

TEST_F(DbBadInput, ArenaOfAnotherVersionOrDamaged) {
  Db db(dir_.db());
  make(db);
  std::string arena = dir_.db() + "/pglog.arena", good = dir_.path() + "/good";
  fs::copy(arena, good);
  auto block = [&](int slot) {
    std::string s(PGLOG_BLOCK, '\0');
    std::ifstream f(good, std::ios::binary);
    f.seekg(slot * (int)PGLOG_BLOCK);
    f.read(s.data(), PGLOG_BLOCK);
    return s;
  };
  auto both = [&](auto change) {
    for (int slot = 0; slot < 2; slot++) {
      std::string s = block(slot);
      change(s);
      patch(arena, (uint64_t)slot * PGLOG_BLOCK, s);
    }
  };
  both([](std::string &s) {  // version 9, with the right CRC
    s[12] = 9;
    memset(&s[8], 0, 4);
    uint32_t crc = crc32c(0, s.data(), s.size());
    memcpy(&s[8], &crc, 4);
  });
  EXPECT_TRUE(Says(db.open(), {arena, "version is 9", "is 2"}));
  EXPECT_NE("", destroy(db)) << "it may hold what this version does not know";
  both([](std::string &s) { s[100] ^= 1; });
  EXPECT_TRUE(Says(db.open(), {"Corruption", arena, "slot 0", "slot 1", "CRC"}));
  both([](std::string &s) { s.assign(s.size(), 'x'); });
  EXPECT_TRUE(Says(db.open(), {arena, "not an arena"}));
  db.set("pglog://?format=1");
  EXPECT_TRUE(Says(db.open(), {arena, "not an arena"})) << "the database is there";
  both([](std::string &s) { s.assign(s.size(), '\0'); });
  EXPECT_TRUE(Says(db.open(), {arena, "missing", "guard"}));
  fs::resize_file(arena, 3 * PGLOG_BLOCK);
  both([](std::string &) {});
  std::string e = db.open();
  EXPECT_NE("", e) << "cut short";
  db.close();
  fs::copy(good, arena, fs::copy_options::overwrite_existing);
  expect_made(db);
}

/* The older superblock is believed only with the WALs that it needs. */
TEST_F(DbBadInput, NewestSuperblockDamaged) {
  Db db(dir_.db());
  make(db);
  expect_made(db);
  std::string arena = dir_.db() + "/pglog.arena";
  for (int i = 0; i < 4; i++) {
    ASSERT_OK(db.put(0, entry(1, 10 + i), random_bytes(100, i)));
    ASSERT_OK(db.flush());
  }
  db.close();
  fs::copy(arena, dir_.path() + "/good");
  std::string slot(2 * PGLOG_BLOCK, '\0');
  std::ifstream(arena, std::ios::binary).read(slot.data(), (std::streamsize)slot.size());
  uint64_t g0 = get_le64((const uint8_t *)slot.data() + 16);
  uint64_t g1 = get_le64((const uint8_t *)slot.data() + PGLOG_BLOCK + 16);
  patch(arena, g0 > g1 ? 100 : PGLOG_BLOCK + 100, "damage");
  std::string e = db.open();
  if (e.empty()) {  // nothing was lost with it
    for (int i = 0; i < 4; i++)
      EXPECT_EQ(random_bytes(100, i), db.get(0, entry(1, 10 + i)));
    db.close();
  } else {
    EXPECT_TRUE(Says(e, {".log is missing", "check point"}));
    fs::copy(dir_.path() + "/good", arena, fs::copy_options::overwrite_existing);
  }
  expect_made(db);
}

TEST_F(DbBadInput, ArenaOfADeletedDatabase) {
  Db db(dir_.db());
  std::string arena = dir_.path() + "/arena";
  db.set("pglog://?arena=" + arena);
  for (const char *aside : {".old", ".old.1"}) {
    make(db);
    fs::remove_all(dir_.db());
    EXPECT_TRUE(Says(db.open(), {arena, "deleted database", "format=1", "1 entries"}));
    uint64_t size = fs::file_size(arena);
    db.set("pglog://?format=1");
    ASSERT_OK(db.open());
    EXPECT_EQ(size, fs::file_size(arena + aside));
    EXPECT_FALSE(db.get(0, entry(1, 1)));
    db.close();
    ASSERT_OK(destroy(db));
    EXPECT_FALSE(fs::exists(arena));
    db.set("pglog://?format=0");
  }
  // With its WALs left behind, which it needs.
  make(db);
  ASSERT_OK(db.open());
  ASSERT_OK(db.put(0, entry(1, 2), "two"));
  crash_image(db, dir_.path() + "/image");
  fs::copy(arena, dir_.path() + "/image/arena");
  db.close();
  Db image(dir_.path() + "/image");
  image.set("pglog://?arena=" + dir_.path() + "/image/arena");
  fs::rename(image.path + "/CURRENT", dir_.path() + "/CURRENT");
  EXPECT_TRUE(Says(image.open(), {"deleted database"}));
  fs::rename(dir_.path() + "/CURRENT", image.path + "/CURRENT");
  expect_made(image);
  EXPECT_EQ("two", image.get(0, entry(1, 2)));
}

/* What cannot be read is not destroyed, and format=1 is the way out once the directory is gone. */
TEST_F(DbBadInput, DamagedArenaAndDestroy) {
  Db db(dir_.db());
  std::string arena = dir_.path() + "/arena";
  db.set("pglog://?arena=" + arena);
  for (const char *what : {"CRC", "not an arena"}) {
    SCOPED_TRACE(what);
    make(db);
    fs::copy(arena, dir_.path() + "/good");
    size_t n = *what == 'C' ? 1 : PGLOG_BLOCK;
    patch(arena, *what == 'C' ? 100 : 0, std::string(n, 'x'));
    patch(arena, PGLOG_BLOCK + (*what == 'C' ? 100 : 0), std::string(n, 'x'));
    EXPECT_TRUE(Says(destroy(db), {arena, what}));
    EXPECT_TRUE(Says(db.open(), {arena, what}));
    fs::copy(dir_.path() + "/good", arena, fs::copy_options::overwrite_existing);
    expect_made(db);
    db.close();
    patch(arena, *what == 'C' ? 100 : 0, std::string(n, 'x'));
    patch(arena, PGLOG_BLOCK + (*what == 'C' ? 100 : 0), std::string(n, 'x'));
    fs::remove_all(dir_.db());
    EXPECT_TRUE(Says(db.open(), {arena, what}));
    db.set("pglog://?format=1");
    ASSERT_OK(db.open());
    EXPECT_FALSE(db.get(0, entry(1, 1)));
    db.close();
    EXPECT_TRUE(fs::exists(arena + ".old")) << "never overwritten";
    fs::remove(arena + ".old");
    fs::remove(dir_.path() + "/good");
    ASSERT_OK(destroy(db));
    db.set("pglog://?format=0");
  }
}

TEST_F(DbBadInput, DestroyThroughPlainRocksDB) {
  Db db(dir_.db());
  make(db);
  expect_made(db);
  ASSERT_OK(db.put(0, entry(1, 2), "two"));
  db.close();
  options_from(db, "env=pglog://");
  rocksdb_destroy_db(db.options, dir_.db().c_str(), &db.err);
  ASSERT_OK(take(db.err));
  for (auto &e : fs::directory_iterator(dir_.db()))
    EXPECT_EQ("pglog.arena", e.path().filename());
  ASSERT_OK(db.open(false)) << "no format=1 needed";
  EXPECT_FALSE(db.get(0, entry(1, 1)));
  EXPECT_FALSE(db.get(0, "plain"));
  ASSERT_OK(db.put(0, entry(1, 1), "new"));
  db.close();
  ASSERT_OK(db.open(false));
  EXPECT_EQ("new", db.get(0, entry(1, 1)));
}

/* ---------------------------------------------------------------------------------------------- */
/* A block device                                                                                 */

class LoopDevice {
 public:
  LoopDevice(const std::string &file, uint64_t bytes) {
    int back = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (back < 0 || control < 0 || ftruncate(back, (off_t)bytes) != 0)
      why = std::string("/dev/loop-control: ") + strerror(errno);
    for (int i = 0; why.empty() && dev_ < 0 && i < 20; i++) {
      int n = ioctl(control, LOOP_CTL_GET_FREE);
      path = "/dev/loop" + std::to_string(n);
      dev_ = n < 0 ? -1 : open(path.c_str(), O_RDWR | O_CLOEXEC);
      if (dev_ < 0) {
        why = path + ": " + strerror(errno);
      } else if (ioctl(dev_, LOOP_SET_FD, back) != 0) {  // another program was faster
        close(dev_);
        dev_ = -1;
      }
    }
    close(control);
    close(back);
  }
  ~LoopDevice() {
    if (dev_ >= 0) {
      ioctl(dev_, LOOP_CLR_FD, 0);
      close(dev_);
    }
  }
  bool ok() const { return dev_ >= 0; }
  std::string path, why;

 private:
  int dev_ = -1;
};

TEST_F(DbBadInput, ArenaOnABlockDevice) {
  LoopDevice loop(dir_.path() + "/backing", 4 << 20);
  if (!loop.ok()) {
    ASSERT_FALSE(geteuid() == 0 && access("/dev/loop-control", F_OK) == 0) << loop.why;
    GTEST_SKIP() << "needs root and loop devices: " << loop.why;
  }
  // As device paths usually are: a link that stays the same when the device is found elsewhere.
  std::string link = dir_.path() + "/block.arena";
  fs::create_symlink(loop.path, link);
  for (const std::string &path : {loop.path, link}) {
    SCOPED_TRACE(path);
    Db db(dir_.db());
    db.set("pglog://?arena=" + path);
    ASSERT_OK(db.open());
    ASSERT_OK(db.put(0, entry(1, 1), "one"));
    ASSERT_OK(db.put(0, "plain", "1"));
    ASSERT_OK(db.checkpoint());
    EXPECT_EQ(4u << 20, db.stat("arena_max_bytes"));
    Db second(dir_.path() + "/second");
    second.set("pglog://?arena=" + path);
    EXPECT_TRUE(Says(second.open(), {path, "open already"}));
    db.close();
    expect_made(db);
    db.close();
    // Foreign to another database, and never set aside by renaming the device's node.
    EXPECT_TRUE(Says(second.open(), {path, "deleted database", "format=1"}));
    ASSERT_OK(destroy(db));
    EXPECT_FALSE(fs::exists(dir_.db()));
    EXPECT_TRUE(fs::exists(path));
    ASSERT_OK(second.open()) << "destroyed: free to be used again";
    EXPECT_FALSE(second.get(0, entry(1, 1)));
    ASSERT_OK(second.put(0, entry(1, 1), "second"));
    second.close();
    fs::remove_all(second.path);
    db.set("pglog://?format=1");
    ASSERT_OK(db.open());
    EXPECT_FALSE(db.get(0, entry(1, 1)));
    ASSERT_OK(db.put(0, entry(1, 1), "third"));
    db.close();
    EXPECT_TRUE(fs::exists(path));
    EXPECT_FALSE(fs::exists(path + ".old"));
    if (path == link) {
      EXPECT_TRUE(fs::is_symlink(link)) << "now a file";
    }
    db.set("pglog://?format=0");
    ASSERT_OK(db.open());
    EXPECT_EQ("third", db.get(0, entry(1, 1)));
    db.close();
    ASSERT_OK(destroy(db));
    // Something that is not ours.
    patch(path, 0, std::string(2 * PGLOG_BLOCK, 'f'));
    EXPECT_TRUE(Says(db.open(), {path, "not an arena"}));
    EXPECT_FALSE(fs::exists(dir_.db() + "/CURRENT"));
    db.set("pglog://?format=1");
    ASSERT_OK(db.open());
    ASSERT_OK(db.put(0, entry(1, 1), "v"));
    db.close();
    ASSERT_OK(destroy(db));
  }
}

/* ---------------------------------------------------------------------------------------------- */
/* Full                                                                                           */

/* A file system that runs full for files of one kind. */
class FullFs : public rocksdb::FileSystemWrapper {
 public:
  FullFs() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char *Name() const override { return "full"; }
  rocksdb::IOStatus NewWritableFile(const std::string &f, const rocksdb::FileOptions &o,
                                    std::unique_ptr<rocksdb::FSWritableFile> *r,
                                    rocksdb::IODebugContext *g) override {
    rocksdb::IOStatus s = target_->NewWritableFile(f, o, r, g);
    if (s.ok())
      r->reset(new File(this, f, std::move(*r)));
    return s;
  }
  void fill(const char *kind) { kind_ = kind; }

 private:
  class File : public rocksdb::FSWritableFileOwnerWrapper {
   public:
    File(FullFs *fs, std::string name, std::unique_ptr<rocksdb::FSWritableFile> f)
        : FSWritableFileOwnerWrapper(std::move(f)), fs_(fs), name_(std::move(name)) {}
    rocksdb::IOStatus Append(const rocksdb::Slice &d, const rocksdb::IOOptions &o,
                             rocksdb::IODebugContext *g) override {
      return full() ? no_space() : FSWritableFileOwnerWrapper::Append(d, o, g);
    }
    rocksdb::IOStatus Append(const rocksdb::Slice &d, const rocksdb::IOOptions &o,
                             const rocksdb::DataVerificationInfo &v,
                             rocksdb::IODebugContext *g) override {
      return full() ? no_space() : FSWritableFileOwnerWrapper::Append(d, o, v, g);
    }

   private:
    bool full() const {
      const char *kind = fs_->kind_;
      return kind && name_.size() > 4 && name_.compare(name_.size() - 4, 4, kind) == 0;
    }
    rocksdb::IOStatus no_space() const {
      return rocksdb::IOStatus::NoSpace("While appending to " + name_, strerror(ENOSPC));
    }
    FullFs *fs_;
    std::string name_;
  };
  std::atomic<const char *> kind_{nullptr};
};

class DbFullDisk : public DbBadInput {
 protected:
  DbFullDisk() : fs_(std::make_shared<FullFs>()), env_(rocksdb::NewCompositeEnv(fs_)) {}
  void use(Db &db) { reinterpret_cast<rocksdb::Options *>(db.options)->env = env_.get(); }
  std::shared_ptr<FullFs> fs_;
  std::unique_ptr<rocksdb::Env> env_;
};

TEST_F(DbFullDisk, AtAWalAppend) {
  Db db(dir_.db());
  use(db);
  make(db);
  expect_made(db);
  fs_->fill(".log");
  std::string e = db.put(0, entry(1, 2), "two");
  EXPECT_TRUE(Says(e, {".log", "No space left"}));
  fs_->fill(nullptr);
  EXPECT_TRUE(Says(db.put(0, entry(1, 3), "three"), {"No space left"})) << "until reopen";
  EXPECT_TRUE(Says(db.put(0, "plain", "2"), {"No space left"}));
  EXPECT_EQ("one", db.get(0, entry(1, 1)));
  EXPECT_TRUE(Says(db.checkpoint(), {"No space left"}));
  db.close();
  expect_made(db);
  EXPECT_FALSE(db.get(0, entry(1, 2)));
  EXPECT_FALSE(db.get(0, entry(1, 3)));
  ASSERT_OK(db.put(0, entry(1, 2), "again"));
}

TEST_F(DbFullDisk, AtAnSst) {
  Db db(dir_.db());
  use(db);
  make(db);
  for (bool reopen : {false, true}) {
    expect_made(db);
    ASSERT_OK(db.put(0, entry(1, 2), "two"));
    ASSERT_OK(db.put(0, "p", "2"));
    fs_->fill(".sst");
    EXPECT_TRUE(Says(db.flush(), {".sst", "No space left"}));
    EXPECT_EQ("two", db.get(0, entry(1, 2)));
    fs_->fill(nullptr);
    if (reopen) {
      db.close();
      ASSERT_OK(db.open());
    } else {  // RocksDB looks every few seconds whether there is space again
      std::string e = "never tried";
      for (int i = 0; i < 1200 && !e.empty(); i++) {
        usleep(50000);
        e = db.put(0, entry(1, 3), "resumed");
      }
      ASSERT_OK(e);
    }
    EXPECT_EQ("two", db.get(0, entry(1, 2)));
    EXPECT_EQ("2", db.get(0, "p"));
    ASSERT_OK(db.put(0, entry(1, 3), "three"));
    ASSERT_OK(db.flush());
    db.close();
    expect_made(db);
    EXPECT_EQ("three", db.get(0, entry(1, 3)));
    db.close();
  }
}

class DbFullArena : public DbBadInput {
 protected:
  // Fill with check points in between, so that hardly a block is free, until one fails. The number
  // of entries.
  int fill(Db &db, size_t bytes, int each) {
    for (int n = 0; n < 5000; n++) {
      EXPECT_OK(db.put(0, entry(1, n), random_bytes(bytes, (uint64_t)n)));
      if (n % each == 0) {
        full_ = db.checkpoint();
        if (!full_.empty())
          return n + 1;
      }
    }
    ADD_FAILURE() << "never full";
    return 0;
  }
  // Stage until writers are refused. The number of entries.
  int stage(Db &db, int n, std::string *refused) {
    for (; n < 10000; n++) {
      *refused = db.put(0, entry(1, n), random_bytes(200000, (uint64_t)n));
      if (!refused->empty())
        return n;
    }
    ADD_FAILURE() << "never refused";
    return n;
  }
  std::string full_;
};

TEST_F(DbFullArena, RefusedThenTrimmedThenGoesOn) {
  for (int each : {1, 10}) {
    SCOPED_TRACE(each);
    Db db(dir_.path() + "/db" + std::to_string(each));
    db.set("pglog://?arena_max=1M&memory=1M&arena_step=64K");
    ASSERT_OK(db.open());
    int n = fill(db, 3000, each);
    EXPECT_TRUE(Says(full_, {"full", "arena_max", "1048576", db.path + "/pglog.arena"}));
    std::string refused;
    int staged = stage(db, n, &refused);
    EXPECT_TRUE(
        Says(refused, {"busy", "staged", "memory=1048576", "4194304", "arena_max", "1048576"}));
    EXPECT_GT(db.stat("throttled"), 0u);
    EXPECT_OK(db.put(0, "plain", "goes on"));
    for (int i = 0; i < staged; i += 7)
      EXPECT_EQ(random_bytes(i < n ? 3000 : 200000, (uint64_t)i), db.get(0, entry(1, i))) << i;
    EXPECT_FALSE(db.get(0, entry(1, staged))) << "refused, so not there";
    // Trims are let through, and make room.
    for (int i = 3; i < staged;) {
      rocksdb_writebatch_t *b = rocksdb_writebatch_create();
      for (int end = std::min(i + 50, staged); i < end; i++)
        rocksdb_writebatch_delete_cf(b, db.handles[0], entry(1, i).data(), entry(1, i).size());
      rocksdb_writebatch_put_cf(b, db.handles[0], "plain", 5, "with it", 7);
      EXPECT_OK(db.write(b));
      rocksdb_writebatch_destroy(b);
    }
    EXPECT_EQ("with it", db.get(0, "plain"));
    ASSERT_OK(db.checkpoint());
    ASSERT_OK(db.put(0, entry(1, staged), "goes on"));
    ASSERT_OK(db.checkpoint());
    db.close();
    ASSERT_OK(db.open());
    EXPECT_EQ("goes on", db.get(0, entry(1, staged)));
    EXPECT_EQ(random_bytes(3000, 2), db.get(0, entry(1, 2)));
    EXPECT_FALSE(db.get(0, entry(1, 3)));
    EXPECT_FALSE(db.get(0, entry(1, staged - 1)));
  }
}

/* Every PG keeps its newest entries: every leaf is rewritten before the old one is free. */
TEST_F(DbFullArena, TrimsOfManyPgs) {
  Db db(dir_.db());
  db.set("pglog://?arena_max=1M&memory=1M&arena_step=64K");
  ASSERT_OK(db.open());
  int rows = 0;
  for (std::string full; full.empty(); rows++) {
    ASSERT_LT(rows, 1000);
    for (int pg = 0; pg < 64; pg++)
      ASSERT_OK(db.put(0, entry(pg, rows), random_bytes(300, (uint64_t)rows * 64 + pg)));
    full = db.checkpoint();
  }
  ASSERT_GT(rows, 20);
  // Take what is left, block by block.
  rows--;
  for (int pg = 0; pg < 64; pg++)
    ASSERT_OK(db.del(0, entry(pg, rows)));
  std::string full;
  for (int i = 0; full.empty(); i++) {
    ASSERT_LT(i, 1000);
    ASSERT_OK(db.put(0, entry(64, i), random_bytes(3000, (uint64_t)i)));
    full = db.checkpoint();
  }
  for (int pg = 0; pg < 64; pg++)
    ASSERT_OK(db.del_range(0, entry(pg, 0), entry(pg, rows - 5)));
  EXPECT_OK(db.checkpoint());
  for (int pg = 0; pg < 64; pg++)
    EXPECT_EQ(random_bytes(300, (uint64_t)(rows - 3) * 64 + pg), db.get(0, entry(pg, rows - 3)));
}

TEST_F(DbFullArena, TrimmedByItselfByRangeDelete) {
  Db db(dir_.db());
  db.set("pglog://?arena_max=1M&memory=1M&arena_step=64K");
  ASSERT_OK(db.open());
  std::string refused;
  int n = fill(db, 3000, 10), staged = stage(db, n, &refused);
  ASSERT_OK(db.del_range(0, entry(1, 0), entry(1, staged)));
  // No check point is asked for: the store tries again by itself.
  std::string e = "never tried";
  for (int i = 0; i < 50 && !e.empty(); i++)
    e = db.put(0, entry(1, staged), "goes on");
  EXPECT_OK(e);
}

TEST_F(DbFullArena, ReopenedWithALargerOne) {
  Db db(dir_.db());
  db.set("pglog://?arena_max=1M&memory=1M&arena_step=64K");
  ASSERT_OK(db.open());
  std::string refused;
  int n = fill(db, 3000, 5), staged = stage(db, n, &refused);
  db.close();
  ASSERT_OK(db.open()) << "opening needs no free space";
  EXPECT_EQ(random_bytes(3000, 0), db.get(0, entry(1, 0)));
  EXPECT_EQ(random_bytes(200000, (uint64_t)staged - 1), db.get(0, entry(1, staged - 1)));
  EXPECT_TRUE(Says(db.put(0, entry(1, staged), "x"), {"arena_max"}));
  db.close();
  db.set("pglog://?arena_max=64M");
  ASSERT_OK(db.open());
  ASSERT_OK(db.checkpoint());
  ASSERT_OK(db.put(0, entry(1, staged), "goes on"));
  ASSERT_OK(db.checkpoint());
  db.close();
  // Smaller than it is: it does not grow, and is not cut.
  db.set("pglog://?arena_max=1M");
  ASSERT_OK(db.open());
  for (int i = 0; i < staged; i++)
    ASSERT_EQ(random_bytes(i < n ? 3000 : 200000, (uint64_t)i), db.get(0, entry(1, i))) << i;
  EXPECT_EQ("goes on", db.get(0, entry(1, staged)));
}

TEST_F(DbFullArena, StorageRunsOutOfSpace) {
  struct simdisk *disk;
  simdisk_config c = {};
  c.capacity = 1 << 20;
  ASSERT_EQ(0, simdisk_new(&c, &disk));
  struct pglog_io io = simdisk_io(disk);
  {
    Db db(dir_.db());
    db.po.io = &io;
    db.set("pglog://?memory=1M&arena_step=64K");
    ASSERT_OK(db.open());
    int n = fill(db, 3000, 5);
    EXPECT_TRUE(Says(full_, {"full", "No space left"}));
    c.capacity = 0;
    simdisk_faults(disk, &c);
    ASSERT_OK(db.checkpoint());
    db.close();
    ASSERT_OK(db.open());
    for (int i = 0; i < n; i++)
      ASSERT_EQ(random_bytes(3000, (uint64_t)i), db.get(0, entry(1, i))) << i;
  }
  simdisk_free(disk);
}

/* ---------------------------------------------------------------------------------------------- */
/* WALs, sizes, opened twice                                                                      */

TEST_F(DbBadInput, MissingWal) {
  Db db(dir_.db());
  ASSERT_OK(db.open());
  ASSERT_OK(db.put(0, "plain", "1"));
  ASSERT_OK(db.put(0, entry(1, 1), "one"));
  ASSERT_OK(db.checkpoint());
  ASSERT_OK(db.put(0, entry(1, 2), "two"));
  std::string image = dir_.path() + "/image", kept = dir_.path() + "/kept";
  crash_image(db, image);
  db.close();
  ASSERT_EQ(1u, wals(image).size());
  std::string wal = wals(image)[0];
  fs::rename(wal, kept);
  Db copy(image);
  EXPECT_TRUE(Says(copy.open(), {fs::path(wal).filename(), "missing", "check point"}));
  EXPECT_TRUE(wals(image).empty());
  fs::rename(kept, wal);
  expect_made(copy);
  EXPECT_EQ("two", copy.get(0, entry(1, 2)));
}

/* RocksDB's C API drops such records without a word. */
TEST_F(DbBadInput, ValuesAndKeysOverTheLimit) {
  Db db(dir_.db());
  make(db);
  expect_made(db);
  uint64_t seq = pglog_db_latest_sequence_number(db.db);
  size_t n = (size_t{1} << 32) + 4096;
  void *map = mmap(nullptr, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(MAP_FAILED, map);
  const char *big = static_cast<const char *>(map);
  std::string len = std::to_string(n), limit = "4294967295";
  for (const std::string &key : {entry(1, 1), std::string("plain")}) {
    pglog_db_put(db.db, db.wo, key.data(), key.size(), big, n, &db.err);
    EXPECT_TRUE(Says(take(db.err), {"limit", "value", len, limit}));
  }
  pglog_db_put(db.db, db.wo, big, n, "v", 1, &db.err);
  EXPECT_TRUE(Says(take(db.err), {"key", len, limit}));
  pglog_db_delete(db.db, db.wo, big, n, &db.err);
  EXPECT_TRUE(Says(take(db.err), {"key", len, limit}));
  pglog_db_singledelete_cf(db.db, db.wo, db.handles[0], big, n, &db.err);
  EXPECT_TRUE(Says(take(db.err), {"key", len, limit}));
  pglog_db_delete_range_cf(db.db, db.wo, db.handles[0], "a", 1, big, n, &db.err);
  EXPECT_TRUE(Says(take(db.err), {"key", len, limit}));
  munmap(map, n);
  EXPECT_EQ(seq, pglog_db_latest_sequence_number(db.db));
  db.close();
  expect_made(db);
}

/* What an open that failed before it took the LOCK wanted is nothing to the next one. */
TEST_F(DbBadInput, FailedOpenLeavesNoWalDirectoryBehind) {
  Db db(dir_.db());
  options_from(db, "env=pglog://?guard=0");
  ASSERT_OK(db.open(false));
  ASSERT_OK(db.put(0, entry(1, 1), "one"));
  db.close();
  rocksdb_options_set_wal_dir(db.options, (dir_.path() + "/elsewhere").c_str());
  rocksdb_options_set_keep_log_file_num(db.options, 0);
  EXPECT_TRUE(Says(db.open(false), {"keep_log_file_num"}));
  rocksdb_options_set_wal_dir(db.options, "");
  rocksdb_options_set_keep_log_file_num(db.options, 10);
  rocksdb_t *plain = rocksdb_open(db.options, dir_.db().c_str(), &db.err);
  ASSERT_OK(take(db.err));
  rocksdb_put(plain, db.wo, "pglog/1/x", 9, "v", 1, &db.err);
  EXPECT_TRUE(Says(take(db.err), {"pglog/1/x", "outside"})) << "its WAL is not followed";
  rocksdb_close(plain);
  ASSERT_OK(db.open(false));
  EXPECT_EQ("one", db.get(0, entry(1, 1)));
}

/* The other process of OpenedInAnotherProcess, this program again: opens, says so, and waits for the
 * end of its input. */
int hold(const char *path) {
  Db db(path);
  if (db.open() != "" || db.put(0, entry(1, 1), "held") != "")
    return 1;
  char c = 'o';
  return write(4, &c, 1) == 1 && read(3, &c, 1) == 0 ? 0 : 1;
}
const bool held = [] {
  const char *path = getenv("PGLOG_TEST_HOLD");
  if (path)
    exit(hold(path));
  return false;
}();

TEST_F(DbBadInput, OpenedInAnotherProcess) {
  int to[2], from[2];
  ASSERT_EQ(0, pipe(to));
  ASSERT_EQ(0, pipe(from));
  fcntl(to[1], F_SETFD, FD_CLOEXEC);
  fcntl(from[0], F_SETFD, FD_CLOEXEC);
  std::string self = fs::read_symlink("/proc/self/exe"), hold = "PGLOG_TEST_HOLD=" + dir_.db();
  std::vector<char *> env;
  for (char **e = environ; *e; e++)
    env.push_back(*e);
  env.push_back(hold.data());
  env.push_back(nullptr);
  const char *argv[] = {self.c_str(), nullptr};
  posix_spawn_file_actions_t a;
  posix_spawn_file_actions_init(&a);
  // First out of the way of 3 and 4, then there.
  posix_spawn_file_actions_adddup2(&a, to[0], 100);
  posix_spawn_file_actions_adddup2(&a, from[1], 101);
  posix_spawn_file_actions_adddup2(&a, 100, 3);
  posix_spawn_file_actions_adddup2(&a, 101, 4);
  posix_spawn_file_actions_addopen(&a, 1, "/dev/null", O_WRONLY, 0);
  pid_t pid;
  ASSERT_EQ(0, posix_spawn(&pid, self.c_str(), &a, nullptr, const_cast<char **>(argv), env.data()));
  posix_spawn_file_actions_destroy(&a);
  close(to[0]);
  close(from[1]);
  char c = 0;
  ASSERT_EQ(1, read(from[0], &c, 1)) << "the other process could not open it";
  fs::create_directory_symlink(dir_.db(), dir_.path() + "/link");
  for (const std::string &path : {dir_.db(), dir_.path() + "/link", dir_.path() + "/./db/"}) {
    Db db(path);
    EXPECT_TRUE(Says(db.open(), {"lock", "LOCK"})) << path;
    EXPECT_TRUE(Says(destroy(db), {"lock", "LOCK"})) << path;
    char *err = nullptr;
    options_from(db, "env=pglog://");
    EXPECT_EQ(nullptr, rocksdb_open(db.options, path.c_str(), &err));
    EXPECT_NE("", take(err)) << path;
  }
  // The same arena by another database.
  Db other(dir_.path() + "/other");
  other.set("pglog://?arena=" + dir_.db() + "/pglog.arena");
  EXPECT_TRUE(Says(other.open(), {dir_.db() + "/pglog.arena", "open already"}));
  close(to[1]);
  int status;
  ASSERT_EQ(pid, waitpid(pid, &status, 0));
  EXPECT_EQ(0, status);
  close(from[0]);
  Db db(dir_.db());
  ASSERT_OK(db.open());
  EXPECT_EQ("held", db.get(0, entry(1, 1)));
}

}  // namespace
