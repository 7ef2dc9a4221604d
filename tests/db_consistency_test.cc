// SPDX-License-Identifier: Apache-2.0
//
// Proves that reads through the facade are consistent: writers put one counter into a plain key,
// into
// `_info` and into a log entry, with one batch, while readers check that every iterator and every
// multi_get sees one value in all three, with flushes and check points forced meanwhile.
//
// PGLOG_TEST_SECONDS sets how long (2).
#include <atomic>
#include <chrono>
#include <thread>

#include "db_testing.h"

namespace {

constexpr int kWriters = 4, kReaders = 2;

std::string plain_key(int w) {
  return "data/" + std::to_string(w);
}
std::string pg_prefix(int w) {
  return "pglog/1." + std::to_string(w) + "/";
}
std::string info_key(int w) {
  return pg_prefix(w) + "_info";
}
std::string entry_key(int w, uint64_t n) {
  char buf[32];
  snprintf(buf, sizeof buf, "%020llu", (unsigned long long)n);
  return pg_prefix(w) + buf;
}

class DbConsistency : public ::testing::Test {
 protected:
  DbConsistency() : db_(dir_.db()) {
    rocksdb_options_set_write_buffer_size(db_.options, 256 << 10);
    rocksdb_options_set_max_total_wal_size(db_.options, 512 << 10);
    db_.set("pglog://?memory=1M");
  }

  void write_one(int w, uint64_t n, rocksdb_writebatch_t *b) {
    rocksdb_writebatch_clear(b);
    std::string v = std::to_string(n), pad = v + std::string(150, '.');
    std::string keys[3] = {plain_key(w), info_key(w), entry_key(w, n)};
    for (auto &k : keys)
      rocksdb_writebatch_put(b, k.data(), k.size(), pad.data(), pad.size());
    if (n > 100) {  // trim, so that the newest entry is one of a hundred
      std::string old = entry_key(w, n - 100);
      rocksdb_writebatch_delete(b, old.data(), old.size());
    }
    char *err = nullptr;
    pglog_db_write(db_.db, db_.wo, b, &err);
    std::string e = take(err);
    if (!e.empty()) {
      ADD_FAILURE() << e;
      stop_ = true;
    }
    count_[w] = n;
  }
  void writer(int w) {
    rocksdb_writebatch_t *b = rocksdb_writebatch_create();
    for (uint64_t n = 1; !stop_; n++)
      write_one(w, n, b);
    rocksdb_writebatch_destroy(b);
  }

  static uint64_t number(const char *v, size_t n) {
    return strtoull(std::string(v, n).c_str(), nullptr, 10);
  }

  // One iterator over everything: plain keys and pg log keys of all writers.
  void check_iterator(bool forward) {
    uint64_t plain[kWriters] = {}, info[kWriters] = {}, entry[kWriters] = {}, low[kWriters];
    std::fill(low, low + kWriters, UINT64_MAX);
    int n_entries[kWriters] = {};
    uint64_t at_least[kWriters];
    for (int w = 0; w < kWriters; w++)
      at_least[w] = count_[w];
    pglog_iterator_t *it = pglog_db_create_iterator(db_.db, db_.ro);
    for (auto &[k, v] : all_of(it, forward)) {
      uint64_t n = strtoull(v.c_str(), nullptr, 10);
      if (k.compare(0, 5, "data/") == 0) {
        plain[k[5] - '0'] = n;
        continue;
      }
      int w = k[8] - '0';
      if (k == info_key(w)) {
        info[w] = n;
      } else {
        EXPECT_EQ(entry_key(w, n), k);
        entry[w] = std::max(entry[w], n);
        low[w] = std::min(low[w], n);
        n_entries[w]++;
      }
    }
    pglog_iter_destroy(it);
    for (int w = 0; w < kWriters; w++) {
      EXPECT_EQ(plain[w], info[w]) << "iterator, writer " << w;
      EXPECT_EQ(plain[w], entry[w]) << "iterator, writer " << w;
      EXPECT_GE(plain[w], at_least[w]) << "iterator, writer " << w;
      if (n_entries[w]) {
        EXPECT_EQ(entry[w] - low[w] + 1, (uint64_t)n_entries[w]) << "writer " << w;
      }
    }
    iterators_++;
  }

  // The plain key, _info, and the log entries around the newest one.
  void check_multi_get(int w) {
    constexpr int kAround = 40;
    uint64_t base = count_[w];
    std::vector<std::string> keys = {plain_key(w), info_key(w)};
    for (uint64_t i = 0; i < kAround; i++)
      keys.push_back(entry_key(w, base + i));
    size_t n = keys.size();
    std::vector<const char *> kp;
    std::vector<size_t> kn, vn(n);
    std::vector<char *> v(n), e(n);
    for (auto &k : keys) {
      kp.push_back(k.data());
      kn.push_back(k.size());
    }
    pglog_db_multi_get(db_.db, db_.ro, n, kp.data(), kn.data(), v.data(), vn.data(), e.data());
    uint64_t plain = v[0] ? number(v[0], vn[0]) : 0, info = v[1] ? number(v[1], vn[1]) : 0;
    EXPECT_EQ(plain, info) << "multi_get, writer " << w;
    EXPECT_GE(plain, base);
    for (uint64_t i = 0; i < kAround; i++) {
      bool there = base + i <= plain && base + i > 0 && base + i + 100 > plain;
      EXPECT_EQ(there, v[2 + i] != nullptr)
          << "multi_get, writer " << w << " entry " << base + i << " counter " << plain;
    }
    for (size_t i = 0; i < n; i++) {
      EXPECT_EQ("", take(e[i]));
      rocksdb_free(v[i]);
    }
    multi_gets_++;
  }

  void reader(int r) {
    for (uint64_t i = r; !stop_ && !HasFailure(); i++) {
      if (i % 4 == 0)
        check_iterator(i % 8 == 0);
      else
        check_multi_get((int)(i / 4 + i) % kWriters);
    }
  }
  void disturber() {
    for (int i = 0; !stop_; i++) {
      std::string e = i % 3 == 0 ? db_flush() : db_checkpoint();
      if (!e.empty()) {
        ADD_FAILURE() << e;
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  std::string db_flush() {
    char *err = nullptr;
    pglog_db_flush(db_.db, db_.fo, nullptr, &err);
    return take(err);
  }
  std::string db_checkpoint() {
    char *err = nullptr;
    pglog_db_checkpoint_log(db_.db, &err);
    return take(err);
  }

  TempDir dir_;
  Db db_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> count_[kWriters] = {};
  std::atomic<uint64_t> iterators_{0}, multi_gets_{0};
};

TEST_F(DbConsistency, WritersAndReaders) {
  ASSERT_OK(db_.open());
  const char *seconds = getenv("PGLOG_TEST_SECONDS");
  std::vector<std::thread> threads;
  for (int w = 0; w < kWriters; w++)
    threads.emplace_back([this, w] { writer(w); });
  for (int r = 0; r < kReaders; r++)
    threads.emplace_back([this, r] { reader(r); });
  threads.emplace_back([this] { disturber(); });
  std::this_thread::sleep_for(std::chrono::seconds(seconds ? atoi(seconds) : 2));
  stop_ = true;
  for (auto &t : threads)
    t.join();
  for (int w = 0; w < kWriters; w++)
    EXPECT_GT(count_[w], 0u);
  EXPECT_GT(iterators_, 0u);
  EXPECT_GT(multi_gets_, 0u);
  check_iterator(true);
  db_.close();
  ASSERT_OK(db_.open());
  check_iterator(false);
  printf("%llu iterators, %llu multi_gets\n", (unsigned long long)iterators_,
         (unsigned long long)multi_gets_);
}

}  // namespace
