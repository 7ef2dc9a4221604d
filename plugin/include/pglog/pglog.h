/* SPDX-License-Identifier: Apache-2.0
 *
 * pglog.h - a RocksDB plugin that keeps placement group (PG) logs out of the LSM tree.
 *
 * This header has what every door of the plugin shares: status codes, options, the rule that says
 * which keys are pg log keys, the I/O interface of the arena, and the registration with RocksDB.
 * The database facade is in <pglog/db.h>.
 *
 * Conventions, for all public headers:
 *  1. Functions that can fail return 0 (PGLOG_OK) or a negative PGLOG_* code and, where they take a
 *     `struct pglog_error *`, fill it with the code and one sentence that names the thing, the limit
 *     and the value. The pointer may be NULL. On success the struct is left alone.
 *  2. Facade functions keep the habits of rocksdb/c.h instead: `char **errptr`, set to a malloc'ed
 *     string on failure (free it with rocksdb_free), left alone on success.
 *  3. Keys and values are (pointer, length) byte strings and may hold any byte, NUL included.
 *  4. Nothing here keeps a pointer to caller memory after it returns, unless its comment says so.
 *  5. Unless its comment says otherwise a function may be called from any thread.
 */
#ifndef PGLOG_PGLOG_H
#define PGLOG_PGLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Library version. MAJOR changes when a program that used the public headers as documented may stop
 * compiling or working; MINOR when something is added; PATCH otherwise. */
#define PGLOG_VERSION_MAJOR 0
#define PGLOG_VERSION_MINOR 1
#define PGLOG_VERSION_PATCH 0

/* Disk format version of the arena (superblock, tables, leaves), see FORMAT.md. Raised whenever an
 * older library would misread what a newer one writes. An arena of another version is refused. */
#define PGLOG_FORMAT_VERSION 2

/* Version of the blob that rides in a WriteBatch as LogData. Raised like PGLOG_FORMAT_VERSION; a
 * reader knows every version up to its own, since WAL files outlive library upgrades. */
#define PGLOG_BLOB_VERSION 1

/* ---------------------------------------------------------------------------------------------- */
/* Status                                                                                         */

enum pglog_status {
  PGLOG_OK = 0,
  PGLOG_EINVAL = -1,     /* a malformed argument, option or record */
  PGLOG_ENOTSUP = -2,    /* well-formed, but refused by design (DESIGN: Rules and options) */
  PGLOG_ECORRUPT = -3,   /* bytes read back are not what was written */
  PGLOG_EIO = -4,        /* the file system or device answered with an error */
  PGLOG_ENOMEM = -5,     /* out of memory */
  PGLOG_EFULL = -6,      /* the arena has no room for the check point */
  PGLOG_ENOTFOUND = -7,  /* no such key, file or PG */
  PGLOG_EBUSY = -8,      /* opened twice, or the writer is refused until a check point makes room */
  PGLOG_EPOISONED = -9,  /* an earlier write or sync failed: nothing more is written until reopen */
  PGLOG_ETOOBIG = -10,   /* over a limit that the message names */
  PGLOG_EMISMATCH = -11, /* another rule, another version, or the arena of another database */
  PGLOG_EEXIST = -12,    /* there already (osdcore) */
};

/* Short fixed text of a status code, e.g. "corruption". Never NULL; static storage. */
const char *pglog_status_str(int code);

/* Largest error text, with its NUL. Longer ones are cut. */
#define PGLOG_ERROR_TEXT 768

/* An error's code and sentence. Caller-allocated; needs no initialisation and no release. */
struct pglog_error {
  int code;
  char text[PGLOG_ERROR_TEXT];
};

/* ---------------------------------------------------------------------------------------------- */
/* The rule                                                                                       */

#define PGLOG_PREFIX_MAX 64       /* bytes of a rule's prefix */
#define PGLOG_CF_NAME_MAX 255     /* bytes of a rule's column family name */
#define PGLOG_KEY_MAX 1024        /* bytes of a pg log key, prefix not counted */
#define PGLOG_VALUE_MAX 0xffff0000u /* bytes of a pg log value */
#define PGLOG_CF_UNKNOWN 0xffffffffu

enum pglog_pgid_kind {
  PGLOG_PGID_FIXED = 1, /* the PG id is the first N bytes after the prefix */
  PGLOG_PGID_UNTIL = 2, /* the PG id ends with the first byte C after the prefix, C included */
};

/* Which keys are pg log keys, and where the PG id ends. A key that is too short to hold a whole PG
 * id is a PG of its own. Stored in the superblock; opening with another rule is refused. */
struct pglog_rule {
  char cf[PGLOG_CF_NAME_MAX + 1]; /* column family name; "default" unless given */
  uint8_t prefix[PGLOG_PREFIX_MAX];
  uint8_t prefix_len;  /* 0..PGLOG_PREFIX_MAX */
  uint8_t pgid_kind;   /* enum pglog_pgid_kind */
  uint16_t pgid_arg;   /* FIXED: N, 1..255; UNTIL: the byte C */
};

/* ---------------------------------------------------------------------------------------------- */
/* Arena I/O                                                                                      */

#define PGLOG_BLOCK 4096u /* bytes of an arena block, the unit of every arena read and write */

enum pglog_io_op { PGLOG_IO_READ = 1, PGLOG_IO_WRITE = 2 };

/* One request of a batch. `buf` is aligned to PGLOG_BLOCK; offset and length are multiples of it. */
struct pglog_io_req {
  int op;          /* enum pglog_io_op */
  int result;      /* out: 0, or a negative errno; a short transfer is -EIO */
  uint64_t offset; /* bytes */
  uint32_t length; /* bytes */
  void *buf;
};

/* How the arena reaches its storage. The plugin has its own implementation (libaio, O_DIRECT);
 * a caller may supply another one through pglog_options.io (tests do: a simulated disk).
 * All calls but `submit` come from one thread at a time; `submit` with reads only may come from
 * several threads at once, and beside one `submit` with writes. */
struct pglog_io {
  void *arg; /* passed to every call */
  /* Run all requests, in any order, and wait for them. Returns 0 if every result is 0. */
  int (*submit)(void *arg, struct pglog_io_req *reqs, size_t n);
  /* Make every completed write, and the size, durable. 0 or a negative errno. */
  int (*sync)(void *arg);
  /* Present size in bytes, or a negative errno. */
  int64_t (*size)(void *arg);
  /* Make the storage at least `bytes` long, with space reserved. 0, or a negative errno; a device of
   * fixed size answers -ENOSPC beyond its end. */
  int (*grow)(void *arg, uint64_t bytes);
  /* Bytes of storage really allocated (st_blocks for a file), or a negative errno. */
  int64_t (*allocated)(void *arg);
  /* Release. The struct itself belongs to whoever made it. */
  void (*close)(void *arg);
};

/* ---------------------------------------------------------------------------------------------- */
/* Options                                                                                        */

/* All settings of one database's log store. pglog_options_init() fills in the defaults. The same
 * names are the keys of the URI form, `pglog://?key=value&...`, and of the string form,
 * `id=pglog;key=value;...`. Sizes in text take the suffixes K, M, G and T (powers of 1024). */
struct pglog_options {
  struct pglog_rule rule; /* prefix=TEXT|0xHEX, cf=NAME, pgid=fixed:N|until:C. Default: pglog/, the
                             default column family, until:/ */
  bool rule_given;        /* a rule was named. Otherwise the rule in the superblock, if any, holds */
  char arena[4096];       /* arena=PATH: file or block device. Default (""): pglog.arena in the
                             database directory */
  char wal_dir[4096];     /* wal_dir=PATH: where the WAL files are, if not in the database directory */
  char base[1024];        /* base=URI: the file system below, a registry URI. Default: RocksDB's */
  uint64_t memory;        /* memory=SIZE: staged bytes at which a check point starts. At twice this
                             writers are slowed, at four times refused. 1M..1T, default 64M */
  uint64_t arena_max;     /* arena_max=SIZE: the arena never grows beyond. 1M..16T, default 4G */
  uint64_t arena_step;    /* arena_step=SIZE: the arena grows in steps of this. 64K..1G, default 16M */
  uint32_t queue_depth;   /* queue_depth=N: arena requests in flight. 1..1024, default 32 */
  bool format;            /* format=1: set the arena of a deleted database aside as .old */
  bool no_guard;          /* guard=0: facade only; open without the guard column family */
  const struct pglog_io *io; /* not in text: the caller's own storage in place of `arena`. Must stay
                             valid until the database is closed */
};

/* Fill in the defaults. */
void pglog_options_init(struct pglog_options *o);

/* Parse a URI (`pglog://`, `pglog://?a=b&c=d`; %XX escapes in values) or a string
 * (`id=pglog;a=b;c=d`) over what `o` holds. PGLOG_EINVAL names the unknown or malformed key, the
 * limit and the value; `o` is then unspecified. Thread-safe on different `o`. */
int pglog_options_parse(struct pglog_options *o, const char *text, struct pglog_error *err);

/* Check ranges and combinations. Called by every open. */
int pglog_options_check(const struct pglog_options *o, struct pglog_error *err);

/* ---------------------------------------------------------------------------------------------- */
/* Registration                                                                                   */

/* Register the `pglog` FileSystem, the `pglog://` Env and the guard's comparator in RocksDB's
 * default object registry. Loading the shared library does it too (so that LD_PRELOAD is enough for
 * stock tools); this call makes sure that a linker has kept the library. Idempotent. Returns 0. */
int pglog_register(void);

/* Name of the guard column family and of its comparator (DESIGN I9). */
#define PGLOG_GUARD_CF "pglog.guard"
#define PGLOG_GUARD_COMPARATOR "pglog.guard.v1"

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
