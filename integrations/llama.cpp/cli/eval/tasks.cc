#include "tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace kvevict::llama_cli::eval {
namespace {

// SplitMix64: the standard library's distributions differ from one to another.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  // Below n.
  size_t Below(size_t n) {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<size_t>((z ^ (z >> 31)) % n);
  }
  // n different ones of a list.
  std::vector<std::string> Pick(std::vector<std::string> from, size_t n) {
    Shuffle(from);
    from.resize(n);
    return from;
  }
  void Shuffle(std::vector<std::string>& list) {
    for (size_t i = list.size(); i > 1; --i) {
      std::swap(list[i - 1], list[Below(i)]);
    }
  }
  std::string Number(int n_digits) {
    std::string digits(1, static_cast<char>('1' + Below(9)));
    while (--n_digits > 0) digits += static_cast<char>('0' + Below(10));
    return digits;
  }

 private:
  uint64_t state_;
};

const std::vector<std::string> kAnimals = {
    "otter",  "falcon", "tiger", "dolphin", "badger", "heron",
    "rabbit", "beaver", "camel", "parrot",  "spider", "turtle"};
const std::vector<std::string> kQualities = {
    "lazy",  "brave", "quiet", "purple", "golden", "gentle",
    "happy", "rusty", "tiny",  "noisy",  "polite", "sleepy"};
const std::vector<std::string> kNames = {"Alice", "Bob",   "Carol", "David",
                                         "Emma",  "Frank", "Grace", "Jack",
                                         "Kate",  "Mary",  "Peter", "Tom"};
const std::vector<std::string> kCities = {
    "Paris", "London", "Rome",   "Berlin", "Madrid", "Vienna",
    "Cairo", "Tokyo",  "Dublin", "Oslo",   "Prague", "Moscow"};
const std::vector<std::string> kThings = {
    "apple",  "hammer", "violin", "candle", "mirror", "ladder",
    "basket", "bottle", "kettle", "pencil", "shovel", "wagon"};
const std::vector<std::string> kColours = {"red",    "blue",  "green", "yellow",
                                           "orange", "white", "black", "brown"};

std::vector<std::string> Keys(Random& random, size_t n) {
  std::vector<std::string> keys = random.Pick(kAnimals, n);
  const std::vector<std::string> qualities = random.Pick(kQualities, n);
  for (size_t i = 0; i < n; ++i) keys[i] = qualities[i] + " " + keys[i];
  return keys;
}

// What a task needs besides its facts.
struct Room {
  Random& random;
  uint32_t n_tokens;
  std::span<const std::string> sentences;
  const Wording& wording;
  const CountTokens& count;
  double depth = -1;  // of the facts in the text; below 0: random ones
};

// The facts at their places among as many sentences as there is room for, in
// the order that they have.
std::string Hide(Room& room, const std::vector<std::string>& facts,
                 const std::string& introduction = Wording().introduction) {
  uint32_t n_left = room.n_tokens;
  const auto take = [&](const std::string& sentence) {
    const uint32_t n = room.count(" " + sentence);
    if (n > n_left) return false;
    n_left -= n;
    return true;
  };
  take(introduction);
  for (const std::string& fact : facts) {
    if (!take(fact)) {
      throw std::runtime_error(fmt::format(
          "a task of {} tokens has no room for its facts", room.n_tokens));
    }
  }
  std::vector<std::string> text;
  const std::span<const std::string> hay =
      room.wording.haystack.empty() ? room.sentences : room.wording.haystack;
  for (size_t at = room.random.Below(hay.size());; ++at) {
    const std::string& next = hay[at % hay.size()];
    if (!take(next)) break;
    text.push_back(next);
  }
  std::vector<size_t> places;
  for (size_t i = 0; i < facts.size(); ++i) {
    places.push_back(room.depth < 0
                         ? room.random.Below(text.size() + 1)
                         : static_cast<size_t>(std::lround(
                               room.depth * static_cast<double>(text.size()))));
  }
  std::sort(places.begin(), places.end());
  for (size_t i = facts.size(); i > 0; --i) {
    text.insert(text.begin() + static_cast<ptrdiff_t>(places[i - 1]),
                facts[i - 1]);
  }
  std::string out = introduction + "\n";
  for (const std::string& sentence : text) out += sentence + " ";
  out.back() = '\n';
  return out;
}

std::string NumberFact(const std::string& key, const std::string& number) {
  return fmt::format("The secret number of the {} is {}.", key, number);
}

Task Single(Room& room) {
  const Wording& w = room.wording;
  const std::string noun = room.random.Pick(kAnimals, 1)[0];
  const std::string adjective = room.random.Pick(kQualities, 1)[0];
  const std::string number = room.random.Number(7);
  return {w.system,
          Hide(room, {Fill(w.fact, adjective, noun, number)}, w.introduction),
          {{Fill(w.question, adjective, noun, ""),
            Fill(w.answer, adjective, noun, ""), number}}};
}

Task MultiKey(Room& room) {
  const std::vector<std::string> names = room.random.Pick(kNames, 4);
  const std::vector<std::string> cities = room.random.Pick(kCities, 4);
  Task task;
  std::vector<std::string> facts;
  for (size_t i = 0; i < names.size(); ++i) {
    facts.push_back(
        fmt::format("{} was born in the city of {}.", names[i], cities[i]));
    if (i >= 2) continue;  // two of four are asked for
    task.questions.push_back(
        {fmt::format("In which city was {} born?", names[i]),
         fmt::format("{} was born in the city of", names[i]), " " + cities[i]});
  }
  room.random.Shuffle(facts);
  task.context = Hide(room, facts);
  return task;
}

Task MultiValue(Room& room) {
  const std::string key = Keys(room.random, 1)[0];
  const std::vector<std::string> things = room.random.Pick(kThings, 2);
  std::vector<std::string> facts;
  for (const std::string& thing : things) {
    facts.push_back(fmt::format("The {} owns a {}.", key, thing));
  }
  return {"",
          Hide(room, facts),
          {{fmt::format("What two things does the {} own?", key),
            fmt::format("The {} owns a", key),
            fmt::format(" {} and a {}", things[0], things[1])}}};
}

Task MultiQuery(Room& room) {
  const std::vector<std::string> keys = Keys(room.random, 4);
  std::vector<std::string> numbers, facts;
  for (const std::string& key : keys) {
    numbers.push_back(room.random.Number(4));
    facts.push_back(NumberFact(key, numbers.back()));
  }
  room.random.Shuffle(facts);
  return {"",
          Hide(room, facts),
          {{fmt::format("What are the secret numbers of the {} and of the {}?",
                        keys[0], keys[1]),
            fmt::format("The secret numbers of the {} and of the {} are ",
                        keys[0], keys[1]),
            numbers[0] + " and " + numbers[1]}}};
}

Task Tracking(Room& room) {
  std::vector<std::string> letters;
  for (char c = 'A'; c <= 'Z'; ++c) letters.emplace_back(1, c);
  std::vector<std::string> names;
  for (int i = 0; i < 3; ++i) {
    const auto pick = room.random.Pick(letters, 3);
    names.push_back(pick[0] + pick[1] + pick[2]);
  }
  const std::string value = room.random.Number(5);
  return {"",
          Hide(room, {fmt::format("VAR {} = {}.", names[0], value),
                      fmt::format("VAR {} = VAR {}.", names[1], names[0]),
                      fmt::format("VAR {} = VAR {}.", names[2], names[1])}),
          {{fmt::format("Which variables have the value {}?", value),
            fmt::format("Three variables have the value {}: ", value),
            fmt::format("{}, {}, {}", names[0], names[1], names[2])}}};
}

// A shuffled list of words, each as often as `weight` says of its rank.
std::vector<std::string> Words(Room& room,
                               const std::function<size_t(size_t)>& weight,
                               Task& task) {
  std::vector<std::string> words = kThings;
  words.insert(words.end(), kAnimals.begin(), kAnimals.end());
  room.random.Shuffle(words);
  std::vector<std::string> round;
  for (size_t i = 0; i < words.size(); ++i) {
    round.insert(round.end(), weight(i), words[i]);
  }
  uint32_t n_tokens = 0;
  for (const std::string& word : round) n_tokens += room.count(", " + word);
  std::vector<std::string> list;
  for (uint32_t i = 0; i < std::max(1u, room.n_tokens / n_tokens); ++i) {
    list.insert(list.end(), round.begin(), round.end());
  }
  room.random.Shuffle(list);
  task.context =
      "Below is a list of words. Remember which of them occur most often.\n";
  for (const std::string& word : list) task.context += word + ", ";
  task.context.replace(task.context.size() - 2, 2, ".\n");
  return words;
}

Task Common(Room& room) {
  Task task;
  const auto words = Words(
      room, [](size_t rank) { return rank == 0 ? size_t{8} : size_t{1}; },
      task);
  task.questions = {{"Which word occurs most often in the list?",
                     "The word that occurs most often is:", " " + words[0]}};
  return task;
}

// As often as Zipf's law says.
Task Frequent(Room& room) {
  Task task;
  const auto words = Words(
      room, [](size_t rank) { return std::max<size_t>(1, 12 / (rank + 1)); },
      task);
  task.questions = {
      {"Which are the two most frequent words of the list, the "
       "most frequent first?",
       "The two most frequent words are:", " " + words[0] + ", " + words[1]}};
  return task;
}

Task QuestionOverText(Room& room) {
  const std::vector<std::string> names = room.random.Pick(kNames, 2);
  const std::vector<std::string> things = room.random.Pick(kThings, 2);
  const std::vector<std::string> colours = room.random.Pick(kColours, 2);
  Task task;
  std::vector<std::string> facts;
  for (size_t i = 0; i < names.size(); ++i) {
    facts.push_back(fmt::format("The colour of {}'s {} was {}.", names[i],
                                things[i], colours[i]));
    task.questions.push_back(
        {fmt::format("What was the colour of {}'s {}?", names[i], things[i]),
         fmt::format("The colour of {}'s {} was", names[i], things[i]),
         " " + colours[i]});
  }
  task.context = Hide(room, facts);
  return task;
}

const std::vector<std::pair<const char*, Task (*)(Room&)>> kKinds = {
    {"single", Single},           {"multi-key", MultiKey},
    {"multi-value", MultiValue},  {"multi-query", MultiQuery},
    {"tracking", Tracking},       {"common-words", Common},
    {"frequent-words", Frequent}, {"question", QuestionOverText},
};

}  // namespace

std::vector<std::string> TaskKinds() {
  std::vector<std::string> names;
  for (const auto& [name, make] : kKinds) names.push_back(name);
  return names;
}

Task MakeTask(const std::string& kind, uint64_t seed, uint32_t n_tokens,
              std::span<const std::string> sentences, const Wording& wording,
              const CountTokens& count) {
  for (size_t i = 0; i < kKinds.size(); ++i) {
    if (kind != kKinds[i].first) continue;
    Random random(seed * kKinds.size() + i);
    Room room{random, n_tokens, sentences, wording, count};
    return kKinds[i].second(room);
  }
  throw std::runtime_error("no kind of task is called " + kind);
}

Task MakeNeedle(double depth, uint64_t seed, uint32_t n_tokens,
                std::span<const std::string> sentences, const Wording& wording,
                const CountTokens& count) {
  Random random(seed);
  Room room{random, n_tokens, sentences, wording, count, depth};
  return Single(room);
}

std::vector<std::string> Sentences(const std::string& text) {
  std::vector<std::string> sentences;
  std::string sentence;
  bool ends = false;
  for (const char c : text) {
    const bool space = c == ' ' || c == '\n' || c == '\t' || c == '\r';
    if (space && ends) {
      if (sentence.size() > 20 && sentence.size() < 400) {
        sentences.push_back(sentence);
      }
      sentence.clear();
    } else if (!space) {
      sentence += c;
    } else if (!sentence.empty() && sentence.back() != ' ') {
      sentence += ' ';
    }
    if (space || c == '.' || c == '!' || c == '?') {
      ends = !space;
    } else if (c != '"' && c != '\'' && c != ')') {
      ends = false;
    }
  }
  return sentences;
}

}  // namespace kvevict::llama_cli::eval
