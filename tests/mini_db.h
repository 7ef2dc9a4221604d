/* SPDX-License-Identifier: Apache-2.0
 *
 * mini_db.h - the smallest owner of WAL files: plays RocksDB's part for tests of the log store.
 *
 * It writes real WAL files (in memory, with a durable part and an appended part, so that a power cut
 * can be played), hands each append to the store as the fs shim does, counts sequence numbers, and
 * answers struct store_wal_ops. Data keys are kept as a plain list of records, so that a test can
 * compare what "RocksDB" replays with what the store recovers.
 */
#ifndef PGLOG_MINI_DB_H
#define PGLOG_MINI_DB_H

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

extern "C" {
#include "batch.h"
#include "blob.h"
#include "simdisk.h"
#include "store.h"
#include "wal.h"
}

inline slice S(const std::string &s) { return slice_make(s.data(), s.size()); }
inline std::string Str(slice s) {
  return std::string(reinterpret_cast<const char *>(s.data), s.size);
}

/* Store keys as an OSD's: a log entry, and a record by name. */
inline std::string Entry(int pg, uint64_t v) {
  char b[64];
  snprintf(b, sizeof b, "1.%x/%010u.%020llu", pg, 12, (unsigned long long)v);
  return b;
}
inline std::string Name(int pg, const char *name) {
  char b[64];
  snprintf(b, sizeof b, "1.%x/%s", pg, name);
  return b;
}

/* WAL files of one directory; survive the store and power cuts. */
struct WalDir {
  struct File {
    std::string bytes;   /* as the page cache has it */
    size_t durable = 0;  /* of them on the medium */
    bool hidden = false; /* handed over */
  };
  std::mutex mutex;
  std::map<uint64_t, File> files;
  std::map<std::string, std::string> cuts;
  uint64_t manifest_seq = 0; /* sequence that "flushes" have recorded */
  std::vector<std::string> log;
  std::atomic<int> syncs{0};
  std::atomic<bool> fail_sync{false};
  std::atomic<int> fail_sync_at{0}; /* this sync from now on fails */

  /* What a power cut leaves: the durable part, and `keep` of the rest of the last file. */
  void PowerCut(double keep) {
    for (auto &f : files) {
      size_t rest = f.second.bytes.size() - f.second.durable;
      f.second.bytes.resize(f.second.durable + static_cast<size_t>(rest * keep));
      f.second.durable = f.second.bytes.size();
      f.second.hidden = false;
    }
  }
  void Restart() {
    for (auto &f : files)
      f.second.hidden = false;
  }

  static WalDir *Of(void *arg) { return static_cast<WalDir *>(arg); }
  static int List(void *arg, store_wal_file **out, size_t *n, pglog_error *err) {
    auto *d = Of(arg);
    std::lock_guard<std::mutex> l(d->mutex);
    *out = static_cast<store_wal_file *>(malloc(sizeof **out * (d->files.size() + 1)));
    *n = 0;
    if (!*out)
      return error_set(err, PGLOG_ENOMEM, "out of memory for a list of WALs");
    for (auto &f : d->files)
      (*out)[(*n)++] = {f.first, f.second.bytes.size(), false};
    return 0;
  }
  static int Read(void *arg, uint64_t wal, uint64_t off, void *buf, size_t len, size_t *got,
                  pglog_error *) {
    auto *d = Of(arg);
    std::lock_guard<std::mutex> l(d->mutex);
    const std::string &b = d->files.at(wal).bytes;
    *got = off >= b.size() ? 0 : std::min(len, b.size() - off);
    memcpy(buf, b.data() + off, *got);
    return 0;
  }
  static int Rewrite(void *arg, uint64_t wal, uint64_t, pglog_error *) {
    auto *d = Of(arg);
    std::lock_guard<std::mutex> l(d->mutex);
    d->files.at(wal).durable = d->files.at(wal).bytes.size();
    return 0;
  }
  static int Cut(void *arg, uint64_t wal, uint64_t at, pglog_error *) {
    auto *d = Of(arg);
    std::lock_guard<std::mutex> l(d->mutex);
    File &f = d->files.at(wal);
    d->cuts[std::to_string(wal) + ".log.cut"] = f.bytes.substr(at);
    f.bytes.resize(at);
    f.durable = at;
    return 0;
  }
  static int Sync(void *arg, uint64_t wal, pglog_error *err) {
    auto *d = Of(arg);
    std::lock_guard<std::mutex> l(d->mutex);
    d->syncs++;
    if (d->fail_sync || (d->fail_sync_at > 0 && --d->fail_sync_at == 0))
      return error_set(err, PGLOG_EIO, "injected sync error");
    if (!d->files.count(wal))
      return error_set(err, PGLOG_EIO, "WAL %llu is not there", (unsigned long long)wal);
    d->files[wal].durable = d->files[wal].bytes.size();
    return 0;
  }
  static int SyncDir(void *, pglog_error *) { return 0; }
  static int Remove(void *arg, uint64_t wal, pglog_error *) {
    auto *d = Of(arg);
    std::lock_guard<std::mutex> l(d->mutex);
    EXPECT_TRUE(d->files.at(wal).hidden) << "WAL " << wal << " was not handed over";
    d->files.erase(wal);
    return 0;
  }
  static void Log(void *arg, int, const char *text) {
    auto *d = Of(arg);
    std::lock_guard<std::mutex> l(d->mutex);
    d->log.push_back(text);
  }
  store_wal_ops Ops() {
    return {this, List, Read, Rewrite, Cut, Sync, SyncDir, Remove, SyncDir, Log};
  }
};

inline pglog_rule TestRule() {
  pglog_rule r = {};
  strcpy(r.cf, "default");
  memcpy(r.prefix, "pglog/", 6);
  r.prefix_len = 6;
  r.pgid_kind = PGLOG_PGID_UNTIL;
  r.pgid_arg = '/';
  return r;
}

/* One operation on pg log keys. Keys are store keys. */
struct Op {
  int kind; /* enum blob_kind */
  std::string key, value; /* DELRANGE: begin, end */
};

class MiniDb {
 public:
  MiniDb(WalDir *dir, const pglog_io *io) : dir_(dir), io_(io) {
    pglog_options_init(&options);
    options.rule = TestRule();
    options.memory = 1 << 20;
    options.arena_step = 1 << 20;
  }
  ~MiniDb() {
    if (store)
      Kill();
  }

  int Open(pglog_error *err, bool has_current = true) {
    store_config c = {};
    options.io = io_;
    c.options = options;
    c.ops = dir_->Ops();
    c.recovery_mode = mode;
    c.has_current = has_current;
    Hook(enter);
    int rc = store_open(&c, &store, err);
    Hook(leave);
    if (rc != 0) {
      store = nullptr;
      return rc;
    }
    Replay();
    if (NewWal(err) != 0)
      return err->code;
    return store_attach(store, 0, Latest, this, err);
  }

  /* A new WAL; the older ones are handed over if `release`. */
  int NewWal(pglog_error *err, bool release = true) {
    uint64_t number = std::max(next_, store_highest_wal(store) + 1);
    next_ = number + 1;
    store_wal *w;
    Hook(enter);
    int rc = store_wal_create(store, number, &w, err);
    Hook(leave);
    if (rc != 0)
      return rc;
    {
      std::lock_guard<std::mutex> l(dir_->mutex);
      dir_->files[number] = {};
    }
    if (wal_)
      store_wal_close(wal_);
    wal_ = w;
    number_ = number;
    if (release)
      ReleaseOld();
    return 0;
  }

  void ReleaseOld() {
    std::vector<uint64_t> old;
    {
      std::lock_guard<std::mutex> l(dir_->mutex);
      dir_->manifest_seq = latest_;
      for (auto &f : dir_->files)
        if (f.first < number_ && !f.second.hidden) {
          f.second.hidden = true;
          old.push_back(f.first);
        }
    }
    for (uint64_t n : old)
      store_released(store, n, false);
  }

  /* Write transactions as one WAL record (a write group): each has its own blob and `plain` data puts. */
  int Write(const std::vector<std::vector<Op>> &group, uint32_t plain, bool sync, pglog_error *err) {
    std::string rec(BATCH_HEADER, '\0');
    uint32_t count = 0;
    uint8_t tag = 0;
    for (auto &txn : group) {
      for (uint32_t i = 0; i < plain; i++) {
        AppendPut(&rec, "data" + std::to_string(data_++), "v");
        count++;
      }
      tag = store_next_tag(store);
      AppendLogData(&rec, Blob(txn, tag));
    }
    uint64_t seq = latest_ + 1;
    put_le64(reinterpret_cast<uint8_t *>(&rec[0]), seq);
    put_le32(reinterpret_cast<uint8_t *>(&rec[8]), count);
    int rc = Append(rec, sync, err);
    if (rc != 0)
      return rc;
    latest_ += count;
    Hook(enter);
    store_written(store, tag, count == 0);
    Hook(leave);
    return 0;
  }
  int Write1(const std::vector<Op> &txn, pglog_error *err) { return Write({txn}, 1, true, err); }

  std::string Blob(const std::vector<Op> &txn, uint8_t tag) {
    blob_builder b = {};
    pglog_error err;
    pglog_rule rule = *store_rule(store);
    EXPECT_EQ(0, blob_begin(&b, tag, store_blobs_observed(store)));
    for (auto &o : txn) {
      size_t n = rule_pgid_len(&rule, S(o.key));
      int rc = 0;
      if (o.kind == BLOB_PUT)
        rc = blob_put(&b, S(o.key), n, S(o.value), &err);
      else if (o.kind == BLOB_DELETE)
        rc = blob_delete(&b, S(o.key), n, &err);
      else
        rc = blob_delete_range(&b, S(o.key), n,
                               o.kind == BLOB_DELREST ? slice_make(nullptr, 0) : S(o.value), &err);
      EXPECT_EQ(0, rc) << err.text;
    }
    slice out;
    EXPECT_EQ(0, blob_finish(&b, &out, &err)) << err.text;
    std::string s = Str(out);
    blob_builder_free(&b);
    return s;
  }

  int Append(const std::string &record, bool sync, pglog_error *err) {
    buf out = {};
    std::string framed;
    {
      std::lock_guard<std::mutex> l(dir_->mutex);
      size_t at = dir_->files[number_].bytes.size() % WAL_BLOCK;
      EXPECT_EQ(0, buf_reserve(&out, at));
      if (at > 0)
        memset(out.data, 0, at);
      out.size = at;
      EXPECT_EQ(0, wal_encode(&out, S(record), false, 0));
      framed.assign(reinterpret_cast<char *>(out.data) + at, out.size - at);
      buf_free(&out);
    }
    Hook(enter);
    int rc = store_wal_append_begin(wal_, framed.data(), framed.size(), err);
    Hook(leave);
    if (rc != 0)
      return rc;
    {
      std::lock_guard<std::mutex> l(dir_->mutex);
      dir_->files[number_].bytes += framed;
    }
    rc = store_wal_append_end(wal_, true, err);
    if (rc != 0 || !sync)
      return rc;
    uint64_t off;
    bool needless;
    rc = store_wal_sync_begin(wal_, &off, &needless, err);
    if (rc != 0 || needless)
      return rc;
    {
      std::lock_guard<std::mutex> l(dir_->mutex);
      auto &f = dir_->files[number_];
      f.durable = f.bytes.size();
    }
    return store_wal_sync_end(wal_, off, true, err);
  }

  void Close() {
    store_detach(store);
    store_wal_close(wal_);
    wal_ = nullptr;
    store_close(store);
    store = nullptr;
    dir_->Restart();
  }
  /* As after kill -9: what was appended stays, no last check point. */
  void Kill() {
    pglog_error err;
    error_set(&err, PGLOG_EIO, "killed");
    store_poison(store, &err);
    if (wal_)
      store_wal_close(wal_);
    wal_ = nullptr;
    store_close(store);
    store = nullptr;
    dir_->Restart();
  }

  /* Everything in the store, at one view, forward. */
  std::map<std::string, std::string> Dump() {
    std::map<std::string, std::string> m;
    pglog_error err;
    store_view *v;
    store_iter *it;
    EXPECT_EQ(0, store_view_open(store, nullptr, nullptr, &v, &err)) << err.text;
    EXPECT_EQ(0, store_iter_open(v, slice_make(nullptr, 0), slice_make(nullptr, 0), &it, &err));
    for (store_iter_seek_first(it); store_iter_valid(it); store_iter_next(it))
      m.emplace_hint(m.end(), Str(store_iter_key(it)), Str(store_iter_value(it)));
    EXPECT_EQ(0, store_iter_status(it, &err)) << err.text;
    store_iter_close(it);
    store_view_close(v);
    return m;
  }

  uint64_t Stat(const char *name) {
    std::vector<char> t(8192);
    store_stats(store, t.data(), t.size());
    std::string s = t.data(), key = std::string(name) + " ";
    size_t at = s.rfind("\n" + key);
    if (at == std::string::npos)
      at = s.find(key);
    else
      at++;
    EXPECT_NE(std::string::npos, at) << name;
    return at == std::string::npos ? 0 : strtoull(s.c_str() + at + key.size(), nullptr, 10);
  }

  static void AppendVar(std::string *s, uint64_t v) {
    uint8_t b[10];
    s->append(reinterpret_cast<char *>(b), put_varint(b, v) - b);
  }
  static void AppendPut(std::string *s, const std::string &k, const std::string &v) {
    s->push_back(1);
    AppendVar(s, k.size());
    *s += k;
    AppendVar(s, v.size());
    *s += v;
  }
  static void AppendLogData(std::string *s, const std::string &v) {
    s->push_back(3);
    AppendVar(s, v.size());
    *s += v;
  }

  pglog_options options;
  int mode = STORE_POINT_IN_TIME;
  struct store *store = nullptr;
  uint64_t latest() const { return latest_; }
  /* Called around the calls into the store that may run out of memory. */
  void (*enter)() = nullptr, (*leave)() = nullptr;

 private:
  static void Hook(void (*f)()) {
    if (f)
      f();
  }
  static uint64_t Latest(void *arg) { return static_cast<MiniDb *>(arg)->latest_; }

  /* RocksDB's replay: the highest sequence in the files as they are now. */
  void Replay() {
    latest_ = dir_->manifest_seq;
    for (auto &f : dir_->files) {
      wal_parser w;
      wal_init(&w, f.first, 0, true);
      wal_feed(&w, reinterpret_cast<const uint8_t *>(f.second.bytes.data()), f.second.bytes.size(),
               Seen, this, nullptr);
      wal_free(&w);
    }
  }
  static int Seen(void *arg, const wal_record *r, pglog_error *) {
    auto *d = static_cast<MiniDb *>(arg);
    uint64_t end = batch_sequence(r->payload) + batch_count(r->payload) - 1;
    d->latest_ = std::max<uint64_t>(d->latest_, end);
    return 0;
  }

  WalDir *dir_;
  const pglog_io *io_;
  store_wal *wal_ = nullptr;
  uint64_t number_ = 0, next_ = 1, data_ = 0;
  std::atomic<uint64_t> latest_{0};
};

/* The model: what a plain ordered map would hold. */
inline void Apply(std::map<std::string, std::string> *m, const Op &o) {
  if (o.kind == BLOB_PUT)
    (*m)[o.key] = o.value;
  else if (o.kind == BLOB_DELETE)
    m->erase(o.key);
  else
    m->erase(m->lower_bound(o.key),
             o.kind == BLOB_DELREST ? m->end() : m->lower_bound(std::max(o.key, o.value)));
}

#endif
