// SPDX-License-Identifier: Apache-2.0
//
// Says whether a database that `pglog_bench replay --modes=split` left when it was killed holds
// exactly some prefix of the recorded transactions, data and pg log.
//
// usage: crash_trace DIR TRACE BEFORE
// Prints the number of transactions, those that load BEFORE (100 keys each) counted as well.
extern "C" {
#include "keyspace.h"
#include "trace.h"
}
#include <pglog/db.h>

#include <array>
#include <map>
#include <string>
#include <vector>

namespace {

uint64_t hash(const std::string &s, uint64_t h) {
  for (unsigned char c : s)
    h = (h ^ c) * 0x100000001b3u;
  return h ^ h >> 29;
}

// A content that knows a sum over all its entries, so that two are compared at once.
class Content {
 public:
  void put(uint32_t cf, const std::string &k, std::string v) {
    drop(cf, k);
    sum_ += entry(cf, k, v);
    map_[cf][k] = std::move(v);
  }
  void drop(uint32_t cf, const std::string &k) {
    auto it = map_[cf].find(k);
    if (it == map_[cf].end())
      return;
    sum_ -= entry(cf, k, it->second);
    map_[cf].erase(it);
  }
  uint64_t sum() const { return sum_; }
  bool operator==(const Content &o) const { return map_ == o.map_; }

 private:
  static uint64_t entry(uint32_t cf, const std::string &k, const std::string &v) {
    return hash(v, hash(k, 0xcbf29ce484222325u + cf) + k.size());
  }
  std::array<std::map<std::string, std::string>, TRACE_CFS> map_;
  uint64_t sum_ = 0;
};

std::string str(struct bytes b) {
  return {(const char *)b.data, b.size};
}

void check(char *err, const char *what) {
  if (!err)
    return;
  fprintf(stderr, "crash_trace: %s: %s\n", what, err);
  exit(1);
}

void read_database(const char *dir, Content *out) {
  struct pglog_options po;
  pglog_options_init(&po);
  pglog_options_parse(&po, "pglog://?cf=P&prefix=&pgid=fixed:8", nullptr);
  rocksdb_options_t *o = rocksdb_options_create();
  rocksdb_options_set_create_if_missing(o, 1); /* it may have been killed before it was made */
  rocksdb_options_set_create_missing_column_families(o, 1);
  std::vector<const rocksdb_options_t *> options(TRACE_CFS, o);
  rocksdb_column_family_handle_t *cf[TRACE_CFS];
  char *err = nullptr;
  pglog_db_t *db = pglog_db_open_column_families(o, &po, dir, TRACE_CFS, trace_cf_names,
                                                 options.data(), cf, &err);
  check(err, "open");
  rocksdb_readoptions_t *ro = rocksdb_readoptions_create();
  for (uint32_t i = 0; i < TRACE_CFS; i++) {
    pglog_iterator_t *it = pglog_db_create_iterator_cf(db, ro, cf[i]);
    for (pglog_iter_seek_to_first(it); pglog_iter_valid(it); pglog_iter_next(it)) {
      size_t kn, vn;
      const char *k = pglog_iter_key(it, &kn), *v = pglog_iter_value(it, &vn);
      out->put(i, std::string(k, kn), std::string(v, vn));
    }
    pglog_iter_get_error(it, &err);
    check(err, trace_cf_names[i]);
    pglog_iter_destroy(it);
    rocksdb_column_family_handle_destroy(cf[i]);
  }
  rocksdb_readoptions_destroy(ro);
  rocksdb_options_destroy(o);
  pglog_db_close(db);
}

void apply(Content *c, const struct trace *t, size_t i) {
  const uint8_t *end, *p = trace_record(t, i, &end);
  while (p < end) {
    struct trace_op op;
    p = trace_op_next(p, end, &op);
    if (op.type == TRACE_PUT)
      c->put(op.cf, str(op.key), str(op.value));
    else
      c->drop(op.cf, str(op.key));
  }
}

}  // namespace

int main(int argc, char **argv) {
  struct trace t;
  struct keyspace_file before;
  struct fail f;
  if (argc != 4)
    return fprintf(stderr, "usage: crash_trace DIR TRACE BEFORE\n"), 2;
  if (trace_load(&t, argv[2], 0, &f) != 0 || keyspace_file_load(&before, argv[3], &f) != 0)
    return fprintf(stderr, "crash_trace: %s\n", f.text), 1;
  Content got, want;
  read_database(argv[1], &got);
  size_t n = 0, keys = 0, pos = 0, i = 0;
  struct bytes k, v;
  bool more = true, found = false;
  while (!(found = want.sum() == got.sum() && want == got) && (more || i < t.n_records)) {
    if (more) {
      while ((more = keyspace_file_next(&before, &pos, &k, &v))) {
        want.put(TRACE_CF_P, str(k), str(v));
        if (++keys % 100 == 0)
          break;
      }
    } else {
      apply(&want, &t, i++);
    }
    n++;
  }
  trace_free(&t);
  keyspace_file_free(&before);
  if (!found)
    return printf("%s holds no prefix of the transactions\n", argv[1]), 1;
  printf("%zu\n", n);
  return 0;
}
