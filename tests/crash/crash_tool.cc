// SPDX-License-Identifier: Apache-2.0
//
// What the shell tests of this directory need to make a database and to look into one.
//
// usage: crash_tool COMMAND DIR default|ceph    (the rule)
//   two-wals   make a database, leave pg log staged in two WALs, and die by SIGKILL
//   dump       open through the facade and print its pg log keys and values in hex, one a line, and
//              then, to stderr, the property pglog.stats
//   plain      without the plugin: drop the guard of a copy that may be spoilt, and look for keys
//   of
//              the rule in every column family, and in every SST file by itself
#include <rocksdb/comparator.h>
#include <rocksdb/db.h>
#include <rocksdb/sst_file_reader.h>
#include <signal.h>

#include <filesystem>
#include <memory>

#include "workload.h"

using namespace crash;

namespace {

void must(const std::string &e) {
  if (e.empty())
    return;
  fprintf(stderr, "crash_tool: %s\n", e.c_str());
  exit(1);
}

Setup setup_of(const Keys &keys) {
  Setup s;
  s.keys = keys;
  s.write_buffer = 4 << 20;
  s.max_total_wal = 64 << 20;
  s.memory = 64 << 20;
  return s;
}

void two_wals(const std::string &dir, const Keys &keys) {
  Db db;
  must(db.open(dir, setup_of(keys)));
  Writer w(20262, 0, keys);
  for (int i = 0; i < 400; i++) {
    must(db.write(w.next(), i % 8 == 7));
    if (i == 200) /* a new WAL; default and P still need the old one */
      must(db.flush(CF_O, false));
  }
  if (db.stat("checkpoints") != 0 || db.stat("wals") < 2)
    must("the pg log is not staged in two WALs");
  kill(getpid(), SIGKILL);
}

std::string hex(const std::string &s) {
  std::string out;
  for (unsigned char c : s)
    out += format("%02x", c);
  return out;
}

void dump(const std::string &dir, const Keys &keys) {
  Db db;
  must(db.open(dir, setup_of(keys)));
  std::vector<std::pair<std::string, std::string>> all;
  must(db.read(keys.cf(), true, &all));
  for (auto &kv : all)
    if (keys.ceph || kv.first.compare(0, 6, "pglog/") == 0)
      printf("%s %s\n", hex(kv.first).c_str(), hex(kv.second).c_str());
  char *stats = pglog_db_property_value(db.db, "pglog.stats");
  fputs(stats, stderr);
  rocksdb_free(stats);
}

/* ---------------------------------------------------------------------------------------------- */
/* Without the plugin                                                                             */

// Bytewise, under the guard's name.
class GuardComparator : public rocksdb::Comparator {
 public:
  using Slice = rocksdb::Slice;
  const char *Name() const override { return PGLOG_GUARD_COMPARATOR; }
  int Compare(const Slice &a, const Slice &b) const override { return a.compare(b); }
  void FindShortestSeparator(std::string *, const Slice &) const override {}
  void FindShortSuccessor(std::string *) const override {}
};

uint64_t found, seen;

void look(const Keys &keys, const std::string &where, bool rule_cf, const rocksdb::Slice &key) {
  seen++;
  if (!rule_cf || (!keys.ceph && !key.starts_with("pglog/")))
    return;
  if (found++ < 10)
    printf("%s holds the pg log key %s\n", where.c_str(), printable(key.ToString()).c_str());
}

void must(const rocksdb::Status &s) {
  must(s.ok() ? std::string() : s.ToString());
}

void plain(const std::string &dir, const Keys &keys) {
  GuardComparator guard;
  rocksdb::Options o;
  o.avoid_flush_during_recovery = true; /* what the WALs held is in memtables, and is read there */
  std::vector<std::string> names;
  must(rocksdb::DB::ListColumnFamilies(o, dir, &names));
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (auto &name : names) {
    rocksdb::ColumnFamilyOptions c;
    if (name == PGLOG_GUARD_CF)
      c.comparator = &guard;
    families.emplace_back(name, c);
  }
  rocksdb::DB *db;
  std::vector<rocksdb::ColumnFamilyHandle *> cf;
  must(rocksdb::DB::Open(o, dir, families, &cf, &db));
  for (size_t i = 0; i < cf.size(); i++) {
    std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(rocksdb::ReadOptions(), cf[i]));
    for (it->SeekToFirst(); it->Valid(); it->Next())
      look(keys, "column family " + names[i], names[i] == kCfNames[keys.cf()], it->key());
    must(it->status());
  }
  for (size_t i = 0; i < cf.size(); i++)
    if (names[i] == PGLOG_GUARD_CF)
      must(db->DropColumnFamily(cf[i]));
  std::vector<rocksdb::LiveFileMetaData> live;
  db->GetLiveFilesMetaData(&live);
  for (auto &f : live) {
    rocksdb::Options so;
    if (f.column_family_name == PGLOG_GUARD_CF)
      so.comparator = &guard;
    rocksdb::SstFileReader reader(so);
    must(reader.Open(f.db_path + f.name));
    std::unique_ptr<rocksdb::Iterator> it(reader.NewIterator(rocksdb::ReadOptions()));
    for (it->SeekToFirst(); it->Valid(); it->Next())
      look(keys, f.name, f.column_family_name == kCfNames[keys.cf()], it->key());
    must(it->status());
  }
  for (auto *h : cf)
    must(db->DestroyColumnFamilyHandle(h));
  must(db->Close());
  delete db;
  /* No guard: any RocksDB opens it. */
  names.erase(std::remove(names.begin(), names.end(), PGLOG_GUARD_CF), names.end());
  families.clear();
  for (auto &name : names)
    families.emplace_back(name, rocksdb::ColumnFamilyOptions());
  must(rocksdb::DB::Open(o, dir, families, &cf, &db));
  for (auto *h : cf)
    must(db->DestroyColumnFamilyHandle(h));
  must(db->Close());
  delete db;
  printf("%llu keys in memtables, SSTs and column families, %llu of them pg log keys, %zu SSTs\n",
         (unsigned long long)seen, (unsigned long long)found, live.size());
  if (found)
    exit(1);
}

}  // namespace

int main(int argc, char **argv) {
  std::string command = argc == 4 ? argv[1] : "", rule = argc == 4 ? argv[3] : "";
  Keys keys;
  keys.ceph = rule == "ceph";
  if (rule != "ceph" && rule != "default")
    command = "";
  if (command == "two-wals")
    two_wals(argv[2], keys);
  else if (command == "dump")
    dump(argv[2], keys);
  else if (command == "plain")
    plain(argv[2], keys);
  else
    return fprintf(stderr, "usage: crash_tool two-wals|dump|plain DIR default|ceph\n"), 2;
  return 0;
}
