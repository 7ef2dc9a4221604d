// SPDX-License-Identifier: Apache-2.0
//
// Proves that a database behind the facade is a map: random batches over pg log keys and others, in
// several column families, read back by every kind of read, in both directions, with bounds, across
// flushes, check points, compactions and reopening; old iterators keep seeing what they saw.
//
// PGLOG_TEST_SEED replays one case, PGLOG_TEST_SECONDS runs new ones that long.
#include <chrono>
#include <map>
#include <memory>
#include <random>

#include "db_testing.h"

namespace {

using Map = std::map<std::string, std::string>;

// A rule, and how to make keys for it.
struct Case {
  const char *name, *uri;
  int cf;                           // index of the rule's column family
  const char *prefix;               // of pg log keys
  std::vector<std::string> around;  // keys of the same column family near the range
};

const std::vector<Case> setups = {
    {"default",
     "pglog://",
     0,
     "pglog/",
     {"", "a", "pglo", "pglog", "pglog.", "pglog.\xff", "pglog0", "pglog00", "q", "\xff\xff"}},
    {"ceph", "pglog://?cf=P&prefix=&pgid=fixed:8", 2, "", {}},
    {"binary",
     "pglog://?cf=P&prefix=0xffff&pgid=fixed:2",
     2,
     "\xff\xff",
     {"", "a", "\xff", "\xff\xfe", "\xff\xfe\xff\xff"}},
};

struct Held {  // an iterator that is kept while the database changes
  pglog_iterator_t *it;
  int cf;
  Map model;
};

class Model {
 public:
  Model(const Case &s, uint64_t seed)
      : setup_(s), rnd_(seed), db_(dir_.db(), {"default", "D", "P"}) {
    rocksdb_options_set_max_total_wal_size(db_.options, 256 << 10);
    rocksdb_options_set_write_buffer_size(db_.options, 128 << 10);
    db_.set(s.uri);
    reopen();
  }
  ~Model() { drop_held(); }

  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); i++) {
      SCOPED_TRACE("step " + std::to_string(i));
      step();
    }
    if (!::testing::Test::HasFatalFailure())
      reopen();
    for (int cf = 0; cf < 3 && !::testing::Test::HasFatalFailure(); cf++)
      check_all(cf);
  }

 private:
  uint64_t below(uint64_t n) { return rnd_() % n; }
  bool one_in(uint64_t n) { return below(n) == 0; }

  std::string pg_key() {
    char id[16], name[64];
    std::string pg;
    if (std::string(setup_.name) == "default") {
      snprintf(id, sizeof id, "1.%x/", (unsigned)below(6));
      pg = one_in(20) ? "1" : id;  // now and then a key without a whole PG id
    } else {
      size_t n = std::string(setup_.name) == "ceph" ? 8 : 2;
      pg = std::string(n - 1, '\0') + (char)below(6);
      if (one_in(20))
        pg.resize(n - 1);
    }
    switch (below(10)) {
      case 0:
        return setup_.prefix + pg + "_info";
      case 1:
        return setup_.prefix + pg + "_fastinfo";
      case 2:
        return setup_.prefix + pg;
      default:
        snprintf(name, sizeof name, "%010u.%012u", (unsigned)below(3), (unsigned)below(60));
        return setup_.prefix + pg + name;
    }
  }
  std::string data_key() {
    std::string k(1 + below(3), 'a');
    for (auto &c : k)
      c = "aboqz"[below(5)];
    return k;
  }
  std::string any_key(int cf) {
    if (cf != setup_.cf)
      return data_key();
    if (setup_.around.empty() || one_in(2))
      return pg_key();
    return one_in(2) ? setup_.around[below(setup_.around.size())]
                     : (setup_.prefix[0] == 'p' ? data_key() : setup_.around[below(3)] + "x");
  }
  bool is_pg(int cf, const std::string &k) {
    return cf == setup_.cf && k.compare(0, strlen(setup_.prefix), setup_.prefix) == 0;
  }
  std::string value() {
    std::string v(one_in(50) ? below(20000) : below(300), '\0');
    for (size_t i = 0; i < v.size(); i += 1 + below(40))
      v[i] = (char)below(256);
    return v;
  }

  void add_op(rocksdb_writebatch_t *b, std::vector<Map> &m) {
    int cf = one_in(3) ? (int)below(3) : setup_.cf;
    auto *h = db_.handles[cf];
    std::string k = any_key(cf);
    switch (below(12)) {
      case 0:
      case 1:
        rocksdb_writebatch_delete_cf(b, h, k.data(), k.size());
        m[cf].erase(k);
        break;
      case 2:
        if (is_pg(cf, k))  // RocksDB's own need one put and no other kind of delete
          rocksdb_writebatch_singledelete_cf(b, h, k.data(), k.size());
        else
          rocksdb_writebatch_delete_cf(b, h, k.data(), k.size());
        m[cf].erase(k);
        break;
      case 3: {
        std::string e = any_key(cf);
        if (k > e)
          std::swap(k, e);
        if (k == e)
          break;           // an empty range at a RocksDB key would be its own to judge
        if (!one_in(4)) {  // mostly short ones
          auto a = m[cf].lower_bound(k), z = a;
          for (int i = 0; i < 5 && z != m[cf].end(); i++)
            ++z;
          if (z != m[cf].end() && z->first < e)
            e = z->first;
          if (k >= e)
            break;
        }
        rocksdb_writebatch_delete_range_cf(b, h, k.data(), k.size(), e.data(), e.size());
        m[cf].erase(m[cf].lower_bound(k), m[cf].lower_bound(e));
        break;
      }
      case 4:
        rocksdb_writebatch_put_log_data(b, "remark", 6);
        break;
      default: {
        std::string v = value();
        rocksdb_writebatch_put_cf(b, h, k.data(), k.size(), v.data(), v.size());
        m[cf][k] = v;
      }
    }
  }

  void write() {
    rocksdb_writebatch_t *b = rocksdb_writebatch_create();
    std::vector<Map> m = model_;
    for (uint64_t n = below(8); n-- > 0;)
      add_op(b, m);
    std::string before(batch(b));
    ASSERT_OK(db_.write(b));
    ASSERT_EQ(before, batch(b)) << "the caller's batch was changed";
    model_ = m;
    rocksdb_writebatch_destroy(b);
  }
  static std::string batch(rocksdb_writebatch_t *b) {
    size_t n;
    const char *d = rocksdb_writebatch_data(b, &n);
    return std::string(d + 8, n - 8);  // RocksDB itself sets the sequence
  }

  void check_get() {
    int cf = (int)below(3);
    std::string k = any_key(cf);
    auto want = model_[cf].find(k);
    auto have = db_.get(cf, k);
    ASSERT_EQ(want != model_[cf].end(), have.has_value()) << k << " " << have.value_or("");
    if (have) {
      ASSERT_EQ(want->second, *have);
    }
    char *err = nullptr;
    pglog_pinnable_t *p =
        pglog_db_get_pinned_cf(db_.db, db_.ro, db_.handles[cf], k.data(), k.size(), &err);
    ASSERT_EQ("", take(err));
    ASSERT_EQ(have.has_value(), p != nullptr);
    if (p) {
      size_t n;
      const char *v = pglog_pinnable_value(p, &n);
      ASSERT_EQ(*have, std::string(v, n));
    }
    pglog_pinnable_destroy(p);
  }

  void check_multi_get() {
    size_t n = 1 + below(12);
    std::vector<int> cfs(n);
    std::vector<std::string> keys(n);
    std::vector<const rocksdb_column_family_handle_t *> h(n);
    std::vector<const char *> kp(n);
    std::vector<size_t> kn(n), vn(n);
    std::vector<char *> v(n), e(n);
    for (size_t i = 0; i < n; i++) {
      cfs[i] = one_in(2) ? setup_.cf : (int)below(3);
      keys[i] = any_key(cfs[i]);
      h[i] = db_.handles[cfs[i]];
      kp[i] = keys[i].data();
      kn[i] = keys[i].size();
    }
    pglog_db_multi_get_cf(db_.db, db_.ro, h.data(), n, kp.data(), kn.data(), v.data(), vn.data(),
                          e.data());
    for (size_t i = 0; i < n; i++) {
      EXPECT_EQ("", take(e[i]));
      auto want = model_[cfs[i]].find(keys[i]);
      EXPECT_EQ(want != model_[cfs[i]].end(), v[i] != nullptr) << keys[i];
      if (v[i] && want != model_[cfs[i]].end()) {
        EXPECT_EQ(want->second, std::string(v[i], vn[i]));
      }
      rocksdb_free(v[i]);
    }
  }

  // Moves an iterator about, and a model iterator with it.
  void walk(pglog_iterator_t *it, int cf, const Map &m, const std::string *lo,
            const std::string *hi, int moves) {
    auto begin = lo ? m.lower_bound(*lo) : m.begin();
    auto end = hi ? m.lower_bound(*hi) : m.end();
    if (lo && hi && *lo >= *hi)
      end = begin;
    auto at = end;
    bool valid = false;
    for (int i = 0; i < moves; i++) {
      unsigned move = below(10);
      std::string k = any_key(cf);
      if (!valid && move >= 4)
        move = below(4);
      switch (move) {
        case 0:
          pglog_iter_seek_to_first(it);
          at = begin;
          valid = begin != end;
          break;
        case 1:
          pglog_iter_seek_to_last(it);
          valid = begin != end;
          at = valid ? std::prev(end) : end;
          break;
        case 2:
          pglog_iter_seek(it, k.data(), k.size());
          at = lo && k < *lo ? begin : m.lower_bound(k);
          valid = begin != end && at != m.end() && (!hi || at->first < *hi);
          break;
        case 3:
          pglog_iter_seek_for_prev(it, k.data(), k.size());
          at = hi && k >= *hi ? end : m.upper_bound(k);
          valid = begin != end && at != m.begin() && (!lo || std::prev(at)->first >= *lo);
          if (valid)
            --at;
          break;
        case 4:
        case 5:
        case 6:
          pglog_iter_next(it);
          valid = ++at != end;
          break;
        default:
          pglog_iter_prev(it);
          valid = at != begin;
          if (valid)
            --at;
      }
      char *err = nullptr;
      pglog_iter_get_error(it, &err);
      ASSERT_EQ("", take(err));
      ASSERT_EQ(valid, pglog_iter_valid(it) != 0) << "move " << move << " key " << k;
      if (valid) {
        size_t n;
        const char *p = pglog_iter_key(it, &n);
        ASSERT_EQ(at->first, std::string(p, n)) << "move " << move << " key " << k;
        p = pglog_iter_value(it, &n);
        ASSERT_EQ(at->second, std::string(p, n));
      }
    }
  }

  void check_iterator() {
    int cf = one_in(4) ? (int)below(3) : setup_.cf;
    std::string lo = any_key(cf), hi = any_key(cf);
    bool with_lo = one_in(2), with_hi = one_in(2);
    rocksdb_readoptions_t *ro = rocksdb_readoptions_create();
    if (with_lo && with_hi && lo > hi)
      std::swap(lo, hi);
    std::string lo_copy = lo, hi_copy = hi;
    if (with_lo)
      rocksdb_readoptions_set_iterate_lower_bound(ro, lo_copy.data(), lo_copy.size());
    if (with_hi)
      rocksdb_readoptions_set_iterate_upper_bound(ro, hi_copy.data(), hi_copy.size());
    pglog_iterator_t *it = pglog_db_create_iterator_cf(db_.db, ro, db_.handles[cf]);
    rocksdb_readoptions_destroy(ro);  // nothing of it is kept
    std::fill(lo_copy.begin(), lo_copy.end(), 'x');
    std::fill(hi_copy.begin(), hi_copy.end(), 'x');
    walk(it, cf, model_[cf], with_lo ? &lo : nullptr, with_hi ? &hi : nullptr, 40);
    pglog_iter_destroy(it);
  }

  void check_all(int cf) {
    pglog_iterator_t *it = pglog_db_create_iterator_cf(db_.db, db_.ro, db_.handles[cf]);
    std::vector<std::pair<std::string, std::string>> want(model_[cf].begin(), model_[cf].end());
    expect_equal(want, all_of(it));
    std::reverse(want.begin(), want.end());
    expect_equal(want, all_of(it, false));
    pglog_iter_destroy(it);
  }
  template <typename T>
  static void expect_equal(const T &want, const T &have) {  // says where they differ, not all
    size_t n = std::min(want.size(), have.size());
    for (size_t i = 0; i < n; i++) {
      ASSERT_EQ(want[i].first, have[i].first) << "entry " << i << " of " << want.size();
      ASSERT_TRUE(want[i].second == have[i].second) << "value of " << want[i].first;
    }
    ASSERT_EQ(want.size(), have.size());
  }

  void hold() {
    if (held_.size() >= 3) {
      Held h = held_.front();
      held_.erase(held_.begin());
      walk(h.it, h.cf, h.model, nullptr, nullptr, 60);
      pglog_iter_destroy(h.it);
    } else {
      int cf = one_in(4) ? (int)below(3) : setup_.cf;
      held_.push_back(
          {pglog_db_create_iterator_cf(db_.db, db_.ro, db_.handles[cf]), cf, model_[cf]});
    }
  }
  void drop_held() {
    for (auto &h : held_)
      pglog_iter_destroy(h.it);
    held_.clear();
  }

  void reopen() {
    drop_held();
    db_.close();
    ASSERT_OK(db_.open());
  }

  void step() {
    switch (below(60)) {
      case 0:
        reopen();
        break;
      case 1:
        ASSERT_OK(db_.flush());
        break;
      case 2:
        ASSERT_OK(db_.flush((int)below(3)));
        break;
      case 3:
      case 4:
        ASSERT_OK(db_.checkpoint());
        break;
      case 5:
        pglog_db_compact_range_cf(db_.db, db_.handles[below(3)], nullptr, 0, nullptr, 0);
        break;
      case 6:
      case 7:
        check_all((int)below(3));
        break;
      case 8:
      case 9:
      case 10:
      case 11:
        hold();
        break;
      case 12:
      case 13:
      case 14:
      case 15:
        check_iterator();
        break;
      case 16:
      case 17:
      case 18:
        check_multi_get();
        break;
      case 19:
      case 20:
      case 21:
        check_get();
        break;
      default:
        write();
    }
  }

  const Case &setup_;
  std::mt19937_64 rnd_;
  TempDir dir_;
  Db db_;
  std::vector<Map> model_ = std::vector<Map>(3);
  std::vector<Held> held_;
};

class DbModel : public ::testing::TestWithParam<size_t> {};

void run_case(const Case &s, uint64_t seed, int steps) {
  SCOPED_TRACE("PGLOG_TEST_SEED=" + std::to_string(seed));
  Model m(s, seed);
  if (!::testing::Test::HasFatalFailure())
    m.run(steps);
}

TEST_P(DbModel, RandomBatches) {
  const Case &s = setups[GetParam()];
  if (const char *seed = getenv("PGLOG_TEST_SEED")) {
    run_case(s, strtoull(seed, nullptr, 10), 250);
    return;
  }
  const char *seconds = getenv("PGLOG_TEST_SECONDS");
  uint64_t seed = 1;
  for (; seed <= 2 && !HasFailure(); seed++)
    run_case(s, seed, 250);
  auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds ? atoi(seconds) : 0);
  seed = std::random_device{}();
  while (std::chrono::steady_clock::now() < until && !HasFailure())
    run_case(s, seed++, 250);
}

INSTANTIATE_TEST_SUITE_P(Rules, DbModel, ::testing::Values(0, 1, 2),
                         [](const auto &i) { return std::string(setups[i.param].name); });

}  // namespace
