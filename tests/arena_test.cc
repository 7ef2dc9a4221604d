// SPDX-License-Identifier: Apache-2.0
// Proves that the arena never loses an acknowledged superblock or a block it refers to, whatever a
// power cut leaves; that it tells apart what it finds on opening; that the allocator hands out no
// block twice and says which limit it hit; and that the simulated disk keeps to its fault model.
#include "arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "simdisk.h"

namespace {

const uint64_t kMiB = 1 << 20;

struct Block {
  Block() : p(static_cast<uint8_t *>(io_alloc(1))) { memset(p, 0, PGLOG_BLOCK); }
  ~Block() { free(p); }
  Block(const Block &) = delete;
  uint8_t *p;
};

struct Disk {
  explicit Disk(simdisk_config c = {}) {
    EXPECT_EQ(0, simdisk_new(&c, &d));
    io = simdisk_io(d);
  }
  ~Disk() { simdisk_free(d); }
  Disk(const Disk &) = delete;
  simdisk *d = nullptr;
  pglog_io io;
};

simdisk_config Faults(simdisk_power power, uint64_t seed, uint64_t cut_at) {
  simdisk_config c = {};
  c.power = power;
  c.seed = seed;
  c.cut_at = cut_at;
  return c;
}

super First() {
  super s = {};
  s.rule.prefix_len = 6;
  memcpy(s.rule.prefix, "pglog/", 6);
  strcpy(s.rule.cf, "default");
  s.rule.pgid_kind = PGLOG_PGID_UNTIL;
  s.rule.pgid_arg = '/';
  s.cf_id = PGLOG_CF_UNKNOWN;
  return s;
}

// An arena with what arena_open() said about it.
struct Arena {
  explicit Arena(const arena_config &c) { rc = arena_open(&c, &a, &state, &s, &err); }
  explicit Arena(const pglog_io *io, uint64_t max = kMiB, uint64_t step = 64 * 1024)
      : Arena(arena_config{"sim", io, max, step, 8}) {}
  ~Arena() { arena_close(a); }
  Arena(const Arena &) = delete;
  int Format() {
    s = First();
    int f = arena_format(a, &s, &err);
    if (f == 0)
      state = ARENA_VALID;
    return f;
  }
  int Publish() {
    s.generation++;
    return arena_publish(a, &s, &err);
  }
  arena *a = nullptr;
  arena_state state = ARENA_FOREIGN;
  super s = {};
  pglog_error err = {};
  int rc;
};

uint32_t BlockCrc(const uint8_t *b) {
  std::vector<uint8_t> copy(b, b + PGLOG_BLOCK);
  memset(&copy[8], 0, 4);
  return crc32c(0, copy.data(), copy.size());
}

void FixCrc(uint8_t *b) {
  put_le32(b + 8, BlockCrc(b));
}

// ------------------------------------------------------------------------------------------------
// Superblock

super RandomSuper(std::mt19937_64 &rnd) {
  super s = First();
  s.generation = rnd() | 1;
  s.arena_id = rnd() | 1;
  s.cf_id = static_cast<uint32_t>(rnd());
  size_t len = rnd() % (SUPER_IDENTITY_MAX + 1);
  for (size_t i = 0; i < len; i++)
    s.identity[i] = static_cast<char>(1 + rnd() % 255);
  s.invalidated = rnd() % 2;
  s.wal = rnd() % 1000;
  s.wal_offset = rnd();
  s.sequence = rnd();
  s.blobs = rnd();
  s.root_block = static_cast<uint32_t>(2 + rnd() % 0x7fffffff);
  s.root_blocks = static_cast<uint32_t>(1 + rnd() % 0x7fffffff);
  s.root_generation = 1 + rnd() % s.generation;
  s.tables = rnd();
  s.leaves = rnd();
  s.entries = rnd();
  s.overflow_blocks = rnd();
  s.n_wals = static_cast<uint32_t>(rnd() % (SUPER_WALS_MAX + 1));
  uint64_t wal = s.wal;
  for (uint32_t i = 0; i < s.n_wals; i++)
    s.wals[i] = wal += 1 + rnd() % 3;
  s.rule.prefix_len = static_cast<uint8_t>(rnd() % (PGLOG_PREFIX_MAX + 1));
  for (size_t i = 0; i < PGLOG_PREFIX_MAX; i++)
    s.rule.prefix[i] = i < s.rule.prefix_len ? static_cast<uint8_t>(rnd()) : 0;
  memset(s.rule.cf, 0, sizeof s.rule.cf);
  memset(s.rule.cf, 'f', 1 + rnd() % PGLOG_CF_NAME_MAX);
  return s;
}

bool SameSuper(const super &a, const super &b) {
  return a.generation == b.generation && a.arena_id == b.arena_id && rule_eq(&a.rule, &b.rule) &&
         a.cf_id == b.cf_id && strcmp(a.identity, b.identity) == 0 &&
         a.invalidated == b.invalidated && a.wal == b.wal && a.wal_offset == b.wal_offset &&
         a.sequence == b.sequence && a.blobs == b.blobs && a.root_block == b.root_block &&
         a.root_blocks == b.root_blocks && a.root_generation == b.root_generation &&
         a.tables == b.tables && a.leaves == b.leaves && a.entries == b.entries &&
         a.overflow_blocks == b.overflow_blocks && a.n_wals == b.n_wals &&
         memcmp(a.wals, b.wals, a.n_wals * sizeof a.wals[0]) == 0;
}

TEST(Super, RoundTripAndEveryDamagedByteIsNoticed) {
  Block b;
  for (unsigned seed = 1; seed <= 200; seed++) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 rnd(seed);
    super s = RandomSuper(rnd), t;
    pglog_error err;
    ASSERT_EQ(nullptr, super_wrong(&s));
    super_encode(&s, b.p);
    ASSERT_EQ(0, super_decode(&t, b.p, &err)) << err.text;
    ASSERT_TRUE(SameSuper(s, t));
    for (size_t i = seed % 40; i < PGLOG_BLOCK; i += 40) {
      uint8_t bit = static_cast<uint8_t>(1 << rnd() % 8);
      b.p[i] ^= bit;
      ASSERT_EQ(PGLOG_ECORRUPT, super_decode(&t, b.p, &err)) << "byte " << i;
      b.p[i] ^= bit;
    }
  }
}

TEST(Super, ReservedBytesAndLimitsAreChecked) {
  Block b;
  super s = First(), t;
  pglog_error err;
  s.generation = s.arena_id = 7;
  strcpy(s.identity, "id");
  s.n_wals = 1;
  s.wals[0] = 5;
  for (size_t at : {109, 113, 126, 179, 511, 520, 2559, 2560, 4095}) {
    super_encode(&s, b.p);
    b.p[at] ^= 0x80;
    FixCrc(b.p);
    EXPECT_EQ(PGLOG_ECORRUPT, super_decode(&t, b.p, &err)) << at;
  }
  // (offset, value) of one byte that puts a field out of its limits
  for (auto [at, value] : std::vector<std::pair<size_t, uint8_t>>{{16, 0},
                                                                  {24, 0},
                                                                  {32, 6},
                                                                  {64, 9},
                                                                  {68, 9},
                                                                  {111, 2},
                                                                  {112, 65},
                                                                  {115, 2},
                                                                  {116, 9},
                                                                  {124, 0}}) {
    super_encode(&s, b.p);
    b.p[at] = value;
    FixCrc(b.p);
    EXPECT_EQ(PGLOG_ECORRUPT, super_decode(&t, b.p, &err)) << at;
  }
  super_encode(&s, b.p);
  put_le32(b.p + 12, PGLOG_FORMAT_VERSION + 1);
  FixCrc(b.p);
  EXPECT_EQ(PGLOG_EMISMATCH, super_decode(&t, b.p, &err));
  std::string want = "version is " + std::to_string(PGLOG_FORMAT_VERSION + 1);
  EXPECT_NE(nullptr, strstr(err.text, want.c_str())) << err.text;
}

TEST(Super, WithoutWalsItFitsIntoOneSector) {
  Block b;
  super s = First();
  s.generation = s.arena_id = UINT64_MAX;
  memset(s.rule.cf, 'x', PGLOG_CF_NAME_MAX);
  s.rule.prefix_len = PGLOG_PREFIX_MAX;
  memset(s.rule.prefix, 'x', PGLOG_PREFIX_MAX);
  memset(s.identity, 'x', SUPER_IDENTITY_MAX);
  super_encode(&s, b.p);
  for (size_t i = SIMDISK_SECTOR; i < PGLOG_BLOCK; i++)
    ASSERT_EQ(0, b.p[i]) << i;
}

// ------------------------------------------------------------------------------------------------
// Opening

class ArenaFile : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = "arena_test." + std::to_string(getpid()) + ".tmp";
    unlink(path_.c_str());
  }
  void TearDown() override { unlink(path_.c_str()); }
  arena_config Config(uint64_t max = kMiB, uint64_t step = 64 * 1024) {
    return arena_config{path_.c_str(), nullptr, max, step, 32};
  }
  void Put(const std::string &bytes) {
    FILE *f = fopen(path_.c_str(), "w");
    ASSERT_EQ(bytes.size(), fwrite(bytes.data(), 1, bytes.size(), f));
    fclose(f);
  }
  std::string Slot(uint64_t generation, uint64_t id, uint32_t version = PGLOG_FORMAT_VERSION) {
    Block b;
    super s = First();
    s.generation = generation;
    s.arena_id = id;
    super_encode(&s, b.p);
    put_le32(b.p + 12, version);
    FixCrc(b.p);
    return std::string(reinterpret_cast<char *>(b.p), PGLOG_BLOCK);
  }
  void ExpectState(const std::string &bytes, arena_state want, const char *text = nullptr) {
    Put(bytes);
    Arena x(Config());
    ASSERT_EQ(0, x.rc) << x.err.text;
    EXPECT_EQ(want, x.state) << x.err.text;
    if (text) {
      EXPECT_NE(nullptr, strstr(x.err.text, text)) << x.err.text;
    }
    struct stat st;
    ASSERT_EQ(0, stat(path_.c_str(), &st));
    EXPECT_EQ(bytes.size(), static_cast<size_t>(st.st_size)) << "opening has changed the file";
  }
  std::string path_;
};

TEST_F(ArenaFile, OpenTellsWhatIsThere) {
  const std::string zero(PGLOG_BLOCK, '\0'), one = Slot(1, 5), two = Slot(2, 5);
  std::string bad = two;
  bad[600] ^= 1;
  {
    Arena x(Config());
    EXPECT_EQ(0, x.rc);
    EXPECT_EQ(ARENA_ABSENT, x.state);
    EXPECT_NE(0, access(path_.c_str(), F_OK)) << "opening has created the file";
  }
  ExpectState("", ARENA_ABSENT);
  ExpectState(std::string(100, '\0'), ARENA_ABSENT);
  ExpectState(std::string(5000, '\0'), ARENA_ABSENT);
  ExpectState(std::string(100000, '\0'), ARENA_ABSENT);
  ExpectState("hello", ARENA_FOREIGN, path_.c_str());
  ExpectState(zero + "hello", ARENA_FOREIGN);
  ExpectState(std::string(20000, 'x'), ARENA_FOREIGN);
  ExpectState(zero + std::string(4096, 'x'), ARENA_FOREIGN);
  ExpectState(one + zero, ARENA_VALID);
  ExpectState(one + two, ARENA_VALID);
  ExpectState(one + bad, ARENA_VALID);
  ExpectState(zero + one, ARENA_VALID);
  ExpectState(bad + bad, ARENA_DAMAGED, "slot 1: CRC");
  ExpectState(bad + zero, ARENA_DAMAGED, "slot 1: no superblock");
  ExpectState(two + two, ARENA_DAMAGED, "both");
  ExpectState(one, ARENA_DAMAGED, "cut");
  ExpectState(one.substr(0, 600), ARENA_DAMAGED, "cut");
  ExpectState(one.substr(0, 300), ARENA_DAMAGED);
}

TEST_F(ArenaFile, TheHigherGenerationCounts) {
  for (bool swap : {false, true}) {
    Put(swap ? Slot(9, 5) + Slot(8, 5) : Slot(8, 5) + Slot(9, 5));
    Arena x(Config());
    ASSERT_EQ(ARENA_VALID, x.state);
    EXPECT_EQ(9u, x.s.generation);
  }
}

TEST_F(ArenaFile, AnotherVersionOrAnotherIdIsRefused) {
  const std::string one = Slot(1, 5);
  for (const std::string &bytes : {one + Slot(2, 5, 99), Slot(2, 5, 99) + one, one + Slot(2, 6)}) {
    Put(bytes);
    Arena x(Config());
    EXPECT_EQ(PGLOG_EMISMATCH, x.rc) << x.err.text;
    EXPECT_EQ(nullptr, x.a);
    EXPECT_NE(nullptr, strstr(x.err.text, path_.c_str())) << x.err.text;
  }
}

TEST_F(ArenaFile, FormatPublishReopenAndSecondOpenIsBusy) {
  uint64_t id;
  {
    Arena x(Config());
    ASSERT_EQ(0, x.Format()) << x.err.text;
    id = x.s.arena_id;
    EXPECT_EQ(1u, x.s.generation);
    for (int i = 0; i < 3; i++) {
      x.s.wal = static_cast<uint64_t>(i);
      ASSERT_EQ(0, x.Publish()) << x.err.text;
    }
    EXPECT_EQ(PGLOG_EINVAL, arena_publish(x.a, &x.s, &x.err)) << "generation used twice";
    Arena y(Config());
    EXPECT_EQ(PGLOG_EBUSY, y.rc);
    EXPECT_NE(nullptr, strstr(y.err.text, "open already")) << y.err.text;
  }
  Arena x(Config());
  ASSERT_EQ(ARENA_VALID, x.state);
  EXPECT_EQ(4u, x.s.generation);
  EXPECT_EQ(2u, x.s.wal);
  EXPECT_EQ(id, x.s.arena_id);
  struct arena_usage u;
  arena_usage(x.a, &u);
  EXPECT_EQ(2u, u.used_blocks);
  EXPECT_EQ(16u, u.size_blocks);
  EXPECT_EQ(256u, u.max_blocks);
  EXPECT_GE(u.allocated, 65536);
  printf("buffered: %s\n", arena_buffered_why(x.a) ? arena_buffered_why(x.a) : "no");
}

TEST_F(ArenaFile, ReadsBackWhatIsWrittenInAnyGrouping) {
  Arena x(Config());
  ASSERT_EQ(0, x.Format());
  std::mt19937 rnd(1);
  uint8_t *mem = static_cast<uint8_t *>(io_alloc(200));
  uint8_t *back = static_cast<uint8_t *>(io_alloc(200));
  for (size_t i = 0; i < 200 * PGLOG_BLOCK; i++)
    mem[i] = static_cast<uint8_t>(rnd());
  std::vector<arena_io> v;
  for (uint32_t i = 0; i < 200;) {
    uint32_t n = std::min<uint32_t>(1 + rnd() % 5, 200 - i), block;
    ASSERT_EQ(0, arena_alloc(x.a, n, &block, &x.err));
    v.push_back({block, n, mem + size_t{i} * PGLOG_BLOCK, -1});
    i += n;
  }
  ASSERT_EQ(0, arena_write(x.a, v.data(), v.size(), &x.err)) << x.err.text;
  for (auto &e : v) {
    EXPECT_EQ(0, e.result);
    e.bytes = back + (e.bytes - mem);
  }
  std::shuffle(v.begin(), v.end(), rnd);
  ASSERT_EQ(0, arena_read(x.a, v.data(), v.size(), &x.err)) << x.err.text;
  EXPECT_EQ(0, memcmp(mem, back, 200 * PGLOG_BLOCK));
  arena_io beyond = {100000, 1, back, 0};
  EXPECT_EQ(PGLOG_EIO, arena_read(x.a, &beyond, 1, &x.err));
  EXPECT_NE(nullptr, strstr(x.err.text, "read of block 100000")) << x.err.text;
  for (uint32_t block : {0u, 1u, 250u, 100000u}) {
    arena_io never = {block, 1, mem, 0};
    EXPECT_EQ(PGLOG_EINVAL, arena_write(x.a, &never, 1, &x.err)) << block;
  }
  free(mem);
  free(back);
}

// ------------------------------------------------------------------------------------------------
// Allocator

TEST(Alloc, RandomAllocationsNeverOverlap) {
  for (unsigned seed = 1; seed <= 30; seed++) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rnd(seed);
    Disk disk;
    Arena x(&disk.io, kMiB * (1 + seed % 3), 4096 * (1 + seed % 20));
    ASSERT_EQ(0, x.Format());
    struct arena_usage u;
    std::vector<bool> taken(1024);
    std::vector<std::pair<uint32_t, uint32_t>> rows;
    uint64_t used = 2;
    for (int i = 0; i < 4000; i++) {
      uint32_t n = rnd() % 8 ? 1 : 1 + rnd() % 20, b;
      if (rnd() % 100 < (i / 800 % 2 ? 30u : 60u)) {
        int rc = arena_alloc(x.a, n, &b, &x.err);
        arena_usage(x.a, &u);
        if (rc != 0) {
          ASSERT_EQ(PGLOG_EFULL, rc);
          uint32_t free_row = 0;  // so there is none
          for (uint32_t k = 2; k < u.max_blocks; k++) {
            free_row = taken[k] ? 0 : free_row + 1;
            ASSERT_LT(free_row, n);
          }
          continue;
        }
        ASSERT_GE(b, 2u);
        ASSERT_LE(b + n, u.max_blocks);
        ASSERT_LE(b + n, u.size_blocks);
        for (uint32_t k = b; k < b + n; k++) {
          ASSERT_FALSE(taken[k]) << k;
          taken[k] = true;
        }
        rows.push_back({b, n});
        used += n;
      } else if (!rows.empty()) {
        size_t r = rnd() % rows.size();
        arena_free(x.a, rows[r].first, rows[r].second);
        for (uint32_t k = 0; k < rows[r].second; k++)
          taken[rows[r].first + k] = false;
        used -= rows[r].second;
        rows[r] = rows.back();
        rows.pop_back();
      }
      arena_usage(x.a, &u);
      ASSERT_EQ(used, u.used_blocks);
      ASSERT_EQ(static_cast<uint64_t>(disk.io.size(disk.io.arg)), u.size_blocks * PGLOG_BLOCK);
    }
  }
}

TEST(Alloc, IsNextFitAndGrowsInSteps) {
  Disk disk;
  Arena x(&disk.io, kMiB, 16 * PGLOG_BLOCK);
  ASSERT_EQ(0, x.Format());
  struct arena_usage u;
  uint32_t b;
  for (uint32_t i = 2; i < 16; i++) {
    ASSERT_EQ(0, arena_alloc(x.a, 1, &b, &x.err));
    EXPECT_EQ(i, b);
    if (i < 10)
      arena_free(x.a, b, 1);  // not taken again before the end is reached
  }
  ASSERT_EQ(0, arena_alloc(x.a, 3, &b, &x.err));
  EXPECT_EQ(2u, b);
  ASSERT_EQ(0, arena_alloc(x.a, 20, &b, &x.err));
  EXPECT_EQ(16u, b);
  arena_usage(x.a, &u);
  EXPECT_EQ(48u, u.size_blocks);
}

TEST(Alloc, MarkRefusesWhatIsOutsideOrTwice) {
  Disk disk;
  {
    Arena x(&disk.io, kMiB, 64 * PGLOG_BLOCK);
    ASSERT_EQ(0, x.Format());
  }
  Arena x(&disk.io, 16 * PGLOG_BLOCK, 4 * PGLOG_BLOCK);  // arena_max has been lowered
  EXPECT_EQ(0, arena_mark(x.a, 2, 3, &x.err));
  EXPECT_EQ(0, arena_mark(x.a, 40, 2, &x.err)) << "beyond arena_max, but it is there";
  EXPECT_EQ(PGLOG_ECORRUPT, arena_mark(x.a, 4, 1, &x.err));
  EXPECT_NE(nullptr, strstr(x.err.text, "block 4 is used twice")) << x.err.text;
  EXPECT_EQ(PGLOG_ECORRUPT, arena_mark(x.a, 39, 3, &x.err));
  for (auto [b, n] : std::vector<std::pair<uint32_t, uint32_t>>{
           {0, 1}, {1, 1}, {64, 1}, {63, 2}, {5, UINT32_MAX}, {UINT32_MAX, UINT32_MAX}, {9, 0}})
    EXPECT_EQ(PGLOG_ECORRUPT, arena_mark(x.a, b, n, &x.err)) << b << " " << n;
  struct arena_usage u;
  arena_usage(x.a, &u);
  EXPECT_EQ(7u, u.used_blocks);
  uint32_t b;
  for (int i = 5; i < 16; i++) {
    ASSERT_EQ(0, arena_alloc(x.a, 1, &b, &x.err));
    EXPECT_LT(b, 16u);
  }
  EXPECT_EQ(PGLOG_EFULL, arena_alloc(x.a, 1, &b, &x.err));
}

TEST(Alloc, FullNamesTheLimitAndGoesOnAfterAFree) {
  Disk disk;
  Arena x(&disk.io, 10 * PGLOG_BLOCK, 4 * PGLOG_BLOCK);
  ASSERT_EQ(0, x.Format());
  uint32_t b, last = 0;
  while (arena_alloc(x.a, 1, &b, &x.err) == 0)
    last = b;
  EXPECT_EQ(9u, last);
  EXPECT_EQ(PGLOG_EFULL, x.err.code);
  EXPECT_STREQ(
      "arena sim is full: 40960 of 40960 bytes are used, 4096 more in a row are needed; the "
      "limit is arena_max of 40960 bytes",
      x.err.text);
  arena_free(x.a, 5, 2);
  EXPECT_EQ(PGLOG_EFULL, arena_alloc(x.a, 3, &b, &x.err));
  ASSERT_EQ(0, arena_alloc(x.a, 2, &b, &x.err));
  EXPECT_EQ(5u, b);
}

TEST(Alloc, NoSpaceChangesNothingAndTheNextTryMaySucceed) {
  simdisk_config c = {};
  c.capacity = 20 * PGLOG_BLOCK;
  Disk disk(c);
  Arena x(&disk.io, kMiB, 16 * PGLOG_BLOCK);
  ASSERT_EQ(0, x.Format());
  uint32_t b;
  for (int i = 2; i < 16; i++)
    ASSERT_EQ(0, arena_alloc(x.a, 1, &b, &x.err));
  struct arena_usage before, after;
  arena_usage(x.a, &before);
  for (int i = 0; i < 3; i++) {
    EXPECT_EQ(PGLOG_EFULL, arena_alloc(x.a, 1, &b, &x.err));
    EXPECT_NE(nullptr, strstr(x.err.text, "No space left")) << x.err.text;
  }
  arena_usage(x.a, &after);
  EXPECT_EQ(0, memcmp(&before, &after, sizeof before));
  simdisk_config more = {};
  simdisk_faults(disk.d, &more);
  ASSERT_EQ(0, arena_alloc(x.a, 1, &b, &x.err));
  EXPECT_EQ(16u, b);
}

TEST(Alloc, SpeedOfOneBlockInANearlyFullArena) {
  // Storage of a million blocks without memory behind it: the allocator only asks for its size.
  struct Huge {
    static int64_t Size(void *) { return int64_t{1000000} * PGLOG_BLOCK; }
    static int Submit(void *, pglog_io_req *reqs, size_t n) {
      for (size_t i = 0; i < n; i++) {
        reqs[i].result = 0;
        if (reqs[i].op == PGLOG_IO_READ)
          memset(reqs[i].buf, 0, reqs[i].length);
      }
      return 0;
    }
    static int Sync(void *) { return 0; }
    static int Grow(void *, uint64_t) { return 0; }
    static void Close(void *) {}
  };
  pglog_io io = {nullptr,    Huge::Submit, Huge::Sync, Huge::Size,
                 Huge::Grow, Huge::Size,   Huge::Close};
  Arena x(&io, uint64_t{1000000} * PGLOG_BLOCK, 16 * kMiB);
  ASSERT_EQ(0, x.Format());
  auto now = std::chrono::steady_clock::now;
  auto ns = [](auto t) { return std::chrono::duration<double, std::nano>(t).count(); };
  uint32_t b = 0, n = 0;
  auto t0 = now();
  while (arena_alloc(x.a, 1, &b, nullptr) == 0)
    n++;
  auto t1 = now();
  EXPECT_EQ(999998u, n);
  std::mt19937 rnd(1);
  const int kRounds = 200000;
  auto t2 = now();
  for (int i = 0; i < kRounds; i++) {
    uint32_t hole = 2 + rnd() % 999998;
    arena_free(x.a, hole, 1);
    ASSERT_EQ(0, arena_alloc(x.a, 1, &b, nullptr));
    ASSERT_EQ(hole, b);
  }
  auto t3 = now();
  printf(
      "1,000,000 blocks: %.1f ns per block while filling; %.1f ns for a free and an alloc when all "
      "but one are used\n",
      ns(t1 - t0) / n, ns(t3 - t2) / kRounds);
}

// ------------------------------------------------------------------------------------------------
// Publication and power cuts

// A tiny store: one block of data per check point, replaced by copy on write in an arena so small
// that a freed block is used again at once.
struct Tiny {
  explicit Tiny(Disk &disk) : x(&disk.io, 6 * PGLOG_BLOCK, 6 * PGLOG_BLOCK) {}
  // Load what the superblock refers to, and check it.
  void Load() {
    ASSERT_EQ(0, x.rc) << x.err.text;
    ASSERT_EQ(ARENA_VALID, x.state) << x.err.text;
    if (x.s.root_blocks == 0)
      return;
    ASSERT_EQ(0, arena_mark(x.a, x.s.root_block, 1, &x.err)) << x.err.text;
    arena_io v = {x.s.root_block, 1, block.p, 0};
    ASSERT_EQ(0, arena_read(x.a, &v, 1, &x.err)) << x.err.text;
    for (size_t at = 0; at < PGLOG_BLOCK; at += 64)
      ASSERT_EQ(x.s.generation, get_le64(block.p + at)) << "data of another check point at " << at;
  }
  // One check point; 0 or the first error.
  int CheckPoint() {
    uint32_t b, old = x.s.root_block, had = x.s.root_blocks;
    int rc = arena_alloc(x.a, 1, &b, &x.err);
    if (rc != 0)
      return rc;
    for (size_t at = 0; at < PGLOG_BLOCK; at += 8)
      put_le64(block.p + at, x.s.generation + 1);
    arena_io v = {b, 1, block.p, 0};
    rc = arena_write(x.a, &v, 1, &x.err);
    if (rc != 0)
      return rc;
    x.s.root_block = b;
    x.s.root_blocks = 1;
    x.s.root_generation = x.s.generation;
    x.s.n_wals = static_cast<uint32_t>(x.s.generation % SUPER_WALS_MAX);
    for (uint32_t i = 0; i < x.s.n_wals; i++)
      x.s.wals[i] = x.s.generation * 1000 + i;
    rc = x.Publish();
    if (rc == 0 && had)
      arena_free(x.a, old, 1);
    return rc;
  }
  Arena x;
  Block block;
};

const char *const kStyle[] = {"lose all", "keep all", "in order", "reordered", "torn"};

// Run `work` with the power cut at each of its operations in turn, in each style, under several
// seeds. work(disk) prepares, calls simdisk_faults() with the given config and goes on; returns
// false when the cut was not reached. check(disk) runs after the power is back.
template <class Work, class Check>
void CutEverywhere(unsigned seeds, Work work, Check check) {
  for (int style = 0; style < SIMDISK_POWER_STYLES; style++) {
    unsigned n = style == SIMDISK_LOSE_ALL || style == SIMDISK_KEEP_ALL ? 1 : seeds;
    for (unsigned seed = 1; seed <= n; seed++) {
      for (uint64_t cut = 1;; cut++) {
        SCOPED_TRACE(std::string("style ") + kStyle[style] + ", seed " + std::to_string(seed) +
                     ", cut at operation " + std::to_string(cut));
        Disk disk;
        work(disk, Faults(static_cast<simdisk_power>(style), seed, cut));
        bool cut_happened = simdisk_is_off(disk.d);
        simdisk_power_on(disk.d);
        check(disk);
        if (::testing::Test::HasFatalFailure())
          return;
        if (!cut_happened)
          break;
      }
    }
  }
}

TEST(Power, PublicationsSurviveACutAtEveryOperation) {
  uint64_t acked, tried;
  CutEverywhere(
      8,
      [&](Disk &disk, simdisk_config c) {
        Tiny t(disk);
        ASSERT_EQ(0, t.x.Format());
        simdisk_faults(disk.d, &c);
        acked = tried = 1;
        for (int i = 0; i < 6; i++) {
          tried = acked + 1;
          if (t.CheckPoint() != 0)
            break;
          acked = tried;
        }
      },
      [&](Disk &disk) {
        Tiny t(disk);
        t.Load();
        if (::testing::Test::HasFatalFailure())
          return;
        ASSERT_TRUE(t.x.s.generation == acked || t.x.s.generation == tried)
            << "found " << t.x.s.generation << ", acknowledged " << acked << ", tried " << tried;
        for (int i = 0; i < 3; i++)  // and it goes on
          ASSERT_EQ(0, t.CheckPoint()) << t.x.err.text;
        Tiny again(disk);
        again.Load();
        ASSERT_EQ(again.x.s.generation, t.x.s.generation);
      });
}

TEST(Power, FormatLeavesNothingOrAnArena) {
  bool acked = false;
  CutEverywhere(
      8,
      [&](Disk &disk, simdisk_config c) {
        simdisk_faults(disk.d, &c);
        Arena x(&disk.io);
        acked = x.rc == 0 && x.Format() == 0;
      },
      [&](Disk &disk) {
        Arena x(&disk.io);
        ASSERT_EQ(0, x.rc) << x.err.text;
        ASSERT_TRUE(x.state == ARENA_VALID || (!acked && x.state == ARENA_ABSENT)) << x.err.text;
        if (x.state == ARENA_ABSENT) {
          ASSERT_EQ(0, x.Format()) << x.err.text;
        }
        ASSERT_EQ(1u, x.s.generation);
      });
}

TEST(Power, InvalidationIsNeverHalfVisible) {
  bool acked = false;
  CutEverywhere(
      8,
      [&](Disk &disk, simdisk_config c) {
        Tiny t(disk);
        ASSERT_EQ(0, t.x.Format());
        for (int i = 0; i < 3; i++)
          ASSERT_EQ(0, t.CheckPoint());
        simdisk_faults(disk.d, &c);
        acked = arena_invalidate(t.x.a, &t.x.s, &t.x.err) == 0;
      },
      [&](Disk &disk) {
        Arena x(&disk.io);
        ASSERT_EQ(ARENA_VALID, x.state) << x.err.text;
        ASSERT_TRUE(x.s.invalidated ? x.s.generation > 4 : x.s.generation == 4 && !acked);
        if (!acked)
          return;
        for (uint64_t slot : {0, 1}) {
          super s;
          ASSERT_EQ(0, super_decode(&s, simdisk_bytes(disk.d, slot * PGLOG_BLOCK), nullptr));
          ASSERT_TRUE(s.invalidated);
        }
      });
}

// A superblock whose sync failed is found by the next process although it is not on the disk.
// Blocks of the generation before must not be overwritten until it is.
TEST(Power, ASuperblockThatWasNotSyncedIsMadeDurableBeforeAnythingElse) {
  uint64_t acked, tried, found;
  CutEverywhere(
      12,
      [&](Disk &disk, simdisk_config c) {
        {
          Tiny t(disk);
          ASSERT_EQ(0, t.x.Format());
          for (int i = 0; i < 2; i++)
            ASSERT_EQ(0, t.CheckPoint());
          simdisk_config f = c;
          f.cut_at = 0;
          f.fail_sync_at = 2;  // the one behind the superblock
          simdisk_faults(disk.d, &f);
          ASSERT_EQ(PGLOG_EIO, t.CheckPoint());
        }
        Tiny t(disk);
        t.Load();
        found = t.x.s.generation;
        acked = 3;
        tried = std::max<uint64_t>(found, acked);
        c.seed += 1000;
        simdisk_faults(disk.d, &c);
        for (int i = 0; i < 4; i++) {
          tried = t.x.s.generation + 1;
          if (t.CheckPoint() != 0)
            break;
          acked = tried;
        }
      },
      [&](Disk &disk) {
        Tiny t(disk);
        t.Load();
        if (::testing::Test::HasFatalFailure())
          return;
        ASSERT_TRUE(t.x.s.generation >= acked && t.x.s.generation <= tried)
            << "found " << t.x.s.generation << ", acknowledged " << acked << ", tried " << tried;
      });
}

uint64_t GenerationIn(Disk &disk, uint64_t slot) {
  super s;
  return super_decode(&s, simdisk_bytes(disk.d, slot * PGLOG_BLOCK), nullptr) ? 0 : s.generation;
}

TEST(Publish, AfterAFailureTheSameSlotIsUsedAgain) {
  for (bool sync : {false, true}) {
    Disk disk;
    Arena x(&disk.io);
    ASSERT_EQ(0, x.Format());   // slot 0
    ASSERT_EQ(0, x.Publish());  // slot 1
    ASSERT_EQ(0, x.Publish());  // slot 0
    for (int i = 0; i < 3; i++) {
      simdisk_config f = {};
      f.power = SIMDISK_TORN;
      (sync ? f.fail_sync_at : f.fail_write_at) = sync ? 2 : 1;
      simdisk_faults(disk.d, &f);
      EXPECT_EQ(PGLOG_EIO, x.Publish());
      EXPECT_NE(nullptr, strstr(x.err.text, "slot 1")) << x.err.text;
      EXPECT_EQ(3u, GenerationIn(disk, 0));
    }
    ASSERT_EQ(0, x.Publish()) << x.err.text;
    EXPECT_EQ(3u, GenerationIn(disk, 0));
    EXPECT_EQ(7u, GenerationIn(disk, 1));
    ASSERT_EQ(0, x.Publish());
    EXPECT_EQ(8u, GenerationIn(disk, 0));
  }
}

TEST(Publish, AFailedSyncOfDataPoisonsUntilReopen) {
  Disk disk;
  {
    Tiny t(disk);
    ASSERT_EQ(0, t.x.Format());
    ASSERT_EQ(0, t.CheckPoint());
    simdisk_config f = {};
    f.fail_sync_at = 1;
    simdisk_faults(disk.d, &f);
    EXPECT_EQ(PGLOG_EIO, t.CheckPoint());
    EXPECT_EQ(PGLOG_EPOISONED, t.x.Publish());
    EXPECT_NE(nullptr, strstr(t.x.err.text, "sim: sync")) << t.x.err.text;
    EXPECT_EQ(PGLOG_EPOISONED, arena_sync(t.x.a, &t.x.err));
    EXPECT_EQ(PGLOG_EPOISONED, arena_write(t.x.a, nullptr, 0, &t.x.err));
    arena_io v = {2, 1, t.block.p, 0};
    EXPECT_EQ(0, arena_read(t.x.a, &v, 1, &t.x.err));
  }
  Tiny t(disk);
  t.Load();
  EXPECT_EQ(2u, t.x.s.generation);
  EXPECT_EQ(0, t.CheckPoint());
}

TEST(Publish, AnUnreadableSlotIsAnErrorNotAnOldArena) {
  Disk disk;
  {
    Arena x(&disk.io);
    ASSERT_EQ(0, x.Format());
  }
  for (uint64_t n : {1, 2}) {
    simdisk_config f = {};
    f.fail_read_at = n;
    simdisk_faults(disk.d, &f);
    Arena x(&disk.io);
    EXPECT_EQ(PGLOG_EIO, x.rc);
    EXPECT_NE(nullptr, strstr(x.err.text, n == 1 ? "slot 0" : "slot 1")) << x.err.text;
  }
}

TEST(Publish, SuperblocksOutOfLimitsAreNotWritten) {
  Disk disk;
  Arena x(&disk.io);
  EXPECT_EQ(PGLOG_EINVAL, x.Publish()) << "not formatted";
  ASSERT_EQ(0, x.Format());
  super s = x.s;
  s.generation = 2;
  s.arena_id++;
  EXPECT_EQ(PGLOG_EINVAL, arena_publish(x.a, &s, &x.err));
  s = x.s;
  s.generation = 2;
  s.n_wals = SUPER_WALS_MAX + 1;
  EXPECT_EQ(PGLOG_EINVAL, arena_publish(x.a, &s, &x.err));
  s.n_wals = 2;
  s.wals[0] = s.wals[1] = 3;
  EXPECT_EQ(PGLOG_EINVAL, arena_publish(x.a, &s, &x.err));
  EXPECT_NE(nullptr, strstr(x.err.text, "ascend")) << x.err.text;
  EXPECT_EQ(0u, GenerationIn(disk, 1));
}

// Neighbours are read as one request; one of them being bad must be told apart.
TEST(Io, ABadBlockDoesNotTakeItsNeighboursDown) {
  struct Bad {
    static int Submit(void *arg, pglog_io_req *reqs, size_t n) {
      Bad *b = static_cast<Bad *>(arg);
      int rc = b->disk.io.submit(b->disk.io.arg, reqs, n);
      b->requests += n;
      for (size_t i = 0; i < n; i++) {
        uint64_t first = reqs[i].offset / PGLOG_BLOCK;
        if (b->block >= first && b->block < first + reqs[i].length / PGLOG_BLOCK)
          rc = reqs[i].result = -EIO;
      }
      return rc;
    }
    static int Sync(void *arg) { return Io(arg).sync(Io(arg).arg); }
    static int64_t Size(void *arg) { return Io(arg).size(Io(arg).arg); }
    static int Grow(void *arg, uint64_t n) { return Io(arg).grow(Io(arg).arg, n); }
    static void Close(void *) {}
    static pglog_io &Io(void *arg) { return static_cast<Bad *>(arg)->disk.io; }
    Disk disk;
    uint64_t block = UINT64_MAX;
    size_t requests = 0;
  } bad;
  pglog_io io = {&bad, Bad::Submit, Bad::Sync, Bad::Size, Bad::Grow, Bad::Size, Bad::Close};
  Arena x(&io);
  ASSERT_EQ(0, x.Format());
  uint32_t b;
  ASSERT_EQ(0, arena_alloc(x.a, 10, &b, &x.err));
  uint8_t *mem = static_cast<uint8_t *>(io_alloc(10));
  std::vector<arena_io> v;
  for (uint32_t i = 0; i < 10; i++)
    v.push_back({b + i, 1, mem + i * PGLOG_BLOCK, -1});
  bad.requests = 0;
  ASSERT_EQ(0, arena_read(x.a, v.data(), v.size(), &x.err));
  EXPECT_EQ(1u, bad.requests);
  bad.block = b + 4;
  EXPECT_EQ(PGLOG_EIO, arena_read(x.a, v.data(), v.size(), &x.err));
  for (uint32_t i = 0; i < 10; i++)
    EXPECT_EQ(i == 4 ? -EIO : 0, v[i].result) << i;
  EXPECT_NE(nullptr, strstr(x.err.text, ("block " + std::to_string(b + 4)).c_str())) << x.err.text;
  free(mem);
}

// ------------------------------------------------------------------------------------------------
// The simulated disk itself

std::vector<uint8_t> AfterCut(simdisk_power power, uint64_t seed, uint64_t fail_sync_at) {
  simdisk_config c = {};
  c.size = 16 * PGLOG_BLOCK;
  c.power = power;
  c.seed = seed;
  c.fail_sync_at = fail_sync_at;
  Disk disk(c);
  Block b;
  for (unsigned i = 0; i < 24; i++) {
    memset(b.p, static_cast<int>(i + 1), PGLOG_BLOCK);
    EXPECT_EQ(0, io_write(&disk.io, i * 5 % 16 * PGLOG_BLOCK, b.p, PGLOG_BLOCK));
    if (i == 7) {
      EXPECT_EQ(fail_sync_at ? -EIO : 0, disk.io.sync(disk.io.arg));
    }
  }
  simdisk_power_on(disk.d);
  uint8_t *p = simdisk_bytes(disk.d, 0);
  return std::vector<uint8_t>(p, p + c.size);
}

TEST(SimDisk, ACutLeavesOldOrNewSectorsInTheWayOfItsStyle) {
  for (int style = 0; style < SIMDISK_POWER_STYLES; style++) {
    SCOPED_TRACE(kStyle[style]);
    std::set<std::vector<uint8_t>> outcomes;
    for (uint64_t seed = 1; seed <= 20; seed++) {
      auto got = AfterCut(static_cast<simdisk_power>(style), seed, 0);
      EXPECT_TRUE(got == AfterCut(static_cast<simdisk_power>(style), seed, 0)) << "seed " << seed;
      outcomes.insert(got);
      for (size_t block = 0; block < 16; block++) {
        std::set<uint8_t> may = {0};  // synced value, or any later one
        for (unsigned i = 0; i < 24; i++) {
          if (i * 5 % 16 != block)
            continue;
          if (i <= 7)
            may.clear();
          may.insert(static_cast<uint8_t>(i + 1));
        }
        for (size_t at = 0; at < PGLOG_BLOCK; at += SIMDISK_SECTOR) {
          uint8_t v = got[block * PGLOG_BLOCK + at];
          EXPECT_TRUE(may.count(v)) << "seed " << seed << " block " << block << " has " << int{v};
          EXPECT_EQ(v, got[block * PGLOG_BLOCK + at + SIMDISK_SECTOR - 1]);
          if (style == SIMDISK_LOSE_ALL) {
            EXPECT_LE(v, 8);
          }
          if (style == SIMDISK_KEEP_ALL) {
            EXPECT_EQ(v, *may.rbegin());
          }
          if (style == SIMDISK_REORDERED) {
            EXPECT_EQ(v, got[block * PGLOG_BLOCK]);
          }
        }
      }
    }
    bool fixed = style == SIMDISK_LOSE_ALL || style == SIMDISK_KEEP_ALL;
    EXPECT_TRUE(fixed ? outcomes.size() == 1 : outcomes.size() > 10) << outcomes.size();
  }
}

TEST(SimDisk, WhatAFailedSyncDroppedNoLaterSyncBringsBack) {
  auto got = AfterCut(SIMDISK_LOSE_ALL, 1, 1);
  EXPECT_EQ(std::vector<uint8_t>(got.size()), got);
  Disk disk;
  Block b;
  ASSERT_EQ(0, disk.io.grow(disk.io.arg, PGLOG_BLOCK));
  ASSERT_EQ(0, disk.io.sync(disk.io.arg));
  memset(b.p, 7, PGLOG_BLOCK);
  ASSERT_EQ(0, io_write(&disk.io, 0, b.p, PGLOG_BLOCK));
  simdisk_config f = {};
  f.fail_sync_at = 1;
  simdisk_faults(disk.d, &f);
  EXPECT_EQ(-EIO, disk.io.sync(disk.io.arg));
  EXPECT_EQ(0, disk.io.sync(disk.io.arg));
  EXPECT_EQ(0, io_read(&disk.io, 0, b.p, PGLOG_BLOCK));
  EXPECT_EQ(7, b.p[0]);
  simdisk_power_on(disk.d);
  EXPECT_EQ(0, io_read(&disk.io, 0, b.p, PGLOG_BLOCK));
  EXPECT_EQ(0, b.p[0]);
}

TEST(SimDisk, CapacitySizeAndPowerAreKept) {
  simdisk_config c = {};
  c.capacity = 4 * PGLOG_BLOCK;
  Disk disk(c);
  Block b;
  EXPECT_EQ(0, disk.io.grow(disk.io.arg, 4 * PGLOG_BLOCK));
  EXPECT_EQ(-ENOSPC, disk.io.grow(disk.io.arg, 5 * PGLOG_BLOCK));
  EXPECT_EQ(4 * PGLOG_BLOCK, disk.io.size(disk.io.arg));
  EXPECT_EQ(-EIO, io_read(&disk.io, 4 * PGLOG_BLOCK, b.p, PGLOG_BLOCK));
  EXPECT_EQ(-EIO, io_write(&disk.io, 4 * PGLOG_BLOCK, b.p, PGLOG_BLOCK));
  simdisk_cut(disk.d);
  EXPECT_EQ(-EIO, io_read(&disk.io, 0, b.p, PGLOG_BLOCK));
  EXPECT_EQ(-EIO, disk.io.sync(disk.io.arg));
  EXPECT_EQ(-EIO, disk.io.size(disk.io.arg));
  simdisk_power_on(disk.d);
  EXPECT_EQ(0, disk.io.size(disk.io.arg)) << "the size was never synced";
}

// ------------------------------------------------------------------------------------------------
// A real block device

// A loop device over a file, or why there is none.
class Loop {
 public:
  Loop(const std::string &file, uint64_t bytes) : file_(file) {
    int back = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    unlink(file.c_str());
    if (back < 0 || ftruncate(back, static_cast<off_t>(bytes)) != 0) {
      broken = true;
      why = "cannot make the file behind it";
      return;
    }
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0) {
      why = std::string("/dev/loop-control: ") + strerror(errno);
    } else {
      for (int tries = 0; dev < 0 && tries < 20; tries++)  // others may take the free one first
        Attach(control, back);
      close(control);
    }
    close(back);
  }
  ~Loop() {
    if (dev >= 0) {
      ioctl(dev, LOOP_CLR_FD, 0);
      close(dev);
    }
  }
  Loop(const Loop &) = delete;
  std::string path, why;
  bool broken = false;  // there are loop devices, but using one failed
  int dev = -1;

 private:
  void Attach(int control, int back) {
    int n = ioctl(control, LOOP_CTL_GET_FREE);
    if (n < 0) {
      why = std::string("LOOP_CTL_GET_FREE: ") + strerror(errno);
      return;
    }
    path = "/dev/loop" + std::to_string(n);
    int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) {
      why = path + ": " + strerror(errno);
      return;
    }
    broken = true;
    if (ioctl(fd, LOOP_SET_FD, back) == 0) {
      broken = false;
      dev = fd;
      return;
    }
    why = path + ": LOOP_SET_FD: " + strerror(errno);
    close(fd);
  }
  std::string file_;
};

TEST_F(ArenaFile, OnABlockDevice) {
  Loop loop(path_, 300 * PGLOG_BLOCK);
  if (loop.dev < 0) {
    ASSERT_FALSE(loop.broken) << "loop devices are there but do not work: " << loop.why;
    ASSERT_FALSE(geteuid() == 0 && access("/dev/loop-control", F_OK) == 0)
        << "root and /dev/loop-control, but no loop device: " << loop.why;
    printf("NOT RUN: the block device test needs root and loop devices: %s\n", loop.why.c_str());
    GTEST_SKIP() << loop.why;
  }
  arena_config c = {loop.path.c_str(), nullptr, 16 * kMiB, 64 * 1024, 32};
  Block b;
  {
    Arena x(c);
    ASSERT_EQ(0, x.rc) << x.err.text;
    EXPECT_EQ(ARENA_ABSENT, x.state);
    ASSERT_EQ(0, x.Format()) << x.err.text;
    EXPECT_EQ(nullptr, arena_buffered_why(x.a));
    Arena y(c);
    EXPECT_EQ(PGLOG_EBUSY, y.rc) << y.err.text;
    EXPECT_NE(nullptr, strstr(y.err.text, (loop.path + " is open already").c_str())) << y.err.text;
    uint32_t block, n = 2;
    while (arena_alloc(x.a, 1, &block, &x.err) == 0)
      n++;
    EXPECT_EQ(300u, n);
    EXPECT_EQ(PGLOG_EFULL, x.err.code);
    EXPECT_NE(nullptr, strstr(x.err.text, "1228800 of 1228800 bytes are used")) << x.err.text;
    EXPECT_NE(nullptr, strstr(x.err.text, "the device's size of 1228800 bytes")) << x.err.text;
    memset(b.p, 0x5a, PGLOG_BLOCK);
    arena_io v = {299, 1, b.p, 0};
    ASSERT_EQ(0, arena_write(x.a, &v, 1, &x.err)) << x.err.text;
    x.s.root_block = 299;
    x.s.root_blocks = 1;
    x.s.root_generation = x.s.generation;
    ASSERT_EQ(0, x.Publish()) << x.err.text;
  }
  Arena x(c);
  ASSERT_EQ(0, x.rc) << x.err.text;
  ASSERT_EQ(ARENA_VALID, x.state);
  EXPECT_EQ(2u, x.s.generation);
  ASSERT_EQ(0, arena_mark(x.a, 299, 1, &x.err));
  memset(b.p, 0, PGLOG_BLOCK);
  arena_io v = {299, 1, b.p, 0};
  ASSERT_EQ(0, arena_read(x.a, &v, 1, &x.err)) << x.err.text;
  EXPECT_EQ(0x5a, b.p[4095]);
  struct arena_usage u;
  arena_usage(x.a, &u);
  EXPECT_EQ(300u, u.max_blocks);
}

// ------------------------------------------------------------------------------------------------

TEST_F(ArenaFile, PrintedSpeedOfWrites) {
  const uint32_t kBlocks = 2048;
  pglog_io io;
  io_file_info info;
  ASSERT_EQ(0, io_file_open(path_.c_str(), true, 32, &io, &info, nullptr));
  ASSERT_EQ(0, io.grow(io.arg, kBlocks * PGLOG_BLOCK));
  Block b;
  std::vector<uint32_t> order(kBlocks);
  for (uint32_t i = 0; i < kBlocks; i++)
    order[i] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  auto run = [&](size_t batch) {
    auto t0 = std::chrono::steady_clock::now();
    for (uint32_t i = 0; i < kBlocks; i += static_cast<uint32_t>(batch)) {
      std::vector<pglog_io_req> reqs;
      for (size_t k = 0; k < batch; k++)
        reqs.push_back({PGLOG_IO_WRITE, 0, uint64_t{order[i + k]} * PGLOG_BLOCK, PGLOG_BLOCK, b.p});
      EXPECT_EQ(0, io.submit(io.arg, reqs.data(), batch));
    }
    EXPECT_EQ(0, io.sync(io.arg));
    return kBlocks / std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count();
  };
  run(256);  // the first writes of a new file are slower
  for (int round = 0; round < 2; round++) {
    double one = run(1), many = run(256);
    printf("4 KiB random writes per second: %.0f one by one, %.0f with 32 in flight (%s)\n", one,
           many, info.direct ? "O_DIRECT" : info.why);
  }
  io.close(io.arg);
}

}  // namespace
