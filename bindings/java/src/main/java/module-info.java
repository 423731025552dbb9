/**
 * kvevict: physically shrinks the KV cache of LLM inference engines.
 *
 * <p>The native library comes in a jar of its own, {@code kvevict-<version>-natives-linux-x86_64.jar}.
 * On the module path its module has to be required as well, {@code
 * requires dev.kvevict.natives.linux_x86_64}, or named when the program is started, {@code
 * --add-modules dev.kvevict.natives.linux_x86_64}.
 */
module dev.kvevict {
  exports dev.kvevict;
}
