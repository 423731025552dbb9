package dev.kvevict;

/** How important a log line is. The constants have the C ABI's order. */
public enum LogLevel {
  /** Something to act on. */
  WARNING,
  /** What was set up. */
  INFO,
  /** Details. */
  DEBUG
}
