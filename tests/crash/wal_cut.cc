// SPDX-License-Identifier: Apache-2.0
//
// Proves that RocksDB's keys and the pg log agree whatever is missing from the end of the last WAL
// and whichever byte of a WAL has changed: a database is left with pg log staged in several WALs,
// its last WAL is cut, or a byte of a WAL flipped, at one place a case, and it is opened through
// the facade. Either it holds exactly the transactions up to the damage, data and pg log, or
// opening fails with an error that names the file, nothing has changed, and where RocksDB's own
// rules allow a looser wal_recovery_mode, that opens it.
//
// Twice: with no check point at all, and with one that covers a part of the last WAL.
//
// usage: wal_cut [--long] [--dir=DIR] [--part=I/N] [--only=BASE:CASE]
// --long (or PGLOG_CRASH_LONG=1): a cut at every byte of the last 64 KiB in kPointInTimeRecovery
// (with the check point: at every 7th) and at every 61st in the two other modes; 2,000 flips in the
// last WAL and 500 in older ones, in all modes in turn. Otherwise every 997th place, every byte of
// the last record, and 100 flips. A failure prints the case, which --only repeats. --part=I/N runs
// every N-th case from the I-th on, so that the long run (over an hour of two processors) can be
// spread over machines or days.
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "workload.h"

using namespace crash;
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kSeed = 20260;
constexpr uint64_t kWindow = 64 << 10;
constexpr size_t kBlock = 32 << 10; /* of a WAL */
constexpr int kWorkers = 6;         /* ending the arena's I/O is a wait of some 20 ms, not work */

enum Mode { TOLERATE_TAIL = 0, ABSOLUTE = 1, POINT_IN_TIME = 2 };
const char *const kModeNames[] = {"kTolerateCorruptedTailRecords", "kAbsoluteConsistency",
                                  "kPointInTimeRecovery"};

std::string slurp(const std::string &path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void spill(const std::string &path, const std::string &bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
bool is_wal(const fs::path &p) {
  return p.extension() == ".log";
}
// LOCK is nobody's content, and RocksDB logs about what it does.
bool is_content(const std::string &name) {
  return name.compare(0, 3, "LOG") != 0 && name != "LOCK";
}

// The database that each case is a damaged copy of.
struct Base {
  std::string name, dir;
  Setup setup;
  bool with_check_point;
  uint64_t check_point = 0;                 /* transactions at the check point */
  std::vector<std::string> wals;            /* file names, ascending */
  std::map<std::string, std::string> files; /* all, by name */
  struct End {
    std::string wal;
    uint64_t offset;
  };
  std::vector<End> ends;         /* of each transaction's record; ends[0] is none */
  std::vector<uint64_t> digests; /* content after so many transactions */
  uint64_t last_end() const { return ends.back().offset; }
  const std::string &last_wal() const { return wals.back(); }
  size_t transactions() const { return ends.size() - 1; }
};

uint64_t hash(uint64_t h, const std::string &s) {
  return (h ^ std::hash<std::string>()(s)) * 0x100000001b3u + s.size();
}

uint64_t digest_of(const Model &m) {
  uint64_t h = 1;
  for (int cf = 0; cf < CFS; cf++)
    for (auto &kv : m.content(cf))
      h = hash(hash(h + (uint64_t)cf, kv.first), kv.second);
  return h;
}

std::string digest_of(Db &db, uint64_t *h) {
  *h = 1;
  for (int cf = 0; cf < CFS; cf++) {
    std::vector<std::pair<std::string, std::string>> all;
    std::string e = db.read(cf, true, &all);
    if (!e.empty())
      return e;
    for (auto &kv : all)
      *h = hash(hash(*h + (uint64_t)cf, kv.first), kv.second);
  }
  return "";
}

/* ---------------------------------------------------------------------------------------------- */
/* Making a base                                                                                  */

std::vector<std::string> wals_in(const std::string &dir) {
  std::vector<std::string> out;
  for (auto &e : fs::directory_iterator(dir))
    if (is_wal(e.path()) && fs::file_size(e.path()) > 0)
      out.push_back(e.path().filename());
  std::sort(out.begin(), out.end());
  return out;
}

// Runs in a child that ends without closing. Reports each record's end through `out`.
void make_in_child(const Base &b, FILE *out) {
  Db db;
  auto must = [](const std::string &e) {
    if (!e.empty()) {
      fprintf(stderr, "wal_cut: making a database: %s\n", e.c_str());
      _exit(1);
    }
  };
  must(db.open(b.dir, b.setup));
  Writer w(kSeed, 0, b.setup.keys);
  int switches = 0;
  for (uint64_t check_point = 0;;) {
    must(db.write(w.next(), w.done() % 5 == 0));
    std::string wal = wals_in(b.dir).back();
    uint64_t size = fs::file_size(b.dir + "/" + wal);
    fprintf(out, "%s %llu\n", wal.c_str(), (unsigned long long)size);
    /* Flushes of O alone: what the other column families hold keeps the old WALs. */
    if (switches < 3 && w.done() % 25 == 0) {
      must(db.flush(CF_O, false));
      switches++;
    }
    if (switches == 3 && b.with_check_point && !check_point && size > 20000) {
      must(db.checkpoint());
      fprintf(out, "check_point %llu\n", (unsigned long long)w.done());
      check_point = w.done();
    }
    /* 64 KiB and some, and the last record is one with data and pg log over a block's end. */
    if (switches == 3 && size > kWindow + 9000 && wal == wals_in(b.dir).back())
      break;
  }
  fclose(out);
  _exit(0);
}

bool make(Base *b) {
  int fds[2];
  if (mkdir(b->dir.c_str(), 0755) != 0 || pipe(fds) != 0)
    return perror(b->dir.c_str()), false;
  pid_t pid = fork();
  if (pid == 0)
    make_in_child(*b, fdopen(fds[1], "w"));
  close(fds[1]);
  FILE *in = fdopen(fds[0], "r");
  char name[64];
  unsigned long long n;
  b->ends.push_back({"", 0});
  while (fscanf(in, "%63s %llu", name, &n) == 2) {
    if (strcmp(name, "check_point") == 0)
      b->check_point = n;
    else
      b->ends.push_back({name, n});
  }
  fclose(in);
  int status;
  waitpid(pid, &status, 0);
  if (status != 0)
    return false;
  b->wals = wals_in(b->dir);
  for (auto &e : fs::directory_iterator(b->dir))
    if (e.is_regular_file() && is_content(e.path().filename()))
      b->files[e.path().filename()] = slurp(e.path());
  Model m(kSeed, 1, b->setup.keys);
  for (size_t i = 0; i <= b->transactions(); i++) {
    m.advance(0, i);
    b->digests.push_back(digest_of(m));
  }
  printf("base %s: %zu transactions in %zu WALs, the last of %llu bytes%s\n", b->name.c_str(),
         b->transactions(), b->wals.size(), (unsigned long long)b->last_end(),
         b->check_point
             ? format(", check point after %llu", (unsigned long long)b->check_point).c_str()
             : "");
  return b->wals.size() >= 4 && b->ends.back().wal == b->last_wal() &&
         b->files[b->last_wal()].size() == b->last_end();
}

/* ---------------------------------------------------------------------------------------------- */
/* Cases                                                                                          */

struct Case {
  Mode mode;
  bool cut; /* at `at`; otherwise the byte there is changed by `mask` */
  size_t wal;
  uint64_t at;
  uint8_t mask;
};

std::string name_of(const Base &b, const Case &c) {
  return c.cut ? format("%s cut at %llu, ", b.wals[c.wal].c_str(), (unsigned long long)c.at) +
                     kModeNames[c.mode]
               : format("%s flipped at %llu with 0x%02x, ", b.wals[c.wal].c_str(),
                        (unsigned long long)c.at, c.mask) +
                     kModeNames[c.mode];
}

void add_cuts(const Base &b, bool all, std::vector<Case> *out) {
  uint64_t end = b.last_end(), from = end - kWindow, last = b.ends[b.transactions() - 1].offset;
  for (int mode = 0; mode < 3; mode++) {
    uint64_t step = !all ? 997 : mode != POINT_IN_TIME ? 61 : b.with_check_point ? 7 : 1;
    bool whole = mode == POINT_IN_TIME && (all || !b.with_check_point); /* the last record */
    for (uint64_t at = from; at < end; at++)
      if ((at - from) % step == 0 || (at >= last && (whole || at % 61 == 0)))
        out->push_back({(Mode)mode, true, b.wals.size() - 1, at, 0});
  }
}

void add_flips(const Base &b, bool all, std::vector<Case> *out) {
  Random r(kSeed + b.with_check_point);
  size_t n = all ? 2500 : 100;
  for (size_t i = 0; i < n; i++) {
    size_t last = b.wals.size() - 1, wal = i * 5 < n * 4 ? last : r.below(last);
    uint64_t at = r.below(b.files.at(b.wals[wal]).size());
    if (wal == last && i % 4 == 0) { /* headers are few, and hold the lengths and types */
      const Base::End &e = b.ends[b.transactions() - r.below(100)];
      at = std::min<uint64_t>(e.offset + r.below(7), b.last_end() - 1);
    }
    out->push_back({(Mode)(i % 4 > 2 ? 2 : i % 4), false, wal, at, (uint8_t)(1 + r.below(255))});
  }
}

// Transactions that are whole before byte `at` of WAL `wal`.
size_t whole_before(const Base &b, size_t wal, uint64_t at) {
  size_t n = 0;
  for (size_t i = 1; i <= b.transactions(); i++)
    if (b.ends[i].wal < b.wals[wal] || (b.ends[i].wal == b.wals[wal] && b.ends[i].offset <= at))
      n = i;
  return n;
}

// Is this byte of the WAL one that no record owns: the filling of a block's end?
bool in_trailer(const std::string &wal, uint64_t at) {
  for (size_t p = 0; p < wal.size();) {
    size_t room = kBlock - p % kBlock;
    if (room < 7) {
      if (at >= p && at < p + room)
        return true;
      p += room;
      continue;
    }
    p += 7 + ((uint8_t)wal[p + 4] | (size_t)(uint8_t)wal[p + 5] << 8);
  }
  return false;
}

// The files of a case: those of the base, one of them damaged.
std::map<std::string, std::string> files_of(const Base &b, const Case &c) {
  std::map<std::string, std::string> out = b.files;
  std::string &wal = out[b.wals[c.wal]];
  if (c.cut)
    wal.resize(c.at);
  else
    wal[c.at] ^= (char)c.mask;
  return out;
}

void copy_base(const Base &b, const Case &c, const std::string &dir) {
  fs::remove_all(dir);
  fs::create_directory(dir);
  for (auto &f : files_of(b, c)) {
    /* RocksDB and the plugin write in place to WALs and the arena alone. */
    if (is_wal(f.first) || f.first == "pglog.arena")
      spill(dir + "/" + f.first, f.second);
    else
      fs::create_hard_link(b.dir + "/" + f.first, dir + "/" + f.first);
  }
}

std::map<std::string, std::string> state_of(const std::string &dir) {
  std::map<std::string, std::string> out;
  for (auto &e : fs::directory_iterator(dir)) {
    std::string name = e.path().filename();
    if (is_content(name))
      out[name] = slurp(e.path());
  }
  return out;
}

std::string difference(const std::map<std::string, std::string> &a,
                       const std::map<std::string, std::string> &b) {
  for (auto &f : a) {
    auto it = b.find(f.first);
    if (it == b.end())
      return f.first + " is gone";
    if (it->second != f.second)
      return f.first + " has changed";
  }
  for (auto &f : b)
    if (!a.count(f.first))
      return f.first + " is new";
  return "";
}

// "" if the open database holds the first n transactions for an n of [least, most].
std::string check_content(const Base &b, Db &db, size_t least, size_t most) {
  uint64_t h, data, log;
  std::string e = find_last(db, b.setup.keys, 0, &data, &log);
  if (e.empty())
    e = digest_of(db, &h);
  if (!e.empty())
    return "reading: " + e;
  size_t n = std::max(data, log);
  if (n < least || n > most)
    return format("transactions up to %zu are there (data %llu, pg log %llu), not up to %zu", n,
                  (unsigned long long)data, (unsigned long long)log, least) +
           (least == most ? "" : format(" to %zu", most));
  if (h == b.digests[n])
    return "";
  Model m(kSeed, 1, b.setup.keys);
  m.advance(0, n);
  for (int cf = 0; cf < CFS; cf++) {
    e = compare(db, m, cf);
    if (!e.empty())
      return format("of %zu transactions (data %llu, pg log %llu): ", n, (unsigned long long)data,
                    (unsigned long long)log) +
             e;
  }
  return "content differs, but no key of it";
}

struct Tally {
  std::atomic<uint64_t> cases, opened, refused, failures;
};
Tally *tally;

// What must come out of a case.
struct Expected {
  bool must_refuse = false, may_refuse = false;
  size_t least, most; /* transactions, if it opens */
};

Expected expected_of(const Base &b, const Case &c) {
  Expected x;
  size_t all = b.transactions();
  x.least = x.most = whole_before(b, c.wal, c.at);
  bool at_end = c.cut && (c.at == 0 || b.ends[x.least].offset == c.at);
  if (c.wal + 1 < b.wals.size() || x.least < b.check_point)
    x.must_refuse = true; /* not the last WAL, or below the check point */
  else if (c.cut)
    x.may_refuse = c.mode == ABSOLUTE && !at_end;
  else
    x.may_refuse = c.mode != POINT_IN_TIME;
  if (!c.cut && in_trailer(b.files.at(b.wals[c.wal]), c.at)) {
    /* RocksDB does not look at such a byte, so that nothing need be lost. */
    x.may_refuse = true;
    x.must_refuse = false;
    x.most = all;
  }
  return x;
}

// What was cut off behind the last whole record is kept aside.
std::string check_saved(const Base &b, const Case &c, const std::string &dir, size_t least) {
  const std::string &name = b.wals[c.wal];
  std::string wal = files_of(b, c)[name];
  uint64_t good = b.ends[least].wal == name ? b.ends[least].offset : 0;
  if (good == wal.size() || wal.size() % kBlock == 0 ||
      slurp(dir + "/" + name + ".cut") == wal.substr(good))
    return "";
  return format("%s.cut does not hold the bytes from %llu on", name.c_str(),
                (unsigned long long)good);
}

std::string run_case(const Base &b, const Case &c, const std::string &dir, size_t index) {
  Expected x = expected_of(b, c);
  copy_base(b, c, dir);
  Setup s = b.setup;
  s.recovery_mode = c.mode;
  std::string e;
  {
    Db db;
    std::string refusal = db.open(dir, s);
    if (!refusal.empty()) {
      tally->refused++;
      if (!x.must_refuse && !x.may_refuse)
        return "open fails: " + refusal;
      if (refusal.find(b.wals[c.wal]) == std::string::npos)
        return "the error does not name " + b.wals[c.wal] + ": " + refusal;
      e = difference(files_of(b, c), state_of(dir));
      if (!e.empty())
        return e + " after a refused open (" + refusal + ")";
      if (x.must_refuse)
        return "";
      s.recovery_mode = POINT_IN_TIME;
      e = db.open(dir, s);
      if (!e.empty())
        return "refused in its mode, and then in kPointInTimeRecovery too: " + e;
    } else {
      tally->opened++;
      if (x.must_refuse) {
        e = check_content(b, db, 0, b.transactions());
        return "open is not refused" + (e.empty() ? "" : ", and " + e);
      }
    }
    e = check_content(b, db, x.least, x.most);
    if (e.empty() && x.least == x.most)
      e = check_saved(b, c, dir, x.least);
    if (!e.empty())
      return e;
  }
  if (index % 16 == 0) { /* and what was opened and closed opens again */
    Db db;
    e = db.open(dir, s);
    if (e.empty())
      e = check_content(b, db, x.least, x.most);
    if (!e.empty())
      return "opened again: " + e;
  }
  return "";
}

// Every `of`-th case from number `first` on.
struct Part {
  size_t first = 0, of = 1;

  size_t count(size_t cases) const { return cases > first ? (cases - first - 1) / of + 1 : 0; }
};

bool parse_part(const char *text, Part *p) {
  char end;
  if (sscanf(text, "%zu/%zu%c", &p->first, &p->of, &end) != 2 || p->first < 1 || p->first > p->of)
    return false;
  p->first--;
  return true;
}

void work(const std::vector<Base> &bases, const std::vector<std::vector<Case>> &cases,
          const std::string &dir, const Part &part, int worker) {
  std::string mine = dir + format("/case%d", worker);
  /* The store's warnings about every cut would drown everything else. */
  freopen((mine + ".log").c_str(), "w", stderr);
  for (size_t k = 0; k < bases.size(); k++)
    for (size_t i = part.first + part.of * (size_t)worker;
         i < cases[k].size() && tally->failures < 10; i += part.of * kWorkers) {
      std::string e = run_case(bases[k], cases[k][i], mine, i);
      tally->cases++;
      if (e.empty())
        continue;
      tally->failures++;
      printf("FAILED %s:%zu (%s): %s\n", bases[k].name.c_str(), i,
             name_of(bases[k], cases[k][i]).c_str(), e.c_str());
    }
  fs::remove_all(mine);
}

}  // namespace

int main(int argc, char **argv) {
  const char *env = getenv("PGLOG_CRASH_LONG"), *tmp = getenv("TMPDIR");
  bool all = env && *env && strcmp(env, "0") != 0;
  std::string dir = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : tmp && *tmp ? tmp : "/tmp", only;
  Part part;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--long") == 0)
      all = true;
    else if (strncmp(argv[i], "--dir=", 6) == 0)
      dir = argv[i] + 6;
    else if (strncmp(argv[i], "--only=", 7) == 0)
      only = argv[i] + 7;
    else if (strncmp(argv[i], "--part=", 7) != 0 || !parse_part(argv[i] + 7, &part))
      return fprintf(stderr, "usage: wal_cut [--long] [--dir=DIR] [--part=I/N] "
                             "[--only=BASE:CASE]\n"), 2;
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
  dir += "/pglog_cut_XXXXXX";
  if (!mkdtemp(dir.data()))
    return perror(dir.c_str()), 1;
  tally =
      new (mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
          Tally();
  std::vector<Base> bases(2);
  std::vector<std::vector<Case>> cases(2);
  for (int k = 0; k < 2; k++) {
    Base &b = bases[k];
    b.name = k ? "checkpoint" : "plain";
    b.dir = dir + "/" + b.name;
    b.with_check_point = k;
    b.setup.memory = 64 << 20;
    b.setup.write_buffer = 4 << 20;
    b.setup.max_total_wal = 64 << 20;
    if (!make(&b))
      return printf("FAILED: the database %s was not made as planned\n", b.dir.c_str()), 1;
    add_cuts(b, all, &cases[k]);
    add_flips(b, all, &cases[k]);
    for (size_t i = 0; !only.empty() && i < cases[k].size(); i++)
      if (only == b.name + ":" + std::to_string(i)) {
        std::string e = run_case(b, cases[k][i], dir + "/case", 0);
        printf("%s\n%s\n", name_of(b, cases[k][i]).c_str(), e.empty() ? "passed" : e.c_str());
        return e.empty() ? 0 : 1;
      }
  }
  auto start = std::chrono::steady_clock::now();
  fflush(nullptr);
  for (int w = 0; w < kWorkers; w++)
    if (fork() == 0) {
      work(bases, cases, dir, part, w);
      fflush(nullptr);
      _exit(0);
    }
  bool ok = true;
  for (int w = 0, status; w < kWorkers; w++)
    if (wait(&status) < 0 || status != 0)
      ok = (printf("FAILED: a worker ended with status 0x%x\n", status), false);
  double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  printf("%llu cases in %.1f s: %llu opened, %llu refused by name, %llu failures\n",
         (unsigned long long)tally->cases, s, (unsigned long long)tally->opened,
         (unsigned long long)tally->refused, (unsigned long long)tally->failures);
  ok = ok && tally->failures == 0 &&
       tally->cases == part.count(cases[0].size()) + part.count(cases[1].size());
  if (ok)
    fs::remove_all(dir);
  else
    printf("see %s/case*.log\n", dir.c_str());
  return ok ? 0 : 1;
}
