// SPDX-License-Identifier: Apache-2.0
// Proves that the WAL parser hands out exactly the records that were written, whatever the
// chunking, and that after any cut, flip, zeroed range or broken rule it stops at the record that
// was hit.

#include "wal.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <zstd.h>

namespace {

constexpr uint32_t kNumber = 77;
constexpr size_t kAll = ~size_t{0};

// PGLOG_TEST_SEED=N replays the random tests of a run.
uint64_t Seed() {
  static const uint64_t seed = [] {
    const char *s = getenv("PGLOG_TEST_SEED");
    return s ? strtoull(s, nullptr, 0) : uint64_t{std::random_device{}()};
  }();
  return seed;
}

struct Record {
  std::string payload;
  uint64_t start, end;
  bool operator==(const Record &o) const {
    return start == o.start && end == o.end && payload == o.payload;
  }
};

void PrintTo(const Record &r, std::ostream *os) {
  *os << "[" << r.start << ", " << r.end << ") of " << r.payload.size() << " bytes";
}

struct Result {
  std::vector<Record> records;
  int rc = 0;
  enum wal_end end = WAL_END_CLEAN;
  uint64_t good_end = 0, damage_at = 0, offset = 0;
  std::string damage, error;
};

int Collect(void *arg, const wal_record *r, pglog_error *) {
  auto *out = static_cast<std::vector<Record> *>(arg);
  out->push_back({std::string(reinterpret_cast<const char *>(r->payload.data), r->payload.size),
                  r->start, r->end});
  return 0;
}

const uint8_t *Bytes(const std::string &s) {
  return reinterpret_cast<const uint8_t *>(s.data());
}
slice Slice(const std::string &s) {
  return slice_make(s.data(), s.size());
}

// Feeds `file` from `start` on; next() gives the length of each chunk.
template <typename Next>
Result ParseChunks(const std::string &file, Next next, uint64_t start = 0, bool verify = true,
                   uint64_t number = kNumber) {
  Result r;
  wal_parser w;
  pglog_error err{};
  wal_init(&w, number, start, verify);
  for (size_t at = start; at < file.size() && r.rc == 0;) {
    size_t n = std::min<size_t>(next(), file.size() - at);
    // A copy of its own, so that AddressSanitizer sees a read over the chunk's end.
    std::vector<uint8_t> chunk(Bytes(file) + at, Bytes(file) + at + n);
    r.rc = wal_feed(&w, chunk.data(), n, Collect, &r.records, &err);
    at += n;
  }
  r.end = wal_end(&w);
  r.good_end = w.good_end;
  r.offset = w.offset;
  if (r.end == WAL_END_DAMAGE || r.end == WAL_END_ZEROS) {
    r.damage_at = w.damage_at;
    r.damage = w.damage;
  }
  if (r.rc)
    r.error = err.text;
  wal_free(&w);
  return r;
}

Result Parse(const std::string &file, uint64_t start = 0, bool verify = true) {
  return ParseChunks(
      file, [] { return kAll; }, start, verify);
}

std::string Random(std::mt19937_64 &rng, size_t n) {
  std::string s(n, '\0');
  for (size_t i = 0; i < n; i += 8) {
    uint64_t v = rng();
    memcpy(&s[i], &v, std::min<size_t>(8, n - i));
  }
  return s;
}

// A WAL file in the making, with the records that it holds.
struct File {
  explicit File(bool recyclable) : recyclable(recyclable) {}
  void Add(const std::string &payload) {
    const uint64_t header = recyclable ? 11 : 7;
    uint64_t start = bytes.size();
    uint64_t room = 32768 - start % 32768;
    if (room < header)
      start += room;
    buf b{};
    ASSERT_EQ(0, buf_append(&b, bytes.data(), bytes.size()));
    ASSERT_EQ(0, wal_encode(&b, Slice(payload), recyclable, kNumber));
    bytes.assign(reinterpret_cast<char *>(b.data), b.size);
    buf_free(&b);
    records.push_back({payload, start, bytes.size()});
  }
  bool recyclable;
  std::string bytes;
  std::vector<Record> records;
};

// Where a record that starts at `start` must end: the format, counted without the encoder.
uint64_t EndOf(uint64_t start, uint64_t size, uint64_t header) {
  uint64_t at = start;
  do {
    uint64_t k = std::min(size, 32768 - at % 32768 - header);
    at += header + k;
    size -= k;
  } while (size > 0);
  return at;
}

// Several blocks with records of many sizes; the second and the last block end in a trailer.
File Mixed(bool recyclable, std::mt19937_64 &rng) {
  const uint64_t header = recyclable ? 11 : 7;
  File f(recyclable);
  for (size_t n : {12, 300, 5000, 1, 40000, 77, 200})
    f.Add(Random(rng, 12 + n - 1));
  f.Add(Random(rng, 65536 - f.bytes.size() - header - 5));
  for (size_t n : {90000, 12, 2000})
    f.Add(Random(rng, n));
  uint64_t room = 32768 - f.bytes.size() % 32768;
  f.Add(Random(rng, room - 2 * header - 20));
  f.Add(Random(rng, 20 - 3));
  for (size_t n : {100, 20000, 12})
    f.Add(Random(rng, n));
  return f;
}

std::string Fragment(uint8_t type, const std::string &payload, uint32_t number = kNumber) {
  std::string covered(1, static_cast<char>(type));
  if (type >= WAL_R_FULL && type <= WAL_R_LAST)
    covered.append(reinterpret_cast<const char *>(&number), 4);
  covered += payload;
  uint32_t crc = crc32c_mask(crc32c(0, covered.data(), covered.size()));
  uint16_t length = static_cast<uint16_t>(payload.size());
  return std::string(reinterpret_cast<const char *>(&crc), 4) +
         std::string(reinterpret_cast<const char *>(&length), 2) + covered;
}

class WalForm : public testing::TestWithParam<bool> {
 protected:
  uint64_t header() const { return GetParam() ? 11 : 7; }
  std::mt19937_64 rng_{Seed()};
  testing::ScopedTrace trace_{__FILE__, __LINE__, "PGLOG_TEST_SEED=" + std::to_string(Seed())};
};
INSTANTIATE_TEST_SUITE_P(Wal, WalForm, testing::Bool(),
                         [](const auto &info) { return info.param ? "Recyclable" : "Legacy"; });

TEST(Wal, EmptyFileIsClean) {
  Result r = Parse("");
  EXPECT_EQ(WAL_END_CLEAN, r.end);
  EXPECT_TRUE(r.records.empty());
}

// Records of every size near the block borders, begun with every room left near a header's size.
TEST_P(WalForm, RoundTripAtBlockBorders) {
  const std::string bytes = Random(rng_, 3 * 32768);
  for (uint64_t room = 0; room <= 2 * header() + 2; room++) {
    std::vector<size_t> sizes;
    for (size_t n = 12; n < 36; n++)
      sizes.push_back(n);
    for (size_t block : {32768, 65536})
      for (size_t n = block - 3 * header() - 2 - room; n <= block + 4; n++)
        sizes.push_back(n);
    for (size_t size : sizes) {
      SCOPED_TRACE("room " + std::to_string(room) + ", size " + std::to_string(size));
      File f(GetParam());
      f.Add(bytes.substr(0, 32768 - room - header()));
      ASSERT_EQ(32768 - room, f.bytes.size());
      f.Add(bytes.substr(7, size));
      ASSERT_EQ(EndOf(f.records[1].start, size, header()), f.bytes.size());
      f.Add(bytes.substr(3, 13));
      Result r = Parse(f.bytes);
      ASSERT_EQ(f.records, r.records) << r.damage;
      ASSERT_EQ(WAL_END_CLEAN, r.end);
      ASSERT_EQ(f.bytes.size(), r.good_end);
    }
  }
}

TEST_P(WalForm, RecordBeginsWithEmptyFirstWhenOnlyAHeaderFits) {
  File f(GetParam());
  f.Add(Random(rng_, 32768 - 2 * header()));
  f.Add(Random(rng_, 50));
  const uint8_t first = GetParam() ? WAL_R_FIRST : WAL_FIRST;
  EXPECT_EQ(first, static_cast<uint8_t>(f.bytes[32768 - header() + 6]));
  EXPECT_EQ(0, get_le16(Bytes(f.bytes) + 32768 - header() + 4));
  EXPECT_EQ(32768 - header(), f.records[1].start);
  EXPECT_EQ(f.records, Parse(f.bytes).records);
}

void ExpectSame(const Result &a, const Result &b) {
  ASSERT_EQ(a.records, b.records);
  ASSERT_EQ(a.rc, b.rc);
  ASSERT_EQ(a.end, b.end);
  ASSERT_EQ(a.good_end, b.good_end);
  ASSERT_EQ(a.damage_at, b.damage_at);
  ASSERT_EQ(a.damage, b.damage);
  ASSERT_EQ(a.error, b.error);
  if (a.rc == 0) {
    ASSERT_EQ(a.offset, b.offset);
  }
}

TEST_P(WalForm, AnyChunkingGivesTheSame) {
  const File f = Mixed(GetParam(), rng_);
  std::vector<std::string> files = {
      f.bytes, f.bytes.substr(0, f.bytes.size() - 5), f.bytes + std::string(40000, '\0'),
      f.bytes + std::string(40000, '\0') + "x",
      f.bytes + Fragment(WAL_SET_COMPRESSION, std::string("\1\0\0\0", 4))};
  files.push_back(f.bytes);
  files.back()[f.records[7].start + 30] ^= 4;
  for (const std::string &file : files) {
    for (bool verify : {true, false}) {
      const Result whole = Parse(file, 0, verify);
      if (&file == &files[0]) {
        ASSERT_EQ(f.records, whole.records);
      }
      const bool all = verify && &file == &files[0];
      for (size_t n = all ? 1 : 3; n <= 50; n += all ? 1 : 21) {
        SCOPED_TRACE("chunk " + std::to_string(n));
        ASSERT_NO_FATAL_FAILURE(ExpectSame(whole, ParseChunks(
                                                      file, [n] { return n; }, 0, verify)));
      }
      for (int i = 0; i < (all ? 100 : 10); i++) {
        SCOPED_TRACE("random chunking " + std::to_string(i));
        size_t limit = size_t{1} << (1 + rng_() % 17);
        auto next = [this, limit] { return 1 + rng_() % limit; };
        ASSERT_NO_FATAL_FAILURE(ExpectSame(whole, ParseChunks(file, next, 0, verify)));
      }
    }
  }
}

// What a file cut at `cut` must give: CLEAN behind a record or behind its trailer, else TORN.
bool CleanCut(const File &f, uint64_t cut) {
  if (cut == 0 || cut == f.bytes.size())
    return true;
  for (const Record &r : f.records)
    if (cut == r.start || cut == r.end)
      return true;
  return false;
}

TEST_P(WalForm, CutAtEveryByte) {
  const File f = Mixed(GetParam(), rng_);
  wal_parser w;
  std::vector<Record> got;
  wal_init(&w, kNumber, 0, true);
  size_t whole = 0;
  for (size_t cut = 1; cut <= f.bytes.size(); cut++) {
    ASSERT_EQ(0, wal_feed(&w, Bytes(f.bytes) + cut - 1, 1, Collect, &got, nullptr));
    whole += f.records[whole].end == cut;
    ASSERT_EQ(whole, got.size()) << cut;
    ASSERT_EQ(whole ? f.records[whole - 1].end : 0, w.good_end) << cut;
    ASSERT_EQ(CleanCut(f, cut) ? WAL_END_CLEAN : WAL_END_TORN, wal_end(&w)) << cut;
  }
  EXPECT_EQ(f.records, got);
  wal_free(&w);

  // In one piece: every cut near a border, and a sample of the others.
  for (size_t cut = 0; cut < f.bytes.size(); cut++) {
    bool near = cut % 32768 < 16 || cut % 32768 > 32740 || cut % 509 == 0;
    for (const Record &r : f.records)
      near = near || (cut + 3 >= r.start && cut <= r.start + 12);
    if (!near)
      continue;
    Result r = Parse(f.bytes.substr(0, cut), 0, cut % 8 == 0);
    ASSERT_EQ(CleanCut(f, cut) ? WAL_END_CLEAN : WAL_END_TORN, r.end) << cut << r.damage;
    ASSERT_TRUE(std::equal(r.records.begin(), r.records.end(), f.records.begin())) << cut;
    ASSERT_EQ(r.records.empty() ? 0 : r.records.back().end, r.good_end) << cut;
  }
}

// Changes one byte; everything before the record (or the trailer that is looked at) that holds it
// must come out, nothing of the rest. A byte of a trailer that is not looked at changes nothing.
void ExpectHit(const File &f, size_t at, uint8_t mask) {
  SCOPED_TRACE("byte " + std::to_string(at) + " mask " + std::to_string(mask));
  std::string bytes = f.bytes;
  bytes[at] ^= static_cast<char>(mask);
  size_t before = 0;
  while (before < f.records.size() && f.records[before].end <= at)
    before++;
  // Two records before it show the file's form; a few blocks behind it are enough.
  const size_t skip = before < 2 ? 0 : before - 2;
  const Record &hit = f.records[before];
  bytes.resize(std::min(bytes.size(), std::max<size_t>(at + 70000, hit.end)));
  Result r = Parse(bytes, skip ? f.records[skip - 1].end : 0);
  ASSERT_EQ(0, r.rc) << r.error;
  if (at < hit.start && hit.start - f.records[before - 1].end < 7) {
    ASSERT_LT(before - skip, r.records.size()) << r.damage;
    ASSERT_EQ(hit, r.records[before - skip]);
    return;
  }
  ASSERT_EQ(before - skip, r.records.size());
  ASSERT_TRUE(std::equal(r.records.begin(), r.records.end(), f.records.begin() + skip));
  ASSERT_NE(WAL_END_CLEAN, r.end);
  uint64_t good_end = before ? f.records[before - 1].end : 0;
  ASSERT_EQ(good_end, r.good_end);
  if (r.end != WAL_END_TORN) {
    bool in_trailer = at < f.records[before].start;
    ASSERT_EQ(in_trailer ? good_end : f.records[before].start, r.damage_at) << r.damage;
    ASSERT_NE("", r.damage);
  }
}

TEST_P(WalForm, EveryFlipIsFoundAtItsRecord) {
  const File f = Mixed(GetParam(), rng_);
  for (const Record &r : f.records) {
    uint64_t from = r.start >= 5 ? r.start - 5 : 0;  // with a trailer, if there is one
    for (uint64_t at = from; at < r.start + header() + 3; at++)
      for (int bit = 0; bit < 8; bit++)
        ASSERT_NO_FATAL_FAILURE(ExpectHit(f, at, 1 << bit));
  }
  for (size_t block = 32768; block < f.bytes.size(); block += 32768)
    for (size_t at = block - 12; at < block + 12; at++)
      for (int bit = 0; bit < 8; bit++)
        ASSERT_NO_FATAL_FAILURE(ExpectHit(f, at, 1 << bit));
  for (int i = 0; i < 1500; i++)
    ASSERT_NO_FATAL_FAILURE(ExpectHit(f, rng_() % f.bytes.size(), 1 + rng_() % 255));
}

TEST_P(WalForm, EveryTypeByteIsFound) {
  const File f = Mixed(GetParam(), rng_);
  for (const Record &r : f.records)
    for (int mask = 1; mask < 256; mask++)
      ASSERT_NO_FATAL_FAILURE(ExpectHit(f, r.start + 6, mask));
}

TEST_P(WalForm, OverwrittenRangesAreFound) {
  const File f = Mixed(GetParam(), rng_);
  for (int i = 0; i < 600; i++) {
    size_t from = rng_() % f.bytes.size();
    size_t n = 1 + rng_() % std::min<size_t>(f.bytes.size() - from, 1 << (rng_() % 17));
    SCOPED_TRACE("range " + std::to_string(from) + " + " + std::to_string(n));
    std::string bytes = f.bytes;
    // Zeros, noise, or another part of the same file (a misdirected write).
    std::string patch = i % 3 == 0   ? std::string(n, '\0')
                        : i % 3 == 1 ? Random(rng_, n)
                                     : f.bytes.substr(rng_() % (f.bytes.size() - n + 1), n);
    bytes.replace(from, n, patch);
    size_t changed =
        std::mismatch(bytes.begin(), bytes.end(), f.bytes.begin()).first - bytes.begin();
    Result r = Parse(bytes);
    if (changed == bytes.size()) {
      ASSERT_EQ(f.records, r.records);
      continue;
    }
    size_t before = 0;
    while (before < f.records.size() && f.records[before].end <= changed)
      before++;
    // A copy of a whole record over another one of the same place in the order is a right record.
    ASSERT_GE(r.records.size(), before);
    for (size_t k = 0; k < r.records.size(); k++) {
      bool known = k < before ? r.records[k] == f.records[k] : false;
      for (size_t m = 0; m < f.records.size() && !known && i % 3 == 2; m++)
        known = r.records[k].payload == f.records[m].payload;
      ASSERT_TRUE(known) << k << " of " << before;
    }
    if (i % 3 != 2) {
      ASSERT_NE(WAL_END_CLEAN, r.end);
    }
  }
}

// The places that RocksDB's reader would skip silently.
TEST_P(WalForm, ZeroedBlocksInTheMiddleAreDamage) {
  File f(GetParam());
  std::vector<size_t> at_block;  // records that start a block
  for (int block = 0; block < 5; block++) {
    at_block.push_back(f.records.size());
    f.Add(Random(rng_, 10000));
    f.Add(Random(rng_, 32768 - 10000 - 2 * header()));
  }
  f.Add(Random(rng_, 50000));  // fills block 5, ends in block 6
  for (size_t block = 0; block < 6; block++) {
    std::string bytes = f.bytes;
    bytes.replace(block * 32768, 32768, 32768, '\0');
    Result r = Parse(bytes);
    EXPECT_EQ(WAL_END_DAMAGE, r.end);
    EXPECT_EQ(block * 32768, r.damage_at) << r.damage;
    EXPECT_EQ(2 * block, r.records.size());
    EXPECT_NE(std::string::npos, r.damage.find("header of zeros")) << r.damage;
  }
  // Zeros inside a record, at a fragment's border: not ZEROS even if nothing follows.
  std::string bytes = f.bytes.substr(0, 6 * 32768) + std::string(20000, '\0');
  Result r = Parse(bytes);
  EXPECT_EQ(WAL_END_DAMAGE, r.end);
  EXPECT_EQ(5 * 32768u, r.damage_at) << r.damage;
  EXPECT_EQ(10u, r.records.size());
}

TEST_P(WalForm, ZeroTail) {
  for (uint64_t room = 0; room < 40; room++) {
    File f(GetParam());
    f.Add(Random(rng_, 32768 - header() - room));
    for (size_t n = 1; n < 100; n++) {
      SCOPED_TRACE("room " + std::to_string(room) + ", zeros " + std::to_string(n));
      const uint64_t trailer = room < header() ? room : 0;
      Result r = Parse(f.bytes + std::string(n, '\0'));
      enum wal_end want = n < trailer       ? WAL_END_TORN
                          : n == trailer    ? WAL_END_CLEAN
                          : n - trailer < 7 ? WAL_END_TORN
                                            : WAL_END_ZEROS;
      ASSERT_EQ(want, r.end) << r.damage;
      ASSERT_EQ(f.records, r.records);
      ASSERT_EQ(f.bytes.size(), r.good_end);
      ASSERT_EQ(f.bytes.size() + n, r.offset);
      if (want == WAL_END_ZEROS) {
        ASSERT_EQ(f.bytes.size() + trailer, r.damage_at);
        std::string more = f.bytes + std::string(n, '\0') + "x";
        Result d = Parse(more);
        ASSERT_EQ(WAL_END_DAMAGE, d.end) << d.damage;
        ASSERT_EQ(r.damage_at, d.damage_at);
      }
    }
  }
}

TEST_P(WalForm, StartsAtAnyRecordsEnd) {
  const File f = Mixed(GetParam(), rng_);
  for (size_t i = 0; i < f.records.size(); i++) {
    SCOPED_TRACE("behind record " + std::to_string(i));
    std::vector<Record> rest(f.records.begin() + i + 1, f.records.end());
    for (size_t n : {kAll, size_t{i % 6 ? 31u : 1u}, size_t{13}}) {
      Result r = ParseChunks(
          f.bytes, [n] { return n; }, f.records[i].end);
      ASSERT_EQ(rest, r.records) << r.damage;
      ASSERT_EQ(WAL_END_CLEAN, r.end);
      ASSERT_EQ(f.bytes.size(), r.good_end);
    }
  }
}

// RocksDB does not look at a rest of a block smaller than 7 bytes, so no byte there may end a file.
TEST_P(WalForm, ShortTrailersHoldAnyBytes) {
  for (uint64_t room = 1; room < 7; room++) {
    File f(GetParam());
    f.Add(Random(rng_, 100));
    f.Add(Random(rng_, 32768 - 100 - 2 * header() - room));
    f.Add(Random(rng_, 50));
    ASSERT_EQ(32768u, f.records[2].start);
    for (int i = 0; i < 20; i++) {
      std::string bytes = f.bytes;
      bytes.replace(32768 - room, room, i ? Random(rng_, room) : std::string(room, '\xff'));
      for (size_t n : {kAll, size_t{1}, size_t{3}}) {
        for (size_t start : {size_t{0}, size_t{1}, size_t{2}}) {
          SCOPED_TRACE("room " + std::to_string(room) + ", start " + std::to_string(start));
          auto next = [n] { return n; };
          const uint64_t from = start ? f.records[start - 1].end : 0;
          std::vector<Record> rest(f.records.begin() + start, f.records.end());
          Result r = ParseChunks(bytes, next, from);
          ASSERT_EQ(rest, r.records) << r.damage;
          ASSERT_EQ(WAL_END_CLEAN, r.end);
          r = ParseChunks(bytes.substr(0, 32768), next, from);
          ASSERT_EQ(WAL_END_CLEAN, r.end) << r.damage;
          if (room > 1) {
            r = ParseChunks(bytes.substr(0, 32767), next, from);
            ASSERT_EQ(WAL_END_TORN, r.end) << r.damage;
            ASSERT_EQ(f.records[1].end, r.good_end);
          }
        }
      }
    }
  }
}

// Started behind a record with 7 to 10 bytes left, the parser cannot know what zeros there are.
TEST(Wal, ZerosThatMayBeATrailer) {
  for (uint64_t room = 7; room <= 10; room++) {
    const uint64_t start = 32768 - room;
    const std::string zeros = std::string(start, 'x') + std::string(room, '\0');
    const std::string payload(20, 'p');
    for (size_t n : {kAll, size_t{1}}) {
      auto next = [n] { return n; };
      Result r = ParseChunks(zeros, next, start);
      EXPECT_EQ(WAL_END_ZEROS, r.end);
      EXPECT_EQ(start, r.damage_at);
      EXPECT_NE("", r.damage);
      r = ParseChunks(zeros + Fragment(WAL_R_FULL, payload), next, start);
      EXPECT_EQ(WAL_END_CLEAN, r.end) << r.damage;
      ASSERT_EQ(1u, r.records.size());
      EXPECT_EQ(32768u, r.records[0].start);
      r = ParseChunks(zeros + Fragment(WAL_FULL, payload), next, start);
      EXPECT_EQ(WAL_END_DAMAGE, r.end);
      EXPECT_EQ(start, r.damage_at);
      EXPECT_TRUE(r.records.empty());
      r = ParseChunks(zeros + std::string(9, '\0'), next, start);
      EXPECT_EQ(WAL_END_ZEROS, r.end);
      EXPECT_EQ(start, r.damage_at);
      r = ParseChunks(zeros + std::string(9, '\0') + "x", next, start);
      EXPECT_EQ(WAL_END_DAMAGE, r.end);
      if (room > 7) {
        std::string bad = zeros;
        bad.back() = 1;
        r = ParseChunks(bad, next, start);
        EXPECT_EQ(WAL_END_DAMAGE, r.end);
        EXPECT_EQ(start, r.damage_at);
      }
    }
  }
}

// One broken rule each. `text` must be in the message.
struct Broken {
  const char *name;
  std::string bytes;
  uint64_t damage_at;
  size_t records;
  const char *text;
};

std::vector<Broken> BrokenFiles() {
  const std::string p(20, 'p');
  const std::string full = Fragment(WAL_FULL, p);      // 27 bytes
  const std::string r_full = Fragment(WAL_R_FULL, p);  // 31 bytes
  const std::string fill(32768 - 7, 'f');              // a whole block
  const std::string r_fill(32768 - 11, 'f');
  const std::string first = Fragment(WAL_FIRST, fill);
  std::string length = full;
  length[5] = static_cast<char>(0x80);
  std::string end_of_block = Fragment(WAL_FULL, fill.substr(0, fill.size() - 7));
  std::vector<Broken> v = {
      {"payload of 11", full + Fragment(WAL_FULL, p.substr(0, 11)), 27, 1, "11 bytes"},
      {"payload of 0", full + Fragment(WAL_FULL, ""), 27, 1, "0 bytes"},
      {"fragments of 11 in all",
       Fragment(WAL_FULL, fill.substr(9)) + Fragment(WAL_FIRST, "ab") +
           Fragment(WAL_LAST, "cdefghijk"),
       32768 - 9, 1, "11 bytes"},
      {"MIDDLE without FIRST", full + Fragment(WAL_MIDDLE, p), 27, 1, "without a FIRST"},
      {"LAST without FIRST", full + Fragment(WAL_LAST, p), 27, 1, "without a FIRST"},
      {"FULL inside a record", first + full, 0, 0, "before the end"},
      {"FIRST inside a record", first + Fragment(WAL_FIRST, fill), 0, 0, "before the end"},
      {"empty FIRST, then FULL", end_of_block + Fragment(WAL_FIRST, "") + full, 32768 - 7, 1,
       "before the end"},
      {"FIRST ends early", full + Fragment(WAL_FIRST, p) + Fragment(WAL_LAST, p), 27, 1, "leaves"},
      {"MIDDLE ends early", first + Fragment(WAL_MIDDLE, p) + Fragment(WAL_LAST, p), 0, 0,
       "leaves"},
      {"length over the block", full + length, 27, 1, "runs over"},
      {"length over the block by one", Fragment(WAL_FULL, fill + "f"), 0, 0, "runs over"},
      {"type 0 with a length", full + Fragment(WAL_ZERO, p), 27, 1, "unknown record type 0"},
      {"type 0, length 0, CRC", full + Fragment(WAL_ZERO, ""), 27, 1, "unknown record type 0"},
      {"type 10", full + Fragment(10, p), 27, 1, "unknown record type 10"},
      {"type 255", full + Fragment(255, p), 27, 1, "unknown record type 255"},
      {"recyclable after legacy", full + r_full, 27, 1, "a recyclable record in a file of legacy"},
      {"legacy after recyclable", r_full + full, 31, 1, "a legacy record in a file of recyclable"},
      {"recyclable LAST of a legacy FIRST", first + Fragment(WAL_R_LAST, p), 0, 0, "recyclable"},
      {"old part of a recycled file", r_full + Fragment(WAL_R_FULL, p, 5), 31, 1,
       "record of WAL 5 in WAL 77"},
      {"old LAST", Fragment(WAL_R_FIRST, r_fill) + Fragment(WAL_R_LAST, p, 5), 0, 0, "WAL 5"},
      {"recyclable header over the block's end",
       Fragment(WAL_FULL, fill.substr(0, fill.size() - 9)) + Fragment(WAL_R_FULL, p), 32768 - 9, 1,
       "runs over"},
      {"trailer of a recyclable file not zero",
       r_full + Fragment(WAL_R_FULL, r_fill.substr(0, r_fill.size() - 31 - 7)) +
           std::string("\0\0\0\0\0\0\1", 7) + r_full,
       32768 - 7, 2, "trailer"},
      {"header of zeros", full + std::string(7, '\0') + full, 27, 1, "header of zeros"},
      {"legacy header where a trailer must be",
       Fragment(WAL_R_FULL, r_fill.substr(0, r_fill.size() - 8)) + Fragment(WAL_FIRST, "a") +
           Fragment(WAL_LAST, p),
       32768 - 8, 1, "trailer"},
      {"zeros where a legacy FIRST must be",
       Fragment(WAL_FULL, fill.substr(0, fill.size() - 8)) + std::string(8, '\0') + full, 32768 - 8,
       1, "header of zeros"},
      {"bad CRC", full + Fragment(WAL_FULL, p).replace(10, 1, "x"), 27, 1, "CRC"},
      {"bad CRC of a compression record",
       full + Fragment(WAL_SET_COMPRESSION, std::string("\1\0\0\0", 4)).replace(8, 1, "x"), 27, 1,
       "CRC"},
  };
  return v;
}

TEST(Wal, EachBrokenRuleIsNamed) {
  for (const Broken &b : BrokenFiles()) {
    SCOPED_TRACE(b.name);
    const Result r = Parse(b.bytes + std::string(100, 'z'));
    EXPECT_EQ(0, r.rc) << r.error;
    EXPECT_EQ(WAL_END_DAMAGE, r.end);
    EXPECT_EQ(b.damage_at, r.damage_at) << r.damage;
    EXPECT_EQ(b.records, r.records.size());
    EXPECT_NE(std::string::npos, r.damage.find(b.text)) << r.damage;
    for (size_t n : {1, 2, 3, 7, 11, 64})
      ExpectSame(r, ParseChunks(b.bytes + std::string(100, 'z'), [n] { return n; }));
  }
}

TEST(Wal, ShortestRecordIsABatchHeader) {
  EXPECT_EQ(1u, Parse(Fragment(WAL_FULL, std::string(12, 'p'))).records.size());
}

TEST(Wal, RecyclableNumberOver32BitsMatchesNothing) {
  auto all = [] { return kAll; };
  const std::string bytes = Fragment(WAL_R_FULL, std::string(12, 'p'), 5);
  EXPECT_EQ(WAL_END_CLEAN, ParseChunks(bytes, all, 0, true, 5).end);
  EXPECT_EQ(WAL_END_DAMAGE, ParseChunks(bytes, all, 0, true, (uint64_t{1} << 32) + 5).end);
}

TEST(Wal, CompressionRecordIsRefusedByName) {
  const std::string full = Fragment(WAL_FULL, std::string(20, 'p'));
  const std::string file = Fragment(WAL_SET_COMPRESSION, std::string("\7\0\0\0", 4));
  for (bool verify : {true, false}) {
    for (size_t n : {kAll, size_t{1}}) {
      Result r = ParseChunks(
          file + full, [n] { return n; }, 0, verify);
      EXPECT_EQ(PGLOG_ENOTSUP, r.rc);
      EXPECT_NE(std::string::npos, r.error.find("wal_compression")) << r.error;
      EXPECT_NE(std::string::npos, r.error.find("WAL 77, offset 0")) << r.error;
      EXPECT_TRUE(r.records.empty());
    }
  }
  EXPECT_EQ(WAL_END_TORN, Parse(file.substr(0, 10)).end);
}

struct Stop {
  int after, calls;
};
int StopAfter(void *arg, const wal_record *, pglog_error *err) {
  auto *s = static_cast<Stop *>(arg);
  return ++s->calls > s->after ? error_set(err, PGLOG_EBUSY, "stop") : 0;
}

TEST(Wal, CallbackErrorStopsTheParser) {
  const std::string full = Fragment(WAL_FULL, std::string(20, 'p'));
  const std::string file = full + full + full;
  Stop stop{1, 0};
  pglog_error err{};
  wal_parser w;
  wal_init(&w, kNumber, 0, true);
  EXPECT_EQ(PGLOG_EBUSY, wal_feed(&w, Bytes(file), file.size(), StopAfter, &stop, &err));
  EXPECT_STREQ("stop", err.text);
  EXPECT_EQ(2, stop.calls);
  EXPECT_EQ(full.size(), w.good_end);
  EXPECT_EQ(PGLOG_EBUSY, wal_feed(&w, Bytes(file), file.size(), StopAfter, &stop, &err));
  EXPECT_EQ(2, stop.calls);
  wal_free(&w);
}

struct Places {
  const uint8_t *from, *to;
  int inside, outside;
};
int CountPlaces(void *arg, const wal_record *r, pglog_error *) {
  auto *p = static_cast<Places *>(arg);
  bool in = r->payload.data >= p->from && r->payload.data + r->payload.size <= p->to;
  (in ? p->inside : p->outside)++;
  return 0;
}

TEST_P(WalForm, WholeFullFragmentsAreNotCopied) {
  const File f = Mixed(GetParam(), rng_);
  int fragmented = 0;
  for (const Record &r : f.records)
    fragmented += r.start / 32768 != (r.end - 1) / 32768;
  Places places{Bytes(f.bytes), Bytes(f.bytes) + f.bytes.size(), 0, 0};
  wal_parser w;
  wal_init(&w, kNumber, 0, true);
  EXPECT_EQ(0, wal_feed(&w, Bytes(f.bytes), f.bytes.size(), CountPlaces, &places, nullptr));
  wal_free(&w);
  EXPECT_EQ(fragmented, places.outside);
  EXPECT_EQ(static_cast<int>(f.records.size()) - fragmented, places.inside);
}

TEST_P(WalForm, WithoutVerifyOnlyTheStructureCounts) {
  File f = Mixed(GetParam(), rng_);
  std::string bytes = f.bytes;
  bytes[f.records[2].start] ^= 1;  // its CRC
  bytes[f.records[4].start + 50] ^= 1;
  Result r = Parse(bytes, 0, false);
  EXPECT_EQ(WAL_END_CLEAN, r.end) << r.damage;
  EXPECT_EQ(f.records.size(), r.records.size());
  EXPECT_EQ(2u, Parse(bytes).records.size());
}

TEST(Wal, FileNumber) {
  uint64_t n = 0;
  EXPECT_TRUE(wal_file_number("000123.log", &n));
  EXPECT_EQ(123u, n);
  EXPECT_TRUE(wal_file_number("/a/b.c/9.log/archive/0000045.log", &n));
  EXPECT_EQ(45u, n);
  EXPECT_TRUE(wal_file_number("7.log", &n));
  EXPECT_EQ(7u, n);
  EXPECT_TRUE(wal_file_number("18446744073709551615.log", &n));
  EXPECT_EQ(UINT64_MAX, n);
  for (const char *bad :
       {"18446744073709551616.log", "99999999999999999999999.log", ".log", "log", "000123.log.cut",
        "000123.logx", "000123.LOG", "000123", "a123.log", "123a.log", "-1.log", "+1.log", " 1.log",
        "000123.sst", "LOG", "", "000123.log/", "000123..log", "0x1.log"})
    EXPECT_FALSE(wal_file_number(bad, &n)) << bad;
}

std::string ReadZst(const std::string &path) {
  std::string in, out;
  FILE *f = fopen(path.c_str(), "rb");
  if (!f)
    return "";
  char part[65536];
  for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;)
    in.append(part, n);
  fclose(f);
  ZSTD_DStream *z = ZSTD_createDStream();
  ZSTD_inBuffer zi{in.data(), in.size(), 0};
  size_t rc = 1;
  while (zi.pos < zi.size && !ZSTD_isError(rc)) {
    ZSTD_outBuffer zo{part, sizeof part, 0};
    rc = ZSTD_decompressStream(z, &zo, &zi);
    out.append(part, zo.pos);
  }
  for (bool more = !ZSTD_isError(rc) && rc != 0; more;) {
    ZSTD_outBuffer zo{part, sizeof part, 0};
    rc = ZSTD_decompressStream(z, &zo, &zi);
    out.append(part, zo.pos);
    more = !ZSTD_isError(rc) && rc != 0 && zo.pos > 0;
  }
  ZSTD_freeDStream(z);
  return out;
}

// A real OSD's WAL, written by RocksDB 6.8.1, cut in mid-record. The numbers were counted once by
// an independent parser.
TEST(Wal, SampleOfARealOsd) {
  const std::string file = ReadZst(PGLOG_TEST_DATA "/wal_sample_torn.log.zst");
  ASSERT_EQ(3000000u, file.size());
  Result r = Parse(file);
  EXPECT_EQ(WAL_END_TORN, r.end) << r.damage;
  EXPECT_EQ(1932u, r.records.size());
  EXPECT_EQ(2999281u, r.good_end);
  size_t bytes = 0;
  uint64_t operations = 0, sequence = 857093;
  for (const Record &rec : r.records) {
    ASSERT_EQ(sequence, get_le64(Bytes(rec.payload))) << rec.start;
    sequence += get_le32(Bytes(rec.payload) + 8);
    operations += get_le32(Bytes(rec.payload) + 8);
    bytes += rec.payload.size();
  }
  EXPECT_EQ(2985120u, bytes);
  EXPECT_EQ(11089u, operations);
  printf("sample: %zu records, %zu payload bytes, good to %llu\n", r.records.size(), bytes,
         static_cast<unsigned long long>(r.good_end));
  ExpectSame(r, ParseChunks(file, [] { return size_t{4096}; }));
}

// Only printed: a machine's speed is no proof.
TEST(Wal, Speed) {
  std::mt19937_64 rng(1);
  for (size_t size : {100, 1500, 20000}) {
    buf b{};
    size_t records = 8000000 / size;
    std::string payload = Random(rng, size);
    for (size_t i = 0; i < records; i++)
      ASSERT_EQ(0, wal_encode(&b, Slice(payload), false, 0));
    for (bool verify : {true, false}) {
      double best = 1e9;
      for (int round = 0; round < 5; round++) {
        Places places{b.data, b.data + b.size, 0, 0};
        wal_parser w;
        wal_init(&w, kNumber, 0, verify);
        auto t0 = std::chrono::steady_clock::now();
        ASSERT_EQ(0, wal_feed(&w, b.data, b.size, CountPlaces, &places, nullptr));
        std::chrono::duration<double> t = std::chrono::steady_clock::now() - t0;
        best = std::min(best, t.count());
        ASSERT_EQ(records, static_cast<size_t>(places.inside + places.outside));
        wal_free(&w);
      }
      printf("records of %5zu bytes, verify %-3s: %7.1f ns per record, %6.2f GB/s\n", size,
             verify ? "on" : "off", best * 1e9 / records, b.size / best / 1e9);
    }
    buf_free(&b);
  }
}

}  // namespace
