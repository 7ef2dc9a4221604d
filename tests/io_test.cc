// SPDX-License-Identifier: Apache-2.0
// Proves that io.c moves the right bytes through libaio and through its fallback, under partial
// submissions, EAGAIN, EINTR and short transfers; that it locks, grows and reports as documented.
#include "io.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <libaio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

// The functions below take the place of libaio's and libc's in this program, so that each answer
// the kernel may give can be given on demand. Without a fault they are the plain system calls.
namespace {
struct Faults {
  std::atomic<int> setup_errno{0};      // io_setup
  std::atomic<int> direct_errno{0};     // fcntl(O_DIRECT)
  std::atomic<int> fallocate_errno{0};  // fallocate, after half of the work
  std::atomic<unsigned> strange{0};     // seed: partial, EAGAIN, EINTR, short
  std::atomic<unsigned> submits{0}, refused{0}, shortened{0};
} faults;

unsigned Roll() {
  static std::atomic<unsigned> n{0};
  unsigned x = (faults.strange + n++) * 2654435761u;
  return (x ^ (x >> 15)) % 5;
}
}  // namespace

extern "C" {
int io_setup(int n, io_context_t *ctx) {
  if (faults.setup_errno)
    return -faults.setup_errno;
  return syscall(SYS_io_setup, n, ctx) < 0 ? -errno : 0;
}

int io_submit(io_context_t ctx, long n, struct iocb **batch) {
  faults.submits++;
  unsigned roll = faults.strange ? Roll() : 4;
  if (roll < 2)
    faults.refused++;
  if (roll == 0)
    return -EAGAIN;
  if (roll == 1)
    return -EINTR;
  if (roll == 2)
    n = 1;
  long rc = syscall(SYS_io_submit, ctx, n, batch);
  return rc < 0 ? -errno : static_cast<int>(rc);
}

int io_getevents(io_context_t ctx, long min, long n, struct io_event *events, struct timespec *t) {
  if (faults.strange && Roll() == 0)
    return -EINTR;
  long rc = syscall(SYS_io_getevents, ctx, min, n, events, t);
  for (long i = 0; faults.strange && i < rc; i++) {
    if (Roll() == 0 && static_cast<long>(events[i].res) > static_cast<long>(PGLOG_BLOCK)) {
      events[i].res = PGLOG_BLOCK;
      faults.shortened++;
    }
  }
  return rc < 0 ? -errno : static_cast<int>(rc);
}

int fcntl(int fd, int cmd, ...) {
  va_list ap;
  va_start(ap, cmd);
  long arg = va_arg(ap, long);
  va_end(ap);
  if (cmd == F_SETFL && (arg & O_DIRECT) && faults.direct_errno) {
    errno = faults.direct_errno;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fcntl, fd, cmd, arg));
}

int fallocate(int fd, int mode, off_t at, off_t n) {
  if (!faults.fallocate_errno)
    return static_cast<int>(syscall(SYS_fallocate, fd, mode, at, n));
  if (faults.fallocate_errno != EOPNOTSUPP) {
    EXPECT_EQ(0, syscall(SYS_fallocate, fd, mode, at, n / 2));
  }
  errno = faults.fallocate_errno;
  return -1;
}
}

namespace {

class IoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = "io_test." + std::to_string(getpid()) + ".tmp";
    unlink(path_.c_str());
  }
  void TearDown() override {
    Close();
    faults.setup_errno = faults.direct_errno = faults.fallocate_errno = 0;
    faults.strange = 0;
    unlink(path_.c_str());
  }
  int Open(bool create = true, uint32_t depth = 8) {
    int rc = io_file_open(path_.c_str(), create, depth, &io_, &info_, &err_);
    open_ = rc == 0;
    return rc;
  }
  void Close() {
    if (open_)
      io_.close(io_.arg);
    open_ = false;
  }
  // Random batches of writes and reads of 1 to 4 blocks against a copy in memory.
  void Compare(unsigned seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const size_t kBlocks = 256;
    std::mt19937 rnd(seed);
    std::vector<uint8_t> model(kBlocks * PGLOG_BLOCK);
    uint8_t *mem = static_cast<uint8_t *>(io_alloc(kBlocks));
    ASSERT_NE(nullptr, mem);
    ASSERT_EQ(0, io_.grow(io_.arg, model.size()));
    memset(mem, 0, model.size());
    ASSERT_EQ(0, io_write(&io_, 0, mem, static_cast<uint32_t>(model.size())));
    for (int round = 0; round < 12; round++) {
      int op = round % 2 ? PGLOG_IO_READ : PGLOG_IO_WRITE;
      std::vector<pglog_io_req> reqs;
      for (size_t b = rnd() % 3; b < kBlocks;) {
        size_t n = std::min<size_t>(1 + rnd() % 4, kBlocks - b);
        reqs.push_back({op, -1, b * PGLOG_BLOCK, static_cast<uint32_t>(n * PGLOG_BLOCK),
                        mem + b * PGLOG_BLOCK});
        b += n + rnd() % 3;
      }
      std::shuffle(reqs.begin(), reqs.end(), rnd);
      for (auto &r : reqs)
        for (size_t i = 0; i < r.length; i += 64)
          static_cast<uint8_t *>(r.buf)[i] = static_cast<uint8_t>(rnd());
      ASSERT_EQ(0, io_.submit(io_.arg, reqs.data(), reqs.size()));
      for (auto &r : reqs) {
        ASSERT_EQ(0, r.result);
        if (op == PGLOG_IO_WRITE)
          memcpy(&model[r.offset], r.buf, r.length);
        else
          ASSERT_EQ(0, memcmp(&model[r.offset], r.buf, r.length)) << "offset " << r.offset;
      }
    }
    ASSERT_EQ(0, io_.sync(io_.arg));
    // What was written is also what another reader sees.
    std::vector<uint8_t> file(model.size());
    int fd = open(path_.c_str(), O_RDONLY);
    ASSERT_EQ(static_cast<ssize_t>(file.size()), pread(fd, file.data(), file.size(), 0));
    close(fd);
    ASSERT_TRUE(file == model);
    free(mem);
  }

  std::string path_;
  pglog_io io_;
  io_file_info info_;
  pglog_error err_;
  bool open_ = false;
};

TEST_F(IoTest, BatchesLargerThanTheQueue) {
  ASSERT_EQ(0, Open());
  printf("direct: %d %s\n", info_.direct, info_.why);
  EXPECT_NE(info_.direct, info_.why[0] != 0);
  EXPECT_FALSE(info_.exists);
  unsigned before = faults.submits;
  Compare(1);
  if (info_.direct) {
    EXPECT_GT(faults.submits, before + 12);
  }
  Close();
  ASSERT_EQ(0, Open(false, 1));
  EXPECT_TRUE(info_.exists);
  Compare(2);
}

TEST_F(IoTest, PartialSubmissionsRetriesAndShortTransfers) {
  ASSERT_EQ(0, Open());
  for (unsigned seed = 1; seed <= 20; seed++) {
    faults.strange = seed;
    Compare(seed);
  }
  if (info_.direct) {
    EXPECT_GT(faults.refused, 0u);
    EXPECT_GT(faults.shortened, 0u);
  }
}

TEST_F(IoTest, WithoutDirectItIsBuffered) {
  faults.direct_errno = EINVAL;
  ASSERT_EQ(0, Open());
  EXPECT_FALSE(info_.direct);
  EXPECT_NE(nullptr, strstr(info_.why, "O_DIRECT")) << info_.why;
  Compare(3);
}

TEST_F(IoTest, WithoutLibaioItIsBuffered) {
  faults.setup_errno = ENOSYS;
  ASSERT_EQ(0, Open());
  EXPECT_FALSE(info_.direct);
  EXPECT_NE(nullptr, strstr(info_.why, "io_setup")) << info_.why;
  Compare(4);
}

TEST_F(IoTest, OnTmpfsItWorksEitherWay) {
  if (access("/dev/shm", W_OK) == 0)
    path_ = "/dev/shm/io_test." + std::to_string(getpid());
  ASSERT_EQ(0, Open());
  EXPECT_NE(info_.direct, info_.why[0] != 0);
  Compare(5);
}

TEST_F(IoTest, ManyReadersBesideOneWriter) {
  const size_t kBlocks = 512, kHalf = kBlocks / 2;
  ASSERT_EQ(0, Open(true, 16));
  ASSERT_EQ(0, io_.grow(io_.arg, kBlocks * PGLOG_BLOCK));
  uint8_t *mem = static_cast<uint8_t *>(io_alloc(kBlocks));
  for (size_t i = 0; i < kBlocks * PGLOG_BLOCK; i++)
    mem[i] = static_cast<uint8_t>(i / PGLOG_BLOCK * 7);
  ASSERT_EQ(0, io_write(&io_, 0, mem, kBlocks * PGLOG_BLOCK));
  std::atomic<int> bad{0};
  auto reader = [&](unsigned seed) {
    std::mt19937 rnd(seed);
    uint8_t *buf = static_cast<uint8_t *>(io_alloc(24));
    for (int round = 0; round < 40; round++) {
      std::vector<pglog_io_req> reqs(24);
      for (size_t i = 0; i < reqs.size(); i++)
        reqs[i] = {PGLOG_IO_READ, -1, rnd() % kHalf * PGLOG_BLOCK, PGLOG_BLOCK,
                   buf + i * PGLOG_BLOCK};
      bad += io_.submit(io_.arg, reqs.data(), reqs.size()) != 0;
      for (auto &r : reqs)
        bad += memcmp(r.buf, mem + r.offset, PGLOG_BLOCK) != 0;
    }
    free(buf);
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; t++)
    threads.emplace_back(reader, t);
  faults.setup_errno = EAGAIN;  // from here on no further contexts: readers must do without
  for (int round = 0; round < 40; round++) {
    std::vector<pglog_io_req> reqs(24);
    for (size_t i = 0; i < reqs.size(); i++) {
      size_t at = (kHalf + i * 3) * PGLOG_BLOCK;
      reqs[i] = {PGLOG_IO_WRITE, -1, at, PGLOG_BLOCK, mem + at};
    }
    bad += io_.submit(io_.arg, reqs.data(), reqs.size()) != 0;
  }
  for (auto &t : threads)
    t.join();
  EXPECT_EQ(0, bad);
  free(mem);
}

TEST_F(IoTest, ReadBeyondTheEndIsAnErrorOfThatRequestAlone) {
  for (int direct_errno : {0, EINVAL}) {
    faults.direct_errno = direct_errno;
    ASSERT_EQ(0, Open());
    ASSERT_EQ(0, io_.grow(io_.arg, 2 * PGLOG_BLOCK));
    uint8_t *mem = static_cast<uint8_t *>(io_alloc(8));
    pglog_io_req reqs[3] = {{PGLOG_IO_READ, 1, 0, PGLOG_BLOCK, mem},
                            {PGLOG_IO_READ, 1, PGLOG_BLOCK, 2 * PGLOG_BLOCK, mem + 2 * PGLOG_BLOCK},
                            {PGLOG_IO_READ, 1, 1 << 20, PGLOG_BLOCK, mem + 5 * PGLOG_BLOCK}};
    EXPECT_EQ(-EIO, io_.submit(io_.arg, reqs, 3));
    EXPECT_EQ(0, reqs[0].result);
    EXPECT_EQ(-EIO, reqs[1].result);
    EXPECT_EQ(-EIO, reqs[2].result);
    EXPECT_EQ(-EIO, io_read(&io_, 1 << 20, mem, PGLOG_BLOCK));
    EXPECT_EQ(0, io_read(&io_, PGLOG_BLOCK, mem, PGLOG_BLOCK));
    free(mem);
    Close();
  }
}

TEST_F(IoTest, GrowReservesSpaceAndAFailedOneGivesItBack) {
  ASSERT_EQ(0, Open());
  EXPECT_EQ(0, io_.size(io_.arg));
  ASSERT_EQ(0, io_.grow(io_.arg, 1 << 20));
  EXPECT_EQ(1 << 20, io_.size(io_.arg));
  EXPECT_GE(io_.allocated(io_.arg), 1 << 20);
  ASSERT_EQ(0, io_.grow(io_.arg, 1 << 16));
  EXPECT_EQ(1 << 20, io_.size(io_.arg));
  for (int e : {ENOSPC, EDQUOT, EIO}) {
    faults.fallocate_errno = e;
    EXPECT_EQ(-e, io_.grow(io_.arg, 4 << 20));
    EXPECT_EQ(1 << 20, io_.size(io_.arg));
  }
  faults.fallocate_errno = EOPNOTSUPP;
  EXPECT_EQ(0, io_.grow(io_.arg, 2 << 20));
  EXPECT_EQ(2 << 20, io_.size(io_.arg));
}

TEST_F(IoTest, SecondOpenIsBusyUntilClosed) {
  ASSERT_EQ(0, Open());
  pglog_io second;
  io_file_info info;
  EXPECT_EQ(PGLOG_EBUSY, io_file_open(path_.c_str(), false, 8, &second, &info, &err_));
  EXPECT_NE(nullptr, strstr(err_.text, path_.c_str())) << err_.text;
  EXPECT_EQ(PGLOG_EBUSY, err_.code);
  pid_t child = fork();
  if (child == 0)
    _exit(io_file_open(path_.c_str(), false, 8, &second, &info, nullptr) == PGLOG_EBUSY ? 0 : 1);
  int status = -1;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
  Close();
  EXPECT_EQ(0, Open(false));
}

TEST_F(IoTest, WhatIsAbsentOrNeitherFileNorDeviceIsRefused) {
  EXPECT_EQ(PGLOG_ENOTFOUND, Open(false));
  EXPECT_NE(0, access(path_.c_str(), F_OK));
  pglog_io io;
  EXPECT_EQ(PGLOG_EINVAL, io_file_open("/dev/null", false, 8, &io, &info_, &err_));
  EXPECT_EQ(PGLOG_EINVAL, io_file_open(".", true, 8, &io, &info_, &err_));
  EXPECT_EQ(PGLOG_EIO, io_file_open("/dev/null/x", true, 8, &io, &info_, &err_));
  EXPECT_NE(nullptr, strstr(err_.text, "/dev/null/x")) << err_.text;
}

TEST_F(IoTest, FileIsClosedOnExec) {
  ASSERT_EQ(0, Open());
  int found = 0;
  DIR *dir = opendir("/proc/self/fd");
  while (struct dirent *e = readdir(dir)) {
    char link[4096];
    std::string name = std::string("/proc/self/fd/") + e->d_name;
    ssize_t n = readlink(name.c_str(), link, sizeof link - 1);
    if (n > 0 && std::string(link, n).find(path_) != std::string::npos) {
      found++;
      EXPECT_TRUE(fcntl(atoi(e->d_name), F_GETFD) & FD_CLOEXEC);
    }
  }
  closedir(dir);
  EXPECT_EQ(1, found);
}

}  // namespace
