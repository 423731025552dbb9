/*
 * kvevict/calibration.h: statistics of a model's queries, for the policies that
 * rank by the queries to come: expected-attention and triattention.
 *
 * A calibration adds up the queries that an engine shows it, over any number of
 * texts, and computes what these policies read from kvevict_signal_inputs. It
 * is made once per model, saved as bytes, and handed to every eviction.
 *
 * The rules at the top of kvevict.h hold here too.
 */
#ifndef KVEVICT_CALIBRATION_H_
#define KVEVICT_CALIBRATION_H_

#include "kvevict/kvevict.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Statistics of the queries of a model's layers with a full cache. Opaque. One
 *  thread at a time may use it. */
typedef struct kvevict_calibration kvevict_calibration;

/**
 * Creates a calibration that has seen no query.
 *
 * Its memory comes from the context's allocator. It holds, in f64 for each
 * query head, k_head_dim sums and the lengths of the pairs, and with
 * covariances k_head_dim * (k_head_dim + 1) / 2 products.
 * @param[in]  plan             Non-NULL, retained. Only its geometry counts,
 *                              with rope_inv_freq and rope_layout.
 * @param[in]  has_covariances  1: it also adds up what a covariance needs; 0:
 *                              it does not.
 * @param[out] out_calibration  Non-NULL.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_API kvevict_status kvevict_calibration_create(
    const kvevict_plan* plan, uint32_t has_covariances,
    kvevict_calibration** out_calibration) KVEVICT_NOEXCEPT;

/** @param[in] calibration  NULL does nothing. */
KVEVICT_API void kvevict_calibration_destroy(kvevict_calibration* calibration)
    KVEVICT_NOEXCEPT;

/**
 * Adds query rows of a layer. The sums depend on the rows and their order, not
 * on how they are cut into calls, nor on the number of threads.
 *
 * The call waits for its stream: CUDA packs the rows on the device and copies
 * them to the host, which adds them up.
 * @param[in] calibration     Non-NULL.
 * @param[in] layer           Below n_layers, with a full cache.
 * @param[in] queries         [n_q_heads, n_rows, k_head_dim] after RoPE, f32 or
 *                            the geometry's q_dtype, device memory. Borrowed.
 * @param[in] first_position  The position of row 0; the others follow.
 * @param[in] n_rows          Rows; 0 adds nothing.
 * @param[in] stream          See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, also if a row holds NaN or
 *         infinity: nothing is added then; KVEVICT_ERROR_UNSUPPORTED if the
 *         stream is captured into a graph; KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_API kvevict_status kvevict_calibration_observe(
    kvevict_calibration* calibration, uint32_t layer,
    const kvevict_plane* queries, uint32_t first_position, uint32_t n_rows,
    kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Tells how many rows of a layer have been added.
 * @param[in]  calibration  Non-NULL.
 * @param[in]  layer        As in kvevict_calibration_observe().
 * @param[out] out_rows     Non-NULL.
 */
KVEVICT_API kvevict_status
kvevict_calibration_rows(const kvevict_calibration* calibration, uint32_t layer,
                         uint64_t* out_rows) KVEVICT_NOEXCEPT;

/**
 * Writes what triattention takes as query_centers (arXiv:2604.04921). Each pair
 * of elements of a query before RoPE is a complex number; the call writes the
 * means of its real part, of its imaginary part and of its length.
 * @param[in]  calibration  Non-NULL.
 * @param[in]  layer        As in kvevict_calibration_observe().
 * @param[out] centers      f32 [n_q_heads, 3, rope_inv_freq_len], host memory.
 * @param[in]  centers_len  = n_q_heads * 3 * rope_inv_freq_len.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, also without a row of the
 *         layer or without rope_inv_freq.
 */
KVEVICT_API kvevict_status kvevict_calibration_query_centers(
    const kvevict_calibration* calibration, uint32_t layer, float* centers,
    size_t centers_len) KVEVICT_NOEXCEPT;

/**
 * Writes what expected-attention takes as query_mean and query_covariance
 * (arXiv:2510.00636): R m and R C R'. Here m is the mean and C the covariance
 * of the queries before RoPE, and R is the mean of RoPE's rotation over
 * n_positions positions from first_position on. C is divided by the number of
 * rows.
 * @param[in]  calibration     Non-NULL.
 * @param[in]  layer           As in kvevict_calibration_observe().
 * @param[in]  first_position  The first position to come.
 * @param[in]  n_positions     How many positions count, >= 1; the paper has
 *                             512. Their end is at most 2^31 - 1.
 * @param[out] mean            f32 [n_q_heads, k_head_dim], host memory.
 * @param[in]  mean_len        = n_q_heads * k_head_dim.
 * @param[out] covariance      f32 [n_q_heads, k_head_dim, k_head_dim], host
 *                             memory. NULL: not wanted.
 * @param[in]  covariance_len  = n_q_heads * k_head_dim * k_head_dim; 0 with
 *                             NULL.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, also without a row of the
 *         layer, and for a covariance without has_covariances.
 */
KVEVICT_API kvevict_status kvevict_calibration_query_mean(
    const kvevict_calibration* calibration, uint32_t layer,
    uint32_t first_position, uint32_t n_positions, float* mean, size_t mean_len,
    float* covariance, size_t covariance_len) KVEVICT_NOEXCEPT;

/**
 * Writes the sums as bytes, which every machine can load. They have a magic, a
 * version, their own length and a CRC-32.
 * @param[in]  calibration    Non-NULL.
 * @param[out] data           [data_capacity]; NULL with a capacity of 0.
 * @param[in]  data_capacity  0 asks for the length alone.
 * @param[out] out_data_len   NULL, or the bytes written or needed.
 */
KVEVICT_API kvevict_status kvevict_calibration_save(
    const kvevict_calibration* calibration, void* data, size_t data_capacity,
    size_t* out_data_len) KVEVICT_NOEXCEPT;

/**
 * Adds the sums that kvevict_calibration_save() wrote. In a new calibration
 * that restores them; in one with rows of its own it joins two parts of a
 * corpus.
 * @param[in] calibration  Non-NULL; with covariances only if the saved one has
 *                         them.
 * @param[in] data         Non-NULL [data_len].
 * @param[in] data_len     As kvevict_calibration_save() said.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT with what is wrong: other
 *         bytes, another version, cut off, damaged, or layers, heads or RoPE
 *         unlike the plan's. Nothing is added then.
 */
KVEVICT_API kvevict_status
kvevict_calibration_load(kvevict_calibration* calibration, const void* data,
                         size_t data_len) KVEVICT_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_CALIBRATION_H_
