# The LLaMA engine: files, tokenizer, forward pass, decoding after evictions.
function(kvevict_add_llama_test name)
  kvevict_add_test(tools_llama_${name} CRITERION SOURCES llama_${name}_test.cc
                   ${ARGN} LINK kvevict_llama nlohmann_json::nlohmann_json)
endfunction()

kvevict_add_llama_test(gguf llama_allocation_limit.cc)
kvevict_add_llama_test(llama2c llama_allocation_limit.cc)
kvevict_add_llama_test(tokenizer)
kvevict_add_llama_test(model)
kvevict_add_llama_test(evict)
kvevict_add_llama_test(text)
