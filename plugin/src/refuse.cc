/* SPDX-License-Identifier: Apache-2.0 */
#include "refuse.h"

#include <sstream>

namespace pglog {

using rocksdb::DBOptions;
using rocksdb::WALRecoveryMode;

namespace {

const char *const kModeNames[] = {"kTolerateCorruptedTailRecords", "kAbsoluteConsistency",
                                  "kPointInTimeRecovery", "kSkipAnyCorruptedRecords"};

std::string ModeName(WALRecoveryMode m) {
  size_t i = static_cast<size_t>(m);
  return i < 4 ? kModeNames[i] : std::to_string(i);
}

std::string CompressionName(rocksdb::CompressionType t) {
  switch (t) {
    case rocksdb::kNoCompression:
      return "kNoCompression";
    case rocksdb::kZSTD:
      return "kZSTD";
    default:
      return std::to_string(static_cast<int>(t));
  }
}

std::string Bool(bool b) {
  return b ? "true" : "false";
}

std::string Trim(const std::string &s) {
  size_t a = s.find_first_not_of(" \t\r");
  return a == std::string::npos ? "" : s.substr(a, s.find_last_not_of(" \t\r") - a + 1);
}

struct Rule {
  const char *name, *good; /* every value but `good` is refused */
  const char *why;
};

const Rule kRules[] = {
    {"manual_wal_flush", "false", "records would reach the WAL after their write has returned"},
    {"wal_compression", "kNoCompression", "the pg log in a compressed WAL cannot be followed"},
    {"enable_pipelined_write", "false", "WAL order and memtable order would differ"},
    {"unordered_write", "false", "WAL order and memtable order would differ"},
    {"two_write_queues", "false", "records would enter the WAL beside the sequence"},
    {"allow_2pc", "false", "prepared transactions would enter the WAL before they are decided"},
    {"paranoid_checks", "true", "RocksDB would go on writing after a WAL error"},
    {"recycle_log_file_num", "0", "a recycled WAL file would be overwritten while it is needed"},
};

}  // namespace

DbOptionMap DbOptionsOf(const DBOptions &o) {
  /* recycle_log_file_num is left out: RocksDB ignores it in every recovery mode that is accepted.
   */
  return {{"manual_wal_flush", Bool(o.manual_wal_flush)},
          {"wal_compression", CompressionName(o.wal_compression)},
          {"enable_pipelined_write", Bool(o.enable_pipelined_write)},
          {"unordered_write", Bool(o.unordered_write)},
          {"two_write_queues", Bool(o.two_write_queues)},
          {"allow_2pc", Bool(o.allow_2pc)},
          {"paranoid_checks", Bool(o.paranoid_checks)},
          {"wal_recovery_mode", ModeName(o.wal_recovery_mode)},
          {"wal_dir", o.wal_dir}};
}

DbOptionMap ParseOptionsFile(const std::string &text) {
  DbOptionMap m;
  std::istringstream in(text);
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    line = Trim(line);
    if (line.empty() || line[0] == '#') {
      continue;
    }
    if (line[0] == '[') {
      inside = line == "[DBOptions]";
      continue;
    }
    size_t eq = line.find('=');
    if (inside && eq != std::string::npos) {
      m[Trim(line.substr(0, eq))] = Trim(line.substr(eq + 1));
    }
  }
  return m;
}

bool Refused(const DbOptionMap &m, std::string *why) {
  for (const Rule &r : kRules) {
    auto it = m.find(r.name);
    if (it != m.end() && it->second != r.good) {
      *why = "pglog: RocksDB option " + it->first + "=" + it->second + " is refused (only " +
             r.good + "): " + r.why;
      return true;
    }
  }
  if (RecoveryModeOf(m) == static_cast<int>(WALRecoveryMode::kSkipAnyCorruptedRecords)) {
    *why =
        "pglog: RocksDB option wal_recovery_mode=kSkipAnyCorruptedRecords is refused: RocksDB and "
        "the pg log would not keep the same records";
    return true;
  }
  return false;
}

int RecoveryModeOf(const DbOptionMap &m) {
  auto it = m.find("wal_recovery_mode");
  for (int i = 0; it != m.end() && i < 4; i++) {
    if (it->second == kModeNames[i]) {
      return i;
    }
  }
  return -1;
}

uint64_t OptionsFileNumber(const std::string &basename) {
  const std::string prefix = "OPTIONS-";
  if (basename.compare(0, prefix.size(), prefix) != 0 || basename.size() == prefix.size() ||
      basename.size() > prefix.size() + 19 ||
      basename.find_first_not_of("0123456789", prefix.size()) != std::string::npos) {
    return 0;
  }
  return std::stoull(basename.substr(prefix.size()));
}

}  // namespace pglog
