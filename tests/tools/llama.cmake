# The forward pass of LLaMA's architecture, and decoding after evictions.
function(kvevict_add_llama_test name)
  kvevict_add_test(tools_llama_${name} CRITERION SOURCES llama_${name}_test.cc
                   LINK kvevict_llama hwy)
endfunction()

kvevict_add_llama_test(model)
kvevict_add_llama_test(evict)
