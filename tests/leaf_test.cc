// SPDX-License-Identifier: Apache-2.0
//
// Proves that a leaf gives back exactly the entries that were packed into it, whatever their keys
// and values, that blocks keep their limits and are well filled, and that damage to any byte is an
// error.
//
// Random tests run over seeds; PGLOG_TEST_SEED=N runs seed N alone.
#include "leaf.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace {

using Rng = std::mt19937_64;
constexpr uint64_t kArena = 0x1122334455667788;
constexpr uint64_t kGeneration = 77;

struct Entry {
  std::string key, value;
  bool is_overflow = false;
  leaf_overflow overflow{};
};

struct Block {
  std::vector<uint8_t> bytes;
  std::string first, last;
  uint32_t entries, raw, stored;
  std::vector<leaf_overflow> overflow;
};

slice Slice(const std::string &s) {
  return slice_make(s.data(), s.size());
}
std::string Str(slice s) {
  return s.size ? std::string((const char *)s.data, s.size) : "";
}

std::string RandomBytes(Rng &rng, size_t n) {
  std::string s(n, 0);
  for (char &c : s)
    c = (char)rng();
  return s;
}

leaf_overflow Ref(uint32_t block, uint32_t size, uint32_t stored) {
  return {block, (uint32_t)(((uint64_t)stored + LEAF_PAYLOAD - 1) / LEAF_PAYLOAD), size, stored,
          size * 2654435761u};
}

bool SameRef(const leaf_overflow &a, const leaf_overflow &b) {
  return a.block == b.block && a.blocks == b.blocks && a.size == b.size && a.stored == b.stored &&
         a.crc == b.crc;
}

std::vector<uint64_t> Seeds(uint64_t n) {
  if (const char *s = getenv("PGLOG_TEST_SEED"))
    return {strtoull(s, nullptr, 10)};
  std::vector<uint64_t> v(n);
  for (uint64_t i = 0; i < n; i++)
    v[i] = i + 1;
  return v;
}

// A codec and a packer whose blocks are sealed as blocks 100, 101, ... and kept.
class LeafTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(0, leaf_codec_new(&codec_));
    NewPacker(LEAF_LEAF);
  }
  void TearDown() override {
    leaf_packer_free(packer_);
    leaf_codec_free(codec_);
  }

  void NewPacker(int kind) {
    leaf_packer_free(packer_);
    blocks_.clear();
    kind_ = kind;
    ASSERT_EQ(0, leaf_packer_new(&packer_, codec_, kind, &LeafTest::Emit, this));
  }

  static int Emit(void *arg, leaf_block *b, pglog_error *err) {
    auto *t = static_cast<LeafTest *>(arg);
    if (t->fail_at_ == t->blocks_.size())
      return error_set(err, PGLOG_EFULL, "no room");
    EXPECT_EQ(0u, (uintptr_t)b->bytes % PGLOG_BLOCK);
    leaf_seal(b->bytes, 100 + (uint32_t)t->blocks_.size(), kGeneration, kArena);
    t->blocks_.push_back({{b->bytes, b->bytes + PGLOG_BLOCK},
                          Str(b->first),
                          Str(b->last),
                          b->entries,
                          b->raw,
                          b->stored,
                          {b->overflow, b->overflow + b->overflows}});
    return 0;
  }

  int Add(const Entry &e) {
    leaf_entry le{};
    le.key = Slice(e.key);
    le.value = Slice(e.value);
    le.is_overflow = e.is_overflow;
    le.overflow = e.overflow;
    return leaf_packer_add(packer_, &le, &err_);
  }
  int Put(const std::string &key, const std::string &value) { return Add({key, value, false, {}}); }

  int Decode(const std::vector<uint8_t> &bytes, leaf *l) {
    return leaf_decode(codec_, bytes.data(), l, &err_);
  }

  // Every block verifies, keeps the limits, and together they hold exactly `want`.
  void CheckBlocks(const std::vector<Entry> &want) {
    size_t at = 0;
    for (size_t i = 0; i < blocks_.size(); i++) {
      SCOPED_TRACE("block " + std::to_string(i));
      const Block &b = blocks_[i];
      ASSERT_EQ(0,
                leaf_verify(b.bytes.data(), kind_, 100 + (uint32_t)i, kGeneration, kArena, &err_))
          << err_.text;
      leaf l;
      ASSERT_EQ(0, Decode(b.bytes, &l)) << err_.text;
      ASSERT_EQ(b.entries, l.n);
      ASSERT_LE(l.n, (uint32_t)LEAF_ENTRIES_MAX);
      ASSERT_LE(b.raw, LEAF_RAW_MAX);
      ASSERT_LE(b.stored, LEAF_PAYLOAD);
      ASSERT_EQ(Str(l.e[0].key), b.first);
      ASSERT_EQ(Str(l.e[l.n - 1].key), b.last);
      for (size_t k = LEAF_HEADER + b.stored; k < PGLOG_BLOCK; k++)
        ASSERT_EQ(0, b.bytes[k]);
      size_t refs = 0;
      for (uint32_t j = 0; j < l.n; j++, at++) {
        ASSERT_LT(at, want.size());
        ASSERT_EQ(want[at].key, Str(l.e[j].key)) << "entry " << at;
        ASSERT_EQ(want[at].is_overflow, l.e[j].is_overflow) << "entry " << at;
        if (l.e[j].is_overflow) {
          ASSERT_TRUE(SameRef(want[at].overflow, l.e[j].overflow)) << "entry " << at;
          ASSERT_LT(refs, b.overflow.size());
          ASSERT_TRUE(SameRef(want[at].overflow, b.overflow[refs++])) << "entry " << at;
        } else {
          ASSERT_EQ(want[at].value, Str(l.e[j].value)) << "entry " << at;
        }
      }
      ASSERT_EQ(refs, b.overflow.size());
      leaf_free(&l);
    }
    ASSERT_EQ(want.size(), at);
  }

  void Pack(const std::vector<Entry> &v) {
    for (const Entry &e : v)
      ASSERT_EQ(0, Add(e)) << err_.text;
    ASSERT_EQ(0, leaf_packer_flush(packer_, &err_)) << err_.text;
    ASSERT_EQ(0u, leaf_packer_pending(packer_));
    ASSERT_EQ(0u, leaf_packer_estimate(packer_));
  }

  leaf_codec *codec_ = nullptr;
  leaf_packer *packer_ = nullptr;
  int kind_ = 0;
  size_t fail_at_ = SIZE_MAX;
  std::vector<Block> blocks_;
  pglog_error err_;
};

std::vector<Entry> ReadKeySpace() {
  std::ifstream f(PGLOG_TEST_DATA "/osd_small.before.zst", std::ios::binary);
  std::string in((std::istreambuf_iterator<char>(f)), {}), all;
  std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> d(ZSTD_createDCtx(), &ZSTD_freeDCtx);
  std::vector<char> buf(1 << 20);
  for (ZSTD_inBuffer ib{in.data(), in.size(), 0}; ib.pos < ib.size;) {
    ZSTD_outBuffer ob{buf.data(), buf.size(), 0};
    if (ZSTD_isError(ZSTD_decompressStream(d.get(), &ob, &ib)))
      break;
    all.append(buf.data(), ob.pos);
  }
  std::vector<Entry> v;
  for (size_t p = 0; p + 6 <= all.size();) {
    const uint8_t *h = (const uint8_t *)all.data() + p;
    size_t k = get_le16(h), n = get_le32(h + 2);
    v.push_back({all.substr(p + 6, k), all.substr(p + 6 + k, n), false, {}});
    p += 6 + k + n;
  }
  return v;
}

TEST_F(LeafTest, RealKeySpaceRoundTrips) {
  std::vector<Entry> v = ReadKeySpace();
  ASSERT_EQ(67007u, v.size());
  Pack(v);
  CheckBlocks(v);
  size_t sum = 0, stored = 0, well = 0;
  for (const Entry &e : v)
    sum += e.key.size() + e.value.size();
  for (const Block &b : blocks_) {
    stored += b.stored;
    well += b.stored >= LEAF_PAYLOAD * 8 / 10 || b.entries == LEAF_ENTRIES_MAX;
  }
  EXPECT_LT(blocks_.size() * PGLOG_BLOCK * 12, sum);
  EXPECT_GT(stored, blocks_.size() * LEAF_PAYLOAD * 85 / 100);
  EXPECT_GT(well, blocks_.size() * 95 / 100);
}

TEST_F(LeafTest, BoundaryEndsABlockThatIsHalfFull) {
  std::vector<Entry> v = ReadKeySpace();
  for (size_t i = 0; i < v.size(); i++) {
    if (i && v[i].key.compare(0, 8, v[i - 1].key, 0, 8) != 0) {
      size_t before = blocks_.size(), fill = leaf_packer_fill(packer_);
      ASSERT_GE(fill, leaf_packer_estimate(packer_));
      ASSERT_EQ(0, leaf_packer_boundary(packer_, &err_));
      ASSERT_EQ(fill >= LEAF_PAYLOAD / 2, blocks_.size() > before);
    }
    ASSERT_EQ(0, Add(v[i]));
  }
  ASSERT_EQ(0, leaf_packer_flush(packer_, &err_));
  CheckBlocks(v);
}

// What the random entries look like.
struct Style {
  int key;    // 0 random, 1 long shared prefix, 2 numbers, 3 of 1024 bytes
  int value;  // 0 random, 1 text, 2 a few bytes changed, 3 empty, 4 large and changed, 5 mixed
};

std::set<std::string> RandomKeys(Rng &rng, int style, size_t n) {
  std::set<std::string> keys;
  std::string prefix = RandomBytes(rng, style == 3 ? PGLOG_KEY_MAX - 4 : rng() % 200);
  if (rng() % 4 == 0)
    keys.insert("");
  for (size_t i = 0; i < n; i++) {
    char number[24];
    snprintf(number, sizeof number, "%020llu", (unsigned long long)(i + rng() % 2));
    if (style == 0)
      keys.insert(RandomBytes(rng, rng() % 40));
    else if (style == 1)
      keys.insert(prefix + RandomBytes(rng, rng() % 6));
    else if (style == 2)
      keys.insert(prefix.substr(0, 8) + number);
    else
      keys.insert(prefix + std::string(number + 16));
  }
  return keys;
}

class Values {
 public:
  Values(Rng &rng, int style) : rng_(rng), style_(style) {}
  std::string Next(size_t key) {
    int s = style_ == 5 ? (int)(rng_() % 5) : style_;
    size_t max = LEAF_PAYLOAD - 3 * VARINT32_MAX - key;
    if (s == 0)
      return RandomBytes(rng_, rng_() % 8 ? rng_() % 300 : rng_() % (max + 1));
    if (s == 1)
      return Text(rng_() % 400);
    if (s == 3)
      return "";
    size_t n = s == 2 ? 20 + rng_() % 3 * 100 + rng_() % 2 : max - 16 - rng_() % 3;
    std::string &v = last_[n % 64];
    if (v.size() != n)
      v = RandomBytes(rng_, n);
    size_t changes = rng_() % (rng_() % 10 ? 12 : n);
    for (size_t i = 0; i < changes; i++)
      v[rng_() % 3 ? i * 7 % n : rng_() % n] += (char)(rng_() % 3);
    return v;
  }

 private:
  std::string Text(size_t n) {
    std::string t;
    while (t.size() < n)
      t += "object" + std::to_string(rng_() % 1000) + " ";
    return t.substr(0, n);
  }
  Rng &rng_;
  int style_;
  std::string last_[64];
};

TEST_F(LeafTest, RandomEntriesRoundTrip) {
  for (uint64_t seed : Seeds(250)) {
    SCOPED_TRACE("PGLOG_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    NewPacker(1 + (int)(rng() % 3));
    Style style{(int)(rng() % 4), (int)(rng() % 6)};
    Values values(rng, style.value);
    bool overflows = rng() % 2;
    std::vector<Entry> v;
    for (const std::string &key :
         RandomKeys(rng, style.key, rng() % 3 ? rng() % 600 : rng() % 8 + 1)) {
      if (overflows && rng() % 10 == 0) {
        uint32_t size = (uint32_t)(1 + rng() % PGLOG_VALUE_MAX);
        v.push_back({key, "", true, Ref((uint32_t)rng() >> 1, size, 1 + (uint32_t)(rng() % size))});
      } else {
        v.push_back({key, values.Next(key.size()), false, {}});
      }
      ASSERT_EQ(0, Add(v.back())) << err_.text;
      uint64_t end = rng() % 200;
      int rc = end == 0  ? leaf_packer_flush(packer_, &err_)
               : end < 3 ? leaf_packer_boundary(packer_, &err_)
                         : 0;
      ASSERT_EQ(0, rc) << err_.text;
    }
    ASSERT_EQ(0, leaf_packer_flush(packer_, &err_)) << err_.text;
    CheckBlocks(v);
    if (HasFatalFailure())
      return;
  }
}

// The predicted ratio is as wrong as it can be: values that compress to nothing, then values of the
// same lengths that do not compress, and that take far more once the block's first entries are
// gone.
TEST_F(LeafTest, WrongPredictionsCostSpaceOnly) {
  Rng rng(1);
  std::vector<Entry> v;
  auto key = [&] {
    char k[16];
    snprintf(k, sizeof k, "%08zu", v.size());
    return std::string(k);
  };
  for (int i = 0; i < 2000; i++)
    v.push_back({key(), std::string(3900 + i % 16, (char)i), false, {}});
  // One shape of half the value, then changes that a shape of their own could not hold: each entry
  // is plain once the one that made the shape is gone, and the payload more than LEAF_RAW_MAX.
  for (int round = 0; round < 4; round++) {
    std::string big = round % 2 == 0 ? RandomBytes(rng, 3900) : std::string(3900, 'a');
    if (round % 2)
      v.push_back({key(), RandomBytes(rng, 3901), false, {}});
    for (int i = 0; i < 40; i++) {
      v.push_back({key(), big, false, {}});
      for (int j = 0; j < 1900; j += i ? 56 : 1)
        big[j]++;
    }
    for (int i = 0; i < 100; i++)
      v.push_back({key(), std::string(3900, (char)i), false, {}});
  }
  std::string base[16];
  for (int i = 0; i < 16; i++)
    base[i] = RandomBytes(rng, 3900 + i);
  for (int i = 0; i < 300; i++) {
    base[i % 16][rng() % 3900]++;
    v.push_back({key(), base[i % 16], false, {}});
  }
  for (int i = 0; i < 300; i++)
    v.push_back({key(), RandomBytes(rng, 200), false, {}});
  for (int i = 0; i < 300; i++)
    v.push_back({key(), std::string(200, 'x'), false, {}});
  Pack(v);
  CheckBlocks(v);
}

// As above, and what is left behind would fit a block if a payload could be that large.
TEST_F(LeafTest, PayloadStaysBelowItsLimit) {
  Rng rng(2);
  std::vector<Entry> v;
  auto put = [&](const std::string &value) {
    char k[16];
    snprintf(k, sizeof k, "%08zu", v.size());
    v.push_back({k, value, false, {}});
  };
  for (int i = 0; i < 2000; i++)
    put(std::string(3900 + i % 16, (char)i));
  std::string big(3900, 'a');
  for (int i = 0; i < 30; i++) {
    put(big);
    if (i == 0)
      put(RandomBytes(rng, 3901));
    for (int j = 0; j < 1900; j += i ? 56 : 1)
      big[j]++;
  }
  Pack(v);
  CheckBlocks(v);
}

TEST_F(LeafTest, LimitsOfABlock) {
  std::vector<Entry> v;
  char key[16];
  for (int i = 0; i < 3000; i++) {
    snprintf(key, sizeof key, "%06d", i);
    v.push_back({key, "", false, {}});
  }
  Pack(v);
  CheckBlocks(v);
  EXPECT_EQ(3u, blocks_.size());
  EXPECT_EQ((uint32_t)LEAF_ENTRIES_MAX, blocks_[0].entries);

  NewPacker(LEAF_TABLE);
  v.clear();
  for (int i = 0; i < 20; i++) {
    snprintf(key, sizeof key, "%06d", i);
    v.push_back({key, "", true, Ref(5, PGLOG_VALUE_MAX, PGLOG_VALUE_MAX - (uint32_t)i)});
  }
  Pack(v);
  CheckBlocks(v);
  EXPECT_EQ(3u, blocks_.size());
  EXPECT_EQ((size_t)LEAF_OVERFLOWS_MAX, blocks_[0].overflow.size());
}

TEST_F(LeafTest, LargestEntryFitsALeafAndOneMoreByteDoesNot) {
  Rng rng(3);
  for (size_t klen : {0, 1, 40, PGLOG_KEY_MAX}) {
    NewPacker(LEAF_LEAF);
    std::string key = RandomBytes(rng, klen);
    size_t max = LEAF_PAYLOAD - 3 * VARINT32_MAX - klen;
    EXPECT_FALSE(leaf_needs_overflow(klen, max));
    EXPECT_TRUE(leaf_needs_overflow(klen, max + 1));
    EXPECT_EQ(PGLOG_ETOOBIG, Put(key, RandomBytes(rng, max + 1)));
    std::vector<Entry> v{{key, RandomBytes(rng, max), false, {}}};
    Pack(v);
    CheckBlocks(v);
  }
}

TEST_F(LeafTest, RefusesKeysOutOfOrderAndTooLong) {
  ASSERT_EQ(0, Put("b", "1"));
  EXPECT_EQ(PGLOG_EINVAL, Put("b", "2"));
  EXPECT_NE(nullptr, strstr(err_.text, "b")) << err_.text;
  EXPECT_EQ(PGLOG_EINVAL, Put("a", "2"));
  EXPECT_EQ(PGLOG_EINVAL, Put("", "2"));
  EXPECT_EQ(PGLOG_ETOOBIG, Put(std::string(PGLOG_KEY_MAX + 1, 'c'), "2"));
  EXPECT_NE(nullptr, strstr(err_.text, "1024")) << err_.text;
  ASSERT_EQ(0, leaf_packer_flush(packer_, &err_));
  EXPECT_EQ(PGLOG_EINVAL, Put("b", "2"));  // the order holds across blocks
  Entry bad{"c", "", true, Ref(7, 100, 50)};
  bad.overflow.blocks = 0;
  EXPECT_EQ(PGLOG_EINVAL, Add(bad));
  ASSERT_EQ(0, Put("c", "3"));
  ASSERT_EQ(0, leaf_packer_flush(packer_, &err_));
  CheckBlocks({{"b", "1", false, {}}, {"c", "3", false, {}}});
}

TEST_F(LeafTest, AnErrorOfEmitStopsThePacker) {
  Rng rng(4);
  fail_at_ = 2;
  int rc = 0;
  for (int i = 0; i < 200 && rc == 0; i++) {
    char key[16];
    snprintf(key, sizeof key, "%06d", i);
    rc = Put(key, RandomBytes(rng, 200));
  }
  EXPECT_EQ(PGLOG_EFULL, rc);
  EXPECT_STREQ("no room", err_.text);
  fail_at_ = SIZE_MAX;
  EXPECT_EQ(PGLOG_EFULL, Put("z", ""));
  EXPECT_EQ(PGLOG_EFULL, leaf_packer_boundary(packer_, &err_));
  EXPECT_EQ(PGLOG_EFULL, leaf_packer_flush(packer_, &err_));
  EXPECT_EQ(2u, blocks_.size());
}

// The bytes are a promise: this block is the worked example of the format.
TEST_F(LeafTest, BytesOfABlock) {
  std::string a = "the quick brown fox 001.", b = "the quick brown fox 002.",
              c = "the quick brown dog 003.";
  Pack({{"k1", a, false, {}},
        {"k3", b, false, {}},
        {"k3x", "", false, {}},
        {"k7", c, false, {}},
        {"m", "", true, {9, 2, 5000, 4500, 0x01020304}}});
  ASSERT_EQ(1u, blocks_.size());
  const uint8_t want[] = {
      0,    0,    2,    'k', '1', 24,  't',  'h',  'e',  ' ',  'q', 'u', 'i', 'c',
      'k',  ' ',  'b',  'r', 'o', 'w', 'n',  ' ',  'f',  'o',  'x', ' ', '0', '0',
      '1',  '.',  2,    1,   1,   2,   1,    1,    22,   1,    1,  // k3: shape, byte 22
      0,    2,    1,    'x', 0,                                    // k3x
      2,    1,    1,    4,   2,   2,   16,   3,    3,    1,        // k7: bytes 16-18 and 22
      0xfe, 0x00, 0xef, 1,                                         //
      1,    0,    1,    2,   9,   2,   0x88, 0x27, 0x94, 0x23, 4,   3,   2,   1};
  const std::vector<uint8_t> &h = blocks_[0].bytes;
  EXPECT_EQ(std::string((const char *)want, sizeof want),
            std::string((const char *)&h[LEAF_HEADER], blocks_[0].stored));
  EXPECT_EQ(0, memcmp(&h[0], "PGLF", 4));
  EXPECT_EQ(crc32c(0, &h[8], PGLOG_BLOCK - 8), get_le32(&h[4]));
  EXPECT_EQ(LEAF_LEAF, h[8]);
  EXPECT_EQ(2, h[9]);
  EXPECT_EQ(5, get_le16(&h[10]));
  EXPECT_EQ(sizeof want, get_le16(&h[12]));
  EXPECT_EQ(sizeof want, get_le16(&h[14]));
  EXPECT_EQ(10u + 3 * 24, get_le32(&h[16]));
  EXPECT_EQ(100u, get_le32(&h[20]));
  EXPECT_EQ(kGeneration, get_le64(&h[24]));
  EXPECT_EQ(kArena, get_le64(&h[32]));
  EXPECT_EQ(kGeneration, leaf_generation(h.data()));
}

TEST_F(LeafTest, LowerBound) {
  std::vector<Entry> v = ReadKeySpace();
  v.resize(3000);
  Pack(v);
  Rng rng(5);
  for (const Block &b : blocks_) {
    leaf l;
    ASSERT_EQ(0, Decode(b.bytes, &l));
    std::vector<std::string> keys;
    for (uint32_t i = 0; i < l.n; i++)
      keys.push_back(Str(l.e[i].key));
    std::vector<std::string> probes = keys;
    for (const std::string &k : keys) {
      probes.push_back(k + '\0');
      probes.push_back(k.substr(0, rng() % k.size()));
      probes.push_back(k);
      probes.back()[rng() % k.size()] = (char)rng();
    }
    for (const std::string &k : probes)
      ASSERT_EQ(std::lower_bound(keys.begin(), keys.end(), k) - keys.begin(),
                (ptrdiff_t)leaf_lower_bound(&l, Slice(k)));
    leaf_free(&l);
  }
  leaf none{};
  EXPECT_EQ(0u, leaf_lower_bound(&none, Slice("x")));
  leaf_free(&none);
}

TEST_F(LeafTest, VerifyRefusesEveryFlippedByte) {
  std::vector<Entry> v = ReadKeySpace();
  v.resize(400);
  Pack(v);
  Rng rng(6);
  for (size_t i : {(size_t)0, blocks_.size() - 1}) {
    std::vector<uint8_t> b = blocks_[i].bytes;
    for (size_t at = 0; at < PGLOG_BLOCK; at++) {
      uint8_t x = (uint8_t)(1 + rng() % 255);
      b[at] ^= x;
      ASSERT_EQ(PGLOG_ECORRUPT,
                leaf_verify(b.data(), LEAF_LEAF, 100 + (uint32_t)i, kGeneration, kArena, &err_))
          << "byte " << at;
      b[at] ^= x;
    }
  }
}

TEST_F(LeafTest, VerifyNamesWhatIsWrong) {
  Pack({{"k", "v", false, {}}});
  std::vector<uint8_t> b = blocks_[0].bytes;
  auto verify = [&](int kind, uint32_t block, uint64_t generation, uint64_t arena) {
    int rc = leaf_verify(b.data(), kind, block, generation, arena, &err_);
    return rc == 0 ? std::string("ok") : rc == PGLOG_ECORRUPT ? std::string(err_.text) : "?";
  };
  auto has = [](const std::string &text, const char *what) {
    return text.find(what) != std::string::npos;
  };
  EXPECT_EQ("ok", verify(LEAF_LEAF, 100, kGeneration, kArena));
  EXPECT_EQ("ok", verify(LEAF_LEAF, 100, 0, kArena));
  EXPECT_PRED2(has, verify(LEAF_TABLE, 100, 0, kArena), "block 100: of kind 1, expected 2");
  EXPECT_PRED2(has, verify(LEAF_LEAF, 101, 0, kArena),
               "block 101: holds what was written as block 100");
  EXPECT_PRED2(has, verify(LEAF_LEAF, 100, 78, kArena), "of generation 77, expected 78");
  EXPECT_PRED2(has, verify(LEAF_LEAF, 100, 0, 5), "belongs to arena 1122334455667788");
  b[50] ^= 1;
  EXPECT_PRED2(has, verify(LEAF_LEAF, 100, 0, kArena), "CRC-32C");
  std::fill(b.begin(), b.end(), 0);
  EXPECT_PRED2(has, verify(LEAF_LEAF, 100, 0, kArena), "no magic");
}

// Header fields out of their limits are refused behind a right CRC, too.
TEST_F(LeafTest, VerifyChecksTheCounts) {
  Pack({{"k", "v", false, {}}});
  const std::vector<uint8_t> good = blocks_[0].bytes;
  auto refused = [&](size_t at, size_t size, uint32_t value) {
    std::vector<uint8_t> b = good;
    memcpy(&b[at], &value, size);
    uint8_t kind = b[8];
    leaf_seal(b.data(), 100, kGeneration, kArena);
    leaf l;
    return leaf_verify(b.data(), kind, 100, 0, kArena, &err_) == PGLOG_ECORRUPT &&
           Decode(b, &l) == PGLOG_ECORRUPT;
  };
  EXPECT_TRUE(refused(8, 1, 0));
  EXPECT_TRUE(refused(8, 1, 5));
  EXPECT_TRUE(refused(8, 1, LEAF_OVERFLOW));
  EXPECT_TRUE(refused(9, 1, 4));
  EXPECT_TRUE(refused(9, 1, 0x80));
  EXPECT_TRUE(refused(9, 1, 1));  // compressed, although it fits
  EXPECT_TRUE(refused(10, 2, 0));
  EXPECT_TRUE(refused(10, 2, LEAF_ENTRIES_MAX + 1));
  EXPECT_TRUE(refused(12, 2, 0));
  EXPECT_TRUE(refused(12, 2, LEAF_PAYLOAD + 1));
  EXPECT_TRUE(refused(14, 2, 100));
  EXPECT_TRUE(refused(16, 4, LEAF_EXPANDED_MAX + 1));
}

// Build a block around a payload, with a right header.
std::vector<uint8_t> Craft(const std::vector<uint8_t> &payload, uint16_t entries, uint32_t expanded,
                           uint8_t flags) {
  std::vector<uint8_t> b(PGLOG_BLOCK);
  memcpy(&b[0], "PGLF", 4);
  b[8] = LEAF_LEAF;
  b[9] = flags;
  put_le16(&b[10], entries);
  put_le16(&b[12], (uint16_t)payload.size());
  put_le16(&b[14], (uint16_t)payload.size());
  put_le32(&b[16], expanded);
  std::copy(payload.begin(), payload.end(), b.begin() + LEAF_HEADER);
  leaf_seal(b.data(), 100, kGeneration, kArena);
  return b;
}

TEST_F(LeafTest, DecodeNamesMalformedPayloads) {
  struct Case {
    const char *text;
    std::vector<uint8_t> payload;
    uint16_t entries;
    uint32_t expanded;
    uint8_t flags;
  };
  const std::vector<uint8_t> overlong(6, 0xff);
  const Case cases[] = {
      {"entry is cut", overlong, 1, 0, 0},
      {"key's length is cut", {0, 0}, 1, 0, 0},
      {"key is too long", {0, 1, 1, 'k', 0}, 1, 2, 0},
      {"key is too long", {0, 0, 0x81, 0x08, 'k', 0}, 1, 2000, 0},
      {"key reaches beyond", {0, 0, 3, 'k', 0}, 1, 10, 0},
      {"key reaches beyond", {0, 0, 2, 'k', 'k', 0}, 1, 1, 0},
      {"value's length is cut", {0, 0, 1, 'k'}, 1, 1, 0},
      {"value reaches beyond", {0, 0, 1, 'k', 2, 'v'}, 1, 9, 0},
      {"value reaches beyond", {0, 0, 1, 'k', 2, 'v', 'v'}, 1, 2, 0},
      {"out of order", {0, 0, 1, 'k', 0, 0, 0, 1, 0, 0}, 2, 2, 0},
      {"out of order", {0, 0, 1, 'k', 0, 0, 0, 1, 0xff, 0}, 2, 2, 0},
      {"out of order", {0, 0, 1, 'k', 0, 0, 1, 0, 0}, 2, 2, 0},
      {"shape is not defined", {3, 0, 1, 'k', 0}, 1, 1, 0},
      {"shape is malformed", {2, 0, 1, 'k', 1, 0}, 1, 1, 0},
      {"shape is malformed", {0, 0, 1, 'k', 1, 'v', 2, 0, 1, 1, 0, 0}, 2, 4, 0},
      {"shape is malformed", {0, 0, 1, 'k', 1, 'v', 2, 0, 1, 1, 2, 0}, 2, 4, 0},
      {"shape is malformed", {0, 0, 1, 'k', 0, 2, 0, 1, 1, 1, 0}, 2, 4, 0},
      {"shape is malformed", {0, 0, 1, 'k', 1, 'v', 2, 0, 1, 1, 1, LEAF_RUNS_MAX + 1}, 2, 4, 0},
      {"run is malformed", {0, 0, 1, 'k', 1, 'v', 2, 0, 1, 1, 1, 1, 0, 0}, 2, 4, 0},
      {"run is malformed", {0, 0, 1, 'k', 1, 'v', 2, 0, 1, 1, 1, 1, 0, 2, 5, 5}, 2, 4, 0},
      {"run is malformed", {0, 0, 1, 'k', 1, 'v', 2, 0, 1, 1, 1, 1, 2, 1, 5, 5}, 2, 4, 0},
      {"shape is cut", {0, 0, 1, 'k', 1, 'v', 2, 0, 1, 1, 1}, 2, 4, 0},
      {"shape is cut", {0, 0, 1, 'k', 1, 'v', 2, 0, 1, 1, 1, 1}, 2, 4, 0},
      {"value reaches beyond", {0, 0, 1, 'k', 1, 'v', 2, 0, 1, 1, 1, 1, 0, 1}, 2, 4, 0},
      {"value reaches beyond", {0, 0, 1, 'k', 1, 'v', 2, 0, 1, 1, 1, 1, 0, 1, 1}, 2, 3, 0},
      {"reference is malformed", {1, 0, 1, 'k', 9, 0, 5, 0, 1, 2, 3, 4}, 1, 1, 2},
      {"reference is malformed", {1, 0, 1, 'k', 9, 1, 5, 6, 1, 2, 3, 4}, 1, 1, 2},
      {"reference is malformed", {1, 0, 1, 'k', 9, 2, 5, 5, 1, 2, 3, 4}, 1, 1, 2},
      {"reference is malformed", {1, 0, 1, 'k', 9, 1, 5, 5, 1, 2, 3}, 1, 1, 2},
      {"reference is malformed",
       {1, 0, 1, 'k', 0xff, 0xff, 0xff, 0xff, 0x0f, 1, 5, 5, 1, 2, 3, 4},
       1,
       1,
       2},
      {"do not agree", {1, 0, 1, 'k', 9, 1, 5, 5, 1, 2, 3, 4}, 1, 1, 0},
      {"do not agree", {0, 0, 1, 'k', 0}, 1, 1, 2},
      {"longer than its entries", {0, 0, 1, 'k', 0, 0}, 1, 1, 0},
      {"smaller than the header", {0, 0, 1, 'k', 0}, 1, 2, 0},
  };
  for (const Case &c : cases) {
    leaf l;
    std::vector<uint8_t> b = Craft(c.payload, c.entries, c.expanded, c.flags);
    ASSERT_EQ(PGLOG_ECORRUPT, Decode(b, &l)) << c.text << " " << (&c - cases);
    EXPECT_NE(nullptr, strstr(err_.text, c.text)) << err_.text << " " << (&c - cases);
    EXPECT_NE(nullptr, strstr(err_.text, "block 100")) << err_.text;
    EXPECT_EQ(nullptr, l.mem);
  }
}

TEST_F(LeafTest, DecodeRefusesTooManyShapesAndOverflowBlocks) {
  // "", then an entry per shape, each a copy of the value before it.
  std::vector<uint8_t> payload = {0, 0, 0, 1, 'v'};
  for (int i = 0; i <= LEAF_SHAPES_MAX; i++)
    payload.insert(payload.end(), {2, (uint8_t)i, 1, 'k', 1, 0});
  leaf l;
  uint32_t sizes = (LEAF_SHAPES_MAX + 1) * (LEAF_SHAPES_MAX + 2) / 2 + LEAF_SHAPES_MAX + 2;
  EXPECT_EQ(PGLOG_ECORRUPT, Decode(Craft(payload, LEAF_SHAPES_MAX + 2, sizes, 0), &l));
  EXPECT_NE(nullptr, strstr(err_.text, "too many shapes")) << err_.text;
  payload.resize(payload.size() - 6);
  sizes -= LEAF_SHAPES_MAX + 2;
  ASSERT_EQ(0, Decode(Craft(payload, LEAF_SHAPES_MAX + 1, sizes, 0), &l)) << err_.text;
  EXPECT_EQ("v", Str(l.e[LEAF_SHAPES_MAX].value));
  leaf_free(&l);

  uint8_t *bytes;
  leaf_overflow ref{};
  ASSERT_EQ(0, leaf_overflow_encode(codec_, slice_make("value", 5), &bytes, &ref, &err_));
  EXPECT_EQ(PGLOG_ECORRUPT, leaf_decode(codec_, bytes, &l, &err_));
  EXPECT_NE(nullptr, strstr(err_.text, "an overflow block")) << err_.text;
  free(bytes);
}

// Behind a right CRC anything may stand: decode answers with an error or with ascending entries.
TEST_F(LeafTest, DecodeSurvivesAnyPayload) {
  std::vector<Entry> real = ReadKeySpace();
  for (uint64_t seed : Seeds(40)) {
    SCOPED_TRACE("PGLOG_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    NewPacker(LEAF_LEAF);
    size_t from = rng() % (real.size() - 300);
    std::vector<Entry> v(real.begin() + (long)from, real.begin() + (long)from + 10 + rng() % 250);
    Pack(v);
    for (int round = 0; round < 200; round++) {
      std::vector<uint8_t> b = blocks_[rng() % blocks_.size()].bytes;
      size_t stored = get_le16(&b[12]);
      for (size_t i = 0, n = 1 + rng() % 3; i < n; i++)
        b[rng() % 8 ? LEAF_HEADER + rng() % stored : 9 + rng() % 10] =
            (uint8_t)(rng() % 2 ? rng() : rng() % 6);
      leaf l;
      if (Decode(b, &l) < 0)
        continue;
      for (uint32_t i = 1; i < l.n; i++)
        ASSERT_LT(slice_cmp(l.e[i - 1].key, l.e[i].key), 0);
      size_t sum = 0;
      for (uint32_t i = 0; i < l.n; i++)
        for (size_t j = 0; j < l.e[i].value.size; j++)
          sum += l.e[i].value.data[j];
      ASSERT_LE(sum, (size_t)LEAF_EXPANDED_MAX * 255);
      leaf_free(&l);
    }
  }
}

// --- overflow ------------------------------------------------------------------------------------

class OverflowTest : public LeafTest {
 protected:
  // Encode, seal as blocks 500, 501, ...
  void Encode(const std::string &value) {
    uint8_t *bytes;
    ref_ = {};
    ASSERT_EQ(0, leaf_overflow_encode(codec_, Slice(value), &bytes, &ref_, &err_)) << err_.text;
    EXPECT_EQ(0u, (uintptr_t)bytes % PGLOG_BLOCK);
    ref_.block = 500;
    ASSERT_EQ(ref_.blocks, (ref_.stored + LEAF_PAYLOAD - 1) / LEAF_PAYLOAD);
    for (uint32_t i = 0; i < ref_.blocks; i++)
      leaf_seal(bytes + (size_t)i * PGLOG_BLOCK, 500 + i, kGeneration, kArena);
    chain_.assign(bytes, bytes + (size_t)ref_.blocks * PGLOG_BLOCK);
    free(bytes);
  }
  int DecodeChain(const leaf_overflow &ref, const std::vector<uint8_t> &chain, std::string *out) {
    uint8_t *value = nullptr;
    int rc = leaf_overflow_decode(codec_, &ref, chain.data(), kArena, &value, &err_);
    if (rc == 0) {
      out->assign((char *)value, ref.size);
      free(value);
    } else {
      EXPECT_EQ(nullptr, value);
    }
    return rc;
  }
  std::string Compressible(Rng &rng, size_t n) {
    std::string s, word = RandomBytes(rng, 100);
    while (s.size() < n) {
      word[rng() % word.size()] = (char)rng();
      s += word;
    }
    return s.substr(0, n);
  }
  leaf_overflow ref_;
  std::vector<uint8_t> chain_;
};

TEST_F(OverflowTest, RoundTrips) {
  Rng rng(7);
  for (size_t n :
       {(size_t)1, (size_t)LEAF_PAYLOAD - 1, (size_t)LEAF_PAYLOAD, (size_t)LEAF_PAYLOAD + 1,
        (size_t)2 * LEAF_PAYLOAD, (size_t)65536, (size_t)1000003, (size_t)16 << 20}) {
    SCOPED_TRACE(n);
    for (bool random : {true, false}) {
      std::string value = random ? RandomBytes(rng, n) : Compressible(rng, n), back;
      Encode(value);
      EXPECT_EQ(n, ref_.size);
      if (random || n <= LEAF_PAYLOAD)
        EXPECT_EQ(n, ref_.stored);
      else
        EXPECT_LT(ref_.stored, n);
      EXPECT_EQ(crc32c(0, value.data(), n), ref_.crc);
      ASSERT_EQ(0, DecodeChain(ref_, chain_, &back)) << err_.text;
      ASSERT_TRUE(value == back);
    }
  }
}

TEST_F(OverflowTest, BlocksCarryTheirPlaceInTheChain) {
  Rng rng(8);
  Encode(RandomBytes(rng, 2 * LEAF_PAYLOAD + 10));
  ASSERT_EQ(3u, ref_.blocks);
  for (uint32_t i = 0; i < 3; i++) {
    const uint8_t *b = &chain_[i * PGLOG_BLOCK];
    EXPECT_EQ(LEAF_OVERFLOW, b[8]);
    EXPECT_EQ(0, b[9]);
    EXPECT_EQ(0, get_le16(b + 10));
    EXPECT_EQ(i < 2 ? LEAF_PAYLOAD : 10u, get_le16(b + 12));
    EXPECT_EQ(get_le16(b + 12), get_le16(b + 14));
    EXPECT_EQ(i, get_le32(b + 16));
  }
}

TEST_F(OverflowTest, DamageIsAnError) {
  Rng rng(9);
  std::string back;
  for (bool random : {true, false}) {
    Encode(random ? RandomBytes(rng, 10000) : Compressible(rng, 200000));
    const std::vector<uint8_t> good = chain_;
    for (size_t at = 0; at < good.size();
         at += at % PGLOG_BLOCK < LEAF_HEADER ? 1 : 1 + rng() % 60) {
      chain_[at] ^= 1 << rng() % 8;
      ASSERT_EQ(PGLOG_ECORRUPT, DecodeChain(ref_, chain_, &back)) << "byte " << at;
      chain_[at] = good[at];
    }
    // A block of another check point in the middle, rightly sealed.
    leaf_seal(&chain_[PGLOG_BLOCK], 501, kGeneration + 1, kArena);
    ASSERT_EQ(PGLOG_ECORRUPT, DecodeChain(ref_, chain_, &back));
    EXPECT_NE(nullptr, strstr(err_.text, "generation")) << err_.text;
    // Two slices exchanged, rightly sealed.
    std::copy(good.begin() + PGLOG_BLOCK, good.begin() + 2 * PGLOG_BLOCK, chain_.begin());
    std::copy(good.begin(), good.begin() + PGLOG_BLOCK, chain_.begin() + PGLOG_BLOCK);
    leaf_seal(&chain_[0], 500, kGeneration, kArena);
    leaf_seal(&chain_[PGLOG_BLOCK], 501, kGeneration, kArena);
    ASSERT_EQ(PGLOG_ECORRUPT, DecodeChain(ref_, chain_, &back));
    EXPECT_NE(nullptr, strstr(err_.text, "part 1")) << err_.text;
    // Content damaged and rightly sealed: the value's own CRC, or the frame, tells.
    chain_ = good;
    chain_[LEAF_HEADER + 3000] ^= 1;
    leaf_seal(&chain_[0], 500, kGeneration, kArena);
    ASSERT_EQ(PGLOG_ECORRUPT, DecodeChain(ref_, chain_, &back));
  }
}

TEST_F(OverflowTest, InconsistentReferencesAreErrors) {
  Rng rng(10);
  Encode(Compressible(rng, 200000));
  ASSERT_GT(ref_.blocks, 1u);
  std::string back;
  auto decode = [&](auto change) {
    leaf_overflow r = ref_;
    change(r);
    return DecodeChain(r, chain_, &back);
  };
  EXPECT_EQ(0, decode([](leaf_overflow &) {}));
  EXPECT_EQ(PGLOG_ECORRUPT, decode([](leaf_overflow &r) { r.blocks = 0; }));
  EXPECT_EQ(PGLOG_ECORRUPT, decode([](leaf_overflow &r) { r.blocks--; }));
  EXPECT_EQ(PGLOG_ECORRUPT, decode([](leaf_overflow &r) { r.blocks++; }));
  EXPECT_EQ(PGLOG_ECORRUPT, decode([](leaf_overflow &r) { r.stored = 0; }));
  EXPECT_EQ(PGLOG_ECORRUPT, decode([](leaf_overflow &r) { r.stored--; }));
  EXPECT_EQ(PGLOG_ECORRUPT, decode([](leaf_overflow &r) { r.size = 0; }));
  EXPECT_EQ(PGLOG_ECORRUPT, decode([](leaf_overflow &r) { r.size--; }));
  EXPECT_EQ(PGLOG_ECORRUPT, decode([](leaf_overflow &r) { r.size = r.stored; }));
  EXPECT_EQ(PGLOG_ECORRUPT, decode([](leaf_overflow &r) { r.size = 0xfffffffe; }));
  EXPECT_EQ(PGLOG_ECORRUPT, decode([](leaf_overflow &r) { r.size = PGLOG_VALUE_MAX; }));
  EXPECT_EQ(PGLOG_ECORRUPT, decode([](leaf_overflow &r) { r.crc ^= 1; }));
  EXPECT_EQ(PGLOG_ECORRUPT, decode([](leaf_overflow &r) { r.block++; }));
  EXPECT_EQ(PGLOG_ECORRUPT, decode([](leaf_overflow &r) { r.block = UINT32_MAX; }));
}

// The largest value's chain is counted in 64 bits. (The sizes are checked before a byte is read.)
TEST_F(OverflowTest, LimitOfAValue) {
  uint8_t *bytes = nullptr, byte = 0;
  leaf_overflow ref{};
  EXPECT_EQ(PGLOG_ETOOBIG,
            leaf_overflow_encode(codec_, slice_make(&byte, (size_t)PGLOG_VALUE_MAX + 1), &bytes,
                                 &ref, &err_));
  EXPECT_NE(nullptr, strstr(err_.text, "4294901760")) << err_.text;
  EXPECT_EQ(PGLOG_EINVAL, leaf_overflow_encode(codec_, slice_make(&byte, 0), &bytes, &ref, &err_));
  EXPECT_EQ(nullptr, bytes);
  std::vector<Entry> v{{"big", "", true, {2, 1058901, PGLOG_VALUE_MAX, PGLOG_VALUE_MAX, 1}}};
  Pack(v);
  CheckBlocks(v);
  v[0].key = "c";
  v[0].overflow.blocks = 1058900;
  EXPECT_EQ(PGLOG_EINVAL, Add(v[0]));
}

}  // namespace
