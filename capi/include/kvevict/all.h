/* kvevict/all.h: includes every header of the library. */
#ifndef KVEVICT_ALL_H_
#define KVEVICT_ALL_H_

#include "kvevict/attention.h"
#include "kvevict/batch.h"
#include "kvevict/calibration.h"
#include "kvevict/edit.h"
#include "kvevict/experimental.h"
#include "kvevict/kvevict.h"
#include "kvevict/paged.h"
#include "kvevict/prefill.h"

#endif /* KVEVICT_ALL_H_ */
