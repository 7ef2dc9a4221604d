/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves that no single fault of the arena, the WALs or the allocator loses an acknowledged
 * transaction: the store goes on or refuses by name, and the next open has everything.
 */
#include "mini_db.h"

#include <chrono>
#include <random>
#include <thread>

/* Memory runs out at the n-th allocation of this thread while it is armed. The sanitizers have an
 * allocator of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CAN_STARVE 0
#else
#define CAN_STARVE 1
extern "C" void *__libc_malloc(size_t);
extern "C" void *__libc_calloc(size_t, size_t);
extern "C" void *__libc_realloc(void *, size_t);
#endif

namespace {
thread_local bool armed = false;
thread_local uint64_t allocations = 0, starve_at = 0;
void Arm() {
  armed = true;
}
void Disarm() {
  armed = false;
}
}  // namespace

#if CAN_STARVE
static bool Starved() {
  return armed && ++allocations == starve_at;
}
extern "C" void *malloc(size_t n) {
  return Starved() ? nullptr : __libc_malloc(n);
}
extern "C" void *calloc(size_t n, size_t m) {
  return Starved() ? nullptr : __libc_calloc(n, m);
}
extern "C" void *realloc(void *p, size_t n) {
  return Starved() ? nullptr : __libc_realloc(p, n);
}
/* Of the test itself and its ops. */
void *operator new(size_t n) {
  return __libc_malloc(n);
}
void operator delete(void *p) noexcept {
  free(p);
}
void operator delete(void *p, size_t) noexcept {
  free(p);
}
#endif

namespace {

using Map = std::map<std::string, std::string>;

/* A simulated disk whose own memory never runs out. */
struct Disk {
  explicit Disk(uint64_t capacity = 0) {
    simdisk_config c = {};
    c.seed = 1;
    c.capacity = capacity;
    EXPECT_EQ(0, simdisk_new(&c, &d));
    below = simdisk_io(d);
    io = below;
    io.arg = this;
    io.submit = [](void *a, pglog_io_req *r, size_t n) {
      return Calm([&] { return Of(a).submit(Of(a).arg, r, n); });
    };
    io.sync = [](void *a) { return Calm([&] { return Of(a).sync(Of(a).arg); }); };
    io.size = [](void *a) { return Of(a).size(Of(a).arg); };
    io.grow = [](void *a, uint64_t n) { return Calm([&] { return Of(a).grow(Of(a).arg, n); }); };
    io.allocated = [](void *a) { return Of(a).allocated(Of(a).arg); };
    io.close = [](void *a) { Of(a).close(Of(a).arg); };
  }
  ~Disk() { simdisk_free(d); }
  static pglog_io &Of(void *a) { return static_cast<Disk *>(a)->below; }
  template <typename F>
  static int Calm(F f) {
    bool was = armed;
    armed = false;
    int rc = f();
    armed = was;
    return rc;
  }
  simdisk *d;
  pglog_io below, io;
};

#define OK(x)                      \
  do {                             \
    ASSERT_EQ(0, (x)) << err.text; \
  } while (0)

/* Transactions with appends, overwrites, trims, values of several blocks. */
class Work {
 public:
  explicit Work(uint64_t seed) : rnd_(seed) {}
  std::vector<Op> Next() {
    int pg = static_cast<int>(rnd_() % 4);
    uint64_t v = ++version_[pg];
    size_t size = rnd_() % 16 ? 20 + rnd_() % 300 : 5000 + rnd_() % 5000;
    std::string value(size, '\0');
    for (auto &c : value)
      c = static_cast<char>(rnd_());
    std::vector<Op> t = {{BLOB_PUT, Entry(pg, v), value},
                         {BLOB_PUT, "1." + std::to_string(pg) + "/_info", value.substr(0, 100)}};
    if (v % 8 == 0)
      t.push_back({BLOB_DELRANGE, Entry(pg, 0), Entry(pg, v - 5)});
    if (v % 8 == 4)
      t.push_back({BLOB_DELETE, Entry(pg, v - 1), ""});
    if (rnd_() % 20 == 0)
      t.push_back({BLOB_DELRANGE, Entry(pg, v - 2), Entry(pg + 1, 3)});
    return t;
  }

 private:
  std::mt19937_64 rnd_;
  std::map<int, uint64_t> version_;
};

void Acked(Map *m, const std::vector<Op> &t) {
  for (auto &o : t)
    Apply(m, o);
}

/* Everything as acknowledged, after reopening too. */
void ExpectReopens(WalDir *dir, const pglog_io *io, const Map &acked, const std::string &what) {
  pglog_error err;
  for (int i = 0; i < 2; i++) {
    MiniDb db(dir, io);
    ASSERT_EQ(0, db.Open(&err)) << what << ": " << err.text;
    ASSERT_TRUE(acked == db.Dump()) << what << ", open " << i;
    ASSERT_EQ(0, store_checkpoint(db.store, &err)) << what << ": " << err.text;
    ASSERT_TRUE(acked == db.Dump()) << what << ", check point after open " << i;
    db.Close();
  }
}

enum Fault { READ, WRITE, SYNC };

class ArenaFault : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Store, ArenaFault, testing::Values(READ, WRITE, SYNC), [](const auto &i) {
  return std::string(i.param == READ ? "Read" : i.param == WRITE ? "Write" : "Sync");
});

// One operation of the arena fails: writers never see it, and the next check point goes on, or says
// that the arena takes no more.
TEST_P(ArenaFault, AtEveryOperationLosesNothing) {
  for (uint64_t at = 1;; at++) {
    const std::string what = "fault at " + std::to_string(at);
    Disk disk;
    WalDir dir;
    pglog_error err;
    Map acked;
    Work work(7);
    int failed = 0, poisoned = 0;
    bool publication = false;
    struct simdisk_counts counts;
    MiniDb db(&dir, &disk.io);
    OK(db.Open(&err));
    simdisk_config c = {};
    (GetParam() == READ    ? c.fail_read_at
     : GetParam() == WRITE ? c.fail_write_at
                           : c.fail_sync_at) = at;
    simdisk_faults(disk.d, &c);
    for (int i = 0; i < 64; i++) {
      auto t = work.Next();
      ASSERT_EQ(0, db.Write1(t, &err)) << what << ": " << err.text;
      Acked(&acked, t);
      if (i == 40) {
        ASSERT_EQ(0, db.NewWal(&err)) << what << ": " << err.text;
      }
      if (i % 16 != 7)
        continue;
      int rc = store_checkpoint(db.store, &err);
      failed += rc != 0;
      poisoned += rc == PGLOG_EPOISONED;
      publication |= rc != 0 && strstr(err.text, "superblock");
      ASSERT_TRUE(rc == 0 || rc == PGLOG_EIO || rc == PGLOG_EPOISONED) << what << err.text;
      if (rc == PGLOG_EPOISONED) {
        ASSERT_NE(nullptr, strstr(err.text, "sync")) << err.text;
      }
    }
    simdisk_counts(disk.d, &counts);
    bool reached = at <= (GetParam() == READ    ? counts.reads
                          : GetParam() == WRITE ? counts.writes
                                                : counts.syncs);
    if (GetParam() != SYNC) {
      ASSERT_LE(failed, 1) << what;
      ASSERT_EQ(0, poisoned) << what;
      if (failed) {
        ASSERT_EQ(0, store_checkpoint(db.store, &err)) << what << ": " << err.text;
      }
    }
    c = {};
    simdisk_faults(disk.d, &c);
    if (!poisoned && failed && !publication && store_checkpoint(db.store, &err) == 0) {
      ASSERT_EQ(db.Stat("arena_live_bytes"), db.Stat("arena_used_bytes")) << what;
    }
    ASSERT_TRUE(acked == db.Dump()) << what;
    if (at % 2)
      db.Close();
    else
      db.Kill();
    dir.PowerCut(0);
    simdisk_power_on(disk.d);
    ExpectReopens(&dir, &disk.io, acked, what);
    if (HasFatalFailure() || !reached)
      break;
  }
}

// A WAL sync of the store fails: nothing is written any more, and nothing acknowledged is lost.
TEST(StoreFaults, WalSyncAtEveryPlaceStopsTheStore) {
  for (int at = 1;; at++) {
    const std::string what = "sync " + std::to_string(at);
    Disk disk;
    WalDir dir;
    pglog_error err;
    Map acked;
    Work work(8);
    MiniDb db(&dir, &disk.io);
    OK(db.Open(&err));
    dir.fail_sync_at = at;
    uint64_t super = 0, wals = 0;
    bool stopped = false;
    for (int i = 0; i < 60; i++) {
      auto t = work.Next();
      int rc = db.Write1(t, &err);
      ASSERT_EQ(stopped ? PGLOG_EPOISONED : 0, rc) << what << ": " << err.text;
      if (rc == 0)
        Acked(&acked, t);
      if (rc == 0 && i % 16 == 7)
        rc = store_checkpoint(db.store, &err);
      if (rc == 0 && i % 16 == 12)
        rc = db.NewWal(&err, false); /* nothing to do for the check point thread */
      if (!stopped && rc != 0) {
        ASSERT_NE(nullptr, strstr(err.text, "injected sync error")) << what << ": " << err.text;
        stopped = true;
        super = db.Stat("superblocks");
        wals = dir.files.size();
      }
    }
    if (stopped) {
      ASSERT_EQ(PGLOG_EPOISONED, store_checkpoint(db.store, &err));
      ASSERT_EQ(PGLOG_EPOISONED, store_check(db.store, &err));
      ASSERT_NE(nullptr, strstr(err.text, "injected sync error")) << err.text;
      ASSERT_EQ(super, db.Stat("superblocks")) << what;
      ASSERT_EQ(wals, dir.files.size()) << what;
    }
    ASSERT_TRUE(acked == db.Dump()) << what;
    if (at % 2)
      db.Close();
    else
      db.Kill();
    dir.fail_sync_at = 0;
    dir.PowerCut(0);
    ExpectReopens(&dir, &disk.io, acked, what);
    if (HasFatalFailure() || !stopped)
      break;
  }
}

// Memory runs out once, at every allocation of a life with check points, views and WAL switches.
class Starved : public testing::Test {
 protected:
  /* One life. True if the allocation was reached. */
  bool Life(uint64_t at, WalDir *dir, Disk *disk, Map *acked) {
    pglog_error err;
    Work work(9);
    MiniDb db(dir, &disk->io);
    EXPECT_EQ(0, db.Open(&err)) << err.text;
    db.enter = Arm;
    db.leave = Disarm;
    allocations = 0;
    starve_at = at;
    bool stopped = false;
    for (int i = 0; i < 40; i++) {
      auto t = work.Next();
      int rc = stopped ? 0 : db.Write1(t, &err);
      if (rc == 0 && !stopped)
        Acked(acked, t);
      if (rc == 0 && i % 16 == 7)
        rc = Checkpoint(&db, &err);
      if (rc == 0 && i % 16 == 11)
        rc = Read(&db, *acked, &err);
      if (rc == 0 && i == 25 && !stopped)
        rc = db.NewWal(&err);
      EXPECT_TRUE(rc == 0 || rc == PGLOG_ENOMEM || rc == PGLOG_EPOISONED) << err.text;
      stopped |= store_check(db.store, nullptr) != 0;
    }
    db.enter = db.leave = nullptr;
    bool reached = allocations >= at;
    starve_at = 0;
    if (!stopped) {
      EXPECT_EQ(0, store_checkpoint(db.store, &err)) << err.text;
      EXPECT_TRUE(*acked == db.Dump());
    }
    if (at % 2)
      db.Close();
    else
      db.Kill();
    return reached;
  }
  int Checkpoint(MiniDb *db, pglog_error *err) {
    Arm();
    int rc = store_checkpoint(db->store, err);
    Disarm();
    return rc;
  }
  int Read(MiniDb *db, const Map &want, pglog_error *err) {
    store_view *v;
    store_iter *it;
    Map got;
    Arm();
    int rc = store_view_open(db->store, nullptr, nullptr, &v, err);
    if (rc == 0) {
      rc = store_iter_open(v, slice_make(nullptr, 0), slice_make(nullptr, 0), &it, err);
      if (rc == 0) {
        store_iter_seek_first(it);
        while (store_iter_valid(it)) {
          Disarm();
          got[Str(store_iter_key(it))] = Str(store_iter_value(it));
          Arm();
          store_iter_next(it);
        }
        rc = store_iter_status(it, err);
        store_iter_close(it);
      }
      store_view_close(v);
    }
    Disarm();
    EXPECT_TRUE(rc != 0 || got == want) << "an iterator that says it is well";
    for (auto &k : want) {
      uint8_t *value;
      size_t n;
      Arm();
      int r = store_get(db->store, nullptr, S(k.first), &value, &n, err);
      Disarm();
      EXPECT_NE(PGLOG_ENOTFOUND, r) << k.first;
      if (r == 0) {
        EXPECT_EQ(k.second.size(), n);
        free(value);
      }
    }
    return rc;
  }
};

#if CAN_STARVE /* elsewhere the sanitizer has the allocator */
TEST_F(Starved, AtEveryAllocationLosesNothing) {
  for (uint64_t at = 1; !HasFailure(); at++) {
    const std::string what = "allocation " + std::to_string(at);
    SCOPED_TRACE(what);
    Disk disk;
    WalDir dir;
    Map acked;
    bool reached = Life(at, &dir, &disk, &acked);
    dir.PowerCut(0);
    if (!HasFailure())
      ExpectReopens(&dir, &disk.io, acked, what);
    if (!reached)
      break;
  }
  printf("%llu allocations\n", (unsigned long long)allocations);
}

TEST_F(Starved, OpenFailsByNameAndSucceedsLater) {
  Disk disk;
  WalDir dir;
  Map acked;
  pglog_error err;
  {
    Work work(10);
    MiniDb db(&dir, &disk.io);
    OK(db.Open(&err));
    for (int i = 0; i < 60; i++) {
      auto t = work.Next();
      OK(db.Write1(t, &err));
      Acked(&acked, t);
      if (i == 40)
        OK(store_checkpoint(db.store, &err));
    }
    db.Kill();
  }
  for (uint64_t at = 1; !HasFailure(); at++) {
    MiniDb db(&dir, &disk.io);
    db.enter = Arm;
    db.leave = Disarm;
    allocations = 0;
    starve_at = at;
    int rc = db.Open(&err);
    if (allocations < at)
      break;
    EXPECT_EQ(PGLOG_ENOMEM, rc) << "allocation " << at << ": " << (rc ? err.text : "");
  }
  starve_at = 0;
  ExpectReopens(&dir, &disk.io, acked, "opened at last");
}
#endif

std::string Noise(size_t n) {
  static std::mt19937_64 rnd(3);
  std::string s(n, '\0');
  for (auto &c : s)
    c = static_cast<char>(rnd());
  return s;
}

// Busy writers do not make the check point thread try a full arena again and again: each attempt
// syncs a WAL, writes what fits and adds a layer to every PG.
TEST(StoreFaults, AFullArenaIsTriedOnceASecond) {
  Disk disk(2 << 20);
  WalDir dir;
  pglog_error err;
  Map acked;
  uint64_t v = 0;
  MiniDb db(&dir, &disk.io);
  OK(db.Open(&err));
  while (db.Stat("checkpoint_failures") == 0) {
    std::vector<Op> t = {{BLOB_PUT, Entry(1, ++v), Noise(20000)}};
    OK(db.Write1(t, &err));
    Acked(&acked, t);
  }
  using Clock = std::chrono::steady_clock;
  auto begin = Clock::now();
  uint64_t before = db.Stat("checkpoint_failures");
  while (Clock::now() - begin < std::chrono::milliseconds(400)) {
    std::vector<Op> t = {{BLOB_PUT, Entry(1, ++v), "small"}};
    OK(db.Write1(t, &err));
    Acked(&acked, t);
  }
  uint64_t tries = db.Stat("checkpoint_failures") - before, layers = db.Stat("layers");
  double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  EXPECT_LE(static_cast<double>(tries), seconds + 2);
  EXPECT_LE(static_cast<double>(layers), seconds + 5);
  simdisk_config c = {};
  simdisk_faults(disk.d, &c);
  while (db.Stat("layers") != 0) /* the thread tries again by itself */
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(acked == db.Dump());
}

// What only an open view still needs is not the writers' fault.
TEST(StoreFaults, AnOpenViewDoesNotStopWriters) {
  Disk disk;
  WalDir dir;
  pglog_error err;
  MiniDb db(&dir, &disk.io);
  OK(db.Open(&err));
  store_view *view;
  OK(store_view_open(db.store, nullptr, nullptr, &view, &err));
  uint64_t v = 0;
  for (int i = 0; i < 400; i++) {
    ASSERT_LE(db.Stat("staged_bytes"), 2 * db.options.memory);
    std::vector<Op> t;
    for (int k = 0; k < 250; k++)
      t.push_back({BLOB_PUT, Entry(1, ++v), "v"});
    OK(db.Write1(t, &err));
    if (i % 20 == 19) {
      OK(store_checkpoint(db.store, &err));
      EXPECT_LE(db.Stat("staged_bytes"), 100000u);
    }
  }
  store_view_close(view);
  OK(store_checkpoint(db.store, &err));
  EXPECT_EQ(0u, db.Stat("layers"));
  EXPECT_EQ(0u, db.Stat("staged_bytes"));
  EXPECT_EQ(v, db.Dump().size());
}

// After a failed data sync no check point can succeed before the next open: none is begun either,
// which would cost a WAL sync and a layer in each PG, and writers are told why they are refused.
TEST(StoreFaults, APoisonedArenaIsLeftAlone) {
  Disk disk;
  WalDir dir;
  pglog_error err;
  Map acked;
  MiniDb db(&dir, &disk.io);
  OK(db.Open(&err));
  auto write = [&](uint64_t v, const std::string &value) {
    std::vector<Op> t = {{BLOB_PUT, Entry(1, v), value}};
    ASSERT_EQ(0, db.Write1(t, &err)) << err.text;
    Acked(&acked, t);
  };
  write(1, "a");
  simdisk_config c = {};
  c.fail_sync_at = 1;
  simdisk_faults(disk.d, &c);
  ASSERT_EQ(PGLOG_EIO, store_checkpoint(db.store, &err));
  uint64_t v = 1;
  for (int i = 0; i < 20; i++) {
    write(++v, "b");
    ASSERT_EQ(PGLOG_EPOISONED, store_checkpoint(db.store, &err));
    EXPECT_NE(nullptr, strstr(err.text, "sync")) << err.text;
  }
  EXPECT_LE(db.Stat("layers"), 3u);
  EXPECT_LE(db.Stat("wal_syncs_checkpoint"), 2u);
  while (db.Stat("staged_bytes") <= 4 * db.options.memory)
    write(++v, Noise(50000));
  EXPECT_EQ(PGLOG_EBUSY, store_throttle(db.store, false, &err));
  EXPECT_NE(nullptr, strstr(err.text, "until reopen")) << err.text;
  EXPECT_NE(nullptr, strstr(err.text, "sync")) << err.text;
  EXPECT_TRUE(acked == db.Dump());
  db.Close();
  simdisk_power_on(disk.d);
  dir.PowerCut(0);
  ExpectReopens(&dir, &disk.io, acked, "reopened");
}

// A stopped store is no full one: the caller is told which it is.
TEST(StoreFaults, AStoppedStoreIsNamedToThrottledWriters) {
  Disk disk(2 << 20);
  WalDir dir;
  pglog_error err;
  MiniDb db(&dir, &disk.io);
  OK(db.Open(&err));
  for (uint64_t v = 0; db.Stat("staged_bytes") <= 4 * db.options.memory; v++) {
    std::vector<Op> t = {{BLOB_PUT, Entry(1, v), Noise(50000)}};
    OK(db.Write1(t, &err));
  }
  EXPECT_EQ(PGLOG_EBUSY, store_throttle(db.store, false, &err));
  error_set(&err, PGLOG_EIO, "the first error");
  store_poison(db.store, &err);
  EXPECT_EQ(PGLOG_EPOISONED, store_throttle(db.store, false, &err));
  EXPECT_NE(nullptr, strstr(err.text, "the first error")) << err.text;
}

// The blocks of a failed publication stay taken until the next open (it may be on disk), but a
// superblock that cannot be written does not eat up the arena.
TEST(StoreFaults, FailedPublicationsDoNotFillTheArena) {
  Disk disk;
  WalDir dir;
  pglog_error err;
  Map acked;
  MiniDb db(&dir, &disk.io);
  OK(db.Open(&err));
  auto write = [&](uint64_t v) {
    std::vector<Op> t = {{BLOB_PUT, Entry(1, v), Noise(200000)}};
    ASSERT_EQ(0, db.Write1(t, &err)) << err.text;
    Acked(&acked, t);
  };
  write(1);
  OK(store_checkpoint(db.store, &err));
  write(2);
  simdisk_config c = {};
  for (int i = 0; i < 5; i++) {
    c.fail_sync_at = 2; /* the first one is that of the data */
    simdisk_faults(disk.d, &c);
    ASSERT_EQ(PGLOG_EIO, store_checkpoint(db.store, &err));
    ASSERT_NE(nullptr, strstr(err.text, "superblock")) << err.text;
    ASSERT_TRUE(acked == db.Dump());
  }
  uint64_t one = db.Stat("arena_live_bytes");
  EXPECT_LE(db.Stat("arena_used_bytes"), 2 * one + 65536);
  c = {};
  simdisk_faults(disk.d, &c);
  OK(store_checkpoint(db.store, &err));
  EXPECT_EQ(0u, db.Stat("layers"));
  ASSERT_TRUE(acked == db.Dump());
  db.Kill();
  simdisk_power_on(disk.d);
  dir.PowerCut(0);
  ExpectReopens(&dir, &disk.io, acked, "reopened");
}

// Layers of failed check points, masks across PGs, empty and short keys, open views: reads equal an
// ordered map at every step.
class FailedCheckPoints : public testing::TestWithParam<int> {
 protected:
  std::string Key() {
    switch (rnd_() % 8) {
      case 0:
        return "";
      case 1:
        return std::string(1, static_cast<char>('0' + rnd_() % 4)); /* no whole PG id */
      case 2:
        return std::to_string(rnd_() % 3) + "/";
      default:
        return std::to_string(rnd_() % 3) + "/" + std::to_string(rnd_() % 40);
    }
  }
  std::vector<Op> Txn() {
    std::vector<Op> t;
    for (size_t i = 0; i <= rnd_() % 5; i++) {
      std::string a = Key(), b = Key();
      uint64_t r = rnd_() % 40;
      if (r < 30)
        t.push_back({BLOB_PUT, a, Noise(rnd_() % 400)});
      else if (r < 37)
        t.push_back({BLOB_DELETE, a, ""});
      else if (r < 39 && a != b)
        t.push_back({BLOB_DELRANGE, std::min(a, b), std::max(a, b)});
      else if (r == 39 && rnd_() % 5 == 0)
        t.push_back({BLOB_DELREST, a, ""});
    }
    return t;
  }
  static Map At(store_view *v, bool forward) {
    pglog_error err;
    store_iter *it;
    Map m;
    EXPECT_EQ(0, store_iter_open(v, slice_make(nullptr, 0), slice_make(nullptr, 0), &it, &err));
    forward ? store_iter_seek_first(it) : store_iter_seek_last(it);
    for (; store_iter_valid(it); forward ? store_iter_next(it) : store_iter_prev(it))
      m[Str(store_iter_key(it))] = Str(store_iter_value(it));
    EXPECT_EQ(0, store_iter_status(it, &err)) << err.text;
    store_iter_close(it);
    return m;
  }
  std::mt19937_64 rnd_{static_cast<uint64_t>(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(Seeds, FailedCheckPoints, testing::Range(1, 25));

TEST_P(FailedCheckPoints, ReadsEqualAnOrderedMap) {
  Disk disk;
  WalDir dir;
  pglog_error err;
  Map acked;
  std::vector<std::pair<store_view *, Map>> views;
  auto db = std::make_unique<MiniDb>(&dir, &disk.io);
  OK(db->Open(&err));
  for (int i = 0; i < 400; i++) {
    SCOPED_TRACE("step " + std::to_string(i));
    auto t = Txn();
    if (!t.empty())
      OK(db->Write1(t, &err));
    Acked(&acked, t);
    if (rnd_() % 8 == 0) {
      simdisk_config c = {};
      if (rnd_() % 3)
        (rnd_() % 2 ? c.fail_write_at : c.fail_read_at) = 1 + rnd_() % 3;
      simdisk_faults(disk.d, &c);
      store_checkpoint(db->store, &err);
      c = {};
      simdisk_faults(disk.d, &c);
    }
    if (rnd_() % 12 == 0 && views.size() < 4) {
      store_view *v;
      OK(store_view_open(db->store, nullptr, nullptr, &v, &err));
      views.push_back({v, acked});
    }
    if (rnd_() % 10 == 0) {
      ASSERT_TRUE(acked == db->Dump());
    }
    if (!views.empty() && rnd_() % 6 == 0) {
      size_t n = rnd_() % views.size();
      ASSERT_TRUE(views[n].second == At(views[n].first, rnd_() % 2)) << "view";
      if (rnd_() % 2) {
        store_view_close(views[n].first);
        views.erase(views.begin() + static_cast<ptrdiff_t>(n));
      }
    }
    if (i % 100 == 99) {
      for (auto &v : views)
        store_view_close(v.first);
      views.clear();
      rnd_() % 2 ? db->Close() : db->Kill();
      db = std::make_unique<MiniDb>(&dir, &disk.io);
      OK(db->Open(&err));
      ASSERT_TRUE(acked == db->Dump());
    }
  }
  db->Close();
  ExpectReopens(&dir, &disk.io, acked, "at last");
}

}  // namespace
