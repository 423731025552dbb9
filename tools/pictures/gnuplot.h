// gnuplot as a program of its own.
#ifndef KVEVICT_TOOLS_PICTURES_GNUPLOT_H_
#define KVEVICT_TOOLS_PICTURES_GNUPLOT_H_

#include <string>

namespace kvevict::tools {

// "gnuplot 5.4 ...", or "" where there is none.
std::string GnuplotVersion();

// A text in quotes, as scripts have it.
std::string GnuplotText(const std::string& text);

// Throws if gnuplot fails.
void RunGnuplot(const std::string& script);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_PICTURES_GNUPLOT_H_
