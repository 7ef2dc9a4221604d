/* SPDX-License-Identifier: Apache-2.0
 *
 * fs.hpp - the plugin's file system for C++ programs that build their own Env.
 *
 * Programs that name it in a string do not need this header: `env=pglog://?key=value&...` in an
 * options string, `--fs_uri=pglog://...`, or `id=pglog;key=value`, see pglog_options_parse().
 *
 * One Env or FileSystem serves any number of databases. A database must be opened, checked
 * (DestroyDB, RepairDB) and backed up through one of them, never through its base: only so are WAL
 * files kept until their pg log is check pointed.
 */
#ifndef PGLOG_FS_HPP
#define PGLOG_FS_HPP

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <memory>

#include "pglog/pglog.h"

extern "C" {
#pragma GCC visibility push(default)

/* A file system with these options (copied; `options.io` must stay valid as long as the file
 * system) over `base`; nullptr: the one that `options.base` names, or RocksDB's default. nullptr
 * and *err (may be NULL): PGLOG_EINVAL (options; unknown base; the base is a pglog file system
 * itself). */
std::shared_ptr<rocksdb::FileSystem> pglog_new_file_system(
    const struct pglog_options &options, std::shared_ptr<rocksdb::FileSystem> base,
    struct pglog_error *err);

/* An Env over `fs` (from pglog_new_file_system) with the threads and the clock of `target`;
 * nullptr: those of RocksDB's default Env. `target` must outlive it. Close the databases before it
 * goes. */
std::unique_ptr<rocksdb::Env> pglog_new_env(std::shared_ptr<rocksdb::FileSystem> fs,
                                            rocksdb::Env *target);

#pragma GCC visibility pop
}

#endif
