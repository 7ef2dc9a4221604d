// SPDX-License-Identifier: Apache-2.0
//
// Proves that a database of the facade survives kill -9 at any moment: several writers apply
// transactions while memtables are flushed, WALs are switched and check points are taken; the
// process is killed while it opens, writes or closes, and the next one finds every transaction that
// was acknowledged, each of them whole, data and pg log, and nothing else. The same database goes
// on from round to round, and each round's check may end in a kill as well.
//
// Half of the kills come at a random time, half in the middle of the N-th call that the file system
// is asked for (an append is then torn). SIGKILL leaves the page cache alone, so that what a write
// returned for must be there whether it was synced or not.
//
// usage: crash_kill [--rounds=N] [--seed=N] [--dir=DIR]
// N rounds: the option, or PGLOG_CRASH_ROUNDS, or 5. A failure prints the seed, which repeats the
// transactions, the settings and the kills, and keeps the database.
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "kill_fs.h"
#include "workload.h"

using namespace crash;

namespace {

constexpr int kWriters = 3;

enum Phase { START, OPENING, RUNNING, CLOSING, PHASES };
const char *const kPhaseNames[] = {"start", "open", "run", "close"};

// What survives a child.
struct Shared {
  std::atomic<uint64_t> attempted[kWriters], returned[kWriters], synced[kWriters];
  std::atomic<uint64_t> found[kWriters];
  std::atomic<int> phase;
  std::atomic<bool> checked;
  std::atomic<uint64_t> wal_switches, checkpoints, recovered_blobs, cut_bytes;
  char error[2048];
};

Shared *shared;

void report(const std::string &e) {
  snprintf(shared->error, sizeof shared->error, "%s", e.c_str());
}

[[noreturn]] void fail(const std::string &e) {
  report(e);
  _exit(3);
}

void must(const char *what, const std::string &e) {
  if (!e.empty())
    fail(std::string(what) + ": " + e);
}

// How one child is to end.
struct Plan {
  Phase phase;    /* kill it in this phase ... */
  int64_t calls;  /* ... in this file system call counted from its start, or if 0 ... */
  unsigned delay; /* ... so many us after its start */
};

Setup setup_of(uint64_t seed, const std::string &dir) {
  Random r(seed ^ 0x5e7);
  Setup s;
  s.keys.ceph = r.one_in(2);
  s.base = KILL_FS;
  s.recovery_mode = r.one_in(2) ? 2 : 0;
  s.write_buffer = (32 + r.below(100)) << 10;
  s.max_total_wal = (150 + r.below(400)) << 10;
  s.memory = 1 << 20;
  s.archive = r.one_in(4);
  s.atomic_flush = r.one_in(4);
  if (r.one_in(4))
    s.wal_dir = dir + "/wals";
  return s;
}

/* ---------------------------------------------------------------------------------------------- */
/* Children                                                                                       */

void enter(Phase p, const Plan &plan) {
  calls_left = plan.phase == p && plan.calls ? plan.calls : 0;
  shared->phase = p;
}

void write_for(Db &db, Writer w, int id, uint64_t seed, std::atomic<bool> &stop) {
  Random r(seed + (uint64_t)id);
  while (!stop) {
    uint64_t group = r.one_in(4) ? 1 : 1 + r.below(12);
    for (uint64_t k = 1; k <= group && !stop; k++) {
      Txn t = w.next();
      shared->attempted[id] = w.done();
      must("write", db.write(t, k == group));
      shared->returned[id] = w.done();
      if (k == group)
        shared->synced[id] = w.done();
    }
  }
}

// With atomic_flush only check points: RocksDB 7.8.3 asserts that flushes of one batch have one
// reason, which a flush on demand beside one for a full memtable or WAL breaks.
void maintain(Db &db, const Setup &s, uint64_t seed, std::atomic<bool> &stop) {
  Random r(seed ^ 0xf1);
  while (!stop) {
    std::this_thread::sleep_for(std::chrono::microseconds(r.below(12000)));
    switch (s.atomic_flush ? 0 : r.below(6)) {
      case 0:
        must("check point", db.checkpoint());
        break;
      case 1:
        must("flush of all", db.flush(-1, true));
        break;
      case 2:
      case 3:
        must("flush by the facade", db.flush((int)r.below(CFS), true));
        break;
      default:
        must("flush by RocksDB", db.flush((int)r.below(CFS), false));
    }
  }
}

// Opens, writes for a while, closes; three times over, unless it is killed.
void writing_child(const std::string &dir, const Setup &s, const Model &m, uint64_t seed,
                   const Plan &plan) {
  Random r(seed);
  std::vector<Writer> writers;
  for (int w = 0; w < kWriters; w++)
    writers.push_back(m.writer(w));
  for (int life = 0; life < 3; life++) {
    Db db;
    enter(OPENING, plan);
    must("open", db.open(dir, s));
    enter(RUNNING, plan);
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int w = 0; w < kWriters; w++)
      threads.emplace_back(write_for, std::ref(db), writers[w], w, seed + life, std::ref(stop));
    threads.emplace_back(maintain, std::ref(db), std::cref(s), seed + life, std::ref(stop));
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + r.below(120)));
    stop = true;
    for (auto &t : threads)
      t.join();
    for (int w = 0; w < kWriters; w++)
      while (writers[w].done() < shared->returned[w])
        writers[w].next();
    shared->wal_switches += db.stat("wal_switches");
    shared->checkpoints += db.stat("checkpoints");
    enter(CLOSING, plan);
    db.close();
  }
}

// What it has found is right, or fail.
void check(Db &db, const Setup &s, Model m, uint64_t seed) {
  Random r(seed);
  for (int w = 0; w < kWriters; w++) {
    uint64_t data, log;
    must("look for the last transaction", find_last(db, s.keys, w, &data, &log));
    uint64_t n = std::max(data, log);
    auto tell = [&](const char *what, uint64_t than) {
      fail(format("writer %d has %llu transactions (data %llu, pg log %llu), %s %llu", w,
                  (unsigned long long)n, (unsigned long long)data, (unsigned long long)log, what,
                  (unsigned long long)than));
    };
    if (n < shared->synced[w])
      tell("fewer than were acknowledged with sync:", shared->synced[w]);
    if (n < shared->returned[w])
      tell("fewer than were returned:", shared->returned[w]);
    if (n > shared->attempted[w])
      tell("more than were begun:", shared->attempted[w]);
    m.advance(w, n);
    shared->found[w] = n;
  }
  for (int cf = 0; cf < CFS; cf++)
    must("check", compare(db, m, cf));
  if (r.one_in(3))
    must("check, backward", compare(db, m, s.keys.cf(), false));
  shared->recovered_blobs += db.stat("recovered_blobs");
  shared->cut_bytes += db.stat("recovery_cut_bytes");
}

void checking_child(const std::string &dir, const Setup &s, const Model &m, uint64_t seed,
                    const Plan &plan) {
  Db db;
  Random r(seed ^ 0xc4ec);
  enter(OPENING, plan);
  must("open to check", db.open(dir, s));
  enter(RUNNING, plan);
  check(db, s, m, seed);
  shared->checked = true;
  if (r.one_in(3))
    die();
  enter(CLOSING, plan);
  db.close();
}

/* ---------------------------------------------------------------------------------------------- */
/* The parent                                                                                     */

struct Run {
  std::string dir;
  uint64_t seed, rounds;
  Setup setup;
  unsigned kills[PHASES] = {};
};

// Run `child`, and kill it as planned. "" or what went wrong.
template <typename Child>
std::string run(Run *run, const Plan &plan, Child child) {
  shared->phase = START;
  shared->error[0] = 0;
  fflush(nullptr);
  pid_t pid = fork();
  if (pid == 0) {
    child();
    _exit(0);
  }
  int status = 0;
  auto start = std::chrono::steady_clock::now();
  bool timed = plan.phase != START && plan.calls == 0, ended = false;
  while (timed && shared->phase < plan.phase && !(ended = waitpid(pid, &status, WNOHANG) == pid))
    usleep(50);
  if (timed && !ended) {
    usleep(plan.delay);
    kill(pid, SIGKILL);
  }
  while (!ended && !(ended = waitpid(pid, &status, WNOHANG) == pid)) {
    usleep(200);
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(120)) {
      kill(pid, SIGABRT); /* for a core to look at */
      return "a child did not end within 120 s";
    }
  }
  if (shared->error[0])
    return shared->error;
  if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
    return format("a child ended by signal %d in its phase %s", WTERMSIG(status),
                  kPhaseNames[shared->phase]);
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
    return format("a child ended with %d", WEXITSTATUS(status));
  if (WIFSIGNALED(status))
    run->kills[shared->phase]++;
  return "";
}

Plan plan_of(Random &r, Phase phase) {
  Plan p{phase, 0, 0};
  if (r.one_in(2))
    p.calls = phase == RUNNING ? 1 + (int64_t)r.below(r.one_in(2) ? 3000 : 200)
                               : 1 + (int64_t)r.below(70);
  else
    p.delay = (unsigned)r.below(phase == RUNNING ? 250000 : 12000);
  return p;
}

// One round: a writer that is killed; then checks, until one of them was not killed too early.
std::string round(Run *u, Model *m, uint64_t seed) {
  Random r(seed);
  uint64_t where = r.below(8);
  Plan p = plan_of(r, where == 0 ? OPENING : where == 1 ? CLOSING : RUNNING);
  std::string e = run(u, p, [&] { writing_child(u->dir, u->setup, *m, seed, p); });
  for (int i = 0; e.empty() && !shared->checked; i++) {
    Plan c{START, 0, 0};
    if (i < 3 && r.one_in(2))
      c = plan_of(r, r.one_in(2) ? OPENING : CLOSING);
    e = run(u, c, [&] { checking_child(u->dir, u->setup, *m, r.next(), c); });
  }
  shared->checked = false;
  for (int w = 0; e.empty() && w < kWriters; w++) {
    m->advance(w, shared->found[w]);
    shared->attempted[w] = shared->returned[w] = shared->synced[w] = shared->found[w].load();
  }
  return e;
}

int whole(Run *u) {
  u->setup = setup_of(u->seed, u->dir);
  const Setup &s = u->setup;
  printf("seed %llu: %s rule, wal_recovery_mode=%d, write_buffer_size=%llu, "
         "max_total_wal_size=%llu%s%s%s\n",
         (unsigned long long)u->seed, s.keys.ceph ? "Ceph's" : "default", s.recovery_mode,
         (unsigned long long)s.write_buffer, (unsigned long long)s.max_total_wal,
         s.archive ? ", archive" : "", s.atomic_flush ? ", atomic_flush" : "",
         s.wal_dir.empty() ? "" : ", wal_dir");
  Model m(u->seed, kWriters, s.keys);
  Random seeds(u->seed);
  for (uint64_t i = 0; i < u->rounds; i++) {
    std::string e = round(u, &m, seeds.next());
    if (!e.empty()) {
      printf("FAILED in round %llu of seed %llu: %s\nrepeat: crash_kill --seed=%llu --rounds=%llu; "
             "the database is in %s\n",
             (unsigned long long)i + 1, (unsigned long long)u->seed, e.c_str(),
             (unsigned long long)u->seed, (unsigned long long)i + 1, u->dir.c_str());
      return 1;
    }
  }
  uint64_t n = 0;
  for (int w = 0; w < kWriters; w++)
    n += m.done(w);
  printf("%llu rounds, %llu transactions; kills: %u in open, %u in run, %u in close; %llu WAL "
         "switches, %llu check points, %llu blobs recovered, %llu bytes cut\n",
         (unsigned long long)u->rounds, (unsigned long long)n, u->kills[OPENING], u->kills[RUNNING],
         u->kills[CLOSING], (unsigned long long)shared->wal_switches,
         (unsigned long long)shared->checkpoints, (unsigned long long)shared->recovered_blobs,
         (unsigned long long)shared->cut_bytes);
  return 0;
}

}  // namespace

// Long runs are cut into databases of at most so many rounds, each with settings of its own.
constexpr uint64_t kRoundsPerDatabase = 20;

int main(int argc, char **argv) {
  const char *env = getenv("PGLOG_CRASH_ROUNDS"), *tmp = getenv("TMPDIR");
  uint64_t rounds = env && *env ? strtoull(env, nullptr, 10) : 5, seed = 0;
  std::string dir = tmp && *tmp ? tmp : "/tmp";
  bool seeded = false;
  for (int i = 1; i < argc; i++) {
    if (strncmp(argv[i], "--rounds=", 9) == 0)
      rounds = strtoull(argv[i] + 9, nullptr, 10);
    else if (strncmp(argv[i], "--seed=", 7) == 0)
      seeded = true, seed = strtoull(argv[i] + 7, nullptr, 10);
    else if (strncmp(argv[i], "--dir=", 6) == 0)
      dir = argv[i] + 6;
    else
      return fprintf(stderr, "usage: crash_kill [--rounds=N] [--seed=N] [--dir=DIR]\n"), 2;
  }
  if (rounds == 0)
    return fprintf(stderr, "crash_kill: no rounds\n"), 2;
  if (!seeded)
    seed = (uint64_t)std::chrono::system_clock::now().time_since_epoch().count();
  setvbuf(stdout, nullptr, _IOLBF, 0);
  register_kill_fs();
  for (; rounds > 0; seed++) {
    uint64_t n = seeded ? rounds : std::min(rounds, kRoundsPerDatabase);
    shared = new (mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                       -1, 0)) Shared();
    std::string t = dir + "/pglog_crash_XXXXXX";
    if (!mkdtemp(t.data()))
      return perror(t.c_str()), 1;
    Run u{t + "/db", seed, n, {}};
    if (mkdir(u.dir.c_str(), 0755) != 0)
      return perror(u.dir.c_str()), 1;
    if (whole(&u) != 0)
      return 1;
    std::filesystem::remove_all(t);
    munmap(shared, sizeof(Shared));
    rounds -= n;
  }
  return 0;
}
