#include "cuda/cubin_cache.h"

#include <criterion/criterion.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace kvevict::cuda {
namespace {

namespace fs = std::filesystem;

// A folder of its own, removed at the end of the scope.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    char name[] = "/tmp/kvevict-cubins-XXXXXX";
    cr_assert_not_null(mkdtemp(name));
    path_ = name;
  }
  ~TemporaryFolder() { fs::remove_all(path_); }

  std::string operator/(const char* name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Digest KeyOf(const std::string& text) {
  Sha256 hash;
  hash.Add(text.data(), text.size());
  return hash.Finish();
}

const Digest kKey = KeyOf("a key");
const std::string kImage = "\x7f" + std::string(5000, 'i');

bool Holds(const CubinCache& cache, const Digest& key,
           const std::string& image) {
  std::string found;
  return cache.Load(key, &found) && found == image;
}

void Open(CubinCache* cache, const std::string& folder) {
  cr_assert(cache->Open(folder.c_str()).ok(), "%s", LastErrorMessage());
  cr_assert(cache->is_on());
}

void Store(const CubinCache& cache) {
  std::string reason;
  cr_assert(cache.Store(kKey, kImage, &reason), "%s", reason.c_str());
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

void ExpectRefused(const std::string& folder) {
  CubinCache cache;
  cr_assert_eq(cache.Open(folder.c_str()).code(),
               KVEVICT_ERROR_INVALID_ARGUMENT);
  cr_assert_not(cache.is_on());
  const std::string message = LastErrorMessage();
  cr_assert(message.find("kernel_cache_dir ") == 0);
  const std::string name = folder.substr(0, folder.find_last_not_of('/') + 1);
  cr_assert(message.find(name) != std::string::npos, "%s", message.c_str());
}

TestSuite(cubin_cache);

Test(cubin_cache, is_off_without_a_folder) {
  for (const char* none : {static_cast<const char*>(nullptr), ""}) {
    CubinCache cache;
    cr_assert(cache.Open(none).ok());
    cr_assert_not(cache.is_on());
    Store(cache);
    cr_assert_not(Holds(cache, kKey, kImage));
  }
}

Test(cubin_cache, finds_what_was_stored_and_nothing_else) {
  const TemporaryFolder folder;
  {
    CubinCache cache;
    Open(&cache, folder / "new");
    cr_assert_not(Holds(cache, kKey, kImage));
    Store(cache);
    cr_assert(Holds(cache, kKey, kImage));
    cr_assert_not(Holds(cache, KeyOf("another key"), kImage));
  }
  CubinCache again;
  Open(&again, folder / "new");
  cr_assert(Holds(again, kKey, kImage));

  struct stat info {};
  cr_assert_eq(stat((folder / "new").c_str(), &info), 0);
  cr_assert_eq(info.st_mode & 0777, 0700);
  const fs::directory_iterator files(folder / "new");
  cr_assert_eq(std::distance(files, fs::directory_iterator()), 1,
               "temporary files were left");
}

// Every byte counts: each one is damaged, each length cut, and one byte added.
Test(cubin_cache, damaged_entries_are_not_there) {
  const TemporaryFolder folder;
  CubinCache cache;
  Open(&cache, folder.path());
  const std::string entry = folder / (Hex(kKey) + ".cubin").c_str();
  std::string reason;
  const std::string image = "a short image";
  cr_assert(cache.Store(kKey, image, &reason));
  const std::string good = ReadFile(entry);
  cr_assert(Holds(cache, kKey, image));
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] ^= 1;
    WriteFile(entry, bad);
    std::string found;
    cr_expect_not(cache.Load(kKey, &found), "byte %zu", i);
    WriteFile(entry, good.substr(0, i));
    cr_expect_not(cache.Load(kKey, &found), "cut to %zu", i);
  }
  WriteFile(entry, good + "x");
  cr_expect_not(Holds(cache, kKey, image));

  // A new entry takes its place.
  cr_assert(cache.Store(kKey, image, &reason));
  cr_assert(Holds(cache, kKey, image));
}

Test(cubin_cache, foreign_entries_are_not_there) {
  const TemporaryFolder folder;
  CubinCache cache;
  Open(&cache, folder.path());
  Store(cache);
  const std::string entry = folder / (Hex(kKey) + ".cubin").c_str();
  const Digest other = KeyOf("other");
  const std::string other_entry = folder / (Hex(other) + ".cubin").c_str();
  std::string found;

  fs::copy_file(entry, other_entry);
  cr_expect_not(cache.Load(other, &found), "a renamed entry");

  fs::permissions(entry, fs::perms::others_write, fs::perm_options::add);
  cr_expect_not(cache.Load(kKey, &found), "an entry that others may write");
  fs::permissions(entry, fs::perms::others_write, fs::perm_options::remove);
  cr_expect(cache.Load(kKey, &found));

  fs::rename(entry, folder / "elsewhere");
  fs::create_symlink(folder / "elsewhere", entry);
  cr_expect_not(cache.Load(kKey, &found), "a symbolic link");
  fs::remove(entry);
  cr_assert_eq(mkfifo(entry.c_str(), 0600), 0);
  cr_expect_not(cache.Load(kKey, &found), "a pipe, that would never end");
  fs::remove(entry);
  fs::create_directory(entry);
  cr_expect_not(cache.Load(kKey, &found), "a folder");
}

Test(cubin_cache, refuses_folders_that_others_write_to) {
  const TemporaryFolder folder;
  for (const fs::perms others :
       {fs::perms::group_write, fs::perms::others_write}) {
    fs::permissions(folder.path(), others, fs::perm_options::add);
    ExpectRefused(folder.path());
    fs::permissions(folder.path(), others, fs::perm_options::remove);
  }
  CubinCache cache;
  Open(&cache, folder.path());
}

Test(cubin_cache, refuses_folders_of_other_users) {
  const TemporaryFolder folder;
  if (geteuid() != 0) {
    ExpectRefused("/usr");
    return;
  }
  cr_assert_eq(chown(folder.path().c_str(), 65534, 65534), 0);
  ExpectRefused(folder.path());
}

Test(cubin_cache, refuses_what_is_no_folder) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "there");
  fs::create_symlink(folder / "there", folder / "link");
  ExpectRefused(folder / "link");
  ExpectRefused(folder / "link/");  // the folder behind the link
  ExpectRefused(folder / "link//");
  WriteFile(folder / "file", "");
  ExpectRefused(folder / "file");
  ExpectRefused(folder / "no/parent");
}

// Files of processes with the same number that ended while they stored.
Test(cubin_cache, what_the_dead_left_is_in_nobodys_way) {
  const TemporaryFolder folder;
  CubinCache cache;
  Open(&cache, folder.path());
  for (int n = 0; n < 3; ++n) {
    const std::string part = Hex(kKey) + ".cubin." + std::to_string(getpid()) +
                             "." + std::to_string(n) + ".part";
    WriteFile(folder / part.c_str(), "half an image");
  }
  Store(cache);
  cr_assert(Holds(cache, kKey, kImage));
}

Test(cubin_cache, a_failed_store_gives_the_reason) {
  const TemporaryFolder folder;
  CubinCache cache;
  Open(&cache, folder / "gone");
  fs::remove(folder / "gone");
  std::string reason;
  cr_assert_not(cache.Store(kKey, kImage, &reason));
  cr_assert_eq(reason, "No such file or directory");
  cr_assert_not(Holds(cache, kKey, kImage));
}

// A reader finds one whole image or the other while others write.
Test(cubin_cache, writers_do_not_meet) {
  const TemporaryFolder folder;
  const std::string images[2] = {std::string(40000, 'a'),
                                 std::string(30000, 'b')};
  CubinCache first;
  Open(&first, folder.path());
  std::string reason;
  cr_assert(first.Store(kKey, images[0], &reason));
  std::atomic<int> n_wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      CubinCache cache;
      if (!cache.Open(folder.path().c_str()).ok()) ++n_wrong;
      for (int i = 0; i < 30; ++i) {
        std::string why;
        if (t < 2) {
          n_wrong += !cache.Store(kKey, images[t], &why);
        } else {
          std::string image;
          n_wrong += !cache.Load(kKey, &image) ||
                     (image != images[0] && image != images[1]);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  cr_assert_eq(n_wrong.load(), 0);
}

}  // namespace
}  // namespace kvevict::cuda
