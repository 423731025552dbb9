/* The paths that tests open. One small generated source defines these: all other
 * objects are the same in every folder, so that a compiler's cache has them for
 * every clone. */
#ifndef KVEVICT_TESTS_PATHS_H_
#define KVEVICT_TESTS_PATHS_H_

#ifdef __cplusplus
extern "C" {
#endif

extern const char test_source_dir[];
extern const char test_shared_dir[]; /* reference vectors and models */
extern const char test_fakes_dir[];
extern const char test_library[]; /* libkvevict.so */
extern const char test_mock_cuda[];
extern const char test_mock_cuda_11[];
extern const char test_kernel_cache[]; /* compiled kernels, kept between runs */
extern const char test_program[];
extern const char test_llama_program[];
extern const char test_llama_libraries[];

#ifdef __cplusplus
}
#endif

#endif /* KVEVICT_TESTS_PATHS_H_ */
