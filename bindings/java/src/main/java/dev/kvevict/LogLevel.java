package dev.kvevict;

/** How important a log line is. */
public enum LogLevel implements CEnum {
  /** Something to act on. */
  WARNING(0),
  /** What was set up. */
  INFO(1),
  /** Details. */
  DEBUG(2);

  private final int value;

  LogLevel(int value) {
    this.value = value;
  }

  @Override
  public int value() {
    return value;
  }
}
