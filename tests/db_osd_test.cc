// SPDX-License-Identifier: Apache-2.0
//
// db_osd_test.cc - osd over RocksDB, with pg log keys in the log store and without: what it answers
// is what a plain model says, also after reopening, and its log is the one that was acknowledged.
#include "db_testing.h"
#include "osd_testing.h"

extern "C" {
#include "kv_rocksdb.h"
#include "log_entry.h"
}

namespace {

class DbOsd : public testing::TestWithParam<int> {
 protected:
  TempDir dir_;
  struct osd *o_ = nullptr;
  struct osd_config c_ = {};
  std::string path_ = dir_.path() + "/osd";

  void SetUp() override {
    c_.path = path_.c_str();
    c_.store = GetParam();
    c_.pg_bits = 2;
    c_.shards = 2;
    c_.log_keep = 30;
    c_.log_trim_min = 5;
    c_.max_dups = 40;
  }
  void Open() {
    struct pglog_error err = {0, ""};
    ASSERT_EQ(osd_open(&o_, &c_, &err), 0) << err.text;
  }
  void Close() {
    osd_close(o_);
    o_ = nullptr;
  }
  void TearDown() override { Close(); }
};

}  // namespace

TEST_P(DbOsd, AgreesWithAModel) {
  for (size_t depth : {1, 40}) {
    path_ += std::to_string(depth);
    c_.path = path_.c_str();
    Open();
    auto reopen = [&] {
      Close();
      Open();
    };
    ASSERT_NO_FATAL_FAILURE(AgreesWithModel(o_, depth, 300, depth, reopen)) << "depth " << depth;
    struct osd_stats st;
    osd_stats(o_, &st);
    EXPECT_GT(st.load_entries, 0u);
    Close();
  }
}

// A request that was answered is not run again after a restart, and the log has the entry that it
// was answered with.
TEST_P(DbOsd, TheLogAfterARestartIsWhatWasAcknowledged) {
  c_.log_keep = 1000;
  Open();
  std::deque<Req> all;
  for (uint64_t i = 0; i < 100; i++) {
    int op = i % 10 == 3 ? OSD_CREATE : OSD_WRITE;
    all.emplace_back(op, "o" + std::to_string(i % 7), i, 0, "x").Id(1, i);
    ASSERT_EQ(all.back().Submit(o_), 0);
  }
  osd_drain(o_);
  Close();
  struct kv kv;
  struct pglog_error err;
  ASSERT_EQ(
      kv_rocksdb_open(&kv, c_.path, GetParam() == OSD_STORE_SPLIT ? KV_SPLIT : KV_ROCKSDB, &err),
      0);
  std::map<std::string, std::pair<int32_t, uint64_t>> log;  // PG/version: result, tid
  std::string b = "pglog/", e = "pglog0";
  auto slice = [](const std::string &s) {
    return osd_slice{reinterpret_cast<const uint8_t *>(s.data()), s.size()};
  };
  ASSERT_EQ(kv.scan(
                kv.arg, slice(b), slice(e),
                [](void *arg, struct osd_slice k, struct osd_slice v, struct pglog_error *err) {
                  struct osd_log_entry entry;
                  struct osd_eversion version;
                  std::string key = Text(k).substr(6), name = key.substr(key.find('/') + 1);
                  if (osd_name_parse({k.data + k.size - name.size(), name.size()}, &version) !=
                      OSD_NAME_IS_ENTRY)
                    return 0;
                  EXPECT_EQ(osd_entry_get(v, &entry, err), 0);
                  (*static_cast<decltype(log) *>(arg))[key] = {entry.result, entry.reqid.tid};
                  return 0;
                },
                &log, &err),
            0);
  kv.close(kv.arg);
  ASSERT_EQ(log.size(), all.size());
  for (Req &q : all) {
    char pg[16], name[OSD_NAME_MAX];
    snprintf(pg, sizeof pg, "1.%x/", osd_hash(q.name.data(), q.name.size()) & 3);
    osd_entry_name(name, {q.res.epoch, q.res.version});
    auto it = log.find(pg + std::string(name));
    ASSERT_NE(it, log.end()) << name;
    EXPECT_EQ(it->second, std::pair(q.res.code, q.r.tid));
    EXPECT_EQ(q.res.code, q.r.op == OSD_CREATE && q.r.tid > 6 ? PGLOG_EEXIST : 0);
  }
  Open();
  struct osd_stats st;
  osd_stats(o_, &st);
  EXPECT_EQ(st.load_entries, all.size());
  for (Req &q : all) {
    Req again(q.r.op, q.name, q.r.offset, 0, "y");
    again.Id(1, q.r.tid);
    ASSERT_EQ(again.Submit(o_), 0);
    osd_drain(o_);
    EXPECT_TRUE(again.res.duplicate);
    EXPECT_EQ(again.version(), q.version());
    EXPECT_EQ(again.res.code, q.res.code);
  }
}

TEST_P(DbOsd, SplitsAndDeletesPgs) {
  Open();
  Content want;
  for (int i = 0; i < 60; i++) {
    std::string name = "o" + std::to_string(i);
    want[name] = std::string((size_t)(i * 300), 'a');
    ASSERT_EQ(osd_write_full(o_, name.c_str(), want[name].data(), want[name].size(), nullptr), 0);
  }
  struct pglog_error err = {0, ""};
  uint32_t child = 0;
  ASSERT_EQ(osd_pg_split(o_, 1, &child, &err), 0) << err.text;
  EXPECT_EQ(child, 5u);
  ASSERT_NO_FATAL_FAILURE(ExpectContent(o_, want));
  ASSERT_EQ(osd_pg_delete(o_, 1, &err), 0) << err.text;
  ASSERT_EQ(osd_pg_delete(o_, 2, &err), 0) << err.text;
  for (auto it = want.begin(); it != want.end();) {
    uint32_t h = osd_hash(it->first.data(), it->first.size());
    bool gone = (h & 7) == 1 || (h & 3) == 2;
    it = gone ? want.erase(it) : std::next(it);
  }
  ASSERT_NO_FATAL_FAILURE(ExpectContent(o_, want));
  Close();
  Open();
  ASSERT_NO_FATAL_FAILURE(ExpectContent(o_, want));
  ASSERT_EQ(osd_pg_create(o_, 2, 2, &err), 0) << err.text;
  ASSERT_EQ(osd_pg_create(o_, 1, 3, &err), 0) << err.text;
  ASSERT_NO_FATAL_FAILURE(ExpectContent(o_, want));
}

TEST_P(DbOsd, OpenNamesWhatIsWrong) {
  struct pglog_error err = {0, ""};
  c_.path = "/proc/nowhere/db";
  EXPECT_EQ(osd_open(&o_, &c_, &err), PGLOG_EIO);
  EXPECT_NE(std::string(err.text).find("/proc/nowhere"), std::string::npos);
  c_.path = "";
  EXPECT_EQ(osd_open(&o_, &c_, &err), PGLOG_EINVAL);
  EXPECT_STREQ(err.text, "osd: path is empty");
  c_.path = nullptr;
  EXPECT_EQ(osd_open(&o_, &c_, nullptr), PGLOG_EINVAL);
  c_.store = 2;
  EXPECT_EQ(osd_open(&o_, &c_, &err), PGLOG_EINVAL);
  EXPECT_STREQ(err.text, "osd: store is 2, it must be 0 to 1");
  EXPECT_EQ(o_, nullptr);
}

INSTANTIATE_TEST_SUITE_P(Stores, DbOsd, testing::Values(OSD_STORE_SPLIT, OSD_STORE_ROCKSDB),
                         [](const testing::TestParamInfo<int> &i) {
                           return std::string(i.param == OSD_STORE_SPLIT ? "split" : "rocksdb");
                         });
