// Text to ids and back.
#include <nlohmann/json.hpp>

#include "tests/paths.h"
#include "tests/tools/llama_test_util.h"
#include "tools/llama/model_file.h"
#include "tools/llama/tokenizer.h"

namespace kvevict::tools {
namespace {

// Specials, all bytes, then the given pieces, each with a lower score than the
// one before.
Tokenizer MakeTokenizer(const std::vector<std::string>& texts) {
  std::vector<TokenizerPiece> pieces = {{"<unk>", 0, PieceKind::kUnknown},
                                        {"<s>", 0, PieceKind::kControl},
                                        {"</s>", 0, PieceKind::kControl}};
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    snprintf(text, sizeof(text), "<0x%02X>", byte);
    pieces.push_back({text, 0, PieceKind::kNormal});
  }
  float score = 0;
  for (const auto& text : texts) pieces.push_back({text, score -= 1});
  return Tokenizer(std::move(pieces), TokenizerOptions{});
}

constexpr int32_t kFirst = 3 + 256;

int32_t ByteId(uint8_t byte) { return 3 + byte; }

Test(llama_tokenizer, joins_the_best_pair_first) {
  // " ab": "ab" (best) wins over " a", and then " ab" is no piece.
  const Tokenizer t = MakeTokenizer({"ab", " a", " ", "a", "b"});
  cr_assert(t.Encode("ab") ==
            std::vector<int32_t>({kBosId, kFirst + 2, kFirst + 0}));
  // With the scores exchanged " a" is joined first.
  const Tokenizer u = MakeTokenizer({" a", "ab", " ", "a", "b"});
  cr_assert(u.Encode("ab") ==
            std::vector<int32_t>({kBosId, kFirst + 0, kFirst + 4}));
}

Test(llama_tokenizer, joins_the_leftmost_of_equals) {
  const Tokenizer t = MakeTokenizer({"aa", " ", "a"});
  cr_assert(t.Encode("aaa") ==
            std::vector<int32_t>({kBosId, kFirst + 1, kFirst, kFirst + 2}));
}

Test(llama_tokenizer, spells_the_unknown_in_bytes) {
  const Tokenizer t = MakeTokenizer({" ", "a"});
  cr_assert(t.Encode("a\xc3\xa9") ==
            std::vector<int32_t>(
                {kBosId, kFirst, kFirst + 1, ByteId(0xc3), ByteId(0xa9)}));
}

Test(llama_tokenizer, control_pieces_in_text_are_text) {
  const Tokenizer t = MakeTokenizer({" ", "<", "<s", "s", ">"});
  cr_assert(t.Encode("<s>") ==
            std::vector<int32_t>({kBosId, kFirst, kFirst + 2, kFirst + 4}));
}

Test(llama_tokenizer, empty_text_is_a_bos) {
  const Tokenizer t = MakeTokenizer({" "});
  cr_assert(t.Encode("") == std::vector<int32_t>({kBosId}));
  cr_assert(t.Decode({}).empty());
}

Test(llama_tokenizer, decoding_undoes_encoding) {
  const Tokenizer t = MakeTokenizer({" ", "a", "b", "ab", " a", "  "});
  TestRandom random(TestSeed());
  for (int i = 0; i < 2000; ++i) {
    std::string text;  // Any bytes: most are no UTF-8.
    for (uint64_t n = random.Below(12); n > 0; --n) {
      const char common[] = {' ', 'a', 'b'};
      text += random.Below(3) != 0 ? common[random.Below(3)]
                                   : static_cast<char>(random.Below(256));
    }
    cr_assert(t.Decode(t.Encode(text)) == text, "at %d", i);
  }
}

Test(llama_tokenizer, ids_outside_the_vocabulary_are_errors) {
  const Tokenizer t = MakeTokenizer({" "});
  const auto size = static_cast<int32_t>(t.vocab_size());
  for (const int32_t id : {-1, size}) {
    bool thrown = false;
    try {
      t.Decode(std::vector<int32_t>({id}));
    } catch (const std::out_of_range&) {
      thrown = true;
    }
    cr_assert(thrown, "%d", id);
  }
}

// The reference ids were made by llama.cpp's tokenizer.
void CheckReferences(const std::string& model_path) {
  const Tokenizer t = ReadModelFile(model_path, "").tokenizer;
  const std::string texts = std::string(test_shared_dir) + "/texts/";

  const std::string alice = ReadFile(texts + "alice29.txt");
  const std::vector<int32_t> alice_ids =
      ParseIds(ReadFile(texts + "alice29.tok512.ids"));
  cr_expect(t.Encode(alice) == alice_ids);
  cr_expect(t.Decode(alice_ids) == alice);

  std::istringstream stories(
      ReadFile(texts + "stories260k_sampled.tok512.ids"));
  for (std::string line; std::getline(stories, line);) {
    const std::vector<int32_t> ids = ParseIds(line);
    cr_expect(t.Encode(t.Decode(ids)) == ids);
  }

  // Encodes each story separately, without the separators and the newlines around them.
  std::vector<int32_t> ids;
  const std::string separator = "<|endoftext|>";
  std::string rest = ReadFile(texts + "tinystories_sample.txt");
  for (size_t end; (end = rest.find(separator)) != std::string::npos;) {
    std::string story = rest.substr(0, end);
    story.erase(0, story.find_first_not_of('\n'));
    story.erase(story.find_last_not_of('\n') + 1);
    const std::vector<int32_t> story_ids = t.Encode(story);
    ids.insert(ids.end(), story_ids.begin(), story_ids.end());
    rest.erase(0, end + separator.size());
  }
  cr_expect(ids == ParseIds(ReadFile(texts + "tinystories_sample.tok512.ids")));

  for (const char* name : {"stories260k", "english800k"}) {
    const auto reference = nlohmann::json::parse(
        ReadFile(std::string(test_shared_dir) + "/models/reference/" + name +
                 "_greedy.json"));
    for (const auto& prompt : reference["prompts"]) {
      cr_expect(t.Encode(prompt["prompt"].get<std::string>()) ==
                prompt["prompt_ids"].get<std::vector<int32_t>>());
    }
  }
}

Test(llama_tokenizer, gguf_gives_the_reference_ids) {
  KV_SHARED_FILE(path, "models/stories260K.gguf");
  CheckReferences(path);
}

Test(llama_tokenizer, llama2c_gives_the_reference_ids) {
  KV_SHARED_FILE(path, "models/stories260K.bin");
  CheckReferences(path);
}

}  // namespace
}  // namespace kvevict::tools
