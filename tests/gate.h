// SPDX-License-Identifier: Apache-2.0
//
// gate.h - holds threads of a test back until it says so.
#ifndef PGLOG_TESTS_GATE_H
#define PGLOG_TESTS_GATE_H

#include <condition_variable>
#include <mutex>

// A door that is closed at first.
class Gate {
 public:
  void Wait() {
    std::unique_lock<std::mutex> l(m_);
    waiting_++;
    cv_.notify_all();
    cv_.wait(l, [this] { return open_; });
  }
  void Open() {
    std::lock_guard<std::mutex> l(m_);
    open_ = true;
    cv_.notify_all();
  }
  void AwaitWaiters(int n) {
    std::unique_lock<std::mutex> l(m_);
    cv_.wait(l, [&] { return waiting_ >= n; });
  }

 private:
  std::mutex m_;
  std::condition_variable cv_;
  int waiting_ = 0;
  bool open_ = false;
};

#endif
