// Reads rows of a view byte by byte through the header's address formula.
#ifndef KVEVICT_TESTS_ORACLE_COMPACT_H_
#define KVEVICT_TESTS_ORACLE_COMPACT_H_

#include <stdbool.h>
#include <stdint.h>

#include "kvevict/kvevict.h"

#ifdef __cplusplus
extern "C" {
#endif

// Whether a plane is present.
bool oracle_has_rows(const kvevict_plane* plane);

// Bytes of the units that have addresses of their own: elements, or bytes.
uint32_t oracle_element_bytes(kvevict_dtype dtype);

// Bytes of one row of a plane.
uint32_t oracle_row_bytes(const kvevict_plane* plane);

// The address of byte `byte` of the row of a token and head.
uint8_t* oracle_row_byte(const kvevict_view* view, const kvevict_plane* plane,
                         uint32_t token, uint32_t head, uint32_t byte);

// How many bytes of a row lie together in memory from any multiple of it on: an
// element, or the whole row.
uint32_t oracle_run_bytes(const kvevict_plane* plane);

// Copies a row's bytes.
void oracle_get_row(const kvevict_view* view, const kvevict_plane* plane,
                    uint32_t token, uint32_t head, void* row);
void oracle_set_row(const kvevict_view* view, const kvevict_plane* plane,
                    uint32_t token, uint32_t head, const void* row);
void oracle_copy_row(const kvevict_view* to, const kvevict_plane* to_plane,
                     uint32_t to_token, const kvevict_view* from,
                     const kvevict_plane* plane, uint32_t token, uint32_t head);

// The first byte by which two rows differ, or the number of their bytes.
uint32_t oracle_first_difference(const kvevict_view* a,
                                 const kvevict_plane* plane, uint32_t token,
                                 const kvevict_view* b,
                                 const kvevict_plane* of_b, uint32_t token_of_b,
                                 uint32_t head);

// Does the work of kvevict_compact() with as much staging memory as needed.
void oracle_compact(const kvevict_view* view, const int32_t* keep,
                    uint32_t n_keep, uint32_t n_keep_lists);

// The same with lists of any stride and counts.
void oracle_compact_lists(const kvevict_view* view,
                          const kvevict_keep_lists* keep);

// The same to the slots of a destination from first_slot on. It may be the view.
void oracle_compact_to(const kvevict_view* view,
                       const kvevict_view* destination, uint32_t first_slot,
                       const kvevict_keep_lists* keep);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_COMPACT_H_
