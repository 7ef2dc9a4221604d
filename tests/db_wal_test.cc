// SPDX-License-Identifier: Apache-2.0
// Proves that WAL files written by the installed RocksDB are read back record for record, that the
// encoder makes the same bytes, and that the parser is at least as strict as RocksDB's recovery:
// what it calls clean RocksDB replays to the same sequence, and so does any file cut at good_end.

#include "wal.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rocksdb/c.h>

namespace {

uint64_t Seed() {
  static const uint64_t seed = [] {
    const char *s = getenv("PGLOG_TEST_SEED");
    return s ? strtoull(s, nullptr, 0) : uint64_t{std::random_device{}()};
  }();
  return seed;
}

const uint8_t *Bytes(const std::string &s) {
  return reinterpret_cast<const uint8_t *>(s.data());
}

std::string ReadFile(const std::string &path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream s;
  s << in.rdbuf();
  return s.str();
}

void WriteFile(const std::string &path, const std::string &bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

struct Parsed {
  std::vector<std::string> payloads;
  std::vector<uint64_t> ends;
  int rc = 0;
  enum wal_end end = WAL_END_CLEAN;
  uint64_t good_end = 0;
  bool recyclable = false;
  std::string text;
};

int Collect(void *arg, const wal_record *r, pglog_error *) {
  auto *p = static_cast<Parsed *>(arg);
  p->payloads.emplace_back(reinterpret_cast<const char *>(r->payload.data), r->payload.size);
  p->ends.push_back(r->end);
  return 0;
}

Parsed Parse(const std::string &bytes, uint64_t number) {
  Parsed p;
  wal_parser w;
  pglog_error err{};
  wal_init(&w, number, 0, true);
  p.rc = wal_feed(&w, Bytes(bytes), bytes.size(), Collect, &p, &err);
  p.end = wal_end(&w);
  p.good_end = w.good_end;
  p.recyclable = w.recyclable;
  p.text = p.rc ? err.text : w.damage;
  wal_free(&w);
  return p;
}

// The sequence that a database stands at after these records.
uint64_t LastSequence(const Parsed &p) {
  uint64_t last = 0;
  for (const std::string &b : p.payloads)
    if (get_le32(Bytes(b) + 8) > 0)
      last = get_le64(Bytes(b)) + get_le32(Bytes(b) + 8) - 1;
  return last;
}

enum Recovery { kTolerateTail = 0, kAbsolute = 1, kPointInTime = 2, kSkipAny = 3 };

class DbWal : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/pglog_wal_XXXXXX";
    ASSERT_NE(nullptr, mkdtemp(name));
    dir_ = name;
    Fresh();
  }
  void TearDown() override {
    Close();
    for (const std::string &name : Files(dir_))
      unlink((dir_ + "/" + name).c_str());
    rmdir(dir_.c_str());
    rocksdb_options_destroy(options_);
  }

  void Fresh() {
    if (options_)
      rocksdb_options_destroy(options_);
    options_ = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options_, 1);
    rocksdb_options_set_create_missing_column_families(options_, 1);
    rocksdb_options_set_write_buffer_size(options_, 256 << 20);
  }

  static std::vector<std::string> Files(const std::string &dir) {
    std::vector<std::string> names;
    DIR *d = opendir(dir.c_str());
    while (dirent *e = d ? readdir(d) : nullptr)
      if (std::string(e->d_name) != "." && std::string(e->d_name) != "..")
        names.push_back(e->d_name);
    if (d)
      closedir(d);
    return names;
  }

  // Opens with the first of the column families default, a, b. Returns the error's text, or "".
  std::string Open(int families = 3) {
    const char *names[] = {"default", "a", "b"};
    const rocksdb_options_t *options[] = {options_, options_, options_};
    char *err = nullptr;
    families_ = families;
    db_ =
        rocksdb_open_column_families(options_, dir_.c_str(), families, names, options, cfs_, &err);
    std::string text = err ? err : "";
    rocksdb_free(err);
    return text;
  }

  void Close() {
    if (!db_)
      return;
    for (int i = 0; i < families_; i++)
      rocksdb_column_family_handle_destroy(cfs_[i]);
    rocksdb_close(db_);
    db_ = nullptr;
  }

  std::map<uint64_t, std::string> Wals() {
    std::map<uint64_t, std::string> wals;
    for (const std::string &name : Files(dir_)) {
      uint64_t number;
      if (wal_file_number(name.c_str(), &number))
        wals[number] = ReadFile(dir_ + "/" + name);
    }
    return wals;
  }

  // Writes the batch and keeps what must then be in the WAL.
  void Write(rocksdb_writebatch_t *b) {
    char *err = nullptr;
    rocksdb_writeoptions_t *wo = rocksdb_writeoptions_create();
    uint64_t sequence = rocksdb_get_latest_sequence_number(db_) + 1;
    rocksdb_write(db_, wo, b, &err);
    ASSERT_EQ(nullptr, err) << err;
    rocksdb_writeoptions_destroy(wo);
    size_t size;
    const char *data = rocksdb_writebatch_data(b, &size);
    std::string bytes(data, size);
    put_le64(reinterpret_cast<uint8_t *>(&bytes[0]), sequence);
    written_.push_back(bytes);
  }

  void WriteRandom(int batches, size_t max_value) {
    for (int i = 0; i < batches; i++) {
      rocksdb_writebatch_t *b = rocksdb_writebatch_create();
      for (int n = 1 + rng_() % 4; n > 0; n--) {
        size_t size = 1 + rng_() % (1 + rng_() % (rng_() % 8 ? max_value / 40 : max_value));
        std::string key = "k" + std::to_string(rng_() % 1000), value(size, char('a' + rng_() % 26));
        switch (rng_() % 5) {
          case 0:
            rocksdb_writebatch_delete_cf(b, cfs_[rng_() % families_], key.data(), key.size());
            break;
          case 1:
            rocksdb_writebatch_put_log_data(b, value.data(), value.size());
            break;
          default:
            rocksdb_writebatch_put_cf(b, cfs_[rng_() % families_], key.data(), key.size(),
                                      value.data(), size);
        }
      }
      ASSERT_NO_FATAL_FAILURE(Write(b));
      rocksdb_writebatch_destroy(b);
    }
  }

  // A batch whose bytes in the WAL are exactly `size`.
  void WriteSized(size_t size) {
    rocksdb_writebatch_t *b = rocksdb_writebatch_create();
    size_t fixed = 12 + 1 + 2;  // header, tag, key "k" with its length
    size_t value = size - fixed - 1;
    while (fixed + varint_size(value) + value > size)
      value--;
    std::string v(value, 'v');
    std::string key = fixed + varint_size(value) + value < size ? "kk" : "k";
    rocksdb_writebatch_put(b, key.data(), key.size(), v.data(), v.size());
    size_t have;
    rocksdb_writebatch_data(b, &have);
    ASSERT_EQ(size, have);
    ASSERT_NO_FATAL_FAILURE(Write(b));
    rocksdb_writebatch_destroy(b);
  }

  // Everything written stands in the WALs in order, and encodes to the same bytes.
  void ExpectWritten(const std::map<uint64_t, std::string> &wals) {
    std::vector<std::string> got;
    for (const auto &[number, bytes] : wals) {
      Parsed p = Parse(bytes, number);
      ASSERT_EQ(0, p.rc) << p.text;
      ASSERT_EQ(WAL_END_CLEAN, p.end) << number << ": " << p.text;
      buf b{};
      for (const std::string &payload : p.payloads)
        ASSERT_EQ(0, wal_encode(&b, slice_make(payload.data(), payload.size()), p.recyclable,
                                static_cast<uint32_t>(number)));
      ASSERT_EQ(bytes, std::string(reinterpret_cast<char *>(b.data), b.size)) << number;
      buf_free(&b);
      got.insert(got.end(), p.payloads.begin(), p.payloads.end());
    }
    ASSERT_EQ(written_.size(), got.size());
    for (size_t i = 0; i < got.size(); i++)
      ASSERT_TRUE(written_[i] == got[i]) << "record " << i << " of " << got.size();
  }

  std::string dir_;
  rocksdb_options_t *options_ = nullptr;
  rocksdb_t *db_ = nullptr;
  rocksdb_column_family_handle_t *cfs_[3] = {};
  int families_ = 0;
  std::vector<std::string> written_;
  std::mt19937_64 rng_{Seed()};
  testing::ScopedTrace trace_{__FILE__, __LINE__, "PGLOG_TEST_SEED=" + std::to_string(Seed())};
};

TEST_F(DbWal, RecordsAreTheBatchesWritten) {
  ASSERT_EQ("", Open());
  WriteRandom(600, 200000);
  ASSERT_NO_FATAL_FAILURE(ExpectWritten(Wals()));
}

// RocksDB's own reader of the same WALs agrees, batch by batch.
TEST_F(DbWal, AgreesWithTheWalIterator) {
  ASSERT_EQ("", Open());
  WriteRandom(300, 50000);
  Parsed p;
  for (const auto &[number, bytes] : Wals()) {
    Parsed one = Parse(bytes, number);
    p.payloads.insert(p.payloads.end(), one.payloads.begin(), one.payloads.end());
  }
  char *err = nullptr;
  rocksdb_wal_iterator_t *it = rocksdb_get_updates_since(db_, 1, nullptr, &err);
  ASSERT_EQ(nullptr, err) << err;
  // It begins at the record that holds sequence 1, and ends at the latest sequence: it does not show
  // batches of LogData alone at either end.
  auto nothing = [&](size_t k) { return get_le32(Bytes(p.payloads[k]) + 8) == 0; };
  size_t i = 0;
  while (i < p.payloads.size() && nothing(i))
    i++;
  for (; rocksdb_wal_iter_valid(it); rocksdb_wal_iter_next(it)) {
    uint64_t sequence;
    rocksdb_writebatch_t *b = rocksdb_wal_iter_get_batch(it, &sequence);
    size_t size;
    const char *data = rocksdb_writebatch_data(b, &size);
    ASSERT_LT(i, p.payloads.size());
    ASSERT_EQ(get_le64(Bytes(p.payloads[i])), sequence);
    ASSERT_TRUE(p.payloads[i] == std::string(data, size)) << i;
    rocksdb_writebatch_destroy(b);
    i++;
  }
  rocksdb_wal_iter_destroy(it);
  size_t shown = p.payloads.size();
  while (shown > i && nothing(shown - 1))
    shown--;
  EXPECT_EQ(shown, i);
}

// The writer at a block's end: every room from 0 to two headers, legacy and recyclable.
TEST_F(DbWal, BlockEndsAreAsTheEncoderMakesThem) {
  for (bool recyclable : {false, true}) {
    Close();
    for (const std::string &name : Files(dir_))
      unlink((dir_ + "/" + name).c_str());
    Fresh();
    written_.clear();
    rocksdb_options_set_recycle_log_file_num(options_, recyclable ? 2 : 0);
    rocksdb_options_set_wal_recovery_mode(options_, recyclable ? kSkipAny : kPointInTime);
    ASSERT_EQ("", Open());
    const size_t header = recyclable ? 11 : 7;
    for (size_t room = 0; room <= 2 * header + 2; room++) {
      size_t at = Wals().rbegin()->second.size() % 32768;
      if (32768 - at < room + 200) {  // not enough left of this block
        ASSERT_NO_FATAL_FAILURE(WriteSized(40000 - at));
        at = Wals().rbegin()->second.size() % 32768;
      }
      ASSERT_NO_FATAL_FAILURE(WriteSized(32768 - at - header - room));
      ASSERT_EQ(room, (32768 - Wals().rbegin()->second.size() % 32768) % 32768);
      ASSERT_NO_FATAL_FAILURE(WriteSized(100 + room));
    }
    auto wals = Wals();
    EXPECT_EQ(recyclable, Parse(wals.rbegin()->second, wals.rbegin()->first).recyclable);
    ASSERT_NO_FATAL_FAILURE(ExpectWritten(wals));
  }
}

// One column family only: with more, RocksDB 7.8.3 uses a recyclable WAL's writer after closing it.
TEST_F(DbWal, RecycledFileEndsAtTheOldRecords) {
  rocksdb_options_set_recycle_log_file_num(options_, 1);
  rocksdb_options_set_wal_recovery_mode(options_, kSkipAny);
  ASSERT_EQ("", Open(1));
  rocksdb_flushoptions_t *fo = rocksdb_flushoptions_create();
  bool seen = false;
  for (int round = 0; round < 4 && !seen; round++) {
    WriteRandom(60, 20000);
    char *err = nullptr;
    rocksdb_flush(db_, fo, &err);
    ASSERT_EQ(nullptr, err) << err;
    written_.clear();
    WriteRandom(5, 2000);
    auto [number, bytes] = *Wals().rbegin();
    Parsed p = Parse(bytes, number);
    if (p.end != WAL_END_DAMAGE)
      continue;
    seen = true;
    // Where the old records' borders do not fit, their rest is seen as a bad record.
    EXPECT_EQ(written_, p.payloads) << p.text;
    printf("recycled: %s\n", p.text.c_str());
  }
  rocksdb_flushoptions_destroy(fo);
  EXPECT_TRUE(seen);
}

TEST_F(DbWal, CompressedWalIsRefusedByName) {
  rocksdb_options_set_wal_compression(options_, rocksdb_zstd_compression);
  ASSERT_EQ("", Open());
  WriteRandom(3, 100);
  auto [number, bytes] = *Wals().rbegin();
  Parsed p = Parse(bytes, number);
  EXPECT_EQ(PGLOG_ENOTSUP, p.rc);
  EXPECT_NE(std::string::npos, p.text.find("wal_compression")) << p.text;
}

// Damages one WAL in many ways and lets RocksDB recover it.
class DbWalDamage : public DbWal {
 protected:
  void Prepare() {
    ASSERT_EQ("", Open());
    WriteRandom(40, 20000);
    Close();
    for (const std::string &name : Files(dir_))
      if (name != "LOCK" && name.compare(0, 3, "LOG") != 0 && name.compare(0, 7, "OPTIONS") != 0)
        files_[name] = ReadFile(dir_ + "/" + name);
    number_ = Wals().rbegin()->first;
    ASSERT_EQ(1u, Wals().size());
    wal_ = Wals().rbegin()->second;
  }

  // Opens the database with this WAL. Returns the error's text; *latest is the sequence reached.
  std::string Recover(const std::string &wal, Recovery mode, uint64_t *latest) {
    for (const std::string &name : Files(dir_))
      unlink((dir_ + "/" + name).c_str());
    for (const auto &[name, bytes] : files_) {
      uint64_t number;
      WriteFile(dir_ + "/" + name, wal_file_number(name.c_str(), &number) ? wal : bytes);
    }
    rocksdb_options_set_wal_recovery_mode(options_, mode);
    std::string error = Open();
    *latest = error.empty() ? rocksdb_get_latest_sequence_number(db_) : 0;
    Close();
    return error;
  }

  std::string Damage(int i) {
    std::string s = wal_;
    size_t from = rng_() % s.size();
    size_t n = 1 + rng_() % std::min<size_t>(s.size() - from, 1 << (rng_() % 16));
    switch (i % 6) {
      case 0:
        s[from] ^= static_cast<char>(1 + rng_() % 255);
        break;
      case 1:
        s.resize(from);
        break;
      case 2:
        s.replace(from, n, n, '\0');
        break;
      case 3:  // a zeroed block
        from -= from % 32768;
        n = std::min<size_t>(32768, s.size() - from);
        s.replace(from, n, n, '\0');
        break;
      case 4:
        s.append(1 + rng_() % 50000, '\0');
        break;
      default:  // cut and then zeros, as after a power cut
        s.resize(from);
        s.append(1 + rng_() % 50000, '\0');
    }
    return s;
  }

  std::map<std::string, std::string> files_;
  std::string wal_;
  uint64_t number_ = 0;
};

TEST_F(DbWalDamage, NoLessStrictThanRocksDb) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const Parsed whole = Parse(wal_, number_);
  int clean = 0, refused = 0, skipped = 0;
  for (int i = 0; i < 60; i++) {
    SCOPED_TRACE("damage " + std::to_string(i));
    const std::string bytes = Damage(i);
    const Parsed p = Parse(bytes, number_);
    uint64_t latest;
    std::string error = Recover(bytes, kAbsolute, &latest);
    ASSERT_TRUE(std::equal(p.payloads.begin(), p.payloads.end(), whole.payloads.begin()));
    if (p.end == WAL_END_CLEAN) {
      clean++;
      ASSERT_EQ("", error) << p.text;
      ASSERT_EQ(LastSequence(p), latest);
    } else if (!error.empty()) {
      refused++;
    } else {
      skipped += latest != LastSequence(p);  // RocksDB read on behind a hole
    }
    error = Recover(bytes.substr(0, p.good_end), kAbsolute, &latest);
    ASSERT_EQ("", error) << p.text;
    ASSERT_EQ(LastSequence(p), latest);
  }
  printf("RocksDB: %d clean, %d refused, %d read on behind a hole\n", clean, refused, skipped);
}

// No CRC covers the rest of a block that is smaller than a header: whatever is there, RocksDB keeps
// the records behind it, and so does the parser.
TEST_F(DbWalDamage, BothIgnoreTheBytesOfATrailer) {
  ASSERT_EQ("", Open());
  size_t at = Wals().rbegin()->second.size();
  WriteSized(32768 - 7 - 5 - at);  // 5 bytes left
  WriteSized(100);
  WriteSized(32768 - 2 * 7 - 100 - 1);  // 1 byte left
  WriteSized(300);
  Close();
  for (const std::string &name : Files(dir_))
    files_[name] = ReadFile(dir_ + "/" + name);
  auto [number, bytes] = *Wals().rbegin();
  const Parsed whole = Parse(bytes, number);
  ASSERT_EQ(WAL_END_CLEAN, whole.end);
  ASSERT_EQ(4u, whole.payloads.size());
  for (size_t trailer : {32768 - 5, 32768 - 4, 32768 - 1, 65536 - 1}) {
    SCOPED_TRACE("byte " + std::to_string(trailer));
    ASSERT_EQ('\0', bytes[trailer]);
    std::string flipped = bytes;
    flipped[trailer] = static_cast<char>(1 + rng_() % 255);
    const Parsed p = Parse(flipped, number);
    EXPECT_EQ(WAL_END_CLEAN, p.end) << p.text;
    EXPECT_EQ(whole.payloads, p.payloads);
    for (Recovery mode : {kTolerateTail, kAbsolute, kPointInTime, kSkipAny}) {
      uint64_t latest;
      EXPECT_EQ("", Recover(flipped, mode, &latest)) << mode;
      EXPECT_EQ(LastSequence(whole), latest) << mode;
    }
  }
}

// The reason for ZEROS and DAMAGE: RocksDB 7.8.3 reads on behind a zeroed block, in every mode.
TEST_F(DbWalDamage, RocksDbSkipsAZeroedBlockWeDoNot) {
  ASSERT_EQ("", Open());
  WriteSized(32768 - 7 - Wals().rbegin()->second.size());
  for (int i = 0; i < 6; i++)
    WriteSized(16384 - 7);
  Close();
  for (const std::string &name : Files(dir_))
    files_[name] = ReadFile(dir_ + "/" + name);
  auto [number, bytes] = *Wals().rbegin();
  const Parsed whole = Parse(bytes, number);
  ASSERT_EQ(WAL_END_CLEAN, whole.end);
  bytes.replace(32768, 32768, 32768, '\0');
  const Parsed p = Parse(bytes, number);
  EXPECT_EQ(WAL_END_DAMAGE, p.end);
  EXPECT_EQ(32768u, p.good_end);
  EXPECT_EQ(1u, p.payloads.size());
  for (Recovery mode : {kTolerateTail, kAbsolute, kPointInTime, kSkipAny}) {
    uint64_t latest;
    EXPECT_EQ("", Recover(bytes, mode, &latest));
    EXPECT_EQ(LastSequence(whole), latest) << mode;
  }
}

}  // namespace
