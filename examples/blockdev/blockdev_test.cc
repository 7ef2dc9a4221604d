// SPDX-License-Identifier: Apache-2.0
//
// blockdev_test.cc - the disk as an NBD client sees it: like memory, whatever the requests'
// borders; after a kill all that was answered is there; parameters and geometry are checked by
// name. BLOCKDEV_TEST_SEED replays a case.
#include <gtest/gtest.h>
#include <libnbd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <list>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr uint64_t kSector = 512, kObject = 4u << 20;
// Neither a multiple of an object nor of a block.
constexpr uint64_t kSize = 5 * kObject + 3 * kSector;

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

// A write on its way: sectors [first, first + n) become those of write number `w`.
struct Flight {
  int64_t cookie;
  uint64_t first, n, w;
  std::vector<uint64_t> data;
};

// Writes several at a time until the server is killed, and looks at what it finds afterwards.
struct Killer {
  Disk *disk;
  std::mt19937_64 rnd;
  uint64_t w = 0;
  std::vector<uint64_t> now = std::vector<uint64_t>(kSize / kSector);  // write of each sector
  std::list<Flight> flights;

  Killer(Disk *d, uint64_t seed) : disk(d), rnd(seed) {}

  bool Busy(uint64_t first, uint64_t n) {
    for (const Flight &f : flights)
      if (first < f.first + f.n && f.first < first + n)
        return true;
    return false;
  }
  void Submit() {
    uint64_t n = 1 + rnd() % 64, object = rnd() % (kSize / kObject) + 1;
    // Near the end of an object, so that many go over it.
    uint64_t first = std::min(object * kObject / kSector - rnd() % 256, now.size() - n);
    if (Busy(first, n))
      return;
    flights.push_back({0, first, n, ++w, std::vector<uint64_t>(n * kSector / 8)});
    Flight &f = flights.back();
    for (size_t i = 0; i < f.data.size(); i++)
      f.data[i] = f.w << 32 | (first + i * 8 / kSector);
    f.cookie = nbd_aio_pwrite(disk->h, f.data.data(), n * kSector, first * kSector,
                              NBD_NULL_COMPLETION, 0);
    ASSERT_GE(f.cookie, 0) << nbd_get_error();
  }
  int Answered() {
    int count = 0;
    for (auto f = flights.begin(); f != flights.end();) {
      int done = nbd_aio_command_completed(disk->h, static_cast<uint64_t>(f->cookie));
      EXPECT_GE(done, 0) << nbd_get_error();
      if (done == 0) {
        ++f;
        continue;
      }
      std::fill_n(now.begin() + static_cast<long>(f->first), f->n, f->w);
      f = flights.erase(f);
      count++;
    }
    return count;
  }
  void Write(int answers) {
    while (answers > 0) {
      for (int i = 0; i < 4 && flights.size() < 16; i++)
        ASSERT_NO_FATAL_FAILURE(Submit());
      ASSERT_GE(nbd_poll(disk->h, -1), 0) << nbd_get_error();
      answers -= Answered();
    }
  }
  // Old, or that of a write that had no answer.
  bool MayBe(uint64_t sector, uint64_t found) {
    for (const Flight &f : flights)
      if (sector - f.first < f.n && found == f.w)
        return true;
    return found == now[sector];
  }
  void Look() {
    std::vector<uint64_t> got(kSize / 8);
    ASSERT_EQ(nbd_pread(disk->h, got.data(), kSize, 0, 0), 0) << nbd_get_error();
    for (uint64_t s = 0; s < now.size(); s++) {
      const uint64_t *sector = &got[s * kSector / 8];
      uint64_t found = sector[0] >> 32;
      ASSERT_TRUE(MayBe(s, found)) << "sector " << s << ": " << found << ", want " << now[s];
      for (uint64_t i = 0; i < kSector / 8; i++)
        ASSERT_EQ(sector[i], found ? found << 32 | s : 0) << "sector " << s << " is torn";
      now[s] = found;
    }
    flights.clear();
  }
};

TEST_P(Blockdev, WhatWasAnsweredIsThereAfterAKill) {
  uint64_t seed = Seed();
  const char *rounds = getenv("BLOCKDEV_TEST_ROUNDS");
  SCOPED_TRACE("BLOCKDEV_TEST_SEED=" + std::to_string(seed));
  Disk disk(tmp_.path + "/disk", GetParam());
  Killer k(&disk, seed);
  for (int i = 0; i < (rounds ? atoi(rounds) : 4); i++) {
    ASSERT_NO_FATAL_FAILURE(disk.Open());
    ASSERT_NO_FATAL_FAILURE(k.Look()) << "round " << i;
    ASSERT_NO_FATAL_FAILURE(k.Write(20 + static_cast<int>(k.rnd() % 200)));
    ASSERT_NO_FATAL_FAILURE(disk.Kill());
  }
  ASSERT_NO_FATAL_FAILURE(disk.Open());
  ASSERT_NO_FATAL_FAILURE(k.Look());
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
