// SPDX-License-Identifier: Apache-2.0
//
// blockdev_test.cc - the disk as an NBD client sees it: like memory, whatever the requests'
// borders; after a kill all is there that the client's log says was flushed, and all that was
// answered; parameters and geometry are checked by name. BLOCKDEV_TEST_SEED replays a case.
#include <gtest/gtest.h>
#include <libnbd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <list>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr uint64_t kSector = 512, kObject = 4u << 20;
// Neither a multiple of an object nor of a block.
constexpr uint64_t kSize = 5 * kObject + 3 * kSector;
constexpr uint64_t kSectors = kSize / kSector, kWords = kSector / 8;

uint64_t Seed() {
  const char *s = getenv("BLOCKDEV_TEST_SEED");
  return s ? strtoull(s, nullptr, 10) : std::random_device()();
}

struct TempDir {
  std::string path;
  TempDir() {
    const char *base = getenv("TMPDIR");
    path = std::string(base ? base : "/tmp") + "/blockdev_test.XXXXXX";
    if (!mkdtemp(path.data()))
      abort();
  }
  ~TempDir() { std::filesystem::remove_all(path); }
};

// A server of its own for one connection.
struct Disk {
  std::string dir, mode;
  struct nbd_handle *h = nullptr;

  Disk(const std::string &d, const char *m) : dir(d), mode(m) {}
  ~Disk() { Close(); }
  // `file_blocks`: the server can write no longer files; as for ulimit -f, in units of 512 bytes.
  void Open(const char *file_blocks = "unlimited") {
    std::string d = "dir=" + dir, s = "size=" + std::to_string(kSize), m = "mode=" + mode;
    const char *limited = "trap '' XFSZ; ulimit -f $0; exec \"$@\"";
    const char *argv[] = {"sh",
                          "-c",
                          limited,
                          file_blocks,
                          "nbdkit",
                          "-s",
                          "--exit-with-parent",
                          BLOCKDEV_PLUGIN,
                          d.c_str(),
                          s.c_str(),
                          m.c_str(),
                          nullptr};
    h = nbd_create();
    ASSERT_NE(h, nullptr) << nbd_get_error();
    ASSERT_EQ(nbd_connect_command(h, const_cast<char **>(argv)), 0) << nbd_get_error();
  }
  void Close() {
    if (h)
      nbd_shutdown(h, 0);
    Drop();
  }
  void Kill() {
    ASSERT_EQ(nbd_kill_subprocess(h, SIGKILL), 0) << nbd_get_error();
    Drop();
  }
  void Drop() {
    nbd_close(h);  // waits for the server
    h = nullptr;
  }
};

class Blockdev : public testing::TestWithParam<const char *> {
 protected:
  TempDir tmp_;
};
INSTANTIATE_TEST_SUITE_P(Modes, Blockdev, testing::Values("split", "rocksdb"),
                         [](const auto &i) { return std::string(i.param); });

// What the client does, and the same to memory.
struct Model {
  Disk *disk;
  std::mt19937_64 rnd;
  std::vector<uint8_t> want = std::vector<uint8_t>(kSize);

  Model(Disk *d, uint64_t seed) : disk(d), rnd(seed) {}
  uint64_t Below(uint64_t n) { return rnd() % n; }

  // Small or over several objects; now and then exactly whole ones.
  void Range(uint64_t *at, uint64_t *n) {
    *n = 1 + Below(Below(2) ? 10000 : 9u << 20);
    *at = Below(kSize);
    if (Below(4) == 0) {
      *at -= *at % kObject;
      *n = kObject * (1 + Below(3));
    }
    *n = std::min(*n, kSize - *at);
  }
  void Compare(uint64_t at, uint64_t n) {
    std::vector<uint8_t> got(n, 0xee);
    ASSERT_EQ(nbd_pread(disk->h, got.data(), n, at, 0), 0) << nbd_get_error();
    ASSERT_EQ(memcmp(got.data(), &want[at], n), 0) << n << " bytes at " << at;
  }
  void Write(uint64_t at, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
      want[at + i] = static_cast<uint8_t>((i * 7 + at) ^ n);
    uint32_t flags = Below(2) ? LIBNBD_CMD_FLAG_FUA : 0;
    ASSERT_EQ(nbd_pwrite(disk->h, &want[at], n, at, flags), 0) << nbd_get_error();
  }
  void Zero(uint64_t at, uint64_t n) {
    memset(&want[at], 0, n);
    int rc = Below(2)
                 ? nbd_trim(disk->h, n, at, 0)
                 : nbd_zero(disk->h, n, at, LIBNBD_CMD_FLAG_FAST_ZERO | LIBNBD_CMD_FLAG_NO_HOLE);
    ASSERT_EQ(rc, 0) << nbd_get_error();
  }
  void Step() {
    uint64_t at, n, what = Below(10);
    Range(&at, &n);
    if (what < 4)
      Write(at, n);
    else if (what < 6)
      Zero(at, n);
    else if (what < 9)
      Compare(at, n);
    else
      ASSERT_EQ(nbd_flush(disk->h, 0), 0) << nbd_get_error();
  }
};

TEST_P(Blockdev, IsLikeMemory) {
  uint64_t seed = Seed();
  SCOPED_TRACE("BLOCKDEV_TEST_SEED=" + std::to_string(seed));
  Disk disk(tmp_.path + "/disk", GetParam());
  Model m(&disk, seed);
  for (int part = 0; part < 3; part++) {
    ASSERT_NO_FATAL_FAILURE(disk.Open());
    ASSERT_NO_FATAL_FAILURE(m.Compare(0, kSize));
    for (int i = 0; i < 60; i++)
      ASSERT_NO_FATAL_FAILURE(m.Step()) << "step " << i;
    ASSERT_NO_FATAL_FAILURE(m.Compare(0, kSize));
    disk.Close();
  }
}

TEST_P(Blockdev, SaysWhatItCan) {
  Disk disk(tmp_.path + "/disk", GetParam());
  ASSERT_NO_FATAL_FAILURE(disk.Open());
  EXPECT_EQ(nbd_get_size(disk.h), static_cast<int64_t>(kSize));
  EXPECT_EQ(nbd_is_read_only(disk.h), 0);
  EXPECT_EQ(nbd_can_flush(disk.h), 1);
  EXPECT_EQ(nbd_can_fua(disk.h), 1);
  EXPECT_EQ(nbd_can_trim(disk.h), 1);
  EXPECT_EQ(nbd_can_zero(disk.h), 1);
  EXPECT_EQ(nbd_can_fast_zero(disk.h), 1);
  EXPECT_EQ(nbd_can_multi_conn(disk.h), 1);
}

// What a write with this seed puts into a sector: any two seeds, and any two sectors of a write,
// differ in each word. Seed 0 is for zeros, which were there before the first write.
uint64_t Word(uint64_t seed, uint64_t sector, uint64_t i) {
  return seed ? seed * (2 * i + 1) + sector : 0;
}

// False if parts of it are of other writes, or of other sectors.
bool SeedOf(const uint64_t *words, uint64_t sector, uint64_t *seed) {
  bool zeros = std::all_of(words, words + kWords, [](uint64_t w) { return w == 0; });
  *seed = zeros ? 0 : words[0] - sector;
  for (uint64_t i = 0; i < kWords; i++)
    if (words[i] != Word(*seed, sector, i))
      return false;
  return true;
}

// A line of the client's log. What happened:
//   found   the disk had this here when the log was begun
//   write   is about to be sent      wrote    is answered
//   flush   is about to be sent      flushed  is answered
// and to what; flushes have a number of their own as seed, and no bytes.
struct Line {
  std::string what;
  uint64_t at = 0, bytes = 0, seed = 0;
  uint32_t flags = 0;
};

// Sectors that have what they must not have; what the first one has.
struct Wrong {
  uint64_t sectors = 0;
  std::string first;
  void Add(const std::string &about) {
    if (sectors++ == 0)
      first = about;
  }
};

// What a log says that sectors may have after a kill, and whether they do.
struct Ledger {
  struct Write {
    bool answered = false;
    bool kept = false;  // answered before a flush was sent that was answered too; or has FUA
  };
  using Seeds = std::vector<uint64_t>;
  std::map<uint64_t, Write> writes;
  std::map<uint64_t, Seeds> flushes;  // what was answered when they were sent
  // What each sector had at first, and its writes, in order: none was sent before the one before it
  // was answered.
  std::vector<Seeds> sectors = std::vector<Seeds>(kSectors, Seeds{0});
  uint64_t kept = 0, answered = 0, open = 0;  // sectors, by what their last write is

  Wrong torn;           // is of several writes
  Wrong lost_kept;      // is older than what was kept: no disk may have that
  Wrong lost_answered;  // is older than what was answered: a disk may have that, this one must not

  void Read(std::istream &in) {
    Line l;
    while (in >> l.what >> l.at >> l.bytes >> l.seed >> l.flags)
      ASSERT_NO_FATAL_FAILURE(Apply(l));
    ASSERT_TRUE(in.eof()) << "not a log behind \"" << l.what << "\" at " << l.at;
  }
  void Apply(const Line &l) {
    if (l.what == "found" || l.what == "write")
      Sectors(l);
    else if (l.what == "wrote")
      writes[l.seed] = {true, (l.flags & LIBNBD_CMD_FLAG_FUA) != 0};
    else if (l.what == "flush")
      Flush(l.seed);
    else if (l.what == "flushed")
      for (uint64_t seed : flushes[l.seed])
        writes[seed].kept = true;
    else
      FAIL() << "\"" << l.what << "\" in the log";
  }
  void Sectors(const Line &l) {
    for (uint64_t s = l.at / kSector; s < (l.at + l.bytes) / kSector; s++) {
      if (l.what == "found")
        sectors[s].clear();
      sectors[s].push_back(l.seed);
    }
  }
  void Flush(uint64_t number) {
    for (const auto &[seed, w] : writes)
      if (w.answered)
        flushes[number].push_back(seed);
  }
  // How many seeds there are up to the last one that `is`.
  template <class Is>
  static size_t UpTo(const Seeds &seeds, Is is) {
    return static_cast<size_t>(seeds.rend() - std::find_if(seeds.rbegin(), seeds.rend(), is));
  }
  void Check(uint64_t sector, const uint64_t *words) {
    const Seeds &seeds = sectors[sector];
    size_t k = UpTo(seeds, [&](uint64_t s) { return s == seeds[0] || writes[s].kept; });
    size_t a = UpTo(seeds, [&](uint64_t s) { return s == seeds[0] || writes[s].answered; });
    if (seeds.size() > 1)
      (k == seeds.size() ? kept : a == seeds.size() ? answered : open)++;
    uint64_t seed;
    if (!SeedOf(words, sector, &seed))
      return torn.Add(About(sector, "parts of several writes"));
    size_t found = UpTo(seeds, [&](uint64_t s) { return s == seed; });
    if (found < a)
      (found < k ? lost_kept : lost_answered).Add(About(sector, std::to_string(seed)));
  }
  std::string About(uint64_t sector, const std::string &has) {
    std::string text = "sector " + std::to_string(sector) + " has " + has + "; the log has";
    for (uint64_t seed : sectors[sector]) {
      const Write &w = writes[seed];
      text += " " + std::to_string(seed) + (w.kept ? " (kept)" : w.answered ? " (answered)" : "");
    }
    return text;
  }
};

// Which of them sector 0 has lost when it has what a write with this seed put there.
std::string Verdict(const std::string &log, uint64_t seed) {
  std::vector<uint64_t> words(kWords);
  for (uint64_t i = 0; i < kWords; i++)
    words[i] = Word(seed, 0, i);
  Ledger l;
  std::istringstream in(log);
  l.Read(in);
  l.Check(0, words.data());
  return l.lost_kept.sectors ? "kept" : l.lost_answered.sectors ? "answered" : "fine";
}

TEST(BlockdevLog, TellsWhatASectorMayHave) {
  std::string found = "found 0 512 1 0\n", write = "write 0 512 2 0\n", wrote = "wrote 0 512 2 0\n",
              flush = "flush 0 0 1 0\n", flushed = "flushed 0 0 1 0\n", later = "write 0 512 3 0\n";
  const struct {
    std::string log;
    const char *has[4];  // nothing of the log, what was found, the first write, the second
  } cases[] = {
      {found, {"kept", "fine", "kept", "kept"}},
      {found + write, {"kept", "fine", "fine", "kept"}},
      {found + write + wrote, {"kept", "answered", "fine", "kept"}},
      {found + write + wrote + later, {"kept", "answered", "fine", "fine"}},
      {found + write + wrote + flush, {"kept", "answered", "fine", "kept"}},
      {found + write + flush + wrote + flushed, {"kept", "answered", "fine", "kept"}},
      {found + write + wrote + flush + flushed, {"kept", "kept", "fine", "kept"}},
      {found + write + wrote + flush + later + flushed, {"kept", "kept", "fine", "fine"}},
      {found + "write 0 512 2 1\n", {"kept", "fine", "fine", "kept"}},
      {found + "write 0 512 2 1\nwrote 0 512 2 1\n", {"kept", "kept", "fine", "kept"}},
  };
  for (const auto &c : cases)
    for (uint64_t seed = 0; seed < 4; seed++)
      EXPECT_EQ(Verdict(c.log, seed), c.has[seed]) << "seed " << seed << " after\n" << c.log;
}

TEST(BlockdevLog, ATornSectorIsFound) {
  uint64_t words[kWords], seed;
  for (uint64_t cut = 1; cut < kWords; cut++) {
    for (uint64_t i = 0; i < kWords; i++)
      words[i] = Word(i < cut ? 7 : 0, 3, i);
    EXPECT_FALSE(SeedOf(words, 3, &seed)) << cut << " words of 7 before zeros";
    for (uint64_t i = 0; i < kWords; i++)
      words[i] = Word(i < cut ? 7 : 9, 3, i);
    EXPECT_FALSE(SeedOf(words, 3, &seed)) << cut << " words of 7 before 9";
  }
}

// A request on its way.
struct Flight {
  int64_t cookie;
  Line line;
  std::vector<uint64_t> data;
};

// Writes and flushes several at a time and logs them to a file, until the server is killed; the
// next one's disk is compared to what that file says.
struct Killer {
  Disk *disk;
  std::mt19937_64 rnd;
  std::string path;  // of the log
  std::ofstream log;
  uint64_t flushes = 0, kept = 0, answered = 0, open = 0;
  std::list<Flight> flights;

  Killer(Disk *d, uint64_t seed, const std::string &p) : disk(d), rnd(seed), path(p), log(p) {}
  ~Killer() { disk->Close(); }  // requests on their way have their data here

  // Before a request is sent, after its answer has come.
  void Note(const char *what, const Line &l) {
    log << what << ' ' << l.at << ' ' << l.bytes << ' ' << l.seed << ' ' << l.flags << std::endl;
    ASSERT_TRUE(log.good()) << "cannot write to " << path;
  }
  bool Busy(uint64_t at, uint64_t bytes) {
    for (const Flight &f : flights)
      if (at < f.line.at + f.line.bytes && f.line.at < at + bytes)
        return true;
    return false;
  }
  void Write() {
    uint64_t n = 1 + rnd() % 64, object = rnd() % (kSize / kObject) + 1;
    // Near the end of an object, so that many go over it.
    uint64_t first = std::min(object * kObject / kSector - rnd() % 256, kSectors - n);
    if (Busy(first * kSector, n * kSector))
      return;
    uint32_t flags = rnd() % 4 ? 0 : LIBNBD_CMD_FLAG_FUA;
    flights.push_back({0, {"write", first * kSector, n * kSector, rnd() | 1, flags}, {}});
    Flight &f = flights.back();
    for (uint64_t i = 0; i < n * kWords; i++)
      f.data.push_back(Word(f.line.seed, first + i / kWords, i % kWords));
    ASSERT_NO_FATAL_FAILURE(Note("write", f.line));
    f.cookie =
        nbd_aio_pwrite(disk->h, f.data.data(), f.line.bytes, f.line.at, NBD_NULL_COMPLETION, flags);
    ASSERT_GE(f.cookie, 0) << nbd_get_error();
  }
  void Flush() {
    flights.push_back({0, {"flush", 0, 0, ++flushes, 0}, {}});
    Flight &f = flights.back();
    ASSERT_NO_FATAL_FAILURE(Note("flush", f.line));
    f.cookie = nbd_aio_flush(disk->h, NBD_NULL_COMPLETION, 0);
    ASSERT_GE(f.cookie, 0) << nbd_get_error();
  }
  void Answers(int *left) {
    for (auto f = flights.begin(); f != flights.end();) {
      int done = nbd_aio_command_completed(disk->h, static_cast<uint64_t>(f->cookie));
      ASSERT_GE(done, 0) << nbd_get_error();
      if (done == 0) {
        ++f;
        continue;
      }
      ASSERT_NO_FATAL_FAILURE(Note(f->line.bytes ? "wrote" : "flushed", f->line));
      f = flights.erase(f);
      --*left;
    }
  }
  void Run(int answers) {
    while (answers > 0) {
      for (int i = 0; i < 4 && flights.size() < 16; i++)
        ASSERT_NO_FATAL_FAILURE(rnd() % 32 ? Write() : Flush());
      ASSERT_GE(nbd_poll(disk->h, -1), 0) << nbd_get_error();
      ASSERT_NO_FATAL_FAILURE(Answers(&answers));
    }
  }
  void Look() {
    std::vector<uint64_t> got(kSize / 8);
    ASSERT_EQ(nbd_pread(disk->h, got.data(), kSize, 0, 0), 0) << nbd_get_error();
    Ledger l;
    std::ifstream in(path);
    ASSERT_NO_FATAL_FAILURE(l.Read(in));
    for (uint64_t s = 0; s < kSectors; s++)
      l.Check(s, &got[s * kWords]);
    EXPECT_EQ(l.torn.sectors, 0u) << l.torn.first;
    EXPECT_EQ(l.lost_kept.sectors, 0u) << "flushed or with FUA, and lost: " << l.lost_kept.first;
    EXPECT_EQ(l.lost_answered.sectors, 0u) << "answered, and lost: " << l.lost_answered.first;
    kept += l.kept;
    answered += l.answered;
    open += l.open;
    ASSERT_NO_FATAL_FAILURE(Begin(got));
  }
  // A new log. What was found stays, once it is flushed.
  void Begin(const std::vector<uint64_t> &got) {
    ASSERT_EQ(nbd_flush(disk->h, 0), 0) << nbd_get_error();
    flights.clear();
    log.close();
    log.open(path);
    Line run;
    for (uint64_t s = 0, seed; s < kSectors; s++) {
      SeedOf(&got[s * kWords], s, &seed);
      if (seed != run.seed) {
        ASSERT_NO_FATAL_FAILURE(Note("found", run));
        run = {"", s * kSector, 0, seed, 0};
      }
      run.bytes += kSector;
    }
    ASSERT_NO_FATAL_FAILURE(Note("found", run));
  }
};

TEST_P(Blockdev, WhatWasAnsweredIsThereAfterAKill) {
  uint64_t seed = Seed();
  const char *r = getenv("BLOCKDEV_TEST_ROUNDS");
  int rounds = r ? atoi(r) : 4;
  SCOPED_TRACE("BLOCKDEV_TEST_SEED=" + std::to_string(seed));
  Disk disk(tmp_.path + "/disk", GetParam());
  Killer k(&disk, seed, tmp_.path + "/log");
  for (int i = 0; !HasFailure(); i++) {
    SCOPED_TRACE("after " + std::to_string(i) + " kills");
    ASSERT_NO_FATAL_FAILURE(disk.Open());
    ASSERT_NO_FATAL_FAILURE(k.Look());
    if (i == rounds)
      break;
    ASSERT_NO_FATAL_FAILURE(k.Run(20 + static_cast<int>(k.rnd() % 200)));
    ASSERT_NO_FATAL_FAILURE(disk.Kill());
  }
  printf("sectors: %" PRIu64 " flushed or with FUA, %" PRIu64 " only answered, %" PRIu64
         " on their way when the server was killed\n",
         k.kept, k.answered, k.open);
}

TEST_P(Blockdev, AFailedCommitIsAnError) {
  Disk disk(tmp_.path + "/disk", GetParam());
  // More than the arena has, less than a WAL needs for all of it.
  ASSERT_NO_FATAL_FAILURE(disk.Open("36000"));
  std::vector<uint8_t> data(1 << 20), got(1 << 20);
  uint64_t n = 0;
  for (; n < 20; n++) {
    std::fill(data.begin(), data.end(), static_cast<uint8_t>(n + 1));
    if (nbd_pwrite(disk.h, data.data(), data.size(), n << 20, 0))
      break;
  }
  ASSERT_LT(n, 20u) << "nothing failed";
  EXPECT_EQ(nbd_get_errno(), EIO);
  EXPECT_EQ(nbd_pwrite(disk.h, data.data(), 512, 0, 0), -1);
  EXPECT_EQ(nbd_get_errno(), EIO);
  disk.Close();
  ASSERT_NO_FATAL_FAILURE(disk.Open());
  for (uint64_t i = 0; i < n; i++) {
    std::fill(data.begin(), data.end(), static_cast<uint8_t>(i + 1));
    ASSERT_EQ(nbd_pread(disk.h, got.data(), got.size(), i << 20, 0), 0) << nbd_get_error();
    ASSERT_TRUE(got == data) << "write " << i << " of " << n;
  }
}

// What nbdkit says with these parameters, to a client that goes away at once.
std::string Says(const std::string &parameters, int *status) {
  std::string text,
      command = "nbdkit -s " BLOCKDEV_PLUGIN " " + parameters + " 2>&1 >/dev/null </dev/null";
  FILE *p = popen(command.c_str(), "r");
  if (!p)
    return "popen failed";
  for (int c; (c = getc(p)) != EOF;)
    text += static_cast<char>(c);
  *status = pclose(p);
  return text;
}

TEST(BlockdevParameters, ErrorsNameParameterLimitAndValue) {
  TempDir tmp;
  std::string dir = "dir=" + tmp.path + "/disk ";
  const std::pair<std::string, const char *> cases[] = {
      {"size=1M", "parameter dir=DIRECTORY is missing"},
      {dir, "parameter size=BYTES is missing"},
      {dir + "size=1000",
       "size must be a multiple of 512 from 512 to 1125899906842624 bytes, not \"1000\""},
      {dir + "size=0",
       "size must be a multiple of 512 from 512 to 1125899906842624 bytes, not \"0\""},
      {dir + "size=1M mode=both", "mode must be split or rocksdb, not \"both\""},
      {dir + "size=1M queue=slow", "queue must be fast, sharded or single, not \"slow\""},
      {dir + "size=1M shards=1025", "shards must be a number from 1 to 1024, not \"1025\""},
      {dir + "size=1M threads=0", "threads must be a number from 1 to 64, not \"0\""},
      {dir + "size=1M color=red", "unknown parameter color=red; there are dir, size, mode"},
  };
  for (const auto &[parameters, expect] : cases) {
    int status = 0;
    std::string text = Says(parameters, &status);
    EXPECT_NE(text.find(expect), std::string::npos) << parameters << ": " << text;
    EXPECT_NE(status, 0) << parameters;
  }
  EXPECT_FALSE(std::filesystem::exists(tmp.path + "/disk"));
}

TEST(BlockdevParameters, AnotherSizeIsRefusedWithBoth) {
  TempDir tmp;
  std::string dir = "dir=" + tmp.path + "/disk ";
  int status = 0;
  EXPECT_EQ(Says(dir + "size=8M", &status).find("size="), std::string::npos);
  std::string text = Says(dir + "size=16M", &status);
  EXPECT_NE(text.find("size=16777216, but the disk was made with size=8388608"), std::string::npos)
      << text;
  EXPECT_NE(status, 0);
  EXPECT_EQ(Says(dir + "size=8M", &status).find("size="), std::string::npos);
}

}  // namespace
