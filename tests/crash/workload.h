// SPDX-License-Identifier: Apache-2.0
//
// workload.h - the transactions of the crash tests, the model that says what a database must hold
// after the first N of them, and the database they go to.
//
// Each writer has its own PGs and its own data keys, and its transactions come one after another;
// so whatever survives of a writer must be a prefix of its transactions, and the model of that
// prefix is the one and only right content. Every transaction with data puts its number into the
// data key n/<writer>, every one with pg log puts it into the _info of its PG.
#ifndef PGLOG_CRASH_WORKLOAD_H
#define PGLOG_CRASH_WORKLOAD_H

#include <pglog/db.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace crash {

class Random {
 public:
  explicit Random(uint64_t seed) : x_(seed) {}
  uint64_t next() {
    uint64_t z = (x_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return next() % n; }
  bool one_in(uint64_t n) { return below(n) == 0; }

 private:
  uint64_t x_;
};

inline std::string format(const char *f, ...) {
  char text[256];
  va_list ap;
  va_start(ap, f);
  vsnprintf(text, sizeof text, f, ap);
  va_end(ap);
  return text;
}

enum { CF_DEFAULT, CF_O, CF_P, CFS };
inline const char *const kCfNames[CFS] = {"default", "O", "P"};

struct Op {
  enum Kind { PUT, DELETE, DELETE_RANGE } kind;
  int cf;
  std::string key, value; /* DELETE_RANGE: value is the end */
};
using Txn = std::vector<Op>;
using Content = std::map<std::string, std::string>;

// Which keys are pg log keys: the default rule, or the one of Ceph's BlueStore.
struct Keys {
  bool ceph = false;
  int cf() const { return ceph ? CF_P : CF_DEFAULT; }
  std::string pg(int writer, int pg) const {
    return ceph ? format("w%02dp%04d", writer, pg) : format("pglog/%d.%x/", writer, pg);
  }
};

// One writer: makes its transactions, in order.
class Writer {
 public:
  Writer(uint64_t seed, int id, Keys keys) : seed_(seed), id_(id), keys_(keys), pgs_(3) {}
  uint64_t done() const { return n_; }

  Txn next() {
    Txn t;
    Random r(seed_ ^ (uint64_t)id_ << 56 ^ ++n_ * 0x2545f4914f6cdd1du);
    uint64_t kind = r.below(16);
    if (kind != 1)
      data(r, &t);
    if (kind != 0)
      log(r, kind, &t);
    return t;
  }

 private:
  struct Pg {
    uint64_t head = 0, tail = 0, dup_tail = 0; /* entries are tail+1..head */
  };

  std::string text(Random &r, size_t n) const {
    std::string s = format("%llu:", (unsigned long long)n_);
    for (uint64_t x = r.next(); s.size() < n; x = x * 25 + 1)
      s += s.size() % 40 < 30 ? 'e' : (char)x;
    return s;
  }
  void put(Txn *t, int cf, std::string k, std::string v) const {
    t->push_back({Op::PUT, cf, std::move(k), std::move(v)});
  }

  void data(Random &r, Txn *t) const {
    int o = keys_.ceph || !r.one_in(60) ? CF_O : CF_P;
    std::string base = format("o/%d/", id_);
    put(t, CF_DEFAULT, format("n/%d", id_), format("%llu", (unsigned long long)n_));
    for (uint64_t k = 1 + r.below(2); k-- > 0;)
      put(t, o, base + format("%02d", (int)r.below(40)), text(r, 20 + r.below(400)));
    if (r.one_in(8))
      t->push_back({Op::DELETE, CF_O, base + format("%02d", (int)r.below(40)), ""});
    if (r.one_in(40)) {
      int at = (int)r.below(38);
      t->push_back(
          {Op::DELETE_RANGE, CF_O, base + format("%02d", at), base + format("%02d", at + 2)});
    }
  }

  static std::string entry(uint64_t v) {
    return format("%010d.%020llu", 12, (unsigned long long)v);
  }
  static std::string dup(uint64_t v) { return "dup_" + entry(v); }

  void remove(Random &r, Txn *t, const std::string &pg, std::string (*key)(uint64_t), uint64_t from,
              uint64_t to) const {
    if (r.one_in(3)) {
      t->push_back({Op::DELETE_RANGE, keys_.cf(), pg + key(from), pg + key(to)});
      return;
    }
    for (uint64_t v = from; v < to; v++)
      t->push_back({Op::DELETE, keys_.cf(), pg + key(v), ""});
  }

  void log(Random &r, uint64_t kind, Txn *t) {
    int which = (int)r.below(pgs_.size()), cf = keys_.cf();
    Pg &g = pgs_[which];
    std::string pg = keys_.pg(id_, which);
    if (kind == 2 && r.one_in(6)) { /* the PG is dropped, and made again */
      t->push_back({Op::DELETE_RANGE, cf, pg, pg + "~"});
      g.tail = g.dup_tail = g.head;
    } else if (kind == 3 && g.head - g.tail > 4) { /* divergent entries */
      uint64_t n = 1 + r.below(3);
      remove(r, t, pg, entry, g.head - n + 1, g.head + 1);
      g.head -= n;
    }
    g.head++;
    put(t, cf, pg + entry(g.head), text(r, r.one_in(80) ? 3000 + r.below(12000) : 200));
    put(t, cf, pg + "_info", text(r, r.one_in(10) ? 900 : 190));
    if (r.one_in(2))
      put(t, cf, pg + "_fastinfo", text(r, 180));
    if (g.head - g.tail > 40 + r.below(30)) {
      uint64_t to = g.tail + 10 + r.below(20);
      remove(r, t, pg, entry, g.tail + 1, to + 1);
      for (uint64_t v = g.tail + 1; v <= to; v++)
        put(t, cf, pg + dup(v), text(r, 60));
      g.tail = to;
    }
    if (g.tail - g.dup_tail > 60) {
      remove(r, t, pg, dup, g.dup_tail + 1, g.tail - 30);
      g.dup_tail = g.tail - 31;
    }
  }

  uint64_t seed_;
  int id_;
  Keys keys_;
  uint64_t n_ = 0;
  std::vector<Pg> pgs_;
};

// What a database holds after so many transactions of each writer.
class Model {
 public:
  Model(uint64_t seed, int writers, Keys keys) {
    for (int w = 0; w < writers; w++)
      writers_.emplace_back(seed, w, keys);
  }
  // Apply transactions until writer `w` has done `n`.
  void advance(int w, uint64_t n) {
    while (writers_[w].done() < n)
      apply(writers_[w].next());
  }
  Writer writer(int w) const { return writers_[w]; }
  uint64_t done(int w) const { return writers_[w].done(); }
  const Content &content(int cf) const { return content_[cf]; }

 private:
  void apply(const Txn &t) {
    for (const Op &o : t) {
      Content &c = content_[o.cf];
      if (o.kind == Op::PUT)
        c[o.key] = o.value;
      else if (o.kind == Op::DELETE)
        c.erase(o.key);
      else
        c.erase(c.lower_bound(o.key), c.lower_bound(o.value));
    }
  }
  std::vector<Writer> writers_;
  Content content_[CFS];
};

// The database, through the facade.
struct Setup {
  Keys keys;
  std::string base;    /* registry name of the file system below */
  std::string wal_dir; /* "" or a path */
  int recovery_mode = 2;
  uint64_t write_buffer = 64 << 10, max_total_wal = 256 << 10, memory = 1 << 20;
  bool archive = false, atomic_flush = false;
};

class Db {
 public:
  ~Db() { close(); }
  // "" or the error.
  std::string open(const std::string &dir, const Setup &s) {
    struct pglog_options po;
    pglog_options_init(&po);
    if (s.keys.ceph) {
      struct pglog_error e;
      if (pglog_options_parse(&po, "pglog://?cf=P&prefix=&pgid=fixed:8", &e) != 0)
        return e.text;
    }
    po.memory = s.memory;
    po.arena_step = 64 << 10;
    snprintf(po.base, sizeof po.base, "%s", s.base.c_str());
    rocksdb_options_t *o = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(o, 1);
    rocksdb_options_set_create_missing_column_families(o, 1);
    rocksdb_options_set_write_buffer_size(o, s.write_buffer);
    rocksdb_options_set_max_write_buffer_number(o, 4);
    rocksdb_options_set_max_total_wal_size(o, s.max_total_wal);
    rocksdb_options_set_wal_recovery_mode(o, s.recovery_mode);
    rocksdb_options_set_atomic_flush(o, s.atomic_flush);
    rocksdb_options_set_max_file_opening_threads(o, 1);
    rocksdb_options_set_max_open_files(o, 50);
    if (s.archive)
      rocksdb_options_set_WAL_ttl_seconds(o, 1);
    if (!s.wal_dir.empty())
      rocksdb_options_set_wal_dir(o, s.wal_dir.c_str());
    const rocksdb_options_t *cf_options[CFS] = {o, o, o};
    char *err = nullptr;
    db = pglog_db_open_column_families(o, &po, dir.c_str(), CFS, kCfNames, cf_options, cf, &err);
    rocksdb_options_destroy(o);
    return take(err);
  }
  void close() {
    if (!db)
      return;
    for (auto *h : cf)
      rocksdb_column_family_handle_destroy(h);
    pglog_db_close(db);
    db = nullptr;
  }
  std::string write(const Txn &t, bool sync) {
    rocksdb_writebatch_t *b = rocksdb_writebatch_create();
    for (const Op &o : t) {
      const char *k = o.key.data(), *v = o.value.data();
      if (o.kind == Op::PUT)
        rocksdb_writebatch_put_cf(b, cf[o.cf], k, o.key.size(), v, o.value.size());
      else if (o.kind == Op::DELETE)
        rocksdb_writebatch_delete_cf(b, cf[o.cf], k, o.key.size());
      else
        rocksdb_writebatch_delete_range_cf(b, cf[o.cf], k, o.key.size(), v, o.value.size());
    }
    rocksdb_writeoptions_t *wo = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(wo, sync);
    char *err = nullptr;
    pglog_db_write(db, wo, b, &err);
    rocksdb_writeoptions_destroy(wo);
    rocksdb_writebatch_destroy(b);
    return take(err);
  }
  // All of a column family, in the order of the iterator. "" or the error.
  std::string read(int which, bool forward, std::vector<std::pair<std::string, std::string>> *out) {
    rocksdb_readoptions_t *ro = rocksdb_readoptions_create();
    pglog_iterator_t *it = pglog_db_create_iterator_cf(db, ro, cf[which]);
    for (forward ? pglog_iter_seek_to_first(it) : pglog_iter_seek_to_last(it); pglog_iter_valid(it);
         forward ? pglog_iter_next(it) : pglog_iter_prev(it)) {
      size_t kn, vn;
      const char *k = pglog_iter_key(it, &kn), *v = pglog_iter_value(it, &vn);
      out->emplace_back(std::string(k, kn), std::string(v, vn));
    }
    char *err = nullptr;
    pglog_iter_get_error(it, &err);
    pglog_iter_destroy(it);
    rocksdb_readoptions_destroy(ro);
    return take(err);
  }
  std::string get(int which, const std::string &key, bool *found, std::string *value) {
    rocksdb_readoptions_t *ro = rocksdb_readoptions_create();
    char *err = nullptr;
    size_t n = 0;
    char *v = pglog_db_get_cf(db, ro, cf[which], key.data(), key.size(), &n, &err);
    rocksdb_readoptions_destroy(ro);
    *found = v != nullptr;
    value->assign(v ? v : "", n);
    rocksdb_free(v);
    return take(err);
  }
  std::string checkpoint() {
    char *err = nullptr;
    pglog_db_checkpoint_log(db, &err);
    return take(err);
  }
  // A flush by the facade (with a check point), or of RocksDB alone.
  std::string flush(int which, bool facade) {
    rocksdb_flushoptions_t *fo = rocksdb_flushoptions_create();
    char *err = nullptr;
    if (facade)
      pglog_db_flush(db, fo, which < 0 ? nullptr : cf[which], &err);
    else
      rocksdb_flush_cf(pglog_db_base(db), fo, cf[which], &err);
    rocksdb_flushoptions_destroy(fo);
    return take(err);
  }
  uint64_t stat(const char *name) {
    char *v = pglog_db_property_value(db, "pglog.stats");
    std::string s = std::string("\n") + (v ? v : ""), want = std::string("\n") + name + " ";
    rocksdb_free(v);
    size_t at = s.find(want);
    return at == std::string::npos ? UINT64_MAX
                                   : strtoull(s.c_str() + at + want.size(), nullptr, 10);
  }
  static std::string take(char *err) {
    std::string s = err ? err : "";
    rocksdb_free(err);
    return s;
  }

  pglog_db_t *db = nullptr;
  rocksdb_column_family_handle_t *cf[CFS] = {};
};

inline std::string printable(const std::string &s) {
  std::string out;
  for (unsigned char c : s.substr(0, 60))
    out += c >= 0x20 && c < 0x7f ? std::string(1, (char)c) : format("\\x%02x", c);
  return out + (s.size() > 60 ? "..." : "");
}

// The last transaction of writer `w` that the database knows of, by data and by pg log.
inline std::string find_last(Db &db, const Keys &keys, int w, uint64_t *data, uint64_t *log) {
  bool found;
  std::string v, e = db.get(CF_DEFAULT, format("n/%d", w), &found, &v);
  *data = found ? strtoull(v.c_str(), nullptr, 10) : 0;
  *log = 0;
  for (int pg = 0; pg < 3 && e.empty(); pg++) {
    e = db.get(keys.cf(), keys.pg(w, pg) + "_info", &found, &v);
    if (found)
      *log = std::max<uint64_t>(*log, strtoull(v.c_str(), nullptr, 10));
  }
  return e;
}

// "" if a column family holds exactly what the model says, else the first difference.
inline std::string compare(Db &db, const Model &m, int which, bool forward = true) {
  std::vector<std::pair<std::string, std::string>> got;
  std::string e = db.read(which, forward, &got);
  if (!e.empty())
    return "reading column family " + std::string(kCfNames[which]) + ": " + e;
  if (!forward)
    std::reverse(got.begin(), got.end());
  auto want = m.content(which).begin(), end = m.content(which).end();
  for (size_t i = 0; i < got.size() || want != end; i++, ++want) {
    if (want == end || (i < got.size() && got[i].first < want->first))
      return format("column family %s: a key too many: ", kCfNames[which]) +
             printable(got[i].first) + " = " + printable(got[i].second);
    if (i == got.size() || want->first < got[i].first)
      return format("column family %s: a key is missing: ", kCfNames[which]) +
             printable(want->first) + " = " + printable(want->second);
    if (got[i].second != want->second)
      return format("column family %s: ", kCfNames[which]) + printable(want->first) + " is " +
             printable(got[i].second) + ", not " + printable(want->second);
  }
  return "";
}

}  // namespace crash

#endif
