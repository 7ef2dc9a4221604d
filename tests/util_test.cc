// SPDX-License-Identifier: Apache-2.0
// Proves the byte helpers: CRC-32C against published vectors, varints against every bound, errors,
// printing, buffers.
#include "util.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

static struct slice S(const std::string &s) {
  return slice_make(s.data(), s.size());
}

static std::string
Print(const std::string &key, size_t cap) {
  std::vector<char> out(cap + 1, '#');
  EXPECT_EQ(key_print(out.data(), cap, S(key)), out.data());
  EXPECT_EQ(out[cap], '#');
  return std::string(out.data());
}

// The vectors of RFC 3720, B.4, and the usual check value.
TEST(Crc32c, KnownVectors) {
  EXPECT_EQ(crc32c(0, "", 0), 0u);
  EXPECT_EQ(crc32c(0, "123456789", 9), 0xe3069283u);
  std::string b(32, '\0');
  EXPECT_EQ(crc32c(0, b.data(), 32), 0x8a9136aau);
  b.assign(32, '\xff');
  EXPECT_EQ(crc32c(0, b.data(), 32), 0x62a8ab43u);
  for (int i = 0; i < 32; i++)
    b[i] = (char)i;
  EXPECT_EQ(crc32c(0, b.data(), 32), 0x46dd794eu);
  for (int i = 0; i < 32; i++)
    b[i] = (char)(31 - i);
  EXPECT_EQ(crc32c(0, b.data(), 32), 0x113fdb5cu);
}

// Ids as PGs have them, many of which differ in their last byte only, spread over few buckets.
TEST(SliceHash, SpreadsPgIds) {
  const uint32_t kIds = 4096, kBuckets = 4096;
  for (int kind = 0; kind < 4; kind++) {
    std::vector<uint32_t> n(kBuckets);
    std::set<uint64_t> all;
    for (uint32_t i = 0; i < kIds; i++) {
      std::string id(8, '\0');
      char text[24];
      if (kind == 0)
        id = {0, 0, 0, 0, 0, 8, (char)(i >> 8), (char)i};
      else if (kind == 1)
        put_le64(reinterpret_cast<uint8_t *>(&id[0]), i);
      else if (snprintf(text, sizeof text, kind == 2 ? "1.%x" : "%04u.ffffffffffff", i) > 0)
        id = text;
      uint64_t h = slice_hash(S(id));
      all.insert(h);
      n[h % kBuckets]++;
    }
    EXPECT_EQ(kIds, all.size()) << kind;
    uint32_t most = 0, empty = 0;
    for (uint32_t c : n) {
      most = std::max(most, c);
      empty += c == 0;
    }
    EXPECT_LE(most, 9u) << kind; // a random function has 6 or 7 at most, 37 % empty
    EXPECT_LT(empty, kBuckets * 42 / 100) << kind;
  }
}

static uint32_t CrcByBit(uint32_t crc, const uint8_t *p, size_t n) {
  crc = ~crc;
  for (size_t i = 0; i < n; i++) {
    crc ^= p[i];
    for (int k = 0; k < 8; k++)
      crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

TEST(Crc32c, AnyLengthAlignmentAndCut) {
  std::mt19937 rnd(1);
  std::vector<uint8_t> b(3000);
  for (auto &c : b)
    c = (uint8_t)rnd();
  for (size_t n = 0; n < 2900; n = n < 70 ? n + 1 : n * 5 / 4) {
    for (size_t at = 0; at < 9; at++) {
      uint32_t want = CrcByBit(0, b.data() + at, n);
      ASSERT_EQ(crc32c(0, b.data() + at, n), want) << at << "+" << n;
      size_t cut = n ? rnd() % (n + 1) : 0;
      uint32_t part = crc32c(0, b.data() + at, cut);
      ASSERT_EQ(crc32c(part, b.data() + at + cut, n - cut), want)
          << at << "+" << n << " at " << cut;
    }
  }
}

TEST(Crc32c, MaskIsInvertible) {
  EXPECT_EQ(crc32c_mask(0), 0xa282ead8u);
  std::mt19937 rnd(2);
  for (int i = 0; i < 1000; i++) {
    uint32_t v = rnd();
    ASSERT_EQ(crc32c_unmask(crc32c_mask(v)), v);
    ASSERT_NE(crc32c_mask(v), v);
  }
}

static std::vector<uint64_t> Bounds() {
  std::vector<uint64_t> v = {0, UINT32_MAX, UINT64_MAX};
  for (int s = 7; s < 64; s += 7)
    for (int d = -1; d <= 1; d++)
      v.push_back((1ull << s) + (uint64_t)d);
  v.push_back((1ull << 32) + 5);
  return v;
}

TEST(Varint, RoundTripsAndRefusesEveryCut) {
  for (uint64_t v : Bounds()) {
    uint8_t b[VARINT64_MAX];
    uint8_t *e = put_varint(b, v);
    size_t n = (size_t)(e - b);
    ASSERT_EQ(varint_size(v), n) << v;
    uint64_t r = 0;
    ASSERT_EQ(get_varint64(b, e, &r), e) << v;
    ASSERT_EQ(r, v);
    uint32_t r32 = 7;
    const uint8_t *q = get_varint32(b, e, &r32);
    if (v <= UINT32_MAX) {
      ASSERT_EQ(q, e) << v;
      ASSERT_EQ(r32, v);
    } else {
      ASSERT_EQ(q, nullptr) << v;
    }
    for (size_t cut = 0; cut < n; cut++) {
      std::vector<uint8_t> exact(b, b + cut);
      ASSERT_EQ(get_varint64(exact.data(), exact.data() + cut, &r), nullptr) << v << " cut " << cut;
      ASSERT_EQ(get_varint32(exact.data(), exact.data() + cut, &r32), nullptr)
          << v << " cut " << cut;
    }
  }
}

TEST(Varint, RefusesTooLong) {
  const uint8_t long32[] = {0xff, 0xff, 0xff, 0xff, 0x0f},
                over32[] = {0xff, 0xff, 0xff, 0xff, 0x10};
  const uint8_t six[] = {0x80, 0x80, 0x80, 0x80, 0x80, 0x00};
  uint32_t v;
  EXPECT_EQ(get_varint32(long32, long32 + 5, &v), long32 + 5);
  EXPECT_EQ(v, UINT32_MAX);
  EXPECT_EQ(get_varint32(over32, over32 + 5, &v), nullptr);
  EXPECT_EQ(get_varint32(six, six + 6, &v), nullptr);
  std::vector<uint8_t> b(10, 0xff);
  uint64_t w;
  b[9] = 1;
  EXPECT_EQ(get_varint64(b.data(), b.data() + 10, &w), b.data() + 10);
  EXPECT_EQ(w, UINT64_MAX);
  b[9] = 2;
  EXPECT_EQ(get_varint64(b.data(), b.data() + 10, &w), nullptr);
  b.assign(11, 0x80);
  b[10] = 0;
  EXPECT_EQ(get_varint64(b.data(), b.data() + 11, &w), nullptr);
}

TEST(Slice, OrderIsBytewise) {
  EXPECT_LT(slice_cmp(S(""), S("a")), 0);
  EXPECT_LT(slice_cmp(S("a"), S("aa")), 0);
  EXPECT_GT(slice_cmp(S("\xff"), S("a\xff")), 0);
  EXPECT_EQ(slice_cmp(S(std::string("a\0b", 3)), S(std::string("a\0b", 3))), 0);
  EXPECT_EQ(slice_cmp(slice_make(NULL, 0), S("")), 0);
  EXPECT_TRUE(slice_eq(slice_make(NULL, 0), S("")));
  EXPECT_FALSE(slice_eq(S("a"), S("b")));
}

TEST(Fixed, LittleEndianAtAnyAddress) {
  uint8_t b[16] = {0};
  put_le16(b + 1, 0x0102);
  put_le32(b + 3, 0x03040506);
  put_le64(b + 7, 0x0708090a0b0c0d0eull);
  EXPECT_EQ(b[1], 2);
  EXPECT_EQ(b[3], 6);
  EXPECT_EQ(b[7], 0xe);
  EXPECT_EQ(get_le16(b + 1), 0x0102);
  EXPECT_EQ(get_le32(b + 3), 0x03040506u);
  EXPECT_EQ(get_le64(b + 7), 0x0708090a0b0c0d0eull);
}

TEST(Error, SetCutAndSelfReference) {
  struct pglog_error e;
  EXPECT_EQ(error_set(NULL, PGLOG_EIO, "x"), PGLOG_EIO);
  EXPECT_EQ(error_set(&e, PGLOG_EIO, "block %d: %s", 7, "bad"), PGLOG_EIO);
  EXPECT_EQ(e.code, PGLOG_EIO);
  EXPECT_STREQ(e.text, "block 7: bad");
  error_set(&e, PGLOG_ECORRUPT, "arena: %s", e.text);
  EXPECT_STREQ(e.text, "arena: block 7: bad");
  std::string longer(2 * PGLOG_ERROR_TEXT, 'y');
  error_set(&e, PGLOG_EINVAL, "%s", longer.c_str());
  EXPECT_EQ(strlen(e.text), PGLOG_ERROR_TEXT - 1u);
}

TEST(Status, EveryCodeHasItsOwnText) {
  std::set<std::string> texts;
  for (int c = 0; c >= PGLOG_EEXIST; c--)
    texts.insert(pglog_status_str(c));
  EXPECT_EQ(texts.size(), 13u);
  EXPECT_EQ(texts.count(pglog_status_str(-999)), 0u);
  EXPECT_STREQ(pglog_status_str(1), pglog_status_str(-999));
}

TEST(KeyPrint, EscapesAndCuts) {
  EXPECT_EQ(Print("", 8), "");
  EXPECT_EQ(Print("plain", 6), "plain");
  EXPECT_EQ(Print("plain", 5), "p...");
  EXPECT_EQ(Print(std::string("a\0\\\x7f~", 5), 32), "a\\x00\\x5c\\x7f~");
  EXPECT_EQ(Print("\xff\xff", 9), "\\xff\\xff");
  EXPECT_EQ(Print("\xff\xff", 8), "\\xff...");
  EXPECT_EQ(Print("\xff\xff", 7), "...");
  EXPECT_EQ(Print("abcdef", 3), "..");
  EXPECT_EQ(Print("abcdef", 1), "");
  EXPECT_EQ(Print("ab\xff", 6), "ab...");
  char c = '#';
  EXPECT_EQ(key_print(&c, 0, S("x")), &c);
  EXPECT_EQ(c, '#');
}

TEST(Buf, GrowsKeepsContentAndRefusesTheImpossible) {
  struct buf b = {};
  std::string want;
  std::mt19937 rnd(3);
  EXPECT_EQ(buf_append(&b, NULL, 0), 0);
  for (int i = 0; i < 2000; i++) {
    std::string part(rnd() % 50, (char)rnd());
    ASSERT_EQ(buf_append(&b, part.data(), part.size()), 0);
    want += part;
  }
  ASSERT_EQ(std::string((char *)b.data, b.size), want);
  EXPECT_EQ(buf_reserve(&b, SIZE_MAX), PGLOG_ENOMEM);
  EXPECT_EQ(buf_reserve(&b, SIZE_MAX - b.size), PGLOG_ENOMEM);
  EXPECT_EQ(std::string((char *)b.data, b.size), want);
  EXPECT_EQ(buf_reserve(&b, 100), 0);
  EXPECT_GE(b.cap - b.size, 100u);
  buf_free(&b);
  EXPECT_EQ(b.data, nullptr);
  EXPECT_EQ(b.size + b.cap, 0u);
}

TEST(Array, GetsRoomOneByOneAndRefusesTheImpossible) {
  uint32_t *v = nullptr;
  size_t n = 0, cap = 0;
  for (uint32_t i = 0; i < 1000; i++) {
    ASSERT_EQ(array_room(&v, n, &cap, sizeof *v, 3), 0);
    ASSERT_LT(n, cap);
    v[n++] = i;
  }
  EXPECT_EQ(cap, 1536u);
  for (uint32_t i = 0; i < n; i++)
    ASSERT_EQ(v[i], i);
  uint32_t *before = v;
  size_t huge = SIZE_MAX / 4;
  EXPECT_EQ(array_room(&v, huge, &huge, sizeof *v, 3), PGLOG_ENOMEM);
  EXPECT_EQ(v, before);
  EXPECT_EQ(huge, SIZE_MAX / 4);
  free(v);
}
