// SPDX-License-Identifier: Apache-2.0
//
// osd_testing.h - what the tests of osd share: a store in memory, requests and their answers, and a
// run of random operations against a plain model.
#ifndef PGLOG_OSD_TESTING_H
#define PGLOG_OSD_TESTING_H

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

extern "C" {
#include "osd_kv.h"
}

inline std::string Text(struct osd_slice s) {
  return std::string(reinterpret_cast<const char *>(s.data), s.size);
}

using Content = std::map<std::string, std::string>;

// A store in memory, which outlives the osd over it. A copy of `data` is what a crash would leave.
class MemKv {
 public:
  Content data;                                   // under lock
  std::function<int()> before_write, before_get;  // other than 0: the answer; no lock is held
  std::atomic<uint64_t> writes{0}, closes{0};
  std::mutex lock;

  struct kv Kv() {
    struct kv kv = {};
    kv.arg = this;
    kv.write = Write;
    kv.get = Get;
    kv.scan = Scan;
    kv.close = [](void *a) { static_cast<MemKv *>(a)->closes++; };
    return kv;
  }
  Content Copy() {
    std::lock_guard<std::mutex> l(lock);
    return data;
  }

 private:
  std::atomic<int> writing_{0};

  static int Fail(struct pglog_error *err, int rc, const char *text) {
    err->code = rc;
    snprintf(err->text, sizeof err->text, "%s", text);
    return rc;
  }
  static std::string String(const uint8_t *&p) {
    size_t n = 0;
    for (int shift = 0;; shift += 7) {
      n |= (size_t)(*p & 0x7f) << shift;
      if (*p++ < 0x80)
        break;
    }
    std::string s(reinterpret_cast<const char *>(p), n);
    p += n;
    return s;
  }
  static int Write(void *arg, const struct kv_batch *b, bool sync, struct pglog_error *err) {
    MemKv *m = static_cast<MemKv *>(arg);
    EXPECT_EQ(m->writing_.fetch_add(1), 0) << "one thread at a time writes";
    EXPECT_TRUE(sync);
    m->writes++;
    int rc = m->before_write ? m->before_write() : 0;
    if (rc == 0 && b->no_memory)
      rc = PGLOG_ENOMEM;
    if (rc == 0)
      m->Apply(b);
    m->writing_--;
    return rc ? Fail(err, rc, "the store's own error") : 0;
  }
  void Apply(const struct kv_batch *b) {
    std::lock_guard<std::mutex> l(lock);
    const uint8_t *p = b->data + 12, *end = b->data + b->size;
    while (p < end) {
      uint8_t tag = *p++;
      std::string k = String(p);
      if (tag == 1) {
        data[k] = String(p);
      } else if (tag == 0) {
        data.erase(k);
      } else {
        std::string e = String(p);
        ASSERT_LT(k, e);
        data.erase(data.lower_bound(k), data.lower_bound(e));
      }
    }
  }
  static int Get(void *arg, struct osd_slice key, uint8_t **value, size_t *size,
                 struct pglog_error *err) {
    MemKv *m = static_cast<MemKv *>(arg);
    int rc = m->before_get ? m->before_get() : 0;
    if (rc)
      return Fail(err, rc, "the store's own error");
    std::lock_guard<std::mutex> l(m->lock);
    auto it = m->data.find(Text(key));
    if (it == m->data.end())
      return PGLOG_ENOTFOUND;
    *size = it->second.size();
    *value = static_cast<uint8_t *>(malloc(*size + 1));
    memcpy(*value, it->second.data(), *size);
    return 0;
  }
  static int Scan(void *arg, struct osd_slice begin, struct osd_slice end,
                  int (*fn)(void *, struct osd_slice, struct osd_slice, struct pglog_error *),
                  void *fn_arg, struct pglog_error *err) {
    MemKv *m = static_cast<MemKv *>(arg);
    std::lock_guard<std::mutex> l(m->lock);
    int rc = 0;
    auto stop = m->data.lower_bound(Text(end));
    for (auto it = m->data.lower_bound(Text(begin)); rc == 0 && it != stop; ++it) {
      // Exactly as long as they are, so that reading behind them is seen.
      std::vector<uint8_t> k(it->first.begin(), it->first.end());
      std::vector<uint8_t> v(it->second.begin(), it->second.end());
      rc = fn(fn_arg, {k.data(), k.size()}, {v.data(), v.size()}, err);
    }
    return rc;
  }
};

// A request and, once it is there, its answer.
struct Req {
  struct osd_request r = {};
  std::string name, payload;
  // The answer, which is complete when `done` is seen.
  std::atomic<bool> done{false};
  struct osd_result res = {};
  std::string data;
  uint64_t order = 0;          // of all answers, from 1
  std::function<void()> then;  // called by the callback

  Req(int op, std::string object, uint64_t offset = 0, uint64_t length = 0,
      std::string bytes = "") {
    name = std::move(object);
    payload = std::move(bytes);
    r.op = op;
    r.name = name.data();
    r.name_size = name.size();
    r.offset = offset;
    r.length = op == OSD_WRITE || op == OSD_WRITE_FULL ? payload.size() : length;
    r.data = payload.data();
    r.arg = this;
    r.done = Done;
  }
  Req &Id(uint64_t client, uint64_t tid, uint32_t incarnation = 1) {
    r.client = client;
    r.tid = tid;
    r.incarnation = incarnation;
    return *this;
  }
  int Submit(struct osd *o, int flags = 0) {
    struct pglog_error err = {0, ""};
    int rc = osd_submit(o, &r, flags, &err);
    EXPECT_EQ(rc, err.code);
    return rc;
  }
  std::pair<uint32_t, uint64_t> version() const { return {res.epoch, res.version}; }
  std::string error() const { return res.error.text; }

  static void Done(void *arg, struct osd_result *res) {
    static std::atomic<uint64_t> count{0};
    Req *q = static_cast<Req *>(arg);
    EXPECT_FALSE(q->done) << "answered twice";
    q->res = *res;
    q->data.assign(reinterpret_cast<char *>(res->data), res->data ? res->length : 0);
    free(res->data);
    q->order = ++count;
    if (q->then)
      q->then();
    q->done = true;
  }
};

// What an operation does, said plainly.
struct Model {
  Content objects;
  int Run(int op, const std::string &name, uint64_t offset, uint64_t length,
          const std::string &bytes, std::string *read) {
    auto it = objects.find(name);
    bool there = it != objects.end();
    if (op == OSD_CREATE)
      return there ? PGLOG_EEXIST : (objects[name], 0);
    if (op == OSD_WRITE_FULL)
      return objects[name] = bytes, 0;
    if (op == OSD_WRITE) {
      std::string &s = objects[name];
      if (!bytes.empty() && s.size() < offset + bytes.size())
        s.resize(offset + bytes.size());
      s.replace(bytes.empty() ? 0 : offset, bytes.size(), bytes);
      return 0;
    }
    if (!there)
      return PGLOG_ENOTFOUND;
    std::string &s = it->second;
    if (op == OSD_ZERO && offset < s.size())
      std::fill(s.begin() + (long)offset,
                s.begin() + (long)std::min<uint64_t>(s.size(), offset + length), '\0');
    else if (op == OSD_TRUNCATE)
      s.resize(offset);
    else if (op == OSD_REMOVE)
      objects.erase(it);
    else if (op == OSD_READ && offset < s.size())
      *read = s.substr(offset, length);
    return 0;
  }
};

// Random requests that cross blocks, ends and gaps.
struct Random {
  std::mt19937_64 rnd;
  unsigned objects = 12;
  explicit Random(uint64_t seed) : rnd(seed) {}
  uint64_t operator()(uint64_t n) { return rnd() % n; }
  uint64_t Offset() {
    uint64_t at = (*this)(10) * 4096;
    switch ((*this)(4)) {
      case 0:
        return at;
      case 1:
        return at + (*this)(4096);
      case 2:
        return at ? at - 1 : 0;
      default:
        return (*this)(40) == 0 ? 30 * 4096 + (*this)(200000) : (*this)(9000);
    }
  }
  uint64_t Length() {
    static const uint64_t some[] = {0, 1, 511, 4095, 4096, 4097, 8192, 20000, 90000};
    return (*this)(2) ? some[(*this)(9)] : (*this)(9000);
  }
  std::string Name() { return "object-" + std::to_string((*this)(objects)); }
  std::unique_ptr<Req> Next() {
    static const int ops[] = {OSD_WRITE,  OSD_WRITE,    OSD_WRITE, OSD_WRITE_FULL, OSD_ZERO,
                              OSD_ZERO,   OSD_TRUNCATE, OSD_READ,  OSD_READ,       OSD_READ,
                              OSD_REMOVE, OSD_CREATE,   OSD_STAT};
    int op = ops[(*this)(13)];
    uint64_t length = Length();
    std::string bytes;
    if (op == OSD_WRITE || op == OSD_WRITE_FULL)
      for (bytes.resize(length); length; length--)
        bytes[length - 1] = (char)('a' + rnd() % 26);
    return std::make_unique<Req>(op, Name(), Offset(), Length(), bytes);
  }
};

inline int RunModel(Model *m, const Req &q, std::string *read) {
  return m->Run(q.r.op, q.name, q.r.offset, q.r.length, q.payload, read);
}

// All objects that an osd lists, with their sizes.
inline std::map<std::string, uint64_t> ListAll(struct osd *o) {
  std::map<std::string, uint64_t> all;
  struct osd_pg_info *pgs;
  size_t n;
  EXPECT_EQ(osd_pg_list(o, &pgs, &n), 0);
  for (size_t i = 0; i < n; i++) {
    struct pglog_error err = {0, ""};
    std::vector<std::string> names;
    std::pair<std::map<std::string, uint64_t> *, std::vector<std::string> *> arg{&all, &names};
    EXPECT_EQ(osd_list(
                  o, pgs[i].id,
                  [](void *a, const void *name, size_t size, uint64_t bytes) {
                    auto *p = static_cast<decltype(arg) *>(a);
                    std::string s(static_cast<const char *>(name), size);
                    EXPECT_TRUE(p->first->emplace(s, bytes).second) << s;
                    p->second->push_back(s);
                    return 0;
                  },
                  &arg, &err),
              0)
        << err.text;
    EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
    osd_drain(o);
    EXPECT_EQ(names.size(), pgs[i].objects);
    for (const std::string &s : names)
      EXPECT_EQ(osd_hash(s.data(), s.size()) & ((1u << pgs[i].bits) - 1), pgs[i].id);
  }
  free(pgs);
  return all;
}

inline void ExpectContent(struct osd *o, const Content &want) {
  std::map<std::string, uint64_t> sizes;
  for (auto &[name, bytes] : want) {
    sizes[name] = bytes.size();
    std::string got(bytes.size() + 10, 'x');
    size_t n = got.size();
    struct pglog_error err = {0, ""};
    ASSERT_EQ(osd_read(o, name.c_str(), got.data(), &n, 0, &err), 0) << name << " " << err.text;
    got.resize(n);
    ASSERT_TRUE(got == bytes) << name;
  }
  ASSERT_EQ(ListAll(o), sizes);
}

// Random operations, up to `depth` at a time, against the model; `reopen` closes and opens again.
inline void AgreesWithModel(struct osd *&o, uint64_t seed, int steps, size_t depth,
                            const std::function<void()> &reopen) {
  Random rnd(seed);
  Model m;
  struct Want {
    std::unique_ptr<Req> q;
    int rc;
    std::string read;
    uint64_t size;
  };
  std::deque<Want> all;
  uint64_t tid = 0;
  auto check = [&](size_t leave) {
    if (all.size() > leave)
      osd_drain(o);
    for (; all.size() > leave; all.pop_front()) {
      Want &w = all.front();
      ASSERT_TRUE(w.q->done);
      ASSERT_EQ(w.q->res.code, w.rc) << osd_op_str(w.q->r.op) << " " << w.q->error();
      ASSERT_TRUE(w.q->data == w.read) << osd_op_str(w.q->r.op) << " of " << w.q->name << " at "
                                       << w.q->r.offset << "+" << w.q->r.length;
      if (w.rc == 0 && (w.q->r.op == OSD_STAT || w.q->r.op == OSD_READ)) {
        ASSERT_EQ(w.q->res.size, w.size);
      }
    }
  };
  for (int i = 0; i < steps; i++) {
    Want w;
    w.q = rnd.Next();
    w.rc = RunModel(&m, *w.q, &w.read);
    auto it = m.objects.find(w.q->name);
    w.size = it == m.objects.end() ? 0 : it->second.size();
    if (rnd(2))
      w.q->Id(7, ++tid);
    ASSERT_EQ(w.q->Submit(o), 0);
    all.push_back(std::move(w));
    ASSERT_NO_FATAL_FAILURE(check(rnd(depth)));
    if (i % (steps / 4) == steps / 4 - 1) {
      ASSERT_NO_FATAL_FAILURE(check(0));
      ASSERT_NO_FATAL_FAILURE(ExpectContent(o, m.objects));
      reopen();
      ASSERT_NE(o, nullptr);
      ASSERT_NO_FATAL_FAILURE(ExpectContent(o, m.objects));
    }
  }
}

#endif
