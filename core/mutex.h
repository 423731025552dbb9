// A mutex, or nothing where the C++ library has no threads.
#ifndef KVEVICT_CORE_MUTEX_H_
#define KVEVICT_CORE_MUTEX_H_

#if defined(__wasi__) && !defined(_REENTRANT)
namespace kvevict {

class Mutex {};

class MutexLock {
 public:
  explicit MutexLock(Mutex&) {}
  ~MutexLock() {}  // as the other one's, so that nothing warns of a lock unused
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
};

}  // namespace kvevict
#else
#include <mutex>

namespace kvevict {

using Mutex = std::mutex;
using MutexLock = std::lock_guard<std::mutex>;

}  // namespace kvevict
#endif

#endif  // KVEVICT_CORE_MUTEX_H_
