// SPDX-License-Identifier: Apache-2.0
//
// pg_log_test.cc - a PG's log: encoding of its records, order, trimming into dups, rewind, requests found
// again, and the difference of two logs; against a plain model.
#include <gtest/gtest.h>

#include <climits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

extern "C" {
#include "pg_log.h"
}

namespace {

struct osd_slice S(const std::string &s) {
  return {reinterpret_cast<const uint8_t *>(s.data()), s.size()};
}
std::string Text(struct osd_slice s) {
  return std::string(reinterpret_cast<const char *>(s.data), s.size);
}
struct osd_eversion V(uint32_t epoch, uint64_t version) {
  return {epoch, version};
}
using Version = std::pair<uint32_t, uint64_t>;
Version P(struct osd_eversion v) {
  return {v.epoch, v.version};
}
struct osd_reqid R(uint64_t client, uint64_t tid) {
  return {client, tid, 7};
}
struct osd_log_entry Entry(struct osd_eversion v, const std::string &object, uint64_t tid,
                           uint8_t op = OSD_LOG_MODIFY) {
  struct osd_log_entry e = {};
  e.version = v;
  e.reqid = R(1, tid);
  e.op = op;
  e.object = S(object);
  e.result = op == OSD_LOG_ERROR ? PGLOG_ENOTFOUND : 0;
  return e;
}

struct Log {
  struct pg_log *l = nullptr;
  explicit Log(struct pg_log_limits m = {}, struct osd_eversion tail = {0, 0}) {
    EXPECT_EQ(pg_log_new(&l, &m, tail), 0);
  }
  ~Log() { pg_log_free(l); }
  int Add(const struct osd_log_entry &e, std::string *why = nullptr) {
    struct pglog_error err = {0, ""};
    int rc = pg_log_add(l, &e, &err);
    if (why)
      *why = err.text;
    return rc;
  }
};

// What a sink was told.
struct Told {
  std::vector<Version> entries, dups;
  std::vector<std::pair<Version, uint64_t>> added;
  std::vector<std::string> divergent;
  struct pg_log_sink sink;
  Told() {
    sink.arg = this;
    sink.drop_entry = [](void *a, struct osd_eversion v) {
      static_cast<Told *>(a)->entries.push_back(P(v));
    };
    sink.drop_dup = [](void *a, struct osd_eversion v) {
      static_cast<Told *>(a)->dups.push_back(P(v));
    };
    sink.add_dup = [](void *a, const struct osd_dup *d) {
      static_cast<Told *>(a)->added.push_back({P(d->version), d->reqid.tid});
    };
  }
  static void Divergent(void *a, const struct osd_log_entry *e) {
    static_cast<Told *>(a)->divergent.push_back(Text(e->object));
  }
};

}  // namespace

TEST(LogEntry, NamesSortAndParse) {
  char name[OSD_NAME_MAX];
  EXPECT_EQ(osd_entry_name(name, V(12, 345)), 31u);
  EXPECT_STREQ(name, "0000000012.00000000000000000345");
  EXPECT_EQ(osd_dup_name(name, V(UINT32_MAX, UINT64_MAX)), 35u);
  EXPECT_STREQ(name, "dup_4294967295.18446744073709551615");
  struct osd_eversion v;
  EXPECT_EQ(osd_name_parse(S(name), &v), OSD_NAME_IS_DUP);
  EXPECT_EQ(P(v), Version(UINT32_MAX, UINT64_MAX));
  EXPECT_EQ(osd_name_parse(S("0000000012.00000000000000000345"), &v), OSD_NAME_IS_ENTRY);
  EXPECT_EQ(P(v), Version(12, 345));
  EXPECT_EQ(osd_name_parse(S("_info"), &v), OSD_NAME_IS_INFO);
  EXPECT_EQ(osd_name_parse(S("_fastinfo"), &v), OSD_NAME_IS_FASTINFO);
  for (const char *bad :
       {"", "_inf", "_infos", "dup_", "0000000012.0000000000000000034", "000000001200000000000000000345",
        "0000000012.0000000000000000034x", "4294967296.00000000000000000345",
        "0000000012.18446744073709551616", "dup_0000000012-00000000000000000345"})
    EXPECT_EQ(osd_name_parse(S(bad), &v), -1) << bad;
  EXPECT_LT(std::string("9999999999.99999999999999999999"), std::string(OSD_NAME_FASTINFO));
  EXPECT_LT(std::string(OSD_NAME_INFO), std::string("dup_"));
}

TEST(LogEntry, RoundTripsAndRefusesEveryCutAndTail) {
  std::mt19937_64 rnd(5);
  std::vector<uint8_t> buf(OSD_VALUE_MAX);
  for (int i = 0; i < 200; i++) {
    auto number = [&] { return rnd() >> (rnd() % 64); };
    std::string object(rnd() % (i % 20 ? 60 : OSD_OBJECT_MAX + 1), 'o');
    struct osd_log_entry e = {};
    e.prior = V((uint32_t)number(), number());
    e.reqid = {number(), number(), (uint32_t)number()};
    e.mtime_ns = number();
    e.result = (int32_t)number() * (rnd() % 2 ? 1 : -1);
    e.op = (uint8_t)(1 + rnd() % 3);
    e.object = S(object);
    size_t n = osd_entry_put(buf.data(), &e);
    ASSERT_LE(n, buf.size());
    struct osd_log_entry r;
    struct pglog_error err;
    ASSERT_EQ(osd_entry_get({buf.data(), n}, &r, &err), 0) << err.text;
    EXPECT_EQ(P(r.prior), P(e.prior));
    EXPECT_EQ(std::tie(r.reqid.client, r.reqid.tid, r.reqid.incarnation, r.mtime_ns, r.result, r.op),
              std::tie(e.reqid.client, e.reqid.tid, e.reqid.incarnation, e.mtime_ns, e.result, e.op));
    EXPECT_EQ(Text(r.object), object);
    for (size_t cut = 0; cut < n; cut++) {
      std::vector<uint8_t> exact(buf.begin(), buf.begin() + (long)cut);
      ASSERT_EQ(osd_entry_get({exact.data(), cut}, &r, &err), PGLOG_ECORRUPT) << cut;
    }
    EXPECT_EQ(osd_entry_get({buf.data(), n + 1}, &r, &err), PGLOG_ECORRUPT);
    EXPECT_NE(std::string(err.text).find("bytes follow its end"), std::string::npos);

    struct osd_dup d = {{0, 0}, e.reqid, e.result}, d2;
    n = osd_dup_put(buf.data(), &d);
    ASSERT_EQ(osd_dup_get({buf.data(), n}, &d2, &err), 0);
    EXPECT_EQ(std::tie(d2.reqid.client, d2.reqid.tid, d2.result),
              std::tie(d.reqid.client, d.reqid.tid, d.result));
    EXPECT_EQ(osd_dup_get({buf.data(), n - 1}, &d2, &err), PGLOG_ECORRUPT);

    struct osd_fastinfo f = {e.prior, e.mtime_ns}, f2;
    n = osd_fastinfo_put(buf.data(), &f);
    ASSERT_EQ(osd_fastinfo_get({buf.data(), n}, &f2, &err), 0);
    EXPECT_EQ(P(f2.last_update), P(f.last_update));
    EXPECT_EQ(f2.mtime_ns, f.mtime_ns);
    EXPECT_EQ(osd_fastinfo_get({buf.data(), n - 1}, &f2, &err), PGLOG_ECORRUPT);

    struct osd_info in = {e.prior, number(), (uint32_t)number(), (uint32_t)number()}, in2;
    n = osd_info_put(buf.data(), &in);
    ASSERT_EQ(osd_info_get({buf.data(), n}, &in2, &err), 0);
    EXPECT_EQ(std::tie(in2.objects, in2.bits, in2.epoch),
              std::tie(in.objects, in.bits, in.epoch));
    EXPECT_EQ(osd_info_get({buf.data(), n + 1}, &in2, &err), PGLOG_ECORRUPT);
  }
}

TEST(LogEntry, RefusesOtherFormatsAndOperations) {
  std::string object = "o";  // an entry points to it
  struct osd_log_entry e = Entry(V(1, 1), object, 1), r;
  std::vector<uint8_t> buf(OSD_VALUE_MAX);
  size_t n = osd_entry_put(buf.data(), &e);
  struct pglog_error err;
  buf[1] = 4;
  EXPECT_EQ(osd_entry_get({buf.data(), n}, &r, &err), PGLOG_ECORRUPT);
  EXPECT_NE(std::string(err.text).find("operation is unknown at offset 2"), std::string::npos)
      << err.text;
  buf[0] = 2;
  EXPECT_EQ(osd_entry_get({buf.data(), n}, &r, &err), PGLOG_ENOTSUP);
  EXPECT_STREQ(err.text, "log entry has format 2, this library knows 1");
  EXPECT_EQ(osd_entry_get({buf.data(), 0}, &r, &err), PGLOG_ECORRUPT);
  // A number over its limit: an epoch of 33 bits.
  std::vector<uint8_t> big = {1, 1, 0xff, 0xff, 0xff, 0xff, 0x1f};
  EXPECT_EQ(osd_entry_get({big.data(), big.size()}, &r, &err), PGLOG_ECORRUPT);
  EXPECT_NE(std::string(err.text).find("over its limit"), std::string::npos) << err.text;
}

TEST(PgLog, VersionsRiseAndGapsAreAllowed) {
  Log l;
  std::string why;
  EXPECT_EQ(l.Add(Entry(V(1, 5), "a", 1)), 0);
  EXPECT_EQ(l.Add(Entry(V(1, 9), "a", 2)), 0);
  EXPECT_EQ(l.Add(Entry(V(1, 9), "a", 3), &why), PGLOG_EINVAL);
  EXPECT_EQ(why, "log entry 1.9 is not above 1.9");
  EXPECT_EQ(l.Add(Entry(V(2, 3), "b", 4)), 0);
  EXPECT_EQ(l.Add(Entry(V(1, 10), "b", 5), &why), PGLOG_EINVAL);
  EXPECT_EQ(P(pg_log_head(l.l)), Version(2, 3));
  EXPECT_EQ(P(pg_log_tail(l.l)), Version(0, 0));
  EXPECT_EQ(pg_log_entries(l.l), 3u);
  std::string huge(OSD_OBJECT_MAX + 1, 'x');
  EXPECT_EQ(l.Add(Entry(V(3, 1), huge, 6), &why), PGLOG_ETOOBIG);
  EXPECT_EQ(why, "object name of 2049 bytes, the limit is 2048");
  pg_log_free(nullptr);
}

TEST(PgLog, DupsAreInOrderAndNotAboveTheTail) {
  Log l({}, V(1, 10));
  struct pglog_error err;
  struct osd_dup d = {V(1, 4), R(1, 4), -3};
  EXPECT_EQ(pg_log_add_dup(l.l, &d, &err), 0);
  EXPECT_EQ(pg_log_add_dup(l.l, &d, &err), PGLOG_EINVAL);
  d.version = V(1, 11);
  EXPECT_EQ(pg_log_add_dup(l.l, &d, &err), PGLOG_EINVAL);
  d.version = V(1, 10);
  d.reqid = R(1, 5);
  EXPECT_EQ(pg_log_add_dup(l.l, &d, &err), 0);
  struct osd_eversion v;
  int32_t result;
  ASSERT_TRUE(pg_log_find(l.l, R(1, 4), &v, &result));
  EXPECT_EQ(P(v), Version(1, 4));
  EXPECT_EQ(result, -3);
  EXPECT_FALSE(pg_log_find(l.l, R(2, 4), &v, &result));
  EXPECT_EQ(pg_log_dups(l.l), 2u);
  EXPECT_EQ(pg_log_dup(l.l, 1)->reqid.tid, 5u);
}

TEST(PgLog, TrimsInBatchesIntoDups) {
  struct pg_log_limits m = {10, 4, 6, 8};
  Log l(m);
  Told t;
  for (uint64_t i = 1; i <= 13; i++)
    ASSERT_EQ(l.Add(Entry(V(1, i), "o" + std::to_string(i % 3), i)), 0);
  EXPECT_EQ(pg_log_trim(l.l, &t.sink), 0);  // 3 over: less than a batch
  ASSERT_EQ(l.Add(Entry(V(1, 14), "o", 14)), 0);
  EXPECT_EQ(pg_log_trim(l.l, &t.sink), 4);
  EXPECT_EQ(t.entries, (std::vector<Version>{{1, 1}, {1, 2}, {1, 3}, {1, 4}}));
  EXPECT_EQ(t.added.size(), 4u);
  EXPECT_EQ(t.added[3].second, 4u);
  EXPECT_TRUE(t.dups.empty());
  EXPECT_EQ(P(pg_log_tail(l.l)), Version(1, 4));
  for (uint64_t i = 15; i <= 24; i++)
    ASSERT_EQ(l.Add(Entry(V(1, i), "p", i)), 0);
  EXPECT_EQ(pg_log_trim(l.l, &t.sink), 6);  // the most at once; 10 dups: 2 go
  EXPECT_EQ(t.dups, (std::vector<Version>{{1, 1}, {1, 2}}));
  EXPECT_EQ(pg_log_entries(l.l), 14u);
  EXPECT_EQ(pg_log_dups(l.l), 8u);
  struct osd_eversion v;
  int32_t result;
  EXPECT_FALSE(pg_log_find(l.l, R(1, 2), &v, &result));
  EXPECT_TRUE(pg_log_find(l.l, R(1, 3), &v, &result));
  EXPECT_TRUE(pg_log_find(l.l, R(1, 24), &v, &result));
  EXPECT_EQ(pg_log_object(l.l, S("o1")), &*pg_log_entry(l.l, 13 - 11));
  EXPECT_EQ(pg_log_object(l.l, S("none")), nullptr);
}

TEST(PgLog, RewindsToAnyVersionInIt) {
  Log l;
  Told t;
  struct pglog_error err;
  for (uint64_t i = 1; i <= 6; i++)
    ASSERT_EQ(l.Add(Entry(V(1, i), i % 2 ? "odd" : "even", i)), 0);
  ASSERT_EQ(pg_log_rewind(l.l, V(1, 3), &t.sink, Told::Divergent, &err), 0);
  EXPECT_EQ(t.entries, (std::vector<Version>{{1, 6}, {1, 5}, {1, 4}}));
  EXPECT_EQ(t.divergent, (std::vector<std::string>{"even", "odd", "even"}));
  EXPECT_EQ(P(pg_log_head(l.l)), Version(1, 3));
  EXPECT_EQ(P(pg_log_object(l.l, S("even"))->version), Version(1, 2));
  struct osd_eversion v;
  int32_t result;
  EXPECT_FALSE(pg_log_find(l.l, R(1, 5), &v, &result));
  EXPECT_EQ(l.Add(Entry(V(2, 4), "even", 5)), 0);
  EXPECT_TRUE(pg_log_find(l.l, R(1, 5), &v, &result));
  Log above({}, V(1, 4));
  EXPECT_EQ(pg_log_rewind(above.l, V(1, 3), &t.sink, Told::Divergent, &err), PGLOG_EINVAL);
  EXPECT_STREQ(err.text, "rewind to 1.3: the log begins above 1.4");
}

TEST(PgLog, DiffNamesTheObjectsOfTheDivergentEnds) {
  using Found = std::map<std::string, std::pair<Version, Version>>;
  auto diff = [](const Log &r, const Log &a, Found *out) {
    struct pglog_error err = {0, ""};
    int rc = pg_log_diff(
        r.l, a.l,
        [](void *arg, struct osd_slice o, struct osd_eversion x, struct osd_eversion y) {
          EXPECT_TRUE(static_cast<Found *>(arg)->emplace(Text(o), std::pair(P(x), P(y))).second);
        },
        out, &err);
    return rc;
  };
  Log a, b;
  for (uint64_t i = 1; i <= 5; i++) {
    ASSERT_EQ(a.Add(Entry(V(1, i), "o" + std::to_string(i), i)), 0);
    ASSERT_EQ(b.Add(Entry(V(1, i), "o" + std::to_string(i), i)), 0);
  }
  Found f;
  EXPECT_EQ(diff(a, b, &f), 0);
  EXPECT_TRUE(f.empty());
  ASSERT_EQ(a.Add(Entry(V(1, 6), "o1", 6)), 0);
  ASSERT_EQ(a.Add(Entry(V(1, 7), "only", 7)), 0);
  ASSERT_EQ(a.Add(Entry(V(1, 8), "failed", 8, OSD_LOG_ERROR)), 0);
  ASSERT_EQ(b.Add(Entry(V(2, 6), "o1", 9)), 0);
  ASSERT_EQ(b.Add(Entry(V(2, 7), "o2", 10, OSD_LOG_DELETE)), 0);
  EXPECT_EQ(diff(a, b, &f), 0);
  EXPECT_EQ(f, (Found{{"o1", {{1, 6}, {2, 6}}}, {"only", {{1, 7}, {0, 0}}}, {"o2", {{0, 0}, {2, 7}}}}));
  // A log that begins where the other ends still tells; one that begins above does not.
  Log c({}, V(2, 7)), d({}, V(2, 8));
  ASSERT_EQ(c.Add(Entry(V(2, 8), "new", 11)), 0);
  f.clear();
  EXPECT_EQ(diff(b, c, &f), 0);
  EXPECT_EQ(f, (Found{{"new", {{0, 0}, {2, 8}}}}));
  EXPECT_EQ(diff(b, d, &f), PGLOG_EINVAL);
  EXPECT_EQ(diff(d, b, &f), PGLOG_EINVAL);
}

TEST(PgLog, AgreesWithAModel) {
  std::mt19937 rnd(11);
  struct pg_log_limits m = {50, 7, 20, 60};
  Log l(m);
  std::map<Version, std::pair<std::string, uint64_t>> entries;
  std::map<Version, uint64_t> dups;
  struct osd_eversion next = V(1, 1);
  uint64_t tid = 0;
  for (int step = 0; step < 20000; step++) {
    unsigned what = rnd() % 100;
    Told t;
    if (what < 90) {
      std::string object = "o" + std::to_string(rnd() % 30);
      ASSERT_EQ(l.Add(Entry(next, object, ++tid)), 0);
      entries[P(next)] = {object, tid};
      next.version += 1 + rnd() % 3;
    } else if (what < 97) {
      long n = pg_log_trim(l.l, &t.sink);
      ASSERT_EQ((size_t)n, t.entries.size());
      for (const Version &v : t.entries) {
        ASSERT_EQ(v, entries.begin()->first);
        dups[v] = entries.begin()->second.second;
        entries.erase(entries.begin());
      }
      for (const Version &v : t.dups) {
        ASSERT_EQ(v, dups.begin()->first);
        dups.erase(dups.begin());
      }
    } else if (!entries.empty()) {
      auto it = std::next(entries.begin(), (long)(rnd() % entries.size()));
      struct pglog_error err;
      ASSERT_EQ(pg_log_rewind(l.l, V(it->first.first, it->first.second), &t.sink, Told::Divergent,
                              &err),
                0);
      entries.erase(std::next(it), entries.end());
      next.epoch++;
    }
    if (step % 50)
      continue;
    ASSERT_EQ(pg_log_entries(l.l), entries.size());
    ASSERT_EQ(pg_log_dups(l.l), dups.size());
    size_t i = 0;
    std::map<std::string, Version> newest;
    for (auto &e : entries) {
      ASSERT_EQ(P(pg_log_entry(l.l, i++)->version), e.first);
      newest[e.second.first] = e.first;
      struct osd_eversion v;
      int32_t result;
      ASSERT_TRUE(pg_log_find(l.l, R(1, e.second.second), &v, &result));
      ASSERT_EQ(P(v), e.first);
    }
    i = 0;
    for (auto &d : dups)
      ASSERT_EQ(P(pg_log_dup(l.l, i++)->version), d.first);
    for (int o = 0; o < 30; o++) {
      std::string name = "o" + std::to_string(o);
      const struct osd_log_entry *e = pg_log_object(l.l, S(name));
      ASSERT_EQ(e != nullptr, newest.count(name) == 1) << name;
      if (e) {
        ASSERT_EQ(P(e->version), newest[name]);
      }
    }
  }
}
