/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves that the log store holds what an ordered map would hold, through check points, views,
 * reopens, kills and power cuts, and that it reports what it cannot believe.
 */
#include "mini_db.h"

#include <condition_variable>
#include <random>
#include <thread>

namespace {

using Map = std::map<std::string, std::string>;

struct Disk {
  explicit Disk(uint64_t capacity = 0) {
    simdisk_config c = {};
    c.seed = 1;
    c.capacity = capacity;
    EXPECT_EQ(0, simdisk_new(&c, &d));
    io = simdisk_io(d);
  }
  ~Disk() { simdisk_free(d); }
  simdisk *d;
  pglog_io io;
};

#define OK(x)                       \
  do {                              \
    ASSERT_EQ(0, (x)) << err.text; \
  } while (0)

void ExpectEqual(const Map &want, MiniDb &db, const std::string &what) {
  Map got = db.Dump();
  ASSERT_EQ(want.size(), got.size()) << what;
  auto a = want.begin();
  for (auto b = got.begin(); b != got.end(); ++a, ++b) {
    ASSERT_EQ(a->first, b->first) << what;
    ASSERT_TRUE(a->second == b->second) << what << ": value of " << a->first;
  }
}

TEST(Store, WritesReadsTrimsAndComesBack) {
  Disk disk;
  WalDir dir;
  pglog_error err;
  {
    MiniDb db(&dir, &disk.io);
    OK(db.Open(&err));
    OK(db.Write1({{BLOB_PUT, Entry(1, 1), "one"}, {BLOB_PUT, Name(1, "_info"), "i1"}}, &err));
    OK(db.Write1({{BLOB_PUT, Entry(1, 2), "two"}, {BLOB_PUT, Name(1, "_info"), "i2"}}, &err));
    uint8_t *v;
    size_t n;
    OK(store_get(db.store, nullptr, S(Entry(1, 2)), &v, &n, &err));
    EXPECT_EQ("two", std::string(reinterpret_cast<char *>(v), n));
    free(v);
    OK(db.Write1({{BLOB_DELETE, Entry(1, 1), ""}}, &err));
    EXPECT_EQ(PGLOG_ENOTFOUND, store_get(db.store, nullptr, S(Entry(1, 1)), &v, &n, &err));
    ExpectEqual({{Entry(1, 2), "two"}, {Name(1, "_info"), "i2"}}, db, "staged");
    OK(store_checkpoint(db.store, &err));
    EXPECT_EQ(0u, db.Stat("layers"));
    EXPECT_EQ(2u, db.Stat("index_entries"));
    ExpectEqual({{Entry(1, 2), "two"}, {Name(1, "_info"), "i2"}}, db, "in leaves");
    OK(store_get(db.store, nullptr, S(Entry(1, 2)), &v, &n, &err));
    free(v);
    EXPECT_EQ(PGLOG_ENOTFOUND, store_get(db.store, nullptr, S(Entry(1, 1)), &v, &n, &err));
    db.Close();
  }
  MiniDb db(&dir, &disk.io);
  OK(db.Open(&err));
  ExpectEqual({{Entry(1, 2), "two"}, {Name(1, "_info"), "i2"}}, db, "reopened");
  EXPECT_EQ(0u, db.Stat("recovered_blobs"));
}

/* Random work against the model. */
class Model {
 public:
  explicit Model(uint64_t seed) : rnd(seed), seed_(seed) {}

  std::string RandomKey() {
    int pg = static_cast<int>(rnd() % 5);
    switch (rnd() % 8) {
      case 0:
        return Name(pg, "_info");
      case 1:
        return Name(pg, "dup_1");
      case 2:
        return rnd() % 2 ? "1.3" : "x"; /* too short for a PG id: a PG of its own */
      default:
        return Entry(pg, rnd() % 60);
    }
  }
  std::string RandomValue() {
    size_t n = rnd() % 20 ? rnd() % 300 : rnd() % 9000;
    std::string v(n, '\0');
    bool random = rnd() % 2;
    for (auto &c : v)
      c = random ? static_cast<char>(rnd()) : 'a' + n % 26;
    return v;
  }
  std::vector<Op> RandomTxn() {
    std::vector<Op> t;
    size_t n = 1 + rnd() % 6;
    for (size_t i = 0; i < n; i++) {
      uint64_t r = rnd() % 100;
      if (r < 60) {
        t.push_back({BLOB_PUT, RandomKey(), RandomValue()});
      } else if (r < 88) {
        t.push_back({BLOB_DELETE, RandomKey(), ""});
      } else if (r < 99) {
        std::string a = RandomKey(), b = RandomKey();
        if (rnd() % 2) { /* a trim within one PG */
          int pg = static_cast<int>(rnd() % 5);
          uint64_t v = rnd() % 40;
          a = Entry(pg, 0);
          b = Entry(pg, v + 1);
        }
        if (b < a)
          std::swap(a, b);
        if (a != b)
          t.push_back({BLOB_DELRANGE, a, b});
      } else {
        t.push_back({BLOB_DELREST, RandomKey(), ""});
      }
    }
    if (t.empty())
      t.push_back({BLOB_DELETE, RandomKey(), ""});
    return t;
  }

  std::mt19937_64 rnd;

 private:
  uint64_t seed_;
};

/* A view with what it must show for ever. */
struct OpenView {
  store_view *v;
  Map want;
};

void CheckView(MiniDb &db, Model &m, const OpenView &ov, const std::string &what) {
  pglog_error err;
  store_iter *it;
  std::string lo = m.RandomKey(), hi = m.RandomKey();
  bool has_lo = m.rnd() % 3 == 0, has_hi = m.rnd() % 3 == 0;
  OK(store_iter_open(ov.v, has_lo ? S(lo) : slice_make(nullptr, 0),
                     has_hi ? S(hi) : slice_make(nullptr, 0), &it, &err));
  auto begin = has_lo ? ov.want.lower_bound(lo) : ov.want.begin();
  auto end = has_hi ? ov.want.lower_bound(hi) : ov.want.end();
  if (has_lo && has_hi && hi < lo)
    begin = end;
  auto expect = [&](Map::const_iterator w, bool in) {
    ASSERT_EQ(in, store_iter_valid(it)) << what << (in ? " wants " + w->first : std::string());
    if (in) {
      ASSERT_EQ(w->first, Str(store_iter_key(it))) << what;
      ASSERT_TRUE(w->second == Str(store_iter_value(it))) << what << " at " << w->first;
    }
  };
  store_iter_seek_first(it);
  for (auto w = begin; w != end; ++w) {
    expect(w, true);
    store_iter_next(it);
  }
  expect(end, false);
  store_iter_seek_last(it);
  for (auto w = end; w != begin;) {
    --w;
    expect(w, true);
    store_iter_prev(it);
  }
  expect(end, false);
  /* A walk with turns. */
  std::string at = m.RandomKey();
  if ((!has_lo || at >= lo) && (!has_hi || at < hi)) {
    auto w = ov.want.lower_bound(at);
    bool in = w != end;
    store_iter_seek(it, S(at));
    expect(w, in);
    for (int i = 0; i < 30 && in; i++) {
      if (m.rnd() % 2) {
        ++w;
        in = w != end;
        store_iter_next(it);
      } else {
        in = w != begin;
        if (in)
          --w;
        store_iter_prev(it);
      }
      expect(w, in);
    }
    w = ov.want.upper_bound(at);
    in = w != begin;
    if (in)
      --w;
    store_iter_seek_for_prev(it, S(at));
    expect(w, in);
  }
  store_iter_close(it);
  for (int i = 0; i < 5; i++) {
    std::string k = m.RandomKey();
    uint8_t *v;
    size_t n;
    int rc = store_get(db.store, ov.v, S(k), &v, &n, &err);
    auto w = ov.want.find(k);
    ASSERT_EQ(w == ov.want.end() ? PGLOG_ENOTFOUND : PGLOG_OK, rc) << what << " get " << k;
    if (rc == 0) {
      ASSERT_TRUE(w->second == std::string(reinterpret_cast<char *>(v), n)) << what;
      free(v);
    }
  }
}

class StoreModel : public ::testing::TestWithParam<int> {};

TEST_P(StoreModel, EqualsAnOrderedMap) {
  uint64_t seed = static_cast<uint64_t>(GetParam());
  Model m(seed);
  Disk disk;
  WalDir dir;
  Map want;
  std::vector<OpenView> views;
  pglog_error err;
  auto db = std::make_unique<MiniDb>(&dir, &disk.io);
  OK(db->Open(&err));
  auto drop_views = [&] {
    for (auto &v : views)
      store_view_close(v.v);
    views.clear();
  };
  for (int step = 0; step < 400; step++) {
    std::string what = "seed " + std::to_string(seed) + " step " + std::to_string(step);
    uint64_t r = m.rnd() % 100;
    if (r < 70) {
      std::vector<std::vector<Op>> group;
      for (uint64_t i = 0, n = 1 + m.rnd() % 3; i < n; i++)
        group.push_back(m.RandomTxn());
      OK(db->Write(group, static_cast<uint32_t>(m.rnd() % 3), m.rnd() % 2, &err));
      for (auto &t : group)
        for (auto &o : t)
          Apply(&want, o);
    } else if (r < 76) {
      OK(store_checkpoint(db->store, &err));
    } else if (r < 80) {
      OK(db->NewWal(&err, m.rnd() % 2));
    } else if (r < 88) {
      OpenView v = {nullptr, want};
      OK(store_view_open(db->store, nullptr, nullptr, &v.v, &err));
      views.push_back(v);
    } else if (r < 92) {
      if (!views.empty()) {
        size_t i = m.rnd() % views.size();
        store_view_close(views[i].v);
        views.erase(views.begin() + static_cast<long>(i));
      }
    } else if (r < 97) {
      for (auto &v : views)
        CheckView(*db, m, v, what + " view");
    } else {
      drop_views();
      if (m.rnd() % 2)
        db->Close();
      else
        db->Kill();
      db = std::make_unique<MiniDb>(&dir, &disk.io);
      ASSERT_EQ(0, db->Open(&err)) << what << ": " << err.text;
      ExpectEqual(want, *db, what + " reopened");
    }
    if (HasFatalFailure())
      FAIL() << what;
  }
  ExpectEqual(want, *db, "seed " + std::to_string(seed) + " end");
  drop_views();
  OK(store_checkpoint(db->store, &err));
  OK(store_checkpoint(db->store, &err));
  /* Nothing leaks: what the index refers to is what is taken. */
  EXPECT_EQ(db->Stat("arena_live_bytes"), db->Stat("arena_used_bytes")) << "seed " << seed;
}
INSTANTIATE_TEST_SUITE_P(Seeds, StoreModel, ::testing::Range(1, 61));

/* A PG log as an OSD writes it: appended, trimmed, info overwritten. */
TEST(Store, TrimmedEntriesNeverReachTheArena) {
  Disk disk;
  WalDir dir;
  pglog_error err;
  MiniDb db(&dir, &disk.io);
  db.options.memory = 64 << 20;
  OK(db.Open(&err));
  for (uint64_t v = 1; v <= 2000; v++) {
    std::vector<Op> t = {{BLOB_PUT, Entry(1, v), std::string(200, 'e')},
                         {BLOB_PUT, Name(1, "_info"), std::to_string(v)}};
    if (v > 100)
      t.push_back({BLOB_DELETE, Entry(1, v - 100), ""});
    OK(db.Write1(t, &err));
  }
  OK(store_checkpoint(db.store, &err));
  EXPECT_EQ(101u, db.Stat("index_entries"));
  EXPECT_EQ(101u, db.Stat("entries_written"));
  /* From now on each check point writes what is new, not the whole log. */
  for (uint64_t v = 2001; v <= 4000; v++) {
    OK(db.Write1({{BLOB_PUT, Entry(1, v), std::string(200, 'e')},
                  {BLOB_DELETE, Entry(1, v - 100), ""}}, &err));
    if (v % 50 == 0)
      OK(store_checkpoint(db.store, &err));
  }
  EXPECT_EQ(101u, db.Stat("index_entries"));
}

TEST(Store, ManyPgsShareLeavesAndUntouchedTablesAreKept) {
  Disk disk;
  WalDir dir;
  pglog_error err;
  MiniDb db(&dir, &disk.io);
  db.options.memory = 256 << 20;
  OK(db.Open(&err));
  Map want;
  std::mt19937_64 rnd(7);
  auto value = [&] {
    std::string v(400, '\0');
    for (size_t i = 0; i < v.size(); i += 8)
      put_le64(reinterpret_cast<uint8_t *>(&v[i]), rnd());
    return v;
  };
  for (int pg = 0; pg < 10000; pg++) {
    std::vector<Op> t = {{BLOB_PUT, Name(pg, "_info"), value()}, {BLOB_PUT, Entry(pg, 1), value()}};
    OK(db.Write({t}, 0, false, &err));
    for (auto &o : t)
      Apply(&want, o);
  }
  OK(store_checkpoint(db.store, &err));
  uint64_t leaves = db.Stat("index_leaves"), tables = db.Stat("index_tables");
  EXPECT_LT(leaves, 10000u / 3) << "small PGs must share leaves";
  EXPECT_GE(tables, 3u);
  ExpectEqual(want, db, "10000 PGs");
  /* One change rewrites one leaf and one table block. */
  uint64_t before = db.Stat("leaves_written"), tb = db.Stat("table_blocks");
  Op o = {BLOB_PUT, Name(777, "_info"), "changed"};
  OK(db.Write1({o}, &err));
  Apply(&want, o);
  OK(store_checkpoint(db.store, &err));
  EXPECT_LE(db.Stat("leaves_written") - before, 2u);
  EXPECT_LE(db.Stat("table_blocks") - tb, 2u);
  ExpectEqual(want, db, "one change");
  /* Drop them all by one range. */
  OK(db.Write1({{BLOB_DELREST, "", ""}}, &err));
  ExpectEqual({}, db, "dropped");
  uint64_t reads = db.Stat("leaves_read");
  OK(store_checkpoint(db.store, &err));
  EXPECT_EQ(reads, db.Stat("leaves_read")) << "whole leaves are dropped without reading them";
  EXPECT_EQ(0u, db.Stat("index_leaves"));
  ExpectEqual({}, db, "dropped, check pointed");
}

TEST(Store, UnderFilledNeighboursAreMerged) {
  Disk disk;
  WalDir dir;
  pglog_error err;
  MiniDb db(&dir, &disk.io);
  db.options.memory = 64 << 20;
  OK(db.Open(&err));
  std::mt19937_64 rnd(3);
  Map want;
  auto put = [&](uint64_t v) {
    std::string s(100, '\0');
    for (auto &c : s)
      c = static_cast<char>(rnd());
    Op o = {BLOB_PUT, Entry(1, v), s};
    OK(db.Write({{o}}, 0, false, &err));
    Apply(&want, o);
  };
  for (uint64_t v = 0; v < 4000; v++)
    put(v);
  OK(store_checkpoint(db.store, &err));
  uint64_t full = db.Stat("index_leaves");
  /* Thin every leaf out to about a tenth, a few at a time. */
  for (uint64_t v = 0; v < 4000; v++) {
    if (v % 10 == 0)
      continue;
    Op o = {BLOB_DELETE, Entry(1, v), ""};
    OK(db.Write({{o}}, 0, false, &err));
    Apply(&want, o);
    if (v % 200 == 199)
      OK(store_checkpoint(db.store, &err));
  }
  OK(store_checkpoint(db.store, &err));
  ExpectEqual(want, db, "thinned");
  EXPECT_LE(db.Stat("index_leaves"), full / 10 * 3 + 2);
}

std::string RandomValue(std::mt19937_64 &rnd, size_t n) {
  std::string s(n, '\0');
  for (auto &c : s)
    c = static_cast<char>(rnd());
  return s;
}

/* Trims that come after each check point take no more from a leaf than its first entries; the others stay
 * in their block, also over a reopen, and their overflow blocks with them. */
TEST(Store, TrimsLeaveTheRestOfALeafWhereItIs) {
  Disk disk;
  WalDir dir;
  pglog_error err;
  std::mt19937_64 rnd(11);
  Map want;
  auto write = [&](MiniDb &db, Op o) {
    OK(db.Write({{o}}, 0, false, &err));
    Apply(&want, o);
  };
  const uint64_t kTrims = 100, kEach = 10, kLarge = 17; /* about 36 entries fill a leaf */
  uint64_t live = 0;
  {
    MiniDb db(&dir, &disk.io);
    db.options.memory = 64 << 20;
    OK(db.Open(&err));
    for (uint64_t v = 0; v < 2 * kTrims * kEach; v++)
      write(db, {BLOB_PUT, Entry(1, v), RandomValue(rnd, v % kLarge ? 100 : 5000)});
    OK(store_checkpoint(db.store, &err));
    live = db.Stat("arena_live_bytes");
    uint64_t leaves = db.Stat("leaves_written"), blocks = db.Stat("overflow_blocks_written");
    for (uint64_t t = 0; t < kTrims; t++) {
      for (uint64_t v = t * kEach; v < (t + 1) * kEach; v++)
        write(db, {BLOB_DELETE, Entry(1, v), ""});
      OK(store_checkpoint(db.store, &err));
      if (t % 25 == 3)
        ExpectEqual(want, db, "trimmed " + std::to_string(t));
    }
    EXPECT_LE(db.Stat("leaves_written") - leaves, kTrims / 2);
    EXPECT_EQ(blocks, db.Stat("overflow_blocks_written"));
    EXPECT_LT(db.Stat("arena_live_bytes"), live * 6 / 10);
    ExpectEqual(want, db, "trimmed");
    db.Close();
  }
  MiniDb db(&dir, &disk.io);
  OK(db.Open(&err));
  ExpectEqual(want, db, "reopened");
  /* Range deletes, too, and changes in the midst of what was left. */
  write(db, {BLOB_DELRANGE, Entry(1, 0), Entry(1, kTrims * kEach + 5)});
  write(db, {BLOB_PUT, Entry(1, kTrims * kEach + 12), "changed"});
  OK(store_checkpoint(db.store, &err));
  ExpectEqual(want, db, "range");
  write(db, {BLOB_DELREST, Name(1, ""), ""});
  OK(store_checkpoint(db.store, &err));
  OK(store_checkpoint(db.store, &err));
  ExpectEqual({}, db, "dropped");
  EXPECT_EQ(db.Stat("arena_live_bytes"), db.Stat("arena_used_bytes"));
}

/* A record behind a growing row of entries (_info) is written at each check point; the row is not. */
TEST(Store, AppendsLeaveTheLeafBeforeThemWhereItIs) {
  Disk disk;
  WalDir dir;
  pglog_error err;
  MiniDb db(&dir, &disk.io);
  db.options.memory = 64 << 20;
  OK(db.Open(&err));
  Map want;
  const uint64_t kSteps = 100, kEach = 50; /* 1024 entries fill a leaf */
  for (uint64_t t = 0; t < kSteps; t++) {
    std::vector<Op> txn = {{BLOB_PUT, Name(1, "_info"), std::to_string(t)}};
    for (uint64_t v = t * kEach; v < (t + 1) * kEach; v++)
      txn.push_back({BLOB_PUT, Entry(1, v), "dup"});
    OK(db.Write({txn}, 0, false, &err));
    for (auto &o : txn)
      Apply(&want, o);
    OK(store_checkpoint(db.store, &err));
  }
  ExpectEqual(want, db, "appended");
  /* Half a leaf each time, on average, and what is new; not three quarters. */
  EXPECT_LT(db.Stat("entries_written"), kSteps * (kEach + 350));
  EXPECT_LE(db.Stat("index_leaves"), kSteps * kEach * 3 / 1024);
}

/* Storage whose writes wait while `hold`. */
struct Gate {
  pglog_io below, io;
  std::mutex m;
  std::condition_variable cv;
  bool hold = false;
  int held = 0;
  explicit Gate(const pglog_io &b) : below(b), io(b) {
    io.arg = this;
    io.submit = [](void *arg, pglog_io_req *reqs, size_t n) {
      auto *g = static_cast<Gate *>(arg);
      std::unique_lock<std::mutex> l(g->m);
      g->held++;
      g->cv.notify_all();
      g->cv.wait(l, [&] { return !g->hold; });
      g->held--;
      l.unlock();
      return g->below.submit(g->below.arg, reqs, n);
    };
    io.sync = [](void *a) { return static_cast<Gate *>(a)->below.sync(static_cast<Gate *>(a)->below.arg); };
    io.size = [](void *a) { return static_cast<Gate *>(a)->below.size(static_cast<Gate *>(a)->below.arg); };
    io.grow = [](void *a, uint64_t n) {
      return static_cast<Gate *>(a)->below.grow(static_cast<Gate *>(a)->below.arg, n);
    };
    io.allocated = [](void *a) {
      return static_cast<Gate *>(a)->below.allocated(static_cast<Gate *>(a)->below.arg);
    };
    io.close = [](void *a) { static_cast<Gate *>(a)->below.close(static_cast<Gate *>(a)->below.arg); };
  }
  void Close() {
    std::lock_guard<std::mutex> l(m);
    hold = true;
  }
  void AwaitHeld() {
    std::unique_lock<std::mutex> l(m);
    cv.wait(l, [this] { return held > 0; });
  }
  void Open() {
    std::lock_guard<std::mutex> l(m);
    hold = false;
    cv.notify_all();
  }
};

/* What is written while a check point runs, and the WALs that it covers, do not make for another one. */
TEST(Store, OneCheckPointForOneFilledMemory) {
  Disk disk;
  Gate gate(disk.io);
  WalDir dir;
  pglog_error err;
  MiniDb db(&dir, &gate.io);
  db.options.memory = 8 << 20;
  OK(db.Open(&err));
  OK(store_checkpoint(db.store, &err));
  struct Opener { /* before db goes, whose end waits for its check point */
    Gate *g;
    ~Opener() { g->Open(); }
  } opener{&gate};
  uint64_t v = 0;
  std::mt19937_64 rnd(13);
  auto write = [&] {
    OK(db.Write({{{BLOB_PUT, Entry(1, v++), RandomValue(rnd, 4000)}}}, 1, false, &err));
  };
  auto wait = [&](auto done) {
    for (int i = 0; i < 2000 && !done(); i++)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  uint64_t before = db.Stat("checkpoints");
  gate.Close(); /* figures wait for a check point that runs: none are asked for until it is open */
  for (size_t bytes = 0; bytes <= db.options.memory + (1 << 19); bytes += 4000)
    write();
  gate.AwaitHeld();
  for (int i = 0; i < 100; i++)
    write();
  gate.Open();
  wait([&] { return db.Stat("checkpoints") > before; });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(before + 1, db.Stat("checkpoints"));
  /* A WAL that a check point covers goes without another. */
  OK(db.NewWal(&err, false));
  write();
  OK(store_checkpoint(db.store, &err));
  write();
  uint64_t now = db.Stat("checkpoints"), removed = db.Stat("wals_removed");
  db.ReleaseOld();
  wait([&] { return db.Stat("wals_removed") > removed; });
  EXPECT_LT(removed, db.Stat("wals_removed"));
  EXPECT_EQ(now, db.Stat("checkpoints"));
}

TEST(Store, LargeValuesGoToOverflowBlocks) {
  Disk disk;
  WalDir dir;
  pglog_error err;
  Map want;
  std::mt19937_64 rnd(5);
  {
    MiniDb db(&dir, &disk.io);
    db.options.memory = 256 << 20;
    OK(db.Open(&err));
    for (size_t n : {4000, 4056, 4096, 10000, 1 << 20, 16 << 20}) {
      std::string v(n, '\0');
      for (auto &c : v)
        c = static_cast<char>(rnd());
      Op o = {BLOB_PUT, Entry(1, n), v};
      OK(db.Write1({o}, &err));
      Apply(&want, o);
    }
    OK(store_checkpoint(db.store, &err));
    EXPECT_GT(db.Stat("overflow_blocks_written"), 4096u);
    ExpectEqual(want, db, "large");
    /* The leaf is rewritten; the large values stay where they are. */
    uint64_t before = db.Stat("overflow_blocks_written");
    Op o = {BLOB_PUT, Entry(1, 5000), "small"};
    OK(db.Write1({o}, &err));
    Apply(&want, o);
    OK(store_checkpoint(db.store, &err));
    EXPECT_EQ(before, db.Stat("overflow_blocks_written"));
    db.Close();
  }
  MiniDb db(&dir, &disk.io);
  OK(db.Open(&err));
  ExpectEqual(want, db, "large, reopened");
  for (auto &w : want)
    OK(db.Write1({{BLOB_DELETE, w.first, ""}}, &err));
  OK(store_checkpoint(db.store, &err));
  OK(store_checkpoint(db.store, &err));
  EXPECT_EQ(db.Stat("arena_live_bytes"), db.Stat("arena_used_bytes"));
  EXPECT_EQ(0u, db.Stat("index_entries"));
}

TEST(Store, FullArenaRefusesWritersAndGoesOnWhenSpaceAppears) {
  Disk disk(2 << 20);
  WalDir dir;
  pglog_error err;
  MiniDb db(&dir, &disk.io);
  db.options.memory = 1 << 20;
  OK(db.Open(&err));
  std::mt19937_64 rnd(5);
  Map want;
  uint64_t v = 0;
  int rc = 0;
  while (rc == 0 && v < 20000) {
    std::string s(20000, '\0');
    for (auto &c : s)
      c = static_cast<char>(rnd());
    rc = store_throttle(db.store, false, &err);
    if (rc != 0)
      break;
    Op o = {BLOB_PUT, Entry(1, ++v), s};
    OK(db.Write1({o}, &err));
    Apply(&want, o);
  }
  ASSERT_EQ(PGLOG_EBUSY, rc);
  EXPECT_NE(nullptr, strstr(err.text, "staged")) << err.text;
  EXPECT_NE(nullptr, strstr(err.text, "arena")) << err.text;
  OK(store_throttle(db.store, true, &err));
  EXPECT_EQ(PGLOG_EFULL, store_checkpoint(db.store, &err));
  ExpectEqual(want, db, "full");
  /* Nothing was lost, and more room lets it go on. */
  simdisk_config c = {};
  simdisk_faults(disk.d, &c);
  OK(store_checkpoint(db.store, &err));
  OK(store_throttle(db.store, false, &err));
  ExpectEqual(want, db, "room again");
  db.Close();
  MiniDb again(&dir, &disk.io);
  OK(again.Open(&err));
  ExpectEqual(want, again, "reopened");
}

/* What a power cut at any arena operation leaves: acknowledged transactions, whole ones. */
TEST(Store, PowerCutAtEveryArenaOperation) {
  for (int style = 0; style < SIMDISK_POWER_STYLES; style++) {
    for (uint64_t cut = 1;; cut++) {
      std::string what = "style " + std::to_string(style) + " cut " + std::to_string(cut);
      Disk disk;
      WalDir dir;
      pglog_error err;
      Map acked;
      Model m(static_cast<uint64_t>(style) * 1000 + 17);
      bool reached = false;
      {
        MiniDb db(&dir, &disk.io);
        OK(db.Open(&err));
        simdisk_config c = {};
        c.seed = cut;
        c.power = static_cast<simdisk_power>(style);
        c.cut_at = cut;
        simdisk_faults(disk.d, &c);
        for (int i = 0; i < 60; i++) {
          auto t = m.RandomTxn();
          OK(db.Write1(t, &err));
          for (auto &o : t)
            Apply(&acked, o);
          if (i % 10 == 9)
            store_checkpoint(db.store, &err);
          if (i % 25 == 24)
            OK(db.NewWal(&err));
        }
        reached = simdisk_is_off(disk.d);
        db.Kill();
      }
      dir.PowerCut(0);
      simdisk_power_on(disk.d);
      MiniDb db(&dir, &disk.io);
      ASSERT_EQ(0, db.Open(&err)) << what << ": " << err.text;
      ExpectEqual(acked, db, what);
      if (HasFatalFailure() || !reached)
        break;
    }
  }
}

TEST(Store, UnsyncedTailMayBeLostButOnlyAsAWhole) {
  for (int i = 0; i <= 40; i++) {
    Disk disk;
    WalDir dir;
    pglog_error err;
    {
      MiniDb db(&dir, &disk.io);
      OK(db.Open(&err));
      OK(db.Write1({{BLOB_PUT, Entry(1, 1), "durable"}, {BLOB_PUT, Entry(2, 1), "durable"}}, &err));
      for (uint64_t v = 2; v < 10; v++)
        OK(db.Write({{{BLOB_PUT, Entry(1, v), "a"}, {BLOB_PUT, Entry(2, v), "b"}}}, 1, false, &err));
      db.Kill();
    }
    dir.PowerCut(i / 40.0);
    MiniDb db(&dir, &disk.io);
    OK(db.Open(&err));
    Map got = db.Dump();
    EXPECT_TRUE(got.count(Entry(1, 1)));
    bool gone = false;
    for (uint64_t v = 1; v < 10; v++) {
      bool one = got.count(Entry(1, v)), two = got.count(Entry(2, v));
      EXPECT_EQ(one, two) << "transaction " << v << " is there by half";
      EXPECT_FALSE(gone && one) << "a hole before " << v;
      gone = !one;
    }
    EXPECT_EQ(i < 40 && got.size() < 18, !dir.cuts.empty() || got.size() < 18);
  }
}

TEST(Store, DamageInTheLastWalIsCutInPointInTimeOnly) {
  for (int mode : {STORE_POINT_IN_TIME, STORE_TOLERATE_TAIL, STORE_ABSOLUTE}) {
    Disk disk;
    WalDir dir;
    pglog_error err;
    {
      MiniDb db(&dir, &disk.io);
      OK(db.Open(&err));
      for (uint64_t v = 1; v < 10; v++)
        OK(db.Write1({{BLOB_PUT, Entry(1, v), "value"}}, &err));
      db.Kill();
    }
    std::string &bytes = dir.files.rbegin()->second.bytes;
    size_t size = bytes.size();
    bytes[size / 2] ^= 1;
    MiniDb db(&dir, &disk.io);
    db.mode = mode;
    int rc = db.Open(&err);
    if (mode == STORE_POINT_IN_TIME) {
      EXPECT_EQ(0, rc) << err.text;
      EXPECT_EQ(1u, dir.cuts.size());
    } else {
      EXPECT_EQ(PGLOG_ECORRUPT, rc);
      EXPECT_NE(nullptr, strstr(err.text, "damaged at offset")) << err.text;
      EXPECT_EQ(size, bytes.size());
      EXPECT_TRUE(dir.cuts.empty());
    }
  }
}

TEST(Store, DamageBelowTheCheckPointIsAnErrorSinceRocksDbStopsThere) {
  for (int mode : {STORE_POINT_IN_TIME, STORE_TOLERATE_TAIL, STORE_ABSOLUTE}) {
    for (bool older : {false, true}) {
      Disk disk;
      WalDir dir;
      pglog_error err;
      {
        MiniDb db(&dir, &disk.io);
        OK(db.Open(&err));
        OK(db.Write1({{BLOB_PUT, Entry(1, 1), "value"}}, &err));
        if (older)
          OK(db.NewWal(&err, false)); /* the old one stays */
        OK(db.Write1({{BLOB_PUT, Entry(1, 2), "value"}}, &err));
        OK(store_checkpoint(db.store, &err));
        OK(db.Write1({{BLOB_PUT, Entry(1, 3), "value"}}, &err));
        db.Kill();
      }
      std::string &bytes = dir.files.begin()->second.bytes;
      bytes[20] ^= 1;
      MiniDb db(&dir, &disk.io);
      db.mode = mode;
      EXPECT_EQ(PGLOG_ECORRUPT, db.Open(&err));
      EXPECT_NE(nullptr, strstr(err.text, "000001.log is damaged at offset 0")) << err.text;
      EXPECT_TRUE(dir.cuts.empty());
      bytes[20] ^= 1;
      MiniDb healed(&dir, &disk.io);
      OK(healed.Open(&err));
      EXPECT_EQ(3u, healed.Dump().size());
    }
  }
}

TEST(Store, DamageBelowOrBeforeTheLastWalIsAnError) {
  Disk disk;
  WalDir dir;
  pglog_error err;
  {
    MiniDb db(&dir, &disk.io);
    OK(db.Open(&err));
    OK(db.Write1({{BLOB_PUT, Entry(1, 1), "value"}}, &err));
    OK(db.NewWal(&err, false));
    OK(db.Write1({{BLOB_PUT, Entry(1, 2), "value"}}, &err));
    db.Kill();
  }
  dir.files.begin()->second.bytes[20] ^= 1;
  MiniDb db(&dir, &disk.io);
  EXPECT_EQ(PGLOG_ECORRUPT, db.Open(&err));
  EXPECT_NE(nullptr, strstr(err.text, "000001.log is damaged at offset 0")) << err.text;
}

TEST(Store, AMissingWalIsNamed) {
  Disk disk;
  WalDir dir;
  pglog_error err;
  {
    MiniDb db(&dir, &disk.io);
    OK(db.Open(&err));
    OK(db.Write1({{BLOB_PUT, Entry(1, 1), "value"}}, &err));
    OK(store_checkpoint(db.store, &err));
    OK(db.Write1({{BLOB_PUT, Entry(1, 2), "value"}}, &err));
    db.Kill();
  }
  WalDir empty;
  empty.manifest_seq = 100;
  MiniDb db(&empty, &disk.io);
  EXPECT_EQ(PGLOG_EMISMATCH, db.Open(&err));
  EXPECT_NE(nullptr, strstr(err.text, "000001.log is missing")) << err.text;
}

/* A WAL in the middle that nobody listed yet: the blobs behind it say how many came before. */
TEST(Store, AMissingUnlistedWalIsNoticedByBlobNumbers) {
  Disk disk;
  WalDir dir;
  pglog_error err;
  {
    MiniDb db(&dir, &disk.io);
    OK(db.Open(&err));
    OK(db.Write1({{BLOB_PUT, Entry(1, 1), "value"}}, &err));
    for (int i = 0; i < 2; i++) {
      OK(db.NewWal(&err, false));
      OK(db.Write1({{BLOB_PUT, Entry(1, 2), "value"}}, &err));
    }
    db.Kill();
  }
  dir.files.erase(2);
  MiniDb db(&dir, &disk.io);
  db.mode = STORE_TOLERATE_TAIL;
  EXPECT_EQ(PGLOG_ECORRUPT, db.Open(&err));
  EXPECT_NE(nullptr, strstr(err.text, "1 are lost")) << err.text;
}

TEST(Store, ADamagedLeafConcernsItsPgOnly) {
  Disk disk;
  WalDir dir;
  pglog_error err;
  {
    MiniDb db(&dir, &disk.io);
    OK(db.Open(&err));
    std::mt19937_64 rnd(9);
    for (int pg = 1; pg <= 2; pg++)
      for (uint64_t v = 0; v < 100; v++) {
        std::string s(200, '\0');
        for (auto &c : s)
          c = static_cast<char>(rnd());
        OK(db.Write({{{BLOB_PUT, Entry(pg, v), s}}}, 0, false, &err));
      }
    OK(store_checkpoint(db.store, &err));
    db.Close();
  }
  /* Every leaf, present or replaced, that holds PG 1.1's first entry. */
  bool found = false;
  for (uint32_t b = 2; b < 64; b++) {
    uint8_t *p = simdisk_bytes(disk.d, b * PGLOG_BLOCK);
    std::string block(reinterpret_cast<char *>(p), PGLOG_BLOCK);
    if (p[8] == 1 && block.find(Entry(1, 0)) != std::string::npos) {
      p[2000] ^= 1;
      found = true;
    }
  }
  ASSERT_TRUE(found);
  simdisk_damaged(disk.d);
  MiniDb db(&dir, &disk.io);
  OK(db.Open(&err));
  uint8_t *v;
  size_t n;
  EXPECT_EQ(PGLOG_ECORRUPT, store_get(db.store, nullptr, S(Entry(1, 0)), &v, &n, &err));
  EXPECT_NE(nullptr, strstr(err.text, "PG 1.1/")) << err.text;
  OK(store_get(db.store, nullptr, S(Entry(2, 50)), &v, &n, &err));
  free(v);
}

TEST(Store, RefusesWhatItMustNotTake) {
  Disk disk;
  WalDir dir;
  pglog_error err;
  auto open_and = [&](auto f) {
    WalDir d;
    Disk k;
    MiniDb db(&d, &k.io);
    OK(db.Open(&err));
    f(db);
  };
  /* A key of the rule outside a blob. */
  open_and([&](MiniDb &db) {
    std::string rec(BATCH_HEADER, '\0');
    rec[0] = 1;
    rec[8] = 1;
    MiniDb::AppendPut(&rec, "pglog/1.1/x", "v");
    EXPECT_EQ(PGLOG_ENOTSUP, db.Append(rec, false, &err));
    EXPECT_NE(nullptr, strstr(err.text, "pglog/1.1/x")) << err.text;
    EXPECT_EQ(PGLOG_EPOISONED, db.Write1({{BLOB_PUT, Entry(1, 1), ""}}, &err));
  });
  /* A malformed blob. */
  open_and([&](MiniDb &db) {
    std::string rec(BATCH_HEADER, '\0');
    rec[0] = 1;
    MiniDb::AppendLogData(&rec, std::string(BLOB_MAGIC, BLOB_MAGIC_LEN) + "\x01\x01");
    EXPECT_EQ(PGLOG_ECORRUPT, db.Append(rec, false, &err));
  });
  /* A blob when no door is open. */
  open_and([&](MiniDb &db) {
    store_detach(db.store);
    EXPECT_EQ(PGLOG_ENOTSUP, db.Write1({{BLOB_PUT, Entry(1, 1), ""}}, &err));
    EXPECT_NE(nullptr, strstr(err.text, "door")) << err.text;
  });
  /* An option that was refused. */
  open_and([&](MiniDb &db) {
    pglog_error why;
    error_set(&why, PGLOG_ENOTSUP, "allow_2pc=true is not supported");
    store_refuse(db.store, &why);
    EXPECT_EQ(PGLOG_ENOTSUP, db.Write1({{BLOB_PUT, Entry(1, 1), ""}}, &err));
    EXPECT_NE(nullptr, strstr(err.text, "allow_2pc")) << err.text;
  });
  /* A failed WAL sync stops everything, check points too. */
  open_and([&](MiniDb &db) {
    OK(db.Write1({{BLOB_PUT, Entry(1, 1), "v"}}, &err));
    db.options.memory = 1;
    store_check(db.store, &err);
    pglog_error why;
    error_set(&why, PGLOG_EIO, "injected");
    store_poison(db.store, &why);
    EXPECT_EQ(PGLOG_EPOISONED, store_checkpoint(db.store, &err));
    EXPECT_NE(nullptr, strstr(err.text, "injected")) << err.text;
    EXPECT_EQ(PGLOG_EPOISONED, db.NewWal(&err));
  });
}

TEST(Store, ArenaAndDatabaseMustBelongTogether) {
  Disk disk;
  WalDir dir;
  pglog_error err;
  {
    MiniDb db(&dir, &disk.io);
    OK(db.Open(&err));
    store_set_identity(db.store, "id-one");
    OK(db.Write1({{BLOB_PUT, Entry(1, 1), "v"}}, &err));
    db.Close();
  }
  auto open = [&](auto change) {
    store_config c = {};
    pglog_options_init(&c.options);
    c.options.rule = TestRule();
    c.options.io = &disk.io;
    c.ops = dir.Ops();
    c.recovery_mode = STORE_POINT_IN_TIME;
    c.has_current = true;
    change(c);
    store *s = nullptr;
    int rc = store_open(&c, &s, &err);
    store_close(s);
    return rc;
  };
  OK(open([](store_config &) {}));
  EXPECT_EQ(PGLOG_EMISMATCH, open([](store_config &c) { strcpy(c.identity, "id-two"); }));
  EXPECT_NE(nullptr, strstr(err.text, "id-one")) << err.text;
  EXPECT_EQ(PGLOG_EMISMATCH, open([](store_config &c) { c.has_current = false; }));
  EXPECT_NE(nullptr, strstr(err.text, "deleted database")) << err.text;
  EXPECT_EQ(PGLOG_EMISMATCH, open([](store_config &c) {
              c.options.rule_given = true;
              c.options.rule.pgid_arg = ':';
            }));
  EXPECT_NE(nullptr, strstr(err.text, "rule")) << err.text;
  Disk fresh;
  EXPECT_EQ(PGLOG_EMISMATCH, open([&](store_config &c) {
              c.has_guard = true;
              c.options.io = &fresh.io;
            }));
  EXPECT_NE(nullptr, strstr(err.text, "guard")) << err.text;
}

/* Threads on one store: writers (one at a time, as RocksDB's WAL has it), readers, check points. */
TEST(Store, ThreadsSeeWholeTransactionsOnly) {
  Disk disk;
  WalDir dir;
  pglog_error err;
  MiniDb db(&dir, &disk.io);
  db.options.memory = 200 << 10;
  OK(db.Open(&err));
  std::mutex wal;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> counter{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; t++)
    threads.emplace_back([&] {
      pglog_error e;
      while (!stop) {
        std::lock_guard<std::mutex> l(wal);
        uint64_t v = ++counter;
        std::string s = std::to_string(v);
        std::vector<Op> ops = {{BLOB_PUT, Name(1, "_info"), s},
                               {BLOB_PUT, Name(2, "_info"), s},
                               {BLOB_PUT, Entry(3, v), s}};
        if (v > 50)
          ops.push_back({BLOB_DELETE, Entry(3, v - 50), ""});
        ASSERT_EQ(0, db.Write({ops}, static_cast<uint32_t>(v % 2), v % 3 == 0, &e)) << e.text;
        }
    });
  for (int t = 0; t < 2; t++)
    threads.emplace_back([&] {
      while (!stop) {
        Map m = db.Dump();
        if (m.empty())
          continue;
        ASSERT_EQ(m[Name(1, "_info")], m[Name(2, "_info")]);
        uint64_t v = std::stoull(m[Name(1, "_info")]);
        ASSERT_EQ(std::min<uint64_t>(v, 50) + 2, m.size());
        ASSERT_EQ(1u, m.count(Entry(3, v)));
      }
    });
  threads.emplace_back([&] {
    pglog_error e;
    while (!stop)
      ASSERT_EQ(0, store_checkpoint(db.store, &e)) << e.text;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  stop = true;
  for (auto &t : threads)
    t.join();
  uint64_t last = counter;
  db.Close();
  MiniDb again(&dir, &disk.io);
  OK(again.Open(&err));
  Map m = again.Dump();
  EXPECT_EQ(std::to_string(last), m[Name(2, "_info")]);
}

}  // namespace
