// SPDX-License-Identifier: Apache-2.0
// Proves that a WriteBatch is walked and split to the byte: nothing lost, nothing changed, nothing
// read beyond.
#include "batch.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <time.h>
#include <zstd.h>

#include <random>
#include <string>
#include <vector>

#include "blob.h"
#include "rule.h"

static struct slice S(const std::string &s) {
  return slice_make(s.data(), s.size());
} static std::string Str(struct slice s) {
  return std::string((const char *)s.data, s.size);
}

static std::string Var(uint64_t v) {
  uint8_t b[VARINT64_MAX];
  return std::string((char *)b, (size_t)(put_varint(b, v) - b));
}

static std::string Text(const std::string &s) {
  return Var(s.size()) + s;
}

// A record from its tag, its column family if the tag has one, and its strings.
static std::string Rec(uint8_t tag, const std::vector<std::string> &strings, int64_t cf = -1) {
  std::string r(1, (char)tag);
  if (cf >= 0)
    r += Var((uint64_t)cf);
  for (const std::string &s : strings)
    r += Text(s);
  return r;
}

static std::string Put(const std::string &k, const std::string &v) {
  return Rec(1, {k, v});
}
static std::string Del(const std::string &k) {
  return Rec(0, {k});
}
static std::string Range(const std::string &a, const std::string &b) {
  return Rec(15, {a, b});
}
static std::string LogData(const std::string &b) {
  return Rec(3, {b});
}

static std::string Batch(const std::vector<std::string> &records, uint32_t count,
                         uint64_t sequence = 77) {
  std::string b(BATCH_HEADER, 0);
  put_le64((uint8_t *)&b[0], sequence);
  put_le32((uint8_t *)&b[8], count);
  for (const std::string &r : records)
    b += r;
  return b;
}

struct Rule {
  explicit Rule(const std::string &text, uint32_t cf = 0) {
    struct pglog_options *o = new struct pglog_options;
    pglog_options_init(o);
    EXPECT_EQ(pglog_options_parse(o, text.c_str(), NULL), 0);
    rule = o->rule;
    delete o;
    batch_rule_init(&br, &rule, cf);
  }
  Rule(const Rule &) = delete;
  struct pglog_rule rule;
  struct batch_rule br;
};

// A blob's operations as text, store keys whole: "put k=v", "del k", "range a,b", "rest a".
static std::vector<std::string> BlobOps(const std::string &blob, struct blob_header *h = NULL) {
  std::vector<std::string> ops;
  struct pglog_error e = {0, ""};
  struct blob_header header;
  struct blob_cursor c;
  struct blob_op op;
  EXPECT_EQ(blob_check(S(blob), &e), 0) << e.text;
  EXPECT_EQ(blob_open(&c, S(blob), h ? h : &header, &e), 0) << e.text;
  while (blob_next(&c, &op, &e) > 0) {
    if (op.kind == BLOB_PUT)
      ops.push_back("put " + Str(op.pgid) + Str(op.name) + "=" + Str(op.value));
    else if (op.kind == BLOB_DELETE)
      ops.push_back("del " + Str(op.pgid) + Str(op.name));
    else if (op.kind == BLOB_DELRANGE)
      ops.push_back("range " + Str(op.begin) + "," + Str(op.end));
    else
      ops.push_back("rest " + Str(op.begin));
  }
  return ops;
}

struct Result {
  int rc = 0;
  bool split = false;
  std::string out;                /* whole */
  std::string kept;               /* without header and blob */
  uint32_t count = 0;             /* of out */
  std::vector<std::string> ops;   /* of the blob */
  struct blob_header header = {}; /* of the blob */
  std::string error;
};

static void Stamp(void *, uint64_t *number, uint8_t *tag) {
  *number = 1234;
  *tag = 56;
}
static const struct batch_hooks kHooks = {nullptr, nullptr, Stamp};

// Splits, with the batch in memory of its own to the byte, and takes the result apart.
static Result Split(const Rule &rule, const std::string &batch) {
  Result r;
  std::vector<uint8_t> exact(batch.begin(), batch.end());
  struct blob_builder bb = {};
  struct buf out = {};
  struct pglog_error e = {0, ""};
  r.split = true;
  r.rc = batch_split(&rule.br, slice_make(exact.data(), exact.size()), &kHooks, &bb, &out,
                     &r.split, &e);
  r.error = e.text;
  r.out.assign((char *)out.data, out.size);
  blob_builder_free(&bb);
  buf_free(&out);
  EXPECT_EQ(r.rc ? e.code : 0, r.rc);
  EXPECT_EQ(r.split, !r.out.empty());
  if (!r.split)
    return r;
  EXPECT_EQ(r.rc, 0);
  EXPECT_EQ(r.out.substr(0, 8), batch.substr(0, 8));
  r.count = batch_count(S(r.out));
  const uint8_t *base = (const uint8_t *)r.out.data(), *p = base + BATCH_HEADER;
  struct batch_record rec = {};
  uint32_t counted = 0;
  while (p < base + r.out.size()) {
    EXPECT_EQ(batch_next(base, &p, base + r.out.size(), &rec, &e), 0) << e.text;
    EXPECT_FALSE(batch_record_matches(&rule.br, &rec));
    counted += batch_op_counted(rec.op);
  }
  EXPECT_EQ(counted, r.count);
  EXPECT_EQ(rec.op, BATCH_LOG_DATA);
  EXPECT_TRUE(blob_is(rec.value));
  r.kept = r.out.substr(BATCH_HEADER, r.out.size() - BATCH_HEADER - rec.raw.size);
  r.ops = BlobOps(Str(rec.value), &r.header);
  return r;
}

static void Refused(const Rule &rule, const std::string &batch, int code,
                    const std::vector<std::string> &words) {
  Result r = Split(rule, batch);
  EXPECT_EQ(r.rc, code) << words[0] << ": " << r.error;
  for (const std::string &w : words)
    EXPECT_NE(r.error.find(w), std::string::npos) << w << ": " << r.error;
}

using Ops = std::vector<std::string>;

/* -------------------------------------------------------------------------------------------- */

TEST(BatchNext, EveryTag) {
  struct Want {
    uint8_t tag;
    int op;
    bool cf, key, value, counted;
  };
  const Want all[] = {
      {0x00, BATCH_DELETE, false, true, false, true},
      {0x01, BATCH_PUT, false, true, true, true},
      {0x02, BATCH_MERGE, false, true, true, true},
      {0x03, BATCH_LOG_DATA, false, false, true, false},
      {0x04, BATCH_DELETE, true, true, false, true},
      {0x05, BATCH_PUT, true, true, true, true},
      {0x06, BATCH_MERGE, true, true, true, true},
      {0x07, BATCH_SINGLE_DELETE, false, true, false, true},
      {0x08, BATCH_SINGLE_DELETE, true, true, false, true},
      {0x09, BATCH_XA, false, false, false, false},
      {0x0a, BATCH_XA, false, false, true, false},
      {0x0b, BATCH_XA, false, false, true, false},
      {0x0c, BATCH_XA, false, false, true, false},
      {0x0d, BATCH_NOOP, false, false, false, false},
      {0x0e, BATCH_DELETE_RANGE, true, true, true, true},
      {0x0f, BATCH_DELETE_RANGE, false, true, true, true},
      {0x10, BATCH_BLOB_INDEX, true, true, true, true},
      {0x11, BATCH_BLOB_INDEX, false, true, true, true},
      {0x12, BATCH_XA, false, false, false, false},
      {0x13, BATCH_XA, false, false, false, false},
      {0x15, BATCH_XA, false, true, true, false},
      {0x16, BATCH_ENTITY, false, true, true, true},
      {0x17, BATCH_ENTITY, true, true, true, true},
      {0x18, BATCH_TIMED_PUT, false, true, true, true},
      {0x19, BATCH_TIMED_PUT, true, true, true, true},
  };
  size_t next = 0;
  for (int tag = 0; tag < 256; tag++) {
    const Want *w = next < std::size(all) && all[next].tag == tag ? &all[next++] : NULL;
    std::string key(w && w->key ? 200 : 0, 'k'), value(w && w->value ? 20000 : 0, 'v');
    std::vector<std::string> strings;
    if (w && w->key)
      strings.push_back(key);
    if (w && w->value)
      strings.push_back(value);
    std::string raw = Rec((uint8_t)tag, strings, w && w->cf ? 300 : -1);
    std::vector<uint8_t> exact(raw.begin(), raw.end());
    const uint8_t *p = exact.data(), *end = p + exact.size();
    struct batch_record r;
    struct pglog_error e = {0, ""};
    int rc = batch_next(exact.data(), &p, end, &r, &e);
    if (!w) {
      EXPECT_EQ(rc, PGLOG_ECORRUPT) << tag;
      EXPECT_NE(std::string(e.text).find("unknown tag 0x"), std::string::npos) << e.text;
      EXPECT_EQ(p, exact.data());
      continue;
    }
    ASSERT_EQ(rc, 0) << tag << e.text;
    EXPECT_EQ(p, end);
    EXPECT_EQ(r.op, w->op);
    EXPECT_EQ(r.tag, tag);
    EXPECT_EQ(r.cf, w->cf ? 300u : 0u);
    EXPECT_EQ(Str(r.key), key);
    EXPECT_EQ(Str(r.value), value);
    EXPECT_EQ(Str(r.raw), raw);
    EXPECT_EQ(batch_op_counted(r.op), w->counted) << tag;
    EXPECT_STRNE(batch_op_str(r.op), "unknown");
    for (size_t cut = 1; cut < exact.size() && cut < 300; cut++) {
      std::vector<uint8_t> part(exact.begin(), exact.begin() + (ptrdiff_t)cut);
      p = part.data();
      ASSERT_EQ(batch_next(p, &p, p + cut, &r, &e), PGLOG_ECORRUPT) << tag << " cut " << cut;
      ASSERT_NE(std::string(e.text).find("offset 0 "), std::string::npos) << e.text;
    }
  }
  EXPECT_EQ(next, std::size(all));
  EXPECT_STREQ(batch_op_str(0), "unknown");
  EXPECT_STREQ(batch_op_str(99), "unknown");
  const uint8_t *p = (const uint8_t *)"";
  struct batch_record r;
  EXPECT_EQ(batch_next(p, &p, p, &r, NULL), PGLOG_ECORRUPT);
}

TEST(BatchMatch, KeysRangesAndFamilies) {
  Rule rule("pglog://?cf=P", 5), none("pglog://?cf=P", PGLOG_CF_UNKNOWN);
  auto match = [&](const Rule &u, const std::string &raw) {
    const uint8_t *p = (const uint8_t *)raw.data();
    struct batch_record r;
    EXPECT_EQ(batch_next(p, &p, p + raw.size(), &r, NULL), 0);
    return batch_record_matches(&u.br, &r);
  };
  for (uint8_t tag : {0x05, 0x06, 0x10, 0x17, 0x19}) {
    EXPECT_TRUE(match(rule, Rec(tag, {"pglog/", "v"}, 5))) << (int)tag;
    EXPECT_FALSE(match(rule, Rec(tag, {"pglog", "v"}, 5)));
    EXPECT_FALSE(match(rule, Rec(tag, {"pglog0", "v"}, 5)));
    EXPECT_FALSE(match(rule, Rec(tag, {"pglog/", "v"}, 4)));
    EXPECT_FALSE(match(none, Rec(tag, {"pglog/", "v"}, PGLOG_CF_UNKNOWN)));
  }
  EXPECT_TRUE(match(rule, Rec(0x04, {"pglog/x"}, 5)));
  EXPECT_TRUE(match(rule, Rec(0x08, {"pglog/x"}, 5)));
  EXPECT_FALSE(match(rule, Put("pglog/x", "v")));
  Rule zero("pglog://", 0);
  EXPECT_TRUE(match(zero, Put("pglog/x", "v")));
  EXPECT_FALSE(match(zero, LogData("pglog/x")));
  EXPECT_FALSE(match(zero, Rec(0x15, {"pglog/x", "v"})));
  EXPECT_TRUE(match(zero, Range("a", "z")));
  EXPECT_TRUE(match(zero, Range("pglog/", "pglog/\x01")));
  EXPECT_TRUE(match(zero, Range("pglog", std::string("pglog/\0", 7))));
  EXPECT_FALSE(match(zero, Range("pglog", "pglog/")));
  EXPECT_FALSE(match(zero, Range("pglog0", "z")));
  EXPECT_FALSE(match(zero, Range("pglog/x", "pglog/x")));
  EXPECT_FALSE(match(zero, Range("z", "a")));
}

/* -------------------------------------------------------------------------------------------- */

TEST(BatchSplit, TakesOutAndKeepsTheRestVerbatim) {
  Rule rule("pglog://");
  std::string other = Rec(5, {"pglog/1/a", "other family"}, 3), note = LogData("a note");
  std::string big = Put("b", std::string(70000, 'x')), merge = Rec(2, {"m", "1"});
  Result r = Split(rule, Batch({Put("a", "1"), Put("pglog/1/a", "v1"), other, note,
                                Del("pglog/1/b"), Rec(7, {"pglog/2/c"}), big, merge,
                                Rec(5, {"pglog/1/a", ""}, 0), Rec(0x0d, {}), Del("z")},
                               9));
  ASSERT_EQ(r.rc, 0) << r.error;
  ASSERT_TRUE(r.split);
  EXPECT_EQ(r.kept, Put("a", "1") + other + note + big + merge + Rec(0x0d, {}) + Del("z"));
  EXPECT_EQ(r.count, 5u);
  EXPECT_EQ(r.ops, Ops({"put 1/a=v1", "del 1/b", "del 2/c", "put 1/a="}));
  EXPECT_EQ(r.header.number, 1234u);
  EXPECT_EQ(r.header.tag, 56);
}

TEST(BatchSplit, OnlyPgLog) {
  Rule rule("pglog://");
  Result r = Split(rule, Batch({Put("pglog/1/a", "v")}, 1));
  EXPECT_EQ(r.count, 0u);
  EXPECT_EQ(r.kept, "");
  EXPECT_EQ(r.ops, Ops({"put 1/a=v"}));
}

TEST(BatchSplit, NothingToTakeLeavesOutEmpty) {
  Rule rule("pglog://"), unknown("pglog://?cf=P", PGLOG_CF_UNKNOWN);
  for (const std::string &b :
       {Batch({}, 0), Batch({LogData("x")}, 0), Batch({Put("pglog", "x"), Del("pglog0")}, 2),
        Batch({Rec(9, {}), Put("a", "b"), Rec(0x0a, {"xid"})}, 1),
        Batch({Range("a", "b"), Range("x", "x"), Range("z", "x")}, 3)}) {
    Result r = Split(rule, b);
    EXPECT_EQ(r.rc, 0) << r.error;
    EXPECT_FALSE(r.split);
  }
  Result r = Split(unknown, Batch({Rec(5, {"pglog/1/a", "v"}, PGLOG_CF_UNKNOWN)}, 1));
  EXPECT_EQ(r.rc, 0);
  EXPECT_FALSE(r.split);
}

TEST(BatchSplit, FamilyTagsAndIds) {
  Rule rule("pglog://?cf=P&prefix=&pgid=fixed:2", 300);
  std::string keep = Rec(5, {"11k", "v"}, 299) + Put("11k", "v");
  Result r = Split(
      rule, Batch({Rec(5, {"11k", "v"}, 300), keep, Rec(4, {""}, 300), Rec(8, {"1"}, 300)}, 5));
  EXPECT_EQ(r.kept, keep);
  EXPECT_EQ(r.count, 2u);
  EXPECT_EQ(r.ops, Ops({"put 11k=v", "del ", "del 1"}));
}

TEST(BatchSplit, RefusesByDesign) {
  Rule rule("pglog://");
  std::string put = Put("pglog/1/a", "v");
  Refused(rule, Batch({put, Rec(2, {"pglog/1/b", "v"})}, 2), PGLOG_ENOTSUP,
          {"record 2", "Merge", "pglog/1/b"});
  Refused(rule, Batch({Rec(6, {"pglog/1/b", "v"}, 0)}, 1), PGLOG_ENOTSUP, {"record 1", "Merge"});
  Refused(rule, Batch({Rec(0x16, {"pglog/\x01", "v"})}, 1), PGLOG_ENOTSUP,
          {"PutEntity", "pglog/\\x01"});
  Refused(rule, Batch({Rec(0x11, {"pglog/1", "v"})}, 1), PGLOG_ENOTSUP, {"BlobIndex", "pglog/1"});
  Refused(rule, Batch({Rec(0x18, {"pglog/1", "v"})}, 1), PGLOG_ENOTSUP, {"TimedPut", "pglog/1"});
  Refused(rule, Batch({LogData("x"), LogData(BLOB_MAGIC), Put("a", "b")}, 1), PGLOG_ENOTSUP,
          {"record 2", "LogData", "magic"});
  for (uint8_t tag : {0x09, 0x12, 0x13}) {
    Refused(rule, Batch({Rec(tag, {}), put}, 1), PGLOG_ENOTSUP, {"record 1", "two-phase"});
    Refused(rule, Batch({put, Rec(tag, {})}, 1), PGLOG_ENOTSUP, {"record 2", "two-phase"});
  }
  for (uint8_t tag : {0x0a, 0x0b, 0x0c})
    Refused(rule, Batch({put, Rec(tag, {"x"})}, 1), PGLOG_ENOTSUP, {"record 2", "two-phase"});
  Refused(rule, Batch({put, Rec(0x15, {"t", "x"})}, 1), PGLOG_ENOTSUP, {"record 2", "two-phase"});
}

namespace {
struct Seen {
  std::vector<std::string> keys;
  uint32_t refuse = 0; /* number of the record to refuse; 0: none */
  int stamps = 0;
};
int Look(void *arg, const struct batch_record *r, uint32_t n, struct pglog_error *err) {
  Seen *seen = static_cast<Seen *>(arg);
  seen->keys.push_back(std::string((const char *)r->key.data, r->key.size));
  EXPECT_EQ(seen->keys.size(), n);
  return n == seen->refuse ? error_set(err, PGLOG_EINVAL, "refused %u", n) : 0;
}
void Count(void *arg, uint64_t *number, uint8_t *tag) {
  static_cast<Seen *>(arg)->stamps++;
  *number = 3;
  *tag = 4;
}
}  // namespace

TEST(BatchSplit, AsksItsHooks) {
  Rule rule("pglog://");
  std::string batch =
      Batch({Put("a", "1"), Put("pglog/1/x", "2"), Del("pglog/1/y"), Put("z", "3")}, 4);
  std::string plain = Batch({Put("a", "1"), Put("z", "3")}, 2);
  struct blob_builder bb = {};
  struct buf out = {};
  struct pglog_error e;
  for (uint32_t refuse = 0; refuse <= 4; refuse++) {
    Seen seen;
    seen.refuse = refuse;
    struct batch_hooks hooks = {&seen, Look, Count};
    bool split = refuse != 0;
    int rc = batch_split(&rule.br, S(batch), &hooks, &bb, &out, &split, &e);
    EXPECT_EQ(rc, refuse ? PGLOG_EINVAL : 0);
    EXPECT_EQ(split, refuse == 0);
    EXPECT_EQ(out.size > 0, refuse == 0);
    std::vector<std::string> all = {"a", "pglog/1/x", "pglog/1/y", "z"};
    all.resize(refuse ? refuse : 4);
    EXPECT_EQ(seen.keys, all);
    EXPECT_EQ(seen.stamps, refuse == 1 || refuse == 2 ? 0 : 1);
    if (refuse) {
      EXPECT_EQ(std::string(e.text), "refused " + std::to_string(refuse));
    }
  }
  Seen seen;
  struct batch_hooks hooks = {&seen, Look, Count};
  bool split = true;
  EXPECT_EQ(batch_split(&rule.br, S(plain), &hooks, &bb, &out, &split, &e), 0);
  EXPECT_FALSE(split);
  EXPECT_EQ(seen.stamps, 0);
  blob_builder_free(&bb);
  buf_free(&out);
}

TEST(BatchSplit, RefusesTooBig) {
  Rule rule("pglog://");
  std::string at_limit = "pglog/" + std::string(PGLOG_KEY_MAX, 'k'), over = at_limit + "k";
  EXPECT_EQ(Split(rule, Batch({Put(at_limit, "v")}, 1)).rc, 0);
  for (const std::string &r :
       {Put(over, "v"), Del(over), Rec(7, {over}), Range(over, "pglog/z"), Range("a", over)})
    Refused(rule, Batch({Put("a", "b"), r}, 2), PGLOG_ETOOBIG,
            {"record 2", "key '", "1025", "1024"});
  struct blob_builder bb = {};
  struct buf out = {};
  bool split;
  struct pglog_error e;
  struct slice huge = {(const uint8_t *)"", (size_t)UINT32_MAX + 1};
  EXPECT_EQ(batch_split(&rule.br, huge, &kHooks, &bb, &out, &split, &e), PGLOG_ETOOBIG);
  EXPECT_NE(std::string(e.text).find("4294967296"), std::string::npos);
  // A value over the limit, in memory that is never touched.
  void *m = mmap(NULL, UINT32_MAX, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(m, MAP_FAILED);
  std::string head = Batch({std::string(1, 1) + Text("pglog/1/a") + Var(PGLOG_VALUE_MAX + 1)}, 1);
  memcpy(m, head.data(), head.size());
  huge = slice_make(m, head.size() + PGLOG_VALUE_MAX + 1);
  EXPECT_EQ(batch_split(&rule.br, huge, &kHooks, &bb, &out, &split, &e), PGLOG_ETOOBIG);
  EXPECT_NE(std::string(e.text).find("4294901761"), std::string::npos) << e.text;
  EXPECT_EQ(out.size, 0u);
  munmap(m, UINT32_MAX);
  blob_builder_free(&bb);
  buf_free(&out);
}

TEST(BatchSplit, RefusesMalformed) {
  Rule rule("pglog://");
  for (size_t n = 0; n < BATCH_HEADER; n++)
    Refused(rule, std::string(n, 0), PGLOG_ECORRUPT, {std::to_string(n) + " bytes", "12"});
  std::string put = Put("pglog/1/a", "v");
  Refused(rule, Batch({put, Put("a", "b")}, 1), PGLOG_ECORRUPT, {"count is 1", "2 records"});
  Refused(rule, Batch({put, LogData("x")}, 2), PGLOG_ECORRUPT, {"count is 2", "1 records"});
  Refused(rule, Batch({}, 1), PGLOG_ECORRUPT, {"count is 1", "0 records"});
  Refused(rule, Batch({put, "\x7f"}, 1), PGLOG_ECORRUPT, {"tag 0x7f", "offset 25 of 26"});
  Refused(rule, Batch({put, "\x01\x05"}, 1), PGLOG_ECORRUPT, {"tag 0x01", "Put", "offset 25"});
}

/* -------------------------------------------------------------------------------------------- */

// [a, b) over the default rule: what stays, what the blob says.
static void RangeCase(const std::string &a, const std::string &b,
                      const std::vector<std::string> &stay, const Ops &ops) {
  SCOPED_TRACE(a + " .. " + b);
  Rule rule("pglog://"), cf("pglog://?cf=P", 9);
  Result r = Split(rule, Batch({Put("x", "y"), Range(a, b), Put("y", "z")}, 3));
  ASSERT_EQ(r.rc, 0) << r.error;
  ASSERT_TRUE(r.split);
  std::string want = Put("x", "y");
  for (const std::string &s : stay)
    want += s;
  EXPECT_EQ(r.kept, want + Put("y", "z"));
  EXPECT_EQ(r.count, 2 + stay.size());
  EXPECT_EQ(r.ops, ops);
  r = Split(cf, Batch({Rec(14, {a, b}, 9)}, 1));
  want.clear();
  for (const std::string &s : stay)
    want += std::string("\x0e\x09") + s.substr(1);
  EXPECT_EQ(r.kept, want);
  EXPECT_EQ(r.ops, ops);
}

TEST(BatchSplit, DeleteRange) {
  RangeCase("pglog/1/a", "pglog/1/b", {}, {"range 1/a,1/b"});
  RangeCase("pglog/1/a", "pglog/2/", {}, {"range 1/a,2/"});
  RangeCase("pglog/", "pglog/2/", {}, {"range ,2/"});
  RangeCase("a", "pglog/2/", {Range("a", "pglog/")}, {"range ,2/"});
  RangeCase("pglog", "pglog/2/", {Range("pglog", "pglog/")}, {"range ,2/"});
  RangeCase("pglog/1/a", "pglog0", {}, {"rest 1/a"});
  RangeCase("pglog/1/a", "pglog00", {Range("pglog0", "pglog00")}, {"rest 1/a"});
  RangeCase("pglog/", "pglog0", {}, {"rest "});
  RangeCase("a", "z", {Range("a", "pglog/"), Range("pglog0", "z")}, {"rest "});
  RangeCase("", "\xff", {Range("", "pglog/"), Range("pglog0", "\xff")}, {"rest "});
  RangeCase("pglog/1/a", "pglog/1/a", {}, {});
  RangeCase("pglog/", "pglog/", {}, {});
}

TEST(BatchSplit, DeleteRangeOutsideStaysEvenIfEmptyOrInverted) {
  Rule rule("pglog://");
  for (const std::string &r :
       {Range("a", "pglog/"), Range("pglog0", "z"), Range("x", "x"), Range("pglog0", "pglog0"),
        Range("pglog", "a"), Range("z", "pglog0"), Rec(14, {"pglog/2", "pglog/1"}, 1)}) {
    Result s = Split(rule, Batch({Put("pglog/1/a", "v"), r}, 2));
    EXPECT_EQ(s.rc, 0) << s.error;
    EXPECT_EQ(s.kept, r);
    EXPECT_EQ(s.count, 1u);
  }
}

TEST(BatchSplit, DeleteRangeInvertedIsRefused) {
  Rule rule("pglog://");
  for (const std::string &r : {Range("pglog/2", "pglog/1"), Range("z", "a"), Range("z", "pglog/1"),
                               Range("pglog/1", "a"), Range("pglog/", "a"), Range("z", "pglog/")})
    Refused(rule, Batch({Put("a", "b"), r}, 2), PGLOG_EINVAL,
            {"record 2", "DeleteRange", "before the begin"});
}

// A rule whose range has no end, in a family of its own and behind a prefix of 0xff.
TEST(BatchSplit, DeleteRangeWithoutEnd) {
  Rule all("pglog://?cf=P&prefix=&pgid=fixed:2", 9), ff("pglog://?prefix=0xffff&pgid=fixed:1");
  Result r = Split(all, Batch({Rec(14, {"", "x"}, 9), Rec(14, {"11a", "11b"}, 9),
                               Rec(14, {"\xff", "\xff\xff\xff"}, 9)},
                              3));
  EXPECT_EQ(r.kept, "");
  EXPECT_EQ(r.count, 0u);
  EXPECT_EQ(r.ops, Ops({"range ,x", "range 11a,11b", "range \xff,\xff\xff\xff"}));
  r = Split(ff, Batch({Range("a", "\xff\xff\x01"), Range("\xff\xff\x01", "\xff\xff\xff")}, 2));
  EXPECT_EQ(r.kept, Range("a", "\xff\xff"));
  EXPECT_EQ(r.ops, Ops({"range ,\x01", "range \x01,\xff"}));
}

/* -------------------------------------------------------------------------------------------- */

// What splitting must give, computed in the plainest way for batches without DeleteRange.
static void CheckPlain(const Rule &rule, const std::string &batch, const Result &r) {
  const uint8_t *base = (const uint8_t *)batch.data(), *p = base + BATCH_HEADER;
  std::string kept;
  Ops ops;
  struct batch_record rec;
  while (p < base + batch.size()) {
    ASSERT_EQ(batch_next(base, &p, base + batch.size(), &rec, NULL), 0);
    if (!batch_record_matches(&rule.br, &rec)) {
      kept += Str(rec.raw);
      continue;
    }
    std::string key = Str(rec.key).substr(rule.rule.prefix_len);
    ops.push_back(rec.op == BATCH_PUT ? "put " + key + "=" + Str(rec.value) : "del " + key);
  }
  ASSERT_EQ(r.rc, 0) << r.error;
  ASSERT_EQ(r.split, !ops.empty());
  if (!r.split)
    return;
  ASSERT_EQ(r.kept, kept);
  ASSERT_EQ(r.ops, ops);
  ASSERT_EQ(r.count, batch_count(S(batch)) - ops.size());
}

static std::string SampleBatch() {
  return Batch(
      {Put("a", std::string(130, '1')), Put("pglog/1/a", std::string(200, '2')),
       Rec(5, {"k", "v"}, 700), Del("pglog/2/b"), LogData("note"), Range("pglog/1/a", "pglog/1/b"),
       Range("a", "z"), Rec(2, {"m", "n"}), Rec(0x0d, {}), Put("pglog/1/c", "3")},
      8);
}

TEST(BatchSplit, CutAtEveryByte) {
  Rule rule("pglog://");
  std::string batch = SampleBatch();
  EXPECT_EQ(Split(rule, batch).rc, 0);
  for (size_t n = 0; n < batch.size(); n++)
    EXPECT_EQ(Split(rule, batch.substr(0, n)).rc, PGLOG_ECORRUPT) << n;
}

TEST(BatchSplit, RandomDamage) {
  Rule rule("pglog://");
  std::string good = SampleBatch();
  unsigned split = 0;
  for (unsigned seed = 1; seed <= 8000; seed++) {
    SCOPED_TRACE(seed);
    std::mt19937 rnd(seed);
    std::string batch = good;
    for (unsigned i = 1 + rnd() % 3; i > 0; i--) {
      size_t at = rnd() % 4 ? rnd() % batch.size() : 142 + rnd() % 20;
      batch[at] = rnd() % 2 ? (char)(batch[at] ^ (1 << rnd() % 8)) : (char)rnd();
    }
    if (rnd() % 8 == 0)
      batch.resize(rnd() % batch.size());
    Result r = Split(rule, batch);
    split += r.split;
    ASSERT_LE(r.rc, 0);
    if (HasFailure())
      return;
  }
  EXPECT_GT(split, 500u);
}

TEST(BatchSplit, RandomBatches) {
  Rule rules[] = {Rule("pglog://"), Rule("pglog://?cf=P&prefix=&pgid=fixed:2", 3),
                  Rule("pglog://?cf=P&prefix=a&pgid=until:b", 300)};
  for (unsigned seed = 1; seed <= 800; seed++) {
    SCOPED_TRACE(seed);
    std::mt19937 rnd(seed);
    const Rule &rule = rules[rnd() % 3];
    std::vector<std::string> records;
    uint32_t count = 0;
    for (unsigned i = rnd() % 30; i > 0; i--) {
      std::string key = rnd() % 2 ? Str(slice_make(rule.rule.prefix, rule.rule.prefix_len)) : "";
      for (unsigned k = rnd() % 8; k > 0; k--)
        key += "abc/"[rnd() % 4];
      std::string value(rnd() % 4 ? rnd() % 300 : rnd() % 20000, (char)rnd());
      uint32_t cf = rnd() % 2 ? rule.br.cf_id : rnd() % 4;
      const uint8_t tags[] = {0, 1, 4, 5, 7, 8, 3, 0x0d};
      uint8_t tag = tags[rnd() % 8];
      bool has_value = tag == 1 || tag == 5;
      count += tag != 3 && tag != 0x0d;
      if (tag == 3)
        records.push_back(LogData(value));
      else if (tag == 0x0d)
        records.push_back(Rec(tag, {}));
      else
        records.push_back(Rec(tag, has_value ? Ops({key, value}) : Ops({key}),
                              tag == 4 || tag == 5 || tag == 8 ? (int64_t)cf : -1));
    }
    std::string batch = Batch(records, count, rnd());
    CheckPlain(rule, batch, Split(rule, batch));
    if (HasFailure())
      return;
  }
}

/* -------------------------------------------------------------------------------------------- */

static std::string Unzstd(const std::string &path) {
  std::string in, out;
  FILE *f = fopen(path.c_str(), "rb");
  EXPECT_NE(f, nullptr) << path;
  if (!f)
    return out;
  char b[65536];
  for (size_t n; (n = fread(b, 1, sizeof b, f)) > 0;)
    in.append(b, n);
  fclose(f);
  ZSTD_DCtx *d = ZSTD_createDCtx();
  ZSTD_inBuffer zi = {in.data(), in.size(), 0};
  size_t rc = 1;
  while (zi.pos < zi.size) {
    ZSTD_outBuffer zo = {b, sizeof b, 0};
    rc = ZSTD_decompressStream(d, &zo, &zi);
    if (ZSTD_isError(rc))
      break;
    out.append(b, zo.pos);
  }
  for (ZSTD_outBuffer zo = {b, sizeof b, 0}; rc && !ZSTD_isError(rc); zo.pos = 0) {
    rc = ZSTD_decompressStream(d, &zo, &zi);
    out.append(b, zo.pos);
    if (zo.pos == 0)
      break;
  }
  EXPECT_EQ(rc, 0u) << path;
  ZSTD_freeDCtx(d);
  return out;
}

class Trace : public testing::Test {
 protected:
  void SetUp() override {
    data = Unzstd(PGLOG_TEST_DATA "/osd_small.trace.zst");
    for (size_t at = 0; at + 4 <= data.size();) {
      uint32_t n = get_le32((const uint8_t *)data.data() + at);
      ASSERT_LE(n, data.size() - at - 4);
      batches.push_back(slice_make(data.data() + at + 4, n));
      at += 4 + n;
    }
  }
  std::string data;
  std::vector<struct slice> batches;
};

// Every transaction of a real OSD: column family P goes into the blob, whole and in order, the rest
// stays.
TEST_F(Trace, SplitsARealOsd) {
  Rule rule("pglog://?cf=P&prefix=&pgid=fixed:8", 11);
  ASSERT_EQ(batches.size(), 24000u);
  size_t transactions = 0, ops = 0, split = 0;
  for (struct slice b : batches) {
    std::string batch = Str(b);
    transactions += batch_count(b) > 0;
    Result r = Split(rule, batch);
    CheckPlain(rule, batch, r);
    if (HasFailure())
      FAIL() << "transaction " << transactions;
    split += r.split;
    ops += r.ops.size();
  }
  EXPECT_EQ(transactions, 21628u);
  printf("%zu transactions, %zu split, %zu operations\n", transactions, split, ops);
}

// CPU time of this thread, in nanoseconds: other tests on the machine do not count.
static double CpuTime() {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

TEST_F(Trace, Speed) {
  Rule rule("pglog://?cf=P&prefix=&pgid=fixed:8", 11);
  struct blob_builder bb = {};
  struct buf out = {};
  size_t in_bytes = 0, out_bytes = 0, n = 0;
  double best = 1e30;
  for (int round = 0; round < 5; round++) {
    in_bytes = out_bytes = n = 0;
    double begin = CpuTime();
    for (struct slice b : batches) {
      bool split;
      ASSERT_EQ(batch_split(&rule.br, b, &kHooks, &bb, &out, &split, NULL), 0);
      n += split;
      in_bytes += b.size;
      out_bytes += split ? out.size : b.size;
    }
    best = std::min(best, CpuTime() - begin);
  }
  printf("batch_split: %.0f ns of CPU per transaction, %zu -> %zu bytes\n", best / (double)n,
         in_bytes / n, out_bytes / n);
  blob_builder_free(&bb);
  buf_free(&out);
}
