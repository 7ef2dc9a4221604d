/* SPDX-License-Identifier: Apache-2.0
 *
 * refuse.h - RocksDB's options as far as they matter to the log store: which ones are refused
 * (DESIGN section 5), and where and how the WALs are read. From a DBOptions or from an OPTIONS
 * file.
 */
#ifndef PGLOG_REFUSE_H
#define PGLOG_REFUSE_H

#include <rocksdb/options.h>

#include <map>
#include <string>

namespace pglog {

/* Options by name, values spelled as in an OPTIONS file. */
using DbOptionMap = std::map<std::string, std::string>;

/* Those of `o` that matter here. */
DbOptionMap DbOptionsOf(const rocksdb::DBOptions &o);

/* The [DBOptions] section of an OPTIONS file. */
DbOptionMap ParseOptionsFile(const std::string &text);

/* True: *why says which option and value is refused, and what for. An option that is not in the map
 * is not refused. */
bool Refused(const DbOptionMap &m, std::string *why);

/* wal_recovery_mode as a number (rocksdb::WALRecoveryMode), or -1 when not in the map. */
int RecoveryModeOf(const DbOptionMap &m);

/* The number in "OPTIONS-000123", or 0. */
uint64_t OptionsFileNumber(const std::string &basename);

}  // namespace pglog

#endif
