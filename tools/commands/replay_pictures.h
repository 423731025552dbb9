// The heat maps of `kvevict replay`.
#ifndef KVEVICT_TOOLS_COMMANDS_REPLAY_PICTURES_H_
#define KVEVICT_TOOLS_COMMANDS_REPLAY_PICTURES_H_

#include <string>
#include <vector>

#include "tools/pictures/gnuplot.h"
#include "tools/pictures/heat_map.h"
#include "tools/replay/replay.h"

namespace kvevict::tools {

// Which rows stay by layer and position, and bytes by layer and KV head.
// `title` names the policy, `number` tells files of several policies apart.
std::vector<HeatMap> ReplayMaps(const Replayed& replayed, uint32_t n_tokens,
                                const std::string& title, size_t number);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_COMMANDS_REPLAY_PICTURES_H_
