// SPDX-License-Identifier: Apache-2.0
//
// opq_test.cc - the op queues: nothing is lost or run twice, a PG's operations run one at a time
// and in order, priorities share by weight, a full shard pushes back, stopping drains.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gate.h"
#include "osdcore/opq.h"

namespace {

struct Pg {
  struct opq_pg pg = {};
  std::atomic<int> inside{0};
  std::vector<std::vector<uint32_t>> seen;  // by client * OPQ_PRIOS + prio; the owner's
};

struct Op {
  struct opq_op op = {};
  Pg *pg = nullptr;
  uint32_t client = 0, number = 0;
};

struct Queue {
  struct opq *q = nullptr;
  struct opq_config c = {};
  std::function<void(Op *)> fn;

  Queue(int kind, uint32_t shards, uint32_t threads, std::function<void(Op *)> f)
      : fn(std::move(f)) {
    c.kind = kind;
    c.shards = shards;
    c.threads = threads;
    c.arg = this;
    c.run = [](void *arg, struct opq_op *op) {
      static_cast<Queue *>(arg)->fn(reinterpret_cast<Op *>(op));
    };
  }
  ~Queue() { opq_free(q); }
  void Start() {
    struct pglog_error e;
    ASSERT_EQ(opq_new(&q, &c, &e), 0) << e.text;
  }
  struct opq_stats Stats() {
    struct opq_stats s;
    opq_stats(q, &s);
    return s;
  }
};
static_assert(offsetof(Op, op) == 0, "Op is found by its opq_op");

struct Shape {
  int kind;
  uint32_t shards, threads;
  bool inline_run;
};
std::string Name(const testing::TestParamInfo<Shape> &i) {
  return std::string(opq_kind_str(i.param.kind)) + "_" + std::to_string(i.param.shards) + "x" +
         std::to_string(i.param.threads) + (i.param.inline_run ? "_inline" : "");
}

class Opq : public testing::TestWithParam<Shape> {};

}  // namespace

TEST_P(Opq, RunsEachOnceInOrderOnePgAtATime) {
  constexpr uint32_t kClients = 4, kPgs = 7, kOps = 4000;
  const Shape &s = GetParam();
  std::atomic<uint32_t> run{0}, broken{0};
  Queue q(s.kind, s.shards, s.threads, [&](Op *op) {
    broken += op->pg->inside.fetch_add(1) != 0;
    op->pg->seen[op->client * OPQ_PRIOS + op->op.prio].push_back(op->number);
    op->pg->inside.fetch_sub(1);
    run++;
  });
  q.c.inline_run = s.inline_run;
  q.c.capacity = 64;
  q.Start();
  std::vector<Pg> pgs(kPgs);
  for (uint32_t i = 0; i < kPgs; i++) {
    opq_pg_init(&pgs[i].pg, q.q, i);
    pgs[i].seen.resize(kClients * OPQ_PRIOS);
  }
  std::vector<std::vector<Op>> ops;
  for (uint32_t c = 0; c < kClients; c++)
    ops.emplace_back(kOps);
  std::vector<std::thread> clients;
  for (uint32_t c = 0; c < kClients; c++)
    clients.emplace_back([&, c] {
      for (uint32_t i = 0; i < kOps; i++) {
        Op &op = ops[c][i];
        op.pg = &pgs[(i * 2654435761u >> 16) % kPgs];
        op.op.pg = &op.pg->pg;
        op.op.prio = i % 5 == 0 ? OPQ_RECOVERY : OPQ_CLIENT;
        op.client = c;
        op.number = i;
        if (opq_submit(q.q, &op.op, 0) != 0)
          broken++;
        if (i % 500 == 499)  // let workers go to sleep
          std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
  for (std::thread &t : clients)
    t.join();
  opq_stop(q.q);
  EXPECT_EQ(run, kClients * kOps);
  EXPECT_EQ(broken, 0u);
  size_t seen = 0;
  for (Pg &pg : pgs) {
    EXPECT_EQ(pg.pg.claims, 0u);
    for (std::vector<uint32_t> &v : pg.seen) {
      seen += v.size();
      for (size_t i = 1; i < v.size(); i++)
        ASSERT_LT(v[i - 1], v[i]);
    }
  }
  EXPECT_EQ(seen, kClients * kOps);
  struct opq_stats st = q.Stats();
  EXPECT_EQ(st.submitted, kClients * kOps);
  EXPECT_EQ(st.run, kClients * kOps);
  EXPECT_LE(st.run_inline, st.run);
  EXPECT_LE(st.spins_paid, st.spins);
}

TEST_P(Opq, PushesBackWhenFull) {
  const Shape &s = GetParam();
  Gate gate;
  std::atomic<uint32_t> run{0};
  std::atomic<bool> first{true};
  Queue q(s.kind, 1, 1, [&](Op *) {
    if (first.exchange(false))
      gate.Wait();
    run++;
  });
  q.c.capacity = 4;
  q.Start();
  Pg pg;
  opq_pg_init(&pg.pg, q.q, 0);
  std::vector<Op> ops(7);
  for (Op &op : ops)
    op.op.pg = &pg.pg;
  ASSERT_EQ(opq_submit(q.q, &ops[0].op, 0), 0);
  gate.AwaitWaiters(1);  // taken: the shard is empty
  for (int i = 1; i <= 4; i++)
    ASSERT_EQ(opq_submit(q.q, &ops[i].op, OPQ_NOWAIT), 0);
  ASSERT_EQ(opq_submit(q.q, &ops[5].op, OPQ_NOWAIT), PGLOG_EBUSY);
  std::atomic<bool> in{false};
  std::thread waits([&] {
    EXPECT_EQ(opq_submit(q.q, &ops[5].op, 0), 0);
    in = true;
  });
  while (q.Stats().full < 2)
    std::this_thread::yield();
  EXPECT_FALSE(in);
  gate.Open();
  waits.join();
  ASSERT_EQ(opq_submit(q.q, &ops[6].op, 0), 0);
  opq_stop(q.q);
  EXPECT_EQ(run, 7u);
}

TEST_P(Opq, SharesByWeight) {
  const Shape &s = GetParam();
  Gate gate;
  std::vector<int> order;  // the only worker's
  Queue q(s.kind, 1, 1, [&](Op *op) {
    if (op->number == 0)
      gate.Wait();
    else
      order.push_back(op->op.prio);
  });
  q.c.weight[OPQ_CLIENT] = 3;
  q.c.weight[OPQ_RECOVERY] = 2;
  q.Start();
  std::vector<Pg> pgs(101);
  std::vector<Op> ops(101);
  for (uint32_t i = 0; i <= 100; i++) {
    opq_pg_init(&pgs[i].pg, q.q, i);
    ops[i].op.pg = &pgs[i].pg;
    ops[i].op.prio = i > 50 ? OPQ_RECOVERY : OPQ_CLIENT;
    ops[i].number = i;
    ASSERT_EQ(opq_submit(q.q, &ops[i].op, 0), 0);
    if (i == 0)
      gate.AwaitWaiters(1);
  }
  gate.Open();
  opq_stop(q.q);
  ASSERT_EQ(order.size(), 100u);
  // Both wait for the first 80: each run of 5 has 3 and 2. Then the rest of the recovery.
  for (int i = 0; i + 5 <= 80; i += 5) {
    int recovery = 0;
    for (int j = i; j < i + 5; j++)
      recovery += order[j] == OPQ_RECOVERY;
    EXPECT_EQ(recovery, 2) << i;
  }
  for (int i = 84; i < 100; i++)
    EXPECT_EQ(order[i], OPQ_RECOVERY) << i;
}

// While one PG is busy, another of the same shard goes on.
TEST_P(Opq, ABusyPgHoldsNoOtherUp) {
  const Shape &s = GetParam();
  Gate gate;
  std::mutex m;
  std::vector<uint32_t> order;
  Queue q(s.kind, 1, 2, [&](Op *op) {
    if (op->number == 0)
      gate.Wait();
    std::lock_guard<std::mutex> l(m);
    order.push_back(op->number);
  });
  q.Start();
  Pg a, b;
  opq_pg_init(&a.pg, q.q, 0);
  opq_pg_init(&b.pg, q.q, 1);
  std::vector<Op> ops(21);
  for (uint32_t i = 0; i <= 20; i++) {
    ops[i].op.pg = i % 2 ? &b.pg : &a.pg;
    ops[i].number = i;
    ASSERT_EQ(opq_submit(q.q, &ops[i].op, 0), 0);
    if (i == 0)
      gate.AwaitWaiters(1);
  }
  for (;;) {
    std::lock_guard<std::mutex> l(m);
    if (order.size() == 10)
      break;
  }
  for (uint32_t n : order)
    EXPECT_EQ(n % 2, 1u);
  gate.Open();
  opq_stop(q.q);
  ASSERT_EQ(order.size(), 21u);
  for (size_t i = 10; i < 21; i++)
    EXPECT_EQ(order[i], 2 * (i - 10));
}

TEST_P(Opq, ARunOperationMaySubmitAndStopRefuses) {
  const Shape &s = GetParam();
  std::atomic<uint32_t> run{0}, refused{0};
  Queue *self = nullptr;
  Queue q(s.kind, s.shards, s.threads, [&](Op *op) {
    run++;
    if (op->number-- > 0 && opq_submit(self->q, &op->op, OPQ_NOWAIT) != 0)
      refused++;
  });
  self = &q;
  q.Start();
  Pg pg;
  opq_pg_init(&pg.pg, q.q, 5);
  Op op;
  op.op.pg = &pg.pg;
  op.number = 100;
  ASSERT_EQ(opq_submit(q.q, &op.op, 0), 0);
  while (run < 101)
    std::this_thread::yield();
  opq_stop(q.q);
  EXPECT_EQ(run, 101u);
  EXPECT_EQ(refused, 0u);
  EXPECT_EQ(opq_submit(q.q, &op.op, 0), PGLOG_EPOISONED);
  opq_stop(q.q);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Opq,
    testing::Values(Shape{OPQ_SINGLE, 1, 1, false}, Shape{OPQ_SINGLE, 2, 2, false},
                    Shape{OPQ_SHARDED, 3, 1, false}, Shape{OPQ_SHARDED, 2, 2, false},
                    Shape{OPQ_SHARDED, 2, 2, true}, Shape{OPQ_FAST, 1, 1, false},
                    Shape{OPQ_FAST, 3, 1, false}, Shape{OPQ_FAST, 2, 3, false},
                    Shape{OPQ_FAST, 1, 1, true}, Shape{OPQ_FAST, 2, 2, true}),
    Name);

TEST(OpqInline, RunsInTheSubmittingThreadWhenIdleOnly) {
  for (int kind : {OPQ_SHARDED, OPQ_FAST}) {
    Gate gate;
    std::vector<std::thread::id> ids(4);
    Queue q(kind, 1, 1, [&](Op *op) {
      ids[op->number] = std::this_thread::get_id();
      if (op->number == 1)
        gate.Wait();
    });
    q.c.inline_run = true;
    q.Start();
    Pg pg;
    opq_pg_init(&pg.pg, q.q, 0);
    std::vector<Op> ops(4);
    for (uint32_t i = 0; i < 4; i++) {
      ops[i].op.pg = &pg.pg;
      ops[i].number = i;
    }
    while (q.Stats().sleeps == 0)  // the worker, so that nobody has the shard's lock
      std::this_thread::yield();
    ASSERT_EQ(opq_submit(q.q, &ops[0].op, 0), 0);
    EXPECT_EQ(ids[0], std::this_thread::get_id());
    std::thread other([&] { EXPECT_EQ(opq_submit(q.q, &ops[1].op, 0), 0); });
    gate.AwaitWaiters(1);  // another thread is in the PG
    ASSERT_EQ(opq_submit(q.q, &ops[2].op, 0), 0);
    ASSERT_EQ(opq_submit(q.q, &ops[3].op, 0), 0);
    gate.Open();
    other.join();
    opq_stop(q.q);
    EXPECT_NE(ids[1], std::this_thread::get_id());
    EXPECT_NE(ids[2], std::this_thread::get_id());
    EXPECT_EQ(ids[3], ids[2]);
    EXPECT_EQ(q.Stats().run_inline, 2u);
    EXPECT_EQ(q.Stats().run, 4u);
  }
}

// Workers go to sleep and are woken all the time: a late wake must not leave one in the list of
// sleepers twice, nor one out of it.
TEST(OpqFast, ManySleepsAndWakes) {
  constexpr int kClients = 6, kOps = 4000;
  std::vector<std::atomic<uint32_t>> done(kClients);
  Queue q(OPQ_FAST, 1, 3, [&](Op *op) { done[op->client].fetch_add(1); });
  q.c.no_spin = true;
  q.Start();
  std::vector<Pg> pgs(kClients);
  std::vector<Op> ops(kClients);
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; c++) {
    opq_pg_init(&pgs[c].pg, q.q, (uint64_t)c);
    ops[c].op.pg = &pgs[c].pg;
    ops[c].client = (uint32_t)c;
    clients.emplace_back([&, c] {
      for (uint32_t i = 1; i <= kOps; i++) {
        EXPECT_EQ(opq_submit(q.q, &ops[c].op, 0), 0);
        while (done[c] < i)
          std::this_thread::yield();
      }
    });
  }
  for (std::thread &t : clients)
    t.join();
  opq_stop(q.q);
  struct opq_stats st = q.Stats();
  EXPECT_EQ(st.run, (uint64_t)kClients * kOps);
  EXPECT_LE(st.wakes, st.sleeps);
}

// Waits for it for up to 10 seconds.
bool Await(const std::atomic<uint32_t> &n, uint32_t value) {
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (int i = 0; n != value && std::chrono::steady_clock::now() < end; i++)
    if (i > 100)  // it needs this processor
      std::this_thread::yield();
  return n == value;
}

void BusyFor(std::chrono::nanoseconds t) {
  auto end = std::chrono::steady_clock::now() + t;
  while (std::chrono::steady_clock::now() < end)
    ;
}

// A submit finds a worker anywhere on its way to sleep, also between its last look and its being
// known as a sleeper.
TEST(OpqFast, ASubmitIsSeenByAWorkerThatGoesToSleep) {
  std::atomic<uint32_t> run{0};
  Queue q(OPQ_FAST, 1, 1, [&](Op *) { run++; });
  q.c.no_spin = true;
  q.Start();
  Pg pg;
  opq_pg_init(&pg.pg, q.q, 0);
  Op op;
  op.op.pg = &pg.pg;
  for (uint32_t i = 1; i <= 50000; i++) {
    ASSERT_EQ(opq_submit(q.q, &op.op, 0), 0);
    ASSERT_TRUE(Await(run, i)) << "the worker sleeps";
    BusyFor(std::chrono::nanoseconds(i % 800));
  }
}

// Whoever of the workers takes the first operation, spinning or woken, the second does not wait for
// it.
TEST(OpqFast, TwoWorkersRunTwoOperations) {
  std::atomic<uint32_t> begun{0}, done{0};
  std::atomic<bool> stuck{false};
  Queue q(OPQ_FAST, 1, 2, [&](Op *op) {
    begun++;
    if (op->client == 1 && !stuck)
      stuck = !Await(begun, op->number * 2);
    done++;
  });
  q.c.spin_max_us = 1000;
  q.Start();
  Pg pgs[2];
  Op ops[2];
  for (uint32_t i = 0; i < 2; i++) {
    opq_pg_init(&pgs[i].pg, q.q, i);
    ops[i].op.pg = &pgs[i].pg;
    ops[i].client = i + 1;
  }
  for (uint32_t i = 1; i <= 1000; i++) {
    ops[0].number = i;
    ASSERT_EQ(opq_submit(q.q, &ops[0].op, 0), 0);
    ASSERT_EQ(opq_submit(q.q, &ops[1].op, 0), 0);
    ASSERT_TRUE(Await(done, i * 2));
    ASSERT_FALSE(stuck) << "the second waited for the first";
    BusyFor(std::chrono::microseconds(20 + i % 100));
  }
}

// A submit that waits for room is woken although another takes a place and gives it back meanwhile.
TEST(OpqFast, RoomIsNotLostToASubmitThatDoesNotWait) {
  constexpr uint32_t kOps = 20000;
  std::atomic<uint32_t> run{0}, refused{0}, taken{0};
  std::atomic<bool> over{false};
  Queue q(OPQ_FAST, 1, 1, [&](Op *) { run++; });
  q.c.capacity = 1;
  q.Start();
  Pg pg;
  opq_pg_init(&pg.pg, q.q, 0);
  std::vector<Op> ops(kOps), more(4 * kOps);
  for (Op &op : ops)
    op.op.pg = &pg.pg;
  for (Op &op : more)
    op.op.pg = &pg.pg;
  std::thread other([&] {
    for (size_t i = 0; i < more.size() && !over;) {
      uint32_t seen = run;
      bool in = opq_submit(q.q, &more[i].op, OPQ_NOWAIT) == 0;
      i += in;
      (in ? taken : refused)++;
      while (!in && run == seen && !over)  // it must not be us who wakes the other one
        std::this_thread::yield();
    }
  });
  for (Op &op : ops)
    ASSERT_EQ(opq_submit(q.q, &op.op, 0), 0);
  over = true;
  other.join();
  opq_stop(q.q);
  EXPECT_EQ(run, kOps + taken);
}

TEST(OpqConfig, NamesWhatIsWrong) {
  auto bad = [](std::function<void(struct opq_config *)> change, const std::string &want) {
    Queue q(OPQ_FAST, 1, 1, [](Op *) {});
    change(&q.c);
    struct pglog_error e = {0, ""};
    EXPECT_EQ(opq_new(&q.q, &q.c, &e), PGLOG_EINVAL);
    EXPECT_EQ(e.code, PGLOG_EINVAL);
    EXPECT_NE(std::string(e.text).find(want), std::string::npos) << e.text;
    EXPECT_EQ(q.q, nullptr);
  };
  bad([](struct opq_config *c) { c->kind = 3; }, "kind is 3, it must be 0 to 2");
  bad([](struct opq_config *c) { c->shards = 0; }, "shards is 0, it must be 1 to 1024");
  bad([](struct opq_config *c) { c->threads = 65; }, "threads is 65, it must be 1 to 64");
  bad([](struct opq_config *c) { c->capacity = 1048577; }, "capacity is 1048577");
  bad([](struct opq_config *c) { c->spin_max_us = 1001; }, "spin_max_us is 1001");
  bad([](struct opq_config *c) { c->weight[1] = 1001; }, "weight is 1001");
  bad([](struct opq_config *c) { c->run = nullptr; }, "run is NULL");
  opq_free(nullptr);
  opq_stop(nullptr);
}

TEST(OpqProbes, AreFilledIn) {
  for (int kind = 0; kind < OPQ_KINDS; kind++) {
    std::atomic<uint32_t> good{0};
    Queue q(kind, 1, 1,
            [&](Op *op) { good += op->op.queued_ns > 0 && op->op.taken_ns >= op->op.queued_ns; });
    q.c.probes = true;
    q.Start();
    Pg pg;
    opq_pg_init(&pg.pg, q.q, 0);
    std::vector<Op> ops(100);
    for (Op &op : ops) {
      op.op.pg = &pg.pg;
      ASSERT_EQ(opq_submit(q.q, &op.op, 0), 0);
    }
    EXPECT_GT(opq_worker_tid(q.q, 0), 0);
    EXPECT_EQ(opq_workers(q.q), 1u);
    opq_stop(q.q);
    EXPECT_EQ(good, 100u);
  }
}
