// SPDX-License-Identifier: Apache-2.0
#include "fsdp/archive/weights.hpp"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "archive/file.hpp"
#include "fsdp/archive/diff.hpp"
#include "fsdp/archive/listing.hpp"
#include "fsdp/base/error.hpp"
#include "support/error_of.hpp"
#include "support/small_checkpoint.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::archive {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class WeightsTest : public ::testing::Test {
 protected:
  WeightsTest() {
    test::save_small(run(), 4, 2,
                     {.documents = {{"config.json", "{\"torch_dtype\": \"float32\"}"}}});
  }
  std::string run() const { return directory_.path("run"); }
  std::string step() const { return run() + "/" + step_name(4); }
  std::string at(const std::string& name) const { return directory_.path(name); }
  test::TemporaryDirectory directory_;
};

TEST_F(WeightsTest, MergeSplitAndMergeAgainLoseNothing) {
  write_weights(WeightSource(run()), at("one.safetensors"));
  EXPECT_THAT(diff_weights(step(), at("one.safetensors")), IsEmpty());
  write_weights(WeightSource(at("one.safetensors")), at("parts"), {.max_file_bytes = 70});
  EXPECT_TRUE(fs::exists(at("parts/model-00003-of-00003.safetensors")));
  EXPECT_TRUE(fs::exists(at("parts/model.safetensors.index.json")));
  EXPECT_THAT(diff_weights(run(), at("parts")), IsEmpty());
  write_weights(WeightSource(at("parts")), at("again.safetensors"));
  EXPECT_THAT(diff_weights(at("again.safetensors"), at("one.safetensors")), IsEmpty());
}

TEST_F(WeightsTest, Fault113_ADirectoryKeepsTheConfigurationAndConvertCorrectsItsType) {
  write_weights(WeightSource(run()), at("half"), {.dtype = "BF16"});
  EXPECT_EQ(detail::read_file(at("half/config.json"), 100), "{\"torch_dtype\": \"bfloat16\"}");
  const WeightSource half(at("half"));
  EXPECT_EQ(half.find("a")->dtype, "BF16");
  EXPECT_EQ(half.find("b.weight")->dtype, "BF16");
  EXPECT_EQ(half.find("z")->dtype, "U8") << "no floating-point number";
  EXPECT_EQ(half.find("a")->shape, (std::vector<std::int64_t>{5, 3}));
  EXPECT_THAT(diff_weights(run(), at("half")),
              Contains(HasSubstr("a: F32 [5, 3] against BF16 [5, 3]")));
}

TEST_F(WeightsTest, NothingIsOverwrittenAndNothingHalfIsLeft) {
  directory_.write("there.safetensors", "mine");
  EXPECT_THAT(test::error_of([&] { write_weights(WeightSource(run()), at("there.safetensors")); }),
              HasSubstr("exists already"));
  EXPECT_EQ(detail::read_file(at("there.safetensors"), 100), "mine");
  EXPECT_THAT(test::error_of([&] {
                write_weights(WeightSource(run()), at("x.safetensors"), {.max_file_bytes = 10});
              }),
              HasSubstr("name a directory instead"));
  EXPECT_THAT(test::error_of([&] { write_weights(WeightSource(run()), at("x"), {.dtype = "I8"}); }),
              HasSubstr("must be F32"));
  EXPECT_THROW(write_weights(WeightSource(run()), "/proc/nowhere/x.safetensors"), Error);
  EXPECT_EQ(std::distance(fs::directory_iterator(at("")), {}), 2) << "the run and what was there";
}

TEST_F(WeightsTest, Fault155_WhatIsTheUsersIsNeverRemoved) {
  fs::create_directories(at("x.partial"));
  directory_.write("x.partial/thesis.txt", "mine");
  directory_.write("one.safetensors.partial", "mine");
  write_weights(WeightSource(run()), at("x"));
  write_weights(WeightSource(run()), at("one.safetensors"));
  EXPECT_EQ(detail::read_file(at("x.partial/thesis.txt"), 100), "mine");
  EXPECT_EQ(detail::read_file(at("one.safetensors.partial"), 100), "mine");
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FSDP_TEST_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FSDP_TEST_SANITIZED
#endif

/// Lets this process take `bytes` of address space more than it has.
void limit_more_memory(std::int64_t bytes) {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto limit = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + bytes);
  const rlimit limits{.rlim_cur = limit, .rlim_max = limit};
  ::setrlimit(RLIMIT_AS, &limits);
}

TEST_F(WeightsTest, Fault113_MergingAndConvertingTakeConstantMemory) {
#ifdef FSDP_TEST_SANITIZED
  GTEST_SKIP() << "a sanitizer takes address space of its own";
#endif
  // A file with holes: its 200 MB read as zeros and take no disk.
  const auto layout = format::plan_safetensors({{"big", "F32", {50'000'000}}});
  directory_.write("big.safetensors", layout.header);
  fs::resize_file(at("big.safetensors"), static_cast<std::uintmax_t>(layout.file_bytes));
  const pid_t child = ::fork();
  if (child == 0) {
    limit_more_memory(32 << 20);
    try {
      write_weights(WeightSource(at("big.safetensors")), at("half"), {.dtype = "BF16"});
      ::_exit(0);
    } catch (const std::exception&) {
      ::_exit(1);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(WeightSource(at("half")).find("big")->bytes, 100'000'000);
}

TEST_F(WeightsTest, Fault157_EveryReaderOfACheckpointComparesItsSums) {
  const auto damage = [&](const std::string& name, std::int64_t place) {
    std::string bytes = detail::read_file(step() + "/" + name, 1 << 20);
    bytes[static_cast<std::size_t>(place)] ^= 4;
    directory_.write("run/" + step_name(4) + "/" + name, bytes);
  };
  const std::int64_t offset = WeightSource(run()).find("z")->offset;
  damage("model.safetensors", offset + 40);
  const auto is_named = ::testing::AllOf(HasSubstr("model.safetensors': tensor 'z' has the sum"),
                                         HasSubstr("the index says"), HasSubstr("damaged"));
  EXPECT_THAT(test::error_of([&] { write_weights(WeightSource(run()), at("one.safetensors")); }),
              is_named);
  EXPECT_THAT(
      test::error_of([&] { write_weights(WeightSource(run()), at("x"), {.dtype = "F16"}); }),
      is_named);
  EXPECT_THAT(test::error_of([&] { diff_weights(run(), run()); }), is_named);
  EXPECT_FALSE(fs::exists(at("one.safetensors")) || fs::exists(at("x")));
  const WeightSource source(run());
  char bytes[64];
  EXPECT_THAT(test::error_of([&] { source.read(*source.find("z"), 0, 1, bytes); }), is_named)
      << "also for a part that is sound";
  EXPECT_NO_THROW(source.read(*source.find("a"), 0, 60, bytes));
  const WeightSource unchecked(run(), SumCheck::kByCaller);
  EXPECT_NO_THROW(unchecked.read(*unchecked.find("z"), 0, 1, bytes));
  EXPECT_THAT(test::error_of([&] { unchecked.check_sum(*unchecked.find("z")); }), is_named);
  damage("config.json", 3);
  EXPECT_THAT(test::error_of([&] { WeightSource{run()}; }), HasSubstr("config.json' has the sum"));
}

TEST_F(WeightsTest, Fault159_AConfigurationIsCorrectedHoweverItIsSpaced) {
  const std::string blanks(50'000, ' ');
  test::save_small(at("blank"), 1, 1,
                   {.documents = {{"config.json", "{\"torch_dtype\"" + blanks + ":" + blanks +
                                                      "\"float32\", \"dtype\":\"float32\","
                                                      " \"note\": \"dtype\"}"}}});
  write_weights(WeightSource(at("blank")), at("half"), {.dtype = "BF16"});
  EXPECT_EQ(detail::read_file(at("half/config.json"), 200'000),
            "{\"torch_dtype\"" + blanks + ":" + blanks +
                "\"bfloat16\", \"dtype\":\"bfloat16\", \"note\": \"dtype\"}");
}

TEST_F(WeightsTest, Fault159_APipeIsRefusedAndNotWaitedFor) {
  for (const char* name : {"checkpoint.json", "model.safetensors", "config.json"}) {
    const std::string file = step() + "/" + name;
    fs::rename(file, at("aside"));
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    EXPECT_THAT(test::error_of([&] { WeightSource{step()}; }), HasSubstr(name));
    fs::remove(file);
    fs::rename(at("aside"), file);
  }
  ASSERT_EQ(::mkfifo(at("pipe.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(test::error_of([&] { WeightSource(at("pipe.safetensors")); }),
              HasSubstr("is a named pipe, must be a regular file"));
  fs::create_directory(at("plain"));
  write_weights(WeightSource(run()), at("plain/model.safetensors"));
  ASSERT_EQ(::mkfifo(at("plain/config.json").c_str(), 0600), 0);
  EXPECT_THAT(test::error_of([&] { WeightSource(at("plain")); }),
              HasSubstr("config.json' is a named pipe"));
}

TEST_F(WeightsTest, DiffNamesEachDifference) {
  test::save_small(at("other"), 5);
  const auto lines = diff_weights(run(), at("other"));
  EXPECT_THAT(lines, Contains("step: 4 against 5"));
  EXPECT_THAT(lines, Contains(HasSubstr("model z: 41 of 41 elements differ")));
  EXPECT_THAT(lines,
              Contains(HasSubstr("optimizer a.exp_avg: 15 of 15 elements differ, by up to")));
  EXPECT_THAT(diff_weights(run(), run()), IsEmpty());
}

TEST_F(WeightsTest, DiffNamesWhatOnlyOneHas) {
  write_weights(WeightSource(run()), at("one.safetensors"));
  std::string bytes = detail::read_file(at("one.safetensors"), 1 << 20);
  bytes.replace(bytes.find("\"half\""), 6, "\"hall\"");
  directory_.write("two.safetensors", bytes);
  EXPECT_THAT(diff_weights(at("one.safetensors"), at("two.safetensors")),
              ElementsAre("only in the first: half", "only in the second: hall"));
}

TEST_F(WeightsTest, Fault149_WhatIsSomethingElseIsSaidWithTheWayOn) {
  write_weights(WeightSource(run()), at("one.safetensors"));
  EXPECT_THAT(test::error_of([&] { resolve_checkpoint(at("one.safetensors")); }),
              HasSubstr("is a file of weights alone, no checkpoint: load_weights() reads it"));
  write_weights(WeightSource(run()), at("parts"), {.max_file_bytes = 70});
  EXPECT_THAT(test::error_of([&] { resolve_checkpoint(at("parts")); }),
              HasSubstr("holds weights alone, no checkpoint: load_weights() reads them"));
  const std::string part = at("parts/model-00001-of-00003.safetensors");
  EXPECT_THAT(hint_for_part(part),
              ::testing::AllOf(HasSubstr("give their directory, '" + at("parts") + "', whose"),
                               HasSubstr("model.safetensors.index.json")));
  EXPECT_EQ(hint_for_part(at("one.safetensors")), "");
  EXPECT_EQ(hint_for_part(at("parts")), "");
  fs::remove(at("parts/model.safetensors.index.json"));
  EXPECT_THAT(
      test::error_of([&] { WeightSource(at("parts")); }),
      ::testing::AllOf(HasSubstr("-of-00003.safetensors but no model.safetensors.index.json"),
                       HasSubstr("fetch it, too")));
  EXPECT_THAT(hint_for_part(part), HasSubstr("put the others and model.safetensors.index.json"));
}

TEST_F(WeightsTest, WhatIsNoWeightsIsSaid) {
  EXPECT_THAT(test::error_of([&] { WeightSource(at("nothing")); }), HasSubstr("there is nothing"));
  fs::create_directories(at("empty"));
  EXPECT_THAT(test::error_of([&] { WeightSource(at("empty")); }),
              HasSubstr("nor a complete checkpoint"));
  fs::create_directories(at("wrong"));
  directory_.write("wrong/model.safetensors.index.json",
                   R"({"weight_map": {"a": "../../etc/passwd"}})");
  EXPECT_THAT(test::error_of([&] { WeightSource(at("wrong")); }),
              HasSubstr("lies in no file beside it"));
}

}  // namespace
}  // namespace fsdp::archive
