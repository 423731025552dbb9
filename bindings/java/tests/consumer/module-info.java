module consumer {
  requires dev.kvevict;
}
