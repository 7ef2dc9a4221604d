// SPDX-License-Identifier: Apache-2.0
//
// osd_test.cc - osd over a store in memory: what is answered, when and in which order; duplicates,
// failed commits, limits, restarts, damage, splits. Most of it by hand, in one thread; the last
// part with all threads, which ThreadSanitizer sees whole.
#include "gate.h"
#include "osd_testing.h"

#include <jansson.h>

#include <set>
#include <thread>

extern "C" {
#include "log_entry.h"
}

namespace {

struct Osd {
  MemKv kv;
  struct osd *o = nullptr;
  struct osd_config c = {};
  bool manual;
  struct pglog_error err = {0, ""};
  std::vector<std::string> logged;

  explicit Osd(bool by_hand = true) : manual(by_hand) {
    c.shards = 1;
    c.no_spin = true;
    c.log_arg = this;
    c.log = [](void *arg, const char *text) { static_cast<Osd *>(arg)->logged.push_back(text); };
  }
  ~Osd() { Close(); }
  int TryOpen() {
    struct kv k = kv.Kv();
    return osd_open_kv(&o, &c, &k, manual, &err);
  }
  void Open() { ASSERT_EQ(TryOpen(), 0) << err.text; }
  void Close() {
    osd_close(o);
    o = nullptr;
  }
  void Reopen() {
    Close();
    Open();
  }
  // Run all that is queued, and commit nothing.
  void Work() {
    bool more = true;
    while (more) {
      more = false;
      for (uint32_t i = 0; i < std::max(1u, c.shards) * std::max(1u, c.threads); i++)
        more = osd_step_worker(o, i) > 0 || more;
    }
  }
  uint32_t Commit(uint32_t most = UINT32_MAX) { return osd_step_commit(o, most); }
  // Submit and see the answer.
  int Do(Req &q) {
    EXPECT_EQ(q.Submit(o), 0);
    osd_drain(o);
    EXPECT_TRUE(q.done);
    return q.res.code;
  }
  int Do(Req &&q) { return Do(q); }
  struct osd_stats Stats() {
    struct osd_stats s;
    osd_stats(o, &s);
    return s;
  }
  std::vector<struct osd_pg_info> Pgs() {
    struct osd_pg_info *v;
    size_t n;
    EXPECT_EQ(osd_pg_list(o, &v, &n), 0);
    std::vector<struct osd_pg_info> out(v, v + n);
    free(v);
    return out;
  }
  size_t Keys(const std::string &prefix) {
    size_t n = 0;
    for (auto &e : kv.Copy())
      n += e.first.compare(0, prefix.size(), prefix) == 0;
    return n;
  }
};

// A name whose hash ends in these bits.
std::string NameIn(uint32_t id, uint32_t bits, int nth = 0) {
  for (int i = 0;; i++) {
    std::string s = "n" + std::to_string(i);
    if ((osd_hash(s.data(), s.size()) & ((1u << bits) - 1)) == id && nth-- == 0)
      return s;
  }
}

}  // namespace

// -------------------------------------------------------------------------------------------------
// Operations

TEST(OsdOps, AgreeWithAModelByHand) {
  for (size_t depth : {1, 7, 60}) {
    Osd s;
    s.c.pg_bits = 1;
    s.c.log_keep = 50;
    s.c.log_trim_min = 7;
    s.c.max_dups = 60;
    s.Open();
    ASSERT_NO_FATAL_FAILURE(AgreesWithModel(s.o, depth, 100, depth, [] {})) << depth;
  }
}

TEST(OsdOps, LeaveNothingBehind) {
  Osd s(false);
  s.Open();
  std::string bytes(300000, 'x');
  EXPECT_EQ(s.Do(Req(OSD_WRITE, "a", 10, 0, bytes)), 0);
  EXPECT_EQ(s.Keys("b/"), 74u);
  EXPECT_EQ(s.Do(Req(OSD_ZERO, "a", 4096, 200000)), 0);
  EXPECT_EQ(s.Keys("b/"), 74u - 48);
  EXPECT_EQ(s.Do(Req(OSD_TRUNCATE, "a", 5000)), 0);
  EXPECT_EQ(s.Keys("b/"), 2u);
  EXPECT_EQ(s.Do(Req(OSD_TRUNCATE, "a", OSD_OBJECT_BYTES_MAX)), 0);
  EXPECT_EQ(s.Do(Req(OSD_WRITE, "a", OSD_OBJECT_BYTES_MAX - 1, 0, "e")), 0);
  EXPECT_EQ(s.Do(Req(OSD_ZERO, "a", 0, OSD_OBJECT_BYTES_MAX)), 0);
  EXPECT_EQ(s.Keys("b/"), 0u);
  EXPECT_EQ(s.Keys("o/"), 1u);
  EXPECT_EQ(s.Do(Req(OSD_REMOVE, "a")), 0);
  EXPECT_EQ(s.Keys("o/"), 0u);
  EXPECT_EQ(s.Pgs()[0].objects, 0u);
  EXPECT_EQ(s.Keys("pglog/1.0/00000000"), 7u);
}

TEST(OsdOps, StatHasSizeAndTime) {
  Osd s(false);
  s.Open();
  EXPECT_EQ(osd_write(s.o, "a", "hello", 5, 3, nullptr), 0);
  struct osd_request r = {};
  struct osd_result res;
  r.op = OSD_STAT;
  r.name = "a";
  r.name_size = 1;
  EXPECT_EQ(osd_do(s.o, &r, &res), 0);
  EXPECT_EQ(res.size, 8u);
  EXPECT_GT(res.mtime_ns, 1600000000u * 1000000000ull);
  EXPECT_EQ(res.version, 0u);
  for (int i = 1; i < OSD_STAGES; i++)
    if (i != OSD_GROUPED && i != OSD_WRITTEN) {
      EXPECT_GE(res.at_ns[i], res.at_ns[i - 1] ? res.at_ns[i - 1] : res.at_ns[OSD_SUBMITTED]);
    }
  uint64_t size = 0;
  EXPECT_EQ(osd_stat(s.o, "a", &size, &s.err), 0);
  EXPECT_EQ(size, 8u);
  char buf[10];
  size_t n = sizeof buf;
  EXPECT_EQ(osd_read(s.o, "a", buf, &n, 2, &s.err), 0);
  EXPECT_EQ(std::string(buf, n), std::string("\0hello", 6));
  EXPECT_EQ(osd_remove(s.o, "a", &s.err), 0);
  EXPECT_EQ(osd_remove(s.o, "a", &s.err), PGLOG_ENOTFOUND);
  EXPECT_STREQ(s.err.text, "no such object");
  EXPECT_EQ(osd_stat(s.o, "a", &size, nullptr), PGLOG_ENOTFOUND);
  n = sizeof buf;
  EXPECT_EQ(osd_read(s.o, "a", buf, &n, 2, nullptr), PGLOG_ENOTFOUND);
  EXPECT_EQ(n, sizeof buf);
}

TEST(OsdOps, NamesMayHoldAnyByteAndBeLong) {
  Osd s(false);
  s.c.pg_bits = 3;
  s.Open();
  Content want;
  for (std::string name :
       {std::string("a"), std::string("a\0", 2), std::string("a\0b", 3), std::string("\xff\xff/"),
        std::string(OSD_NAME_BYTES_MAX, 'n'), std::string(OSD_NAME_BYTES_MAX - 1, 'n')}) {
    want[name] = "of " + std::to_string(want.size());
    EXPECT_EQ(s.Do(Req(OSD_WRITE_FULL, name, 0, 0, want[name])), 0);
  }
  std::map<std::string, uint64_t> sizes;
  for (auto &[name, bytes] : want) {
    Req r(OSD_READ, name, 0, 100);
    EXPECT_EQ(s.Do(r), 0);
    EXPECT_EQ(r.data, bytes);
    sizes[name] = bytes.size();
  }
  EXPECT_EQ(ListAll(s.o), sizes);
}

TEST(OsdOps, TheHashIsCrc32c) {
  EXPECT_EQ(osd_hash("foo", 3), 0xcfc4ae1du);
  EXPECT_EQ(osd_hash("123456789", 9), 0xe3069283u);  // the check value of CRC-32C
}

TEST(OsdOps, TheRecordsAreThoseOfTheFormat) {
  Osd s(false);
  s.Open();
  EXPECT_EQ(s.Do(Req(OSD_CREATE, "foo")), 0);
  EXPECT_EQ(s.Do(Req(OSD_WRITE, "foo", 0, 0, std::string(5000, 'z'))), 0);
  Content c = s.kv.Copy();
  std::string hash = "\xb8\x75\x23\xf3";
  EXPECT_EQ(c["osd/super"], std::string("\1\1\0\0\0", 5));
  EXPECT_EQ(c["o/" + hash + "foo"].substr(0, 5), std::string("\x01\x88\x27\x01\x02"));
  EXPECT_EQ(c["o/" + hash + "foo"].size(), 13u);
  std::string block = "b/" + hash + std::string("\0\3foo\0\0\0\0\0\0\0", 12);
  EXPECT_EQ(c[block + '\0'].size(), 4096u);
  EXPECT_EQ(c[block + '\1'], std::string(904, 'z'));
}

// -------------------------------------------------------------------------------------------------
// When things are seen and answered

TEST(OsdCommit, NothingIsShownThatACrashCanTakeBack) {
  Osd s;
  s.Open();
  Req w1(OSD_WRITE, "a", 0, 0, std::string(6000, '1')), w2(OSD_WRITE, "a", 4000, 0, "22");
  Req r1(OSD_READ, "a", 3999, 4), r2(OSD_READ, "b", 0, 1), st(OSD_STAT, "a");
  for (Req *q : {&w1, &r2, &w2, &r1, &st})
    ASSERT_EQ(q->Submit(s.o), 0);
  s.Work();
  for (Req *q : {&w1, &w2, &r1, &r2, &st})
    EXPECT_FALSE(q->done);
  EXPECT_EQ(s.Commit(2), 2u);
  EXPECT_TRUE(w1.done && r2.done);
  EXPECT_FALSE(w2.done || r1.done || st.done);
  EXPECT_EQ(s.Commit(1), 1u);
  EXPECT_TRUE(w2.done);
  // Nothing is uncommitted any more, but earlier reads wait for their turn.
  Req r4(OSD_READ, "a", 0, 1);
  ASSERT_EQ(r4.Submit(s.o), 0);
  s.Work();
  EXPECT_FALSE(r4.done);
  EXPECT_EQ(s.Commit(), 3u);
  EXPECT_TRUE(r1.done && st.done && r4.done);
  EXPECT_TRUE(r1.order < st.order && st.order < r4.order);
  EXPECT_EQ(r1.data, "1221");
  EXPECT_EQ(st.res.size, 6000u);
  EXPECT_EQ(r2.res.code, PGLOG_ENOTFOUND);
  // With nothing pending a read is answered by the worker.
  Req r3(OSD_READ, "a", 0, 1);
  ASSERT_EQ(r3.Submit(s.o), 0);
  s.Work();
  EXPECT_TRUE(r3.done);
  EXPECT_EQ(s.Commit(), 0u);
}

// A read that is run while the callback of an earlier write is not over.
TEST(OsdCommit, AnswersDoNotOvertakeACallback) {
  Osd s;
  s.Open();
  Req w(OSD_WRITE, "a", 0, 0, "1"), r(OSD_READ, "a", 0, 1);
  w.then = [&] {
    ASSERT_EQ(r.Submit(s.o), 0);
    s.Work();
    EXPECT_FALSE(r.done);
  };
  ASSERT_EQ(w.Submit(s.o), 0);
  s.Work();
  EXPECT_EQ(s.Commit(), 1u);
  EXPECT_FALSE(r.done);
  EXPECT_EQ(s.Commit(), 1u);
  EXPECT_EQ(r.data, "1");
}

// The first of two uncommitted writes of a block is committed: the second stays in sight.
TEST(OsdCommit, TheOverlayKeepsWhatIsNotCommitted) {
  Osd s;
  s.Open();
  Req w1(OSD_WRITE, "a", 0, 0, std::string(100, '1')), w2(OSD_WRITE, "a", 10, 0, "2");
  Req t(OSD_TRUNCATE, "a", 50), w3(OSD_WRITE, "a", 60, 0, "3");
  for (Req *q : {&w1, &w2, &t}) {
    ASSERT_EQ(q->Submit(s.o), 0);
    s.Work();
  }
  EXPECT_EQ(s.Commit(1), 1u);
  ASSERT_EQ(w3.Submit(s.o), 0);  // a partial block over one that is in the overlay only
  s.Work();
  EXPECT_EQ(s.Commit(1), 1u);
  Req r(OSD_READ, "a", 0, 100);
  ASSERT_EQ(r.Submit(s.o), 0);
  s.Work();
  s.Commit();
  std::string want = "1111111111"
                     "2" +
                     std::string(39, '1') + std::string(10, '\0') + "3";
  EXPECT_EQ(r.data, want);
  s.Reopen();
  ASSERT_EQ(r.res.size, want.size());
  Req again(OSD_READ, "a", 0, 100);
  EXPECT_EQ(s.Do(again), 0);
  EXPECT_EQ(again.data, want);
}

TEST(OsdCommit, TakesAllThatIsQueuedInOneWrite) {
  Osd s;
  s.c.shards = 2;
  s.c.pg_bits = 3;
  s.Open();
  uint64_t before = s.kv.writes;
  std::deque<Req> all;
  for (int i = 0; i < 20; i++) {
    all.emplace_back(OSD_WRITE, "o" + std::to_string(i), 0, 0, "x");
    ASSERT_EQ(all.back().Submit(s.o), 0);
  }
  s.Work();
  EXPECT_EQ(s.Commit(), 20u);
  EXPECT_EQ(s.kv.writes, before + 1);
  EXPECT_EQ(s.Stats().groups, 1u);
  EXPECT_EQ(s.Stats().group_max, 20u);
  // A group is bounded: 16 MiB, and the one that passes it.
  for (int i = 0; i < 5; i++) {
    all.emplace_back(OSD_WRITE, "o", 0, 0, std::string(9u << 20, 'x'));
    ASSERT_EQ(all.back().Submit(s.o), 0);
  }
  s.Work();
  EXPECT_EQ(s.Commit(), 2u);
  EXPECT_EQ(s.Commit(), 2u);
  EXPECT_EQ(s.Commit(), 1u);
}

TEST(OsdCommit, AFailureReachesThoseItConcernsAndStopsTheRest) {
  Osd s;
  s.c.pg_bits = 1;
  s.Open();
  std::string a = NameIn(0, 1), b = NameIn(1, 1);
  EXPECT_EQ(s.Do(Req(OSD_WRITE, a, 0, 0, "old")), 0);
  EXPECT_EQ(s.Do(Req(OSD_WRITE, b, 0, 0, "old")), 0);
  // In PG 1: a write that commits, and a read behind it, in one group with writes that fail.
  Req ok(OSD_WRITE, b, 0, 0, "new"), fine(OSD_READ, b, 0, 3);
  Req bad(OSD_WRITE, a, 0, 0, "bad"), behind(OSD_READ, a, 0, 3), dup(OSD_WRITE, a, 0, 0, "bad");
  Req queued(OSD_WRITE, b, 0, 0, "too"), late(OSD_WRITE, a, 0, 0, "too"), read(OSD_READ, b, 0, 3);
  bad.Id(5, 1);
  dup.Id(5, 1);
  for (Req *q : {&ok, &bad, &fine, &behind, &dup, &queued}) {
    ASSERT_EQ(q->Submit(s.o), 0);
    s.Work();
  }
  EXPECT_EQ(s.Commit(1), 1u);
  s.kv.before_write = [] { return PGLOG_EIO; };
  uint64_t before = s.kv.writes;
  EXPECT_EQ(s.Commit(4), 4u);
  s.kv.before_write = nullptr;  // it would go on, and must not
  EXPECT_EQ(s.Commit(), 1u);
  EXPECT_EQ(s.kv.writes, before + 1);
  EXPECT_EQ(ok.res.code, 0);
  EXPECT_EQ(fine.res.code, 0);
  EXPECT_EQ(fine.data, "new");
  EXPECT_EQ(bad.res.code, PGLOG_EIO);
  EXPECT_EQ(bad.error(), "the store's own error");
  EXPECT_EQ(bad.res.version, 0u);
  EXPECT_EQ(behind.res.code, PGLOG_EPOISONED);
  EXPECT_EQ(behind.data, "");
  EXPECT_EQ(dup.res.code, PGLOG_EPOISONED);
  EXPECT_EQ(queued.res.code, PGLOG_EPOISONED);
  EXPECT_EQ(s.Do(late), PGLOG_EPOISONED);
  EXPECT_EQ(late.error(), "stopped after a failed commit: the store's own error");
  EXPECT_EQ(s.Do(read), PGLOG_EPOISONED);
  EXPECT_EQ(osd_pg_create(s.o, 0, 4, &s.err), PGLOG_EEXIST);
  EXPECT_EQ(osd_pg_split(s.o, 0, nullptr, &s.err), PGLOG_EPOISONED);
  EXPECT_EQ(osd_list(
                s.o, 0, [](void *, const void *, size_t, uint64_t) { return 0; }, nullptr, &s.err),
            PGLOG_EPOISONED);
  ASSERT_EQ(s.logged.size(), 1u);
  s.Reopen();
  for (auto [name, want] : {std::pair(a, "old"), std::pair(b, "new")}) {
    Req r(OSD_READ, name, 0, 9);
    EXPECT_EQ(s.Do(r), 0);
    EXPECT_EQ(r.data, want);
  }
  Req again(OSD_WRITE, a, 0, 0, "bad");
  EXPECT_EQ(s.Do(again.Id(5, 1)), 0);
  EXPECT_FALSE(again.res.duplicate);
}

TEST(OsdCommit, AFailedReadChangesNothing) {
  Osd s;
  s.Open();
  EXPECT_EQ(s.Do(Req(OSD_WRITE, "a", 0, 0, std::string(5000, 'a'))), 0);
  Req w(OSD_WRITE, "a", 10, 0, "b"), again(OSD_WRITE, "a", 10, 0, "c");
  w.Id(1, 1);
  again.Id(1, 1);
  s.kv.before_get = [] { return PGLOG_EIO; };
  EXPECT_EQ(s.Do(w), PGLOG_EIO);
  EXPECT_EQ(w.error(), "PG 1.0, object a: the store's own error");
  int gets = 0;
  s.kv.before_get = [&] { return ++gets == 2 ? PGLOG_EIO : 0; };  // the block
  Req x(OSD_WRITE, "a", 10, 0, "x");
  EXPECT_EQ(s.Do(x.Id(1, 2)), PGLOG_EIO);
  s.kv.before_get = nullptr;
  EXPECT_EQ(s.Do(again), 0);
  EXPECT_FALSE(again.res.duplicate);
  EXPECT_EQ(again.res.version, 2u);
}

// -------------------------------------------------------------------------------------------------
// Duplicates

TEST(OsdDup, AreAnsweredAfterTheFirstOnesCommit) {
  Osd s;
  s.Open();
  Req first(OSD_WRITE, "a", 0, 0, "1"), dup(OSD_WRITE, "a", 0, 0, "2");
  first.Id(1, 1);
  dup.Id(1, 1);
  ASSERT_EQ(first.Submit(s.o), 0);
  ASSERT_EQ(dup.Submit(s.o), 0);
  s.Work();
  EXPECT_FALSE(first.done || dup.done);
  EXPECT_EQ(s.Commit(1), 1u);
  EXPECT_TRUE(first.done);
  EXPECT_FALSE(dup.done);
  s.Commit();
  EXPECT_TRUE(dup.done && dup.res.duplicate);
  EXPECT_EQ(dup.version(), first.version());
  EXPECT_EQ(first.version(), std::pair(1u, (uint64_t)1));
  Req later(OSD_WRITE, "a", 0, 0, "3"), read(OSD_READ, "a", 0, 9);
  EXPECT_EQ(s.Do(later.Id(1, 1)), 0);
  EXPECT_TRUE(later.res.duplicate);
  EXPECT_EQ(s.Do(read), 0);
  EXPECT_EQ(read.data, "1");
  EXPECT_EQ(s.Stats().duplicates, 2u);
  for (auto [client, tid, incarnation] :
       {std::tuple(1, 2, 1), std::tuple(2, 1, 1), std::tuple(1, 1, 2)}) {
    Req other(OSD_WRITE, "a", 0, 0, "4");
    EXPECT_EQ(s.Do(other.Id((uint64_t)client, (uint64_t)tid, (uint32_t)incarnation)), 0);
    EXPECT_FALSE(other.res.duplicate);
  }
}

TEST(OsdDup, FailedOnesAnswerTheSameAlsoAfterARestart) {
  Osd s;
  s.Open();
  Req failed(OSD_REMOVE, "a"), nameless(OSD_REMOVE, "a");
  EXPECT_EQ(s.Do(failed.Id(1, 1)), PGLOG_ENOTFOUND);
  EXPECT_EQ(failed.error(), "no such object");
  EXPECT_EQ(failed.res.version, 1u);
  EXPECT_EQ(s.Do(nameless), PGLOG_ENOTFOUND);
  EXPECT_EQ(nameless.res.version, 0u);
  EXPECT_EQ(s.Do(Req(OSD_CREATE, "a")), 0);
  for (int i = 0; i < 2; i++) {
    Req again(OSD_REMOVE, "a"), exists(OSD_CREATE, "a");
    EXPECT_EQ(s.Do(again.Id(1, 1)), PGLOG_ENOTFOUND);
    EXPECT_TRUE(again.res.duplicate);
    EXPECT_EQ(again.version(), failed.version());
    EXPECT_EQ(s.Do(exists.Id(1, 2)), PGLOG_EEXIST);
    EXPECT_EQ(exists.res.duplicate, i == 1);
    s.Reopen();
  }
  EXPECT_EQ(s.Pgs()[0].objects, 1u);
  EXPECT_EQ(s.Pgs()[0].entries, 3u);
}

TEST(OsdDup, AreFoundAfterTrimsAndRestartsUntilTheirDupGoes) {
  Osd s;
  s.c.log_keep = 10;
  s.c.log_trim_min = 4;
  s.c.log_trim_max = 6;
  s.c.max_dups = 8;
  s.Open();
  for (uint64_t i = 1; i <= 30; i++) {
    Req w(OSD_WRITE, "a", i, 0, "x");
    EXPECT_EQ(s.Do(w.Id(1, i)), 0);
    EXPECT_EQ(w.res.version, i);
  }
  auto check = [&] {
    struct osd_pg_info pg = s.Pgs()[0];
    EXPECT_EQ(pg.entries, 10u);
    EXPECT_EQ(pg.dups, 8u);
    EXPECT_EQ(pg.tail_version, 20u);
    EXPECT_EQ(pg.head_version, 30u);
    EXPECT_EQ(s.Keys("pglog/1.0/0"), pg.entries);
    EXPECT_EQ(s.Keys("pglog/1.0/dup_"), pg.dups);
    EXPECT_EQ(s.Keys("pglog/1.0/"), pg.entries + pg.dups + 2);
  };
  check();
  s.Reopen();
  check();
  EXPECT_EQ(s.Stats().load_entries, 10u);
  for (uint64_t i : {30, 21, 20, 13}) {
    Req w(OSD_WRITE, "a", i, 0, "y");
    EXPECT_EQ(s.Do(w.Id(1, i)), 0);
    EXPECT_TRUE(w.res.duplicate) << i;
    EXPECT_EQ(w.res.version, i);
  }
  Req forgotten(OSD_WRITE, "a", 12, 0, "y");
  EXPECT_EQ(s.Do(forgotten.Id(1, 12)), 0);
  EXPECT_FALSE(forgotten.res.duplicate);
}

TEST(OsdLog, EntriesSayWhatChangedAndFromWhat) {
  Osd s;
  s.Open();
  for (int op : {OSD_CREATE, OSD_WRITE, OSD_REMOVE, OSD_REMOVE, OSD_WRITE}) {
    Req q(op, "a", 0, 0, op == OSD_WRITE ? "x" : "");
    s.Do(q.Id(9, 100 + (uint64_t)op, 3));
    s.Do(Req(OSD_WRITE, "other"));
  }
  Content c = s.kv.Copy();
  std::vector<std::tuple<int, uint64_t, uint64_t, int>> seen,
      want = {{OSD_LOG_MODIFY, 0, 100 + OSD_CREATE, 0},
              {OSD_LOG_MODIFY, 1, 100 + OSD_WRITE, 0},
              {OSD_LOG_DELETE, 3, 100 + OSD_REMOVE, 0}};
  for (auto &[key, value] : c) {
    struct osd_log_entry e;
    if (key.compare(0, 11, "pglog/1.0/0") != 0)
      continue;
    ASSERT_EQ(
        osd_entry_get({reinterpret_cast<const uint8_t *>(value.data()), value.size()}, &e, &s.err),
        0);
    if (Text(e.object) == "a") {
      seen.push_back({e.op, e.prior.version, e.reqid.tid, e.result});
      EXPECT_EQ(e.reqid.client, 9u);
      EXPECT_EQ(e.reqid.incarnation, 3u);
      EXPECT_GT(e.mtime_ns, 0u);
    }
  }
  // The second remove and write are duplicates by their ids.
  EXPECT_EQ(seen, want);
}

// -------------------------------------------------------------------------------------------------
// Limits

TEST(OsdLimits, PushBack) {
  Osd s;
  s.c.max_ops = 3;
  s.c.max_bytes = 1000;
  s.Open();
  std::deque<Req> all;
  auto submit = [&](size_t bytes) {
    all.emplace_back(OSD_WRITE, "a", 0, 0, std::string(bytes, 'x'));
    struct pglog_error err = {0, ""};
    int rc = osd_submit(s.o, &all.back().r, OPQ_NOWAIT, &err);
    s.err = err;
    return rc;
  };
  EXPECT_EQ(submit(600), 0);
  EXPECT_EQ(submit(401), PGLOG_EBUSY);
  EXPECT_STREQ(s.err.text, "no room for a request of 401 bytes: max_ops is 3, max_bytes is 1000");
  EXPECT_EQ(submit(400), 0);
  EXPECT_EQ(submit(0), 0);
  EXPECT_EQ(submit(0), PGLOG_EBUSY);
  EXPECT_EQ(s.Stats().ops_now, 3u);
  EXPECT_EQ(s.Stats().bytes_now, 1000u);
  osd_drain(s.o);
  EXPECT_EQ(submit(5000), 0);  // alone
  EXPECT_EQ(submit(1), PGLOG_EBUSY);
  osd_drain(s.o);
  EXPECT_EQ(submit(1), 0);
  osd_drain(s.o);
  EXPECT_EQ(s.Stats().ops_now, 0u);
  EXPECT_EQ(s.Stats().bytes_now, 0u);
  EXPECT_EQ(s.Stats().waits, 0u);
  EXPECT_EQ(s.Stats().requests, 5u);
}

TEST(OsdLimits, ACallbackMaySubmitAndNeverWaits) {
  Osd s;
  s.c.max_ops = 1;
  s.Open();
  Req first(OSD_WRITE, "a", 0, 0, "1"), second(OSD_READ, "a", 0, 1), third(OSD_READ, "a", 0, 1);
  std::vector<int> codes;
  struct osd_result res;
  first.then = [&] {
    codes.push_back(second.Submit(s.o));  // in the first one's place
    codes.push_back(third.Submit(s.o));   // would wait for ever
    codes.push_back(osd_do(s.o, &third.r, &res));
    codes.push_back(osd_pg_split(s.o, 0, nullptr, nullptr));
    codes.push_back(osd_pg_create(s.o, 0, 1, nullptr));
    struct osd_pg_info *pgs;
    size_t n;
    codes.push_back(osd_pg_list(s.o, &pgs, &n));
  };
  EXPECT_EQ(s.Do(first), 0);
  EXPECT_EQ(codes, (std::vector<int>{0, PGLOG_EBUSY, PGLOG_EINVAL, PGLOG_EINVAL, PGLOG_EINVAL,
                                     PGLOG_EINVAL}));
  EXPECT_STREQ(res.error.text, "a callback must not wait");
  osd_drain(s.o);
  EXPECT_TRUE(second.done);
  EXPECT_EQ(second.data, "1");
  EXPECT_FALSE(third.done);
}

TEST(OsdErrors, NameWhatIsWrongWithARequest) {
  Osd s;
  s.Open();
  auto bad = [&](Req q, std::function<void(struct osd_request *)> change, const std::string &want) {
    change(&q.r);
    struct pglog_error err = {0, ""};
    EXPECT_EQ(osd_submit(s.o, &q.r, 0, &err), PGLOG_EINVAL);
    EXPECT_EQ("request: " + want, err.text);
    EXPECT_EQ(osd_submit(s.o, &q.r, 0, nullptr), PGLOG_EINVAL);
    struct osd_result res;
    EXPECT_EQ(osd_do(s.o, &q.r, &res), PGLOG_EINVAL);
    EXPECT_EQ("request: " + want, res.error.text);
  };
  auto none = [](struct osd_request *) {};
  bad(
      {OSD_READ, "a"}, [](struct osd_request *r) { r->op = OSD_OPS; }, "op is 8, the limit is 7");
  bad(
      {OSD_READ, "a"}, [](struct osd_request *r) { r->op = -1; },
      "op is 4294967295, the limit is 7");
  bad(
      {OSD_READ, "a"}, [](struct osd_request *r) { r->prio = 2; }, "prio is 2, the limit is 1");
  bad({OSD_READ, ""}, none, "the object's name is empty");
  bad(
      {OSD_READ, "a"}, [](struct osd_request *r) { r->name = nullptr; },
      "the object's name is empty");
  bad({OSD_READ, std::string(2049, 'x')}, none, "name_size is 2049, the limit is 2048");
  for (int op : {OSD_READ, OSD_WRITE, OSD_ZERO, OSD_TRUNCATE})
    bad({op, "a", (1ull << 32) + 1}, none, "offset is 4294967297, the limit is 4294967296");
  for (int op : {OSD_READ, OSD_WRITE, OSD_WRITE_FULL})
    bad(
        {op, "a"}, [](struct osd_request *r) { r->length = (64u << 20) + 1; },
        "length is 67108865, the limit is 67108864");
  bad({OSD_ZERO, "a", 0, (1ull << 32) + 1}, none, "length is 4294967297, the limit is 4294967296");
  bad({OSD_WRITE, "a", 1ull << 32, 0, "x"}, none,
      "offset + length is 4294967297, the limit is 4294967296");
  for (int op : {OSD_WRITE, OSD_WRITE_FULL})
    bad(
        {op, "a", 0, 0, "x"}, [](struct osd_request *r) { r->data = nullptr; },
        "data is NULL, length is 1");
  // Not used: not looked at.
  EXPECT_EQ(s.Do(Req(OSD_CREATE, "a", UINT64_MAX, UINT64_MAX)), 0);
  EXPECT_EQ(s.Do(Req(OSD_STAT, "a", UINT64_MAX, UINT64_MAX)), 0);
  EXPECT_EQ(s.Stats().ops_now, 0u);
  EXPECT_EQ(s.Stats().requests, 2u);
  for (int op = 0; op < OSD_OPS; op++)
    EXPECT_NE(osd_op_str(op), nullptr);
  EXPECT_EQ(osd_op_str(OSD_OPS), nullptr);
  EXPECT_EQ(osd_op_str(-1), nullptr);
  EXPECT_STREQ(osd_stage_str(OSD_GROUPED), "grouped");
  EXPECT_EQ(osd_stage_str(OSD_STAGES), nullptr);
}

TEST(OsdErrors, NameWhatIsWrongWithTheConfiguration) {
  auto bad = [&](std::function<void(struct osd_config *)> change, const std::string &want) {
    Osd s;
    change(&s.c);
    EXPECT_EQ(s.TryOpen(), PGLOG_EINVAL);
    EXPECT_EQ("osd: " + want, s.err.text);
    EXPECT_EQ(s.o, nullptr);
    EXPECT_EQ(s.kv.closes, 1u);
  };
  bad([](struct osd_config *c) { c->store = 2; }, "store is 2, it must be 0 to 1");
  bad([](struct osd_config *c) { c->pg_bits = 17; }, "pg_bits is 17, it must be 0 to 16");
  bad([](struct osd_config *c) { c->queue = 3; }, "queue is 3, it must be 0 to 2");
  bad([](struct osd_config *c) { c->shards = 1025; }, "shards is 1025, it must be 0 to 1024");
  bad([](struct osd_config *c) { c->threads = 65; }, "threads is 65, it must be 0 to 64");
  bad([](struct osd_config *c) { c->load_threads = 65; }, "load_threads is 65, it must be 0 to 64");
  bad([](struct osd_config *c) { c->max_ops = (1u << 20) + 1; },
      "max_ops is 1048577, it must be 0 to 1048576");
  bad([](struct osd_config *c) { c->slow_keep = 1001; }, "slow_keep is 1001, it must be 0 to 1000");
  osd_close(nullptr);
}

// -------------------------------------------------------------------------------------------------
// Loading

namespace {
std::string Value(std::initializer_list<int> bytes) {
  return std::string(bytes.begin(), bytes.end());
}
}  // namespace

TEST(OsdLoad, DamageIsNamed) {
  Osd s;
  s.c.pg_bits = 1;
  s.Open();
  std::string a = NameIn(0, 1);
  for (uint64_t i = 1; i <= 3; i++)
    EXPECT_EQ(s.Do(Req(OSD_WRITE, a, 0, 0, "x").Id(1, i)), 0);
  s.Close();
  const Content good = s.kv.data;
  const std::string log = "pglog/1.0/", v = "0000000001.0000000000000000000";
  auto refused = [&](std::function<void(Content &)> damage, const std::string &want,
                     int code = PGLOG_ECORRUPT) {
    for (uint32_t threads : {1, 4}) {
      s.kv.data = good;
      damage(s.kv.data);
      s.c.load_threads = threads;
      uint64_t closes = s.kv.closes;
      EXPECT_EQ(s.TryOpen(), code) << want;
      EXPECT_EQ(want, s.err.text);
      EXPECT_EQ(s.kv.closes, closes + 1);
      s.err = {0, ""};
    }
  };
  refused([&](Content &c) { c.erase(log + v + "3"); },
          "PG 1.0: the log ends with 1.2, the last update of _fastinfo is 1.3");
  refused([&](Content &c) { c[log + v + "4"] = c[log + v + "3"]; },
          "PG 1.0: the log ends with 1.4, the last update of _fastinfo is 1.3");
  refused([&](Content &c) { c.erase(log + "_info"); }, "PG 1.0: _info is missing");
  refused([&](Content &c) { c.erase(log + "_fastinfo"); }, "PG 1.0: _fastinfo is missing");
  refused([&](Content &c) { c[log + "_info"].resize(2); },
          "PG 1.0: _info record of 2 bytes: it is cut off at offset 2");
  refused([&](Content &c) { c[log + "_fastinfo"] = ""; }, "PG 1.0: _fastinfo record is empty");
  refused([&](Content &c) { c[log + v + "2"][0] = 7; },
          "PG 1.0: log entry has format 7, this library knows 1", PGLOG_ENOTSUP);
  refused([&](Content &c) { c[log + v + "2"].pop_back(); },
          "PG 1.0: log entry of 25 bytes: it is cut off at offset 24");
  refused(
      [&](Content &c) {
        c[log + "_info"] = Value({1, 1, 2, 1, 1, 1});
      },
      "PG 1.0: log entry 1.1 is not above 1.2");
  refused(
      [&](Content &c) {
        c[log + "dup_" + v + "3"] = Value({1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
      },
      "PG 1.0: the log's tail, for a dup record 0.0 is not above 1.3");
  refused([&](Content &c) { c[log + "what"] = ""; }, "PG 1.0: unknown record what");
  refused(
      [&](Content &c) {
        c[log + "_info"] = Value({1, 0, 0, 1, 17, 1});
      },
      "PG 1.0: _info has 17 bits, which does not fit the id");
  refused(
      [&](Content &c) {
        c["pglog/1.1/_info"] = Value({1, 0, 0, 1, 0, 1});
      },
      "PG 1.1: _info has 0 bits, which does not fit the id");
  refused(
      [&](Content &c) {
        c[log + "_info"] = Value({1, 0, 0, 1, 1, 0});
      },
      "PG 1.0: the log ends in epoch 1, _info has 0");
  refused(
      [&](Content &c) {
        c[log + "_info"] = Value({1, 0, 0, 1, 0, 1});
      },
      "PGs 1.0 and 1.1 have hashes in common");
  refused([&](Content &c) { c["pglog/01.5/_info"] = ""; }, "key pglog/01.5/_info is no PG's");
  refused([&](Content &c) { c["pglog/1.0A/_info"] = ""; }, "key pglog/1.0A/_info is no PG's");
  refused([&](Content &c) { c["pglog/1.00/_info"] = ""; }, "key pglog/1.00/_info is no PG's");
  refused([&](Content &c) { c["pglog/x"] = ""; }, "key pglog/x is no PG's");
  refused([&](Content &c) { c.erase(log + "_info"), c.erase(log + "_fastinfo"); },
          "PG 1.0: _info is missing");
  refused(
      [&](Content &c) {
        c["osd/super"] = Value({1, 3, 0, 0, 0});
      },
      "there are 2 PGs, osd/super says 3");
  refused(
      [&](Content &c) {
        c["osd/super"] = Value({1, 2, 0, 0});
      },
      "osd/super has 4 bytes, it must have 5");
  refused([&](Content &c) { c["osd/super"] = ""; }, "osd/super has 0 bytes, it must have 5");
  refused([&](Content &c) { c["osd/super"][0] = 2; },
          "osd/super has format 2, this library knows 1", PGLOG_ENOTSUP);
  refused([&](Content &c) { c.erase("osd/super"), c.erase(c.begin(), c.lower_bound("osd")); },
          "there is no osd/super, but a key pglog/1.0/" + v + "1");
  s.kv.data = good;
  s.Open();
  EXPECT_EQ(s.Pgs()[0].entries, 3u);
}

TEST(OsdLoad, DamagedObjectsAreNamedAndTheOthersStay) {
  Osd s(false);
  s.Open();
  for (const char *name : {"a", "b"})
    EXPECT_EQ(osd_write_full(s.o, name, std::string(30000, 'x').data(), 30000, nullptr), 0);
  auto key = [&](const char *kind) {
    for (auto &e : s.kv.data)
      if (e.first.compare(0, 2, kind) == 0 && e.first.find("a", 6) != std::string::npos)
        return e.first;
    return std::string();
  };
  const Content good = s.kv.data;
  auto refused = [&](const char *kind, const std::string &value, const std::string &want,
                     int code = PGLOG_ECORRUPT) {
    s.kv.data = good;
    s.kv.data[key(kind)] = value;
    for (uint64_t length : {1, 30000}) {
      Req r(OSD_READ, "a", 0, length), ok(OSD_READ, "b", 0, length);
      EXPECT_EQ(s.Do(r), code);
      EXPECT_EQ("PG 1.0, object a: " + want, r.error());
      EXPECT_EQ(s.Do(ok), 0);
    }
    Req w(OSD_WRITE, "a", 1, 0, "x");
    EXPECT_EQ(s.Do(w), code);
  };
  refused("b/", "", "block 0 has 0 bytes, it must have 1 to 4096");
  refused("b/", std::string(4097, 'x'), "block 0 has 4097 bytes, it must have 1 to 4096");
  refused("o/", "", "its record is empty");
  refused("o/", Value({2}), "its record has format 2, this library knows 1", PGLOG_ENOTSUP);
  refused("o/", Value({1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0}), "its record of 11 bytes is malformed");
  refused("o/", Value({1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}),
          "its record of 13 bytes is malformed");
  refused("o/", Value({1, 0x81, 0x80, 0x80, 0x80, 0x10, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0}),
          "its record has a size of 4294967297, the limit is 4294967296");
  EXPECT_EQ(osd_list(
                s.o, 0, [](void *, const void *, size_t, uint64_t) { return 0; }, nullptr, &s.err),
            PGLOG_ECORRUPT);
  EXPECT_STREQ(s.err.text, "object a has a malformed record");
}

// -------------------------------------------------------------------------------------------------
// PGs

TEST(OsdPg, SplitMovesLogAndObjectsAndForgetsNoRequest) {
  Osd s;
  s.c.log_keep = 20;
  s.c.log_trim_min = 5;
  s.c.max_dups = 30;
  s.Open();
  std::deque<Req> all;
  Content want;
  for (uint64_t i = 0; i < 50; i++) {
    std::string name = "o" + std::to_string(i % 17);
    all.emplace_back(i % 11 == 10 ? OSD_CREATE : OSD_WRITE_FULL, name, 0, 0, std::to_string(i))
        .Id(1, i);
    int rc = s.Do(all.back());
    if (rc == 0 && all.back().r.op == OSD_WRITE_FULL)
      want[name] = std::to_string(i);
    else if (rc == 0)
      want[name];
  }
  uint32_t child = 99;
  struct osd_pg_info before = s.Pgs()[0];
  ASSERT_EQ(osd_pg_split(s.o, 0, &child, &s.err), 0) << s.err.text;
  EXPECT_EQ(child, 1u);
  ASSERT_EQ(osd_pg_split(s.o, 1, &child, &s.err), 0) << s.err.text;
  EXPECT_EQ(child, 3u);
  auto same = [&] {
    std::vector<struct osd_pg_info> pgs = s.Pgs();
    ASSERT_EQ(pgs.size(), 3u);
    EXPECT_EQ(pgs[0].bits, 1u);
    EXPECT_EQ(pgs[1].bits, 2u);
    EXPECT_EQ(pgs[2].id, 3u);
    uint64_t objects = 0, entries = 0;
    for (struct osd_pg_info &pg : pgs) {
      objects += pg.objects;
      entries += pg.entries;
      EXPECT_EQ(pg.dups, before.dups);
      EXPECT_EQ(pg.tail_version, before.tail_version);
      EXPECT_EQ(s.Keys("pglog/1." + std::to_string(pg.id) + "/"), pg.entries + pg.dups + 2);
    }
    EXPECT_EQ(objects, want.size());
    EXPECT_EQ(entries, before.entries);
    for (size_t i = 51 - before.entries - before.dups; i < 50; i++) {
      Req again(all[i].r.op, all[i].name, 0, 0, "again");
      EXPECT_EQ(s.Do(again.Id(1, i)), all[i].res.code);
      EXPECT_TRUE(again.res.duplicate) << i;
      EXPECT_EQ(again.version(), all[i].version());
    }
    for (auto &[name, bytes] : want) {
      Req r(OSD_READ, name, 0, 99);
      EXPECT_EQ(s.Do(r), 0);
      EXPECT_EQ(r.data, bytes);
    }
    std::map<std::string, uint64_t> sizes;
    for (auto &[name, bytes] : want)
      sizes[name] = bytes.size();
    EXPECT_EQ(ListAll(s.o), sizes);
  };
  ASSERT_NO_FATAL_FAILURE(same());
  s.Reopen();
  ASSERT_NO_FATAL_FAILURE(same());
  // Both go on in a later epoch.
  for (uint32_t id : {0, 1, 3}) {
    Req w(OSD_WRITE, NameIn(id, id ? 2 : 1), 0, 0, "x");
    EXPECT_EQ(s.Do(w), 0);
    EXPECT_EQ(w.res.epoch, id ? 3u : 2u);
    EXPECT_GT(w.res.version, before.tail_version);
  }
  s.Reopen();
}

TEST(OsdPg, CreateAndDelete) {
  Osd s;
  s.c.pg_bits = 1;
  s.Open();
  std::string a = NameIn(0, 2), b = NameIn(2, 2), other = NameIn(1, 1);
  for (const std::string &name : {a, b, other})
    EXPECT_EQ(s.Do(Req(OSD_WRITE, name, 0, 0, std::string(9000, 'x')).Id(1, 1)), 0);
  auto code = [&](int rc, const std::string &text) {
    EXPECT_EQ(text, s.err.text);
    s.err = {0, ""};
    return rc;
  };
  EXPECT_EQ(code(osd_pg_create(s.o, 0, 17, &s.err), "PG: bits is 17, the limit is 16"),
            PGLOG_EINVAL);
  EXPECT_EQ(code(osd_pg_create(s.o, 4, 2, &s.err), "PG: id is 4, the limit for 2 bits is 3"),
            PGLOG_EINVAL);
  EXPECT_EQ(code(osd_pg_create(s.o, 0, 0, &s.err), "PG 1.0: its hashes, or some, are PG 1.0's"),
            PGLOG_EEXIST);
  EXPECT_EQ(code(osd_pg_create(s.o, 3, 2, &s.err), "PG 1.3: its hashes, or some, are PG 1.1's"),
            PGLOG_EEXIST);
  EXPECT_EQ(code(osd_pg_delete(s.o, 2, &s.err), "no PG 1.2"), PGLOG_ENOTFOUND);
  EXPECT_EQ(code(osd_pg_split(s.o, 2, nullptr, &s.err), "no PG 1.2"), PGLOG_ENOTFOUND);
  EXPECT_EQ(osd_list(
                s.o, 2, [](void *, const void *, size_t, uint64_t) { return 0; }, nullptr, &s.err),
            PGLOG_ENOTFOUND);
  s.err = {0, ""};
  EXPECT_EQ(osd_pg_delete(s.o, 0, &s.err), 0);
  EXPECT_EQ(s.Keys("pglog/1.0/"), 0u);
  EXPECT_EQ(s.Keys("o/"), 1u);
  EXPECT_EQ(s.Keys("b/"), 3u);
  Req lost(OSD_READ, a, 0, 1);
  EXPECT_EQ(lost.Submit(s.o), PGLOG_ENOTFOUND);
  EXPECT_EQ(s.Stats().ops_now, 0u);
  s.Reopen();
  EXPECT_EQ(s.Pgs().size(), 1u);
  EXPECT_EQ(osd_pg_create(s.o, 2, 2, &s.err), 0) << s.err.text;
  EXPECT_EQ(lost.Submit(s.o), PGLOG_ENOTFOUND);
  Req fresh(OSD_READ, b, 0, 1), w(OSD_WRITE, b, 0, 0, "new");
  EXPECT_EQ(s.Do(fresh), PGLOG_ENOTFOUND);
  EXPECT_EQ(s.Do(w.Id(1, 1)), 0);
  EXPECT_FALSE(w.res.duplicate);
  for (uint32_t id : {1, 2})
    EXPECT_EQ(osd_pg_delete(s.o, id, &s.err), 0);
  EXPECT_EQ(s.Pgs().size(), 0u);
  s.Reopen();
  EXPECT_EQ(s.Pgs().size(), 0u);
  EXPECT_EQ(s.kv.data.size(), 1u);  // osd/super
  // 16 bits, and no further.
  EXPECT_EQ(osd_pg_create(s.o, 0xffff, 16, &s.err), 0) << s.err.text;
  EXPECT_EQ(
      code(osd_pg_split(s.o, 0xffff, nullptr, &s.err), "PG 1.ffff has 16 bits, the limit is 16"),
      PGLOG_ETOOBIG);
  EXPECT_EQ(s.Do(Req(OSD_WRITE, NameIn(0xffff, 16), 0, 0, "x")), 0);
  EXPECT_EQ(ListAll(s.o).size(), 1u);  // the range ends with the last hash
}

TEST(OsdPg, AFailedSplitOrCreateChangesNothing) {
  for (bool split : {true, false}) {
    Osd s;
    s.Open();
    EXPECT_EQ(s.Do(Req(OSD_WRITE, "a", 0, 0, "x")), 0);
    if (!split) {
      EXPECT_EQ(osd_pg_delete(s.o, 0, &s.err), 0);
    }
    Content before = s.kv.data;
    s.kv.before_write = [] { return PGLOG_EIO; };
    EXPECT_EQ(split ? osd_pg_split(s.o, 0, nullptr, &s.err) : osd_pg_create(s.o, 1, 1, &s.err),
              PGLOG_EIO);
    EXPECT_STREQ(s.err.text, "the store's own error");
    EXPECT_EQ(s.kv.data, before);
    EXPECT_EQ(s.Pgs().size(), split ? 1u : 0u);
    s.kv.before_write = nullptr;
    s.Reopen();
    EXPECT_EQ(s.Pgs().size(), split ? 1u : 0u);
  }
}

TEST(OsdPg, AListMayBeEndedAndItsFunctionMaySubmit) {
  Osd s(false);
  s.Open();
  for (const char *name : {"a", "b", "c"})
    EXPECT_EQ(osd_write(s.o, name, "x", 1, 0, nullptr), 0);
  EXPECT_EQ(osd_list(
                s.o, 0,
                [](void *arg, const void *name, size_t size, uint64_t) {
                  std::string n(static_cast<const char *>(name), size);
                  EXPECT_EQ(osd_remove(static_cast<Osd *>(arg)->o, n.c_str(), nullptr), 0);
                  return n == "b" ? 7 : 0;
                },
                &s, &s.err),
            7);
  EXPECT_EQ(ListAll(s.o), (std::map<std::string, uint64_t>{{"c", 1}}));
}

// -------------------------------------------------------------------------------------------------
// Dumps and the watchdog

namespace {
struct Json {
  json_t *j;
  explicit Json(char *text) : j(json_loads(text ? text : "", 0, nullptr)) { free(text); }
  ~Json() { json_decref(j); }
  json_t *At(size_t i) { return json_array_get(json_object_get(j, "requests"), i); }
  size_t Size() { return json_array_size(json_object_get(j, "requests")); }
  std::string Str(size_t i, const char *key) {
    const char *s = json_string_value(json_object_get(At(i), key));
    return s ? s : "none";
  }
};
}  // namespace

TEST(OsdDump, ShowsRequestsAndTheirStages) {
  Osd s;
  s.c.slow_keep = 2;
  s.Open();
  Req w(OSD_WRITE, std::string("a %\0", 4), 0, 0, "x"), r(OSD_READ, "b", 0, 1);
  w.Id(77, 88, 99);
  ASSERT_EQ(w.Submit(s.o), 0);
  s.Work();
  ASSERT_EQ(r.Submit(s.o), 0);
  {
    Json d(osd_dump_in_flight(s.o));
    ASSERT_EQ(d.Size(), 2u);
    EXPECT_EQ(d.Str(0, "op"), "write");
    EXPECT_EQ(d.Str(0, "object"), "a%20%25%00");
    EXPECT_EQ(d.Str(0, "pg"), "1.0");
    EXPECT_EQ(d.Str(0, "stage"), "run");
    EXPECT_EQ(json_integer_value(json_object_get(d.At(0), "client")), 77);
    EXPECT_EQ(json_integer_value(json_object_get(d.At(0), "tid")), 88);
    EXPECT_EQ(json_integer_value(json_object_get(d.At(0), "incarnation")), 99);
    EXPECT_EQ(d.Str(1, "op"), "read");
    EXPECT_EQ(d.Str(1, "stage"), "submitted");
    json_t *at = json_object_get(d.At(0), "at_ns");
    EXPECT_EQ(json_object_size(at), 2u);
    EXPECT_GE(json_integer_value(json_object_get(at, "run")),
              json_integer_value(json_object_get(at, "taken")));
  }
  osd_drain(s.o);
  for (int i = 0; i < 20; i++)
    s.Do(Req(OSD_WRITE, "c", 0, 0, "x"));
  Json none(osd_dump_in_flight(s.o)), slow(osd_dump_slow(s.o));
  EXPECT_EQ(none.Size(), 0u);
  ASSERT_EQ(slow.Size(), 2u);
  EXPECT_EQ(slow.Str(0, "stage"), "answered");
  EXPECT_GE(json_integer_value(json_object_get(slow.At(0), "age_ns")),
            json_integer_value(json_object_get(slow.At(1), "age_ns")));
  EXPECT_GT(json_integer_value(json_object_get(slow.At(1), "age_ns")), 0);
}

// Each of them is submitted after the one before, and answered before it.
TEST(OsdDump, TheSlowestComeFirst) {
  Osd s;
  s.c.slow_keep = 2;
  s.c.pg_bits = 2;
  s.c.queue = OPQ_SHARDED;
  s.c.shards = 4;
  s.Open();
  std::deque<Req> all;
  for (uint32_t pg = 0; pg < 4; pg++) {
    all.emplace_back(OSD_READ, NameIn(pg, 2), 0, 1);
    ASSERT_EQ(all.back().Submit(s.o), 0);
  }
  for (uint32_t shard : {3, 2, 1, 0}) {
    osd_step_worker(s.o, shard);
    EXPECT_TRUE(all[shard].done);
  }
  Json slow(osd_dump_slow(s.o));
  ASSERT_EQ(slow.Size(), 2u);
  EXPECT_EQ(slow.Str(0, "pg"), "1.0");
  EXPECT_EQ(slow.Str(0, "object"), all[0].name);
  EXPECT_EQ(slow.Str(1, "pg"), "1.1");
  EXPECT_GE(json_integer_value(json_object_get(slow.At(0), "age_ns")),
            json_integer_value(json_object_get(slow.At(1), "age_ns")));
}

TEST(OsdDump, TheWatchdogReportsAStuckRequestOnce) {
  Osd s(false);
  s.c.watchdog_ms = 1;
  s.c.shards = 2;
  s.c.pg_bits = 1;
  std::mutex m;
  std::condition_variable cv;
  struct Log {
    std::mutex &m;
    std::condition_variable &cv;
    std::vector<std::string> text;
  } log{m, cv, {}};
  s.c.log_arg = &log;
  s.c.log = [](void *arg, const char *text) {
    Log *l = static_cast<Log *>(arg);
    std::lock_guard<std::mutex> g(l->m);
    l->text.push_back(text);
    l->cv.notify_all();
  };
  s.Open();
  auto stuck = [&](Req &q, const std::string &how, size_t n) {
    Gate gate;
    std::atomic<bool> on{true};
    auto hook = [&] {
      if (on.exchange(false))
        gate.Wait();
      return 0;
    };
    (how == "running" ? s.kv.before_get : s.kv.before_write) = hook;
    EXPECT_EQ(q.Submit(s.o), 0);
    gate.AwaitWaiters(1);
    std::unique_lock<std::mutex> l(m);
    cv.wait(l, [&] { return log.text.size() >= n; });
    std::string want = "stuck: write of object " + q.name + ", " + how + " for ";
    EXPECT_EQ(log.text[n - 1].substr(0, want.size()), want);
    l.unlock();
    gate.Open();
    osd_drain(s.o);
  };
  Req a(OSD_WRITE, "a", 0, 0, "x"), b(OSD_WRITE, "b", 0, 0, "x");
  stuck(a, "running", 1);
  s.kv.before_get = nullptr;
  stuck(b, "being written", 2);
  s.kv.before_write = nullptr;
  EXPECT_EQ(s.Stats().stuck, 2u);
  EXPECT_EQ(a.res.code, 0);
}

// -------------------------------------------------------------------------------------------------
// A seeded schedule: one thread takes the part of clients, workers and committer in random order

namespace {

// Runs a schedule and crashes in it a few times; a request that was not answered is sent again.
class Schedule {
 public:
  // What happened: answers and splits, in order. The same seed gives the same one.
  std::string trace;

  explicit Schedule(uint64_t seed) : rnd_(seed) {
    rnd_.objects = 6;
    s_.c.queue = (int)rnd_(OPQ_KINDS);
    s_.c.shards = 1 + (uint32_t)rnd_(3);
    s_.c.threads = 1 + (uint32_t)rnd_(3);
    s_.c.pg_bits = (uint32_t)rnd_(3);
    s_.c.log_keep = 20;
    s_.c.log_trim_min = 5;
    s_.c.max_dups = 1000;
  }
  void Run() {
    s_.Open();
    for (int round = 0; round < 4; round++) {
      for (int i = 0; i < 150; i++)
        ASSERT_NO_FATAL_FAILURE(Step());
      ASSERT_NO_FATAL_FAILURE(Crash());
    }
    osd_drain(s_.o);
    ASSERT_NO_FATAL_FAILURE(CheckAnswers());
    ASSERT_NO_FATAL_FAILURE(ExpectContent(s_.o, model_.objects));
  }

 private:
  struct Sent {
    std::unique_ptr<Req> q;
    int rc;
    std::string read;
  };
  Osd s_;
  Random rnd_;
  Model model_;
  std::deque<Sent> sent_;  // since the last crash, or not answered before it
  uint64_t tid_ = 0;
  // By object: what it was after each change; which of them has been answered.
  std::map<std::string, std::vector<std::string>> past_;
  std::map<std::string, size_t> answered_;

  std::string State(const std::string &name) {
    auto it = model_.objects.find(name);
    return it == model_.objects.end() ? "none" : "=" + it->second;
  }
  void Send() {
    Sent n;
    n.q = rnd_.Next();
    Req *q = n.q.get();
    if (past_[q->name].empty())
      past_[q->name].push_back("none");
    n.rc = RunModel(&model_, *q, &n.read);
    past_[q->name].push_back(State(q->name));
    size_t version = past_[q->name].size() - 1;
    q->Id(5, ++tid_);
    q->r.prio = (int)(osd_hash(q->name.data(), q->name.size()) >> 8 & 1);
    q->then = [this, q, version] {
      answered_[q->name] = version;
      trace += std::to_string(q->r.tid) + ":" + std::to_string(q->res.code) + "@" +
               std::to_string(q->res.version) + " ";
    };
    ASSERT_EQ(q->Submit(s_.o), 0);
    sent_.push_back(std::move(n));
  }
  void Step() {
    uint64_t what = rnd_(100);
    if (what < 30)
      Send();
    else if (what < 75)
      osd_step_worker(s_.o, (uint32_t)rnd_(Workers()));
    else if (what < 99)
      s_.Commit(1 + (uint32_t)rnd_(5));
    else
      Split();
  }
  uint32_t Workers() { return s_.c.shards * s_.c.threads; }
  void Split() {
    std::vector<struct osd_pg_info> pgs = s_.Pgs();
    uint32_t child, id = pgs[rnd_(pgs.size())].id;
    ASSERT_EQ(osd_pg_split(s_.o, id, &child, &s_.err), 0) << s_.err.text;
    trace += "split " + std::to_string(child) + " ";
  }
  void CheckAnswers() {
    for (Sent &n : sent_) {
      ASSERT_TRUE(n.q->done);
      ASSERT_EQ(n.q->res.code, n.rc) << osd_op_str(n.q->r.op) << " " << n.q->error();
      ASSERT_TRUE(n.q->data == n.read) << n.q->name;
    }
  }
  // What is in the store now is what a new process finds. Each object is as it was after its last
  // answered request, or after a later one.
  void Crash() {
    Content disk = s_.kv.data;
    std::deque<Sent> old;
    std::map<std::string, size_t> answered = answered_;
    for (Sent &n : sent_)
      if (n.q->done) {
        ASSERT_EQ(n.q->res.code, n.rc) << osd_op_str(n.q->r.op) << " " << n.q->error();
        ASSERT_TRUE(n.q->data == n.read) << osd_op_str(n.q->r.op) << " of " << n.q->name;
      } else {
        old.push_back(std::move(n));
      }
    std::string before = trace;
    s_.Close();  // answers what nobody will hear
    trace = before + "crash ";
    answered_ = answered;
    s_.kv.data = disk;
    s_.Open();
    for (auto &[name, past] : past_) {
      Req r(OSD_READ, name, 0, 1 << 20);
      int rc = s_.Do(r);
      std::string is = rc ? "none" : "=" + r.data;
      bool found = false;
      for (size_t i = answered[name]; i < past.size(); i++)
        found = found || past[i] == is;
      ASSERT_TRUE(found) << name << " is older than what was answered";
    }
    sent_.clear();
    for (Sent &n : old)
      SendAgain(n);
  }
  void SendAgain(Sent &n) {
    Sent again;
    again.q =
        std::make_unique<Req>(n.q->r.op, n.q->name, n.q->r.offset, n.q->r.length, n.q->payload);
    again.q->Id(5, n.q->r.tid);
    again.q->r.prio = n.q->r.prio;
    again.q->then = [this, q = again.q.get()] {
      trace += "again " + std::to_string(q->r.tid) + " ";
    };
    again.rc = n.rc;
    again.read = n.read;
    ASSERT_EQ(again.q->Submit(s_.o), 0);
    sent_.push_back(std::move(again));
  }
};

}  // namespace

TEST(OsdSchedule, EveryRequestRunsOnceWhateverTheOrder) {
  for (uint64_t seed = 1; seed <= 40; seed++) {
    Schedule a(seed);
    a.Run();
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
}

TEST(OsdSchedule, IsTheSameForTheSameSeed) {
  Schedule a(3), b(3), c(4);
  a.Run();
  b.Run();
  c.Run();
  EXPECT_EQ(a.trace, b.trace);
  EXPECT_NE(a.trace, c.trace);
  EXPECT_GT(a.trace.size(), 500u);
}

// -------------------------------------------------------------------------------------------------
// With all threads

namespace {
struct Shape {
  int queue;
  uint32_t shards, threads;
  bool inline_run;
};
std::string ShapeName(const testing::TestParamInfo<Shape> &i) {
  return std::string(opq_kind_str(i.param.queue)) + "_" + std::to_string(i.param.shards) + "x" +
         std::to_string(i.param.threads) + (i.param.inline_run ? "_inline" : "");
}

class OsdThreads : public testing::TestWithParam<Shape> {
 protected:
  Osd s_{false};
  void SetUp() override {
    s_.c.queue = GetParam().queue;
    s_.c.shards = GetParam().shards;
    s_.c.threads = GetParam().threads;
    s_.c.inline_run = GetParam().inline_run;
  }
};
}  // namespace

// Many clients on few PGs, with limits that they hit: each is answered once, its requests for an
// object in order, and a PG's changes in the order of their versions.
TEST_P(OsdThreads, AnswersComeInPgOrder) {
  constexpr int kClients = 4, kOps = 300;
  s_.c.pg_bits = 2;
  s_.c.max_ops = 16;
  s_.c.max_bytes = 20000;
  s_.Open();
  std::mutex m;
  std::map<uint32_t, uint64_t> last;  // by PG
  std::atomic<int> broken{0};
  std::vector<std::deque<Req>> all(kClients);
  std::vector<std::thread> threads;
  for (int c = 0; c < kClients; c++)
    threads.emplace_back([&, c] {
      for (int i = 0; i < kOps; i++) {
        int op = i % 7 == 6 ? OSD_READ : i % 11 == 10 ? OSD_REMOVE : OSD_WRITE;
        std::string name = "c" + std::to_string(c) + "-" + std::to_string(i % 5);
        all[c].emplace_back(op, name, 0, 9, std::to_string(i));
        Req *q = &all[c].back();
        q->Id((uint64_t)c + 1, (uint64_t)i);
        q->then = [&, q] {
          std::lock_guard<std::mutex> l(m);
          if (q->res.version) {
            uint64_t &v = last[osd_hash(q->name.data(), q->name.size()) & 3];
            broken += q->res.version <= v;
            v = q->res.version;
          }
        };
        if (osd_submit(s_.o, &q->r, 0, nullptr) != 0)
          broken++;
      }
    });
  for (std::thread &t : threads)
    t.join();
  osd_drain(s_.o);
  EXPECT_EQ(broken, 0);
  for (auto &ops : all) {
    Model model;
    std::map<std::string, uint64_t> order;
    for (Req &q : ops) {
      std::string read;
      ASSERT_TRUE(q.done);
      ASSERT_EQ(q.res.code, RunModel(&model, q, &read)) << q.error();
      ASSERT_EQ(q.data, read);
      ASSERT_LT(order[q.name], q.order);
      order[q.name] = q.order;
    }
  }
  struct osd_stats st = s_.Stats();
  EXPECT_EQ(st.requests, (uint64_t)kClients * kOps);
  EXPECT_EQ(st.ops_now, 0u);
  EXPECT_EQ(st.bytes_now, 0u);
  EXPECT_EQ(st.reads + st.writes, st.requests);
}

// Requests for PGs that are split, listed, deleted and made again meanwhile. Names of the clients
// are of PGs that are only split.
TEST_P(OsdThreads, PgsChangeUnderLoad) {
  constexpr int kClients = 3;
  s_.c.pg_bits = 1;
  s_.c.max_ops = 32;
  s_.Open();
  std::atomic<bool> over{false};
  std::atomic<int> broken{0};
  std::vector<std::thread> threads;
  std::vector<Content> want(kClients);
  for (int c = 0; c < kClients; c++)
    threads.emplace_back([&, c] {
      std::deque<Req> all;
      std::map<std::string, uint64_t> last;
      for (int i = 0; !over || i < 50; i++) {
        std::string name = NameIn(0, 1, c * 4 + i % 4);
        all.emplace_back(OSD_WRITE_FULL, name, 0, 0, std::to_string(i));
        want[c][name] = std::to_string(i);
        broken += osd_submit(s_.o, &all.back().r, 0, nullptr) != 0;
        if (i % 16 == 15) {  // in PGs that come and go
          Req q(OSD_WRITE, NameIn(1, 1, c), 0, 0, "x");
          struct osd_result res;
          int rc = osd_do(s_.o, &q.r, &res);
          broken += rc != 0 && rc != PGLOG_ENOTFOUND;
        }
      }
      osd_drain(s_.o);
      for (Req &q : all) {
        broken += !q.done || q.res.code != 0 || q.order <= last[q.name];
        last[q.name] = q.order;
      }
    });
  struct pglog_error err = {0, ""};
  uint32_t child = 0;
  for (int i = 0; i < 6; i++) {
    EXPECT_EQ(osd_pg_split(s_.o, i % 2 ? child : 0, &child, &err), 0) << err.text;
    EXPECT_EQ(osd_pg_delete(s_.o, 1, &err), 0) << err.text;
    EXPECT_EQ(osd_list(
                  s_.o, 0, [](void *, const void *, size_t, uint64_t) { return 0; }, nullptr, &err),
              0);
    free(osd_dump_in_flight(s_.o));
    EXPECT_EQ(osd_pg_create(s_.o, 1, 1, &err), 0) << err.text;
    std::this_thread::yield();
  }
  over = true;
  for (std::thread &t : threads)
    t.join();
  EXPECT_EQ(broken, 0);
  EXPECT_EQ(osd_pg_delete(s_.o, 1, &err), 0) << err.text;
  Content all;
  for (Content &c : want)
    all.insert(c.begin(), c.end());
  ASSERT_NO_FATAL_FAILURE(ExpectContent(s_.o, all));
  s_.Reopen();
  ASSERT_NO_FATAL_FAILURE(ExpectContent(s_.o, all));
}

// Requests held back while their PG is deleted are answered, and not before it is gone.
TEST_P(OsdThreads, WhatIsHeldBackIsAnswered) {
  s_.Open();
  Gate gate;
  std::atomic<bool> on{true};
  s_.kv.before_write = [&] {
    if (on.exchange(false))
      gate.Wait();
    return 0;
  };
  std::thread admin;
  Req first(OSD_WRITE, "a", 0, 0, "1");
  ASSERT_EQ(first.Submit(s_.o), 0);
  gate.AwaitWaiters(1);
  admin = std::thread([&] { EXPECT_EQ(osd_pg_delete(s_.o, 0, nullptr), 0); });
  std::deque<Req> held;
  // Some are before the delete, and succeed; from one on they are held.
  for (int i = 0; i < 200; i++) {
    held.emplace_back(OSD_WRITE, "a", 0, 0, "2");
    ASSERT_EQ(held.back().Submit(s_.o), 0);
    if (i % 50 == 0)
      std::this_thread::yield();
  }
  gate.Open();
  admin.join();
  osd_drain(s_.o);
  EXPECT_EQ(first.res.code, 0);
  bool gone = false;
  for (Req &q : held) {
    ASSERT_TRUE(q.done);
    ASSERT_TRUE(q.res.code == PGLOG_ENOTFOUND || (!gone && q.res.code == 0)) << q.error();
    gone = q.res.code != 0;
  }
  EXPECT_EQ(s_.Keys("o/"), 0u);
  EXPECT_EQ(s_.Stats().ops_now, 0u);
}

TEST_P(OsdThreads, ASubmitWaitsForRoom) {
  s_.c.max_ops = 2;
  s_.Open();
  Gate gate;
  std::atomic<bool> on{true}, in{false};
  s_.kv.before_write = [&] {
    if (on.exchange(false))
      gate.Wait();
    return 0;
  };
  Req a(OSD_WRITE, "a", 0, 0, "1"), b(OSD_WRITE, "a", 0, 0, "2"), c(OSD_WRITE, "a", 0, 0, "3");
  ASSERT_EQ(a.Submit(s_.o), 0);
  gate.AwaitWaiters(1);
  ASSERT_EQ(b.Submit(s_.o), 0);
  EXPECT_EQ(c.Submit(s_.o, OPQ_NOWAIT), PGLOG_EBUSY);
  std::thread waits([&] {
    EXPECT_EQ(c.Submit(s_.o), 0);
    in = true;
  });
  while (s_.Stats().waits == 0)
    std::this_thread::yield();
  EXPECT_FALSE(in);
  gate.Open();
  waits.join();
  osd_drain(s_.o);
  EXPECT_TRUE(c.done);
}

// Chains of requests, each submitted by the callback of the one before, also while it is closed.
TEST_P(OsdThreads, CloseAnswersWhatCallbacksSubmit) {
  s_.c.pg_bits = 1;
  s_.Open();
  constexpr int kChains = 3, kLength = 100;
  std::vector<std::deque<Req>> chain(kChains);
  for (int c = 0; c < kChains; c++) {
    for (int i = 0; i < kLength; i++)
      chain[c].emplace_back(i % 3 ? OSD_WRITE : OSD_READ, "o" + std::to_string(c), 0, 1, "x");
    for (int i = 0; i + 1 < kLength; i++)
      chain[c][i].then = [this, next = &chain[c][i + 1]] { EXPECT_EQ(next->Submit(s_.o), 0); };
    ASSERT_EQ(chain[c][0].Submit(s_.o), 0);
  }
  s_.Close();
  for (auto &ops : chain)
    for (Req &q : ops)
      EXPECT_TRUE(q.done);
}

TEST_P(OsdThreads, AFailedCommitAnswersEverybody) {
  s_.c.pg_bits = 1;
  s_.c.max_ops = 8;
  s_.c.log = [](void *, const char *) {};
  s_.Open();
  std::atomic<int> left{10};
  s_.kv.before_write = [&] { return left-- > 0 ? 0 : PGLOG_EIO; };
  std::vector<std::deque<Req>> all(3);
  std::vector<std::thread> threads;
  for (auto &ops : all)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; i++) {
        ops.emplace_back(OSD_WRITE, "o" + std::to_string(i % 9), 0, 0, "x");
        EXPECT_EQ(ops.back().Submit(s_.o), 0);
      }
    });
  for (std::thread &t : threads)
    t.join();
  osd_drain(s_.o);
  std::set<int> codes;
  for (auto &ops : all)
    for (Req &q : ops) {
      ASSERT_TRUE(q.done);
      codes.insert(q.res.code);
    }
  EXPECT_EQ(codes, (std::set<int>{0, PGLOG_EIO, PGLOG_EPOISONED}));
  EXPECT_EQ(left, -1);  // nothing was tried after the failure
}

INSTANTIATE_TEST_SUITE_P(Queues, OsdThreads,
                         testing::Values(Shape{OPQ_SINGLE, 2, 1, false},
                                         Shape{OPQ_SHARDED, 2, 2, false},
                                         Shape{OPQ_SHARDED, 2, 1, true},
                                         Shape{OPQ_FAST, 1, 1, false}, Shape{OPQ_FAST, 2, 2, false},
                                         Shape{OPQ_FAST, 2, 1, true}),
                         ShapeName);
