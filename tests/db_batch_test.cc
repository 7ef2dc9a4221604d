// SPDX-License-Identifier: Apache-2.0
// Proves against RocksDB itself that a split batch and its blob together do what the batch did.
#include <gtest/gtest.h>
#include <rocksdb/c.h>
#include <rocksdb/write_batch.h>
#include <stdlib.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "batch.h"
#include "blob.h"
#include "rule.h"

using Map = std::map<std::string, std::string>;
using Ops = std::vector<std::string>;

static struct slice S(const std::string &s) {
  return slice_make(s.data(), s.size());
} static std::string Str(struct slice s) {
  return std::string((const char *)s.data, s.size);
}

static const char *const kFamilies[] = {"default", "P", "Q"};
constexpr int kN = 3;

// A database with three column families in a temporary directory.
class Db {
 public:
  Db() {
    path = testing::TempDir() + "pglog_db_batch_XXXXXX";
    EXPECT_NE(mkdtemp(&path[0]), nullptr);
    options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_options_set_create_missing_column_families(options, 1);
    wo = rocksdb_writeoptions_create();
    ro = rocksdb_readoptions_create();
    const rocksdb_options_t *all[kN] = {options, options, options};
    char *err = NULL;
    db = rocksdb_open_column_families(options, path.c_str(), kN, kFamilies, all, cf, &err);
    EXPECT_EQ(err, nullptr) << err;
  }
  ~Db() {
    for (auto *h : cf)
      rocksdb_column_family_handle_destroy(h);
    rocksdb_close(db);
    char *err = NULL;
    rocksdb_destroy_db(options, path.c_str(), &err);
    rocksdb_free(err);
    rocksdb_options_destroy(options);
    rocksdb_writeoptions_destroy(wo);
    rocksdb_readoptions_destroy(ro);
  }
  // Returns the error, "" for none.
  std::string Write(rocksdb_writebatch_t *b) {
    char *err = NULL;
    rocksdb_write(db, wo, b, &err);
    std::string text = err ? err : "";
    rocksdb_free(err);
    return text;
  }
  Map Dump(int family) {
    Map m;
    rocksdb_iterator_t *it = rocksdb_create_iterator_cf(db, ro, cf[family]);
    for (rocksdb_iter_seek_to_first(it); rocksdb_iter_valid(it); rocksdb_iter_next(it)) {
      size_t k, v;
      const char *key = rocksdb_iter_key(it, &k), *value = rocksdb_iter_value(it, &v);
      m[std::string(key, k)] = std::string(value, v);
    }
    rocksdb_iter_destroy(it);
    return m;
  }
  uint32_t Id(int family) { return rocksdb_column_family_handle_get_id(cf[family]); }

  std::string path;
  rocksdb_options_t *options;
  rocksdb_writeoptions_t *wo;
  rocksdb_readoptions_t *ro;
  rocksdb_t *db;
  rocksdb_column_family_handle_t *cf[kN];
};

struct Rule {
  Rule(const std::string &text, uint32_t cf) {
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

static std::string Data(rocksdb_writebatch_t *b) {
  size_t n;
  const char *p = rocksdb_writebatch_data(b, &n);
  return std::string(p, n);
}

static void Stamp(void *, uint64_t *number, uint8_t *tag) {
  *number = 1;
  *tag = 2;
}
static const struct batch_hooks kHooks = {nullptr, nullptr, Stamp};

// Splits; the output, or the batch as it was if there was nothing to take out.
static std::string Split(const Rule &rule, const std::string &batch, bool *split) {
  struct blob_builder bb = {};
  struct buf out = {};
  struct pglog_error e = {0, ""};
  EXPECT_EQ(batch_split(&rule.br, S(batch), &kHooks, &bb, &out, split, &e), 0) << e.text;
  std::string res = *split ? std::string((char *)out.data, out.size) : batch;
  blob_builder_free(&bb);
  buf_free(&out);
  return res;
}

// The records as RocksDB's own iteration gives them.
class Lister : public rocksdb::WriteBatch::Handler {
 public:
  using Slice = rocksdb::Slice;
  using Status = rocksdb::Status;
  Status Add(const char *op, uint32_t cf, const Slice &a, const Slice &b) {
    ops.push_back(std::string(op) + std::to_string(cf) + " " + a.ToString() + "=" + b.ToString());
    counted++;
    return Status::OK();
  }
  Status PutCF(uint32_t cf, const Slice &k, const Slice &v) override {
    return Add("put", cf, k, v);
  }
  Status DeleteCF(uint32_t cf, const Slice &k) override { return Add("del", cf, k, ""); }
  Status SingleDeleteCF(uint32_t cf, const Slice &k) override { return Add("single", cf, k, ""); }
  Status DeleteRangeCF(uint32_t cf, const Slice &a, const Slice &b) override {
    return Add("range", cf, a, b);
  }
  Status MergeCF(uint32_t cf, const Slice &k, const Slice &v) override {
    return Add("merge", cf, k, v);
  }
  void LogData(const Slice &b) override {
    if (blob_is(S(b.ToString())))
      blob = b.ToString();
    else
      ops.push_back("log " + b.ToString());
  }
  Ops ops;
  std::string blob;
  uint32_t counted = 0;
};

static void ListByRocksDB(const std::string &batch, Lister *l) {
  rocksdb::Status s = rocksdb::WriteBatch(batch).Iterate(l);
  EXPECT_TRUE(s.ok()) << s.ToString();
}

/* The same through this library. */
static Ops ListByBatch(const std::string &batch) {
  static const std::map<int, std::string> names = {{BATCH_PUT, "put"},
                                                   {BATCH_DELETE, "del"},
                                                   {BATCH_SINGLE_DELETE, "single"},
                                                   {BATCH_DELETE_RANGE, "range"},
                                                   {BATCH_MERGE, "merge"}};
  Ops ops;
  const uint8_t *base = (const uint8_t *)batch.data(), *p = base + BATCH_HEADER;
  while (p < base + batch.size()) {
    struct batch_record r;
    EXPECT_EQ(batch_next(base, &p, base + batch.size(), &r, NULL), 0);
    if (r.op != BATCH_LOG_DATA)
      ops.push_back(names.at(r.op) + std::to_string(r.cf) + " " + Str(r.key) + "=" + Str(r.value));
    else if (!blob_is(r.value))
      ops.push_back("log " + Str(r.value));
  }
  return ops;
}

// Apply a blob's operations to a model of the store.
static void Apply(const std::string &blob, Map *m) {
  struct blob_cursor c;
  struct blob_header h;
  struct blob_op op;
  ASSERT_EQ(blob_open(&c, S(blob), &h, NULL), 0);
  int rc;
  while ((rc = blob_next(&c, &op, NULL)) > 0) {
    std::string key = Str(op.pgid) + Str(op.name);
    if (op.kind == BLOB_PUT)
      (*m)[key] = Str(op.value);
    else if (op.kind == BLOB_DELETE)
      m->erase(key);
    else
      m->erase(m->lower_bound(Str(op.begin)),
               op.kind == BLOB_DELREST ? m->end() : m->lower_bound(Str(op.end)));
  }
  ASSERT_EQ(rc, 0);
}

static const char kAlphabet[] = {'a', 'b', '/', (char)0xff, 0};

static std::string Key(std::mt19937 &rnd, const struct pglog_rule &r) {
  std::string key((const char *)r.prefix, r.prefix_len);
  if (rnd() % 3 == 0)
    key.resize(rnd() % (key.size() + 1));
  for (unsigned i = rnd() % 5; i > 0; i--)
    key += kAlphabet[rnd() % 5];
  return key;
}

// A record through RocksDB's C API.
static void AddRandom(rocksdb_writebatch_t *b, Db &db, std::mt19937 &rnd,
                      const struct pglog_rule &r) {
  int family = (int)(rnd() % kN);
  std::string key = Key(rnd, r), other = Key(rnd, r);
  switch (rnd() % 10) {
    case 0:
    case 1:
    case 2:
    case 3:
      other.assign(rnd() % 300, (char)rnd());
      if (family == 0)
        rocksdb_writebatch_put(b, key.data(), key.size(), other.data(), other.size());
      else
        rocksdb_writebatch_put_cf(b, db.cf[family], key.data(), key.size(), other.data(),
                                  other.size());
      break;
    case 4:
    case 5:
      if (family == 0)
        rocksdb_writebatch_delete(b, key.data(), key.size());
      else
        rocksdb_writebatch_delete_cf(b, db.cf[family], key.data(), key.size());
      break;
    case 6:
      rocksdb_writebatch_put_log_data(b, other.data(), other.size());
      break;
    default:
      if (rnd() % 2)
        break;
      if (other < key)
        std::swap(key, other);
      if (family == 0)
        rocksdb_writebatch_delete_range(b, key.data(), key.size(), other.data(), other.size());
      else
        rocksdb_writebatch_delete_range_cf(b, db.cf[family], key.data(), key.size(), other.data(),
                                           other.size());
  }
}

struct Setting {
  const char *rule;
  int family;
};

// The same random batches go whole into one database, and split into another one and a model.
TEST(DbBatch, SplitIsTheSameAsWhole) {
  const Setting settings[] = {{"pglog://?prefix=b/", 0},
                              {"pglog://?cf=P&prefix=&pgid=fixed:2", 1},
                              {"pglog://?cf=P&prefix=0xffff&pgid=until:a", 1},
                              {"pglog://?cf=Q&prefix=a&pgid=fixed:1", 2}};
  for (unsigned seed = 1; seed <= 8; seed++) {
    SCOPED_TRACE(seed);
    std::mt19937 rnd(seed);
    const Setting &set = settings[seed % 4];
    Db whole, apart;
    Rule rule(set.rule, whole.Id(set.family));
    Map model;
    unsigned splits = 0;
    for (int i = 0; i < 120; i++) {
      rocksdb_writebatch_t *b = rocksdb_writebatch_create();
      for (unsigned n = rnd() % 12; n > 0; n--)
        AddRandom(b, whole, rnd, rule.rule);
      std::string data = Data(b), out;
      bool split;
      out = Split(rule, data, &split);
      splits += split;
      Lister in, cut;
      ListByRocksDB(data, &in);
      ListByRocksDB(out, &cut);
      ASSERT_EQ(in.ops, ListByBatch(data));
      ASSERT_EQ(cut.ops, ListByBatch(out));
      ASSERT_EQ(split, !cut.blob.empty());
      rocksdb_writebatch_t *o = rocksdb_writebatch_create_from(out.data(), out.size());
      ASSERT_EQ((uint32_t)rocksdb_writebatch_count(o), cut.counted);
      ASSERT_EQ(whole.Write(b), "");
      ASSERT_EQ(apart.Write(o), "");
      if (split)
        Apply(cut.blob, &model);
      rocksdb_writebatch_destroy(b);
      rocksdb_writebatch_destroy(o);
      if (HasFatalFailure())
        return;
    }
    EXPECT_GT(splits, 20u);
    for (int f = 0; f < kN; f++) {
      Map want = whole.Dump(f), got = apart.Dump(f);
      for (const auto &kv : got)
        ASSERT_FALSE(f == set.family && rule_has_prefix(&rule.rule, S(kv.first))) << kv.first;
      if (f == set.family)
        for (const auto &kv : model)
          got[Str(slice_make(rule.rule.prefix, rule.rule.prefix_len)) + kv.first] = kv.second;
      ASSERT_EQ(want, got) << kFamilies[f];
    }
  }
}

/* The C API's own iteration, which knows Put and Delete of the default column family. */
static void OnPut(void *arg, const char *k, size_t n, const char *v, size_t vn) {
  ((Ops *)arg)->push_back("put " + std::string(k, n) + "=" + std::string(v, vn));
}
static void OnDelete(void *arg, const char *k, size_t n) {
  ((Ops *)arg)->push_back("del " + std::string(k, n));
}

TEST(DbBatch, IteratedByTheCApi) {
  Rule rule("pglog://", 0);
  rocksdb_writebatch_t *b = rocksdb_writebatch_create();
  rocksdb_writebatch_put(b, "a", 1, "1", 1);
  rocksdb_writebatch_put(b, "pglog/1/x", 9, "log", 3);
  rocksdb_writebatch_delete(b, "b", 1);
  rocksdb_writebatch_delete(b, "pglog/1/w", 9);
  rocksdb_writebatch_put_log_data(b, "note", 4);
  rocksdb_writebatch_put(b, "c", 1, "", 0);
  bool split;
  std::string out = Split(rule, Data(b), &split);
  rocksdb_writebatch_destroy(b);
  ASSERT_TRUE(split);
  b = rocksdb_writebatch_create_from(out.data(), out.size());
  Ops ops;
  rocksdb_writebatch_iterate(b, &ops, OnPut, OnDelete);
  EXPECT_EQ(ops, Ops({"put a=1", "del b", "put c="}));
  EXPECT_EQ(rocksdb_writebatch_count(b), 3);
  rocksdb_writebatch_destroy(b);
  Lister l;
  ListByRocksDB(out, &l);
  Map model = {{"1/w", "old"}};
  Apply(l.blob, &model);
  EXPECT_EQ(model, Map({{"1/x", "log"}}));
}

TEST(DbBatch, SingleDeleteAndMergeAsRocksDBWritesThem) {
  Rule rule("pglog://", 0);
  rocksdb_writebatch_t *b = rocksdb_writebatch_create();
  rocksdb_writebatch_singledelete(b, "pglog/1/x", 9);
  rocksdb_writebatch_singledelete(b, "x", 1);
  rocksdb_writebatch_merge(b, "m", 1, "v", 1);
  bool split;
  Lister l;
  ListByRocksDB(Split(rule, Data(b), &split), &l);
  EXPECT_EQ(l.ops, Ops({"single0 x=", "merge0 m=v"}));
  rocksdb_writebatch_merge(b, "pglog/1/x", 9, "v", 1);
  std::string data = Data(b);
  rocksdb_writebatch_destroy(b);
  struct blob_builder bb = {};
  struct buf out = {};
  struct pglog_error e;
  EXPECT_EQ(batch_split(&rule.br, S(data), &kHooks, &bb, &out, &split, &e), PGLOG_ENOTSUP);
  EXPECT_FALSE(split);
  blob_builder_free(&bb);
  buf_free(&out);
}

// What batch_split's treatment of ranges relies on: an empty one is accepted and takes a sequence
// number, an inverted one is refused.
TEST(DbBatch, RocksDBOnEmptyAndInvertedRanges) {
  Db db;
  rocksdb_writebatch_t *b = rocksdb_writebatch_create();
  uint64_t before = rocksdb_get_latest_sequence_number(db.db);
  rocksdb_writebatch_delete_range(b, "x", 1, "x", 1);
  EXPECT_EQ(db.Write(b), "");
  EXPECT_EQ(rocksdb_get_latest_sequence_number(db.db), before + 1);
  rocksdb_writebatch_clear(b);
  rocksdb_writebatch_delete_range(b, "y", 1, "x", 1);
  EXPECT_NE(db.Write(b).find("end key comes before start key"), std::string::npos);
  rocksdb_writebatch_destroy(b);
}
