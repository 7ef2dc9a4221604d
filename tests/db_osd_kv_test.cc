// SPDX-License-Identifier: Apache-2.0
//
// db_osd_kv_test.cc - osdcore's store: a batch does what its operations say, joined batches are one
// write, and RocksDB with and without the log store answer alike, also after reopening.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

extern "C" {
#include "kv_rocksdb.h"
}
#include "db_testing.h"

namespace {

struct osd_slice S(const std::string &s) {
  return {reinterpret_cast<const uint8_t *>(s.data()), s.size()};
}

using Content = std::map<std::string, std::string>;

struct Store {
  struct kv kv = {};
  void Open(const std::string &path, enum kv_mode mode) {
    struct pglog_error err;
    ASSERT_EQ(kv_rocksdb_open(&kv, path.c_str(), mode, &err), 0) << err.text;
  }
  void Close() {
    if (kv.close)
      kv.close(kv.arg);
    kv = {};
  }
  ~Store() { Close(); }
  Content Scan(const std::string &begin, const std::string &end) {
    Content out;
    struct pglog_error err;
    EXPECT_EQ(kv.scan(
                  kv.arg, S(begin), S(end),
                  [](void *a, struct osd_slice k, struct osd_slice v, struct pglog_error *) {
                    auto text = [](struct osd_slice s) {
                      return std::string(reinterpret_cast<const char *>(s.data), s.size);
                    };
                    Content *c = static_cast<Content *>(a);
                    EXPECT_TRUE(c->empty() || c->rbegin()->first < text(k));
                    (*c)[text(k)] = text(v);
                    return 0;
                  },
                  &out, &err),
              0);
    return out;
  }
};

class OsdKv : public testing::TestWithParam<enum kv_mode> {};

}  // namespace

TEST_P(OsdKv, AgreesWithAMap) {
  TempDir dir;
  Store s;
  s.Open(dir.path() + "/db", GetParam());
  std::mt19937 rnd(3);
  Content want;
  auto key = [&] {
    return std::string(rnd() % 2 ? "pglog/1.a/" : rnd() % 2 ? "a/" : "z/") +
           std::to_string(rnd() % 200);
  };
  struct pglog_error err;
  struct kv_batch group = {}, one = {};
  for (int i = 0; i < 300; i++) {
    for (int txn = 0; txn < 3; txn++) {
      kv_batch_clear(&one);
      for (int n = 0; n < 5; n++) {
        std::string k = key(), v(rnd() % 6000, (char)rnd());
        if (rnd() % 4) {
          kv_put(&one, S(k), S(v));
          want[k] = v;
        } else {
          kv_delete(&one, S(k));
          want.erase(k);
        }
      }
      if (rnd() % 20 == 0) {
        std::string b = "pglog/1.a/" + std::to_string(rnd() % 200), e = b + "5";
        kv_delete_range(&one, S(b), S(e));
        want.erase(want.lower_bound(b), want.lower_bound(e));
      }
      kv_append(&group, &one);
    }
    EXPECT_GE(kv_batch_count(&group), 15u);
    ASSERT_EQ(s.kv.write(s.kv.arg, &group, i % 10 == 0, &err), 0) << err.text;
    kv_batch_clear(&group);
    EXPECT_EQ(kv_batch_count(&group), 0u);
    if (i % 100 == 99) {
      s.Close();
      s.Open(dir.path() + "/db", GetParam());
    }
    if (i % 50 == 49) {
      ASSERT_EQ(s.Scan("", "~"), want);
      std::string from = key();
      ASSERT_EQ(s.Scan(from, "z"),
                Content(want.lower_bound(from), std::max(from, std::string("z")) == from
                                                     ? want.lower_bound(from)
                                                     : want.lower_bound("z")));
      for (int n = 0; n < 50; n++) {
        std::string k = key();
        uint8_t *v;
        size_t size;
        int rc = s.kv.get(s.kv.arg, S(k), &v, &size, &err);
        ASSERT_EQ(rc, want.count(k) ? 0 : PGLOG_ENOTFOUND) << k;
        if (rc == 0) {
          EXPECT_EQ(std::string(reinterpret_cast<char *>(v), size), want[k]);
          free(v);
        }
      }
    }
  }
  ASSERT_EQ(s.kv.write(s.kv.arg, &group, true, &err), 0);  // of nothing
  int stop = s.kv.scan(
      s.kv.arg, S(""), S("~"),
      [](void *, struct osd_slice, struct osd_slice, struct pglog_error *) { return -77; }, nullptr,
      &err);
  EXPECT_EQ(stop, -77);
  kv_batch_free(&group);
  kv_batch_free(&one);
}

INSTANTIATE_TEST_SUITE_P(Modes, OsdKv, testing::Values(KV_SPLIT, KV_ROCKSDB),
                         [](const testing::TestParamInfo<enum kv_mode> &i) {
                           return std::string(i.param == KV_SPLIT ? "split" : "rocksdb");
                         });

TEST(OsdKvErrors, AreTheDatabases) {
  TempDir dir;
  struct kv kv;
  for (enum kv_mode mode : {KV_SPLIT, KV_ROCKSDB}) {
    struct pglog_error err;
    EXPECT_EQ(kv_rocksdb_open(&kv, "/proc/nowhere/db", mode, &err), PGLOG_EIO);
    EXPECT_NE(std::string(err.text).find("/proc/nowhere"), std::string::npos) << err.text;
    Store s;
    s.Open(dir.path() + "/" + std::to_string(mode), mode);
    struct kv_batch b = {};
    b.no_memory = true;
    EXPECT_EQ(s.kv.write(s.kv.arg, &b, true, &err), PGLOG_ENOMEM);
  }
}
