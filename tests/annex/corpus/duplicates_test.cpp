#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "annex/corpus/duplicate_groups.h"
#include "annex/corpus/near_duplicates.h"
#include "megatron/core/error.h"
#include "megatron/data/numpy_random.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron::corpus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class DuplicatesTest : public testing::Test {
 protected:
  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    return folder_.write(name, content);
  }

  static std::string random_words(NumpyRandom& random, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      for (int64_t left = random.randint(2, 9); left > 0; --left) {
        text += static_cast<char>('a' + random.randint(0, 26));
      }
      text += ' ';
    }
    return text;
  }
  static std::string line(const std::string& url, const std::string& text) {
    return nlohmann::json{{"url", url}, {"text", text}}.dump() + "\n";
  }

  // 20 texts of 200 words, each in three versions that differ in few words at their ends, among 40
  // texts that have no other version.
  std::filesystem::path planted() const {
    NumpyRandom random(11);
    std::string lines;
    for (int i = 0; i < 20; ++i) {
      const std::string text = random_words(random, 200);
      for (const char* const version : {"a", "b", "c"}) {
        lines += line(fmt::format("near{}{}", i, version), text + random_words(random, 4));
        if (*version != 'c') {
          lines += line(fmt::format("alone{}{}", i, version), random_words(random, 200));
        }
      }
    }
    return write("data.json", lines);
  }

  NearDuplicatesConfig config(const std::filesystem::path& data) const {
    NearDuplicatesConfig config;
    config.inputs = {{data, "url"}};
    config.output = path("pairs");
    return config;
  }

  std::vector<std::string> urls(const std::string& name) const {
    std::ifstream file(path(name));
    std::vector<std::string> found;
    for (std::string text; std::getline(file, text);) {
      found.push_back(nlohmann::json::parse(text).at("url"));
    }
    return found;
  }

  TemporaryDirectory folder_;
};

TEST_F(DuplicatesTest, PlantedNearDuplicatesAreRemovedAndOthersKept) {
  NearDuplicatesConfig all_pairs = config(planted());
  all_pairs.heuristic_iter = -1;
  const NearDuplicatesCounts counts = find_near_duplicates(all_pairs, {.threads = 3});
  EXPECT_EQ(counts.documents, 100);
  EXPECT_EQ(counts.bad_lines, 0);
  const GroupCounts groups = group_duplicates(path("pairs"), path("groups"), 0.7, {});
  EXPECT_EQ(groups.groups, 20);
  EXPECT_EQ(groups.removable, 40);
  const RemovalCounts removed =
      remove_group_duplicates(path("groups"), path("data.json"), path("out"), {});
  EXPECT_EQ(removed.removed, 40);
  std::multiset<std::string> kinds;
  for (const std::string& url : urls("out")) {
    const bool is_near = url.starts_with("near");
    kinds.insert(is_near ? url.substr(0, url.size() - 1) : "alone");
  }
  EXPECT_EQ(kinds.count("alone"), 40u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(kinds.count("near" + std::to_string(i)), 1u) << i;
}

// With one main document for each bucket, all three versions share most buckets.
TEST_F(DuplicatesTest, OneIterationFindsAlmostAll) {
  find_near_duplicates(config(planted()), {});
  EXPECT_GE(group_duplicates(path("pairs"), path("groups"), 0.7, {}).removable, 38);
}

TEST_F(DuplicatesTest, TheResultDoesNotDependOnThreadsOrPlacesOfTexts) {
  NearDuplicatesConfig one = config(planted());
  find_near_duplicates(one, {.threads = 1});
  const std::string want = read_text(one.output);
  one.texts_on_disk = true;
  find_near_duplicates(one, {.threads = 5});
  EXPECT_EQ(read_text(one.output), want);
  one.seed = 99;
  find_near_duplicates(one, {.threads = 5});
  EXPECT_NE(read_text(one.output), want);
}

TEST_F(DuplicatesTest, PairsHavePythonsFormat) {
  const auto data = write("data.json", line("x\xC3\xA9", "abcdefghij") + line("y", "abcdefghij") +
                                           line("z", "something else"));
  find_near_duplicates(config(data), {});
  const std::string either = read_text(path("pairs"));
  EXPECT_THAT(either, testing::AnyOf(HasSubstr("{\"x\xC3\xA9\": [{\"y\": 1.0}]}\n"),
                                     HasSubstr("{\"y\": [{\"x\xC3\xA9\": 1.0}]}\n")));
  EXPECT_EQ(std::count(either.begin(), either.end(), '\n'), 10);  // once for each band
}

TEST_F(DuplicatesTest, SavedFingerprintsStandForTheirDocuments) {
  const std::filesystem::path data = planted();
  NearDuplicatesConfig whole = config(data);
  find_near_duplicates(whole, {});
  const std::string want = read_text(whole.output);

  const std::string lines = read_text(data);
  const size_t half = lines.find('\n', lines.size() / 2) + 1;
  NearDuplicatesConfig first = config(write("first.json", lines.substr(0, half)));
  first.output.clear();
  first.save_fingerprints = path("prints");
  const int64_t saved = find_near_duplicates(first, {}).documents;
  EXPECT_GT(saved, 40);
  NearDuplicatesConfig second = config(write("second.json", lines.substr(half)));
  second.load_fingerprints = {path("prints")};
  EXPECT_EQ(find_near_duplicates(second, {}).documents, 100);
  EXPECT_EQ(read_text(second.output), want);

  second.load_fingerprints.push_back(path("prints"));
  EXPECT_EQ(find_near_duplicates(second, {}).repeated_ids, saved);
  second.seed = 1;
  EXPECT_THAT(message_of<ConfigError>([&] { find_near_duplicates(second, {}); }),
              HasSubstr("its fingerprints have other seeds"));
}

TEST_F(DuplicatesTest, DamagedFingerprintsAreRefused) {
  NearDuplicatesConfig save = config(write("data.json", line("x", "some text")));
  save.save_fingerprints = path("prints");
  find_near_duplicates(save, {});
  const std::string good = read_text(path("prints"));
  NearDuplicatesConfig load = config("");
  load.inputs.clear();
  load.load_fingerprints = {path("broken")};
  for (size_t size = 0; size < good.size(); size += 7) {
    write("broken", good.substr(0, size));
    EXPECT_THROW(find_near_duplicates(load, {}), FormatError) << size;
  }
  std::string huge = good;
  huge[31] = '\x7f';  // the number of documents
  write("broken", huge);
  EXPECT_THAT(message_of<FormatError>([&] { find_near_duplicates(load, {}); }),
              HasSubstr("the file ends too early"));
  write("broken", "MGFP2 and more");
  EXPECT_THAT(message_of<FormatError>([&] { find_near_duplicates(load, {}); }),
              HasSubstr("does not begin with MGFP1"));
}

TEST_F(DuplicatesTest, BadLinesAndRepeatedIdsAreNamed) {
  const auto data =
      write("data.json", line("x", "text") + "oops\n" + R"({"text": "no url"})" + "\n" +
                             R"({"url": "u", "text": 3})" + "\n" + line("x", "again"));
  std::vector<std::string> bad;
  RunOptions options;
  options.on_bad_line = [&](const std::string& text) { bad.push_back(text); };
  const NearDuplicatesCounts counts = find_near_duplicates(config(data), options);
  EXPECT_EQ(counts.documents, 1);
  EXPECT_EQ(counts.bad_lines, 3);
  EXPECT_EQ(counts.repeated_ids, 1);
  EXPECT_THAT(
      bad, ElementsAre(HasSubstr("data.json:2: "), HasSubstr(":3: the object has no text \"url\""),
                       HasSubstr(":4: the object has no text \"text\""),
                       HasSubstr(":5: an earlier document has the id \"x\"")));
}

TEST_F(DuplicatesTest, ShortTextsAreNoDuplicates) {
  const auto data = write("data.json", line("x", "") + line("y", "") + line("z", "abc"));
  const NearDuplicatesCounts counts = find_near_duplicates(config(data), {});
  EXPECT_EQ(counts.buckets, 0);
  EXPECT_EQ(read_text(path("pairs")), "");
}

TEST_F(DuplicatesTest, ConfigsAreChecked) {
  NearDuplicatesConfig config;
  config.num_bands = 7;
  config.heuristic_iter = 0;
  config.seed = -1;
  EXPECT_THAT(problems(config),
              ElementsAre(HasSubstr("there are no documents"), HasSubstr("there is no output"),
                          HasSubstr("must be a multiple of --num-bands 7; use 105"),
                          HasSubstr("--heuristic-iter 0"), HasSubstr("--seed -1")));
  config.num_bands = 0;
  EXPECT_THAT(problems(config), testing::Contains(HasSubstr("--num-bands 0 must be at least 1")));
}

TEST_F(DuplicatesTest, GroupsAreUnionsOfPairsAboveTheThreshold) {
  const auto pairs = write("pairs",
                           "{\"d\": [{\"e\": 0.7}, {\"f\": 0.69}]}\n"
                           "{\"a\": [{\"b\": 0.8}]}\nnonsense\n{\"x\": 3}\n"
                           "{\"c\": [{\"b\": 1}]}\n{\"s\": [{\"s\": 1.0}]}\n");
  const GroupCounts counts = group_duplicates(pairs, path("groups"), 0.7, {.threads = 2});
  EXPECT_EQ(read_text(path("groups")), "{\"0\": [\"d\", \"e\"]}\n{\"1\": [\"a\", \"b\", \"c\"]}\n");
  EXPECT_EQ(counts.bad_lines, 2);
  EXPECT_EQ(counts.groups, 2);
  EXPECT_EQ(counts.removable, 3);
  group_duplicates(pairs, path("groups"), 0.65, {});
  EXPECT_THAT(read_text(path("groups")), HasSubstr("{\"0\": [\"d\", \"e\", \"f\"]}\n"));
}

TEST_F(DuplicatesTest, RemovalKeepsTheFirstOfAGroup) {
  const auto groups = write("groups", "{\"0\": [\"a\", \"b\"]}\n{\"1\": [\"c\"]}\n");
  const auto data = write("data", line("b", "1") + line("a", "2") + line("c", "3") + "{}\n" +
                                      R"({"text":"\u00e9","url":"d","n":[1,2]})");
  const RemovalCounts counts = remove_group_duplicates(groups, data, path("out"), {});
  EXPECT_THAT(urls("out"), ElementsAre("a", "c", "d"));
  EXPECT_THAT(read_text(path("out")),
              HasSubstr("{\"text\": \"\xC3\xA9\", \"url\": \"d\", \"n\": [1, 2]}\n"));
  EXPECT_EQ(counts.removed, 1);
  EXPECT_EQ(counts.lines.bad, 1);
  EXPECT_EQ(counts.groups, 2);
}

TEST_F(DuplicatesTest, ABadGroupEndsTheRemoval) {
  const auto data = write("data", line("b", "1"));
  for (const char* const bad : {"nonsense", "{\"0\": \"a\"}", "{\"0\": [1]}"}) {
    const auto groups = write("groups", std::string("{\"0\": [\"a\", \"b\"]}\n") + bad);
    EXPECT_THAT(
        message_of<FormatError>([&] { remove_group_duplicates(groups, data, path("out"), {}); }),
        HasSubstr("groups:2: expected {\"number\""));
  }
  EXPECT_FALSE(std::filesystem::exists(path("out")));
}

}  // namespace
}  // namespace megatron::corpus
