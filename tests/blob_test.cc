// SPDX-License-Identifier: Apache-2.0
// Proves that a blob gives back the operations put in, in order, and that no malformed one is read
// beyond or believed.
#include "blob.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

struct Op {
  int kind;
  std::string a, b; /* store key and value, or begin and end */
  size_t id;        /* bytes of the PG id */
  bool operator==(const Op &o) const {
    return kind == o.kind && a == o.a && b == o.b && id == o.id;
  }
};

static std::ostream &operator<<(std::ostream &s, const Op &o) {
  return s << o.kind << " '" << o.a << "' '" << o.b << "' id " << o.id;
}

static struct slice S(const std::string &s) {
  return slice_make(s.data(), s.size());
} static std::string Str(struct slice s) {
  return std::string((const char *)s.data, s.size);
}

class Builder {
 public:
  ~Builder() { blob_builder_free(&b); }
  int Add(const Op &o, struct pglog_error *e = NULL) {
    switch (o.kind) {
      case BLOB_PUT:
        return blob_put(&b, S(o.a), o.id, S(o.b), e);
      case BLOB_DELETE:
        return blob_delete(&b, S(o.a), o.id, e);
      case BLOB_DELRANGE:
        return blob_delete_range(&b, S(o.a), o.id, S(o.b), e);
      default:
        return blob_delete_range(&b, S(o.a), o.id, slice_make(NULL, 0), e);
    }
  }
  std::string Build(const std::vector<Op> &ops, uint8_t tag = 7, uint64_t number = 300) {
    EXPECT_EQ(blob_begin(&b, tag, number), 0);
    for (const Op &o : ops)
      EXPECT_EQ(Add(o), 0) << o;
    struct slice out = {NULL, 0};
    EXPECT_EQ(blob_finish(&b, &out, NULL), 0);
    return Str(out);
  }
  struct blob_builder b = {};
};

// The blob's operations, or its error. The blob lies in memory of its own, to the byte.
static int Read(const std::string &blob, std::vector<Op> *ops, struct pglog_error *e,
                struct blob_header *h = NULL) {
  std::vector<uint8_t> exact(blob.begin(), blob.end());
  struct blob_cursor c;
  struct blob_header header;
  struct blob_op op;
  int rc = blob_open(&c, slice_make(exact.data(), exact.size()), h ? h : &header, e);
  if (rc)
    return rc;
  while ((rc = blob_next(&c, &op, e)) > 0) {
    bool key = op.kind == BLOB_PUT || op.kind == BLOB_DELETE;
    std::string begin = Str(key ? op.name : op.begin);
    if (key)
      begin = Str(op.pgid) + begin;
    EXPECT_EQ(begin.substr(0, op.pgid.size), Str(op.pgid));
    ops->push_back({op.kind, begin, Str(op.kind == BLOB_PUT ? op.value : op.end), op.pgid.size});
  }
  return rc;
}

static const std::vector<Op> kSample = {
    {BLOB_PUT, "1.2a/log1", "value", 5},
    {BLOB_PUT, "1.2a/_info", std::string(300, 'v'), 5},
    {BLOB_DELETE, "1.2a/log0", "", 5},
    {BLOB_PUT, "1.2b/", "", 5},
    {BLOB_DELRANGE, "1.2b/a", "1.2c/z", 5},
    {BLOB_PUT, "1.2a/log1", std::string("\0\xff", 2), 5},
    {BLOB_DELRANGE, "", "x", 0},
    {BLOB_DELREST, "", "", 0},
    {BLOB_DELREST, "1.2b/q", "", 5},
    {BLOB_PUT, "short", "v", 5},
    {BLOB_DELETE, "", "", 0},
};

TEST(Blob, GivesBackWhatWentIn) {
  Builder b;
  std::vector<Op> ops;
  struct pglog_error e;
  struct blob_header h;
  for (uint64_t number : {(uint64_t)0, (uint64_t)127, (uint64_t)128, (uint64_t)UINT64_MAX}) {
    std::string blob = b.Build(kSample, 200, number);
    ops.clear();
    ASSERT_EQ(Read(blob, &ops, &e, &h), 0) << e.text;
    EXPECT_EQ(ops, kSample);
    EXPECT_EQ(h.version, PGLOG_BLOB_VERSION);
    EXPECT_EQ(h.tag, 200);
    EXPECT_EQ(h.number, number);
    EXPECT_TRUE(blob_is(S(blob)));
    EXPECT_EQ(blob_check(S(blob), &e), 0);
  }
}

TEST(Blob, Bytes) {
  Builder b;
  std::string blob = b.Build({{BLOB_PUT, "p/a", "xy", 2},
                              {BLOB_DELETE, "p/b", "", 2},
                              {BLOB_DELRANGE, "q/", "q0", 2},
                              {BLOB_DELREST, "r", "", 1}},
                             9, 300);
  EXPECT_EQ(blob, std::string("\xb1PGL\x01\x09\xac\x02"
                              "\x02p/\x02\x01\x01"
                              "a\x02xy\x02\x01"
                              "b\x02q/\x01\x03\x02q/\x02q0\x01r\x01\x04\x01r",
                              38));
}

TEST(Blob, WithoutOperations) {
  Builder b;
  std::vector<Op> ops;
  struct pglog_error e;
  EXPECT_EQ(Read(b.Build({}), &ops, &e), 0);
  EXPECT_TRUE(ops.empty());
}

// The count of a group takes one byte up to 127 operations, then more, and the bytes behind it
// move.
TEST(Blob, GroupCountGrows) {
  Builder b;
  for (size_t n : {126, 127, 128, 129, 16383, 16384, 16385}) {
    std::vector<Op> in, out;
    for (size_t i = 0; i < n; i++)
      in.push_back({i % 3 ? BLOB_PUT : BLOB_DELETE, "p/" + std::to_string(i), i % 3 ? "v" : "", 2});
    for (size_t i = 0; i < 130; i++)
      in.push_back({BLOB_DELETE, "q/", "", 2});
    struct pglog_error e;
    ASSERT_EQ(Read(b.Build(in), &out, &e), 0) << n << e.text;
    ASSERT_EQ(in, out) << n;
  }
}

TEST(Blob, RandomOperations) {
  for (unsigned seed = 1; seed <= 150; seed++) {
    SCOPED_TRACE(seed);
    std::mt19937 rnd(seed);
    auto str = [&](size_t max) {
      std::string s(rnd() % (max + 1), 0);
      for (char &c : s)
        c = (char)(rnd() % 3 ? 'a' + rnd() % 3 : rnd());
      return s;
    };
    Builder b;
    std::vector<Op> in, out;
    for (unsigned i = rnd() % 400; i > 0; i--) {
      Op o = {BLOB_PUT + (int)(rnd() % 4), str(rnd() % 50 ? 6 : PGLOG_KEY_MAX), "", 0};
      o.id = rnd() % 2 ? std::min<size_t>(1, o.a.size()) : rnd() % (o.a.size() + 1);
      if (o.kind == BLOB_PUT)
        o.b = str(rnd() % 10 ? 200 : 20000);
      if (o.kind == BLOB_DELRANGE && o.a.size() < PGLOG_KEY_MAX)
        o.b = o.a + str(3) + "\xff";
      else if (o.kind == BLOB_DELRANGE)
        o.kind = BLOB_DELREST;
      if (o.b.size() > PGLOG_KEY_MAX && o.kind == BLOB_DELRANGE)
        o.b.resize(PGLOG_KEY_MAX);
      if (o.kind == BLOB_DELRANGE && o.a >= o.b)
        continue;
      in.push_back(o);
    }
    struct pglog_error e;
    ASSERT_EQ(Read(b.Build(in), &out, &e), 0) << e.text;
    ASSERT_EQ(in, out);
  }
}

TEST(BlobBuilder, RefusesAndRemembers) {
  Builder b;
  struct pglog_error e;
  struct slice out;
  auto refused = [&](int code, int rc, const char *word) {
    EXPECT_EQ(rc, code) << word;
    EXPECT_NE(std::string(e.text).find(word), std::string::npos) << e.text;
    EXPECT_EQ(b.Add({BLOB_PUT, "k", "v", 1}, &e), code);
    EXPECT_EQ(b.Add({BLOB_DELRANGE, "k", "a", 1}, &e), code);
    EXPECT_EQ(b.Add({BLOB_DELETE, std::string(2000, 'x'), "", 1}, &e), code);
    EXPECT_EQ(blob_finish(&b.b, &out, &e), code);
    EXPECT_NE(std::string(e.text).find(pglog_status_str(code)), std::string::npos);
    ASSERT_EQ(blob_begin(&b.b, 1, 1), 0);
    EXPECT_EQ(b.Add({BLOB_PUT, "k", "v", 1}, &e), 0);
  };
  ASSERT_EQ(blob_begin(&b.b, 1, 1), 0);
  std::string key(PGLOG_KEY_MAX + 1, 'k');
  refused(PGLOG_ETOOBIG, b.Add({BLOB_PUT, key, "", 1}, &e), "1025");
  refused(PGLOG_ETOOBIG, b.Add({BLOB_DELETE, key, "", 1}, &e), "1025");
  refused(PGLOG_ETOOBIG, b.Add({BLOB_DELRANGE, "k", key, 1}, &e), "1025");
  refused(PGLOG_ETOOBIG, b.Add({BLOB_DELREST, key, "", 1}, &e), "1025");
  refused(PGLOG_EINVAL, b.Add({BLOB_PUT, "key", "", 4}, &e), "PG id of 4");
  refused(PGLOG_EINVAL, b.Add({BLOB_DELRANGE, "b", "a", 1}, &e), "range");
  refused(PGLOG_EINVAL, b.Add({BLOB_DELRANGE, "b", "b", 1}, &e), "range");
  // The limits are looked at before the bytes, which are not there.
  struct slice big = {(const uint8_t *)"", (size_t)PGLOG_VALUE_MAX + 1};
  refused(PGLOG_ETOOBIG, blob_put(&b.b, S("k"), 1, big, &e), "4294901761");
  ASSERT_EQ(b.Add({BLOB_PUT, "k", std::string(70000, 'x'), 1}, &e), 0);
  big.size = PGLOG_VALUE_MAX;
  refused(PGLOG_ETOOBIG, blob_put(&b.b, S("k"), 1, big, &e), "4 GiB");
  EXPECT_EQ(blob_put(&b.b, S(key), 1, S(""), NULL), PGLOG_ETOOBIG);
}

static std::string Raw(const std::string &groups) {
  return "\xb1PGL\x01\x07\x05" + groups;
}

TEST(BlobCursor, RefusesMalformed) {
  auto check = [](const std::string &blob, const char *word) {
    std::vector<Op> ops;
    struct pglog_error e = {0, ""};
    EXPECT_EQ(Read(blob, &ops, &e), PGLOG_ECORRUPT) << word;
    EXPECT_NE(std::string(e.text).find(word), std::string::npos) << e.text;
    EXPECT_NE(std::string(e.text).find("offset"), std::string::npos) << e.text;
    EXPECT_EQ(blob_check(S(blob), NULL), PGLOG_ECORRUPT);
  };
  check("", "header");
  check("\xb1PGM\x01\x07\x05", "header");
  check("\xb1PGL\x01", "header");
  check("\xb1PGL\x01\x07", "number");
  check(std::string("\xb1PGL\0\x07\x05", 7), "version 0");
  check(Raw("\x05"
            "abc"),
        "PG id");
  check(Raw(std::string("\x81\x08") + std::string(1025, 'x') + "\x01\x02\x01k"), "PG id");
  check(Raw("\x01p"), "number of operations");
  check(Raw(std::string("\x01p\0", 3)), "number of operations");
  check(Raw("\x01p\x01"), "group cut off");
  check(Raw("\x01p\x02\x02\x01k"), "group cut off");
  check(Raw(std::string("\x01p\x01\0\x01k", 6)), "unknown kind");
  check(Raw("\x01p\x01\x05\x01k"), "unknown kind");
  check(Raw("\x01p\x01\x01\x01k\x05v"), "operation cut off");
  check(Raw("\x01p\x01\x02\xff\xff\xff\xff\x0fk"), "operation cut off");
  check(Raw("\x01p\x01\x02\x80\x08" + std::string(1024, 'k')), "key over the limit");
  check(Raw("\x01p\x01\x04\x81\x08" + std::string(1025, 'p')), "key over the limit");
  check(Raw("\x01p\x01\x03\x01p\x81\x08" + std::string(1025, 'p')), "key over the limit");
  check(Raw("\x01p\x01\x03\x01q\x01r"), "outside its PG");
  check(Raw("\x02pp\x01\x04\x01p"), "outside its PG");
  check(Raw("\x01p\x01\x03\x01p\x01p"), "not behind its begin");
  check(Raw("\x01p\x01\x03\x02pb\x02pa"), "not behind its begin");
  struct pglog_error e;
  std::vector<Op> ops;
  EXPECT_EQ(Read(Raw("\x01p\x01\x02\x01k"), &ops, &e), 0);
  EXPECT_EQ(Read("\xb1PGL\x02\x07\x05", &ops, &e), PGLOG_ENOTSUP);
  EXPECT_NE(std::string(e.text).find("version 2"), std::string::npos);
}

// What a cursor accepts can be built again and means the same.
static void ErrorOrWellFormed(const std::string &blob) {
  std::vector<Op> ops, again;
  struct pglog_error e = {0, ""};
  int rc = Read(blob, &ops, &e);
  if (rc == 0) {
    Builder b;
    ASSERT_EQ(Read(b.Build(ops), &again, &e), 0) << e.text;
    ASSERT_EQ(ops, again);
  } else {
    ASSERT_TRUE(rc == PGLOG_ECORRUPT || rc == PGLOG_ENOTSUP) << rc;
    ASSERT_EQ(e.code, rc);
  }
}

TEST(BlobCursor, CutAtEveryByte) {
  Builder b;
  std::string blob = b.Build(kSample);
  for (size_t n = 0; n < blob.size(); n++)
    ErrorOrWellFormed(blob.substr(0, n));
}

TEST(BlobCursor, RandomDamage) {
  Builder b;
  std::string good = b.Build(kSample);
  for (unsigned seed = 1; seed <= 12000; seed++) {
    SCOPED_TRACE(seed);
    std::mt19937 rnd(seed);
    std::string blob = good;
    for (unsigned i = 1 + rnd() % 3; i > 0; i--) {
      size_t at = rnd() % blob.size();
      blob[at] = rnd() % 2 ? (char)(blob[at] ^ (1 << rnd() % 8)) : (char)rnd();
    }
    if (rnd() % 8 == 0)
      blob.resize(rnd() % blob.size());
    ErrorOrWellFormed(blob);
    if (HasFatalFailure())
      return;
  }
}
