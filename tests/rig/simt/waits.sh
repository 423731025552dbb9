# list_waits KERNEL: LINE:TEXT of the lines that wait.
list_waits() {
  local waits='(BlockSync|BlockAny|WarpSync|CopyAsyncWait|LoadAcquire|StoreRelease|AtomicTicket)'
  sed 's@//.*@@' "$1" | grep -nE "\<$waits(<[^>]*>)?\(" || true
}
