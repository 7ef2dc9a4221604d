// SPDX-License-Identifier: Apache-2.0
//
// Proves that pgmap answers every read, at every open view's ordinal, as a replay of the operations
// up to that ordinal does; that it keeps no more than that takes; and that a failed allocation
// changes nothing.
#include "pgmap.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

// Allocations of this program go through here, so that a test can let the n-th one fail, or add up
// what is held.
static long g_fail_in = -1;  // fail when this many more have succeeded; -1: never
static bool g_counting = false;
static int64_t g_held = 0;  // bytes allocated less bytes freed while g_counting

[[maybe_unused]] static bool fails() {
  return g_fail_in >= 0 && g_fail_in-- == 0;
}
[[maybe_unused]] static void count(void *p, int sign) {
  if (g_counting && p)
    g_held += sign * static_cast<int64_t>(malloc_usable_size(p));
}
#ifdef __SANITIZE_ADDRESS__
// The sanitizer starts before dlsym() works.
extern "C" void *__interceptor_malloc(size_t n);
extern "C" void *__interceptor_realloc(void *p, size_t n);
extern "C" void __interceptor_free(void *p);
#define NEXT(name) __interceptor_##name
#else
#define NEXT(name)                                                                 \
  ([] {                                                                            \
    static auto next = reinterpret_cast<decltype(&name)>(dlsym(RTLD_NEXT, #name)); \
    return next;                                                                   \
  }())
#endif
// ThreadSanitizer bears no such functions, and has nothing to find here: pgmap has no threads. The
// tests that need them are left out with it.
#ifdef __SANITIZE_THREAD__
#define OWN_MALLOC 0
#else
#define OWN_MALLOC 1
extern "C" void *malloc(size_t n) {
  if (fails())
    return nullptr;
  void *p = NEXT(malloc)(n);
  count(p, 1);
  return p;
}
extern "C" void *realloc(void *old, size_t n) {
  if (fails())
    return nullptr;
  count(old, -1);
  void *p = NEXT(realloc)(old, n);
  count(p, 1);
  return p;
}
extern "C" void free(void *p) {
  count(p, -1);
  NEXT(free)(p);
}
#endif

namespace {

using Bytes = std::string;
constexpr uint64_t kLatest = UINT64_MAX;

// Owns the bytes that a map points to, each string in a block of its own and of its exact size.
class Pool {
 public:
  slice Keep(const Bytes &b) {
    bytes_.push_back(std::make_unique<uint8_t[]>(b.size()));
    if (!b.empty())
      memcpy(bytes_.back().get(), b.data(), b.size());
    return slice_make(bytes_.back().get(), b.size());
  }

 private:
  std::deque<std::unique_ptr<uint8_t[]>> bytes_;
};

slice S(const Bytes &b) {
  return slice_make(b.data(), b.size());
}
Bytes B(slice s) {
  return s.size ? Bytes(reinterpret_cast<const char *>(s.data), s.size) : Bytes();
}
const slice kNoEnd = {nullptr, 0};

Bytes LogKey(uint64_t n, const char *prefix = "") {
  char buf[64];
  snprintf(buf, sizeof(buf), "%s%010u.%020llu", prefix, 12u, static_cast<unsigned long long>(n));
  return buf;
}

struct Shown {
  std::optional<Bytes> value;  // none: a tombstone
  uint64_t ord;
  bool operator==(const Shown &o) const { return value == o.value && ord == o.ord; }
};

struct Range {
  Bytes begin;
  std::optional<Bytes> end;  // none: no end
  bool Has(const Bytes &k) const { return begin <= k && (!end || k < *end); }
  bool operator==(const Range &o) const { return begin == o.begin && end == o.end; }
};

void PrintTo(const Shown &s, std::ostream *os) {
  *os << (s.value ? "\"" + *s.value + "\"" : "tombstone") << "@" << s.ord;
}
void PrintTo(const Range &r, std::ostream *os) {
  *os << "[" << testing::PrintToString(r.begin) << ", "
      << (r.end ? testing::PrintToString(*r.end) : "no end") << ")";
}

// What a reader sees: the reference for everything pgmap answers.
struct State {
  std::map<Bytes, Shown> entries;
  std::vector<Range> masks;  // ascending, neither overlapping nor touching

  bool Masked(const Bytes &k) const {
    return std::any_of(masks.begin(), masks.end(), [&](const Range &r) { return r.Has(k); });
  }
};

std::vector<Range> Union(std::vector<Range> v) {
  std::sort(v.begin(), v.end(), [](auto &a, auto &b) { return a.begin < b.begin; });
  std::vector<Range> out;
  for (auto &r : v) {
    if (out.empty() || (out.back().end && *out.back().end < r.begin))
      out.push_back(r);
    else if (out.back().end && (!r.end || *r.end > *out.back().end))
      out.back().end = r.end;
  }
  return out;
}

// Every operation so far, in order.
class History {
 public:
  void Point(const Bytes &key, std::optional<Bytes> value, uint64_t ord) {
    Add({false, {key, {}}, std::move(value), ord});
  }
  void DeleteRange(const Range &r, uint64_t ord) { Add({true, r, {}, ord}); }
  void Erase(const Bytes &key) {
    auto erased = [&](auto &o) { return !o.is_range && o.range.begin == key; };
    ops_.erase(std::remove_if(ops_.begin(), ops_.end(), erased), ops_.end());
    past_.clear();
    now_.entries.erase(key);
  }
  // Replays the operations up to an ordinal; done once for each, and as they come for the newest.
  const State &At(uint64_t at) {
    if (ops_.empty() || ops_.back().ord <= at)
      return now_;
    auto it = past_.find(at);
    if (it != past_.end())
      return it->second;
    State &s = past_[at];
    for (auto o = ops_.begin(); o->ord <= at; ++o)
      Apply(*o, &s);
    return s;
  }
  void Forget(uint64_t at) { past_.erase(at); }

 private:
  struct Op {
    bool is_range;
    Range range;
    std::optional<Bytes> value;
    uint64_t ord;
  };

  void Add(Op o) {
    past_.erase(past_.lower_bound(o.ord), past_.end());
    Apply(o, &now_);
    ops_.push_back(std::move(o));
  }
  static void Apply(const Op &o, State *s) {
    if (!o.is_range) {
      s->entries[o.range.begin] = {o.value, o.ord};
      return;
    }
    auto end = o.range.end ? s->entries.lower_bound(*o.range.end) : s->entries.end();
    s->entries.erase(s->entries.lower_bound(o.range.begin), end);
    s->masks.push_back(o.range);
    s->masks = Union(s->masks);
  }

  std::vector<Op> ops_;
  State now_;
  std::map<uint64_t, State> past_;
};

// A map with its history: makes changes on both, and compares.
class Pair {
 public:
  Pair() { EXPECT_EQ(0, pgmap_new(&m)); }
  ~Pair() { pgmap_free(m); }
  Pair(const Pair &) = delete;

  int Put(const Bytes &k, const Bytes &v, uint64_t ord) {
    int rc = pgmap_put(m, pool.Keep(k), pool.Keep(v), ord, ViewMax());
    if (rc == 0)
      history.Point(k, v, ord);
    return rc;
  }
  int Delete(const Bytes &k, uint64_t ord) {
    int rc = pgmap_delete(m, pool.Keep(k), ord, ViewMax());
    if (rc == 0)
      history.Point(k, {}, ord);
    return rc;
  }
  int DeleteRange(const Range &r, uint64_t ord) {
    slice end = r.end ? pool.Keep(*r.end) : kNoEnd;
    int rc = pgmap_delete_range(m, pool.Keep(r.begin), end, ord, ViewMax());
    if (rc == 0 && (!r.end || r.begin < *r.end))
      history.DeleteRange(r, ord);
    return rc;
  }
  bool Erase(const Bytes &k) {
    history.Erase(k);
    return pgmap_erase(m, S(k));
  }
  uint64_t ViewMax() const { return views.empty() ? 0 : *views.rbegin(); }

  // Everything but single keys.
  void Check(uint64_t at) {
    SCOPED_TRACE("at ordinal " + std::to_string(at));
    const State &s = history.At(at);
    ASSERT_GE(pgmap_entries(m), s.entries.size());
    pgmap_cursor c;
    pgmap_cursor_init(&c, m, at);
    pgmap_cursor_first(&c);
    for (auto &e : s.entries) {
      ASSERT_TRUE(At(c, &e));
      pgmap_cursor_next(&c);
    }
    ASSERT_FALSE(c.valid);
    pgmap_cursor_last(&c);
    for (auto it = s.entries.rbegin(); it != s.entries.rend(); ++it) {
      ASSERT_TRUE(At(c, &*it));
      pgmap_cursor_prev(&c);
    }
    ASSERT_FALSE(c.valid);
    ASSERT_EQ(s.masks, Masks(at));
  }

  std::vector<Range> Masks(uint64_t at) {
    std::vector<Range> v;
    slice b, e;
    bool no_end;
    for (size_t i = 0; pgmap_mask(m, i, at, &b, &e, &no_end); i++)
      v.push_back({B(b), no_end ? std::optional<Bytes>() : B(e)});
    return v;
  }

  void CheckKey(uint64_t at, const Bytes &k) {
    SCOPED_TRACE("key " + testing::PrintToString(k) + " at ordinal " + std::to_string(at));
    const State &s = history.At(at);
    auto it = s.entries.find(k);
    slice v;
    pgmap_found want = it != s.entries.end() ? it->second.value ? PGMAP_VALUE : PGMAP_DELETED
                       : s.Masked(k)         ? PGMAP_DELETED
                                             : PGMAP_NONE;
    ASSERT_EQ(want, pgmap_get(m, S(k), at, &v));
    if (want == PGMAP_VALUE) {
      ASSERT_EQ(*it->second.value, B(v));
    }
    ASSERT_EQ(s.Masked(k), pgmap_masked(m, S(k), at));
    pgmap_cursor c;
    pgmap_cursor_init(&c, m, at);
    pgmap_cursor_seek(&c, S(k));
    it = s.entries.lower_bound(k);
    ASSERT_TRUE(At(c, it == s.entries.end() ? nullptr : &*it));
    pgmap_cursor_seek_for_prev(&c, S(k));
    it = s.entries.upper_bound(k);
    ASSERT_TRUE(At(c, it == s.entries.begin() ? nullptr : &*--it));
  }

  // Fails, and says so, if the cursor is not on *want (NULL: on nothing).
  static bool At(const pgmap_cursor &c, const std::pair<const Bytes, Shown> *want) {
    if (want && c.valid && slice_eq(c.key, S(want->first)) && c.ord == want->second.ord &&
        c.deleted == !want->second.value &&
        slice_eq(c.value, c.deleted ? slice{nullptr, 0} : S(*want->second.value)))
      return true;
    if (!want && !c.valid)
      return true;
    ADD_FAILURE() << "cursor on "
                  << (c.valid ? testing::PrintToString(B(c.key)) + (c.deleted ? " (deleted)" : "") +
                                    "@" + std::to_string(c.ord)
                              : "nothing")
                  << ", not on " << (want ? testing::PrintToString(*want) : "nothing");
    return false;
  }

  pgmap *m = nullptr;
  Pool pool;
  History history;
  std::set<uint64_t> views;
};

// --- random operations --------------------------------------------------------------------------

class RandomRun {
 public:
  explicit RandomRun(uint64_t seed) : rng_(seed) {
    style_ = Pick(3);
    span_ = Pick(2) ? 30 + Pick(100) : 300 + Pick(2000);
    ops_ = Pick(8) ? 300 + Pick(500) : 3000;
    view_rate_ = Pick(4) ? Pick(12) : 0;
    range_rate_ = Pick(4) ? Pick(15) : 0;
    erase_rate_ = Pick(4) ? 0 : 8;
    delete_rate_ = Pick(30);
    same_ord_ = Pick(3);
  }

  void Run(bool failing) {
    for (int i = 0; i < ops_; i++) {
      SCOPED_TRACE("operation " + std::to_string(i));
      ASSERT_NO_FATAL_FAILURE(failing ? FailingChange() : Change());
      if (Pick(100) < view_rate_) {
        ASSERT_NO_FATAL_FAILURE(OpenOrClose());
      }
      if (Pick(4) == 0) {
        ASSERT_NO_FATAL_FAILURE(Walk());
      }
      if (Pick(20) == 0) {
        ASSERT_NO_FATAL_FAILURE(CheckOne(RandomOrdinal(), 6));
      }
    }
    for (uint64_t v : p_.views)
      ASSERT_NO_FATAL_FAILURE(CheckOne(v, 20));
    ASSERT_NO_FATAL_FAILURE(CheckOne(kLatest, 50));
    Drain();
  }

 private:
  int Pick(int n) { return static_cast<int>(rng_() % n); }

  Bytes Key() {
    Bytes k;
    switch (style_) {
      case 0:  // short, any byte, many prefixes of each other, the empty one included
        for (int n = Pick(6); n > 0; n--)
          k += "\0ab\xff"[Pick(4)];
        return k;
      case 1:
        return LogKey(Pick(span_));
      default:
        return StreamKey(Pick(5), Pick(3) ? 0 : Pick(span_));
    }
  }

  // The five streams of a PG: mostly ascending, sometimes `back` steps behind.
  Bytes StreamKey(int stream, int back) {
    static const char *info[] = {"_fastinfo", "_info", "_biginfo", "_epoch"};
    if (stream == 4)
      return info[Pick(4)];
    uint64_t at = stream_[stream] += back == 0;
    return LogKey(1000 * (stream % 2) + at - std::min<uint64_t>(at, back),
                  stream < 2 ? "" : "dup_");
  }

  Range RandomRange() {
    Range r{Pick(12) ? Key() : Bytes(), {}};
    if (Pick(12) == 0)
      return r;
    r.end = style_ == 1 && Pick(4)
                ? LogKey(std::stoull(r.begin.size() ? r.begin.substr(11) : "0") + Pick(40))
                : Key();
    if (*r.end < r.begin && Pick(10))
      std::swap(r.begin, *r.end);
    return r;
  }

  // An ordinal may be that of the change before, unless a view reads there.
  void NextOrdinal() {
    if (ord_ == 0 || ord_ <= p_.ViewMax() || Pick(same_ord_ + 1) == 0)
      ord_ = std::max(ord_, last_view_) + 1 + Pick(3);
  }

  void Change() { ASSERT_NO_FATAL_FAILURE(Apply(Make())); }

  struct Todo {
    int kind;  // 0 put, 1 delete, 2 range delete, 3 erase
    Bytes key, value;
    Range range;
  };
  Todo Make() {
    NextOrdinal();
    int r = Pick(100);
    int kind = r < range_rate_                    ? 2
               : (r -= range_rate_) < erase_rate_ ? 3
               : r < delete_rate_                 ? 1
                                                  : 0;
    if (kind == 2)
      return {kind, {}, {}, RandomRange()};
    return {kind, Key(), std::to_string(values_++).substr(0, Pick(6)), {}};
  }
  int Try(const Todo &t) {
    if (t.kind == 3) {
      p_.Erase(t.key);
      return 0;
    }
    return t.kind == 2   ? p_.DeleteRange(t.range, ord_)
           : t.kind == 1 ? p_.Delete(t.key, ord_)
                         : p_.Put(t.key, t.value, ord_);
  }
  void Apply(const Todo &t) {
    uint64_t before = pgmap_changes(p_.m);
    bool noop = t.kind == 3 || (t.kind == 2 && t.range.end && *t.range.end <= t.range.begin);
    ASSERT_EQ(0, Try(t));
    ASSERT_TRUE(noop || pgmap_changes(p_.m) > before);
  }

  // Let each allocation of the change fail in turn before it may succeed.
  void FailingChange() {
    Todo t = Make();
    // The pool allocates, too: what it needs is kept outside of the failing call.
    slice key = p_.pool.Keep(t.key), begin = p_.pool.Keep(t.range.begin), value = key;
    slice end = t.range.end ? p_.pool.Keep(*t.range.end) : kNoEnd;
    uint64_t changes = pgmap_changes(p_.m), view_max = p_.ViewMax();
    size_t entries = pgmap_entries(p_.m);
    for (int n = 0; t.kind != 3; n++) {
      g_fail_in = n;
      int rc = t.kind == 2   ? pgmap_delete_range(p_.m, begin, end, ord_, view_max)
               : t.kind == 1 ? pgmap_delete(p_.m, key, ord_, view_max)
                             : pgmap_put(p_.m, key, value, ord_, view_max);
      bool failed = g_fail_in < 0;
      g_fail_in = -1;
      if (!failed || rc == 0) {
        // A merge of chunks does without its memory.
        ASSERT_EQ(0, rc);
        break;
      }
      failures_++;
      ASSERT_EQ(PGLOG_ENOMEM, rc);
      ASSERT_EQ(changes, pgmap_changes(p_.m));
      ASSERT_EQ(entries, pgmap_entries(p_.m));
      ASSERT_NO_FATAL_FAILURE(p_.Check(kLatest));
      ASSERT_NO_FATAL_FAILURE(p_.Check(RandomOrdinal()));
    }
    if (t.kind == 3)
      p_.Erase(t.key);
    else if (t.kind != 2)
      p_.history.Point(t.key, t.kind ? std::optional<Bytes>() : t.key, ord_);
    else if (!t.range.end || t.range.begin < *t.range.end)
      p_.history.DeleteRange(t.range, ord_);
  }

  uint64_t RandomOrdinal() {
    if (p_.views.empty() || Pick(3) == 0)
      return Pick(2) ? kLatest : std::max<uint64_t>(ord_, 1);
    return *std::next(p_.views.begin(), Pick(static_cast<int>(p_.views.size())));
  }

  void OpenOrClose() {
    if (ord_ == 0)
      return;
    if (p_.views.size() < 5 && Pick(2)) {
      last_view_ = ord_ + Pick(3);
      if (last_view_ < p_.ViewMax())
        last_view_ = p_.ViewMax();
      p_.views.insert(last_view_);
      cursors_.push_back({});
      pgmap_cursor_init(&cursors_.back(), p_.m, Pick(4) ? last_view_ : kLatest);
      return;
    }
    if (p_.views.empty())
      return;
    auto it = std::next(p_.views.begin(), Pick(static_cast<int>(p_.views.size())));
    ASSERT_NO_FATAL_FAILURE(CheckOne(*it, 3));
    uint64_t at = *it;
    cursors_.erase(
        std::remove_if(cursors_.begin(), cursors_.end(), [&](auto &c) { return c.at == at; }),
        cursors_.end());
    p_.views.erase(it);
    p_.history.Forget(at);
  }

  // Move a cursor that may have been set before many changes.
  void Walk() {
    if (cursors_.empty())
      return;
    pgmap_cursor &c = cursors_[Pick(static_cast<int>(cursors_.size()))];
    const State &s = p_.history.At(c.at);
    for (int n = Pick(8); n >= 0; n--) {
      std::map<Bytes, Shown>::const_iterator it;
      bool none;
      if (!c.valid || Pick(20) == 0) {
        Bytes k = Key();
        pgmap_cursor_seek(&c, S(k));
        it = s.entries.lower_bound(k);
        none = it == s.entries.end();
      } else if (Pick(2)) {
        it = s.entries.upper_bound(B(c.key));
        none = it == s.entries.end();
        pgmap_cursor_next(&c);
      } else {
        it = s.entries.lower_bound(B(c.key));
        none = it == s.entries.begin();
        if (!none)
          --it;
        pgmap_cursor_prev(&c);
      }
      ASSERT_TRUE(Pair::At(c, none ? nullptr : &*it));
    }
  }

  void CheckOne(uint64_t at, int keys) {
    ASSERT_NO_FATAL_FAILURE(p_.Check(at));
    for (; keys > 0; keys--)
      ASSERT_NO_FATAL_FAILURE(p_.CheckKey(at, Key()));
  }

  // Without views a range delete over everything leaves one mask and no entry.
  void Drain() {
    p_.views.clear();
    ASSERT_EQ(0, p_.DeleteRange({"", {}}, ord_ + 1));
    ASSERT_EQ(0u, pgmap_entries(p_.m));
    p_.Check(kLatest);
  }

  std::mt19937_64 rng_;
  int style_, span_, ops_, view_rate_, range_rate_, erase_rate_, delete_rate_, same_ord_;
  uint64_t ord_ = 0, last_view_ = 0, values_ = 0;
  uint64_t stream_[4] = {};
  std::vector<pgmap_cursor> cursors_;
  Pair p_;

 public:
  int failures_ = 0;
};

// PGMAP_SEED=n replays one case.
void Seeds(uint64_t from, uint64_t n, bool failing) {
  if (const char *one = getenv("PGMAP_SEED")) {
    from = strtoull(one, nullptr, 0);
    n = 1;
  }
  int failures = 0;
  for (uint64_t seed = from; seed < from + n; seed++) {
    SCOPED_TRACE("PGMAP_SEED=" + std::to_string(seed));
    RandomRun r(seed);
    r.Run(failing);
    failures += r.failures_;
    if (testing::Test::HasFailure())
      return;
  }
  if (failing && n > 1) {
    EXPECT_GT(failures, 100);
  }
}

TEST(PgmapRandom, ReadsAsReplayDoes) {
  Seeds(1, 250, false);
}
#if OWN_MALLOC
TEST(PgmapRandom, FailedAllocationChangesNothing) {
  Seeds(10001, 60, true);
}
#endif

// --- single rules -------------------------------------------------------------------------------

class Pgmap : public testing::Test {
 protected:
  pgmap_found Get(const Bytes &k, uint64_t at, Bytes *v = nullptr) {
    slice s;
    pgmap_found f = pgmap_get(p.m, S(k), at, &s);
    if (v && f == PGMAP_VALUE)
      *v = B(s);
    return f;
  }
  Bytes Value(const Bytes &k, uint64_t at) {
    Bytes v = "(no value)";
    Get(k, at, &v);
    return v;
  }
  std::vector<Bytes> Keys(uint64_t at) {
    std::vector<Bytes> v;
    pgmap_cursor c;
    pgmap_cursor_init(&c, p.m, at);
    for (pgmap_cursor_first(&c); c.valid; pgmap_cursor_next(&c))
      v.push_back(B(c.key));
    return v;
  }
  Pair p;
};

TEST_F(Pgmap, EmptyMapIsSmallAndSilent) {
  EXPECT_LT(pgmap_memory(p.m), 400u);
  EXPECT_EQ(0u, pgmap_entries(p.m));
  EXPECT_EQ(0u, pgmap_changes(p.m));
  EXPECT_EQ(PGMAP_NONE, Get("", kLatest));
  EXPECT_FALSE(pgmap_masked(p.m, S("a"), kLatest));
  EXPECT_TRUE(p.Masks(kLatest).empty());
  EXPECT_FALSE(pgmap_erase(p.m, S("a")));
  p.Check(kLatest);
  p.CheckKey(kLatest, "a");
  pgmap_free(nullptr);
}

#if OWN_MALLOC
TEST_F(Pgmap, NoMemoryForAMapIsSaid) {
  pgmap *m = nullptr;
  g_fail_in = 0;
  EXPECT_EQ(PGLOG_ENOMEM, pgmap_new(&m));
  EXPECT_EQ(-1, g_fail_in);
}

TEST_F(Pgmap, MemoryIsWhatWasAllocated) {
  std::vector<slice> keys;
  for (int i = 0; i < 3000; i++)
    keys.push_back(p.pool.Keep(LogKey(i)));
  std::mt19937_64 rng(1);
  std::vector<std::pair<int64_t, size_t>> seen;
  seen.reserve(1000);
  int rc = 0;
  pgmap *m;
  g_held = 0;
  g_counting = true;
  rc |= pgmap_new(&m);
  for (uint64_t ord = 1; ord <= 20000; ord++) {
    uint64_t view_max = ord % 2000 < 500 ? ord - 1 : 0;
    slice key = keys[rng() % keys.size()];
    if (ord % 300 == 0)
      rc |= pgmap_delete_range(m, key, keys[rng() % keys.size()], ord, view_max);
    else if (ord % 3 == 0)
      pgmap_erase(m, key);
    else
      rc |= pgmap_put(m, key, key, ord, view_max);
    if (ord % 100 == 0)
      seen.emplace_back(g_held, pgmap_memory(m));
  }
  pgmap_free(m);
  g_counting = false;
  EXPECT_EQ(0, rc);
  EXPECT_EQ(0, g_held);
  for (auto &s : seen) {
    EXPECT_GE(s.first, static_cast<int64_t>(s.second));
    EXPECT_LE(s.first, static_cast<int64_t>(s.second + s.second / 20 + 256));
  }
}
#endif

TEST_F(Pgmap, FiveEntriesStaySmall) {
  for (const char *k : {"_info", "_fastinfo", "0012", "0011", "dup_1"})
    ASSERT_EQ(0, p.Put(k, "v", 1));
  EXPECT_LT(pgmap_memory(p.m), 700u);
  p.Check(kLatest);
}

TEST_F(Pgmap, KeysAndValuesAreNotCopied) {
  Bytes k = "key", v = "value";
  ASSERT_EQ(0, pgmap_put(p.m, S(k), S(v), 1, 0));
  pgmap_cursor c;
  pgmap_cursor_init(&c, p.m, kLatest);
  pgmap_cursor_first(&c);
  ASSERT_TRUE(c.valid);
  EXPECT_EQ(S(k).data, c.key.data);
  EXPECT_EQ(S(v).data, c.value.data);
}

TEST_F(Pgmap, ReaderSeesNewestVersionUpToItsOrdinal) {
  ASSERT_EQ(0, p.Put("a", "5", 5));
  p.views = {6};
  ASSERT_EQ(0, p.Put("a", "8", 8));
  p.views = {6, 9};
  ASSERT_EQ(0, p.Delete("a", 10));
  EXPECT_EQ(PGMAP_NONE, Get("a", 4));
  EXPECT_EQ("5", Value("a", 5));
  EXPECT_EQ("5", Value("a", 7));
  EXPECT_EQ("8", Value("a", 9));
  EXPECT_EQ(PGMAP_DELETED, Get("a", 10));
  EXPECT_FALSE(pgmap_masked(p.m, S("a"), kLatest));
  EXPECT_TRUE(Keys(4).empty());
}

TEST_F(Pgmap, VersionNewerThanEveryViewIsDropped) {
  ASSERT_EQ(0, p.Put("a", "5", 5));
  p.views = {6};
  ASSERT_EQ(0, p.Put("a", "8", 8));
  size_t memory = pgmap_memory(p.m);
  for (uint64_t ord = 9; ord < 1000; ord++)
    ASSERT_EQ(0, p.Put("a", "x", ord));
  EXPECT_EQ(memory, pgmap_memory(p.m));
  EXPECT_EQ("5", Value("a", 6));
  EXPECT_EQ(PGMAP_VALUE, Get("a", 999));
}

TEST_F(Pgmap, OldVersionsAreReusedOnceNoViewNeedsThem) {
  uint64_t ord = 1;
  size_t memory = 0;
  for (int round = 0; round < 50; round++) {
    for (int i = 0; i < 20; i++, ord++) {
      ASSERT_EQ(0, p.Put("a", "x", ord));
      ASSERT_EQ(0, p.Put("b", "x", ord));
      p.views.insert(ord);
    }
    EXPECT_EQ(PGMAP_VALUE, Get("a", ord - 20));
    p.views.clear();
    ASSERT_EQ(0, p.Put("a", "x", ord));
    ASSERT_EQ(0, p.Put("b", "x", ord++));
    if (round == 0)
      memory = pgmap_memory(p.m);
  }
  EXPECT_EQ(memory, pgmap_memory(p.m));
}

TEST_F(Pgmap, OldVersionsNewerThanEveryOpenViewAreReused) {
  ASSERT_EQ(0, p.Put("a", "1", 1));
  size_t memory = 0;
  for (uint64_t ord = 2; ord < 2000; ord += 2) {
    p.views = {1, ord};
    ASSERT_EQ(0, p.Put("a", "x", ord));
    ASSERT_EQ(0, p.Put("a", "y", ord + 1));
    ASSERT_EQ("x", Value("a", ord));
    p.views = {1};
    ASSERT_EQ(0, p.Put("a", "z", ord + 1));
    if (ord == 20)
      memory = pgmap_memory(p.m);
  }
  EXPECT_EQ(memory, pgmap_memory(p.m));
  EXPECT_EQ("1", Value("a", 1));
}

TEST_F(Pgmap, LaterChangeOfOneOrdinalWins) {
  ASSERT_EQ(0, p.Put("a", "1", 7));
  ASSERT_EQ(0, p.Delete("a", 7));
  EXPECT_EQ(PGMAP_DELETED, Get("a", 7));
  ASSERT_EQ(0, p.DeleteRange({"a", "c"}, 7));
  ASSERT_EQ(0, p.Put("b", "2", 7));
  EXPECT_EQ("2", Value("b", 7));
  EXPECT_EQ(PGMAP_DELETED, Get("a", 7));
  EXPECT_EQ(1u, pgmap_entries(p.m));
  p.Check(7);
  p.Check(6);
}

TEST_F(Pgmap, EmptyValueIsNotATombstone) {
  ASSERT_EQ(0, p.Put("a", "", 1));
  EXPECT_EQ(PGMAP_VALUE, Get("a", 1));
  ASSERT_EQ(0, pgmap_put(p.m, p.pool.Keep("b"), {nullptr, 0}, 2, 0));
  EXPECT_EQ(PGMAP_VALUE, Get("b", 2));
}

TEST_F(Pgmap, DeleteLeavesTombstoneEvenWithoutEntry) {
  ASSERT_EQ(0, p.Delete("b", 1));
  EXPECT_EQ(PGMAP_DELETED, Get("b", 1));
  EXPECT_EQ(std::vector<Bytes>{"b"}, Keys(1));
  EXPECT_EQ(1u, pgmap_entries(p.m));
}

TEST_F(Pgmap, RangeDeleteRemovesEntriesAndMasksBelow) {
  for (const char *k : {"a", "b", "c", "d"})
    ASSERT_EQ(0, p.Put(k, "v", 1));
  ASSERT_EQ(0, p.Delete("bb", 2));
  ASSERT_EQ(0, p.DeleteRange({"b", "d"}, 3));
  EXPECT_EQ((std::vector<Bytes>{"a", "d"}), Keys(3));
  EXPECT_EQ(2u, pgmap_entries(p.m));
  EXPECT_EQ(PGMAP_DELETED, Get("b", 3));
  EXPECT_EQ(PGMAP_DELETED, Get("bx", 3));
  EXPECT_EQ(PGMAP_NONE, Get("bx", 2));
  EXPECT_EQ(PGMAP_VALUE, Get("d", 3));
  EXPECT_TRUE(pgmap_masked(p.m, S("b"), 3));
  EXPECT_FALSE(pgmap_masked(p.m, S("d"), 3));
}

TEST_F(Pgmap, EmptyRangeIsNoChange) {
  ASSERT_EQ(0, p.Put("b", "v", 1));
  ASSERT_EQ(0, pgmap_delete_range(p.m, S("b"), S("b"), 2, 0));
  ASSERT_EQ(0, pgmap_delete_range(p.m, S("c"), S("a"), 2, 0));
  ASSERT_EQ(0, pgmap_delete_range(p.m, S(""), S(""), 2, 0));
  EXPECT_EQ(1u, pgmap_changes(p.m));
  EXPECT_TRUE(p.Masks(kLatest).empty());
  EXPECT_EQ(PGMAP_VALUE, Get("b", 2));
}

TEST_F(Pgmap, RangeWithoutEndReachesEveryKey) {
  ASSERT_EQ(0, p.Put("\xff\xff\xff", "v", 1));
  ASSERT_EQ(0, p.Put("", "v", 1));
  ASSERT_EQ(0, p.DeleteRange({"a", {}}, 2));
  EXPECT_EQ(std::vector<Bytes>{""}, Keys(2));
  EXPECT_TRUE(pgmap_masked(p.m, S("\xff\xff\xff\xff"), 2));
  ASSERT_EQ(0, p.DeleteRange({"", "a"}, 3));
  EXPECT_EQ((std::vector<Range>{{"", {}}}), p.Masks(3));
  EXPECT_EQ(0u, pgmap_entries(p.m));
}

TEST_F(Pgmap, EntryBehindMaskIsVisibleAndMaskStays) {
  ASSERT_EQ(0, p.DeleteRange({"a", "d"}, 10));
  p.views = {12};
  ASSERT_EQ(0, p.Put("b", "15", 15));
  EXPECT_EQ("15", Value("b", 15));
  EXPECT_TRUE(pgmap_masked(p.m, S("b"), 15));
  EXPECT_EQ(PGMAP_DELETED, Get("b", 12));
  EXPECT_EQ(PGMAP_NONE, Get("b", 9));
  p.views = {12, 16};
  ASSERT_EQ(0, p.DeleteRange({"b", "c"}, 20));
  EXPECT_EQ("15", Value("b", 16));
  EXPECT_EQ(PGMAP_DELETED, Get("b", 20));
  EXPECT_TRUE(Keys(20).empty());
  p.views = {12, 16, 20};
  ASSERT_EQ(0, p.Put("b", "21", 21));
  for (uint64_t at : {9, 12, 16, 20, 21}) {
    p.Check(at);
    p.CheckKey(at, "b");
  }
}

TEST_F(Pgmap, EntryKeptForViewGoesOnceNoViewNeedsIt) {
  ASSERT_EQ(0, p.Put("a", "1", 1));
  ASSERT_EQ(0, p.Put("b", "1", 1));
  p.views = {1};
  ASSERT_EQ(0, p.DeleteRange({"a", "c"}, 2));
  ASSERT_EQ(0, p.DeleteRange({"a", "c"}, 3));
  EXPECT_EQ(2u, pgmap_entries(p.m));
  EXPECT_TRUE(Keys(3).empty());
  EXPECT_EQ((std::vector<Bytes>{"a", "b"}), Keys(1));
  p.views.clear();
  ASSERT_EQ(0, p.DeleteRange({"a", "b"}, 4));
  EXPECT_EQ(1u, pgmap_entries(p.m));
}

TEST_F(Pgmap, MasksOfSeveralOrdinalsUnderOpenViews) {
  p.views = {1};
  ASSERT_EQ(0, p.DeleteRange({"c", "f"}, 5));
  p.views = {1, 6};
  ASSERT_EQ(0, p.DeleteRange({"a", "d"}, 10));
  p.views = {1, 6, 11};
  ASSERT_EQ(0, p.DeleteRange({"b", "k"}, 15));
  ASSERT_EQ(0, p.DeleteRange({"m", "n"}, 16));
  p.views = {1, 6, 11, 17};
  ASSERT_EQ(0, p.DeleteRange({"k", "m"}, 20));
  EXPECT_TRUE(p.Masks(1).empty());
  EXPECT_EQ((std::vector<Range>{{"c", "f"}}), p.Masks(6));
  EXPECT_EQ((std::vector<Range>{{"a", "f"}}), p.Masks(11));
  EXPECT_EQ((std::vector<Range>{{"a", "k"}, {"m", "n"}}), p.Masks(17));
  EXPECT_EQ((std::vector<Range>{{"a", "n"}}), p.Masks(20));
  for (uint64_t at : {1, 6, 11, 17, 20})
    for (const char *k : {"", "a", "b", "c", "d", "e", "f", "k", "l", "m", "n", "z"})
      p.CheckKey(at, k);
  p.views.clear();
  ASSERT_EQ(0, p.DeleteRange({"e", "g"}, 30));
  EXPECT_EQ((std::vector<Range>{{"a", "n"}}), p.Masks(30));
}

TEST_F(Pgmap, MaskWalkMayStartAnywhereAndGoBack) {
  for (int i = 0; i < 50; i++)
    ASSERT_EQ(0, p.DeleteRange({LogKey(10 * i), LogKey(10 * i + 5)}, i + 1));
  slice b, e;
  bool no_end;
  for (size_t i : {30, 31, 49, 2, 2, 50, 0, 7}) {
    ASSERT_EQ(i < 50, pgmap_mask(p.m, i, kLatest, &b, &e, &no_end)) << i;
    if (i < 50) {
      EXPECT_EQ(LogKey(10 * i), B(b));
    }
    EXPECT_EQ(i < 20, pgmap_mask(p.m, i, 20, &b, &e, &no_end)) << i;
  }
  ASSERT_EQ(0, p.DeleteRange({LogKey(0), LogKey(100)}, 60));
  ASSERT_TRUE(pgmap_mask(p.m, 1, kLatest, &b, &e, &no_end));
  EXPECT_EQ(LogKey(110), B(b));
}

TEST_F(Pgmap, TrimByRangeAtEachWriteKeepsOneMask) {
  size_t peak[2] = {};
  for (uint64_t i = 1; i <= 20000; i++) {
    ASSERT_EQ(0, p.Put(LogKey(i), "v", i));
    if (i > 100) {
      // Every other thousand from the very beginning, otherwise from where the last one ended.
      Bytes begin = i / 1000 % 2 ? Bytes() : LogKey(i - 101);
      ASSERT_EQ(0, p.DeleteRange({begin, LogKey(i - 100)}, i));
    }
    size_t &top = peak[i > 1000];
    top = std::max(top, pgmap_memory(p.m));
  }
  EXPECT_LE(peak[1], peak[0] + 256);
  EXPECT_EQ((std::vector<Range>{{"", LogKey(19900)}}), p.Masks(kLatest));
  EXPECT_EQ(101u, pgmap_entries(p.m));
  EXPECT_EQ(101u, Keys(kLatest).size());
}

TEST_F(Pgmap, RangesGoingDownKeepOneMask) {
  ASSERT_EQ(0, p.DeleteRange({LogKey(5000), LogKey(5001)}, 1));
  size_t memory = pgmap_memory(p.m);
  for (uint64_t i = 1; i < 5000; i++)
    ASSERT_EQ(0, p.DeleteRange({LogKey(5000 - i), LogKey(5001 - i)}, i));
  EXPECT_LE(pgmap_memory(p.m), memory + 100);
}

TEST_F(Pgmap, MasksOfClosedViewsJoinAtTheNextTouchingRange) {
  uint64_t ord = 1;
  size_t memory = 0;
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < 50; i++, ord++) {
      p.views = {ord};
      ASSERT_EQ(0, p.DeleteRange({LogKey(ord), LogKey(ord + 1)}, ord + 1));
    }
    p.views.clear();
    ASSERT_EQ(0, p.DeleteRange({LogKey(ord), LogKey(ord + 1)}, ord + 1));
    ord++;
    if (round == 1)
      memory = pgmap_memory(p.m);
  }
  EXPECT_EQ(memory, pgmap_memory(p.m));
  EXPECT_EQ((std::vector<Range>{{LogKey(1), LogKey(ord)}}), p.Masks(kLatest));
}

TEST_F(Pgmap, OneViewCostsOneMoreMaskAndWhatItSees) {
  uint64_t i = 1;
  auto round = [&] {
    ASSERT_EQ(0, p.Put(LogKey(i), "v", i));
    if (i > 100) {
      ASSERT_EQ(0, p.DeleteRange({"", LogKey(i - 100)}, i));
    }
    i++;
  };
  while (i <= 1000)
    round();
  p.views = {1000};
  while (i <= 3000)
    round();
  size_t memory = pgmap_memory(p.m);
  EXPECT_EQ(202u, pgmap_entries(p.m));
  while (i <= 10000)
    round();
  EXPECT_LE(pgmap_memory(p.m), memory + 8192);
  EXPECT_EQ((std::vector<Range>{{"", LogKey(900)}}), p.Masks(1000));
  p.Check(1000);
  p.Check(kLatest);
  p.views.clear();
  round();
  EXPECT_EQ(101u, pgmap_entries(p.m));
  p.Check(kLatest);
}

TEST_F(Pgmap, CursorGoesOnFromItsKeyAfterChanges) {
  for (int i = 0; i < 300; i++)
    ASSERT_EQ(0, p.Put(LogKey(2 * i), "v", 1));
  pgmap_cursor c;
  pgmap_cursor_init(&c, p.m, kLatest);
  pgmap_cursor_seek(&c, S(LogKey(200)));
  ASSERT_EQ(LogKey(200), B(c.key));
  ASSERT_TRUE(p.Erase(LogKey(200)));
  ASSERT_TRUE(p.Erase(LogKey(202)));
  for (int i = 0; i < 100; i++)
    ASSERT_EQ(0, p.Put(LogKey(2 * i + 1), "w", 2));
  pgmap_cursor_next(&c);
  ASSERT_EQ(LogKey(204), B(c.key));
  ASSERT_EQ(0, p.DeleteRange({LogKey(100), LogKey(300)}, 3));
  pgmap_cursor_prev(&c);
  ASSERT_EQ(LogKey(99), B(c.key));
  ASSERT_EQ(0, p.DeleteRange({"", {}}, 4));
  pgmap_cursor_next(&c);
  EXPECT_FALSE(c.valid);
}

TEST_F(Pgmap, CursorOfViewWalksWhatWasRemovedSince) {
  for (int i = 0; i < 200; i++)
    ASSERT_EQ(0, p.Put(LogKey(i), "v", 1));
  p.views = {1};
  pgmap_cursor c;
  pgmap_cursor_init(&c, p.m, 1);
  pgmap_cursor_last(&c);
  for (int i = 199; i >= 0; i--) {
    ASSERT_TRUE(c.valid);
    ASSERT_EQ(LogKey(i), B(c.key));
    ASSERT_EQ(0, p.DeleteRange({LogKey(i), {}}, 1000 - i));
    pgmap_cursor_prev(&c);
  }
  EXPECT_FALSE(c.valid);
  EXPECT_TRUE(Keys(kLatest).empty());
}

TEST_F(Pgmap, EraseRemovesAllVersionsAndGivesMemoryBack) {
  for (int i = 0; i < 1000; i++)
    ASSERT_EQ(0, p.Put(LogKey(i), "v", 1));
  size_t full = pgmap_memory(p.m);
  p.views = {1};
  ASSERT_EQ(0, p.Put(LogKey(5), "w", 2));
  ASSERT_TRUE(p.Erase(LogKey(5)));
  EXPECT_FALSE(p.Erase(LogKey(5)));
  EXPECT_EQ(PGMAP_NONE, Get(LogKey(5), 1));
  for (int i = 0; i < 1000; i++)
    if (i % 20)
      p.Erase(LogKey(i));
  EXPECT_EQ(50u, pgmap_entries(p.m));
  EXPECT_LT(pgmap_memory(p.m), full / 4);
  p.Check(kLatest);
}

TEST_F(Pgmap, RangeDeletesLeaveNoSparseChunks) {
  for (int i = 0; i < 128 * 50; i++)
    ASSERT_EQ(0, p.Put(LogKey(i), "v", 1));
  for (int i = 0; i < 50; i++)
    ASSERT_EQ(0, p.DeleteRange({LogKey(128 * i + 40), LogKey(128 * i + 125)}, 2 + i));
  EXPECT_EQ(43u * 50, pgmap_entries(p.m));
  EXPECT_LT(pgmap_memory(p.m) / (43.0 * 50), 2.0 * sizeof(pgmap_entry));
  p.Check(kLatest);
}

TEST_F(Pgmap, AscendingStreamsLeaveFullChunks) {
  Bytes last = "_info";
  uint64_t ord = 1;
  for (int i = 0; i < 50; i++)
    ASSERT_EQ(0, p.Put(LogKey(i, "zzz"), "v", ord++));
  for (int i = 0; i < 4000; i++) {
    ASSERT_EQ(0, p.Put(LogKey(5000 + i), "v", ord++));
    ASSERT_EQ(0, p.Put("_fastinfo", "v", ord++));
    ASSERT_EQ(0, p.Put("_info", "v", ord++));
    ASSERT_EQ(0, p.Delete(LogKey(i), ord++));
    ASSERT_EQ(0, p.Put(LogKey(9000 + i, "dup_"), "v", ord++));
    ASSERT_EQ(0, p.Delete(LogKey(i, "dup_"), ord++));
  }
  EXPECT_EQ(16052u, pgmap_entries(p.m));
  double each = static_cast<double>(pgmap_memory(p.m)) / pgmap_entries(p.m);
  EXPECT_LT(each, 1.05 * sizeof(pgmap_entry));
  p.Check(kLatest);
}

TEST_F(Pgmap, DescendingAndRandomKeysKeepChunksHalfFull) {
  for (int i = 10000; i > 0; i--)
    ASSERT_EQ(0, p.Put(LogKey(i), "v", 1));
  EXPECT_LT(pgmap_memory(p.m) / 10000.0, 1.1 * sizeof(pgmap_entry));
  std::mt19937_64 rng(1);
  for (int i = 0; i < 20000; i++)
    ASSERT_EQ(0, p.Put(LogKey(rng()), "v", 1));
  EXPECT_LT(pgmap_memory(p.m) / 30000.0, 2.0 * sizeof(pgmap_entry));
  p.Check(kLatest);
}

// --- speed --------------------------------------------------------------------------------------

uint64_t CpuNanoseconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

// What an OSD does with its PGs. Prints nanoseconds per operation; asserts nothing about them.
void OsdMix(int pgs, uint64_t transactions) {
  struct Pg {
    pgmap *m = nullptr;
    uint64_t head = 3000, tail = 0, dup_head = 3000, dup_tail = 0, n = 0;
  };
  std::vector<Pg> all(pgs);
  std::mt19937_64 rng(7);
  // Names and values as they lie in memory live: one after the other, as the blobs came.
  std::vector<char> bytes(60000ull * 600 + (1 << 20));
  uint64_t ord = 1, ops = 0, entries = 0, memory = 0;
  size_t used = 0;
  auto name = [&](const char *prefix, uint64_t n) {
    int len = snprintf(&bytes[used], 64, "%s%010u.%020llu", prefix, 12u,
                       static_cast<unsigned long long>(n));
    slice s = slice_make(&bytes[used], len);
    used += len;
    return s;
  };
  struct Op {
    Pg *pg;
    slice key, value;
    bool del;
  };
  std::vector<Op> queue;
  uint64_t spent = 0;
  for (uint64_t t = 0; t < transactions; t++) {
    if (t % 60000 == 0) {
      used = 0;
      for (auto &pg : all) {
        pgmap_free(pg.m);
        ASSERT_EQ(0, pgmap_new(&pg.m));
      }
    }
    Pg &pg = all[rng() % pgs];
    slice value = slice_make(&bytes[used], 200);
    queue.push_back({&pg, name("", pg.head++), value, false});
    slice info = slice_make(memcpy(&bytes[used], "_fastinfo", 9), 9);
    used += 256;
    queue.push_back({&pg, info, value, false});
    if (++pg.n % 100 == 0) {
      for (int i = 0; i < 100; i++)
        queue.push_back({&pg, name("", pg.tail++), value, true});
      for (int i = 0; i < 100; i++)
        queue.push_back({&pg, name("dup_", pg.dup_tail++), value, true});
      for (int i = 0; i < 100; i++)
        queue.push_back({&pg, name("dup_", pg.dup_head++), value, false});
    }
    if (queue.size() < 2000 && t + 1 < transactions && (t + 1) % 60000)
      continue;
    uint64_t start = CpuNanoseconds();
    int rc = 0;
    for (auto &o : queue)
      rc |= o.del ? pgmap_delete(o.pg->m, o.key, ord++, 0)
                  : pgmap_put(o.pg->m, o.key, o.value, ord++, 0);
    spent += CpuNanoseconds() - start;
    ASSERT_EQ(0, rc);
    ops += queue.size();
    queue.clear();
  }
  for (auto &pg : all) {
    entries += pgmap_entries(pg.m);
    memory += pgmap_memory(pg.m);
    pgmap_free(pg.m);
  }
  printf("%4d maps: %.1f ns per operation, %.1f bytes per entry\n", pgs,
         static_cast<double>(spent) / ops, static_cast<double>(memory) / entries);
}

TEST(PgmapSpeed, OsdMixOneMap) {
  OsdMix(1, 200000);
}
TEST(PgmapSpeed, OsdMix128Maps) {
  OsdMix(128, 200000);
}

}  // namespace
