module consumer {
  requires dev.kvevict;
  requires dev.kvevict.natives.linux_x86_64;
}
